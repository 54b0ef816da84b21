"""Contents of a collection as of a time, through the source."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.partitions import restrict_layout, split_batch
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.reader import read_split, read_splits
from spark_timely.log.memory import MemoryLog
from spark_timely.log.snapshot import consolidate_updates
from tests.unit.datasource.support import make_options, read_all
from tests.unit.datasource.test_planner import PAYLOAD, make_log


def contents() -> MemoryLog:
    log = make_log(kind="collection", merge_every=None)
    writer = log.writer(owner="w")
    writer.append(pa.table({"_time": [0, 0], "v": [1, 2], "_diff": [1, 1]}), advance_to=1)
    writer.append(pa.table({"_time": [1, 1], "v": [1, 3], "_diff": [-1, 2]}), advance_to=2)
    writer.append(pa.table({"_time": [2], "v": [3], "_diff": [-1]}), advance_to=3)
    return log


@pytest.mark.parametrize("workers", ["1", "2", "8"])
@pytest.mark.parametrize("metadata", ["true", "false"])
def test_contents_come_from_no_one_commit(metadata: str, workers: str) -> None:
    options = {"asOf": "1", "upTo": "[2]", "includeMetadata": metadata}
    found = read_all(contents(), workers=workers, **options)
    if metadata == "true":
        assert found.column("_stream").null_count == found.column("_seq").null_count == found.num_rows
    found = found.select(["v", "_diff"])
    if workers == "1":
        assert found.sort_by("v").to_pylist() == [{"v": 2, "_diff": 1}, {"v": 3, "_diff": 2}]
    # However many splits: the same, once it is summed up.
    summed = consolidate_updates(found, PAYLOAD)
    assert summed.sort_by("v").to_pylist() == [{"v": 2, "_diff": 1}, {"v": 3, "_diff": 2}]


def test_changes_after_the_contents_have_their_commit() -> None:
    found = read_all(contents(), asOf="1", includeMetadata="true", workers="1").sort_by("_diff").to_pylist()
    assert found[0] == {"_stream": "main", "_seq": 3, "v": 3, "_diff": -1}


def test_contents_without_their_diffs_are_summed_up_all_the_same() -> None:
    log = contents()
    options = make_options(asOf="1", upTo="[2]", workers="1")
    layout = restrict_layout(layout_of(log, options), PAYLOAD)
    (split,) = ReplayPlanner(log.another(), options, layout).plan_batch()
    found = [row for batch in read_split(split, layout, storage=log.storage) for row in batch.to_pylist()]
    assert sorted(row["v"] for row in found) == [2, 3]
    assert {tuple(row) for row in found} == {("v",)}


def test_splits_of_contents_are_read_without_their_diffs(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", PAYLOAD, minimum=(0,), kind="collection")
    rows = pa.table({"_time": [0, 0, 1], "v": [1, 2, 1], "_diff": [1, 1, -1]})
    log.writer(owner="w").append(rows, advance_to=3)
    options = parse_options(SOURCE_OPTIONS, {"path": log.path, "asOf": "1", "content": "splits"})
    layout = layout_of(log, options)
    batches = [split_batch(split, layout) for split in ReplayPlanner(log, options, layout).plan_batch()]
    tables = list(read_splits(batches, columns=["v"]))
    assert pa.concat_tables(tables).to_pydict() == {"v": [2]}
