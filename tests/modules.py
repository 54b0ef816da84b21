"""The modules of the project, by the names under which they are installed."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = {
    "spark_timely": "spark_timely",
    "conf": "spark_timely.conf",
    "datasource": "spark_timely.datasource",
    "sink": "spark_timely.sink",
}


def modules() -> dict[str, Path]:
    """Return the file of each module by its dotted name."""
    found = {"pyspark_timely": ROOT / "pyspark_timely.py"}
    for folder, package in _FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = [package, *file.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found
