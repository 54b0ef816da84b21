"""Keys of a peek: taken exactly or refused, sorted, each once."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.answers.keys import keys_of
from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from spark_timely.trace.keys import same_keys

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("word", pa.string()),
        ("x", pa.float64()),
        ("half", pa.float32()),
        ("yes", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
UTC = dt.UTC
NOON = dt.datetime(2013, 6, 12, 12, tzinfo=UTC)


def found(keys: Any) -> list[dict[str, Any]]:
    table = keys_of("could not peek", keys, SCHEMA)
    assert table is not None
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@pytest.mark.parametrize(
    ("column", "given", "kept"),
    [
        ("k", [7, 3, 7, None], [3, 7, None]),
        ("k", np.array([7, 3]), [3, 7]),
        ("k", pa.array([7, 3], pa.int8()), [3, 7]),
        ("k", pa.chunked_array([[7], [3]]), [3, 7]),
        ("k", {7, 3}, [3, 7]),
        ("k", [], []),
        ("k", pa.array([]), []),
        ("small", [np.int64(5)], [5]),
        ("word", ["b", "", "\U0001f600", "ä", None], ["", "b", "ä", "\U0001f600", None]),
        ("x", [0.0, -0.0, 1], [0.0, 1.0]),
        ("half", [0.5, -math.inf], [-math.inf, 0.5]),
        ("yes", [True, False, True], [False, True]),
        ("price", [Decimal("1.50"), 2], [Decimal("1.50"), Decimal("2.00")]),
        ("day", [dt.date(2013, 6, 12), "2013-06-11"], [dt.date(2013, 6, 11), dt.date(2013, 6, 12)]),
        ("at", [NOON, "2013-06-12T14:00+02:00"], [NOON]),
        ("local", [dt.datetime(2013, 6, 12)], [dt.datetime(2013, 6, 12)]),
        ("raw", [b"b", b"a"], [b"a", b"b"]),
    ],
)
def test_keys_are_sorted_and_each_is_there_once(column: str, given: Any, kept: list[Any]) -> None:
    assert [row[column] for row in found({column: given})] == kept


def test_nan_is_a_key_like_another() -> None:
    (row,) = found({"x": [math.nan, float("nan")]})
    assert math.isnan(row["x"])


def test_keys_of_several_columns() -> None:
    wanted = [{"word": "a", "k": 1}, {"word": "a", "k": 2}, {"word": None, "k": 1}]
    assert found({("word", "k"): [("a", 2), (None, 1), ["a", 1], ("a", 2)]}) == wanted
    assert found(pa.Table.from_pylist(wanted[::-1], pa.schema([SCHEMA.field("word"), ("k", pa.int32())]))) == wanted
    assert found({("word", "k"): []}) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("k", "7"), ("k", 7.0), ("k", True), ("k", 1 << 63), ("small", 300), ("word", 7), ("word", b"a"),
        ("x", (1 << 53) + 1), ("x", "1"), ("half", 0.1), ("yes", 1), ("price", Decimal("1.505")), ("price", 0.5),
        ("day", NOON), ("day", 15_000), ("day", "yesterday"), ("at", dt.datetime(2013, 6, 12)), ("at", 5),
        ("at", dt.date(2013, 6, 12)), ("local", NOON), ("local", "2013-06-12"), ("raw", "a"),
    ],
)  # fmt: skip
def test_value_that_a_column_cannot_hold_is_refused(column: str, value: Any) -> None:
    with pytest.raises(
        SchemaMismatchError, match=f"could not peek: found key .* for column '{column}' of type"
    ) as error:
        found({column: [None, value]})
    assert error.value.hint == "give a value that the column can hold exactly"


@pytest.mark.parametrize(
    "values", [pa.array(["7"]), pa.array([1.5]), pa.array([1 << 63], pa.uint64()), pa.array([NOON])]
)
def test_arrays_of_other_types_are_refused(values: pa.Array) -> None:
    with pytest.raises(SchemaMismatchError, match="could not peek: found keys of other types"):
        found({"k": values})


def test_array_of_doubles_is_not_rounded_to_floats() -> None:
    assert found({"half": pa.array([0.5, math.nan, None])})[0] == {"half": 0.5}
    with pytest.raises(SchemaMismatchError, match=r"found key 0.1 of type float for column 'half'"):
        found({"half": pa.array([0.5, 0.1])})


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "found keys={}"),
        ({"k": [1], "word": ["a"]}, "found keys="),
        ([1], "found keys="),
        ({5: [1]}, "found keys of columns 5"),
        ({(): [()]}, r"found keys of columns \(\)"),
        ({"k": 7}, "found keys of column 'k': 7"),
        ({"word": "abc"}, "found keys of column 'word': 'abc'"),
        ({"k": {1: 2}}, "found keys of column 'k'"),
        ({("k", "k"): [(1, 1)]}, "found keys of columns"),
        ({("k", "word"): [(1,)]}, r"found key \(1,\) for columns"),
        ({("k", "word"): ["1a"]}, "found key '1a' for columns"),
        ({"tags": [["a"]]}, "found keys of column 'tags' of type list"),
    ],
)
def test_what_is_no_keys_is_refused(keys: Any, text: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not peek: {text}"):
        found(keys)


def test_unknown_column_is_named_with_those_there_are() -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"could not peek: found no column 'key' — hint: choose among .*'word'"
    ):
        found({"key": [1]})


def test_half_of_a_hash_does_not_make_keys_equal() -> None:
    wanted = np.array([[5, 1], [5, 3], [9, 0]], np.uint64)
    hashes = np.array([[5, 3], [5, 2], [5, 1], [9, 0], [9, 1], [4, 1], [10, 0]], np.uint64)
    assert same_keys(hashes, wanted).tolist() == [True, False, True, True, False, False, False]
    assert not same_keys(hashes, wanted[:0]).any()
