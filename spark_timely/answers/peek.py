"""Peek into a log: the rows that it has at a time, from an index, from its files, or by a Spark job.

This is `spark_timely.peek` of the public API; the command line and compute instances peek by it too. It waits for the
time, chooses the way, and reads an index itself. `log_peek` reads files, and `spark_timely.spark.answers.peek_job` is
the job. `plan` is the question as a value, and `keys` are its keys.

Invariants
----------
1. A peek has exactly one answer: rows, an error, or that it was canceled; canceled only if somebody canceled it before
   there was another. What comes after that is thrown away.
2. A time before since is refused at once, before any wait; since is looked at once more after the wait.
3. A peek waits until the *log's* frontier has passed its time. It does not wait for an index that is behind.
4. Rows are those of one snapshot of the log. A file that is replaced and deleted meanwhile makes a peek look at the log
   again, and plan again.
"""

from __future__ import annotations

import os
import threading
import time as clock
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from spark_timely.answers.file_cache import kept_files
from spark_timely.answers.keys import keys_of
from spark_timely.answers.log_peek import Scan, may_hold, parts_of, plan_scan, scan
from spark_timely.answers.plan import PeekPlan, Thinning, counted, finish, judged, order_of
from spark_timely.conf.kinds import check_whole, names_of, seconds_of
from spark_timely.errors import (
    CanceledError,
    DataLossError,
    InvalidUsageError,
    NotBeyondError,
    ResultTooLargeError,
    SchemaMismatchError,
    SinceViolationError,
    WaitTimeoutError,
    shown,
)
from spark_timely.log.arrangements import Arranged
from spark_timely.log.log import Log, MemoryLog, keep_log
from spark_timely.log.machine.since import may_read, needed_by_contents
from spark_timely.log.store.storage import checked_options
from spark_timely.log.timestamp import frontier_after, newest_complete
from spark_timely.log.wait import wait_until
from spark_timely.predicate import parse_predicate
from spark_timely.threads import CachedThreads
from spark_timely.time.antichain import Antichain
from spark_timely.trace.keys import KeySet
from spark_timely.trace.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.answers.file_cache import KeptFiles
    from spark_timely.answers.keys import KeyColumns, KeysLike
    from spark_timely.answers.plan import OrderLike
    from spark_timely.time.domain import TimeDomain, TimeLike
    from spark_timely.trace.arrangement import OpenArrangement

__all__ = ["SCAN_LIMIT_BYTES", "Canceled", "Failed", "Peek", "PeekExplanation", "Rows", "peek", "start_peek"]

SCAN_LIMIT_BYTES: Final = 256 << 20
"""Compressed bytes that a peek reads itself, at most, unless it is given another limit."""

# A look costs some microseconds on a disk, and a request elsewhere.
_POLL_S: Final = 0.01
_FAR_POLL_S: Final = 1.0
_MOST_TRIES: Final = 5
# How long a thread waits for another peek.
_IDLE_S: Final = 30.0
# Questions that are kept ready by a log: those of a program differ in keys and time alone.
_MOST_QUESTIONS: Final = 64

# Keys that are looked up and counted at once: what is thinned comes in such pieces.
_KEYS_AT_ONCE: Final = 1 << 14

Job = Callable[[PeekPlan], pa.Table]
"""Answers a plan that would read too much here: see `spark_timely.answers.plan`."""


@dataclass(frozen=True, slots=True)
class PeekExplanation:
    """Explanation of an answered peek: its time, the way that answered it, and what was read.

    Attributes
    ----------
    way : {"nothing", "index", "log", "job"}
        What gave the rows; nothing where none could be asked for: no key, or a limit of 0.
    why : str
        Why it was no index, as text; empty where it was one.
    domain : TimeDomain
        Of the log.
    as_of : tuple of int
        The time of the rows.
    since, upper : Antichain
        Frontiers of the log.
    index : str or None
        The folder of the index.
    files, row_groups : int
        Files that were looked into, and row groups that were decoded of those not kept in memory.
    files_read : int
        Of the files those that had to be opened; the others were kept in memory.
    size_bytes : int
        Compressed bytes of the row groups.
    """

    way: Literal["nothing", "index", "log", "job"]
    why: str
    domain: TimeDomain
    as_of: tuple[int, ...]
    since: Antichain
    upper: Antichain
    index: str | None = None
    files: int = 0
    row_groups: int = 0
    files_read: int = 0
    size_bytes: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return it for programs, with times as they are written.

        Examples
        --------
        >>> from spark_timely.time.antichain import Antichain
        >>> from spark_timely.time.domain import TimeDomain
        >>> made = PeekExplanation("log", "", TimeDomain(("date",)), (3,), Antichain.of(0), Antichain.of(5))
        >>> made.to_dict()["as_of"], made.to_dict()["upper"]
        ('1970-01-04', ['1970-01-06'])
        """
        domain = self.domain
        return {
            "way": self.way,
            "why": self.why,
            "as_of": domain.time_to_json(self.as_of),
            "since": domain.frontier_to_json(self.since),
            "upper": domain.frontier_to_json(self.upper),
            "index": self.index,
            "files": self.files,
            "row_groups": self.row_groups,
            "files_read": self.files_read,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer of a peek that found what it was asked for.

    Attributes
    ----------
    table : pyarrow.Table
    explanation : PeekExplanation
    """

    table: pa.Table
    explanation: PeekExplanation


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a peek that failed.

    Attributes
    ----------
    error : Exception
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class Canceled:
    """The answer of a peek that was canceled before it had another."""


Answer = Rows | Failed | Canceled


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of a peek, as they were given."""

    target: str | os.PathLike[str] | Log
    as_of: TimeLike | None
    keys: KeysLike | None
    where: str | None
    select: str | Sequence[str] | None
    order_by: OrderLike | None
    limit: int | None
    offset: int
    max_bytes: int | None
    forgotten: bool
    timeout_s: float
    # Not shown: there may be secrets among them.
    storage_options: Mapping[str, str] | None = field(repr=False)
    scan_limit: int
    job: Job | None


class Peek:
    """A peek that was begun; `start_peek` returns one.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.string())]), kind="collection", minimum=(0,))
    >>> begun = start_peek(log, as_of=5)
    >>> begun.cancel(), begun.cancel(), begun.answer
    (True, False, Canceled())
    """

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer | None:
        """The answer: `Rows`, `Failed` or `Canceled`; None as long as there is none."""
        return self._answer

    @property
    def explanation(self) -> PeekExplanation | None:
        """How it was answered; None as long as there are no rows."""
        answer = self._answer
        return answer.explanation if isinstance(answer, Rows) else None

    def cancel(self) -> bool:
        """Cancel it; return whether that is its answer now. One that has an answer keeps it."""
        return self._give(Canceled())

    def result(self, timeout_s: float | None = None) -> pa.Table:
        """Return the rows.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait for an answer at most; it stays begun after that.

        Raises
        ------
        CanceledError
            If it was canceled.
        WaitTimeoutError
            If there is no answer yet.
        TimelyError
            If it failed: see `peek`.
        """
        attempt = "could not wait for a peek"
        wait_s = seconds_of(attempt, "timeout_s", timeout_s, optional=True)
        # The system cannot count an endless time.
        if not self._answered.wait(None if wait_s > threading.TIMEOUT_MAX else wait_s):
            msg = f"{attempt}: found no answer after {wait_s:g} seconds"
            raise WaitTimeoutError(msg, hint="wait longer, or cancel it")
        answer = self._answer
        if isinstance(answer, Rows):
            return answer.table
        if isinstance(answer, Failed):
            raise answer.error
        msg = "could not peek: found that it was canceled"
        raise CanceledError(msg, hint="begin another peek for the answer")

    def _give(self, answer: Answer) -> bool:
        """Set the answer, unless there is one (invariant 1)."""
        with self._lock:
            if self._answer is not None:
                return False
            self._answer = answer
        self._answered.set()
        return True

    def _run(self) -> None:
        try:
            found: Answer = _answered(self._request, self._answered)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            found = Failed(error)
        self._give(found)


def peek(
    target: str | os.PathLike[str] | Log,
    /,
    *,
    as_of: TimeLike | None = None,
    keys: KeysLike | None = None,
    where: str | None = None,
    select: str | Sequence[str] | None = None,
    order_by: OrderLike | None = None,
    limit: int | None = None,
    offset: int = 0,
    max_bytes: int | None = None,
    forgotten: bool = False,
    timeout_s: float = 60.0,
    storage_options: Mapping[str, str] | None = None,
    scan_limit: int = SCAN_LIMIT_BYTES,
    job: Job | None = None,
    explain: Callable[[PeekExplanation], object] | None = None,
) -> pa.Table:
    """Return the rows that a log has as of a time.

    The contents of a collection are the rows whose diffs at times up to `as_of` sum to more than zero; those of a
    stream are its messages at times up to `as_of`. Conditions and columns are applied before rows are counted.

    Parameters
    ----------
    target : path or Log
    as_of : time, optional
        Waited for until it is complete. Unless given, the newest time that is.
    keys : mapping or pyarrow.Table, optional
        Rows of these keys alone: ``{"k": [1, 2]}``, ``{("a", "b"): [(1, "x")]}``, or a table. None there means null. An
        empty list gives nothing; a key that is given twice gives its rows once.
    where : str, optional
        A condition in SQL.
    select : str or sequence of str, optional
        Columns of the answer; all unless given.
    order_by : str or sequence, optional
        ``"price"``, or ``[("price", "desc"), ("id", "asc", "last")]``. Ties are broken by the whole row. Without an
        order the rows come in none in particular, and a limit takes any of them.
    limit : int, optional
        How many copies of rows to give at most.
    offset : int
        How many copies to leave out first.
    max_bytes : int, optional
        An answer with more is an error; see `spark_timely.answers.plan.row_sizes`.
    forgotten : bool
        Whether messages of a stream that has forgotten some may be asked for: those that are left.
    timeout_s : float
        How many seconds to wait for the time, at most.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs.
    scan_limit : int
        How many compressed bytes to read here, at most.
    job : callable, optional
        Answers a plan that would read more; without it that is an error.
    explain : callable, optional
        Receives how the peek was answered.

    Returns
    -------
    pyarrow.Table
        The selected columns, and `_diff`: how often each row is there, as `Log.snapshot` has it.

    Raises
    ------
    SinceViolationError
        If the log has forgotten the time; at once, whether or not the time is complete.
    WaitTimeoutError
        If the time is not complete in time.
    NotBeyondError
        If no time is given, and none is complete.
    InvalidUsageError, SchemaMismatchError
        If an argument is none, names no column, or a value is none of its column's type; if the condition cannot be
        computed for a row, even for one that is not there at the time.
    ResultTooLargeError
        If the answer is larger than `max_bytes`, or more than `scan_limit` would have to be read.
    NegativeMultiplicityError, MultiplicityOverflowError
        If a row would be there fewer than zero times, or more than 2^63 - 1 times.
    LogMissingError, DataLossError, StorageError
        If the log cannot be read.

    Notes
    -----
    Cost: with an index by the keys a binary search for each; else those row groups are read whose bounds may hold the
    keys, and small files once per process. Stops at `limit + offset` copies where there is no order and no update takes
    a row away.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("k", pa.string()), ("n", pa.int64())]), kind="collection", minimum=(0,))
    >>> rows = pa.table({"_time": [1, 2, 2], "_diff": [1, 1, 2], "k": ["a", "b", "c"], "n": [7, 8, 9]})
    >>> _ = log.writer(owner="me").append(rows, advance_to=3)
    >>> peek(log, keys={"k": ["c", "a"]}, order_by="n").to_pylist()
    [{'k': 'a', 'n': 7, '_diff': 1}, {'k': 'c', 'n': 9, '_diff': 2}]
    >>> peek(log, as_of=1, select="n").to_pylist()
    [{'n': 7, '_diff': 1}]
    >>> peek(log, as_of=3, timeout_s=0)
    Traceback (most recent call last):
    ...
    spark_timely.errors.WaitTimeoutError: [TIMELY_WAIT_TIMEOUT] could not peek log 'memory' at 3: found since=[0], \
upper=[3] after 0 seconds — hint: ...
    """
    request = _Request(
        target, as_of, keys, where, select, order_by, limit, offset, max_bytes, forgotten, timeout_s,
        storage_options, scan_limit, job,
    )  # fmt: skip
    # Nobody else knows of it: nobody cancels it, and no thread is needed.
    answer = _answered(request, _NEVER)
    assert isinstance(answer, Rows)
    if explain is not None:
        explain(answer.explanation)
    return answer.table


def start_peek(
    target: str | os.PathLike[str] | Log,
    /,
    *,
    as_of: TimeLike | None = None,
    keys: KeysLike | None = None,
    where: str | None = None,
    select: str | Sequence[str] | None = None,
    order_by: OrderLike | None = None,
    limit: int | None = None,
    offset: int = 0,
    max_bytes: int | None = None,
    forgotten: bool = False,
    timeout_s: float = 60.0,
    storage_options: Mapping[str, str] | None = None,
    scan_limit: int = SCAN_LIMIT_BYTES,
    job: Job | None = None,
) -> Peek:
    """Begin a peek that is answered in a thread of its own.

    Parameters
    ----------
    target, as_of, keys, where, select, order_by, limit, offset, max_bytes, forgotten, timeout_s, storage_options
        As for `peek`.
    scan_limit, job
        As for `peek`.

    Returns
    -------
    Peek
        What is wrong with the arguments is its answer too.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.string())]), minimum=(0,))
    >>> _ = log.writer(owner="me").append(pa.table({"_time": [1], "v": ["a"]}), advance_to=2)
    >>> begun = start_peek(log)
    >>> begun.result(timeout_s=60).to_pylist(), begun.explanation.way
    ([{'v': 'a', '_diff': 1}], 'log')
    """
    begun = Peek(
        _Request(target, as_of, keys, where, select, order_by, limit, offset, max_bytes, forgotten, timeout_s,
                 storage_options, scan_limit, job)
    )  # fmt: skip
    _threads.submit(begun._run)
    return begun


# Each keeps the logs that it opened.
_threads = CachedThreads("peek", idle_s=_IDLE_S)


# Answering -----------------------------------------------------------------------------------------------


_NEVER: Final = threading.Event()


class _Known:
    """Facts about a log's snapshot that each peek asks for, made once."""

    def __init__(self, log: Log, arranged: Arranged) -> None:
        self.state = log.core.generation, log.core.version
        self.path, self.domain, self.kind = log.path, log.domain, log.kind
        self.since, self.upper = log.since(), log.frontier()
        self.forgets = self.since != self.domain.minimum_frontier
        self.form, self.files = log.core.format, log.core.files()
        self.newest = newest_complete(self.domain, self.upper)
        self.names = tuple(self.form.payload.names)
        self.types = {field.name: field.type for field in self.form.payload}
        self.arranged = arranged
        # Plans without time and keys by what was asked; columns of keys by their names.
        self.questions: dict[tuple[object, ...], PeekPlan] = {}
        self.key_columns: dict[tuple[str, ...], KeyColumns] = {}

    @property
    def frontiers(self) -> str:
        """Since and upper, for errors."""
        return f"since={self.domain.render_frontier(self.since)}, upper={self.domain.render_frontier(self.upper)}"


# Nothing of it leads back to the log: what is kept of a handle ends with it.
_logs: weakref.WeakKeyDictionary[Log, _Known] = weakref.WeakKeyDictionary()


def _known(log: Log) -> _Known:
    """Return what is known of the snapshot in use of a log."""
    found = _logs.get(log)
    while found is None or found.state != (
        log.core.generation,
        log.core.version,
    ):  # once more where others refresh the handle
        found = _Known(log, Arranged() if found is None else found.arranged)
        _logs[log] = found
    return found


def _refresh(log: Log) -> None:
    """Take notice of commits by others; a log on a disk says at no cost whether there are any."""
    if not log.core.storage.local or isinstance(log, MemoryLog) or log.core.has_news():
        log.refresh()


def _answered(request: _Request, over: threading.Event) -> Answer:
    """Answer a request; `over` is set when nobody needs the answer any more."""
    target = request.target
    if isinstance(target, Log):
        log = target
        _refresh(log)
    else:
        options = checked_options(request.storage_options)
        log = keep_log(target, storage_options=options or None)
    attempt = f"could not peek log {log.core.path!r}"
    _check(attempt, request)
    known = _known(log)
    at = _time_of(attempt, known, request)
    found = _waited(attempt, log, at, request, over)
    for tried in range(_MOST_TRIES):  # once more where files were replaced meanwhile
        if found is None:
            break
        try:
            return _rows(log, found, _plan(attempt, log, found, at, request), request)
        except (DataLossError, FileNotFoundError):
            log.refresh()
            if found.state == (log.core.generation, log.core.version) or tried == _MOST_TRIES - 1:
                raise
            found = None if over.is_set() else _known(log)
            if found is not None:
                _check_since(attempt, found, at, request)
    return Canceled()


def _check(attempt: str, request: _Request) -> None:
    """Refuse arguments that are none, before anything is read."""
    for name, least in (("limit", 0), ("max_bytes", 0)):
        check_whole(attempt, name, getattr(request, name), least=least, optional=True)
    for name in ("offset", "scan_limit"):
        check_whole(attempt, name, getattr(request, name), least=0)
    hint = "give seconds, 0 to look once, or math.inf to wait for ever"
    seconds_of(attempt, "timeout_s", request.timeout_s, hint=hint)
    if request.where is not None and not isinstance(request.where, str):
        msg = f"{attempt}: found where={shown(request.where)}"
        raise InvalidUsageError(msg, hint='give a condition in SQL, such as where="price > 10"')


def _time_of(attempt: str, known: _Known, request: _Request) -> tuple[int, ...]:
    """Return the time that is asked for: as given, or the newest that is complete."""
    domain, upper = known.domain, known.upper
    if request.as_of is not None:
        return domain.parse_time(request.as_of)
    if known.newest is not None:
        return known.newest
    if domain.arity > 1:
        msg = f"{attempt}: found times of {domain.arity} coordinates, of which none is the newest: {known.frontiers}"
        raise InvalidUsageError(msg, hint="give the time as as_of=(…)")
    msg = f"{attempt}: found no time that is complete: {known.frontiers}"
    raise NotBeyondError(
        msg,
        hint="wait for the first commit that closes a time, or give as_of=… to wait for it",
        time=domain.minimum,
        frontier=upper.to_json(),
    )


def _check_since(attempt: str, known: _Known, at: tuple[int, ...], request: _Request) -> None:
    """Refuse a time that the log has forgotten (invariant 2)."""
    if not known.forgets:
        return
    domain, when = known.domain, known.domain.render_time(at)
    if known.kind == "stream" and not request.forgotten:
        found = "found that the stream has forgotten messages"
        hint = "give forgotten=True for the messages that are left, or peek into a collection that is made of them"
    elif not may_read(known.since, needed_by_contents(at)):
        found, hint = "found", "peek at since or later; to keep a time from being forgotten, retain it"
    else:
        return
    msg = f"{attempt} at {when!r}: {found}{',' if found != 'found' else ''} {known.frontiers}"
    since = domain.render_frontier(known.since)
    raise SinceViolationError(msg, hint=hint, as_of=when, since=since, context={"path": known.path})


def _waited(attempt: str, log: Log, at: tuple[int, ...], request: _Request, over: threading.Event) -> _Known | None:
    """Wait until a time is complete; return what is known then, None where nobody needs the answer any more."""
    known = _known(log)
    _check_since(attempt, known, at, request)
    if not known.upper.less_equal(at):
        return known

    def pause(seconds: float) -> None:
        over.wait(seconds)

    def look(_: float) -> bool:
        nonlocal known
        if over.is_set():
            return True
        _refresh(log)
        known = _known(log)
        # It may have moved past the time while that was waited for.
        _check_since(attempt, known, at, request)
        return not known.upper.less_equal(at)

    poll_s = _POLL_S if log.core.storage.local else _FAR_POLL_S
    done = wait_until(look, timeout_s=request.timeout_s, poll_s=poll_s, now=clock.monotonic, pause=pause)
    if over.is_set():
        return None
    if not done:
        when = known.domain.render_time(at)
        msg = f"{attempt} at {when!r}: found {known.frontiers} after {request.timeout_s:g} seconds"
        frontier = known.domain.render_frontier(known.upper)
        raise WaitTimeoutError(msg, hint="wait longer, or peek at a time before upper", frontier=frontier)
    return known


def _plan(attempt: str, log: Log, known: _Known, at: tuple[int, ...], request: _Request) -> PeekPlan:
    """Return what is asked of a snapshot, checked."""
    keys = keys_of(attempt, request.keys, known.form.payload, known.key_columns)
    asked = _asked(request)
    plan = known.questions.get(asked) if asked else None
    if plan is None:
        plan = _question(attempt, log, known, request)
        if asked:
            if len(known.questions) >= _MOST_QUESTIONS:
                known.questions.clear()
            known.questions[asked] = plan
    return replace(plan, at=at, keys=keys)


def _asked(request: _Request) -> tuple[object, ...]:
    """Return what tells a question from others that differ in more than time and keys; empty if it is not kept."""
    select, order = request.select, request.order_by
    if isinstance(select, list | tuple):
        select = tuple(select)
        if not all(isinstance(name, str) for name in select):
            return ()
    if not isinstance(select, str | tuple | None) or not isinstance(order, str | None):
        return ()
    return select, order, request.where, request.limit, request.offset, request.max_bytes


def _question(attempt: str, log: Log, known: _Known, request: _Request) -> PeekPlan:
    """Return what is asked of a snapshot, whatever the keys and the time."""
    form = known.form
    payload = form.payload
    order = order_of(attempt, request.order_by, payload)
    select = known.names if request.select is None else names_of(attempt, "select", request.select)
    if request.select is not None:
        unknown = [name for name in select if name not in payload.names]
        if unknown:
            msg = f"{attempt}: found no column {shown(unknown[0])}"
            raise SchemaMismatchError(
                msg, hint=f"choose among its columns: {shown(payload.names)}", context={"column": unknown[0]}
            )
        if not select or len(set(select)) < len(select):
            msg = f"{attempt}: found select={shown(list(select))}"
            raise InvalidUsageError(msg, hint="select at least one column, each once")
    where = None
    if request.where is not None:
        where = parse_predicate(request.where, known.types, what=attempt.removeprefix("could not "))
    return PeekPlan(
        path=log.path,
        log_id=log.core.log_id,
        form=form,
        storage=log.core.storage,
        files=(),
        at=(),
        since=known.since,
        keys=None,
        where=where,
        select=select,
        columns=tuple(dict.fromkeys([*select, *(each.column for each in order)])) if order else select,
        order=order,
        limit=request.limit,
        offset=int(request.offset),
        max_bytes=request.max_bytes,
    )


def _rows(log: Log, known: _Known, plan: PeekPlan, request: _Request) -> Rows:
    """Answer a plan: from an index, from files, or by a job."""
    if plan.limit == 0 or (plan.keys is not None and not plan.keys.num_rows):
        return Rows(finish(plan, counted(plan, [])), _explained(plan, known, "nothing"))
    index, why = None, "no keys were given"
    if plan.keys is not None:
        names = plan.keys.schema.names
        frontier = known.upper if plan.at == known.newest else frontier_after(known.domain, plan.at)
        index, why = known.arranged.find(log, names, plan.read_columns, frontier, forgets=known.forgets)
        if index is not None:
            name, tail = os.path.basename(index.names.folder), _tail(log, known, plan, index.names.upper)
            if tail is None or tail.n_bytes <= request.scan_limit:
                keys = KeySet(plan.keys, index.names.key)
                parts = [] if tail is None else list(parts_of(plan, tail, _kept(plan), keys))
                rows = look_up(plan, index, keys, frontier, [part for part, _ in parts if len(part)])
                n_read = sum(was_read for _, was_read in parts)
                return Rows(finish(plan, rows), _explained(plan, known, "index", "", tail, n_read, name))
            why = f"index {name!r} is behind: found {tail.n_bytes} bytes past its upper"
    log.core.look_into(lambda files: may_hold(files, plan.at, None))
    kept = _kept(plan)
    what = plan_scan(plan, known.files, kept)
    if what.n_bytes > request.scan_limit:
        return Rows(_by_job(plan, what, request), _explained(plan, known, "job", why, what))
    rows, n_read = scan(plan, what, kept)
    return Rows(finish(plan, rows), _explained(plan, known, "log", why, what, n_read))


def _kept(plan: PeekPlan) -> KeptFiles:
    return kept_files(plan.log_id, plan.storage.uri)


def _tail(log: Log, known: _Known, plan: PeekPlan, upper: Antichain) -> Scan | None:
    """Return what a log has past the upper of an arrangement; None where none of it counts."""
    if not upper.less_equal(plan.at):
        return None
    log.core.look_into(lambda files: may_hold(files, plan.at, upper))
    return plan_scan(plan, known.files, _kept(plan), lower=upper.elements[0][0])


def look_up(
    plan: PeekPlan, index: OpenArrangement, keys: KeySet, frontier: Antichain, tail: Sequence[Updates]
) -> pa.Table:
    """Return rows with their counts, of a plan's keys: what an index has of them, and what is past its upper.

    Parameters
    ----------
    plan : PeekPlan
    index : OpenArrangement
    keys : KeySet
        Of the plan.
    frontier : Antichain
        Times not beyond it count.
    tail : sequence of Updates
        Updates that count at times not before the index's upper, of the keys alone, with the columns that are read.

    Notes
    -----
    Cost: a look-up, of many keys piece by piece, of which as many rows are kept as the answer needs.
    """
    columns = list(plan.read_columns)
    if keys.n_rows <= _KEYS_AT_ONCE:
        return counted(plan, [judged(plan, each) for each in (index.before(keys, frontier, columns), *tail)])
    late = Updates.concat(tail) if tail else None
    thinning = Thinning(plan)
    # Rows of other keys may be equal in the columns that count: they are counted key by key only if these have the key.
    apart = set(index.names.key) <= set(plan.columns)
    parts: list[Updates] = []
    for piece in keys.pieces(_KEYS_AT_ONCE):
        if thinning.done:
            break
        found = [index.before(piece, frontier, columns)]
        if late is not None:
            found.append(late.where(piece.among(late.rows)))
        parts += [judged(plan, each) for each in found]
        if apart:
            thinning.add(counted(plan, parts))
            parts = []
    thinned = thinning.rows()
    return counted(plan, parts) if thinned is None else thinned


def _explained(
    plan: PeekPlan, known: _Known, way: Literal["nothing", "index", "log", "job"], why: str = "",
    what: Scan | None = None, n_read: int = 0, index: str | None = None,
) -> PeekExplanation:  # fmt: skip
    read = (0, 0, 0, 0) if what is None else (what.n_files, what.n_groups, n_read, what.n_bytes)
    return PeekExplanation(way, why, known.domain, plan.at, plan.since, known.upper, index, *read)


def _by_job(plan: PeekPlan, what: Scan, request: _Request) -> pa.Table:
    """Hand a plan over to the job."""
    if request.job is None:
        msg = f"could not peek log {plan.path!r}: found {what.n_bytes} bytes to read, scan_limit={request.scan_limit}"
        raise ResultTooLargeError(
            msg,
            hint="ask for keys, give a job that answers it, or raise scan_limit",
            size_bytes=what.n_bytes,
            limit_bytes=request.scan_limit,
            limit_name="scan_limit",
        )
    files = (*(path for path, _ in what.small), *(piece.path for piece in what.pieces))
    return finish(plan, request.job(replace(plan, files=files)))
