"""Logs of changes applied to tables, against a program that applies all changes anew at each time.

Random histories: late changes, equal sequences, nulls, deletes, tables that are emptied, several changes of a key at
one time. They are cut into ranges of times and of keys anywhere; rows come in any order. What is shown is compared at
every time, and what is kept must not depend on the cuts. Wrong operators that look right are kept as mutants, which
must be found.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.dataflow.engine import explain
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.history import merged, truncates, versions
from spark_timely.dataflow.history.base import Changes, Held
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.merged import EVENT, RESULT, Merged, flagged
from spark_timely.dataflow.history.truncates import TRUNCATES, Truncated
from spark_timely.dataflow.history.upsert import Upsert
from spark_timely.dataflow.history.versions import Versions, nearest_earlier
from spark_timely.dataflow.operators.rows import Select
from spark_timely.dataflow.remembered import Remembered, Result
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import View
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import rows_of, stream_of
from tests.oracles.upsert import Row, Rules, Shown, applied, within
from tests.property.test_dataflow import runner

N = 4_000 if os.environ.get("SPARK_TIMELY_LONG") else 30
UNTIL = 14
KEYS = ["a", "b", None]
SCHEMA = pa.schema(
    [
        ("_time", pa.int64()),
        ("k", pa.string()),
        ("s", pa.int64()),
        ("r", pa.int32()),
        ("v", pa.string()),
        ("w", pa.int64()),
        ("op", pa.string()),
    ]
)


@dataclass(frozen=True)
class Case:
    """What is wanted of a log of changes."""

    deletes: bool = False
    empties: bool = False
    merges: bool = False
    history: bool = False
    sequence: tuple[str, ...] = ("s",)
    columns: tuple[str, ...] = ("k", "s", "v", "w")
    keeps: int | None = None

    @property
    def rules(self) -> Rules:
        return Rules(
            ["k"],
            self.sequence,
            self.columns,
            (lambda row: row["op"] == "D") if self.deletes else (lambda _: False),
            (lambda row: row["op"] == "T") if self.empties else (lambda _: False),
            merges=self.merges,
            history=self.history,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "keys": "k",
            "sequence_by": self.sequence,
            "columns": self.columns,
            "delete_when": "op = 'D'" if self.deletes else None,
            "truncate_when": "op = 'T'" if self.empties else None,
            "ignore_null_updates": self.merges,
            "history": self.history,
            "tombstones": self.keeps,
        }


CASES = {
    "newest": Case(),
    "newest, deletes": Case(deletes=True),
    "newest, deletes, two of sequence, both hidden": Case(deletes=True, sequence=("s", "r"), columns=("w", "v", "k")),
    "newest, forgotten": Case(deletes=True, keeps=3),
    "newest, forgotten, hidden": Case(deletes=True, keeps=1, sequence=("s", "r"), columns=("k", "r", "w")),
    "merged": Case(merges=True),
    "merged, deletes": Case(merges=True, deletes=True),
    "merged, deletes, hidden": Case(merges=True, deletes=True, sequence=("s", "r"), columns=("w", "k", "v")),
    "merged, the key alone": Case(merges=True, deletes=True, columns=("k",)),
    "versions": Case(history=True),
    "versions, deletes": Case(history=True, deletes=True),
    "versions, deletes, hidden": Case(history=True, deletes=True, sequence=("r", "s"), columns=("k", "w", "s")),
    "merged versions": Case(history=True, merges=True),
    "merged versions, deletes": Case(history=True, merges=True, deletes=True),
    "merged versions, hidden": Case(True, False, True, True, ("s", "r"), ("v", "w", "k")),
    "emptied": Case(empties=True),
    "emptied, deletes": Case(empties=True, deletes=True),
    "emptied, merged": Case(empties=True, merges=True),
    "emptied, merged, deletes, hidden": Case(True, True, True, False, ("s", "r"), ("k", "v", "w")),
}


def history_of(rng: random.Random) -> list[tuple[int, Row]]:
    """Return changes; those of few keys and sequences, so that they meet."""
    rows = []
    empties = rng.choice([0.0, 0.05, 0.3])
    for _ in range(rng.randrange(1, 28)):
        time = rng.randrange(10)
        said = rng.choice(
            [time, time, time - rng.randrange(8), time + rng.randrange(3), None if rng.random() < 0.2 else 4]
        )
        op = "T" if rng.random() < empties else rng.choice("IUUDD" if rng.random() < 0.8 else ["U", None])
        values = {"v": rng.choice(["x", "y", None, None]), "w": rng.choice([1, 2, None])}
        rows.append((time, {"k": rng.choice(KEYS), "s": said, "r": rng.choice([0, 1]), **values, "op": op}))
    if rng.random() < 0.3:
        rows += rng.choices(rows, k=3)
    return rows


def operator_of(case: Case) -> tuple[Upsert, View, bool]:
    """Return the operator, what its rows are made by, and whether its state holds more than is shown."""
    view = stream_of(SCHEMA.empty_table()).upsert(**case.parameters).view
    hides = isinstance(view.operator, Result)
    if hides:
        # What is shown is read from a log of its own; whoever makes that knows it.
        scope = stream_of(SCHEMA.empty_table()).upsert(**case.parameters)._scope
        (view,) = scope._kept._leaves
    assert isinstance(view.operator, Remembered)
    (select,) = view.inputs
    assert isinstance(select.operator, Select)
    assert isinstance(view.operator.history, Upsert)
    return view.operator.history, select, hides


def plain(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


def rows_as_tuples(table: pa.Table) -> list[Shown]:
    return [tuple((name, plain(value)) for name, value in row.items()) for row in table.to_pylist()]


@dataclass
class Run:
    """All updates that an operator gave, and what it set apart."""

    updates: Counter[tuple[int, Shown]]
    apart: Counter[tuple[int, Shown]]


def driven(case: Case, history: list[tuple[int, Row]], rng: random.Random, operator: Upsert, select: View) -> Run:
    """Give an operator a history in ranges of times and of keys, and to each what it gave before."""
    found = Run(Counter(), Counter())
    cuts = sorted({0, UNTIL, *(rng.randrange(UNTIL) for _ in range(rng.choice([0, 0, 3, 20])))})
    parts: Sequence[Sequence[Any]] = rng.choice([[KEYS], [["a"], ["b", None]], [["b"], [None], ["a"]]])
    for lo, hi in itertools.pairwise(cuts):
        rows = [(time, row) for time, row in history if lo <= time < hi]
        rng.shuffle(rows)
        there: Counter[Shown] = Counter()
        for (time, shown), diff in found.updates.items():
            if time < lo:
                there[shown] += diff
        assert set(there.values()) <= {0, 1}
        for part in [KEYS] if case.empties else parts:
            mine = [(time, row) for time, row in rows if row["k"] in part]
            if not mine:
                continue
            table = pa.Table.from_pylist([{"_time": time, **row} for time, row in mine], schema=SCHEMA)
            given = select.operator.apply(select, [table], tuple(select.schema.names)).select(select.schema.names)
            held = [dict(shown) for shown, n in there.items() if n and (case.empties or dict(shown)["k"] in part)]
            rng.shuffle(held)
            columns = {f.name: pa.array([_dict(row[f.name]) for row in held], f.type) for f in given.schema}
            before = Held(None, np.ones(len(held), np.int64), pa.table(columns, schema=given.schema))
            changes = Changes(table["_time"].to_numpy(), np.ones(len(mine), np.int64), given)
            made = operator.advance(changes, before, None, of_updates=False)
            assert not ((made.times < lo) | ((made.times >= hi) & (not operator.later))).any()
            shown_rows = rows_as_tuples(made.rows.select(given.schema.names))
            assert len(set(zip(made.times.tolist(), shown_rows, strict=True))) == len(shown_rows)
            for time, diff, shown in zip(made.times.tolist(), made.diffs.tolist(), shown_rows, strict=True):
                assert diff
                found.updates[time, shown] += diff
            for number in [] if made.apart is None else made.apart.tolist():
                found.apart[mine[number][0], tuple(mine[number][1].items())] += 1
    found.updates = Counter({update: n for update, n in found.updates.items() if n})
    return found


def _dict(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


def compare(case: Case, seed: int, made: tuple[Upsert, View, bool]) -> None:
    rng = random.Random(seed)
    history = history_of(rng)
    operator, select, hides = made
    run = driven(case, history, rng, operator, select)
    if case.keeps is None:
        late = Counter((time, tuple(row.items())) for time, row in history if not case.rules.has_sequence(row))
        after = {time: applied([row for when, row in history if when <= time], case.rules) for time in range(UNTIL)}
    else:
        after, late = within(history, case.rules, case.keeps, range(UNTIL))
    assert run.apart == late
    there: Counter[Shown] = Counter()
    for time in range(UNTIL):
        for (when, shown), diff in run.updates.items():
            if when == time:
                there[shown] += diff
        assert all(n in (0, 1) for n in there.values()), time
        kept = [{name: _dict(value) for name, value in shown} for shown, n in there.items() if n]
        table = pa.Table.from_pylist(kept, schema=select.schema)
        seen = Counter(rows_as_tuples(operator.show(table) if hides else table))
        assert seen == after[time], (time, seen - after[time], after[time] - seen)
    assert driven(case, history, rng, operator, select).updates == run.updates


def compare_all(case: Case, n: int = N) -> None:
    made = operator_of(case)
    for seed in range(n):
        compare(case, seed, made)


@pytest.mark.parametrize("name", CASES)
def test_table_is_what_all_changes_say_however_they_come(name: str) -> None:
    compare_all(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_operators_of_a_dataflow_give_what_all_changes_say(name: str) -> None:
    case = CASES[name]
    for seed in range(5):
        history = history_of(random.Random(seed))
        table = pa.Table.from_pylist([{"_time": time, **row} for time, row in history], schema=SCHEMA)
        there: Counter[Shown] = Counter()
        for row in rows_of(stream_of(table).upsert(**case.parameters)):
            there[tuple((n, plain(v)) for n, v in row.items() if n not in ("_time", "_diff"))] += int(str(row["_diff"]))
        changes = [row for _, row in history]
        after = applied(changes, case.rules)
        if case.keeps is not None:
            after = within(history, case.rules, case.keeps, range(UNTIL))[0][UNTIL - 1]
        assert Counter({row: n for row, n in there.items() if n}) == after


@pytest.mark.parametrize("name", ["newest, deletes", "merged, deletes", "merged versions, deletes", "emptied, deletes"])
def test_runs_of_a_dataflow_over_logs_give_what_all_changes_say(name: str, tmp_path: Path) -> None:
    case, rng = CASES[name], random.Random(name)
    log = create_log(str(tmp_path / "changes"), pa.schema(list(SCHEMA)[1:]), minimum=(0,))
    writer, out = log.writer(owner="test"), str(tmp_path / "out")
    history: list[tuple[int, Row]] = sorted(history_of(rng) * 2 + history_of(rng), key=lambda each: each[0])
    for first in range(0, UNTIL, 4):
        mine = [{"_time": time, **row} for time, row in history if first <= time < first + 4]
        writer.append(pa.Table.from_pylist(mine, schema=SCHEMA), advance_to=first + 4)
        # Another process each time; the last one finds nothing to do.
        for workers, times in ((rng.choice([1, 3]), rng.choice([1, 2, None])), (1, None)):
            scope = Scope("flow")
            scope.replay(log).upsert(**case.parameters).capture(out)
            limits = Limits(times=times)
            engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, limits=limits, workers=workers)
            engine.advance(runner(scope.storage))
    table = open_log(out)
    assert table.frontier().to_json() == [16]
    for time in range(UNTIL):
        snapshot = table.snapshot(time)
        assert set(snapshot["_diff"].to_pylist()) <= {1}
        wanted = applied([row for when, row in history if when <= time], case.rules)
        assert Counter(rows_as_tuples(snapshot.drop_columns(["_diff"]))) == wanted
    late = sum(not case.rules.has_sequence(row) for _, row in history)
    (state,) = [open_log(sink.path) for sink in scope.sinks if sink.path != out]
    assert int(state.core.dead_files().rows.sum()) == late
    assert f"set apart {late:,} rows" in explain.explain(scope)


def test_late_change_does_not_bring_a_deleted_key_back() -> None:
    changes = {"_time": [1, 10, 11], "k": ["a"] * 3, "s": [1, 5, 3], "op": ["I", "D", "U"]}
    found = rows_of(stream_of(changes).upsert(keys="k", sequence_by="s", delete_when="op = 'D'", columns=["k", "s"]))
    assert found == [{"_time": 1, "_diff": 1, "k": "a", "s": 1}, {"_time": 10, "_diff": -1, "k": "a", "s": 1}]


def test_late_change_splits_the_version_that_it_falls_into() -> None:
    changes = {"_time": [1, 2, 3], "k": ["a"] * 3, "s": [10, 30, 20], "v": ["x", "z", "y"]}
    found = rows_of(stream_of(changes).upsert(keys="k", sequence_by="s", history=True), lower=[3])
    assert [(row["_diff"], row["v"], row["__START_AT"], row["__END_AT"]) for row in found] == [
        (-1, "x", 10, 30),
        (1, "x", 10, 20),
        (1, "y", 20, 30),
    ]


def test_nearest_earlier_of_random_runs() -> None:
    rng = random.Random(3)
    for _ in range(300):
        lengths = [rng.randrange(1, 12) for _ in range(rng.randrange(1, 5))]
        n = sum(lengths)
        times = rng.sample(range(n), n)
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        wanted = []
        for start, length in zip(starts, lengths, strict=True):
            for i in range(start, start + length):
                earlier = [j for j in range(start, i) if times[j] < times[i]]
                wanted.append(max(earlier, default=-1))
        assert nearest_earlier(np.array(times), np.array(starts)).tolist() == wanted


# Wrong ways, which must be found ----------------------------------------------------------------------


def without(rows: pa.Table, flag: str) -> np.ndarray:
    return np.flatnonzero(~np.asarray(rows.column(flag).to_numpy(), np.bool_))


def taken(changes: Changes, numbers: np.ndarray) -> Changes:
    rows = changes.rows.take(pa.array(numbers))
    return Changes(changes.times[numbers], changes.diffs[numbers], rows, changes.apart)


def forgets(flag: str, of: type[Any], patch: pytest.MonkeyPatch) -> None:
    found = of.advance

    def advance(self: Any, *given: Any, of_updates: bool) -> Changes:
        made = found(self, *given, of_updates=of_updates)
        return taken(made, without(made.rows, flag))

    patch.setattr(of, "advance", advance)


def deletes_leave_nothing(patch: pytest.MonkeyPatch) -> None:
    """Without tombstones: an older change that comes late brings a key back."""
    forgets(DELETED, Upsert, patch)


def emptying_leaves_nothing(patch: pytest.MonkeyPatch) -> None:
    """An older change that comes late is there again after the table was emptied."""
    forgets(TRUNCATES, Truncated, patch)


def the_last_to_come_wins(patch: pytest.MonkeyPatch) -> None:
    """The newest row of each time replaces what is there, as with a MERGE in each micro-batch."""
    found = Best.advance

    def advance(self: Best, changes: Changes, held: Held, *given: Any, of_updates: bool) -> Changes:
        now = {row["k"]: row for row in held.rows.to_pylist()}
        made: list[tuple[int, int, Row]] = []
        nothing = Held(None, held.counts[:0], held.rows.slice(0, 0))
        for time in np.unique(changes.times).tolist():
            mine = taken(changes, np.flatnonzero(changes.times == time))
            for row in found(self, mine, nothing, *given, of_updates=of_updates).rows.to_pylist():
                made += [(time, 1, row), *([(time, -1, now[row["k"]])] if row["k"] in now else [])]
                now[row["k"]] = row
        rows = pa.Table.from_pylist([row for _, _, row in made], schema=changes.rows.schema)
        times, diffs = (np.array([each[i] for each in made], np.int64) for i in (0, 1))
        return Changes(times, diffs, rows)

    patch.setattr(Best, "advance", advance)


def the_sequence_alone_decides(patch: pytest.MonkeyPatch) -> None:
    """Of equal sequences the one that comes first stays, a delete or not."""
    found = Best.advance

    def advance(self: Best, changes: Changes, held: Held, *given: Any, of_updates: bool) -> Changes:
        return found(replace(self, deleted=False), changes, held, *given, of_updates=of_updates)

    patch.setattr(Best, "advance", advance)


def the_row_is_all_that_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A late change is merged into the row as it is: its columns have no sequences of their own."""
    found = Merged.advance

    def advance(self: Merged, changes: Changes, held: Held, *given: Any, of_updates: bool) -> Changes:
        kept = np.flatnonzero(np.asarray(held.rows.column(RESULT).to_numpy(), np.bool_) | ~without_flag(held.rows))
        rows = flagged(held.rows.take(pa.array(kept)), **{EVENT: True})
        return found(self, changes, Held(None, held.counts[kept], rows), *given, of_updates=of_updates)

    patch.setattr(Merged, "advance", advance)


def without_flag(rows: pa.Table) -> np.ndarray:
    """Return which rows delete nothing."""
    gone = np.zeros(rows.num_rows, np.bool_)
    return ~(np.asarray(rows.column(DELETED).to_numpy(), np.bool_) if DELETED in rows.schema.names else gone)


def columns_outlive_a_delete(patch: pytest.MonkeyPatch) -> None:
    """A column without a value since a delete has the one from before."""
    patch.setattr(merged, "_since", lambda deletion, places: places)


def versions_end_where_the_next_is(patch: pytest.MonkeyPatch) -> None:
    """What comes later ends a version before it comes."""

    def nearest(times: np.ndarray, starts: np.ndarray) -> np.ndarray:
        found = np.arange(times.shape[0]) - 1
        found[starts] = -1
        return found

    patch.setattr(versions, "nearest_earlier", nearest)


def deletes_end_nothing(patch: pytest.MonkeyPatch) -> None:
    """A delete is left out of a history."""
    found = Versions.advance

    def advance(self: Versions, changes: Changes, held: Held, *given: Any, of_updates: bool) -> Changes:
        changes = taken(changes, without(changes.rows, DELETED))
        return found(self, changes, held, *given, of_updates=of_updates)

    patch.setattr(Versions, "advance", advance)


def each_change_is_a_version(patch: pytest.MonkeyPatch) -> None:
    """Of equal sequences each makes a version, of no length."""
    found = versions.ranks_of

    def ranks(rows: pa.Table, *given: Any, **named: Any) -> np.ndarray:
        ranked: np.ndarray = found(rows, *given, **named)
        return ranked if "v" in rows.schema.names else np.arange(rows.num_rows)

    patch.setattr(versions, "ranks_of", ranks)


def late_changes_append(patch: pytest.MonkeyPatch) -> None:
    """A late change does not end where the version that it splits ended."""
    found = versions._with_ends

    def ends(rows: pa.Table, all_rows: pa.Table, following: Any, still: np.ndarray) -> pa.Table:
        return found(rows, all_rows, following, np.ones_like(still))

    patch.setattr(versions, "_with_ends", ends)


def emptying_takes_its_own_sequence(patch: pytest.MonkeyPatch) -> None:
    """What comes with the emptying of the table, in one transaction, is gone too."""
    found = Truncated.advance

    def advance(self: Truncated, *given: Any, of_updates: bool) -> Changes:
        order = tuple((name, True) for name, _ in self.inner.order)  # type: ignore[attr-defined]
        inner = replace(self.inner, order=order)  # type: ignore[type-var]
        return found(replace(self, inner=inner), *given, of_updates=of_updates)

    patch.setattr(Truncated, "advance", advance)


def emptying_takes_what_is_there(patch: pytest.MonkeyPatch) -> None:
    """The table is emptied of all rows, also of those that are newer."""
    found = truncates.Truncated._deletions

    def deletions(self: Truncated, last: pa.Table, *given: Any) -> pa.Table:
        at = last.schema.get_field_index("s")
        newest = pa.array(np.full(last.num_rows, 99, np.int64))
        return found(self, last.set_column(at, last.schema.field(at), newest), *given)

    patch.setattr(truncates.Truncated, "_deletions", deletions)


MUTANTS = [
    (deletes_leave_nothing, "newest, deletes"),
    (deletes_leave_nothing, "merged, deletes"),
    (deletes_leave_nothing, "versions, deletes"),
    (the_last_to_come_wins, "newest"),
    (the_sequence_alone_decides, "newest, deletes"),
    (the_row_is_all_that_is_kept, "merged"),
    (the_row_is_all_that_is_kept, "merged, deletes"),
    (columns_outlive_a_delete, "merged, deletes"),
    (versions_end_where_the_next_is, "versions"),
    (deletes_end_nothing, "versions, deletes"),
    (each_change_is_a_version, "versions"),
    (late_changes_append, "versions"),
    (late_changes_append, "merged versions"),
    (emptying_leaves_nothing, "emptied"),
    (emptying_leaves_nothing, "emptied, merged"),
    (emptying_takes_its_own_sequence, "emptied"),
    (emptying_takes_what_is_there, "emptied, deletes"),
]


@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=lambda each: getattr(each, "__name__", each))
def test_wrong_ways_to_apply_changes_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        compare_all(CASES[name])
