"""Names in SQL: what is accepted means the same in every session. The oracle is Spark's own analysis of the text."""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_timely as st
from spark_timely.continual.body import Statement, check_columns, read_query
from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from tests.faults.harness import long_lane, tell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200 if long_lane() else 300)]

STRUCT = "STRUCT<f: INT, sv: INT>"
COLUMNS = {
    "l": {"k": "INT", "s": "INT", "user": "STRING", "d": STRUCT, "date": "DATE", "xs": "ARRAY<INT>"},
    "m": {"k": "INT", "current_date": "STRING", "mine": "INT", "l": STRUCT, "rows": "INT", "day": "INT"},
}
# Variables of the session: some have names of columns, of tables, of fields, and of words of the grammar.
VARIABLES = {
    "sv": "5", "mine": "6", "s": "7", "rows": "8", "day": "'DAY'", "a": "9", "b": "10", "col": "11", "q": "12",
    "l": "named_struct('k', 13, 'sv', 14)", "m": "named_struct('sv', 15)", "d": "named_struct('f', 16, 'g', 17)",
    "date": "DATE '2001-01-01'", "now": "18", "x": "19", "first": "20", "col1": "21", "id": "22", "pos": "23",
    "f": "24", "session": "named_struct('k', 25)", "unit": "'MONTH'", "t": "named_struct('k', 26)",
}  # fmt: skip
PLACES = ("l", "m", "q", "t", "session", "system.session", "o", "d", "a")
NAMES = (
    *COLUMNS["l"], *COLUMNS["m"], *VARIABLES, "user", "current_date", "current_timestamp", "current_user",
    "session_user", "current_path", "current_time", "localtimestamp", "`user`", "`current_date`", "`sv`", "K", "SV",
)  # fmt: skip
# What Spark shows of an expression that depends on the session.
DEPENDS = re.compile(
    r"variablereference\(|current_user\(|current_date\(|current_timestamp\(|current_time\(|current_path\("
    r"|localtimestamp\(|session_user\(|\buser\(\)"
)


class Draw:
    """A text, drawn."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        # Names that are drawn more often: most texts are queries then.
        self._likely = [["k"]]

    def text(self) -> str:
        rng = self._rng
        if rng.random() < 0.2:
            columns = rng.choice(["", "(a)", "(a, b)"])
            return f"WITH q{columns} AS ({self.select(2)}) {self.select(2, ('q',))}"
        if rng.random() < 0.1:
            tail = f" ORDER BY {self.name()}" if rng.random() < 0.5 else ""
            return f"{self.select(2)} UNION {rng.choice(['', 'ALL '])}{self.select(2)}{tail}"
        return self.select(3)

    def select(self, depth: int, tables: tuple[str, ...] = ()) -> str:
        rng = self._rng
        self._likely.append([])
        source = self.source(depth, tables)
        said = ["SELECT", rng.choice(["", "", "", "DISTINCT"])]
        said.append(", ".join(self.item(depth) for _ in range(rng.randint(1, 3))))
        if rng.random() < 0.97:
            said += ["FROM", source]
        if rng.random() < 0.3:
            said += ["WHERE", self.condition(depth)]
        grouped = rng.random() < 0.25
        if grouped:
            kind = rng.choice(["{}", "{}", "{}, {}", "ROLLUP ({})", "GROUPING SETS (({}), ())"])
            said += ["GROUP BY", kind.format(self.name(), self.name())]
            if rng.random() < 0.5:
                said += ["HAVING", self.condition(depth)]
        if rng.random() < 0.25 and depth == 3:
            said += ["ORDER BY", self.value(1)]
        if rng.random() < 0.05:
            said += ["LIMIT", rng.choice(["3", "sv", "k"])]
        self._likely.pop()
        return " ".join(word for word in said if word)

    def item(self, depth: int) -> str:
        rng = self._rng
        drawn = rng.random()
        if drawn < 0.08:
            return rng.choice(["*", "l.*", "d.*", "* EXCEPT (k)", "m.*", "sv.*"])
        alias = rng.choice(["", "", f" AS {rng.choice(['a', 'b', 'sv', 'user', 'x', 'current_date', 'mine'])}", " sv"])
        return self.value(depth) + alias

    def source(self, depth: int, tables: tuple[str, ...]) -> str:
        rng = self._rng
        said = self.table(depth, tables)
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            kind = rng.choice(["JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN", "CROSS JOIN", ",", ", LATERAL"])
            if kind == ", LATERAL":
                said += f", LATERAL ({self.select(1, ())}) {rng.choice(['', 't', 't(a)'])}"
            elif kind in (",", "CROSS JOIN"):
                said += f" {kind} {self.table(depth, tables)}"
            else:
                how = rng.choice([f"ON {self.condition(1)}", "USING (k)"])
                said += f" {kind} {self.table(depth, tables)} {how}"
        if rng.random() < 0.1:
            function = rng.choice(["explode(xs)", "posexplode(xs)", "explode(array(sv, k))", "stack(2, k, sv)"])
            said += f" LATERAL VIEW {function} t{rng.choice(['', ' AS a', ' AS pos, col'])}"
        if rng.random() < 0.04:
            said += " PIVOT (sum(k) FOR s IN (1 AS a, 2 AS b))"
        return said

    def table(self, depth: int, tables: tuple[str, ...]) -> str:
        rng = self._rng
        if depth > 1 and rng.random() < 0.2:
            self._likely[-1] += ["k", "a"]
            return f"({self.select(depth - 1, tables)}) {rng.choice(['', 't', 'AS d', 't(a)', 'AS session'])}".strip()
        if rng.random() < 0.08:
            return rng.choice(["VALUES (1, 2)", "VALUES (sv)", "range(3)", "range(3) t", "(VALUES (1)) AS t(a)"])
        name = rng.choice([*COLUMNS, "l", *tables, *tables])
        self._likely[-1] += COLUMNS.get(name, ["k", "a"])
        return name + rng.choice(["", "", "", " o", " AS session", " AS d", " t"])

    def name(self) -> str:
        rng = self._rng
        drawn = rng.random()
        if rng.random() < 0.95:
            likely = self._likely[-1] or self._likely[0]
            return rng.choice([*likely, "k", "s"])
        name = rng.choice(NAMES)
        if drawn < 0.75:
            return name
        if drawn < 0.95:
            return f"{rng.choice(PLACES)}.{name}"
        return f"{rng.choice(PLACES)}.{rng.choice(['d', 'l', 'sv'])}.{name}"

    def condition(self, depth: int) -> str:
        rng = self._rng
        if depth > 1 and rng.random() < 0.25:
            return rng.choice(["EXISTS ({})", "k IN ({})", "NOT EXISTS ({})"]).format(self.select(depth - 1))
        return f"{self.value(depth - 1)} {rng.choice(['=', '>', 'IS NOT NULL OR 1 ='])} {self.value(depth - 1)}"

    def value(self, depth: int) -> str:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.65:
            return self.name()
        inner = self.name()
        form = rng.choice([
            "max({})", "sum({}) OVER (PARTITION BY k)", "{} + 1", "CAST({} AS STRING)", "{}::STRING", "struct({}, k)",
            "struct({} AS f).f", "transform(xs, x -> x + {})", "transform(xs, sv -> sv + {})", "date_trunc({}, date)",
            "trunc(date, {})", "date_add({}, 1)", "date_add(DAY, 1, date)", "extract({} FROM date)",
            "count(DISTINCT {})",
            "CASE WHEN k = 1 THEN {} END", "coalesce({}, k)", "named_struct('f', {}).f", "array({})[0]", "abs({})",
            "max({}) FILTER (WHERE k > 1)", "date + INTERVAL {} DAYS", "DATE '2020-01-01'", "trim(BOTH {} FROM 'x')",
            "timestampadd(DAY, {}, date)", "xs[{}]", "explode(array({}))", "- {}", "if(k > 1, {}, 2)", "({})",
            "first({}) IGNORE NULLS", "map('a', {})['a']", "count({}, *)", "overlay('abc' PLACING {} FROM 1)",
        ])  # fmt: skip
        if rng.random() < 0.12:
            return f"({self.select(depth - 1)})"
        return str(form.format(inner))


@pytest.fixture
def dirty(spark: SparkSession) -> Iterator[SparkSession]:
    """Return a session with variables, views and functions of the names that texts have."""
    session = spark.newSession()
    for name, value in VARIABLES.items():
        session.sql(f"DECLARE OR REPLACE VARIABLE `{name}` DEFAULT {value}")
    for name in ("user", "sv", "k", "current_date", "myf"):
        session.udf.register(name, lambda *_: -1, "int")
    for table, columns in COLUMNS.items():
        nulls = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in columns.items())
        session.sql(f"SELECT {nulls}").createOrReplaceTempView(f"view_{table}")
    session.sql("SELECT 1 AS sv").createOrReplaceTempView("q")
    yield session
    for name in VARIABLES:
        session.sql(f"DROP TEMPORARY VARIABLE IF EXISTS `{name}`")


def read(text: str) -> tuple[Statement | None, str]:
    """Return a text as it is read, and why names of it are refused; nothing for a text that is refused before."""
    try:
        query = read_query(text, attempt="ask", names=list(COLUMNS))
    except InvalidUsageError as error:
        return None, error.message
    try:
        check_columns([query], {name: list(each) for name, each in COLUMNS.items()}, attempt="ask")
    except SchemaMismatchError as error:
        return query, error.message
    return query, ""


def analysed(spark: SparkSession, text: str) -> str | None:
    """Return Spark's analysis of a text; None if it refuses it."""
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            spark.sql(text).explain(mode="extended")
    except (AnalysisException, PySparkException):
        return None
    return shown.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]


def test_names_that_are_accepted_are_columns_in_every_session(dirty: SparkSession) -> None:
    found = Counter[str]()
    wrong: list[str] = []
    seed = random.SystemRandom().randrange(1 << 30) if long_lane() else 45
    rng = random.Random(seed)
    for _ in range(6000 if long_lane() else 80):
        text = Draw(rng).text()
        query, refused = read(text)
        assert query is not None or refused.startswith("could not ask: found "), text
        if query is None or (refused and rng.random() < 0.9):
            found["refused" if query else "refused elsewhere"] += 1
            continue
        plan = analysed(dirty, query.bind({"l": "view_l", "m": "view_m"}) if query.reads else text)
        depends = plan is not None and DEPENDS.search(plan) is not None
        kind = "no query" if plan is None else "of the session" if depends else "of columns"
        found[f"{'refused' if refused else 'accepted'}, {kind}"] += 1
        if depends and not refused:
            wrong.append(text)
        if refused and kind == "of columns":
            tell(f"refused though of columns: {text}: {refused}")
    tell(f"{seed=} {found}")
    assert not wrong, f"{seed=} {len(wrong)}: {wrong[:20]}"
    assert found["accepted, of columns"] > 3 * found["refused, of columns"]


def test_answer_is_the_same_beside_variables_of_the_session(
    spark: SparkSession, dirty: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("k", pa.int64()), ("user", pa.string()), ("current_date", pa.int64())])
    log = st.create_log(tmp_path / "log", schema, minimum=(0,))
    rows = pa.table({"_time": [0, 0], "k": [1, 2], "user": ["ann", "bob"], "current_date": [3, 4]})
    log.writer(owner="tests").append(rows, advance_to=1)
    text = "SELECT max(user), max(current_date), sum(k) AS sv, abs(min(k)) FROM t HAVING sv > 2"
    found = [tuple(map(tuple, st.sql(each, text, names={"t": log}).collect())) for each in (spark.newSession(), dirty)]
    assert found == [(("bob", 4, 3, 1),)] * 2
    for wrong, name in (("SELECT k, sv FROM t", "sv"), ("SELECT k FROM t ORDER BY user", "user")):
        with pytest.raises(SchemaMismatchError, match=f"found name '{name}', which is no column"):
            st.sql(dirty, wrong, names={"t": log})
    with pytest.raises(InvalidUsageError, match="found function 'myf', which is none of Spark's"):
        st.sql(dirty, "SELECT myf(k) FROM t", names={"t": log})
    assert st.sql(dirty, "SELECT myf(k) FROM t", names={"t": log}, functions=["myf"]).first() == (-1,)
    dirty.udf.register("abs", lambda _: -1, "int")
    dirty.conf.set("spark.sql.functionResolution.sessionOrder", "first")
    with pytest.raises(InvalidUsageError, match="found function 'abs', which is none of Spark's"):
        st.sql(dirty, "SELECT abs(k) FROM t", names={"t": log})


def test_task_without_its_output_is_refused_in_every_session(
    spark: SparkSession, dirty: SparkSession, tmp_path: Path
) -> None:
    log = st.create_log(tmp_path / "log", pa.schema([("k", pa.int64()), ("n", pa.int64())]), minimum=(0,))

    def refused(session: SparkSession, name: str, *, body: Any = "TABLE i", **given: Any) -> str:
        task = st.ContinualTask("t", inputs={"i": log}, output=tmp_path / "out", body=body, **given)
        with pytest.raises(SchemaMismatchError, match=f"found name '{name}', which is no column") as caught:
            task.start(session, trigger="availableNow")
        return str(caught.value)

    def function(inputs: dict[str, DataFrame], references: dict[str, DataFrame], time: object) -> DataFrame:
        del references, time
        return inputs["i"].drop("_time")

    for name, given in (
        ("sv", {"body": "TABLE i; DELETE FROM output WHERE n < sv"}),
        ("b", {"body": "INSERT INTO output (k, s) SELECT k, n FROM i; DELETE FROM output WHERE s < b"}),
        ("sv", {"body": "SELECT k, n FROM i; INSERT INTO output SELECT k, sv FROM output"}),
        ("session.sv", {"expect": {"small": "n < session.sv"}}),
        ("user", {"body": "SELECT k, n AS v FROM i", "expect": {"own": ("v = user", "drop")}}),
        ("sv", {"body": function, "version": "1", "expect": {"small": "n < sv"}}),
    ):
        found = [refused(session, re.escape(name), **given) for session in (spark.newSession(), dirty)]
        assert found[0] == found[1]
    assert not (tmp_path / "out").exists()
