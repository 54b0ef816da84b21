"""The logs that the conformance suite is run on: every implementation, also over stores that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_timely.log import Log, MemoryLog
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import CommitRequest, DataFile
from spark_timely.log.store.base import MemoryStore
from spark_timely.testing import ManualClock
from tests.faults.unreliable import UnreliableStore

KINDS = ("memory", "delta", "cloud", "unreliable-memory", "unreliable-delta", "unreliable-cloud")
VALUES = pa.schema([("v", pa.int64())])
NOTHING = (np.empty((0, 1), np.int64), np.empty(0, np.int64))


@dataclass
class LogMaker:
    """Makes logs of one kind, and further handles on them; the directory may be a URL in a store."""

    kind: str
    directory: Path | str
    seed: int = 0
    made: int = 0
    storage_options: Mapping[str, str] | None = None

    def create(self, schema: pa.Schema = VALUES, **options: Any) -> Log:
        options.setdefault("minimum", (0,) * len(options.get("times", ("long",))))
        self.made += 1
        if self.kind.endswith("memory"):
            log: Log = MemoryLog.create(schema, **options)
        else:
            # An object store in this process: reached as any other, and as strict.
            root = f"memory://{self.directory}" if self.kind.endswith("cloud") else str(self.directory)
            path = f"{root}/log {self.made}"
            log = create_log(path, schema, storage_options=self.storage_options, **options)
        return self._wrapped(log)

    def another(self, log: Log) -> Log:
        """Return a second handle on the same log, as another process would have."""
        store = log.core.store.inner if isinstance(log.core.store, UnreliableStore) else log.core.store
        if isinstance(store, MemoryStore):
            return self._wrapped(
                MemoryLog(MemoryStore(store.table), clock=log.core.clock, merge_every=log.core.merge_every)
            )
        options: dict[str, Any] = {"clock": log.core.clock, "merge_every": log.core.merge_every}
        return self._wrapped(open_log(log.path, storage_options=self.storage_options, **options))

    def _wrapped(self, log: Log) -> Log:
        if self.kind.startswith("unreliable"):
            self.seed += 1
            # Failures that are reported are tried again three times; more would be the caller's.
            log.core.store = UnreliableStore(log.core.store, seed=self.seed, happens=0.75, reports_failure=0.25)
        return log


def rows(*pairs: tuple[Any, int], names: Sequence[str] = ("_time",)) -> pa.Table:
    """Return messages from (time, value) pairs."""
    times = [time if isinstance(time, tuple) else (time,) for time, _ in pairs]
    columns = {name: pa.array([t[i] for t in times], pa.int64()) for i, name in enumerate(names)}
    return pa.table({**columns, "v": pa.array([v for _, v in pairs], pa.int64())})


def clock() -> ManualClock:
    return ManualClock()


def stored(log: Log) -> set[str]:
    """All files below the log that are not the table's own."""
    names = [n for n in log.core.storage.names() if n.startswith("_event=")]
    return {f"{d}/{n}" for d in names for n in log.core.storage.names(d)}


def frozen(log: Log) -> tuple[Any, ...]:
    log.refresh()
    return log.core.version, stored(log), log.frontier(), log.core.counts()


def written(log: Log, pairs: list[tuple[int, int]], seq: int, stream: str = "main") -> list[DataFile]:
    table = rows(*pairs)
    times = log.domain.from_columns(table)
    whole = message_table(log.core.format, table.select(["v"]), times, stream, seq)
    return write_data_files(log.core.storage, whole, times, stream=stream, seq=seq, domain=log.domain)


def batch(log: Log, number: int | None, pairs: list[tuple[int, int]], to: int | None, **more: Any) -> Any:
    """Commit a micro-batch: messages, then one capability moved from where it is to `to`."""
    state = log.core.stream("main")
    assert state is not None
    progress = NOTHING
    if to is not None:
        held = state.counts if "held" not in more else more.pop("held")
        progress = (np.array([[held.times[0, 0]], [to]]), np.array([-1, 1]))
    return log.core.commit(
        CommitRequest("main", "query", *progress, batch=number, files=written(log, pairs, state.seq + 1), **more)
    )


def filled(path: Path, **options: Any) -> Log:
    """Return a table of three commits of two rows each."""
    log = create_log(path, VALUES, minimum=(0,), merge_every=None, **options)
    writer = log.writer(owner="me")
    for i in range(1, 4):
        writer.append(pa.table({"_time": [i, i + 1], "v": [i, i]}), advance_to=i)
    return log
