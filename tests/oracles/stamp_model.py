"""Captures of timely 0.32 with times of u64, taken apart by loops over bytes. Shares no code with the library."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Stamped:
    """A message: its times, sorted, and the bytes behind them."""

    stamp: list[tuple[int, ...]]
    rest: bytes


def events(data: bytes, arity: int = 1) -> list[Stamped | None]:
    """Return the messages of whole events in order, None for progress."""
    found: list[Stamped | None] = []
    at = 0
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body, at = data[at + 8 : at + 8 + length], at + 8 + length
        if len(body) < length:
            break
        if body[:4] == bytes(4):
            found.append(None)
            continue
        (k,) = struct.unpack_from("<Q", body, 4)
        words = struct.unpack_from(f"<{k * arity}Q", body, 12)
        stamp = sorted(tuple(words[i * arity : (i + 1) * arity]) for i in range(k))
        found.append(Stamped(stamp, body[12 + 8 * k * arity :]))
    return found


def with_sorted_stamps(data: bytes) -> bytes:
    """Return a capture as timely itself would have written it; times of one coordinate."""
    out, at = b"", 0
    for event in events(data):
        (length,) = struct.unpack_from("<Q", data, at)
        whole, at = data[at : at + 8 + length], at + 8 + length
        if event is not None:
            times = [time for (time,) in event.stamp]
            whole = whole[:20] + struct.pack(f"<{len(times)}Q", *times) + event.rest
        out += whole
    return out
