"""Costs at 10,000 commits and 20,000 live files, and of a trickle whose rows come late."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_timely as st
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import CommitRequest
from spark_timely.time.antichain import Antichain

from .flat_cases import MEASURED, GrowingLog, Planner, pairs
from .report import Case, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHORT, LONG = 100, 10_000
FILES = 2
ROWS = 10
ROUNDS = 5
NAMES = (
    "planning_10k_vs_100_commits",
    "planning_cold_10k_commits_seconds",
    "commit_10k_vs_100_commits",
    "planning_arrival_10k_vs_100_commits",
)
SHORT_WRITERS = "open_2000_short_writers_vs_100"
TRICKLE = "trickle_bytes_read_per_delivered"

_COLD = """
import json, sys, time
start = time.perf_counter()
from spark_timely.datasource.source import TimelyDataSource
source = TimelyDataSource({"path": sys.argv[1], "pollInterval": "0ms"})
reader = source.streamReader(source.schema())
limit = reader.getDefaultReadLimit()
begun = json.loads(sys.argv[2])
end = json.loads(json.dumps(reader.latestOffset(begun, limit)))
splits = reader.partitions(begun, end)
print(time.perf_counter() - start, end["frontier"][0], len(splits))
"""


class ManyFiles(GrowingLog):
    """A log none of whose message files is ever merged, two of them per commit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, auto_compact=False)

    def grow(self, commits: int) -> None:
        """Bring the log to that many commits, by its own commits without what checks rows first."""
        while self.time < commits:
            seq, files = self.time + 1, []
            for part in range(FILES):
                times = np.full((ROWS // FILES, 1), self.time)
                values = pa.array(range(part * ROWS // FILES, (part + 1) * ROWS // FILES), pa.int64())
                rows = message_table(self.log.core.format, pa.table({"value": values}), times, "main", seq)
                files += write_data_files(
                    self.log.core.storage, rows, times, stream="main", seq=seq, domain=self.log.domain
                )
            self.log.core.commit(
                CommitRequest(
                    stream="main",
                    owner="bench",
                    progress_times=np.array([[self.time], [self.time + 1]]),
                    progress_deltas=np.array([-1, 1]),
                    expected_seq=self.time,
                    files=files,
                )
            )
            self.time += 1

    def check(self) -> None:
        """Compare numbers of files and rows with what was appended, and the frontier; read one time."""
        log = st.open_log(self.path)
        index = log.core.files()
        right = log.frontier().to_json() == [self.time] and int(index.rows.sum()) == ROWS * self.time
        last = log.messages(lower=self.time - 1, columns=["value"])["value"].to_pylist()
        if not right or sorted(last) != list(range(ROWS)):
            message = f"log {self.path}: expected {self.time} times of {ROWS} rows, frontier {self.time}"
            raise AssertionError(message)


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure what grows with history, at 10,000 commits against 100."""
    cases = _long_log(scratch, wanted) if any(map(wanted, NAMES)) else []
    cases += [_short_writers(scratch)] if wanted(SHORT_WRITERS) else []
    return [*cases, _trickle(scratch)] if wanted(TRICKLE) else cases


def _short_writers(scratch: Path) -> Case:
    """Measure a cold open of a log that programs of one commit each wrote: nobody lives long enough to tidy often."""
    case = Case(
        SHORT_WRITERS,
        "a cold open, frontier read, after 2000 handles of one commit each; peer: after 100",
        2.0,
        unit="ms",
        higher_is_better=False,
    )
    logs = {n: scratch / f"short-{n}" for n in (100, 2000)}
    entries: dict[str, int] = {}
    for n, path in logs.items():
        st.create_log(str(path), pa.schema([("value", pa.int64())]), minimum=(0,))
        for time_ in range(n):  # each as a program of its own: a new handle
            writer = st.open_log(str(path)).writer(owner="bench")
            writer.append(pa.table({"_time": [time_], "value": [time_]}), advance_to=time_ + 1)
        entries[str(n)] = len(list((path / "_delta_log").iterdir()))

    def cold(n: int) -> float:
        def look() -> None:
            if st.open_log(str(logs[n])).frontier().to_json() != [n]:
                message = f"log of {n} short writers: expected frontier {n}"
                raise AssertionError(message)

        return 1000 * float(np.median([seconds(look) for _ in range(9)]))

    for number in range(ROUNDS + 1):
        ours, peer = cold(2000), cold(100)
        if number:
            case.ours.append(ours)
            case.peer.append(peer)
    case.settings = {"entries": entries}
    return case


def _long_log(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    planning = Case(
        NAMES[0],
        f"planning one new commit at {LONG} commits, {FILES * LONG} live files, warm; peer: at {SHORT} commits",
        1.5,
        unit="ms",
        higher_is_better=False,
    )
    cold = Case(
        NAMES[1],
        f"seconds from a new process to the first plan at {LONG} commits, its imports included; peer: one second",
        None,
        higher_is_better=False,
    )
    commit = Case(
        NAMES[2],
        f"one commit of {ROWS} rows at {LONG} commits, {FILES * LONG} live files; peer: at {SHORT} commits",
        1.5,
        unit="ms",
        higher_is_better=False,
    )
    arrival = Case(
        NAMES[3],
        f"as {NAMES[0]}, with delivery=arrival",
        1.5,
        unit="ms",
        higher_is_better=False,
    )
    short, long = ManyFiles(scratch / "history-short"), ManyFiles(scratch / "history-long")
    short.grow(SHORT)
    long.grow(LONG)
    logs = (long, short)
    planners = Planner(long.path), Planner(short.path)
    followers = [Planner(log.path, delivery="arrival") for log in logs]
    plans: tuple[list[float], list[float]] = ([], [])
    arrivals: tuple[list[float], list[float]] = ([], [])
    peaks: tuple[list[float], list[float]] = ([], [])

    def commit_and_plan(side: int) -> float:
        took = logs[side].commit()
        plans[side].append(1000 * planners[side].plan())
        arrivals[side].append(1000 * followers[side].plan())
        peaks[side].append(1000 * took)
        return took

    pairs(commit, lambda: commit_and_plan(0), lambda: commit_and_plan(1), rounds=ROUNDS)
    size = MEASURED // ROUNDS
    for start in range(0, MEASURED, size):
        planning.ours.append(float(np.median(plans[0][start : start + size])))
        planning.peer.append(float(np.median(plans[1][start : start + size])))
        arrival.ours.append(float(np.median(arrivals[0][start : start + size])))
        arrival.peer.append(float(np.median(arrivals[1][start : start + size])))
    # With what a checkpoint costs now and then: the mean, not only the median.
    means = [float(np.mean(side)) for side in peaks]
    commit.settings = {"mean": [round(mean, 3) for mean in means], "worst": [round(max(side), 3) for side in peaks]}
    for _ in range(ROUNDS):
        cold.ours.append(_cold_start(long))
        cold.peer.append(1.0)
    for log in logs:
        log.check()
    return [case for case in (planning, cold, commit, arrival) if wanted(case.name)]


def _cold_start(log: ManyFiles) -> float:
    """Return the seconds that a planner in a new process takes for a plan of the last commit."""
    begun = Planner(log.path).offset
    log.commit()
    done = subprocess.run(
        [sys.executable, "-c", _COLD, log.path, json.dumps(begun)], check=True, capture_output=True, text=True
    )
    took, frontier, splits = done.stdout.split()
    if int(frontier) != log.time or splits == "0":
        message = f"cold start on {log.path}: expected a plan up to {log.time}, found {done.stdout!r}"
        raise AssertionError(message)
    return float(took)


# -- trickle

SECONDS, PER_SECOND, LATENESS, LATE_SHARE = 240, 2000, 60, 0.05


def _trickle(scratch: Path) -> Case:
    """Replay a trickle as it comes, one commit per second, and add up what the plans have the workers read."""
    case = Case(
        TRICKLE,
        f"bytes of the files that {SECONDS} micro-batches read, per byte of all files; one commit a second of "
        f"{PER_SECOND} rows, {LATE_SHARE:.0%} of them late by up to {LATENESS} s, nothing merged; peer: bytes captured",
        5.0,
        unit="MB",
        higher_is_better=False,
        settings={"seconds": SECONDS, "rows": PER_SECOND, "lateness": LATENESS, "late": LATE_SHARE},
    )
    for seed in range(3):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            read, captured = _replayed_trickle(Path(folder) / "log", seed)
        case.ours.append(read / 1e6)
        case.peer.append(captured / 1e6)
    return case


def _replayed_trickle(path: Path, seed: int) -> tuple[int, int]:
    rng = np.random.default_rng(seed)
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("text", pa.string())])
    log = st.create_log(path, schema, times=("timestamp",), minimum="1970-01-01", auto_compact=False)
    writer = log.writer(owner="bench")
    source = TimelyDataSource({"path": str(path), "pollInterval": "0ms"})
    reader = source.streamReader(source.schema())
    limit, offset = reader.getDefaultReadLimit(), reader.initialOffset()
    read = delivered = 0
    for rows, frontier in _seconds(rng):
        writer.append(rows, advance_to=frontier)
        end = json.loads(json.dumps(reader.latestOffset(offset, limit)))
        for part in reader.partitions(offset, end):
            read += sum((path / piece.path).stat().st_size for piece in part.split.pieces)
            delivered += sum(batch.num_rows for batch in reader.read(part))
        offset = end
    files = log.core.files()
    closed = log.messages(upper=log.frontier(), columns=["id"]).num_rows
    if delivered != closed:
        message = f"trickle: expected {closed} rows, delivered {delivered}"
        raise AssertionError(message)
    return read, int(files.sizes.sum())


def _seconds(rng: np.random.Generator) -> Iterator[tuple[pa.Table, Antichain]]:
    """Give the rows of each second, times in microseconds, and the frontier after it."""
    second = 1_000_000
    for number in range(1, SECONDS + 1):
        now = (LATENESS + number) * second
        times = now - rng.integers(0, second, PER_SECOND)
        late = rng.random(PER_SECOND) < LATE_SHARE
        times -= np.where(late, rng.integers(0, (LATENESS - 1) * second, PER_SECOND), 0)
        rows = pa.table(
            {
                "_time": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "id": rng.integers(0, 1 << 40, PER_SECOND),
                "value": rng.random(PER_SECOND),
                "text": pa.array([f"{n:020d}" for n in rng.integers(0, 1 << 60, PER_SECOND)]),
            }
        )
        yield rows, Antichain.of(int(times.max()) - LATENESS * second)
