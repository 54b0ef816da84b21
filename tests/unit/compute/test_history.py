"""The history says the same when it is reduced, in the order that it has to have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.history import History, reduced
from spark_timely.compute.session import Session
from spark_timely.errors import TimelyError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.support import examples
from tests.unit.compute.support import EMPTY, at, create, drop


def test_reduced_history_has_its_order() -> None:
    commands = [
        CreateTimely(1),
        CreateInstance(),
        UpdateConfiguration({"a": 1, "b": 1}),
        InitializationComplete(),
        create("a", "b", as_of=3),
        Schedule("a"),
        AllowCompaction("a", at(9)),
        Peek("p", (3,), "a"),
        Peek("q", (3,), "a"),
        AllowWrites(),
        create("c", as_of=4),
        AllowCompaction("b", at(6)),
        UpdateConfiguration({"b": 2}),
        CancelPeek("q"),
    ]
    assert reduced(commands) == (
        CreateTimely(1),
        CreateInstance(),
        UpdateConfiguration({"a": 1, "b": 2}),
        create("a", "b", as_of=6),
        create("c", as_of=4),
        Schedule("a"),
        Peek("p", (3,), "a"),
        AllowCompaction("a", at(9)),
        InitializationComplete(),
        AllowWrites(),
    )
    assert reduced(reduced(commands)) == reduced(commands)


@pytest.mark.parametrize(
    ("commands", "left"),
    [
        # The as_of is the meet over the exports; an export that nobody allowed anything counts with its own as_of.
        ([create("a", "b"), AllowCompaction("a", at(9))], [create("a", "b"), AllowCompaction("a", at(9))]),
        ([create("a"), AllowCompaction("a", at(9)), AllowCompaction("a", at(5))], [create("a", as_of=9)]),
        ([create("a"), AllowCompaction("a", at(2))], [create("a")]),
        # One that is dropped counts no more, and stays dropped.
        (
            [create("a", "b"), AllowCompaction("a", at(9)), drop("b")],
            [create("a", "b", as_of=9), Schedule("b"), drop("b")],
        ),
        # All dropped: gone, with its schedules, its peeks, and its compaction.
        ([create("a", "b"), Schedule("a"), Peek("p", (3,), "a"), drop("a"), drop("b")], []),
        ([create("a"), drop("a"), create("a", as_of=7), Schedule("a")], [create("a", as_of=7), Schedule("a")]),
        # What is unknown is left out.
        ([Schedule("x"), AllowCompaction("x", at(4)), CancelPeek("p")], []),
        ([create("a"), Schedule("a"), Schedule("a")], [create("a"), Schedule("a")]),
        # An index is not let go below those that read it.
        (
            [create("a", as_of=1), create("b", reads=["a"], as_of=4), AllowCompaction("a", at(9))],
            [create("a", as_of=4), create("b", reads=["a"], as_of=4), AllowCompaction("a", at(9))],
        ),
        (
            [create("a:log", as_of=1), create("b", reads=["a"], as_of=4), AllowCompaction("a", at(9))],
            [create("a:log", as_of=9), create("b", reads=["a"], as_of=4)],
        ),
        # What an export gives up before it is scheduled.
        ([create("a", "b"), drop("a"), Schedule("b")], [create("a", "b"), Schedule("a"), Schedule("b"), drop("a")]),
        ([create("a", "b"), Schedule("b"), drop("a")], [create("a", "b"), Schedule("b"), drop("a")]),
        ([create("a", "b"), Schedule("b"), drop("a"), Schedule("a")], [create("a", "b"), Schedule("b"), drop("a")]),
    ],
)
def test_reduced_history_says_what_is_left(commands: list[object], left: list[object]) -> None:
    assert reduced(commands) == tuple(left)  # type: ignore[arg-type]
    assert reduced(left) == tuple(left)  # type: ignore[arg-type]


def test_dataflows_that_did_not_wait_are_scheduled() -> None:
    off, on = UpdateConfiguration({"scheduling": False}), UpdateConfiguration({"scheduling": True})
    assert reduced([off, create("a"), on, create("b")]) == (on, create("a"), create("b"), Schedule("a"))
    assert reduced([create("a"), off]) == (off, create("a"), Schedule("a"))


def test_compaction_of_several_coordinates_is_met_and_joined() -> None:
    two = TimeDomain(("long", "long"), (0, 0))
    made = create("a", "b", as_of=at((0, 0)), domain=two)
    found = reduced([made, AllowCompaction("a", at((1, 3))), AllowCompaction("b", at((3, 1)))])
    assert found[0] == create("a", "b", as_of=at((1, 3), (3, 1)), domain=two)
    assert found[1:] == (AllowCompaction("a", at((1, 3))), AllowCompaction("b", at((3, 1))))
    assert reduced(found) == found


def test_rule_004_72_history_is_reduced_when_it_is_twice() -> None:
    history = History()
    for command in (CreateTimely(1), CreateInstance(), create("a")):
        history.append(command)
    history.reduce()
    assert [history.append(AllowCompaction("a", at(time))) for time in (4, 5, 6)] == [False, False, False]
    assert len(history) == 6
    assert history.append(AllowCompaction("a", at(7)))
    assert history.commands == (CreateTimely(1), CreateInstance(), create("a", as_of=7))


def test_peeks_and_what_is_about_passing_dataflows_do_not_last() -> None:
    passing = create("x", interactive=True)
    history = History([CreateTimely(1), create("a"), passing, create("y", restartable=False)])
    for command in (Schedule("x"), Schedule("a"), Peek("p", (3,), "a"), CancelPeek("p"), drop("x"), drop("y")):
        assert history.lasts(command) == (command == Schedule("a"))
        history.append(command)
    assert history.lasting() == (CreateTimely(1), create("a"), Schedule("a"))
    # An id that is given once more is judged by what has it now.
    history.append(create("x"))
    assert history.lasts(Schedule("x"))
    assert not history.lasts(passing)


def test_peek_with_its_answer_is_not_live() -> None:
    history = History([create("a"), Peek("p", (3,), "a")])
    history.retire_peek("p")
    assert history.reduced() == (create("a"),)


def test_dropped_frontier_has_the_arity_of_its_dataflow() -> None:
    assert reduced([create("a", "b"), drop("a")])[-1] == AllowCompaction("a", EMPTY)
    two = TimeDomain(("long", "long"), (0, 0))
    made = create("a", "b", as_of=at((0, 0)), domain=two)
    assert reduced([made, AllowCompaction("a", Antichain.empty(2))])[-1] == AllowCompaction("a", Antichain.empty(2))


TWO = TimeDomain(("long", "long"), (0, 0))
times = st.tuples(st.integers(0, 3), st.integers(0, 3))
frontiers = st.lists(times, min_size=1, max_size=3).map(lambda found: Antichain.of(*found))
steps = st.one_of(
    st.tuples(st.just("create"), st.permutations("abcd"), st.integers(1, 2), frontiers),
    st.tuples(st.just("compact"), st.sampled_from("abcd"), frontiers),
    st.tuples(st.just("compact"), st.sampled_from("abcd"), st.just(Antichain.empty(2))),
    st.tuples(st.just("schedule"), st.sampled_from("abcd")),
)


@examples(400, long=5000)
@given(st.lists(steps, min_size=8, max_size=25))
def test_reduced_history_leads_to_the_same_in_a_product_order(found: list[tuple[Any, ...]]) -> None:
    """Wherever it is reduced on the way: what is allowed and may be read, and it is accepted from the beginning."""
    whole, often = Session(), Session()
    commands: list[Command] = [CreateTimely(1), CreateInstance()]
    for command in commands:
        whole.fold(command)
    for what, *rest in found:
        if what == "create":
            ids, n, as_of = rest
            flows = sorted(whole.allowed.keys() - set(ids[:n]))
            as_of = as_of.join(whole.allowed[flows[0]]) if flows else as_of
            commands.append(create(*ids[:n], as_of=as_of, domain=TWO, reads=flows[:1]))
        else:
            commands.append(Schedule(*rest) if what == "schedule" else AllowCompaction(*rest))
        try:
            whole.check(commands[-1])
        except TimelyError:
            commands.pop()
            continue
        whole.fold(commands[-1])
    kept: tuple[Command, ...] = ()
    for command in commands:
        kept = reduced([*kept, command])
        assert reduced(kept) == kept
    assert kept == reduced(commands)
    for command in kept:
        often.check(command)
        often.fold(command)
    assert often.allowed == whole.allowed
    assert {id_: known.live for id_, known in often.flows.items()} == {
        id_: known.live for id_, known in whole.flows.items()
    }
