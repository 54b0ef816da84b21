"""A replay in the order captured keeps only the end of the log's progress: its answers are those of one that reads all.

Two queries follow one log as it grows: one lives through, the other begins anew before each micro-batch. What they
deliver is compared with each other and with the commits of the log.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.datasource import arrivals, recent
from spark_timely.datasource.recent import CommitBound
from spark_timely.log import MemoryLog
from spark_timely.log.core import LogCore
from spark_timely.log.machine.history import History
from spark_timely.log.machine.state import OPEN_STREAM
from spark_timely.log.reader import events_of
from spark_timely.testing.driver import MicroBatch
from spark_timely.time.antichain import Antichain
from tests.support import examples
from tests.unit.datasource.support import drive

PAYLOAD = pa.schema([("v", pa.int64())])

some = settings(examples(12, long=500), suppress_health_check=list(HealthCheck))


class Wall:
    """A clock in seconds that goes back now and then, if it may."""

    def __init__(self, rng: random.Random, *, back: bool) -> None:
        self.now, self.rng, self.back = 1_600_000_000.0, rng, back

    def __call__(self) -> float:
        self.now += self.rng.choice([1, 1, 5, -7] if self.back else [1, 5])
        return self.now


class Growing:
    """A log of several streams that append, open, join and are merged at random."""

    def __init__(self, rng: random.Random, *, back: bool) -> None:
        self.rng = rng
        self.log = MemoryLog.create(
            PAYLOAD,
            minimum=(0,),
            streams=rng.choice([1, 2]),
            clock=Wall(rng, back=back),
            merge_every=rng.choice([2, 5, None]),
        )
        self.upper: dict[str, int] = {}
        self.number = 0

    def step(self) -> None:
        live = [name for name, state in self.log.streams().items() if not state.counts.frontier.is_empty]
        what = self.rng.random()
        if not live or (what < 0.1 and len(self.upper) < 4):
            if live or self.log.core.unclaimed:
                name = f"s{len(self.upper)}"
                self.log.core.open_stream(name, owner=name)
                self.upper[name] = int(self.log.streams()[name].counts.frontier.times[0, 0])
        elif what < 0.15:
            self.log.compact()
        elif what < 0.17 and len(live) > 1:
            self.log.close(self.rng.choice(live))
        else:
            self.append(self.rng.choice(live))

    def append(self, name: str) -> None:
        low = self.upper[name]
        times = [low + self.rng.randrange(4) for _ in range(self.rng.randrange(4))]
        self.upper[name] = low + self.rng.randrange(3)
        values = list(range(self.number, self.number + len(times)))
        self.number += len(times)
        table = pa.table({"_time": pa.array(times, pa.int64()), "v": pa.array(values, pa.int64())})
        self.log.writer(name, owner=name).append(table, advance_to=self.upper[name])


def told(batch: MicroBatch | None) -> Any:
    return None if batch is None else (batch.start, batch.end, batch.rows.to_pylist())


OPTIONS = st.fixed_dictionaries(
    {"content": st.sampled_from(["messages", "events"])},
    optional={
        "maxRowsPerTrigger": st.sampled_from(["1", "4"]),
        "streamFilter": st.sampled_from(["s0", "s0,s1"]),
        "startingVersion": st.sampled_from(["0", "3"]),
        "workers": st.sampled_from(["1", "3"]),
    },
)


@some
@given(st.randoms(use_true_random=False), OPTIONS, st.sampled_from([None, "starting", "ending"]))
def test_long_query_delivers_what_a_fresh_one_does(
    rng: random.Random, options: dict[str, str], moment: str | None
) -> None:
    if moment is not None:
        options = {**options, f"{moment}Timestamp": "2020-09-13 12:27:30"}
        if moment == "starting":
            options.pop("startingVersion", None)
    # By limits the order of commits across streams shows, which goes by their clocks.
    growing = Growing(rng, back="maxRowsPerTrigger" not in options or moment is not None)
    wanted = {"delivery": "arrival", "includeMetadata": "true", **options}
    lives, anew = drive(growing.log, **wanted), drive(growing.log, **wanted)
    found: list[MicroBatch] = []
    for _ in range(rng.randrange(5, 40)):
        growing.step()
        if rng.random() < 0.5:
            continue
        anew.crash()
        batch, other = lives.run_one(), anew.run_one()
        assert told(batch) == told(other)
        found += [batch] if batch is not None else []
    while (batch := lives.run_one()) is not None and (batch.start != batch.end or batch.rows.num_rows):
        found.append(batch)
    if moment is None and "startingVersion" not in options:
        chosen = options.get("streamFilter", "").split(",") if "streamFilter" in options else None
        messages = {
            (state.stream, state.seq, value)
            for state, rows in events_of(growing.log.core)
            for value in rows["v"].to_pylist()
            if chosen is None or state.stream in chosen
        }
        rows = pa.concat_tables([batch.rows for batch in found]).to_pylist() if found else []
        got = [(row["_stream"], row["_seq"], row["v"]) for row in rows if row.get("_event", "message") == "message"]
        assert sorted(got) == sorted(messages)


@some
@given(st.randoms(use_true_random=False), st.booleans())
def test_history_since_a_position_is_that_of_the_whole_log(rng: random.Random, moments: bool) -> None:
    growing = Growing(rng, back=moments)
    kept = recent.RecentProgress(growing.log)
    position: dict[str, int] = {}
    for _ in range(30):
        growing.step()
        if rng.random() < 0.4:
            continue
        whole = History(growing.log.core.progress(), growing.log.domain)
        part = kept.since(position, None, moments=moments)
        assert part.present() == whole.present() == growing.log.core.positions()
        high = whole.present()
        mine, all_ = arrivals._between(part, position, high), arrivals._between(whole, position, high)
        names = [[h.names[code] for code in h.streams[commits]] for h, commits in ((part, mine), (whole, all_))]
        assert names[0] == names[1]
        for field in ("seqs", "messages", *(["moments"] if moments else [])):
            assert np.array_equal(getattr(part, field)[mine], getattr(whole, field)[all_]), field
        for a, b in zip(part.held(position, high), whole.held(position, high), strict=True):
            assert np.array_equal(a, b)
        if moments:
            bound = int(rng.choice(whole.moments.tolist())) + rng.randrange(2)
            end = whole.before("timestamp", bound)
            # An end does not move: what was delivered lies before it.
            if all(end[name] >= seq for name, seq in position.items()):
                assert part.before("timestamp", bound) == end
        if rng.random() < 0.7:
            position = {name: rng.randint(position.get(name, 0), seq) for name, seq in high.items()}


@some
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["version", "timestamp"]),
    st.sampled_from([None, ("s0",), ("s1", "s2")]),
)
def test_a_bound_ahead_is_followed_as_the_whole_history_tells_it(
    rng: random.Random, kind: str, streams: tuple[str, ...] | None
) -> None:
    growing = Growing(rng, back=rng.random() < 0.5)
    bound = rng.randrange(1, 12) if kind == "version" else 1_600_000_000_000_000 + rng.randrange(80) * 1_000_000
    followed = CommitBound(growing.log, kind, bound, streams)
    for _ in range(30):
        growing.step()
        if rng.random() < 0.4:
            continue
        whole = History(growing.log.core.progress(), growing.log.domain)
        expected = whole.frontier(kind, bound, streams), whole.reached(kind, bound, streams)
        assert (followed.frontier(), followed.reached()) == expected
        if expected[1]:
            return


def test_an_end_that_lies_ahead_costs_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    growing = Growing(random.Random(7), back=False)
    growing.log = MemoryLog.create(PAYLOAD, minimum=(0,), merge_every=None)
    growing.log.core.open_stream("s0", owner="s0")
    growing.upper["s0"] = 0
    read: list[str] = []
    rows_of = LogCore.progress_rows
    monkeypatch.setattr(LogCore, "progress", lambda _: pytest.fail("read all progress"))
    monkeypatch.setattr(LogCore, "progress_rows", lambda log, paths: rows_of(log, read.extend(paths) or paths))
    for option in ({"endingTimestamp": "2999-01-01"}, {"endingVersion": "1000"}):
        driver = drive(growing.log, **option)
        for _ in range(30):
            growing.append("s0")
        driver.run_one()
        for _ in range(10):
            growing.append("s0")
            read.clear()
            driver.run_one()
            assert len(read) == 1


def test_a_bound_that_was_reached_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(PAYLOAD, minimum=(0,))
    writer = log.writer(owner="main")
    for upper in (3, 5, 7):
        writer.advance(upper)
    followed = CommitBound(log, "version", 2, None)
    assert (followed.reached(), followed.frontier()) == (True, Antichain.of(3))
    monkeypatch.setattr(recent.RecentProgress, "since", lambda *_, **__: pytest.fail("looked again"))
    writer.advance(9)
    assert (followed.reached(), followed.frontier()) == (True, Antichain.of(3))


def test_while_the_log_stays_as_it_is_nothing_is_computed_again() -> None:
    log = MemoryLog.create(PAYLOAD, minimum=(0,))
    writer = log.writer(owner="main")
    writer.advance(1)
    followed = recent.RecentProgress(log)
    first = followed.since({}, None, moments=False)
    assert followed.since({}, None, moments=False) is first
    writer.advance(2)
    second = followed.since({}, None, moments=False)
    assert second is not first
    assert followed.since({}, None, moments=False) is second


def test_a_micro_batch_reads_only_the_progress_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    growing = Growing(random.Random(7), back=False)
    growing.log = MemoryLog.create(PAYLOAD, minimum=(0,), merge_every=None)
    growing.log.core.open_stream("s0", owner="s0")
    growing.upper["s0"] = 0
    for _ in range(50):
        growing.append("s0")
    read: list[str] = []
    monkeypatch.setattr(LogCore, "progress", lambda _: pytest.fail("read all progress"))
    rows_of = LogCore.progress_rows
    monkeypatch.setattr(LogCore, "progress_rows", lambda log, paths: rows_of(log, read.extend(paths) or paths))
    driver = drive(growing.log, delivery="arrival")
    assert driver.run_one() is not None
    for _ in range(20):
        growing.append("s0")
        read.clear()
        assert driver.run_one() is not None
        assert len(read) == 1
    # One that begins anew needs the commit that it plans again and the one before it, whatever came earlier.
    read.clear()
    driver.crash()
    growing.append("s0")
    assert driver.run_one() is not None
    assert len(read) <= 3
    recent_history = recent.RecentProgress(growing.log).since({"s0": 60, OPEN_STREAM: 2}, None, moments=False)
    assert recent_history.seqs[recent_history.commits_of("s0")].tolist() == [*range(59, 72)]
