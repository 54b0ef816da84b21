"""What subscriptions retain: one commit for all names, ten seconds apart; fences, expiry, logs not to be written."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.answers.retainers import OWNER, Positions
from spark_timely.errors import LogFormatError, OwnershipError, SinceViolationError, StorageError
from spark_timely.log import MemoryLog
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log, open_log
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import KINDS, VALUES, LogMaker

SCHEMA = pa.schema([("v", pa.int64())])
at = Antichain.of


class World:
    """A log with times up to 20, and processes that retain positions of it by one clock."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.log = MemoryLog.create(SCHEMA, minimum=0, kind="collection", clock=lambda: self.now)
        self.log.writer(owner="me").append(
            pa.table({"_time": [0, 5, 12], "_diff": [1, 1, 1], "v": [1, 2, 3]}), advance_to=20
        )

    def process(self) -> Positions:
        return Positions(self.log.another, wall=lambda: self.now, now=lambda: self.now)

    def retained(self) -> dict[str, list[int]]:
        self.log.refresh()
        return {name: each.needed.to_json() for name, each in self.log.retainers().items()}  # type: ignore[misc]

    def version(self) -> int:
        self.log.refresh()
        return self.log.core.version


@pytest.fixture
def world() -> World:
    return World()


def test_name_is_retained_at_once_and_compaction_waits_for_it(world: World) -> None:
    world.process().begin("x", at(4), "7 days")
    assert world.retained() == {"x": [4]}
    assert world.log.allow_compaction([15]) == at(4)
    assert world.log.retainers()["x"].owner == OWNER


def test_positions_of_all_names_are_one_commit_in_ten_seconds(world: World) -> None:
    positions = world.process()
    holders = [positions.begin(name, at(0), "7 days") for name in "abc"]
    version = world.version()
    for moved in range(1, 9):
        world.now += 1
        for holder in holders:
            positions.move(holder, at(moved))
        positions.write_due()
    assert (world.version(), world.retained()) == (version, {"a": [0], "b": [0], "c": [0]})
    assert 0 < positions.due_s() <= 2
    world.now += 2
    assert positions.due_s() == 0
    positions.write_due()
    assert (world.version(), world.retained()) == (version + 1, {"a": [8], "b": [8], "c": [8]})


def test_end_writes_what_moved_and_leaves_the_name(world: World) -> None:
    positions = world.process()
    one, other = positions.begin("a", at(0), "7 days"), positions.begin("b", at(0), "7 days")
    positions.move(one, at(3))
    positions.move(other, at(4))
    version = world.version()
    positions.end(one)
    assert (world.version(), world.retained()) == (version + 1, {"a": [3], "b": [4]})
    positions.end(other)
    positions.end(other)
    assert world.version() == version + 1


def test_empty_frontier_releases_the_name(world: World) -> None:
    positions = world.process()
    holder = positions.begin("a", at(0), "7 days")
    positions.move(holder, Antichain.empty(1))
    positions.end(holder)
    assert world.retained() == {}


def test_name_that_only_waits_is_renewed_before_it_expires(world: World) -> None:
    positions = world.process()
    holder = positions.begin("a", at(0), "9 minutes")
    for _ in range(20):
        world.now += 60
        positions.write_due()
        world.log.refresh()
        assert world.log.retainers()["a"].is_alive(int(world.now * 1e6))
    assert holder.refused is None


def test_newer_of_two_holders_has_the_name_the_older_is_refused(world: World) -> None:
    older, newer = world.process(), world.process()
    first = older.begin("x", at(2), "7 days")
    second = newer.begin("x", at(3), "7 days")
    older.check(first)
    world.log.refresh()
    older.seen(world.log.retainers())
    newer.seen(world.log.retainers())
    with pytest.raises(OwnershipError, match=r"subscription 'x'.*taken over"):
        older.check(first)
    with pytest.raises(OwnershipError):
        older.move(first, at(9))
    newer.check(second)
    older.end(first)
    assert world.retained() == {"x": [3]}


def test_older_holder_that_has_not_looked_moves_nothing(world: World) -> None:
    older, newer = world.process(), world.process()
    first = older.begin("x", at(2), "7 days")
    newer.begin("x", at(3), "7 days")
    older.move(first, at(9))
    world.now += 60
    older.write_due()
    assert world.retained() == {"x": [3]}
    with pytest.raises(OwnershipError, match="taken over"):
        older.check(first)


def test_older_holder_of_the_same_process_is_refused_at_once(world: World) -> None:
    positions = world.process()
    first = positions.begin("x", at(2), "7 days")
    second = positions.begin("x", at(3), "7 days")
    with pytest.raises(OwnershipError):
        positions.check(first)
    positions.end(first)
    positions.move(second, at(4))
    positions.end(second)
    assert world.retained() == {"x": [4]}


def test_refused_name_holds_no_other_back(world: World) -> None:
    positions = world.process()
    lost, kept = positions.begin("a", at(0), "7 days"), positions.begin("b", at(0), "7 days")
    world.process().begin("a", at(1), "7 days")
    positions.move(lost, at(7))
    positions.move(kept, at(8))
    world.now += 60
    positions.write_due()
    assert world.retained() == {"a": [1], "b": [8]}


def test_name_of_a_query_is_not_taken(world: World) -> None:
    world.log.retain("x", [3], owner="query 7")
    with pytest.raises(OwnershipError, match="query 7"):
        world.process().begin("x", at(4), "7 days")
    assert world.retained() == {"x": [2]}


def test_expired_name_that_was_passed_is_named(world: World) -> None:
    world.process().begin("x", at(2), "1 hour")
    world.now += 7200
    assert world.log.allow_compaction([9], by="nightly") == at(9)
    with pytest.raises(SinceViolationError, match=r"moved past consumer 'x' by nightly.*expired"):
        world.process().begin("x", at(2), "1 hour")
    assert world.log.retainers()["x"].overrun


def test_unnamed_share_one_retainer_that_follows_and_goes(world: World) -> None:
    positions = world.process()
    positions.cover(at(5))
    positions.cover(at(3))
    ((name, needed),) = world.retained().items()
    assert name.startswith("subscribe-")
    assert needed == [3]
    version = world.version()
    positions.cover(at(9))
    assert (world.version(), world.retained()) == (version, {name: [3]})
    world.now += 10
    positions.write_due()
    assert world.retained() == {name: [9]}
    positions.cover(None)
    assert world.retained() == {}


def test_unnamed_of_a_killed_process_expire(world: World) -> None:
    world.process().cover(at(3))
    assert world.log.allow_compaction([9]) == at(3)
    world.now += 601
    assert world.log.allow_compaction([9]) == at(9)


@pytest.mark.parametrize("kind", [StorageError, LogFormatError])
def test_log_not_to_be_written_refuses_names_and_warns_of_others(
    world: World, kind: type[Exception], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise kind("could not write: found no right to")

    monkeypatch.setattr(LogCore, "retain_several", refused)
    with pytest.raises(kind, match="no right"):
        world.process().begin("x", at(3), "7 days")
    positions = world.process()
    with caplog.at_level(logging.WARNING):
        positions.cover(at(3))
        positions.cover(at(2))
    assert len(caplog.records) == 1
    assert "no right" in caplog.text
    assert world.retained() == {}


def test_commit_that_fails_for_a_while_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = world.process()
    holder = positions.begin("x", at(3), "7 days")
    own, failing = LogCore.retain_several, [True]

    def perhaps(log: LogCore, wanted: object) -> object:
        if failing[0]:
            raise StorageError("could not write: found a full disk")
        return own(log, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(LogCore, "retain_several", perhaps)
    positions.move(holder, at(6))
    world.now += 11
    with caplog.at_level(logging.WARNING):
        positions.write_due()
    assert "full disk" in caplog.text
    assert 0 < positions.due_s() <= 10
    failing[0] = False
    world.now += 11
    positions.write_due()
    assert world.retained() == {"x": [6]}
    assert holder.refused is None


def test_clock_of_the_log_says_when_it_expires() -> None:
    clock = ManualClock()
    log = MemoryLog.create(SCHEMA, minimum=0, clock=clock)
    Positions(log.another, wall=clock).begin("x", at(0), "1 hour")
    log.refresh()
    assert log.retainers()["x"].expires == int(clock() * 1_000_000) + 3_600_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_retained_in_logs_of_every_kind(kind: str, tmp_path: Path) -> None:
    maker = LogMaker(kind, tmp_path, seed=7)
    log = maker.create(VALUES, kind="collection")
    log.writer(owner="me").append(pa.table({"_time": [5], "_diff": [1], "v": [1]}), advance_to=20)
    positions, other = (Positions(lambda: maker.another(log)) for _ in range(2))
    lost, kept = positions.begin("a", at(0), "7 days"), positions.begin("b", at(0), "7 days")
    other.begin("a", at(1), "7 days")
    for holder, needed in ((lost, 7), (kept, 8)):
        positions.move(holder, at(needed))
    positions.end(kept)
    assert kept.refused is None
    assert lost.refused is not None
    log.refresh()
    assert {name: each.needed for name, each in log.retainers().items()} == {"a": at(1), "b": at(8)}


def test_processes_that_write_at_once_lose_no_position(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=0, kind="collection")
    log.writer(owner="me").advance(100)
    n_processes, n_moves = 4, 6

    def work(number: int) -> None:
        positions = Positions(lambda: open_log(log.path))
        for move in range(n_moves):
            holder = positions.begin(f"{number}-{move}", at(move), "7 days")
            positions.move(holder, at(10 + move))
            positions.end(holder)

    with ThreadPoolExecutor(n_processes) as pool:
        list(pool.map(work, range(n_processes)))
    log.refresh()
    found = {name: each.needed for name, each in log.retainers().items()}
    assert found == {f"{n}-{m}": at(10 + m) for n in range(n_processes) for m in range(n_moves)}
