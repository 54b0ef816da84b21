"""A query that gets no data: when its stream is advanced, how far, and that no micro-batch is hurt by it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.log import MemoryLog
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log
from spark_timely.log.machine.state import CommitRequest
from spark_timely.protocol.note import MicroBatch, Note
from spark_timely.spark.base.checkpoint import checkpoint_state, gate
from spark_timely.spark.capture import idle as idle_module
from spark_timely.spark.capture.idle import IdleWatch, check_idle_options, greatest_seen
from spark_timely.spark.capture.start import CaptureQuery
from tests.unit.sink.driver import SinkDriver, rows

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "10", "lateData": "deadLetter"}
SCHEMA = spark.StructType().add("t", "long").add("id", "long")
TIMEOUT_S = 60


class RunningQuery:
    """Spark's handle of a query that looks for input whenever the test says so."""

    def __init__(self, query: str = "query-a") -> None:
        self.id = query
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None

    def looked(self, after_s: float, *, found: bool = False) -> None:
        """Report a trigger so many seconds from now."""
        moment = datetime.fromtimestamp(time.time() + after_s, UTC)
        text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        durations = {"latestOffset": 1, **({"addBatch": 5} if found else {})}
        self.lastProgress = {"batchId": 1, "timestamp": text, "durationMs": durations}

    def awaitTermination(self, timeout: int | None = None) -> bool:
        """Return at once: it has ended."""
        del timeout
        self.isActive = False
        return True

    def stop(self) -> None:
        """End."""
        self.isActive = False


def options_of(driver: SinkDriver, **more: object) -> Any:
    return parse_options(SINK_OPTIONS, {**driver.options, "idleTimeout": f"{TIMEOUT_S} seconds", **more})


def watched(driver: SinkDriver, query: str = "query-a", **more: object) -> tuple[RunningQuery, IdleWatch]:
    handle = RunningQuery(query)
    watch: Any = handle
    return handle, IdleWatch(watch, options_of(driver, **more))


def frontier(driver: SinkDriver) -> int:
    ((held,),) = driver.log().core.stream("main").frontier.elements
    return int(held)


def test_idle_query_gives_up_its_lateness_once_and_says_why(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([40, 50, 45])])
    query, watch = watched(driver)
    assert not watch.look()  # no report yet
    query.looked(TIMEOUT_S - 1)
    assert not watch.look()
    query.looked(TIMEOUT_S + 1, found=True)
    assert not watch.look()
    assert frontier(driver) == 40
    query.looked(TIMEOUT_S + 1)
    assert watch.look()
    state = driver.log().core.stream("main")
    assert state.frontier.elements == ((51,),)
    assert state.reason == "idle: no micro-batch for 1 minute, all rows up to 50 are complete"
    assert (state.owner, state.batch, state.n_rows) == ("query-a", 0, None)
    query.looked(10 * TIMEOUT_S)
    assert not watch.look()
    assert driver.log().core.stream("main").seq == state.seq
    # What comes later in order is not late, what comes behind follows lateData.
    driver.run([rows([51, 50, 70], 100)])
    assert driver.log().dead()["t"].to_pylist() == [50]
    assert frontier(driver) == 60
    assert driver.log().verify().legal


def test_restart_needs_no_memory_and_long_work_is_no_silence(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    # Planned long before it is committed: by the clock of its plan it would be old at once.
    writer_clock = driver.writer(SCHEMA)
    message = writer_clock.write(iter(rows([50]).to_batches()))
    (driver.checkpoint / "offsets" / "0").write_text("")
    report = message.report
    early = type(message)(type(report)(**{**fields(report), "at": report.at - 3_600_000_000}))
    writer_clock.commit([early], 0)
    (driver.checkpoint / "commits" / "0").write_text("")
    assert driver.log().core.stream("main").at == report.at - 3_600_000_000
    query, watch = watched(driver)
    query.looked(TIMEOUT_S - 1)
    assert not watch.look()
    _, after_restart = watched(driver)
    after_restart._query = query  # type: ignore[assignment]
    query.looked(TIMEOUT_S + 1)
    assert after_restart.look()
    assert frontier(driver) == 51


def fields(report: Any) -> dict[str, Any]:
    return {name: getattr(report, name) for name in type(report).__dataclass_fields__}


def test_repeated_micro_batch_is_recognised_after_an_idle_time(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50, 45])])
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    assert watch.look()
    version = driver.log().core.version
    (driver.checkpoint / "commits" / "0").unlink()
    driver.run([rows([50, 45])])
    assert driver.log().core.version == version


STAGES = ("planned", "written", "committed")


@pytest.mark.parametrize("stage", STAGES)
def test_advance_waits_for_a_micro_batch_under_way(tmp_path: Path, stage: str) -> None:
    driver = SinkDriver(tmp_path, **{**BOUNDED, "lateData": "error"})
    driver.run([rows([50])])
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    (driver.checkpoint / "offsets" / "1").write_text("")
    if stage != "planned":
        writer = driver.writer(SCHEMA)
        message = writer.write(iter(rows([45], 10).to_batches()))
        if stage == "committed":
            driver.writer(SCHEMA).commit([message], 1)
    assert not watch.look()
    if stage != "committed":
        driver.run([rows([45], 10)])  # within the lateness, and taken
    else:
        (driver.checkpoint / "commits" / "1").write_text("")
    assert driver.log().messages()["t"].to_pylist() == [45, 50]
    query.looked(TIMEOUT_S - 1)
    assert not watch.look()  # it has had data since
    assert frontier(driver) == 40
    assert not (driver.checkpoint / "timely-gate").exists()


def test_micro_batch_begun_in_the_advance_is_planned_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    begun = threading.Thread(target=lambda: driver.run([rows([45, 52], 10)]))
    commit = LogCore.commit

    def first_the_other(self: LogCore, request: Any) -> Any:
        if request.reason.startswith("idle"):
            begun.start()
            begun.join(0.3)  # long enough to plan, were it not for the gate
            assert begun.is_alive()
        return commit(self, request)

    monkeypatch.setattr(LogCore, "commit", first_the_other)
    assert watch.look()
    begun.join()
    log = driver.log()
    assert (driver.checkpoint / "commits" / "1").exists()
    assert log.dead()["t"].to_pylist() == [45]
    assert log.messages()["t"].to_pylist() == [50, 52]
    assert log.verify().legal


@pytest.mark.parametrize("winner", ["the advance", "the micro-batch"])
def test_failure_of_the_gate_refuses_one_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winner: str
) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    commit = LogCore.commit
    planned: list[Any] = []

    def race(self: LogCore, request: Any) -> Any:
        if request.reason.startswith("idle"):
            (driver.checkpoint / "timely-gate").unlink()  # as by hand, or on a store that lies
            (driver.checkpoint / "offsets" / "1").write_text("")
            writer = driver.writer(SCHEMA)
            planned.append(writer.write(iter(rows([45, 52], 10).to_batches())))
            if winner == "the micro-batch":
                driver.writer(SCHEMA).commit(planned, 1)
        return commit(self, request)

    monkeypatch.setattr(LogCore, "commit", race)
    assert watch.look() == (winner == "the advance")
    if winner == "the advance":
        with pytest.raises(errors.UpperMismatchError, match="restart the query, which runs the micro-batch again"):
            driver.writer(SCHEMA).commit(planned, 1)
        driver.run([rows([45, 52], 10)])
    dead, messages = driver.log().dead()["t"].to_pylist(), driver.log().messages()["t"].to_pylist()
    assert (dead, messages) == (([45], [50, 52]) if winner == "the advance" else ([], [45, 50, 52]))
    assert driver.log().verify().legal


def test_gate_of_who_was_killed_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    (driver.checkpoint / "timely-gate").write_text("")
    pauses: list[float] = []
    found = checkpoint_state(str(driver.checkpoint), now=lambda: sum(pauses), pause=pauses.append)
    assert found.query == "query-a"
    assert sum(pauses) == pytest.approx(10.0)
    assert "a gate that was put up for an advance is still there" in caplog.text
    assert not (driver.checkpoint / "timely-gate").exists()
    put_up = gate(str(driver.checkpoint))
    assert put_up.__enter__()
    assert (driver.checkpoint / "timely-gate").exists()
    assert not put_up.__exit__(KeyError, KeyError(), None)
    assert not (driver.checkpoint / "timely-gate").exists()


def test_skewed_rows_and_dead_letters_do_not_move_an_idle_stream(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **{**BOUNDED, "lateData": "advance", "maxFutureSkew": "100"})
    driver.run([rows([50])])
    driver.run([rows([60, 5000], 10)])
    assert "skewed" in driver.log().core.stream("main").reason
    assert greatest_seen(driver.log(), "main") == 60
    driver.run([rows([55, 5000], 20)])  # tells nothing: the frontier did not move
    driver.run([rows([], 30)])
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    assert watch.look()
    assert frontier(driver) == 61


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("date", [15_000, 15_003], 15_003),
        ("timestamp", [1_400_000_000_123_456, 1_400_000_000_123_457], 1_400_000_000_123_457),
        ("short", [3, 2**15 - 1], 2**15 - 1),
    ],
)
def test_greatest_time_of_every_type(kind: str, values: list[int], expected: int) -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), times=(kind,))
    times = log.domain.to_columns(pa.array(values).to_numpy().reshape(-1, 1))
    log.writer(owner="me").append(pa.table({**times, "v": [1, 2]}))
    assert greatest_seen(log, "main") == expected
    assert greatest_seen(log, "other") is None


def test_greatest_time_leaves_out_rows_too_far_in_the_future() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [9], "v": [1]}))
    skewed = MicroBatch(skewed=1)
    far = CommitRequest(
        "main", "me", np.empty((0, 1), np.int64), np.empty(0, np.int64), bounds=np.array([[3], [99]]), n_rows=2, batch=0
    )
    log.core.commit(replace(far, note=Note(batch=skewed)))
    assert greatest_seen(log, "main") == 9
    log.core.commit(replace(far, batch=1, note=Note(batch=skewed, greatest=12)))
    assert greatest_seen(log, "main") == 12
    log.advance("main", 50)
    assert greatest_seen(log, "main") == 12


def test_stream_that_is_not_there_closed_or_empty_is_left_alone(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    query, watch = watched(driver)
    query.looked(10 * TIMEOUT_S)
    assert not watch.look()
    driver.run([rows([])])
    assert not watch.look()
    driver.run([rows([5])])
    driver.log().close("main")
    assert not watch.look()


def test_stream_of_another_query_is_left_alone(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    query, watch = watched(driver, "query-b")
    query.looked(TIMEOUT_S + 1)
    with pytest.raises(errors.OwnershipError, match="owned by 'query-a'"):
        watch.look()
    assert frontier(driver) == 40


def test_thread_looks_until_the_query_ends_or_is_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    query, watch = watched(driver, idleTimeout="1 ms")
    advanced = threading.Event()
    look = watch.look

    def seen() -> bool:
        if look():
            advanced.set()
        return True

    watch.look = seen  # type: ignore[method-assign]
    query.looked(TIMEOUT_S)
    watch.start()
    assert advanced.wait(30)
    thread = watch._thread
    assert thread is not None
    assert thread.is_alive()
    query.isActive = False
    thread.join(30)
    assert not thread.is_alive()
    assert caplog.text == ""
    assert frontier(driver) == 51


def test_thread_ends_with_a_warning_after_a_takeover(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_module, "_LOOK_S", (0.0, 0.001))
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    driver.log().writer(owner="other", takeover=True)
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    watch.start()
    assert watch._thread is not None
    watch._thread.join(30)
    assert (
        "the idle timeout of query query-a has ended: [TIMELY_OWNERSHIP] could not advance stream 'main'" in caplog.text
    )


def test_timer_looks_while_the_query_lives_despite_failures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_module, "_LOOK_S", (0.0, 0.0001))
    monkeypatch.setattr(idle_module, "_FAILING_S", 0.001)
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    looks, look, advanced = [], watch.look, threading.Event()

    def failing() -> bool:
        looks.append(len(looks))
        if len(looks) <= 100:
            msg = "could not reach the log"
            raise errors.StorageError(msg)
        if look():
            advanced.set()
        return True

    watch.look = failing  # type: ignore[method-assign]
    watch.start()
    assert advanced.wait(30)
    assert frontier(driver) == 51
    query.isActive = False
    assert watch._thread is not None
    watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert caplog.text.count("could not reach the log") == 1, "one warning"


def test_checkpoint_of_another_place_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    _, watch = watched(driver, "query-b")
    with pytest.raises(errors.InvalidOptionError, match="files of query 'query-a' in checkpoint"):
        watch.start()
    _, watch = watched(driver, checkpointLocation=str(tmp_path / "nowhere"))
    with pytest.raises(errors.InvalidOptionError, match="no query's files in checkpoint"):
        watch.start()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"frontier": "hold", "lateness": None}, "found frontier='hold'"),
        ({"frontier": None, "timeColumn": None, "lateness": None}, "found frontier='batch'"),
        ({"lateData": None}, "found no option 'lateData'"),
        ({"idleTimeout": 0}, "found '0 seconds'"),
    ],
)
def test_options_that_it_does_not_go_with_are_refused(options: dict[str, Any], text: str) -> None:
    given = {"path": "log", **BOUNDED, "idleTimeout": "1 hour", **options}
    with pytest.raises(errors.InvalidOptionError, match=text):
        check_idle_options(parse_options(SINK_OPTIONS, given))


@pytest.mark.parametrize("how", ["ended", "stopped"])
def test_run_that_ends_by_itself_looks_at_its_end(tmp_path: Path, how: str) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    handle, watch = watched(driver)
    handle.looked(TIMEOUT_S + 1)
    query: Any = handle
    started = CaptureQuery(query, options_of(driver), SCHEMA, idle=watch)
    if how == "stopped":
        started.stop()
    assert started.await_termination()
    assert frontier(driver) == (51 if how == "ended" else 40)


def test_idle_stream_does_not_follow_the_others(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), pa.schema([("t", pa.int64()), ("id", pa.int64())]), streams=2)
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([50])])
    log.writer("fast", owner="fast").advance(1000)
    query, watch = watched(driver)
    query.looked(TIMEOUT_S + 1)
    assert watch.look()
    assert driver.log().frontier().elements == ((51,),)
    driver.run([rows([60], 10)])  # in order, and taken
    assert driver.log().messages()["t"].to_pylist() == [50, 60]
