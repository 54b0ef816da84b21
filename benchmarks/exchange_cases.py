"""Decoding captures into Arrow, against the speeds at which the real timely's crate replays them, and 0.32 beside 0.31.

The crate was measured once, on one core of a machine of the class that this is meant for; its figures, in records
per second, stand in `RUST`. The workload is the one that its notes describe: records of type u64, a given number in
each event of messages, and after it an event of progress.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from spark_timely.interop.chunk import TimelyVersion
from spark_timely.interop.reader import CaptureReader

from .report import Case, alternate, seconds

NAME = "rust_decode_vs_crate"
STAMPED = "rust_decode_032_vs_031"
STAMPED_AIM = 1.3
REPEATS = 5
# Records per second of timely 0.31.0, the medians of five runs, rustc -O3, one core. `fair`: a source that gives one
# event per read; `stock`: a file straight into `EventReader`, which copies its buffer for each event.
RUST = {
    ("fair", 1000): 377_500_000.0,
    ("fair", 100): 152_200_000.0,
    ("stock", 1000): 12_630_000.0,
    ("stock", 100): 1_496_000.0,
}
AIMS = {("fair", 1000): 0.5, ("stock", 100): 1.0}
RECORDS = {1000: 20_000_000, 100: 2_000_000}


def write_capture(path: Path, per_event: int, timely: TimelyVersion = "0.31") -> None:
    """Write a capture of `per_event` records in each event; without our own encoder, which is not what is measured."""
    one = b"" if timely == "0.31" else struct.pack("<Q", 1)  # a stamp of one time
    with path.open("wb") as file:
        for i in range(RECORDS[per_event] // per_event):
            records = np.arange(i * per_event, (i + 1) * per_event, dtype="<u8").tobytes()
            head = struct.pack("<QI", 20 + len(one) + len(records), 1) + one
            file.write(head + struct.pack("<QQ", i, per_event) + records)
            file.write(struct.pack("<QIQQqQq", 44, 0, 2, i + 1, 1, i, -1))


def decode(path: Path, per_event: int, timely: TimelyVersion = "0.31") -> None:
    """Read a capture to its end, and check what it holds."""
    n_records = total = 0
    with path.open("rb", buffering=0) as file:
        for chunk in CaptureReader(file, time="u64", record="u64", timely=timely):
            values = chunk.records.column(0)
            n_records += len(values)
            # The first of each chunk stands for all: a sum would cost as much as the decoding.
            total += values[0].as_py() if len(values) else 0
    if n_records != RECORDS[per_event] or not total:
        msg = f"decoded {n_records} records of {RECORDS[per_event]}"
        raise AssertionError(msg)


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure what is asked for."""
    return [*(_crate(scratch) if wanted(NAME) else []), *(_versions(scratch) if wanted(STAMPED) else [])]


def _versions(scratch: Path) -> list[Case]:
    """Measure 0.32, whose messages have stamps, beside 0.31: how many times the time it takes."""
    cases = []
    for per_event, n_records in RECORDS.items():
        what = f"{n_records} records of u64, {per_event} per event with a stamp of one time; beside 0.31"
        case = Case(f"{STAMPED}_{per_event}", what, STAMPED_AIM, higher_is_better=False)
        old, new = scratch / f"old_{per_event}.bin", scratch / f"new_{per_event}.bin"
        write_capture(old, per_event)
        write_capture(new, per_event, "0.32")

        def timed(path: Path, timely: TimelyVersion, n: int = per_event) -> float:
            return seconds(lambda: decode(path, n, timely))

        alternate(
            case,
            lambda new=new, timed=timed: timed(new, "0.32"),  # type: ignore[misc]
            lambda old=old, timed=timed: timed(old, "0.31"),  # type: ignore[misc]
            3 * REPEATS,
        )
        cases.append(case)
        old.unlink()
        new.unlink()
    return cases


def _crate(scratch: Path) -> list[Case]:
    """Measure beside the crate's own figures."""
    cases = []
    for per_event in RECORDS:
        path = scratch / f"capture_{per_event}.bin"
        write_capture(path, per_event)
        decode(path, per_event)  # into the page cache, as the crate had it
        times = [seconds(lambda path=path, n=per_event: decode(path, n)) for _ in range(REPEATS)]  # type: ignore[misc]
        path.unlink()
        for reader in ("fair", "stock"):
            what = (
                f"{RECORDS[per_event]} records of u64, {per_event} per event, into Arrow; the crate's {reader} reader"
            )
            case = Case(f"{NAME}_{reader}_{per_event}", what, AIMS.get((reader, per_event)))
            case.ours = times
            case.peer = [RECORDS[per_event] / RUST[reader, per_event]] * REPEATS
            cases.append(case)
    return cases
