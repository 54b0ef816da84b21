"""Exchange of statements, and the transports beneath: rules 000.33, 000.34, 000.50, 001.04, 001.05."""

from __future__ import annotations

import numpy as np
import pytest

from spark_timely.errors import InvalidUsageError, ProtocolError
from spark_timely.progress.broadcast import ChannelTable, Progcaster, ProgressBatch
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.events import EventStream, ProgressEvent
from spark_timely.progress.worker import Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Scripted, chain, sink, source


def batch_of(*rows: tuple[int, ...], source: int = 0, channel: int = 0, seq_no: int = 0) -> ProgressBatch:
    array = np.array([row[:-1] for row in rows], dtype=np.int64).reshape(len(rows), -1)
    return ProgressBatch(source, channel, seq_no, array, np.array([row[-1] for row in rows], dtype=np.int64))


def caster(network: MemoryNetwork, index: int = 0) -> Progcaster:
    return Progcaster(network.transports[index], channel=0, arity=1, path=(0,), identifier=5)


def changes(*rows: tuple[int, ...]) -> ChangeBatch:
    batch = ChangeBatch(4)
    for row in rows:
        batch.update(row[:-1], row[-1])
    return batch


def test_rule_000_33_what_was_said_leaves_in_the_next_turn() -> None:
    network = MemoryNetwork(2, automatic=False)
    worker = Worker(network.transports[0])
    scope = worker.new_dataflow()
    leaf = source(peers=2)
    scope.add_child(leaf)
    number = worker.add(scope)
    leaf.say(internal=[(0, (3,), 1), (0, (4,), 1)])
    worker.step()
    assert worker.dataflow(number).has_unsent
    worker.step()
    assert network.in_flight == 2
    assert not worker.dataflow(number).has_unsent
    network.deliver(0, 0)
    (batch,) = network.transports[0].receive(worker.dataflow(number).channel)
    assert batch.rows.tolist() == [[1, 0, 0, 3], [1, 0, 0, 4]]


def test_rule_000_34_all_that_was_said_is_sent_as_one_batch() -> None:
    network = MemoryNetwork(1)
    eager = caster(network)
    said = changes((1, 0, 0, 5, -1), (1, 0, 0, 6, 1), (2, 0, 1, 5, 3))
    eager.send(said)
    assert said.is_empty()
    (batch,) = network.transports[0].receive(0)
    assert batch.diffs.tolist() == [-1, 1, 3]


def test_rule_000_34_batches_out_of_order_are_refused() -> None:
    network = MemoryNetwork(1)
    eager = caster(network)
    network.post(batch_of((1, 0, 0, 5, -1), seq_no=1), [0])
    with pytest.raises(ProtocolError, match=r"progress channel 0 of scope \[0\]: worker 0 sent batch 1, expected=0"):
        eager.receive(ChangeBatch(4))


def test_batches_that_come_twice_are_refused() -> None:
    network = MemoryNetwork(1)
    eager = caster(network)
    for _ in range(2):
        network.post(batch_of((1, 0, 0, 5, -1)), [0])
    with pytest.raises(ProtocolError, match="worker 0 sent batch 0, expected=1"):
        eager.receive(ChangeBatch(4))


def test_batches_of_unknown_workers_or_arity_are_refused() -> None:
    network = MemoryNetwork(1)
    eager = caster(network)
    network.transports[0].channels.deliver(batch_of((1, 0, 0, 5, -1), source=3))
    with pytest.raises(ProtocolError, match="unknown worker 3, peers=1"):
        eager.receive(ChangeBatch(4))
    network.post(batch_of((1, 0, 0, 5, 5, -1)), [0])
    with pytest.raises(ProtocolError, match=r"shape=\(1, 5\), arity=1"):
        eager.receive(ChangeBatch(4))


def test_rule_000_50_no_consumer_waits_for_a_held_announcement() -> None:
    # The source keeps its capability until the sink has worked; the sink is not run before the announcement.
    network = MemoryNetwork(1)
    worker = Worker(network.transports[0])
    scope = worker.new_dataflow()
    first, last = source(), sink(notify=False)
    chain(scope, first, last)
    worker.add(scope)
    for _ in range(3):
        worker.step()
    first.say(produced=[(0, (0,), 1)])
    before = last.turns
    for _ in range(3):
        worker.step()
    assert last.turns > before


def test_rule_001_07_events_have_the_lists_as_sent_and_received() -> None:
    events: list[object] = []
    network = MemoryNetwork(2)
    both = [
        Progcaster(transport, channel=0, arity=1, path=(0, 3), identifier=5, events=EventStream(events.append))
        for transport in network.transports
    ]
    both[1].send(changes((1, 0, 0, 5, -1), (2, 1, 1, 6, 3)))
    both[0].receive(ChangeBatch(4))
    assert events == [
        ProgressEvent(
            is_send=is_send,
            source=1,
            channel=0,
            seq_no=0,
            addr=(0, 3),
            identifier=5,
            messages=[(2, 1, "6", 3)],
            internal=[(1, 0, "5", -1)],
        )
        for is_send in (True, False)
    ]


def test_rule_001_04_batches_wait_for_channels_to_come_alone() -> None:
    table = ChannelTable()
    assert table.deliver(batch_of((1, 0, 0, 5, 1), channel=1))
    table.open(0)
    table.open(1)
    assert len(table.receive(1)) == 1
    table.close(0)
    assert not table.deliver(batch_of((1, 0, 0, 5, 1), channel=0))
    assert table.discarded == 1
    assert table.waiting() == {}


def test_channels_are_opened_in_sequence_and_once() -> None:
    table = ChannelTable()
    with pytest.raises(InvalidUsageError, match="progress channel 1: the next one is 0"):
        table.open(1)
    table.open(0)
    with pytest.raises(InvalidUsageError, match="progress channel 0: the next one is 1"):
        table.open(0)
    table.close(0)
    with pytest.raises(InvalidUsageError, match="progress channel 0: it is not open"):
        table.receive(0)


def test_network_keeps_the_order_of_senders_and_copies_nothing() -> None:
    network = MemoryNetwork(3, automatic=False)
    for transport in network.transports:
        transport.open(0)
    for number in range(3):
        network.transports[0].send(batch_of((1, 0, 0, number, 1), seq_no=number))
    network.transports[1].send(batch_of((1, 0, 0, 9, 1), source=1))
    network.deliver(1, 2)
    network.deliver(0, 2)
    network.deliver(0, 2)
    assert [(b.source, b.seq_no) for b in network.transports[2].receive(0)] == [(1, 0), (0, 0), (0, 1)]
    with pytest.raises(ProtocolError, match="worker 0 found source=2"):
        network.transports[0].send(batch_of((1, 0, 0, 0, 1), source=2))
    with pytest.raises(InvalidUsageError, match="peers=0"):
        MemoryNetwork(0)


def test_batches_cannot_be_changed_on_their_way() -> None:
    batch = batch_of((1, 0, 0, 5, 1))
    with pytest.raises(ValueError, match="read-only"):
        batch.diffs[0] = 7
    assert isinstance(source(), Scripted)
