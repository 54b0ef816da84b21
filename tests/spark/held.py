"""Rows of a job that waits in its middle."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def held_rows(spark: SparkSession, marker: Path, *, first: Path | None = None, n_rows: int = 2000) -> DataFrame:
    """Return rows in two tasks, of which the second gives one and waits for a file before it gives the others.

    It makes the file `first` when it begins to wait.
    """
    name, told = str(marker), None if first is None else str(first)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            if told is not None and batch.column(0)[0].as_py():
                open(told, "w").close()
            while batch.column(0)[0].as_py() and not os.path.exists(name):
                time.sleep(0.01)
            yield batch.slice(1)

    return spark.range(0, n_rows, 1, 2).mapInArrow(work, "id long")
