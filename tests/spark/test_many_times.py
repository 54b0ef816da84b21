"""Bodies over many times through real Spark: each time's rows are those that the plain text gives at that time.

Beside the bodies are their mutants: extensions that are wrong, and that have to be found by these data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from spark_timely.continual.grammar import ROW_FUNCTIONS
from tests.faults.harness import long_lane
from tests.many_bodies import Both, covering, extended, random_data, text_of, twice_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# Small plans of few rows: what Spark does to make large ones fast takes most of the time. Without a partitioning of
# their own they are one task each; nothing is compiled, which Spark allows in its tests only.
QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
}
TESTING = "spark.testing"

# Each two parts meet in the long lane; in the short one each part is twice.
BODIES = covering() if long_lane() else twice_each()
GROUPS = 4
SEEDS = range(20) if long_lane() else range(1)

# What the combined parts do not show.
OTHERS = [
    # Stars of all kinds of joins.
    "SELECT * FROM i JOIN j ON i.k = j.k JOIN r ON r.k = j.k",
    "SELECT * FROM i LEFT JOIN j USING (k) LEFT JOIN r USING (k)",
    "SELECT j.*, i.* FROM i FULL JOIN j USING (k)",
    "SELECT * FROM i NATURAL JOIN j NATURAL LEFT JOIN s",
    "SELECT * FROM i SEMI JOIN r USING (k)",
    "SELECT * FROM i, r, VALUES (1, 'a'), (2, 'b') AS v(n, k) WHERE i.n = v.n",
    "SELECT x.s.*, y.* FROM (SELECT struct(k, n) AS s FROM i) x, (SELECT k, f FROM r WHERE f > 1) y",
    "WITH c AS (SELECT * FROM r) SELECT x.*, y.k FROM c x JOIN c y ON x.k = y.k JOIN i ON i.k = x.k",
    "WITH c AS (SELECT * FROM i) SELECT * FROM c JOIN c d USING (k) JOIN c e USING (k, n)",
    # Joins.
    "SELECT n, m, f FROM i JOIN j USING (k) FULL JOIN r USING (k) LEFT JOIN s ON n = g",
    "SELECT a.n, b.n AS o, c.n AS p FROM i a FULL JOIN i b ON a.n = b.n + 1 FULL JOIN i c ON c.n = b.n + 1",
    "SELECT n, f FROM r, i LEFT JOIN j ON i.k = j.k WHERE f IS NULL OR m IS NULL",
    "SELECT n, m FROM i CROSS JOIN (SELECT m FROM j UNION SELECT f FROM r) d RIGHT JOIN s ON m = g",
    "SELECT g, n FROM s LEFT JOIN (VALUES (1), (2)) AS v(a) ON a = g JOIN i ON n >= a",
    "SELECT n, f FROM i LEFT JOIN r ON i.k = r.k AND f < :time",
    "SELECT k, n FROM i JOIN (SELECT DISTINCT k FROM r) d USING (k) NATURAL LEFT JOIN (SELECT k FROM j) e",
    "SELECT k FROM i LEFT JOIN (SELECT k FROM j) d USING (k) WHERE n > 0",
    "SELECT k FROM i RIGHT JOIN (WITH c AS (SELECT k FROM j) SELECT c.k FROM c JOIN c d USING (k)) e USING (k)",
    # Groups, sets, windows.
    "SELECT max(n) AS n FROM i GROUP BY 'all'",
    "SELECT DISTINCT k, count(*) OVER (PARTITION BY k) AS c FROM i",
    "SELECT DISTINCT count(*) AS c FROM i GROUP BY k",
    "SELECT k, sum(sum(n)) OVER (ORDER BY k) AS s, lag(max(n)) IGNORE NULLS OVER (ORDER BY k) AS l FROM i GROUP BY k",
    "SELECT n, sum(n) OVER (ORDER BY n ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS s FROM (SELECT DISTINCT n FROM i)",
    "SELECT k, sort_array(collect_list(n) FILTER (WHERE n > 1)) AS l FROM i GROUP BY k",
    "SELECT k, percentile_cont(0.5) WITHIN GROUP (ORDER BY n) AS p FROM i GROUP BY k",
    "(SELECT k, n FROM i UNION ALL SELECT k, m FROM j) INTERSECT ALL (SELECT k, f FROM r EXCEPT SELECT k, g FROM s)",
    "SELECT d.k, count(*) AS c FROM (SELECT k FROM i UNION ALL SELECT k FROM r) d JOIN s ON d.k = s.k GROUP BY d.k",
    "SELECT k FROM r MINUS SELECT k FROM i ORDER BY k",
    # Subqueries.
    "SELECT k FROM r WHERE EXISTS (SELECT 1 FROM i)",
    "SELECT k, n IN (SELECT m FROM j) AS a, n NOT IN (SELECT f FROM r) AS b, EXISTS (SELECT 1 FROM j) AS c FROM i",
    "SELECT k FROM i WHERE (k, n) NOT IN (SELECT k, m FROM j WHERE k IS NOT NULL)",
    "SELECT k FROM i WHERE n NOT IN (SELECT DISTINCT f FROM r WHERE f IS NOT NULL) OR k = 'a'",
    "SELECT k FROM i WHERE n IN (SELECT max(m) FROM j GROUP BY k HAVING count(*) < 3)",
    "SELECT k FROM i WHERE n IN (SELECT count(*) OVER (PARTITION BY k) FROM j)",
    "SELECT k FROM i WHERE EXISTS (SELECT 1 FROM j LEFT JOIN r ON j.k = r.k WHERE r.k IS NULL AND j.k = i.k)",
    "SELECT k FROM i WHERE EXISTS (SELECT 1 FROM r JOIN s ON r.k = s.k WHERE r.k = i.k)",
    "SELECT k FROM i WHERE EXISTS (SELECT 1 FROM j WHERE j.k = i.k AND j.m IN (SELECT f FROM r WHERE r.k = j.k))",
    "SELECT k FROM i WHERE NOT EXISTS (SELECT 1 FROM j FULL JOIN r ON j.k = r.k WHERE j.m = i.n OR r.f = i.n)",
    "SELECT k, (SELECT CASE WHEN count(*) = 0 THEN 'none' ELSE 'some' END FROM j WHERE j.k = i.k) AS c FROM i",
    "SELECT k, (SELECT count(*) + sum(m) FROM j) AS a, (SELECT sort_array(collect_set(f)) FROM r) AS b FROM i",
    "SELECT (SELECT approx_count_distinct(m) FROM j) AS a, (SELECT count_if(m > 1) FROM j WHERE j.k = i.k) AS b FROM i",
    "SELECT k, (SELECT max(m) FROM j GROUP BY 'all') AS a FROM i",
    "SELECT k, count(*) AS c FROM i GROUP BY k HAVING count(*) >= (SELECT count(*) FROM j)",
    "SELECT k, max(n + (SELECT min(f) FROM r)) AS c FROM i GROUP BY k",
    "SELECT k, n FROM i FULL JOIN j USING (k) WHERE n > (SELECT avg(f) FROM r) OR m IN (SELECT g FROM s)",
    "SELECT i.k FROM i LEFT JOIN j ON i.k = j.k AND n IN (SELECT f FROM r)",
    "SELECT k FROM i WHERE n = (SELECT count(*) FROM j WHERE m > (SELECT min(f) FROM r WHERE r.k = j.k))",
    "SELECT k FROM (SELECT r.k, n + :time AS n FROM r CROSS JOIN i) d WHERE n > :time + 1",
]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name, None) for name in QUICK}
    spark._jvm.java.lang.System.setProperty(TESTING, "true")
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    spark._jvm.java.lang.System.clearProperty(TESTING)
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.fixture(scope="module", params=SEEDS)
def both(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[Both]:
    both = Both(session, random_data(request.param))
    yield both
    both.close()


def _assert_same(both: Both, texts: list[str]) -> None:
    bodies = [(text, extended(text), None) for text in texts]
    for text, statement, _ in bodies:
        both.check(text, statement)
    assert not list(both.differing(bodies))
    assert len(both.silent) <= len(bodies) // 2


@pytest.mark.parametrize("group", range(GROUPS))
def test_parts_give_at_each_time_what_the_plain_text_gives(both: Both, group: int) -> None:
    _assert_same(both, [text_of(choice) for choice in BODIES[group::GROUPS]])


def test_other_bodies_give_at_each_time_what_their_text_gives(both: Both) -> None:
    _assert_same(both, OTHERS)


# What is wrong -------------------------------------------------------------------------------------------


def _replaced(pattern: str, by: str) -> Callable[[str], str]:
    """Return a change of the bound text, which has to change it."""

    def change(bound: str) -> str:
        changed = re.sub(pattern, by, bound)
        assert changed != bound, bound
        return changed

    return change


def _both(*changes: Callable[[str], str]) -> Callable[[str], str]:
    def change(bound: str) -> str:
        for each in changes:
            bound = each(bound)
        return bound

    return change


TIME = r"`__timely_\d+`"
LAST = r", (`__timely_\d+`) AS (`__timely_\d+`)"

COUNTS = "SELECT k, count(*) AS c FROM i GROUP BY k"

# A text, one that is extended, and how its extension is made a wrong one of the first.
MUTANTS: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "a subquery that compares a time with itself": (
        "SELECT k, n FROM i o WHERE n > (SELECT count(*) FROM i) - 4",
        "SELECT k, n FROM i o WHERE n > (SELECT count(*) FROM i) - 4",
        _replaced(rf"WHERE ({TIME}) = {TIME}", r"WHERE \1 = \1"),
    ),
    "an aggregate of all rows": (
        "SELECT count(*) AS c FROM i",
        "SELECT count(*) AS c FROM i GROUP BY 'all'",
        _replaced("'all', ", ""),
    ),
    "a window over all times": (
        "SELECT k, count(*) OVER () AS c FROM i",
        "SELECT k, count(*) OVER () AS c FROM i",
        _replaced(rf"PARTITION BY {TIME} ", ""),
    ),
    "a window of parts over all times": (
        "SELECT k, rank() OVER (PARTITION BY k ORDER BY n) AS c FROM i",
        "SELECT k, rank() OVER (PARTITION BY k ORDER BY n) AS c FROM i",
        _replaced(rf"PARTITION BY {TIME}, ", "PARTITION BY "),
    ),
    "groups over all times": (
        COUNTS,
        COUNTS,
        _both(_replaced(LAST, r", max(\1) AS \2"), _replaced(rf"GROUP BY k, {TIME}", "GROUP BY k")),
    ),
    "a time inside of ROLLUP": (
        f"{COUNTS} WITH ROLLUP",
        COUNTS,
        _replaced(rf"GROUP BY k, {TIME}", r"\g<0> WITH ROLLUP"),
    ),
    "rows that are distinct over all times": (
        "SELECT DISTINCT k FROM i",
        "SELECT DISTINCT k FROM i",
        _both(_replaced(rf"DISTINCT k{LAST}", r"k, min(\1) AS \2"), _replaced("$", " GROUP BY k")),
    ),
    "a left join with its condition in WHERE": (
        "SELECT i.k, f FROM i LEFT JOIN r ON i.k = r.k",
        "SELECT i.k, f FROM i LEFT JOIN r ON i.k = r.k",
        _replaced(r"\) AND `", ") WHERE `"),
    ),
    "a left join by names without the time": (
        "SELECT k, m FROM i LEFT JOIN j USING (k)",
        "SELECT k, m FROM i LEFT JOIN j USING (k)",
        _both(_replaced(rf", {TIME}\)", ")"), _replaced(LAST, r", i.\1 AS \2")),
    ),
    "a full join with the time of its left side": (
        "SELECT n, m FROM i FULL JOIN j ON i.k = j.k",
        "SELECT n, m FROM i FULL JOIN j ON i.k = j.k",
        _replaced(rf"coalesce\(({TIME}), {TIME}\)", r"\1"),
    ),
    "an anti join over all times": (
        "SELECT i.k, n FROM i ANTI JOIN j ON i.k = j.k",
        "SELECT i.k, n FROM i ANTI JOIN j ON i.k = j.k",
        _replaced(rf" AND {TIME} = {TIME}", ""),
    ),
    "NOT IN over all times": (
        "SELECT k, n FROM i WHERE n NOT IN (SELECT m FROM j WHERE m > 0)",
        "SELECT k, n FROM i WHERE n NOT IN (SELECT m FROM j WHERE m > 0)",
        _replaced(rf" AND {TIME} = {TIME}", ""),
    ),
    "a reference without an end": (
        "SELECT i.k, f FROM i JOIN r ON i.k = r.k",
        "SELECT i.k, f FROM i JOIN r ON i.k = r.k",
        _replaced(rf" AND \({TIME} IS NULL OR {TIME} < {TIME}\)", ""),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_extension_is_found(both: Both, name: str) -> None:
    text, other, change = MUTANTS[name]
    statement = extended(other)
    wrong = change(statement.bind(both.views(statement)))
    assert list(both.differing([(text, statement, wrong)])), wrong


def test_what_spark_does_not_take_is_seen_when_it_is_analysed(both: Both) -> None:
    text = "SELECT i.k FROM i JOIN j ON i.k = j.k AND n > (SELECT count(*) FROM r)"
    with pytest.raises(AnalysisException, match="UNSUPPORTED_CORRELATED_SCALAR_SUBQUERY"):
        both.check(text, extended(text))


def test_functions_of_one_row_neither_aggregate_nor_make_rows(spark: SparkSession) -> None:
    catalog = spark._jsparkSession.sessionState().catalog()
    identifier = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    groups = {name: catalog.lookupFunctionInfo(identifier(name)).getGroup() for name in ROW_FUNCTIONS & known}
    assert not {name for name, group in groups.items() if group in ("agg_funcs", "generator_funcs", "window_funcs")}
    # What is part of the grammar is no function to Spark's catalog.
    assert ROW_FUNCTIONS - known == {"timestampadd", "timestampdiff", "try_cast"}
