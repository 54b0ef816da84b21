"""The logs that the conformance suite is run on: every implementation, also over stores that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_timely.log.delta import create_log, open_log
from spark_timely.log.memory import MemoryLog
from spark_timely.log.reading import ReadableLog
from spark_timely.log.store import MemoryStore
from spark_timely.testing import ManualClock
from spark_timely.testing.unreliable import UnreliableStore

KINDS = ("memory", "delta", "unreliable-memory", "unreliable-delta")
VALUES = pa.schema([("v", pa.int64())])


@dataclass
class LogMaker:
    """Makes logs of one kind, and further handles on them."""

    kind: str
    directory: Path
    seed: int = 0
    made: int = 0

    def create(self, schema: pa.Schema = VALUES, **options: Any) -> ReadableLog:
        options.setdefault("minimum", (0,) * len(options.get("times", ("long",))))
        self.made += 1
        if self.kind.endswith("memory"):
            log: ReadableLog = MemoryLog.create(schema, **options)
        else:
            log = create_log(self.directory / f"log {self.made}", schema, **options)
        return self._wrapped(log)

    def another(self, log: ReadableLog) -> ReadableLog:
        """Return a second handle on the same log, as another process would have."""
        store = log.store.inner if isinstance(log.store, UnreliableStore) else log.store
        if isinstance(store, MemoryStore):
            return self._wrapped(MemoryLog(MemoryStore(store.table), clock=log._clock, merge_every=log.merge_every))
        return self._wrapped(open_log(log.path, clock=log._clock, merge_every=log.merge_every))

    def _wrapped(self, log: ReadableLog) -> ReadableLog:
        if self.kind.startswith("unreliable"):
            self.seed += 1
            # Failures that are reported are tried again three times; more would be the caller's.
            log.store = UnreliableStore(log.store, seed=self.seed, happens=0.75, reports_failure=0.25)
        return log


def rows(*pairs: tuple[Any, int], names: Sequence[str] = ("_time",)) -> pa.Table:
    """Return messages from (time, value) pairs."""
    times = [time if isinstance(time, tuple) else (time,) for time, _ in pairs]
    columns = {name: pa.array([t[i] for t in times], pa.int64()) for i, name in enumerate(names)}
    return pa.table({**columns, "v": pa.array([v for _, v in pairs], pa.int64())})


def clock() -> ManualClock:
    return ManualClock()
