"""Spark jobs of a compute instance: their sessions, their fair pools, and how they are ended.

`instance` and `tasks` run their work as such jobs. Each job runs in a thread of its own, which its caller waits for. So
a job that nobody can end holds up neither `Jobs.end` nor the end of the process. Where the application has fair
scheduling, the jobs of each dataflow are in a pool of their own: by a property of the thread on classic, by a clone of
the session on Connect.

Invariants
----------
1. A session that is lost is replaced once, however many jobs find out; what is made is looked at before it is used.
2. The caller of a job gets its result or an error before `interrupt` is over. After that nobody begins another one.
3. Neither pools nor tags stay with the session that the user gave: a job leaves its thread as it was.
4. No more than `POOLS` dataflows have a pool at once, and the name of a pool is used again.
"""

from __future__ import annotations

import re
import threading
import time as monotonic
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pyspark.errors import PySparkException

from spark_timely.compute.drive.runtime import SESSION_LOST
from spark_timely.errors import CanceledError, InvalidUsageError, OperatorError, described
from spark_timely.masking import masked_logger
from spark_timely.spark.base.compat import is_remote
from spark_timely.spark.base.tags import end_tagged, is_pinned, tagged
from spark_timely.threads import CachedThreads, aside
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["POOLS", "Jobs", "Pools", "is_stopped", "says_lost"]

_log = masked_logger("spark_timely.compute")

_T = TypeVar("_T")

POOLS: Final = 16
"""Dataflows of an instance that have a pool of their own at once: twice as many as take a step at once, usually."""

# How long an interrupted job may take to end, and between two interruptions: a copy is several jobs.
_SECOND_WAIT_S: Final = 10.0
_INTERRUPT_S: Final = 0.5

_MODE: Final = "spark.scheduler.mode"
_POOL: Final = "spark.scheduler.pool"

# Tasks take half of it at most, as many bytes as are read and grouped in about half a second on one core: beside a
# dataflow that hydrates 10 M rows (46 MB) in two tasks, small jobs took 20 s (99th percentile), and so 4.8 s.
_KEYED_BYTES: Final = 4 << 20

# What a server of Connect says of a session that it does not have any more, and the client of one that is closed.
_LOST: Final = re.compile(r"INVALID_HANDLE\.SESSION_(CLOSED|CHANGED|NOT_FOUND)|NO_ACTIVE_SESSION")


class Pools:
    """The pools of the dataflows' jobs: each has its own, as long as there are no more dataflows than pools.

    Parameters
    ----------
    n : int

    Examples
    --------
    >>> pools = Pools(2)
    >>> first, second = pools.take("a"), pools.take("b")
    >>> pools.give(first)
    >>> first, second, pools.take("a"), pools.take("c") in (0, 1)
    (0, 1, 0, True)
    """

    def __init__(self, n: int) -> None:
        self._free = list(range(n))[::-1]
        self._of: OrderedDict[str, int] = OrderedDict()  # the one that had a job longest ago comes first
        self._jobs = [0] * n

    def take(self, name: str, /) -> int:
        """Return the pool of a dataflow of which a job begins."""
        found = self._of.get(name)
        if found is None and self._free:
            found = self._of[name] = self._free.pop()
        if found is None:  # of a dataflow that has no job now: of subscribes that came and went
            idle = next((other for other, number in self._of.items() if not self._jobs[number]), None)
            if idle is not None:
                found = self._of[name] = self._of.pop(idle)
        if found is None:
            found = zlib.crc32(name.encode()) % len(self._jobs)
        else:
            self._of.move_to_end(name)
        self._jobs[found] += 1
        return found

    def give(self, number: int, /) -> None:
        """Take notice that a job in a pool has ended."""
        self._jobs[number] -= 1


class _Job(NamedTuple):
    """A job that somebody waits for."""

    name: str
    fresh: bool
    again: bool


class Jobs:
    """Runs the jobs of an instance.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    directory : str
        Of the instance, for messages and the names of pools.
    new_session : callable, optional
        Makes another session where this one is lost.
    check : callable, optional
        Looks at a session that was made before it is used, and refuses it.
    on_renewed : callable, optional
        Is called, in a thread of its own, when another session is used.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: str,
        /,
        *,
        new_session: Callable[[], SparkSession] | None = None,
        check: Callable[[SparkSession], object] = lambda _: None,
        on_renewed: Callable[[], object] = lambda: None,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self._directory, self._new_session, self._check, self._on_renewed = directory, new_session, check, on_renewed
        self._now = now
        # Unique per start: nobody else's jobs are interrupted.
        self._tag = f"spark_timely-{uuid.uuid4().hex[:12]}"
        self._pool = f"spark_timely-{zlib.crc32(directory.encode()):08x}"
        self._lock = threading.Lock()  # of all that follows; held for moments
        self._spark, self._lost = spark, False
        self._fair: bool | None = None  # not asked yet
        self._pools = Pools(POOLS)
        self._clones: dict[int, SparkSession] = {}
        self._interruptible: list[SparkSession] = []
        self._running: dict[Future[Any], _Job] = {}
        self._threads = CachedThreads("job")
        self._ending = False
        self._here = threading.local()  # `pool` of the job of a thread
        # Held while another session is made: all that need one wait for that (invariant 1).
        self._making = threading.Lock()
        self._backoff, self._failed = Backoff(now), ""

    # The session ---------------------------------------------------------------------------------

    def use(self, spark: SparkSession, /) -> None:
        """Use another session from now on."""
        with self._lock:
            self._spark, self._lost, self._fair = spark, False, None
            self._backoff.passed()
            self._failed = ""
            left, self._clones = list(self._clones.values()), {}
        aside("act", partial(_release, left))

    def check(self) -> None:
        """Refuse to begin where there is no session, and nothing that makes one. Waits for nothing.

        Raises
        ------
        OperatorError
        """
        if self._new_session is None and (self._lost or is_stopped(self._spark)):
            raise OperatorError(
                self._stopped(),
                hint="make another session, and hand it over with use_session",
                context=SESSION_LOST,
            )

    def session(self) -> SparkSession:
        """Return the session, for what needs one beside `run`; or another one where it is lost.

        Raises
        ------
        OperatorError
            If it was stopped, and nothing makes another one.
        CanceledError
            If another one could not be made.
        """
        self.check()
        return self._live(asked=False)

    def _stopped(self) -> str:
        how = "lost" if self._lost else "stopped"
        return f"could not run a job for the instance in {self._directory!r}: found the session of Spark {how}"

    def _live(self, *, asked: bool) -> SparkSession:
        """Return the session, or another one where it is lost.

        Parameters
        ----------
        asked : bool
            Whether the server is asked about it first.
        """
        spark = self._spark
        if asked and is_remote(spark) and not self._lost and not is_stopped(spark):
            self._look_at(spark)
        with self._making:
            spark = self._spark
            if not self._lost and not is_stopped(spark):
                return spark
            if self._new_session is None:
                raise CanceledError(self._stopped(), hint="make another session, and hand it over with use_session")
            if not self._backoff.is_due:
                raise self._not_made(self._failed)
            try:
                made = self._new_session()
                if is_stopped(made):
                    msg = "could not use the session that new_session gave: found it stopped"
                    raise InvalidUsageError(msg, hint="make another one there, and return that")
                self._check(made)
            except Exception as error:
                self._backoff.failed()
                self._failed = described(error)
                _log.warning("another session of Spark for %r could not be made: %s", self._directory, self._failed)
                raise self._not_made(self._failed) from error
            self.use(made)
        _log.warning("the session of Spark was lost: the instance in %r continues with another one", self._directory)
        aside("act", self._on_renewed)  # it may wait for who waits for this job
        return made

    def _not_made(self, text: str) -> CanceledError:
        msg = f"could not make another session of Spark for the instance in {self._directory!r}: found {text}"
        return CanceledError(msg, hint="it is tried again; see what new_session does, or call use_session")

    def _look_at(self, spark: SparkSession) -> bool:
        """Return whether a session is lost; one that cannot tell is not."""
        lost = is_stopped(spark)
        if not lost:
            try:
                spark.conf.get(_MODE, None)
            except Exception as error:  # noqa: BLE001 - the job says what else is wrong
                lost = says_lost(spark, error)
        with self._lock:
            if lost and spark is self._spark:
                self._lost = True
        return lost

    def _is_gone(self, spark: SparkSession, used: SparkSession, error: BaseException) -> bool:
        """Return whether a job failed because its session is lost, which is noted."""
        if not says_lost(used, error):
            return False
        gone = self._look_at(spark)
        if used is not spark and self._look_at(used):
            gone = True  # the clone alone: a server forgets those that nobody used for an hour
            with self._lock:
                self._clones = {number: each for number, each in self._clones.items() if each is not used}
        return gone

    # Jobs ----------------------------------------------------------------------------------------

    def run(self, name: str, act: Callable[[SparkSession], _T], /, *, fresh: bool = False, again: bool = False) -> _T:
        """Run what needs a session, and return what it gives.

        Parameters
        ----------
        name : str
            Of the dataflow, or of what has a pool of its own.
        act : callable
            Is given the session; called in another thread.
        fresh : bool
            Whether it is seldom, and depends on settings of the session: these are as they are now, and the session is
            asked whether it is there before anything is begun.
        again : bool
            Whether it may be begun again where the session was lost.

        Raises
        ------
        CanceledError
            If there is no session, it was lost meanwhile, or the instance ends.
        """
        job = _Job(name, fresh, again)
        with self._lock:
            if self._ending:
                raise self._ended(job)
            future = self._threads.submit(self._run, job, act)
            self._running[future] = job
        try:
            found: _T = future.result()
            return found
        finally:
            with self._lock:
                del self._running[future]

    def _run(self, job: _Job, act: Callable[[SparkSession], _T]) -> _T:
        tried = False
        while True:  # at most twice
            used = spark = self._live(asked=job.fresh or tried)
            try:
                with self._in_pool(spark, job) as (session, pool):
                    used = session
                    with self._marked(session, pool):
                        return act(session)
            except Exception as error:
                if self._ending:
                    raise self._ended(job) from error
                if not self._is_gone(spark, used, error):
                    raise
                if tried or not job.again:
                    msg = f"could not run a job for the instance in {self._directory!r}: found its session lost"
                    hint = f"a step is planned again, begin a copy again; Spark says {described(error)}"
                    raise CanceledError(msg, hint=hint) from error
                tried = True

    def _ended(self, job: _Job) -> CanceledError:
        msg = f"could not run a job of {job.name!r} for the instance in {self._directory!r}: found it closed"
        return CanceledError(msg, hint="open it again")

    # Pools and tags ------------------------------------------------------------------------------

    @contextmanager
    def _in_pool(self, spark: SparkSession, job: _Job) -> Iterator[tuple[SparkSession, str | None]]:
        """Yield the session for a job, and the pool that is to be set in its thread."""
        if not self._is_fair(spark):
            yield spark, None
        elif job.fresh:
            pool = f"{self._pool}-{job.name}"
            clone = _cloned(spark, pool) if is_remote(spark) else None
            try:
                yield clone or spark, pool
            finally:
                if clone is not None:
                    with self._lock:
                        self._interruptible = [each for each in self._interruptible if each is not clone]
                    aside("act", partial(_release, [clone]))
        else:
            with self._lock:
                number = self._pools.take(job.name)
            try:
                pool = f"{self._pool}-{number}"
                yield (self._clone(spark, number, pool) if is_remote(spark) else spark), pool
            finally:
                with self._lock:
                    self._pools.give(number)

    def _is_fair(self, spark: SparkSession) -> bool:
        """Return whether the application has fair scheduling, and the session no pool of its own."""
        fair = self._fair
        if fair is None:
            can = hasattr(spark, "cloneSession") if is_remote(spark) else is_pinned()
            fair = can and spark.conf.get(_MODE, None) == "FAIR" and spark.conf.get(_POOL, None) is None
            with self._lock:
                if spark is self._spark:
                    self._fair = fair
        return fair

    def keyed_bytes(self) -> int | None:
        """Return from how many bytes on a piece is computed by key, so that others get their turn; None for as usual.

        Without fair scheduling the tasks of an earlier job come first, however many there are.
        """
        return _KEYED_BYTES if self._fair else None

    def _clone(self, spark: SparkSession, number: int, pool: str) -> SparkSession:
        with self._lock:
            found = self._clones.get(number)
        if found is None:
            found = _cloned(spark, pool)
            with self._lock:
                if spark is self._spark:
                    self._clones[number] = found
        return found

    @contextmanager
    def _marked(self, spark: SparkSession, pool: str | None) -> Iterator[None]:
        """Mark the jobs of this thread, so that they are in a pool and can be interrupted (invariant 3)."""
        if is_remote(spark):  # a clone is in the pool already
            with self._tagged(spark):
                self._here.pool = pool
                yield
        elif not is_pinned():  # the JVM's thread is anybody's: so would be the mark
            yield
        else:
            context = spark.sparkContext
            with self._lock:
                self._interruptible = [spark]  # one context has all of them
            with tagged(spark, self._tag):
                try:
                    if pool is not None:
                        context.setLocalProperty(_POOL, pool)
                    yield
                finally:
                    with suppress(Exception):  # it was stopped
                        if pool is not None:
                            context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]

    @contextmanager
    def _tagged(self, spark: SparkSession) -> Iterator[None]:
        with self._lock:
            self._interruptible = [*(each for each in self._interruptible if each is not spark), spark]
        with tagged(spark, self._tag):
            yield

    @contextmanager
    def joined(self, own: SparkSession) -> Iterator[None]:
        """Have what runs in a session of somebody's own be part of the job that calls this, in its thread.

        Parameters
        ----------
        own : pyspark.sql.SparkSession
            Of the same application, used by one job at a time.
        """
        if not is_remote(own):  # the thread is marked, whatever the session
            yield
            return
        pool = getattr(self._here, "pool", None)
        if pool is not None:
            own.conf.set(_POOL, pool)
        try:
            with self._tagged(own):
                yield
        finally:
            with self._lock:
                self._interruptible = [each for each in self._interruptible if each is not own]

    # The end -------------------------------------------------------------------------------------

    def interrupt(self, *, wait_s: float = _SECOND_WAIT_S) -> list[str]:
        """Begin no more jobs, interrupt those that run, and return the names of those that do not end.

        Parameters
        ----------
        wait_s : float
            How long to wait for them. After that those who asked for one that runs on get an error.
        """
        with self._lock:
            self._ending = True
            running, sessions = dict(self._running), list(self._interruptible)
        until = self._now() + wait_s
        while running and self._now() < until:
            for spark in sessions:
                aside("act", partial(end_tagged, spark, self._tag))
            wait(running, max(min(until - self._now(), _INTERRUPT_S), 0.0))
            running = {future: job for future, job in running.items() if not future.done()}
        for future, job in running.items():
            with suppress(InvalidStateError):  # it has ended just now
                future.set_exception(self._ended(job))
        return [job.name for job in running.values()]

    def end(self) -> None:
        """Let go of threads and of clones of the session. May be called again."""
        with self._lock:
            self._ending = True
            left, self._clones = list(self._clones.values()), {}
        self._threads.end()
        aside("act", partial(_release, left))


def is_stopped(spark: SparkSession, /) -> bool:
    """Return whether a session was stopped, as far as this process knows. Waits for no server of Connect."""
    stopped = getattr(spark, "is_stopped", None)
    if stopped is not None:
        return bool(stopped)
    try:  # a classic one cannot be asked: one that was stopped has lost its context, or has one that refuses
        spark.sparkContext.defaultParallelism  # noqa: B018 - asked for what it raises
    except Exception:  # noqa: BLE001 - of the session, of Py4J, of a connection that is gone
        return True
    return False


def says_lost(spark: SparkSession, error: BaseException, /) -> bool:
    """Return whether an error says that the session of a job is lost: stopped, expired, or of a server that is gone."""
    if is_stopped(spark):
        return True
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PySparkException):
            asked = getattr(seen, "getGrpcStatusCode", None)
            code = None if asked is None else asked()
            if getattr(code, "name", None) == "UNAVAILABLE":  # after all that the client tried
                return True
        if _LOST.search(str(seen)):
            return True
        seen = seen.__cause__
    return False


def _cloned(spark: SparkSession, pool: str) -> SparkSession:
    """Return a clone of a session of Connect whose jobs are in a pool."""
    clone: SparkSession = spark.cloneSession()  # type: ignore[attr-defined]
    clone.conf.set(_POOL, pool)
    return clone


def _release(clones: Iterable[SparkSession]) -> None:
    """Let the server forget clones. `stop` would take a local server with them."""
    for clone in clones:
        with suppress(Exception):  # it expires
            clone.client.release_session()
        with suppress(Exception):  # else the end of the process would wait for a server that is gone
            clone.client.close()
