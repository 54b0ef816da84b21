"""What a replay must deliver, by dictionaries and loops.

Written from the protocol alone: shares no code with the library.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

Time = tuple[int, ...]
Row = tuple[tuple[str, object], ...]
Frontier = frozenset[Time]


def less_equal(a: Time, b: Time) -> bool:
    """Compare two times coordinate by coordinate."""
    return all(x <= y for x, y in zip(a, b, strict=True))


def is_beyond(time: Time, frontier: Iterable[Time]) -> bool:
    """Say whether a time is greater than or equal to some element of a frontier."""
    return any(less_equal(element, time) for element in frontier)


def minimal(times: Iterable[Time]) -> Frontier:
    """Return the times below which there is no other."""
    distinct = set(times)
    return frozenset(t for t in distinct if not any(s != t and less_equal(s, t) for s in distinct))


class ProtocolBrokenError(AssertionError):
    """A commit that no legal stream makes."""


class ReplayModel:
    """A log as seen from outside: counts per stream, messages per time."""

    def __init__(self, minimum: Time, n_streams: int) -> None:
        self.minimum = minimum
        self.unclaimed = n_streams
        self.counts: dict[str, Counter[Time]] = {}
        self.messages: defaultdict[Time, list[Row]] = defaultdict(list)
        self.frontiers: list[Frontier] = [self.frontier()]

    def frontier(self) -> Frontier:
        """Return the minimal times that are still held by anyone."""
        held = {time for counts in self.counts.values() for time, count in counts.items() if count > 0}
        if self.unclaimed:
            held.add(self.minimum)
        return minimal(held)

    def open_stream(self, stream: str) -> None:
        """Claim one of the capabilities at the minimum."""
        if stream not in self.counts:
            if not self.unclaimed:
                raise ProtocolBrokenError(f"nothing left to claim for {stream}")
            self.unclaimed -= 1
            self.counts[stream] = Counter({self.minimum: 1})

    def join_stream(self, stream: str, donor: str, at: Time) -> None:
        """Open by a copy of a capability that a live stream holds."""
        if not any(count > 0 and less_equal(time, at) for time, count in self.counts[donor].items()):
            raise ProtocolBrokenError(f"{donor} holds nothing at or before {at}")
        self.counts[stream] = Counter({at: 1})

    def apply(
        self,
        stream: str,
        messages: Iterable[tuple[Time, Row]],
        progress: Iterable[tuple[Time, int]],
    ) -> None:
        """Take one commit, messages first, judged by the counts before it."""
        self.open_stream(stream)
        before = self.counts[stream]
        held = [time for time, count in before.items() if count > 0]
        for time, row in messages:
            if not any(less_equal(h, time) for h in held):
                raise ProtocolBrokenError(f"message of {stream} at {time}, held {held}")
            self.messages[time].append(row)
        after = before.copy()
        for time, change in progress:
            after[time] += change
        for time, count in after.items():
            if count < 0:
                raise ProtocolBrokenError(f"count of {stream} at {time} is {count}")
            if count > before[time] and not any(less_equal(h, time) for h in held):
                raise ProtocolBrokenError(f"count of {stream} raised at {time}, held {held}")
        self.counts[stream] = Counter({time: count for time, count in after.items() if count})
        self.frontiers.append(self.frontier())

    def closed(self) -> dict[Time, list[Row]]:
        """Return the messages at times that can get no more of them."""
        return self.between([self.minimum], self.frontier())

    def between(self, lower: Iterable[Time], upper: Iterable[Time]) -> dict[Time, list[Row]]:
        """Return the messages at times beyond `lower` and not beyond `upper`."""
        low, high = list(lower), list(upper)
        return {
            time: list(rows)
            for time, rows in self.messages.items()
            if is_beyond(time, low) and not is_beyond(time, high)
        }
