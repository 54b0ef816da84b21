"""A query's checkpoint: the query's id, the micro-batch at hand, and the logs that it captured into.

The sink and captures in foreachBatch ask it which query and micro-batch they capture: Spark gives a Python sink's
planner neither. Both are in the checkpoint's files: ``metadata`` holds the query's id, written when the query is made;
``offsets/<n>`` is written before micro-batch n is planned, so the greatest n is the micro-batch at hand, a repeated one
included. Checkpoints of a log's Delta table are another thing (`spark_timely.log.store.checkpoints`).

A process that advances a stream from outside while its query runs puts up a gate in the checkpoint first: a file that
the query's next micro-batch waits for before it is planned, so that it is planned after the advance.

A log alone cannot say that it was deleted, restored to an earlier state, or replaced. So after each commit the query
writes into the file ``timely-logs`` of its checkpoint which log it was, by its id, and the number of the commit. What
it finds there later must be that log, at that commit or past it.

Invariants
----------
1. ``timely-logs`` is written after the commit that it names: it may be behind its log, and is never ahead of it unless
   the log went back.
2. It belongs to the query whose id is in it: one that another query left in the folder says nothing.
3. A log is known by its id; its path finds the entry, and helps people.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from spark_timely.errors import InvalidOptionError, StorageError, shown
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.urls import SCHEMES, same_place
from spark_timely.log.wait import wait_until
from spark_timely.masking import masked, masked_logger
from spark_timely.threads import at_once

if TYPE_CHECKING:
    from spark_timely.log.store.storage import TableStorage


_log = masked_logger("spark_timely.spark")

# Spark looks at the names that it knows and at no others.
_GATE = "timely-gate"
_GATE_LOOK_S = 0.02
# After that the process that put the gate up has died, or is so slow that its commit may lose the race.
_GATE_S = 10.0

# A version, and the wall clock with settings of the session.
_HEADER_LINES = 2
_MOST_SOURCE_BYTES = 16 * 1024

REPLAY_HEADER: Final = "timely-replay 1"
"""First line of the offsets that a replay in the driver writes: Spark refuses them, where it has its ``v1``."""

# What both Spark and the library's storage can reach; a checkpoint elsewhere is left to the tasks.


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Hold what a checkpoint says about its query.

    Attributes
    ----------
    query : str or None
        The query's id; None where the file is missing or cannot be read from here.
    batch : int or None
        Greatest micro-batch with logged offsets; None where there is none to be seen.

    Examples
    --------
    >>> CheckpointState("a", 3).batch
    3
    """

    query: str | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class PlannedOffsets:
    """Hold what Spark wrote down of a micro-batch before it planned it.

    Attributes
    ----------
    hash : str
        SHA-256 of the entry, all its lines: with a wall clock in it, so that no other plan has the same.
    source : str
        Its lines that say where each source ends, without secrets, at most 16 kB.
    before : str or None
        SHA-256 of the entry of the micro-batch before, where this one begins; empty for micro-batch 0; None where
        that entry is not there.
    """

    hash: str
    source: str
    before: str | None


def planned_offsets(
    location: str, batch: int, /, *, storage_options: Mapping[str, str] | None = None
) -> PlannedOffsets | None:
    """Read what a micro-batch was planned from.

    Parameters
    ----------
    location : str
        Directory or URL, as Spark was given it.
    batch : int
        Number of the micro-batch.
    storage_options : mapping, optional
        Credentials for a URL.

    Returns
    -------
    PlannedOffsets or None
        None where the entry is not there or cannot be read from here.

    Notes
    -----
    Spark writes the entry before it plans the micro-batch, and never again. Cost: two small reads, side by side in a
    store.

    Examples
    --------
    >>> planned_offsets("/nowhere/at/all", 0) is None
    True
    """
    if not reachable(location):
        return None
    storage = open_storage(location, storage_options, literal=True)
    content, before = _asked(
        storage, lambda: _offsets_of(storage, batch), lambda: b"" if batch == 0 else _offsets_of(storage, batch - 1)
    )
    if content is None:
        return None
    lines = content.decode("utf-8", "replace").split("\n")[_HEADER_LINES:]
    source = masked("\n".join(line for line in lines if line)).encode()[:_MOST_SOURCE_BYTES].decode("utf-8", "ignore")
    return PlannedOffsets(_hash(content), source, None if before is None else _hash(before))


def is_finished(location: str, batch: int, /, *, storage_options: Mapping[str, str] | None = None) -> bool:
    """Return whether a query has finished a micro-batch: then Spark never runs it again.

    False where the checkpoint cannot be read from here. Cost: one look.

    Examples
    --------
    >>> is_finished("/nowhere/at/all", 0)
    False
    """
    if not reachable(location):
        return False
    try:
        return open_storage(location, storage_options, literal=True).exists(f"commits/{batch}")
    except (StorageError, OSError):
        return False


def _asked(storage: TableStorage, *questions: Callable[[], Any]) -> list[Any]:
    """Return the answers to questions to a storage, asked side by side where each takes a way to a store and back."""
    if storage.local:
        return [ask() for ask in questions]
    return at_once(lambda ask: ask(), questions, len(questions))


def _offsets_of(storage: TableStorage, batch: int) -> bytes | None:
    try:
        return storage.find(f"offsets/{batch}")
    except (StorageError, OSError):
        return None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if content else ""


def require_checkpoint(location: str | None, /) -> str:
    """Return the checkpoint's location, or say why it must be given.

    Parameters
    ----------
    location : str or None
        Value of the option ``checkpointLocation``.

    Returns
    -------
    str

    Raises
    ------
    InvalidOptionError
        If it is missing.

    Examples
    --------
    >>> require_checkpoint("/tmp/checkpoint")
    '/tmp/checkpoint'
    """
    if location is None or not location.strip():
        msg = "could not start the sink: option 'checkpointLocation' is missing"
        raise InvalidOptionError(
            msg,
            hint="give .option('checkpointLocation', …) on this query: a location from the"
            " session's configuration is not shown to the sink, which needs it to tell a repeated"
            " micro-batch from a new one",
            context={"option": "checkpointLocation"},
        )
    return location


def checkpoint_state(
    location: str,
    /,
    *,
    storage_options: Mapping[str, str] | None = None,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> CheckpointState:
    """Read a checkpoint's query id and its greatest micro-batch, once no gate is up.

    Parameters
    ----------
    location : str
        Directory or URL, as Spark was given it.
    storage_options : mapping, optional
        Credentials for a URL.
    now, pause : callable
        The clock, and what waits the given seconds between looks at a gate.

    Returns
    -------
    CheckpointState
        None for what is not there. A location that cannot be reached from Python (another file
        system than the library knows) gives None twice: then only the tasks know.

    Raises
    ------
    StorageError
        If the files are there and make no sense.

    Notes
    -----
    Cost: one small read, and listings of the checkpoint and of its ``offsets``, which Spark itself keeps
    short (100 files by default); side by side in a store. A gate is waited for ten seconds at most, and is then
    removed.

    Examples
    --------
    >>> checkpoint_state("/nowhere/at/all")
    CheckpointState(query=None, batch=None)
    """
    if not reachable(location):
        return CheckpointState(None, None)
    try:
        storage = open_storage(location, storage_options, literal=True)
        # Spark has written the offsets before: they need not wait for the look at the gate.
        found, text, names = _asked(
            storage, storage.names, lambda: storage.find("metadata"), lambda: storage.names("offsets")
        )
        if _GATE in found:
            _wait_at_gate(storage, location, now, pause)
    except (StorageError, OSError):
        # Not an error here: Spark gives the tasks the same, and the commit checks them.
        return CheckpointState(None, None)
    if text is None:
        return CheckpointState(None, None)
    return CheckpointState(_query_id(text, location), _greatest(names))


def _wait_at_gate(
    storage: TableStorage, location: str, now: Callable[[], float], pause: Callable[[float], None]
) -> None:
    if wait_until(lambda _: not storage.exists(_GATE), timeout_s=_GATE_S, poll_s=_GATE_LOOK_S, now=now, pause=pause):
        return
    _log.warning(
        "checkpoint %r: a gate that was put up for an advance is still there after %g seconds, and is removed — hint:"
        " check that the process that put it up still runs, and reaches the checkpoint",
        location,
        _GATE_S,
    )
    storage.delete(_GATE)


@contextmanager
def gate(location: str, /, *, storage_options: Mapping[str, str] | None = None) -> Iterator[bool]:
    """Keep a query's next micro-batch from being planned, unless one is under way already.

    Parameters
    ----------
    location : str
        Checkpoint of the query.
    storage_options : mapping, optional
        Credentials for a URL.

    Yields
    ------
    bool
        Whether none is under way: what is committed to the log before the gate is taken down is seen by
        whatever the query plans next. False too where that is not known.

    Raises
    ------
    StorageError
        If the checkpoint cannot be written or read.

    Notes
    -----
    Spark logs the offsets of a micro-batch before it plans the sink's writer. So either the offsets are seen
    here, once the gate is up, or the gate is seen there. Correctness does not hang on it: each commit says
    by which state of the stream it was decided, and the log refuses one of the two.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with gate(folder) as free:
    ...     print(free, os.listdir(folder))
    True ['timely-gate']
    """
    storage = open_storage(location, storage_options, literal=True)
    token = secrets.token_bytes(8)
    storage.write(_GATE, token)
    try:
        planned = _greatest(storage.names("offsets"))
        yield planned is None or storage.exists(f"commits/{planned}")
    finally:
        if storage.find(_GATE) == token:  # another one has put up its own, else
            storage.delete(_GATE)


def all_committed(location: str, /, *, storage_options: Mapping[str, str] | None = None) -> bool | None:
    """Say whether every micro-batch that a checkpoint's query planned is committed.

    Parameters
    ----------
    location : str
        Directory or URL, as Spark was given it.
    storage_options : mapping, optional
        Credentials for a URL.

    Returns
    -------
    bool or None
        True of a checkpoint that is still to be made; None where it cannot be read from here.

    Examples
    --------
    >>> all_committed("/nowhere/at/all")
    True
    """
    if not reachable(location):
        return None
    try:
        storage = open_storage(location, storage_options, literal=True)
        planned = _greatest(storage.names("offsets"))
        return planned is None or storage.exists(f"commits/{planned}")
    except (StorageError, OSError):
        return None


def reachable(location: str, /) -> bool:
    """Return whether Python can read a checkpoint's file system at all.

    Examples
    --------
    >>> reachable("s3://bucket/checkpoint"), reachable("hdfs://host/checkpoint")
    (True, False)
    """
    scheme = location.partition("://")[0].lower() if "://" in location else "file"
    return scheme == "file" or scheme in SCHEMES


def damaged_file(location: str, /) -> str | None:
    """Return a file of a checkpoint on this machine that Spark could not make sense of; None if there is none.

    Looked at are the query's id and the newest micro-batch. Spark reads no more when a query starts.
    """
    storage = open_storage(location, literal=True) if reachable(location) else None
    if storage is None or not storage.local:
        return None
    try:
        files = ["metadata"]
        for folder in ("offsets", "commits"):
            newest = _greatest(storage.names(folder))
            files += [] if newest is None else [f"{folder}/{newest}"]
        found = ((file, storage.find(file)) for file in files)  # three at most
        return next((file for file, content in found if content is not None and not _is_whole(file, content)), None)
    except (StorageError, OSError):
        return None  # Spark says it


def _is_whole(file: str, content: bytes) -> bool:
    """Return whether a file is JSON, behind a line with a version where it is about a micro-batch."""
    try:
        head, _, rest = content.decode().partition("\n")
        if file == "metadata":
            return isinstance(json.loads(content)["id"], str)
        return re.fullmatch(r"v\d+", head) is not None and all(
            line == "-" or isinstance(json.loads(line), dict | int) for line in rest.splitlines()
        )
    except (ValueError, KeyError, TypeError):
        return False


def _query_id(text: bytes, location: str) -> str:
    try:
        found = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError) as error:
        msg = f"could not read the query's id: found {text[:200]!r} in 'metadata' of checkpoint {location!r}"
        raise StorageError(
            msg,
            hint="restore the checkpoint, or start with a new checkpoint and another stream",
            determinate=True,
        ) from error
    return str(found)


def _greatest(names: list[str]) -> int | None:
    numbers = [int(name) for name in names if name.isdigit()]
    return max(numbers, default=None)


_FILE: Final = "timely-logs"
_VERSION: Final = 1
# As many as Spark keeps offsets of, unless set otherwise.
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
    """The record that a query wrote of one stream of one log.

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


def find_entry(
    entries: tuple[LogEntry, ...],
    path: str,
    stream: str,
    log_id: str | None,
    /,
    storage_options: Mapping[str, str] | None = None,
) -> LogEntry | None:
    """Return the entry of a log: the one of its place, else the one of its id, for it may have been moved.

    The place may be written in another way. Of two entries of one place that of the log's id is meant, else the newest.

    Examples
    --------
    >>> entries = (LogEntry("/a", "main", "1", (LogCommit(1, 0, 0),)),)
    >>> find_entry(entries, "/b", "main", "1") is entries[0], find_entry(entries, "/b", "main", "2")
    (True, None)
    """
    mine = [entry for entry in entries if entry.stream == stream]
    here = [entry for entry in mine if same_place(entry.path, path, storage_options)]
    named = [entry for entry in here or mine if entry.log_id == log_id]
    found = named or here
    return found[-1] if found else None


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
    return _entries(open_storage(location, storage_options, literal=True), location, query)


def _entries(storage: TableStorage, location: str, query: str) -> tuple[LogEntry, ...]:
    content = storage.find(_FILE)
    if content is None:
        return ()
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
            hint=f"use the version of spark-timely that wrote it: this one reads {_VERSION}",
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
        storage = open_storage(location, storage_options, literal=True)
        with _writing:
            entries = _entries(storage, location, query)
            old = find_entry(entries, path, stream, log_id, storage_options)
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


def _put(storage: TableStorage, content: bytes) -> None:
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
