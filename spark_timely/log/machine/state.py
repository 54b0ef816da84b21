"""Progress rows: how a commit writes down its progress, and how a state is read back from it.

Invariants
----------
1. A progress batch is never empty, and lists every time with a non-zero count before or after it.
2. The rows of a batch carry the same owner, micro-batch, bounds and wall clock; its first row, that of the least
   time, carries the note.
3. The state of a stream is that of its batch with the greatest `_seq`, whatever file it is in.
4. A batch has one row per time. Where a file was rewritten by two others at once (OPTIMIZE of delta-rs
   does not notice that), its rows are there twice, and count once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.log.base import StreamState
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.arrays import IntArray

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogFormat

__all__ = [
    "batch_rows",
    "batch_state",
    "distinct_rows",
    "initial_state",
    "newest_states",
    "next_state",
    "owners_of",
    "states_by_seq",
]


def initial_state(
    stream: str,
    counts: StreamCounts,
    *,
    owner: str | None,
    at: int,
    reason: str,
    note: Note,
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
        note=note,
    )


def next_state(state: StreamState, counts: StreamCounts, *, note: Note, **changes: object) -> StreamState:
    """Return the state after one more commit. Its note is that commit's own, what lasts included."""
    return replace(
        state,
        seq=state.seq + 1,
        before=state.counts,
        counts=counts,
        note=note,
        **changes,  # type: ignore[arg-type]
    )


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
    if state.bounds is not None:
        for prefix, row in (("_min_time", 0), ("_max_time", 1)):
            values.update(zip(domain.suffixed(prefix), state.bounds[row].tolist(), strict=True))
    columns: dict[str, object] = {
        "_delta": deltas,
        "_count": counts,
        "_note": np.array([state.note.text(), *[None] * (n - 1)], dtype=object),
        **{name: times[:, i] for i, name in enumerate(domain.columns)},
    }
    # A number is a valid value for a date or a timestamp column.
    arrays = [
        pa.array(columns[c.name].tolist(), c.type)  # type: ignore[attr-defined]
        if c.name in columns
        else pa.array([values.get(c.name)] * n, c.type)
        for c in form.progress_schema
    ]
    return pa.Table.from_arrays(arrays, schema=form.progress_schema)


def _changes(state: StreamState) -> tuple[IntArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return every time held before or after, with its count after and its change."""
    after = dict(zip(map(tuple, state.counts.times.tolist()), state.counts.counts.tolist(), strict=True))
    before = dict(zip(map(tuple, state.before.times.tolist()), state.before.counts.tolist(), strict=True))
    # As many turns as capabilities of one stream.
    times = sorted(after.keys() | before.keys())
    counts = [after.get(t, 0) for t in times]
    deltas = [after.get(t, 0) - before.get(t, 0) for t in times]
    rows = np.array(times, np.int64).reshape(len(times), state.counts.arity)
    return rows, np.array(counts, np.int64), np.array(deltas, np.int64)


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
    noted = rows.column("_note").drop_null()
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
        note=Note.parse(noted[0].as_py() if len(noted) else None),
    )


_SCALARS = ("_stream", "_seq", "_query", "_batch", "_step", "_rows", "_reason", "_epoch")


def distinct_rows(form: LogFormat, rows: pa.Table) -> pa.Table:
    """Return progress rows sorted by stream, seq and time, each once.

    Notes
    -----
    Cost: one sort.
    """
    if rows.num_rows < 2:
        return rows
    keys = ["_stream", "_seq", *form.domain.columns]
    rows = rows.sort_by([(name, "ascending") for name in keys]).combine_chunks()
    differs = np.zeros(rows.num_rows - 1, dtype=np.bool_)
    for name in keys:  # as many turns as coordinates
        column = rows[name]
        differs |= np.asarray(pc.not_equal(column.slice(1), column.slice(0, rows.num_rows - 1)).to_numpy(), np.bool_)
    return rows if differs.all() else rows.filter(pa.array(np.concatenate([[True], differs])))


def newest_states(form: LogFormat, rows: pa.Table) -> dict[str, StreamState]:
    """Return the newest state of each stream that some progress rows name.

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
        found[stream] = batch_state(form, distinct_rows(form, rows.filter(mask)))
    return found


def owners_of(rows: pa.Table, stream: str) -> frozenset[str]:
    """Return who owns a stream or has owned it, by the progress rows of a log: whoever made a commit of it.

    Notes
    -----
    Cost: one pass over the rows.
    """
    names = pc.unique(rows.filter(pc.equal(rows["_stream"], stream))["_query"]).to_pylist()
    return frozenset(name for name in names if name is not None)


def states_by_seq(form: LogFormat, rows: pa.Table) -> list[StreamState]:
    """Return the state after each batch of progress rows, by stream and seq.

    Notes
    -----
    One object per commit: for tools and tests, not for a hot path.
    """
    if rows.num_rows == 0:
        return []
    rows = distinct_rows(form, rows)
    streams = rows["_stream"].combine_chunks().dictionary_encode()
    codes = pa.array(streams.indices if not isinstance(streams, pa.ChunkedArray) else streams).to_numpy()
    seqs = rows["_seq"].to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], (codes[1:] != codes[:-1]) | (seqs[1:] != seqs[:-1])]))
    ends = np.append(starts[1:], rows.num_rows)
    return [batch_state(form, rows.slice(a, b - a)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
