"""The introspection of an instance as collections: subscribed to, peeked, and queried by SQL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.command import CreateInstance, CreateTimely, InitializationComplete
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive import relations
from spark_timely.compute.drive.directory import Directory
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.subscribes import Batches
from spark_timely.compute.history import rows_of
from spark_timely.compute.introspection import RELATIONS
from spark_timely.compute.ledger import commands_of
from spark_timely.errors import InvalidUsageError, MissingError, OwnershipError
from spark_timely.log.log import Log, open_log
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.compute.instances import TOTALS, append, handle, orders
from tests.unit.compute.test_drive_edges import wait_until


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 1), upper=3)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relations, "_EVERY_S", 0.05)


class Sum:
    """What the batches of a subscribe add up to; written apart from what gives them."""

    def __init__(self, batches: Batches, names: list[str]) -> None:
        self.batches, self.names, self.rows, self.upper = batches, names, Counter[tuple[Any, ...]](), Antichain.of(0)
        self.last: Antichain | None = None

    def take(self) -> None:
        while (batch := self.batches.next_batch(timeout_s=0.02)) is not None:
            assert self.last is None or batch.lower == self.last
            self.last = batch.upper
            table = batch.updates
            assert isinstance(table, pa.Table)
            for row in table.to_pylist():
                self.rows[tuple(row[name] for name in self.names)] += row["_diff"]

    def at_last(self, wanted: object) -> None:
        """Wait until they add up to what is wanted."""

        def found() -> bool:
            self.take()
            return +self.rows == wanted

        wait_until(found)
        assert min(self.rows.values(), default=0) >= 0


def test_rule_004_31_each_relation_is_a_collection(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 2)
        for name, schema in RELATIONS.items():
            id_ = f"timely_{name}"
            assert instance.has(id_)
            assert instance.schema_of(id_) == schema
            assert instance.peek(id_).drop_columns(["_diff"]).schema.names == schema.names
        with pytest.raises(InvalidUsageError, match="in use for relation 'lag'"):
            instance.index("timely_lag", TOTALS, imports={"orders": log.path})
        with pytest.raises(InvalidUsageError, match="shows the instance itself"):
            instance.drop("timely_lag")


def test_subscribe_to_a_relation_adds_up_to_its_rows(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        shown = Sum(instance.subscribe("timely_exports", id_="shown"), ["export_id"])
        shown.at_last({("shown",): 1})
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        shown.at_last({("shown",): 1, ("totals",): 1})
        instance.drop("totals")
        shown.at_last({("shown",): 1})


def test_sql_over_relations_joins_what_was_at_one_moment(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        query = "SELECT origin, count(*) AS n FROM timely_exports GROUP BY origin"
        with pytest.raises(Exception, match="origin"):
            instance.index("wrong", query)
        instance.index("numbers", "SELECT dataflow_id, count(*) AS n FROM timely_exports GROUP BY dataflow_id", key=())
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        wait_until(lambda: _newest(instance, "numbers").num_rows == 2)
        assert {row["n"] for row in _newest(instance, "numbers").to_pylist()} == {1}
        at = instance.frontier("numbers")
        # A relation that does not change is as far as one that does.
        batches = instance.subscribe("timely_dataflows")
        wait_until(lambda: instance.frontier("timely_dataflows") == instance.frontier("timely_exports"))
        assert at.less_equal_frontier(instance.frontier("timely_dataflows"))
        batches.close()


def _newest(instance: Handle, id_: str) -> pa.Table:
    if instance.frontier(id_) == instance._driver.state.domain_of(id_).minimum_frontier:
        return pa.table({})
    return instance.peek(id_)


def test_next_start_corrects_what_the_last_one_left(tmp_path: Path, log: Log) -> None:
    query = "SELECT export_id, state FROM timely_hydration"
    place = Directory(str(tmp_path / "instance"))
    with handle(tmp_path / "instance") as instance:
        instance.index("states", query)
        shown = instance.subscribe("timely_hydration", id_="passing")
        wait_until(lambda: ("passing", "hydrated") in _pairs(instance))
        del shown
    path = place.below("introspection/hydration")
    assert "passing" in open_log(path).snapshot(_last(path))["export_id"].to_pylist()
    with handle(tmp_path / "instance") as instance:
        wait_until(lambda: _pairs(instance) == {("states", "hydrated")})
        table = open_log(path).snapshot(_last(path))
        assert table["_diff"].to_pylist() == [1] * table.num_rows
        assert set(table["export_id"].to_pylist()) == {"states"}


def _pairs(instance: Handle) -> set[tuple[str, str]]:
    return {(row["export_id"], row["state"]) for row in _newest(instance, "states").to_pylist()}


def _last(path: str) -> object:
    log = open_log(path)
    return log.domain.time_to_json((log.frontier().elements[0][0] - 1,))


def test_relation_that_nobody_imports_is_not_written(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 2)
        assert not (tmp_path / "instance" / "introspection").exists()
        with instance.subscribe("timely_exports") as batches:
            assert batches.next_batch(timeout_s=30) is not None
        path = str(tmp_path / "instance" / "introspection" / "exports")
        wait_until(lambda: instance._driver._relations._future is None)
        before = open_log(path).frontier()
        append(log, (5, 1, 1, 1), upper=9)
        instance.await_frontier("totals", 8)
        assert open_log(path).frontier() == before


def test_older_start_writes_no_relation(tmp_path: Path) -> None:
    with handle(tmp_path / "instance") as older:
        first = Sum(older.subscribe("timely_exports", id_="first"), ["export_id"])
        first.at_last({("first",): 1})
        kept = next(iter(older._driver._relations._kept.values()))
        with handle(tmp_path / "instance") as newer:
            second = Sum(newer.subscribe("timely_exports", id_="second"), ["export_id"])
            second.at_last({("second",): 1})
            kept.log.refresh()
            with pytest.raises(OwnershipError):
                kept.bring(RELATIONS["exports"].empty_table(), kept.log.frontier().elements[0][0] + 10)
            second.take()
            assert +second.rows == {("second",): 1}


def test_follower_peeks_relations_and_does_not_write_them(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as leader:
        leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        with handle(tmp_path / "instance", read_only=True) as follower:
            follower.settle()
            assert ("totals",) in {(row["export_id"],) for row in follower.peek("timely_exports").to_pylist()}
            with pytest.raises(OwnershipError, match="only follows"):
                follower.subscribe("timely_exports")
        assert not (tmp_path / "instance" / "introspection").exists()


def test_instance_is_created_with_its_relations(tmp_path: Path) -> None:
    with handle(tmp_path / "instance"):
        pass
    commands = CommandLog.at(Directory(str(tmp_path / "instance")).commands)
    (found,) = [each for each in commands_of(commands.rows()) if isinstance(each, CreateInstance)]
    assert dict(found.introspection) == {name: f"timely_{name}" for name in RELATIONS}
    with handle(tmp_path / "instance") as instance, pytest.raises(MissingError):
        instance._driver.open_relation("timely_nothing")


def test_times_that_no_clock_gives_are_refused(tmp_path: Path) -> None:
    commands = CommandLog.at(Directory(str(tmp_path / "instance")).commands)
    commands.take_over()
    made = CreateInstance({"lag": "lag"}, domain=TimeDomain(("long", "long"), (0, 0)))
    commands.store(rows_of((CreateTimely(1, "me"), made, InitializationComplete())))
    with handle(tmp_path / "instance") as instance:
        assert instance.peek("lag").num_rows == 0
        with pytest.raises(InvalidUsageError, match="could not keep the introspection as collections"):
            instance.subscribe("lag")
