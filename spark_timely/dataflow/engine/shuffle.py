"""Shuffle by key in two phases, for a piece of work that is too large for one task.

`cutting` chooses it and `spark_timely.spark.dataflows.tasks` runs it, by a shuffle of Spark between the two phases. It
serves an aggregate of a time, and an operator over all history, where all operators below go row by row. First each
task reads a share of the rows and puts them in buckets of keys (`shuffle_write`): of an aggregate grouped, so that
groups travel, not rows. Then each bucket is put together, and what is made of it is computed (`shuffle_read`). The rows
are the same as of one task.

Invariants
----------
1. All parts of a key are in one bucket: it is chosen by the key alone.
2. A bucket of rows that is too large because of one key is refused, and the key is named: more tasks would not help.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.aggregates import merge_parts, part_of_rows
from spark_timely.dataflow.engine.lookups import Lookups
from spark_timely.dataflow.engine.task_runner import Counts, of_shares, plain_error, run_twice, write_result
from spark_timely.dataflow.engine.tasks import OutputPlan, ReadRange, Task, TaskResult
from spark_timely.dataflow.history.keys import key_text
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.remembered import Remembered, remembers
from spark_timely.dataflow.views import Names, Step, View, steps_of
from spark_timely.errors import OperatorError
from spark_timely.trace.keys import EVERY_KEY, KeyRange, key_hashes

__all__ = ["Block", "blocks_of", "goes_by_key", "shuffle_read", "shuffle_write", "shuffled_aggregate", "tables_of"]

# Of rows in memory that one bucket has at most; and that one block of it has, about.
_BUCKET_BYTES: Final = 2 << 30
_BLOCK_BYTES: Final = 64 << 20


def shuffled_aggregate(view: View) -> View | None:
    """Return the aggregate of a view that can be computed by key: the only operator that does not go row by row."""
    while not isinstance(view.operator, Aggregate):
        if not view.operator.rowwise or len(view.inputs) != 1:
            return None
        view = view.inputs[0]
    return view if all(source.rowwise for source in view.inputs) else None


class Block(NamedTuple):
    """The data that a task sends to a bucket.

    Attributes
    ----------
    bucket : int
    content : bytes
        Pickled: some `_Rows` of the bucket; of bucket 0 also what the task `_Counted`, or why it `_Failed`.
    """

    bucket: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows, or groups of an aggregate, as a stream in Arrow's format."""

    stream: bytes


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows and bytes that each operator gave in the task."""

    by_operator: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Failed:
    """The error of a function of the user."""

    error: OperatorError


def goes_by_key(view: View) -> bool:
    """Return whether a view is an operator over all history whose rows can be put in buckets as they are read."""
    return remembers(view) is not None and all(source.rowwise for source in view.inputs)


def shuffle_write(task: Task, output: OutputPlan, read: ReadRange, n_buckets: int) -> Iterator[Block]:
    """Read a share of the rows, and give them, or the groups of them, in buckets.

    Parameters
    ----------
    task : Task
    output : OutputPlan
        With a view that has a `shuffled_aggregate`, or that `goes_by_key`.
    read : callable
    n_buckets : int

    Yields
    ------
    Block
        Counts and errors go to bucket 0.
    """
    counts = Counts()
    run = run_twice if output.twice else View.run
    kept = remembers(output.view)
    try:
        if kept is not None:
            (names,) = kept.needs(output.view, ())
            source = output.view.inputs[0]
            rows = run(source, of_shares(task, read), task.lower, task.upper, names, watch=counts.watch)
            blocks = _blocks_of_rows(rows, kept.history.by, n_buckets)
        else:
            aggregate, (view, lo, hi, wanted) = _aggregate_step(task, output)
            (names,) = aggregate.needs(view, wanted)
            rows = run(view.inputs[0], of_shares(task, read), lo, hi, names, watch=counts.watch)
            keys, chosen, _ = aggregate.plan(view, wanted)
            blocks = blocks_of(part_of_rows(rows, keys, chosen), len(keys), n_buckets)
    except OperatorError as error:
        yield Block(0, pickle.dumps(_Failed(plain_error(error))))
        return
    yield Block(0, pickle.dumps(_Counted(counts.by_operator)))
    yield from blocks


def _blocks_of_rows(rows: pa.Table, by: Sequence[str], n_buckets: int) -> Iterator[Block]:
    """Give rows in buckets of ranges of keys."""
    firsts = np.array([each.first for each in EVERY_KEY.cut(n_buckets)], np.uint64)
    return _packed(rows, np.searchsorted(firsts, key_hashes(rows, by), "right") - 1, n_buckets)


def _packed(rows: pa.Table, buckets: npt.NDArray[np.integer], n_buckets: int) -> Iterator[Block]:
    """Give rows by the bucket of each, in blocks of about `_BLOCK_BYTES`."""
    order = np.argsort(buckets, kind="stable")
    starts = np.searchsorted(buckets[order], np.arange(n_buckets + 1, dtype=buckets.dtype))
    most = max(1, rows.num_rows * _BLOCK_BYTES // max(rows.nbytes, 1))
    for bucket in range(n_buckets):
        for first in range(int(starts[bucket]), int(starts[bucket + 1]), most):  # and block
            places = order[first : min(first + most, int(starts[bucket + 1]))]
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows.take(pa.array(places)))
            yield Block(bucket, pickle.dumps(_Rows(sink.getvalue().to_pybytes())))


def blocks_of(parts: pa.Table, n_keys: int, n_buckets: int) -> Iterator[Block]:
    """Give the groups of a table of parts in buckets of keys: each bucket, and its table packed."""
    hashed = parts.select([f"k{i}" for i in range(n_keys)])
    buckets = RowHasher(hashed.schema).hash(hashed)[:, 0] % np.uint64(n_buckets)
    return _packed(parts, buckets, n_buckets)


def tables_of(contents: Sequence[bytes], counts: Counts | None = None) -> list[pa.Table]:
    """Return the rows of blocks, and add up what their tasks counted.

    Raises
    ------
    OperatorError
        If a task failed.
    """
    tables = []
    for content in contents:
        match pickle.loads(content):
            case _Rows(stream):
                with pa.ipc.open_stream(stream) as opened:
                    tables.append(opened.read_all())
            case _Counted(by_operator) if counts is not None:
                counts.add(by_operator)
            case _Failed(error):
                raise error
    return tables


def shuffle_read(
    task: Task, output: OutputPlan, contents: Sequence[bytes], read: ReadRange, bucket: int, n_buckets: int
) -> TaskResult:
    """Put the blocks of a bucket together, run what is made of it, and write.

    Parameters
    ----------
    task : Task
        Any one of the piece.
    output : OutputPlan
    contents : sequence of bytes
        Of all blocks of the bucket.
    read : callable
        Reads what an operator over all history looks up.
    bucket, n_buckets : int
        Which of how many.
    """
    counts = Counts()
    try:
        tables = tables_of(contents, counts)
    except OperatorError as error:
        return TaskResult(error=plain_error(error))
    kept = remembers(output.view)
    if kept is not None:
        return _final_rows(task, output, kept, tables, counts, read, EVERY_KEY.cut(n_buckets)[bucket])
    aggregate, (view, lo, hi, wanted) = _aggregate_step(task, output)
    keys, chosen, schema = aggregate.plan(view, wanted)

    def rows() -> pa.Table:
        groups = schema.empty_table()
        if tables:
            try:
                groups = merge_parts(tables, keys, chosen, schema)
            except OverflowError as error:
                raise view.failure(str(error), lo, hi, hint="sum a float column, or smaller groups") from error
        groups = groups.select(view.with_carried(wanted))
        return output.view.run(
            of_shares(task, _read_nothing), task.lower, task.upper, watch=counts.watch, given=(view, groups)
        )

    return write_result(task, output, rows, counts)


def _final_rows(
    task: Task, output: OutputPlan, kept: Remembered, tables: list[pa.Table], counts: Counts, read: ReadRange,
    keys: KeyRange,
) -> TaskResult:  # fmt: skip
    """Compute a range of keys of an operator over all history from its rows."""
    view = output.view
    (source,), (names,) = view.inputs, kept.needs(view, ())
    rows = pa.concat_tables(tables) if tables else source.empty().select([*source.carried, *names])
    error = _too_large(view, kept.history.by, rows, task)
    if error is not None:
        return TaskResult(error=plain_error(error))
    before = Lookups(replace(task, keys=keys), output, read)

    def made() -> pa.Table:
        return view.run(
            of_shares(task, _read_nothing),
            task.lower,
            task.upper,
            watch=counts.watch,
            given=(source, rows),
            before=before,
        )

    return write_result(task, output, made, counts, before)


def _too_large(view: View, by: Names, rows: pa.Table, task: Task) -> OperatorError | None:
    """Return why a bucket is refused: a key has more rows than fit in memory, however they are cut by key."""
    if rows.nbytes <= _BUCKET_BYTES:
        return None
    hashes, first, n_rows = np.unique(key_hashes(rows, by), return_index=True, return_counts=True)
    hot = int(np.argmax(n_rows))
    size = int(n_rows[hot]) * rows.nbytes // rows.num_rows
    if 2 * size <= _BUCKET_BYTES:
        return None
    key = key_text(rows.select(by), int(first[hot])) if by else "the one key of all rows"
    return view.failure(
        f"{int(n_rows[hot])} rows of {key}, about {size >> 20} MiB, among {hashes.shape[0]} keys of a task",
        task.lower,
        task.upper,
        hint="take less in a step: max_bytes_per_step, or max_times_per_step",
    )


def _read_nothing(*_: object) -> pa.Table:
    """Fail: what is above an operator that was computed by key reads no log."""
    msg = "nothing is read above an aggregate that was computed by key"
    raise AssertionError(msg)


def _aggregate_step(task: Task, output: OutputPlan) -> tuple[Aggregate, Step]:
    """Return the aggregate of a view that is computed by key, and its step: the view, its range, its columns."""
    view = output.view
    found = shuffled_aggregate(view)
    assert found is not None
    assert isinstance(found.operator, Aggregate)
    steps = steps_of(view, task.lower, task.upper, tuple(view.schema.names), stop=found)
    return found.operator, next(step for step in steps if step[0] is found)
