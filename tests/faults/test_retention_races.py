"""Several processes let one log forget while others keep positions of it: no position that is kept is passed.

Real processes share a log on the disk. One appends; some move since as far as they may; one rewrites what may be
forgotten; some register a position, move it, read from it and let it go. What each of them was answered, with the clock
before and after, is judged in the end by what is written down here again:

- a position that was registered is readable until its holder begins to give it up, by every since that was answered;
- since never goes back; who holds a position may move it forward, and is refused only where since has passed;
- what is read from a position that is held is what was written, once;
- who has let its position expire, and was passed, learns by whom.

``SPARK_TIMELY_LONG=1`` continues until 1000 calls that move since have met one that registers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.log.log import create_log, open_log
from tests.faults.harness import JOBS, long_lane, seed_of_run, tell, wait_until
from tests.faults.jobs.retention_job import Time, rows_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

ROLES = ("appender", "compactor", "keeper-0", "keeper-1", "reader-0", "reader-1", "idler-0")
LOOKED = ("since later", "since while held", "refused", "retained", "read", "rows", "overrun")
# A reader may keep the first position for a whole turn, of four seconds on a slow machine; not for so many.
MOST_TURNS_WITHOUT = 10
Answers = list[dict[str, Any]]


# The oracle -----------------------------------------------------------------------------------------


def beyond(frontier: Sequence[Sequence[int]], time: Sequence[int]) -> bool:
    return any(all(x <= y for x, y in zip(low, time, strict=True)) for low in frontier)


def is_readable(kind: str, since: Sequence[Sequence[int]], frontier: Sequence[Sequence[int]]) -> bool:
    """Say whether messages, or changes, from a frontier on can be told from those before it. Times begin at 0."""
    if kind == "stream":
        return all(beyond(since, time) for time in frontier)
    return all(
        any(all(s < f or s == f == 0 for s, f in zip(low, time, strict=True)) for low in since) for time in frontier
    )


def held_positions(answers: Answers) -> list[tuple[int, int, int, Sequence[Time]]]:
    """Return the clock before and after each registration, when its holder began to give it up, and the position."""
    found = []
    end_of_time = 1 << 62
    for who in {answer["who"] for answer in answers}:
        begun: tuple[int, int, Sequence[Time]] | None = None
        for answer in answers:
            if (
                "expires" in answer
                or answer["who"] != who
                or answer["what"] not in ("retain", "release")
                or "refused" in answer
            ):
                continue
            if begun is not None:
                found.append((begun[0], begun[1], answer["begin"], begun[2]))
            begun = None if answer["what"] == "release" else (answer["begin"], answer["end"], answer["at"])
        if begun is not None:
            found.append((begun[0], begun[1], end_of_time, begun[2]))
    return found


def judge(kind: str, arity: int, answers: Answers) -> Counter[str]:
    """Check what processes were answered; return how often each thing was looked at."""
    looked: Counter[str] = Counter()
    sinces = sorted((a["end"], a["begin"], a["since"]) for a in answers if "since" in a)
    ends = [end for end, _, _ in sinces]
    begins = sorted((begin, end, since) for end, begin, since in sinces)

    for begin, _, since in begins:
        before = bisect_left(ends, begin)
        for _, _, earlier in sinces[max(0, before - 3) : before]:
            assert all(beyond(earlier, time) for time in since), f"since went back from {earlier} to {since}"
            looked["since later"] += 1

    for begin, _, until, at in held_positions(answers):
        first, last = bisect_left(ends, begin), bisect_left(ends, until)
        for _, _, since in sinces[max(0, first - 1) : last]:
            assert is_readable(kind, since, at), f"since {since} has passed {at}, which was held"
            looked["since while held"] += 1

    held: dict[str, Sequence[Time]] = {}
    for answer in sorted(answers, key=lambda answer: answer["begin"]):
        who, what, at = answer["who"], answer["what"], answer.get("at")
        if what == "release":
            assert "refused" not in answer, answer
            del held[who]
        elif what == "retain" and "refused" in answer:
            assert answer["refused"] == "SinceViolationError", answer
            later = [since for begin, _, since in begins if begin > answer["end"]][:1]
            assert not any(is_readable(kind, since, at) for since in later), f"refused for no reason: {answer}"
            assert who not in held or not all(beyond(held[who], time) for time in at), f"could not move: {answer}"
            looked["refused"] += 1
        elif what == "retain":
            if "expires" not in answer:
                held[who] = at
            looked["retained"] += 1
        elif what == "renew" and "refused" in answer:
            assert answer["refused"] == "SinceViolationError", answer
            assert f"moved past consumer {who!r} by keeper-" in answer["text"], answer
            looked["overrun"] += 1
        elif what == "read":
            assert "refused" not in answer, answer
            found = Counter({(tuple(time), v): n for time, v, n in answer["rows"]})
            assert found == written(arity, at, answer["upper"]), f"read from {at}"
            looked["read"] += 1
            looked["rows"] += found.total()
        elif what == "allow":
            assert "refused" not in answer, answer
    return looked


def written(arity: int, lower: Sequence[Sequence[int]], upper: Sequence[Sequence[int]]) -> Counter[tuple[Time, int]]:
    """Return the rows at times beyond one frontier and not beyond another, each as often as it was appended."""
    last = 2 * max(max(time) for time in upper) + 3
    rows = (row for commit in range(last) for row in rows_of(commit, arity))
    return Counter((at, v) for at, v in rows if beyond(lower, at) and not beyond(upper, at))


def n_races(answers: Answers) -> int:
    """Return how many calls that move since were under way together with one that registers."""
    kept = sorted((a["begin"], a["end"]) for a in answers if a["what"] == "retain")
    ends = [end for _, end in kept]
    found = 0
    for answer in answers:
        if answer["what"] == "allow":
            found += any(begin < answer["end"] for begin, _ in kept[bisect_left(ends, answer["begin"]) :][:3])
    return found


# The processes --------------------------------------------------------------------------------------


def run(folder: Path, kind: str, arity: int, *, seed: int, seconds: float, mutant: str = "") -> Answers:
    """Let the processes work on a new log for some time, and return what they were answered."""
    folder.mkdir()
    create_log(folder / "log", pa.schema([("v", pa.int64())]), times=("long",) * arity, minimum=(0,) * arity, kind=kind)  # type: ignore[arg-type]
    processes = []
    for number, role in enumerate(ROLES):
        spec = folder / f"{role}.json"
        paths = {name: str(folder / name) for name in ("log", "go", "stop")}
        content = {**paths, "role": role, "seed": 100 * seed + number, "out": str(folder / role), "mutant": mutant}
        spec.write_text(json.dumps(content))
        processes.append(
            subprocess.Popen(
                [sys.executable, str(JOBS / "retention_job.py"), str(spec)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        wait_until(
            lambda: all((folder / f"{role}.ready").exists() for role in ROLES) or any(p.poll() for p in processes),
            deadline_s=120,
            what="the start of the processes",
        )
        (folder / "go").touch()
        end = time.monotonic() + seconds
        wait_until(
            lambda: time.monotonic() > end or any(process.poll() is not None for process in processes),
            deadline_s=2 * seconds,
            what="the end of the time",
        )
        (folder / "stop").touch()
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    if any(process.returncode for process in processes):
        raise RuntimeError("\n".join(outputs))  # no answer of the oracle
    lines = [line for role in ROLES for line in (folder / role).read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("kind", "arity"), [("stream", 1), ("collection", 1), ("collection", 2)])
def test_no_position_that_is_kept_is_passed(kind: str, arity: int, tmp_path: Path) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    wanted, races, turn = (1000 if long_lane() else 20), 0, 0
    looked: Counter[str] = Counter()
    while races < wanted or min(looked[what] for what in LOOKED) < 3 or not looked["forgotten"]:
        folder = tmp_path / str(turn)
        answers = run(folder, kind, arity, seed=seed + turn, seconds=20.0 if long_lane() else 4.0)
        looked += judge(kind, arity, answers)
        races += n_races(answers)
        turn += 1
        looked["forgotten"] += check_end(folder / "log", kind, arity, answers)
        assert looked["forgotten"] or turn < MOST_TURNS_WITHOUT, "since has never moved"
    tell(f"{races} races, {dict(looked)}")


def check_end(path: Path, kind: str, arity: int, answers: Answers) -> bool:
    """Check the log when all have stopped: legal, and all that is left is what was written.

    Return whether since has moved: on a slow machine the first position may be kept for as long as a run takes.
    """
    log = open_log(path)
    assert any(answer["what"] == "compact" for answer in answers)
    since = log.since()
    for consumer in log.retainers():
        log.release(consumer)
    log.compact(logical=True)
    report = log.verify()
    assert report.legal, report.problems
    upper = log.frontier()
    found: Counter[int] = Counter()
    for row in log.messages(upper=upper).to_pylist():
        found[row["v"]] += row.get("_diff", 1)
    lower = since.elements if kind == "stream" else [(0,) * arity]
    assert found == Counter(v for (_, v) in written(arity, lower, upper.elements).elements())
    return since != log.domain.minimum_frontier


@pytest.mark.long
@pytest.mark.parametrize("mutant", ["decided once", "not exclusive"])
def test_decisions_that_do_not_exclude_are_found(mutant: str, tmp_path: Path) -> None:
    def some_runs() -> None:
        for turn in range(20):
            judge("stream", 1, run(tmp_path / str(turn), "stream", 1, seed=turn, seconds=5.0, mutant=mutant))

    # A process may notice it first, from the number of retainers.
    with pytest.raises((AssertionError, RuntimeError), match=r"has passed|since went back|found \d+ of \d+ retainers"):
        some_runs()


# The oracle is judged -------------------------------------------------------------------------------


def answer(what: str, begin: int, **facts: Any) -> dict[str, Any]:
    return {"who": facts.pop("who", "reader-0"), "what": what, "begin": begin, "end": begin + 1, **facts}


_PASSED = "could not retain: found since=[9], moved past consumer 'idler-0' by keeper-0 at 2026-01-01T00:00:00Z"
GOOD = [
    answer("since", 0, since=[[0]]),
    answer("retain", 2, at=[[5]]),
    answer("allow", 4, who="keeper-0", since=[[5]]),
    answer("retain", 6, at=[[4]], refused="SinceViolationError"),
    answer("retain", 8, at=[[6]]),
    answer("allow", 10, who="keeper-0", since=[[6]]),
    answer("read", 12, at=[[6]], upper=[[8]], rows=[[[6], 0, 2], [[6], 1, 1], [[7], 1, 2], [[7], 2, 1]]),
    answer("release", 14),
    answer("retain", 16, who="idler-0", at=[[7]], expires=True),
    answer("allow", 18, who="keeper-0", since=[[9]]),
    answer("renew", 20, who="idler-0", at=[[7]], refused="SinceViolationError", text=_PASSED),
]


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        (2, {"since": [[6]]}),
        (4, {"at": [[5]]}),
        (4, {"refused": "SinceViolationError"}),
        (5, {"since": [[4]]}),
        (6, {"rows": [[[6], 0, 2], [[6], 1, 1], [[7], 1, 2]]}),
        (6, {"rows": [[[6], 0, 2], [[6], 1, 1], [[7], 1, 4], [[7], 2, 1]]}),
        (6, {"refused": "SinceViolationError"}),
        (3, {"at": [[5]]}),
        (10, {"text": "could not retain: found since=[9], moved by keeper-0 at 2026-01-01T00:00:00Z"}),
    ],
)
def test_wrong_answers_are_found_by_the_oracle(place: int, instead: dict[str, Any]) -> None:
    assert judge("stream", 1, GOOD)["since while held"] > 3
    wrong = [*GOOD[:place], {**GOOD[place], **instead}, *GOOD[place + 1 :]]
    with pytest.raises(AssertionError):
        judge("stream", 1, wrong)
