"""Reachability: building graphs and bringing their frontiers up to date, against the real timely crate.

The crate was measured once, on one core of a machine of the class that this is meant for; its figures stand in
`RUST`. What is timed is what a dataflow does when it starts: each operator is added by one call with the edges to
it, the graph is built, a capability at the first time is entered at every source and the moves of all frontiers are
read; then all operators but those with an input give theirs up, and the moves are read again.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_timely.progress.reachability import Builder, Location, Source, Target, Tracker

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = "progress_build_1000x1000_seconds"
LINEAR = "progress_build_10x_nodes_time"
CHAIN = "progress_reach_chain_vs_rust"
ROUND = "progress_reach_round_vs_rust"
PORTS = "progress_reach_10x_ports_time"
GRAPHS = 1000
NODES = 1000
REPEATS = 5
# Seconds of timely 0.31.0 for a chain of 1000 nodes: medians of five runs, rustc -O3, one core.
RUST = {"build": 392.662e-6, "first": 453.187e-6, "round": 260.562e-6}

# Index, inputs, outputs, summary or None, where the edge to each input comes from.
Node = tuple[int, int, int, "list[list[list[int]]] | None", "list[tuple[int, int]]"]


class Plan(NamedTuple):
    """What a user would say about one graph, and which nodes have no input."""

    nodes: list[Node]
    inputs: list[int]


def planned(seed: int, nodes: int) -> Plan:
    """Draw a graph: rows that branch and join, some operators with a step; no two seeds give the same."""
    rng = random.Random(seed)
    plan: list[Node] = []
    inputs = []
    for index in range(1, nodes + 1):
        kind = rng.random()
        if index == 1 or kind < 0.005:
            inputs.append(index)
            plan.append((index, 0, 1, None, []))
            continue
        sources = [(index - 1 if rng.random() < 0.8 else rng.randrange(1, index), 0)]
        while kind > 0.85 and len(sources) < 3 and rng.random() < 0.7:
            sources.append((rng.randrange(1, index), 0))
        summary = [[[rng.randint(0, 3)]] for _ in sources] if rng.random() < 0.05 else None
        plan.append((index, len(sources), 1, summary, sources))
    return Plan(plan, inputs)


def chain(nodes: int) -> Plan:
    """Return a row of nodes."""
    rows: list[Node] = [(index, 1, 1, None, [(index - 1, 0)]) for index in range(2, nodes)]
    return Plan([(1, 0, 1, None, []), *rows, (nodes, 1, 0, None, [(nodes - 1, 0)])], [1])


def build(plan: Plan) -> Tracker:
    """Add every operator by one call, and build."""
    builder = Builder()
    add = builder.add_node
    for index, inputs, outputs, summary, sources in plan.nodes:
        add(index, inputs, outputs, summary, sources)
    return builder.build()[0]


def start(tracker: Tracker, give_up: list[int]) -> int:
    """Propagate for the first time, twice; return the number of moves read."""
    tracker.initialize(0)
    tracker.propagate_all()
    moves = tracker.pushed().diffs.shape[0]
    for node in give_up:
        tracker.update_source((node, 0), 0, -1)
    tracker.propagate_all()
    return moves + tracker.pushed().diffs.shape[0]


def givers(plan: Plan) -> list[int]:
    """Return the nodes that give up their initial capability: those with inputs and outputs."""
    return [index for index, inputs, outputs, _, _ in plan.nodes if inputs and outputs]


def check(plan: Plan, tracker: Tracker) -> None:
    """Compare with the least sum of steps from any input, found node by node."""
    reached: dict[int, int] = {}
    for index, inputs, outputs, summary, sources in plan.nodes:
        found = [0] if not inputs else []
        for port, (node, _) in enumerate(sources):
            target = tracker.implications(Location(index, port, is_target=True)).to_json()
            if target != [reached[node]]:
                message = f"target ({index}, {port}): expected [{reached[node]}], found {target}"
                raise AssertionError(message)
            found.append(reached[node] + (summary[port][0][0] if summary else 0))
        reached[index] = min(found)
        if outputs and tracker.implications(Source(index, 0)).to_json() != [reached[index]]:
            message = f"source ({index}, 0): expected [{reached[index]}]"
            raise AssertionError(message)


def many_graphs() -> float:
    """Return the seconds for 1000 different graphs of 1000 operators, all kept."""
    total = 0.0
    kept = []
    for block in range(0, GRAPHS, 50):
        plans = [planned(seed, NODES) for seed in range(block, block + 50)]
        gone = [givers(plan) for plan in plans]
        begin = time.perf_counter()
        trackers = [build(plan) for plan in plans]
        for tracker, each in zip(trackers, gone, strict=True):
            start(tracker, each)
        total += time.perf_counter() - begin
        kept += trackers
        for number in range(0, 50, 10):
            check(plans[number], trackers[number])
    return total


def one_graph(nodes: int) -> float:
    """Return the seconds for one graph of `nodes` operators, the shortest of four tries."""
    plan = planned(nodes, nodes)
    gone = givers(plan)
    took = []
    for _ in range(4):
        begin = time.perf_counter()
        tracker = build(plan)
        start(tracker, gone)
        took.append(time.perf_counter() - begin)
    check(plan, tracker)
    return min(took)


def one_operator(ports: int) -> float:
    """Return the seconds for one operator of `ports` inputs and outputs, each input once at a time of its own."""
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        builder = Builder()
        builder.add_node(1, ports, ports)
        tracker = builder.build()[0]
        for port in range(ports):
            tracker.update_target(Target(1, port), port, 1)
        tracker.propagate_all()
        moves = tracker.pushed().diffs.shape[0]
        for port in range(20):
            tracker.update_target(Target(1, port), port, -1)
            tracker.propagate_all()
            moves += tracker.pushed().diffs.shape[0]
        took.append(time.perf_counter() - begin)
    if tracker.implications(Source(1, ports - 1)).to_json() != [20] or moves != 2 * ports + 20 * (2 * ports + 1):
        message = f"operator with {ports} ports: found {tracker.implications(Source(1, ports - 1))}"
        raise AssertionError(message)
    return min(took)


def _chain_start() -> float:
    plan = chain(NODES)
    gone = givers(plan)
    took = []
    for _ in range(20):
        begin = time.perf_counter()
        tracker = build(plan)
        start(tracker, gone)
        took.append(time.perf_counter() - begin)
    check(plan, tracker)
    return statistics.median(took)


def _chain_rounds() -> float:
    plan = chain(NODES)
    tracker = build(plan)
    start(tracker, givers(plan))
    took = []
    for now in range(200):
        begin = time.perf_counter()
        tracker.update_source(Source(1, 0), now, -1)
        tracker.update_source(Source(1, 0), now + 1, 1)
        tracker.propagate_all()
        moves = tracker.pushed().diffs.shape[0]
        took.append(time.perf_counter() - begin)
        if moves != 2 * (2 * NODES - 2):
            message = f"round {now}: found {moves} moves"
            raise AssertionError(message)
    if tracker.implications(Target(NODES, 0)).to_json() != [200]:
        message = f"chain: expected [200], found {tracker.implications(Target(NODES, 0))}"
        raise AssertionError(message)
    return statistics.median(took)


def _case(name: str, what: str, aim: float, unit: str = "s") -> Case:
    return Case(name, what, aim, unit=unit, higher_is_better=False)


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure what is asked for."""
    del scratch
    start(build(chain(3)), givers(chain(3)))  # what is compiled is compiled now
    cases = []
    if wanted(MANY):
        case = _case(MANY, f"{GRAPHS} different graphs of {NODES} operators: built, propagated twice; peer: 1 s", 10)
        case.ours.append(many_graphs())
        case.peer.append(1.0)
        cases.append(case)
    if wanted(LINEAR):
        case = _case(LINEAR, "a graph of 100,000 operators built and propagated twice; peer: of 10,000", 11)
        for _ in range(REPEATS):
            case.ours.append(one_graph(100_000))
            case.peer.append(one_graph(10_000))
        cases.append(case)
    if wanted(PORTS):
        case = _case(PORTS, "an operator of 100,000 inputs and outputs built, its inputs moved; peer: of 10,000", 11)
        for _ in range(REPEATS):
            case.ours.append(one_operator(100_000))
            case.peer.append(one_operator(10_000))
        cases.append(case)
    if wanted(CHAIN):
        case = _case(CHAIN, f"a chain of {NODES} nodes built and propagated twice; peer: the Rust crate", 5, "ms")
        for _ in range(REPEATS):
            case.ours.append(1000 * _chain_start())
            case.peer.append(1000 * (RUST["build"] + RUST["first"]))
        cases.append(case)
    if wanted(ROUND):
        case = _case(ROUND, f"one round of a chain of {NODES} nodes; peer: the Rust crate", 3, "ms")
        for _ in range(REPEATS):
            case.ours.append(1000 * _chain_rounds())
            case.peer.append(1000 * RUST["round"])
        cases.append(case)
    return cases
