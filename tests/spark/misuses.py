"""What users get wrong, and what they are shown for it: where it is refused, and what stands in the first line.

``python -m tests.spark.misuses`` prints the table for a classic session.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import spark_timely as st

# What Python shows of a frame of ours.
_OUR_FRAMES = ("spark_timely/", "datasource/", "sink/", "conf/")


@dataclass
class Place:
    """A folder with a log, a source, and what a query writes; `reached` is how far the user's program came."""

    spark: SparkSession
    folder: Path
    reached: str = "call"

    def path(self, name: str = "log") -> str:
        """Return a path in the folder."""
        return str(self.folder / name)

    def source(self, schema: str = "t long, word string", **columns: object) -> DataFrame:
        """Return a stream of one file with the columns that are given."""
        incoming = self.folder / "incoming"
        if columns and not incoming.exists():
            incoming.mkdir()
            pq.write_table(pa.table(columns), incoming / "0.parquet")
        incoming.mkdir(exist_ok=True)
        return self.spark.readStream.schema(schema).parquet(str(incoming))

    def log(self, *, closed: bool = False, owner: str | None = None) -> st.Log:
        """Make a log of long times with two rows; its stream `main` is another's."""
        log = st.create_log(self.path(), pa.schema([("t", pa.int64()), ("word", pa.string())]), times=("long",))
        writer = log.writer(owner=owner or "somebody")
        writer.append(pa.table({"t": pa.array([1, 2]), "word": ["a", "b"]}), time_column="t", advance_to=3)
        if closed:
            writer.close()
        return log

    def read(self, *, path: str | None = None, **options: object) -> DataFrame:
        """Load the log as a stream, and ask for its columns."""
        self.reached = "load"
        frame = self.spark.readStream.format("timely").options(**options).load(path or self.path())
        frame.schema  # noqa: B018 - Connect asks now
        return frame

    def write(self, frame: DataFrame | None = None, *, mode: str = "append", **options: object) -> None:
        """Start a query into the log, and wait for its end."""
        frame = self.source() if frame is None else frame
        given = {"checkpointLocation": self.path("checkpoint"), "path": self.path(), **options}
        writer = frame.writeStream.format("timely").outputMode(mode).trigger(availableNow=True)
        for name, value in given.items():
            if value is not None:
                writer = writer.option(name, value)  # type: ignore[arg-type]
        self.reached = "start"
        query = writer.start()
        self.reached = "await"
        query.awaitTermination()

    def start(self, frame: DataFrame | None = None, **options: Any) -> None:
        """Start a query by `spark_timely.start`, and wait for its end."""
        frame = self.source() if frame is None else frame
        given: dict[str, Any] = {"path": self.path(), "checkpoint": self.path("checkpoint"), "trigger": "availableNow"}
        self.reached = "start"
        query = st.start(frame, **{**given, **options})
        self.reached = "await"
        query.await_termination()


@dataclass(frozen=True)
class Misuse:
    """One wrong use: what is done, where it is to be refused at the latest, and what the first line holds."""

    name: str
    do: Callable[[Place], object]
    where: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """What a user was shown."""

    name: str
    where: str
    lines: int
    message_line: int
    our_frames: int
    first: str


def misuses() -> Iterator[Misuse]:
    """Give the wrong uses, in the order of the table."""

    def case(name: str, where: str, do: Callable[[Place], object], *texts: str) -> Misuse:
        return Misuse(name, do, where, texts)

    late = {"timeColumn": "t", "frontier": "bounded"}
    yield case(
        "read: startingOffsets",
        "load",
        lambda at: (at.log(), at.read(startingOffsets="earliest")),
        "'startingOffsets'",
        "startingFrontier",
    )
    yield case(
        "read: maxOffsetsPerTrigger",
        "load",
        lambda at: (at.log(), at.read(maxOffsetsPerTrigger=10)),
        "'maxOffsetsPerTrigger'",
        "maxRowsPerTrigger",
    )
    yield case("read: versionAsOf", "load", lambda at: (at.log(), at.read(versionAsOf=3)), "'versionAsOf'", "asOf")
    yield case(
        "read: readChangeFeed", "load", lambda at: (at.log(), at.read(readChangeFeed="true")), "'readChangeFeed'"
    )
    yield case(
        "read: misspelled", "load", lambda at: (at.log(), at.read(startingFrontierr="latest")), "'startingFrontierr'",
        "did you mean 'startingFrontier'?",
    )  # fmt: skip
    yield case(
        "read: None", "load", lambda at: (at.log(), at.read(maxRowsPerTrigger=None)), "maxRowsPerTrigger=None",
        "leave the option out",
    )  # fmt: skip
    yield case(
        "read: a path object", "load",
        lambda at: (at.log(), at.spark.readStream.format("timely").load(at.folder)),  # type: ignore[arg-type]
        "found path=", "str(path)",
    )  # fmt: skip
    yield case(
        "write: continuous", "start",
        lambda at: at.source().writeStream.format("timely").trigger(continuous="1 second").options(
            checkpointLocation=at.path("checkpoint"), timeColumn="t", frontier="bounded"
        ).start(at.path()),
        "found a continuous trigger",
    )  # fmt: skip
    yield case(
        "write: a struct of no fields", "start", lambda at: at.write(at.source("t long, s struct<>"), **late),
        "column 's'", "a struct of no fields",
    )  # fmt: skip
    yield case("read: workers=0", "load", lambda at: (at.log(), at.read(workers=0)), "workers='0'", "at least 1")
    yield case("read: workers=many", "load", lambda at: (at.log(), at.read(workers="many")), "a whole number")
    yield case("read: delivery=all", "load", lambda at: (at.log(), at.read(delivery="all")), "'complete', 'arrival'")
    yield case(
        "read: two starts",
        "load",
        lambda at: (at.log(), at.read(startingFrontier="latest", startingVersion=3)),
        "conflicting options 'startingFrontier', 'startingVersion'",
    )
    yield case("read: no log yet", "load", lambda at: at.read(), "found nothing there", "first micro-batch")
    yield case(
        "read: another folder",
        "load",
        lambda at: (at.source(t=pa.array([1])), at.read(path=at.path("incoming"))),
        "found no Delta table",
    )
    yield case(
        "read: start of another type",
        "load",
        lambda at: (at.log(), at.read(startingFrontier="2013-01-01")),
        "of type long: found '2013-01-01'",
        "whole number",
    )
    yield case("read: asOf of a stream log", "load", lambda at: (at.log(), at.read(asOf=1)), "asOf", "collection")
    yield case(
        "read: column that is not there",
        "load",
        lambda at: (at.log(), at.read(columns="wort")),
        "'wort'",
    )
    yield case(
        "read: condition that cannot be read", "load", lambda at: (at.log(), at.read(where="word === 'a'")), "condition"
    )
    yield case(
        "SQL: timely.`path`",
        "call",
        lambda at: (at.log(), at.spark.sql(f"SELECT * FROM timely.`{at.path()}`").schema),
        "CREATE TEMPORARY VIEW",
    )
    yield case(
        "SQL: table with columns",
        "call",
        lambda at: (
            at.log(),
            at.spark.sql(f"CREATE TABLE misused (t bigint) USING timely OPTIONS (path '{at.path()}')").collect(),
            at.spark.sql("SELECT * FROM misused").collect(),
        ),
        "without naming its columns",
    )
    yield case(
        "SQL: INSERT",
        "call",
        lambda at: (
            at.log(),
            at.spark.sql(f"CREATE TABLE misused USING timely OPTIONS (path '{at.path()}')").collect(),
            at.spark.sql("INSERT INTO misused VALUES (1, 'a')").collect(),
        ),
        "only streaming writes",
    )
    yield case(
        "batch write",
        "call",
        lambda at: at.spark.range(3).write.format("timely").mode("append").save(at.path()),
        "only streaming writes",
        "writeStream",
    )
    yield case("write: misspelled", "start", lambda at: at.write(latenes="3"), "'latenes'", "did you mean 'lateness'?")
    yield case("write: no checkpoint", "start", lambda at: at.write(checkpointLocation=None), "checkpointLocation")
    yield case("write: no path", "start", lambda at: at.write(path=None), "found no option 'path'")
    yield case(
        "write: no such time column",
        "start",
        lambda at: at.write(timeColumn="when", frontier="hold"),
        "found no column 'when'",
        "'t', 'word'",
    )
    yield case("write: no frontier", "start", lambda at: at.write(timeColumn="t"), "frontier")
    yield case("write: time column of text", "start", lambda at: at.write(timeColumn="word", frontier="hold"), "'word'")
    yield case(
        "write: lateness without a unit",
        "start",
        lambda at: at.write(timeColumn="t", frontier="bounded", lateness="much"),
        "lateness='much'",
    )
    yield case("write: name of the stream", "start", lambda at: at.write(stream="a-b"), "stream='a-b'", "underscores")
    yield case("write: outputMode complete", "start", lambda at: at.write(mode="complete"), "'complete'", "append")
    yield case("write: outputMode update", "start", lambda at: at.write(mode="update"), "'update'", "append")
    yield case(
        "write: idleTimeout of a sink", "start", lambda at: at.write(idleTimeout="1 minute", **late), "idle_timeout"
    )
    yield case("write: onFinish of a sink", "start", lambda at: at.write(onFinish="close"), "on_finish")
    yield case("write: cdcv2 by a sink", "start", lambda at: at.write(dialect="cdcv2"), "foreachBatch")
    yield case(
        "write: partitionBy",
        "start",
        lambda at: at.source().writeStream.format("timely").partitionBy("word")
        .option("checkpointLocation", at.path("checkpoint")).start(at.path()),
        "partitioning by ['word']",
    )  # fmt: skip
    yield case(
        "write: toTable of no table",
        "call",
        lambda at: at.source().writeStream.format("timely").option("path", at.path())
        .option("checkpointLocation", at.path("checkpoint")).toTable("not_there"),
        "CREATE TABLE",
    )  # fmt: skip
    yield case(
        "write: column that the log lacks",
        "start",
        lambda at: (
            at.log(owner="x"),
            at.write(at.source("t long, word string, more int"), stream="other", timeColumn="t", frontier="hold"),
        ),
        "'more'",
        "mergeSchema=true",
    )
    yield case(
        "write: column of another type",
        "start",
        lambda at: (
            at.log(),
            at.write(at.source("t long, word double"), stream="other", timeColumn="t", frontier="hold"),
        ),
        "'word'",
    )
    yield case(
        "write: another's stream",
        "start",
        lambda at: (at.log(), at.write(timeColumn="t", frontier="hold")),
        "owned by 'somebody'",
        "takeover=true",
    )
    yield case(
        "write: complete log",
        "start",
        lambda at: (at.log(closed=True), at.write(stream="other", timeColumn="t", frontier="hold")),
        "closed",
    )
    yield case(
        "write: folder of something else",
        "start",
        lambda at: (at.source(t=pa.array([1])), at.write(path=at.path("incoming"))),
        "'0.parquet'",
    )
    yield case("write: row that is late", "await", late_row, "found time 1 behind the frontier", "lateData")
    yield case(
        "write: second stream of a log for one",
        "await",
        lambda at: (
            at.log(),
            at.write(at.source(t=pa.array([1]), word=["a"]), stream="other", timeColumn="t", frontier="hold"),
        ),
        "found time 1 behind the frontier [3]",
        "streams=2",
    )
    yield case(
        "start: second stream by foreachBatch",
        "await",
        lambda at: (
            at.log(),
            at.start(
                at.source(t=pa.array([1]), word=["a"]),
                through="foreachBatch",
                stream="other",
                time_column="t",
                frontier="hold",
            ),
        ),
        "streams=2",
    )
    yield case(
        "write: time that is null",
        "await",
        lambda at: at.write(
            at.source(t=pa.array([1, None], pa.int64()), word=["a", "b"]), timeColumn="t", frontier="hold"
        ),
        "found null in row=1",
    )
    yield case("start: misspelled", "start", lambda at: at.start(latenes="3"), "'latenes'", "did you mean 'lateness'?")
    yield case(
        "start: closes what does not end",
        "start",
        lambda at: at.start(trigger="10 seconds", on_finish="close"),
        "on_finish='close'",
        "availableNow",
    )
    yield case(
        "start: DataFrame that is not streaming",
        "start",
        lambda at: at.start(at.spark.range(3)),
        "not streaming",
        "readStream",
    )
    yield case(
        "start: another's stream by foreachBatch",
        "start",
        lambda at: (at.log(), at.start(through="foreachBatch", time_column="t", frontier="hold")),
        "owned by 'somebody'",
    )
    yield case(
        "start: null time by foreachBatch",
        "await",
        lambda at: at.start(
            at.source(t=pa.array([1, None], pa.int64()), word=["a", "b"]),
            through="foreachBatch",
            time_column="t",
            frontier="hold",
        ),
        "null",
    )


def late_row(at: Place) -> None:
    """Capture a row, and in a second run one behind it."""
    rows = at.source(t=pa.array([5]), word=["a"])
    at.write(rows, timeColumn="t", frontier="bounded")
    pq.write_table(pa.table({"t": pa.array([1]), "word": ["b"]}), at.folder / "incoming" / "1.parquet")
    at.write(rows, timeColumn="t", frontier="bounded")


def shown_for(misuse: Misuse, spark: SparkSession, folder: Path) -> Shown:
    """Do something wrong in a folder of its own, and return what was shown."""
    folder.mkdir(parents=True)
    at = Place(spark, folder)
    text, kind = "nothing was refused", ""
    try:
        misuse.do(at)
    except Exception as error:  # noqa: BLE001 - whatever a user is shown
        text, kind = str(error), type(error).__name__
    finally:
        spark.sql("DROP TABLE IF EXISTS misused").collect()
    lines = text.splitlines()
    said = [number for number, line in enumerate(lines, start=1) if "[TIMELY_" in line]
    ours = sum('File "' in line and any(part in line for part in _OUR_FRAMES) for line in lines)
    return Shown(misuse.name, at.reached, len(lines), said[0] if said else 0, ours, f"{kind}: {lines[0]}")


def check(misuse: Misuse, shown: Shown) -> None:
    """Compare what was shown with what must be."""
    order = ("call", "load", "start", "await")
    assert order.index(shown.where) <= order.index(misuse.where), shown
    assert shown.message_line == 1, shown
    assert shown.our_frames == 0, shown
    for text in misuse.texts:
        assert text in shown.first, shown


if __name__ == "__main__":
    import tempfile

    found = Path(tempfile.mkdtemp())
    session = st.session("misuses", master="local[2]", **{"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("OFF")
    for number, misuse in enumerate(misuses()):
        seen = shown_for(misuse, session, found / str(number))
        print(f"{seen.name} | {seen.where} | {seen.message_line} of {seen.lines} | {seen.our_frames} | {seen.first}")  # noqa: T201
    shutil.rmtree(found)
