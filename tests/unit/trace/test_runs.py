"""Runs against a counter: whatever is written, merged and moved, a look finds what all updates together say."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.errors import MultiplicityOverflowError
from spark_timely.trace import run as run_module
from spark_timely.trace import updates as updates_module
from spark_timely.trace.keys import distinct_hashes, key_hashes
from spark_timely.trace.run import Run, in_pieces, mapped_run, merge_pieces, write_run
from spark_timely.trace.spine import RunFile, Spine, due_merge
from spark_timely.trace.updates import Updates

Row = tuple[int, Any, Any]
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def updates_of(rows: list[tuple[Row, int]], collisions: int | None) -> Updates:
    table = pa.table(
        {"k": [row[1] for row, _ in rows], "v": [row[2] for row, _ in rows]}, schema=SCHEMA
    )  # fmt: skip
    hashes = key_hashes(table, ["k"])
    if collisions is not None:
        hashes = hashes % np.uint64(collisions)
    times = np.array([row[0] for row, _ in rows], np.int64)
    return Updates(table, times[:, None], np.array([diff for _, diff in rows], np.int64), hashes)


def summed(updates: Updates, since: int | None = None) -> Updates:
    return (updates if since is None else updates.advanced((since,))).consolidated(partial=True)


def counted(updates: Updates) -> Counter[Row]:
    found: Counter[Row] = Counter()
    rows = zip(updates.times[:, 0].tolist(), updates.rows["k"].to_pylist(), updates.rows["v"].to_pylist(), strict=True)
    for row, diff in zip(rows, updates.diffs.tolist(), strict=True):
        assert row not in found, "not summed"
        assert diff
        found[row] = diff
    return found


def written(folder: Path, name: str, updates: Updates, since: int | None = None) -> Run:
    _, *state = write_run(str(folder / name), in_pieces(summed(updates, since), piece_rows=7))
    return Run(str(folder / name), *state)


@pytest.mark.parametrize("collisions", [None, 1, 3])
@pytest.mark.parametrize("seed", range(15))
def test_runs_hold_what_was_written(seed: int, collisions: int | None, tmp_path: Path) -> None:
    rng = random.Random(seed)
    every: Counter[Row] = Counter()
    runs: list[Run] = []
    for number in range(rng.randrange(1, 6)):
        rows = [
            ((rng.randrange(9), rng.choice(["a", "é", "", None, "b" * 40]), rng.choice([None, 0, 7])),
             rng.choice([-1, 1, 2]))
            for _ in range(rng.randrange(1, 40))
        ]  # fmt: skip
        for row, diff in rows:
            every[row] += diff
        made = summed(updates_of(rows, collisions))
        if made.hashes.shape[0]:
            runs.append(written(tmp_path, f"run-{number}", updates_of(rows, collisions)))
    if not runs:
        return
    since = rng.choice([None, 4, 20])
    if rng.random() < 0.7:
        merged, *state = write_run(str(tmp_path / "merged"), merge_pieces(runs, since, piece_rows=5))
        runs = [Run(str(tmp_path / "merged"), *state)] if merged else []
        moved: Counter[Row] = Counter()
        for (time, k, v), diff in every.items():
            moved[max(time, since or 0), k, v] += diff
        every = moved
    keys = pa.table({"k": ["a", None, "never"]}, schema=pa.schema([SCHEMA.field("k")]))
    hashes = key_hashes(keys, ["k"])
    wanted = distinct_hashes(hashes if collisions is None else hashes % np.uint64(collisions))
    found = [each for run in runs for each in run.look_up(wanted)]
    looked = counted(summed(Updates.concat(found))) if found else Counter()
    mine = {row: diff for row, diff in looked.items() if row[1] in ("a", None)}
    assert mine == {row: diff for row, diff in every.items() if diff and row[1] in ("a", None)}
    whole = [each for run in runs for each in run.between(0, (1 << 64) - 1)]
    for run in runs:  # each is summed by itself (invariant 1)
        counted(Updates.concat([*run.between(0, (1 << 64) - 1)]))
    assert (counted(summed(Updates.concat(whole))) if whole else {}) == {row: d for row, d in every.items() if d}


def equal_hash_is_equal_row(patch: pytest.MonkeyPatch) -> None:
    """Updates of one hash and time are summed, whatever their rows are."""
    patch.setattr(updates_module, "hash_lanes", lambda rows: np.zeros((rows.num_rows, 2), np.int64))


def merge_drops_late_times(patch: pytest.MonkeyPatch) -> None:
    """What is moved is kept, and what is past it is left out."""
    true = Updates.advanced
    patch.setattr(Updates, "advanced", lambda each, at: true(each.where(each.times[:, 0] <= at[0]), at))


def merge_moves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Updates, "advanced", lambda each, _: each)


def merge_sums_nothing(patch: pytest.MonkeyPatch) -> None:
    """Updates are put in the order of their hashes, and no more: equal ones stay, and those that cancel."""
    patch.setattr(Updates, "consolidated", lambda each, **_: each.take(np.argsort(each.hashes, kind="stable")))


@pytest.mark.parametrize(
    "mutant", [equal_hash_is_equal_row, merge_drops_late_times, merge_moves_nothing, merge_sums_nothing]
)
def test_wrong_merges_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_many() -> None:
        for seed in range(15):
            for collisions in (None, 1):
                (folder := tmp_path / f"{seed} {collisions}").mkdir()
                test_runs_hold_what_was_written(seed, collisions, folder)

    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_many()


def test_no_hash_is_in_two_pieces() -> None:
    updates = summed(updates_of([((time, "abc"[time % 3], time), 1) for time in range(40)], None))
    pieces = [piece.hashes for piece in in_pieces(updates, piece_rows=4)]
    assert sum(map(len, pieces)) == 40
    assert all(a[-1] < b[0] for a, b in itertools.pairwise(pieces))


def test_a_row_that_cancels_leaves_no_file(tmp_path: Path) -> None:
    rows: list[tuple[Row, int]] = [((1, "a", 1), 1), ((1, "a", 1), -1)]
    assert write_run(str(tmp_path / "run"), [summed(updates_of(rows, None))]) == (0, 0, 0)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def pieces() -> Any:
        yield summed(updates_of([((1, "a", 1), 1)], None))
        raise KeyError

    with pytest.raises(KeyError):
        write_run(str(tmp_path / "run"), pieces())
    assert not list(tmp_path.iterdir())


def test_files_that_changed_are_noticed(tmp_path: Path) -> None:
    rows, size, checksum = write_run(str(tmp_path / "run"), [summed(updates_of([((1, "a", 1), 1)], None))])
    file = RunFile("run", rows, size, checksum)
    assert mapped_run(str(tmp_path), file) is mapped_run(str(tmp_path), file)
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(OSError, match="0 bytes"):
        mapped_run(str(tmp_path), file)


def test_a_flipped_bit_is_noticed_and_the_file_deleted(tmp_path: Path) -> None:
    rng = random.Random(5)
    updates = summed(updates_of([((n, "a", 1), 1) for n in range(50)], None))
    for number in range(60):
        file = RunFile(f"run-{number}", *write_run(str(tmp_path / f"run-{number}"), [updates]))
        content = bytearray((tmp_path / file.name).read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (tmp_path / file.name).write_bytes(content)
        with pytest.raises(OSError, match="checksum"):
            mapped_run(str(tmp_path), file)
        assert not (tmp_path / file.name).exists()


def test_a_changed_spine_is_none() -> None:
    spine = Spine(3, "id", "k", {"main": (4, "x")}, 0, 7, (RunFile("a", 1, 40, 7, None, 7),), (("b", 1.5),), "line")
    text = spine.to_json()
    for place in range(len(text)):
        for other in '07"x':
            changed = text[:place] + other + text[place + 1 :]
            try:
                assert Spine.from_json(changed) == spine
            except ValueError:
                continue


def test_wide_rows_are_cut_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_PIECE_BYTES", 1000)
    updates = summed(updates_of([((1, f"{n}" * 50, 1), 1) for n in range(50)], None))
    pieces = list(in_pieces(updates))
    assert len(pieces) > 4
    assert sum(piece.hashes.shape[0] for piece in pieces) == updates.hashes.shape[0]


def test_counts_beyond_64_bits_stay_as_they_are_until_more_comes(tmp_path: Path) -> None:
    most = (1 << 63) - 1
    rows: list[tuple[Row, int]] = [((1, "a", 1), most), ((1, "a", 1), 1), ((1, "b", 1), 1)]
    run = written(tmp_path, "run", updates_of(rows, None))
    (whole,) = run.between(0, (1 << 64) - 1)
    assert sorted(whole.diffs.tolist()) == [1, 1, most]
    with pytest.raises(MultiplicityOverflowError, match=f"row={{'k': 'a', 'v': 1}} with count={1 << 63}, time=1"):
        whole.consolidated()
    less = updates_of([((1, "a", 1), -5)], None)
    assert sorted(Updates.concat([whole, less]).consolidated().diffs.tolist()) == [1, most - 4]


def test_runs_halve_in_size_after_all_merges() -> None:
    rng = random.Random(3)
    spine = Spine(0, "id", "k", {}, 0, 0)
    merged = 0
    for number in range(1, 400):
        spine = spine.extended([RunFile(f"r{number}", rng.randrange(50, 150), 1)], number, {})
        while merge := due_merge(spine.runs):
            rows = sum(run.rows for run in merge)
            merged += rows
            following = spine.merged(merge, RunFile(f"m{merged}", rows, 1), 0, 0.0)
            assert following is not None
            spine = following
        sizes = [run.rows for run in spine.runs]
        assert all(a >= 2 * b for a, b in itertools.pairwise(sizes))
    # Each row was merged a few times only: less than the logarithm of how many runs there were, twice.
    assert merged < 18 * spine.rows
