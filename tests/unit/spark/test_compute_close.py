"""How an instance on Spark ends while its jobs run, and how its start is refused: without Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_timely.errors import InvalidUsageError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.spark.dataflows.tasks import SparkTasks, run_one
from spark_timely.spark.instance import instance as compute
from spark_timely.spark.instance import jobs as compute_jobs
from spark_timely.spark.instance.instance import ComputeInstance
from tests.unit.compute.instances import TOTALS, append, orders, rows
from tests.unit.spark.test_compute_jobs import WAIT_S, Session


@pytest.fixture(autouse=True)
def _same_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_check_storage", lambda *_: None)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), upper=3)


class Slow:
    """Has all steps be jobs, each of which waits after its tasks were run and their files written."""

    def __init__(self) -> None:
        self.begun, self.goes_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.ends: Callable[[Any], object] = lambda _: self.goes_on.wait(WAIT_S)

    def run(self, tasks: Any, spark: Any, outputs: Any, todo: Any) -> Any:
        found = [run_one(task, outputs[task.output], tasks._storage_options) for task in todo]
        self.begun.set()
        try:
            self.ends(spark)
        finally:
            self.ended.set()
        return found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    monkeypatch.setattr(SparkTasks, "_run_in_spark", lambda *given: made.run(*given))
    monkeypatch.setattr(SparkTasks, "_fits_here", lambda *_: False)
    monkeypatch.setattr(compute_jobs, "_INTERRUPT_S", 0.01)
    monkeypatch.setitem(compute_jobs.Jobs.interrupt.__kwdefaults__, "wait_s", 0.2)
    yield made
    made.goes_on.set()


def opened(folder: Path, session: Session | None = None, **options: Any) -> ComputeInstance:
    given: Any = session or Session()
    return ComputeInstance(given, str(folder / "instance"), retain=None, **options)


def states_of(folder: Path) -> list[tuple[int, list[Any], int]]:
    """Return version, frontier and number of files of rows of each log that the instance's dataflows write."""
    found = []
    for path in sorted((folder / "instance" / "collections").rglob("_delta_log")):
        log = open_log(path.parent)
        found.append(
            (log.core.version, log.frontier().to_json(), len(list(path.parent.glob("_event=message/*.parquet"))))
        )
    return found


def begun(instance: ComputeInstance, log: Log, slow: Slow) -> None:
    """Have a step begin: the first of those that an index of totals takes."""
    instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
    assert slow.begun.wait(WAIT_S)


def test_step_that_ends_in_time_is_appended(tmp_path: Path, log: Log, slow: Slow) -> None:
    instance = opened(tmp_path)
    begun(instance, log, slow)
    assert {frontier for _, (frontier,), _ in states_of(tmp_path)} == {0}
    threading.Timer(0.2, slow.goes_on.set).start()
    instance.close(timeout_s=WAIT_S)
    assert max(frontier for _, (frontier,), _ in states_of(tmp_path)) == 3


@pytest.mark.parametrize("how", ["ends", "ignores"])
def test_nothing_of_an_interrupted_step_is_appended(
    tmp_path: Path, log: Log, slow: Slow, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def ends(spark: Any) -> None:
        assert spark.interrupted.wait(WAIT_S)
        msg = "[OPERATION_CANCELED] Operation has been canceled."
        raise RuntimeError(msg)

    if how == "ends":
        slow.ends = ends
    session = Session()
    instance = opened(tmp_path, session)
    begun(instance, log, slow)
    versions = [version for version, *_ in states_of(tmp_path)]
    with caplog.at_level(logging.WARNING, "spark_timely.compute"):
        instance.close(timeout_s=0)
    said = [record.getMessage() for record in caplog.records if "jobs of Spark still run" in record.getMessage()]
    assert [text.endswith("jobs of Spark still run: 'totals'") for text in said] == ([] if how == "ends" else [True])
    assert session.clones[0].interrupted.is_set()
    assert slow.ended.is_set() is (how == "ends")
    after = states_of(tmp_path)
    assert {(*frontier, n_files) for _, frontier, n_files in after} == {(0, 0)}  # its files are gone
    assert [version for version, *_ in after] == versions  # nor is it said to have failed
    slow.goes_on.set()
    assert slow.ended.wait(WAIT_S)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("spark_timely-step")]
    assert states_of(tmp_path) == after
    slow.ends = lambda _: None
    with opened(tmp_path) as instance:
        instance.await_frontier("totals", 2)
        assert rows(instance.peek("totals")) == [(1, 1, 10, 1), (2, 1, 20, 1)]
        assert instance.show("errors").num_rows == 0


def test_copy_that_ignores_it_keeps_nobody(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compute_jobs.Jobs.interrupt.__kwdefaults__, "wait_s", 0.2)
    begun, goes_on = threading.Event(), threading.Event()

    def copy_to(*_: object, **__: object) -> int:
        begun.set()
        goes_on.wait(WAIT_S)
        return 1

    monkeypatch.setattr(compute, "copy_to", copy_to)
    instance = opened(tmp_path)
    instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
    instance.await_frontier("totals", 2)
    told: list[Exception] = []

    def ask() -> None:
        try:
            instance.copy_to("totals", str(tmp_path / "copy"))
        except InvalidUsageError as error:
            told.append(error)

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    assert begun.wait(WAIT_S)
    instance.close(timeout_s=0)
    asked.join(WAIT_S)
    assert "found it closed" in str(told[0])
    goes_on.set()


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_close_without_a_time_is_refused(tmp_path: Path, log: Log, timeout_s: float) -> None:
    with opened(tmp_path) as instance:
        with pytest.raises(InvalidUsageError, match=r"could not close the instance .* found timeout_s="):
            instance.close(timeout_s=timeout_s)
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 2)
    instance.close()  # once more


def test_refused_start_takes_nothing_over(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 2)
        with opened(tmp_path, read_only=True) as follower:
            commands = open_log(instance.directory.commands)
            version = commands.core.version
            monkeypatch.setattr(compute, "_check_storage", _refuse)
            with pytest.raises(InvalidUsageError, match="other storage"):
                opened(tmp_path)
            with pytest.raises(InvalidUsageError, match="other storage"):
                follower.allow_writes()
            commands.refresh()
            assert commands.core.version == version
            append(log, (3, 1, 1, 5), upper=4)
            instance.await_frontier("totals", 3)
            follower.await_frontier("totals", 3)  # it goes on too
            assert rows(follower.peek("totals")) == [(1, 2, 15, 1), (2, 1, 20, 1)]
            monkeypatch.setattr(compute, "_check_storage", lambda *_: None)
            follower.allow_writes()
            append(log, (4, 1, 1, 5), upper=5)
            follower.await_frontier("totals", 4)


def _refuse(*_: object) -> None:
    msg = "could not run the instance: found other storage"
    raise InvalidUsageError(msg)


def test_lost_session_is_made_anew_and_looked_at(
    tmp_path: Path, log: Log, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, made = list[Any](), list[Session]()
    monkeypatch.setattr(compute, "_check_storage", lambda spark, _: looked.append(spark))
    slow.goes_on.set()

    def new_session() -> Session:
        if not made:
            made.append(Session())
            msg = "no server"
            raise RuntimeError(msg)
        made.append(Session())
        return made[-1]

    session: Any = Session()
    with opened(tmp_path, session, new_session=new_session) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.index("others", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 2)
        instance.await_frontier("others", 2)
        session.is_stopped = True
        append(log, (3, 1, 1, 5), upper=4)
        instance.await_frontier("totals", 3)
        instance.await_frontier("others", 3)
        assert looked[-1] is made[-1]
        assert len(made) == 2
        assert rows(instance.peek("totals")) == [(1, 2, 15, 1), (2, 1, 20, 1)]
        assert instance.show("errors").num_rows == 0
    assert open_log(log.path).frontier().to_json() == [4]
