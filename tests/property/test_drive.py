"""An instance with its surroundings against plain Python: whatever comes, goes, breaks off and restarts.

A story is a random history of an instance without Spark. At each time that the instance says is complete, what a peek
gives is what the query gives of the inputs' updates up to that time, computed here from lists. `MUTANTS` are wrong
designs of the driver, each of which a story has to find.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.answers.peek import peek
from spark_timely.compute.command import AllowCompaction, CreateDataflow, Schedule
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive import driver as drivers
from spark_timely.compute.drive import folders, peeks, subscribes
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.runners import Runner
from spark_timely.compute.drive.subscribes import Batches
from spark_timely.compute.drive.worker import Worker
from spark_timely.compute.history import Row
from spark_timely.compute.instance import Instance
from spark_timely.compute.ledger import commands_of
from spark_timely.compute.response import Dropped, Frontiers, Response, SubscribeBatch
from spark_timely.errors import OperatorError, OwnershipError, TimelyError, WaitTimeoutError
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane, tell
from tests.unit.compute.instances import SCHEMA, handle

Patch = pytest.MonkeyPatch
Rows = Counter[tuple[Any, ...]]

INF = float("inf")
WAIT_S = 30.0

# What queries of what is read give; those of inputs have k and v, and all have k.
OF_INPUT = {
    "SELECT k, count(*) AS n, sum(v) AS s FROM {} GROUP BY k": lambda rows: _totals(rows, 1),
    "SELECT k, v FROM {} WHERE v > 4": lambda rows: Counter({row: n for row, n in rows.items() if row[1] > 4}),
    "SELECT DISTINCT k FROM {}": lambda rows: Counter({row[:1]: 1 for row in rows}),
    "SELECT k FROM {}": lambda rows: _first(rows),
}
OF_EXPORT = {
    "SELECT k FROM {} WHERE k > 1": lambda rows: Counter({row: n for row, n in _first(rows).items() if row[0] > 1}),
    "SELECT k, count(*) AS n, sum(k) AS s FROM {} GROUP BY k": lambda rows: _totals(rows, 0),
}


def _first(rows: Rows) -> Rows:
    found: Rows = Counter()
    for row, n in rows.items():
        found[row[:1]] += n
    return found


def _totals(rows: Rows, column: int) -> Rows:
    counts: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    for row, n in rows.items():
        counts[row[0]] += n
        sums[row[0]] += n * row[column]
    return Counter({(k, n, sums[k]): 1 for k, n in counts.items()})


class Input:
    """A log that grows, forgets and ends, and its updates as a list."""

    def __init__(self, path: Path, kind: Any) -> None:
        self.log: Log = create_log(path, SCHEMA, kind=kind, minimum=(0,), flush=False)
        self.updates: list[tuple[int, int, int, int]] = []
        self.upper: float = 0

    def at(self, time: float) -> Rows:
        found: Rows = Counter()
        for when, diff, *row in self.updates:
            if when <= time:
                found[tuple(row)] += diff
        return Counter({row: n for row, n in found.items() if n})

    def grow(self, rng: random.Random) -> None:
        if self.upper == INF:
            return
        now = int(self.upper)
        to = now + rng.randint(1, 3)
        made = []
        for _ in range(rng.randint(0, 4)):
            there = list(self.at(INF).elements())
            if there and self.log.kind == "collection" and rng.random() < 0.4:
                row, diff = rng.choice(there), -1
            else:
                row, diff = (rng.randint(0, 3), rng.randint(0, 9)), 1
            made.append((to - 1, diff, *row))
            self.updates.append(made[-1])
        columns = {name: pa.array([each[at] for each in made], pa.int64()) for at, name in enumerate(_COLUMNS)}
        if self.log.kind == "stream":
            del columns["_diff"]
        self.log.writer(owner="test").append(pa.table(columns), advance_to=to)
        self.upper = to

    def close(self) -> None:
        if self.upper != INF:
            self.log.writer(owner="test").close()
            self.upper = INF


_COLUMNS = ("_time", "_diff", "k", "v")


class Made:
    """An export that is there, and what it has to give."""

    def __init__(self, source: Input | Made, give: Callable[[Rows], Rows], path: Path | None) -> None:
        self.source, self.give, self.path = source, give, path

    @property
    def upper(self) -> float:
        return self.source.upper

    def at(self, time: float) -> Rows:
        return self.give(self.source.at(time))


class Reader:
    """A subscribe, what its batches add up to, and what they have to."""

    def __init__(self, batches: Batches, made: Made) -> None:
        self.batches, self.made = batches, made
        self.rows: Rows = Counter()
        self.upper: Antichain | None = None


class Story:
    """One history of an instance."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.inputs = [Input(folder / "a", "collection"), Input(folder / "b", "stream")]
        self.made: dict[str, Made] = {}
        self.readers: list[Reader] = []
        self.n_paths = 0
        self.dropped: set[str] = set()
        self.wrong: list[str] = []
        self.opened: list[Handle] = []
        self.instance = self.open()

    # Handles -------------------------------------------------------------------------------------

    def open(self, **options: Any) -> Handle:
        heard: dict[str, Antichain] = {}

        def hear(response: Response) -> None:
            # Reported frontiers advance strictly, from whichever handle they come.
            if isinstance(response, Frontiers | SubscribeBatch):
                to = response.frontier if isinstance(response, Frontiers) else response.upper
                before = heard.get(response.id)
                # One that is complete is dropped without a word: another one may have the id since.
                again = before is not None and before.is_empty and response.id in self.dropped
                if before is not None and not before.less_than_frontier(to) and not again:
                    self.wrong.append(f"{response.id} went from {before} to {to}")
                heard[response.id] = to
            elif isinstance(response, Dropped):
                heard.pop(response.id, None)

        made = handle(self.folder / "instance", on_response=hear, **options)
        self.opened.append(made)
        return made

    def end(self) -> None:
        for each in self.opened:
            each.close()

    def abandon(self, instance: Handle) -> None:
        """As if its process were gone; steps that run may still end."""
        instance._ended = True
        instance._driver.wake.set()
        instance._thread.join()

    # Steps ---------------------------------------------------------------------------------------

    def run(self, n_steps: int) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (6, lambda: self.rng.choice(self.inputs).grow(self.rng)),
            (4, self.make),
            (2, self.subscribe),
            (2, self.drop),
            (2, self.allow),
            (2, self.peek_later),
            (1, self.configure),
            (1, self.forget),
            (3, self.restart),
            (2, self.check),
            (1, self.complete),
        ]
        for _ in range(3):
            self.inputs[0].grow(self.rng)
            self.inputs[1].grow(self.rng)
        self.make()
        for _ in range(n_steps):
            self.rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
        self.check()
        self.restart()
        self.check()

    def complete(self) -> None:
        if self.rng.random() < 0.2:
            self.rng.choice(self.inputs).close()

    def make(self) -> None:
        id_ = self.rng.choice(["p", "q/ü", "r", "s", "t"])
        imports: dict[str, str] = {}
        if self.made and self.rng.random() < 0.5:
            source: Input | Made = self.made[word := self.rng.choice(list(self.made))]
            query, give = self.rng.choice(list(OF_EXPORT.items()))
            word = f"`{word}`"
        else:
            source, word = self.rng.choice(self.inputs), "src"
            query, give = self.rng.choice(list(OF_INPUT.items()))
            imports = {"src": source.log.path}
        query = query.format(word)
        before = set(self.made)
        try:
            if self.rng.random() < 0.6:
                key = self.rng.choice([(), "k"])
                self.instance.index(id_, query, imports=imports, key=key)
                made = Made(source, give, None)
            else:
                self.n_paths += 1
                path = self.folder / f"out{self.n_paths}"
                self.instance.maintain(id_, query, str(path), imports=imports)
                made = Made(source, give, path)
        except TimelyError:
            if id_ not in before:
                raise
        else:
            assert id_ not in before
            self.made[id_] = made

    def drop(self) -> None:
        if not self.made:
            return
        id_ = self.rng.choice(list(self.made))
        gone = self.made[id_]
        for reader in [each for each in self.readers if each.made is gone or each.made.source is gone]:
            self.readers.remove(reader)
            reader.batches.close()
        if any(each.source is gone for each in self.made.values()):
            with pytest.raises(TimelyError, match="imported"):
                self.instance.drop(id_)
        else:
            self.instance.drop(id_)
            del self.made[id_]
            self.dropped.add(id_)
            assert not self.instance.has(id_)

    def subscribe(self) -> None:
        if not self.made:
            return
        id_ = self.rng.choice(list(self.made))
        made = self.made[id_]
        if self.rng.random() < 0.6:
            self.readers.append(Reader(self.instance.subscribe(id_), made))
        else:
            query, give = self.rng.choice(list(OF_EXPORT.items()))
            batches = self.instance.subscribe(query.format(f"`{id_}`"))
            self.readers.append(Reader(batches, Made(made, give, None)))

    def allow(self) -> None:
        indexes = [id_ for id_, each in self.made.items() if each.path is None]
        if indexes:
            id_ = self.rng.choice(indexes)
            upper = self.made[id_].upper
            self.instance.allow_compaction(id_, self.rng.randint(0, int(min(max(upper, 1), 40)) - 1))

    def peek_later(self) -> None:
        if self.made:
            id_ = self.rng.choice(list(self.made))
            upper = self.made[id_].upper
            if upper != INF:
                with pytest.raises((WaitTimeoutError, OperatorError)):
                    self.instance.peek(id_, as_of=int(upper) + 5, timeout_s=0.0)

    def configure(self) -> None:
        value: Any = self.rng.choice([1, 2, 4])
        self.instance.configure(**{self.rng.choice(["hydration_limit", "steps_at_once"]): value})

    def forget(self) -> None:
        """Let an input forget what nobody here needs any more. Of a stream, all messages are needed."""
        self.check()
        some = self.inputs[0]
        if some.upper not in (0, INF):
            some.log.allow_compaction(self.rng.randint(0, int(some.upper) - 1))
            some.log.compact(logical=True)

    def restart(self) -> None:
        self.read_all()
        way = self.rng.choice(["close", "gone", "replaced", "take over", "read only"])
        old, live = self.instance, list(self.readers)
        self.readers.clear()
        if way == "close":
            old.close()
            self.instance = self.open()
        elif way == "gone":
            self.abandon(old)
            self.instance = self.open()
        elif way == "replaced":
            self.instance = self.open()
            self.check_replaced(old)
        else:
            follower = self.open(read_only=True)
            self.make()  # it takes up what comes
            self.settle(follower)
            self.check_all(follower)
            if way == "take over":
                mine = [Reader(follower.subscribe(id_), made) for id_, made in [*self.made.items()][:2]]
                self.rng.choice(self.inputs).grow(self.rng)
                follower.allow_writes()
                self.check_replaced(old)
                self.instance, self.readers = follower, mine
                return
            follower.close()
            self.readers += live
            return

    def check_replaced(self, old: Handle) -> None:
        """What was replaced ends, and says so."""
        try:
            old._wait(lambda: False, WAIT_S)
        except OwnershipError:
            pass
        else:
            raise AssertionError("an older start continues")
        with pytest.raises(OwnershipError):
            old.configure(hydration_limit=9)

    # Checking ------------------------------------------------------------------------------------

    def check(self) -> None:
        self.settle(self.instance)
        self.check_all(self.instance)
        self.read_all()

    def settle(self, instance: Handle) -> None:
        for id_, made in self.made.items():
            if made.upper > 0:
                deadline = WAIT_S * 20
                while not instance.has(id_) and deadline > 0:
                    instance._wait(lambda: False, 0.05)
                    deadline -= 1
                instance.await_frontier(id_, 10**6 if made.upper == INF else int(made.upper) - 1, timeout_s=WAIT_S)

    def check_all(self, instance: Handle) -> None:
        ids = {each.id for each in instance._driver.instance.collections() if each.kind in ("index", "log")}
        assert ids == set(self.made)
        for id_, made in self.made.items():
            reported = instance.frontier(id_)
            upper = INF if reported.is_empty else reported.elements[0][0]
            assert upper <= made.upper, f"{id_} is at {upper}, its input at {made.upper}"
            # As of the leader: a follower learns a moment later what may be forgotten.
            (since,) = self.instance._driver.instance.allowed(id_).elements[0]
            last = int(min(made.upper, 40)) - 1
            times = range(since, last + 1)
            for time in sorted({*times[-2:], *times[:1], *(self.rng.sample(times, 1) if times else ())}):
                found = counted(instance.peek(id_, as_of=time, timeout_s=WAIT_S))
                assert found == made.at(time), f"{id_} at {time}"
            if made.path is not None and made.upper > 0:
                log = open_log(made.path)
                for time in range(log.since().elements[0][0], last + 1):
                    if time >= since:
                        assert counted(peek(log, as_of=time)) == made.at(time), f"log {id_} at {time}"
        assert not self.wrong, self.wrong
        errors = instance.show("errors")
        assert errors.num_rows == 0, errors.to_pylist()

    def read_all(self) -> None:
        for reader in self.readers:
            want = Antichain.empty() if reader.made.upper == INF else Antichain.of(int(reader.made.upper))
            if reader.made.upper == 0:
                continue
            while reader.upper is None or reader.upper.less_than_frontier(want):
                batch = reader.batches.next_batch(timeout_s=WAIT_S)
                assert batch is not None, f"a subscribe is at {reader.upper}, not at {want}"
                assert reader.upper in (None, batch.lower)
                reader.upper = batch.upper
                assert isinstance(batch.updates, pa.Table)
                for row in batch.updates.to_pylist():
                    key = tuple(value for name, value in row.items() if name not in ("_time", "_diff"))
                    reader.rows[key] += row["_diff"]
                at = INF if batch.upper.is_empty else batch.upper.elements[0][0] - 1
                rows = Counter({row: n for row, n in reader.rows.items() if n})
                assert rows == reader.made.at(at), f"a subscribe at {at}"
        self.readers = [each for each in self.readers if each.upper is None or not each.upper.is_empty]


def counted(table: pa.Table) -> Rows:
    found: Rows = Counter()
    for row in table.to_pylist():
        found[tuple(value for name, value in row.items() if name != "_diff")] += row["_diff"]
    return found


def tell_story(folder: Path, seed: int, n_steps: int) -> None:
    folder.mkdir()
    story = Story(folder, seed)
    try:
        story.run(n_steps)
    except BaseException:
        tell(f"seed {seed}, {n_steps} steps")
        raise
    finally:
        story.end()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(4))
def test_instance_gives_what_its_queries_say(tmp_path: Path, first: int) -> None:
    for seed in range(first, 400 if long_lane() else 6, 4):
        tell_story(tmp_path / str(seed), seed, 40 if long_lane() else 16)


# Wrong designs -----------------------------------------------------------------------------------


def _peeks_the_time_before(patch: Patch) -> None:
    patch.setattr(peeks, "written", lambda _, time: max(time[0] - 1, 0))


def _drops_are_not_written(patch: Patch) -> None:
    _not_written(patch, lambda each: isinstance(each, AllowCompaction) and each.frontier.is_empty)


def _dataflows_are_not_written(patch: Patch) -> None:
    _not_written(patch, lambda each: isinstance(each, CreateDataflow))


def _schedules_are_not_written(patch: Patch) -> None:
    _not_written(patch, lambda each: isinstance(each, Schedule))


def _not_written(patch: Patch, which: Callable[[object], bool]) -> None:
    inner = CommandLog.store
    lost: Callable[[Row], bool] = lambda row: any(map(which, commands_of([row])))  # noqa: E731
    patch.setattr(CommandLog, "store", lambda self, rows: inner(self, [row for row in rows if not lost(row)]))


def _older_start_does_not_look(patch: Patch) -> None:
    patch.setattr(CommandLog, "is_mine", lambda *_, **__: True)


def _indexes_forget_all_that_is_complete(patch: Patch) -> None:
    patch.setattr(drivers, "_UPKEEP_S", 0.0)
    patch.setattr(Instance, "since_of", lambda *_: Antichain.of(10**6))


def _subscribe_begins_again_with_each_engine(patch: Patch) -> None:
    inner = Worker._let_go

    def let_go(self: Worker, flow: Any, runner: Any, *, dropped: bool = False) -> None:
        inner(self, flow, runner, dropped=dropped)
        self._on_failed.__self__._subscribes._there.clear()  # type: ignore[attr-defined]

    patch.setattr(Worker, "_let_go", let_go)
    own = subscribes.subscribe

    def begins(path: str, *, resume_from: object = None, **more: Any) -> Any:
        del resume_from
        return own(path, **{"as_of": 0, **more})

    patch.setattr(subscribes, "subscribe", begins)


def _subscribe_has_no_contents(patch: Patch) -> None:
    own = subscribes.subscribe
    patch.setattr(subscribes, "subscribe", lambda path, **more: own(path, **{**more, "snapshot": False}))


def _follower_takes_nothing_up(patch: Patch) -> None:
    patch.setattr(drivers, "follow", lambda *_, **__: None)


def _what_is_used_is_swept(patch: Patch) -> None:
    patch.setattr(folders, "_GONE_S", 0.0)
    patch.setattr(drivers, "_UPKEEP_S", 0.0)

    def delete(self: folders.Folders, **_: object) -> None:
        directory = self._state.directory
        for name in directory.folders():
            shutil.rmtree(f"{directory.collections}/{name}", ignore_errors=True)

    patch.setattr(folders.Folders, "delete", delete)


def _uppers_are_stated_ahead(patch: Patch) -> None:
    patch.setattr(Runner, "uppers", lambda self: dict.fromkeys(self.outputs, _ahead(self)))


def _ahead(runner: Runner) -> Antichain:
    found = [each for each in runner.upper_of_imports.values() if not each.is_empty]
    return Antichain.of(max([each.elements[0][0] for each in found], default=0) + 1)


# With the story that finds it with the least work, which is told first.
MUTANTS: dict[str, tuple[Callable[[Patch], None], int]] = {
    each.__name__.strip("_"): (each, first)
    for each, first in (
        (_peeks_the_time_before, 1),
        (_drops_are_not_written, 19),
        (_dataflows_are_not_written, 4),
        (_schedules_are_not_written, 7),
        (_older_start_does_not_look, 28),
        (_indexes_forget_all_that_is_complete, 7),
        (_subscribe_begins_again_with_each_engine, 1),
        (_subscribe_has_no_contents, 13),
        (_follower_takes_nothing_up, 11),
        (_what_is_used_is_swept, 1),
        (_uppers_are_stated_ahead, 1),
    )
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_of_the_driver_is_found(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(f"{__name__}.WAIT_S", 1.0)
    mutate, first = MUTANTS[name]
    mutate(monkeypatch)
    for number, seed in enumerate((first, *range(60))):
        try:
            tell_story(tmp_path / str(number), seed, 16)
        except (AssertionError, TimelyError, KeyError, pytest.fail.Exception) as error:
            tell(f"{name}: seed {seed}: {type(error).__name__}: {str(error)[:200]}")
            return
    raise AssertionError(f"nothing was found in 60 stories of {name}")
