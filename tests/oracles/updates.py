"""Updates as the oracles have them: summed by a dictionary of rows, apart from what they judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import MultiplicityOverflowError


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of a collection whose times have one coordinate, shape (n,)."""

    times: npt.NDArray[np.int64]
    diffs: npt.NDArray[np.int64]
    rows: pa.Table

    @classmethod
    def concat(cls, *parts: Updates) -> Updates:
        return cls(
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.diffs for part in parts]),
            pa.concat_tables([part.rows for part in parts]),
        )

    def where(self, wanted: npt.NDArray[np.bool_]) -> Updates:
        places = np.flatnonzero(wanted)
        # Arrow takes no rows of a table without columns.
        rows = self.rows.take(pa.array(places)) if self.rows.num_columns else self.rows.slice(0, places.shape[0])
        return Updates(self.times[places], self.diffs[places], rows)

    def consolidated(self) -> Updates:
        """Return one update of each row and time, in the order of times; none where the sum is 0."""
        first: dict[tuple[int, str], int] = {}
        sums: dict[tuple[int, str], int] = {}
        texts = [repr(row) for row in self.rows.to_pylist()] or [""] * self.times.shape[0]
        for place, (time, text, diff) in enumerate(zip(self.times.tolist(), texts, self.diffs.tolist(), strict=True)):
            first.setdefault((time, text), place)
            sums[time, text] = sums.get((time, text), 0) + diff
        kept = sorted(key for key, total in sums.items() if total)
        for key in kept:
            check_count(self, first[key], sums[key])
        places = np.array([first[key] for key in kept], np.int64)
        rows = self.rows.take(pa.array(places)) if self.rows.num_columns else self.rows.slice(0, places.shape[0])
        return Updates(self.times[places], np.array([sums[key] for key in kept], np.int64), rows)


def check_count(updates: Updates, place: int, count: int) -> None:
    """Refuse a count that 64 bits do not hold, as the product does."""
    if not -(1 << 63) <= count < 1 << 63:
        row = updates.rows.slice(place, 1).to_pylist()[0]
        msg = f"could not sum updates: found row={row!r} with count={count}, time={int(updates.times[place])}"
        raise MultiplicityOverflowError(msg, hint="correct what produces the changes", data=repr(row), diff=count)
