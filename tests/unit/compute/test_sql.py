"""Queries as plans: what each becomes, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.plan import Imported, Node, parse_plan
from spark_timely.compute.sql import plan_of_sql
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Distinct, Latest, Top
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.operators.rows import Concat, Filter, Select
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError
from tests.plans import values_of

NAMES = {
    "t": pa.schema(
        [
            ("k", pa.string()),
            ("j", pa.int64()),
            ("n", pa.int64()),
            ("d", pa.decimal128(9, 2)),
            ("x", pa.float64()),
            ("at", pa.int64()),
        ]
    ),
    "u": pa.schema([("k", pa.string()), ("n", pa.int64()), ("m", pa.int64())]),
    "T2": pa.schema([("a", pa.int64()), ("A", pa.int64()), ("b c", pa.int64()), ("e`f", pa.int64())]),
    "v": pa.schema([("p", pa.int64()), ("q", pa.int64()), ("K", pa.string())]),
}
t, u, t2, v = (Node(Imported(name)) for name in ("t", "u", "T2", "v"))


def same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


NEWEST = "row_number() OVER (PARTITION BY k ORDER BY at DESC)"
PLANS: dict[str, Node] = {
    "SELECT * FROM t": t,
    "select k, N as m from T as a where A.n > 3 and k is not null;": Node(
        Select((("k", "k"), ("m", "n"))), Node(Filter("`n` > 3 AND NOT `k` IS NULL"), t)
    ),
    "SELECT K FROM t": Node(Select((("K", "k"),)), t),
    "SELECT ALL t.* EXCEPT (x, `d`) FROM t /* all */ -- of them": Node(Select(same("k", "j", "n", "at")), t),
    "(SELECT n FROM (SELECT n, k FROM t))": Node(Select(same("n")), Node(Select(same("n", "k")), t)),
    "SELECT DISTINCT k FROM t": Node(Distinct(), Node(Select(same("k")), t)),
    "SELECT k FROM t GROUP BY k, n": Node(Select(same("k")), Node(Distinct(), Node(Select(same("k", "n")), t))),
    "SELECT `b c`, `e``f` FROM t2 WHERE `e``f` > 3 OR T2.`b c` = 4": Node(
        Select(same("b c", "e`f")), Node(Filter("`e``f` > 3 OR `b c` = 4"), t2)
    ),
    "SELECT n FROM t WHERE NOT (k LIKE 'a%' OR n IN (1, -2)) AND d <> 3.5": Node(
        Select(same("n")), Node(Filter("NOT (`k` LIKE 'a%' OR `n` IN (1, -2)) AND `d` <> 3.5"), t)
    ),
    "SELECT n FROM t WHERE at > TIMESTAMP '2013-01-31T09:30:00Z' OR DATE '2020-01-01' < at": Node(
        Select(same("n")), Node(Filter("`at` > TIMESTAMP '2013-01-31T09:30:00Z' OR DATE '2020-01-01' < `at`"), t)
    ),
    "SELECT k, COUNT(*) AS c, COUNT(1) AS o, COUNT(x) AS q, SUM(n) AS s, AVG(d) AS a, MIN(x) AS lo FROM t GROUP BY k": (
        Node(
            Select(same("k", "c", "o", "q", "s", "a", "lo")),
            Node(
                Aggregate(
                    ("k",),
                    values_of(
                        (
                            ("c", "count", None),
                            ("o", "count", None),
                            ("q", "count", "x"),
                            ("s", "sum", "n"),
                            ("a", "avg", "d"),
                            ("lo", "min", "x"),
                        )
                    ),
                    "history",
                ),
                t,
            ),
        )
    ),
    "SELECT k AS n, MAX(n) AS K FROM t GROUP BY t.K": Node(
        Select((("n", "k"), ("K", "K_"))), Node(Aggregate(("k",), values_of((("K_", "max", "n"),)), "history"), t)
    ),
    "SELECT k, COUNT(*) AS c FROM t GROUP BY k, K": Node(
        Aggregate(("k",), values_of((("c", "count", None),)), "history"), t
    ),
    f"SELECT * FROM t QUALIFY {NEWEST} = 1": Node(Latest(("k",), (("at", "desc"),)), t),
    f"SELECT k FROM t WHERE n > 1 QUALIFY {NEWEST} < 4": Node(
        Select(same("k")), Node(Top(3, ("k",), (("at", "desc"),)), Node(Filter("`n` > 1"), t))
    ),
    "SELECT * FROM t QUALIFY 2 >= row_number() OVER (ORDER BY k, n DESC NULLS LAST, k DESC)": Node(
        Top(2, (), (("k", "asc"), ("n", "desc"))), t
    ),
    f"SELECT * EXCEPT (rn) FROM (SELECT *, {NEWEST} AS rn FROM t) WHERE (1 = rn AND n > 1) AND k = 'a'": Node(
        Filter("`k` = 'a'"), Node(Filter("`n` > 1"), Node(Latest(("k",), (("at", "desc"),)), t))
    ),
    f"SELECT m FROM (SELECT k, n AS m, {NEWEST} AS rn FROM t WHERE j > 0) s WHERE s.rn <= 2 AND s.m > 1": Node(
        Select(same("m")),
        Node(
            Filter("`m` > 1"),
            Node(Select((("k", "k"), ("m", "n"))), Node(Top(2, ("k",), (("at", "desc"),)), Node(Filter("`j` > 0"), t))),
        ),
    ),
    f"WITH r AS (SELECT *, {NEWEST} AS rn FROM t) SELECT j, SUM(n) AS s FROM r WHERE rn = 1 GROUP BY j": Node(
        Aggregate(("j",), values_of((("s", "sum", "n"),)), "history"), Node(Latest(("k",), (("at", "desc"),)), t)
    ),
    "WITH t AS (SELECT k, n FROM t), r AS (SELECT n FROM t) SELECT * FROM R": Node(
        Select(same("n")), Node(Select(same("k", "n")), t)
    ),
    "SELECT k, n FROM t ORDER BY n DESC, k LIMIT 3": Node(
        Top(3, (), (("n", "desc"), ("k", "asc"))), Node(Select(same("k", "n")), t)
    ),
    "SELECT k, n FROM t UNION ALL SELECT k, m FROM u UNION ALL (SELECT k, n FROM u)": Node(
        Concat(),
        Node(Select(same("k", "n")), t),
        Node(Select((("k", "k"), ("n", "m"))), Node(Select(same("k", "m")), u)),
        Node(Select(same("k", "n")), u),
    ),
    "SELECT n FROM t UNION ALL SELECT n FROM u ORDER BY n LIMIT 1": Node(
        Top(1, (), (("n", "asc"),)), Node(Concat(), Node(Select(same("n")), t), Node(Select(same("n")), u))
    ),
    "SELECT * FROM (SELECT n, k FROM t) ASOF JOIN (SELECT m, k FROM u) USING (k) WHERE m > 1": Node(
        Select(same("k", "n", "m")),
        Node(
            Filter("`m` > 1"),
            Node(Join(("k",), as_of=True), Node(Select(same("n", "k")), t), Node(Select(same("m", "k")), u)),
        ),
    ),
    "SELECT t.n, u.n AS un, k, u.k AS uk, m FROM t ASOF JOIN u USING (K)": Node(
        Select((("n", "n"), ("un", "n_"), ("k", "k"), ("uk", "k"), ("m", "m"))),
        Node(Join(("k",), as_of=True), t, Node(Select((("k", "k"), ("n_", "n"), ("m", "m"))), u)),
    ),
    "SELECT t.k, p FROM t ASOF LEFT OUTER JOIN v USING (k)": Node(
        Select(same("k", "p")),
        Node(Join(("k",), "left", as_of=True), t, Node(Select((("p", "p"), ("q", "q"), ("k", "K"))), v)),
    ),
    "SELECT a.k, b.m, c.p FROM t AS a ASOF JOIN u AS b USING (k) ASOF JOIN v AS c USING (k)": Node(
        Select(same("k", "m", "p")),
        Node(
            Join(("k",), as_of=True),
            Node(Join(("k",), as_of=True), t, Node(Select((("k", "k"), ("n_", "n"), ("m", "m"))), u)),
            Node(Select((("p", "p"), ("q", "q"), ("k", "K"))), v),
        ),
    ),
}


@pytest.mark.parametrize("text", PLANS)
def test_query_becomes_operators(text: str) -> None:
    plan = plan_of_sql(text, NAMES)
    assert plan.root == PLANS[text]
    assert parse_plan(plan.text) == plan


REFUSED: list[tuple[str, str]] = [
    ("SELECT k, SUM(n) OVER (PARTITION BY k) AS s FROM t", "window function SUM"),
    ("SELECT k, rank() OVER (PARTITION BY k ORDER BY n) AS r FROM t", "window function RANK"),
    (
        "SELECT * FROM (SELECT *, rank() OVER (PARTITION BY k ORDER BY n) AS r FROM t) WHERE r = 1",
        "window function RANK",
    ),
    ("SELECT * FROM t QUALIFY dense_rank() OVER (ORDER BY n) = 1", "window function DENSE_RANK"),
    (
        "SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY n) = 2",
        "row_number() in 'ROW_NUMBER() OVER (PARTITION BY k ORDER BY n) = 2'",
    ),
    ("SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k) = 1", "row_number() without ORDER BY"),
    ("SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY n DESC NULLS FIRST) = 1", "DESC NULLS FIRST"),
    ("SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY n + 1) = 1", "computed value 'n + 1'"),
    (
        "SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY n) = 1 AND n > 3",
        "QUALIFY with more than row_number(): n > 3",
    ),
    ("SELECT * FROM t QUALIFY row_number() OVER w = 1 WINDOW w AS (PARTITION BY k ORDER BY n)", "WINDOW"),
    ("SELECT * FROM t QUALIFY row_number() OVER w = 1", "a window by its name"),
    (
        "SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY n ROWS BETWEEN 1 PRECEDING AND "
        "CURRENT ROW) = 1",
        "a frame of the window of row_number()",
    ),
    (
        "SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t",
        "row_number() 'rn' without a condition on it",
    ),
    (
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn = 1",
        "column 'rn' that is a row_number(), in a star",
    ),
    (
        "SELECT k, rn FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn = 1",
        "column 'rn' that is a row_number()",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE n = 1",
        "row_number() without a condition on it",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn = 1 OR n > 2",
        "row_number() in 'rn = 1 OR n > 2'",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn + 1 <= 2",
        "row_number() in 'rn + 1 <= 2'",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn <= 0",
        "row_number() in 'rn <= 0'",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn <= 2 "
        "AND rn >= 1",
        "row_number() in 'rn >= 1'",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn IN (1, 2)",
        "row_number() in 'rn IN (1, 2)'",
    ),
    (
        "SELECT k FROM (SELECT row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn = 1",
        "row_number() alone",
    ),
    (
        "SELECT k FROM (SELECT DISTINCT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM t) WHERE rn = 1",
        "DISTINCT beside row_number()",
    ),
    ("SELECT n FROM t WHERE n IN (SELECT n FROM u)", "a subquery in an expression"),
    ("SELECT n FROM t WHERE EXISTS (SELECT n FROM u)", "a subquery in an expression"),
    ("SELECT (SELECT MAX(n) FROM u) AS m FROM t", "a subquery in an expression"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY k HAVING COUNT(*) > 1", "HAVING"),
    ("SELECT n FROM t ORDER BY n", "ORDER BY without LIMIT"),
    ("SELECT n FROM t LIMIT 3", "LIMIT without ORDER BY"),
    ("SELECT n FROM t ORDER BY n LIMIT 3 OFFSET 1", "OFFSET"),
    ("SELECT n FROM t ORDER BY 1 LIMIT 3", "ORDER BY 1, a position"),
    ("SELECT n FROM t ORDER BY n LIMIT 0", "LIMIT 0"),
    ("SELECT n FROM t SORT BY n", "SORT BY"),
    ("SELECT n FROM t CLUSTER BY n", "CLUSTER BY"),
    ("SELECT n FROM t DISTRIBUTE BY n", "DISTRIBUTE BY"),
    ("SELECT t.n FROM t JOIN u USING (k)", "JOIN"),
    ("SELECT t.n FROM t LEFT JOIN u USING (k)", "LEFT JOIN"),
    ("SELECT t.n FROM t FULL OUTER JOIN u USING (k)", "FULL OUTER JOIN"),
    ("SELECT t.n FROM t RIGHT JOIN u ON t.k = u.k", "RIGHT JOIN"),
    ("SELECT t.n FROM t, u", "a comma between tables"),
    ("SELECT t.n FROM t CROSS JOIN u", "CROSS JOIN"),
    ("SELECT t.n FROM t NATURAL JOIN u", "NATURAL JOIN without USING"),
    ("SELECT t.n FROM t LEFT SEMI JOIN u USING (k)", "LEFT SEMI JOIN"),
    ("SELECT t.n FROM t ASOF JOIN u ON t.k = u.k", "ASOF JOIN without USING"),
    ("SELECT t.n FROM t ASOF JOIN u", "ASOF JOIN without USING"),
    ("SELECT u.k FROM t ASOF LEFT JOIN u USING (k)", "column 'k' of the right side of ASOF LEFT JOIN"),
    ("SELECT t.n FROM t ASOF RIGHT JOIN u USING (k)", "ASOF RIGHT JOIN"),
    ("SELECT n FROM t ASOF JOIN u USING (k)", "column 'n', of which there are 2"),
    ("SELECT k FROM t UNION SELECT k FROM u", "UNION without ALL"),
    ("SELECT k FROM t EXCEPT SELECT k FROM u", "EXCEPT"),
    ("SELECT k FROM t INTERSECT SELECT k FROM u", "INTERSECT"),
    ("SELECT k FROM t UNION ALL SELECT k, n FROM u", "UNION ALL of 1 and 2 columns"),
    ("SELECT k FROM t UNION ALL BY NAME SELECT k FROM u", "UNION ALL BY NAME"),
    ("SELECT n + 1 AS m FROM t", "computed value 'n + 1'"),
    ("SELECT upper(k) AS m FROM t", "function UPPER"),
    ("SELECT coalesce(n, 0) AS m FROM t", "function COALESCE"),
    ("SELECT 1 AS one FROM t", "constant '1'"),
    ("SELECT NULL AS no FROM t", "constant 'NULL'"),
    ("SELECT CASE WHEN n > 1 THEN 1 END AS c FROM t", "computed value 'CASE WHEN n > 1 THEN 1 END'"),
    ("SELECT CAST(n AS STRING) AS c FROM t", "computed value 'CAST(n AS STRING)'"),
    ("SELECT n::string AS c FROM t", "'::'"),
    ("SELECT n > 1 AS c FROM t", "computed value 'n > 1'"),
    ("SELECT n FROM t WHERE upper(k) = 'A'", "function UPPER"),
    ("SELECT n FROM t WHERE n / 2 > 1", "condition 'n / 2 > 1'"),
    ("SELECT n FROM t WHERE n <=> 1", "condition 'n IS NOT DISTINCT FROM 1'"),
    ("SELECT n FROM t WHERE k RLIKE 'a'", "function k RLIKE 'a'"),
    ("SELECT n FROM t WHERE SUM(n) > 1", "aggregate function SUM in WHERE"),
    ("SELECT n FROM t WHERE row_number() OVER (ORDER BY n) = 1", "window function ROW_NUMBER in WHERE"),
    ("SELECT COUNT(*) AS c FROM t", "an aggregate without GROUP BY"),
    ("SELECT k, COUNT(*) FROM t GROUP BY k", "COUNT(*) without a name"),
    ("SELECT n, COUNT(*) AS c FROM t GROUP BY k", "column 'n' that is not grouped by"),
    ("SELECT *, COUNT(*) AS c FROM t GROUP BY k", "a star beside GROUP BY"),
    ("SELECT k, COUNT(DISTINCT n) AS c FROM t GROUP BY k", "COUNT(DISTINCT …)"),
    ("SELECT k, SUM(DISTINCT n) AS c FROM t GROUP BY k", "SUM(DISTINCT …)"),
    ("SELECT k, COUNT(n, j) AS c FROM t GROUP BY k", "further parts of COUNT"),
    ("SELECT k, SUM(n) FILTER (WHERE n > 1) AS c FROM t GROUP BY k", "FILTER (WHERE …)"),
    ("SELECT k, SUM(n + 1) AS c FROM t GROUP BY k", "SUM of 'n + 1'"),
    ("SELECT k, SUM(n) + 1 AS c FROM t GROUP BY k", "computed value 'SUM(n) + 1'"),
    ("SELECT k, MAX(x) AS c FROM t GROUP BY k", "MAX of floats, column 'x'"),
    ("SELECT k, stddev(n) AS c FROM t GROUP BY k", "aggregate function STDDEV"),
    ("SELECT k, first(n) AS c FROM t GROUP BY k", "aggregate function FIRST"),
    ("SELECT k, max_by(n, j) AS c FROM t GROUP BY k", "aggregate function MAX_BY"),
    ("SELECT k, collect_list(n) AS c FROM t GROUP BY k", "aggregate function COLLECT_LIST"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY 1", "GROUP BY 1, a position"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY ALL", "GROUP BY with ALL"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY ROLLUP (k)", "computed value 'ROLLUP (k)'"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY k WITH CUBE", "GROUP BY with CUBE"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY k GROUPING SETS ((k))", "GROUP BY with GROUPING SETS"),
    ("SELECT upper(k) AS u, COUNT(*) AS c FROM t GROUP BY upper(k)", "function UPPER"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY ()", "computed value '()'"),
    ("WITH c AS (SELECT * FROM t) SELECT k FROM c UNION ALL SELECT k FROM c", "query 'c' of WITH used twice"),
    ("WITH c AS (SELECT * FROM t) SELECT k FROM t", "query 'c' of WITH used nowhere"),
    ("WITH RECURSIVE c AS (SELECT * FROM t) SELECT k FROM c", "WITH RECURSIVE"),
    ("WITH c(a) AS (SELECT k FROM t) SELECT a FROM c", "c(a) for a table"),
    ("SELECT k FROM vv", "no import 'vv'"),
    ("SELECT q FROM t", "no column 'q'"),
    ("SELECT w.k FROM t", "no table 'w' for column 'k'"),
    ("SELECT k FROM db.t", "name db.t of several parts"),
    ("SELECT k FROM t AS x (a)", "x(a) for a table"),
    ("SELECT k FROM t VERSION AS OF 3", "VERSION or TIMESTAMP AS OF of table 't'"),
    ("SELECT k FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE of table 't'"),
    ("SELECT k FROM range(10)", "function range in FROM"),
    ("SELECT * FROM VALUES (1) AS v(k)", "computed value 'VALUES (1) AS v(k)' in FROM"),
    ("SELECT explode(k) AS e FROM t", "function EXPLODE"),
    ("SELECT k FROM t LATERAL VIEW explode(k) e AS x", "LATERAL VIEW"),
    ("SELECT /*+ BROADCAST(t) */ k FROM t", "'/*+'"),
    ("SELECT k, k FROM t", "column 'k' twice"),
    ("SELECT k, n AS K FROM t", "column 'k' twice"),
    ("SELECT k FROM t; SELECT n FROM t", "2 queries"),
    ("INSERT INTO t SELECT * FROM u", "INSERT"),
    ("DELETE FROM t", "DELETE"),
    ("FROM t SELECT k", "FROM"),
    ("FROM t |> WHERE n > 1", "FROM"),
    ("TABLE t", "TABLE"),
    ("SELECT k FROM t WHERE n > ${x}", "${"),
    ("SELECT k FROM t WHERE n > :time", "condition 'n > :time'"),
    ("SELECT k FROM t WHERE n > ?", "'?'"),
    ("SELECT k FROM t WHERE k = 'a\\b'", "a backslash"),
    ("SELECT * REPLACE (n AS k) FROM t", "REPLACE of a star"),
    ("SELECT * EXCEPT (q) FROM t", "no column 'q' in EXCEPT"),
    ("SELECT", "a query without FROM"),
    ("SELECT a.b.c FROM t", "several parts of column a.b.c"),
    ("SELECT DISTINCT ON (k) k FROM t", "ON of DISTINCT"),
    ("SELECT k FROM t PIVOT (SUM(n) FOR j IN (1, 2))", "PIVOT or UNPIVOT of table 't'"),
    ("SELECT TRANSFORM (k) USING 'cat' AS (a) FROM t", "computed value \"TRANSFORM(k) USING 'cat' AS (a)\""),
    ("SELECT k FROM t WHERE _time > 3", "no column '_time'"),
    ("SELECT k FROM t WHERE n > ALL (SELECT n FROM u)", "a subquery in an expression"),
    ("SELECT current_date FROM t", "no column 'current_date'"),
    ("SELECT current_date() FROM t", "function CURRENT_DATE"),
    ("SELECT t.k FROM t, u", "a comma between tables"),
    ("SELECT t.k FROM t CROSS JOIN u", "CROSS JOIN"),
    ("SELECT k, rank() OVER (ORDER BY n) FROM t", "window function RANK"),
    ("SELECT count(*) AS n FROM t GROUP BY window(at, '1 day')", "function window"),
    ("SELECT k FROM (SELECT k FROM t) x (a)", "x(a) for a table"),
    ("SELECT k AS (a, b) FROM t", "computed value 'k AS (a, b)'"),
    ("SELECT struct(k) AS a FROM t", "function STRUCT"),
    ("SELECT k FROM t AS OF TIMESTAMP '2020-01-01'", "Invalid expression / Unexpected token at line 1, col 31"),
    ("SELECT count(t.*) AS c FROM t GROUP BY k", "COUNT of 't.*'"),
    ("SELECT k FROM t ORDER BY n LIMIT 3", "no column 'n'"),
    ("SELECT k FROM t GROUP BY k ORDER BY k LIMIT ALL", "LIMIT ALL"),
    ('SELECT k FROM t WHERE k = "a"', "a text in double quotes, '\"a\"'"),
    ("SELECT a FROM t2", "column 'a', of which there are 2"),
    ("SELECT * FROM t2", "column 'a' twice"),
    ("SELECT 'it''s' AS s FROM t", "function CONCAT"),
    ("SELECT n AS 'x' FROM t", "a text that is read as something else, of [\"'x'\"]"),
    ("SELECT n FROM t WHERE d > 3.5BD", "a number that is read as something else, of ['3.5BD']"),
    ("SELECT n FROM t WHERE at > 5L", "condition 'at > CAST(5 AS BIGINT)'"),
    ("SELECT n FROM t WHERE k = 'a' 'b'", "function CONCAT"),
    ("SELECT n FROM t WHERE CAST(n AS STRING) = 'a'", "condition \"CAST(n AS STRING) = 'a'\""),
    ("SELECT n FROM t WHERE CAST('2020-01-01' AS DATE) = at", "condition \"CAST('2020-01-01' AS DATE) = at\""),
    ("SELECT n FROM t WHERE k LIKE 'a' ESCAPE 'b'", "condition \"k LIKE 'a' ESCAPE 'b'\""),
    ("SELECT k FROM t a ASOF JOIN u a USING (k)", "two tables called 'a'"),
    ("SELECT k FROM t ASOF JOIN u USING (k, z)", "no column 'z'"),
    (
        "SELECT t.k FROM t ASOF JOIN (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n) AS rn FROM u) "
        "u USING (k)",
        "row_number() 'rn' without a condition on it",
    ),
    ("SELECT k, SUM(n) OVER () AS s, COUNT(*) AS c FROM t GROUP BY k", "window function SUM beside GROUP BY"),
    ("SELECT k, COUNT(*) AS c FROM t GROUP BY k QUALIFY row_number() OVER (ORDER BY k) = 1", "QUALIFY beside GROUP BY"),
    (
        "SELECT k, MAX(c) AS m FROM (SELECT k, j, SUM(x) AS c FROM t GROUP BY k, j) GROUP BY k",
        "MAX of floats, column 'c'",
    ),
    (
        "SELECT *, row_number() OVER (ORDER BY k) AS a, row_number() OVER (ORDER BY n) AS b FROM t",
        "several row_number()",
    ),
    ("SELECT lag(n) OVER (PARTITION BY k ORDER BY at) AS p FROM t", "window function LAG"),
    ("SELECT first_value(n) IGNORE NULLS OVER (PARTITION BY k ORDER BY at) AS p FROM t", "window function FIRST_VALUE"),
    ("SELECT n FROM t QUALIFY n > 1", "QUALIFY n > 1"),
    ("WITH c AS (SELECT k FROM t), C AS (SELECT k FROM u) SELECT k FROM c", "query 'C' of WITH twice"),
    ("SELECT n FROM t FETCH FIRST 3 ROWS ONLY", "LIMIT without ORDER BY"),
    (
        "SELECT x.rn FROM (SELECT *, row_number() OVER (ORDER BY k) AS rn FROM t) q WHERE x.rn = 1",
        "row_number() without a condition on it",
    ),
    (
        "SELECT k FROM (SELECT *, row_number() OVER (ORDER BY k) AS rn FROM t) WHERE rn = 1 AND rn <= 2",
        "several conditions on row_number()",
    ),
    ("SELECT w.* FROM t", "no table 'w' for a star"),
    ("SELECT t.k.x FROM t", "several parts of column t.k.x"),
    ("SELECT k FROM t WHERE n IS DISTINCT FROM 1", "condition 'n IS DISTINCT FROM 1'"),
    ("SELECT k FROM t WHERE n > (1 + 2) % 2", "condition 'n > (1 + 2) % 2'"),
    ("SELECT any_value(n) AS a FROM t GROUP BY k", "aggregate function ANY_VALUE"),
    ("SELECT k, COUNT_IF(n > 1) AS c FROM t GROUP BY k", "aggregate function COUNT_IF"),
    ("SELECT k, COUNT(NULL) AS c FROM t GROUP BY k", "COUNT of 'NULL'"),
]


@pytest.mark.parametrize(("text", "found"), REFUSED)
def test_what_has_no_operator_is_refused_by_name(text: str, found: str) -> None:
    with pytest.raises(TimelyError) as error:
        plan_of_sql(text, NAMES)
    assert type(error.value) in (InvalidUsageError, SchemaMismatchError)
    assert error.value.message.startswith(f"could not plan a dataflow: found {found} in statement ")
    assert error.value.hint


@pytest.mark.parametrize(
    "text", ["SELECT k FROM t WHERE", "SELECT k FROM", "SELECT k FROM t t2 t3", "SELECT (k FROM t"]
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidUsageError, match=r"at line 1, col \d+ in statement"):
        plan_of_sql(text, NAMES)


def test_deep_brackets_are_refused() -> None:
    deep = "SELECT n FROM t WHERE " + "(" * 3000 + "n > 1" + ")" * 3000
    with pytest.raises(InvalidUsageError, match="found too many brackets"):
        plan_of_sql(deep, NAMES)
    nested = "SELECT n FROM " + "(SELECT k, n FROM (SELECT n, k FROM " * 33 + "t" + "))" * 33
    with pytest.raises(InvalidUsageError, match=r"nodes one upon another|too many brackets"):
        plan_of_sql(nested, NAMES)


@pytest.mark.parametrize(("text", "names"), [(7, NAMES), ("SELECT k FROM t", {"t": ["k"]})])
def test_wrong_arguments_are_refused(text: Any, names: Any) -> None:
    with pytest.raises(InvalidUsageError, match="could not plan a dataflow: found"):
        plan_of_sql(text, names)


def test_imports_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"imports \['t', 'T'\], which differ in case alone"):
        plan_of_sql("SELECT * FROM t", {"t": NAMES["t"], "T": NAMES["t"]})
