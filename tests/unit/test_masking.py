"""No secret leaves in a text: errors and their causes, log lines, answers of the command line."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable
from urllib.parse import quote

import pytest

from spark_timely.cli.command import main
from spark_timely.cli.output import Console
from spark_timely.errors import InvalidUsageError, StorageError, TimelyError, UpperMismatchError, shown
from spark_timely.log.delta import open_log
from spark_timely.log.store.storage import FileStorage, normal_path
from spark_timely.masking import keep_secret, mask_exception, masked, masked_logger, masked_value
from spark_timely.protocol.note import OutputFailure
from tests.unit.test_options import sink

SECRET = "s3cr/et+VALUE=="


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("at s3://AK:SECRET@bucket/x", "at s3://***@bucket/x"),
        ("at s3://AK:SEC/RET@bucket/x", "at s3://***@bucket/x"),
        ("at s3://AK:SEC@RET@bucket/x", "at s3://***@bucket/x"),
        ("GET http://user:pass@host:9000/b, again", "GET http://***@host:9000/b, again"),
        ("https://TOKEN@host/x", "https://***@host/x"),
        ("abfss://c:SECRET@a.dfs.core.windows.net/x", "abfss://***@a.dfs.core.windows.net/x"),
        (
            "https://a.blob.core.windows.net/c?sv=2&sig=SEC%3D&se=3",
            "https://a.blob.core.windows.net/c?sv=2&sig=***&se=3",
        ),
        ("'abfss://c@a/x?SIG=SECRET'", "'abfss://c@a/x?SIG=***'"),
        ("x?X-Amz-Credential=A%2FB&X-Amz-Signature=C", "x?X-Amz-Credential=***&X-Amz-Signature=***"),
        ("x?X-Amz-Security-Token=A&x-goog-signature=B", "x?X-Amz-Security-Token=***&x-goog-signature=***"),
        ("x%3Fsig=SECRET%26token%3DSECRET", "x%3Fsig=***"),
        ("AccountName=a;AccountKey=SECRET==;EndpointSuffix=b", "AccountName=a;AccountKey=***"),
        ("x?password=a&client_secret=b&sas=c&key=d", "x?password=***&client_secret=***&sas=***&key=***"),
        # What is no secret stays.
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("http://host:8080/x and me@host", "http://host:8080/x and me@host"),
        ("s3://bucket/a/me@host/x?keys=3&signal=4", "s3://bucket/a/me@host/x?keys=3&signal=4"),
        ("found token='a', key=3 // a comment", "found token='a', key=3 // a comment"),
    ],
)
def test_secrets_of_urls_are_masked_and_nothing_else(text: str, safe: str) -> None:
    assert masked(text) == safe
    assert masked(safe) == safe, "a masked text is left alone"


@pytest.mark.parametrize("spell", [str, quote, lambda text: quote(text, safe=""), repr, json.dumps])
def test_values_of_options_in_use_are_masked_however_they_are_spelled(spell: Callable[[str], str]) -> None:
    FileStorage("s3://bucket/x", {"aws_secret_access_key": SECRET + "'\""})
    assert "VALUE" not in masked(f"403 for {spell(SECRET + chr(39) + chr(34))}!")


@pytest.mark.parametrize(
    ("options", "text", "safe"),
    [
        ({"aws_region": "eu-central-1", "AWS_ENDPOINT_URL": "http://host"}, "eu-central-1 http://host", None),
        ({"aws_endpoint": "http://me:hush@host"}, "hush, http://host", "***, http://host"),
        ({"allow_http": "true", "made_up": "false", "other": "30s"}, "true false 30s", None),
        ({"made_up": "something"}, "something", "***"),
        ({"aws_session_token": "abc"}, "abc", None),
        ({"sas_token": "sv=1&sig=hush%2Bhush"}, "hush+hush", "***"),
        ({"google_service_account_key": '{"type": "x", "private_key": "line one\\nline two"}'}, "line two", "***"),
        ({"aws_secret_access_key": "line one\nline two"}, "line one line two", "***"),
        ({"fs.azure.account.key": "hush"}, "hush", "***"),
    ],
)
def test_harmless_options_and_short_values_are_not_masked(options: dict[str, str], text: str, safe: str | None) -> None:
    keep_secret(options)
    assert masked(text) == (text if safe is None else safe)


def test_error_holds_no_secret_in_message_hint_context_repr_and_pickle() -> None:
    keep_secret({"account_key": SECRET})
    error = InvalidUsageError(
        f"found {SECRET}",
        hint=f"not {SECRET}",
        context={"path": f"s3://a:{SECRET}@b", "all": [SECRET, {"x": (SECRET,)}], "n": 3},
    )
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "VALUE" not in f"{each}{each!r}{each.message}{each.hint}{each.context}{each.args}"
        assert each.context["n"] == 3
    assert "VALUE" not in str(UpperMismatchError("x", current=SECRET).context)


def test_long_value_is_masked_before_it_is_cut() -> None:
    keep_secret({"account_key": SECRET})
    assert "s3cr" not in shown("x" * 190 + SECRET)


def test_cause_of_an_error_holds_no_secret() -> None:
    keep_secret({"account_key": SECRET})
    first, second = OSError(5, f"bad {SECRET}", f"/x/{SECRET}"), ValueError(f"no {SECRET}")
    second.desc = f"more {SECRET}"  # type: ignore[attr-defined]
    try:
        try:
            try:
                raise first
            except OSError as error:
                raise second from error
        except ValueError as error:
            msg = "could not open"
            raise TimelyError(msg) from error
    except TimelyError as error:
        told = "".join(traceback.format_exception(error))
    assert "ValueError: no ***" in told
    assert "VALUE" not in told + second.desc  # type: ignore[attr-defined]
    assert (first.errno, first.strerror) == (5, "bad ***")


def test_exceptions_in_a_ring_are_masked_once() -> None:
    one, other = OSError("http://a:b@c"), OSError("x")
    one.__context__, other.__context__ = other, one
    mask_exception(one)
    assert str(one) == "http://***@c"


def test_log_lines_hold_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    keep_secret({"account_key": SECRET})
    logger = masked_logger("spark_timely.test_masking")
    with caplog.at_level(logging.DEBUG, logger.name):
        try:
            raise OSError(SECRET)
        except OSError:
            logger.exception("log %r: %s", "s3://a:b@c", SECRET)
    assert "log 's3://***@c': ***" in caplog.text
    assert "VALUE" not in caplog.text


def test_note_of_a_failure_holds_no_secret() -> None:
    keep_secret({"account_key": SECRET})
    failure = OutputFailure.of("out", OSError("x" * 3_900 + SECRET * 10), "run")
    assert "s3cr" not in failure.message


@pytest.mark.parametrize(
    "path", ["s3://AK:SECRET@bucket/x", "abfss://c@a/x?sv=1&sig=SECRET", "https://a.blob.core.windows.net/c?sig=SECRET"]
)
def test_path_with_a_secret_is_refused_because_paths_are_written_down(path: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not use path") as caught:
        open_log(path)
    assert "SECRET" not in f"{caught.value}{caught.value.context}"
    assert "options of the storage" in str(caught.value)


@pytest.mark.parametrize("path", ["hdfs://me@host/x", "abfss://c@account.dfs.core.windows.net/x", "s3://b/me@host"])
def test_path_without_a_secret_is_taken(path: str) -> None:
    assert normal_path(path) == path


def test_delta_libraries_text_with_an_endpoint_and_keys_is_masked() -> None:
    options = {
        "aws_region": "us-east-1",
        "aws_access_key_id": "AKSECRETID",
        "aws_secret_access_key": SECRET,
        "allow_http": "true",
        "aws_endpoint": "http://user:PASSWORD@127.0.0.1:9",
        "max_retries": "0",
        "retry_timeout": "1s",
    }
    with pytest.raises(StorageError) as caught:
        open_log("s3://bucket/x", storage_options=options)
    told = "".join(traceback.format_exception(caught.value)) + str(caught.value.context)
    assert "127.0.0.1:9" in told
    assert "PASSWORD" not in told
    with pytest.raises(OSError, match="127") as raw:
        FileStorage("s3://bucket/x", options).filesystem.get_file_info(["x"])
    assert "PASSWORD" not in "".join(traceback.format_exception(raw.value))


def test_option_of_the_storage_is_no_text_of_a_later_error() -> None:
    with pytest.raises(ValueError, match="could not read the options") as caught:
        sink(path="x", **{"storage.account_key": "hunter2", "hunter2": "x"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["stats", "s3://AK:SECRET@bucket/x"],
        ["stats", "abfss://c@a/x?sig=SECRET", "--json"],
        ["SECRET", "--storage", "account_key=SECRET"],
        ["--storage", "account_key=SECRET", "stats", "x"],
        ["stats", "SECRET", "--storage=account_key=SECRET"],
        ["frontier", "/nowhere/SECRET", "--storage", "account_key=SECRET", "--json"],
        ["account_key=SECRET"],
    ],
)
def test_command_line_tells_no_secret(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (2, 3)
    out, err = capsys.readouterr()
    assert err
    assert "SECRET" not in out + err


def test_answers_of_the_command_line_hold_no_secret_but_rows_are_as_they_are() -> None:
    import io

    keep_secret({"account_key": SECRET})
    for as_is in (False, True):
        out = io.StringIO()
        console = Console(out, json_mode=False)
        console.answer({"a": [SECRET]}, as_is=as_is)
        console.table(["a"], [["x" * 30 + SECRET]], as_is=as_is)
        assert out.getvalue().count("VALUE") == (2 if as_is else 0)
        console.line(SECRET)
        console.facts([("a", SECRET)])
        assert out.getvalue().count("VALUE") == (2 if as_is else 0)


def test_values_of_other_types_are_left_alone() -> None:
    value = (3, None, b"x", {"a": {1}})
    assert masked_value(value) == value


def test_functions_for_spark_show_no_options() -> None:
    from spark_timely.spark.dataflow import _Part
    from spark_timely.spark.start import _Capture

    part = _Part("d", (), {"s3://b/x": {"account_key": SECRET}}, "full")
    assert "VALUE" not in f"{part}{_Capture('s3://b/x', '/c', {'storage.account_key': SECRET})}"
