"""Resubmission of dead letters: appends the corrected rows of a commit to their stream again, at most once.

A dead letter is a row that `admission` kept apart from the messages: late, too far in the future, or without a usable
time. `Log.resubmit` calls `resubmit`. A caller reads the letters of a commit, corrects the rows, and gives them back
with the stream and number of that commit; `resubmitted` says which commits were.

Invariants
----------
1. A commit's letters are appended whole, in one commit, whose note adds the number of theirs to the list of the stream.
2. That list was read at the state that the commit follows: of two calls at once one is refused by the log, reads the
   list again, and finds the number in it.
3. A number that is in the list of any commit that the stream still has is never appended again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.conf.kinds import check_whole
from spark_timely.errors import (
    InvalidUsageError,
    MissingError,
    RolledBackError,
    UnheldCapabilityError,
    UpperMismatchError,
    shown,
)
from spark_timely.log.machine.decide import missing_stream
from spark_timely.log.machine.state import CommitOutcome, StreamState, states_by_seq
from spark_timely.log.reader import read_rows
from spark_timely.log.rows import table_of
from spark_timely.log.store.clones import of_clone
from spark_timely.log.writer import StreamWriter
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import Note, joined_spans
from spark_timely.protocol.policy import NO_TIME, OUT_OF_BOUNDS

if TYPE_CHECKING:
    from spark_timely.log.core import LogCore
    from spark_timely.log.rows import RowsLike

_log = masked_logger("spark_timely.log")
_PATIENCE: Final = 20


def resubmit(
    log: LogCore,
    seq: int,
    rows: RowsLike | Callable[[pa.Table], RowsLike] | None,
    *,
    stream: str,
    log_id: str | None,
    reason: str | None,
) -> CommitOutcome:
    """Append the letters of a commit again. See `Log.resubmit`."""
    attempt = f"could not resubmit the dead letters of commit {seq!r} of stream {stream!r} of log {log.path!r}"
    check_whole(attempt, "seq", seq, least=0)
    made: pa.Table | None = None
    for last in [False] * (_PATIENCE - 1) + [True]:  # as often as others commit in between
        log.refresh()
        state = _state(log, stream, log_id, attempt)
        if any(first <= seq <= end for first, end in resubmitted(log, stream)):
            log.flush()
            _log.info(
                "log %r: the dead letters of commit %d of stream %r were resubmitted before", log.path, seq, stream
            )
            return CommitOutcome(committed=False, state=state)
        if made is None:
            made = _rows(log, seq, rows, stream=stream, attempt=attempt)
        try:
            return _append(log, state, seq, made, reason=reason, attempt=attempt)
        except UpperMismatchError:
            if last:
                raise
    raise AssertionError


def resubmitted(log: LogCore, stream: str, /) -> tuple[tuple[int, int], ...]:
    """Return the commits of a stream whose letters were resubmitted: first and last numbers.

    Notes
    -----
    Cost: all progress of the log is read. The newest note alone has the whole list, unless an earlier version of the
    library committed since, which drops it.
    """
    states = states_by_seq(log.format, log.progress())
    return joined_spans(*(each.note.resubmitted for each in states if each.stream == stream))


def _state(log: LogCore, stream: str, log_id: str | None, attempt: str) -> StreamState:
    if log_id is not None and log_id != log.log_id:
        msg = f"{attempt}: found log {log.log_id!r}{of_clone(log.storage)}, the letters are of log {log_id!r}"
        raise RolledBackError(msg, hint="read the letters again: the log was replaced, and its commits are others")
    state = log.stream(stream)
    if state is None:
        raise missing_stream(log.path, stream, log.streams())
    if state.note.output is not None:
        msg = f"{attempt}: found a stream that a dataflow or a task writes"
        raise InvalidUsageError(
            msg, hint="correct the rows in the input, and append them there: an output is what its inputs give"
        )
    return state


def _rows(
    log: LogCore,
    seq: int,
    rows: RowsLike | Callable[[pa.Table], RowsLike] | None,
    *,
    stream: str,
    attempt: str,
) -> pa.Table:
    """Return the rows to append; refuse those that cannot be the letters of the commit."""
    index = log.dead_files()
    index = index.select(np.flatnonzero(index.may_hold_stream(stream) & (index.seq_lo <= seq) & (seq <= index.seq_hi)))
    letters = read_rows(log, index, log.format.dead_schema, stream=stream)
    letters = letters.filter(pc.equal(letters["_seq"], seq))
    if not letters.num_rows:
        msg = f"{attempt}: found none"
        raise MissingError(
            msg,
            hint="take the numbers from the column _seq of the letters; letters that keep_dead has removed are gone",
            context={"path": log.path, "stream": stream, "seq": seq},
        )
    found = letters
    if rows is not None:
        found = table_of(rows(letters) if callable(rows) else rows, log.format, attempt=attempt)
    if not found.num_rows:
        msg = f"{attempt}: found no rows to append for {letters.num_rows} letters"
        raise InvalidUsageError(
            msg,
            hint="a commit's letters are brought back once: give the rows that are to be appended",
            context={"seq": seq},
        )
    if found.num_rows > letters.num_rows:
        msg = f"{attempt}: found {found.num_rows} rows for {letters.num_rows} letters"
        raise InvalidUsageError(
            msg,
            hint="give at most one row for each letter of the commit, and other rows to append",
            context={"seq": seq},
        )
    # As Spark gives letters, with the commit that holds them.
    for name, value in (("_log_id", log.log_id), ("_stream", stream), ("_seq", seq)):
        if name in found.column_names and not pc.all(pc.equal(found[name], value), min_count=0).as_py():
            msg = f"{attempt}: found rows of another {name}"
            raise InvalidUsageError(msg, hint=f"give rows with {name}={value!r} alone, or without the column")
    _check_origin(log, found, letters, attempt)
    own = ("_log_id", "_stream", "_seq", "_reason", "_at")
    return found.drop_columns([name for name in own if name in found.column_names])


def _check_origin(log: LogCore, rows: pa.Table, letters: pa.Table, attempt: str) -> None:
    """Refuse letters of another commit of this number, and those without a usable time that were given none.

    A copy of a log, or one that was restored, has the log's id, and numbers its commits alike: when a letter was
    decided tells them apart. A letter without a time stands at the minimum, which is not its own.
    """
    if "_at" in rows.column_names:
        decided = rows["_at"].drop_null()
        if not pc.all(_are_in(decided, letters["_at"], unlike=True), min_count=0).as_py():
            msg = f"{attempt}: found rows of another _at"
            raise InvalidUsageError(msg, hint="read the letters again: the log went back, or they are of a copy of it")
    without = letters.filter(pc.or_(*(pc.starts_with(letters["_reason"], each) for each in (NO_TIME, OUT_OF_BOUNDS))))
    names = ("_reason", *log.domain.columns)
    if not without.num_rows or not set(names).issubset(rows.column_names):
        return
    still = [_are_in(rows[name], without[name], unlike=False) for name in names]
    n = pc.sum(reduce(pc.and_, still), min_count=0).as_py()
    if n:
        msg = f"{attempt}: found {n} of {rows.num_rows} without a time"
        raise InvalidUsageError(msg, hint="give them times: the column holds the log's minimum, for want of one")


def _are_in(values: pa.ChunkedArray, known: pa.ChunkedArray, *, unlike: bool) -> pa.ChunkedArray:
    """Return which values are among known ones; `unlike` of all of them where they are of a kind that has none such."""
    try:
        return pc.is_in(values.cast(known.type), known)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.chunked_array([pa.repeat(pa.scalar(unlike), len(values))])


def _append(
    log: LogCore, state: StreamState, seq: int, rows: pa.Table, *, reason: str | None, attempt: str
) -> CommitOutcome:
    writer = StreamWriter(log, state.stream, str(state.owner))
    why = f"resubmitted the dead letters of commit {seq}" + ("" if reason is None else f": {reason}")
    try:
        return writer.append_following(state, rows, reason=why, note=Note(resubmitted=((seq, seq),)))
    except UnheldCapabilityError as error:
        frontier = log.domain.render_frontier(state.frontier)
        msg = f"{attempt}: found time={shown(log.domain.render_time(error.time))} behind the frontier {frontier}"  # type: ignore[arg-type]
        raise UnheldCapabilityError(
            msg,
            hint="give the rows times at or after it; to keep their own, append them to another log, with"
            " writer(…).append(rows, batch=seq), which does not append a commit twice either",
            context=error.context,
            time=error.time,
            held=error.held,
        ) from None
