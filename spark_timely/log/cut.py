"""A consistent cut: several logs as of one frontier.

`cut` takes one, a `Cut` keeps it as JSON, and `open_cut` opens its logs again. Jobs that read the same cut, now or
later, read the same rows; replays begin and end at one (`datasource.bounds`), subscriptions begin at one, and `wait`
waits for one. (The cutting of a dataflow's work into tasks is `spark_timely.dataflow.engine.cutting`.)

Invariants
----------
1. A cut names its logs by identity, and their newest commits. Refused are another log at the same path, and a log that
   was put back to an earlier state, also where it has grown again.
2. What is at times not beyond the cut's frontier is complete in each of its logs once they have
   reached it, and never changes again: not by later writes, not by compaction.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_timely.errors import DataLossError, InvalidUsageError, LogFormatError, NotBeyondError, TimelyError, shown
from spark_timely.log.acceptance import describe_others
from spark_timely.log.machine.lost_commits import ACCEPTED, Commits, is_accepted, newest_commits, other_commits
from spark_timely.log.machine.since import needed_from
from spark_timely.log.store.clones import of_clone
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import own_options, same_place
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

if TYPE_CHECKING:
    from spark_timely.log.log import Log
    from spark_timely.time.domain import FrontierLike


_VERSION: Final = 2
# Of the commits of one log, about: a cut is an option of a query, and is kept in files.
_COMMITS_BYTES: Final = 4 * 1024


@dataclass(frozen=True, slots=True)
class CutLog:
    """One log of a cut.

    Parameters
    ----------
    log_id : str
        Its identity.
    path : str
        Where it is.
    frontier : Antichain
        How far it was when the cut was made.
    commits : mapping of str to (int, str)
        The newest commits that it had then, as `spark_timely.log.machine.lost_commits.Commits`.
    since : Antichain or None
        From where it could be read then; None is from its beginning.
    """

    log_id: str
    path: str
    frontier: Antichain
    commits: Commits = field(default_factory=dict, hash=False)
    since: Antichain | None = None

    def check_since(self, log: Log, frontier: Antichain, /) -> None:
        """Refuse a log that has forgotten what it had when the cut was made; raises `SinceViolationError`."""
        if log.kind == "stream":
            # All its messages are part of the cut.
            needed = self.since or log.domain.minimum_frontier
        else:
            needed = needed_from(log.kind, frontier, log.domain.minimum)
        log.core.check_may_read(needed, what=f"read log {log.path!r} at a cut")

    def check_commits(self, log: Log, /, *, accept: str | None = None) -> None:
        """Refuse a log without the commits that it had when the cut was made, or with a change accepted since.

        Parameters
        ----------
        log : Log
        accept : str, optional
            The token of such a change, of which who reads knows.

        Raises
        ------
        DataLossError, ForeignChangeError
        """
        others = other_commits(log.core, self.commits, accept=accept)
        if others:
            log.refresh()
            others = other_commits(log.core, self.commits, accept=accept)
        if not others:
            return
        log.frontier()  # where another program changed rows, that is what is to be said
        found = describe_others(log.core, others, "the cut was made of")
        msg = f"could not read log {log.path!r} at a cut: {found}"
        hint = "put back the log that the cut was made of, which was restored to an earlier state"
        if is_accepted(others):
            token = others[ACCEPTED][1]
            hint = f"continue behind the change: acceptChange={token} of a query, accept_change={token!r} otherwise"
        raise DataLossError(
            msg,
            hint=f"{hint}; or make a new cut, and make again what was made of this one",
            context={"path": log.path, "stream": next(iter(others))},
        )


@dataclass(frozen=True, slots=True, repr=False)
class Cut:
    """Several logs as of one frontier. Made by `cut`; ``str(cut)`` is JSON that `Cut.from_json` reads.

    Parameters
    ----------
    domain : TimeDomain
        Types of the logs' times.
    frontier : Antichain
        The common frontier: times not beyond it are part of the cut.
    logs : tuple of CutLog
        In the order given.

    Examples
    --------
    >>> entry = CutLog("a1", "/orders", Antichain.of(7), {"main": (3, "9f")})
    >>> made = Cut(TimeDomain(("long",)), Antichain.of(5), (entry,))
    >>> made.to_json()["logs"]
    [{'id': 'a1', 'path': '/orders', 'frontier': [7], 'commits': {'main': [3, '9f']}}]
    >>> Cut.from_json(str(made)) == made
    True
    """

    domain: TimeDomain
    frontier: Antichain
    logs: tuple[CutLog, ...]

    def __repr__(self) -> str:
        """Return the frontier and the paths of the logs on one line."""
        paths = [log.path for log in self.logs]
        return f"Cut(frontier={self.domain.show_frontier(self.frontier)}, logs={shown(paths)})"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; times as `TimeDomain.time_to_json`. No settings or credentials of a store."""
        return {
            "version": _VERSION,
            "times": [type_.value for type_ in self.domain.types],
            "frontier": self.domain.frontier_to_json(self.frontier),
            "logs": [
                {
                    "id": log.log_id,
                    "path": log.path,
                    "frontier": self.domain.frontier_to_json(log.frontier),
                    "commits": {stream: list(commit) for stream, commit in log.commits.items()},
                    **({} if log.since is None else {"since": self.domain.frontier_to_json(log.since)}),
                }
                for log in self.logs
            ],
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False)

    @classmethod
    def from_json(cls, value: str | Mapping[str, object], /) -> Cut:
        """Read what `to_json` gave, as a mapping or as JSON text.

        Raises
        ------
        InvalidUsageError
            If it is no cut.
        LogFormatError
            If another version of the library wrote it.
        """
        found: object = value
        try:
            found = json.loads(value) if isinstance(value, str) else value
            if not isinstance(found, Mapping) or not isinstance(found.get("version"), int):
                raise _unreadable(value)
            if found["version"] != _VERSION:
                msg = f"could not read a cut: found version={found['version']!r}, known is {_VERSION}"
                newer = found["version"] > _VERSION
                raise LogFormatError(
                    msg,
                    hint="upgrade spark-timely: a newer version wrote it"
                    if newer
                    else "make a new cut: an older spark-timely wrote this one, without the commits of its logs",
                )
            domain = TimeDomain(tuple(found["times"]))
            logs = tuple(
                CutLog(
                    str(log["id"]),
                    str(log["path"]),
                    domain.frontier_from_json(list(log["frontier"])),
                    {str(stream): (int(seq), str(identity)) for stream, (seq, identity) in log["commits"].items()},
                    domain.frontier_from_json(list(log["since"])) if "since" in log else None,
                )
                for log in found["logs"]
            )
            frontier = domain.frontier_from_json(list(found["frontier"]))
        except LogFormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _unreadable(value) from error
        if not logs:
            raise _unreadable(value)
        return cls(domain, frontier, logs)

    def check_log(self, log: Log, /, *, accept: str | None = None) -> None:
        """Refuse a log that is none of the cut's; `accept` as `CutLog.check_commits` takes it.

        Raises
        ------
        DataLossError
            If another log is in the place of one of the cut's, or it was put back to an earlier state.
        InvalidUsageError
            If the cut has no log there at all.

        Notes
        -----
        Cost: as `spark_timely.log.machine.lost_commits.other_commits`.
        """
        found = log.core.log_id
        named = [entry for entry in self.logs if entry.log_id == found]
        for entry in named:  # more than one only where a log is named twice
            entry.check_commits(log, accept=accept)
        if named:
            return
        wanted = next(
            (entry.log_id for entry in self.logs if same_place(entry.path, log.path, log.core.storage_options)), None
        )
        if wanted is not None:
            cloned = of_clone(log.core.storage)
            why = "a clone is another log" if cloned else "the log was deleted and created again"
            msg = f"could not read log {log.path!r} at a cut: found id={found!r}{cloned}, the cut has id={wanted!r}"
            raise DataLossError(msg, hint=f"make a new cut: {why}", context={"path": log.path})
        paths = [entry.path for entry in self.logs]
        msg = f"could not read log {log.path!r} at a cut: found logs={shown(paths)}, this one is not among them"
        raise InvalidUsageError(msg, hint="make the cut over all logs that are read", context={"path": log.path})

    def check_since(self, log: Log, /) -> None:
        """Refuse to begin to read a log of the cut that has forgotten some of it; raises `SinceViolationError`."""
        for entry in self.logs:
            if entry.log_id == log.core.log_id:
                entry.check_since(log, self.frontier)

    def reached_by(self, frontier: Antichain, /) -> bool:
        """Return whether a log of this frontier has everything that the cut holds of it."""
        return self.frontier.less_equal_frontier(frontier)

    def check_reached(self, path: str, frontier: Antichain, /) -> None:
        """Refuse a log that has not come as far as the cut; raises `NotBeyondError`."""
        if self.reached_by(frontier):
            return
        wanted, found = self.domain.render_frontier(self.frontier), self.domain.render_frontier(frontier)
        msg = f"could not read log {path!r} at a cut of frontier={wanted}: found frontier={found}"
        raise NotBeyondError(
            msg,
            hint="wait for the log (spark_timely.wait, spark-timely wait --cut): it has not come so far",
            time=wanted,
            frontier=found,
        )


def cut(
    logs: Iterable[str | os.PathLike[str] | Log],
    /,
    *,
    frontier: FrontierLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    retain: str | None = None,
    expiry: str = "7 days",
) -> Cut:
    """Return a consistent cut of several logs: all of them as of one frontier.

    Parameters
    ----------
    logs : iterable of path or Log
        Their times are of the same types.
    frontier : frontier, optional
        As of which; how far all of them have come unless given (the meet of their frontiers). It may lie
        ahead: such a cut is refused by who reads it too early, and waited for with `wait`.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs. Not part of the cut.
    retain : str, optional
        A name under which each log keeps what the cut has of it (`Log.retainers`): of a stream all that it has now.
    expiry : str
        How long it is kept, unless the cut is made again with this name.

    Returns
    -------
    Cut
        To be read with `snapshot`, or with the source's option ``cut``; in this process or, as
        JSON, in another one, now or later: it means the same rows.

    Raises
    ------
    InvalidUsageError
        If there are no logs, their times differ in type, or `frontier` is none of their times.
    LogMissingError
        If there is no log at a path.
    SinceViolationError, OwnershipError, StorageError
        If what is to be retained is forgotten already, the name is another consumer's, or a log cannot be written.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, spark_timely
    >>> folder, logs = tempfile.mkdtemp(), []
    >>> for name, closed in (("orders", 7), ("payments", 5)):
    ...     log = spark_timely.create_log(f"{folder}/{name}", pa.schema([("v", pa.int64())]), minimum=(0,))
    ...     _ = log.writer(owner="me").advance(closed)
    ...     logs.append(log)
    >>> cut(logs).frontier
    Antichain.of(5)
    """
    from spark_timely.log.log import Log, open_log

    if isinstance(logs, (str, os.PathLike, Log)):
        msg = f"could not make a cut: found {shown(getattr(logs, 'path', logs))}, one log that is in no list"
        raise InvalidUsageError(msg, hint="give a list of logs")
    if not isinstance(logs, Iterable) or isinstance(logs, bytes):
        msg = f"could not make a cut: found logs={shown(logs)}"
        raise InvalidUsageError(msg, hint="give a list of logs, or of their paths")
    asked = [log if isinstance(log, Log) else normal_path(log) for log in logs]
    options = checked_options(storage_options, *(log for log in asked if isinstance(log, str)))
    opened: list[Log] = []
    for log in asked:
        if isinstance(log, Log):
            log.refresh()
        opened.append(log if isinstance(log, Log) else open_log(log, storage_options=own_options(log, options)))
    if not opened:
        msg = "could not make a cut: found no logs"
        raise InvalidUsageError(msg, hint="give a list of one log or more")
    first = opened[0]
    domain = TimeDomain(first.domain.types)
    for log in opened:
        if log.domain.types != domain.types:
            found, wanted = ([t.value for t in each.domain.types] for each in (log, first))
            msg = f"could not make a cut: found times={found!r} in log {log.path!r}, times={wanted!r} in {first.path!r}"
            raise InvalidUsageError(
                msg, hint="give logs with times of the same types: only these have a frontier in common"
            )
    entries = tuple(map(entry_of, opened))
    common = entries[0].frontier
    for entry in entries[1:]:
        common = common.meet(entry.frontier)
    at = common if frontier is None else domain.parse_frontier(frontier)
    if retain is not None:
        done: list[Log] = []
        try:
            for log in opened:
                needed = log.since() if log.kind == "stream" else needed_from(log.kind, at, log.domain.minimum)
                log.core.retain_needed(retain, needed, owner=f"cut {retain}", expiry=expiry)
                done.append(log)
        except TimelyError:
            # All or none; what cannot be released now expires.
            for log in done:
                with suppress(TimelyError):
                    log.release(retain)
            raise
    return Cut(domain, at, entries)


def entry_of(log: Log, /) -> CutLog:
    """Return what a cut says of a log, as it was looked at last."""
    since = log.since()
    return CutLog(
        log.core.log_id,
        log.path,
        log.frontier(),
        newest_commits(log.core.ends(), _COMMITS_BYTES, log.core.accepted),
        None if since == log.domain.minimum_frontier else since,
    )


def open_cut(cut: Cut, /, *, storage_options: Mapping[str, str] | None = None) -> list[Log]:
    """Open the logs of a cut.

    Raises
    ------
    DataLossError
        If another log is in the place of one of them, or one was put back to an earlier state.
    LogMissingError
        If there is none.
    """
    from spark_timely.log.log import open_log

    opened = []
    options = checked_options(storage_options, *(entry.path for entry in cut.logs))
    for entry in cut.logs:
        log = open_log(entry.path, storage_options=own_options(entry.path, options))
        cut.check_log(log)
        opened.append(log)
    return opened


def _unreadable(value: object) -> TimelyError:
    return InvalidUsageError(
        f"could not read a cut: found {shown(value)}", hint="give what str(cut) or Cut.to_json gave"
    )
