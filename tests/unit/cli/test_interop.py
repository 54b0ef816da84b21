"""The verbs `import` and `export`: what they answer, what they refuse, and that they can be repeated."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tqdm import tqdm

from spark_timely.cli.interop import _import
from spark_timely.cli.output import Console
from spark_timely.cli.parser import build_parser
from spark_timely.errors import TimelyError
from spark_timely.interop.writer import capture_bytes
from spark_timely.log.log import create_log, open_log
from tests.oracles.golden import golden_bytes
from tests.unit.cli.conftest import Run

TYPES = ("--time", "u64", "--record", "(String, u64)", "--timely", "0.31")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return the captures of three workers of the real timely."""
    paths = [tmp_path / f"w{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(golden_bytes(f"capture_c2_3workers_w{i}.bin"))
    return [str(path) for path in paths]


def digest(run: Run, log: str) -> str:
    code, out, _ = run("verify", log, "--json")
    assert code == 0, out
    return str(json.loads(out)["hash"])


def test_second_import_adds_nothing_and_export_gives_the_same(
    run: Run, files: list[str], log_path: str, tmp_path: Path
) -> None:
    code, out, _ = run("import", log_path, *files, *TYPES, "--json")
    answer = json.loads(out)
    assert (code, answer["complete"]) == (0, True)
    assert [each["stream"] for each in answer["captures"]] == ["w0", "w1", "w2"]
    assert all(each["closed"] and each["new_events"] == each["events"] > 0 for each in answer["captures"])
    wanted, version = digest(run, log_path), open_log(log_path).core.version
    code, out, _ = run("import", log_path, *files, *TYPES)
    assert code == 0
    assert out.count("0 events with 0 records added; closed") == 3
    assert (digest(run, log_path), open_log(log_path).core.version) == (wanted, version)
    for kind, count in (("timely", 2), ("jsonl", 4)):
        folder = tmp_path / kind
        code, out, _ = run("export", log_path, str(folder), "--files", str(count), "--format", kind, "--json")
        written = [each["path"] for each in json.loads(out)]
        assert (code, len(written)) == (0, count)
        code, out, _ = run("import", str(tmp_path / f"{kind} log"), *written, *TYPES, "--format", kind)
        assert code == 0
        assert digest(run, str(tmp_path / f"{kind} log")) == wanted
        code, _, err = run("export", log_path, str(folder), "--files", str(count), "--format", kind)
        assert code == 2
        assert "give an empty directory" in err


def test_part_of_a_log_is_exported_and_ends_there(run: Run, files: list[str], log_path: str, tmp_path: Path) -> None:
    assert run("import", log_path, *files, *TYPES)[0] == 0
    log = open_log(log_path)
    times = sorted(set(log.messages().column("_time").to_pylist()))
    middle = times[len(times) // 2]
    assert run("export", log_path, str(tmp_path / "part"), "--stream", "w1", "--up-to", str(middle))[0] == 0
    part = str(tmp_path / "part log")
    code, out, _ = run("import", part, str(tmp_path / "part" / "capture_w0.bin"), *TYPES, "--json")
    assert (code, json.loads(out)["complete"]) == (0, True)
    rows = open_log(part).messages(columns=["_time", "f0", "f1"])
    assert rows.num_rows == log.messages(upper=[middle], stream="w1").num_rows > 0
    assert max(rows.column("_time").to_pylist()) < middle


class Terminal(io.StringIO):
    """Standard error of a person."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, run: Run, *arguments: str, at: type[io.StringIO] = Terminal) -> list[str]:
    """Return what a verb writes to standard error, from one return of the cursor to the next."""
    stream = at()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        assert run(*arguments)[0] == 0
    return stream.getvalue().split("\r")


def test_progress_is_shown_at_a_terminal_and_taken_away(
    run: Run, files: list[str], log_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = tqdm.format_sizeof(sum(os.path.getsize(file) for file in files))
    imported = shown(monkeypatch, run, "import", log_path, *files, *TYPES)
    assert any(part.startswith("import:   0%") and f"0.00/{total} [" in part for part in imported)
    assert imported[-2:] == [" " * len(imported[-2]), ""]
    exported = shown(monkeypatch, run, "export", log_path, str(tmp_path / "out"))
    assert any(part.startswith("export:   0%") for part in exported)
    assert exported[-2:] == [" " * len(exported[-2]), ""]


def test_progress_needs_no_total(run: Run, files: list[str], log_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Path(log_path).with_suffix(".jsonl"))
    assert run("import", f"{log_path}-timely", files[0], *TYPES)[0] == 0
    assert run("export", f"{log_path}-timely", source, "--format", "jsonl")[0] == 0
    lines = [str(file) for file in Path(source).iterdir()]
    parts = shown(monkeypatch, run, "import", log_path, *lines, *TYPES, "--format", "jsonl")
    assert any(part.startswith("import: 0.00B [") for part in parts)


@pytest.mark.parametrize("at", [io.StringIO, Terminal])
def test_progress_is_not_mixed_with_what_programs_read(
    run: Run,
    files: list[str],
    log_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: type[io.StringIO],
) -> None:
    mode = ("--json",) if at is Terminal else ()
    assert shown(monkeypatch, run, "import", log_path, *files, *TYPES, *mode, at=at) == [""]
    assert shown(monkeypatch, run, "export", log_path, str(tmp_path / "out"), *mode, at=at) == [""]


def test_unfinished_capture_is_reported_and_continued(run: Run, log_path: str, tmp_path: Path) -> None:
    whole = golden_bytes("capture_c2_3workers_w0.bin")
    file = tmp_path / "growing.bin"
    file.write_bytes(whole[: len(whole) // 2])
    code, out, _ = run("import", log_path, str(file), *TYPES)
    assert code == 0
    assert "unfinished, at" in out
    assert "of an event that is not whole yet" in out
    file.write_bytes(whole)
    code, out, _ = run("import", log_path, str(file), *TYPES, "--json")
    assert (code, json.loads(out)["captures"][0]["closed"]) == (0, True)


def test_import_waits_for_a_file_that_is_still_written(log_path: str, tmp_path: Path) -> None:
    whole = golden_bytes("capture_c2_3workers_w0.bin")
    file = tmp_path / "x.bin"
    file.write_bytes(whole[:1000])
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds
        if file.stat().st_size < 4000:
            with file.open("ab") as end:
                end.write(whole[file.stat().st_size :][:1000])

    options = build_parser().parse_args(["import", log_path, str(file), *TYPES, "--wait", "2s"])
    with open(os.devnull, "w") as nothing:
        assert _import(options, Console(nothing, json_mode=False), now=lambda: clock[0], pause=pause)
    assert open_log(log_path).core.stream("x").batch > 3900
    assert 2.0 <= clock[0] < 6.0


def test_import_waits_as_long_as_an_event_is_coming(log_path: str, tmp_path: Path) -> None:
    whole = capture_bytes([(0, [("x" * 1000, 1)]), {0: -1}], time="u64", record="(string, u64)")
    file = tmp_path / "x.bin"
    file.write_bytes(b"")
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += 0.9  # so that the event takes longer than the wait
        with file.open("ab") as end:
            end.write(whole[file.stat().st_size :][:200])

    options = build_parser().parse_args(["import", log_path, str(file), *TYPES, "--wait", "1s"])
    with open(os.devnull, "w") as nothing:
        assert _import(options, Console(nothing, json_mode=False), now=lambda: clock[0], pause=pause)
    assert open_log(log_path).core.stream("x").closed


def test_wrong_type_is_refused_with_its_place_and_makes_no_log(run: Run, files: list[str], log_path: str) -> None:
    code, _, err = run("import", log_path, *files, "--time", "u64", "--record", "u64")
    assert code == 4
    assert re.search(r"could not read capture '.*' at event=", err)
    assert not os.path.exists(log_path)


def test_capture_that_breaks_the_protocol_makes_no_log(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "late.bin"
    file.write_bytes(capture_bytes([{0: -1}, (0, [("late", 1)])], time="u64", record="(string, u64)"))
    code, _, err = run("import", log_path, str(file), *TYPES)
    assert code == 4
    assert "at event=1, byte=36" in err
    assert not os.path.exists(log_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.bin", *TYPES], "found no such file"),
        (["{0}", "--time", "u64", "--record", "(String, u46)"], "found 'u46' at character 10"),
        (["{0}", "--time", "f64", "--record", "u64"], "type of times"),
        (["{0}", "{1}", *TYPES, "--stream", "a"], "found --stream 1 times"),
        (["{0}", "{0}", *TYPES], "for more than one capture"),
        (["tcp://nowhere", *TYPES], "could not read address"),
        (["{0}", "--record", "u64"], "--time"),
    ],
)
def test_command_lines_that_make_no_sense_are_refused(
    run: Run, files: list[str], log_path: str, arguments: list[str], said: str
) -> None:
    code, _, err = run("import", log_path, *(each.format(*files) for each in arguments))
    assert code == 2
    assert said in err
    assert not os.path.exists(log_path)


@contextmanager
def served(data: bytes) -> Iterator[str]:
    """Give the address of a producer that sends data to the first who connects, and leaves."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        thread.join(30)


def test_capture_comes_over_a_socket(run: Run, log_path: str) -> None:
    with served(golden_bytes("capture_c2_3workers_w0.bin")) as address:
        code, out, _ = run("import", log_path, address, *TYPES, "--stream", "w0", "--json")
    assert (code, json.loads(out)["complete"]) == (0, True)


def test_collection_comes_and_goes_as_cdcv2(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    lines = [
        {"progress": {"lower": [3], "upper": [9], "counts": [[5, 1]]}},
        {"updates": [[["a", 1], 5, -1], [["b", 2], 1, 2]]},
        {"updates": [[["b", 2], 1, 2], [["late", 0], 12, 1]]},
        {"progress": {"lower": [0], "upper": [3], "counts": [[1, 1]]}},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cdcv2 = ("--time", "u64", "--record", "(string, u64)", "--format", "cdcv2", "--json")
    code, out, _ = run("import", log_path, str(file), str(file), *cdcv2)
    assert (code, json.loads(out)) == (
        0,
        {"messages": 8, "added": 2, "pending": 1, "unfinished": 0, "frontier": [9], "complete": False},
    )
    code, out, _ = run("import", log_path, str(file), *cdcv2)
    assert (code, json.loads(out)["added"]) == (0, 0)
    code, out, _ = run("export", log_path, str(tmp_path / "out"), "--json")
    (written,) = json.loads(out)
    assert (code, written["records"]) == (0, 2)
    said = [json.loads(line) for line in Path(written["path"]).read_text().splitlines()]
    assert said == [
        {"updates": [[["b", 2], 1, 2], [["a", 1], 5, -1]]},
        {"progress": {"lower": [0], "upper": [9], "counts": [[1, 1], [5, 1]]}},
    ]
    file.write_text('{"updates": [[["a", 1], 12, 1]]}\n{"updates": [[["a", 1], 12, 2]]}\n')
    code, _, err = run("import", log_path, str(file), *cdcv2)
    assert code == 4
    assert "which is not consolidated" in err
    assert "in lines 1 to 2 of" in err
    assert run("export", log_path, str(tmp_path / "two"), "--format", "timely")[0] == 2
    assert run("import", log_path, str(file), *TYPES)[0] == 2


CDCV2 = ("--time", "u64", "--record", "string", "--format", "cdcv2")
OTHERS: dict[str, list[dict[str, Any]]] = {
    "an update that the log does not have": [{"updates": [["new", 1, 1]]}],
    "another diff of an update": [{"updates": [["a", 1, 5]]}],
    "one among copies": [{"updates": [["a", 1, 1], ["b", 2, 1], ["c", 2, 1], ["later", 9, 1]]}],
}


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("others", OTHERS)
def test_other_updates_than_the_log_has_are_refused(
    run: Run, log_path: str, tmp_path: Path, others: str, closed: bool
) -> None:
    file = tmp_path / "messages.jsonl"
    lines: list[Any] = [
        {"updates": [["a", 1, 1], ["b", 2, 1]]},
        {"progress": {"lower": [0], "upper": [] if closed else [3], "counts": [[1, 1], [2, 1]]}},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("import", log_path, str(file), *CDCV2)[0] == 0
    before = digest(run, log_path)
    # Copies are what they are, merged or not.
    assert run("compact", log_path)[0] == 0
    assert run("import", log_path, str(file), *CDCV2)[0] == 0
    file.write_text("".join(json.dumps(line) + "\n" for line in [*OTHERS[others], *lines]))
    code, _, err = run("import", log_path, str(file), *CDCV2)
    assert code == 4
    n = 2 if closed and others == "one among copies" else 1
    assert f"found {n} updates that it does not have, at times that it had complete" in err
    assert digest(run, log_path) == before


def test_what_is_forgotten_is_not_compared(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    lines: list[Any] = [
        {"updates": [["a", 1, 1], ["a", 2, 1], ["b", 4, 1]]},
        {"progress": {"lower": [0], "upper": [6], "counts": [[1, 1], [2, 1], [4, 1]]}},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("import", log_path, str(file), *CDCV2)[0] == 0
    assert run("forget", log_path, "--to", "3")[0] == 0
    assert run("import", log_path, str(file), *CDCV2)[0] == 0


def test_line_that_is_no_message_is_named(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_bytes(b'{"updates": []}\n\n{"updates": [["a", -1, 1]]}\n')
    code, _, err = run("import", log_path, str(file), "--time", "u64", "--record", "string", "--format", "cdcv2")
    assert code == 4
    assert "in line 3 of" in err


LATE = [{"progress": [[0, -1]]}, {"messages": [0, [["late", 1]]]}]
REFUSED = {
    "lines of JSON that are no events": (TYPES, ["--format", "jsonl"], b'{"messages": [0, [["a", -1]]]}\n'),
    "lines of JSON that break the protocol": (
        TYPES,
        ["--format", "jsonl"],
        "".join(json.dumps(line) + "\n" for line in LATE).encode(),
    ),
    "no JSON": (TYPES, ["--format", "jsonl"], b"\x00\xff\n"),
    "an event that is wrong long after the beginning": (
        TYPES,
        [],
        capture_bytes(
            [*[(0, [("x" * 1000, i) for i in range(1000)])] * 9, {0: -1}, {0: -1}], time="u64", record="(string, u64)"
        ),
    ),
    "no CDCv2": (CDCV2, [], b'{"updates": [["a", 1, 1]]}\n{"progress": 1}\n'),
    "CDCv2 that contradicts itself": (CDCV2, [], b'{"updates": [["a", 1, 1]]}\n{"updates": [["a", 1, 2]]}\n'),
    "bytes of anything": (TYPES, [], bytes(range(256))),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
@pytest.mark.parametrize("streams", [None, "1", "2"])
def test_refused_input_leaves_nothing_changed(
    run: Run, log_path: str, tmp_path: Path, case: str, streams: str | None
) -> None:
    types, more, data = REFUSED[case]
    good, bad = tmp_path / "good.x", tmp_path / "bad.x"
    bad.write_bytes(data)
    if streams is not None:
        good.write_bytes(b"")
        assert run("import", log_path, str(good), *types, *more, "--streams", streams)[0] == 0
    before = open_log(log_path).core.version if streams is not None else None
    code, _, err = run("import", log_path, str(bad), *types, *more)
    assert code == 4
    assert "found" in err
    if streams is not None:
        assert open_log(log_path).core.version == before
    else:
        assert not os.path.exists(log_path)


def test_no_file_is_imported_if_one_of_them_is_refused(run: Run, files: list[str], log_path: str) -> None:
    Path(files[2]).write_bytes(bytes(100))
    assert run("import", log_path, *files, *TYPES)[0] == 4
    assert not os.path.exists(log_path)


def test_port_that_is_taken_leaves_nothing_changed(run: Run, files: list[str], log_path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp-listen://127.0.0.1:{server.getsockname()[1]}"
        code, _, err = run("import", log_path, address, files[0], *TYPES)
    assert code == 3
    assert "could not listen on" in err
    assert not os.path.exists(log_path)


@pytest.mark.parametrize("data", [bytes(100), b"GET / HTTP/1.1\r\n\r\n"])
def test_producer_that_sends_anything_makes_no_log(run: Run, log_path: str, data: bytes) -> None:
    with served(data) as address:
        code, _, err = run("import", log_path, address, *TYPES, "--wait", "1s")
    assert code == 4
    assert re.search(r"could not read capture 'tcp://.*' at event=0, byte=", err)
    assert not os.path.exists(log_path)


def test_nobody_comes_and_no_log_is_made(run: Run, log_path: str) -> None:
    code, out, _ = run("import", log_path, "tcp-listen://127.0.0.1:0", *TYPES, "--wait", "0s")
    assert (code, os.path.exists(log_path)) == (0, False)
    assert "there is no log yet" in out


def test_one_file_under_two_names_is_refused(run: Run, files: list[str], log_path: str, tmp_path: Path) -> None:
    (tmp_path / "link.bin").symlink_to(files[0])
    for names in ([files[0], str(tmp_path / "link.bin")], [files[0], files[0]]):
        code, _, err = run("import", log_path, *names, *TYPES, "--stream", "a", "--stream", "b")
        assert code == 2
        assert "found it to be the same file as" in err
    assert not os.path.exists(log_path)


def test_log_is_not_complete_before_all_captures_are_in(
    run: Run, files: list[str], log_path: str, tmp_path: Path
) -> None:
    (tmp_path / "begun.bin").write_bytes(b"")
    assert run("import", log_path, str(tmp_path / "begun.bin"), *TYPES)[0] == 0
    # What is left is one capability, at the minimum: all three begin from it, though the first one gives up its own.
    (tmp_path / "begun.bin").write_bytes(Path(files[0]).read_bytes())
    code, out, err = run("import", log_path, str(tmp_path / "begun.bin"), *files[1:], *TYPES, "--json")
    assert (code, err) == (0, "")
    assert all(each["closed"] for each in json.loads(out)["captures"])


def test_log_for_fewer_captures_than_there_are_is_refused(run: Run, files: list[str], log_path: str) -> None:
    code, _, err = run("import", log_path, *files, *TYPES, "--streams", "2")
    assert code == 2
    assert "found --streams 2 for 3 captures" in err
    assert not os.path.exists(log_path)


def test_line_that_breaks_the_protocol_is_named_by_its_place(run: Run, log_path: str, tmp_path: Path) -> None:
    file, lines = tmp_path / "x.jsonl", [json.dumps(line) for line in LATE]
    file.write_text(f"\n{lines[0]}\n\n{lines[1]}\n")
    code, _, err = run("import", log_path, str(file), *TYPES, "--format", "jsonl")
    assert code == 4
    assert f"at event=1, byte={len(lines[0]) + 3}" in err
    file.write_text(f"{lines[0]}\n[]\n")
    code, _, err = run("import", log_path, str(file), *TYPES, "--format", "jsonl")
    assert f"at event=1, byte={len(lines[0]) + 1}: found" in err


def test_last_line_without_its_end_is_read_when_it_is_whole(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    lines = json.dumps({"messages": [0, [["a", 1]]]}) + "\n" + json.dumps({"progress": [[0, -1]]})
    file.write_text(lines[:-1])
    code, out, _ = run("import", log_path, str(file), *TYPES, "--format", "jsonl")
    assert code == 0
    assert "unfinished, at 0, 22 bytes of an event that is not whole yet" in out
    file.write_text(lines)
    for end, added in (("", 1), ("\n", 0)):
        file.write_text(lines + end)
        code, out, _ = run("import", log_path, str(file), *TYPES, "--format", "jsonl", "--json")
        (capture,) = json.loads(out)["captures"]
        assert (code, capture["closed"], capture["new_events"]) == (0, True, added)


def test_file_of_lines_that_was_cut_is_refused(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    lines = [json.dumps({"messages": [0, [["a", i]]]}) + "\n" for i in range(3)]
    file.write_text("".join(lines))
    assert run("import", log_path, str(file), *TYPES, "--format", "jsonl")[0] == 0
    file.write_text("".join(lines[:2]))
    code, _, err = run("import", log_path, str(file), *TYPES, "--format", "jsonl")
    assert code == 4
    assert "bytes less than" in err


def test_growing_cdcv2_is_read_to_its_last_whole_message(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    lines = '{"updates": [["a", 1, 1]]}\n{"progress": {"lower": [0], "upper": [], "counts": [[1, 1]]}}'
    file.write_text(lines[:-2])
    code, out, _ = run("import", log_path, str(file), *CDCV2)
    assert code == 0
    assert "byte" in out
    assert "not whole yet" in out
    file.write_text(lines)
    code, out, _ = run("import", log_path, str(file), *CDCV2, "--json")
    assert (code, json.loads(out)["added"], json.loads(out)["complete"]) == (0, 1, True)


def test_interrupt_from_the_keyboard_leaves_what_came(log_path: str) -> None:
    data = golden_bytes("capture_c2_3workers_w0.bin")
    command = [sys.executable, "-m", "spark_timely.cli", "import", log_path, "", *TYPES, "--stream", "w"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        command[5] = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        # A shell without jobs lets what it runs in the background ignore the signal, and that is inherited.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGINT, before)
        with process:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data[:2000])
                gate = threading.Event()
                for _ in range(3000):
                    if os.path.exists(log_path) and _position(log_path, "w"):
                        break
                    gate.wait(0.02)
                process.send_signal(signal.SIGINT)  # while the connection is open
                try:
                    _, err = process.communicate(timeout=30)
                finally:
                    process.kill()
    assert (process.returncode, err) == (130, "spark-timely: interrupted\n")
    assert 0 < _position(log_path, "w") <= 2000
    assert open_log(log_path).verify().legal


def _position(path: str, stream: str) -> int:
    try:
        state = open_log(path).core.stream(stream)
    except TimelyError:
        return 0
    return 0 if state is None or state.batch is None else state.batch


PLAIN = ("--time", "u64", "--record", "u64")
STAMPED = [([0, 9], [1, 2]), ([], [3]), {0: -1}]


def stamped(path: Path, events: list[object] = STAMPED) -> str:  # type: ignore[assignment]
    path.write_bytes(capture_bytes(events, time="u64", record="u64", timely="0.32"))  # type: ignore[arg-type]
    return str(path)


def test_version_of_timely_is_found_said_and_kept(run: Run, log_path: str, tmp_path: Path) -> None:
    file = stamped(tmp_path / "x.bin")
    code, _, err = run("import", log_path, file, *PLAIN)
    assert code == 4
    assert "found 0 times in its stamp, at event=1, byte=60" in err
    code, out, _ = run("import", log_path, file, *PLAIN, "--unstamped", "drop")
    assert code == 0
    assert "1 record without a time left out; read as Timely 0.32, the only version that its bytes fit" in out
    code, _, err = run("import", log_path, file, *PLAIN, "--timely", "0.31")
    assert code == 4
    assert "found it imported as Timely 0.32, not 0.31" in err
    code, out, _ = run("import", log_path, file, *PLAIN, "--json", "--wait", "1s")
    (capture,) = json.loads(out)["captures"]
    assert (code, capture["timely"], capture["new_events"]) == (0, "0.32", 0)


def test_records_without_a_time_become_dead_letters(run: Run, log_path: str, tmp_path: Path) -> None:
    options = ("--timely", "0.32", "--unstamped", "dead-letter")
    code, out, _ = run("import", log_path, stamped(tmp_path / "x.bin"), *PLAIN, *options)
    assert code == 0
    assert "1 record without a time set apart as dead letters" in out
    assert open_log(log_path).dead()["value"].to_pylist() == [3]


def test_version_is_asked_for_where_it_cannot_be_known(run: Run, log_path: str, tmp_path: Path) -> None:
    either = tmp_path / "x.bin"
    either.write_bytes(capture_bytes([(0, [7, 8]), {0: -1}], time="u64", record="u64"))
    for capture, more, said in (
        (str(either), (), "found that its bytes fit 0.31 and 0.32"),
        (stamped(tmp_path / "y.bin"), ("--wait", "1s"), "found no --timely with a capture that is followed"),
        ("tcp-listen://127.0.0.1:0", (), "found no --timely with a capture that is followed"),
    ):
        code, _, err = run("import", log_path, capture, *PLAIN, *more)
        assert code == 2
        assert said in err
        assert "--timely 0.31" in err
    assert not os.path.exists(log_path)


def test_wrong_version_is_refused_and_the_right_one_named(run: Run, log_path: str, tmp_path: Path) -> None:
    old = tmp_path / "old.bin"
    old.write_bytes(capture_bytes([(5, [1, 2]), {0: -1}], time="u64", record="u64"))
    for file, declared, other in ((str(old), "0.32", "0.31"), (stamped(tmp_path / "new.bin"), "0.31", "0.32")):
        code, _, err = run("import", log_path, file, *PLAIN, "--timely", declared)
        assert code == 4
        assert f"decode it as Timely {other}, which all its bytes fit: --timely {other}" in err
    assert not os.path.exists(log_path)


def test_cdcv2_has_no_stamps(run: Run, log_path: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"updates": []}\n')
    code, _, err = run("import", log_path, str(file), *CDCV2, "--timely", "0.32")
    assert code == 2
    assert "with --format cdcv2" in err


def test_kept_stamps_are_exported_again(run: Run, log_path: str, tmp_path: Path) -> None:
    file = stamped(tmp_path / "x.bin", [([0, 9], [1, 2]), ([3], [4]), {0: -1}])
    assert run("import", log_path, file, *PLAIN, "--stamps", "column")[0] == 0
    code, out, _ = run("export", log_path, str(tmp_path / "out"), "--format", "jsonl", "--json")
    (written,) = json.loads(out)
    said = [json.loads(line) for line in Path(written["path"]).read_text().splitlines()]
    assert (code, [event["messages"] for event in said if "messages" in event]) == (0, [[[0, 9], [1, 2]], [[3], [4]]])
    code, _, err = run("export", log_path, str(tmp_path / "old"), "--timely", "0.31")
    assert code == 2
    assert "could not write messages as Timely 0.31 has them: found 2 times in message=0" in err
    # Types that are declared change nothing about the stamps.
    assert run("export", log_path, str(tmp_path / "typed"), "--record", "{value: u64}", "--time", "u64")[0] == 0
    events = [([0, 9], [(1,), (2,)]), [[3, 1], [0, -1]], ([3], [(4,)]), {3: -1}]
    wanted = capture_bytes(events, time="u64", record="(u64,)", timely="0.32")  # type: ignore[arg-type]
    assert (tmp_path / "typed" / "capture_w0.bin").read_bytes() == wanted


def test_records_that_are_taken_for_updates_are_said_to_be(run: Run, log_path: str, tmp_path: Path) -> None:
    update = ("--time", "u64", "--record", "(string, u64, i64)")
    file = tmp_path / "x.bin"
    events = [([3, 5], [("a", 9, 1)]), {0: -1}]
    file.write_bytes(capture_bytes(events, time="u64", record="(string, u64, i64)", timely="0.32"))  # type: ignore[arg-type]
    for more, said, time in (((), True, 9), (("--updates", "no"), False, 3)):
        code, out, _ = run("import", f"{log_path}{time}", str(file), *update, *more)
        assert (code, "records are updates (data, time, diff), each at its own time" in out) == (0, said)
        assert open_log(f"{log_path}{time}").messages()["_time"].to_pylist() == [time]


# --- every log, and its types -------------------------------------------------------------------


@pytest.fixture
def typed_log(log_path: str) -> str:
    """Return a log as a first one has it: hours as times and in a column, with prices, notes and nulls."""
    moments = [dt.datetime(2013, 6, 12, hour, tzinfo=dt.UTC) for hour in (1, 1, 2)]
    hours = pa.array(moments, pa.timestamp("us", "UTC"))
    rows = pa.table(
        {
            "_time": hours,
            "hour": hours,
            "n": [1, None, 300],
            "price": pa.array([decimal.Decimal("12.50"), None, decimal.Decimal("-0.01")], pa.decimal128(12, 2)),
            "notes": pa.array([[("ä", dt.date(2013, 6, 12))], [], None], pa.map_(pa.string(), pa.date32())),
        }
    )
    log = create_log(log_path, rows.drop_columns(["_time"]).schema, times="timestamp", minimum="2013-01-01")
    log.writer(owner="me").append(rows, advance_to=[])
    return log_path


def test_log_of_hours_is_exported_and_comes_back(run: Run, typed_log: str, tmp_path: Path) -> None:
    code, out, _ = run("export", typed_log, str(tmp_path / "out"))
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("types: ")]
    assert line == (
        "types: --time timestamp_us --record '{hour: option<timestamp_us>, n: option<i64>,"
        " price: option<decimal(12, 2)>, notes: option<map<string, option<date_days>>>}' --timely 0.31"
    )
    capture = str(tmp_path / "out" / "capture_w0.bin")
    words = shlex.split(line.removeprefix("types: "))
    assert run("import", f"{typed_log}-again", capture, *words)[0] == 0
    assert digest(run, f"{typed_log}-again") == digest(run, typed_log)


def test_columns_are_chosen_and_cast(run: Run, typed_log: str, tmp_path: Path) -> None:
    chosen = ("--columns", "price,hour", "--cast", "price=string", "--cast", "hour=i64")
    code, out, _ = run("export", typed_log, str(tmp_path / "out"), *chosen, "--format", "jsonl", "--json")
    (facts,) = json.loads(out)
    assert (code, facts["record"]) == (0, "{price: option<string>, hour: option<i64>}")
    lines = [json.loads(line) for line in Path(facts["path"]).read_text(encoding="utf-8").splitlines()]
    hour = 3_600_000_000
    first = int(dt.datetime(2013, 6, 12, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
    records = [record for line in lines for record in line.get("messages", [0, []])[1]]
    prices = [("12.50", first), (None, first), ("-0.01", first + hour)]
    assert records == [{"price": price, "hour": at} for price, at in prices]
    code, out, _ = run("types", typed_log, *chosen)
    assert code == 0
    assert "    pub price: Option<String>,\n    pub hour: Option<i64>,\n" in out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--columns", "hour,x"], "could not export column 'x': found columns ['hour', 'n', 'price', 'notes'] — hint"),
        (["--columns", "n,n"], "could not choose columns: found ['n', 'n'] — hint: name each column once"),
        (["--cast", "notes=i64"], "found map<string, date32[day]> — hint: export it as it is, or leave it out"),
        (
            ["--cast", "hour=u8"],
            "cast column 'hour' to u8: found timestamp[us, tz=UTC] — hint: cast it to one",
        ),
        (["--columns", "n", "--cast", "hour=i64"], "could not cast column 'hour': found it left out, of columns ['n']"),
        (["--cast", "hour"], "could not read the command line: found --cast 'hour' — hint: write --cast at=i64"),
        (
            ["--cast", "n=u8", "--cast", "n=i8"],
            "found --cast 'n=i8' — hint: write it once for each column",
        ),
        (["--cast", "n=u8"], "could not cast column 'n' to option<u8>: found "),
        (["--cast", "price=i64"], "could not cast column 'price' to option<i64>: found "),
    ],
)
def test_choice_that_does_not_fit_is_refused(
    run: Run, typed_log: str, tmp_path: Path, words: list[str], found: str
) -> None:
    code, out, err = run("export", typed_log, str(tmp_path / "out"), *words)
    assert (code, out) != (0, "")
    assert found.replace("option<u8>", "u8").replace("option<i64>", "i64") in err
    assert not list(tmp_path.glob("out/*"))


def test_types_prints_rust(run: Run, typed_log: str) -> None:
    code, out, _ = run("types", typed_log, "--timely", "0.32")
    assert code == 0
    assert '// timely = "=0.32.0"\n' in out
    assert "pub type Time = i64;" in out
    assert (
        "pub struct Record {\n"
        "    pub hour: Option<i64>, // microseconds since 1970-01-01 UTC\n"
        "    pub n: Option<i64>,\n"
        "    pub price: Option<i128>, // times 10^2\n"
        "    pub notes: Option<Vec<(String, Option<i32>)>>, // days since 1970-01-01\n"
        "}\n"
    ) in out
    code, out, _ = run("types", typed_log, "--json")
    facts = json.loads(out)
    assert (code, facts["time"], facts["timely"]) == (0, "timestamp_us", "0.31")
    assert facts["rust"].startswith("#![allow(")
