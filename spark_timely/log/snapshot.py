"""Contents of a collection: rows with the sum of their diffs.

Invariants
----------
1. Rows are equal if their canonical hashes of 128 bits are: nulls are equal, −0.0 equals 0.0, columns may
   be nested.
2. No row is contained fewer than zero times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import InvalidUsageError, NegativeMultiplicityError, NotBeyondError, shown
from spark_timely.log.files.parquet import read_file

if TYPE_CHECKING:
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
        Payload columns and the summed diff, in no particular order.

    Notes
    -----
    Cost: one hash and one sort of the rows.

    Examples
    --------
    >>> rows = pa.table({"v": ["a", "b", "a"], "_diff": [1, 1, -1]})
    >>> consolidate_updates(rows, pa.schema([("v", pa.string())])).to_pylist()
    [{'v': 'b', '_diff': 1}]
    """
    names = [*payload.names, diff]
    table = table.select(names)
    if table.num_rows == 0:
        return table
    hashes = RowHasher(payload).hash(table)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    first = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    starts = np.flatnonzero(first)
    diffs = np.asarray(table[diff].to_numpy(), np.int64)[order]
    sums = np.add.reduceat(diffs, starts)
    kept = sums != 0
    rows = table.select(payload.names).take(pa.array(order[starts[kept]]))
    return rows.append_column(diff, pa.array(sums[kept]))


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
    for path in index.paths[chosen].tolist():
        table = read_file(log.storage, path, needed)
        keep = (log.domain.from_columns(table) <= reach).all(axis=1)
        # Consolidated file by file, so that memory holds the contents and one file.
        found = consolidate_updates(pa.concat_tables([found, table.filter(pa.array(keep)).select(names)]), form.payload)
    negative = pc.less(found["_diff"], 0)
    if found.num_rows and pc.any(negative).as_py():
        row = found.filter(negative).slice(0, 1).to_pylist()[0]
        diff = row.pop("_diff")
        msg = f"could not take a snapshot of log {log.path!r}: found row={shown(row)} with diff={diff}"
        raise NegativeMultiplicityError(
            msg,
            hint="what was captured retracts a row that it never added; verify the capture",
            data=shown(row),
            diff=diff,
        )
    return found
