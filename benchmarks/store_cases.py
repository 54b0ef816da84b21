"""Appends to a log in an object store that is 50 ms away, beside one request to it.

MinIO, or moto where that cannot be had, stands behind the proxy of the tests, which lets a request take 50 ms longer.
"""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.upkeep import finish_upkeep
from tests.stores.proxy import ProxyProcess
from tests.stores.servers import STORES, MissingError, Server

from .report import Case, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spark_timely.log.writer import StreamWriter

NAMES = ("append_50ms_vs_one_request", "append_50ms_worst_vs_median")
DELAY_S = 0.05
# An append that waits for a merge or a checkpoint would be among the appends of a round: both come several times.
ROUNDS, BLOCKS, APPENDS, REQUESTS = 3, 24, 10, 5
ROWS = 100
_SCHEMA = pa.schema([("v", pa.int64())])


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure appends and single requests in turn, through one proxy."""
    if not any(map(wanted, NAMES)):
        return []
    n = BLOCKS * APPENDS
    what = f"an append of {ROWS} rows at {DELAY_S * 1000:.0f} ms a request; peer: {{}}"
    single = Case(NAMES[0], what.format("one GET of a small file"), 8.0, higher_is_better=False)
    worst = Case(
        NAMES[1],
        f"the slowest of {n} appends as above, with merges and checkpoints among them; peer: their median",
        3.0,
        higher_is_better=False,
    )
    server = _server(scratch / "store")
    try:
        with ProxyProcess(server.address, style=server.style) as proxy:
            for number in range(ROUNDS):
                _measure(server, proxy, number, single, worst)
    finally:
        server.stop()
    settings = {"store": server.name, "appends": n * ROUNDS, "delay_s": DELAY_S}
    for case in (single, worst):
        case.settings.update(settings)
    return [case for case in (single, worst) if wanted(case.name)]


def _server(folder: Path) -> Server:
    folder.mkdir()
    try:
        return STORES["minio"](folder).start()
    except MissingError:
        return STORES["moto"](folder).start()


def _measure(server: Server, proxy: ProxyProcess, number: int, single: Case, worst: Case) -> None:
    url, options = server.url(f"log {number}"), server.options(proxy.address)
    log = create_log(url, _SCHEMA, minimum=(0,), storage_options=options)
    small = open_storage(server.url(f"files {number}"), options)
    small.write("small", b"x" * 1000)
    writer = log.writer(owner="bench")
    times = itertools.count()
    for _ in range(3):  # opens the stream and the connections
        _append(writer, times)
        small.find("small")
    proxy.delay = DELAY_S
    took: list[float] = []
    for _ in range(BLOCKS):
        block = [seconds(lambda: _append(writer, times)) for _ in range(APPENDS)]
        asked = [seconds(lambda: small.find("small")) for _ in range(REQUESTS)]
        single.ours.append(statistics.median(block))
        single.peer.append(statistics.median(asked))
        took += block
    worst.ours.append(max(took))
    worst.peer.append(statistics.median(took))
    proxy.delay = 0.0
    finish_upkeep()
    _check(url, options, next(times))


def _append(writer: StreamWriter, times: Iterator[int]) -> None:
    time = next(times)
    writer.append(pa.table({"_time": [time] * ROWS, "v": range(time * ROWS, (time + 1) * ROWS)}), advance_to=time + 1)


def _check(url: str, options: dict[str, str], n: int) -> None:
    log = open_log(url, storage_options=options)
    found = log.messages()["v"].to_pylist()
    if sorted(found) != list(range(n * ROWS)) or not log.verify().legal:
        message = f"expected {n * ROWS} rows once each, found {len(found)}"
        raise AssertionError(message)
    if len(log.core.files()) >= n or log.core.storage.find("_delta_log/_last_checkpoint") is None:
        message = f"expected merges and checkpoints among {n} appends, found {len(log.core.files())} files"
        raise AssertionError(message)
