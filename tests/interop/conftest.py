"""Without cargo there is nothing to compare with: then these tests are left out, and the report says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_HOME = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "bin" / "cargo"
CARGO = shutil.which("cargo") or (str(_HOME) if _HOME.exists() else None)

collect_ignore = [] if CARGO else ["test_interop.py"]


@pytest.fixture(scope="session")
def cargo() -> str:
    assert CARGO is not None
    return CARGO
