"""How far committers move since by themselves, against an oracle that remembers every commit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from spark_timely.log.machine import since as rules
from spark_timely.log.machine.since import (
    Keep,
    Retention,
    decide_keep,
    decide_kept,
    decide_retain,
    decide_since,
    everything,
    needed_from,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType

DOMAIN = TimeDomain((TimeType.LONG,), (0,))
NEVER = 1 << 60


@dataclass
class World:
    """A log of one coordinate as people see it: what was committed when; and its state as the rules have it."""

    kind: str
    committed: int
    now: int = 1_000
    frontier: int | None = 0  # None: complete
    commits: list[tuple[int, int]] = field(default_factory=list)  # moment, time of a message
    frontiers: list[tuple[int, int | None]] = field(default_factory=list)  # moment, frontier after it
    state: Retention = field(default_factory=lambda: everything(DOMAIN))

    @property
    def antichain(self) -> Antichain:
        return Antichain.empty() if self.frontier is None else Antichain.of(self.frontier)

    @property
    def greatest(self) -> int | None:
        times = [time for _, time in self.commits]
        return max(times) if self.frontier is None and times else None

    @property
    def own(self) -> Antichain:
        return needed_from(self.kind, self.antichain, (0,))  # type: ignore[arg-type]

    @property
    def since(self) -> int:
        return self.state.since.elements[0][0]

    def commit(self, rng: random.Random) -> None:
        if self.frontier is None:
            return
        for _ in range(rng.randrange(3)):
            self.commits.append((self.now, self.frontier + rng.randrange(6)))
        self.frontier += rng.randrange(9)
        if rng.random() < 0.02:
            self.frontier = None
        self.frontiers.append((self.now, self.frontier))

    def was(self, then: int) -> int | None:
        return next((there for at, there in reversed(self.frontiers) if at <= then), 0)

    def look_up(self) -> None:
        """Note what the frontier was where nobody did for long."""
        keep = self.state.keep
        if keep is not None and keep.is_stale(self.now):
            then = self.now - keep.committed
            there = self.was(then)
            self.state = replace(
                self.state, keep=keep.known(then, Antichain.empty() if there is None else Antichain.of(there))
            )

    def upkeep(self) -> None:
        self.look_up()
        self.become(
            decide_kept(self.state, self.antichain, self.greatest, self.own, minimum=(0,), now=self.now), self.state
        )

    def allow(self, to: int) -> None:
        keep = self.state.keep
        floor = None if keep is None else keep.floor(self.antichain, self.greatest, (0,), self.now)
        found = decide_since(self.state, Antichain.of(to), self.own, by="hand", now=self.now, floor=floor)
        self.become(found, self.state)

    def keep(self, keep: Keep | None) -> None:
        self.become(decide_keep(self.state, keep, self.antichain, now=self.now), self.state)

    def retain(self, name: str, to: int, expires: int) -> None:
        needed = needed_from(self.kind, Antichain.of(to), (0,))  # type: ignore[arg-type]
        if needed.elements[0][0] < self.since:
            return
        found = decide_retain(
            "/log", DOMAIN, self.state, name, needed, owner="me", expires=self.now + expires, now=self.now
        )
        self.become(found, self.state)

    def become(self, found: Retention | None, before: Retention) -> None:
        if found is None:
            return
        assert found.seq == before.seq + 1
        self.state = found
        old, new = before.since.elements[0][0], found.since.elements[0][0]
        assert new >= old
        if new == old:
            return
        for retainer in before.retainers.values():
            if retainer.expires > self.now and not retainer.overrun:
                assert new <= retainer.needed.elements[0][0]
        if found.keep is None:
            return
        end = self.greatest if self.frontier is None else self.frontier
        assert end is not None
        assert new <= end - found.keep.length
        young = [time for at, time in self.commits if at > self.now - found.keep.committed]
        assert all(time >= new for time in young)
        assert len(found.keep.seen) <= 12

    def target(self, late: int) -> int:
        """How far since should be after upkeep, if frontiers of `late` ago count."""
        keep = self.state.keep
        assert keep is not None
        end = self.greatest if self.frontier is None else self.frontier
        bounds = [0 if end is None else end - keep.length]
        if keep.committed:
            there = self.was(self.now - keep.committed - late)
            bounds += [] if there is None else [there]
        bounds += [each.needed.elements[0][0] for each in self.state.alive(self.now)]
        bounds += [time[0] for time in self.own.elements]
        return max(0, min(bounds))


def run(seed: int) -> tuple[int, int]:
    """Run one history; return how often since moved, and how often a retainer was what held it."""
    rng = random.Random(seed)
    world = World(rng.choice(["stream", "collection"]), committed := rng.choice([0, 8, 80, 800]))
    step = max(1, committed // 16)
    moved = held = 0
    world.keep(Keep(rng.randrange(20), committed))
    for _ in range(150):
        before = world.since
        world.now += rng.randint(1, step) if rng.random() < 0.98 else rng.randint(1, 20 * step)
        world.commit(rng)
        if rng.random() < 0.1:
            world.retain(rng.choice("ab"), world.since + rng.randrange(30), rng.choice([5, 50, NEVER]))
        if rng.random() < 0.1:
            world.allow(rng.randrange(200))
        if rng.random() < 0.03:
            world.keep(Keep(rng.randrange(20), committed))
        if rng.random() < 0.03:
            world.state = replace(world.state, retainers={})
        others = world.since
        world.upkeep()
        moved += world.since > before
        wanted = world.target(late=committed // 4 + 1)
        assert world.since >= wanted, seed
        if not committed:
            assert world.since == max(others, wanted), seed
        held += bool(world.state.alive(world.now))
    return moved, held


def test_since_follows_what_the_log_keeps() -> None:
    moved, held = (sum(each) for each in zip(*(run(seed) for seed in range(120)), strict=True))
    assert moved > 1000
    assert held > 1000


def clock_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules.Keep, "settled", lambda self, frontier, now: frontier)


def youngest_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules.Keep, "settled", lambda self, frontier, now: self.seen[-1][1] if self.seen else None)


def floor_for_committers_alone(patch: pytest.MonkeyPatch) -> None:
    found = rules.decide_since

    def decide(*args: Any, **more: Any) -> Retention | None:
        return found(*args, **{**more, "floor": None})

    patch.setitem(globals(), "decide_since", decide)


def nothing_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules.Keep, "is_stale", lambda self, now: False)


@pytest.mark.parametrize("mutant", [clock_not_asked, youngest_counted, floor_for_committers_alone, nothing_looked_up])
def test_mutants_of_keep_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        [run(seed) for seed in range(200)]


def test_clock_that_was_ahead_holds_nothing_up() -> None:
    keep = Keep(0, 80).noted(Antichain.of(1), 10_000)  # by a clock that was wrong
    keep = keep.noted(Antichain.of(2), 100)
    assert keep.seen == ((100, Antichain.of(2)),)
    assert keep.floor(Antichain.of(9), None, (0,), 180) == Antichain.of(2)


def test_complete_log_is_kept_by_its_greatest_time() -> None:
    nothing = Antichain.empty()
    assert Keep(5, 0).floor(nothing, 30, (0,), 1) == Antichain.of(25)
    assert Keep(5, 0).floor(nothing, None, (0,), 1) == Antichain.of(0)  # no statistics: everything
    assert Keep(50, 0).floor(nothing, 30, (0,), 1) == Antichain.of(0)
    least = -(1 << 63)
    assert Keep((1 << 63) - 1, 0).floor(Antichain.of(-5), None, (least,), 1) == Antichain.of(least)
