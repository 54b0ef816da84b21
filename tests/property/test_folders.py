"""An instance whose command log is lost, goes back or breaks off deletes nothing but what its history dropped.

A story is a random history of an instance without Spark, beside folders of others in its own. What is judged: a
folder is gone only if the history on the disk dropped it, or somebody named it; at the end nothing is left of what was
dropped; a start is refused if, and only if, the texts of the command log and the logs' own notes say so (`doubts`,
which knows nothing of the library but how to open a log); and what is there gives what its query gives. `MUTANTS` are
wrong designs, each of which a story has to find.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import pytest

from spark_timely.compute.command_log import CommandLog, Judgement
from spark_timely.compute.drive import driver as drivers
from spark_timely.compute.drive import folders
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.recovery import Consent
from spark_timely.compute.ledger import Ledger, Mark
from spark_timely.errors import InvalidUsageError, OwnershipError, RolledBackError, TimelyError
from spark_timely.log.log import create_log, forget_logs, open_log
from spark_timely.log.store import delta
from spark_timely.log.store.storage import FileStorage
from tests.faults.harness import long_lane, tell
from tests.unit.compute.instances import SCHEMA, append, orders, runtime

Patch = pytest.MonkeyPatch


class Killed(BaseException):
    """The process has ended."""


class Process:
    """What ends at one of its writes, and writes nothing from then on."""

    def __init__(self, directory: str, patch: Patch) -> None:
        self.directory, self.left, self.dead = directory, -1, False
        self.gone: set[threading.Thread] = set()  # of processes before this one
        self.before_rename: Callable[[str], None] = lambda _: None
        for kind, name in ((FileStorage, "put"), (FileStorage, "write")):
            patch.setattr(kind, name, self.counted(getattr(kind, name), lambda storage, *_, **__: storage.uri))
        patch.setattr(delta, "create_table_with_add_actions", self.counted(delta.create_table_with_add_actions, _first))
        patch.setattr(folders, "os", _Os(self))
        patch.setattr(folders, "shutil", _Shutil(self))

    def counted(self, inner: Callable[..., Any], place: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if not str(place(*args, **more)).startswith(self.directory):
                return inner(*args, **more)
            self.check()
            found = inner(*args, **more)
            self.check()
            return found

        return call

    def check(self) -> None:
        if self.left == 0:
            self.dead = True
        if self.dead or threading.current_thread() in self.gone:
            raise Killed
        self.left -= 1

    @contextmanager
    def ends_after(self, n_writes: int) -> Iterator[None]:
        """Let what is done here end the process at a write, or not."""
        self.left = n_writes
        try:
            yield
        except Killed:
            pass
        finally:
            self.left = -1


def _first(path: object, *_: object, **__: object) -> str:
    return str(path)


class _Os:
    """What deletes and renames, one write each."""

    def __init__(self, process: Process) -> None:
        self._process = process
        for name in ("unlink", "rmdir"):
            setattr(self, name, process.counted(getattr(os, name), _first))

    def rename(self, path: str, to: str) -> None:
        self._process.before_rename(path)
        self._process.counted(os.rename, _first)(path, to)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _Shutil:
    def __init__(self, process: Process) -> None:
        self._process = process

    def rmtree(self, path: str) -> None:
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                self._process.counted(os.unlink, _first)(f"{folder}/{name}")
        shutil.rmtree(path)


class Manual(Handle):
    """A handle that takes its turns when it is told to."""

    def _run(self) -> None:
        return

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            _, responses = self._driver.turn()
            self._take(responses)

    def _wait(self, found: Callable[[], bool], timeout_s: float | None) -> bool:
        for _ in range(int((timeout_s or 0) * 200) + 1):
            if found():
                return True
            self.turn()
            self._driver.wake.wait(0.005)
            self._driver.wake.clear()
        return found()


@dataclass
class History:
    """What the command log on the disk says."""

    alive: dict[str, str] = field(default_factory=dict)  # folder, or path, by id
    reads: dict[str, str | None] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)  # by somebody, to be deleted


@dataclass
class Backup:
    history: History
    version: int
    path: Path


class Story:
    def __init__(self, folder: Path, seed: int, patch: Patch) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.directory = folder / "instance"
        self.process = Process(str(self.directory), patch)
        self.log = orders(folder / "orders", (1, 1, 1, 10), upper=2)
        self.totals = Counter({1: 1})
        self.upper = 2
        self.n_made = 0
        self.now = History()
        self.backups: list[Backup] = []
        self.n_backups = self.n_foreign = 0
        self.instance_id: str | None = None
        self.protected: dict[str, object] = {}  # what others have in the folder, as it was
        self.outside = folder / "outside"
        self.outside.mkdir()
        self.broken: set[str] = set()  # collections that need not run
        self.batches: list[object] = []
        self.unsure: set[str] = set()  # may be dropped: the process ended meanwhile
        self.seen: set[str] = set()
        self.instance: Manual | None = self.open()

    # Handles -------------------------------------------------------------------------------------

    def open(self, **options: Any) -> Manual:
        forget_logs()
        self.process.dead = False
        made = Manual(str(self.directory), runtime(), **options)
        self.instance_id = made._driver.state.commands.instance
        return made

    def stop(self, *, clean: bool) -> None:
        """End the process, in order or by a kill."""
        instance, self.instance = self.instance, None
        self.batches.clear()
        if instance is None:
            return
        if not clean:
            self.process.dead = True
        instance._driver.worker.threads.shutdown(wait=True)
        with suppress(Killed):
            instance.close()
        if not clean:  # what follows a subscription lets its retainer go once nobody has it any more
            self.process.gone |= {each for each in threading.enumerate() if each.name == "spark_timely-subscribe"}
        self.check()

    @property
    def collections(self) -> Path:
        return self.directory / "collections"

    @property
    def commands(self) -> Path:
        return self.directory / "commands"

    # Judging -------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        return {_named(name) for name in self.entries()}

    def entries(self) -> list[str]:
        return os.listdir(self.collections) if self.collections.exists() else []

    def check(self) -> None:
        """Nothing is gone that the history did not drop; what others have is as it was."""
        there = self.names()
        gone = self.seen - there - {_named(name) for name in self.now.dropped | self.now.named} - self.unsure
        assert not gone, f"{gone} was deleted"
        for name, was in self.protected.items():
            assert tree(self.collections / name) == was, f"{name} is not as it was"
        assert (self.outside / "mine.txt").read_text() == "mine" if (self.outside / "mine.txt").exists() else True
        self.seen = there

    def texts(self) -> list[str]:
        return [text for _, text in CommandLog.at(str(self.commands), create=False).rows()]

    def doubts(self) -> dict[str, int | None]:
        """Return what a start has to ask about: ids with their epochs, and folders; from texts and notes alone."""
        log = open_log(self.commands)
        (note,) = [state.note.output for state in log.core.ends().values() if state.note.output is not None] or [None]
        holder = None if note is None else note.fence
        texts = self.texts()
        here = {where: id_ for id_, where in self.now.alive.items()}
        found: dict[str, int | None] = {}
        places = {name: self.collections / name for name in self.entries()}
        places |= {where: Path(where) for where in here if "/" in where}
        for name, place in places.items():
            fence = fence_at(place)
            if fence is None or fence.instance != log.core.log_id:
                continue
            rows = rows_about(name, texts)
            if any('"left"' in text for text in rows):
                continue
            newer = holder is None or (fence != holder and fence.epoch >= holder.epoch)
            if name in here:
                if newer:
                    found[here[name]] = fence.epoch
            elif newer or not rows:
                found[name] = None
        return found

    # Steps ---------------------------------------------------------------------------------------

    def grow(self) -> None:
        key = self.rng.randint(1, 3)
        append(self.log, (self.upper, 1, key, 1), upper=self.upper + 1)
        self.totals[key] += 1
        self.upper += 1

    def make(self) -> None:
        assert self.instance is not None
        id_ = f"c{self.n_made}"
        self.n_made += 1
        readable = [each for each in self.now.alive if each not in self.broken]
        source = self.rng.choice(readable) if readable and self.rng.random() < 0.3 else None
        query = (
            "SELECT k, count(*) AS n FROM o GROUP BY k" if source is None else f"SELECT k, n FROM {source} WHERE n > 0"
        )
        imports = {"o": self.log.path} if source is None else {}
        if self.rng.random() < 0.75:
            self.instance.index(id_, query, imports=imports, key="k")
        else:
            self.instance.maintain(id_, query, str(self.folder / f"out-{id_}"), imports=imports)
        path = self.instance._driver.state.path_of(id_)
        assert path is not None
        self.now.alive[id_] = os.path.basename(path) if "/collections/" in path else path
        self.now.reads[id_] = source

    def drop(self) -> None:
        assert self.instance is not None
        free = [id_ for id_ in self.now.alive if id_ not in self.now.reads.values()]
        if free:
            id_ = self.rng.choice(free)
            self.unsure.add(self.now.alive[id_])
            self.instance.drop(id_)
            self.has_dropped(id_)

    def has_dropped(self, id_: str) -> None:
        where = self.now.alive.pop(id_)
        self.now.reads.pop(id_)
        self.broken.discard(id_)
        if (self.collections / where).is_symlink():
            self.protect({where})  # nobody follows a link to delete
        if where not in self.protected:
            self.now.dropped.add(where)
        self.unsure.discard(where)

    def subscribe(self) -> None:
        assert self.instance is not None
        before = self.names()
        self.unsure |= {"passing"}
        query = "SELECT k, count(*) AS n FROM o WHERE v > 0 GROUP BY k"
        try:
            self.batches.append(self.instance.subscribe(query, imports={"o": self.log.path}))
        finally:
            self.now.dropped |= self.names() - before  # it ends with the process, however that ends

    def end_subscribe(self) -> None:
        if self.batches:
            self.batches.pop().close()  # type: ignore[attr-defined]

    def turns(self) -> None:
        assert self.instance is not None
        self.instance.turn(4)

    def kill(self) -> None:
        """Do something, and end at one of its writes."""
        act = self.rng.choice([self.make, self.drop, self.subscribe, self.end_subscribe, self.turns, self.drop])
        with self.process.ends_after(self.rng.randrange(12)):
            act()
            self.turns()
        if self.process.dead:
            self.stop(clean=False)
            self.start()

    def swap(self) -> None:
        """Put another log in the place of a folder that is dropped, between the look and the deletion."""
        taken: list[str] = []

        def before(path: str) -> None:
            name = os.path.basename(path)
            if not taken and name in self.now.dropped and os.path.isdir(path):
                shutil.rmtree(path)
                create_log(path, SCHEMA, minimum=(0,)).writer(owner="me").advance(7)
                self.now.dropped.discard(name)
                self.protected[name] = tree(Path(path))
                taken.append(name)

        self.process.before_rename = before
        try:
            self.drop()
            self.turns()
        finally:
            self.process.before_rename = lambda _: None

    def foreign(self) -> None:
        """Put something of somebody else's beside the collections."""
        self.collections.mkdir(exist_ok=True)
        self.n_foreign += 1
        n, kind = self.n_foreign, self.rng.choice(["files", "log", "link", "half", "empty", "table"])
        name = f"{kind} {n}" if self.rng.random() < 0.3 else f"{kind}-{n:012x}"
        path = self.collections / name
        if kind == "files":
            (path / "below").mkdir(parents=True)
            (path / "below" / "mine.txt").write_text("mine")
        elif kind == "log":
            create_log(path, SCHEMA, minimum=(0,)).writer(owner="me").advance(5)
        elif kind == "table":
            deltalake.write_deltalake(str(path), __import__("pyarrow").table({"v": [1]}))
        elif kind == "link":
            (self.outside / "mine.txt").write_text("mine")
            path.symlink_to(self.outside)
        elif kind == "half":
            (path / "_delta_log").mkdir(parents=True)
            (path / "_delta_log" / "_commit_ab12.json.tmp").write_bytes(b"{")
        else:
            path.mkdir()
        self.protected[name] = tree(path)

    def twin(self) -> None:
        """Copy a collection under another name."""
        there = [where for where in self.now.alive.values() if (self.collections / where).is_dir()]
        if there:
            self.n_foreign += 1
            name = f"twin-{self.n_foreign:012x}"
            shutil.copytree(self.collections / self.rng.choice(there), self.collections / name)
            self.protected[name] = tree(self.collections / name)

    def linked(self) -> None:
        """Move a collection elsewhere, with a link in its place; it stays when it is dropped."""
        there = [where for where in self.now.alive.values() if (self.collections / where).is_dir()]
        there = [where for where in there if not (self.collections / where).is_symlink()]
        if there:
            self.stop(clean=True)
            name = self.rng.choice(there)
            target = self.folder / f"disk-{name}"
            shutil.move(self.collections / name, target)
            (self.collections / name).symlink_to(target)
            self.protected[name] = ("link", str(target))
            self.start()

    def remove(self) -> None:
        assert self.instance is not None
        self.turns()  # what is dropped is let go of
        states = {row["folder"]: row["state"] for row in self.instance.folders().to_pylist()}
        used = {where for where in self.now.alive.values() if where in states}
        for name in used:
            with pytest.raises(InvalidUsageError, match="a collection has it"):
                self.instance.remove(name)
        free = sorted(self.protected.keys() & states.keys() - used)
        if free:
            name = self.rng.choice(free)
            assert states[name] in ("unknown", "left", "dropped"), (name, states[name])
            self.now.named.add(name)
            del self.protected[name]
            self.instance.remove(name)

    # Starts --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start; where that has to be refused it is, and somebody says what becomes of each."""
        lost = not self.commands.exists()
        if lost:
            wrote = {name for name in self.entries() if fence_at(self.collections / name) is not None}
            if wrote:
                with pytest.raises(RolledBackError, match="no command log"):
                    self.open()
                assert not self.commands.exists()
            self.instance = self.open(leaves=["*"] if wrote else [])
            self.now = History()
            self.unsure.clear()
            self.protect(set(self.entries()))
            return
        doubts = self.doubts()
        if not doubts:
            self.instance = self.open()
            self.settle()
            return
        version = open_log(self.commands).core.version
        with pytest.raises(RolledBackError, match="went back"):
            self.open()
        assert open_log(self.commands).core.version == version, "a start that is refused has written"
        ids = [id_ for id_ in doubts if id_ in self.now.alive]
        left = {id_ for id_ in ids if self.rng.random() < 0.4}
        while more := {id_ for id_, source in self.now.reads.items() if source in left} - left:
            left |= more
        adopts = {id_: epoch for id_, epoch in doubts.items() if epoch is not None and id_ not in left}
        for id_ in adopts:  # of another start it is no consent
            with pytest.raises(RolledBackError):
                self.open(adopts={**adopts, id_: 1000}, leaves=[*left, *(doubts.keys() - adopts.keys())])
        leaves = [*left, *(doubts.keys() - adopts.keys())]
        with self.process.ends_after(self.rng.choice([0, 1, 2, 3, 99])):
            self.instance = self.open(adopts=adopts, leaves=leaves)
        if self.process.dead:
            self.instance = None
            again = self.doubts()
            assert not again or again == doubts, "a consent was carried out by half"
            self.instance = self.open(**({"adopts": adopts, "leaves": leaves} if again else {}))
        for id_ in left:
            where = self.now.alive.pop(id_)
            self.now.reads.pop(id_)
            if "/" not in where and (self.collections / where).exists():
                self.protect({where})
        self.protect({name for name in doubts if name in self.entries()})
        self.settle()

    def protect(self, names: set[str]) -> None:
        for name in names:
            self.protected.setdefault(name, tree(self.collections / name))
            self.now.dropped.discard(name)
            self.now.named.discard(name)

    def settle(self) -> None:
        """Know what became of what a process did when it ended."""
        assert self.instance is not None
        exports = self.instance._driver.state.exports()
        for id_ in [id_ for id_ in self.now.alive if id_ not in exports]:
            assert self.now.alive[id_] in self.unsure, f"{id_} is not known any more"
            self.has_dropped(id_)
        for id_ in exports.keys() - self.now.alive.keys():
            path = self.instance._driver.state.path_of(id_)
            assert path is not None
            self.now.alive[id_] = os.path.basename(path) if "/collections/" in path else path
            source = next(
                (
                    each.dataflow.own_imports[0]
                    for each in self.instance._driver.state.runs()
                    if id_ in each.dataflow.export_ids and each.dataflow.own_imports
                ),
                None,
            )
            self.now.reads[id_] = source
        self.unsure.clear()

    def restart(self) -> None:
        self.stop(clean=self.rng.random() < 0.5)
        self.start()

    def replace(self) -> None:
        """Start while another one runs: that one ends, and deletes nothing any more."""
        old, self.instance = self.instance, None
        assert old is not None
        self.batches.clear()
        self.start()
        with pytest.raises(OwnershipError):
            old.turn(3)
        old._driver.worker.threads.shutdown(wait=True)
        old.close()

    def back_up(self) -> None:
        path = self.folder / f"backup{self.n_backups}"
        self.n_backups += 1
        shutil.copytree(self.commands, path)
        self.backups.append(Backup(deepcopy(self.now), open_log(self.commands).core.version, path))

    def lose(self) -> None:
        self.back_up()
        self.stop(clean=self.rng.random() < 0.5)
        shutil.rmtree(self.commands)
        if self.rng.random() < 0.5:
            self.put_back(self.backups[-1])
        else:
            self.backups.clear()
        self.start()

    def go_back(self) -> None:
        """Put an older command log back, by a copy or by RESTORE."""
        if not self.backups:
            return
        backup = self.rng.choice(self.backups)
        self.stop(clean=self.rng.random() < 0.5)
        entry = f"_delta_log/{backup.version:020d}.json"
        there, then = (folder / entry for folder in (self.commands, backup.path))
        is_version = there.exists() and then.exists() and there.read_bytes() == then.read_bytes()
        if self.rng.random() < 0.3 and is_version:
            with suppress(deltalake.exceptions.DeltaError):
                deltalake.DeltaTable(str(self.commands)).restore(backup.version)
                self.now = deepcopy(backup.history)
                self.has_gone_back()
                self.start()
                return
        shutil.rmtree(self.commands)
        self.put_back(backup)
        self.start()

    def put_back(self, backup: Backup) -> None:
        shutil.copytree(backup.path, self.commands)
        self.now = deepcopy(backup.history)
        self.has_gone_back()

    def has_gone_back(self) -> None:
        self.unsure.clear()
        # What this history never heard of stays.
        texts = self.texts()
        about = {name: rows_about(name, texts) for name in self.entries()}
        self.protect({name for name, rows in about.items() if not rows or any('"left"' in text for text in rows)})
        # What was left by a later history is this one's; what is another's by now is not.
        for id_, where in self.now.alive.items():
            fence = fence_at(self.collections / where)
            if where in self.protected and fence is not None and fence.instance == open_log(self.commands).core.log_id:
                del self.protected[where]
            elif where in self.protected:
                self.broken.add(id_)
        self.now.dropped -= self.protected.keys()

    def restore_output(self) -> None:
        there = [id_ for id_, where in self.now.alive.items() if (self.collections / where).is_dir()]
        if there:
            id_ = self.rng.choice(there)
            self.stop(clean=True)
            self.broken |= {id_, *(each for each, source in self.now.reads.items() if source == id_)}
            where = self.now.alive[id_]
            with suppress(deltalake.exceptions.DeltaError):
                deltalake.DeltaTable(str(self.collections / where)).restore(self.rng.randint(1, 3))
            if where in self.protected:  # another's by now: this test alone has changed it
                self.protected[where] = tree(self.collections / where)
            self.start()

    # Running -------------------------------------------------------------------------------------

    def run(self, n_steps: int) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (2, self.grow),
            (4, self.make),
            (3, self.drop),
            (3, self.subscribe),
            (2, self.end_subscribe),
            (2, self.turns),
            (4, self.kill),
            (1, self.swap),
            (3, self.foreign),
            (1, self.twin),
            (1, self.linked),
            (2, self.remove),
            (2, self.restart),
            (1, self.replace),
            (3, self.back_up),
            (1, self.lose),
            (3, self.go_back),
            (1, self.restore_output),
        ]
        self.make()
        for _ in range(n_steps):
            step = self.rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
            step()
            self.check()
        self.restart()
        self.look()
        self.stop(clean=True)
        self.start()
        self.stop(clean=True)
        left = {name for name in self.entries() if name not in self.protected}
        left -= set(self.now.alive.values())
        assert not left, f"{left} was dropped, and is there"

    def look(self) -> None:
        """What is there gives what its query gives."""
        assert self.instance is not None
        want = sorted(self.totals.items())
        for id_, source in self.now.reads.items():
            if id_ in self.broken or source in self.broken:
                continue
            self.instance.await_frontier(id_, self.upper - 1)
            found = self.instance.peek(id_, as_of=self.upper - 1)
            assert sorted(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True)) == want, id_


def _named(name: str) -> str:
    """Return what a folder was called before it was renamed to be looked at; one that was left so may be once more."""
    while name.endswith(folders.ASIDE):
        name = name.removesuffix(folders.ASIDE)
    return name


def rows_about(name: str, texts: list[str]) -> list[str]:
    """Return the rows of a command log that name a folder."""
    names = [name, name.removesuffix(".gone")]
    return [text for text in texts if any(f'{mark}{each}"' in text for each in names for mark in '"/')]


def fence_at(path: Path) -> Any:
    """Return which start of an instance a log names."""
    try:
        states = open_log(path).core.ends()
    except TimelyError:
        return None
    notes = [state.note.output for name, state in states.items() if name == "main"]
    return None if not notes or notes[0] is None else notes[0].fence


def tree(path: Path) -> object:
    """Return what is in a folder, with its contents; of a link where it leads to."""
    if path.is_symlink():
        return "link", os.readlink(path)
    return {str(each.relative_to(path)): each.is_file() and each.read_bytes() for each in sorted(path.rglob("*"))}


def tell_story(folder: Path, seed: int, n_steps: int) -> None:
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "_GONE_S", 0.0)
        patch.setattr(folders, "_AGAIN_S", 0.0)
        patch.setattr(drivers, "_UPKEEP_S", 0.0)
        before = threading.excepthook
        patch.setattr(threading, "excepthook", lambda given: given.exc_type is Killed or before(given))
        story = Story(folder, seed, patch)
        try:
            story.run(n_steps)
        except BaseException:
            tell(f"seed {seed}, {n_steps} steps")
            raise
        finally:
            story.process.dead = False
            with suppress(Exception):
                story.stop(clean=True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(2))
def test_only_what_the_history_dropped_is_deleted(tmp_path: Path, first: int) -> None:
    for seed in range(first, 200 if long_lane() else 4, 2):
        tell_story(tmp_path / str(seed), seed, 24 if long_lane() else 12)


# Wrong designs -----------------------------------------------------------------------------------


def _unknown_folders_are_swept(patch: Patch) -> None:
    inner = folders.Folders.sweep

    def sweep(self: folders.Folders, **more: Any) -> None:
        unknown = self.unknown(self._state.ledger)
        self._state.ledger = self._state.ledger.put(*(Mark(name, "asked") for name in unknown))
        inner(self, **more)

    patch.setattr(folders.Folders, "sweep", sweep)


def _older_command_log_is_taken(patch: Patch) -> None:
    patch.setattr(drivers, "judged", lambda *_: Judgement(1000))


def _drop_leaves_no_mark(patch: Patch) -> None:
    patch.setattr(folders.Folders, "marks_of", lambda *_, **__: [])


def _id_is_not_compared(patch: Patch) -> None:
    patch.setattr(folders.Removal, "_is_meant", lambda *_: True)


def _look_is_before_the_rename_alone(patch: Patch) -> None:
    inner = folders.Removal._look

    def look(self: folders.Removal, mark: Mark, path: str) -> Any:
        return ("ours", mark.log_id) if path.endswith(folders.ASIDE) else inner(self, mark, path)

    patch.setattr(folders.Removal, "_look", look)


def _links_are_followed(patch: Patch) -> None:
    inner = folders.Removal.look

    def look(self: folders.Removal, mark: Mark) -> Any:
        path = self._path(mark.folder)
        if os.path.islink(path):
            shutil.rmtree(os.path.realpath(path), ignore_errors=True)
            os.unlink(path)
        return inner(self, mark)

    patch.setattr(folders.Removal, "look", look)


def _marks_are_not_written(patch: Patch) -> None:
    patch.setattr(Ledger, "rows", lambda _: [])


def _consent_is_carried_out_later(patch: Patch) -> None:
    inner = drivers.judged

    def judged(*given: Any) -> Any:
        return Judgement(inner(*given).above)

    patch.setattr(drivers, "judged", judged)


def _any_consent_holds(patch: Patch) -> None:
    inner = drivers.judged

    def judged(place: Any, instance: str, consent: Any, *given: Any) -> Any:
        return inner(place, instance, Consent(_Any(consent.adopts), consent.leaves), *given)

    patch.setattr(drivers, "judged", judged)


class _Any(dict[str, int]):
    def get(self, name: str, default: Any = None) -> Any:
        return _Equal() if name in self else default


class _Equal:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


MUTANTS: dict[str, Callable[[Patch], None]] = {
    each.__name__.strip("_"): each
    for each in (
        _unknown_folders_are_swept,
        _older_command_log_is_taken,
        _drop_leaves_no_mark,
        _id_is_not_compared,
        _look_is_before_the_rename_alone,
        _links_are_followed,
        _marks_are_not_written,
        _consent_is_carried_out_later,
        _any_consent_holds,
    )
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_of_deletes_is_found(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(40):
        try:
            tell_story(tmp_path / str(seed), seed, 24)
        except (AssertionError, TimelyError, KeyError, OSError, pytest.fail.Exception) as error:
            tell(f"{name}: seed {seed}: {type(error).__name__}: {str(error)[:200]}")
            return
    raise AssertionError(f"nothing was found in 40 stories of {name}")
