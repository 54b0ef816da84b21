"""Bytes of captures whose records are columns of a log, value by value with `struct`. Shares no code with the library.

A record is its columns one after the other. What may be null is a byte 0, or a byte 1 and the value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Mapping

import pyarrow as pa

_EXACT = decimal.Context(prec=60)
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_FIXED: Mapping[pa.DataType, str] = {
    pa.bool_(): "<?",
    pa.int8(): "<b",
    pa.int16(): "<h",
    pa.int32(): "<i",
    pa.int64(): "<q",
    pa.float32(): "<f",
    pa.float64(): "<d",
}


def value_bytes(value: object, field: pa.Field) -> bytes:
    """Return a value of a column, or of a field or an element inside of one."""
    if value is None:
        assert field.nullable
        return b"\x00"
    return (b"\x01" if field.nullable else b"") + _there(value, field.type)


def _there(value: object, kind: pa.DataType) -> bytes:
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return struct.pack("<Q", len(value)) + value
    if isinstance(value, dt.datetime):
        return struct.pack("<q", (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND)
    if isinstance(value, dt.date):
        return struct.pack("<i", (value - _EPOCH.date()).days)
    if isinstance(value, decimal.Decimal):
        number = int(_EXACT.scaleb(value, kind.scale))
        # Columns of 20 digits without a point are what a log makes of u64.
        return number.to_bytes(8, "little") if kind.precision == 20 and not kind.scale else _wide(number)
    if pa.types.is_map(kind):
        assert isinstance(value, list)
        pairs = [_there(key, kind.key_type) + value_bytes(item, kind.item_field) for key, item in value]
        return struct.pack("<Q", len(pairs)) + b"".join(pairs)
    if isinstance(value, list):
        return struct.pack("<Q", len(value)) + b"".join(value_bytes(each, kind.value_field) for each in value)
    assert isinstance(value, dict)
    return b"".join(value_bytes(value[kind.field(i).name], kind.field(i)) for i in range(kind.num_fields))


def _wide(number: int) -> bytes:
    return number.to_bytes(16, "little", signed=True)


def record_bytes(row: Mapping[str, object], schema: pa.Schema) -> bytes:
    """Return a row."""
    return b"".join(value_bytes(row[field.name], field) for field in schema)


def messages_in(data: bytes, width: int) -> list[tuple[bytes, int, bytes]]:
    """Return of each event of messages its time, the number of its records, and their bytes.

    Parameters
    ----------
    data : bytes
        Of a whole capture.
    width : int
        Bytes of a time.
    """
    found = []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        body, data = data[8 : 8 + length], data[8 + length :]
        kind, rest = body[:4], body[4:]
        if kind == b"\x01\x00\x00\x00":
            found.append((rest[:width], struct.unpack_from("<Q", rest, width)[0], rest[width + 8 :]))
        else:
            assert kind == bytes(4)
    return found
