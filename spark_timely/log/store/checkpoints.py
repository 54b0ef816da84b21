"""The checkpoints of a table's log: which are there, which are whole, and what the file says that points to the newest.

Invariants
----------
1. A checkpoint is whole if each file of it is there and can be read to its end.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from spark_timely.errors import TimelyError
from spark_timely.log.store.scratch import CHECKPOINT, LAST_CHECKPOINT
from spark_timely.log.store.storage import plain

if TYPE_CHECKING:
    from spark_timely.log.store.storage import Storage

__all__ = ["Checkpoints", "lost_checkpoint", "read_checkpoints"]

_OF_ANY_KIND = re.compile(r"(\d{20})\.checkpoint\..+")
_ENTRY = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What is known of a table's checkpoints.

    Attributes
    ----------
    newest : int or None
        Version of the newest whole one.
    broken : dict of str to str
        Names of files of checkpoints that cannot be read, and what is wrong with each.
    lost : int or None
        Version that the pointer names, where no whole checkpoint of it is there.
    """

    newest: int | None
    broken: dict[str, str]
    lost: int | None


def read_checkpoints(storage: Storage) -> Checkpoints:
    """Read all checkpoints of a table to their ends.

    Parameters
    ----------
    storage : Storage
        Of the table.

    Notes
    -----
    Cost: that of reading one or two checkpoints, as a rule.

    Examples
    --------
    >>> from spark_timely.log.store.storage import MemoryStorage
    >>> storage = MemoryStorage()
    >>> storage.write("_delta_log/_last_checkpoint", b'{"version":7,"size":9}')
    >>> storage.write("_delta_log/00000000000000000007.checkpoint.parquet", b"PAR1")
    >>> read_checkpoints(storage).newest, read_checkpoints(storage).lost
    (None, 7)
    """
    parts: dict[int, list[str]] = {}
    others: set[int] = set()
    for name in storage.names("_delta_log"):
        if CHECKPOINT.fullmatch(name):
            parts.setdefault(int(name[:20]), []).append(name)
        elif found := _OF_ANY_KIND.fullmatch(name):
            others.add(int(found[1]))  # of a kind that we do not read
    broken: dict[str, str] = {}
    whole: list[int] = []
    for version, names in parts.items():  # a few
        wrong = {name: why for name in names if (why := _wrong(storage, name)) is not None}
        broken |= wrong
        if not wrong and any(len(names) >= _wanted(name) for name in names):
            whole.append(version)
    named = _named(storage)
    lost = named if named is not None and named not in (*whole, *others) else None
    return Checkpoints(max(whole, default=None), broken, lost)


def lost_checkpoint(storage: Storage) -> tuple[str, str] | None:
    """Return a file that needs a checkpoint which is not there, and what was found; None if there is no such file.

    Parameters
    ----------
    storage : Storage
        Of a table that cannot be opened.

    Examples
    --------
    >>> from spark_timely.log.store.storage import MemoryStorage
    >>> storage = MemoryStorage()
    >>> storage.write("_delta_log/_last_checkpoint", b'{"version":7,"size":9}')
    >>> lost_checkpoint(storage)
    ('_delta_log/_last_checkpoint', "'_delta_log/_last_checkpoint' naming a checkpoint of version=7 that is not there")
    """
    names = storage.names("_delta_log")
    there = {int(found[1]) for name in names if (found := _OF_ANY_KIND.fullmatch(name))}
    named = _named(storage)
    if named is not None and named not in there:
        return LAST_CHECKPOINT, f"{LAST_CHECKPOINT!r} naming a checkpoint of version={named} that is not there"
    entries = [int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))]
    first = min(entries, default=0)
    if first > 0 and not there:
        file = f"_delta_log/{first:020d}.json"
        return file, f"{file!r} as the first entry, and no checkpoint that it follows"
    return None


def _named(storage: Storage) -> int | None:
    """Return the version that the pointer names; None where there is none, or it makes no sense and counts as none."""
    try:
        return int(json.loads(storage.read(LAST_CHECKPOINT).to_pybytes())["version"])
    except (TimelyError, ValueError, LookupError, TypeError):
        return None


def _wanted(name: str) -> int:
    """Return of how many files a checkpoint is."""
    pieces = name.split(".")
    return int(pieces[3]) if len(pieces) == 5 else 1


def _wrong(storage: Storage, name: str) -> str | None:
    try:
        pq.read_table(pa.BufferReader(storage.read(f"_delta_log/{name}")))
    except (TimelyError, OSError, ValueError, pa.ArrowException) as error:
        return plain(error)
    return None
