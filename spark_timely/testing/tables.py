"""Tables written as text, for inputs and expectations that a reader can check by eye."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from spark_timely.errors import InvalidUsageError

__all__ = ["table_from_text"]

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
                hint="part the cells of every line by '|'",
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
