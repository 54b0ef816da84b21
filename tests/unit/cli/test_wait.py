"""The verb `wait`: exit codes for scripts, answers as text and JSON."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.cli import main

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def log(log_path: str) -> spark_timely.Log:
    """Return a log with times 0 to 2 complete."""
    made = spark_timely.create_log(log_path, SCHEMA, minimum=(0,))
    made.writer(owner="o").advance(3)
    return made


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["wait", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_reached_is_zero_and_in_vain_is_one(log: spark_timely.Log, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, log.path, "--time", "2") == (0, "3\n", "")
    assert run(capsys, log.path, "--token", "[3]") == (0, "3\n", "")
    assert run(capsys, log.path, "--time", "3", "--timeout", "0") == (1, "3, not reached in 0 seconds\n", "")
    limits = ("--timeout", "1ms", "--poll", "1ms")
    assert run(capsys, log.path, "--time", "3", *limits) == (1, "3, not reached in 1 millisecond\n", "")
    assert run(capsys, log.path, "--token", "[]", "--timeout", "20ms", "--poll", "5ms")[0] == 1
    log.close()
    assert run(capsys, log.path, "--time", "99") == (0, "[] (complete)\n", "")
    assert run(capsys, log.path, "--token", "[]")[0] == 0


def test_json_tells_how_far_each_log_is(
    log: spark_timely.Log, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, log.path, "--time", "2", "--json")
    found = json.loads(out)
    assert found.pop("waited_seconds") >= 0
    one = {"log": log.path, "frontier": [3], "complete": False, "reached": True}
    assert (code, found) == (0, {"reached": True, "logs": [one]})
    other = spark_timely.create_log(tmp_path / "other", SCHEMA, minimum=(0,))
    file = tmp_path / "cut.json"
    file.write_text(str(spark_timely.cut([log, other], frontier=2)), encoding="utf-8")
    code, out, _ = run(capsys, "--cut", str(file), "--timeout", "0", "--json")
    assert (code, [entry["reached"] for entry in json.loads(out)["logs"]]) == (1, [True, False])
    assert run(capsys, "--cut", str(file), "--timeout", "0") == (
        1,
        f"{log.path}: 3\n{other.path}: 0, not reached in 0 seconds\n",
        "",
    )
    other.writer(owner="o").advance(2)
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text(encoding="utf-8")))
    assert run(capsys, "--cut", "-")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["LOG"], 2, "one of the arguments --time --token --cut is required"),
        (["LOG", "--time", "1", "--token", "1"], 2, "not allowed with argument"),
        (["LOG", "--time", "x"], 2, "could not read"),
        (["LOG", "--time", "1", "--timeout", "soon"], 2, "expected a duration"),
        (
            ["LOG", "--time", "1", "--timeout", "12"],
            2,
            "argument --timeout: found '12': write the number with its unit",
        ),
        (["LOG", "--time", "1", "--poll", "1.5"], 2, "argument --poll: found '1.5': expected a duration such as"),
        (["LOG", "--cut", "x"], 2, "leave LOG out"),
        (["--time", "1"], 2, "found no LOG"),
        (["--cut", "/no such file"], 2, "which cannot be read"),
        (["--cut", "/dev"], 2, "which is no file"),
        (["--cut", "/dev/zero"], 2, "which is no file"),
        (["/no such log", "--time", "1"], 3, "found nothing there"),
    ],
)
def test_errors_are_neither_yes_nor_no(
    log: spark_timely.Log, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, found: str
) -> None:
    got, out, err = run(capsys, *(log.path if word == "LOG" else word for word in arguments))
    assert (got, out) == (code, "")
    assert found in err
    assert err.count("\n") == 1


def test_replaced_log_and_damaged_cut_are_errors(
    log: spark_timely.Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cut.json"
    text = str(spark_timely.cut([log]))
    file.write_text(text[:40], encoding="utf-8")
    assert run(capsys, "--cut", str(file))[0] == 2
    file.write_text(text.replace(log.core.log_id, "another"), encoding="utf-8")
    code, _, err = run(capsys, "--cut", str(file))
    assert code == 3
    assert "the log was deleted and created again" in err


def test_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run(capsys, "--cut", str(tmp_path / "pipe"), "--timeout", "0")
    assert code == 2
    assert "which is no file" in err
