"""The real timely, 0.31 and 0.32, replays what was exported; what it captures is imported. cargo fetches the crates."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_timely.errors import InvalidUsageError
from spark_timely.interop.chunk import TimelyVersion
from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport, found_version
from spark_timely.interop.sockets import Address, import_socket
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import MemoryLog
from tests.modules import ROOT
from tests.oracles.golden import STAMPED, capture_file, captures, golden_bytes, stamped_captures, types_of, version_of

KINDS = {"text": "c2_3workers", "product": "d2_product_2workers"}
VERSIONS: tuple[TimelyVersion, ...] = ("0.31", "0.32")


@pytest.fixture(scope="session", params=VERSIONS)
def timely(request: pytest.FixtureRequest) -> TimelyVersion:
    version: TimelyVersion = request.param
    return version


@pytest.fixture(scope="session")
def program(cargo: str, timely: TimelyVersion) -> Path:
    """Build the program against a version of timely; cargo does nothing where nothing has changed."""
    here, there = ROOT / "tests" / "interop", ROOT / "build" / "interop"
    for name in ("Cargo.toml", "src/main.rs"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        if not (there / name).exists() or not filecmp.cmp(here / name, there / name, shallow=False):
            shutil.copyfile(here / name, there / name)
    feature = f"v{timely.replace('.', '')}"
    target = there / "target"
    command = [cargo, "build", "--quiet", "--features", feature, "--target-dir", target]
    built = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=540)
    assert built.returncode == 0, built.stderr
    return target / "debug" / f"interop-{feature}"


def run(program: Path, *arguments: object) -> list[str]:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def log_of(types: CaptureTypes, streams: int) -> MemoryLog:
    domain = types.layout.domain
    times = [type_.value for type_ in domain.types]
    return MemoryLog.create(types.payload, times=times, minimum=domain.minimum, streams=streams)


def imported(types: CaptureTypes, files: list[Path]) -> MemoryLog:
    log = log_of(types, len(files))
    tasks = [StreamImport(log, f"w{i}", types, name=file.name, unstamped="drop") for i, file in enumerate(files)]
    for task, file in zip(tasks, files, strict=True):
        task.take_file(str(file))
    assert log.frontier().is_empty
    return log


def shown(value: object) -> str:
    """Write a value as the program does."""
    return value.encode().hex() if isinstance(value, str) else str(int(str(value)))


def contents(log: MemoryLog) -> Counter[str]:
    """Return what the program should find in the captures of a log."""
    rows = log.messages()
    names = [name for name in log.schema.names if name != "stamp"]
    columns = [rows.column(name).to_pylist() for name in (*log.domain.columns, *names)]
    arity = log.domain.arity
    lines = [[shown(value) for value in row] for row in zip(*columns, strict=True)]
    times = [":".join(row[:arity]) for row in lines]
    if "stamp" in log.schema.names:
        times = [",".join(":".join(map(str, time.values())) for time in stamp) for stamp in rows["stamp"].to_pylist()]
    return Counter(f"{time} {':'.join(row[arity:])}" for time, row in zip(times, lines, strict=True))


def golden_log(group: str, folder: Path, **options: str) -> MemoryLog:
    """Import captures of the real timely, those whose names begin so."""
    files = []
    names = [name for name in (*captures(), *stamped_captures()) if name.startswith(group)]
    for name in names:
        files.append(folder / f"{name.replace('/', '_')}.bin")
        files[-1].write_bytes(golden_bytes(capture_file(name, "bin")))
    return imported(CaptureTypes.parse(*types_of(names[0]), timely=version_of(group), **options), files)


@pytest.mark.parametrize("source", ["", STAMPED], ids=["from 0.31", "from 0.32"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_timely_replays_what_was_exported(
    program: Path, timely: TimelyVersion, kind: str, source: str, tmp_path: Path
) -> None:
    log = golden_log(f"{source}{KINDS[kind]}", tmp_path)
    wanted = contents(log)
    for n_files in (1, 2, 5):
        folder = tmp_path / str(n_files)
        written = [each.path for each in export_log(log, folder, files=n_files, timely=timely, stretch_rows=200)]
        assert len(run(program, "check", kind, *written)) == n_files
        for workers in (1, 2, 3):
            *lines, last = run(program, "replay", kind, workers, *written)
            assert last == "closed"
            assert Counter(lines) == wanted


@pytest.mark.parametrize("group", ["h1_multi", "h2_multi_2workers", "h4_leave_product"])
def test_timely_replays_the_stamps_that_a_log_has_kept(
    program: Path, timely: TimelyVersion, group: str, tmp_path: Path
) -> None:
    log = golden_log(f"{STAMPED}{group}", tmp_path, stamps="column")
    wanted = contents(log)
    assert any("," in line for line in wanted)
    if timely == "0.31":
        with pytest.raises(InvalidUsageError, match="times in message="):
            export_log(log, tmp_path / "old", timely=timely)
        return
    for n_files in (1, 3):
        written = [each.path for each in export_log(log, tmp_path / str(n_files), files=n_files, stretch_rows=50)]
        assert len(run(program, "check", "product", *written)) == n_files
        for workers in (1, 2, 3):
            *lines, last = run(program, "replay", "product", workers, *written)
            assert (last, Counter(lines)) == ("closed", wanted)


def rust_records() -> Counter[str]:
    """Return what the program captures, by its own formula."""
    found: Counter[str] = Counter()
    for r in range(40):
        for i in range((r * 13) % 50):
            found[f"{r} {f'rä{(r * 7 + i) % 11}'.encode().hex()}:{r * 1000 + i}"] += 1
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_what_timely_captures_is_imported_and_goes_back(
    program: Path, timely: TimelyVersion, workers: int, tmp_path: Path
) -> None:
    run(program, "write", "text", workers, tmp_path)
    files = sorted(tmp_path.glob("rust_w*.bin"))
    assert len(files) == workers
    run(program, "check", "text", *files)
    types = CaptureTypes.parse(*types_of(KINDS["text"]))
    assert {found_version(str(file), types) for file in files} == {timely}
    log = imported(types.settled(timely), files)
    assert log.verify().legal
    assert contents(log) == rust_records()
    written = [each.path for each in export_log(log, tmp_path / "back", files=2)]
    *lines, last = run(program, "replay", "text", 2, *written)
    assert (last, Counter(lines)) == ("closed", rust_records())


def test_timely_sends_its_captures_over_sockets(program: Path, timely: TimelyVersion) -> None:
    types = CaptureTypes.parse(*types_of(KINDS["text"]), timely=timely)
    log = log_of(types, 2)
    ports: list[int] = []
    ready = [threading.Event(), threading.Event()]
    errors: list[BaseException] = []

    def listen(i: int) -> None:
        def bound(port: int) -> None:
            ports.insert(i, port)
            ready[i].set()

        try:
            task = StreamImport(log.another(), f"w{i}", types, name="x", max_delay_s=0.1)
            import_socket(task, Address("127.0.0.1", 0, listen=True), wait_s=60.0, bound=bound)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=listen, args=(i,), daemon=True) for i in range(2)]
    for thread, event in zip(threads, ready, strict=True):
        thread.start()
        assert event.wait(60)
    run(program, "send", "text", 2, *(f"127.0.0.1:{port}" for port in ports))
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    log.refresh()
    assert log.frontier().is_empty
    assert contents(log) == rust_records()


def test_the_programs_own_check_finds_what_is_wrong(program: Path, timely: TimelyVersion, tmp_path: Path) -> None:
    types: dict[str, Any] = {"time": "u64", "record": "(string, u64)", "timely": timely}
    at = 0 if timely == "0.31" else [0]
    good = capture_bytes([(at, [("a", 1)]), {0: -1}], **types)
    for name, data, said in [
        ("late", good + capture_bytes([(at, [("a", 1)])], **types), "event 2 at byte"),
        ("again", good + capture_bytes([{0: 1}], **types), "out of nothing"),
        ("open", good[:-36], "not closed"),
        ("half", good[:-1], "half an event"),
    ]:
        file = tmp_path / name
        file.write_bytes(data)
        done = subprocess.run([program, "check", "text", file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, name
        assert said in done.stderr
