"""What the sink must do with rows of product times, by loops over rows.

One stream under ``frontier=hold``: its capabilities are an antichain that only `advance` moves. Shares no code
with the library.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.oracles.capture_model import LateRowError
from tests.oracles.replay_model import Frontier, Row, Time, is_beyond, less_equal, minimal


def advanced(time: Time, frontier: Iterable[Time]) -> Time:
    """Return where a late time goes: the lexicographically least of its joins with the frontier's elements."""
    return min(tuple(max(x, y) for x, y in zip(time, element, strict=True)) for element in frontier)


class ProductModel:
    """A stream of a log whose times have several coordinates."""

    def __init__(self, minimum: Time, late_data: str) -> None:
        self.frontier: Frontier = frozenset([minimum])
        self.late_data = late_data
        self.messages: list[tuple[Time, Row]] = []
        self.dead: list[tuple[Time, Row]] = []

    def batch(self, rows: Iterable[tuple[Time, Row]]) -> None:
        """Take one micro-batch, judged by what is held before it."""
        messages, dead = [], []
        for own, row in rows:
            if is_beyond(own, self.frontier):
                messages.append((own, row))
            elif self.late_data == "error":
                raise LateRowError(f"{own} with frontier {sorted(self.frontier)}")
            elif self.late_data == "deadLetter":
                dead.append((own, row))
            else:
                messages.append((advanced(own, self.frontier), row))
        self.messages += messages
        self.dead += dead

    def advance(self, targets: Iterable[Time]) -> None:
        """Move to the minimal ones of some times, each beyond what is held."""
        found = minimal(targets)
        assert found, "a stream that is closed takes no rows"
        assert all(any(less_equal(held, time) for held in self.frontier) for time in found)
        self.frontier = found
