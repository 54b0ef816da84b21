"""What the end-to-end tests share: from the models' plain values to tables and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import settings

from spark_timely.testing.strategies import column_names, rows_table
from tests.faults.harness import long_lane
from tests.oracles.replay_model import Frontier, Row, Time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.time.antichain import Antichain

ZONES = ("UTC", "America/Los_Angeles", "Asia/Kathmandu")
KIND_OF = {
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "date32[day]": "date",
    **{f"timestamp[us, tz={zone}]": "timestamp" for zone in ZONES},
}


def write_commit(
    log: Any,
    stream: str,
    messages: Sequence[tuple[Time, Row]],
    progress: Sequence[tuple[Time, int]],
    kinds: tuple[str, ...],
) -> None:
    """Append one commit of a drawn history."""
    times = np.array([time for time, _ in progress], dtype=np.int64).reshape(-1, len(kinds))
    deltas = np.array([delta for _, delta in progress], dtype=np.int64)
    writer = log.writer(stream=stream, owner=f"owner of {stream}")
    writer.append(rows_table(list(messages), kinds), progress=(times, deltas))


def expected_table(found: Mapping[Time, Iterable[Row]], kinds: tuple[str, ...]) -> pa.Table:
    """Make a table of a model's rows per time, with the log's time columns."""
    return rows_table([(time, row) for time, rows in found.items() for row in rows], kinds)


def kinds_of(schema: pa.Schema, arity: int) -> tuple[str, ...]:
    """Return the kinds of a table's time columns."""
    return tuple(KIND_OF[str(schema.field(name).type)] for name in column_names(arity))


def frontier_set(antichain: Antichain) -> Frontier:
    """Return a frontier as the models have it."""
    return frozenset(tuple(time) for time in antichain.times.tolist())


def frontier_from_json(found: Sequence[Any]) -> Frontier:
    """Return the frontier that an offset's JSON names."""
    return frozenset(tuple(time) if isinstance(time, list) else (time,) for time in found)


def examples(n: int, *, long: int | None = None) -> settings:
    """Return hypothesis settings: `n` draws; in the long lane so many as `long` says, or twenty times as many."""
    return settings(max_examples=(long or n * 20) if long_lane() else n)


@contextlib.contextmanager
def session_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    """Run a block in another time zone of the session."""
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, zone)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def session_of_a_call(spark: SparkSession) -> SparkSession:
    """Return a session object as each call of foreachBatch gets one: another object of the same session.

    Not a new session: it would become the active one of the thread, where the data source is not registered.
    """
    return type(spark)(spark.sparkContext, spark._jsparkSession)
