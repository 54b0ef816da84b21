"""The file `timely-logs` in a query's checkpoint: into which logs it captured, and how far it left each of them.

A log alone cannot say that it was deleted, restored to an earlier state, or replaced. So after each commit the query
writes down which log it was, by its id, and the number of the commit. What it finds there later must be that log,
at that commit or past it.

Invariants
----------
1. The file is written after the commit that it names: it may be behind its log, and is never ahead of it unless
   the log went back.
2. It belongs to the query whose id is in it: one that another query left in the folder says nothing.
3. A log is known by its id; its path finds the entry, and helps people.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from spark_timely.errors import DataLossError, StorageError, shown
from spark_timely.log.store.storage import open_storage
from spark_timely.masking import masked_logger
from spark_timely.spark.base.checkpoint import reachable

if TYPE_CHECKING:
    from spark_timely.log.store.storage import FileStorage

__all__ = ["LogCommit", "LogEntry", "find_entry", "read_entries", "write_entry"]

_log = masked_logger("spark_timely.spark")

_FILE: Final = "timely-logs"
_VERSION: Final = 1
# As many as Spark keeps offsets of, unless told otherwise.
_MOST_COMMITS: Final = 100

# Captures of one query may run in threads of its driver.
_writing = threading.Lock()
_warned: set[str] = set()


@dataclass(frozen=True, slots=True, order=True)
class LogCommit:
    """A commit that the query made.

    Attributes
    ----------
    seq : int
        Its number in the stream.
    batch, step : int
        The micro-batch that it holds.
    """

    seq: int
    batch: int
    step: int

    @property
    def number(self) -> tuple[int, int]:
        """Micro-batch and step, which ascend with the commits."""
        return self.batch, self.step


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What a query wrote down of one stream of one log.

    Attributes
    ----------
    path : str
        Where the log was.
    stream : str
    log_id : str
        Id of the log.
    commits : tuple of LogCommit
        The query's newest commits, the newest last; at least one, at most 100.
    """

    path: str
    stream: str
    log_id: str
    commits: tuple[LogCommit, ...]

    @property
    def newest(self) -> LogCommit:
        """The newest commit of the query."""
        return self.commits[-1]

    def first_lost(self, seq: int, number: tuple[int, int] | None) -> int | None:
        """Return the first micro-batch that a log lost, given where it is now; None if it lost nothing.

        Parameters
        ----------
        seq : int
            Number of the stream's newest commit; -1 without any.
        number : (int, int) or None
            Newest micro-batch of the query in it, and its step.

        Notes
        -----
        Both are compared: others may have made commits since, under numbers that were the query's.

        Examples
        --------
        >>> entry = LogEntry("log", "main", "a", (LogCommit(4, 7, 0), LogCommit(5, 9, 0)))
        >>> entry.first_lost(5, (9, 0)), entry.first_lost(4, (7, 0)), entry.first_lost(3, (5, 0))
        (None, 9, 6)
        """
        have = (-1, 0) if number is None else number
        lost = [commit for commit in self.commits if commit.seq > seq or commit.number > have]
        if not lost:
            return None
        if lost[0] == self.commits[0] and lost[0].seq > 1:
            # Others before it may be lost too.
            return min(lost[0].batch, have[0] + 1)
        return lost[0].batch

    def followed_by(self, path: str, log_id: str, commit: LogCommit) -> LogEntry:
        """Return the entry after one more commit."""
        if log_id != self.log_id:
            return LogEntry(path, self.stream, log_id, (commit,))
        before = [old for old in self.commits if old.seq < commit.seq and old.number < commit.number]
        return replace(self, path=path, commits=(*before[1 - _MOST_COMMITS :], commit))


def find_entry(entries: tuple[LogEntry, ...], path: str, stream: str, log_id: str | None) -> LogEntry | None:
    """Return the entry of a log: the one of its path, else the one of its id, for it may have been moved.

    Examples
    --------
    >>> entries = (LogEntry("/a", "main", "1", (LogCommit(1, 0, 0),)),)
    >>> find_entry(entries, "/b", "main", "1") is entries[0], find_entry(entries, "/b", "main", "2")
    (True, None)
    """
    mine = [entry for entry in entries if entry.stream == stream]
    found = [entry for entry in mine if entry.path == path] or [entry for entry in mine if entry.log_id == log_id]
    return found[0] if found else None


def read_entries(
    location: str, query: str, /, *, storage_options: Mapping[str, str] | None = None
) -> tuple[LogEntry, ...]:
    """Read what a query wrote down.

    Parameters
    ----------
    location : str
        Its checkpoint, as Spark was given it.
    query : str
        Its id.
    storage_options : mapping, optional
        Credentials for a URL.

    Returns
    -------
    tuple of LogEntry
        Empty where there is no such file, it is another query's, or the checkpoint is out of Python's reach.

    Raises
    ------
    StorageError
        If the file is there, and cannot be read, makes no sense, or is of a later version.

    Notes
    -----
    Cost: one small read.

    Examples
    --------
    >>> read_entries("/nowhere/at/all", "a")
    ()
    """
    if not reachable(location):
        return ()
    try:
        content = bytes(open_storage(location, storage_options).read(_FILE))
    except DataLossError:
        return ()  # not there
    facts: dict[str, object] = {}
    try:
        facts.update(json.loads(content))
        version = int(cast("int", facts["v"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _senseless(location, content) from error
    if version != _VERSION:
        msg = f"could not read {_FILE!r} of checkpoint {location!r}: found version={version}"
        raise StorageError(
            msg,
            hint=f"this version of spark-timely reads {_VERSION}: use the one that wrote it",
            determinate=True,
            context={"checkpoint": location},
        )
    try:
        entries = tuple(_entry(entry) for entry in cast("list[dict[str, object]]", facts["logs"]))
        return entries if facts["query"] == query else ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _senseless(location, content) from error


def write_entry(
    location: str,
    query: str,
    /,
    *,
    path: str,
    stream: str,
    log_id: str,
    commit: LogCommit,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Write down a commit; where that cannot be done, warn once per checkpoint.

    Parameters
    ----------
    location, query, storage_options
        As for `read_entries`.
    path, stream, log_id : str
        Of the log.
    commit : LogCommit
        That the log has.

    Notes
    -----
    Cost: one small read and one small write, flushed. On a local disk the file is there as a whole or as it was.
    """
    try:
        if not reachable(location):
            msg = f"could not reach checkpoint {location!r}: found a file system that Python does not read"
            raise StorageError(msg, determinate=True)
        storage = open_storage(location, storage_options)
        with _writing:
            entries = read_entries(location, query, storage_options=storage_options)
            old = find_entry(entries, path, stream, log_id)
            new = LogEntry(path, stream, log_id, (commit,)) if old is None else old.followed_by(path, log_id, commit)
            if new == old:
                return
            kept = [entry for entry in entries if entry is not old]
            facts = {"v": _VERSION, "query": query, "logs": [_facts(entry) for entry in (*kept, new)]}
            _put(storage, json.dumps(facts, separators=(",", ":")).encode())
    except (StorageError, OSError) as error:
        if location not in _warned:
            _warned.add(location)
            _log.warning(
                "could not write %r into checkpoint %r: found %s — hint: until it can be written, a log that is"
                " deleted or restored is noticed by the numbers of its micro-batches alone",
                _FILE,
                location,
                error,
            )


def _put(storage: FileStorage, content: bytes) -> None:
    """Write the file; on a local disk by a name of its own first, so that no half-written one is ever seen."""
    if not storage.local:
        storage.write(_FILE, content)
        return
    unfinished = storage.full(f".{_FILE}.{secrets.token_hex(8)}.tmp")
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, storage.full(_FILE))
    except OSError:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _facts(entry: LogEntry) -> dict[str, object]:
    return {
        "path": entry.path,
        "stream": entry.stream,
        "id": entry.log_id,
        "commits": [[commit.seq, commit.batch, commit.step] for commit in entry.commits],
    }


def _entry(facts: Mapping[str, object]) -> LogEntry:
    commits = tuple(LogCommit(int(a), int(b), int(c)) for a, b, c in cast("list[list[int]]", facts["commits"]))
    names = [facts[name] for name in ("path", "stream", "id")]
    if not commits or not all(isinstance(name, str) for name in names):
        raise ValueError(facts)
    path, stream, log_id = cast("list[str]", names)
    return LogEntry(path, stream, log_id, commits)


def _senseless(location: str, content: bytes) -> StorageError:
    msg = f"could not read {_FILE!r} of checkpoint {location!r}: found {shown(content)}"
    return StorageError(
        msg,
        hint="restore the file. Or look with `spark-timely stats` whether the log has the query's newest micro-batch;"
        " if so, delete the file: the next micro-batch writes it again",
        determinate=True,
        context={"checkpoint": location},
    )
