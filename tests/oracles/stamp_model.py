"""Captures of timely 0.32, taken apart and judged by loops over bytes and times. Shares no code with the library.

The rules are those of `spark_timely/interop/stamps.py` and of the protocol, written down a second time from what timely
does: times are tuples of integers, compared coordinate by coordinate.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Time = tuple[int, ...]


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


def with_sorted_stamps(data: bytes, kinds: tuple[str, ...] = ("u64",)) -> bytes:
    """Return whole events as timely itself would have written them.

    Parameters
    ----------
    data : bytes
    kinds : tuple of str
        Integers of which a time is made, in their order.
    """
    sizes = [int(kind[1:]) // 8 for kind in kinds]
    width = sum(sizes)

    def key(time: bytes) -> list[int]:
        found, place = [], 0
        for kind, size in zip(kinds, sizes, strict=True):
            found.append(int.from_bytes(time[place : place + size], "little", signed=kind[0] == "i"))
            place += size
        return found

    out, at = b"", 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        whole, at = data[at : at + 8 + length], at + 8 + length
        if whole[8:12] == b"\1\0\0\0":
            end = 20 + struct.unpack_from("<Q", whole, 12)[0] * width
            times = sorted((whole[place : place + width] for place in range(20, end, width or 1)), key=key)
            whole = whole[:20] + b"".join(times if width else []) + whole[end:]
        out += whole
    return out


def flat(time: Any) -> Time:
    """Return a time of JSON, a number or nested lists of numbers, as coordinates."""
    return (time,) if isinstance(time, int) else tuple(x for part in time for x in flat(part))


def at_or_after(time: Time, low: Time) -> bool:
    """Tell whether each coordinate of a time is at or after that of another."""
    return all(x >= y for x, y in zip(time, low, strict=True))


class IllegalError(Exception):
    """An event that breaks the rules of counting; its argument is the number of the event."""


@dataclass
class Result:
    """What an import has of a capture.

    ``refused``: number of the first event whose records have no time, and how many times its stamp has.
    """

    rows: list[tuple[Time, Any]] = field(default_factory=list)
    stamps: list[list[Time]] = field(default_factory=list)
    unstamped: list[Any] = field(default_factory=list)
    counts: Counter[Time] = field(default_factory=Counter)
    refused: tuple[int, int] | None = None


def run(events: Iterable[Any], minimum: Time, *, updates: bool, keep: bool = False, unstamped: bool = False) -> Result:
    """Judge events as JSON has them, one by one, and give each record its time.

    Parameters
    ----------
    events : iterable
        ``{"messages": [[time, ...], [record, ...]]}`` and ``{"progress": [[time, delta], ...]}``.
    minimum : tuple of int
    updates : bool
        Whether the second of each record's three fields is its time.
    keep : bool
        Whether stamps are kept, so that several times of a partial order are allowed.
    unstamped : bool
        Whether records without a time are set apart.
    """
    result = Result(counts=Counter({minimum: 1}))
    for number, event in enumerate(events):
        if "progress" in event:
            changes: Counter[Time] = Counter()
            for time, delta in event["progress"]:
                changes[flat(time)] += delta
            held = [time for time, n in result.counts.items() if n > 0]
            for time, delta in changes.items():
                if delta > 0 and not any(at_or_after(time, low) for low in held):
                    raise IllegalError(number)
            result.counts.update(changes)
            if min(result.counts.values()) < 0:
                raise IllegalError(number)
            continue
        stamp = sorted(map(flat, event["messages"][0]))
        held = [time for time, n in result.counts.items() if n > 0]
        if not all(any(at_or_after(time, low) for low in held) for time in stamp):
            raise IllegalError(number)
        if not _place(result, stamp, event["messages"][1], updates=updates, keep=keep, unstamped=unstamped):
            result.refused = (number, len(stamp))
            break
    return result


def _place(
    result: Result, stamp: list[Time], records: list[Any], *, updates: bool, keep: bool, unstamped: bool
) -> bool:
    for record in records:
        if updates:
            own = flat(record[1])
            if not any(at_or_after(own, time) for time in stamp):
                return False
            result.rows.append((own, record))
        elif not stamp and unstamped:
            result.unstamped.append(record)
            continue
        elif not stamp or (len(stamp) > 1 and len(stamp[0]) > 1 and not keep):
            return False
        else:
            result.rows.append((stamp[0], record))
        result.stamps.append(stamp)
    return True
