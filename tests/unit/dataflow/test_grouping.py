"""Grouping gives what pyarrow's own gives, whatever keys and values there are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as s

from spark_timely.dataflow.aggregates import group_rows
from tests.support import examples

DAY = dt.date(2013, 1, 1)
KEYS: Mapping[pa.DataType, Sequence[object]] = {
    pa.int64(): (0, 1, -3, 2**63 - 1, -(2**63), None),
    pa.int8(): (-128, 127, 0, None),
    pa.date32(): (DAY, dt.date(1700, 1, 1), None),
    pa.timestamp("us", tz="UTC"): (dt.datetime(2013, 1, 1, tzinfo=dt.UTC), None),
    pa.string(): ("", "a", "b", None),
    pa.bool_(): (True, False, None),
    pa.binary(): (b"", b"a", None),
    pa.float64(): (0.5, 2.0, None),
}
VALUES: Mapping[pa.DataType, Sequence[object]] = {
    pa.int64(): (-(2**62), 0, 5, None),
    pa.int16(): (-(2**15), 2**15 - 1, None),
    pa.float64(): (-1.5, 2.0, float("nan"), float("inf"), None),
    pa.float32(): (-1.5, float("nan"), None),
    pa.date32(): (DAY, dt.date(1, 1, 1), None),
    pa.timestamp("us"): (dt.datetime(1700, 1, 1), dt.datetime(2013, 1, 1), None),
    pa.string(): ("", "a", None),
}


@s.composite
def rows_and_wanted(draw: s.DrawFn) -> tuple[pa.Table, list[str], list[tuple[str | list[str], str]]]:
    n = draw(s.integers(0, 12))
    columns: dict[str, pa.ChunkedArray] = {}

    def add(name: str, type_: pa.DataType, values: Sequence[object]) -> None:
        drawn = pa.array(draw(s.lists(s.sampled_from(values), min_size=n, max_size=n)), type_)
        cut = draw(s.integers(0, n))
        columns[name] = pa.chunked_array([drawn[:cut], drawn[cut:]])

    keys = [f"k{i}" for i in range(draw(s.integers(1, 3)))]
    for key in keys:
        type_ = draw(s.sampled_from(list(KEYS)))
        add(key, type_, draw(s.sampled_from([KEYS[type_][:-1], KEYS[type_]])))
    wanted: list[tuple[str | list[str], str]] = [([], "count_all")]
    for i in range(draw(s.integers(0, 3))):
        type_ = draw(s.sampled_from(list(VALUES)))
        add(f"v{i}", type_, VALUES[type_])
        kinds = ["count", "min", "max"] + ["sum"] * (type_ in (pa.int64(), pa.int16(), pa.float64()))
        wanted.append((f"v{i}", draw(s.sampled_from(kinds))))
    return pa.table(columns), keys, wanted


def in_order(table: pa.Table) -> str:
    return repr(sorted(table.to_pylist(), key=repr))


@examples(300)
@given(rows_and_wanted())
def test_groups_are_those_of_pyarrow(
    drawn: tuple[pa.Table, list[str], list[tuple[str | list[str], str]]],
) -> None:
    rows, keys, wanted = drawn
    expected = rows.group_by(keys, use_threads=False).aggregate(wanted)
    found = group_rows(rows, keys, wanted)
    assert found.schema.equals(expected.schema)
    # Sums of integers may pass 64 bits in one order and not in another, but modulo 2**64 they are the same.
    assert in_order(found) == in_order(expected)


@pytest.mark.parametrize("keys", [np.arange(5000), np.arange(5000) * 10**14, np.arange(5000) % 7 * 10**14])
@pytest.mark.parametrize("type_", [pa.int64(), pa.string()])
def test_many_rows_of_dense_and_of_sparse_keys_are_grouped_alike(keys: np.ndarray, type_: pa.DataType) -> None:
    rng = np.random.default_rng(1)
    rows = pa.table({"t": rng.integers(-5, 5, 5000), "v": rng.integers(-9, 9, 5000), "k": pa.array(keys).cast(type_)})
    for by in (["k"], ["t", "k"], ["k", "t"]):
        expected = rows.group_by(by).aggregate([("v", "sum"), ("v", "max")])
        assert in_order(group_rows(rows, by, [("v", "sum"), ("v", "max")])) == in_order(expected)


def test_keys_with_too_many_combinations_are_left_to_pyarrow() -> None:
    n = 40
    rows = pa.table({f"k{i}": np.arange(n) * 10**15 for i in range(13)})
    assert float(n) ** 13 > 2**62
    assert group_rows(rows, rows.schema.names, [([], "count_all")]).num_rows == n
