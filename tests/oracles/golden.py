"""Where the vectors made by the real timely and differential are, and how to read them.

They are part of the project; ``SPARK_TIMELY_GOLDEN`` names another folder of the same form.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("SPARK_TIMELY_GOLDEN", Path(__file__).resolve().parents[1] / "golden" / "vectors"))


def vectors(name: str) -> Iterator[Any]:
    """Read one file of vectors, a JSON value per line, compressed or not."""
    plain = FOLDER / name
    with plain.open("rt") if plain.exists() else gzip.open(f"{plain}.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def as_row(time: Any) -> tuple[int, ...]:
    """Flatten a time: an integer, null for the unit, or nested pairs."""
    if time is None:
        return ()
    if isinstance(time, int):
        return (time,)
    return tuple(coordinate for part in time for coordinate in as_row(part))
