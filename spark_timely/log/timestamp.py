"""The timestamp at which several collections answer together: chosen from their frontiers, and explained.

Peeks, copies, SQL over several logs, subscriptions and the command line ask for it: `explain_timestamp` opens the logs
and says which time it is and why (`TimestampExplanation`); `choose_time` decides that from an `Input` of each log.
(What a timestamp is, and its types, is in `spark_timely.time`.)

Invariants
----------
1. The time is chosen from the frontiers of the inputs alone, `since` and `upper` of each, never from their files. There
   is one exception: where all of them are complete, no frontier bounds the time. Then it is the last time of any row,
   for every later one gives the same.
2. An input answers at a time that is at or beyond its since, and that its upper has passed. A chosen time is at or
   beyond every since; where some upper has not passed it yet, it has to be waited for.
3. Times are compared only where they mean the same: of the same types, and not the numbers of micro-batches of
   different queries.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from spark_timely.errors import InvalidUsageError, NotBeyondError, SinceViolationError, shown
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import own_options
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

if TYPE_CHECKING:
    from spark_timely.time.domain import TimeLike

__all__ = [
    "Input",
    "Targets",
    "TimestampExplanation",
    "check_complete",
    "check_since",
    "choose_time",
    "domain_of",
    "explain_timestamp",
    "frontier_after",
    "input_of",
    "newest_complete",
    "numbered_by",
    "opened_targets",
]

Time: TypeAlias = "tuple[int, ...]"
Targets: TypeAlias = (
    "str | os.PathLike[str] | Log | Iterable[str | os.PathLike[str] | Log] | Mapping[str, str | os.PathLike[str] | Log]"
)
Why: TypeAlias = Literal["as_of", "as_of_at_least", "newest complete", "since", "the end"]

_WHY = {
    "as_of": "as asked for",
    "as_of_at_least": "the first one that can be read, not before the one asked for",
    "newest complete": "the newest that is complete in all inputs",
    "since": "the first one that all inputs can be read at; it is not complete yet",
    "the end": "all inputs are complete: nothing changes from it on",
}


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a choice: the frontiers between which it answers.

    Attributes
    ----------
    name : str
        As it was named; its path where it has no name.
    path : str
    since : Antichain
        From where it can be read, inclusive.
    upper : Antichain
        Times not beyond it are complete; empty where all are.
    last : tuple of int or None
        A time from which on nothing changes, of an input that is complete; None of all others.
    numbered_by : str
        The queries of whose micro-batches its times are the numbers; nothing where they are not.
    """

    name: str
    path: str
    since: Antichain
    upper: Antichain
    last: Time | None = None
    numbered_by: str = ""

    def answers_at(self, time: Time, /) -> bool:
        """Whether it can be read at a time: since ≤ time < upper.

        Examples
        --------
        >>> one = Input("orders", "/orders", Antichain.of(3), Antichain.of(7))
        >>> one.answers_at((2,)), one.answers_at((3,)), one.answers_at((7,))
        (False, True, False)
        """
        return self.since.less_equal(time) and not self.upper.less_equal(time)


@dataclass(frozen=True, slots=True, repr=False)
class TimestampExplanation:
    """The time at which some collections answer together, and its reasons. Made by `explain_timestamp`.

    ``print`` shows it for people, `to_dict` gives it as plain values.

    Attributes
    ----------
    domain : TimeDomain
        Types of the inputs' times.
    inputs : tuple of Input
    time : tuple of int
        The time that is chosen.
    why : str
        What it follows from: ``"as_of"``, ``"as_of_at_least"``, ``"newest complete"``, ``"since"`` or ``"the end"``.
    newest : tuple of int or None
        The largest time not in advance of every upper; None where no time is complete, or none is the largest.
    since : Antichain
        From where all inputs can be read: the join of their sinces.
    upper : Antichain
        How far all inputs are complete: the meet of their uppers.
    """

    domain: TimeDomain
    inputs: tuple[Input, ...]
    time: Time
    why: Why
    newest: Time | None
    since: Antichain
    upper: Antichain

    @property
    def at_once(self) -> bool:
        """Whether every input can answer at the time now: since ≤ time < upper."""
        return all(each.answers_at(self.time) for each in self.inputs)

    def waits_for(self) -> tuple[Input, ...]:
        """Return the inputs whose upper has not passed the time yet."""
        return tuple(each for each in self.inputs if each.upper.less_equal(self.time))

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values; times as `TimeDomain.time_to_json` writes them."""
        domain = self.domain
        return {
            "time": domain.time_to_json(self.time),
            "why": self.why,
            "at_once": self.at_once,
            "newest": None if self.newest is None else domain.time_to_json(self.newest),
            "since": domain.frontier_to_json(self.since),
            "upper": domain.frontier_to_json(self.upper),
            "times": [kind.value for kind in domain.types],
            "inputs": [
                {
                    "name": each.name,
                    "path": each.path,
                    "since": domain.frontier_to_json(each.since),
                    "upper": domain.frontier_to_json(each.upper),
                    "at_once": each.answers_at(self.time),
                }
                for each in self.inputs
            ],
        }

    def __str__(self) -> str:
        domain = self.domain
        rows = [
            ("time", f"{_plain(domain, self.time)} ({_WHY[self.why]})"),
            ("can answer at once", "yes" if self.at_once else "no"),
            ("newest complete time", "none" if self.newest is None else _plain(domain, self.newest)),
            ("readable from (since)", domain.show_frontier(self.since)),
            ("complete before (upper)", domain.show_frontier(self.upper)),
            ("type of times", ", ".join(kind.value for kind in domain.types)),
        ]
        for each in self.inputs:
            answers = "" if each.answers_at(self.time) else ", waited for"
            rows.append((f"input {each.name}", f"{_interval(domain, each)}{answers}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)

    def __repr__(self) -> str:
        names = [each.name for each in self.inputs]
        return f"TimestampExplanation(time={_plain(self.domain, self.time)}, why={self.why!r}, inputs={shown(names)})"


def explain_timestamp(
    targets: Targets,
    /,
    *,
    as_of: TimeLike | None = None,
    as_of_at_least: TimeLike | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> TimestampExplanation:
    """Return at which one time some collections answer together, and why.

    It is the newest time that is complete in all of them, and not before any since. A collection that is complete
    holds nothing back.

    Parameters
    ----------
    targets : path, Log, iterable of these, or mapping of names to these
        What would be read.
    as_of : time, optional
        The time itself, in place of a choice.
    as_of_at_least : time, optional
        The first time that can be read and is not before this one, in place of the newest. At most one is given.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs; a log that is open has its own.

    Returns
    -------
    TimestampExplanation
        It is of this moment: frontiers move on.

    Raises
    ------
    InvalidUsageError
        If there are no targets; their times have other types, or are numbers of micro-batches of different queries; or
        times have several coordinates and neither `as_of` nor `as_of_at_least` says which.
    SinceViolationError
        If `as_of` is before the since of one: it has forgotten which times were distinct there.
    LogMissingError
        If there is no log at a path.

    Notes
    -----
    Cost: one look at each log; no file of data is opened.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, spark_timely
    >>> folder, logs = tempfile.mkdtemp(), {}
    >>> for name, closed in (("orders", 7), ("rates", 5)):
    ...     schema = pa.schema([("v", pa.int64())])
    ...     log = logs[name] = spark_timely.create_log(f"{folder}/{name}", schema, minimum=(0,))
    ...     _ = log.writer(owner="me").advance(closed)
    >>> print(explain_timestamp(logs))
    time                     4 (the newest that is complete in all inputs)
    can answer at once       yes
    newest complete time     4
    readable from (since)    0
    complete before (upper)  5
    type of times            long
    input orders             [0, 7)
    input rates              [0, 5)
    """
    opened = opened_targets(targets, storage_options=storage_options)
    inputs = [input_of(name, log) for name, log in opened]
    return choose_time(domain_of(opened), inputs, as_of=as_of, as_of_at_least=as_of_at_least)


def opened_targets(targets: Targets, /, *, storage_options: Mapping[str, str] | None = None) -> list[tuple[str, Log]]:
    """Return the logs that are meant, each with its name, as they are now.

    Parameters
    ----------
    targets : path, Log, iterable or mapping
        As of `explain_timestamp`.
    storage_options : mapping, optional

    Raises
    ------
    InvalidUsageError
        If there are none.
    LogMissingError
        If there is none at a path.
    """
    attempt = "could not choose a time"
    if isinstance(targets, Mapping):
        named = [(str(name), log) for name, log in targets.items()]
    elif isinstance(targets, (str, os.PathLike, Log)):
        named = [("", targets)]
    elif isinstance(targets, Iterable) and not isinstance(targets, bytes):
        named = [("", log) for log in targets]
    else:
        msg = f"{attempt}: found targets={shown(targets)}"
        raise InvalidUsageError(msg, hint="give paths of logs, logs that are open, or names with these")
    wrong = next((log for _, log in named if not isinstance(log, (str, os.PathLike, Log))), None)
    if wrong is not None or not named:
        msg = f"{attempt}: found {'no targets' if wrong is None else shown(wrong)}"
        raise InvalidUsageError(msg, hint="give the path of at least one log, or a log that is open")
    paths = [log for _, log in named if not isinstance(log, Log)]
    options = checked_options(storage_options, *map(normal_path, paths))
    opened: list[tuple[str, Log]] = []
    for name, log in named:
        if isinstance(log, Log):
            log.refresh()
            one = log
        else:
            path = normal_path(log)
            one = open_log(path, storage_options=own_options(path, options) or None)
        opened.append((name or one.path, one))
    return opened


def input_of(name: str, log: Log, /) -> Input:
    """Return what counts of a log for the choice of a time, as of its present snapshot.

    Parameters
    ----------
    name : str
    log : Log
        Not refreshed here.
    """
    upper = log.frontier()
    return Input(name, log.path, log.since(), upper, None if upper else _last_of(log), numbered_by(log))


def choose_time(
    domain: TimeDomain,
    inputs: Sequence[Input],
    *,
    as_of: TimeLike | None = None,
    as_of_at_least: TimeLike | None = None,
) -> TimestampExplanation:
    """Choose the time at which some inputs answer together: pure, from their frontiers.

    Parameters
    ----------
    domain : TimeDomain
        Of the times of all inputs.
    inputs : sequence of Input
        At least one.
    as_of, as_of_at_least : time, optional
        As of `explain_timestamp`.

    Raises
    ------
    InvalidUsageError, SinceViolationError
        As of `explain_timestamp`.

    Examples
    --------
    >>> domain = TimeDomain(("long",))
    >>> orders = Input("orders", "/orders", Antichain.of(3), Antichain.of(7))
    >>> rates = Input("rates", "/rates", Antichain.of(0), Antichain.empty(1), last=(2,))
    >>> choose_time(domain, [orders, rates]).time, choose_time(domain, [orders, rates], as_of_at_least=1).time
    ((6,), (3,))
    """
    if as_of is not None and as_of_at_least is not None:
        msg = f"could not choose a time: found as_of={shown(as_of)} and as_of_at_least={shown(as_of_at_least)}"
        raise InvalidUsageError(msg, hint="give the time itself, or the least one: one of them")
    _check_comparable(inputs)
    since = reduce(Antichain.join, (each.since for each in inputs))
    upper = reduce(Antichain.meet, (each.upper for each in inputs))
    newest, why = _newest(domain, inputs, upper)

    def explained(time: Time, why: Why) -> TimestampExplanation:
        return TimestampExplanation(domain, tuple(inputs), time, why, newest, since, upper)

    if as_of is not None:
        time = domain.parse_time(as_of)
        check_since(domain, inputs, time)
        return explained(time, "as_of")
    least = None if as_of_at_least is None else domain.parse_time(as_of_at_least)
    if least is not None:
        return explained(_only(domain, since.join(Antichain.of(least)), since, upper), "as_of_at_least")
    if newest is not None and since.less_equal(newest):
        return explained(newest, why)
    if newest is not None and why == "the end":
        return explained(_only(domain, since.join(Antichain.of(newest)), since, upper), why)
    if newest is None and domain.arity > 1:
        raise _several(domain, since, upper)
    return explained(_only(domain, since, since, upper), "since")


def _newest(domain: TimeDomain, inputs: Sequence[Input], upper: Antichain) -> tuple[Time | None, Why]:
    """Return the largest time that is complete in all inputs, if there is one, and what it is."""
    if not upper:
        lasts = np.array([each.last for each in inputs if each.last is not None], np.int64)
        last: Time = tuple(lasts.max(axis=0).tolist())
        return last, "the end"
    newest = newest_complete(domain, upper)
    if newest is not None and all(newest < each.since.elements[0] for each in inputs):
        newest = None
    return newest, "newest complete"


def newest_complete(domain: TimeDomain, upper: Antichain) -> Time | None:
    """Return the newest time that a frontier has passed; None where there is none, or none is the newest.

    Examples
    --------
    >>> domain = TimeDomain(("long",))
    >>> newest_complete(domain, Antichain.of(7)), newest_complete(domain, domain.minimum_frontier)
    ((6,), None)
    """
    if not upper:
        # All that there is: no time comes after the greatest of the type.
        return tuple(kind.hi for kind in domain.types)
    if domain.arity > 1:
        return None
    ((first,),) = upper.elements
    return (first - 1,) if first > domain.minimum[0] else None


def frontier_after(domain: TimeDomain, time: Time) -> Antichain:
    """Return the frontier of which exactly those times are not beyond that are not later than one in any coordinate.

    Examples
    --------
    >>> frontier_after(TimeDomain(("long",)), (6,))
    Antichain.of(7)
    """
    least = domain.minimum
    following = [
        (*least[:place], coordinate + 1, *least[place + 1 :])
        for place, (coordinate, kind) in enumerate(zip(time, domain.types, strict=True))
        if coordinate < kind.hi
    ]
    return Antichain.of(*following) if following else Antichain.empty(domain.arity)


def _only(domain: TimeDomain, times: Antichain, since: Antichain, upper: Antichain) -> Time:
    """Return the one time of a frontier; where it has several, none of them is the first."""
    if len(times) != 1:
        raise _several(domain, since, upper)
    return times.elements[0]


def _several(domain: TimeDomain, since: Antichain, upper: Antichain) -> InvalidUsageError:
    msg = (
        f"could not choose a time: found times of {domain.arity} coordinates, since={domain.render_frontier(since)} and"
        f" upper={domain.render_frontier(upper)}, between which none is the newest"
    )
    return InvalidUsageError(msg, hint="give as_of: a time that is at or beyond since, and that upper has passed")


def check_since(domain: TimeDomain, inputs: Sequence[Input], time: Time) -> None:
    """Refuse inputs whose since has passed a time; the error names since and upper of one.

    Raises
    ------
    SinceViolationError

    Examples
    --------
    >>> check_since(TimeDomain(("long",)), [Input("a", "/a", Antichain.of(3), Antichain.of(7))], (2,))
    Traceback (most recent call last):
    ...
    spark_timely.errors.SinceViolationError: ...read log '/a' as of 2: found since=[3] and upper=[7] — hint: ...
    """
    behind = [each for each in inputs if not each.since.less_equal(time)]
    if not behind:
        return
    one, more = behind[0], len(behind) - 1
    others = f", and of {more} others" if more else ""
    msg = (
        f"could not read log {one.path!r} as of {_plain(domain, time)}: found since={domain.render_frontier(one.since)}"
        f" and upper={domain.render_frontier(one.upper)}{others}"
    )
    raise SinceViolationError(
        msg,
        hint="give a time at or beyond since, or leave as_of out: the newest complete time is taken then",
        as_of=domain.render_time(time),
        since=domain.render_frontier(one.since),
        context={"path": one.path},
    )


def check_complete(attempt: str, chosen: TimestampExplanation, /) -> None:
    """Refuse a time that nobody asked for and that is not complete: without a time, nothing is waited for.

    Parameters
    ----------
    attempt : str
        For errors.
    chosen : TimestampExplanation

    Raises
    ------
    NotBeyondError
        If no time at or beyond every since is complete in all inputs.

    Examples
    --------
    >>> check_complete("peek", choose_time(TimeDomain(("long",)), [Input("a", "/a", Antichain.of(3), Antichain.of(3))]))
    Traceback (most recent call last):
    ...
    spark_timely.errors.NotBeyondError: ...could not peek: found no time that is complete: since=[3], upper=[3] ...
    """
    if chosen.why != "since":
        return
    domain = chosen.domain
    since, upper = domain.render_frontier(chosen.since), domain.render_frontier(chosen.upper)
    held = "" if len(chosen.inputs) == 1 else f", held back by log {chosen.waits_for()[0].path!r}"
    msg = f"could not {attempt}: found no time that is complete: since={since}, upper={upper}{held}"
    raise NotBeyondError(
        msg,
        hint="wait for the first commit that closes a time, or give the time: it is waited for",
        time=domain.render_time(chosen.time),
        frontier=upper,
    )


def _check_comparable(inputs: Sequence[Input]) -> None:
    """Refuse times that number micro-batches of different queries: they mean nothing to each other."""
    owners: dict[str, str] = {}
    for each in inputs:
        if each.numbered_by:
            owners.setdefault(each.numbered_by, each.path)
    if len(owners) < 2:
        return
    (one, path), (two, other), *_ = owners.items()
    msg = (
        f"could not choose a time: found times that number the micro-batches of different queries, {shown(one)} in log"
        f" {path!r} and {shown(two)} in log {other!r}"
    )
    raise InvalidUsageError(
        msg, hint="read them one by one, or capture both under times that mean the same, such as the time of an event"
    )


def domain_of(opened: Sequence[tuple[str, Log]]) -> TimeDomain:
    """Return the domain that all logs share.

    Raises
    ------
    InvalidUsageError
        If the times of one are of other types.
    """
    first = opened[0][1]
    domain = TimeDomain(first.domain.types)
    for _, log in opened:
        if log.domain.types != domain.types:
            found, wanted = ([kind.value for kind in each.domain.types] for each in (log, first))
            msg = (
                f"could not choose a time: found times={found} in log {log.path!r}, times={wanted} in log"
                f" {first.path!r}"
            )
            raise InvalidUsageError(msg, hint="read logs with times of the same types: only these can be compared")
    return domain


def _last_of(log: Log) -> Time:
    """Return a time from which on a log does not change: the last one that its files have, where they all say it."""
    index = log.core.files()
    least = np.array([*log.since().times, log.domain.minimum], np.int64).max(axis=0, keepdims=True)
    if not np.asarray(index.known).all():
        return tuple(kind.hi for kind in log.domain.types)
    return tuple(np.concatenate([least, index.max_times]).max(axis=0).tolist())


def numbered_by(log: Log, /) -> str:
    """Return the queries of whose micro-batches a log's times are the numbers, as one text; else nothing.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> numbered_by(MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,)))
    ''
    """
    states = log.streams().values()
    numbered = [each for each in states if each.batch is not None and each.note.greatest == each.batch]
    if not numbered or len(numbered) != len(states):
        return ""
    return ", ".join(sorted(str(each.owner) for each in numbered))


def _interval(domain: TimeDomain, one: Input) -> str:
    """Return between which times an input answers, as people write it: [since, upper)."""
    if domain.arity == 1:
        first = _plain(domain, one.since.elements[0])
        return f"[{first}, {_plain(domain, one.upper.elements[0])})" if one.upper else f"[{first}, the end]"
    return f"from {domain.show_frontier(one.since)} to before {domain.show_frontier(one.upper)}"


def _plain(domain: TimeDomain, time: Time) -> str:
    return str(domain.render_time(time))
