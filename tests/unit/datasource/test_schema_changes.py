"""Columns that are added to a log while queries read it: a query keeps the columns that it has begun with."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.datasource.spark_readers import TimelyBatchReader
from spark_timely.log import Log
from spark_timely.log.log import create_log
from spark_timely.spark import read_splits
from spark_timely.spark.base.schema import arrow_schema, spark_schema
from spark_timely.testing.driver import Checkpoint, MicroBatch, StreamDriver

PAYLOAD = pa.schema([("v", pa.int64()), ("w", pa.string())])


class History:
    """A log of two streams: rows, then a column added in the middle, then rows with and without it."""

    def __init__(self, folder: Path, kind: str = "stream") -> None:
        self.path = str(folder / "log")
        self.log: Log = create_log(self.path, PAYLOAD, minimum=(0,), streams=2, kind=kind)
        self.a, self.b = (self.log.writer(name, owner=name) for name in "ab")

    def put(self, time: int, note: str | None = None) -> None:
        """Append a row to each stream, with the new column in one of them, and close the time."""
        plain = pa.table({"_time": [time], "v": [10 * time], "w": [f"w{time}"]})
        rows = plain if note is None else plain.append_column("note", pa.array([note]))
        self.a.append(rows, advance_to=time + 1)
        self.b.append(plain, advance_to=time + 1)

    def add(self) -> None:
        """Add a column, as another process does."""
        spark_timely.open_log(self.path).add_columns(pa.schema([("note", pa.string())]))


def planned(path: str, *, cached: bool = True, **options: str) -> tuple[Callable[[], Any], pa.Schema]:
    """Plan a query as Spark does: the columns are asked for once, the source goes on pickled.

    `cached`: whether the pickled source knows the columns, or is told them as a schema given by the user.
    """
    source = TimelyDataSource({"path": path, "pollInterval": "0", **options})
    schema = source.schema()
    blob = pickle.dumps(source if cached else TimelyDataSource({"path": path, "pollInterval": "0", **options}))
    return lambda: pickle.loads(blob).streamReader(schema), arrow_schema(schema)


def query(path: str, checkpoint: Checkpoint | None = None, *, cached: bool = True, **options: str) -> StreamDriver:
    make, schema = planned(path, cached=cached, **options)
    return StreamDriver(make, schema=schema, checkpoint=checkpoint)


def ran(driver: StreamDriver) -> list[MicroBatch]:
    found = []
    while (batch := driver.run_one()) is not None:
        found.append(batch)
    return found


def seen(batch: MicroBatch) -> list[dict[str, object]]:
    order = [(name, "ascending") for name in ("_time", "_stream", "v") if name in batch.rows.column_names]
    return batch.rows.sort_by(order).to_pylist()


def without_identities(text: str) -> dict[str, object]:
    found = json.loads(text)
    commits = {stream: seq for stream, (seq, _) in found["commits"].items()}
    return {**found, "log": None, "commits": commits}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("delivery", ["complete", "arrival"])
@pytest.mark.parametrize("content", ["messages", "events"])
def test_running_query_keeps_its_columns_until_a_restart(
    tmp_path: Path, content: str, delivery: str, cached: bool
) -> None:
    options = {"content": content, "delivery": delivery, "includeTime": "true", "includeMetadata": "true"}
    changed, plain = History(tmp_path / "changed"), History(tmp_path / "plain")
    running = query(changed.path, cached=cached, **options)
    other = query(plain.path, **options)
    batches: list[tuple[MicroBatch, MicroBatch]] = []

    def step(note: str | None = None) -> None:
        for history in (changed, plain):
            history.put(len(batches) + 1, note if history is changed else None)
        (mine,), (its,) = ran(running), ran(other)
        batches.append((mine, its))

    step()
    changed.add()
    assert running.run_one() is None
    step("x")
    step()
    for mine, its in batches:
        # Same offsets but for the identities of the log and its commits, same rows, same columns.
        assert (without_identities(mine.end), mine.number) == (without_identities(its.end), its.number)
        assert mine.rows.schema.equals(its.rows.schema)
        assert seen(mine) == seen(its)
    # The last micro-batch is repeated by a new process with the new column, and the query goes on with it.
    running.checkpoint.n_committed -= 1
    restarted = query(changed.path, running.checkpoint, **options)
    changed.put(len(batches) + 1, "y")
    again, following = ran(restarted)
    assert again.end == batches[-1][0].end
    assert again.rows.column("note").to_pylist() == [None] * again.rows.num_rows
    assert again.rows.select(batches[-1][0].rows.column_names).num_rows == batches[-1][0].rows.num_rows
    assert following.rows.num_rows >= 2
    assert sorted(map(str, following.rows.column("note").to_pylist())).count("y") == 1


def test_restart_reads_rows_from_before_and_after_the_change(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.put(1)
    history.add()
    history.put(2, "x")
    (batch,) = ran(query(history.path, includeTime="true"))
    found = sorted((row["_time"], row["v"], row["w"], str(row["note"])) for row in seen(batch))
    assert found == [(1, 10, "w1", "None"), (1, 10, "w1", "None"), (2, 20, "w2", "None"), (2, 20, "w2", "x")]


@pytest.mark.parametrize("columns", [None, "w,v", "v"])
@pytest.mark.parametrize("merged", [False, True])
def test_plan_of_before_is_read_after_and_the_reverse(tmp_path: Path, columns: str | None, merged: bool) -> None:
    """Planned before the column, read after it and (`merged`) after a merge of the files; and planned after it."""
    options = {} if columns is None else {"columns": columns}
    history = History(tmp_path)
    history.put(1)
    make, schema = planned(history.path, **options)
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    before = reader.partitions(start, end)
    history.add()
    history.put(2, "x")
    if merged:
        spark_timely.open_log(history.path).compact()
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    after = reader.partitions(end, later)
    copy = pickle.loads(pickle.dumps(make()))
    for plan, time in ((before, 1), (after, 2)):
        batches = [batch for part in plan for batch in copy.read(part)]
        table = pa.Table.from_batches(batches, schema)  # refuses any other schema
        expected = {"v": 10 * time, "w": f"w{time}"}
        assert table.to_pylist() == [{name: expected[name] for name in schema.names}] * 2


def test_earlier_splits_are_read_and_new_ones_have_the_column(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.put(1)
    running = query(history.path, content="splits", splitBy="time")
    (first,) = ran(running)
    history.add()
    history.put(2, "x")
    (second,) = ran(running)
    for batch, time in ((first, 1), (second, 2)):
        (rows,) = read_splits(batch.rows.to_batches())
        assert rows.column_names == ["_time", "v", "w"]
        assert rows.to_pylist() == [{"_time": time, "v": 10 * time, "w": f"w{time}"}] * 2
    (third,) = ran(query(history.path, content="splits"))
    tables = list(read_splits(third.rows.to_batches(), columns=["v", "note"]))
    found = sorted(map(str, pa.concat_tables(tables).to_pylist()))
    assert found == sorted(
        [str({"v": 10, "note": None})] * 2 + [str({"v": 20, "note": None}), str({"v": 20, "note": "x"})]
    )


def test_contents_keep_the_columns_of_the_query(tmp_path: Path) -> None:
    history = History(tmp_path, kind="collection")
    history.put(1)
    running = query(history.path, asOf="2", workers="1")
    history.add()
    history.put(2, "x")
    contents, *changes = ran(running)
    # Rows that differ in the new column alone are one row of the query's.
    assert sorted(map(str, contents.rows.to_pylist())) == [
        str({"_diff": 2, "v": 10 * time, "w": f"w{time}"}) for time in (1, 2)
    ]
    assert not changes
    (fresh,) = ran(query(history.path, asOf="2", workers="1"))
    assert sorted(map(str, fresh.rows.column("note").to_pylist())) == ["None", "None", "x"]


def test_batch_read_sees_the_newest_columns(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.put(1)
    source = TimelyDataSource({"path": history.path})
    old = source.schema()
    history.add()
    history.put(2, "x")
    newest = TimelyDataSource({"path": history.path})
    assert newest.schema().names == ["v", "w", "note"]
    for asked, schema in ((source, old), (newest, newest.schema()), (newest, spark_schema(PAYLOAD))):
        reader = asked.reader(schema)
        assert isinstance(reader, TimelyBatchReader)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        table = pa.Table.from_batches(batches, arrow_schema(schema))
        assert sorted(table.column("v").to_pylist()) == [10, 10, 20, 20]
        assert table.column_names == schema.names
