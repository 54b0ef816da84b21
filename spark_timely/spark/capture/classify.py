"""The policy of progress as Spark SQL: expressions that judge rows as `spark_timely.protocol.policy` does.

`foreach_batch` classifies the rows of a micro-batch by them: a capture in foreachBatch leaves rows inside the JVM, so
the sink's decisions (`spark_timely.sink.rows`) are written as SQL expressions. They are text, not column objects: text
works alike on classic Spark and on Connect.

Invariants
----------
1. `row_class` and the time expressions agree with `Policy.judge` on every row; rows that the Python
   writer refuses with an error have a class of their own here.
2. Literals do not depend on the session's zone or its parser settings.

The digest of input rows is written as SQL too, by the scheme ``spark1``. Everything that is hashed goes through Spark's
``xxhash64``, which takes values one after the other and passes over nulls; what else it lacks is put around it.

- ``name(text)`` = the first 8 bytes, little endian, signed, of the SHA-256 of the UTF-8 text ``"spark_timely spark1|"``
  followed by the text.
- The hash of a row, or of a struct, is ``xxhash64(names, value, value, …)``: its values in order of their names,
  and before them the exclusive or of ``name(n)`` over the names of those that are not null. So a value is bound to
  its name, and a column of nulls is as good as none.
- An integer of any width goes in as BIGINT, a float as DOUBLE; other simple values go in as they are. Spark itself
  takes all NaN for one, and -0.0 for 0.0.
- A struct goes in as its hash. A list goes in as ``xxhash64`` of the list of ``xxhash64(element)``, 0 for null; a map
  as that of the sorted list of ``xxhash64(xxhash64(key), xxhash64(value))``, 0 for a value that is null.
- The digest is two sums over the rows: of the upper and of the lower 32 bits of the hash, both signed. Whole hashes
  would overflow, which is an error under ANSI; halves do not before 2**32 rows, and where they do there is no digest.

Nothing of it depends on the zone or on the ANSI mode of the session. The Python writer hashes in another way
(`spark_timely.canonical.row_hash`), since neither way is fast on the other side; digests of two schemes are not
compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from spark_timely.canonical.row_hash import SPARK_SCHEME, RowsDigest
from spark_timely.protocol.policy import NO_TIME, OUT_OF_BOUNDS, BadTime, FrontierPolicy, LateData
from spark_timely.spark.base.schema import spark_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

    from spark_timely.sink.plan import CapturePlan, Standing
    from spark_timely.time.domain import TimeDomain, TimeType


class RowClass(StrEnum):
    """The class of a row, by which it is written, kept apart or refused.

    Examples
    --------
    >>> RowClass("message") in RowClass.stored(), RowClass("late") in RowClass.stored()
    (True, False)
    """

    MESSAGE = "message"
    ADVANCED = "advanced"
    KEPT = "kept"
    DEAD = "dead"
    PROGRESS = "progress"
    LATE = "late"
    SKEWED = "skewed"
    NO_TIME = "no_time"
    OVER = "over"
    UNFIT = "unfit"
    # Of CDCv2's updates alone.
    BEFORE = "before"
    ZERO = "zero"
    UNCONSOLIDATED = "unconsolidated"
    UNKNOWN = "unknown"

    @classmethod
    def messages(cls) -> tuple[RowClass, ...]:
        """Return the classes whose rows become messages."""
        return (cls.MESSAGE, cls.ADVANCED, cls.KEPT)

    @classmethod
    def stored(cls) -> tuple[RowClass, ...]:
        """Return the classes whose rows are in the log."""
        return (*cls.messages(), cls.DEAD)


@dataclass(frozen=True, slots=True)
class Classified:
    """Hold the expressions of one micro-batch.

    Attributes
    ----------
    row_class : str
        SQL expression that gives a row's `RowClass`.
    times : tuple of str
        SQL expressions of the coordinates under which a row is stored, in the log's types.
    columns : tuple of str
        Aliased SQL expressions of everything that a file holds, ours first.
    uniform : bool
        Whether every row that is not refused is a plain message, so that nothing needs to be set apart.
    sort_by : tuple of str
        Names of the columns by which the rows of a file are ordered; none where all have one time.
    inputs : tuple of (str, str), or None
        As `ColumnRoles.inputs`, for rows that have `columns`; None where these do not have all that the data brought.
    """

    row_class: str
    times: tuple[str, ...]
    columns: tuple[str, ...]
    uniform: bool
    sort_by: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...] | None


def classify(plan: CapturePlan, standing: Standing, schema: StructType, *, seq: int) -> Classified:
    """Write the plan's decisions as SQL.

    Parameters
    ----------
    plan : CapturePlan
        Plan of the micro-batch.
    standing : Standing
        What the rows are judged by.
    schema : pyspark.sql.types.StructType
        Schema of the data.
    seq : int
        Number that the commit will have.

    Returns
    -------
    Classified
    """
    roles, policy = plan.roles, plan.policy
    domain = policy.domain
    held = standing.counts.frontier.elements
    bad_apart = policy.bad_time is BadTime.DEAD_LETTER
    if policy.frontier is FrontierPolicy.BATCH:
        own: tuple[str, ...] = (
            _unfolded(_time_literal(domain.types[0], held[0][0]), _time_literal(domain.types[0], 0)),
        )
        late = skewed = no_time = over = "false"
    else:
        own = tuple(
            f"CAST({quoted(name)} AS {SQL_TYPES[kind.value]})"
            for name, kind in zip(roles.times, domain.types, strict=True)
        )
        literals = [[_time_literal(kind, x) for kind, x in zip(domain.types, e, strict=True)] for e in held]
        late = f"NOT ({beyond_sql(own, domain, held)})"
        limit = policy.skew_limit(standing.counts, standing.at)
        skewed = "false" if limit is None else f"{own[0]} > {_time_literal(domain.types[0], limit)}"
        no_time = _any(f"{quoted(name)} IS NULL" for name in roles.times)
        over = _any(
            f"{t} {sign} {_time_literal(kind, bound)}"
            for t, kind in zip(own, domain.types, strict=True)
            if not kind.minimum_is_of_type
            # What is below the least time is late otherwise, as what is behind every frontier.
            for sign, bound in ((">", kind.hi), *([("<", kind.lo)] if bad_apart else []))
        )
    unfit = _any(f"{quoted(name)} IS NULL" for name in _must_not_be_null(plan, schema))
    outcast = {LateData.ERROR: None, LateData.DEAD_LETTER: RowClass.DEAD, LateData.ADVANCE: None}[policy.late_data]
    advance = policy.late_data is LateData.ADVANCE
    cases = [
        (no_time, RowClass.DEAD if bad_apart else RowClass.NO_TIME),
        (over, RowClass.DEAD if bad_apart else RowClass.OVER),
        (late, outcast or (RowClass.ADVANCED if advance else RowClass.LATE)),
        (skewed, outcast or (RowClass.KEPT if advance else RowClass.SKEWED)),
    ]
    if roles.event is not None:
        event = quoted(roles.event)
        no_delta = f"{event} = 'progress' AND {quoted(str(roles.delta))} IS NULL"
        cases = [
            (f"{event} IS NULL OR {event} NOT IN ('message', 'progress') OR ({no_delta})", RowClass.UNKNOWN),
            *cases[:2],
            (f"{event} = 'progress'", RowClass.PROGRESS),
            *cases[2:],
        ]
    # A column that may not be null may be null in no letter either: refused first, but after late rows are.
    cases.insert(0 if bad_apart else -2, (unfit, RowClass.UNFIT))
    whens = " ".join(f"WHEN {test} THEN '{name}'" for test, name in cases if test != "false")
    row_class = f"CASE {whens} ELSE 'message' END" if whens else "'message'"
    times = own
    if advance and late != "false":
        times = tuple(
            f"CASE WHEN {late} THEN {moved} ELSE {t} END" for t, moved in zip(own, _moved(own, literals), strict=True)
        )
    sets_apart = bad_apart or policy.late_data is not LateData.ERROR
    uniform = roles.event is None and unfit == "false" and (late == "false" or not sets_apart)
    if bad_apart:
        least = [_time_literal(kind, x) for kind, x in zip(domain.types, domain.minimum, strict=True)]
        times = tuple(
            f"CASE WHEN {no_time} OR {over} THEN {lowest} ELSE {t} END" for t, lowest in zip(times, least, strict=True)
        )
    reason = _reason(plan, standing, no_time=no_time, over=over) if sets_apart else None
    row_class_, reason_ = (None, None) if uniform else (row_class, reason)
    columns = _columns(plan, standing, schema, times=times, seq=seq, row_class=row_class_, reason=reason_)
    sort_by = () if policy.frontier is FrontierPolicy.BATCH else domain.columns
    # Events are replaced by what becomes of them, and so is a time that cannot be used and is no payload. A time that
    # may be moved stands in the payload as it came in, and where a file has another type than the data it is a wider
    # one.
    replaced = roles.event is not None or (bad_apart and not set(roles.times) <= set(roles.payload))
    inputs = None if replaced else tuple((name, name) for name, _ in roles.inputs)
    return Classified(row_class, times, columns, uniform, sort_by, inputs)


def beyond_sql(times: Sequence[str], domain: TimeDomain, elements: Iterable[tuple[int, ...]]) -> str:
    """Return the expression for whether a time is beyond some of the elements.

    Parameters
    ----------
    times : sequence of str
        SQL expressions of the coordinates.
    domain : TimeDomain
    elements : iterable of tuple of int
        Of an antichain; none: nothing is beyond it.
    """
    literals = [[_time_literal(kind, x) for kind, x in zip(domain.types, e, strict=True)] for e in elements]
    return _any(_all(f"{t} >= {f}" for t, f in zip(times, e, strict=True)) for e in literals)


def _columns(
    plan: CapturePlan,
    standing: Standing,
    schema: StructType,
    *,
    times: tuple[str, ...],
    seq: int,
    row_class: str | None,
    reason: str | None,
) -> tuple[str, ...]:
    """Return everything that a file holds, aliased."""
    roles = plan.roles
    form = roles.form
    columns = [f"'{plan.options.stream}' AS `_stream`", f"{_unfolded(f'CAST({seq} AS BIGINT)', '0L')} AS `_seq`"]
    columns += [f"{t} AS {quoted(name)}" for t, name in zip(times, form.domain.columns, strict=True)]
    if form.kind == "collection":
        columns.append(
            "CAST(1 AS BIGINT) AS `_diff`" if roles.diff is None else f"CAST({quoted(roles.diff)} AS BIGINT) AS `_diff`"
        )
    if roles.delta is not None:
        columns.append(f"CAST({quoted(roles.delta)} AS BIGINT) AS `_delta`")
    if row_class is not None:
        columns.append(f"{row_class} AS `_event`")
        if reason is not None:
            is_dead = f"{row_class} = 'dead'"
            columns.append(f"CASE WHEN {is_dead} THEN {reason} END AS `_reason`")
            columns.append(f"CASE WHEN {is_dead} THEN timestamp_micros({standing.at}) END AS `_at`")
    for field, source in zip(form.payload, roles.payload, strict=True):
        if source is None:
            # A column that a file does not have is null in the table.
            continue
        value, wanted = quoted(source), spark_type(field.type, column=field.name).simpleString()
        if wanted in _WIDENED and schema[source].dataType.simpleString() != wanted:
            value = f"CAST({value} AS {wanted})"
        columns.append(f"{value} AS {quoted(field.name)}")
    return tuple(columns)


def _unfolded(literal: str, other: str) -> str:
    """Return an expression of a literal, never null, that is no part of the code that Spark generates.

    A number that differs from one micro-batch to the next would make Spark compile the whole job again, and the JVM
    warm up. Measured: a fifth of the work of ten micro-batches of 400,000 rows. Spark refers to arrays, and
    does not fold what depends on the partition. `other` is any value of its type.
    """
    return f"coalesce(get(array({literal}), spark_partition_id() * 0), {other})"


def _reason(plan: CapturePlan, standing: Standing, *, no_time: str, over: str) -> str:
    """Return the expression of why a row is set apart: as `spark_timely.log.admission` writes it."""
    roles, policy = plan.roles, plan.policy
    late, skewed = policy.reasons(standing.counts, at=standing.at)
    cases = []
    if policy.bad_time is BadTime.DEAD_LETTER and roles.times:
        texts = [_found_text(name, kind) for name, kind in zip(roles.times, policy.domain.types, strict=True)]
        held = texts[0] if len(texts) == 1 else "concat('[', " + ", ', ', ".join(texts) + ", ']')"
        cases = [(no_time, f"concat('{NO_TIME}', {held})"), (over, f"concat('{OUT_OF_BOUNDS}', {held})")]
    # The time tells late rows from skewed ones: a skewed one is beyond the frontier.
    limit = policy.skew_limit(standing.counts, standing.at)
    if limit is not None:
        kind = policy.domain.types[0]
        own = f"CAST({quoted(roles.times[0])} AS {SQL_TYPES[kind.value]})"
        cases.append((f"{own} > {_time_literal(kind, limit)}", f"'{skewed}'"))
    whens = " ".join(f"WHEN {test} THEN {text}" for test, text in cases if test != "false")
    return f"CASE {whens} ELSE '{late}' END" if whens else f"'{late}'"


def _found_text(name: str, kind: TimeType) -> str:
    """Return the expression of what a time column holds, as `TimeType.found_text` gives it."""
    value = quoted(name)
    number = {"timestamp": f"concat('us:', unix_micros({value}))", "date": f"concat('days:', unix_date({value}))"}
    return f"coalesce({number.get(kind.value, f'CAST({value} AS STRING)')}, 'null')"


def _moved(own: tuple[str, ...], literals: list[list[str]]) -> tuple[str, ...]:
    """Return where a late row goes: the lexicographically least upper bound with a frontier element."""
    if len(own) == 1:
        # For k = 1 a late time is below the one element.
        return (literals[0][0],)
    bounds = [
        "struct(" + ", ".join(f"greatest({t}, {f}) AS t{i}" for i, (t, f) in enumerate(zip(own, e, strict=True))) + ")"
        for e in literals
    ]
    least = bounds[0] if len(bounds) == 1 else "array_min(array(" + ", ".join(bounds) + "))"
    return tuple(f"{least}.t{i}" for i in range(len(own)))


def _must_not_be_null(plan: CapturePlan, schema: StructType) -> list[str]:
    """Return the columns of the data in which a null has to be looked for."""
    roles = plan.roles
    pairs = zip(roles.form.payload, roles.payload, strict=True)
    wanted = [source for field, source in pairs if source is not None and not field.nullable]
    if roles.diff is not None:
        wanted.append(roles.diff)
    return [name for name in wanted if schema[name].nullable]


SQL_TYPES = {"long": "BIGINT", "int": "INT", "short": "SMALLINT", "date": "DATE", "timestamp": "TIMESTAMP_LTZ"}
_WIDENED = frozenset({"bigint", "int", "smallint", "double"})


def _time_literal(kind: TimeType, value: int) -> str:
    # From text: the least bigint has no literal of its own.
    number = f"CAST('{value}' AS BIGINT)"
    if kind.value == "timestamp":
        return f"timestamp_micros({number})"
    if kind.value == "date":
        return f"date_from_unix_date(CAST('{value}' AS INT))"
    return f"CAST('{value}' AS {SQL_TYPES[kind.value]})"


def quoted(name: str) -> str:
    """Return a column's name as an expression.

    Examples
    --------
    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def _any(tests: Iterable[str]) -> str:
    return " OR ".join(tests) or "false"


def _all(tests: Iterable[str]) -> str:
    return "(" + " AND ".join(tests) + ")"


_MASK64 = (1 << 64) - 1
_INTEGERS = frozenset({"tinyint", "smallint", "int"})
_N_ROWS, _UPPER, _LOWER = "n", "digest_upper", "digest_lower"


def row_hash_sql(columns: Iterable[tuple[str, str]], schema: StructType) -> str:
    """Return the expression of a row's hash, a BIGINT that is never null.

    Parameters
    ----------
    columns : iterable of (str, str)
        The columns that count: name in the log, name in the data. `ColumnRoles.inputs` gives them.
    schema : pyspark.sql.types.StructType
        Schema of the data.

    Returns
    -------
    str

    Examples
    --------
    >>> from pyspark.sql.types import StructType
    >>> row_hash_sql([("b", "B")], StructType().add("B", "integer"))
    "xxhash64(IF(`B` IS NULL, 0L, CAST('-4936473078057790369' AS BIGINT)), CAST(`B` AS BIGINT))"
    """
    return _row([(name, quoted(source), schema[source].dataType) for name, source in columns], depth=0)


def digest_sums(row_hash: str) -> list[str]:
    """Return the aggregates from which `digest_in` makes the digest.

    Parameters
    ----------
    row_hash : str
        Expression of the rows' hash.

    Returns
    -------
    list of str
        Aliased. Spark computes the hash once.
    """
    return [
        f"count(1) AS {_N_ROWS}",
        f"try_sum(shiftright({row_hash}, 32)) AS {_UPPER}",
        f"try_sum(shiftright(shiftleft({row_hash}, 32), 32)) AS {_LOWER}",
    ]


def digest_in(found: Mapping[str, int | None]) -> RowsDigest | None:
    """Return the digest in a row of aggregates; None where they were not asked for, or a sum has overflowed.

    Examples
    --------
    >>> digest_in({"n": 2, "digest_upper": -1, "digest_lower": 7}).text
    'spark1:2:ffffffffffffffff0000000000000007'
    >>> digest_in({"n": 2, "digest_upper": None, "digest_lower": 7}) is None
    True
    """
    n_rows, upper, lower = found.get(_N_ROWS), found.get(_UPPER), found.get(_LOWER)
    if n_rows == 0 and _UPPER in found:
        return RowsDigest(scheme=SPARK_SCHEME)
    if n_rows is None or upper is None or lower is None:
        return None
    return RowsDigest(lower & _MASK64, upper & _MASK64, n_rows, SPARK_SCHEME)


def _row(values: Iterable[tuple[str, str, DataType]], depth: int) -> str:
    """Return the hash of values with their names."""
    values = sorted(values, key=lambda value: value[0])
    names = _either([f"IF({value} IS NULL, 0L, CAST('{_name(name)}' AS BIGINT))" for name, value, _ in values])
    return f"xxhash64({', '.join([names, *(_hashable(value, kind, depth) for _, value, kind in values)])})"


def _name(text: str) -> int:
    digest = hashlib.sha256(f"spark_timely spark1|{text}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _either(terms: Sequence[str]) -> str:
    """Return the exclusive or of the terms, halved again and again: Spark walks a chain of thousands by recursion."""
    if len(terms) < 2:
        return "".join(terms) or "0L"
    half = len(terms) // 2
    return f"({_either(terms[:half])} ^ {_either(terms[half:])})"


def _hashable(value: str, kind: DataType, depth: int) -> str:
    """Return what goes into `xxhash64` for a value; null where the value is."""
    from pyspark.sql import types as spark

    if isinstance(kind, spark.StructType):
        fields = [(f.name, f"{value}.{quoted(f.name)}", f.dataType) for f in kind.fields]
        return f"IF({value} IS NULL, NULL, {_row(fields, depth)})"
    # Names of their own: inner ones would hide outer ones.
    item = f"x{depth}"
    if isinstance(kind, spark.ArrayType):
        element = _or_zero(item, kind.elementType, depth + 1)
        return f"IF({value} IS NULL, NULL, xxhash64(transform({value}, {item} -> {element})))"
    if isinstance(kind, spark.MapType):
        key = _or_zero(f"{item}.key", kind.keyType, depth + 1)
        element = f"xxhash64({key}, {_or_zero(f'{item}.value', kind.valueType, depth + 1)})"
        entries = f"sort_array(transform(map_entries({value}), {item} -> {element}))"
        return f"IF({value} IS NULL, NULL, xxhash64({entries}))"
    if kind.simpleString() in _INTEGERS:
        return f"CAST({value} AS BIGINT)"
    if kind.simpleString() == "float":
        return f"CAST({value} AS DOUBLE)"
    return value


def _or_zero(value: str, kind: DataType, depth: int) -> str:
    return f"IF({value} IS NULL, 0L, xxhash64({_hashable(value, kind, depth)}))"
