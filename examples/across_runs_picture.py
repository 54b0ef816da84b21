"""The picture of the example ``across_runs``: what came when, and who called which hours final."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

import pandas as pd
from flights_picture import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, RED
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HOUR = pd.Timedelta(hours=1)
WAYS = {
    "timely": "spark-timely\nfrontier=source",
    "min": "plain Spark\nwatermark policy min",
    "max": "plain Spark\nwatermark policy max",
}


def draw(
    path: Path,
    flights: pd.DataFrame,
    runs: Sequence[Mapping[str, pd.Timestamp]],
    ways: Mapping[str, Mapping[pd.Timestamp, int]],
    *,
    start: pd.Timestamp,
) -> Path:
    """Write the picture to `path`.

    Parameters
    ----------
    path : Path
        A PNG file; its folder exists.
    flights : DataFrame
        Columns `hour` and `origin`: all flights of the day.
    runs : sequence of mapping
        By airport the hour before which its flights came with the run.
    ways : mapping
        By name of the way the flights per hour that it called final.
    start : Timestamp
        The first hour.
    """
    end = max(until for news in runs for until in news.values())
    hours = pd.date_range(start, end, freq="h", inclusive="left")
    truth = flights.groupby("hour").size()
    upper = dict.fromkeys(sorted(flights["origin"].unique()), start)
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 11, "text.color": INK}):
        figure, axes = plt.subplots(figsize=(12.8, 6.4), dpi=110)
        figure.subplots_adjust(left=0.16, right=0.975, top=0.80, bottom=0.09)
        rows: dict[str, float] = {name: -float(place) for place, name in enumerate([*upper, *ways])}
        rows |= {way: place - 0.7 for way, place in rows.items() if way in ways}
        for colour, news in zip((BLUE, ORANGE), runs, strict=True):
            for name, until in news.items():
                for hour in hours[(hours >= upper[name]) & (hours < until)]:
                    n = int(((flights["origin"] == name) & (flights["hour"] == hour)).sum())
                    cell(axes, (hour - start) / HOUR, rows[name], colour, str(n))
                upper[name] = until
        complete = (min(upper.values()) - start) / HOUR
        for way, final in ways.items():
            for hour, count in final.items():
                right = count == truth[hour] and hour < min(upper.values())
                cell(axes, (hour - start) / HOUR, rows[way], GREEN if right else RED, str(count))
            if not final:
                axes.text(0.15, rows[way], "nothing, after both runs", color=MUTED, va="center",
                          style="italic")  # fmt: skip
        axes.axvline(complete, color=GREEN, lw=2.2, zorder=4)
        label = f"complete: every airport has said so ({min(upper.values()):%H:%M})"
        axes.text(complete + 0.1, 0.62, label, color=GREEN, fontsize=11, weight="bold")
        axes.axhline(-2.85, color=FAINT, lw=1)
        axes.set_xlim(0, len(hours))
        axes.set_ylim(min(rows.values()) - 0.6, 1.0)
        axes.set_yticks(list(rows.values()), [WAYS.get(name, name) for name in rows])
        axes.set_xticks(range(len(hours) + 1), [f"{start + place * HOUR:%H:%M}" for place in range(len(hours) + 1)])
        axes.tick_params(which="both", colors=MUTED, length=0)
        axes.set_xlabel("hour in which the flight left (UTC, 12 June 2013)", color=MUTED)
        axes.spines[:].set_visible(False)
        figure.text(0.02, 0.94, "Sources that take turns: who knows what is complete?", fontsize=17, weight="bold")
        parts = [
            ("Above: flights per hour that came before", MUTED),
            ("run 1", BLUE),
            ("and before", MUTED),
            ("run 2", ORANGE),
            ("(Trigger.AvailableNow). Below: those that were called final", MUTED),
            ("rightly", GREEN),
            ("or", MUTED),
            ("wrongly", RED),
        ]
        sentence(figure, 0.02, 0.885, parts)
        figure.savefig(path)
        plt.close(figure)
    return path


def sentence(figure: plt.Figure, left: float, bottom: float, parts: list[tuple[str, str]]) -> None:
    """Write words in their colours, one after the other; those that are not muted in bold."""
    for text, colour in parts:
        weight = "normal" if colour == MUTED else "bold"
        drawn = figure.text(left, bottom, text, color=colour, weight=weight)
        left = figure.transFigure.inverted().transform(drawn.get_window_extent())[1, 0] + 0.005


def cell(axes: plt.Axes, place: float, row: float, colour: str, text: str) -> None:
    """Draw one hour of one row."""
    axes.add_patch(Rectangle((place + 0.04, row - 0.36), 0.92, 0.72, color=colour, alpha=0.85, lw=0))
    axes.text(place + 0.5, row, text, color="white", ha="center", va="center", fontsize=10, weight="bold")
