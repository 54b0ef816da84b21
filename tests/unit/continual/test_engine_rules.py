"""The rules of continual tasks as the engine keeps them: logs, looks, bodies over Arrow tables, commits. No Spark.

Each test is a story of some lines with one rule in it; random stories against a program are those of
`tests/property/test_continual.py`. `tests/mutants/rules/tasks.toml` says how each rule is taken away.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_timely.continual.engine import TaskPlan
from spark_timely.errors import InvalidUsageError, OwnershipError, UpperMismatchError
from tests.oracles.continual import Body, Row, Seen
from tests.property import test_continual as histories
from tests.property.test_continual import BODIES, OUT, Case, Replica, World, idle, once
from tests.unit.continual.test_arrow_bodies import TableBodies

COLLECTION, GONE = ("collection", "inserts"), ("collection", "deletes")
STREAM, REFERENCE = ("stream", "inserts"), ("collection", "contents")
A, B, C = ("a", 1), ("b", 2), ("c", 3)
Seens = list[tuple[int, dict[str, list[Row]], list[Row]]]


class First(random.Random):
    """Draws the first of what there is: logs with one stream that begin at 0, and steps of one time."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Story:
    """A task over logs in memory, and what its body was shown: time, rows by name, the output before it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *sources: tuple[str, str], **case: Any) -> None:
        patch.setattr(histories, "PythonBodies", TableBodies)
        self.seen: Seens = []
        self.patch = patch
        self.does(
            lambda seen, time, output: [(row, 1) for alias in sorted(seen) if alias[0] in "id" for row in seen[alias]]
        )
        self.world = World(folder, First(0), Case("story", sources, **case))

    def does(self, body: Body, kind: str = "stream", *, reads_output: bool = True) -> None:
        """Say what the body does; at first it copies what its inputs show."""

        def noted(seen: Seen, time: int, output: Sequence[Row]) -> Any:
            self.seen.append((time, {name: list(rows) for name, rows in seen.items()}, list(output)))
            return body(seen, time, output)

        self.patch.setitem(BODIES, "story", (noted, kind, reads_output))

    def write(self, log: int, *updates: tuple[int, Row, int], to: int) -> None:
        """Append updates to a log, which is complete before `to` then."""
        self.world.append(f"log{log}", 0, updates, to)

    def replica(self, **plan: Any) -> Replica:
        return self.world._replica(OUT, "story", self.world.sources, TaskPlan("task", (), **plan), 0)

    def ran(self) -> list[int]:
        return [time for time, _, _ in self.seen]

    def shown(self, alias: str) -> dict[int, list[Row]]:
        return {time: seen[alias] for time, seen, _ in self.seen}

    @property
    def output(self) -> dict[int, dict[Row, int]]:
        return self.world.found()

    @property
    def upper(self) -> int | None:
        return self.world.frontier(OUT)


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Story]:
    def make(*sources: tuple[str, str], **case: Any) -> Story:
        return Story(tmp_path, monkeypatch, *sources, **case)

    return make


Make = Callable[..., Story]


# What is written when ---------------------------------------------------------------------------------


def test_rule_002_01_a_change_at_a_time_writes_at_that_time(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (3, A, 1), (7, B, 1), to=9)
    idle(task.replica())
    assert task.output == {3: {A: 1}, 7: {B: 1}}
    assert task.upper == 9


def test_rule_002_02_a_restart_looks_at_nothing_before_upper(story: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    task = story(COLLECTION)
    task.write(0, (1, A, 1), (2, A, -1), (2, B, 1), to=5)
    idle(task.replica())
    task.write(0, (6, B, -1), (6, C, 1), to=8)
    again, asked = task.replica(), list[Any]()
    between, run = again.engine._times_between, again.bodies.evaluate
    monkeypatch.setattr(again.engine, "_times_between", lambda *given: asked.append(given[1:]) or between(*given))
    again.bodies.evaluate = lambda plan: asked.extend((each.lower, each.upper) for each in plan.sources) or run(plan)  # type: ignore[method-assign]
    idle(again)
    assert asked == [(5, 8), (6, 7)]


def test_rule_002_03_a_later_change_of_a_reference_is_nothing(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.does(lambda seen, time, output: [(row, 1) for row in seen["r1"]])
    task.write(0, (2, A, 1), to=9)
    task.write(1, (1, B, 1), (4, B, -1), (4, C, 1), to=9)
    replica = task.replica()
    idle(replica)
    task.write(1, (9, C, -1), to=12)
    task.write(0, to=12)
    idle(replica)
    assert task.output == {2: {B: 1}}


def test_rule_002_05_changes_of_two_inputs_at_a_time_are_one(story: Make) -> None:
    task = story(STREAM, STREAM)
    task.write(0, (3, A, 1), to=5)
    task.write(1, (3, B, 1), to=5)
    idle(task.replica())
    assert task.ran() == [3]
    assert task.output == {3: {A: 1, B: 1}}


def test_rule_002_06_nobody_else_writes_the_output(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), to=3)
    idle(task.replica())
    with pytest.raises(OwnershipError, match="found it owned by"):
        task.world.look(OUT).writer("main", owner="somebody").append({"_time": [5], "k": ["z"], "n": [0]})
    assert task.output == {1: {A: 1}}


def test_rule_002_07_deletes_are_as_many_copies_as_went(story: Make) -> None:
    task = story(COLLECTION, GONE, same=True)
    task.write(0, (1, A, 3), to=2)
    task.write(0, (2, A, -2), (2, B, 1), to=3)
    idle(task.replica())
    assert task.shown("i0") == {1: [A, A, A], 2: [B]}
    assert task.shown("d1") == {1: [], 2: [A, A]}


def test_rule_002_08_one_log_is_input_and_reference(story: Make) -> None:
    task = story(COLLECTION, REFERENCE, same=True)
    task.write(0, (1, A, 1), (3, B, 1), to=5)
    idle(task.replica())
    assert task.shown("i0") == {1: [A], 3: [B]}
    assert task.shown("r1") == {1: [A], 3: [A, B]}


def test_rule_002_09_all_is_read_and_written_at_a_time(story: Make) -> None:
    """The input and the reference as of it, the output as of the time before, the result at it."""
    task = story(STREAM, REFERENCE)
    task.write(0, (2, A, 1), (3, B, 1), to=9)
    task.write(1, (2, C, 1), (3, C, -1), to=9)
    idle(task.replica())
    assert task.seen == [(2, {"i0": [A], "r1": [C]}, []), (3, {"i0": [B], "r1": []}, [A])]
    assert task.output == {2: {A: 1}, 3: {B: 1}}


def test_rule_002_11_a_reference_alone_writes_nothing(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.write(0, to=9)
    task.write(1, (1, A, 1), (5, B, 1), to=9)
    idle(task.replica())
    assert (task.ran(), task.output, task.upper) == ([], {}, 9)


def test_rule_002_12_a_loser_throws_its_result_away(story: Make) -> None:
    task = story(STREAM)
    winner, loser = task.replica(), task.replica()
    idle(winner)
    task.write(0, (1, A, 1), to=3)
    loser.bodies.written = once(lambda: idle(winner) and None)
    assert idle(loser) == [False]
    assert task.output == {1: {A: 1}}
    assert task.ran() == [1, 1]


def test_rule_002_15_the_output_that_is_read_is_what_was_written(story: Make) -> None:
    """Another replica writes at 1, with another result than this one proposed; at 2 this one sees the other's."""
    task = story(STREAM)
    results = iter([A, B, C])
    task.does(lambda seen, time, output: [(next(results), 1)])
    winner, loser = task.replica(), task.replica()
    idle(winner)
    task.write(0, (1, ("x", 0), 1), (2, ("y", 0), 1), to=3)

    def overtake() -> None:
        winner.engine.begin()
        winner.engine.step()

    loser.bodies.written = once(overtake)
    assert idle(loser) == [False, True]
    assert task.output == {1: {B: 1}, 2: {C: 1}}
    assert [(time, own) for time, _, own in task.seen] == [(1, []), (1, []), (2, [B])]


# Where it begins --------------------------------------------------------------------------------------


def test_rule_002_19_with_snapshot_the_contents_come_at_as_of(story: Make) -> None:
    task = story(COLLECTION)
    task.write(0, (1, A, 2), (2, A, -1), (4, B, 1), (6, C, 1), to=8)
    idle(task.replica(as_of=4, snapshot=True))
    assert task.shown("i0") == {4: [A, B], 6: [C]}
    assert task.output == {4: {A: 1, B: 1}, 6: {C: 1}}


def test_rule_002_20_without_snapshot_as_of_itself_is_skipped(story: Make) -> None:
    task = story(COLLECTION)
    task.write(0, (1, A, 1), (4, B, 1), (5, C, 1), to=8)
    idle(task.replica(as_of=4))
    assert task.output == {5: {C: 1}}


def test_rule_002_21_and_22_inputs_are_held_before_the_upper(story: Make) -> None:
    """A start reads changes from its output's upper on: what they are changes of must still be told apart."""
    task = story(COLLECTION, REFERENCE)
    task.write(0, (1, A, 1), (6, B, 1), to=20)
    task.write(1, to=6)
    task.world.quick = True
    replica = task.replica()
    idle(replica)
    idle(replica)
    replica.engine.end()
    log = task.world.look("log0")
    assert task.upper == 6  # the write there waits for the reference
    assert log.allow_compaction([19]).elements == ((5,),)
    log.compact(logical=True)
    task.write(1, to=8)
    idle(task.replica())
    assert task.output == {1: {A: 1}, 6: {B: 1}}


def test_rule_002_23_and_27_a_snapshot_is_read_until_written(story: Make) -> None:
    task = story(COLLECTION)
    task.write(0, (1, A, 1), to=2)
    first = task.replica(as_of=3, snapshot=True)
    idle(first)  # as_of is not complete yet: nothing is written
    assert task.output == {}
    task.write(0, (4, B, 1), to=6)
    idle(task.replica(as_of=3, snapshot=True))
    idle(task.replica(as_of=3, snapshot=True))
    assert task.shown("i0") == {3: [A], 4: [B]}
    assert task.output == {3: {A: 1}, 4: {B: 1}}


def test_rule_002_24_references_are_read_with_their_contents(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.write(0, (5, A, 1), to=8)
    task.write(1, (1, B, 1), (2, C, 1), to=8)
    idle(task.replica(as_of=3, snapshot=False))
    assert task.shown("r1") == {5: [B, C]}


def test_rule_002_25_and_26_the_output_is_known_before_as_of(story: Make) -> None:
    """At as_of the body reads its output, which is empty there; nothing waits for a time before as_of."""
    task = story(COLLECTION)
    task.write(0, (2, A, 1), to=6)
    idle(task.replica(as_of=4, snapshot=True))
    assert task.seen == [(4, {"i0": [A]}, [])]
    assert task.output == {4: {A: 1}}


def test_rule_002_29_the_output_is_no_input(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), to=3)
    idle(task.replica())
    world = task.world
    out = [*world.sources, type(world.sources[0])("i9", OUT, "inserts")]
    with pytest.raises(InvalidUsageError, match="found its output"):
        world._replica(OUT, "story", out, TaskPlan("task", ()), 0)


def test_rule_002_29_a_source_is_shown_as_its_place_says(story: Make) -> None:
    task = story(COLLECTION, GONE, REFERENCE)
    for log in range(3):
        task.write(log, (1, A, 1), (1, B, 1), (2, A, -1), (2, C, 1), to=4)
    idle(task.replica())
    assert task.shown("i0") == {1: [A, B], 2: [C]}
    assert task.shown("d1") == {1: [], 2: [A]}
    assert task.shown("r2") == {1: [A, B], 2: [B, C]}


# What an input shows ----------------------------------------------------------------------------------


def test_rule_002_30_inserts_are_there_at_their_time_alone(story: Make) -> None:
    task = story(COLLECTION)
    task.write(0, (1, A, 1), (2, B, 1), (3, B, 1), to=5)
    idle(task.replica())
    assert task.shown("i0") == {1: [A], 2: [B], 3: [B]}


def test_rule_002_31_deletes_alone_make_no_write_time(story: Make) -> None:
    task = story(COLLECTION)
    task.write(0, (1, A, 2), (2, A, -1), (3, A, -1), (3, B, 1), to=5)
    idle(task.replica())
    assert task.ran() == [1, 3]  # neither 2, nor the times after these, at which what was shown is gone


def test_rule_002_32_a_time_is_summed_before_it_is_looked_at(story: Make) -> None:
    task = story(COLLECTION)
    task.write(0, (2, A, 1), (2, B, 1), to=2)
    task.write(0, (2, A, -1), (3, C, 1), (3, C, -1), to=5)
    idle(task.replica())
    assert task.shown("i0") == {2: [B]}


def test_rule_002_34_references_make_no_write_times(story: Make) -> None:
    task = story(COLLECTION, REFERENCE)
    task.write(0, (3, A, 1), to=9)
    task.write(1, (1, B, 1), (4, C, 1), to=9)
    idle(task.replica())
    assert task.ran() == [3]


def test_rule_002_35_the_output_is_seen_as_it_was_before(story: Make) -> None:
    task = story(STREAM)
    task.does(lambda seen, time, output: [(("n", len(output)), 1)])
    task.write(0, (1, A, 1), (2, B, 1), (7, C, 1), to=9)
    idle(task.replica())
    assert [(time, own) for time, _, own in task.seen] == [(1, []), (2, [("n", 0)]), (7, [("n", 0), ("n", 1)])]


# How the output moves ---------------------------------------------------------------------------------


def test_rule_002_40_results_that_others_wrote_are_dropped(story: Make) -> None:
    """A replica that only looks, and then writes, writes nothing that is there."""
    task = story(STREAM)
    writer, reader = task.replica(), task.replica()
    task.write(0, (1, A, 1), (2, B, 1), to=4)
    reader.engine.begin()
    reader.engine._look()
    idle(writer)
    assert idle(reader) == []
    assert task.output == {1: {A: 1}, 2: {B: 1}}
    assert task.ran() == [1, 2]


def test_rule_002_41_a_task_that_ends_closes_nothing(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), to=3)
    replica = task.replica()
    idle(replica)
    replica.engine.end()
    assert task.upper == 3
    task.write(0, (4, B, 1), to=6)
    idle(task.replica())
    assert task.output == {1: {A: 1}, 4: {B: 1}}


def test_rule_002_43_the_first_append_moves_the_upper_to_as_of(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), (5, B, 1), to=3)
    replica = task.replica(as_of=4)
    replica.engine.begin()
    replica.engine.step()
    assert (task.upper, task.output) == (4, {})


def test_rule_002_44_a_second_start_adopts_the_first_ones_note(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), (5, B, 1), (8, C, 1), to=9)
    first, second = task.replica(as_of=4), task.replica(as_of=7)
    second.engine._look()  # nobody has begun yet
    first.engine.begin()
    first.engine.step()
    idle(second)
    assert task.output == {5: {B: 1}, 8: {C: 1}}


def test_rule_002_45_a_time_is_a_write_time_however_often_added(story: Make) -> None:
    task = story(STREAM, STREAM)
    task.write(0, (2, A, 1), (2, A, 1), to=4)
    task.write(1, (2, B, 1), to=4)
    assert sum(idle(task.replica())) == 2  # the beginning, and one write
    assert task.output == {2: {A: 2, B: 1}}


def test_rule_002_48_complete_inputs_close_the_output(story: Make) -> None:
    """References are open, and are not waited for."""
    task = story(STREAM, REFERENCE)
    task.write(0, (2, A, 1), to=4)
    task.write(1, to=3)
    task.world.look("log0").writer("s0", owner="test").close()
    idle(task.replica())
    assert (task.output, task.upper) == ({2: {A: 1}}, None)


def test_rule_002_48_a_waiting_write_time_keeps_it_open(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.write(0, (5, A, 1), to=6)
    task.write(1, to=3)
    task.world.look("log0").writer("s0", owner="test").close()
    idle(task.replica())
    assert (task.output, task.upper) == ({}, 5)


def test_rule_002_49_to_51_all_or_nothing_at_the_upper_expected(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), to=3)
    replica = task.replica()
    idle(replica)
    log = task.world.look(OUT)
    before = log.core.stream("main")
    assert before is not None
    task.write(0, (4, B, 1), to=6)
    idle(replica)
    with pytest.raises(UpperMismatchError):
        log.writer("main", owner=before.owner).compare_and_append(
            {"_time": [3], "k": ["z"], "n": [0]}, expected=before.frontier, upper=[9]
        )
    assert task.output == {1: {A: 1}, 4: {B: 1}}
    assert task.upper == 6


def test_rule_002_52_times_before_the_output_are_dropped(story: Make) -> None:
    """A restart finds times of its input that were written at already, in one file with new ones."""
    task = story(STREAM)
    task.write(0, (1, A, 1), (6, B, 1), to=4)
    idle(task.replica())
    task.write(0, to=8)
    idle(task.replica())
    assert task.ran() == [1, 6]
    assert task.output == {1: {A: 1}, 6: {B: 1}}


def test_rule_002_53_the_smallest_time_once_it_was_passed(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (5, A, 1), (3, B, 1), to=3)
    replica = task.replica()
    idle(replica)
    assert task.ran() == []  # 3 itself is still open
    task.write(0, to=6)
    idle(replica)
    assert task.ran() == [3, 5]


def test_rule_002_54_upper_follows_the_inputs_in_one_step(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.write(0, to=10_000)  # the reference is behind, and nothing waits for it
    assert sum(idle(task.replica())) == 2
    assert task.upper == 10_000


def test_rule_002_55_upper_moves_up_to_a_time_that_waits(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.write(0, (7, A, 1), to=9)
    task.write(1, to=4)
    idle(task.replica())
    assert (task.ran(), task.upper) == ([], 7)


def test_rule_002_56_what_is_seen_at_a_time_is_complete_there(story: Make) -> None:
    task = story(STREAM, REFERENCE)
    task.write(0, (3, A, 1), to=9)
    task.write(1, (3, B, 1), to=3)
    replica = task.replica()
    idle(replica)
    task.write(1, (3, C, 1), to=4)
    idle(replica)
    assert task.shown("r1") == {3: [B, C]}


def test_rule_002_57_each_time_has_the_whole_result(story: Make) -> None:
    """A body that does not read its input writes all that it gives at each write time."""
    task = story(STREAM)
    task.does(lambda seen, time, output: [(C, 1)])
    task.write(0, (1, A, 1), (2, A, 1), (6, B, 1), to=8)
    idle(task.replica())
    assert task.output == {1: {C: 1}, 2: {C: 1}, 6: {C: 1}}


def test_rule_002_58_what_was_written_is_not_written_again(story: Make) -> None:
    task = story(STREAM)
    task.write(0, (1, A, 1), to=2)
    replica = task.replica()
    idle(replica)
    task.write(0, (2, B, 1), to=3)
    idle(replica)
    assert task.output == {1: {A: 1}, 2: {B: 1}}


def test_rule_002_59_a_lost_race_undoes_nothing(story: Make) -> None:
    """What another wrote stays, and the next look continues behind it."""
    task = story(STREAM)
    winner, loser = task.replica(), task.replica()
    idle(winner)
    task.write(0, (1, A, 1), (4, B, 1), to=5)

    def overtake() -> None:
        winner.engine.begin()
        winner.engine.step()

    loser.bodies.written = once(overtake)
    assert idle(loser) == [False, True]
    assert winner.bodies.runs == [1]
    assert loser.bodies.runs == [1, 4]
    assert task.output == {1: {A: 1}, 4: {B: 1}}


def test_rule_002_65_walk_of_the_output(story: Make) -> None:
    """Nothing, data alone, a time not passed, an earlier one that comes late, empty moves, a sum with a retraction."""
    task = story(COLLECTION, REFERENCE)
    replica = task.replica()
    idle(replica)
    assert task.upper == 0
    task.write(1, to=5)
    idle(replica)
    assert task.upper == 0
    task.write(0, (5, A, 1), (5, B, 1), to=1)
    idle(replica)
    assert (task.upper, task.output) == (1, {})
    task.write(0, (1, C, 1), to=2)
    idle(replica)
    assert (task.upper, task.output) == (2, {1: {C: 1}})
    task.write(0, to=3)
    idle(replica)
    assert task.upper == 3
    task.write(0, (5, A, -1), (5, C, 1), to=6)
    idle(replica)
    assert (task.upper, task.output) == (5, {1: {C: 1}})  # up to the write, whose reference is not known yet
    task.write(1, to=6)
    idle(replica)
    assert (task.upper, task.output) == (6, {1: {C: 1}, 5: {B: 1, C: 1}})
