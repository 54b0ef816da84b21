"""Run tests against one changed file, in a process of its own that may hang, crash or fill the memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MEMORY_BYTES = 16 << 30
"""What a trial may map. Tests as they are need less; a change may ask for more than there is."""


class _Chosen:
    """Of the tests in the files keeps the chosen ones, the quickest first, and notes which one failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {name: at for at, name in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = [(self.order.get(item.nodeid, self.order.get(item.nodeid.split("[")[0])), item) for item in items]
        items[:] = [item for place, item in sorted((x for x in places if x[0] is not None), key=lambda x: x[0])]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def trial(tests: Sequence[str], *, scratch: Path, limit_s: float) -> tuple[str, str]:
    """Run tests until one fails.

    Parameters
    ----------
    tests
        Names of tests, in the order in which they are to run; one without parameters stands for all of its cases.
    scratch
        A folder for what they write; it is emptied.
    limit_s
        After so many seconds of the clock it hangs.

    Returns
    -------
    outcome, test
        ``passed``; ``failed`` and the test that failed, or nothing where no test could start; ``hung``; ``empty``
        where none of the tests is there any more.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_run, args=(list(tests), scratch))
    process.start()
    process.join(limit_s)
    hung = process.is_alive()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # what the tests have started, too
    process.join()
    if hung:
        return "hung", ""
    failed = scratch / "failed"
    name = failed.read_text(encoding="utf-8") if failed.exists() else ""
    if process.exitcode == pytest.ExitCode.OK:
        return "passed", ""
    return ("empty" if process.exitcode == pytest.ExitCode.NO_TESTS_COLLECTED else "failed"), name


def _run(tests: list[str], scratch: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    output = os.open(scratch / "output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    chosen = _Chosen(tests)
    files = sorted({name.split("::")[0] for name in tests})
    options = ["-x", "-q", "--tb=line", "--no-header", "-p", "no:xdist", "--hypothesis-profile=mutants"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # modules are imported before the fork, on purpose
    code = pytest.main([*options, f"--basetemp={scratch / 'tmp'}", *files], plugins=[chosen])
    (scratch / "failed").write_text(chosen.failed, encoding="utf-8")
    sys.stdout.flush()
    os._exit(int(code))  # no clean-up of what a changed program has made
