"""Continual tasks as dataflows of an instance: what they write, from when on, and what becomes of them."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.cli import main
from spark_timely.compute.command import CreateDataflow, Export
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.handle import Handle
from spark_timely.continual.plan import StepPlan, deletes, newest
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import InvalidUsageError, OwnershipError, SinceViolationError, TimelyError, WaitTimeoutError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import parse_duration
from tests.faults.harness import long_lane, wait_until
from tests.unit.compute.bodies import COPIES, JOINS, Stand
from tests.unit.compute.instances import append, handle, orders, rows, runtime


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


@pytest.fixture
def rates(tmp_path: Path) -> Log:
    return orders(tmp_path / "rates", (1, 1, 1, 2), (1, 1, 2, 3), (2, -1, 2, 3), (2, 1, 2, 5), upper=4)


def run(folder: Path, stand: Stand | None = None, **options: Any) -> Handle:
    def retain(log: Log, consumer: str) -> RetainedPosition:
        return RetainedPosition(partial(open_log, log.path), consumer, parse_duration("1 hour"))

    made = runtime(task_bodies=stand or Stand(), retain=retain)
    return handle(folder / "instance", runtime=made, **options)


def written(path: Any) -> Counter[tuple[int, int, int]]:
    """Return what a stream log holds: (time, k, v), and how often."""
    table = open_log(path).messages()
    return Counter(zip(*(table[name].to_pylist() for name in ("_time", "k", "v")), strict=True))


def commands(instance: Handle) -> list[tuple[int, str]]:
    return CommandLog.at(instance.directory.commands, create=False).rows()


def test_task_writes_what_it_gives_at_each_time(tmp_path: Path, log: Log, rates: Log) -> None:
    with run(tmp_path) as instance:
        made = instance.continual_task(
            "eur", JOINS, inputs={"orders": log.path}, references={"rates": rates.path}, into=tmp_path / "eur"
        )
        assert made.as_of == Antichain.of(0)
        assert instance.await_frontier("eur", 3) == Antichain.of(4)
        assert written(tmp_path / "eur") == Counter([(1, 1, 20), (2, 2, 100), (3, 1, 60)])
        append(rates, (4, -1, 1, 2), (4, 1, 1, 7), upper=6)
        append(log, (4, 1, 1, 1), upper=6)
        instance.await_frontier("eur", 5)
        assert written(tmp_path / "eur")[4, 1, 7] == 1
        # A log has no contents, but what it holds can be added up.
        assert rows(instance.peek("eur", as_of=2, select=["v"])) == [(20, 1), (100, 1)]
        assert instance.show("errors").num_rows == 0


def test_task_continues_after_a_restart_and_writes_no_time_twice(tmp_path: Path, log: Log, rates: Log) -> None:
    asked: dict[str, Any] = {"inputs": {"orders": log.path}, "references": {"rates": rates.path}}
    with run(tmp_path) as instance:
        first = instance.continual_task("eur", JOINS, into=tmp_path / "eur", **asked)
        instance.await_frontier("eur", 3)
    append(rates, (4, 1, 3, 100), upper=6)
    append(log, (4, 1, 3, 1), (5, 1, 1, 1), upper=6)
    epochs = [fence_of(tmp_path / "eur")]
    with run(tmp_path) as instance:
        assert instance.await_frontier("eur", 5) == Antichain.of(6)
        (again,) = [each.dataflow for each in instance._driver.instance.running()]
        assert (again.plan, again.exports, again.imports) == (first.plan, first.exports, first.imports)
        assert instance.show("hydration").to_pylist() == [{"export_id": "eur", "state": "hydrated", "hydrated": True}]
    epochs.append(fence_of(tmp_path / "eur"))
    assert written(tmp_path / "eur") == Counter([(1, 1, 20), (2, 2, 100), (3, 1, 60), (4, 3, 100), (5, 1, 2)])
    assert epochs == sorted(set(epochs))


def fence_of(path: Path) -> int:
    """Return the epoch that the newest note of an output has."""
    state = open_log(path).core.stream("main")
    assert state is not None
    assert state.note.output is not None
    assert state.note.output.fence is not None
    return state.note.output.fence.epoch


def test_older_start_paused_between_job_and_append_is_refused(tmp_path: Path, log: Log) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def pause(plan: StepPlan) -> None:
        if 4 in plan.times:
            reached.set()
            assert go_on.wait(60)

    old = run(tmp_path, Stand(written=pause))
    old.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy")
    old.await_frontier("copy", 3)
    append(log, (4, 1, 7, 7), upper=5)
    assert reached.wait(60)
    with run(tmp_path) as new:
        # It has the output already, and has not written the time yet or has: either way it is there once.
        assert new.await_frontier("copy", 4) == Antichain.of(5)
        at, epoch = open_log(tmp_path / "copy").core.version, fence_of(tmp_path / "copy")
        go_on.set()
        with pytest.raises(OwnershipError, match="taken over by Fence"):
            old.await_frontier("copy", 9)
        old.close()
        assert (open_log(tmp_path / "copy").core.version, fence_of(tmp_path / "copy")) == (at, epoch)
        assert written(tmp_path / "copy") == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 30), (4, 7, 7)])


@pytest.mark.parametrize("when", ["bodies cannot be had", "body cannot be looked at"])
def test_fence_alone_keeps_an_older_start_from_appending(tmp_path: Path, log: Log, when: str) -> None:
    """The upper is what it was: nobody has written the time meanwhile."""
    reached, go_on = threading.Event(), threading.Event()

    def pause(plan: StepPlan) -> None:
        if 4 in plan.times:
            reached.set()
            assert go_on.wait(60)

    old = run(tmp_path, Stand(written=pause))
    old.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy")
    old.await_frontier("copy", 3)
    append(log, (4, 1, 7, 7), upper=5)
    assert reached.wait(60)
    # It has claimed the output, and can write nothing as there is no session.
    lost = RuntimeError("no session")
    stand = Stand(broken=lost) if when == "bodies cannot be had" else Stand(unready=lost)
    with run(tmp_path, stand) as new:
        until(lambda: "no session" in new.why("copy"))
        go_on.set()
        with pytest.raises(OwnershipError):
            old.await_frontier("copy", 4)
        old.close()
        assert open_log(tmp_path / "copy").frontier() == Antichain.of(4)
        assert written(tmp_path / "copy") == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 30)])
        stand.broken = stand.unready = None
        new._driver.try_again()
        new.await_frontier("copy", 4)
    assert written(tmp_path / "copy") == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 30), (4, 7, 7)])


def test_bodies_that_cannot_be_had_for_a_while_lose_nothing(tmp_path: Path, log: Log) -> None:
    stand = Stand()
    with run(tmp_path, stand) as instance:
        instance.continual_task("copy", COPIES, inputs={"orders": log.path})
        instance.await_frontier("copy", 3)
        stand.broken = RuntimeError("no session")
        append(log, (4, 1, 7, 7), upper=5)
        until(lambda: "no session" in instance.why("copy"))
        assert instance.frontier("copy") == Antichain.of(4)
        stand.broken = None
        instance._driver.try_again()
        instance.await_frontier("copy", 4)
        assert instance.show("errors").num_rows == 0
        path = instance._driver.state.path_of("copy")
    assert written(path) == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 30), (4, 7, 7)])


def test_body_that_fails_concerns_its_task_alone(tmp_path: Path, log: Log) -> None:
    with run(tmp_path, Stand(fails_at={4})) as instance:
        instance.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy")
        instance.index("all", "SELECT k, v FROM orders", imports={"orders": log.path}, key="k")
        append(log, (4, 1, 7, 7), upper=5)
        assert instance.await_frontier("all", 4) == Antichain.of(5)
        with pytest.raises(WaitTimeoutError, match="found what it cannot do"):
            instance.await_frontier("copy", 4, timeout_s=2)
        assert instance.frontier("copy") == Antichain.of(4)
        assert instance.show("errors")["export_id"].to_pylist() == ["copy"]
    with run(tmp_path) as instance:
        instance.await_frontier("copy", 4)
        assert written(tmp_path / "copy")[4, 7, 7] == 1


def test_output_is_imported_by_its_id(tmp_path: Path, log: Log) -> None:
    counts = "SELECT k, count(*) AS n FROM copy GROUP BY k"
    with run(tmp_path) as instance:
        instance.continual_task("copy", COPIES, inputs={"orders": log.path})
        instance.index("counts", counts, key="k")
        instance.await_frontier("counts", 3)
        with pytest.raises(InvalidUsageError, match="found it imported for 'counts'"):
            instance.drop("copy")
        instance.continual_task("copy of it", COPIES, inputs={"orders": "copy"}, into=tmp_path / "twice")
        instance.await_frontier("copy of it", 3)
    append(log, (4, 1, 1, 1), upper=5)
    with run(tmp_path) as instance:
        instance.await_frontier("counts", 4)
        instance.await_frontier("copy of it", 4)
        assert rows(instance.peek("counts")) == [(1, 3, 1), (2, 1, 1)]
        assert written(tmp_path / "twice") == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 30), (4, 1, 1)])


def test_what_a_task_writes_is_subscribed_to(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        instance.continual_task("copy", COPIES, inputs={"orders": log.path})
        found: Counter[tuple[int, int]] = Counter()
        with instance.subscribe("copy") as batches:
            append(log, (4, 1, 1, 10), upper=5)
            upper = Antichain.of(0)
            while upper.less_equal(4):
                batch = batches.next_batch(timeout_s=30)
                assert batch is not None
                assert isinstance(batch.updates, pa.Table)
                found.update(zip(batch.updates["k"].to_pylist(), batch.updates["v"].to_pylist(), strict=True))
                upper = batch.upper
        assert found == Counter({(1, 10): 2, (2, 20): 1, (1, 30): 1})


@pytest.mark.parametrize("seed", range(60 if long_lane() else 4))
def test_restarts_anywhere_change_nothing_of_what_is_written(tmp_path: Path, seed: int) -> None:
    """Against what a program of some lines gives of all that came."""
    rng = random.Random(seed)
    log, rates = orders(tmp_path / "orders", upper=0), orders(tmp_path / "rates", upper=0)
    asked: dict[str, Any] = {"inputs": {"orders": log.path}, "references": {"rates": rates.path}}
    ordered, rated = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    at, behind = 0, 0
    instance = run(tmp_path)
    instance.continual_task("eur", JOINS, into=tmp_path / "eur", **asked)
    for _ in range(8):
        upper = at + rng.randint(1, 4)
        rows_ = [(rng.randrange(at, upper), rng.randrange(3), rng.randint(1, 9)) for _ in range(rng.randint(0, 5))]
        append(log, *((time, 1, k, v) for time, k, v in rows_), upper=upper)
        ordered, at = ordered + rows_, upper
        if rng.random() < 0.6:
            rows_ = [(rng.randrange(behind, upper), rng.randrange(3), rng.randint(1, 3)) for _ in range(2)] * (
                behind < upper
            )
            append(rates, *((time, 1, k, v) for time, k, v in rows_), upper=max(upper, behind))
            rated, behind = rated + rows_, max(upper, behind)
        if rng.random() < 0.5:
            instance.close()
            instance = run(tmp_path)
        elif rng.random() < 0.3:
            instance, before = run(tmp_path), instance
            before.close()
    append(rates, upper=max(at, behind))
    with instance:
        instance.await_frontier("eur", at - 1)
        assert instance.show("errors").num_rows == 0
    expected = Counter(
        (time, k, v * rate) for time, k, v in ordered for since, key, rate in rated if key == k and since <= time
    )
    assert written(tmp_path / "eur") == expected


@pytest.mark.parametrize("most", [1, None])
def test_bytes_of_a_step_are_as_configured(tmp_path: Path, log: Log, most: int | None) -> None:
    steps: list[int] = []
    for time in range(4, 9):  # a file each
        append(log, (time, 1, time, time), upper=time + 1)
    with run(tmp_path, Stand(written=lambda plan: steps.append(len(plan.times)))) as instance:
        instance.configure(max_bytes_per_step=most)
        instance.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy")
        instance.await_frontier("copy", 8)
    assert sum(steps) == 8
    assert (max(steps) <= 3) == (most == 1)  # the first file has three times
    assert sum(written(tmp_path / "copy").values()) == 8


def test_follower_sees_what_a_task_writes_and_takes_it_over(tmp_path: Path, log: Log) -> None:
    leader = run(tmp_path)
    leader.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy")
    leader.await_frontier("copy", 3)
    with run(tmp_path, read_only=True) as follower:
        assert follower.await_frontier("copy", 3) == Antichain.of(4)
        assert rows(follower.peek("copy", as_of=3)) == rows(leader.peek("copy", as_of=3))
        with pytest.raises(OwnershipError, match="only follows"):
            follower.continual_task("more", COPIES, inputs={"orders": log.path})
        append(log, (4, 1, 7, 7), upper=5)
        leader.await_frontier("copy", 4)
        assert follower.await_frontier("copy", 4) == Antichain.of(5)
        follower.allow_writes()
        append(log, (5, 1, 8, 8), upper=6)
        follower.await_frontier("copy", 5)
        with pytest.raises(OwnershipError):
            leader.await_frontier("copy", 9)
        leader.close()
    assert written(tmp_path / "copy") == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 30), (4, 7, 7), (5, 8, 8)])


def test_follower_needs_nothing_that_evaluates_bodies(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as leader:
        leader.continual_task("copy", COPIES, inputs={"orders": log.path})
        leader.await_frontier("copy", 3)
        with handle(tmp_path / "instance", read_only=True) as follower:
            assert follower.await_frontier("copy", 3) == Antichain.of(4)


# From when on --------------------------------------------------------------------------------------


def as_of(instance: Handle, id_: str) -> Antichain:
    return instance._driver.instance.collection(id_).as_of


@pytest.mark.parametrize("allowed", [None, 9])
def test_rule_2_as_of_is_what_was_recorded_until_it_is_passed(tmp_path: Path, log: Log, allowed: int | None) -> None:
    with run(tmp_path) as instance:
        made = instance.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy", as_of=6)
        assert (made.as_of, as_of(instance, "copy")) == (Antichain.of(6), Antichain.of(6))
        # The first append is made as soon as it is there, before anything is complete.
        assert open_log(tmp_path / "copy").frontier() == Antichain.of(6)
        if allowed is not None:
            instance.allow_compaction("copy", allowed)
    with run(tmp_path) as instance:
        assert as_of(instance, "copy") == Antichain.of(6)
        assert instance.show("hydration")["hydrated"].to_pylist() == [False]
        append(log, (5, 1, 5, 5), (6, 1, 6, 6), (7, 1, 7, 7), upper=8)
        instance.await_frontier("copy", 7)
        assert written(tmp_path / "copy") == Counter([(7, 7, 7)])
    with run(tmp_path) as instance:
        assert instance.await_frontier("copy", 7) == Antichain.of(8)


def test_latest_is_settled_when_the_task_is_created(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        made = instance.continual_task(
            "copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy", as_of="latest", snapshot=True
        )
        assert made.as_of == Antichain.of(3)
        assert '"as_of":3' in made.plan
        append(log, (4, 1, 7, 7), upper=5)
        instance.await_frontier("copy", 4)
    assert written(tmp_path / "copy") == Counter([(3, 1, 10), (3, 2, 20), (3, 1, 30), (4, 7, 7)])


@pytest.mark.parametrize("as_of", ["latest", "earliest"])
def test_nothing_is_complete_yet_and_nothing_is_skipped(tmp_path: Path, as_of: Any) -> None:
    log = orders(tmp_path / "orders", upper=0)
    with run(tmp_path) as instance:
        made = instance.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy", as_of=as_of)
        assert made.as_of == Antichain.of(0)
        append(log, (0, 1, 1, 1), upper=1)
        instance.await_frontier("copy", 0)
    assert written(tmp_path / "copy") == Counter([(0, 1, 1)])


def test_earliest_begins_where_an_input_has_forgotten(tmp_path: Path, log: Log) -> None:
    log.allow_compaction([2])
    with run(tmp_path) as instance:
        made = instance.continual_task("copy", COPIES, inputs={"orders": log.path}, into=tmp_path / "copy")
        assert made.as_of == Antichain.of(2)
        instance.await_frontier("copy", 3)
        with pytest.raises(SinceViolationError, match=r"since=\[2\] in log"):
            instance.continual_task("early", COPIES, inputs={"orders": log.path}, as_of=1)
        assert not instance.has("early")
    assert written(tmp_path / "copy") == Counter([(3, 1, 30)])


@pytest.mark.parametrize("as_of", ["earliest", "latest", 5, 6])
@pytest.mark.parametrize("by", ["id", "path"])
def test_rule_1_what_is_not_written_is_read_from_its_as_of_on(tmp_path: Path, log: Log, as_of: Any, by: str) -> None:
    """What it contained before is not known: nothing is written there as if it had been empty."""
    rates = orders(tmp_path / "rates", (1, 1, 1, 2), upper=2)
    with run(tmp_path) as instance:
        instance.maintain(
            "held", "SELECT k, v FROM rates", str(tmp_path / "held"), imports={"rates": rates.path}, as_of=5
        )
        reference = "held" if by == "id" else str(tmp_path / "held")
        made = instance.continual_task(
            "eur",
            JOINS,
            inputs={"orders": log.path},
            references={"rates": reference},
            into=tmp_path / "eur",
            as_of=as_of,
        )
        assert made.as_of == Antichain.of(max(as_of, 5) if isinstance(as_of, int) else 5)
        assert [each.export for each in made.imports] == [None, "held"]
        append(log, (5, 1, 1, 50), (6, 1, 1, 60), (7, 1, 1, 70), upper=8)
        append(rates, upper=8)
        instance.await_frontier("eur", 7)
        assert instance.show("errors").num_rows == 0
    begun = as_of if isinstance(as_of, int) else 5
    assert written(tmp_path / "eur") == Counter((time, 1, 20 * time) for time in (6, 7) if time > begun)


def test_beginning_that_the_dataflow_says_otherwise_is_refused(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        made = instance.continual_task("a", COPIES, inputs={"orders": log.path}, as_of=2)
        earliest = node()
        for plan, at in ((made.plan, 1), (made.plan, 3), (earliest, 2)):
            flow = replace(made, exports=(export(id_="b"),), plan=plan, as_of=Antichain.of(at))
            with pytest.raises(InvalidUsageError, match="of a task that begins at"):
                instance.send(CreateDataflow(flow))
            assert not instance.has("b")
        instance.send(CreateDataflow(replace(made, exports=(export(id_="b"),), plan=earliest, as_of=Antichain.of(0))))


def test_index_that_began_later_is_read_from_there_on(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        instance.index("all", "SELECT k, v FROM orders", imports={"orders": log.path})  # as of 3
        instance.await_frontier("all", 3)
        with pytest.raises(SinceViolationError, match=r"'all' can be read from Antichain\.of\(3\) on"):
            instance.continual_task("copy", COPIES, inputs={"orders": "all"}, as_of=2)
        made = instance.continual_task("copy", COPIES, inputs={"orders": "all"}, into=tmp_path / "copy")
        assert made.as_of == Antichain.of(3)
        append(log, (4, 1, 4, 4), upper=5)
        instance.await_frontier("copy", 4)
    assert written(tmp_path / "copy") == Counter([(4, 4, 4)])


def test_output_that_is_there_is_continued_by_the_same_task(tmp_path: Path, log: Log) -> None:
    asked: dict[str, Any] = {"inputs": {"orders": log.path}, "into": tmp_path / "copy", "as_of": 1}
    with run(tmp_path) as instance:
        instance.continual_task("copy", COPIES, **asked)
        instance.await_frontier("copy", 3)
        until(lambda: len(log_of(log).retainers()) == 1)  # the instance lets go once the task retains by itself
        (consumer,) = log_of(log).retainers()
        instance.drop("copy")
        until(lambda: consumer not in log_of(log).retainers())
        append(log, (4, 1, 7, 7), upper=5)
        with pytest.raises(TimelyError, match="plan"):  # another body in the same log
            instance.continual_task("copy", JOINS, references={"rates": log.path}, **asked)
        assert instance.continual_task("copy", COPIES, **asked).as_of == Antichain.of(3)
        instance.await_frontier("copy", 4)
        with pytest.raises(TimelyError):  # the log is the other task's
            instance.continual_task("other", COPIES, **asked)
    assert written(tmp_path / "copy") == Counter([(2, 2, 20), (3, 1, 30), (4, 7, 7)])


def log_of(log: Log) -> Log:
    log.refresh()
    return log


def until(found: Callable[[], bool]) -> None:
    wait_until(found, deadline_s=60, what="what was waited for")


# Seeing --------------------------------------------------------------------------------------------


def test_why_names_what_holds_the_output_back(tmp_path: Path, log: Log, rates: Log) -> None:
    with run(tmp_path) as instance:
        instance.continual_task(
            "eur", JOINS, inputs={"orders": log.path}, references={"rates": rates.path}, into=tmp_path / "eur"
        )
        instance.await_frontier("eur", 3)
        append(log, upper=6)
        assert instance.await_frontier("eur", 5) == Antichain.of(6)  # nothing is to be written: rates hold nothing back
        assert "import 'orders' is at [6]" in instance.why("eur")
        assert "rates" not in instance.why("eur")
        append(log, (7, 1, 1, 1), upper=9)
        until(lambda: instance.frontier("eur") == Antichain.of(7))
        until(lambda: "import 'rates' is at [4]" in instance.why("eur"))
        assert "import 'orders'" not in instance.why("eur")
        assert instance.show("operators").sort_by("operator").to_pylist() == [
            {"dataflow_id": 1, "operator": "orders", "kind": "import", "inputs": ""},
            {"dataflow_id": 1, "operator": "rates", "kind": "import", "inputs": ""},
            {"dataflow_id": 1, "operator": "task_3", "kind": "task", "inputs": "orders,rates"},
        ]
        assert sorted(instance.show("import_frontiers")["import_name"].to_pylist()) == ["orders", "rates"]


def test_roles_are_those_of_a_continual_task(tmp_path: Path, log: Log, rates: Log) -> None:
    with run(tmp_path) as instance:
        made = instance.continual_task(
            "eur", JOINS, inputs={"orders": deletes(log.path)}, references={"rates": newest(rates)}
        )
        assert '"inputs":{"orders":"deletes"}' in made.plan
        assert '"references":{"rates":"newest"}' in made.plan
        append(log, (4, -1, 1, 10), upper=9)
        instance.await_frontier("eur", 8)  # nothing waits for the rates
        path = instance._driver.state.path_of("eur")
    assert written(path) == Counter([(4, 1, 20)])


def test_dropped_task_lets_go_of_what_it_retained(tmp_path: Path, log: Log) -> None:
    with run(tmp_path) as instance:
        instance.continual_task("copy", COPIES, inputs={"orders": log.path})
        instance.await_frontier("copy", 3)
        assert log_of(log).retainers()
        instance.drop("copy")
        until(lambda: not log_of(log).retainers())
    with run(tmp_path) as instance:
        assert instance.show("exports").num_rows == 0


# Refused -------------------------------------------------------------------------------------------


def node(**parts: Any) -> str:
    return json.dumps({"op": "task", "sql": COPIES, "inputs": ["orders"], **parts})


def export(kind: Any = "log", id_: str = "x") -> Export:
    return Export(id_, kind, json.dumps({"folder": f"collections/{id_}-1"}))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda i, p: i.continual_task("x", COPIES, inputs={}), "found no inputs"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={}, references={"orders": p}), "found no inputs"),
        (lambda i, p: i.continual_task("x", "SELECT", inputs={"orders": p}), "task 'x'"),
        (lambda i, p: i.continual_task("x", "SELECT now() FROM orders", inputs={"orders": p}), "now"),
        (lambda i, p: i.continual_task("x", "SELECT * FROM others", inputs={"orders": p}), "others"),
        (lambda i, p: i.continual_task("x", "SELECT k FROM orders", inputs={"orders": p}), "nothing stands for"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p}, references={"orders": p}), "'orders' as an"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p + "-none"}), "none"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": 5}), "'orders'=5"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"output": p}), "output"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p}, into=p), "which it imports"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p}, as_of="soon"), "soon"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p}, as_of=(1 << 63) - 1), "there is no time"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": p}, expect={"e": ("v > 0", "hope")}), "hope"),
        (lambda i, p: i.continual_task("", COPIES, inputs={"orders": p}), "''"),
        (lambda i, p: i.continual_task("x", COPIES, inputs={"orders": f"{i.directory.path}/commands"}), "directory"),
        (lambda i, p: i.dataflow("x", node(), [export("index")], imports={"orders": p}), "'index'"),
        (lambda i, p: i.dataflow("x", node(), [export("subscribe")], imports={"orders": p}), "'subscribe'"),
        (lambda i, p: i.copy_to(node(), f"{p}-copy", imports={"orders": p}), "'copy-to'"),
        (lambda i, p: i.dataflow("x", node(), [export(), export(id_="y")], imports={"orders": p}), "'log', 'log'"),
        (lambda i, p: i.dataflow("x", node(), [export()], imports={"orders": p}, as_of=2), "its as_of is its own"),
        (lambda i, p: i.dataflow("x", node(), [export()], imports={"orders": p}, up_to=9), "up_to"),
        (
            lambda i, p: i.index("x", f'{{"op":"distinct","of":{node()}}}', imports={"orders": p}),
            "continual task at plan.of",
        ),
        (lambda i, p: i.subscribe(node(), imports={"orders": p}), "'subscribe'"),
    ],
)
def test_refused_task_changes_nothing(tmp_path: Path, log: Log, call: Any, told: str) -> None:
    with run(tmp_path) as instance:
        before = commands(instance)
        with pytest.raises(TimelyError) as caught:
            call(instance, log.path)
        assert caught.value.message.startswith("could not ")
        assert told in str(caught.value)
        assert caught.value.hint
        assert commands(instance) == before
        assert not instance.has("x")
        assert not list((tmp_path / "instance" / "collections").glob("x-*"))
        instance.continual_task("x", COPIES, inputs={"orders": log.path})
        instance.await_frontier("x", 3)
        with pytest.raises(InvalidUsageError, match="'x'"):
            instance.continual_task("x", COPIES, inputs={"orders": log.path})


def test_without_a_session_a_task_is_refused_by_name(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        before = commands(instance)
        with pytest.raises(InvalidUsageError, match="'copy': found an instance without a session of Spark"):
            instance.continual_task("copy", COPIES, inputs={"orders": log.path})
        assert commands(instance) == before
    with run(tmp_path) as instance:
        instance.continual_task("copy", COPIES, inputs={"orders": log.path})
        instance.await_frontier("copy", 3)
    append(log, (4, 1, 1, 1), upper=5)
    # It is shown, and nothing is lost.
    with (
        handle(tmp_path / "instance") as instance,
        pytest.raises(WaitTimeoutError, match="without a session of Spark"),
    ):
        instance.await_frontier("copy", 4, timeout_s=1)
    with run(tmp_path) as instance:
        instance.await_frontier("copy", 4)


def test_command_line_asks_for_a_task(tmp_path: Path, log: Log, rates: Log, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*words: str, code: int = 0) -> str:
        found = main(["instance", str(tmp_path / "instance"), "create", "eur", "--query", JOINS, *words])
        out, err = capsys.readouterr()
        assert found == code, out + err
        return out + err

    given = ("--input", f"orders={log.path}", "--reference", f"rates={rates.path}")
    with run(tmp_path) as instance:
        assert "--key beside --input" in asked(*given, "--key", "k", code=2)
        assert "without --input" in asked("--reference", f"rates={rates.path}", code=2)
        asked(*given, "--into", str(tmp_path / "eur"), "--as-of", "1")
        instance.await_frontier("eur", 3)
        assert written(tmp_path / "eur") == Counter([(2, 2, 100), (3, 1, 60)])
        assert "in use" in asked(*given, code=2)


def test_task_may_read_a_relation_of_the_introspection(tmp_path: Path) -> None:
    with run(tmp_path) as instance:
        made = instance.continual_task("seen", COPIES, inputs={"orders": "timely_exports"}, into=tmp_path / "seen")
        assert [each.export for each in made.imports] == ["timely_exports"]
