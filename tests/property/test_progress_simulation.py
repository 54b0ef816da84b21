"""Progress in worlds of random dataflows, operators and delays, against an oracle; and mistakes it must find."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_timely.errors import TimelyError
from spark_timely.progress.broadcast import ProgressBatch
from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.subgraph import Child, LeafStatements, Subgraph
from spark_timely.time.antichain import Time
from tests.property.progress_world import LivenessViolation, Options, RandomOperator, SafetyViolation, World
from tests.unit.progress.network import MemoryNetwork

# Other worlds: TIMELY_SIMULATION_SEED=12345 pytest tests/property/test_progress_simulation.py
FIRST = int(os.environ.get("TIMELY_SIMULATION_SEED", "0"))
CHUNK = 12
MISTAKES = (SafetyViolation, LivenessViolation, TimelyError)


@pytest.fixture(autouse=True)
def no_warnings_of_unfed_operators(caplog: pytest.LogCaptureFixture) -> None:
    """Random dataflows hold operators that can receive nothing; that is warned of elsewhere."""
    caplog.set_level("ERROR", logger="spark_timely.progress.subgraph")


def run(seed: int, options: Options | None = None) -> None:
    """Run one world; a failure says how to run it again."""
    try:
        World(seed, options).run()
    except Exception as error:
        error.add_note(f"seed {seed}: run it again with TIMELY_SIMULATION_SEED={seed}")
        raise


@pytest.mark.parametrize("chunk", range(12))
def test_frontiers_are_safe_and_complete_in_random_worlds(chunk: int) -> None:
    print("seeds from", FIRST + chunk * CHUNK)  # noqa: T201 - shown when the test fails
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        run(seed)


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(40))
def test_frontiers_are_safe_in_thousands_of_random_worlds(chunk: int) -> None:
    base = FIRST + 10_000 + chunk * 100
    print("seeds from", base)  # noqa: T201 - shown when the test fails
    for seed in range(base, base + 100):
        run(seed)


@pytest.mark.parametrize("peers", range(1, 9))
def test_frontiers_are_safe_and_complete_for_any_number_of_peers(peers: int) -> None:
    for seed in range(FIRST + 500, FIRST + 510):
        run(seed, Options(peers=peers))


# --- Mistakes that the worlds must find -----------------------------------------------------------


def renumbered(batch: ProgressBatch, number: int) -> ProgressBatch:
    return dataclasses.replace(batch, seq_no=number, rows=batch.rows.copy(), diffs=batch.diffs.copy())


class CarelessNetwork(MemoryNetwork):
    """Numbers batches anew as they arrive, so that mistakes in their order are not noticed at once."""

    def __init__(self, peers: int, rng: random.Random) -> None:
        super().__init__(peers, automatic=False)
        self.rng = rng
        self.arrived: dict[tuple[int, int, int], int] = {}

    def deliver(self, sender: int, receiver: int) -> bool:
        queue = self._queues[sender, receiver]
        if not queue:
            return False
        batch = queue[0]
        key = (sender, receiver, batch.channel)
        number = self.arrived.get(key, 0)
        self.arrived[key] = number + 1
        queue[0] = renumbered(batch, number)
        return super().deliver(sender, receiver)


class ReorderingNetwork(CarelessNetwork):
    """Now and then a batch overtakes the one that its sender sent before it."""

    def deliver(self, sender: int, receiver: int) -> bool:
        queue = self._queues[sender, receiver]
        later = next((i for i, b in enumerate(queue) if i and b.channel == queue[0].channel), 0)
        if later and self.rng.random() < 0.7:
            queue[0], queue[later] = queue[later], queue[0]
        return super().deliver(sender, receiver)


class SplittingNetwork(CarelessNetwork):
    """Sends what was given up before what was gained, as two batches."""

    def post(self, batch: ProgressBatch, receivers: object) -> None:
        for part in (batch.diffs < 0, batch.diffs > 0):
            if part.any():
                half = dataclasses.replace(batch, rows=batch.rows[part], diffs=batch.diffs[part])
                super().post(half, range(self.peers))


class LosingNetwork(CarelessNetwork):
    """Now and then a gain is lost on the way."""

    def post(self, batch: ProgressBatch, receivers: object) -> None:
        gains = batch.diffs > 0
        if gains.any() and self.rng.random() < 0.3:
            keep = ~gains
            keep[gains.nonzero()[0][1:]] = True
            batch = dataclasses.replace(batch, rows=batch.rows[keep], diffs=batch.diffs[keep])
        super().post(batch, range(self.peers))


class HastyOperator(RandomOperator):
    """Reports messages as consumed when they arrive, and works on them later."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.reported: list[int] = [0] * self.inputs

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        waiting = [list(queue) for queue in self.queues]
        ignored = PortChanges(consumed.arity)
        active = super().pull_internal_progress(ignored, internal, produced)
        for port, queue in enumerate(waiting):
            for time in queue[self.reported[port] :]:
                consumed.update(port, time, 1)
            self.reported[port] = len(self.queues[port])
        return active

    def take(self, port: int, queue: list[Time]) -> Time:
        return queue.pop(0)


@contextmanager
def patched(owner: object, **replacements: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in replacements.items():
            patch.setattr(owner, name, value)
        yield


def found_by(options: Options, kinds: tuple[type[BaseException], ...], seeds: int = 300) -> set[type[BaseException]]:
    """Return the kinds of failure that some worlds end with, up to the first of the given kinds."""
    found: set[type[BaseException]] = set()
    worlds = []  # kept, so that ids of objects are not used again
    for seed in range(FIRST, FIRST + seeds):
        try:
            worlds.append(World(seed, options))
            worlds[-1].run()
        except MISTAKES as error:
            found.add(type(error))
            if isinstance(error, kinds):
                return found
    return found


def test_mutant_one_senders_batches_reordered_is_found() -> None:
    assert SafetyViolation in found_by(Options(network=ReorderingNetwork), (SafetyViolation,))


def test_mutant_a_batch_split_is_found() -> None:
    assert SafetyViolation in found_by(Options(network=SplittingNetwork), (SafetyViolation,))


def test_mutant_a_dropped_gain_is_found() -> None:
    assert SafetyViolation in found_by(Options(network=LosingNetwork), (SafetyViolation,))


def test_mutant_progress_before_its_messages_is_found() -> None:
    # At an operator: consumption is reported before the message was worked on. The check of reports would
    # see it first, so it looks away.
    with patched(LeafStatements, check=lambda *_: None):
        assert SafetyViolation in found_by(Options(operator=HastyOperator), (SafetyViolation,))


def test_mutant_receipt_before_the_messages_inside_is_found() -> None:
    # At a scope: what entered is reported as consumed at once, the messages inside after the exchange.
    entered: dict[int, list[tuple[int, Time, int]]] = {}
    harvest, apply = Subgraph._harvest_entries, Subgraph._apply_exchanged

    def harvest_and_tell(self: Subgraph) -> None:
        entered[id(self)] = [
            (port, self._refines.to_outer(time), count)
            for port, entry in enumerate(self._entries)
            for time, count in entry.pairs()
        ]
        harvest(self)

    def apply_without_receipts(self: Subgraph, consumed: PortChanges, produced: PortChanges) -> None:
        later = PortChanges(consumed.arity)
        apply(self, later, produced)
        # Its own receipts at once and for all; those of peers as they come would count twice.
        for port, time, count in entered[id(self)]:
            consumed.update(port, time, count)

    with patched(Subgraph, _harvest_entries=harvest_and_tell, _apply_exchanged=apply_without_receipts):
        assert SafetyViolation in found_by(Options(peers=1), (SafetyViolation,))


def test_mutant_child_zeros_summaries_kept_is_found() -> None:
    # What the outside may still send counts among what the scope may still produce (000.24). The scope
    # checks itself for that when it begins; so the mistake begins with the first turn.
    moves_of: dict[int, list[tuple[int, int, bool, Time, int]]] = {}
    kept: list[Subgraph] = []  # no later one gets the id of one that is gone
    turns: set[int] = set()
    pull = Subgraph.pull_internal_progress

    def look(self: Subgraph) -> list[tuple[int, int, bool, Time, int]]:
        if id(self) not in moves_of:
            kept.append(self)
        moves = moves_of.setdefault(id(self), [])
        moves += [(*location, time, diff) for location, time, diff in self._tracker.drain_pushed()]
        self._tracker.drain_output()
        return moves

    def outputs(self: Subgraph) -> list[tuple[int, Time, int]]:
        moves, ours = look(self), []
        if id(self) in turns or self._stage == 1:
            ours = [move for move in moves if move[0] == 0]
            moves[:] = [move for move in moves if move[0]]
        return [(port, time, diff) for _, port, is_target, time, diff in ours if is_target]

    def frontiers(self: Subgraph) -> dict[int, list[tuple[int, Time, int]]]:
        moves = look(self)
        ours = [move for move in moves if move[0]]
        moves[:] = [move for move in moves if not move[0]]
        found: dict[int, list[tuple[int, Time, int]]] = {}
        for node, port, is_target, time, diff in ours:
            if is_target:
                found.setdefault(node, []).append((port, time, diff))
        return found

    def turn(self: Subgraph, *args: PortChanges) -> bool:
        turns.add(id(self))
        return pull(self, *args)

    with patched(Subgraph, _output_changes=outputs, _frontier_moves=frontiers, pull_internal_progress=turn):
        assert LivenessViolation in found_by(Options(), (LivenessViolation,))


def test_mutant_statements_of_leaves_without_exchange_is_found() -> None:
    # What leaves say takes effect here at once, and never elsewhere (000.39).
    init = Child.__init__

    def not_local(self: Child, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        self.local = False

    with patched(Child, __init__=not_local):
        assert found_by(Options(peers=3), (SafetyViolation, LivenessViolation))


def test_mutant_initial_capabilities_of_one_peer_only_is_found() -> None:
    # Every peer enters the capabilities of all peers (000.21).
    init = Child.__init__

    def for_one(self: Child, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        if self.local:
            own = [(port, time, count // self._peers) for port, time, count in self.initial]
            self._leaf = LeafStatements(self.name, self.index, self.arity, self.summary, own)
            self.initial = own

    with patched(Child, __init__=for_one):
        assert SafetyViolation in found_by(Options(peers=3), (SafetyViolation,))


def test_without_mistakes_the_same_worlds_run() -> None:
    # The careless network alone is no mistake.
    assert not found_by(Options(network=CarelessNetwork), MISTAKES, seeds=20)
