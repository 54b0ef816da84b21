"""The verbs `ls` and `tail`: which logs there are, and what comes last."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_timely.cli.log_verbs import _tail
from spark_timely.cli.output import Console
from spark_timely.cli.parser import build_parser
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from tests.unit.cli.conftest import Run

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def log(log_path: str) -> Log:
    """Return a log of two streams, `a` and `b`, that commit in turn: the wall clock says which came last."""
    ticks = itertools.count(1_000_000_000, 10)
    log = create_log(log_path, SCHEMA, minimum=(0,), streams=2, clock=lambda: float(next(ticks)))
    for number, stream in enumerate("abab"):
        append(log, stream, [number] * 2)
    return log


def append(log: Log, stream: str, times: Sequence[int]) -> None:
    log.writer(stream, owner="me").append(pa.table({"_time": times, "v": times}), advance_to=max(times) + 1)


# --- ls ----------------------------------------------------------------------------------------


def test_ls_has_a_line_for_each_log_below(run: Run, log: Log, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(log.path, root / "day" / "flights")
    create_log(root / "orders", SCHEMA, kind="collection").close()
    create_log(root / ".hidden", SCHEMA)
    write_deltalake(root / "table", pa.table({"v": [1]}))
    (root / "notes.txt").write_text("no log")
    code, out, err = run("ls", str(root))
    lines = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in line if cell] for line in lines]
    assert (code, err) == (0, "")
    assert cells[0] == ["log", "kind", "streams", "frontier", "messages", "size", "newest commit"]
    assert cells[1][:5] == ["day/flights", "stream", "2", "3", "8"]
    assert cells[1][6] == "2001-09-09T01:48:00Z"
    assert cells[2][:5] == ["orders", "collection", "0", "[] (complete)", "0"]
    assert len(cells) == 3
    found = [json.loads(line) for line in run("ls", str(root), "--json")[1].splitlines()]
    assert [(each["path"], each["streams"], each["complete"]) for each in found] == [
        (str(root / "day" / "flights"), ["a", "b"], False),
        (str(root / "orders"), [], True),
    ]
    assert found[0]["messages"]["rows"] == 8


def test_ls_of_a_log_is_about_that_log(run: Run, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("ls", log.path)[1].splitlines()[1].split()[:2] == [".", "stream"]
    monkeypatch.chdir(log.path)
    assert run("ls")[1] == run("ls", log.path)[1]


def test_ls_looks_as_deep_as_is_asked(run: Run, log: Log, tmp_path: Path) -> None:
    shutil.copytree(log.path, tmp_path / "r" / "1" / "2" / "3" / "4")
    assert run("ls", str(tmp_path / "r")) == (0, "no logs here\n", "")
    assert run("ls", str(tmp_path / "r"), "--json") == (0, "", "")
    assert "1/2/3/4 " in run("ls", str(tmp_path / "r"), "--depth", "4")[1]


def test_ls_shows_the_others_where_a_log_is_damaged(run: Run, log: Log, tmp_path: Path) -> None:
    for name in "xyz":
        shutil.copytree(log.path, tmp_path / "r" / name)
    for name in "xz":
        for file in (tmp_path / "r" / name).glob("_event=progress/*"):
            file.unlink()
    code, out, err = run("ls", str(tmp_path / "r"))
    assert code == 3
    assert [line.split()[0] for line in out.splitlines()] == ["log", "y"]
    assert err.count("\n") == 1
    assert str(tmp_path / "r" / "x") in err
    assert "and 1 other log could not be opened either" in err


@pytest.mark.parametrize("folder", ["/nowhere", "FILE"])
def test_ls_of_no_folder_is_an_error(run: Run, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run("ls", folder.replace("FILE", str(tmp_path / "file")))
    assert (code, out, err.count("\n")) == (3, "", 1)


# --- tail --------------------------------------------------------------------------------------


def rows_of(run: Run, *arguments: str) -> list[tuple[str, int]]:
    code, out, err = run("tail", *arguments, "--json")
    assert (code, err) == (0, "")
    return [(row["_stream"], row["v"]) for row in map(json.loads, out.splitlines())]


def test_tail_shows_the_newest_rows_of_all_streams(run: Run, log: Log) -> None:
    every = [("a", 0), ("a", 0), ("b", 1), ("b", 1), ("a", 2), ("a", 2), ("b", 3), ("b", 3)]
    for number in (0, 1, 2, 3, 5, 8, 10):
        assert rows_of(run, log.path, "-n", str(number)) == every[len(every) - min(number, 8) :]
    assert rows_of(run, log.path) == every
    assert rows_of(run, log.path, "--stream", "a", "-n", "3") == [("a", 0), ("a", 2), ("a", 2)]
    log.compact()
    assert rows_of(run, log.path, "-n", "3") == every[-3:]


def test_tail_reads_the_newest_files_alone(run: Run, log: Log) -> None:
    for file in Path(log.path).glob("_event=message/*"):
        if not file.name.startswith("b-000000000002"):
            file.unlink()
    assert rows_of(run, log.path, "-n", "2") == [("b", 3), ("b", 3)]
    assert run("tail", log.path, "-n", "3")[0] == 3


def test_tail_as_a_table_has_the_columns_of_head(run: Run, log: Log) -> None:
    assert run("tail", log.path, "-n", "1")[1] == "_stream  _seq  _time  v\nb           2      3  3\n"
    assert run("tail", log.path, "-n", "0")[1] == "_stream  _seq  _time  v\n"
    head = run("tail", log.path, "--events", "-n", "2", "--columns", "v")[1].splitlines()
    assert head[0].split() == ["_event", "_stream", "_seq", "_time", "_delta", "_count", "v"]
    assert [line.split()[0] for line in head[1:]] == ["progress", "progress"]


def test_tail_of_an_empty_log_says_so(run: Run, log_path: str) -> None:
    create_log(log_path, SCHEMA)
    assert run("tail", log_path)[:2] == (0, "no messages yet\n")
    assert run("tail", log_path, "--json")[:2] == (0, "")


def follow(
    log: Log, *arguments: str, turns: Sequence[Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Follow a log while something happens between each two looks; return what is printed."""
    todo = iter(turns)
    options = build_parser().parse_args(["tail", log.path, "-f", *arguments])
    assert _tail(options, Console(sys.stdout, json_mode=options.json), now=lambda: 0.0, pause=lambda _: next(todo)())
    assert next(todo, None) is None, "it ended too early"
    return capsys.readouterr().out.splitlines()


def test_tail_follows_until_the_log_is_complete(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    other = open_log(log.path)
    turns: list[Callable[[], None]] = [
        lambda: append(other, "a", [7]),
        lambda: None,
        lambda: (append(other, "a", [8]), append(other, "b", [9, 9]))[0],
        lambda: (other.close(), None)[1],
    ]
    lines = follow(log, "-n", "1", turns=turns, capsys=capsys)
    assert [line.split()[-1] for line in lines] == ["v", "3", "7", "8", "9", "9"]
    assert lines[0].split() == ["_stream", "_seq", "_time", "v"]


def test_tail_follows_one_stream_until_it_is_closed(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    other = open_log(log.path)
    turns: list[Callable[[], None]] = [
        lambda: append(other, "b", [7]),
        lambda: (append(other, "a", [8]), other.close("a"), None)[2],
    ]
    lines = follow(log, "-n", "0", "--stream", "a", "--json", turns=turns, capsys=capsys)
    assert [json.loads(line)["v"] for line in lines] == [8]


def test_tail_counts_each_commit_once_over_a_merge(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    other = open_log(log.path)
    turns: list[Callable[[], None]] = [
        lambda: (append(other, "a", [7]), other.compact(), None)[2],
        lambda: (append(other, "b", [8]), other.close(), None)[2],
    ]
    lines = follow(log, "-n", "0", "--json", "--events", turns=turns, capsys=capsys)
    rows = [json.loads(line) for line in lines]
    assert [row["v"] for row in rows if row["_event"] == "message"] == [7, 8]
    assert len(rows) == len({json.dumps(row) for row in rows})


@pytest.mark.parametrize("line", ['"$@" | head -1', '"$@"'])
def test_tail_ends_with_its_reader_or_at_an_interrupt(log: Log, line: str) -> None:
    words = ["tail", "-f", log.path, "--poll", "10ms", "-n", "1"]
    # A test run in the background of a script ignores the signal, and what it starts would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # In a group of its own, as a shell would start it at a terminal.
        process = subprocess.Popen(
            ["bash", "-c", f"set -o pipefail; {line}", "bash", sys.executable, "-m", "spark_timely", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == "_stream  _seq  _time  v\n"
            if "head" not in line:
                assert process.stdout.readline() == "b           2      3  3\n"
                os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=60)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if "head" in line:
        assert (process.returncode, err) == (141, "")
    else:
        assert err == "spark-timely: interrupted\n"
        assert process.returncode in {130, -signal.SIGINT}, "of the shell, which was interrupted too"
