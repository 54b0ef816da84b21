"""Run the tasks of a dataflow, in Spark's executors or here: the parts that know files of the source, and Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.antichain import Antichain
from spark_timely.dataflow.tasks import OutputPlan, Share, Task, TaskResult, run_task
from spark_timely.dataflow.views import Names, Replay
from spark_timely.datasource.catalog import Catalog, FileView
from spark_timely.datasource.partitions import FilePiece, Layout, Split
from spark_timely.datasource.reader import read_split
from spark_timely.errors import TimelyInternalError
from spark_timely.log.storage import open_storage
from spark_timely.spark.worker import settle_worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from spark_timely.log.delta import DeltaLog

__all__ = ["SparkTasks", "catalog_of", "run_one"]


def catalog_of(log: DeltaLog, /) -> Callable[[], FileView]:
    """Return what gives the files of a log's present snapshot; what was learnt of them is kept."""
    catalog = Catalog(log)
    return lambda: catalog.files(None, None)


def run_one(task: Task, output: OutputPlan, storage_options: Mapping[str, Mapping[str, str]], /) -> TaskResult:
    """Run one task in this process.

    Parameters
    ----------
    task : Task
    output : OutputPlan
        Of the task.
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
        return pa.Table.from_batches(read_split(split, Layout(schema, leaf.domain), storage=storage), schema)

    return run_task(task, output, read)


class SparkTasks:
    """Runs the tasks of a step as one Spark job: one row per task, the task list in the closure of `mapInArrow`.

    Rows of logs cross the JVM in neither direction; what comes back are names and statistics of files.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    storage_options : mapping
        By path of the log.
    """

    def __init__(self, spark: SparkSession, storage_options: Mapping[str, Mapping[str, str]]) -> None:
        self._spark = spark
        self._storage_options = {path: dict(options) for path, options in storage_options.items()}

    def __call__(self, outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        """Run the job; return the results in the order of the tasks."""
        plans, todo, options = list(outputs), list(tasks), self._storage_options

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            settle_worker()
            for batch in batches:
                for number in batch.column(0).to_pylist():  # one turn per task, mostly one
                    result = run_one(todo[number], plans[todo[number].output], options)
                    arrays = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
                    yield pa.RecordBatch.from_arrays(arrays, names=["task", "result"])

        n = len(todo)
        found = self._spark.range(0, n, 1, n).mapInArrow(work, "task long, result binary").collect()
        results = {int(row["task"]): pickle.loads(bytes(row["result"])) for row in found}
        if len(found) != n or len(results) != n:
            msg = f"a job of {n} tasks gave {len(found)} results, invariant 1 of dataflow.tasks"
            raise TimelyInternalError(msg)
        return [results[number] for number in range(n)]
