"""Handles at their edges: what is asked wrongly, paths that are relative, and batches that nobody wants any more."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely as st
from spark_timely.compute.command import CreateDataflow, Dataflow, Export, Import, Schedule
from spark_timely.compute.drive.directory import details_of
from spark_timely.compute.drive.handle import Batches, Handle
from spark_timely.compute.drive.state import State
from spark_timely.compute.plan import parse_plan
from spark_timely.compute.response import Response, SubscribeBatch
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
    MissingError,
    ResultTooLargeError,
    SchemaMismatchError,
    TimelyError,
)
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane
from tests.unit.compute.instances import TOTALS, append, handle, orders, rows
from tests.unit.compute.test_drive_edges import wait_until
from tests.unit.compute.test_tasks import COPIES, run

ALL = '{"op": "import", "name": "orders"}'


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


def n_dataflows(instance: Handle) -> int:
    return instance.show("dataflows").num_rows


# Batches that nobody wants -----------------------------------------------------------------------


def forgotten(instance: Handle) -> bool:
    gc.collect()
    return n_dataflows(instance) == 0 and not instance._batches


@pytest.mark.parametrize("query", [ALL, TOTALS])
def test_subscribe_ends_when_nothing_refers_to_its_batches(tmp_path: Path, log: Log, query: str) -> None:
    with handle(tmp_path / "instance") as instance:
        kept = instance.subscribe(query, imports={"orders": log.path}, id_="kept")
        assert kept.next_batch(timeout_s=30) is not None
        batches = instance.subscribe(query, imports={"orders": log.path}, id_="it")
        assert batches.next_batch(timeout_s=30) is not None
        assert n_dataflows(instance) == 2
        del batches
        wait_until(lambda: n_dataflows(instance) == 1)
        append(log, (4, 1, 1, 1), upper=5)
        assert kept.next_batch(timeout_s=30) is not None
        assert list(instance._batches) == ["kept"]
        del kept
        wait_until(lambda: forgotten(instance))


def test_batches_in_a_cycle_are_forgotten_too(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        around: list[Any] = [instance.subscribe(ALL, imports={"orders": log.path})]
        around.append(around)
        del around
        wait_until(lambda: forgotten(instance))


def test_id_of_forgotten_batches_is_free_at_once(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        for _ in range(20 if long_lane() else 8):
            batch = instance.subscribe(ALL, imports={"orders": log.path}, id_="it").next_batch(timeout_s=30)
            assert batch is not None
            gc.collect()
        batches = instance.subscribe(ALL, imports={"orders": log.path}, id_="it")
        append(log, (4, 1, 1, 1), upper=5)
        upper = Antichain.of(0)
        while upper.less_equal((4,)):
            batch = batches.next_batch(timeout_s=30)
            assert batch is not None
            upper = batch.upper
        with pytest.raises(InvalidUsageError, match="'it' in use"):
            instance.subscribe(ALL, imports={"orders": log.path}, id_="it")
        assert not batches.has_ended


def test_loop_over_batches_keeps_them(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        found = 0
        for batch in instance.subscribe(ALL, imports={"orders": log.path}):
            gc.collect()
            assert isinstance(batch.updates, pa.Table)
            found += batch.updates.num_rows
            if batch.upper.less_equal((5,)):
                at = int(batch.upper.elements[0][0])
                append(log, (at, 1, 1, 1), upper=at + 1)
            else:
                break
        assert found == 5
        wait_until(lambda: forgotten(instance))


def test_batches_that_on_response_takes_too_are_kept(tmp_path: Path, log: Log) -> None:
    seen: list[Response] = []
    with handle(tmp_path / "instance", on_response=seen.append) as instance:
        instance.subscribe(ALL, imports={"orders": log.path}, id_="it")
        gc.collect()
        wait_until(lambda: any(getattr(each, "updates", None) is not None for each in seen))
        append(log, (4, 1, 1, 1), upper=5)
        wait_until(lambda: any(getattr(each, "upper", None) == Antichain.of(5) for each in seen))
        assert n_dataflows(instance) == 1
        instance.drop("it")
        wait_until(lambda: forgotten(instance))


def test_batches_are_forgotten_without_any_lock(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        mine = [instance.subscribe(ALL, imports={"orders": log.path})]
        forgets = threading.Thread(target=mine.clear)
        with instance._changed, instance._driver.state.lock:
            forgets.start()
            forgets.join(30)
            assert not forgets.is_alive()
        wait_until(lambda: forgotten(instance))


@pytest.mark.parametrize("query", [ALL, TOTALS])
def test_id_of_closed_batches_is_free_at_once(tmp_path: Path, log: Log, query: str) -> None:
    with handle(tmp_path / "instance") as instance:
        for _ in range(30 if long_lane() else 10):
            with instance.subscribe(query, imports={"orders": log.path}, id_="it") as batches:
                batch = batches.next_batch(timeout_s=30)
                assert batch is not None
                assert batch.lower == Antichain.of(0)
        batches = instance.subscribe(query, imports={"orders": log.path}, id_="it", up_to=4)
        assert [batch.lower for batch in batches] == [Antichain.of(0)]
        batches = instance.subscribe(query, imports={"orders": log.path}, id_="it")
        assert batches.next_batch(timeout_s=30) is not None
        assert not batches.has_ended


# Batches at their end ----------------------------------------------------------------------------


def test_end_is_told_apart_from_a_time_that_is_over(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        batches = instance.subscribe(ALL, imports={"orders": log.path})
        first = batches.next_batch(timeout_s=float("inf"))
        assert first is not None
        assert first.upper == Antichain.of(4)
        assert batches.next_batch(timeout_s=0.01) is None
        assert not batches.has_ended
        append(log, (4, 1, 1, 1), upper=5)
        wait_until(lambda: batches._n_waiting == 1)
    last = batches.next_batch()
    assert last is not None
    assert last.upper == Antichain.of(5)
    assert batches.next_batch() is None
    assert batches.has_ended
    assert list(batches) == []


@pytest.mark.parametrize("end", ["batches", "drop", "instance"])
def test_all_who_wait_learn_of_the_end(tmp_path: Path, log: Log, end: str) -> None:
    found: list[object] = []
    with handle(tmp_path / "instance") as instance:
        batches = instance.subscribe(ALL, imports={"orders": log.path}, id_="it")
        assert batches.next_batch(timeout_s=30) is not None
        waiting = [threading.Thread(target=lambda: found.append(batches.next_batch()), daemon=True) for _ in range(3)]
        for each in waiting:
            each.start()
        {"batches": batches.close, "drop": lambda: instance.drop("it"), "instance": instance.close}[end]()
        for each in waiting:
            each.join(30)
    assert found == [None] * 3
    assert batches.has_ended


def test_nobody_waits_for_a_batch_in_on_response(tmp_path: Path, log: Log) -> None:
    found: dict[str, object] = {}
    done = threading.Event()

    def on_response(response: Response) -> None:
        if not isinstance(response, SubscribeBatch) or response.upper != Antichain.of(5):
            return
        assert batches is not None
        try:
            found["now"] = batches.next_batch(timeout_s=0)
            for name, wait in (("time", lambda: batches.next_batch(timeout_s=5)), ("loop", lambda: next(batches))):
                with pytest.raises(InvalidUsageError, match="a call of on_response"):
                    wait()
                found[name] = True
        finally:
            done.set()

    batches: Batches | None = None
    with handle(tmp_path / "instance", on_response=on_response) as instance:
        batches = instance.subscribe(ALL, imports={"orders": log.path})
        assert batches.next_batch(timeout_s=30) is not None
        append(log, (4, 1, 1, 1), upper=5)
        assert done.wait(30)
    assert found.keys() == {"now", "time", "loop"}
    assert found["now"] is not None


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "5", True])
def test_time_that_is_none_is_refused(tmp_path: Path, log: Log, timeout_s: Any) -> None:
    with handle(tmp_path / "instance") as instance, instance.subscribe(ALL, imports={"orders": log.path}) as batches:
        with pytest.raises(InvalidUsageError, match="found timeout_s="):
            batches.next_batch(timeout_s=timeout_s)
        waits: list[Callable[[Any], object]] = [
            lambda limit: instance.peek(log.path, timeout_s=limit),
            lambda limit: instance.copy_to(ALL, tmp_path / "copy", imports={"orders": log.path}, timeout_s=limit),
            lambda limit: instance.await_frontier(batches.id, 3, timeout_s=limit),
            lambda limit: instance.settle(timeout_s=limit),
        ]
        for wait in waits:
            with pytest.raises(InvalidUsageError, match=r"could not .*: found timeout_s=.* — hint: give a number of"):
                wait(timeout_s)
        assert n_dataflows(instance) == 1
        assert batches.next_batch(timeout_s=30) is not None


# What is asked wrongly ---------------------------------------------------------------------------

WRONG: dict[str, Callable[[Any, str], object]] = {
    "id None": lambda i, p: i.index(None, TOTALS, imports={"orders": p}),
    "id 5": lambda i, p: i.index(5, TOTALS, imports={"orders": p}),
    "id ''": lambda i, p: i.index("", TOTALS, imports={"orders": p}),
    "query None": lambda i, p: i.index("x", None, imports={"orders": p}),
    "query 7": lambda i, p: i.index("x", 7, imports={"orders": p}),
    "query ''": lambda i, p: i.index("x", "", imports={"orders": p}),
    "key=5": lambda i, p: i.index("x", TOTALS, imports={"orders": p}, key=5),
    "imports='orders'": lambda i, _: i.index("x", TOTALS, imports="orders"),
    "imports={'orders': None}": lambda i, _: i.index("x", TOTALS, imports={"orders": None}),
    "name None": lambda i, p: i.dataflow(None, TOTALS, [Export("x", "index")], imports={"orders": p}),
    "maintain: id None": lambda i, p: i.maintain(None, TOTALS, "out", imports={"orders": p}),
    "maintain: query None": lambda i, p: i.maintain("x", None, "out", imports={"orders": p}),
    "maintain: None": lambda i, p: i.maintain("x", TOTALS, None, imports={"orders": p}),
    "subscribe: query None": lambda i, _: i.subscribe(None),
    "subscribe: id_ ''": lambda i, p: i.subscribe(TOTALS, imports={"orders": p}, id_=""),
    "subscribe: id_ 5": lambda i, p: i.subscribe(TOTALS, imports={"orders": p}, id_=5),
    "continual: id None": lambda i, p: i.continual_task(None, COPIES, inputs={"orders": p}),
    "continual: sql None": lambda i, p: i.continual_task("x", None, inputs={"orders": p}),
    "continual: inputs='orders'": lambda i, _: i.continual_task("x", COPIES, inputs="orders"),
    "continual: references=5": lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p}, references=5),
    "copy: query None": lambda i, _: i.copy_to(None, "out"),
    "copy: folder None": lambda i, p: i.copy_to(TOTALS, None, imports={"orders": p}),
    "copy: folder ''": lambda i, p: i.copy_to(TOTALS, "", imports={"orders": p}),
    "target None": lambda i, _: i.peek(None),
    "target ''": lambda i, _: i.peek(""),
}


def test_what_is_no_id_query_or_path_is_refused(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        wait_until(lambda: instance._turns >= 2)
        before = open_log(instance.directory.commands).frontier()
        for what, ask in WRONG.items():
            with pytest.raises(InvalidUsageError, match="could not ") as caught:
                ask(instance, log.path)
            assert what.rpartition(": ")[2].partition("=")[0].strip("'") in caught.value.message, what
            assert caught.value.hint, what
        assert n_dataflows(instance) == 0
        assert not instance._batches
        assert not instance._asked
        assert open_log(instance.directory.commands).frontier() == before


# Peeks -------------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path: Path) -> Log:
    log = create_log(
        tmp_path / "people", pa.schema([("who", pa.string()), ("v", pa.int64())]), kind="collection", minimum=(0,)
    )
    names = ["ann", "a", "n"]
    log.writer(owner="test").append(
        pa.table({"_time": [1, 1, 1], "_diff": [1, 1, 1], "who": names, "v": [1, 2, 3]}), advance_to=2
    )
    return log


def test_keys_are_read_as_a_peek_of_a_log_reads_them(tmp_path: Path, people: Log) -> None:
    whole = '{"op": "import", "name": "people"}'
    with handle(tmp_path / "instance") as instance:
        instance.index("it", whole, imports={"people": people.path}, key="who")
        instance.await_frontier("it", 1)
        for target in ("it", people.path):
            assert rows(instance.peek(target, keys={"who": ["ann", None]})) == [("ann", 1, 1)]
            assert rows(instance.peek(target, keys={("who", "v"): [("a", 2), ("a", 3)]})) == [("a", 2, 1)]
            assert rows(instance.peek(target, keys={"who": ["a", "n"], "v": [2, 2]})) == [("a", 2, 1)]
            assert rows(instance.peek(target, keys=pa.table({"v": [3]}))) == [("n", 3, 1)]
            assert rows(instance.peek(target, keys={"who": []})) == []
            for keys in ({"who": "ann"}, {"who": b"ann"}, {"who": {"ann": 1}}, {"who": 5}, {}, ["ann"], "ann", 5):
                with pytest.raises(InvalidUsageError, match="found keys"):
                    instance.peek(target, keys=keys)  # type: ignore[arg-type]
            for keys in ({"who": [5]}, {"v": ["1"]}, {"v": [1.5]}, {"none": [1]}):
                with pytest.raises(SchemaMismatchError, match=f"could not peek '{target}'"):
                    instance.peek(target, keys=keys)
        assert instance.peek("timely_exports", keys={"export_id": ["it"]}).num_rows == 1
        with pytest.raises(InvalidUsageError, match="found keys"):
            instance.peek("timely_exports", keys={"export_id": "it"})


def test_keys_of_what_is_not_written_yet_are_waited_with(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schema_of(_: State, id_: str) -> pa.Schema:
        msg = f"could not tell the columns of {id_!r}: found nothing"
        raise MissingError(msg, hint="wait")

    monkeypatch.setattr(State, "schema_of", schema_of)
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=5)
        with pytest.raises(InvalidUsageError, match="found keys"):
            instance.peek("totals", as_of=5, keys={"k": "1"})
        found: list[object] = []

        def ask(keys: Any) -> None:
            try:
                found.append(rows(instance.peek("totals", as_of=5, keys=keys, timeout_s=30)))
            except TimelyError as error:
                found.append(type(error))

        asking = [threading.Thread(target=ask, args=(keys,)) for keys in ({"k": [1]}, {"k": ["1"]})]
        for each in asking:
            each.start()
        wait_until(lambda: len(instance._asked) == 2 or found)
        assert not found
        append(log, (5, 1, 1, 2), upper=6)
        for each in asking:
            each.join(60)
        assert sorted(found, key=str) == [SchemaMismatchError, [(1, 3, 42, 1)]]


def test_peek_finds_a_log_by_a_relative_path(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with handle(tmp_path / "instance") as instance:
        expected = rows(instance.peek(log.path))
        assert len(expected) == 3
        for target in ("orders", "./orders", Path("orders"), tmp_path / "orders"):
            assert rows(instance.peek(target)) == expected
        assert rows(instance.peek("orders", keys={"k": [2]}, select="v")) == [(20, 1)]
        with pytest.raises(MissingError, match="could not peek 'order': found no collection of this id"):
            instance.peek("order")
        # An id comes first.
        instance.index("orders", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("orders", 3)
        assert rows(instance.peek("orders")) == [(1, 2, 40, 1), (2, 1, 20, 1)]
        assert rows(instance.peek(Path("orders"))) == expected


def test_peek_refuses_what_it_does_not_know(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        with pytest.raises(InvalidOptionError, match="found unknown option 'limits'") as caught:
            instance.peek(log.path, limits=1)
        assert "'limit'" in str(caught.value.hint)
        for name in ("job", "storage_options", "explain", "plan"):
            with pytest.raises(InvalidOptionError, match="where, select, order_by, limit"):
                instance.peek(log.path, **{name: None})
        with pytest.raises(InvalidUsageError, match="found where="):
            instance.peek(log.path, where=object())
        asked: dict[str, Any] = {"where": "v < 30", "order_by": [("v", "desc")], "limit": 1, "offset": 1, "select": "v"}
        more: dict[str, Any] = {"max_bytes": 1000, "scan_limit": 100_000, "forgotten": False}
        assert rows(instance.peek(log.path, **asked, **more)) == [(10, 1)]
        with pytest.raises(ResultTooLargeError):
            instance.peek(log.path, max_bytes=1)


def test_errors_of_a_peek_keep_class_hint_and_name(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path})
        instance.await_frontier("totals", 3)
        for asked, other in (("totals", "'totals'"), (log.path, f"log {log.path!r}")):
            for wrong in (
                {"select": "nonesuch"},
                {"where": "nonesuch > 1"},
                {"where": "k >"},
                {"order_by": "nonesuch"},
            ):
                with pytest.raises(InvalidUsageError) as caught:
                    instance.peek(asked, **wrong)
                with pytest.raises(InvalidUsageError) as alone:
                    st.peek(log.path, **wrong)
                assert type(caught.value) is type(alone.value)
                assert (caught.value.hint or "")[:20] == (alone.value.hint or "")[:20]
                assert caught.value.message.startswith(f"could not peek {other}: found "), caught.value.message


# Relative paths ----------------------------------------------------------------------------------


def test_relative_path_of_a_log_is_of_who_said_it(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for each in (first, second):
        each.mkdir()
    monkeypatch.chdir(first)
    with run(tmp_path) as instance:
        instance.maintain("kept", TOTALS, "kept", imports={"orders": log.path})
        instance.maintain("over", "SELECT k FROM kept", Path("over"))
        instance.continual_task("copy", COPIES, inputs={"orders": log.path}, into="copy")
        instance.dataflow("made", TOTALS, [Export("made", "log", '{"path": "made"}')], imports={"orders": "../orders"})
        for id_ in ("kept", "over", "copy", "made"):
            instance.await_frontier(id_, 3)
            assert details_of(instance._driver.state.exports()[id_])["path"] == str(first / id_)
    monkeypatch.chdir(second)
    append(log, (4, 1, 1, 1), upper=5)
    with run(tmp_path) as instance:
        for id_ in ("kept", "over", "copy", "made"):
            instance.await_frontier(id_, 4)
    assert list(second.iterdir()) == []
    for id_, expected in (("kept", [(1, 3, 41, 1), (2, 1, 20, 1)]), ("over", [(1, 1), (2, 1)])):
        assert rows(open_log(first / id_).snapshot(4)) == expected


def test_command_log_with_a_relative_path_still_opens(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Dataflow(
        "kept",
        (Import("orders", path=log.path, log_id=log.core.log_id),),
        parse_plan(ALL).text,
        (Export("kept", "log", '{"path": "kept"}'),),
        Antichain.of(0),
        Antichain.empty(1),
        log.domain,
    )
    with handle(tmp_path / "instance") as instance:
        instance.send(CreateDataflow(made))
        instance.send(Schedule("kept"))
        instance.await_frontier("kept", 3)
    append(log, (4, 1, 1, 1), upper=5)
    with handle(tmp_path / "instance") as instance:
        assert details_of(instance._driver.state.exports()["kept"]) == {"path": "kept"}
        instance.await_frontier("kept", 4)
        with pytest.raises(InvalidUsageError, match=f"written into '{tmp_path}/kept'"):
            instance.maintain("other", TOTALS, tmp_path / "kept", imports={"orders": log.path})
    assert rows(open_log(tmp_path / "kept").snapshot(4)) == [(1, 1, 1), (1, 10, 1), (1, 30, 1), (2, 20, 1)]
