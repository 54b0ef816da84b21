"""SQL over many times: what is inserted where, and what is not extended."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from spark_timely.continual.body import SqlBody
from spark_timely.continual.grammar import ROW_FUNCTIONS
from spark_timely.continual.many_times import ManyBody, ManyStatement, many_times
from spark_timely.errors import InvalidUsageError, TimelyInternalError
from tests.many_bodies import FROM, SELECT, WHERE, WHOLE, covering, pairs_of, text_of

INPUTS = ["i", "j"]
REFERENCES = ["r", "s"]


def parse(text: str) -> SqlBody:
    return SqlBody.parse(text, task="t", inputs=INPUTS, references=REFERENCES)


def many(text: str) -> ManyBody | str:
    return many_times(parse(text), inputs=INPUTS)


def extended(text: str) -> ManyStatement:
    found = many(text)
    assert not isinstance(found, str), found
    return found.statements[0]


def bound(text: str) -> str:
    """Return the extended text, with places bound to themselves, and short names of time columns."""
    statement = extended(text)
    return statement.bind([place.alias for place in statement.places]).replace("`__timely_", "`")


def how(text: str) -> list[str]:
    return [place.shown for place in extended(text).places]


# What is inserted ----------------------------------------------------------------------------------------
# In the expected texts `1` is for the column `__timely_1`.

# Conditions that rows of a reference hold at a time: from, to and the time.
HOLDS = "`{t}` >= `{f}` AND (`{u}` IS NULL OR `{t}` < `{u}`)"


def holds(begin: int, end: int, time: int) -> str:
    return HOLDS.format(t=time, f=begin, u=end)


I, J, R, S = "`i` AS `i`", "`j` AS `j`", "`r` AS `r`", "`s` AS `s`"  # noqa: E741 - tables are called so here

EXTENDED = {
    # One table.
    "SELECT k FROM i": f"SELECT k, `1` AS `2` FROM {I}",
    "select K from I x where K = 1 or N = 2": "select K, `1` AS `2` from `i` x where K = 1 or N = 2",
    "SELECT * FROM i": f"SELECT * EXCEPT (`1`), `1` AS `2` FROM {I}",
    "SELECT x.*, n FROM i x": "SELECT x.* EXCEPT (`1`), n, `1` AS `2` FROM `i` x",
    "SELECT i.s.* FROM i": f"SELECT i.s.*, `1` AS `2` FROM {I}",
    "SELECT s.* FROM i": f"SELECT s.*, `1` AS `2` FROM {I}",
    "SELECT a FROM i x(a, b)": "SELECT a, `1` AS `2` FROM `i` x(a, b, `1`)",
    "SELECT DISTINCT k FROM i ORDER BY k DESC NULLS LAST": (
        f"SELECT DISTINCT k, `1` AS `2` FROM {I} ORDER BY k DESC NULLS LAST"
    ),
    "TABLE i": f"SELECT * EXCEPT (`1`), `1` AS `2` FROM {I}",
    "SELECT :time AS t FROM i WHERE n < :time": f"SELECT `1` AS t, `1` AS `2` FROM {I} WHERE n < `1`",
    "SELECT CASE WHEN n > 1 THEN:time END t FROM i": f"SELECT CASE WHEN n > 1 THEN `1` END t, `1` AS `2` FROM {I}",
    # Groups and windows.
    "SELECT k, count(*) FROM i GROUP BY k HAVING count(*) > 1": (
        f"SELECT k, count(*), `1` AS `2` FROM {I} GROUP BY k, `1` HAVING count(*) > 1"
    ),
    "SELECT sum(n) FILTER (WHERE n > 0) FROM i GROUP BY left(k, 1), n + 1": (
        f"SELECT sum(n) FILTER (WHERE n > 0), `1` AS `2` FROM {I} GROUP BY left(k, 1), n + 1, `1`"
    ),
    "SELECT listagg(k, ',') WITHIN GROUP (ORDER BY k) FROM i GROUP BY n": (
        f"SELECT listagg(k, ',') WITHIN GROUP (ORDER BY k), `1` AS `2` FROM {I} GROUP BY n, `1`"
    ),
    "SELECT rank() OVER (PARTITION BY k ORDER BY n) FROM i": (
        f"SELECT rank() OVER (PARTITION BY `1`, k ORDER BY n), `1` AS `2` FROM {I}"
    ),
    "SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), count(*) OVER () FROM i": (
        "SELECT sum(n) OVER (PARTITION BY `1` ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), "
        f"count(*) OVER (PARTITION BY `1` ), `1` AS `2` FROM {I}"
    ),
    "SELECT first(n) IGNORE NULLS OVER (ORDER BY n), sum(n) FILTER (WHERE n > 0) OVER (PARTITION BY k) FROM i": (
        "SELECT first(n) IGNORE NULLS OVER (PARTITION BY `1` ORDER BY n), "
        f"sum(n) FILTER (WHERE n > 0) OVER (PARTITION BY `1`, k), `1` AS `2` FROM {I}"
    ),
    "SELECT sum(sum(n)) OVER (ORDER BY k) FROM i GROUP BY k": (
        f"SELECT sum(sum(n)) OVER (PARTITION BY `1` ORDER BY k), `1` AS `2` FROM {I} GROUP BY k, `1`"
    ),
    # Joins.
    "SELECT n FROM i JOIN j ON i.k = j.k OR n = m": (
        f"SELECT n, `1` AS `3` FROM {I} JOIN {J} ON (i.k = j.k OR n = m) AND `2` = `1`"
    ),
    "SELECT n FROM i JOIN r ON i.k = r.k": (
        f"SELECT n, `1` AS `4` FROM {I} JOIN {R} ON (i.k = r.k) AND {holds(2, 3, 1)}"
    ),
    "SELECT n FROM r JOIN i ON i.k = r.k": (
        f"SELECT n, `3` AS `4` FROM {R} JOIN {I} ON (i.k = r.k) AND {holds(1, 2, 3)}"
    ),
    "SELECT n FROM r CROSS JOIN s JOIN i": (
        f"SELECT n, `5` AS `6` FROM {R} CROSS JOIN {S} JOIN {I} ON {holds(1, 2, 5)} AND {holds(3, 4, 5)}"
    ),
    "SELECT * FROM i LEFT JOIN r ON i.k = r.k WHERE f IS NULL": (
        f"SELECT * EXCEPT (`1`, `2`, `3`), `1` AS `4` FROM {I} LEFT JOIN {R} ON (i.k = r.k) AND {holds(2, 3, 1)} "
        "WHERE f IS NULL"
    ),
    "SELECT * FROM i LEFT SEMI JOIN j ON i.k = j.k ANTI JOIN r ON i.k = r.k": (
        f"SELECT * EXCEPT (`1`), `1` AS `5` FROM {I} LEFT SEMI JOIN {J} ON (i.k = j.k) AND `2` = `1` "
        f"ANTI JOIN {R} ON (i.k = r.k) AND {holds(3, 4, 1)}"
    ),
    "SELECT n FROM r RIGHT JOIN i ON i.k = r.k": (
        f"SELECT n, `3` AS `4` FROM {R} RIGHT JOIN {I} ON (i.k = r.k) AND {holds(1, 2, 3)}"
    ),
    "SELECT n FROM i RIGHT JOIN j ON i.k = j.k": (
        f"SELECT n, `2` AS `3` FROM {I} RIGHT JOIN {J} ON (i.k = j.k) AND `1` = `2`"
    ),
    "SELECT j.* FROM i FULL JOIN j ON i.k = j.k": (
        f"SELECT j.* EXCEPT (`2`), coalesce(`1`, `2`) AS `3` FROM {I} FULL JOIN {J} ON (i.k = j.k) AND `1` = `2`"
    ),
    "SELECT max(n) FROM i FULL JOIN j ON i.k = j.k JOIN r ON TRUE GROUP BY i.k": (
        f"SELECT max(n), coalesce(`1`, `2`) AS `5` FROM {I} FULL JOIN {J} ON (i.k = j.k) AND `1` = `2` JOIN {R} "
        "ON (TRUE) AND coalesce(`1`, `2`) >= `3` AND (`4` IS NULL OR coalesce(`1`, `2`) < `4`) "
        "GROUP BY i.k, coalesce(`1`, `2`)"
    ),
    "SELECT n FROM i, j, r WHERE n = m OR n = f": (
        f"SELECT n, `1` AS `5` FROM {I}, {J}, {R} WHERE (n = m OR n = f) AND `2` = `1` AND {holds(3, 4, 1)}"
    ),
    "SELECT n FROM r, i LEFT JOIN j ON TRUE": (
        f"SELECT n, `3` AS `5` FROM {R}, {I} LEFT JOIN {J} ON (TRUE) AND `4` = `3` WHERE {holds(1, 2, 3)}"
    ),
    "SELECT n FROM i JOIN (VALUES (1, 2)) AS v(a, b) ON n = a": (
        f"SELECT n, `1` AS `2` FROM {I} JOIN (VALUES (1, 2)) AS v(a, b) ON n = a"
    ),
    "SELECT n FROM i, VALUES (1), (2) v(a)": f"SELECT n, `1` AS `2` FROM {I}, VALUES (1), (2) v(a)",
    "SELECT n FROM i JOIN j ON n < :time": f"SELECT n, `1` AS `3` FROM {I} JOIN {J} ON (n < `1`) AND `2` = `1`",
    # Joins by the names of columns.
    "SELECT k FROM i JOIN j USING (k)": f"SELECT k, `1` AS `3` FROM {I} JOIN {J} USING (k) WHERE `2` = `1`",
    "SELECT k FROM i JOIN r USING (k) WHERE f > 1": (
        f"SELECT k, `1` AS `4` FROM {I} JOIN {R} USING (k) WHERE (f > 1) AND {holds(2, 3, 1)}"
    ),
    "SELECT * FROM i LEFT JOIN j USING (k)": (
        f"SELECT * EXCEPT (`1`), `1` AS `2` FROM {I} LEFT JOIN {J} USING (k, `1`)"
    ),
    "SELECT k FROM i FULL JOIN j USING (k) LEFT JOIN r ON TRUE": (
        f"SELECT k, `1` AS `4` FROM {I} FULL JOIN {J} USING (k, `1`) LEFT JOIN {R} ON (TRUE) AND {holds(2, 3, 1)}"
    ),
    "SELECT k FROM i JOIN j USING (k) RIGHT JOIN j l USING (k)": (
        f"SELECT k, `1` AS `2` FROM {I} JOIN {J} USING (k, `1`) RIGHT JOIN `j` l USING (k, `1`)"
    ),
    "SELECT k FROM i LEFT JOIN r USING (k)": f"SELECT k, `1` AS `2` FROM {I} LEFT JOIN {R} USING (k, `1`)",
    "SELECT k FROM i NATURAL JOIN r": f"SELECT k, `1` AS `4` FROM {I} NATURAL JOIN {R} WHERE {holds(2, 3, 1)}",
    "SELECT k FROM i NATURAL FULL JOIN j": f"SELECT k, `1` AS `2` FROM {I} NATURAL FULL JOIN {J}",
    "SELECT k FROM i LEFT JOIN (SELECT k FROM j) d USING (k)": (
        f"SELECT k, `1` AS `3` FROM {I} LEFT JOIN (SELECT k, `2` AS `1` FROM {J}) d USING (k, `1`)"
    ),
    # Queries in FROM and WITH.
    "SELECT a FROM (SELECT k, n FROM i) d(a, b)": (
        f"SELECT a, `2` AS `3` FROM (SELECT k, n, `1` AS `2` FROM {I}) d(a, b, `2`)"
    ),
    "SELECT i.k FROM i JOIN (SELECT k, f + 1 AS f FROM r WHERE f > 1) d ON i.k = d.k": (
        f"SELECT i.k, `1` AS `6` FROM {I} JOIN (SELECT k, f + 1 AS f, `2` AS `4`, `3` AS `5` FROM {R} WHERE f > 1) d "
        f"ON (i.k = d.k) AND {holds(4, 5, 1)}"
    ),
    "SELECT i.k FROM i JOIN (SELECT k, max(f) AS f FROM r GROUP BY k) d ON i.k = d.k": (
        f"SELECT i.k, `1` AS `4` FROM {I} JOIN (SELECT k, max(f) AS f, `2` AS `3` FROM {R} GROUP BY k, `2`) d "
        "ON (i.k = d.k) AND `3` = `1`"
    ),
    "WITH c(a) AS (SELECT k FROM i) SELECT x.a FROM c x JOIN c ON x.a = c.a": (
        f"WITH c(a, `2`) AS (SELECT k, `1` AS `2` FROM {I}) SELECT x.a, `2` AS `4` FROM c x "
        "JOIN (SELECT * EXCEPT (`2`), `2` AS `3` FROM c) AS `c` ON (x.a = c.a) AND `3` = `2`"
    ),
    "WITH c AS (SELECT * FROM r) SELECT i.k FROM i JOIN c ON i.k = c.k LEFT JOIN c d ON n = d.f": (
        f"WITH c AS (SELECT * EXCEPT (`1`, `2`), `1` AS `4`, `2` AS `5` FROM {R}) SELECT i.k, `3` AS `8` FROM {I} "
        f"JOIN c ON (i.k = c.k) AND {holds(4, 5, 3)} LEFT JOIN (SELECT * EXCEPT (`4`, `5`), `4` AS `6`, `5` AS `7` "
        f"FROM c) d ON (n = d.f) AND {holds(6, 7, 3)}"
    ),
    # Several queries.
    "SELECT k FROM i UNION ALL SELECT k FROM r EXCEPT (SELECT k FROM j MINUS SELECT k FROM i) ORDER BY k": (
        f"SELECT k, `1` AS `5` FROM {I} UNION ALL SELECT k, `2` AS `6` FROM {R} EXCEPT (SELECT k, `3` AS `7` FROM {J} "
        f"MINUS SELECT k, `4` AS `8` FROM {I}) ORDER BY k"
    ),
    # Subqueries.
    "SELECT k FROM i o WHERE n > (SELECT avg(n) FROM i)": (
        f"SELECT k, `1` AS `3` FROM `i` o WHERE n > (SELECT avg(n) FROM {I} WHERE `2` = `1`)"
    ),
    "SELECT k FROM i WHERE k NOT IN (SELECT k FROM r) OR EXISTS (SELECT 1 FROM j WHERE m = n OR m = 1)": (
        f"SELECT k, `1` AS `5` FROM {I} WHERE k NOT IN (SELECT k FROM {R} WHERE {holds(2, 3, 1)}) OR "
        f"EXISTS (SELECT 1 FROM {J} WHERE (m = n OR m = 1) AND `4` = `1`)"
    ),
    "SELECT k, (SELECT max(f) FROM r) AS f FROM i": (
        f"SELECT k, (SELECT max(f) FROM {R} WHERE `1` = `2`) AS f, `2` AS `3` FROM {I}"
    ),
    "SELECT k FROM i WHERE k IN (SELECT k FROM j GROUP BY k HAVING count(*) > 1)": (
        f"SELECT k, `1` AS `3` FROM {I} WHERE k IN "
        f"(SELECT k FROM {J} WHERE `2` = `1` GROUP BY k, `2` HAVING count(*) > 1)"
    ),
    "SELECT k FROM i WHERE k IN (SELECT j.k FROM j WHERE EXISTS (SELECT 1 FROM r WHERE r.k = j.k))": (
        f"SELECT k, `1` AS `5` FROM {I} WHERE k IN (SELECT j.k FROM {J} WHERE "
        f"(EXISTS (SELECT 1 FROM {R} WHERE (r.k = j.k) AND {holds(3, 4, 2)})) AND `2` = `1`)"
    ),
    "SELECT k FROM i WHERE n IN (SELECT a FROM VALUES (1), (2) AS v(a))": (
        f"SELECT k, `1` AS `2` FROM {I} WHERE n IN (SELECT a FROM VALUES (1), (2) AS v(a))"
    ),
    # Comments, other letters, and words that are names.
    "SELECT k /* all */ -- of them\n FROM i -- the input\n WHERE n > 1 -- positive": (
        f"SELECT k, `1` AS `2` /* all */ -- of them\n FROM {I} -- the input\n WHERE n > 1"
    ),
    "SELECT k FROM i JOIN j ON(i.k=j.k)WHERE(n>1)": (
        f"SELECT k, `1` AS `3` FROM {I} JOIN {J} ON((i.k=j.k)) AND `2` = `1`WHERE(n>1)"
    ),
    "SELECT 'größe 🙂' AS ü, `where`, i.from FROM i WHERE ü = 'π' OR `a``b` = 1": (
        f"SELECT 'größe 🙂' AS ü, `where`, i.from, `1` AS `2` FROM {I} WHERE ü = 'π' OR `a``b` = 1"
    ),
    "SELECT i.group, i.order FROM i GROUP BY i.group, `order`": (
        f"SELECT i.group, i.order, `1` AS `2` FROM {I} GROUP BY i.group, `order`, `1`"
    ),
    "SELECT extract(day FROM d), trim(BOTH 'x' FROM k), k IS NOT DISTINCT FROM n FROM i": (
        f"SELECT extract(day FROM d), trim(BOTH 'x' FROM k), k IS NOT DISTINCT FROM n, `1` AS `2` FROM {I}"
    ),
    "SELECT left(k, 1), right(k, 1), CAST(n AS decimal(10, 2)), n::int, exists(a, x -> x > 1), "
    "filter(a, x -> x > 1)[0] FROM i LEFT JOIN j ON left(i.k, 1) = right(j.k, 1)": (
        "SELECT left(k, 1), right(k, 1), CAST(n AS decimal(10, 2)), n::int, exists(a, x -> x > 1), "
        f"filter(a, x -> x > 1)[0], `1` AS `3` FROM {I} LEFT JOIN {J} ON (left(i.k, 1) = right(j.k, 1)) AND `2` = `1`"
    ),
    "SELECT /*+ BROADCAST(r) */ i.k FROM i JOIN r ON i.k = r.k": (
        f"SELECT /*+ BROADCAST(r) */ i.k, `1` AS `4` FROM {I} JOIN {R} ON (i.k = r.k) AND {holds(2, 3, 1)}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", EXTENDED)
def test_text_gets_times_and_conditions(text: str) -> None:
    assert bound(text) == EXTENDED[text]


@pytest.mark.parametrize("text", [*EXTENDED, *map(text_of, covering()[::5])])
def test_what_was_not_inserted_is_the_users_and_can_be_read(text: str) -> None:
    statement = extended(text)
    plain = parse(text).statements[0]
    assert "".join(part.written for part in statement.parts) == plain.query
    # Only `:time` and the names of tables became something else.
    changed = {part.written for part in statement.parts if part.written not in ("", part.bound)}
    assert {each.strip("`").lower() for each in changed} <= {":time", "i", "j", "r", "s"}
    names = [column for place in statement.places for column in place.columns]
    assert all(name.startswith("__timely_") for name in [*names, statement.time])
    query = statement.bind([f"view {at}" for at in range(len(statement.places))])
    tree = sqlglot.parse_one(query, dialect="spark")
    if isinstance(tree, exp.Select):
        assert tree.expressions[-1].alias == statement.time


def test_places_are_shown_as_their_query_needs_them() -> None:
    assert how("SELECT k FROM i JOIN r USING (k)") == ["at", "between"]
    assert how("SELECT k FROM i LEFT JOIN r USING (k)") == ["at", "spread"]
    assert how("SELECT f FROM r LEFT JOIN i ON r.k = i.k LEFT JOIN s ON s.k = i.k") == ["spread", "at", "between"]
    assert how("SELECT f FROM i RIGHT JOIN r ON r.k = i.k") == ["at", "spread"]
    assert how("SELECT f FROM r WHERE EXISTS (SELECT 1 FROM i)") == ["spread", "at"]
    assert how("SELECT f FROM r UNION SELECT n FROM i") == ["spread", "at"]
    assert how("SELECT n, (SELECT max(f) FROM r) FROM i") == ["spread", "at"]
    assert how("SELECT n FROM i WHERE n IN (SELECT f FROM r)") == ["at", "between"]
    assert how("SELECT n FROM i WHERE n IN (SELECT DISTINCT f FROM r)") == ["at", "spread"]
    assert how("SELECT n FROM i, (SELECT f FROM r) d") == ["at", "between"]
    assert how("SELECT n FROM i, (SELECT f + :time FROM r) d") == ["at", "spread"]
    assert how("SELECT n FROM i, (SELECT f FROM r JOIN s USING (k)) d") == ["at", "spread", "between"]
    assert how("WITH c AS (SELECT f FROM r) SELECT n FROM i, c UNION ALL SELECT f FROM c") == ["spread", "at"]


def test_each_statement_of_a_body_is_extended() -> None:
    found = many("INSERT INTO output (n, k) SELECT n, k FROM i; SELECT f, k FROM r")
    assert isinstance(found, ManyBody)
    assert [each.columns for each in found.statements] == [("n", "k"), None]
    assert [place.shown for each in found.statements for place in each.places] == ["at", "spread"]


def test_inputs_are_known_in_any_case_of_letters() -> None:
    body = SqlBody.parse("SELECT k FROM ORDERS", task="t", inputs=["Orders"], references=[])
    found = many_times(body, inputs=["Orders"])
    assert isinstance(found, ManyBody)
    assert found.statements[0].places[0].shown == "at"


def test_bind_refuses_other_views_than_places_and_names_of_with() -> None:
    statement = extended("WITH c AS (SELECT k FROM i) SELECT k FROM c")
    with pytest.raises(TimelyInternalError, match="found 2 views for 1 places"):
        statement.bind(["a", "b"])
    with pytest.raises(InvalidUsageError, match="found view='C', a name of its WITH"):
        statement.bind(["C"])
    assert "FROM `a``b` AS `i`" in statement.bind(["a`b"])


# What is not extended ------------------------------------------------------------------------------------

REFUSED = {
    "SELECT max(n) FROM i": "an aggregate without GROUP BY",
    "SELECT no_function_of_spark(n) FROM i": "no_function_of_spark(), which may be an aggregate, without GROUP BY",
    "SELECT explode(a) FROM i": "explode(), which may be an aggregate, without GROUP BY",
    "SELECT sum(rank() OVER (ORDER BY n)) FROM i": "an aggregate without GROUP BY",
    "SELECT sum(max(n)) OVER () FROM i": "an aggregate without GROUP BY",
    "SELECT k FROM i ORDER BY max(n)": "an aggregate without GROUP BY",
    "SELECT 1 AS a FROM i HAVING TRUE": "HAVING without GROUP BY",
    "SELECT n FROM i JOIN (SELECT max(f) AS f FROM r) d ON n = f": "an aggregate without GROUP BY",
    "SELECT k FROM i LIMIT 1": "LIMIT",
    "SELECT k FROM i OFFSET 1": "OFFSET",
    "SELECT k FROM (SELECT k FROM i LIMIT 1) d": "LIMIT",
    "SELECT k FROM i WHERE n = (SELECT f FROM r LIMIT 1)": "LIMIT",
    "SELECT k FROM (SELECT k FROM i ORDER BY k) d": "ORDER BY inside a query",
    "SELECT k FROM i SORT BY k": "SORT",
    "SELECT k FROM i DISTRIBUTE BY k": "DISTRIBUTE",
    "SELECT k FROM i CLUSTER BY k": "CLUSTER",
    "SELECT x FROM i LATERAL VIEW explode(a) t AS x": "LATERAL",
    "SELECT x FROM i, LATERAL (SELECT f FROM r WHERE r.k = i.k) d": "LATERAL",
    "SELECT x FROM i JOIN LATERAL (SELECT f FROM r WHERE r.k = i.k) d": "LATERAL",
    "SELECT x FROM i, explode(array(1)) AS t(x)": "a table function",
    "SELECT k FROM i, range(3)": "RANGE",
    "SELECT k FROM (i JOIN j USING (k))": "a join in brackets",
    "SELECT k FROM ((i))": "I",
    "SELECT k, count(*) FROM i GROUP BY ALL": "GROUP BY ALL",
    "SELECT k, count(*) FROM i GROUP BY ROLLUP (k)": "ROLLUP",
    "SELECT k, count(*) FROM i GROUP BY k, CUBE (n)": "CUBE",
    "SELECT k, count(*) FROM i GROUP BY k WITH ROLLUP": "WITH",
    "SELECT k, count(*) FROM i GROUP BY k GROUPING SETS ((k), ())": "GROUPING",
    "SELECT count(*) FROM i GROUP BY GROUPING SETS ((k), ())": "GROUPING",
    "SELECT count(*) FROM i GROUP BY ()": "empty brackets",
    "SELECT count(*) FROM i GROUP BY window(d, '1 day')": "WINDOW",
    "SELECT count(*) FROM i GROUP BY no_function_of_spark(n)": "GROUP BY with more than functions of one row",
    "SELECT rank() OVER w FROM i WINDOW w AS (ORDER BY n)": "OVER with a name",
    "SELECT rank() OVER (DISTRIBUTE BY k SORT BY n) FROM i": "DISTRIBUTE",
    "SELECT * FROM i PIVOT (max(n) FOR k IN ('a'))": "PIVOT",
    "SELECT k FROM i QUALIFY rank() OVER (ORDER BY n) = 1": "QUALIFY",
    "SELECT * EXCEPT (k) FROM i": "a star with EXCEPT",
    "SELECT i.* EXCEPT (k) FROM i": "a star with EXCEPT",
    "SELECT struct(*) FROM i": "a star in a function",
    "SELECT count(i.*) FROM i GROUP BY k": "a star in a function",
    "SELECT k FROM i WHERE k IN (SELECT k FROM j UNION SELECT k FROM r)": "UNION in a subquery",
    "SELECT k FROM i WHERE k IN (WITH c AS (SELECT k FROM j) SELECT k FROM c)": "WITH in a subquery",
    "SELECT k FROM i WHERE k IN ((SELECT k FROM j))": "a query in two brackets",
    "SELECT k FROM i WHERE EXISTS (SELECT max(m) FROM j)": "EXISTS of an aggregate without GROUP BY",
    "SELECT k FROM i WHERE n IN (SELECT count(*) FROM j)": "IN of an aggregate without GROUP BY",
    "SELECT k FROM i WHERE n = (SELECT count(*) FROM j HAVING count(*) > 1)": (
        "an aggregate without GROUP BY in a subquery with HAVING or DISTINCT"
    ),
    "SELECT k FROM i WHERE n = (SELECT no_function_of_spark(m) FROM j)": (
        "'no_function_of_spark' of all rows of a subquery"
    ),
    "SELECT k, (SELECT max(m) FROM j) FROM i UNION ALL SELECT k, f FROM r": (
        "a scalar subquery in SELECT beside UNION ALL"
    ),
    "SELECT k FROM (SELECT k FROM j EXCEPT SELECT k FROM r) JOIN (SELECT k, (SELECT f FROM r) AS f FROM i) USING (k)": (
        "a scalar subquery in SELECT beside EXCEPT"
    ),
    "SELECT a FROM VALUES (1) AS v(a) WHERE EXISTS (SELECT 1 FROM i)": "a subquery in a query without a time",
    "SELECT (SELECT max(n) FROM i)": "a subquery in a query without a time",
    "SELECT a FROM (VALUES (1)) AS v(a) LEFT JOIN i ON n = a": (
        "an outer join that keeps all rows of a table without times"
    ),
    "SELECT a FROM i RIGHT JOIN (VALUES (1)) AS v(a) ON n = a": (
        "an outer join that keeps all rows of a table without times"
    ),
    "SELECT a FROM i FULL JOIN (VALUES (1)) AS v(a) ON n = a": (
        "an outer join that keeps all rows of a table without times"
    ),
    "SELECT k FROM i UNION ALL SELECT 'a'": "UNION ALL with a query that is the same at all times",
    "SELECT n FROM i JOIN (SELECT :time AS t) d": ":time in a query without a time",
    "SELECT k FROM i FULL JOIN j ON i.k = j.k LEFT JOIN j l USING (n)": "USING or NATURAL behind a FULL JOIN",
    "SELECT __timely_1 FROM i": "a name with __timely",
    "SELECT n FROM i; DELETE FROM output WHERE n = 1": "DELETE",
    "SELECT n FROM i WHERE n NOT IN (SELECT n FROM output)": "a statement that reads the output",
    "FROM i SELECT n": "FROM",
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_parts_are_not_extended_and_it_is_said_why(text: str) -> None:
    assert many(text) == f"{REFUSED[text]} is not batched"


def test_a_text_with_very_many_brackets_is_not_extended() -> None:
    body = parse("SELECT n FROM i")
    statement = body.statements[0]
    deep = type(statement)(
        statement.kind, "", None, statement.reads, f"SELECT {'(' * 2000}n{')' * 2000} FROM i", statement.places, (), ()
    )
    found = many_times(SqlBody((deep,), (), ""), inputs=INPUTS)
    assert found == "a text with too many brackets is not batched"


@pytest.mark.parametrize("name", sorted(ROW_FUNCTIONS))
def test_no_function_of_one_row_is_an_aggregate_to_sqlglot(name: str) -> None:
    for arguments in ("a", "a, b", "a, b, c"):
        try:
            tree = sqlglot.parse_one(f"SELECT {name}({arguments})", dialect="spark")
        except (sqlglot.errors.ParseError, IndexError):  # not with so many arguments
            continue
        assert not list(tree.find_all(exp.AggFunc, exp.UDTF)), name


def test_bodies_on_spark_have_each_pair_of_parts() -> None:
    met = {pair for choice in covering() for pair in pairs_of(choice)}
    kinds = [FROM, WHERE, SELECT, WHOLE]
    pairs = sum(len(one) * len(two) for at, one in enumerate(kinds) for two in kinds[at + 1 :])
    # Scalar subqueries beside the six set operations are not extended.
    assert len(met) == pairs - 6
    assert len(covering()) >= 100
