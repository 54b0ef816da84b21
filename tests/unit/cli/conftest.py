"""Run the command line in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from spark_timely.cli import main

Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test depend on the terminal of whoever runs it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command: its exit code, what it prints, and what it prints as errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call
