"""Plans of a replay in the order captured: offsets are commit numbers of each stream.

`delivery=arrival` asks for it. The `ReplayPlanner` hands such a query to its `Arrivals`, which decides from the history
of commits where a query begins (`origin`), how far its next micro-batch goes (`next`), and which splits it has
(`plan`).

Invariants
----------
1. Commits are delivered whole, per stream in the order of their numbers; messages of a commit come
   before its progress, in the same split.
2. Commits that open a stream are taken as soon as they are seen, and stated before all others. A new stream gets its
   capability from `#open`, which holds one for streams to come; the commit by which `#open` gives it up follows. For a
   statement that raises a count may come earlier than it was made, one that lowers it may not. So every prefix of the
   rows is a legal stream, not only the whole.
3. Positions and plans name only streams that the offset's selection chooses, whatever the options say.
4. Across streams the order is that of the wall clocks of the commits; nothing may rely on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.datasource.reader import sorted_schema
from spark_timely.datasource.recent import RecentProgress
from spark_timely.datasource.splits import FilePiece, Split, changes_between, progress_table, to_bytes
from spark_timely.errors import DataLossError
from spark_timely.log.machine.history import History
from spark_timely.log.machine.lost_commits import accepted_commit, made_last
from spark_timely.log.machine.since import may_read, moved_to, needed_from
from spark_timely.log.machine.state import OPEN_STREAM
from spark_timely.log.reader import check_remembered
from spark_timely.protocol.replay import Limits, admit_commits, default_splits
from spark_timely.time.antichain import Antichain, ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.datasource.catalog import Catalog
    from spark_timely.datasource.splits import ReplayLayout
    from spark_timely.log import Log
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.lost_commits import Commits
    from spark_timely.spark.base.offsets import Begin, Offset, Selection
    from spark_timely.time.antichain import BoolArray, IntArray


Seqs = dict[str, int]
Streams = tuple[str, ...] | None


class Arrivals:
    """Positions and plans of ``delivery=arrival`` for one log.

    Parameters
    ----------
    log : Log
        Refreshed by others.
    catalog : Catalog
    layout : ReplayLayout

    Notes
    -----
    Cost of a plan: that of the commits since its start, whatever the log has seen before.
    """

    def __init__(self, log: Log, catalog: Catalog, layout: ReplayLayout) -> None:
        self._log = log
        self._catalog = catalog
        self._layout = layout
        self._recent = RecentProgress(log)

    def _since(self, position: Seqs, selection: Selection) -> History:
        """Return the progress from a position on, with the moments of commits where the query speaks of such."""
        moments = any(bound is not None and bound.kind == "timestamp" for bound in (selection.start, selection.until))
        return self._recent.since(position, selection.streams, moments=moments)

    # -- positions

    def present(self, streams: Streams) -> Seqs:
        """Return the number of the next commit of each stream."""
        return _chosen(self._log.core.positions(), streams)

    def origin(self, begin: Begin, selection: Selection, pinned: Seqs | None) -> Seqs:
        """Return the position at which a query begins.

        The capabilities that a new log holds for streams to come are part of any beginning.
        """
        streams = selection.streams
        if begin.kind == "latest":
            return self._reached(streams, pinned)
        if selection.since is not None:
            return self._behind(selection.since, streams)
        found: Seqs = {}
        if begin.kind in ("version", "timestamp"):
            # Asked once in a run: the answer is written down in the first offset.
            bound, named = int(str(begin.value)), "startingVersion" if begin.kind == "version" else "startingTimestamp"
            what = f"begin at {named} of log {self._log.path!r}"
            check_remembered(self._log.core, begin.kind, bound, streams, what=what)
            history = History(self._log.core.progress(), self._log.domain)
            found = _chosen(history.before(begin.kind, bound), streams)
        if begin.kind == "version":
            # What a stream was opened with is part of where it begins, as is what `#open` gave up for it. A
            # stream that has not come so far begins where it is: what it will hold is not known. Until it has
            # come so far only its progress is given out (see `_skipped`), and so for streams opened later.
            present = self.present(None)
            found = {name: min(max(seq, 1), present[name]) for name, seq in found.items()}
        if streams is None:
            found[OPEN_STREAM] = max(1, found.get(OPEN_STREAM, 1))
        return {name: seq for name, seq in found.items() if seq > 0}

    def _behind(self, since: Antichain, streams: Streams) -> Seqs:
        """Return the first position whose commits, and all after them, since has not touched; asked once in a run.

        What is left of those before it comes with the first micro-batch.
        """
        history = History(self._log.core.progress(), self._log.domain)
        kind, minimum = self._log.kind, self._log.domain.minimum
        found: Seqs = {}
        for name in history.names:
            seqs = history.seqs[history.commits_of(name)]
            low, high = 0, seqs.shape[0]  # commits before `low` were made behind since
            while low < high:
                middle = (low + high) // 2
                times, counts = history.held({name: int(seqs[middle]) + 1}, [name])
                at = Antichain.from_times(times[counts > 0], self._log.domain.arity)
                if may_read(since, needed_from(kind, at, minimum)):
                    high = middle
                else:
                    low = middle + 1
            place = min(low, seqs.shape[0] - 1)
            # A stream that was opened behind since has not begun.
            found[name] = 0 if place == 0 and seqs[0] == 0 else int(seqs[place]) + 1
        return {name: seq for name, seq in _chosen(found, streams).items() if seq > 0}

    def next(self, begun: Offset, pinned: Seqs | None, limits: Limits) -> Seqs:
        """Return the position up to which the next micro-batch goes; the same where nothing is new."""
        start, selection = begun.seqs, begun.selection
        target = self._target(start, selection, pinned)
        if limits.unlimited or target == start:
            return target
        position = {
            name: seq if name == OPEN_STREAM else max(start.get(name, 0), min(seq, 1)) for name, seq in target.items()
        }
        history = self._since(start, selection)
        commits = _between(history, position, target)
        order = np.lexsort((history.seqs[commits], history.streams[commits], history.moments[commits]))
        commits = commits[order]
        read = ~_skipped(history, commits, selection.start)
        sizes, files = np.zeros_like(commits), np.zeros_like(commits)
        sizes[read], files[read] = self._weights(history, commits[read], selection.streams)
        messages = np.where(read, history.messages[commits], 0)
        taken = commits[: admit_commits(messages, sizes, files, limits)]
        for code in np.unique(history.streams[taken]).tolist():
            mine = history.seqs[taken][history.streams[taken] == code]
            position[history.names[code]] = int(mine.max()) + 1
        return position

    def commits(self, begun: Offset, position: Seqs, n_bytes: int) -> Commits:
        """Return the last commit of each stream before a position: of very many streams those that were made last.

        Parameters
        ----------
        begun : Offset
            Where the micro-batch begins.
        position : dict of str to int
            Where it ends.
        n_bytes : int
            Room for the commits as text, about.

        Notes
        -----
        The same for the same position, whenever it is asked for. Free for the newest commits of the log; others are
        among the progress that the micro-batch reads anyway.
        """
        ends = self._log.core.ends()
        last = {name: seq - 1 for name, seq in position.items() if name in ends and 0 < seq <= ends[name].seq + 1}
        newest = {name for name, seq in last.items() if ends[name].seq == seq}
        earlier = {name: seq for name, seq in last.items() if name not in newest}
        moments = {name: ends[name].at for name in newest}
        if earlier:
            self._since(begun.seqs, begun.selection)
            moments |= self._recent.moments(earlier)
        names = made_last(moments, n_bytes)
        states = {name: ends[name] for name in names if name in newest}
        states |= self._recent.states({name: earlier[name] for name in names if name in earlier})
        return {
            **{name: (last[name], states[name].identity) for name in names},
            **accepted_commit(self._log.core.accepted),
        }

    def _target(self, start: Seqs, selection: Selection, pinned: Seqs | None) -> Seqs:
        target = self._reached(selection.streams, pinned)
        if selection.until is not None:
            ends = self._since(start, selection).before(selection.until.kind, int(str(selection.until.value)) + 1)
            target = {name: min(seq, ends.get(name, seq)) for name, seq in target.items()}
        # What was delivered stays delivered, whatever the end was moved to.
        names = sorted({*start, *target})
        merged = {name: max(start.get(name, 0), target.get(name, 0)) for name in names}
        return {name: seq for name, seq in merged.items() if seq > 0}

    def _reached(self, streams: Streams, pinned: Seqs | None) -> Seqs:
        return self.present(streams) if pinned is None else _chosen(pinned, streams)

    def _weights(
        self, history: History, commits: npt.NDArray[np.intp], streams: Streams
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return bytes and files of each commit; a file of several counts with the first of them."""
        index = self._catalog.index(streams)
        sizes = np.zeros(commits.shape[0], dtype=np.int64)
        files = np.zeros(commits.shape[0], dtype=np.int64)
        left = np.ones(len(index), dtype=np.bool_)
        for code, name in enumerate(history.names):
            mine = np.flatnonzero(history.streams[commits] == code)
            if not mine.size:
                continue
            mine = mine[np.argsort(history.seqs[commits[mine]])]
            seqs = history.seqs[commits[mine]]
            holds = np.flatnonzero(left & index.may_hold_stream(name))
            places = np.searchsorted(seqs, index.seq_lo[holds])
            inside = places < seqs.shape[0]
            holds, places = holds[inside], places[inside]
            inside = seqs[places] <= index.seq_hi[holds]
            holds, places = holds[inside], places[inside]
            np.add.at(sizes, mine[places], index.sizes[holds])
            np.add.at(files, mine[places], 1)
            left[holds] = False
        return sizes, files

    # -- plans

    def plan(self, low: Seqs, end: Offset, workers: int | None, *, opening: bool) -> list[Split]:
        """Return the splits of the commits between two positions."""
        streams = end.selection.streams
        low, high = _chosen(low, streams), _chosen(end.seqs, streams)
        self._check_reached(high, end.origin_seqs)
        history = self._since(low, end.selection)
        since = end.selection.since if opening else None
        if since is not None:
            at = self._log.domain.render_frontier(since)
            self._log.core.check_may_read(since, what=f"begin to read log {self._log.path!r} from {at}")
        self._check_since(history, low)
        commits = _between(history, low, {name: seq for name, seq in high.items() if name != OPEN_STREAM})
        # An opening has no messages; its progress comes first.
        opening_commits = commits[history.seqs[commits] == 0]
        commits = commits[history.seqs[commits] > 0]
        skipped = _skipped(history, commits, end.selection.start)
        if self._layout.content != "events":
            commits, skipped = commits[~skipped], skipped[~skipped]
        wanted = _ranges(history, commits[~skipped])
        index = self._catalog.index(streams)
        self._catalog.look_into(lambda files: files.may_hold_commits(wanted))
        index = index.select(index.may_hold_commits(wanted))
        n_splits = workers or default_splits(int(index.sizes.sum()))
        splits: list[dict[str, Any]] = [] if since is None else self._left(end, streams, workers)
        for part in _cut(history, commits, n_splits):
            splits.append(self._split(history, part, index, end.selection.start))
        if self._layout.content == "events":
            first = self._first_changes(history, low, end, opening_commits, opening=opening)
            if not splits and first.num_rows:
                splits.append({"pieces": (), "commits": (), "size_bytes": 0, "rows": first.slice(0, 0)})
            for number, split in enumerate(splits):
                rows = split.pop("rows")
                rows = pa.concat_tables([first, rows]) if number == 0 else rows
                split["progress"] = to_bytes(rows) if rows.num_rows else b""
        seen = {} if since is None else self._as_of(since)
        return [
            Split(number, len(splits), self._log.path, streams=None, **seen, **split)
            for number, split in enumerate(splits)
        ]

    def _as_of(self, since: Antichain) -> dict[str, Any]:
        """Return what of a split lets rows be seen as of since; those of later commits are as they are."""
        if self._log.kind == "collection":
            return {"as_of": moved_to(since)}
        return {"lower": since.elements, "upper": ()}

    def _left(self, end: Offset, streams: Streams, workers: int | None) -> list[dict[str, Any]]:
        """Return splits of what is left of the commits before the query's origin."""
        ranges = [(name, 0, seq) for name, seq in _chosen(end.origin_seqs, streams).items() if name != OPEN_STREAM]
        index = self._catalog.index(streams)
        self._catalog.look_into(lambda files: files.may_hold_commits(ranges))
        index = index.select(index.may_hold_commits(ranges))
        n_splits = workers or default_splits(int(index.sizes.sum()))
        found: list[dict[str, Any]] = []
        for number in range(min(n_splits, len(index))):
            files = index.select(np.arange(number, len(index), n_splits))
            pieces = tuple(FilePiece(path) for path in files.paths.tolist())
            found.append({"pieces": pieces, "commits": tuple(ranges), "size_bytes": int(files.sizes.sum())})
        return found

    def _split(
        self, history: History, commits: npt.NDArray[np.intp], index: FileIndex, start: Begin | None
    ) -> dict[str, Any]:
        ranges = _ranges(history, commits[~_skipped(history, commits, start)])
        files = index.select(index.may_hold_commits(ranges))
        alone = (files.stream_lo == files.stream_hi) & (files.seq_lo == files.seq_hi)
        pieces = [
            FilePiece(path, commit=(stream, seq) if single else None)
            for path, stream, seq, single in zip(
                files.paths.tolist(), files.stream_lo.tolist(), files.seq_lo.tolist(), alone.tolist(), strict=True
            )
        ]
        pieces.sort(key=lambda piece: (piece.commit or ("", -1), piece.path))
        found: dict[str, Any] = {
            "pieces": tuple(pieces),
            "commits": tuple(ranges),
            "size_bytes": int(files.sizes.sum()),
        }
        if self._layout.content == "events":
            found["rows"] = self._changes(history, commits)
        return found

    def _changes(self, history: History, commits: npt.NDArray[np.intp]) -> pa.Table:
        """Return the progress rows of commits, raises first, without those that only repeat a count."""
        starts, ends = history.starts[commits], history.starts[commits + 1]
        n_rows = ends - starts
        owners, rows = np.repeat(commits, n_rows), ranges(starts, n_rows)
        places = np.repeat(np.arange(commits.shape[0]), n_rows)
        order = np.lexsort((history.deltas[rows] < 0, places))
        order = order[history.deltas[rows][order] != 0]
        rows, owners = rows[order], owners[order]
        names = np.array(history.names, dtype=object)[history.streams[owners]]
        return self._table(history.times[rows], history.deltas[rows], names, history.seqs[owners])

    def _first_changes(
        self, history: History, low: Seqs, end: Offset, opened: npt.NDArray[np.intp], *, opening: bool
    ) -> pa.Table:
        """Return what is stated before the commits of a micro-batch: beginnings, openings, claims given up."""
        streams, origin = end.selection.streams, end.origin_seqs
        arity = self._layout.domain.arity
        minimum = self._layout.domain.minimum_frontier.times
        empty = np.empty((0, arity), np.int64), np.empty(0, np.int64)
        parts = [self._table(*empty, np.empty(0, dtype=object), np.empty(0, np.int64))]
        if opening:
            names = history.names if streams is None else [name for name in streams if name in origin]
            times, counts = history.held(origin, names)
            if streams is not None:
                # A chosen stream that is yet to open stands at the minimum until it does.
                waiting = len(streams) - len(names)
                times = np.concatenate([times, np.repeat(minimum, waiting, axis=0)])
                counts = np.append(counts, np.ones(waiting, np.int64))
            times, deltas = changes_between(self._layout.domain.minimum_frontier, times, counts)
            n = times.shape[0]
            parts.append(self._table(times, deltas, np.full(n, None, dtype=object), np.full(n, -1)))
        parts.append(_placed(self._changes(history, opened), 0))
        if streams is None:
            claims = _between(history, low, {OPEN_STREAM: end.seqs.get(OPEN_STREAM, 0)})
            parts.append(self._changes(history, claims))
        else:
            arrived = [name for name in streams if not low.get(name) and end.seqs.get(name) and name not in origin]
            n = len(arrived)
            gone = np.repeat(minimum, n, axis=0), np.full(n, -1, np.int64)
            parts.append(_placed(self._table(*gone, np.array(arrived, dtype=object), np.zeros(n, np.int64)), 1))
        return pa.concat_tables(parts)

    def _table(
        self,
        times: IntArray,
        deltas: npt.NDArray[np.int64],
        names: npt.NDArray[np.object_],
        seqs: npt.NDArray[np.int64],
    ) -> pa.Table:
        return progress_table(
            sorted_schema(self._layout), self._layout, times, deltas, streams=names.tolist(), seqs=seqs
        )

    def _check_since(self, history: History, low: Seqs) -> None:
        """Refuse to read commits whose messages may be forgotten, by the frontier that was before them."""
        domain = self._log.domain
        if self._log.since() == domain.minimum_frontier:
            return
        before = self._frontier_before(history, low)
        at = domain.render_frontier(before)
        needed = needed_from(self._log.kind, before, domain.minimum)
        self._log.core.check_may_read(
            needed, what=f"read commits of log {self._log.path!r} that were made at frontier={at}"
        )

    def _frontier_before(self, history: History, low: Seqs) -> Antichain:
        """Return the frontier of the streams as it was before the commits from a position on."""
        domain = self._log.domain
        begun = [name for name, seq in low.items() if seq > 0]
        if not begun:
            return domain.minimum_frontier
        times, counts = history.held({name: low[name] for name in begun}, begun)
        return Antichain.from_times(times[counts > 0], domain.arity)

    def needed(self, position: Seqs, selection: Selection) -> Antichain:
        """Return what a query needs that stands at a position."""
        before = self._frontier_before(self._since(position, selection), position)
        return needed_from(self._log.kind, before, self._log.domain.minimum)

    def _check_reached(self, high: Seqs, origin: Seqs) -> None:
        present = self.present(None)
        for name, seq in high.items():
            if seq > max(present.get(name, 0), origin.get(name, 0)):
                msg = (
                    f"could not read stream {name!r} of log {self._log.path!r} up to commit {seq}: "
                    f"found {present.get(name, 0)} commits"
                )
                raise DataLossError(
                    msg,
                    hint="begin with a new checkpoint: the log was restored to an earlier state or replaced",
                    context={"path": self._log.path, "stream": name},
                )

    def report(self, offset: Offset) -> dict[str, object]:
        """Return how far the log is and how many commits the offset is behind it."""
        present = self.present(offset.selection.streams)
        done = offset.seqs if offset.begin is None else {}
        behind = sum(max(0, seq - done.get(name, 0)) for name, seq in present.items() if name != OPEN_STREAM)
        return {"seqs": present, "behindCommits": behind}


def _placed(rows: pa.Table, place: int) -> pa.Table:
    """Return progress rows that are sorted before those of any commit, by their place among such."""
    n = rows.num_rows
    for name, value in (("_sort_stream", pa.scalar("", pa.string())), ("_sort_seq", pa.scalar(place, pa.int64()))):
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, rows.schema.field(number), pa.repeat(value, n))
    return rows


def _between(history: History, low: Mapping[str, int], high: Mapping[str, int]) -> npt.NDArray[np.intp]:
    """Return the commits from one position to another, in order of stream and number."""
    parts = [np.empty(0, dtype=np.intp)]
    for name in sorted(high):
        commits = history.commits_of(name)
        first, last = np.searchsorted(history.seqs[commits], [low.get(name, 0), high[name]])
        parts.append(np.arange(commits.start + first, commits.start + last))
    return np.concatenate(parts)


def _skipped(history: History, commits: npt.NDArray[np.intp], start: Begin | None) -> BoolArray:
    """Return which commits are before the query's own start: their messages are left out.

    By their numbers and moments alone, so it is the same whenever it is asked.
    """
    if start is None:
        return np.zeros(commits.shape[0], dtype=np.bool_)
    values = history.seqs if start.kind == "version" else history.moments
    result: BoolArray = values[commits] < int(str(start.value))
    return result


def _cut(history: History, commits: npt.NDArray[np.intp], n_splits: int) -> list[npt.NDArray[np.intp]]:
    """Cut commits into runs of about equal numbers of messages."""
    if not commits.size:
        return []
    sizes = history.messages[commits].clip(min=0) + 1
    ends = np.cumsum(sizes)
    places = np.minimum(((ends - sizes / 2) * n_splits / ends[-1]).astype(np.int64), n_splits - 1)
    return [commits[places == place] for place in np.unique(places).tolist()]


def _ranges(history: History, commits: npt.NDArray[np.intp]) -> list[tuple[str, int, int]]:
    """Return the numbers of commits, which have no gaps, per stream: first and end."""
    ranges = []
    for code in np.unique(history.streams[commits]).tolist():
        seqs = history.seqs[commits][history.streams[commits] == code]
        ranges.append((history.names[code], int(seqs[0]), int(seqs[-1]) + 1))
    return ranges


def _chosen(position: Mapping[str, int], streams: Streams) -> Seqs:
    if streams is None:
        return dict(position)
    return {name: seq for name, seq in position.items() if name in streams}
