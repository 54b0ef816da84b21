"""Statements: what a text asks for, what is refused by name, and that a statement written is read as itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.answers.statements import (
    CopyStatement,
    PeekStatement,
    SqlStatement,
    Statement,
    SubscribeStatement,
    Target,
    parse,
    parse_order,
)
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError
from spark_timely.log import MemoryLog
from spark_timely.predicate import is_condition, parse_predicate
from tests.support import examples

NAMES: dict[str, Target] = {"orders": "/data/orders", "T": "s3://bucket/t", "with space": "/x"}
ASC, DESC = ("asc", "first"), ("desc", "last")


def peek(**fields: Any) -> PeekStatement:
    return PeekStatement(**{"name": "orders", "target": "/data/orders"} | fields)


def subscribe(**fields: Any) -> SubscribeStatement:
    return SubscribeStatement(**{"name": "orders", "target": "/data/orders"} | fields)


# --- SELECT -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM orders", peek()),
        ("select*from ORDERS;", peek(name="ORDERS")),
        ("/* a /* b */ */ Select a, `b c` -- AS OF 9\nFROM t;;",
         peek(name="t", target="s3://bucket/t", select=("a", "b c"))),
        ("SELECT a FROM `/data/x y`", peek(name="/data/x y", target="/data/x y", select=("a",))),
        ("SELECT a FROM `./x``y`", peek(name="./x`y", target="./x`y", select=("a",))),
        ("SELECT * FROM `with space`", peek(name="with space", target="/x")),
        ("SELECT größe FROM orders", peek(select=("größe",))),
        ("SELECT * FROM orders WHERE a = 'AS OF 3' AND b > 2 AS OF 5", peek(where="a = 'AS OF 3' AND b > 2", as_of=5)),
        ("SELECT * FROM orders WHERE (a OR b) -- x\n AND NOT c", peek(where="(a OR b) -- x\n AND NOT c")),
        ("SELECT * FROM orders WHERE d > DATE '2013-06-12'", peek(where="d > DATE '2013-06-12'")),
        ("SELECT * FROM orders ORDER BY a, b DESC", peek(order_by=(("a", *ASC), ("b", *DESC)))),
        (
            "SELECT * FROM orders ORDER BY a ASC NULLS LAST, b DESC NULLS FIRST LIMIT 7 OFFSET 2",
            peek(order_by=(("a", "asc", "last"), ("b", "desc", "first")), limit=7, offset=2),
        ),
        ("SELECT * FROM orders LIMIT 0 OFFSET 0", peek(limit=0)),
        ("SELECT * FROM orders OFFSET 3", peek(offset=3)),
        (f"SELECT * FROM orders LIMIT {2**63} OFFSET {2**64}", peek(limit=2**63, offset=2**64)),
        ("SELECT * FROM orders AS OF -4", peek(as_of=-4)),
        ("SELECT * FROM orders AS OF AT LEAST '2013-06-12T08:00Z'", peek(as_of_at_least="2013-06-12T08:00Z")),
        ("SELECT * FROM orders AS OF date '2013-06-12'", peek(as_of="2013-06-12")),
        ('SELECT * FROM orders as of timestamp "2013-06-12T08:00Z"', peek(as_of="2013-06-12T08:00Z")),
        ("SELECT * FROM orders AS OF (1, -2)", peek(as_of=(1, -2))),
        ("SELECT * FROM orders AS OF AT LEAST ('2013-06-12', 3)", peek(as_of_at_least=("2013-06-12", 3))),
        # Columns that are called as words of statements are.
        ("SELECT subscribe, timestamp, version, key FROM orders ORDER BY timestamp AS OF 3",
         peek(select=("subscribe", "timestamp", "version", "key"), order_by=(("timestamp", *ASC),), as_of=3)),
        ("SELECT `limit`, `of` FROM orders WHERE `order` = 1", peek(select=("limit", "of"), where="`order` = 1")),
    ],
)  # fmt: skip
def test_select_of_rows_of_one_log_is_a_peek(text: str, expected: PeekStatement) -> None:
    assert parse(text, names=NAMES) == expected


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.a FROM orders o JOIN t USING (a)",
        "SELECT a FROM orders, t",
        "SELECT count(*) FROM orders",
        "SELECT DISTINCT a FROM orders",
        "SELECT ALL a FROM orders",
        "SELECT a b FROM orders",
        "SELECT a AS b FROM orders",
        "SELECT a, a FROM orders",
        "SELECT a, A FROM orders",
        "SELECT a + 1 FROM orders",
        "SELECT 1 FROM orders",
        "SELECT null FROM orders",
        "SELECT *, a FROM orders",
        "SELECT orders.* FROM orders",
        "SELECT t.a FROM orders",
        "SELECT orders.a FROM orders o",
        "SELECT orders.a.f FROM orders",
        "SELECT a.orders.b FROM orders",
        "SELECT orders.a(b) FROM orders",
        "SELECT a FROM orders TABLESAMPLE (3 ROWS)",
        "SELECT a FROM orders o p",
        "SELECT a FROM orders AS o (b)",
        "SELECT a FROM orders ORDER BY user",
        "SELECT a FROM orders o QUALIFY a",
        "SELECT /*+ COALESCE(1) */ a FROM orders",
        "SELECT a FROM orders GROUP BY a",
        "SELECT a FROM orders WHERE a = 1 GROUP BY a",
        "SELECT a FROM orders WHERE a = 1 UNION ALL SELECT a FROM t",
        "SELECT a FROM orders WHERE abs(a) > 1",
        "SELECT a FROM orders WHERE a IN (SELECT a FROM t)",
        "SELECT a FROM orders WHERE a / 2 = 1",
        "SELECT a FROM orders WHERE a IS TRUE",
        "SELECT a FROM orders WHERE a = r'x'",
        "SELECT a FROM orders WHERE a = 'x' 'y'",
        "SELECT a FROM orders WHERE a = '\\n'",
        "SELECT a FROM orders WHERE",
        "SELECT a FROM orders ORDER BY 1",
        "SELECT a FROM orders ORDER BY a + 1",
        "SELECT a FROM orders ORDER BY a, A",
        "SELECT a FROM orders LIMIT 1 + 1",
        "SELECT a FROM orders LIMIT 1L",
        "SELECT a FROM orders LIMIT ALL",
        "SELECT a FROM orders LIMIT 999999999999999999999999999999999999999",
        "SELECT a FROM orders OFFSET 1 LIMIT 2",
        "SELECT a FROM (SELECT a FROM orders)",
        "SELECT a FROM a.b",
        "SELECT 1",
        "WITH x AS (SELECT a FROM orders) SELECT * FROM x",
        "(SELECT a FROM orders)",
    ],
)
def test_any_other_select_is_for_spark_byte_for_byte(query: str) -> None:
    assert parse(query, names=NAMES) == SqlStatement(query)
    assert parse(f" /* x */ {query}  -- y\n AS  OF '2013' ; -- z", names=NAMES) == SqlStatement(query, as_of="2013")
    assert parse(f"{query} as of at least 7", names=NAMES) == SqlStatement(query, as_of_at_least=7)


@pytest.mark.parametrize(
    ("query", "plain", "qualifier"),
    [
        ("SELECT orders.a FROM orders", "SELECT a FROM orders", "orders"),
        ("SELECT ORDERS . a, `orders`.b FROM orders", "SELECT a, b FROM orders", "orders"),
        ("SELECT a FROM orders o", "SELECT a FROM orders", "o"),
        ("SELECT o.a FROM orders AS o WHERE o.a = 'o.a'", "SELECT a FROM orders WHERE a = 'o.a'", "o"),
        ("SELECT * FROM orders WHERE orders.user = 'x' -- y\n ORDER BY orders.a DESC LIMIT 3",
         "SELECT * FROM orders WHERE user = 'x' ORDER BY a DESC LIMIT 3", "orders"),
        ("SELECT `/logs/t`.a FROM `/logs/t`", "SELECT a FROM `/logs/t`", "/logs/t"),
    ],
)  # fmt: skip
def test_qualified_names_of_the_one_table_are_a_peek(query: str, plain: str, qualifier: str) -> None:
    found = parse(f"{query} AS OF 3", names=NAMES)
    assert isinstance(found, PeekStatement)
    assert (found, found.qualifier) == (parse(f"{plain} AS OF 3", names=NAMES), qualifier)
    assert parse(query, names=NAMES, peeks=False) == SqlStatement(query)


@pytest.mark.parametrize("name", ["user", "date", "current_date", "current_timestamp", "`user`"])
def test_columns_called_as_functions_are_columns_of_a_peek(name: str) -> None:
    found = parse(f"SELECT {name} FROM orders WHERE {name} > 'a' ORDER BY {name}", names=NAMES)
    assert isinstance(found, PeekStatement)
    assert found.select == (name.strip("`"),)


def test_conditions_of_peeks_are_those_that_predicates_take() -> None:
    types = {"a": pa.int64(), "b": pa.bool_(), "d": pa.date32(), "k": pa.string()}
    known = [
        "a = 1", "a <> -1 AND b", "NOT (a < 2 OR a >= 1e3)", "a IS NULL", "a IS NOT NULL", "a IN (1, 2, NULL)",
        "a NOT IN (1)", "a BETWEEN 1 AND 2", "k LIKE 'x%'", "k NOT LIKE 'x%'", "a + 1 * 2 - 3 > 0",
        "d = DATE '2013-01-01'", "TRUE", "NULL", "`a` == 1", "A = 1", " OR ".join(f"a = {n}" for n in range(3000)),
    ]  # fmt: skip
    others = [
        "", "a IS TRUE", "abs(a) = 1", "t.a = 1", "a = 1 x", "a IN (SELECT 1)", "a = 1; b", "k RLIKE 'x'",
        "CAST(a AS INT) = 1", "a <=> 1", "CASE WHEN b THEN b END", "a = X'ab'", "DATE k = d", "EXISTS (SELECT 1)",
        "a IN ()", "INT '5' = a", "DATE(k) = d", "a[0] = 1", "k LIKE 'x' ESCAPE '!'",
    ]  # fmt: skip
    for text in known:
        assert is_condition(text), text
        parse_predicate(text, types, what="test")
    for text in others:
        assert not is_condition(text), text
        with pytest.raises(InvalidUsageError):
            parse_predicate(text, types, what="test")


# --- SUBSCRIBE, COPY ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SUBSCRIBE orders", subscribe()),
        ("subscribe to `/a/b`;", subscribe(name="/a/b", target="/a/b")),
        ("SUBSCRIBE orders WITH (SNAPSHOT = false)", subscribe(snapshot=False)),
        ("SUBSCRIBE orders WITH (PROGRESS)", subscribe(progress=True)),
        ("SUBSCRIBE orders WITH (progress = TRUE, snapshot)", subscribe(progress=True)),
        ("SUBSCRIBE orders ENVELOPE UPSERT (KEY (a))", subscribe(envelope="upsert", key=("a",))),
        (
            "SUBSCRIBE orders ENVELOPE DEBEZIUM (KEY (`a b`, c)) WITH (SNAPSHOT = false) AS OF 3",
            subscribe(envelope="debezium", key=("a b", "c"), snapshot=False, as_of=3),
        ),
        (
            "SUBSCRIBE orders WITH (SNAPSHOT = false) ENVELOPE UPSERT (KEY (a)) AS OF AT LEAST 3 UP TO 9",
            subscribe(envelope="upsert", key=("a",), snapshot=False, as_of_at_least=3, up_to=9),
        ),
        (
            "SUBSCRIBE orders WITHIN TIMESTAMP ORDER BY mz_diff DESC, a NULLS LAST UP TO (1, 2)",
            subscribe(order_by=(("mz_diff", *DESC), ("a", "asc", "last")), up_to=(1, 2)),
        ),
        ("SUBSCRIBE orders UP TO '2013-06-12'", subscribe(up_to="2013-06-12")),
        ("COPY orders TO '/out'", CopyStatement(peek(), "/out")),
        ('COPY `/a/b` TO "it\'s" AS OF 3', CopyStatement(peek(name="/a/b", target="/a/b", as_of=3), "it's")),
        (
            "COPY (SELECT a FROM orders WHERE a > 1) TO 's3://x/y' WITH (FORMAT='csv', MAX FILE SIZE='64 MB') AS OF 3",
            CopyStatement(peek(select=("a",), where="a > 1", as_of=3), "s3://x/y", "csv", 64 << 20),
        ),
        ("COPY orders TO 'x' WITH (MAX FILE SIZE = 20000000)", CopyStatement(peek(), "x", "parquet", 20_000_000)),
        (
            "copy (select count(*) from orders, (select 1) x) to 'x' with (format = PARQUET) as of at least 4;",
            CopyStatement(SqlStatement("select count(*) from orders, (select 1) x", as_of_at_least=4), "x"),
        ),
    ],
)
def test_subscribe_and_copy(text: str, expected: SubscribeStatement | CopyStatement) -> None:
    assert parse(text, names=NAMES) == expected
    assert parse(str(expected), names=NAMES) == expected


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "0 statements"),
        (" -- nothing\n;", "0 statements"),
        ("SELECT 1; SELECT 2", "2 statements"),
        *((f"{kind} x", f"statement of kind {kind!r}") for kind in (
            "INSERT", "UPDATE", "DELETE", "MERGE", "EXPLAIN", "FETCH", "DECLARE", "CREATE", "DROP", "SHOW", "SET",
            "TABLE", "VALUES", "TAIL", "USE", "CALL", "FROM", "END", "AS", "ORDERS",
        )),
        ("'SELECT'", "\"'SELECT'\" where a statement begins"),
        ("`SELECT` a", "'`SELECT`' where a statement begins"),
        ("SELECT a FROM nobody", "table 'nobody', which has no log"),
        ("SELECT a FROM `nobody`", "table 'nobody', which has no log"),
        ("SUBSCRIBE nobody", "table 'nobody', which has no log"),
        ("COPY nobody TO 'x'", "table 'nobody', which has no log"),
        ("SELECT a FROM orders AS OF", "its end behind AS OF"),
        ("SELECT a AS of FROM orders", "'FROM' behind AS OF"),
        ("SELECT a FROM orders AS OF 1.5", "'1.5' behind AS OF"),
        ("SELECT a FROM orders AS OF now()", "'now' behind AS OF"),
        ("SELECT a FROM orders AS OF ''", "\"''\" behind AS OF"),
        ("SELECT a FROM orders AS OF - '3'", "'-' behind AS OF"),
        ("SELECT a FROM orders AS OF (1)", "')' behind AS OF"),
        ("SELECT a FROM orders AS OF (1, 2", "its end for )"),
        ("SELECT a FROM orders AS OF 12345678901234567890", "'12345678901234567890' behind AS OF"),
        ("SELECT a FROM orders AS OF 1 UP TO 2", "'UP' behind AS OF"),
        ("SELECT a FROM orders AS OF 1 LIMIT 3", "'LIMIT' behind AS OF"),
        ("SELECT a FROM orders AS OF 1 AS OF 2", "2 times AS OF"),
        ("SELECT a FROM (SELECT a FROM orders AS OF 1)", "')' behind AS OF"),
        ("SELECT a FROM orders AS OF 'a\\b'", "a backslash or a prefix in text"),
        ("SELECT a FROM orders AS OF r'a'", "a backslash or a prefix in text"),
        ("SELECT a FROM orders AS OF 'a''b'", "text 'b' right behind another one"),
        ("SELECT a FROM orders VERSION AS OF 3", "VERSION AS OF"),
        ("SELECT a FROM orders FOR SYSTEM_TIME AS OF '2013'", None),
        ("SELECT a FROM orders TIMESTAMP AS OF '2013'", "TIMESTAMP AS OF"),
        ("SELECT a FROM orders WHERE x = 'open", "character \"'\""),
        ("SELECT a FROM orders /* open", "a comment without an end"),
        ("SUBSCRIBE", "its end for the name of a log"),
        ("SUBSCRIBE (SELECT a FROM orders)", "SUBSCRIBE to a query"),
        ("SUBSCRIBE orders WITH ()", "')' among the options"),
        ("SUBSCRIBE orders WITH (SNAPSHOT = 1)", "'1' among the options"),
        ("SUBSCRIBE orders WITH (SNAPSHOT = false, SNAPSHOT = true)", "an option twice"),
        ("SUBSCRIBE orders WITH (SNAPSHOT = false) WITH (PROGRESS)", "'WITH'"),
        ("SUBSCRIBE orders WITH SNAPSHOT", "'SNAPSHOT' for ("),
        ("SUBSCRIBE orders WITH (RETAIN = true)", "'RETAIN' among the options"),
        ("SUBSCRIBE orders ENVELOPE UPSERT", "its end for ( KEY ("),
        ("SUBSCRIBE orders ENVELOPE UPSERT (KEY ())", "')' for a column of the key"),
        ("SUBSCRIBE orders ENVELOPE NONE", "'NONE' behind ENVELOPE"),
        ("SUBSCRIBE orders ENVELOPE UPSERT (KEY (a)) WITHIN TIMESTAMP ORDER BY b", "'WITHIN'"),
        ("SUBSCRIBE orders ENVELOPE UPSERT (KEY (a)) ENVELOPE UPSERT (KEY (a))", "'ENVELOPE'"),
        ("SUBSCRIBE orders WITHIN TIMESTAMP ORDER BY a + 1", "'+'"),
        ("SUBSCRIBE orders WITHIN TIMESTAMP ORDER BY 1", "'1' behind ORDER BY"),
        ("SUBSCRIBE orders UP TO 3 AS OF 1", "'AS'"),
        ("SUBSCRIBE orders WHERE a = 1", "'WHERE'"),
        ("SUBSCRIBE orders UP TO", "its end behind UP TO"),
        ("COPY orders FROM 'x'", "COPY … FROM"),
        ("COPY orders", "its end for TO"),
        ("COPY orders TO STDOUT", "'STDOUT' for the folder"),
        ("COPY orders TO ''", "an empty text for the folder"),
        ("COPY orders TO 'C:\\x'", "a backslash or a prefix in text"),
        ("COPY orders TO 'x' WITH (FORMAT = 'json')", "format \"'json'\""),
        ("COPY orders TO 'x' WITH (FORMAT 'csv')", "'FORMAT' among the options"),
        ("COPY orders TO 'x' WITH (FORMAT = csv, FORMAT = csv)", "'FORMAT' among the options"),
        ("COPY orders TO 'x' WITH (MAX FILE SIZE = 'big')", "size 'big'"),
        ("COPY orders TO 'x' WITH (HEADER = true)", "'HEADER' among the options"),
        ("COPY (SELECT a FROM orders AS OF 3) TO 'x'", "AS OF in the brackets of COPY"),
        ("COPY (SUBSCRIBE orders) TO 'x'", "'SUBSCRIBE' for a SELECT"),
        ("COPY () TO 'x'", "')' for a SELECT"),
        ("COPY (SELECT a FROM orders", "a bracket that is not closed"),
        ("COPY orders TO 'x' LIMIT 3", "'LIMIT'"),
        ("COPY TO 'x'", None),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_refused_by_name(text: str, found: str | None) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        parse(text, names=NAMES)
    assert caught.value.message.startswith("could not read a statement: found ")
    assert caught.value.hint
    if found is not None:
        assert f"found {found}" in caught.value.message


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["orders"], "names=['orders']"),
        ({"a": "/x", "A": "/y"}, "name 'A' in names"),
        ({"": "/x"}, "name '' in names"),
        ({1: "/x"}, "name 1 in names"),
        ({"a": 1}, "1 for name 'a'"),
    ],
)
def test_names_that_are_none_are_refused(names: Any, found: str) -> None:
    with pytest.raises(InvalidUsageError, match=re.escape(f"found {found}")):
        parse("SELECT a FROM a", names=names)
    with pytest.raises(InvalidUsageError, match="found text=None"):
        parse(None)  # type: ignore[arg-type]


def test_a_name_may_stand_for_an_open_log_or_a_path() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]))
    for target in (log, Path("/x/y")):
        found = parse("SELECT * FROM a", names={"a": target})
        assert isinstance(found, PeekStatement)
        assert found.target is target
    # A name wins over the path that it looks like.
    assert parse("SUBSCRIBE `a/b`", names={"A/B": "/c"}) == subscribe(name="a/b", target="/c")


def test_order_alone() -> None:
    assert parse_order("a desc, `b c` NULLS LAST") == (("a", *DESC), ("b c", "asc", "last"))
    for text in ("", "a,", "a b", "a desc;", "1", "a NULLS", "lower(a)"):
        with pytest.raises(InvalidUsageError, match=r"could not read an order: found .* in order"):
            parse_order(text)


# --- arguments ------------------------------------------------------------------------------------


def test_columns_are_found_without_regard_to_case() -> None:
    statement = parse("SELECT ID, b FROM orders WHERE b > 1 ORDER BY B LIMIT 2 OFFSET 1", names=NAMES)
    assert isinstance(statement, PeekStatement)
    assert statement.arguments(["id", "b", "B"]) == {
        "select": ("id", "b"),
        "where": "b > 1",
        "order_by": [("B", *ASC)],
        "limit": 2,
        "offset": 1,
    }
    with pytest.raises(SchemaMismatchError, match="found no column 'ID'"):
        statement.arguments(["b"])
    with pytest.raises(SchemaMismatchError, match="found several columns 'ID'"):
        statement.arguments(["id", "Id", "b"])
    changes = parse("SUBSCRIBE orders WITHIN TIMESTAMP ORDER BY mz_diff, _diff DESC, A", names=NAMES)
    assert isinstance(changes, SubscribeStatement)
    assert changes.arguments(["a"])["order_by"] == [("_diff", *ASC), ("_diff", *DESC), ("a", *ASC)]
    assert changes.arguments(["a", "mz_diff"])["order_by"][0] == ("mz_diff", *ASC)


# --- any statement --------------------------------------------------------------------------------

TABLES: dict[str, Target] = {"orders": "/data/orders", "é`": "/y"}
_NAME = st.one_of(
    st.sampled_from(["a", "b c", "order", "of", "as", "größe", "x`y", "1", "limit", "current_date", "--", "/*"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
).filter(lambda name: "${" not in name)  # fmt: skip
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\\"'"), min_size=1, max_size=8).filter(
    lambda text: "${" not in text
)
_COORDINATE = st.integers(-(10**19) + 1, 10**19 - 1) | _TEXT | st.just("it's") | st.just('"')
_TIME = _COORDINATE | st.lists(_COORDINATE, min_size=2, max_size=3).map(tuple)
_COLUMNS = st.lists(_NAME, min_size=1, max_size=3, unique_by=str.lower).map(tuple)
_ORDER = st.lists(
    st.tuples(_NAME, st.sampled_from(["asc", "desc"]), st.sampled_from(["first", "last"])),
    max_size=3,
    unique_by=lambda entry: entry[0].lower(),
).map(tuple)
_TARGET = st.sampled_from([*TABLES.items(), ("/a/b", "/a/b"), ("./as of 3", "./as of 3"), ("x/`", "x/`")])
_WHERE = st.sampled_from([None, "a = 1", "a IS NULL AND (b < 'LIMIT' OR c)", "k LIKE 'AS OF 3'", "a IN (1, -2) -- x\n"])


@st.composite
def _times(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["none", "as_of", "as_of_at_least"]))
    return {} if kind == "none" else {kind: draw(_TIME)}


@st.composite
def _peeks(draw: st.DrawFn) -> PeekStatement:
    where, select, order = draw(_WHERE), draw(st.none() | _COLUMNS), draw(_ORDER)
    if select is not None:
        # What is not selected and has such a name is a function to Spark, and then it is no peek.
        functions = {"current_date", "user"} - {name.lower() for name in select}
        order = tuple(entry for entry in order if entry[0].lower() not in functions)
    return PeekStatement(
        *draw(_TARGET),
        select=select,
        where=None if where is None else where.removesuffix(" -- x\n"),
        order_by=order,
        limit=draw(st.none() | st.integers(0, 10**18 - 1)),
        offset=draw(st.integers(0, 10**18 - 1)),
        **draw(_times()),
    )


@st.composite
def _sqls(draw: st.DrawFn) -> SqlStatement:
    query = st.sampled_from(["SELECT 1", "SELECT a AS b FROM orders o", "WITH x AS (SELECT 'AS OF 3') SELECT * FROM x"])
    return SqlStatement(draw(query), **draw(_times()))


@st.composite
def _subscribes(draw: st.DrawFn) -> SubscribeStatement:
    envelope = draw(st.sampled_from([None, "upsert", "debezium"]))
    return SubscribeStatement(
        *draw(_TARGET),
        snapshot=draw(st.booleans()),
        progress=draw(st.booleans()),
        envelope=envelope,  # type: ignore[arg-type]
        key=() if envelope is None else draw(_COLUMNS),
        order_by=draw(_ORDER) if envelope is None else (),
        up_to=draw(st.none() | _TIME),
        **draw(_times()),
    )


@st.composite
def _copies(draw: st.DrawFn) -> CopyStatement:
    size = st.none() | st.integers(0, 10**18 - 1)
    folder = draw(_TEXT | st.just("it's"))
    return CopyStatement(draw(_peeks() | _sqls()), folder, draw(st.sampled_from(["parquet", "csv"])), draw(size))


_STATEMENTS = st.one_of(_peeks(), _sqls(), _subscribes(), _copies())


@examples(200)
@given(_STATEMENTS)
def test_a_statement_that_is_written_is_read_as_itself(statement: PeekStatement) -> None:
    assert parse(str(statement), names=TABLES) == statement
    assert parse(f"/* x */\n{statement} -- y\n;", names=TABLES) == statement


_WORDS = (
    "SELECT FROM WHERE AS OF AT LEAST UP TO ORDER BY LIMIT WITH COPY SUBSCRIBE ENVELOPE KEY UPSERT SNAPSHOT FORMAT MAX"
    " FILE SIZE DATE TIMESTAMP UNION NOT ( ) , ; = ' \" ` -- /* */ ${ $ @ : 1 -1 1e9 'a' `a` a \\ é"
)
_PIECES = st.sampled_from([*_WORDS.split(), "", "\n", "\x00", "'\ud800'"])


def outcome(text: str) -> Statement | TimelyError:
    try:
        return parse(text, names=TABLES)
    except TimelyError as error:
        return error


@examples(400)
@given(st.data())
def test_no_text_raises_anything_but_our_errors(data: st.DataObject) -> None:
    text = str(data.draw(_STATEMENTS))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(begin + 6, len(text))))
        text = text[:begin] + data.draw(_PIECES | _PIECES.map(lambda piece: f" {piece} ")) + text[end:]
    found = outcome(text)
    if isinstance(found, TimelyError):
        assert found.hint
        assert str(found).startswith("[TIMELY_INVALID_USAGE] could not read a statement: found ")
    else:
        assert outcome(str(found)) == found
