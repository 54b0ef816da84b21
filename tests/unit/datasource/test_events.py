"""``content=events``: what is given out is a legal stream of its own, from whatever position."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from spark_timely.log import MemoryLog
from spark_timely.testing.driver import Checkpoint, MicroBatch
from spark_timely.testing.strategies import PAYLOAD_SCHEMA, History, column_names, histories
from tests.oracles.replay_model import ProtocolBrokenError, ReplayModel, Time
from tests.support import examples, frontier_set, write_commit
from tests.unit.datasource.support import drive

some = settings(examples(15, long=500), suppress_health_check=list(HealthCheck))


class Folded:
    """A reader of events: one stream that begins with count 1 at the minimum, judged by the oracle."""

    def __init__(self, minimum: Time) -> None:
        self.model = ReplayModel(minimum, 1)
        self.arity = len(minimum)

    def take(self, batch: MicroBatch) -> None:
        """Take the rows one by one: each must be allowed by those before it."""
        for row in batch.rows.to_pylist():
            time = tuple(_number(row[name]) for name in column_names(self.arity))
            if row["_event"] == "message":
                assert row["_delta"] is None
                self.model.apply("folded", [(time, ())], [])
            else:
                assert row["_event"] == "progress"
                self.model.apply("folded", [], [(time, row["_delta"])])


def _number(value: Any) -> int:
    return pa.scalar(value).cast(pa.int64()).as_py() if isinstance(value, int) else _ticks(value)


def _ticks(value: Any) -> int:
    array = pa.array([value])
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())[0].as_py()
    return array.cast(pa.timestamp("us", "UTC")).cast(pa.int64())[0].as_py()


def make_log(history: History) -> tuple[MemoryLog, list[int]]:
    log = MemoryLog.create(PAYLOAD_SCHEMA, times=history.kinds, streams=len(history.streams))
    return log, []


@some
@given(histories(), st.randoms(use_true_random=False))
def test_events_of_either_delivery_are_a_legal_stream(history: History, rng: random.Random) -> None:
    log, _ = make_log(history)
    model = ReplayModel(history.minimum, len(history.streams))
    delivery = rng.choice(["complete", "arrival"])
    streams = rng.random() < 0.3 and delivery == "arrival"
    chosen = rng.sample(history.streams, rng.randint(1, len(history.streams)))
    options: dict[str, str] = {"workers": rng.choice(["1", "3"])}
    if rng.random() < 0.5:
        options["maxRowsPerTrigger"] = rng.choice(["1", "5"])
    if streams:
        options["streamFilter"] = ",".join(chosen)
    elif rng.random() < 0.4:
        options |= rng.choice([{"startingFrontier": "latest"}, {"startingVersion": str(rng.randint(0, 4))}])
    checkpoint, folded, seen = Checkpoint(), Folded(history.minimum), set()

    def run(*, undisturbed: bool = False) -> None:
        driver = drive(log, checkpoint=checkpoint, delivery=delivery, content="events", **options)
        for batch in driver.available_now(fail_after=None if undisturbed else rng.choice([None, None, 0])):
            note(f"{delivery} {options}: {batch.start} to {batch.end}")
            if batch.number not in seen:
                seen.add(batch.number)
                folded.take(batch)

    for commit in history.commits:
        if rng.random() < 0.15 and commit.stream in model.counts and "late" not in log.streams():
            donor = log.core.stream(commit.stream)
            if donor is not None and not donor.closed:
                log.core.open_stream("late", owner="owner of late", donor=commit.stream)
                model.join_stream(
                    "late", commit.stream, min(t for t, n in model.counts[commit.stream].items() if n > 0)
                )
        write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
        model.apply(commit.stream, commit.messages, commit.progress)
        if rng.random() < 0.3:
            run()
    run()
    run(undisturbed=True)
    run(undisturbed=True)
    held = {time: n for time, n in folded.model.counts.get("folded", Counter({history.minimum: 1})).items() if n}
    if streams:
        wanted: Counter[Time] = Counter()
        # Before one of them is opened nothing is given out; what all of them begin with comes with the first.
        for name in chosen if model.counts.keys() & set(chosen) else ["folded"]:
            wanted.update(model.counts.get(name, {history.minimum: 1}))
        assert held == {time: n for time, n in wanted.items() if n}
    elif delivery == "arrival":
        assert frozenset(folded.model.frontier()) == model.frontier() == frontier_set(log.frontier())
    else:
        reached = json.loads(checkpoint.offsets[-1]).get("frontier", None)
        if reached is not None:
            assert set(held.values()) <= {1}
            assert folded.model.frontier() >= frozenset(held)


def test_streams_folded_into_one_begin_with_the_further_counts() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), streams=3)
    driver = drive(log, content="events", delivery="arrival")
    assert driver.run_one() is not None
    log.writer("a", owner="a").append(pa.table({"_time": [1], "v": [1]}), advance_to=2)
    batch = driver.run_one()
    assert batch is not None
    progress = [(r["_stream"], r["_time"], r["_delta"]) for r in batch.rows.to_pylist() if r["_event"] == "progress"]
    assert progress == [(None, 0, 2), ("a", 0, 1), ("#open", 0, -1), ("a", 2, 1), ("a", 0, -1)]


def test_complete_progress_rows_are_the_changes_of_the_frontier() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="a")
    writer.append(pa.table({"_time": [1, 5], "v": [1, 2]}), advance_to=6)
    driver = drive(log, content="events", startingFrontier="[3]")
    batch = driver.run_one()
    assert batch is not None
    rows = [(r["_event"], r["_stream"], r["_time"], r["_delta"], r["v"]) for r in batch.rows.to_pylist()]
    assert rows == [
        ("message", "main", 5, None, 2),
        ("progress", None, 6, 1, None),
        ("progress", None, 0, -1, None),
    ]
    writer.append(pa.table({"_time": [7], "v": [1]}), advance_to="[]")
    batch = driver.run_one()
    assert batch is not None
    assert [(r["_event"], r["_time"], r["_delta"]) for r in batch.rows.to_pylist()] == [
        ("message", 7, None),
        ("progress", 6, -1),
    ]


def test_oracle_wants_messages_before_the_progress_closing_them() -> None:
    folded = Folded((0,))
    folded.model.apply("folded", [], [((0,), -1), ((5,), 1)])
    with pytest.raises(ProtocolBrokenError):
        folded.model.apply("folded", [((4,), ())], [])
