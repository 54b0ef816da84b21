"""Reachability against the real timely: every graph and every batch of changes of the vectors.

Where a target has several edges to it, the real crate follows only one of them back when it summarises paths to
the graph's outputs (quirk 9 of the vectors). Here these summaries are minimal over all paths, and are compared
with an oracle instead.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from spark_timely.progress import reachability_loops
from spark_timely.progress.reachability import Builder, Location, PortSummaries, Tracker
from tests.oracles.golden import as_row, vectors
from tests.oracles.reachability_model import Place, Time, carried, held, minima

pytestmark = pytest.mark.golden

GREATEST = (1 << 64) - 1
GRAPHS = list(vectors("reachability.jsonl"))


def arity(graph: dict[str, Any]) -> int:
    return {"u64": 1, "product": 2}[graph["time"]]


def built(graph: dict[str, Any]) -> tuple[Tracker, list[PortSummaries]]:
    """Build the graph of a vector."""
    builder = Builder(arity(graph), dtype="uint64")
    for index, node in enumerate(graph["nodes"]):
        summary = [{output: [as_row(each) for each in paths] for output, paths in entry} for entry in node["summary"]]
        builder.add_node(index, node["inputs"], node["outputs"], summary if index else None)
    for source_node, source_port, target_node, target_port in graph["edges"]:
        builder.add_edge((source_node, source_port), (target_node, target_port))
    return builder.build()


def oracle_arcs(graph: dict[str, Any]) -> dict[Place, list[tuple[Place, Time]]]:
    """Return the graph of a vector as the oracle takes it; places are ("t" or "s", node, port)."""
    arcs: dict[Place, list[tuple[Place, Time]]] = defaultdict(list)
    for index, node in enumerate(graph["nodes"]):
        for port, entry in enumerate(node["summary"]):
            for output, paths in entry:
                arcs["t", index, port] += [(("s", index, output), as_row(each)) for each in paths]
    for source_node, source_port, target_node, target_port in graph["edges"]:
        arcs["s", source_node, source_port].append((("t", target_node, target_port), (0,) * arity(graph)))
    return arcs


def place(location: Location) -> Place:
    return "t" if location.is_target else "s", location.node, location.port


def location(where: list[Any]) -> Location:
    side, node, port = where
    return Location(node, port, side == "t")


def enter(tracker: Tracker, batch: dict[str, Any]) -> None:
    for where, time, diff in batch["updates"]:
        tracker.update(location(where), as_row(time), diff)
    tracker.propagate_all()


def name(graph: dict[str, Any]) -> str:
    return f"{graph['id']}-{graph['time']}-{graph['shape']}"


def test_vectors_hold_every_kind_of_graph() -> None:
    assert {(graph["time"], graph["shape"]) for graph in GRAPHS} == {
        (time, shape) for time in ("u64", "product") for shape in ("pipeline", "dag", "cyclic")
    }
    assert {graph["legal"] for graph in GRAPHS} == {graph["multi_in_edges"] for graph in GRAPHS} == {True, False}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("graph", GRAPHS, ids=name)
def test_frontiers_move_as_in_timely(graph: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability_loops, "SMALL", -1 if compiled else 1 << 40)
    tracker, _ = built(graph)
    every = [
        Location(index, port, side)
        for index, node in enumerate(graph["nodes"])
        for side, ports in ((True, node["inputs"]), (False, node["outputs"]))
        for port in range(ports)
    ]
    for number, batch in enumerate(graph["batches"]):
        enter(tracker, batch)
        moved = {(place(where), time, diff) for where, time, diff in tracker.drain_pushed()}
        assert moved == {(tuple(where), as_row(time), diff) for where, time, diff in batch["pushed"]}, number
        assert tracker.tracking_anything() == batch["tracking_anything"], number
        for key, ask in (("implications", tracker.implications), ("pointstamp_frontiers", tracker.pointstamps)):
            if key in batch:
                expected = {tuple(where): sorted(map(as_row, times)) for where, times in batch[key]}
                actual = {place(where): list(ask(where).elements) for where in every if ask(where)}
                assert actual == expected, (number, key)
    assert not any(tracker.implications(where) for where in every)


@pytest.mark.parametrize("graph", GRAPHS, ids=name)
def test_summaries_are_those_of_timely_or_minimal_over_all_paths(graph: dict[str, Any]) -> None:
    _, summary = built(graph)
    actual = [{output: set(paths.elements) for output, paths in each.items()} for each in summary]
    if graph["scope_summary"] is not None:
        expected = [
            {output: set(map(as_row, paths)) for output, paths in each if paths} for each in graph["scope_summary"]
        ]
        assert actual == expected
    # Minimal over all paths, also where the crate follows one edge only.
    arcs, zero = oracle_arcs(graph), (0,) * arity(graph)
    for port in range(graph["nodes"][0]["outputs"]):
        reached = carried(arcs, {("s", 0, port): {zero}}, GREATEST)
        outputs = range(graph["nodes"][0]["inputs"])
        assert actual[port] == {output: reached["t", 0, output] for output in outputs if ("t", 0, output) in reached}


@pytest.mark.parametrize("graph", [each for each in GRAPHS if each["nodes"][0]["inputs"]], ids=name)
def test_outputs_without_the_outside_are_those_of_timely(graph: dict[str, Any]) -> None:
    # The crate gives raw counts, one per pointstamp and path; here they come as the moves of the frontier, as they
    # do there after the subgraph's own filter. So its counts are accumulated, and the frontiers compared.
    tracker, _ = built(graph)
    outputs = range(graph["nodes"][0]["inputs"])
    arcs = oracle_arcs(graph)
    raw: list[dict[Time, int]] = [defaultdict(int) for _ in outputs]
    frontiers: list[dict[Time, int]] = [defaultdict(int) for _ in outputs]
    counts: dict[tuple[Place, Time], int] = defaultdict(int)
    for number, batch in enumerate(graph["batches"]):
        enter(tracker, batch)
        for port, time, diff in tracker.drain_output():
            frontiers[port][time] += diff
        for where, at, diff in batch["updates"]:
            if where[1] != 0:
                counts[tuple(where), as_row(at)] += diff
        reached = carried(arcs, held(counts), GREATEST)
        for port in outputs:
            assert set(frontiers[port].values()) <= {0, 1}, number
            actual = {time for time, count in frontiers[port].items() if count}
            assert actual == reached.get(("t", 0, port), set()), (number, port)
            if "pushed_output" in batch:
                for at, diff in batch["pushed_output"][port]:
                    raw[port][as_row(at)] += diff
                assert actual == minima(time for time, count in raw[port].items() if count > 0), (number, port)
    assert ("pushed_output" in graph["batches"][0]) != graph["multi_in_edges"]
