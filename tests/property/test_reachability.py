"""Reachability on drawn graphs and changes, against the definition.

Graphs have nodes with and without a summary of their own, several edges per port, loops within loops, the outside as
node 0; times of one to three coordinates, near the end of their type too; counts go below zero for a while.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import CyclicSummaryError
from spark_timely.progress import reachability, reachability_loops
from spark_timely.progress.reachability import Builder, Location, Tracker
from tests.modules import ROOT
from tests.oracles.reachability_model import Place, Time, carried, held, stands_still

GREATEST = {"int64": (1 << 63) - 1, "uint64": (1 << 64) - 1}
LEAST = {"int64": -(1 << 63), "uint64": 0}
Type = Literal["int64", "uint64"]


@dataclass
class Drawn:
    """A graph, as the library and as the oracle take it."""

    arity: int
    dtype: Type
    builder: Builder
    arcs: dict[Place, list[tuple[Place, Time]]] = field(default_factory=lambda: defaultdict(list))
    ports: list[Location] = field(default_factory=list)

    def places(self, *, is_target: bool) -> list[Location]:
        return [port for port in self.ports if port.is_target == is_target]


def drawn_graph(rng: random.Random, *, backward: float = 0.4) -> Drawn:
    """Draw a graph; some edges lead back, and may close a cycle that does not advance."""
    arity, dtype = rng.choice([1, 1, 2, 3]), rng.choice(["int64", "uint64"])
    graph = Drawn(arity, dtype, Builder(arity, dtype=dtype))
    zero = (0,) * arity
    huge = rng.random() < 0.2
    n = rng.randint(2, 8)
    shapes = [(rng.randint(0, 3), rng.randint(0, 3)) for _ in range(n)]
    if rng.random() < 0.2:
        shapes[rng.randrange(1, n)] = (rng.choice([1, 40, 70]), rng.choice([1, 40]))
    for index, (inputs, outputs) in enumerate(shapes):
        graph.ports += [Location(index, port, is_target=True) for port in range(inputs)]
        graph.ports += [Location(index, port, is_target=False) for port in range(outputs)]
        if index == 0 or (rng.random() < 0.4 and inputs * outputs < 100):
            graph.builder.add_node(index, inputs, outputs)
            if index:
                for port in range(inputs):
                    graph.arcs[Location(index, port, is_target=True)] += [
                        (Location(index, output, is_target=False), zero) for output in range(outputs)
                    ]
            continue
        summary: list[dict[int, list[Time]] | list[list[Time]]] = []
        for port in range(inputs):
            entry = {}
            for output in rng.sample(range(outputs), rng.randint(0, min(outputs, 3))):
                paths = [
                    tuple(rng.choice([0, 0, 1, 2, GREATEST[dtype] - 1 if huge else 3]) for _ in range(arity))
                    for _ in range(rng.choice([1, 1, 2, 3]))
                ]
                entry[output] = paths
                graph.arcs[Location(index, port, is_target=True)] += [
                    (Location(index, output, is_target=False), path) for path in paths
                ]
            summary.append(entry if rng.random() < 0.5 else [entry.get(output, []) for output in range(outputs)])
        graph.builder.add_node(index, inputs, outputs, summary)
    sources, targets = graph.places(is_target=False), graph.places(is_target=True)
    for _ in range(rng.randint(0, 14) if sources and targets else 0):
        source, target = rng.choice(sources), rng.choice(targets)
        if 0 < target.node <= source.node and rng.random() > backward:
            continue
        graph.builder.add_edge((source.node, source.port), (target.node, target.port))
        graph.arcs[source].append((target, zero))
    if sources and targets and rng.random() < 0.15:
        # Many edges to one place.
        target = rng.choice(targets)
        for source in sources:
            if target.node == 0 or target.node > source.node:
                graph.builder.add_edge((source.node, source.port), (target.node, target.port))
                graph.arcs[source].append((target, zero))
    return graph


def drawn_time(rng: random.Random, graph: Drawn) -> Time:
    edge = GREATEST[graph.dtype] - 2 if rng.random() < 0.05 else LEAST[graph.dtype] if rng.random() < 0.05 else 5
    return tuple(rng.randint(0, 6) + (edge - 4 if edge > 5 else edge) for _ in range(graph.arity))


def drawn_changes(
    rng: random.Random, graph: Drawn, counts: dict[tuple[Place, Time], int]
) -> list[tuple[Location, Time, int]]:
    """Draw a batch of changes: new pointstamps, moves of those there are, a few that go below zero."""
    changes: list[tuple[Location, Time, int]] = []
    there = [key for key, count in counts.items() if count]
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        kind = rng.random()
        if there and kind < 0.5:
            where, time = rng.choice(there)
            assert isinstance(where, Location)
            changes.append((where, time, -counts[where, time] if kind < 0.4 else rng.choice([-1, 1])))
            if kind < 0.3:
                changes.append((where, drawn_time(rng, graph), 1))
        else:
            changes.append((rng.choice(graph.ports), drawn_time(rng, graph), rng.choice([1, 1, 2, -1])))
    rng.shuffle(changes)
    return changes


def run(seed: int) -> list[object]:
    """Draw a graph and batches of changes, compare everything with the oracle, and return what was seen."""
    rng = random.Random(seed)
    graph = drawn_graph(rng)
    greatest = GREATEST[graph.dtype]
    try:
        tracker, summary = graph.builder.build()
    except CyclicSummaryError as error:
        assert stands_still(graph.arcs)
        check_cycle(graph, error)
        return [str(error)]
    assert not stands_still(graph.arcs)
    seen: list[object] = []
    outputs = {port.port for port in graph.places(is_target=True) if port.node == 0}
    for port in [port for port in graph.places(is_target=False) if port.node == 0]:
        reached = carried(graph.arcs, {port: {(0,) * graph.arity}}, greatest)
        expected = {o: found for o in outputs if (found := reached.get(Location(0, o, is_target=True)))}
        assert {output: set(paths.elements) for output, paths in summary[port.port].items()} == expected
        seen.append(sorted((output, paths.elements) for output, paths in summary[port.port].items()))
    counts: dict[tuple[Place, Time], int] = defaultdict(int)
    frontiers: dict[Place, set[Time]] = {}
    inside: dict[Place, set[Time]] = {}
    for number in range(rng.randint(1, 8)):
        if number == 7:
            changes = [(where, time, -count) for (where, time), count in counts.items() if count]
        else:
            changes = drawn_changes(rng, graph, counts) if graph.ports else []
        for where, time, diff in changes:
            counts[where, time] += diff
            assert isinstance(where, Location)
            tracker.update(where, time, diff)
        tracker.propagate_all()
        if rng.random() < 0.3:
            continue  # what was pushed adds up
        frontiers = check_moves(tracker.drain_pushed(), frontiers, carried(graph.arcs, held(counts), greatest), graph)
        within = {key: count for key, count in counts.items() if not is_outside(key[0])}
        pushed = [(Location(0, port, is_target=True), time, diff) for port, time, diff in tracker.drain_output()]
        outward = {p: times for p, times in carried(graph.arcs, held(within), greatest).items() if is_output(p)}
        inside = check_moves(pushed, inside, outward, graph)
        check_state(tracker, graph, counts, frontiers)
        seen.append(
            [sorted((str(place), sorted(times)) for place, times in frontiers.items()), sorted(map(str, pushed))]
        )
    return seen


def is_outside(place: Place) -> bool:
    return isinstance(place, Location) and place.node == 0


def is_output(place: Place) -> bool:
    return isinstance(place, Location) and place.node == 0 and place.is_target


def check_moves(
    moves: list[tuple[Location, Time, int]],
    before: dict[Place, set[Time]],
    expected: dict[Place, set[Time]],
    graph: Drawn,
) -> dict[Place, set[Time]]:
    """Apply moves to frontiers, and compare with what they must be."""
    after = {place: set(times) for place, times in before.items()}
    for place, time, diff in moves:
        times = after.setdefault(place, set())
        assert (time in times) == (diff < 0)
        assert abs(diff) == 1
        (times.remove if diff < 0 else times.add)(time)
    assert len({move[:2] for move in moves}) == len(moves)
    after = {place: times for place, times in after.items() if times}
    assert after == {place: times for place, times in expected.items() if place in graph.ports}
    return after


def check_state(
    tracker: Tracker, graph: Drawn, counts: dict[tuple[Place, Time], int], frontiers: dict[Place, set[Time]]
) -> None:
    """Compare what the tracker says when asked."""
    positive = held(counts)
    assert tracker.tracking_anything() == bool(positive)
    for port in graph.ports:
        assert set(tracker.implications(port).elements) == frontiers.get(port, set())
        expected = carried({}, {port: positive.get(port, set())}, 0).get(port, set())
        assert set(tracker.pointstamps(port).elements) == expected
        assert dict(tracker.counts(port)) == {t: count for (p, t), count in counts.items() if p == port and count}


def check_cycle(graph: Drawn, error: CyclicSummaryError) -> None:
    """Check that the path named is a cycle of the graph along which no time advances."""
    path = error.path
    assert isinstance(path, tuple)
    assert path[0] == path[-1]
    assert len(path) > 2
    for tail, head in pairwise(path):
        assert (head, (0,) * graph.arity) in graph.arcs[tail]


@contextmanager
def loops(*, compiled: bool) -> Iterator[None]:
    """Have graphs of any size worked on by compiled loops, or by interpreted ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reachability_loops, "SMALL", -1 if compiled else 1 << 40)
        yield


@given(st.integers(0, 1 << 32), st.booleans())
def test_frontiers_summaries_and_cycles_equal_the_definition(seed: int, compiled: bool) -> None:
    with loops(compiled=compiled):
        run(seed)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("block", range(4))
def test_frontiers_are_those_of_the_definition_on_many_graphs(block: int, compiled: bool) -> None:
    for seed in range(250 * block, 250 * (block + 1)):
        try:
            with loops(compiled=compiled):
                run(seed)
        except Exception as error:  # the seed must be told
            error.add_note(f"seed={seed}")
            raise


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
def test_work_that_runs_out_of_room_continues_where_it_stopped(compiled: bool) -> None:
    with loops(compiled=compiled), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reachability, "_ROOM", 1)
        for seed in range(150):
            run(seed)


def seen_on(seeds: range, *, compiled: bool) -> str:
    """Return a digest of all that was seen on these seeds."""
    with loops(compiled=compiled):
        return hashlib.sha256(repr([run(seed) for seed in seeds]).encode()).hexdigest()


def test_the_same_is_seen_without_compiled_loops() -> None:
    code = "from tests.property.test_reachability import seen_on\nprint(seen_on(range(100), compiled=True))"
    without = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "SPARK_TIMELY_NO_NUMBA": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert without.returncode == 0, without.stderr
    with_numba = seen_on(range(100), compiled=True)
    assert without.stdout.strip() == with_numba == seen_on(range(100), compiled=False)
