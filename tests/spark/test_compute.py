"""An instance on a session of Spark: what it answers, other storage, and a session that is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_timely.errors import CanceledError, InvalidUsageError
from spark_timely.log.log import create_log
from spark_timely.spark.dataflows.tasks import SparkTasks
from spark_timely.spark.instance import instance as compute
from spark_timely.spark.instance.instance import ComputeInstance
from tests.modules import ROOT
from tests.spark.connect_compute_job import EXPECTED, SCHEMA, TOTALS, append, main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_instance_answers_by_jobs_and_without(spark: SparkSession, tmp_path: Path, small_bytes: int) -> None:
    assert main(spark, tmp_path, small_bytes=small_bytes) == EXPECTED


def test_session_that_sees_other_storage_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(tmp_path / "other", SCHEMA, minimum=(0,))

    class Other:
        """Runs what looks at a log where the executors find another one at its path."""

        def range(self, n: int) -> Any:
            return OtherFrame(spark.range(n), str(tmp_path / "other"))

    class OtherFrame:
        def __init__(self, frame: Any, there: str) -> None:
            self.frame, self.there = frame, there

        def mapInArrow(self, look: Any, schema: str) -> Any:
            there = self.there

            def within(function: Any, name: str) -> Any:
                cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
                return next(cell.cell_contents for free, cell in cells if free == name)

            def elsewhere(batches: Any) -> Any:
                from spark_timely.log import log as logs

                names = within(within(look, "carried"), "work").__globals__
                own, names["open_log"] = names["open_log"], lambda *_, **__: logs.open_log(there)
                try:
                    yield from look(batches)
                finally:
                    names["open_log"] = own  # other tasks run in this process after this one

            return self.frame.mapInArrow(elsewhere, schema)

    with pytest.raises(InvalidUsageError, match="found that Spark's executors see") as caught:
        compute._check_storage(Other(), _created(spark, tmp_path))  # type: ignore[arg-type]
    assert "give a path that is the same storage" in str(caught.value)

    def refuses(*_: object) -> None:
        raise caught.value

    monkeypatch.setattr(compute, "_check_storage", refuses)
    with pytest.raises(InvalidUsageError, match="executors see"):
        ComputeInstance(spark, str(tmp_path / "instance"))
    monkeypatch.undo()
    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
        assert instance.error is None


def _created(spark: SparkSession, folder: Path) -> Any:
    with ComputeInstance(spark, str(folder / "instance")) as instance:
        return instance.directory


def test_peek_and_copy_say_that_the_session_was_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """With a session that says so, as one of Connect does; the next one takes its place."""
    log = create_log(tmp_path / "orders", SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, 1, 10), upper=2)

    class Stopped:
        is_stopped = True

    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 1)
        instance._jobs._spark = Stopped()  # type: ignore[assignment]
        with pytest.raises(CanceledError, match="found the session of Spark stopped"):
            instance.copy_to("totals", str(tmp_path / "copy"), timeout_s=60)
        append(log, (2, 1, 1, 5), upper=3)
        for _ in range(600):
            if "session of Spark stopped" in instance.why("totals"):
                break
            instance._wait(lambda: False, 0.05)
        assert "session of Spark stopped" in instance.why("totals")
        instance.use_session(spark)
        instance.await_frontier("totals", 2)
        assert instance.copy_to("totals", str(tmp_path / "copy"), timeout_s=60) == 1
        assert instance.show("errors").num_rows == 0


def test_jobs_of_a_dataflow_are_in_a_pool_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    def pools(session: SparkSession) -> tuple[set[str], set[str]]:
        """Return in which pools and with which tags the tasks of a job of two stages are."""

        def look(batches: Any) -> Any:
            for batch in batches:
                own = TaskContext.get()
                assert own is not None
                found = [str(own.getLocalProperty(name)) for name in ("spark.scheduler.pool", "spark.job.tags")]
                yield pa.RecordBatch.from_pylist([{"pool": found[0], "tags": found[1]}] * batch.num_rows)

        first = session.range(0, 2, 1, 2).mapInArrow(look, "pool string, tags string").repartition(2)
        both = first.mapInArrow(lambda batches: _with(look, batches), "pool string, tags string").collect()
        return {row["pool"] for row in both}, {row["tags"] for row in both}

    assert pools(spark)[0] == {"None"}
    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
        jobs = instance._jobs
        (first,), (tags,) = jobs.run("a", pools)
        (second,), _ = jobs.run("b", pools)
        assert first.startswith("spark_timely-")
        assert first != second
        assert jobs._tag in tags
        assert jobs.run("a", pools)[0] == {first}
        assert jobs.run("copies", pools, fresh=True)[0] == {f"{jobs._pool}-copies"}
        assert jobs.run("a", lambda session: session) is spark
        left = jobs.run("a", lambda session: set(session.sparkContext.getJobTags()))
        assert left == {jobs._tag}
        spark.conf.set("spark.scheduler.pool", "mine")
        try:
            with ComputeInstance(spark, str(tmp_path / "other")) as other:
                assert other._jobs.run("a", pools)[0] == {"mine"}
        finally:
            spark.conf.unset("spark.scheduler.pool")
    assert pools(spark)[0] == {"None"}


def _with(look: Any, batches: Any) -> Any:
    """Return the rows of the stage before, and what a look at this one gives."""
    kept = list(batches)
    yield from kept
    yield from look(kept)


def test_close_interrupts_jobs_of_the_instance_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    log = create_log(tmp_path / "orders", SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, 1, 10), upper=2)
    begun = tmp_path / "begun"

    def slow(batches: Any) -> Any:
        for batch in batches:
            begun.with_name(f"begun-{os.getpid()}").touch()
            time.sleep(600)
            yield batch

    class Slow(SparkTasks):
        def _fits_here(self, *_: Any) -> bool:
            return False

        def _run_in_spark(self, session: SparkSession, outputs: Any, tasks: Any) -> Any:
            found = super()._run_in_spark(session, outputs, tasks)  # what it wrote is not to stay
            session.range(1).mapInArrow(slow, "id long").collect()
            return found

    kept, compute.SparkTasks = compute.SparkTasks, Slow  # type: ignore[misc]
    others: list[Any] = []

    def other() -> None:
        time.sleep(0.5)
        others.append(spark.range(2).repartition(2).count())

    try:
        instance = ComputeInstance(spark, str(tmp_path / "instance"))
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        for _ in range(1200):
            if list(tmp_path.glob("begun-*")):
                break
            time.sleep(0.05)
        thread = threading.Thread(target=other)
        thread.start()
        instance.close(timeout_s=0)
        thread.join()
    finally:
        compute.SparkTasks = kept  # type: ignore[misc]
    assert others == [2]
    assert not list((tmp_path / "instance" / "collections").rglob("_event=message/*.parquet"))
    with ComputeInstance(spark, str(tmp_path / "instance")) as instance:
        instance.await_frontier("totals", 1)
        assert instance.show("errors").num_rows == 0


_LOST = """
import sys
import spark_timely
from pathlib import Path
from spark_timely.errors import InvalidUsageError
from spark_timely.log.log import create_log
from spark_timely.spark.instance.instance import ComputeInstance
from tests.spark.connect_compute_job import SCHEMA, TOTALS, append, rows

def session():
    return spark_timely.session("lost", master="local[2]", **{"spark.ui.enabled": "false"})

folder = Path(sys.argv[1])
log = create_log(folder / "orders", SCHEMA, minimum=(0,), kind="collection")
append(log, (1, 1, 1, 10), upper=2)
spark = session()
with ComputeInstance(spark, str(folder / "instance")) as instance:
    instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
    batches = instance.subscribe("totals")
    instance.await_frontier("totals", 1)
    spark.stop()
    append(log, (2, 1, 1, 5), upper=3)
    for _ in range(600):
        if "found the session of Spark stopped" in instance.why("totals"):
            break
        instance._wait(lambda: False, 0.05)
    print(instance.why("totals"))
    for wrong in (spark, None):
        try:
            instance.use_session(wrong)
        except InvalidUsageError as error:
            print("REFUSED", error.message)
    instance.use_session(session())
    instance.await_frontier("totals", 2)
    print("ROWS", rows(instance.peek("totals")), instance.copy_to("totals", str(folder / "copy"), timeout_s=120))
    print("BATCHES", [next(batches).upper.to_json() for _ in range(2)], instance.error)
spark = session()
with ComputeInstance(spark, str(folder / "instance"), new_session=session) as instance:
    instance.await_frontier("totals", 2)
    spark.stop()
    append(log, (3, 1, 1, 5), upper=4)
    instance.await_frontier("totals", 3)
    print("ANEW", rows(instance.peek("totals")), instance.copy_to("totals", str(folder / "copy-2"), timeout_s=120))
    print("ANEW", instance.show("errors").num_rows, instance._jobs.session() is not spark)
"""


def test_session_that_is_lost_is_named_and_another_continues(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", _LOST, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "found the session of Spark stopped" in done.stdout
    assert done.stdout.count("REFUSED could not use another session of Spark") == 2
    assert "ROWS [[1, 2, 15, 1]] 1" in done.stdout
    assert "BATCHES [[2], [3]] None" in done.stdout
    assert "ANEW [[1, 3, 20, 1]] 1" in done.stdout
    assert "ANEW 0 True" in done.stdout
