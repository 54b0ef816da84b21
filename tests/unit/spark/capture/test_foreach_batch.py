"""What the foreachBatch capture does around Spark's write job; the job itself is played by pyarrow."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely import errors
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.sink.plan import BatchId
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.capture import foreach_batch, staging
from tests.unit.sink.driver import rows
from tests.unit.spark.base.test_source_frontier import offset
from tests.unit.spark.test_start import Session

REAL_WRITE = foreach_batch.write_files  # before the fixture takes its place
BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}


class OneCall:
    """The session object that each call of foreachBatch gets."""


class Frame:
    """A micro-batch, as far as `capture` itself looks at it."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.schema = spark_schema(table.schema)
        self.sparkSession = OneCall()
        self.order: tuple[str, ...] = ()

    def selectExpr(self, *columns: str) -> Frame:
        """Return the frame as it is: what the columns are is Spark's to compute."""
        assert columns
        return self

    def drop(self, *columns: str) -> Frame:
        """Return the frame as it is."""
        assert columns
        return self

    def sortWithinPartitions(self, *columns: str) -> Frame:
        """Return the frame as it is, and note by what its rows are to be ordered."""
        self.order = columns
        return self


@pytest.fixture(autouse=True)
def write_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the rows of a micro-batch as the job does where all rows are messages."""

    def write(df: Any, storage: Any, staging: str, options: Any, *, by_class: bool, plain: object) -> None:
        assert plain == (), "of few rows nothing is known"
        n_times = len(options.time_column)
        assert df.order == (("_time",) if n_times == 1 else tuple(f"_time_{i}" for i in range(n_times)))
        assert not by_class
        n, table = df.table.num_rows, df.table
        for i, time in enumerate(options.time_column):
            table = table.append_column("_time" if n_times == 1 else f"_time_{i}", df.table[time])
        table = table.append_column("_stream", pa.array([options.stream] * n, pa.string()))
        seq = int(staging.partition(f"{options.stream}-")[2].partition("-")[0])
        table = table.append_column("_seq", pa.array([seq] * n, pa.int64()))
        folder = Path(storage.full(staging))
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "part-0.parquet")
        (folder / ".part-0.parquet.crc").write_bytes(b"")

    monkeypatch.setattr(foreach_batch, "write_files", write)
    monkeypatch.setattr(foreach_batch, "counted", lambda df, *_: (df, None))


def run(path: Path, table: pa.Table, batch: int, **options: object) -> Any:
    """Capture a table as a micro-batch."""
    df: Any = Frame(table)
    return foreach_batch.capture(df, batch, path=str(path), **{"app_id": "a", **BOUNDED, **options})


def files(path: Path) -> list[str]:
    """Return the files of messages below the log's folder."""
    return sorted(file.name for file in path.glob("_event=message/*/*"))


def test_micro_batch_is_in_the_log_and_nothing_else_is_left(tmp_path: Path) -> None:
    assert run(tmp_path / "log", rows([9, 10]), 0).committed
    assert open_log(str(tmp_path / "log")).messages()["_time"].to_pylist() == [9, 10]
    assert files(tmp_path / "log") == ["part-0.parquet"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_files_in_the_log_survive_an_error_like_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    run(tmp_path / "log", rows([9]), 0)
    real: Callable[..., object] = foreach_batch.commit_reports

    def broken(*args: object) -> object:
        if when == "after":
            real(*args)
        msg = "could not open log: found deletion vectors"
        raise errors.LogFormatError(msg, hint="none")

    monkeypatch.setattr(foreach_batch, "commit_reports", broken)
    with pytest.raises(errors.LogFormatError):
        run(tmp_path / "log", rows([10]), 1)
    log = open_log(str(tmp_path / "log"))
    assert log.messages()["_time"].to_pylist() == ([9, 10] if when == "after" else [9])
    assert len(files(tmp_path / "log")) == log.messages().num_rows


def test_nothing_is_deleted_while_the_log_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "log", rows([9]), 0)

    def refuse(*_: object) -> object:
        msg = "could not capture: found something"
        raise errors.UpperMismatchError(msg, hint="none")

    def unreachable(*_: object) -> object:
        msg = "could not reach the log"
        raise errors.StorageError(msg, hint="none")

    monkeypatch.setattr(foreach_batch, "commit_reports", refuse)
    monkeypatch.setattr(staging, "find_log", unreachable)
    with pytest.raises(errors.UpperMismatchError):
        run(tmp_path / "log", rows([10]), 1)
    assert files(tmp_path / "log").count("part-0.parquet") == 2


def test_late_row_that_python_cannot_show_is_named(tmp_path: Path) -> None:
    far = pa.array([568_971_820_800_000_000], pa.timestamp("us", "UTC"))
    deep = pa.StructArray.from_arrays([far], ["x"])
    run(tmp_path / "log", pa.table({"t": [9], "far": far, "deep": deep}), 0)
    with pytest.raises(errors.LateDataError, match=r"row \{'t': 3, 'far': 568971820800000000, 'deep': \{'x': 5689"):
        run(tmp_path / "log", pa.table({"t": [3], "far": far, "deep": deep}), 1)


class Job:
    """A DataFrame and its writer: every step gives itself, and the job itself is a function."""

    def __init__(self, session: Session, job: Callable[[], None]) -> None:
        self.sparkSession = session
        self.job = job

    def parquet(self, path: str) -> None:
        """Run the job."""
        del path
        self.job()

    def __getattr__(self, name: str) -> Any:
        """Return a step."""
        return self if name == "write" else lambda *_: self


def test_two_captures_of_one_session_restore_its_settings(tmp_path: Path) -> None:
    session = Session(**{"spark.sql.parquet.outputTimestampType": "INT96"})
    before = dict(session.values)
    first_runs, second_runs, first_done = (threading.Event() for _ in range(3))
    seen: list[str | None] = []

    def look() -> None:
        seen.append(session.get("spark.sql.parquet.outputTimestampType"))

    def first() -> None:
        look()
        first_runs.set()
        assert second_runs.wait(60)

    def second() -> None:
        second_runs.set()
        assert first_done.wait(60)
        look()

    def write(job: Callable[[], None]) -> None:
        options: Any = parse_options(SINK_OPTIONS, {"path": str(tmp_path)})
        frame: Any = Job(session, job)
        REAL_WRITE(frame, open_storage(str(tmp_path), {}), "staging", options, by_class=False)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(write, first)
        assert first_runs.wait(60)
        two = pool.submit(write, second)
        one.result(60)
        first_done.set()
        two.result(60)
    assert seen == ["TIMESTAMP_MICROS"] * 2
    assert session.values == before


NO_TIMES: dict[str, tuple[pa.Table, str, str]] = {
    "all null": (
        pa.table({"t": pa.nulls(2, pa.int64()), "id": [7, 8]}),
        "t",
        "column 't': found null in row {'t': None",
    ),
    "null in one of two": (
        pa.table({"t": [1, 2], "u": pa.array([1, None], pa.int64())}),
        "t,u",
        "column 't', 'u': found null in row {'t': 2, 'u': None}",
    ),
    "above the limit in one of two": (
        pa.table({"t": [1, 2], "u": pa.array([0, 300_000_000_000_000_000], pa.timestamp("us", "UTC"))}),
        "t,u",
        "column 't', 'u': found a time later than",
    ),
}


@pytest.mark.parametrize("case", sorted(NO_TIMES))
def test_times_of_none_are_refused_by_the_users_column(tmp_path: Path, case: str) -> None:
    table, columns, text = NO_TIMES[case]
    df: Any = Frame(table)
    with pytest.raises(errors.InvalidUsageError) as found:
        foreach_batch.capture(df, 0, path=str(tmp_path / "log"), app_id="a", timeColumn=columns, frontier="hold")
    assert text in str(found.value)
    assert " — hint: " in str(found.value)
    assert files(tmp_path / "log") == []


def checkpoint_of(folder: Path, batch: int, *sources: str) -> str:
    """Write a checkpoint whose newest micro-batch ends at these offsets."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id": "query-a"}')
    (folder / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *sources]))
    return str(folder)


def test_frontier_of_the_sources_is_read_from_the_checkpoint(tmp_path: Path) -> None:
    options = {"frontier": "source", "lateness": None, "app_id": None}
    for batch, (times, end, frontier) in enumerate([([9], [4], [4]), ([5, 12], [12], [12]), ([13], [], [])]):
        where = checkpoint_of(tmp_path / "checkpoint", batch, offset(end), offset([20] if end else []))
        run(tmp_path / "log", rows(times), batch, checkpoint=where, **options)
        assert open_log(str(tmp_path / "log")).frontier().to_json() == frontier


def test_last_of_several_captures_moves_the_frontier(tmp_path: Path) -> None:
    options = {"lateness": None, "app_id": None}
    for batch, end in enumerate([5, 9]):
        where = checkpoint_of(tmp_path / "checkpoint", batch, offset([end]))
        run(tmp_path / "log", rows([end - 1]), batch, checkpoint=where, frontier="hold", **options)
        run(tmp_path / "log", rows([end - 2]), batch, checkpoint=where, frontier="source", step=1, **options)
    log = open_log(str(tmp_path / "log"))
    assert log.frontier().to_json() == [9]
    assert sorted(log.messages()["_time"].to_pylist()) == [3, 4, 7, 8]


def test_frontier_of_the_sources_needs_this_querys_checkpoint(tmp_path: Path) -> None:
    options: dict[str, object] = {"frontier": "source", "lateness": None}
    with pytest.raises(errors.InvalidOptionError, match="found no checkpoint — hint: give checkpoint, the query's"):
        run(tmp_path / "log", rows([9]), 0, **options)
    where = checkpoint_of(tmp_path / "other", 7, offset([20]))
    checkpoint_of(tmp_path / "other", 0, offset([20]))
    with pytest.raises(errors.InvalidOptionError, match="micro-batch 0 is: found micro-batch 7 as the newest of"):
        run(tmp_path / "log", rows([9]), 0, checkpoint=where, app_id=None, **options)
    assert not (tmp_path / "log").exists()


def test_second_capture_of_a_call_under_one_step_is_refused(tmp_path: Path) -> None:
    where = {"path": str(tmp_path / "log"), "app_id": "a", "time_column": "t", "frontier": "hold"}
    first, second, later = Frame(rows([1, 2])), Frame(rows([3])), Frame(rows([4]))
    second.sparkSession = later.sparkSession = first.sparkSession
    assert foreach_batch.capture(first, 0, **where).committed  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidUsageError, match=r"micro-batch 0 \(step 0\).* number the captures .* step=1"):
        foreach_batch.capture(second, 0, **where)  # type: ignore[arg-type]
    assert foreach_batch.capture(second, 0, step=1, **where).committed  # type: ignore[arg-type]
    assert foreach_batch.capture(later, 1, **where).committed  # type: ignore[arg-type]
    assert open_log(where["path"]).messages()["t"].to_pylist() == [1, 2, 3, 4]


def test_second_capture_of_a_call_is_known_by_its_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    (tmp_path / "link").symlink_to(tmp_path)
    where = {"app_id": "a", "time_column": "t", "frontier": "hold"}
    first, second = Frame(rows([1, 2])), Frame(rows([3]))
    second.sparkSession = first.sparkSession
    assert foreach_batch.capture(first, 0, path=str(path), **where).committed  # type: ignore[arg-type]
    for same in (f"file://{path}", f"{path}/", str(tmp_path / "link" / "log"), os.path.relpath(path)):
        with pytest.raises(errors.InvalidUsageError, match="number the captures"):
            foreach_batch.capture(second, 0, path=same, **where)  # type: ignore[arg-type]
    assert open_log(str(path)).messages()["t"].to_pylist() == [1, 2]


def test_second_capture_is_refused_unless_the_first_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"path": str(tmp_path / "log"), "app_id": "a", "time_column": "t", "frontier": "hold"}
    first, second = Frame(rows([1, 2])), Frame(rows([3]))
    second.sparkSession = first.sparkSession
    real: Callable[..., object] = foreach_batch.commit_reports
    seen: list[str] = []

    def with_another(*args: object) -> object:
        with pytest.raises(errors.InvalidUsageError, match="number the captures") as refused:
            foreach_batch.capture(second, 0, **where)  # type: ignore[arg-type]
        seen.append(refused.value.message)
        if len(seen) == 1:
            msg = "could not reach the log"
            raise errors.StorageError(msg, hint="none", determinate=True)
        return real(*args)

    monkeypatch.setattr(foreach_batch, "commit_reports", with_another)
    with pytest.raises(errors.StorageError, match="could not reach"):
        foreach_batch.capture(first, 0, **where)  # type: ignore[arg-type]
    assert foreach_batch.capture(first, 0, **where).committed  # type: ignore[arg-type]
    assert len(seen) == 2
    assert open_log(where["path"]).messages()["t"].to_pylist() == [1, 2]


def test_storage_options_of_a_capture_are_checked(tmp_path: Path) -> None:
    options: Any = "x"
    with pytest.raises(errors.InvalidOptionError, match="could not use storage options: found type=str — hint: give a"):
        foreach_batch.capture(None, 0, path=str(tmp_path / "log"), app_id="a", storage_options=options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("again", "same"), [("s3a://bucket//log/", True), ("s3://bucket/Log", False)])
def test_second_capture_under_another_url_is_noticed(again: str, same: object) -> None:
    session: Any = OneCall()
    ident = BatchId("query", 0, 0)

    def reserve(path: str) -> None:
        foreach_batch.Captured(session, parse_options(SINK_OPTIONS, {"path": path}), ident).reserve()

    reserve("s3://bucket/log")
    if not same:
        reserve(again)
        return
    with pytest.raises(errors.InvalidUsageError, match="found a capture of this micro-batch and step"):
        reserve(again)
