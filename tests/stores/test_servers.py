"""The servers that logs are tested on do what such a store must do."""

from __future__ import annotations

import http.client
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.stores.servers import BUCKET, STORES, MissingError, Server, prepare

ANYBODY = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"


def put(address: str, key: str, content: bytes) -> int:
    """Put an object where there is none; moto asks who it is, and looks at no signature."""
    client = http.client.HTTPConnection(address, timeout=60)
    try:
        client.request("PUT", f"/{BUCKET}/{key}", content, {"If-None-Match": "*", "Authorization": ANYBODY})
        answer = client.getresponse()
        answer.read()
        return answer.status
    finally:
        client.close()


@pytest.mark.parametrize("server", ["moto"], indirect=True)
def test_of_conditional_puts_at_one_moment_one_succeeds(server: Server) -> None:
    for attempt in range(5):
        with ThreadPoolExecutor(8) as pool:
            found = Counter(pool.map(lambda key: put(server.address, key, b"content"), [f"once-{attempt}"] * 8))
        assert found == {200: 1, 412: 7}


def test_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such disk')"]
    server = Server("broken", "s3", command, 1, tmp_path, {})
    with pytest.raises(MissingError, match=r"broken ended with 1: no such disk"):
        server.start()
    server.stop()


@pytest.mark.parametrize(("name", "said"), [("minio", "Go"), ("azurite", r"Node\.js")])
def test_server_without_its_tools_says_which(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.stores.servers.CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match=said):
        prepare(name)
    with pytest.raises(MissingError, match=said):
        STORES[name](tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["moto", "minio", "azurite"])
def test_server_ends_and_begins_again_on_its_port(name: str, tmp_path: Path) -> None:
    server = STORES[name](tmp_path).start()
    try:
        address = server.address
        server.stop()
        with pytest.raises(OSError, match="refused"):
            put(address, "key", b"content")
        server.start()
        assert server.address == address
        server.kill()
        server.kill()
        server.start()
    finally:
        server.stop()
