"""A plugin of pytest that notes which tests run which lines, and for how long: ``-p tests.mutants.plugin``.

The file that it writes is named by the environment, and so are the folders whose lines are meant. Tests that fail
are not in it. Lines that run when a module is imported are noted for no test.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests.mutants import LINES_FILE, LINES_FOLDERS

_ROOT = Path.cwd().resolve()
_coverage = coverage.Coverage(
    data_file=None,
    config_file=False,
    include=[f"{_ROOT}/{folder}/*" for folder in os.environ[LINES_FOLDERS].split(",")],
)
_coverage.start()  # before the first test module imports what it tests
_seconds: Counter[str] = Counter()
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the lines of a test and of its fixtures under its name."""
    _coverage.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _coverage.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time that the test took."""
    _seconds[report.nodeid] += report.duration  # type: ignore[assignment]
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the file."""
    _coverage.stop()
    data = _coverage.get_data()
    names = [name for name in _seconds if name not in _failed]
    number = {name: at for at, name in enumerate(names)}
    lines = {
        str(Path(file).relative_to(_ROOT)): {
            line: sorted(number[context] for context in contexts if context in number)
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    tests = [(name, round(_seconds[name], 4)) for name in names]
    text = json.dumps({"tests": tests, "failed": sorted(_failed), "lines": lines})
    Path(os.environ[LINES_FILE]).write_text(text, encoding="utf-8")
