"""Keys as numbers, sorted rows and running sums per key: what the operators over all history share.

Keys are known by their values, never by a hash alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher

if TYPE_CHECKING:
    from spark_timely.time.arrays import IntArray

__all__ = [
    "best_so_far",
    "key_codes",
    "key_text",
    "nth_so_far",
    "ranks_of",
    "run_starts_of",
    "sums_so_far",
    "wide",
]


def key_codes(tables: Sequence[pa.Table], columns: Sequence[str]) -> list[IntArray]:
    """Give the keys of rows numbers, the same in all tables.

    Parameters
    ----------
    tables : sequence of pyarrow.Table
    columns : sequence of str
        Of the key; null is a value like any other. None for one key of all rows.

    Returns
    -------
    list of ndarray of int64, shape (n,)
        A number for each row of each table: equal where the keys are, from 0 on.

    Notes
    -----
    Cost: one dictionary of each column, and one for each column after the first.

    Examples
    --------
    >>> rows, held = pa.table({"k": ["a", None, "a"]}), pa.table({"k": [None, "b"]})
    >>> [codes.tolist() for codes in key_codes([rows, held], ["k"])]
    [[0, 1, 0], [1, 2]]
    """
    lengths = [table.num_rows for table in tables]
    codes: IntArray = np.zeros(sum(lengths), np.int64)
    for name in columns:
        arrays = [chunk for table in tables for chunk in table.column(name).chunks]
        column = pa.chunked_array(arrays, tables[0].schema.field(name).type)
        found, n = _numbered(column)
        codes = found if name == columns[0] else _numbered(pa.chunked_array([pa.array(codes * n + found)]))[0]
    return np.split(codes, np.cumsum(lengths)[:-1])


def _numbered(column: pa.ChunkedArray) -> tuple[IntArray, int]:
    """Return a number for each value, and how many values there are."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):  # of no rows, or of more text than one array holds
        encoded = encoded.unify_dictionaries().combine_chunks() if encoded.num_chunks else None
    if encoded is None:
        return np.zeros(0, np.int64), 1
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64), max(len(encoded.dictionary), 1)


def ranks_of(
    rows: pa.Table, order: Sequence[tuple[str, bool]], *, codes: IntArray | None = None, key: Sequence[str] = ()
) -> IntArray:
    """Return the places of rows in an order by some columns, and after these by all others: equal for equal rows.

    Nulls come first where a column ascends, last where it descends; NaN is greater than any number, texts are compared
    by their bytes. Columns that have no order, as lists have none, come last, by their hash.

    Parameters
    ----------
    rows : pyarrow.Table
    order : sequence of (str, bool)
        Columns, and whether each descends.
    codes : ndarray of int64, shape (n,), optional
        Numbers of keys, from 0 on, which go before all columns.
    key : sequence of str
        Columns that are equal where `codes` are.

    Returns
    -------
    ndarray of int64, shape (n,)
        How many rows are before each.

    Notes
    -----
    Cost: one sort of each column, of the rows that are equal in all columns before.

    Examples
    --------
    >>> ranks_of(pa.table({"a": [2, None, 2], "b": ["x", "y", "w"]}), [("a", True)]).tolist()
    [1, 2, 0]
    """
    said = [name for name, _ in order]
    others = [name for name in rows.schema.names if name not in said and name not in key]
    others.sort(key=lambda name: pa.types.is_nested(rows.schema.field(name).type))
    places: IntArray = np.zeros(rows.num_rows, np.int64)
    if codes is not None:
        places = _refined(places, codes)
    alike = _alike(places, None)
    for name, descends in [*order, *((name, False) for name in others)]:
        if not alike.shape[0]:
            break
        every = alike.shape[0] == places.shape[0]
        column = rows.column(name)
        found = places if every else places[alike]
        for ranked in _column_ranks(column if every else column.take(pa.array(alike))):
            found = _refined(found, ranked.max() - ranked if descends else ranked)
        places[alike] = found
        alike = _alike(found, alike)
    return places


def _refined(places: IntArray, ranks: IntArray) -> IntArray:
    """Return the places of rows where ranks, from 0 on, decide among those with equal places."""
    if not places.any():
        counts = np.bincount(ranks, minlength=1)
        return np.asarray((np.cumsum(counts) - counts)[ranks])
    together = places * (int(ranks.max()) + 1) + ranks
    order = np.argsort(together)
    before = places[order]
    runs, starts = run_starts_of(before), run_starts_of(together[order])
    n = order.shape[0]
    behind = np.arange(n) - np.repeat(runs, np.diff(runs, append=n))
    found: IntArray = np.empty(n, np.int64)
    found[order] = before + behind[np.repeat(starts, np.diff(starts, append=n))]
    return found


def _alike(places: IntArray, numbers: IntArray | None) -> IntArray:
    """Return the numbers of rows whose place is that of another one too."""
    alike = np.flatnonzero(np.bincount(places)[places] > 1) if places.shape[0] else places
    return alike if numbers is None else numbers[alike]


def _column_ranks(column: pa.ChunkedArray) -> list[IntArray]:
    """Return numbers from 0 on, of which the first that differ say which of two values is less."""
    type_ = column.type
    if pa.types.is_nested(type_):
        hashed = pa.table({"c": column})
        return [np.unique(lane, return_inverse=True)[1] for lane in RowHasher(hashed.schema).hash(hashed).T]
    if pa.types.is_null(type_):
        return []
    if (pa.types.is_integer(type_) and type_ != pa.uint64()) or pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        return [_ranked_integers(column)]
    found = np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy(), np.int64)
    # How Arrow is asked to put nulls first differs between its versions.
    ranked: IntArray = np.where(np.asarray(column.is_valid().to_numpy()), found, 0)
    if not pa.types.is_floating(type_):
        return [ranked]
    numbers = np.asarray(column.cast(pa.float64()).fill_null(0.0).to_numpy())
    nan = np.isnan(numbers)
    # The order has one zero only; rows that differ stay apart all the same.
    return [nan.astype(np.int64), ranked, (~np.signbit(numbers) | nan).astype(np.int64)]


def _ranked_integers(column: pa.ChunkedArray) -> IntArray:
    """Return numbers from 0 on in the order of integers, dates or timestamps, 0 of null: Arrow's ranks take longer."""
    whole = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    values = np.asarray(whole.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
    if not values.shape[0]:
        return values
    least = int(values.min())
    if int(values.max()) - least <= 4 * values.shape[0]:
        ranked = values - least + 1
    else:
        order = np.argsort(values)
        starts = run_starts_of(values[order])
        ranked = np.empty(values.shape[0], np.int64)
        ranked[order] = np.repeat(np.arange(1, starts.shape[0] + 1), np.diff(starts, append=values.shape[0]))
    if column.null_count:
        ranked[~np.asarray(column.is_valid().to_numpy())] = 0
    return ranked


def run_starts_of(*sorted_keys: IntArray) -> IntArray:
    """Return where runs of equal keys begin.

    Examples
    --------
    >>> run_starts_of(np.array([1, 1, 2]), np.array([5, 6, 6])).tolist()
    [0, 1, 2]
    """
    n = sorted_keys[0].shape[0]
    if not n:
        return np.zeros(0, np.int64)
    begins = np.ones(n, np.bool_)
    begins[1:] = False
    for key in sorted_keys:
        begins[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(begins)


def sums_so_far(values: IntArray, starts: IntArray, base: IntArray) -> IntArray:
    """Return sums along runs, each from its base on.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Of integers, or of Python's where they may not fit.
    starts : ndarray of int64, shape (m,)
        Where runs begin.
    base : ndarray, shape (m,)

    Examples
    --------
    >>> sums_so_far(np.array([1, 2, 3]), np.array([0, 2]), np.array([10, 20])).tolist()
    [11, 13, 23]
    """
    if not values.shape[0]:
        return values
    total = np.cumsum(values)
    before = total[starts] - values[starts]
    return np.asarray(total + np.repeat(base - before, np.diff(starts, append=values.shape[0])))


def best_so_far(places: IntArray, starts: IntArray) -> IntArray:
    """Return the greatest so far along runs.

    Parameters
    ----------
    places : ndarray of int64, shape (n,)
        At least -1.
    starts : ndarray of int64, shape (m,)
        Where runs begin.

    Examples
    --------
    >>> best_so_far(np.array([1, 0, 0, 3, 2]), np.array([0, 2])).tolist()
    [1, 1, 0, 3, 3]
    """
    if not places.shape[0]:
        return places
    number = np.repeat(np.arange(starts.shape[0]), np.diff(starts, append=places.shape[0]))
    width = int(places.max()) + 2
    return np.asarray(np.maximum.accumulate(places + number * width) - number * width)


def nth_so_far(places: IntArray, starts: IntArray, n: int) -> IntArray:
    """Return the n-th greatest of what was before each along runs; -1 where fewer than n were.

    Parameters
    ----------
    places : ndarray of int64, shape (rows,)
        At least 0.
    starts : ndarray of int64, shape (m,)
        Where runs begin.
    n : int
        At least 1.

    Notes
    -----
    Cost: O(rows) for n = 1; else O(r log r) of the r rows of runs that are longer than n, whatever n is: a wavelet
    matrix (Claude, Navarro and Ordóñez 2015) tells how many values of a stretch have a bit, bit by bit.

    Examples
    --------
    >>> nth_so_far(np.array([4, 9, 7, 8, 1]), np.array([0, 4]), 2).tolist()
    [-1, -1, 4, 7, -1]
    """
    length = np.diff(starts, append=places.shape[0])
    if n == 1:
        found = np.concatenate([[-1], best_so_far(places, starts)[:-1]])[: places.shape[0]]
        found[starts] = -1
        return np.asarray(found)
    found = np.full(places.shape[0], -1, np.int64)
    long = np.repeat(length > n, length)
    chosen = np.flatnonzero(long)
    if not chosen.shape[0]:
        return found
    values, ranked = np.unique(places[chosen], return_inverse=True)
    left: IntArray = np.repeat(np.cumsum(length[length > n]) - length[length > n], length[length > n])
    right = np.arange(chosen.shape[0])
    asked = np.flatnonzero(right - left >= n)
    left, right = left[asked], right[asked]
    wanted, answer = np.full(asked.shape[0], n), np.zeros(asked.shape[0], np.int64)
    for bit in range(int(values.shape[0] - 1).bit_length() - 1, -1, -1):
        has = (ranked >> bit) & 1
        without = np.concatenate([[0], np.cumsum(1 - has)])
        few = (right - left) - (without[right] - without[left])
        up = few >= wanted
        answer |= up.astype(np.int64) << bit
        wanted = np.where(up, wanted, wanted - few)
        left = np.where(up, without[-1] + left - without[left], without[left])
        right = np.where(up, without[-1] + right - without[right], without[right])
        ranked = np.concatenate([ranked[has == 0], ranked[has == 1]])
    found[chosen[asked]] = values[answer]
    return found


def wide(*numbers: IntArray) -> list[IntArray]:
    """Return numbers of which no sum is beyond 64 bits: as they are, or as Python's.

    Examples
    --------
    >>> [each.dtype.name for each in wide(np.array([1]), np.array([1 << 62, 1 << 62]))]
    ['object', 'object']
    """
    most = sum(float(np.abs(each.astype(np.float64)).sum()) for each in numbers)
    return list(numbers) if most < 2.0**62 else [each.astype(object) for each in numbers]


def key_text(keys: pa.Table, row: int) -> str:
    """Return the key of a row, for errors."""
    return ", ".join(f"{name}={keys.column(name)[row].as_py()!r}" for name in keys.schema.names) or "all rows"
