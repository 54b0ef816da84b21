"""The proxy that the tests of stores stand on does what it says."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.faults.harness import wait_until
from tests.stores.proxy import Plan, Proxy, ProxyProcess, Rule, Seen, control, started_from

BODY = b"what is stored"


class Upstream(BaseHTTPRequestHandler):
    """A store of one answer that remembers what it was asked."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    asked: list[tuple[str, str, dict[str, str], bytes]]

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        first, last = 0, len(BODY)
        if wanted := self.headers.get("Range"):
            first, last = (int(end) for end in wanted.removeprefix("bytes=").split("-"))
        answer = BODY[first : last + 1]
        self.send_response_only(206 if wanted else 200)
        self.send_header("ETag", '"mark"')
        if self.path.endswith("chunks"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for byte in answer:
                self.wfile.write(b"1\r\n%c\r\n" % byte)
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer


@pytest.fixture
def asked() -> list[tuple[str, str, dict[str, str], bytes]]:
    return []


@pytest.fixture
def proxy(asked: list[Any]) -> Iterator[Proxy]:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Upstream,), {"asked": asked}))
    upstream.daemon_threads = True
    upstream.block_on_close = False
    thread = threading.Thread(target=upstream.serve_forever, args=(0.02,))
    thread.start()
    try:
        with Proxy(f"127.0.0.1:{upstream.server_address[1]}") as proxy:
            yield proxy
    finally:
        upstream.shutdown()
        upstream.server_close()
        thread.join()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(proxy.address, timeout=30)
    yield connection
    connection.close()


def ask(client: http.client.HTTPConnection, method: str, path: str, *args: Any, **more: Any) -> tuple[int, bytes]:
    client.request(method, path, *args, **more)
    answer = client.getresponse()
    return answer.status, answer.read()


# What passes ----------------------------------------------------------------------------------------


def test_requests_pass_as_they_came(proxy: Proxy, client: http.client.HTTPConnection, asked: list[Any]) -> None:
    headers = {"Host": "bucket.example:1", "Authorization": "signed", "If-None-Match": "*", "X-A": "b"}
    assert ask(client, "PUT", "/bucket/a%20b?x=%2F&y", b"content", headers=headers) == (200, BODY)
    ((method, path, seen, body),) = asked
    assert (method, path, body) == ("PUT", "/bucket/a%20b?x=%2F&y", b"content")
    expected = {name.lower(): value for name, value in headers.items()}
    assert {name: seen[name] for name in expected} == expected
    assert seen["content-length"] == "7"


def test_connections_are_kept(proxy: Proxy, client: http.client.HTTPConnection, asked: list[Any]) -> None:
    client.connect()
    own = client.sock
    for _ in range(5):
        assert ask(client, "GET", "/bucket/key")[0] == 200
    assert client.sock is own
    assert len(asked) == 5


def test_connections_beyond_a_thousand_are_kept(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    # Clients keep a connection for each request that they had under way, for a minute and a half.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1100:
            taken.append(os.dup(0))
        client.connect()
        own = client.sock
        for _ in range(3):
            assert ask(client, "GET", "/bucket/key") == (200, BODY)
        assert client.sock is own
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_head_says_the_length_and_has_no_body(client: http.client.HTTPConnection) -> None:
    client.request("HEAD", "/bucket/key")
    answer = client.getresponse()
    assert (answer.getheader("Content-Length"), answer.getheader("ETag"), answer.read()) == ("14", '"mark"', b"")
    assert ask(client, "GET", "/bucket/key") == (200, BODY)


def test_ranges_pass(client: http.client.HTTPConnection) -> None:
    assert ask(client, "GET", "/bucket/key", headers={"Range": "bytes=5-6"}) == (206, b"is")


def test_bodies_in_chunks_pass_both_ways(client: http.client.HTTPConnection, asked: list[Any]) -> None:
    parts = [b"one", b"two" * 1000, b"three"]
    assert ask(client, "PUT", "/bucket/chunks", iter(parts), encode_chunked=True) == (200, BODY)
    assert asked[0][3] == b"".join(parts)
    assert asked[0][2]["transfer-encoding"] == "chunked"


def test_who_expects_it_is_told_to_continue(proxy: Proxy, asked: list[Any]) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client, client.makefile("rb") as answer:
        client.sendall(b"PUT /bucket/key HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert answer.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answer.readline() == b"\r\n"
        client.sendall(b"abc")
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
    assert asked[0][3] == b"abc"


def test_body_that_is_cut_off_does_not_reach_the_store(proxy: Proxy, asked: list[Any]) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
        client.sendall(b"PUT /bucket/key HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\nabc")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert (asked, proxy.requests) == ([], [])


# What is counted ------------------------------------------------------------------------------------


def test_requests_are_counted_by_kind_and_key(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    ask(client, "GET", "/bucket/before")
    with proxy.counting() as seen:
        for method, path in [
            ("GET", "/bucket/a/b%20c"),
            ("HEAD", "/bucket/a"),
            ("GET", "/bucket?list-type=2&prefix=a%2Fb"),
            ("GET", "/bucket/?list-type=2"),
            ("PUT", "/bucket/a?partNumber=1&uploadId=x"),
            ("POST", "/bucket?delete"),
            ("DELETE", "/bucket/a"),
        ]:
            ask(client, method, path)
        assert seen.total == 7, "known at once"
    ask(client, "GET", "/bucket/behind")
    assert seen.by_kind == {"GET": 1, "HEAD": 1, "LIST": 2, "PUT": 1, "POST": 1, "DELETE": 1}
    assert seen.keys("GET") == ["a/b c"]
    assert seen.keys("LIST") == ["a/b", ""]
    assert {request.status for request in seen.requests} == {200}
    assert "7 requests" in str(seen)
    assert len(proxy.requests) == 9


def test_lists_of_azure_are_counted_as_such(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    proxy.style = "azure"
    with proxy.counting() as seen:
        ask(client, "GET", "/account/container/a/b")
        ask(client, "HEAD", "/account/container?restype=container")
        proxy.style = "s3"  # the answer is no XML
        ask(client, "GET", "/container?restype=container&comp=list&prefix=a")
    assert [(request.kind, request.key) for request in seen.requests] == [("GET", "a/b"), ("HEAD", ""), ("LIST", "a")]


def test_lists_of_azure_begin_where_they_were_asked_to() -> None:
    names = "".join(f"<Blob><Name>{name}</Name><Size>1</Size></Blob>" for name in ("a", "b", "c"))
    text = f"<R><Blobs>{names}<BlobPrefix><Name>a/</Name></BlobPrefix></Blobs><NextMarker /></R>".encode()
    assert started_from(text, "/x/y?comp=list") == text
    kept = started_from(text, "/x/y?comp=list&startFrom=b").decode()
    assert [name in kept for name in ("<Name>a<", "<Name>b<", "<Name>c<", "a/")] == [False, True, True, False]
    assert "NextMarker" in kept


# What is broken -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["500", "503", "403"])
def test_errors_before_do_not_reach_the_store(
    fault: str, proxy: Proxy, client: http.client.HTTPConnection, asked: list[Any]
) -> None:
    with proxy.breaking(Rule(fault)), proxy.counting() as seen:
        status, text = ask(client, "PUT", "/bucket/key", b"content")
        assert ask(client, "HEAD", "/bucket/key") == (int(fault), b"")
    code = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied"}[fault]
    assert (status, f"<Code>{code}</Code>" in text.decode()) == (int(fault), True)
    assert asked == []
    assert ask(client, "GET", "/bucket/key") == (200, BODY), "the connection is in order"
    assert [(request.fault, request.status, request.upstream) for request in seen.requests] == [
        (fault, int(fault), 0)
    ] * 2


def test_errors_of_azure_name_their_code_in_a_header(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    proxy.style = "azure"
    with proxy.breaking(Rule("503")):
        client.request("GET", "/account/container/key")
        answer = client.getresponse()
        assert (answer.getheader("x-ms-error-code"), b"<Code>ServerBusy</Code>" in answer.read()) == (
            "ServerBusy",
            True,
        )


def test_error_after_success_reaches_the_store(
    proxy: Proxy, client: http.client.HTTPConnection, asked: list[Any]
) -> None:
    with proxy.breaking(Rule("500-after")), proxy.counting() as seen:
        assert ask(client, "PUT", "/bucket/key", b"content")[0] == 500
    assert len(asked) == 1
    assert (seen.requests[0].status, seen.requests[0].upstream) == (500, 200)


@pytest.mark.parametrize(("fault", "reached"), [("reset", 0), ("hang", 0), ("lost", 1), ("hang-after", 1), ("cut", 1)])
def test_connections_are_reset(
    fault: str, reached: int, proxy: Proxy, client: http.client.HTTPConnection, asked: list[Any]
) -> None:
    with proxy.breaking(Rule(fault, delay=0.05)):
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            ask(client, "GET", "/bucket/key")
        assert len(asked) == reached
    client.close()
    assert ask(client, "GET", "/bucket/key") == (200, BODY)
    assert proxy.broken == {fault: 1}


def test_request_that_hangs_ends_with_the_proxy(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    proxy.rules = [Rule("hang", delay=3600)]
    client.request("GET", "/bucket/key")
    wait_until(lambda: bool(proxy.broken), deadline_s=30, what="the request")
    proxy._stopped.set()
    with pytest.raises(ConnectionResetError):
        client.getresponse()


def test_header_is_stripped_from_some_keys(
    proxy: Proxy, client: http.client.HTTPConnection, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(proxy, "pause", waited.append)
    with proxy.breaking(Rule("strip", kind="PUT", key="_delta_log/", delay=0.4)):
        for key in ("a/_delta_log/1.json", "a/b.parquet"):
            ask(client, "PUT", f"/bucket/{key}", b"x", headers={"If-None-Match": "*", "X-A": "b"})
    assert ["if-none-match" in headers for _, _, headers, _ in asked] == [False, True]
    assert [headers["x-a"] for _, _, headers, _ in asked] == ["b", "b"]
    assert sum(waited) == 0.4


def test_answers_come_late_by_rule_and_always(
    proxy: Proxy, client: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(proxy, "pause", waited.append)
    proxy.delay = 0.25
    with proxy.breaking(Rule("delay", kind="GET", delay=1), Rule("slow", key="^b$", delay=2), Rule("500", key="^c$")):
        for key, more in [("a", 1.0), ("b", 3.0), ("c", 1.0)]:
            waited.clear()
            ask(client, "GET", f"/bucket/{key}")
            assert sum(waited) == 0.25 + more
    assert proxy.broken == {"delay": 1, "delay slow": 1, "delay 500": 1}


def test_rules_are_spent(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    with proxy.breaking(Rule("503", kind="GET", skip=1, times=2), Rule("403", kind="PUT")):
        assert [ask(client, "GET", "/bucket/key")[0] for _ in range(5)] == [200, 503, 503, 200, 200]
        assert ask(client, "PUT", "/bucket/key", b"")[0] == 403
    assert proxy.rules == []
    assert ask(client, "PUT", "/bucket/key", b"")[0] == 200


def test_store_that_has_gone_is_a_reset() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with Proxy(f"127.0.0.1:{nobody.getsockname()[1]}") as proxy:
            client = http.client.HTTPConnection(proxy.address, timeout=30)
            with pytest.raises(ConnectionResetError):
                ask(client, "GET", "/bucket/key")
            client.close()
            assert "refused" in str(Seen(proxy.since(0)))


# What a seed draws ----------------------------------------------------------------------------------


def test_plan_is_the_same_each_time(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    def drawn(seed: int, limit: int | None = None) -> list[int]:
        with proxy.planned(Plan(seed, 0.5, ("500", "503", "403"), limit=limit)):
            return [ask(client, "GET", "/bucket/key")[0] for _ in range(60)]

    first = drawn(1)
    assert drawn(1) == first
    assert drawn(2) != first
    assert set(first) == {200, 500, 503, 403}
    assert sum(status != 200 for status in drawn(1, limit=5)) == 5
    assert ask(client, "GET", "/bucket/key") == (200, BODY)


def test_plan_breaks_no_key_for_ever(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    with proxy.planned(Plan(1, 1.0, ("500",), in_a_row=2)):
        assert [ask(client, "GET", "/bucket/a")[0] for _ in range(6)] == [500, 500, 200, 500, 500, 200]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Rule("503 "),
        lambda: Rule("503", kind="get"),
        lambda: Rule("503", key="("),
        lambda: Plan(1, 0.5, ("none",)),
        lambda: Proxy("127.0.0.1:1", style="gcs"),
    ],
)
def test_what_does_not_exist_is_refused(wrong: Any) -> None:
    with pytest.raises((ValueError, re.error), match=r"found|missing"):
        wrong()


# As a program ---------------------------------------------------------------------------------------


def test_orders_are_taken_on_a_port(proxy: Proxy, client: http.client.HTTPConnection) -> None:
    server = control(proxy)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    orders = http.client.HTTPConnection(f"127.0.0.1:{server.server_address[1]}", timeout=30)

    def order(method: str, path: str, given: Any = None) -> tuple[int, Any]:
        status, text = ask(orders, method, path, json.dumps(given) if given is not None else None)
        return status, json.loads(text)

    try:
        assert order("PUT", "/rules", [{"fault": "503", "kind": "GET", "times": 1}]) == (200, None)
        assert [ask(client, "GET", "/bucket/key")[0] for _ in range(2)] == [503, 200]
        assert order("PUT", "/plan", {"seed": 1, "rate": 1.0, "faults": ["403"], "limit": 1}) == (200, None)
        assert [ask(client, "GET", "/bucket/key")[0] for _ in range(2)] == [403, 200]
        stats = {"total": 4, "by_kind": {"GET": 4}, "faults": {"503": 1, "403": 1}}
        assert order("GET", "/stats") == (200, stats)
        assert [request["status"] for request in order("GET", "/requests")[1]] == [503, 200, 403, 200]
        assert order("PUT", "/rules", [{"fault": "none"}])[0] == 400
        assert order("PUT", "/rules", [{"what": "503"}])[0] == 400
        assert order("GET", "/nothing")[0] == 404
        assert order("POST", "/reset") == (200, None)
        assert (proxy.requests, proxy.plan, proxy.rules) == ([], None, [])
    finally:
        orders.close()
        server.shutdown()
        server.server_close()
        thread.join()


def test_proxy_in_a_process_is_told_the_same(proxy: Proxy) -> None:
    with ProxyProcess(proxy.address) as other:
        client = http.client.HTTPConnection(other.address, timeout=30)
        assert ask(client, "GET", "/bucket/key") == (200, BODY)
        with other.breaking(Rule("503", times=1)), other.counting() as seen:
            assert other.rules == [Rule("503", times=1)]
            assert [ask(client, "GET", "/bucket/key")[0] for _ in range(2)] == [503, 200]
            assert seen.total == 2
        plan = Plan(1, 1.0, ["403"])
        with other.planned(plan):
            assert other.plan == plan
            assert ask(client, "HEAD", "/bucket/key")[0] == 403
        assert (other.rules, other.plan) == ([], None)
        assert [(request.kind, request.status) for request in seen.requests] == [("GET", 503), ("GET", 200)]
        assert other.broken == {"503": 1, "403": 1}
        other.delay = 0.001
        assert ask(client, "GET", "/bucket/key") == (200, BODY)
        with pytest.raises(ValueError, match="found"):
            other._order("PUT", "/rules", [{"fault": "none"}])
        other.reset()
        assert (other.since(0), other.delay) == ([], 0.0)
        client.close()
