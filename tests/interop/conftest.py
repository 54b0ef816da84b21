"""Without cargo there is nothing to compare with: then these tests are left out, but never in CI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_HOME = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "bin" / "cargo"
CARGO = shutil.which("cargo") or (str(_HOME) if _HOME.exists() else None)

collect_ignore = [] if CARGO or os.environ.get("CI") else ["test_interop.py"]


@pytest.fixture(scope="session")
def cargo() -> str:
    assert CARGO is not None, "found no cargo: install a Rust toolchain, or leave CI unset"
    return CARGO
