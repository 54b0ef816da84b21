"""Where the vectors made by the real timely and differential are, and how to read them.

They are part of the project; ``SPARK_TIMELY_GOLDEN`` names another folder of the same form. Those of timely 0.32 are in
its folder ``v032``; their names begin with it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_timely.interop.chunk import CaptureChunk, TimelyVersion
from spark_timely.time.antichain import concat_times

FOLDER = Path(os.environ.get("SPARK_TIMELY_GOLDEN", Path(__file__).resolve().parents[1] / "golden" / "vectors"))


def vectors(name: str) -> Iterator[Any]:
    """Read one file of vectors, a JSON value per line, compressed or not."""
    plain = FOLDER / name
    with plain.open("rt") if plain.exists() else gzip.open(f"{plain}.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def golden_bytes(name: str) -> bytes:
    """Read one file of bytes, compressed or not."""
    plain = FOLDER / name
    return plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())


def captures() -> list[str]:
    """Return the names of the captured streams of timely 0.31."""
    return _captures(FOLDER)


STAMPED = "v032/"


def stamped_captures() -> list[str]:
    """Return the names of the captured streams of timely 0.32."""
    return [f"{STAMPED}{name}" for name in _captures(FOLDER / STAMPED)]


def _captures(folder: Path) -> list[str]:
    pattern = re.compile(r"capture_(\w+)\.bin(\.gz)?")
    return sorted({m[1] for file in folder.iterdir() if (m := pattern.fullmatch(file.name))})


def capture_file(name: str, kind: str) -> str:
    """Return the file of a capture, ``bin`` or ``expected.jsonl``."""
    folder, slash, own = name.rpartition("/")
    return f"{folder}{slash}capture_{own}.{kind}"


def version_of(name: str) -> TimelyVersion:
    """Return whose capture it is."""
    return "0.32" if name.startswith(STAMPED) else "0.31"


TEXTS = ("u64", "(string, u64)")
TYPES = {
    "a": ("u64", "u64"),
    "b": TEXTS,
    "c": ("u64", "u64"),
    "c2": TEXTS,
    **dict.fromkeys(("d1", "d2", "d3"), ("product<u64, u64>", "u64")),
    **dict.fromkeys(("e1", "e2", "e3", "e4", "e5"), TEXTS),
    **dict.fromkeys(("f1", "f2", "f3", "f4"), ("u64", "u64")),
    "g1": ("u32", "((string, i64), (f64, bool), (option<u64>, vec<u8>))"),
    "g2": ("duration", "(duration, string)"),
    "g3": ("()", "u64"),
    "g4": ("i64", "i64"),
    **dict.fromkeys(("h1", "h2", "h4"), ("product<u64, u64>", "u64")),
    **dict.fromkeys(("h3", "h5", "h6", "h7", "j1", "j2", "k1", "k2"), ("u64", "u64")),
    **dict.fromkeys(("i1", "i2"), ("product<u64, u64>", "((string, u64), product<u64, u64>, i64)")),
    "i3": ("product<u64, u64>", "((u64, u64), product<u64, u64>, i64)"),
    "i4": ("u64", "((u64, u64), u64, i64)"),
    "j3": ("()", "u64"),
    "j4": ("i64", "string"),
    "j5": ("duration", "(duration, string)"),
}
"""Types of time and records, by what a capture's name begins with."""


def types_of(name: str) -> tuple[str, str]:
    """Return the types of time and records of a captured stream; of an unknown one, what its events look like."""
    known = TYPES.get(name.removeprefix(STAMPED).split("_")[0])
    if known is not None:
        return known
    times: list[Any] = []
    records: list[Any] = []
    for event in vectors(capture_file(name, "expected.jsonl")):
        times += [time for time, _ in event.get("progress", [])]
        if "messages" in event:
            stamp = event["messages"][0]
            times += stamp if version_of(name) == "0.32" else [stamp]
            records += event["messages"][1]
    return _looks_like(times, "product<{}>"), _looks_like(records, "({})")


def _looks_like(values: list[Any], several: str) -> str:
    if not values or values[0] is None:
        return "()" if values else "u64"
    if isinstance(values[0], list):
        return several.format(", ".join(_looks_like(list(part), several) for part in zip(*values, strict=True)))
    if isinstance(values[0], int):
        return "i64" if min(values) < 0 else "u64"
    return "string" if isinstance(values[0], str) else "f64"


def as_row(time: Any) -> tuple[int, ...]:
    """Flatten a time: an integer, null for the unit, or nested pairs."""
    if time is None:
        return ()
    if isinstance(time, int):
        return (time,)
    return tuple(coordinate for part in time for coordinate in as_row(part))


def concat_chunks(chunks: list[CaptureChunk]) -> CaptureChunk:
    """Put the chunks of one stream, one or more in their order, into one."""
    parts = {
        name: np.concatenate([getattr(chunk, name) for chunk in chunks])
        for name in ("is_messages", "counts", "progress_times", "progress_deltas", "progress_counts")
    }
    parts["times"] = concat_times(*(chunk.times for chunk in chunks))
    if any(chunk.stamps is not None for chunk in chunks):
        parts["stamps"] = np.concatenate([chunk.stamp_sizes for chunk in chunks])
    positions = np.concatenate([chunks[0].positions, *(chunk.positions[1:] for chunk in chunks[1:])])
    records = pa.Table.from_batches([chunk.records for chunk in chunks]).combine_chunks().to_batches()
    return replace(chunks[0], positions=positions, records=records[0] if records else chunks[0].records, **parts)
