"""The command log: each commit happens or does not, and one start of the instance writes."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.compute.command_log import CommandLog, Judgement
from spark_timely.errors import (
    LogFormatError,
    LogMissingError,
    OwnershipError,
    RolledBackError,
    StorageError,
    TimelyError,
)
from spark_timely.log import MemoryLog
from spark_timely.log.log import create_log
from spark_timely.log.store.base import MemoryStore
from tests.faults.harness import long_lane
from tests.faults.unreliable import make_unreliable

SCHEMA = pa.schema([("number", pa.int64()), ("command", pa.string())])
ROWS = [(0, "one"), (1, "zwei — 二"), (2, "")]


def memory() -> MemoryLog:
    return MemoryLog.create(SCHEMA, kind="collection", minimum=(0,))


def made(path: Path | str) -> CommandLog:
    return CommandLog.at(str(path))


def test_log_holds_what_was_stored_last_and_a_change_is_one(tmp_path: Path) -> None:
    commands = made(tmp_path / "commands")
    assert commands.rows() == []
    commands.take_over()
    for wanted in (ROWS, ROWS[1:], [], [(0, "two")], [(0, "one"), *ROWS[1:]]):
        version = commands.log.core.version
        commands.store(wanted)
        assert commands.log.core.version == version + 1
        assert made(tmp_path / "commands").rows() == sorted(wanted)
    version = commands.log.core.version
    commands.store(reversed(commands.rows()))
    assert commands.log.core.version == version, "nothing differs"


def test_log_may_not_be_written_before_it_is_taken_over() -> None:
    with pytest.raises(OwnershipError, match="it was not taken over"):
        CommandLog(memory()).store(ROWS)


def test_start_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    old, new = made(tmp_path / "commands"), made(tmp_path / "commands")
    first = old.take_over()
    old.store(ROWS)
    assert old.is_mine()
    second = new.take_over()
    assert (second.instance, second.epoch) == (first.instance, first.epoch + 1)
    assert first.owner != second.owner
    version = new.log.core.version
    assert not old.is_mine()
    for wanted in ([], [*ROWS, (3, "more")]):
        with pytest.raises(OwnershipError, match="found it written by start 2"):
            old.store(wanted)
    with pytest.raises(OwnershipError):
        old.log.writer(owner="compute instance").advance(1000)
    new.log.refresh()
    assert (new.log.core.version, new.rows()) == (version, ROWS)
    new.store(ROWS[:1])
    assert old.rows() == ROWS[:1]


def test_epoch_is_greater_than_any_that_an_output_names(tmp_path: Path) -> None:
    commands = made(tmp_path / "commands")
    assert commands.take_over(judge=lambda *_: Judgement(41)).epoch == 42
    assert commands.take_over(judge=lambda *_: Judgement(7)).epoch == 43


def test_what_a_judgement_changes_comes_with_the_start(tmp_path: Path) -> None:
    commands = made(tmp_path / "commands")
    commands.take_over()
    commands.store(ROWS)
    seen: list[object] = []

    def judge(holder: object, rows: Sequence[tuple[int, str]]) -> Judgement:
        seen.append((holder, list(rows)))
        if len(seen) == 1:
            commands.store(ROWS[:1])  # by the start that holds it, behind the look
        return Judgement(rows=[*rows[:1], (-1, "mark")])

    first = commands.fence
    other = made(tmp_path / "commands")
    other.take_over(judge=judge)
    assert seen == [(first, ROWS), (first, ROWS[:1])]
    assert made(tmp_path / "commands").rows() == [(-1, "mark"), *ROWS[:1]]
    assert not commands.is_mine()


def test_log_that_is_judged_unfit_is_not_taken_over(tmp_path: Path) -> None:
    commands = made(tmp_path / "commands")
    commands.take_over()

    def judge(*_: object) -> Judgement:
        msg = "could not run"
        raise RolledBackError(msg, hint="put it back")

    with pytest.raises(RolledBackError):
        made(tmp_path / "commands").take_over(judge=judge)
    assert commands.is_mine()


def test_copy_is_not_taken_over_and_a_move_is_if_it_is_said(tmp_path: Path) -> None:
    here, there = tmp_path / "commands", tmp_path / "copy"
    commands = made(here)
    commands.take_over()
    commands.store(ROWS)
    shutil.copytree(here, there)
    version = made(there).log.core.version
    with pytest.raises(OwnershipError, match="found that it was ") as caught:
        made(there).take_over()
    assert str(here) in caught.value.message
    assert made(there).log.core.version == version
    link = tmp_path / "link"
    link.symlink_to(here)
    assert made(link).take_over().epoch == 2
    moved = made(there)
    assert moved.take_over(moved=True).epoch == 2
    assert (made(there).take_over().epoch, moved.rows()) == (3, ROWS)


def test_log_that_was_put_back_gives_no_start_its_predecessors(tmp_path: Path) -> None:
    here = tmp_path / "commands"
    made(here).take_over()
    shutil.copytree(here, tmp_path / "backup")
    lost = made(here).take_over()
    shutil.rmtree(here)
    shutil.move(tmp_path / "backup", here)
    again = made(here).take_over()
    assert again.epoch == lost.epoch
    assert not again.may_follow(lost)
    assert not lost.may_follow(again)


def test_other_logs_are_no_command_logs(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError):
        CommandLog.at(str(tmp_path / "none"), create=False)
    assert not (tmp_path / "none").exists()
    create_log(tmp_path / "stream", SCHEMA, minimum=(0,))
    create_log(tmp_path / "other", pa.schema([("v", pa.int64())]), kind="collection", minimum=(0,))
    for name in ("stream", "other"):
        with pytest.raises(LogFormatError, match="found a "):
            CommandLog.at(str(tmp_path / name), create=False)
        with pytest.raises(TimelyError):
            CommandLog.at(str(tmp_path / name))


def test_number_that_is_there_twice_is_refused() -> None:
    log = memory()
    rows = {"_time": [0, 0], "_diff": [1, 1], "number": [0, 0], "command": ["a", "b"]}
    log.writer(owner="by hand").append(pa.table(rows), advance_to=1)
    with pytest.raises(LogFormatError, match="numbers that are there more than once"):
        CommandLog(log).rows()


@pytest.mark.parametrize("seed", range(400 if long_lane() else 40))
def test_store_that_fails_in_all_ways_leaves_the_commands(seed: int) -> None:
    plain = memory()
    rng = random.Random(seed)
    commands = CommandLog(plain)
    commands.take_over()
    store = make_unreliable(
        plain, seed=seed, happens=0.5, reports_failure=0.5, lands_late=0.5, waits=0.3,
        another=lambda: MemoryStore(plain.core.store.inner.table),  # type: ignore[attr-defined]
    )  # fmt: skip
    before: list[tuple[int, str]] = []
    for _ in range(12):
        wanted = [(number, rng.choice("abc")) for number in range(rng.randrange(6))]
        possible = [before, wanted]
        for _ in range(20):
            try:
                commands.store(wanted)
            except StorageError:
                with contextlib.suppress(StorageError):
                    assert commands.rows() in possible
                continue
            possible = [wanted]
            break
        before = wanted
        assert len(possible) == 1, "twenty failures in a row"
    plain.core.store = store.inner
    assert commands.rows() == before
    assert len(store.calls) > 1
