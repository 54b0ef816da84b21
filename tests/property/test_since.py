"""Which answers a log with a since may give, against brute force over small grids of times."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as s

from spark_timely.errors import InvalidUsageError, OwnershipError, SinceViolationError
from spark_timely.log.machine.since import (
    Retainer,
    Retention,
    check_may_read,
    decide_release,
    decide_retain,
    decide_since,
    everything,
    may_read,
    needed_as_of,
    needed_by_changes,
    needed_by_contents,
    needed_from,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType

SIDE = 5


def grid(arity: int) -> np.ndarray:
    return np.array(list(itertools.product(range(SIDE), repeat=arity)), np.int64)


def antichains(arity: int) -> list[Antichain]:
    """Return all antichains of one or two times of a grid, and those of three along its diagonal."""
    times = [tuple(time) for time in grid(arity).tolist()]
    found = {Antichain.of(*chosen) for n in (1, 2) for chosen in itertools.combinations(times, n)}
    if arity == 2:
        found |= {Antichain.of((0, 4), (2, 2), (4, 0)), Antichain.of((0, 2), (1, 1), (2, 0))}
    return sorted(found, key=repr)


def advance_by(times: np.ndarray, since: Antichain) -> np.ndarray:
    """Return times as differential moves them: to the greatest that no time beyond since can tell from them."""
    return np.minimum.reduce([np.maximum(times, element) for element in since.elements])


def comes_twice(since: Antichain, frontier: Antichain, times: np.ndarray) -> bool:
    """Whether an update that a replay at a frontier has had stands beyond it once times are moved to since."""
    had = ~frontier.beyond(times)
    return bool(frontier.beyond(advance_by(times[had], since)).any())


@pytest.mark.parametrize("arity", [1, 2])
def test_no_update_comes_twice_to_who_may_read(arity: int) -> None:
    times, minimum = grid(arity), (0,) * arity
    wrong_by_equality = wrong_by_strictness = useful = 0
    for since, frontier in itertools.product(antichains(arity), repeat=2):
        twice = comes_twice(since, frontier, times)
        allowed = may_read(since, needed_by_changes(frontier, minimum))
        assert not (allowed and twice), (since, frontier)
        useful += allowed
        if not allowed and not twice:
            # Refused without need: only at the edge, where nothing was before, or by a since of several times.
            assert (np.asarray(frontier.times) == 0).any() or len(since) > 1, (since, frontier)
        wrong_by_equality += since.less_equal_frontier(frontier) and twice
        wrong_by_strictness += all(since.less_than(time) for time in frontier) and twice
    assert useful > 10
    # The rules that come to mind first are wrong: this test can tell.
    assert wrong_by_equality
    assert bool(wrong_by_strictness) == (arity > 1)


@pytest.mark.parametrize("arity", [1, 2])
def test_contents_at_and_beyond_since_stay_the_same(arity: int) -> None:
    times = grid(arity)
    for since in antichains(arity):
        moved = advance_by(times, since)
        for at in times:
            if may_read(since, needed_by_contents(tuple(at.tolist()))):
                assert np.array_equal((times <= at).all(axis=1), (moved <= at).all(axis=1)), (since, at)


@pytest.mark.parametrize("arity", [1, 2])
def test_streams_keep_all_that_a_replay_may_ask_for(arity: int) -> None:
    times, minimum = grid(arity), (0,) * arity
    for since, frontier in itertools.product(antichains(arity), repeat=2):
        kept = since.beyond(times)
        allowed = may_read(since, needed_from("stream", frontier, minimum))
        assert allowed == bool(kept[frontier.beyond(times)].all()), (since, frontier)


def test_frontiers_in_the_past_of_the_log_are_not_passed() -> None:
    # Closed, yet (0, 4) may still be written: read as (2, 4) it would be a change of another time.
    frontier, wanted = Antichain.of((0, 3), (3, 0)), Antichain.of((2, 2))
    own = needed_from("collection", frontier, (0, 0))
    moved = decide_since(Retention(Antichain.of((0, 0))), wanted, own, by="me", now=1)
    assert moved is not None
    assert moved.since == Antichain.of((0, 2), (2, 0))
    open_times = grid(2)[frontier.beyond(grid(2))]
    assert np.array_equal(advance_by(open_times, moved.since), open_times)


TIMES = s.tuples(s.integers(0, 6), s.integers(0, 6))
ANTICHAINS = s.lists(TIMES, min_size=1, max_size=3).map(lambda times: Antichain.of(*times))
STEPS = s.lists(
    s.one_of(
        s.tuples(s.just("since"), ANTICHAINS),
        s.tuples(s.just("retain"), s.tuples(s.sampled_from("abc"), ANTICHAINS, s.integers(0, 4))),
        s.tuples(s.just("release"), s.sampled_from("abc")),
    ),
    max_size=12,
)
DOMAIN = TimeDomain((TimeType.LONG, TimeType.LONG), (0, 0))


@given(steps=STEPS, frontier=ANTICHAINS, kind=s.sampled_from(["stream", "collection"]))
def test_no_live_retainer_is_ever_passed(steps: list[tuple[str, object]], frontier: Antichain, kind: str) -> None:
    retention = everything(DOMAIN)
    own = needed_from(kind, frontier, (0, 0))  # type: ignore[arg-type]
    for now, (what, given_) in enumerate(steps, start=1):
        before = retention
        if what == "since":
            retention = decide_since(retention, given_, own, by="me", now=now) or retention  # type: ignore[arg-type]
            # Never further than asked for, and no less than may be.
            allowed = before.since.join(given_.meet(own))  # type: ignore[attr-defined]
            assert retention.since.less_equal_frontier(allowed)
            if not before.alive(now):
                assert retention.since == allowed
        elif what == "retain":
            name, needed, expiry = given_  # type: ignore[misc]
            try:
                retention = (
                    decide_retain("/log", DOMAIN, retention, name, needed, owner="q", expires=now + expiry, now=now)
                    or retention
                )
            except SinceViolationError:
                assert not may_read(before.since, needed)
        elif given_ in retention.retainers:
            retention = decide_release("/log", retention, str(given_))
        assert before.since.less_equal_frontier(retention.since)
        assert may_read(retention.since, own)
        assert retention.seq - before.seq == (retention is not before)
        for each in retention.retainers.values():
            if not each.overrun:
                assert may_read(retention.since, each.needed)
            else:
                assert each.expires <= now
                assert not may_read(retention.since, each.needed)


def test_expired_retainers_are_passed_and_named() -> None:
    retention = decide_retain(
        "/log", DOMAIN, everything(DOMAIN), "report", Antichain.of((1, 1)), owner="query", expires=60_000_000, now=0
    )
    assert retention is not None
    kept = decide_since(retention, Antichain.of((5, 5)), Antichain.empty(2), by="keep", now=59_999_999)
    assert kept is not None
    assert kept.since == Antichain.of((1, 1))
    moved = decide_since(kept, Antichain.of((5, 5)), Antichain.empty(2), by="keep", now=60_000_000)
    assert moved is not None
    assert moved.since == Antichain.of((5, 5))
    with pytest.raises(
        SinceViolationError,
        match=r"could not read on: found since=\[\[5, 5\]\], moved past consumer 'report' by keep at 1970-01-01T00:01"
        r":00Z, after it expired at 1970-01-01T00:01Z",
    ):
        check_may_read("/log", DOMAIN, moved, Antichain.of((1, 1)), what="read on", consumer="report")
    with pytest.raises(SinceViolationError, match=r"could not retain log '/log' for consumer 'report': found since="):
        decide_retain("/log", DOMAIN, moved, "report", Antichain.of((1, 1)), owner="query", expires=99, now=61)


def test_name_is_of_one_owner_until_it_expires() -> None:
    needed = Antichain.of((1, 1))
    mine = Retention(DOMAIN.minimum_frontier, 3, retainers=MappingProxyType({"a": Retainer("a", needed, "me", 100)}))
    with pytest.raises(OwnershipError, match=r"found it owned by 'me', not by 'you' — hint: .* or release it first"):
        decide_retain("/log", DOMAIN, mine, "a", needed, owner="you", expires=200, now=99)
    taken = decide_retain("/log", DOMAIN, mine, "a", needed, owner="you", expires=200, now=100)
    assert taken == replace(mine, seq=4, retainers={"a": Retainer("a", needed, "you", 200)})
    assert decide_retain("/log", DOMAIN, taken, "a", needed, owner="you", expires=200, now=101) is None
    released = decide_retain("/log", DOMAIN, taken, "a", Antichain.empty(2), owner="you", expires=0, now=101)
    assert released == replace(mine, seq=5, retainers={})
    with pytest.raises(InvalidUsageError, match=r"could not release consumer 'a' .*: found consumers=\[\]"):
        decide_release("/log", released, "a")


ASKED = s.lists(
    s.one_of(
        s.tuples(s.just("since"), ANTICHAINS, s.just(0)),
        s.tuples(s.just("begin"), s.one_of(s.none(), TIMES), s.integers(1, 5)),
        s.tuples(s.just("let go"), s.integers(0, 9), s.just(0)),
    ),
    max_size=14,
)


@given(steps=ASKED, kind=s.sampled_from(["stream", "collection"]))
def test_what_is_begun_as_of_a_time_is_held_or_refused(steps: list[tuple[str, object, int]], kind: str) -> None:
    """Against a program that remembers what each request was promised, and looks at single times."""
    state = everything(DOMAIN)
    promised: list[tuple[object, int, list[tuple[int, ...]]]] = []  # as_of, when it ends, the sinces of then
    top = Antichain.of((9, 9))
    for now, (what, given_, length) in enumerate(steps, start=1):
        alive = [each for each in promised if each[1] > now]
        if what == "since":
            state = decide_since(state, given_, top, by="me", now=now) or state  # type: ignore[arg-type]
        elif what == "let go":
            if promised:
                promised.pop(int(given_) % len(promised))  # type: ignore[call-overload]
        else:
            as_of = None if given_ is None else Antichain.of(given_)  # type: ignore[arg-type]
            lows = [tuple(each) for each in state.since.times.tolist()]
            is_passed = given_ is not None and not any(
                all(low <= at for low, at in zip(each, given_, strict=True))
                for each in lows  # type: ignore[call-overload]
            )
            beside = [
                Antichain.of(*then) if kind == "stream" or at is None else Antichain.of(at)  # type: ignore[arg-type]
                for at, _, then in alive
            ]
            try:
                needed = needed_as_of(
                    "/log",
                    DOMAIN,
                    kind,
                    state,
                    as_of,
                    beside=beside,
                    what="begin",  # type: ignore[arg-type]
                )
            except SinceViolationError:
                assert is_passed
                continue
            assert not is_passed
            longest = max([now + length, *(each[1] for each in alive)])
            promised = [(at, longest, then) for at, _, then in alive] + [(given_, longest, lows)]
            state = (
                decide_retain("/log", DOMAIN, state, "it", needed, owner="it", expires=longest, now=now, brief=True)
                or state
            )
            assert len(state.retainers) == 1
        for at, ends, then in promised:
            if ends > now:
                # Whatever was there when it was begun is told apart; of a collection, as of the time.
                for time in then if kind == "stream" or at is None else [at]:
                    assert may_read(state.since, Antichain.of(time))  # type: ignore[arg-type]
    moved = decide_since(state, top, top, by="me", now=100)
    assert moved is None or not moved.retainers
