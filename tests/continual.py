"""Bodies of continual tasks that Python functions stand for: what evaluates them without Spark.

`PythonBodies` reads the files that a step names, shows their rows to a function as lists, and writes what it gives. It
is what `spark_timely.spark.tasks.bodies` is with Spark. Rows are tuples of the payload; times are numbers that begin
at 0, whatever the type of the log's times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_timely.continual.plan import SourcePlan, StepPlan, StepResult
from spark_timely.errors import OperatorError
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.files.parquet_reader import read_file
from spark_timely.time.antichain import IntArray
from tests.oracles.continual import Body, Row, in_order


@dataclass
class PythonBodies:
    """Evaluates the body of one task: `spark_timely.continual.plan.Evaluator`.

    Attributes
    ----------
    body : callable
    origin : int
        The time that is 0 for the body, as the log has it.
    fails_at : set of int
        Times at which the body fails.
    raises_at : set of int
        Times at which it raises an error that is none of its own.
    odd_together : bool
        Whether some steps of several times fail although each of the times alone does not.
    written : callable
        Called once a step has its files.
    runs : list of int
        The times at which the body ran.
    """

    body: Body
    origin: int = 0
    fails_at: set[int] = field(default_factory=set)
    raises_at: set[int] = field(default_factory=set)
    odd_together: bool = False
    written: Callable[[StepPlan], None] = lambda plan: None
    runs: list[int] = field(default_factory=list)

    def times(self, sources: Sequence[SourcePlan], /) -> list[IntArray]:
        """Return the times at which collections have inserts or deletes."""
        return [self.times_of(source) for source in sources]

    def times_of(self, source: SourcePlan) -> IntArray:
        """Return those of one."""
        if source.lower is None:
            assert source.upper is not None
            return np.array([source.upper - 1] if shown(source) else [], np.int64)
        sign = 1 if source.shown == "inserts" else -1
        return np.array(sorted({time for (time, _), n in updates_of(source).items() if n * sign > 0}), np.int64)

    def given(self, plan: StepPlan) -> dict[Row, int]:
        """Return what the body gives at the time of a step: rows, and how often."""
        seen = {source.alias: shown(source) for source in plan.sources}
        own = [] if plan.own is None else shown(plan.own)
        found: Counter[Row] = Counter()
        for row, diff in self.body(seen, plan.time - self.origin, own):
            found[row] += diff
        return {row: n for row, n in found.items() if n}

    def evaluate(self, plan: StepPlan, /) -> StepResult:
        """Evaluate the body at the times of a step, and write what it gives."""
        times = {time - self.origin for time in plan.times}
        self.runs += sorted(times)
        if times & self.raises_at:
            msg = "found no room"
            raise RuntimeError(msg)
        if times & self.fails_at or (self.odd_together and plan.together and sum(times) % 3 == 0):
            msg = f"could not run task {plan.task!r} at {plan.where}: found what it cannot do"
            return StepResult(error=OperatorError(msg, operator=plan.task, lower=plan.where, upper=plan.where))
        rows = []
        for time in plan.times:
            given = self.given(at_one_time(plan, time))
            alike = {row: [given[row]] if _signed(plan) else [1] * given[row] for row in given}
            rows += [(time, row, n) for row in in_order(given) for n in alike[row]]
        files = []
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            if part:
                files += _write(part, plan)
        self.written(plan)
        return StepResult(files)


def at_one_time(plan: StepPlan, time: int) -> StepPlan:
    """Return what a step of several times reads and writes at one of them."""
    if not plan.together:
        return plan
    sources = tuple(
        replace(each, lower=None if each.shown == "contents" else time, upper=time + 1) for each in plan.sources
    )
    return replace(plan, times=(time,), sources=sources)


def _signed(plan: StepPlan) -> bool:
    return plan.form.kind == "collection"


def _write(rows: list[tuple[int, Row, int]], plan: StepPlan) -> list[Any]:
    schema = plan.form.payload
    columns = [pa.array([row[at] for _, row, _ in rows], each.type) for at, each in enumerate(schema)]
    times = np.array([[time] for time, _, _ in rows], np.int64)
    diffs = [n for _, _, n in rows] if _signed(plan) else None
    table = message_table(plan.form, pa.table(columns, schema=schema), times, plan.stream, plan.seq, diffs)
    return write_data_files(
        plan.storage, table, times, stream=plan.stream, seq=plan.seq, domain=plan.form.domain, job=plan.job
    )


def updates_of(source: SourcePlan) -> Counter[tuple[int, Row]]:
    """Return the updates of a log in a range: by time, as the log has it, and row, how often."""
    (name,), (kind,) = source.domain.columns, source.domain.types
    own = [pa.field("_diff", pa.int64())] if source.kind == "collection" else []
    schema = pa.schema([pa.field(name, kind.arrow), *own, *source.schema])
    found: Counter[tuple[int, Row]] = Counter()
    for path in source.files:
        table = read_file(source.storage, path, schema)
        times = source.domain.from_columns(table)[:, 0].tolist()
        diffs = table["_diff"].to_pylist() if own else [1] * table.num_rows
        for time, diff, row in zip(times, diffs, table.select(source.schema.names).to_pylist(), strict=True):
            after = source.lower is None or time >= source.lower
            if after and (source.upper is None or time < source.upper):
                found[time, tuple(row.values())] += diff
    return found


def shown(source: SourcePlan) -> list[Row]:
    """Return the rows that a body sees of a log."""
    held: Counter[Row] = Counter()
    for (_, row), n in updates_of(source).items():
        held[row] += n
    if source.shown == "deletes":
        held = Counter({row: -n for row, n in held.items()})
    whole = source.shown == "contents" or (source.shown == "inserts" and source.lower is None)
    if whole and any(n < 0 for n in held.values()):
        msg = f"could not read log {source.path!r}: found a row that is there less than no times"
        raise OperatorError(msg)
    return in_order((+held).elements())
