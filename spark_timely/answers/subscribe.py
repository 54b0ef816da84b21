"""Subscribe to a log: its contents at a time, then every change, as the times become complete.

This is `spark_timely.subscribe` of the public API; the command line and compute instances use it too. A `Subscription`
asks the follower of its log (`follow`) for rows. Which times come next is decided in `batches`.

Invariants
----------
1. What is given is final: nothing of a time that is still open, nothing twice, nothing left out; or there is an error.
2. The rows given up to a frontier, summed up, are the contents there, in whatever batches they come. This is of a
   subscription that began with the contents.
3. A position is a frontier of the log: it means the same after a restart, in another process, and after compaction.
"""

from __future__ import annotations

import os
import time as clock
import weakref
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.answers.batches import Batch, Course, Progress, course_of, course_resumed
from spark_timely.answers.envelopes import row_form
from spark_timely.answers.follow import Subscriber, follower_of
from spark_timely.conf.kinds import check_text, check_whole, seconds_of, size_of
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    ResultTooLargeError,
    RolledBackError,
    SinceViolationError,
    shown,
)
from spark_timely.log.cut import Cut
from spark_timely.log.log import Log
from spark_timely.log.machine.since import may_read, needed_by_changes
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.timestamp import choose_time, input_of
from spark_timely.time.text import parse_duration

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from spark_timely.answers.envelopes import EnvelopeName
    from spark_timely.answers.follow import Follower
    from spark_timely.answers.plan import OrderLike
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import FrontierLike, TimeDomain, TimeLike

__all__ = ["Batch", "Subscription", "subscribe"]


class Subscription:
    """An iterator of batches, each with all updates of an interval of times. Made by `subscribe`.

    For one thread: several threads have several subscriptions, which share what is read.

    Parameters
    ----------
    follower : Follower
    subscriber : Subscriber
    position : Antichain or None
    max_bytes : int or None

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.string())]), minimum=(0,), kind="collection")
    >>> rows = pa.table({"_time": [3, 4], "_diff": [1, 1], "v": ["a", "b"]})
    >>> _ = log.writer(owner="me").append(rows, advance_to=5)
    >>> with subscribe(log, as_of=3, up_to=9) as subscription:
    ...     first = next(subscription)
    ...     second = subscription.fetch()
    >>> first.upper, first.rows.to_pylist()
    (Antichain.of(4), [{'_time': 3, '_diff': 1, 'v': 'a'}])
    >>> second.to_pylist(), subscription.position
    ([{'_time': 4, '_diff': 1, 'v': 'b'}], Antichain.of(5))
    """

    def __init__(
        self, follower: Follower, subscriber: Subscriber, *, position: Antichain | None, max_bytes: int | None
    ) -> None:
        self._follower, self._subscriber = follower, subscriber
        self._position, self._max_bytes = position, max_bytes
        self._acknowledged = subscriber.progress.course.start
        self._is_first = True
        # What `fetch` has not given of a batch yet.
        self._rest: Batch | None = None
        self._format = follower.log.core.format
        self._finalizer = weakref.finalize(self, follower.let_go, subscriber)
        if subscriber.progress.has_ended:
            self.close()

    def __repr__(self) -> str:
        """Return the log and how far it was given."""
        at = "nothing" if self._position is None else self.domain.show_frontier(self._position)
        closed = ", closed" if self._subscriber.closed else ""
        return f"Subscription({shown(self._follower.log.path)}, position={at}{closed})"

    # What it is ----------------------------------------------------------------------------------

    @property
    def domain(self) -> TimeDomain:
        """Types of the times: ``domain.frontier_to_json(position)`` is how to store a position as JSON."""
        return self._format.domain

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that come next. A log to which columns are added has them from then on."""
        return self._subscriber.form.schema(self._format)

    @property
    def as_of(self) -> object:
        """The time that it is as of, as people write it; of one that is resumed the time before the progress."""
        return self.domain.render_time(self._subscriber.progress.course.origin)

    @property
    def name(self) -> str | None:
        """The name under which its position is retained; None if it has none."""
        holder = self._subscriber.holder
        return None if holder is None else holder.name

    @property
    def position(self) -> Antichain | None:
        """The position to store together with the rows that were given, for `resume_from`; None before the first batch.

        Times that are not beyond it are complete, and all their rows were given. It moves with the last row of a batch.
        """
        return self._position

    @property
    def cut(self) -> Cut | None:
        """The position, and which history of which log it is of: ``str(cut)`` is JSON, for `resume_from`.

        A log that was made again, or put back to an earlier state, is refused by it: a position alone cannot tell.
        """
        return None if self._position is None else self.cut_at(self._position)

    def cut_at(self, position: Antichain, /) -> Cut:
        """Return the cut of a position that this subscription had: of one who stores rows later than they are given."""
        return self._follower.cut_at(position)

    @property
    def frontier(self) -> Antichain:
        """The frontier reached; beyond the position where an interval was too large to be given."""
        return self._subscriber.progress.reached

    # Batches -------------------------------------------------------------------------------------

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, as soon as there is one; end at `up_to`, with a complete log, and when closed."""
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self, *, timeout_s: float | None = None) -> Batch | None:
        """Return the next batch; None where the time is over, or the subscription has ended.

        What `fetch` has left of a batch comes first, under the bounds of the whole of it.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait; 0 does not wait. As long as it takes unless given.
        """
        attempt = f"could not read a batch of log {self._follower.log.path!r}"
        wait_s = seconds_of(attempt, "timeout_s", timeout_s, optional=True)
        batch = self._rest or self._next(wait_s)
        if batch is not None:
            self._give(batch, None)
        return batch

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more: it came to its end, or was closed."""
        return self._rest is None and (self._subscriber.closed or self._subscriber.progress.has_ended)

    def fetch(self, n: int | None = None, *, timeout_s: float | None = None) -> pa.Table:
        """Return rows: wait for the first one, then take what is there.

        Parameters
        ----------
        n : int, optional
            How many rows, at most; all that are there unless given. What is left of a batch comes with the next call.
        timeout_s : float, optional
            How long to wait for the first row; 0 does not wait. As long as it takes unless given.

        Returns
        -------
        pyarrow.Table
            Without rows where the time is over, or the subscription has ended.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.string())]), minimum=(0,))
        >>> with subscribe(log, as_of=0) as subscription:
        ...     subscription.fetch(timeout_s=0).num_rows
        0
        """
        attempt = f"could not fetch from log {self._follower.log.path!r}"
        check_whole(attempt, "n", n, least=0, optional=True)
        left_s = seconds_of(attempt, "timeout_s", timeout_s, optional=True)
        deadline, missing = clock.monotonic() + left_s, n
        found: list[pa.Table] = []
        while missing is None or missing > 0:
            wait_s = 0.0 if found else max(deadline - clock.monotonic(), 0.0)
            batch = self._rest or self._next(wait_s)
            if batch is None:
                break
            rows = batch.rows if missing is None else batch.rows.slice(0, min(missing, batch.rows.num_rows))
            self._give(batch, rows.num_rows)
            if rows.num_rows:
                found.append(rows)
                missing = None if missing is None else missing - rows.num_rows
        if not found:
            return self.schema.empty_table()
        return pa.concat_tables(found, promote_options="default")

    def _give(self, batch: Batch, n_rows: int | None) -> None:
        if n_rows is not None and n_rows < batch.rows.num_rows:
            self._rest = batch._replace(rows=batch.rows.slice(n_rows))
            return
        self._rest, self._position = None, batch.upper

    def _next(self, timeout_s: float) -> Batch | None:
        subscriber, follower = self._subscriber, self._follower
        progress = subscriber.progress
        updates = follower.next_updates(subscriber, timeout_s)
        if updates is None:
            if progress.has_ended:
                self.close()
            return None
        self._format = updates.log_format
        rows, upper = updates.in_form(subscriber.form), updates.interval.upper
        if self._is_first and subscriber.form.progress:
            course = progress.course
            before = needed_by_changes(course.start, course.origin)
            rows = pa.concat_tables([subscriber.form.progress_rows(before, self._format), rows])
        self._is_first = False
        lower = progress.take(upper)
        if progress.has_ended:
            self.close()
        size = 0 if self._max_bytes is None else updates.size_in_form(subscriber.form)
        if self._max_bytes is not None and size > self._max_bytes:
            self.close()
            said = [self.domain.render_frontier(bound) for bound in (lower, upper)]
            msg = (
                f"could not continue subscription to log {follower.log.path!r}: found {size} bytes of updates"
                f" from {said[0]} to {said[1]}, max_bytes={self._max_bytes}"
            )
            raise ResultTooLargeError(
                msg,
                hint="resume from the position with a larger max_bytes: it was given up to there",
                size_bytes=size,
                limit_bytes=self._max_bytes,
                limit_name="max_bytes",
            )
        return Batch(lower, upper, rows)

    # Positions -----------------------------------------------------------------------------------

    def acknowledge(self, progress: FrontierLike, /) -> None:
        """Say that all rows at times not beyond a frontier are stored: the log need not keep them for this name.

        Written into the log within ten seconds, with the positions of all names of this process, and when closed. What
        is not written yet when the process dies is retained longer, and nothing else: a consumer resumes from what it
        has stored itself.

        Parameters
        ----------
        progress : frontier
            The `position`, or an earlier one.

        Raises
        ------
        InvalidUsageError
            If the subscription has no name, or has not given as much.
        OwnershipError
            If another subscription has the name since.
        """
        subscriber, log = self._subscriber, self._follower.log
        attempt = f"could not acknowledge progress of log {log.path!r}"
        if subscriber.holder is None:
            msg = f"{attempt}: found a subscription without a name"
            raise InvalidUsageError(msg, hint="subscribe with name=…: a position is retained under a name")
        wanted = self.domain.parse_frontier(progress)
        if self._position is None or not wanted.less_equal_frontier(self._position):
            given = "nothing" if self._position is None else self.domain.render_frontier(self._position)
            msg = f"{attempt}: found progress={self.domain.render_frontier(wanted)}, given was {given}"
            raise InvalidUsageError(msg, hint="acknowledge the position of the subscription, or an earlier one")
        if not subscriber.closed:
            self._follower.look_now(subscriber)
        self._follower.positions.check(subscriber.holder)
        course = subscriber.progress.course
        reached = course.moved(wanted)
        if self._acknowledged.less_equal_frontier(reached):
            self._acknowledged = reached
            self._follower.positions.move(subscriber.holder, course.needed(log.kind, reached))
        if subscriber.closed:
            self._follower.positions.end(subscriber.holder)
            self._follower.positions.check(subscriber.holder)

    def close(self) -> None:
        """End it; write what was acknowledged. What a name retains stays until it expires. May be called again."""
        if self._finalizer.detach() is not None:
            self._follower.detach(self._subscriber)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


def subscribe(
    target: str | os.PathLike[str] | Log,
    /,
    *,
    as_of: TimeLike | None = None,
    as_of_at_least: TimeLike | None = None,
    up_to: TimeLike | None = None,
    snapshot: bool = True,
    forgotten: bool = False,
    progress: bool = False,
    envelope: EnvelopeName | None = None,
    key: str | Sequence[str] | None = None,
    order_by: OrderLike | None = None,
    name: str | None = None,
    expiry: str | dt.timedelta = "7 days",
    resume_from: FrontierLike | Cut | None = None,
    accept_change: str | None = None,
    max_bytes: int | str | None = None,
    poll_s: float | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Subscription:
    """Subscribe to a log: its contents at a time, then each change, as times become complete.

    Messages of a stream are rows that come: their diff is 1.

    Parameters
    ----------
    target : path or Log
    as_of : time, optional
        The first time, inclusive: what was before stands at it. It may lie ahead. The newest that is complete unless
        given.
    as_of_at_least : time, optional
        The earliest time that can be read, but not before this one, in place of `as_of`.
    up_to : time, optional
        Where it ends, exclusive.
    snapshot : bool
        Whether the contents at `as_of` come first, all at that time; else only what changes later.
    forgotten : bool
        Whether to begin with the contents of a stream although it has forgotten messages: without those.
    progress : bool
        Whether there are progress rows: their `_progressed` is true, their time says that earlier ones are complete,
        their other columns are null. The first row is one at `as_of`, the last of each batch are those of its upper.
    envelope : {"upsert", "debezium"}, optional
        One row for each key and time at which it changed, in place of updates: `upsert` has the key, and the values
        unless the key is gone; `debezium` has the values before and after. What happened is a word in `_state`:
        ``upsert``, ``delete``, ``insert`` (debezium alone), or ``key_violation`` where the changes of one time give the
        key several rows, or take several. What a key had before is not looked at: of a collection that is not keyed by
        it, ask for updates.
    key : str or sequence of str, optional
        Columns of the envelope's key; those that the log was created with unless given.
    order_by : str or sequence, optional
        Order of the rows of one time: columns, ``_diff`` among them, or ``(column, "asc" or "desc", "first" or
        "last")`` with the place of the nulls. Not with an envelope.
    name : str, optional
        A name under which the log retains the position that was acknowledged last, through any compaction. A later
        subscription of that name takes it over, in this process or another.
    expiry : str or timedelta
        How long the log retains it without a sign of life, such as ``"7 days"``.
    resume_from : Cut, text or frontier, optional
        What was stored with the rows that were given: continue there. `Subscription.cut`, or its text, names the log
        and its history too; a `position` alone is believed, with a name only if the log knows that. Of times of several
        coordinates `as_of` has to be the one of the first subscription.
    accept_change : str, optional
        The token of the newest change by another program that was accepted in the log, which a cut from before is
        refused for: continue behind it, with what was given.
    max_bytes : int or str, optional
        Greatest size of the rows of one interval. A larger one ends the subscription with an error.
    poll_s : float, optional
        Seconds between two looks while it waits: 0.02 on a local disk unless given, else 1. 0 looks again and again.
        In a store a look is a request: there it is the least time between two looks, whether or not it waits.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs.

    Returns
    -------
    Subscription
        To be iterated, or fetched from; to be closed, as a context manager does.

    Raises
    ------
    SinceViolationError
        If the log has forgotten what is asked for, now or while it waits. Named if the name has expired.
    InvalidBoundsError
        If `up_to` is before `as_of`.
    InvalidUsageError, SchemaMismatchError
        If the arguments do not fit each other, or the log.
    RolledBackError
        If the log has not come as far as `resume_from`.
    DataLossError
        If `resume_from` is a cut of another log, or of another history of it; or a position, and the log does not know
        the name.
    OwnershipError
        If a query or a program retains the log under the name.
    LogMissingError, LogFormatError, StorageError
        If there is no log, or it cannot be read, or the name cannot be written into it.

    Notes
    -----
    While it lives, what it still has to give is retained in the log: with a name from what was acknowledged last,
    without one from what was given, by a retainer of this process that expires after ten minutes. Where the log
    cannot be written, only the first is refused: the other is read on, and ends with an error where compaction passes
    it.

    All subscriptions of a process to one log share one follower: a look, and what is read and summed, are paid once.
    The first subscription without a name is one commit of the log, and so is the end of the last one; a name is one
    commit, and one in ten seconds while it moves.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> schema = pa.schema([("item", pa.string()), ("price", pa.int64())])
    >>> log = MemoryLog.create(schema, minimum=(0,), kind="collection")
    >>> times, diffs, items = [1, 2, 2, 3], [1, -1, 1, -1], ["tea"] * 4
    >>> rows = pa.table({"_time": times, "_diff": diffs, "item": items, "price": [5, 5, 6, 6]})
    >>> _ = log.writer(owner="me").append(rows, advance_to=4)
    >>> with subscribe(log, as_of=1, up_to=4, envelope="debezium", key="item") as changes:
    ...     for row in changes.fetch().to_pylist():
    ...         print(*row.values())
    1 insert tea None 5
    2 upsert tea 5 6
    3 delete tea 6 None
    """
    path = target.path if isinstance(target, Log) else _path(target)
    attempt = f"could not subscribe to log {path!r}"
    for said, value in (("snapshot", snapshot), ("forgotten", forgotten)):
        if not isinstance(value, bool):
            msg = f"{attempt}: found {said}={shown(value)}"
            raise InvalidUsageError(msg, hint="give True or False")
    check_text(attempt, "name", name, optional=True)
    if name is not None and not name.strip():
        msg = f"{attempt}: found name={shown(name)}"
        raise InvalidUsageError(msg, hint="give it a name, or leave it out")
    if (
        sum(value is not None for value in (as_of, as_of_at_least))
        + (resume_from is not None and as_of_at_least is not None)
        > 1
    ):
        given = {"as_of": as_of, "as_of_at_least": as_of_at_least, "resume_from": resume_from}
        msg = f"{attempt}: found {', '.join(f'{n}={shown(v)}' for n, v in given.items() if v is not None)}"
        raise InvalidUsageError(msg, hint="give one of them: where it begins")
    limit = None if max_bytes is None else size_of(attempt, "max_bytes", max_bytes)
    kept = _expiry(attempt, expiry)
    poll = None if poll_s is None else seconds_of(attempt, "poll_s", poll_s)
    options = None if isinstance(target, Log) else dict(checked_options(storage_options, path) or {})
    follower = follower_of(target if isinstance(target, Log) else path, options)

    def make(log: Log) -> Subscriber:
        form = row_form(attempt, log.core.format, progress=progress, envelope=envelope, key=key, order_by=order_by)
        end = None if up_to is None else log.domain.parse_time(up_to)
        if resume_from is not None:
            course = _resumed(attempt, log, resume_from, as_of, end, name, accept_change)
        else:
            course = _begun(attempt, log, as_of, as_of_at_least, end, snapshot=snapshot)
        _check_since(
            attempt, log, course, name, snapshot=snapshot, forgotten=forgotten, resumed=resume_from is not None
        )
        gone = forgotten and log.kind == "stream" and log.since() != log.domain.minimum_frontier
        every_s = follower.poll_s if poll is None else poll
        return Subscriber(Progress(course), form, every_s, log.core.accepted, forgotten=gone)

    subscriber = follower.attach(make, name=name, expiry=kept)
    position = None if resume_from is None else subscriber.progress.course.start
    return Subscription(follower, subscriber, position=position, max_bytes=limit)


def _path(target: object) -> str:
    if not isinstance(target, str | os.PathLike):
        msg = f"could not subscribe: found target={shown(target)}"
        raise InvalidUsageError(msg, hint="give the path of a log, or a log that is open")
    return normal_path(target)


def _expiry(attempt: str, value: str | dt.timedelta) -> str:
    try:
        found = parse_duration(value)
    except ValueError as error:
        msg = f"{attempt}: found expiry={shown(value)}"
        raise InvalidUsageError(msg, hint=str(error)) from error
    if not found.amount:
        msg = f"{attempt}: found expiry={shown(value)}"
        raise InvalidUsageError(msg, hint="give a length of time, such as '7 days'")
    return found.text


def _begun(
    attempt: str,
    log: Log,
    as_of: TimeLike | None,
    as_of_at_least: TimeLike | None,
    up_to: tuple[int, ...] | None,
    *,
    snapshot: bool,
) -> Course:
    """Return the course of one that begins: at a time that was given, or one that is chosen."""
    domain = log.domain
    if as_of is not None:
        time = domain.parse_time(as_of)
        if not domain.minimum_frontier.less_equal(time):
            msg = f"{attempt} as of {domain.render_time(time)}: found a log that begins at"
            msg = f"{msg} {domain.render_time(domain.minimum)}"
            raise InvalidUsageError(msg, hint="give a time that is not before its minimum")
    else:
        found = input_of(log.path, log)
        if as_of_at_least is not None and log.kind == "stream" and not snapshot and domain.arity == 1:
            # Messages at since are there: what comes after the time before it can be given.
            least, since = domain.parse_time(as_of_at_least)[0], log.since().elements[0][0]
            time = (max(least, since - 1, domain.minimum[0]),)
        else:
            time = choose_time(domain, [found], as_of_at_least=as_of_at_least).time
    return course_of(domain.minimum, time, snapshot=snapshot, up_to=up_to, domain=domain)


def _resumed(
    attempt: str,
    log: Log,
    resume_from: FrontierLike | Cut,
    as_of: TimeLike | None,
    up_to: tuple[int, ...] | None,
    name: str | None,
    accept: str | None,
) -> Course:
    """Return the course of one that continues another."""
    domain = log.domain
    if isinstance(resume_from, str) and resume_from.lstrip().startswith("{"):
        resume_from = Cut.from_json(resume_from)
    if isinstance(resume_from, Cut):
        resume_from.check_log(log, accept=accept)
        progress = resume_from.frontier
        said = domain.render_frontier(progress)
    else:
        progress = domain.parse_frontier(resume_from)
        said = domain.render_frontier(progress)
        if name is not None and not progress.is_empty and name not in log.retainers():
            msg = f"{attempt} from {said}: found no position of name {shown(name)} in it"
            raise DataLossError(
                msg,
                hint="resume from the cut of that subscription, if it was stored; else begin again, with as_of: the"
                " log was made again or put back, or the name expired, or is new",
                context={"path": log.path, "name": name},
            )
    if not domain.minimum_frontier.less_equal_frontier(progress):
        msg = f"{attempt} from {said}: found a log that begins at {domain.render_time(domain.minimum)}"
        raise InvalidUsageError(msg, hint="give the position of an earlier subscription to this log")
    if domain.arity > 1 and as_of is None:
        msg = f"{attempt} from {said}: found times of {domain.arity} coordinates and no as_of"
        raise InvalidUsageError(
            msg, hint="give the as_of of the first subscription too: in one coordinate times may be before it"
        )
    at = None if as_of is None else domain.parse_time(as_of)
    course = course_resumed(domain.minimum, progress, as_of=at, up_to=up_to, domain=domain)
    upper = log.frontier()
    if not course.start.less_equal_frontier(course.moved(upper)):
        msg = f"{attempt} from {said}: found upper={domain.render_frontier(upper)}"
        raise RolledBackError(
            msg,
            hint="put the log back that the position is of: this one was restored to an earlier state, or is another",
            context={"path": log.path},
        )
    return course


def _check_since(
    attempt: str, log: Log, course: Course, name: str | None, *, snapshot: bool, forgotten: bool, resumed: bool
) -> None:
    """Refuse what the log has forgotten, at once; the error names since and upper."""
    since, domain = log.since(), log.domain
    needed = course.needed(log.kind, course.start)
    upper = domain.render_frontier(log.frontier())
    if may_read(since, needed):
        return
    if log.kind == "stream" and snapshot and not resumed:
        later = course_of(course.minimum, course.origin, snapshot=False, domain=domain)
        if may_read(since, later.needed(log.kind, later.start)):
            if forgotten:
                return
            msg = (
                f"{attempt} with its contents as of {domain.render_time(course.origin)}: found"
                f" since={domain.render_frontier(since)}, upper={upper}, so it has forgotten messages"
            )
            raise SinceViolationError(
                msg,
                hint="give forgotten=True to go without those, or snapshot=False to begin with what comes later",
                as_of=domain.render_time(course.origin),
                since=domain.render_frontier(since),
                context={"path": log.path},
            )
    what = "subscribe to" if name is None or not resumed else f"resume subscription {name!r} of"
    where = f"from {domain.render_frontier(course.start)}" if resumed else f"as of {domain.render_time(course.origin)}"
    try:
        log.core.check_may_read(needed, what=f"{what} log {log.path!r} {where}", consumer=name)
    except SinceViolationError as error:
        error.locate(f"upper={upper}")
        raise
