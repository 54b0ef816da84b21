"""The command line itself: what it loads, its help, mistyped words, completion, and standard streams that fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.cli import main
from spark_timely.cli.parser import build_parser, wrapped
from spark_timely.cli.verb_table import VERBS
from spark_timely.log import Log
from spark_timely.log.log import create_log
from tests.unit.cli.conftest import Run

HEAVY = {"numpy", "pyarrow", "pandas", "deltalake", "tqdm", "pyspark", "shtab", "sqlglot", "numba"}


@pytest.fixture
def log(log_path: str) -> Log:
    """Return a log of one stream, with times 0 and 1 complete."""
    log = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="test").append(pa.table({"_time": [0, 1], "v": [0, 1]}), advance_to=2)
    return log


# --- what is loaded ----------------------------------------------------------------------------


def loaded(*arguments: str) -> set[str]:
    """Return the modules that a fresh process has loaded when it has run a command."""
    code = (
        "import contextlib, io, sys\n"
        "from spark_timely.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    main({list(arguments)!r})\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_version_loads_nothing_but_itself() -> None:
    modules = loaded("--version")
    assert not {name.partition(".")[0] for name in modules} & {*HEAVY, "argparse", "logging"}
    assert {name for name in modules if name.startswith("spark_timely")} == {
        "spark_timely",
        "spark_timely.cli",
        "spark_timely.cli.command",
        "spark_timely.lazy",
    }


@pytest.mark.parametrize(
    "arguments", [["--help"], ["help", "frontier"], ["import", "--help"], ["frontir", "x"], ["stats", "x", "--jsn"], []]
)
def test_help_and_errors_load_nothing_heavy(arguments: list[str]) -> None:
    modules = loaded(*arguments)
    assert not {name.partition(".")[0] for name in modules} & HEAVY
    assert not modules & {"spark_timely.cli.log_verbs", "spark_timely.cli.interop"}


def test_frontier_loads_delta_alone(log: Log) -> None:
    modules = {name.partition(".")[0] for name in loaded("frontier", log.path)}
    assert "deltalake" in modules
    assert not modules & (HEAVY - {"deltalake"})


def test_a_verb_loads_no_other_file_of_verbs(log: Log) -> None:
    modules = loaded("stats", log.path)
    assert "spark_timely.cli.interop" not in modules
    assert not {name.partition(".")[0] for name in modules} & {"tqdm", "pyspark", "shtab", "numba"}


# --- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_help_of_a_verb_is_what_the_verb_says(run: Run, verb: str) -> None:
    said = run("help", verb)
    assert said == run(verb, "--help")
    assert (said[0], said[2]) == (0, "")
    assert said[1].startswith(f"usage: spark-timely {verb} ")


def test_help_alone_is_that_of_all(run: Run) -> None:
    said = run("help")
    assert said == run("--help")
    assert all(re.search(rf"^    {verb.name}  ", said[1], re.MULTILINE) for verb in VERBS)


@pytest.mark.parametrize("columns", ["60", "100", "200"])
@pytest.mark.parametrize("arguments", [["--help"], ["frontier", "--help"], ["export", "--help"]])
def test_help_is_as_wide_as_the_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: str, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = run(*arguments)[1].splitlines()
    # A single word may be longer, such as a list of times.
    assert all(len(line) <= int(columns) for line in lines if len(line.split()) > 2)
    monkeypatch.setenv("COLUMNS", "1000")
    assert len(lines) > len(run(*arguments)[1].splitlines())


def test_lists_of_a_help_are_wrapped_below_their_words() -> None:
    assert wrapped("codes:\n  130  interrupted by somebody\n\nthe end", 20).splitlines() == [
        "codes:",
        "  130  interrupted",
        "       by somebody",
        "",
        "the end",
    ]


# --- mistyped words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "found", "hint", "usage"),
    [
        (["fronteir", "x"], "found no verb 'fronteir'", "did you mean frontier? ", ""),
        (["qqq"], "found no verb 'qqq'", "see `spark-timely --help`", ""),
        (["help", "stat"], "found no verb 'stat'", "did you mean stats? ", ""),
        (["--verison"], "arguments: --verison", "did you mean --version? ", ""),
        (["--storage", "k=v", "stats", "x"], ": --storage", "write --storage behind the verb; ", ""),
        (["stats", "x", "--jsn"], "arguments: --jsn", "did you mean --json? ", "usage: spark-timely stats "),
        (["close", "x", "--dry"], "arguments: --dry", "did you mean --dry-run? ", "usage: spark-timely close "),
        (["head", "x", "--row=5"], "arguments: --row", "did you mean --rows? ", "usage: spark-timely head "),
        (["stats", "x", "-v"], "arguments: -v", "see `spark-timely stats --help`", "usage: spark-timely stats "),
        # What is missing may be what is mistyped.
        (["wait", "x", "--tme", "5"], "arguments: --tme", "did you mean --time? ", "usage: spark-timely wait "),
    ],
)
def test_mistyped_word_gets_a_guess_and_the_usage(
    run: Run, arguments: list[str], found: str, hint: str, usage: str
) -> None:
    code, out, err = run(*arguments)
    first, *more = err.splitlines()
    assert (code, out) == (2, "")
    assert found in first
    assert hint in first.partition(" — hint: ")[2]
    # Of all verbs nothing is shown: the error would scroll away.
    assert more == [] if not usage else (more[0] == "" and more[1].startswith(usage))
    assert len(more) < 10
    code, out, err = run(*arguments, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert json.loads(err)["error"] == "InvalidUsageError"


def test_command_without_a_word_prints_the_help(run: Run) -> None:
    assert run() == run("--help")
    assert run()[0] == 0


@pytest.mark.parametrize("more", [[], ["--stream", "main"]])
def test_frontier_answers_what_was_asked(run: Run, log: Log, more: list[str]) -> None:
    for asked, answer in (([], None), (["--passed", "1"], True), (["--passed", "2"], False), (["--complete"], False)):
        code, out, _ = run("frontier", log.path, "--json", *asked, *more)
        assert (code, json.loads(out).get("answer")) == (0 if answer in (None, True) else 1, answer)


def test_mistyped_choice_gets_a_guess(run: Run) -> None:
    code, _, err = run("export", "x", "y", "--format", "jsonn")
    assert (code, err.count("\n")) == (2, 1)
    assert "argument --format: found 'jsonn' — hint: did you mean jsonl? choose among timely, jsonl, cdcv2; see" in err


def test_values_may_look_like_options(run: Run, log_path: str) -> None:
    log = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(-9,))
    log.writer(owner="test").advance(-8)
    assert run("advance", log.path, "-5", "--reason", "--not an option")[0] == 0
    assert run("frontier", log.path, "--passed", "-6")[:2] == (0, "-5\n")
    assert run("head", log.path, "-n5")[0] == 0


@pytest.mark.parametrize("json_first", [True, False])
def test_json_may_be_on_either_side_of_the_verb(run: Run, log: Log, *, json_first: bool) -> None:
    words = ["--json", "frontier", log.path] if json_first else ["frontier", log.path, "--json"]
    code, out, err = run(*words)
    assert (code, json.loads(out), err) == (0, {"frontier": [2], "complete": False}, "")
    code, out, err = run(*(word.replace(log.path, "/nowhere") for word in words))
    assert (code, out, json.loads(err)["error"]) == (3, "", "LogMissingError")


# Also run without optional packages (`make lane-base`), of which it is one.
NO_SHTAB = "completion needs shtab, of the extra `cli`"

# --- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_all_verbs_and_options(run: Run, shell: str) -> None:
    shtab = pytest.importorskip("shtab", reason=NO_SHTAB)
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    for verb in VERBS:
        assert re.search(rf"\b{verb.name}\b", out)
    assert "--dry-run" in out
    assert shtab.DIRECTORY[shell] in out


def test_completion_in_bash_completes(run: Run) -> None:
    pytest.importorskip("shtab", reason=NO_SHTAB)
    script = run("completion", "bash")[1]
    asked = "COMP_WORDS=(spark-timely fr); COMP_CWORD=1; _shtab_spark_timely; echo ${COMPREPLY[@]}\n"
    asked += "COMP_WORDS=(spark-timely close x --dr); COMP_CWORD=3; _shtab_spark_timely; echo ${COMPREPLY[@]}\n"
    done = subprocess.run(["bash", "-c", script + asked], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["frontier", "--dry-run"]


def test_completion_without_its_package_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, out, err = run("completion", "bash")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "found no package shtab — hint: run pip install 'spark-timely[cli]'" in err


# --- as a program ------------------------------------------------------------------------------


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which `$@` is the command line with some arguments."""
    words: Sequence[str] = ["bash", "-c", f"set -o pipefail; {line}", "bash", sys.executable, "-m", "spark_timely"]
    return subprocess.run([*words, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_module_is_the_program(log: Log) -> None:
    done = shell('"$@"', "frontier", log.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert shell('"$@"', "--version").stdout.startswith("spark-timely ")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["frontier", "LOG"], ["stats", "LOG", "--json"]])
def test_full_disk_is_an_error_in_one_line(log: Log, arguments: list[str]) -> None:
    done = shell('"$@" >/dev/full', *(log.path if word == "LOG" else word for word in arguments))
    assert done.returncode == 3
    assert "could not write the answer: found OSError(28, 'No space left on device')" in done.stderr
    assert "free space where standard output goes" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_leave_the_exit_code(log: Log, closed: str) -> None:
    for arguments, code in (
        (["--version"], 0),
        (["--help"], 0),
        (["frontier", log.path, "--passed", "1"], 0),
        (["frontier", log.path, "--passed", "9"], 1),
        (["nope"], 2),
        (["stats", "/nowhere"], 3),
    ):
        done = shell(f'"$@" {closed}', *arguments)
        assert done.returncode == code, arguments
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr


def test_closed_output_takes_no_file_of_the_log(log: Log) -> None:
    # The next file that is opened would have its number, and be written to.
    assert shell('"$@" >&- 2>&-', "advance", log.path, "7").returncode == 0
    done = shell('"$@"', "verify", log.path)
    assert (done.returncode, done.stderr) == (0, "")


def test_reader_that_leaves_ends_the_program(log: Log) -> None:
    writer = log.writer(owner="test")
    writer.append(pa.table({"_time": [2] * 5000, "v": range(5000)}), advance_to=3)
    done = shell('"$@" | head -1', "head", log.path, "-n", "100000")
    assert (done.returncode, done.stdout, done.stderr) == (141, "_stream  _seq  _time      v\n", "")


def test_full_disk_for_errors_too_is_silent() -> None:
    done = shell('"$@" 2>/dev/full', "stats", "/nowhere")
    assert (done.returncode, done.stderr) == (3, "")


# --- cloud stores ------------------------------------------------------------------------------

# Asked once: that a store is asked again for a while, and not for long, is tested where it is done.
REFUSING = (
    "--storage",
    "aws_endpoint=http://127.0.0.1:9",
    "--storage",
    "allow_http=true",
    "--storage",
    "max_retries=0",
)
KEYS = ("--storage", "aws_access_key_id=AKSECRETID", "--storage", "aws_secret_access_key=SECRETKEY")
REGION = ("--storage", "aws_region=eu-central-1")


@pytest.mark.parametrize("words", ["SECRETKEY=aws_secret_access_key", '{"aws_secret_access_key": "SECRETKEY="}'])
def test_secret_in_the_place_of_a_name_is_not_shown(run: Run, words: str) -> None:
    code, out, err = run("stats", "s3://bucket/log", "--storage", words)
    assert (code, out) == (2, "")
    assert "could not use storage option '***' of log" in err
    assert "SECRET" not in err


@pytest.mark.parametrize("verb", ["frontier", "head", "ls", "close"])
def test_cloud_store_that_refuses_is_an_error_in_one_line(run: Run, verb: str) -> None:
    code, out, err = run(verb, "s3://bucket/log", *REFUSING, *KEYS, *REGION)
    assert (code, out) == (3, "")
    assert re.fullmatch(r"spark-timely: (\[\w+\] )?could not look into log 's3://bucket/log': found .*\n", err)
    assert "found that nobody answers, host='127.0.0.1:9' — hint: check the endpoint" in err
    assert "SECRET" not in err


@pytest.mark.parametrize(
    ("url", "options", "found"),
    [
        (
            "s3://bucket/log",
            [*REFUSING[:2], *KEYS, *REGION],
            "found an endpoint without encryption, host='127.0.0.1:9'",
        ),
        ("none://bucket/log", [], "found an unknown scheme — hint: write s3://"),
    ],
)
def test_what_is_wrong_with_a_cloud_store_is_said(run: Run, url: str, options: list[str], found: str) -> None:
    code, out, err = run("stats", url, *options)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert found in err
    assert "SECRET" not in err


def test_setting_of_the_client_that_is_no_number_is_refused(run: Run) -> None:
    code, out, err = run("stats", "s3://bucket/log", *REFUSING[:4], *KEYS, *REGION, "--storage", "max_retries=x")
    assert (code, out) == (2, "")
    assert "could not use storage option 'max_retries': found value='x' — hint: give digits" in err


def test_store_without_credentials_is_an_error_in_one_line(tmp_path: Path) -> None:
    # This machine has none of its own: the address at which a cloud gives them to machines refuses.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        "AWS_REGION": "eu-central-1",
    }
    words = ["frontier", "s3://bucket/log", *REFUSING, "--storage", "aws_metadata_endpoint=http://127.0.0.1:9"]
    done = subprocess.run(
        [sys.executable, "-m", "spark_timely", *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "found no credentials — hint: give them as storage options" in done.stderr


def test_parser_of_all_verbs_can_be_made_twice() -> None:
    assert build_parser().verbs.keys() == build_parser().verbs.keys() == {verb.name for verb in VERBS}
    with pytest.raises(ValueError, match="unrecognized"):
        build_parser().parse_args(["stats", "log", "--js"])
    assert main(["--version"]) == 0


def test_commands_run_where_no_environment_is(log: Log) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_timely", "frontier", log.path],
        capture_output=True,
        check=False,
        timeout=120,
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"2\n", b"")
