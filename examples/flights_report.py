"""How the flights demo speaks: steps, checks, tables and a progress bar."""

from __future__ import annotations

import io
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

BAR = "   {desc:<26} {percentage:3.0f}% |{bar:20}| {n_fmt:>7}/{total_fmt} flights {elapsed}{postfix}"


@dataclass
class Report:
    """What the demo says, and whether its checks held."""

    failed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def title(self, text: str) -> None:
        """Print the first line."""
        print(style("1;36", text))

    def step(self, number: int, title: str, *lines: str) -> None:
        """Begin a step: what happens, and why it matters."""
        print(f"\n{style('1', f'{number}  {title}')}")
        self.say(*lines)

    def say(self, *lines: str) -> None:
        """Print lines of explanation."""
        for line in lines:
            print(f"   {line}" if line else "")

    def check(self, claim: str, actual: object, expected: object) -> None:
        """Print whether a claim holds; the demo fails if it does not."""
        if actual == expected:
            self.say(f"{style('32', '✓')} {claim}")
        else:
            self.failed.append(claim)
            self.say(f"{style('31', '✗')} {claim}: found {actual}, expected {expected}")

    def table(self, names: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> None:
        """Print a table: the first column to the left, the others to the right."""
        widths = [max(len(text) for text in column) for column in zip(names, *rows, strict=True)]
        for index, row in enumerate([names, *rows]):
            cells = [
                text.rjust(width) if column else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            line = "   ".join(cells)
            self.say(indent + (style("2", line) if index == 0 else line))

    def watch(self, what: str, total: int, *, done: Callable[[], int], over: Callable[[float], bool],
              note: Callable[[], str] | None = None) -> None:  # fmt: skip
        """Show a progress bar until `over(seconds to wait)` says so.

        The end of a replay is known before it begins, so the bar is exact. Where the output is no
        terminal, the bar is printed again for every quarter instead of being redrawn.
        """
        live = sys.stdout.isatty()
        screen = sys.stdout if live else io.StringIO()
        shape = {"ncols": 110, "nrows": 20}  # some terminals say that they have none
        with tqdm(total=total, desc=what, bar_format=BAR, file=screen, ascii=" ▏▎▍▌▋▊▉█", **shape) as bar:
            running, printed = True, 0
            while running:
                running = not over(0.2)
                bar.n = min(done(), total)
                bar.set_postfix_str(note() if note is not None else "", refresh=False)
                if live:
                    bar.refresh()
                elif bar.n * 4 // total > printed:
                    printed = bar.n * 4 // total
                    print(bar)


def style(code: str, text: str) -> str:
    """Colour `text` where a terminal shows it."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def short(moment: pd.Timestamp) -> str:
    """Write a moment as 13 Jun 08:00."""
    return f"{moment:%d %b %H:%M}".lstrip("0")


def trail(moments: list[pd.Timestamp]) -> str:
    """Write moments in a row, each day once."""
    days: dict[str, list[str]] = {}
    for moment in dict.fromkeys(moments):
        days.setdefault(f"{moment:%d %b}".lstrip("0"), []).append(f"{moment:%H:%M}")
    return " · ".join(f"{day} {' '.join(hours)}" for day, hours in days.items())


def count(number: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown_path(path: Path) -> str:
    """Write a path as short as it can be typed here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
