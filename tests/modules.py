"""The modules of the project, by the names under which they are installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from spark_timely.dataflow.views import Operator

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = {
    "spark_timely": "spark_timely",
    "conf": "spark_timely.conf",
    "datasource": "spark_timely.datasource",
    "sink": "spark_timely.sink",
}


@functools.cache
def modules() -> dict[str, Path]:
    """Return the file of each module by its dotted name."""
    found = {"pyspark_timely": ROOT / "pyspark_timely.py"}
    for folder, package in _FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            if not (file.parent / "__init__.py").exists():
                continue  # beside the package, and not installed: the bundle's job
            parts = [package, *file.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def operators() -> list[type[Operator]]:
    """Return the classes of all operators of dataflows."""
    for name in modules():
        if name.startswith("spark_timely.dataflow.") and ".engine" not in name:
            importlib.import_module(name)
    found: list[type[Operator]] = []
    waiting: list[type[Operator]] = [Operator]
    while waiting:
        below = waiting.pop().__subclasses__()
        found += below
        waiting += below
    return found


def bundle_job() -> ModuleType:
    """Return what the tasks of the Databricks bundle run, which is no part of any package."""
    spec = importlib.util.spec_from_file_location("bundle_job", ROOT / "conf" / "databricks" / "job.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
