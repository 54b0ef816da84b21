"""The Python that Spark's processes have in these tests behaves as the interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import alive, descendants, wait_until

pytestmark = pytest.mark.spark

TELLS = """
import json, os, sys
here = [sys.stdin.read(), __name__, sys.argv[1:], os.getcwd(), os.environ["SAID"], sys.path[:2]]
print(json.dumps([*here, os.environ.get("PYSPARK_PYTHON")]), flush=True)
print("loaded already" if "pyspark.worker" in sys.modules and os.environ["SAID"] else "", file=sys.stderr)
{end}
"""
WAITS = """
import os, pathlib, time
pathlib.Path("unfinished").write_text(str(os.getpid()))
os.rename("unfinished", "pid")
time.sleep(600)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(forked_python: Path | None, tmp_path: Path) -> Start:
    """Return a function that starts code as a module, by the interpreter or in a process that is forked."""
    assert forked_python is not None
    wait_until(forked_python.with_name("s").exists, deadline_s=60, what="the start of the process that is forked")

    forked_python.with_name("s-program-a b").touch()  # not the first of its place

    def run(code: str, *, forked: bool = True, said: str = "", name: str = "program") -> subprocess.Popen[str]:
        (tmp_path / f"{name}.py").write_text(code)
        return subprocess.Popen(
            [forked_python if forked else sys.executable, "-m", name, "a b", ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "/nowhere:/else", "SAID": said},
        )

    return run


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(7)", 7), ("sys.exit(-1)", 255), ("os._exit(3)", 3), ("raise ValueError('told')", 1),
     ("os.kill(os.getpid(), 9)", -9)],
)  # fmt: skip
def test_program_says_and_ends_as_with_the_interpreter(start: Start, end: str, code: int) -> None:
    done = []
    for forked in (False, True):
        process = start(TELLS.format(end=end), forked=forked, said="what is asked")
        out, error = process.communicate("given\n", timeout=60)
        done.append((process.returncode, out, "ValueError: told" in error))
        assert ("loaded already" in error) == forked
    assert done[0] == done[1]
    assert done[0][0] == code


def test_first_program_of_each_name_is_started(start: Start) -> None:
    done = [start(TELLS.format(end=""), said="what is asked", name=name) for name in ("one", "one", "other", "other")]
    errors = [process.communicate("given\n", timeout=60)[1] for process in done]
    assert sorted("loaded already" in error for error in errors) == [False, False, True, True]
    assert ("loaded already" in errors[0]) != ("loaded already" in errors[1])


@pytest.mark.parametrize("started", [False, True])
def test_daemon_is_started_where_that_is_asked_for(forked_python: Path | None, started: bool) -> None:
    assert forked_python is not None
    wait_until(forked_python.with_name("s").exists, deadline_s=60, what="the start of the process that is forked")
    asked = {"SPARK_TIMELY_STARTED_DAEMONS": "1"} if started else {}
    command = [forked_python, "-m", "pyspark.daemon", "no.module"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **asked, "PYTHONHASHSEED": "0"}
    )
    assert process.stdout is not None
    assert len(process.stdout.read(4)) == 4  # its port
    words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    process.communicate(timeout=60)  # it ends with its input
    assert any(word.endswith("launch.py") for word in words) != started


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_program_ends_with_who_stands_for_it(start: Start, tmp_path: Path, how: signal.Signals) -> None:
    process = start(WAITS)
    wait_until((tmp_path / "pid").exists, deadline_s=60, what="the start of the program")
    program = int((tmp_path / "pid").read_text())
    assert program != process.pid
    assert descendants(process.pid) == [program]
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == -how
    wait_until(lambda: not alive(program), deadline_s=60, what="the end of the program")


def test_what_is_no_module_is_the_interpreter_itself(forked_python: Path | None) -> None:
    assert forked_python is not None
    told = subprocess.run([forked_python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    assert told.stdout == f"{sys.executable}\n"
