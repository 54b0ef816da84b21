"""Collect pairs of measurements, and say them as a table and as JSON lines."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(slots=True)
class Case:
    """One comparison: what is measured, in which direction, and every pair of figures.

    `higher_is_better` cases give the ratio peer / ours (how many times faster ours is); the others give
    ours / peer (how many times more ours costs, for costs that ought to stay flat).
    """

    name: str
    what: str
    aim: float | None
    unit: str = "s"
    higher_is_better: bool = True
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)

    def ratios(self) -> list[float]:
        """Return one ratio per pair, in the order measured."""
        if self.higher_is_better:
            return [peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)]
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    def reached(self) -> bool:
        """Tell whether the median ratio reaches the aim; a case without one is for information."""
        if self.aim is None:
            return True
        median = statistics.median(self.ratios())
        return median >= self.aim if self.higher_is_better else median <= self.aim

    def as_dict(self) -> dict[str, object]:
        """Return the object that becomes one line of `bench.jsonl`."""
        ratios = self.ratios()
        return {
            "case": self.name,
            "ratio": round(statistics.median(ratios), 4),
            "min": round(min(ratios), 4),
            "max": round(max(ratios), 4),
            "ours": round(statistics.median(self.ours), 5),
            "peer": round(statistics.median(self.peer), 5),
            "unit": self.unit,
            "aim": self.aim,
            "direction": "at least" if self.higher_is_better else "at most",
            "reached": self.reached(),
            "pairs": len(ratios),
            "what": self.what,
            "settings": self.settings,
        }


def seconds(run: Callable[[], object]) -> float:
    """Return how long `run` took by the wall clock."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def alternate(case: Case, ours: Callable[[], float], peer: Callable[[], float], repeats: int, warm: int = 2) -> None:
    """Measure both sides in turn, changing who goes first, so that a noisy minute hits both.

    The pairs before, `warm` of them, are not counted: the side that runs first in a JVM pays for loading its classes
    and compiling them.
    """
    for _ in range(warm):
        ours()
        peer()
    for number in range(repeats):
        if number % 2 == 0:
            mine, theirs = ours(), peer()
        else:
            theirs, mine = peer(), ours()
        case.ours.append(mine)
        case.peer.append(theirs)


def write_jsonl(cases: list[Case], path: Path) -> None:
    """Write one JSON object per case and line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(case.as_dict()) + "\n" for case in cases), encoding="utf-8")


def table(cases: list[Case]) -> str:
    """Return the figures of all cases as an aligned text table."""
    head = ("case", "ours", "peer", "ratio", "min", "max", "aim", "")
    rows = [head]
    for case in cases:
        said = case.as_dict()
        rows.append(
            (
                case.name,
                f"{said['ours']} {case.unit}",
                f"{said['peer']} {case.unit}",
                f"{said['ratio']:.2f}",
                f"{said['min']:.2f}",
                f"{said['max']:.2f}",
                "" if case.aim is None else f"{said['direction']} {case.aim}",
                "" if case.aim is None else "ok" if case.reached() else "short",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
