"""Updates become rows with their counts."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from spark_timely.answers.plan import counts_at
from spark_timely.errors import MultiplicityOverflowError, NegativeMultiplicityError
from spark_timely.time.antichain import Antichain
from spark_timely.trace.updates import Updates, contents_of

MOST = (1 << 63) - 1


def counted(path: str, rows: pa.Table, diffs: npt.NDArray[np.int64]) -> pa.Table:
    return contents_of(f"peek log {path!r}", Updates.contents(rows, diffs)).as_table()


def test_equal_rows_are_one_whatever_their_zeros_nans_and_nulls() -> None:
    rows = pa.table({"x": [0.0, -0.0, math.nan, math.nan, None, None], "l": [["a"], ["a"], None, None, [None], [None]]})
    found = counted("/log", rows, np.array([1, 2, 3, 4, 5, 6]))
    by_row = {str(row["x"]): row["_diff"] for row in found.to_pylist()}
    assert by_row == {"0.0": 3, "nan": 7, "None": 11}


def test_one_negative_zero_is_given_as_zero() -> None:
    (row,) = counted("/log", pa.table({"x": [-0.0]}), np.array([1])).to_pylist()
    assert math.copysign(1, row["x"]) == 1


def test_rows_that_sum_to_nothing_are_left_out() -> None:
    found = counted("/log", pa.table({"v": ["a", "a", "b", "c"]}), np.array([1, -1, 0, 2]))
    assert found.to_pylist() == [{"v": "c", "_diff": 2}]
    assert counted("/log", pa.table({"v": ["a"]}), np.array([0])).num_rows == 0


def test_order_of_the_updates_means_nothing() -> None:
    rng = random.Random(1)
    updates = [(rng.choice("abcdef"), rng.choice([1, 2])) for _ in range(60)]
    answers = []
    for _ in range(5):
        rng.shuffle(updates)
        words, diffs = zip(*updates, strict=True)
        answers.append(counted("/log", pa.table({"v": words}), np.array(diffs)).to_pylist())
    assert all(answer == answers[0] for answer in answers)
    expected: Counter[str] = Counter()
    for word, diff in updates:
        expected[word] += diff
    assert {row["v"]: row["_diff"] for row in answers[0]} == expected


@pytest.mark.parametrize("at", [0, 2])
def test_negative_count_is_refused_with_row_and_count(at: int) -> None:
    words = ["a", "b", "c"]
    words.insert(at, "bad")
    diffs = [1 if word != "bad" else -2 for word in words]
    with pytest.raises(NegativeMultiplicityError, match=r"found row=\{'v': 'bad'\} with count=-2") as error:
        counted("/log", pa.table({"v": words}), np.array(diffs))
    assert (error.value.data, error.value.diff) == ("{'v': 'bad'}", -2)


def test_sums_are_exact_beyond_64_bits() -> None:
    rows = pa.table({"v": ["a"] * 4})
    assert counted("/log", rows, np.array([MOST, MOST, -MOST, -MOST + 5])).to_pylist() == [{"v": "a", "_diff": 5}]
    with pytest.raises(MultiplicityOverflowError, match=f"with count={3 * MOST + 7} — hint"):
        counted("/log", rows, np.array([MOST, MOST, MOST, 7]))
    with pytest.raises(NegativeMultiplicityError, match=f"with count={-4 * MOST} — hint"):
        counted("/log", rows, np.array([-MOST] * 4))


def test_updates_up_to_a_time_count() -> None:
    times = np.array([[1, 5], [2, 2], [3, 1], [2, 3]])
    assert counts_at(times, (2, 3)).tolist() == [False, True, False, True]
    line = np.array([[1], [2], [3]])
    assert counts_at(line, (2,), since=Antichain.of(2)).tolist() == [False, True, False]
    assert counts_at(line, (3,), lower=2).tolist() == [False, True, True]
