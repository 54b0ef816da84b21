"""The examples in the docstrings are run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.modules import modules

# What stands on Spark is run with a session, in tests/spark/test_doctests.py.
JVM = ("pyspark_timely", "spark_timely.datasource", "spark_timely.sink", "spark_timely.spark")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = [name for name in modules() if not (name + ".").startswith(tuple(f"{part}." for part in JVM))]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_doctests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert result.failed == 0
