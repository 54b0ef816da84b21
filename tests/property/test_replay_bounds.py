"""Where a replay begins and ends by numbers and by moments, with streams that join and clocks that differ."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.log import MemoryLog
from spark_timely.log.machine.history import History
from spark_timely.log.reader import frontier_at
from tests.unit.datasource.support import read_all

some = settings(suppress_health_check=list(HealthCheck), max_examples=max(25, settings.default.max_examples // 4))


class Skewed:
    """A log whose writers' clocks are apart by some seconds each; each row holds the moment of its commit."""

    def __init__(self, rng: random.Random, streams: int, *, arity: int = 1) -> None:
        self.rng = rng
        self.arity = arity
        self.now = 1_000
        self.skew = dict.fromkeys(["", *"abcdef"], 0) | {name: rng.randint(-30, 30) for name in "abcdef"}
        self.who = ""
        self.newest: dict[str, int] = {}
        self.log = MemoryLog.create(
            pa.schema([("at", pa.int64())]),
            times=("long",) * arity,
            minimum=(0,) * arity,
            streams=streams,
            merge_every=None,
            clock=lambda: self.now + self.skew[self.who],
        )
        self.n_claimed, self.n_streams = 0, streams

    def step(self) -> None:
        """Open a stream, by a claim or a copy, or append to one; a little later."""
        rng, log = self.rng, self.log
        self.now += rng.randint(0, 8)
        live = {name: state for name, state in log.streams().items() if not state.closed}
        unopened = sorted(set("abcdef") - set(log.streams()))
        if unopened and (not live or rng.random() < 0.3):
            self.who = unopened[0]
            donor = rng.choice(sorted(live)) if live and rng.random() < 0.6 else None
            if donor is None and self.n_claimed == self.n_streams and not live:
                return
            if donor is None and self.n_claimed < self.n_streams:
                self.n_claimed += 1
            log.core.open_stream(self.who, owner=self.who, donor=donor)
            self.newest[self.who] = self.now + self.skew[self.who]
            return
        if not live:
            return
        self.who = name = rng.choice(sorted(live))
        held = live[name].frontier.elements[0]
        times = [tuple(c + rng.randint(0, 6) for c in held) for _ in range(rng.randint(0, 2))]
        self.newest[name] = max(self.newest[name], self.now + self.skew[name])
        # The running maximum: a stream's own moments never go back.
        rows = pa.table(
            {
                **{
                    column: pa.array([time[i] for time in times], pa.int64())
                    for i, column in enumerate(log.domain.columns)
                },
                "at": pa.array([self.newest[name]] * len(times), pa.int64()),
            }
        )
        to: object = [[c + rng.randint(0, 5) for c in held]] if self.arity > 1 else held[0] + rng.randint(0, 5)
        log.writer(name, owner=name).append(rows, advance_to="[]" if rng.random() < 0.05 else to)


@some
@given(st.randoms(use_true_random=False), st.sampled_from([1, 2]))
def test_start_at_a_moment_delivers_all_commits_since(rng: random.Random, arity: int) -> None:
    made = Skewed(rng, rng.randint(1, 2), arity=arity)
    for _ in range(rng.randint(3, 25)):
        made.step()
    log = made.log
    if rng.random() < 0.3:
        log.compact()
    rows = log.messages()
    history = History(log.core.progress(), log.domain)
    for moment in sorted({made.now, *range(980, made.now + 30, 7)}):
        frontier = frontier_at(log.core, timestamp=f"us:{moment * 1_000_000 - 1}")
        assert frontier == history.frontier("timestamp", moment * 1_000_000, None)
        late = [at >= moment for at in rows["at"].to_pylist()]
        beyond = frontier.beyond(log.domain.from_columns(rows)).tolist()
        assert all(b for b, wanted in zip(beyond, late, strict=True) if wanted), (
            f"{frontier} passes a row after {moment}"
        )
    moment = rng.randint(970, made.now + 30)
    text = dt.datetime.fromtimestamp(moment, dt.UTC).isoformat()
    for delivery in ("complete", "arrival"):
        found = read_all(log, delivery=delivery, startingTimestamp=text, includeTime="true").sort_by("at")
        closed = [not open_ for open_ in log.frontier().beyond(log.domain.from_columns(rows)).tolist()]
        wanted = [
            at for at, done in zip(rows["at"].to_pylist(), closed, strict=True)
            if at >= moment and (done or delivery == "arrival")
        ]  # fmt: skip
        assert [at for at in found["at"].to_pylist() if at >= moment] == sorted(wanted)
    assert frontier_at(log.core, timestamp="us:10000000000000000") == frontier_at(log.core, seq=10**6) == log.frontier()
