"""Dataflows over logs in an object store and on a disk at once, each with its own credentials, which nobody shows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Dataflow, Log
from spark_timely.errors import CyclicSummaryError, InvalidOptionError, InvalidUsageError, StorageError
from tests.stores.conftest import Place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.parametrize("server", ["moto"], indirect=True)]

SCHEMA = pa.schema([("t", pa.int64()), ("word", pa.string())])
ROWS = pa.table({"t": [1, 2, 2], "word": ["a", "b", "c"]})


def _filled(path: str | Path, options: dict[str, str] | None = None) -> Log:
    log = spark_timely.create_log(path, SCHEMA, minimum=(0,), storage_options=options)
    log.writer(owner="somebody").append(ROWS, time_column="t", advance_to=3)
    return log


def _secrets(place: Place) -> list[str]:
    return [value for name, value in place.options.items() if "secret" in name]


def _assert_hidden(place: Place, text: str, *folders: Path) -> None:
    assert text
    assert [secret for secret in _secrets(place) if secret in text] == []
    for file in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert not [secret for secret in _secrets(place) if secret.encode() in file.read_bytes()]


def _words(path: str | Path, options: dict[str, str] | None = None) -> list[str]:
    return sorted(spark_timely.open_log(path, storage_options=options).messages()["word"].to_pylist())


@pytest.fixture
def named(spark: SparkSession, place: Place) -> str:
    """Return the name of a credential for the store."""
    spark_timely.credential(spark, "moto", place.options)
    return "moto"


def test_each_log_has_its_own_credential(
    spark: SparkSession, place: Place, named: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, near, copy, back = f"{place.url}/in", tmp_path / "near", tmp_path / "copy", f"{place.url}/back"
    assert len(_secrets(place)) == 1
    log = _filled(source, place.options)
    other = _filled(near)
    flow = Dataflow("mixed", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(source, credential=named).concat(flow.replay(str(near))).capture(str(copy))
    flow.replay(str(near)).filter("word <> 'a'").capture(back, credential=named)
    assert _secrets(place)[0] not in repr(flow) + flow.explain()
    assert flow._shown_options(spark, source) == {"credential": named}
    query = flow.start(spark)
    try:
        query.await_frontier(2, timeout_s=60)
        # News of both is seen by the clock, which runs in a process of its own.
        log.writer(owner="somebody").append(pa.table({"t": [3], "word": ["d"]}), time_column="t", advance_to=4)
        other.writer(owner="somebody").append(pa.table({"t": [3], "word": ["e"]}), time_column="t", advance_to=4)
        query.await_frontier(3, timeout_s=60)
        query.query.explain(True)
        progress = str(query.query.lastProgress)
    finally:
        query.stop()
    assert _words(copy) == ["a", "a", "b", "b", "c", "c", "d", "e"]
    assert _words(back, place.options) == ["b", "c", "e"]
    seen = capfd.readouterr()
    settings = "\n".join(map(str, [*spark.sql("SET").collect(), *spark.sparkContext.getConf().getAll()]))
    assert "ForeachBatchSink" in seen.out
    _assert_hidden(place, "\n".join([seen.out, seen.err, progress, settings]), tmp_path)


@pytest.mark.parametrize("where", ["from the store", "into the store"])
def test_dataflow_that_ends_uses_the_credential(
    spark: SparkSession, place: Place, named: str, where: str, tmp_path: Path
) -> None:
    far, near = f"{place.url}/log", str(tmp_path / "log")
    source, target = (far, near) if where == "from the store" else (near, far)
    credentials = {far: named, near: None}
    _filled(source, place.options if source == far else None)
    flow = Dataflow(f"ends {where}", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(source, credential=credentials[source]).capture(target, credential=credentials[target])
    query = flow.start(spark, trigger="availableNow")
    assert query.await_termination(60)
    assert _words(target, place.options if target == far else None) == ["a", "b", "c"]
    assert sorted(row["word"] for row in query.result().collect()) == ["a", "b", "c"]
    _assert_hidden(place, repr(query) + query.explain(), tmp_path)


def test_next_start_uses_the_renewed_credential(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    _filled(place.url, place.options)
    spark_timely.credential(spark, "renewed", place.options)
    flow = Dataflow("renewed", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(place.url, credential="renewed").capture(str(tmp_path / "copy"))
    spark_timely.credential(spark, "renewed", {**place.options, "aws_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        flow.start(spark, trigger="availableNow")
    spark_timely.credential(spark, "renewed", place.options)
    assert flow.start(spark, trigger="availableNow").await_termination(60)
    assert _words(tmp_path / "copy") == ["a", "b", "c"]


def test_snapshots_take_options_of_a_store(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    logs = []
    for path, options in ((place.url, place.options), (tmp_path / "log", None)):
        log = spark_timely.create_log(path, SCHEMA, minimum=(0,), kind="collection", storage_options=options)
        log.writer(owner="me").append(ROWS.append_column("_diff", pa.array([1, 1, 1])), time_column="t", advance_to=3)
        logs.append(log)
    rows = spark_timely.snapshot(spark, place.url, 2, storage_options=place.options)
    assert sorted(row["word"] for row in rows.collect()) == ["a", "b", "c"]
    far, near = spark_timely.snapshot(spark, spark_timely.cut(logs), storage_options=place.options)
    assert far.count() == near.count() == 3
    with pytest.raises(InvalidUsageError, match="found storage options beside log"):
        spark_timely.snapshot(spark, logs[0], 2, storage_options=place.options)


def test_output_that_is_the_input_under_another_url_is_refused(place: Place, tmp_path: Path) -> None:
    _filled(place.url, place.options)
    flow = Dataflow("loop", checkpoint=str(tmp_path / "checkpoint"))
    stream = flow.replay(place.url, storage_options=place.options)
    with pytest.raises(CyclicSummaryError, match="made from itself"):
        stream.capture(f"{place.url.replace('s3://', 'S3A://')}//", storage_options=place.options)


def test_secret_options_of_a_log_are_shown_as_a_name(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    _filled(place.url, place.options)
    flow = Dataflow("given", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(place.url, storage_options=place.options).capture(str(tmp_path / "copy"))
    shown = flow._shown_options(spark, place.url)
    assert list(shown) == ["credential"]
    query = flow.start(spark)
    try:
        query.await_frontier(2, timeout_s=60)
    finally:
        query.stop()
    assert _words(tmp_path / "copy") == ["a", "b", "c"]
    _assert_hidden(place, str(shown), tmp_path)


def test_options_of_a_log_that_do_not_fit_are_refused(place: Place, tmp_path: Path) -> None:
    log = _filled(place.url, place.options)
    flow = Dataflow("odd", checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(InvalidOptionError, match="found no credential of that name"):
        flow.replay(place.url, credential="nobody-gave-it")
    with pytest.raises(InvalidOptionError, match="did you mean 'aws_region'"):
        flow.replay(place.url, storage_options={**place.options, "aws_regoin": "x"})
    with pytest.raises(InvalidUsageError, match="found storage options beside log"):
        flow.replay(log, storage_options=place.options)
    stream = flow.replay(log)
    with pytest.raises(InvalidUsageError, match=r"found log .* at endpoints .*127\.0\.0\.1:9"):
        stream.capture(place.url, storage_options={**place.options, "aws_endpoint": "http://127.0.0.1:9"})
    with pytest.raises(InvalidOptionError, match="found an option of S3 for a log in Google"):
        stream.capture("gs://bucket/log", storage_options=place.options)
    assert not flow.sinks
