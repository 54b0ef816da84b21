"""Row groups whose statistics say that none of the keys is there are not read, and none that has one is passed over."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.log.files.footer import Footer
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.trace.keys import KeySet
from tests.property.test_dataflow import runner

DAY, EPOCH = dt.date(2026, 1, 1), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "long": (pa.int64(), lambda n: n * (1 << 50) - (1 << 62)),
    "short": (pa.int16(), lambda n: n - 50),
    "date": (pa.date32(), lambda n: DAY + dt.timedelta(days=n)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: EPOCH + (n - 50) * dt.timedelta(0, 60)),
    "unsigned": (pa.uint64(), lambda n: (1 << 63) - 50 + n),
    "text": (pa.string(), str),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_group_that_has_a_key_is_passed_over(kind: str, tmp_path: Path) -> None:
    type_, value = KINDS[kind]
    rng = random.Random(kind)
    passed_over = 0
    for turn in range(40):
        numbers: list[int | None] = sorted(rng.randrange(100) for _ in range(60))
        if turn % 2:
            rng.shuffle(numbers)
        values = [None if rng.random() < 0.1 or 40 < i < 52 else value(n) for i, n in enumerate(numbers)]
        rows = pa.table({"k": pa.array(values, type_), "v": range(60)})
        pq.write_table(rows, tmp_path / "f.parquet", row_group_size=10, write_statistics=turn % 5 > 0)
        wanted = [value(rng.randrange(100)) for _ in range(rng.randrange(3))] + [None] * rng.randrange(2)
        keys = KeySet(pa.table({"k": pa.array(wanted, type_)}), ["k"])
        with pq.ParquetFile(tmp_path / "f.parquet") as file:
            may = Footer(file.metadata, file.schema_arrow).may_have(keys)[1:6].tolist()
        for group, found in zip(range(1, 6), may, strict=True):
            has = any(each in wanted for each in values[10 * group : 10 * group + 10])
            assert found or not has
            passed_over += not found
    assert (passed_over > 20) == (kind != "unsigned")


def test_a_file_with_another_type_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": pa.array([1, 2], pa.int32())}), tmp_path / "f.parquet")
    with pq.ParquetFile(tmp_path / "f.parquet") as file:
        footer = Footer(file.metadata, file.schema_arrow)
    assert footer.may_have(KeySet(pa.table({"k": [7]}), ["k"])).tolist() == [True]
    assert footer.may_have(KeySet(pa.table({"j": [7]}), ["j"])).tolist() == [True]
    assert footer.may_have(KeySet(pa.table({"k": pa.array([7], pa.int32())}), ["k"])).tolist() == [False]


def test_a_look_reads_the_files_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create_log(tmp_path / "in", pa.schema([("k", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="me")
    scope = Scope("flow")
    scope.replay(log).aggregate(by="k", over="history", n=count()).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, indexing=Indexing(10**9))
    for time in range(5):
        writer.append(
            pa.table({"_time": [time] * 2000, "k": range(2000 * time, 2000 * time + 2000)}), advance_to=time + 1
        )
        engine.advance(runner(scope.storage))
    seen: list[int] = []
    found = KeySet.of

    def of(self: KeySet, rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.num_rows)
        return found(self, rows)

    monkeypatch.setattr(KeySet, "of", of)
    writer.append(pa.table({"_time": [5] * 2, "k": [4001, 4002]}), advance_to=6)
    engine.advance(runner(scope.storage))
    assert sum(seen) == 2000
    rows = open_log(tmp_path / "out").snapshot(5).to_pylist()
    assert sorted(row["n"] for row in rows)[-3:] == [1, 2, 2]
    assert len(rows) == 10_000
