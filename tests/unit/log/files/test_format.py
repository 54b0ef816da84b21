"""The format of a log: columns, names, types, facts."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, LogFormatError, LogMissingError, SchemaMismatchError
from spark_timely.log.files.format import METADATA_KEY, LogFormat, canonical_type, check_stream_name, has_our_name
from spark_timely.log.files.parquet import file_name, new_job

PAYLOAD = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


def test_columns_of_a_stream_log_are_in_physical_order() -> None:
    form = LogFormat.build(PAYLOAD)
    assert form.table_schema.names == [
        *("_event", "_stream", "_seq", "_time", "_delta", "_count", "_reason", "_at", "_query", "_batch", "_step"),
        *("_rows", "_min_time", "_max_time", "_epoch", "_note", "id", "text"),
    ]
    assert form.data_columns == ("_stream", "_seq", "_time", "id", "text")
    assert [f.name for f in form.table_schema if not f.nullable] == ["_event"]


def test_formats_are_equal_whatever_was_asked_of_them() -> None:
    used, fresh = LogFormat.build(PAYLOAD), LogFormat.build(PAYLOAD)
    assert used.data_schema.names
    assert used.progress_schema.names
    assert used == fresh
    assert hash(used) == hash(fresh)
    assert "data_schema" not in repr(used)
    assert repr(used) == repr(fresh)


def test_columns_of_a_collection_in_product_order() -> None:
    form = LogFormat.build(PAYLOAD, times=("long", "date"), kind="collection")
    names = form.table_schema.names
    assert names[3:6] == ["_time_0", "_time_1", "_diff"]
    assert {"_min_time_0", "_min_time_1", "_max_time_0", "_max_time_1"} <= set(names)
    assert form.table_schema.field("_max_time_1").type == pa.date32()
    assert form.dead_schema.names == ["_stream", "_seq", "_time_0", "_time_1", "_diff", "_reason", "_at", "id", "text"]


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("short", pa.int16()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ],
)
def test_time_columns_have_the_type_of_the_times(kind: str, type_: pa.DataType) -> None:
    form = LogFormat.build(PAYLOAD, times=(kind,))
    for name in ("_time", "_min_time", "_max_time"):
        assert form.progress_schema.field(name).type == type_


def test_facts_come_back_from_the_table() -> None:
    form = LogFormat.build(PAYLOAD, times=("short", "timestamp"), minimum=(3, "us:4"), kind="collection")
    schema = form.table_schema
    assert all(f.nullable for f in schema if f.name in PAYLOAD.names)
    metadata = {k.decode(): v.decode() for k, v in schema.field("_event").metadata.items()}
    back = LogFormat.from_table(schema, metadata, "log")
    assert back == form
    assert back.payload.field("id").nullable is False
    assert pickle.loads(pickle.dumps(form)) == form


@pytest.mark.parametrize(
    ("change", "error", "found"),
    [
        ({"version": 5}, LogFormatError, "format version=5, this library uses 2, 3 and 4 — hint: upgrade"),
        (
            {"version": 1},
            LogFormatError,
            "format version=1, this library uses 2, 3 and 4 — hint: replay the log with the version",
        ),
        ({"version": "x"}, LogFormatError, "unreadable facts"),
        ({"guardedFrom": None}, LogFormatError, "unreadable facts"),
        ({"times": ["nanoseconds"]}, LogFormatError, "unreadable facts"),
        ({"kind": None, "times": 7}, LogFormatError, "unreadable facts"),
    ],
)
def test_facts_that_make_no_sense_are_refused(change: dict[str, Any], error: type[Exception], found: str) -> None:
    form = LogFormat.build(PAYLOAD)
    text = json.dumps(json.loads(form.facts()) | change)
    with pytest.raises(error, match=found):
        LogFormat.from_table(form.table_schema, {METADATA_KEY: text}, "log")


def test_unknown_facts_are_left_alone() -> None:
    form = LogFormat.build(PAYLOAD)
    text = json.dumps(json.loads(form.facts()) | {"since": [7]})
    assert LogFormat.from_table(form.table_schema, {METADATA_KEY: text}, "log") == form


def test_table_without_facts_is_no_log() -> None:
    with pytest.raises(LogMissingError, match="no capture log"):
        LogFormat.from_table(PAYLOAD, {}, "log")


def test_table_that_lost_one_of_our_columns_is_refused() -> None:
    form = LogFormat.build(PAYLOAD)
    schema = form.table_schema
    schema = schema.remove(schema.get_field_index("_seq"))
    with pytest.raises(LogFormatError, match="no column '_seq'"):
        LogFormat.from_table(schema, {METADATA_KEY: form.facts()}, "log")


@pytest.mark.parametrize("name", ["_event", "_STREAM", "_time", "_diff", "_Count", "_min_time", "_epoch"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"reserved name {name!r}"):
        LogFormat.build(pa.schema([(name, pa.int64())]))


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a;b", "{", "}", "(", ")", "a\nb", "a\tb", "a=b", "a\0"])
def test_names_that_delta_forbids_are_refused(name: str) -> None:
    with pytest.raises(SchemaMismatchError, match="Delta table allows none"):
        LogFormat.build(pa.schema([(name, pa.int64())]))


def test_names_that_spark_tells_apart_are_two_columns() -> None:
    form = LogFormat.build(pa.schema([("strasse", pa.string())])).extended(pa.schema([("stra\u00dfe", pa.string())]))
    assert form.payload.names == ["strasse", "stra\u00dfe"]


def test_names_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'A' twice \(case does not count\)"):
        LogFormat.build(pa.schema([("a", pa.int64()), ("A", pa.int64())]))


@pytest.mark.parametrize("name", ["ünïcödé", "日本", "a.b", "x-y", "_mine", "_time_7"])
def test_other_names_are_taken(name: str) -> None:
    assert LogFormat.build(pa.schema([(name, pa.int64())])).payload.names == [name]


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.large_string(), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("ms", "Asia/Kathmandu"), pa.timestamp("us", "UTC")),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.decimal256(10, 2), pa.decimal128(10, 2)),
        (pa.large_list(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
        (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int8()))),
        (pa.struct([("x", pa.uint16())]), pa.struct([("x", pa.int32())])),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    ],
)
def test_types_are_kept_as(found: pa.DataType, kept: pa.DataType) -> None:
    assert canonical_type(found) == kept


@pytest.mark.parametrize(
    "type_",
    [pa.null(), pa.time32("s"), pa.duration("s"), pa.decimal256(50, 2), pa.struct([("x", pa.time64("us"))])],
)
def test_types_that_a_table_has_not_are_refused(type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"column 'c(\.x)?'"):
        canonical_type(type_, "c")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"kind": "table"}, "kind='table'"),
        ({"times": ()}, "no types"),
        ({"times": ("uint64",)}, "uint64"),
        ({"times": ("long",) * 9}, "9 time coordinates"),
        ({"minimum": (0, 0)}, "minimum"),
        ({"times": ("timestamp",), "minimum": (2013,)}, r"minimum=\(2013,\) — hint: write 2013-01-01, or us:2013 "),
        ({"times": ("date",), "minimum": 0}, "minimum=0 — hint: write 1970-01-01, or days:0 "),
    ],
)
def test_logs_that_cannot_be_are_refused(options: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidUsageError, match=found):
        LogFormat.build(PAYLOAD, **options)


def test_stream_names() -> None:
    assert check_stream_name("A_1") == "A_1"
    with pytest.raises(InvalidUsageError):
        check_stream_name("ünïcode")


KEPT = pa.struct([("id", pa.int64())])
NOTED = pa.struct([("id", pa.int64()), ("note", pa.string())])


@pytest.mark.parametrize(
    ("found", "kept", "unknown"),
    [
        (NOTED, KEPT, ["c.note"]),
        (pa.struct([("s", NOTED)]), pa.struct([("s", KEPT)]), ["c.s.note"]),
        (pa.list_(NOTED), pa.list_(KEPT), ["c.element.note"]),
        (pa.large_list(NOTED), pa.list_(KEPT), ["c.element.note"]),  # as other engines write lists
        (pa.list_(NOTED, 3), pa.list_(KEPT), ["c.element.note"]),
        (pa.map_(NOTED, NOTED), pa.map_(KEPT, KEPT), ["c.key.note", "c.value.note"]),
        # Of another type than the log's: whoever reads the values is refused.
        (pa.list_(NOTED), KEPT, []),
        (NOTED, pa.list_(KEPT), []),
        (pa.map_(NOTED, NOTED), KEPT, []),
    ],
)
def test_unknown_fields_are_named_at_any_depth(found: pa.DataType, kept: pa.DataType, unknown: list[str]) -> None:
    form = LogFormat.build(pa.schema([("c", kept)]))
    assert list(form.unknown_columns(pa.schema([("c", found)]))) == unknown


@pytest.mark.parametrize("least", [0, 7])
def test_least_time_without_a_list_is_a_time_too(least: int) -> None:
    # 0 was taken for none, and the log began at the least of its type.
    assert LogFormat.build(pa.schema([("v", pa.int64())]), minimum=least).domain.minimum == (least,)


def test_names_of_ours_are_those_that_each_version_gave() -> None:
    found = []
    for archive in (Path(__file__).parents[3] / "golden" / "logs").glob("*.tar.gz"):
        with tarfile.open(archive) as files:
            found += [name[name.index("_event=") :] for name in files.getnames() if "_event=" in name]
    files_of_ours = [name for name in found if name.endswith(".parquet")]
    assert len(files_of_ours) > 100
    assert not [name for name in files_of_ours if not has_our_name(name)]
    assert has_our_name(file_name("message", "main", 7))
    assert has_our_name(file_name("message", "main", 7, job=new_job()))
    assert has_our_name(file_name("progress", "#open", 0))
    assert has_our_name(file_name("message", "summed.", 12_345_678_901_234))


@pytest.mark.parametrize(
    "path",
    [
        "_event=message/part-00000-29dcc355-c8cd-4664-82dd-42af2d53d1f8.c000.zstd.parquet",
        "_event=message/main-000000000007-00ff.parquet",
        "_event=message/main-000000000007-00ff00ff00ff00ff.parquet.crc",
        "main-000000000007-00ff00ff00ff00ff.parquet",
        "ab/_event=message/main-000000000007-00ff00ff00ff00ff.parquet",
    ],
)
def test_names_that_others_give_are_none_of_ours(path: str) -> None:
    assert not has_our_name(path)
