"""Logs of columns of every type: exported as an independent writer would, and imported to the same canonical hash."""

from __future__ import annotations

import datetime as dt
import decimal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.jsonl import JsonLines
from spark_timely.log import MemoryLog
from spark_timely.time.domain import TimeDomain
from tests.oracles.bincode_model import messages_in, record_bytes

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
_MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))


def _decimals(digits: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**digits - 1
    context = decimal.Context(prec=60)
    return st.integers(-most, most).map(lambda number: decimal.Decimal(number).scaleb(-scale, context))


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), _integers(8)),
    "short": (pa.int16(), _integers(16)),
    "int": (pa.int32(), _integers(32)),
    "long": (pa.int64(), _integers(64)),
    "unsigned byte": (pa.uint8(), st.integers(0, 255)),
    "unsigned long": (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "string": (pa.string(), _TEXTS),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), _MOMENTS.map(lambda at: at.replace(tzinfo=dt.UTC))),
    "timestamp in Berlin": (pa.timestamp("ms", "Europe/Berlin"), st.integers(-(1 << 40), 1 << 40)),
    "timestamp without a zone": (pa.timestamp("us"), _MOMENTS),
    "decimal(10, 2)": (pa.decimal128(10, 2), _decimals(10, 2)),
    "decimal(38, 38)": (pa.decimal128(38, 38), _decimals(38, 38)),
    "decimal(38, 0)": (pa.decimal128(38, 0), _decimals(38, 0)),
}


def nested(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    def made(parts: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
        names = ["a", "type", "größe", "order-id"]
        fields = [(name, kind) for name, (kind, _) in zip(names, parts, strict=False)]
        values = {name: st.none() | each for name, (_, each) in zip(names, parts, strict=False)}
        return pa.struct(fields), st.fixed_dictionaries(values)

    lists = inner.map(lambda part: (pa.list_(part[0]), st.lists(st.none() | part[1], max_size=3)))
    keys = st.sampled_from(["string", "long", "date", "decimal(10, 2)"]).map(SCALARS.__getitem__)
    maps = st.tuples(keys, inner).map(
        lambda pair: (
            pa.map_(pair[0][0], pair[1][0]),
            st.lists(st.tuples(pair[0][1], st.none() | pair[1][1]), max_size=3, unique_by=lambda entry: entry[0]),
        )
    )
    return lists | maps | st.lists(inner, min_size=1, max_size=3).map(made)


KINDS = st.recursive(st.sampled_from(sorted(SCALARS)).map(SCALARS.__getitem__), nested, max_leaves=4)
TIMES: dict[str, tuple[tuple[str, ...], int]] = {
    "long": (("long",), 8),
    "int": (("int",), 4),
    "short": (("short",), 2),
    "date": (("date",), 4),
    "timestamp": (("timestamp",), 8),
    "product": (("long", "date"), 12),
    "product of three": (("timestamp", "short", "int"), 14),
}


def there_and_back(log: MemoryLog, *, json_lines: bool, files: int = 1) -> MemoryLog:
    """Export a log, and import it by the types that the export printed."""
    with tempfile.TemporaryDirectory() as folder:
        written = export_log(log, folder, files=files, json_lines=json_lines)
        types = replace(CaptureTypes.parse(written[0].time, written[0].record), timely="0.31")
        if not json_lines:
            data = b"".join(Path(each.path).read_bytes() for each in written)
            check_bytes(log, data, types.layout.width, in_order=files == 1)
        domain = types.layout.domain
        names = [type_.value for type_ in domain.types]
        other = MemoryLog.create(types.payload, times=names, minimum=domain.render_time(domain.minimum), streams=files)
        for i, each in enumerate(written):
            task = StreamImport(other, f"w{i}", types, name="x")
            task.take_file(
                each.path, wrap=lambda file: JsonLines(file, types.time, types.record) if json_lines else file
            )
    return other


def check_bytes(log: MemoryLog, data: bytes, width: int, *, in_order: bool) -> None:
    """Compare the records in captures with what an independent writer makes of the log's rows."""
    found = messages_in(data, width)
    rows = log.messages()
    wanted = [record_bytes(row, log.schema) for row in rows.select(log.schema.names).to_pylist()]
    assert sum(n for _, n, _ in found) == len(wanted)
    every = b"".join(records for *_, records in found)
    if in_order:
        assert every == b"".join(wanted)
    assert len(every) == sum(map(len, wanted))
    assert all(each in every for each in wanted)


def same(log: MemoryLog, other: MemoryLog) -> None:
    wanted, found = log.verify(), other.verify()
    assert found.legal, found.problems
    assert found.canonical_hash == wanted.canonical_hash
    assert other.messages().num_rows == log.messages().num_rows
    assert other.schema.types == log.schema.types


def log_of(schema: pa.Schema, columns: dict[str, list[Any]], times: list[tuple[int, ...]], kind: str) -> MemoryLog:
    names = TIMES[kind][0]
    domain = TimeDomain(names)
    log = MemoryLog.create(schema, times=names)
    arrays = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}

    at = domain.to_columns(np.array(times, np.int64).reshape(-1, domain.arity))
    log.writer(owner="me").append(pa.table({**at, **arrays}), advance_to=[])
    return log


@pytest.mark.parametrize("name", sorted(SCALARS))
@given(data=st.data())
@settings(max_examples=max(3, settings().max_examples // 25))
def test_column_of_each_type_comes_back(name: str, data: st.DataObject) -> None:
    kind, values = SCALARS[name]
    n = data.draw(st.integers(0, 4))
    columns = {
        "there": data.draw(st.lists(values, min_size=n, max_size=n)),
        "maybe": data.draw(st.lists(st.none() | values, min_size=n, max_size=n)),
        "many": data.draw(st.lists(st.none() | st.lists(st.none() | values, max_size=3), min_size=n, max_size=n)),
    }
    schema = pa.schema([pa.field("there", kind, nullable=False), ("maybe", kind), ("many", pa.list_(kind))])
    log = log_of(schema, columns, [(i // 2,) for i in range(n)], "long")
    for json_lines in (False, True):
        same(log, there_and_back(log, json_lines=json_lines))


@pytest.mark.parametrize("time", sorted(TIMES))
@given(data=st.data())
@settings(max_examples=max(5, settings().max_examples // 12))
def test_any_log_comes_back(time: str, data: st.DataObject) -> None:
    names = ["value", "f1", "größe", "order-id", "a.b"]
    kinds = data.draw(st.lists(KINDS, min_size=1, max_size=4))
    fields, columns = [], {}
    n = data.draw(st.integers(0, 6))
    for name, (kind, values) in zip(names, kinds, strict=False):
        nullable = data.draw(st.booleans())
        fields.append(pa.field(name, kind, nullable=nullable))
        columns[name] = data.draw(st.lists(st.none() | values if nullable else values, min_size=n, max_size=n))
    coordinates = st.tuples(*(st.integers(type_.lo, type_.hi) for type_ in TimeDomain(TIMES[time][0]).types))
    log = log_of(pa.schema(fields), columns, data.draw(st.lists(coordinates, min_size=n, max_size=n)), time)
    same(log, there_and_back(log, json_lines=data.draw(st.booleans()), files=data.draw(st.integers(1, 3))))
