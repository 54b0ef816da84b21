"""Reachability: building graphs, what is refused and how it is named, what follows from what, and sizes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from spark_timely.errors import CyclicSummaryError, InvalidShapeError, InvalidUsageError
from spark_timely.progress.reachability import Builder, Location, Source, Target, Tracker
from spark_timely.time.antichain import Antichain


def chain(n: int, *, step: int | None = None) -> Builder:
    """Return a graph of n nodes in a row, numbered from 1."""
    builder = Builder()
    builder.add_node(1, 0, 1)
    for index in range(2, n):
        builder.add_node(index, 1, 1, None if step is None else [[[step]]], [(index - 1, 0)])
    builder.add_node(n, 1, 0, sources=[(n - 1, 0)])
    return builder


def loop(step: int) -> Builder:
    """Return a graph with an input, a loop that adds `step` to the time on its way back, and an output."""
    builder = Builder()
    builder.add_node(0, 1, 1)
    builder.add_node(1, 2, 1, sources=[(0, 0)])
    builder.add_node(2, 1, 1, [[[step]]], [(1, 0)])
    builder.add_edge(Source(2, 0), Target(1, 1))
    builder.add_edge(Source(1, 0), Target(0, 0))
    return builder


def tracker_of(builder: Builder) -> Tracker:
    return builder.build()[0]


def set_to(tracker: Tracker, *changes: tuple[Source | Target, int | tuple[int, ...], int]) -> Tracker:
    for where, time, diff in changes:
        tracker.update(where.location, time, diff)
    tracker.propagate_all()
    return tracker


# --- Places --------------------------------------------------------------------------------------


def test_places_of_either_side_differ() -> None:
    assert Source(3, 1).location == Location(3, 1, is_target=False)
    assert Target(3, 1).location == Location(3, 1, is_target=True)
    assert str(Target(3, 1).location) == "target (3, 1)"


# --- Building ------------------------------------------------------------------------------------


def test_nodes_and_edges_may_come_in_any_order() -> None:
    builder = Builder()
    builder.add_edge(Source(1, 0), Target(2, 0))
    builder.add_node(2, 1, 0)
    builder.add_node(1, 0, 1)
    tracker = set_to(tracker_of(builder), (Source(1, 0), 5, 1))
    assert tracker.implications(Target(2, 0)) == Antichain.of(5)


def test_edges_given_with_the_node_are_edges() -> None:
    builder = Builder()
    builder.add_node(1, 0, 2)
    builder.add_node(2, 2, 0, sources=[(1, 1), Source(1, 0)])
    tracker = set_to(tracker_of(builder), (Source(1, 1), 5, 1), (Source(1, 0), 3, 1))
    assert tracker.implications(Target(2, 0)) == Antichain.of(5)
    assert tracker.implications(Target(2, 1)) == Antichain.of(3)


def test_graph_without_nodes_tracks_nothing() -> None:
    tracker, summary = Builder().build()
    tracker.initialize(0)
    tracker.propagate_all()
    assert (tracker.n_locations, tracker.tracking_anything(), summary) == (0, False, [])


def test_rule_000_05_an_edge_is_a_dependence_and_holds_nothing() -> None:
    tracker = tracker_of(chain(3))
    assert not tracker.tracking_anything()
    set_to(tracker, (Source(1, 0), 5, 1))
    assert tracker.implications(Target(2, 0)) == Antichain.of(5)
    assert tracker.pointstamps(Target(2, 0)).is_empty


def test_rule_000_11_nothing_flows_through_the_outside() -> None:
    builder = loop(1)
    tracker = set_to(tracker_of(builder), (Target(0, 0), 5, 1))
    assert tracker.implications(Source(0, 0)).is_empty
    with pytest.raises(InvalidUsageError, match="found a path through it, from input 0 to output 0"):
        Builder().add_node(0, 1, 1, [[[0]]])


def test_rule_000_10_a_tracker_does_not_see_later_additions() -> None:
    builder = chain(3)
    before = tracker_of(builder)
    builder.add_node(4, 1, 0, sources=[(1, 0)])
    assert (before.n_locations, tracker_of(builder).n_locations) == (4, 5)
    with pytest.raises(InvalidUsageError, match=r"target \(4, 0\)"):
        before.update_target(Target(4, 0), 1, 1)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [([1, 1], "twice=.1., missing=.2."), ([1, 3], "missing=.2."), ([0, 0], "twice=.0."), ([7], "missing=.1.")],
)
def test_nodes_with_gaps_or_twice_are_refused(nodes: list[int], found: str) -> None:
    builder = Builder()
    for index in nodes:
        builder.add_node(index, 0, 0)
    with pytest.raises(InvalidUsageError, match=f"not numbered 0…n-1 once each, .*{found}"):
        builder.build()


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_negative_numbers_are_refused(numbers: tuple[int, int, int]) -> None:
    builder = Builder()
    builder.add_node(*numbers)
    with pytest.raises(InvalidUsageError, match="found a node with index="):
        builder.build()


@pytest.mark.parametrize("edge", [(1, 1, 2, 0), (1, 0, 2, 1), (3, 0, 2, 0), (1, 0, 9, 0), (-1, 0, 2, 0), (1, -1, 2, 0)])
def test_edge_to_a_port_that_is_not_there_is_refused_by_name(edge: tuple[int, int, int, int]) -> None:
    builder = chain(3)
    builder.add_edge(edge[:2], edge[2:])
    with pytest.raises(InvalidUsageError, match=rf"source \({edge[0]}, {edge[1]}\) → target \({edge[2]}, {edge[3]}\)"):
        builder.build()


@pytest.mark.parametrize(
    ("summary", "found"),
    [([], "of 0 inputs, inputs=1"), ([[[0]]], "input=0, outputs=2"), ([{2: [0]}], "input=0"), ([{-1: [0]}], "input=0")],
)
def test_summary_of_another_shape_is_refused(summary: list[list[list[int]]], found: str) -> None:
    with pytest.raises(InvalidShapeError, match=f"could not add node 4: .*{found}"):
        Builder().add_node(4, 1, 2, summary)


def test_more_edges_than_inputs_are_refused() -> None:
    builder = chain(3)
    builder.add_node(4, 1, 0, sources=[(1, 0), (2, 0)])
    with pytest.raises(InvalidUsageError, match=r"source \(2, 0\) → target \(4, 1\), but no such port"):
        builder.build()


def test_numbers_that_are_no_whole_numbers_are_refused() -> None:
    builder = chain(3)
    builder.add_node(4, 1.0, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="whole numbers"):
        builder.build()


@pytest.mark.parametrize(
    ("step", "kind"), [((1, 2), InvalidShapeError), (-1, InvalidUsageError), (1 << 63, InvalidUsageError)]
)
def test_step_that_does_not_fit_is_refused(step: int | tuple[int, ...], kind: type[InvalidUsageError]) -> None:
    with pytest.raises(kind, match="could not add node 1: found the path summary"):
        Builder().add_node(1, 1, 1, [[[step]]])


def test_unknown_type_of_time_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="dtype='float'"):
        Builder(dtype="float")  # type: ignore[arg-type]


# --- Cycles --------------------------------------------------------------------------------------


def test_cycle_that_does_not_advance_is_refused_and_named() -> None:
    with pytest.raises(CyclicSummaryError) as caught:
        loop(0).build()
    path = "target (1, 1) → source (1, 0) → target (2, 0) → source (2, 0) → target (1, 1)"
    ports = [Target(1, 1), Source(1, 0), Target(2, 0), Source(2, 0), Target(1, 1)]
    assert sorted(set(map(str, caught.value.path or ()))) == sorted({str(port.location) for port in ports})  # type: ignore[call-overload]
    for step in path.split(" → ")[:-1]:
        assert step in str(caught.value)
    assert caught.value.hint


def test_cycle_is_named_where_it_is_and_not_what_lies_behind_it() -> None:
    builder = loop(0)
    for index in range(3, 30):
        builder.add_node(index, 1, 1, sources=[(index - 1 if index > 3 else 1, 0)])
    with pytest.raises(CyclicSummaryError) as caught:
        builder.build()
    assert isinstance(caught.value.path, tuple)
    assert {place.node for place in caught.value.path} == {1, 2}


def test_long_cycle_is_named_in_short() -> None:
    builder = Builder()
    for index in range(1, 101):
        builder.add_node(index, 1, 1, sources=[(index - 1 or 100, 0)])
    with pytest.raises(CyclicSummaryError, match=r"… 189 more … ") as caught:
        builder.build()
    assert isinstance(caught.value.path, tuple)
    assert len(caught.value.path) == 201


def test_cycle_that_advances_any_coordinate_is_built() -> None:
    builder = Builder(2)
    builder.add_node(1, 2, 1)
    builder.add_node(2, 1, 1, [[[(0, 1)]]], [(1, 0)])
    builder.add_edge(Source(2, 0), Target(1, 1))
    tracker = set_to(tracker_of(builder), (Target(1, 0), (3, 0), 1))
    assert tracker.implications(Target(1, 1)) == Antichain.of((3, 1))


def test_cycle_with_one_way_that_does_not_advance_is_refused() -> None:
    builder = Builder(2)
    builder.add_node(1, 1, 1, [[[(1, 0), (0, 1)]]], [(2, 0)])
    builder.add_node(2, 1, 1, [[[(0, 0), (4, 4)]]], [(1, 0)])
    assert tracker_of(builder).n_locations == 4
    builder = Builder(2)
    builder.add_node(1, 1, 2, [[[(1, 0)], [(0, 0)]]], [(2, 0)])
    builder.add_node(2, 2, 1, None, [(1, 0), (1, 1)])
    with pytest.raises(CyclicSummaryError):
        builder.build()


# --- What follows from what ----------------------------------------------------------------------


def test_nothing_takes_effect_before_propagation() -> None:
    tracker = tracker_of(chain(3))
    tracker.update_source(Source(1, 0), 5, 1)
    assert tracker.implications(Target(2, 0)).is_empty
    assert tracker.drain_pushed() == []


def test_rule_000_38_propagation_reaches_every_port() -> None:
    tracker = set_to(tracker_of(chain(50, step=1)), (Source(1, 0), 5, 1))
    assert tracker.implications(Target(50, 0)) == Antichain.of(5 + 48)
    assert len(tracker.drain_pushed()) == tracker.n_locations == 98


def test_only_net_moves_are_pushed() -> None:
    tracker = tracker_of(chain(3))
    set_to(tracker, (Source(1, 0), 5, 1))
    set_to(tracker, (Source(1, 0), 5, -1), (Source(1, 0), 6, 1))
    set_to(tracker, (Source(1, 0), 6, -1), (Source(1, 0), 5, 1))
    assert [(str(place), time, diff) for place, time, diff in tracker.drain_pushed()] == [
        (where, (5,), 1) for where in ("source (1, 0)", "target (2, 0)", "source (2, 0)", "target (3, 0)")
    ]
    set_to(tracker, (Source(1, 0), 9, 1))
    assert tracker.drain_pushed() == []


def test_pushed_comes_as_arrays_by_port() -> None:
    tracker = tracker_of(chain(3))
    set_to(tracker, (Source(1, 0), 5, 1))
    tracker.pushed()
    set_to(tracker, (Source(1, 0), 5, -1), (Source(1, 0), 7, 1))
    changes = tracker.pushed()
    assert changes.times.dtype == np.int64
    rows = [(str(place), time, diff) for place, time, diff in changes.rows()]
    assert rows[2:4] == [("target (2, 0)", (5,), -1), ("target (2, 0)", (7,), 1)]
    assert [row[0] for row in rows[::2]] == ["source (1, 0)", "target (2, 0)", "source (2, 0)", "target (3, 0)"]
    assert tracker.pushed().rows() == []


def test_pushed_is_sorted_by_time_where_a_frontier_goes_back() -> None:
    tracker = tracker_of(chain(2))
    set_to(tracker, (Source(1, 0), 5, 1))
    tracker.pushed()
    set_to(tracker, (Source(1, 0), 3, 1))
    assert tracker.pushed().times.tolist() == [[3], [5]] * 2


def test_moves_that_nobody_reads_are_summed_up() -> None:
    tracker = tracker_of(loop(1))
    for time in range(200):
        set_to(tracker, (Source(1, 0), time, 1), (Source(1, 0), time - 1, -1 if time else 0))
    assert len(tracker._moves) <= 33
    assert len(tracker._outward) <= 33
    assert [row[1:] for row in tracker.drain_pushed()[:1]] == [((199,), 1)]
    assert tracker.drain_output() == [(0, (199,), 1)]


def test_a_small_graph_needs_no_compiled_loops() -> None:
    code = (
        "import sys\n"
        "from spark_timely.progress.reachability import Builder\n"
        "builder = Builder()\n"
        "builder.add_node(1, 0, 1)\n"
        "tracker, _ = builder.build()\n"
        "tracker.initialize(0)\n"
        "tracker.propagate_all()\n"
        "assert tracker.tracking_anything()\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("nodes", [3, 300], ids=["interpreted", "compiled"])
def test_times_without_coordinates_are_held_or_not(nodes: int) -> None:
    builder = Builder(0)
    builder.add_node(0, 1, 0)
    builder.add_node(1, 0, 1)
    for index in range(2, nodes + 1):
        builder.add_node(index, 1, 1, sources=[(index - 1, 0)])
    builder.add_edge(Source(nodes, 0), Target(0, 0))
    tracker = set_to(tracker_of(builder), (Source(1, 0), (), 2))
    assert tracker.implications(Target(nodes, 0)) == Antichain.of(())
    assert tracker.pushed().diffs.tolist() == [1] * 2 * nodes
    assert set_to(tracker, (Source(1, 0), (), -1)).pushed().rows() == []
    assert tracker.counts(Source(1, 0)) == [((), 1)]
    assert set_to(tracker, (Source(1, 0), (), -1)).pushed().diffs.tolist() == [-1] * 2 * nodes
    assert tracker.implications(Target(nodes, 0)).is_empty


@pytest.mark.parametrize("nodes", [3, 300], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_many_times_at_one_port_leave_it_one_by_one(order: str, nodes: int) -> None:
    times = {"rising": range(40), "falling": range(39, -1, -1), "mixed": [7 * time % 40 for time in range(40)]}[order]
    tracker = tracker_of(chain(nodes))
    for time in times:
        set_to(tracker, (Source(1, 0), time, 1))
    assert tracker.counts(Source(1, 0)) == [((time,), 1) for time in range(40)]
    for time in range(39):
        set_to(tracker, (Source(1, 0), time, -1))
        assert tracker.pointstamps(Source(1, 0)) == tracker.implications(Target(nodes, 0)) == Antichain.of(time + 1)


@pytest.mark.parametrize(("dtype", "greatest"), [("int64", (1 << 63) - 1), ("uint64", (1 << 64) - 1)])
def test_nothing_follows_past_the_greatest_time(dtype: str, greatest: int) -> None:
    builder = Builder(dtype=dtype)  # type: ignore[arg-type]
    builder.add_node(1, 2, 1)
    builder.add_node(2, 1, 1, [[[2]]], [(1, 0)])
    builder.add_edge(Source(2, 0), Target(1, 1))
    tracker = set_to(tracker_of(builder), (Target(1, 0), greatest - 3, 1))
    assert tracker.implications(Target(1, 1)) == Antichain.of(greatest - 1)
    set_to(tracker, (Target(1, 0), greatest - 3, -1), (Target(1, 0), greatest - 1, 1))
    assert tracker.implications(Target(1, 1)).is_empty
    assert tracker.implications(Source(1, 0)) == Antichain.of(greatest - 1)


@pytest.mark.parametrize("step", [(1 << 63) + 5, (1 << 64) - 1, 1 << 63])
def test_step_beyond_the_signed_numbers_is_taken_whole(step: int) -> None:
    builder = Builder(dtype="uint64")
    builder.add_node(0, 1, 1)
    builder.add_node(1, 1, 1, [[[step]]], [(0, 0)])
    builder.add_edge(Source(1, 0), Target(0, 0))
    tracker, summary = builder.build()
    set_to(tracker, (Target(1, 0), 0, 1))
    assert tracker.implications(Source(1, 0)) == Antichain.of(step)
    assert summary[0][0] == Antichain.of(step)
    set_to(tracker, (Target(1, 0), 0, -1), (Target(1, 0), (1 << 64) - step, 1))
    assert tracker.implications(Source(1, 0)).is_empty


def test_counts_below_zero_bound_nothing_and_are_remembered() -> None:
    tracker = tracker_of(chain(3))
    set_to(tracker, (Target(2, 0), 5, -1))
    assert not tracker.tracking_anything()
    assert tracker.counts(Target(2, 0)) == [((5,), -1)]
    set_to(tracker, (Target(2, 0), 5, 1))
    assert tracker.drain_pushed() == []
    set_to(tracker, (Target(2, 0), 5, 1))
    assert tracker.implications(Target(3, 0)) == Antichain.of(5)


def test_rule_000_42_anything_positive_is_tracked() -> None:
    tracker = set_to(tracker_of(chain(3)), (Target(3, 0), 5, 2))
    assert tracker.tracking_anything()
    assert not set_to(tracker, (Target(3, 0), 5, -2)).tracking_anything()


def test_initial_capabilities_are_at_all_sources_but_the_outside() -> None:
    tracker = tracker_of(loop(1))
    tracker.initialize(3, count=4)
    tracker.propagate_all()
    assert tracker.counts(Source(1, 0)) == tracker.counts(Source(2, 0)) == [((3,), 4)]
    assert tracker.counts(Source(0, 0)) == tracker.counts(Target(1, 0)) == []


@pytest.mark.parametrize(
    "place", [Source(1, 1), Source(3, 0), Source(9, 0), Target(1, 0), Source(-1, 0), Target(2, -1)]
)
def test_unknown_location_is_refused_by_name(place: Source | Target) -> None:
    tracker = tracker_of(chain(3))
    with pytest.raises(InvalidUsageError) as caught:
        tracker.update(place.location, 5, 1)
    assert str(place.location) in str(caught.value)
    tracker.propagate_all()
    assert not tracker.tracking_anything()


@pytest.mark.parametrize(
    ("dtype", "time"), [("int64", 1 << 63), ("uint64", -1), ("uint64", 1 << 64), ("int64", (1, 2)), ("int64", 1.5)]
)
def test_time_of_another_type_is_refused_and_leaves_nothing(dtype: str, time: int) -> None:
    builder = Builder(dtype=dtype)  # type: ignore[arg-type]
    builder.add_node(1, 0, 1)
    tracker = tracker_of(builder)
    with pytest.raises(InvalidShapeError, match="could not"):
        tracker.update_source(Source(1, 0), time, 1)
    tracker.update_source(Source(1, 0), 5, 1)
    tracker.propagate_all()
    assert tracker.implications(Source(1, 0)) == Antichain.of(5)


# --- The scope -----------------------------------------------------------------------------------


def test_rule_000_17_summary_is_minimal_over_all_paths() -> None:
    builder = Builder()
    builder.add_node(0, 2, 2)
    builder.add_node(1, 1, 2, [[[3], [0]]], [(0, 0)])
    builder.add_node(2, 1, 1, [[[1]]], [(1, 1)])
    builder.add_edge(Source(1, 0), Target(0, 0))
    builder.add_edge(Source(2, 0), Target(0, 0))
    assert builder.build()[1] == [{0: Antichain.of(1)}, {}]


def test_summary_of_a_loop_finds_outputs_that_lie_further_round() -> None:
    # The loop is 1 → 2 → 4 → 3 → 1. Outputs 0 and 1 leave after node 1, output 2 after node 2; input 1 enters at 4.
    builder = Builder()
    builder.add_node(0, 3, 2)
    builder.add_node(1, 2, 1, sources=[(0, 0)])
    builder.add_node(2, 1, 1, sources=[(1, 0)])
    builder.add_node(4, 2, 1, sources=[(2, 0), (0, 1)])
    builder.add_node(3, 1, 1, [[[1]]], sources=[(4, 0)])
    builder.add_edge(Source(3, 0), Target(1, 1))
    for output, node in enumerate([1, 1, 2]):
        builder.add_edge(Source(node, 0), Target(0, output))
    zero, one = Antichain.of(0), Antichain.of(1)
    assert builder.build()[1] == [{0: zero, 1: zero, 2: zero}, {0: one, 1: one, 2: one}]


def test_summary_of_a_graph_fits_the_node_that_stands_for_it() -> None:
    _, summary = loop(1).build()
    builder = Builder()
    builder.add_node(1, 1, 1, summary)
    tracker = set_to(tracker_of(builder), (Target(1, 0), 5, 1))
    assert tracker.implications(Source(1, 0)) == Antichain.of(5)


def test_path_that_overflows_is_no_path_of_the_graph() -> None:
    builder = Builder()
    builder.add_node(0, 1, 1)
    builder.add_node(1, 1, 1, [[[1 << 62]]], [(0, 0)])
    builder.add_node(2, 1, 1, [[[1 << 62]]], [(1, 0)])
    builder.add_edge(Source(2, 0), Target(0, 0))
    assert builder.build()[1] == [{}]


def test_rule_000_24_what_the_outside_holds_is_not_the_graphs() -> None:
    tracker = tracker_of(loop(1))
    set_to(tracker, (Source(0, 0), 5, 1))
    assert tracker.implications(Target(0, 0)) == Antichain.of(5)
    assert tracker.drain_output() == []
    set_to(tracker, (Target(2, 0), 6, 1), (Target(0, 0), 2, 1))
    assert tracker.drain_output() == [(0, (7,), 1)]
    set_to(tracker, (Target(2, 0), 6, -1))
    assert tracker.drain_output() == [(0, (7,), -1)]
    assert tracker.implications(Target(0, 0)) == Antichain.of(2)


# --- Sizes ---------------------------------------------------------------------------------------

SIZES = [1, 10, 1000, 100_000]


def arcs(tracker: Tracker) -> int:
    return len(tracker._graph.arcs.heads)


@pytest.mark.parametrize("ports", SIZES)
def test_operator_with_many_inputs_takes_linear_room(ports: int) -> None:
    builder = Builder()
    builder.add_node(1, ports, 1)
    tracker = tracker_of(builder)
    assert arcs(tracker) <= 1.1 * ports + 1
    for port in range(ports):
        tracker.update_target(Target(1, port), port + 5, 1)
    tracker.propagate_all()
    assert tracker.implications(Source(1, 0)) == Antichain.of(5)
    for port in range(min(ports - 1, 500)):
        set_to(tracker, (Target(1, port), port + 5, -1))
        assert tracker.implications(Source(1, 0)) == Antichain.of(port + 6)


@pytest.mark.parametrize("ports", SIZES)
@pytest.mark.parametrize("arity", [1, 2])
def test_operator_with_many_inputs_and_outputs_takes_linear_room(ports: int, arity: int) -> None:
    builder = Builder(arity)
    builder.add_node(1, ports, ports)
    tracker = tracker_of(builder)
    assert arcs(tracker) <= 2.2 * ports + 1
    set_to(tracker, (Target(1, 0), (5,) * arity, 1))
    assert tracker.implications(Source(1, ports - 1)) == Antichain.of((5,) * arity)
    assert len(tracker.pushed().nodes) == ports + 1


@pytest.mark.parametrize("ports", SIZES)
def test_graph_with_many_inputs_and_outputs_side_by_side(ports: int) -> None:
    builder = Builder()
    builder.add_node(0, ports, ports)
    builder.add_node(1, ports, ports, [{port: [1]} for port in range(ports)])
    for port in range(ports):
        builder.add_edge(Source(0, port), Target(1, port))
        builder.add_edge(Source(1, port), Target(0, port))
    tracker, summary = builder.build()
    assert summary[ports - 1] == {ports - 1: Antichain.of(1)}
    set_to(tracker, (Target(1, ports - 1), 5, 1))
    assert tracker.drain_output() == [(ports - 1, (6,), 1)]


def test_graph_of_all_inputs_to_all_outputs_shares_one_summary() -> None:
    builder = Builder()
    n = 20_000
    builder.add_node(0, n, n)
    builder.add_node(1, n, n)
    for port in range(n):
        builder.add_edge(Source(0, port), Target(1, port))
        builder.add_edge(Source(1, port), Target(0, port))
    _, summary = builder.build()
    assert len({id(each) for each in summary}) == 1
    assert len(summary[0]) == n


def test_one_input_and_an_output_at_every_node_take_linear_time() -> None:
    builder = Builder()
    n = 20_000
    builder.add_node(0, n, 1)
    for index in range(1, n + 1):
        builder.add_node(index, 1, 1, sources=[(index - 1, 0)])
        builder.add_edge(Source(index, 0), Target(0, index - 1))
    _, summary = builder.build()
    assert len(summary[0]) == n


@pytest.mark.parametrize("nodes", [2, 10, 1000, 100_000])
def test_chain_of_many_nodes(nodes: int) -> None:
    tracker = tracker_of(chain(nodes))
    tracker.initialize(0)
    tracker.propagate_all()
    assert len(tracker.pushed().nodes) == 2 * nodes - 2
    for index in range(2, nodes):
        tracker.update_source(Source(index, 0), 0, -1)
    set_to(tracker, (Source(1, 0), 0, -1), (Source(1, 0), 1, 1))
    assert tracker.implications(Target(nodes, 0)) == Antichain.of(1)
    assert len(tracker.pushed().nodes) == 2 * (2 * nodes - 2)


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("nodes", [2, 1000, 50_000])
def test_ring_of_many_nodes(nodes: int, arity: int) -> None:
    builder = Builder(arity)
    builder.add_node(1, 1, 1, [[[(1,) * arity]]], [(nodes, 0)])
    for index in range(2, nodes + 1):
        builder.add_node(index, 1, 1, None, [(index - 1, 0)])
    tracker = tracker_of(builder)
    set_to(tracker, (Target(2, 0), (0,) * arity, 1))
    assert tracker.implications(Source(1, 0)) == Antichain.of((1,) * arity)
    set_to(tracker, (Target(2, 0), (0,) * arity, -1), (Target(2, 0), (4,) * arity, 1))
    assert tracker.implications(Source(1, 0)) == Antichain.of((5,) * arity)
    assert len(set_to(tracker, (Target(2, 0), (4,) * arity, -1)).pushed().nodes) == 0


def test_many_edges_to_one_target_move_it_one_by_one() -> None:
    builder = Builder()
    n = 5000
    builder.add_node(n + 1, 1, 0)
    for index in range(1, n + 1):
        builder.add_node(index, 0, 1)
        builder.add_edge(Source(index, 0), Target(n + 1, 0))
    tracker = tracker_of(builder)
    for index in range(n):
        tracker.update_source(Source(index + 1, 0), index, 1)
    tracker.propagate_all()
    for index in range(300):
        set_to(tracker, (Source(index + 1, 0), index, -1))
        assert tracker.implications(Target(n + 1, 0)) == Antichain.of(index + 1)
