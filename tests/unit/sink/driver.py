"""Drives the sink's writer in Spark's order, without a JVM: prepare, tasks, commit, everything pickled on the way."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_timely import errors
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.sink.plan import sink_options
from spark_timely.sink.start import check_start
from spark_timely.sink.writer import CaptureMessage, TimelyStreamWriter, make_stream_writer
from spark_timely.spark.base.schema import spark_schema

Fault = Callable[[str], None]

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}
MIN = -(2**63)
SCHEMA = StructType().add("t", "long").add("id", "long")


class SinkDriver:
    """A query that captures into a log, with a checkpoint of its own.

    The checkpoint's files are written as Spark writes them: ``metadata`` when the query is made, ``offsets/n``
    before micro-batch n is planned, ``commits/n`` after the sink's commit.
    """

    def __init__(self, folder: Path, *, query: str = "query-a", checkpoint: str = "checkpoint", **options: str) -> None:
        self.folder = folder
        self.log_path = folder / "log"
        self.query = query
        self.checkpoint = folder / checkpoint
        self.options = {
            "path": str(self.log_path),
            "checkpointLocation": str(self.checkpoint),
            **options,
        }
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query}))

    def next_batch(self) -> int:
        """Return the micro-batch to run: the one whose offsets are logged and not committed, else a new one."""
        offsets = [int(file.name) for file in (self.checkpoint / "offsets").iterdir()]
        commits = [int(file.name) for file in (self.checkpoint / "commits").iterdir()]
        newest = max(offsets, default=-1)
        return newest if newest not in commits and newest >= 0 else newest + 1

    def run(
        self,
        tasks: Sequence[pa.Table],
        *,
        overwrite: bool = False,
        crash: str | None = None,
        schema: StructType | None = None,
        chunk: int = 3,
        sources: Sequence[str] = ("0",),
    ) -> int:
        """Run one micro-batch with one task per table.

        `crash`: ``"before commit"`` or ``"after commit"`` of the log stops there, as a killed driver would.
        `sources`: offset of each source at the end of the micro-batch, for one that is not a repeated one.
        """
        schema = spark_schema(tasks[0].schema) if schema is None else schema
        early = self._refused_early(schema, overwrite=overwrite)
        batch = self.next_batch()
        offsets = self.checkpoint / "offsets" / str(batch)
        if not offsets.exists():
            # As Spark does: the wall clock makes each plan's entry another one.
            offsets.write_text("\n".join(["v1", json.dumps({"batchTimestampMs": time.time_ns()}), *sources]))
        if early is not None:
            # What a query is refused for when it starts, its next micro-batch is refused for too.
            with pytest.raises(type(early)):
                self.writer(schema, overwrite=overwrite)
        prepared = pickle.dumps(self.writer(schema, overwrite=overwrite))
        messages: list[CaptureMessage | None] = []
        failure: BaseException | None = None
        for table in tasks:
            writer: TimelyStreamWriter = pickle.loads(prepared)
            try:
                message = writer.write(iter(table.to_batches(max_chunksize=chunk)))
            except Exception as error:  # noqa: BLE001 - raised again below, after the abort
                failure = error
                messages.append(None)
                break
            messages.append(pickle.loads(pickle.dumps(message)))
        if failure is not None:
            self.writer(schema).abort([*messages, *[None] * (len(tasks) - len(messages))], batch)
            raise failure
        if crash == "before commit":
            return batch
        try:
            self.writer(schema).commit(list(messages), batch)
        except Exception:
            self.writer(schema).abort(list(messages), batch)
            raise
        if crash == "after commit":
            return batch
        (self.checkpoint / "commits" / str(batch)).write_text("v1\n{}")
        return batch

    def _refused_early(self, schema: StructType, *, overwrite: bool) -> errors.TimelyError | None:
        """Return what the query would be refused for if it started now."""
        try:
            options = sink_options(self.options, output_mode="complete" if overwrite else "append")
            check_start(schema, options, gapless=True)
        except errors.TimelyError as error:
            return error
        return None

    def writer(self, schema: StructType, *, overwrite: bool = False) -> TimelyStreamWriter:
        """Make a writer as a fresh process would: from pickled options."""
        return make_stream_writer(pickle.loads(pickle.dumps(self.options)), schema, overwrite)

    def log(self) -> Log:
        """Open the log."""
        return open_log(str(self.log_path))

    def data_files(self) -> set[str]:
        """Return the Parquet files below the log's folder, known to the log or not."""
        return (
            {str(file.relative_to(self.log_path)) for file in self.log_path.rglob("*.parquet")}
            if (self.log_path.exists())
            else set()
        )


def rows(times: Sequence[int], first_id: int = 0) -> pa.Table:
    """Return rows with a time and a running number."""
    return pa.table(
        {
            "t": pa.array(times, pa.int64()),
            "id": pa.array(range(first_id, first_id + len(times)), pa.int64()),
        }
    )


@contextmanager
def refused(driver: SinkDriver, kind: type[errors.TimelyError], *texts: str) -> Iterator[None]:
    """Expect an error whose one line holds the texts and a hint, and a log that did not change."""
    exists = (driver.log_path / "_delta_log").exists()
    before = (driver.log().core.version if exists else None, driver.data_files())
    with pytest.raises(kind) as found:
        yield
    text = str(found.value)
    for part in texts:
        assert part in text
    assert text.startswith(f"[{kind.condition}] could not ")
    assert " — hint: " in text
    assert "\n" not in text
    exists = (driver.log_path / "_delta_log").exists()
    assert (driver.log().core.version if exists else None, driver.data_files()) == before
