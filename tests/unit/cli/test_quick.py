"""The verb `frontier` answers the same at once and by opening the log."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_timely.cli import quick
from spark_timely.log import Log
from spark_timely.log.log import create_log
from spark_timely.log.store import newest
from tests.unit.cli.conftest import Run

SCHEMA = pa.schema([("v", pa.int64())])
TIMES = {
    "short": (5, ["4", "5", "-1", "32767", "32768"]),
    "long": (5, ["4", "5", "-1", "5.0", "[4]", " 4 ", "9" * 19, "2013-06-12"]),
    "date": (dt.date(2013, 6, 12), ["2013-06-11", "2013-06-12", "2013", "days:15867", "1600-01-01", "10000-01-01"]),
    "timestamp": (
        dt.datetime(2013, 6, 12, 8, tzinfo=dt.UTC),
        ["2013-06-12", "2013-06-12T08:00Z", "2013-06-12T07:59:59Z", "2013", "us:5", "1600-01-01", "2013-06-12T09:00"],
    ),
}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes the verb look at the log by delta-rs alone, although this process has loaded the rest."""

    def begin() -> None:
        def found(path: str) -> object:
            entry = newest._newest(path)
            return 1 if entry is None else newest._found(path, *entry)

        monkeypatch.setattr(quick, "newest_frontier", found)

    return begin


@pytest.mark.parametrize("type_", TIMES)
def test_answers_are_those_of_the_opened_log(
    run: Run, log_path: str, at_once: Callable[[], None], monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    at, asked = TIMES[type_]
    log = create_log(log_path, SCHEMA, times=(type_,))
    questions: list[list[str]] = [[], ["--complete"], *(["--passed", time] for time in asked)]
    questions += [["--stream", "main"], ["--at", "2100-01-01"]]

    def answers() -> list[tuple[int, str, str]]:
        return [run("frontier", log_path, *words, *mode) for words in questions for mode in ([], ["--json"])]

    for step in (lambda: log.writer(owner="me").advance(at), lambda: log.close()):
        step()
        monkeypatch.undo()
        opened = answers()
        at_once()
        assert answers() == opened
        assert {code for code, _, _ in opened} >= {0, 2}


def test_program_answers_at_once(log_path: str) -> None:
    log: Log = create_log(log_path, SCHEMA, times=("timestamp",))
    log.writer(owner="me").advance("2013-06-12T08:00Z")
    code = (
        "import sys; from spark_timely.cli import main; code = main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    )
    for words, wanted in ((["--json"], 0), (["--complete", "--json"], 1), (["--passed", "2013-06-12", "--json"], 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, "frontier", log.path, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        answer, modules = done.stdout.splitlines()
        assert (done.returncode, done.stderr) == (wanted, "")
        asked = {} if words == ["--json"] else {"answer": wanted == 0}
        assert json.loads(answer) == {"frontier": ["2013-06-12T08:00:00Z"], "complete": False} | asked
        assert not {"numpy", "pyarrow"} & set(modules.split())
