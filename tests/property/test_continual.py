"""Continual tasks against a sequential program: random histories, replicas, kills, failures, other bodies, forgetting.

Real logs and the engine, without Spark: bodies are Python functions (`tests.continual`). After each step the output is
compared with the program at every time before its upper, and its upper with what the program allows.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.continual.engine import TaskEngine, TaskPlan
from spark_timely.continual.plan import StepPlan, TaskSource
from spark_timely.continual.sink import SinkState, Write
from spark_timely.dataflow.body import Body as BodyOperator
from spark_timely.dataflow.engine.inputs import note_of
from spark_timely.dataflow.engine.outputs import failure_of
from spark_timely.dataflow.logs import Sink
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import View, least_time
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import ForeignChangeError, OperatorError, PlanMismatchError, StorageError, TimelyError
from spark_timely.log import Log
from spark_timely.log.log import MemoryLog, create_log, open_log
from spark_timely.log.machine import decide
from spark_timely.protocol.note import Note, OutputNote, TaskNote
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import parse_duration
from tests.continual import PythonBodies
from tests.oracles.continual import (
    Began,
    Body,
    Change,
    Frontier,
    History,
    Row,
    Seen,
    Source,
    Task,
    inserts,
    reaches,
    statements,
)

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
OUT = "out"
UP = "up"
MONTH = parse_duration("30 days")


class NamedLog(MemoryLog):
    """A log in memory with a path of its own, where several stand side by side."""

    @property
    def path(self) -> str:
        """Its name, which all handles on it share."""
        return f"memory/{self.core.log_id}"


class KilledError(BaseException):
    """Stands for the death of the process: nothing of it catches it."""


# Bodies -----------------------------------------------------------------------------------------------


def all_of(seen: Seen, letter: str) -> list[Row]:
    """Return the rows of all logs whose name begins with a letter: inputs with i, deletes with d, references with r."""
    return [row for alias in sorted(seen) if alias[0] == letter for row in seen[alias]]


def digest(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    """Return a row that depends on everything that is seen."""
    text = repr((sorted((alias, list(rows)) for alias, rows in seen.items()), time, list(output)))
    return [("#", zlib.crc32(text.encode()))]


def arrived(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    return all_of(seen, "i") + all_of(seen, "d")


def joined(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    there = all_of(seen, "r")
    return [(k, (n or 0) * 10 + (m or 0)) for k, n in arrived(seen, time, output) for l, m in there if k == l]  # noqa: E741


def running(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    """Return the sum of all rows that came: the greatest time of the output has the one before."""
    before = max((n for k, n in output if k == "sum"), default=0)
    return [("sum", before + 1 + sum(abs(n or 0) for _, n in arrived(seen, time, output)))]


def replaced(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    keys = {k for k, _ in arrived(seen, time, output)}
    return [row for row in output if row[0] in keys]


def greatest(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    best: dict[Any, Any] = {}
    for k, n in arrived(seen, time, output):
        best[k] = max(best.get(k, n or 0), n or 0)
    return list(best.items())


def odd(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    return [row for row in output if (row[1] or 0) % 2]


upsert = statements(("delete", replaced), ("insert", greatest))
BODIES: dict[str, tuple[Body, str, bool]] = {
    # What it does, the kind of its output, whether it reads it.
    "digest": (inserts(digest), "stream", True),
    "seen": (inserts(lambda seen, time, _: digest(seen, time, ())), "stream", False),
    "copy": (inserts(arrived), "stream", False),
    "join": (inserts(joined), "stream", False),
    "audit": (inserts(running), "stream", True),
    "upsert": (upsert, "collection", True),
    "retain": (statements(("insert", arrived), ("delete", odd)), "collection", True),
    # What comes and goes at one time is nothing; the digest is of what the statement before it left.
    "both": (statements(("insert", greatest), ("delete", replaced), ("insert", digest)), "collection", True),
}


def of_version(body: Body, version: int) -> Body:
    """Return another body for each version."""

    def changed(seen: Seen, time: int, output: Sequence[Row]) -> list[Change]:
        return [((k, n + version if version and isinstance(n, int) and diff > 0 else n), diff)
                for (k, n), diff in body(seen, time, output)]  # fmt: skip

    return changed


# The world --------------------------------------------------------------------------------------------


TURNS = (*["advance"] * 3, *["race"] * 3, "steps", "kill", "restart", "fail", "trouble", "switch")


@dataclass(frozen=True)
class Case:
    """What a history is drawn from.

    Attributes
    ----------
    body : str
    sources : tuple of (str, str)
        Kind of the log, and what is shown of it.
    same : bool
        Whether the last of the sources is the log of the first one.
    upstream : bool
        Whether the last of the sources is what another task writes.
    type_ : str
        Of the times.
    delta : bool
        Whether logs are tables on a disk.
    turns : tuple of str
        What happens, each as likely as it is there.
    snapshot : bool
        Whether the task begins with a snapshot in any case, as of a time.
    most_times : int
        Write times of a step at most; 0: drawn.
    """

    body: str
    sources: tuple[tuple[str, str], ...]
    same: bool = False
    upstream: bool = False
    type_: str = "long"
    delta: bool = False
    turns: tuple[str, ...] = TURNS
    snapshot: bool = False
    most_times: int = 0


def drawn(rng: random.Random) -> Case:
    names = list(BODIES)
    kinds = ["stream", "collection", "collection"]
    sources = [(rng.choice(kinds), rng.choice(["inserts"] * 3 + ["deletes"])) for _ in range(rng.randint(1, 3))]
    sources[0] = (sources[0][0], "inserts")
    sources += [(rng.choice(kinds), "contents") for _ in range(rng.randint(0, 2))]
    ways = rng.choice([(False, False), (True, False), (False, True)]) if len(sources) > 1 else (False, False)
    return Case(rng.choice(names + ["digest"] * 4), tuple(sources), *ways, rng.choice(["long", "date", "timestamp"]))


@dataclass
class Replica:
    """An engine, and what it was made with."""

    engine: TaskEngine
    bodies: PythonBodies
    plan: TaskPlan
    version: int = 0


@dataclass
class World:
    """The logs of a task, all that was ever written to them, and its replicas.

    Attributes
    ----------
    allowed : set
        How the task may begin, as long as it has not.
    """

    folder: Path
    rng: random.Random
    case: Case
    allowed: set[tuple[Frontier, bool]] = field(default_factory=set)

    def __post_init__(self) -> None:
        rng, case = self.rng, self.case
        self.made: dict[str, Log] = {}
        self.paths: dict[str, str] = {}
        self.histories: dict[str, History] = {}
        self.at: dict[str, list[int]] = {}
        self.least: dict[str, int] = {}
        self.sources: list[Source] = []
        self.clock, self.asked, self.quick = ManualClock(now=0.0), 0.0, True
        for number, (kind, shown) in enumerate(case.sources):
            letter = {"inserts": "i", "deletes": "d", "contents": "r"}[shown]
            last = number == len(case.sources) - 1 > 0
            name = "log0" if last and case.same else UP if last and case.upstream else f"log{number}"
            self.sources.append(Source(f"{letter}{number}", name, shown))
            if name not in self.histories and name != UP:
                self._create(name, kind)
        self.up: Replica | None = None
        self.up_sources = [replace(self.sources[0], alias="i0"), Source("r1", "log0", "contents")]
        self.up_body = rng.choice(["copy", "upsert", "digest"])
        if UP in {source.log for source in self.sources}:
            self.up = self._replica(UP, self.up_body, self.up_sources, TaskPlan(UP, ()), 0)
        self.versions: list[tuple[int, Body]] = [(-(10**9), self.body_of(0))]
        self.snapshot = case.snapshot or rng.random() < 0.4
        # Whether what is retained moves with each step, or is as far as some time ago.
        self.quick = rng.random() < 0.5
        self.forgotten = rng.random() < 0.3
        self.ended = False

    # Logs ---------------------------------------------------------------------------------------------

    @property
    def origin(self) -> int:
        day = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
        return {"long": 0, "date": day, "timestamp": day * 86_400_000_000}[self.case.type_]

    def time(self, number: int) -> Any:
        """Return a time as a value of its type."""
        if self.case.type_ == "date":
            return dt.date(2026, 1, 1) + dt.timedelta(days=number)
        if self.case.type_ == "timestamp":
            return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number)
        return number

    def _create(self, name: str, kind: str) -> None:
        rng = self.rng
        streams, self.least[name] = rng.choice([1, 2]), rng.choice([0, 0, 3])
        self.histories[name], self.at[name] = History(kind), [self.least[name]] * streams
        self.make(name, SCHEMA, kind, self.least[name], streams)
        for number in range(streams):
            self.handle(name).core.open_stream(f"s{number}", owner="test")

    def make(self, name: str, schema: pa.Schema, kind: str, least: int, streams: int = 1) -> Log:
        options: Any = {"times": [self.case.type_], "minimum": self.time(least), "kind": kind, "streams": streams,
                        "merge_every": self.rng.choice([None, 2])}  # fmt: skip
        if self.case.delta:
            self.made[name] = create_log(self.folder / name, schema, **options)
        else:
            self.made[name] = NamedLog.create(schema, **options)
        self.paths[name] = self.made[name].path
        return self.made[name]

    def handle(self, name: str) -> Log:
        """Return a new handle on a log."""
        log = self.made[name]
        return log.another() if isinstance(log, MemoryLog) else open_log(log.path)

    def retainers_clock(self) -> float:
        """Return a time; a day later whenever it is asked for, where what is retained moves at once."""
        self.asked += 86_400.0 * self.quick
        return self.asked

    def look(self, name: str) -> Log:
        """Return the observer's own handle on a log, as the log is now."""
        self.made[name].refresh()
        return self.made[name]

    def frontier(self, name: str) -> Frontier:
        return self.number(self.look(name).frontier())

    def since(self, name: str) -> Frontier:
        """Return from where on a log is readable; None where it has forgotten nothing."""
        log = self.look(name)
        return None if log.since() == log.domain.minimum_frontier else self.number(log.since())

    def number(self, frontier: Antichain) -> Frontier:
        return frontier.elements[0][0] - self.origin if frontier.elements else None

    @property
    def inputs(self) -> list[str]:
        return list(self.at)

    def write(self, name: str = "") -> None:
        """Write rows to a stream of a log: late ones, ones that cancel each other, none at all."""
        rng, name = self.rng, name or self.rng.choice(self.inputs)
        history, streams = self.histories[name], self.at[name]
        which = rng.randrange(len(streams))
        start, rows = streams[which], list[tuple[int, Row, int]]()
        for _ in range(rng.choice([0, 0, 1, 2, 4])):
            time = start + rng.randrange(5)
            row: Row = (rng.choice(["a", "b", None]), rng.choice([None, 0, 1, 2, 3]))
            if history.kind == "stream":
                rows.append((time, row, 1))
                continue
            how, known = rng.randrange(4), [each for _, each, _ in history.updates]
            if how == 0:
                rows += [(time, row, 1), (time, row, -1)]
            elif how < 3 and known and self.may_go(history, time, gone := rng.choice(known)):
                rows.append((time, gone, -1))
                history.updates.append(rows[-1])
                # As often as not another row takes its place.
                if rng.random() < 0.5:
                    rows.append((time, (gone[0], row[1]), 1))
                    history.updates.append(rows[-1])
                continue
            else:
                rows.append((time, row, rng.choice([1, 1, 2])))
            history.updates += rows[-2:] if how == 0 else rows[-1:]
        if history.kind == "stream":
            history.updates += rows
        streams[which] += rng.choice([0, 1, 1, 2, 3, 5, 12])
        # What cancels out is cut at random too.
        cut = rng.randint(0, len(rows))
        for part, to in ((rows[:cut], start), (rows[cut:], streams[which])):
            if part or to != start:
                self.append(name, which, part, self.time(to))

    def may_go(self, history: History, time: int, row: Row) -> bool:
        """Whether a row may be taken away at a time: it is there then, and ever after."""
        held: Counter[int] = Counter()
        for when, other, diff in history.updates:
            if other == row:
                held[max(when, time)] += diff
        total, fits = 0, True
        for when in sorted({time, *held}):
            total += held[when]
            fits = fits and total > 0
        return fits

    def append(self, name: str, which: int, rows: Sequence[tuple[int, Row, int]], to: Any) -> None:
        log = self.look(name)
        columns: dict[str, Any] = {
            "_time": pa.array([self.time(time) for time, _, _ in rows], log.domain.types[0].arrow),
            "_diff": pa.array([diff for *_, diff in rows], pa.int64()),
        }
        columns |= {each.name: pa.array([row[at] for _, row, _ in rows], each.type) for at, each in enumerate(SCHEMA)}
        if log.kind == "stream":
            del columns["_diff"]
        log.writer(f"s{which}", owner="test").append(pa.table(columns), advance_to=to)

    def close(self) -> None:
        for name, streams in self.at.items():
            for which in range(len(streams)):
                self.look(name).writer(f"s{which}", owner="test").close()
        self.ended = True

    def forget(self) -> None:
        """Merge files of a log, and let it forget as much as those that retain it allow."""
        rng, name = self.rng, self.rng.choice(list(self.made))
        log = self.look(name)
        begun = self.note() is not None
        whole = log.kind == "stream" and (name == OUT or self.is_whole(name))
        if begun or not whole or (self.forgotten and name in self.at and not self.up):
            number = rng.randrange(1, 30)
            if not log.frontier().is_empty and (begun or number < 8):
                log.allow_compaction([self.time(number)])
        log.compact(logical=rng.random() < 0.7)

    def is_whole(self, name: str) -> bool:
        """Whether contents of a stream log are read."""
        mine = [source for source in self.sources if source.log == name]
        mine += self.up_sources if self.up and name == "log0" else []
        return any(source.shown == "contents" or self.snapshot for source in mine)

    # Replicas -----------------------------------------------------------------------------------------

    def body_of(self, version: int) -> Body:
        return of_version(BODIES[self.case.body][0], version)

    def plan(self) -> TaskPlan:
        """Return what a start of the task says: where it began already, that is ignored but for the sources."""
        rng, begun = self.rng, self.note() is not None
        floor = max((at for at in map(self.since, self.logs()) if at is not None), default=0)
        as_of: Any = rng.choice(["earliest", "earliest", "latest", floor, floor + rng.randrange(9)])
        as_of = floor + rng.randrange(9) if self.case.snapshot else as_of
        snapshot = rng.random() < 0.5 if begun and not self.is_forgetful else self.snapshot
        return TaskPlan(
            "task", (), as_of=as_of if isinstance(as_of, str) else as_of + self.origin, snapshot=snapshot,
            forgotten=self.forgotten,
            until=rng.randrange(30) + self.origin if rng.random() < 0.1 else None,
            read_only=rng.random() < 0.05,
        )  # fmt: skip

    @property
    def is_forgetful(self) -> bool:
        """Whether a log has forgotten messages whose contents a snapshot would read."""
        return any(self.since(name) is not None and self.made[name].kind == "stream" for name in self.logs())

    def logs(self) -> list[str]:
        return list(dict.fromkeys(source.log for source in self.sources))

    def replica(self, version: int | None = None, replaces: str | None = None) -> Replica:
        newest = len(self.versions) - 1
        return self._replica(
            OUT, self.case.body, self.sources, self.plan(), newest if version is None else version, replaces
        )

    def _replica(
        self, name: str, body: str, sources: Sequence[Source], plan: TaskPlan, version: int, replaces: str | None = None
    ) -> Replica:
        """Return a new engine with handles of its own."""
        function, kind, reads_output = BODIES[body]
        scope = Scope(name)
        opened = {source.log: self.handle(source.log) for source in sources}
        leaves = {log: scope.replay(opened[log]).view for log in opened}
        first = leaves[sources[0].log]
        operator = BodyOperator(f"{body} {version}", deletes=kind == "collection", text=body)
        view = View(name, first.domain, SCHEMA, tuple(leaves[source.log] for source in sources), operator=operator)
        if name not in self.made:
            log = self.make(name, SCHEMA, kind, least_time(view)[0] - self.origin)
            log.core.open_stream("main", owner=f"task {name}")
        sink = Sink(name, view, self.paths[name], "main", f"task {name}", replaces)
        logs = {self.paths[log]: handle for log, handle in {**opened, name: self.handle(name)}.items()}
        # A body that does not read its output may be evaluated at several times in a step.
        together = not reads_output and (bool(self.case.most_times) or self.rng.random() < 0.7)
        plan = replace(
            plan, name=name, reads_output=reads_output, together=together,
            sources=tuple(TaskSource(each.alias, self.paths[each.log], each.shown) for each in sources),  # type: ignore[arg-type]
        )  # fmt: skip
        bodies = PythonBodies(
            of_version(function, version),
            self.origin,
            odd_together=not self.case.most_times and self.rng.random() < 0.3,
        )
        by_path = {path: log for log, path in self.paths.items()}
        engine = TaskEngine(
            plan, sink, logs, files_of=catalog_of, evaluator=lambda: bodies, run=str(self.rng.random()),
            retain=lambda log, consumer: RetainedPosition(
                partial(self.handle, by_path[log.path]), consumer, MONTH, now=self.retainers_clock
            ),
            may_write=lambda: False, now=self.clock,
            most_times=self.case.most_times or self.rng.choice([1, 2, 3, 1000]),
        )  # fmt: skip
        if not self.case.delta:
            engine._storages.update({path: log.core.storage for path, log in logs.items()})  # type: ignore[misc]
        return Replica(engine, bodies, plan, version)

    def beginnings(self, plan: TaskPlan) -> tuple[Frontier, bool]:
        """Return how a start would begin the task now."""
        floors = [at for at in map(self.since, self.logs()) if at is not None]
        found: Frontier = max(floors, default=None)
        least = self.made[OUT].domain.minimum[0] - self.origin
        if plan.as_of == "latest":
            fronts = [self.frontier(log) for log in self.logs()]
            to = min((at for at in fronts if at is not None), default=None)
            if to is not None:
                # Nothing is complete as long as a log is where the first of them begins.
                latest = to - 1 if to > least else None
            else:
                latest = max((when for log in self.logs() for when, _, _ in self.history(log).updates), default=None)
            found = max([*floors, *([] if latest is None else [latest])], default=None)
        elif not isinstance(plan.as_of, str):
            found = plan.as_of - self.origin
        return None if found is not None and found < least else found, plan.snapshot

    # What is there, and what should be ------------------------------------------------------------------

    def output_note(self, name: str = OUT) -> OutputNote | None:
        if name not in self.made:
            return None
        state = self.look(name).core.stream("main")
        return None if state is None else state.note.output

    def note(self, name: str = OUT) -> TaskNote | None:
        note = self.output_note(name)
        return None if note is None else note.task

    def history(self, name: str) -> History:
        """Return all that a log has: of what another task wrote, as the sequential program says it."""
        if name != UP:
            return self.histories[name]
        kind = BODIES[self.up_body][1]
        updates = [
            (time, row, n) for time, rows in self.program(UP).run(self.frontier(UP), kind).items()
            for row, n in rows.items()
        ]  # fmt: skip
        return History(kind, updates)

    def began(self, name: str = OUT) -> Began:
        note = self.note(name)
        if note is None:
            return Began()
        left = {alias: at - self.origin for alias, at in note.forgotten.items()}
        return Began(None if note.as_of is None else note.as_of - self.origin, note.snapshot, left)

    def program(self, name: str = OUT) -> Task:
        if name == UP:
            return Task(self.up_sources, self.histories, [(-(10**9), BODIES[self.up_body][0])], self.began(UP))
        histories = {log: self.history(log) for log in self.logs()}
        return Task(self.sources, histories, self.versions, self.began())

    def found(self, name: str = OUT) -> dict[int, dict[Row, int]]:
        rows: dict[int, Counter[Row]] = {}
        for row in self.look(name).messages().to_pylist():
            time = row.pop("_time")
            if self.case.type_ == "date":
                at = (time - self.time(0)).days
            elif self.case.type_ == "timestamp":
                at = (time - self.time(0)) // dt.timedelta(microseconds=1)
            else:
                at = time
            rows.setdefault(at, Counter())[row["k"], row["n"]] += row.get("_diff", 1)
        return {time: {row: n for row, n in each.items() if n} for time, each in rows.items() if any(each.values())}

    def check(self, *, idle: Replica | None = None) -> None:
        """Compare the outputs with the program; that of the task also says when it should be further."""
        for name in (UP, OUT):
            if name in self.made:
                self._check(name, idle if name == OUT else None)

    def _check(self, name: str, idle: Replica | None) -> None:
        upper = self.frontier(name)
        if self.note(name) is None:
            assert not self.found(name), "rows before a beginning"
            assert upper == self.made[name].domain.minimum[0] - self.origin, "moved before a beginning"
            assert idle is None or idle.plan.read_only, "not begun"
            return
        if name == OUT:
            began = self.began()
            assert self.allowed, "begun by nobody"
            assert (began.as_of, began.snapshot) in self.allowed, f"begun otherwise: {began}, not {self.allowed}"
            self.allowed = {(began.as_of, began.snapshot)}
        program = self.program(name)
        fronts = {log: self.frontier(log) for log in {each.log for each in program.sources}}
        bound = program.upper(fronts)
        assert reaches(bound, upper), f"too soon: {upper}, with inputs up to {bound}"
        if idle is not None and not idle.plan.read_only:
            until = None if idle.plan.until is None else idle.plan.until - self.origin
            stop = program.upper(fronts, until)
            assert reaches(upper, stop), f"stuck: {upper}, not at {stop}"
        log = self.look(name)
        wanted, found, since = program.run(upper, log.kind), self.found(name), self.since(name)
        if since is not None:
            wanted, found = forgotten(wanted, since, log.kind), forgotten(found, since, log.kind)
        assert found == wanted


def forgotten(output: dict[int, dict[Row, int]], since: int, kind: str) -> dict[int, dict[Row, int]]:
    """Return what is left of an output's history."""
    found: dict[int, Counter[Row]] = {}
    for time, rows in output.items():
        if time >= since or kind == "collection":
            for row, n in rows.items():
                found.setdefault(max(time, since), Counter())[row] += n
    return {time: {row: n for row, n in each.items() if n} for time, each in found.items() if any(each.values())}


# Histories --------------------------------------------------------------------------------------------


def advance(world: World, replica: Replica, steps: int = 1000) -> Replica | None:
    """Let a replica take steps; return it if it may live on."""
    engine = replica.engine
    if world.note() is None:
        world.allowed.add(world.beginnings(replica.plan))
    idle = False
    try:
        engine.begin()
        for _ in range(steps):
            if engine.step() is None:
                idle = not engine.failures
                break
    except KilledError:
        engine.end()
        return None
    outdated = replica.version != len(world.versions) - 1
    for error in engine.failures:
        engine.end()
        if isinstance(error, PlanMismatchError):
            assert outdated, error
            return None
        if isinstance(error, OperatorError):
            assert replica.bodies.fails_at & set(replica.bodies.runs), error
            said = failure_of(world.look(OUT), engine._sink)
            newest = world.note() is not None and not outdated
            assert said is None or said.kind == "OperatorError" or not newest
            return None
        if isinstance(error, (RuntimeError, StorageError)) and "no room" in str(error):
            world.clock.advance(100.0)
            return replica
        raise error
    closed = world.frontier(OUT) is None
    # An old replica cannot be told from the newest by a log that is complete.
    assert not (idle and outdated) or closed or replica.plan.read_only, "an old body went on"
    world.check(idle=replica if idle and not outdated else None)
    return replica


def disturbed(replica: Replica, how: str, world: World) -> None:
    """Let the next commit of a replica be its last, or seem to fail."""
    log = replica.engine._logs[world.paths[OUT]]
    commit = log.core.commit

    def strange(request: Any) -> Any:
        del log.__dict__["commit"]
        outcome = commit(request) if how.endswith("after") else None
        if how.startswith("kill"):
            raise KilledError
        msg = "could not reach the log: found no room"
        raise StorageError(msg, determinate=outcome is None)

    log.__dict__["commit"] = strange


def between(world: World, replicas: list[Replica | None], which: int, rng: random.Random) -> None:
    """Do what may happen while a replica has its files, and has not appended them."""
    other = replicas[1 - which]
    for what in ("step", *rng.choices(["step", "write", "up", "switch"], k=rng.randint(0, 2))):
        if what == "step" and other is not None:
            other = replicas[1 - which] = advance(world, other, rng.randint(1, 5))
        elif what == "write" and not world.ended and world.note() is not None:
            world.write()
        elif what == "up":
            advance_up(world)
        elif what == "switch" and rng.random() < 0.3:
            switched(world, replicas, 1 - which)


def advance_up(world: World) -> None:
    if world.up is None:
        return
    world.up.engine.begin()
    for _ in range(world.rng.randint(1, 6)):
        if world.up.engine.step() is None:
            break
    for error in world.up.engine.failures:
        raise error


def switched(world: World, replicas: list[Replica | None], which: int) -> None:
    """Start another body in place of the one that wrote the output up to now."""
    note, upper = world.output_note(), world.frontier(OUT)
    if note is None or note.task is None or note.plan is None or upper is None or len(world.versions) > 3:
        return
    new = replicas[which] = world.replica(len(world.versions), note.plan)
    if not new.plan.read_only:
        world.versions.append((upper, world.body_of(len(world.versions))))
        after = world.output_note()
        assert after is not None
        assert after.plan != note.plan, "not taken over"
    else:
        replicas[which] = None


def run_history(folder: Path, rng: random.Random, case: Case | None = None) -> World:
    world = World(folder, rng, case or drawn(rng))
    replicas: list[Replica | None] = [None, None, None]

    def replica(which: int) -> Replica:
        # Now and then somebody starts the old code again.
        old = len(world.versions) > 1 and rng.random() < 0.1
        found = replicas[which] = replicas[which] or world.replica(rng.randrange(len(world.versions)) if old else None)
        return found

    for _ in range(rng.randrange(4, 14)):
        for _ in range(rng.randrange(0, 5)):
            world.write()
        if rng.random() < 0.7:
            advance_up(world)
        which, turn = rng.randrange(3), rng.choice(world.case.turns)
        which = which % 2 if turn == "race" else which
        mine = replica(which)
        for _ in range(3 if turn == "race" else 0):
            world.write()
        if turn == "restart":
            mine.engine.end()
            replicas[which] = None
            mine = replica(which)
        if turn == "race":
            replica(1 - which)
            mine.bodies.written = once(partial(between, world, replicas, which, rng))
        if turn == "kill":
            killed_somewhere(world, mine, rng)
        if turn == "trouble":
            disturbed(mine, rng.choice(["fail before", "fail after"]), world)
            mine.bodies.raises_at = {rng.randrange(20)}
        if turn == "fail":
            mine.bodies.fails_at = set(rng.sample(range(25), 8))
        if turn == "switch":
            switched(world, replicas, which)
            mine = replica(which)
        found = advance(world, mine, rng.randint(1, 3) if turn == "steps" else 1000)
        mine.bodies.written, mine.bodies.fails_at, mine.bodies.raises_at = lambda plan: None, set(), set()
        mine.engine._logs[world.paths[OUT]].__dict__.pop("commit", None)
        # Whoever took its place while it was away stays.
        replicas[which] = found if replicas[which] is mine else replicas[which]
        world.check()
        if rng.random() < 0.4:
            world.forget()
            world.check()
    finish(world, replicas)
    return world


def once(action: Callable[[], None]) -> Callable[[StepPlan], None]:
    left = [True]

    def act(_: StepPlan) -> None:
        if left[0]:
            left[0] = False
            action()

    return act


def killed_somewhere(world: World, replica: Replica, rng: random.Random) -> None:
    """Let a replica die before or after one of its commits, or once it has written files for it."""

    def die(_: StepPlan) -> None:
        raise KilledError

    how = rng.choice(["kill before", "kill after", "files"])
    if how == "files":
        replica.bodies.written = die
    else:
        disturbed(replica, how, world)


def finish(world: World, replicas: Sequence[Replica | None]) -> None:
    """Close the inputs: the output closes, and is what the program says from the first time to the last."""
    world.close()
    if world.up is not None:
        world.up.engine.begin()
        while world.up.engine.step() is not None:
            pass
        assert not world.up.engine.failures
    last = world.replica()
    plan = replace(last.plan, until=None, read_only=False)
    last = world._replica(OUT, world.case.body, world.sources, plan, len(world.versions) - 1)
    assert advance(world, last) is last
    assert world.frontier(OUT) is None, "not closed"
    world.check(idle=last)
    assert world.look(OUT).verify().legal
    check_again(world, last)
    for replica in [*replicas, last, world.up]:
        if replica is not None:
            replica.engine.end()


def check_again(world: World, replica: Replica) -> None:
    """Evaluate the last steps once more, from the logs as they are now: they give what was written."""
    found, first = world.found(), world.versions[-1][0]
    for plan in replica.engine.steps_before(3):
        time = plan.time - world.origin
        if time >= first:
            assert replica.bodies.given(plan) == found.get(time, {}), "another result now"


LONG = bool(os.environ.get("SPARK_TIMELY_LONG"))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "spark_timely")


@pytest.mark.parametrize("seed", range(2000 if LONG else 7))
def test_histories_are_as_the_program_says(seed: int, tmp_path: Path) -> None:
    run_history(tmp_path, random.Random(seed))


@pytest.mark.parametrize("seed", range(300 if LONG else 1))
def test_histories_of_real_tables_are_as_the_program_says(seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"delta {seed}")
    run_history(tmp_path, rng, replace(drawn(rng), delta=True))


# Wrong designs ----------------------------------------------------------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]


def times_before_summing(patch: pytest.MonkeyPatch) -> None:
    """Any message of an input makes a write time: also one that another takes back at once."""
    patch.setattr(
        TaskEngine, "_times_between",
        lambda self, source, lower, stop: in_range(self._message_times(source, lower, stop), lower, stop),
    )  # fmt: skip


def in_range(times: Any, lower: int, stop: int) -> Any:
    return times[(times >= lower) & (times < stop)]


def deletes_make_write_times(patch: pytest.MonkeyPatch) -> None:
    """Rows that go make write times of an input that shows those that come."""
    found = TaskEngine._times_between

    def either(self: Any, source: TaskSource, lower: int, stop: int) -> Any:
        ways = [replace(source, shown="inserts"), replace(source, shown="deletes")]
        return np.unique(np.concatenate(self._known_by_now([found(self, way, lower, stop) for way in ways])))

    patch.setattr(TaskEngine, "_times_between", either)


def references_before(patch: pytest.MonkeyPatch) -> None:
    """Contents are those of the time before."""
    found = TaskEngine._source_plan

    def before(self: Any, source: TaskSource, lower: Any, stop: int, first: Any = None) -> Any:
        apart = source.shown == "contents" and source.alias != "output"
        return found(self, source, lower, stop - 1 if apart else stop, first)

    patch.setattr(TaskEngine, "_source_plan", before)


def own_output_of(added: int) -> Mutant:
    """Make the output that the body reads that of another time."""

    def mutant(patch: pytest.MonkeyPatch) -> None:
        found = TaskEngine._source_plan

        def other(self: Any, source: TaskSource, lower: Any, stop: int, first: Any = None) -> Any:
            return found(self, source, lower, stop + added if source.alias == "output" else stop, first)

        patch.setattr(TaskEngine, "_source_plan", other)

    return mutant


def past_a_waiting_write(patch: pytest.MonkeyPatch) -> None:
    """The output follows its inputs although a write waits."""
    found = SinkState.process

    def process(self: Any) -> Any:
        write = found(self)
        time = self._times.first()
        waits = time is not None and not self.append_times_progress.less_equal(time)
        if waits and (write is None or write.time is None):
            return Write(self.append_times_progress)
        return write

    patch.setattr(SinkState, "process", process)


def references_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A time is written once the inputs have passed it."""
    meet = TaskEngine._meet
    patch.setattr(
        TaskEngine, "_meet", lambda self, sources: meet(self, sources or (self.plan.inputs and sources))
        if not sources or sources[0].is_input else Antichain.empty(1),
    )  # fmt: skip


def one_input_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A time is written once the first input has passed it."""
    meet = TaskEngine._meet
    patch.setattr(TaskEngine, "_meet", lambda self, sources: meet(self, list(sources)[:1]))


def begins_a_time_later(patch: pytest.MonkeyPatch) -> None:
    """The first commit moves the output past as_of."""
    found = TaskEngine._begun

    def begun(self: Any, look: Any) -> Any:
        after = found(self, look)
        return after if after.note.as_of is None else replace(after, upper=Antichain.of(after.note.as_of + 1))

    patch.setattr(TaskEngine, "_begun", begun)


def snapshot_at_each_start(patch: pytest.MonkeyPatch) -> None:
    """The first write of a start sees all that the inputs hold."""
    found = TaskEngine._step_plan

    def plan_of(self: Any, look: Any, times: tuple[int, ...], job: str) -> StepPlan:
        plan, time = found(self, look, times, job), times[0]
        if look.note.snapshot and not self.__dict__.setdefault("_started", False):
            self.__dict__["_started"] = True
            whole = [self._source_plan(s, None if s.shown == "inserts" else time, time + 1) for s in self.plan.inputs]
            plan = replace(plan, sources=(*whole, *plan.sources[len(whole) :]))
        return plan

    patch.setattr(TaskEngine, "_step_plan", plan_of)


def no_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Contents as of the beginning never go through the body."""
    patch.setattr(TaskEngine, "_snapshot_time", lambda self, source, note, upper: np.empty(0, np.int64))


def race_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """What a replica has is appended to whatever the output is by now, at the next time that is free."""
    write = TaskEngine._write

    def late(self: Any, look: Any, times: tuple[int, ...], upper: Antichain) -> Any:
        found = write(self, look, times, upper)
        if found is None or found[0].won or self.failures:
            return found
        now = replace(look, state=self._logs[self._sink.path].core.stream(self._sink.stream))
        if now.state.closed:
            return found
        ((at,),) = now.state.frontier.elements
        result = self._evaluator().evaluate(
            replace(self._step_plan(look, times[:1], "job"), times=(at,), seq=now.state.seq + 1)
        )
        return self._append(now, result.files, Antichain.of(at + 1).join(upper), look.note, {})

    patch.setattr(TaskEngine, "_write", late)


def any_body_may_write(patch: pytest.MonkeyPatch) -> None:
    """Whose body an output is written by is not asked."""
    patch.setattr(decide, "check_plan", lambda *_: None)
    patch.setattr("spark_timely.dataflow.engine.outputs.check_plan", lambda *_: None)


def failed_time_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """A body that fails gives nothing, and its time is passed."""
    patch.setattr(
        TaskEngine, "_overtaken_or_failed",
        lambda self, state, upper, error: self._append(self._look(), (), upper, note_of(state, self._sink).task, {}),
    )  # fmt: skip


def deletes_are_inserts(patch: pytest.MonkeyPatch) -> None:
    """Both kinds of inputs show the rows that come."""
    found = TaskEngine._source_plan
    patch.setattr(
        TaskEngine, "_source_plan",
        lambda self, source, lower, stop, first=None: found(
            self, replace(source, shown="inserts") if source.shown == "deletes" else source, lower, stop, first
        ),
    )  # fmt: skip


def nothing_is_retained(patch: pytest.MonkeyPatch) -> None:
    """Logs may forget what the task needs."""
    patch.setattr(RetainedPosition, "stand", lambda *_: None)


def another_start_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """The note of the first start is not adopted."""
    look = TaskEngine._look

    def as_this_start_says(self: Any) -> Any:
        found = look(self)
        if found is None or found.note is None or isinstance(self.plan.as_of, str):
            return found
        return replace(found, note=replace(found.note, as_of=self.plan.as_of, snapshot=self.plan.snapshot))

    patch.setattr(TaskEngine, "_look", as_this_start_says)


COLLECTION, STREAM = ("collection", "inserts"), ("stream", "inserts")
WITH_REFERENCE = (COLLECTION, ("collection", "contents"))


FAILS, RACES, SWITCHES, STARTS = ("fail",), ("race",), ("switch", "advance"), ("restart", "steps")


# With the seed that finds it with the least work, which is tried first.
@pytest.mark.parametrize(
    ("mutant", "case", "first"),
    [
        (times_before_summing, Case("digest", (COLLECTION,)), 19),
        (deletes_make_write_times, Case("digest", (COLLECTION,)), 23),
        (deletes_are_inserts, Case("digest", (COLLECTION, ("collection", "deletes"))), 10),
        (references_before, Case("seen", WITH_REFERENCE), 12),
        (references_not_waited_for, Case("seen", WITH_REFERENCE), 22),
        (one_input_waited_for, Case("copy", (STREAM, STREAM)), 1),
        (own_output_of(-1), Case("audit", (STREAM,)), 14),
        (own_output_of(+1), Case("audit", (STREAM,)), 5),
        (past_a_waiting_write, Case("seen", WITH_REFERENCE), 3),
        (begins_a_time_later, Case("copy", (STREAM,), turns=STARTS, snapshot=True), 29),
        (snapshot_at_each_start, Case("copy", (STREAM,), turns=STARTS, snapshot=True), 9),
        (no_snapshot, Case("copy", (STREAM,), turns=STARTS, snapshot=True), 26),
        (another_start_begins_anew, Case("copy", (STREAM,), turns=STARTS), 14),
        (any_body_may_write, Case("copy", (STREAM,), turns=SWITCHES), 19),
        (failed_time_is_skipped, Case("copy", (STREAM,), turns=FAILS), 6),
        (nothing_is_retained, Case("seen", WITH_REFERENCE), 3),
        (race_unnoticed, Case("copy", (STREAM,), turns=RACES), 22),
    ],
)
def test_wrong_designs_are_found(
    mutant: Mutant, case: Case, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_many() -> None:
        for seed in range(first, first + 60):
            run_history(tmp_path, random.Random(seed), case)

    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimelyError)):
        run_many()


# What must be so in each history ----------------------------------------------------------------------


def idle(replica: Replica, *, failing: bool = False) -> list[bool]:
    """Let a replica take all steps that are there; return for each of its commits whether it was the first."""
    replica.engine.begin()
    done = []
    while (found := replica.engine.step()) is not None:
        done.append(found[0].won)
    assert bool(replica.engine.failures) == failing
    return done


def plain_world(tmp_path: Path, case: Case) -> World:
    """Return a world that begins before all times, with one stream per log."""
    rng = random.Random(0)
    for number in count():
        world = World(tmp_path / str(number), rng, case)
        if all(streams == [0] for streams in world.at.values()):
            return world
    raise AssertionError


def start(world: World) -> Replica:
    found = world._replica(OUT, world.case.body, world.sources, TaskPlan("task", ()), 0)
    world.allowed.add((None, False))
    return found


def test_ten_thousand_empty_times_are_one_commit(tmp_path: Path) -> None:
    world = plain_world(tmp_path, Case("seen", (STREAM, ("stream", "contents"))))
    replica = start(world)
    assert idle(replica) == [True]
    for step in range(1, 11):  # the reference stays behind
        world.append("log0", 0, [], world.time(step * 1_000))
    assert idle(replica) == [True]
    assert world.frontier(OUT) == 10_000
    assert replica.bodies.runs == []
    world.check(idle=replica)


def test_each_write_time_is_one_commit(tmp_path: Path) -> None:
    world = plain_world(tmp_path, Case("audit", (STREAM, ("stream", "contents"))))
    replica = start(world)
    rows = [(time, ("a", time), 1) for time in (3, 4, 9, 11)]
    world.histories["log0"].updates += rows
    world.append("log0", 0, rows, world.time(12))
    # The beginning, and up to the first write time, which the reference has not passed.
    assert idle(replica) == [True, True]
    assert world.frontier(OUT) == 3
    world.append("log1", 0, [], world.time(10))
    # Three write times; the move to the fourth, which waits, is no commit of its own.
    assert idle(replica) == [True] * 3
    assert world.frontier(OUT) == 11
    world.append("log1", 0, [], world.time(20))
    assert idle(replica) == [True]
    assert replica.bodies.runs == [3, 4, 9, 11]
    assert world.frontier(OUT) == 12
    world.check(idle=replica)


@pytest.mark.parametrize("changed", ["log0", "log1"])
def test_task_refuses_what_others_changed(tmp_path: Path, changed: str) -> None:
    world = plain_world(tmp_path, Case("join", WITH_REFERENCE, delta=True))
    replica = start(world)
    rows = [(time, ("a", time), 1) for time in (3, 4, 9)]
    for name in ("log0", "log1"):
        world.histories[name].updates += rows
        world.append(name, 0, rows, world.time(5 if name == "log0" else 20))
    idle(replica)
    at = world.frontier(OUT)
    world.append("log0", 0, [], world.time(12))
    whole = world.look(changed).core.version
    DeltaTable(world.look(changed).path).delete(f"_event = 'message' and _time = {world.time(9)}")
    assert idle(replica, failing=True) == []
    assert [type(error) for error in replica.engine.failures] == [ForeignChangeError]
    assert world.frontier(OUT) == at
    DeltaTable(world.look(changed).path).restore(whole)
    replica = start(world)
    idle(replica)
    assert world.frontier(OUT) == 12
    world.check(idle=replica)


def test_many_write_times_are_one_commit_up_to_the_references(tmp_path: Path) -> None:
    world = plain_world(tmp_path, Case("join", WITH_REFERENCE, most_times=3))
    replica = start(world)
    rows = [(time, ("a", time), 1) for time in (1, 2, 4, 6, 8, 9)]
    world.histories["log0"].updates += rows
    world.append("log0", 0, rows, world.time(20))
    world.append("log1", 0, [], world.time(9))
    # Three times, then two; the last one waits for the reference.
    assert idle(replica)[-2:] == [True, True]
    assert (replica.bodies.runs, world.frontier(OUT)) == ([1, 2, 4, 6, 8], 9)
    world.append("log1", 0, [], world.time(10))
    assert idle(replica) == [True]
    assert (replica.bodies.runs[5:], world.frontier(OUT)) == ([9], 20)
    world.check(idle=replica)


@pytest.mark.parametrize("wrong", range(1, 9))
def test_what_fails_together_is_run_in_halves_to_what_fails(wrong: int, tmp_path: Path) -> None:
    world = plain_world(tmp_path, Case("copy", (STREAM,), most_times=8))
    replica = start(world)
    rows = [(time, ("a", time), 1) for time in range(1, 9)]
    world.histories["log0"].updates += rows
    world.append("log0", 0, rows, world.time(20))
    replica.bodies.fails_at.add(wrong)
    idle(replica, failing=True)
    (error,) = replica.engine.failures
    # All before it is written, nothing after it; the error is that of its time alone.
    assert isinstance(error, OperatorError)
    assert f" at {replica.engine._rendered(world.time(wrong))}: " in error.message
    assert sorted(world.found()) == list(range(1, wrong))
    assert world.frontier(OUT) == (wrong if wrong > 1 else 0)  # nothing moves the output up to its first write
    assert replica.bodies.runs[-1] == wrong
    replica.bodies.fails_at.clear()
    world.check(idle=None)
    again = start(world)
    idle(again)
    assert sorted(world.found()) == list(range(1, 9))
    world.check(idle=again)


def test_a_step_of_many_times_that_lost_is_smaller_afterwards(tmp_path: Path) -> None:
    world = plain_world(tmp_path, Case("copy", (STREAM,), most_times=8))
    winner, loser = start(world), start(world)
    idle(winner)
    rows = [(time, ("a", time), 1) for time in range(1, 9)]
    world.histories["log0"].updates += rows
    world.append("log0", 0, rows, world.time(20))

    def overtake() -> None:
        winner.engine._at_once = 2
        winner.engine.begin()
        winner.engine.step()

    loser.bodies.written = once(overtake)
    assert idle(loser)[:1] == [False]
    assert winner.bodies.runs == [1, 2]
    # After eight that lost, four are tried, from where the winner is.
    assert loser.bodies.runs == [*range(1, 9), 3, 4, 5, 6, 7, 8]
    assert sorted(world.found()) == list(range(1, 9))
    world.check(idle=loser)


def test_a_reference_alone_makes_no_output(tmp_path: Path) -> None:
    world = plain_world(tmp_path, Case("seen", (STREAM, ("collection", "contents"))))
    replica = start(world)
    world.append("log0", 0, [], world.time(30))
    rows = [(time, ("a", time), 1) for time in range(20)]
    world.histories["log1"].updates += rows
    world.append("log1", 0, rows, world.time(20))
    assert idle(replica) == [True, True]
    assert (replica.bodies.runs, world.found(), world.frontier(OUT)) == ([], {}, 30)


def test_files_that_lost_a_race_are_part_of_nothing(tmp_path: Path) -> None:
    """What lost is computed anew: its files, which say which commit they are for, are refused in any other."""
    world = plain_world(tmp_path, Case("copy", (STREAM,)))
    winner, loser = start(world), start(world)
    rows = [(time, ("a", time), 1) for time in (1, 2)]
    world.histories["log0"].updates += rows
    world.append("log0", 0, rows, world.time(5))
    assert idle(winner)[0]
    sink, log = loser.engine._sink, loser.engine._logs[world.paths[OUT]]
    held: list[Any] = []
    append = loser.engine._outputs.append

    def seen(*given: Any) -> Any:
        held.append(given[2])
        return append(*given)

    loser.engine._outputs.append = seen  # type: ignore[method-assign]
    more = [(7, ("b", 7), 1)]
    world.histories["log0"].updates += more
    world.append("log0", 0, more, world.time(8))
    loser.bodies.written = once(lambda: idle(winner) and None)
    assert idle(loser) == [False]
    assert loser.bodies.runs == [7]
    world.check(idle=loser)
    (files,) = held
    assert files
    log.refresh()
    state = log.core.stream("main")
    assert state is not None
    note = note_of(state, sink)
    with pytest.raises(TimelyError):
        log.writer("main", owner=sink.owner).compare_and_append_files(
            files, expected=state, upper=Antichain.of(30), note=Note(output=note)
        )
    assert not [path for path in (file.path for file in files) if log.core.storage.exists(path)]
    world.check()


def test_a_start_whose_snapshot_is_written_needs_no_more(tmp_path: Path) -> None:
    """A task with snapshot over a stream is started again after the stream has forgotten what the snapshot read."""
    world = plain_world(tmp_path, Case("copy", (STREAM,)))
    rows = [(time, ("a", time), 1) for time in (0, 1, 2, 6)]
    world.histories["log0"].updates += rows
    world.append("log0", 0, rows, world.time(8))
    world.quick = True
    plan = TaskPlan("task", (), as_of=2, snapshot=True)
    world.allowed.add((2, True))
    first = world._replica(OUT, "copy", world.sources, plan, 0)
    idle(first)
    first.engine.end()
    assert sorted(world.found()) == [2, 6]
    log = world.look("log0")
    assert log.allow_compaction([8]) == Antichain.of(7)
    log.compact(logical=True)
    assert world.since("log0") == 7
    again = world._replica(OUT, "copy", world.sources, plan, 0)
    world.append("log0", 0, [], world.time(9))
    assert idle(again) == [True]
    world.check(idle=again)


def test_earliest_skips_nothing_of_logs_that_begin_apart(tmp_path: Path) -> None:
    """The log that is named first begins later than another."""
    rng = random.Random(1)
    world = World(tmp_path, rng, Case("copy", (STREAM, STREAM)))
    while world.least != {"log0": 3, "log1": 0} or [len(each) for each in world.at.values()] != [1, 1]:
        world = World(tmp_path, rng, world.case)
    rows = [(0, ("a", 0), 1), (2, ("a", 2), 1)]
    world.histories["log1"].updates += rows
    world.append("log1", 0, rows, world.time(5))
    world.append("log0", 0, [], world.time(5))
    replica = start(world)
    idle(replica)
    world.check(idle=replica)
    assert sorted(world.found()) == [0, 2]
