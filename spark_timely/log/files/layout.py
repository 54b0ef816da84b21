"""How the rows of one commit are laid out in Parquet files: where a new file begins, which columns get a dictionary.

A file is read by each micro-batch whose range reaches into the file's bounds. In a trickle nearly all rows of a commit
are close together in time and a few are stragglers, from anywhere within the lateness: in one file with them, all rows
would be read again for as long as the late ones are open. Encodings are chosen by looking at a sample of the rows.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.arrays import IntArray

__all__ = ["MOST_PARTS", "dictionary_columns", "narrow_cuts"]

MOST_PARTS = 4
# What a Parquet file of few rows weighs, whatever is in it.
_FILE_BYTES = 2048
# The first cut has to spare this share of what is read: rows spread evenly, or around one time, stay together.
# A further one has to spare a share of what is read of the part that it cuts, and of all that is read.
_FIRST_WORTH, _PART_WORTH, _WORTH = 0.4, 0.3, 0.15


def narrow_cuts(times: IntArray, size_bytes: int) -> list[int]:
    """Return where a new file ought to begin: at most three places, each between two times.

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
        In lexicographic order. Only the first coordinate decides.
    size_bytes : int
        About how large the rows are in a file.

    Returns
    -------
    list of int
        Ascending row numbers in (0, n).

    Notes
    -----
    A file is taken to be read once, and once more for each step of the frontier through its bounds: as
    many as its distinct times at most, and as many as its span is longer than that of the rows that lie
    densest. Cost: O(n).

    Examples
    --------
    >>> late = np.concatenate([[0, 20, 40], np.full(1000, 60)]).reshape(-1, 1)
    >>> narrow_cuts(late, 100_000), narrow_cuts(np.arange(1000).reshape(-1, 1), 100_000)
    ([3], [])
    """
    keys = times[:, 0].astype(np.float64)  # a span of int64 may not fit int64
    n = keys.shape[0]
    places = np.flatnonzero(times[1:, 0] != times[:-1, 0]) + 1
    if not places.size:
        return []
    half = (n + 1) // 2
    dense = max(2.0 * float((keys[half - 1 :] - keys[: n - half + 1]).min()), 1.0)
    costs = _Costs(keys, places, size_bytes / n, dense)
    cuts = [0, n]
    while len(cuts) <= MOST_PARTS:  # each turn adds a cut
        parts = np.array(list(itertools.pairwise(cuts)))
        read = costs.of(parts[:, 0], parts[:, 1])
        best = [costs.best_cut(a, b) for a, b in parts.tolist()]
        own = _FIRST_WORTH if len(parts) == 1 else _PART_WORTH
        worth = np.maximum(own * read, _WORTH * read.sum())
        saved, place = max((found if found[0] > least else (0.0, 0)) for found, least in zip(best, worth, strict=True))
        if not saved:
            break
        cuts = sorted([*cuts, place])
    return cuts[1:-1]


class _Costs:
    """Bytes that a replay reads of a file of some of the rows."""

    def __init__(
        self, keys: npt.NDArray[np.float64], places: npt.NDArray[np.intp], row_bytes: float, dense: float
    ) -> None:
        self._keys = keys
        self._places = places
        self._row_bytes = row_bytes
        self._dense = dense

    def of(self, first: npt.NDArray[np.intp], stop: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Return the cost of files of the rows from `first` to `stop`."""
        steps = (self._keys[stop - 1] - self._keys[first]) / self._dense
        changes = np.searchsorted(self._places, stop, side="left") - np.searchsorted(self._places, first, side="right")
        cost: npt.NDArray[np.float64] = (_FILE_BYTES + self._row_bytes * (stop - first)) * (
            1 + np.minimum(steps, changes)
        )
        return cost

    def best_cut(self, first: int, stop: int) -> tuple[float, int]:
        """Return how much the best cut between two rows spares, and where it is."""
        low, high = np.searchsorted(self._places, first, side="right"), np.searchsorted(self._places, stop, side="left")
        places = self._places[low:high]
        if not places.size:
            return 0.0, 0
        ends = np.full_like(places, first), np.full_like(places, stop)
        costs = self.of(ends[0], places) + self.of(places, ends[1])
        best = int(np.argmin(costs))
        return float(self.of(ends[0][:1], ends[1][:1])[0] - costs[best]), int(places[best])


_SAMPLE_ROWS = 32 * 1024
# This number of rows drawn from the sample mostly says enough: without doubles there, hardly any value repeats.
_DRAWN_ROWS = 2 * 1024
_SURELY, _HARDLY = 0.25, 0.97


def dictionary_columns(table: pa.Table) -> list[str] | bool:
    """Return the Parquet columns whose values repeat; a dictionary of others saves nothing.

    Measured with 500k rows of (time, key, double, text): a dictionary for each column takes 0.24 s of
    work and 10.8 MB, one for the time only 0.11 s and 8.6 MB.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of a file.

    Returns
    -------
    list of str, or bool
        Paths of leaf columns, as Parquet names them; True for all, where there are few rows.

    Notes
    -----
    Cost: one count of distinct values per column, over 2k rows, where that does not tell over at most 32k.

    Examples
    --------
    >>> n = 100_000
    >>> table = pa.table({"id": range(n), "word": ["a", "b"] * (n // 2), "many": [[1]] * n})
    >>> dictionary_columns(table)
    ['word', 'many.list.element']
    """
    n = table.num_rows
    if n < _SAMPLE_ROWS // 2:
        return True
    sample = table.slice((n - min(n, _SAMPLE_ROWS)) // 2, _SAMPLE_ROWS)
    # In no order: values may repeat at any distance.
    drawn = pa.array(np.sort(np.random.default_rng(0).choice(sample.num_rows, _DRAWN_ROWS, replace=False)))
    names: list[str] = []
    for field, column in zip(table.schema, sample.columns, strict=True):  # one turn per column
        if pa.types.is_nested(field.type):
            names += _leaf_paths(field.name, field.type)
        elif not pa.types.is_boolean(field.type) and _repeats(column, drawn):
            names.append(field.name)
    return names


def _repeats(column: pa.ChunkedArray, drawn: pa.Array) -> bool:
    """Whether values of a sample come twice or more on average."""
    distinct = pc.count_distinct(column.take(drawn)).as_py()
    if _SURELY * len(drawn) < distinct < _HARDLY * len(drawn):
        return bool(2 * pc.count_distinct(column).as_py() <= len(column))
    return bool(2 * distinct <= len(drawn))


def _leaf_paths(path: str, type_: pa.DataType) -> list[str]:
    """Return the Parquet paths of a nested column's leaves."""
    if pa.types.is_struct(type_):
        return [leaf for f in type_ for leaf in _leaf_paths(f"{path}.{f.name}", f.type)]
    if pa.types.is_map(type_):
        pair = (("key", type_.key_type), ("value", type_.item_type))
        return [leaf for name, part in pair for leaf in _leaf_paths(f"{path}.key_value.{name}", part)]
    if pa.types.is_nested(type_):
        return _leaf_paths(f"{path}.list.element", type_.value_type)
    return [path]
