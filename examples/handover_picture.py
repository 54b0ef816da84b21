"""The picture of the example ``handover``: how far each log was after each night."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

import pandas as pd
from flights_picture import BLUE, FAINT, GREEN, INK, MUTED, ORANGE
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DAY = pd.Timedelta(days=1)
LINES = {
    "flights": (BLUE, "flights: captured, a day behind the latest"),
    "weather": (ORANGE, "weather: as far as the station says"),
    "both": (GREEN, "both: frontier=source, then the joined table"),
}


def draw(
    path: Path,
    far: Sequence[Mapping[str, pd.Timestamp | None]],
    nights: Sequence[str],
    *,
    start: pd.Timestamp,
) -> Path:
    """Write the picture to `path`.

    Parameters
    ----------
    path : Path
        A PNG file; its folder exists.
    far : sequence of mapping
        After each night, and after the end: up to where each log was complete, None for ever.
    nights : sequence of str
        What was special about each night.
    start : Timestamp
        Where event time begins.
    """
    top = len(nights) + 1.6
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 11, "text.color": INK}):
        figure, axes = plt.subplots(figsize=(12.8, 6.4), dpi=110)
        figure.subplots_adjust(left=0.09, right=0.975, top=0.85, bottom=0.13)
        # As many lines as logs; drawn one on top of the other, they are set apart a little.
        for place, (name, (colour, label)) in enumerate(LINES.items()):
            ends = [start, *(night[name] for night in far)]
            heights = [top if end is None else (end - start) / DAY for end in ends]
            shifted = [height + 0.05 * (1 - place) for height in heights]
            axes.step(range(len(heights)), shifted, where="post", color=colour, lw=2.6, label=label, zorder=3)
            axes.plot(range(len(heights)), shifted, "o", color=colour, ms=6, zorder=4)
        axes.set_ylim(-0.3, top + 0.35)
        axes.set_yticks(
            [*range(len(nights) + 2), top],
            [*(f"{start + day * DAY:%d %b}".lstrip("0") for day in range(len(nights) + 2)), "complete"],
        )
        names = ["", *(f"night {number}\n{what}" for number, what in enumerate(nights, 1)), "closed"]
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("event time: complete before", color=MUTED)
        axes.tick_params(which="both", colors=MUTED, length=0)
        axes.grid(color=FAINT, lw=1, zorder=0)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        axes.legend(loc="upper left", frameon=False, labelcolor="linecolor")
        title = "Completeness passes from job to job: never further than what it comes from"
        figure.text(0.02, 0.94, title, fontsize=17, weight="bold")
        figure.text(
            0.02,
            0.885,
            "A job that is silent or fails holds back what depends on it, and nothing else; the next run catches up.",
            color=MUTED,
        )
        figure.savefig(path)
        plt.close(figure)
    return path
