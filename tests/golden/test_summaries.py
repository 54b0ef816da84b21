"""Path summaries and orders of times against what the real timely answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest

from spark_timely.progress.summary import NestedTimes, Summary
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray, less_equal
from tests.oracles.golden import as_row, vectors

pytestmark = pytest.mark.golden

ARITY = {"u64": 1, "u8": 1, "i64": 1, "product": 2, "product3": 3, "unit": 0}


def _rows(op: str) -> Iterator[dict[str, Any]]:
    found = [row for row in vectors("summaries.jsonl") if row["op"] == op]
    assert found, f"no vectors of {op!r}"
    yield from found


def _summary(kind: str, steps: Any) -> Summary:
    dtype: Literal["int64", "uint64"] = "int64" if kind == "i64" else "uint64"
    return Summary(as_row(steps), dtype, ((0, 255),) if kind == "u8" else None)


def _expected(row: dict[str, Any]) -> tuple[int, ...] | None:
    # The unit's only time is written [], since null says that nothing follows.
    return None if row["result"] is None else as_row(row["result"])


def _array(time: tuple[int, ...], summary: Summary) -> IntArray:
    return np.array([time], dtype=summary.dtype).reshape(1, len(time))


@pytest.mark.parametrize("kind", ARITY)
def test_results_in_every_golden_row_answers_as_timely(kind: str) -> None:
    rows = [row for row in _rows("results_in") if row["type"] == kind]
    assert rows
    for row in rows:
        summary, time, expected = _summary(kind, row["summary"]), as_row(row["time"]), _expected(row)
        assert summary.arity == ARITY[kind]
        assert summary.results_in_one(time) == expected, row
        taken, ok = summary.results_in(_array(time, summary))
        assert ok.tolist() == [expected is not None], row
        assert tuple(taken[0].tolist()) == (time if expected is None else expected), row


@pytest.mark.parametrize("kind", [kind for kind in ARITY if kind != "unit"])
def test_results_in_of_all_times_at_once_equals_one_by_one(kind: str) -> None:
    rows = [row for row in _rows("results_in") if row["type"] == kind]
    times = np.array([as_row(row["time"]) for row in rows], dtype=_summary(kind, rows[0]["summary"]).dtype)
    for row in rows[:40]:
        summary = _summary(kind, row["summary"])
        taken, ok = summary.results_in(times)
        one_by_one = [summary.results_in_one(tuple(time)) for time in times.tolist()]
        assert ok.tolist() == [each is not None for each in one_by_one]
        assert [tuple(t) for t in taken[ok].tolist()] == [each for each in one_by_one if each is not None]


@pytest.mark.parametrize("kind", [kind for kind in ARITY if kind != "unit"])
def test_followed_by_every_golden_row_answers_as_timely(kind: str) -> None:
    rows = [row for row in _rows("followed_by") if row["type"] == kind]
    assert rows
    for row in rows:
        both = _summary(kind, row["summary"]).followed_by(_summary(kind, row["other"]))
        assert (None if both is None else both.steps) == _expected(row), row


def test_summarize_of_products_composes_outside_as_inside() -> None:
    nested = NestedTimes(1)
    for row in _rows("followed_by"):
        if row["type"] != "product" or row["result"] is None:
            continue
        first, second = _summary("product", row["summary"]), _summary("product", row["other"])
        outside = nested.summarize(first).followed_by(nested.summarize(second))
        assert outside is not None
        assert outside.steps == nested.summarize_steps(as_row(row["result"]))


def test_orders_every_golden_row_compares_as_timely() -> None:
    kinds = set()
    for row in _rows("less_equal"):
        kinds.add(row["type"])
        a, b = as_row(row["a"]), as_row(row["b"])
        dtype = np.uint64 if max((*a, *b), default=0) >= 1 << 63 else np.int64
        left, right = np.array([a], dtype=dtype), np.array([b], dtype=dtype)
        assert bool(less_equal(left, right)[0]) == row["result"], row
        one, other = Antichain.of(a), Antichain.of(b)
        assert one.less_equal(b) == row["result"], row
        if "less_than" in row:
            assert one.less_than(b) == row["less_than"], row
            assert np.maximum(left, right)[0].tolist() == list(as_row(row["join"])), row
            assert np.minimum(left, right)[0].tolist() == list(as_row(row["meet"])), row
            # Of two single times as antichains: their join is that of the times.
            assert one.join(other) == Antichain.of(as_row(row["join"])), row
            assert (a > b) - (a < b) == {"Less": -1, "Equal": 0, "Greater": 1}.get(row["cmp"], row["cmp"]), row
    assert "product" in kinds, kinds
