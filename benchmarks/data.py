"""The events that every benchmark uses: made once per size, kept under `build/bench`.

10 million events by default: a long time over 1000 epochs, 5 % of the rows late by 1 to 3 epochs, a long key,
a double and a 20-character string, in ten Parquet files of ten row groups each (one file = one micro-batch).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

N_EPOCHS = 1000
N_FILES = 10
N_KEYS = 5000
LATENESS = 3
SEED = 20130101


@dataclass(frozen=True, slots=True)
class Events:
    """Where the events lie, and the facts that each benchmark's answer is checked against.

    The place of a group is `epoch * N_KEYS + key`.
    """

    path: Path
    n_rows: int
    key_sum: int
    n_groups: int
    place_sum: int
    size_bytes: int


def events(root: Path, n_rows: int) -> Events:
    """Make the events of a size, or find them where an earlier run left them."""
    path = root / f"events-{n_rows}"
    facts = path / "facts.json"
    if not facts.exists():
        if path.exists():
            shutil.rmtree(path)
        _write(path, n_rows)
    known = json.loads(facts.read_text())
    return Events(
        path / "parquet", n_rows, known["key_sum"], known["n_groups"], known["place_sum"], known["size_bytes"]
    )


def _write(path: Path, n_rows: int) -> None:
    rng = np.random.default_rng(SEED)
    folder = path / "parquet"
    folder.mkdir(parents=True)
    per_file = n_rows // N_FILES
    key_sum = 0
    groups: list[np.ndarray] = []
    for number in range(N_FILES):
        start = number * per_file
        size = per_file if number < N_FILES - 1 else n_rows - start
        epochs = (np.arange(start, start + size, dtype=np.int64) * N_EPOCHS) // n_rows
        late = rng.random(size) < 0.05
        epochs = np.maximum(epochs - late * rng.integers(1, LATENESS + 1, size), 0)
        keys = rng.integers(0, N_KEYS, size)
        letters = rng.integers(ord("a"), ord("z") + 1, (size, 20), dtype=np.uint8)
        texts = pa.StringArray.from_buffers(
            size,
            pa.py_buffer(np.arange(0, 20 * size + 1, 20, dtype=np.int32)),
            pa.py_buffer(letters.tobytes()),
        )
        table = pa.table(
            {"epoch": epochs, "key": keys, "value": rng.random(size), "text": texts},
        )
        pq.write_table(
            table,
            folder / f"part-{number:04d}.parquet",
            row_group_size=max(1, size // 10),
            compression="zstd",
        )
        key_sum += int(keys.sum())
        groups.append(np.unique(epochs * N_KEYS + keys))
    size_bytes = sum(file.stat().st_size for file in folder.iterdir())
    places = np.unique(np.concatenate(groups))
    facts = {
        "key_sum": key_sum,
        "n_groups": len(places),
        "place_sum": int(places.sum()),
        "size_bytes": size_bytes,
    }
    (path / "facts.json").write_text(json.dumps(facts))
