"""Records with structs that may be missing are exported, and come back: Parquet keeps no values inside of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import SchemaMismatchError
from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.jsonl import JsonLines
from spark_timely.interop.records import fitted, rows_to_records
from spark_timely.interop.schema import parse_type
from spark_timely.interop.writer import capture_bytes
from spark_timely.log.log import create_log

RECORDS: dict[str, list[Any]] = {
    "Option<(i64, String)>": [None, (1, "x"), (2, "")],
    "Option<{a: u8, b: Option<String>}>": [None, (1, None), (2, "é")],
    "Option<Duration>": [None, (3, 4)],
    "Vec<Option<(u64, bool)>>": [[], [None], [(7, True), None, (8, False)]],
    "Option<Vec<(u64, u8)>>": [None, [], [(1, 2), (3, 4)]],
    "map<string, Option<(i64, i64)>>": [[], [("a", None), ("b", (1, 2))]],
    "Option<map<string, (i64, i64)>>": [None, [], [("b", (1, 2))]],
    "Option<(Option<(u8, u8)>, Vec<Option<(u8, u8)>>)>": [None, (None, [None]), ((1, 2), [(3, 4), None])],
    "enum{A, B{x: u8, y: String}}": ["A", {"B": {"x": 1, "y": "é"}}, "A"],
    "Option<enum{A, B((u8, u8))}>": [None, "A", {"B": (1, 2)}],
    "(Option<(i64, i64)>, u8)": [(None, 1), ((5, 6), 2)],
}


@pytest.mark.parametrize("json_lines", [False, True])
@pytest.mark.parametrize("timely", ["0.31", "0.32"])
@pytest.mark.parametrize("record", RECORDS)
def test_structs_that_are_missing_come_back(record: str, timely: Any, json_lines: bool, tmp_path: Path) -> None:
    types = CaptureTypes.parse("u64", record, timely=timely)
    at: Any = 3 if timely == "0.31" else [3]
    capture = tmp_path / "in.bin"
    capture.write_bytes(capture_bytes([(at, RECORDS[record]), {0: -1}], time="u64", record=record, timely=timely))
    first = create_log(tmp_path / "first", types.payload, minimum=(0,))
    StreamImport(first, "w", types, name="x").take_file(str(capture))
    (done,) = export_log(first, tmp_path / "out", json_lines=json_lines)
    again = create_log(tmp_path / "again", types.payload, minimum=(0,))
    wrap = (lambda file: JsonLines(file, types.time, types.record, timely=timely)) if json_lines else None
    StreamImport(again, "w", types, name="x").take_file(done.path, wrap=wrap)
    assert again.verify().digest == first.verify().digest
    found = again.messages()
    # As they were given, and not as either log has them.
    expected = rows_to_records(RECORDS[record], parse_type(record))
    assert found.select(expected.schema.names).to_pylist() == expected.to_pylist()


PAIRS = pa.struct([("f0", pa.int64()), ("f1", pa.int64())])


@pytest.mark.parametrize(
    ("record", "type_", "value", "said"),
    [
        (
            "Option<(i64, i64)>",
            PAIRS,
            {"f0": None, "f1": 1},
            "field 'f0'",
        ),
        ("Vec<(i64, i64)>", pa.list_(PAIRS), [None], "among elements"),
        (
            "map<string, (i64, i64)>",
            pa.map_(pa.string(), PAIRS),
            [("a", None)],
            "among values",
        ),
    ],
)
def test_nulls_where_none_may_be_are_refused(record: str, type_: pa.DataType, value: Any, said: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"nulls .*{said}|nulls {said}"):
        fitted(pa.array([value], type_), parse_type(record), column="value")


def test_slices_are_cast_as_they_are() -> None:
    values: list[Any] = [None, [{"f0": 1, "f1": 2}, None], [], [{"f0": 3, "f1": 4}], None]
    for low in range(5):
        part = pa.array(values, pa.list_(PAIRS))[low:4]
        assert fitted(part, parse_type("Option<Vec<Option<(i64, i64)>>>"), column="v").to_pylist() == values[low:4]
    entries: list[Any] = [None, [("a", {"f0": 1, "f1": 2}), ("b", None)], [], [("c", {"f0": 3, "f1": 4})]]
    for low in range(4):
        part = pa.array(entries, pa.map_(pa.string(), PAIRS))[low:]
        found = fitted(part, parse_type("Option<map<string, Option<(i64, i64)>>>"), column="v")
        assert found.to_pylist() == entries[low:]
