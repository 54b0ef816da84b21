"""A turn of a scope: rules 000.30 to 000.43, and 000.65."""

from __future__ import annotations

import numpy as np
import pytest

from spark_timely.errors import InvalidUsageError, NegativeCountError, ProtocolError
from spark_timely.progress.broadcast import ProgressBatch
from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.subgraph import LeafStatements
from spark_timely.progress.worker import Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Region, Scripted, alone, chain, filled, mapper, sink, source, turn


def test_rule_000_30_outer_frontiers_count_from_the_next_turn() -> None:
    network = MemoryNetwork(1, automatic=False)
    inside = mapper(initial=[])
    subgraph, _ = alone(inside, worker=Worker(network.transports[0]))
    turn(subgraph)
    subgraph.push_external_progress(filled(1, [(0, (0,), -1), (0, (3,), 1)]))
    assert inside.frontier() == [(0,)]
    turn(subgraph)
    assert inside.frontier() == [(3,)]
    assert network.in_flight == 0


@pytest.mark.parametrize("which", range(3))
def test_rule_000_31_buffers_with_something_in_them_are_refused(which: int) -> None:
    subgraph, _ = alone(mapper())
    buffers = [PortChanges(), PortChanges(), PortChanges()]
    buffers[which] = filled(1, [(0, (0,), 1)])
    with pytest.raises(InvalidUsageError, match="buffers with something from another turn"):
        subgraph.pull_internal_progress(*buffers)


def test_rule_000_32_what_enters_is_messages_and_one_receipt() -> None:
    rows, consumed = entered("one", "two")
    assert rows == {(0, 0, 0, 2): -3, (1, 0, 1, 2): 3, (2, 0, 1, 2): 3}
    assert consumed == [(0, (2,), 3)]


def entered(*targets: str) -> tuple[dict[tuple[int, ...], int], list[tuple[int, tuple[int, ...], int]]]:
    """Let three messages enter a region whose input leads to these; return what was sent, and the receipts."""
    sent: list[ProgressBatch] = []
    network = MemoryNetwork(1)
    builder = Worker(network.transports[0]).new_dataflow().new_scope("region")
    builder.new_input()
    numbers = {name: builder.add_child(sink(name)) for name in ("one", "two")}
    for name in targets:
        builder.connect(Source(0, 0), Target(numbers[name], 0))
    subgraph = builder.build()
    subgraph.get_internal_summary()
    subgraph.set_external_summary(filled(1, [(0, (0,), 1)]))
    turn(subgraph)
    post = network.post
    network.post = lambda batch, receivers: (sent.append(batch), post(batch, receivers))[1]  # type: ignore[method-assign]
    builder.entry(0).update(2, 3)
    consumed, *_ = turn(subgraph)
    return dict(zip(map(tuple, sent[0].rows.tolist()), sent[0].diffs.tolist(), strict=True)), consumed


def test_rule_000_65_an_input_without_edges_yields_its_receipt() -> None:
    assert entered() == ({(0, 0, 0, 2): -3}, [(0, (2,), 3)])


def test_rule_000_65_parallel_edges_of_an_input_count_separately() -> None:
    rows, consumed = entered("one", "two", "one")
    assert rows == {(0, 0, 0, 2): -3, (1, 0, 1, 2): 6, (2, 0, 1, 2): 3}
    assert consumed == [(0, (2,), 3)]


def test_rule_000_35_what_leaves_is_produced_and_not_tracked() -> None:
    inside = mapper()
    subgraph, _ = alone(inside, nested=False)
    inside.say(internal=[(0, (0,), -1)], produced=[(0, (2,), 5)])
    turn(subgraph)
    _, internal, produced, _ = turn(subgraph)
    assert produced == [(0, (2,), 5)]
    assert internal == [(0, (0,), -1)]
    subgraph.push_external_progress(filled(1, [(0, (0,), -1)]))
    assert turn(subgraph)[3] is False


def test_rule_000_35_times_are_mapped_outward() -> None:
    inside = Scripted("inside", 1, 1, minimum=(0, 0))
    subgraph, builder = alone(inside, nested=True)
    turn(subgraph)
    builder.entry(0).update((0, 0), 2)
    assert turn(subgraph)[0] == [(0, (0,), 2)]
    inside.say(consumed=[(0, (0, 0), 2)], produced=[(0, (0, 4), 1), (0, (0, 5), 1)])
    turn(subgraph)
    assert turn(subgraph)[2] == [(0, (0,), 2)]


def test_rule_000_36_receipts_come_with_what_was_exchanged() -> None:
    # A peer took a message and gained a capability at a later time: both reach the parent in one turn.
    network = MemoryNetwork(2, automatic=False)
    subgraphs = []
    for transport in network.transports:
        inside = mapper(peers=2, initial=[])
        subgraphs.append((inside, *alone(inside, worker=Worker(transport))))
    for _, subgraph, _ in subgraphs:
        turn(subgraph)
    (one, first, entry), (_, second, _) = subgraphs
    entry.entry(0).update(1, 1)
    turn(first)
    one.say(consumed=[(0, (1,), 1)], internal=[(0, (1,), 1)])
    network.deliver_all()
    turn(first)
    turn(first)
    while network.deliver(0, 1):
        pass
    consumed, internal, _, _ = turn(second)
    assert consumed == [(0, (1,), 1)]
    assert internal == [(0, (1,), 1)]


def test_rule_000_38_all_is_propagated_before_any_child_hears() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    operators = [source(), mapper("one", initial=[]), mapper("two", initial=[]), sink()]
    chain(scope, *operators)
    worker.add(scope)
    worker.step()
    operators[0].say(internal=[(0, (0,), -1), (0, (7,), 1)])
    worker.step()
    worker.step()
    # One turn after the statement was exchanged, all of the chain knows.
    assert [operator.frontier() for operator in operators[1:]] == [[(7,)]] * 3


def test_rule_000_39_statements_of_children_count_next_turn() -> None:
    first, second = mapper("first"), mapper("second", initial=[])
    subgraph, _ = alone(first, second)
    subgraph.push_external_progress(filled(1, [(0, (0,), -1), (0, (9,), 1)]))
    first.say(internal=[(0, (0,), -1)])
    turn(subgraph)
    # The second has its turn after the first one, and still knows of its capability.
    assert second.frontier() == [(0,)]
    turn(subgraph)
    assert second.frontier() == [(9,)]


def test_rule_000_39_leaves_are_exchanged_and_scopes_are_not() -> None:
    network = MemoryNetwork(1)
    batches: list[ProgressBatch] = []
    post = network.post
    network.post = lambda batch, receivers: (batches.append(batch), post(batch, receivers))[1]  # type: ignore[method-assign]
    inside = mapper()
    region = Region(inside, worker=Worker(network.transports[0]))
    region.start()
    region.worker.step()
    inside.say(internal=[(0, (0,), -1)])
    for _ in range(3):
        region.worker.step()
    # Inside the region (channel 0) it was sent; outside (channel 1) nobody said so again.
    assert [batch.channel for batch in batches] == [0]
    region.source.say(internal=[(0, (0,), -1)])
    for _ in range(3):
        region.worker.step()
    assert [batch.channel for batch in batches] == [0, 1]
    assert region.worker.dataflows == []


def test_rule_000_40_outputs_are_reported_outward_and_filtered() -> None:
    inside = Scripted("inside", 1, 1, minimum=(0, 0))
    subgraph, _ = alone(inside, nested=True)
    # Two times that are apart inside: of their outer ones the greater is no news before the lesser is gone.
    inside.say(internal=[(0, (0, 0), -1), (0, (0, 3), 1), (0, (1, 2), 1)])
    turn(subgraph)
    assert turn(subgraph)[1] == []
    inside.say(internal=[(0, (0, 3), -1)])
    turn(subgraph)
    assert turn(subgraph)[1] == [(0, (0,), -1), (0, (1,), 1)]


def test_rule_000_40_messages_inside_count_as_possible_output() -> None:
    inside = mapper(initial=[])
    subgraph, builder = alone(inside)
    turn(subgraph)
    builder.entry(0).update(3, 1)
    consumed, internal, produced, _ = turn(subgraph)
    assert (consumed, internal, produced) == ([(0, (3,), 1)], [(0, (3,), 1)], [])


def test_rule_000_41_nothing_pushed_is_left_at_the_end_of_a_turn() -> None:
    subgraph, _ = alone(mapper())
    for time in range(3):
        subgraph.push_external_progress(filled(1, [(0, (time,), -1), (0, (time + 1,), 1)]))
        turn(subgraph)
        assert subgraph._tracker.drain_pushed() == []
        assert subgraph._tracker.drain_output() == []


def test_rule_000_42_a_scope_is_active_while_anything_is_tracked() -> None:
    inside = mapper(initial=[])
    subgraph, _ = alone(inside)
    assert turn(subgraph)[3] is True
    inside.active = True
    subgraph.push_external_progress(filled(1, [(0, (0,), -1)]))
    assert turn(subgraph)[3] is True
    inside.active = False
    assert turn(subgraph)[3] is False


def test_rule_000_43_a_scope_reports_the_sum_over_peers() -> None:
    network = MemoryNetwork(2, automatic=False)
    pairs = []
    for transport in network.transports:
        inside = mapper(peers=2)
        pairs.append((inside, alone(inside, worker=Worker(transport))[0]))
    for inside, subgraph in pairs:
        inside.say(internal=[(0, (0,), -1)])
        turn(subgraph)
        turn(subgraph)
    network.deliver(0, 0)
    # One of two capabilities is gone, as far as the first worker has heard.
    assert turn(pairs[0][1])[1] == []
    network.deliver(1, 0)
    assert turn(pairs[0][1])[1] == [(0, (0,), -1)]


# --- What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", [[3, 0, 1, 0], [1, 1, 1, 0], [1, 0, 2, 0], [1, -1, 0, 0], [-1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]]
)
def test_statements_of_peers_about_unknown_locations_are_refused(row: list[int]) -> None:
    network = MemoryNetwork(1)
    subgraph, _ = alone(mapper(), worker=Worker(network.transports[0]))
    network.post(ProgressBatch(0, subgraph.channel, 0, np.array([row]), np.array([1])), [0])
    with pytest.raises(ProtocolError, match=r"scope 'alone' \[0, 1\] received a statement about unknown"):
        turn(subgraph)


def test_negative_counts_of_peers_are_refused_at_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeafStatements, "check", lambda *_: None)
    worker = Worker()
    scope = worker.new_dataflow("flow")
    greedy = sink("greedy")
    chain(scope, source(), greedy)
    worker.add(scope)
    greedy.say(consumed=[(0, (4,), 1)])
    for _ in range(3):
        worker.step()
    with pytest.raises(
        NegativeCountError, match=r"scope 'flow' \[0\].*messages at operator 'greedy' \[2\], input 0, time=\(4,\)"
    ) as caught:
        worker.check_quiescent()
    assert (caught.value.time, caught.value.count) == ((4,), -1)


def test_negative_counts_are_refused_when_nothing_else_is_left() -> None:
    worker = Worker()
    scope = worker.new_dataflow("flow")
    first, greedy = source(), sink("greedy")
    chain(scope, first, greedy)
    worker.add(scope)
    greedy.say(consumed=[(0, (4,), 1)])
    first.say(internal=[(0, (0,), -1)])
    worker.step()
    with pytest.raises(NegativeCountError, match="greedy"):
        worker.step()


def test_negative_counts_inside_a_nested_scope_are_found() -> None:
    inside = mapper("greedy")
    region = Region(inside)
    region.start()
    inside.say(consumed=[(0, (1,), 1)])
    for _ in range(3):
        region.worker.step()
    with pytest.raises(NegativeCountError, match=r"scope 'region' \[0, 2\].*'greedy'"):
        region.worker.check_quiescent()
