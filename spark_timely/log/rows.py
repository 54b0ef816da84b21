"""Rows given by users, from Python values, pandas, polars or any Arrow source, made into the table to append.

Stream writers (`writer`) and `resubmission` ask `table_of`. (Nothing of a log's format is known here; the sink's rows,
which come from Spark as Arrow, are written by `spark_timely.sink.rows`.)

Whatever offers its columns through Arrow's C interface is taken without a copy: tables, batches and readers of pyarrow,
polars, DuckDB, pandas. Plain Python values go through Arrow's own conversion, after a look at their kinds: loops of C,
but for moments and for what holds maps.

Invariants
----------
1. Nothing is guessed: types are those that Arrow finds in the values. What does not fit the log is refused afterwards,
   by `spark_timely.log.files.format.conform`. Of plain numbers whole ones may also stand for fractions.
2. No value changes: plain values of several kinds in one place, which Arrow would bring to one, are refused, as are
   moments with digits that Arrow would cut, and tables whose texts or numbers of categories are damaged.
3. pandas is not imported: it is there already if the rows are one of its DataFrames.
"""

from __future__ import annotations

import datetime as dt
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain, repeat
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.errors import InvalidShapeError, InvalidUsageError, SchemaMismatchError, shown

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogFormat


class ArrowStream(Protocol):
    """A table by Arrow's C stream interface: of pyarrow, polars, DuckDB, pandas 2.2 and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:  # noqa: ANN401 - a capsule
        """Return the stream."""


class ArrowArray(Protocol):
    """A record batch by Arrow's C data interface."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:  # noqa: ANN401 - capsules
        """Return schema and array."""


class DataFrameLike(Protocol):
    """A DataFrame of any pandas, as its type declarations describe it."""

    def __dataframe__(self, nan_as_null: bool = ..., allow_copy: bool = ...) -> Any:  # noqa: ANN401, FBT001 - as pandas has it
        """Return the object of the interchange protocol."""


RowsLike: TypeAlias = ArrowStream | ArrowArray | DataFrameLike | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Rows: anything that Arrow or pandas knows as a table, columns by name, or a list of rows."""

_HINT = (
    "give a table of Arrow, pandas, polars or DuckDB, a dict of columns such as {'v': [1, 2]}, or a list of rows such"
    " as [{'v': 1}, {'v': 2}]"
)


# Readers that gave their rows: given again, as after an error, they would pass for no rows at all.
_used_up: weakref.WeakSet[pa.RecordBatchReader] = weakref.WeakSet()


def table_of(rows: object, form: LogFormat, /, *, attempt: str) -> pa.Table:
    """Return rows as an Arrow table; columns keep the types that they come with.

    Parameters
    ----------
    rows : table
        As `RowsLike`. Not modified; a reader is read to its end. Of a pandas DataFrame the index counts where it has a
        name.
    form : LogFormat
        Of the log that the rows are for: says which columns hold maps or fractions, and what no rows look like.
    attempt : str
        What is attempted, for errors.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    InvalidUsageError
        If these are no rows.
    InvalidShapeError
        If columns differ in length.
    SchemaMismatchError
        If the values of a column are of several types, or of one that Arrow does not know.

    Notes
    -----
    Cost: for what is Arrow already, that its texts are looked through; else one conversion of each column.

    Examples
    --------
    >>> from spark_timely.log.files.format import LogFormat
    >>> form = LogFormat.build(pa.schema([("v", pa.float64())]))
    >>> table_of({"_time": [3], "v": [1]}, form, attempt="could not append").column("v").type
    DataType(double)
    >>> table_of([{"_time": 3, "v": None}], form, attempt="could not append").column_names
    ['_time', 'v']
    """
    if isinstance(rows, pa.Table):
        return _read(attempt, lambda: _whole(rows))
    if isinstance(rows, pa.RecordBatch):
        return _read(attempt, lambda: _whole(pa.Table.from_batches([rows])))
    if _is_pandas(rows):
        return _read(attempt, lambda: _from_pandas(rows))
    if isinstance(rows, pa.RecordBatchReader):
        if rows in _used_up:
            msg = f"{attempt}: found a reader whose rows were taken before"
            raise InvalidUsageError(msg, hint="make another reader, or give a table: a reader gives its rows once")
        _used_up.add(rows)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return _read(attempt, lambda: _whole(pa.table(rows)))
    if isinstance(rows, Mapping):
        return _from_columns(rows, form, attempt)
    if isinstance(rows, list | tuple):
        return _from_rows(rows, form, attempt)
    raise _no_rows(attempt, rows)


def _is_pandas(rows: object) -> bool:
    kind = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return isinstance(kind, type) and isinstance(rows, kind)


def _from_pandas(frame: Any) -> pa.Table:  # noqa: ANN401 - of pandas, which may not be imported
    named = any(name is not None for name in frame.index.names)
    for name in frame.select_dtypes(object):
        _check_kinds(frame[name].dropna().tolist(), f"column {name!r}")
    return pa.Table.from_pandas(frame, preserve_index=named).replace_schema_metadata(None)


def _whole(table: pa.Table) -> pa.Table:
    """Return a table, which others made, after a look at what nobody could read back: texts, categories, offsets."""
    table.validate(full=True)
    return table


def _read(attempt: str, read: Callable[[], pa.Table]) -> pa.Table:
    """Return what is read, with the library's own error in place of Arrow's, or of whose rows these are."""
    try:
        return read()
    except Exception as error:
        msg = f"{attempt}: found rows that Arrow cannot read: {_said(error)}"
        raise SchemaMismatchError(msg, hint="give each column values of one type, under a name of its own") from error


def _said(error: Exception) -> str:
    """Return what an error says; of one that came through C with a traceback its last line."""
    lines = str(error).strip().splitlines()
    return shown(lines[-1] if len(lines) > 1 and "Traceback" in str(error) else str(error))


def _from_columns(columns: Mapping[Any, Any], form: LogFormat, attempt: str) -> pa.Table:
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            msg = f"{attempt}: found a column named {shown(name)}"
            raise InvalidUsageError(msg, hint="give columns texts as names")
        arrays[name] = _column(name, values, form, attempt)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        msg = f"{attempt}: found columns of different lengths: {shown(lengths)}"
        raise InvalidShapeError(msg, hint="give each column one value per row")
    return pa.table(arrays)


def _column(name: str, values: Any, form: LogFormat, attempt: str) -> pa.Array | pa.ChunkedArray:  # noqa: ANN401
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return _checked(values)
        if str(getattr(values, "dtype", "")) == "object":  # of pandas, where NaN is no value, or numpy
            _check_kinds((values.dropna() if hasattr(values, "dropna") else values).tolist())
        if hasattr(values, "__arrow_c_stream__"):
            return _checked(pa.chunked_array(values))
        if hasattr(values, "__arrow_c_array__"):
            return _checked(pa.array(values))
        if isinstance(values, list | tuple | range) or (hasattr(values, "__array__") and np.ndim(values) == 1):
            return _converted(values, _wanted(name, form))
    except Exception as error:
        msg = f"{attempt}: found values in column {name!r} that Arrow cannot read: {_said(error)}"
        raise SchemaMismatchError(msg, hint="give the column values of one type", context={"column": name}) from error
    msg = f"{attempt}: found {name}={shown(values)}, which is no column"
    raise InvalidUsageError(msg, hint="give each column a list or an array with one value per row")


def _wanted(name: str, form: LogFormat) -> pa.DataType | None:
    index = form.payload.get_field_index(name)
    return None if index < 0 else form.payload.field(index).type


def _checked(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    values.validate(full=True)
    return values


def _converted(values: Any, wanted: pa.DataType | None, where: str = "") -> pa.Array | pa.ChunkedArray:  # noqa: ANN401
    """Return plain values as Arrow finds them."""
    if wanted is not None and _has_map(wanted):
        return _nested(list(values), wanted, where)  # Python has no values that are maps alone
    if not hasattr(values, "dtype"):
        _check_kinds(values, where)
        found = pa.array(values)
        if wanted is not None and _stands_for(found.type, wanted):
            return pa.array(values, wanted)
        return found
    return pa.array(values)


_KEY_AND_VALUE: Final = 2


def _nested(values: list[Any], wanted: pa.DataType, where: str) -> pa.Array:
    """Return values that hold maps: what is in them as Arrow finds it, with no more said than where the maps are."""
    if not _has_map(wanted):
        return pa.array(_converted(values, wanted, where))
    null = pa.array([value is None for value in values], pa.bool_())
    present = [value for value in values if value is not None]
    if pa.types.is_struct(wanted):
        _only(present, dict, where)
        names = list(dict.fromkeys(chain(wanted.names, *present)))
        columns = [
            _nested(list(map(_get, values, repeat(name))), _field_type(wanted, name), f"{where}.{name}".lstrip("."))
            for name in names
        ]
        return pa.StructArray.from_arrays(columns, names, mask=null)
    maps = pa.types.is_map(wanted)
    _only(present, (dict, list, tuple) if maps else (list, tuple), where)
    lengths = np.array([0 if value is None else len(value) for value in values], dtype=np.int64)
    # A null is marked where it begins.
    begins_null = np.append(null.to_numpy(zero_copy_only=False), False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32(), mask=begins_null)
    if not maps:
        inner = _nested(list(chain.from_iterable(present)), wanted.value_type, f"{where}[]")
        return pa.ListArray.from_arrays(offsets, inner)
    pairs = list(chain.from_iterable(value.items() if isinstance(value, dict) else value for value in present))
    _only(pairs, (list, tuple), f"{where}[]")
    odd = next((pair for pair in pairs if len(pair) != _KEY_AND_VALUE), None)
    if odd is not None:
        msg = f"{shown(odd)} for a key and its value{_at(where)}"
        raise ValueError(msg)
    keys, items = ([pair[i] for pair in pairs] for i in range(2))
    found = (_nested(keys, wanted.key_type, f"{where}[keys]"), _nested(items, wanted.item_type, f"{where}[values]"))
    return pa.MapArray.from_arrays(offsets, *found)


def _field_type(wanted: pa.DataType, name: str) -> pa.DataType:
    index = wanted.get_field_index(name)
    return pa.null() if index < 0 else wanted.field(index).type


def _get(value: Mapping[str, Any] | None, name: str) -> Any:  # noqa: ANN401
    return None if value is None else value.get(name)


def _only(values: Iterable[object], kinds: type | tuple[type, ...], where: str) -> None:
    other = next((value for value in values if not isinstance(value, kinds)), None)
    if other is not None:
        msg = f"{shown(other)}{_at(where)}"
        raise ValueError(msg)


# Kinds of plain values, the more special ones first: a truth value is a number to Python, a moment a day.
_KINDS: Final[Sequence[tuple[str, tuple[type, ...]]]] = (
    ("truth values", (bool, np.bool_)),
    ("numbers", (int, float, np.integer, np.floating, Decimal)),
    ("texts", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("moments", (dt.datetime,)),
    ("days", (dt.date,)),
    ("times of day", (dt.time,)),
    ("durations", (dt.timedelta, np.timedelta64)),
    ("moments of numpy", (np.datetime64,)),
    ("lists", (list, tuple, np.ndarray)),
    ("dicts", (dict,)),
)
# Of Python and pandas, for a value that is missing.
_MISSING: Final = ("NoneType", "NaTType", "NAType")


def _at(where: str) -> str:
    return f" in {where}" if where else ""


def _check_kinds(values: Collection[Any], where: str = "") -> None:
    """Refuse what Arrow would bring to one type in silence (invariant 2). Loops of C over values.

    Raises
    ------
    ValueError
        With what was found.
    """
    types = set(map(type, values))
    missing = {each for each in types if each.__name__ in _MISSING}
    kinds = {_kind(each) for each in types - missing}
    if len(kinds) > 1:
        msg = f"{' and '.join(sorted(kinds))} together{_at(where)}"
        raise ValueError(msg)
    kind = next(iter(kinds), "")
    if kind == "moments":
        present = [value for value in values if type(value) not in missing]
        zones = set(map(_has_zone, present))
        if len(zones) > 1:
            msg = f"moments with a zone and without{_at(where)}"
            raise ValueError(msg)
        if any(map(attrgetter("nanosecond"), [value for value in present if hasattr(value, "nanosecond")])):
            msg = f"moments with nanoseconds{_at(where)}"
            raise ValueError(msg)
    elif kind == "lists":
        _check_kinds(list(chain.from_iterable(value for value in values if type(value) not in missing)), f"{where}[]")
    elif kind == "dicts":
        present = [value for value in values if type(value) not in missing]
        for name in dict.fromkeys(chain.from_iterable(present)):
            _check_kinds(list(map(methodcaller("get", name), present)), f"{where}.{name}".lstrip("."))


def _kind(type_: type) -> str:
    return next((name for name, types in _KINDS if issubclass(type_, types)), type_.__name__)


def _has_zone(moment: dt.datetime) -> bool:
    return moment.tzinfo is not None


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _stands_for(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values are what the log has, but for plain whole numbers where it has fractions, at any depth."""
    if found.equals(wanted) or pa.types.is_null(found):
        return True
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _stands_for(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        same = found.names == wanted.names
        return same and all(_stands_for(found.field(i).type, wanted.field(i).type) for i in range(found.num_fields))
    return pa.types.is_integer(found) and (pa.types.is_floating(wanted) or pa.types.is_decimal(wanted))


def _from_rows(rows: Sequence[Any], form: LogFormat, attempt: str) -> pa.Table:
    if not rows:
        times = zip(form.domain.columns, form.domain.types, strict=True)
        return pa.schema([*form.payload, *((name, kind.arrow) for name, kind in times)]).empty_table()
    try:
        # Loops of C over names and values: a key that a row does not have is null.
        names = list(dict.fromkeys(chain.from_iterable(rows)))
        columns = {name: list(map(methodcaller("get", name), rows)) for name in names}
    except (TypeError, AttributeError) as error:
        raise _no_rows(attempt, rows) from error
    return _from_columns(columns, form, attempt)


def _no_rows(attempt: str, rows: object) -> InvalidUsageError:
    return InvalidUsageError(f"{attempt}: found rows={shown(rows)}", hint=_HINT)
