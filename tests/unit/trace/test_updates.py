"""Updates against a dictionary: what is put together, moved, looked at and summed, however it is cut."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import MultiplicityOverflowError, TimelyInternalError
from spark_timely.time.domain import TimeDomain
from spark_timely.trace.updates import Updates, places_of, summed_by

SCHEMA = pa.schema([("s", pa.string()), ("x", pa.float64()), ("l", pa.list_(pa.int64()))])
HUGE = st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 2**32, -1, 0, 1]) | st.integers(-3, 3)
ROWS = st.tuples(
    st.sampled_from(["", "a", "é", None]),
    st.sampled_from([0.0, -0.0, 1.5, math.nan, None]),
    st.sampled_from([None, (), (1,), (None,)]),
)
Key = tuple[Any, ...]


def made(k: int, every: list[tuple[Key, tuple[int, int], int]], *, keyed: bool = False) -> Updates:
    rows = pa.table(
        {name: pa.array([row[at] for row, _, _ in every], SCHEMA.field(name).type) for at, name in enumerate("sxl")}
    )
    times = np.array([time[:k] for _, time, _ in every], np.int64).reshape(len(every), k)
    hashes = np.array([len(row[0] or "") for row, _, _ in every], np.uint64) if keyed else None
    return Updates(rows, times, np.array([diff for *_, diff in every], np.int64), hashes)


def key_of(row: dict[str, Any], time: list[int]) -> Key:
    """Return what makes updates equal; NaN is equal to NaN, and both zeros are."""
    return (row["s"], repr(row["x"] if row["x"] is None else row["x"] + 0.0), str(row["l"]), *time)


def sums_of(updates: Updates) -> dict[Key, int]:
    """Sum in Python, whose integers have no end."""
    found: Counter[Key] = Counter()
    for row, time, diff in zip(
        updates.rows.to_pylist(), updates.times.tolist(), updates.diffs.tolist(), strict=True
    ):  # fmt: skip
        found[key_of(row, time)] += diff
    return {key: n for key, n in found.items() if n}


UPDATES = st.lists(st.tuples(ROWS, st.tuples(st.integers(0, 3), st.integers(0, 3)), HUGE), max_size=25)


@given(UPDATES, st.integers(0, 2), st.booleans(), st.integers(0, 25))
def test_sums_are_those_of_a_dictionary_however_they_are_cut(
    every: list[tuple[Key, tuple[int, int], int]], k: int, keyed: bool, cut: int
) -> None:
    whole = made(k, every, keyed=keyed)
    wanted = sums_of(whole)
    first = whole.slice(0, min(cut, len(whole))).consolidated(partial=True)
    rest = whole.slice(min(cut, len(whole)), len(whole))
    found = Updates.concat([first, rest]).consolidated(partial=True)
    assert sums_of(found) == wanted
    assert not any(math.copysign(1, x) < 0 for x in found.rows["x"].to_pylist() if x == 0)
    often = Counter(
        key_of(row, time) for row, time in zip(found.rows.to_pylist(), found.times.tolist(), strict=True)
    )  # fmt: skip
    fits = {key for key, n in wanted.items() if -(2**63) <= n < 2**63}
    assert {key for key, n in often.items() if n == 1} == fits
    if fits == wanted.keys():
        assert sums_of(whole.consolidated()) == wanted
        assert len(whole.consolidated()) == len(wanted)
    else:
        with pytest.raises(MultiplicityOverflowError) as error:
            whole.consolidated()
        assert error.value.diff in {n for key, n in wanted.items() if key not in fits}
    if keyed:
        assert found.hashes is not None
        assert (np.diff(found.hashes.astype(np.int64)) >= 0).all()


@given(UPDATES, st.tuples(st.integers(-1, 4), st.integers(-1, 4)), st.tuples(st.integers(-1, 4), st.integers(-1, 4)))
def test_what_counts_at_a_time_is_not_later_in_any_coordinate(
    every: list[tuple[Key, tuple[int, int], int]], at: tuple[int, int], since: tuple[int, int]
) -> None:
    mine = [(row, (0, 0), diff) for row, time, diff in every if time[0] <= at[0] and time[1] <= at[1]]
    assert sums_of(made(2, every).at(at)) == sums_of(made(0, mine))
    moved = [(row, (max(t[0], since[0]), max(t[1], since[1])), diff) for row, t, diff in every]
    assert sums_of(made(2, every).advanced(since)) == sums_of(made(2, moved))


@given(UPDATES, st.data())
def test_some_of_them_are_those_that_were_asked_for(
    every: list[tuple[Key, tuple[int, int], int]], data: st.DataObject
) -> None:
    whole = made(1, every, keyed=True)
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every))), np.bool_)
    chosen = [each for each, mine in zip(every, wanted.tolist(), strict=True) if mine]
    some, expected = whole.where(wanted), made(1, chosen, keyed=True)
    assert some.times.tolist() == expected.times.tolist()
    assert some.diffs.tolist() == expected.diffs.tolist()
    assert str(some.rows.to_pylist()) == str(expected.rows.to_pylist())
    assert some.hashes is not None
    assert expected.hashes is not None
    assert some.hashes.tolist() == expected.hashes.tolist()


def test_rows_that_numbers_tell_apart_stay_as_they_are() -> None:
    zeros = Updates.contents(pa.table({"x": [-0.0, 0.0]}))
    found = zeros.consolidated(group=np.array([1, 2]))
    assert [math.copysign(1, x) for x in found.rows["x"].to_pylist()] == [-1, 1]
    assert zeros.consolidated().as_table().to_pylist() == [{"x": 0.0, "_diff": 2}]


def test_parts_that_do_not_fit_together_are_refused() -> None:
    updates = Updates(pa.table({"v": [1, 2]}), np.array([[1, 1], [2, 2]]), np.array([1, 1]))
    for wrong in (lambda: updates.at((1,)), lambda: updates.advanced((1, 2, 3))):
        with pytest.raises(TimelyInternalError):
            wrong()
    with pytest.raises(TimelyInternalError):
        Updates(updates.rows, updates.times[:1], updates.diffs)


def test_numbers_given_say_what_is_equal() -> None:
    rows = pa.table({"v": ["a", "A", "b"]})
    updates = Updates(rows, np.array([[1], [1], [1]]), np.array([1, 2, 3]))
    found = updates.consolidated(group=np.array([7, 7, 8]))
    assert (found.rows.to_pylist(), found.diffs.tolist()) == ([{"v": "a"}, {"v": "b"}], [3, 3])


def test_all_of_them_are_no_copy() -> None:
    updates = Updates(pa.table({"v": ["a", "b"]}), np.array([[1], [2]]), np.array([1, 1]))
    assert updates.where(updates.diffs > 0) is updates
    assert Updates.concat([updates]) is updates
    assert np.shares_memory(updates.take(np.array([1])).diffs, updates.diffs)


def test_rows_without_columns_are_counted() -> None:
    rows = pa.table({"v": [1, 2]}).select([])
    found = Updates(rows, np.array([[4], [4]]), np.array([1, 2])).consolidated()
    assert (found.diffs.tolist(), found.times.tolist(), found.rows.num_columns) == ([3], [[4]], 0)
    assert Updates.concat([found, found]).consolidated().diffs.tolist() == [6]
    keyed = Updates(rows, np.array([[4], [4]]), np.array([1, 2]), np.array([7, 7], np.uint64))
    assert keyed.consolidated().diffs.tolist() == [3]
    assert summed_by(np.empty((2, 0), np.int64), np.array([1, 2])).sums.tolist() == [3]
    assert len(Updates.contents(rows.slice(0, 0)).consolidated()) == 0


def test_a_column_of_diffs_that_is_asked_for_is_a_column() -> None:
    table = pa.table({"_time": [1], "_diff": [5], "v": ["a"]})
    domain = TimeDomain(("long",))
    assert Updates.of_table(table, domain, ["v"]).diffs.tolist() == [5]
    assert Updates.of_table(table, domain, ["_diff", "v"]).diffs.tolist() == [1]
    updates = Updates.of_table(table, domain, ["v"])
    assert updates.with_times(domain).to_pylist() == table.to_pylist()


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 12)))
def test_numbers_are_found_among_others(among: list[int], wanted: set[int]) -> None:
    hashes, asked = np.array(sorted(among), np.uint64), np.array(sorted(wanted), np.uint64)
    assert places_of(asked, hashes).tolist() == [at for at, each in enumerate(sorted(among)) if each in wanted]
