"""Names of storage options: those that the clients of the stores know, and no others."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store
from pyspark.sql.types import StructType

import spark_timely
from spark_timely.cli.command import main
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.errors import InvalidOptionError
from spark_timely.log.cut import Cut
from spark_timely.log.store import urls
from spark_timely.log.store.cloud import CloudStorage
from spark_timely.log.store.urls import check_names, client_options, delta_options, own_options
from spark_timely.sink.plan import parse_sink

URLS = {"S3": "s3://bucket/log", "Azure": "abfss://logs@lake.dfs.core.windows.net/a", "Google": "gs://bucket/log"}
SECRET = "wJalrXUtnFEMIbPxRfiCY"
_MADE: dict[str, Callable[..., object]] = {"S3": S3Store, "Azure": AzureStore, "Google": GCSStore}


def _is_known(store: str, name: str) -> bool:
    """Ask obstore whether a store has an option of that name; what it thinks of the value is beside the point."""
    try:
        _MADE[store]("somewhere", config={name: "1"})
    except UnknownConfigurationKeyError:
        return False
    except (BaseError, ValueError, TypeError):
        return True
    return True


@pytest.mark.parametrize("store", URLS)
def test_every_name_of_a_store_is_known_to_its_client(store: str) -> None:
    names = urls._STORES[store] - urls._NOT_OF_CLIENTS - {"aws_root_certificate", "azure_root_certificate"}
    names -= {"google_root_certificate"}  # given to the client apart
    assert [name for name in sorted(names) if not _is_known(store, name)] == []


def _documented(file: str, kind: str) -> list[str]:
    """Return the options that obstore's stubs name, which say what there is and nothing of other spellings."""
    stub = (Path(obstore.__file__).parent / "_store" / file).read_text()
    (found,) = (node for node in ast.parse(stub).body if isinstance(node, ast.ClassDef) and node.name == kind)
    return [
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


@pytest.mark.parametrize(
    ("store", "file", "kind"),
    [("S3", "_aws.pyi", "S3Config"), ("Azure", "_azure.pyi", "AzureConfig"), ("Google", "_gcs.pyi", "GCSConfig")],
)
def test_every_name_that_obstore_documents_is_known(store: str, file: str, kind: str) -> None:
    names = [name for name in _documented(file, kind) if _is_known(store, name)]
    assert len(names) > 5
    check_names(names, [URLS[store]])


def test_settings_of_http_are_those_of_the_client() -> None:
    # Headers are a mapping, no text.
    assert set(_documented("_client.pyi", "ClientConfig")) - {"default_headers"} <= set(urls.HTTP)


@pytest.mark.parametrize("store", URLS)
@pytest.mark.parametrize(
    "name", ["max_retries", "RETRY_TIMEOUT", "timeout", "backoff.base", "init_backoff", "allow_http"]
)
def test_settings_of_requests_fit_every_store(store: str, name: str) -> None:
    check_names([name], [URLS[store]])
    CloudStorage(URLS[store], {name: "3"})


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("aws_regoin", URLS["S3"], "found no option of that name for S3 — hint: did you mean 'aws_region'"),
        ("AWS_REGOIN", URLS["S3"], "'AWS_REGOIN'.*did you mean 'aws_region'"),
        ("azure_storage_acount_key", URLS["Azure"], "did you mean 'azure_storage_account_key'"),
        ("google_servce_account", URLS["Google"], "did you mean 'google_service_account'"),
        ("max_retrys", "/data/log", "for any store — hint: did you mean 'max_retries'"),
        ("qqqqqqq", URLS["S3"], "lists the names"),
        ("aws_profile", URLS["S3"], "give the keys of the profile"),
        ("key", URLS["S3"], "did you mean 'aws_access_key_id'"),
        ("aws_region", URLS["Azure"], "found an option of S3 for a log in Azure — hint: give those of Azure"),
        ("azure_storage_account_key", "s3a://b/x", "found an option of Azure for a log in S3 .*abfss://"),
        ("google_service_account", URLS["S3"], "found an option of Google for a log in S3"),
    ],
)
def test_option_that_does_not_fit_is_refused(name: str, path: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message) as caught:
        check_names([name], [path])
    assert caught.value.context["option"] == name


def test_options_fit_the_log_or_the_checkpoint() -> None:
    places = [URLS["S3"], URLS["Google"]]
    check_names(["aws_region", "google_service_account"], places)
    with pytest.raises(InvalidOptionError, match="found an option of Azure for a log in S3 and Google"):
        check_names(["azure_storage_account_key"], places)


def test_disk_takes_options_of_all_stores() -> None:
    check_names(["aws_region", "azure_storage_account_key", "google_bucket"], ["/data/log"])
    with pytest.raises(InvalidOptionError, match="did you mean 'aws_region'"):
        check_names(["aws_regoin"], ["/data/log"])


def test_client_gets_what_it_knows_and_no_promise() -> None:
    given = {
        "aws_region": "a",
        "google_bucket": "b",
        "timely_flush": "false",
        "ALLOW_UNSAFE_RENAME": "true",
        "odd": "c",
    }
    assert client_options(URLS["S3"], given) == {"aws_region": "a", "odd": "c"}
    assert own_options(URLS["Google"], given).keys() == given.keys() - {"aws_region"}


def test_delta_rs_gets_no_lock_of_its_own() -> None:
    # A commit that delta-rs excludes by DynamoDB does not exclude one that is put under a condition.
    given = {"AWS_S3_LOCKING_PROVIDER": "dynamodb", "DELTA_DYNAMO_TABLE_NAME": "locks", "AWS_REGION": "eu-west-1"}
    check_names(given, [URLS["S3"]])
    assert delta_options(given) == client_options(URLS["S3"], given) == {"AWS_REGION": "eu-west-1"}


MISSPELT = {"aws_secret_acces_key": SECRET}
_SCHEMA = pa.schema([("v", pa.int64())])


@pytest.mark.parametrize(
    "use",
    [
        lambda path, **more: spark_timely.open_log(path, **more),
        lambda path, **more: spark_timely.create_log(path, _SCHEMA, **more),
        lambda path, **more: spark_timely.cut([path], **more),
        lambda path, **more: spark_timely.wait(path, time=1, timeout_s=0, **more),
        lambda path, **more: spark_timely.capture(None, 0, path=path, app_id="a", **more),
        lambda path, **more: spark_timely.start(None, path=path, checkpoint="/c", **more),
        lambda path, **more: spark_timely.replay(None, path, **more),
        lambda path, **more: spark_timely.snapshot(None, path, 1, **more),
    ],
    ids=["open_log", "create_log", "cut", "wait", "capture", "start", "replay", "snapshot"],
)
@pytest.mark.parametrize("where", ["disk", "store"])
def test_misspelt_option_is_refused_everywhere(use: Callable[..., Any], where: str, tmp_path: Path) -> None:
    path = str(tmp_path / "log") if where == "disk" else "s3://bucket/log"
    with pytest.raises(InvalidOptionError, match="did you mean 'aws_secret_access_key'") as caught:
        use(path, storage_options=MISSPELT)
    assert SECRET not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["eu-west-1", SECRET])
@pytest.mark.parametrize("name", ["storage.aws_regoin", "STORAGE.AWS_REGOIN"])
def test_misspelt_option_of_the_format_is_refused(name: str, value: str, tmp_path: Path) -> None:
    source = TimelyDataSource({"path": "s3://bucket/log", name: value})
    sink = {"path": str(tmp_path / "log"), "checkpointLocation": str(tmp_path / "checkpoint"), name: value}
    for use in (source.schema, lambda: TimelyDataSource(sink).streamWriter(StructType([]), overwrite=False)):
        with pytest.raises(InvalidOptionError, match="did you mean 'aws_region'") as caught:
            use()
        assert value not in str(caught.value)


def test_option_of_another_store_is_refused_by_the_format() -> None:
    source = TimelyDataSource({"path": "gs://bucket/log", "storage.aws_region": "eu-west-1"})
    with pytest.raises(InvalidOptionError, match="found an option of S3 for a log in Google"):
        source.schema()


def test_option_of_the_checkpoint_fits_a_capture() -> None:
    given = {"path": "s3://b/log", "checkpointLocation": "gs://b/checkpoint", "timeColumn": "t"}
    settings = {"storage.aws_region": "eu-west-1", "storage.google_bucket": "b"}
    assert parse_sink({**given, **settings}).storage_options == {"aws_region": "eu-west-1", "google_bucket": "b"}
    with pytest.raises(InvalidOptionError, match="found an option of Azure for a log in S3 and Google"):
        parse_sink({**given, "storage.azure_storage_account_name": "lake"})


def test_command_refuses_a_misspelt_option_before_it_asks(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["stats", "s3://bucket/log"], ["ls", "s3://bucket/logs"], ["frontier", "s3://bucket/log"]):
        assert main([*verb, "--storage", f"aws_secret_acces_key={SECRET}"]) == 2
        said = capsys.readouterr()
        assert "did you mean 'aws_secret_access_key'" in said.err
        assert SECRET not in said.err + said.out


def test_cut_takes_options_of_all_its_stores(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", _SCHEMA, minimum=(0,))
    cut = spark_timely.cut([log])
    entry = {**cut.to_json()["logs"][0], "path": "gs://bucket/log"}  # type: ignore[index]
    both = Cut.from_json({**cut.to_json(), "logs": [*cut.to_json()["logs"], entry]})  # type: ignore[misc]
    with pytest.raises(InvalidOptionError, match="found no option of that name for Google"):
        spark_timely.wait(both, timeout_s=0, storage_options={"aws_regoin": "x"})
