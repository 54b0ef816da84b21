"""Building scopes: rules 000.01 to 000.15."""

from __future__ import annotations

import logging

import pytest

from spark_timely.errors import CyclicSummaryError, InvalidShapeError, InvalidUsageError, ProtocolError
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.events import OperatesEvent
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.subgraph import Child
from spark_timely.progress.worker import Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Region, Scripted, alone, chain, mapper, sink, source, turn


def test_rule_000_01_a_scope_presents_exactly_what_is_inside() -> None:
    step = mapper(summary=[[[(2,)]]])
    worker = Worker()
    builder = worker.new_dataflow().new_scope("region")
    builder.new_input()
    builder.new_output()
    number = builder.add_child(step)
    builder.connect(Source(0, 0), Target(number, 0))
    builder.connect(Source(number, 0), Target(0, 0))
    subgraph = builder.build()
    summary, capabilities = subgraph.get_internal_summary()
    assert [[(output, list(paths)) for output, paths in row.items()] for row in summary] == [[(0, [(2,)])]]
    assert list(capabilities) == [(0, (0,), 1)]
    assert (subgraph.inputs, subgraph.outputs) == (1, 1)


def test_rule_000_02_node_0_is_the_outside_children_start_at_1() -> None:
    scope = Worker().new_dataflow().new_scope("region")
    scope.new_input()
    assert scope.add_child(sink()) == 1
    # Node 0 has a source for the scope's input, and no target without an output.
    scope.connect(Source(0, 0), Target(1, 0))
    assert scope.build().inputs == 1
    other = Worker().new_dataflow().new_scope("region")
    other.new_input()
    other.add_child(source())
    other.connect(Source(1, 0), Target(0, 0))
    with pytest.raises(InvalidUsageError, match=r"source \(1, 0\) → target \(0, 0\), but no such port"):
        other.build()


def test_rule_000_03_an_input_keeps_the_counter_of_what_enters() -> None:
    parent = Worker().new_dataflow()
    parent.add_child(source())
    scope = parent.new_scope("region")
    counter = ChangeBatch(1)
    assert scope.new_input(counter) == Target(2, 0)
    assert scope.new_input() == Target(2, 1)
    assert scope.entry(0) is counter


def test_rule_000_04_an_output_is_a_source_outside() -> None:
    parent = Worker().new_dataflow()
    scope = parent.new_scope("region")
    assert [scope.new_output(), scope.new_output()] == [Source(1, 0), Source(1, 1)]
    assert scope.build().outputs == 2


def test_rule_000_05_edges_may_be_stated_before_their_ends_exist() -> None:
    scope = Worker().new_dataflow()
    scope.connect(Source(1, 0), Target(2, 0))
    chain_of = [scope.add_child(source()), scope.add_child(sink())]
    assert chain_of == [1, 2]
    assert scope.build().children[0].edges == {0: [Target(2, 0)]}


def test_rule_000_06_path_is_the_parents_and_the_own_index() -> None:
    worker = Worker()
    worker.new_dataflow()
    parent = worker.new_dataflow()
    assert parent.path == (1,)
    parent.allocate_child_id()
    inner = parent.new_scope("inner")
    assert inner.path == (1, 2)
    assert inner.new_scope("inmost").path == (1, 2, 1)


def test_rule_000_07_numbers_in_sequence_children_in_any_order() -> None:
    scope = Worker().new_dataflow()
    first, second = scope.allocate_child_id(), scope.allocate_child_id()
    assert (first, second) == (1, 2)
    scope.add_child(sink("late"), index=second)
    scope.add_child(source("early"), index=first)
    assert [child.name for child in scope.build().children] == ["early", "late"]


def test_rule_000_08_adding_a_child_is_an_event_that_names_it() -> None:
    events: list[object] = []
    worker = Worker(events=events.append)
    scope = worker.new_dataflow()
    scope.add_child(source("first"))
    scope.add_child(source("second"))
    assert [e for e in events if isinstance(e, OperatesEvent)] == [
        OperatesEvent(id=1, addr=(0, 1), name="first"),
        OperatesEvent(id=2, addr=(0, 2), name="second"),
    ]


def test_rule_000_09_gaps_in_the_numbers_of_children_are_refused() -> None:
    scope = Worker().new_dataflow("flow")
    scope.allocate_child_id()
    scope.add_child(source("lonely"))
    with pytest.raises(InvalidUsageError, match=r"scope 'flow'.*missing=\[1\]"):
        scope.build()


def test_rule_000_09_doubled_numbers_are_refused_by_name() -> None:
    scope = Worker().new_dataflow("flow")
    scope.add_child(source("one"), index=1)
    with pytest.raises(InvalidUsageError, match=r"operator 'two' to scope 'flow' \[0\]: found operator 'one' \[1\]"):
        scope.add_child(source("two"), index=1)


def test_rule_000_10_after_the_build_nothing_can_be_added() -> None:
    scope = Worker().new_dataflow("flow")
    scope.build()
    attempts = [
        lambda: scope.add_child(source("late")),
        lambda: scope.connect(Source(0, 0), Target(0, 0)),
        scope.new_input,
        scope.new_output,
        scope.allocate_child_id,
        lambda: scope.new_scope("inner"),
        scope.build,
    ]
    for attempt in attempts:
        with pytest.raises(InvalidUsageError, match=r"scope 'flow' \[0\]: it is built"):
            attempt()


def test_rule_000_11_nothing_flows_through_the_outside() -> None:
    # The scope's output does not lead back to its input, unless an edge outside says so.
    inside = mapper()
    subgraph, _ = alone(inside, frontier=(5,))
    inside.say(internal=[(0, (0,), -1)])
    for _ in range(3):
        turn(subgraph)
    assert inside.frontier() == [(5,)]


def test_rule_000_12_edges_count_messages_and_carry_frontiers() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    first, second = source(), sink()
    chain(scope, first, second)
    number = worker.add(scope)
    first.say(internal=[(0, (0,), -1), (0, (4,), 1)], produced=[(0, (2,), 1)])
    for _ in range(3):
        worker.step()
    # The message at 2 and the capability at 4 both show at the sink.
    assert second.frontier() == [(2,)]
    second.say(consumed=[(0, (2,), 1)])
    for _ in range(3):
        worker.step()
    assert second.frontier() == [(4,)]
    assert worker.dataflow(number).children[0].edges == {0: [Target(2, 0)]}


def test_rule_000_12_an_edge_with_an_unknown_end_is_refused() -> None:
    for wrong in [(Source(1, 1), Target(2, 0)), (Source(1, 0), Target(3, 0)), (Source(0, 0), Target(2, 0))]:
        scope = Worker().new_dataflow("flow")
        chain(scope, source(), sink())
        scope.connect(*wrong)
        with pytest.raises(InvalidUsageError, match=r"scope 'flow' \[0\]: found the edge .*, but no such port"):
            scope.build()


def test_rule_000_13_each_scope_has_a_progress_channel_in_order() -> None:
    for transport in MemoryNetwork(2).transports:
        region = Region(mapper(peers=2), worker=Worker(transport))
        assert region.subgraph.channel == 0
        assert region.parent.build().channel == 1


@pytest.mark.parametrize(
    "summary",
    [
        [],
        [[[(0,)]], [[(0,)]]],
        [[]],
        [[[(0,)], [(0,)]]],
        [{1: [(0,)]}],
        [[[(0, 0)]]],
    ],
)
def test_rule_000_14_a_summary_of_another_shape_is_refused(summary: list[object]) -> None:
    scope = Worker().new_dataflow()
    with pytest.raises(InvalidShapeError, match=r"operator 'odd' \[1\]"):
        scope.add_child(mapper("odd", summary=summary))


def test_rule_000_14_shape_and_wishes_are_read_once() -> None:
    operator = mapper(notify=False)
    child = Child(operator, index=1, identifier=0, arity=1, peers=1)
    operator.inputs, operator.outputs, operator.notify, operator.local = 7, 7, True, False  # type: ignore[misc]
    assert (child.inputs, child.outputs, child.notify, child.local) == (1, 1, False, True)


def test_rule_000_15_a_fresh_child_gets_a_turn_without_cause() -> None:
    idle = Scripted("idle", 0, 0)
    worker = Worker()
    scope = worker.new_dataflow()
    scope.add_child(idle)
    worker.add(scope)
    worker.step()
    assert idle.turns == 1


def test_a_loop_that_does_not_advance_is_refused_and_named() -> None:
    scope = Worker().new_dataflow()
    scope.add_child(mapper("one"))
    scope.add_child(mapper("two"))
    scope.connect(Source(1, 0), Target(2, 0))
    scope.connect(Source(2, 0), Target(1, 0))
    with pytest.raises(CyclicSummaryError):
        scope.build()


def test_odd_capabilities_at_the_start_are_refused() -> None:
    worker = Worker(MemoryNetwork(2).transports[0])
    scope = worker.new_dataflow()
    with pytest.raises(ProtocolError, match=r"operator 'odd' \[1\].*count=3.*peers=2"):
        scope.add_child(source("odd", initial=[(0, (0,), 3)]))
    with pytest.raises(ProtocolError, match=r"operator 'odd' \[2\].*unknown output 1"):
        scope.add_child(source("odd", initial=[(1, (0,), 2)]))


def test_rule_000_28_a_child_notified_of_nothing_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    scope.add_child(sink("forgotten"))
    scope.add_child(sink("indifferent", notify=False))
    scope.add_child(source("without inputs"))
    with caplog.at_level(logging.WARNING):
        worker.add(scope)
    assert [record.getMessage().split(" waits")[0] for record in caplog.records] == ["operator 'forgotten' [1]"]
