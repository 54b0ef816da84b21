"""A scope before its first turn: rules 000.16 to 000.29."""

from __future__ import annotations

import random

import pytest

from spark_timely.errors import InvalidUsageError
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.subgraph import Refines
from spark_timely.progress.worker import Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Region, Scripted, alone, filled, mapper, sink, source, turn


def test_rule_000_16_a_scope_speaks_for_all_peers_a_leaf_for_one() -> None:
    subgraph, _ = alone(mapper())
    assert subgraph.local is False
    assert subgraph.children[0].local is True


def test_rule_000_17_summary_is_of_minimal_paths_in_outer_times() -> None:
    builder = Worker().new_dataflow().new_scope("loop", nested=True)
    builder.new_input()
    builder.new_output()
    long = builder.add_child(Scripted("long", 1, 1, minimum=(0, 0), summary=[[[(3, 0)]]]))
    round_ = builder.add_child(Scripted("round", 1, 1, minimum=(0, 0), summary=[[[(0, 7)]]]))
    for number in (long, round_):
        builder.connect(Source(0, 0), Target(number, 0))
        builder.connect(Source(number, 0), Target(0, 0))
    summary, _ = builder.build().get_internal_summary()
    # Outside, a round costs nothing, and the path of three steps is not minimal.
    assert [dict(row) for row in summary] == [{0: [(0,)]}]


def test_rule_000_18_capabilities_inside_move_to_the_outputs() -> None:
    builder = Worker().new_dataflow().new_scope("loop", nested=True)
    builder.new_output()
    builder.new_output()
    early = builder.add_child(Scripted("early", 0, 1, minimum=(0, 0), initial=[(0, (2, 5), 1), (0, (2, 6), 2)]))
    late = builder.add_child(Scripted("late", 1, 1, minimum=(0, 0), summary=[[[(1, 0)]]], initial=[(0, (9, 0), 1)]))
    builder.connect(Source(early, 0), Target(late, 0))
    builder.connect(Source(early, 0), Target(0, 0))
    builder.connect(Source(late, 0), Target(0, 1))
    _, capabilities = builder.build().get_internal_summary()
    assert list(capabilities) == [(0, (2,), 1), (1, (3,), 1)]


def test_rule_000_19_first_capabilities_reach_the_parent_once() -> None:
    inside = mapper()
    region = Region(inside)
    assert [child.initial for child in region.parent._children.values() if child.name == "region"] == [[(0, (0,), 1)]]
    region.start()
    for _ in range(4):
        region.worker.step()
    # Had the first turn reported them again, one drop would not be enough.
    region.source.say(internal=[(0, (0,), -1)])
    inside.say(internal=[(0, (0,), -1)])
    while region.worker.step():
        assert region.sink.turns < 20
    assert region.sink.frontier() == []


def test_rule_000_20_ports_of_the_outside_are_those_of_the_scope() -> None:
    builder = Worker().new_dataflow().new_scope("region")
    builder.new_input()
    builder.new_output()
    builder.add_child(sink())
    builder.connect(Source(0, 1), Target(1, 0))
    with pytest.raises(InvalidUsageError, match=r"source \(0, 1\) .* but no such port"):
        builder.build()


def test_rule_000_21_first_capabilities_are_never_exchanged() -> None:
    events: list[object] = []
    network = MemoryNetwork(2, automatic=False)
    workers = [Worker(transport, events=events.append) for transport in network.transports]
    leaves: list[Scripted] = []
    for worker in workers:
        scope = worker.new_dataflow()
        leaves.append(source(peers=2))
        scope.add_child(leaves[-1])
        worker.add(scope)
    assert workers[0].dataflow(0).children[0].initial == [(0, (0,), 2)]
    for worker in workers:
        worker.step()
    assert not network.in_flight
    leaves[0].say(internal=[(0, (0,), -1)])
    for _ in range(4):
        workers[0].step()
        network.deliver_all()
    # The other peer's is still held.
    assert workers[0].dataflows == [0]
    leaves[1].say(internal=[(0, (0,), -1)])
    for _ in range(4):
        for worker in workers:
            worker.step()
        network.deliver_all()
    assert workers[0].dataflows == workers[1].dataflows == []


def test_rule_000_23_outer_frontiers_are_capabilities_inside() -> None:
    inside = Scripted("inside", 1, 1, minimum=(0, 0))
    subgraph, _ = alone(inside, nested=True, frontier=(4,))
    inside.say(internal=[(0, (0, 0), -1)])
    turn(subgraph)
    turn(subgraph)
    assert inside.frontier() == [(4, 0)]


def test_rule_000_24_what_the_outside_may_send_is_not_the_scopes() -> None:
    inside = mapper()
    subgraph, _ = alone(inside, through=True)
    inside.say(internal=[(0, (0,), -1)])
    assert turn(subgraph)[1] == []
    # The leaf lets go; the outside's capability still is at 0, upstream of the output.
    assert turn(subgraph)[1] == [(0, (0,), -1)]
    assert inside.frontier() == [(0,)]


def test_rule_000_25_a_child_without_notice_gets_no_frontiers() -> None:
    deaf = mapper("deaf", notify=False)
    after = mapper("after")
    subgraph, _ = alone(deaf, after)
    deaf.say(internal=[(0, (0,), -1)])
    for _ in range(3):
        turn(subgraph)
    subgraph.push_external_progress(filled(1, [(0, (0,), -1), (0, (6,), 1)]))
    for _ in range(3):
        turn(subgraph)
    assert deaf.told == []
    assert deaf.turns > 0
    assert after.frontier() == [(6,)]


def test_rule_000_26_children_learn_the_frontiers_at_the_start() -> None:
    class Curious(Scripted):
        start: list[tuple[int, tuple[int, ...], int]]

        def set_external_summary(self, frontier: object) -> None:
            self.start = list(frontier)  # type: ignore[call-overload]

    first, second = Curious("first", 1, 1, summary=[[[(2,)]]], initial=[]), Curious("second", 1, 1, initial=[])
    alone(first, second, frontier=(3,))
    assert first.start == [(0, (3,), 1)]
    assert second.start == [(0, (5,), 1)]


def test_rule_000_27_a_child_is_told_discrete_changes_only() -> None:
    inside = mapper()
    child = alone(inside)[0].children[0]
    child.external_buffer.clear()
    child.receive_frontiers([(0, (0,), 2), (0, (4,), 1)])
    assert child.external_buffer.is_empty()
    child.receive_frontiers([(0, (0,), -3)])
    assert list(child.external_buffer) == [(0, (0,), -1), (0, (4,), 1)]


def test_rule_000_29_nothing_is_left_in_the_tracker_at_the_start() -> None:
    subgraph, _ = alone(mapper())
    assert subgraph._tracker.drain_pushed() == []
    assert subgraph._tracker.drain_output() == []


def test_both_calls_before_the_first_turn_come_once_in_order() -> None:
    subgraph = Worker().new_dataflow("flow").build()
    with pytest.raises(InvalidUsageError, match="set_external_summary of scope 'flow'"):
        subgraph.set_external_summary(filled(1, []))
    with pytest.raises(InvalidUsageError, match="could not run scope 'flow'"):
        turn(subgraph)
    subgraph.get_internal_summary()
    with pytest.raises(InvalidUsageError, match="get_internal_summary of scope 'flow'"):
        subgraph.get_internal_summary()


@pytest.mark.parametrize("refinement", [Refines(1), Refines(3), Refines(0, True), Refines(1, True), Refines(2, True)])
def test_rule_000_23_and_30_times_go_in_and_out_of_a_scope(refinement: Refines) -> None:
    rng = random.Random(0)
    for _ in range(20):
        outer = tuple(rng.randrange(99) for _ in range(refinement.outer_arity))
        inner = tuple(rng.randrange(99) for _ in range(refinement.inner_arity))
        there = refinement.to_inner(outer)
        assert len(there) == refinement.inner_arity
        assert refinement.to_outer(there) == outer
        assert all(a <= b for a, b in zip(refinement.to_inner(refinement.to_outer(inner)), inner, strict=True))


@pytest.mark.parametrize("refinement", [Refines(2), Refines(1, True), Refines(2, True)])
def test_rule_000_17_outer_summaries_lead_where_inner_ones_do(refinement: Refines) -> None:
    rng = random.Random(1)
    for _ in range(20):
        inner, steps = (tuple(rng.randrange(9) for _ in range(refinement.inner_arity)) for _ in range(2))
        moved = tuple(a + b for a, b in zip(inner, steps, strict=True))
        outside = zip(refinement.to_outer(inner), refinement.to_outer(steps), strict=True)
        assert tuple(a + b for a, b in outside) == refinement.to_outer(moved)
