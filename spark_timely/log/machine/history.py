"""History of a log's progress: the capabilities that its streams held after a commit, or at a moment.

Replays by arrival (`spark_timely.datasource.arrivals`, `recent`) begin from it. ``spark-timely frontier --at`` asks for
the frontier at a moment, `spark_timely.log.retention` for that of as long ago as the log keeps. (Histories of commands
and of operators are others: `spark_timely.compute.history`, `spark_timely.dataflow.history`.)

Answers come as arrays, from the numbers and wall clocks of the progress rows. Versions of the Delta table are never
used: compaction and cleanup change those.

Invariants
----------
1. A *cut* is the set of the commits up to a number, or up to a moment. A stream that begins with a copy of a
   capability of a stream in the cut is in the cut too, from its first commit on, also where the clock of the machine
   that opened it was ahead. So what was committed outside of a cut is beyond the frontier of the cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.log.machine.state import OPEN_STREAM, stream_codes
from spark_timely.protocol.note import Note
from spark_timely.time.antichain import Antichain, consolidate_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_timely.time.antichain import IntArray
    from spark_timely.time.domain import TimeDomain


class History:
    """All progress rows of a log, in order of stream and commit.

    Parameters
    ----------
    rows : pyarrow.Table
        As `spark_timely.log.Log.progress` gives them: sorted by stream and seq.
    domain : TimeDomain

    Attributes
    ----------
    names : list of str
        Streams, `#open` among them, sorted.
    streams, seqs : ndarray of int64, shape (c,)
        Number of the stream in `names`, and commit number, of each commit.
    moments : ndarray of int64, shape (c,)
        Wall clock of each commit in microseconds; within a stream it never goes back.
    messages : ndarray of int64, shape (c,)
        Messages of each commit.
    starts : ndarray of int64, shape (c + 1,)
        The rows of commit i are `starts[i]` to `starts[i + 1]`.
    times, deltas, counts : ndarray of int64, shapes (r, k), (r,) and (r,)
        Of each row.

    Notes
    -----
    Cost: one pass over the rows.
    """

    def __init__(self, rows: pa.Table, domain: TimeDomain) -> None:
        self._domain = domain
        found, codes = stream_codes(rows.column("_stream"))
        order = sorted(range(len(found)), key=found.__getitem__)
        rank = np.empty(len(found), dtype=np.int64)
        rank[order] = np.arange(len(found))
        self.names: list[str] = [found[place] for place in order]
        codes = rank[codes] if len(found) else codes
        seqs = _integers(rows, "_seq")
        sort = np.lexsort((seqs, codes))
        codes, seqs = codes[sort], seqs[sort]
        changed = np.ones(codes.shape[0], dtype=np.bool_)
        changed[1:] = (codes[1:] != codes[:-1]) | (seqs[1:] != seqs[:-1])
        first = np.flatnonzero(changed)
        self.starts: npt.NDArray[np.int64] = np.append(first, codes.shape[0]).astype(np.int64)
        self.streams, self.seqs = codes[first], seqs[first]
        self.times: IntArray = domain.from_columns(rows)[sort]
        self.deltas, self.counts = _integers(rows, "_delta")[sort], _integers(rows, "_count")[sort]
        self.messages = _integers(rows, "_rows")[sort][first]
        self.moments = self._in_sequence(_integers(rows, "_at")[sort][first])
        self._donors = self._opened(rows.column("_note"), sort)

    def _in_sequence(self, moments: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Let the wall clocks of a stream never go back, whatever its machines' clocks did."""
        moments = moments.copy()
        for code in range(len(self.names)):
            low, high = np.searchsorted(self.streams, [code, code + 1])
            moments[low:high] = np.maximum.accumulate(moments[low:high])
        return moments

    def _opened(self, notes: pa.ChunkedArray, sort: npt.NDArray[np.intp]) -> dict[str, tuple[str, int]]:
        """Return what streams were opened from: the donor, or `#open`, and how many of its commits came before."""
        found: dict[str, tuple[str, int]] = {}
        for commit in np.flatnonzero(self.seqs == 0).tolist():
            rows = sort[self.starts[commit] : self.starts[commit + 1]]
            texts = notes.take(pa.array(rows)).drop_null()
            opening = Note.parse(texts[0].as_py()).opening if len(texts) else None
            if opening is None:
                continue
            name = self.names[int(self.streams[commit])]
            # A claim is in one commit with that of `#open`.
            found[name] = (opening.source, opening.seq + (opening.source != OPEN_STREAM))
        return found

    def _close_under_joins(self, position: dict[str, int]) -> None:
        """Include each stream whose opening came before what the position holds already (invariant 1).

        One turn may let in a stream that lets in another: as many turns as streams at most.
        """
        changed = True
        while changed:
            changed = False
            for name, (donor, before) in self._donors.items():
                if position.get(name, 0) == 0 and position.get(donor, 0) > before:
                    position[name] = 1
                    changed = True

    def commits_of(self, name: str) -> slice:
        """Return where the commits of a stream are."""
        if name not in self.names:
            return slice(0, 0)
        code = self.names.index(name)
        low, high = np.searchsorted(self.streams, [code, code + 1])
        return slice(int(low), int(high))

    def present(self) -> dict[str, int]:
        """Return for each stream the number of its next commit."""
        return {name: int(self.seqs[self.commits_of(name)][-1]) + 1 for name in self.names}

    def before(self, kind: str, bound: int) -> dict[str, int]:
        """Return for each stream the first commit not before a bound.

        Parameters
        ----------
        kind : {"version", "timestamp"}
            What `bound` is: a commit number, or microseconds since the epoch.
        bound : int
            Commits with a lower number, or at an earlier moment, are before it.

        Returns
        -------
        dict of str to int
            `#open` has no numbers in common with streams: by number it is as it is now. By moment, a
            stream that joined is there as soon as its donor's next commit is, whatever its own clock
            said; of `#open`, as soon as its claim is.
        """
        found: dict[str, int] = {}
        for name in self.names:
            commits = self.commits_of(name)
            seqs = self.seqs[commits]
            last = int(seqs[-1]) + 1
            if kind == "timestamp":
                place = int(np.searchsorted(self.moments[commits], bound, side="left"))
                found[name] = int(seqs[place]) if place < seqs.shape[0] else last
            else:
                found[name] = last if name == OPEN_STREAM else max(0, bound)
        if kind == "timestamp":
            self._close_under_joins(found)
        return found

    def reached(self, kind: str, bound: int, streams: tuple[str, ...] | None) -> bool:
        """Return whether the commits before a bound are all there, so that their frontier stays as it is.

        Parameters
        ----------
        kind : {"version", "timestamp"}
        bound : int
            As for `before`.
        streams : tuple of str or None
            The streams that count; all unless given.

        Returns
        -------
        bool
            By number: each stream has come so far or is closed, and none is still to be opened; a
            later one copies from a stream that has. By moment: some commit was made since; the clocks
            of the others are trusted to have come so far too.
        """
        live = [name for name in self.names if self._live(name)]
        if kind == "timestamp":
            return not live or bool((self.moments >= bound).any())
        if bound <= 1 or not live:
            return True
        if streams is not None and any(name not in self.names for name in streams):
            return False
        counted = [name for name in live if streams is None or name in streams]
        return all(name != OPEN_STREAM and int(self.seqs[self.commits_of(name)][-1]) + 1 >= bound for name in counted)

    def _live(self, name: str) -> bool:
        last = self.commits_of(name).stop - 1
        return bool((self.counts[self.starts[last] : self.starts[last + 1]] > 0).any())

    def held(self, position: Mapping[str, int], names: Iterable[str]) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return what some streams held together before their next commits.

        Parameters
        ----------
        position : mapping of str to int
            Number of the next commit of each stream; at 0 or absent a stream held nothing.
        names : iterable of str

        Returns
        -------
        times, counts : ndarray of int64, shapes (n, k) and (n,)
            Distinct times in lexicographic order with their sums.
        """
        parts: list[tuple[IntArray, npt.NDArray[np.int64]]] = [
            (np.empty((0, self._domain.arity), np.int64), np.empty(0, np.int64))
        ]
        for name in names:
            commits = self.commits_of(name)
            place = int(np.searchsorted(self.seqs[commits], position.get(name, 0), side="left")) - 1
            if place >= 0:
                rows = slice(int(self.starts[commits.start + place]), int(self.starts[commits.start + place + 1]))
                parts.append((self.times[rows], self.counts[rows]))
        times, counts = consolidate_rows(
            np.concatenate([times for times, _ in parts]), np.concatenate([counts for _, counts in parts])
        )
        return times, counts.astype(np.int64)

    def frontier(self, kind: str, bound: int, streams: tuple[str, ...] | None) -> Antichain:
        """Return the frontier that the commits before a bound made.

        Parameters
        ----------
        kind : {"version", "timestamp"}
        bound : int
            As for `before`.
        streams : tuple of str or None
            The streams that count; all unless given.

        Returns
        -------
        Antichain
            By number, a stream that had no commit before it counts with its first one: the capability
            that it was opened with came from one that was held then. By moment, such a stream counts
            with what it came from: `#open`, or its donor.
        """
        position = self.before(kind, bound)
        if kind == "version":
            position = {name: max(seq, 1) for name, seq in position.items()}
        names = list(self.names) if streams is None else [name for name in streams if position.get(name, 0) > 0]
        missing = streams is not None and len(names) < len(streams)
        if missing or (streams is None and position.get(OPEN_STREAM, 1) == 0):
            # Not opened yet, or before the log was made: bounded by everything there was.
            names = list(self.names)
            position[OPEN_STREAM] = max(position.get(OPEN_STREAM, 0), 1)
        times, counts = self.held(position, names)
        return Antichain.from_times(times[counts > 0], self._domain.arity)


def _integers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(), dtype=np.int64)
