"""Where the rows of a commit are cut into files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.log import MemoryLog
from spark_timely.log.files.parquet import MOST_PARTS, narrow_cuts
from spark_timely.log.writer import StreamWriter
from tests.support import examples

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SECOND = 1_000_000


@given(
    st.lists(st.tuples(INT64 | st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60),
    st.integers(0, 1 << 40),
)
def test_cuts_are_few_ascending_and_between_two_times(times: list[tuple[int, int]], size: int) -> None:
    array = np.array(sorted(times), np.int64)
    cuts = narrow_cuts(array, size)
    assert len(cuts) < MOST_PARTS
    assert cuts == sorted(set(cuts))
    assert all(0 < cut < len(array) and array[cut - 1, 0] < array[cut, 0] for cut in cuts)


def trickle(rng: np.random.Generator, share: float, n: int = 2000) -> np.ndarray:
    late = np.where(rng.random(n) < share, rng.integers(0, 59 * SECOND, n), 0)
    return np.sort(100 * SECOND - rng.integers(0, SECOND, n) - late).reshape(-1, 1)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_late_rows_of_a_trickle_go_apart(share: float) -> None:
    times = trickle(np.random.default_rng(7), share)
    cuts = narrow_cuts(times, 100_000)
    assert cuts
    dense = times[cuts[-1] :, 0]
    assert dense[-1] - dense[0] < 3 * SECOND
    assert len(dense) >= 0.75 * len(times)


def test_few_rows_ahead_of_the_others_go_apart() -> None:
    assert narrow_cuts(np.array([0] * 990 + [500] * 10).reshape(-1, 1), 100_000) == [990]
    ahead = np.concatenate([np.arange(990), [100_000, 200_000, 300_000]]).reshape(-1, 1)
    assert narrow_cuts(ahead, 100_000)[0] == 990


@pytest.mark.parametrize(
    "times",
    [
        np.zeros(1000),
        np.arange(1000),
        np.repeat(np.arange(10), 100),
        np.sort(np.random.default_rng(1).normal(0, 1000, 5000)),
        np.sort(np.random.default_rng(2).integers(0, 1 << 62, 5000)),
    ],
    ids=["one time", "even", "ten times", "around one time", "at random"],
)
def test_rows_without_stragglers_stay_together(times: np.ndarray) -> None:
    assert narrow_cuts(times.astype(np.int64).reshape(-1, 1), 1_000_000) == []


def test_a_handful_of_rows_is_not_worth_a_second_file() -> None:
    times = np.array([0, 20, 40, 60, 60, 60, 60]).reshape(-1, 1)
    assert narrow_cuts(times, 100) == []


@examples(30, long=2000)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=40), st.booleans())
def test_contents_and_hash_are_the_same_whatever_the_split(lateness: list[int], collection: bool) -> None:
    found = []
    for narrow in (True, False):
        log = MemoryLog.create(
            pa.schema([("v", pa.string())]), minimum=(0,), kind="collection" if collection else "stream"
        )
        writer = log.writer(owner="me")
        times = [1000 - late for late in lateness] + [1000] * 300
        values = [f"{n:0200d}" for n in range(len(times))]
        with pytest.MonkeyPatch.context() as patch:
            if not narrow:
                patch.setattr("spark_timely.log.files.parquet.narrow_cuts", lambda *_: [])
            writer.append(pa.table({"_time": times, "v": values}), advance_to=950)
        report = log.verify()
        assert report.legal, report.problems
        found.append((report.digest, log.messages()["v"].to_pylist(), log.core.stream("main")))
        assert len(log.core.files()) <= (MOST_PARTS if narrow else 1)
    assert found[0][:2] == found[1][:2]
    assert found[0][2].bounds.tolist() == found[1][2].bounds.tolist()


def test_writer_of_a_trickle_writes_few_files_and_narrow_ones() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.string())]), times=("timestamp",), minimum="1970-01-01")
    writer: StreamWriter = log.writer(owner="me")
    times = trickle(np.random.default_rng(3), 0.05)[:, 0]
    values = [f"{n:040d}" for n in np.random.default_rng(3).integers(0, 1 << 60, len(times))]
    writer.append(pa.table({"_time": pa.array(times).cast(pa.timestamp("us", "UTC")), "v": values}))
    index = log.core.files()
    spans = (index.max_times - index.min_times)[:, 0]
    assert 2 <= len(index) <= MOST_PARTS
    assert spans[np.argmax(index.rows)] < 3 * SECOND
    assert int(index.rows.sum()) == len(times)
