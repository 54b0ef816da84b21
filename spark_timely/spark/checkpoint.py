"""Read from a query's checkpoint which query it is and which micro-batch it is about to run.

Spark tells a Python sink's planner neither. Both stand in the checkpoint's files: ``metadata``
holds the query's id, written when the query is made; ``offsets/<n>`` is written before micro-batch
n is planned, so the greatest n is the micro-batch at hand, a repeated one included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidOptionError, StorageError
from spark_timely.log.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CheckpointState", "all_committed", "checkpoint_state", "require_checkpoint"]

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


def checkpoint_state(location: str, /, *, storage_options: Mapping[str, str] | None = None) -> CheckpointState:
    """Read a checkpoint's query id and its greatest micro-batch.

    Parameters
    ----------
    location : str
        Directory or URL, as Spark was given it.
    storage_options : mapping, optional
        Credentials for a URL.

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
    Cost: one small read and one listing of ``offsets``, which Spark itself keeps short (100 files
    by default).

    Examples
    --------
    >>> checkpoint_state("/nowhere/at/all")
    CheckpointState(query=None, batch=None)
    """
    if not _reachable(location):
        return CheckpointState(None, None)
    try:
        storage = open_storage(location, storage_options)
        text = bytes(storage.read("metadata")) if storage.exists("metadata") else None
        names = storage.names("offsets") if text is not None else []
    except (StorageError, OSError):
        # Not an error here: the tasks are told the same by Spark, and the commit checks them.
        return CheckpointState(None, None)
    return CheckpointState(None if text is None else _query_id(text, location), _greatest(names))


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
    if not _reachable(location):
        return None
    try:
        storage = open_storage(location, storage_options)
        planned = _greatest(storage.names("offsets"))
        return planned is None or storage.exists(f"commits/{planned}")
    except (StorageError, OSError):
        return None


def _reachable(location: str) -> bool:
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
