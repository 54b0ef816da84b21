"""Where the vectors made by the real timely and differential are, and how to read them.

The folder is named by ``SPARK_TIMELY_GOLDEN``; else it is ``shared/golden`` beside the clone.
Without it the tests marked ``golden`` are skipped, and say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("SPARK_TIMELY_GOLDEN", _ROOT.parent / "shared" / "golden"))


def vectors(name: str) -> Iterator[Any]:
    """Read one file of vectors, a JSON value per line; skip the test, loudly, without the folder."""
    if not FOLDER.is_dir():
        pytest.skip(
            f"GOLDEN VECTORS MISSING: {FOLDER} is no folder; nothing was compared with the real timely. "
            "Set SPARK_TIMELY_GOLDEN to the folder that holds them."
        )
    with (FOLDER / name).open() as lines:
        for line in lines:
            yield json.loads(line)


def as_row(time: Any) -> tuple[int, ...]:
    """Flatten a time: an integer, null for the unit, or nested pairs."""
    if time is None:
        return ()
    if isinstance(time, int):
        return (time,)
    return tuple(coordinate for part in time for coordinate in as_row(part))
