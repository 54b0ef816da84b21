"""The logs that tests of every log are run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.logs import KINDS, LogMaker


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> LogMaker:
    return LogMaker(request.param, tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a log"
