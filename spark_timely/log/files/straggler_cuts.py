"""Where to cut the rows of one commit into files, so that a replay reads few of them twice.

A file is read by each micro-batch whose range reaches into the file's bounds. In a trickle nearly all rows
of a commit lie close together and a few come late, from anywhere within the lateness: in one file with
them, all rows would be read again for as long as the late ones are open.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.arrays import IntArray

__all__ = ["MOST_PARTS", "narrow_cuts"]

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
