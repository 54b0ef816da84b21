"""The failures that peeks, subscribes and copies wait behind: of what they read, or of what that reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.compute.drive.working import has_lost_session
from spark_timely.errors import OperatorError, described

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.compute.drive.context import Context
    from spark_timely.compute.drive.hosted import Hosted
    from spark_timely.time.antichain import Antichain

__all__ = ["failed_before", "failure_behind"]


def failed_before(
    context: Context, hosted: Mapping[int, Hosted], id_: str, time: tuple[int, ...]
) -> tuple[str, BaseException] | None:
    """Return the export that an export waits for before a time, and why it has failed; None if none has.

    Parameters
    ----------
    context : Context
    hosted : mapping of int to Hosted
        The dataflows that run, by number.
    id_ : str
        The export that waits, which may be the one that has failed.
    time : tuple of int
        What is waited for is that this time is complete.
    """
    if not context.failed:
        return None
    made_by = {each: running for running in context.runs() for each in running.live}
    waiting, seen = [id_], set[str]()
    while waiting:  # one turn per export
        id_ = waiting.pop()
        running = made_by.get(id_)
        if running is None or id_ in seen:
            continue
        seen.add(id_)
        upper = running.uppers.get(id_, running.dataflow.domain.minimum_frontier)
        if not upper.less_equal(time):
            continue  # it has the time
        there = hosted.get(running.number)
        # Where some of several exports have failed, nobody says which: the others continue.
        if running.number in context.failed and (there is None or there.has_failed):
            return id_, context.failed[running.number]
        if there is not None:
            behind = there.behind(upper.join(running.dataflow.as_of))
            waiting += [each.export for each in there.dataflow.imports if each.name in behind and each.export]
    return None


def failure_behind(
    context: Context, hosted: Mapping[int, Hosted], id_: str, frontier: Antichain, attempt: str
) -> OperatorError | None:
    """Return the error for an export that can get no further than a frontier; None where it may.

    Parameters
    ----------
    context : Context
    hosted : mapping of int to Hosted
    id_ : str
    frontier : Antichain
        Up to where it is: it gets further where any of these times becomes complete.
    attempt : str
        ``could not …``, for the error.
    """
    found = None
    for time in frontier.elements:  # one, as a rule
        found = failed_before(context, hosted, id_, time)
        if found is None:
            return None
    if found is None:
        return None
    failed, cause = found
    if has_lost_session(cause):
        return None  # another session continues it, and all that waits for it
    msg = f"{attempt}: found that {failed!r}, which it waits for, has failed: {described(cause)}"
    error = OperatorError(msg, hint=f"see why({failed!r}) of the instance, and ask again when it continues")
    error.__cause__ = cause
    return error
