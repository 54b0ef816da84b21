"""Random graphs of operators, written down as people write them: parts repeated, nearly repeated, and shared.

Logs are in memory, so that thousands of graphs can be drawn. What a graph computes says `tests.oracles.graph_model`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow import logs as dataflow_logs
from spark_timely.dataflow import stream as dataflow_stream
from spark_timely.dataflow.aggregates import count, min_of, sum_of
from spark_timely.dataflow.delays import ceil_to, plus
from spark_timely.dataflow.engine import explain
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import packed, unpacked
from spark_timely.errors import InvalidUsageError, LogMissingError
from spark_timely.log import MemoryLog
from spark_timely.log.store.base import MemoryStore, MemoryTable
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows import tasks as dataflow_tasks
from spark_timely.spark.dataflows.tasks import catalog_of, run_one
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.oracles.graph_model import (
    OVER_HISTORY,
    Graph,
    GraphFunction,
    GraphNode,
    Inputs,
    Updates,
    at,
    below_of,
    frontiers_of,
    held_by,
)

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
KINDS = ("stream", "collection", "stream")
"""Of the logs that graphs read."""

NUMBERED = frozenset({"filter", "holds", "others", "delay", "ceil", "top"})
"""Operators with a number."""


@dataclass(frozen=True)
class Drawn:
    """What is drawn beside operators that leave times as they are.

    Attributes
    ----------
    delays : bool
        Whether operators over history are made of what is delayed. Else delays are the last before an output.
    minimums : bool
        Whether logs begin above 0.
    begins : bool
        Whether outputs that are collections may begin later than their inputs.
    forgets : bool
        Whether a collection may have forgotten its beginning before anything is made of it.
    """

    delays: bool = False
    minimums: bool = False
    begins: bool = False
    forgets: bool = False


# Drawing ---------------------------------------------------------------------------------------------


def draw_graph(rng: random.Random, drawn: Drawn, size: int = 9) -> Graph:
    """Draw a graph in which parts are repeated, some of them nearly."""
    functions = [GraphFunction(rng.randrange(3), rng.choice(["lambda", "partial", "method"])) for _ in range(4)]
    nodes = [GraphNode("replay", (), number, updates=kind == "collection") for number, kind in enumerate(KINDS)]
    for _ in range(rng.randrange(2, size)):
        nodes.append(_drawn_node(rng, nodes, drawn))
        if rng.random() < 0.35:
            _repeat(rng, nodes, functions)
    outputs: dict[int, int] = {}
    for _ in range(rng.choice([1, 1, 2, 3])):
        number = rng.choice([len(nodes) - 1, rng.randrange(len(KINDS), len(nodes))])
        outputs[number] = rng.choice([0, 0, 2])
    return Graph(tuple(nodes), tuple(functions), tuple(outputs.items()))


def _drawn_node(rng: random.Random, nodes: Sequence[GraphNode], drawn: Drawn) -> GraphNode:
    # What was made last is read most: so graphs are deep.
    number = rng.choice([len(nodes) - 1, rng.randrange(len(nodes))])
    source = nodes[number]
    kinds = ["filter", "holds", "others", "map", "inspect", "concat", "distinct", "latest", "top"]
    kinds += ["counts", "sums", "ends", "reduce"]
    kinds += ["consolidate"] if source.updates else ["first", "totals", "join", "as_of", "as_updates"]
    kinds += ["delay", "ceil"] if drawn.delays else []
    kind = rng.choice(kinds)
    alike = [i for i, each in enumerate(nodes) if each.updates == source.updates]
    below: tuple[int, ...] = (number,)
    if kind in ("concat", "join"):
        below = (number, *rng.choices(alike, k=rng.choice([1, 1, 2]) if kind == "concat" else 1))
    if kind == "as_of":
        below = (number, rng.choice([i for i, each in enumerate(nodes) if each.updates]))
    events = kind in ("first", "totals", "join", "as_of") or (kind == "distinct" and not source.updates)
    makes = kind in OVER_HISTORY or kind == "as_updates"
    return GraphNode(
        kind,
        below,
        rng.randrange(1, 4) if kind in NUMBERED else 0,
        rng.randrange(4) if kind in ("map", "inspect", "reduce") else -1,
        not events and (makes or source.updates),
    )


def _repeat(rng: random.Random, nodes: list[GraphNode], functions: Sequence[GraphFunction]) -> None:
    """Write the last operator and some below it once more, maybe with something changed, and put both together."""
    last = len(nodes) - 1
    chain = [last]
    while rng.random() < 0.6 and nodes[chain[-1]].below and nodes[chain[-1]].below[0] >= len(KINDS):
        chain.append(nodes[chain[-1]].below[0])
    changed = rng.choice([*chain, None, None])
    for number in reversed(chain):
        node = nodes[number]
        below = (len(nodes) - 1, *node.below[1:]) if number != chain[-1] else node.below
        node = replace(node, below=below)
        if number == changed:
            if node.function >= 0 and rng.random() < 0.8:
                node = replace(node, function=rng.randrange(len(functions)))
            elif node.kind in NUMBERED and rng.random() < 0.5:
                node = replace(node, number=rng.randrange(1, 4))
            else:
                nodes.append(GraphNode("inspect", node.below[:1], 0, rng.randrange(4), nodes[node.below[0]].updates))
                node = replace(node, below=(len(nodes) - 1, *node.below[1:]))
        nodes.append(node)
    nodes.append(GraphNode("concat", (last, len(nodes) - 1), updates=nodes[last].updates))


# Building --------------------------------------------------------------------------------------------


def _add(rows: pa.Table, adds: int) -> pa.Table:
    return pa.table({"k": rows["k"], "v": pc.add(rows["v"], adds)})


class _Adds:
    def __init__(self, adds: int) -> None:
        self.adds = adds

    def rows(self, rows: pa.Table) -> pa.Table:
        return _add(rows, self.adds)

    def look(self, rows: pa.Table, lower: Antichain, upper: Antichain) -> None:
        """Look at the rows, and do nothing."""

    def key(self, key: Mapping[str, object], rows: pa.Table) -> pa.Table:
        return _sum(key, rows, self.adds)


def _sum(key: Mapping[str, object], rows: pa.Table, adds: int) -> pa.Table:
    del key
    total = pc.sum(pc.multiply(rows["v"], rows["_count"])).as_py() if rows.num_rows else None
    return pa.table({"v": pa.array([] if total is None else [total + adds], pa.int64())})


def functions_of(graph: Graph) -> dict[tuple[str, int], Callable[..., Any]]:
    """Return the functions of a graph as Python has them, by the operator that calls them: an object for each."""
    found: dict[tuple[str, int], Callable[..., Any]] = {}
    for number, each in enumerate(graph.functions):
        of = _Adds(each.adds)
        if each.made == "lambda":
            found["map", number] = lambda rows, of=of: of.rows(rows)
            found["reduce", number] = lambda key, rows, of=of: of.key(key, rows)
        elif each.made == "partial":
            found["map", number] = partial(_add, adds=each.adds)
            found["reduce", number] = partial(_sum, adds=each.adds)
        else:
            found["map", number], found["reduce", number] = of.rows, of.key
        found["inspect", number] = of.look
    return found


class Writing:
    """Writes a graph down as a dataflow; parts of it again where they are needed again, or not.

    Parameters
    ----------
    graph : Graph
    scope : Scope
    logs : sequence of Log
    rng : random.Random
        Says what is written again.
    named : bool
        Whether operators over history have names: each that differs another one.
    """

    def __init__(
        self, graph: Graph, scope: Scope, logs: Sequence[MemoryLog], rng: random.Random, *, named: bool,
        functions: Mapping[tuple[str, int], Callable[..., Any]],
    ) -> None:  # fmt: skip
        self.graph, self.scope, self.logs, self.rng, self.named = graph, scope, logs, rng, named
        self.functions = functions
        self.written: dict[int, list[Stream]] = {}

    def stream(self, number: int) -> Stream:
        """Return the stream of a node: one that was written before, or another one."""
        found = self.written.setdefault(number, [])
        if found and (len(found) > 2 or self.rng.random() < 0.5):
            return self.rng.choice(found)
        node = self.graph.nodes[number]
        made = self._operator(number, node, [self.stream(each) for each in node.below])
        found.append(made)
        return made

    def _operator(self, number: int, node: GraphNode, below: list[Stream]) -> Stream:
        kind, n = node.kind, node.number
        if kind == "replay":
            return self.scope.replay(self.logs[n].another())
        stream = below[0]
        name = {"name": f"n{number}"} if self.named else {}
        function = self.functions.get((kind, node.function))
        if kind == "filter":
            return stream.filter(f"v > {n}")
        if kind in ("holds", "others"):
            return stream.branch(f"v > {n}")[kind == "others"]
        if kind == "map":
            assert function is not None
            return stream.map(function)
        if kind == "inspect":
            assert function is not None
            return stream.inspect(function)
        if kind == "delay":
            return stream.delay(plus(n))
        if kind == "ceil":
            return stream.delay(ceil_to(n))
        if kind == "concat":
            return stream.concat(*below[1:])
        if kind == "consolidate":
            return stream.consolidate()
        if kind == "as_updates":
            return stream.as_updates()
        if kind == "totals":
            return stream.aggregate(by="k", v=count())
        if kind in ("join", "as_of"):
            other = below[1].select("k", w=pc.field("v"))
            joined = stream.join(other, on="k", as_of=kind == "as_of", **(name if kind == "as_of" else {}))  # type: ignore[arg-type]
            return joined.select("k", v=pc.field("v") + pc.field("w"))
        if kind == "distinct":
            return stream.distinct(**name)
        if kind == "first":
            return stream.drop_duplicates("k", **name)  # type: ignore[arg-type]
        if kind == "latest":
            return stream.latest("k", order_by="v", **name)
        if kind == "top":
            return stream.top(n, by="k", order_by="v", **name)
        if kind == "reduce":
            assert function is not None
            return stream.reduce(function, by="k", **name)
        values = {"counts": count(), "sums": sum_of("v"), "ends": min_of("v")}
        return stream.aggregate(by="k", over="history", v=values[kind], **name)  # type: ignore[call-overload,no-any-return]


# Running ---------------------------------------------------------------------------------------------


class MemoryPlace:
    """Logs in this process, by path: dataflows find and make them here."""

    def __init__(self) -> None:
        self.tables: dict[str, MemoryTable] = {}

    def create(self, path: str, schema: pa.Schema, **facts: Any) -> MemoryLog:
        """Make a log, unless it is there."""
        if path not in self.tables:
            wanted = {name: facts[name] for name in ("times", "minimum", "kind", "streams") if name in facts}
            made = MemoryLog.create(schema, **wanted).core.store
            assert isinstance(made, MemoryStore)
            made.table.storage.uri = path
            self.tables[path] = made.table
        return self.open(path)

    def open(self, path: str, **_: object) -> MemoryLog:
        """Return a handle of a log."""
        if path not in self.tables:
            msg = f"could not open log {path!r}: found nothing there"
            raise LogMissingError(msg, hint="make it")
        return MemoryLog(MemoryStore(self.tables[path]))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let dataflows find their logs here."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (dataflow_logs, dataflow_stream, explain):
                patch.setattr(module, "open_log", self.open)
            patch.setattr(dataflow_logs, "create_log", self.create)
            patch.setattr(dataflow_tasks, "open_storage", lambda path, _=None: self.tables[path].storage)
            yield


def runner_here(outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
    """Run tasks here, in another order, of views as tasks get them."""
    views = unpacked(packed([plan.view for plan in outputs]))
    plans = [replace(plan, view=view) for plan, view in zip(outputs, views, strict=True)]
    found = {i: run_one(tasks[i], plans[tasks[i].output], {}) for i in reversed(range(len(tasks)))}
    return [found[i] for i in range(len(tasks))]


class GraphWorld:
    """A graph over three logs in memory, with a dataflow that is stopped and started.

    Parameters
    ----------
    graph : Graph
    rng : random.Random
    drawn : Drawn
    """

    def __init__(self, graph: Graph, rng: random.Random, drawn: Drawn) -> None:
        self.graph, self.rng = graph, rng
        self.place = MemoryPlace()
        self.functions = functions_of(graph)
        self.least = rng.choice([0, 3]) if drawn.minimums else 0
        self.logs = [
            self.place.create(f"/in{i}", SCHEMA, kind=kind, minimum=(self.least,)) for i, kind in enumerate(KINDS)
        ]
        self.writers = [log.writer(owner="test") for log in self.logs]
        self.inputs = Inputs([Counter() for _ in KINDS], [self.least for _ in KINDS])
        self.as_of = rng.choice([None, self.least + 2]) if drawn.begins else None
        self.forgot = False
        self.named = False

    def grow(self) -> None:
        """Let each log get some rows, and its frontier move; a collection also loses some."""
        for number, kind in enumerate(KINDS):
            now = self.inputs.frontiers[number]
            if now == float("inf") or self.rng.random() < 0.2:
                continue
            to = int(now) + self.rng.randrange(1, 4)
            made: list[tuple[int, str, int, int]] = []
            for _ in range(self.rng.randrange(5)):
                time = self.rng.randrange(int(now), to)
                there = list(at(self.inputs.updates[number], time).elements())
                after = at(self.inputs.updates[number], float("inf"))
                rows = [row for row in there if after[row] > 0]
                if kind == "collection" and rows and self.rng.random() < 0.4:
                    row, diff = self.rng.choice(rows), -1
                    time = to - 1
                else:
                    row, diff = (self.rng.choice("abc"), self.rng.randrange(6)), 1
                made.append((time, *row, diff))
                self.inputs.updates[number][time, row[0], row[1]] += diff
            columns: dict[str, Any] = {
                "_time": pa.array([each[0] for each in made], pa.int64()),
                "_diff": pa.array([each[3] for each in made], pa.int64()),
                "k": pa.array([each[1] for each in made], pa.string()),
                "v": pa.array([each[2] for each in made], pa.int64()),
            }
            if kind == "stream":
                del columns["_diff"]
            done = self.rng.random() < 0.1
            self.writers[number].append(pa.table(columns), advance_to=[] if done else to)
            self.inputs.frontiers[number] = float("inf") if done else to

    def forget(self) -> None:
        """Let the collection forget what is before its frontier."""
        upper = self.inputs.frontiers[1]
        if upper == float("inf") or upper == self.least:
            return
        since = int(upper) - 1
        self.forgot = since > self.least
        self.logs[1].allow_compaction([since])
        moved: Updates = Counter()
        for (time, k, v), diff in self.inputs.updates[1].items():
            moved[max(time, since), k, v] += diff
        self.inputs.updates[1] = Counter({update: n for update, n in moved.items() if n})

    def scope(self) -> Scope:
        """Write the graph down once more."""
        scope = Scope("flow")
        writing = Writing(
            self.graph, scope, self.logs, self.rng, named=self.named, functions=self.functions
        )  # fmt: skip
        for place, (number, delay) in enumerate(self.graph.outputs):
            stream = writing.stream(number)
            (stream.delay(plus(delay)) if delay else stream).capture(f"/out{place}")
        if self.as_of is not None:
            scope.sinks = [replace(sink, as_of=self.as_of) for sink in scope.sinks]
        return scope

    def may_not_begin(self) -> bool:
        """Return whether the dataflow may need what was forgotten: events that are looked up, and then counted."""
        return self.forgot and any(node.kind == "as_of" for node in self.graph.nodes)

    def refused(self) -> bool:
        """Return whether the dataflow is refused: two operators would keep in one folder."""
        try:
            self.scope()
        except InvalidUsageError as error:
            if "keep in one folder" not in str(error):
                raise
            return True
        return False

    def engine(self) -> Engine:
        """Start the dataflow, with names where it asks for them."""
        if not self.named and self.refused():
            self.named = True
        scope = self.scope()
        return Engine(
            "flow",
            scope.sinks,
            scope.storage,
            files_of=catalog_of,
            limits=Limits(times=self.rng.choice([None, None, 1, 2])),
            workers=self.rng.choice([None, 1, 2]),
            now=ManualClock(),
        )

    def _unmoved_below(self, number: int) -> bool:
        """Return whether a log that a node is made from is where it began: nothing that is delayed has begun."""
        below = (self.graph.nodes[each] for each in below_of(self.graph, number))
        return any(each.kind == "replay" and self.inputs.frontiers[each.number] == self.least for each in below)

    def check(self) -> None:
        """Compare each output with the model: it has reached its inputs' frontier, and all up to there is right."""
        held, frontiers = held_by(self.graph, self.inputs), frontiers_of(self.graph, self.inputs)
        for place, (number, delay) in enumerate(self.graph.outputs):
            log = self.place.open(f"/out{place}")
            found: Updates = Counter()
            rows = log.messages().to_pylist()
            for row in rows:
                found[row["_time"], row["k"], row["v"]] += row.get("_diff", 1)
            upper = frontiers[number] + delay
            elements = log.frontier().elements
            waits = self.as_of is not None or self.forgot or self._unmoved_below(number)
            if waits and log.frontier() == log.domain.minimum_frontier:
                continue  # it waits until what it reads has begun, and is where it begins: see test_later_beginnings
            assert (elements[0][0] if elements else float("inf")) == upper, f"output {place} is at {elements}"
            wanted: Updates = Counter(
                {(t + delay, k, v): n for (t, k, v), n in held[number].items() if t + delay < upper}
            )
            assert log.verify().legal
            since = log.since().elements
            begins = since[0][0] if since else 0  # where it says so itself: test_later_beginnings judges that
            if not self.graph.nodes[number].updates:
                whole = Counter({update: n for update, n in wanted.items() if update[0] >= begins})
                assert +found == +whole, f"output {place}"
                continue
            start = max(begins, self.as_of or 0)
            for time in sorted({t for t, _, _ in [*found, *wanted] if t >= start} | {start}):
                assert at(found, time) == at(wanted, time), f"output {place} at {time}"
