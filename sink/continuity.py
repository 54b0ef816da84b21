"""The check that no micro-batch of a query is missing in its log before the next one is captured.

A log may have been deleted, restored, or replaced.

A query whose checkpoint was kept continues with its next micro-batch. On a log that went back the ones between would be
missing, and their times declared complete. So a micro-batch is captured only where nothing before it is missing, as
far as is known: by the commits that the query wrote down in its checkpoint, and in the sink by its numbers alone,
which have no gaps there.

Invariants
----------
1. What is missing is refused before anything is written, and nothing is created.
2. Consent is bound to one number: `beginAt=N` accepts what is missing before micro-batch N and at no other, and never
   another micro-batch in the place of one that the log has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_timely.errors import RolledBackError
from spark_timely.protocol.note import MicroBatch

if TYPE_CHECKING:
    from spark_timely.canonical.row_hash import RowsDigest
    from spark_timely.log.machine.state import StreamState
    from spark_timely.spark.base.checkpoint import LogEntry, PlannedOffsets


@dataclass(frozen=True, slots=True)
class BatchId:
    """Name a micro-batch: whose, which, and which capture within it.

    Attributes
    ----------
    query : str or None
        Query id, or the name that foreachBatch gave; None where it is not known here.
    batch : int or None
        Number of the micro-batch; None where it is not known here.
    step : int
        Which capture into the same stream within the micro-batch.
    planned : PlannedOffsets or None
        What Spark planned it from; None where that cannot be read here. Says nothing about which one is meant.
    run_by : str or None
        Id of the Spark query, as Spark's tasks know it, where `query` is another name. Neither does that.

    Examples
    --------
    >>> BatchId("q", 3) == BatchId("q", 3, 0)
    True
    """

    query: str | None
    batch: int | None
    step: int = 0
    planned: PlannedOffsets | None = field(default=None, compare=False)
    run_by: str | None = field(default=None, compare=False)

    def micro_batch(self, digest: RowsDigest | None = None) -> MicroBatch:
        """Return what the log's note says of it.

        Parameters
        ----------
        digest : RowsDigest, optional
            Of the rows that came in.
        """
        return MicroBatch(
            offsets=None if self.planned is None else self.planned.hash,
            before=None if self.planned is None else self.planned.before,
            source="" if self.planned is None else self.planned.source,
            digest=None if digest is None else digest.text,
            n_input=None if digest is None else digest.n_rows,
            query=self.run_by,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The target of a query: log and stream, with what the query finds there.

    Attributes
    ----------
    path, stream : str
    log_id : str or None
        Id of the log; None where there is none.
    state : StreamState or None
        Newest state of the stream; None where it is not open.
    entry : LogEntry or None
        What the query wrote down of this log.
    gapless : bool
        Whether each micro-batch of the query comes here, so that its numbers have no gaps.
    of_clone : str
        What is said of the log where it is another one than the entry's, and a clone.
    """

    path: str
    stream: str
    log_id: str | None
    state: StreamState | None
    entry: LogEntry | None
    gapless: bool
    of_clone: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a log for a query, and its cure.

    Attributes
    ----------
    found, hint : str
    newest : int or None
        Newest micro-batch of the query in the log.
    """

    found: str
    hint: str
    newest: int | None


@dataclass(frozen=True, slots=True)
class Consent:
    """Micro-batches that are missing, and that somebody does without.

    Attributes
    ----------
    missing : tuple of (int, int)
        First and last number; empty where the log alone is another one.
    reason : str
        For people.
    """

    missing: tuple[tuple[int, int], ...]
    reason: str


def judge_continuity(place: Place, ident: BatchId, begin_at: int | None, *, takeover: bool) -> Consent | None:
    """Refuse a micro-batch before which something is missing.

    Parameters
    ----------
    place : Place
    ident : BatchId
        The micro-batch; one whose query or number is not known yet passes.
    begin_at : int or None
        Before which micro-batch something may be missing.
    takeover : bool
        Whether the query may take the stream over.

    Returns
    -------
    Consent or None
        What is missing with consent; None where nothing is.

    Raises
    ------
    RolledBackError
        Saying whether the log was deleted, replaced or restored, and how to continue without loss.
    """
    if ident.query is None or ident.batch is None:
        return None
    finding = find_break(place, ident.query, (ident.batch, ident.step), ident.run_by, takeover=takeover)
    if finding is None:
        return None
    if begin_at == ident.batch:
        first = 0 if finding.newest is None else finding.newest + 1
        if first >= ident.batch:
            return Consent((), f"continues here by beginAt={begin_at}")
        last = ident.batch - 1
        numbers = f"micro-batch {first} is" if first == last else f"micro-batches {first} to {last} are"
        return Consent(((first, last),), f"{numbers} missing, by beginAt={begin_at}")
    msg = (
        f"could not capture micro-batch {ident.batch} (step {ident.step}) into stream {place.stream!r} of log"
        f" {place.path!r}: {finding.found}"
    )
    raise RolledBackError(
        msg,
        hint=f"{finding.hint}; or accept with beginAt={ident.batch} that what came before is not in this log",
        context={"path": place.path, "stream": place.stream, "batch": ident.batch, "newest": finding.newest},
    )


def find_break(
    place: Place, query: str, number: tuple[int, int], run_by: str | None = None, *, takeover: bool = False
) -> Finding | None:
    """Return what a log does not have that it should; None if nothing is known to be missing.

    Parameters
    ----------
    place : Place
    query : str
        Owner of what is to be written.
    number : (int, int)
        Micro-batch and step that are to be written.
    run_by : str or None
        Id of the Spark query, where it is known and not the owner's name.
    takeover : bool
        Whether the query may take the stream over.
    """
    entry, state = place.entry, place.state
    mine = state is not None and state.owner == query
    newest = None if state is None or not mine or state.batch is None else (state.batch, state.step or 0)
    if entry is not None and entry.log_id != place.log_id:
        return _other_log(place, entry, newest)
    if state is not None and not mine and (not takeover or query in state.note.former):
        # Another owner's: refused as such.
        return None
    recorded = None if state is None or newest is None else state.note.batch
    if recorded is not None and None not in (recorded.query, run_by) and recorded.query != run_by:
        return Finding(
            f"found micro-batch {state.batch if state else 0} by Spark query {recorded.query!r}, this is Spark query"
            f" {run_by!r}",
            "one app_id names one query: give this query an app_id of its own, and another stream or takeover=true",
            None if newest is None else newest[0],
        )
    if newest is not None and number <= newest:
        # The log has the number: whether it is the same micro-batch is another question.
        return None
    if entry is not None and not mine and (state is not None or entry.commits[0].seq > 1):
        # The takeover is not in the log any more. What was captured before it may be lost too, and nobody repeats that;
        # what its former owner has captured since would come twice, and may have numbers of commits that are gone.
        taken = entry.commits[0]
        now = "with no such stream" if state is None else f"at seq={state.seq} and owned by {state.owner!r}"
        return Finding(
            f"found the log restored to an earlier state, {now}; this query took it over at seq={taken.seq} with"
            f" micro-batch {taken.batch}",
            _way_back(None),
            None,
        )
    lost = None if entry is None else entry.first_lost(-1 if state is None or not mine else state.seq, newest)
    if entry is not None and lost is not None and number[0] > lost:
        left = entry.newest
        now = _newest_text(state, newest)
        found = f"found the log restored to an earlier state, with {now}; the query left it at seq={left.seq}"
        return Finding(
            f"{found} and micro-batch {left.batch}", _way_back(newest), None if newest is None else newest[0]
        )
    if place.gapless and number[0] > (0 if newest is None else newest[0] + 1):
        what = "no micro-batch of this query in it" if newest is None else f"micro-batch {newest[0]} as its newest"
        return Finding(f"found {what}", _way_back(newest), None if newest is None else newest[0])
    return None


def _other_log(place: Place, entry: LogEntry, newest: tuple[int, int] | None) -> Finding:
    left = f"with seq={entry.newest.seq} and micro-batch {entry.newest.batch}"
    again = "or start the query with a new checkpoint, to capture everything again"
    if place.log_id is None:
        found = f"found no log where this query left one, {left}: it was deleted or moved"
        hint = f"restore the log with id={entry.log_id!r}, or give its new path; {again}"
    else:
        found = (
            f"found another log, id={place.log_id!r}{place.of_clone}, where this query left id={entry.log_id!r}, {left}"
        )
        hint = f"give the path of the log with id={entry.log_id!r}, or restore it; {again}"
    return Finding(found, hint, None if newest is None else newest[0])


def _newest_text(state: StreamState | None, newest: tuple[int, int] | None) -> str:
    if state is None:
        return "no such stream"
    what = "no micro-batch of this query" if newest is None else f"micro-batch {newest[0]}"
    return f"seq={state.seq} and {what}"


def _way_back(newest: tuple[int, int] | None) -> str:
    """Return how to continue without loss."""
    if newest is None:
        return "restore the log's newest state; or start the query with a new checkpoint, to capture everything again"
    return (
        "to lose nothing restore the log's newest state; or stop the query, delete from 'commits' all numbers after"
        f" {newest[0]} and from 'offsets' all numbers after {newest[0] + 1} in its checkpoint, and start it again"
    )
