"""What a subscription has to give, said again in plain Python over the list of all updates.

Times are tuples, rows are tuples, an update is (time, row, diff). Nothing of the library is used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Time = tuple[int, ...]
Row = tuple[Any, ...]
Update = tuple[Time, Row, int]


def plain(value: Any) -> Any:
    """A value as equality of rows has it: no negative zero, one NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def less_equal(one: Time, other: Time) -> bool:
    return all(x <= y for x, y in zip(one, other, strict=True))


def is_beyond(frontier: Iterable[Time], time: Time) -> bool:
    return any(less_equal(least, time) for least in frontier)


def summed(updates: Iterable[tuple[Row, int]]) -> dict[Row, int]:
    counts: Counter[Row] = Counter()
    for row, diff in updates:
        counts[row] += diff
    return {row: count for row, count in counts.items() if count}


def contents(updates: Iterable[Update], at: Time) -> dict[Row, int]:
    """Every row that is there at a time, and how often."""
    return summed((row, diff) for time, row, diff in updates if less_equal(time, at))


def difference(later: Mapping[Row, int], earlier: Mapping[Row, int]) -> dict[Row, int]:
    return summed([*later.items(), *((row, -count) for row, count in earlier.items())])


def by_key(there: Mapping[Row, int], n_key: int) -> dict[Row, Row]:
    """Contents with one row for each key, as a mapping."""
    assert all(count == 1 for count in there.values())
    found = {row[:n_key]: row[n_key:] for row in there}
    assert len(found) == len(there)
    return found


def key_changes(
    updates: Iterable[Update], n_key: int, as_of: Time
) -> dict[tuple[Time, Row], tuple[list[Row], list[Row]]]:
    """Of each time and key: the rows that went, and those that came, each as often; all times moved up to as_of."""
    moved = [(tuple(map(max, time, as_of)), row, diff) for time, row, diff in updates]
    found: dict[tuple[Time, Row], tuple[list[Row], list[Row]]] = {}
    for (time, row), count in summed(((time, row), diff) for time, row, diff in moved).items():
        went, came = found.setdefault((time, row[:n_key]), ([], []))
        (came if count > 0 else went).extend([row[n_key:]] * abs(count))
    return found


def word_of(envelope: str, went: Sequence[Row], came: Sequence[Row]) -> str:
    if len(went) > 1 or len(came) > 1:
        return "key_violation"
    if went and came:
        return "upsert"
    if went:
        return "delete"
    return "insert" if envelope == "debezium" else "upsert"
