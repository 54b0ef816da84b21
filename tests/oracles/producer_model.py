"""What a stream holds after appends with keys and without, by dictionaries.

Shares no code with the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Row = tuple[int, int]


@dataclass
class ProducerModel:
    """One stream of one owner. Rows are (time, value)."""

    rows: Counter[Row] = field(default_factory=Counter)
    frontier: int = 0
    keys: dict[int, tuple[Counter[Row], int | None]] = field(default_factory=dict)
    # Appends that nobody came back to: there wholly, or not at all.
    perhaps: list[tuple[Counter[Row], int]] = field(default_factory=list)

    def judge(self, key: int | None, rows: Sequence[Row], to: int | None) -> str:
        """Return whether an append is new, there, or refused. `to` is the frontier that it leaves; None: as it is."""
        if key is None:
            return "new"
        if key in self.keys:
            return "there" if self.keys[key] == (Counter(rows), to) else "refused"
        return "refused" if any(other > key for other in self.keys) else "new"

    def append(self, key: int | None, rows: Sequence[Row], to: int | None) -> None:
        """Take a new append."""
        self.rows.update(rows)
        self.frontier = self.frontier if to is None else max(self.frontier, to)
        if key is not None:
            self.keys[key] = (Counter(rows), to)

    def abandon(self, rows: Sequence[Row], to: int | None) -> None:
        """Take an append that may have happened, and that nobody repeats."""
        self.perhaps.append((Counter(rows), self.frontier if to is None else to))

    def settle(self, found: Counter[Row]) -> None:
        """Learn from the rows of the log which of the abandoned appends happened; fail where the rows make no sense."""
        left = found - self.rows
        missing = self.rows - found
        assert not missing, f"lost: {missing}"
        for rows, to in self.perhaps:
            if rows and not rows - left:
                left -= rows
                self.rows.update(rows)
                self.frontier = max(self.frontier, to)
        assert not left, f"twice, or of nobody: {left}"
        self.perhaps = []
