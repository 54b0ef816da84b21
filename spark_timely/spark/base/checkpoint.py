"""Read from a query's checkpoint which query it is and which micro-batch it is about to run.

Spark tells a Python sink's planner neither. Both stand in the checkpoint's files: ``metadata``
holds the query's id, written when the query is made; ``offsets/<n>`` is written before micro-batch
n is planned, so the greatest n is the micro-batch at hand, a repeated one included.

A process that advances a stream from outside while its query runs puts up a gate in the checkpoint first: a file that
the query's next micro-batch waits for before it is planned, so that it is planned after the advance.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidOptionError, StorageError
from spark_timely.log.store.storage import open_storage
from spark_timely.masking import masked, masked_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.log.store.storage import FileStorage

__all__ = [
    "CheckpointState",
    "PlannedOffsets",
    "all_committed",
    "checkpoint_state",
    "gate",
    "is_finished",
    "planned_offsets",
    "reachable",
    "require_checkpoint",
]

_log = masked_logger("spark_timely.spark")

# Spark looks at the names that it knows and at no others.
_GATE = "timely-gate"
_GATE_LOOK_S = 0.02
# Whoever put the gate up has died, or is so slow that its commit may lose the race.
_GATE_LOOKS = 500

# A version, and the wall clock with settings of the session.
_HEADER_LINES = 2
_MOST_SOURCE_BYTES = 16 * 1024

# What both Spark and the library's storage can reach; a checkpoint elsewhere is left to the tasks.
_SCHEMES = frozenset({"file", "s3", "s3a", "gs", "az", "adl", "abfs", "abfss"})


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
    Spark writes the entry before it plans the micro-batch, and never again. Cost: two small reads.

    Examples
    --------
    >>> planned_offsets("/nowhere/at/all", 0) is None
    True
    """
    if not reachable(location):
        return None
    content = _entry(location, batch, storage_options)
    if content is None:
        return None
    before = b"" if batch == 0 else _entry(location, batch - 1, storage_options)
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
        return open_storage(location, storage_options).exists(f"commits/{batch}")
    except (StorageError, OSError):
        return False


def _entry(location: str, batch: int, storage_options: Mapping[str, str] | None) -> bytes | None:
    try:
        return bytes(open_storage(location, storage_options).read(f"offsets/{batch}"))
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
    pause: Callable[[float], None] = time.sleep,
) -> CheckpointState:
    """Read a checkpoint's query id and its greatest micro-batch, once no gate is up.

    Parameters
    ----------
    location : str
        Directory or URL, as Spark was given it.
    storage_options : mapping, optional
        Credentials for a URL.
    pause : callable
        Waits the given seconds between looks at a gate.

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
    short (100 files by default). A gate is waited for ten seconds at most, and is then removed.

    Examples
    --------
    >>> checkpoint_state("/nowhere/at/all")
    CheckpointState(query=None, batch=None)
    """
    if not reachable(location):
        return CheckpointState(None, None)
    try:
        storage = open_storage(location, storage_options)
        found = storage.names()
        if _GATE in found:
            _wait_at_gate(storage, location, pause)
        text = bytes(storage.read("metadata")) if "metadata" in found else None
        names = storage.names("offsets") if text is not None else []
    except (StorageError, OSError):
        # Not an error here: Spark gives the tasks the same, and the commit checks them.
        return CheckpointState(None, None)
    return CheckpointState(None if text is None else _query_id(text, location), _greatest(names))


def _wait_at_gate(storage: FileStorage, location: str, pause: Callable[[float], None]) -> None:
    for _ in range(_GATE_LOOKS):
        pause(_GATE_LOOK_S)
        if not storage.exists(_GATE):
            return
    _log.warning(
        "checkpoint %r: a gate that was put up for an advance is still there after %g seconds, and is removed — hint:"
        " check that the process that put it up still runs, and reaches the checkpoint",
        location,
        _GATE_LOOKS * _GATE_LOOK_S,
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
        whatever the query plans next. False too where that cannot be told.

    Raises
    ------
    StorageError
        If the checkpoint cannot be written or read.

    Notes
    -----
    Spark logs the offsets of a micro-batch before it plans the sink's writer. So either the offsets are seen
    here, once the gate is up, or the gate is seen there. Correctness does not hang on it: whoever commits says
    which state of the stream he decided by, and the log refuses one of the two.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with gate(folder) as free:
    ...     print(free, os.listdir(folder))
    True ['timely-gate']
    """
    storage = open_storage(location, storage_options)
    storage.write(_GATE, b"")
    try:
        planned = _greatest(storage.names("offsets"))
        yield planned is None or storage.exists(f"commits/{planned}")
    finally:
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
        storage = open_storage(location, storage_options)
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
    return scheme in _SCHEMES


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
