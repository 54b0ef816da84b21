"""Path summaries, as the arcs of a graph, and orders of times against what the real timely answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spark_timely.progress.reachability import Builder, PortSummaries, Source, Target, Tracker
from spark_timely.progress.subgraph import Refines
from spark_timely.time.antichain import Antichain, less_equal
from tests.oracles.golden import as_row, vectors

pytestmark = pytest.mark.golden

# What times of a graph can be: the crate has bytes too, and steps back of signed times.
ARITY = {"u64": 1, "i64": 1, "product": 2, "product3": 3, "unit": 0}


def _rows(op: str) -> Iterator[dict[str, Any]]:
    found = [row for row in vectors("summaries.jsonl") if row["op"] == op]
    assert found, f"no vectors of {op!r}"
    yield from found


def _steps_of(row: dict[str, Any]) -> list[tuple[int, ...]]:
    return [as_row(row[key]) for key in ("summary", "other") if key in row]


def _expected(row: dict[str, Any]) -> tuple[int, ...] | None:
    # The unit's only time is written [], since null says that nothing follows.
    return None if row["result"] is None else as_row(row["result"])


def _path(kind: str, steps: list[tuple[int, ...]]) -> tuple[Tracker, list[PortSummaries]]:
    """Return the graph of operators in a row, from an input to an output, each with its steps."""
    builder = Builder(ARITY[kind], dtype="int64" if kind == "i64" else "uint64")
    builder.add_node(0, 1, 1)
    for index, each in enumerate(steps, 1):
        builder.add_node(index, 1, 1, [[[each]]], [(index - 1, 0)])
    builder.add_edge(Source(len(steps), 0), Target(0, 0))
    return builder.build()


@pytest.mark.parametrize("kind", ARITY)
def test_results_in_every_golden_row_answers_as_timely(kind: str) -> None:
    rows = [row for row in _rows("results_in") if row["type"] == kind]
    forward = [row for row in rows if min(as_row(row["summary"]), default=0) >= 0]
    assert forward
    assert kind == "i64" or forward == rows
    for row in forward:
        tracker, _ = _path(kind, _steps_of(row))
        tracker.update_target(Target(1, 0), as_row(row["time"]), 1)
        tracker.propagate_all()
        expected = _expected(row)
        found = tracker.implications(Target(0, 0))
        assert found == (Antichain.empty(ARITY[kind]) if expected is None else Antichain.of(expected)), row


@pytest.mark.parametrize("kind", [kind for kind in ARITY if kind != "unit"])
def test_followed_by_every_golden_row_answers_as_timely(kind: str) -> None:
    rows = [row for row in _rows("followed_by") if row["type"] == kind]
    forward = [row for row in rows if min(min(each) for each in _steps_of(row)) >= 0]
    assert kind == "i64" or forward == rows
    for row in forward:
        _, (found,) = _path(kind, _steps_of(row))
        expected = _expected(row)
        assert found == ({} if expected is None else {0: Antichain.of(expected)}), row


def test_summarize_of_products_composes_outside_as_inside() -> None:
    nested = Refines(1, nested=True)
    for row in _rows("followed_by"):
        if row["type"] != "product" or row["result"] is None:
            continue
        _, (found,) = _path("u64", [nested.to_outer(each) for each in _steps_of(row)])
        assert found == {0: Antichain.of(nested.to_outer(as_row(row["result"])))}


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
