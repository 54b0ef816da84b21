"""SQL of continual tasks: what is bound where, what is refused, and what counts for the identity."""

from __future__ import annotations

import pytest

from spark_timely.continual.body import (
    SqlBody,
    at_time,
    check_aliases,
    checked_condition,
    retain_body,
    transform_body,
    unknown_functions,
)
from spark_timely.errors import InvalidUsageError, TimelyInternalError

INPUTS = ["orders", "items"]
REFERENCES = ["rates", "Customers"]
VIEWS = {"orders": "v_o", "items": "v_i", "rates": "v_r", "Customers": "v_c", "output": "v_out"}


def parse(text: str) -> SqlBody:
    return SqlBody.parse(text, task="t", inputs=INPUTS, references=REFERENCES)


def bound(text: str) -> list[str]:
    return [each.bind(VIEWS) for each in parse(text).statements]


# What is bound -------------------------------------------------------------------------------------------

# A statement, and what it is bound to.
WHOLE = {
    "SELECT id FROM orders": "SELECT id FROM `v_o` AS `orders`",
    "SELECT o.id FROM orders o JOIN rates AS r USING (k)": "SELECT o.id FROM `v_o` o JOIN `v_r` AS r USING (k)",
    "select ORDERS.id from ORDERS": "select ORDERS.id from `v_o` AS `ORDERS`",
    "SELECT * FROM `orders`, `RATES` r": "SELECT * FROM `v_o` AS `orders`, `v_r` r",
    "SELECT * FROM orders orders JOIN orders rates ON TRUE": "SELECT * FROM `v_o` orders JOIN `v_o` rates ON TRUE",
    "SELECT rates.x, rates FROM orders AS rates": "SELECT rates.x, rates FROM `v_o` AS rates",
    "SELECT date FROM orders AS date": "SELECT date FROM `v_o` AS date",
    "SELECT * FROM orders AS `a``b`": "SELECT * FROM `v_o` AS `a``b`",
    "SELECT a.b FROM orders o (a, b)": "SELECT a.b FROM `v_o` o (a, b)",
    "SELECT orders, items FROM orders WHERE orders.items = rates": (
        "SELECT orders, items FROM `v_o` AS `orders` WHERE orders.items = rates"
    ),
    "TABLE orders": "SELECT * FROM `v_o` AS `orders`",
    "(TABLE orders) EXCEPT ALL TABLE items": (
        "(SELECT * FROM `v_o` AS `orders`) EXCEPT ALL SELECT * FROM `v_i` AS `items`"
    ),
    "WITH q AS (TABLE orders) TABLE q": "WITH q AS (SELECT * FROM `v_o` AS `orders`) SELECT * FROM q",
    "FROM orders SELECT id WHERE x > (FROM rates SELECT max(y))": (
        "FROM `v_o` AS `orders` SELECT id WHERE x > (FROM `v_r` AS `rates` SELECT max(y))"
    ),
    "SELECT id FROM orders MINUS SELECT id FROM items": (
        "SELECT id FROM `v_o` AS `orders` MINUS SELECT id FROM `v_i` AS `items`"
    ),
    "SELECT id FROM orders LEFT ANTI JOIN items USING (id) SEMI JOIN Customers USING (id)": (
        "SELECT id FROM `v_o` AS `orders` LEFT ANTI JOIN `v_i` AS `items` USING (id) "
        "SEMI JOIN `v_c` AS `Customers` USING (id)"
    ),
    "SELECT id FROM orders NATURAL FULL OUTER JOIN items CROSS JOIN rates": (
        "SELECT id FROM `v_o` AS `orders` NATURAL FULL OUTER JOIN `v_i` AS `items` CROSS JOIN `v_r` AS `rates`"
    ),
    "SELECT * FROM (orders JOIN (rates r JOIN items ON a = b) ON c = d)": (
        "SELECT * FROM (`v_o` AS `orders` JOIN (`v_r` r JOIN `v_i` AS `items` ON a = b) ON c = d)"
    ),
    "SELECT * FROM (((orders))) AS o": "SELECT * FROM (((`v_o` AS `orders`))) AS o",
    "SELECT * FROM orders o WHERE EXISTS (SELECT 1 FROM items WHERE items.o = o.id) AND id NOT IN (TABLE rates)": (
        "SELECT * FROM `v_o` o WHERE EXISTS (SELECT 1 FROM `v_i` AS `items` WHERE items.o = o.id) "
        "AND id NOT IN (SELECT * FROM `v_r` AS `rates`)"
    ),
    "SELECT (SELECT max(x) FROM orders i WHERE i.k = orders.k) FROM orders": (
        "SELECT (SELECT max(x) FROM `v_o` i WHERE i.k = orders.k) FROM `v_o` AS `orders`"
    ),
    "SELECT * FROM orders, LATERAL (SELECT * FROM rates WHERE rates.k = orders.k), LATERAL explode(tags) AS t(tag)": (
        "SELECT * FROM `v_o` AS `orders`, LATERAL (SELECT * FROM `v_r` AS `rates` WHERE rates.k = orders.k), "
        "LATERAL explode(tags) AS t(tag)"
    ),
    "SELECT * FROM orders LATERAL VIEW OUTER explode(x) t AS y LATERAL VIEW inline(z) AS p, q": (
        "SELECT * FROM `v_o` AS `orders` LATERAL VIEW OUTER explode(x) t AS y LATERAL VIEW inline(z) AS p, q"
    ),
    "SELECT * FROM orders PIVOT (sum(x) FOR k IN (1, 2)) AS p": (
        "SELECT * FROM `v_o` AS `orders` PIVOT (sum(x) FOR k IN (1, 2)) AS p"
    ),
    "SELECT * FROM orders o UNPIVOT (v FOR n IN (a, b))": "SELECT * FROM `v_o` o UNPIVOT (v FOR n IN (a, b))",
    "SELECT /*+ BROADCAST(orders), REPARTITION(3, 'x') */ id FROM orders": (
        "SELECT /*+ BROADCAST(orders), REPARTITION(3, 'x') */ id FROM `v_o` AS `orders`"
    ),
    "WITH q AS (SELECT * FROM orders), r AS (SELECT * FROM q) SELECT * FROM r UNION SELECT * FROM q": (
        "WITH q AS (SELECT * FROM `v_o` AS `orders`), r AS (SELECT * FROM q) SELECT * FROM r UNION SELECT * FROM q"
    ),
    "WITH q AS (WITH p AS (TABLE orders) SELECT * FROM p) SELECT * FROM Q": (
        "WITH q AS (WITH p AS (SELECT * FROM `v_o` AS `orders`) SELECT * FROM p) SELECT * FROM Q"
    ),
    "WITH RECURSIVE q(n) AS (SELECT id FROM orders UNION ALL SELECT n + 1 FROM q WHERE n < 3) SELECT * FROM q": (
        "WITH RECURSIVE q(n) AS (SELECT id FROM `v_o` AS `orders` UNION ALL SELECT n + 1 FROM q WHERE n < 3) "
        "SELECT * FROM q"
    ),
    "SELECT extract(YEAR FROM d), trim(BOTH 'x' FROM rates), a IS DISTINCT FROM items FROM orders": (
        "SELECT extract(YEAR FROM d), trim(BOTH 'x' FROM rates), a IS DISTINCT FROM items FROM `v_o` AS `orders`"
    ),
    # Texts, comments and quoted names that look like tables.
    "SELECT 'FROM rates;', \"it's\", 'a\\'; FROM b', 'c''d', r'\\', -- ' FROM x;\n `from` FROM orders -- FROM rates": (
        "SELECT 'FROM rates;', \"it's\", 'a\\'; FROM b', 'c''d', r'\\', -- ' FROM x;\n `from` FROM `v_o` AS `orders`"
    ),
    "SELECT/**/id/* FROM /* rates; */ ' */FROM/* */orders/* o */WHERE/**/x": (
        "SELECT/**/id/* FROM /* rates; */ ' */FROM/* */`v_o` AS `orders`/* o */WHERE/**/x"
    ),
    "SELECT rank() OVER (ORDER /* a */ BY b) FROM orders GROUP -- c\n BY a": (
        "SELECT rank() OVER (ORDER /* a */ BY b) FROM `v_o` AS `orders` GROUP -- c\n BY a"
    ),
    # Places are counted in characters, whatever their size.
    "SELECT '😀😀', `ünï 😀`, `é`\tFROM\r\n\torders\r\n\tJOIN items": (
        "SELECT '😀😀', `ünï 😀`, `é`\tFROM\r\n\t`v_o` AS `orders`\r\n\tJOIN `v_i` AS `items`"
    ),
    # Inserts.
    "INSERT INTO output SELECT * FROM orders": "SELECT * FROM `v_o` AS `orders`",
    "insert into table OUTPUT table orders": "SELECT * FROM `v_o` AS `orders`",
    "INSERT INTO `output` (SELECT * FROM orders)": "(SELECT * FROM `v_o` AS `orders`)",
    "INSERT /* a */ INTO output -- b\n FROM orders SELECT a": "FROM `v_o` AS `orders` SELECT a",
    "INSERT INTO output WITH q AS (TABLE orders) SELECT * FROM q": (
        "WITH q AS (SELECT * FROM `v_o` AS `orders`) SELECT * FROM q"
    ),
    "WITH q AS (SELECT id FROM orders) INSERT INTO output (id) SELECT id FROM q": (
        "WITH q AS (SELECT id FROM `v_o` AS `orders`) SELECT id FROM q"
    ),
    "INSERT INTO output SELECT * FROM output JOIN orders USING (id)": (
        "SELECT * FROM `v_out` AS `output` JOIN `v_o` AS `orders` USING (id)"
    ),
    # Deletes.
    "DELETE FROM output WHERE output.id IN (SELECT id FROM orders)": (
        "SELECT * FROM `v_out` AS `output` WHERE output.id IN (SELECT id FROM `v_o` AS `orders`)"
    ),
    "delete from `output` AS o where o.id in (table orders)": (
        "SELECT * from `v_out` AS o where o.id in (SELECT * FROM `v_o` AS `orders`)"
    ),
    "DELETE/* a */FROM/* b */output WHERE id IN (TABLE orders)": (
        "SELECT * /* a */FROM/* b */`v_out` AS `output` WHERE id IN (SELECT * FROM `v_o` AS `orders`)"
    ),
    "WITH q AS (SELECT id FROM orders) DELETE FROM output o WHERE o.id IN (SELECT id FROM q)": (
        "WITH q AS (SELECT id FROM `v_o` AS `orders`) SELECT * FROM `v_out` o WHERE o.id IN (SELECT id FROM q)"
    ),
}


@pytest.mark.parametrize("text", WHOLE)
def test_names_of_tables_are_bound_and_nothing_else(text: str) -> None:
    assert bound(text) == [WHOLE[text]]


# Queries whose bound text differs in the names of tables only. {orders} is a table to which the user gives no name, and
# gets its alias for one; {o} is the same table where another name follows.
PLAIN = """
SELECT * EXCEPT (a), o.b FROM {o} o GROUP BY ALL HAVING count(*) > 1 SORT BY a LIMIT 10 OFFSET 2
SELECT o.*, struct(a AS b, c), named_struct('d', 1).d, map(1, 2)[1], s.f.g FROM {o} o
SELECT CAST(a AS DECIMAL(10, 2)), b::varchar(3), try_cast(c AS STRUCT<time: INT, x: ARRAY<STRING>>) FROM {orders}
SELECT transform(xs, x -> x + 1), filter(xs, x -> x > 0), aggregate(xs, 0, (a, b) -> a + b) FROM {orders}
SELECT count(DISTINCT a, b) FILTER (WHERE c > 1), percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM {orders}
SELECT sum(x) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM {orders}
SELECT rank() OVER w, lag(a, 1) IGNORE NULLS OVER w FROM {orders} WINDOW w AS (PARTITION BY k ORDER BY t)
SELECT a, sum(b) FROM {orders} GROUP BY GROUPING SETS ((a), (a, b), ())
SELECT a, sum(b) FROM {orders} GROUP BY ROLLUP (a, b)
SELECT a, sum(b) FROM {orders} GROUP BY a WITH CUBE
SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END, CASE a WHEN 1 THEN 2 END c FROM {orders}
SELECT ts + INTERVAL '1 2:00' DAY TO MINUTE, d - INTERVAL 1 DAY 2 HOURS, DATE '2020-01-01' FROM {orders}
SELECT timestampadd(HOUR, 1, ts), dateadd(DAY, 1, d), timestampdiff(DAY, a, b), date_add(d, 1) FROM {orders}
SELECT 1L, 2S, 1.5BD, 1e3, .5, 5D, X'1F', -1 FROM {orders}
SELECT a <=> b, a || b, !a, ~a, a ^ b, a DIV b, a % b, a == b, a <> b, a != b FROM {orders}
SELECT a FROM {orders} WHERE b LIKE '%x' ESCAPE '/' AND c NOT ILIKE 'y' AND d RLIKE 'z' OR e IS UNKNOWN
SELECT a FROM {orders} WHERE b LIKE ANY ('x', 'y') AND c BETWEEN 1 AND 2 AND NOT (d NOT IN (1, 2))
SELECT a FROM {orders} WHERE (a, b) IN (SELECT a, b FROM {rates})
SELECT overlay(a PLACING ('x') FROM 3 FOR 2), substring(a FROM 2 FOR 3), position('a' IN b) FROM {orders}
SELECT a FROM {orders} WHERE a IS NOT DISTINCT FROM (SELECT max(a) FROM {rates})
SELECT a FROM {orders} EXCEPT DISTINCT SELECT a FROM {items} INTERSECT ALL SELECT a FROM {rates}
SELECT a AS b, c d FROM {orders} ORDER BY 1 DESC NULLS FIRST, c
SELECT a FROM {orders} CLUSTER BY a
SELECT a FROM {orders} DISTRIBUTE BY a SORT BY b
SELECT x.a FROM (SELECT * FROM {orders} ORDER BY a LIMIT 3) x JOIN {items} ON x.a = items.a
SELECT * FROM VALUES (1), (2) AS t(a) JOIN {orders} ON t.a = orders.a
SELECT * FROM (VALUES (1, 'a')) t(a, b), {orders}
SELECT * FROM range(3) r JOIN {orders} ON r.id = orders.id
SELECT * FROM {orders} LEFT JOIN LATERAL explode(orders.tags) t(x) ON true
SELECT * FROM {orders} JOIN LATERAL (SELECT * FROM {items} WHERE items.o = orders.id) ON TRUE
SELECT json_tuple(x, 'a') AS b, stack(2, 1, 2) AS (c) FROM {orders}
SELECT from_json(a, 'x INT, from STRING'), get_json_object(b, '$.from.orders') FROM {orders}
SELECT hash(*), xxhash64(a), md5(b), sha2(c, 256) FROM {orders}
SELECT regexp_replace(a, '\\\\d+', ''), split(b, ','), "x\\"y" FROM {orders}
SELECT exists(xs, x -> x > 1), forall(xs, x -> x > 1), zip_with(a, b, (x, y) -> x + y) FROM {orders}
SELECT window(ts, '10 minutes').start, sum(a) FROM {orders} GROUP BY window(ts, '10 minutes')
SELECT a, date_trunc('HOUR', ts), unix_timestamp(ts) FROM {orders} WHERE t >= :time - 10 AND t < :time
SELECT coalesce(a, b), nullif(a, b), if(a, 1, 2), nvl(a, 0), left(b, 1), right(b, 1) FROM {orders}
SELECT user.name, o.user, a AS user FROM {o} o JOIN {c} AS user ON o.c = user.id
SELECT sum(DISTINCT x) AS `count(*)`, `or``ders`, `a.b`.c FROM {orders}
SELECT a FROM {orders} WHERE `from` = 'FROM rates' AND x = "JOIN items"
SELECT first_value(a) OVER (ORDER BY b RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) FROM {orders}
SELECT a FROM {orders} INNER JOIN {rates}, {items}
SELECT a FROM {orders} RIGHT OUTER JOIN {rates} USING (a, b) WHERE EXISTS (SELECT 1 FROM {Customers})
SELECT * FROM {orders} PIVOT (sum(x) AS s, avg(y) FOR (k, l) IN ((1, 2) AS a, (3, 4)))
SELECT * FROM {orders} UNPIVOT INCLUDE NULLS ((a, b) FOR n IN ((c, d) AS x, (e, f))) u
SELECT max_by(a, b), any_value(a) IGNORE NULLS, array_agg(a), bool_or(c), count_if(c) FROM {orders}
SELECT a COLLATE UTF8_LCASE FROM {orders}
SELECT a FROM {orders} UNION ALL (SELECT a FROM {items} UNION SELECT a FROM {output})
SELECT CASE WHEN (SELECT count(*) FROM {rates}) > 1 THEN (SELECT max(x) FROM {items}) END FROM {orders}
WITH q(a, b) AS (SELECT id, 1 FROM {orders}) SELECT * FROM q t(x, y)
WITH p AS (SELECT 1 a), q AS (SELECT * FROM p, {orders}) SELECT * FROM p JOIN q USING (a)
SELECT * FROM {orders} WHERE id IN (WITH q AS (SELECT id FROM {rates}) SELECT id FROM q)
SELECT try_add(a, b), a::int + 1, (a).b, array(1, 2)[0], interval FROM {orders}
SELECT a FROM {orders} WHERE ts > TIMESTAMP '2020-01-01 00:00:00' AND d < DATE'2021-01-01'
SELECT now, curdate, current_schema, version, status = 'nowhere', k = 'todays', z = 'now what' FROM {orders}
SELECT a FROM {o} TIMESTAMP
"""
NAMES = {"orders": "orders", "items": "items", "rates": "rates", "Customers": "Customers", "output": "output"}
OWN = {"o": "orders", "r": "rates", "c": "Customers"}


@pytest.mark.parametrize("text", PLAIN.strip().split("\n"))
def test_real_queries_keep_their_text(text: str) -> None:
    views = {name: f"`{VIEWS[name]}` AS `{name}`" for name in NAMES}
    assert bound(text.format(**NAMES, **OWN)) == [
        text.format(**views, **{short: f"`{VIEWS[name]}`" for short, name in OWN.items()})
    ]


def test_semicolons_in_texts_and_comments_end_no_statement() -> None:
    body = parse(
        "; SELECT ';' /* ; */ FROM orders -- ;\n;;INSERT INTO output (a, `b c`) SELECT `;`, 1 FROM items;"
        " DELETE FROM output;\n-- the end;"
    )
    assert [(each.kind, each.columns, each.reads) for each in body.statements] == [
        ("insert", None, ("orders",)),
        ("insert", ("a", "b c"), ("items",)),
        ("delete", None, ("output",)),
    ]
    assert [each.text for each in body.statements] == [
        "SELECT ';' /* ; */ FROM orders",
        "INSERT INTO output (a, `b c`) SELECT `;`, 1 FROM items",
        "DELETE FROM output",
    ]
    assert body.statements[2].bind(VIEWS) == "SELECT * FROM `v_out` AS `output`"


def test_body_says_whether_it_deletes_and_reads_its_output() -> None:
    texts = ["TABLE orders", "SELECT * FROM orders JOIN output", "TABLE orders; DELETE FROM output WHERE a"]
    assert [(parse(text).deletes, parse(text).reads_output) for text in texts] == [
        (False, False),
        (False, True),
        (True, True),
    ]


def test_reads_are_aliases_as_declared_in_order() -> None:
    statement = parse("SELECT * FROM RATES JOIN customers JOIN Orders JOIN OUTPUT JOIN rates r").statements[0]
    assert statement.reads == ("Customers", "orders", "output", "rates")


def test_views_may_have_any_name() -> None:
    statement = parse("TABLE orders").statements[0]
    assert statement.bind({"orders": "a`b.c d"}) == "SELECT * FROM `a``b.c d` AS `orders`"


def test_view_named_as_a_part_of_the_query_is_refused() -> None:
    statement = parse("WITH q AS (SELECT 1) SELECT * FROM orders, q").statements[0]
    with pytest.raises(InvalidUsageError, match="found view='Q', a name of its WITH"):
        statement.bind({"orders": "Q"})


def test_alias_without_view_is_an_internal_error() -> None:
    with pytest.raises(TimelyInternalError, match="found no view of alias='orders'"):
        parse("TABLE orders").statements[0].bind({"rates": "v"})


# The time ------------------------------------------------------------------------------------------------


def test_time_is_put_where_it_is_a_parameter() -> None:
    query = bound(
        "SELECT CASE WHEN a THEN:time END, : time, -:time, f(:time), a.time, ':time', `:time`, x[:time], :time::int, "
        "CAST(y AS STRUCT<time:TIME>) /* :time */ FROM orders WHERE :time>z AND:time IS NOT NULL"
    )[0]
    assert at_time(query, "-7") == (
        "SELECT CASE WHEN a THEN -7 END, -7, - -7, f(-7), a.time, ':time', `:time`, x[-7], -7::int, "
        "CAST(y AS STRUCT<time:TIME>) /* :time */ FROM `v_o` AS `orders` WHERE -7>z AND -7 IS NOT NULL"
    )


# What is refused -----------------------------------------------------------------------------------------

REFUSED = {
    "": "no statement",
    " ; -- x\n /* ; */": "no statement",
    # Other statements, other targets.
    "MERGE INTO output USING orders ON a WHEN MATCHED THEN DELETE": "statement of kind 'MERGE'",
    "UPDATE output SET a = 1": "statement of kind 'UPDATE'",
    "WITH q AS (TABLE orders) UPDATE output SET a = 1": "statement of kind 'UPDATE'",
    "CREATE TABLE x AS SELECT * FROM orders": "statement of kind 'CREATE'",
    "DROP TABLE orders": "statement of kind 'DROP'",
    "SET x = 1": "statement of kind 'SET'",
    "USE db": "statement of kind 'USE'",
    "CALL f()": "statement of kind 'CALL'",
    "CACHE TABLE orders": "statement of kind 'CACHE'",
    "EXPLAIN SELECT * FROM orders": "statement of kind 'EXPLAIN'",
    "BEGIN SELECT * FROM orders; END": "statement of kind 'BEGIN'",
    "EXECUTE IMMEDIATE 'SELECT 1'": "statement of kind 'EXECUTE'",
    "SELECT 1 FROM orders; DROP TABLE x": "statement of kind 'DROP'",
    "INSERT OVERWRITE output SELECT * FROM orders": "INSERT OVERWRITE",
    "INSERT INTO output BY NAME SELECT * FROM orders": "INSERT INTO output … BY",
    "INSERT INTO output PARTITION (a = 1) SELECT * FROM orders": "INSERT INTO output … PARTITION",
    "INSERT INTO output REPLACE WHERE a SELECT * FROM orders": "INSERT INTO output … REPLACE",
    "INSERT INTO output": "INSERT INTO output …",
    "INSERT INTO output (a,": "',' among the columns of INSERT",
    "INSERT INTO output (a, A) SELECT 1, 2 FROM orders": "column 'A' twice in INSERT",
    "INSERT INTO rates SELECT * FROM orders": "table 'rates' that is written",
    "INSERT INTO db.output SELECT * FROM orders": "table 'db.output' that is written",
    "INSERT INTO output.x SELECT * FROM orders": "table 'output.x' that is written",
    "FROM orders INSERT INTO output SELECT a": "MultitableInserts in place of a query",
    "DELETE FROM orders": "table 'orders' that is written",
    "DELETE output WHERE a": "DELETE OUTPUT",
    "DELETE FROM output o (a) WHERE a": "DELETE FROM output … (",
    "DELETE FROM output USING orders": "DELETE FROM output … ORDERS",
    "DELETE FROM output WHERE a LIMIT 3": "DELETE with limit",
    "DELETE FROM output WHERE a GROUP BY b": "DELETE with group",
    "DELETE FROM output WHERE a UNION SELECT * FROM orders": "DELETE with UNION",
    "SELECT a INTO x FROM orders": "INTO inside a query",
    # Tables.
    "SELECT * FROM other, orders": "table 'other' that the task does not declare",
    "SELECT * FROM db.orders": "table 'db.orders' that the task does not declare",
    "SELECT * FROM c.db.orders": "table 'c.db.orders' that the task does not declare",
    "SELECT * FROM parquet.`/x`, orders": "table 'parquet.`/x`' that the task does not declare",
    "SELECT * FROM orders WHERE a IN (TABLE other)": "table 'other' that the task does not declare",
    "SELECT * FROM STREAM orders": "table 'STREAM' that the task does not declare",
    "WITH q AS (WITH p AS (TABLE orders) TABLE p) SELECT * FROM p": "table 'p' that the task does not declare",
    "WITH a AS (TABLE b), b AS (TABLE orders) TABLE a": "table 'b' that the task does not declare",
    "WITH a AS (TABLE a) SELECT * FROM a, orders": "table 'a' that the task does not declare",
    "(WITH q AS (TABLE orders) TABLE q) UNION TABLE q": "table 'q' that the task does not declare",
    "WITH Rates AS (SELECT 1) SELECT * FROM orders": "query 'Rates' of WITH, the name of a table of the task",
    "WITH output AS (SELECT 1) SELECT * FROM orders": "query 'output' of WITH, the name of a table of the task",
    "SELECT * FROM orders VERSION AS OF 3": "version of table 'orders'",
    "SELECT * FROM orders TIMESTAMP AS OF '2020-01-01'": "version of table 'orders'",
    "SELECT * FROM s3://x/orders": "a path",
    'SELECT * FROM "orders"': "SQL that was not understood (table '\"orders\"')",
    "SELECT * FROM orders, 'rates'": "SQL that was not understood (table \"'rates'\")",
    "SELECT * FROM orders, my_udtf(TABLE(orders))": "TABLE where no query begins",
    "SELECT * FROM orders, my_udtf(1)": "table function 'my_udtf'",
    "SELECT * FROM orders JOIN LATERAL my_udtf(x)": "table function 'my_udtf'",
    "SELECT * FROM orders LATERAL VIEW my_udtf(x) t": "table function 'my_udtf'",
    "SELECT * FROM orders, `sql_keywords`()": "table function 'sql_keywords'",
    "SELECT * FROM orders, unnest(x)": "table function 'unnest'",
    "SELECT * FROM stream(orders)": "table function 'stream'",
    "SELECT * FROM IDENTIFIER('orders')": "'identifier', which depends on the session or the machine",
    # Equal rows in, other rows out.
    "SELECT now() FROM orders": "the clock 'now'",
    "SELECT `NOW` /* x */ () FROM orders": "the clock 'now'",
    "SELECT a FROM orders WHERE t > current_timestamp()": "the clock 'current_timestamp'",
    "SELECT a FROM orders WHERE t > localtimestamp()": "the clock 'localtimestamp'",
    "DELETE FROM output WHERE t < curdate()": "the clock 'curdate'",
    "SELECT unix_timestamp( /* */ ) FROM orders": "the clock 'unix_timestamp'",
    "SELECT TIMESTAMP 'now' FROM orders": "the clock 'now'",
    "SELECT a FROM orders WHERE d = DATE'Today'": "the clock 'Today'",
    "SELECT to_date(' yesterday ') FROM orders": "the clock ' yesterday '",
    "SELECT a FROM orders WHERE t > 'tomorrow Europe/Paris'": "the clock 'tomorrow Europe/Paris'",
    "SELECT a FROM orders WHERE t > 'n' \"ow\"": "the clock 'now'",
    "SELECT rand() FROM orders": "random 'rand'",
    "SELECT uuid() FROM orders": "random 'uuid'",
    "SELECT shuffle(xs) FROM orders": "random 'shuffle'",
    "SELECT monotonically_increasing_id() FROM orders": "random 'monotonically_increasing_id'",
    "SELECT * FROM orders TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    "SELECT spark_partition_id() FROM orders": "'spark_partition_id', which depends on the session or the machine",
    "SELECT input_file_name() FROM orders": "'input_file_name', which depends on the session or the machine",
    "SELECT current_database() FROM orders": "'current_database', which depends on the session or the machine",
    "SELECT version() FROM orders": "'version', which depends on the session or the machine",
    "SELECT reflect('a', 'b') FROM orders": "'reflect', which depends on the session or the machine",
    "SELECT orders._metadata.file_path FROM orders": "column _metadata",
    "SELECT a.f(1) FROM orders": "function 'f' of a schema",
    "SELECT system.builtin.now() FROM orders": "function 'now' of a schema",
    "SELECT TRANSFORM(a) USING 'cat' FROM orders": "script 'cat'",
    "FROM (FROM orders MAP a USING 'cat' AS b) x SELECT b": "script 'cat'",
    "SELECT '${x}' FROM orders": "${",
    "SELECT a -- ${x}\n FROM orders": "${",
    # Parameters.
    "SELECT ? FROM orders": "parameter ?",
    "SELECT :t FROM orders": "parameter :t",
    "SELECT :TIME FROM orders": "parameter :TIME",
    "SELECT a:time FROM orders": "SQL that was not understood (:time that is no value)",
    # What is not read as Spark reads it.
    "FROM orders |> WHERE a": "pipe |>",
    "SELECT a -- x \\\nFROM rates\nFROM orders": "SQL that was not understood (it ends texts or comments elsewhere",
    "SELECT {# FROM rates #} a FROM orders": "character '{'",
    "SELECT a FROM orders@v1": "character '@'",
    "SELECT\u00a0a FROM orders": "character '\\xa0'",
    "SELECT 'abc FROM orders": 'character "\'"',
    "SELECT `abc FROM orders": "character '`'",
    "SELECT a /* /* */ FROM orders": "a comment without an end",
    "SELECT a FROM orders WHERE": "SQL that was not understood",
    "SELECT a FROM orders)": "SQL that was not understood",
    "SELECT a FROM orders SELECT b": "SQL that was not understood",
    "SELECT table FROM orders": "TABLE where no query begins",
    "SELECT " + "(" * 2000 + "a" + ")" * 2000 + " FROM orders": "SQL that was not understood",
    # No input.
    "SELECT 1": "no input of ['orders', 'items'] that any statement reads",
    "SELECT * FROM rates": "no input of ['orders', 'items'] that any statement reads",
    "DELETE FROM output": "no input of ['orders', 'items'] that any statement reads",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_other_sql_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        parse(text)
    message = caught.value.message
    assert message.startswith(f"could not read the body of task 't': found {REFUSED[text]}"), message
    assert caught.value.hint


def test_rule_002_36_sql_that_reads_no_input_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"found no input of .* hint: read an input"):
        parse("INSERT INTO output VALUES (1); INSERT INTO output SELECT * FROM rates")
    # One statement that does is enough.
    assert [each.reads for each in parse("INSERT INTO output VALUES (1); TABLE orders").statements] == [(), ("orders",)]


def test_error_names_the_statement_as_it_was_written() -> None:
    with pytest.raises(InvalidUsageError, match=r"in statement 'INSERT INTO output TABLE other' — hint: declare it"):
        parse("TABLE orders; INSERT INTO output TABLE other")


def test_body_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="found body=7"):
        SqlBody.parse(7, task="t", inputs=["a"], references=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "references", "found"),
    [
        ([], ["a"], r"inputs=\[\]"),
        (["a b"], [], "alias='a b', no plain name"),
        (["1a"], [], "alias='1a', no plain name"),
        (["é"], [], "alias='é', no plain name"),
        (["a"], ["A"], "alias='A' twice, without regard to case"),
        (["Output"], [], "alias='Output', the name of the task's own output"),
        (["a"], ["select"], "alias='select', a word of SQL"),
        (["lateral"], [], "alias='lateral', a word of SQL"),
        (["values"], [], "alias='values', a word of SQL"),
        (["user"], [], "alias='user', a word of SQL"),
    ],
)
def test_aliases_that_cannot_be_named_are_refused(inputs: list[str], references: list[str], found: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not make task 't': found {found}"):
        check_aliases("t", inputs, references)
    with pytest.raises(InvalidUsageError, match=found):
        SqlBody.parse("SELECT 1", task="t", inputs=inputs, references=references)


def test_names_that_are_words_elsewhere_are_aliases() -> None:
    names = ["events", "index", "date", "_a1", "stream", "time", "source"]
    body = SqlBody.parse(" UNION ".join(f"TABLE {name}" for name in names), task="t", inputs=names, references=[])
    assert body.statements[0].reads == tuple(sorted(names))


# Functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "functions"),
    [
        ("SELECT SUM(a), `my udf`(b), count(*), f ( 1 ) FROM orders", ("count", "f", "my udf", "sum")),
        ("SELECT a IN (1), NOT (b), CASE WHEN (c) THEN (d) END FROM orders WHERE (e) AND EXISTS (TABLE rates)", ()),
        ("SELECT CAST(a AS DECIMAL(10, 2)), b::varchar(3), struct(c), 'g(1)' FROM orders -- h(1)", ()),
        ("SELECT /*+ BROADCAST(o) */ sum(x) OVER (ORDER BY y) FROM orders o(x, y)", ("sum",)),
        ("WITH q(a) AS (TABLE orders) SELECT a.b, (SELECT max(x) FROM VALUES 'a' AS t(x)) FROM q p(a)", ("max",)),
        (
            "SELECT * FROM orders, LATERAL explode(f(tags)) t(x) LATERAL VIEW stack(1, 2) AS y",
            ("explode", "f", "stack"),
        ),
        ("TABLE orders; DELETE FROM output WHERE g(x)", ("g",)),
    ],
)
def test_functions_are_named_once(text: str, functions: tuple[str, ...]) -> None:
    assert parse(text).functions == functions


def test_unknown_functions_are_neither_built_in_nor_declared() -> None:
    body = parse("SELECT sum(a), my_f(b), Other(c) FROM orders")
    assert unknown_functions(body.functions, {"sum", "max"}, []) == ("my_f", "other")
    assert unknown_functions(body.functions, {"SUM"}, ["My_F"]) == ("other",)


# Identity ------------------------------------------------------------------------------------------------

SAID = "SELECT o.a, Sum(b) AS Eur, 'x' FROM orders o WHERE c > 1.5 AND CAST(d AS INT) > INTERVAL 1 DAY"


@pytest.mark.parametrize(
    "same",
    [
        "select o.a, SUM(b) as Eur, 'x' from orders o where c > 1.5 and cast(d as int) > interval 1 day",
        "SELECT\n\to . a ,Sum ( b )AS Eur,'x'\r\nFROM orders o WHERE c>1.5 AND CAST(d AS INT)>INTERVAL 1 DAY;",
        "/* why */ SELECT o.a, Sum(b) -- what\n AS Eur, 'x' FROM orders/**/o WHERE c > 1.5 AND CAST(d AS INT) > "
        "INTERVAL 1 DAY; -- end",
        "SELECT `o`.`a`, Sum(`b`) AS `Eur`, 'x' FROM `orders` `o` WHERE `c` > 1.5 AND CAST(d AS INT) > INTERVAL 1 DAY",
    ],
)
def test_identity_is_the_same_for_what_says_the_same(same: str) -> None:
    assert parse(same).identity == parse(SAID).identity


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'x'", "'X'"),
        ("'x'", "' x'"),
        ("1.5", "1.50"),
        ("1 DAY", "2 DAY"),
        ("o.a", "o.b"),
        ("Eur", "eur"),
        ("AND", "OR"),
        ("INT)", "LONG)"),
        ("orders o", "items o"),
        ("c > 1.5", "(c > 1.5)"),
        ("SELECT o", "SELECT DISTINCT o"),
        ("SELECT o", "INSERT INTO output SELECT o"),
        ("DAY", "DAY; DELETE FROM output"),
    ],
)
def test_identity_differs_for_what_says_something_else(old: str, new: str) -> None:
    changed = SAID.replace(old, new)
    assert changed != SAID
    assert parse(changed).identity != parse(SAID).identity


def test_identity_takes_no_quoted_key_word_for_the_word() -> None:
    assert parse("SELECT a `limit` FROM orders").identity != parse("SELECT a limit FROM orders").identity


def test_identity_is_what_earlier_versions_recorded() -> None:
    # A changed value refuses every task that was started before.
    assert parse(SAID).identity == "d9fd0de5b096f9f8085e5c53d5720835"


# Sugar ---------------------------------------------------------------------------------------------------


def test_retain_keeps_rows_for_which_the_condition_holds() -> None:
    text = retain_body(" day > :time - 30 AND k LIKE ')' -- the last 30\n", "orders")
    condition = "(day > :time - 30 AND k LIKE ')')"
    assert text == (
        f"INSERT INTO output SELECT * FROM orders WHERE {condition} IS TRUE; "
        f"DELETE FROM output WHERE {condition} IS NOT TRUE"
    )
    assert [each.kind for each in parse(text).statements] == ["insert", "delete"]


@pytest.mark.parametrize("expr", ["", "-- x", "a; b", "a) OR (b", "(a", "a)"])
def test_retain_of_what_is_no_condition_is_refused(expr: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not keep rows of 'orders'"):
        retain_body(expr, "orders")


def test_transform_inserts_what_the_query_returns() -> None:
    text = transform_body(" -- all\n WITH q AS (TABLE orders) SELECT ';' FROM q ; ")
    assert text == "INSERT INTO output WITH q AS (TABLE orders) SELECT ';' FROM q"
    assert parse(text).statements[0].kind == "insert"


@pytest.mark.parametrize("query", ["", "SELECT 1; SELECT 2", "SELECT (1"])
def test_transform_of_what_is_no_query_is_refused(query: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not transform"):
        transform_body(query)


@pytest.mark.parametrize(
    "condition",
    [
        *("rand() > 2", "uuid() IS NULL", "at < now()", "current_user() = 'a'"),
        *("java_method('java.lang.System', 'currentTimeMillis') > '1'", "n IN (SELECT id FROM allowed)", "${x} = 1"),
        *(
            "EXISTS (SELECT 1 FROM parquet.`/tmp/nope`)",
            "EXISTS (SELECT 1 FROM judged)",
            "count(*) OVER () < 2",
            "n > 1; n",
        ),
        *("n > 1) OR (n < 2", "", "-- nothing"),
    ],
)
def test_condition_that_sees_more_than_its_row_is_refused(condition: str) -> None:
    with pytest.raises(InvalidUsageError):
        checked_condition(condition, task="t", name="some")


def test_condition_may_call_functions_and_have_the_time() -> None:
    found = checked_condition(" n > my_f(k) AND day > :time - 30 -- or so", task="t", name="some")
    assert found == ("n > my_f(k) AND day > :time - 30", ("my_f",))
