"""Random histories of one log: commits, repetitions, copies, restores, takeovers, crashes, unclear replies.

The model is what a user believes: what Spark has acknowledged in a checkpoint is in the log, once. Whatever else
happens must be an error by name that leaves the log as it was. A history ends by the way back that errors name: a new
query that takes the stream over where the log's newest micro-batch ended; then the log has every row of the source.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely import errors
from spark_timely.log import Log, MemoryLog
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.base import MemoryStore, MemoryTable
from spark_timely.log.store.storage import MemoryStorage
from spark_timely.sink import commit as sink_commit
from spark_timely.sink import plan as sink_plan
from spark_timely.sink import rows as sink_rows
from tests.faults.unreliable import make_unreliable
from tests.unit.sink.driver import SinkDriver

LONG = bool(os.environ.get("SPARK_TIMELY_LONG"))
IN_MEMORY = int(os.environ.get("SPARK_TIMELY_HISTORIES", 10_000 if LONG else 30))
ON_DISK = 500 if LONG else 3
FIRST_SEED = int(os.environ.get("SPARK_TIMELY_SEED", "0"))
STEPS = 16
OPTIONS: list[dict[str, str]] = [
    {"frontier": "batch"},
    {"timeColumn": "t", "frontier": "bounded", "lateness": "0"},
    {"timeColumn": "t", "frontier": "hold"},
]
ROWS = pa.schema([("t", pa.int64()), ("id", pa.int64()), ("attempt", pa.int64())])

PutBack = Callable[[], None]


class Place:
    """Where logs are: opened, with replies that may be unclear; kept, put back, deleted, replaced."""

    def __init__(self) -> None:
        self.unclear: random.Random | None = None

    def find(self, path: str, options: dict[str, str] | None = None) -> Log | None:
        """Open a log as the sink does; now and then its store fails, or says so."""
        log = self.look(path)
        if log is not None and self.unclear is not None and self.unclear.random() < 0.15:
            make_unreliable(log, seed=self.unclear.randrange(2**32), happens=0.7, reports_failure=0.5)
        return log

    def look(self, path: str) -> Log | None:
        raise NotImplementedError

    def keep(self, path: str, folder: Path) -> PutBack:
        raise NotImplementedError

    def delete(self, path: str) -> None:
        raise NotImplementedError

    def create(self, path: str, schema: pa.Schema, **facts: object) -> Log:
        raise NotImplementedError

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the sink open logs here."""
        with pytest.MonkeyPatch.context() as patch:
            for function in (sink_plan.make_plan, sink_commit.commit_reports, sink_commit.delete_files):
                patch.setitem(function.__kwdefaults__, "find", self.find)
            self.install(patch)
            yield

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Do nothing more."""


class InMemory(Place):
    """Tables in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, MemoryTable] = {}
        self.files: dict[str, MemoryStorage] = {}

    def look(self, path: str) -> Log | None:
        table = self.tables.get(path)
        return None if table is None else MemoryLog(MemoryStore(table), merge_every=4)

    def create(self, path: str, schema: pa.Schema, **facts: object) -> Log:
        wanted = {name: facts[name] for name in ("times", "minimum", "kind", "streams")}
        store = MemoryLog.create(schema, **wanted).core.store  # type: ignore[arg-type]
        assert isinstance(store, MemoryStore)
        if path not in self.tables:
            made, shared = store.table, self.storage(path)
            for name in made.storage.names("_event=progress"):
                shared.write(f"_event=progress/{name}", made.storage.read(f"_event=progress/{name}"))
            made.storage = shared
            self.tables[path] = made
        found = self.find(path)
        assert found is not None
        return found

    def storage(self, path: str, options: object = None) -> MemoryStorage:
        return self.files.setdefault(path, MemoryStorage(path))

    def keep(self, path: str, folder: Path) -> PutBack:
        table = self.tables[path]
        contents = dict(table.storage._files)
        files, commits, form, table_id = dict(table.files), list(table.commits), table.form, table.table_id

        def put_back() -> None:
            other = MemoryTable(form)
            other.table_id, other.storage = table_id, self.storage(path)
            other.files, other.commits = dict(files), list(commits)
            other.storage._files.update(contents)
            self.tables[path] = other

        return put_back

    def delete(self, path: str) -> None:
        del self.tables[path]

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("spark_timely.log.log.create_log", self.create)
        for module in (sink_rows, sink_commit):
            patch.setattr(module, "open_storage", self.storage)


class OnDisk(Place):
    """Delta tables."""

    def look(self, path: str) -> Log | None:
        try:
            return open_log(path, merge_every=4)
        except errors.LogMissingError:
            return None

    def keep(self, path: str, folder: Path) -> PutBack:
        kept = folder / f"kept-{random.getrandbits(64)}"
        shutil.copytree(path, kept)

        def put_back() -> None:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(kept, path)

        return put_back

    def delete(self, path: str) -> None:
        shutil.rmtree(path)

    def create(self, path: str, schema: pa.Schema, **facts: object) -> Log:
        return create_log(path, schema, exist_ok=True, **facts)  # type: ignore[arg-type]


@dataclass
class Query:
    """A checkpoint, and where its micro-batch 0 begins."""

    driver: SinkDriver
    begins: int
    first: bool = True
    """Whether no micro-batch of it is in the log: until then nothing ties it to where the log is."""


@dataclass
class History:
    """One log, its source, and the queries that write it."""

    place: Place
    folder: Path
    rng: random.Random
    options: dict[str, str]
    source: int = 0
    queries: list[Query] = field(default_factory=list)
    kept: list[PutBack] = field(default_factory=list)
    checkpoints: list[tuple[Query, Path]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    made: int = 0

    @property
    def path(self) -> str:
        return str(self.folder / "log")

    def new_query(self, begins: int, **options: str) -> Query:
        self.made += 1
        name = f"query-{self.made}"
        query = Query(SinkDriver(self.folder, query=name, checkpoint=name, **self.options, **options), begins)
        self.queries.append(query)
        return query

    def contents(self) -> Counter[int]:
        log = self.place.look(self.path)
        return Counter() if log is None else Counter(log.messages()["id"].to_pylist())

    def run(self, query: Query, *, crash: str | None = None) -> bool:
        """Run a micro-batch; return whether Spark acknowledged it. What is acknowledged is in the log, once."""
        driver = query.driver
        batch = driver.next_batch()
        begins = query.begins if batch == 0 else end_of(driver, batch - 1)
        entry = driver.checkpoint / "offsets" / str(batch)
        end = end_of(driver, batch) if entry.exists() else self.source
        ids = list(range(begins, max(begins, end)))
        tasks = [ids[: len(ids) // 2], ids[len(ids) // 2 :]] if self.rng.random() < 0.5 else [ids]
        # What a repetition says otherwise than the first attempt never replaces or loses a row.
        attempt = self.rng.randrange(2)
        tables = [pa.table({"t": part, "id": part, "attempt": [attempt] * len(part)}, ROWS) for part in tasks]
        before = self.contents()
        try:
            driver.run(tables, crash=crash, sources=[str(end)])
        except errors.StorageError as error:
            self.say(f"{driver.query}: micro-batch {batch} unclear: {error}")
            return False
        except errors.TimelyError as error:
            self.say(f"{driver.query}: micro-batch {batch} refused: {type(error).__name__}: {error}")
            if self.place.unclear is None:
                assert self.contents() == before, "refused, and the log changed"
            return False
        self.say(f"{driver.query}: micro-batch {batch} [{begins}, {end}) {crash or ''}")
        if crash != "before commit":
            query.first = False
        if crash is None:
            held = self.contents()
            lost = [i for i in range(end) if not held[i]]
            assert not lost, f"acknowledged up to {end}, and not in the log: {lost}"
        return crash is None

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        self.source += rng.randrange(3)
        query = rng.choice(self.queries)
        what = rng.choices(list(WAYS), list(WAYS.values()))[0]
        self.say(f"-- {what} {query.driver.query}, source {self.source}")
        exists = self.place.look(self.path) is not None
        commits = sorted(int(file.name) for file in (query.driver.checkpoint / "commits").iterdir())
        if what == "run":
            self.run(query)
        elif what == "crash":
            self.run(query, crash=rng.choice(["before commit", "after commit"]))
        elif what == "forget a commit" and commits:
            (query.driver.checkpoint / "commits" / str(commits[-1])).unlink()
        elif what == "keep the checkpoint":
            self.checkpoints.append((query, self.copied(query)))
        elif what == "put the checkpoint back" and self.checkpoints:
            query, kept = rng.choice(self.checkpoints)
            shutil.rmtree(query.driver.checkpoint)
            shutil.copytree(kept, query.driver.checkpoint)
        elif what == "copy" and len(self.queries) < 6:
            self.copied(query)
            other = Query(
                SinkDriver(
                    self.folder, query=query.driver.query, checkpoint=f"copy-{self.made}", **self.options_of(query)
                ),
                query.begins,
                query.first,
            )
            self.queries.append(other)
        elif what == "keep the log" and exists:
            self.kept.append(self.place.keep(self.path, self.folder))
        elif what == "put the log back" and self.kept:
            rng.choice(self.kept)()
            self.forget_beginners()
        elif what == "delete the log" and exists:
            self.place.delete(self.path)
            self.forget_beginners()
        elif what == "take over":
            self.take_over()
        elif what == "unclear replies":
            self.place.unclear = None if self.place.unclear else random.Random(rng.randrange(2**32))
        held = self.contents()
        twice = [i for i, n in held.items() if n > 1]
        assert not twice, f"in the log more than once: {twice}"

    def forget_beginners(self) -> None:
        """Nobody starts a query at the end of a log that was changed after its end was read."""
        self.queries = [query for query in self.queries if not query.first] or self.queries[:0]
        if not self.queries:
            self.take_over()

    def options_of(self, query: Query) -> dict[str, str]:
        return {k: v for k, v in query.driver.options.items() if k not in ("path", "checkpointLocation")}

    def copied(self, query: Query) -> Path:
        self.made += 1
        place = self.folder / f"copy-{self.made}"
        shutil.copytree(query.driver.checkpoint, place)
        return place

    def take_over(self) -> Query:
        """Start a new query where the log's newest micro-batch ended, as errors say; at 0 where there is no log."""
        log = self.place.look(self.path)
        state = None if log is None else log.core.stream("main")
        batch = None if state is None else state.note.batch
        begins = int(batch.source) if batch is not None and batch.source else 0
        if log is not None and batch is None and log.messages().num_rows:
            begins = max(log.messages()["id"].to_pylist()) + 1
        query = self.new_query(begins, takeover="true")
        for _ in range(20):  # until its first micro-batch is acknowledged
            if self.run(query):
                break
        return query


def end_of(driver: SinkDriver, batch: int) -> int:
    return int((driver.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])


WAYS = {
    "run": 10,
    "crash": 3,
    "forget a commit": 2,
    "keep the checkpoint": 2,
    "put the checkpoint back": 2,
    "copy": 1,
    "keep the log": 2,
    "put the log back": 2,
    "delete the log": 1,
    "take over": 1,
    "unclear replies": 1,
}


def run_history(place: Place, folder: Path, seed: int) -> Counter[str]:
    """Run one history, and end it; return what was refused, by the name of the error."""
    rng = random.Random(seed)
    history = History(place, folder, rng, rng.choice(OPTIONS))
    with place.installed():
        history.source = rng.randrange(3)
        history.new_query(0)
        try:
            for _ in range(STEPS):
                history.step()
            place.unclear = None
            history.source += 1
            history.take_over()
            held = history.contents()
            assert held == Counter(range(history.source)), "the way back loses rows, or repeats them"
            log = place.look(history.path)
            assert log is not None
            assert log.verify().legal
        except BaseException:
            print("\n".join([f"seed {seed}, {history.options}", *history.said]))  # noqa: T201 - the history of a failure
            raise
    return Counter(line.split("refused: ")[1].split(":")[0] for line in history.said if "refused: " in line)


@pytest.mark.timeout(40_000 if LONG else 600)
@pytest.mark.parametrize(("place", "n_histories"), [(InMemory, IN_MEMORY), (OnDisk, ON_DISK)])
def test_histories_lose_nothing_in_silence(tmp_path: Path, place: type[Place], n_histories: int) -> None:
    refusals = Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + n_histories):
        folder = tmp_path / str(seed)
        folder.mkdir()
        refusals += run_history(place(), folder, seed)
        shutil.rmtree(folder)
    print(refusals)  # noqa: T201 - reported in the long lane
    assert refusals["RolledBackError"] > n_histories / 10
