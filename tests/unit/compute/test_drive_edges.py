"""Instances at their edges: odd times, odd names, paths in each other's way, failures, and nothing that grows."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.command import AllowCompaction, CreateDataflow, Dataflow, Export, Import
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive import recovery
from spark_timely.compute.drive.directory import Directory
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.ledger import commands_of
from spark_timely.compute.response import Response
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
    MissingError,
    OperatorError,
    SinceViolationError,
    StorageError,
    TimelyError,
    WaitTimeoutError,
)
from spark_timely.log.core import LogCore
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import parse_duration
from tests.faults.harness import long_lane
from tests.unit.compute.instances import SCHEMA, TOTALS, append, handle, orders, rows, runtime, tasks
from tests.unit.compute.test_drive import folded, until


@pytest.fixture
def log(tmp_path: Path) -> Any:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


def wait_until(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen in 30 seconds")


# Times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "column", "times"),
    [
        ("date", pa.date32(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 3)]),
        (
            "timestamp",
            pa.timestamp("us", tz="UTC"),
            [dt.datetime(2024, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 2, 3)],
        ),
    ],
)
def test_dates_and_timestamps_are_times_as_others(tmp_path: Path, kind: str, column: Any, times: list[Any]) -> None:
    log = create_log(tmp_path / "orders", SCHEMA, kind="collection", times=(kind,), minimum=times[0])
    data = {"_time": pa.array(times[:2], column), "_diff": [1, 1], "k": [1, 2], "v": [10, 20]}
    log.writer(owner="test").append(pa.table(data), advance_to=times[2])
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=times[0])
        instance.await_frontier("totals", times[1])
        assert rows(instance.peek("totals", as_of=times[0])) == [(1, 1, 10, 1)]
        assert rows(instance.peek("totals")) == [(1, 1, 10, 1), (2, 1, 20, 1)]
        with instance.subscribe("totals", as_of=times[1], up_to=times[2]) as batches:
            assert folded(list(batches)) == {(1, 1, 10): 1, (2, 1, 20): 1}
    with handle(tmp_path / "instance") as instance:
        assert rows(instance.peek("totals", as_of=times[1])) == [(1, 1, 10, 1), (2, 1, 20, 1)]


def test_product_times_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    log = create_log(tmp_path / "orders", SCHEMA, kind="collection", times=("long", "long"), minimum=(0, 0))
    with handle(tmp_path / "instance") as instance:
        with pytest.raises(TimelyError, match="could not create dataflow"):
            instance.index("x", "SELECT k FROM orders", imports={"orders": log.path}, as_of=(1, 1))
        with pytest.raises(TimelyError, match="could not create dataflow"):
            instance.subscribe("SELECT k FROM orders", imports={"orders": log.path}, up_to=(1, 1))
        assert instance.error is None
        assert instance.show("exports").num_rows == 0


def test_domain_that_is_not_that_of_the_imports_is_refused(tmp_path: Path) -> None:
    log = create_log(tmp_path / "orders", SCHEMA, kind="collection", times=("date",), minimum=dt.date(2024, 1, 1))
    with handle(tmp_path / "instance") as instance:
        folder = instance.directory.new_folder("x")
        flow = Dataflow(
            "x",
            (Import("orders", path=log.path),),
            '{"op":"import","name":"orders"}',
            (Export("x", "index", json.dumps({"folder": folder})),),
            Antichain.of(3),
        )
        with pytest.raises(InvalidUsageError, match="found times of types"):
            instance.send(CreateDataflow(flow))


def test_input_that_is_empty_and_one_that_is_complete(tmp_path: Path) -> None:
    empty = create_log(tmp_path / "empty", SCHEMA, kind="collection", minimum=(0,))
    whole = orders(tmp_path / "whole", (1, 1, 1, 10), upper=4)
    whole.writer(owner="test").close()
    with handle(tmp_path / "instance") as instance:
        instance.index("none", TOTALS, imports={"orders": empty.path}, key="k")
        instance.index("all", TOTALS, imports={"orders": whole.path}, key="k")
        assert instance.await_frontier("all", 10**9) == Antichain.empty()
        assert rows(instance.peek("all")) == [(1, 1, 10, 1)]
        with instance.subscribe("all", as_of=2) as batches:
            assert folded(list(batches)) == {(1, 1, 10): 1}
        with instance.subscribe(TOTALS, imports={"orders": whole.path}) as batches:
            assert folded(list(batches)) == {(1, 1, 10): 1}
        append(empty, (0, 1, 5, 5), upper=2)
        instance.await_frontier("none", 1)
        assert rows(instance.peek("none", as_of=0)) == [(5, 1, 5, 1)]
    with handle(tmp_path / "instance") as instance:
        assert instance.await_frontier("all", 10**9) == Antichain.empty()
        assert rows(instance.peek("all", keys={"k": [1]})) == [(1, 1, 10, 1)]


def test_as_of_in_the_future_is_waited_for(tmp_path: Path, log: Log) -> None:
    heard: list[Response] = []
    with handle(tmp_path / "instance", on_response=heard.append) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=6)
        batches = instance.subscribe(TOTALS, imports={"orders": log.path}, as_of=6, up_to=8)
        append(log, (4, 1, 1, 1), (6, 1, 1, 1), upper=7)
        instance.await_frontier("totals", 6)
        assert rows(instance.peek("totals", as_of=6)) == [(1, 4, 42, 1), (2, 1, 20, 1)]
        with pytest.raises(SinceViolationError, match="since"):
            instance.peek("totals", as_of=4)
    with handle(tmp_path / "instance") as instance:
        append(log, (7, 1, 2, 1), upper=9)
        instance.await_frontier("totals", 8)
        assert rows(instance.peek("totals", as_of=8)) == [(1, 4, 42, 1), (2, 2, 21, 1)]
    assert [batch.upper for batch in batches] in ([], [Antichain.of(7)])


@pytest.mark.parametrize("query", ["totals", "SELECT k FROM totals"])
def test_subscribe_that_ends_before_anything_came_ends(tmp_path: Path, log: Log, query: str) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        for up_to in (3, 4):
            batches = instance.subscribe(query, as_of=3, up_to=up_to)
            found = []
            while (batch := batches.next_batch(timeout_s=20)) is not None:
                found.append(batch)
            assert found
            assert found[-1].upper.is_empty
        wait_until(lambda: instance.show("exports").num_rows == 1)


def test_index_with_an_end_is_refused(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        export = Export("x", "index", json.dumps({"folder": instance.directory.new_folder("x"), "key": ["k"]}))
        with pytest.raises(InvalidUsageError, match="found up_to="):
            instance.dataflow("x", TOTALS, [export], imports={"orders": log.path}, up_to=9)


# Names and paths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["größe / 价格", "../../up", "a'b\"c", "x" * 5000, "commands"])
def test_any_text_is_an_id(tmp_path: Path, log: Log, id_: str) -> None:
    for _ in range(2):
        with handle(tmp_path / "instance") as instance:
            if not instance.has(id_):
                instance.index(id_, TOTALS, imports={"orders": log.path}, key="k")
            instance.await_frontier(id_, 3)
            assert rows(instance.peek(id_, keys={"k": [2]})) == [(2, 1, 20, 1)]
    (folder,) = (tmp_path / "instance" / "collections").iterdir()
    assert len(folder.name) < 80
    with handle(tmp_path / "instance") as instance:
        instance.drop(id_)
    assert not list((tmp_path / "instance" / "collections").iterdir())


def test_text_that_cannot_be_written_is_no_id(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        with pytest.raises(TimelyError, match="could not"):
            instance.index("\ud800", TOTALS, imports={"orders": log.path}, key="k")
        assert instance.error is None
        assert CommandLog.at(instance.directory.commands, create=False).rows()


def test_export_that_is_named_by_its_path_is_imported_by_its_id(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        path = instance._driver.state.path_of("totals")
        assert path is not None
        made = instance.index("keys", "SELECT k FROM t", imports={"t": path})
        assert made.imports == (Import("t", export="totals"),)
        with pytest.raises(InvalidUsageError, match="imported"):
            instance.drop("totals")
        raw = Dataflow(
            "raw",
            (Import("t", path=path),),
            '{"op":"import","name":"t"}',
            (Export("raw", "index", json.dumps({"folder": instance.directory.new_folder("raw")})),),
            Antichain.of(3),
        )
        with pytest.raises(InvalidUsageError, match="import it by its id: 'totals'"):
            instance.send(CreateDataflow(raw))


def test_paths_in_each_others_way_are_refused(tmp_path: Path, log: Log) -> None:
    reads = {"orders": log.path}
    with handle(tmp_path / "instance") as instance:
        instance.maintain("a", TOTALS, str(tmp_path / "out"), imports=reads)
        before = CommandLog.at(instance.directory.commands, create=False).rows()
        for into in (
            tmp_path / "out",
            f"{tmp_path}/./out/",
            tmp_path / "instance",
            tmp_path / "instance" / "collections" / "mine",
            tmp_path / "instance" / "commands",
            tmp_path,
            log.path,
        ):
            with pytest.raises(TimelyError, match="could not"):
                instance.maintain("b", TOTALS, str(into), imports=reads)
        twice = [Export(id_, "log", json.dumps({"path": str(tmp_path / "twice")})) for id_ in ("c", "d")]
        with pytest.raises(InvalidUsageError, match="is written into"):
            instance.dataflow("twice", TOTALS, twice, imports=reads)
        for folder in ("commands", "collections/../commands", "collections", ".."):
            flow = instance._descriptions._planned("x", TOTALS, reads, {})
            export = Export("x", "index", json.dumps({"folder": folder}))
            with pytest.raises(InvalidUsageError, match="found folder"):
                instance.send(CreateDataflow(Dataflow("x", flow[1], flow[0].text, (export,), Antichain.of(3))))
        assert CommandLog.at(instance.directory.commands, create=False).rows() == before
        instance.drop("a")
        instance.maintain("b", TOTALS, str(tmp_path / "out2"), imports=reads)
        instance.await_frontier("b", 3)


def test_directory_is_the_same_however_it_is_written(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in ("instance", str(tmp_path / "instance") + "/", f"file://{tmp_path}/instance"):
        with Handle(directory, runtime()) as instance:
            if not instance.has("totals"):
                instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
            instance.await_frontier("totals", 3)
            assert not instance._driver.folders.gone
        assert len(list((tmp_path / "instance" / "collections").iterdir())) == 1


def test_secrets_are_in_no_text(tmp_path: Path, log: Log) -> None:
    place = Directory(
        str(tmp_path / "instance"), {"aws_secret_access_key": "tops3cret"}, {log.path: {"key": "tops3cret"}}
    )
    assert "tops3cret" not in repr(place)
    options = {log.path: {"timeout": "tops3cret"}}
    with handle(tmp_path / "instance", options_of=options) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        texts = [
            repr(instance._driver.state.directory),
            repr(instance),
            *(text for _, text in CommandLog.at(instance.directory.commands, create=False).rows()),
        ]
    assert "tops3cret" not in " ".join(texts)


@pytest.mark.parametrize(
    "values", [{"steps_at_once": "many"}, {"steps_at_once": 0}, {"steps_at_once": True}, {"max_bytes_per_step": -1}]
)
def test_configuration_that_no_step_could_use_is_refused(tmp_path: Path, values: dict[str, object]) -> None:
    with handle(tmp_path / "instance") as instance:
        with pytest.raises(InvalidOptionError):
            instance.configure(**values)
        assert instance.error is None


def test_id_that_was_given_again_is_the_newer_one(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("p", TOTALS, imports={"orders": log.path})
        instance.index("t", TOTALS, imports={"orders": log.path})
    with handle(tmp_path / "instance") as instance:
        instance.drop("p")
        instance.index("p", "SELECT k FROM t WHERE k > 1")
        commands = commands_of(CommandLog.at(instance.directory.commands, create=False).rows())
        made = [each.dataflow.name for each in commands if isinstance(each, CreateDataflow)]
        assert made == ["p", "t", "p"]  # not reduced yet
    with handle(tmp_path / "instance") as instance:
        instance.await_frontier("p", 3)
        assert rows(instance.peek("p")) == [(2, 1)]


# Failures ----------------------------------------------------------------------------------------


def test_step_that_fails_once_repeats_nothing_of_a_subscribe(tmp_path: Path, log: Log) -> None:
    fails = threading.Event()

    def failing(name: str, options: Any) -> Any:
        run = tasks(name, options)

        def job(plans: Any, todo: Any) -> Any:
            if fails.is_set():
                fails.clear()
                msg = "lost"
                raise RuntimeError(msg)
            return run(plans, todo)

        return job

    with handle(tmp_path / "instance", runtime=runtime(tasks=failing)) as instance:
        batches = instance.subscribe(TOTALS, imports={"orders": log.path}, as_of=2)
        found = until(batches, 4)
        fails.set()
        append(log, (4, 1, 2, 1), upper=5)
        found += until(batches, 5)
        assert not fails.is_set()
        assert all(one.upper == two.lower for one, two in itertools.pairwise(found))
        assert folded(found) == {(1, 2, 40): 1, (2, 2, 21): 1}
        assert instance.error is None
        wait_until(lambda: instance.show("errors").num_rows == 0)


def test_storage_that_is_away_for_a_moment_ends_nothing(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    refresh = LogCore.refresh
    failed: list[str] = []

    def refreshed(self: LogCore) -> bool:
        if away.is_set() and threading.current_thread() is not threading.main_thread():
            failed.append(self.path)
            msg = f"could not read log {self.path!r}: found no answer"
            raise StorageError(msg, hint="wait", determinate=True)
        return refresh(self)

    with handle(tmp_path / "instance") as instance, handle(tmp_path / "instance", read_only=True) as follower:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        follower.await_frontier("totals", 3)
        batches, followed = instance.subscribe("totals"), follower.subscribe("totals")
        found, seen = until(batches, 4), until(followed, 4)
        monkeypatch.setattr(LogCore, "refresh", refreshed)
        away.set()
        append(log, (4, 1, 1, 1), upper=5)
        wait_until(lambda: failed)
        threading.Event().wait(0.3)
        away.clear()
        found, seen = found + until(batches, 5), seen + until(followed, 5)
        assert folded(found) == folded(seen) == {(1, 3, 41): 1, (2, 1, 20): 1}
        assert instance.await_frontier("totals", 4) == Antichain.of(5)
        assert follower.await_frontier("totals", 4) == Antichain.of(5)
        assert instance.error is None
        assert follower.error is None


def test_subscribe_that_can_never_continue_ends_with_its_error(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        export = Export("s", "subscribe", json.dumps({"envelope": "none of these"}))
        whole = json.dumps({"op": "import", "name": "orders"})
        batches = instance.subscribe(whole, imports={"orders": log.path}, id_="other")
        instance.dataflow("s", whole, [export], imports={"orders": log.path}, interactive=True)
        wait_until(lambda: instance.frontier("s").is_empty)
        assert "none of these" in instance.show("errors")["text"].to_pylist()[0]
        assert folded(until(batches, 4)) == {(1, 10): 1, (2, 20): 1, (1, 30): 1}
        assert instance.error is None


def test_call_from_on_response_is_done_or_refused(tmp_path: Path, log: Log) -> None:
    found: list[BaseException | str] = []

    def heard(response: Response) -> None:
        del response
        for call in (
            lambda: instance.close(),
            lambda: instance.await_frontier("totals", 99),
            lambda: instance.configure(hydration_limit=3),
        ):
            try:
                call()
                found.append("done")
            except TimelyError as error:
                found.append(error)

    with handle(tmp_path / "instance", on_response=heard) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        assert [type(each) for each in found[:3]] == [InvalidUsageError, InvalidUsageError, str]


def test_close_while_steps_and_peeks_are_running(tmp_path: Path, log: Log) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def slow(name: str, options: Any) -> Any:
        run = tasks(name, options)

        def job(plans: Any, todo: Any) -> Any:
            reached.set()
            assert go_on.wait(60)
            return run(plans, todo)

        return job

    instance = handle(tmp_path / "instance", runtime=runtime(tasks=slow))
    instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
    assert reached.wait(60)
    errors: list[BaseException] = []

    def asks() -> None:
        try:
            instance.peek("totals", as_of=9)
        except TimelyError as error:
            errors.append(error)

    asking = [threading.Thread(target=asks), threading.Thread(target=instance.close)]
    for thread in asking:
        thread.start()
    go_on.set()
    for thread in asking:
        thread.join(60)
        assert not thread.is_alive()
    assert len(errors) == 1
    instance.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        instance.index("more", TOTALS, imports={"orders": log.path})
    with handle(tmp_path / "instance") as again:
        again.await_frontier("totals", 3)


def test_request_to_a_replaced_start_is_left_to_the_newer(tmp_path: Path, log: Log) -> None:
    old = handle(tmp_path / "instance")
    requests = Requests(old.directory)
    asked = {"id": "x", "query": TOTALS, "imports": {"orders": log.path}}
    with old._driver._lock:  # it is about to do what was asked, and is replaced
        CommandLog.at(old.directory.commands).take_over()
        with pytest.raises(WaitTimeoutError):
            requests.ask("index", asked, timeout_s=0.1)
        assert requests.take(old) == 0
    old.close()
    with handle(tmp_path / "instance") as new:
        wait_until(lambda: new.has("x"))


# A follower --------------------------------------------------------------------------------------


def test_subscribe_of_a_follower_outlives_what_the_leader_does(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as leader:
        leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        leader.await_frontier("totals", 3)
        follower = handle(tmp_path / "instance", read_only=True)
        follower.await_frontier("totals", 3)
        batches = follower.subscribe("totals", id_="mine")
        found = until(batches, 4)
        for number in range(6):
            leader.index(f"more{number}", TOTALS, imports={"orders": log.path}, key="k")
            leader.configure(hydration_limit=number + 5)
            leader.allow_compaction("totals", 3)
            append(log, (4 + number, 1, 1, 1), upper=5 + number)
            found += until(batches, 5 + number)
            if number:
                leader.drop(f"more{number - 1}")
        wait_until(lambda: "more4" not in follower.show("exports")["export_id"].to_pylist())
        follower.allow_writes()
        append(log, (10, 1, 1, 1), upper=11)
        found += until(batches, 11)
        assert all(one.upper == two.lower for one, two in itertools.pairwise(found))
        assert folded(found) == {(1, 9, 47): 1, (2, 1, 20): 1}
        assert sorted(follower.show("exports")["export_id"].to_pylist()) == ["mine", "more5", "totals"]
        batches.close()
        follower.close()


def test_what_a_follower_reads_may_be_dropped_by_the_leader(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as leader, handle(tmp_path / "instance", read_only=True) as follower:
        leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        leader.await_frontier("totals", 3)
        follower.settle()
        wait_until(lambda: follower.has("totals"))
        follower.await_frontier("totals", 3)
        batches = follower.subscribe("totals", id_="mine")
        until(batches, 4)
        failed: list[TimelyError] = []

        def asks() -> None:
            try:
                follower.peek("totals", as_of=50)
            except TimelyError as error:
                failed.append(error)

        asking = threading.Thread(target=asks)
        asking.start()
        wait_until(lambda: follower.show("peeks").num_rows == 1)
        leader.drop("totals")
        assert batches.next_batch(timeout_s=30) is None
        asking.join(30)
        assert len(failed) == 1
        assert not follower.has("totals")
        batches = follower.subscribe('{"op":"import","name":"orders"}', imports={"orders": log.path}, id_="new")
        until(batches, 4)
        leader.index("new", TOTALS, imports={"orders": log.path}, key="k")
        assert batches.next_batch(timeout_s=30) is None
        follower.await_frontier("new", 3)
        assert rows(follower.peek("new")) == rows(leader.peek("new"))
        assert follower.error is None


def test_take_over_that_breaks_off_loses_no_command(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with handle(tmp_path / "instance") as leader:
        leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        follower = handle(tmp_path / "instance", read_only=True)
        follower.settle()

        def broken(*_: object) -> None:
            msg = "could not read: found nothing"
            raise StorageError(msg, hint="wait", determinate=True)

        with follower._driver._lock:
            leader.index("more", TOTALS, imports={"orders": log.path}, key="k")
            monkeypatch.setattr(recovery, "resumed", broken)
            with pytest.raises(StorageError):
                follower.allow_writes()
        with pytest.raises(StorageError):
            follower.configure(hydration_limit=1)
        follower.close()
    with handle(tmp_path / "instance") as instance:
        assert sorted(instance.show("exports")["export_id"].to_pylist()) == ["more", "totals"]


def test_frontier_of_an_id_that_is_made_again_is_its_own(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        for number in range(20):
            instance.index("it", TOTALS, imports={"orders": log.path}, as_of=number % 3)
            assert instance.frontier("it") in (Antichain.of(0), Antichain.of(4))
            instance.await_frontier("it", 3)
            assert instance._driver.instance.collection("it").upper == Antichain.of(4)
            instance.drop("it")
            with pytest.raises(MissingError):
                instance.frontier("it")


def test_imports_are_retained_until_a_dataflow_is_dropped(tmp_path: Path, log: Log) -> None:
    def retain(log: Log, consumer: str) -> RetainedPosition:
        return RetainedPosition(lambda: open_log(log.path), consumer, parse_duration("7 days"))

    def retainers() -> int:
        log.refresh()
        return len(log.retainers())

    reads = {"orders": log.path}
    with handle(tmp_path / "instance", runtime=runtime(retain=retain)) as instance:
        instance.index("totals", TOTALS, imports=reads, key="k")
        instance.await_frontier("totals", 3)
        batches = instance.subscribe(TOTALS, imports=reads)
        until(batches, 4)
        wait_until(lambda: retainers() == 2)
        batches.close()
        wait_until(lambda: retainers() == 1)
        others = instance.subscribe(TOTALS, imports=reads)  # as long as somebody has it
        until(others, 4)
        wait_until(lambda: retainers() == 2)
    assert retainers() == 1
    with handle(tmp_path / "instance", runtime=runtime(retain=retain)) as instance:
        instance.await_frontier("totals", 3)
        instance.drop("totals")
        wait_until(lambda: retainers() == 0)


def test_nothing_grows_with_what_comes_and_goes(tmp_path: Path, log: Log) -> None:
    others = [orders(tmp_path / f"other{number}", (1, 1, 1, 1), upper=3) for number in range(3)]

    def sizes() -> dict[str, int]:
        driver = instance._driver
        parts = (
            *(instance, driver, driver.state, driver.instance, driver.instance._session),
            *(driver.worker, driver.worker.watches, driver.peeks, driver._subscribes, driver._copies, driver.folders),
            driver._compaction,
        )
        found = {
            f"{type(part).__name__}.{name}": len(value)
            for part in parts
            for name, value in vars(part).items()
            if isinstance(value, dict | set | list | tuple)
        }
        shows = instance._driver.instance.introspection
        found |= {f"shows.{name}": len(rows_) for name, rows_ in shows._rows.items()}
        found["passing"] = len(instance._driver.instance.history._passing)
        return found | {"history": len(instance._driver.instance.history)}

    def come_and_go(times: int) -> None:
        for number in range(times):
            instance.peek("totals", keys={"k": [1]})
            instance.peek(others[number % 3].path, as_of=1)
            with pytest.raises(WaitTimeoutError):
                instance.peek("totals", as_of=99, timeout_s=0.0)
            with pytest.raises(WaitTimeoutError):
                instance.peek(others[number % 3].path, as_of=99, timeout_s=0.0)
            if number % 4 == 0:
                assert list(instance.subscribe("totals", as_of=3, up_to=4))
                instance.subscribe("totals").close()
                instance.subscribe("SELECT k FROM totals").close()
                with pytest.raises(OperatorError):
                    instance.copy_to("totals", str(tmp_path / "copy"))
                with pytest.raises(WaitTimeoutError):
                    instance.copy_to("totals", str(tmp_path / "copy"), as_of=99, timeout_s=0.0)
                for name in list(instance._left):
                    instance.drop(name)  # of a copy whose time never comes
                    instance._left.discard(name)
                    instance._asked.pop(name)
                instance.index(f"n{number}", TOTALS, imports={"orders": log.path})
                instance.drop(f"n{number}")
        wait_until(lambda: instance.show("peeks").num_rows == 0 and instance.show("exports").num_rows == 1)
        instance.peek("totals")
        instance.send(AllowCompaction("totals", Antichain.of(3)))
        instance._driver.instance.history.reduce()
        instance._driver.folders.gone.clear()

    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        come_and_go(8)
        before = sizes()
        come_and_go(60 if long_lane() else 32)
        wait_until(lambda: all(size <= before[name] + 6 for name, size in sizes().items()))


def test_step_takes_as_many_bytes_as_is_configured(tmp_path: Path) -> None:
    made = {}
    for number, configured in enumerate((None, 1)):
        log = orders(tmp_path / f"orders-{number}", (0, 1, 0, 0), upper=1)
        with handle(tmp_path / f"instance-{number}") as instance:
            instance.configure(max_bytes_per_step=configured)
            for at in range(1, 6):
                append(log, (at, 1, at, at), upper=at + 1)
            instance.maintain("out", "SELECT k FROM orders", str(tmp_path / f"out-{number}"),
                              imports={"orders": log.path}, as_of=0)  # fmt: skip
            instance.await_frontier("out", 5)
        out = open_log(tmp_path / f"out-{number}")
        state = out.core.stream("main")
        assert state is not None
        made[configured] = state.seq, rows(out.snapshot(5))
    assert made[1][0] > made[None][0]
    assert made[1][1] == made[None][1]
