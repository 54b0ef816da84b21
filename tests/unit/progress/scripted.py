"""Operators that do as they are told, for tests of scopes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.operate import InternalSummary, Operator
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.subgraph import Subgraph, SubgraphBuilder
from spark_timely.progress.worker import Worker
from spark_timely.time.antichain import Time

Report = list[tuple[int, Time, int]]


class Scripted(Operator):
    """Says in its next turn what `say` was given, and keeps what it was told."""

    def __init__(self, name: str, inputs: int, outputs: int, **settings: Any) -> None:
        self.initial: Report | None = settings.pop("initial", None)
        self.local = settings.pop("local", True)  # type: ignore[misc]
        super().__init__(name, inputs=inputs, outputs=outputs, **settings)
        self.told: Report = []
        self.turns = 0
        self.active = False
        self.reads = True
        self.closed = 0
        self.next: tuple[Report, Report, Report] = ([], [], [])

    def say(self, consumed: Report = (), internal: Report = (), produced: Report = ()) -> None:  # type: ignore[assignment]
        self.next = (list(consumed), list(internal), list(produced))

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        summary, capabilities = super().get_internal_summary()
        if self.initial is not None:
            capabilities = filled(len(self.minimum), self.initial)
        return summary, capabilities

    def push_external_progress(self, changes: PortChanges) -> None:
        if self.reads:
            self.told += changes.drain()

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        self.turns += 1
        for buffer, report in zip((consumed, internal, produced), self.next, strict=True):
            for entry in report:
                buffer.update(*entry)
        self.next = ([], [], [])
        return self.active

    def close(self) -> None:
        self.closed += 1

    def frontier(self, port: int = 0) -> list[Time]:
        counts: dict[Time, int] = {}
        for at, time, diff in self.told:
            if at == port:
                counts[time] = counts.get(time, 0) + diff
        return sorted(time for time, count in counts.items() if count)


def filled(arity: int, entries: Iterable[tuple[int, Time, int]]) -> PortChanges:
    changes = PortChanges(arity)
    for port, time, diff in entries:
        changes.update(port, time, diff)
    return changes


def source(name: str = "source", **settings: Any) -> Scripted:
    return Scripted(name, 0, 1, **settings)


def mapper(name: str = "map", **settings: Any) -> Scripted:
    return Scripted(name, 1, 1, **settings)


def sink(name: str = "sink", **settings: Any) -> Scripted:
    return Scripted(name, 1, 0, **settings)


def chain(scope: SubgraphBuilder, *operators: Operator) -> list[int]:
    """Add operators, each fed by the one before."""
    numbers = [scope.add_child(operator) for operator in operators]
    for before, after in pairwise(numbers):
        scope.connect(Source(before, 0), Target(after, 0))
    return numbers


class Region:
    """A scope with one input and one output between a source and a sink, and a parent that is run by hand."""

    def __init__(self, *inside: Scripted, nested: bool = False, worker: Worker | None = None) -> None:
        self.worker = worker or Worker()
        self.parent = self.worker.new_dataflow()
        self.source, self.sink = source(peers=self.worker.peers), sink()
        before = self.parent.add_child(self.source)
        self.builder = self.parent.new_scope("region", nested=nested)
        target, out = self.builder.new_input(), self.builder.new_output()
        self.numbers = [self.builder.add_child(operator) for operator in inside]
        ends = [Source(0, 0), *(Source(number, 0) for number in self.numbers)]
        for end, number in zip(ends, [*self.numbers, 0], strict=True):
            self.builder.connect(end, Target(number, 0))
        self.entry = self.builder.entry(0)
        self.subgraph: Subgraph = self.parent.add_scope(self.builder)
        after = self.parent.add_child(self.sink)
        self.parent.connect(Source(before, 0), target)
        self.parent.connect(out, Target(after, 0))

    def start(self) -> int:
        return self.worker.add(self.parent)


def turn(subgraph: Subgraph, arity: int = 1) -> tuple[Report, Report, Report, bool]:
    """Run a scope by hand; return consumed, internal, produced, and whether it called itself active."""
    buffers = PortChanges(arity), PortChanges(arity), PortChanges(arity)
    active = subgraph.pull_internal_progress(*buffers)
    consumed, internal, produced = (buffer.drain() for buffer in buffers)
    return consumed, internal, produced, active


def alone(
    *inside: Scripted, nested: bool = False, through: bool = False, worker: Worker | None = None, frontier: Time = (0,)
) -> tuple[Subgraph, SubgraphBuilder]:
    """Return a scope with one input and one output around a chain of operators, begun, without a parent."""
    worker = worker or Worker()
    builder = worker.new_dataflow().new_scope("alone", nested=nested)
    builder.new_input()
    builder.new_output()
    numbers = chain(builder, *inside)
    if numbers:
        builder.connect(Source(0, 0), Target(numbers[0], 0))
        builder.connect(Source(numbers[-1], 0), Target(0, 0))
    if through:
        builder.connect(Source(0, 0), Target(0, 0))
    subgraph = builder.build()
    subgraph.get_internal_summary()
    subgraph.set_external_summary(filled(1, [(0, frontier, 1)]))
    return subgraph, builder
