"""The runner of a dataflow's tasks: as a job on Spark's executors, or in this process where they are small.

A dataflow's step is cut into tasks by `spark_timely.dataflow.engine`; the query of `dataflow` has them run here, as
does a compute instance on Spark. Continual tasks, which evaluate a user's body, are in `spark_timely.spark.tasks`.

Files are opened and read as the source ``timely`` reads them in its own tasks. A job that is small enough runs in the
process that plans it, in two threads: a job of Spark would cost more than the work.

Invariants
----------
1. Where a task runs changes no row, no number and no error: whatever goes wrong in this process is thrown away, and a
   job of Spark does the work again.
2. What runs in this process is none of the user's code, and holds little in memory: see `Room`.
3. A stopped query notices it within about a second: Spark interrupts only where a job runs, so once a second one is
   run.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import time as monotonic
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from spark_timely.dataflow.engine.shuffle import shuffle_read, shuffle_write
from spark_timely.dataflow.engine.task_runner import run_task
from spark_timely.dataflow.engine.tasks import OutputPlan, ReadRange, Share, Task, TaskResult
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.views import Names, Replay, View, calls_functions
from spark_timely.datasource.catalog import Catalog, FileView
from spark_timely.datasource.reader import read_split
from spark_timely.datasource.splits import FilePiece, ReplayLayout, Split
from spark_timely.errors import TimelyInternalError
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.streams import discard
from spark_timely.spark.base.shipping import for_task
from spark_timely.threads import begun, pool
from spark_timely.time.antichain import Antichain
from spark_timely.trace.keys import KeySet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.log import Log


StorageOptions = Mapping[str, Mapping[str, str]]
InSession = Callable[[Callable[["SparkSession"], list[TaskResult]]], list[TaskResult]]

_log = logging.getLogger("spark_timely.dataflow")

DRIVER_BYTES: Final = 1 << 20
"""Bytes of input below which a job runs where it is planned."""

_DRIVER_THREADS: Final = 2

# That read a log in which something is looked for without an index.
_LOOK_THREADS: Final = 2

# What one task may hold there: bytes of rows that it reads, and rows that any of its operators may make of them. A file
# of repeated values decodes to a thousand times its size, and a join makes a million rows of two thousand.
_ROOM_BYTES: Final = 64 << 20
_ROOM_ROWS: Final = 1 << 20

# A task of Spark costs 0.02 s beside its work: below these bytes together, neighbours share one, but for a few.
_PARTITION_BYTES: Final = 4 << 20
_LEAST_PARTITIONS: Final = 4

# How long tasks run there before one job is Spark's again (invariant 3).
_DRIVER_S: Final = 1.0

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

    def files() -> FileView:
        since = log.core.since()
        moves = log.core.kind == "collection" and since != log.core.domain.minimum_frontier
        return catalog.files(None, since if moves else None)

    return files


def run_one(
    task: Task, output: OutputPlan, storage_options: StorageOptions, /, *, room: Room | None = None
) -> TaskResult:
    """Run one task in this process; several threads may do so at once.

    Parameters
    ----------
    task : Task
        Of a whole piece.
    output : OutputPlan
        Of the task.
    storage_options : mapping
        By path of the log.
    room : Room, optional
        How much it may hold in memory; as much as it needs unless given.
    """
    return run_task(task, output, reader_of(storage_options, room), look=None if room is None else room.look)


class RoomError(Exception):
    """A task needs more memory than it may have where it is planned; nothing of it was written."""


class Room:
    """The limit on a task's memory in the process that plans it: 64 MiB of rows read, a million rows of a view.

    What is read is looked at after each batch of 100,000 rows, and what an operator gets before it works: of a join
    there may be each row with each. Aggregates, filters and delays make no more rows than they get, so that with rows
    of usual width a task holds some hundred megabytes at most.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._size = 0

    def take(self, rows: pa.RecordBatch) -> None:
        """Take room for rows of a log; raise `RoomError` if there is none left."""
        self._rows += rows.num_rows
        self._size += rows.nbytes
        if self._size > _ROOM_BYTES or self._rows > _ROOM_ROWS:
            msg = f"{self._rows} rows of {self._size} bytes were read"
            raise RoomError(msg)

    def look(self, view: View, tables: Sequence[pa.Table]) -> None:
        """Raise `RoomError` where an operator might make too many rows of what it gets."""
        rows = [table.num_rows for table in tables]
        most = rows[0] * (rows[1] + 1) if type(view.operator) is Join else sum(rows)
        if most > _ROOM_ROWS:
            msg = f"operator {view.name!r} might make {most} rows"
            raise RoomError(msg)


def reader_of(storage_options: StorageOptions, room: Room | None = None, /) -> ReadRange:
    """Return what reads ranges of logs.

    Parameters
    ----------
    storage_options : mapping
        By path of the log.
    room : Room, optional
        Where memory is limited.
    """

    def read(
        leaf: Replay,
        shares: Sequence[Share],
        lo: Antichain,
        hi: Antichain,
        columns: Names,
        keep: KeySet | None = None,
        /,
    ) -> pa.Table:
        own = leaf.empty().schema
        payload = [own.field(name).with_nullable(True) for name in columns]  # noqa: FBT003 - as Arrow has it
        schema = pa.schema([*(own.field(name) for name in leaf.carried), *payload])
        pieces = [FilePiece(share.path, share.start, share.stop) for share in shares]
        as_of = shares[0].as_of if shares else None
        storage = open_storage(leaf.path, storage_options.get(leaf.path) or None)
        lock = Lock()

        def of(mine: Sequence[FilePiece]) -> list[pa.RecordBatch]:
            split = Split(0, 1, leaf.path, tuple(mine), lower=lo.elements, upper=hi.elements, as_of=as_of)
            batches = []
            for batch in read_split(split, ReplayLayout(schema, leaf.domain), storage=storage, keys=keep):
                kept = batch if keep is None else keep.of(batch)
                if room is not None:
                    with lock:
                        room.take(kept)
                batches.append(kept)
            return batches

        if keep is None or len(pieces) < _LOOK_THREADS:
            return pa.Table.from_batches(of(pieces), schema)
        # What is looked for may be anywhere in a log, and little of it is kept.
        with pool("look", _LOOK_THREADS) as threads:
            jobs = [begun(threads, of, pieces[number::_LOOK_THREADS]) for number in range(_LOOK_THREADS)]
            parts = [job.result() for job in jobs]
        return pa.Table.from_batches([batch for part in parts for batch in part], schema)

    return read


class SparkTasks:
    """Runs the tasks of a job, in Spark: one row per task, the task list in the closure of `mapInArrow`; or here.

    Rows of logs cross the JVM in neither direction; what comes back are names and statistics of files. Pieces that are
    computed by key are a job of their own, whose shuffle moves groups, packed by bucket. What is small and has no
    function of the user runs in this process.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or callable
        Classic or Connect; or what calls a function with one, and returns what that gives.
    storage_options : mapping
        By path of the log.
    max_bytes_in_driver : int
        Bytes of input below which a job runs in this process; 0 is for none.
    here_s : float
        How long jobs run in this process before one is Spark's again (invariant 3): without end where no query of Spark
        runs them.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(
        self,
        spark: SparkSession | InSession,
        storage_options: StorageOptions,
        *,
        max_bytes_in_driver: int = DRIVER_BYTES,
        here_s: float = _DRIVER_S,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self._in_session: InSession = spark if callable(spark) else lambda act: act(spark)
        self._storage_options = {path: dict(options) for path, options in storage_options.items()}
        self._driver_bytes = max_bytes_in_driver
        self._here_s, self._now = here_s, now
        # Since when jobs run here; None while the last one was Spark's.
        self._here_since: float | None = None

    def __call__(self, outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        """Run the job; return the results in the order of the tasks."""
        here = self._run_here(outputs, tasks) if self._fits_here(outputs, tasks) else None
        if here is not None:
            return here
        self._here_since = None
        return self._in_session(lambda spark: self._run_in_spark(spark, outputs, tasks))

    def _fits_here(self, outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> bool:
        return (
            sum(task.size_bytes for task in tasks) < self._driver_bytes
            and (self._here_since is None or self._now() - self._here_since < self._here_s)
            and all(task.piece is None for task in tasks)
            and not any(calls_functions(outputs[number].view) for number in {task.output for task in tasks})
        )

    def _run_here(self, outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult] | None:
        """Run tasks in this process; return None where that cannot be done, so that Spark must do it (invariant 1)."""
        if self._here_since is None:
            self._here_since = self._now()
        with pool("task", _DRIVER_THREADS) as threads:
            futures = [
                begun(threads, run_one, task, outputs[task.output], self._storage_options, room=Room())
                for task in tasks
            ]
            wait(futures, return_when=FIRST_EXCEPTION)
            threads.shutdown(cancel_futures=True)
        errors = [future.exception() for future in futures if not future.cancelled()]
        failed = next((error for error in errors if error is not None), None)
        if failed is None:
            return [future.result() for future in futures]
        level = logging.DEBUG if isinstance(failed, RoomError) else logging.WARNING
        _log.log(level, "a job of %d tasks is left to Spark: %s", len(tasks), failed)
        for task, future in zip(tasks, futures, strict=True):
            if not future.cancelled() and future.exception() is None:
                discard(outputs[task.output].storage, future.result().files)
        return None

    def _run_in_spark(
        self, spark: SparkSession, outputs: Sequence[OutputPlan], tasks: Sequence[Task]
    ) -> list[TaskResult]:
        found: dict[int, TaskResult] = {}
        for shuffled, run in ((False, self._run_whole), (True, self._run_shuffled)):
            numbers = [number for number, task in enumerate(tasks) if (task.piece is not None) is shuffled]
            if numbers:
                results = run(spark, list(outputs), [tasks[number] for number in numbers])
                found.update(zip(numbers, results, strict=True))
        return [found[number] for number in range(len(tasks))]

    def _run_whole(self, spark: SparkSession, plans: list[OutputPlan], todo: list[Task]) -> list[TaskResult]:
        options = self._storage_options

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():  # mostly one task, of small steps some
                    result = run_one(todo[number], plans[todo[number].output], options)
                    yield pa.RecordBatch.from_pylist([{"task": number, "result": pickle.dumps(result)}])

        n = len(todo)
        found = spark.range(0, n, 1, partitions_of(todo)).mapInArrow(for_task(work), _RESULTS).collect()
        results = {int(row["task"]): pickle.loads(bytes(row["result"])) for row in found}
        if len(found) != n or len(results) != n:
            msg = f"a job of {n} tasks gave {len(found)} results, invariant 1 of dataflow.tasks"
            raise TimelyInternalError(msg)
        return [results[number] for number in range(n)]

    def _run_shuffled(self, spark: SparkSession, plans: list[OutputPlan], todo: list[Task]) -> list[TaskResult]:
        """Run tasks that are parts of pieces; bucket i of a piece is the result of its task i."""
        options = self._storage_options
        pieces = pieces_of(todo)
        place = {number: (first, len(numbers)) for first, numbers in pieces.items() for number in numbers}

        def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():  # mostly one task
                    first, n_buckets = place[number]
                    plan = plans[todo[number].output]
                    for block in shuffle_write(todo[number], plan, reader_of(options), n_buckets):
                        row = {"piece": first, "bucket": block.bucket, "content": block.content}
                        yield pa.RecordBatch.from_pylist([row])

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # Sorted by bucket: only one is in memory at a time.
            for (first, bucket), contents in itertools.groupby(_parcels(batches), key=itemgetter(0, 1)):
                plan, n_buckets = plans[todo[first].output], place[first][1]
                blocks = [content for *_, content in contents]
                result = shuffle_read(todo[first], plan, blocks, reader_of(options), bucket, n_buckets)
                row = {"piece": first, "bucket": bucket, "result": pickle.dumps(result)}
                yield pa.RecordBatch.from_pylist([row])

        n = len(todo)
        parts = spark.range(0, n, 1, n).mapInArrow(for_task(part), _PARCELS)
        spread = parts.repartition(n, "piece", "bucket").sortWithinPartitions("piece", "bucket")
        found = spread.mapInArrow(for_task(merge), _BUCKETS).collect()
        results = {(row["piece"], row["bucket"]): pickle.loads(bytes(row["result"])) for row in found}
        if len(results) != len(found):
            msg = f"a job of {n} tasks gave a bucket twice, invariant 1 of dataflow.engine.shuffle"
            raise TimelyInternalError(msg)
        empty = TaskResult(times=np.empty((0, todo[0].lower.arity), dtype=np.int64))
        return [results.get((first, bucket), empty) for first, bucket in buckets_of(todo)]


def _parcels(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes]]:
    for batch in batches:
        for number in range(batch.num_rows):
            first, bucket, content = (column[number].as_py() for column in batch.columns)
            yield first, bucket, content


def partitions_of(tasks: Sequence[Task], /) -> int:
    """Return in how many of Spark's tasks to run tasks: neighbours together where they are small.

    Examples
    --------
    >>> from spark_timely.time.antichain import Antichain
    >>> ends = Antichain.of(0), Antichain.of(1)
    >>> [partitions_of([Task(0, 1, *ends, {}, size)] * 20) for size in (10_000, 1 << 20, 1 << 26)]
    [4, 5, 20]
    """
    size = sum(task.size_bytes for task in tasks)
    return min(len(tasks), max(_LEAST_PARTITIONS, -(-size // _PARTITION_BYTES)))


def pieces_of(tasks: Sequence[Task], /) -> dict[int, list[int]]:
    """Return the numbers of the tasks of each piece, by the first of them."""
    found: dict[tuple[int, int | None], list[int]] = {}
    for number, task in enumerate(tasks):
        found.setdefault((task.output, task.piece), []).append(number)
    return {numbers[0]: numbers for numbers in found.values()}


def buckets_of(tasks: Sequence[Task], /) -> list[tuple[int, int]]:
    """Return for each task the first task of its piece, and the bucket that is its result."""
    found = {number: (first, bucket) for first, each in pieces_of(tasks).items() for bucket, number in enumerate(each)}
    return [found[number] for number in range(len(tasks))]
