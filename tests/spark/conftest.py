"""What the tests of the examples share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.modules import ROOT


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that loads a module of the examples by its name."""
    folder = str(ROOT / "examples")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)
