"""The real timely replays what was exported, and what it captures is imported. cargo fetches the crates."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.sockets import Address, import_socket
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import MemoryLog
from tests.modules import ROOT
from tests.oracles.golden import captures, golden_bytes, types_of

KINDS = {"text": "c2_3workers", "product": "d2_product_2workers"}
TYPES = {kind: CaptureTypes.parse(*types_of(group), timely="0.31") for kind, group in KINDS.items()}


@pytest.fixture(scope="session")
def program(cargo: str) -> Path:
    """Build the program once; cargo does nothing where nothing has changed."""
    here, there = ROOT / "tests" / "interop", ROOT / "build" / "interop"
    for name in ("Cargo.toml", "src/main.rs"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        if not (there / name).exists() or not filecmp.cmp(here / name, there / name, shallow=False):
            shutil.copyfile(here / name, there / name)
    built = subprocess.run([cargo, "build", "--quiet"], cwd=there, capture_output=True, text=True, timeout=540)
    assert built.returncode == 0, built.stderr
    return there / "target" / "debug" / "interop"


def run(program: Path, *arguments: object) -> list[str]:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def log_of(kind: str, streams: int) -> MemoryLog:
    domain = TYPES[kind].layout.domain
    times = [type_.value for type_ in domain.types]
    return MemoryLog.create(TYPES[kind].payload, times=times, minimum=domain.minimum, streams=streams)


def imported(kind: str, files: list[Path]) -> MemoryLog:
    log = log_of(kind, len(files))
    tasks = [StreamImport(log, f"w{i}", TYPES[kind], name=file.name) for i, file in enumerate(files)]
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
    columns = [rows.column(name).to_pylist() for name in (*log.domain.columns, *log.schema.names)]
    arity = log.domain.arity
    lines = [[shown(value) for value in row] for row in zip(*columns, strict=True)]
    return Counter(f"{':'.join(row[:arity])} {':'.join(row[arity:])}" for row in lines)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_timely_replays_what_was_exported(program: Path, kind: str, tmp_path: Path) -> None:
    files = []
    for name in captures():
        if name.startswith(KINDS[kind]):
            files.append(tmp_path / f"{name}.bin")
            files[-1].write_bytes(golden_bytes(f"capture_{name}.bin"))
    log = imported(kind, files)
    wanted = contents(log)
    for n_files in (1, 2, 5):
        folder = tmp_path / str(n_files)
        written = [each.path for each in export_log(log, folder, files=n_files, stretch_rows=200)]
        assert len(run(program, "check", kind, *written)) == n_files
        for workers in (1, 2, 3):
            *lines, last = run(program, "replay", kind, workers, *written)
            assert last == "closed"
            assert Counter(lines) == wanted


def rust_records() -> Counter[str]:
    """Return what the program captures, by its own formula."""
    found: Counter[str] = Counter()
    for r in range(40):
        for i in range((r * 13) % 50):
            found[f"{r} {f'rä{(r * 7 + i) % 11}'.encode().hex()}:{r * 1000 + i}"] += 1
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_what_timely_captures_is_imported_and_goes_back(program: Path, workers: int, tmp_path: Path) -> None:
    run(program, "write", "text", workers, tmp_path)
    files = sorted(tmp_path.glob("rust_w*.bin"))
    assert len(files) == workers
    run(program, "check", "text", *files)
    log = imported("text", files)
    assert log.verify().legal
    assert contents(log) == rust_records()
    written = [each.path for each in export_log(log, tmp_path / "back", files=2)]
    *lines, last = run(program, "replay", "text", 2, *written)
    assert (last, Counter(lines)) == ("closed", rust_records())


def test_timely_sends_its_captures_over_sockets(program: Path) -> None:
    log = log_of("text", 2)
    ports: list[int] = []
    ready = [threading.Event(), threading.Event()]
    errors: list[BaseException] = []

    def listen(i: int) -> None:
        def bound(port: int) -> None:
            ports.insert(i, port)
            ready[i].set()

        try:
            task = StreamImport(log.another(), f"w{i}", TYPES["text"], name="x", max_delay_s=0.1)
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


def test_the_programs_own_check_finds_what_is_wrong(program: Path, tmp_path: Path) -> None:
    types = {"time": "u64", "record": "(string, u64)"}
    good = capture_bytes([(0, [("a", 1)]), {0: -1}], **types)
    for name, data, said in [
        ("late", good + capture_bytes([(0, [("a", 1)])], **types), "event 2 at byte"),
        ("again", good + capture_bytes([{0: 1}], **types), "out of nothing"),
        ("open", good[:-36], "not closed"),
        ("half", good[:-1], "half an event"),
    ]:
        file = tmp_path / name
        file.write_bytes(data)
        done = subprocess.run([program, "check", "text", file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, name
        assert said in done.stderr
