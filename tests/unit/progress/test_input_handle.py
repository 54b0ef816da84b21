"""Handles by which a program gives input to a dataflow."""

from __future__ import annotations

import pytest

from spark_timely.errors import ClosedError, InvalidShapeError, InvalidUsageError, NotBeyondError
from spark_timely.progress.reachability import Target
from spark_timely.progress.worker import InputHandle, Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Scripted, sink


def joined(worker: Worker, *handles: InputHandle) -> Scripted:
    scope = worker.new_dataflow()
    last = Scripted("sink", len(handles), 0)
    sources = [handle.join(scope) for handle in handles]
    number = scope.add_child(last)
    for port, source in enumerate(sources):
        scope.connect(source, Target(number, port))
    worker.add(scope)
    return last


def test_a_handle_moves_the_frontier_and_ends_it() -> None:
    worker, handle = Worker(), InputHandle()
    last = joined(worker, handle)
    handle.advance_to(3)
    handle.send(2)
    handle.advance_to(5)
    for _ in range(3):
        worker.step()
    assert last.frontier() == [(3,)]
    last.say(consumed=[(0, (3,), 2)])
    for _ in range(3):
        worker.step()
    assert last.frontier() == [(5,)]
    handle.close()
    while worker.step():
        pass
    assert last.frontier() == []


def test_several_handles_of_one_scope_move_by_themselves() -> None:
    worker, handles = Worker(), [InputHandle(name=f"input {i}") for i in range(3)]
    last = joined(worker, *handles)
    handles[1].advance_to(4)
    handles[2].close()
    for _ in range(3):
        worker.step()
    assert [last.frontier(port) for port in range(3)] == [[(0,)], [(4,)], []]


def test_rule_001_12_a_handle_advanced_early_starts_at_its_time() -> None:
    worker, handle = Worker(), InputHandle()
    handle.advance_to(7)
    last = joined(worker, handle)
    worker.step()
    assert last.told == [(0, (7,), 1)]
    assert handle.time == (7,)


def test_rule_001_12_each_peers_handle_starts_at_its_own_time() -> None:
    network = MemoryNetwork(2)
    lasts = []
    for transport, time in zip(network.transports, (7, 4), strict=True):
        handle = InputHandle()
        handle.advance_to(time)
        lasts.append((Worker(transport), handle))
    sinks = [joined(worker, handle) for worker, handle in lasts]
    for _ in range(4):
        for worker, _handle in lasts:
            worker.step()
    assert [last.frontier() for last in sinks] == [[(4,)], [(4,)]]


@pytest.mark.parametrize("peers", [1, 2])
def test_a_handle_closed_before_it_joins_gives_nothing(peers: int) -> None:
    network = MemoryNetwork(peers)
    workers = [Worker(transport) for transport in network.transports]
    lasts = []
    for worker in workers:
        handle = InputHandle()
        handle.close()
        lasts.append(joined(worker, handle))
    for _ in range(6):
        for worker in workers:
            worker.step()
    assert [worker.dataflows for worker in workers] == [[]] * peers


def test_times_only_move_forward_and_nothing_comes_after_the_end() -> None:
    handle = InputHandle((2, 3), name="orders")
    with pytest.raises(NotBeyondError, match=r"input 'orders' to time=\(3, 2\): its time is \(2, 3\)"):
        handle.advance_to((3, 2))
    with pytest.raises(InvalidShapeError, match=r"input 'orders'"):
        handle.advance_to(5)
    handle.advance_to((2, 3))
    handle.close()
    handle.close()
    with pytest.raises(ClosedError, match="input 'orders': it is closed"):
        handle.advance_to((4, 4))
    with pytest.raises(ClosedError):
        handle.send()


def test_a_handle_joins_one_scope_and_fits_it() -> None:
    handle = InputHandle()
    with pytest.raises(InvalidUsageError, match="it has not joined a scope"):
        handle.send()
    scope = Worker().new_dataflow()
    handle.join(scope)
    with pytest.raises(InvalidUsageError, match="has joined a scope already"):
        handle.join(scope)
    with pytest.raises(InvalidUsageError, match="count=-1"):
        handle.send(-1)
    with pytest.raises(InvalidUsageError, match=r"least time of the scope is \(3,\)"):
        InputHandle().join(Worker().new_dataflow(minimum=(3,)))
    assert isinstance(sink(), Scripted)
