"""Upserts through real Spark: two tasks in one query over a log of changes, started again as it grows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spark_timely as st
from tests.oracles.upsert import Row, Rules, applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("op", pa.string()), ("v", pa.string())])
TAKES: dict[str, Any] = {"keys": "id", "sequence_by": "at", "delete_when": "op = 'D'", "except_columns": ["op"]}
COLUMNS = ["id", "at", "v"]

CHANGES: list[tuple[int, tuple[int, int | None, str, str | None]]] = [
    (1, (7, 10, "I", "a")),
    (1, (8, 11, "I", "b")),
    (2, (7, 30, "U", "c")),
    (2, (8, 25, "D", None)),
    # Late: between two versions, and before the delete.
    (4, (7, 20, "U", "d")),
    (4, (8, 20, "U", "e")),
    (5, (9, 40, "I", "f")),
    (5, (9, None, "I", "without")),
    (5, (7, 50, "D", None)),
]


def rows_at(time: int, *, history: bool) -> Counter[Any]:
    rows: list[Row] = [dict(zip(SCHEMA.names, row, strict=True)) for when, row in CHANGES if when <= time]
    return applied(rows, Rules(["id"], ["at"], COLUMNS, lambda row: row["op"] == "D", history=history))


def test_a_table_and_its_versions_follow_a_log_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    log = st.create_log(str(tmp_path / "changes"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="test")
    with_time = pa.schema([("_time", pa.int64()), *SCHEMA])

    def tasks() -> list[st.Dataflow]:
        return [
            st.ContinualTask.upsert("current", input=log, output=tmp_path / "current", **TAKES),
            st.ContinualTask.upsert("versions", input=log, output=tmp_path / "versions", history=True, **TAKES),
        ]

    for times in (range(3), range(3, 6)):
        mine = [{"_time": t, **dict(zip(SCHEMA.names, row, strict=True))} for t, row in CHANGES if t in times]
        writer.append(pa.Table.from_pylist(mine, schema=with_time), advance_to=times.stop)
        current, versions = tasks()
        query = current.start(spark, trigger="availableNow", beside=[versions])
        assert query.await_termination(120)
        assert query.failures() == []
    for name, history in (("current", False), ("versions", True)):
        table = st.open_log(str(tmp_path / name))
        for time in range(6):
            found = table.snapshot(time).drop_columns(["_diff"])
            assert Counter(tuple(row.items()) for row in found.to_pylist()) == rows_at(time, history=history), time
    text = tasks()[0].explain()
    assert "hidden _kept_deleted" in text
    assert "set apart 1 rows" in text

    seen = st.snapshot(spark, str(tmp_path / "versions"), 5)
    assert {(row["id"], row["v"], row["__START_AT"], row["__END_AT"]) for row in seen.collect()} == {
        (7, "a", 10, 20),
        (7, "d", 20, 30),
        (7, "c", 30, 50),
        (8, "b", 11, 20),
        (8, "e", 20, 25),
        (9, "f", 40, None),
    }
    replayed = spark.readStream.format("timely").option("includeTime", "true").load(str(tmp_path / "current"))
    copy = replayed.writeStream.format("memory").queryName("replayed_upsert").trigger(availableNow=True).start()
    assert copy.awaitTermination(60)
    there: Counter[Any] = Counter()
    for row in spark.table("replayed_upsert").collect():
        there[row["id"], row["at"], row["v"]] += row["_diff"]
    spark.catalog.dropTempView("replayed_upsert")
    assert {row for row, n in there.items() if n} == {(9, 40, "f")}
