"""Run a dataflow's tasks in Spark's executors: each gets its part of the plan, and reads the log's files itself.

This is the usual evaluation, by pyarrow; `dataflow_sql` is the other one. Files are opened and read as the source
``timely`` reads them in its own tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from spark_timely.dataflow.engine.shuffle import final_aggregate, partial_aggregate
from spark_timely.dataflow.engine.tasks import OutputPlan, ReadRange, Share, Task, TaskResult, run_task
from spark_timely.dataflow.views import Names, Replay
from spark_timely.datasource.catalog import Catalog, FileView
from spark_timely.datasource.partitions import FilePiece, ReplayLayout, Split
from spark_timely.datasource.reader import read_split
from spark_timely.errors import TimelyInternalError
from spark_timely.log.store.storage import open_storage
from spark_timely.protocol.replay import default_splits
from spark_timely.spark.base.worker import settle_worker
from spark_timely.spark.dataflow_sql import run_sql
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.log import Log


StorageOptions = Mapping[str, Mapping[str, str]]

# Not as text: Spark would parse it for each job, 10 ms of 100.
_RESULTS: Final = StructType([StructField("task", LongType()), StructField("result", BinaryType())])
_PARCELS: Final = StructType(
    [StructField("piece", LongType()), StructField("bucket", LongType()), StructField("content", BinaryType())]
)
_BUCKETS: Final = StructType(
    [StructField("piece", LongType()), StructField("bucket", LongType()), StructField("result", BinaryType())]
)


def catalog_of(log: Log, /) -> Callable[[], FileView]:
    """Return what gives the files of a log's present snapshot; what was learnt of them is kept."""
    catalog = Catalog(log)
    return lambda: catalog.files(None, None)


def run_one(task: Task, output: OutputPlan, storage_options: StorageOptions, /) -> TaskResult:
    """Run one task in this process.

    Parameters
    ----------
    task : Task
        Of a whole piece.
    output : OutputPlan
        Of the task.
    storage_options : mapping
        By path of the log.
    """
    return run_task(task, output, reader_of(storage_options))


def reader_of(storage_options: StorageOptions, /) -> ReadRange:
    """Return what reads ranges of logs.

    Parameters
    ----------
    storage_options : mapping
        By path of the log.
    """

    def read(leaf: Replay, shares: Sequence[Share], lo: Antichain, hi: Antichain, columns: Names) -> pa.Table:
        times = zip(leaf.domain.columns, leaf.domain.types, strict=True)
        payload = [leaf.schema.field(name).with_nullable(True) for name in columns]  # noqa: FBT003 - as Arrow has it
        schema = pa.schema([*(pa.field(name, kind.arrow) for name, kind in times), *payload])
        pieces = tuple(FilePiece(share.path, share.start, share.stop) for share in shares)
        split = Split(0, 1, leaf.path, pieces, lower=lo.elements, upper=hi.elements)
        storage = open_storage(leaf.path, storage_options.get(leaf.path) or None)
        return pa.Table.from_batches(read_split(split, ReplayLayout(schema, leaf.domain), storage=storage), schema)

    return read


class SparkTasks:
    """Runs the tasks of a step as one Spark job: one row per task, the task list in the closure of `mapInArrow`.

    Rows of logs cross the JVM in neither direction; what comes back are names and statistics of files. Pieces that are
    computed by key are a job of their own, whose shuffle moves groups, packed by bucket.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    storage_options : mapping
        By path of the log.
    workers : int, optional
        Partitions of what is shuffled; by bytes if not given.
    """

    def __init__(self, spark: SparkSession, storage_options: StorageOptions, workers: int | None = None) -> None:
        self._spark = spark
        self._workers = workers
        self._storage_options = {path: dict(options) for path, options in storage_options.items()}

    def __call__(self, outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        """Run the job; return the results in the order of the tasks."""
        found: dict[int, TaskResult] = {}
        kinds = [
            "sql" if outputs[task.output].evaluation == "sql" else "whole" if task.piece is None else "shuffled"
            for task in tasks
        ]
        for kind, run in (("whole", self._run_whole), ("shuffled", self._run_shuffled), ("sql", self._run_sql)):
            numbers = [number for number, each in enumerate(kinds) if each == kind]
            if numbers:
                results = run(list(outputs), [tasks[number] for number in numbers])
                found.update(zip(numbers, results, strict=True))
        return [found[number] for number in range(len(tasks))]

    def _run_whole(self, plans: list[OutputPlan], todo: list[Task]) -> list[TaskResult]:
        options = self._storage_options

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            settle_worker()
            for batch in batches:
                for number in batch.column(0).to_pylist():  # one turn per task, mostly one
                    result = run_one(todo[number], plans[todo[number].output], options)
                    yield pa.RecordBatch.from_pylist([{"task": number, "result": pickle.dumps(result)}])

        n = len(todo)
        found = self._spark.range(0, n, 1, n).mapInArrow(work, _RESULTS).collect()
        results = {int(row["task"]): pickle.loads(bytes(row["result"])) for row in found}
        if len(found) != n or len(results) != n:
            msg = f"a job of {n} tasks gave {len(found)} results, invariant 1 of dataflow.tasks"
            raise TimelyInternalError(msg)
        return [results[number] for number in range(n)]

    def _run_sql(self, plans: list[OutputPlan], todo: list[Task]) -> list[TaskResult]:
        """Run each range as a job of DataFrames."""
        found = []
        for task in todo:  # one turn per output
            n_tasks = self._workers or default_splits(task.size_bytes)
            found.append(run_sql(self._spark, task, plans[task.output], self._storage_options, n_tasks))
        return found

    def _run_shuffled(self, plans: list[OutputPlan], todo: list[Task]) -> list[TaskResult]:
        """Run tasks that are parts of pieces; bucket i of a piece is the result of its task i."""
        options = self._storage_options
        pieces = pieces_of(todo)
        place = {number: (first, len(numbers)) for first, numbers in pieces.items() for number in numbers}

        def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            settle_worker()
            for batch in batches:
                for number in batch.column(0).to_pylist():  # one turn per task, mostly one
                    first, n_buckets = place[number]
                    plan = plans[todo[number].output]
                    for block in partial_aggregate(todo[number], plan, reader_of(options), n_buckets):
                        row = {"piece": first, "bucket": block.bucket, "content": block.content}
                        yield pa.RecordBatch.from_pylist([row])

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            settle_worker()
            blocks: dict[tuple[int, int], list[bytes]] = {}
            for batch in batches:
                for first, bucket, content in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    blocks.setdefault((first, bucket), []).append(content)
            for (first, bucket), contents in blocks.items():  # one turn per bucket, mostly one
                result = final_aggregate(todo[first], plans[todo[first].output], contents)
                row = {"piece": first, "bucket": bucket, "result": pickle.dumps(result)}
                yield pa.RecordBatch.from_pylist([row])

        n = len(todo)
        parts = self._spark.range(0, n, 1, n).mapInArrow(part, _PARCELS)
        spread = parts.repartition(n, "piece", "bucket")
        found = spread.mapInArrow(merge, _BUCKETS).collect()
        results = {(row["piece"], row["bucket"]): pickle.loads(bytes(row["result"])) for row in found}
        if len(results) != len(found):
            msg = f"a job of {n} tasks gave a bucket twice, invariant 1 of dataflow.engine.shuffle"
            raise TimelyInternalError(msg)
        empty = TaskResult(times=np.empty((0, todo[0].lower.arity), dtype=np.int64))
        return [results.get((first, bucket), empty) for first, bucket in buckets_of(todo)]


def pieces_of(tasks: Sequence[Task], /) -> dict[int, list[int]]:
    """Return the numbers of the tasks of each piece, by the first of them."""
    found: dict[tuple[int, int | None], list[int]] = {}
    for number, task in enumerate(tasks):  # one turn per task
        found.setdefault((task.output, task.piece), []).append(number)
    return {numbers[0]: numbers for numbers in found.values()}


def buckets_of(tasks: Sequence[Task], /) -> list[tuple[int, int]]:
    """Return for each task the first task of its piece, and the bucket that is its result."""
    found = {number: (first, bucket) for first, each in pieces_of(tasks).items() for bucket, number in enumerate(each)}
    return [found[number] for number in range(len(tasks))]
