"""What other programs do to a log's table, by who reads it: right, or refused by name before a wrong row is seen."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from spark_timely.answers.peek import peek
from spark_timely.answers.subscribe import subscribe
from spark_timely.cli import log_verbs
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.reader import read_split
from spark_timely.errors import ForeignChangeError, LogDamagedError, RolledBackError, TimelyError
from spark_timely.log import Log
from spark_timely.log.cut import cut
from spark_timely.log.log import create_log, open_log
from spark_timely.log.reader import frontier_at
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.faults.harness import long_lane
from tests.property.test_dataflow import runner
from tests.unit.datasource.support import make_options

SCHEMA = pa.schema([("v", pa.int64())])


# Logs -----------------------------------------------------------------------------------------------------------------


def rows_at(log: Log, *times: int) -> pa.Table:
    """Return rows at times, and one late one that becomes a dead letter."""
    rows: dict[str, Any] = {"_time": list(times), "v": [10 * time for time in times]}
    if log.kind == "collection":
        rows["_diff"] = [1] * len(times)
    return pa.table(rows)


def fill(log: Log, first: int, last: int) -> None:
    for name in ("a", "b"):
        writer = log.writer(name, owner="me", late_data="deadLetter")
        for time in range(first, last):
            writer.append(rows_at(log, max(time - 2, 0), time, time), advance_to=time + 1)


def stream(path: str) -> Log:
    log = create_log(path, SCHEMA, minimum=(0,), streams=2, merge_every=None)
    fill(log, 0, 6)
    return log


def collection(path: str) -> Log:
    log = create_log(path, SCHEMA, minimum=(0,), streams=2, kind="collection", merge_every=None)
    fill(log, 0, 6)
    return log


def forgotten(path: str) -> Log:
    log = stream(path)
    log.retain("report", [4], owner="nightly")
    log.allow_compaction([4])
    log.compact(logical=True)
    fill(log, 6, 8)
    return log


def output(path: str) -> Log:
    """Return the output of a dataflow."""
    log = stream(f"{path} in")
    flow(log.path, path)()
    return open_log(path)


LOGS: dict[str, Callable[[str], Log]] = {
    "stream": stream,
    "collection": collection,
    "forgotten": forgotten,
    "output": output,
}


# What is done to them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deed:
    """What another program does, of which kind of event it changes rows, and for which logs it is something."""

    do: Callable[[DeltaTable], object]
    changes: str = ""
    kinds: tuple[str, ...] = tuple(LOGS)


def _again(table: DeltaTable) -> None:
    """Insert copies of some rows, as whoever loads a file twice does."""
    rows = table.to_pyarrow_table(filters=[("_event", "=", "message"), ("_seq", "=", newest(table))])
    write_deltalake(table, rows, mode="append")


def newest(table: DeltaTable, event: str = "message") -> int:
    return int(max(table.to_pyarrow_table(columns=["_seq"], filters=[("_event", "=", event)])["_seq"].to_pylist()))


def _merge(table: DeltaTable) -> None:
    source = pa.table({"_time": pa.array([5], pa.int64()), "v": pa.array([1], pa.int64())})
    merged = table.merge(source, "t._event = 'message' and t._time = s._time", source_alias="s", target_alias="t")
    merged.when_matched_update({"v": "s.v"}).execute()


def _overwrite(table: DeltaTable) -> None:
    rows = table.to_pyarrow_table(filters=[("_event", "=", "message")])
    write_deltalake(table, rows.slice(1), mode="overwrite", predicate="_event = 'message'")


def _delete_and_restore(table: DeltaTable) -> None:
    before = table.version()
    table.delete("_event = 'message'")
    table.restore(before)


def _optimized(table: DeltaTable) -> None:
    table.optimize.compact()
    DeltaTable(table.table_uri).optimize.z_order(["v"])


RETAINED = ("forgotten",)
HARMFUL = {
    "delete of undelivered rows": Deed(lambda t: t.delete("_event = 'message' and _time = 5"), "message"),
    "delete of delivered rows": Deed(
        lambda t: t.delete("_event = 'message' and _time = 4 and _stream = 'a'"),
        "message",
        ("stream", "collection", "forgotten"),
    ),
    "delete of all rows": Deed(lambda t: t.delete("_event = 'message'"), "message"),
    "insert of copies": Deed(_again, "message"),
    "update of values": Deed(
        lambda t: t.update({"v": "v + 1"}, predicate="_event = 'message' and _time = 5"), "message"
    ),
    "update of times": Deed(
        lambda t: t.update({"_time": "_time - 1"}, predicate="_event = 'message' and _time = 5"), "message"
    ),
    "update of numbers": Deed(
        lambda t: t.update({"_seq": "_seq - 1"}, predicate="_event = 'message' and _time = 5"), "message"
    ),
    "update of diffs": Deed(
        lambda t: t.update({"_diff": "2"}, predicate="_event = 'message' and _time = 5"), "message", ("collection",)
    ),
    "merge": Deed(_merge, "message"),
    "overwrite": Deed(_overwrite, "message"),
    "update of progress": Deed(
        lambda t: t.update({"_time": "100"}, predicate=f"_event = 'progress' and _seq = {newest(t)} and _count > 0"),
        "progress",
    ),
    "delete of the newest progress": Deed(
        lambda t: t.delete(f"_event = 'progress' and _seq = {newest(t)}"), "progress"
    ),
    "delete of all progress": Deed(lambda t: t.delete("_event = 'progress'"), "progress"),
    "update of since": Deed(lambda t: t.update({"_time": "0"}, predicate="_event = 'since'"), "since", RETAINED),
    "delete of since": Deed(lambda t: t.delete("_event = 'since'"), "since", RETAINED),
    "delete of retainers": Deed(lambda t: t.delete("_event = 'retain'"), "retain", RETAINED),
}
HARMLESS = {
    "optimize": Deed(_optimized),
    "a checkpoint": Deed(lambda t: t.create_checkpoint()),
    "a delete and its restore": Deed(_delete_and_restore),
    "a delete of nothing": Deed(lambda t: t.delete("_event = 'message' and v = -7")),
    "a column": Deed(lambda t: t.alter.add_columns([Field("w", "string")])),
    "properties": Deed(
        lambda t: t.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 2 days"})
    ),
    "a vacuum": Deed(lambda t: t.vacuum(dry_run=False)),
    "delete of dead letters": Deed(lambda t: t.delete("_event = 'dead'")),
    "delete of what is forgotten": Deed(lambda t: t.delete("_event = 'message' and _time < 4"), "", RETAINED),
}


# Who reads them -------------------------------------------------------------------------------------------------------

Answer = Any


def contents(table: pa.Table) -> Counter[tuple[Any, ...]]:
    names = [name for name in table.schema.names if name in ("_time", "v")]
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


def as_source(log: Log, **options: Any) -> Counter[tuple[Any, ...]]:
    """Plan and read one batch as the source does."""
    chosen = make_options(**options)
    layout = layout_of(log, chosen)
    splits = ReplayPlanner(log, chosen, layout).plan_batch()
    found = [batch for split in splits for batch in read_split(split, layout, storage=log.core.storage)]
    return contents(pa.Table.from_batches(found, layout.schema))


def flow(path: str, out: str) -> Callable[[], object]:
    scope = Scope("flow")
    scope.replay(path).filter("v > 0").capture(out)

    def advance() -> object:
        engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, run="run")
        engine.advance(runner(scope.storage))
        return contents(open_log(out).messages())

    return advance


def subscribed(path: str) -> Answer:
    with subscribe(path) as batches:
        updates = next(iter(batches)).rows
        assert isinstance(updates, pa.Table)
        return contents(updates)


def frontier_of(path: str, stream: str) -> Answer:
    """Ask the command line for the frontier of one stream."""
    return log_verbs._asked_frontier(open_log(path), argparse.Namespace(stream=stream, at=None))


def handle(log: Log, _: Path) -> Callable[[], Answer]:
    return lambda: (log.refresh(), contents(log.messages()))[1]


def frontier_of_handle(log: Log, _: Path) -> Callable[[], Answer]:
    return lambda: (log.refresh(), log.frontier())[1]


def source(log: Log, _: Path) -> Callable[[], Answer]:
    planner = ReplayPlanner(open_log(log.path), make_options(), layout_of(log, make_options()))
    end = planner.latest(planner.initial())
    return lambda: planner.latest(end)


def as_cut(log: Log, _: Path) -> Callable[[], Answer]:
    made = str(cut([log]))
    return lambda: as_source(open_log(log.path), cut=made)


def dataflow(log: Log, folder: Path) -> Callable[[], Answer]:
    advance = flow(log.path, str(folder / "derived"))
    advance()
    return advance


@dataclass(frozen=True)
class Reader:
    """Who reads: made before anything is done to the log, and then asked; and of which kinds of log it can read."""

    made: Callable[[Log, Path], Callable[[], Answer]]
    kinds: tuple[str, ...] = tuple(LOGS)
    always: bool = False


READERS = {
    "live handle": Reader(handle, always=True),
    "live frontier": Reader(frontier_of_handle, always=True),
    "fresh open": Reader(lambda log, _: lambda: contents(open_log(log.path).messages()), always=True),
    "fresh frontier": Reader(lambda log, _: lambda: open_log(log.path).frontier()),
    "frontier at": Reader(lambda log, _: lambda: frontier_at(open_log(log.path).core, seq=5)),
    "verb": Reader(lambda log, _: lambda: frontier_of(log.path, next(iter(log.streams())))),
    "batch": Reader(lambda log, _: lambda: as_source(open_log(log.path))),
    "cut": Reader(as_cut),
    "subscribe": Reader(lambda log, _: lambda: subscribed(log.path), ("collection",)),
    "peek": Reader(lambda log, _: lambda: contents(peek(log.path)), ("collection",)),
    "dataflow": Reader(dataflow, ("stream", "collection", "output")),
    "source": Reader(source, always=True),
}


def in_turn(place: int, kinds: Iterable[str], deed: Deed) -> str:
    """Return at which of some kinds of log a deed and what has a place are tried together: the next deed's is another.

    Of deed, kind and reader the short lane has each two together; the long lane has all three.
    """
    both = [kind for kind in kinds if kind in deed.kinds]
    deeds = [*HARMFUL.values(), *HARMLESS.values()]
    return both[(place + deeds.index(deed)) % len(both)] if both else ""


def reads(name: str, kind: str, deed: Deed) -> bool:
    """Return whether a reader is asked where a deed is done to a kind of log."""
    reader = READERS[name]
    if kind not in reader.kinds or reader.always or long_lane():
        return kind in reader.kinds
    return kind == in_turn(list(READERS).index(name), reader.kinds, deed)


def readers(log: Log, folder: Path, kind: str, deed: Deed) -> dict[str, Callable[[], Answer]]:
    """Return who reads, made before anything is done to the log."""
    return {name: reader.made(log, folder) for name, reader in READERS.items() if reads(name, kind, deed)}


@pytest.mark.parametrize("name", READERS)
def test_each_reader_meets_each_deed_and_each_kind(name: str) -> None:
    for deeds in (HARMFUL, HARMLESS):
        met = {(kind, deed) for deed, each in deeds.items() for kind in each.kinds if reads(name, kind, each)}
        kinds = set(READERS[name].kinds)
        assert {kind for kind, _ in met} == kinds
        assert {deed for _, deed in met} == {deed for deed, each in deeds.items() if kinds & set(each.kinds)}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Each kind of log, made once."""
    found = {}
    for kind, make in LOGS.items():
        folder = tmp_path_factory.mktemp(kind)
        make(str(folder / "log"))
        found[kind] = folder, "log"
    return found


def cells(deeds: dict[str, Deed]) -> list[Any]:
    return [pytest.param(kind, name, id=f"{kind}-{name}") for name, deed in deeds.items() for kind in deed.kinds]


@pytest.fixture
def placed(originals: dict[str, tuple[Path, str]], tmp_path: Path) -> Callable[[str], Log]:
    def place(kind: str) -> Log:
        folder, _ = originals[kind]
        shutil.copytree(folder, tmp_path / kind)
        log = open_log(str(tmp_path / kind / "log"))
        log.core.merge_every = None
        return log

    return place


def refused(ask: Callable[[], Answer]) -> bool:
    """Return whether the answer is refused by name."""
    try:
        ask()
    except (ForeignChangeError, RolledBackError, LogDamagedError):
        return True  # what is wrong besides is said by whoever finds it first
    return False


@pytest.mark.parametrize(("kind", "name"), cells(HARMFUL))
def test_what_others_changed_is_refused_until_it_is_restored(
    placed: Callable[[str], Log], tmp_path: Path, kind: str, name: str
) -> None:
    log, deed = placed(kind), HARMFUL[name]
    asked = readers(log, tmp_path, kind, deed)
    before = {who: ask() for who, ask in asked.items()}
    whole = open_log(log.path).core.version  # some have registered
    deed.do(DeltaTable(log.path))
    assert DeltaTable(log.path).version() > whole
    wrong = [who for who, ask in asked.items() if not refused(ask)]
    assert not wrong, f"{wrong} say nothing of it"
    with pytest.raises(ForeignChangeError, match=rf"RESTORE TABLE … TO VERSION AS OF {whole};"):
        open_log(log.path).messages()
    DeltaTable(log.path).restore(whole)
    for who, ask in asked.items():
        assert ask() == before[who], who
    assert not open_log(log.path).verify().problems


@pytest.mark.parametrize(("kind", "name"), cells(HARMLESS))
def test_maintenance_by_others_changes_no_answer(
    placed: Callable[[str], Log], tmp_path: Path, kind: str, name: str
) -> None:
    log, deed = placed(kind), HARMLESS[name]
    asked = readers(log, tmp_path, kind, deed)
    before = {who: ask() for who, ask in asked.items()}
    deed.do(DeltaTable(log.path))
    for who, ask in asked.items():
        assert ask() == before[who], who
    if kind != "output":
        fill(log, 8, 9)
        fresh = open_log(log.path)
        assert contents(fresh.messages()) == contents(log.messages())
        assert not fresh.verify().problems


WRITTEN = [
    cell
    for cell in cells(HARMFUL)
    if cell.values[0] in ("stream", "collection") and HARMFUL[cell.values[1]].changes in ("message", "progress")
]


@pytest.mark.parametrize(("kind", "name"), WRITTEN)
def test_a_writer_continues_whose_progress_is_untouched(
    placed: Callable[[str], Log], kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    deed, log = HARMFUL[name], placed(kind)
    live, whole = log.writer("a", owner="me"), log.core.version
    deed.do(DeltaTable(log.path))
    for writer in (lambda: live, lambda: open_log(log.path).writer("a", owner="me")):
        if deed.changes == "progress":
            with pytest.raises((ForeignChangeError, RolledBackError, LogDamagedError)):
                writer().append(rows_at(log, 8), advance_to=9)
        else:
            caplog.clear()
            made = writer()
            for _ in range(2):
                at = made.state.frontier.elements[0][0]
                made.append(rows_at(log, at), advance_to=at + 1)
            assert sum("rows changed by another program" in record.message for record in caplog.records) == 1
    with pytest.raises(TimelyError):
        open_log(log.path).frontier()
    DeltaTable(log.path).restore(whole)
    fill(open_log(log.path), 8, 9)
    assert not open_log(log.path).verify().problems


def clean_up(path: str) -> None:
    """Let the entries go that say what was done, behind a checkpoint."""
    table = DeltaTable(path)
    done = table.version()
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table = DeltaTable(path)
    table.create_checkpoint()
    for version in range(done + 1):
        Path(path, "_delta_log", f"{version:020}.json").unlink(missing_ok=True)


UPDATES = [name for name in HARMFUL if name.startswith("update of ") or name == "merge"]


@pytest.mark.parametrize(("kind", "name"), [cell for cell in cells(HARMFUL) if cell.values[1] not in UPDATES])
def test_behind_cleaned_up_entries_numbers_tell(placed: Callable[[str], Log], kind: str, name: str) -> None:
    log = placed(kind)
    HARMFUL[name].do(DeltaTable(log.path))
    clean_up(log.path)
    for ask in (lambda: log.refresh() and log.messages(), lambda: open_log(log.path).messages()):
        assert refused(ask)


@pytest.mark.parametrize(("kind", "name"), [cell for cell in cells(HARMLESS) if cell.values[1] != "a column"])
def test_behind_cleaned_up_entries_a_whole_log_is_read(placed: Callable[[str], Log], kind: str, name: str) -> None:
    log = placed(kind)
    before = contents(log.messages())
    HARMLESS[name].do(DeltaTable(log.path))
    clean_up(log.path)
    fresh = open_log(log.path)
    assert contents(fresh.messages()) == before
    assert fresh.frontier() == log.frontier()
    if kind != "output":
        fill(fresh, 8, 9)
        assert not open_log(log.path).verify().problems
