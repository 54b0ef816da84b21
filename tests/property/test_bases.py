"""A log that has forgotten its first commits goes through every later operation as one that has not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as s

from spark_timely.errors import SinceViolationError, TimelyError
from spark_timely.log import Log, MemoryLog, forgetting, streams
from spark_timely.log.machine import base as bases
from spark_timely.log.machine.state import CommitRequest, StreamState
from spark_timely.log.reader import frontier_at
from spark_timely.testing import ManualClock
from tests.conformance.logs import VALUES, written
from tests.faults.harness import long_lane

# Not made smaller: a history of many steps would take minutes.
many = settings(
    suppress_health_check=list(HealthCheck),
    max_examples=500 if long_lane() else 10,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def said(found: object) -> object:
    """Return an answer without the word that a commit is a base."""
    if isinstance(found, StreamState):
        return replace(found, note=replace(found.note, base=False))
    return found


class Twins:
    """Two logs of one history, of which the second forgets."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.clock = rng, ManualClock()
        self.whole, self.forgetful = (
            MemoryLog.create(VALUES, minimum=(0,), streams=2, clock=self.clock, merge_every=None) for _ in range(2)
        )
        self.owners: dict[str, list[str]] = {}
        self.batches: dict[str, list[tuple[int, int, list[tuple[int, int]], int | None]]] = {}
        self.forgotten = 0

    def both(self, do: Callable[[Log], Any], *, or_forgotten: bool = False) -> Any:
        """Do the same with both; answers and refusals are alike, but for what was forgotten."""
        found: list[Any] = []
        handles = [log if self.rng.random() < 0.6 else log.another() for log in (self.whole, self.forgetful)]
        for log in handles:
            try:
                log.refresh()
                found.append(said(do(log)))
            except TimelyError as error:
                found.append(error)
        one, other = found
        if or_forgotten and isinstance(other, SinceViolationError):
            self.forgotten += 1
            return None
        if isinstance(one, TimelyError) or isinstance(other, TimelyError):
            assert type(one) is type(other), (one, other)
        else:
            assert one == other
        return one

    # Operations

    def open(self) -> None:
        name = f"s{len(self.owners)}"
        owner = f"{name}-0"
        at = self.rng.choice([None, None, self.rng.randrange(12)])
        done = self.both(lambda log: log.core.open_stream(name, owner=owner, at=at))
        if isinstance(done, StreamState):
            self.owners[name], self.batches[name] = [owner], []

    def append(self) -> None:
        if not self.owners:
            return
        name = self.rng.choice(sorted(self.owners))
        state = self.whole.core.stream(name)
        self.whole.refresh()
        state = self.whole.core.stream(name)
        assert state is not None
        if state.closed:
            return
        (now,) = state.frontier.elements[0]
        batch, step = (state.batch if state.batch is not None else -1), (state.step or 0) + 1
        if self.rng.random() < 0.5 or batch < 0:
            batch, step = batch + 1, 0
        pairs = [(now + self.rng.randrange(4), self.rng.randrange(9)) for _ in range(self.rng.randrange(3))]
        to = now + self.rng.randrange(3)
        self.commit(name, batch, step, pairs, to if to > now else None)
        self.batches[name].append((batch, step, pairs, to if to > now else None))

    def repeat(self) -> None:
        """Repeat a micro-batch: of the newest one all steps are known, an earlier one is refused."""
        name = self.rng.choice([name for name in sorted(self.batches) if self.batches[name]] or [""])
        if name:
            self.commit(name, *self.rng.choice(self.batches[name][-6:]))

    def commit(
        self, name: str, batch: int, step: int, pairs: list[tuple[int, int]], to: int | None, owner: str | None = None
    ) -> None:
        def do(log: Log) -> object:
            state = log.core.stream(name)
            assert state is not None
            progress = np.empty((0, 1), np.int64), np.empty(0, np.int64)
            if to is not None and not state.closed:
                progress = np.array([[state.frontier.elements[0][0]], [to]]), np.array([-1, 1])
            request = CommitRequest(
                name,
                owner or self.owners[name][-1],
                *progress,
                batch=batch,
                step=step,
                files=written(log, pairs, state.seq + 1, name),
            )
            outcome = log.core.commit(request)
            return outcome.committed, said(outcome.state)

        self.clock.advance(1)
        self.both(do)

    def take_over(self) -> None:
        if not self.owners:
            return
        name = self.rng.choice(sorted(self.owners))
        owner = f"{name}-{len(self.owners[name])}"
        if self.rng.random() < 0.6 and len(self.owners[name]) > 1:
            owner = self.rng.choice(self.owners[name][:-1])  # who has lost it must never get it back
        self.clock.advance(1)
        done = self.both(lambda log: log.writer(name, owner=owner, takeover=True).stream)
        if not isinstance(done, TimelyError) and owner not in self.owners[name]:
            self.owners[name].append(owner)
            self.batches[name] = []

    def come_back(self) -> None:
        """A former owner appends as if nothing had happened."""
        lost = [name for name, owners in self.owners.items() if len(owners) > 1]
        if lost:
            name = self.rng.choice(lost)
            self.commit(name, self.rng.randrange(5), 0, [(11, 1)], None, self.rng.choice(self.owners[name][:-1]))

    def close(self) -> None:
        if self.owners and self.rng.random() < 0.3:
            name = self.rng.choice(sorted(self.owners))
            self.clock.advance(1)
            self.both(lambda log: log.close(name))

    def forget(self) -> None:
        log = self.forgetful.another() if self.rng.random() < 0.5 else self.forgetful
        log.allow_compaction([self.rng.randrange(14)])
        log.compact(logical=True)

    def ask(self) -> None:
        self.both(lambda log: {name: said(state) for name, state in log.core.ends().items()})
        self.both(lambda log: (log.core.positions(), log.frontier(), log.core.unclaimed))
        for name in self.owners:
            self.both(lambda log, name=name: log.core.owners(name))  # type: ignore[misc]
            state = self.whole.core.stream(name)
            if state is not None and state.batch is not None:
                for step in range((state.step or 0) + 1):
                    self.both(
                        lambda log, name=name, step=step, batch=state.batch: said(log.core.recorded(name, batch, step))  # type: ignore[misc]
                    )
        seq = self.rng.randrange(12)
        self.both(lambda log: frontier_at(log.core, seq=seq), or_forgotten=True)
        moment = f"us:{int((self.clock() - self.rng.randrange(30)) * 1_000_000)}"
        self.both(lambda log: frontier_at(log.core, timestamp=moment), or_forgotten=True)
        if self.rng.random() < 0.3:
            report = self.forgetful.verify()
            assert report.legal, report.problems

    def run(self, n: int) -> None:
        actions = [self.open, self.append, self.repeat, self.take_over, self.come_back, self.close, self.forget]
        for _ in range(n):
            self.rng.choices(actions, [1, 8, 2, 1, 1, 1, 3])[0]()
            if self.rng.random() < 0.15:
                self.ask()
        self.ask()


@many
@given(s.randoms(use_true_random=True))
def test_log_that_forgot_commits_is_as_one_that_did_not(rng: random.Random) -> None:
    Twins(rng).run(rng.randrange(5, 30))


def test_commits_are_forgotten_in_these_histories() -> None:
    """Else the comparison says nothing."""
    forgot = refused = 0
    for seed in range(10):
        twins = Twins(random.Random(seed))
        twins.run(40)
        forgot += bool(twins.forgetful.another().core.bases())
        refused += twins.forgotten
    assert forgot > 3
    assert refused > 3


def former_owners_dropped(patch: pytest.MonkeyPatch) -> None:
    def owners(rows: pa.Table, newest: StreamState) -> frozenset[str]:
        return found(rows, replace(newest, note=replace(newest.note, former=())))

    found = streams.owners_of
    patch.setattr(streams, "owners_of", owners)


def newest_batch_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "first_of_newest_batch", lambda rows, newest: None)


def base_without_its_word(patch: pytest.MonkeyPatch) -> None:
    def without(rows: pa.Table, stream: str, base: int) -> pa.Table:
        kept = bases.with_base(rows, stream, base)
        return rows.filter(pa.array(np.isin(np.arange(rows.num_rows), _places(rows, kept))))

    patch.setattr(forgetting, "with_base", without)


def _places(rows: pa.Table, kept: pa.Table) -> list[int]:
    wanted = set(zip(*(kept[name].to_pylist() for name in ("_stream", "_seq", "_time")), strict=True))
    every = zip(*(rows[name].to_pylist() for name in ("_stream", "_seq", "_time")), strict=True)
    return [place for place, key in enumerate(every) if key in wanted]


def forgotten_too_far(patch: pytest.MonkeyPatch) -> None:
    def choose(seqs: Any, may_go: Any, newest: StreamState, first: int | None) -> int:
        return min(found(seqs, may_go, newest, first) + 1, newest.seq)

    found = bases.choose_base
    patch.setattr(forgetting, "choose_base", choose)


# With the seed that finds it with the least work, which is tried first.
@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (former_owners_dropped, 52),
        (newest_batch_forgotten, 23),
        (base_without_its_word, 35),
        (forgotten_too_far, 44),
    ],
)
def test_wrong_bases_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_many(range(first, first + 300))


def run_many(seeds: Iterable[int]) -> None:
    for seed in seeds:
        Twins(random.Random(seed)).run(40)
