"""Comparisons that say what differs, time by time."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa

__all__ = ["assert_same_rows", "assert_same_updates", "row_counts"]

Row: TypeAlias = tuple[tuple[str, Hashable], ...]
_LISTED: Final = 20  # differing rows listed per time and side


def _plain(value: object) -> Hashable:
    """Return a hashable stand-in that is equal exactly when two values mean the same."""
    if isinstance(value, float):
        if math.isnan(value):
            return ("double", "nan")
        return ("double", value + 0.0)  # -0.0 + 0.0 is 0.0
    if isinstance(value, decimal.Decimal):
        return ("decimal", str(value.normalize()))
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return ("local timestamp", value.isoformat())
        return ("timestamp", value.astimezone(dt.UTC).isoformat())
    if isinstance(value, Mapping):
        fields = ((str(name), _plain(part)) for name, part in value.items() if part is not None)
        return ("struct", tuple(sorted(fields, key=repr)))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(_plain(part) for part in value))
    if isinstance(value, Hashable):
        return value
    return repr(value)


def _is_time(name: str) -> bool:
    return name == "_time" or (name.startswith("_time_") and name[6:].isdigit())


def row_counts(table: pa.Table, /) -> dict[tuple[Hashable, ...], Counter[Row]]:
    """Count the rows of a table, per time.

    The time is what the columns ``_time`` or ``_time_0``, ``_time_1``, … say, ``()`` without them; a
    column ``_diff`` is the weight of a row. Fields that are null are left out, so a column that one
    side lacks and the other has null in every row makes no difference.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.

    Returns
    -------
    dict of tuple to Counter
        For each time the weight of each row, weights that sum to zero left out.

    Notes
    -----
    Plain Python on purpose: a comparison shares no code with what it judges. Cost: O(cells).

    Examples
    --------
    >>> table = pa.table({"_time": [1, 1], "word": ["moin", "moin"]})
    >>> row_counts(table)
    {(1,): Counter({(('word', 'moin'),): 2})}
    """
    times = sorted((name for name in table.column_names if _is_time(name)), key=lambda n: (len(n), n))
    found: defaultdict[tuple[Hashable, ...], Counter[Row]] = defaultdict(Counter)
    for row in table.to_pylist():
        time = tuple(_plain(row.pop(name)) for name in times)
        weight = row.pop("_diff", 1)
        fields = sorted((name, _plain(value)) for name, value in row.items() if value is not None)
        found[time][tuple(fields)] += weight
    counts: dict[tuple[Hashable, ...], Counter[Row]] = {}
    for time, rows in found.items():
        kept = Counter({row: weight for row, weight in rows.items() if weight})
        if kept:
            counts[time] = kept
    return counts


def _render(row: Row) -> str:
    return "{" + ", ".join(f"{name}: {value!r}" for name, value in row) + "}"


def _listing(title: str, rows: Counter[Row]) -> Iterable[str]:
    yield f"    {title} ({sum(rows.values())} rows):"
    ordered = sorted(rows.items(), key=repr)
    for row, weight in ordered[:_LISTED]:
        yield f"      {weight} x {_render(row)}"
    if len(ordered) > _LISTED:
        yield f"      and {len(ordered) - _LISTED} more"


def assert_same_updates(actual: pa.Table, expected: pa.Table, /, *, what: str = "rows") -> None:
    """Compare two tables as multisets of rows per time.

    Parameters
    ----------
    actual, expected : pyarrow.Table
        Tables with time columns as the log names them; ``_diff`` is a weight where present.
    what : str
        What is compared, for the first line of the message.

    Raises
    ------
    AssertionError
        If they differ: lists per time what is only in `actual` and what is only in `expected`.

    Examples
    --------
    >>> left = pa.table({"_time": [1, 2], "word": ["moin", "tach"]})
    >>> assert_same_updates(left, left.take([1, 0]))
    >>> assert_same_updates(left, left.slice(1))
    Traceback (most recent call last):
    AssertionError: could not match rows: they differ at 1 time
      at time (1,)
        only in actual (1 rows):
          1 x {word: 'moin'}
    """
    left, right = row_counts(actual), row_counts(expected)
    report: list[str] = []
    n_times = 0
    for time in sorted(left.keys() | right.keys(), key=repr):
        here, there = left.get(time, Counter()), right.get(time, Counter())
        if here == there:
            continue
        n_times += 1
        report.append(f"  at time {time!r}")
        difference = here.copy()
        difference.subtract(there)
        surplus = Counter({row: weight for row, weight in difference.items() if weight > 0})
        missing = Counter({row: -weight for row, weight in difference.items() if weight < 0})
        if surplus:
            report.extend(_listing("only in actual", surplus))
        if missing:
            report.extend(_listing("only in expected", missing))
    if n_times:
        plural = "time" if n_times == 1 else "times"
        head = f"could not match {what}: they differ at {n_times} {plural}"
        raise AssertionError("\n".join([head, *report]))


def assert_same_rows(actual: pa.Table, expected: pa.Table, /, *, what: str = "rows") -> None:
    """Compare two tables as multisets of rows, whatever their time columns.

    Parameters
    ----------
    actual, expected : pyarrow.Table
        The tables; columns named like the log's time columns are compared like any other.
    what : str
        What is compared, for the first line of the message.

    Raises
    ------
    AssertionError
        If they differ, with both-sided differences.

    Examples
    --------
    >>> assert_same_rows(pa.table({"n": [1, 2]}), pa.table({"n": [2, 1]}))
    """

    def without_times(table: pa.Table) -> pa.Table:
        names = [f"time column {name}" if _is_time(name) else name for name in table.column_names]
        return table.rename_columns(names)

    assert_same_updates(without_times(actual), without_times(expected), what=what)
