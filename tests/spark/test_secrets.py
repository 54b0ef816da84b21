"""Credentials of cloud stores: in no plan, error, setting or event log that Spark shows."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.errors import InvalidOptionError
from spark_timely.spark import session_settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_SECRETS = {
    "s3": {
        "aws_access_key_id": "AKIAhidden0000000001",
        "aws_secret_access_key": "hidden/aws+secret000000002",
        "aws_session_token": "hidden-aws-session-0000000003",
    },
    "azure": {
        "azure_storage_account_key": "aGlkZGVuLWFjY291bnQta2V5LTAwMDA0",
        "azure_storage_sas_key": "sv=2024-01-01&sig=hidden00000005",
        "azure_storage_client_secret": "hidden~client~secret~00000006",
    },
    "gcs": {
        "google_service_account_key": json.dumps(
            {"type": "service_account", "private_key": "-----BEGIN-----\nhidden00000007\n-----END-----"}
        ),
    },
}
# What must not be seen: parts that no way of writing them changes.
_SIGNS = ("AKIAhidden", "hidden/aws", "hidden-aws", "aGlkZGVu", "hidden0000000", "hidden~client", "hidden%2Faws")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log with two closed times."""
    schema = pa.schema([("t", pa.int64()), ("word", pa.string())])
    log = spark_timely.create_log(tmp_path / "log", schema, times=("long",))
    log.writer(owner="somebody").append(pa.table({"t": [1, 2], "word": ["a", "b"]}), time_column="t", advance_to=3)
    return log


def _assert_hidden(text: str) -> None:
    assert text
    assert [sign for sign in _SIGNS if sign in text] == []


def _settings(spark: SparkSession) -> str:
    said = [str(row) for row in spark.sql("SET").collect()]
    return "\n".join([*said, *map(str, spark.sparkContext.getConf().getAll())])


def _plans(frame: object, capsys: pytest.CaptureFixture[str]) -> str:
    frame.explain(True)  # type: ignore[attr-defined]
    return capsys.readouterr().out


@pytest.mark.parametrize("store", _SECRETS)
def test_good_run_shows_no_credential(
    spark: SparkSession,
    log: Log,
    store: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="spark_timely")
    spark_timely.credential(spark, "lake", _SECRETS[store])
    rows = spark.read.format("timely").option("credential", "lake").load(log.path)
    rows.explain(True)
    assert rows.count() == 2
    stream = spark.readStream.format("timely").option("credential", "lake").load(log.path)
    places = [tmp_path / "copy", tmp_path / "checkpoint", tmp_path / "second", tmp_path / "second-checkpoint"]
    query = (
        stream.writeStream.format("timely")
        .options(credential="lake", timeColumn="t", frontier="hold", checkpointLocation=str(places[1]))
        .trigger(availableNow=True)
        .start(str(places[0]))
    )
    query.awaitTermination()
    query.explain(True)
    second = spark_timely.start(
        spark.readStream.format("timely").load(log.path),
        path=str(places[2]),
        checkpoint=str(places[3]),
        trigger="availableNow",
        storage_options=_SECRETS[store],
        time_column="t",
        frontier="hold",
    )
    second.await_termination()
    assert [spark_timely.open_log(place).messages().num_rows for place in places[::2]] == [2, 2]
    with pytest.raises(PySparkException) as caught:
        rows.select("wrod")
    seen = capfd.readouterr()
    told = "".join(traceback.format_exception(caught.value))
    _assert_hidden("\n".join([seen.out, seen.err, caplog.text, told, _settings(spark)]))
    for file in (path for place in places for path in place.rglob("*") if path.is_file()):
        assert not [sign for sign in _SIGNS if sign.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("store", "name", "value"),
    [(store, name, value) for store, all_ in _SECRETS.items() for name, value in all_.items()],
)
def test_option_with_a_credential_is_refused(spark: SparkSession, log: Log, store: str, name: str, value: str) -> None:
    del store
    with pytest.raises(InvalidOptionError, match=f"option 'storage.{name}': found a credential") as caught:
        spark.read.format("timely").option(f"storage.{name}", value).load(log.path)
    _assert_hidden("".join(traceback.format_exception(caught.value)))


def test_sink_refuses_a_credential_before_it_starts(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    writer = spark.readStream.format("timely").load(log.path).writeStream.format("timely")
    writer = writer.options(timeColumn="t", checkpointLocation=str(tmp_path / "checkpoint"))
    writer = writer.option("storage.azure_storage_account_key", "aGlkZGVuLWFjY291bnQ=")
    with pytest.raises(InvalidOptionError, match="found a credential") as caught:
        writer.start(str(tmp_path / "copy"))
    _assert_hidden(str(caught.value))
    assert not (tmp_path / "copy").exists()


def test_failing_read_shows_no_credential(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    dead = {"aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "max_retries": "0", "aws_region": "eu-west-1"}
    spark_timely.credential(spark, "dead", {**_SECRETS["s3"], **dead})
    with pytest.raises(PySparkException) as caught:
        spark.read.format("timely").option("credential", "dead").load("s3://bucket/log")
    told = "".join(traceback.format_exception(caught.value))
    assert "127.0.0.1:9" in told
    seen = capfd.readouterr()
    _assert_hidden("\n".join([told, seen.out, seen.err]))


def test_other_session_of_the_jvm_does_not_know_a_name(spark: SparkSession, log: Log) -> None:
    spark_timely.credential(spark, "mine", _SECRETS["s3"])
    other = spark.newSession()
    spark_timely.register(other)
    assert spark.read.format("timely").option("credential", "mine").load(log.path).count() == 2
    with pytest.raises(PySparkException, match="found no credential of that name"):
        other.read.format("timely").option("credential", "mine").load(log.path)


def test_next_query_uses_the_renewed_credential(spark: SparkSession) -> None:
    for port in (9, 11):
        endpoint = {"aws_endpoint": f"http://127.0.0.1:{port}", "allow_http": "true", "max_retries": "0"}
        spark_timely.credential(spark, "renewed", {**_SECRETS["s3"], **endpoint, "aws_region": "eu-west-1"})
        with pytest.raises(PySparkException, match=f"127.0.0.1:{port}"):
            spark.read.format("timely").option("credential", "renewed").load("s3://bucket/log")


def test_sessions_made_by_others_show_no_credential(tmp_path: Path) -> None:
    job = Path(__file__).with_name("secrets_job.py")
    given = json.dumps(_SECRETS)
    done = subprocess.run(
        [sys.executable, str(job), str(tmp_path)], input=given, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    _assert_hidden(done.stdout + done.stderr)
    events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in events)
    for path in [*events, *(path for path in (tmp_path / "warehouse").rglob("*") if path.is_file())]:
        assert not [sign for sign in _SIGNS if sign.encode() in path.read_bytes()]


def test_second_line_hides_names_of_credentials(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    settings = session_settings()
    name = "spark.sql.redaction.options.regex"
    before = spark.conf.get(name)
    spark.conf.set(name, settings[name])
    try:
        frame = spark.read.option("storage.azure_storage_account_key", "aGlkZGVuLWFjY291bnQ=").text(__file__)
        _assert_hidden(_plans(frame, capsys))
    finally:
        spark.conf.set(name, before)


def test_second_line_hides_what_spark_hides_by_itself(spark: SparkSession) -> None:
    sql = spark._jvm.org.apache.spark.sql.internal.SQLConf.SQL_OPTIONS_REDACTION_PATTERN()  # type: ignore[union-attr]
    core = getattr(spark._jvm.org.apache.spark.internal.config, "package$").__getattr__("MODULE$")  # type: ignore[union-attr]
    settings = session_settings()
    for entry in (sql, core.SECRET_REDACTION_PATTERN()):
        assert settings[entry.key()].startswith(f"{entry.defaultValueString()}|")
