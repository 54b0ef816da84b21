"""One process that appends to a log, lets it forget, or keeps a position of it, and says what it was answered.

Usage: retention_job.py SPEC, a JSON file: log, role, seed, out, go, stop, and mutant (see `MUTANTS`). It works from the
moment that the file `go` is there to that of the file `stop`, and then writes its answers to `out`: a JSON object a
line, with the clock before and after each call, which is one clock for all processes.

Commit k of the appender has the rows of `rows_of`, and moves the frontier to `frontier_of(k + 1)`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_timely.errors import InvalidUsageError, SinceViolationError
from spark_timely.log import Log, retention
from spark_timely.log.log import open_log
from spark_timely.log.machine.since import Retention

Time = tuple[int, ...]


def rows_of(commit: int, arity: int) -> list[tuple[Time, int]]:
    """Return the rows of a commit, times and values: all at times beyond the frontier before it, few values."""
    low, value = commit // 2, commit % 3
    if arity == 1:
        return [((commit,), value), ((commit + 2,), value), ((commit,), value)]
    if commit % 2:
        return [((low + 1, low), value), ((low, low + 3), value), ((low + 1, low), value)]
    return [((low, low), value), ((low + 2, low), value), ((low, low + 1), value)]


def frontier_of(commit: int, arity: int) -> list[Time]:
    """Return the frontier before a commit: of two coordinates, one time and two of them in turn."""
    low = commit // 2
    if arity == 1:
        return [(commit,)]
    return [(low + 1, low), (low, low + 1)] if commit % 2 else [(low, low)]


class Work:
    """A handle of the log, and what it was answered."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.name = str(spec["role"])
        self.log: Log = open_log(spec["log"], merge_every=8)
        self.arity, self.rng = self.log.domain.arity, random.Random(spec["seed"])
        self.answers: list[dict[str, Any]] = []
        self.held: list[Time] | None = None
        self.turn = 0

    def call(self, what: str, do: Callable[[], Any], **facts: Any) -> bool:
        """Do something, and note what came of it; return whether it was done."""
        begin = time.monotonic_ns()
        try:
            found = do()
            said = found if isinstance(found, dict) else {}
        except (SinceViolationError, InvalidUsageError) as error:
            said = {"refused": type(error).__name__, "text": str(error)}
        end = time.monotonic_ns()
        self.answers.append({"who": self.name, "what": what, "begin": begin, "end": end, **facts, **said})
        return "refused" not in said

    # One turn of each role

    def appender(self) -> None:
        rows = rows_of(self.turn, self.arity)
        names = ["_time"] if self.arity == 1 else [f"_time_{i}" for i in range(self.arity)]
        table = {name: [at[i] for at, _ in rows] for i, name in enumerate(names)} | {"v": [v for _, v in rows]}
        if self.log.kind == "collection":
            table["_diff"] = [1] * len(rows)
        if not self.turn:
            self.writer = self.log.writer(owner="appender")
        self.writer.append(pa.table(table), advance_to=frontier_of(self.turn + 1, self.arity))
        self.turn += 1

    def keeper(self) -> None:
        """Let the log forget nearly all that it has."""
        self.log.refresh()
        (low, *_) = sorted(self.log.frontier().elements)
        wanted = [tuple(max(0, x - self.rng.randrange(3)) for x in low)]
        self.call("allow", lambda: {"since": self.log.allow_compaction(wanted, by=self.name).elements}, wanted=wanted)

    def compactor(self) -> None:
        self.call("compact", lambda: {"lost": self.log.compact(logical=True, target_file_size=20_000).lost})

    def reader(self) -> None:
        """Keep a position, as near to since as may be; move it, let it go, read from it."""
        rng, log = self.rng, self.log
        self.call("since", lambda: {"since": self.since()})
        if self.held is not None and rng.random() < 0.3:
            self.call("read", lambda: self.read(self.held or []))
        if self.held is not None and rng.random() < 0.3:
            self.held = None
            self.call("release", lambda: log.release(self.name))
            return
        low = rng.choice([*log.since().elements, *(self.held or [])])
        at = tuple(max(0, x + rng.choice([-1, 0, 1, 1, 2, 3])) for x in low)
        frontier = [at]
        if self.arity == 2 and rng.random() < 0.5:
            frontier = [(at[0] + 2, at[1]), (at[0], at[1] + 1)]
        owner = self.name
        if self.call("retain", lambda: log.retain(self.name, frontier, owner=owner), at=frontier):
            self.held = frontier

    def since(self) -> tuple[Time, ...]:
        self.log.refresh()
        return self.log.since().elements

    def read(self, lower: list[Time]) -> dict[str, Any]:
        """Return all rows beyond a frontier that are complete, summed."""
        self.log.refresh()
        upper = self.log.frontier()
        table = self.log.messages(lower=lower, upper=upper)
        names = list(self.log.domain.columns)
        found: Counter[tuple[Time, int]] = Counter()
        for row in table.to_pylist():
            found[tuple(row[name] for name in names), row["v"]] += row.get("_diff", 1)
        return {"at": lower, "upper": upper.elements, "rows": [[*key, n] for key, n in sorted(found.items()) if n]}


def decided_once() -> None:
    """A lost race does not throw the decision away; what it did not decide about is as others left it."""
    changed = retention._changed

    def once(states: Any, what: str, decide: Callable[[Retention], Retention | None]) -> Retention:
        kept: list[Retention | None] = []

        def first(before: Retention) -> Retention | None:
            after = decide(before) if not kept else kept[0]
            kept.append(after)
            if after is None:
                return None
            if what == "allow compaction":
                return replace(before, since=before.since.join(after.since), seq=before.seq + 1, moved_by="mutant")
            return replace(before, retainers=after.retainers, seq=before.seq + 1)

        return changed(states, what, first)

    retention._changed = once  # type: ignore[assignment]


def not_exclusive() -> None:
    """Each process commits by an app id of its own."""
    retention._APP = f"timely/#since-{time.monotonic_ns()}"  # type: ignore[misc]


MUTANTS: dict[str, Callable[[], None]] = {"decided once": decided_once, "not exclusive": not_exclusive}


def main(spec: dict[str, Any]) -> None:
    if spec["mutant"]:
        MUTANTS[spec["mutant"]]()
    work = Work(spec)
    turn = getattr(work, str(spec["role"]).partition("-")[0])
    Path(f"{spec['out']}.ready").touch()
    while not Path(spec["go"]).exists():
        time.sleep(0.005)
    while not Path(spec["stop"]).exists():
        turn()
    Path(spec["out"]).write_text("".join(json.dumps(answer) + "\n" for answer in work.answers))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
