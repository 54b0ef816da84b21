"""What forgetting is worth to a reader of a collection that changes for ever, and what it costs its writer."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_timely as st

from .report import Case, alternate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS, COMMITS, CHANGED = 1000, 600, 100  # a change is two updates: the row before goes, another comes
SNAPSHOTS = 15
ROUNDS, APPENDS = 7, 200
PART, STRIDE, SPACE_ROUNDS = 1000, 7, 3  # a stride that meets every moment between two merges
DEADLINE_S = 300
SPACE = "compaction_space_10x_commits"
SNAPSHOT = "snapshot_compacted_vs_plain"
APPEND, APPEND_P99 = "append_next_to_compaction", "append_next_to_compaction_p99"
ENDLESS = "append_next_to_endless_compaction"

# Compacts once the file is there, or again and again while it is, and says what it did: the number of compactions and
# of rows removed, and how often others had rewritten the files first.
_COMPACTOR = """
import sys, time
from pathlib import Path
import spark_timely as st

log, go, done = st.open_log(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
log.snapshot(log.frontier().elements[0][0] - 1)
done.touch()
deadline = time.monotonic() + float(sys.argv[5])
while not go.exists():
    if time.monotonic() > deadline:  # the benchmark that asked for it is gone
        sys.exit("nobody said when to begin")
    time.sleep(0.001)
times, removed, lost = 0, 0, 0
while go.exists() and time.monotonic() < deadline:
    log.refresh()
    log.allow_compaction(log.frontier(), by="bench")
    found = log.compact(logical=True).forgotten
    times, removed, lost = times + 1, removed + found.rows_removed, lost + found.lost
    if sys.argv[4] == "once":
        go.unlink()
print(times, removed, lost)
"""


class Changing:
    """A collection of `KEYS` keys, some of whose values change with each commit."""

    def __init__(self, path: Path, **options: str | int) -> None:
        self.path = str(path)
        schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])
        self.log = st.create_log(self.path, schema, minimum=(0,), kind="collection", **options)
        self.writer = self.log.writer(owner="bench")
        self.rng = np.random.default_rng(20130101)
        self.values = self.rng.integers(0, 1 << 40, KEYS)
        self.time = 0
        self._append(np.arange(KEYS), self.values, np.ones(KEYS, np.int64))

    def _append(self, keys: np.ndarray, values: np.ndarray, diffs: np.ndarray) -> float:
        table = pa.table({"_time": np.full(len(keys), self.time), "_diff": diffs, "key": keys, "value": values})
        took = seconds(lambda: self.writer.append(table, advance_to=self.time + 1))
        self.time += 1
        return took

    def change(self) -> float:
        """Change some values in one commit, and return the seconds that it took."""
        keys = self.rng.choice(KEYS, CHANGED, replace=False)
        values = self.rng.integers(0, 1 << 40, CHANGED)
        before, self.values[keys] = self.values[keys], values
        ones = np.ones(CHANGED, np.int64)
        both = np.concatenate([keys, keys]), np.concatenate([before, values]), np.concatenate([-ones, ones])
        return self._append(*both)

    def grow(self, commits: int) -> None:
        """Bring the log to that many commits of changes."""
        while self.time <= commits:
            self.change()

    def check(self, found: pa.Table) -> None:
        """Compare the contents of the log now with what was appended."""
        got = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
        if got != dict(enumerate(self.values.tolist())) or set(found["_diff"].to_pylist()) != {1}:
            message = f"log {self.path}: expected {KEYS} keys with their last values, found {found.num_rows} rows"
            raise AssertionError(message)


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure snapshots of a log that has forgotten beside one that has not, and appends while it forgets."""
    cases = [_snapshots(scratch)] if wanted(SNAPSHOT) else []
    if wanted(SPACE):
        cases.append(_space(scratch))
    if any(map(wanted, (APPEND, APPEND_P99, ENDLESS))):
        cases += [case for case in _appends(scratch) if wanted(case.name)]
    return cases


def _snapshots(scratch: Path) -> Case:
    case = Case(
        SNAPSHOT,
        f"contents of a collection of {KEYS} keys after {COMMITS} commits of {2 * CHANGED} updates, compacted to since;"
        " peer: the same with its files merged, and nothing forgotten",
        10.0,
        unit="ms",
    )
    logs = [Changing(scratch / f"snapshot-{name}") for name in ("compacted", "plain")]
    for each in logs:
        each.grow(COMMITS)
    logs[0].log.allow_compaction(logs[0].log.frontier(), by="bench")
    handles = [st.open_log(each.path) for each in logs]
    handles[0].compact(logical=True)
    handles[1].compact()

    def snapshot(number: int) -> float:
        found: list[pa.Table] = []
        took = [seconds(lambda: found.append(handles[number].snapshot(COMMITS))) for _ in range(SNAPSHOTS)]
        logs[number].check(found[-1])
        return 1000 * statistics.median(took)

    alternate(case, lambda: snapshot(0), lambda: snapshot(1), ROUNDS)
    rows = [int(handle.core.files().rows.sum()) for handle in handles]
    case.settings = {"rows": rows, "files": [len(handle.core.files()) for handle in handles]}
    return case


def _space(scratch: Path) -> Case:
    case = Case(
        SPACE,
        f"most bytes of messages and progress on disk, vacuumed, during the last {PART} of {10 * PART} commits of"
        f" {2 * CHANGED} updates to a collection of {KEYS} keys, by the upkeep of its commits alone; peer: during the"
        f" first {PART}",
        1.5,
        unit="kB",
        higher_is_better=False,
    )
    logs = 0.0
    for number in range(SPACE_ROUNDS):
        log = Changing(scratch / f"space-{number}", keep=10, keep_committed="0 seconds")
        log.grow(1)
        case.peer.append(_most_bytes(log, PART))
        log.grow(9 * PART)
        case.ours.append(_most_bytes(log, 10 * PART))
        log.check(st.open_log(log.path).snapshot(log.time - 1))
        if problems := st.open_log(log.path).verify().problems:
            message = f"log {log.path}: expected a legal one, found {problems}"
            raise AssertionError(message)
        logs = _bytes_below(Path(log.path) / "_delta_log") / 1000
    case.settings = {"kB of the table's log at the end": round(logs)}
    return case


def _most_bytes(log: Changing, commits: int) -> float:
    """Bring a log to a number of commits; return the most thousands of bytes it had on the way, vacuumed."""
    most = 0
    while log.time <= commits:
        log.change()
        if log.time % STRIDE == 0:
            log.log.vacuum(older_than="0 seconds")
            most = max(most, sum(_bytes_below(folder) for folder in Path(log.path).glob("_event=*")))
    return most / 1000


def _bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _appends(scratch: Path) -> list[Case]:
    what = (
        f"{{}} appends of {2 * CHANGED} updates to a collection of {KEYS} keys while another process compacts {{}};"
        " peer: as many appends afterwards"
    )
    # A writer does its own upkeep each 100 commits: twice in each series of these, so that it is in both percentiles.
    often = f"it again and again, {APPENDS} at a time"
    median = Case(APPEND, what.format("median of", f"its {COMMITS} commits"), 1.3, unit="ms", higher_is_better=False)
    slow = Case(APPEND_P99, what.format("99th percentile of", often), 5.0, unit="ms", higher_is_better=False)
    endless = Case(ENDLESS, what.format("median of", often), None, unit="ms", higher_is_better=False)
    for number in range(ROUNDS + 1):
        log = Changing(scratch / f"append-{number}")
        log.grow(COMMITS)
        for again in (False, True):
            during, after, did = _next_to_compaction(log, scratch, again=again)
            if not number:  # the first is to warm up
                continue
            for case in [endless, slow] if again else [median]:
                case.ours.append(_of(case, during))
                case.peer.append(_of(case, after))
                case.settings.setdefault("appends", []).append(len(during))  # type: ignore[attr-defined]
                case.settings.setdefault("compactions, rows removed, given up", []).append(did)  # type: ignore[attr-defined]
    return [median, slow, endless]


def _of(case: Case, took: list[float]) -> float:
    return float(np.percentile(took, 99 if case.name == APPEND_P99 else 50))


def _next_to_compaction(log: Changing, scratch: Path, *, again: bool) -> tuple[list[float], list[float], list[int]]:
    """Return the milliseconds of each append during a compaction and after it, and what that did."""
    go, ready = scratch / "append-go", scratch / "append-ready"
    ready.unlink(missing_ok=True)
    compactor = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _COMPACTOR,
            log.path,
            str(go),
            str(ready),
            "again" if again else "once",
            str(DEADLINE_S),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.perf_counter() + DEADLINE_S
    while not ready.exists():
        if compactor.poll() is not None or time.perf_counter() > deadline:
            compactor.kill()
            message = f"the process that compacts did not begin within {DEADLINE_S} s: exit code {compactor.poll()}"
            raise AssertionError(message)
        time.sleep(0.01)
    go.touch()
    during: list[float] = []
    while go.exists():
        if compactor.poll() is not None and go.exists():
            message = f"the process that compacts ended early: exit code {compactor.poll()}"
            raise AssertionError(message)
        during.append(1000 * log.change())
        if again and len(during) == APPENDS:
            go.unlink()
    said, _ = compactor.communicate()
    after = [1000 * log.change() for _ in during]
    did = [int(word) for word in said.split()]
    log.check(st.open_log(log.path).snapshot(log.time - 1))
    if not during or did[1] < 2 * CHANGED:
        message = f"log {log.path}: expected a compaction next to appends, found {did} and {len(during)} appends"
        raise AssertionError(message)
    return during, after, did
