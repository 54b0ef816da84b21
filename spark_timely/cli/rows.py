"""Rows as the command line prints them: a table, CSV with a header, or one JSON object each.

The verbs ``peek``, ``sql`` and ``instance`` print rows of logs by it, and ``head`` takes rows as dicts from it. The
console that they are printed to, and all other output, is in `spark_timely.cli.output`.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.cli.output import Console, Table, cell_text, plain_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["as_python", "print_rows", "rows_of"]

_ROWS_AT_ONCE: Final = 1000  # not all of a large answer as objects at once


def print_rows(names: Sequence[str], rows: Iterator[dict[str, object]], form: str, console: Console) -> None:
    """Write rows as a table, as CSV with a header, or as one JSON object each."""
    table = Table(console, names, as_is=True) if form == "table" else None
    if form == "csv":
        console.write(_csv_line(names))
    part = list(islice(rows, _ROWS_AT_ONCE))
    first = True
    while part or first:
        if table is not None:
            table.add([list(row.values()) for row in part])
        for row in () if table is not None else part:
            if form == "csv":
                console.write(_csv_line(row.values()))
            else:
                console.answer(row, as_is=True)
        first, part = False, list(islice(rows, _ROWS_AT_ONCE))
    console.flush()


def rows_of(table: pa.Table) -> Iterator[dict[str, object]]:
    """Give the rows of a table as they are printed, some at a time."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from as_python(batch)


def _csv_line(values: Iterable[object]) -> str:
    """Return a line of CSV: null is nothing, an empty text two quotes, a quote in a text is doubled."""
    return ",".join(map(_csv_cell, values)) + "\n"


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    plain = plain_value(value)
    text = cell_text(plain) if isinstance(plain, bool | dict | list) else str(plain)
    return '"' + text.replace('"', '""') + '"' if text == "" or re.search(r'[",\r\n]|^\s|\s$', text) else text


def as_python(rows: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """Return rows as dicts.

    The texts of a column where one is no UTF-8, which Spark writes, as bytes; dates and timestamps of one that go
    beyond the years 1 to 9999 as integers.
    """
    try:
        return list(rows.to_pylist())
    except OverflowError:
        from spark_timely.interop.records import plain_type

        columns = [column.cast(plain_type(column.type)) if _is_beyond(column) else column for column in rows.columns]
        return as_python(pa.table(columns, names=rows.schema.names))
    except UnicodeDecodeError:
        columns = [column.cast(_with_bytes(column.type)) if _is_damaged(column) else column for column in rows.columns]
        return list(pa.table(columns, names=rows.schema.names).to_pylist())


def _is_beyond(column: pa.Array | pa.ChunkedArray) -> bool:
    try:
        column.to_pylist()
    except OverflowError:
        return True
    except UnicodeDecodeError:
        return False
    return False


def _is_damaged(column: pa.Array | pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of texts."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_with_bytes(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_with_bytes(kind.key_type), _with_bytes(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([kind.field(i).with_type(_with_bytes(kind.field(i).type)) for i in range(kind.num_fields)])
    return kind
