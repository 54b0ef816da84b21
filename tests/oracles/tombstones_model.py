"""The latest row of each key where deletions are remembered for a while: row by row, time by time.

Written from what users are told alone. A deletion that says o is remembered at the times up to o + keeps, of which
none is past the greatest time there is. A row that says o and comes at t is too late if o + keeps < t; one that says
nothing is older than all, and always too late. Such a row is set apart if nothing is known of its key before t.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

Row = tuple[Any, ...]  # key, what the order says or None, whether it deletes, something beside

__all__ = ["said"]


def _place(row: Row) -> tuple[Any, ...]:
    _, order, gone, beside = row
    return (order is not None, order or 0, gone, beside is not None, beside or "")


def said(
    rows: list[tuple[int, Row]], keeps: int, last: int, until: int
) -> tuple[dict[int, Counter[Row]], Counter[tuple[int, Row]]]:
    """Return what a state has after each time before `until`, and what was set apart, when.

    It has the newest row of each key, and deletions that are not forgotten, also where a newer row came.
    """

    def forgotten(row: Row, time: int) -> bool:
        if row[1] is None:
            return True
        return bool(row[1] + keeps < time and row[1] + keeps < last)

    known: dict[Any, Row] = {}
    believed: set[Row] = set()
    after: dict[int, Counter[Row]] = {}
    apart: Counter[tuple[int, Row]] = Counter()
    for time in range(until):
        known = {k: row for k, row in known.items() if not (row[2] and forgotten(row, time))}
        before = dict(known)
        for when, row in rows:
            if when != time:
                continue
            if row[0] not in before and forgotten(row, time):
                apart[time, row] += 1
            elif row[0] not in known or _place(row) > _place(known[row[0]]):
                known[row[0]] = row
        known = {k: row for k, row in known.items() if not (row[2] and forgotten(row, time))}
        believed = {row for row in {*believed, *known.values()} if row[2] and not forgotten(row, time)}
        # One that is never forgotten is there as long as nothing newer is.
        stays = {row for row in believed if row[1] + keeps < last}
        after[time] = Counter({*known.values(), *stays})
    return after, apart
