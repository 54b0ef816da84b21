"""Names of a query: which are columns of its tables. What Spark makes of the same texts is in tests/spark."""

from __future__ import annotations

import pytest

from spark_timely.continual.names import check_names
from spark_timely.errors import InvalidUsageError, SchemaMismatchError

TABLES = {"orders": ["id", "k", "user", "d", "xs", "date", "current_date"], "rates": ["k", "rate", "day"]}

TAKEN = [
    "SELECT id, K, orders.k, o.d.f FROM orders, orders o",
    "SELECT user, `user`, date, current_date, max(user) FROM orders WHERE user = 'a' GROUP BY user, date, current_date",
    "SELECT id AS n, n + 1 AS m, m FROM orders ORDER BY n, k",
    "SELECT k AS user FROM orders ORDER BY user",
    "SELECT count(*) AS n, k kk FROM orders GROUP BY kk HAVING n > 1 AND max(id) > 2",
    "WITH q AS (SELECT id AS a FROM orders), r(b) AS (SELECT a FROM q) SELECT b FROM r WHERE EXISTS (SELECT * FROM r)",
    "WITH RECURSIVE q(n) AS (SELECT id FROM orders UNION ALL SELECT n + 1 FROM q WHERE n < 3) SELECT n FROM q",
    "SELECT id FROM orders o JOIN rates USING (k) WHERE EXISTS (SELECT 1 FROM rates r WHERE rate = o.id OR xs = 1)",
    "SELECT * EXCEPT (id), t.x FROM orders LATERAL VIEW explode(xs) t AS x",
    "SELECT x, pos FROM orders, LATERAL (SELECT id + 1 AS x) z LATERAL VIEW posexplode(xs) t",
    "SELECT transform(xs, x -> x + id), aggregate(xs, 0, (a, x) -> a + x), named_struct('a', k).a FROM orders",
    "SELECT a, b FROM VALUES (1, 2) AS t(a, b) UNION SELECT col1, 2 FROM VALUES (1)",
    "SELECT a FROM (SELECT k, rate, day FROM rates) PIVOT (sum(rate) FOR day IN (1 AS a, 2))",
    "SELECT n, v FROM rates UNPIVOT (v FOR n IN (rate, day))",
    "SELECT extract(day FROM date), dateadd(DAY, id, date), date + INTERVAL id DAYS, DATE '2020-01-01' d FROM orders",
    "SELECT sum(id) OVER w, max(k) FILTER (WHERE id > 1) FROM orders WINDOW w AS (PARTITION BY k ORDER BY date)",
    "SELECT first(k) IGNORE NULLS, struct(k AS a, id), CAST(k AS STRUCT<a: INT>), k COLLATE utf8_binary FROM orders",
    "SELECT a FROM (SELECT d.a FROM orders) WHERE a = :time",
    "SELECT /*+ BROADCAST(rates) */ k FROM (orders JOIN rates USING (k)) GROUP BY ALL",
    "SELECT id FROM orders SORT BY k LIMIT 3 OFFSET 1",
    "SELECT id FROM range(3)",
    "SELECT CAST(k AS INT) FROM orders ORDER BY k",
]


@pytest.mark.parametrize("query", TAKEN)
def test_columns_are_found_wherever_spark_finds_them(query: str) -> None:
    check_names(query, TABLES, attempt="ask")


REFUSED = {
    "SELECT k, sv FROM orders": "sv",
    "SELECT `sv` FROM orders": "sv",
    "SELECT orders.sv FROM orders": "orders.sv",
    "SELECT session.k FROM orders": "session.k",
    "SELECT orders.id FROM orders o": "orders.id",
    "SELECT rate FROM orders WHERE EXISTS (SELECT rate FROM rates)": "rate",
    "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM rates WHERE EXISTS (SELECT 1 FROM rates WHERE id = 1))": "id",
    "SELECT a, 1 AS a FROM orders": "a",
    "SELECT 1 AS a FROM orders WHERE a = 1": "a",
    "SELECT k FROM orders SEMI JOIN rates USING (k) WHERE rate = 1": "rate",
    "SELECT user FROM rates": "user",
    "SELECT `current_timestamp` FROM orders": "current_timestamp",
    "SELECT CURRENT_USER FROM orders": "CURRENT_USER",
    "SELECT 1 AS user, user FROM rates": "user",
    "SELECT k FROM orders ORDER BY user": "user",
    "SELECT k FROM orders GROUP BY k, user HAVING max(user) = 'a'": "user",
    "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM rates WHERE user = 'a')": "user",
    "SELECT date_trunc(sv, date) FROM orders": "sv",
    "SELECT trunc(date, sv) FROM orders": "sv",
    "SELECT * FROM orders LIMIT sv": "sv",
    "SELECT col FROM orders LATERAL VIEW explode(xs) t": "col",
    "SELECT transform(xs, x -> x + sv) FROM orders": "sv",
    "SELECT struct(sv) FROM orders": "sv",
    "SELECT rows FROM orders": "rows",
    "SELECT date_trunc(rows, date) FROM orders": "rows",
    "SELECT * FROM VALUES (sv)": "sv",
    "SELECT date + INTERVAL sv DAYS FROM orders": "sv",
    "SELECT k FROM (SELECT k FROM orders) UNION SELECT id FROM orders ORDER BY id": "id",
    "SELECT sv.* FROM orders": "sv",
    "WITH q AS (SELECT a FROM orders) SELECT a FROM q": "a",
}


@pytest.mark.parametrize("query", REFUSED)
def test_names_that_are_no_columns_are_refused(query: str) -> None:
    with pytest.raises(SchemaMismatchError) as error:
        check_names(query, TABLES, attempt="ask")
    found = f"could not ask: found name {REFUSED[query]!r}, which is no column there, in statement "
    assert error.value.message.startswith(found), error.value.message
    assert "use a column of its tables" in (error.value.hint or "")


def test_too_many_brackets_are_refused_by_name() -> None:
    with pytest.raises(InvalidUsageError, match="found too many brackets"):
        check_names("SELECT " + "+".join(["id"] * 2000) + " FROM orders", TABLES, attempt="ask")
