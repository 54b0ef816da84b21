"""Aggregates: exact, and the same in whatever order the rows come."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as s

from spark_timely.dataflow.aggregates import Aggregation, aggregate_rows, avg_of, count, max_of, min_of, sum_of
from spark_timely.dataflow.exact_sum import digits_of, round_digits, widest
from spark_timely.errors import SchemaMismatchError
from tests.support import examples

finite = s.floats(allow_nan=False, allow_infinity=False) | s.sampled_from([1e16, 1.0, -1e16, 2.0**-1074, 0.1])
groups = s.lists(s.lists(finite, max_size=6), min_size=1, max_size=4)


def fsum(values: list[float]) -> float | None:
    try:
        return math.fsum(values)
    except OverflowError:  # raised for sums that pass the greatest double on the way only
        return None


near = s.floats(-1e9, 1e9, allow_subnormal=False).map(lambda value: value if abs(value) > 1e-3 else 0.0)


@examples(300)
@given(groups | s.lists(s.lists(near, max_size=6), min_size=1, max_size=4), s.none() | s.integers(32, 43))
def test_digits_give_the_sum_that_fsum_gives(drawn: list[list[float]], bits: int | None) -> None:
    values = np.array([value for group in drawn for value in group], dtype=np.float64)
    ids = np.repeat(np.arange(len(drawn)), [len(group) for group in drawn])
    digits, unit = digits_of(values, bits)
    if not digits:
        return
    sums = [np.array([digit[ids == i].sum() for i in range(len(drawn))], dtype=np.int64) for digit in digits]
    for group, found in zip(drawn, round_digits(sums, unit, bits).tolist(), strict=True):
        assert fsum(group) in (None, found)


def test_halfway_cases_go_to_the_even_double() -> None:
    for values in (
        [2.0**53, 1.0],
        [2.0**53, 3.0],
        [2.0**53, 1.0, 2.0**-500],
        [-(2.0**53), -1.0],
        [2.0**53, 1.0, -(2.0**-99)],
    ):
        for bits in (None, 32, 43):
            digits, unit = digits_of(np.array(values), bits)
            sums = [np.array([digit.sum()]) for digit in digits]
            assert round_digits(sums, unit, bits).tolist() == [math.fsum(values)]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [1, 3, 1023, 100_000])
def test_wide_digits_of_many_rows_in_a_group_are_exact(n: int, sign: int) -> None:
    values = sign * np.random.default_rng(n).random(n) * 7.0
    values[0] = 2.0**-40
    digits, unit = digits_of(values, widest(n))
    assert len(digits) == (1 if n == 1 else 2)
    found = round_digits([np.array([digit.sum()]) for digit in digits], unit, widest(n))
    assert found.tolist() == [math.fsum(values)]


def table(rows: list[tuple[str | None, float | None, int | None]]) -> pa.Table:
    k, x, n = zip(*rows, strict=True)
    return pa.table({"k": pa.array(k, pa.string()), "x": pa.array(x, pa.float64()), "n": pa.array(n, pa.int64())})


VALUES: dict[str, Aggregation] = {
    "rows": count(),
    "xs": count("x"),
    "sx": sum_of("x"),
    "sn": sum_of("n"),
    "lo": min_of("x"),
    "hi": max_of("n"),
}


def aggregated(rows: pa.Table) -> dict[str | None, dict[str, object]]:
    schema = pa.schema(
        [pa.field("k", pa.string()), *(value.field(name, rows.schema) for name, value in VALUES.items())]
    )
    made = aggregate_rows(rows, ["k"], VALUES, schema)
    assert made.schema.equals(schema)
    return {row.pop("k"): row for row in made.to_pylist()}


special = finite | s.sampled_from([math.inf, -math.inf, math.nan, -0.0])
drawn_rows = s.lists(
    s.tuples(s.sampled_from(["a", "b", None]), s.none() | special, s.none() | s.integers(-(2**60), 2**60)), min_size=1
)


@examples(150)
@given(drawn_rows, s.randoms(use_true_random=False))
def test_groups_are_those_of_plain_python_in_any_order(
    rows: list[tuple[str | None, float | None, int | None]], rng: random.Random
) -> None:
    found = aggregated(table(rows))
    shuffled = list(rows)
    rng.shuffle(shuffled)
    assert repr(sorted(aggregated(table(shuffled)).items(), key=repr)) == repr(sorted(found.items(), key=repr))
    by_key: dict[str | None, list[tuple[float | None, int | None]]] = defaultdict(list)
    for k, x, n in rows:
        by_key[k].append((x, n))
    assert found.keys() == by_key.keys()
    for k, members in by_key.items():
        xs = [x for x, _ in members if x is not None]
        ns = [n for _, n in members if n is not None]
        assert found[k]["rows"] == len(members)
        assert found[k]["xs"] == len(xs)
        assert found[k]["sn"] == (sum(ns) if ns else None)
        assert found[k]["hi"] == (max(ns) if ns else None)
        real = [x for x in xs if not math.isnan(x)]
        if real:
            assert found[k]["lo"] == min(real)
        else:
            assert str(found[k]["lo"]) == ("nan" if xs else "None")
        if not xs:
            assert found[k]["sx"] is None
        elif all(map(math.isfinite, xs)):
            assert fsum(xs) in (None, found[k]["sx"])
        else:
            assert str(found[k]["sx"]) == str(sum(x for x in xs if not math.isfinite(x)))


def test_sum_of_integers_is_exact_up_to_64_bits_and_then_refused() -> None:
    big = 2**63 - 1
    assert aggregated(table([("a", 0.0, big), ("a", 0.0, 1), ("a", 0.0, -1), ("b", 0.0, -big - 1)]))["a"]["sn"] == big
    with pytest.raises(OverflowError, match="sum of column 'n'"):
        aggregated(table([("a", 0.0, big), ("a", 0.0, 1)]))


def test_least_and_greatest_of_texts_dates_and_booleans() -> None:
    days = [dt.date(2013, 1, 1), dt.date(2012, 1, 1)]
    rows = pa.table({"d": days, "t": ["b", "a"], "f": [True, False]})
    values = {"d0": min_of("d"), "t1": max_of("t"), "f0": min_of("f")}
    schema = pa.schema([rows.schema.field("d"), *(value.field(name, rows.schema) for name, value in values.items())])
    found = aggregate_rows(rows.set_column(0, "d", pa.array([days[0]] * 2)), ["d"], values, schema).to_pylist()
    assert found == [{"d": days[0], "d0": days[0], "t1": "b", "f0": False}]


@pytest.mark.parametrize("value", [sum_of("t"), sum_of("missing"), min_of("list"), count("missing")])
def test_aggregation_of_an_unfit_type_or_column_is_refused(value: Aggregation) -> None:
    schema = pa.schema([("t", pa.string()), ("list", pa.list_(pa.int64()))])
    with pytest.raises(SchemaMismatchError, match="could not aggregate 'x'"):
        value.field("x", schema)


@pytest.mark.parametrize("value", [avg_of("n"), avg_of("d"), sum_of("d"), min_of("d"), max_of("b")])
def test_what_is_of_all_history_alone_is_refused_of_a_time(value: Aggregation) -> None:
    schema = pa.schema([("n", pa.int64()), ("d", pa.decimal128(9, 2)), ("b", pa.binary())])
    found = rf"'x': found {value.kind} of column '{value.column}' of type=.* of each time"
    with pytest.raises(SchemaMismatchError, match=found) as error:
        value.field("x", schema)
    assert "over='history'" in str(error.value.hint)
    assert value.field("x", schema, over="history").name == "x"


@pytest.mark.parametrize("value", [avg_of("t"), sum_of("b"), avg_of("b"), avg_of("f"), min_of("list")])
def test_unfit_types_are_refused_over_history(value: Aggregation) -> None:
    types = [("t", pa.string()), ("b", pa.binary()), ("f", pa.bool_()), ("list", pa.list_(pa.int64()))]
    with pytest.raises(SchemaMismatchError, match=f"'x': found {value.kind} of column '{value.column}'") as error:
        value.field("x", pa.schema(types), over="history")
    assert "decimals" in str(error.value.hint)
