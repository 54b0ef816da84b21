"""Several steps in one job give the commits of one step per job, whatever the limits, races and kills.

Two sets of outputs are made from the same inputs: one by an engine whose jobs have one step, one by engines whose jobs
have several. Their commits are compared: range, number, rows by their canonical hash, note with inputs and numbers.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as s

from spark_timely.canonical.row_hash import digest_of
from spark_timely.dataflow.aggregates import count, sum_of
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES
from spark_timely.dataflow.engine.steps import Engine, RunTasks
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.log.log import open_log
from spark_timely.protocol.note import Note
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from tests.oracles.dataflow_model import Spec
from tests.property.test_dataflow import Commit, KilledError, World, built, killed_at, runner, stories
from tests.support import examples
from tests.unit.spark.test_dataflow_tasks import Tasks


@dataclass
class Side:
    """The outputs of one of the engines that are compared, over the inputs of a world."""

    world: World
    folder: Path
    limits: Limits
    spooled: bool
    clock: ManualClock

    def scope(self) -> Scope:
        scope = Scope("flow")
        logs = [open_log(log.path) for log in self.world.logs]
        for i, spec in enumerate(self.world.specs):
            stream = built(scope, spec, logs)
            if self.spooled and not i:
                again = stream.spool(str(self.folder / "spool"))
                again.aggregate(by="k", n=sum_of("n"), v=count()).capture(str(self.folder / "again"))
            stream.capture(str(self.folder / f"out{i}"))
        return scope

    def engine(self, most_together: int) -> tuple[Engine, dict[str, dict[str, str]]]:
        scope = self.scope()
        made = Engine(
            "flow",
            scope.sinks,
            scope.storage,
            files_of=catalog_of,
            limits=self.limits,
            workers=self.world.workers,
            shuffle_bytes=self.world.shuffle_bytes,
            most_together=most_together,
            now=self.clock,
        )
        return made, scope.storage

    def outputs(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_dir())


def commits_of(path: Path) -> list[dict[str, object]]:
    """Return what each commit of an output says, and the hash of its rows."""
    log = open_log(str(path))
    messages = log.messages()
    found = []
    for row in log.core.progress().to_pylist():
        note = None if row["_note"] is None else Note.parse(row["_note"]).output
        if note is None:
            continue  # of several rows of a commit the first has the note; those that open the stream have none
        rows = messages.filter(pa.compute.equal(messages["_seq"], row["_seq"])).drop_columns(["_stream", "_seq"])
        digest = digest_of(rows, [(name, name) for name in rows.schema.names]).text
        said = replace(note, plan=None, outline=None)  # they name the outputs' own logs
        found.append({"seq": row["_seq"], "reason": row["_reason"], "note": said, "rows": digest, "n": rows.num_rows})
    return found


def files_of(path: Path) -> tuple[set[str], set[str]]:
    """Return the files of messages on the disk, and those that any commit names."""
    on_disk = {f"_event=message/{file.name}" for file in path.glob("_event=message/*.parquet")}
    entries = [json.loads(line) for file in path.glob("_delta_log/*.json") for line in file.read_text().splitlines()]
    return on_disk, {entry["add"]["path"].replace("%3D", "=") for entry in entries if "add" in entry}


def same_commits(one: Side, other: Side, *, disturbed: bool) -> None:
    """Compare all commits; of what reads a spool the rows alone after a kill or a race, as of any number of steps.

    How far it goes in a step depends on how far the spool is when it is looked at.
    """
    for path in one.outputs():
        mine = other.folder / path.name
        if path.name == "again" and disturbed:
            assert rows_of(mine) == rows_of(path)
        else:
            assert commits_of(mine) == commits_of(path), path.name


def rows_of(path: Path) -> tuple[object, str]:
    log = open_log(str(path))
    rows = log.messages().drop_columns(["_stream", "_seq"])
    return log.frontier(), digest_of(rows, [(name, name) for name in rows.schema.names]).text


def anywhere(rng: random.Random, clock: ManualClock, storage: dict[str, dict[str, str]]) -> RunTasks:
    """Return what runs jobs here or as pickled copies, in a moment or a while: so the next has more or fewer steps."""
    here, job = Tasks(storage), runner(storage)

    def run(outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> Sequence[TaskResult]:
        clock.advance(rng.choice([0.1, 0.1, 1.0, 3.0]))
        found: Sequence[TaskResult] = rng.choice([here, job])(outputs, tasks)
        return found

    return run


@pytest.mark.timeout(7200)  # the long lane draws many more
@examples(8, long=400)
@given(
    story=stories(),
    workers=s.sampled_from([None, 1, 3]),
    limits=s.sampled_from([Limits(times=1), Limits(times=2), Limits(times=1, size_bytes=2500), Limits(size_bytes=1)]),
    shuffle_bytes=s.sampled_from([SHUFFLE_BYTES, 0]),
    most_together=s.integers(2, 20),
    spooled=s.booleans(),
    seed=s.integers(0, 1 << 30),
)
def test_commits_of_steps_together_are_those_one_by_one(
    story: tuple[int, list[Spec], list[Commit]],
    workers: int | None,
    limits: Limits,
    shuffle_bytes: int,
    most_together: int,
    spooled: bool,
    seed: int,
) -> None:
    rng = random.Random(seed)
    arity, flow, history = story
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), flow, workers, None, arity)
        world.shuffle_bytes = shuffle_bytes
        one = Side(world, Path(folder) / "one by one", limits, spooled, ManualClock())
        other = Side(world, Path(folder) / "together", limits, spooled, ManualClock())
        killed = disturbed = False
        for number, commit in enumerate(history):
            world.write(commit)
            if rng.random() < 0.6 and number + 1 < len(history):
                continue  # more waits the next time
            alone, storage = one.engine(1)
            alone.advance(runner(storage))
            turn = rng.choice(["advance", "race", "kill", "late race"])
            disturbed |= turn != "advance"
            made, storage = other.engine(most_together)
            run = anywhere(rng, other.clock, storage)
            if turn == "race":
                rival, others = other.engine(rng.choice([1, most_together]))
                made.advance(runner(storage, lambda rival=rival, others=others: rival.advance(runner(others))))  # type: ignore[misc]
            elif turn == "late race":
                rival, others = other.engine(rng.choice([1, most_together]))
                raced_at(made, rng.randrange(6), lambda rival=rival, others=others: rival.advance(runner(others)))  # type: ignore[misc]
                made.advance(run)
            elif turn == "kill":
                killed_at(made, rng.randrange(6))
                try:
                    made.advance(run)
                except KilledError:
                    killed = True
                    made, _ = other.engine(most_together)
            made.advance(run)
            same_commits(one, other, disturbed=disturbed)
        one.engine(1)[0].advance(runner(storage))
        other.engine(most_together)[0].advance(runner(storage))
        same_commits(one, other, disturbed=disturbed)
        for path in other.outputs():
            if killed:
                DeltaTable(str(path)).vacuum(
                    retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
                )
            on_disk, named = files_of(path)
            assert on_disk <= named, "a file that no commit names"


def raced_at(engine: Engine, nth: int, other: Callable[[], object]) -> None:
    """Let another copy run just before the nth append of an engine."""
    append, left = engine._outputs.append, [nth]

    def racing(*args: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            other()
        return append(*args)

    engine._outputs.append = racing  # type: ignore[method-assign]


def world_of(folder: Path, n_times: int = 12) -> World:
    """Return two outputs over an input of twelve times, of which the first three are filtered out of the second."""
    world = World(folder, [("sums", ("replay", 0)), ("filter", ("replay", 0), 2)], 2, None)
    rows: list[Any] = [((time,), "ab"[time % 2], time, 0.5) for time in range(n_times) for _ in range(2)]
    world.write((0, rows, frozenset({(n_times,)})))
    return world


def test_reader_of_a_spool_has_the_commits_of_single_steps(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.specs = world.specs[::-1]  # the spool has no rows at first: were it further, its reader would take more
    sides = [Side(world, tmp_path / name, Limits(times=1), True, ManualClock()) for name in ("one", "together")]
    for each, most_together in zip(sides, (1, 20), strict=True):
        made, storage = each.engine(most_together)
        made.advance(runner(storage))
    same_commits(*sides, disturbed=False)
    assert len(commits_of(tmp_path / "together" / "again")) == 12


def made_in(folder: Path) -> Side:
    return Side(world_of(folder), folder / "made", Limits(times=1), False, ManualClock())


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, object]]]:
    """Return the number and the rows of each commit of the outputs of `world_of`, made step by step."""
    one = made_in(tmp_path_factory.mktemp("one"))
    made, storage = one.engine(1)
    made.advance(runner(storage))
    return {path.name: [(each["seq"], each["rows"]) for each in commits_of(path)] for path in one.outputs()}


@pytest.mark.parametrize("nth", range(8))
def test_killed_between_a_job_and_its_last_append(
    tmp_path: Path, nth: int, one_by_one: dict[str, list[tuple[object, object]]]
) -> None:
    """The third job has four steps of each of two outputs: dead before any of their appends."""
    other = made_in(tmp_path / "other")
    dying, storage = other.engine(20)
    killed_at(dying, 2 + 4 + nth)
    with pytest.raises(KilledError):
        dying.advance(runner(storage))
    done = [len(commits_of(path)) for path in other.outputs()]
    assert done == [3 + (nth + 1) // 2, 3 + nth // 2]
    stray = 0
    for path in other.outputs():
        on_disk, named = files_of(path)
        stray += len(on_disk - named)
        DeltaTable(str(path)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert stray == 8 - nth, "written for steps that were not appended"
    again, storage = other.engine(20)
    again.advance(runner(storage))
    for path in other.outputs():
        mine = commits_of(path)
        assert [(each["seq"], each["rows"]) for each in mine] == one_by_one[path.name]
        assert len(mine) == 12
        on_disk, named = files_of(path)
        assert on_disk <= named
