"""Order, offset, limit, projection, size and thinning."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.answers.plan import PeekPlan, Thinning, finish, order_of, row_sizes
from spark_timely.errors import InvalidUsageError, ResultTooLargeError, SchemaMismatchError

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("word", pa.string()), ("tags", pa.list_(pa.string()))])
MOST = (1 << 63) - 1
HUGE = 1 << 80


def plan(*, order_by: Any = None, select: tuple[str, ...] = ("k",), **values: Any) -> PeekPlan:
    order = order_of("could not peek", order_by, SCHEMA)
    columns = tuple(dict.fromkeys([*select, *(each.column for each in order)]))
    nothing: Any = None
    return PeekPlan("/log", "", nothing, nothing, (), (0,), nothing, None, None, select, columns, order, **values)


def rows(ks: list[int | None], counts: list[int] | None = None) -> pa.Table:
    return pa.table({"k": pa.array(ks, pa.int64()), "_diff": pa.array(counts or [1] * len(ks), pa.int64())})


def copies(table: pa.Table, column: str = "k") -> list[Any]:
    return [row[column] for row in table.to_pylist() for _ in range(row["_diff"])]


@pytest.mark.parametrize("limit", [None, 0, 1, 3, 4, 100, HUGE])
@pytest.mark.parametrize("offset", [0, 1, 3, 4, 9, HUGE])
def test_limit_and_offset_cut_copies(limit: int | None, offset: int) -> None:
    table = rows([5, 1, 3], [2, 3, 1])
    every = [1, 1, 1, 3, 5, 5]
    stop = None if limit is None else offset + limit
    found = finish(plan(order_by="k", limit=limit, offset=offset), table)
    assert copies(found) == every[offset:stop]
    assert all(count > 0 for count in found["_diff"].to_pylist())
    loose = copies(finish(plan(limit=limit, offset=offset), table))
    assert len(loose) == len(every[offset:stop])


def test_counts_of_64_bits_do_not_overflow() -> None:
    table = rows([1, 2, 3], [MOST, MOST, MOST])
    found = finish(plan(order_by="k", offset=MOST + 5, limit=MOST), table)
    assert [tuple(row.values()) for row in found.to_pylist()] == [(2, MOST - 5), (3, 5)]
    assert finish(plan(order_by="k", offset=2 * MOST), table).to_pylist() == [{"k": 3, "_diff": MOST}]


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [
        ("x", [None, -math.inf, 0.0, 1.5, "nan"]),
        ([("x", "asc", "last")], [-math.inf, 0.0, 1.5, "nan", None]),
        ([("x", "desc")], ["nan", 1.5, 0.0, -math.inf, None]),
        ([("x", "desc", "first")], [None, "nan", 1.5, 0.0, -math.inf]),
    ],
)
def test_nan_is_greatest_and_nulls_are_where_they_were_said(order_by: Any, expected: list[Any]) -> None:
    values = [1.5, None, math.nan, -math.inf, 0.0]
    table = pa.table({"x": values, "_diff": [1] * 5})
    found = copies(finish(plan(order_by=order_by, select=("x",)), table), "x")
    assert ["nan" if x is not None and math.isnan(x) else x for x in found] == expected


def test_texts_are_ordered_by_their_bytes() -> None:
    words = ["\U0001f600", "\uffff", "b", "ä", "", "a"]
    table = pa.table({"word": words, "_diff": [1] * 6})
    assert copies(finish(plan(order_by="word", select=("word",)), table), "word") == sorted(words, key=str.encode)


def test_ties_are_broken_by_the_whole_row() -> None:
    data = [(k, word) for k in (1, 2) for word in ("b", "a", None)]
    for drawn in range(5):
        random.Random(drawn).shuffle(data)
        table = pa.table({"k": [k for k, _ in data], "word": [word for _, word in data], "_diff": [1] * 6})
        found = finish(plan(order_by=[("k", "desc")], select=("k", "word"), limit=4), table)
        assert [(row["k"], row["word"]) for row in found.to_pylist()] == [(2, None), (2, "a"), (2, "b"), (1, None)]


def test_ties_of_lists_do_not_depend_on_where_rows_stood() -> None:
    tags = [["a"], ["b"], None, [], ["a", "b"]]
    answers = set()
    for order in itertools.permutations(tags):
        table = pa.table({"k": [1] * 5, "tags": pa.array(order, pa.list_(pa.string())), "_diff": [1] * 5})
        answers.add(str(finish(plan(order_by="k", select=("k", "tags"), limit=2), table).to_pylist()))
    assert len(answers) == 1


def test_columns_of_the_order_are_left_out_and_rows_stay_apart() -> None:
    table = pa.table({"word": ["a", "b", "a"], "k": [3, 1, 2], "_diff": [1, 1, 1]})
    found = finish(plan(order_by="k", select=("word",)), table)
    assert found.to_pylist() == [{"word": word, "_diff": 1} for word in ("b", "a", "a")]


def test_size_is_of_distinct_rows_within_limit_and_offset() -> None:
    table = pa.table({"word": ["aaaa", "bb", "cccccccc"], "_diff": [1000, 1, 1]})
    sizes = [8 + 4, 8 + 2, 8 + 8]
    ordered = plan(order_by="word", select=("word",))
    assert finish(plan(order_by="word", select=("word",), max_bytes=sum(sizes)), table).num_rows == 3
    with pytest.raises(ResultTooLargeError, match=f"found an answer of {sum(sizes)} bytes, max_bytes=37") as error:
        finish(plan(order_by="word", select=("word",), max_bytes=37), table)
    assert (error.value.size_bytes, error.value.limit_bytes) == (38, 37)
    assert finish(plan(order_by="word", select=("word",), limit=1001, max_bytes=22), table).num_rows == 2
    assert finish(plan(order_by="word", select=("word",), limit=1, offset=1000, max_bytes=22), table).num_rows == 1
    with pytest.raises(ResultTooLargeError):
        finish(plan(order_by="word", select=("word",), limit=1, offset=1000, max_bytes=21), table)
    assert finish(ordered, table).num_rows == 3


def test_size_of_a_row_is_that_of_its_values() -> None:
    table = pa.table(
        {
            "flag": pa.array([True, None]),
            "small": pa.array([1, 2], pa.int8()),
            "price": pa.array([1, None], pa.decimal128(10, 2)),
            "raw": [b"abc", None],
            "pair": pa.array([{"a": 1, "b": "xy"}, None]),
            "map": pa.array([[("k", 1.0)], []], pa.map_(pa.string(), pa.float64())),
            "lists": [[["a"], None], [[]]],
        }
    )
    assert row_sizes(table).tolist() == [8 + 1 + 1 + 16 + 3 + 10 + 9 + 1, 8 + 1]
    sliced = pa.concat_tables([table, table]).slice(1, 2)
    assert row_sizes(sliced).tolist() == row_sizes(table).tolist()[::-1]
    assert row_sizes(table.slice(0, 0)).tolist() == []


def test_thinning_cuts_at_twice_the_bound() -> None:
    ordered, loose = Thinning(plan(order_by="k", limit=2, offset=1)), Thinning(plan(limit=2, offset=1))
    for k in (9, 8, 7, 6, 5):
        for thinning in (ordered, loose):
            thinning.add(rows([k]))
    for thinning in (ordered, loose):
        assert not thinning.done
        assert thinning.rows().num_rows == 5  # type: ignore[union-attr]
        thinning.add(rows([4]))
        assert thinning.rows().num_rows == 3  # type: ignore[union-attr]
    assert sorted(copies(ordered.rows())) == [4, 5, 6]
    assert loose.done
    assert not ordered.done
    loose.add(rows([1]))
    assert loose.rows().num_rows == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [None, 1, 3, HUGE])
@pytest.mark.parametrize("offset", [0, 2])
def test_thinned_rows_give_the_same_answer(limit: int | None, offset: int) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        every = [rng.choice([None, *range(100)]) for _ in range(40)]
        table = rows(list(dict.fromkeys(every)), None)
        made = plan(order_by=[("k", rng.choice(["asc", "desc"]))], limit=limit, offset=offset)
        thinning = Thinning(made)
        first = 0
        while first < table.num_rows:
            n = rng.randint(0, 7)
            thinning.add(table.slice(first, n))
            first += n
        kept = thinning.rows()
        assert kept is not None
        assert finish(made, kept) == finish(made, table)


def test_a_bound_of_nothing_takes_nothing() -> None:
    thinning = Thinning(plan(limit=0))
    thinning.add(rows([1]))
    assert thinning.done
    assert thinning.rows() is None


@pytest.mark.parametrize(
    "order_by", [5, [5], [()], [("k", "up")], [("k", "asc", "middle")], ["k", ("k", "desc")], [("k", "asc", "last", 1)]]
)
def test_what_is_no_order_is_refused(order_by: Any) -> None:
    with pytest.raises(InvalidUsageError, match=r"could not peek: found .*order_by") as error:
        order_of("could not peek", order_by, SCHEMA)
    assert "order_by=[" in (error.value.hint or "")


def test_order_by_what_has_no_order_or_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="an order by column 'tags' of type list"):
        order_of("could not peek", ["tags"], SCHEMA)
    with pytest.raises(SchemaMismatchError, match="found no column 'n' — hint: choose among"):
        order_of("could not peek", ["n"], SCHEMA)
