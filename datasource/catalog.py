"""The planner's catalog of a log's files: bounds of all, and the exact times of files looked into.

No catalog of tables: the `planner` of a query holds one for its run, and a dataflow one for each log that it reads.
`Catalog.files` gives a `FileView` of the files of messages that a query reads, with their bounds as arrays; `exact`
reads the times of one file from its footer, and keeps them.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spark_timely.datasource.reader import open_data, times_of
from spark_timely.log.files.parquet_reader import corrupt, expect_columns
from spark_timely.log.files.statistics import file_times
from spark_timely.log.machine.since import moved_to
from spark_timely.log.store.clones import of_clone
from spark_timely.protocol.replay import FileBounds, TimeCounts, cut_times, within
from spark_timely.time.antichain import group_times, lexsort, unique_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.log import Log
    from spark_timely.log.files.index import FileIndex
    from spark_timely.time.antichain import Antichain, BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain


# How many exact times are kept, of all files together: 16 bytes each, more for product times. Those of the files that
# were used last stay; a micro-batch that needs more reads them twice.
_KEPT_TIMES = 4_000_000


class Catalog:
    """The files of messages of one log, kept between micro-batches.

    Parameters
    ----------
    log : Log
        Refreshed by others; looked at again when its table version changed.
    fail_on_data_loss : bool
        Whether a missing file is an error, or has no times.
    pause : callable
        Waits the given seconds between attempts to open a file that is missing.
    """

    def __init__(
        self, log: Log, *, fail_on_data_loss: bool = True, pause: Callable[[float], None] = clock.sleep
    ) -> None:
        self._log = log
        self._fail_on_data_loss = fail_on_data_loss
        self._pause = pause
        self._missing: set[str] = set()
        self._version: tuple[int, int] | None = None
        self._index: FileIndex | None = None
        self._counts: dict[str, TimeCounts] = {}  # the one used last comes last
        self._n_kept = 0

    @property
    def log_id(self) -> str:
        """Identity of the log, which another one at the same path does not share."""
        return self._log.core.log_id

    def of_clone(self) -> str:
        """Return, for errors about another log in its place, what it is a clone of."""
        return of_clone(self._log.core.storage)

    def index(self, streams: tuple[str, ...] | None = None) -> FileIndex:
        """Return the files of messages in the log's present snapshot; those alone that may hold some streams."""
        version = self._log.core.generation, self._log.core.version
        if self._index is None or version != self._version:
            self._index = self._log.core.files()
            self._version = version
            if len(self._counts) > 2 * len(self._index):
                live = set(self._index.paths.tolist())
                self._counts = {path: counts for path, counts in self._counts.items() if path in live}
                self._n_kept = sum(counts.rows.shape[0] for counts in self._counts.values())
        if streams is None:
            return self._index
        chosen = np.zeros(len(self._index), dtype=np.bool_)
        for name in streams:
            chosen |= self._index.may_hold_stream(name)
        return self._index.select(chosen)

    def files(self, streams: tuple[str, ...] | None, as_of: Antichain | None) -> FileView:
        """Return the files that may hold rows of some streams, times moved to `as_of`."""
        index = self.index(streams)
        corner = None if as_of is None else np.array([moved_to(as_of)], np.int64)
        return FileView(
            self,
            _bounds(index, corner),
            index.paths,
            index.rows,
            index.least_diffs,
            corner,
        )

    def look_into(self, chosen: Callable[[FileIndex], BoolArray]) -> None:
        """Refuse to give out rows of files that another program made, where these have other rows than it replaced.

        Parameters
        ----------
        chosen : callable
            Says of which files rows are wanted.

        Raises
        ------
        ForeignChangeError
        """
        self._log.core.look_into(chosen)

    def exact(self, path: str) -> TimeCounts:
        """Return the exact times of a file: from its footer, else from its time columns. The last ones are kept.

        A file that is missing, where that is passed over, has none: tried again whenever it is asked for,
        but not waited for twice.
        """
        counts = self._counts.pop(path, None)
        if counts is None:
            domain = self._log.domain
            counts = self._read(path, domain)
            if counts is None:
                return TimeCounts(np.empty((0, domain.arity), np.int64), np.empty(0, np.int64))
            self._n_kept += counts.rows.shape[0]
        self._counts[path] = counts
        while self._n_kept > _KEPT_TIMES and len(self._counts) > 1:
            self._n_kept -= self._counts.pop(next(iter(self._counts))).rows.shape[0]
        return counts

    def _read(self, path: str, domain: TimeDomain) -> TimeCounts | None:
        source = open_data(
            self._log.core.storage,
            path,
            root=self._log.path,
            fail_on_data_loss=self._fail_on_data_loss,
            pause=None if path in self._missing else self._pause,
        )
        if source is None:
            self._missing.add(path)
            return None
        try:
            opened = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        except (pa.ArrowInvalid, OSError) as error:
            source.close()
            raise corrupt(self._log.core.storage.uri, path, error) from error
        with opened as file:
            known = file_times(file)
            if known is not None:
                return TimeCounts(*known)
            groups = range(file.metadata.num_row_groups)
            expect_columns(source, file.metadata, groups, set(domain.columns), at_once=True)
            rows = file.read(columns=list(domain.columns), use_threads=True).combine_chunks()
        times = [times_of(batch, domain) for batch in rows.to_batches()]
        return TimeCounts(*unique_times(np.concatenate([np.empty((0, domain.arity), np.int64), *times])))


@dataclass(frozen=True, slots=True)
class FileView:
    """Some files, with the bounds that a query sees.

    Attributes
    ----------
    catalog : Catalog
    bounds : FileBounds
    paths : ndarray of object, shape (n,)
    rows : ndarray of int64, shape (n,)
        -1 where unknown.
    least_diffs : ndarray of int64, shape (n,)
        Of the updates of a collection; the least int64 where unknown.
    as_of : ndarray of int64, shape (1, k), or None
        Times are moved up to it.
    """

    catalog: Catalog = field(repr=False)
    bounds: FileBounds
    paths: npt.NDArray[np.object_]
    rows: npt.NDArray[np.int64]
    least_diffs: npt.NDArray[np.int64]
    as_of: IntArray | None = None

    def look_into(self, chosen: Callable[[FileBounds], BoolArray]) -> None:
        """Refuse to give out rows of files that another program made, where these have other rows than it replaced.

        Parameters
        ----------
        chosen : callable
            Says of which files rows are wanted, as a query sees their bounds.

        Raises
        ------
        ForeignChangeError
        """
        self.catalog.look_into(lambda files: chosen(_bounds(files, self.as_of)))

    def select(self, chosen: BoolArray | npt.NDArray[np.intp]) -> FileView:
        """Return the chosen files."""
        bounds = self.bounds
        return FileView(
            self.catalog,
            FileBounds(bounds.sizes[chosen], bounds.minima[chosen], bounds.maxima[chosen], bounds.known[chosen]),
            self.paths[chosen],
            self.rows[chosen],
            self.least_diffs[chosen],
            self.as_of,
        )

    def in_time_order(self) -> FileView:
        """Return the files in lexicographic order of their lower bounds, then of their paths."""
        corners = np.where(self.bounds.known[:, None], self.bounds.minima, np.iinfo(np.int64).min)
        by_path = np.argsort(self.paths.astype(str), kind="stable")
        return self.select(by_path[lexsort(corners[by_path])])

    def counts(self, numbers: npt.NDArray[np.intp]) -> Sequence[TimeCounts]:
        """Return the exact times of the files with these numbers."""
        found = [self.catalog.exact(str(self.paths[number])) for number in numbers]
        if self.as_of is None:
            return found
        return [TimeCounts(np.maximum(counts.times, self.as_of), counts.rows) for counts in found]

    def by_time(
        self, lower: IntArray, upper: IntArray, n_splits: int
    ) -> list[tuple[tuple[int, ...] | None, tuple[int, ...] | None, npt.NDArray[np.intp]]]:
        """Cut the times of a range into splits of about equal numbers of rows.

        Parameters
        ----------
        lower, upper : ndarray of int64, shapes (a, k) and (b, k)
        n_splits : int

        Returns
        -------
        list of (first, last, numbers)
            Lexicographic bounds, inclusive and exclusive, None where open; and the files with such times.
        """
        found: list[TimeCounts] = []
        for number in range(self.paths.shape[0]):
            (counts,) = self.counts(np.array([number]))
            inside = within(counts.times, lower, upper)
            found.append(TimeCounts(counts.times[inside], counts.rows[inside]))
        if not any(counts.rows.shape[0] for counts in found):
            return []
        times = np.concatenate([counts.times for counts in found])
        weights = np.concatenate([counts.rows for counts in found])
        owners = np.repeat(np.arange(len(found)), [counts.rows.shape[0] for counts in found])
        cuts = cut_times(times, weights, n_splits)
        _, ranks, _ = group_times(np.concatenate([cuts, times]))
        n_cuts = cuts.shape[0]
        places = np.searchsorted(ranks[:n_cuts], ranks[n_cuts:], side="right")
        bounds = [None, *map(tuple, cuts.tolist()), None]
        return [(bounds[split], bounds[split + 1], np.unique(owners[places == split])) for split in range(n_cuts + 1)]


def _bounds(index: FileIndex, corner: IntArray | None) -> FileBounds:
    """Return the bounds of files, times moved up to a corner."""
    minima, maxima = index.min_times, index.max_times
    if corner is not None:
        minima, maxima = np.maximum(minima, corner), np.maximum(maxima, corner)
    return FileBounds(index.sizes, minima, maxima, index.known)
