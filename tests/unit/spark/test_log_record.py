"""What `capture` in foreachBatch writes down of its logs, and what it refuses by it; the write job is pyarrow's."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_timely import errors
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.spark.base.checkpoint import LogCommit, LogEntry, read_entries, write_entry
from spark_timely.spark.capture import foreach_batch
from spark_timely.spark.capture.idle import IdleWatch
from tests.unit.sink.driver import SinkDriver, rows
from tests.unit.spark.capture.test_foreach_batch import Frame, write_job
from tests.unit.spark.test_idle import BOUNDED as IDLE_OPTIONS
from tests.unit.spark.test_idle import TIMEOUT_S, watched
from tests.unit.spark.test_start import ended

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}
write_job = write_job  # autouse: the job is played by pyarrow


class Session:
    """The session of a micro-batch, which knows the Spark query that runs it."""

    def __init__(self, query: str | None) -> None:
        self.query = query

    @property
    def sparkContext(self) -> Session:
        """Return what knows the local properties of a thread."""
        if self.query is None:
            raise AttributeError("sparkContext")  # as through Connect
        return self

    def getLocalProperty(self, name: str) -> str | None:
        """Return the property."""
        return self.query if name == "sql.streaming.queryId" else None


class BatchFrame(Frame):
    """A micro-batch of a query."""

    def __init__(self, batch: int, query: str | None) -> None:
        super().__init__(rows([10 + batch], batch))
        self.sparkSession = Session(query)


class Query:
    """A query that captures in foreachBatch; its checkpoint is as Spark leaves it."""

    def __init__(self, folder: Path, query: str = "query-a", **options: object) -> None:
        self.query, self.options = query, {**BOUNDED, **options}
        self.log_path = folder / "log"
        self.checkpoint = folder / f"checkpoint of {query}"
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query}))

    def plan(self, batch: int) -> None:
        entry = self.checkpoint / "offsets" / str(batch)
        if not entry.exists():
            entry.write_text(f"v1\n{time.time_ns()}\n{batch}")

    def capture(self, batch: int, **options: object) -> Any:
        """Capture one row; micro-batches between are empty and left out by the user's function."""
        newest = max([-1, *(int(file.name) for file in (self.checkpoint / "offsets").iterdir())])
        for number in range(newest, batch + 1):
            self.plan(max(number, 0))
        named = {"checkpoint": str(self.checkpoint), "path": str(self.log_path), **self.options, **options}
        df: Any = BatchFrame(batch, self.query)
        return foreach_batch.capture(df, batch, **named)

    def cut(self, newest: int) -> None:
        for file in (self.checkpoint / "offsets").iterdir():
            if int(file.name) > newest + 1:
                file.unlink()

    def log(self) -> Log:
        return open_log(str(self.log_path))

    def ids(self) -> list[int]:
        return sorted(self.log().messages()["id"].to_pylist())


def test_gaps_in_foreach_batch_are_meant(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in (2, 3, 7):
        assert query.capture(batch).committed
    assert query.log().core.stream("main").note.gaps == ()
    (entry,) = read_entries(str(query.checkpoint), "query-a")
    assert entry == LogEntry(
        str(query.log_path),
        "main",
        query.log().core.log_id,
        (LogCommit(1, 2, 0), LogCommit(2, 3, 0), LogCommit(3, 7, 0)),
    )


def test_restored_log_is_refused_until_micro_batches_pass_it(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch in (2, 4):
        query.capture(batch)
    shutil.copytree(query.log_path, tmp_path / "copy")
    for batch in (7, 9):
        query.capture(batch)
    shutil.rmtree(query.log_path)
    shutil.copytree(tmp_path / "copy", query.log_path)
    for batch in (10, 8):
        with pytest.raises(errors.RolledBackError, match=r"restored to an earlier state.*all numbers after 4 and"):
            query.capture(batch)
        query.cut(4)
    # 5 and 6 are empty again.
    for batch in (7, 9, 10):
        assert query.capture(batch).committed
    assert query.ids() == [2, 4, 7, 9, 10]


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_log_that_is_gone_is_refused_and_consent_begins_another(tmp_path: Path, what: str) -> None:
    query = Query(tmp_path)
    for batch in (1, 2):
        query.capture(batch)
    shutil.rmtree(query.log_path)
    if what == "replaced":
        Query(tmp_path, "query-z", stream="z", streams=2).capture(0)
    with pytest.raises(errors.RolledBackError, match="found no log" if what == "deleted" else "found another log"):
        query.capture(5)
    assert query.log_path.exists() is (what == "replaced")
    query.capture(5, begin_at=5)
    state = query.log().core.stream("main")
    assert (state.note.gaps, state.epoch) == (((0, 4),), 1)
    query.capture(6, begin_at=5)
    assert query.log().core.stream("main").epoch == 1


def test_several_logs_are_written_down_and_each_is_looked_at(tmp_path: Path) -> None:
    query = Query(tmp_path, streams=2)
    other = str(tmp_path / "other")
    for batch in (0, 1):
        query.capture(batch)
        query.capture(batch, path=other)
        query.capture(batch, path=other, stream="second")
    shutil.rmtree(other)
    query.capture(2)
    for stream in ("main", "second"):
        with pytest.raises(errors.RolledBackError, match="found no log"):
            query.capture(2, path=other, stream=stream)
    query.capture(2, path=str(tmp_path / "third"))
    assert len(read_entries(str(query.checkpoint), "query-a")) == 4


def test_step_that_a_restored_log_lost_is_noticed(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.capture(0)
    shutil.copytree(query.log_path, tmp_path / "copy")
    query.capture(0, step=1)
    shutil.rmtree(query.log_path)
    shutil.copytree(tmp_path / "copy", query.log_path)
    query.log().advance("main", 10)
    with pytest.raises(errors.RolledBackError, match="restored to an earlier state"):
        query.capture(1)
    assert query.capture(0, step=1).committed


def test_app_id_belongs_to_one_spark_query(tmp_path: Path) -> None:
    named = {"checkpoint": None, "app_id": "mine"}
    first, second = Query(tmp_path, "query-a"), Query(tmp_path, "query-b")
    unknown: Any = BatchFrame(1, None)
    first.capture(0, **named)
    assert first.log().core.stream("main").note.batch.query == "query-a"
    # Through Connect the id is not known: what is recorded stays.
    foreach_batch.capture(unknown, 1, path=str(first.log_path), app_id="mine", **BOUNDED)
    assert first.log().core.stream("main").note.batch.query == "query-a"
    with pytest.raises(errors.RolledBackError) as found:
        second.capture(2, **named)
    assert "found micro-batch 1 by Spark query 'query-a', this is Spark query 'query-b'" in str(found.value)
    assert "an app_id of its own" in str(found.value)
    assert "beginAt=2" in str(found.value)
    second.capture(2, begin_at=2, **named)
    state = first.log().core.stream("main")
    assert (state.note.batch.query, state.epoch, state.note.gaps) == ("query-b", 1, ())
    with pytest.raises(errors.RolledBackError, match="this is Spark query 'query-a'"):
        first.capture(3, **named)
    second.capture(3, **named)


def test_threads_of_one_query_lose_no_entry(tmp_path: Path) -> None:
    def write(n: int) -> None:
        write_entry(str(tmp_path), "q", path=f"/log {n}", stream="main", log_id=str(n), commit=LogCommit(1, 0, 0))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(40)))
    assert {entry.log_id for entry in read_entries(str(tmp_path), "q")} == {str(n) for n in range(40)}
    assert [file.name for file in tmp_path.iterdir()] == ["timely-logs"]


def test_at_most_100_commits_are_kept(tmp_path: Path) -> None:
    for n in range(130):
        write_entry(str(tmp_path), "q", path="/log", stream="main", log_id="a", commit=LogCommit(n + 1, n, 0))
    (entry,) = read_entries(str(tmp_path), "q")
    assert (len(entry.commits), entry.commits[0].batch, entry.newest.batch) == (100, 30, 129)
    # What was lost before them is not known, and is taken to be lost.
    assert entry.first_lost(21, (20, 0)) == 21
    assert entry.first_lost(51, (50, 0)) == 51
    assert entry.first_lost(130, (129, 0)) is None


def test_stream_of_a_log_that_went_back_is_not_closed_at_the_end(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    for batch in range(2):
        driver.run([rows([9 + batch])])
    shutil.copytree(driver.log_path, tmp_path / "kept")
    shutil.rmtree(driver.log_path)
    with pytest.raises(errors.RolledBackError, match=r"could not move stream 'main'.*found no log"):
        ended(driver, "query-a").await_termination()
    assert not driver.log_path.exists()
    shutil.copytree(tmp_path / "kept", driver.log_path)
    ended(driver, "query-a").await_termination()
    assert driver.log().frontier().is_empty


def test_log_that_went_back_is_not_advanced_by_the_idle_timer(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **IDLE_OPTIONS)
    driver.run([rows([40])])
    shutil.copytree(driver.log_path, tmp_path / "copy")
    driver.run([rows([50])])
    shutil.rmtree(driver.log_path)
    shutil.copytree(tmp_path / "copy", driver.log_path)
    watch: IdleWatch
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    version = driver.log().core.version
    with pytest.raises(errors.RolledBackError, match="restored to an earlier state"):
        watch.look()
    assert driver.log().core.version == version
    assert not (driver.checkpoint / "timely-gate").exists()


def test_micro_batch_that_its_query_has_finished_is_refused(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.capture(0)
    (query.checkpoint / "commits" / "0").write_text("v1\n{}")
    query.capture(1)
    before = query.log().messages().num_rows
    with pytest.raises(
        errors.InvalidUsageError, match=r"micro-batch 0: found checkpoint .* where it is finished.*batch_id"
    ):
        query.capture(0)  # as with a number that is always the same
    assert query.log().messages().num_rows == before
