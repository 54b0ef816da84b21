"""The follower of a log: watches for new commits and reads them once for all subscriptions of a process.

`spark_timely.answers.subscribe` asks it for rows; `batches` says which interval is next.

A thread looks while a subscription waits; one that asks without waiting looks itself. The first subscription that gets
to an interval of times reads it, moves its times up to the as-of time, and sums it. The interval is kept until all have
had it, within a budget of bytes: a subscription that is far behind reads what it needs again.

Invariants
----------
1. Frontier, files and since of a reading are of one snapshot. So an interval holds all its updates, and what a log has
   forgotten is refused, never left out.
2. The updates of an interval are consolidated: of each time, each row once, its diff not zero; ordered by time, then by
   a hash of the row, so that they depend neither on files nor on how times were cut into intervals.
3. What a subscription gets does not depend on whether others have read it before.
4. An interval that was given is never changed.
5. The thread ends with the last subscription, and holds no subscription alive.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time as clock
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.answers.batches import Interval, Progress
from spark_timely.answers.plan import row_sizes
from spark_timely.answers.retainers import Holder, Positions
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogDamagedError,
    SinceViolationError,
    StorageError,
    TimelyError,
    described,
)
from spark_timely.log.acceptance import describe_others
from spark_timely.log.cut import Cut, entry_of
from spark_timely.log.files.footer import Footer
from spark_timely.log.files.parquet_reader import open_parquet, read_file, side_by_side
from spark_timely.log.log import Log, MemoryLog, open_log
from spark_timely.log.machine.lost_commits import accepted_commit
from spark_timely.log.machine.since import may_read
from spark_timely.log.reader import seen_rows
from spark_timely.log.store.urls import identity
from spark_timely.masking import masked_logger
from spark_timely.threads import aside
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from spark_timely.trace.updates import DIFF, Updates, check_contents

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spark_timely.answers.batches import Course
    from spark_timely.answers.envelopes import RowForm
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["Follower", "IntervalRows", "Subscriber", "follower_of", "read_interval"]

_log = masked_logger(__name__)

_KEPT_BYTES: Final = 64 * 1024 * 1024
# Above this many bytes of files an interval is cut, at a whole time.
_CUT_BYTES: Final = 64 * 1024 * 1024
# Sums are made whenever as many rows have been read as there are sums.
_LEAST_ROWS: Final = 1_000_000
_MOST_READS: Final = 4
_MOST_BEGINNINGS: Final = 8
# How long a storage may fail before subscriptions that wait end with its error.
_PATIENCE_S: Final = 60.0
_LOCAL_POLL_S: Final = 0.02
_STORE_POLL_S: Final = 1.0
# How soon the thread notices that a subscription nobody closed is gone.
_GONE_S: Final = 1.0

# Files of more rows are read by row groups.
_SMALL_ROWS: Final = 65_536
# Files that are read at once where each is a journey.
_AT_ONCE: Final = 16

_Piece: TypeAlias = "tuple[str, list[int] | None]"
Key: TypeAlias = "tuple[Antichain, tuple[int, ...] | None]"


def read_interval(log: Log, course: Course, interval: Interval) -> pa.Table:
    """Return the updates of a log whose moved times are in an interval, consolidated and ordered by time.

    Parameters
    ----------
    log : Log
        Its snapshot has passed the interval, and has not forgotten what it needs.
    course : Course
        Says to which time earlier ones are moved.
    interval : Interval

    Returns
    -------
    pyarrow.Table
        Times, `_diff` and the payload.

    Raises
    ------
    NegativeMultiplicityError
        If the contents at the course's origin are among them, and have a row fewer than zero times.

    Notes
    -----
    Cost: the files that may hold such times, of large ones the row groups, and a hash and a sort of their rows. Memory
    holds the sums, and as many rows again, at least a million.
    """
    form = log.core.format
    domain, origin = form.domain, np.array([course.origin], np.int64)
    names = [*domain.columns, DIFF, *form.payload.names]
    wanted = [*domain.columns, *((DIFF,) if form.kind == "collection" else ()), *form.payload.names]
    schema = pa.schema([form.data_schema.field(name) for name in wanted])
    empty = pa.schema(
        [
            pa.field(DIFF, pa.int64()) if name == DIFF else form.data_schema.field(name).with_nullable(nullable=True)
            for name in names
        ]
    ).empty_table()
    if interval.lower == interval.upper:
        return empty
    payload = empty.select(form.payload.names).schema
    since, index = log.since(), log.core.files()
    # A time is between the bounds of its file: so is the time to which it is moved, between the moved bounds.

    def may_hold(files: FileIndex) -> BoolArray:
        return ~files.known | _may_hold(interval, files.min_times, files.max_times, origin)

    log.core.look_into(may_hold)
    chosen = np.flatnonzero(may_hold(index))

    def part_of(piece: _Piece) -> Updates:
        table, _ = seen_rows(log.core, read_file(log.core.storage, piece[0], schema, piece[1]), since)
        part = Updates.of_table(table, domain, payload.names).advanced(course.origin)
        part = part.where(interval.lower.beyond(part.times) & ~interval.upper.beyond(part.times))
        return replace(part, rows=part.rows.cast(payload))

    found = Updates(payload.empty_table(), domain.from_columns(empty), np.empty(0, np.int64))
    waiting: list[Updates] = []
    n_waiting = 0
    step = 1 if log.core.storage.local else _AT_ONCE
    for start in range(0, len(chosen), step):
        places = chosen[start : start + step].tolist()
        pieces = [piece for i in places for piece in _pieces(log, index.paths[i], int(index.rows[i]), interval, origin)]
        for first in range(0, len(pieces), step):  # more than one only for large files
            parts = side_by_side(log.core.storage, part_of, pieces[first : first + step])  # type: ignore[arg-type]
            waiting += parts
            n_waiting += sum(map(len, parts))
            if n_waiting > max(_LEAST_ROWS, len(found)):
                found = Updates.concat([found, *waiting]).consolidated(partial=True)
                waiting, n_waiting = [], 0
    found = Updates.concat([found, *waiting]).consolidated()
    # What is moved up to the origin, or was there, are the contents at it.
    contents = np.asarray((found.times == origin).all(axis=1), np.bool_)
    check_contents(f"subscribe to log {log.path!r}", found.rows, found.diffs, contents)
    return found.with_times(domain).cast(empty.schema)


def _may_hold(interval: Interval, least: IntArray, greatest: IntArray, origin: IntArray) -> BoolArray:
    """Return which rows of bounds of times may have times between them that are moved into an interval, shape (n,)."""
    return np.asarray(
        interval.lower.beyond(np.maximum(greatest, origin)) & ~interval.upper.beyond(np.maximum(least, origin)),
        np.bool_,
    )


def _pieces(log: Log, path: str, n_rows: int, interval: Interval, origin: IntArray) -> list[_Piece]:
    """Return a file as a whole, or of a large one the row groups that may hold such times, some at a time."""
    if 0 <= n_rows <= _SMALL_ROWS:
        return [(path, None)]
    with open_parquet(log.core.storage, path) as file:
        footer = Footer(file.metadata, file.schema_arrow)
        sizes = [footer.metadata.row_group(group).num_rows for group in range(footer.n_groups)]
    bounds = [footer.bounds(name) for name in log.domain.columns]
    held = np.ones(footer.n_groups, np.bool_)
    known = [each for each in bounds if each is not None]
    if len(known) == len(bounds) and footer.n_groups:
        least, greatest = (np.stack([each[side] for each in known], axis=1) for side in (0, 1))
        sure = np.logical_and.reduce([each[2] for each in known])
        held = ~sure | _may_hold(interval, least, greatest, origin)
    pieces: list[_Piece] = []
    groups: list[int] = []
    for group in np.flatnonzero(held).tolist():
        groups.append(group)
        if sum(sizes[each] for each in groups) >= _LEAST_ROWS:
            pieces.append((path, groups))
            groups = []
    return [*pieces, (path, groups)] if groups else pieces


@dataclass(eq=False, slots=True)
class IntervalRows:
    """The updates of an interval, which subscriptions share.

    Attributes
    ----------
    interval : Interval
    rows : pyarrow.Table
        As `read_interval` gives them.
    log_format : LogFormat
        Of the log when they were read: columns may have been added since.
    formed : dict
        The same in each form that was asked for.
    taken : int
        How many subscriptions have had them.
    """

    interval: Interval
    rows: pa.Table
    log_format: LogFormat
    formed: dict[RowForm, pa.Table] = field(default_factory=dict)
    taken: int = 0

    def in_form(self, form: RowForm) -> pa.Table:
        """Return the rows in a form, with the progress rows of the interval's end where it has them; made once."""
        rows = self.formed.get(form)
        if rows is None:
            rows = form.rows(self.rows, self.log_format)
            if form.progress:
                rows = pa.concat_tables([rows, form.progress_rows(self.interval.upper, self.log_format)])
            self.formed[form] = rows
        return rows

    def size_in_form(self, form: RowForm) -> int:
        """Return the bytes of the rows in a form, each with its count: progress rows are not counted."""
        rows = form.rows(self.rows, self.log_format)
        return int(row_sizes(rows.select([name for name in rows.schema.names if name != DIFF])).sum())


@dataclass(eq=False, slots=True)
class Subscriber:
    """One subscription, as the follower knows it.

    Attributes
    ----------
    progress : Progress
    form : RowForm
    poll_s : float
        Seconds between two looks while it waits.
    accepted : tuple of str
        The changes by other programs that were accepted in the log when it began.
    forgotten : bool
        Whether messages of a stream may be missing that the log had forgotten when it began.
    holder : Holder or None
        What retains its position under a name.
    closed : bool
    """

    progress: Progress
    form: RowForm
    poll_s: float
    accepted: tuple[str, ...] = ()
    forgotten: bool = False
    holder: Holder | None = None
    closed: bool = False

    @property
    def needs_all(self) -> bool:
        """Whether it is a beginning with all messages, of which some may be forgotten."""
        return self.forgotten and self.progress.reached == self.progress.course.start


class Follower:
    """Looks at one log for all subscriptions of this process.

    Parameters
    ----------
    log : Log
        A handle for this alone.
    open_log : callable
        Opens another handle on the same log.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(self, log: Log, open_log: Callable[[], Log], *, now: Callable[[], float] = clock.monotonic) -> None:
        self.log = log
        self.positions = Positions(open_log, wall=log.core.clock, now=now)
        self._now = now
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._wake = threading.Condition(self._lock)
        self._subscribers: list[Subscriber] = []
        self._gone: deque[Subscriber] = deque()
        self._kept: OrderedDict[Key, IntervalRows] = OrderedDict()
        # How many wait, and how often those that did were woken.
        self._waiting = self._turn = 0
        self._thread: threading.Thread | None = None
        self._looked_at = -math.inf
        self._failing_since: float | None = None
        self._error: Exception | None = None
        # On a local disk a look at a file says whether there is news; elsewhere that takes a whole look.
        self._tells_news = log.core.storage.local and not isinstance(log, MemoryLog)
        self.reads = 0

    @property
    def poll_s(self) -> float:
        """Seconds between two looks unless a subscription says otherwise."""
        return _LOCAL_POLL_S if self.log.core.storage.local else _STORE_POLL_S

    def is_followed(self) -> bool:
        """Return whether there is a subscription."""
        return bool(self._subscribers)

    def is_of_this_process(self) -> bool:
        """Return whether it was made here, and not before a fork."""
        return self._process == os.getpid()

    def is_still_there(self) -> bool:
        """Return whether the log is the one that it was, and can be read."""
        try:
            with self._lock:
                self._refresh()
        except TimelyError:
            return False  # gone, restored, replaced or damaged: to open it again says which
        return True

    # Subscriptions -------------------------------------------------------------------------------

    def attach(
        self, make: Callable[[Log], Subscriber], *, name: str | None = None, expiry: str = "7 days"
    ) -> Subscriber:
        """Add a subscription: what it needs is retained before it can read.

        Parameters
        ----------
        make : callable
            Is given the log as it is now, and returns the subscription or refuses it.
        name : str, optional
            Under which its position is retained.
        expiry : str
        """
        with self._lock:
            self._refresh()
            for turn in range(_MOST_BEGINNINGS):  # once more where compaction has moved since meanwhile
                made = make(self.log)
                needed = self._needed(made)
                if name is None:
                    break
                try:
                    made.holder = self.positions.begin(name, needed, expiry)
                    break
                except SinceViolationError:
                    if turn == _MOST_BEGINNINGS - 1 or not self._refresh():
                        raise
            if name is None and not made.progress.has_ended:
                self.positions.cover(needed.meet(self._needed_by_unnamed() or needed))
            self._subscribers.append(made)
            if self._thread is None:
                self._thread = aside("subscribe", self._run)
            else:
                self._wake.notify_all()
            return made

    def cut_at(self, position: Antichain) -> Cut:
        """Return a position together with what the log was when it was read up to there."""
        with self._lock:
            return Cut(TimeDomain(self.log.domain.types), position, (entry_of(self.log),))

    def detach(self, subscriber: Subscriber) -> None:
        """Remove a subscription, and write what its name retains."""
        with self._lock:
            subscriber.closed = True
            if subscriber not in self._subscribers:
                return
            self._subscribers.remove(subscriber)
            self._moved.notify_all()
            self._wake.notify_all()
            if not self._subscribers:
                self._kept.clear()
            unnamed = self._unnamed()
        if subscriber.holder is not None:
            self.positions.end(subscriber.holder)
        elif not unnamed:
            self.positions.cover(None)

    def end(self) -> None:
        """Remove all subscriptions, as closing each does, and wait for the thread."""
        for subscriber in list(self._subscribers):
            self.detach(subscriber)
        thread = self._thread
        if thread is not None:
            thread.join(_GONE_S)

    def let_go(self, subscriber: Subscriber) -> None:
        """Note that nobody has a subscription any more; for finalizers, which must not wait."""
        subscriber.closed = True
        self._gone.append(subscriber)

    def _unnamed(self) -> list[Subscriber]:
        return [each for each in self._subscribers if each.holder is None and not each.progress.has_ended]

    def _needed_by_unnamed(self) -> Antichain | None:
        """Return what they need together, of what can be had: one that compaction has passed holds no other up."""
        since = self.log.since()
        needed = [each for each in map(self._needed, self._unnamed()) if may_read(since, each)]
        return reduce(Antichain.meet, needed) if needed else None

    def _needed(self, subscriber: Subscriber) -> Antichain:
        progress = subscriber.progress
        needed = progress.course.needed(self.log.kind, progress.reached)
        return needed.join(self.log.since()) if subscriber.needs_all else needed

    # What is given -------------------------------------------------------------------------------

    def next_updates(self, subscriber: Subscriber, timeout_s: float) -> IntervalRows | None:
        """Return what comes next for a subscription; None where it ended, was closed, or the time is over.

        Parameters
        ----------
        subscriber : Subscriber
            Not moved by this.
        timeout_s : float
            0 looks once; infinity waits for ever.

        Raises
        ------
        OwnershipError
            If another subscription has its name.
        SinceViolationError
            If the log has forgotten what comes next.
        StorageError, DataLossError, RolledBackError
            If the log cannot be read. To ask again is safe.
        InvalidUsageError
            In a process that was forked off: no thread looks there.
        """
        if self._process != os.getpid():
            msg = f"could not continue a subscription to log {self.log.path!r}: found another process than it began in"
            raise InvalidUsageError(
                msg, hint="subscribe again in this process, resume_from the position", context={"path": self.log.path}
            )
        deadline, looked = self._now() + timeout_s, False
        with self._lock:
            while True:
                if subscriber.closed or subscriber.progress.has_ended:
                    return None
                self.positions.check(subscriber.holder)
                interval = subscriber.progress.next_interval(self.log.frontier())
                if interval is not None:
                    return self._read(subscriber, interval)
                if not looked:
                    looked = True
                    if self._look_if_due(subscriber.poll_s):
                        continue
                left = deadline - self._now()
                if left <= 0:
                    return None
                self._error = None
                self._waiting += 1
                self._wake.notify_all()
                turn = self._turn
                try:
                    self._moved.wait(None if math.isinf(left) else min(left, threading.TIMEOUT_MAX))
                finally:
                    if turn == self._turn:
                        self._waiting -= 1
                if self._error is not None:
                    raise self._error

    def look_now(self, subscriber: Subscriber) -> None:
        """Take notice of what others have committed, where that is due."""
        with self._lock:
            self._look_if_due(subscriber.poll_s)

    def _look_if_due(self, poll_s: float) -> bool:
        if self._tells_news:
            return self.log.core.has_news() and self._look()
        if not isinstance(self.log, MemoryLog) and self._now() - self._looked_at < poll_s:
            return False
        return self._look()

    def _look(self) -> bool:
        """Look at the log; return whether anything is new. A storage that fails for a while is looked at again."""
        try:
            moved = self._refresh()
        except StorageError as error:
            if isinstance(error, DataLossError | LogDamagedError):
                raise
            is_first = self._failing_since is None
            self._failing_since = self._failing_since or self._now()
            if self._now() - self._failing_since >= _PATIENCE_S:
                raise
            if is_first:
                _log.warning("could not look at log %r, which is tried again: %s", self.log.path, described(error))
            return False
        self._failing_since = None
        return moved

    def _refresh(self) -> bool:
        """Move the snapshot, and wake all that wait where it has moved: after this look no other one finds it new."""
        self._looked_at = self._now()
        moved = self.log.refresh()
        if moved:
            self.positions.seen(self.log.retainers())
            self._wake_all()
        return moved

    def _wake_all(self) -> None:
        # None of them waits any more, although it does not run yet: the thread need not look for it meanwhile.
        self._turn, self._waiting = self._turn + 1, 0
        self._moved.notify_all()

    def _read(self, subscriber: Subscriber, interval: Interval) -> IntervalRows:
        course, key = subscriber.progress.course, self._key(subscriber, interval)
        self._check_accepted(subscriber)
        if interval.lower == interval.upper:  # a beginning without rows
            return IntervalRows(interval, read_interval(self.log, course, interval), self.log.core.format)
        kept = self._kept.get(key)
        if kept is not None and _fits(kept.interval, interval):
            return self._taken(key, kept)
        if key[1] is None:
            interval = self._cut(interval)
        for turn in range(_MOST_READS):
            try:
                self._check_may_read(subscriber)
                found = IntervalRows(interval, read_interval(self.log, course, interval), self.log.core.format)
                break
            except DataLossError:
                # A file that was replaced since the look, and deleted: the next look does not name it.
                if turn == _MOST_READS - 1 or not self._refresh():
                    raise
        self.reads += 1
        # What ends earlier than the log has come is cut to the end of one subscription alone.
        if course.end is None or not course.end.less_equal_frontier(interval.upper):
            self._keep(key, found)
        return self._taken(key, found)

    @staticmethod
    def _key(subscriber: Subscriber, interval: Interval) -> Key:
        """Return what tells the updates of an interval from others that begin there."""
        course = subscriber.progress.course
        # Behind the first interval times of one coordinate are where they were, whatever the origin.
        moved = len(course.origin) > 1 or interval.lower == Antichain.of(course.origin)
        return interval.lower, course.origin if moved else None

    def _check_accepted(self, subscriber: Subscriber) -> None:
        """Refuse to continue behind a change by another program that was accepted since it began."""
        log = self.log
        if log.core.accepted != subscriber.accepted:
            behind = accepted_commit(log.core.accepted)
            msg = f"could not continue a subscription: {describe_others(log.core, behind, 'it has given')}"
            raise DataLossError(
                msg,
                hint="subscribe again, and make again what was made from the rows; or resume_from its cut, with"
                f" accept_change={log.core.accepted[-1]!r}"
                if behind
                else "subscribe again: the log was restored to an earlier state",
                context={"path": log.path},
            )

    def _check_may_read(self, subscriber: Subscriber) -> None:
        holder, log = subscriber.holder, self.log
        name = "" if holder is None else f" {holder.name!r}"
        try:
            log.core.check_may_read(
                self._needed(subscriber),
                what=f"continue subscription{name} of log {log.path!r}",
                consumer=None if holder is None else holder.name,
            )
        except SinceViolationError as error:
            error.locate(f"upper={log.domain.render_frontier(log.frontier())}")
            raise

    def _cut(self, interval: Interval) -> Interval:
        """Return the interval, or its first part where its files are many: at a whole time, of one coordinate."""
        if interval.lower.arity > 1:
            return interval
        index = self.log.core.files()
        held = index.may_hold_times(interval.lower, interval.upper)
        if index.sizes[held].sum() <= _CUT_BYTES or not index.known[held].all():
            return interval
        least, sizes = index.min_times[held, 0], index.sizes[held]
        order = np.argsort(least, kind="stable")
        low = interval.lower.elements[0][0]
        beyond = (np.cumsum(sizes[order]) > _CUT_BYTES) & (least[order] > low)
        if not beyond.any():
            return interval
        cut = Antichain.of(int(least[order][beyond][0]))
        return Interval(interval.lower, cut) if cut.less_than_frontier(interval.upper) else interval

    def _keep(self, key: Key, found: IntervalRows) -> None:
        if len(self._subscribers) < 2:
            return
        self._kept[key] = found
        while len(self._kept) > 1 and sum(each.rows.nbytes for each in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)

    def _taken(self, key: Key, found: IntervalRows) -> IntervalRows:
        found.taken += 1
        if found.taken >= len(self._subscribers) and self._kept.get(key) is found:
            del self._kept[key]
        return found

    # The thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Look while somebody waits, and write positions when it is time, until there is no subscription."""
        while True:
            while self._gone:
                self.detach(self._gone.popleft())
            with self._lock:
                if not self._subscribers:
                    self._thread = None
                    return
                waiting, poll_s = self._waiting, min(each.poll_s for each in self._subscribers)
                rest = self._looked_at + poll_s - self._now() if waiting else math.inf
                rest = min(rest, self.positions.due_s(), _GONE_S)
                if rest > 0:
                    self._wake.wait(rest)
            try:
                if self.positions.due_s() <= 0:
                    self._cover()
                    self.positions.write_due()
                if self._waiting:
                    self._look_for_those_who_wait(poll_s)
            except Exception as error:  # noqa: BLE001 - subscriptions that wait raise it, and without the thread they hang
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Let the subscriptions that wait raise an error; where there is none, the next look says what is wrong."""
        with self._lock:
            self._error, waited = error, self._waiting
            self._wake_all()
            if not waited:
                self._wake.wait(_GONE_S)

    def _cover(self) -> None:
        """Let what the unnamed ones retain follow what they were given."""
        with self._lock:
            needed = self._needed_by_unnamed()
        if needed is not None:
            self.positions.cover(needed)

    def _look_for_those_who_wait(self, poll_s: float) -> None:
        # Without the lock: a subscription that asks meanwhile need not wait for a look at a file.
        if self._now() - self._looked_at < poll_s:
            return
        if self._tells_news and not self.log.core.has_news():
            self._looked_at = self._now()
            return
        with self._lock:
            self._look()


def _fits(kept: Interval, wanted: Interval) -> bool:
    """Return whether what is kept may be given: it begins there, and does not go further."""
    return kept.upper.less_equal_frontier(wanted.upper)


_followers: dict[tuple[Hashable, ...], Follower] = {}
_following = threading.Lock()


@atexit.register
def _end_all() -> None:
    """Write what was acknowledged when the process ends, although nobody closed the subscriptions."""
    for follower in list(_followers.values()):
        if follower.is_of_this_process():
            follower.end()


def _begin_as_child() -> None:
    """Forget the followers of the process that was forked: their threads are not there, and a lock may be held."""
    global _following
    _following = threading.Lock()
    _followers.clear()


os.register_at_fork(after_in_child=_begin_as_child)


def follower_of(target: str | Log, storage_options: dict[str, str] | None = None) -> Follower:
    """Return the follower of a log in this process; one that others follow is taken up, where it is still that log.

    Parameters
    ----------
    target : str or Log
        The path; a log is opened again.
    storage_options : dict, optional

    Raises
    ------
    LogMissingError, LogFormatError, StorageError
        As `open_log`.
    """
    if isinstance(target, MemoryLog):
        key: tuple[Hashable, ...] = (os.getpid(), target.core.log_id)
        open_again: Callable[[], Log] = target.another
    else:
        path = target.path if isinstance(target, Log) else target
        options = dict(target.core.storage_options) if isinstance(target, Log) else dict(storage_options or {})
        key = (os.getpid(), identity(path, options), *sorted(options.items()))

        def open_again() -> Log:
            return open_log(path, storage_options=options or None)

    with _following:
        found = _followers.get(key)
        if found is not None and found.is_followed() and found.is_still_there():
            return found
        made = _followers[key] = Follower(open_again(), open_again)
        for old in [other for other, each in _followers.items() if each is not made and not each.is_followed()]:
            del _followers[old]
        return made
