"""Workers that hold many dataflows: rules 001.03 to 001.06 and 001.11."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from spark_timely.errors import InvalidUsageError, MissingError
from spark_timely.progress.broadcast import ProgressBatch
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.worker import InputHandle, Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Region, Scripted, chain, mapper, sink, source


def flow(worker: Worker, name: str = "flow") -> tuple[int, Scripted, Scripted]:
    scope = worker.new_dataflow(name)
    first, last = source(peers=worker.peers), sink()
    chain(scope, first, last)
    return worker.add(scope), first, last


def test_a_worker_runs_many_dataflows_and_drops_complete_ones() -> None:
    worker = Worker()
    flows = [flow(worker) for _ in range(3)]
    flows[1][1].say(internal=[(0, (0,), -1)])
    for _ in range(4):
        worker.step()
    assert worker.dataflows == [0, 2]
    assert [subgraph.path for subgraph in worker] == [(0,), (2,)]


def test_rule_001_03_dropping_frees_everything_by_itself() -> None:
    worker = Worker()
    region = Region(mapper(), worker=worker)
    number = region.start()
    worker.step()
    kept = [
        weakref.ref(thing) for thing in (worker.dataflow(number), region.subgraph, region.subgraph.children[0].operator)
    ]
    worker.drop(number)
    del region
    gc.collect()
    assert [ref() for ref in kept] == [None, None, None]


def test_rule_001_02_a_dataflow_is_dropped_and_others_continue() -> None:
    worker = Worker()
    (dropped, first, _), (other, second, last) = flow(worker), flow(worker)
    worker.step()
    worker.drop(dropped)
    assert first.closed == 1
    second.say(internal=[(0, (0,), -1), (0, (5,), 1)])
    for _ in range(3):
        worker.step()
    assert worker.dataflows == [other]
    assert last.frontier() == [(5,)]
    with pytest.raises(MissingError, match="dataflow 0: it came to its end or was dropped"):
        worker.drop(dropped)


def test_rule_001_04_statements_for_dataflows_to_come_are_kept() -> None:
    network = MemoryNetwork(2)
    one, two = (Worker(transport) for transport in network.transports)
    number, first, _ = flow(one)
    first.say(internal=[(0, (0,), -1), (0, (5,), 1)], produced=[(0, (2,), 1)])
    for _ in range(3):
        one.step()
    assert network.transports[1].channels.waiting() == {0: 1}
    assert flow(two)[0] == number
    two.step()
    assert two.dataflow(number)._counts == {(1, 0, 0, 0): 1, (1, 0, 0, 5): 1, (2, 0, 1, 2): 1}


def test_rule_001_05_statements_for_gone_dataflows_are_discarded() -> None:
    network = MemoryNetwork(2)
    one, two = (Worker(transport) for transport in network.transports)
    for worker in (one, two):
        number, first, _ = flow(worker)
    one.drop(number)
    first.say(internal=[(0, (0,), -1), (0, (1,), 1)])
    two.step()
    two.step()
    assert network.transports[0].channels.discarded == 1
    assert network.transports[0].channels.waiting() == {}


def test_rule_001_05_statements_after_completion_are_discarded() -> None:
    network = MemoryNetwork(1)
    worker = Worker(network.transports[0])
    number, first, _ = flow(worker)
    channel = worker.dataflow(number).channel
    first.say(internal=[(0, (0,), -1)])
    while worker.step():
        pass
    network.post(ProgressBatch(0, channel, 1, np.array([[1, 0, 0, 5]]), np.array([1])), [0])
    assert network.transports[0].channels.discarded == 1
    worker.step()


def test_rule_001_06_others_wait_while_only_some_have_dropped() -> None:
    network = MemoryNetwork(3)
    workers = [Worker(transport) for transport in network.transports]
    flows = [flow(worker) for worker in workers]
    workers[0].drop(0)
    for _, first, _ in flows[1:]:
        first.say(internal=[(0, (0,), -1)])
    for _ in range(10):
        for worker in workers:
            worker.step()
    # The capability of the worker that left is never given up.
    assert [worker.dataflows for worker in workers] == [[], [0], [0]]
    assert flows[1][2].frontier() == [(0,)]
    workers[2].drop(0)
    workers[1].step()
    workers[1].drop(0)
    assert [flow(worker)[0] for worker in workers] == [1, 1, 1]


def test_ids_are_never_used_again() -> None:
    worker = Worker()
    numbers, channels, identifiers = [], [], []
    for _ in range(3):
        numbers.append(flow(worker)[0])
        channels.append(worker.dataflow(numbers[-1]).channel)
        identifiers.append(next(worker.identifiers))
        worker.drop(numbers[-1])
    assert numbers == [0, 1, 2]
    assert channels == [0, 1, 2]
    assert len(set(identifiers)) == 3


def test_a_nested_scope_is_dropped_and_the_rest_stands_still() -> None:
    worker = Worker()
    inside = mapper()
    region = Region(inside, worker=worker)
    number = region.start()
    worker.step()
    worker.dataflow(number).drop_child(2)
    assert inside.closed == 1
    region.source.say(internal=[(0, (0,), -1)])
    for _ in range(5):
        worker.step()
    assert worker.dataflows == [number]
    assert region.sink.frontier() == [(0,)]
    with pytest.raises(InvalidUsageError, match="child 9"):
        worker.dataflow(number).drop_child(9)


def test_rule_001_11_a_sink_that_hung_up_is_harmless_at_shutdown() -> None:
    def hung_up(_: object) -> None:
        raise BrokenPipeError("nobody reads")

    worker = Worker(events=hung_up)
    number, first, _ = flow(worker)
    first.say(internal=[(0, (0,), -1)])
    while worker.step():
        pass
    assert number not in worker.dataflows


def test_a_dataflow_with_ports_or_of_another_worker_is_refused() -> None:
    worker = Worker()
    scope = worker.new_dataflow("open")
    scope.new_input()
    with pytest.raises(InvalidUsageError, match="dataflow 'open': found inputs=1, outputs=0"):
        worker.add(scope)
    with pytest.raises(InvalidUsageError, match="dataflow 'Dataflow'"):
        worker.add(Worker().new_dataflow())
    with pytest.raises(InvalidUsageError, match="dataflow 'inner'"):
        worker.add(worker.new_dataflow().new_scope("inner"))
    with pytest.raises(MissingError, match="dataflow 9: it never was"):
        worker.dataflow(9)


def test_a_thousand_dataflows_run_beside_one_another() -> None:
    worker = Worker()
    handles = []
    for _ in range(1000):
        scope = worker.new_dataflow()
        handles.append(InputHandle())
        joined = handles[-1].join(scope)
        scope.connect(joined, Target(scope.add_child(sink()), 0))
        worker.add(scope)
    for handle in handles[::2]:
        handle.close()
    for _ in range(3):
        worker.step()
    assert len(worker.dataflows) == 500
    assert isinstance(joined, Source)
