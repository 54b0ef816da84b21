"""Columns as other engines write them, in the types that were declared."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from spark_timely.datasource.reader import conform_array
from spark_timely.errors import SchemaMismatchError

UTC = pa.timestamp("us", "UTC")
NAIVE = pa.timestamp("us")
NOON = dt.datetime(2020, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.array([NOON, None], NAIVE), pa.array([NOON_UTC, None], UTC)),
        (pa.array([NOON_UTC], pa.timestamp("us", "Asia/Tokyo")), pa.array([NOON_UTC], UTC)),
        (pa.array([NOON], pa.timestamp("ns")), pa.array([NOON_UTC], UTC)),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.array(["a", None, "a"])),
        (pa.array(["a", None], pa.large_string()), pa.array(["a", None])),
        (pa.array(["a", None], pa.string_view()), pa.array(["a", None])),
        (pa.array([b"a"], pa.large_binary()), pa.array([b"a"])),
        (pa.array([1], pa.int32()), pa.array([1])),
        (
            pa.array([{"t": NOON, "n": 1}, None, {"t": None, "n": 2}], pa.struct([("t", NAIVE), ("n", pa.int64())])),
            pa.array([{"t": NOON_UTC, "n": 1}, None, {"t": None, "n": 2}], pa.struct([("t", UTC), ("n", pa.int64())])),
        ),
        (
            pa.array([{"n": 1}, None], pa.struct([("n", pa.int64())])),
            pa.array([{"t": None, "n": 1}, None], pa.struct([("t", UTC), ("n", pa.int64())])),
        ),
        (
            pa.array([[NOON, None], None, []], pa.list_(NAIVE)),
            pa.array([[NOON_UTC, None], None, []], pa.list_(pa.field("element", UTC))),
        ),
        (
            pa.array([[("k", NOON)], None, []], pa.map_(pa.large_string(), NAIVE)),
            pa.array([[("k", NOON_UTC)], None, []], pa.map_(pa.string(), UTC)),
        ),
        (
            pa.array([[{"t": NOON}], None, [None]], pa.list_(pa.struct([("t", NAIVE)]))),
            pa.array([[{"t": NOON_UTC}], None, [None]], pa.list_(pa.struct([("t", UTC)]))),
        ),
    ],
)
def test_conform_changes_the_type_and_no_value_also_of_slices(found: pa.Array, wanted: pa.Array) -> None:
    for array, expected in (
        (found, wanted),
        (found.slice(1), wanted.slice(1)),
        (found.slice(0, 1), wanted.slice(0, 1)),
    ):
        made = conform_array(array, wanted.type)
        made.validate(full=True)
        assert made.type == wanted.type
        assert made.to_pylist() == expected.to_pylist()


def test_conform_what_fits_copies_nothing() -> None:
    column = pa.array([1, 2])
    assert conform_array(column, pa.int64()) is column
    naive = pa.array([NOON], NAIVE)
    assert conform_array(naive, UTC).buffers()[1].address == naive.buffers()[1].address


def test_conform_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        SchemaMismatchError,
        match=r"found type 'string', declared is 'int64' .* — hint: write the log with spark-timely",
    ):
        conform_array(pa.array(["a"]), pa.int64())
