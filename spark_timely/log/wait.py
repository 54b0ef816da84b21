"""Waits until logs are complete up to a time, a token or a cut.

`spark_timely.wait` is `wait`; the command line and SQL wait by `wait_for`. Every wait for something that is looked at
now and then is `wait_until`: peeks, requests to an instance, sockets. What is asked more often than it wants to look,
such as a planner of replays by Spark, has a `Throttle`. A frontier only moves forward, so what was reached once stays
reached.
"""

from __future__ import annotations

import math
import threading
import time as clock
from typing import TYPE_CHECKING, Final

from spark_timely.conf.kinds import seconds_of
from spark_timely.errors import InvalidUsageError, WaitTimeoutError, shown
from spark_timely.log.cut import Cut, open_cut

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from spark_timely.log.log import Log
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import FrontierLike, TimeDomain, TimeLike


# A look costs about a millisecond: less than that is as good as no pause.
_LEAST_POLL_S: Final = 1e-3
# A caller that asks again sooner than this after the answer does nothing but ask: Spark does, every 10 ms as a rule. A
# trigger with an interval of its own comes later.
_PAUSE_S: Final = 0.05
# Between two looks of an idle query where each is a request, which is paid for.
_IDLE_POLL_S: Final = 1.0


def passes(
    domain: TimeDomain, *, time: TimeLike | None = None, frontier: FrontierLike | None = None
) -> Callable[[Antichain], bool]:
    """Return a function that tells whether a log's frontier has come so far.

    Parameters
    ----------
    domain : TimeDomain
        Of the log.
    time : time, optional
        Wanted is that this time is complete.
    frontier : frontier, optional
        Wanted is that all times not beyond it are complete. One of the two is given.

    Raises
    ------
    InvalidUsageError
        If none or both are given, or it is none of the log's times.

    Examples
    --------
    >>> from spark_timely.time.antichain import Antichain
    >>> from spark_timely.time.domain import TimeDomain
    >>> closed = Antichain.of(5)
    >>> passes(TimeDomain(("long",)), time=5)(closed), passes(TimeDomain(("long",)), frontier=[5])(closed)
    (False, True)
    """
    if (time is None) == (frontier is None):
        msg = f"could not wait for a log: found time={shown(time)}, frontier={shown(frontier)}"
        raise InvalidUsageError(
            msg, hint="give the time that shall be complete, or the frontier to be reached: one of them"
        )
    if frontier is not None:
        wanted = domain.parse_frontier(frontier)
        return lambda found: wanted.less_equal_frontier(found)
    at = domain.parse_time(time)
    return lambda found: not found.less_equal(at)


def wait_until(
    look: Callable[[float], bool],
    *,
    timeout_s: float,
    poll_s: float,
    now: Callable[[], float] = clock.monotonic,
    pause: Callable[[float], None] = clock.sleep,
) -> bool:
    """Look now and then until what is waited for is there, or the time is over.

    Parameters
    ----------
    look : callable
        Takes how many seconds are left: 0 or less for the last look. Returns whether it is there.
    timeout_s : float
        0 looks once; infinity waits for ever. The last look comes after it is over.
    poll_s : float
        Seconds between two looks.
    now, pause : callable
        The clock and what waits.

    Returns
    -------
    bool
        Whether it is there.

    Examples
    --------
    >>> wait_until(lambda left_s: left_s > 0, timeout_s=0, poll_s=1)
    False
    """
    deadline = now() + timeout_s
    while True:
        left = deadline - now()
        if look(left):
            return True
        if left <= 0:
            return False
        pause(min(poll_s, left, threading.TIMEOUT_MAX))  # the system cannot count an endless time


class Throttle:
    """Says whether it is time to look again: once an interval, or when there is news.

    With `idle_s` the interval doubles with each look that finds nothing, up to that, and is as before after one that
    finds something. That holds for a caller that does nothing but ask: one that comes back after a pause has worked
    meanwhile, or has a rhythm of its own, and may look if the interval as it was given is over.

    Parameters
    ----------
    every_s : float
        Seconds between two looks, at least.
    idle_s : float, optional
        Seconds up to which the interval grows; it does not grow unless that is more than `every_s`.
    now : callable
        A clock in seconds that never goes back.

    Examples
    --------
    >>> throttle = Throttle(60.0)
    >>> throttle.due()
    True
    >>> throttle.done()
    >>> throttle.due(), throttle.due(lambda: True)
    (False, True)
    """

    __slots__ = ("_asked", "_at", "_every_s", "_idle_s", "_now", "_wait_s")

    def __init__(self, every_s: float, *, idle_s: float = 0.0, now: Callable[[], float] = clock.monotonic) -> None:
        self._every_s = self._wait_s = every_s
        self._idle_s = max(idle_s, every_s)
        self._now = now
        self._at: float | None = None
        self._asked = -math.inf  # when the last question, or look, was over

    @property
    def begun(self) -> bool:
        """Whether there was a look."""
        return self._at is not None

    def due(self, news: Callable[[], bool] | None = None, *, least_s: float = 0.0) -> bool:
        """Return whether to look: at first, then once an interval, earlier where there is news.

        Parameters
        ----------
        news : callable, optional
            Says at no cost whether there is something new; asked only within the interval.
        least_s : float
            Seconds after a look in which nothing is due, whatever is new.
        """
        if self._at is None:
            return True
        asked, self._asked = self._asked, self._now()
        since = self._asked - self._at
        if since < least_s:
            return False
        wait_s = self._wait_s if self._asked - asked < _PAUSE_S else self._every_s
        return since >= wait_s or (news is not None and news())

    def done(self, *, moved: bool = True) -> None:
        """Note a look, and whether it found something."""
        self._at = self._asked = self._now()
        self._wait_s = self._every_s if moved else min(2 * self._wait_s, self._idle_s)


def idle_poll_s(logs: Sequence[Log], /) -> float:
    """Return up to how many seconds the interval between looks grows while none of some logs has news.

    0.0 where a look is no request, and the interval need not grow.
    """
    return 0.0 if all(log.core.storage.local for log in logs) else _IDLE_POLL_S


def wait_for(
    logs: Sequence[Log],
    reached: Callable[[Antichain], bool],
    *,
    timeout_s: float,
    poll_s: float,
    now: Callable[[], float] = clock.monotonic,
    pause: Callable[[float], None] = clock.sleep,
) -> bool:
    """Look at logs until the frontiers of all have come so far, or the time is over.

    Parameters
    ----------
    logs : sequence of Log
    reached : callable
        Whether a frontier has come so far.
    timeout_s : float
        0 looks once; infinity waits for ever. The last look comes after it is over.
    poll_s : float
        Seconds between two looks.
    now, pause : callable
        The clock and what waits.

    Returns
    -------
    bool
        Whether they have.
    """
    waiting = list(logs)

    def look(_: float) -> bool:
        nonlocal waiting
        for log in waiting:
            log.refresh()
        waiting = [log for log in waiting if not reached(log.frontier())]
        return not waiting

    return wait_until(look, timeout_s=timeout_s, poll_s=poll_s, now=now, pause=pause)


def wait(
    target: str | os.PathLike[str] | Log | Cut,
    /,
    *,
    time: TimeLike | None = None,
    frontier: FrontierLike | None = None,
    timeout_s: float | None = 60.0,
    poll_s: float = 1.0,
    storage_options: Mapping[str, str] | None = None,
) -> Antichain:
    """Wait until a time of a log is complete, a frontier is reached, or the logs of a cut have come so far.

    Parameters
    ----------
    target : path, Log or Cut
    time : time, optional
        Wait until this time is complete: the log's frontier has passed it.
    frontier : frontier, optional
        Wait until all times not beyond it are complete: a completion token, such as the frontier of another
        log, or an end offset of a query's ``lastProgress``. ``[]`` waits for the end of the log.
        Of a log one of the two is given, of a cut neither.
    timeout_s : float, optional
        How many seconds to wait: 0 looks once, None waits for ever.
    poll_s : float
        How many seconds to pause between two looks, a thousandth at least.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs.

    Returns
    -------
    Antichain
        The frontier that was found: of a cut the meet of its logs'.

    Raises
    ------
    WaitTimeoutError
        If it was not reached in time.
    InvalidUsageError
        If what to wait for is missing, doubled, or none of the log's times.
    LogMissingError
        If there is no log.
    DataLossError
        If another log is in the place of one of the cut's.

    Notes
    -----
    A complete log has passed every time. Cost of a look: one refresh of the log.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, spark_timely
    >>> log = spark_timely.create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> _ = log.writer(owner="me").advance(5)
    >>> wait(log, time=4)
    Antichain.of(5)
    >>> wait(log, time=5, timeout_s=0)
    Traceback (most recent call last):
    ...
    spark_timely.errors.WaitTimeoutError: [TIMELY_WAIT_TIMEOUT] could not wait for log ...: found frontier=[5] \
after 0 seconds — hint: ...
    """
    from spark_timely.log.log import Log, open_log

    attempt = "could not wait for a log"
    limit_s = seconds_of(attempt, "timeout_s", timeout_s, optional=True)
    pause_s = seconds_of(attempt, "poll_s", poll_s, least=_LEAST_POLL_S)
    if isinstance(target, Cut):
        if time is not None or frontier is not None:
            msg = f"could not wait for a cut: found time={shown(time)}, frontier={shown(frontier)}"
            raise InvalidUsageError(msg, hint="leave them out: a cut has its own frontier")
        logs, reached = open_cut(target, storage_options=storage_options), target.reached_by
        what = f"{len(logs)} logs at a cut of frontier={target.domain.render_frontier(target.frontier)}"
    else:
        log = target if isinstance(target, Log) else open_log(target, storage_options=storage_options)
        logs, reached = [log], passes(log.domain, time=time, frontier=frontier)
        wanted = (
            f"time={shown(log.domain.render_time(log.domain.parse_time(time)))}"
            if frontier is None
            else f"frontier={log.domain.render_frontier(log.domain.parse_frontier(frontier))}"
        )
        what = f"log {log.path!r} to pass {wanted}"
    done = wait_for(logs, reached, timeout_s=limit_s, poll_s=pause_s)
    found = logs[0].frontier()
    for other in logs[1:]:
        found = found.meet(other.frontier())
    if done:
        return found
    shown_frontier = logs[0].domain.render_frontier(found)
    msg = f"could not wait for {what}: found frontier={shown_frontier} after {limit_s:g} seconds"
    raise WaitTimeoutError(
        msg,
        hint="give a longer timeout, or see which stream holds the frontier back (spark-timely stats)",
        frontier=shown_frontier,
    )
