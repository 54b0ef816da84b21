"""Continual tasks: the sink against a sequential one, replicas over an output that fails, and wrong designs found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as s
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from spark_timely.time.antichain import Antichain
from tests.oracles.continual_model import (
    Case,
    FailedError,
    History,
    Replica,
    Row,
    Rows,
    World,
    WrongError,
    audit,
    cap,
    enrich,
    nonzero,
    tally,
    upsert,
    whole,
)
from tests.oracles.continual_rows import DeletesInput, InsertsInput, RowSink, RowWrite, Source
from tests.oracles.updates import Updates
from tests.support import examples

LAST = 7
TIMES = s.integers(0, LAST)


# The sink by itself ---------------------------------------------------------------------------------


def next_frontier(rng: random.Random, waiting: Sequence[int], now: Antichain) -> Antichain:
    """Return a frontier that what is still to be delivered allows; now and then the farthest."""
    if not waiting and rng.random() < 0.3:
        return Antichain.empty()
    least = cap(now, LAST + 2)
    return now if now.is_empty else Antichain.of(rng.randint(least, max(least, min(waiting, default=LAST + 2))))


@settings(examples(150))
@given(
    times=s.lists(TIMES, max_size=6),
    updates=s.lists(s.tuples(s.sampled_from("abc"), TIMES, s.sampled_from([-1, 1, 2])), max_size=12),
    seed=s.integers(0, 1 << 20),
)
def test_writes_are_the_same_in_whatever_order_things_come(
    times: list[int], updates: list[tuple[str, int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    wanted = {time: nonzero((row, diff) for row, at, diff in updates if at <= time) for time in set(times)}
    state: RowSink[Any] = RowSink(0)
    times, updates = rng.sample(times, len(times)), rng.sample(updates, len(updates))
    found: dict[int, Rows] = {}
    skipped: set[int] = set()
    while not state.output_progress.is_empty:
        what = rng.random()
        if what < 0.2 and times:
            state.add_times([times.pop()])
        elif what < 0.4 and updates:
            state.add_updates([updates.pop()])
        elif what < 0.6:
            state.append_times_progress = next_frontier(rng, times, state.append_times_progress)
        elif what < 0.8:
            state.to_append_progress = next_frontier(
                rng, [time for _, time, _ in updates], state.to_append_progress
            )  # fmt: skip
        elif (write := state.process()) is not None:
            assert state.output_progress.less_than_frontier(write.upper)
            waiting = {time for time in wanted if state.output_progress.less_equal(time)}
            passed = {time for time in waiting if not write.upper.less_equal(time)}
            assert passed == (set() if write.time is None else {write.time})
            if rng.random() < 0.2:  # another replica was first, and may be further
                skipped |= passed
                state.output_progress = write.upper
                continue
            if write.time is not None:
                found[write.time] = Counter(dict(write.rows))
                assert len(write.rows) == len(found[write.time])
            state.output_progress = write.upper
    assert found == {time: rows for time, rows in wanted.items() if time not in skipped}


@settings(examples(50))
@given(
    given_=s.lists(s.lists(s.integers(-5, 60), max_size=8), max_size=12),
    drops=s.lists(s.integers(-5, 60), min_size=12, max_size=12),
)
def test_write_times_are_a_sorted_set(given_: list[list[int]], drops: list[int]) -> None:
    state: RowSink[str] = RowSink(-10)
    state.append_times_progress = Antichain.of(-10)
    known: set[int] = set()
    at = -10
    for times, drop in zip(given_, drops, strict=False):
        state.add_times(np.array(times, np.int64))
        known |= set(times)
        assert state.append_times.tolist() == sorted(known)
        at = max(at, drop)
        state.output_progress = Antichain.of(at)
        assert state.process() is None
        known = {time for time in known if time >= at}
        assert state.append_times.tolist() == sorted(known)


@settings(examples(100))
@given(
    s.lists(s.integers(-5, 30), max_size=12),
    s.integers(-5, 32),
    s.tuples(*[s.none() | s.integers(-5, 32)] * 2),
    s.integers(1, 6),
)
def test_what_is_ready_is_what_is_written_one_after_another(
    times: list[int], begun: int, ends: tuple[int | None, int | None], most: int
) -> None:
    def state() -> RowSink[str]:
        made: RowSink[str] = RowSink(-10)
        made.add_times(np.array(times, np.int64))
        made.output_progress = Antichain.of(begun)
        inputs, references = (Antichain.empty(1) if end is None else Antichain.of(end) for end in ends)
        made.append_times_progress, made.to_append_progress = inputs, inputs.meet(references)
        return made

    one_by_one, written = state(), list[int]()
    while (write := one_by_one.process()) is not None:
        written += [] if write.time is None else [write.time]
        one_by_one.output_progress = write.upper
    assert state().ready(most).tolist() == written[:most]


# Replicas over an output that fails ------------------------------------------------------------------

BODIES = {audit: False, enrich: False, whole: False, upsert: True, tally: True}
"""Whether they read the output."""


def drawn_case(rng: random.Random) -> Case:
    """Draw a task and its logs: rows that come and go, at one time too, in no order."""

    def history(most: int) -> History:
        found = [
            ((rng.choice("ab"), rng.randint(0, 1)), rng.randint(0, LAST), rng.choice([1, 1, -1, 2]))
            for _ in range(rng.randint(most // 4, most))
        ]
        # Pairs that come to nothing.
        found += [(row, time, -diff) for row, time, diff in found if rng.random() < 0.2]
        return rng.sample(found, len(found))

    body = rng.choice(list(BODIES))
    inputs = [history(12) for _ in range(rng.choice([1, 1, 2]))]
    reference = inputs[0] if rng.random() < 0.3 else history(8)
    deletes = tuple(rng.random() < 0.25 for _ in inputs)
    return Case(inputs, body, reference, rng.random() < 0.5, BODIES[body], deletes)


def drawn_world(rng: random.Random, replica: type[Replica] = Replica) -> World:
    as_ofs = [rng.randint(0, 3) for _ in range(rng.randint(2, 3))]
    return World(drawn_case(rng), as_ofs, lies=rng, replica=replica, open_reference=rng.random() < 0.5)


class ReplicasMachine(RuleBasedStateMachine):
    """Two or three replicas of a task: whatever they do and whatever fails, each append is right when it happens."""

    @initialize(seed=s.integers(0, 1 << 20))
    def create(self, seed: int) -> None:
        self.world = drawn_world(random.Random(seed))

    @rule(number=s.integers(0, 2), by=s.integers(1, 4))
    def logs_grow(self, number: int, by: int) -> None:
        self.world.advance(number % len(self.world.closed), by)

    @rule(which=s.integers(0, 2), acts=s.lists(s.integers(0, 6), max_size=6))
    def replica_acts(self, which: int, acts: list[int]) -> None:
        replica = self.world.replicas[which % len(self.world.replicas)]
        for act in acts:
            actions = list(replica.actions())
            actions[act % len(actions)]()

    @rule(which=s.integers(0, 2))
    def replica_runs_through(self, which: int) -> None:
        for act in self.world.replicas[which % len(self.world.replicas)].actions():
            act()

    @precondition(lambda self: self.world.output.as_of is not None)
    @rule(which=s.integers(0, 2), as_of=s.integers(0, 9))
    def replica_is_killed(self, which: int, as_of: int) -> None:
        """It comes back with another wish, which the note overrules."""
        replica = self.world.replicas[which % len(self.world.replicas)]
        replica.wish = as_of
        replica.restart()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def test_replicas_write_what_a_sequential_program_writes() -> None:
    run_state_machine_as_test(ReplicasMachine, settings=settings(examples(40), stateful_step_count=40))


def run_at_random(seed: int, replica: type[Replica] = Replica) -> World:
    rng = random.Random(seed)
    world = drawn_world(rng, replica)
    for _ in range(120):
        world.turn(rng)
    world.finish()
    return world


def test_replicas_survive_all_four_ways_of_failing() -> None:
    calls: Counter[tuple[bool, bool]] = Counter()
    times = rows = 0
    for seed in range(40):
        output = run_at_random(seed).output
        calls += output.calls
        times += len(output.written())
        rows += len(output.updates)
    assert set(calls) == {(False, False), (False, True), (True, False), (True, True)}
    assert min(calls.values()) > 25
    assert rows > times > 40


# Wrong designs: each is found ----------------------------------------------------------------------


class UpperPastAsOf(Replica):
    """The first append moves the upper to as_of + 1."""

    opening_step = 1


class TimesAfterRetraction(Replica):
    """Write times are those of what takes inserts back too."""

    def shown(self, source: Source, updates: Updates) -> tuple[Updates, Any]:
        seen, times = super().shown(source, updates)
        return seen, seen.times if isinstance(source, InsertsInput | DeletesInput) else times


class TimesBeforeTheFilter(Replica):
    """Write times are those of all changes, of either sign."""

    def shown(self, source: Source, updates: Updates) -> tuple[Updates, Any]:
        seen, times = super().shown(source, updates)
        return seen, updates.consolidated().times if isinstance(source, InsertsInput | DeletesInput) else times


class NotConsolidated(Replica):
    """Each update is looked at by itself."""

    def shown(self, source: Source, updates: Updates) -> tuple[Updates, Any]:
        if not isinstance(source, InsertsInput):
            return super().shown(source, updates)
        came = updates.where(updates.diffs > 0)
        return Updates.concat(came, Updates(came.times + 1, -came.diffs, came.rows)), came.times


class NoRetraction(Replica):
    """Inserts are never taken back."""

    def shown(self, source: Source, updates: Updates) -> tuple[Updates, Any]:
        seen, times = super().shown(source, updates)
        return seen.where(seen.diffs > 0) if isinstance(source, InsertsInput) else seen, times


class NeverASnapshot(Replica):
    """Inputs are never read at as_of."""

    def snapshot_wanted(self, as_of: int, upper: Antichain) -> bool:
        return False


class AlwaysASnapshot(Replica):
    """Inputs are read at as_of whether that was asked for or not."""

    def snapshot_wanted(self, as_of: int, upper: Antichain) -> bool:
        return True


class ReadFromTheUpper(Replica):
    """A restart reads at the upper, and so learns of changes after it alone."""

    def first_read(self, as_of: int, upper: Antichain) -> int:
        return max(as_of, cap(upper, self.world.case.horizon))


class FromMemory(Replica):
    """What was proposed counts as written, also after a lost race."""

    def restart(self) -> None:
        super().restart()
        self.proposed: list[tuple[Row, int, int]] = []

    def learn(self, write: RowWrite[Row], *, reported: bool) -> None:
        self.proposed += [(row, write.time, diff) for row, diff in write.rows if write.time is not None]
        super().learn(write, reported=reported)

    def output_before(self, time: int) -> Rows:
        mine = {at for _, at, _ in self.proposed}
        log = [update for update in self.world.output.updates if update[1] not in mine]
        return nonzero((row, diff) for row, at, diff in [*log, *self.proposed] if at < time)


class RepeatedWithTheSameData(Replica):
    """After a lost race rows are written at the next write time that were computed for an output that has moved."""

    def compute(self) -> None:
        if self.as_of is None:
            return
        reads, known = self.world.case.reads_output, self.state.output_progress
        # As if what the output holds could not change before the write times that are known.
        if reads:
            self.state.output_progress = Antichain.empty()
        super().compute()
        self.state.output_progress = known


class TrustsTheReport(Replica):
    """What is reported as done is taken as done."""

    def learn(self, write: RowWrite[Row], *, reported: bool) -> None:
        if reported:
            self.state.output_progress = write.upper
        else:
            self.look()


class _PastWaiting(RowSink[Row]):
    def process(self) -> RowWrite[Row] | None:
        found = super().process()
        waits = self.append_times.shape[0] and self.to_append_progress.less_equal(int(self.append_times[0]))
        if waits and self.output_progress.less_than_frontier(self.append_times_progress):
            return RowWrite(self.append_times_progress)
        return found


class PastAWaitingWrite(Replica):
    """The upper follows the inputs although a write time waits for its data."""

    state_type = _PastWaiting


class _EqualIsPassed(RowSink[Row]):
    def process(self) -> RowWrite[Row] | None:
        now = self.append_times_progress
        if not now.is_empty:
            self.append_times_progress = Antichain.of(now.elements[0][0] + 1)
        try:
            return super().process()
        finally:
            self.append_times_progress = now


class EqualIsPassed(Replica):
    """A frontier has passed the time at which it is."""

    state_type = _EqualIsPassed


class _DataEqualIsComplete(RowSink[Row]):
    def process(self) -> RowWrite[Row] | None:
        now = self.to_append_progress
        if not now.is_empty:
            self.to_append_progress = Antichain.of(now.elements[0][0] + 1)
        try:
            return super().process()
        finally:
            self.to_append_progress = now


class DataEqualIsComplete(Replica):
    """Data are complete at the time at which their frontier is."""

    state_type = _DataEqualIsComplete


class _Forgets(RowSink[Row]):
    def process(self) -> RowWrite[Row] | None:
        found = super().process()
        if found is not None and found.time is not None:
            self._due = {}
        return found


class WrittenIsForgotten(Replica):
    """What is written is removed from what is pending, so that what takes it back is written too."""

    state_type = _Forgets


class _OnlyAtTheTime(RowSink[Row]):
    def _forget(self) -> None:
        super()._forget()
        if not self.output_progress.is_empty:
            self._due = {}


class OnlyUpdatesOfTheTime(Replica):
    """A write holds the updates that carry its time, and not the whole result."""

    state_type = _OnlyAtTheTime


class _FollowsData(RowSink[Row]):
    def process(self) -> RowWrite[Row] | None:
        now = self.append_times_progress
        self.append_times_progress = now.meet(self.to_append_progress)
        try:
            return super().process()
        finally:
            self.append_times_progress = now


class UpperFollowsData(Replica):
    """The upper waits for references where no input changes: the output never closes if one stays open."""

    state_type = _FollowsData


WRONG = [
    UpperPastAsOf,
    TimesAfterRetraction,
    TimesBeforeTheFilter,
    NotConsolidated,
    NoRetraction,
    NeverASnapshot,
    AlwaysASnapshot,
    ReadFromTheUpper,
    FromMemory,
    RepeatedWithTheSameData,
    TrustsTheReport,
    PastAWaitingWrite,
    EqualIsPassed,
    DataEqualIsComplete,
    WrittenIsForgotten,
    OnlyUpdatesOfTheTime,
    UpperFollowsData,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_design_is_found(wrong: type[Replica]) -> None:
    found = []
    for seed in range(200):  # ends at the first that is found
        try:
            run_at_random(seed, wrong)
        except WrongError as error:
            found.append(str(error))
            break
    assert found, wrong.__doc__


def test_the_world_reports_failures_and_refuses_moves_back() -> None:
    world = World(Case(([],), audit))
    with pytest.raises(FailedError):
        world.output.append("a", Antichain.of(3), RowWrite(Antichain.of(4)))
    world.output.begin(0, 0)
    with pytest.raises(WrongError, match="moves the upper"):
        world.output.append("a", Antichain.of(0), RowWrite(Antichain.of(0)))
