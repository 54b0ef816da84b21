"""Power cuts, simulated: what was not flushed is lost, empty, cut or there, at every call that names, removes, flushes.

What was acknowledged is there; what was not is absent or whole; and the log can be read, and written further.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import LogDamagedError, LogMissingError
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.writer import capture_bytes
from spark_timely.log.log import create_log, forget_logs, open_log
from spark_timely.log.store import checkpoints as delta_upkeep
from spark_timely.log.store import delta as delta_store
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import FileStorage
from spark_timely.protocol.replay import Limits
from spark_timely.spark.answers import copy_folder
from spark_timely.spark.answers.copy_folder import INCOMPLETE
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.faults.power_cut import PowerCut, choices, lay_out
from tests.property.test_dataflow import runner
from tests.unit.sink.driver import BOUNDED, SinkDriver
from tests.unit.sink.driver import rows as sink_rows
from tests.unit.spark.capture.test_foreach_batch import run as capture
from tests.unit.spark.capture.test_foreach_batch import write_job  # noqa: F401 - a fixture that is always used

pytestmark = pytest.mark.faults

VALUES = pa.schema([("v", pa.int64())])


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return a folder that is on the disk already."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_store, "_pause", lambda _: None)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tidy after five commits, not fifty, and keep two entries behind a checkpoint."""
    monkeypatch.setattr(delta_upkeep, "_CHECKPOINT_VERSIONS", (5, 5))
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 2)


def pair(n: int) -> pa.Table:
    return pa.table({"_time": [n, n + 1], "v": [n, -n]})


def tell(power: PowerCut, *facts: object) -> None:
    """Note that something was acknowledged."""
    power.told.extend(facts)
    power.moment(f"told {facts}")


def after_each_cut(power: PowerCut, check: Callable[[Path, tuple[Any, ...]], None], *, n_random: int = 1) -> int:
    """Look at every disk that a power cut may leave; return how many there are."""
    seen = set()
    target = power.root.parent / "after"
    for moment in power.moments:
        for name, choice in choices(moment.number, n_random):
            found = moment.disk(choice)
            key = (moment.told, frozenset(found.items()))
            if key in seen:
                continue
            seen.add(key)
            lay_out(found, target)
            try:
                check(target, moment.told)
            except BaseException as error:
                error.add_note(f"after a power cut {moment.what!r}, moment {moment.number}, choice {name!r}")
                raise
            shutil.rmtree(target)
    return len(seen)


def check_pairs(path: Path, told: tuple[Any, ...]) -> None:
    """Check a log of pairs: what was told is there, each pair whole and once, and the log is written further."""
    try:
        log = open_log(path / "log")
    except LogMissingError:
        assert not told
        log = create_log(path / "log", VALUES, minimum=(0,), streams=2)
    report = log.verify()
    assert report.legal, report.problems
    found = log.messages()["v"].to_pylist()
    assert sorted(found) == sorted(v for n in {abs(v) for v in found} for v in (n, -n)), "each pair whole, and once"
    assert {n for n in told if isinstance(n, int)} <= set(found)
    main = log.core.stream("main")
    for kind, value in (fact for fact in told if isinstance(fact, tuple)):
        if kind == "column":
            assert value in log.schema.names
        else:
            assert main is not None
            assert getattr(main, kind) == value
    log.writer(owner="me" if main is None else main.owner).append(pair(999), advance_to=1000)
    again = open_log(path / "log")
    assert again.verify().legal
    assert set(again.messages()["v"].to_pylist()) == {*found, 999, -999}


def test_creation_appends_and_merges_by_the_way(disk: Path, tmp_path: Path) -> None:
    with PowerCut(disk, tmp_path / "shadow") as power:
        log = create_log(disk / "log", VALUES, minimum=(0,), streams=2, merge_every=2)
        tell(power, "created")
        writer = log.writer(owner="me")
        for n in range(1, 4):
            writer.append(pair(n), advance_to=n)
            tell(power, n)
    assert after_each_cut(power, check_pairs) > 60


def filled(disk: Path, n: int, **options: Any) -> Any:
    log = create_log(disk / "log", VALUES, minimum=(0,), streams=2, merge_every=None, **options)
    for i in range(1, n + 1):
        log.writer(owner="me").append(pair(i), advance_to=i)
    return log


def test_compaction_takeover_and_columns(disk: Path, tmp_path: Path) -> None:
    log = filled(disk, 4)
    with PowerCut(disk, tmp_path / "shadow") as power:
        tell(power, 1, 2, 3, 4, ("owner", "me"))
        log.compact()
        power.moment("compacted")
        power.told.clear()
        tell(power, 1, 2, 3, 4)
        log.writer(owner="you", takeover=True)
        tell(power, ("owner", "you"))
        log.add_columns(pa.schema([("note", pa.string())]))
        tell(power, ("column", "note"))
    assert after_each_cut(power, check_pairs) > 40


def test_replaced_files_go_when_what_replaced_them_is_on_disk(disk: Path, tmp_path: Path) -> None:
    log = filled(disk, 4)
    with PowerCut(disk, tmp_path / "shadow") as power:
        tell(power, 1, 2, 3, 4)
        log.compact()
        assert log.vacuum(older_than="0s").files > 4
        log.writer(owner="me").append(pair(5), advance_to=5)
        tell(power, 5)
        DeltaTable(disk / "log").optimize.compact()
        assert log.vacuum(older_than="0s").files > 0
    # Between a foreign program's write and the flush that comes with the vacuum it is that program's affair.
    power.moments = [moment for moment in power.moments if "unlink" in moment.what or moment.what == "end"]
    assert after_each_cut(power, check_pairs) > 5


@pytest.mark.usefixtures("_soon")
def test_tidying_never_loses_the_log(disk: Path, tmp_path: Path) -> None:
    log = filled(disk, 2)
    with PowerCut(disk, tmp_path / "shadow") as power:
        tell(power, 1, 2)
        for n in range(3, 9):
            log.writer(owner="me").append(pair(n), advance_to=n)
            tell(power, n)
        names = os.listdir(disk / "log" / "_delta_log")
    assert f"{0:020d}.json" not in names, "entries were deleted"
    assert after_each_cut(power, check_pairs, n_random=0) > 80


def test_foreign_checkpoint_is_flushed_before_its_entries_go(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(disk, 6)
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 2)
    with PowerCut(disk, tmp_path / "shadow") as power:
        tell(power, *range(1, 7))
        DeltaTable(disk / "log").create_checkpoint()
        log.core.tidy()
    # Before that, what it did not flush is its own affair.
    power.moments = [moment for moment in power.moments if "unlink" in moment.what or moment.what == "end"]
    assert after_each_cut(power, check_pairs) > 5


@pytest.mark.usefixtures("_soon")
def test_tidying_is_flushed_though_flushing_is_not_wished(disk: Path, tmp_path: Path) -> None:
    """Without flushing the latest commits may be lost, or damaged: never those before a checkpoint."""
    log = filled(disk, 2, flush=False)
    with PowerCut(disk, tmp_path / "shadow") as power:
        for n in range(3, 16):
            log.writer(owner="me").append(pair(n), advance_to=n)
    seen = [moment.disk(choice) for moment in power.moments for _, choice in choices(moment.number, 1)]
    for found in seen:
        deleted = f"log/_delta_log/{0:020d}.json" not in found
        pointer = found.get("log/_delta_log/_last_checkpoint")
        if deleted or pointer is not None:
            assert pointer, "what replaces the entries is there, whole"
            version = int(pointer[len(b'{"version":') :].split(b",")[0])
            checkpoint = found[f"log/_delta_log/{version:020d}.checkpoint.parquet"]
            assert checkpoint is not None
            assert checkpoint[-4:] == b"PAR1"
    assert len(seen) > 50


def check_capture(path: Path, told: tuple[Any, ...]) -> None:
    """Check micro-batches of `sink_rows`: rows of three each, whole."""
    forget_logs()
    try:
        log = open_log(path / "log")
    except LogMissingError:
        assert not told
        return
    assert log.verify().legal
    found = sorted(log.messages()["id"].to_pylist())
    assert found == [3 * b + i for b in range(len(found) // 3) for i in range(3)]
    assert {3 * b for b in told} <= set(found)


def test_capture_by_the_sink(disk: Path, tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.log_path = disk / "log"
    driver.options["path"] = str(driver.log_path)
    with PowerCut(disk, tmp_path / "shadow") as power:
        for batch in range(4):
            tasks = [sink_rows([batch, batch], 3 * batch), sink_rows([batch + 1], 3 * batch + 2)]
            driver.run(tasks)
            tell(power, batch)
    assert after_each_cut(power, check_capture) > 50


class Killed(BaseException):
    """The process is gone."""


def test_capture_that_is_repeated_because_its_process_was_killed(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry had its name, and was not on the disk under it: the repetition must not acknowledge it as it is."""
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.log_path = disk / "log"
    driver.options["path"] = str(driver.log_path)
    driver.run([sink_rows([0, 0, 0])])
    flush = FileStorage.flush

    def flush_or_die(storage: FileStorage, paths: Iterable[str], **more: Any) -> None:
        names = list(paths)
        if names == ["_delta_log"]:
            raise Killed
        flush(storage, names, **more)

    with PowerCut(disk, tmp_path / "shadow") as power:
        monkeypatch.setattr(FileStorage, "flush", flush_or_die)
        with pytest.raises(Killed):
            driver.run([sink_rows([1, 1, 1], 3)])
        monkeypatch.setattr(FileStorage, "flush", flush)
        forget_logs()
        driver.run([sink_rows([1, 1, 1], 3)])
        tell(power, 1)
    assert after_each_cut(power, check_capture) > 5


def test_capture_in_foreach_batch(disk: Path, tmp_path: Path) -> None:
    """Spark's files are flushed by the driver; the job itself is played by pyarrow, which flushes nothing."""
    with PowerCut(disk, tmp_path / "shadow") as power:
        for batch in range(3):
            capture(disk / "log", sink_rows([batch, batch, batch + 1], 3 * batch), batch)
            tell(power, batch)
    assert after_each_cut(power, check_capture) > 30


def test_import(disk: Path, tmp_path: Path) -> None:
    types = CaptureTypes.parse("u64", "u64", timely="0.31")
    log = create_log(disk / "log", types.payload, minimum=(0,))
    whole = [(t, [10 * t, 10 * t + 1]) for t in range(5)]
    events: list[Any] = []
    for t, records in whole:
        events += [(t, records), {t: -1, t + 1: 1}]
    data = capture_bytes(events, time="u64", record="u64")
    with PowerCut(disk, tmp_path / "shadow") as power:
        done = StreamImport(log, "w0", types, name="x", commit_bytes=len(data) // 3).take_whole(io.BytesIO(data))
        tell(power, done.new_records)

    def check(path: Path, told: tuple[Any, ...]) -> None:
        found = open_log(path / "log")
        assert found.verify().legal
        values = sorted(found.messages().select([found.schema.names[0]]).column(0).to_pylist())
        all_of_them = [r for _, records in whole for r in records]
        assert values == all_of_them[: len(values)]
        assert not told or len(values) == told[0]
        # The import goes on where the log is.
        again = StreamImport(found, "w0", types, name="x").take_whole(io.BytesIO(data))
        assert again.events == len(events)
        assert sorted(found.messages().column(found.schema.names[0]).to_pylist()) == all_of_them

    assert after_each_cut(power, check) > 20


@pytest.mark.parametrize("links", [True, False])
def test_copy_without_its_sign_is_whole(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Files of a copy, named in the folder by links, or by renaming them where there are none."""

    def check(path: Path, told: tuple[Any, ...]) -> None:
        folder = path / "copy"
        if told:
            assert folder.exists()
        found = sorted(folder.glob("*.parquet"))
        if (folder / INCOMPLETE).exists():
            assert not told
        elif found or told:
            assert sorted(v for file in found for v in pq.read_table(file)["v"].to_pylist()) == list(range(6))
            assert found == sorted(folder.rglob("*.*"))
        else:
            assert list(folder.rglob("*.*")) == []

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    with PowerCut(disk, tmp_path / "shadow") as power:
        if not links:
            monkeypatch.setattr(os, "link", refuse)
        attempt = copy_folder.begin(open_storage(disk / "copy"), "copy", {})
        for name in (f"part-{number}.parquet" for number in range(3)):
            values = pa.table({"v": range(int(name[5]) * 2, int(name[5]) * 2 + 2)})
            with open_storage(disk / "copy").open_output(f"{attempt.folder}/{name}") as file:
                pq.write_table(values, file)
        assert copy_folder.finish(attempt, copy_folder.Written(6)) == 6
        tell(power, "copied")
    assert after_each_cut(power, check) > 10


def test_outputs_of_a_dataflow(disk: Path, tmp_path: Path) -> None:
    source = create_log(str(tmp_path / "in"), pa.schema([("n", pa.int64())]), minimum=(0,))
    times = list(range(9))
    source.writer(owner="test").append(pa.table({"_time": times * 2, "n": times * 2}), advance_to=9)
    source.refresh()

    def advance(path: Path) -> None:
        scope = Scope("flow")
        scope.replay(source).filter("n >= 0").capture(str(path / "out"))
        engine = Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=3))
        engine.advance(runner(scope.storage))

    with PowerCut(disk, tmp_path / "shadow") as power:
        advance(disk)
        tell(power, 9)

    def check(path: Path, told: tuple[Any, ...]) -> None:
        try:
            out = open_log(str(path / "out"))
        except LogMissingError:
            assert not told
            return
        assert out.verify().legal
        (upper,) = out.frontier().elements[0]
        assert not told or upper == told[0]
        found = sorted(out.messages()["_time"].to_pylist())
        assert found == sorted(t for t in times * 2 if t < upper)
        advance(path)
        assert sorted(open_log(str(path / "out")).messages()["_time"].to_pylist()) == sorted(times * 2)

    assert after_each_cut(power, check, n_random=0) > 30


def test_entry_that_others_did_not_flush_is_refused(disk: Path, tmp_path: Path) -> None:
    """What delta-rs writes by itself, such as an OPTIMIZE: an empty entry of it is damage, for a handle too."""
    log = filled(disk, 3)
    with PowerCut(disk, tmp_path / "shadow") as power:
        DeltaTable(disk / "log").optimize.compact()
        power.moment("optimized")
    damaged = 0
    target = tmp_path / "after"
    for moment in power.moments:
        for _, choice in choices(moment.number, 0):
            lay_out(moment.disk(choice), target)
            try:
                assert open_log(target / "log").verify().messages == 6
            except LogDamagedError:
                damaged += 1
            shutil.rmtree(target)
    assert damaged
    assert log.messages().num_rows == 6
