"""The judge of what others changed against a table that knows each row."""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.index import FileIndex, LiveFiles, index_adds
from spark_timely.log.machine import judge as product
from spark_timely.log.machine import strange as looking
from spark_timely.log.machine.judge import Evidence, Judge, Step
from spark_timely.log.machine.strange import Strange
from spark_timely.log.store.entries import parse_entry
from spark_timely.protocol.note import Note
from tests.faults.harness import long_lane
from tests.oracles.foreign_model import CHANGES, MAINTENANCE, OURS, Row, World

FORMS = {
    kind: replace(
        LogFormat.build(pa.schema([("v", pa.int64())]), minimum=(0,), kind=kind),  # type: ignore[arg-type]
        forgets=True,
        before=None,
    )
    for kind in ("stream", "collection")
}


@dataclass
class Table:
    """The model's table as the judge sees it: entries, statistics, rows of files."""

    world: World

    def __post_init__(self) -> None:
        self.form = FORMS[self.world.kind]
        self.evidence = Evidence(self.rows, self.step, self.files, self.keys)
        self._steps: dict[int, Step] = {}

    def step(self, version: int) -> Step | None:
        if version not in self._steps:
            actions = self.world.versions[version].actions
            entry = parse_entry("\n".join(map(json.dumps, actions)).encode())
            self._steps[version] = Step(version, entry, index_adds(self.form, entry.adds))
        return self._steps[version]

    def steps(self, after: int) -> list[Step]:
        found = (self.step(version) for version in range(after + 1, self.world.newest + 1))
        return [step for step in found if step is not None]

    def files(self, version: int) -> list[FileIndex]:
        live = self.world.versions[version].live
        assert not any(live.values())
        return [index_adds(self.form, [self.world.add_of(path)["add"] for path in live])]

    def rows(self, path: str, vector: str, event: str) -> pa.Table:
        assert (event == "message") == (self.world.files[path][0] == "message")
        rows = self.world.rows_of(path, vector.removeprefix("u").removesuffix("@1"))
        schema = self.form.data_schema if event == "message" else self.form.progress_schema
        return pa.Table.from_pylist([_values(row) for row in rows], schema)

    def keys(self, path: str) -> Iterator[pa.Table]:
        rows = self.rows(path, "", "message")
        cut = rows.num_rows // 3
        yield from (rows.slice(0, cut), rows.slice(cut))

    def live(self, version: int) -> LiveFiles:
        found = LiveFiles(1)
        for path in self.world.versions[version].live:  # so that what a vector masks is there too
            found.add(index_adds(self.form, [self.world.add_of(path)["add"]]))
        return found


def _values(row: Row) -> dict[str, Any]:
    said: dict[str, Any] = {"_stream": row.stream, "_seq": row.seq, "_time": row.time}
    if row.event == "message":
        return {**said, "_diff": 1, "v": row.value}
    low, high = row.bounds or (None, None)
    # That it is a base must be all that a base commit says of itself: its number is that of the commit that it was.
    note = Note(attempt=f"{row.stream} {row.seq}", base=row.base).text() if row.event == "progress" else None
    return {
        **said,
        "_count": row.value,
        "_delta": row.value,
        "_rows": row.n_rows,
        "_note": note,
        "_min_time": low,
        "_max_time": high,
    }


class Silent(AssertionError):
    """The judge said the wrong thing."""


@dataclass
class Handle:
    judge: Judge
    # What is looked into at each look.
    strange: Strange | None = None

    def __post_init__(self) -> None:
        self.judge.strange = self.strange

    def copied(self) -> Handle:
        return Handle(self.judge.copied(), None if self.strange is None else self.strange.copied())

    def look_into(self, table: Table) -> None:
        """Look into all strange files: what is refused then is wrong, and what is wrong is refused."""
        self.judge.take(table.steps(self.judge.version))
        if self.judge.look(table.evidence).open or table.world.has_vectors():
            return
        assert self.strange is not None
        live = table.live(table.world.newest)
        self.strange.look(table.form, live, table.evidence)
        found, world = self.strange.open(table.form, live, table.evidence), table.world
        if bool(found) != world.now.harmful and not (world.blurred and not found):
            raise Silent(f"version={world.newest} harmful={world.now.harmful}, looked {found}\n" + "\n".join(world.log))

    def clear(self, table: Table) -> int | None:
        """Return what a commit of this handle says, and say what it has not looked into."""
        if self.strange is None:
            return self.judge.clear
        live = table.live(self.judge.version)
        if self.strange.open(table.form, live, table.evidence):
            return None
        table.world.unlooked = self.strange.unlooked(self.judge.clear, live)
        return self.judge.clear

    def look(self, table: Table, *, only_entries: bool = False) -> bool:
        """Look at all entries, and compare what is found with what the table knows; return whether it is whole."""
        world = table.world
        self.judge.take(table.steps(self.judge.version))
        found = self.judge.look(table.evidence).open
        now, log = world.now, "\n".join(world.log)
        versions = [entry.version for entry in found]
        if self.strange is not None:
            # What was swapped in silence is found by who looks into the files.
            if not found and not only_entries:
                self.look_into(table)
            elif found and not now.harmful:
                raise Silent(f"version={world.newest}, found {found}\n{log}")
            return not found and not self.strange.open(table.form, table.live(world.newest), table.evidence)
        if bool(found) != now.harmful:
            raise Silent(f"version={world.newest} harmful={now.harmful}, found {found}\n{log}")
        wrong = [version for version in versions if not world.versions[version].suspect]
        if wrong or not world.culprits() <= set(versions):
            raise Silent(f"version={world.newest} by {sorted(world.culprits())}, found {found}\n{log}")
        if self.judge.version != world.newest:
            raise Silent(f"version={world.newest}, judged {self.judge.version}")
        back = {entry.restore_to for entry in found} - {None}
        before = world.versions[: world.newest]
        if any(before[version].harmful for version in back if version is not None):
            raise Silent(f"version={world.newest}, back to {back}\n{log}")
        newest = {version for version, at in enumerate(before) if not at.harmful}
        if found and self.judge._remembered > world.newest and back != {max(newest)}:
            raise Silent(f"version={world.newest}, back to {back}, not to {max(newest)}\n{log}")
        return not found


def run(seed: int, n_steps: int = 30, judge: type[Judge] = Judge, looks: type[Strange] | None = None) -> World:
    """Draw one history: four handles that look when they like, and others' work."""
    changes = CHANGES if looks is None else (*CHANGES, *["swap"] * len(CHANGES))
    draw = random.Random(seed)
    world = World(draw, draw.choice(("stream", "collection", "stream")))
    table = Table(world)
    calm = draw.random() < 0.3
    remembered = draw.choice((3, 10, 1000))
    form = table.form

    def fresh() -> Handle:
        if draw.random() < 0.5:
            since = judge.since_newest_mark(world.newest, 0, table.step)
            opened = judge.opened(form, since, table.evidence, remembered=remembered)
            assert isinstance(opened, judge)
            if looks is None:
                return Handle(opened)
            strange = looks()
            strange.begin(since, opened.version)
            return Handle(opened, strange)
        found = judge.whole_at(form, 0, table.files(0), remembered=remembered)
        found.take(table.steps(0))
        return Handle(found, None if looks is None else looks())

    handles = [fresh() for _ in range(4)]
    for _ in range(n_steps):
        turn = draw.random()
        handle = draw.choice(handles)
        if turn < 0.25:
            world.append(handle.clear(table))
        elif turn < 0.5:
            # What excludes others is on top of the newest version, which its writer has judged.
            whole = handle.look(table)
            if not world.has_vectors():
                # While messages are open, since may move, but nothing is rewritten.
                kinds = {kind for kind, _ in world.now.harm}
                work = draw.choice(OURS) if whole else "move_since" if kinds == {"message"} else ""
                if work:
                    getattr(world, work)(handle.clear(table))
        elif turn < 0.7:
            getattr(world, draw.choice(MAINTENANCE))()
        elif turn < 0.85:
            if not calm:
                getattr(world, draw.choice(changes))()
        elif turn < 0.92:
            world.heal()
        else:
            place = handles.index(handle)
            # The copy and what it was made of go different ways.
            handles[place - 1] = handle.copied() if draw.random() < 0.5 else fresh()
        for each in handles:
            if draw.random() < 0.3:
                each.look(table, only_entries=looks is not None and draw.random() < 0.6)
    for each in handles:
        each.look(table)
    # What was refused, each accepts by the same token, however its looks were cut.
    tokens = {each.judge.look(table.evidence).state for each in handles}
    if len(tokens) > 1:
        raise Silent(f"version={world.newest}, tokens {tokens}\n" + "\n".join(world.log))
    world.heal()
    for each in (*handles, fresh()):
        each.look(table)
    return world


@pytest.mark.parametrize("first", range(0, 2000, 100) if long_lane() else [0])
def test_harm_is_found_and_nothing_else(first: int) -> None:
    for seed in range(first, first + (100 if long_lane() else 40)):
        try:
            run(seed)
        except Silent as error:
            msg = f"seed={seed}: {error}"
            raise AssertionError(msg) from error


@pytest.mark.parametrize("first", range(0, 2000, 100) if long_lane() else [0])
def test_what_is_swapped_in_silence_is_found_and_nothing_else(first: int) -> None:
    for seed in range(first, first + (100 if long_lane() else 40)):
        try:
            run(seed, looks=Strange)
        except Silent as error:
            msg = f"seed={seed}: {error}"
            raise AssertionError(msg) from error


@dataclass(frozen=True)
class Mutant:
    """A change of the judge, and the first seed whose history shows that it is wrong."""

    what: str
    before: str
    after: str
    seed: int

    def __repr__(self) -> str:
        return self.what

    def judge(self) -> type[Judge]:
        found: type[Judge] = self._made_of(product).Judge
        return found

    def strange(self) -> type[Strange]:
        found: type[Strange] = self._made_of(looking).Strange
        return found

    def _made_of(self, product: ModuleType) -> ModuleType:
        assert product.__file__ is not None
        source = Path(product.__file__).read_text(encoding="utf-8")
        assert source.count(self.before) == 1, f"{self.before!r} is there {source.count(self.before)} times"
        module = ModuleType("spark_timely.log.machine.mutant")
        sys.modules[module.__name__] = module  # where dataclasses look for what annotations mean
        try:
            exec(compile(source.replace(self.before, self.after), "mutant", "exec"), module.__dict__)
        finally:
            del sys.modules[module.__name__]
        return module


MUTANTS = [
    Mutant("ours is not known", "if entry.ours:\n            difference", "if False:\n            difference", 0),
    Mutant("ours vouches for all that came before", "if rewritten and _judged(step) == step.version - 1", "if True", 0),
    Mutant(
        "since that we move on two files of others is theirs", 'if event in ("since", "retain"):', "if False:", 1737
    ),
    Mutant("ours never vouches", "if rewritten and _judged(step) == step.version - 1", "if False", 71),
    Mutant(
        "dataChange=false is maintenance",
        "return out is not None and out == self._sum",
        "return True or out == self._sum",
        19,
    ),
    Mutant("as many rows are maintenance", "        if move.changes_data:\n            return False\n", "", 0),
    Mutant(
        "maintenance is open", "return out is not None and out == self._sum", "return False and out == self._sum", 0
    ),
    Mutant(
        "maintenance may put in less",
        "out is not None and out == self._sum_of_rows(move.into, new, evidence)",
        "out is not None and out >= (self._sum_of_rows(move.into, new, evidence) or 0)",
        31,
    ),
    Mutant(
        "maintenance may put in more",
        "out is not None and out == self._sum_of_rows(move.into, new, evidence)",
        "out is not None and out <= (self._sum_of_rows(move.into, new, evidence) or 0)",
        19,
    ),
    Mutant(
        "maintenance is judged for all kinds together", "if move.changes_data:", "if move.changes_data and False:", 0
    ),
    Mutant(
        "what is live no more counts as taken out",
        "if key != _key(removed.path, removed.vector):\n                key = None",
        "if key is None and removed.path in self._known:\n                key = removed.path",
        1,
    ),
    Mutant("maintenance of what differs settles it", "if kept and not move.out & difference.extra:", "if kept:", 35),
    Mutant("statistics that come again are a new file", "if before == key:", "if False:", 16),
    Mutant("masked rows count", "return rows if rows < 0 else rows - known.masked", "return rows", 53),
    Mutant("a vector is no other file", 'return f"{path}{_MASKED_BY}{vector}" if vector else path', "return path", 7),
    Mutant(
        "unknown numbers are none",
        "            if rows < 0:\n                table = evidence",
        "            if False:\n                table = evidence",
        88,
    ),
    Mutant("RESTORE is any other change", 'elif entry.operation == "RESTORE":', "elif False:", 0),
    Mutant(
        "RESTORE heals whatever it goes back to",
        "return replace(found, suspects=suspects) if found else NOTHING",
        "return NOTHING",
        31,
    ),
    Mutant(
        "RESTORE changes nothing of what is open",
        "return replace(found, suspects=suspects) if found else NOTHING",
        "return self._difference",
        0,
    ),
    Mutant(
        "RESTORE is judged by what is remembered alone",
        "found = self._from_before(wanted, mark, evidence)",
        "found = None",
        766,
    ),
    Mutant(
        "RESTORE to what is not remembered heals",
        "found = self._from_before(wanted, mark, evidence)",
        "found = NOTHING",
        574,
    ),
    Mutant(
        "dead letters are open",
        '_JUDGED_EVENTS: Final = ("message", "progress"',
        '_JUDGED_EVENTS: Final = ("message", "dead", "progress"',
        9,
    ),
    Mutant("messages are not judged", "if event not in _JUDGED_EVENTS or", "if event in ('message', 'dead') or", 0),
    Mutant("progress is not judged", "if event not in _JUDGED_EVENTS or", "if event in ('progress', 'dead') or", 0),
    Mutant("since is not judged", "if event not in _JUDGED_EVENTS or", "if event in ('since', 'dead') or", 0),
    Mutant("retainers are not judged", "if event not in _JUDGED_EVENTS or", "if event in ('retain', 'dead') or", 3),
    Mutant(
        "progress is judged by its files",
        "return wanted == found",
        "return False",
        1,
    ),
    Mutant(
        "progress may be missing",
        "return wanted == found",
        "return wanted >= found",
        0,
    ),
    Mutant(
        "progress may be more",
        "return wanted == found",
        "return wanted <= found",
        24,
    ),
    Mutant("progress before a base counts", "if row.seq < base:", "if False:", 58),
    Mutant(
        "a base commit is another than the commit that it was",
        "if row.seq == base and row.note is not None:",
        "if False:",
        15,
    ),
    Mutant(
        "progress that did not change is not looked at",
        "before, after = (_progress_rows([*tables, *others], streams)",
        "before, after = (_progress_rows([*tables], streams)",
        1,
    ),
    Mutant("all rows of since count", "frozenset(row for row in part if row[1] == seq)", "frozenset(part)", 76),
    Mutant("since alone says its state", '*(parts["retain"] if event == "since" else ())', "", 8),
    Mutant(
        "what may be forgotten is open",
        '        if self.form.kind != "stream":\n            return False',
        "        return False",
        8,
    ),
    Mutant(
        "a collection forgets as a stream does",
        '        if self.form.kind != "stream":\n            return False\n',
        "",
        199,
    ),
    Mutant("a file that reaches to both sides is open", "if not (mixed or several) or stay", "if True or stay", 8),
    Mutant(
        "a file that reaches to both sides is settled",
        "for keys in read]\n        return kept[0] is not None",
        "for keys in read]\n        return True or kept[0] is not None",
        4,
    ),
    Mutant(
        "since is believed whoever put it", 'keys = self._would_be_live("since")', 'keys = self._are_live("since")', 3
    ),
    Mutant("what is settled later stays open", "bool(difference and touched)", "False", 90),
    Mutant(
        "judged at each entry",
        "            self._waiting.pop(0)\n",
        "            self._waiting.pop(0)\n            self._weigh(evidence)\n            if self._open: break\n",
        0,
    ),
    Mutant(
        "a cold judge begins where it opens",
        "while at > begin:  # back to the newest mark",
        "begin = version\n        while at > begin:",
        3,
    ),
    Mutant(
        "a cold judge believes each mark by one more",
        "begin = max(begin, _judged(found))",
        "begin = max(begin, _judged(found) + 1 if _judged(found) >= 0 else begin)",
        3,
    ),
    Mutant("nothing is open is said although something is", "if not self._open and not self._n_masked:", "if True:", 3),
    Mutant(
        "the last of several is named alone",
        "for suspect in _involved(difference)\n",
        "for suspect in _involved(difference)[-1:]\n",
        0,
    ),
    Mutant(
        "who changed what another changed is not named",
        "files.update(*(each.touched for each in more))",
        "return found + more",
        243,
    ),
    Mutant("what became of a change is lost", "if out & self.touched else self", "if False else self", 119),
    Mutant(
        "several are weighed together",
        "apart = self._is_open_in_the_end(evidence) if apart is None else apart",
        "apart = False",
        30,
    ),
    Mutant(
        "tokens are of what was looked at together",
        "apart = self._is_open_in_the_end(evidence) if apart is None else apart",
        "apart = False",
        102,
    ),
    Mutant(
        "what was a base commit may be none",
        "if as_base != row and as_base in known:\n                continue",
        "row = as_base",
        124,
    ),
    Mutant("a copy shares what it knows", "value if shared else value.copy()", "value", 4),
]


@functools.cache
def right(seed: int) -> None:
    """Run a history that the judge passes: only then its mutants are what a failure shows."""
    run(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=repr)
def test_mutants_of_the_judge_are_found(mutant: Mutant) -> None:
    right(mutant.seed)
    # One that loses track of the files is found by that.
    with pytest.raises((Silent, KeyError)):
        run(mutant.seed, judge=mutant.judge())


LOOK_MUTANTS = [
    Mutant(
        "as many rows are the same rows",
        "return counts.may_be(found, exactly=exactly)",
        "return int(counts.rows.sum()) == int(found.rows.sum())",
        0,
    ),
    Mutant("what may be forgotten counts", "kept = since.beyond(times)\n", "kept = np.ones(len(times), np.bool_)\n", 6),
    Mutant("statistics of rows that may be forgotten count", "counted &= above | ~may_be_above", "above |= counted", 3),
    Mutant("whoever commits vouches", "if version not in entry.unlooked:", "if True:", 16),
    Mutant("whoever was behind vouches too", "entry.judged != step.version - 1:", "entry.judged is None:", 16),
    Mutant("a mark names nothing", "frozenset() if mark is None else mark.unlooked", "set()", 231),
    Mutant(
        "whoever commits vouches for what a mark names",
        "self._named &= entry.unlooked",
        "self._named = frozenset()",
        231,
    ),
    Mutant(
        "what others made of theirs is right if that was",
        "waiting += [self._origin[path] for path in made.out if path in self._origin and path not in self._good]",
        "pass",
        7,
    ),
    Mutant("what is wrong stays so when since moves", "wrong.since != _since_files(live) and", "False and", 49),
    Mutant(
        "a state of before replaced what its entry took",
        "out if known else None,\n                known,",
        "out,\n                known,",
        77,
    ),
    Mutant(
        "commits that other files may have are missing",
        "elsewhere = _may_have(others, wanted)",
        "elsewhere = set()",
        334,
    ),
]


@pytest.mark.parametrize("mutant", LOOK_MUTANTS, ids=repr)
def test_mutants_of_the_look_are_found(mutant: Mutant) -> None:
    run(mutant.seed, looks=Strange)
    with pytest.raises((Silent, KeyError)):
        run(mutant.seed, looks=mutant.strange())


def small_world(kind: str = "stream", seed: int = 0) -> tuple[World, Table, Handle]:
    world = World(random.Random(seed), kind)
    table = Table(world)
    return world, table, Handle(Judge.whole_at(table.form, 0, table.files(0)))


def put_back_in_part(judge: type[Judge]) -> bool:
    """Delete rows of two commits, put those back that nobody may forget, and return whether the log is whole."""
    world = World(random.Random(0), "stream")
    table = Table(world)
    handle = Handle(judge.whole_at(table.form, 0, table.files(0)))
    for seq, time in ((1, 1), (2, 5)):
        rows = [world.row("message", "a", seq, time) for _ in range(2)]
        commit = world.row("progress", "a", seq, time + 1, n_rows=2, bounds=(time, time))
        paths = [world.file("message", rows, "a", seq), world.file("progress", [commit], "a", seq)]
        expected = world._expected(
            message=world.now.expected["message"] | frozenset(rows),
            progress=world.now.expected["progress"] | {commit},
        )
        world._commit("WRITE", paths, [], ours=True, judged=0, expected=expected)
    since = world.row("since", None, 0, 3)
    path = world.file("since", [since], None, 0)
    world._commit("WRITE", [path], [], ours=True, judged=0, expected=world._expected(since=frozenset({since})))
    world._commit("DELETE", [], world.live("message"), suspect=True)
    assert not handle.look(table)
    world._commit("WRITE", [world.strange_file("message", rows)], [], suspect=True)
    return handle.look(table)


def test_put_back_without_what_may_be_forgotten_is_whole() -> None:
    assert put_back_in_part(Judge)
    clause = "for each in self._difference.suspects) > "
    with pytest.raises(Silent):
        put_back_in_part(Mutant("several that change rows back are open", f"{clause}1", f"{clause}99", 0).judge())


def test_what_is_open_is_weighed_no_more_than_a_hundred_times(monkeypatch: pytest.MonkeyPatch) -> None:
    world, table, handle = small_world()
    while not world.live("message"):
        world.append(0)
    (path, *_) = world.live("message")
    for _ in range(150):
        changed = world.strange_file("message", [replace(row, value=world.number()) for row in world.rows_of(path)])
        world._commit("UPDATE", [changed], [path], suspect=True)
        path = changed
    weighed: list[int] = []
    own = Judge._weigh
    monkeypatch.setattr(Judge, "_weigh", lambda judge, evidence: (weighed.append(judge.version), own(judge, evidence)))
    assert not handle.look(table)
    assert 100 < len(weighed) < 110


def test_restore_is_judged_at_the_version_that_it_names() -> None:
    # The files are the same before a commit and after its deletion: only one of the two is a log that went back.
    world, table, handle = small_world()
    world.append(0)
    whole = world.newest
    world.append(whole)
    new = [path for path in world.now.live if path not in world.versions[whole].live]
    world._commit("DELETE", [], new, suspect=True)
    broken = world.newest
    assert not handle.look(table)
    for to in (whole, broken, whole):
        says = {"operationParameters": {"version": str(to)}}
        target = world.versions[to]
        world._commit("RESTORE", [], [], expected=target.expected, restored=target, info=says, suspect=to == broken)
        assert handle.look(table) == (to == whole)


def test_clone_that_brings_a_later_state_is_judged_by_numbers() -> None:
    world, table, handle = small_world()
    for _ in range(6):
        world.append(0)
    early, late = world.versions[2], world.newest
    whole = world.versions[late]
    world.restore(2)
    new = [path for path in whole.live if path not in early.live]
    world._commit("CLONE", new, [path for path in early.live if path not in whole.live], expected=whole.expected)
    assert handle.look(table)
    rows = next(path for path in new if path.startswith("_event=message/"))
    world._commit("CLONE", [], [rows], suspect=True)
    assert not handle.look(table)


def test_ours_that_judged_less_vouches_for_nothing() -> None:
    world, table, handle = small_world()
    for _ in range(4):
        world.append(0)
    paths = world.live("message")
    rows = [row for path in paths for row in world.rows_of(path)]
    world._commit("UPDATE", [world.strange_file("message", rows[1:])], paths, suspect=True)
    world._commit(
        "WRITE",
        [world.file("message", rows[1:], "a", 9)],
        world.live("message"),
        ours=True,
        judged=world.newest - 1,
        expected=world.now.expected,
    )
    found = handle.judge
    found.take(table.steps(0))
    assert [entry.version for entry in found.look(table.evidence).open] == [world.newest - 1]


def test_what_could_not_be_read_is_judged_later() -> None:
    world, table, handle = small_world()
    world.append(0)
    world.delete_newest()
    world.append(0)
    world.restore(0)

    def fails(path: str, vector: str, event: str) -> pa.Table:
        raise OSError(path)

    handle.judge.take(table.steps(0)[:-1])
    with pytest.raises(OSError, match="progress"):
        handle.judge.look(replace(table.evidence, rows=fails))
    assert handle.judge.clear == 0
    found = handle.judge.look(table.evidence).open
    assert [(entry.version, entry.operation) for entry in found] == [(2, "DELETE")]
    assert found[0].changes == {"progress": (1, 0)}
    assert handle.look(table)


def test_a_gap_is_refused_and_an_entry_is_taken_once() -> None:
    world, table, handle = small_world()
    for _ in range(3):
        world.append(0)
    with pytest.raises(ValueError, match="entry of version=2 behind version=0"):
        handle.judge.take(table.steps(1))
    handle.judge.take(table.steps(0))
    handle.judge.take(table.steps(0))
    assert handle.look(table)


def test_changes_of_dead_letters_are_said() -> None:
    world, table, handle = small_world(seed=1)
    while not world.live("dead"):
        world.append(0)
    world._commit("DELETE", [], world.live("dead"), suspect=True)
    handle.judge.take(table.steps(0))
    found = handle.judge.look(table.evidence)
    assert not found.open
    assert [(entry.operation, entry.changes) for entry in found.housekeeping] == [("DELETE", {"dead": (2, 0)})]
    assert not handle.judge.look(table.evidence).housekeeping


def test_a_cold_judge_needs_each_entry_since_the_newest_mark() -> None:
    world, table, _ = small_world()
    world.append(0)
    world.delete_newest()
    world.delete_newest()
    assert world.newest == 3
    cut = Judge.since_newest_mark(world.newest, 0, lambda version: None if version == 2 else table.step(version))
    assert (cut.begin, [step.version for step in cut.steps], cut.marked) == (2, [3], False)
    course = Judge.since_newest_mark(world.newest, 0, table.step)
    assert (course.begin, [step.version for step in course.steps], course.marked) == (0, [1, 2, 3], True)
    assert isinstance(Judge.opened(table.form, course, table.evidence), Judge)
    assert Judge.opened(table.form, course, replace(table.evidence, files=lambda _: None)) is None


def restore_behind_cleaned_up_entries(seed: int, judge: type[Judge] = Judge) -> int:
    """Restore to some versions, one of them broken, where no entry leads to a mark; return how often that is open."""
    world, table, handle = small_world(("stream", "collection")[seed % 2], seed)
    broken, n_open = 0, 0
    for turn in range(24):
        assert handle.look(table)
        if turn == 12:
            since = world.since(world.now)
            # Of commits that may be forgotten in part numbers say nothing.
            low = {(row.stream, row.seq): row.bounds[0] for row in world.live_rows(world.now, "progress") if row.bounds}
            stay = {commit for commit, time in low.items() if time > since}
            later = [p for p in world.live("message") if {(r.stream, r.seq) for r in world.rows_of(p)} <= stay]
            newest = [p for p in world.live("progress") if len(world.rows_of(p)) == 1 and world.rows_of(p)[0].n_rows]
            chosen = world.random.choice((later, newest))
            if chosen:
                world._commit("DELETE", [], chosen[-1:], suspect=True)
                broken = world.newest
                world.restore(broken - 1)
        getattr(world, world.random.choice(("append", *OURS)))(handle.judge.clear)
    version = world.newest
    gone = replace(table.evidence, step=lambda _: None)
    begin = judge.whole_at(table.form, version, table.files(version))
    for to in (broken, *world.random.sample(range(version + 1), 8)):
        world.restore(to)
        world.now.actions[0]["commitInfo"]["operationParameters"] = {"version": max(to, 1)}
        found = begin.copied()
        found.take([replace(table.steps(world.newest - 1)[0], version=version + 1)])
        is_open = bool(found.look(gone).open)
        if is_open != world.now.harmful:
            raise Silent(f"version={to} of {broken}, harmful={world.now.harmful}\n" + "\n".join(world.log))
        n_open += is_open
        world.restore(version)
    return n_open


def test_restore_behind_cleaned_up_entries_is_judged_by_numbers() -> None:
    assert sum(map(restore_behind_cleaned_up_entries, range(400 if long_lane() else 8)))


NUMBERS_MUTANTS = [
    Mutant(
        "what no entry explains is whole",
        "return self._is_whole({**self._known, **new}, live, evidence)",
        "return True",
        0,
    ),
    Mutant(
        "what no entry explains is open",
        "return self._is_whole({**self._known, **new}, live, evidence)",
        "return False",
        0,
    ),
    Mutant("commits that may be forgotten count", "found[not (stay or not has_bounds)]", "found[False]", 4),
    Mutant(
        "messages without progress are no loss",
        "beyond[stream] = max(seq, beyond.get(stream, seq))",
        "pass",
        1,
    ),
    Mutant(
        "messages may be missing",
        "differing |= {commit: (n_rows, 0) for",
        "_ = {commit: (n_rows, 0) for",
        9,
    ),
]


@pytest.mark.parametrize("mutant", NUMBERS_MUTANTS, ids=repr)
def test_mutants_of_the_numbers_are_found(mutant: Mutant) -> None:
    restore_behind_cleaned_up_entries(mutant.seed)
    with pytest.raises(Silent):
        restore_behind_cleaned_up_entries(mutant.seed, mutant.judge())
