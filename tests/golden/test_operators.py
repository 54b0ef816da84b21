"""Texts of operators that stand in logs: fingerprints, outlines, folders of kept state, JSON of plans from SQL.

A dataflow that was saved with one of them is continued by them alone: another text is another plan. Each way to make an
operator is here once, from streams and from SQL. `operators.txt` and `plans.txt` have what they were first, and are
added to, never written again: `make golden-update` leaves them alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely import functions as tf
from spark_timely.compute.drive.plans import build
from spark_timely.compute.plan import plan_text
from spark_timely.compute.sql import plan_of_sql
from spark_timely.dataflow.fingerprint import plans_of
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import Replay
from spark_timely.time.domain import TimeDomain

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("gone", pa.bool_())])
IDS = {"/a": "id of a", "/b": "id of b", "/c": "id of c"}
KINDS: dict[str, Any] = {"/a": "stream", "/b": "stream", "/c": "collection"}


class Paper(Scope):
    """A dataflow that nobody runs: its logs are names."""

    times: tuple[str, ...] = ("long",)

    def replay(self, log: Any, /, **_: Any) -> Stream:
        path = str(log)
        if path not in self._leaves:
            domain = TimeDomain(self.times)
            self._leaves[path] = Replay(self.next_name("replay"), domain, SCHEMA, (), path, KINDS.get(path, "stream"))
            self._ids[path] = IDS.get(path, f"id of {path}")
        return Stream(self, self._leaves[path])


def one(rows: pa.Table) -> pa.Table:
    return rows.select(["n"])


def many(rows: pa.Table) -> pa.Table:
    return rows.select(["n"]).append_column("_row", pa.array(range(rows.num_rows), pa.int64()))


def at_a_time(time: object, rows: pa.Table) -> pa.Table:
    return rows.select(["n"])


def at_a_time_of_both(time: object, left: pa.Table, right: pa.Table) -> pa.Table:
    return left.select(["n"])


def of_key(key: object, rows: pa.Table) -> pa.Table:
    return rows.select(["n"]).slice(0, 1)


n = pc.field("n")
STREAMS: dict[str, Callable[[Stream, Stream, Stream], Stream | tuple[Stream, ...]]] = {
    "filter by SQL": lambda a, b, c: a.filter("n > 1 AND k LIKE 'x%'"),
    "filter by an expression": lambda a, b, c: a.filter((n > 1) & n.isin([1, 2, 3])),
    "branch by SQL": lambda a, b, c: a.branch("n > 1"),
    "branch by an expression": lambda a, b, c: a.branch(n > 1),
    "select": lambda a, b, c: a.select("k", "n", twice=n * 2),
    "select in another order": lambda a, b, c: a.select("n", "k"),
    "map": lambda a, b, c: a.map(one),
    "map of some columns": lambda a, b, c: a.map(one, columns=["n"]),
    "flat_map": lambda a, b, c: a.flat_map(many, columns=["n"]),
    "inspect": lambda a, b, c: a.inspect(lambda *_: None).select("n"),
    "concat": lambda a, b, c: a.concat(b, a),
    "as_updates": lambda a, b, c: a.as_updates(),
    "as_updates by a column": lambda a, b, c: a.as_updates("n"),
    "negate and concat": lambda a, b, c: c.concat(c.negate()),
    "consolidate": lambda a, b, c: c.consolidate(),
    "delay": lambda a, b, c: a.delay(tf.plus(3)),
    "several delays": lambda a, b, c: a.delay(tf.plus(3), tf.ceil_to(10), tf.windows(10, every=5)),
    "step_forward": lambda a, b, c: a.step_forward(),
    "times": lambda a, b, c: a.times_extract()[1].times_reduce(),
    "times by a column": lambda a, b, c: a.times_extract(diff="n")[1].times_reduce(),
    "aggregate of each time": lambda a, b, c: a.aggregate(
        by=["k"], m=tf.count(), s=tf.sum("n"), lo=tf.min("n"), hi=tf.max("k")
    ),
    "aggregate over history": lambda a, b, c: a.aggregate(
        by="k", over="history", z=tf.count(), s=tf.sum("n"), e=tf.avg("x")
    ),
    "aggregate of a collection": lambda a, b, c: c.aggregate(by="k", over="history", m=tf.count(), lo=tf.min("n")),
    "aggregate of all": lambda a, b, c: a.aggregate(over="history", m=tf.count()),
    "join": lambda a, b, c: a.join(b.select("k", m=n), on="k"),
    "join from the left": lambda a, b, c: a.join(b.select("k", m=n), on=["k"], how="left"),
    "join as of": lambda a, b, c: a.join(c.select("k", m=n), on="k", as_of=True),
    "join as of, strictly, from the left": lambda a, b, c: a.join(
        c.select("k", m=n), on="k", as_of=True, strict=True, how="left"
    ),
    "distinct": lambda a, b, c: c.select("k", "n").distinct(),
    "drop_duplicates": lambda a, b, c: a.drop_duplicates("k"),
    "drop_duplicates within": lambda a, b, c: a.drop_duplicates("k", within=10),
    "latest": lambda a, b, c: a.latest("k", order_by="n"),
    "latest with deletes": lambda a, b, c: a.latest("k", order_by=["n", "x asc"], deleted="gone"),
    "latest with deletes that are remembered": lambda a, b, c: a.latest(
        "k", order_by="n", deleted="gone", tombstones=9
    ),
    "latest under a name": lambda a, b, c: a.latest("k", order_by="n", name="newest"),
    "top": lambda a, b, c: a.top(3, by="k", order_by=["n", "x asc"]),
    "top of all": lambda a, b, c: c.top(1, order_by="n"),
    "reduce": lambda a, b, c: a.reduce(of_key, by="k"),
    "reduce of some columns": lambda a, b, c: c.reduce(of_key, by="k", columns=["n"]),
    "upsert": lambda a, b, c: a.upsert(keys="k", sequence_by="n", delete_when="gone", except_columns=["gone"]),
    "upsert that merges": lambda a, b, c: a.upsert(keys="k", sequence_by=["n"], ignore_null_updates=True),
    "upsert with versions": lambda a, b, c: a.upsert(keys="k", sequence_by="n", delete_when="gone", history=True),
    "upsert with deletes that are remembered": lambda a, b, c: a.upsert(
        keys="k", sequence_by="n", delete_when="gone", tombstones=9
    ),
    "upsert with truncates": lambda a, b, c: a.upsert(keys="k", sequence_by="n", truncate_when="gone"),
    "unary_notify": lambda a, b, c: a.unary_notify(at_a_time),
    "unary_notify, later": lambda a, b, c: a.unary_notify(at_a_time, columns=["n"], later=True),
    "binary_notify": lambda a, b, c: a.binary_notify(b, at_a_time_of_both, columns=(["n"], None)),
    "an operator over what another keeps": lambda a, b, c: a.latest("k", order_by="n").filter("n > 1"),
    "two over what one keeps": lambda a, b, c: (
        (newest := a.latest("k", order_by="n")).filter("n > 1"),
        newest.aggregate(by="gone", over="history", m=tf.count()),
    ),
}

SQL = {
    "a selection": "SELECT k, n FROM a WHERE n > 1",
    "a selection that renames": "SELECT n AS m, k FROM a",
    "values of groups": (
        "SELECT k, count(*) AS n, sum(n) AS s, avg(n) AS e, min(n) AS lo, max(n) AS hi FROM c GROUP BY k"
    ),
    "values with the names of parameters": "SELECT k AS by, count(*) AS over FROM c GROUP BY k",
    "having": "SELECT * FROM (SELECT k, count(*) AS n FROM c GROUP BY k) WHERE n > 1",
    "distinct": "SELECT DISTINCT k FROM c",
    "the greatest": "SELECT k, n FROM c ORDER BY n DESC LIMIT 3",
    "the newest of a key": "SELECT k, n FROM c QUALIFY row_number() OVER (PARTITION BY k ORDER BY n DESC) <= 1",
    "all of two": "SELECT k, n FROM a UNION ALL SELECT k, n FROM b",
    "each of two": "SELECT DISTINCT k FROM (SELECT k FROM c UNION ALL SELECT k FROM a)",
    "a join": "SELECT k, a.n, d.m FROM a ASOF JOIN (SELECT k, n AS m FROM c) AS d USING (k)",
    "a common table": "WITH t AS (SELECT k, n FROM c WHERE n > 1) SELECT k, sum(n) AS s FROM t GROUP BY k",
}


def made_texts(scope: Scope) -> list[str]:
    """Return path, fingerprint and outline of each output of a dataflow."""
    found = plans_of(scope.sinks, scope._ids)
    lines = []
    for sink in scope.sinks:
        plan = found[sink]
        lines += [f"{sink.path} {sink.stream} {plan.fingerprint}", *(f"  {line}" for line in plan.outline.split("\n"))]
    return lines


def written(make: Callable[[Scope], Stream | tuple[Stream, ...]]) -> list[str]:
    scope = Paper("flow")
    made = make(scope)
    for number, stream in enumerate(made if isinstance(made, tuple) else (made,)):
        stream.capture(f"/out{number}")
    return made_texts(scope)


def check(name: str, lines: list[str]) -> None:
    expected = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    assert lines == expected, "\n".join(difflib.unified_diff(expected, lines, name, "now", lineterm=""))


def test_operators_of_streams_have_their_texts() -> None:
    lines: list[str] = []
    for name, make in STREAMS.items():
        lines += [f"# {name}", *written(lambda scope, make=make: make(*map(scope.replay, IDS)))]  # type: ignore[misc]
    check("operators.txt", lines)


def test_plans_of_sql_have_their_texts() -> None:
    lines: list[str] = []
    names = dict.fromkeys("abc", SCHEMA)
    for name, text in SQL.items():
        plan = plan_of_sql(text, names)

        def make(scope: Scope, plan: Any = plan) -> Stream:
            return build(plan, scope, {path[1:]: scope.replay(path) for path in IDS})

        lines += [f"# {name}: {text}", plan_text(plan), *written(make)]
    check("plans.txt", lines)
