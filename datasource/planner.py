"""The planner of replays: chooses the offsets and splits of each micro-batch from a log and the options.

The planner runs on the driver, one per query and run, and keeps what it has learnt of the log between
micro-batches. It knows nothing of Spark: the readers of `spark_readers` put it behind Spark's interfaces, and
`spark_timely.spark.replay` asks it without them. What is ordered by commits instead of times it leaves to `arrivals`.

Invariants
----------
1. A plan depends on its two offsets and on the log alone: not on what was asked before, nor on the
   options that an offset carries. So the last micro-batch can be planned again after a crash.
2. An offset that does not move is the start offset itself, word for word: also where the log has commits since that
   deliver nothing.
3. Nothing beyond the log's frontier is delivered under ``complete``; a frontier never goes back.
4. An offset never goes past what was there when ``prepare_available_now`` was called.
5. Nothing is planned from an offset until the log was found to have the commits that the offset names. That is looked
   at once per run: from then on the log's handle refuses a log that goes back.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_timely.datasource.arrivals import Arrivals
from spark_timely.datasource.bounds import aligned, alignment_of, continue_with, first_offset, ignored_start
from spark_timely.datasource.catalog import Catalog
from spark_timely.datasource.recent import CommitBound
from spark_timely.datasource.splits import FilePiece, ReplayLayout, Split, frontier_changes, make_layout
from spark_timely.errors import DataLossError, NotBeyondError
from spark_timely.log.acceptance import describe_others
from spark_timely.log.cut import Cut
from spark_timely.log.machine.decide import missing_stream
from spark_timely.log.machine.lost_commits import ACCEPTED, is_accepted, newest_commits, other_commits
from spark_timely.log.machine.since import may_read, moved_to, needed_from
from spark_timely.log.reader import check_between
from spark_timely.log.wait import Throttle, idle_poll_s
from spark_timely.masking import masked_logger
from spark_timely.protocol.replay import Admission, Limits, admit, cut_bytes, default_splits, may_hold
from spark_timely.spark.base.beginnings import beginning
from spark_timely.spark.base.offsets import Begin, Offset, Selection, iso_of, read_offset
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_timely.conf.options import SourceOptions
    from spark_timely.datasource.retaining import RetainedPosition
    from spark_timely.log import Log
    from spark_timely.log.machine.lost_commits import Commits
    from spark_timely.protocol.replay import FileBounds
    from spark_timely.spark.base.offsets import Bound
    from spark_timely.time.antichain import BoolArray


_log = masked_logger("spark_timely.datasource")

# Of the commits in an offset, about: Spark keeps it with each micro-batch, and shows it in `lastProgress`.
_COMMITS_BYTES = 4 * 1024


def cut_of(log: Log, options: SourceOptions, /) -> Cut | None:
    """Return the cut that the options name, None if they name none; refuse one that the log is not part of."""
    if options.cut is None:
        return None
    found = Cut.from_json(options.cut)
    found.check_log(log, accept=options.accept_change)
    return found


def layout_of(log: Log, options: SourceOptions, /) -> ReplayLayout:
    """Return the columns that a query with these options gets."""
    return make_layout(
        log.schema,
        log.domain,
        collection=log.kind == "collection",
        content=options.content,
        delivery=options.delivery,
        columns=options.columns,
        where=options.where,
        include_time=options.include_time,
        include_metadata=options.include_metadata,
        fail_on_data_loss=options.fail_on_data_loss,
    )


@dataclass(frozen=True, slots=True)
class _Pin:
    """The end of a run that stops at what the log had when it began.

    Attributes
    ----------
    frontier : Antichain
        Of the log.
    frontiers : dict of str to Antichain
        Of each stream.
    seqs : dict of str to int
        Number of the next commit of each stream, under ``arrival``.
    """

    frontier: Antichain
    frontiers: dict[str, Antichain]
    seqs: dict[str, int]

    def closed(self, streams: tuple[str, ...] | None) -> Antichain:
        """Return the frontier of the chosen streams, as it was then."""
        return _closed(self.frontier, self.frontiers, streams)


def _is_contents(lower: Antichain, selection: Selection) -> bool:
    """Return whether what is read from a frontier on begins by the contents of a collection at one time."""
    return selection.as_of is not None and len(selection.as_of) == 1 and lower == selection.as_of


def _closed(frontier: Antichain, frontiers: Mapping[str, Antichain], streams: tuple[str, ...] | None) -> Antichain:
    """Return the frontier of the chosen streams: times not beyond it are complete.

    A stream that was named and has not been opened may open anywhere that the log's own frontier
    allows; until then the log's frontier holds. Streams that were not chosen hold nothing back.
    """
    if streams is None or any(name not in frontiers for name in streams):
        return frontier
    found = Antichain.empty(frontier.arity)
    for name in streams:
        found = found.meet(frontiers[name])
    return found


class ReplayPlanner:
    """Plans one query's replay of one log.

    Parameters
    ----------
    log : Log
        Open; refreshed as needed.
    options : SourceOptions
    layout : ReplayLayout, optional
        Columns to give out; those of the options unless given.
    now : callable
        A clock in seconds that never goes back.
    pause : callable
        Waits the given seconds between attempts to open a file that is missing.
    retained : RetainedPosition, optional
        Keeps what the query has not read.

    Raises
    ------
    InvalidOptionError, InvalidBoundsError, InvalidUsageError
        If the options do not fit each other or the log.

    Notes
    -----
    Cost of a plan: one refresh of the log, one pass over arrays of its files, and the files of the
    micro-batch. Files are opened only where limits or ``splitBy=time`` ask for exact times, once each.
    """

    def __init__(
        self,
        log: Log,
        options: SourceOptions,
        layout: ReplayLayout | None = None,
        *,
        now: Callable[[], float] = clock.monotonic,
        pause: Callable[[float], None] = clock.sleep,
        retained: RetainedPosition | None = None,
    ) -> None:
        self._log = log
        self._retained = retained
        self._options = options
        self._domain = log.domain
        self.layout = layout_of(log, options) if layout is None else layout
        self._cut = cut_of(log, options)
        self._first = first_offset(options, log.domain, log.kind)
        self._align = alignment_of(options, log.domain)
        self._limits = Limits(
            times=options.max_times_per_trigger,
            files=options.max_files_per_trigger,
            size_bytes=options.max_bytes_per_trigger,
            rows=options.max_rows_per_trigger,
            align=self._align,
        )
        idle_s = 0.0 if "poll_interval" in options.given else idle_poll_s([log])
        self._looks = Throttle(options.poll_interval.seconds, idle_s=idle_s, now=now)
        self._catalog = Catalog(log, fail_on_data_loss=options.fail_on_data_loss, pause=pause)
        self._arrivals = Arrivals(log, self._catalog, self.layout)
        self._bounds: dict[tuple[str, int, tuple[str, ...] | None], CommitBound] = {}
        self._pinned: _Pin | None = None
        self._asked = False
        self._checked_streams = False
        self._checked_commits: tuple[Commits, tuple[str, ...]] = {}, ()
        self._answered: Offset = self._first
        self._admitted: Admission | None = None

    @property
    def limited(self) -> bool:
        """Whether options limit what a micro-batch takes."""
        return not self._limits.unlimited

    # -- offsets

    def initial(self) -> dict[str, object]:
        """Return the symbolic offset of a fresh checkpoint: the same however often it is asked for."""
        return self._first.to_json()

    def prepare_available_now(self) -> None:
        """Fix where the query ends: at what is there now."""
        self._refresh(at_once=True)
        # Of all streams: which ones are read is said by the checkpoint, which is not known yet.
        self._pinned = _Pin(
            self._log.frontier(),
            {name: state.frontier for name, state in self._log.streams().items()},
            self._arrivals.present(None) if self._first.selection.delivery == "arrival" else {},
        )

    def latest(self, start: Mapping[str, Any], *, limited: bool = True, committed: bool = True) -> dict[str, object]:
        """Return the offset up to which the next micro-batch goes.

        Parameters
        ----------
        start : mapping
            Where it begins, as `initial`, `latest` or Spark's log gave it.
        limited : bool
            Whether the limits of the options hold.
        committed : bool
            Whether all before `start` is done with, as Spark says by asking.

        Returns
        -------
        dict
            `start` itself where there is nothing new.

        Raises
        ------
        InvalidUsageError
            If `start` is no offset of this log, or contradicts the options.
        StreamMissingError
            If the query begins, and a stream that it names can never open any more.
        DataLossError
            If the log is not the one that `start` speaks of, or went back since.
        """
        offset = continue_with(read_offset(start, self._domain.arity), self._first, self._options)
        if not self._asked:
            self._asked = True
            ignored = ignored_start(offset, self._first, self._options)
            if ignored is not None:
                _log.warning(
                    "option %s is not used for log %r: the checkpoint says where the query continues; to begin "
                    "elsewhere, give a new checkpoint",
                    ignored,
                    self._log.path,
                )
        self._check_log(offset)
        self._refresh()
        self._check_commits(offset)
        if committed:
            self._retain(offset)
        if not self._checked_streams:
            self._check_streams(offset)
        found = self._next(offset, self._limits if limited else Limits())
        if found is None:
            self._answered = offset
            return dict(start)
        if self._retained is not None and found.consumer is None:
            found = replace(found, consumer=self._retained.identity)
        self._answered = found
        self._checked_commits = found.commits, self._log.core.accepted
        return found.to_json()

    def commit(self, end: Mapping[str, Any]) -> None:
        """Take notice that all before an offset is done with."""
        if self._retained is not None:
            self._retain(read_offset(end, self._domain.arity))

    def end(self) -> None:
        """Let go of what the planner holds beside the log."""
        if self._retained is not None:
            self._retained.end()

    def _retain(self, offset: Offset) -> None:
        if self._retained is not None:
            self._retained.stand(self._needed(offset), offset.consumer, self._log)

    def _needed(self, offset: Offset) -> Antichain:
        """Return what the query needs that stands at an offset; before it has begun all that there is."""
        if offset.begin is not None:
            return self._log.since()
        selection = offset.selection
        if selection.delivery == "arrival":
            return self._arrivals.needed(offset.seqs, selection)
        needed = needed_from(self._log.kind, offset.frontier, self._domain.minimum)
        if selection.as_of is None or selection.as_of.less_equal_frontier(needed):
            return needed
        return selection.as_of

    def _next(self, offset: Offset, limits: Limits) -> Offset | None:
        """Return the next offset, None where nothing is new."""
        pinning = offset.begin is not None and not offset.begin.constant
        begun = self._begun(offset)
        if begun is None:
            return None
        if offset.selection.delivery == "arrival":
            position = self._arrivals.next(begun, self._pinned_seqs(), limits)
            left = offset.begin is not None and begun.selection.since is not None
            if position == begun.seqs and not pinning and not left:
                return None
            position = begun.seqs if pinning else position
            return begun.moved(position, self._arrivals.commits(begun, position, _COMMITS_BYTES))
        if pinning:
            # What "now" or a moment means must not be asked twice: an empty micro-batch pins it.
            return begun.moved(begun.frontier, self._newest(begun.selection.streams))
        upper = self._upper(begun)
        if upper == begun.frontier:
            return None
        return begun.moved(self._admit(begun, upper, limits), self._newest(begun.selection.streams))

    def _begun(self, offset: Offset) -> Offset | None:
        """Resolve a symbolic offset: where it begins in this log; None before the log has come so far.

        Where the commits before the beginning are not all there, their frontier would depend on when
        the query was started, and what comes before the beginning would be given out.
        """
        if offset.begin is None:
            return offset
        if self._cut is not None:
            self._cut.check_since(self._log)
        begin, selection = offset.begin, offset.selection
        by_commits = begin.kind in ("version", "timestamp")
        origin: Antichain | dict[str, int]
        if offset.selection.delivery == "arrival":
            if self._begins_at_since(begin, selection):
                selection = replace(selection, since=self._log.since())
            origin = self._arrivals.origin(begin, selection, self._pinned_seqs())
            selection = replace(selection, start=begin) if by_commits else selection
        elif by_commits and not self._commits(begin.kind, int(str(begin.value)), selection.streams).reached():
            return None
        else:
            self._check_until(begin, selection)
            selection = self._whole_from_since(begin, selection)
            origin = self._origin(begin, selection)
            self._check_since(origin, selection)
        if begin.value == self._domain.minimum_frontier:
            # What is copied by this query lacks what its log lacks, and says so.
            selection = replace(selection, begins=beginning(self._log, selection.streams))
        return Offset(selection, position=origin, origin=origin, log_id=self._catalog.log_id)

    def _begins_at_since(self, begin: Begin, selection: Selection) -> bool:
        """Return whether a query in the order captured begins with what is left of forgotten commits.

        With their statements it cannot: those are gone, and messages that are left may lie before what is held.
        """
        forgotten = begin.value == self._domain.minimum_frontier != self._log.since()
        return forgotten and selection.content != "events" and self.layout.content != "events"

    def _whole_from_since(self, begin: Begin, selection: Selection) -> Selection:
        """Let a collection that has forgotten its beginning be seen as of since, which is pinned in the offset.

        With a since of one time that is by its contents; else by its updates, at the times to which they move.
        """
        since = self._log.since()
        forgotten = begin.value == self._domain.minimum_frontier != since
        if not forgotten or selection.as_of is not None or self._log.kind != "collection":
            return selection
        return replace(selection, as_of=since)

    def _origin(self, begin: Begin, selection: Selection) -> Antichain:
        if begin.kind == "latest":
            return self._reached(selection.streams)
        if begin.kind in ("version", "timestamp"):
            # The frontier just before: the commits with a lower number, or an earlier moment.
            return self._commits(begin.kind, int(str(begin.value)), selection.streams).frontier()
        assert isinstance(begin.value, Antichain)
        if begin.kind == "as_of" and not selection.snapshot:
            return self._domain.successors(begin.value.elements[0])
        if begin.value == self._domain.minimum_frontier:
            # The earliest that there is.
            seen = self._log.since() if self._log.kind == "stream" else selection.as_of
            return begin.value if seen is None or (self._log.kind == "collection" and len(seen) > 1) else seen
        return begin.value

    def _upper(self, begun: Offset) -> Antichain:
        """Return up to where closed times can be delivered from an offset."""
        selection = begun.selection
        target = self._reached(selection.streams)
        ended = False
        if selection.until is not None:
            end = self._end(selection.until, selection.streams)
            target = target.meet(end)
            ended = target == end and self._settled(selection.until, selection.streams)
        # In a product order the two may be incomparable; what is beyond the one and not beyond the
        # join is not beyond the other.
        upper = begun.frontier.join(target)
        if _is_contents(begun.frontier, selection) and upper != begun.frontier:
            # Contents come in a micro-batch of their own, before the changes.
            return self._domain.successors(begun.frontier.elements[0])
        if self._align is not None and not ended:
            return begun.frontier.join(aligned(target, self._align, self._domain))
        return upper

    def _end(self, until: Bound, streams: tuple[str, ...] | None) -> Antichain:
        if isinstance(until.value, Antichain):
            return until.value
        return self._commits(until.kind, until.value + 1, streams).frontier()

    def _settled(self, until: Bound, streams: tuple[str, ...] | None) -> bool:
        """Return whether an end stays where it is, whatever is committed from now on."""
        if isinstance(until.value, Antichain):
            return True
        return self._commits(until.kind, until.value + 1, streams).reached()

    def _commits(self, kind: str, bound: int, streams: tuple[str, ...] | None) -> CommitBound:
        """Return what is followed up to a bound: that of the beginning, and that of the end."""
        key = (kind, bound, streams)
        if key not in self._bounds:
            self._bounds[key] = CommitBound(self._log, kind, bound, streams)
        return self._bounds[key]

    def _reached(self, streams: tuple[str, ...] | None) -> Antichain:
        return self._closed(streams) if self._pinned is None else self._pinned.closed(streams)

    def _newest(self, streams: tuple[str, ...] | None) -> Commits:
        """Return the newest commits of the chosen streams; of all, where one that was chosen may yet open.

        All that was delivered is in these or before them. So is what the query has seen and not delivered yet: which
        commit was the last one with rows at closed times is not known without reading all progress.
        """
        ends = self._log.core.ends()
        every = streams is None or any(name not in ends for name in streams)
        chosen = {name: state for name, state in ends.items() if every or name in (streams or ())}
        return newest_commits(chosen, _COMMITS_BYTES, self._log.core.accepted)

    def _pinned_seqs(self) -> dict[str, int] | None:
        return None if self._pinned is None else self._pinned.seqs

    def _closed(self, streams: tuple[str, ...] | None) -> Antichain:
        """Return the frontier of the chosen streams, as the log is now."""
        states = {} if streams is None else self._log.streams()
        return _closed(self._log.frontier(), {name: state.frontier for name, state in states.items()}, streams)

    def _admit(self, begun: Offset, upper: Antichain, limits: Limits) -> Antichain:
        if limits.unlimited:
            return upper
        files = self._catalog.files(begun.selection.streams, begun.selection.as_of)
        lower = begun.frontier.times
        chosen = files.select(may_hold(files.bounds, lower, upper.times))
        taken = admit(chosen.bounds, chosen.counts, lower, upper.times, limits)
        self._admitted = taken
        if taken.oversized is not None:
            _log.warning(
                "time %r of log %r%s alone is above a limit of the micro-batch: it is delivered whole",
                self._domain.render_time(taken.oversized),
                self._log.path,
                "" if self._align is None else ", with what alignTo keeps together,",
            )
        return Antichain.from_times(taken.frontier, self._domain.arity)

    # -- plans

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Split]:
        """Return the splits of the micro-batch between two offsets, which says all that it reads.

        Parameters
        ----------
        start, end : mapping
            As Spark logged them; `start` may be symbolic.

        Returns
        -------
        list of Split
            Empty where there is nothing to read.

        Raises
        ------
        SinceViolationError
            If compaction has passed the start.
        DataLossError
            If the log is not the one that the offsets speak of, or has gone back.
        """
        if start == end:
            return []
        arity = self._domain.arity
        first, last = read_offset(start, arity), read_offset(end, arity)
        if last.begin is not None:
            return []
        self._check_log(last)
        self._refresh()
        self._check_commits(last)
        # Known to be in the checkpoint by its end alone.
        self._retain(replace(first, consumer=last.consumer))
        fresh = first.begin is not None
        low = last.moved(last.origin if fresh and last.origin is not None else first.position)  # type: ignore[arg-type]
        if last.selection.delivery == "arrival":
            return self._arrivals.plan(low.seqs, last, self._options.workers, opening=fresh)
        return self._plan_complete(low.frontier, last, opening=fresh)

    def plan_batch(self) -> list[Split]:
        """Return the splits of a batch read: everything closed, or under ``arrival`` everything."""
        self._refresh(at_once=True)
        known = self._log.streams()
        for name in self._first.selection.streams or ():
            if name not in known:
                # A stream may open while a query runs; a batch read would only ever find nothing.
                raise missing_stream(self._log.path, name, known)
        begun = self._begun(self._first)
        if begun is None:
            return []
        if begun.selection.delivery == "arrival":
            last = begun.moved(self._arrivals.next(begun, None, Limits()))
            return self._arrivals.plan(begun.seqs, last, self._options.workers, opening=True)
        if self._cut is not None:
            self._cut.check_reached(self._log.path, self._closed(begun.selection.streams))
        self._check_closed(begun)
        splits: list[Split] = []
        position, opening = begun, True
        while True:  # at most twice: contents, then changes
            upper = self._upper(position)
            if upper == position.frontier and not (opening and self.layout.content == "events"):
                # Numbered in each of the two plans; the read is one.
                return [replace(split, number=number, n_splits=len(splits)) for number, split in enumerate(splits)]
            end = position.moved(upper)
            splits += self._plan_complete(position.frontier, end, opening=opening)
            position, opening = end, False

    def _check_closed(self, begun: Offset) -> None:
        as_of = begun.selection.as_of
        if as_of is None or len(as_of) > 1 or not self._closed(begun.selection.streams).less_equal(as_of.elements[0]):
            return
        time = self._domain.render_time(as_of.elements[0])
        frontier = self._domain.render_frontier(self._closed(begun.selection.streams))
        msg = f"could not read as of a time: found asOf={time!r}, which is not closed, frontier={frontier}"
        raise NotBeyondError(
            msg,
            hint="read as of a time that is not beyond the frontier, or wait with readStream",
            time=time,
            frontier=frontier,
        )

    def _plan_complete(self, lower: Antichain, end: Offset, *, opening: bool) -> list[Split]:
        selection, upper = end.selection, end.frontier
        self._check_since(lower, selection)
        self._check_reached(end)
        catalog = self._catalog.files(selection.streams, selection.as_of)

        def chosen(bounds: FileBounds) -> BoolArray:
            return may_hold(bounds, lower.times, upper.times)

        catalog.look_into(chosen)
        files = catalog.select(chosen(catalog.bounds)).in_time_order()
        total = int(files.bounds.sizes.sum())
        n_splits = self._options.workers or default_splits(total)
        common: dict[str, Any] = {
            "root": self._log.path,
            "lower": lower.elements,
            "upper": upper.elements,
            "as_of": None if selection.as_of is None else moved_to(selection.as_of),
            "streams": selection.streams,
            # The first range of a replay as of a frontier holds the contents there.
            "consolidate": _is_contents(lower, selection),
        }
        plans: list[dict[str, Any]]
        if self._options.split_by == "time":
            plans = [
                {
                    "pieces": tuple(FilePiece(files.paths[i]) for i in numbers),
                    "first": first,
                    "last": last,
                    "size_bytes": int(files.bounds.sizes[numbers].sum()),
                }
                for first, last, numbers in files.by_time(lower.times, upper.times, n_splits)
            ]
        else:
            plans = [
                {
                    "pieces": tuple(FilePiece(files.paths[p.file], p.start, p.stop) for p in pieces),
                    "size_bytes": sum(p.share_of(int(files.bounds.sizes[p.file])) for p in pieces),
                }
                for pieces in cut_bytes(files.bounds.sizes, n_splits)
            ]
        progress = b""
        if self.layout.content == "events":
            progress = frontier_changes(self.layout, lower, upper, opening=opening)
        if progress:
            plans = plans or [{}]
            plans[-1]["progress"] = progress
        return [Split(number, len(plans), **common, **plan) for number, plan in enumerate(plans)]

    # -- checks

    def _check_until(self, begin: Begin, selection: Selection) -> None:
        """Refuse an end before which everything is forgotten: the query would find nothing, and end."""
        until = selection.until
        if until is None or not isinstance(until.value, Antichain) or selection.as_of is not None:
            return
        if until.value == begin.value:
            return
        what = f"read log {self._log.path!r} up to {self._domain.render_frontier(until.value)}"
        check_between(self._log.core, None, until.value, what=what)

    def _check_since(self, lower: Antichain, selection: Selection) -> None:
        """Refuse to read times that compaction has merged with later ones (called on every plan)."""
        needed = needed_from(self._log.kind, lower, self._domain.minimum)
        if selection.as_of is not None and may_read(self._log.since(), selection.as_of):
            # All that the query has had and will have it sees as of that.
            needed = selection.as_of
        what = f"read log {self._log.path!r} from {self._domain.render_frontier(lower)}"
        self._log.core.check_may_read(needed, what=what, consumer=self._options.consumer_id)

    def _check_reached(self, end: Offset) -> None:
        """Refuse an end that the log has not reached: the log was replaced or restored."""
        closed = self._closed(end.selection.streams)
        if end.frontier.less_equal_frontier(end.origin_frontier.join(closed)):
            return
        self._refresh(at_once=True)
        closed = self._closed(end.selection.streams)
        if end.frontier.less_equal_frontier(end.origin_frontier.join(closed)):
            return
        wanted, found = self._domain.render_frontier(end.frontier), self._domain.render_frontier(closed)
        msg = f"could not read log {self._log.path!r} up to {wanted}: found frontier={found}"
        raise DataLossError(
            msg,
            hint="begin with a new checkpoint: the log was restored to an earlier state or replaced",
            context={"path": self._log.path},
        )

    def _check_log(self, offset: Offset) -> None:
        if offset.log_id in (None, self._catalog.log_id):
            return
        cloned = self._catalog.of_clone()
        why = "a clone is another log" if cloned else "the log was deleted and created again"
        msg = (
            f"could not continue from the checkpoint: it was begun with log id={offset.log_id!r}, "
            f"found id={self._catalog.log_id!r}{cloned} at {self._log.path!r}"
        )
        raise DataLossError(msg, hint=f"begin with a new checkpoint: {why}", context={"path": self._log.path})

    def _check_commits(self, offset: Offset) -> None:
        """Refuse a log without the commits that an offset names: it was restored, and may have grown again since.

        To continue would leave out what it now has before the position, and what was delivered of the commits that are
        gone would stay.
        """
        if (offset.commits, self._log.core.accepted) == self._checked_commits:
            return
        accept = self._options.accept_change
        others = other_commits(self._log.core, offset.commits, accept=accept)
        if others:
            self._refresh(at_once=True)
            others = other_commits(self._log.core, offset.commits, accept=accept)
        if others:
            found = describe_others(self._log.core, others, "the query has seen")
            msg = f"could not continue from the checkpoint: {found}"
            hint = "put back the log that the query has seen, it was restored to an earlier state"
            if is_accepted(others):
                hint = f"continue behind the change: acceptChange={others[ACCEPTED][1]}"
            raise DataLossError(
                msg,
                hint=f"{hint}; or begin with a"
                " new checkpoint, and make again what was made from the rows that the query delivered",
                context={"path": self._log.path, "stream": next(iter(others))},
            )
        self._checked_commits = offset.commits, self._log.core.accepted

    def _check_streams(self, offset: Offset) -> None:
        """Say, once per run, which of the streams that were named are not there.

        Such a stream may still open, unless the log is complete: then a query that begins is refused, as a
        batch read always is. One that continues has delivered what it promised, and is not stopped.
        """
        self._checked_streams = True
        known = self._log.streams()
        for name in offset.selection.streams or ():
            if name in known:
                continue
            if offset.begin is not None and self._log.frontier().is_empty:
                raise missing_stream(self._log.path, name, known)
            _log.warning(
                "log %r has no stream %r: nothing is read of it before it is opened; the streams there are: %s",
                self._log.path,
                name,
                ", ".join(map(repr, known)) or "none yet",
            )

    def _refresh(self, *, at_once: bool = False) -> None:
        """Ask the log for news, at most once per poll interval, and never again once pinned.

        Where news is seen at no cost, the interval is not waited for: `processAllAvailable` of a query
        would come back without what was committed just before. Where a look is a request, the interval grows while
        nothing is new (`idle_poll_s`).
        """
        if not at_once and (self._pinned is not None or not self._looks.due(self._log.core.has_news)):
            return
        self._looks.done(moved=self._log.refresh())

    # -- lag

    def report(self) -> dict[str, object]:
        """Return how far the log is, and how far behind it the last offset was.

        Shown by Spark as ``latestOffset`` of the source in ``lastProgress``; answered from memory.
        """
        offset = self._answered
        if offset.selection.delivery == "arrival":
            return self._arrivals.report(offset)
        target = self._reached(offset.selection.streams)
        begun = self._begun(offset)
        lower = target if begun is None else begun.frontier
        files = self._catalog.files(offset.selection.streams, offset.selection.as_of)
        upper = lower.join(target)
        behind = may_hold(files.bounds, lower.times, upper.times) & (lower != upper)
        texts = iso_of({"frontier": target}, self._domain)
        found: dict[str, object] = {
            "frontier": target.to_json(),
            **({"iso": texts} if texts else {}),
            "behindFiles": int(np.count_nonzero(behind)),
            "behindBytes": int(files.bounds.sizes[behind].sum()),
            "behindRows": int(files.rows[behind].clip(min=0).sum()),
        }
        if self._admitted is not None and self._admitted.oversized is not None:
            found["aboveLimit"] = self._domain.render_time(self._admitted.oversized)
        return found
