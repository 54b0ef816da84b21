"""A piece of an output's range that is too large for one place: cut by rows, and put together by key.

For an aggregate over operators that go row by row: tasks group a share of the rows each, in buckets of keys; then each
bucket is put together, and what lies above the aggregate is run on it. Groups travel, not rows; what comes out is the
same as in one place.

Invariants
----------
1. All parts of a group are in one bucket: it is chosen by the key alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.aggregates import merge_parts, part_of_rows
from spark_timely.dataflow.engine.tasks import (
    Counts,
    OutputPlan,
    ReadRange,
    Task,
    TaskResult,
    of_shares,
    plain_error,
    run_twice,
    write_result,
)
from spark_timely.dataflow.time_views import Aggregate
from spark_timely.dataflow.view import Step, View, steps_of
from spark_timely.errors import OperatorError

__all__ = ["Parcel", "keyed_aggregate", "merge_parcels", "parcels_of", "run_part", "tables_of"]


def keyed_aggregate(view: View) -> Aggregate | None:
    """Return the aggregate of a view that can be computed by key: the only operator that does not go row by row."""
    while not isinstance(view, Aggregate):
        if not view.own_rowwise or len(view.inputs) != 1:
            return None
        view = view.inputs[0]
    return view if all(source.rowwise for source in view.inputs) else None


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a task sends to a bucket.

    Attributes
    ----------
    bucket : int
    content : bytes
        Pickled: a table of parts in Arrow's format, counts of operators, or the error of a function of the user.
    """

    bucket: int
    content: bytes


def run_part(task: Task, output: OutputPlan, read: ReadRange, n_buckets: int) -> Iterator[Parcel]:
    """Read a share of the rows, group them, and give the groups in buckets.

    Parameters
    ----------
    task : Task
    output : OutputPlan
        With a view that has a `keyed_aggregate`.
    read : callable
    n_buckets : int

    Yields
    ------
    Parcel
        Counts and errors go to bucket 0.
    """
    aggregate, (_, lo, hi, wanted) = _place(task, output)
    counts = Counts()
    (names,) = aggregate.needs(wanted)
    run = run_twice if output.twice else View.run
    try:
        rows = run(aggregate.inputs[0], of_shares(task, read), lo, hi, names, watch=counts.watch)
        keys, chosen, _ = aggregate.plan(wanted)
        parts = part_of_rows(rows, keys, chosen)
    except OperatorError as error:
        yield Parcel(0, pickle.dumps(plain_error(error)))
        return
    yield Parcel(0, pickle.dumps(counts.by_operator))
    for bucket, content in parcels_of(parts, len(keys), n_buckets):
        yield Parcel(bucket, content)


def parcels_of(parts: pa.Table, n_keys: int, n_buckets: int) -> Iterator[tuple[int, bytes]]:
    """Give the groups of a table of parts in buckets of keys: each bucket, and its table packed."""
    hashed = parts.select([f"k{i}" for i in range(n_keys)])
    buckets = RowHasher(hashed.schema).hash(hashed)[:, 0] % np.uint64(n_buckets)
    order = np.argsort(buckets, kind="stable")
    parts, buckets = parts.take(pa.array(order)).combine_chunks(), buckets[order]
    starts = np.searchsorted(buckets, np.arange(n_buckets + 1, dtype=np.uint64))
    for bucket in range(n_buckets):  # one turn per bucket
        first, stop = int(starts[bucket]), int(starts[bucket + 1])
        if first < stop:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, parts.schema) as stream:
                stream.write_table(parts.slice(first, stop - first))
            yield bucket, pickle.dumps(sink.getvalue().to_pybytes())


def tables_of(contents: Sequence[bytes]) -> list[pa.Table]:
    """Return the tables of packed parts."""
    tables = []
    for content in contents:  # one turn per task
        with pa.ipc.open_stream(pickle.loads(content)) as stream:
            tables.append(stream.read_all())
    return tables


def merge_parcels(task: Task, output: OutputPlan, contents: Sequence[bytes]) -> TaskResult:
    """Put the parcels of a bucket together, run what lies above the aggregate, and write.

    Parameters
    ----------
    task : Task
        Any one of the piece.
    output : OutputPlan
    contents : sequence of bytes
        Of all parcels of the bucket.
    """
    aggregate, (_, lo, hi, wanted) = _place(task, output)
    counts = Counts()
    tables = []
    for content in contents:  # one turn per task
        found = pickle.loads(content)
        if isinstance(found, OperatorError):
            return TaskResult(error=found)
        if isinstance(found, bytes):
            tables += tables_of([content])
        else:
            counts.add(found)
    keys, chosen, schema = aggregate.plan(wanted)

    def rows() -> pa.Table:
        groups = schema.empty_table()
        if tables:
            try:
                groups = merge_parts(tables, keys, chosen, schema)
            except OverflowError as error:
                raise aggregate.failure(str(error), lo, hi, hint="sum a float column, or smaller groups") from error
        groups = groups.select(aggregate.names(wanted))
        return output.view.run(
            of_shares(task, _nothing), task.lower, task.upper, watch=counts.watch, given=(aggregate, groups)
        )

    return write_result(task, output, rows, counts)


def _nothing(*_: object) -> pa.Table:
    msg = "nothing is read above an aggregate that was computed by key"
    raise AssertionError(msg)


def _place(task: Task, output: OutputPlan) -> tuple[Aggregate, Step]:
    aggregate = keyed_aggregate(output.view)
    assert aggregate is not None
    view = output.view
    steps = steps_of(view, task.lower, task.upper, tuple(view.schema.names), stop=aggregate)
    return aggregate, next(step for step in steps if step[0] is aggregate)
