"""The picture of the flights demo: flights as dots, the frontier as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.dates as mdates
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path

INK, MUTED, FAINT = "#1b2a41", "#5c6b80", "#dfe5ec"
BLUE, ORANGE, RED, GREEN = "#2f6fb0", "#e08a1e", "#d0312d", "#2a9d63"
HOUR = pd.Timedelta(hours=1)


def draw(
    path: Path,
    flights: pd.DataFrame,
    steps: list[tuple[pd.Timestamp, pd.Timestamp]],
    *,
    lateness: pd.Timedelta,
    seed: int = 2013,
) -> Path:
    """Write the picture to `path`.

    Parameters
    ----------
    path : Path
        A PNG file; its folder is created.
    flights : DataFrame
        Columns `known_at`, `hour`, `cancelled`, `dead`: what to draw as dots.
    steps : list of (moment, frontier)
        The frontier after each micro-batch, and the moment of arrival up to which it had read.
    lateness : Timedelta
        The option the capture ran with, for the labels.
    seed : int
        Hours are spread over their sixty minutes at random, so that dots do not hide each other.
    """
    rng = np.random.default_rng(seed)
    # A dot a bit above its hour's line is still in that hour.
    spread = flights["hour"] + pd.to_timedelta(rng.uniform(0.08, 0.92, len(flights)) * 3600, unit="s")
    moments = pd.DatetimeIndex([moment for moment, _ in steps])
    frontier = pd.DatetimeIndex([value for _, value in steps])
    start, end = moments[0], moments[-1]
    bottom, top = frontier[0] + 4 * HOUR, flights["hour"].max() + 4 * HOUR

    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 11, "text.color": INK}):
        figure, axes = plt.subplots(figsize=(12.8, 7.6), dpi=110)
        figure.subplots_adjust(left=0.075, right=0.975, top=0.835, bottom=0.085)
        axes.fill_between(moments, frontier, bottom, step="post", color=GREEN, alpha=0.10, lw=0)
        # Cancelled flights lie on the diagonal by definition; landed ones to the right of it.
        groups = [
            (~flights.cancelled & ~flights.dead, BLUE, 5, 0.45, "flight, when it landed"),
            (flights.cancelled & ~flights.dead, ORANGE, 7, 0.8, "cancelled flight, when its hour was over"),
        ]
        for chosen, colour, size, alpha, label in groups:
            axes.scatter(flights.known_at[chosen], spread[chosen], s=size, color=colour, alpha=alpha, lw=0, label=label)
        axes.step(moments, frontier, where="post", color=GREEN, lw=2.2, label="frontier", zorder=4)
        dead = flights.index[flights.dead]
        axes.scatter(
            flights.known_at[dead], spread[dead], s=90, marker="X", color=RED, ec="white", lw=0.8,
            label="too late: kept as a dead letter", zorder=5,
        )  # fmt: skip
        label_dead(axes, flights.loc[dead], spread, start, end)
        label_areas(axes, moments, frontier, lateness)

        axes.set_xlim(start, end)
        axes.set_ylim(bottom, top)
        axes.set_xlabel("moment at which the flight became known (UTC)", color=MUTED)
        axes.set_ylabel("event time: the hour in which it left (UTC)", color=MUTED)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(mdates.DayLocator())
            axis.set_major_formatter(mdates.DateFormatter("%-d %b"))
            axis.set_minor_locator(mdates.HourLocator(byhour=[6, 12, 18]))
        axes.grid(which="major", color=FAINT, lw=1)
        axes.grid(which="minor", color=FAINT, lw=0.4)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", colors=MUTED, length=0)
        axes.spines[:].set_visible(False)
        legend = axes.legend(loc="upper left", frameon=False, markerscale=1.6, handletextpad=0.5, borderpad=0.8)
        for handle in legend.legend_handles:
            handle.set_alpha(1)
        figure.text(0.075, 0.945, "Arrival order is not event time. The frontier says what is complete.",
                    fontsize=17, weight="bold")  # fmt: skip
        figure.text(0.075, 0.895, subtitle(flights, lateness), color=MUTED, fontsize=11.5, va="center")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)
    return path


def subtitle(flights: pd.DataFrame, lateness: pd.Timedelta) -> str:
    """Say in one line what is drawn."""
    return (
        f"{len(flights):,} flights from New York in June 2013, captured with frontier=bounded and"
        f" lateness={lateness / HOUR:g} hours. Nothing is ever added below the line."
    )


def label_dead(axes: plt.Axes, dead: pd.DataFrame, spread: pd.Series, start: pd.Timestamp, end: pd.Timestamp) -> None:
    """Name each dead letter beside its mark."""
    for index, row in dead.iterrows():
        text = (
            f"{row.carrier} {row.flight} {row.origin}\N{RIGHTWARDS ARROW}{row.dest}, diverted,\n"
            f"came {(row.known_at - row.hour) / HOUR:.0f} hours later:\na dead letter, kept apart"
        )
        left = row.known_at < start + (end - start) * 0.8
        axes.annotate(
            text, (row.known_at, spread[index]), xytext=(12 if left else -12, 6), textcoords="offset points",
            color=RED, fontsize=10, va="top", ha="left" if left else "right",
        )  # fmt: skip


def label_areas(axes: plt.Axes, moments: pd.DatetimeIndex, frontier: pd.DatetimeIndex, lateness: pd.Timedelta) -> None:
    """Write into the picture what is below and above the line."""
    axes.text(
        0.97, 0.07, "complete: these hours are final", transform=axes.transAxes,
        color=GREEN, fontsize=14, weight="bold", ha="right",
    )  # fmt: skip
    middle = int(len(moments) * 0.56)
    axes.text(
        moments[middle], frontier[middle] + lateness * 0.32, "still open",
        color=MUTED, fontsize=11, ha="center", va="center", style="italic",
    )  # fmt: skip
