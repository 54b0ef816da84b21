"""A dataflow with three outputs, one of them read again, that can be killed at a named point.

Run as ``python dataflow_job.py SPEC.json``. Keys of the specification:

``folder``
    Where the logs ``one`` and ``two`` lie, and where everything goes.
``kill``
    ``null``, or ``{"where": "task" | "before" | "after", "commit": n}``: end the driver while a task computes its
    output, or on either side of the nth commit of this run to an output's log.
``marker``
    A file that is written just before the kill, so that the test knows that it struck.
``checkpoint``
    The query's.
``trigger``
    ``"availableNow"`` unless given, or ``"once"``.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.log.core import LogCore
from tests.faults.harness import strike

OUTPUTS = ("windows", "totals", "pairs")


def struck_in_task(marker: str | None, group: int, rows: pa.Table) -> pa.Table:
    """Pass rows on, and kill when there are some and a marker is given."""
    if marker is not None and rows.num_rows and not Path(marker).exists():
        strike(marker, group)
    return rows


def flow_of(spec: dict[str, Any], marker: str | None = None) -> st.Dataflow:
    """Return the program: hopping windows; totals of theirs, by a log between; a join per time.

    Its plan is the same whether a task is struck or not: another one would be refused.
    """
    folder = Path(spec["folder"])
    flow = st.Dataflow("killed", checkpoint=spec["checkpoint"])
    one, two = flow.replay(str(folder / "one")), flow.replay(str(folder / "two"))
    counts = one.delay(tf.windows(6, every=3)).aggregate(by="key", n=tf.count(), total=tf.sum("id"))
    again = counts.spool(str(folder / "windows"))
    totals = again.delay(tf.ceil_to(12)).aggregate(n=tf.sum("n"), most=tf.max("total"))
    totals.capture(str(folder / "totals"))
    pairs = one.join(two.select("key", other=pc.field("id")), on="key")
    pairs.map(partial(struck_in_task, marker, os.getpgid(0))).capture(str(folder / "pairs"))
    return flow


def run(spark: SparkSession, spec: dict[str, Any]) -> None:
    """Run the dataflow until its inputs are used up, or until it is killed."""
    kill, marker = spec.get("kill"), None
    if kill and kill["where"] == "task":
        marker = spec["marker"]
    elif kill:
        _kill_at_commit(kill["where"], kill["commit"], spec["marker"])
    trigger = spec.get("trigger", "availableNow")
    query = flow_of(spec, marker).start(spark, trigger=trigger, workers=2, max_times_per_step=5)
    query.await_termination()


def _kill_at_commit(where: str, nth: int, marker: str) -> None:
    """Make a commit of an output end the driver: the files of the step are written by then."""

    commit, left = LogCore.commit, [nth]

    def dying(*args: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 and where == "before":
            strike(marker, os.getpgid(0))
        done = commit(*args, **keywords)
        if left[0] < 0 and where == "after":
            strike(marker, os.getpgid(0))
        return done

    LogCore.commit = dying  # type: ignore[method-assign]


def main(spec: dict[str, Any]) -> None:
    """Run the dataflow in a driver of its own."""
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = st.session("dataflow", master="local[2]", **settings)
    run(spark, spec)
    spark.stop()


if __name__ == "__main__":
    # Its functions are known by their module: the same one as where the test runs the dataflow itself.
    from tests.faults.jobs import dataflow_job

    dataflow_job.main(json.loads(Path(sys.argv[1]).read_text()))
