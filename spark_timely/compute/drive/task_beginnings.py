"""The beginning of a continual task: the as_of that its definition says, its logs decide, or its output has recorded.

For all other dataflows `spark_timely.compute.as_of` chooses. The as_of of a task is its own: it is recorded in the
first commit of its output, which is made as soon as the task runs and before any of its body does. What its dataflow
may forget later does not move it. Asked for when a task is described (`description`), run (`runners`) and resumed after
a restart (`recovery`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from spark_timely.compute.as_of import stepped_back
from spark_timely.spark.base.beginnings import forgotten_until, readable_from, written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.compute.plan import SqlTask
    from spark_timely.log.log import Log
    from spark_timely.time.domain import TimeDomain

__all__ = ["awaited", "beginning_of", "begins_at", "floor_of", "recorded_beginning", "settled"]


def begins_at(node: SqlTask, domain: TimeDomain) -> int | None:
    """Return the time at which a task is said to begin; None where the logs decide."""
    if node.as_of in ("earliest", "latest"):
        return None
    (at,) = domain.parse_time(node.as_of)
    return at


def recorded_beginning(log: Log, /) -> Antichain | None:
    """Return where the task that writes a log has recorded that it begins, as long as the log has not passed that.

    None where it has passed it, or nothing is recorded: a task that began before all times skips nothing.

    Parameters
    ----------
    log : Log
        Of the output.
    """
    state = log.core.stream("main")
    note = None if state is None or state.note.output is None else state.note.output.task
    if note is None or note.as_of is None or not log.frontier().less_equal(note.as_of):
        return None
    return Antichain.of(note.as_of)


def awaited(node: SqlTask, logs: Mapping[str, Log], /) -> list[Log]:
    """Return the logs that a task waits for: all but those that it reads as they are by then."""
    return [logs[name] for name, how in node.reads if how != "newest"]


def floor_of(
    node: SqlTask, logs: Mapping[str, Log], unwritten: Mapping[str, Antichain], domain: TimeDomain
) -> Antichain:
    """Return the least time as of which all logs that a task waits for can be read."""
    found = [unwritten[name] for name, how in node.reads if how != "newest" and name in unwritten]
    return reduce(Antichain.join, found, readable_from(awaited(node, logs), domain.minimum_frontier))


def settled(
    node: SqlTask, logs: Mapping[str, Log], domain: TimeDomain, /, *, unwritten: Mapping[str, Antichain]
) -> SqlTask:
    """Return a task that says when it begins, as far as that is known by now and the logs do not say it.

    Parameters
    ----------
    node : SqlTask
    logs : mapping of str to Log
        Imports, by name.
    domain : TimeDomain
    unwritten : mapping of str to Antichain
        As_of of the dataflows that write imports which are empty yet, by the import's name: rule 1 of
        `spark_timely.compute.as_of`.

    Returns
    -------
    SqlTask
        One of ``latest`` begins at the last time that is complete by now. It stays as it is where no time is, or all
        are: the engine finds out.
    """
    if node.as_of not in ("earliest", "latest"):
        return node
    waits_for, floor = awaited(node, logs), floor_of(node, logs, unwritten, domain)
    complete = reduce(Antichain.meet, (log.frontier() for log in waits_for))
    if node.as_of == "latest" and not complete.is_empty and not complete.less_equal(domain.minimum):
        floor = floor.join(stepped_back(complete, domain))
    elif floor == reduce(Antichain.join, filter(None, map(forgotten_until, waits_for)), domain.minimum_frontier):
        return node
    begins: Any = domain.time_to_json(floor.elements[0])
    return replace(node, as_of=begins)


def beginning_of(node: SqlTask, logs: Mapping[str, Log], output: Log | None, domain: TimeDomain, /) -> Antichain:
    """Return from when on the output of a task is right, by what is known before it begins: its dataflow's as_of.

    Parameters
    ----------
    node : SqlTask
        As `settled` gave it.
    logs : mapping of str to Log
        Imports, by name.
    output : Log or None
        None where it is not there yet.
    domain : TimeDomain

    Returns
    -------
    Antichain
        What was recorded, as long as the output has not passed it (rule 2 of `spark_timely.compute.as_of`); then the
        time before its upper. Of a task that has not begun, the time that it is to begin at.
    """
    recorded = None if output is None else recorded_beginning(output)
    if recorded is not None:
        return recorded
    upper = None if output is None else written_up_to(output)
    if upper is not None:
        return domain.minimum_frontier if upper.is_empty else stepped_back(upper, domain)
    at = begins_at(node, domain)
    return floor_of(node, logs, {}, domain) if at is None else Antichain.of(at)
