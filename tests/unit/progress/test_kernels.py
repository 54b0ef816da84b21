"""Compiled loops: what happens without numba, and without a place for its cache; and the loops themselves."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from spark_timely.progress import count_table, kernels
from spark_timely.progress.count_table import CountTable, few_minima, moves
from tests.modules import ROOT
from tests.oracles import order_model as model


def twice(value: int) -> int:
    return 2 * value


def test_without_numba_functions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_NUMBA", None)
    assert kernels.njit(twice) is twice
    assert kernels.inlined(twice) is twice


def test_functions_are_compiled_without_a_place_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(function: object = None, *, cache: bool = False) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return ("compiled", function)

    monkeypatch.setattr(kernels, "_NUMBA", SimpleNamespace(njit=njit))
    assert kernels.njit(twice) == ("compiled", twice)
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("setting", "hidden", "compiled"), [("1", False, False), ("0", True, False), ("0", False, None), ("", False, None)]
)
def test_numba_is_used_where_it_is_installed_and_allowed(setting: str, hidden: bool, compiled: bool | None) -> None:
    code = (
        "import sys, importlib.util\n"
        + ("sys.modules['numba'] = None\n" if hidden else "")
        + "from spark_timely.progress.kernels import COMPILED\n"
        + "print(COMPILED, sys.modules.get('numba') is not None)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"SPARK_TIMELY_NO_NUMBA": setting},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    found = run.stdout.split() == ["True", "True"]
    assert run.stdout.split() in (["True", "True"], ["False", "False"])
    assert compiled is None or found == compiled


def rows(times: list[model.Time], arity: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(times, dtype=np.int64).reshape(len(times), arity)


def drawn(rng: random.Random, arity: int, n: int) -> list[model.Time]:
    return [tuple(rng.randint(-4, 4) for _ in range(arity)) for _ in range(n)]


@pytest.mark.parametrize("arity", [0, 1, 2, 3, 4])
def test_minima_of_an_antichain_and_a_few_more(arity: int) -> None:
    rng = random.Random(arity)
    for _ in range(200):
        elements = model.minima(drawn(rng, arity, rng.randint(0, 6)))
        candidates = drawn(rng, arity, rng.randint(0, 9))
        found = few_minima(rows(elements, arity), rows(candidates, arity))
        assert list(map(tuple, found.tolist())) == model.minima(elements + candidates)


@pytest.mark.parametrize("arity", [0, 1, 2, 3])
def test_moves_between_two_antichains(arity: int) -> None:
    rng = random.Random(arity)
    for _ in range(100):
        before, after = (model.minima(drawn(rng, arity, rng.randint(0, 6))) for _ in range(2))
        times, signs = moves(rows(before, arity), rows(after, arity))
        expected = model.consolidate([(t, -1) for t in before] + [(t, 1) for t in after])
        assert list(zip(map(tuple, times.tolist()), signs.tolist(), strict=True)) == expected


def numbers_in_a_row(n: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.arange(n).reshape(-1, 1)


def equal_last_bits(n: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return (np.arange(n) << 40).reshape(-1, 1)


def ends_of_the_range(n: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.concatenate([np.iinfo(np.int64).min + np.arange(n), np.iinfo(np.int64).max - np.arange(n)]).reshape(-1, 1)


@pytest.mark.parametrize("times_of", [numbers_in_a_row, equal_last_bits, ends_of_the_range])
def test_a_table_finds_what_it_holds_while_it_grows_and_shrinks(
    times_of: Callable[[int], np.ndarray[tuple[int, int], np.dtype[np.int64]]],
) -> None:
    times = times_of(2000)
    none, ones = np.empty((0, 1), dtype=np.int64), np.ones(times.shape[0], dtype=np.int64)
    table = CountTable(none, ones[:0], none)
    table.update(times, ones)
    assert len(table) == times.shape[0]
    assert table._counts.shape[0] >= 2 * len(table)
    order = np.random.default_rng(0).permutation(times.shape[0])
    for start in range(0, order.size, 100):
        gone = times[order[start : start + 100]]
        table.update(gone, -ones[: gone.shape[0]])
        left = times[order[start + 100 :]]
        held, counts = table.items()
        assert np.array_equal(np.sort(held[:, 0]), np.sort(left[:, 0]))
        assert (counts == 1).all()
        assert table.elements.tolist() == [[left.min()]] if left.size else table.elements.shape == (0, 1)
    # A table for what was counted at once.
    assert table._counts.shape[0] <= count_table._SPARSE * 100


def test_a_wide_antichain_is_sorted_not_searched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many new minima of many go through the sort: the same answer, and no more moves than are allowed."""
    answers = []
    for allowed in (0, 1 << 40):
        monkeypatch.setattr(count_table, "_FEW_MOVES", allowed)
        rng = np.random.default_rng(7)
        none = np.empty((0, 2), dtype=np.int64)
        table = CountTable(none, none[:, 0], none)
        said = []
        for _ in range(20):
            times = rng.integers(0, 60, (80, 2))
            said += [part.tolist() for part in table.update(times, rng.integers(-1, 2, 80))]
        answers.append(said)
    assert answers[0] == answers[1]
