"""A compute instance on Spark: large steps, copies and peeks that must scan are jobs of a session.

Commands, uppers, appends and small jobs need the storage where the instance runs, which is this process: on Spark
Connect the client. That both see the same storage is checked once, at the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.place import Place
from spark_timely.compute.drive.working import Working
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import InvalidUsageError, OperatorError, TimelyError, shown
from spark_timely.log.log import Log, open_log
from spark_timely.spark.base.worker import settle_worker
from spark_timely.spark.copy_to import copy_to
from spark_timely.spark.dataflow_tasks import SparkTasks, catalog_of
from spark_timely.spark.peek_job import peek_job
from spark_timely.time.text import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.compute.response import Response
    from spark_timely.dataflow.engine.arranged import RunTasks

__all__ = ["ComputeInstance"]

_RETAINED: Final = "7 days"
_MOST_KEPT: Final = 512


class ComputeInstance(Handle):
    """A compute instance: dataflows, indexes, peeks, subscribes and copies that come and go while it runs.

    What is maintained is written down in the directory: after a restart it continues, whatever ended the process. Of
    several processes one maintains an instance, the others may follow it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    directory : str
        A path or a cloud URL. Made if it is not there.
    read_only : bool
        Whether to follow the process that maintains the instance, until `allow_writes`.
    moved : bool
        Whether the directory was meant to be moved: a copy is refused unless this says so.
    retain : str or None
        How long imports keep what has not been read while the instance is stopped. None: nothing is retained.
    storage_options : mapping of str to str, optional
        Of the directory.
    options_of : mapping of str to mapping, optional
        Storage options of logs elsewhere, by path.
    on_response : callable, optional
        Is called with each response, in order.

    Examples
    --------
    ::

        with spark_timely.ComputeInstance(spark, "/data/instance") as instance:
            query = "SELECT origin, count(*) AS n FROM flights GROUP BY origin"
            instance.index("flights_by_origin", query, imports={"flights": "/data/flights"}, key="origin")
            instance.await_frontier("flights_by_origin", "2013-01-01")
            instance.peek("flights_by_origin", keys={"origin": ["JFK"]})
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: str,
        /,
        *,
        read_only: bool = False,
        moved: bool = False,
        retain: str | None = _RETAINED,
        storage_options: Mapping[str, str] | None = None,
        options_of: Mapping[str, Mapping[str, str]] | None = None,
        on_response: Callable[[Response], object] | None = None,
    ) -> None:
        self._spark = spark
        self._tasks: dict[str, SparkTasks] = {}
        working = Working(
            self._tasks_of,
            catalog_of,
            copy=self._copy,
            job=lambda plan: peek_job(self._live())(plan),
            retain=None if retain is None else partial(_retained, retain),
        )
        super().__init__(
            directory,
            working,
            read_only=read_only,
            moved=moved,
            storage_options=storage_options,
            options_of=options_of,
            on_response=on_response,
        )
        try:
            if not read_only:
                _check_storage(spark, self.place)
        except BaseException:
            self.close()
            raise

    def use_session(self, spark: SparkSession, /) -> None:
        """Continue with another session: the one before was stopped, or lost. What failed for that is tried again.

        Raises
        ------
        InvalidUsageError
            If its executors do not see the storage of the instance.
        """
        if not self._driver.read_only:
            _check_storage(spark, self.place)
        self._spark, self._tasks = spark, {}
        self._driver.try_again()

    def _live(self) -> SparkSession:
        """Return the session.

        Raises
        ------
        OperatorError
            If it was stopped.
        """
        stopped = getattr(self._spark, "is_stopped", None)
        if stopped is None:  # a classic one cannot be asked: one that was stopped has lost its context
            try:
                stopped = not self._spark.sparkContext.applicationId
            except AttributeError:
                stopped = True
        if stopped:
            msg = (
                f"could not run a job for the instance in {self.place.directory!r}: found the session of Spark stopped"
            )
            raise OperatorError(msg, hint="make another session, and hand it over with use_session")
        return self._spark

    def _tasks_of(self, name: str, options: Mapping[str, Mapping[str, str]]) -> RunTasks:
        """Return what runs the tasks of a dataflow."""
        spark, kept = self._live(), self._tasks
        # What is small never waits for the jobs of others: no query of Spark has to hear whether it was stopped.
        found = kept.pop(name, None) or SparkTasks(spark, options, here_s=math.inf)
        kept[name] = found
        while len(kept) > _MOST_KEPT:  # of subscribes that came and went
            kept.pop(next(iter(kept)), None)
        return found

    def _copy(self, path: str, folder: str, as_of: object, details: Mapping[str, object]) -> int:
        return copy_to(
            self._live(),
            path,
            folder,
            as_of=as_of,  # type: ignore[arg-type]
            format=str(details.get("format", "parquet")),  # type: ignore[arg-type]
            storage_options=self.place.options(path) or None,
        )


def _retained(length: str, log: Log, consumer: str) -> RetainedPosition:
    return RetainedPosition(
        partial(open_log, log.path, storage_options=log.storage_options or None), consumer, parse_duration(length)
    )


def _check_storage(spark: SparkSession, place: Place) -> None:
    """Refuse a session whose executors find another log where the instance has its commands.

    Raises
    ------
    InvalidUsageError
    """
    path, options = place.commands, dict(place.storage_options)
    mine = open_log(path, storage_options=options or None).log_id

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for _ in batches:  # one row
            try:
                found = open_log(path, storage_options=options or None).log_id
            except TimelyError as error:
                found = f"error: {error.message}"
            yield pa.RecordBatch.from_pydict({"found": [found]})

    (row,) = spark.range(1).mapInArrow(look, "found string").collect()
    if row["found"] != mine:
        msg = (
            f"could not run the instance in {place.directory!r}: found that Spark's executors see "
            f"{shown(row['found'])} there, this process sees log {mine!r}"
        )
        raise InvalidUsageError(msg, hint="give a path that is the same storage for this process and for Spark")
