"""The end of a query that was started by the library: whose stream is closed, and when it is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.log.log import create_log
from spark_timely.spark.capture.start import CaptureQuery, start
from spark_timely.spark.session import changed_settings
from tests.unit.sink.driver import SinkDriver, rows

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}
SCHEMA = spark.StructType().add("t", "long").add("id", "long")


class EndedQuery:
    """Spark's handle of a query that has ended."""

    isActive = False

    def __init__(self, query: str, last_progress: object) -> None:
        self.id = query
        self.lastProgress = last_progress

    def awaitTermination(self, timeout: int | None = None) -> bool:
        """Return at once."""
        del timeout
        return True


def report(batch: int, n_rows: int) -> dict[str, object]:
    """Return Spark's report of a trigger; without rows one that found nothing to do."""
    durations = {"latestOffset": 1, **({"addBatch": 5} if n_rows else {})}
    return {"batchId": batch, "numInputRows": n_rows, "durationMs": durations}


def ended(
    driver: SinkDriver, query: str, *, last: object = None, close: str = "availableNow", repeats: bool = False
) -> Any:
    """Return a started query that has ended, and is to close the driver's stream."""
    options = parse_options(SINK_OPTIONS, driver.options)
    handle: Any = EndedQuery(query, report(driver.next_batch(), 0) if last is None else last)
    return CaptureQuery(handle, options, SCHEMA, close=close, repeats=repeats)  # type: ignore[arg-type]


def test_stream_of_another_query_is_not_closed(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    version = driver.log().core.version
    with pytest.raises(errors.OwnershipError, match="owned by 'query-a', this query is 'query-b'"):
        ended(driver, "query-b").await_termination()
    assert driver.log().core.version == version
    driver.run([rows([10])])
    assert driver.log().messages()["_time"].to_pylist() == [9, 10]


@pytest.mark.parametrize("timeout_s", [float("nan"), -1, "5"])
def test_wait_for_the_end_takes_a_number_of_seconds(tmp_path: Path, timeout_s: Any) -> None:
    query = ended(SinkDriver(tmp_path, **BOUNDED), "query-a", last={})
    with pytest.raises(errors.InvalidUsageError, match="could not wait for query query-a: found timeout_s="):
        query.await_termination(timeout_s)


def test_own_stream_is_closed_and_its_last_micro_batch_known(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    ended(driver, "query-a").await_termination()
    assert driver.log().frontier().is_empty
    assert driver.log().core.stream("main").reason == "end of query query-a"
    version = driver.log().core.version
    (driver.checkpoint / "commits" / "0").unlink()
    driver.run([rows([9])])
    ended(driver, "query-a").await_termination()
    assert driver.log().core.version == version


@pytest.mark.parametrize(
    ("case", "keywords", "closed"),
    [
        ("found nothing more", {}, True),
        ("found nothing more, through Connect", {"last": {**report(1, 0), "numInputRows": None}}, True),
        ("stopped after a micro-batch", {"last": report(0, 1)}, False),
        ("stopped at once", {"last": ()}, False),
        ("once: all there is", {"last": report(0, 1), "close": "once"}, True),
        ("once: nothing there", {"close": "once"}, True),
        ("once: stopped at once", {"last": (), "close": "once"}, False),
        ("once: repeated", {"last": report(0, 1), "close": "once", "repeats": True}, False),
        ("once: repeated, then nothing", {"close": "once", "repeats": True}, True),
    ],
)
def test_stream_is_closed_only_if_the_input_is_used_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str, keywords: dict[str, Any], closed: bool
) -> None:
    del case
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    query = ended(driver, "query-a", **keywords)
    if keywords.get("last") == ():
        query.query.lastProgress = None
    assert query.await_termination()
    assert driver.log().frontier().is_empty == closed
    texts = [record.getMessage() for record in caplog.records if record.name == "spark_timely.spark"]
    assert len(texts) == (0 if closed else 1)
    assert all("could not close stream 'main'" in text and "hint: the stream stays open" in text for text in texts)


def test_stream_with_an_uncommitted_micro_batch_stays_open(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    driver.run([rows([10])], crash="before commit")
    ended(driver, "query-a", last=report(1, 0)).await_termination()
    assert not driver.log().frontier().is_empty
    driver.run([rows([10])])
    ended(driver, "query-a").await_termination()
    assert driver.log().frontier().is_empty


def test_query_without_input_closes_no_stream_of_an_unfit_log(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    create_log(str(driver.log_path), pa.schema([("t", pa.int64()), ("name", pa.string())]))
    version = driver.log().core.version
    with pytest.raises(errors.SchemaMismatchError, match="column 'id'"):
        ended(driver, "query-a").await_termination()
    assert driver.log().core.version == version


def test_query_without_input_makes_a_complete_log(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    ended(driver, "query-a").await_termination()
    assert driver.log().frontier().is_empty
    assert driver.log().schema.names == ["t", "id"]


class Session:
    """A session of Spark, as far as its settings go."""

    def __init__(self, **settings: str) -> None:
        self.values = dict(settings)

    @property
    def conf(self) -> Session:
        """Return the settings."""
        return self

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return a setting."""
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        """Change a setting."""
        self.values[name] = value

    def unset(self, name: str) -> None:
        """Take a setting back."""
        self.values.pop(name, None)


def test_settings_changed_by_two_are_restored_after_the_last() -> None:
    session: Any = Session(a="1")
    wanted = {"a": "5", "b": "6"}
    first, second = (changed_settings(session, wanted, purpose="x") for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert {name: session.get(name) for name in wanted} == wanted
    second.__exit__(None, None, None)
    assert session.values == {"a": "1"}
    with pytest.raises(KeyError), changed_settings(session, wanted, purpose="x"):
        raise KeyError
    assert session.values == {"a": "1"}


def test_end_of_a_query_does_not_close_what_follows_its_sources(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trigger": "availableNow", "time_column": "t", "frontier": "source"}
    df: Any = None
    with pytest.raises(errors.InvalidOptionError, match="on_finish='close' with frontier='source' — hint: leave on_"):
        start(df, path=str(tmp_path / "log"), checkpoint=str(tmp_path / "c"), on_finish="close", **options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"trigger": "sometimes"}, "found trigger='sometimes' — hint: give 'availableNow', 'once'"),
        ({"trigger": {"availableNow": False}}, "found trigger={'availableNow': False} — hint: give"),
        ({"storage_options": "x"}, "could not use storage options: found type=str — hint: give a dict"),
        ({"storage_options": {"region": 5}}, "could not use storage option 'region': found type=int"),
        ({"lateData": "nonsense"}, "found lateData='nonsense' — hint: expected one of"),  # Spark's way of writing it
        ({"late_data": "nonsense"}, "found lateData='nonsense' — hint: expected one of"),
        ({"latenes": "3"}, "found unknown option 'latenes' — hint: did you mean 'lateness'?"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_touched(
    tmp_path: Path, options: dict[str, Any], found: str
) -> None:
    df: Any = None
    with pytest.raises(errors.InvalidOptionError) as caught:
        start(df, path=str(tmp_path / "log"), checkpoint=str(tmp_path / "c"), **options)
    assert found in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_storage_options_are_those_of_the_log(tmp_path: Path) -> None:
    df: Any = SimpleNamespace(isStreaming=False)
    place = {"path": "/Volumes/main/raw/log", "checkpoint": str(tmp_path)}
    with pytest.raises(errors.InvalidOptionError, match="found a Databricks volume"):
        start(df, **place)
    # The promise of a single writer among them is heard: what is refused next is the DataFrame.
    with pytest.raises(errors.InvalidUsageError, match="found a DataFrame that is not streaming"):
        start(df, **place, storage_options={"allow_unsafe_rename": "true"})
