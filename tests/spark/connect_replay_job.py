"""One capture and one replay through Spark Connect, as `connect` runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import spark_timely
from spark_timely.spark import batch_frame, read_splits


def read_at_cut(spark: SparkSession, log: str) -> int:
    """Read as of a cut, told as JSON; return the number of rows."""
    (rows,) = spark_timely.snapshot(spark, str(spark_timely.cut([log], frontier=7)))
    return rows.count()


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Capture files through the sink, replay the log, aggregate splits; return what was found."""
    incoming, log = folder / "incoming", folder / "log"
    incoming.mkdir()
    for number in range(3):
        times = [4 * number + step for step in range(4)]
        table = pa.table({"t": pa.array(times, pa.int64()), "word": [f"w{time % 3}" for time in times]})
        pq.write_table(table, incoming / f"part-{number}.parquet")
        # The file source goes by modification times, and files of one millisecond are in no order.
        os.utime(incoming / f"part-{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    rows = spark.readStream.schema("t long, word string").option("maxFilesPerTrigger", 1).parquet(str(incoming))
    options = {"timeColumn": "t", "frontier": "bounded", "lateness": "0", "path": str(log)}
    captured = rows.writeStream.format("timely").options(**options)
    captured = captured.option("checkpointLocation", str(folder / "capture")).trigger(availableNow=True)
    captured.start().awaitTermination()

    def keep(df: DataFrame, batch_id: int) -> None:
        found = [row.asDict() for row in df.collect()]
        (folder / f"batch-{batch_id}.json").write_text(json.dumps(found))

    replay = spark.readStream.format("timely").option("maxTimesPerTrigger", 5).option("includeTime", "true")
    query = replay.load(str(log)).writeStream.foreachBatch(keep)
    query = query.option("checkpointLocation", str(folder / "replay")).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [json.loads(file.read_text()) for file in sorted(folder.glob("batch-*.json"))]
    last = query.lastProgress
    ends = last["sources"][0]["endOffset"]

    def kernel(parts):  # noqa: ANN001, ANN202 - pickled by value, without its annotations' modules
        for table in read_splits(parts, columns=["word"]):
            yield from table.group_by("word").aggregate([([], "count_all")]).to_batches()

    splits = spark.read.format("timely").option("content", "splits").option("workers", 1).load(str(log))
    counts = splits.mapInArrow(kernel, "word string, count_all long").collect()
    driven: list[list[dict[str, object]]] = []
    job = spark_timely.replay(spark, log, max_times_per_trigger=5, include_time=True)
    job.foreachBatch(lambda df, _: driven.append([row.asDict() for row in df.collect()]))
    job.run(checkpoint=folder / "driven")
    found: dict[str, object] = {
        "driven": driven,
        "framed": batch_frame(spark, splits).count(),
        "batches": batches,
        "end": json.loads(ends) if isinstance(ends, str) else ends,
        "counts": sorted(map(list, counts)),
        "read": spark.read.format("timely").load(str(log)).count(),
        "cut": read_at_cut(spark, str(log)),
    }
    return found
