"""A producer that repeats what failed, with the key that it had, and says what was acknowledged.

As a process: ``python -m tests.stores.producer JSON``, where the JSON has the arguments of `main`; each value that
was acknowledged is a line of its output. What must be in the log afterwards is told by these lines alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_timely.errors import RolledBackError, StorageError, TimelyError, UpperMismatchError
from spark_timely.log.log import create_log, open_log

SCHEMA = pa.schema([("v", pa.int64())])
_STREAM_VALUES = 1_000_000


def values_of(stream: int, batch: int) -> list[int]:
    """Return the two values of a batch, which no other batch has."""
    return [stream * _STREAM_VALUES + 2 * batch, stream * _STREAM_VALUES + 2 * batch + 1]


def produce(
    url: str,
    options: Mapping[str, str],
    stream: int,
    *,
    tell: Callable[[list[int]], None],
    batches: int | None = None,
    enough: Callable[[], bool] = bool,
    deadline_s: float = 300.0,
    streams: int | None = None,
    merge_every: int | None = 10,
    shared: bool = False,
) -> Counter[str]:
    """Append batches until there are so many, or it is enough; return how often which error came in between.

    An append that failed is made again with its key, by a handle that was opened anew, also when it is enough: it may
    have happened. With `streams` the log is
    created where it is not there; a stream that is `shared` has other producers of the same batches, which may be ahead
    at any moment. An error that is neither the store's nor a lost race goes to the caller.
    """
    failures: Counter[str] = Counter()
    end = time.monotonic() + deadline_s
    writer = None
    batch = 0
    failed = False
    while batch != batches and (failed or not enough()):
        rows = pa.table({"_time": [batch, batch + 2], "v": values_of(stream, batch)})
        try:
            if writer is None:
                if streams is not None:
                    create_log(url, SCHEMA, minimum=(0,), streams=streams, exist_ok=True, storage_options=options)
                log = open_log(url, storage_options=options, merge_every=merge_every)
                writer = log.writer(f"s{stream}", owner=f"s{stream}")
            writer.append(rows, advance_to=batch + 1, batch=batch)
        except (StorageError, UpperMismatchError, RolledBackError) as error:
            failures[type(error).__name__] += 1
            failed = True
            if isinstance(error, RolledBackError) and not shared:
                raise
            if not isinstance(error, UpperMismatchError):
                writer = None
            if time.monotonic() > end:
                raise
            continue
        tell(values_of(stream, batch))
        batch, failed = batch + 1, False
    return failures


def start(url: str, options: Mapping[str, str], *own: int, **more: Any) -> subprocess.Popen[str]:
    """Start a process with a producer for each of some streams; its output is `outcome`'s."""
    root = str(Path(__file__).resolve().parents[2])
    given = json.dumps({"url": url, "options": dict(options), "own": own, **more})
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.producer", given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )


def outcome(processes: list[subprocess.Popen[str]], *, deadline_s: float = 400.0) -> list[list[int]]:
    """Wait for processes of `start`; return what each said was acknowledged. Fails with what a failed one said."""
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=deadline_s))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for process, (_, words) in zip(processes, said, strict=True):
        assert process.returncode == 0, words[-6000:]
    return [[int(line) for line in lines.split()] for lines, _ in said]


def _say(values: list[int]) -> None:
    sys.stdout.write("".join(f"{value}\n" for value in values))
    sys.stdout.flush()


def main(own: list[int], **more: Any) -> None:
    """Run a producer for each stream, side by side; the first error that one had ends the process."""
    with ThreadPoolExecutor(len(own)) as pool:
        running = [pool.submit(produce, stream=stream, tell=_say, **more) for stream in own]
    for each in running:
        each.result()


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except TimelyError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
