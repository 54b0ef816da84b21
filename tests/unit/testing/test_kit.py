"""The test kit: text tables, comparisons, the manual clock, the strategies."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given

from spark_timely.errors import InvalidUsageError
from spark_timely.testing import (
    ManualClock,
    assert_same_rows,
    assert_same_updates,
    table_from_text,
)
from spark_timely.testing.strategies import Arrivals, History, arrivals, histories, rows_table
from tests.oracles.capture_model import CaptureModel
from tests.oracles.replay_model import ReplayModel


def test_text_table_of_every_kind_has_types() -> None:
    table = table_from_text("""
        __time__ | n | x    | ok   | day        | at                          | word
        1        | 2 | 1.5  | true | 2024-02-29 | 2024-01-01T00:00:00.000001Z | moin
        2        |   | -2e3 |      |            | 2024-01-01 00:00            | '17'
    """)
    assert table.schema.types == [
        pa.int64(),
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
        pa.string(),
    ]
    assert table["n"].to_pylist() == [2, None]
    assert table["at"].to_pylist()[0] == dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)


def test_text_table_with_schema_takes_its_types() -> None:
    table = table_from_text("__time__ n\n3 4", schema=pa.schema([("_time", pa.int32()), ("n", pa.float64())]))
    assert table.schema.types == [pa.int32(), pa.float64()]


def test_text_table_product_times_make_a_column_each() -> None:
    table = table_from_text("__time__ | n\n 1,2 | 3\n 4,5 | 6")
    assert table.to_pydict() == {"_time_0": [1, 4], "_time_1": [2, 5], "n": [3, 6]}


@pytest.mark.parametrize("text", ["", "a | b\n1"])
def test_text_table_malformed_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not read a table"):
        table_from_text(text)


def test_same_updates_counts_rows_and_lists_both_sides() -> None:
    actual = table_from_text("__time__ word\n1 moin\n1 moin\n2 tach")
    expected = table_from_text("__time__ word\n1 moin\n2 servus")
    with pytest.raises(AssertionError) as found:
        assert_same_updates(actual, expected)
    assert str(found.value) == (
        "could not match rows: they differ at 2 times\n"
        "  at time (1,)\n"
        "    only in actual (1 rows):\n"
        "      1 x {word: 'moin'}\n"
        "  at time (2,)\n"
        "    only in actual (1 rows):\n"
        "      1 x {word: 'tach'}\n"
        "    only in expected (1 rows):\n"
        "      1 x {word: 'servus'}"
    )


def test_same_updates_treats_values_by_meaning() -> None:
    left = pa.table({"_time": [1, 1], "x": [float("nan"), -0.0], "y": pa.array([None, None], pa.string())})
    right = pa.table({"_time": [1, 1], "x": [0.0, float("nan")]})
    assert_same_updates(left, right)


def test_same_updates_weighs_by_diff() -> None:
    left = table_from_text("__time__ __diff__ word\n1 2 moin\n1 -1 moin\n1 1 tach\n1 -1 tach")
    assert_same_updates(left, table_from_text("__time__ __diff__ word\n1 1 moin"))


def test_same_rows_compares_time_columns_as_values() -> None:
    with pytest.raises(AssertionError, match="differ at 1 time"):
        assert_same_rows(pa.table({"_time": [1]}), pa.table({"_time": [2]}))


def test_manual_clock_refuses_to_advance_backwards() -> None:
    clock = ManualClock(now=5)
    with pytest.raises(InvalidUsageError, match="seconds=-1"):
        clock.advance(-1)
    for wrong in (float("nan"), "1", None):
        for use in (clock.advance, clock.set, lambda now: ManualClock(now=now)):
            with pytest.raises(
                InvalidUsageError, match=f"could not .* the clock: found .*={wrong!r} — hint: give a number"
            ):
                use(wrong)
    clock.set(2)
    assert clock() == 2.0


@given(history=histories())
def test_histories_keep_the_protocol(history: History) -> None:
    model = ReplayModel(history.minimum, len(history.streams))
    for commit in history.commits:
        model.apply(commit.stream, commit.messages, commit.progress)
    # Frontiers only move forward: every element of a later one is beyond the earlier one.
    for earlier, later in zip(model.frontiers, model.frontiers[1:], strict=False):
        assert all(any(all(a <= b for a, b in zip(e, t, strict=True)) for e in earlier) for t in later)
    if not model.frontier():
        assert sum(map(len, model.closed().values())) == sum(len(c.messages) for c in history.commits)


@given(drawn=arrivals(late=False))
def test_arrivals_without_late_rows_have_none_in_any_cut(drawn: Arrivals) -> None:
    assert not drawn.late_for_some_cut
    model = CaptureModel(minimum=-(2**63), policy="bounded", lateness=drawn.lateness)
    for (time,), row in drawn.rows:
        model.batch([(time, row)])
    assert len(model.messages) == len(drawn.rows)


@given(drawn=arrivals())
def test_rows_table_has_a_row_each(drawn: Arrivals) -> None:
    assert rows_table(list(drawn.rows), (drawn.kind,)).num_rows == len(drawn.rows)
