"""What a continual task writes next: each rule of the sink's decisions by itself."""

from __future__ import annotations

import time as clock
from typing import Any

import numpy as np
import pytest

from spark_timely.continual.sink import GREATEST
from spark_timely.errors import InvalidShapeError, OperatorError
from spark_timely.time.antichain import Antichain
from tests.oracles.continual_model import (
    Case,
    History,
    World,
    audit,
    cap,
    enrich,
    nonzero,
    running_sum,
    upsert,
    whole,
)
from tests.oracles.continual_rows import RowSink, RowWrite

DONE = Antichain.empty()


def state_of(times: Any = (), updates: Any = (), *, inputs: Any = 0, data: Any = 0, output: Any = 0) -> RowSink[str]:
    state: RowSink[str] = RowSink(0)
    state.add_times(np.array(times, np.int64))
    state.add_updates(updates)
    state.append_times_progress = frontier(inputs)
    state.to_append_progress = frontier(data)
    state.output_progress = frontier(output)
    return state


def frontier(value: Any) -> Antichain:
    return DONE if value is None else Antichain.of(value)


def write(upper: Any, time: int | None = None, *rows: str) -> RowWrite[str]:
    return RowWrite(frontier(upper), time, tuple((row, 1) for row in rows))


def test_rule_002_65_walk_of_eleven_steps() -> None:
    s = state_of()
    assert s.process() is None
    s.add_updates([("a", 1, 1), ("b", 1, 1)])
    assert s.process() is None
    s.to_append_progress = Antichain.of(2)
    assert s.process() is None
    s.add_times([1])
    assert s.process() is None
    s.add_times([0])
    assert s.process() is None
    s.append_times_progress = Antichain.of(3)
    assert s.process() == write(1, 0)
    s.output_progress = Antichain.of(1)
    assert s.process() == write(2, 1, "a", "b")
    s.output_progress = Antichain.of(2)
    assert s.process() == write(3)
    s.output_progress = Antichain.of(3)
    assert s.process() is None
    s.add_times([5])
    s.append_times_progress = Antichain.of(6)
    assert s.process() == write(5)
    s.output_progress = Antichain.of(5)
    s.add_updates([("a", 5, -1), ("c", 5, 1)])
    s.to_append_progress = Antichain.of(6)
    assert s.process() == write(6, 5, "b", "c")


def test_rule_002_45_a_time_is_a_write_time_however_often_added() -> None:
    state = state_of([4, 4, 2, 4], inputs=9, data=9)
    state.add_times([2])
    assert state.append_times.tolist() == [2, 4]
    assert state.process() == write(3, 2)
    state.output_progress = Antichain.of(3)
    state.add_times([4])
    assert state.process() == write(5, 4)


def test_rule_002_52_times_before_the_output_are_dropped() -> None:
    state = state_of([1, 2, 5], inputs=9, data=9, output=5)
    assert state.process() == write(6, 5)
    assert state.append_times.tolist() == [5]
    state.output_progress = DONE
    assert state.process() is None
    assert state.append_times.tolist() == []


@pytest.mark.parametrize(("inputs", "expected"), [(3, None), (4, write(4, 3)), (None, write(4, 3))])
def test_rule_002_53_the_frontier_must_have_passed_the_time(inputs: int | None, expected: RowWrite[str] | None) -> None:
    assert state_of([3, 7], inputs=inputs, data=9, output=3).process() == expected


def test_rule_002_53_the_smallest_time_is_written_first() -> None:
    state = state_of([7], inputs=9, data=9)
    state.add_times([3])
    assert state.process() == write(4, 3)


@pytest.mark.parametrize("data", [0, 500, None])
def test_rule_002_54_upper_follows_the_inputs_in_one_step(data: int | None) -> None:
    assert state_of(inputs=10_000, data=data, output=1).process() == write(10_000)
    # A later write time that is not passed holds nothing back, and is not passed.
    assert state_of([10_000], inputs=10_000, data=data, output=1).process() == write(10_000)
    assert state_of(inputs=4, data=data, output=4).process() is None
    assert state_of(inputs=4, data=data, output=6).process() is None


def test_rule_002_48_complete_inputs_close_the_output() -> None:
    state = state_of([3], inputs=None, data=4, output=0)
    assert state.process() == write(4, 3)
    state.output_progress = Antichain.of(4)
    assert state.process() == write(None)
    state.output_progress = DONE
    assert state.process() is None


def test_rule_002_48_a_waiting_write_time_keeps_it_open() -> None:
    assert state_of([3], inputs=None, data=3, output=0).process() == write(3)
    assert state_of([3], inputs=None, data=3, output=3).process() is None


def test_rule_002_55_upper_moves_up_to_a_time_that_waits() -> None:
    assert state_of([5, 6], inputs=9, data=5, output=2).process() == write(5)
    assert state_of([5, 6], inputs=9, data=5, output=5).process() is None
    # With its data there is no step before it.
    assert state_of([5, 6], inputs=9, data=6, output=2).process() == write(6, 5)


def test_rule_002_56_rows_up_to_the_time_are_summed() -> None:
    updates = [("a", 1, 1), ("b", 2, 1), ("a", 3, -1), ("c", 3, 2), ("c", 4, -1), ("d", 5, 1)]
    state = state_of([4], updates, inputs=9, data=9)
    found = state.process()
    assert found == RowWrite(Antichain.of(5), 4, (("b", 1), ("c", 1)))
    assert state.process() == found, "asking writes nothing"
    assert state.pending() == 3


def test_rule_002_57_each_time_has_the_whole_result() -> None:
    state = state_of([2, 5], [("a", 1, 1), ("b", 5, 1)], inputs=9, data=9)
    assert state.process() == write(3, 2, "a")
    state.output_progress = Antichain.of(3)
    assert state.process() == write(6, 5, "a", "b")


def test_rule_002_58_what_is_written_is_cancelled_later() -> None:
    state = state_of([2, 3], [("a", 2, 1), ("a", 3, -1), ("b", 3, 1), ("b", 4, -1)], inputs=9, data=9)
    assert state.process() == write(3, 2, "a")
    assert state.pending() == 4, "what was written stays"
    state.output_progress = Antichain.of(3)
    assert state.process() == write(4, 3, "b")
    state.output_progress = Antichain.of(4)
    assert state.process() == write(9)
    assert state.pending() == 0


def test_rule_002_40_results_that_others_wrote_are_dropped() -> None:
    # One that the body takes back has gone, one that it holds still has not: it belongs to the next result.
    state = state_of([2, 5], [("a", 2, 1), ("a", 3, -1), ("b", 2, 1)], inputs=9, data=9, output=4)
    assert state.process() == write(6, 5, "b")
    assert state.pending() == 1
    state.add_updates([("b", 3, -1)])
    assert state.process() == write(6, 5)
    assert state.pending() == 0
    state.add_updates([("c", 9, 1)])
    state.output_progress = DONE
    assert state.process() is None
    assert state.pending() == 0


def test_rule_002_59_a_lost_race_undoes_nothing() -> None:
    state = state_of([2, 3], [("a", 2, 1), ("a", 3, -1), ("b", 3, 1)], inputs=9, data=4)
    assert state.process() == write(3, 2, "a")
    state.output_progress = Antichain.of(3)  # by another replica
    assert state.process() == write(4, 3, "b")


def test_rule_002_61_greatest_time_cannot_be_written() -> None:
    with pytest.raises(OperatorError, match=rf"found time={GREATEST}, and no time after greatest={GREATEST} .* drop"):
        state_of([GREATEST], inputs=None, data=None).process()
    last = state_of([GREATEST - 1], inputs=None, data=None)
    assert last.process() == write(GREATEST, GREATEST - 1)
    short: RowSink[str] = RowSink(-5, greatest=7)
    assert short.output_progress == Antichain.of(-5)
    short.append_times_progress = short.to_append_progress = DONE
    short.add_times([7])
    with pytest.raises(OperatorError, match="found time=7, and no time after greatest=7") as found:
        short.process()
    assert found.value.lower == [7]
    for times in ([8], np.array([1 << 63], np.uint64)):
        with pytest.raises(OperatorError, match="and no time after greatest=7"):
            short.add_times(times)


def test_upper_moves_up_to_a_greatest_time_that_waits() -> None:
    assert state_of([GREATEST], inputs=None, data=3).process() == write(GREATEST)


def test_times_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidShapeError):
        state_of().add_times([1.5])


def seconds(n: int) -> float:
    """Return how long n times take that come one by one in falling order, and are then written one by one."""
    state: RowSink[str] = RowSink(0)
    state.to_append_progress = DONE
    begin = clock.process_time()
    for time in range(n, 0, -1):
        state.add_times(np.array([time]))
    state.append_times_progress = DONE
    for _ in range(n):
        found = state.process()
        assert found is not None
        state.output_progress = found.upper
    assert state.output_progress == Antichain.of(n + 1)
    return clock.process_time() - begin


def test_many_times_one_by_one_cost_about_the_same_each() -> None:
    small = min(seconds(500) for _ in range(3))
    assert min(seconds(4000) for _ in range(2)) < 4 * 8 * small, "quadratic would be 64 times"


# The module head, and what Materialize checks of its own ----------------------------------------------


def written(case: Case) -> dict[int, list[Any]]:
    """Return what one replica writes at each time, step by step."""
    world = World(case)
    for time in range(case.horizon):
        for number in range(len(world.closed)):
            world.advance(number, 1)
        for _ in range(4):
            for act in world.replicas[0].actions():
                act()
        assert cap(world.output.upper, case.horizon) >= time, "each time is written when it is closed"
    world.finish()
    return {time: sorted(rows.items()) for time, rows in world.output.written().items()}


def stream(*times: list[Any]) -> History:
    """Return rows of times 1, 2, …, each added once."""
    return [(row, time, 1) for time, rows in enumerate(times, 1) for row in rows]


def test_module_head_upsert_of_an_append_only_log() -> None:
    log = stream([(1, 2), (1, 1)], [(1, 3), (2, 4)], [(1, 5), (2, 6), (3, 7)], [(3, 8)])
    case = Case((log,), upsert, reads_output=True)
    found = written(case)
    assert found == {
        1: [((1, 2), 1)],
        2: [((1, 2), -1), ((1, 3), 1), ((2, 4), 1)],
        3: [((1, 3), -1), ((1, 5), 1), ((2, 4), -1), ((2, 6), 1), ((3, 7), 1)],
        4: [((3, 7), -1), ((3, 8), 1)],
    }
    rows = nonzero(change for changes in found.values() for change in changes)
    assert rows == {(1, 5): 1, (2, 6): 1, (3, 8): 1}


def test_module_head_audit_keeps_what_was_there() -> None:
    # An anomaly that is corrected at 3 stays in the audit log.
    log = [((7,), 1, 1), ((8,), 2, 1), ((7,), 3, -1), ((9,), 5, 2)]
    assert written(Case((log,), audit)) == {1: [((7,), 1)], 2: [((8,), 1)], 5: [((9,), 2)]}


def test_audit_of_a_running_sum_is_not_changed_later() -> None:
    log = stream([(1,)], [(2,), (3,)], [(4,), (5,), (6,)])
    assert written(Case((log,), running_sum, log)) == {1: [((1,), 1)], 2: [((6,), 1)], 3: [((21,), 1)]}


def test_rule_002_03_join_keeps_each_value_of_the_reference() -> None:
    table = [((1, "v"), 1, 1)]
    for n in (2, 3):
        table += [((1, "v" * (n - 1)), n, -1), ((1, "v" * n), n, 1)]
    table += [((1, "vvv"), 4, -1)]
    case = Case((stream([(1, 0)], [(1, 0)], [(1, 0)]),), enrich, table)
    assert written(case) == {n: [((1, 0, "v" * n), 1)] for n in (1, 2, 3)}


def test_rule_002_08_one_log_is_input_and_reference() -> None:
    log = [((1, 1), 1, 1), ((1, 2), 2, 1), ((1, 1), 3, -1), ((1, 3), 4, 1)]
    assert written(Case((log,), enrich, log)) == {
        1: [((1, 1, 1), 1)],
        2: [((1, 2, 1), 1), ((1, 2, 2), 1)],
        4: [((1, 3, 2), 1), ((1, 3, 3), 1)],
    }


def test_rule_002_05_changes_of_two_inputs_at_one_time_are_one() -> None:
    case = Case((stream([(1,)], [], [(3,)]), stream([(10,)], [(20,)])), audit)
    assert written(case) == {1: [((1,), 1), ((10,), 1)], 2: [((20,), 1)], 3: [((3,), 1)]}


def test_rule_002_11_a_reference_alone_writes_nothing() -> None:
    case = Case((stream([(1, 0)]),), enrich, [((1, "a"), 2, 1), ((1, "b"), 3, 1)])
    assert written(case) == {}


def test_rule_002_57_a_body_without_its_input_writes_all() -> None:
    case = Case((stream([(1,)], [], [(1,)]),), whole, [(("a",), 1, 1), (("b",), 2, 1)])
    assert written(case) == {1: [(("a",), 1)], 3: [(("a",), 1), (("b",), 1)]}


def test_rule_002_54_ten_thousand_empty_times_cost_one_append() -> None:
    world = World(Case(([((1,), 10_000, 1)],), audit))
    replica = world.replicas[0]
    world.advance(0, 10_000)
    for act in replica.actions():
        act()
    assert (world.output.upper, sum(world.output.calls.values())) == (Antichain.of(10_000), 2)
