"""Functions of Python in dataflows of an instance: of this process alone, and never written down."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.compute.command import Command, CreateDataflow, Export
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.plans import Shape, shape_of
from spark_timely.compute.ledger import commands_of
from spark_timely.compute.plan import Imported, Node, Plan, SqlTask, parse_plan
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.rows import Map
from spark_timely.errors import InvalidUsageError, MissingError, TimelyError, WaitTimeoutError
from spark_timely.log import Log
from tests.plans import values_of
from tests.unit.compute.instances import SCHEMA, TOTALS, append, handle, orders, rows

TWICE = Plan(Node(Map("twice"), Node(Imported("orders"))))
SUMS = Plan(
    Node(Aggregate(("k",), values_of((("s", "sum", "v"),)), "history"), Node(Map("twice"), Node(Imported("orders"))))
)


def twice(table: pa.Table) -> pa.Table:
    return pa.table({"k": table["k"], "v": pc.multiply(table["v"], 2)})


def thrice(table: pa.Table) -> pa.Table:
    return pa.table({"k": table["k"], "v": pc.multiply(table["v"], 3)})


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


def export(id_: str, kind: Any = "index") -> Export:
    return Export(id_, kind, f'{{"folder": "collections/{id_}-1", "key": ["k"]}}')


def commands(instance: Handle) -> list[Command]:
    return commands_of(CommandLog.at(instance.directory.commands, create=False).rows())


def test_function_is_called_as_that_of_map(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        before = commands(instance)
        asked: dict[str, Any] = {"imports": {"orders": log.path}, "interactive": True}
        instance.dataflow("sums", SUMS, [export("sums")], functions={"twice": twice}, **asked)
        # Another one of the same name is another one.
        instance.dataflow("more", SUMS, [export("more")], functions={"twice": thrice}, **asked)
        instance.await_frontier("sums", 3)
        instance.await_frontier("more", 3)
        assert rows(instance.peek("sums")) == [(1, 80, 1), (2, 40, 1)]
        assert rows(instance.peek("more")) == [(1, 120, 1), (2, 60, 1)]
        append(log, (4, -1, 1, 10), upper=5)
        instance.await_frontier("sums", 4)
        assert rows(instance.peek("sums")) == [(1, 60, 1), (2, 40, 1)]
        # Nothing of it is written down.
        assert commands(instance) == before
    with handle(tmp_path / "instance") as instance:
        assert instance.show("exports").num_rows == 0
        with pytest.raises(MissingError):
            instance.peek("sums")


def test_subscribe_and_text_of_a_plan(tmp_path: Path, log: Log) -> None:
    with (
        handle(tmp_path / "instance") as instance,
        instance.subscribe(TWICE.text, imports={"orders": log.path}, functions={"twice": twice}) as batches,
    ):
        batch = batches.next_batch(timeout_s=30)
        assert batch is not None
        assert rows(batch.updates.select(["k", "v"])) == [(1, 20), (1, 60), (2, 40)]  # type: ignore[attr-defined]


def test_functions_are_let_go_with_their_dataflow(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        known = instance._driver.state.runtime.functions.known
        asked: dict[str, Any] = {"imports": {"orders": log.path}, "interactive": True, "functions": {"twice": twice}}
        instance.dataflow("sums", SUMS, [export("sums")], **asked)
        with pytest.raises(InvalidUsageError, match="'sums'"):  # an id in use: its own function stays
            instance.dataflow("sums", SUMS, [export("sums")], **{**asked, "functions": {"twice": thrice}})
        assert [each.__wrapped__ for each in known.values()] == [twice]  # type: ignore[attr-defined]
        instance.await_frontier("sums", 3)
        assert rows(instance.peek("sums")) == [(1, 80, 1), (2, 40, 1)]
        instance.drop("sums")
        instance._wait(lambda: not known, 30)
        assert not known


def test_function_that_fails_is_shown_and_the_others_run(tmp_path: Path, log: Log) -> None:
    def fails(table: pa.Table) -> pa.Table:
        if table.num_rows:
            msg = "found no way"
            raise ValueError(msg)
        return table.select(["k", "v"])

    with handle(tmp_path / "instance") as instance:
        instance.index("all", "SELECT k FROM orders", imports={"orders": log.path}, key="k")
        instance.dataflow(
            "bad", SUMS, [export("bad")], imports={"orders": log.path}, interactive=True, functions={"twice": fails}
        )
        instance.await_frontier("all", 3)
        with pytest.raises(WaitTimeoutError, match="found no way"):
            instance.await_frontier("bad", 3, timeout_s=2)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda i, p: i.dataflow("x", SUMS, [export("x")], imports={"orders": p}, functions={"twice": twice}),
            "'twice', which is not restartable — hint: create it as interactive, or say it in SQL",
        ),
        (lambda i, p: i.index("x", SUMS, imports={"orders": p}), "found Python function 'twice', which is not"),
        (lambda i, p: i.dataflow("x", SUMS, [export("x")], imports={"orders": p}, interactive=True), "['twice']=None"),
        (
            lambda i, p: i.subscribe(TWICE, imports={"orders": p}, functions={"twice": 5}, id_="x"),
            "functions['twice']=5",
        ),
        (
            lambda i, p: i.subscribe(TWICE, imports={"orders": p}, functions={"twice": twice, "other": twice}, id_="x"),
            "found function 'other', which the plan does not call",
        ),
        (
            lambda i, p: i.subscribe(TWICE, imports={"orders": p}, functions={"twice": lambda t: t["none"]}, id_="x"),
            "none",
        ),
    ],
)
def test_refused_function_changes_nothing(tmp_path: Path, log: Log, call: Any, told: str) -> None:
    with handle(tmp_path / "instance") as instance:
        before = commands(instance)
        with pytest.raises(TimelyError) as caught:
            call(instance, log.path)
        assert told in str(caught.value)
        assert commands(instance) == before
        assert not instance.has("x")
        assert not instance._driver.state.runtime.functions.known


def test_command_that_lasts_has_no_function_however_it_is_sent(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        made = instance.dataflow(
            "x", SUMS, [export("x")], imports={"orders": log.path}, interactive=True, functions={"twice": twice}
        )
        from dataclasses import replace

        lasting = replace(made, exports=(export("y"),), interactive=False)
        with pytest.raises(InvalidUsageError, match="which is not restartable"):
            instance.send(CreateDataflow(lasting))
        unknown = replace(made, exports=(export("y"),), plan=SUMS.text)
        with pytest.raises(InvalidUsageError, match="'twice': found none of this name in this process"):
            instance.send(CreateDataflow(unknown))
        assert not instance.has("y")


def test_columns_of_a_function_are_found_without_rows() -> None:
    shape = shape_of(TWICE, {"orders": Shape(SCHEMA, "collection")}, functions={"twice": twice})
    assert (shape.schema.names, shape.kind) == (["k", "v"], "collection")
    with pytest.raises(InvalidUsageError, match="found none of this name") as caught:
        shape_of(TWICE, {"orders": Shape(SCHEMA, "collection")})
    assert caught.value.context["node"] == "plan"
    task = Plan(Node(SqlTask("SELECT k FROM orders", (("orders", "inserts"),))))
    with pytest.raises(InvalidUsageError, match="found a continual task over"):
        shape_of(task, {"orders": Shape(SCHEMA, "collection")})


def test_plan_with_a_function_is_its_text() -> None:
    assert parse_plan(SUMS.text) == SUMS
    with pytest.raises(InvalidUsageError, match="name=''"):
        Node(Map(""), Node(Imported("orders")))


def test_function_that_is_slow_without_rows_holds_up_no_other(tmp_path: Path, log: Log) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(table: pa.Table) -> pa.Table:
        began.set()
        assert go_on.wait(60)
        return table

    plan = '{"op":"function","name":"f","of":{"op":"import","name":"s"}}'
    with handle(tmp_path / "instance") as instance, ThreadPoolExecutor(1) as threads:
        made = threads.submit(instance.subscribe, plan, imports={"s": log.path}, functions={"f": slow})
        try:
            assert began.wait(30)
            instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
            instance.await_frontier("totals", 1, timeout_s=30)
        finally:
            go_on.set()
        assert made.result(30).next_batch(timeout_s=30) is not None
