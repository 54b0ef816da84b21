"""Types of records and times: what can be written, what it is in Arrow, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from spark_timely.interop.schema import arrow_schema, parse_type, type_of_schema, type_text
from spark_timely.interop.time_layout import TimeLayout
from spark_timely.time.domain import TimeType

TYPES = [
    "u8",
    "i64",
    "bool",
    "f32",
    "string",
    "bytes",
    "date_days",
    "timestamp_us",
    "timestamp_ntz_us",
    "decimal(12, 2)",
    "i128",
    "map<string, option<timestamp_us>>",
    '{"order-id": u64, "a\\"b": u8, ä_: u8}'.replace("ä_", '"ä"'),
    "{value: {a: u64}}",
    "()",
    "duration",
    "option<u64>",
    "vec<vec<string>>",
    "(u64,)",
    "(string, u64)",
    "{name: string, at: {x: f64, y: option<f64>}}",
    "enum{Empty, One(u64), Two((u64, string)), Three({n: u8})}",
    "product<u64, product<u32, i8>>",
]


@pytest.mark.parametrize("text", TYPES)
def test_type_is_written_as_read_and_known_from_its_schema(text: str) -> None:
    type_ = parse_type(text)
    assert type_text(type_) == text
    assert type_of_schema(arrow_schema(type_)) == type_


@pytest.mark.parametrize(
    ("rust", "text"),
    [
        ("(String, usize)", "(string, u64)"),
        ("Vec<Option<isize>>", "vec<option<i64>>"),
        ("[ &str ]".replace("&", ""), "vec<string>"),
        ("Product<u64,u32>", "product<u64, u32>"),
        ("Point { x: f64, y: f64, }", "{x: f64, y: f64}"),
        ("enum { A | B ( u64 , u8 ) | C { } }", "enum{A, B((u64, u8)), C}"),
        ("((u64))", "u64"),
        ("Duration", "duration"),
        ("option<()>", "bool"),
        ("{at: Timestamp, day: date, t: text}", "{at: timestamp_us, day: date_days, t: string}"),
        ("(decimal(5), i128, BTreeMap<String, Option<u8>>)", "(decimal(5, 0), i128, map<string, option<u8>>)"),
        ("option<option<u8>>", "option<{some: option<u8>}>"),
        ("{}", "()"),
    ],
)
def test_type_may_be_written_as_in_rust(rust: str, text: str) -> None:
    assert type_text(parse_type(rust)) == text


@pytest.mark.parametrize(
    ("text", "found", "place"),
    [
        ("", "its end", 1),
        ("(u64", "its end", 5),
        ("(u64 u8)", "'u8'", 6),
        ("u64, u64", "','", 4),
        ("(string, u46)", "'u46'", 10),
        ("option<u64", "its end", 11),
        ("{a: u64, A: u64}", "'A'", 10),
        ("{1: u64}", "'1'", 2),
        ("enum{}", "its end", 7),
        ("enum{variant(u64)}", "'variant'", 6),
        ("vec<()>", "'>'", 7),
        ("product<u64>", "its end", 13),
        ("decimal(39, 2)", "'3'", 9),
        ("decimal(4, 5)", "'5'", 12),
        ("decimal", "'decimal'", 1),
        ("map<option<u8>, u8>", "its end", 20),
        ("map<u8>", "its end", 8),
        ('{"": u8}', "'\"'", 2),
        ('{"a: u8}', "'\"'", 2),
        ("[" * 40 + "u8" + "]" * 40, "'['", 34),
        ("(" * 100_000, "'('", 34),
    ],
)
def test_text_that_is_no_type_is_refused_with_its_place(text: str, found: str, place: int) -> None:
    with pytest.raises(InvalidUsageError, match=r"could not read type") as caught:
        parse_type(text)
    assert f"found {found} at character {place}" in caught.value.message
    assert caught.value.hint


def test_columns_of_a_log_are_described() -> None:
    schema = pa.schema(
        [
            pa.field("f0", pa.decimal128(20, 0), nullable=False),
            pa.field("f1", pa.list_(pa.field("element", pa.string(), nullable=False))),
        ]
    )
    assert type_text(type_of_schema(schema)) == "(u64, option<vec<string>>)"
    assert type_text(type_of_schema(pa.schema([pa.field("value", pa.int16(), nullable=False)]))) == "i16"


@pytest.mark.parametrize(
    ("name", "type_", "text"),
    [
        ("t", pa.timestamp("us"), "{t: option<timestamp_ntz_us>}"),
        ("d", pa.decimal128(10, 2), "{d: option<decimal(10, 2)>}"),
        ("d", pa.decimal128(38, 0), "{d: option<i128>}"),
        ("a b", pa.int64(), '{"a b": option<i64>}'),
        ("m", pa.map_(pa.string(), pa.date32()), "{m: option<map<string, option<date_days>>>}"),
    ],
)
def test_every_column_of_a_log_has_a_type(name: str, type_: pa.DataType, text: str) -> None:
    assert type_text(type_of_schema(pa.schema([(name, type_)]))) == text
    assert arrow_schema(parse_type(text)).field(name).type == type_


def test_column_that_captures_do_not_have_is_refused_by_name() -> None:
    schema = pa.schema([("x", pa.int64()), ("s", pa.struct([("of", pa.duration("us"))]))])
    with pytest.raises(SchemaMismatchError, match=r"column 's\.of'.*duration") as caught:
        type_of_schema(schema)
    assert caught.value.context["column"] == "s.of"
    assert "leave the column out" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "types", "minimum"),
    [
        ("u64", ["long"], (0,)),
        ("i64", ["long"], (-(1 << 63),)),
        ("u32", ["long"], (0,)),
        ("i32", ["int"], (-(1 << 31),)),
        ("u8", ["short"], (0,)),
        ("i8", ["short"], (-128,)),
        ("duration", ["long"], (0,)),
        ("()", ["long"], (0,)),
        ("date_days", ["date"], (TimeType.DATE.lo,)),
        ("product<u64, timestamp_us>", ["long", "timestamp"], (0, TimeType.TIMESTAMP.lo)),
        ("product<u64, product<i16, ()>>", ["long", "short"], (0, -(1 << 15))),
        ("(u64, u64)", ["long", "long"], (0, 0)),
    ],
)
def test_times_have_the_coordinates_and_minimum_of_their_type(
    text: str, types: list[str], minimum: tuple[int, ...]
) -> None:
    domain = TimeLayout(text).domain
    assert [type_.value for type_ in domain.types] == types
    assert domain.minimum == minimum


@pytest.mark.parametrize("text", ["string", "option<u64>", "(u64, f64)", "vec<u64>", "bool"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="type of times"):
        TimeLayout(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("u64", -1),
        ("u8", 256),
        ("u64", 1 << 63),
        ("u64", True),
        ("u64", [1]),
        ("()", 0),
        ("duration", [1, 10**9]),
        ("date_days", -(1 << 31) + 1),
        ("date_days", 1 << 30),
    ],
)
def test_value_that_is_no_time_of_the_type_is_refused(text: str, value: object) -> None:
    with pytest.raises(InvalidUsageError, match="could not read a time"):
        TimeLayout(text).from_json(value)
