"""The command line: what each verb answers, exit codes, errors in one line."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.cli import main
from spark_timely.cli.output import (
    Console,
    Table,
    cell_text,
    cut,
    display_width,
    plain_value,
    printable,
    size_text,
    to_json,
)
from spark_timely.cli.parser import build_parser
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from tests.unit.cli.conftest import Run
from tests.unit.sink.driver import BOUNDED, SinkDriver, rows

SCHEMA = pa.schema([("v", pa.int64()), ("名", pa.string())])


@pytest.fixture
def log(log_path: str) -> Log:
    """Return a log of one stream, with times 0 and 1 complete."""
    log = create_log(log_path, SCHEMA, minimum=(0,))
    append(log, [0, 1, 1], advance_to=2)
    append(log, [2, 5], advance_to=3)
    return log


def append(log: Log, times: Sequence[int], *, advance_to: int, stream: str = "main") -> None:
    rows = pa.table({"_time": pa.array(times, pa.int64()), "v": times, "名": [f"日{t}" for t in times]})
    log.writer(stream, owner="test").append(rows, advance_to=advance_to)


def verify(run: Run, path: str) -> str:
    code, out, _ = run("verify", path, "--json")
    assert code == 0
    return str(json.loads(out)["hash"])


# --- each verb ---------------------------------------------------------------------------------


def test_head_shows_first_messages_in_order_captured(run: Run, log: Log) -> None:
    code, out, err = run("head", log.path, "-n", "4")
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines[0] == ["_stream", "_seq", "_time", "v", "名"]
    assert lines[1:] == [
        ["main", "1", "0", "0", "日0"],
        ["main", "1", "1", "1", "日1"],
        ["main", "1", "1", "1", "日1"],
        ["main", "2", "2", "2", "日2"],
    ]


def test_head_json_is_one_object_per_row(run: Run, log: Log) -> None:
    _, out, _ = run("head", log.path, "--json", "--columns", "名")
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 5
    assert rows[0] == {"_stream": "main", "_seq": 1, "_time": 0, "名": "日0"}


def test_head_events_puts_progress_after_its_messages(run: Run, log: Log) -> None:
    _, out, _ = run("head", log.path, "--json", "--events", "--stream", "main", "-n", "100")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["_event"], row["_seq"]) for row in rows] == [
        ("progress", 0),
        *[("message", 1)] * 3,
        *[("progress", 1)] * 2,
        *[("message", 2)] * 2,
        *[("progress", 2)] * 2,
    ]
    deltas = [(row["_time"], row["_delta"], row["_count"]) for row in rows if row["_event"] == "progress"]
    assert deltas == [(0, 1, 1), (0, -1, 0), (2, 1, 1), (2, -1, 0), (3, 1, 1)]


def test_head_of_nothing_says_so(run: Run, log_path: str) -> None:
    create_log(log_path, SCHEMA)
    assert run("head", log_path)[:2] == (0, "no messages yet\n")
    assert run("head", log_path, "--dead")[:2] == (0, "no dead letters\n")
    assert run("head", log_path, "--json")[:2] == (0, "")


def test_head_of_zero_rows_prints_the_header_alone(run: Run, log: Log) -> None:
    assert run("head", log.path, "--json", "-n", "0") == (0, "", "")
    assert run("head", log.path, "-n", "0") == (0, "_stream  _seq  _time  v  名\n", "")
    assert run("head", log.path, "-n", "0", "--dead", "--columns", "v")[:2] == (0, "_stream  _seq  _time  _reason  v\n")


def test_stats_of_a_log_tells_frontier_sizes_and_streams(run: Run, log: Log) -> None:
    code, out, _ = run("stats", log.path, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["frontier"], facts["complete"], facts["unclaimed"]) == ([3], False, 0)
    assert facts["messages"]["rows"] == 5
    assert facts["messages"]["files"] == 2
    assert facts["dead"] == {"files": 0, "rows": 0, "bytes": 0}
    (stream,) = facts["streams"]
    assert (stream["stream"], stream["seq"], stream["owner"]) == ("main", 2, "test")
    assert stream["held"] == [{"time": 3, "count": 1}]
    assert [column["name"] for column in facts["columns"]] == ["v", "名"]
    text = run("stats", log.path)[1]
    for word in ("frontier", "main", "5 rows in 2 files", "名 string", "test"):
        assert word in text


def test_text_that_is_no_utf8_is_shown_as_bytes(run: Run, tmp_path: Path) -> None:
    # Spark writes such texts: cast(unhex('FF') AS STRING).
    damaged = pa.array([b"\xff", b"a"]).view(pa.string())
    nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], damaged)], ["x"])
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([pa.table({"t": [9, 9], "w": damaged, "ok": ["b", "c"], "n": nested})])
    code, out, err = run("head", str(driver.log_path), "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert (first["ok"], first["w"]) == ("b", plain_value(b"\xff"))
    assert (second["w"], second["n"]) == (plain_value(b"a"), {"x": [plain_value(b"a")]})
    assert run("head", str(driver.log_path))[0] == 0


def test_stats_show_what_others_changed(run: Run, log: Log) -> None:
    DeltaTable(log.path).delete("_event = 'message'")
    said = f"another program changed rows: version={log.core.version + 1} (DELETE) with 0 messages in the place of 5"
    code, out, _ = run("stats", log.path)
    assert (code, said in out) == (0, True)
    code, out, _ = run("stats", log.path, "--json")
    assert (code, json.loads(out)["warnings"]) == (0, [said])
    code, out, _ = run("verify", log.path)
    assert (code, said in out) == (1, True)
    for words in ([], ["--stream", next(iter(log.streams()))], ["--complete"]):
        code, _, err = run("frontier", log.path, *words)
        assert code not in (0, 2)
        assert "TIMELY_FOREIGN_CHANGE" in err


def test_stats_count_missing_and_differing_micro_batches(run: Run, tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    assert "consent" not in run("stats", str(driver.log_path))[1]
    for name in ("offsets", "commits"):
        (driver.checkpoint / name / "3").write_text("v1\n{}\n3")
    driver.options["beginAt"] = "4"
    for crash in ("after commit", None):
        driver.run([rows([10 if crash else 11])], crash=crash)
    (stream,) = json.loads(run("stats", str(driver.log_path), "--json")[1])["streams"]
    assert (stream["differing"], stream["gaps"], stream["epoch"]) == (1, [[1, 3]], 1)
    text = run("stats", str(driver.log_path))[1]
    assert "stream main: 1 repetition of a micro-batch with other rows than the log holds; the log's stand" in text
    assert "stream main: micro-batches missing with consent (beginAt): 1 to 3" in text
    owner = stream["owner"]
    other = SinkDriver(tmp_path, query="query-b", checkpoint="other", **BOUNDED, takeover="true")
    other.run([rows([30])])
    text = run("stats", str(driver.log_path))[1]
    assert f"stream main: micro-batches of {owner!r} missing with consent (beginAt): 1 to 3" in text


def test_stats_of_an_empty_log_says_what_it_waits_for(run: Run, log_path: str) -> None:
    create_log(log_path, SCHEMA, streams=3)
    code, out, _ = run("stats", log_path)
    assert code == 0
    assert "3 streams still to be opened" in out
    assert json.loads(run("stats", log_path, "--json")[1])["streams"] == []


@pytest.mark.parametrize(
    ("times", "first", "then", "shown", "plain"),
    [
        (("long",), [7], "8", "8", [8]),
        (("date",), [dt.date(2013, 6, 12)], "2013-06-13", "2013-06-13", ["2013-06-13"]),
        (
            ("timestamp",),
            [dt.datetime(2013, 6, 12, 8, tzinfo=dt.UTC)],
            "2013-06-12T09:00:00Z",
            "2013-06-12T09:00Z",
            ["2013-06-12T09:00:00Z"],
        ),
    ],
)
def test_frontier_is_written_as_it_is_read(
    run: Run, log_path: str, times: tuple[str], first: list[object], then: str, shown: str, plain: list[object]
) -> None:
    log = create_log(log_path, SCHEMA, times=times)
    log.writer("main").append(pa.table({"_time": first, "v": [1], "名": ["a"]}), advance_to=then)
    code, out, _ = run("frontier", log.path)
    assert (code, out) == (0, shown + "\n")
    answer = json.loads(run("frontier", log.path, "--json")[1])
    assert answer["frontier"] == plain
    # What is printed is read back.
    assert log.domain.parse_frontier(json.dumps(answer["frontier"])) == log.frontier()
    assert run("advance", log.path, out.strip())[0] == 0


def test_frontier_of_a_product_order_lists_all_its_elements(run: Run, log_path: str) -> None:
    log = create_log(log_path, SCHEMA, times=("long", "long"), minimum=(0, 0))
    log.writer("main").advance([[1, 2], [2, 1]])
    assert run("frontier", log.path)[1] == "[[1, 2], [2, 1]]\n"
    assert run("frontier", log.path, "--passed", "[1, 1]")[0] == 0
    assert run("frontier", log.path, "--passed", "[3, 1]")[0] == 1


def test_frontier_passed_and_complete_answer_by_exit_code(run: Run, log: Log) -> None:
    assert run("frontier", log.path, "--passed", "2")[0] == 0
    assert run("frontier", log.path, "--passed", "3")[0] == 1
    assert json.loads(run("frontier", log.path, "--passed", "3", "--json")[1])["answer"] is False
    assert run("frontier", log.path, "--complete")[0] == 1
    run("close", log.path)
    code, out, _ = run("frontier", log.path, "--complete")
    assert (code, out) == (0, "[] (complete)\n")


def test_frontier_at_looks_back(run: Run, log_path: str) -> None:
    now = iter(range(1000, 2000, 10))
    log = create_log(log_path, SCHEMA, minimum=(0,), clock=lambda: float(next(now)))
    append(log, [0], advance_to=4)
    between = dt.datetime.fromtimestamp(next(now), dt.UTC).isoformat()
    append(log, [4], advance_to=9)
    assert run("frontier", log.path, "--at", between)[1] == "4\n"
    assert run("frontier", log.path, "--at", between, "--stream", "main")[1] == "4\n"
    assert run("frontier", log.path)[1] == "9\n"


def test_verify_of_a_sound_log_prints_its_hash(run: Run, log: Log) -> None:
    code, out, _ = run("verify", log.path)
    assert code == 0
    assert "5 messages, 0 dead letters" in out
    assert "kept" in out
    digest = verify(run, log.path)
    assert digest in out
    assert run("verify", log.path, "--expect", digest)[0] == 0
    assert run("verify", log.path, "--expect", digest[:12].upper())[0] == 0
    assert run("verify", log.path, "--expect", "0" * 64)[0] == 1


def test_verify_relative_to_since_gives_the_hash_that_stays(run: Run, log: Log) -> None:
    frontier = log.domain.render_frontier(log.allow_compaction(log.frontier()))
    before = json.loads(run("verify", log.path, "--json", "--since")[1])
    log.compact(logical=True)
    after = json.loads(run("verify", log.path, "--json", "--since", frontier)[1])
    assert (after["hash"], after["since"], after["legal"]) == (before["hash"], before["since"], True)
    assert json.loads(run("verify", log.path, "--json")[1])["since"] is None


def test_verify_of_a_log_with_a_lost_file_says_no_and_which(run: Run, log: Log) -> None:
    lost = log.core.files().paths[0]
    (Path(log.path) / lost).unlink()
    code, out, _ = run("verify", log.path)
    assert code == 1
    assert "broken" in out
    assert lost in out
    assert json.loads(run("verify", log.path, "--json")[1])["legal"] is False


def test_advance_moves_one_stream_and_says_from_where(run: Run, log: Log) -> None:
    code, out, _ = run("advance", log.path, "10", "--reason", "nothing came all day")
    assert code == 0
    assert out.splitlines() == ["main: 3 → 10", "frontier of the log: 10"]
    state = open_log(log.path).core.stream("main")
    assert state is not None
    assert state.reason == "nothing came all day"
    assert json.loads(run("advance", log.path, "12", "--json")[1]) == {
        "moved": [{"stream": "main", "from": [10], "to": [12]}],
        "frontier": [12],
        "complete": False,
    }


def test_close_of_one_stream_leaves_the_others(run: Run, log_path: str) -> None:
    log = create_log(log_path, SCHEMA, minimum=(0,), streams=2)
    append(log, [0], advance_to=4, stream="a")
    append(log, [0], advance_to=6, stream="b")
    assert run("close", log.path, "--stream", "a")[1].splitlines() == ["a: 4 → [] (complete)", "frontier of the log: 6"]
    assert run("close", log.path)[1].splitlines() == ["b: 6 → [] (complete)", "frontier of the log: [] (complete)"]
    assert run("close", log.path)[1].splitlines() == ["nothing to do", "frontier of the log: [] (complete)"]


def test_close_of_an_empty_log_completes_it(run: Run, log_path: str) -> None:
    create_log(log_path, SCHEMA, streams=2)
    told = "2 streams still to be opened: given up\nfrontier of the log: [] (complete)\n"
    assert run("close", log_path) == (0, told, "")
    assert run("frontier", log_path, "--complete")[0] == 0


class Terminal(io.StringIO):
    """Standard input or output of a person."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_issue_14_advance_and_close_ask_at_a_terminal(
    run: Run, log: Log, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, out, err = run("advance", log.path, "10")
    assert (code, out.splitlines()) == (0, ["main: 3 → 10", "frontier of the log: 10"])
    assert err == f"main: 3 → 10\nfrontier of the log: 10\nthis cannot be undone. Advance {log.path}? [y/N] "
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, out, err = run("close", log.path, "--json")
    assert (code, json.loads(out)["complete"]) == (0, True)
    assert err.endswith(f"this cannot be undone. Close {log.path}? [y/N] ")
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))  # there is nothing to ask
    assert run("close", log.path) == (0, "nothing to do\nfrontier of the log: [] (complete)\n", "")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yep\n"])
@pytest.mark.parametrize("arguments", [("advance", "LOG", "10"), ("close", "LOG")])
def test_what_is_not_agreed_to_is_not_done(
    run: Run, log: Log, monkeypatch: pytest.MonkeyPatch, answer: str, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, out, err = run(*(log.path if word == "LOG" else word for word in arguments))
    assert (code, out) == (4, "")
    assert f"could not {arguments[0]} log {log.path!r}: found answer={answer.strip()!r}" in err
    assert "answer y, or give --yes" in err
    assert open_log(log.path).core.version == log.core.version


@pytest.mark.parametrize("terminal", [True, False])
def test_yes_and_scripts_are_not_asked(run: Run, log: Log, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("no\n") if terminal else io.StringIO("no\n"))
    yes = ["--yes"] if terminal else []
    assert run("advance", log.path, "10", *yes)[::2] == (0, "")
    assert run("close", log.path, *yes)[::2] == (0, "")
    assert open_log(log.path).frontier().is_empty


def test_issue_14_dry_run_shows_the_effect_and_changes_nothing(
    run: Run, log_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    log = create_log(log_path, SCHEMA, minimum=(0,), streams=3)
    append(log, [0], advance_to=4, stream="a")
    append(log, [0], advance_to=6, stream="b")
    for arguments, moves, left in (
        (("advance", "LOG", "9", "--stream", "a"), [("a", "4", "9")], "0"),
        (("close", "LOG", "--stream", "b"), [("b", "6", "[] (complete)")], "0"),
        (("close", "LOG"), [("a", "4", "[] (complete)"), ("b", "6", "[] (complete)")], "[] (complete)"),
    ):
        told = [f"{stream}: {old} → {new}" for stream, old, new in moves]
        told += ["1 stream still to be opened: given up"] if arguments == ("close", "LOG") else []
        words = [log.path if word == "LOG" else word for word in arguments]
        code, out, err = run(*words, "--dry-run")
        lines = [*told, f"frontier of the log: {left}", "dry run: nothing was changed"]
        assert (code, out.splitlines(), err) == (0, lines, "")
        found = json.loads(run(*words, "--dry-run", "--json")[1])
        assert (found["dry_run"], [move["stream"] for move in found["moved"]]) == (True, [each[0] for each in moves])
        assert open_log(log.path).core.version == log.core.version
    append(log, [0], advance_to=7, stream="c")
    assert "frontier of the log: 6\n" in run("advance", log.path, "9", "--stream", "a", "--dry-run")[1]
    assert "frontier of the log: 4\n" in run("close", log.path, "--stream", "b", "--dry-run")[1]
    # Refused as without it.
    assert run("advance", log.path, "3", "--stream", "a", "--dry-run")[0] == 4
    assert run("advance", log.path, "9", "--stream", "x", "--dry-run")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("advance", "LOG", "2027"),
        ("advance", "LOG", "20270101", "--dry-run"),
        ("advance", "LOG", "[2027]"),
        ("frontier", "LOG", "--passed", "2027"),
        ("frontier", "LOG", "--at", "2027"),
        ("wait", "LOG", "--time", "20270101"),
        ("wait", "LOG", "--token", "[2027]"),
        ("export", "LOG", "DIR", "--up-to", "2027"),
    ],
)
def test_issue_14_bare_numbers_are_no_timestamps(
    run: Run, log_path: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    log = create_log(log_path, SCHEMA.remove(1), times=("timestamp",))
    log.writer(owner="me").advance("2013-06-12")
    words = [{"LOG": log_path, "DIR": str(tmp_path / "out")}.get(word, word) for word in arguments]
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "a number without a unit — hint: write 2027-01-01, or us:2027" in err
    assert open_log(log_path).core.version == log.core.version
    assert run("frontier", log_path, "--passed", "us:1370995199999999")[0] == 0
    assert run("frontier", log_path, "--passed", "2013-06-12")[0] == 1


def test_compact_changes_files_and_no_answer(run: Run, log: Log) -> None:
    before, rows = verify(run, log.path), run("head", log.path)[1]
    report = json.loads(run("compact", log.path, "--json")[1])
    assert report["files_after"] < report["files_before"]
    assert verify(run, log.path) == before
    assert run("head", log.path)[1] == rows
    assert run("compact", log.path, "--target-file-size", "1mb")[0] == 0


@pytest.mark.parametrize("verb", ["head", "stats", "frontier", "verify", "compact", "close"])
@pytest.mark.parametrize("mode", [[], ["--json"]])
def test_every_verb_works_on_an_empty_log(run: Run, log_path: str, verb: str, mode: list[str]) -> None:
    create_log(log_path, SCHEMA)
    code, out, err = run(verb, log_path, *mode)
    assert (code, err) == (0, "")
    for line in out.splitlines() if mode else ():
        json.loads(line)


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["stats"], 2, "LOG"),
        (["stats", "LOG", "LOG"], 2, "more words than the verb takes"),
        (["head", "LOG", "-n", "x"], 2, "whole number"),
        (["head", "LOG", "-n", "9" * 20], 2, "whole number"),
        (["head", "LOG", "-n", "9" * 5000], 2, "whole number"),
        (["wait", "--cut", "\0"], 2, "cannot be read"),
        (["repair", "\0"], 2, "NUL"),
        (["frontier", "LOG", "--passed", "[" * 3000], 2, "could not read JSON"),
        (["head", "LOG", "--events", "--dead"], 2, "not allowed"),
        (["head", "LOG", "--columns", "v,w"], 2, "'w'"),
        (["head", "LOG", "--stream", "other"], 2, "'main'"),
        (["frontier", "LOG", "--stream", "other"], 2, "'other'"),
        (["frontier", "LOG", "--passed", "soon"], 2, "'soon'"),
        (["frontier", "LOG", "--at", "soon"], 2, "'soon'"),
        (["verify", "LOG", "--expect", "xyz"], 2, "'xyz'"),
        (["compact", "LOG", "--target-file-size", "big"], 2, "128mb"),
        (["advance", "LOG", "[1"], 2, "[1"),
        (["stats", "LOG", "--storage", "key"], 2, "KEY=VALUE"),
        (["stats", "/nowhere/at/all"], 3, "nothing there"),
        (["advance", "LOG", "1"], 4, "forward"),
        (["advance", "LOG", "9", "--stream", "other"], 2, "'other'"),
    ],
)
def test_error_is_one_line_with_a_hint_and_leaves_the_log(
    run: Run, log: Log, arguments: list[str], code: int, words: str
) -> None:
    version = log.core.version
    arguments = [log.path if argument == "LOG" else argument for argument in arguments]
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert re.match(r"spark-timely: (\[\w+\] )?could not ", err)
    assert " — hint: " in err
    assert err.count("\n") == 1
    assert words in err
    found, out, err = run(*arguments, "--json")
    assert (found, out) == (code, "")
    error = json.loads(err)
    assert error["message"].startswith("could not ")
    assert error["hint"]
    assert not log.refresh()
    assert log.core.version == version


def test_json_without_a_verb_is_an_error_as_json(run: Run) -> None:
    found, out, err = run("--json")
    assert (found, out) == (2, "")
    assert "VERB" in json.loads(err)["message"]


def test_advance_of_a_closed_log_is_refused(run: Run, log: Log) -> None:
    run("close", log.path)
    code, _, err = run("advance", log.path, "99")
    assert code == 4
    assert "closed" in err


def test_path_that_is_no_log_is_told_apart(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("no log")
    code, _, err = run("stats", str(tmp_path))
    assert code == 3
    assert err.count("\n") == 1


def test_a_mistake_of_ours_is_not_the_answer_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("spark_timely.cli.arguments.open_log", fail)
    with pytest.raises(SystemExit) as stopped:
        main(["stats", "log"])
    assert stopped.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["head", "--help"]])
def test_help_and_version_end_well(run: Run, arguments: list[str]) -> None:
    code, out, _ = run(*arguments)
    assert code == 0
    assert "spark-timely" in out


def test_help_of_every_verb_tells_the_exit_codes(run: Run) -> None:
    for verb in ("head", "stats", "frontier", "verify", "advance", "close", "compact"):
        assert "exit codes:" in run(verb, "--help")[1]


# --- as a program ------------------------------------------------------------------------------


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "spark_timely.cli", *arguments],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_program_escapes_what_the_terminal_cannot_show(log: Log) -> None:
    done = program("head", log.path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u65e50" in done.stdout
    done = program("stats", "/nowhere/日", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 3
    assert done.stderr.isascii()


def test_program_whose_reader_leaves_is_silent(log: Log) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "spark_timely.cli", "stats", log.path],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_program_needs_no_spark(log: Log) -> None:
    code = (
        "import sys; from spark_timely.cli import main; "
        f"main(['verify', {log.path!r}]); sys.exit('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


# --- output ------------------------------------------------------------------------------------


def test_table_aligns_wide_characters_and_numbers() -> None:
    out = io.StringIO()
    Console(out, json_mode=False).table(["name", "n"], [["時間", 1], ["a", 1200], ["e\u0301", None]])
    assert out.getvalue().splitlines() == ["name      n", "時間      1", "a     1,200", "e\u0301         -"]


def test_text_of_data_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2J\u202e\n") == r"a\x1b[2J\u202e\n"


def test_long_cells_are_cut_and_show_it() -> None:
    assert cut("x" * 100, 48) == "x" * 36 + "…" + "x" * 11
    assert len(cut("x" * 48, 48)) == 48
    assert display_width("日本") == 4


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (1.5, 1.5),
        (b"\x00\xff", "AP8="),
        (dt.date(2013, 1, 1), "2013-01-01"),
        (dt.datetime(2013, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), "2013-01-01T01:02:03.000004Z"),
        ([dt.time(1, 2), None, {"a": b""}], ["01:02:00", None, {"a": ""}]),
        (dt.timedelta(seconds=1), "1 second"),
        (dt.timedelta(seconds=2, microseconds=1), "2 seconds 1 microsecond"),
        (-dt.timedelta(hours=1), "-1 hour"),
        (dt.timedelta(0), "0 seconds"),
    ],
)
def test_values_that_json_lacks_are_written_as_text(value: object, plain: object) -> None:
    assert plain_value(value) == plain
    assert json.loads(to_json(value)) == plain


def test_json_controls_no_terminal() -> None:
    text = "a\x1b\x7f\x9b2J\u202e\u2028é"
    assert to_json({"v": text}) == r'{"v": "a\u001b\u007f\u009b2J\u202e\u2028é"}'
    assert json.loads(to_json(text)) == text


@pytest.mark.parametrize("columns", ["30", "200"])
def test_tables_are_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = Terminal()
    Console(out, json_mode=False).table(["name", "n"], [["x" * 60, 1200], ["a" * 30, 5]])
    widths = [len(line) for line in out.getvalue().splitlines()]
    assert max(widths) == min(int(columns), 60 + 2 + 5)
    assert "1,200" in out.getvalue()
    assert ("…" in out.getvalue()) == (columns == "30")


def test_narrow_table_cuts_its_longest_cells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    Console(out, json_mode=False).table(["a", "b", "n"], [["x" * 60, "short", 10**9], ["時" * 30, "y" * 10, 1]])
    head, first, second = out.getvalue().splitlines()
    assert [display_width(line) for line in (first, second)] == [40, 40]
    assert (" short " in first, "y" * 10 in second, "1,000,000,000" in first) == (True, True, True)
    assert head.split() == ["a", "b", "n"]


def test_cells_of_a_pipe_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = io.StringIO()
    table = Table(Console(out, json_mode=False), ["name", "n"])
    table.add([["x" * 40, 1200], ["y" * 10_000, 5], ["z", 7]])
    table.add([["w", 8]])
    rows = [("name", "n"), ("x" * 40, "1,200"), ("y" * 10_000, "5"), ("z", "7"), ("w", "8")]
    wanted = [f"{name.ljust(48)}  {n.rjust(5)}" for name, n in rows]
    assert out.getvalue().splitlines() == wanted


def test_cells_of_all_kinds_are_readable() -> None:
    assert [cell_text(value) for value in (None, True, 1234, "a", [1, "b"], 0.5)] == [
        "-", "true", "1,234", "a", '[1, "b"]', "0.5",
    ]  # fmt: skip
    assert [size_text(size) for size in (0, 999, 1000, 3 * 10**9, 10**16)] == [
        "0 B", "999 B", "1.0 kB", "3.0 GB", "10000.0 TB",
    ]  # fmt: skip


def test_no_verb_can_be_abbreviated() -> None:
    with pytest.raises(ValueError, match="unrecognized"):
        build_parser().parse_args(["stats", "log", "--js"])


@pytest.mark.parametrize(
    "words",
    [
        ["stats", "LOG", "--storage", "key:SECRET"],
        ["stats", "LOG", "--storage", "key", "SECRET"],
        ["stats", "LOG", "--storag", "key=SECRET"],
        ["stats", "LOG", "--storag=key=SECRET"],
    ],
)
def test_mistyped_storage_option_is_not_repeated(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert code == 2
    assert "SECRET" not in out + err


@pytest.mark.parametrize("verb", ["head", "tail"])
@pytest.mark.parametrize("json_mode", [False, True])
def test_dates_beyond_the_years_of_python_are_shown(run: Run, tmp_path: Path, verb: str, json_mode: bool) -> None:
    """A record may have any; a time may not."""
    at, day = pa.timestamp("us", "UTC"), pa.date32()
    schema = pa.schema([("at", at), ("days", pa.list_(day)), ("fine", day)])
    log = create_log(tmp_path / "log", schema, minimum=(0,))
    late, least = 253_402_300_800_000_000, -(1 << 63)
    columns = {"at": pa.array([late, least], at), "days": pa.array([[-(1 << 31)], None], pa.list_(pa.int32()))}
    rows = pa.table({"_time": [1, 2], **columns, "fine": pa.array([0, 1], day)})
    log.writer(owner="me").append(rows.cast(pa.schema([("_time", pa.int64()), *schema])), advance_to=3)
    code, out, _ = run(verb, str(tmp_path / "log"), *(["--json"] if json_mode else []))
    assert code == 0
    texts = (str(late), str(least), str(-(1 << 31)), "1970-01-02")
    assert all(text in out for text in (texts if json_mode else (f"{late:,}", f"{least:,}", texts[3]))), out
