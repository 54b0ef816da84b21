"""Rows as programs have them, brought into one Arrow table: what `StreamWriter.append` takes.

Whatever offers its columns through Arrow's C interface is taken without a copy: tables, batches and readers of pyarrow,
polars, DuckDB, pandas. Plain Python values go through Arrow's own conversion. There is no loop over rows here.

Invariants
----------
1. Nothing is guessed: types are those that Arrow finds in the values. What does not fit the log is refused afterwards,
   by `spark_timely.log.files.format.conform`. Of plain numbers whole ones may also stand for fractions.
2. pandas is not imported: it is there already if the rows are one of its DataFrames.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

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
    Cost: none for what is Arrow already; else one conversion of each column.

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
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if _is_pandas(rows):
        return _read(attempt, lambda: _from_pandas(rows))
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return _read(attempt, lambda: pa.table(rows))
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
    return pa.Table.from_pandas(frame, preserve_index=named).replace_schema_metadata(None)


def _read(attempt: str, read: Any) -> pa.Table:  # noqa: ANN401 - a function of whatever was given
    """Return what is read, with the library's own error in place of Arrow's."""
    try:
        return read()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        msg = f"{attempt}: found rows that Arrow cannot read: {shown(str(error))}"
        raise SchemaMismatchError(msg, hint="give each column values of one type, under a name of its own") from error


def _from_columns(columns: Mapping[Any, Any], form: LogFormat, attempt: str) -> pa.Table:
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    for name, values in columns.items():  # one turn per column
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
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        if hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values)
        if hasattr(values, "__arrow_c_array__"):
            return pa.array(values)
        if isinstance(values, list | tuple | range) or (hasattr(values, "__array__") and np.ndim(values) == 1):
            return _converted(values, _wanted(name, form))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        msg = f"{attempt}: found values in column {name!r} that Arrow cannot read: {shown(str(error))}"
        raise SchemaMismatchError(msg, hint="give the column values of one type", context={"column": name}) from error
    msg = f"{attempt}: found {name}={shown(values)}, which is no column"
    raise InvalidUsageError(msg, hint="give each column a list or an array with one value per row")


def _wanted(name: str, form: LogFormat) -> pa.DataType | None:
    index = form.payload.get_field_index(name)
    return None if index < 0 else form.payload.field(index).type


def _converted(values: Any, wanted: pa.DataType | None) -> pa.Array | pa.ChunkedArray:  # noqa: ANN401
    """Return plain values as Arrow finds them."""
    if wanted is not None and _has_map(wanted):
        return pa.array(values, wanted)  # Python has no values that are maps alone
    found = pa.array(values)
    if wanted is not None and _stands_for(found.type, wanted) and not hasattr(values, "dtype"):
        return pa.array(values, wanted)
    return found


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _stands_for(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether plain whole numbers are given where the log has fractions."""
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
