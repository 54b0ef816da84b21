"""The canonical hash of a log's state: for each closed time the multiset of its rows, and the frontier.

`log.verify` computes it with a `CanonicalState`, and ``spark-timely verify`` prints it: compare two logs by it. Those
that say the same have the same digest, whichever engine computes it, and however they were captured, cut into files,
compacted or replayed. Rows are hashed one by one (`spark_timely.canonical.row_hash`) and the hashes of one time added
up, so parts can be hashed anywhere and merged. The digest of one commit alone is `content`.

The digest, complete: the SHA-256, as hexadecimal text, of these numbers, each in 8 bytes, little
endian: k; the number n of closed times; for each closed time, in lexicographic order, its k
coordinates, the sum of the weights of its rows, and per lane the sum of weight times row hash; the
number m of frontier elements; these, in lexicographic order, k coordinates each. Sums are modulo
2**64. The weight of a row is its diff in a log of a collection, else 1. A time at which all sums
are zero is left out, so updates give the same digest consolidated or not.
Before the numbers stand the ASCII bytes ``spark_timely canonical 1`` and one byte 0.

Invariants
----------
1. Only the multiset of (row, time, weight) matters: rows may be added and parts merged in any order.
2. A digest covers the times that are not beyond the given frontier, and only those.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher, Words
from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.time.antichain import (
    Antichain,
    DiffArray,
    IntArray,
    TimesLike,
    as_diffs,
    as_times,
    beyond,
    concat_times,
    group_times,
    is_sorted,
    run_starts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_HEAD = b"spark_timely canonical 1\0"
# Entries that wait until they are merged.
_LAZY = 1 << 16


class CanonicalState:
    """Sums of row hashes and counts per time: what the digest is made from.

    Parameters
    ----------
    columns : pyarrow.Schema, iterable of str or RowHasher, optional
        The payload columns; needed for `add`, not for `add_hashes` and `merge`.
    arity : int
        Number k of coordinates of each time.

    Notes
    -----
    Small: one entry per distinct time. Picklable; `to_arrow` for a trip through Spark.

    Examples
    --------
    >>> state = CanonicalState(["v"])
    >>> state.add(pa.table({"v": [1, 2, 3]}), [[0], [0], [5]])
    >>> other = CanonicalState(["v"])
    >>> other.add(pa.table({"v": [2, 1]}), [0, 0])
    >>> frontier = Antichain.of(5)
    >>> state.digest(frontier) == other.digest(frontier)
    True
    """

    __slots__ = ("_arity", "_hasher", "_parts", "_pending")

    def __init__(self, columns: pa.Schema | Iterable[str] | RowHasher | None = None, arity: int = 1) -> None:
        if columns is not None and not isinstance(columns, RowHasher):
            columns = RowHasher(columns)
        self._hasher = columns
        self._arity = arity
        # Sums per time in parts; the first one is what was merged so far.
        empty = np.empty((0, arity), dtype=np.int64)
        self._parts: list[tuple[IntArray, Words, DiffArray]] = [
            (empty, np.empty((0, 2), dtype=np.uint64), np.empty(0, dtype=np.int64))
        ]
        self._pending = 0

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    @property
    def times(self) -> IntArray:
        """The distinct times, shape (m, k), in lexicographic order."""
        return self._merged()[0]

    @property
    def sums(self) -> Words:
        """Sum of weight times row hash per time and lane, shape (m, 2), modulo 2**64."""
        return self._merged()[1]

    @property
    def counts(self) -> DiffArray:
        """Sum of the weights per time, shape (m,)."""
        return self._merged()[2]

    def add(
        self,
        table: pa.Table | pa.RecordBatch,
        times: TimesLike,
        diffs: npt.ArrayLike | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        table : pyarrow.Table or RecordBatch
            Columns that were not named to the constructor are left out.
        times : array-like of integers, shape (n, k)
            Time of each row.
        diffs : array-like of integers, shape (n,), optional
            Weight of each row; 1 unless given.

        Raises
        ------
        InvalidShapeError
            If there are not as many times, or diffs, as rows.
        InvalidUsageError
            If no columns were named to the constructor.

        Notes
        -----
        Cost: see `RowHasher`; cheapest where the rows are sorted by time.

        Examples
        --------
        >>> state = CanonicalState(["v"])
        >>> state.add(pa.table({"v": [1, 1]}), [3, 3], diffs=[1, -1])
        >>> state.digest(Antichain.empty()) == CanonicalState().digest(Antichain.empty())
        True
        """
        if self._hasher is None:
            msg = "could not hash rows: found no columns"
            raise InvalidUsageError(msg, hint="name the columns to CanonicalState, or use add_hashes")
        self.add_hashes(self._hasher.hash(table), times, diffs)

    def add_hashes(self, hashes: Words, times: TimesLike, diffs: npt.ArrayLike | None = None) -> None:
        """Add rows of which `RowHasher.hash` is known already.

        Raises
        ------
        InvalidShapeError
            If shapes do not fit.

        Examples
        --------
        >>> state = CanonicalState()
        >>> state.add_hashes(np.ones((2, 2), dtype=np.uint64), [7, 7])
        >>> state.counts.tolist(), state.sums.tolist()
        ([2], [[2, 2]])
        """
        rows = as_times(times, self._arity)
        if hashes.shape != (rows.shape[0], 2):
            msg = f"could not hash rows: found {rows.shape[0]} times for hashes of shape={hashes.shape!r}"
            raise InvalidShapeError(msg, hint="give one time for each row")
        if diffs is None:
            weights = np.ones(rows.shape[0], dtype=np.int64)
        else:
            weights = as_diffs(diffs, rows.shape[0])
            hashes = hashes * weights.view(np.uint64)[:, None]
        self._add(rows, hashes, weights)

    def merge(self, other: CanonicalState) -> None:
        """Add what another state holds.

        Raises
        ------
        InvalidShapeError
            If the arities differ.

        Examples
        --------
        >>> state, part = CanonicalState(["v"]), CanonicalState(["v"])
        >>> part.add(pa.table({"v": [1]}), [3])
        >>> state.merge(part)
        >>> state.counts.tolist()
        [1]
        """
        self._add(as_times(other.times, self._arity), other.sums, other.counts)

    def _add(self, times: IntArray, sums: Words, counts: DiffArray) -> None:
        if times.shape[0]:
            self._parts.append(_summed(times, sums, counts))
            self._pending += self._parts[-1][0].shape[0]
        # Merged when as much is new as was merged before: every entry is moved a few times in all.
        if self._pending > max(_LAZY, 2 * self._parts[0][0].shape[0]):
            self._merged()

    def _merged(self) -> tuple[IntArray, Words, DiffArray]:
        """Return the sums per time, all parts merged into one."""
        if len(self._parts) > 1:
            times, sums, counts = zip(*self._parts, strict=True)
            merged = _summed(concat_times(*times), np.concatenate(sums), np.concatenate(counts))
            self._parts = [merged]
            self._pending = merged[0].shape[0]
        return self._parts[0]

    def to_arrow(self) -> pa.Table:
        """Return the state as a table of 64-bit integers that Spark can carry.

        Columns `time_0`, …, `count`, `sum_0`, `sum_1`; the sums as signed integers of the same bits.

        Examples
        --------
        >>> state = CanonicalState(["v"])
        >>> state.add(pa.table({"v": [1]}), [3])
        >>> state.to_arrow().column_names
        ['time_0', 'count', 'sum_0', 'sum_1']
        """
        times, sums, counts = self._merged()
        columns = {f"time_{i}": pa.array(np.ascontiguousarray(times[:, i]).view(np.int64)) for i in range(self._arity)}
        columns["count"] = pa.array(counts)
        for lane in range(2):
            columns[f"sum_{lane}"] = pa.array(np.ascontiguousarray(sums[:, lane]).view(np.int64))
        return pa.table(columns)

    @classmethod
    def from_arrow(cls, parts: pa.Table | pa.RecordBatch | Iterable[pa.Table | pa.RecordBatch]) -> Self:
        """Return the sum of states that `to_arrow` gave, as one table or several.

        Raises
        ------
        InvalidShapeError
            If there is no table to tell the arity from, or a column is missing.

        Examples
        --------
        >>> state = CanonicalState(["v"])
        >>> state.add(pa.table({"v": [1]}), [3])
        >>> CanonicalState.from_arrow([state.to_arrow(), state.to_arrow()]).counts.tolist()
        [2]
        """
        tables = [parts] if isinstance(parts, pa.Table | pa.RecordBatch) else list(parts)
        names = set(tables[0].schema.names) if tables else set()
        if not {"time_0", "count", "sum_0", "sum_1"} <= names:
            msg = f"could not read hash states: found columns={sorted(names)!r:.200}"
            raise InvalidShapeError(msg, hint="give the tables that CanonicalState.to_arrow made")
        arity = sum(name.startswith("time_") for name in names)
        state = cls(arity=arity)
        for table in tables:

            def column(name: str, table: pa.Table | pa.RecordBatch = table) -> DiffArray:
                return np.asarray(table.column(name).to_numpy(), dtype=np.int64)

            times = np.stack([column(f"time_{i}") for i in range(arity)], axis=1)
            sums = np.stack([column(f"sum_{lane}").view(np.uint64) for lane in range(2)], axis=1)
            state._add(times, sums, column("count"))
        return state

    def _closed(self, frontier: Antichain | None) -> tuple[IntArray, Words, DiffArray]:
        times, sums, counts = self._merged()
        keep = (counts != 0) | (sums != 0).any(axis=1)
        if frontier is not None:
            keep &= ~beyond(times, as_times(frontier.times, self._arity))
        return times[keep], sums[keep], counts[keep]

    def digest(self, frontier: Antichain) -> str:
        """Return the canonical hash of the times closed by `frontier`, and of the frontier.

        Parameters
        ----------
        frontier : Antichain
            The final frontier: times beyond it are open, and left out.

        Returns
        -------
        str
            64 hexadecimal digits.

        Examples
        --------
        >>> CanonicalState().digest(Antichain.of(0))[:16]
        'f583a70a2d28f5a4'
        """
        times, sums, counts = self._closed(frontier)
        text = hashlib.sha256(_HEAD)
        text.update(_numbers([self._arity, times.shape[0]]))
        text.update(_entry_bytes(times, counts, sums))
        text.update(_numbers([len(frontier)]))
        text.update(_int_bytes(frontier.times))
        return text.hexdigest()

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same sums."""
        if not isinstance(other, CanonicalState):
            return NotImplemented
        mine, theirs = self._closed(None), other._closed(None)
        return self._arity == other._arity and all(map(np.array_equal, mine, theirs))

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        """Return a summary."""
        return f"CanonicalState(arity={self._arity}, times={self.times.shape[0]}, rows={int(self.counts.sum())})"


def _summed(times: IntArray, sums: Words, counts: DiffArray) -> tuple[IntArray, Words, DiffArray]:
    """Sum hashes and counts of equal times, modulo 2**64; times come out sorted."""
    if is_sorted(times):
        starts = run_starts(times)
        return times[starts], np.add.reduceat(sums, starts, axis=0), np.add.reduceat(counts, starts)
    unique, inverse, _ = group_times(times)
    total_sums = np.empty((unique.shape[0], 2), dtype=np.uint64)
    total_counts = np.zeros(unique.shape[0], dtype=np.int64)
    np.add.at(total_counts, inverse, counts)
    for lane in range(2):
        part = np.zeros(unique.shape[0], dtype=np.uint64)
        np.add.at(part, inverse, np.ascontiguousarray(sums[:, lane]))
        total_sums[:, lane] = part
    return unique, total_sums, total_counts


def _numbers(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<i8").tobytes()


def _int_bytes(times: IntArray) -> bytes:
    return np.ascontiguousarray(times).astype(times.dtype.newbyteorder("<"), copy=False).tobytes()


def _entry_bytes(times: IntArray, counts: DiffArray, sums: Words) -> bytes:
    arity = times.shape[1]
    entries = np.empty((times.shape[0], arity + 3), dtype="<u8")
    entries[:, :arity] = times.view(np.uint64)
    entries[:, arity] = counts.view(np.uint64)
    entries[:, arity + 1 :] = sums
    return entries.tobytes()
