"""Credentials of S3, Azure and Google in jobs over stores: in nothing that a good or a failing run leaves or says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from spark_timely.log.log import open_log
from tests.faults.harness import Job
from tests.stores.conftest import Place
from tests.stores.hadoop import jars, s3a_settings
from tests.stores.servers import MissingError

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]

_NOBODY = "127.0.0.1:9"
_WRONG = "hidden/aws+secret000000002"
_AZURE_KEY = base64.b64encode(b"hidden-account-key-of-nobody").decode()
_SAS = "sv=2024-01-01&sig=hidden00000005"
_PRIVATE = "hidden00000007"
_BEARER = "hidden00000009"
_FAST = {"max_retries": "0", "allow_http": "true"}


def failing(place: Place) -> list[tuple[str, dict[str, str]]]:
    """Return URLs and storage options that lead to nobody, or are refused."""
    account = {"type": "service_account", "client_email": "a@b", "private_key_id": "1", "private_key": _PRIVATE}
    open_ = {"gcs_base_url": f"http://{_NOBODY}", "disable_oauth": True}
    azure = {"azure_storage_account_name": "somebody", "azure_storage_endpoint": f"http://{_NOBODY}/somebody"}
    s3 = {"aws_access_key_id": "AKIAhidden0000000001", "aws_secret_access_key": _WRONG, "aws_region": "us-east-1"}
    return [
        (place.server.url("nothing"), {**place.options, "aws_secret_access_key": _WRONG, "max_retries": "0"}),
        ("s3://bucket/log", {**s3, "aws_endpoint": f"http://{_NOBODY}", "aws_session_token": _BEARER, **_FAST}),
        ("az://container/log", {**azure, "azure_storage_account_key": _AZURE_KEY, **_FAST}),
        ("abfss://container@somebody.dfs.core.windows.net/log", {**azure, "azure_storage_sas_key": _SAS, **_FAST}),
        ("gs://bucket/log", {"google_service_account_key": json.dumps({**account, **open_}), **_FAST}),
        ("gs://bucket/log", {"google_service_account_key": json.dumps({"private_key": _PRIVATE}), **_FAST}),
    ]


def signs(place: Place) -> list[str]:
    """Return what must not be seen, also as a URL and as JSON have it."""
    secrets = [place.options["aws_secret_access_key"], _WRONG, _AZURE_KEY, _SAS, _PRIVATE, _BEARER]
    return sorted({form for each in secrets for form in (each, quote(each, safe=""), json.dumps(each)[1:-1])})


@pytest.mark.parametrize("server", ["minio"], indirect=True)
def test_jobs_over_stores_show_no_credential(place: Place, tmp_path: Path) -> None:
    options = place.options
    try:
        settings = {"spark.jars": jars(), **s3a_settings(place.proxy.address)}
    except MissingError as error:  # Spark's own JARs for S3, which are downloaded: without a network there are none
        pytest.skip(str(error))
    settings["spark.hadoop.fs.s3a.access.key"] = options["aws_access_key_id"]
    settings["spark.hadoop.fs.s3a.secret.key"] = options["aws_secret_access_key"]
    folder = tmp_path / "job"
    root = place.url.replace("s3://", "s3a://").replace(" ", "-")
    spec = {"folder": str(folder), "root": root, "good": options, "failing": failing(place), "settings": settings}
    spec["hadoop"] = True
    job = Job("store_secrets_job.py", spec, tmp_path / "runs")
    job.finish()
    said = job.output.read_text()
    assert said.count("\nGOOD") == 1
    assert said.count("\nBAD") == len(spec["failing"])
    bucket = place.server.folder / "data" / "bucket" / root.rpartition("/")[2]
    files = [path for at in (folder, bucket) for path in at.rglob("*") if path.is_file()]
    assert any(
        b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in (folder / "events").rglob("*/events*")
    )
    assert any("checkpoints" in path.parts for path in files)
    for sign in signs(place):
        lines = [line[:300] for line in said.splitlines() if sign in line]
        assert lines == [], sign
        assert [path for path in files if sign.encode() in path.read_bytes()] == [], sign


@pytest.mark.parametrize("server", ["azurite"], indirect=True)
def test_job_over_azure_shows_no_key(place: Place, tmp_path: Path) -> None:
    options, folder = place.options, tmp_path / "job"
    root = place.url.replace(" ", "-")
    spec = {"folder": str(folder), "root": root, "good": options, "failing": [], "settings": {}, "hadoop": False}
    job = Job("store_secrets_job.py", spec, tmp_path / "runs")
    job.finish()
    said = job.output.read_text()
    assert said.count("\nGOOD") == 1
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any(b"SparkListenerSQLExecutionStart" in content for content in written.values())
    for name in ("log", "sink", "counts"):
        storage = open_log(f"{root}/{name}", storage_options=options).core.storage
        written |= {
            Path(name, at, each): bytes(storage.read(f"{at}/{each}"))
            for at in storage.names()
            for each in storage.names(at)
        }
    key = options["azure_storage_account_key"]
    for sign in {key, quote(key, safe=""), json.dumps(key)[1:-1]}:
        assert [line[:300] for line in said.splitlines() if sign in line] == []
        assert [path for path, content in written.items() if sign.encode() in content] == []
