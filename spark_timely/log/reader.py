"""Reads the rows of a log: messages, events, the contents of a collection at a time, its history.

`Log.messages`, `Log.snapshot` and the command line answer by it, in the memory of one process; subscriptions, exports
and replays ask it which rows and bounds may be seen (`seen_rows`, `check_between`). A file is opened by
`spark_timely.log.files.parquet_reader`; Spark's tasks read splits by `spark_timely.datasource.reader`.

Invariants
----------
1. What is read depends on the snapshot and the bounds given, never on how the files were cut.
2. Nothing is read at a time that is still open, where the answer is meant to be final.
3. Rows of a collection are equal if their canonical hashes of 128 bits are: nulls are equal, −0.0 equals 0.0, columns
   may be nested.
4. No row is contained fewer than zero times, nor more than 2^63 − 1 times.
5. Sums are exact: on the way they may be larger than 64 bits, so that it does not matter how the updates were cut.
6. What compaction may forget is not seen, whether or not files were rewritten yet: messages of a stream at times not
   beyond since are gone, updates of a collection from before since have since as their time. A bound that is no longer
   distinct from other times is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.conf.kinds import check_text, check_whole, names_of
from spark_timely.errors import (
    InvalidUsageError,
    NotBeyondError,
    SchemaMismatchError,
    SinceViolationError,
    shown,
)
from spark_timely.log.files.parquet_reader import read_file, side_by_side
from spark_timely.log.machine.decide import missing_stream
from spark_timely.log.machine.history import History
from spark_timely.log.machine.since import as_of_since, needed_by_contents, needed_from
from spark_timely.log.machine.state import OPEN_STREAM, states_by_seq, stream_codes
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType
from spark_timely.time.text import moment_text
from spark_timely.trace.updates import Updates, contents_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from spark_timely.log.core import LogCore
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.state import StreamState
    from spark_timely.time.antichain import BoolArray, IntArray
    from spark_timely.time.domain import FrontierLike, TimeLike


def check_between(log: LogCore, lower: Antichain | None, upper: Antichain | None, *, what: str | None = None) -> None:
    """Refuse a range of times of which a bound is no longer distinct from other times; the range of all times passes.

    Parameters
    ----------
    log : LogCore
    lower, upper : Antichain, optional
    what : str, optional
        For the error: what cannot be done; ``read log … from …`` unless given.

    Raises
    ------
    SinceViolationError
    """
    domain = log.domain
    for bound, word in ((lower, "from"), (upper, "up to")):
        if bound is not None and bound != domain.minimum_frontier:
            said = what or f"read log {log.path!r} {word} {domain.render_frontier(bound)}"
            log.check_may_read(needed_from(log.kind, bound, domain.minimum), what=said)


def seen_rows(log: LogCore, table: pa.Table, since: Antichain | None = None) -> tuple[pa.Table, IntArray]:
    """Return rows of a file of messages as the log has them now, and their times (invariant 6).

    Parameters
    ----------
    log : LogCore
    table : pyarrow.Table
        With the columns of times. Not modified.
    since : Antichain, optional
        The log's, or a later one.
    """
    domain, since = log.domain, log.since() if since is None else since
    times = domain.from_columns(table)
    if since == domain.minimum_frontier or not table.num_rows:
        return table, times
    moved, kept = as_of_since(log.kind, since, times)
    if kept is not None:
        return table.filter(pa.array(kept)), moved[kept]
    if log.kind == "collection" and (moved != times).any():
        for name, column in domain.to_columns(moved).items():
            number = table.schema.get_field_index(name)
            table = table.set_column(number, table.schema.field(number), column)
    return table, moved


def read_rows(
    log: LogCore,
    index: FileIndex,
    schema: pa.Schema,
    *,
    forgets: bool = False,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    columns: str | Sequence[str] | None = None,
    stream: str | None = None,
) -> pa.Table:
    """Return the rows of some files at times beyond `lower` and not beyond `upper`, ordered by time.

    Parameters
    ----------
    log : LogCore
    index : FileIndex
        The files.
    schema : pyarrow.Schema
        Of the rows in them.
    forgets : bool
        Whether they are messages, which compaction forgets.
    lower, upper, columns, stream
        As in `spark_timely.log.log.Log.messages`.

    Raises
    ------
    SchemaMismatchError
        If there is no such column.
    SinceViolationError
        If `lower` or `upper` is no longer distinct from other times.
    """
    attempt = f"could not read log {log.path!r}"
    check_text(attempt, "stream", stream, optional=True)
    low = None if lower is None else log.domain.parse_frontier(lower)
    high = None if upper is None else log.domain.parse_frontier(upper)
    if forgets:
        check_between(log, low, high)
    chosen_columns = None if columns is None else names_of(attempt, "columns", columns)
    unknown = [c for c in chosen_columns or () if c not in schema.names]
    if unknown:
        msg = f"{attempt}: found no column {unknown[0]!r}"
        raise SchemaMismatchError(
            msg,
            hint=f"choose among its columns: {shown(schema.names)}",
            context={"column": unknown[0]},
        )
    wanted = list(schema.names) if chosen_columns is None else list(dict.fromkeys(chosen_columns))
    needed = list(dict.fromkeys([*wanted, "_stream", "_seq", *log.domain.columns]))
    part = pa.schema([schema.field(n) for n in needed])

    def may_hold(files: FileIndex) -> BoolArray:
        return files.may_hold_times(low, high) & (True if stream is None else files.may_hold_stream(stream))

    if forgets:
        log.look_into(may_hold)
    chosen = may_hold(index)
    paths = index.paths[chosen].tolist()
    since = log.since() if forgets else log.domain.minimum_frontier
    parts = side_by_side(log.storage, lambda path: _range_of(log, path, part, low, high, stream, since), paths)
    table = (
        pa.concat_tables(parts) if parts else pa.schema([f.with_nullable(nullable=True) for f in part]).empty_table()
    )
    keys = [(n, "ascending") for n in (*log.domain.columns, "_stream", "_seq")]
    return table.sort_by(keys).select(wanted)


def _range_of(
    log: LogCore,
    path: str,
    schema: pa.Schema,
    low: Antichain | None,
    high: Antichain | None,
    stream: str | None,
    since: Antichain,
) -> pa.Table:
    table, times = seen_rows(log, read_file(log.storage, path, schema), since)
    keep = np.ones(table.num_rows, dtype=np.bool_)
    if low is not None or high is not None:
        if low is not None:
            keep &= low.beyond(times)
        if high is not None:
            keep &= ~high.beyond(times)
    if stream is not None:
        keep &= np.asarray(pc.equal(table["_stream"], stream).to_numpy(), np.bool_)
    return table if keep.all() else table.filter(pa.array(keep))


def events_of(
    log: LogCore, stream: str | None = None, *, positions: Mapping[str, int] | None = None
) -> Iterator[tuple[StreamState, pa.Table]]:
    """Return each commit, by stream and in the order of its commits: state after it, and its messages.

    Messages come before the progress of the same commit: they are judged by the state's `before`. The first commit of
    a stream that has forgotten some comes with the messages that are left of these.

    Parameters
    ----------
    log : LogCore
    stream : str, optional
        Only commits of this stream.
    positions : mapping of str to int, optional
        By stream, `#open` too, the number of the first commit that is wanted, as an earlier `LogCore.positions` gave
        it; 0 for streams that are not named.

    Notes
    -----
    Holds the files of one commit in memory, and the last merged file that was read.
    """
    check_text(f"could not read log {log.path!r}", "stream", stream, optional=True)
    if stream is not None and log.stream(stream) is None:
        raise missing_stream(log.path, stream, log.streams())
    rows = log.progress()
    if stream is not None:
        rows = rows.filter(pc.equal(rows["_stream"], stream))
    if positions is not None:
        names, codes = stream_codes(rows["_stream"])
        first = np.array([positions.get(name, 0) for name in names], np.int64)
        rows = rows.filter(pa.array(rows["_seq"].to_numpy() >= first[codes]))
    index = log.files()
    log.look_into(None if stream is None else lambda files: files.may_hold_stream(stream))
    read: dict[str, pa.Table] = {}
    for state in states_by_seq(log.format, rows):
        low = 0 if state.note.base else state.seq
        holds = index.may_hold_stream(state.stream) & (index.seq_lo <= state.seq) & (index.seq_hi >= low)
        paths = index.paths[holds].tolist() if state.rows or state.n_rows is None or state.note.base else []
        read = {path: table for path, table in read.items() if path in paths}
        parts = []
        for path in paths:
            if path not in read:
                read[path], _ = seen_rows(log, read_file(log.storage, path, log.format.data_schema))
            table = read[path]
            mine = pc.and_(pc.less_equal(table["_seq"], state.seq), pc.greater_equal(table["_seq"], low))
            mine = pc.and_(mine, pc.equal(table["_stream"], state.stream))
            parts.append(table.filter(mine))
        empty = pa.schema([f.with_nullable(nullable=True) for f in log.format.data_schema]).empty_table()
        yield state, (pa.concat_tables(parts) if parts else empty)


def frontier_at(
    log: LogCore, *, seq: int | None = None, timestamp: str | dt.datetime | None = None, stream: str | None = None
) -> Antichain:
    """Return the frontier as it was after a commit, or at a moment of the wall clock.

    Parameters
    ----------
    log : LogCore
    seq : int, optional
        Number of a commit: each stream is taken after its commit of that number, or after its newest
        where it has fewer.
    timestamp : str or datetime, optional
        Moment of the wall clock, such as ``"2013-06-12T08:00Z"`` or ``"us:1371024000000000"``: each stream is
        taken after the last of its commits up to then.
    stream : str, optional
        The frontier of this stream alone.

    Notes
    -----
    A stream that joined by a copy is counted in as soon as its donor's next commit is, whatever its
    wall clock says: what a moment saw as complete was so.
    """
    log.states.check_untouched()
    attempt = f"could not look up a frontier of log {log.path!r}"
    check_whole(attempt, "seq", seq, least=0, optional=True)
    check_text(attempt, "stream", stream, optional=True)
    if (seq is None) == (timestamp is None):
        msg = f"{attempt}: found seq={seq!r} timestamp={shown(timestamp)}"
        raise InvalidUsageError(
            msg,
            hint="give one of them",
        )
    moment = None if timestamp is None else TimeType.TIMESTAMP.parse(timestamp)
    kind, bound = ("version", int(seq or 0) + 1) if moment is None else ("timestamp", moment + 1)
    asked = f"seq={seq}" if moment is None else f"timestamp={timestamp}"
    what = f"look up a frontier of log {log.path!r} at {asked}"
    check_remembered(log, kind, bound, None if stream is None else (stream,), what=what)
    history = History(log.progress(), log.domain)
    if stream is None:
        return history.frontier(kind, bound, None)
    if stream not in history.names:
        raise missing_stream(log.path, stream, log.streams())
    position = history.before(kind, bound)
    if position[stream] == 0:
        return log.domain.minimum_frontier
    times, counts = history.held(position, [stream])
    return Antichain.from_times(times[counts > 0], log.domain.arity)


def check_remembered(log: LogCore, kind: str, bound: int, streams: tuple[str, ...] | None, *, what: str) -> None:
    """Refuse to say what was before a commit number, or a moment, where the log has forgotten the commits of then.

    Parameters
    ----------
    log : LogCore
    kind : {"version", "timestamp"}
    bound : int
        As for `spark_timely.log.machine.history.History.before`.
    streams : tuple of str or None
        The streams that count; all unless given.
    what : str
        For the error: what cannot be done.

    Raises
    ------
    SinceViolationError

    Notes
    -----
    Cost: nothing, but for a log that has forgotten commits; then a file of progress for each such stream.
    """
    bases = {name: seq for name, seq in log.bases().items() if streams is None or name in streams}
    if kind == "version":
        # By number `#open` counts as it is now.
        first = {name: seq for name, seq in bases.items() if name != OPEN_STREAM and bound <= seq}
        said = {name: f"seq={seq}" for name, seq in first.items()}
    else:
        states = log.commits_of(bases)
        first = {name: states[name].at for name in bases if name in states and bound <= states[name].at}
        said = {name: moment_text(at, least="seconds") for name, at in first.items()}
    if not first:
        return
    name, earliest = next(iter(said.items()))
    msg = f"could not {what}: found that it remembers stream {name!r} from {earliest} on"
    raise SinceViolationError(
        msg,
        hint="name a later one than that: what came before was forgotten, since nobody retained it",
        since=log.domain.render_frontier(log.since()),
        context={"path": log.path},
    )


def snapshot_of(log: LogCore, time: TimeLike) -> pa.Table:
    """Return the contents of a collection at a closed time. See `spark_timely.log.log.Log.snapshot`."""
    if log.kind != "collection":
        msg = f"could not take a snapshot of log {log.path!r}: found kind={log.kind!r}"
        raise InvalidUsageError(msg, hint="read the messages of a stream: only collections have contents at a time")
    at = log.domain.parse_time(time)
    frontier = log.frontier()
    if frontier.less_equal(at):
        msg = (
            f"could not take a snapshot of log {log.path!r} at {log.domain.render_time(at)!r}: found "
            f"frontier={log.domain.render_frontier(frontier)}"
        )
        raise NotBeyondError(
            msg,
            hint="wait until the frontier has passed the time: it is still open",
            time=at,
            frontier=frontier.to_json(),
        )
    what = f"take a snapshot of log {log.path!r} at {log.domain.render_time(at)!r}"
    log.check_may_read(needed_by_contents(at), what=what)
    form = log.format
    names = [*form.payload.names, "_diff"]
    needed = pa.schema([form.data_schema.field(n) for n in (*log.domain.columns, *names)])
    index = log.files()
    reach = np.array(at, np.int64)

    def may_hold(files: FileIndex) -> BoolArray:
        return np.asarray(~files.known | (files.min_times <= reach).all(axis=1), np.bool_)

    log.look_into(may_hold)
    chosen = may_hold(index)
    payload = pa.schema([field.with_nullable(nullable=True) for field in form.payload])
    held = Updates.contents(payload.empty_table())
    for path in index.paths[chosen].tolist():
        added = Updates.of_table(read_file(log.storage, path, needed), log.domain, payload.names).at(at)
        # Consolidated file by file, so that memory holds the contents and one file.
        held = Updates.concat([held, replace(added, rows=added.rows.cast(payload))]).consolidated(partial=True)
    return contents_of(what, held).as_table()
