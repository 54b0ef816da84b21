"""`replay`: micro-batches of a log planned in the driver, for runs that end.

It is `spark_timely.replay`, which calls a function of the user with each micro-batch. Spark's own way of a Python
source starts a planner process for each run and moves rows through Python workers. Where a run ends by itself neither
is needed: the planner of ``format("timely")`` runs here, and rows are read by Spark's Parquet scan (`batch_frame`).
What keeps it exact is a checkpoint of its own kind, below the folder that is given:

| file | content |
|---|---|
| ``metadata`` | the id of the query, as Spark writes it, and a mark |
| ``offsets/<n>`` | a header; its number, the run that planned it, when, and where micro-batch n begins; where it ends |
| ``commits/<n>`` | made when the function has returned |
| ``timely-replay`` | the lock that a run holds |

Captures find in it what they find in Spark's. The header is none of Spark's, so a query of Spark refuses to continue
from it; and its checkpoints are refused here.

Invariants
----------
1. ``offsets/<n>`` is on the disk, whole, before the function sees micro-batch n, and is never written twice: of two
   runs that plan the same number one continues, also where a file system has no locks.
2. Micro-batch n without ``commits/<n>`` is planned again from ``offsets/<n>`` alone: the same rows, the same number.
3. Each begins where the one before it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack

from spark_timely.conf.given import SourceGiven
from spark_timely.conf.options import option_key
from spark_timely.datasource.planner import ReplayPlanner
from spark_timely.datasource.replay_options import source_options
from spark_timely.datasource.retaining import retained_of
from spark_timely.errors import InvalidOptionError, InvalidUsageError, StorageError, shown
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import FileStorage, normal_path, plain
from spark_timely.spark.base.checkpoint import REPLAY_HEADER
from spark_timely.spark.base.trigger import Ending, TriggerGiven, ending_of, parse_trigger
from spark_timely.spark.capture.foreach_batch import Captured
from spark_timely.spark.replay.batch_frame import check_settings, frame_of_splits
from spark_timely.spark.session import with_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.conf.options import SourceOptions
    from spark_timely.log import Log


_OWNER: Final = "metadata"
_MARK: Final = "timelyReplay"
_LOCK: Final = "timely-replay"
# As many as Spark keeps.
_KEPT: Final = 100
_ATTEMPT: Final = "could not replay in the driver"
_INSTEAD: Final = "use spark.readStream.format('timely')"


def replay(
    spark: SparkSession,
    path: str | os.PathLike[str],
    /,
    *,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[SourceGiven],
) -> DriverReplay:
    """Replay a log in micro-batches that are planned in the driver, up to what is there now.

    For jobs that run and end: no process of Python is started and no row moves through Python. What is delivered is
    what ``readStream.format("timely")`` delivers with ``foreachBatch`` and the same options: the same micro-batches,
    numbers and rows.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect; through Connect too all but Spark's jobs runs here, in the client: it must reach log and
        checkpoint.
    path : str or path
        Where the log is.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs. Spark's own scan takes those of the session.
    **options : SourceGiven
        Options of the source in snake_case, or as Spark writes them. `workers` and `split_by` have no effect: Spark
        cuts its scan by itself. Rows alone are given out: another `content` than ``"messages"`` is refused.

    Returns
    -------
    DriverReplay
        Give it a function, then run it.

    Raises
    ------
    InvalidOptionError
        If an option is unknown or does not fit.
    InvalidUsageError
        If there is a condition, and the session has ``spark.sql.ansi.enabled=false``.
    LogMissingError
        If there is no log.

    Notes
    -----
    Not a query of Spark: there is no progress event and no listener, and Spark's UI shows its jobs alone.

    Examples
    --------
    >>> def load(rows, batch_id):
    ...     rows.write.mode("overwrite").parquet(f"/data/copy/{batch_id}")
    >>> job = spark_timely.replay(spark, "/data/log", max_rows_per_trigger=1_000_000)  # doctest: +SKIP
    >>> job.foreachBatch(load).run(checkpoint="/data/checkpoint")  # doctest: +SKIP
    3
    """
    if twice := next((name for name in options if option_key(name) == "path"), None):
        msg = f"{_ATTEMPT}: found option {twice!r} beside the path {os.fspath(path)!r}"
        raise InvalidOptionError(msg, hint="give one path", context={"option": "path"})
    parsed = source_options(with_stored(lambda: spark, {"path": os.fspath(path), **options}, storage_options))
    if parsed.content != "messages":
        msg = f"{_ATTEMPT}: found content={parsed.content!r}"
        raise InvalidOptionError(
            msg,
            hint=f"leave content out: the function gets the rows; for events, splits and clocks {_INSTEAD}",
            context={"option": "content"},
        )
    if parsed.where is not None:
        check_settings(spark)
    log = open_log(parsed.path, storage_options=parsed.storage_options or None)
    ReplayPlanner(log, parsed)  # refuses what does not fit the log
    return DriverReplay(spark, log, parsed)


class DriverReplay:
    """A replay that is planned in the driver; made by `replay`.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    log : Log
        Open.
    options : SourceOptions

    Examples
    --------
    >>> job = spark_timely.replay(spark, "/data/log")  # doctest: +SKIP
    >>> job.foreachBatch(print).run(checkpoint="/data/checkpoint", trigger="once")  # doctest: +SKIP
    1
    """

    def __init__(self, spark: SparkSession, log: Log, options: SourceOptions) -> None:
        self._spark = spark
        self._log = log
        self._options = options
        self._function: Callable[[DataFrame, int], object] | None = None

    def foreachBatch(self, function: Callable[[DataFrame, int], object], /) -> DriverReplay:
        """Choose what is done with each micro-batch.

        Parameters
        ----------
        function : callable
            Gets the rows as a DataFrame, and the number of the micro-batch. After a crash it gets the last one again:
            what it does must allow for that, as `spark_timely.capture` does.

        Returns
        -------
        DriverReplay
            This one.
        """
        if not callable(function):
            msg = f"{_ATTEMPT}: found foreachBatch({shown(function)})"
            raise InvalidUsageError(msg, hint="give a function of a DataFrame and a number")
        self._function = function
        return self

    def run(self, *, checkpoint: str | os.PathLike[str], trigger: Ending | TriggerGiven | str = "availableNow") -> int:
        """Deliver what is there now and not delivered yet, and return.

        Parameters
        ----------
        checkpoint : str or path
            Folder on a disk that takes hard links; of this replay alone. Made where it is not there.
        trigger : str or mapping
            ``"availableNow"``: all that is there when the run begins, in as many micro-batches as the limits ask for.
            ``"once"``: one micro-batch, without the limits.

        Returns
        -------
        int
            How many micro-batches the function was given.

        Raises
        ------
        InvalidUsageError
            If no function was given; the checkpoint belongs to a query of Spark, or to other options; or another run
            with this checkpoint was first.
        InvalidOptionError
            If the trigger does not end, or the checkpoint cannot be written to from here.
        DataLossError
            If the log is not the one that the checkpoint speaks of, or went back since; or a file is missing.
        StorageError
            If the checkpoint is damaged or cannot be written.
        Exception
            What the function raises, unchanged. The next run gives it the same micro-batch.

        Notes
        -----
        Cost: three small files per micro-batch, flushed, and one look at the log per run.
        """
        if self._function is None:
            msg = f"{_ATTEMPT}: found no function"
            raise InvalidUsageError(msg, hint="call foreachBatch(function) before run(…)")
        ending = ending_of(parse_trigger(trigger, attempt=_ATTEMPT))
        if ending is None:
            msg = f"{_ATTEMPT}: found trigger={shown(trigger)}, which does not end"
            raise InvalidOptionError(
                msg,
                hint=f"give 'availableNow' or 'once'; for a query that continues {_INSTEAD}",
                context={"option": "trigger"},
            )
        if not isinstance(checkpoint, str | os.PathLike):
            msg = f"{_ATTEMPT}: found checkpoint={shown(checkpoint)}"
            raise InvalidOptionError(msg, hint="give a folder as text or path", context={"option": "checkpoint"})
        if os.path.realpath(normal_path(checkpoint, literal=True)) == os.path.realpath(self._log.path):
            msg = f"{_ATTEMPT}: found the log itself as checkpoint {os.fspath(checkpoint)!r}"
            raise InvalidOptionError(msg, hint="give a folder of its own", context={"option": "checkpoint"})
        written = _Checkpoint(os.fspath(checkpoint))
        with written.held():
            return self._run(written, once=ending == "once")

    def _run(self, written: _Checkpoint, *, once: bool) -> int:
        last = written.last()
        # A run repeats the micro-batch of one that failed, in the same session maybe.
        Captured.forget(self._spark)
        self._log.refresh()
        planner = ReplayPlanner(self._log, self._options, retained=retained_of(self._options))
        try:
            return self._follow(planner, written, last, once=once)
        finally:
            planner.end()

    def _follow(self, planner: ReplayPlanner, written: _Checkpoint, last: _Planned | None, *, once: bool) -> int:
        if not once:
            planner.prepare_available_now()
        number, start = 0, planner.initial()
        if last is not None:
            number, start = last.number + 1, dict(last.end)
            # Refuses other options and another log, before rows are given out.
            planner.latest(last.end, committed=last.finished)
            if not last.finished:
                self._deliver(planner, written, last.number, last.start, last.end)
                if once:
                    return 1
        done = 0 if last is None or last.finished else 1
        while True:
            end = planner.latest(start, limited=not once)
            # As in Spark the first micro-batch is made also where it is empty: what it captures into exists then.
            if end == start and number > 0:
                return done
            written.plan(number, start, end)
            self._deliver(planner, written, number, start, end)
            number, start, done = number + 1, end, done + 1
            if once:
                return done

    def _deliver(
        self,
        planner: ReplayPlanner,
        written: _Checkpoint,
        number: int,
        start: Mapping[str, Any],
        end: Mapping[str, Any],
    ) -> None:
        splits = planner.plan(start, end)
        rows = frame_of_splits(self._spark, splits, planner.layout, self._options.storage_options or None)
        assert self._function is not None
        self._function(rows, number)
        written.finish(number)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A micro-batch that was planned: its number, where it begins and ends, and whether it is finished."""

    number: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    finished: bool


class _Checkpoint:
    """The folder in which a replay writes down its micro-batches."""

    def __init__(self, location: str) -> None:
        storage = open_storage(location, literal=True)
        if not isinstance(storage, FileStorage):
            msg = f"{_ATTEMPT}: found checkpoint={location!r}"
            raise InvalidOptionError(
                msg,
                hint=f"give a folder on a disk: a file is to be made there by one of two runs alone; else {_INSTEAD}",
                context={"option": "checkpoint"},
            )
        self._storage = storage
        self._location = storage.uri
        self._run = str(uuid.uuid4())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the checkpoint for one run at a time, by a lock that ends with the process.

        Where the file system has no locks, two runs at once are noticed by the files that they write.
        """
        try:
            os.makedirs(self._location, exist_ok=True)
            file = open(self._storage.full(_LOCK), "ab")  # noqa: SIM115 - closed below
        except OSError as error:
            raise self._unwritable(_LOCK, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    msg = f"{_ATTEMPT}: found that another run uses checkpoint {self._location!r}"
                    raise InvalidUsageError(
                        msg, hint="wait until that run has ended", context={"checkpoint": self._location}
                    ) from error
            try:
                yield
            finally:
                # A child process that was forked meanwhile would hold it as long as it lives.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)

    def last(self) -> _Planned | None:
        """Return the newest micro-batch that was planned; None where there is none, with the folder made."""
        self._check_owner()
        planned, finished = (_numbers(self._storage.names(name)) for name in ("offsets", "commits"))
        number = max(planned, default=-1)
        # All before the newest are finished, and nothing after it.
        if max(finished, default=-1) not in (number, number - 1):
            ends = [max(numbers, default=None) for numbers in (planned, finished)]
            state = f"planned up to {ends[0]}, finished up to {ends[1]}"
            raise self._no_checkpoint(state, file="offsets and commits")
        if number < 0:
            return None
        for old in (planned | finished) - set(range(number - _KEPT, number + 1)):  # left by a kill
            self._drop(old)
        file = f"offsets/{number}"
        text = self._storage.find(file)
        header, _, rest = (text or b"").decode("utf-8", "replace").partition("\n")
        if header != REPLAY_HEADER:
            raise (self._foreign() if header in ("v1", "v2") else self._no_checkpoint(header, file=file))
        try:
            about, end = (json.loads(line) for line in rest.split("\n", 1))
            if about["number"] != number:
                found = f"micro-batch {about['number']!r}"
                raise self._no_checkpoint(found, file=file)
            return _Planned(number, {**about["start"]}, {**end}, number in finished)
        except (ValueError, KeyError, TypeError) as error:
            raise self._no_checkpoint(rest, file=file) from error

    def plan(self, number: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        """Write down a micro-batch that begins."""
        about = {"number": number, "run": self._run, "at": time.time_ns() // 1000, "start": start}
        self._put(f"offsets/{number}", "\n".join([REPLAY_HEADER, json.dumps(about), json.dumps(end)]))

    def finish(self, number: int) -> None:
        """Write down that a micro-batch is finished, and drop what is too old to be looked at."""
        self._put(f"commits/{number}", "\n".join([REPLAY_HEADER, json.dumps({"run": self._run})]))
        if number >= _KEPT:
            self._drop(number - _KEPT)

    def _drop(self, number: int) -> None:
        for folder in ("offsets", "commits"):
            self._storage.delete(f"{folder}/{number}")

    def _check_owner(self) -> None:
        """Make the folder a replay's, or refuse one that is another's."""
        content = self._storage.find(_OWNER)
        if content is None:
            if self._storage.names("offsets") or self._storage.names("commits"):
                raise self._no_checkpoint(None, file=_OWNER)
            for folder in ("offsets", "commits"):
                os.makedirs(self._storage.full(folder), exist_ok=True)
            self._storage.flush_place()
            try:
                self._put(_OWNER, json.dumps({"id": str(uuid.uuid4()), _MARK: 1}))
                return
            except InvalidUsageError:  # another run was first
                content = self._storage.read(_OWNER)
        try:
            found = json.loads(bytes(content))
            mark = found.get(_MARK)
        except (ValueError, AttributeError) as error:
            raise self._no_checkpoint(bytes(content), file=_OWNER) from error
        if mark is None:
            raise self._foreign()
        if mark != 1:
            msg = f"{_ATTEMPT}: found checkpoint {self._location!r} of version={mark!r}, known is 1"
            raise InvalidUsageError(msg, hint="upgrade spark-timely: a newer version wrote it")

    def _put(self, path: str, text: str) -> None:
        try:
            self._storage.put(path, text.encode(), replace=False)
        except FileExistsError as error:
            msg = f"{_ATTEMPT}: found {path!r} in checkpoint {self._location!r}, which another run has made meanwhile"
            raise InvalidUsageError(
                msg,
                hint="let one run at a time use a checkpoint; run again to continue from where that one is",
                context={"checkpoint": self._location},
            ) from error
        except OSError as error:
            raise self._unwritable(path, error) from error

    def _unwritable(self, path: str, error: OSError) -> StorageError:
        msg = f"could not write {path!r} into checkpoint {self._location!r}: found {plain(error)}"
        return StorageError(
            msg,
            hint="give a folder on a disk that can be written to and takes hard links",
            determinate=True,
            context={"checkpoint": self._location},
        )

    def _foreign(self) -> InvalidUsageError:
        msg = f"{_ATTEMPT}: found checkpoint {self._location!r}, which a query of Spark has made"
        return InvalidUsageError(
            msg,
            hint=f"give another checkpoint; to continue from this one {_INSTEAD}",
            context={"checkpoint": self._location},
        )

    def _no_checkpoint(self, found: object, *, file: str) -> StorageError:
        msg = f"could not continue from checkpoint {self._location!r}: found {shown(found)} for {file!r}"
        return StorageError(
            msg,
            hint="restore the folder from a copy; or begin with a new checkpoint, and make again what was made from the"
            " rows that were delivered",
            determinate=True,
            context={"checkpoint": self._location},
        )


def _numbers(names: list[str]) -> set[int]:
    return {int(name) for name in names if name.isascii() and name.isdigit()}
