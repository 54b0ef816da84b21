"""Checkpoints of a Delta table's log: written when due and read back; then the old entries behind them are deleted.

A `DeltaStore` does this with the upkeep after commits (`TableUpkeep`); `repair` reads which checkpoints are whole.
These are Delta's checkpoints of a table. Those of Spark's queries are in `spark_timely.spark.base.checkpoint`.

Invariants
----------
1. Nothing is deleted from the table's log before the checkpoint that replaces it, and the file that points to it,
   were flushed and read back.
2. What is deleted is older than a checkpoint by many versions, and goes in order of the versions. In an object store it
   is also older than the newest file by half an hour, by the store's clock.
3. What is due is counted from the table's newest checkpoint, also one of another program.
4. A checkpoint is whole if each file of it is there and can be read to its end.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from spark_timely.errors import StorageError, TimelyError
from spark_timely.log.store.delta_calls import delta_call
from spark_timely.log.store.entries import entry_path, removals
from spark_timely.log.store.scratch import CHECKPOINT, LAST_CHECKPOINT, put_checkpoint
from spark_timely.log.store.storage import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_timely.log.store.delta_calls import DeltaTable
    from spark_timely.log.store.storage import Storage, TableStorage


_OF_ANY_KIND = re.compile(r"(\d{20})\.checkpoint\..+")
_ENTRY = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The known checkpoints of a table, and their upkeep.

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
        # Two writers may have cut it into other numbers of parts.
        if not wrong and any(there >= wanted for wanted, there in Counter(map(_wanted, names)).items()):
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
        return int(json.loads(storage.find(LAST_CHECKPOINT) or b"")["version"])
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


def _removed(content: pa.Buffer, before: int) -> dict[str, tuple[int, int]]:
    """Return the files that a checkpoint names as taken out, up to a moment."""
    rows = pq.read_table(pa.BufferReader(content), columns=["remove"])["remove"].combine_chunks()
    rows = rows.filter(rows.is_valid())
    at = pc.struct_field(rows, "deletionTimestamp")
    rows = rows.filter(pc.fill_null(pc.less_equal(at, before), fill_value=False))
    return {
        unquote(path): (int(at), int(size or 0))
        for path, at, size in zip(
            *(pc.struct_field(rows, name).to_pylist() for name in ("path", "deletionTimestamp", "size")), strict=True
        )
    }


LOG_FILE = re.compile(r"(\d{20})\.(json|crc|checkpoint\.parquet)")
# Versions kept behind the newest checkpoint, for handles that have not looked for a while.
KEEP_VERSIONS = 100
# And seconds, where a look is a journey: a handle that has seen an entry need not look at it again all the time.
KEEP_S = 1800.0
# Versions after a failed checkpoint until it is tried again, and beyond what is due until it is called overdue.
_TRY_AGAIN = 10
_OVERDUE = 50
# Commits between two checkpoints: more where a checkpoint is large, so that what it costs per commit does not
# grow with the files, up to what a cold open is willing to read.
_CHECKPOINT_VERSIONS = (20, 200)
_FILES_PER_VERSION = 200


class TableUpkeep:
    """Upkeep of one table, by one handle.

    Parameters
    ----------
    storage : TableStorage
    open_table : callable
        Opens the table by delta-rs, at its newest version.
    """

    def __init__(self, storage: TableStorage, open_table: Callable[[], DeltaTable]) -> None:
        self._storage = storage
        self._open = open_table
        # Version and size of the newest checkpoint, once looked for; version before which none is tried.
        self._newest: tuple[int, int] | None = None
        self._tidy_from = 0

    def forget(self, newest: tuple[int, int] | None = None) -> None:
        """Look for the newest checkpoint again, unless it is given: the table was read again."""
        self._newest = newest

    def tidy(self, version: int, *, harmless: bool, now: bool = False) -> bool:
        """Write a checkpoint where one is due, and delete entries of the table's log far behind it, by count.

        What is due is counted from the table's newest checkpoint, also one of another program, so that it does not
        matter how many handles made the commits.

        Parameters
        ----------
        version : int
            Of the snapshot.
        harmless : bool
            Whether the table has no feature that asks for more than a checkpoint of one file.
        now : bool
            Whether a checkpoint is due after a single commit.

        Returns
        -------
        bool
            Whether something was due.

        Raises
        ------
        StorageError
            If that could not be done. The log is as good as before.
        """
        try:
            if not now and not self.is_due(version):
                return False
            self._tidy_from = version + _TRY_AGAIN
            self._newest = self._checkpoint()  # another handle may have written one
            newest = self._newest
            if self._behind(version) >= (1 if now else self._due()):
                newest = self._newest = self._write_checkpoint(version, newest[0], harmless=harmless)
            self._clean(newest[0])
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise self._not_tidied(plain(error)) from error
        self._tidy_from = 0
        return True

    def replaced(self, version: int, before: int) -> dict[str, tuple[int, int]]:
        """Return the files that commits up to a version took out of the table, as far as the table's log tells.

        Parameters
        ----------
        version : int
            Of the snapshot.
        before : int
            Milliseconds since 1970: only those that were taken out at this moment or before.

        Returns
        -------
        dict
            By path, when, and how many bytes.

        Notes
        -----
        Reads the newest checkpoint, and the entries behind it. A checkpoint names a file for as long as the table keeps
        files that were replaced, then no longer.
        """
        newest = self._checkpoint()[0]
        found: dict[str, tuple[int, int]] = {}
        try:
            for name in self._storage.names("_delta_log", after=f"{newest:020d}") if newest else ():
                if CHECKPOINT.fullmatch(name) and int(name[:20]) == newest:
                    found |= _removed(self._storage.read(f"_delta_log/{name}"), before)
            for number in range(newest + 1 if newest else 0, version + 1):
                content = self._storage.kept(entry_path(number)) or self._storage.find(entry_path(number))
                for path, (at, size) in removals(content or b"").items():
                    found.pop(path, None)  # taken out once more since
                    if at <= before:
                        found[path] = (at, size)
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            msg = f"could not read which files of {self._storage.uri!r} were replaced: found {plain(error)}"
            raise StorageError(
                msg,
                hint="it is tried again behind later commits",
                context={"path": self._storage.uri},
                determinate=True,
            ) from error
        return found

    def is_due(self, version: int) -> bool:
        """Return whether a checkpoint is due behind a version."""
        if self._newest is None:
            self._newest = self._checkpoint()
        over = self._behind(version) - self._due()
        # At some versions only, so that of many who commit at once few do it; long after, any of them.
        return over >= 0 and version >= self._tidy_from and (over % _TRY_AGAIN == 0 or over >= _OVERDUE)

    def _not_tidied(self, found: str) -> StorageError:
        return StorageError(
            f"could not tidy the table log of {self._storage.uri!r}: found {found}",
            hint="check space and permissions; it is tried again behind later commits, and by `spark-timely compact`",
            context={"path": self._storage.uri},
            determinate=True,
        )

    def _behind(self, version: int) -> int:
        return version - (self._newest or (0, 0))[0]

    def _due(self) -> int:
        """Return how many versions lie between two checkpoints."""
        low, high = _CHECKPOINT_VERSIONS
        return min(max(low, (self._newest or (0, 0))[1] // _FILES_PER_VERSION), high)

    def _write_checkpoint(self, version: int, newest: int, *, harmless: bool) -> tuple[int, int]:
        if harmless:
            return version, put_checkpoint(self._storage, version, newest)
        table = self._open()
        with delta_call(self._storage.uri):
            table.create_checkpoint()
        return self._checkpoint()

    def _clean(self, checkpoint: int) -> None:
        """Delete what is far behind a checkpoint, in order of the versions (invariant 2)."""
        old = self._behind_checkpoint(checkpoint)
        if not old or not self._is_replaced(checkpoint):
            return
        for name in old:  # some tens, because this is done regularly
            self._storage.delete(f"_delta_log/{name}")

    def _behind_checkpoint(self, checkpoint: int) -> list[str]:
        limit = checkpoint - KEEP_VERSIONS
        ages = self._storage.ages("_delta_log")
        matches = [match for name in sorted(ages) if (match := LOG_FILE.fullmatch(name)) and int(match[1]) < limit]
        # Not past one that was put there again lately: a handle that stands at it takes what follows for all there is.
        return [match[0] for match in takewhile(lambda match: ages[match[0]] > KEEP_S, matches)]

    def _is_replaced(self, version: int) -> bool:
        """Flush a checkpoint and the file that points to it, and read both back (invariant 1).

        False where the file points to an earlier one: another handle was late with it.
        """
        path = f"_delta_log/{version:020d}.checkpoint.parquet"
        if not self._storage.exists(path):
            found = f"a checkpoint of version={version} that is not one file"
            raise self._not_tidied(found)
        self._storage.flush([path, LAST_CHECKPOINT], always=True)
        if self._checkpoint()[0] < version:
            return False
        rows = pq.read_table(pa.BufferReader(self._storage.read(path)), columns=["metaData", "add"])
        if rows["metaData"].null_count == rows.num_rows:
            found = f"a checkpoint of version={version} that does not read back"
            raise self._not_tidied(found)
        return True

    def problems(self, version: int) -> list[str]:
        """Return what is wrong with the upkeep of the table, also what others should have done; nothing is changed."""
        found = [] if (problem := self._storage.flush_problem()) is None else [problem]
        self._newest = self._checkpoint()
        behind = self._behind(version)
        if behind >= self._due() + _OVERDUE:
            found.append(
                f"no checkpoint since version {self._newest[0]}, {behind} commits ago: opening the log takes"
                " longer and longer; run `spark-timely compact`, which says what is wrong"
            )
        old = self._behind_checkpoint(self._newest[0])
        if len(old) >= _OVERDUE:
            found.append(
                f"{len(old)} old entries behind the checkpoint of version {self._newest[0]} are not deleted: run"
                " `spark-timely compact`, which says what is wrong"
            )
        return found

    def _checkpoint(self) -> tuple[int, int]:
        """Return version and size of the newest checkpoint; (0, 0) if there is none."""
        try:
            last = json.loads(self._storage.find(LAST_CHECKPOINT) or b"")
            version, size = int(last["version"]), int(last.get("size", 0))
        except (TimelyError, ValueError, KeyError, TypeError):
            return 0, 0
        if self._storage.exists(f"_delta_log/{version:020d}.checkpoint.parquet"):
            return version, size
        # In parts, or of a kind that we do not read.
        beginning = f"{version:020d}.checkpoint."
        return (version, size) if any(n.startswith(beginning) for n in self._storage.names("_delta_log")) else (0, 0)
