"""Deep graphs with ``evaluation="sql"``: Spark's plans stay small, and the rows are those of the other evaluation."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from spark_timely import Dataflow
from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import plus
from spark_timely.dataflow.stream import Stream
from spark_timely.log.log import create_log, open_log

pytestmark = pytest.mark.spark


def deep(stream: Stream, other: Stream) -> Stream:
    """Return a stream with more ways through it than a plan that is a tree could have, and 350 operators in a row."""
    stream = stream.concat(other.delay(plus(1)))
    for number in range(30):
        one, rest = stream.branch(f"n > {number}")
        stream = one.concat(rest)
    for number in range(350):
        stream = stream.map(lambda rows, number=number: pa.table({"n": pc.add(rows["n"], number % 2)}))
    return stream


def test_deep_graph_in_sql_gives_the_rows_of_arrow(spark: SparkSession, tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), pa.schema([("n", pa.int64())]), minimum=(0,))
    log.writer(owner="test").append(pa.table({"_time": [1, 2, 2], "n": [5, 40, 41]}), advance_to=9)
    found = {}
    for evaluation in ("sql", "arrow"):
        flow = Dataflow(f"deep {evaluation}", checkpoint=str(tmp_path / evaluation), evaluation=evaluation)  # type: ignore[arg-type]
        stream = flow.replay(log.path)
        made = deep(stream, stream)
        made.capture(str(tmp_path / f"{evaluation} rows"))
        made.aggregate(by="n", c=count()).capture(str(tmp_path / f"{evaluation} counts"))
        flow.start(spark, trigger="availableNow").await_termination()
        for what in ("rows", "counts"):
            out = open_log(str(tmp_path / f"{evaluation} {what}"))
            rows = out.messages()
            found[evaluation, what] = sorted(zip(*(rows[name].to_pylist() for name in ("_time", "n")), strict=True))
            assert out.frontier() == log.frontier()
    assert found["sql", "rows"] == found["arrow", "rows"]
    assert found["sql", "counts"] == found["arrow", "counts"]
    assert found["sql", "rows"] == [(1, 180), (2, 180), (2, 215), (2, 216), (3, 215), (3, 216)]
