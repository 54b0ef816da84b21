"""Updates of a collection whose times have one coordinate, as bodies over Arrow tables read and write them.

A time is shown once it is closed, and summed first: what is shown does not depend on how the log was cut into files.
One row more and one row less of the same row at a time are no change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import MultiplicityOverflowError, shown
from spark_timely.log.reader import exact_sums
from spark_timely.time.arrays import lexsort, run_starts

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Updates"]


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of a collection whose times have one coordinate.

    Attributes
    ----------
    times, diffs : ndarray of int64, shape (n,)
        Not modified by anything here.
    rows : pyarrow.Table
        n rows, the payload alone.
    """

    times: npt.NDArray[np.int64]
    diffs: npt.NDArray[np.int64]
    rows: pa.Table

    @classmethod
    def concat(cls, *parts: Updates) -> Updates:
        """Return updates of equal columns behind each other; at least one part.

        Examples
        --------
        >>> one = Updates(np.array([1]), np.array([1]), pa.table({"v": ["a"]}))
        >>> Updates.concat(one, one).times.tolist()
        [1, 1]
        """
        return cls(
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.diffs for part in parts]),
            pa.concat_tables([part.rows for part in parts]),
        )

    def where(self, wanted: npt.NDArray[np.bool_]) -> Updates:
        """Return some of them; these very updates where all are wanted.

        Examples
        --------
        >>> both = Updates(np.array([1, 2]), np.array([1, 1]), pa.table({"v": ["a", "b"]}))
        >>> both.where(both.times > 1).rows.to_pylist()
        [{'v': 'b'}]
        """
        if wanted.all():
            return self
        return self._take(np.flatnonzero(wanted))

    def consolidated(self) -> Updates:
        """Return one update of each row that changes at a time: the sum of all of that time, none where it is 0.

        Raises
        ------
        MultiplicityOverflowError
            If a sum does not fit 64 bits.

        Notes
        -----
        Cost: one hash of the rows, one sort.

        Examples
        --------
        >>> rows = pa.table({"v": ["a", "b", "a"]})
        >>> found = Updates(np.array([1, 1, 1]), np.array([1, 1, -1]), rows).consolidated()
        >>> found.rows.to_pylist(), found.diffs.tolist()
        ([{'v': 'b'}], [1])
        """
        if not self.times.shape[0]:
            return self
        keys = [self.times[:, None]]
        if self.rows.num_columns:
            keys.append(RowHasher(self.rows.schema).hash(self.rows).view(np.int64))
        together: npt.NDArray[np.int64] = np.concatenate(keys, axis=1)
        order = lexsort(together)
        starts = run_starts(together[order])
        sums, fits = exact_sums(self.diffs[order], starts)
        if not fits.all():
            at = int(order[starts[np.flatnonzero(~fits)[0]]])
            raise _too_often(self, at)
        kept = np.flatnonzero(sums)
        found = self._take(order[starts[kept]])
        return Updates(found.times, sums[kept], found.rows)

    def _take(self, places: npt.NDArray[np.intp]) -> Updates:
        # Arrow takes no rows of a table without columns.
        rows = self.rows.take(pa.array(places)) if self.rows.num_columns else self.rows.slice(0, places.shape[0])
        return Updates(self.times[places], self.diffs[places], rows)


def _too_often(updates: Updates, at: int) -> MultiplicityOverflowError:
    time, row = int(updates.times[at]), updates.rows.slice(at, 1).to_pylist()[0]
    msg = f"could not sum the updates of a log: found row={shown(row)} more often than 64 bits count, time={time}"
    return MultiplicityOverflowError(msg, hint="correct what produces the changes", data=row)
