"""Columns of a capture, and their roles: which one is the time, the diff, the event or part of the payload.

The event says whether a row is a message or a statement about progress (``frontier=events`` only), the diff how often
it is added to a collection. All other columns are payload. `policy_of` makes of the options the policy by which rows
are judged.

Invariants
----------
1. Roles are given on the driver, once for each micro-batch, from the schema alone: what does not fit is refused
   before any task runs.
2. Both ways of capture, the sink's Python writer and `spark_timely.capture` in foreachBatch, take them from here.
3. Columns are found by name as Spark finds them: exactly, else without regard to case.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.conf.options import SinkOptions
from spark_timely.errors import InvalidOptionError, InvalidUsageError, SchemaMismatchError, shown
from spark_timely.interop.cdcv2.statements import check_statement_columns, statement_columns
from spark_timely.log.files.format import METADATA_KEY, LogFormat, canonical_type
from spark_timely.protocol.policy import BadTime, FrontierPolicy, LateData, Policy
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.time.domain import TimeDomain, TimeType

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """Name the column of the data for each thing that a log stores.

    Attributes
    ----------
    form : LogFormat
        Format of the log that exists, or of the one to be made.
    payload : tuple of (str or None)
        For each payload field of the log the column it comes from; None: it is filled with nulls.
    times : tuple of str
        Columns of the time's coordinates; empty under ``frontier=batch``.
    diff : str or None
        Column of the signed count; None: each row counts 1.
    event, delta : str or None
        Columns that tell progress rows from messages, and their changes; ``frontier=events`` only.
    minimum_known : bool
        Whether the events say at which time their log begins; True without events.
    added : tuple of str
        Payload fields that the log does not have yet: the commit adds them first.
    statements : tuple of str
        Columns of CDCv2's statements; ``dialect=cdcv2`` only.

    Examples
    --------
    >>> import pyarrow as pa
    >>> form = LogFormat.build(pa.schema([("id", pa.int64())]), minimum=(0,))
    >>> ColumnRoles(form, ("id",), ()).required
    ()
    """

    form: LogFormat
    payload: tuple[str | None, ...]
    times: tuple[str, ...]
    diff: str | None = None
    event: str | None = None
    delta: str | None = None
    minimum_known: bool = True
    added: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """Payload fields of the log that may not be null."""
        return tuple(field.name for field in self.form.payload if not field.nullable)

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """Everything that the data brings: name in the log and column of the data, each column once.

        A time that is part of the payload stands there under its own name.
        """
        pairs = list(zip(self.form.payload.names, self.payload, strict=True))
        stored = set(self.payload)
        # Under frontier=batch the data has no time.
        pairs += [pair for pair in zip(self.form.domain.columns, self.times, strict=False) if pair[1] not in stored]
        pairs += [("_diff", self.diff), ("_event", self.event), ("_delta", self.delta)]
        return tuple((name, source) for name, source in pairs if source is not None)

    def payload_of(self, table: pa.Table) -> pa.Table:
        """Return the payload of rows under the log's names, in its order, types not yet adapted.

        Parameters
        ----------
        table : pyarrow.Table
            Rows as the query gives them. Not modified.

        Returns
        -------
        pyarrow.Table
            Columns that exist are not copied.
        """
        fields = self.form.payload
        columns = [
            pa.nulls(table.num_rows, field.type) if source is None else table.column(source)
            for field, source in zip(fields, self.payload, strict=True)
        ]
        return pa.Table.from_arrays(columns, names=fields.names)

    def fits(self, form: LogFormat) -> bool:
        """Return whether files of these columns belong into a log: columns that the data fills are the log's.

        Columns that the log was made with and that are not known here must be looked at first: see `check_absent`.

        Parameters
        ----------
        form : LogFormat
            Format of the log, `added` included.
        """
        if (form.kind, form.domain) != (self.form.kind, self.form.domain):
            return False
        filled = [field for field, source in zip(self.form.payload, self.payload, strict=True) if source is not None]
        stored = {field.name: field for field in form.payload}
        empty = [field for field in form.payload if not field.nullable and field.name not in {f.name for f in filled}]
        if any(name not in self.form.payload.names for name in form.declared.names):
            return False
        return not empty and all(field.name in stored and stored[field.name].equals(field) for field in filled)


def fingerprint(roles: ColumnRoles, /) -> str:
    """Return a short text that differs where files of the one do not fit the other.

    Columns that the data does not fill make no difference: others may add some at any time.

    Parameters
    ----------
    roles : ColumnRoles

    Returns
    -------
    str

    Examples
    --------
    >>> import pyarrow as pa
    >>> narrow, wide = (LogFormat.build(pa.schema([("id", kind)])) for kind in (pa.int32(), pa.int64()))
    >>> fingerprint(ColumnRoles(narrow, ("id",), ())) == fingerprint(ColumnRoles(wide, ("id",), ()))
    False
    """
    form = roles.form
    fields = [
        [field.name, str(field.type), field.nullable]
        for field, source in zip(form.payload, roles.payload, strict=True)
        if source is not None
    ]
    text = json.dumps([form.kind, form.domain.to_json(), sorted(fields)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def resolve_frontier(options: SinkOptions, /) -> FrontierPolicy:
    """Return the frontier policy that options ask for, refusing those that contradict it.

    Parameters
    ----------
    options : SinkOptions
        Parsed options.

    Returns
    -------
    FrontierPolicy

    Raises
    ------
    InvalidOptionError
        If `timeColumn` is given without a policy or with one that has no use for it, is missing where
        it is needed, or an option of another policy is given.

    Examples
    --------
    >>> from spark_timely.conf.options import SINK_OPTIONS, parse_options
    >>> resolve_frontier(parse_options(SINK_OPTIONS, {"path": "log"}))
    <FrontierPolicy.BATCH: 'batch'>
    """
    if options.dialect == "cdcv2":
        return _statements_alone(options)
    named = options.frontier
    if named is None and options.time_column:
        msg = "option 'timeColumn' without option 'frontier'"
        raise _conflict(
            msg,
            "say how the frontier moves: frontier='bounded' (with lateness), 'source' (as far as the timely sources"
            " that are read), or 'hold'",
            "frontier",
        )
    policy = FrontierPolicy(named or "batch")
    needs_time = policy in (FrontierPolicy.BOUNDED, FrontierPolicy.SOURCE, FrontierPolicy.HOLD)
    if needs_time and not options.time_column:
        msg = f"frontier={policy.value!r} without option 'timeColumn'"
        raise _conflict(msg, "name the column that holds the time", "timeColumn")
    if options.time_column and not needs_time:
        why = (
            "the time of a row is its micro-batch"
            if policy is FrontierPolicy.BATCH
            else "times come in the columns '_time' or '_time_0', '_time_1' …"
        )
        msg = f"frontier={policy.value!r} together with option 'timeColumn'"
        raise _conflict(
            msg,
            f"leave out timeColumn ({why}), or use frontier='bounded', 'source' or 'hold'",
            "timeColumn",
        )
    if "lateness" in options.given and policy is not FrontierPolicy.BOUNDED:
        msg = f"option 'lateness' together with frontier={policy.value!r}"
        raise _conflict(msg, "it goes with frontier='bounded'", "lateness")
    for attribute, option in (("max_future_skew", "maxFutureSkew"), ("bad_time", "badTime")):
        if attribute in options.given and not needs_time:
            msg = f"option {option!r} together with frontier={policy.value!r}"
            raise _conflict(msg, "it goes with frontier='bounded', 'source' or 'hold'", option)
    return policy


def _statements_alone(options: SinkOptions) -> FrontierPolicy:
    """Refuse options that say otherwise than CDCv2's statements what happens to rows and frontier."""
    given = {"frontier", "lateness", "max_future_skew", "late_data", "bad_time"} & options.given
    for name in sorted(given | ({"merge_schema"} if options.merge_schema else set())):
        spelled = SinkOptions.__dataclass_fields__[name].metadata["option"].name
        msg = f"option {spelled!r} together with dialect='cdcv2'"
        hint = (
            "leave it out: statements alone move the frontier, what comes behind it is a copy, and a record is all its"
        )
        raise _conflict(msg, f"{hint} columns", spelled)
    return FrontierPolicy.STATEMENTS


def policy_of(options: SinkOptions, form: LogFormat, /) -> Policy:
    """Return the policy for a log, its spans in units of the log's time.

    Parameters
    ----------
    options : SinkOptions
        Parsed options.
    form : LogFormat
        Format of the log.

    Returns
    -------
    Policy

    Raises
    ------
    InvalidOptionError
        If the options contradict each other or the type of the times.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.conf.options import SINK_OPTIONS, parse_options
    >>> form = LogFormat.build(pa.schema([("id", pa.int64())]), times=("date",))
    >>> options = {"path": "log", "timeColumn": "d", "frontier": "bounded", "lateness": "2 days"}
    >>> policy_of(parse_options(SINK_OPTIONS, options), form).lateness
    2
    """
    frontier = resolve_frontier(options)
    kind = form.domain.types[0].value
    skew = options.max_future_skew
    if options.keep is None and "keep_committed" in options.given:
        found = "option 'keepCommitted' without 'keep'"
        raise _conflict(found, "give keep too, such as '30 days'", "keepCommitted")
    if options.keep is not None and form.domain.arity > 1:
        found = f"option 'keep' for times of {form.domain.arity} coordinates"
        raise _conflict(found, "leave it out, and call log.allow_compaction now and then", "keep")
    if options.keep is not None:
        options.keep.in_units(kind, option="keep")
    return Policy(
        form.domain,
        frontier,
        LateData(options.late_data),
        options.lateness.in_units(kind, option="lateness") if frontier is FrontierPolicy.BOUNDED else 0,
        None if skew is None else skew.in_units(kind, option="maxFutureSkew"),
        BadTime(options.bad_time),
    )


def roles_of(schema: StructType, options: SinkOptions, /, *, form: LogFormat | None) -> ColumnRoles:
    """Say what each column of the data is for the log.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
        Schema of the data.
    options : SinkOptions
        Parsed options.
    form : LogFormat or None
        Format of the log; None: the log is still to be made, for this data.

    Returns
    -------
    ColumnRoles

    Raises
    ------
    InvalidOptionError
        If a named column does not exist, or options would lose the rows' own times.
    SchemaMismatchError
        If types do not fit, a column has no place in the log, or one is missing that may not be null.

    Examples
    --------
    >>> from pyspark.sql.types import StructType
    >>> from spark_timely.conf.options import SINK_OPTIONS, parse_options
    >>> options = parse_options(SINK_OPTIONS, {"path": "log", "timeColumn": "t", "frontier": "hold"})
    >>> roles_of(StructType().add("t", "date").add("id", "long"), options, form=None).payload
    ('t', 'id')
    """
    frontier = resolve_frontier(options)
    names = list(schema.names)
    taken: set[str] = set()
    event = delta = None
    minimum: tuple[int, ...] | None = None
    minimum_known = True
    if frontier is FrontierPolicy.EVENTS:
        event, delta, times = _event_columns(schema)
        taken |= {event, delta, *times, *(name for name in names if name.lower() in ("_stream", "_seq"))}
        minimum = _declared_minimum(schema, event)
        minimum_known = minimum is not None
    else:
        times = tuple(_find(name, names, "timeColumn") for name in options.time_column)
    statements: tuple[str, ...] = ()
    if frontier is FrontierPolicy.STATEMENTS:
        statements = statement_columns(names)
        stated = arrow_schema(type(schema)([schema[name] for name in statements]))
        taken |= set(statements)
        times = times or _own_times(schema, "dialect='cdcv2'")
        # Differential's times begin at 0; those of a type with a sign need a log that was made for them.
        minimum = (0,) * len(times)
    if frontier is FrontierPolicy.BATCH:
        minimum = (0,)
    diff = _diff_column(schema, options, events=event is not None, updates=bool(statements))
    if diff is not None:
        taken.add(diff)
    # `_time`, as the replay gives it, is the log's own column: it is not stored a second time.
    own = _log_columns(len(times))
    taken |= {name for name in times if name.lower() in own}
    if frontier is not FrontierPolicy.EVENTS and taken & set(times) and options.late_data == "advance":
        name = next(name for name in times if name in taken)
        msg = f"lateData='advance' together with timeColumn {name!r}"
        raise _conflict(
            msg,
            f"the log's column {name!r} would hold the new time, and nothing the row's own: copy the column"
            " under another name, and name that one; or use lateData='deadLetter'",
            "lateData",
        )
    arrow = arrow_schema(type(schema)([field for field in schema.fields if field.name not in taken]))
    types = _time_types(schema, times, form)
    if form is None:
        form = LogFormat.build(
            arrow,
            times=types,
            minimum=None if minimum is None else np.array(minimum),
            kind="stream" if diff is None else "collection",
        )
        form = _with_key(form, options, is_new=True)
        if statements:
            check_statement_columns(stated, form.domain)
        return ColumnRoles(form, tuple(arrow.names), times, diff, event, delta, minimum_known, (), statements)
    if diff is not None and form.kind != "collection":
        msg = f"could not capture column {diff!r} as diff: found a log of kind {form.kind!r}"
        raise SchemaMismatchError(msg, hint="leave out diffColumn, or capture into a new log", context={"column": diff})
    if statements:
        check_statement_columns(stated, form.domain)
    _with_key(form, options, is_new=False)
    sources, extra = _match(arrow, form, merge=options.merge_schema, missing=options.missing_columns)
    if extra:
        form = form.extended(pa.schema([arrow.field(name) for name in extra]))
    return ColumnRoles(form, (*sources, *extra), times, diff, event, delta, minimum_known, tuple(extra), statements)


def _with_key(form: LogFormat, options: SinkOptions, *, is_new: bool) -> LogFormat:
    """Return the format of a new log with the key that the query asks for; refuse another than an old one has."""
    if not options.key_columns:
        return form
    try:
        key = form.check_key(options.key_columns)
    except InvalidUsageError as error:
        raise InvalidOptionError(error.message, hint=error.hint, context={"option": "keyColumns"}) from error
    if not is_new and key != form.key:
        found = f"option 'keyColumns' for a log whose key is {','.join(form.key) or 'none'!r}"
        raise _conflict(found, "leave it out, or capture into a new log: a log keeps its key", "keyColumns")
    return replace(form, key=key)


def _match(
    arrow: pa.Schema, form: LogFormat, *, merge: bool, missing: tuple[str, ...]
) -> tuple[tuple[str | None, ...], list[str]]:
    """Return for each payload field of the log the column of the data that fills it, and columns to be added."""
    names = list(arrow.names)
    found_in = {field.name: _lookup(field.name, names) for field in form.payload}
    sources: list[str | None] = []
    for field in form.payload:
        name = found_in[field.name]
        if name is None:
            sources.append(None)
            continue
        found = canonical_type(arrow.field(name).type, name)
        if not _fits(found, field.type):
            msg = f"could not capture column {name!r}: found type {str(found)!r}, the log holds {str(field.type)!r}"
            raise SchemaMismatchError(msg, hint="cast the column, or capture into a new log", context={"column": name})
        sources.append(name)
    extra = [name for name in names if name not in sources]
    if extra and not merge:
        msg = f"could not capture column {extra[0]!r}: found no such column in the log"
        known = [field.name for field, source in zip(form.payload, sources, strict=True) if source is None]
        raise SchemaMismatchError(
            msg,
            hint=_near(extra[0], known, "drop the column, or add it to the log with mergeSchema=true"),
            context={"column": extra[0], "columns": extra},
        )
    present = [field for field, name in found_in.items() if name is not None]
    form.check_absent([*present, *extra], allowed=missing, attempt="could not capture")
    return tuple(sources), extra


def _fits(found: pa.DataType, stored: pa.DataType) -> bool:
    if found == stored:
        return True
    if pa.types.is_signed_integer(found) and pa.types.is_signed_integer(stored):
        return bool(found.bit_width <= stored.bit_width)
    return bool(pa.types.is_float32(found) and pa.types.is_float64(stored))


_EVENTS = "frontier='events'"


def _event_columns(schema: StructType) -> tuple[str, str, tuple[str, ...]]:
    """Return the columns of ``content=events``: event, delta, times."""
    lower = {name.lower(): name for name in schema.names}
    missing = [name for name in ("_event", "_delta") if name not in lower]
    if missing:
        raise _no_own_column(_EVENTS, missing[0])
    times = _own_times(schema, _EVENTS)
    event, delta = lower["_event"], lower["_delta"]
    for name, wanted in ((event, "string"), (delta, "integer")):
        kind = arrow_schema(type(schema)([schema[name]])).field(0).type
        if not (pa.types.is_string(kind) if wanted == "string" else pa.types.is_signed_integer(kind)):
            msg = f"could not capture with frontier='events': found column {name!r} of type {str(kind)!r}"
            raise SchemaMismatchError(msg, hint=f"cast it to type {wanted}", context={"column": name})
    return event, delta, times


def _own_times(schema: StructType, why: str) -> tuple[str, ...]:
    """Return the columns that have the names that a log gives to the coordinates of its times."""
    lower = {name.lower(): name for name in schema.names}
    if "_time" in lower:
        return (lower["_time"],)
    n = 0
    while f"_time_{n}" in lower:
        n += 1
    if not n:
        raise _no_own_column(why, "_time")
    return tuple(lower[f"_time_{i}"] for i in range(n))


def _no_own_column(why: str, column: str) -> SchemaMismatchError:
    msg = f"could not capture with {why}: found no column {column!r}"
    hint = "give the columns of a replay with content='events': '_event', '_delta', '_time' and the payload"
    if why != _EVENTS:
        hint = "name the time's column with timeColumn, or call it '_time' ('_time_0', '_time_1' … for a product time)"
    return SchemaMismatchError(msg, hint=hint, context={"column": column})


def _declared_minimum(schema: StructType, event: str) -> tuple[int, ...] | None:
    """Return the minimum of the log that the events come from, where the column still tells it."""
    facts = schema[event].metadata.get(METADATA_KEY)
    return None if facts is None else TimeDomain.from_json(facts).minimum


def _diff_column(schema: StructType, options: SinkOptions, *, events: bool, updates: bool) -> str | None:
    name = options.diff_column or ("_diff" if updates else None)
    column = _lookup("_diff", schema.names) if name is None and events else None
    if name is not None:
        column = _find(name, schema.names, "diffColumn")
    if column is None:
        return None
    kind = arrow_schema(type(schema)([schema[column]])).field(0).type
    if not pa.types.is_signed_integer(kind):
        use = "diff of events" if name is None else "diffColumn"
        msg = f"could not use column {column!r} as {use}: found type {str(kind)!r}"
        raise SchemaMismatchError(msg, hint="cast the column: a diff is an integer", context={"column": column})
    return column


def _time_types(schema: StructType, times: tuple[str, ...], form: LogFormat | None) -> tuple[str, ...]:
    """Return the types of the time columns, checked against the log's."""
    found: list[TimeType] = []
    for name in times:
        kind = arrow_schema(type(schema)([schema[name]])).field(0).type
        try:
            found.append(TimeType.from_arrow_type(kind))
        except InvalidUsageError as error:
            msg = f"could not use column {name!r} as time: found type {schema[name].dataType.simpleString()!r}"
            raise SchemaMismatchError(
                msg,
                hint="cast the column: a time is a bigint, int, smallint, date or timestamp with zone",
                context={"column": name},
            ) from error
    if form is None or not times:
        return tuple(kind.value for kind in found) or ("long",)
    stored = form.domain.types
    if len(found) != len(stored):
        msg = f"could not capture: found {len(found)} time columns, the log's times have {len(stored)} coordinates"
        raise SchemaMismatchError(
            msg,
            hint="name one time column per coordinate, or capture into a new log",
            context={"columns": list(times)},
        )
    for name, has, wants in zip(times, found, stored, strict=True):
        if not has.fits_in(wants):
            msg = f"could not use column {name!r} as time: found type {has.value!r}, the log's is {wants.value!r}"
            raise SchemaMismatchError(msg, hint="cast the column, or capture into a new log", context={"column": name})
    return tuple(kind.value for kind in stored)


def _log_columns(arity: int) -> tuple[str, ...]:
    """Return the names that a log gives to the coordinates of its times."""
    return ("_time",) if arity == 1 else tuple(f"_time_{i}" for i in range(arity))


def _lookup(name: str, names: list[str]) -> str | None:
    if name in names:
        return name
    return next((other for other in names if other.lower() == name.lower()), None)


def _find(name: str, names: list[str], option: str) -> str:
    found = _lookup(name, names)
    if found is None:
        msg = f"could not use option {option!r}: found no column {shown(name)}"
        raise InvalidOptionError(
            msg,
            hint=_near(name, names, "the columns are " + ", ".join(repr(other) for other in names[:20])),
            context={"option": option, "column": name},
        )
    return found


def _near(name: str, names: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _conflict(found: str, hint: str, option: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"could not read the options of the sink 'timely': found {found}", hint=hint, context={"option": option}
    )
