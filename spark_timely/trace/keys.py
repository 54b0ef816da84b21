"""Keys of rows: their hashes, ranges of these, and sets of keys that are looked for among rows.

The engine of dataflows divides work by `KeyRange`; look-ups and peeks search files and indexes for a `KeySet`. (Which
keys a peek may have is in `answers.keys`; numbers for the keys within one table are in `dataflow.history.keys`.)

Work over all history is cut into ranges of the hash: as 0 to 32, 33 to 65, 66 to 99 for three tasks and hashes below
100. However many tasks there are, the keys of each are one stretch of an index that is sorted by the hash: so one index
serves all. A remainder of the hash would group keys in another way for each number of tasks.

Invariants
----------
1. Equal keys have equal hashes: null equals null, NaN equals NaN, -0.0 equals 0.0. Keys that are not equal may share
   the 64 bits by which rows are arranged: a set of keys compares values, or 128 bits.
2. A hash is of the values in the order of the key's columns, whatever these are called: both sides of a join share
   ranges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["EVERY_KEY", "KeyRange", "KeySet", "are_among", "distinct_hashes", "key_hashes", "same_keys"]

_LAST: Final = (1 << 64) - 1
_MOST_TEXTS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys whose hash is not below `first` and not above `last`.

    Attributes
    ----------
    first, last : int
    """

    first: int = 0
    last: int = _LAST

    def cut(self, n: int) -> list[KeyRange]:
        """Return n ranges that together are this one.

        Examples
        --------
        >>> [(each.first, each.last) for each in KeyRange(0, 99).cut(3)]
        [(0, 32), (33, 65), (66, 99)]
        """
        width = self.last - self.first + 1
        ends = [self.first + width * i // n for i in range(n + 1)]
        return [KeyRange(low, high - 1) for low, high in itertools.pairwise(ends) if low < high]

    def holds(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which hashes are within.

        Parameters
        ----------
        hashes : ndarray of uint64, shape (n,)

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        return (hashes >= np.uint64(self.first)) & (hashes <= np.uint64(self.last))


EVERY_KEY: Final = KeyRange()


def key_hashes(rows: pa.Table, by: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the hashes of the keys of rows; null is a key.

    Parameters
    ----------
    rows : pyarrow.Table
    by : sequence of str
        Columns of the key, in its order; none for one key of all rows.

    Returns
    -------
    ndarray of uint64, shape (n,)

    Notes
    -----
    Cost: one pass over the columns. Equal keys have equal hashes; the opposite is not so.

    Examples
    --------
    >>> import pyarrow as pa
    >>> a, b, c = key_hashes(pa.table({"k": ["x", None, "x"]}), ["k"]).tolist()
    >>> (other,) = key_hashes(pa.table({"other": ["x"]}), ["other"]).tolist()
    >>> a == c, a == b, a == other
    (True, False, True)
    """
    if not by:
        return np.zeros(rows.num_rows, np.uint64)
    return np.ascontiguousarray(_whole_hashes(rows, by)[:, 0])


def _whole_hashes(rows: pa.Table, by: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the hashes of 128 bits of the keys of rows, whose columns are known by their places."""
    keys = rows.select(by).rename_columns([str(place) for place in range(len(by))])
    return RowHasher(keys.schema).hash(keys)


def distinct_hashes(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return hashes in their order, each once.

    (numpy's own `unique` numbers them by hashing once more: 0.45 s for a million that are sorted in 0.01.)

    Examples
    --------
    >>> distinct_hashes(np.array([7, 3, 7], np.uint64)).tolist()
    [3, 7]
    """
    if hashes.shape[0] == 1:  # what a reader asks for one key waits for nothing else
        return hashes
    found = np.sort(hashes)
    return found[np.concatenate([np.ones(min(found.shape[0], 1), np.bool_), found[1:] != found[:-1]])]


def are_among(hashes: npt.NDArray[np.uint64], distinct: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which hashes are among others, which are in their order.

    Examples
    --------
    >>> are_among(np.array([7, 5], np.uint64), np.array([3, 7], np.uint64)).tolist()
    [True, False]
    """
    if not distinct.shape[0]:
        return np.zeros(hashes.shape[0], np.bool_)
    places = np.minimum(np.searchsorted(distinct, hashes), distinct.shape[0] - 1)
    return np.asarray(distinct[places] == hashes)


class KeySet:
    """Keys that are looked for among many rows.

    Parameters
    ----------
    keys : pyarrow.Table
        With the columns of the key, in any order and as often as it comes.
    by : sequence of str
        Columns of the key; none for one key of all rows.

    Attributes
    ----------
    by : tuple of str
    n_rows : int
        Of the keys, as they were given.

    Examples
    --------
    >>> among = KeySet(pa.table({"k": ["x", None, "x"], "j": [1, 1, 1]}), ["k", "j"])
    >>> rows = pa.record_batch({"j": [1, 2, 1, 1], "k": ["x", "x", None, "y"]})
    >>> among.of(rows).to_pylist()
    [{'j': 1, 'k': 'x'}, {'j': 1, 'k': None}]
    """

    def __init__(self, keys: pa.Table, by: Sequence[str]) -> None:
        self.by = tuple(by)
        self.n_rows = keys.num_rows
        self._keys = keys if keys.schema.names == list(self.by) else keys.select(list(self.by))
        # The column that tells most keys apart, and its values: it passes over most rows of others, without a hash.
        self._first: tuple[str, pa.Array] | None = None
        for name in self.by:
            values = _distinct(self._keys.column(name))
            if values is not None and (self._first is None or len(values) > len(self._first[1])):
                self._first = name, values
        self._hashes: npt.NDArray[np.uint64] | None = None
        self._ordered: dict[str, npt.NDArray[Any]] = {}

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Of the keys, ascending, each once."""
        if self._hashes is None:
            # Arrow may forget how many rows a table without columns has.
            self._hashes = distinct_hashes(key_hashes(self._keys, self.by)) if self.by else np.zeros(1, np.uint64)
        return self._hashes

    @cached_property
    def _ordered_hashes(self) -> npt.NDArray[np.uint64]:
        found = _whole_hashes(self._keys, self.by)
        return found[np.lexsort((found[:, 1], found[:, 0]))]

    def pieces(self, most: int) -> Iterator[KeySet]:
        """Give them in the order of their hashes, about `most` at once; keys of one hash come together."""
        hashes = key_hashes(self._keys, self.by)
        order = np.argsort(hashes, kind="stable")
        hashes, first = hashes[order], 0
        while first < self.n_rows:
            stop = int(np.searchsorted(hashes, hashes[min(first + most, self.n_rows) - 1], "right"))
            yield KeySet(self._keys.take(pa.array(order[first:stop])), self.by)
            first = stop

    def among(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows have one of these keys, shape (n,).

        Notes
        -----
        Cost: one look of a column into a hash table. Rows that pass are hashed as a whole, where the key has several
        columns or one of doubles.
        """
        if self._first is None:
            near = np.ones(rows.num_rows, np.bool_)
        else:
            name, values = self._first
            column = rows.column(name)
            found = pc.is_in(column, values) if len(values) > 1 or values.null_count else pc.equal(column, values[0])
            found = found.fill_null(False) if found.null_count else found  # noqa: FBT003 - as Arrow has it
            near = np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
        if not self.by or (self._first is not None and len(self.by) == 1) or not near.any():
            return near
        passed = rows.select(list(self.by)).filter(pa.array(near))
        near[near] = same_keys(_whole_hashes(passed, self.by), self._ordered_hashes)
        return near

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have one of these keys; cost as of `among`."""
        mine = self.among(pa.Table.from_batches([rows]))
        return rows if mine.all() else rows.filter(pa.array(mine))

    def has_null(self, name: str) -> bool:
        """Return whether a column of the keys has a null."""
        return bool(self._keys.column(name).null_count)

    def ordered(self, name: str, kind: pa.DataType) -> npt.NDArray[Any] | None:
        """Return the values of a column in their order, as bounds have them: integers, or texts as bytes; without null.

        None of a column of another type than is asked for, and of texts where to order them costs more than it spares.
        """
        column = self._keys.column(name)
        if column.type != kind or (pa.types.is_string(kind) and len(column) > _MOST_TEXTS):
            return None
        if name not in self._ordered:
            self._ordered[name] = _ordered(pc.drop_null(column))
        return self._ordered[name]


def same_keys(hashes: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which of some hashes of 128 bits are among others, which are sorted by their first halves.

    Parameters
    ----------
    hashes : ndarray of uint64, shape (n, 2)
    wanted : ndarray of uint64, shape (m, 2)
        As `RowHasher` gives them.

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> same_keys(np.array([[7, 1], [7, 2]], np.uint64), np.array([[3, 9], [7, 2]], np.uint64)).tolist()
    [False, True]
    """
    if not wanted.shape[0]:
        return np.zeros(hashes.shape[0], np.bool_)
    places = np.searchsorted(wanted[:, 0], hashes[:, 0])
    found = np.zeros(hashes.shape[0], np.bool_)
    while True:  # again only where keys have the same first half
        inside = places < wanted.shape[0]
        at = wanted[np.where(inside, places, 0)]
        near = inside & (at[:, 0] == hashes[:, 0])
        found |= near & (at[:, 1] == hashes[:, 1])
        left = near & ~found
        if not left.any():
            return found
        places = np.where(left, places + 1, wanted.shape[0])


def _ordered(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    if pa.types.is_string(column.type):
        values = np.empty(len(column), dtype=object)
        values[:] = column.cast(pa.binary()).to_pylist()
        return np.sort(values)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.sort(np.asarray(column.cast(pa.int64()).to_numpy(), np.int64))


def _distinct(column: pa.ChunkedArray) -> pa.Array | None:
    """Return the values of a column, null among them; None of types of which equal values are not found by value."""
    kind = column.type
    simple = (
        pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_date, pa.types.is_timestamp,
        pa.types.is_boolean, pa.types.is_decimal,
    )  # fmt: skip
    if not any(of_kind(kind) for of_kind in simple):
        return None
    return column.chunk(0) if len(column) == column.num_chunks == 1 else pc.unique(column)
