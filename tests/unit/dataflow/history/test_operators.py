"""Operators over all history: rules that are easily got wrong, one by one."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import avg_of, count, max_of, min_of, sum_of
from spark_timely.dataflow.history.asof import join_as_of
from spark_timely.dataflow.history.base import Changes, Held, HistoryOperator
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.first import First
from spark_timely.dataflow.history.keys import ranks_of
from spark_timely.dataflow.history.reduce import Reduce, reduced_schema
from spark_timely.dataflow.history.totals import ROWS, Totals
from spark_timely.errors import InvalidUsageError, OperatorError, SchemaMismatchError
from spark_timely.testing import rows_of, stream_of

K_N = pa.schema([("k", pa.string()), ("n", pa.int64())])
LEAST = -(1 << 63)

Update = tuple[int, int, dict[str, Any]]


def changes(*updates: tuple[Any, ...], schema: pa.Schema = K_N) -> Changes:
    """Return updates (time, diff, values…)."""
    columns = [pa.array([u[2 + i] for u in updates], field.type) for i, field in enumerate(schema)]
    times = np.array([u[0] for u in updates], np.int64)
    return Changes(times, np.array([u[1] for u in updates], np.int64), pa.Table.from_arrays(columns, schema=schema))


def held(
    schema: pa.Schema, *rows: tuple[Any, ...], counts: Sequence[int] = (), times: Sequence[int] | None = None
) -> Held:
    found = changes(*((0, 1, *row) for row in rows), schema=schema)
    numbers = np.array(counts or [1] * len(rows), np.int64)
    return Held(None if times is None else np.array(times, np.int64), numbers, found.rows)


def said(made: Changes, *, times: bool = True) -> list[tuple[Any, ...]]:
    rows = zip(made.times.tolist(), made.diffs.tolist(), made.rows.to_pylist(), strict=True)
    return sorted(((t, d, *row.values()) if times else tuple(row.values()) for t, d, row in rows), key=repr)


def advanced(operator: HistoryOperator, given: Changes, before: Held, *, of_updates: bool = True) -> list[Any]:
    return said(operator.advance(given, before, None, of_updates=of_updates))


# Totals -----------------------------------------------------------------------------------------------

SUMS = Totals(("k",), {"s": sum_of("n")})
OF_SUMS = SUMS.state(K_N)


def test_sum_that_is_zero_has_its_rows() -> None:
    assert OF_SUMS.names == ["k", "s", ROWS, "_kept_n_s"]
    made = advanced(SUMS, changes((1, 1, "a", 5), (1, 1, "a", -5)), held(OF_SUMS))
    assert made == [(1, 1, "a", 0, 2, 2)]
    assert advanced(SUMS, changes((2, -1, "a", 5)), held(OF_SUMS, ("a", 0, 2, 2))) == [
        (2, -1, "a", 0, 2, 2),
        (2, 1, "a", -5, 1, 1),
    ]


def test_sum_of_what_came_and_went_has_no_row() -> None:
    made = advanced(SUMS, changes((1, 1, "a", 5), (3, -1, "a", 5)), held(OF_SUMS))
    assert made == [(1, 1, "a", 5, 1, 1), (3, -1, "a", 5, 1, 1)]
    assert advanced(SUMS, changes((3, -1, "a", 5), (3, 1, "a", 5)), held(OF_SUMS, ("a", 5, 1, 1))) == []


def test_sum_of_nulls_alone_is_null() -> None:
    assert advanced(SUMS, changes((1, 1, "a", None)), held(OF_SUMS)) == [(1, 1, "a", None, 1, 0)]
    after = advanced(SUMS, changes((2, -1, "a", 5)), held(OF_SUMS, ("a", 5, 2, 1)))
    assert after == [(2, -1, "a", 5, 2, 1), (2, 1, "a", None, 1, 0)]


def test_count_that_is_shown_is_kept_once() -> None:
    totals = Totals(("k",), {"rows": count(), "s": sum_of("n"), "m": count("n")})
    assert totals.state(K_N).names == ["k", "rows", "s", "m"]


def test_count_of_zero_is_no_row() -> None:
    counts = Totals(("k",), {"n": count()})
    of_counts = counts.state(K_N)
    rows = changes((1, -2, None), schema=pa.schema([("k", pa.string())]))
    assert advanced(counts, rows, held(of_counts, (None, 2), ("a", 1))) == [(1, -1, None, 2)]


def test_each_time_of_a_step_has_its_update() -> None:
    counts = Totals(("k",), {"n": count()})
    rows = changes((3, 1, "a"), (1, 1, "a"), (3, 1, "a"), schema=pa.schema([("k", pa.string())]))
    assert advanced(counts, rows, held(counts.state(K_N))) == [
        (1, 1, "a", 1),
        (3, -1, "a", 1),
        (3, 1, "a", 3),
    ]


def test_less_than_no_rows_names_key_and_time() -> None:
    with pytest.raises(OperatorError, match=r"k='a' with -1 rows at time=7"):
        advanced(SUMS, changes((7, -1, "a", 5), (8, 1, "a", 5)), held(OF_SUMS))


def test_sum_beyond_its_type_names_key_and_time() -> None:
    most = (1 << 63) - 1
    with pytest.raises(OperatorError, match=r"sum 's' of k='a' beyond 64 bits at time=2"):
        advanced(SUMS, changes((2, 1, "a", 1)), held(OF_SUMS, ("a", most, 1, 1)))
    # What does not fit in between, within one time, does no harm.
    made = advanced(SUMS, changes((2, 1, "a", 1), (2, 1, "a", -1)), held(OF_SUMS, ("a", most, 1, 1)))
    assert made[1] == (2, 1, "a", most, 3, 3)


def test_old_values_are_those_that_are_held() -> None:
    counts = Totals(("k",), {"n": count(), "least": min_of("n"), "greatest": max_of("n")})
    given, contents = changes((1, 1, "a", 7)), held(K_N, ("a", 3))
    # An earlier version of the function gave something else.
    made = counts.advance(given, held(counts.state(K_N), ("a", 1, 4, 4)), contents, of_updates=True)
    assert said(made) == [(1, -1, "a", 1, 4, 4), (1, 1, "a", 2, 3, 7)]
    top = Best(("k",), (("n", True),))
    made = top.advance(given, held(K_N, ("a", 4)), contents, of_updates=True)
    assert said(made) == [(1, -1, "a", 4), (1, 1, "a", 7)]


FLOATS = pa.schema([("k", pa.string()), ("n", pa.float64())])


@pytest.mark.parametrize(("value", "said"), [(sum_of("n"), "a sum"), (avg_of("n"), "an average")])
def test_sums_of_floats_of_updates_are_refused(value: Any, said: str) -> None:
    found = f"could not aggregate 's': found {said} of updates of column 'n' of type=double"
    with pytest.raises(SchemaMismatchError, match=found) as error:
        Totals(("k",), {"s": value}).check(FLOATS, of_updates=True)
    assert "sum integers or decimals" in str(error.value.hint)
    assert error.value.context == {"column": "n"}
    Totals(("k",), {"s": value}).check(FLOATS, of_updates=False)
    Totals(("k",), {"n": min_of("n"), "m": count("n")}).check(FLOATS, of_updates=True)


MEAN = Totals(("k",), {"a": avg_of("n")})
OF_MEAN = MEAN.state(K_N)


def test_average_keeps_its_exact_sum_and_count() -> None:
    assert OF_MEAN.names == ["k", "a", ROWS, "_kept_n_a", "_kept_sum_a"]
    assert (OF_MEAN.field("a").type, OF_MEAN.field("_kept_sum_a").type) == (pa.float64(), pa.decimal128(38, 0))
    assert [field.nullable for field in OF_MEAN] == [True, True, False, False, False]
    made = advanced(MEAN, changes((1, 1, "a", 1), (1, 2, "a", 0), (1, 1, "a", None)), held(OF_MEAN))
    assert made == [(1, 1, "a", 1 / 3, 4, 3, Decimal(1))]
    # The mean of thirds is not a third of a sum that was rounded.
    after = advanced(MEAN, changes((2, -1, "a", 0)), held(OF_MEAN, made[0][2:]))
    assert after == [(2, -1, "a", 1 / 3, 4, 3, Decimal(1)), (2, 1, "a", 0.5, 3, 2, Decimal(1))]


def test_average_of_nulls_alone_is_null() -> None:
    assert advanced(MEAN, changes((1, 1, "a", None)), held(OF_MEAN)) == [(1, 1, "a", None, 1, 0, Decimal(0))]
    assert advanced(MEAN, changes((1, -1, "a", None)), held(OF_MEAN, ("a", None, 1, 0, Decimal(0)))) == [
        (1, -1, "a", None, 1, 0, Decimal(0))
    ]


def test_average_beside_what_it_is_made_of_hides_nothing() -> None:
    values = {"rows": count(), "a": avg_of("n"), "s": sum_of("n"), "m": count("n")}
    assert Totals(("k",), values).state(K_N).names == ["k", "rows", "a", "s", "m"]
    schema = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    assert Totals(("k",), {"rows": count(), "a": avg_of("n")}).state(schema).names == ["k", "rows", "a", "_kept_sum_a"]
    twice = Totals(("k",), {"a": avg_of("n"), "b": avg_of("n")}).state(K_N)
    assert twice.names == ["k", "a", "b", ROWS, "_kept_n_a", "_kept_sum_a"]


@pytest.mark.parametrize("type_", [pa.int64(), pa.decimal128(9, 2), pa.float64()])
def test_column_without_nulls_is_counted_by_rows(type_: pa.DataType) -> None:
    schema = pa.schema([pa.field("k", pa.string()), pa.field("n", type_, nullable=False)])
    sums = Totals(("k",), {"s": sum_of("n"), "a": avg_of("n")})
    state = sums.state(schema)
    assert not [name for name in state.names if "_n_" in name]
    one, two = pa.array([1, 2]).cast(pa.decimal128(21, 2)).cast(type_).to_pylist()
    # What is read from a file does not say that there are no nulls.
    for given in (schema, pa.schema([schema.field(0), pa.field("n", type_)])):
        rows = changes((1, 1, "a", one), (1, 1, "a", two), schema=given)
        made = sums.advance(rows, held(state), None, of_updates=False)
        (row,) = made.rows.to_pylist()
        assert (row["s"], row["a"], row[ROWS]) == (3, Decimal("1.5"), 2)


def test_average_is_of_sums_beyond_64_bits() -> None:
    most = (1 << 63) - 1
    made = advanced(MEAN, changes((1, 3, "a", most), (1, 1, "a", LEAST)), held(OF_MEAN))
    assert made == [(1, 1, "a", 2.0**62, 4, 4, Decimal(3 * most + LEAST))]
    rows = changes((1, (1 << 62) - 1, "a", LEAST), (1, 1 << 62, "a", LEAST))
    assert advanced(MEAN, rows, held(OF_MEAN))[0][3] == float(LEAST)


MONEY = pa.schema([("k", pa.string()), ("d", pa.decimal128(9, 2))])


def test_results_of_decimals_have_types_of_spark() -> None:
    def types(*digits: int) -> list[str]:
        schema = pa.schema([("k", pa.string()), ("d", pa.decimal128(*digits))])
        values = {"s": sum_of("d"), "a": avg_of("d"), "lo": min_of("d"), "hi": max_of("d")}
        fields = [str(field.type) for field in Totals(("k",), values).shown(schema)]
        return [each.removeprefix("decimal128") for each in fields[1:]]

    assert types(9, 2) == ["(19, 2)", "(13, 6)", "(9, 2)", "(9, 2)"]
    assert types(30, 0) == ["(38, 0)", "(34, 4)", "(30, 0)", "(30, 0)"]
    assert types(38, 36) == ["(38, 36)", "(38, 38)", "(38, 36)", "(38, 36)"]


def test_halves_of_decimal_averages_go_away_from_zero() -> None:
    tiny = pa.schema([("k", pa.string()), ("d", pa.decimal128(38, 38))])
    means = Totals(("k",), {"a": avg_of("d")})
    last = Decimal(1).scaleb(-38)
    for sign in (1, -1):
        made = advanced(
            means, changes((1, 1, "a", sign * last), (1, 1, "a", Decimal(0)), schema=tiny), held(means.state(tiny))
        )
        assert made[0][3] == sign * last
    sums = Totals(("k",), {"a": avg_of("d")})
    made = advanced(
        sums, changes((1, 1, "a", Decimal("0.01")), (1, 2, "a", Decimal(0)), schema=MONEY), held(sums.state(MONEY))
    )
    assert made[0][3] == Decimal("0.003333")


@pytest.mark.parametrize(
    ("values", "digits", "found"),
    [
        ({"s": sum_of("d")}, (38, 2), r"sum 's' of k='a' beyond decimal\(38, 2\) at time=2"),
        ({"m": avg_of("d")}, (38, 2), r"sum of 'm' of k='a' beyond decimal\(38, 2\) at time=2"),
        # The mean needs four places more, which 38 digits have no room for.
        ({"m": avg_of("d")}, (37, 0), r"average 'm' of k='a' beyond decimal\(38, 4\) at time=2"),
    ],
)
def test_decimal_beyond_its_type_names_key_and_time(
    values: dict[str, Any], digits: tuple[int, int], found: str
) -> None:
    schema = pa.schema([("k", pa.string()), ("d", pa.decimal128(*digits))])
    totals, most = Totals(("k",), values), Decimal(f"{10 ** digits[0] - 1}e-{digits[1]}")
    rows = changes((1, 1, "a", Decimal(1)), (2, 1, "a", most), (2, 1, "b", Decimal(5)), schema=schema)
    with pytest.raises(OperatorError, match=found) as error:
        advanced(totals, rows, held(totals.state(schema)))
    assert "38 digits" in str(error.value.hint)
    # What does not fit in between, within one time, does no harm.
    back = changes((1, 1, "a", Decimal(1)), (2, 1, "a", most), (2, -1, "a", most), schema=schema)
    assert len(advanced(totals, back, held(totals.state(schema)))) == 1


def test_least_bytes_are_compared_as_unsigned_numbers() -> None:
    schema = pa.schema([("k", pa.string()), ("b", pa.binary())])
    ends = Totals(("k",), {"lo": min_of("b"), "hi": max_of("b")})
    rows = changes(*((1, 1, "a", b) for b in (b"\xff", b"\x7f\x00", b"\x7f", None)), schema=schema)
    made = ends.advance(rows, held(ends.state(schema)), None, of_updates=False)
    assert said(made) == [(1, 1, "a", b"\x7f", b"\xff", 4)]


def test_sum_of_floats_continues_from_what_is_exact() -> None:
    sums = Totals(("k",), {"s": sum_of("n"), "a": avg_of("n")})
    of_sums = sums.state(FLOATS)
    assert of_sums.names == [
        "k", "s", "a", ROWS, "_kept_n_s", "_kept_sum_s", "_kept_nan_s", "_kept_inf_s", "_kept_minus_inf_s",
    ]  # fmt: skip
    state, found = held(of_sums), []
    for time, x in enumerate([1e16, 1.0, 1.0, -1e16, math.inf, None, -math.inf, 5.0]):
        made = sums.advance(changes((time, 1, "a", x), schema=FLOATS), state, None, of_updates=False)
        state = Held(None, np.ones(1, np.int64), made.rows.filter(pa.array(made.diffs > 0)))
        found.append(tuple(str(state.rows[name][0]) for name in "sa"))
    assert [float(s) for s, _ in found[:5]] == [1e16, 1e16, 1e16 + 2, 2.0, math.inf]
    assert float(found[3][1]) == 0.5
    assert found[5:] == [("inf", "inf"), ("nan", "nan"), ("nan", "nan")]


@pytest.mark.parametrize("rows", [[-0.0, 0.0], [0.0, -0.0]])
def test_least_of_two_zeros_is_one_zero(rows: list[float]) -> None:
    floats = pa.schema([("k", pa.string()), ("n", pa.float64())])
    least = Totals(("k",), {"n": min_of("n")})
    given = changes(*((1, 1, "a", n) for n in rows), schema=floats)
    made = least.advance(given, held(least.state(floats)), None, of_updates=False)
    assert str(made.rows["n"][0].as_py()) == "0.0"


def test_distinct_row_is_there_while_it_counts() -> None:
    distinct = Totals(("k", "n"), {}, "distinct")
    made = advanced(distinct, changes((1, 2, "a", 1), (2, -1, "a", 1), (3, -1, "a", 1)), held(distinct.state(K_N)))
    assert made == [(1, 1, "a", 1, 2), (2, -1, "a", 1, 2), (2, 1, "a", 1, 1), (3, -1, "a", 1, 1)]


# The best ---------------------------------------------------------------------------------------------

ROW = pa.schema([("k", pa.string()), ("v", pa.string()), ("changed", pa.int64()), (DELETED, pa.bool_())])
CURRENT = Best(("k",), (("changed", True),), 1, "latest", True)


def test_latest_keeps_that_a_key_is_gone() -> None:
    state = held(ROW)
    came = [("k", "v1", 5, False), ("k", None, 10, True), ("k", "v0", 7, False)]
    seen = []
    for time, row in enumerate(came):
        made = CURRENT.advance(changes((time, 1, *row), schema=ROW), state, None, of_updates=False)
        if made.rows.num_rows:
            state = Held(None, np.ones(1, np.int64), made.rows.filter(pa.array(made.diffs > 0)))
        seen.append(CURRENT.show(state.rows).to_pylist())
    assert seen == [[{"k": "k", "v": "v1", "changed": 5}], [], []]


def test_latest_deletion_wins_at_the_same_order() -> None:
    for way in (1, -1):
        rows = [(1, 1, "k", "v", 5, False), (1, 1, "k", "w", 5, True)][::way]
        made = CURRENT.advance(changes(*rows, schema=ROW), held(ROW), None, of_updates=False)
        assert said(made) == [(1, 1, "k", "w", 5, True)]


def test_latest_breaks_ties_by_data() -> None:
    latest = Best(("k",), (("changed", True),))
    schema = ROW.remove(3)
    for way in (1, -1):
        rows = [(1, 1, "k", "v", 5), (1, 1, "k", "é", 5), (1, 1, "k", None, 5)][::way]
        made = latest.advance(changes(*rows, schema=schema), held(schema), None, of_updates=False)
        assert said(made) == [(1, 1, "k", "é", 5)]


def test_null_in_the_order_is_least() -> None:
    latest = Best(("k",), (("n", True),))
    made = latest.advance(changes((2, 1, "k", LEAST)), held(K_N, ("k", None)), None, of_updates=False)
    assert said(made) == [(2, -1, "k", None), (2, 1, "k", LEAST)]


def test_nan_is_greater_than_numbers() -> None:
    floats = pa.table({"n": [float("inf"), float("nan"), None, -0.0, 0.0, float("nan")]})
    assert ranks_of(floats, [("n", False)]).tolist() == [3, 4, 0, 1, 2, 4]
    assert ranks_of(floats, [("n", True)]).tolist() == [2, 0, 5, 4, 3, 0]


def test_top_counts_equal_rows_each() -> None:
    top = Best(("k",), (("n", True),), 2)
    given, contents = changes((1, -2, "a", 9)), held(K_N, ("a", 9), ("a", 5), counts=[3, 4])
    made = top.advance(given, held(K_N, ("a", 9), counts=[2]), contents, of_updates=True)
    assert said(made) == [(1, -1, "a", 9), (1, 1, "a", 5)]


@pytest.mark.parametrize("of_updates", [False, True])
def test_best_of_all_rows_leaves_one(*, of_updates: bool) -> None:
    latest = Best((), (("n", True),))
    contents = held(K_N, ("a", 1)) if of_updates else None
    made = latest.advance(changes((2, 1, "b", 3)), held(K_N, ("a", 1)), contents, of_updates=of_updates)
    assert said(made) == [(2, -1, "a", 1), (2, 1, "b", 3)]


def test_row_taken_away_twice_names_key_and_time() -> None:
    latest = Best(("k",), (("n", True),))
    with pytest.raises(OperatorError, match=r"k='a' that is there -1 times at time=4"):
        latest.advance(changes((4, -2, "a", 1)), held(K_N, ("a", 1)), held(K_N, ("a", 1)), of_updates=True)


def test_best_of_a_key_with_many_rows_and_times() -> None:
    # Each time looks at what changes, not at all 100,000 rows that stay: that would be 2·10**8.
    n, n_times = 100_000, 2_000
    contents = Held(None, np.ones(n, np.int64), pa.table({"k": pa.array(["a"] * n), "n": pa.array(np.arange(n))}))
    times = np.arange(1, n_times + 1)
    rows = pa.table({"k": pa.array(["a"] * n_times), "n": pa.array(n - times)})
    given = Changes(times, np.full(n_times, -1), rows)
    made = Best(("k",), (("n", True),), 1).advance(given, held(K_N, ("a", n - 1)), contents, of_updates=True)
    assert made.rows.num_rows == 2 * n_times
    come = made.diffs > 0
    found = made.rows.filter(pa.array(come))["n"].to_pylist()
    assert dict(zip(made.times[come].tolist(), found, strict=True)) == {time: n - 1 - time for time in times.tolist()}


# The first --------------------------------------------------------------------------------------------

K = pa.schema([("k", pa.string())])


def passed(within: int | None, times: Sequence[int], before: Sequence[int] = ()) -> list[int]:
    given = changes(*((time, 1, "a") for time in times), schema=K)
    state = held(K, *[("a",)] * len(before), times=before)
    return sorted(First(("k",), within).advance(given, state, None, of_updates=False).times.tolist())


def test_first_within_looks_from_what_passed() -> None:
    assert passed(None, [9, 3, 5]) == [3]
    assert passed(None, [9, 3, 5], [1]) == []
    # 4 does not pass, so 6 is far enough from 1.
    assert passed(5, [4, 6, 8], [1]) == [6]
    assert passed(5, [5], [1]) == []
    assert passed(1, [1, 1, 2, 3]) == [1, 2, 3]


def test_first_at_the_least_time_is_the_first() -> None:
    assert passed(None, [0], [LEAST]) == []
    assert passed(10, [LEAST + 9], [LEAST]) == []
    assert passed(10, [LEAST, LEAST + 9, LEAST + 10, (1 << 63) - 1]) == [LEAST, LEAST + 10, (1 << 63) - 1]


def test_first_of_a_key_with_many_times() -> None:
    assert passed(10, list(range(20_000))) == list(range(0, 20_000, 10))


def test_first_of_one_time_is_the_least_row() -> None:
    given = changes((1, 1, "a", 2), (1, 1, "a", None), (1, 1, "a", 1))
    made = First(("k",)).advance(given, held(K_N, times=[]), None, of_updates=False)
    assert said(made) == [(1, 1, "a", None)]


# Functions of all rows --------------------------------------------------------------------------------

SEEN = pa.schema([("n", pa.int64()), ("often", pa.int64())])


def reduced(function: Any, given: Changes, *rows: tuple[Any, ...], before: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
    operator = Reduce(("k",), function, ("n",), SEEN)
    state = held(operator.state(K_N), *before)
    return said(operator.advance(given, state, held(K_N, *rows), of_updates=True))


def test_reduce_is_called_where_rows_of_a_key_change() -> None:
    calls = []

    def function(key: dict[str, Any], rows: pa.Table) -> pa.Table:
        calls.append((key, rows.to_pylist()))
        return rows.rename_columns(["n", "often"])

    # Of b nothing is left after time 1; at time 2 nothing of a changes.
    given = changes((2, 1, "a", 9), (1, 2, "a", 3), (2, -1, "a", 9), (1, -1, "b", 1), (3, -2, "a", 3))
    made = reduced(function, given, ("b", 1), ("a", 5), before=[("b", 7, 7), ("a", 5, 1)])
    assert sorted(calls, key=str) == [
        ({"k": "a"}, [{"n": 3, "_count": 2}, {"n": 5, "_count": 1}]),
        ({"k": "a"}, [{"n": 5, "_count": 1}]),
    ]
    assert made == [(1, -1, "b", 7, 7), (1, 1, "a", 3, 2), (3, -1, "a", 3, 2)]


def fails(key: dict[str, Any], rows: pa.Table) -> pa.Table:
    return 1 / 0  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (fails, r"ZeroDivisionError.* for k='a' at time=4"),
        (lambda key, rows: 5, r"type 'int' of the function for k='a' at time=4"),
        (lambda key, rows: rows, r"'_count'.* for k='a' at time=4"),
        (lambda key, rows: pa.table({"n": ["x"], "often": [1]}), r"'x'.* for k='a' at time=4"),
    ],
)
def test_reduce_names_key_and_time_of_what_is_wrong(function: Any, found: str) -> None:
    with pytest.raises(OperatorError, match=found):
        reduced(function, changes((4, 1, "a", 3)))
    with pytest.raises(OperatorError, match="k='a' that is there -1 times at time=4"):
        reduced(function, changes((4, -1, "a", 3)))


def test_reduce_refuses_columns_of_two_meanings() -> None:
    assert reduced_schema(lambda key, rows: rows, K_N, ("k",), ("n",)).names == ["n", "_count"]
    with pytest.raises(InvalidUsageError, match="type 'int'"):
        reduced_schema(lambda key, rows: 5, K_N, ("k",), ("n",))  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidUsageError, match="'k'"):
        Reduce(("k",), fails, ("n",), K_N).check(K_N, of_updates=True)


def counted(key: object, rows: pa.Table) -> pa.Table:
    del key
    return rows.select(["_count"])


def test_reduce_counts_rows_of_which_it_gets_no_column() -> None:
    rows = stream_of({"_time": [1, 2, 3], "_diff": [1, 2, -1], "k": ["a"] * 3, "_count": [7, 8, 8]})
    found = [(row["_time"], row["_diff"], row["_count"]) for row in rows_of(rows.reduce(counted, by="k", columns=[]))]
    assert sorted(found) == [(1, 1, 1), (2, -1, 1), (2, 1, 3), (3, -1, 3), (3, 1, 2)]
    assert rows_of(rows.reduce(lambda _, rows: rows.select(["k"]), by="_count", columns=["k"]), upper=[2])
    with pytest.raises(InvalidUsageError, match="found a column '_count', which says how often a row is there"):
        rows.reduce(counted, by="k")
    with pytest.raises(InvalidUsageError, match="found neither a key nor a column"):
        rows.reduce(counted, columns=[])
    with pytest.raises(InvalidUsageError, match=r"found columns \['k'\] in what the function gives"):
        rows.reduce(lambda _, rows: rows.select(["k"]), by="k", columns=["k"])


# As of a time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strict", "found"), [(False, [2, 3]), (True, [1, 2])])
def test_join_sees_changes_of_its_time_unless_strict(found: list[int], *, strict: bool) -> None:
    dimension = changes((5, -1, "a", 1), (5, 1, "a", 2), (6, -1, "a", 2), (6, 1, "a", 3))
    facts = pa.table({"k": pa.array(["a", "a"])})
    times, rows = join_as_of(
        np.array([5, 6]), facts, held(K_N, ("a", 1)), dimension, on=("k",), how="inner", strict=strict
    )
    assert (times.tolist(), rows["n"].to_pylist()) == ([5, 6], found)


def test_join_of_one_key_with_many_changes() -> None:
    # Of pairs of a fact and a row that ever was there 4·10**8 are not looked at.
    n = 20_000
    times, ones = np.arange(1, n + 1), np.ones(n, np.int64)
    both = pa.table({"k": pa.array(["a"] * 2 * n), "n": pa.array(np.concatenate([times, times - 1]))})
    dimension = Changes(np.concatenate([times, times]), np.concatenate([ones, -ones]), both)
    facts = pa.table({"k": pa.array(["a"] * n)})
    at, rows = join_as_of(times, facts, held(K_N, ("a", 0)), dimension, on=("k",), how="inner", strict=True)
    assert rows["n"].to_pylist() == (at - 1).tolist()
    assert sorted(at.tolist()) == times.tolist()


def test_join_counts_rows_and_leaves_nulls_alone() -> None:
    facts = pa.table({"k": pa.array(["a", None])})
    before = held(K_N, ("a", 1), (None, 2), counts=[3, 1])
    for how, n in (("inner", 3), ("left", 4)):
        none = changes(schema=K_N)
        _, rows = join_as_of(np.array([5, 6]), facts, before, none, on=("k",), how=how, strict=False)
        assert rows.num_rows == n


def test_operators_can_be_pickled() -> None:
    for operator in (SUMS, CURRENT, First(("k",), 3)):
        assert pickle.loads(pickle.dumps(operator)) == operator
