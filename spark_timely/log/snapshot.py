"""Contents of a collection: rows with the sum of their diffs.

Invariants
----------
1. Rows are equal if their canonical hashes of 128 bits are: nulls are equal, −0.0 equals 0.0, columns may
   be nested.
2. No row is contained fewer than zero times, nor more than 2^63 − 1 times.
3. Sums are exact: on the way they may be larger than 64 bits, so that it does not matter how the updates were cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import (
    InvalidUsageError,
    MultiplicityOverflowError,
    NegativeMultiplicityError,
    NotBeyondError,
    TimelyError,
    shown,
)
from spark_timely.log.files.parquet import read_file

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.log.core import LogCore

__all__ = ["consolidate_updates", "snapshot_of"]


def consolidate_updates(table: pa.Table, payload: pa.Schema, diff: str = "_diff") -> pa.Table:
    """Sum the diffs of equal rows, and drop rows whose diffs sum to zero.

    Parameters
    ----------
    table : pyarrow.Table
        Payload columns and the diff. Not modified.
    payload : pyarrow.Schema
        The columns that make rows equal.
    diff : str
        Name of the int64 column of diffs.

    Returns
    -------
    pyarrow.Table
        Payload columns and the summed diff, in no particular order. A row whose sum is beyond 64 bits stays as
        several.

    Notes
    -----
    Cost: one hash and one sort of the rows.

    Examples
    --------
    >>> rows = pa.table({"v": ["a", "b", "a"], "_diff": [1, 1, -1]})
    >>> consolidate_updates(rows, pa.schema([("v", pa.string())])).to_pylist()
    [{'v': 'b', '_diff': 1}]
    """
    summed, beyond = _consolidated(table.select([*payload.names, diff]), payload, diff)
    return pa.concat_tables([summed, beyond]) if beyond.num_rows else summed


def _consolidated(table: pa.Table, payload: pa.Schema, diff: str) -> tuple[pa.Table, pa.Table]:
    """Return the rows with their sums, and the updates of those rows whose sum is beyond 64 bits."""
    if table.num_rows == 0:
        return table, table
    hashes = RowHasher(payload).hash(table)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    first = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    starts = np.flatnonzero(first)
    diffs = np.asarray(table[diff].to_numpy(), np.int64)[order]
    sums, fits = _exact_sums(diffs, starts)
    kept = fits & (sums != 0)
    rows = table.select(payload.names).take(pa.array(order[starts[kept]]))
    rows = rows.append_column(table.schema.field(diff), pa.array(sums[kept], pa.int64()))
    beyond = np.repeat(~fits, np.diff(starts, append=len(order)))
    return rows, table.take(pa.array(order[beyond]))


def _exact_sums(
    diffs: npt.NDArray[np.int64], starts: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the sum of each group, and whether 64 bits hold it."""
    # Neither sum of halves overflows before 2**31 rows.
    high = np.add.reduceat(diffs >> 32, starts)
    low = np.add.reduceat(diffs & 0xFFFFFFFF, starts)
    carried = high + (low >> 32)
    fits = (carried >= -(2**31)) & (carried < 2**31)
    return (carried << 32) | (low & 0xFFFFFFFF), fits


def snapshot_of(log: LogCore, time: object) -> pa.Table:
    """Return the contents of a collection at a closed time. See `ReadableLog.snapshot`."""
    if log.kind != "collection":
        msg = f"could not take a snapshot of log {log.path!r}: found kind={log.kind!r}"
        raise InvalidUsageError(msg, hint="only collections have contents at a time; read the messages of a stream")
    at = log.domain.parse_time(time)
    frontier = log.frontier()
    if frontier.less_equal(at):
        msg = (
            f"could not take a snapshot of log {log.path!r} at {log.domain.render_time(at)!r}: found "
            f"frontier={log.domain.render_frontier(frontier)}"
        )
        raise NotBeyondError(
            msg,
            hint="the time is still open; wait until the frontier has passed it",
            time=at,
            frontier=frontier.to_json(),
        )
    form = log.format
    names = [*form.payload.names, "_diff"]
    needed = pa.schema([form.data_schema.field(n) for n in (*log.domain.columns, *names)])
    index = log.files()
    reach = np.array(at, np.int64)
    chosen = ~index.known | (index.min_times <= reach).all(axis=1)
    found = pa.schema([needed.field(n).with_nullable(nullable=True) for n in names]).empty_table()
    beyond = found
    for path in index.paths[chosen].tolist():
        table = read_file(log.storage, path, needed)
        keep = (log.domain.from_columns(table) <= reach).all(axis=1)
        # Consolidated file by file, so that memory holds the contents and one file.
        added = table.filter(pa.array(keep)).select(names)
        found, beyond = _consolidated(pa.concat_tables([found, beyond, added]), form.payload, "_diff")
    if beyond.num_rows:
        raise _refused(log, beyond.slice(0, 1), _total(beyond, form.payload))
    negative = pc.less(found["_diff"], 0)
    if found.num_rows and pc.any(negative).as_py():
        row = found.filter(negative).slice(0, 1)
        raise _refused(log, row, row["_diff"][0].as_py())
    return found


def _total(updates: pa.Table, payload: pa.Schema) -> int:
    """Return the sum of the diffs of the first row and those equal to it, however large."""
    hashes = RowHasher(payload).hash(updates)
    equal = (hashes == hashes[0]).all(axis=1)
    diffs = np.asarray(updates["_diff"].to_numpy(), np.int64)[equal]
    return (int((diffs >> 32).sum()) << 32) + int((diffs & 0xFFFFFFFF).sum())


def _refused(log: LogCore, row: pa.Table, diff: int) -> TimelyError:
    (found,) = row.drop_columns(["_diff"]).to_pylist()
    msg = f"could not take a snapshot of log {log.path!r}: found row={shown(found)} with diff={diff}"
    if diff < 0:
        hint = "what was captured retracts a row that it never added; verify the capture"
        return NegativeMultiplicityError(msg, hint=hint, data=shown(found), diff=diff)
    hint = "a row is contained at most 2^63 − 1 times; correct what was captured"
    return MultiplicityOverflowError(msg, hint=hint, data=shown(found), diff=diff)
