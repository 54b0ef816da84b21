"""Contents of a collection as of a time, through the source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_timely
from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.reader import read_split, read_splits
from spark_timely.datasource.splits import restrict_layout, split_batch
from spark_timely.errors import InvalidBoundsError, MultiplicityOverflowError, NegativeMultiplicityError
from spark_timely.log import MemoryLog
from spark_timely.trace.updates import Updates
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
    summed = consolidated(found)
    assert summed.sort_by("v").to_pylist() == [{"v": 2, "_diff": 1}, {"v": 3, "_diff": 2}]


@pytest.mark.parametrize("snapshot", ["true", "false"])
def test_a_read_that_ends_where_it_begins_has_no_rows(snapshot: str) -> None:
    """The end is exclusive, as that of Materialize's SUBSCRIBE: also where contents were asked for."""
    options = {"asOf": "1", "snapshot": snapshot}
    assert read_all(contents(), upTo="1", **options).num_rows == 0
    assert read_all(contents(), upTo="2", **options).num_rows == (2 if snapshot == "true" else 0)
    with pytest.raises(
        InvalidBoundsError, match=r"found asOf=\[1\], upTo=\[0\] — hint: give a upTo that is not before"
    ):
        read_all(contents(), upTo="0", **options)


def consolidated(rows: pa.Table) -> pa.Table:
    diffs = rows.column("_diff").to_numpy()
    return Updates.contents(rows.select(["v"]), diffs).consolidated(partial=True).as_table()


def sums_of(rows: pa.Table) -> dict[object, int]:
    """Sum in Python, whose integers have no end."""
    found: Counter[object] = Counter()
    for row in rows.to_pylist():
        found[row["v"]] += row["_diff"]
    return {value: diff for value, diff in found.items() if diff}


HUGE = st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 2**32, 2**32 - 1, -1, 0, 1]) | st.integers(-9, 9)


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), HUGE), max_size=30))
def test_no_sum_of_diffs_wraps_around(updates: list[tuple[int | None, int]]) -> None:
    """What does not fit into 64 bits stays as several rows; what does is one row."""
    values, diffs = [v for v, _ in updates], [d for _, d in updates]
    rows = pa.table({"v": pa.array(values, pa.int64()), "_diff": pa.array(diffs, pa.int64())})
    found = consolidated(rows)
    wanted = sums_of(rows)
    assert sums_of(found) == wanted
    often = Counter(found["v"].to_pylist())
    assert {v for v, n in often.items() if n == 1} == {v for v, d in wanted.items() if -(2**63) <= d < 2**63}


def huge_log(*diffs: int) -> MemoryLog:
    log = make_log(kind="collection", merge_every=None)
    writer = log.writer(owner="w")
    for time, diff in enumerate(diffs):
        writer.append(pa.table({"_time": [time], "v": [7], "_diff": [diff]}), advance_to=time + 1)
    return log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_contents_beyond_64_bits_are_exact_or_refused(workers: str) -> None:
    most = 2**63 - 1
    log = huge_log(most, 1, -5, 6)
    # On the way it is beyond; in the end it is not, however the files are cut.
    assert log.snapshot(2).to_pylist() == [{"v": 7, "_diff": most - 4}]
    for time, total in ((1, most + 1), (2, most - 4), (3, most + 2)):
        assert sums_of(read_all(log, asOf=f"{time}", upTo=f"[{time + 1}]", workers=workers)) == {7: total}
    for time, total in ((1, most + 1), (3, most + 2)):
        with pytest.raises(MultiplicityOverflowError, match=f"v.*7.*count={total}") as caught:
            log.snapshot(time)
        assert caught.value.diff == total
    with pytest.raises(NegativeMultiplicityError, match=f"count={-most - 2}"):
        huge_log(-most, -2).snapshot(1)


def test_changes_after_the_contents_have_their_commit() -> None:
    found = read_all(contents(), asOf="1", includeMetadata="true", workers="1").sort_by("_diff").to_pylist()
    assert found[0] == {"_stream": "main", "_seq": 3, "v": 3, "_diff": -1}


def test_contents_without_their_diffs_are_summed_up_all_the_same() -> None:
    log = contents()
    options = make_options(asOf="1", upTo="[2]", workers="1")
    layout = restrict_layout(layout_of(log, options), PAYLOAD)
    (split,) = ReplayPlanner(log.another(), options, layout).plan_batch()
    found = [row for batch in read_split(split, layout, storage=log.core.storage) for row in batch.to_pylist()]
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
