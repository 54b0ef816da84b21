"""Progress rows: how a commit writes down its progress, and how a state is read back from it.

Invariants
----------
1. A progress batch is never empty, and lists every time with a non-zero count before or after it.
2. The rows of a batch carry the same owner, micro-batch, bounds and wall clock.
3. The state of a stream is that of its batch with the greatest `_seq`, whatever file it is in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.capture.protocol import StreamCounts
from spark_timely.log.base import StreamState
from spark_timely.order import IntArray, consolidate_rows

if TYPE_CHECKING:
    from spark_timely.log.format import LogFormat

__all__ = ["batch_rows", "batch_state", "initial_state", "newest_states", "next_state", "states_by_seq"]


def initial_state(
    stream: str,
    counts: StreamCounts,
    *,
    owner: str | None,
    at: int,
    reason: str,
) -> StreamState:
    """Return the state of a stream right after its opening commit."""
    return StreamState(
        stream=stream,
        seq=0,
        counts=counts,
        before=StreamCounts.empty(counts.arity),
        owner=owner,
        batch=None,
        step=None,
        epoch=0,
        n_rows=0,
        bounds=None,
        at=at,
        reason=reason,
    )


def next_state(state: StreamState, counts: StreamCounts, **changes: object) -> StreamState:
    """Return the state after one more commit."""
    return replace(state, seq=state.seq + 1, before=state.counts, counts=counts, **changes)  # type: ignore[arg-type]


def batch_rows(form: LogFormat, state: StreamState) -> pa.Table:
    """Return the progress rows that write down a state: one per time that is or was held.

    Parameters
    ----------
    form : LogFormat
    state : StreamState
        State after the commit; its `before` is the state that it follows.

    Returns
    -------
    pyarrow.Table
        In the log's progress schema; at least one row.
    """
    domain = form.domain
    times, counts, deltas = _changes(state)
    if not len(times):
        # Nothing held before or after: only a commit on a closed stream, which is refused elsewhere.
        times = np.array([domain.minimum], np.int64)
        counts = deltas = np.zeros(1, np.int64)
    n = len(times)
    values: dict[str, object] = {
        "_stream": state.stream,
        "_seq": state.seq,
        "_reason": state.reason,
        "_at": state.at,
        "_query": state.owner,
        "_batch": state.batch,
        "_step": state.step,
        "_rows": state.n_rows,
        "_epoch": state.epoch,
    }
    columns: dict[str, pa.Array] = domain.to_columns(times)
    columns["_delta"], columns["_count"] = pa.array(deltas), pa.array(counts)
    for prefix, row in (("_min_time", 0), ("_max_time", 1)):
        for i, name in enumerate(domain.suffixed(prefix)):
            type_ = domain.types[i].arrow
            value = None if state.bounds is None else state.bounds[row, i]
            columns[name] = (
                pa.nulls(n, type_) if value is None else domain.types[i].to_arrow(np.full(n, value, np.int64))
            )
    arrays = []
    for column in form.progress_schema:
        if column.name in columns:
            arrays.append(columns[column.name])
        else:
            value = values[column.name]
            arrays.append(pa.nulls(n, column.type) if value is None else pa.repeat(pa.scalar(value, column.type), n))
    return pa.Table.from_arrays(arrays, schema=form.progress_schema)


def _changes(state: StreamState) -> tuple[IntArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return every time held before or after, with its count after and its change."""
    after, before = state.counts, state.before
    if len(after.times) == 1 and np.array_equal(after.times, before.times):
        return after.times, after.counts, after.counts - before.counts
    rows = np.concatenate([after.times, before.times])
    marks = np.concatenate([np.ones(len(after.times), np.int64), np.ones(len(before.times), np.int64)])
    times, _ = consolidate_rows(rows, marks)
    counts = _lookup(times, after)
    return times, counts, counts - _lookup(times, before)


def _lookup(times: IntArray, counts: StreamCounts) -> npt.NDArray[np.int64]:
    """Return the count of each time; both are distinct and in lexicographic order."""
    found = np.zeros(len(times), np.int64)
    if len(counts.times):
        both = np.concatenate([times, counts.times])
        _, index = np.unique(both, axis=0, return_inverse=True)
        index = index.reshape(-1)
        place = np.full(int(index.max()) + 1, -1, np.int64)
        place[index[: len(times)]] = np.arange(len(times))
        at = place[index[len(times) :]]
        found[at] = counts.counts
    return found


def batch_state(form: LogFormat, rows: pa.Table) -> StreamState:
    """Return the state that one progress batch writes down.

    Parameters
    ----------
    rows : pyarrow.Table
        All rows of one (stream, seq), in the progress schema.
    """
    domain = form.domain
    times = domain.from_columns(rows)
    counts = rows.column("_count").to_numpy()
    deltas = rows.column("_delta").to_numpy()
    first = {name: rows.column(name)[0].as_py() for name in _SCALARS}
    low = [rows.column(n)[0] for n in domain.suffixed("_min_time")]
    bounds = None
    if all(v.is_valid for v in low):
        high = [rows.column(n)[0] for n in domain.suffixed("_max_time")]
        bounds = np.array(
            [
                [int(t.from_arrow(pa.array([v.as_py()], t.arrow))[0]) for t, v in zip(domain.types, part, strict=True)]
                for part in (low, high)
            ],
            dtype=np.int64,
        )
    return StreamState(
        stream=first["_stream"],
        seq=first["_seq"],
        counts=StreamCounts.from_arrays(times, counts, domain.arity),
        before=StreamCounts.from_arrays(times, counts - deltas, domain.arity),
        owner=first["_query"],
        batch=first["_batch"],
        step=first["_step"],
        epoch=first["_epoch"] or 0,
        n_rows=first["_rows"],
        bounds=bounds,
        at=rows.column("_at")[0].value if rows.column("_at")[0].is_valid else 0,
        reason=first["_reason"] or "",
    )


_SCALARS = ("_stream", "_seq", "_query", "_batch", "_step", "_rows", "_reason", "_epoch")


def newest_states(form: LogFormat, rows: pa.Table) -> dict[str, StreamState]:
    """Return the newest state of each stream that some progress rows tell of.

    Notes
    -----
    Cost: one pass over the rows, and one batch per stream.
    """
    if rows.num_rows == 0:
        return {}
    if rows.num_rows == 1:
        state = batch_state(form, rows)
        return {state.stream: state}
    newest = rows.select(["_stream", "_seq"]).group_by("_stream").aggregate([("_seq", "max")])
    found: dict[str, StreamState] = {}
    for stream, seq in zip(newest["_stream"].to_pylist(), newest["_seq_max"].to_pylist(), strict=True):
        mask = pc.and_(pc.equal(rows["_stream"], stream), pc.equal(rows["_seq"], seq))
        found[stream] = batch_state(form, rows.filter(mask))
    return found


def states_by_seq(form: LogFormat, rows: pa.Table) -> list[StreamState]:
    """Return the state after each batch of progress rows, by stream and seq.

    Notes
    -----
    One object per commit: for tools and tests, not for a hot path.
    """
    if rows.num_rows == 0:
        return []
    rows = rows.sort_by([("_stream", "ascending"), ("_seq", "ascending")])
    streams = rows["_stream"].combine_chunks().dictionary_encode()
    codes = pa.array(streams.indices if not isinstance(streams, pa.ChunkedArray) else streams).to_numpy()
    seqs = rows["_seq"].to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], (codes[1:] != codes[:-1]) | (seqs[1:] != seqs[:-1])]))
    ends = np.append(starts[1:], rows.num_rows)
    return [batch_state(form, rows.slice(a, b - a)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
