"""Bodies that are functions of Arrow tables, evaluated where a task of Spark's would: without Spark, against programs.

Whole histories are those of `tests/property/test_continual.py`: races, kills, restarts, other bodies, forgetting.
"""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.continual.engine import TaskEngine, TaskPlan
from spark_timely.continual.plan import SourcePlan, StepPlan, StepResult
from spark_timely.errors import DataLossError, InvalidUsageError, OperatorError, SchemaMismatchError, StorageError
from spark_timely.log.files.parquet_reader import read_file
from spark_timely.log.log import MemoryLog
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.spark.tasks.arrow_bodies import (
    MAX_BYTES,
    ArrowBodies,
    ArrowBody,
    Kept,
    compare_step,
    rows_of_step,
    run_step,
    times_of_changes,
)
from spark_timely.spark.tasks.bodies import Changes
from spark_timely.time.antichain import IntArray
from spark_timely.trace.updates import Updates
from tests.continual import PythonBodies, shown
from tests.faults.harness import long_lane
from tests.oracles.continual import Row, in_order
from tests.property import test_continual as histories

KV = pa.schema([("k", pa.string()), ("n", pa.int64())])


# Whole histories --------------------------------------------------------------------------------------


def rows_of(table: pa.Table) -> list[Row]:
    return in_order(tuple(row.values()) for row in table.to_pylist())


def table_of(rows: Sequence[Row], schema: pa.Schema = KV) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], each.type) for at, each in enumerate(schema)]
    return pa.table(columns, schema=schema)


@dataclass
class TableBodies(PythonBodies):
    """Evaluates a Python body as a function of tables: `PythonBodies` for what it shares with it."""

    kept: Kept = field(default_factory=Kept)

    def times_of(self, source: SourcePlan, /) -> IntArray:
        found = times_of_changes(source)
        assert found.tolist() == super().times_of(source).tolist()
        return found

    def function(self, inputs: Mapping[str, Any], references: Mapping[str, Any], time: Any, output: Any) -> Changes:
        seen = {name: rows_of(table) for name, table in {**inputs, **references}.items()}
        own = [] if output is None else rows_of(output)
        net: Counter[Row] = Counter()
        for row, n in self.body(seen, self.number(time), own):
            net[row] += n
        gone = [row for row, n in net.items() if n < 0]
        held = Counter(own)
        # All copies of a row go: those that stay are put back.
        made = [row for row, n in net.items() if n for _ in range(n if n > 0 else held[row] + n)]
        return Changes(insert=table_of(made), delete=table_of(gone) if gone else None)

    def number(self, time: Any) -> int:
        """Return which time a value of its type is."""
        if isinstance(time, dt.datetime):
            return (time - dt.datetime(2026, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        return (time - dt.date(2026, 1, 1)).days if isinstance(time, dt.date) else int(time)

    def evaluate(self, plan: StepPlan, /) -> StepResult:
        times = {time - self.origin for time in plan.times}
        self.runs += sorted(times)
        if times & self.raises_at:
            msg = "found no room"
            raise RuntimeError(msg)
        failed = times & self.fails_at or (self.odd_together and plan.together and sum(times) % 3 == 0)

        def function(inputs: Any, references: Any, time: Any, output: Any = None) -> Changes:
            if failed and (self.number(time) in self.fails_at or not times & self.fails_at):
                msg = "found what it cannot do"
                raise ValueError(msg)
            return self.function(inputs, references, time, output)

        inputs = tuple(each.alias for each in plan.sources if each.shown not in ("contents", "newest"))
        references = tuple(each.alias for each in plan.sources if each.alias not in inputs)
        body = ArrowBody(function, inputs, references, deletes=True)
        result = run_step(body, plan, ("output",), self.kept)
        if result.error is None:
            self.written(plan)
        return result


class Together(TaskEngine):
    """Evaluates bodies at several times in one step although they read the output."""

    def __init__(self, plan: TaskPlan, *given: Any, **options: Any) -> None:
        super().__init__(replace(plan, together=True), *given, **options)


@pytest.mark.parametrize("seed", range(300 if long_lane() else 6))
def test_histories_are_as_the_program_says(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "PythonBodies", TableBodies)
    rng = random.Random(f"tables {seed}")
    case = histories.drawn(rng)
    if seed % 2:
        monkeypatch.setattr(histories, "TaskEngine", Together)
        case = replace(case, body=["digest", "audit", "upsert", "retain", "both"][seed // 2 % 5])
    histories.run_history(tmp_path, rng, case)


# One step ---------------------------------------------------------------------------------------------


def log_of(
    updates: Sequence[tuple[int, Row, int]],
    *,
    kind: str = "collection",
    schema: pa.Schema = KV,
    cuts: Sequence[int] = (),
    times: str = "long",
) -> MemoryLog:
    """Return a log with updates (time, row, diff) in one file, or cut into several."""
    log = MemoryLog.create(schema, kind=kind, times=[times])  # type: ignore[arg-type]
    writer = log.writer(owner="test")
    for first, stop in zip([0, *cuts], [*cuts, len(updates)], strict=True):
        write(writer, log, updates[first:stop])
    return log


def write(writer: Any, log: MemoryLog, updates: Sequence[tuple[int, Row, int]]) -> None:
    columns = log.domain.to_columns([[time] for time, *_ in updates])
    if log.kind == "collection":
        columns["_diff"] = pa.array([diff for *_, diff in updates], pa.int64())
    rows = table_of([row for _, row, _ in updates], log.schema)
    writer.append(pa.table({**columns, **dict(zip(rows.schema.names, rows.columns, strict=True))}))


def source_of(log: MemoryLog, alias: str, shown: str, lower: int | None = None, upper: int | None = None) -> SourcePlan:
    """Return all files of a log, as a step would name them."""
    files = catalog_of(log)()
    return SourcePlan(
        alias, shown, f"/{alias}", log.kind, log.domain, log.schema, log.core.storage,  # type: ignore[arg-type]
        tuple(map(str, files.paths)), lower, upper, int(files.bounds.sizes.sum()),
    )  # fmt: skip


def step_of(
    times: Sequence[int], *sources: SourcePlan, own: SourcePlan | None = None, form: Any = None, **settings: str
) -> StepPlan:
    kind = "stream" if own is None else own.kind
    output = MemoryLog.create(KV if form is None else form, kind=kind, minimum=[0])  # type: ignore[arg-type]
    zone = {"spark.sql.session.timeZone": settings.get("zone", "UTC")}
    return StepPlan("t", tuple(times), sources, own, output.core.format, output.core.storage, "main", 1, "job", zone)


def body_of(function: Callable[..., Any], plan: StepPlan, **options: Any) -> ArrowBody:
    shown = {source.alias: source.shown for source in plan.sources}
    inputs = tuple(name for name, how in shown.items() if how not in ("contents", "newest"))
    references = tuple(name for name in shown if name not in inputs)
    return ArrowBody(function, inputs, references, reads_output=plan.own is not None, **options)


def written(result: StepResult, plan: StepPlan) -> Counter[tuple[int, Row]]:
    """Return what a step wrote: by time and row, how often."""
    if result.error is not None:
        raise result.error
    found: Counter[tuple[int, Row]] = Counter()
    own = [pa.field("_diff", pa.int64())] if plan.form.kind == "collection" else []
    (name,), (kind,) = plan.form.domain.columns, plan.form.domain.types
    schema = pa.schema([pa.field(name, kind.arrow), *own, *plan.form.payload])
    for file in result.files:
        table = read_file(plan.storage, file.path, schema)
        times = plan.form.domain.from_columns(table)[:, 0].tolist()
        diffs = table["_diff"].to_pylist() if own else [1] * table.num_rows
        for time, diff, row in zip(times, diffs, table.select(plan.form.payload.names).to_pylist(), strict=True):
            found[time, tuple(row.values())] += diff
    return found


def drawn_updates(rng: random.Random, n: int, times: int) -> list[tuple[int, Row, int]]:
    """Return updates of a collection that holds no row fewer than zero times, at any time."""
    found: list[tuple[int, Row, int]] = []
    for _ in range(n):
        row: Row = (rng.choice(["a", "b", "ü", None]), rng.choice([None, 0, 1, 2]))
        time = rng.randrange(times)
        found.append((time, row, rng.choice([1, 1, 2])))
        if rng.random() < 0.5:
            found.append((min(time + rng.randrange(4), times - 1), row, -1))
    rng.shuffle(found)
    return found


def seen_as_text(inputs: Any, references: Any, time: Any, output: Any = None) -> pa.Table:
    """Return a row that depends on everything that a body sees."""
    tables = {**inputs, **references} | ({} if output is None else {"output": output})
    text = repr({name: rows_of(table) for name, table in sorted(tables.items())})
    return table_of([(text, time)])


@pytest.mark.parametrize("seed", range(200 if long_lane() else 8))
def test_many_times_together_are_one_by_one_whatever_the_files(seed: int) -> None:
    """Inputs and references of each kind; the references change at, before, between and after the times."""
    rng = random.Random(seed)
    updates = [drawn_updates(rng, rng.randrange(30), 12) for _ in range(3)]
    streams = [[(time, row, 1) for time, row, diff in each if diff > 0] for each in updates]
    times = sorted(rng.sample(range(12), rng.randint(2, 6)))
    first, last = times[0], times[-1]
    left = rng.randrange(3)

    def sources() -> list[SourcePlan]:
        def cut(rows: Sequence[Any]) -> list[int]:
            return sorted(rng.sample(range(len(rows) + 1), min(len(rows), rng.randrange(4))))

        shuffled = [rng.sample(each, len(each)) for each in (*updates, *streams)]
        kinds = ["collection"] * 3 + ["stream"] * 3
        logs = [log_of(rows, kind=kind, cuts=cut(rows)) for rows, kind in zip(shuffled, kinds, strict=True)]
        return [
            source_of(logs[0], "i0", "inserts", first, last + 1),
            source_of(logs[1], "i1", "deletes", first, last + 1),
            source_of(logs[3], "i2", "inserts", first, last + 1),
            source_of(logs[2], "r0", "contents", None, last + 1),
            source_of(logs[4], "r1", "contents", None, last + 1),
            source_of(logs[5], "r2", "contents", left, last + 1),
            source_of(logs[2], "r3", "newest", None, last + 1),
        ]

    def at(plan: StepPlan, time: int) -> StepPlan:
        ranges = {"contents": (None, time + 1), "newest": (None, last + 1)}
        alone = [replace(each, lower=low, upper=high) for each in plan.sources
                 for low, high in [ranges.get(each.shown, (time, time + 1))]]  # fmt: skip
        alone = [replace(each, lower=left) if each.alias == "r2" else each for each in alone]
        return replace(plan, times=(time,), sources=tuple(alone))

    plan = step_of(times, *sources())
    body = body_of(seen_as_text, plan)
    together = written(run_step(body, plan, kept=Kept()), plan)
    kept, others = Kept(), step_of(times, *sources())
    one_by_one: Counter[Any] = Counter()
    for time in times:
        one_by_one += written(run_step(body, at(others, time), kept=kept), others)
    assert together == one_by_one
    # And both are what Python says.
    for time in times:
        alone = at(plan, time)
        seen = {each.alias: shown(each) for each in alone.sources}
        assert together[time, (repr(dict(sorted(seen.items()))), time)] == 1


def test_snapshot_is_shown_at_the_first_time() -> None:
    log = log_of([(1, ("a", 1), 2), (3, ("a", 1), -1), (3, ("b", 2), 1), (5, ("c", 3), 1)], cuts=[2])
    plan = step_of([3], source_of(log, "i", "inserts", None, 4))
    body = body_of(lambda inputs, references, time: inputs["i"], plan)
    assert written(run_step(body, plan), plan) == Counter({(3, ("a", 1)): 1, (3, ("b", 2)): 1})
    stream = log_of([(1, ("a", 1), 1), (3, ("b", 2), 1), (5, ("c", 3), 1)], kind="stream")
    plan = step_of([3], source_of(stream, "i", "inserts", 1, 4))  # what the log has not forgotten
    assert written(run_step(body, plan), plan) == Counter({(3, ("a", 1)): 1, (3, ("b", 2)): 1})


@pytest.mark.parametrize("seed", range(100 if long_lane() else 6))
def test_output_that_is_read_grows_with_the_times_of_a_step(seed: int) -> None:
    """Rows are added and taken away, nulls among them; each time sees what the times before it left."""
    rng = random.Random(seed)
    before = [update for update in drawn_updates(rng, 12, 3) if update[2] > 0]
    arrivals = drawn_updates(rng, 20, 9)
    arrivals = [(time + 3, row, abs(diff)) for time, row, diff in arrivals]
    own, log = log_of(before, cuts=[len(before) // 2]), log_of(arrivals)
    times = sorted({time for time, *_ in arrivals})

    def function(inputs: Any, references: Any, time: int, output: pa.Table) -> Changes:
        keys = {row["k"] for row in inputs["i"].to_pylist()}
        gone = [row for row in rows_of(output) if row[0] in keys and (row[1] or 0) < 2]
        added = [*rows_of(inputs["i"]), ("#", output.num_rows), *gone[:1]]
        return Changes(insert=table_of(added), delete=table_of(gone + gone) if time % 2 else None)

    plan = step_of(times, source_of(log, "i", "inserts", 3, 12), own=source_of(own, "output", "contents", None, 3))
    found = written(run_step(body_of(function, plan, deletes=True), plan), plan)
    held = Counter({row: 0 for _, row, _ in before})
    for _, row, n in before:
        held[row] += n
    wanted: Counter[Any] = Counter()
    for time in times:
        arrived = [row for at, row, n in arrivals if at == time for _ in range(n)]
        keys = {row[0] for row in arrived}
        gone = {row for row in held if held[row] and row[0] in keys and (row[1] or 0) < 2}
        added = [*arrived, ("#", held.total()), *in_order(gone)[:1]]
        changes = Counter(added)
        if time % 2:
            changes.subtract({row: held[row] for row in gone})
        for row, n in changes.items():
            held[row] += n
            if n:
                wanted[time, row] += n
    assert found == wanted


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_body_may_give_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At some times there is nothing to insert, nor to delete; each time is written by itself here."""
    monkeypatch.setattr("spark_timely.spark.tasks.arrow_bodies._MOST_BYTES", 1)
    log = log_of([(time, ("a", time), 1) for time in range(1, 5)], kind="stream")
    own = source_of(log_of([], kind=kind), "output", "contents", None, 1)

    def function(inputs: Any, references: Any, time: int, output: pa.Table) -> Any:
        if time == 2:
            return Changes()
        if time == 3:
            return Changes(insert=output.slice(0, 0), delete=inputs["i"] if kind == "collection" else None)
        return pa.table({"n": inputs["i"]["n"], "k": [str(output.num_rows)]})

    plan = step_of([1, 2, 3, 4], source_of(log, "i", "inserts", 1, 5), own=own)
    body = body_of(function, plan)
    result = run_step(body, plan)
    assert written(result, plan) == Counter({(1, ("0", 1)): 1, (4, ("1", 4)): 1})
    assert [file.n_rows for file in result.files] == [1, 1]
    table = rows_of_step(body, plan)
    assert table.schema.names == ["_time", *(["_diff"] if kind == "collection" else []), "k", "n"]
    assert table["k"].to_pylist() == ["0", "1"]


def test_what_was_written_before_a_failure_comes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets the error takes the files away."""
    monkeypatch.setattr("spark_timely.spark.tasks.arrow_bodies._MOST_BYTES", 1)
    log = log_of([(time, ("a", time), 1) for time in range(1, 5)], kind="stream")
    plan = step_of([1, 2, 3, 4], source_of(log, "i", "inserts", 1, 5))
    body = body_of(lambda inputs, references, time: inputs["i"] if time < 3 else failing({}, {}, time), plan)
    result = run_step(body, plan)
    assert result.error is not None
    assert result.error.lower == "3"
    assert len(result.files) == 2


# What a process keeps ---------------------------------------------------------------------------------


@dataclass
class Reads:
    """Which files were opened."""

    paths: list[str] = field(default_factory=list)

    def of(self, log: MemoryLog) -> Reads:
        storage = log.core.storage
        opened = storage.open_input

        def open_input(path: str) -> Any:
            self.paths.append(path)
            return opened(path)

        storage.open_input = open_input  # type: ignore[method-assign]
        return self

    def taken(self) -> int:
        n = len(self.paths)
        self.paths.clear()
        return n


def counts_of(log: MemoryLog, time: int, kept: Kept, **options: Any) -> list[Row]:
    """Evaluate a step whose body gives what a reference holds."""
    nothing = log_of([(time, ("x", 0), 1)], kind="stream")
    arrived, held = source_of(nothing, "i", "inserts", time, time + 1), source_of(log, "r", "contents", None, time + 1)
    plan = step_of([time], arrived, replace(held, path=f"/{log.core.log_id}"), form=options.get("form"))
    found = written(run_step(body_of(lambda inputs, references, time: references["r"], plan), plan, kept=kept), plan)
    return in_order(row for (at, row), n in found.items() for _ in range(n) if at == time)


@pytest.mark.parametrize("kind", ["collection", "stream"])
def test_unchanged_references_are_read_once_then_what_is_new(kind: str) -> None:
    log = log_of([(0, ("a", 1), 1), (1, ("b", 2), 1), (9, ("z", 9), 1)], kind=kind, cuts=[1])
    kept, reads = Kept(), Reads().of(log)
    assert counts_of(log, 4, kept) == [("a", 1), ("b", 2)]
    assert reads.taken() == 2
    assert counts_of(log, 5, kept) == [("a", 1), ("b", 2)]
    assert counts_of(log, 5, kept) == [("a", 1), ("b", 2)]
    assert reads.taken() == 0
    write(log.writer(owner="test"), log, [(6, ("c", 3), 1), (7, ("d", 4), 1)])
    assert counts_of(log, 6, kept) == [("a", 1), ("b", 2), ("c", 3)]
    assert reads.taken() == 1
    # What was read ahead is not read again.
    assert counts_of(log, 9, kept) == [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("z", 9)]
    assert reads.taken() == 0
    # An earlier time, of another task of that name or after a lost race: from the beginning.
    assert counts_of(log, 4, kept) == [("a", 1), ("b", 2)]
    assert reads.taken() == 3


def test_files_that_were_merged_are_read_anew() -> None:
    log = log_of([(0, ("a", 1), 1), (1, ("a", 1), -1), (1, ("b", 2), 1)], cuts=[1, 2])
    kept = Kept()
    assert counts_of(log, 1, kept) == [("b", 2)]
    log.writer(owner="test").append(table_of([]).append_column("_time", pa.array([], pa.int64()))
                                    .append_column("_diff", pa.array([], pa.int64())), advance_to=5)  # fmt: skip
    log.allow_compaction([4])
    assert log.compact() is not None
    assert counts_of(log, 4, kept) == [("b", 2)]


def test_what_is_kept_has_a_bound() -> None:
    logs = [log_of([(0, ("a" * 100, n), 1) for n in range(200)]) for _ in range(3)]
    alone = Kept()
    assert len(counts_of(logs[0], 1, alone)) == 200
    assert alone.n_bytes > 20_000
    kept = Kept(2 * alone.n_bytes + 100)
    reads = [Reads().of(log) for log in logs]
    for which in (0, 1, 0, 2, 0, 1):
        assert len(counts_of(logs[which], 1, kept)) == 200
        assert kept.n_bytes <= 2 * alone.n_bytes + 100
    # The one used longest ago went: the second, for the third.
    assert [each.taken() for each in reads] == [1, 2, 1]
    none = Kept(0)
    assert len(counts_of(logs[0], 1, none)) == 200
    assert none.n_bytes == 0


def test_many_changes_of_contents_are_put_among_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes that are few beside the rows stay apart, and many do not: both give what is there."""
    monkeypatch.setattr("spark_timely.spark.tasks.arrow_bodies._FEW_ROWS", 8)
    rng = random.Random(5)
    held: Counter[Row] = Counter({(str(n), n): 1 for n in range(100)})
    log = log_of([(0, row, 1) for row in held])
    kept = Kept()
    for time in range(1, 40):
        gone = rng.sample([row for row, n in held.items() if n], rng.randrange(4))
        come = [(str(n), n) for n in rng.sample(range(120), rng.randrange(4))]
        write(log.writer(owner="test"), log, [*((time, row, -1) for row in gone), *((time, row, 1) for row in come)])
        held.update(come)
        held.subtract(gone)
        assert counts_of(log, time, kept) == in_order((+held).elements())


def test_halves_of_a_hash_that_are_equal_are_told_apart() -> None:
    from spark_timely.spark.tasks.arrow_bodies import _Sums

    hashes = np.array([[1, 5], [1, 2], [1, 9], [4, 4]], np.int64)
    sums = _Sums.of(_Sums(hashes, Updates.contents(pa.table({"v": [15, 12, 19, 44]}), np.array([1, 2, 3, 4]))))
    assert sums.held.rows["v"].to_pylist() == [12, 15, 19, 44]
    wanted = np.array([[1, 9], [4, 1], [1, 2], [0, 0], [9, 9], [1, 9]], np.int64)
    assert sums.places_of(wanted).tolist() == [0, 2]


@pytest.mark.parametrize("order", [(1, -1, 1), (1, 1, -1), (-1, 1, 1)])
def test_contents_do_not_depend_on_what_was_read_first(order: tuple[int, ...]) -> None:
    from spark_timely.spark.tasks.arrow_bodies import _Collection

    held = _Collection.empty(pa.schema([("x", pa.float64())]))
    for number, sign in enumerate(order):
        zero = -0.0 if number else 0.0
        held = held.plus(np.array([sign * (1 << 62)]), pa.table({"x": [zero]}))
    assert held.now.diffs.tolist() == [1 << 62]
    assert [math.copysign(1, x) for x in held.now.rows["x"].to_pylist()] == [1]


# Write times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200 if long_lane() else 8))
@pytest.mark.parametrize("shown_", ["inserts", "deletes"])
def test_write_times_are_those_of_the_sums(seed: int, shown_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_timely.spark.tasks.arrow_bodies._PIECE_ROWS", 3)
    rng = random.Random(seed)
    updates = [(rng.randrange(9), (rng.choice("ab"), rng.choice([None, 1])), rng.choice([-1, 1])) for _ in range(30)]
    log = log_of(updates[: rng.randrange(31)], cuts=[])
    lower = rng.choice([None, 0, 2])
    source = source_of(log, "i", shown_, lower, rng.randrange(3, 9))
    if lower is None:
        assert source.upper is not None
        left: Counter[Row] = Counter()
        for time, row, diff in updates[: log_rows(log)]:
            left[row] += diff * (time < source.upper)
        wanted = [source.upper - 1] if any(left.values()) else []
    else:
        wanted = PythonBodies(lambda *_: []).times_of(source).tolist()
    assert times_of_changes(source).tolist() == wanted
    # Little enough to be found here: Spark is not asked.
    bodies = ArrowBodies(None, body_of(seen_as_text, step_of([0])))  # type: ignore[arg-type]
    assert [times.tolist() for times in bodies.times([source, source])] == [wanted, wanted]


def log_rows(log: MemoryLog) -> int:
    return int(log.messages().num_rows)


def test_write_times_of_too_many_rows_are_found_time_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_timely.spark.tasks.arrow_bodies._PIECE_ROWS", 10)
    updates = [(time, ("x" * 100, n), diff) for time in range(20) for n in range(10) for diff in (1, -1)]
    log = log_of([*updates, (7, ("y", 0), 1)])
    source = source_of(log, "i", "inserts", 0, 20)
    assert times_of_changes(source, 10_000).tolist() == [7]
    with pytest.raises(OperatorError, match="max_bytes=1000 of rows, with log '/i'"):
        times_of_changes(source, 1_000)


# Types of what a function gives -----------------------------------------------------------------------


WIDE = pa.schema([
    pa.field("größe", pa.int64()), pa.field("a.b", pa.float64()), pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("list", pa.list_(pa.field("element", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])))),
    pa.field("d", pa.decimal128(10, 2)), pa.field("raw", pa.binary()), pa.field("day", pa.date32()),
])  # fmt: skip
WIDE_ROW: Row = (
    1, 0.5, dt.datetime(2026, 3, 4, 5, 6, 7, 8, dt.UTC), [{"x": 1, "y": "é"}, None], None, b"\0", dt.date(2026, 3, 4),
)  # fmt: skip


@pytest.mark.parametrize("times", ["long", "date", "timestamp"])
def test_wide_rows_nulls_and_nested_types_come_and_go(times: str) -> None:
    """Equal rows are equal whatever they are made of: of two copies one goes, and the other by a delete."""
    nulls: Row = (None,) * len(WIDE)
    log = log_of([(5, WIDE_ROW, 2), (5, nulls, 1), (6, WIDE_ROW, -1)], schema=WIDE, cuts=[1, 2], times=times)
    own = log_of([(1, WIDE_ROW, 1), (1, nulls, 3)], schema=WIDE)
    nothing = log_of([(6, WIDE_ROW, 1)], schema=WIDE, kind="stream")
    plan = step_of(
        [6], source_of(nothing, "i", "inserts", 6, 7), source_of(log, "r", "contents", None, 7),
        own=source_of(own, "output", "contents", None, 6), form=WIDE,
    )  # fmt: skip

    def function(inputs: Any, references: Any, time: int, output: pa.Table) -> Changes:
        assert output.num_rows == 4
        assert references["r"].num_rows == 2
        return Changes(insert=references["r"].select(WIDE.names[::-1]), delete=output)

    result = run_step(body_of(function, plan, deletes=True), plan)
    assert result.error is None
    (file,) = result.files
    table = read_file(plan.storage, file.path, pa.schema([pa.field("_diff", pa.int64()), *WIDE]))
    found = {repr(tuple(row.values())[1:]): row["_diff"] for row in table.to_pylist()}
    # The row that is inserted and deleted is left out.
    assert found == {repr(nulls): -2}


def test_zeros_and_nans_are_what_they_are_for_spark() -> None:
    schema = pa.schema([("x", pa.float64())])
    log = log_of([(1, (0.0,), 1), (1, (float("nan"),), 1), (2, (-0.0,), -1), (2, (float("nan"),), -1)], schema=schema)
    assert counts_of(log, 1, Kept(), form=schema) != []
    assert counts_of(log, 2, Kept(), form=schema) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.array([1], pa.int8()), pa.int64()),
        (pa.array([1], pa.uint16()), pa.int32()),
        (pa.array([1], pa.int32()), pa.float64()),
        (pa.array([1.5], pa.float32()), pa.float64()),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array(["a"], pa.large_string()), pa.string()),
        (pa.array([None]), pa.int64()),
        (pa.array([[1]], pa.large_list(pa.int64())), pa.list_(pa.field("element", pa.int64()))),
        (pa.array([dt.date(2026, 3, 29)]), pa.timestamp("us", "UTC")),
        (pa.array([1], pa.timestamp("ms", "Europe/Berlin")), pa.timestamp("us", "UTC")),
        (pa.array([Decimal("1.5")], pa.decimal128(9, 1)), pa.decimal128(10, 2)),
    ],
)
def test_types_that_fit_are_stored_as_the_outputs(given: pa.Array, kept: pa.DataType) -> None:
    log = log_of([(1, ("a", 1), 1)], kind="stream")
    plan = step_of([1], source_of(log, "i", "inserts", 1, 2), form=pa.schema([("v", kept)]))
    found = rows_of_step(body_of(lambda *_: pa.table({"v": given}), plan), plan)
    assert found.schema.names == ["_time", "v"]
    assert found["v"].type == kept
    assert found["v"].to_pylist() == given.cast(kept).to_pylist()


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Asia/Kathmandu", dt.date(2026, 3, 4), -5.75),
        ("America/New_York", dt.date(2026, 7, 1), 4),
        # On this day the clock is put on at midnight: it begins an hour later.
        ("America/Santiago", dt.date(2019, 9, 8), 4),
        # And here midnight comes twice.
        ("America/Havana", dt.date(2026, 11, 1), 4),
    ],
)
def test_dates_become_moments_in_the_sessions_zone(zone: str, day: dt.date, hours: float) -> None:
    log = log_of([(1, ("a", 1), 1)], kind="stream")
    schema = pa.schema([("v", pa.timestamp("us", "UTC"))])
    plan = step_of([1], source_of(log, "i", "inserts", 1, 2), form=schema, zone=zone)
    found = rows_of_step(body_of(lambda *_: pa.table({"v": [day]}), plan), plan)
    begins = dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) + dt.timedelta(hours=hours)
    assert found["v"].to_pylist() == [begins]


def test_dates_in_a_zone_that_is_not_known_are_refused() -> None:
    log = log_of([(1, ("a", 1), 1)], kind="stream")
    schema = pa.schema([("v", pa.timestamp("us", "UTC"))])
    plan = step_of([1], source_of(log, "i", "inserts", 1, 2), form=schema, zone="Nowhere/Land")
    error = run_step(body_of(lambda *_: pa.table({"v": [dt.date(2026, 1, 1)]}), plan), plan).error
    assert error is not None
    assert "found dates for column 'v' of timestamps, and time zone 'Nowhere/Land'" in error.message


GOOD = table_of([("a", 1)])
NOT_NULL = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())])


def failing(inputs: Any, references: Any, time: Any) -> Any:
    msg = "no such\nthing"
    raise KeyError(msg)


def odd_error(inputs: Any, references: Any, time: Any) -> Any:
    raise InvalidUsageError("could not do it: found nothing", hint="do it")


@pytest.mark.parametrize(
    ("function", "schema", "text"),
    [
        (failing, KV, r"could not run task 't' at 1: KeyError: 'no such"),
        (odd_error, KV, r"could not run task 't' at 1: could not do it: found nothing"),
        (lambda *_: None, KV, r"at 1: .*: found NoneType in place of a pyarrow.Table"),
        (lambda *_: Changes(insert=7), KV, r"at 1: .*: found int in place of a pyarrow.Table"),  # type: ignore[arg-type]
        (lambda *_: GOOD.to_batches()[0], KV, r"found pyarrow.RecordBatch in place of a pyarrow.Table"),
        (lambda *_: sys.exit(3), KV, r"at 1: SystemExit: 3"),
        (lambda *_: GOOD.select(["k"]), KV, r"at 1: found columns \['k'\] for columns \['k', 'n'\] of its output"),
        (lambda *_: GOOD.rename_columns(["k", "N"]), KV, r"at 1: found columns \['k', 'N'\]"),
        (lambda *_: GOOD.rename_columns(["k", "k"]), KV, r"at 1: found columns \['k', 'k'\]"),
        (
            lambda *_: pa.table({"k": ["a"], "n": [1.5]}),
            KV,
            r"at 1: found type 'double' for column 'n' of type 'int64'",
        ),
        (lambda *_: pa.table({"k": [1], "n": [1]}), KV, r"at 1: found type 'int64' for column 'k' of type 'string'"),
        (lambda *_: pa.table({"k": ["a"], "n": pa.array([1], pa.time64("us"))}), KV, r"found type 'time64\[us\]' for"),
        (lambda *_: table_of([(None, 1)]), NOT_NULL, r"at 1: could not fit rows to the log: found null in column 'k'"),
        (lambda *_: Changes(insert=GOOD, delete=GOOD), KV, r"at 1: found rows to delete from a stream log"),
    ],
)
def test_what_a_function_must_not_do_is_refused_with_its_time(function: Any, schema: pa.Schema, text: str) -> None:
    log = log_of([(1, ("a", 1), 1), (2, ("b", 2), 1)], kind="stream")
    plan = step_of([1, 2], source_of(log, "i", "inserts", 1, 3), form=schema)
    error = run_step(body_of(function, plan), plan).error
    assert isinstance(error, OperatorError)
    with pytest.raises(OperatorError, match=text):
        raise pickle.loads(pickle.dumps(error))
    assert error.operator == "t"
    assert error.lower == "1"
    assert error.hint


def test_deletes_without_the_output_are_refused() -> None:
    log = log_of([(1, ("a", 1), 1)], kind="stream")
    plan = step_of([1], source_of(log, "i", "inserts", 1, 2))
    form = log_of([]).core.format
    body = body_of(lambda *_: Changes(delete=GOOD), plan)
    error = run_step(body, replace(plan, form=form)).error
    assert error is not None
    assert error.hint == "say deletes=True"


# What cannot be read -----------------------------------------------------------------------------------


def test_more_than_there_is_room_for_is_refused_by_name() -> None:
    log = log_of([(0, ("a" * 100, n), 1) for n in range(100)])
    arrived = log_of([(1, ("x", 0), 1)], kind="stream")
    plan = step_of([1], source_of(arrived, "i", "inserts", 1, 2), source_of(log, "r", "contents", None, 2))
    kept = Kept()
    for _ in range(2):  # the second time it is kept
        error = run_step(body_of(seen_as_text, plan, max_bytes=5_000), plan, kept=kept).error
        assert error is not None
        assert "found more than max_bytes=5000 of rows, with log '/r'" in error.message
        assert "leave arrow=True out" in str(error.hint)
        assert run_step(body_of(seen_as_text, plan), plan, kept=kept).error is None


def test_copies_that_there_is_no_room_for_are_refused_by_name() -> None:
    log = log_of([(0, ("a", 1), 1 << 62)])
    arrived = log_of([(1, ("x", 0), 1)], kind="stream")
    plan = step_of([1], source_of(arrived, "i", "inserts", 1, 2), source_of(log, "r", "contents", None, 2))
    error = run_step(body_of(seen_as_text, plan), plan).error
    assert error is not None
    assert f"max_bytes={MAX_BYTES}" in error.message
    gone = log_of([(1, ("a", 1), -(1 << 63))])
    plan = step_of([1], source_of(gone, "i", "deletes", 1, 2))
    error = run_step(body_of(seen_as_text, plan), plan).error
    assert error is not None
    assert f"max_bytes={MAX_BYTES}" in error.message


@pytest.mark.parametrize("shown_", ["contents", "inserts"])
def test_contents_below_zero_are_an_error_of_the_time(shown_: str) -> None:
    log = log_of([(0, ("a", 1), 1), (1, ("a", 1), -2)])
    arrived = log_of([(1, ("x", 0), 1)], kind="stream")
    plan = step_of([1], source_of(arrived, "j", "inserts", 1, 2), source_of(log, "i", shown_, None, 2))
    error = run_step(body_of(seen_as_text, plan), plan).error
    assert error is not None
    assert "could not run task 't' at 1: could not read the contents of log '/i': found row=" in str(error)


def test_sums_that_do_not_fit_are_an_error_of_the_time() -> None:
    log = log_of([(0, ("a", 1), (1 << 63) - 1), (1, ("a", 1), 1)])
    arrived = log_of([(1, ("x", 0), 1)], kind="stream")
    for how in ("contents", "inserts"):
        plan = step_of([1], source_of(arrived, "j", "inserts", 1, 2), source_of(log, "i", how, None, 2))
        error = run_step(body_of(seen_as_text, plan), plan).error
        assert error is not None
        assert f"with count={1 << 63}" in error.message


def test_files_that_are_gone_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vacuum took them: the step is planned again, from the files that are there by then."""
    monkeypatch.setattr("spark_timely.datasource.reader._RETRIES_S", ())
    log = log_of([(1, ("a", 1), 1), (1, ("b", 1), -1)])
    source = source_of(log, "i", "inserts", 1, 2)
    log.core.storage.delete(source.files[0])
    plan = step_of([1], source)
    for attempt in (
        lambda: run_step(body_of(seen_as_text, plan), plan),
        lambda: times_of_changes(source),
    ):
        with pytest.raises(StorageError, match="missing") as raised:
            attempt()
        assert not isinstance(raised.value, DataLossError)


def test_files_that_cannot_be_written_are_an_error_of_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of([(1, ("a", 1), 1)], kind="stream")
    plan = step_of([1], source_of(log, "i", "inserts", 1, 2))

    def full(path: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan.storage, "open_output", full)
    with pytest.raises(StorageError, match="No space left"):
        run_step(body_of(lambda inputs, references, time: inputs["i"], plan), plan)


def test_a_step_is_compared_with_what_was_written() -> None:
    log = log_of([(1, ("a", 1), 2), (1, ("b", 2), 1)])
    plan = step_of([1], source_of(log, "i", "inserts", 1, 2))
    there = log_of([(1, ("a", 1), 1), (1, ("c", 3), 1), (2, ("d", 4), 1)], kind="stream")
    body = body_of(lambda inputs, references, time: inputs["i"], plan)
    assert compare_step(body, plan, source_of(there, "output", "inserts", 1, 2)) == (2, 1)
    with pytest.raises(OperatorError, match="at 1: KeyError"):
        compare_step(body_of(failing, plan), plan, source_of(there, "output", "inserts", 1, 2))


# Before a start ---------------------------------------------------------------------------------------


def test_columns_are_those_of_tables_without_rows() -> None:
    plan = step_of([0], source_of(log_of([]), "i", "inserts"), source_of(log_of([]), "r", "contents"))

    def columns(function: Any) -> pa.Schema:
        return ArrowBodies(None, body_of(function, plan)).columns(plan)  # type: ignore[arg-type]

    def joined(inputs: Any, references: Any, time: int) -> pa.Table:
        both = inputs["i"].join(references["r"].rename_columns(["k", "m"]), "k")
        return both.append_column("u", pa.array([], pa.uint8())).append_column("t", pa.array([], pa.timestamp("ns")))

    assert columns(joined) == pa.schema(
        [("k", pa.string()), ("n", pa.int64()), ("m", pa.int64()), ("u", pa.int16()), ("t", pa.timestamp("us"))]
    )
    with pytest.raises(InvalidUsageError, match="its function failed without rows and output: KeyError"):
        columns(failing)
    with pytest.raises(InvalidUsageError, match="its function gave no rows to insert"):
        columns(lambda *_: Changes(delete=GOOD))
    with pytest.raises(InvalidUsageError, match=r"found NoneType in place of a pyarrow.Table"):
        columns(lambda *_: None)
    with pytest.raises(SchemaMismatchError, match="time64"):
        columns(lambda *_: pa.table({"x": pa.array([], pa.time64("us"))}))
