"""Conditions as SQL text, against an evaluation written apart: three-valued, over plain Python values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from spark_timely.predicate import parse_predicate

NAN = math.nan
TYPES = {
    "n": pa.int64(),
    "s": pa.int16(),
    "i": pa.int32(),
    "v": pa.float64(),
    "w": pa.float32(),
    "k": pa.string(),
    "b": pa.bool_(),
    "d": pa.date32(),
    "t": pa.timestamp("us", "UTC"),
    "Mixed Case": pa.int64(),
}
VALUES: dict[str, list[Any]] = {
    "n": [None, -3, 0, 7, 15, (1 << 53) + 1],
    "s": [None, -1, 7, 300],
    "i": [None, -3, 7, 2_000_000_000],
    "v": [None, -0.0, 0.0, 0.1, 7.0, 15.5, NAN, math.inf, -math.inf],
    "w": [None, 0.5, NAN, 7.0],
    "k": [None, "", "a", "ab", "b%", "A"],
    "b": [None, True, False],
    "d": [None, date(2013, 1, 31), date(1969, 12, 31)],
}
ROWS = [{name: random.Random(seed).choice(VALUES[name]) for name in VALUES} for seed in range(400)]
for number, row in enumerate(ROWS):
    row["n"] = VALUES["n"][number % len(VALUES["n"])]
TABLE = pa.table(
    {name: pa.array([row[name] for row in ROWS], TYPES[name]) for name in VALUES}
    | {"t": pa.array([None] * 400, TYPES["t"]), "Mixed Case": pa.array(range(400), pa.int64())}
)

Truth = bool | None
Part = tuple[str, Callable[[dict[str, Any]], Any]]


def order(x: Any, y: Any) -> int:
    """Compare as SQL does: NaN is equal to itself and greater than all other numbers."""
    if isinstance(x, float) and math.isnan(x):
        return 0 if isinstance(y, float) and math.isnan(y) else 1
    if isinstance(y, float) and math.isnan(y):
        return -1
    return int(x > y) - int(x < y)


SIGNS: dict[str, Callable[[int], bool]] = {
    "=": lambda c: c == 0,
    "==": lambda c: c == 0,
    "<>": lambda c: c != 0,
    "!=": lambda c: c != 0,
    "<": lambda c: c < 0,
    "<=": lambda c: c <= 0,
    ">": lambda c: c > 0,
    ">=": lambda c: c >= 0,
}


def compared(x: Any, sign: str, y: Any) -> Truth:
    return None if x is None or y is None else SIGNS[sign](order(x, y))


def both(x: Truth, y: Truth) -> Truth:
    return False if x is False or y is False else None if x is None or y is None else True


def negated(x: Truth) -> Truth:
    return None if x is None else not x


def column(name: str) -> Part:
    return name, lambda row: row[name]


def literal(text: str, value: Any) -> Part:
    return text, lambda _: value


NUMBERS = [
    column("n"),
    column("s"),
    column("i"),
    column("v"),
    literal("7", 7),
    literal("-3", -3),
    literal("15.5", 15.5),
]
TEXTS = [column("k"), literal("'a'", "a"), literal('"ab"', "ab"), literal("NULL", None)]
DAYS = [column("d"), literal("DATE '2013-01-31'", date(2013, 1, 31)), literal("date '1970-01-01'", date(1970, 1, 1))]


def number(rng: random.Random) -> Part:
    text, value = rng.choice(NUMBERS)
    if rng.random() < 0.3 and text in ("n", "i", "7", "-3"):
        sign = rng.choice("+-*")
        function = {"+": lambda x: x + 2, "-": lambda x: x - 2, "*": lambda x: x * 2}[sign]
        if text == "i" and sign == "*":
            return text, value
        return f"({text} {sign} 2)", lambda row: None if value(row) is None else function(value(row))
    return text, value


def atom(rng: random.Random) -> Part:
    kind = rng.randrange(6)
    pool: list[Part] = rng.choice([[number(rng), number(rng), number(rng)], TEXTS, DAYS])
    x, y, z = (rng.choice(pool) for _ in range(3))
    if kind == 0:
        return f"{x[0]} is null", lambda row: x[1](row) is None
    if kind == 1:
        return f"{x[0]} IS NOT NULL", lambda row: x[1](row) is not None
    if kind == 2:
        return f"{x[0]} BETWEEN {y[0]} AND {z[0]}", lambda row: both(
            compared(x[1](row), ">=", y[1](row)), compared(x[1](row), "<=", z[1](row))
        )
    if kind == 3:
        return f"{x[0]} NOT IN ({y[0]}, {z[0]})", lambda row: both(
            compared(x[1](row), "<>", y[1](row)), compared(x[1](row), "<>", z[1](row))
        )
    if kind == 4:
        return "b", lambda row: row["b"]
    sign = rng.choice(list(SIGNS))
    return f"{x[0]} {sign} {y[0]}", lambda row: compared(x[1](row), sign, y[1](row))


def condition(rng: random.Random, depth: int = 3) -> Part:
    """Draw a condition, and what it is of a row."""
    if depth == 0 or rng.random() < 0.3:
        return atom(rng)
    one, two = condition(rng, depth - 1), condition(rng, depth - 1)
    kind = rng.randrange(3)
    if kind == 0:
        return f"NOT ({one[0]})", lambda row: negated(one[1](row))
    if kind == 1:
        return f"({one[0]}) AND ({two[0]})", lambda row: both(one[1](row), two[1](row))
    return f"({one[0]}) or ({two[0]})", lambda row: negated(both(negated(one[1](row)), negated(two[1](row))))


@pytest.mark.parametrize("seed", range(150))
def test_condition_keeps_the_rows_for_which_it_is_true(seed: int) -> None:
    text, meaning = condition(random.Random(seed))
    found = TABLE.filter(parse_predicate(text, TYPES, what="filter").expression)["Mixed Case"].to_pylist()
    assert found == [place for place, row in enumerate(ROWS) if meaning(row) is True], text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 1 OR n = 7 AND k = 'zzz'", 0),
        ("NOT n = 7 AND n = 7", 0),
        ("k LIKE 'a%'", sum(row["k"] in ("a", "ab") for row in ROWS)),
        ("k NOT LIKE '_'", sum(row["k"] in ("", "ab", "b%") for row in ROWS)),
        ("`Mixed Case` < 5 and mixed_case_is_no_name is null", None),
        ("`Mixed Case` < 5", 5),
        ("n = 9007199254740993.0", sum(row["n"] == (1 << 53) + 1 for row in ROWS)),
        ("n > 7.5", sum((row["n"] or 0) > 7.5 for row in ROWS)),
        ("v = 1e-1", sum(row["v"] == 0.1 for row in ROWS)),
        ("d = '2013-01-31'", sum(row["d"] == date(2013, 1, 31) for row in ROWS)),
        ("true AND NOT false", 400),
        ("null", 0),
        ("t IS NULL AND (t > TIMESTAMP '2013-01-31T09:30:00Z' OR TRUE)", 400),
        ("- -s = 7", sum(row["s"] == 7 for row in ROWS)),
        ("N = 7", sum(row["n"] == 7 for row in ROWS)),
    ],
)
def test_condition_means_what_sql_means(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(SchemaMismatchError, match="no column 'mixed_case_is_no_name'"):
            parse_predicate(text, TYPES, what="filter")
    else:
        assert TABLE.filter(parse_predicate(text, TYPES, what="filter").expression).num_rows == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "0 conditions"),
        (" -- n = 1", "0 conditions"),
        ("n = 1; n = 2", "2 conditions"),
        ("n >", "an incomplete expression at line 1, col 3"),
        ("n > 1 n", "'n > 1 AS n'"),
        ("n > 1 n s", "Invalid expression / Unexpected token at line 1, col 9"),
        ("b OR (n > 1", "Expecting \\) at line 1"),
        ("n < 1 < 2", "'n < 1'"),
        ("b = NOT b", "'NOT b'"),
        ("abs(n) > 1", "'ABS\\(n\\)'"),
        ("n / 2 > 1", "'n / 2'"),
        ("k = 'it''s'", "\"CONCAT\\('it', 's'\\)\""),
        ("k = 'a\\\\b'", "a backslash"),
        ("k = 'a", """character "'" at"""),
        ("CASE WHEN b THEN true END", "'CASE WHEN b THEN TRUE END'"),
        ("n = 5L", r"'CAST\(5 AS BIGINT\)'"),
        ("CAST(k AS DATE) = d", "'CAST\\(k AS DATE\\)'"),
        ("n IS TRUE", "'n IS TRUE'"),
        ("n NOT 5", "Invalid expression"),
        ("n IN ()", "'n IN \\(\\)'"),
        ("n IN (SELECT 1)", "'n IN \\(SELECT 1\\)'"),
        ("k LIKE 'a' ESCAPE '/'", "\"k LIKE 'a' ESCAPE '/'\""),
        ("k LIKE ANY ('a')", "\"ANY\\('a'\\)\""),
        ("n BETWEEN SYMMETRIC 7 AND 1", r"'\(n BETWEEN 7 AND 1"),
        ("t.n = 1", "'t.n'"),
        ("n = :x", "':x'"),
        ("SELECT 1", "'SELECT 1'"),
        ("(" * 3000 + "b" + ")" * 3000, "too many brackets"),
    ],
)
def test_text_that_is_not_known_is_refused_by_name(text: str, found: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not filter rows: found {found}"):
        parse_predicate(text, TYPES, what="filter rows")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n", "type=int64 where true or false belongs"),
        ("n > 'a'", "a comparison of types int64 and string"),
        ("k + 1 = 2", "'\\+' of types"),
        ("n + 1.5 > 2", "'\\+' of types"),
        ("n = 99999999999999999999", "number 99999999999999999999"),
        ("n LIKE 'a'", "LIKE of type=int64"),
        ("k LIKE k", "LIKE of type=string"),
        ("v = 1e400", "number 1e400"),
        ("t > TIMESTAMP '2013-01-31 09:30:00'", "'2013-01-31 09:30:00'"),
        ("d > DATE 'today'", "'today'"),
        ("-k = 'a'", "minus of type=string"),
        ("d = t", "a comparison of types"),
    ],
)
def test_what_cannot_be_compared_is_refused(text: str, found: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"found {found}"):
        parse_predicate(text, TYPES, what="filter")


def test_integers_that_overflow_are_errors() -> None:
    rows = pa.table({"n": pa.array([(1 << 63) - 1], pa.int64())})
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        rows.filter(parse_predicate("n + 1 > 0", {"n": pa.int64()}, what="filter").expression)


def test_long_chains_are_no_deep_ones() -> None:
    text = " OR ".join(f"n = {number} AND k IS NOT NULL" for number in range(2000))
    found = TABLE.filter(parse_predicate(text, TYPES, what="filter").expression)
    assert found.num_rows == sum(row["n"] in range(2000) and row["k"] is not None for row in ROWS)


def test_columns_of_a_condition_are_named_as_in_the_rows() -> None:
    found = parse_predicate("N > 1 AND `mixed case` > 0 OR n = 0", TYPES, what="filter")
    assert found.columns == ("n", "Mixed Case")


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("ID < 5;", "`id` < 5"),
        ("s = \"a\" OR s IN ('é', '')", "`s` = 'a' OR `s` IN ('é', '')"),
        ("s LIKE '%${env:HOME}'", f"`s` LIKE CAST(X'{b'%${env:HOME}'.hex()}' AS STRING)"),
        ("t = TIMESTAMP '1970-01-01T01:00Z'", "`t` = TIMESTAMP_MICROS(CAST('3600000000' AS BIGINT))"),
        ("d > DATE '1970-01-03'", "`d` > DATE_FROM_UNIX_DATE(2)"),
    ],
)
def test_text_for_spark_means_one_thing(text: str, sql: str) -> None:
    types = {"id": pa.int64(), "s": pa.string(), "t": pa.timestamp("us", "UTC"), "d": pa.date32()}
    assert parse_predicate(text, types, what="filter").sql == sql


@pytest.mark.parametrize("name", ["user", "date", "current_date", "current_timestamp", "session_user", "current_user"])
def test_column_called_as_a_function_is_a_column(name: str) -> None:
    rows = pa.table({name: ["a", "b"]})
    found = parse_predicate(f"{name} > 'a' AND `{name}` <> 'c'", {name: pa.string()}, what="filter rows")
    assert (rows.filter(found.expression)[name].to_pylist(), found.columns) == (["b"], (name,))
    assert found.sql == f"`{name}` > 'a' AND `{name}` <> 'c'"
    with pytest.raises(SchemaMismatchError, match=f"no column '{name}'"):
        parse_predicate(f"{name} > 'a'", {"k": pa.string()}, what="filter rows")
