"""Planning of a replay against a naive program: files, admission, splits."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.protocol import replay
from spark_timely.protocol.replay import (
    WHOLE,
    FileBounds,
    Limits,
    Piece,
    TimeCounts,
    admit,
    admit_commits,
    cut_bytes,
    cut_times,
    default_splits,
    lexicographically_below,
    may_hold,
    part_of,
    surely_holds,
    within,
)
from tests.oracles.admission_model import admitted, in_range
from tests.oracles.replay_model import Time, is_beyond, less_equal, minimal


def array(times: object, arity: int) -> np.ndarray:
    return np.array(sorted(times), dtype=np.int64).reshape(-1, arity)  # type: ignore[call-overload]


def times_of(arity: int, most: int = 6) -> st.SearchStrategy[Time]:
    return st.tuples(*[st.integers(0, most)] * arity)


@st.composite
def ranges(draw: st.DrawFn, arity: int) -> tuple[frozenset[Time], frozenset[Time]]:
    """Draw two frontiers, the second not before the first; empty ones included."""
    lower = minimal(draw(st.lists(times_of(arity), min_size=1, max_size=3)))
    extra = draw(st.lists(times_of(arity, 8), max_size=3))
    joined = [tuple(map(max, a, b)) for a in lower for b in extra]
    return lower, minimal(joined)


@st.composite
def plans(
    draw: st.DrawFn, arities: tuple[int, ...] = (1, 2, 3)
) -> tuple[int, list[Counter[Time]], list[int], list[bool], object, object]:
    arity = draw(st.sampled_from(arities))
    lower, upper = draw(ranges(arity))
    files = [
        Counter(draw(st.lists(times_of(arity, 7), min_size=1, max_size=8)))
        for _ in range(draw(st.integers(0, draw(st.sampled_from([3, 40])))))
    ]
    sizes = [draw(st.integers(1, 50)) for _ in files]
    known = [draw(st.integers(0, 4)) > 0 for _ in files]
    return arity, files, sizes, known, lower, upper


def bounds_of(files: list[Counter[Time]], sizes: list[int], known: list[bool], arity: int) -> FileBounds:
    # What is not known may be anything.
    low = [
        tuple(min(c) for c in zip(*file, strict=True)) if k else (99,) * arity
        for file, k in zip(files, known, strict=True)
    ]
    high = [
        tuple(max(c) for c in zip(*file, strict=True)) if k else (-99,) * arity
        for file, k in zip(files, known, strict=True)
    ]
    return FileBounds(
        np.array(sizes, dtype=np.int64),
        np.array(low, dtype=np.int64).reshape(-1, arity),
        np.array(high, dtype=np.int64).reshape(-1, arity),
        np.array(known, dtype=np.bool_),
    )


def counts_of(file: Counter[Time], arity: int) -> TimeCounts:
    times = list(file)
    return TimeCounts(
        np.array(times, dtype=np.int64).reshape(-1, arity), np.array([file[t] for t in times], dtype=np.int64)
    )


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "times": st.integers(1, 6),
        "files": st.integers(1, 4),
        "rows": st.integers(1, 30),
        "size_bytes": st.integers(1, 90),
    },
)


@given(plans(), LIMITS, st.sampled_from([1, 30, replay._FIRST_BYTES]))
def test_admission_any_files_and_limits_equals_the_oracle(
    drawn: tuple, limits: dict[str, int], first_bytes: int
) -> None:
    arity, files, sizes, known, lower, upper = drawn
    opened: list[int] = []

    def exact(numbers: np.ndarray) -> list[TimeCounts]:
        opened.extend(numbers.tolist())
        return [counts_of(files[number], arity) for number in numbers]

    bounds = bounds_of(files, sizes, known, arity)
    with patch.object(replay, "_FIRST_BYTES", first_bytes):  # how much is opened at once does not show
        found = admit(bounds, exact, array(lower, arity), array(upper, arity), Limits(**limits))
    assert len(opened) == len(set(opened)), "a file was opened twice"
    if not limits:
        assert opened == []
        assert {tuple(t) for t in found.frontier.tolist()} == set(upper)
        return
    taken, frontier = admitted(files, sizes, lower, upper, limits)
    assert {tuple(t) for t in found.frontier.tolist()} == frontier
    assert found.n_times == len(taken)
    assert found.n_rows == sum(file[time] for file in files for time in taken)
    assert found.n_files == sum(1 for file in files if any(time in file for time in taken))
    # Exactly the times taken lie between the two frontiers.
    everything = {time for file in files for time in file}
    assert set(in_range(everything, lower, frontier)) == set(taken)


@given(plans(arities=(1,)), LIMITS.filter(bool), st.integers(1, 5), st.booleans())
def test_admission_never_cuts_what_is_aligned(drawn: tuple, limits: dict[str, int], align: int, shift: bool) -> None:
    arity, files, sizes, known, lower, upper = drawn
    if shift:  # multiples below zero are counted downwards
        files = [Counter({(time[0] - 9,): n for time, n in file.items()}) for file in files]
        lower, upper = ([(time[0] - 9,) for time in frontier] for frontier in (lower, upper))
    bounds = bounds_of(files, sizes, known, arity)
    found = admit(
        bounds,
        lambda numbers: [counts_of(files[number], arity) for number in numbers],
        array(lower, arity),
        array(upper, arity),
        Limits(**limits, align=align),
    )
    taken, frontier = admitted(files, sizes, lower, upper, limits, align)
    assert {tuple(t) for t in found.frontier.tolist()} == set(frontier)
    assert found.n_times == len(taken)
    everything = {time for file in files for time in file}
    assert set(in_range(everything, lower, frontier)) == set(taken)
    steps = {time[0] // align for time in taken}
    rest = set(in_range(everything, lower, upper)) - set(taken)
    assert not steps & {time[0] // align for time in rest}
    used = {
        "times": len(taken),
        "rows": sum(file[time] for file in files for time in taken),
        "files": sum(1 for file in files if any(time in file for time in taken)),
    }
    above = any(used[name] > limit for name, limit in limits.items() if name in used)
    # Above a limit is only what had to be taken together, and then it is reported.
    assert not above or (len(steps) == 1 and found.oversized == min(taken))


@pytest.mark.parametrize(("size", "most"), [(10, 19), (64 << 20, 4)])
def test_admission_first_times_only_opens_few_files(size: int, most: int) -> None:
    n = 1000
    bounds = FileBounds(
        np.full(n, size), np.arange(n).reshape(-1, 1), np.arange(n).reshape(-1, 1), np.ones(n, dtype=np.bool_)
    )
    opened: list[int] = []

    def exact(numbers: np.ndarray) -> list[TimeCounts]:
        opened.extend(numbers.tolist())
        return [TimeCounts(np.array([[number]]), np.array([1])) for number in numbers]

    found = admit(bounds, exact, np.array([[0]]), np.array([[n]]), Limits(times=3))
    assert found.frontier.tolist() == [[3]]
    assert len(opened) <= most


def test_admission_opens_files_that_hold_times_beside_the_rest() -> None:
    # File 0 alone fills the limit, and file 1 begins later in lexicographic order. Its time (1, 0) is beside what is
    # left of file 0, (0, 5), not beyond it: a frontier of (0, 5) alone would say that (1, 0) is in the prefix.
    files = [TimeCounts(np.array([[0, 0], [0, 5]]), np.array([1, 1])), TimeCounts(np.array([[1, 0]]), np.array([1]))]
    sizes = np.array([64 << 20, 64 << 20])
    bounds = FileBounds(sizes, np.array([[0, 0], [1, 0]]), np.array([[0, 5], [1, 0]]), np.ones(2, dtype=np.bool_))
    opened: list[int] = []

    def exact(numbers: np.ndarray) -> list[TimeCounts]:
        opened.extend(numbers.tolist())
        return [files[number] for number in numbers]

    found = admit(bounds, exact, np.array([[0, 0]]), np.array([[9, 9]]), Limits(times=1))
    assert found.frontier.tolist() == [[0, 5], [1, 0]]
    assert (found.n_times, found.n_rows, opened) == (1, 1, [0, 1])


def test_admission_of_a_time_above_the_limit_is_whole() -> None:
    bounds = FileBounds(np.array([10]), np.array([[4]]), np.array([[5]]), np.array([True]))
    exact = TimeCounts(np.array([[4], [5]]), np.array([100, 1]))
    found = admit(bounds, lambda _: [exact], np.array([[0]]), np.array([[9]]), Limits(rows=7))
    assert (found.frontier.tolist(), found.n_rows, found.oversized) == ([[5]], 100, (4,))


@given(plans())
def test_choice_of_files_never_leaves_one_out(drawn: tuple) -> None:
    arity, files, sizes, known, lower, upper = drawn
    chosen = may_hold(bounds_of(files, sizes, known, arity), array(lower, arity), array(upper, arity))
    for file, told, taken in zip(files, known, chosen.tolist(), strict=True):
        if in_range(file, lower, upper):
            assert taken
        if not told and lower:
            assert taken


@given(st.data())
def test_box_said_to_be_inside_holds_nothing_else(data: st.DataObject) -> None:
    arity = data.draw(st.sampled_from([1, 2, 3]))
    lower, upper = data.draw(ranges(arity))
    corner, size = data.draw(times_of(arity)), data.draw(st.tuples(*[st.integers(0, 2)] * arity))
    top = tuple(a + b for a, b in zip(corner, size, strict=True))
    inside = surely_holds(array([corner], arity), array([top], arity), array(lower, arity), array(upper, arity))
    box = [t for t in np.ndindex(*[8 + 1] * arity) if less_equal(corner, t) and less_equal(t, top)]
    wanted = all(is_beyond(t, lower) and not is_beyond(t, upper) for t in box)
    assert bool(inside[0]) <= wanted
    if arity == 1:
        assert bool(inside[0]) == wanted
    rows = array(box, arity)
    flags = within(rows, array(lower, arity), array(upper, arity)).tolist()
    assert flags == [bool(in_range([tuple(t)], lower, upper)) for t in rows.tolist()]


@given(st.lists(st.integers(0, 2000), max_size=12), st.integers(1, 20), st.data())
def test_pieces_cover_each_row_group_once(sizes: list[int], n_splits: int, data: st.DataObject) -> None:
    splits = cut_bytes(np.array(sizes, dtype=np.int64), n_splits)
    assert len(splits) <= n_splits
    assert all(splits)
    assert [piece.file for split in splits for piece in split] == sorted(
        piece.file for split in splits for piece in split
    )
    for number in range(len(sizes)):
        n_groups = data.draw(st.integers(0, 9))
        pieces = [piece for split in splits for piece in split if piece.file == number]
        seen = [group for piece in pieces for group in part_of(n_groups, piece)]
        assert seen == list(range(n_groups))
        assert pieces[0].start == 0
        assert pieces[-1].stop == WHOLE


@given(st.lists(st.integers(100, 2000), min_size=1, max_size=12), st.integers(1, 8))
def test_splits_by_bytes_are_equal(sizes: list[int], n_splits: int) -> None:
    splits = cut_bytes(np.array(sizes, dtype=np.int64), n_splits)
    weights = [sum(piece.share_of(sizes[piece.file]) for piece in split) for split in splits]
    assert max(weights) - min(weights) <= len(sizes) + n_splits


def test_splits_beyond_reason_are_not_made() -> None:
    assert len(cut_bytes(np.array([3, 4]), 2_000_000)) == 7
    assert len(cut_bytes(np.array([1 << 40]), 2_000_000)) == 10_000


@given(st.data())
def test_cuts_by_time_are_lexicographic_and_even(data: st.DataObject) -> None:
    arity = data.draw(st.sampled_from([1, 2]))
    times = data.draw(st.lists(times_of(arity), max_size=30))
    weights = [data.draw(st.integers(1, 9)) for _ in times]
    n_splits = data.draw(st.integers(1, 6))
    rows = np.array(times, dtype=np.int64).reshape(-1, arity)
    cuts = [tuple(cut) for cut in cut_times(rows, np.array(weights, dtype=np.int64), n_splits).tolist()]
    assert cuts == sorted(set(cuts))
    assert len(cuts) < max(n_splits, 1) or not cuts
    assert all(cut in times and cut > min(times) for cut in cuts)
    per_time: Counter[Time] = Counter()
    for time, weight in zip(times, weights, strict=True):
        per_time[time] += weight
    loads = [
        sum(w for t, w in per_time.items() if (i == 0 or t >= cuts[i - 1]) and (i == len(cuts) or t < cuts[i]))
        for i in range(len(cuts) + 1)
    ]
    if times:
        # No split is above an equal share by more than the heaviest time.
        assert max(loads) <= sum(weights) / n_splits + max(per_time.values())


@pytest.mark.parametrize("arity", [1, 2, 3])
def test_lexicographic_comparison_equals_that_of_tuples(arity: int) -> None:
    rows = list(np.ndindex(*[3] * arity))
    for bound in rows:
        found = lexicographically_below(np.array(rows), np.array(bound)).tolist()
        assert found == [row < bound for row in rows]


def test_commits_are_never_cut_and_at_least_one_is_taken() -> None:
    ones = np.ones(3, dtype=np.int64)
    assert admit_commits(ones * 9, ones, ones, Limits(rows=1)) == 1
    assert admit_commits(ones * 9, ones, ones, Limits(rows=18)) == 2
    assert admit_commits(ones, ones, ones, Limits(files=2)) == 2
    assert admit_commits(ones[:0], ones[:0], ones[:0], Limits(files=2)) == 0


def test_default_splits_are_few_and_large() -> None:
    assert [default_splits(size) for size in (0, 1, 33 << 20, 1 << 50)] == [1, 1, 2, 16]
    assert part_of(3, Piece(0)) == range(3)
