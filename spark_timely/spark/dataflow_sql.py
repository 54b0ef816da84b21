"""Evaluate a range of a dataflow's output as a Spark DataFrame, for ranges that are too large for one task.

This is ``evaluation="sql"``. The logs' files are read by Spark's Parquet scan. Conditions given as text are Spark's,
and so are groups, exact integer sums, joins and unions: Spark spills, shuffles and plans them. Functions and
expressions of Arrow run in `mapInArrow`; exact sums of floats are put together by key as in
`dataflow.engine.shuffle`. For small ranges it is slower than pyarrow in one task (`dataflow_tasks`). Both give the
same rows.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    NumberFormatException,
    PythonException,
    SparkRuntimeException,
)
from pyspark.sql import functions as F

from spark_timely.dataflow.aggregates import merge_parts, part_of_rows
from spark_timely.dataflow.engine.shuffle import blocks_of, tables_of
from spark_timely.dataflow.engine.tasks import Counts, OutputPlan, Task, TaskResult, write_result
from spark_timely.dataflow.views import Aggregate, Concat, Filter, Hinted, Join, Notified, Replay, Step, View, steps_of
from spark_timely.errors import OperatorError, StorageError
from spark_timely.log.files.format import conform
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.base.shipping import Carried, for_task
from spark_timely.spark.scan import beyond, quoted, scan
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import unique_times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


Batches = Iterator[pa.RecordBatch]

# Operators that go row by row, as frames of their own.
_MOST_APART: Final = 24

# What Spark says of conditions and data, not of itself.
_USER_ERRORS: Final = (AnalysisException, ArithmeticException, NumberFormatException, SparkRuntimeException)

# Of them those about files: what was planned from may be merged and deleted before the job reads it.
_FILE_GONE: Final = re.compile(r"PATH_NOT_FOUND|FAILED_READ_FILE|FileNotFoundException|FILE_NOT_EXIST")

# An operator's own error, as the text of a job's failure repeats it.
_REPEATED: Final = re.compile(
    r"\[TIMELY_OPERATOR\] (?P<message>could not run operator '(?P<operator>[^']*)' at times from (?P<lower>\[.*?\]) to "
    r"(?P<upper>\[.*?\]): .*?)(?: — hint: (?P<hint>.*))?$",
    re.MULTILINE,
)


def run_sql(
    spark: SparkSession, task: Task, output: OutputPlan, storage_options: Mapping[str, Mapping[str, str]], n_tasks: int
) -> TaskResult:
    """Run a range of an output as a job of DataFrames; rows are written where they are computed.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    task : Task
        All of the range.
    output : OutputPlan
    storage_options : mapping
        By path of the log.
    n_tasks : int
        For what is shuffled.
    """
    try:
        return _run(spark, task, output, storage_options, n_tasks)
    except (PythonException, *_USER_ERRORS) as error:
        raise _named(error, task, output) from error


def _named(error: Exception, task: Task, output: OutputPlan) -> Exception:
    """Return the error of the operator that a job failed of; the error itself where none did."""
    text = str(error)
    own = _REPEATED.search(text)
    if own is not None:
        message, operator, lower, upper, hint = own.group("message", "operator", "lower", "upper", "hint")
        return OperatorError(message, hint=hint, operator=operator, lower=lower, upper=upper)
    line = text.strip().partition("\n")[0]
    if isinstance(error, _USER_ERRORS):
        if _FILE_GONE.search(text):
            low, high = (output.form.domain.render_frontier(end) for end in (task.lower, task.upper))
            return StorageError(
                f"could not read the inputs of operator {output.name!r} at times from {low} to {high}: {line}",
                hint="wait: where a vacuum took a file that was merged before, the range is planned again; if the error"
                " stays, restore the input's files",
                context={"operator": output.name},
            )
        hint = "correct the condition, the columns or the data; nothing of these times was written"
        return output.view.failure(f"{type(error).__name__}: {line}", task.lower, task.upper, hint=hint)
    return error


def _run(
    spark: SparkSession, task: Task, output: OutputPlan, storage_options: Mapping[str, Mapping[str, str]], n_tasks: int
) -> TaskResult:
    view = output.view
    names = tuple(view.schema.names)
    frames: dict[Step, DataFrame] = {}
    run = _Frames(spark, task, storage_options, n_tasks)
    steps = steps_of(view, task.lower, task.upper, names)
    for step, parts in _parts_of(steps, (view, task.lower, task.upper, names)).items():  # one turn per frame
        first, *_ = parts
        if len(parts) > 1:
            frames[step] = run.together(parts, steps, frames)
        else:
            frames[step] = run.frame(step, [frames[source] for source in steps[first]])
    schema, name = _schema(view, names), view.name

    def write(batches: Batches) -> Batches:
        rows = _table(batches, schema)
        counts = Counts()
        counts.add({name: (rows.num_rows, rows.nbytes)})
        result = write_result(task, output, lambda: rows, counts)
        yield pa.RecordBatch.from_pylist([{"result": pickle.dumps(result)}])

    found = _plain(frames[view, task.lower, task.upper, names]).mapInArrow(for_task(write), "result binary").collect()
    return _joined([pickle.loads(bytes(row["result"])) for row in found])


def _joined(results: Sequence[TaskResult]) -> TaskResult:
    """Return the results of the partitions as one."""
    counts = Counts()
    for result in results:  # one turn per partition
        counts.add(result.counts)
    times = [result.times for result in results if result.times is not None]
    known = unique_times(np.concatenate(times))[0] if times and len(times) == len(results) else None
    error = next((result.error for result in results if result.error is not None), None)
    return TaskResult(tuple(file for result in results for file in result.files), error, counts.by_operator, known)


def _parts_of(steps: Mapping[Step, Sequence[Step]], last: Step) -> dict[Step, list[Step]]:
    """Return the steps that have a frame, each with those that are computed for it in one pass, it being the last.

    Spark's plans are trees that are recursed over: of many operators in a row, or of ways that part and meet, one would
    be too deep, or too large. So where many operators go row by row over the rows of one frame, batches of these go
    through all of them.
    """
    bases: dict[Step, Step] = {}  # of what goes row by row: the one frame of whose rows it is made
    for step, sources in steps.items():  # one turn per operator and range
        below = {bases.get(source, source) for source in sources}
        if step[0].own_rowwise and not isinstance(step[0], Replay | Hinted) and len(below) == 1:
            (bases[step],) = below
    needed = {last, *(source for step, sources in steps.items() if step not in bases for source in sources)}
    found: dict[Step, list[Step]] = {}
    for step in steps:  # one turn per frame, each after those that it is made from
        if step not in bases:
            found[step] = [step]
        elif step in needed:
            parts: dict[Step, None] = {}
            waiting = [step]
            while waiting:  # one turn per operator of the pass
                at = waiting.pop()
                if at in bases and at not in parts:
                    parts[at] = None
                    waiting += steps[at]
            if len(parts) > _MOST_APART:
                found[step] = [each for each in steps if each in parts]
            else:
                found.update((each, [each]) for each in steps if each in parts and each not in found)
    return found


class _Frames:
    """Makes the DataFrame of each step."""

    def __init__(
        self, spark: SparkSession, task: Task, storage_options: Mapping[str, Mapping[str, str]], n_tasks: int
    ) -> None:
        self.spark, self.task, self.storage_options, self.n_tasks = spark, task, storage_options, n_tasks

    def frame(self, step: Step, sources: Sequence[DataFrame]) -> DataFrame:
        """Return the rows of a step, from those of the steps that it needs."""
        view, lo, hi, wanted = step
        columns = [*view.domain.columns, *wanted]
        if isinstance(view, Replay):
            return self._replayed(view, lo, hi, columns)
        if isinstance(view, Filter) and view.sql is not None:
            return sources[0].where(view.sql).select(*_quoted(columns))
        if isinstance(view, Hinted):
            moved = F.broadcast(sources[0]) if view.kind == "broadcast" else self._exchanged(view, sources[0])
            return moved.select(*_quoted(columns))
        if isinstance(view, Concat):
            return reduce(
                lambda one, other: one.unionByName(other), [each.select(*_quoted(columns)) for each in sources]
            )
        if isinstance(view, Join):
            keys = [*view.domain.columns, *view.on]
            how = "inner" if view.how == "inner" else "left"
            return sources[0].join(sources[1], on=keys, how=how).select(*_quoted(columns))
        if isinstance(view, Aggregate):
            return self._aggregated(step, sources[0])
        if isinstance(view, Notified):
            return self._notified(step, sources)
        return self._by_batches(step, sources[0])

    def together(
        self, parts: Sequence[Step], steps: Mapping[Step, Sequence[Step]], frames: Mapping[Step, DataFrame]
    ) -> DataFrame:
        """Run many operators that go row by row on the record batches of one frame, as they come."""
        places = {step: number for number, step in enumerate(parts, 1)}
        (base,) = {source for step in parts for source in steps[step] if source not in places}
        places[base] = 0
        # Without what is below each: it goes to the workers.
        work = [
            (replace(view, inputs=()), lo, hi, wanted, [places[source] for source in steps[view, lo, hi, wanted]])
            for view, lo, hi, wanted in parts
        ]
        uses = Counter(place for *_, sources in work for place in sources)
        given, made = _schema(base[0], base[3]), _schema(parts[-1][0], parts[-1][3])

        def pass_through(batches: Batches) -> Batches:
            for batch in batches:
                rows = {0: _table([batch], given)}
                left = dict(uses)
                for number, (view, lo, hi, wanted, sources) in enumerate(work, 1):  # one turn per operator
                    rows[number] = view._guarded([rows[place] for place in sources], lo, hi, wanted)
                    for place in sources:
                        left[place] -= 1
                        if not left[place]:
                            del rows[place]
                yield from _numbered(conform(rows[len(work)], made)).to_batches()

        chosen = _plain(frames[base].select(*_quoted(given.names)))
        return chosen.mapInArrow(for_task(pass_through), _numbered_schema(made)).toDF(*made.names)

    def _replayed(self, leaf: Replay, lo: Antichain, hi: Antichain, columns: Sequence[str]) -> DataFrame:
        schema = _schema(leaf, columns[leaf.domain.arity :])
        storage = open_storage(leaf.path, dict(self.storage_options.get(leaf.path) or {}) or None)
        paths = [share.path for share in self.task.shares.get(leaf.path, ())]
        if not paths:
            return self.spark.createDataFrame([], spark_schema(schema))
        rows = scan(self.spark, storage, paths, schema)
        return rows.where(beyond(leaf.domain, lo) & ~beyond(leaf.domain, hi))

    def _exchanged(self, view: Hinted, source: DataFrame) -> DataFrame:
        return source.repartition(self.n_tasks, *_quoted(view.columns))

    def _by_batches(self, step: Step, source: DataFrame) -> DataFrame:
        """Run an operator that goes row by row on record batches, as they come."""
        view, lo, hi, wanted = step
        (names,) = view.needs(wanted)
        given, made = _schema(view.inputs[0], names), _schema(view, wanted)
        view = replace(view, inputs=())  # it goes to the workers, and what is below it not

        def work(batches: Batches) -> Batches:
            for batch in batches:
                rows = _table([batch], given)
                yield from _numbered(conform(view._guarded([rows], lo, hi, wanted), made)).to_batches()

        chosen = _plain(source.select(*_quoted(given.names)))
        return chosen.mapInArrow(for_task(work), _numbered_schema(made)).toDF(*made.names)

    def _notified(self, step: Step, sources: Sequence[DataFrame]) -> DataFrame:
        view, lo, hi, wanted = step
        times = list(view.domain.columns)
        given = [_schema(source, names) for source, names in zip(view.inputs, view.needs(wanted), strict=True)]
        made = _schema(view, wanted)
        view = replace(view, inputs=())

        def call(tables: Sequence[pa.Table]) -> pa.Table:
            rows = [_table(table.to_batches(), schema) for table, schema in zip(tables, given, strict=True)]
            return _numbered(conform(view._guarded(rows, lo, hi, wanted), made))

        plain = [_plain(each.select(*_quoted(schema.names))) for each, schema in zip(sources, given, strict=True)]
        carried = Carried(call)
        grouped = [each.groupBy(*each.columns[: len(times)]) for each in plain]
        if len(grouped) == 1:
            called = grouped[0].applyInArrow(lambda rows: carried([rows]), _numbered_schema(made))
        else:
            called = (
                grouped[0]
                .cogroup(grouped[1])
                .applyInArrow(lambda one, two: carried([one, two]), _numbered_schema(made))
            )
        return called.toDF(*made.names)

    def _aggregated(self, step: Step, source: DataFrame) -> DataFrame:
        view, _, _, wanted = step
        assert isinstance(view, Aggregate)
        keys, chosen, made = view.plan(wanted)
        below = view.inputs[0].schema
        names = view.names(wanted)
        summed = [below.field(a.column).type for a in chosen.values() if a.kind == "sum"]
        if not any(map(pa.types.is_floating, summed)):
            values = [_value(a.kind, a.column, below).alias(name) for name, a in chosen.items()]
            named = _quoted(keys)
            groups = source.groupBy(*named)
            # A group-by without values keeps its keys.
            return (groups.agg(*values) if values else source.select(*named).distinct()).select(*_quoted(names))
        given, given_out, n = _schema(view.inputs[0], view.needs(wanted)[0]), _schema(view, wanted), self.n_tasks

        def part(batches: Batches) -> Batches:
            for bucket, content in blocks_of(part_of_rows(_table(batches, given), keys, chosen), len(keys), n):
                yield pa.RecordBatch.from_pylist([{"bucket": bucket, "content": content}])

        def merge(batches: Batches) -> Batches:
            contents = [content for batch in batches for content in batch.column("content").to_pylist()]
            if contents:
                groups = merge_parts(tables_of(contents), keys, chosen, made)
                yield from _numbered(conform(groups.select(names), given_out)).to_batches()

        parts = _plain(source.select(*_quoted(given.names))).mapInArrow(for_task(part), "bucket long, content binary")
        merged = parts.repartition(n, "bucket").mapInArrow(for_task(merge), _numbered_schema(given_out))
        return merged.toDF(*given_out.names)


def _value(kind: str, column: str | None, schema: pa.Schema) -> Column:
    """Return the aggregate of a column as Spark has it: integer sums exact, NaN passed over, one zero."""
    if column is None:
        return F.count(F.lit(1))
    (values,) = _quoted([column])
    if kind == "count":
        return F.count(values)
    if kind == "sum":
        # Wide enough on the way; what does not fit 64 bits in the end is an error, whatever the session says of casts.
        total = F.sum(values.cast("decimal(38, 0)"))
        msg = f"the sum of column {column!r} does not fit 64 bits"
        fits = total.isNull() | total.between(F.lit(-(1 << 63)), F.lit((1 << 63) - 1))
        return F.when(fits, total.cast("bigint")).otherwise(F.raise_error(F.lit(msg)).cast("bigint"))
    function: Callable[[Column], Column] = {"min": F.min, "max": F.max}[kind]
    if not pa.types.is_floating(schema.field(column).type):
        return function(values)
    zeroed = values + F.lit(0.0).cast("float" if schema.field(column).type == pa.float32() else "double")
    return F.coalesce(function(F.when(~F.isnan(values), zeroed)), function(values))


def _quoted(names: Sequence[str]) -> list[Column]:
    return [quoted(name) for name in names]


def _schema(view: View, names: Sequence[str]) -> pa.Schema:
    """Return time columns and some payload columns, as tasks get them: anything may be null."""
    schema = view.empty().schema
    return pa.schema([schema.field(name).with_nullable(True) for name in (*view.domain.columns, *names)])  # noqa: FBT003


def _table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the rows of all batches in a schema; columns come in its order, whatever they are called."""
    parts = [conform(pa.Table.from_batches([batch]).rename_columns(schema.names), schema) for batch in batches]
    return pa.concat_tables([schema.empty_table(), *parts])


# `mapInArrow` and its like look columns up by name as SQL would, and take "a.b" for a field of a struct (tried): on the
# way through functions columns have numbers.


def _plain(frame: DataFrame) -> DataFrame:
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))


def _numbered(table: pa.Table) -> pa.Table:
    return table.rename_columns([f"c{place}" for place in range(table.num_columns)])


def _numbered_schema(schema: pa.Schema) -> StructType:
    return spark_schema(pa.schema([field.with_name(f"c{place}") for place, field in enumerate(schema)]))
