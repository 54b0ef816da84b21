"""An instance with its surroundings: what it maintains, answers, and is after a restart."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.response import Response, SubscribeBatch
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    MissingError,
    OwnershipError,
    RolledBackError,
    SchemaMismatchError,
    SinceViolationError,
    TimelyError,
    WaitTimeoutError,
)
from spark_timely.log.log import create_log, open_log
from spark_timely.time.antichain import Antichain
from tests.unit.compute.instances import TOTALS, append, handle, orders, rows, runtime, tasks


@pytest.fixture
def log(tmp_path: Path) -> Any:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


def folded(batches: Sequence[SubscribeBatch]) -> dict[tuple[Any, ...], int]:
    """Return the contents that batches add up to."""
    found: dict[tuple[Any, ...], int] = {}
    for batch in batches:
        assert isinstance(batch.updates, pa.Table)
        for row in batch.updates.to_pylist():
            key = tuple(value for name, value in row.items() if name not in ("_time", "_diff"))
            found[key] = found.get(key, 0) + row["_diff"]
    return {key: n for key, n in found.items() if n}


def until(batches: Any, frontier: int) -> list[SubscribeBatch]:
    """Return the batches up to a frontier."""
    found: list[SubscribeBatch] = []
    while not found or found[-1].upper.less_equal((frontier - 1,)):
        batch = batches.next_batch(timeout_s=30)
        assert batch is not None
        assert not found or found[-1].upper == batch.lower
        found.append(batch)
    return found


def test_index_is_maintained_peeked_and_subscribed(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        made = instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        assert made.as_of == Antichain.of(3)
        assert instance.await_frontier("totals", 3) == Antichain.of(4)
        assert rows(instance.peek("totals")) == [(1, 2, 40, 1), (2, 1, 20, 1)]
        assert rows(instance.peek("totals", keys={"k": [2]}, select=["s"])) == [(20, 1)]
        with instance.subscribe("totals") as batches:
            first = until(batches, 4)
            assert (first[0].lower, folded(first)) == (Antichain.of(0), {(1, 2, 40): 1, (2, 1, 20): 1})
            append(log, (4, -1, 1, 10), (5, 1, 3, 1), upper=6)
            assert folded([*first, *until(batches, 6)]) == {(1, 1, 30): 1, (2, 1, 20): 1, (3, 1, 1): 1}
        assert rows(instance.peek("totals", as_of=5)) == [(1, 1, 30, 1), (2, 1, 20, 1), (3, 1, 1, 1)]
        assert instance.show("errors").num_rows == 0


def test_what_is_maintained_is_there_after_a_restart(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.maintain("big", "SELECT k FROM totals WHERE s > 25", str(tmp_path / "big"))
        instance.configure(hydration_limit=7, steps_at_once=1)
        instance.await_frontier("big", 3)
        with instance.subscribe("big"):
            pass
    append(log, (4, 1, 2, 9), upper=5)
    with handle(tmp_path / "instance") as instance:
        assert sorted(instance.show("exports")["export_id"].to_pylist()) == ["big", "totals"]
        assert instance.await_frontier("big", 4) == Antichain.of(5)
        assert rows(instance.peek("big")) == [(1, 1), (2, 1)]
        assert rows(open_log(tmp_path / "big").snapshot(4)) == [(1, 1), (2, 1)]
        assert rows(open_log(tmp_path / "big").snapshot(3)) == [(1, 1)]
        with pytest.raises(InvalidUsageError):
            instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        with pytest.raises(InvalidUsageError):
            instance.drop("totals")  # somebody imports it
        instance.drop("big")
        instance.drop("totals")
    with handle(tmp_path / "instance") as instance:
        assert instance.show("exports").num_rows == 0


def test_an_index_of_logs_that_begin_at_different_times(tmp_path: Path) -> None:
    logs = {
        name: create_log(tmp_path / name, pa.schema([("k", pa.int64())]), minimum=(least,), kind="collection")
        for name, least in (("later", 3), ("first", -4))
    }
    writers = {name: log.writer(owner="test") for name, log in logs.items()}
    writers["first"].append(pa.table({"_time": [-4, 0], "_diff": [1, 1], "k": [1, 1]}), advance_to=3)
    writers["later"].advance([4])
    view = "SELECT k, count(*) AS n FROM (SELECT k FROM later UNION ALL SELECT k FROM first) GROUP BY k"
    with handle(tmp_path / "instance") as instance:
        instance.index("counts", view, imports={name: log.path for name, log in logs.items()}, key="k")
        assert instance.await_frontier("counts", 2) == Antichain.of(3)
    writers["later"].append(pa.table({"_time": [4], "_diff": [1], "k": [1]}), advance_to=6)
    writers["first"].append(pa.table({"_time": [3, 5], "_diff": [1, -1], "k": [1, 1]}), advance_to=6)
    with handle(tmp_path / "instance") as instance:
        assert instance.await_frontier("counts", 5) == Antichain.of(6)
        assert [rows(instance.peek("counts", as_of=time, keys={"k": [1]})) for time in (3, 4, 5)] == [
            [(1, 3, 1)], [(1, 4, 1)], [(1, 3, 1)]
        ]  # fmt: skip


def test_an_index_of_what_was_looked_up_before_it_began(tmp_path: Path, log: Any) -> None:
    events = create_log(tmp_path / "events", pa.schema([("k", pa.int64())]), minimum=(0,))
    events.writer(owner="test").append(pa.table({"_time": [1, 2, 3], "k": [1, 2, 1]}), advance_to=4)
    view = "SELECT k, v FROM events ASOF JOIN (SELECT k, v FROM orders WHERE v < 30) USING (k)"
    with handle(tmp_path / "instance") as instance:
        imports = {"events": events.path, "orders": log.path}
        made = instance.index("sums", f"SELECT k, sum(v) AS s FROM ({view}) GROUP BY k", imports=imports, key="k")
        assert made.as_of == Antichain.of(3)
        instance.await_frontier("sums", 3)
        assert rows(instance.peek("sums")) == [(1, 20, 1), (2, 20, 1)]


def test_id_that_was_dropped_may_be_made_again_from_something(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("it", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("it", 3)
        instance.drop("it")
        with pytest.raises(MissingError):
            instance.peek("it")
        instance.index("it", "SELECT v FROM orders", imports={"orders": log.path}, key="v")
        instance.await_frontier("it", 3)
        assert rows(instance.peek("it", keys={"v": [30]})) == [(30, 1)]


def test_older_start_that_is_paused_between_job_and_append(tmp_path: Path, log: Any) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def paused(name: str, options: Any) -> Any:
        run = tasks(name, options)

        def job(plans: Sequence[OutputPlan], todo: Sequence[Task]) -> list[TaskResult]:
            found: list[TaskResult] = run(plans, todo)
            if any(task.lower != Antichain.of(0) for task in todo):
                reached.set()
                assert go_on.wait(60)
            return found

        return job

    old = handle(tmp_path / "instance", runtime=runtime(tasks=paused))
    old.maintain("totals", TOTALS, str(tmp_path / "out"), imports={"orders": log.path})
    old.await_frontier("totals", 3)
    append(log, (4, 1, 1, 1), upper=5)
    assert reached.wait(60)
    with handle(tmp_path / "instance") as new:
        at = open_log(tmp_path / "out").core.version
        go_on.set()
        with pytest.raises(OwnershipError, match="taken over by Fence"):
            old.await_frontier("totals", 4)
        old.close()
        new.await_frontier("totals", 4)
        assert rows(open_log(tmp_path / "out").snapshot(4)) == [(1, 3, 41, 1), (2, 1, 20, 1)]
        assert open_log(tmp_path / "out").core.version >= at
    with pytest.raises(OwnershipError):
        old.index("more", TOTALS, imports={"orders": log.path})


def test_followers_answer_as_the_leader_and_one_takes_over(tmp_path: Path, log: Any) -> None:
    leader = handle(tmp_path / "instance")
    leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
    leader.await_frontier("totals", 3)
    with handle(tmp_path / "instance", read_only=True) as one, handle(tmp_path / "instance", read_only=True) as two:
        followers: list[Handle] = [one, two]
        for follower in followers:
            assert follower.await_frontier("totals", 3) == Antichain.of(4)
            with pytest.raises(OwnershipError, match="only follows"):
                follower.drop("totals")
        append(log, (4, 1, 1, 1), upper=5)
        leader.maintain("big", "SELECT k FROM totals WHERE s > 25", str(tmp_path / "big"))
        leader.await_frontier("big", 4)
        for follower in followers:
            follower.await_frontier("totals", 4)
            for at in (3, 4):
                assert rows(follower.peek("totals", as_of=at)) == rows(leader.peek("totals", as_of=at))
            with follower.subscribe("totals") as batches:
                assert folded(until(batches, 5)) == {(1, 3, 41): 1, (2, 1, 20): 1}
        two.allow_writes()
        append(log, (5, 1, 2, 80), upper=6)
        assert two.await_frontier("big", 5) == Antichain.of(6)
        with pytest.raises(OwnershipError, match="taken over by Fence"):
            leader.await_frontier("big", 5)
        leader.close()
        assert rows(one.peek("totals", as_of=5)) == rows(two.peek("totals", as_of=5)) == [(1, 3, 41, 1), (2, 2, 100, 1)]
        two.drop("big")
        with pytest.raises(MissingError):
            two.peek("big")


def test_copy_of_an_instance_is_refused_and_a_move_is_not(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.maintain("totals", TOTALS, str(tmp_path / "out"), imports={"orders": log.path})
        instance.await_frontier("totals", 3)
    shutil.copytree(tmp_path / "instance", tmp_path / "copy")
    with pytest.raises(OwnershipError, match="say moved=True"):
        handle(tmp_path / "copy")
    with handle(tmp_path / "instance") as instance:
        instance.await_frontier("totals", 3)
    shutil.rmtree(tmp_path / "instance")
    with pytest.raises(RolledBackError, match="'totals': 2"):  # it was started once more since it was copied
        handle(tmp_path / "copy", moved=True)
    with handle(tmp_path / "copy", moved=True, adopts={"totals": 2}) as instance:
        append(log, (4, 1, 9, 9), upper=5)
        instance.await_frontier("totals", 4)


def test_failure_of_one_dataflow_is_shown_and_the_others_run(tmp_path: Path, log: Any) -> None:
    other = orders(tmp_path / "other", (1, 1, 1, 1), upper=2)
    with handle(tmp_path / "instance") as instance:
        instance.index("good", TOTALS, imports={"orders": log.path}, key="k")
        instance.index("bad", TOTALS, imports={"orders": other.path}, key="k")
        instance.await_frontier("bad", 1)
        (tmp_path / "other").rename(tmp_path / "gone")  # at once: the instance writes below it that it reads there
        orders(tmp_path / "other", (1, 1, 1, 1), (5, 1, 1, 1), upper=9)
        append(log, (4, 1, 1, 1), upper=5)
        assert instance.await_frontier("good", 4) == Antichain.of(5)
        with pytest.raises(WaitTimeoutError) as caught:
            instance.await_frontier("bad", 8, timeout_s=2)
        assert "it has failed" in str(caught.value)
        assert instance.show("errors")["export_id"].to_pylist() == ["bad"]
    with handle(tmp_path / "instance") as instance:
        instance.await_frontier("good", 4)
        with pytest.raises(WaitTimeoutError, match="expected "):
            instance.await_frontier("bad", 8, timeout_s=1)


def test_requests_of_other_processes_are_done_once_and_answered(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        requests = Requests(instance.directory)
        asked = {"id": "totals", "query": TOTALS, "imports": {"orders": log.path}, "key": ["k"]}
        requests.ask("index", asked)
        instance.await_frontier("totals", 3)
        with pytest.raises((InvalidUsageError, MissingError), match="totals"):
            requests.ask("index", asked)
        requests.ask("drop", {"id": "totals"})
        with pytest.raises((InvalidUsageError, MissingError), match="totals"):
            requests.ask("drop", {"id": "totals"})
        with pytest.raises(InvalidUsageError):
            requests.ask("close", {})
    with pytest.raises(WaitTimeoutError, match="start the instance"):
        requests.ask("index", asked, timeout_s=0.2)
    with handle(tmp_path / "instance") as instance:
        deadline = threading.Event()
        for _ in range(200):
            if instance.show("exports").num_rows:
                break
            deadline.wait(0.05)
        assert instance.show("exports")["export_id"].to_pylist() == ["totals"]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda i, p: i.index("x", "SELECT nothing FROM orders", imports={"orders": p}), TimelyError),
        (lambda i, p: i.index("x", "SELECT k FROM orders ORDER BY k", imports={"orders": p}), InvalidUsageError),
        (lambda i, p: i.index("x", "SELECT k FROM orders"), TimelyError),
        (lambda i, p: i.index("x", TOTALS, imports={"orders": p + "-none"}), TimelyError),
        (lambda i, p: i.index("", TOTALS, imports={"orders": p}), InvalidUsageError),
        (lambda i, p: i.index("x", '{"op": "magic"}', imports={"orders": p}), InvalidUsageError),
        (lambda i, p: i.peek("none"), MissingError),
        (lambda i, p: i.drop("none"), MissingError),
        (lambda i, p: i.allow_compaction("none", 4), MissingError),
        (lambda i, p: i.configure(hydration_limit="many"), InvalidUsageError),
        (lambda i, p: i.show("none"), TimelyError),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path: Path, log: Any, call: Any, kind: type[TimelyError]) -> None:
    with handle(tmp_path / "instance") as instance:
        before = CommandLog.at(instance.directory.commands, create=False).rows()
        with pytest.raises(kind) as caught:
            call(instance, log.path)
        assert caught.value.message.startswith("could not ")
        assert CommandLog.at(instance.directory.commands, create=False).rows() == before
        assert instance.error is None
        instance.index("x", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("x", 3)


def test_index_by_a_column_that_is_not_there_is_shown(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        with pytest.raises(SchemaMismatchError, match="no column 'none'"):
            instance.index("x", TOTALS, imports={"orders": log.path}, key="none")
        assert instance.show("exports").num_rows == 0


def test_index_forgets_what_it_was_allowed_to(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        append(log, (4, 1, 1, 1), (5, 1, 1, 1), upper=6)
        instance.await_frontier("totals", 5)
        instance.allow_compaction("totals", 5)
        with pytest.raises(SinceViolationError):
            instance.peek("totals", as_of=3)
        assert rows(instance.peek("totals", as_of=5)) == [(1, 4, 42, 1), (2, 1, 20, 1)]
    with handle(tmp_path / "instance") as instance:
        instance.await_frontier("totals", 5)
        assert rows(instance.peek("totals")) == [(1, 4, 42, 1), (2, 1, 20, 1)]


def test_input_that_is_replaced_while_the_instance_is_stopped(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
    shutil.rmtree(log.path)
    orders(tmp_path / "orders", (1, 1, 7, 7), upper=9)
    heard: list[Response] = []
    with handle(tmp_path / "instance", on_response=heard.append) as instance:
        with pytest.raises(WaitTimeoutError):
            instance.await_frontier("totals", 8, timeout_s=1)
        assert "expected" in instance.show("errors")["text"].to_pylist()[0]
    assert DataLossError.__name__ is not None


def test_only_what_was_dropped_is_deleted(tmp_path: Path, log: Any) -> None:
    with handle(tmp_path / "instance") as leader:
        leader.index("kept", TOTALS, imports={"orders": log.path}, key="k")
        leader.index("gone", TOTALS, imports={"orders": log.path}, key="k")
        leader.await_frontier("gone", 3)
        leader.await_frontier("kept", 3)
        with handle(tmp_path / "instance", read_only=True) as follower:
            follower.await_frontier("kept", 3)
            follower.allow_writes()
            follower.await_frontier("kept", 3)
            follower.drop("gone")
        leader.close()
    with handle(tmp_path / "instance"):
        pass  # a step of the older start may have left a file behind, where nothing was any more
    folders = [each.name.rpartition("-")[0] for each in (tmp_path / "instance" / "collections").iterdir()]
    assert folders == ["kept"]
    with handle(tmp_path / "instance") as instance:
        assert rows(instance.peek("kept")) == [(1, 2, 40, 1), (2, 1, 20, 1)]
