"""Columns of a log's files in the types that were declared.

Several engines write a log's files: this library, Spark, the OPTIMIZE of delta-spark (INT96
timestamps without zone) and of delta-rs (large or view types). The values are the same, the Arrow
types are not.
"""

from __future__ import annotations

import pyarrow as pa

from spark_timely.errors import SchemaMismatchError

__all__ = ["conform_array"]


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
    if array.offset:
        # The children of a slice are not sliced: copy it.
        array = pa.concat_arrays([array, array.slice(0, 0)])
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(wanted):
        present = {field.name: place for place, field in enumerate(array.type)}
        children = [
            conform_array(array.field(present[field.name]), field.type)
            if field.name in present
            else pa.nulls(len(array), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
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
