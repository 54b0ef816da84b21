"""A process that lets a log forget, compacts and vacuums is killed between any two steps: nothing is lost or doubled.

Each trial begins with a copy of one log, runs the actions of `forgetting_job` in a process of its own, and kills it
(SIGKILL) before one of its steps, or in the middle of a write. What it had acknowledged holds, what it was doing has
happened or has not, and a new process that repeats that and does the rest ends where an undisturbed one does. What the
killed one left on the disk is deleted in the end.

``SPARK_TIMELY_LONG=1`` tries every step instead of some.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, OwnershipError, SinceViolationError
from spark_timely.log import Log
from spark_timely.log.files.format import EVENTS
from spark_timely.log.log import create_log
from tests.conformance.logs import stored
from tests.faults.harness import long_lane, run_forked, tell
from tests.faults.jobs import forgetting_job as job

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

TRIALS = 20
Rows = Counter[tuple[int, int]]


def make(path: Path, kind: str) -> None:
    """Write a log of two streams, one of which was taken over, with a since and a retainer."""
    create_log(path, pa.schema([("v", pa.int64())]), minimum=(0,), kind=kind, streams=2)  # type: ignore[arg-type]
    log = job.opened(str(path))
    lost = log.writer("b", owner="lost")
    for time in (1, 2, 3):
        lost.advance(time)
    log.writer("b", owner="you", takeover=True).advance(4)
    log.writer("b", owner="you").advance(99)
    for batch in range(job.FIRST_BATCHES):
        job.append(log, batch)
    log.retain("kept", [4], owner="kept")
    log.allow_compaction([2])


def expected(kind: str, n_batches: int, *, since: int = 0, lower: int = 0) -> Rows:
    """Return all rows of the batches at times beyond both, as they are seen: those of a collection stand at since."""
    found: Rows = Counter()
    for batch in range(n_batches):
        rows = job.rows_of(batch, kind)
        for time, v, diff in zip(rows["_time"], rows["v"], rows.get("_diff", [1, 1, 1]), strict=True):
            seen = max(time, since) if kind == "collection" else time
            if seen >= max(lower, since):
                found[seen, v] += diff
    return found


def told_by(rows: pa.Table) -> Rows:
    found: Rows = Counter()
    for row in rows.to_pylist():
        found[row["_time"], row["v"]] += row.get("_diff", 1)
    return found


def check(log: Log, done: Iterable[int]) -> None:
    """Check a log after one of these numbers of actions."""
    report = log.verify()
    assert report.legal, report.problems
    ((since,),) = log.since().elements
    held = {name: _position(log.kind, retainer.needed.elements[0][0]) for name, retainer in log.retainers().items()}
    everything = told_by(log.messages())
    state = (since, held, everything)
    allowed = [
        (_since(log.kind, n), job.RETAINED[n], expected(log.kind, job.BATCHES[n], since=_since(log.kind, n)))
        for n in done
    ]
    # An append is in the log, or since has moved, or neither: never a part of one of them.
    assert state in allowed, (state, allowed)
    n_batches = log.writer("a", owner="me").frontier.elements[0][0]
    for position in held.values():
        assert told_by(log.messages(lower=position)) == expected(log.kind, n_batches, lower=position)
    assert told_by(log.messages(lower=n_batches)) == expected(log.kind, n_batches, lower=n_batches)
    with pytest.raises(OwnershipError):
        log.writer("b", owner="lost")


def _position(kind: str, needed: int) -> int:
    return needed + 1 if kind == "collection" else needed


def _since(kind: str, n: int) -> int:
    """Return since after n actions: as far as was allowed, and as the retainers of then and the frontier let it."""
    found = 2
    for wanted, after in ((9, 3), (9, 8), (99, 13)):
        if n >= after:
            held = min([*job.RETAINED[after].values(), job.BATCHES[after]])
            found = max(found, min(wanted, held if kind == "stream" else held - 1))
    return found


def check_end(log: Log, kind: str, digest: str) -> None:
    """Check a log after all actions, and that it is written further and read as ever."""
    check(log, [len(job.ACTIONS)])
    assert log.verify(since=log.since()).digest == digest
    assert set(log.core.bases()) == {"#open", "a", "b"}, "commits were forgotten"
    assert stored(log) == {path for event in EVENTS for path in log.core.store.live.index(event).paths.tolist()}
    with pytest.raises(SinceViolationError):
        log.messages(lower=_position(kind, log.since().elements[0][0]) - 1)
    n = job.BATCHES[-1]
    assert not log.writer("a", owner="me").append(job.rows_of(n - 1, kind), advance_to=n, batch=n - 1).committed
    job.append(log, n)
    assert told_by(log.messages()) == expected(kind, n + 1, since=log.since().elements[0][0])


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_process_killed_between_any_two_steps(kind: str, tmp_path: Path) -> None:
    make(tmp_path / "begin", kind)
    check(job.opened(str(tmp_path / "begin")), [0])
    still = tmp_path / "still"
    shutil.copytree(tmp_path / "begin", still)
    assert run_forked(job.main, str(still), str(tmp_path / "told"), None) == 0
    n_steps = int((tmp_path / "told.steps").read_text())
    log = job.opened(str(still))
    digest = log.verify(since=log.since()).digest
    check_end(log, kind, digest)
    stride = 1 if long_lane() else max(1, n_steps // TRIALS)
    # Of the two lanes of kinds each looks at other steps.
    first = 0 if kind == "stream" else stride // 2
    tell(f"{n_steps} steps, every {stride}")
    in_actions: Counter[int] = Counter()
    for at in range(first, n_steps, stride):
        path, told = tmp_path / f"log {at}", tmp_path / f"told {at}"
        shutil.copytree(tmp_path / "begin", path)
        assert run_forked(job.main, str(path), str(told), at) == -signal.SIGKILL, f"step {at}"
        done = len(told.read_text().split()) if told.exists() else 0
        in_actions[done] += 1
        try:
            log = job.opened(str(path))
            check(log, [done, done + 1])
            with suppress(InvalidUsageError):  # released, and not acknowledged
                job.act(log, done)
            for number in range(done + 1, len(job.ACTIONS)):
                job.act(log, number)
            check_end(job.opened(str(path)), kind, digest)
        except BaseException as error:
            error.add_note(f"killed before step {at} of {n_steps}, in action {done}")
            raise
        shutil.rmtree(path)
    tell(f"kills by action: {sorted(in_actions.items())}")
    assert len(in_actions) >= len(job.ACTIONS) - 3, in_actions
