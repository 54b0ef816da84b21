"""Micro-batches and tasks that are tried again, fail in between or race: each row once, no file left or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely import errors
from spark_timely.log.core import LogCore
from spark_timely.sink import commit as sink_commit
from tests.unit.sink.driver import BOUNDED, MIN, SCHEMA, SinkDriver, rows


@pytest.mark.parametrize("policy", ["batch", "bounded", "events", "hold"])
def test_repeated_micro_batch_is_recognised_under_every_policy(tmp_path: Path, policy: str) -> None:
    options = {"frontier": policy} | ({"timeColumn": "t"} if policy in ("bounded", "hold") else {})
    driver = SinkDriver(tmp_path, **options, lateData="error")

    def batch(times: Sequence[int], before: int, after: int) -> list[pa.Table]:
        data = rows(times)
        if policy != "events":
            return [data]
        moves = [("progress", before, -1), ("progress", after, 1)]
        return [
            pa.table(
                {
                    "_event": ["message"] * len(times) + [event for event, _, _ in moves],
                    "_time": pa.array([*times, before, after], pa.int64()),
                    "_delta": pa.array([None] * len(times) + [delta for _, _, delta in moves], pa.int64()),
                    "id": pa.array([*data["id"].to_pylist(), None, None], pa.int64()),
                }
            )
        ]

    for data in (batch([1, 5], MIN, 5), batch([5, 9], 5, 9)):
        driver.run(data, crash="after commit")
        version, files, state = driver.log().core.version, driver.data_files(), driver.log().core.stream("main")
        for _ in range(2):
            driver.run(data, crash="after commit")
            assert (driver.log().core.version, driver.data_files()) == (version, files)
        driver.run(data)
        assert driver.log().core.stream("main") == state
    if policy == "hold":
        driver.run(batch([6], 9, 9))  # nothing was closed


def test_micro_batch_repeated_after_an_advance_is_recognised(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([5])])
    driver.run([rows([4, 9])], crash="after commit")
    driver.log().advance("main", [20])
    version = driver.log().core.version
    driver.run([rows([4, 9])])
    assert driver.log().core.version == version


def test_micro_batch_repeated_after_a_close_is_recognised(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([5])], crash="after commit")
    driver.log().close("main")
    driver.run([rows([5])])
    with pytest.raises(errors.ClosedError):
        driver.run([rows([6])])


def test_repeated_micro_batch_is_judged_by_the_recorded_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000_000]
    monkeypatch.setattr("spark_timely.sink.plan.now_us", lambda: clock[0])
    monkeypatch.setitem(
        __import__("spark_timely.sink.plan", fromlist=["x"]).make_plan.__kwdefaults__, "clock", lambda: clock[0]
    )
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold", lateData="deadLetter", maxFutureSkew="1 second")
    data = pa.table(
        {
            "t": pa.array([1_000_500_000, 1_002_000_000], pa.timestamp("us", "UTC")),
            "id": pa.array([1, 2], pa.int64()),
        }
    )
    driver.run([data], crash="after commit")
    assert driver.log().dead()["id"].to_pylist() == [2]
    clock[0] += 3_600_000_000
    version = driver.log().core.version
    driver.run([data])
    assert driver.log().core.version == version
    assert driver.log().core.stream("main").at == 1_000_000_000


def test_crash_before_the_commit_leaves_orphans_only(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([5])], crash="before commit")
    assert not (driver.log_path / "_delta_log").exists()
    assert len(driver.data_files()) == 1
    driver.run([rows([5])])
    assert driver.log().messages().num_rows == 1
    driver.run([rows([6])], crash="before commit")
    driver.run([rows([6])])
    assert driver.log().messages()["_time"].to_pylist() == [5, 6]


@pytest.mark.parametrize("times", [[2, 9, 3], [9, 2, 3], [2, 3, 9]])
def test_frontier_follows_the_greatest_time_of_any_cut(tmp_path: Path, times: list[int]) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, targetFileSize="1")
    driver.run([rows(times)], chunk=1)
    whole = SinkDriver(tmp_path / "whole", **BOUNDED)
    whole.run([rows(times)])
    assert driver.log().frontier() == whole.log().frontier() != driver.log().domain.minimum_frontier
    notes = [log.core.stream("main").note for log in (driver.log(), whole.log())]  # type: ignore[union-attr]
    assert notes[0].mover is not None
    assert notes[0].mover == replace(notes[1].mover, at=notes[0].mover.at)  # type: ignore[type-var]
    assert notes[0].mover.place.startswith(f"row {times.index(9)} ")


def test_failed_task_leaves_no_file_of_any_task(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, targetFileSize="1")
    driver.run([rows([9])])
    files = driver.data_files()
    with pytest.raises(errors.LateDataError):
        driver.run([rows([9, 9, 9]), rows([10, 10, 10, 3])])
    assert driver.data_files() == files


def test_abort_after_a_commit_that_happened_keeps_the_files(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    writer = driver.writer(SCHEMA)
    message = writer.write(iter(rows([4]).to_batches()))
    driver.writer(SCHEMA).commit([message], 0)
    # Spark took the commit for failed, or one task's message got lost on the way.
    for messages in ([message], [message, None]):
        driver.writer(SCHEMA).abort(messages, 0)
        assert driver.log().messages()["id"].to_pylist() == [0]


def test_second_commit_of_the_same_messages_keeps_the_files(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    (driver.checkpoint / "offsets" / "0").write_text("")
    writer = driver.writer(SCHEMA)
    message = writer.write(iter(rows([4]).to_batches()))
    driver.writer(SCHEMA).commit([message], 0)
    driver.writer(SCHEMA).commit([message], 0)
    (driver.checkpoint / "commits" / "0").write_text("")
    driver.run([rows([5])])
    driver.run([rows([6])])
    with pytest.raises(errors.UpperMismatchError, match="the log has seq=3"):
        writer.commit([message], 0)
    with pytest.raises(errors.RolledBackError, match="found micro-batch 2"):
        driver.writer(SCHEMA).commit([message], 0)
    assert driver.log().messages()["_time"].to_pylist() == [4, 5, 6]


def test_abort_with_all_messages_keeps_files_of_a_running_commit(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    message = driver.writer(SCHEMA).write(iter(rows([4]).to_batches()))
    driver.writer(SCHEMA).abort([message], 0)
    assert len(driver.data_files()) == 1
    driver.writer(SCHEMA).commit([message], 0)
    assert driver.log().messages().num_rows == 1


def test_commit_that_may_have_happened_keeps_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    message = driver.writer(SCHEMA).write(iter(rows([4]).to_batches()))

    def unclear(*_: object, **__: object) -> None:
        raise errors.StorageError("could not write: found nothing", hint="try", determinate=False)

    with monkeypatch.context() as patch:
        patch.setattr("spark_timely.log.core.LogCore.commit", unclear)
        with pytest.raises(errors.StorageError):
            driver.writer(SCHEMA).commit([message], 0)
    assert any("_event=message" in name for name in driver.data_files())
    driver.writer(SCHEMA).commit([message], 0)
    assert driver.log().messages().num_rows == 1


def test_commit_of_another_attempt_before_ours_is_seen(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    (driver.checkpoint / "offsets" / "0").write_text("")
    attempts = [driver.writer(SCHEMA) for _ in range(2)]
    messages = [attempt.write(iter(rows([4, 6]).to_batches())) for attempt in attempts]
    driver.writer(SCHEMA).commit([messages[0]], 0)
    version = driver.log().core.version
    driver.writer(SCHEMA).commit([messages[1]], 0)
    assert driver.log().core.version == version
    assert driver.log().messages()["_time"].to_pylist() == [4, 6]
    assert len([name for name in driver.data_files() if "message" in name]) == 1


def test_tasks_know_the_micro_batch_without_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        batch = "0"

        def partitionId(self) -> int:
            return 3

        def getLocalProperty(self, name: str) -> str | None:
            return {"sql.streaming.queryId": "query-z", "streaming.sql.batchId": self.batch}.get(name)

    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.options["checkpointLocation"] = "hdfs://nowhere/checkpoint"
    monkeypatch.setattr("pyspark.TaskContext.get", Context)
    driver.run([rows([4]), rows([6])])
    assert driver.log().core.stream("main").owner == "query-z"
    assert driver.log().core.stream("main").note.mover.place == "row 0 of partition 3"
    (driver.checkpoint / "commits" / "0").unlink()
    version, files = driver.log().core.version, driver.data_files()
    driver.run([rows([4]), rows([6])])
    assert (driver.log().core.version, driver.data_files()) == (version, files)
    Context.batch = "1"
    driver.run([rows([7])])
    assert driver.log().core.stream("main").batch == 1
    Context.batch = "0"
    with pytest.raises(errors.RolledBackError):
        driver.run([rows([8])])


def test_reports_without_any_task_are_our_bug() -> None:
    with pytest.raises(errors.TimelyInternalError, match="report this bug"):
        sink_commit.merge_reports([])


def test_reports_of_tasks_are_put_together_from_all_of_them(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter")
    driver.run([rows([4])])  # complete up to 3
    (driver.checkpoint / "offsets" / "1").write_text("")
    writer = driver.writer(SCHEMA)
    reports = [writer.write(iter(rows(times).to_batches())).report for times in ([7, 9, 1], [5], [], [6, 2, 2])]
    whole = sink_commit.merge_reports(reports)
    assert whole.minima.tolist() == [[5]]
    assert whole.bounds is not None
    assert whole.bounds.tolist() == [[5], [9]]
    assert (whole.greatest, whole.n_rows, whole.n_dead) == (9, 4, 3)
    assert len(whole.files) == sum(len(report.files) for report in reports)
    assert sorted(file.path for file in whole.files) == sorted(f.path for report in reports for f in report.files)


def test_write_that_fails_in_the_middle_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_timely.log.files import parquet as log_files

    driver = SinkDriver(tmp_path, **BOUNDED, targetFileSize="1")
    driver.run([rows([1])])
    before = driver.data_files()
    calls = 0
    real = log_files.file_statistics

    def breaks(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            assert len(driver.data_files()) == len(before) + 3
            msg = "no space left on device"
            raise OSError(msg)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(log_files, "file_statistics", breaks)
    monkeypatch.setattr(log_files, "_row_groups", lambda times, _: list(range(len(times) + 1)))
    with pytest.raises(errors.StorageError, match="no space left"):
        driver.run([rows([2, 3, 4, 5])], chunk=4)
    assert driver.data_files() == before


def test_losing_attempt_of_a_micro_batch_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    (driver.checkpoint / "offsets" / "1").write_text("")
    winner, loser = driver.writer(SCHEMA), driver.writer(SCHEMA)
    kept, lost = (writer.write(iter(rows([5]).to_batches())) for writer in (winner, loser))
    real = LogCore.commit

    def commit(log: LogCore, request: object) -> object:
        monkeypatch.setattr(LogCore, "commit", real)
        winner.commit([kept], 1)
        return log.commit(request)  # type: ignore[arg-type]

    monkeypatch.setattr(LogCore, "commit", commit)
    loser.commit([lost], 1)
    assert driver.log().messages()["_time"].to_pylist() == [1, 5]
    assert kept.report.files[0].path in driver.data_files()
    assert lost.report.files[0].path not in driver.data_files()
