"""What the sink must do with each row, by loops over rows.

One stream that holds exactly one capability (or none), one coordinate. Shares no code with the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Row = tuple[tuple[str, object], ...]


class LateRowError(AssertionError):
    """A row behind the frontier under ``lateData=error``."""


@dataclass
class CaptureModel:
    """A stream of a log, filled micro-batch by micro-batch.

    ``frontier`` is None once the stream is closed. ``bounded``: after each batch the frontier is the
    greatest time seen less `lateness`, never moved back. ``batch``: the times are the batch's numbers.
    ``hold``: nothing moves it.
    """

    minimum: int
    policy: str
    late_data: str = "error"
    lateness: int = 0
    ceiling: int | None = None  # times above it are skewed; None: no guard
    frontier: int | None = None
    messages: list[tuple[int, Row]] = field(default_factory=list)
    dead: list[tuple[int, Row]] = field(default_factory=list)
    advanced: int = 0
    frontiers: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frontier = self.minimum

    def batch(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Take one micro-batch, judged by what the stream holds before it."""
        held = self.frontier
        assert held is not None
        messages: list[tuple[int, Row]] = []
        dead: list[tuple[int, Row]] = []
        advanced = 0
        greatest: int | None = None
        for own, row in rows:
            if self.policy == "batch":
                messages.append((held, row))
                continue
            late = own < held
            skewed = self.ceiling is not None and own > self.ceiling
            if (late or skewed) and self.late_data == "error":
                raise LateRowError(f"{own} with frontier {held}")
            if (late or skewed) and self.late_data == "deadLetter":
                dead.append((own, row))
                continue
            if late:
                messages.append((held, row))
                advanced += 1
                continue
            messages.append((own, row))
            if not skewed:
                greatest = own if greatest is None else max(greatest, own)
        self.messages.extend(messages)
        self.dead.extend(dead)
        self.advanced += advanced
        if self.policy == "batch":
            self.frontier = held + 1
        elif self.policy == "bounded" and greatest is not None:
            self.frontier = max(held, greatest - self.lateness)
        self.frontiers.append(self.frontier)
