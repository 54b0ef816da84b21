"""Stores to test against: moto always, MinIO and Azurite in the long lane."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.stores.proxy import ProxyProcess
from tests.stores.servers import STORES, MissingError, Server, prepare

EVERY_STORE = [pytest.param(name, marks=() if name == "moto" else pytest.mark.long) for name in STORES]
"""Parameters of the fixture `server`: the short lane has moto alone."""

IGNORANT = pytest.mark.parametrize("server", ["moto", pytest.param("minio", marks=pytest.mark.long)], indirect=True)
"""Of tests of a store that ignores conditions: the proxy takes the condition out of requests that are not signed."""

_numbers = itertools.count()
_missing: dict[str, str] = {}  # why a server cannot be had


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is needed before the first test: a test may not take that long."""
    if session.config.option.collectonly:
        return
    wanted = {item.callspec.params.get("server") for item in session.items if hasattr(item, "callspec")}
    for name in sorted(wanted & set(STORES)):
        try:
            prepare(name)
        except MissingError as error:
            _missing[name] = str(error)


@dataclass
class Place:
    """Where a test may create a log, in a store behind a proxy.

    Attributes
    ----------
    url : str
        Nothing is there yet.
    options : dict
        Storage options that lead through the proxy.
    """

    server: Server
    proxy: ProxyProcess
    url: str

    @property
    def options(self) -> dict[str, str]:
        return self.server.options(self.proxy.address)

    @property
    def unsigned(self) -> dict[str, str]:
        """Storage options that lead through the proxy, which may then change requests on their way."""
        return self.server.unsigned(self.proxy.address)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Return a function that gives the server of a name, started when it is first asked for."""
    running: dict[str, Server] = {}

    def give(name: str) -> Server:
        # A store is a program from outside: where it cannot be installed, as without a network, nothing is to be tried.
        if name in _missing:
            pytest.skip(f"{name} cannot be had: {_missing[name]}")
        if name not in running:
            running[name] = STORES[name](tmp_path_factory.mktemp(name)).start()
        return running[name]

    yield give
    for server in running.values():
        server.stop()


@pytest.fixture(params=EVERY_STORE)
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    return servers(request.param)


@pytest.fixture(scope="session")
def proxies() -> Iterator[Callable[[Server], ProxyProcess]]:
    """Return a function that gives the proxy before a server, started when it is first asked for."""
    running: dict[str, ProxyProcess] = {}

    def give(server: Server) -> ProxyProcess:
        if server.name not in running:
            running[server.name] = ProxyProcess(server.address, style=server.style)
        return running[server.name]

    yield give
    for proxy in running.values():
        proxy.stop()


@pytest.fixture
def proxy(server: Server, proxies: Callable[[Server], ProxyProcess]) -> Iterator[ProxyProcess]:
    """Return a proxy before the server that has seen nothing and breaks nothing."""
    proxy = proxies(server)
    proxy.reset()
    yield proxy
    proxy.reset()


@pytest.fixture
def place(server: Server, proxy: ProxyProcess) -> Place:
    return Place(server, proxy, server.url(f"a log {os.getpid()}-{next(_numbers)}"))
