"""Cache of the files that a process has read for peeks: their footers as arrays, and small files decoded and sorted.

`peek` takes the cache of its log, and `log_peek` reads files through it. Subscriptions do not use it.

Invariants
----------
1. A file is known by its log's id and place, its path and its size, never by a path alone: a log that was made again,
   or restored, has other files, or files with the same content.
2. What is kept is what was read, and no more than the budget: the files that were asked for last.
3. What was given out never changes. Threads may ask at the same time; then something may be read twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_timely.log.files.footer import Footer
from spark_timely.log.files.format import in_schema
from spark_timely.log.files.parquet_reader import BROKEN, corrupt, expect_columns, open_parquet
from spark_timely.trace.keys import KeySet, key_hashes
from spark_timely.trace.updates import DIFF, Updates, places_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.answers.plan import PeekPlan
    from spark_timely.log.store.storage import Storage
    from spark_timely.time.antichain import BoolArray

__all__ = ["KeptFiles", "Pieces", "kept_files"]

BUDGET_BYTES: Final = 64 << 20
"""Of decoded files, and of those sorted by keys, each."""

SMALL_BYTES: Final = 1 << 20
"""A file with more is read by its row groups."""

_MOST_FOOTERS: Final = 4096
_MOST_SORTED: Final = 32


@dataclass(frozen=True, slots=True)
class Pieces:
    """Row groups of a file that are to be read.

    Attributes
    ----------
    path : str
    groups : tuple of int
    """

    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Updates of small files, with the hashes of some columns, sorted by these."""

    updates: Updates
    paths: frozenset[str]


class KeptFiles:
    """The cached files of one log.

    Parameters
    ----------
    budget_bytes : int
        Of decoded files, and of those sorted by keys, each.
    small_bytes : int
        Files with more are not kept decoded.
    """

    def __init__(self, *, budget_bytes: int = BUDGET_BYTES, small_bytes: int = SMALL_BYTES) -> None:
        self.small_bytes = small_bytes
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._footers: OrderedDict[tuple[str, int], Footer] = OrderedDict()
        self._decoded: OrderedDict[tuple[str, int, pa.Schema], Updates] = OrderedDict()
        self._decoded_bytes = 0
        self._sorted: OrderedDict[tuple[tuple[str, ...], pa.Schema], _Sorted] = OrderedDict()
        self.files_read = 0
        """Counts the files, and parts of files, that this object has read: what a peek adds to it was not kept."""

    # Footers -----------------------------------------------------------------------------------------

    def footer(self, storage: Storage, path: str, size: int) -> Footer:
        """Return the footer of a file, read where it is not kept.

        Raises
        ------
        DataLossError
            If the file is missing, or no Parquet file.
        """
        key = path, size
        with self._lock:
            found = self._footers.get(key)
            if found is not None:
                self._footers.move_to_end(key)
                return found
        with open_parquet(storage, path) as file:
            found = Footer(file.metadata, file.schema_arrow)
        with self._lock:
            self._footers[key] = found
            while len(self._footers) > _MOST_FOOTERS:
                self._footers.popitem(last=False)
        return found

    def read(
        self,
        plan: PeekPlan,
        size: int,
        pieces: Pieces,
        columns: Sequence[str],
        keys: KeySet | None = None,
    ) -> Updates:
        """Read row groups of a file.

        Parameters
        ----------
        plan : PeekPlan
        size : int
            Of the file.
        pieces : Pieces
        columns : sequence of str
            Of the payload.
        keys : KeySet, optional
            Of the plan: rows of others are left out.

        Raises
        ------
        DataLossError
            If the file is missing or corrupt.

        Notes
        -----
        Cost: what is read is decoded, but for times and diffs that are the same in all rows, as the footer tells. Texts
        that have a dictionary are looked up in it for the rows alone that are wanted.
        """
        footer = self.footer(plan.storage, pieces.path, size)
        schema = _schema(plan, columns)
        key_schema = pa.schema([]) if keys is None or plan.keys is None else plan.keys.schema
        by = key_schema.names
        own = (*plan.form.domain.columns, DIFF)
        same = {name: found for name in schema.names if name in own and (found := footer.constant(name, pieces.groups))}
        present = set(footer.schema.names)
        names = [name for name in schema.names if name in present and name not in same]
        shared = [name for name in names if by and name not in by and footer.has_dictionary(name, pieces.groups)]
        source = plan.storage.open_input(pieces.path)
        try:
            file = pq.ParquetFile(
                source,
                metadata=footer.metadata,
                read_dictionary=shared,
                coerce_int96_timestamp_unit="us",
                pre_buffer=False,
                page_checksum_verification=True,
            )
            with file:
                expect_columns(source, footer.metadata, pieces.groups, set(names), at_once=True)
                table = file.read_row_groups(list(pieces.groups), columns=names, use_threads=False)
        except BROKEN as error:
            source.close()
            raise corrupt(plan.storage.uri, pieces.path, error) from error
        self.files_read += 1
        if keys is not None:
            wanted = in_schema(table.select([name for name in by if name in present]), key_schema)
            table = _filtered(table, keys.among(wanted))
        for name, (value,) in same.items():
            kind = footer.schema.field(name).type
            number = pa.scalar(value, pa.int64()).cast(pa.int64())
            whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
            column = pa.repeat(number.cast(whole), table.num_rows)
            table = table.append_column(
                name, column.view(kind) if kind != whole and not pa.types.is_integer(kind) else column
            )
        return Updates.of_table(in_schema(table, schema), plan.form.domain, columns)

    # Small files -------------------------------------------------------------------------------------

    def decoded(self, plan: PeekPlan, path: str, size: int) -> tuple[Updates, bool]:
        """Return all payload columns of a small file, and whether it had to be read."""
        payload = plan.form.payload
        key = path, size, payload
        with self._lock:
            found = self._decoded.get(key)
            if found is not None:
                self._decoded.move_to_end(key)
                return found, False
        footer = self.footer(plan.storage, path, size)
        found = self.read(plan, size, Pieces(path, tuple(range(footer.n_groups))), payload.names)
        with self._lock:
            if key not in self._decoded and found.nbytes <= self._budget:
                self._decoded[key] = found
                self._decoded_bytes += found.nbytes
                while self._decoded_bytes > self._budget:
                    _, gone = self._decoded.popitem(last=False)
                    self._decoded_bytes -= gone.nbytes
        return found, True

    def find(self, plan: PeekPlan, keys: KeySet, files: Sequence[tuple[str, int]]) -> tuple[Updates, int]:
        """Return the updates of a plan's keys in small files, and how many of these had to be read.

        Parameters
        ----------
        plan : PeekPlan
        keys : KeySet
            Of the plan.
        files : sequence of (str, int)
            Paths and sizes, of one at least.

        Notes
        -----
        Cost: a binary search for each key, where all files are kept. Files that came since are sorted among the others.
        """
        every, n_read = self._sorted_by(plan, keys.by, files)
        hashes = every.updates.hashes
        assert hashes is not None
        found = replace(every.updates, hashes=None).take(places_of(keys.hashes, hashes))
        return found.where(keys.among(found.rows)), n_read

    def _sorted_by(
        self, plan: PeekPlan, columns: tuple[str, ...], files: Sequence[tuple[str, int]]
    ) -> tuple[_Sorted, int]:
        key = columns, plan.form.payload
        wanted = frozenset(f"{size}:{path}" for path, size in files)
        with self._lock:
            known = self._sorted.get(key)
            if known is not None and known.paths == wanted:
                self._sorted.move_to_end(key)
                return known, 0
        base = known if known is not None and known.paths < wanted else None
        missing = [each for each in files if base is None or f"{each[1]}:{each[0]}" not in base.paths]
        n_read = 0
        parts = []
        for path, size in missing:
            found, was_read = self.decoded(plan, path, size)
            n_read += was_read
            parts.append(found)
        more = Updates.concat(parts)
        more = replace(more, hashes=key_hashes(more.rows, columns))
        every = more if base is None else Updates.concat([base.updates, more])
        assert every.hashes is not None
        ordered = every.take(np.argsort(every.hashes, kind="stable"))
        made = _Sorted(replace(ordered, rows=ordered.rows.combine_chunks()), wanted)
        if made.updates.nbytes <= self._budget:
            with self._lock:
                self._sorted[key] = made
                self._sorted.move_to_end(key)
                while len(self._sorted) > _MOST_SORTED or self._sorted_bytes() > self._budget:
                    self._sorted.popitem(last=False)
        return made, n_read

    def _sorted_bytes(self) -> int:
        return sum(each.updates.nbytes for each in self._sorted.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of decoded and sorted files that are kept."""
        with self._lock:
            return self._decoded_bytes + self._sorted_bytes()


def _filtered(table: pa.Table, kept: BoolArray) -> pa.Table:
    """Return some rows of a table; of those that stand beside each other no copy of the others is made."""
    places = np.flatnonzero(kept)
    n = places.shape[0]
    if n == table.num_rows:
        return table
    if n and int(places[-1]) - int(places[0]) == n - 1:
        return table.slice(int(places[0]), n)
    return table.take(pa.array(places))


def _schema(plan: PeekPlan, columns: Sequence[str]) -> pa.Schema:
    form = plan.form
    diff = (DIFF,) if form.kind == "collection" else ()
    return pa.schema([form.data_schema.field(name) for name in (*form.domain.columns, *diff, *columns)])


_MOST_LOGS: Final = 64
_logs: OrderedDict[tuple[str, str], KeptFiles] = OrderedDict()
_lock = threading.Lock()


def kept_files(log_id: str, place: str) -> KeptFiles:
    """Return what this process keeps of the files of a log (invariant 1).

    Parameters
    ----------
    log_id : str
    place : str
        Where its files are.

    Examples
    --------
    >>> kept_files("a", "/log") is kept_files("a", "/log"), kept_files("a", "/log") is kept_files("b", "/log")
    (True, False)
    """
    with _lock:
        found = _logs.get((log_id, place))
        if found is None:
            found = _logs[log_id, place] = KeptFiles()
        _logs.move_to_end((log_id, place))
        while len(_logs) > _MOST_LOGS:
            _logs.popitem(last=False)
        return found


def forget_files() -> None:
    """Let go of all that is kept, as a new process has none.

    Examples
    --------
    >>> forget_files()
    """
    with _lock:
        _logs.clear()
