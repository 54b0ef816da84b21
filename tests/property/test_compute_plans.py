"""Queries as plans against DuckDB: random queries, collections and streams, cuts, limits, restarts and kills.

DuckDB runs the text itself over what the imports hold at a time. What the plan has given up to that time must be the
same rows, each as often, at every complete time. ``ASOF JOIN`` is the library's own: of it DuckDB runs a plain join of
the events of each time with the other side as of that time.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from spark_timely.compute import sql
from spark_timely.compute.drive.plans import build
from spark_timely.compute.plan import Node, parse_plan, plan_text
from spark_timely.compute.sql import plan_of_sql
from spark_timely.dataflow.aggregates import Aggregation
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Distinct, Latest, Top
from spark_timely.dataflow.operators.rows import Concat, Filter, Select
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import Operator
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from tests.faults.harness import long_lane
from tests.property.test_dataflow import KilledError, killed_at, runner

ROWS = pa.schema(
    [("k", pa.string()), ("j", pa.int64()), ("n", pa.int64()), ("d", pa.decimal128(9, 2)), ("w", pa.int64())]
)
SIDE = pa.schema([("k", pa.string()), ("n", pa.int64()), ("m", pa.int32())])
# The collections c and b, and the stream s: of one shape c and s, so that they can be put together.
SCHEMAS = {"c": ROWS, "s": ROWS, "b": SIDE}
KINDS = {"c": "collection", "s": "stream", "b": "collection"}
END = 12
Row = tuple[Any, ...]
Update = tuple[int, Row, int]


# Queries ------------------------------------------------------------------------------------------


def condition(rng: random.Random) -> str:
    c = rng.randint(-3, 6)
    plain = [
        f"n > {c}", "k = 'a'", "k IS NULL", "n IS NOT NULL AND NOT (j = 1)", f"n IN (1, 2, {c})", "k LIKE 'a%'",
        f"n + j > {c}", f"n BETWEEN {c} AND {c + 3}", "d >= 1.5", f"k <> 'b' OR n < {c}", f"NOT n = {c}",
        f"j NOT IN (1, {c})", "NOT (k = 'a' OR k IS NULL)", f"w * 2 <> {c}", "d = n", "k NOT LIKE '%b'",
    ]  # fmt: skip
    return " AND ".join(rng.sample(plain, rng.choice([1, 1, 2])))


def order(rng: random.Random, columns: Sequence[str]) -> str:
    """All columns: what SQL leaves open where rows are equal in an order is not asked for."""
    ways = ["", " ASC", " DESC", " DESC NULLS LAST", " ASC NULLS FIRST"]
    return ", ".join(f"{column}{rng.choice(ways)}" for column in rng.sample(columns, len(columns)))


def window(rng: random.Random) -> str:
    keys = rng.choice(["PARTITION BY k ", "PARTITION BY k, j ", "PARTITION BY j ", ""])
    return f"row_number() OVER ({keys}ORDER BY {order(rng, ROWS.names)})"


def bound(rng: random.Random, rank: str) -> str:
    n = rng.randint(1, 3)
    return rng.choice([f"{rank} = 1", f"{rank} <= {n}", f"{rank} < {n + 1}", f"{n} >= {rank}", f"1 = {rank}"])


def where(rng: random.Random, often: float = 0.5) -> str:
    return f" WHERE {condition(rng)}" if rng.random() < often else ""


def ranked(rng: random.Random, of: str) -> str:
    if rng.random() < 0.4:
        return f"SELECT * FROM {of}{where(rng)} QUALIFY {bound(rng, window(rng))}"
    more = f" AND ({condition(rng)})" if rng.random() < 0.4 else ""
    inner = f"SELECT *, {window(rng)} AS rn FROM {of}{where(rng)}"
    if rng.random() < 0.3:
        return f"WITH q AS ({inner}) SELECT * EXCEPT (rn) FROM q WHERE {bound(rng, 'rn')}{more}"
    return f"SELECT {', '.join(ROWS.names)} FROM ({inner}) AS q WHERE {bound(rng, 'q.rn')}{more}"


def relation(rng: random.Random, depth: int) -> str:
    """Return what may stand behind FROM, with the columns of `ROWS`."""
    kind = rng.random()
    if depth == 0 or kind < 0.45:
        return rng.choice(["c", "s", "C"])
    if kind < 0.6:
        return f"(SELECT * FROM {relation(rng, depth - 1)}{where(rng)}) AS q"
    if kind < 0.75:
        return f"(SELECT * FROM {relation(rng, depth - 1)} UNION ALL SELECT * FROM {relation(rng, depth - 1)}) q"
    if kind < 0.85:
        return f"(SELECT DISTINCT * FROM {relation(rng, depth - 1)}) q"
    return f"({ranked(rng, relation(rng, depth - 1))}) q"


def aggregate(rng: random.Random, of: str, columns: Sequence[str] = ("n", "j", "d", "w")) -> str:
    keys = rng.choice([["k"], ["k"], ["j"], ["k", "j"]]) if "j" in columns else ["k"]
    numbers = [column for column in columns if column not in keys]
    values = ["COUNT(*)", "COUNT(1)"]
    values += [f"{name}({column})" for name in ("COUNT", "SUM", "MIN", "MAX") for column in [*numbers, *keys]]
    values = [value for value in values if value != "SUM(k)"] + ["AVG(n)"]
    named = [f"{value} AS v{i}" for i, value in enumerate(rng.sample(values, rng.randint(1, 3)))]
    if rng.random() < 0.1:
        named = []
    shown_keys = [key for key in keys if rng.random() < 0.9 or not named]
    items = [f"{key} AS g{key}" if rng.random() < 0.3 else key for key in shown_keys] + named
    return f"SELECT {', '.join(rng.sample(items, len(items)))} FROM {of}{where(rng)} GROUP BY {', '.join(keys)}"


def query(rng: random.Random) -> str:
    """Return a query that has a plan."""
    of = relation(rng, rng.choice([0, 1, 1, 2]))
    kind = rng.randrange(7)
    if kind == 0:
        items = rng.sample(["k", "n AS m", "N", "d", "j AS k2"], rng.randint(1, 4))
        items = items if sum(item.lower().startswith("n") for item in items) < 2 else ["k", "n"]
        return f"SELECT {rng.choice(['', '', 'DISTINCT '])}{', '.join(items)} FROM {of}{where(rng, 0.8)}"
    if kind == 1:
        return ranked(rng, of)
    if kind == 2:
        columns = rng.sample(ROWS.names, rng.randint(1, 5))
        first = f"ORDER BY {order(rng, columns)} LIMIT {rng.randint(1, 4)}"
        return f"SELECT {', '.join(columns)} FROM {of}{where(rng)} {first}"
    if kind == 3:
        return f"SELECT k, n FROM {of}{where(rng)} UNION ALL SELECT k, j AS x FROM c{where(rng)}"
    return aggregate(rng, of)


def as_of_query(rng: random.Random) -> tuple[str, str | None]:
    """Return a query of an as-of join, and one of what it gives."""
    how = rng.choice(["", "LEFT "])
    newest = "(SELECT * FROM b QUALIFY row_number() OVER (PARTITION BY k ORDER BY m DESC, n DESC) = 1) AS b"
    items = rng.choice(["s.k, s.n, m", "k, s.n, b.n AS bn, b.m AS bm", "w, s.k, m"])
    left = rng.choice(["s", "s", f"(SELECT k, n, w FROM s WHERE {condition(rng)}) AS s"])
    joined = f"SELECT {items} FROM {left} ASOF {how}JOIN {rng.choice(['b', newest])} USING (k)"
    if rng.random() < 0.2:  # a star, in which the columns joined by come first
        joined = f"{STAR} {how}JOIN (SELECT m, k FROM b) AS b USING (k)"
    if rng.random() < 0.4:
        joined += rng.choice([" WHERE m > 1", " WHERE s.n > 0 OR m IS NULL"])
    over = [
        None,
        None,
        f"SELECT k, COUNT(*) AS c, SUM({'bm' if ' bm' in joined else 'm'}) AS t FROM (…) GROUP BY k",
        "SELECT DISTINCT k FROM (…)",
    ]
    return joined, rng.choice(over)


@dataclass
class Case:
    """A query, and what DuckDB says of it."""

    text: str
    joined: str | None = None
    over: str | None = None

    pairs: list[pa.Table] = field(default_factory=list)

    def expected(self, world: World, time: int) -> Counter[Row]:
        if self.joined is None:
            return Counter(world.duck(time).execute(in_duckdb(self.text)).fetchall())
        plain = in_duckdb(self.joined).replace("ASOF ", "")
        for at in range(len(self.pairs), time + 1):  # later changes rewrite nothing
            self.pairs.append(world.duck(at, only="s").sql(plain).to_arrow_table())
        DUCK.register("pairs", pa.concat_tables(self.pairs))
        over = self.over or "SELECT * FROM (…)"
        return Counter(DUCK.execute(over.replace("(…)", "pairs")).fetchall())


# As Spark has it. A connection takes long to make.
DUCK = duckdb.connect(config={"threads": 1})
DUCK.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")


STAR = "SELECT * FROM (SELECT n, k FROM s) AS s ASOF"


def in_duckdb(text: str) -> str:
    # In a star DuckDB has the columns joined by where the left side has them. Spark has them first.
    return text.replace("* EXCEPT (", "* EXCLUDE (").replace(STAR, f"SELECT k, n, m{STAR.removeprefix('SELECT *')}")


def cases(rng: random.Random, n: int) -> list[Case]:
    found = []
    for _ in range(n):
        if rng.random() < 0.2:
            joined, over = as_of_query(rng)
            found.append(Case(joined if over is None else over.replace("…", joined), joined, over))
        else:
            found.append(Case(query(rng)))
    return found


# Histories ----------------------------------------------------------------------------------------


def row(rng: random.Random, name: str) -> Row:
    k = rng.choice(["a", "b", "ab", None])
    if name == "b":
        return k, rng.choice([None, 1, 2]), rng.randint(0, 3)
    numbers = [None if rng.random() < 0.15 else rng.randint(-2, 5) for _ in range(3)]
    cents = None if rng.random() < 0.15 else Decimal(rng.randint(-200, 500)).scaleb(-2)
    return k, numbers[0] and numbers[0] % 3, numbers[1], cents, numbers[2]


def updates(rng: random.Random, name: str) -> list[Update]:
    """Return what happens to an import, in order of time; of a collection rows come and go, some twice."""
    there: Counter[Row] = Counter()
    found = []
    for _ in range(rng.choice([0, 6, 14, 20])):
        time = rng.randrange(END)
        found.append((time, row(rng, name), 1))
    found.sort(key=lambda update: update[0])
    made: list[Update] = []
    for time, each, diff in found:
        if KINDS[name] == "collection":
            held = [x for x, count in there.items() if count]
            if held and rng.random() < 0.4:
                each, diff = rng.choice(held), -1
            elif rng.random() < 0.2:
                each = rng.choice(held) if held else each
            there[each] += diff
        made.append((time, each, diff))
    return made


@dataclass
class World:
    """Logs, and a dataflow of several plans over them."""

    folder: Path
    rng: random.Random
    cases: list[Case]
    history: dict[str, list[Update]] = field(default_factory=dict)
    shown: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self.history = {name: updates(self.rng, name) for name in SCHEMAS}
        self.logs = {
            name: create_log(str(self.folder / name), schema, minimum=(0,), kind=KINDS[name])
            for name, schema in SCHEMAS.items()
        }
        self.texts = [plan_text(plan_of_sql(case.text, SCHEMAS)) for case in self.cases]
        self.limits = Limits(times=self.rng.choice([None, None, 1, 3]))
        self.workers = self.rng.choice([None, 1, 3])

    def engine(self) -> Engine:
        scope = Scope("flow")
        streams = {name: scope.replay(open_log(log.path)) for name, log in self.logs.items()}
        for i, text in enumerate(self.texts):
            build(parse_plan(text), scope, streams).capture(str(self.folder / f"out{i}"))
        self.storage = scope.storage
        return Engine(
            "flow",
            scope.sinks,
            scope.storage,
            files_of=catalog_of,
            limits=self.limits,
            workers=self.workers,
            now=ManualClock(),
        )

    def commits(self) -> list[tuple[str, list[Update], int]]:
        """Cut what happens into appends: an update comes before its time is complete, or long before."""
        found = []
        for name, all_updates in self.history.items():
            ends = sorted({*self.rng.sample(range(1, END), self.rng.randint(0, 3)), END})
            lowers = [0, *ends[:-1]]
            parts: list[list[Update]] = [[] for _ in ends]
            for update in all_updates:
                open_at = [i for i, lower in enumerate(lowers) if lower <= update[0]]
                parts[self.rng.choice(open_at)].append(update)
            found.append([(name, part, end) for part, end in zip(parts, ends, strict=True)])
        mixed = []
        while any(found):
            mixed.append(self.rng.choice([each for each in found if each]).pop(0))
        return mixed

    def write(self, name: str, part: list[Update], end: int) -> None:
        columns: dict[str, pa.Array] = {"_time": pa.array([time for time, _, _ in part], pa.int64())}
        if KINDS[name] == "collection":
            columns["_diff"] = pa.array([diff for _, _, diff in part], pa.int64())
        for i, each in enumerate(SCHEMAS[name]):
            columns[each.name] = pa.array([values[i] for _, values, _ in part], each.type)
        self.logs[name].writer(owner="test").append(pa.table(columns), advance_to=end)

    def run(self) -> None:
        engine = self.engine()
        for commit in self.commits():
            self.write(*commit)
            turn = self.rng.random()
            if turn < 0.1:
                killed_at(engine, self.rng.randrange(6))
                with contextlib.suppress(KilledError):
                    engine.advance(runner(self.storage))
                engine = self.engine()
            elif turn < 0.4:
                engine.advance(runner(self.storage))
        if self.rng.random() < 0.3:
            engine = self.engine()
        while engine.advance(runner(self.storage)):
            pass

    def duck(self, time: int, *, only: str = "") -> duckdb.DuckDBPyConnection:
        """Return DuckDB with what the imports hold at a time; of one of them what is of this time alone."""
        if self.shown != (time, only):
            for name in SCHEMAS:
                DUCK.register(name, self.contents(name, time, only=name == only))
            self.shown = time, only
        return DUCK

    def contents(self, name: str, time: int, *, only: bool) -> pa.Table:
        """Return the rows of an import at a time; of a stream all messages up to it."""
        there: Counter[Row] = Counter()
        for at, values, diff in self.history[name]:
            if at == time if only else at <= time:
                there[values] += diff
        rows = list(there.elements())
        return pa.table(
            {each.name: pa.array([values[i] for values in rows], each.type) for i, each in enumerate(SCHEMAS[name])}
        )

    def differences(self) -> list[str]:
        """Return what the outputs have that they should not, and the reverse."""
        wrong = []
        found: list[list[tuple[int, Row, int]]] = []
        for i, case in enumerate(self.cases):
            log = open_log(str(self.folder / f"out{i}"))
            if log.frontier().elements != ((END,),):
                wrong.append(f"{case.text}: stuck at {log.frontier()}")
            names = list(log.schema.names)
            rows = log.messages().to_pylist()
            found.append([(each["_time"], tuple(each[n] for n in names), each.get("_diff", 1)) for each in rows])
        for time in sorted({at for changes in self.history.values() for at, _, _ in changes} | {0}):
            for i, case in enumerate(self.cases):
                there: Counter[Row] = Counter()
                for at, values, diff in found[i]:
                    if at <= time:
                        there[values] += diff
                there = Counter({values: count for values, count in there.items() if count})
                wanted = case.expected(self, time)
                if there != wanted:
                    more, less = dict(there - wanted), dict(wanted - there)
                    wrong.append(f"{case.text}\n  at {time}: only found {more}, only wanted {less}")
        return wrong


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(300 if long_lane() else 9))
def test_plans_of_queries_give_what_duckdb_gives_at_each_time(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, rng, cases(rng, 8))
    world.run()
    assert world.differences() == []


# Mutants ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def in_place(name: str, make: Callable[[Any], Any]) -> Patch:
    """Put something else in the place of what makes a node, or of a method of the planner."""
    owner: Any = sql._Planner if name.startswith("_") else sql

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))

    return patch


def counts_rows(value: Any) -> Any:
    def mutant(*given: Any) -> Any:
        kind, column, is_float = value(*given)
        return kind, None if kind == "count" else column, is_float

    return mutant


def of_kind(kind: type[Operator], change: Callable[..., Node]) -> Patch:
    """Make another node of an operator of a kind."""

    def mutant(made: Any) -> Any:
        return lambda operator, *inputs: (change if isinstance(operator, kind) else made)(operator, *inputs)

    return in_place("Node", mutant)


def one_key(aggregate: Aggregate, of: Node) -> Node:
    values = {**aggregate.values, "j": Aggregation("min", "j")}
    return Node(replace(aggregate, by=aggregate.by[:1], values=values), of)


def filters_first(condition: Filter, of: Node) -> Node:
    if isinstance(of.operator, Latest | Top):
        return Node(of.operator, Node(condition, *of.inputs))
    return Node(condition, of)


def once_each(concat: Concat, *inputs: Node) -> Node:
    distinct = tuple(dict.fromkeys(inputs))
    return Node(concat, *distinct) if len(distinct) > 1 else distinct[0]


def swapped(aggregate: Aggregate, of: Node) -> Node:
    other = {"min": "max", "max": "min"}
    values = {name: replace(each, kind=other.get(each.kind, each.kind)) for name, each in aggregate.values.items()}
    return Node(replace(aggregate, values=values), of)


def pairs_alone(joined: Any) -> Any:
    return replace(joined, node=Node(replace(joined.node.operator, how="inner"), *joined.node.inputs))


NEWEST = "row_number() OVER (PARTITION BY k ORDER BY w DESC, n ASC, d, j DESC)"
MUTANTS: dict[str, tuple[str, Patch]] = {
    "every order descends": (
        f"SELECT * FROM c QUALIFY {NEWEST} = 1",
        in_place("_ways", lambda ways: lambda *given: tuple((name, "desc") for name, _ in ways(*given))),
    ),
    "< n is <= n": (
        f"SELECT * FROM s QUALIFY {NEWEST} < 3",
        in_place("_bound", lambda bound: lambda *given: bound(*given) + 1),
    ),
    "one of two keys": (
        "SELECT k, j, COUNT(*) AS v FROM c GROUP BY k, j",
        of_kind(Aggregate, one_key),
    ),
    "COUNT(x) counts rows": (
        "SELECT k, COUNT(n) AS v FROM c GROUP BY k",
        in_place("_value", counts_rows),
    ),
    "least and greatest swapped": (
        "SELECT k, MIN(n) AS v, MAX(d) AS w FROM s GROUP BY k",
        of_kind(Aggregate, swapped),
    ),
    "a condition before the first rows are kept": (
        f"SELECT k, n FROM (SELECT *, {NEWEST} AS rn FROM c) WHERE rn = 1 AND n > 1",
        of_kind(Filter, filters_first),
    ),
    "a condition beside row_number() forgotten": (
        f"SELECT k, n FROM (SELECT *, {NEWEST} AS rn FROM c) WHERE rn <= 2 AND n > 1",
        in_place("_first", lambda first: lambda *given: (first(*given)[0], [])),
    ),
    "equal parts of UNION ALL once": (
        "SELECT k, n FROM c UNION ALL SELECT k, n FROM c",
        of_kind(Concat, once_each),
    ),
    "UNION ALL by names": (
        "SELECT j, n FROM c UNION ALL SELECT n, j FROM s",
        in_place(
            "_projected", lambda made: lambda self, of, columns: made(self, of, tuple((n, n) for n, _ in columns))
        ),
    ),
    "DISTINCT left out": (
        "SELECT DISTINCT k FROM s",
        of_kind(Distinct, lambda _, of: of),
    ),
    "GROUP BY without aggregates is a projection": (
        "SELECT j FROM c GROUP BY k, j",
        of_kind(Distinct, lambda _, of: of),
    ),
    "LEFT left out": (
        "SELECT s.k, s.n, m FROM s ASOF LEFT JOIN b USING (k)",
        in_place("_joined", lambda joined: lambda *given: pairs_alone(joined(*given))),
    ),
    "columns in the order of the table": (
        "SELECT n, j FROM c",
        of_kind(Select, lambda chosen, of: Node(Select(tuple(sorted(chosen.columns))), of)),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, patch = MUTANTS[name]

    def differences(folder: Path, seed: int) -> list[str]:
        folder.mkdir()
        world = World(folder, random.Random(seed), [Case(text, text if "ASOF" in text else None)])
        world.run()
        return world.differences()

    for seed in (11, *range(20)):  # a history that tells all of them apart
        with monkeypatch.context() as mutated:
            patch(mutated)
            found = differences(tmp_path / f"mutated {seed}", seed)
        if found:
            assert not differences(tmp_path / f"as it is {seed}", seed)
            return
    pytest.fail("no history tells them apart")
