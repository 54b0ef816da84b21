"""An aggregate in two phases with a shuffle between them, for a piece that is too large for one task.

For an aggregate over operators that go row by row. First tasks group a share of the rows each, in buckets of keys
(`partial_aggregate`). Then each bucket is put together, and what is made of the aggregate is computed
(`final_aggregate`). Groups travel, not rows; the rows are the same as of one task.

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
from spark_timely.dataflow.views import Aggregate, Step, View, steps_of
from spark_timely.errors import OperatorError

__all__ = ["Block", "blocks_of", "final_aggregate", "partial_aggregate", "shuffled_aggregate", "tables_of"]


def shuffled_aggregate(view: View) -> Aggregate | None:
    """Return the aggregate of a view that can be computed by key: the only operator that does not go row by row."""
    while not isinstance(view, Aggregate):
        if not view.own_rowwise or len(view.inputs) != 1:
            return None
        view = view.inputs[0]
    return view if all(source.rowwise for source in view.inputs) else None


@dataclass(frozen=True, slots=True)
class Block:
    """What a task sends to a bucket.

    Attributes
    ----------
    bucket : int
    content : bytes
        Pickled: a table of parts in Arrow's format, counts of operators, or the error of a function of the user.
    """

    bucket: int
    content: bytes


def partial_aggregate(task: Task, output: OutputPlan, read: ReadRange, n_buckets: int) -> Iterator[Block]:
    """Read a share of the rows, group them, and give the groups in buckets.

    Parameters
    ----------
    task : Task
    output : OutputPlan
        With a view that has a `shuffled_aggregate`.
    read : callable
    n_buckets : int

    Yields
    ------
    Block
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
        yield Block(0, pickle.dumps(plain_error(error)))
        return
    yield Block(0, pickle.dumps(counts.by_operator))
    for bucket, content in blocks_of(parts, len(keys), n_buckets):
        yield Block(bucket, content)


def blocks_of(parts: pa.Table, n_keys: int, n_buckets: int) -> Iterator[tuple[int, bytes]]:
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


def final_aggregate(task: Task, output: OutputPlan, contents: Sequence[bytes]) -> TaskResult:
    """Put the blocks of a bucket together, run what is above the aggregate, and write.

    Parameters
    ----------
    task : Task
        Any one of the piece.
    output : OutputPlan
    contents : sequence of bytes
        Of all blocks of the bucket.
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
    aggregate = shuffled_aggregate(output.view)
    assert aggregate is not None
    view = output.view
    steps = steps_of(view, task.lower, task.upper, tuple(view.schema.names), stop=aggregate)
    return aggregate, next(step for step in steps if step[0] is aggregate)
