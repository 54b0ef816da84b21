"""A query that appends micro-batches to a log, another that is in its way, and what must be there afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_timely.errors import StorageError
from spark_timely.log import Log
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import CommitRequest
from spark_timely.time.antichain import Antichain
from tests.faults.unreliable import UnreliableStore

VALUES = pa.schema([("v", pa.int64())])


def run_batch(log: Log, batch: int) -> None:
    """Append micro-batch `batch` as a query would, that may have been restarted: rows (b, b), (b + 2, b)."""
    log.refresh()
    state = log.core.open_stream("main", owner="query")
    seq = state.seq
    if state.batch == batch and (done := log.core.recorded("main", batch)) is not None:
        seq = done.seq - 1  # judged by what was held before its first commit
    held = int((state.before if seq < state.seq else state.counts).times[0, 0])
    times = np.array([[batch], [batch + 2]], np.int64)
    payload = pa.table({"v": pa.array([batch, batch], pa.int64())})
    table = message_table(log.core.format, payload, times, "main", seq + 1)
    files = write_data_files(log.core.storage, table, times, stream="main", seq=seq + 1, domain=log.domain)
    request = CommitRequest(
        "main", "query", np.array([[held], [batch + 1]]), np.array([-1, 1]), batch=batch, expected_seq=seq, files=files
    )
    outcome = log.core.commit(request)
    if outcome.duplicate:
        for file in files:
            log.core.storage.delete(file.path)


def run_query(make: Callable[[], Log], n_batches: int, done: list[int] | None = None) -> None:
    """Run micro-batches as Spark does: one that failed is repeated by a new process.

    `done` is Spark's checkpoint: the batches that it knows to be committed.
    """
    done = [] if done is None else done
    log, failures = make(), 0
    while len(done) < n_batches:
        try:
            run_batch(log, len(done))
            done.append(len(done))
        except StorageError:
            failures += 1
            assert failures < 50 * n_batches
            log = make()


def assert_exactly_once(log: Log, n_batches: int) -> None:
    report = log.verify()
    assert report.legal, report.problems
    assert Counter(log.messages()["v"].to_pylist()) == dict.fromkeys(range(n_batches), 2)
    assert log.frontier() == Antichain.of(n_batches)
    state = log.core.stream("main")
    assert state is not None
    assert (state.seq, state.batch) == (n_batches, n_batches - 1)


def racing(log: Log, act: Callable[[], None], times: int = 1) -> None:
    """Let somebody else act right before the next commits of a log: after its decision."""
    left = [times]

    def before() -> None:
        if left[0]:
            left[0] -= 1
            act()

    log.core.store = UnreliableStore(log.core.store, happens=1.0, reports_failure=0.0, before_commit=before)
