"""Conversion of captured records: between plain Python or JSON values, Arrow, and the columns of a log.

`jsonl` and `cdcv2.reader` use it for records as JSON, and `writer` for records from a log. A log widens integers, and
does not keep which values inside of structs and lists may be null: `fitted` gives its columns the declared types again.
The bytes of records are the matter of `layout`, and times that of `time_layout`.

In JSON

- integers are plain and may reach 2^64 − 1; floats that JSON lacks are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``;
  decimals are texts, as ``"12.50"``; dates and timestamps are the integers that they are in bytes;
- byte strings are base64; a missing option and the unit are null;
- tuples are lists, structs objects, durations ``[seconds, nanoseconds]``, maps lists of pairs;
- an enum's variant that holds nothing is its name, any other an object of its name and what it holds.
"""

from __future__ import annotations

import base64
import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.interop.schema import (
    UNIT,
    WIRE_KINDS,
    Choice,
    Decimal,
    Map,
    Option,
    Record,
    Scalar,
    Type,
    Vec,
    arrow_schema,
    arrow_type,
    columns_of,
    type_text,
)

Value: TypeAlias = object
_MOST_F32 = float(np.finfo(np.float32).max)
_NUMBER = re.compile(r"-?[0-9]{1,60}(\.[0-9]{1,60})?")
_EXACT = decimal.Context(prec=100)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def json_value(value: Value, type_: Type) -> Value:
    """Return what Arrow's `to_pylist` gives for a value of a type, as JSON writes it; see `plain`.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> json_value({"f0": "a", "f1": b"xy"}, parse_type("(string, bytes)"))
    ['a', 'eHk=']
    """
    if value is None:
        return None
    if isinstance(type_, Option):
        return json_value(value, type_.item)
    if isinstance(type_, Vec):
        assert isinstance(value, list)
        return [json_value(item, type_.item) for item in value]
    if isinstance(type_, Map):
        assert isinstance(value, list)
        return [[json_value(key, type_.key), json_value(item, type_.item)] for key, item in value]
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(type_, Record):
        assert isinstance(value, dict)
        items = [json_value(value[name], item) for name, item in zip(type_.names, type_.items, strict=True)]
        return dict(zip(type_.names, items, strict=True)) if type_.kind == "struct" else items
    if isinstance(type_, Choice):
        assert isinstance(value, dict)
        name = value["variant"]
        item = type_.items[type_.names.index(name)]
        return name if item == UNIT else {name: json_value(value[name], item)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def arrow_value(value: Value, type_: Type) -> Value:
    """Return what JSON, or plain Python, gives for a value of a type, as `pyarrow.array` takes it.

    Raises
    ------
    ValueError
        If it is no value of the type.
    """
    if isinstance(type_, Option):
        return None if value is None else arrow_value(value, type_.item)
    if isinstance(type_, Vec) and isinstance(value, list | tuple):
        return [arrow_value(item, type_.item) for item in value]
    if isinstance(type_, Map):
        return _arrow_map(value, type_)
    if isinstance(type_, Decimal):
        return _arrow_decimal(value, type_)
    if isinstance(type_, Record):
        if isinstance(value, Mapping) and set(value) == set(type_.names):
            value = [value[name] for name in type_.names]
        if isinstance(value, list | tuple) and len(value) == len(type_.items):
            return {
                name: arrow_value(item, inner)
                for name, item, inner in zip(type_.names, value, type_.items, strict=True)
            }
    if isinstance(type_, Choice):
        return _arrow_variant(value, type_)
    if isinstance(type_, Scalar) and _SCALAR[type_.kind](value):
        if type_.kind in ("f32", "f64") and isinstance(value, str):
            return _FLOATS[value]
        if type_.kind == "bytes" and isinstance(value, str):
            return base64.b64decode(value, validate=True)
        return value
    msg = f"found {shown(value)}"
    raise ValueError(msg)


def _arrow_map(value: Value, type_: Map) -> list[tuple[Value, Value]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        msg = f"found {shown(value)} where a list of pairs was declared"
        raise ValueError(msg)
    return [(arrow_value(key, type_.key), arrow_value(item, type_.item)) for key, item in pairs]


def _arrow_decimal(value: Value, type_: Decimal) -> decimal.Decimal:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = decimal.Decimal(value)
    if isinstance(value, decimal.Decimal) and value.is_finite():
        moved = _EXACT.scaleb(value, type_.scale)
        if moved == _EXACT.to_integral_value(moved) and _EXACT.abs(moved) < 10**type_.digits:
            return value
    elif is_integer(value) and abs(int(str(value))) < 10 ** (type_.digits - type_.scale):
        return decimal.Decimal(int(str(value)))
    msg = f"found {shown(value)} where a text was declared, of a number of {type_.digits} digits, {type_.scale} of them"
    msg += " after the point"
    raise ValueError(msg)


def _arrow_variant(value: Value, type_: Choice) -> dict[str, Value]:
    if isinstance(value, str) and value in type_.names and type_.items[type_.names.index(value)] == UNIT:
        return {"variant": value}
    if isinstance(value, Mapping) and len(value) == 1:
        name = next(iter(value))
        if name in type_.names:
            return {"variant": name, name: arrow_value(value[name], type_.items[type_.names.index(name)])}
    msg = f"found {shown(value)} where an enum of {', '.join(type_.names)} was declared"
    raise ValueError(msg)


def is_integer(value: Value) -> bool:
    """Return whether a value is an integer; a boolean is none.

    Examples
    --------
    >>> is_integer(1), is_integer(True)
    (True, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def integer(value: Value) -> int:
    """Return a diff, a count or a change of one; raises `InvalidUsageError`."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"could not read a count: found {shown(value)} in place of an integer"
        raise InvalidUsageError(msg, hint="give integers as diffs, counts and changes")
    return value


def _is_float(value: Value) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in list(_FLOATS)


def _is_f32(value: Value) -> bool:
    return _is_float(value) and not (isinstance(value, int | float) and abs(value) > _MOST_F32)


_SCALAR: dict[str, Callable[[Value], bool]] = {
    **{f"{sign}{bits}": is_integer for sign in "ui" for bits in (8, 16, 32, 64)},
    "bool": lambda value: isinstance(value, bool),
    "f32": _is_f32,
    "f64": _is_float,
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, str | bytes),
    **dict.fromkeys(WIRE_KINDS, is_integer),
    "unit": lambda value: value is None,
}


def rows_to_records(rows: Sequence[Value], type_: Type) -> pa.RecordBatch:
    """Put records that are plain Python or JSON values into columns.

    Raises
    ------
    ValueError
        If one is no value of the type (pyarrow's own errors are of this class).

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> rows_to_records([("a", 1)], parse_type("(string, u64)")).num_columns
    2
    """
    schema = arrow_schema(type_)
    columns = columns_of(type_)
    whole = len(columns) == 1 and not (isinstance(type_, Record) and type_.kind in ("tuple", "struct"))
    values = [arrow_value(row, type_) for row in rows]
    arrays = []
    for name, item in columns:
        column = values if whole else [value[name] for value in values]  # type: ignore[index]
        try:
            array = pa.array(column, schema.field(name).type)  # takes integers for dates and timestamps
        except (pa.ArrowException, OverflowError) as error:
            msg = f"found {shown(str(error))}"
            raise ValueError(msg) from error
        if array.null_count and not isinstance(item, Option) and item != UNIT:
            msg = "found null"
            raise ValueError(msg)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def records_to_rows(records: pa.RecordBatch | pa.Table, type_: Type) -> list[Value]:
    """Return records as JSON values.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> type_ = parse_type("(string, u64)")
    >>> records_to_rows(rows_to_records([("a", 1)], type_), type_)
    [['a', 1]]
    """
    records = plain(records)
    if isinstance(type_, Record) and type_.kind in ("tuple", "struct"):
        return [json_value(row, type_) for row in records.to_pylist()]
    return [json_value(value, type_) for value in records.column(0).to_pylist()]


def plain(records: pa.RecordBatch | pa.Table) -> pa.Table:
    """Return records whose dates and timestamps are integers, at any depth: Python's own reach from year 1 to 9999.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> type_ = parse_type("{d: date_days}")
    >>> plain(rows_to_records([[-(1 << 31)]], type_)).to_pylist()
    [{'d': -2147483648}]
    """
    columns = [values.cast(plain_type(values.type)) for values in records.columns]
    return pa.table(columns, names=records.schema.names)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return a type with integers for dates and timestamps, in which all may be null: so Arrow casts what is.

    Examples
    --------
    >>> plain_type(pa.list_(pa.date32()))
    ListType(list<item: int32>)
    """
    if pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_map(type_):
        return pa.map_(plain_type(type_.key_type), plain_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(plain_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, plain_type(field.type)) for field in type_])
    return type_


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
    _check_kind(values.type, type_, column)
    try:
        return _cast(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfit(type_, column, f"{values.type}, {shown(str(error))}") from error


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast; a field that is never null may be so where the struct around it is missing, as Parquet has it.

    Arrow's own cast refuses that.
    """
    found = values.type
    if found == wanted or not _has_structs(wanted):
        return values.cast(wanted)
    missing = values.is_null()
    if pa.types.is_struct(wanted):
        by_name = dict(zip([field.name for field in found], values.flatten(), strict=True))
        parts = [by_name[field.name] for field in wanted]
        for field, part in zip(wanted, parts, strict=True):
            if not field.nullable and pc.any(pc.and_not(part.is_null(), missing)).as_py():
                msg = f"nulls in field {field.name!r}"
                raise pa.ArrowInvalid(msg)
        fields = [_cast(part, field.type) for field, part in zip(wanted, parts, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=missing)
    if pa.types.is_map(wanted):
        ends = np.asarray(values.offsets.to_numpy(), np.int32)
        keys, items = values.keys[ends[0] : ends[-1]], values.items[ends[0] : ends[-1]]
        if not wanted.item_field.nullable and items.null_count:
            msg = "nulls among values"
            raise pa.ArrowInvalid(msg)
        parts = [_cast(keys, wanted.key_type), _cast(items, wanted.item_type)]
        return pa.MapArray.from_arrays(pa.array(ends - ends[0]), *parts, type=wanted, mask=missing)
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    inner = values.flatten()
    if not wanted.value_field.nullable and inner.null_count:
        msg = "nulls among elements"
        raise pa.ArrowInvalid(msg)
    return pa.ListArray.from_arrays(offsets, _cast(inner, wanted.value_type), type=wanted, mask=missing)


def _has_structs(type_: pa.DataType) -> bool:
    return pa.types.is_struct(type_) or any(_has_structs(type_.field(i).type) for i in range(type_.num_fields))


def _check_kind(found: pa.DataType, type_: Type, column: str) -> None:
    """Refuse a type whose values a cast would turn into others."""
    if found == arrow_type(type_):
        return
    if isinstance(type_, Option):
        _check_kind(found, type_.item, column)
    elif isinstance(type_, Vec) and (pa.types.is_list(found) or pa.types.is_large_list(found)):
        _check_kind(found.value_type, type_.item, f"{column}[]")
    elif isinstance(type_, Map) and pa.types.is_map(found):
        _check_kind(found.key_type, type_.key, f"{column} (keys)")
        _check_kind(found.item_type, type_.item, f"{column} (values)")
    elif isinstance(type_, Record | Choice) and pa.types.is_struct(found):
        # The first field of an enum is the name of its variant.
        types: dict[str, Type] = {"variant": Scalar("string")} if isinstance(type_, Choice) else {}
        types |= dict(zip(type_.names, type_.items, strict=True))
        for name in arrow_type(type_).names:
            if found.get_field_index(name) < 0:
                raise _unfit(type_, column, f"no field {name!r} in {found}")
            _check_kind(found.field(name).type, types[name], f"{column}.{name}")
    elif not _same_kind(found, arrow_type(type_)):
        raise _unfit(type_, column, str(found))


def _same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may stand for those of another without a change of meaning."""
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(found) or (pa.types.is_decimal(found) and found.scale == 0)
    if pa.types.is_decimal(wanted):
        return pa.types.is_decimal(found) or pa.types.is_integer(found)
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(found) and (found.tz is None) == (wanted.tz is None)
    if pa.types.is_date(wanted):
        return pa.types.is_date(found)
    if pa.types.is_floating(wanted):
        return pa.types.is_floating(found) and found.bit_width <= wanted.bit_width
    texts = (pa.string(), pa.large_string(), pa.string_view())
    if wanted in texts:
        return found in texts
    return wanted == pa.binary() and found in (*texts, pa.large_binary(), pa.binary_view())


def _unfit(type_: Type, column: str, found: str) -> SchemaMismatchError:
    msg = f"could not write column {column!r} as {type_text(type_)}: found {found}"
    hint = "declare a type that holds all its values, cast the column (--cast), or leave it out (--columns)"
    return SchemaMismatchError(msg, hint=hint, context={"column": column})
