"""Continual tasks and functions of Python in an instance on a session of Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_timely.compute.command_log import CommandLog
from spark_timely.errors import TimelyError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.instance.instance import ComputeInstance
from spark_timely.spark.tasks.continual import ContinualTask, deletes, newest
from tests.faults.harness import wait_until
from tests.spark.connect_compute_job import SCHEMA, append, rows
from tests.spark.connect_tasks_job import EXPECTED, JOIN, main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def orders(tmp_path: Path) -> Log:
    log = create_log(tmp_path / "orders", SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, 1, 10), (2, 1, 2, 20), (2, 1, 2, 20), (3, 1, 1, 30), (3, -1, 1, 10), upper=4)
    return log


@pytest.fixture
def rates(tmp_path: Path) -> Log:
    log = create_log(tmp_path / "rates", SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, 1, 2), (1, 1, 2, 3), (2, -1, 2, 3), (2, 1, 2, 5), upper=4)
    return log


def held(path: Any) -> Counter[tuple[Any, ...]]:
    """Return all that a log holds: rows with their times, and how often, or the sum of their diffs."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in open_log(path).messages().to_pylist():
        diff = row.pop("_diff", 1)
        found[tuple(sorted((name, value) for name, value in row.items() if name not in ("_seq", "_stream")))] += diff
    return Counter({row: n for row, n in found.items() if n})


# What a body says, and its options, with the logs that there are.
TASKS: dict[str, dict[str, Any]] = {
    "join": {"body": JOIN, "inputs": {"orders": "orders"}, "references": {"rates": "rates"}},
    "newest": {
        "body": JOIN, "inputs": {"orders": "orders"}, "references": {"rates": newest("rates")}, "as_of": 2,
    },
    "deletes": {"body": "SELECT k, v FROM gone", "inputs": {"gone": deletes("orders")}},
    "snapshot": {
        "body": "SELECT k, v FROM o", "inputs": {"o": "orders"}, "as_of": 2, "snapshot": True,
        "expect": {"small": ("v < 25", "drop"), "some": "v > 0"},
    },
    "kept": {
        "body": "INSERT INTO output SELECT k, v FROM o; DELETE FROM output WHERE v < 20", "inputs": {"o": "orders"},
    },
}  # fmt: skip


def of(found: Any, folder: Path) -> Any:
    """Return logs by their path, as roles."""
    if isinstance(found, str):
        return str(folder / found)
    return type(found)(str(folder / str(found.log)))


def asked(name: str, folder: Path) -> dict[str, Any]:
    """Return the options of a task, over the logs in a folder."""
    found = dict(TASKS[name])
    for part in ("inputs", "references"):
        found[part] = {alias: of(log, folder) for alias, log in found.get(part, {}).items()}
    return found


def test_tasks_of_an_instance_write_what_those_of_queries_do(
    spark: SparkSession, tmp_path: Path, orders: Log, rates: Log
) -> None:
    """At once, and with a restart between: what is written depends on neither."""
    counts = "SELECT k, count(*) AS n, sum(v) AS s FROM `join` GROUP BY k"
    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
        for name in TASKS:
            options = asked(name, tmp_path)
            instance.continual_task(name, options.pop("body"), into=tmp_path / f"{name}-1", **options)
        instance.index("counts", counts, imports={"join": str(tmp_path / "join-1")}, key="k")
        for name in TASKS:
            instance.await_frontier(name, 3, timeout_s=120)
    append(rates, (4, 1, 3, 7), (5, -1, 1, 2), upper=7)
    append(orders, (4, 1, 3, 11), (5, -1, 2, 20), (5, 1, 1, 50), upper=7)
    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
        for name in TASKS:
            instance.await_frontier(name, 6, timeout_s=120)
        instance.await_frontier("counts", 6)
        found = Counter(tuple(row) for row in rows(instance.peek("counts")))
        assert instance.show("errors").num_rows == 0
        instance.drop("kept")
        # What it had read of its own output, too.
        wait_until(lambda: not open_log(tmp_path / "kept-1").retainers(), deadline_s=60, what="the end of 'kept'")
    joined: dict[int, list[int]] = {}
    for row, n in held(tmp_path / "join-1").items():
        joined.setdefault(dict(row)["k"], []).extend([dict(row)["v"]] * n)
    assert found == Counter((k, len(values), sum(values), 1) for k, values in joined.items())
    first, *others = [
        ContinualTask(f"q {name}", output=str(tmp_path / f"{name}-2"), **asked(name, tmp_path)) for name in TASKS
    ]
    first.start(spark, trigger="availableNow", beside=others).await_termination()
    for name in TASKS:
        # The newest contents are those of when it was written.
        if name != "newest":
            assert held(tmp_path / f"{name}-1") == held(tmp_path / f"{name}-2"), name
    assert held(tmp_path / "kept-1")
    assert held(tmp_path / "snapshot-1")
    assert {dict(row)["_time"] for row in held(tmp_path / "newest-1")} == {3, 4}


def test_body_is_evaluated_under_the_settings_it_began_with(spark: SparkSession, tmp_path: Path, orders: Log) -> None:
    hours = "SELECT k, hour(timestamp_seconds(v)) AS v FROM o"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.udf.register("of_this_session", lambda v: v + 1, "long")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
            instance.continual_task("hours", hours, inputs={"o": orders.path}, into=tmp_path / "hours")
            instance.continual_task(
                "more", "SELECT k, of_this_session(v) AS v FROM o", inputs={"o": orders.path}, into=tmp_path / "more",
                functions=["of_this_session"],
            )  # fmt: skip
            instance.await_frontier("hours", 3, timeout_s=120)
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        append(orders, (4, 1, 9, 7200), upper=5)
        with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
            for name in ("hours", "more"):
                instance.await_frontier(name, 4, timeout_s=120)
            assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
        assert Counter(dict(row)["v"] for row in held(tmp_path / "hours").elements()) == Counter({9: 4, 11: 1})
        assert sorted(dict(row)["v"] for row in held(tmp_path / "more").elements()) == [11, 21, 21, 31, 7201]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_what_spark_refuses_changes_nothing(spark: SparkSession, tmp_path: Path, orders: Log) -> None:
    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:

        def written() -> list[tuple[int, str]]:
            return CommandLog.at(instance.directory.commands, create=False).rows()

        before = written()
        for body, told in (
            ("SELECT none FROM o", "none"),
            ("SELECT of_nobody(v) AS v FROM o", "of_nobody"),
            ("SELECT k, v FROM o", "'x'"),
        ):
            create_log(tmp_path / "other", pa.schema([("x", pa.binary())]), minimum=(0,), exist_ok=True)
            into = tmp_path / ("other" if told == "'x'" else "new")
            with pytest.raises(TimelyError) as caught:
                instance.continual_task("x", body, inputs={"o": orders.path}, into=into)
            assert told in str(caught.value)
            assert written() == before
            assert not instance.has("x")
            assert not (tmp_path / "new").exists()


def test_tasks_and_functions_answer_as_through_connect(spark: SparkSession, tmp_path: Path) -> None:
    assert main(spark, tmp_path) == EXPECTED
