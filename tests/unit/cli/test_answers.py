"""The verbs that answer at a time, as far as they need no Spark: what they print, refuse, load, and how they end."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.answers.file_cache import KeptFiles
from spark_timely.answers.subscribe import subscribe
from spark_timely.cli import answers
from spark_timely.cli.answers import _print_changes, _Signals
from spark_timely.cli.output import Console
from spark_timely.cli.parser import build_parser
from spark_timely.errors import InvalidUsageError
from spark_timely.log import Log
from spark_timely.log.cut import Cut
from spark_timely.log.log import create_log, open_log
from spark_timely.time.antichain import Antichain
from tests.unit.cli.conftest import Run

SCHEMA = pa.schema([
    ("id", pa.int64()), ("name", pa.string()), ("x", pa.float64()), ("price", pa.decimal128(12, 2)),
    ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("yes", pa.bool_()), ("raw", pa.binary()),
    ("local", pa.timestamp("us")),
])  # fmt: skip
FIRST = (
    1, 'a "b", c', 0.5, Decimal("1.20"), dt.date(2013, 6, 12), dt.datetime(2013, 6, 12, 22, tzinfo=dt.UTC), True,
    b"\x01\xff", dt.datetime(2013, 6, 12, 8),
)  # fmt: skip
EMPTY = (2, None, None, None, None, None, None, None, None)
BLANK = (3, "", float("nan"), Decimal(3), dt.date(1, 1, 1), None, False, b"", None)


def append(log: Log, *rows: tuple[int, int, tuple[Any, ...]], to: int) -> None:
    """Append rows, each with its time and diff."""
    columns = {field.name: pa.array([row[2][i] for row in rows], field.type) for i, field in enumerate(SCHEMA)}
    table = pa.table({"_time": [row[0] for row in rows], "_diff": [row[1] for row in rows], **columns})
    log.writer(owner="me").append(table, advance_to=to)


@pytest.fixture
def log(log_path: str) -> Log:
    """Contents: FIRST from 1 on, EMPTY twice at 1 and 2 and once from 3 on, BLANK from 2 on; complete below 5."""
    log = create_log(log_path, SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, FIRST), (1, 2, EMPTY), (2, 1, BLANK), (3, -1, EMPTY), to=5)
    return log


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def ids(run: Run, *arguments: str) -> list[tuple[int, int]]:
    code, out, err = run("peek", *arguments, "--json", "--order-by", "id")
    assert (code, err) == (0, "")
    return [(row["id"], row["_diff"]) for row in lines(out)]


# --- peek ---------------------------------------------------------------------------------------


def test_peek_prints_the_contents_at_a_time(run: Run, log: Log) -> None:
    assert ids(run, log.path) == [(1, 1), (2, 1), (3, 1)]
    assert ids(run, log.path, "--as-of", "2") == [(1, 1), (2, 2), (3, 1)]
    assert ids(run, log.path, "--as-of", "0") == []
    assert ids(run, log.path, "--as-of", "2", "--limit", "2", "--offset", "1") == [(2, 2)]
    assert ids(run, log.path, "--as-of", "2", "--where", "x > 0.4 AND name <> ''") == [(1, 1)]
    code, out, err = run("peek", log.path, "--select", "id, name", "--order-by", "id DESC")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["id", "name", "_diff"], ["3", "1"], ["2", "-", "1"], ["1", "a", '"b",', "c", "1"],
    ]  # fmt: skip


def test_peek_prints_values_as_they_are_read_back(run: Run, log: Log) -> None:
    (first,) = lines(run("peek", log.path, "--json", "--key", "id=1")[1])
    assert list(first.values()) == [
        1, 'a "b", c', 0.5, "1.20", "2013-06-12", "2013-06-12T22:00:00Z", True, "Af8=", "2013-06-12T08:00:00", 1,
    ]  # fmt: skip
    for name, value in first.items():
        if name != "_diff":
            text = {True: "true"}.get(value, str(value)) if isinstance(value, bool) else str(value)
            found = run("peek", log.path, "--json", "--key", f"{name}={text}", "--select", "id")
            assert (found[0], lines(found[1])) == (0, [{"id": 1, "_diff": 1}]), name
    assert [row["x"] for row in lines(run("peek", log.path, "--json", "--key", "x=NaN")[1])] == ["NaN"]
    assert [row["id"] for row in lines(run("peek", log.path, "--json", "--key", "name=")[1])] == [3]


def test_peek_as_csv_tells_null_from_empty(run: Run, log: Log) -> None:
    code, out, err = run("peek", log.path, "--format", "csv", "--order-by", "id", "--select", "id,name,at,yes,x")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "id,name,at,yes,x,_diff",
        '1,"a ""b"", c",2013-06-12T22:00:00Z,true,0.5,1',
        "2,,,,,1",
        '3,"",,false,NaN,1',
    ]
    assert [row["name"] for row in csv.DictReader(io.StringIO(out))] == ['a "b", c', "", ""]


def test_keys_of_several_columns_stand_side_by_side(run: Run, log: Log) -> None:
    one, two = ("--key", "id=1", "--key", "yes=true"), ("--key", "id=3", "--key", "yes=false")
    assert ids(run, log.path, *one) == [(1, 1)]
    assert ids(run, log.path, *one, *two) == [(1, 1), (3, 1)]
    assert ids(run, log.path, "--key", "id=3", "--key", "yes=true") == []
    assert ids(run, log.path, "--key", "id=3", "--key", "id=1", "--key", "id=3") == [(1, 1), (3, 1)]


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["--key", "id"], 2, "found --key 'id' — hint: write --key COLUMN=VALUE"),
        (["--key", "id=1.5"], 2, "found --key 'id=1.5' for a column of type int64"),
        (["--key", "yes=1"], 2, "found --key 'yes=1' for a column of type bool"),
        (["--key", "price=x"], 2, "found --key 'price=x' for a column of type decimal128"),
        (["--key", "raw=!"], 2, "found --key 'raw=!' for a column of type binary"),
        (["--key", "day=soon"], 2, "found key 'soon'"),
        (["--key", "nope=1"], 2, "found no column 'nope'"),
        (["--key", "id=1", "--key", "id=2", "--key", "yes=true"], 2, "found --key with {'id': 2, 'yes': 1} values"),
        (["--select", "nope"], 2, "found no column 'nope'"),
        (["--order-by", "id +"], 2, "could not read an order"),
        (["--where", "abs(id) = 1"], 2, "in condition 'abs(id) = 1'"),
        (["--json", "--format", "csv"], 2, "found --json with --format csv"),
        (["--as-of", "soon"], 2, "soon"),
        (["--as-of", "5", "--timeout", "0"], 4, "found since=[0], upper=[5] after 0 seconds"),
        (["--max-bytes", "10"], 4, "max_bytes=10"),
        (["--limit", "-1"], 2, "argument --limit: expected a whole number"),
    ],
)
def test_peek_refuses_in_one_line(run: Run, log: Log, arguments: list[str], code: int, found: str) -> None:
    got, out, err = run("peek", log.path, *arguments)
    said = json.loads(err)["message"] if "--json" in arguments else err
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert found in said


def test_peek_that_would_read_too_much_names_the_ways_out(run: Run, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that files count although they are small.
    monkeypatch.setitem(KeptFiles.__init__.__kwdefaults__, "small_bytes", 0)
    code, out, err = run("peek", log.path, "--scan-limit", "1", "--where", "id > 3")
    assert (code, out) == (4, "")
    assert "give a larger --scan-limit" in err
    assert run("peek", log.path, "--scan-limit", "1mb", "--where", "id > 3")[0] == 0


def test_peek_explains_on_standard_error(run: Run, log: Log) -> None:
    code, out, err = run("peek", log.path, "--explain", "--json", "--key", "id=1")
    assert (code, len(lines(out))) == (0, 1)
    assert {name: json.loads(err)[name] for name in ("way", "as_of", "since", "upper")} == {
        "way": "log", "as_of": 4, "since": [0], "upper": [5],
    }  # fmt: skip
    assert "way" in run("peek", log.path, "--explain")[2].split()


def test_peek_of_a_stream_that_has_forgotten(run: Run, log_path: str) -> None:
    log = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1, 5], "v": [1, 2]}), advance_to=6)
    log.allow_compaction([3])
    assert run("peek", log_path)[0] == 4
    code, out, _ = run("peek", log_path, "--forgotten", "--format", "csv")
    assert (code, out) == (0, "v,_diff\n2,1\n")


# --- subscribe ----------------------------------------------------------------------------------


def test_subscribe_prints_contents_then_changes(run: Run, log: Log) -> None:
    code, out, err = run("subscribe", log.path, "--as-of", "1", "--up-to", "5")
    assert (code, err) == (0, "")
    found = [(row["_time"], row["_diff"], row["id"]) for row in lines(out)]
    assert sorted(found[:2]) == [(1, 1, 1), (1, 2, 2)]
    assert found[2:] == [(2, 1, 3), (3, -1, 2)]
    assert run("subscribe", log.path, "--as-of", "1", "--up-to", "1") == (0, "", "")
    code, out, _ = run("subscribe", log.path, "--as-of", "1", "--up-to", "5", "--no-snapshot")
    assert [row["_time"] for row in lines(out)] == [2, 3]
    code, out, _ = run("subscribe", log.path, "--as-of", "1", "--up-to", "5", "--order-by", "id DESC")
    assert [row["id"] for row in lines(out)] == [2, 1, 3, 2]


def test_subscribe_with_progress_begins_with_it(run: Run, log: Log) -> None:
    _, out, _ = run("subscribe", log.path, "--as-of", "2", "--up-to", "4", "--progress")
    found = lines(out)
    assert (found[0]["_time"], found[0]["_progressed"], found[0]["id"]) == (2, True, None)
    assert (found[-1]["_time"], found[-1]["_progressed"]) == (4, True)
    assert [row["_time"] for row in found if not row["_progressed"]] == [2, 2, 2, 3]


def test_subscribe_with_an_envelope(run: Run, log: Log) -> None:
    asked = ("subscribe", log.path, "--as-of", "2", "--up-to", "5", "--no-snapshot")
    (row,) = lines(run(*asked, "--envelope", "upsert", "--key", "id,name")[1])
    assert list(row.items())[:4] == [("_time", 3), ("_state", "delete"), ("id", 2), ("name", None)]
    assert run(*asked, "--key", "id")[0] == 2


def test_subscribe_ends_after_rows_or_a_while(run: Run, log: Log) -> None:
    _, out, _ = run("subscribe", log.path, "--as-of", "1", "--fetch", "2")
    assert len(lines(out)) == 2
    _, out, _ = run("subscribe", log.path, "--as-of", "1", "--fetch", "99")
    assert len(lines(out)) == 4
    assert run("subscribe", log.path, "--as-of", "1", "--fetch", "0") == (0, "", "")
    assert run("subscribe", log.path, "--as-of", "4", "--no-snapshot", "--fetch", "1", "--timeout", "0") == (0, "", "")
    _, out, _ = run("subscribe", log.path, "--as-of", "1", "--timeout", "50ms")
    assert len(lines(out)) == 4
    log.close()
    assert len(lines(run("subscribe", log.path, "--as-of", "1")[1])) == 4


def test_subscribe_acknowledges_what_was_printed(run: Run, log: Log) -> None:
    assert run("subscribe", log.path, "--as-of", "1", "--up-to", "4", "--name", "me")[0] == 0
    log.refresh()
    assert log.retainers()["me"].needed == Antichain.of(3)
    _, out, _ = run("subscribe", log.path, "--resume-from", "[4]", "--name", "me", "--timeout", "0")
    assert out == ""
    log.refresh()
    assert log.retainers()["me"].needed == Antichain.of(4)


class _Leaves(io.StringIO):
    """A reader that leaves when something is flushed for the n-th time."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def flush(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise BrokenPipeError


@pytest.mark.parametrize(("flushes", "needed"), [(0, 1), (1, 1), (2, 4)])
def test_what_was_not_flushed_is_not_acknowledged(log: Log, flushes: int, needed: int) -> None:
    # Of two batches: the contents at 1, and all changes up to 4.
    with subscribe(log.path, as_of=1, name="me") as subscription:
        console = Console(_Leaves(flushes), json_mode=False)
        if flushes < 2:
            with pytest.raises(BrokenPipeError):
                _print_changes(subscription, console, _Signals(), fetch=None, timeout_s=0)
        else:
            _print_changes(subscription, console, _Signals(), fetch=None, timeout_s=0)
    log.refresh()
    assert log.retainers()["me"].needed == Antichain.of(needed)


def start(*words: str) -> subprocess.Popen[str]:
    """Start the program so that it takes the signals that a terminal sends."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "spark_timely", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_subscribe_follows_and_ends_at_a_signal(log: Log, number: signal.Signals) -> None:
    words = ["subscribe", log.path, "--as-of", "2", "--name", "me", "--poll", "10ms", "--progress"]
    with start(*words) as process:
        try:
            assert process.stdout is not None
            before: list[dict[str, Any]] = []
            while not before or before[-1]["_time"] < 5:
                before.append(json.loads(process.stdout.readline()))
            append(open_log(log.path), (5, 1, FIRST), to=7)
            assert json.loads(process.stdout.readline())["_time"] == 5
            assert json.loads(process.stdout.readline())["_time"] == 7
            os.kill(process.pid, number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    said = re.fullmatch(r"spark-timely: to continue, add (--resume-from '.*')\nspark-timely: interrupted\n", err)
    assert said, err
    log.refresh()
    assert log.retainers()["me"].needed == Antichain.of(6)
    _, stored = shlex.split(said[1])
    assert Cut.from_json(stored).frontier == Antichain.of(7)
    append(log, (7, 1, FIRST), to=8)
    again = ["subscribe", log.path, "--resume-from", stored, "--name", "me", "--up-to", "8"]
    with start(*again) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [json.loads(line)["_time"] for line in out.splitlines()] == [7]


def test_subscribe_ends_with_its_reader(log: Log) -> None:
    # While it has nothing to write: all there is comes in one piece.
    line = 'set -o pipefail; "$@" | head -1'
    words = [sys.executable, "-m", "spark_timely", "subscribe", log.path, "--as-of", "4", "--poll", "10ms"]
    with subprocess.Popen(
        ["bash", "-c", line, "bash", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=60)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert (process.returncode, len(out.splitlines()), err) == (141, 1, "")


def test_second_signal_interrupts_at_once() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with _Signals().taken() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _Signals().taken() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert not signals.asked
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_subscribe_refuses_in_one_line(run: Run, log: Log) -> None:
    for arguments, code in (
        (["--as-of", "3", "--up-to", "2"], 2),
        (["--as-of", "3", "--as-of-at-least", "2"], 2),
        (["--envelope", "nope"], 2),
        (["--expiry", "soon", "--name", "me"], 2),
        (["--resume-from", "[99]"], 4),
    ):
        got, out, err = run("subscribe", log.path, *arguments)
        assert (got, out, err.count("\n")) == (code, "", 1), arguments
    assert run("subscribe", "/nowhere")[0] == 3


# --- sql ----------------------------------------------------------------------------------------


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark never start."""

    def refuse(_: object) -> None:
        msg = "could not start Spark: found a test"
        raise InvalidUsageError(msg)

    monkeypatch.setattr(answers, "spark_of", refuse)


@pytest.mark.usefixtures("no_spark")
def test_sql_that_is_a_peek_needs_no_spark(run: Run, log: Log) -> None:
    names = ("--name", f"orders={log.path}")
    code, out, err = run("sql", "select ID from orders order by id as of 2", *names, "--json")
    assert (code, lines(out), err) == (0, [{"id": 1}, {"id": 2}, {"id": 2}, {"id": 3}], "")
    code, out, _ = run("sql", f"SELECT id FROM `{log.path}` WHERE id > 1 ORDER BY id DESC LIMIT 2", "--format", "csv")
    assert (code, out) == (0, "id\n3\n2\n")
    assert run("sql", "SELECT id FROM orders", *names, "--as-of-at-least", "2", "--format", "csv")[1].count("2") == 2
    code, _, err = run("sql", "SELECT id FROM orders AS OF 2", *names, "--explain", "--json")
    assert (code, json.loads(err)["way"], json.loads(err)["as_of"]) == (0, "log", 2)
    found = lines(run("sql", "SUBSCRIBE TO orders WITH (SNAPSHOT = false) AS OF 1 UP TO 4", *names)[1])
    assert [row["_time"] for row in found] == [2, 3]


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("text", "arguments", "code", "found"),
    [
        ("SELECT count(*) FROM orders", [], 2, "could not start Spark"),
        ("SELECT count(*) FROM nobody", [], 2, "'nobody'"),
        ("SELECT count(*) FROM `/no/where`", [], 3, "/no/where"),
        ("SELECT 1", [], 2, "found no table of a log"),
        ("SELECT count(*) FROM orders AS OF 'soon'", [], 2, "soon"),
        ("SELECT id FROM orders AS OF 2", ["--as-of", "3"], 2, "found several times to answer at"),
        ("SELECT id FROM orders", ["--as-of", "3", "--as-of-at-least", "3"], 2, "found several times to answer at"),
        ("SELECT nope FROM orders", [], 2, "found no column 'nope'"),
        ("SELECT id FROM orders AS OF 2", ["--max-rows", "3"], 4, "found more than 3 rows — hint: add a LIMIT"),
        ("SELECT id FROM orders AS OF 9", ["--timeout", "0"], 4, "upper=[5]"),
        ("DROP TABLE orders", [], 2, "found statement of kind 'DROP'"),
        ("SELECT id FROM orders", ["--name", "ORDERS=/y"], 2, "found --name 'ORDERS=/y'"),
        ("SELECT id FROM orders", ["--name", "x"], 2, "found --name 'x'"),
        ("SUBSCRIBE orders UP TO 1", ["--format", "csv"], 2, "found --format with SUBSCRIBE"),
        ("COPY orders TO '/x'", ["--format", "csv"], 2, "found --format csv with COPY"),
        ("COPY orders TO '/x'", [], 2, "could not start Spark"),
    ],
)
def test_sql_refuses_in_one_line(run: Run, log: Log, text: str, arguments: list[str], code: int, found: str) -> None:
    got, out, err = run("sql", text, "--name", f"orders={log.path}", *arguments)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert found in err


def test_without_a_time_nothing_is_waited_for(run: Run, log: Log, tmp_path: Path) -> None:
    new = create_log(tmp_path / "new", SCHEMA, minimum=(0,), kind="collection")
    names = ("--name", f"new={new.path}", "--name", f"orders={log.path}")
    for words in (
        ("peek", new.path),
        ("sql", "SELECT * FROM new", *names),
        ("sql", "SELECT count(*) FROM new JOIN orders USING (id)", *names),
        ("sql", f"COPY new TO '{tmp_path}/copy'", *names),
    ):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (4, "", 1)
        assert "found no time that is complete: since=[0], upper=[0]" in err


def test_sql_stops_at_the_most_rows_without_reading_on(run: Run, log: Log) -> None:
    append(log, (5, 2**40, FIRST), to=6)
    names = ("--name", f"orders={log.path}")
    assert run("sql", "SELECT id FROM orders", *names)[0] == 4
    code, out, _ = run("sql", "SELECT id FROM orders ORDER BY id LIMIT 3", *names, "--max-rows", "3", "--format", "csv")
    assert (code, out) == (0, "id\n1\n1\n1\n")


# --- explain-timestamp --------------------------------------------------------------------------


def test_explain_timestamp(run: Run, log: Log, tmp_path: Path) -> None:
    other = create_log(tmp_path / "other", SCHEMA, minimum=(0,), kind="collection")
    other.writer(owner="me").advance(3)
    code, out, err = run("explain-timestamp", log.path, other.path)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split("  ")[0] == "time"
    assert "2 (the newest that is complete in all inputs)" in out
    found = json.loads(run("explain-timestamp", log.path, other.path, "--as-of", "4", "--json")[1])
    assert (found["time"], found["why"], found["at_once"]) == (4, "as_of", False)
    assert [(each["path"], each["at_once"]) for each in found["inputs"]] == [(log.path, True), (other.path, False)]
    assert run("explain-timestamp", log.path, "--as-of", "3", "--as-of-at-least", "3")[0] == 2
    assert run("explain-timestamp", log.path, "/nowhere")[0] == 3
    assert run("explain-timestamp")[0] == 2


# --- all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "light"),
    [
        (["peek", "LOG"], True),
        (["explain-timestamp", "LOG"], True),
        (["subscribe", "LOG", "--up-to", "1", "--as-of", "1"], True),
        (["sql", "SELECT id FROM `LOG` WHERE id = 1"], False),
    ],
)
def test_verbs_load_no_spark(log: Log, words: list[str], *, light: bool) -> None:
    code = (
        "import sys; from spark_timely.cli import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    )
    asked = [word.replace("LOG", log.path) for word in words]
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"pyspark", "tqdm", "shtab", "spark_timely.cli.interop"}
    assert ("sqlglot" in loaded) is not light


@pytest.mark.parametrize("verb", ["peek", "subscribe", "copy-to", "explain-timestamp"])
def test_secrets_are_not_shown(run: Run, verb: str) -> None:
    folder = ["/out"] if verb == "copy-to" else []
    options = ["--storage", "aws_secret_access_key=SECRETKEY", "--storage", "aws_region=eu-central-1"]
    options += [
        "--storage",
        "aws_endpoint=http://127.0.0.1:9",
        "--storage",
        "allow_http=true",
        "--storage",
        "max_retries=0",
    ]
    code, out, err = run(verb, "s3://bucket/log", *folder, *options, "--storage", "aws_access_key_id=AKSECRETID")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "SECRET" not in err


def test_help_says_which_verbs_start_spark() -> None:
    verbs = build_parser().verbs
    for name in ("peek", "subscribe"):
        assert "Needs no Spark" in str(verbs[name].description)
    for name in ("sql", "copy-to"):
        assert "Spark starts in this process" in str(verbs[name].description)
