"""A reverse proxy that counts, delays and breaks the requests to an object store.

It stands between a client and a store, keeps the `Host` header, so that signatures stay valid, and speaks HTTP/1.1:
connections are kept, bodies may come in chunks, `HEAD`, `Range` and `Expect: 100-continue` pass. A client that holds
Python's lock while it waits, as delta-rs does, needs it as a process: `ProxyProcess` starts one, and is told the same.
In a test::

    with ProxyProcess(server.address, style="s3") as proxy:
        options = server.options(proxy.address)
        with proxy.counting() as seen:
            writer.append(rows)
        assert seen.total <= 6, str(seen)
        with proxy.breaking(Rule("lost", kind="PUT", key="_delta_log/", times=1)):
            writer.append(rows)

As a program, with a second port that takes orders (`GET /stats`, `GET /requests`, `POST /reset`,
`PUT /rules`, `PUT /plan`, `PUT /delay`)::

    python -m tests.stores.proxy --upstream 127.0.0.1:9000 --port 9001 --control 9002
    curl -X PUT localhost:9002/rules -d '[{"fault": "503", "kind": "PUT", "times": 3}]'

What a fault does is in `FAULTS`. A rule is spent after as many requests as its `times` says; a plan draws from a seed
which request meets which fault: the same number of a request meets the same fault each time.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import select
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

FAULTS = {
    "delay": "the store is asked `delay` seconds late",
    "slow": "the answer comes `delay` seconds late, after the store has done what was asked",
    "strip": "the header `header` is not passed on; the store is asked `delay` seconds late",
    "500": "an internal error; the store is not asked",
    "503": "too many requests; the store is not asked",
    "403": "no permission; the store is not asked",
    "500-after": "an internal error; the store has done what was asked",
    "hang": "no answer for `delay` seconds, then a reset; the store is not asked",
    "hang-after": "no answer for `delay` seconds, then a reset; the store has done what was asked",
    "reset": "the connection is reset; the store is not asked",
    "lost": "the connection is reset; the store has done what was asked",
    "cut": "the connection is reset in the middle of the answer's body; the store has done what was asked",
}
KINDS = ("GET", "HEAD", "LIST", "PUT", "POST", "DELETE")
PASSES = frozenset({"delay", "slow", "strip"})  # the store is asked, and what it says is said
DONE = frozenset({"500-after", "hang-after", "lost", "cut"})  # the store is asked, what it says is not

CODES = {
    "s3": {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied"},
    "azure": {"500": "InternalError", "503": "ServerBusy", "403": "AuthorizationFailure"},
}
_TEXTS = {
    "500": "We encountered an internal error. Please try again.",
    "503": "Please reduce your request rate.",
    "403": "Access Denied.",
}
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "proxy-connection", "te", "trailer", "upgrade"})
_UPSTREAM_S = 120.0
_NO_BODY = frozenset({204, 304})


@dataclass
class Request:
    """One request that came in.

    Attributes
    ----------
    number : int
        From 0, in the order in which they came.
    method, path : str
        As they came, the query included.
    kind : str
        One of `KINDS`: a GET of a bucket or container is a LIST.
    key : str
        The object's name, or the prefix of a LIST.
    fault : str
        What was done to it; empty where nothing was.
    status : int
        What was answered; 0 where nothing was (yet).
    upstream : int
        What the store answered; 0 where it was not asked or did not answer (yet).
    size : int
        Bytes of the request's body.
    problem : str
        Why the store gave no answer, where it was asked and gave none.
    """

    number: int
    method: str
    path: str
    kind: str
    key: str
    fault: str = ""
    status: int = 0
    upstream: int = 0
    size: int = 0
    problem: str = ""


@dataclass
class Seen:
    """The requests since a moment.

    Attributes
    ----------
    requests : list of Request
        In the order in which they came.
    """

    requests: list[Request] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many."""
        return len(self.requests)

    @property
    def by_kind(self) -> Counter[str]:
        """How many of each kind; 0 for one that did not come."""
        return Counter(request.kind for request in self.requests)

    def keys(self, kind: str) -> list[str]:
        """Return the keys of the requests of a kind."""
        return [request.key for request in self.requests if request.kind == kind]

    def __str__(self) -> str:
        lines = [
            f"  {r.kind:6} {r.key} -> {r.status or 'no answer'} {r.fault} {r.problem}".rstrip() for r in self.requests
        ]
        return "\n".join([f"{self.total} requests: {dict(self.by_kind)}", *lines])


@dataclass(frozen=True)
class Rule:
    """Which requests meet a fault.

    Parameters
    ----------
    fault : str
        One of `FAULTS`.
    kind : str
        One of `KINDS`; all where it is empty.
    key : str
        A regular expression that is looked for in the key.
    delay : float
        Seconds.
    header : str
        The header that is stripped.
    skip : int
        So many of the requests pass first.
    times : int or None
        So many requests then meet the fault; None: all.
    """

    fault: str
    kind: str = ""
    key: str = ""
    delay: float = 0.0
    header: str = "If-None-Match"
    skip: int = 0
    times: int | None = None

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"found fault={self.fault!r}, there are {sorted(FAULTS)}")
        if self.kind not in ("", *KINDS):
            raise ValueError(f"found kind={self.kind!r}, there are {KINDS}")
        re.compile(self.key)

    def fits(self, request: Request) -> bool:
        """Return whether a request is one of those."""
        return self.kind in ("", request.kind) and re.search(self.key, request.key) is not None


@dataclass(frozen=True)
class Plan:
    """Faults that a seed draws.

    Parameters
    ----------
    seed : int
    rate : float
        Which part of the requests meets a fault.
    faults : sequence of str
        Those that are drawn, each as often.
    limit : int or None
        So many faults altogether; None: no end.
    delay : float
        Seconds, of those that have one.
    in_a_row : int
        At most so many requests of one kind and key meet a fault one after the other.
    """

    seed: int
    rate: float
    faults: Sequence[str] = ("500", "503", "403", "500-after", "hang", "reset", "lost")
    limit: int | None = None
    delay: float = 1.0
    in_a_row: int = 2

    def __post_init__(self) -> None:
        if not set(self.faults) <= set(FAULTS):
            raise ValueError(f"found faults={list(self.faults)}, there are {sorted(FAULTS)}")

    def drawn(self, number: int) -> str:
        """Return the fault of the request of a number; an empty text for none."""
        draw = random.Random(f"{self.seed}/{number}")
        return draw.choice(list(self.faults)) if draw.random() < self.rate else ""


class _ResetError(Exception):
    """The client's connection is to be reset."""


class Orders:
    """What a proxy is told, wherever it runs."""

    rules: Any
    plan: Any

    def since(self, start: int, stop: int | None = None) -> list[Request]:
        """Return the requests from a place on, of all since the start or the last `reset`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def breaking(self, *rules: Rule) -> Iterator[None]:
        """Have these rules, and no others, within the block; afterwards those of before."""
        before = self.rules
        self.rules = list(rules)
        try:
            yield
        finally:
            self.rules = before

    @contextlib.contextmanager
    def planned(self, plan: Plan) -> Iterator[None]:
        """Have a plan within the block; afterwards none."""
        self.plan = plan
        try:
            yield
        finally:
            self.plan = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[Seen]:
        """Give the requests that come within the block: `seen.total`, `seen.by_kind`, `seen.requests`.

        They are there at once; an assertion shows all of them: ``assert seen.total <= 6, str(seen)``.
        """
        seen = _Running(self, self.total)
        try:
            yield seen
        finally:
            seen.stop = self.total

    @property
    def total(self) -> int:
        """How many requests came, since the start or the last `reset`."""
        return len(self.since(0))

    @property
    def broken(self) -> Counter[str]:
        """How many requests met which fault, since the start or the last `reset`."""
        return Counter(request.fault for request in self.since(0) if request.fault)


class Proxy(Orders):
    """A proxy in this process; it runs from `start` to `stop`, or within `with`.

    Parameters
    ----------
    upstream : str
        Host and port of the store: ``127.0.0.1:9000``.
    style : {'s3', 'azure'}
        How the store names things, and what its errors look like.
    port : int
        Where it listens, on loopback; 0 for a free one.
    delay : float
        Seconds that every request takes longer.

    Attributes
    ----------
    port : int
        Where it listens.
    address : str
        Host and port.
    requests : list of Request
        All that came since the start or the last `reset`.
    """

    def __init__(self, upstream: str, *, style: str = "s3", port: int = 0, delay: float = 0.0) -> None:
        if style not in CODES:
            raise ValueError(f"found style={style!r}, there are {sorted(CODES)}")
        self.upstream = upstream
        self.style = style
        self.delay = delay
        self.requests: list[Request] = []
        self._numbers = itertools.count()
        self._rules: list[Rule] = []
        self._met: Counter[int] = Counter()  # by place in the rules: how many requests fitted
        self._plan: Plan | None = None
        self._planned = 0
        self._row: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._server = _Server(("127.0.0.1", port), type("_Handler", (_Handler,), {"proxy": self}))
        self.port = int(self._server.server_address[1])
        self.address = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> Proxy:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; connections that are open are closed, requests that hang are reset."""
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()
        self._thread.join()

    def __enter__(self) -> Proxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What it is told ------------------------------------------------------------------------------

    @property
    def rules(self) -> list[Rule]:
        """The rules in force, in their order; setting them begins their counts anew."""
        return list(self._rules)

    @rules.setter
    def rules(self, rules: Sequence[Rule]) -> None:
        with self._lock:
            self._rules = list(rules)
            self._met.clear()

    @property
    def plan(self) -> Plan | None:
        """The plan in force; setting one begins its count anew, and numbers requests from 0."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        with self._lock:
            self._plan = plan
            self._planned = 0
            self._row.clear()
            self._numbers = itertools.count()

    def since(self, start: int, stop: int | None = None) -> list[Request]:
        """Return the requests from a place in `requests` on."""
        with self._lock:
            return self.requests[start:stop]

    def reset(self) -> None:
        """Forget requests, rules, plan and delay."""
        with self._lock:
            self.requests.clear()
        self.delay = 0.0
        self.rules = []
        self.plan = None

    # What it does ---------------------------------------------------------------------------------

    def taken(self, method: str, path: str) -> tuple[Request, list[Rule]]:
        """Note a request that came; return it, and what is to be done to it."""
        request = _request(next(self._numbers), method, path, self.style)
        with self._lock:
            self.requests.append(request)
            found: list[Rule] = []
            for place, rule in enumerate(self._rules):  # a few
                if not rule.fits(request):
                    continue
                if found and found[-1].fault not in PASSES:
                    break  # it is broken already
                self._met[place] += 1
                count = self._met[place] - rule.skip
                if count > 0 and (rule.times is None or count <= rule.times):
                    found.append(rule)
            if self._plan is not None and not (found and found[-1].fault not in PASSES):
                found += self._drawn(self._plan, request)
            request.fault = " ".join(rule.fault for rule in found)
        return request, found

    def _drawn(self, plan: Plan, request: Request) -> list[Rule]:
        fault = plan.drawn(request.number)
        which = (request.kind, request.key)
        if not fault or self._row[which] >= plan.in_a_row or (plan.limit is not None and self._planned >= plan.limit):
            self._row.pop(which, None)
            return []
        self._planned += 1
        self._row[which] += 1
        return [Rule(fault, delay=plan.delay)]

    def error(self, status: str, key: str) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of an error as the store says it."""
        code = CODES[self.style][status]
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{_TEXTS[status]}</Message>'
            f"<Resource>{key}</Resource><RequestId>0</RequestId></Error>"
        )
        headers = {"Content-Type": "application/xml"}
        if self.style == "azure":
            headers["x-ms-error-code"] = code
        return body.encode(), headers

    def pause(self, seconds: float) -> None:
        """Wait, or until the proxy is stopped."""
        if seconds > 0:
            self._stopped.wait(seconds)


class _Running(Seen):
    """The requests from a place on, until the block ends."""

    def __init__(self, proxy: Orders, start: int) -> None:
        self._proxy = proxy
        self._start = start
        self.stop: int | None = None

    @property
    def requests(self) -> list[Request]:  # type: ignore[override]
        """In the order in which they came."""
        return self._proxy.since(self._start, self.stop)


def _request(number: int, method: str, path: str, style: str) -> Request:
    """Return what a request is about; S3 paths begin with the bucket, Azurite's with account and container."""
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    places = 1 if style == "s3" else 2
    names = parts.path.lstrip("/").split("/", places)
    key = unquote(names[places]) if len(names) > places else ""
    kind = method
    if method == "GET" and ((style == "s3" and not key) or query.get("comp") == ["list"]):
        kind, key = "LIST", query.get("prefix", [""])[0]
    return Request(number, method, path, kind, key)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away in the middle is no news here.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one to the store."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: Proxy
    _store: http.client.HTTPConnection | None = None

    def log_message(self, *args: Any) -> None:
        """Print nothing: the requests are counted."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def finish(self) -> None:
        if self._store is not None:
            self._store.close()
        super().finish()

    def _answer(self) -> None:
        proxy = self.proxy
        body = self._body()
        request, rules = proxy.taken(self.command, self.path)
        request.size = len(body or b"")
        try:
            self._treat(request, rules, body)
        except _ResetError:
            self._reset()

    def _treat(self, request: Request, rules: list[Rule], body: bytes | None) -> None:
        proxy = self.proxy
        proxy.pause(proxy.delay)
        last = rules[-1] if rules else None
        breaks = last is not None and last.fault not in PASSES
        proxy.pause(sum(rule.delay for rule in rules if rule.fault in ("delay", "strip")))
        if last is not None and breaks and last.fault not in DONE:
            if last.fault in ("hang", "reset"):
                proxy.pause(last.delay if last.fault == "hang" else 0)
                raise _ResetError
            self._say(request, int(last.fault), *proxy.error(last.fault, request.key))
            return
        dropped = {rule.header.lower() for rule in rules if rule.fault == "strip"}
        status, headers, answer = self._ask(request, body, dropped)
        proxy.pause(sum(rule.delay for rule in rules if rule.fault == "slow"))
        if last is not None and breaks:
            if last.fault == "500-after":
                self._say(request, 500, *proxy.error("500", request.key))
                return
            if last.fault == "cut" and len(answer) > 1:
                self._head(status, headers, len(answer))
                self.wfile.write(answer[: len(answer) // 2])
            proxy.pause(last.delay if last.fault == "hang-after" else 0)
            raise _ResetError
        self._say(request, status, answer, headers)

    def _body(self) -> bytes | None:
        """Read the request's body; None if it has none."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return b"".join(parts)
        length = self.headers.get("Content-Length")
        if length is None:
            return None
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            # The client has gone: no store may take a part of it for the whole.
            raise ConnectionResetError
        return body

    def _ask(self, request: Request, body: bytes | None, dropped: set[str]) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the store; return status, headers and body of its answer, or reset where it gives none."""
        try:
            store = self._connection()
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in (_HOP - {"transfer-encoding"}) | dropped:
                    store.putheader(name, value)
            chunked = "Transfer-Encoding" in self.headers
            store.endheaders(body, encode_chunked=chunked)
            answer = store.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            request.problem = repr(error)
            if self._store is not None:
                self._store.close()
            raise _ResetError from error
        request.upstream = answer.status
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        if answer.will_close:
            store.close()
        if self.proxy.style == "azure" and request.kind == "LIST" and answer.status == 200:
            content = started_from(content, request.path)
            headers = [
                (name, value) for name, value in headers if name.lower() not in ("content-length", "content-md5")
            ]
        return answer.status, headers, content

    def _connection(self) -> http.client.HTTPConnection:
        """Return the connection to the store; a new one where the store has closed it."""
        store = self._store
        if store is not None and store.sock is not None:
            # Not asked again after it failed: the store may have done what was asked.
            news = select.poll()  # select() fails where there are a thousand connections
            news.register(store.sock, select.POLLIN)
            if not news.poll(0):
                return store
            store.close()
        self._store = store = http.client.HTTPConnection(self.proxy.upstream, timeout=_UPSTREAM_S)
        store.connect()
        store.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return store

    def _say(self, request: Request, status: int, body: bytes, headers: Any) -> None:
        request.status = status
        pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
        self._head(status, pairs, len(body))
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: Sequence[tuple[str, str]], size: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        # The length in the answer to a HEAD is the object's.
        if status not in _NO_BODY and self.command != "HEAD":
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            # Closed at once, and with a reset in place of an end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()


def started_from(content: bytes, path: str) -> bytes:
    """Return what a LIST of Azure answers from its `startFrom` on: Azurite takes no notice of that.

    >>> started_from(b"<E><Blobs><Blob><Name>a</Name></Blob></Blobs></E>", "/c?comp=list&startFrom=b")
    b'<E><Blobs /></E>'
    """
    start = parse_qs(urlsplit(path).query).get("startFrom", [""])[0]
    if not start:
        return content
    root = ElementTree.fromstring(content)
    for blobs in root.iter("Blobs"):
        for entry in list(blobs):
            if (entry.findtext("Name") or "") < start:
                blobs.remove(entry)
    return ElementTree.tostring(root)


class ProxyProcess(Orders):
    """The proxy as a process of its own, told the same as a `Proxy`.

    delta-rs holds Python's lock while it waits for some answers: a proxy in the same process could not give them.

    Parameters
    ----------
    upstream, style
        As of `Proxy`.

    Attributes
    ----------
    address : str
        Host and port.
    """

    def __init__(self, upstream: str, *, style: str = "s3") -> None:
        command = [sys.executable, "-m", "tests.stores.proxy", "--upstream", upstream, "--style", style]
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": root}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
        )
        assert self._process.stdout is not None
        ports = json.loads(self._process.stdout.readline())
        self.address = f"127.0.0.1:{ports['port']}"
        self._control = f"127.0.0.1:{ports['control']}"

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def rules(self) -> list[Rule]:
        """As of `Proxy`."""
        return [Rule(**rule) for rule in self._order("GET", "/rules")]

    @rules.setter
    def rules(self, rules: Sequence[Rule]) -> None:
        self._order("PUT", "/rules", [asdict(rule) for rule in rules])

    @property
    def plan(self) -> Plan | None:
        """As of `Proxy`."""
        given = self._order("GET", "/plan")
        return None if given is None else Plan(**given)

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self._order("PUT", "/plan", None if plan is None else asdict(plan))

    @property
    def delay(self) -> float:
        """Seconds that every request takes longer."""
        return float(self._order("GET", "/delay"))

    @delay.setter
    def delay(self, seconds: float) -> None:
        self._order("PUT", "/delay", seconds)

    @property
    def total(self) -> int:
        """As of `Orders`, in one short answer."""
        return int(self._order("GET", "/stats")["total"])

    @property
    def broken(self) -> Counter[str]:
        """As of `Orders`, in one short answer."""
        return Counter(self._order("GET", "/stats")["faults"])

    def since(self, start: int, stop: int | None = None) -> list[Request]:
        """Return the requests from a place on, of all since the start or the last `reset`."""
        return [Request(**request) for request in self._order("GET", "/requests")[start:stop]]

    def reset(self) -> None:
        """Forget requests, rules, plan and delay."""
        self._order("POST", "/reset")

    def _order(self, method: str, path: str, given: Any = None) -> Any:
        connection = http.client.HTTPConnection(self._control, timeout=60)
        try:
            connection.request(method, path, json.dumps(given))
            answer = connection.getresponse()
            said = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(said["error"])
        return said


# The program ------------------------------------------------------------------------------------------


class _Control(BaseHTTPRequestHandler):
    """Takes orders for a proxy: JSON in, JSON out."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        proxy = self.proxy
        self._orders(
            {
                "/stats": self._stats,
                "/requests": lambda _: [asdict(request) for request in proxy.since(0)],
                "/rules": lambda _: [asdict(rule) for rule in proxy.rules],
                "/plan": lambda _: None if proxy.plan is None else asdict(proxy.plan),
                "/delay": lambda _: proxy.delay,
            }
        )

    def do_POST(self) -> None:
        self._orders({"/reset": lambda _: self.proxy.reset()})

    def do_PUT(self) -> None:
        self._orders({"/rules": self._set_rules, "/plan": self._set_plan, "/delay": self._set_delay})

    def _stats(self, _: Any) -> dict[str, Any]:
        seen = Seen(self.proxy.since(0))
        return {"total": seen.total, "by_kind": dict(seen.by_kind), "faults": dict(self.proxy.broken)}

    def _set_rules(self, given: Any) -> None:
        self.proxy.rules = [_made(Rule, rule) for rule in given]

    def _set_plan(self, given: Any) -> None:
        self.proxy.plan = None if given is None else _made(Plan, given)

    def _set_delay(self, given: Any) -> None:
        self.proxy.delay = float(given)

    def _orders(self, orders: dict[str, Callable[[Any], Any]]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, said = 200, None
        if self.path not in orders:
            status, said = 404, {"error": f"found path={self.path!r}"}
        else:
            try:
                said = orders[self.path](json.loads(body) if body else None)
            except (TypeError, ValueError) as error:
                status, said = 400, {"error": str(error)}
        text = json.dumps(said).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _made(kind: type[Any], given: Any) -> Any:
    known = {each.name for each in fields(kind)}
    if not isinstance(given, dict) or not set(given) <= known:
        raise ValueError(f"found {given!r}, a {kind.__name__.lower()} has {sorted(known)}")
    return kind(**given)


def control(proxy: Proxy, port: int = 0) -> ThreadingHTTPServer:
    """Return the server, not yet running, that takes orders for a proxy on a port of loopback."""
    return _Server(("127.0.0.1", port), type("_Orders", (_Control,), {"proxy": proxy}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the proxy until it is interrupted; its two ports are said on the first line."""
    parser = argparse.ArgumentParser(prog="python -m tests.stores.proxy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upstream", required=True, help="host:port of the store")
    parser.add_argument("--style", choices=sorted(CODES), default="s3")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 for a free one")
    parser.add_argument("--control", type=int, default=0, help="where to take orders; 0 for a free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that every request takes longer")
    given = parser.parse_args(arguments)
    with Proxy(given.upstream, style=given.style, port=given.port, delay=given.delay) as proxy:
        orders = control(proxy, given.control)
        said = {"port": proxy.port, "control": int(orders.server_address[1])}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            orders.serve_forever()


if __name__ == "__main__":
    main()
