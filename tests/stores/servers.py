"""Object stores on loopback: moto, MinIO and Azurite, each a process of its own with its data in a folder.

`STORES` says which there are. MinIO is built from its Go module, Azurite installed from npm, into `build/stores`, when
they are first asked for; that takes minutes, so the short lane has moto alone. What cannot be had says why
(`MissingError`).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.faults.harness import wait_until

CACHE = Path(__file__).resolve().parents[2] / "build" / "stores"
BUCKET = "bucket"
REGION = "us-east-1"
# Its releases are named by dates, which are no versions for Go's tools.
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
AZURITE = "azurite@3.37.0"
START_S = 120.0
GET_S = 3600.0

_USER, _PASSWORD = "spark-timely", "not-a-secret-of-anybody"
# Azurite's own account and key: every copy of it has these.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class MissingError(RuntimeError):
    """A server cannot be had on this machine; the text says why."""


@dataclass
class Server:
    """A store that runs.

    Parameters
    ----------
    name, style : str
        As in `STORES`; the style is the proxy's.
    command : list of str
        Starts it.
    port : int
    folder : Path
        Where its data are, and what it says (`server.txt`).
    environment : dict
        Added to this process's.
    """

    name: str
    style: str
    command: list[str]
    port: int
    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Start it, also again with the data that it had; return when it answers."""
        with (self.folder / "server.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        wait_until(self._answers, deadline_s=START_S, what=f"an answer of {self.name}", report=self.text, step_s=0.05)
        _make_bucket(self)
        return self

    def stop(self) -> None:
        """End it; nothing happens where it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._end(signal.SIGKILL)

    def text(self) -> str:
        """Return the end of what it said."""
        return (self.folder / "server.txt").read_text(errors="replace")[-4000:]

    def url(self, path: str) -> str:
        """Return the URL of a path in the bucket or container."""
        return f"{'s3' if self.style == 's3' else 'az'}://{BUCKET}/{path}"

    def options(self, address: str | None = None) -> dict[str, str]:
        """Return the storage options by which delta-rs comes to it, or to it through the proxy at an address."""
        host = address or self.address
        if self.style == "azure":
            return {
                "azure_storage_account_name": _ACCOUNT,
                "azure_storage_account_key": _ACCOUNT_KEY,
                "azure_storage_endpoint": f"http://{host}/{_ACCOUNT}",
                "allow_http": "true",
            }
        return {
            "aws_endpoint": f"http://{host}",
            "aws_access_key_id": _USER,
            "aws_secret_access_key": _PASSWORD,
            "aws_region": REGION,
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }

    def unsigned(self, address: str | None = None) -> dict[str, str]:
        """Return options of requests that a proxy may change: without a signature where the store looks at it."""
        options = self.options(address)
        if self.name != "minio":
            return options
        self.permit("*")
        names = ("aws_access_key_id", "aws_secret_access_key")
        return {key: value for key, value in options.items() if key not in names} | {"aws_skip_signature": "true"}

    def permit(self, *rights: str) -> None:
        """Let anybody do this in MinIO's bucket, and nothing else: ``"GetObject"``, ``"ListBucket"`` …"""
        import boto3

        anybody = {"Effect": "Allow", "Principal": {"AWS": ["*"]}}
        bucket = f"arn:aws:s3:::{BUCKET}"
        # A right of the bucket or of objects is not taken for the other.
        of = {"*": [bucket, f"{bucket}/*"], "ListBucket": [bucket]}
        rules = [{**anybody, "Action": [f"s3:{name}"], "Resource": of.get(name, [f"{bucket}/*"])} for name in rights]
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{self.address}",
            aws_access_key_id=_USER,
            aws_secret_access_key=_PASSWORD,
            region_name=REGION,
        )
        client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": rules}))

    def _answers(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise MissingError(f"{self.name} ended with {self.process.returncode}: {self.text()}")
        try:
            _ask(self.address, "GET", "/")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _end(self, how: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def moto(folder: Path) -> Server:
    """Return S3 as `moto` plays it, in memory; a kill loses what it had."""
    port = _free_port()
    return Server("moto", "s3", [sys.executable, "-m", "tests.stores.moto_server", str(port)], port, folder, _PYTHON)


def minio(folder: Path) -> Server:
    """Return MinIO with its data in the folder."""
    program = _built_minio()
    port = _free_port()
    command = [str(program), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "data")]
    environment = {
        "MINIO_ROOT_USER": _USER,
        "MINIO_ROOT_PASSWORD": _PASSWORD,
        "MINIO_REGION": REGION,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_CI_CD": "on",  # takes the system's own disk
        "HOME": str(folder),
    }
    (folder / "data").mkdir(exist_ok=True)
    return Server("minio", "s3", command, port, folder, environment)


def azurite(folder: Path) -> Server:
    """Return Azurite with its data in the folder; it ignores `startFrom`, which the proxy supplies."""
    node, script = _installed_azurite()
    port = _free_port()
    command = [node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    return Server("azurite", "azure", command, port, folder, {})


STORES: dict[str, Callable[[Path], Server]] = {"moto": moto, "minio": minio, "azurite": azurite}
"""What makes each server, not yet started, with its data in a folder; may raise `MissingError`."""

_PYTHON = {"PYTHONPATH": str(CACHE.parents[1])}


def prepare(name: str) -> None:
    """Build or install the server of a name, where that was not done; minutes the first time.

    Raises
    ------
    MissingError
        If it cannot be had.
    """
    if name == "minio":
        _built_minio()
    elif name == "azurite":
        _installed_azurite()


# Where they come from ---------------------------------------------------------------------------------


def _built_minio() -> Path:
    program = CACHE / "bin" / "minio"
    with alone("minio"):
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                raise MissingError("MinIO is built with Go, which is not here")
            environment = {"GOBIN": str(program.parent), "GOFLAGS": "-buildvcs=false"}
            _run([go, "install", MINIO], environment)
    return program


def _installed_azurite() -> tuple[str, Path]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingError("Azurite runs in Node.js, which is not here")
    folder = CACHE / "azurite"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with alone("azurite"):
        if not script.exists():
            _run([npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", AZURITE], {})
    return node, script


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Let one process at a time get what has a name: build, install or download it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Run what builds or installs; raise what it said where it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=GET_S,
        check=False,
        cwd=CACHE,
        env={**os.environ, **environment},
    )
    if done.returncode != 0:
        raise MissingError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}")


# How they are spoken to -------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _ask(address: str, method: str, path: str, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def _make_bucket(server: Server) -> None:
    """Make the bucket or container; nothing happens where it is there."""
    if server.name == "minio":
        # A folder of the drive is a bucket.
        (server.folder / "data" / BUCKET).mkdir(exist_ok=True)
    elif server.style == "s3":
        _ask(server.address, "PUT", f"/{BUCKET}")
    else:
        path = f"/{_ACCOUNT}/{BUCKET}?restype=container"
        status = _ask(server.address, "PUT", path, _azure_headers("PUT", f"/{_ACCOUNT}/{BUCKET}\nrestype:container"))
        assert status in (201, 409), f"the container was answered by {status}"


def _azure_headers(method: str, resource: str) -> dict[str, str]:
    """Return the headers of a request to Azure without a body, signed by the account's key."""
    headers = {"x-ms-date": formatdate(time.time(), usegmt=True), "x-ms-version": "2021-12-02"}
    named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = f"{method}{chr(10) * 12}{named}/{_ACCOUNT}{resource}"
    key = base64.b64decode(_ACCOUNT_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    return {**headers, "Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
