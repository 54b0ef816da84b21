"""What the tests of the examples share."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.forking import Forks
from tests.modules import ROOT


@pytest.fixture(scope="session", autouse=True)
def forked_python(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    """Have Spark's Python processes forked of one: sessions that begin here take this as their Python."""
    if not any(item.get_closest_marker("spark") for item in request.session.items):
        yield None
        return
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    before = {name: os.environ[name] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        forks = Forks(Path(folder))
        forks.start()
        os.environ.update(dict.fromkeys(names, str(forks.python)))
        yield forks.python
        os.environ.update(before)
        forks.stop()


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that loads a module of the examples by its name."""
    folder = str(ROOT / "examples")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)
