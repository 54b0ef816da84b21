"""Hypothesis strategies: times, payloads, legal streams, rows to capture.

For property tests of captures and logs: `histories` draws the commits of a whole log, `arrivals` the rows that a
capture gets. Needs `hypothesis`, so nothing else of the library imports this module; import it by name.

Invariants
----------
1. A `History` keeps the capture protocol (`protocol.rules`), stream by stream.
2. Times are drawn from a small pool, so that ties, repeated times and times one microsecond apart
   are the rule and not the exception.
3. Everything here is plain Python: integers, tuples, dictionaries. A time is a tuple of k integers
   (days for a date, microseconds since the epoch for a timestamp).
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

__all__ = [
    "PAYLOAD_SCHEMA",
    "Arrivals",
    "History",
    "StreamCommit",
    "arrivals",
    "column_names",
    "histories",
    "rows_table",
    "time_kinds",
    "time_pools",
]

Time: TypeAlias = tuple[int, ...]
Row: TypeAlias = tuple[tuple[str, object], ...]

_ARROW: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "short": pa.int16(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_US: Final = 86_400_000_000


def _days(year: int, month: int, day: int) -> int:
    return (dt.date(year, month, day) - _EPOCH.date()).days


# The least time of a log by default, and the greatest time that the tests use, per kind.
MINIMA: Final[dict[str, int]] = {
    "long": -(2**63),
    "int": -(2**31),
    "short": -(2**15),
    "date": _days(1700, 1, 1),
    "timestamp": _days(1700, 1, 1) * _DAY_US,
}
_MAXIMA: Final[dict[str, int]] = {
    "long": 2**63 - 2,
    "int": 2**31 - 2,
    "short": 2**15 - 2,
    "date": _days(9999, 12, 30),
    "timestamp": _days(9999, 12, 31) * _DAY_US,
}
_BASES: Final[dict[str, tuple[int, ...]]] = {
    "long": (0, -3, 10**12, 2**53, _MAXIMA["long"] - 40),
    "int": (0, -3, _MAXIMA["int"] - 40),
    "short": (0, -3, _MAXIMA["short"] - 40),
    "date": (0, -3, MINIMA["date"], _days(2024, 2, 27), _MAXIMA["date"] - 40),
    "timestamp": (
        0,
        -3,
        MINIMA["timestamp"],
        1_700_000_000_000_000 - 2,
        _days(2024, 3, 31) * _DAY_US + 3_600_000_000 - 2,  # an hour lost in Berlin, gained in October
        _MAXIMA["timestamp"] - 5_000,
    ),
}
# Steps around the millisecond, where statistics are cut.
_STEPS: Final[dict[str, tuple[int, ...]]] = {
    "timestamp": (0, 1, 2, 3, 500, 998, 999, 1000, 1001, 1002, 1999, 2000, 2001),
}
_PLAIN_STEPS: Final = (0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 20, 33)

PAYLOAD_SCHEMA: Final = pa.schema(
    [
        pa.field("word", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


def time_kinds(*, arity: int | None = None) -> st.SearchStrategy[tuple[str, ...]]:
    """Draw the types of a log's time, one per coordinate.

    Parameters
    ----------
    arity : int, optional
        Number of coordinates; 1 or 2 where not given.

    Returns
    -------
    SearchStrategy of tuple of str
        For example ``("timestamp",)`` or ``("long", "date")``.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(time_kinds(arity=1), lambda kinds: True)
    ('long',)
    """
    kind = st.sampled_from(["long", "timestamp", "date", "int", "short"])
    least, most = (1, 2) if arity is None else (arity, arity)
    return st.lists(kind, min_size=least, max_size=most).map(tuple)


def column_names(arity: int) -> list[str]:
    """Return the names of a log's time columns.

    Examples
    --------
    >>> column_names(1), column_names(2)
    (['_time'], ['_time_0', '_time_1'])
    """
    return ["_time"] if arity == 1 else [f"_time_{place}" for place in range(arity)]


@st.composite
def time_pools(draw: st.DrawFn, kinds: tuple[str, ...]) -> list[Time]:
    """Draw the few times that a history uses.

    Parameters
    ----------
    kinds : tuple of str
        Types of the coordinates.

    Returns
    -------
    list of tuple of int
        At least one time, sorted; in a product mostly incomparable neighbours.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(time_pools(("long",)), lambda pool: True)
    [(0,)]
    """
    coordinates: list[list[int]] = []
    for kind in kinds:
        base = draw(st.sampled_from(_BASES[kind]))
        steps = _STEPS.get(kind, _PLAIN_STEPS)
        most = 9 if len(kinds) == 1 else 4
        offsets = draw(st.sets(st.sampled_from(steps), min_size=1, max_size=most))
        coordinates.append(sorted(base + offset for offset in offsets))
    pool: list[Time] = [()]
    for values in coordinates:
        pool = [(*time, value) for time in pool for value in values]
    return sorted(pool)


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """One commit of one stream: messages first, then progress.

    Attributes
    ----------
    stream : str
        Which stream.
    messages : tuple of (time, row)
        A row is a sorted tuple of (column, value) pairs; rows may be equal.
    progress : tuple of (time, int)
        Changes of the stream's counts; a time may occur more than once.
    """

    stream: str
    messages: tuple[tuple[Time, Row], ...]
    progress: tuple[tuple[Time, int], ...]


@dataclass(frozen=True, slots=True)
class History:
    """The history of some streams of one log, in the order of their commits.

    Attributes
    ----------
    kinds : tuple of str
        Types of the time's coordinates.
    minimum : tuple of int
        The log's least time, where every stream starts with count 1.
    streams : tuple of str
        The streams, all of which claim their capability.
    commits : tuple of StreamCommit
        Their commits.
    """

    kinds: tuple[str, ...]
    minimum: Time
    streams: tuple[str, ...]
    commits: tuple[StreamCommit, ...]

    @property
    def arity(self) -> int:
        """Number of coordinates of a time."""
        return len(self.kinds)


def _less_equal(a: Time, b: Time) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


_WORDS: Final = ("moin", "tach", "servus", "grüezi", "", "a'b\"c\n", "日本")
_DOUBLES: Final = (0.0, -0.0, 1.5, float("nan"), float("inf"), 1e-300)


def _row(rng: random.Random) -> Row:
    values: dict[str, object] = {
        "word": rng.choice([None, *_WORDS]),
        "n": rng.choice([None, 0, 1, 2, -(2**63), 2**63 - 1]),
        "x": rng.choice([None, *_DOUBLES]),
        "at": rng.choice([None, _EPOCH, _EPOCH + dt.timedelta(microseconds=1_700_000_000_000_001)]),
    }
    return tuple(sorted(values.items()))


def _commit(rng: random.Random, stream: str, counts: Counter[Time], pool: list[Time], *, last: bool) -> StreamCommit:
    """Draw a legal commit of a stream that still holds something, and apply it to `counts`."""
    held = sorted(counts)

    def reachable(base: Time) -> list[Time]:
        return [time for time in pool if _less_equal(base, time)] or [base]

    messages = []
    for _ in range(rng.choice([0, 0, 1, 2, 3, 5, 8])):
        time = rng.choice(reachable(rng.choice(held)))
        messages.extend([(time, _row(rng))] * rng.choice([1, 1, 1, 2]))
    changes: list[tuple[Time, int]] = []
    if last:
        changes = [(time, -count) for time, count in counts.items()]
    else:
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            changes.append((rng.choice(reachable(rng.choice(held))), 1))
        for time in held:
            if rng.random() < 0.6:
                changes.append((time, -rng.randint(1, counts[time])))
        after = counts.copy()
        for time, change in changes:
            after[time] += change
        if not any(after.values()):  # only the last commit completes a stream
            changes.append((rng.choice(reachable(rng.choice(held))), 1))
    rng.shuffle(changes)
    for time, change in changes:
        counts[time] += change
    for time in [time for time, count in counts.items() if not count]:
        del counts[time]
    return StreamCommit(stream, tuple(messages), tuple(changes))


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    arity: int | None = None,
    max_streams: int = 3,
    max_commits: int = 12,
) -> History:
    """Draw what some streams of one log did, protocol kept.

    Parameters
    ----------
    arity : int, optional
        Coordinates of a time; 1 or 2 where not given.
    max_streams, max_commits : int
        Bounds. A stream may stay idle for a stretch, for ever, or finish early.

    Returns
    -------
    History
        Legal by construction; complete in about half of the draws.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(histories(), lambda history: bool(history.commits)).streams
    ('s0',)
    """
    kinds = draw(time_kinds(arity=arity))
    pool = draw(time_pools(kinds))
    minimum = tuple(MINIMA[kind] for kind in kinds)
    streams = tuple(f"s{index}" for index in range(draw(st.integers(1, max_streams))))
    n_commits = draw(st.integers(0, max_commits))
    finishes = draw(st.booleans())
    rng = draw(st.randoms(use_true_random=False))
    held = {stream: Counter({minimum: 1}) for stream in streams}
    commits: list[StreamCommit] = []
    active = list(streams)
    for _ in range(n_commits):
        if not active:
            break
        stream = rng.choice(active[:1] if rng.random() < 0.3 else active)  # one runs ahead at times
        commits.append(_commit(rng, stream, held[stream], pool, last=rng.random() < 0.05))
        if not held[stream]:
            active.remove(stream)
    if finishes:
        commits.extend(_commit(rng, stream, held[stream], pool, last=True) for stream in active)
    return History(kinds, minimum, streams, tuple(commits))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows in the order in which they arrive, to be captured.

    Attributes
    ----------
    kind : str
        Type of the time (one coordinate).
    rows : tuple of (time, row)
        The rows; their time in the log's units.
    lateness : int
        How far a row may lie behind the greatest time before it, in those units, without being late.
    """

    kind: str
    rows: tuple[tuple[Time, Row], ...]
    lateness: int

    @property
    def late_for_some_cut(self) -> bool:
        """Say whether some cut into micro-batches makes a row late."""
        greatest: int | None = None
        for (time,), _ in self.rows:
            if greatest is not None and time < greatest - self.lateness:
                return True
            greatest = time if greatest is None else max(greatest, time)
        return False


@st.composite
def arrivals(draw: st.DrawFn, *, max_rows: int = 30, late: bool | None = None) -> Arrivals:
    """Draw rows to capture.

    Parameters
    ----------
    max_rows : int
        Bound.
    late : bool, optional
        False: no cut makes a row late. Where not given, either may happen.

    Returns
    -------
    Arrivals
        Rows with ties and repeats; the lateness is what they need, or less when rows may be late.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(arrivals(late=False), lambda found: len(found.rows) > 0).late_for_some_cut
    False
    """
    kind = draw(st.sampled_from(["long", "timestamp", "date", "int", "short"]))
    pool = draw(time_pools((kind,)))
    rng = draw(st.randoms(use_true_random=False))
    n_rows = draw(st.integers(0, max_rows))
    rows: list[tuple[Time, Row]] = []
    for _ in range(n_rows):
        rows.append((rng.choice(pool), _row(rng)))
    if rng.random() < 0.5:  # roughly in order, as real streams are
        rows.sort(key=lambda row: row[0][0] + rng.choice([0, 0, 1, 3]))
    greatest, needed = None, 0
    for (time,), _ in rows:
        greatest = time if greatest is None else max(greatest, time)
        needed = max(needed, greatest - time)
    if late is False:
        lateness = needed + rng.choice([0, 0, 1])
    else:
        lateness = rng.choice([0, 1, needed // 2, needed])
    return Arrivals(kind, tuple(rows), lateness)


def rows_table(
    rows: list[tuple[Time, Row]],
    kinds: tuple[str, ...],
    *,
    names: list[str] | None = None,
) -> pa.Table:
    """Make an Arrow table of rows and their times.

    Parameters
    ----------
    rows : list of (time, row)
        As in `StreamCommit`.
    kinds : tuple of str
        Types of the time's coordinates.
    names : list of str, optional
        Names of the time columns; the log's own where not given.

    Returns
    -------
    pyarrow.Table
        Payload of `PAYLOAD_SCHEMA`, then the time columns.

    Examples
    --------
    >>> rows_table([((3,), (("word", "moin"),))], ("date",))["_time"].to_pylist()
    [datetime.date(1970, 1, 4)]
    """
    fields = {
        field.name: pa.array([dict(row).get(field.name) for _, row in rows], field.type) for field in PAYLOAD_SCHEMA
    }
    for place, (kind, name) in enumerate(zip(kinds, names or column_names(len(kinds)), strict=True)):
        wide = pa.int32() if kind == "date" else pa.int64()
        fields[name] = pa.array([time[place] for time, _ in rows], wide).cast(_ARROW[kind])
    return pa.table(fields)
