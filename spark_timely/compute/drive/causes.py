"""The causes for which an export of the instance does not advance: the imports that it waits for, and what failed.

They are followed from import to import to the first one. Peeks, subscribes and copies ask whether what they wait for
can still come. `Handle.why`, and the verb ``instance DIR why``, show people what `why` finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.compute.drive.runtime import has_lost_session
from spark_timely.errors import OperatorError, described

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_timely.compute.drive.worker import Worker
    from spark_timely.time.antichain import Antichain

__all__ = ["failed_before", "failure_behind", "failure_of", "why"]


def failed_before(worker: Worker, id_: str, time: tuple[int, ...]) -> tuple[str, BaseException] | None:
    """Return the export that an export waits for before a time, and why it has failed; None if none has.

    Parameters
    ----------
    worker : Worker
    id_ : str
        The export that waits, which may be the one that has failed.
    time : tuple of int
        What is waited for is that this time is complete.
    """
    state = worker.state
    if not state.failed:
        return None
    made_by = {each: running for running in state.runs() for each in running.live}
    waiting, seen = [id_], set[str]()
    while waiting:
        id_ = waiting.pop()
        running = made_by.get(id_)
        if running is None or id_ in seen:
            continue
        seen.add(id_)
        upper = running.uppers.get(id_, running.dataflow.domain.minimum_frontier)
        if not upper.less_equal(time):
            continue  # it has the time
        runner = worker.runner(running.number)
        # Where some of several exports have failed, nobody says which: the others continue.
        if running.number in state.failed and (runner is None or runner.has_failed):
            return id_, state.failed[running.number]
        if runner is not None:
            behind = runner.behind(upper.join(running.dataflow.as_of))
            waiting += [each.export for each in runner.dataflow.imports if each.name in behind and each.export]
    return None


def failure_behind(worker: Worker, id_: str, frontier: Antichain, attempt: str) -> OperatorError | None:
    """Return the error for an export that can get no further than a frontier; None where it may.

    Parameters
    ----------
    worker : Worker
    id_ : str
    frontier : Antichain
        Up to where it is: it gets further where any of these times becomes complete.
    attempt : str
        ``could not …``, for the error.
    """
    found = None
    for time in frontier.elements:  # one, as a rule
        found = failed_before(worker, id_, time)
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


def failure_of(worker: Worker, id_: str, attempt: str) -> OperatorError | None:
    """Return the error of what needs an export that has failed before it had any time; None if it has not."""
    with worker.state.lock:
        return failure_behind(worker, id_, worker.state.domain_of(id_).minimum_frontier, attempt)


def why(worker: Worker, id_: str) -> str:
    """Say what a collection waits for, a line for each from it to the first cause."""
    with worker.state.lock:
        return "\n".join(_lines(worker, id_, set()))


def _lines(worker: Worker, id_: str, seen: set[str]) -> Iterator[str]:
    """Give the lines of a collection, and behind the line of each import that is behind those of its export."""
    if id_ in seen:
        return
    seen.add(id_)
    state = worker.state
    view = state.instance.collection(id_)
    domain = state.domain_of(id_)
    upper = domain.minimum_frontier if view.upper is None else view.upper
    yield f"{id_}: upper={domain.render_frontier(upper)}, as_of={domain.render_frontier(view.as_of)}"
    error, running, runner = state.errors.get(view.run), state.instance.run(view.run), worker.runner(view.run)
    if error:
        yield f"{id_}: it has failed: {error}"
    elif running is None:
        return
    elif not running.started:
        others = state.instance.working()
        turn = f"its turn to hydrate, after {', '.join(others[:8])}"
        yield f"{id_}: it waits " + (f"for {turn}" if others else "to be scheduled, or for its turn to hydrate")
    elif runner is None:
        yield f"{id_}: it is about to begin"
    else:
        # Before its as_of is complete it gives nothing.
        behind = runner.behind(upper.join(view.as_of))
        if not behind:
            yield f"{id_}: it has work to do"
        imports = {each.name: each for each in runner.dataflow.imports}
        for name, frontier in behind.items():
            line = f"{id_}: import {name!r} is at {domain.render_frontier(frontier)}"
            export = imports[name].export
            if export is None:
                yield f"{line}: nothing more is complete in log {imports[name].path!r}"
            else:
                yield line
                yield from _lines(worker, export, seen)
