"""How far an export may be compacted: never past what it can answer, whatever is asked, and whoever wrote it down."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from spark_timely.compute.command import AllowCompaction
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.history import rows_of
from spark_timely.log.log import open_log
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane
from tests.golden.lasting import place_of, unpack
from tests.golden.lasting_plain import opened, proceed_ahead
from tests.unit.compute.instances import TOTALS, append, handle, orders, rows

FAR = 10**6
AT_6 = [(1, 1, 30, 1), (2, 1, 20, 1)]


def made(instance: Handle, path: str) -> None:
    instance.index("totals", TOTALS, imports={"orders": path}, key="k")
    instance.index("counted", "SELECT n, count(*) AS c FROM totals GROUP BY n", key="n")
    instance.maintain("keys", "SELECT DISTINCT k FROM orders", Path(path).parent / "keys", imports={"orders": path})
    for id_ in ("totals", "counted", "keys"):
        instance.await_frontier(id_, 6)


def at(folder: Path) -> str:
    log = orders(folder / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), (3, -1, 1, 10), upper=7)
    return log.path


def test_what_is_far_ahead_is_taken_as_what_can_be_answered(tmp_path: Path) -> None:
    path = at(tmp_path)
    with handle(tmp_path / "instance") as instance:
        made(instance, path)
        assert instance.allow_compaction("totals", [FAR]) == Antichain.of(6)
        assert rows(instance.peek("totals")) == AT_6
        assert instance.allow_compaction("totals", [3]) == Antichain.of(6), "what was allowed stays allowed"
        assert instance.allow_compaction("keys", FAR) == Antichain.of(6)
        append(open_log(path), (7, 1, 3, 5), upper=9)
        assert rows(instance.peek("totals", as_of=8)) == [*AT_6, (3, 1, 5, 1)]
        with instance.subscribe("totals") as batches:
            batch = batches.next_batch(timeout_s=60)
            assert batch is not None
            assert batch.updates.num_rows == 3
    with handle(tmp_path / "instance") as instance:
        assert rows(instance.peek("totals")) == [*AT_6, (3, 1, 5, 1)]


def test_what_another_process_asks_for_is_taken_so_too(tmp_path: Path) -> None:
    path = at(tmp_path)
    with handle(tmp_path / "instance") as instance:
        made(instance, path)
        Requests(instance.directory).ask("allow_compaction", {"id": "totals", "frontier": [FAR]}, timeout_s=60)
        assert rows(instance.peek("totals")) == AT_6
        assert instance.allow_compaction("totals", [0]) == Antichain.of(6)


def test_an_export_before_its_as_of_may_not_forget_that(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = at(tmp_path)
    with handle(tmp_path / "instance") as instance:
        instance.index("later", TOTALS, imports={"orders": path}, as_of=9)
        assert instance.allow_compaction("later", [FAR]) == Antichain.of(9)
    with handle(tmp_path / "instance") as instance:
        assert not [record for record in caplog.records if "compacted" in record.getMessage()]
        append(open_log(path), (8, 1, 1, 5), upper=12)
        assert rows(instance.peek("later", as_of=9)) == [(1, 2, 35, 1), (2, 1, 20, 1)]


def test_an_export_that_is_complete_may_forget_all_it_is_asked(tmp_path: Path) -> None:
    path = at(tmp_path)
    open_log(path).writer(owner="test").close()
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": path}, key="k")
        instance.await_frontier("totals", FAR)
        assert instance.allow_compaction("totals", [FAR]) == Antichain.of(FAR)
        assert rows(instance.peek("totals")) == AT_6


def test_relation_of_the_introspection_stays_readable(tmp_path: Path) -> None:
    with handle(tmp_path / "instance") as instance:
        made(instance, at(tmp_path))
        before = instance.peek("timely_exports").num_rows
        instance.allow_compaction("timely_exports", ["2200-01-01"])
        assert instance.peek("timely_exports").num_rows == before


@pytest.mark.parametrize("follows", [False, True])
def test_an_older_command_log_is_read_as_what_can_be_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, follows: bool
) -> None:
    path = at(tmp_path)
    with handle(tmp_path / "instance") as instance:
        made(instance, path)
    commands = CommandLog.at(str(tmp_path / "instance" / "commands"))
    commands.take_over()
    there = commands.rows()
    number = max(number for number, _ in there) + 1
    commands.store([*there, (number, rows_of([AllowCompaction("totals", Antichain.of(FAR))])[0][1])])
    with caplog.at_level(logging.WARNING), handle(tmp_path / "instance", read_only=follows) as instance:
        assert rows(instance.peek("totals", as_of=6)) == AT_6
    (warned,) = [record.getMessage() for record in caplog.records if "compacted" in record.getMessage()]
    assert "'totals'" in warned
    assert "[1000000]" in warned
    assert "[6]" in warned
    caplog.clear()
    if not follows:
        with caplog.at_level(logging.WARNING), handle(tmp_path / "instance"):
            pass
        assert not [record for record in caplog.records if "compacted" in record.getMessage()], "it was written down"


@pytest.mark.parametrize("name", ["instance ahead", "instance ahead of reader"])
def test_golden_instance_answers_although_it_allowed_too_much(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with place_of(name) as folder:
        unpack(name, folder)
        with caplog.at_level(logging.WARNING):
            proceed_ahead(folder)
        assert "may be compacted" in caplog.text
        with opened(folder) as instance:
            found = {(row["k"], row["n"], row["s"]) for row in instance.peek("totals", as_of=6).to_pylist()}
            assert found == {(1, 1, 30), (3, 2, 11), (4, 1, 40)}
            with instance.subscribe("totals") as batches:
                batch = batches.next_batch(timeout_s=60)
                assert batch is not None
                assert batch.updates.num_rows == 3


@pytest.mark.parametrize("seed", range(60 if long_lane() else 3))
def test_whatever_is_allowed_the_newest_time_is_answered(tmp_path: Path, seed: int) -> None:
    """At random: exports of each kind, frontiers before and past what they have, growth, restarts."""
    rng = random.Random(seed)
    path = at(tmp_path)
    log, upper = open_log(path), 7
    ids = ("totals", "counted", "keys")
    taken_here: dict[str, int] = {}
    instance = handle(tmp_path / "instance")
    try:
        made(instance, path)
        for _ in range(12):
            id_, what = rng.choice(ids), rng.random()
            if what < 0.5:
                asked = rng.choice([0, upper - 2, upper - 1, upper, upper + 3, FAR, 2**62])
                ((taken,),) = instance.allow_compaction(id_, [asked])
                assert taken >= max(min(asked, upper - 1), taken_here.get(id_, 0))
                assert taken < upper
                taken_here[id_] = taken
            elif what < 0.75:
                upper += rng.randint(1, 3)
                append(log, (upper - 1, 1, rng.randint(1, 3), 5), upper=upper)
                for each in ids:
                    instance.await_frontier(each, upper - 1)
            elif what < 0.9:
                instance.close()
                taken_here.clear()  # what was said within the last second is said once more
                instance = handle(tmp_path / "instance")
            for each in ids:
                assert instance.peek(each, as_of=upper - 1).num_rows
    finally:
        instance.close()
