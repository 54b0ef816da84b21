"""Readers over logs in memory, driven in Spark's order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_timely.conf.options import SOURCE_OPTIONS, SourceOptions, parse_options
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.reader import read_split
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.datasource.splits import SPLIT_SCHEMA, ReplayLayout, Split, split_batch
from spark_timely.log import MemoryLog
from spark_timely.log.store.base import MemoryStore, MemoryTable
from spark_timely.log.store.storage import MemoryStorage
from spark_timely.testing.driver import Checkpoint, StreamDriver

STORAGES: dict[int, MemoryStorage] = {}


def copy_of(log: MemoryLog, path: str = "memory") -> MemoryLog:
    """Return a copy of a log as it is: of the same id, it grows by itself. Put in its place it is a restored one."""
    assert isinstance(log.core.store, MemoryStore)
    table = log.core.store.table
    made = MemoryTable(table.form, path)
    made.table_id, made.files, made.commits = table.table_id, dict(table.files), list(table.commits)
    made.storage._files.update(table.storage._files)
    return MemoryLog(MemoryStore(made), clock=log.core.clock, merge_every=log.core.merge_every)


class ReadsAll:
    """What Trigger.Once asks for."""


class MemoryReader:
    """A stream reader over a log in memory: what `TimelyStreamReader` is over one on disk."""

    def __init__(self, log: MemoryLog, options: SourceOptions, now: Any) -> None:
        self.layout = layout_of(log, options)
        self.key = id(log.core.storage)
        STORAGES[self.key] = log.core.storage  # type: ignore[assignment]
        retained = None
        if options.consumer_id is not None:
            retained = RetainedPosition(log.another, options.consumer_id, options.consumer_expiry, alone=True, now=now)
        self.planner: ReplayPlanner | None = ReplayPlanner(
            log.another(), options, self.layout, now=now, retained=retained
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout, "key": self.key, "planner": None}

    def _planner(self) -> ReplayPlanner:
        assert self.planner is not None
        return self.planner

    def initialOffset(self) -> dict[str, Any]:
        return self._planner().initial()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return self._planner().latest(start, limited=not isinstance(limit, ReadsAll))

    def getDefaultReadLimit(self) -> Any:
        return "by the options"

    def reportLatestOffset(self) -> dict[str, Any]:
        report = self._planner().report()
        json.dumps(report)
        return report

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Split]:
        return self._planner().plan(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        json.dumps(end)
        self._planner().commit(json.loads(json.dumps(end)))

    def read(self, partition: Split) -> Iterator[pa.RecordBatch]:
        # Splits travel as text with content=splits: what is read must not depend on the way.
        split = Split.from_json({**json.loads(json.dumps(partition.to_json())), "progress": partition.progress})
        if self.layout.content == "splits":
            yield split_batch(split, self.layout)
            return
        yield from read_split(split, self.layout, storage=STORAGES[self.key], batch_rows=7, pause=lambda _: None)


def make_options(**options: Any) -> SourceOptions:
    return parse_options(SOURCE_OPTIONS, {"path": "memory", "pollInterval": 0, **options})


def drive(
    log: MemoryLog, *, checkpoint: Checkpoint | None = None, now: Any = lambda: 0.0, **options: Any
) -> StreamDriver:
    """Return a driver of a query over a log in memory."""
    parsed = make_options(**options)
    layout = layout_of(log, parsed)
    schema = SPLIT_SCHEMA if layout.content == "splits" else layout.schema
    return StreamDriver(lambda: MemoryReader(log, parsed, now), schema=schema, checkpoint=checkpoint)


def read_all(log: MemoryLog, **options: Any) -> pa.Table:
    """Read a log as a batch."""
    parsed = make_options(**options)
    layout: ReplayLayout = layout_of(log, parsed)
    splits = ReplayPlanner(log.another(), parsed, layout).plan_batch()
    batches = [
        batch
        for split in splits
        for batch in read_split(split, layout, storage=log.core.storage, batch_rows=7, pause=lambda _: None)
    ]
    return pa.Table.from_batches(batches, layout.schema)
