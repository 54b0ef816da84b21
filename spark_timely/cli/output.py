"""Output of the command line: text and JSON to a terminal, a pipe or a file.

Each verb gets a `Console`, by which alone it prints. How the rows of an answer are laid out is in
`spark_timely.cli.rows`, which writes them to a console.

Invariants
----------
1. A verb's answer goes to standard output, everything else to standard error: output can be piped.
2. With ``--json`` the answer is JSON and nothing else; values that JSON lacks are written as text
   that the library's options and this command line read back.
3. No character is refused: what the terminal's encoding lacks is escaped, control characters that came
   out of data are escaped too (a log's strings may not move a cursor).
4. Where standard output cannot be written, `answering` raises an error of its own: the answer is lost, not the log.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import io
import json
import math
import os
import re
import select
import sys
import unicodedata
from typing import TYPE_CHECKING, Final, TextIO

from spark_timely.errors import StorageError, shown
from spark_timely.masking import masked, masked_value
from spark_timely.time.text import Duration, moment_text, parse_moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tqdm import tqdm

    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import TimeDomain

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ALIGNED_WIDTH: Final = 48
_LEAST_CELL_WIDTH: Final = 8
_BETWEEN: Final = "  "


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Let what standard output refuses be an error of its own (invariant 4); a reader that left is none.

    Examples
    --------
    >>> with answering():
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    spark_timely.errors.StorageError: ...could not write the answer: found OSError(28, 'No space left on device') ...
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        msg = f"could not write the answer: found {shown(error)}"
        hint = "free space where standard output goes, then ask again: what the verb did is done"
        raise StorageError(msg, hint=hint) from error


class Console:
    """The output of a verb: it writes the answer as text or as JSON.

    Parameters
    ----------
    out : text stream
        Usually ``sys.stdout``. Its encoding is kept; characters outside it are escaped.
    json_mode : bool
        Whether ``--json`` was given.

    Examples
    --------
    >>> import io
    >>> out = io.StringIO()
    >>> Console(out, json_mode=False).table(["stream", "rows"], [["main", 12]])
    >>> print(out.getvalue(), end="")
    stream  rows
    main      12
    """

    def __init__(self, out: TextIO, *, json_mode: bool) -> None:
        self.out = out
        self.json_mode = json_mode
        if isinstance(out, io.TextIOWrapper):
            with contextlib.suppress(io.UnsupportedOperation, ValueError):
                out.reconfigure(errors="backslashreplace")

    def line(self, text: str = "") -> None:
        """Write one line of text, without secrets, and with nothing that controls a terminal (invariant 3)."""
        self.write(printable(masked(text)) + "\n")

    def write(self, text: str) -> None:
        """Write a text as it is.

        Raises
        ------
        BrokenPipeError
            If the reader has left.
        StorageError
            If there is no room for it.
        """
        with answering():
            self.out.write(text)

    def flush(self) -> None:
        """Let the reader have what was written so far; raises as `write`."""
        with answering():
            self.out.flush()

    def check_reader(self) -> None:
        """Raise `BrokenPipeError` if the reader of a pipe has left: for a verb that has nothing to write for long."""
        if not hasattr(select, "poll"):
            return
        try:
            pipe = self.out.fileno()
        except (OSError, ValueError):  # no file
            return
        watch = select.poll()
        watch.register(pipe, 0)  # errors are reported always
        if any(event & select.POLLERR for _, event in watch.poll(0)):
            raise BrokenPipeError

    def answer(self, value: object, *, as_is: bool = False) -> None:
        """Write one JSON document on one line; without secrets, unless it is what a log holds."""
        self.write(to_json(value if as_is else masked_value(plain_value(value))) + "\n")

    def say(self, facts: object, lines: Iterable[str]) -> None:
        """Write the answer of a verb: facts with ``--json``, else lines of text."""
        if self.json_mode:
            self.answer(facts)
            return
        for line in lines:
            self.line(line)

    def columns(self) -> int | None:
        """Return how many columns a terminal has, by `COLUMNS` or as it says itself; None for any other output."""
        if not self.out.isatty():
            return None
        asked = os.environ.get("COLUMNS", "")
        if asked.isascii() and asked.isdigit() and int(asked[:9]):
            return int(asked[:9])
        import shutil

        return shutil.get_terminal_size((0, 0)).columns or None

    def progress(self, what: str, total: int | None, *, unit: str) -> tqdm:
        """Return a progress bar, which leaves nothing behind: on standard error where that is a terminal.

        Parameters
        ----------
        what : str
        total : int or None
            How many units will come; None where that is not known.
        unit : str

        Examples
        --------
        >>> import io
        >>> with Console(io.StringIO(), json_mode=True).progress("import", 1000, unit="B") as bar:
        ...     bar.update(500)
        """
        from tqdm import tqdm

        # None: where it is no terminal.
        disable = True if self.json_mode else None
        return tqdm(desc=what, total=total, unit=unit, unit_scale=True, leave=False, disable=disable, file=sys.stderr)

    def table(self, names: Sequence[str], rows: Iterable[Sequence[object]], *, as_is: bool = False) -> None:
        """Write a table at once. See `Table`."""
        Table(self, names, as_is=as_is).add(rows)


def aligned(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and values in two columns.

    Examples
    --------
    >>> aligned([("log", "flights"), ("frontier", "17")])
    ['log       flights', 'frontier  17']
    """
    rows = list(pairs)
    width = max((display_width(name) for name, _ in rows), default=0)
    return [f"{pad(name, width)}  {value}".rstrip() for name, value in rows]


class Table:
    """A table that may get rows little by little: numbers to the right, long cells cut on a terminal.

    There the longest cells are cut until a row fits. A cell shows that it was cut. Numbers are never cut. In a file or
    a pipe every cell is whole; one above 48 characters may reach beyond its column, so that rows stay short.

    Parameters
    ----------
    console : Console
    names : sequence of str
        Of the columns.
    as_is : bool
        Whether the cells are what a log holds, and may look like secrets.

    Examples
    --------
    >>> import io
    >>> out = io.StringIO()
    >>> table = Table(Console(out, json_mode=False), ["stream", "rows"])
    >>> table.add([["main", 12]])
    >>> table.add([["b", 3]])
    >>> print(out.getvalue(), end="")
    stream  rows
    main      12
    b          3
    """

    def __init__(self, console: Console, names: Sequence[str], *, as_is: bool = False) -> None:
        self._console = console
        self._heads = [printable(name) for name in names]
        self._as_is = as_is
        self._widths: list[int] = []

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows, below the names of the columns if they are the first. A column may become wider, never narrower.

        Parameters
        ----------
        rows : iterable of sequence
            One value per column.
        """
        safe = (lambda text: text) if self._as_is else masked
        raw = [list(row) for row in rows]
        numeric = [
            bool(raw) and all(isinstance(row[i], (int, float)) or row[i] is None for row in raw)
            for i in range(len(self._heads))
        ]
        cells = [[printable(safe(cell_text(value))) for value in row] for row in raw]
        if not self._widths:
            cells.insert(0, self._heads)
            self._widths = [0] * len(self._heads)
        if not cells:
            return
        longest = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
        widths = [max(pair) for pair in zip(longest, self._widths, strict=True)]
        room = self._console.columns()
        if room is None:
            # As wide as the longest cell each row would have as many blanks as that has characters.
            self._widths = [min(width, _ALIGNED_WIDTH) for width in widths]
        else:
            most = _fitting(widths, numeric, room)
            cells = [[cut(text, width) for text, width in zip(row, most, strict=True)] for row in cells]
            longest = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
            self._widths = [max(pair) for pair in zip(longest, self._widths, strict=True)]
        for row in cells:
            columns = zip(row, self._widths, numeric, strict=True)
            self._console.write(_BETWEEN.join(pad(text, width, right=right) for text, width, right in columns).rstrip())
            self._console.write("\n")


def _fitting(widths: list[int], numeric: list[bool], room: int) -> list[int]:
    """Return how wide each column may be for rows that fit."""
    room -= len(_BETWEEN) * (len(widths) - 1)
    texts = [width for width, number in zip(widths, numeric, strict=True) if not number]
    room -= sum(widths) - sum(texts)
    # The widest that all texts may be.
    most = max(widths, default=0)
    for left, width in zip(range(len(texts), 0, -1), sorted(texts), strict=True):
        most = room // left
        if width > most:
            break
        room -= width
    else:
        most = max(widths, default=0)
    most = max(most, _LEAST_CELL_WIDTH)
    return [width if number else min(width, most) for width, number in zip(widths, numeric, strict=True)]


def cell_text(value: object) -> str:
    """Return a value as a person reads it: ``-`` for null, counts with thousands separators."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dt.datetime) and value.utcoffset() == dt.timedelta(0):
        return moment_text(parse_moment(value) or 0)
    plain = plain_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def plain_value(value: object) -> object:
    """Return `value` with everything JSON lacks written as text.

    Moments are ISO 8601 (UTC as ``Z``), lengths of time have their units, decimals and floats that are no number their
    name, bytes base64.

    Examples
    --------
    >>> plain_value({"at": dt.datetime(2013, 6, 1, tzinfo=dt.UTC), "x": float("nan")})
    {'at': '2013-06-01T00:00:00Z', 'x': 'NaN'}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        sign = "-" if value < dt.timedelta() else ""
        return sign + Duration(abs(value) // dt.timedelta(microseconds=1)).text
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, dict):
        return {str(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return str(value)


def to_json(value: object) -> str:
    """Return one line of JSON; non-ASCII text stays readable, what would control a terminal does not get there."""
    text = json.dumps(plain_value(value), ensure_ascii=False, allow_nan=False)
    return CONTROL.sub(lambda found: json.dumps(found.group())[1:-1], text)


def printable(text: str) -> str:
    """Escape control characters and characters that change the direction of writing."""
    return CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def display_width(text: str) -> int:
    r"""Return how many columns a terminal gives to `text`.

    Examples
    --------
    >>> display_width("abc"), display_width("時間"), display_width("e\u0301")
    (3, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill `text` with spaces to `width` columns, on the left when `right`."""
    fill = " " * max(0, width - display_width(text))
    return fill + text if right else text + fill


def cut(text: str, width: int) -> str:
    """Shorten `text` to `width` columns of a terminal, keeping its beginning and, where there is room, its end."""
    if display_width(text) <= width:
        return text
    end = text[-11:] if width >= 2 * 11 else ""
    room = width - 1 - display_width(end)
    start = text[: max(room, 0)]
    while display_width(start) > room > 0:
        start = start[:-1]
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"


def size_text(size_bytes: int) -> str:
    """Return a number of bytes with a unit.

    Examples
    --------
    >>> size_text(999), size_text(1_250_000)
    ('999 B', '1.2 MB')
    """
    size = float(size_bytes)
    if size < 1000:
        return f"{size_bytes} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 1000 or unit == "TB":
            break
    return f"{size:.1f} {unit}"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> count_text(1, "file"), count_text(1200, "row")
    ('1 file', '1,200 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def frontier_text(domain: TimeDomain, frontier: Antichain) -> str:
    """Render a frontier for people: one time bare, several as JSON, the empty one with its meaning."""
    if frontier.is_empty:
        return "[] (complete)"
    if len(frontier) == 1 and domain.arity == 1:
        return str(domain.render_time(frontier.elements[0]))
    return domain.render_frontier(frontier)


def frontier_facts(domain: TimeDomain, frontier: Antichain) -> dict[str, object]:
    """Return how far something is, for JSON."""
    return {"frontier": domain.frontier_to_json(frontier), "complete": frontier.is_empty}


def moment(microseconds: int) -> dt.datetime:
    """Return a moment of the wall clock, for JSON."""
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)


def seconds(microseconds: int) -> str:
    """Return a moment of the wall clock, for people."""
    return moment_text(microseconds // 1_000_000 * 1_000_000, least="seconds")
