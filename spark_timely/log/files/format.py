"""The storage format of a log: its columns and schema, the facts in its metadata, and conversion of rows to its types.

A `LogFormat` is that of one log; the sink, the replay source, writers and dataflows get it from the open log, and pass
it to their tasks. All that write rows ask `conform` to bring them to the log's types. Rows of a table become files in
`parquet`.

Invariants
----------
1. Our columns come first and are found by name; no payload column may have such a name.
2. What holds for the whole log (format version, kind, types and minimum of times, nullability of
   payload columns) is kept in the metadata of the column `_event`, as JSON under `timely.log`.
3. Another format version than those of `FORMAT_VERSIONS` is refused; unknown facts of a known version are ignored.
   So a library that knows less than a log needs is kept out: a log that has forgotten has version 3 at least, one
   whose commits have the mark by which they are known as ours has version 4.
4. In the table every payload column may be null, because progress rows have no payload; what the
   producer declared is in the metadata and holds for messages.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import lists_of_views
from spark_timely.conf.kinds import check_schema
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
    LogFormatError,
    LogMissingError,
    SchemaMismatchError,
    shown,
)
from spark_timely.time.domain import TimeDomain
from spark_timely.time.text import parse_day, parse_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


FORMAT_VERSION: Final = 4
"""Of a log that begins, and of each older one from its next commit on: commits are marked as ours."""
FORMAT_VERSIONS: Final = (2, 3, FORMAT_VERSION)
# Of a log that has forgotten, before a fact said so.
_FORGETFUL_VERSION = 3
METADATA_KEY = "timely.log"
EVENTS = ("message", "progress", "dead", "since", "retain", "ledger")
LogKind: TypeAlias = Literal["stream", "collection"]
"""What the messages of a log are: events, or updates of a collection."""
KINDS: Final[tuple[LogKind, ...]] = ("stream", "collection")
MAX_ARITY = 8
STREAM_NAME = re.compile(r"[A-Za-z0-9_]+")
_MAX_STREAM_NAME = 200
# What a commit, a task of one, a merge or a sum writes; or what Spark writes for `capture` into a folder named so.
_OUR_STEM: Final = r"[A-Za-z0-9_]+\.?-\d{12,}-(?:[0-9a-f]{8})?[0-9a-f]{16}"
_OUR_NAME: Final = re.compile(rf"_event=[a-z]+/{_OUR_STEM}(?:\.parquet|/.+\.parquet)")
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=\0]")
TIMESTAMP = pa.timestamp("us", "UTC")


def check_stream_name(name: str) -> str:
    """Return the name if a stream may have it.

    Raises
    ------
    InvalidUsageError
        Unless it is one or more of A–Z, a–z, 0–9 and `_`, at most 200.

    Examples
    --------
    >>> check_stream_name("orders_eu")
    'orders_eu'
    """
    if not isinstance(name, str) or not STREAM_NAME.fullmatch(name) or len(name) > _MAX_STREAM_NAME:
        msg = f"could not use a stream name: found stream={shown(name)}"
        raise InvalidUsageError(
            msg,
            hint="use a name of 1 to 200 characters of A-Z, a-z, 0-9 and _",
            context={"stream": name},
        )
    return name


def has_our_name(path: str) -> bool:
    """Return whether the path of a file, relative to the log, is one that only this library gives.

    Examples
    --------
    >>> has_our_name("_event=message/main-000000000007-00ff00ff00ff00ff.parquet")
    True
    >>> has_our_name("_event=message/part-00000-29dcc355-c8cd-4664-82dd-42af2d53d1f8.c000.zstd.parquet")
    False
    """
    return _OUR_NAME.fullmatch(path) is not None


def canonical_type(type_: pa.DataType, column: str = "column") -> pa.DataType:
    """Return the type in which a log keeps a payload column of an Arrow type.

    Unsigned integers map to the signed type that holds them, uint64 to decimal(20, 0); timestamps to
    microseconds, in UTC if they have a zone; dictionaries to their values; large and view types to the
    plain ones.

    Raises
    ------
    SchemaMismatchError
        If a Delta table has no such type.

    Examples
    --------
    >>> canonical_type(pa.uint64()), canonical_type(pa.timestamp("s", "Europe/Berlin"))
    (Decimal128Type(decimal128(20, 0)), TimestampType(timestamp[us, tz=UTC]))
    """
    kept = _SAME.get(type_)
    if kept is not None:
        return kept
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz is not None else pa.timestamp("us")
    if pa.types.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_dictionary(type_):
        return canonical_type(type_.value_type, column)
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_map(type_):
        return pa.map_(canonical_type(type_.key_type, column), canonical_type(type_.item_type, column))
    if pa.types.is_struct(type_):
        names = [name.lower() for name in type_.names]
        if not names or len(set(names)) < len(names):
            found = (
                f"fields={shown(type_.names)}, some twice (case does not count)" if names else "a struct of no fields"
            )
            msg = f"could not keep column {column!r} in a log: found {found}"
            hint = (
                "rename fields" if names else "leave the column out, or give it a field: a Delta table has no such type"
            )
            raise SchemaMismatchError(msg, hint=hint, context={"column": column})
        return pa.struct([pa.field(f.name, canonical_type(f.type, f"{column}.{f.name}")) for f in type_])
    if _is_any_list(type_):
        return pa.list_(pa.field("element", canonical_type(type_.value_type, column)))
    msg = f"could not keep column {column!r} in a log: found type={type_}"
    raise SchemaMismatchError(
        msg,
        hint="cast the column first: a Delta table has no such type",
        context={"column": column},
    )


def _is_any_list(type_: pa.DataType) -> bool:
    plain = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    return plain or pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)


_SAME: dict[pa.DataType, pa.DataType] = {
    pa.bool_(): pa.bool_(),
    pa.int8(): pa.int8(),
    pa.int16(): pa.int16(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.float32(): pa.float32(),
    pa.float64(): pa.float64(),
    pa.date32(): pa.date32(),
    pa.date64(): pa.date32(),
    pa.string(): pa.string(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def _has_one_order(type_: pa.DataType) -> bool:
    """Whether all engines agree which of two values of a type is greater."""
    kinds = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)
    return any(is_one(type_) for is_one in (*kinds, pa.types.is_string, pa.types.is_binary))


def _has_local_timestamps(type_: pa.DataType) -> bool:
    if pa.types.is_timestamp(type_):
        return type_.tz is None
    return any(_has_local_timestamps(type_.field(i).type) for i in range(type_.num_fields))


def _unknown_fields(found: pa.DataType, wanted: pa.DataType, name: str) -> list[str]:
    """Return fields of structs, at any depth, that the wanted type does not have."""
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        kinds = {field.name: field.type for field in wanted}
        fields = [(f"{name}.{field.name}", field.type, kinds.get(field.name)) for field in found]
        return [
            unknown
            for path, type_, kind in fields
            for unknown in ([path] if kind is None else _unknown_fields(type_, kind, path))
        ]
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return [
            *_unknown_fields(found.key_type, wanted.key_type, f"{name}.key"),
            *_unknown_fields(found.item_type, wanted.item_type, f"{name}.value"),
        ]
    if _is_any_list(found) and _is_any_list(wanted):
        return _unknown_fields(found.value_type, wanted.value_type, f"{name}.element")
    return []


def _misfit(what: str, found: str, hint: str, **context: object) -> SchemaMismatchError:
    return SchemaMismatchError(f"could not fit {what} to the log: found {found}", hint=hint, context=context)


def _unusable(path: str, found: str, hint: str, **context: object) -> LogFormatError:
    msg = f"could not open log {path!r}: found {found}"
    return LogFormatError(msg, hint=hint, context={"path": path, **context})


def conform(table: pa.Table, schema: pa.Schema, *, what: str = "rows", first_row: int = 0) -> pa.Table:
    """Bring rows into a schema: columns by name, in its order and types; nothing is guessed.

    Integers are widened, floats too, timestamps are brought to microseconds in UTC; what would lose a
    digit is refused.

    Raises
    ------
    SchemaMismatchError
        If a column is missing, unknown, doubled, of a type that does not fit, or null where the schema
        says that it is not.

    Examples
    --------
    >>> conform(pa.table({"a": pa.array([1], pa.int8())}), pa.schema([("a", pa.int64())])).schema.types
    [DataType(int64)]
    """
    names = table.schema.names
    unknown = [n for n in names if n not in schema.names]
    missing = [f.name for f in schema if f.name not in names]
    if missing or unknown or len(set(names)) != len(names):
        found = f"column {missing[0]!r} missing" if missing else None
        found = found or (f"unknown column {unknown[0]!r}" if unknown else "a column twice")
        hint = f"select, rename or add columns to match the log's: {shown(schema.names)}"
        raise _misfit(what, found, hint, missing=missing, unknown=unknown)
    columns = []
    for wanted in schema:
        column = table.column(wanted.name)
        if column.type != wanted.type:
            column = _cast(column, wanted, what)
        if not wanted.nullable and column.null_count:
            row = first_row + pc.index(column.is_null(), value=True).as_py()
            hint = "fill or drop such rows: the log was created with this column not null"
            raise _misfit(what, f"null in column {wanted.name!r}, row={row}", hint, column=wanted.name, row=row)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, what: str) -> pa.ChunkedArray:
    if not _fits(column.type, field.type):
        hint = f"cast the column to {field.type}, as the log keeps it"
        raise _misfit(what, f"column {field.name!r} of type={column.type}", hint, column=field.name)
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        lists = pa.large_list(column.type.value_field)
        column = pa.chunked_array([lists_of_views(chunk) for chunk in column.chunks], lists)
    try:
        fitted = _dictionary_without_views(column).cast(field.type, safe=True)
        if _loses_bits(column.type, field.type) and _infinite(fitted) > _infinite(column):
            found = f"found numbers in column {field.name!r} that are infinite as {field.type}"
            msg = f"could not fit {what} to the log: {found}"
            raise SchemaMismatchError(msg, hint="round or cast the column", context={"column": field.name})
        return fitted
    except pa.ArrowInvalid as error:
        msg = (
            f"could not fit {what} to the log: found values in column {field.name!r} that do not fit {field.type}: "
            f"{shown(str(error))}"
        )
        raise SchemaMismatchError(
            msg,
            hint="round or cast the column",
            context={"column": field.name},
        ) from error
    except pa.ArrowNotImplementedError as error:
        hint = f"cast the column to {field.type}, as the log keeps it"
        raise _misfit(what, f"column {field.name!r} of type={column.type}", hint, column=field.name) from error


def _dictionary_without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return categories as polars gives them with values that Arrow can look up: it has no kernel for views."""
    kind = column.type
    if not pa.types.is_dictionary(kind):
        return column
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind.value_type)
    if plain is None:
        return column
    chunks = [pa.DictionaryArray.from_arrays(each.indices, each.dictionary.cast(plain)) for each in column.chunks]
    return pa.chunked_array(chunks, pa.dictionary(kind.index_type, plain))


def _infinite(values: pa.ChunkedArray) -> int:
    """Return how many numbers in a column, at any depth, are infinite: a cast to fewer bits makes more in silence."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _infinite(values.cast(type_.value_type))
    if pa.types.is_floating(type_):
        return int(pc.sum(pc.is_inf(values)).as_py() or 0)
    if pa.types.is_struct(type_):
        return sum(_infinite(pc.struct_field(values, i)) for i in range(type_.num_fields))
    if pa.types.is_map(type_):
        parts = [part for chunk in values.chunks for part in (chunk.keys, chunk.items)]
        return sum(_infinite(pa.chunked_array([part])) for part in parts)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _infinite(pc.list_flatten(values))
    return 0


def _has_inner_views(type_: pa.DataType) -> bool:
    """Whether a list view is inside a column of this type: `lists_of_views` reaches the outermost alone."""
    return any(
        pa.types.is_list_view(inner) or pa.types.is_large_list_view(inner) or _has_inner_views(inner)
        for inner in (type_.field(i).type for i in range(type_.num_fields))
    )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type may be kept in a column of another, without a change of meaning."""
    families: Sequence[Callable[[pa.DataType], bool]] = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_date,
        lambda t: pa.types.is_timestamp(t) and t.tz is not None,
        lambda t: pa.types.is_timestamp(t) and t.tz is None,
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
        lambda t: (
            pa.types.is_binary(t)
            or pa.types.is_large_binary(t)
            or pa.types.is_binary_view(t)
            or pa.types.is_fixed_size_binary(t)
        ),
        pa.types.is_struct,
        pa.types.is_map,
        _is_any_list,
    )
    if _has_inner_views(found):
        return False
    if pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if pa.types.is_decimal(wanted):
        return pa.types.is_decimal(found) or pa.types.is_integer(found)
    if not any(family(found) and family(wanted) for family in families):
        return False
    if pa.types.is_struct(wanted):
        # Arrow's cast fills fields that are not there with nulls, and leaves others out, without a word.
        names = [{type_.field(i).name for i in range(type_.num_fields)} for type_ in (found, wanted)]
        return names[0] == names[1] and all(
            _fits(found.field(found.get_field_index(inner.name)).type, inner.type)
            for inner in (wanted.field(i) for i in range(wanted.num_fields))
        )
    if pa.types.is_map(wanted):
        return _fits(found.key_type, wanted.key_type) and _fits(found.item_type, wanted.item_type)
    return not pa.types.is_list(wanted) or _fits(found.value_type, wanted.value_type)


def _loses_bits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether floats, at any depth, get fewer bits."""
    if pa.types.is_dictionary(found):
        return _loses_bits(found.value_type, wanted)
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width > wanted.bit_width)
    return found != wanted and pa.types.is_nested(found)


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring a table as read into a schema: missing columns are null, types of other engines are cast."""
    columns, there = [], table.schema.names
    for wanted in schema:
        if wanted.name in there:
            column = table.column(wanted.name)
            columns.append(column if column.type == wanted.type else column.cast(wanted.type))
        else:
            columns.append(pa.nulls(table.num_rows, wanted.type))
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(nullable=True) for f in schema]))


@dataclass(frozen=True, slots=True)
class LogFormat:
    """Everything that holds for a whole log. Small, picklable, comparable.

    Parameters
    ----------
    domain : TimeDomain
    kind : str
        `stream`: messages are events. `collection`: messages are updates, with a `_diff`.
    payload : pyarrow.Schema
        Payload columns, in the log's types, with the nullability declared for messages.
    version : int
    merged : tuple of str
        Payload columns that came after the log was made. A writer that does not know them leaves them out.
    key : tuple of str
        Payload columns by which compaction orders the updates of one time; empty: none. A matter of layout alone:
        rows of one key may be many, and no answer hangs on it.
    forgets : bool
        Whether anything was forgotten: messages deleted or moved, commits replaced.
    guarded_from : int or None
        The version of the table behind which each entry is judged: what others changed is refused. None: none is, for
        the log has no commit of a library that marks its own.
    accepted : tuple of str
        Tokens of the changes by other programs that were accepted, in their order: a reader from before one of them
        has seen other rows.
    before : tuple of (int, int) or None
        How many messages and streams the log had when it began to be guarded: notes and the ledger count from there.
        None where that is not known.

    Examples
    --------
    >>> form = LogFormat.build(pa.schema([("id", pa.uint32())]), times=("long",), minimum=(0,))
    >>> form.payload.field("id").type, form.data_columns[:3]
    (DataType(int64), ('_stream', '_seq', '_time'))
    """

    domain: TimeDomain
    kind: LogKind
    payload: pa.Schema
    version: int = FORMAT_VERSION
    merged: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    forgets: bool = False
    guarded_from: int | None = 0
    accepted: tuple[str, ...] = ()
    before: tuple[int, int] | None = (0, 0)
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def build(
        cls,
        schema: pa.Schema,
        *,
        times: str | Sequence[str] = ("long",),
        minimum: object | None = None,
        kind: LogKind = "stream",
        key: str | Sequence[str] = (),
    ) -> LogFormat:
        """Return the format for a payload, checked.

        Raises
        ------
        InvalidUsageError
            If kind, times or minimum are none, or the log cannot have such a key.
        SchemaMismatchError
            If a payload column has a reserved name, a name or type that a Delta table cannot have, or
            the name of another one.
        """
        check_schema("could not describe a log", "schema", schema)
        if kind not in KINDS:
            msg = f"could not describe a log: found kind={kind!r}"
            raise InvalidUsageError(msg, hint="give kind='stream' or kind='collection'")
        if not isinstance(times, Iterable) or isinstance(times, bytes):
            msg = f"could not describe a log: found times={shown(times)}"
            raise InvalidUsageError(msg, hint="give the type of each time coordinate, such as times=('timestamp',)")
        types = (times,) if isinstance(times, str) else tuple(times)
        if len(types) > MAX_ARITY:
            msg = f"could not describe a log: found {len(types)} time coordinates"
            raise InvalidUsageError(
                msg,
                hint=f"give a time at most {MAX_ARITY} coordinates",
            )
        domain = TimeDomain.from_json({"times": types})
        if minimum is not None:
            try:
                domain = TimeDomain(domain.types, domain.parse_time(minimum))
            except InvalidUsageError as error:
                msg = f"could not describe a log: found minimum={shown(minimum)}"
                if others := _types_of(minimum, domain):
                    msg += f" and times={shown(types[0] if len(types) == 1 else types)}"
                    raise InvalidUsageError(msg, hint=f"say times={others}") from error
                raise InvalidUsageError(msg, hint=error.hint) from error
        fields = [pa.field(f.name, canonical_type(f.type, f.name), f.nullable) for f in schema]
        form = cls(domain, kind, pa.schema(fields))
        form.check_names(schema.names)
        return replace(form, key=form.check_key(key))

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse payload columns that a log cannot have.

        Raises
        ------
        SchemaMismatchError
        """
        reserved = {name.lower() for name in self.reserved}
        seen: set[str] = set()
        for name in names:
            if name.lower() in reserved:
                found = f"reserved name {name!r}"
                hint = "rename the column; the log keeps facts of its own under such names"
            elif not name or _FORBIDDEN.search(name):
                found = f"name {name!r}"
                hint = "rename the column: a Delta table allows none of ' ,;{}()=', tab, line feed or NUL in names"
            elif name.lower() in seen:
                found, hint = f"name {name!r} twice (case does not count)", "rename one of them"
            else:
                seen.add(name.lower())
                continue
            msg = f"could not use a payload column: found {found}"
            raise SchemaMismatchError(msg, hint=hint, context={"column": name})

    def check_key(self, key: object) -> tuple[str, ...]:
        """Return the names of the payload columns of a key, as the log spells them.

        Parameters
        ----------
        key : str or sequence of str
            Names; case does not count. Empty: no key.

        Raises
        ------
        InvalidUsageError
            If the log is of events, which have no key; if there is no such column, one comes twice, or its values have
            no order that all engines share: floats, and what has fields or elements.

        Examples
        --------
        >>> form = LogFormat.build(pa.schema([("id", pa.int64()), ("x", pa.float64())]), kind="collection")
        >>> form.check_key("ID")
        ('id',)
        """
        names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else (key,)
        folded = {field.name.lower(): field for field in self.payload}
        found: list[str] = []
        for name in names:  # some
            column = folded.get(name.lower()) if isinstance(name, str) else None
            if self.kind != "collection":
                problem, hint = f"a log of kind {self.kind!r}", "leave it out, or give kind='collection'"
            elif column is None:
                problem, hint = "no such column", f"name columns of the log: {shown(self.payload.names)}"
            elif column.name in found:
                problem, hint = "the column twice", "name each column once"
            elif not _has_one_order(column.type):
                problem, hint = (
                    f"type {str(column.type)!r}",
                    "choose columns of integers, text, bytes, dates or timestamps",
                )
            else:
                found.append(column.name)
                continue
            msg = f"could not order a log by key={shown(name)}: found {problem}"
            raise InvalidUsageError(msg, hint=hint)
        return tuple(found)

    def extended(self, columns: pa.Schema) -> LogFormat:
        """Return the format with further payload columns, which may be null; those it has stay as they are.

        Parameters
        ----------
        columns : pyarrow.Schema
            Columns that rows bring. Not modified.

        Raises
        ------
        SchemaMismatchError
            If a column is there with another type, or a log cannot have it.

        Examples
        --------
        >>> form = LogFormat.build(pa.schema([("id", pa.int64())])).extended(pa.schema([("note", pa.string())]))
        >>> form.payload.names, form.merged
        (['id', 'note'], ('note',))
        """
        folded = {field.name.lower(): field for field in self.payload}
        new: list[pa.Field] = []
        for column in columns:
            kind = canonical_type(column.type, column.name)
            stored = folded.get(column.name.lower())
            if stored is None:
                new.append(pa.field(column.name, kind))
            elif stored.type != kind:
                msg = (
                    f"could not add column {column.name!r} to a log: found type {str(kind)!r}, the log holds"
                    f" {str(stored.type)!r}"
                )
                raise SchemaMismatchError(
                    msg,
                    hint="cast the column, or capture under another name: columns keep their type",
                    context={"column": column.name},
                )
        local = [field.name for field in new if _has_local_timestamps(field.type)]
        if local and not any(_has_local_timestamps(field.type) for field in self.payload):
            # delta-rs would list the feature that such a column needs, and must then list all: see `table_schema`.
            msg = f"could not add column {local[0]!r} to a log: found a timestamp without zone, the first of the log"
            raise SchemaMismatchError(
                msg,
                hint="cast it to a timestamp with zone, or capture into a new log",
                context={"column": local[0]},
            )
        names = tuple(field.name for field in new)
        self.check_names([*self.payload.names, *names])
        return replace(
            self,
            payload=pa.schema([*self.payload, *new]),
            merged=(*self.merged, *names),
            _cache={"table": self.table_fields},
        )

    def unknown_columns(self, found: pa.Schema) -> tuple[str, ...]:
        """Return the columns of a file that the log does not have: reading leaves them out, and so would a rewrite.

        Parameters
        ----------
        found : pyarrow.Schema
            Of the file. May have any column of the table, as files that other engines rewrote do.

        Returns
        -------
        tuple of str
            Fields inside of structs with the names of what they are in, joined by dots.

        Examples
        --------
        >>> form = LogFormat.build(pa.schema([("id", pa.int64())]))
        >>> form.unknown_columns(pa.schema([("_seq", pa.int64()), ("id", pa.int64()), ("note", pa.string())]))
        ('note',)
        """
        known = {field.name: field.type for field in (*self.table_fields, *self.payload)}
        names: list[str] = []
        for column in found:  # some
            inside = known.get(column.name)
            names += [column.name] if inside is None else _unknown_fields(column.type, inside, column.name)
        return tuple(names)

    def check_absent(self, names: Collection[str], *, allowed: Collection[str] = (), attempt: str) -> tuple[str, ...]:
        """Return the payload columns that rows do not have and that become null; refuse rows that lack others.

        Columns that were added after the log was made may always be absent.

        Parameters
        ----------
        names : collection of str
            Columns of the rows, by their names in the log.
        allowed : collection of str
            Columns that may be absent, by the option `missingColumns` or the argument `missing_columns`.
        attempt : str
            What is attempted, for errors.

        Raises
        ------
        SchemaMismatchError
            If another column is absent, or one that is declared not null.
        InvalidOptionError
            If `allowed` names a column that the log does not have.

        Examples
        --------
        >>> form = LogFormat.build(pa.schema([("id", pa.int64()), ("note", pa.string())]))
        >>> form.check_absent(["id"], allowed=["note"], attempt="could not capture")
        ('note',)
        """
        unknown = [name for name in allowed if name not in self.payload.names]
        if unknown:
            msg = f"{attempt}: found no column {shown(unknown[0])} in the log, which missingColumns names"
            raise InvalidOptionError(
                msg,
                hint=f"name columns of the log: {shown(self.payload.names)}",
                context={"option": "missingColumns", "column": unknown[0]},
            )
        absent = [field for field in self.payload if field.name not in names]
        refused = [field for field in absent if field.name not in self.merged and field.name not in allowed]
        refused += [field for field in absent if not field.nullable and field not in refused]
        if refused:
            field = refused[0]
            what = "which the log declares not null" if not field.nullable else "which the log was made with"
            near = difflib.get_close_matches(field.name, [n for n in names if n not in self.payload.names], n=1)
            hint = f"did you mean {near[0]!r}? Else add the column" if near else "add the column"
            if field.nullable:
                hint += f", or store null for it by missingColumns={field.name!r} (missing_columns in Python)"
            msg = f"{attempt}: found no column {field.name!r}, {what}"
            raise SchemaMismatchError(
                msg,
                hint=hint,
                context={"column": field.name, "missing": [each.name for each in refused]},
            )
        return tuple(field.name for field in absent)

    def with_absent(self, rows: pa.Table, /, *, allowed: Collection[str] = (), attempt: str) -> pa.Table:
        """Return rows with nulls in the columns that `check_absent` lets them lack.

        Examples
        --------
        >>> form = LogFormat.build(pa.schema([("id", pa.int64())])).extended(pa.schema([("note", pa.string())]))
        >>> form.with_absent(pa.table({"id": [1]}), attempt="could not append")["note"].to_pylist()
        [None]
        """
        for name in self.check_absent(rows.schema.names, allowed=allowed, attempt=attempt):
            rows = rows.append_column(name, pa.nulls(rows.num_rows, self.payload.field(name).type))
        return rows

    @property
    def declared(self) -> pa.Schema:
        """Payload columns that the log was made with."""
        return pa.schema([field for field in self.payload if field.name not in self.merged])

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names that no payload column may have."""
        both = self.table_fields
        return (*(f.name for f in both), "_diff")

    @property
    def table_fields(self) -> list[pa.Field]:
        """Our columns in physical order, `_event` first."""
        if "table" in self._cache:
            return list(self._cache["table"])
        domain = self.domain
        types = [type_.arrow for type_ in domain.types]
        bounds = [
            pa.field(name, type_) for names in domain.bound_columns for name, type_ in zip(names, types, strict=True)
        ]
        fields = [
            pa.field("_event", pa.string(), nullable=False),
            pa.field("_stream", pa.string()),
            pa.field("_seq", pa.int64()),
            *map(pa.field, domain.columns, types),
        ]
        if self.kind == "collection":
            fields.append(pa.field("_diff", pa.int64()))
        fields += [
            pa.field("_delta", pa.int64()),
            pa.field("_count", pa.int64()),
            pa.field("_reason", pa.string()),
            pa.field("_at", TIMESTAMP),
            pa.field("_query", pa.string()),
            pa.field("_batch", pa.int64()),
            pa.field("_step", pa.int64()),
            pa.field("_rows", pa.int64()),
            *bounds,
            pa.field("_epoch", pa.int64()),
            pa.field("_note", pa.string()),
        ]
        self._cache["table"] = fields
        return list(fields)

    @property
    def data_columns(self) -> tuple[str, ...]:
        """Columns of a message: ours that it has, then the payload."""
        own = ["_stream", "_seq", *self.domain.columns]
        if self.kind == "collection":
            own.append("_diff")
        return (*own, *self.payload.names)

    @property
    def data_schema(self) -> pa.Schema:
        """Schema of messages as a file has them, in the order of `data_columns`."""
        if "data" not in self._cache:
            own = {f.name: f for f in self.table_fields}
            self._cache["data"] = pa.schema([own.get(n) or self.payload.field(n) for n in self.data_columns])
        return self._cache["data"]

    @property
    def dead_schema(self) -> pa.Schema:
        """Schema of dead letters: that of messages, with reason and wall clock."""
        own = {f.name: f for f in self.table_fields}
        n_own = len(self.data_columns) - len(self.payload)
        fields = list(self.data_schema)
        return pa.schema([*fields[:n_own], own["_reason"], own["_at"], *fields[n_own:]])

    @property
    def progress_schema(self) -> pa.Schema:
        """Schema of progress rows as a file has them."""
        if "progress" not in self._cache:
            fields = [f for f in self.table_fields if f.name not in ("_event", "_diff")]
            self._cache["progress"] = pa.schema(fields)
        return self._cache["progress"]

    @property
    def table_schema(self) -> pa.Schema:
        """Schema of the whole table, with our facts in the metadata of `_event`."""
        event, *rest = self.table_fields
        facts = event.with_metadata({METADATA_KEY: self.facts()})
        if any(_has_local_timestamps(f.type) for f in self.payload):
            # delta-rs lists the feature that such columns need, and then must list all: without the one for
            # columns that are not null, which it leaves out, delta-spark refuses the table (tried).
            facts = facts.with_nullable(nullable=True)
        return pa.schema([facts, *rest, *(f.with_nullable(nullable=True) for f in self.payload)])

    def facts(self) -> str:
        """Return the facts of the log as JSON, as kept under `timely.log`."""
        said: dict[str, object] = {"version": self.version, "kind": self.kind, **self.domain.to_json()}
        said["nullable"] = {f.name: f.nullable for f in self.declared}
        if self.key:
            said["key"] = list(self.key)
        if self.version >= FORMAT_VERSION:
            said["guardedFrom"] = self.guarded_from
            if self.forgets:
                said["forgets"] = True
            if self.accepted:
                said["accepted"] = list(self.accepted)
            if self.before is not None:
                said["before"] = list(self.before)
        return json.dumps(said, sort_keys=True, ensure_ascii=False)

    def raised(self, version: int, before: tuple[int, int] | None) -> LogFormat:
        """Return the format of a log whose entries are judged behind a version of its table.

        Parameters
        ----------
        version : int
        before : tuple of (int, int) or None
            How many messages and streams it has.
        """
        return replace(self, version=FORMAT_VERSION, guarded_from=version, before=before)

    @classmethod
    def from_table(cls, schema: pa.Schema, metadata: Mapping[str, Any], path: str) -> LogFormat:
        """Read the format of an existing table.

        Parameters
        ----------
        schema : pyarrow.Schema
            Columns of the table.
        metadata : mapping
            Metadata of its column `_event`; empty if there is none.
        path : str
            For errors.

        Raises
        ------
        LogMissingError
            If the table is no log.
        LogFormatError
            If the log is of another version, or its facts do not make sense.
        """
        text = metadata.get(METADATA_KEY)
        if text is None:
            msg = f"could not open log {path!r}: found a Delta table that is no capture log"
            raise LogMissingError(
                msg,
                hint="give the path of a log, or capture into an empty path",
                context={"path": path},
            )
        try:
            facts = json.loads(text) if isinstance(text, str) else dict(text)
            version = int(facts["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable_facts(path, text) from error
        if version not in FORMAT_VERSIONS:
            *most, last = map(str, FORMAT_VERSIONS)
            used = f"{', '.join(most)} and {last}"
            hint = (
                "upgrade spark-timely"
                if version > max(FORMAT_VERSIONS)
                else "replay the log with the version of spark-timely that wrote it, and capture it into a new log"
            )
            raise _unusable(path, f"format version={version}, this library uses {used}", hint, version=version)
        try:
            domain = TimeDomain.from_json(facts)
            nullable = dict(facts.get("nullable", {}))
            kind = KINDS[KINDS.index(facts["kind"])]
            guarded_from = int(facts["guardedFrom"]) if version >= FORMAT_VERSION else None
            accepted = tuple(map(str, facts.get("accepted", ())))
            counted = facts.get("before")
            before = None if counted is None else (int(counted[0]), int(counted[1]))
        except (InvalidUsageError, LookupError, TypeError, ValueError) as error:
            raise _unreadable_facts(path, text) from error
        bare = cls(domain, kind, pa.schema([]), version)
        own = {f.name for f in bare.table_fields}
        missing = [f.name for f in bare.table_fields if f.name not in schema.names]
        if missing:
            hint = "restore the table: the log's own columns may not be dropped or renamed"
            raise _unusable(path, f"no column {missing[0]!r}", hint, column=missing[0])
        payload = [
            pa.field(f.name, canonical_type(f.type, f.name), bool(nullable.get(f.name, True)))
            for f in schema
            if f.name not in own
        ]
        # Adding columns leaves the facts as they are: whatever they do not name came later.
        merged = tuple(f.name for f in payload if f.name not in nullable) if "nullable" in facts else ()
        form = cls(
            domain,
            kind,
            pa.schema(payload),
            version,
            merged,
            forgets=version == _FORGETFUL_VERSION or facts.get("forgets") is True,
            guarded_from=guarded_from,
            accepted=accepted,
            before=before,
            _cache={"table": bare.table_fields},
        )
        try:
            return replace(form, key=form.check_key(facts.get("key", ())))
        except InvalidUsageError as error:
            raise _unreadable_facts(path, text) from error


def _unreadable_facts(path: str, found: object) -> LogFormatError:
    hint = f"restore the metadata {METADATA_KEY!r} of column '_event'"
    return _unusable(path, f"unreadable facts {shown(found)}", hint)


def _types_of(minimum: object, domain: TimeDomain) -> str:
    """Return the types of times that a minimum is of, where the domain's are others; nothing if they do not help."""
    values = minimum if isinstance(minimum, list | tuple) else (minimum,)
    if len(values) != domain.arity:
        return ""
    found = []
    for kind, value in zip(domain.types, values, strict=True):
        if parse_day(value) is not None:
            found.append(kind.value if kind.value in ("date", "timestamp") else "date")
        else:
            moment = isinstance(value, dt.datetime) or parse_moment(value) is not None
            found.append("timestamp" if moment else kind.value)
    if found == [kind.value for kind in domain.types]:
        return ""
    naive = any(isinstance(value, dt.datetime) and value.tzinfo is None for value in values)
    zone = ", and give the moment its zone: datetime(…, tzinfo=UTC)" if naive else ""
    return f'"{found[0]}"{zone}' if len(found) == 1 else f"{found}{zone}"
