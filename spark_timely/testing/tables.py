"""Text tables for tests of dataflows: inputs and expected outputs as text, compared time by time, without a log.

A user's test makes a stream of a table (`stream_of`), puts operators behind it, takes the rows that come out
(`rows_of`), and compares them with a table written as text (`table_from_text`, `assert_same_rows`). It needs no Spark;
tests of continual tasks, whose bodies are Spark's, are `testing.tasks`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from spark_timely.dataflow.engine.lookups import held_of
from spark_timely.dataflow.history.base import Held
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import Names, Replay
from spark_timely.errors import InvalidUsageError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType
from spark_timely.trace.keys import EVERY_KEY
from spark_timely.trace.updates import DIFF

if TYPE_CHECKING:
    from spark_timely.dataflow.views import View
    from spark_timely.log.files.format import LogKind

_TIME: Final = "__time__"
_DIFF: Final = "__diff__"
_INT: Final = re.compile(r"[+-]?\d+")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")


def _null(text: str) -> bool:
    return text in {"", "null", "None"}


def _stamp(text: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(text)
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _string(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _boolean(text: str) -> bool:
    return text == "true"


# Tried in this order; the first one all of whose cells fit decides the column's type.
_KINDS: Final[tuple[tuple[Callable[[str], object | None], Callable[[str], object], pa.DataType], ...]] = (
    (_INT.fullmatch, int, pa.int64()),
    (re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|nan|inf)").fullmatch, float, pa.float64()),
    (re.compile("true|false").fullmatch, _boolean, pa.bool_()),
    (_DATE.fullmatch, dt.date.fromisoformat, pa.date32()),
    (_STAMP.fullmatch, _stamp, pa.timestamp("us", tz="UTC")),
    (lambda text: text, _string, pa.string()),
)


def _column(cells: list[str], wanted: pa.DataType | None) -> pa.Array:
    present = [cell for cell in cells if not _null(cell)]
    for fits, parse, kind in _KINDS:
        if wanted is not None and pa.types.is_string(wanted) and kind != wanted:
            continue
        if all(fits(cell) for cell in present):
            values = pa.array([None if _null(cell) else parse(cell) for cell in cells], kind)
            return values if wanted is None else values.cast(wanted)
    msg = "every cell is a string at least"
    raise AssertionError(msg)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in (line.split("|") if "|" in line else line.split())]


def table_from_text(text: str, /, *, schema: pa.Schema | None = None) -> pa.Table:
    """Read a table from lines of text.

    The first line names the columns. Cells are parted by ``|``, or by white space where the header has
    none. ``__time__`` becomes the log's time column: ``_time``, or ``_time_0``, ``_time_1``, … where its
    cells are products such as ``1,2``. ``__diff__`` becomes ``_diff``. An empty cell, ``null`` and
    ``None`` are null. A column is of the first of long, double, boolean, date, timestamp (UTC), string
    that fits all its cells; quote a string that looks like something else, or give `schema`.

    Parameters
    ----------
    text : str
        The table.
    schema : pyarrow.Schema, optional
        Types of some or all columns, by the names in the result.

    Returns
    -------
    pyarrow.Table
        One row per line below the header.

    Raises
    ------
    InvalidUsageError
        If there is no header, or a line has another number of cells.

    Notes
    -----
    Cost: O(cells), in plain Python: for tests.

    Examples
    --------
    >>> table_from_text('''
    ...     __time__ | __diff__ | word
    ...     1        | 1        | moin
    ...     3        | -1       | moin
    ... ''').to_pydict()
    {'_time': [1, 3], '_diff': [1, -1], 'word': ['moin', 'moin']}
    >>> table_from_text('''
    ...     __time__ | n
    ...     0,2      | 7
    ... ''').column_names
    ['_time_0', '_time_1', 'n']
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    lines = [line for line in lines if not set(line) <= set("-+| ")]
    if not lines:
        msg = "could not read a table from text: found no header"
        raise InvalidUsageError(
            msg,
            hint="name the columns in the first line",
        )
    header = _cells(lines[0])
    rows = [_cells(line) for line in lines[1:]]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            msg = f"could not read a table from text: found {len(row)} cells in row {number}, {len(header)} columns"
            raise InvalidUsageError(
                msg,
                hint="separate the cells of every line by '|'",
            )
    columns: dict[str, list[str]] = {}
    for index, name in enumerate(header):
        cells = [row[index] for row in rows]
        if name == _TIME and any("," in cell for cell in cells):
            parts = [[part.strip() for part in cell.split(",")] for cell in cells]
            for place in range(len(parts[0])):
                columns[f"_time_{place}"] = [part[place] for part in parts]
        else:
            columns[{_TIME: "_time", _DIFF: "_diff"}.get(name, name)] = cells
    types = {} if schema is None else {field.name: field.type for field in schema}
    arrays = {name: _column(cells, types.get(name)) for name, cells in columns.items()}
    return pa.table(arrays)


class _TableScope(Scope):
    """A dataflow whose inputs are tables."""

    def __init__(self) -> None:
        super().__init__("tables")
        self.tables: dict[View, pa.Table] = {}

    def read(self, leaf: Replay, lo: Antichain, hi: Antichain, columns: Names) -> pa.Table:
        """Return the rows of a table at a range of times; or of what has a log of its own."""
        source = self._kept.source_of(leaf)
        if source is not None:
            # From the beginning on: what is said early may be of a later time.
            rows = source.run(self.read, _least(source), hi, columns, before=_Before(self, source))
        else:
            rows = self.tables[leaf]
        return _between(leaf, rows, lo, hi).select([*leaf.carried, *columns])


def _least(view: View) -> Antichain:
    return Antichain.of(tuple(kind.lo for kind in view.domain.types))


def _between(view: View, rows: pa.Table, lo: Antichain, hi: Antichain) -> pa.Table:
    """Return the rows at a range of times."""
    times = view.domain.from_columns(rows)
    return rows.filter(pa.array(lo.beyond(times) & ~hi.beyond(times)))


class _Before:
    """The rows of all keys before a range."""

    keys = EVERY_KEY
    moved_to = None

    def __init__(self, scope: _TableScope, view: View) -> None:
        self._scope, self._view = scope, view

    def set_apart(self, times: object, rows: pa.Table, why: str) -> None:
        """Leave out what is not believed."""

    def __call__(self, leaf: Replay | None, lo: Antichain, keys: pa.Table, columns: Names) -> Held:
        del keys
        at = self._view if leaf is None else leaf
        least = _least(at)
        if leaf is not None:
            rows = self._scope.read(leaf, least, lo, columns)
        elif lo == least:
            rows = at.empty()
        else:
            rows = _between(at, at.run(self._scope.read, least, lo, columns, before=self), least, lo)
        return held_of(at, rows, columns)


def stream_of(rows: pa.Table | Mapping[str, object], /, *, beside: Stream | None = None) -> Stream:
    """Return a stream of the rows of a table.

    Parameters
    ----------
    rows : pyarrow.Table or mapping
        With a column ``_time``, or ``_time_0``, ``_time_1``, … for product times; with ``_diff`` they are updates.
    beside : Stream, optional
        A stream made so, in the same dataflow: to join with it.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> rows = stream_of({"_time": [1, 2], "n": [10, 20]})
    >>> rows_of(rows.filter(pc.field("n") > 10))
    [{'_time': 2, 'n': 20}]
    """
    table = rows if isinstance(rows, pa.Table) else pa.table(dict(rows))
    times = [name for name in table.schema.names if name == "_time" or name.startswith("_time_")]
    kinds = tuple(TimeType.from_arrow_type(table.schema.field(name).type) for name in times)
    domain = TimeDomain(kinds)
    scope = _TableScope() if beside is None else beside._scope
    assert isinstance(scope, _TableScope)
    schema = pa.schema([field for field in table.schema if field.name not in (*times, DIFF)])
    kind: LogKind = "collection" if DIFF in table.schema.names else "stream"
    leaf = Replay(scope.next_name("replay"), domain, schema, (), f"table {len(scope.tables) + 1}", kind)
    scope.tables[leaf] = table
    return Stream(scope, leaf)


def rows_of(stream: Stream, /, *, lower: object = None, upper: object = ()) -> list[dict[str, object]]:
    """Return the rows of a stream at a range of times, in the order of their times.

    Parameters
    ----------
    stream : Stream
        Made of `stream_of`.
    lower, upper : frontier, optional
        All times unless given.

    Returns
    -------
    list of dict
        Ordered by time, and among the rows of a time by what they hold.

    Examples
    --------
    >>> rows_of(stream_of({"_time": [2, 1]}), upper=[2])
    [{'_time': 1}]
    """
    view = stream.view
    scope = stream._scope
    assert isinstance(scope, _TableScope)
    domain = view.domain
    lo = _least(view) if lower is None else domain.parse_frontier(lower)
    hi = domain.parse_frontier(list(upper) if isinstance(upper, Sequence) else upper)
    found: list[dict[str, object]] = view.run(scope.read, lo, hi, before=_Before(scope, view)).to_pylist()

    def place(row: dict[str, object]) -> list[tuple[bool, object]]:
        values = enumerate(row.values())
        return [(value is None, value if i < domain.arity else str(value)) for i, value in values]

    return sorted(found, key=place)


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
