"""Progress rows of ``content=events``: one stream of statements, folded from all that is replayed.

A reader of the rows starts with one capability at the minimum. What the replayed streams hold where the
query begins is stated against that at the very beginning: of k streams that all hold the minimum,
k − 1 further counts there. What raises a count comes before what lowers another: each row by itself is
a statement that the rows before it allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.time.arrays import consolidate_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from spark_timely.datasource.partitions import ReplayLayout
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.arrays import IntArray

__all__ = ["frontier_changes", "opening_changes", "progress_table", "to_bytes"]


def frontier_changes(layout: ReplayLayout, lower: Antichain, upper: Antichain, /, *, opening: bool) -> bytes:
    """Return the progress rows of a micro-batch under ``complete``: how its frontier moved.

    Parameters
    ----------
    layout : ReplayLayout
    lower, upper : Antichain
        Frontiers before and after.
    opening : bool
        Whether this is the beginning of the query: then the reader is still at the minimum.

    Returns
    -------
    bytes
        An Arrow stream; empty where nothing moved.
    """
    before = layout.domain.minimum_frontier if opening else lower
    times = np.concatenate([before.times, upper.times])
    deltas = np.repeat([-1, 1], [len(before), len(upper)])
    times, deltas = consolidate_rows(times, deltas)
    if times.shape[0] == 0:
        return b""
    raised_first = np.argsort(deltas < 0, kind="stable")
    times, deltas = times[raised_first], deltas[raised_first]
    return to_bytes(progress_table(layout.schema, layout, times, deltas))


def opening_changes(
    layout: ReplayLayout, times: IntArray, counts: npt.NDArray[np.int64], /
) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """Return what to state first, so that a stream with count 1 at the minimum holds these counts."""
    minimum = layout.domain.minimum_frontier.times
    changed, deltas = consolidate_rows(np.concatenate([times, minimum]), np.append(counts, -1))
    raised_first = np.argsort(deltas < 0, kind="stable")
    return changed[raised_first], deltas[raised_first].astype(np.int64)


def progress_table(
    schema: pa.Schema,
    layout: ReplayLayout,
    times: IntArray,
    deltas: npt.NDArray[np.int64],
    *,
    streams: Sequence[str | None] | None = None,
    seqs: npt.NDArray[np.int64] | None = None,
) -> pa.Table:
    """Return progress rows with the columns of `schema`; what they do not have is null.

    Rows of no stream (None) and of no commit (below zero) are sorted before all others.
    """
    n = times.shape[0]
    names: pa.Array = pa.nulls(n, pa.string()) if streams is None else pa.array(streams, pa.string())
    numbers: pa.Array = pa.array(np.full(n, -1) if seqs is None else seqs, pa.int64())
    columns = {
        "_event": pa.repeat(pa.scalar("progress", pa.string()), n),
        "_delta": pa.array(deltas, pa.int64()),
        "_stream": names,
        "_seq": pc.replace_with_mask(numbers, pc.less(numbers, 0), pa.scalar(None, pa.int64())),
        "_sort_stream": names.fill_null(""),
        "_sort_seq": numbers,
        **layout.domain.to_columns(times),
    }
    arrays = [columns.get(field.name, pa.nulls(n, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def to_bytes(table: pa.Table, /) -> bytes:
    """Return a table as an Arrow stream, to travel in a split."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
