"""Progress statements that travel through a log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, ProtocolError, SchemaMismatchError, StorageError
from spark_timely.log import MemoryLog
from spark_timely.log.progress_transport import PROGRESS_SCHEMA, LogTransport
from spark_timely.progress.broadcast import ProgressBatch
from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.operate import Operator
from spark_timely.progress.reachability import Target
from spark_timely.progress.worker import InputHandle, Worker
from tests.faults.unreliable import make_unreliable


def transports(peers: int) -> list[LogTransport]:
    log = MemoryLog.create(PROGRESS_SCHEMA, minimum=(0,), streams=peers)
    return [LogTransport(log.another(), index, peers) for index in range(peers)]


class Probe(Operator):
    """Knows the frontier of its input."""

    def __init__(self) -> None:
        super().__init__("probe", inputs=1, outputs=0)
        self.counts: dict[tuple[int, ...], int] = {}

    def push_external_progress(self, changes: PortChanges) -> None:
        for _, time, diff in changes.drain():
            self.counts[time] = self.counts.get(time, 0) + diff

    @property
    def frontier(self) -> list[tuple[int, ...]]:
        return [time for time, count in self.counts.items() if count]


def test_workers_run_a_dataflow_through_a_log() -> None:
    workers = [Worker(transport) for transport in transports(3)]
    handles, probes = [], []
    for worker in workers:
        scope = worker.new_dataflow()
        handle, probe = InputHandle(), Probe()
        scope.connect(handle.join(scope), Target(scope.add_child(probe), 0))
        worker.add(scope)
        handles.append(handle)
        probes.append(probe)
    for time, handle in enumerate(handles, start=4):
        handle.advance_to(time)
    for _ in range(4):
        for worker in workers:
            worker.step()
    assert [probe.frontier for probe in probes] == [[(4,)]] * 3
    for handle in handles:
        handle.close()
    # On demand, each waits until the one before it is heard.
    for _ in range(10):
        for worker in workers:
            worker.step()
    assert [worker.dataflows for worker in workers] == [[], [], []]


def test_batches_arrive_whole_in_order_and_once() -> None:
    one, two = transports(2)
    for transport in (one, two):
        transport.open(0)
        transport.open(1)
    for number in range(3):
        rows = np.array([[number, 0, 1, 7, 8], [number, 1, 0, 9, 9]])
        one.send(ProgressBatch(0, 0, number, rows, np.array([1, -2])))
    one.send(ProgressBatch(0, 1, 0, np.array([[4, 0, 1, 5]]), np.array([6])))
    arrived = two.receive(0)
    assert [batch.seq_no for batch in arrived] == [0, 1, 2]
    assert [batch.rows.tolist() for batch in arrived] == [[[n, 0, 1, 7, 8], [n, 1, 0, 9, 9]] for n in range(3)]
    assert arrived[0].diffs.tolist() == [1, -2]
    assert two.receive(0) == []
    (other,) = two.receive(1)
    assert (other.rows.tolist(), other.diffs.tolist()) == ([[4, 0, 1, 5]], [6])
    assert len(one.receive(0)) == 3


def test_batches_of_a_worker_that_finished_still_arrive() -> None:
    one, two = transports(2)
    one.open(0)
    two.open(0)
    one.send(ProgressBatch(0, 0, 0, np.array([[1, 0, 0, 5]]), np.array([1])))
    one.finish()
    assert len(two.receive(0)) == 1
    assert two.receive(0) == []


def test_what_does_not_fit_is_refused() -> None:
    log = MemoryLog.create(PROGRESS_SCHEMA, minimum=(0,), streams=2)
    with pytest.raises(InvalidUsageError, match="worker 2: found peers=2"):
        LogTransport(log, 2, 2)
    one = LogTransport(log, 0, 2)
    with pytest.raises(ProtocolError, match="worker 0 found source=1"):
        one.send(ProgressBatch(1, 0, 0, np.array([[1, 0, 0, 5]]), np.array([1])))
    with pytest.raises(InvalidUsageError, match="coordinate of 9223372036854775808"):
        one.send(ProgressBatch(0, 0, 0, np.array([[1, 0, 0, 2**63]], np.uint64), np.array([1])))
    one.send(ProgressBatch(0, 0, 0, np.array([[1, 0, 0, 5]]), np.array([1])))
    with pytest.raises(ProtocolError, match="stream 'progress_0' has batches already"):
        LogTransport(log.another(), 0, 2)
    with pytest.raises(SchemaMismatchError, match="no columns"):
        LogTransport(MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,)), 0, 1)


def test_batch_sent_again_after_an_unclear_outcome_arrives_once() -> None:
    one, two = transports(2)
    for transport in (one, two):
        transport.open(0)
    sent = [ProgressBatch(0, 0, number, np.array([[2, 0, 1, 7 + number]]), np.array([3])) for number in range(3)]
    log = one._log
    inner = log.store
    for number, batch in enumerate(sent):
        make_unreliable(log, seed=number, happens=1.0, reports_failure=1.0, goes=1.0)
        with pytest.raises(StorageError):
            one.send(batch)
        log.store = inner
        one.send(batch)
    assert [batch.seq_no for batch in two.receive(0)] == [0, 1, 2]
