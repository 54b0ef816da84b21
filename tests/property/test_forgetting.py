"""Logs that forget, of random histories: answers at since and after it stay, whenever files are rewritten.

The oracle is a list of all that was ever written, and what it says of a since is written down here again: an update
stands at the least upper bound of its time and of the greatest lower bound of since.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as s

from spark_timely.canonical.state import CanonicalState
from spark_timely.errors import SinceViolationError
from spark_timely.log import Log, MemoryLog, forgetting, retention
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine import since as rules
from spark_timely.log.vacuum import EVENTS, vacuum
from spark_timely.testing.driver import Checkpoint
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import stored
from tests.faults.harness import long_lane
from tests.unit.datasource.support import drive

Time = tuple[int, ...]
Updates = Counter[tuple[Time, int]]

STREAMS = ("a", "b")
# Not made smaller: a history of many steps would take minutes.
many = settings(
    suppress_health_check=list(HealthCheck),
    max_examples=500 if long_lane() else 8,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
shapes = pytest.mark.parametrize("kind", ["stream", "collection"])
arities = pytest.mark.parametrize("arity", [1, 2])


def beyond(frontier: list[Time], time: Time) -> bool:
    return any(all(x <= y for x, y in zip(low, time, strict=True)) for low in frontier)


class World:
    """A log, and all that was ever written into it.

    Parameters
    ----------
    kind, arity, rng
    folder : Path, optional
        Where it is on a disk, for other engines to rewrite it too; in memory unless given.
    keyed : bool
        Whether compaction orders rows by their value.
    """

    def __init__(
        self, kind: str, arity: int, rng: random.Random, folder: Path | None = None, *, keyed: bool = False
    ) -> None:
        self.kind, self.arity, self.rng = kind, arity, rng
        self.columns = ["_time"] if arity == 1 else [f"_time_{i}" for i in range(arity)]
        facts: dict[str, Any] = {"times": ("long",) * arity, "minimum": (0,) * arity, "kind": kind}
        facts |= {"streams": len(STREAMS), "merge_every": rng.choice([None, 2, 3])}
        facts["key"] = "v" if keyed else ()
        schema = pa.schema([("v", pa.int64())])
        self.on_disk = folder is not None
        self.log: Any = (
            MemoryLog.create(schema, **facts) if folder is None else create_log(str(folder / "log"), schema, **facts)
        )
        self.written: list[tuple[Time, int, int]] = []
        self.writers = {name: self.log.writer(name, owner=name) for name in STREAMS}

    # What is done

    def append(self) -> None:
        writer = self.writers[self.rng.choice(STREAMS)]
        held = writer.frontier.elements
        rows = []
        for _ in range(self.rng.randrange(6)):
            low = self.rng.choice(held)
            time = tuple(x + self.rng.randrange(4) for x in low)
            diff = self.rng.choice([1, 1, 2, -1]) if self.kind == "collection" else 1
            rows.append((time, self.rng.randrange(3), diff))
        to = None
        if self.rng.random() < 0.8:
            low = self.rng.choice(held)
            to = [tuple(x + self.rng.randrange(3) for x in low)]
            if self.arity == 2 and self.rng.random() < 0.4:
                (x, y), d = to[0], self.rng.randrange(1, 4)
                to = [(x + d, y), (x, y + d)]
            # Of all that is held, so that the frontier only moves forward.
            to = sorted({tuple(map(max, one, other)) for one in held for other in to})
        table = {name: pa.array([time[i] for time, *_ in rows], pa.int64()) for i, name in enumerate(self.columns)}
        table["v"] = pa.array([v for _, v, _ in rows], pa.int64())
        if self.kind == "collection":
            table["_diff"] = pa.array([diff for *_, diff in rows], pa.int64())
        writer.append(pa.table(table), advance_to=None if to is None else Antichain([*to], self.arity))
        self.written += rows

    def forget(self) -> None:
        frontier = [tuple(self.rng.randrange(12) for _ in range(self.arity)) for _ in range(self.rng.choice([1, 1, 2]))]
        log = self.handle()
        before = log.since()
        now = log.allow_compaction(Antichain(frontier, self.arity))
        assert before.less_equal_frontier(now)

    def compact(self) -> None:
        size = self.rng.choice([1000, 1 << 20])
        self.handle().compact(target_file_size=size, logical=self.rng.random() < 0.8)

    def keep(self) -> None:
        if self.arity == 1:
            self.handle().keep(self.rng.choice([None, 0, 2, 5]), committed="0s")

    def vacuum(self) -> None:
        """Delete all that is not part of the log, at a moment when nobody would."""
        log = self.handle()
        vacuum(log.core.states, age_ms=0, unknown=True, dry_run=False, now_ms=1 << 60, has_readers=False)
        live = {path for event in EVENTS for path in log.core.store.live.index(event).paths.tolist()}
        assert stored(log) == live
        # A snapshot of before names files that are gone.
        self.log.refresh()

    def optimize(self) -> None:
        """Let delta-rs merge files of every kind, and delete those that it has replaced."""
        table = DeltaTable(self.log.path)
        self.rng.choice([table.optimize.compact, lambda: table.optimize.z_order(["_seq"])])()
        if self.rng.random() < 0.5:
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
            self.log.refresh()

    def handle(self) -> Any:
        if self.rng.random() < 0.5:
            return self.log
        return open_log(self.log.path, merge_every=self.log.core.merge_every) if self.on_disk else self.log.another()

    def step(self) -> None:
        steps = [(self.append, 10), (self.forget, 2), (self.compact, 2), (self.vacuum, 1), (self.keep, 1)]
        if self.on_disk:
            steps.append((self.optimize, 2))
        names, weights = zip(*steps, strict=True)
        self.rng.choices(names, weights)[0]()

    # What is expected

    def rows(self, since: Antichain, lower: list[Time] | None = None, upper: list[Time] | None = None) -> Updates:
        """Return what there is to read, each row as often as it was written."""
        found: Updates = Counter()
        for time, v, diff in self.written:
            if self.kind == "stream":
                if not beyond([*since.elements], time):
                    continue
                at = time
            else:
                corner = tuple(min(element[i] for element in since) for i in range(self.arity))
                at = tuple(map(max, time, corner))
            if (lower is None or beyond(lower, at)) and (upper is None or not beyond(upper, at)):
                found[at, v] += diff
        return found

    def told(self, table: pa.Table) -> Updates:
        found: Updates = Counter()
        for row in table.to_pylist():
            found[tuple(row[name] for name in self.columns), row["v"]] += row.get("_diff", 1)
        return found


def _nonzero(found: Updates) -> dict[tuple[Time, int], int]:
    return {key: n for key, n in found.items() if n}


def check_answers(world: World, log: Log) -> None:
    rng, arity = world.rng, world.arity
    since, frontier = log.since(), log.frontier()
    everything = log.messages()
    assert _nonzero(world.told(everything)) == _nonzero(world.rows(since))
    for _ in range(4):
        frontiers = [
            Antichain([tuple(rng.randrange(14) for _ in range(arity)) for _ in range(rng.choice([1, 2]))], arity)
            for _ in range(2)
        ]
        # Where the log's own frontier is, and at the beginning, is always to be read.
        lower = rng.choice([frontiers[0], frontier, log.domain.minimum_frontier])
        upper = rng.choice([frontiers[1], frontier, None])
        try:
            found = log.messages(lower=lower, upper=upper)
        except SinceViolationError:
            assert not {lower, upper} <= {frontier, log.domain.minimum_frontier, None}
            continue
        high = None if upper is None else [*upper.elements]
        # As they were written: nothing that a replay may have had already is moved or summed.
        moved = since if lower == log.domain.minimum_frontier else log.domain.minimum_frontier
        assert _nonzero(world.told(found)) == _nonzero(world.rows(moved, [*lower.elements], high)), (lower, upper)
    if world.kind == "stream":
        return
    for _ in range(3):
        at = tuple(rng.randrange(12) for _ in range(arity))
        contents: Counter[int] = Counter()
        for time, v, diff in world.written:
            if all(x <= y for x, y in zip(time, at, strict=True)):
                contents[v] += diff
        wanted = {v: n for v, n in contents.items() if n}
        if frontier.less_equal(at) or min(wanted.values(), default=1) < 0:
            continue
        if not since.less_equal(at):
            with pytest.raises(SinceViolationError):
                log.snapshot(list(at))
            continue
        assert {row["v"]: row["_diff"] for row in log.snapshot(list(at)).to_pylist()} == wanted


def run_answers(kind: str, arity: int, rng: random.Random, folder: Path | None = None, *, keyed: bool = False) -> None:
    world = World(kind, arity, rng, folder, keyed=keyed)
    for _ in range(rng.randrange(4, 25)):
        world.step()
        if rng.random() < 0.3:
            check_answers(world, world.handle())
    check_answers(world, world.log)
    world.log.refresh()
    before = world.log.verify(since=world.log.since())
    world.log.compact(logical=True)
    check_answers(world, world.log)
    after = world.log.verify(since=world.log.since())
    assert after.legal, after.problems
    rows = [(time, v, diff) for (time, v), diff in world.rows(world.log.since()).items()]
    state = CanonicalState(["v"], arity)
    times = np.array([time for time, *_ in rows], np.int64).reshape(-1, arity)
    state.add(pa.table({"v": pa.array([v for _, v, _ in rows], pa.int64())}), times, [diff for *_, diff in rows])
    assert after.digest == before.digest == state.digest(world.log.frontier())


@shapes
@arities
@many
@given(s.randoms(use_true_random=True))
def test_answers_of_a_log_that_forgets(kind: str, arity: int, rng: random.Random) -> None:
    run_answers(kind, arity, rng)


@shapes
@arities
@pytest.mark.parametrize("seed", range(200 if os.environ.get("SPARK_TIMELY_LONG") else 2))
def test_answers_of_a_log_that_others_rewrite_too(kind: str, arity: int, seed: int, tmp_path: Path) -> None:
    run_answers(kind, arity, random.Random(seed), tmp_path, keyed=kind == "collection" and seed % 2 == 0)


class Consumer:
    """A replay with a checkpoint, and what it was given."""

    def __init__(self, world: World, name: str | None, options: dict[str, str]) -> None:
        self.world, self.name = world, name
        self.options = {"includeTime": "true", **options, **({} if name is None else {"consumerId": name})}
        self.begin()

    def begin(self) -> None:
        self.checkpoint = Checkpoint()
        self.batches: dict[int, Any] = {}

    def pinned(self) -> Antichain:
        """Return the since that the first offset is of."""
        for text in self.checkpoint.offsets:
            found = json.loads(text)
            if "frontier" in found:
                return Antichain.from_json(
                    found.get("asOf", found["origin"] if self.world.kind == "stream" else None)
                    or [*self.world.log.domain.minimum_frontier.to_json()],
                    self.world.arity,
                )
        return self.world.log.domain.minimum_frontier

    def position(self) -> Antichain:
        for text in reversed(self.checkpoint.offsets[: self.checkpoint.n_committed]):
            found = json.loads(text)
            if "frontier" in found:
                return Antichain.from_json(found["frontier"], self.world.arity)
        return self.world.log.domain.minimum_frontier

    def run(self) -> None:
        rng = self.world.rng
        options = dict(self.options)
        if rng.random() < 0.5:
            options["maxTimesPerTrigger"] = rng.choice(["1", "2"])
        try:
            driver = drive(self.world.log, checkpoint=self.checkpoint, **options)
            for batch in driver.available_now(fail_after=rng.choice([None, None, 0, 1])):
                again = self.batches.get(batch.number)
                assert again is None or self.world.told(again) == self.world.told(batch.rows)
                self.batches[batch.number] = batch.rows
        except SinceViolationError:
            # Before its first run nothing is retained.
            assert self.name is None or not self.checkpoint.offsets, "a retainer was overrun"
            self.begin()
            return

    def check(self) -> None:
        """Compare all that was delivered, to the frontier where the consumer stands."""
        found: Updates = Counter()
        for rows in self.batches.values():
            found.update(self.world.told(rows))
        at = self.position()
        if self.batches:
            since = self.pinned()
            assert _nonzero(found) == _nonzero(self.world.rows(since, None, [*at.elements])), (since, at)


def run_replays(kind: str, arity: int, rng: random.Random) -> None:
    world = World(kind, arity, rng)
    consumers = [Consumer(world, "kept", {}), Consumer(world, None, {})]
    for _ in range(rng.randrange(4, 25)):
        world.step()
        if rng.random() < 0.4:
            rng.choice(consumers).run()
    for consumer in consumers:
        consumer.run()
        while consumer.checkpoint.n_committed < len(consumer.checkpoint.offsets):
            consumer.run()
        consumer.check()


@shapes
@arities
@many
@given(s.randoms(use_true_random=True))
def test_replays_of_a_log_that_forgets(kind: str, arity: int, rng: random.Random) -> None:
    """One that retains where it stands loses nothing; one that does not is right, or refused and begins again."""
    run_replays(kind, arity, rng)


@shapes
@arities
@many
@given(s.randoms(use_true_random=True))
def test_arrival_of_a_log_that_forgets(kind: str, arity: int, rng: random.Random) -> None:
    """Commits are delivered whole, after what is left of those that are forgotten; or refused, to begin again."""
    world = World(kind, arity, rng)
    checkpoint, batches = Checkpoint(), {}
    for _ in range(rng.randrange(4, 20)):
        world.step()
        if rng.random() > 0.5:
            continue
        driver = drive(world.log, checkpoint=checkpoint, delivery="arrival", includeTime="true")
        try:
            for batch in driver.available_now(fail_after=rng.choice([None, 0])):
                again = batches.get(batch.number)
                assert again is None or world.told(again) == world.told(batch.rows)
                batches[batch.number] = batch.rows
        except SinceViolationError:
            assert checkpoint.offsets, "a query that begins is refused"
            checkpoint, batches = Checkpoint(), {}
            continue
        if checkpoint.n_committed == len(checkpoint.offsets):
            found: Updates = Counter()
            for rows in batches.values():
                found.update(world.told(rows))
            pinned = json.loads(checkpoint.offsets[0]).get("since") if checkpoint.offsets else None
            minimum = world.log.domain.minimum_frontier
            since = minimum if pinned is None else Antichain.from_json(pinned, arity)
            assert _nonzero(found) == _nonzero(world.rows(since))


def equality_allowed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "needed_by_changes", lambda frontier, minimum: frontier)


def strictly_later(patch: pytest.MonkeyPatch) -> None:
    def may_read(since: Antichain, needed: Antichain) -> bool:
        return all(since.less_than(time) or time == (0,) * since.arity for time in needed)

    patch.setattr(rules, "needed_by_changes", lambda frontier, minimum: frontier)
    patch.setattr(rules, "may_read", may_read)


def later_rows_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forgetting, "is_later", lambda since, times: np.zeros(len(times), np.bool_))


def moved_below(patch: pytest.MonkeyPatch) -> None:
    found = rules.moved_to
    patch.setattr(rules, "moved_to", lambda since: tuple(x - 1 for x in found(since)))


def frontier_not_asked(patch: pytest.MonkeyPatch) -> None:
    def decide(retention: Any, wanted: Antichain, own: Antichain, **more: Any) -> Any:
        return found(retention, wanted, wanted, **more)

    found = rules.decide_since
    patch.setattr(retention, "decide_since", decide)


def retainers_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules.Retainer, "is_alive", lambda self, now: False)


def run_many(seeds: Iterable[int]) -> None:
    for seed in seeds:
        for kind, arity in (("collection", 2), ("collection", 1), ("stream", 1)):
            run_answers(kind, arity, random.Random(seed))
            run_replays(kind, arity, random.Random(seed))


# With the seed that finds it with the least work, which is tried first.
@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        (equality_allowed, 16),
        (strictly_later, 0),
        (later_rows_summed, 8),
        (moved_below, 13),
        (frontier_not_asked, 14),
        (retainers_not_asked, 19),
    ],
)
def test_wrong_rules_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_many(range(first, first + 300))
