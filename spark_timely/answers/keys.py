"""The keys of a peek: values of some columns, in exactly the columns' types, sorted, each key once.

A peek with keys gives only the rows that have one of them. Used by `spark_timely.answers.peek`, and by the peeks of a
compute instance (`spark_timely.compute.drive.peeks`). The command line reads its keys in `spark_timely.cli.arguments`.

Invariants
----------
1. A value is taken as it is or refused: no number is rounded, no text read as a number, no moment given a zone.
2. Keys are equal as rows are: null equals null, NaN equals NaN, -0.0 equals 0.0.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, shown
from spark_timely.log.files.format import conform
from spark_timely.time.antichain import run_starts
from spark_timely.time.domain import TimeType
from spark_timely.trace.updates import one_zero

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KeyColumns", "KeysLike", "keys_of"]

KeysLike: TypeAlias = "Mapping[str, object] | Mapping[tuple[str, ...], object] | pa.Table"
"""``{"k": [1, 2]}``, ``{("a", "b"): [(1, "x"), (2, "y")]}``, or a table of the keys' columns."""

_HINT: Final = "give keys={'column': [value, …]}, keys={('a', 'b'): [(value, value), …]}, or a pyarrow.Table"

_Kinds = tuple[type, ...]
_WHOLE: Final[_Kinds] = (int, np.integer)
# What Python values a column takes: a bool is an int to Python, a moment is a date.
_TAKEN: Final[tuple[tuple[Callable[[pa.DataType], bool], _Kinds, _Kinds], ...]] = (
    (pa.types.is_boolean, (bool, np.bool_), ()),
    (pa.types.is_integer, _WHOLE, (bool,)),
    (pa.types.is_floating, (*_WHOLE, float, np.floating), (bool,)),
    (pa.types.is_decimal, (*_WHOLE, decimal.Decimal), (bool,)),
    (pa.types.is_string, (str,), ()),
    (pa.types.is_binary, (bytes, bytearray), ()),
    (pa.types.is_date, (dt.date, str), (dt.datetime,)),
    (pa.types.is_timestamp, (dt.datetime, str), ()),
)


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Columns of keys, and which Python values each takes.

    Attributes
    ----------
    schema : pyarrow.Schema
        All may be null.
    fields : tuple of pyarrow.Field
        The same.
    kinds : tuple of (tuple of type, tuple of type)
        Those that a column takes, and those among them that it refuses.
    """

    schema: pa.Schema
    fields: tuple[pa.Field, ...]
    kinds: tuple[tuple[_Kinds, _Kinds], ...]


def keys_of(
    attempt: str,
    keys: KeysLike | None,
    payload: pa.Schema,
    known: dict[tuple[str, ...], KeyColumns] | None = None,
) -> pa.Table | None:
    """Return the keys that somebody asks for, ready to be looked for.

    Parameters
    ----------
    attempt : str
        What is attempted (``could not …``), for errors.
    keys : mapping or pyarrow.Table or None
        One column or several, by name, and the values wanted. None: no keys, all rows.
    payload : pyarrow.Schema
        Columns of the log.
    known : dict, optional
        Keeps by their names the columns that were asked for: of one payload.

    Returns
    -------
    pyarrow.Table or None
        Sorted, null last; each key once.

    Raises
    ------
    SchemaMismatchError
        If there is no such column, or a value is none of its type.
    InvalidUsageError
        If it is neither a mapping of one entry nor a table, or a column holds lists, maps or structs.

    Notes
    -----
    Cost: one pass over the keys, one hash and one sort of them.

    Examples
    --------
    >>> schema = pa.schema([("k", pa.int64()), ("name", pa.string())])
    >>> keys_of("could not peek", {"k": [7, 3, 7]}, schema).to_pylist()
    [{'k': 3}, {'k': 7}]
    >>> keys_of("could not peek", {("name", "k"): [("x", 1)]}, schema).to_pylist()
    [{'name': 'x', 'k': 1}]
    >>> keys_of("could not peek", {"k": ["7"]}, schema)
    Traceback (most recent call last):
    ...
    spark_timely.errors.SchemaMismatchError: [TIMELY_SCHEMA_MISMATCH] could not peek: found key '7' of type str for \
column 'k' of type int64 — hint: ...
    """
    if keys is None:
        return None
    if isinstance(keys, pa.Table):
        names, given = tuple(keys.schema.names), None
    else:
        names, given = _named(attempt, keys)
    columns = None if known is None else known.get(names)
    if columns is None:
        columns = _columns(attempt, names, payload)
        if known is not None:
            known[names] = columns
    table = _typed(attempt, keys, columns) if isinstance(keys, pa.Table) else _built(attempt, names, given, columns)
    return _sorted(one_zero(table))


def _named(attempt: str, keys: object) -> tuple[tuple[str, ...], object]:
    """Return the columns and the values of a mapping."""
    if not isinstance(keys, Mapping) or len(keys) != 1:
        msg = f"{attempt}: found keys={shown(keys)}"
        raise InvalidUsageError(msg, hint=_HINT)
    ((names, values),) = keys.items()
    columns = names if isinstance(names, tuple) else (names,)
    if not columns or not all(isinstance(name, str) for name in columns):
        msg = f"{attempt}: found keys of columns {shown(names)}"
        raise InvalidUsageError(msg, hint=_HINT)
    if isinstance(values, str | bytes | Mapping) or not isinstance(
        values, Collection | np.ndarray | pa.Array | pa.ChunkedArray
    ):
        msg = f"{attempt}: found keys of column {shown(names)}: {shown(values)}"
        raise InvalidUsageError(msg, hint=f"give the values as a list; {_HINT}")
    return tuple(columns), values


def _columns(attempt: str, names: tuple[str, ...], payload: pa.Schema) -> KeyColumns:
    found = []
    for name in names:
        if name not in payload.names:
            msg = f"{attempt}: found no column {name!r}"
            raise SchemaMismatchError(
                msg, hint=f"choose among its columns: {shown(payload.names)}", context={"column": name}
            )
        field = payload.field(name)
        if pa.types.is_nested(field.type):
            msg = f"{attempt}: found keys of column {name!r} of type {field.type}"
            raise InvalidUsageError(msg, hint="give keys of columns of plain values: use where for others")
        # That a column has no null makes a null key one that nothing has.
        found.append(field.with_nullable(nullable=True).remove_metadata())
    if not found or len({field.name for field in found}) < len(found):
        msg = f"{attempt}: found keys of columns {shown(list(names))}"
        raise InvalidUsageError(msg, hint=f"name each column once; {_HINT}")
    kinds = [next((taken, refused) for is_of, taken, refused in _TAKEN if is_of(field.type)) for field in found]
    return KeyColumns(pa.schema(found), tuple(found), tuple(kinds))


def _typed(attempt: str, keys: pa.Table, columns: KeyColumns) -> pa.Table:
    """Return keys that are a table in the columns' types."""
    try:
        found = conform(keys, columns.schema, what="keys")
    except TimelyError as error:
        msg = f"{attempt}: found keys of other types: {error.message}"
        raise SchemaMismatchError(msg, hint=error.hint or _HINT) from error
    for field in columns.fields:  # doubles that are to be floats are rounded
        given, kept = keys.column(field.name), found.column(field.name)
        if pa.types.is_floating(field.type) and pa.types.is_floating(given.type):
            _check_exact(attempt, given.cast(pa.float64()), kept, field)
    return found


def _built(attempt: str, names: tuple[str, ...], given: object, columns: KeyColumns) -> pa.Table:
    """Return keys that are Python values, or an array, as a table."""
    if isinstance(given, np.ndarray) and given.ndim == 1 and len(names) == 1 and given.dtype.kind in "iufb":
        given = pa.array(given)
    if isinstance(given, pa.Array | pa.ChunkedArray) and len(names) == 1:
        return _typed(attempt, pa.table({names[0]: given}), columns)
    values = list(given)  # type: ignore[call-overload]
    if len(names) == 1:
        parts = [values]
    else:
        if not all(isinstance(key, list | tuple) and len(key) == len(names) for key in values):
            wrong = next(key for key in values if not (isinstance(key, list | tuple) and len(key) == len(names)))
            msg = f"{attempt}: found key {shown(wrong)} for columns {shown(list(names))}"
            raise InvalidUsageError(msg, hint=_HINT)
        parts = [list(column) for column in zip(*values, strict=True)] or [[] for _ in names]
    arrays = [
        _array(attempt, part, field, *kinds)
        for part, field, kinds in zip(parts, columns.fields, columns.kinds, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=columns.schema)


def _array(attempt: str, values: list[object], field: pa.Field, taken: _Kinds, refused: _Kinds) -> pa.Array:
    """Return Python values as an array of a column's type (invariant 1)."""
    kinds = {type(value) for value in values} - {type(None)}
    wrong = [kind for kind in kinds if not issubclass(kind, taken) or (refused and issubclass(kind, refused))]
    if wrong:
        raise _no_value(attempt, next(value for value in values if type(value) is wrong[0]), field)
    if str in kinds and not pa.types.is_string(field.type):
        values = [_moment(attempt, value, field) if isinstance(value, str) else value for value in values]
    if pa.types.is_timestamp(field.type):
        zoned = field.type.tz is not None
        for value in values:  # keys of Python objects are few
            if isinstance(value, dt.datetime) and (value.tzinfo is not None) != zoned:
                raise _no_value(attempt, value, field)
    try:
        if pa.types.is_floating(field.type):
            exact = pa.array(values, pa.float64())
            array = exact.cast(field.type)
            _check_exact(attempt, exact, array, field)
            return array
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        if isinstance(error, TimelyError):
            raise
        for value in values:  # to name the one that is wrong
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                raise _no_value(attempt, value, field) from error
        msg = f"{attempt}: found keys that are no {field.type} for column {field.name!r}"
        raise SchemaMismatchError(msg, hint="give values of the column's type") from error


def _check_exact(
    attempt: str, given: pa.Array | pa.ChunkedArray, kept: pa.Array | pa.ChunkedArray, field: pa.Field
) -> None:
    """Refuse numbers that a column would round (invariant 1)."""
    same = pc.or_kleene(pc.equal(kept.cast(pa.float64()), given), pc.is_nan(given))
    wrong = pc.index(same, value=False).as_py()
    if wrong >= 0:
        raise _no_value(attempt, given[wrong].as_py(), field)


def _moment(attempt: str, text: str, field: pa.Field) -> object:
    """Return a date or a time that is written as text."""
    if pa.types.is_timestamp(field.type) and field.type.tz is None:
        raise _no_value(attempt, text, field)
    kind = TimeType.DATE if pa.types.is_date(field.type) else TimeType.TIMESTAMP
    try:
        number = kind.parse(text)
    except InvalidUsageError as error:
        raise _no_value(attempt, text, field) from error
    return kind.to_arrow([number])[0].as_py()


def _no_value(attempt: str, value: object, field: pa.Field) -> SchemaMismatchError:
    found = f"found key {shown(value)} of type {type(value).__name__}"
    msg = f"{attempt}: {found} for column {field.name!r} of type {field.type}"
    return SchemaMismatchError(
        msg, hint="give a value that the column can hold exactly", context={"column": field.name}
    )


def _sorted(table: pa.Table) -> pa.Table:
    """Return keys in their order, each once (invariant 2)."""
    if table.num_rows < 2:
        return table
    hashes = RowHasher(table.schema).hash(table)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    table = table.take(pa.array(order[run_starts(hashes[order].view(np.int64))]))
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.schema.names]))
