"""Bring columns into the Arrow type of a declared type.

A log widens integers, and forgets what cannot be null inside of structs and lists.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_timely.errors import SchemaMismatchError, shown
from spark_timely.interop.schema import Choice, Option, Record, Type, Vec, arrow_type, type_text

__all__ = ["fitted"]


def fitted(values: pa.Array, type_: Type, *, column: str) -> pa.Array:
    """Return values as `arrow_type(type_)` has them; nothing is rounded, cut or wrapped.

    Parameters
    ----------
    values : pyarrow.Array
    type_ : Type
    column : str
        For errors.

    Raises
    ------
    SchemaMismatchError
        If they are of another kind, or a value does not fit.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> fitted(pa.array([1, 2], pa.decimal128(20, 0)), parse_type("u64"), column="n").type
    DataType(uint64)
    """
    wanted = arrow_type(type_)
    if values.type == wanted:
        return values
    found = values.type
    try:
        if isinstance(type_, Option):
            return fitted(values, type_.item, column=column)
        if isinstance(type_, Vec) and (pa.types.is_list(found) or pa.types.is_large_list(found)):
            offsets = np.asarray(values.offsets, np.int64)
            items = values.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            items = fitted(items, type_.item, column=f"{column}[]")
            bounds = pa.array(offsets - offsets[0], pa.int32())
            mask = values.is_null() if values.null_count else None
            return pa.ListArray.from_arrays(bounds, items, type=wanted, mask=mask)
        if isinstance(type_, Record | Choice) and pa.types.is_struct(found):
            types = dict(zip(type_.names, type_.items, strict=True))
            parts = []
            for field in wanted:
                index = found.get_field_index(field.name)
                if index < 0:
                    raise _unfit(values, type_, column, f"no field {field.name!r} in {found}")
                part = values.field(index)
                item = types.get(field.name)
                # The first field of an enum is the name of its variant.
                parts.append(
                    part.cast(field.type) if item is None else fitted(part, item, column=f"{column}.{field.name}")
                )
            mask = values.is_null() if values.null_count else None
            return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
        if not _same_kind(found, wanted):
            raise _unfit(values, type_, column, str(found))
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(values, type_, column, f"{found}, {shown(str(error))}") from error


def _same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may stand for those of another without a change of meaning."""
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(found) or (pa.types.is_decimal(found) and found.scale == 0)
    if pa.types.is_floating(wanted):
        return pa.types.is_floating(found) and found.bit_width <= wanted.bit_width
    texts = (pa.string(), pa.large_string(), pa.string_view())
    if wanted in texts:
        return found in texts
    return wanted == pa.binary() and found in (*texts, pa.large_binary(), pa.binary_view())


def _unfit(values: pa.Array, type_: Type, column: str, found: str) -> SchemaMismatchError:
    del values
    msg = f"could not write column {column!r} as {type_text(type_)}: found {found}"
    return SchemaMismatchError(msg, hint="declare a type that holds all its values", context={"column": column})
