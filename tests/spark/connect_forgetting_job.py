"""Replays of a log that forgets, with a consumer and without; run classic and, by `connect`, through Spark Connect."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_timely
from tests.faults.harness import wait_until

SCHEMA = pa.schema([("v", pa.int64())])


def put(log: spark_timely.Log, times: list[int], to: int) -> None:
    """Append a row at each of some times, and move the frontier."""
    log.writer("main", owner="test").append(pa.table({"_time": times, "v": times}), advance_to=to)


class Reader:
    """A replay, and what it was given."""

    def __init__(self, spark: SparkSession, log: spark_timely.Log, folder: Path, **options: str) -> None:
        self.spark, self.log, self.folder, self.options = spark, log, folder, options
        self.given = folder.with_suffix(".given")
        self.given.mkdir()

    @property
    def found(self) -> list[int]:
        """The rows that the function was given, sorted; each micro-batch counts as often as it came."""
        return sorted(row for file in self.given.glob("*.json") for row in json.loads(file.read_text()))

    def start(self, *, ends: bool = True) -> Any:
        """Start a query, one that ends with what is there or that continues."""
        given = self.given

        # Through Connect it is called in another process.
        def keep(df: DataFrame, _: int) -> None:
            rows = [row.v for row in df.collect()]
            whole = given / f"{uuid.uuid4().hex}.json"
            whole.with_suffix(".unfinished").write_text(json.dumps(rows))
            whole.with_suffix(".unfinished").rename(whole)

        rows = self.spark.readStream.format("timely").options(**self.options).load(self.log.path)
        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.folder))
        return (writer.trigger(availableNow=True) if ends else writer).start()

    def run(self) -> str:
        """Deliver what is there; return the error, empty if there was none."""
        query = self.start()
        try:
            query.awaitTermination(120)
        except Exception as error:  # noqa: BLE001 - it is looked at
            return str(error)
        return ""


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Let replays stop, their logs forget, and continue; keep an idle one alive for longer than it expires."""
    logs = [spark_timely.create_log(str(folder / name), SCHEMA, minimum=(0,)) for name in ("one", "other")]
    kept = Reader(spark, logs[0], folder / "kept checkpoint", consumerId="kept")
    loose = Reader(spark, logs[1], folder / "loose checkpoint")
    for log in logs:
        put(log, [0, 1], 2)
    errors = [kept.run(), loose.run()]
    for log in logs:
        for time in range(2, 9):
            put(log, [time], time + 1)
            log.allow_compaction([time + 1], by="the keeper")
            log.compact(logical=True)
    sinces = [log.since().to_json() for log in logs]
    errors += [kept.run(), loose.run()]

    # Alive without anything to read for several times its expiry.
    log = logs[1]
    idle = Reader(spark, log, folder / "idle checkpoint", consumerId="idle", consumerExpiry="3 seconds")
    query = idle.start(ends=False)
    try:
        seen: set[int] = set()

        def renewed() -> bool:
            log.refresh()
            found = log.retainers().get("idle")
            seen.update([] if found is None else [found.expires])
            return len(seen) > 5

        wait_until(renewed, deadline_s=120, what="the retainer to be renewed")
        put(log, [9], 10)
        log.allow_compaction([10])
        log.compact(logical=True)
        wait_until(lambda: 9 in idle.found, deadline_s=120, what="a row after a while")
        alive = query.isActive

        # A copy of its checkpoint is the same query, of which Spark knows nothing where another cluster runs it.
        copy = Reader(spark, log, folder / "copied checkpoint", consumerId="idle")
        shutil.copytree(idle.folder, copy.folder)
        (copy.folder / ".metadata.crc").unlink(missing_ok=True)
        (copy.folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        other = copy.start(ends=False)
        try:
            wait_until(lambda: not query.isActive, deadline_s=120, what="the earlier of two live runs to fail")
            put(log, [11], 12)
            wait_until(lambda: 11 in copy.found, deadline_s=120, what="a row for the later one")
        finally:
            other.stop()
    finally:
        query.stop()
    return {
        "errors": errors,
        "sinces": sinces,
        "kept": kept.found,
        "loose": loose.found,
        "idle": idle.found,
        "alive": alive,
        "copied": [str(query.exception()), copy.found],
    }


def check(found: dict[str, Any]) -> None:
    """Judge what a run gave."""
    *well, refused = found["errors"]
    assert well == [""] * 3
    assert "TIMELY_SINCE_VIOLATION" in refused
    assert "found since=[9], moved by the keeper at" in refused
    # A job that ends writes down where it began; that of a log without a consumer is up to its frontier.
    assert found["sinces"] == [[0], [9]]
    assert found["kept"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert found["loose"] == [0, 1]
    assert found["alive"]
    error, copied = found["copied"]
    assert "for consumer 'idle': found it taken over by another run of the query, which began later" in error
    # Copied before the micro-batch of 9 was committed it comes again, as after a crash.
    assert copied in ([11], [9, 11])
    assert found["idle"] == [9]
