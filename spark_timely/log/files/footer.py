"""The footer of a data file as arrays: what row groups have, and which of them may have some keys.

Peeks (`spark_timely.answers.log_peek`, with footers that `file_cache` keeps), subscriptions
(`spark_timely.answers.follow`) and the reader of a split (`spark_timely.datasource.reader`) pass over row groups by it.
Bounds of whole files are in `statistics`.

Invariants
----------
1. Bounds are never too narrow: nothing is passed over unless they say that it has none of what is wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pyarrow.parquet as pq

    from spark_timely.time.antichain import BoolArray, IntArray
    from spark_timely.trace.keys import KeySet

__all__ = ["Footer"]


class Footer:
    """The footer of a Parquet file, as arrays with one element for each row group.

    Parameters
    ----------
    metadata : pyarrow.parquet.FileMetaData
    schema : pyarrow.Schema
        Of the file.

    Attributes
    ----------
    n_groups : int
    """

    def __init__(self, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        self.metadata, self.schema = metadata, schema
        self.n_groups = metadata.num_row_groups
        self._places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
        self._bounds: dict[str, tuple[Any, Any, BoolArray, BoolArray] | None] = {}
        self._sizes: dict[frozenset[str], IntArray] = {}

    def bounds(self, column: str) -> tuple[Any, Any, BoolArray, BoolArray] | None:
        """Return what a column has in each row group, as far as the footer tells.

        Returns
        -------
        lows, highs : ndarray of int64 or object (bytes), shape (g,)
            Integers in the units of the column, texts as bytes. None for the whole where nothing is known: of other
            types.
        known : ndarray of bool, shape (g,)
            Where the two are known, and where the group has values at all: of others they mean nothing.
        nulls : ndarray of bool, shape (g,)
            Whether there may be nulls.
        """
        if column not in self._bounds:
            self._bounds[column] = self._read_bounds(column)
        return self._bounds[column]

    def _read_bounds(self, column: str) -> tuple[Any, Any, BoolArray, BoolArray] | None:
        place = self._places.get(column)
        if place is None:
            return None
        kind = self.schema.field(column).type
        whole = pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
        if pa.types.is_timestamp(kind) and kind.unit != "us":
            return None
        if not whole and not pa.types.is_string(kind):
            return None
        lows: list[object] = []
        highs: list[object] = []
        known = np.zeros(self.n_groups, np.bool_)
        nulls = np.ones(self.n_groups, np.bool_)
        for group in range(self.n_groups):  # once per file
            found = self.metadata.row_group(group).column(place).statistics
            bounded = found is not None and found.has_min_max
            low, high = (found.min_raw, found.max_raw) if bounded and whole else (0, 0)
            if bounded and not whole:
                low, high = (_bytes(each) for each in (found.min_raw, found.max_raw))
            elif not whole:
                low = high = b""
            lows.append(low)
            highs.append(high)
            known[group] = bounded
            nulls[group] = found is None or not found.has_null_count or found.null_count > 0
        if whole:
            return np.array(lows, np.int64), np.array(highs, np.int64), known, nulls
        return _objects(lows), _objects(highs), known, nulls

    def may_have(self, keys: KeySet) -> BoolArray:
        """Return which row groups may have any of some keys, as far as bounds say: shape (g,).

        A group without bounds may have any, and one with nulls a null.
        """
        may = np.ones(self.n_groups, np.bool_)
        for name in keys.by:
            bounds = self.bounds(name)
            values = None if bounds is None else keys.ordered(name, self.schema.field(name).type)
            if bounds is None or values is None:
                continue
            lows, highs, known, nulls = bounds
            first, stop = np.searchsorted(values, lows, "left"), np.searchsorted(values, highs, "right")
            may &= ~known | (first < stop) | (nulls & keys.has_null(name))
        return may

    def constant(self, column: str, groups: Sequence[int]) -> tuple[int] | None:
        """Return the one number that a column has in all rows of some row groups, if the footer tells that.

        Examples
        --------
        >>> import pyarrow.parquet as pq
        >>> sink = pa.BufferOutputStream()
        >>> pq.write_table(pa.table({"a": [5, 5], "b": [5, 6]}), sink)
        >>> file = pq.ParquetFile(sink.getvalue())
        >>> footer = Footer(file.metadata, file.schema_arrow)
        >>> footer.constant("a", [0]), footer.constant("b", [0])
        ((5,), None)
        """
        bounds = self.bounds(column)
        if bounds is None or pa.types.is_string(self.schema.field(column).type):
            return None
        lows, highs, known, nulls = bounds
        mine = list(groups)
        if not mine or not known[mine].all() or nulls[mine].any():
            return None
        low = int(lows[mine[0]])
        return (low,) if (lows[mine] == low).all() and (highs[mine] == low).all() else None

    def has_dictionary(self, column: str, groups: Sequence[int]) -> bool:
        """Return whether a column of texts has a dictionary in all of some row groups."""
        place = self._places.get(column)
        if place is None or not pa.types.is_string(self.schema.field(column).type):
            return False
        return all(self.metadata.row_group(group).column(place).has_dictionary_page for group in groups)

    def sizes(self, columns: frozenset[str]) -> IntArray:
        """Return the bytes that some columns take in each row group, compressed."""
        if columns not in self._sizes:
            places = [place for path, place in self._places.items() if path.partition(".")[0] in columns]
            groups = [self.metadata.row_group(group) for group in range(self.n_groups)]
            sizes = [sum(group.column(place).total_compressed_size for place in places) for group in groups]
            self._sizes[columns] = np.array(sizes, np.int64).reshape(self.n_groups)
        return self._sizes[columns]


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _objects(values: Sequence[object]) -> npt.NDArray[np.object_]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
