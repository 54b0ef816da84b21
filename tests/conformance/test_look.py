"""What other programs make of a log's files is looked into before the first row of one is handed out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_timely.answers.peek import peek
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.errors import DataLossError, ForeignChangeError
from spark_timely.log import Log
from spark_timely.log.cut import cut
from spark_timely.log.log import open_log
from spark_timely.log.reader import events_of
from spark_timely.log.store import delta
from spark_timely.log.store.entries import entry_path, read_entry
from tests.conformance.test_foreign_changes import (
    as_source,
    clean_up,
    collection,
    contents,
    fill,
    flow,
    forgotten,
    stream,
    subscribed,
)
from tests.unit.datasource.support import make_options

MAKE = {"stream": stream, "collection": collection, "forgotten": forgotten}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind, make in MAKE.items():
        found[kind] = tmp_path_factory.mktemp(kind) / "log"
        make(str(found[kind]))
    return found


@pytest.fixture
def placed(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Log]:
    def place(kind: str) -> Log:
        shutil.copytree(originals[kind], tmp_path / kind)
        log = open_log(str(tmp_path / kind))
        log.core.merge_every = None
        return log

    return place


# Others ---------------------------------------------------------------------------------------------------------------


def with_copies(rows: pa.Table, gone: tuple[str, int], copied: tuple[str, int]) -> pa.Table:
    """Put copies of one commit's rows into the place of another's."""

    def of(commit: tuple[str, int]) -> pa.ChunkedArray:
        return pc.and_(pc.equal(rows["_stream"], commit[0]), pc.equal(rows["_seq"], commit[1]))

    assert rows.filter(of(gone)).num_rows == rows.filter(of(copied)).num_rows > 0
    return pa.concat_tables([rows.filter(pc.invert(of(gone))), rows.filter(of(copied))])


def same(rows: pa.Table) -> pa.Table:
    return rows


def swapped(rows: pa.Table) -> pa.Table:
    return with_copies(rows, ("a", 6), ("a", 5))


def moved(rows: pa.Table) -> pa.Table:
    """Put rows of the last commit of a stream, however many, to another time."""
    last = pc.and_(pc.equal(rows["_stream"], "a"), pc.equal(rows["_seq"], 6))
    times = pc.if_else(last, pc.subtract(rows["_time"], 1), rows["_time"])
    return rows.set_column(rows.schema.get_field_index("_time"), "_time", times)


def optimize(
    path: str, change: Callable[[pa.Table], pa.Table] = same, *, n_files: int = 1, stats: bool = True, name: str = ""
) -> int:
    """Rewrite all files of messages, and say that no data changed; return the version."""
    table = DeltaTable(path)
    version = table.version() + 1
    old = [file[file.index("_event=") :] for file in table.file_uris() if "_event=message" in file]
    rows = change(
        pa.concat_tables([pq.ParquetFile(Path(path, file)).read() for file in old], promote_options="default")
    )
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"operation": "OPTIMIZE", "timestamp": 1}},
        *({"remove": {"path": file, "dataChange": False, "partitionValues": {"_event": "message"}}} for file in old),
    ]
    for number in range(n_files):
        part = rows.take(pa.array(range(number, rows.num_rows, n_files)))
        file = f"_event=message/{name or f'optimized-{version}-{number}'}.parquet"
        pq.write_table(part, Path(path, file))
        names = ("_stream", "_seq", "_time")
        said = {
            "numRecords": part.num_rows,
            "minValues": {each: pc.min(part[each]).as_py() for each in names},
            "maxValues": {each: pc.max(part[each]).as_py() for each in names},
        }
        add = {"path": file, "partitionValues": {"_event": "message"}, "size": 1, "modificationTime": 1}
        add["size"] = Path(path, file).stat().st_size
        actions.append({"add": {**add, "dataChange": False, **({"stats": json.dumps(said)} if stats else {})}})
    Path(path, entry_path(version)).write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    return version


def compact(path: str) -> None:
    DeltaTable(path).optimize.compact()


def z_order(path: str) -> None:
    DeltaTable(path).optimize.z_order(["v"])


def twice(path: str) -> None:
    compact(path)
    z_order(path)


def vacuumed(path: str) -> None:
    twice(path)
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)


# Who reads rows -------------------------------------------------------------------------------------------------------


def readers(log: Log, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield who hands rows out, made before anything is done to the log."""
    path = log.path
    yield "live handle", lambda: (log.refresh(), contents(log.messages()))[1]
    late = log.domain.parse_frontier([5])
    yield "newest rows", lambda: contents(open_log(path).messages(lower=late))
    yield "fresh open", lambda: contents(open_log(path).messages())
    yield "events", lambda: [rows.num_rows for _, rows in events_of(open_log(path).core)]
    yield "batch", lambda: as_source(open_log(path))
    made = cut([log])
    yield "cut", lambda: as_source(open_log(path), cut=str(made))
    if log.kind == "collection":
        yield "subscribe", lambda: subscribed(path)
        yield "peek", lambda: contents(peek(path))
        yield "contents", lambda: contents(open_log(path).snapshot(5))
    elif log.since() == log.domain.minimum_frontier:
        yield "arrival", lambda: as_source(open_log(path), delivery="arrival")
    if log.since() == log.domain.minimum_frontier:
        numbers = iter(range(100))
        yield "dataflow", lambda: flow(path, str(folder / f"derived-{next(numbers)}"))()
    options = make_options()
    planner = ReplayPlanner(open_log(path), options, layout_of(log, options))
    begin = planner.latest(planner.initial())
    yield "source", lambda: len(planner.plan(planner.initial(), begin)) > 0


@pytest.mark.parametrize(
    ("kind", "change", "n_files"), [("stream", swapped, 3), ("collection", moved, 1), ("forgotten", swapped, 1)]
)
def test_other_rows_that_are_called_the_same_are_refused(
    placed: Callable[[str], Log], tmp_path: Path, kind: str, change: Callable[[pa.Table], pa.Table], n_files: int
) -> None:
    log = placed(kind)
    asked = dict(readers(log, tmp_path))
    before = {who: ask() for who, ask in asked.items()}
    whole = DeltaTable(log.path).version()
    version = optimize(log.path, change, n_files=n_files)
    for who, ask in asked.items():
        with pytest.raises(ForeignChangeError, match=rf"version={version} \(OPTIMIZE\)") as caught:
            ask()
        assert caught.value.changed_at == [version], who
        assert f"VERSION AS OF {whole};" in str(caught.value), who
    with pytest.raises(ForeignChangeError):
        log.compact()
    with pytest.raises(ForeignChangeError):
        log.frontier()  # once it is known
    assert any(f"version={version} (OPTIMIZE)" in problem for problem in open_log(log.path).verify().problems)
    # What another makes of it is no better.
    compact(log.path)
    optimize(log.path)
    for who, ask in asked.items():
        with pytest.raises(ForeignChangeError):
            pytest.fail(f"{who} says {ask()}")
    DeltaTable(log.path).restore(whole)
    for who, ask in asked.items():
        assert ask() == before[who], who
    assert not open_log(log.path).verify().problems
    DeltaTable(log.path).restore(version)
    for who, ask in asked.items():
        with pytest.raises(ForeignChangeError):
            pytest.fail(f"{who} says {ask()}")


def bare(path: str) -> None:
    optimize(path, n_files=3, stats=False)


@pytest.mark.parametrize(
    ("kind", "deed"),
    [
        ("stream", compact),
        ("stream", z_order),
        ("stream", vacuumed),
        ("collection", twice),
        ("collection", bare),
        ("forgotten", compact),
        ("forgotten", vacuumed),
    ],
)
def test_maintenance_is_never_refused(
    placed: Callable[[str], Log], tmp_path: Path, kind: str, deed: Callable[[str], object]
) -> None:
    log = placed(kind)
    asked = dict(readers(log, tmp_path))
    before = {who: ask() for who, ask in asked.items() if who != "source"}
    deed(log.path)
    fill(log, 8, 9)  # has not looked
    fresh = open_log(log.path)
    expected = contents(fresh.messages())
    for who, ask in asked.items():
        try:
            found = ask()
        except DataLossError:
            assert who == "source"
            assert deed is vacuumed
            continue
        if who == "cut":
            assert found == before[who]
    assert contents(log.messages()) == expected
    fill(fresh, 9, 10)
    log.refresh()
    log.compact()
    assert contents(open_log(log.path).messages()) == contents(log.messages())
    assert not open_log(log.path).verify().problems


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which files are looked into."""
    found: list[str] = []
    read = delta.read_parts

    def noted(storage: Any, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
        found.append(path)
        return read(storage, path, schema)

    monkeypatch.setattr(delta, "read_parts", noted)
    return found


def test_a_file_is_looked_into_once_when_its_rows_are_wanted(placed: Callable[[str], Log], looks: list[str]) -> None:
    log = placed("stream")
    version = optimize(log.path)
    log.refresh()
    log.frontier()
    log.core.files()
    log.streams()
    fill(log, 8, 9)
    log.messages(lower=[8])  # nothing of it
    assert not looks
    for _ in range(3):
        log.messages()
    # Those that it replaced are of one commit each: their statistics tell.
    assert looks == [f"_event=message/optimized-{version}-0.parquet"]
    fill(log, 9, 10)
    assert len(looks) == 1


def test_who_has_not_looked_does_not_vouch(placed: Callable[[str], Log], looks: list[str]) -> None:
    log = placed("stream")
    version = optimize(log.path)
    fill(log, 8, 9)
    entry = read_entry(log.core.storage, version + 2)
    assert entry is not None
    assert (entry.judged, entry.unlooked) == (version + 1, frozenset({version}))
    open_log(log.path).messages()
    assert len(looks) == 1
    log.messages()
    fill(log, 9, 10)  # has looked
    assert len(looks) == 2
    entry = read_entry(log.core.storage, version + 4)
    assert entry is not None
    assert (entry.judged, entry.unlooked) == (version + 3, frozenset())
    open_log(log.path).messages()
    assert len(looks) == 2


def test_who_follows_learns_that_another_has_looked(placed: Callable[[str], Log], looks: list[str]) -> None:
    log = placed("stream")
    other = open_log(log.path)
    optimize(log.path)
    other.refresh()
    log.refresh()
    log.messages()
    fill(log, 8, 10)
    assert len(looks) == 1
    other.refresh()
    other.messages()
    assert len(looks) == 1


@pytest.mark.parametrize("kind", MAKE)
def test_other_rows_are_refused_behind_marks(placed: Callable[[str], Log], kind: str) -> None:
    log = placed(kind)
    version = optimize(log.path, swapped)
    fill(log, 8, 10)  # has not looked
    with pytest.raises(ForeignChangeError, match=rf"version={version} \(OPTIMIZE\)"):
        open_log(log.path).messages()
    with pytest.raises(ForeignChangeError):
        log.messages()
    fill(log, 10, 11)  # continues
    with pytest.raises(ForeignChangeError):
        open_log(log.path).messages()


@pytest.mark.parametrize("stats", [True, False])
def test_where_what_was_replaced_is_gone_numbers_tell(placed: Callable[[str], Log], stats: bool) -> None:
    log = placed("stream")
    optimize(log.path)
    # Of several commits: its statistics do not tell what it holds.
    version = optimize(log.path, swapped, stats=stats)
    for path in Path(log.path, "_event=message").glob("*.parquet"):
        if not path.name.startswith(f"optimized-{version}-"):
            path.unlink()
    with pytest.raises(ForeignChangeError, match=rf"version={version}|version={version - 1}"):
        open_log(log.path).messages()


def test_behind_cleaned_up_entries_numbers_tell(placed: Callable[[str], Log]) -> None:
    log = placed("stream")
    optimize(log.path, swapped)
    clean_up(log.path)
    with pytest.raises(ForeignChangeError):
        open_log(log.path).messages()


def test_a_copy_of_a_handle_knows_what_was_looked_into(placed: Callable[[str], Log], looks: list[str]) -> None:
    log = placed("stream")
    optimize(log.path)
    log.refresh()
    log.messages()
    other = log.core.store.aside()
    assert other is not None
    other.look_into()
    assert len(looks) == 1


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_what_a_look_has_found_can_be_accepted(placed: Callable[[str], Log], kind: str) -> None:
    log = placed(kind)
    optimize(log.path, moved)
    fill(log, 8, 9)  # has not looked
    live = open_log(log.path)
    with pytest.raises(ForeignChangeError) as caught:
        live.messages()
    (token,) = {each.token for each in live.core.foreign_changes()}
    assert token
    assert token in str(caught.value)
    report = open_log(log.path).accept_change(token)
    assert (report.accepted, report.commits, report.other) == (True, 1, 1)
    now = contents(open_log(log.path).messages())
    live.refresh()
    assert contents(live.messages()) == now
    compact(log.path)
    fill(open_log(log.path), 9, 10)
    assert now < contents(open_log(log.path).messages())
    assert not open_log(log.path).verify().problems
