"""The recent progress of a log: the rows since a position, kept between micro-batches of a replay.

`arrivals` reads its history of commits here. The `planner` asks a `CommitBound` where a replay by times begins or ends
that names a commit number or a moment: it follows that bound while the log grows up to it.

Invariants
----------
1. All commits from the position asked for on are there, and the one before it, which says what was held; what
   is behind is dropped, so that a micro-batch costs what is new and not what the log has seen.
2. In the history the wall clock of a commit is never below that of an earlier one of its stream, although the
   earlier one was dropped. In the state of a commit it is the one that the log has.
3. Once the commits before a bound are all there, their frontier stays what it was found to be. Until then each look
   reads only the progress that is new: of each stream the newest commit before the bound sums up those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.log.machine.history import History
from spark_timely.log.machine.state import batch_state
from spark_timely.log.reader import check_remembered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.log import Log
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.state import StreamState
    from spark_timely.time.antichain import Antichain, BoolArray


_OWN_AT = "_own_at"
"""Column of the wall clocks as the log has them."""


class RecentProgress:
    """Progress of some streams of a log from a position on.

    Parameters
    ----------
    log : Log
        Refreshed by others.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._version: int | None = None
        self._streams: tuple[str, ...] | None = None
        self._floor: Mapping[str, int] = {}
        self._seen: set[str] = set()
        self._rows = pa.table({})
        self._known: History | None = None

    def since(self, position: Mapping[str, int], streams: tuple[str, ...] | None, *, moments: bool) -> History:
        """Return the history from a position on.

        Parameters
        ----------
        position : mapping of str to int
            The first commit that matters of each stream; 0 if absent.
        streams : tuple of str or None
            The streams that matter; all unless given.
        moments : bool
            Whether it matters at which moment commits were made, and which stream was opened from which: then a
            fresh start reads all progress.

        Returns
        -------
        History
            Possibly of more than that.

        Notes
        -----
        Cost: the progress files that were not seen before; at first those that may hold such commits.
        """
        known = self._known
        streams = None if moments else streams
        if known is None or streams != self._streams or not self._covers(position):
            self._streams = streams
            known = self._begin(position, moments=moments)
        elif self._version != self._log.core.version:
            known = self._follow(known, position)
        return known

    def moments(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return the wall clock that the log has of one commit each of some streams.

        Parameters
        ----------
        wanted : mapping of str to int
            By stream the number of a commit, from the one before the position that was asked for last.
        """
        rows = {name: self._rows_of(name, seq) for name, seq in wanted.items()}
        return {name: found[_OWN_AT][0].value or 0 for name, found in rows.items()}

    def states(self, wanted: Mapping[str, int]) -> dict[str, StreamState]:
        """Return the states right after one commit each of some streams, as the log has them.

        Parameters
        ----------
        wanted : mapping of str to int
            As of `moments`.
        """
        form, found = self._log.core.format, {}
        for name, seq in wanted.items():
            rows = self._rows_of(name, seq)
            rows = rows.set_column(rows.schema.get_field_index("_at"), "_at", rows[_OWN_AT])
            found[name] = batch_state(form, rows.drop_columns([_OWN_AT]))
        return found

    def _rows_of(self, stream: str, seq: int) -> pa.Table:
        assert self._known is not None
        commits = self._known.commits_of(stream)
        place = commits.start + int(np.searchsorted(self._known.seqs[commits], seq))
        first, end = self._known.starts[place : place + 2].tolist()
        return self._rows.slice(first, end - first)

    def _covers(self, position: Mapping[str, int]) -> bool:
        return all(position.get(name, 0) >= seq for name, seq in self._floor.items() if self._wants(name))

    def _wants(self, name: str) -> bool:
        return self._streams is None or name in self._streams

    def _begin(self, position: Mapping[str, int], *, moments: bool) -> History:
        # Earlier clocks bound the later ones of their stream.
        self._floor = {} if moments else dict(position)
        index = self._log.core.progress_files()
        chosen = np.zeros(len(index), dtype=np.bool_)
        for name in self._log.core.positions():
            if self._wants(name):
                chosen |= index.may_hold_stream(name) & (index.seq_hi >= self._floor.get(name, 0) - 1)
        rows = self._read(index.paths[chosen].tolist())
        return self._keep(rows.filter(self._needed(rows)), index)

    def _follow(self, known: History, position: Mapping[str, int]) -> History:
        """Add what is new, and drop what is behind."""
        index = self._log.core.progress_files()
        fresh = [path for path in index.paths.tolist() if path not in self._seen]
        news = self._read(fresh)
        # A file may hold what was merged: commits that are known.
        news = news.filter(self._from(news, known.present()))
        self._floor = dict(position)
        rows = pa.concat_tables([self._rows, news])
        return self._keep(rows.filter(self._needed(rows)), index)

    def _read(self, paths: list[str]) -> pa.Table:
        rows = self._log.core.progress_rows(paths)
        return rows.append_column(_OWN_AT, rows["_at"])

    def _needed(self, rows: pa.Table) -> pa.Array:
        """Return which rows belong to commits from just before the floor on, or open a stream."""
        before = {name: seq - 1 for name, seq in self._floor.items()}
        return pc.or_(self._from(rows, before), pc.equal(rows["_seq"], 0))

    def _from(self, rows: pa.Table, position: Mapping[str, int]) -> pa.Array:
        """Return which rows belong to commits of streams that matter, from a position on."""
        seqs = rows["_seq"].to_numpy()
        chosen: BoolArray = np.zeros(rows.num_rows, dtype=np.bool_)
        for name in pc.unique(rows["_stream"]).to_pylist():
            if self._wants(name):
                chosen |= pc.equal(rows["_stream"], name).to_numpy() & (seqs >= position.get(name, 0))
        return pa.array(chosen)

    def _keep(self, rows: pa.Table, index: FileIndex) -> History:
        rows = rows.sort_by([("_stream", "ascending"), ("_seq", "ascending")]).combine_chunks()
        known = History(rows, self._log.domain)
        at = np.repeat(known.moments, np.diff(known.starts))
        place = rows.schema.get_field_index("_at")
        kind = rows.schema.field(place).type
        self._rows = rows.set_column(place, rows.schema.field(place), pa.array(at).cast(pa.timestamp("us", kind.tz)))
        self._seen = set(index.paths.tolist())
        self._version = self._log.core.version
        self._known = known
        return known


class CommitBound:
    """The frontier that the commits before a bound made.

    Parameters
    ----------
    log : Log
        Refreshed by others.
    kind : {"version", "timestamp"}
    bound : int
        Commits with a lower number, or at an earlier moment in microseconds since 1970, are before it.
    streams : tuple of str or None
        The streams that count; all unless given.
    """

    def __init__(self, log: Log, kind: str, bound: int, streams: tuple[str, ...] | None) -> None:
        self._log = log
        self._kind, self._bound, self._streams = kind, bound, streams
        self._recent = RecentProgress(log)
        self._position: dict[str, int] = {}
        self._version: int | None = None
        self._found: tuple[Antichain, bool] | None = None

    def frontier(self) -> Antichain:
        """Return the frontier that the commits before the bound made, as far as they are there."""
        return self._look()[0]

    def reached(self) -> bool:
        """Return whether they are all there: whether their frontier stays as it is."""
        return self._look()[1]

    def _look(self) -> tuple[Antichain, bool]:
        if self._found is not None and (self._found[1] or self._version == self._log.core.version):
            return self._found
        if self._found is None:
            word = "commit" if self._kind == "version" else "moment"
            what = f"tell the frontier of log {self._log.path!r} before a {word}"
            check_remembered(self._log.core, self._kind, self._bound, self._streams, what=what)
        # What `#open` has, and who came from whom, counts whichever streams were chosen.
        history = self._recent.since(self._position, None, moments=True)
        reached = history.reached(self._kind, self._bound, self._streams)
        self._found = history.frontier(self._kind, self._bound, self._streams), reached
        self._version = self._log.core.version
        present = history.present()
        before = history.before(self._kind, self._bound)
        self._position = {name: min(seq, present[name]) for name, seq in before.items()}
        return self._found
