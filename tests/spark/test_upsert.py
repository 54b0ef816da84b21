"""Upserts through real Spark: two tasks in one query over a log of changes, started again as it grows."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spark_timely as st
from spark_timely.errors import OwnershipError, PlanMismatchError
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


def test_a_refused_start_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    log = st.create_log(str(tmp_path / "changes"), SCHEMA, minimum=(0,))
    log.writer(owner="test").append(
        pa.table({"_time": [1], "id": [7], "at": [1], "op": ["I"], "v": ["a"]}), advance_to=2
    )
    out = tmp_path / "out"

    def logs_in_it() -> list[Path]:
        return sorted(path for path in out.rglob("_delta_log"))

    first = st.ContinualTask.upsert("first", input=log, output=out, **TAKES)
    assert first.start(spark, trigger="availableNow").await_termination(120)
    before = logs_in_it()
    assert len(before) == 2
    # What a log remembers is a log of its own, named by what it remembers: another one for each of these.
    for name, options, error in (
        ("first", {**TAKES, "keys": ["id", "v"]}, PlanMismatchError),
        ("first", {**TAKES, "tombstones": 30}, PlanMismatchError),
        ("other", TAKES, OwnershipError),
        ("other", {**TAKES, "keys": ["id", "v"]}, OwnershipError),
    ):
        with pytest.raises(error):
            st.ContinualTask.upsert(name, input=log, output=out, **options).start(spark, trigger="availableNow")
        assert logs_in_it() == before, (name, options)
    # Without what it remembers, which is gone, it is the same task still.
    shutil.rmtree(out / "_spark_timely")
    again = st.ContinualTask.upsert("first", input=log, output=out, **TAKES)
    assert again.start(spark, trigger="availableNow").await_termination(120)
    assert len(logs_in_it()) == 2
    assert st.open_log(out).snapshot(1).select(["id", "v"]).to_pylist() == [{"id": 7, "v": "a"}]
