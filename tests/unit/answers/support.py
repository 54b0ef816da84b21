"""Logs and indexes for tests of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_timely.dataflow.engine.arrangements import Arrangements, Indexing
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.views import Replay
from spark_timely.log import Log
from spark_timely.log.arrangements import folder_of
from spark_timely.spark.dataflows.tasks import catalog_of, run_one
from spark_timely.time.antichain import Antichain

SCHEMA = pa.schema([("k", pa.int64()), ("word", pa.string())])


def append(log: Log, updates: Sequence[tuple[Any, ...]], advance_to: Any, schema: pa.Schema = SCHEMA) -> None:
    """Append (time, diff, values…) to a log, of a stream (time, values…), and close times."""
    values = 2 if log.kind == "collection" else 1
    rows: dict[str, Any] = {
        field.name: pa.array([update[values + i] for update in updates], field.type) for i, field in enumerate(schema)
    }
    for place, name in enumerate(log.domain.columns):
        times = [update[0] if log.domain.arity == 1 else update[0][place] for update in updates]
        rows[name] = pa.array(times, log.domain.types[place].arrow)
    if log.kind == "collection":
        rows["_diff"] = pa.array([update[1] for update in updates], pa.int64())
    log.writer(owner="me").append(pa.table(rows), advance_to=advance_to)


def index(log: Log, key: Sequence[str], columns: Sequence[str] | None = None, *, lo: int | None = None) -> str:
    """Have an index of a log made or extended up to its frontier; return its name."""
    look = Look(log.path, tuple(key), tuple(log.schema.names if columns is None else columns))
    leaf = Replay("log", log.domain, log.schema, (), log.path, log.kind)
    made = Arrangements({log.path: log}, {log.path: catalog_of(log)}, Indexing(0, 0, 0, background=False))
    made.before(
        look, leaf, log.domain.minimum_frontier if lo is None else Antichain.of(lo), log.frontier(),
        lambda plans, tasks: [run_one(task, plans[0], {log.path: {}}) for task in tasks],
    )  # fmt: skip
    folder = folder_of(log, look.key, look.columns)
    assert folder is not None
    return folder
