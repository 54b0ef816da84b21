"""Counts that bound a frontier, against the speeds of the real timely crate.

The crate was measured once, on one core of a machine of the class that this is meant for; its figures, in updates
per second, stand in `RUST`. The workloads are the ones that its notes describe.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_timely.progress.frontier import MutableAntichain
from spark_timely.progress.kernels import COMPILED

from .report import Case

Ints = npt.NDArray[np.int64]
Batches = list[tuple[Ints, Ints]]
Time = tuple[int, ...]

NAME = "progress_mutable_antichain_vs_rust"
SMALL = "progress_small_batches_vs_plain_python"
UPDATES = 1_000_000
BATCH = 1000
REPEATS = 5
# Updates per second of timely 0.31.0, the medians of five runs, rustc -O3, one core.
RUST = {
    "u64_held10_random": 38_295_800.0,
    "u64_held1000_random": 18_399_974.0,
    "product_width10": 33_824_045.0,
    "product_width100": 17_424_795.0,
}
ARITY = {"u64": 1, "product": 2}
SMALL_BATCHES = (1, 2, 8)


def moves_forward(held: int, updates: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the times held at first, and updates in pairs: a random one of them moves forward, -1 old, +1 new."""
    start = np.arange(held, dtype=np.int64)
    which = rng.integers(0, held, updates // 2)
    steps = rng.integers(1, 2 * held + 1, updates // 2)
    now, times = start.tolist(), np.empty((updates, 1), dtype=np.int64)
    for i, (at, step) in enumerate(zip(which.tolist(), steps.tolist(), strict=True)):
        times[2 * i, 0] = now[at]
        now[at] += step
        times[2 * i + 1, 0] = now[at]
    return start.reshape(-1, 1), times


def moves_in_boxes(width: int, updates: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the same for pairs: element i stays in a box of 1000 by 1000 that no other's is comparable with."""

    def drawn(which: Ints) -> Ints:
        low = np.stack([1000 * which, 1000 * (width - which)], axis=1)
        return low + rng.integers(0, 1000, low.shape)

    start = drawn(np.arange(width, dtype=np.int64))
    which = rng.integers(0, width, updates // 2)
    new = drawn(which)
    now, times = start.tolist(), np.empty((updates, 2), dtype=np.int64)
    for i, (at, time_) in enumerate(zip(which.tolist(), new.tolist(), strict=True)):
        times[2 * i] = now[at]
        times[2 * i + 1] = now[at] = time_
    return start, times


def workload(name: str) -> tuple[Ints, Batches]:
    """Return what is held at first, and the batches of one case of `RUST`."""
    rng = np.random.default_rng(sum(map(ord, name)))
    kind, _, rest = name.partition("_")
    size = int("".join(filter(str.isdigit, rest)))
    start, times = (moves_forward if kind == "u64" else moves_in_boxes)(size, UPDATES, rng)
    diffs = np.tile(np.array([-1, 1], dtype=np.int64), UPDATES // 2)
    return start, [(times[i : i + BATCH], diffs[i : i + BATCH]) for i in range(0, UPDATES, BATCH)]


def apply(start: Ints, batches: Batches) -> tuple[float, int]:
    """Return the seconds that all batches took, and how many changes of the frontier came of them."""
    state = MutableAntichain(start.shape[1])
    state.update_iter(start, np.ones(start.shape[0], dtype=np.int64))
    changes = 0
    began = time.perf_counter()
    for times, diffs in batches:
        moved, _ = state.update_iter(times, diffs)
        changes += moved.shape[0]
    return time.perf_counter() - began, changes


def naive_minima(counts: dict[Time, int]) -> set[Time]:
    """Return the minima of the times with a positive count, each held against all others."""
    held = [t for t, count in counts.items() if count > 0]
    if held and len(held[0]) == 1:
        return {min(held)}
    return {t for t in held if not any(s != t and s[0] <= t[0] and s[1] <= t[1] for s in held)}


def check(name: str, start: Ints, batches: Batches, first: int = 60) -> None:
    """Compare frontier, changes and counts of the first batches with a naive computation; raise where they differ."""
    state, counts = MutableAntichain(start.shape[1]), dict.fromkeys(map(tuple, start.tolist()), 1)
    state.update_iter(start, np.ones(start.shape[0], dtype=np.int64))
    before = naive_minima(counts)
    for number, (times, diffs) in enumerate(batches[:first]):
        moved, signs = state.update_iter(times, diffs)
        for row, diff in zip(map(tuple, times.tolist()), diffs.tolist(), strict=True):
            counts[row] = counts.get(row, 0) + diff
        counts = {row: count for row, count in counts.items() if count}
        after = naive_minima(counts)
        expected = sorted([(t, -1) for t in before - after] + [(t, 1) for t in after - before])
        found = list(zip(map(tuple, moved.tolist()), signs.tolist(), strict=True))
        if set(state.frontier.elements) != after or found != expected:
            message = f"{name}, batch {number}: expected frontier {sorted(after)[:5]}, found {state.frontier}"
            raise AssertionError(message)
        before = after
    held, totals = state.counts()
    if dict(zip(map(tuple, held.tolist()), totals.tolist(), strict=True)) != counts:
        message = f"{name}: counts differ from the naive ones"
        raise AssertionError(message)


def measure(name: str, case: Case) -> list[float]:
    """Measure one workload some times; return the seconds taken for each that the crate takes."""
    start, batches = workload(name)
    check(name, start, batches)
    apply(start, batches)  # warm: what is compiled is compiled now
    took, changes = zip(*(apply(start, batches) for _ in range(REPEATS)), strict=True)
    rust = UPDATES / RUST[name]
    case.settings[name] = {
        "updates_per_s": round(UPDATES / statistics.median(took)),
        "rust_updates_per_s": round(RUST[name]),
        "ratio": round(statistics.median(took) / rust, 3),
        "changes_of_the_frontier": changes[0],
    }
    return [ours / rust for ours in took]


class PlainAntichain:
    """What one would write in a minute: a dictionary of counts, and the least time that has one."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.least: int | None = None

    def update(self, changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Apply changes; return how the frontier moved."""
        for time_, diff in changes:
            count = self.counts.get(time_, 0) + diff
            if count:
                self.counts[time_] = count
            else:
                self.counts.pop(time_, None)
        before = self.least
        self.least = min((t for t, count in self.counts.items() if count > 0), default=None)
        if before == self.least:
            return []
        return sorted([(t, sign) for t, sign in ((before, -1), (self.least, 1)) if t is not None])


def small(held: int, size: int, updates: int = 20_000) -> tuple[float, float]:
    """Return the microseconds per batch of `size` updates: ours, and plain Python's; both must give the same."""
    rng = np.random.default_rng(held * size)
    start, times = moves_forward(held, updates, rng)
    flat = list(zip(times[:, 0].tolist(), [-1, 1] * (updates // 2), strict=True))
    plain_batches = [flat[i : i + size] for i in range(0, updates, size)]
    our_batches = [[((t,), diff) for t, diff in batch] for batch in plain_batches]
    ours_took, plain_took = [], []
    for number in range(6):
        ours, plain = MutableAntichain.from_times(start), PlainAntichain()
        plain.update([(t, 1) for t in start[:, 0].tolist()])
        if number == 0:  # warm, and compare
            ours_said = [ours.update_pairs(batch) for batch in our_batches]
            plain_said = [plain.update(batch) for batch in plain_batches]
            if [[(t, sign) for (t,), sign in said] for said in ours_said] != plain_said:
                message = f"batches of {size} with {held} held: changes differ from plain Python's"
                raise AssertionError(message)
            continue
        began = time.perf_counter()
        for batch in our_batches:
            ours.update_pairs(batch)
        middle = time.perf_counter()
        for batch_ in plain_batches:
            plain.update(batch_)
        plain_took.append(time.perf_counter() - middle)
        ours_took.append(middle - began)
    n = len(plain_batches) / 1e6
    # The least: these are microseconds, and other programs that run only add to them.
    return min(ours_took) / n, min(plain_took) / n


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure large batches against the crate and small ones against plain Python."""
    del scratch
    cases = []
    if wanted(NAME):
        case = Case(
            NAME,
            f"MutableAntichain, {UPDATES} updates in batches of {BATCH}: seconds per second of the Rust crate, "
            "the worst of the workloads",
            3.0,
            unit="x",
            higher_is_better=False,
        )
        all_ratios = [measure(name, case) for name in RUST]
        case.ours, case.peer = max(all_ratios, key=statistics.median), [1.0] * REPEATS
        case.settings["numba"] = COMPILED
        cases.append(case)
    if wanted(SMALL):
        case = Case(
            SMALL,
            "MutableAntichain, batches of 1 to 8 updates as Python values; peer: a dictionary and min",
            1.0,
            unit="us",
            higher_is_better=False,
        )
        pairs = {(held, size): small(held, size) for held in (1, 10, 1000) for size in SMALL_BATCHES}
        case.settings = {
            f"held{held}_batch{size}_us": [round(mine, 3), round(theirs, 3)]
            for (held, size), (mine, theirs) in pairs.items()
        }
        worst = max(pairs.values(), key=lambda pair: pair[0] / pair[1])
        case.ours, case.peer = [worst[0]], [worst[1]]
        cases.append(case)
    return cases
