"""A copy of the tree, in which the code may be changed, and what is imported there once for all trials."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What trials import anyway, imported once: they are forks.
WARM = ("hypothesis.strategies", "numpy", "pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")
WARM += ("deltalake", "pyspark.sql.datasource", "sqlglot", "numba")


def copy_tree(root: Path, copy: Path) -> None:
    """Copy what git knows or would take, and lay the packages where their names say."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    for package in ("conf", "datasource", "sink"):
        if (copy / package).is_dir():
            (copy / "spark_timely" / package).symlink_to(f"../{package}")


def say(text: str) -> None:
    """Print at once, whoever reads."""
    print(text, flush=True)
