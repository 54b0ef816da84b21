"""The logs that tests of every log are run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_timely.log import core
from spark_timely.log.store import delta as delta_store
from tests.conformance.logs import KINDS, LogMaker


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> LogMaker:
    return LogMaker(request.param, tmp_path)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once where a log that is damaged is looked at again after a pause."""
    monkeypatch.setattr(delta_store, "_pause", lambda _: None)


@pytest.fixture(autouse=True)
def _upkeep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the upkeep of logs in object stores where tests wait for it: with the commit that it comes with."""

    def run(log: object, job: Callable[[], None]) -> bool:
        del log
        job()
        return True

    monkeypatch.setattr(core, "run_aside", run)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a log"
