"""The examples in the docstrings of what stands on Spark are run, with a session named ``spark``."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.modules import modules
from tests.unit.test_doctests import FLAGS, JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "name", [name for name in modules() if (name + ".").startswith(tuple(f"{part}." for part in JVM))]
)
def test_doctests(name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS, extraglobs={"spark": spark, "folder": str(tmp_path)})
    assert result.failed == 0
