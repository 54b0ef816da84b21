"""Columns of a log's files in the types that were declared, and the sum of diffs of equal rows.

Several engines write a log's files: this library, Spark, the OPTIMIZE of delta-spark (INT96
timestamps without zone) and of delta-rs (large or view types). The values are the same, the Arrow
types are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import SchemaMismatchError

if TYPE_CHECKING:
    from spark_timely.order import IntArray

__all__ = ["conform_array", "sum_equal_rows"]


def conform_array(array: pa.Array, wanted: pa.DataType, /) -> pa.Array:
    """Return a column in the type that was declared for it.

    Parameters
    ----------
    array : pyarrow.Array
        As a file has it. Not modified.
    wanted : pyarrow.DataType
        Plain types: no dictionaries, timestamps in microseconds.

    Returns
    -------
    pyarrow.Array
        Itself where it fits.

    Raises
    ------
    SchemaMismatchError
        If a value does not fit.

    Notes
    -----
    Cost: nothing where the types are equal; O(1) for a timestamp that lacks its zone; else one pass.
    A timestamp without zone is taken as UTC, which is what Parquet's INT96 holds.

    Examples
    --------
    >>> import pyarrow as pa
    >>> column = pa.array([0], pa.timestamp("us"))
    >>> str(conform_array(column, pa.timestamp("us", "UTC")).type)
    'timestamp[us, tz=UTC]'
    """
    found = array.type
    if found == wanted:
        return array
    if pa.types.is_dictionary(found):
        return conform_array(array.dictionary_decode(), wanted)
    if (
        pa.types.is_timestamp(found)
        and pa.types.is_timestamp(wanted)
        and found.unit == wanted.unit
        and (found.tz is None or wanted.tz is not None)
    ):
        return array.view(wanted)
    if pa.types.is_nested(wanted) and found.id == wanted.id:
        return _conform_nested(array, wanted)
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        msg = f"could not read a column: found type {str(found)!r}, declared is {str(wanted)!r} ({error})"
        raise SchemaMismatchError(
            msg, hint="the file was written by something that does not keep the schema"
        ) from error


def _conform_nested(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Conform the children: Arrow's own cast refuses children that may be null where none should."""
    if array.offset or (pa.types.is_struct(wanted) and array.null_count):
        # Children of a slice are not sliced; copying a slice of nested data is the simple way.
        array = pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array
    if pa.types.is_struct(wanted):
        present = {field.name: place for place, field in enumerate(array.type)}
        children = [
            conform_array(array.field(present[field.name]), field.type)
            if field.name in present
            else pa.nulls(len(array), field.type)
            for field in wanted
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_map(wanted):
        return pa.MapArray.from_arrays(
            array.offsets,
            conform_array(array.keys, wanted.key_type),
            conform_array(array.items, wanted.item_type),
            type=wanted,
            mask=mask,
        )
    if pa.types.is_list(wanted):
        return pa.ListArray.from_arrays(
            array.offsets, conform_array(array.values, wanted.value_type), type=wanted, mask=mask
        )
    return array.cast(wanted)


def sum_equal_rows(table: pa.Table, diff: str = "_diff", /) -> pa.Table:
    """Sum the diffs of rows that are equal in all other columns, and drop those that come to zero.

    Parameters
    ----------
    table : pyarrow.Table
        Rows with a column `diff`; nulls are equal to each other. Not modified.
    diff : str
        Name of the column of diffs.

    Returns
    -------
    pyarrow.Table
        Same columns; rows in the order in which each was first seen.

    Notes
    -----
    Cost: one grouping. Floats are grouped by their bits but for -0.0, which is 0.0, and NaN, which is
    one value. Columns that Arrow cannot group by (lists, structs, maps) are grouped by their text.

    Examples
    --------
    >>> import pyarrow as pa
    >>> rows = pa.table({"n": [1, 2, 1], "_diff": [1, 1, -1]})
    >>> sum_equal_rows(rows).to_pydict()
    {'n': [2], '_diff': [1]}
    """
    keys: dict[str, pa.ChunkedArray] = {}
    for number, name in enumerate(table.column_names):  # one turn per column
        if name != diff:
            keys[f"k{number}"] = _groupable(table.column(name))
    diffs = table.column(diff).combine_chunks()
    if not keys:
        total = int(pc.sum(diffs).as_py() or 0)
        return table.slice(0, 1 if total else 0).set_column(
            table.column_names.index(diff), table.schema.field(diff), pa.array([total][: 1 if total else 0])
        )
    grouped = (
        pa.table({**keys, "row": pa.array(np.arange(table.num_rows)), "diff": diffs})
        .group_by(list(keys), use_threads=False)
        .aggregate([("row", "min"), ("diff", "sum")])
    )
    grouped = grouped.filter(pc.not_equal(grouped.column("diff_sum"), 0))
    rows = table.take(grouped.column("row_min"))
    return rows.set_column(table.column_names.index(diff), table.schema.field(diff), grouped.column("diff_sum"))


def _groupable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_floating(kind):
        width: IntArray = np.empty(0, np.int64 if kind.bit_width == 64 else np.int32)
        values = column.to_numpy(zero_copy_only=False)
        canonical = np.where(np.isnan(values), np.nan, values + 0.0).astype(f"f{kind.bit_width // 8}")
        return pa.array(canonical.view(width.dtype), mask=column.is_null().to_numpy())
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
    return column
