"""Replay of random logs, however cut, compacted, stopped and started again, against a naive program."""

from __future__ import annotations

import json
import random
from collections import Counter

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.log import MemoryLog
from spark_timely.testing import assert_same_updates
from spark_timely.testing.driver import Checkpoint, MicroBatch
from spark_timely.testing.strategies import PAYLOAD_SCHEMA, History, column_names, histories
from tests.faults.harness import long_lane
from tests.oracles.replay_model import Frontier, ReplayModel, Time, is_beyond, less_equal
from tests.support import expected_table, frontier_from_json, frontier_set, write_commit
from tests.unit.datasource.support import ReadsAll, drive, read_all

many = settings(
    suppress_health_check=list(HealthCheck),
    max_examples=500 if long_lane() else 16,
)


def make_log(history: History, kind: str = "stream") -> tuple[MemoryLog, ReplayModel]:
    log = MemoryLog.create(
        PAYLOAD_SCHEMA, times=history.kinds, kind=kind, streams=len(history.streams), merge_every=None
    )
    return log, ReplayModel(history.minimum, len(history.streams))


def append(log: MemoryLog, model: ReplayModel, history: History, position: int) -> None:
    commit = history.commits[position]
    write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
    model.apply(commit.stream, commit.messages, commit.progress)


def draw_options(rng: random.Random) -> dict[str, str]:
    options = {"workers": rng.choice(["1", "2", "3", "8"]), "splitBy": rng.choice(["bytes", "time"])}
    for name, values in (
        ("maxTimesPerTrigger", ["1", "2", "5"]),
        ("maxRowsPerTrigger", ["1", "4"]),
        ("maxFilesPerTrigger", ["1", "3"]),
        ("maxBytesPerTrigger", ["1000", "10kb"]),
    ):
        if rng.random() < 0.3:
            options[name] = rng.choice(values)
    return options


def frontier_after(batch: MicroBatch, before: Frontier) -> Frontier:
    found = json.loads(batch.end)
    return frontier_from_json(found["frontier"]) if "frontier" in found else before


@many
@given(histories(), st.randoms(use_true_random=False))
def test_replay_any_cut_equals_the_oracle_batch_by_batch(history: History, rng: random.Random) -> None:
    log, model = make_log(history)
    checkpoint, reached = Checkpoint(), frozenset([history.minimum])
    delivered: dict[int, pa.Table] = {}
    times = column_names(history.arity)

    def check(batch: MicroBatch) -> None:
        nonlocal reached
        if batch.number in delivered:
            # Planned again from its logged offsets, by other workers and limits: the same rows.
            assert_same_updates(batch.rows, delivered[batch.number], what=f"repeated micro-batch {batch.number}")
            return
        after = frontier_after(batch, reached)
        assert all(is_beyond(time, reached) for time in after), "a frontier went back"
        expected = expected_table(model.between(reached, after), history.kinds)
        assert_same_updates(batch.rows, expected, what=f"micro-batch {batch.number}: {reached} to {after}")
        delivered[batch.number], reached = batch.rows, after

    for position in range(len(history.commits)):
        append(log, model, history, position)
        if rng.random() < 0.15:
            log.compact(target_file_size=rng.choice([1000, 1 << 20]))
        if rng.random() < 0.3:
            options = draw_options(rng)
            driver = drive(log, checkpoint=checkpoint, includeTime="true", **options)
            split_times = options["splitBy"] == "time"
            for batch in driver.available_now(fail_after=rng.choice([None, None, 0, 1])):
                check(batch)
                if split_times:
                    owners = Counter(
                        key
                        for task in batch.tasks
                        for key in set(zip(*[task.column(name).to_pylist() for name in times], strict=True))
                    )
                    assert set(owners.values()) <= {1}, "a time is in two splits"
    driver = drive(log, checkpoint=checkpoint, includeTime="true", **draw_options(rng))
    for batch in driver.available_now():
        check(batch)
    assert reached == model.frontier() == frontier_set(log.frontier())
    everything = pa.concat_tables(delivered.values())
    assert_same_updates(everything, expected_table(model.closed(), history.kinds), what="all micro-batches")
    batch_read = read_all(log, includeTime="true", workers=rng.choice(["1", "3"]))
    assert_same_updates(batch_read, everything, what="batch read")


@many
@given(histories(), st.randoms(use_true_random=False))
def test_replay_default_trigger_interleaved_with_appends(history: History, rng: random.Random) -> None:
    """Any trigger between any two commits, Trigger.Once among them."""
    log, model = make_log(history)
    driver = drive(log, includeTime="true", **draw_options(rng))
    found = []
    for position in range(len(history.commits)):
        append(log, model, history, position)
        while rng.random() < 0.5:
            batch = driver.run_one(ReadsAll() if rng.random() < 0.2 else None)
            if batch is not None:
                found.append(batch.rows)
        if rng.random() < 0.2:
            driver.crash()
    while (batch := driver.run_one()) is not None:
        found.append(batch.rows)
    rows = pa.concat_tables(found) if found else read_all(log, includeTime="true").slice(0, 0)
    assert_same_updates(rows, expected_table(model.closed(), history.kinds), what="all micro-batches")


def told(row: dict[str, object]) -> str:
    """Return a row as text; a log takes -0.0 and 0.0 for one value, and gives either."""
    return repr(sorted((k, 0.0 if isinstance(v, float) and v == 0 else v) for k, v in row.items()))


def as_written(time: tuple[int, ...], kinds: tuple[str, ...]) -> object:
    """Return a time as people write it: numbers for dates and timestamps have their unit."""
    units = {"timestamp": "us:", "date": "days:"}
    parts = [f"{units[kind]}{x}" if kind in units else x for x, kind in zip(time, kinds, strict=True)]
    return parts[0] if len(parts) == 1 else parts


@many
@given(histories(), st.data(), st.randoms(use_true_random=False))
def test_replay_from_and_up_to_any_frontier(history: History, data: st.DataObject, rng: random.Random) -> None:
    log, model = make_log(history)
    for position in range(len(history.commits)):
        append(log, model, history, position)
    seen = sorted({time for c in history.commits for time, _ in c.messages} | {history.minimum})
    lower = data.draw(st.lists(st.sampled_from(seen), min_size=1, max_size=2))
    joins = [tuple(map(max, a, b)) for a in lower for b in data.draw(st.lists(st.sampled_from(seen), max_size=2))]
    options = {
        name: json.dumps([as_written(time, history.kinds) for time in times])
        for name, times in (("startingFrontier", lower), ("upTo", joins))
    }
    batches = drive(log, includeTime="true", **options, **draw_options(rng)).available_now()
    rows = pa.concat_tables([batch.rows for batch in batches])
    closed = model.closed()
    wanted = {time: found for time, found in closed.items() if is_beyond(time, lower) and not is_beyond(time, joins)}
    assert_same_updates(rows, expected_table(wanted, history.kinds), what=f"{lower} to {joins}")
    assert_same_updates(read_all(log, includeTime="true", **options), rows, what="batch read")


@many
@given(histories(max_streams=3), st.randoms(use_true_random=False))
def test_replay_of_some_streams_is_held_back_by_these_alone(history: History, rng: random.Random) -> None:
    log, model = make_log(history)
    for position in range(len(history.commits)):
        append(log, model, history, position)
    chosen = rng.sample(history.streams, rng.randint(1, len(history.streams)))
    batches = drive(log, includeTime="true", streamFilter=",".join(chosen), **draw_options(rng)).available_now()
    rows = pa.concat_tables([batch.rows for batch in batches])
    opened = {c.stream for c in history.commits}
    if set(chosen) <= opened:
        held = [time for name in chosen for time, n in model.counts[name].items() if n > 0]
    else:
        held = list(model.frontier())
    wanted: dict[Time, list] = {}
    for commit in history.commits:
        for time, row in commit.messages:
            if commit.stream in chosen and not is_beyond(time, held):
                wanted.setdefault(time, []).append(row)
    assert_same_updates(rows, expected_table(wanted, history.kinds), what=f"streams {chosen}")


@many
@given(histories(), st.randoms(use_true_random=False))
def test_contents_and_changes_add_up_at_any_as_of(history: History, rng: random.Random) -> None:
    """As of a closed time: contents at that time, then changes at theirs; together the whole collection."""
    log, model = make_log(history, "collection")
    for position in range(len(history.commits)):
        append(log, model, history, position)
        if rng.random() < 0.1:
            log.compact()
    closed = model.closed()
    candidates = [time for time in set(closed) | {history.minimum} if not is_beyond(time, model.frontier())]
    if not candidates:
        return
    as_of = rng.choice(sorted(candidates))
    contents = rng.random() < 0.7
    text = json.dumps(as_written(as_of, history.kinds))
    options = {"asOf": text, "snapshot": str(contents).lower(), "includeTime": "true"}
    batches = drive(log, **options, **draw_options(rng)).available_now()
    found: dict[tuple, int] = Counter()
    for batch in batches:
        for row in batch.rows.to_pylist():
            diff = row.pop("_diff")
            found[told(row)] += diff
    wanted: dict[tuple, int] = Counter()
    frontier = model.frontier()
    for time, rows in closed.items():
        moved = tuple(map(max, time, as_of))
        # A change that only shows at a time which is still open waits for that.
        if is_beyond(moved, frontier) or (not contents and moved == as_of):
            continue
        for row in expected_table({moved: rows}, history.kinds).to_pylist():
            wanted[told(row)] += 1
    assert {k: n for k, n in found.items() if n} == wanted
    assert not contents or less_equal(as_of, as_of)
    again: dict[tuple, int] = Counter()
    for row in read_all(log, **options).to_pylist():
        diff = row.pop("_diff")
        again[told(row)] += diff
    assert again == found


@many
@given(histories(), st.randoms(use_true_random=False))
def test_arrival_delivers_each_commit_once_and_in_order(history: History, rng: random.Random) -> None:
    log, model = make_log(history)
    checkpoint = Checkpoint()
    limits = {
        name: value
        for name, value in (("maxRowsPerTrigger", "3"), ("maxFilesPerTrigger", "1"), ("maxBytesPerTrigger", "1500"))
        if rng.random() < 0.3
    }
    tasks: dict[int, tuple[pa.Table, ...]] = {}

    def run(*, crash: bool) -> None:
        options = {"workers": rng.choice(["1", "2", "5"]), **limits}
        driver = drive(
            log, checkpoint=checkpoint, delivery="arrival", includeTime="true", includeMetadata="true", **options
        )
        for batch in driver.available_now(fail_after=0 if crash else None):
            if batch.number in tasks:
                assert_same_updates(batch.rows, pa.concat_tables(tasks[batch.number]), what="repeated micro-batch")
            tasks[batch.number] = batch.tasks

    for position in range(len(history.commits)):
        append(log, model, history, position)
        if rng.random() < 0.15:
            log.compact(target_file_size=rng.choice([1000, 1 << 20]))
        if rng.random() < 0.3:
            run(crash=rng.random() < 0.3)
    run(crash=False)
    place: dict[str, int] = {}
    for number in sorted(tasks):
        for task in tasks[number]:
            keys = list(zip(task.column("_stream").to_pylist(), task.column("_seq").to_pylist(), strict=True))
            assert keys == sorted(keys), "rows of a split are not in the order of their commits"
            for stream, seq in keys:
                assert seq >= place.get(stream, 0)
                place[stream] = seq
    rows = pa.concat_tables([task for number in tasks for task in tasks[number]])
    everything: dict[Time, list] = {}
    for commit in history.commits:
        for time, row in commit.messages:
            everything.setdefault(time, []).append(row)
    expected = expected_table(everything, history.kinds)
    assert_same_updates(rows.select(expected.schema.names), expected, what="all commits")
    assert read_all(log, delivery="arrival", workers="3").num_rows == expected.num_rows
