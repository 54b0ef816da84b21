"""A log of changes applied to a table, over Python's lists and dicts: from all changes up to a time, each time anew.

Written from what the documents say alone. Rows are dicts. The order of the changes of a key: the sequence; of equal
ones first what empties the table, last a delete, else the columns of the result one after the other, null the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
Shown = tuple[tuple[str, Any], ...]

__all__ = ["Rules", "Shown", "applied", "within"]


class Rules:
    """What is wanted of a log of changes.

    Parameters
    ----------
    keys, sequence, columns : sequence of str
        The columns of the result have the key among them.
    deletes, empties : callable
        Whether a change does.
    merges, history : bool
    """

    def __init__(
        self,
        keys: Sequence[str],
        sequence: Sequence[str],
        columns: Sequence[str],
        deletes: Callable[[Row], bool] = lambda _: False,
        empties: Callable[[Row], bool] = lambda _: False,
        *,
        merges: bool = False,
        history: bool = False,
    ) -> None:
        self.keys, self.sequence, self.columns = keys, sequence, columns
        self.deletes, self.empties, self.merges, self.history = deletes, empties, merges, history

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def sequence_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.sequence)

    def has_sequence(self, row: Row) -> bool:
        return all(value is not None for value in self.sequence_of(row))

    def place_of(self, row: Row) -> tuple[Any, ...]:
        values = [(row[name] is not None, row[name]) if row[name] is not None else (False,) for name in self.columns]
        return (*self.sequence_of(row), self.deletes(row), *values)

    def shown(self, row: Row) -> Row:
        return {name: row[name] for name in self.columns}


def _frozen(row: Row) -> Shown:
    return tuple(row.items())


def applied(changes: Sequence[Row], rules: Rules) -> Counter[Shown]:
    """Return the result of changes: the rows of the table, or all versions."""
    changes = [row for row in changes if rules.has_sequence(row)]
    emptied = max((rules.sequence_of(row) for row in changes if rules.empties(row)), default=None)
    of_keys: dict[Any, list[Row]] = {}
    for row in changes:
        if not rules.empties(row) and (emptied is None or rules.sequence_of(row) >= emptied):
            of_keys.setdefault(rules.key_of(row), []).append(row)
    result: Counter[Shown] = Counter()
    for rows in of_keys.values():
        versions: dict[Any, Row | None] = {}  # by sequence, in order
        now: Row | None = None
        for row in sorted(rows, key=rules.place_of):
            if rules.deletes(row):
                now = None
            elif now is None or not rules.merges:
                now = rules.shown(row)
            else:
                said = rules.shown(row)
                kept = {name: now[name] for name in said if said[name] is None}
                now = {**said, **kept}
            versions[rules.sequence_of(row)] = now
        if not rules.history:
            if now is not None:
                result[_frozen(now)] += 1
            continue
        ends = [*list(versions)[1:], None]
        for (start, version), end in zip(versions.items(), ends, strict=True):
            if version is not None:
                bounds = {"__START_AT": _of(start, rules), "__END_AT": None if end is None else _of(end, rules)}
                result[_frozen({**version, **bounds})] += 1
    return result


def _of(sequence: tuple[Any, ...], rules: Rules) -> Any:
    return sequence[0] if len(sequence) == 1 else tuple(zip(rules.sequence, sequence, strict=True))


def within(
    changes: Sequence[tuple[int, Row]], rules: Rules, keeps: int, times: Sequence[int]
) -> tuple[dict[int, Counter[Shown]], Counter[tuple[int, Shown]]]:
    """Return the result after each time where deletes are forgotten, and which changes were set apart, when."""
    known: dict[Any, Row] = {}
    after: dict[int, Counter[Shown]] = {}
    apart: Counter[tuple[int, Shown]] = Counter()

    def old(row: Row, time: int) -> bool:
        return bool(rules.sequence_of(row)[0] + keeps < time)

    def forget(time: int) -> None:
        for key in [key for key, row in known.items() if rules.deletes(row) and old(row, time)]:
            del known[key]

    for time in times:
        forget(time)
        were = set(known)
        for when, row in changes:
            key = rules.key_of(row)
            if when != time:
                continue
            if not rules.has_sequence(row) or (key not in were and old(row, time)):
                apart[time, _frozen(row)] += 1
            elif key not in known or rules.place_of(row) > rules.place_of(known[key]):
                known[key] = row
        forget(time)
        after[time] = Counter(_frozen(rules.shown(row)) for row in known.values() if not rules.deletes(row))
    return after, apart
