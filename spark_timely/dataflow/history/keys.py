"""Numbers for keys and for the order of rows, with which numpy sorts and compares them.

The operators of this folder compute with two numbers of a row: `key_codes` gives the rows of a key the same one, and
`ranks_of` gives each row its place in an order by columns. Both go by values, never by a hash alone. They count within
the tables of one call; hashes of keys, by which work is divided and logs are indexed, are in `spark_timely.trace.keys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.history.runs import run_starts_of, spread

if TYPE_CHECKING:
    from spark_timely.time.antichain import IntArray

__all__ = ["key_codes", "key_text", "ranks_of"]


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
    before, n = places[order], order.shape[0]
    runs, starts = run_starts_of(before), run_starts_of(together[order])
    # How many rows of the same place are before each run of equal ranks.
    behind = starts - spread(runs, runs, n)[starts]
    found: IntArray = np.empty(n, np.int64)
    found[order] = before + spread(behind, starts, n)
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
        ranked[order] = spread(np.arange(1, starts.shape[0] + 1), starts, values.shape[0])
    if column.null_count:
        ranked[~np.asarray(column.is_valid().to_numpy())] = 0
    return ranked


def key_text(keys: pa.Table, row: int) -> str:
    """Return the key of a row, for errors."""
    return ", ".join(f"{name}={keys.column(name)[row].as_py()!r}" for name in keys.schema.names) or "all rows"
