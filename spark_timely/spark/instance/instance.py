"""A compute instance on Spark: large steps, copies and peeks that must scan are jobs of a session.

It is `spark_timely.ComputeInstance`; the command line runs one too. All but what needs Spark is in
`spark_timely.compute.drive`, whose handle it extends; what an instance decides is in `spark_timely.compute.instance`.

Commands, uppers, appends and small jobs need the storage where the instance runs, which is this process: on Spark
Connect the client. That both see the same storage is checked before the instance is taken over, and of each further
session before it is used.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.compute.drive.directory import Directory
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.runtime import Runtime
from spark_timely.conf.kinds import seconds_of
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import InvalidUsageError, TimelyError, shown
from spark_timely.log.log import Log, open_log
from spark_timely.log.store.storage import normal_path
from spark_timely.masking import masked_logger
from spark_timely.spark.answers.copy_to import copy_to
from spark_timely.spark.answers.peek_job import peek_job
from spark_timely.spark.base.shipping import for_task
from spark_timely.spark.dataflows.tasks import SparkTasks, catalog_of
from spark_timely.spark.instance.jobs import Jobs, is_stopped
from spark_timely.spark.instance.tasks import InstanceTasks
from spark_timely.threads import aside
from spark_timely.time.text import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.answers.plan import PeekPlan
    from spark_timely.compute.response import Response
    from spark_timely.dataflow.engine.arrangements import RunTasks
    from spark_timely.time.text import Duration

__all__ = ["ComputeInstance"]

_log = masked_logger("spark_timely.compute")

_RETAINED: Final = "7 days"
_CLOSE_S: Final = 30.0
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
    adopts : mapping of str to int, optional
        Where the command log went back: collections that continue as later starts wrote them, each with the start that
        the error names.
    leaves : iterable of str, optional
        Where the command log went back, or is lost: collections whose dataflows are dropped while what they wrote
        stays, and folders that stay; ``*`` stands for all folders that no command names.
    retain : str or None
        How long imports keep what has not been read while the instance is stopped. None: nothing is retained.
    storage_options : mapping of str to str, optional
        Of the directory.
    options_of : mapping of str to mapping, optional
        Storage options of logs elsewhere, by path.
    on_response : callable, optional
        Is called with each response, in order.
    new_session : callable, optional
        Makes another session where this one was stopped, or its server does not have it any more. Without it such an
        instance waits for `use_session`.

    Raises
    ------
    InvalidUsageError
        If the directory is a log or no path, `spark` no session, or `retain` no length of time. If the executors do not
        see the storage of the instance. Then the process that maintains it continues.
    LogMissingError
        If there is no instance to follow.
    RolledBackError
        If the command log is lost or went back: what it has written names a later start.

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
        adopts: Mapping[str, int] | None = None,
        leaves: Iterable[str] = (),
        retain: str | None = _RETAINED,
        storage_options: Mapping[str, str] | None = None,
        options_of: Mapping[str, Mapping[str, str]] | None = None,
        on_response: Callable[[Response], object] | None = None,
        new_session: Callable[[], SparkSession] | None = None,
    ) -> None:
        # Before anything is written.
        path = normal_path(directory)
        kept = None if retain is None else _length(retain, path)
        if not hasattr(spark, "conf"):
            msg = f"could not start the instance in {path!r}: found {shown(spark)} in place of a session of Spark"
            raise InvalidUsageError(msg, hint="give the session first, then the directory")
        # Whether the storage of sessions matters: a follower writes nothing by them.
        self._looks = not read_only
        self._jobs = Jobs(spark, path, new_session=new_session, check=self._look_at, on_renewed=self._try_again)
        self._tasks: dict[str, SparkTasks] = {}
        runtime = Runtime(
            self._tasks_of,
            catalog_of,
            copy=self._copy,
            job=self._peeked,
            retain=None if kept is None else partial(_retained, kept),
            task_bodies=InstanceTasks(self._jobs),
            check=self._check,
            keyed_bytes=self._jobs.keyed_bytes,
        )
        try:
            super().__init__(
                path,
                runtime,
                read_only=read_only,
                moved=moved,
                adopts=adopts,
                leaves=leaves,
                storage_options=storage_options,
                options_of=options_of,
                on_response=on_response,
            )
        except BaseException:
            self._jobs.end()
            raise

    # Sessions ------------------------------------------------------------------------------------

    def use_session(self, spark: SparkSession, /) -> None:
        """Continue with another session: the one before was stopped, or lost. What failed for that is tried again.

        Raises
        ------
        InvalidUsageError
            If it is stopped, or its executors do not see the storage of the instance.
        """
        if not hasattr(spark, "range") or is_stopped(spark):
            found = "one that is stopped" if hasattr(spark, "range") else shown(spark)
            msg = f"could not use another session of Spark: found {found}"
            raise InvalidUsageError(msg, hint="make one that runs, and hand that over")
        self._look_at(spark)
        self._jobs.use(spark)
        self._driver.try_again()

    def _check(self, directory: Directory) -> None:
        """Refuse to take the instance over where the executors see other storage."""
        self._looks = True
        self._jobs.run("check", lambda spark: _check_storage(spark, directory), again=True)

    def _look_at(self, spark: SparkSession) -> None:
        if self._looks:
            _check_storage(spark, self.directory)

    def _try_again(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None:  # else nothing has begun yet
            driver.try_again()

    # Jobs ----------------------------------------------------------------------------------------

    def _tasks_of(self, name: str, options: Mapping[str, Mapping[str, str]]) -> RunTasks:
        """Return what runs the tasks of a dataflow."""
        self._jobs.check()
        kept = self._tasks
        # What is small never waits for the jobs of others: no query of Spark has to hear whether it was stopped.
        found = kept.pop(name, None) or SparkTasks(partial(self._jobs.run, name), options, here_s=math.inf)
        kept[name] = found
        while len(kept) > _MOST_KEPT:  # of subscribes that came and went
            kept.pop(next(iter(kept)), None)
        return found

    def _peeked(self, plan: PeekPlan) -> pa.Table:
        return self._jobs.run("peeks", lambda spark: peek_job(spark)(plan), fresh=True, again=True)

    def _copy(self, path: str, folder: str, as_of: object, details: Mapping[str, object]) -> int:
        def copy(spark: SparkSession) -> int:
            return copy_to(
                spark,
                path,
                folder,
                as_of=as_of,  # type: ignore[arg-type]
                format=str(details.get("format", "parquet")),  # type: ignore[arg-type]
                storage_options=self.directory.options(path) or None,
            )

        return self._jobs.run("copies", copy, fresh=True)

    # The end -------------------------------------------------------------------------------------

    def close(self, *, timeout_s: float = _CLOSE_S) -> None:
        """End it; what is maintained continues with the next start. May be called again.

        Parameters
        ----------
        timeout_s : float
            How long steps, copies and peeks that run may take to end by themselves. Their jobs are interrupted then,
            and nothing of them is appended: the next start takes these steps again. A job that Spark does not end
            within ten seconds more is left behind, which a warning says.

        Raises
        ------
        InvalidUsageError
            If the time is no number of seconds, or it is called in `on_response`.
        """
        wait_s = seconds_of(f"could not close the instance in {self.directory.path!r}", "timeout_s", timeout_s)
        closed = threading.Event()

        def interrupt() -> None:
            if closed.wait(None if wait_s > threading.TIMEOUT_MAX else wait_s):
                return
            left = self._jobs.interrupt()
            if left:
                names = ", ".join(sorted(map(repr, left)))
                _log.warning("the instance in %r is closed; jobs of Spark still run: %s", self.directory.path, names)

        waiting = aside("close", interrupt)
        try:
            super().close()
        finally:
            closed.set()
            waiting.join()
        self._jobs.end()


def _length(retain: object, directory: str) -> Duration:
    try:
        return parse_duration(retain)
    except ValueError as error:
        msg = f"could not run the instance in {directory!r}: found retain={shown(retain)}"
        raise InvalidUsageError(msg, hint=f"{error}; None retains nothing") from error


def _retained(length: Duration, log: Log, consumer: str) -> RetainedPosition:
    return RetainedPosition(
        partial(open_log, log.path, storage_options=log.core.storage_options or None), consumer, length
    )


def _check_storage(spark: SparkSession, directory: Directory) -> None:
    """Refuse a session whose executors find another log where the instance has its commands.

    Raises
    ------
    InvalidUsageError
    """
    path, options = directory.commands, dict(directory.storage_options)
    mine = open_log(path, storage_options=options or None).core.log_id

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # one row
            try:
                found = open_log(path, storage_options=options or None).core.log_id
            except TimelyError as error:
                found = f"error: {error.message}"
            yield pa.RecordBatch.from_pydict({"found": [found]})

    (row,) = spark.range(1).mapInArrow(for_task(look), "found string").collect()
    if row["found"] != mine:
        msg = (
            f"could not run the instance in {directory.path!r}: found that Spark's executors see "
            f"{shown(row['found'])} there, this process sees log {mine!r}"
        )
        raise InvalidUsageError(msg, hint="give a path that is the same storage for this process and for Spark")
