"""The planner, driven in Spark's order over logs in memory."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from spark_timely.datasource import catalog
from spark_timely.datasource.planner import ReplayPlanner
from spark_timely.datasource.reader import read_split
from spark_timely.errors import (
    DataLossError,
    InvalidOptionError,
    NotBeyondError,
    SinceViolationError,
    StreamMissingError,
)
from spark_timely.log import MemoryLog
from spark_timely.testing.driver import Checkpoint
from spark_timely.time.antichain import Antichain
from tests.unit.datasource.support import ReadsAll, drive, make_options, read_all

PAYLOAD = pa.schema([("v", pa.int64())])


class Wall:
    """A wall clock of the log, in whole seconds."""

    def __init__(self) -> None:
        self.now = 1_600_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def make_log(**facts: Any) -> MemoryLog:
    return MemoryLog.create(PAYLOAD, minimum=(0,) * len(facts.get("times", ("long",))), clock=Wall(), **facts)


def put(log: MemoryLog, times: list[int], to: Any, stream: str = "main") -> None:
    table = pa.table({"_time": pa.array(times, pa.int64()), "v": pa.array(times, pa.int64())})
    log.writer(stream, owner=stream).append(table, advance_to=to)


def values(batches: Any) -> list[list[int]]:
    return [sorted(batch.rows.column("v").to_pylist()) for batch in batches]


def frontiers(batches: Any) -> list[Any]:
    return [json.loads(batch.end).get("frontier") for batch in batches]


def test_initial_offset_is_the_same_however_the_log_grows() -> None:
    log = make_log()
    planner = ReplayPlanner(log.another(), make_options())
    first = json.dumps(planner.initial())
    put(log, [1, 2], 3)
    planner.prepare_available_now()
    assert json.dumps(planner.initial()) == first
    assert json.dumps(ReplayPlanner(log.another(), make_options()).initial()) == first


def test_nothing_closed_gives_the_symbolic_offset_itself() -> None:
    log = make_log(streams=2)
    put(log, [1, 2], 3)  # a second stream is still to come
    driver = drive(log)
    first = driver.run_one()
    assert first is not None
    assert first.start == first.end
    assert first.rows.num_rows == 0
    assert driver.run_one() is None
    put(log, [4], 5, "other")
    assert values([driver.run_one()]) == [[1, 2]]


def test_unchanged_frontier_is_the_start_offset_byte_for_byte() -> None:
    log = make_log()
    put(log, [1], 2)
    driver = drive(log)
    batch = driver.run_one()
    assert batch is not None
    put(log, [7], 2)  # messages, and no time is closed by them
    assert driver.run_one() is None
    driver.crash()
    assert driver.run_one() is None


def test_end_offset_says_where_the_query_began_and_what_it_reads() -> None:
    log = make_log()
    put(log, [1, 5], 6)
    batch = drive(log, startingFrontier="[2]", upTo="[9]", streamFilter="main").run_one()
    assert batch is not None
    assert json.loads(batch.end) == {
        "version": 1,
        "delivery": "complete",
        "times": ["long"],
        "content": "rows",
        "until": {"upTo": [9]},
        "streams": ["main"],
        "log": log.core.log_id,
        "origin": [2],
        "frontier": [6],
        "commits": {"main": [1, log.core.ends()["main"].identity]},
    }


def test_offset_without_types_is_continued_and_gets_them() -> None:
    log = make_log()
    put(log, [1], 2)
    checkpoint = Checkpoint()
    assert values(drive(log, checkpoint=checkpoint).available_now()) == [[1]]
    old = json.loads(checkpoint.offsets[0])
    del old["times"]
    checkpoint.offsets[0] = json.dumps(old)
    assert drive(log, checkpoint=checkpoint).available_now() == []
    put(log, [2], 3)
    (batch,) = drive(log, checkpoint=checkpoint).available_now()
    assert values([batch]) == [[2]]
    commits = {name: [state.seq, state.identity] for name, state in log.core.ends().items()}
    assert json.loads(batch.end) == {**old, "times": ["long"], "frontier": [3], "commits": commits}


def test_offset_of_dates_has_their_text_which_nobody_needs() -> None:
    log = MemoryLog.create(PAYLOAD, times="date", minimum="2013-01-01", clock=Wall())
    writer = log.writer(owner="me")
    writer.append({"_time": pa.array([15868], pa.date32()), "v": [1]}, advance_to="2013-06-13")
    checkpoint = Checkpoint()
    (batch,) = drive(log, checkpoint=checkpoint).available_now()
    assert json.loads(batch.end)["iso"] == {"origin": ["2013-01-01"], "frontier": ["2013-06-13"]}
    # As an earlier version wrote it: nothing new is no micro-batch, and what comes then is read.
    old = json.loads(checkpoint.offsets[0])
    del old["iso"]
    checkpoint.offsets[0] = json.dumps(old)
    assert drive(log, checkpoint=checkpoint).available_now() == []
    writer.append({"_time": pa.array([15869], pa.date32()), "v": [2]}, advance_to="2013-06-15")
    (batch,) = drive(log, checkpoint=checkpoint).available_now()
    assert values([batch]) == [[2]]
    assert json.loads(batch.end)["iso"]["frontier"] == ["2013-06-15"]
    planner = ReplayPlanner(log.another(), make_options())
    planner.latest(planner.initial())
    assert planner.report()["iso"] == {"frontier": ["2013-06-15"]}
    # A text that was edited says nothing: the last micro-batch is planned from its numbers.
    edited = {**json.loads(checkpoint.offsets[1]), "iso": {"frontier": ["2099-01-01"]}}
    checkpoint.offsets[1] = json.dumps(edited)
    checkpoint.n_committed = 1
    assert values(drive(log, checkpoint=checkpoint).available_now()) == [[2]]


def test_last_batch_is_planned_again_from_its_offsets_alone() -> None:
    log = make_log()
    put(log, [1, 2, 3], 4)
    checkpoint = Checkpoint()
    driver = drive(log, checkpoint=checkpoint, startingFrontier="[2]", workers="1")
    first = driver.run_one(commit=False)
    assert first is not None
    put(log, [5], 6)
    # Another process, options of the beginning changed, more workers.
    again = drive(log, checkpoint=checkpoint, startingFrontier="[0]", workers="3", maxTimesPerTrigger="1").run_one()
    assert again is not None
    assert (again.number, again.end, values([again])) == (0, first.end, [[2, 3]])


def test_start_options_are_for_a_fresh_checkpoint_only() -> None:
    log = make_log()
    put(log, [1, 2], 3)
    checkpoint = Checkpoint()
    assert values(drive(log, checkpoint=checkpoint).available_now()) == [[1, 2]]
    put(log, [3, 4], 5)
    assert values(drive(log, checkpoint=checkpoint, startingFrontier="[4]").available_now()) == [[3, 4]]


@pytest.mark.parametrize("option", ["startingFrontier", "startingVersion", "startingTimestamp"])
@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_latest_is_pinned_by_one_empty_batch(option: str, delivery: str) -> None:
    log = make_log()
    put(log, [1, 2], 3)
    driver = drive(log, delivery=delivery, **{option: "latest"})
    first = driver.run_one()
    assert first is not None
    assert first.start != first.end
    assert first.rows.num_rows == 0
    put(log, [3], 4)
    driver.crash()
    assert values([driver.run_one()]) == [[3]]


def test_latest_under_available_now_delivers_nothing_and_pins() -> None:
    log = make_log()
    put(log, [1, 2], 3)
    checkpoint = Checkpoint()
    assert values(drive(log, checkpoint=checkpoint, startingFrontier="latest").available_now()) == [[]]
    put(log, [3], 4)
    assert values(drive(log, checkpoint=checkpoint, startingFrontier="latest").available_now()) == [[3]]


def test_starting_version_is_the_frontier_before_that_commit() -> None:
    log = make_log(streams=2)
    put(log, [1], 2, "a")  # a: 1
    put(log, [1], 2, "b")  # b: 1
    put(log, [3], 4, "a")  # a: 2
    put(log, [3], 4, "b")  # b: 2
    assert values(drive(log, startingVersion="0").available_now()) == [[], [1, 1, 3, 3]]
    assert values(drive(log, startingVersion="1").available_now()) == [[], [1, 1, 3, 3]]
    assert frontiers(drive(log, startingVersion="2").available_now()) == [[2], [4]]
    assert values(drive(log, startingVersion="2").available_now()) == [[], [3, 3]]
    assert values(drive(log, startingVersion="3").available_now()) == [[]]


def test_timestamps_to_begin_and_end_are_those_of_commits() -> None:
    log = make_log()
    put(log, [1], 2)
    put(log, [2], 3)
    put(log, [3], 4)
    rows = log.core.progress().to_pylist()
    moments = sorted({row["_at"] for row in rows if row["_stream"] == "main" and row["_seq"] > 0})
    texts = [moment.isoformat() for moment in moments]
    assert values(drive(log, startingTimestamp=texts[0]).available_now()) == [[], [1, 2, 3]]
    assert values(drive(log, startingTimestamp=texts[1]).available_now()) == [[], [2, 3]]
    assert values(drive(log, endingTimestamp=texts[1]).available_now()) == [[1, 2]]
    assert values(drive(log, startingTimestamp=texts[1], endingTimestamp=texts[1]).available_now()) == [[], [2]]
    assert values(drive(log, startingTimestamp="1970-01-01").available_now()) == [[], [1, 2, 3]]
    assert values(drive(log, endingTimestamp="1970-01-01").available_now()) == [[]]
    # No stream has begun by then: there is no position to move to.
    (batch,) = drive(log, delivery="arrival", endingTimestamp="1970-01-01").available_now()
    assert (batch.start, batch.rows.num_rows) == (batch.end, 0)
    for delivery in ("complete", "arrival"):
        found = read_all(log, delivery=delivery, startingTimestamp=texts[1], endingTimestamp=texts[1])
        assert found.column("v").to_pylist() == [2]


def test_ending_version_idles_and_available_now_ends() -> None:
    log = make_log()
    put(log, [1], 2)
    put(log, [2], 3)
    for delivery in ("complete", "arrival"):
        checkpoint = Checkpoint()
        options = {"delivery": delivery, "endingVersion": "1"}
        assert values(drive(log, checkpoint=checkpoint, **options).available_now()) == [[1]]
        assert drive(log, checkpoint=checkpoint, **options).available_now() == []
        # A restart may move the end.
        assert values(drive(log, checkpoint=checkpoint, delivery=delivery, endingVersion="2").available_now()) == [[2]]


def test_up_to_is_exclusive_and_a_stream_idles_past_it() -> None:
    log = make_log()
    put(log, [1, 2, 3], 4)
    driver = drive(log, upTo="[3]")
    assert values([driver.run_one()]) == [[1, 2]]
    put(log, [5], 6)
    assert driver.run_one() is None
    assert read_all(log, upTo="[3]").column("v").to_pylist() == [1, 2]


def test_available_now_is_pinned_and_keeps_the_limits() -> None:
    log = make_log()
    put(log, [1, 2, 3], 4)
    driver = drive(log, maxTimesPerTrigger="2")
    found = []
    reader = driver._started()
    reader.prepareForTriggerAvailableNow()
    put(log, [5, 6], 7)
    while (batch := driver.run_one()) is not None:
        found.append(batch)
    assert values(found) == [[1, 2], [3]]
    assert frontiers(found) == [[3], [4]]


def test_available_now_under_arrival_is_pinned() -> None:
    log = make_log()
    put(log, [1], 2)
    driver = drive(log, delivery="arrival", maxRowsPerTrigger="1")
    driver._started().prepareForTriggerAvailableNow()
    put(log, [2], 3)
    found = []
    while (batch := driver.run_one()) is not None:
        found.append(batch)
    assert values(found) == [[1]]


def test_trigger_once_overrides_the_limits() -> None:
    log = make_log()
    put(log, [1, 2, 3], 4)
    assert values([drive(log, maxTimesPerTrigger="1").run_one(ReadsAll())]) == [[1, 2, 3]]
    assert values([drive(log, maxTimesPerTrigger="1").run_one()]) == [[1]]


def test_poll_interval_answers_from_memory_but_for_available_now() -> None:
    log = make_log()
    put(log, [1], 2)
    seconds = [0.0]
    planner = ReplayPlanner(log.another(), make_options(pollInterval="200ms"), now=lambda: seconds[0])
    one = planner.latest(planner.initial())
    put(log, [2], 3)
    assert planner.latest(one) == one
    seconds[0] = 0.19
    assert planner.latest(one) == one
    seconds[0] = 0.21
    two = planner.latest(one)
    assert two["frontier"] == [3]
    put(log, [3], 4)
    planner.prepare_available_now()
    assert planner.latest(two)["frontier"] == [4]


def test_limits_hold_all_at_once() -> None:
    log = make_log()
    put(log, [1, 1, 2, 3, 3, 3, 4], 5)
    found = drive(log, maxRowsPerTrigger="3", maxTimesPerTrigger="2").available_now()
    assert values(found) == [[1, 1, 2], [3, 3, 3], [4]]


def test_time_above_a_limit_is_delivered_whole_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    log = make_log()
    put(log, [1] * 9, 2)
    (batch,) = drive(log, maxRowsPerTrigger="2").available_now()
    assert batch.rows.num_rows == 9
    assert batch.report is not None
    assert batch.report["aboveLimit"] == 1
    assert "time 1 of log 'memory' alone is above a limit" in caplog.text


def test_lag_is_reported() -> None:
    log = make_log()
    put(log, [1], 2)
    put(log, [5], 6)
    batches = drive(log, maxTimesPerTrigger="1").available_now()
    reports = [batch.report for batch in batches]
    assert [(r["frontier"], r["behindFiles"], r["behindRows"]) for r in reports if r] == [([6], 1, 1), ([6], 0, 0)]
    (batch,) = drive(log, delivery="arrival").available_now()
    assert batch.report == {"seqs": {"#open": 2, "main": 3}, "behindCommits": 0}


def test_rows_at_open_times_are_no_lag() -> None:
    log = make_log()
    put(log, [1, 9], 6)
    (batch,) = drive(log).available_now()
    assert batch.report == {"frontier": [6], "behindFiles": 0, "behindBytes": 0, "behindRows": 0}


def test_frontier_moves_without_messages_are_delivered() -> None:
    log = make_log()
    driver = drive(log)
    driver.run_one()
    log.advance("main" if "main" in log.streams() else log.writer("main", owner="o").stream, 5)
    batch = driver.run_one()
    assert batch is not None
    assert (frontiers([batch]), batch.rows.num_rows) == ([[5]], 0)


def test_complete_log_ends_at_the_empty_frontier() -> None:
    log = make_log()
    put(log, [1, 9], "[]")
    driver = drive(log)
    batch = driver.run_one()
    assert (frontiers([batch]), values([batch])) == ([[]], [[1, 9]])
    assert driver.run_one() is None


def test_product_times_are_delivered_in_lexicographic_order() -> None:
    log = make_log(times=("long", "long"))
    pairs = [(0, 5), (1, 1), (2, 0)]
    table = pa.table(
        {
            "_time_0": pa.array([a for a, _ in pairs]),
            "_time_1": pa.array([b for _, b in pairs]),
            "v": pa.array([0, 1, 2]),
        }
    )
    log.writer(owner="o").append(table, advance_to=[[3, 3]])
    found = drive(log, maxTimesPerTrigger="1").available_now()
    assert values(found) == [[0], [1], [2]]
    assert frontiers(found) == [[[1, 1], [2, 0]], [[2, 0]], [[3, 3]]]


def test_log_made_anew_at_the_same_place_is_refused() -> None:
    log, other = make_log(), make_log()
    put(log, [1], 2)
    put(other, [1], 2)
    checkpoint = Checkpoint()
    drive(log, checkpoint=checkpoint).run_one()
    driver = drive(other, checkpoint=checkpoint)
    with pytest.raises(
        DataLossError, match=r"begun with log id=.* — hint: begin .*: the log was deleted and created again"
    ):
        driver.run_one()
    checkpoint.n_committed = 0
    with pytest.raises(DataLossError, match="begun with log id="):
        drive(other, checkpoint=checkpoint).run_one()


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_checkpoint_ahead_of_the_log_is_refused(delivery: str) -> None:
    log = make_log()
    put(log, [1], 2)
    checkpoint = Checkpoint()
    drive(log, checkpoint=checkpoint, delivery=delivery).run_one()
    ahead = json.loads(checkpoint.offsets[0])
    ahead |= {"frontier": [9]} if delivery == "complete" else {"seqs": {"#open": 2, "main": 9}}
    checkpoint.offsets, checkpoint.n_committed = [json.dumps(ahead)], 0
    with pytest.raises(
        DataLossError,
        match=r"could not read .* up to .* — hint: begin with a new checkpoint: the log was restored to an earlier",
    ):
        drive(log, checkpoint=checkpoint, delivery=delivery).run_one()


def test_since_is_checked_on_every_plan() -> None:
    log = make_log()
    put(log, [1, 3, 7], 8)
    checkpoint = Checkpoint()
    assert values([drive(log, checkpoint=checkpoint, upTo="[2]").run_one()]) == [[1]]
    before = Checkpoint(checkpoint.offsets, 0)  # its last micro-batch did not end
    assert log.allow_compaction([2]) == Antichain.of(2)
    with pytest.raises(
        SinceViolationError, match=r"could not read log .* from \[0\]: found since=\[2\], moved by hand"
    ):
        drive(log, checkpoint=before).run_one()
    assert values([drive(log, checkpoint=checkpoint).run_one()]) == [[3, 7]]
    log.allow_compaction([5])
    assert values([drive(log, startingFrontier="[5]").run_one()]) == [[7]]
    with pytest.raises(SinceViolationError, match=r"from \[4\]: found since=\[5\].* — hint: begin at since or later"):
        drive(log, startingFrontier="[4]").run_one()


def test_earliest_of_a_stream_is_since() -> None:
    log = make_log()
    put(log, [1, 3, 7], 8)
    log.allow_compaction([3])
    checkpoint = Checkpoint()
    assert values([drive(log, checkpoint=checkpoint).run_one()]) == [[3, 7]]
    assert json.loads(checkpoint.offsets[0])["origin"] == [3]
    log.allow_compaction([8])
    put(log, [9], 10)
    assert values([drive(log, checkpoint=checkpoint).run_one()]) == [[9]]
    assert read_all(log)["v"].to_pylist() == [9]


def test_collection_begins_by_its_contents_as_of_since() -> None:
    log = make_log(kind="collection")
    put(log, [1, 3, 7], 8)
    log.allow_compaction([3])
    checkpoint = Checkpoint()
    contents, changes = drive(log, checkpoint=checkpoint, includeTime="true").available_now()
    assert contents.rows.sort_by("v").to_pydict() == {"_time": [3, 3], "_diff": [1, 1], "v": [1, 3]}
    assert changes.rows.to_pydict() == {"_time": [7], "_diff": [1], "v": [7]}
    assert json.loads(contents.end)["asOf"] == [3]
    log.allow_compaction([7])
    put(log, [9], 10)
    # Contents and changes are pinned as they were begun.
    (later,) = drive(log, checkpoint=checkpoint, includeTime="true").available_now()
    assert later.rows.to_pydict() == {"_time": [9], "_diff": [1], "v": [9]}
    again = Checkpoint(checkpoint.offsets[:1], 0)
    with pytest.raises(SinceViolationError, match=r"could not read log .* from \[3\]: found since=\[7\]"):
        drive(log, checkpoint=again, includeTime="true").run_one()
    with pytest.raises(SinceViolationError, match=r"could not read log .* from \[5\]: found since=\[7\]"):
        read_all(log, asOf="5")
    assert sorted(read_all(log, asOf="8")["v"].to_pylist()) == [1, 3, 7, 9]
    with pytest.raises(SinceViolationError, match=r"could not take a snapshot of log .* at 6: found since=\[7\]"):
        log.snapshot(6)


def test_changes_of_a_collection_need_what_is_before_them() -> None:
    log = make_log(kind="collection")
    put(log, [1, 5, 7], 8)
    log.allow_compaction([5])
    with pytest.raises(SinceViolationError, match=r"from \[5\]: found since=\[5\]"):
        read_all(log, startingFrontier="[5]")
    assert read_all(log, startingFrontier="[6]")["v"].to_pylist() == [7]


def test_commits_made_before_since_are_not_read_in_arrival_order() -> None:
    log = make_log()
    put(log, [1, 3], 4)
    checkpoint = Checkpoint()
    assert values([drive(log, checkpoint=checkpoint, delivery="arrival").run_one()]) == [[1, 3]]
    put(log, [5, 9], 6)
    assert log.allow_compaction([4]) == Antichain.of(4)
    assert values([drive(log, checkpoint=checkpoint, delivery="arrival").run_one()]) == [[5, 9]]
    with pytest.raises(SinceViolationError, match=r"commits .* made at frontier=\[0\]: found since=\[4\]"):
        drive(log, delivery="arrival", content="events").run_one()
    before = Checkpoint(checkpoint.offsets[:2], 1)
    log.allow_compaction([5])
    with pytest.raises(SinceViolationError, match=r"commits .* made at frontier=\[4\]: found since=\[5\]"):
        drive(log, checkpoint=before, delivery="arrival").run_one()


def test_open_as_of_is_waited_for_by_a_stream_alone() -> None:
    log = make_log(kind="collection")
    put(log, [1, 2], 3)
    driver = drive(log, asOf="5", includeTime="true")
    assert [b.rows.num_rows for b in driver.available_now()] == [0]
    with pytest.raises(NotBeyondError, match=r"asOf=5, which is not closed, frontier=\[3\] — hint: read as of a time"):
        read_all(log, asOf="5")
    put(log, [4, 6], 7)
    contents, changes = driver.available_now()
    assert contents.rows.sort_by("v").to_pydict() == {"_time": [5, 5, 5], "_diff": [1, 1, 1], "v": [1, 2, 4]}
    assert changes.rows.to_pydict() == {"_time": [6], "_diff": [1], "v": [6]}
    assert json.loads(contents.end)["asOf"] == [5]


def test_contents_as_of_a_time_are_consolidated_in_each_split() -> None:
    log = make_log(kind="collection")
    table = pa.table({"_time": [1, 2, 3, 4], "v": [7, 7, 8, 8], "_diff": [1, -1, 1, 1]})
    log.writer(owner="o").append(table, advance_to=5)
    (contents,) = drive(log, asOf="4", workers="1").available_now()[:1]
    assert contents.rows.to_pydict() == {"_diff": [2], "v": [8]}
    only_changes = drive(log, asOf="3", snapshot="false", includeTime="true").available_now()
    assert pa.concat_tables([b.rows for b in only_changes]).to_pydict() == {"_time": [4], "_diff": [1], "v": [8]}


def test_streams_that_were_not_chosen_hold_nothing_back() -> None:
    log = make_log(streams=2)
    put(log, [1], 5, "fast")
    put(log, [1], 2, "slow")
    assert frontiers(drive(log, streamFilter="fast").available_now()) == [[5]]
    assert frontiers(drive(log).available_now()) == [[2]]
    # A stream that may still open holds back like the log does.
    assert frontiers(drive(log, streamFilter="fast,later").available_now()) == [[2]]


def test_options_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(InvalidOptionError, match="found no column 'nope'"):
        drive(make_log(), columns="nope")
    with pytest.raises(InvalidOptionError, match="conflicting options 'asOf', 'startingFrontier'"):
        make_options(asOf="1", startingFrontier="[1]")


def test_exact_times_are_read_once_per_file() -> None:
    log = make_log()
    for time in range(1, 9):
        put(log, [time], time + 1)
    planner = ReplayPlanner(log.another(), make_options(maxTimesPerTrigger="1"))
    reads: list[str] = []
    inner = planner._catalog._log.core.storage.open_input

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(planner._catalog._log.core.store.storage, name)

        def open_input(self, path: str) -> Any:
            reads.append(path)
            return inner(path)

    counting = Counting()

    class Core:
        def __getattr__(self, name: str) -> Any:
            return counting if name == "storage" else getattr(log_of_planner.core, name)

    log_of_planner = planner._catalog._log
    standing_in: Any = SimpleNamespace(core=Core(), path=log_of_planner.path, domain=log_of_planner.domain)
    planner._catalog._log = standing_in
    offset = planner.initial()
    for _ in range(8):
        offset = planner.latest(offset)
    assert offset["frontier"] == [9]
    assert len(reads) == len(set(reads)) == 8


@pytest.mark.parametrize("options", [{"maxRowsPerTrigger": "1"}, {"splitBy": "time"}, {"maxBytesPerTrigger": "1"}, {}])
def test_missing_file_is_passed_over_by_plans_that_look_into_it(options: dict[str, str]) -> None:
    log = make_log(merge_every=None)
    for time in range(4):
        put(log, [time], time + 1)
    lost = log.core.files().paths[1]
    log.core.storage.delete(lost)
    pauses: list[float] = []
    with pytest.raises(
        DataLossError, match=r"found data file .* missing — hint: start the query again if files were vacuumed"
    ):
        read_by_plans(log, make_options(splitBy="time"), pauses.append)
    assert len(pauses) == 3
    pauses.clear()
    parsed = make_options(failOnDataLoss="false", **options)
    assert read_by_plans(log, parsed, pauses.append) == [0, 2, 3]
    # It is waited for once in a run.
    assert len(pauses) == (3 if options else 0)


def read_by_plans(log: MemoryLog, options: Any, pause: Any) -> list[int]:
    planner = ReplayPlanner(log.another(), options, pause=pause)
    offset, found = planner.initial(), []
    while (end := planner.latest(offset)) != offset:
        for split in planner.plan(offset, end):
            rows = read_split(split, planner.layout, storage=log.core.storage, pause=lambda _: None)
            found += [value for batch in rows for value in batch.column("v").to_pylist()]
        offset = end
    return sorted(found)


def test_commit_on_a_local_disk_is_seen_within_the_poll_interval(log_path: str) -> None:
    """Else `processAllAvailable` comes back without what was committed just before it was called."""
    log = spark_timely.create_log(log_path, pa.schema([("n", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="me")
    writer.advance([1])
    planner = ReplayPlanner(spark_timely.open_log(log_path), make_options(pollInterval="1h"), now=lambda: 0.0)
    one = planner.latest(planner.initial())
    assert one["frontier"] == [1]
    writer.advance([2])
    assert planner.latest(one)["frontier"] == [2]


def test_batch_read_of_an_unknown_stream_is_refused() -> None:
    log = make_log(streams=2)
    put(log, [1], 2, "orders")
    for delivery in ("complete", "arrival"):
        with pytest.raises(StreamMissingError, match=r"stream 'order' .* found streams=\['orders'\]"):
            read_all(log, delivery=delivery, streamFilter="order")
        # A query waits: the stream may be opened yet.
        assert values(drive(log, delivery=delivery, streamFilter="order").available_now()) == [[]]


def test_splits_of_contents_and_changes_are_numbered_through() -> None:
    log = make_log(kind="collection", merge_every=None)
    for time in range(4):
        rows = pa.table({"_time": [time], "v": [time], "_diff": [1]})
        log.writer(owner="w").append(rows, advance_to=time + 1)
    splits = ReplayPlanner(log.another(), make_options(asOf="1", workers="2")).plan_batch()
    assert [(split.number, split.n_splits) for split in splits] == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_exact_times_are_kept_of_the_last_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log()
    for low in range(0, 60, 6):  # each file reaches into the next one
        put(log, list(range(low, low + 8)), low + 6)
    put(log, [], 70)
    options = {"maxTimesPerTrigger": 5, "splitBy": "time", "workers": 2}
    wanted = drive(log, **options).available_now()
    monkeypatch.setattr(catalog, "_KEPT_TIMES", 17)
    driver = drive(log, **options)
    assert values(driver.available_now()) == values(wanted)
    kept = catalog.Catalog(log)
    for path in kept.index().paths:
        kept.exact(path)
    assert list(kept._counts) == kept.index().paths.tolist()[-2:]
    again = kept.exact(kept.index().paths[-2])
    assert kept.exact(kept.index().paths[-2]) is again
    assert kept._n_kept == sum(counts.rows.shape[0] for counts in kept._counts.values()) == 16


@pytest.mark.parametrize("found", [[5, 3, 5, 4, 3, 5], [7], []])
def test_exact_times_of_a_file_whose_footer_lacks_them(found: list[int]) -> None:
    log = make_log()
    put(log, [0], 1)
    (path,) = log.core.files().paths
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"_time": pa.array(found, pa.int64())}), content)
    log.core.storage.delete(path)
    log.core.storage.write(path, content.getvalue())
    counts = catalog.Catalog(log).exact(path)
    assert dict(zip(counts.times[:, 0].tolist(), counts.rows.tolist(), strict=True)) == Counter(found)


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1] * 6), (3, [3, 3]), (4, [4, 2])])
def test_files_of_streams_are_counted_with_their_own_commits(limit: int, sizes: list[int]) -> None:
    # Both streams have commits of the same numbers, each with a file.
    log = make_log(streams=2, merge_every=None)
    for i in range(3):
        for stream in ("a", "b"):
            put(log, [i], i + 1, stream)
    driver = drive(log, delivery="arrival", maxFilesPerTrigger=limit)
    found = [batch.rows.num_rows for batch in driver.available_now()]
    assert [n for n in found if n] == sizes


@pytest.mark.parametrize("compacted", [False, True])
def test_arrival_begins_with_what_is_left(compacted: bool) -> None:
    log = make_log()
    put(log, [1, 6], 3)
    put(log, [3, 9], 4)
    put(log, [5, 8], 6)
    log.allow_compaction([5])
    if compacted:
        log.compact(logical=True)
    checkpoint = Checkpoint()
    (first,) = drive(log, checkpoint=checkpoint, delivery="arrival").available_now()
    assert values([first]) == [[5, 6, 8, 9]]
    offset = json.loads(first.end)
    assert offset["since"] == [5]
    assert offset["origin"] == offset["seqs"]
    put(log, [7], 8)
    assert values(drive(log, checkpoint=checkpoint, delivery="arrival").available_now()) == [[7]]
    assert sorted(read_all(log, delivery="arrival")["v"].to_pylist()) == [5, 6, 7, 8, 9]
    # Planned again once since has moved on: others would come, and it is refused.
    before = Checkpoint(checkpoint.offsets[:1], 0)
    log.allow_compaction([6])
    with pytest.raises(SinceViolationError, match=r"could not begin to read log .* from \[5\]: found since=\[6\]"):
        drive(log, checkpoint=before, delivery="arrival").run_one()
