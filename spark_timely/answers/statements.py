"""The parser of SELECT, SUBSCRIBE and COPY statements with AS OF: texts become values. Pure.

The verb ``sql`` of the command line (`spark_timely.cli.answers`) runs the statements. (The SQL of dataflows is read in
`spark_timely.compute.sql`, that of continual tasks in `spark_timely.continual.body`.)

Four kinds are read, in Materialize's words. A SELECT of rows of one log is a peek, which needs no Spark; every other
SELECT is Spark's. SUBSCRIBE gives what changes, COPY writes files::

    SELECT a, b FROM orders WHERE a > 1 ORDER BY b DESC LIMIT 10 AS OF '2013-06-12'
    SELECT o.a, r.rate FROM orders o JOIN rates r USING (b) AS OF AT LEAST 17
    SUBSCRIBE TO orders WITH (SNAPSHOT = false, PROGRESS) ENVELOPE UPSERT (KEY (a)) AS OF 3 UP TO 9
    COPY (SELECT a FROM orders) TO '/exports/orders' WITH (FORMAT = 'csv', MAX FILE SIZE = '64 MB') AS OF 3

Tables are names that are given with the text, or paths of logs in backquotes.

Invariants
----------
1. A text is understood to its end or refused; what is refused is named. ``AS OF`` is there once, at the end, or before
   ``UP TO``.
2. A SELECT is taken for a peek only where a peek gives the same rows as Spark would. Where that is not sure, Spark gets
   the text, byte for byte but for its ``AS OF``.
3. A statement, written by ``str`` and read again, is the same statement.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar

from spark_timely.conf import parse_bytes
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.log import Log
from spark_timely.predicate import is_condition
from spark_timely.scanner import (
    BARE,
    KEYWORDS,
    Token,
    neighbours,
    quoted_name,
    refused_sql,
    scanned,
    statements_of,
    words_of,
)

if TYPE_CHECKING:
    from spark_timely.answers.envelopes import EnvelopeName

__all__ = [
    "CopyStatement",
    "PeekStatement",
    "SqlStatement",
    "Statement",
    "SubscribeStatement",
    "Target",
    "Time",
    "parse",
    "parse_order",
]

Time: TypeAlias = "int | str | tuple[int | str, ...]"
"""A time as it is written; one coordinate bare, several in brackets."""
Target: TypeAlias = "str | os.PathLike[str] | Log"
Order: TypeAlias = "tuple[tuple[str, Literal['asc', 'desc'], Literal['first', 'last']], ...]"
CopyFormat: TypeAlias = Literal["parquet", "csv"]

_ATTEMPT: Final = "read a statement"
_POSSIBLE: Final = "write SELECT … [AS OF t], SUBSCRIBE [TO] name …, or COPY … TO 'folder'"
# What somebody who writes one of these wants, in this library.
_INSTEAD: Final = {
    "explain": "to see at which time a SELECT is answered, use explain_timestamp",
    "fetch": "subscribe, and take rows with fetch(n, timeout_s=…)",
    "declare": "subscribe, and take rows with fetch(n, timeout_s=…)",
    "create": "make a log with create_log, a view that is kept up to date with a dataflow",
    **dict.fromkeys(("insert", "update", "delete", "merge"), "rows are captured: by a query, or by the log's writer"),
}
_MOST_DIGITS: Final = 19  # of 64 bits
_MOST_ROWS_DIGITS: Final = 38  # beyond 64 bits it is all rows, and not for Spark to read
_TIME_HINT: Final = "write a time: 17, '2013-06-12T08:00Z', DATE '2013-06-12', or (1, 2) for two coordinates"
_NAMING: Final = "names={…}"
_ENDS: Final = words_of("order limit offset")

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class PeekStatement:
    """A SELECT of rows of one log.

    Attributes
    ----------
    name : str
        The table, as it is written, without quotes.
    target : path or Log
        What it stands for.
    select : tuple of str or None
        Columns; None for all.
    where : str or None
        A condition that `spark_timely.predicate` reads.
    order_by : tuple of (str, str, str)
        Columns, each with ``asc`` or ``desc``, and ``first`` or ``last`` for nulls.
    limit : int or None
    offset : int
    as_of, as_of_at_least : time or None
        At most one of them is given.
    qualifier : str or None
        What stood before the columns, if anything: the table, or its alias. Where the log has a column of this name,
        and not one that was named, Spark would look into that column: read the text again with ``peeks=False``.
    """

    name: str
    target: Target
    select: tuple[str, ...] | None = None
    where: str | None = None
    order_by: Order = ()
    limit: int | None = None
    offset: int = 0
    as_of: Time | None = None
    as_of_at_least: Time | None = None
    qualifier: str | None = field(default=None, compare=False)

    @property
    def query(self) -> str:
        """The SELECT without its time, for Spark.

        Examples
        --------
        >>> parse("select a from t order by b limit 3 as of 5", names={"t": "/logs/t"}).query
        'SELECT `a` FROM `t` ORDER BY `b` ASC NULLS FIRST LIMIT 3'
        """
        columns = "*" if self.select is None else ", ".join(map(quoted_name, self.select))
        parts = [f"SELECT {columns} FROM {quoted_name(self.name)}"]
        if self.where is not None:
            parts.append(f"WHERE {self.where}")
        if self.order_by:
            parts.append(f"ORDER BY {_order_text(self.order_by)}")
        if self.limit is not None:
            parts.append(f"LIMIT {self.limit}")
        if self.offset:
            parts.append(f"OFFSET {self.offset}")
        return " ".join(parts)

    def arguments(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return what `spark_timely.answers.peek.peek` takes, but for the log and the time.

        Parameters
        ----------
        columns : sequence of str
            Of the log: names are found without regard to case, as Spark does.

        Raises
        ------
        SchemaMismatchError
            If a column of the statement is none of them, or several.

        Examples
        --------
        >>> parse("SELECT A FROM `/logs/t` LIMIT 3").arguments(["a", "b"])
        {'select': ('a',), 'where': None, 'order_by': None, 'limit': 3, 'offset': 0}
        """
        named = _columns_among(columns)
        return {
            "select": None if self.select is None else tuple(map(named, self.select)),
            "where": self.where,
            "order_by": _order_among(named, self.order_by),
            "limit": self.limit,
            "offset": self.offset,
        }

    def __str__(self) -> str:
        return self.query + _as_of_text(self.as_of, self.as_of_at_least)


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """A SELECT that is Spark's.

    Attributes
    ----------
    query : str
        The text, without its time, and what is around it.
    as_of, as_of_at_least : time or None
        At most one of them is given.
    """

    query: str
    as_of: Time | None = None
    as_of_at_least: Time | None = None

    def __str__(self) -> str:
        return self.query + _as_of_text(self.as_of, self.as_of_at_least)


@dataclass(frozen=True, slots=True)
class SubscribeStatement:
    """A SUBSCRIBE to one log.

    Attributes
    ----------
    name : str
    target : path or Log
    snapshot, progress : bool
    envelope : {"upsert", "debezium"} or None
    key : tuple of str
        Of an envelope.
    order_by : tuple of (str, str, str)
        Of the rows of one time; ``mz_diff`` and ``_diff`` are the diff.
    as_of, as_of_at_least : time or None
        At most one of them is given.
    up_to : time or None
    """

    name: str
    target: Target
    snapshot: bool = True
    progress: bool = False
    envelope: EnvelopeName | None = None
    key: tuple[str, ...] = ()
    order_by: Order = ()
    as_of: Time | None = None
    as_of_at_least: Time | None = None
    up_to: Time | None = None

    def arguments(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return what `spark_timely.answers.subscribe.subscribe` takes, but for the log.

        Parameters
        ----------
        columns : sequence of str
            Of the log: names are found without regard to case, as Spark does.

        Raises
        ------
        SchemaMismatchError
            If a column of the statement is none of them, or several.

        Examples
        --------
        >>> found = parse("SUBSCRIBE `/logs/t` ENVELOPE UPSERT (KEY (K)) UP TO 5").arguments(["k", "v"])
        >>> found["envelope"], found["key"], found["up_to"]
        ('upsert', ('k',), 5)
        """
        named = _columns_among([*columns, "_diff"])
        return {
            "snapshot": self.snapshot,
            "progress": self.progress,
            "envelope": self.envelope,
            "key": tuple(map(named, self.key)) or None,
            "order_by": _order_among(named, self.order_by),
            "as_of": self.as_of,
            "as_of_at_least": self.as_of_at_least,
            "up_to": self.up_to,
        }

    def __str__(self) -> str:
        words = {True: "true", False: "false"}
        text = f"SUBSCRIBE TO {quoted_name(self.name)}"
        if not self.snapshot or self.progress:
            text += f" WITH (SNAPSHOT = {words[self.snapshot]}, PROGRESS = {words[self.progress]})"
        if self.envelope is not None:
            text += f" ENVELOPE {self.envelope.upper()} (KEY ({', '.join(map(quoted_name, self.key))}))"
        if self.order_by:
            text += f" WITHIN TIMESTAMP ORDER BY {_order_text(self.order_by)}"
        text += _as_of_text(self.as_of, self.as_of_at_least)
        return text if self.up_to is None else f"{text} UP TO {_time_text(self.up_to)}"


@dataclass(frozen=True, slots=True)
class CopyStatement:
    """A COPY of a log, or of what a SELECT gives, into files.

    Attributes
    ----------
    source : PeekStatement or SqlStatement
        What is copied, with its time; of a log by its name a peek of all.
    folder : str
    format : {"parquet", "csv"}
    max_file_bytes : int or None
        None where it is not said.
    """

    source: PeekStatement | SqlStatement
    folder: str
    format: CopyFormat = "parquet"
    max_file_bytes: int | None = None

    def __str__(self) -> str:
        options = [f"FORMAT = '{self.format}'"]
        if self.max_file_bytes is not None:
            options.append(f"MAX FILE SIZE = {self.max_file_bytes}")
        source, quote = self.source, '"' if "'" in self.folder else "'"
        text = f"COPY ({source.query}) TO {quote}{self.folder}{quote} WITH ({', '.join(options)})"
        return text + _as_of_text(source.as_of, source.as_of_at_least)


Statement: TypeAlias = PeekStatement | SqlStatement | SubscribeStatement | CopyStatement


def parse(
    text: str, /, *, names: Mapping[str, Target] | None = None, naming: str = _NAMING, peeks: bool = True
) -> Statement:
    """Return what a statement asks for.

    Parameters
    ----------
    text : str
        One statement; comments, and a semicolon at the end, say nothing. Key words in any case.
    names : mapping of str to path or Log, optional
        What the tables of the text are, found without regard to case. Others are paths in backquotes, with a slash.
    naming : str
        For errors: how logs are given names.
    peeks : bool
        Whether a SELECT of rows of one log is a peek; else all are Spark's.

    Returns
    -------
    PeekStatement, SqlStatement, SubscribeStatement or CopyStatement
        The names of a `SqlStatement` are looked up when it runs.

    Raises
    ------
    InvalidUsageError
        If it is no single statement, another one, or anything of it is not taken.

    Notes
    -----
    Pure: no log is opened. Which columns there are says the log, when the statement runs.

    Examples
    --------
    >>> parse("select * from orders where id = 7 as of 3;", names={"orders": "/data/orders"}).where
    'id = 7'
    >>> parse("SELECT count(*) FROM `/data/orders` AS OF AT LEAST '2013-06-12'")
    SqlStatement(query='SELECT count(*) FROM `/data/orders`', as_of=None, as_of_at_least='2013-06-12')
    >>> parse("SELECT o.id FROM `/data/orders` AS o WHERE o.k = 'a'").query
    "SELECT `id` FROM `/data/orders` WHERE k = 'a'"
    >>> parse("DROP TABLE orders")
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: ...found statement of kind 'DROP' in statement 'DROP TABLE orders' — hint: \
write SELECT … [AS OF t], SUBSCRIBE [TO] name …, or COPY … TO 'folder'
    """
    if not isinstance(text, str):
        msg = f"could not {_ATTEMPT}: found text={shown(text)}"
        raise InvalidUsageError(msg, hint=_POSSIBLE)
    tables = _tables(names)
    pieces = statements_of(scanned(text, _ATTEMPT))
    if len(pieces) != 1:
        raise refused_sql(_ATTEMPT, f"{len(pieces)} statements", text, "write one")
    return _Reading(text, pieces[0], tables, naming=naming, peeks=peeks).statement()


def parse_order(text: str, /) -> Order:
    """Return an order of rows, as it is written behind ORDER BY.

    Raises
    ------
    InvalidUsageError
        If it is none.

    Examples
    --------
    >>> parse_order("price DESC, id")
    (('price', 'desc', 'last'), ('id', 'asc', 'first'))
    """
    reading = _Reading(text, scanned(text, "read an order"), {}, attempt="read an order", what="order")
    found = reading.order()
    if found is None or not reading.ended:
        reading.refuse(reading.found, "write names of columns: price DESC NULLS LAST, id")
    return found


# Names ------------------------------------------------------------------------------------------------


def _tables(names: object) -> dict[str, Target]:
    """Return what tables stand for, by their names in lower case."""
    if names is None:
        return {}
    if not isinstance(names, Mapping):
        msg = f"could not {_ATTEMPT}: found names={shown(names)}"
        raise InvalidUsageError(msg, hint="give names={'orders': '/data/orders'}")
    tables: dict[str, Target] = {}
    for name, target in names.items():
        if not isinstance(name, str) or not name or name.lower() in tables:
            msg = f"could not {_ATTEMPT}: found name {shown(name)} in names"
            raise InvalidUsageError(msg, hint="give each log a name of its own; the case of letters says nothing")
        if not isinstance(target, str | os.PathLike | Log):
            msg = f"could not {_ATTEMPT}: found {shown(target)} for name {shown(name)}"
            raise InvalidUsageError(msg, hint="give the path of a log, or a log that is open")
        tables[name.lower()] = target
    return tables


def _columns_among(columns: Sequence[str]) -> Callable[[str], str]:
    """Return what finds a column of a log by a name in a statement."""

    def find(name: str) -> str:
        found = [name] if name in columns else [each for each in columns if each.lower() == name.lower()]
        if not found and name.lower() == "mz_diff" and "_diff" in columns:
            return "_diff"
        if len(found) != 1:
            what = "no column" if not found else "several columns"
            msg = f"could not find a column of a statement: found {what} {shown(name)}"
            raise SchemaMismatchError(
                msg, hint=f"choose among the log's columns: {shown(list(columns))}", context={"column": name}
            )
        return found[0]

    return find


def _order_among(named: Callable[[str], str], order: Order) -> list[tuple[str, str, str]] | None:
    return [(named(name), direction, nulls) for name, direction, nulls in order] or None


# Text -------------------------------------------------------------------------------------------------


def _order_text(order: Order) -> str:
    return ", ".join(
        f"{quoted_name(name)} {direction.upper()} NULLS {nulls.upper()}" for name, direction, nulls in order
    )


def _as_of_text(as_of: Time | None, as_of_at_least: Time | None) -> str:
    if as_of_at_least is not None:
        return f" AS OF AT LEAST {_time_text(as_of_at_least)}"
    return "" if as_of is None else f" AS OF {_time_text(as_of)}"


def _time_text(time: Time) -> str:
    if isinstance(time, tuple):
        return f"({', '.join(map(_time_text, time))})"
    if isinstance(time, int):
        return str(time)
    quote = '"' if "'" in time else "'"
    return f"{quote}{time}{quote}"


# Reading ----------------------------------------------------------------------------------------------


def _unqualified(text: str, tokens: list[Token]) -> tuple[str, str | None]:
    """Return a SELECT over one table without an alias, and without names of the table before columns; and that name.

    None if nothing was left out: the text is as it was.
    """
    froms = [at for at, token in enumerate(tokens) if token.word == "from"]
    if len(froms) != 1 or froms[0] + 1 >= len(tokens) or not tokens[froms[0] + 1].names:
        return text, None
    at = froms[0] + 1
    named, left_out = tokens[at], list[Token]()
    words = [token.word for token in tokens[at + 1 : at + 3]]
    behind = at + (2 if words[:1] == ["as"] else 1)
    if behind < len(tokens) and tokens[behind].names and tokens[behind].word not in KEYWORDS | _ENDS | {"where"}:
        named = tokens[behind]
        left_out += tokens[at + 1 : behind + 1]
    # Bounded by the length of what a user wrote.
    for (before, token, dot), after in zip(neighbours(tokens), [*tokens[2:], *tokens[:2]], strict=True):
        first = token.names and before.text != "." and before.word != "from" and dot.text == "." and after.names
        if first and token.name.lower() == named.name.lower():
            left_out += [token, dot]
    if not left_out:
        return text, None
    parts, end = [], tokens[0].start
    for token in sorted(left_out, key=lambda token: token.start):
        parts.append(text[end : token.start])
        end = token.end
    return "".join([*parts, text[end : tokens[-1].end]]).rstrip(), named.name


class _Reading:
    """One statement, read piece by piece.

    Parameters
    ----------
    text : str
    tokens : list of Token
        At least one for a statement.
    tables : dict of str to path or Log
        By names in lower case.
    attempt, what, naming : str
        For errors.
    peeks : bool
        Whether a SELECT of rows of one log is a peek.
    """

    def __init__(
        self, text: str, tokens: list[Token], tables: dict[str, Target], *, attempt: str = _ATTEMPT,
        what: str = "statement", naming: str = _NAMING, peeks: bool = True,
    ) -> None:  # fmt: skip
        self._text, self._tokens, self._tables = text, tokens, tables
        self._attempt, self._what, self._naming, self._peeks = attempt, what, naming, peeks
        self._at = 0

    # Pieces ------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether all pieces were read."""
        return self._at == len(self._tokens)

    @property
    def found(self) -> str:
        """The piece that comes next, for errors."""
        return "its end" if self.ended else shown(self._tokens[self._at].text)

    def refuse(self, found: str, hint: str) -> NoReturn:
        """Raise the error for something that is not taken."""
        raise refused_sql(self._attempt, found, self._text, hint, self._what)

    def _next(self, kind: str | None = None) -> Token | None:
        """Return the piece that comes next, if it is of a kind, without passing it."""
        token = None if self.ended else self._tokens[self._at]
        return token if token is not None and kind in (None, token.kind) else None

    def _took(self, *pieces: str) -> bool:
        """Pass words and signs, if they come next."""
        coming = self._tokens[self._at : self._at + len(pieces)]
        same = [token.word or (token.text if token.kind == "symbol" else "") for token in coming] == list(pieces)
        self._at += len(pieces) if same else 0
        return same

    def _need(self, *pieces: str, hint: str) -> None:
        if not self._took(*pieces):
            self.refuse(f"{self.found} for {' '.join(pieces).upper()}", hint)

    def _name(self) -> Token | None:
        """Pass the name of a column or a table, if it comes next."""
        token = self._next()
        if token is None or not token.names or token.word in KEYWORDS or not token.name:
            return None
        self._at += 1
        return token

    def _list(self, read: Callable[[], _Found | None]) -> list[_Found] | None:
        """Pass a list with commas between its entries; None if one is no entry."""
        found: list[_Found] = []
        while (entry := read()) is not None:
            found.append(entry)
            if not self._took(","):
                return found
        return None

    def _column(self) -> str | None:
        token = self._name()
        return None if token is None else token.name

    def _number(self, most_digits: int) -> int | None:
        token = self._next("number")
        if token is None or not (token.text.isascii() and token.text.isdigit()) or len(token.text) > most_digits:
            return None
        self._at += 1
        return int(token.text)

    def _literal(self, hint: str) -> str | None:
        """Pass a text in quotes, if it comes next."""
        token = self._next("string")
        if token is None:
            return None
        if token.text[0] in "rR" or "\\" in token.text:
            self.refuse(f"a backslash or a prefix in text {shown(token.text)}", hint)
        self._at += 1
        after = self._next("string")
        if after is not None:
            # Two texts side by side are one to some parsers.
            self.refuse(f"text {after.text} right behind another one", 'put a text with a quote in it in "…"')
        return token.text[1:-1]

    def _table(self) -> tuple[str, Target] | None:
        """Pass the name of a table, if one comes next, and return it with what it stands for."""
        token = self._name()
        if token is None:
            return None
        if token.name.lower() in self._tables:
            return token.name, self._tables[token.name.lower()]
        if token.kind == "quoted" and "/" in token.name:
            return token.name, token.name
        hint = f"name its log with {self._naming}, or write the path of its log in backquotes, with a slash"
        self.refuse(f"table {shown(token.name)}, which has no log", hint)

    # Parts ------------------------------------------------------------------------------------

    def order(self) -> Order | None:
        """Pass what is behind ORDER BY; None if it is no list of columns."""
        found = self._list(self._order_entry)
        return None if found is None else tuple(found)

    def _order_entry(self) -> tuple[str, Literal["asc", "desc"], Literal["first", "last"]] | None:
        name = self._column()
        if name is None:
            return None
        direction: Literal["asc", "desc"] = "asc"
        if self._took("desc"):
            direction = "desc"
        else:
            self._took("asc")
        # As in Spark.
        nulls: Literal["first", "last"] = "first" if direction == "asc" else "last"
        if self._took("nulls", "first"):
            nulls = "first"
        elif self._took("nulls", "last"):
            nulls = "last"
        return name, direction, nulls

    def _time(self, behind: str) -> Time:
        if self._took("("):
            coordinates: list[int | str] | None = self._list(self._coordinate)
            if coordinates is None or len(coordinates) < 2:
                self.refuse(f"{self.found} behind {behind}", _TIME_HINT)
            self._need(")", hint=_TIME_HINT)
            return tuple(coordinates)
        found = self._coordinate()
        if found is None:
            self.refuse(f"{self.found} behind {behind}", _TIME_HINT)
        return found

    def _coordinate(self) -> int | str | None:
        begin = self._at
        sign = -1 if self._took("-") else 1
        number = self._number(_MOST_DIGITS)
        if number is not None:
            return sign * number
        if sign > 0:
            _ = self._took("date") or self._took("timestamp")
            text = self._literal(_TIME_HINT)
            if text:
                return text
        self._at = begin
        return None

    def _as_of(self) -> tuple[Time | None, Time | None]:
        """Pass AS OF, if it comes next: the time itself, the least time."""
        if not self._took("as", "of"):
            return None, None
        if self._took("at", "least"):
            return None, self._time("AS OF AT LEAST")
        return self._time("AS OF"), None

    # Statements -------------------------------------------------------------------------------

    def statement(self) -> Statement:
        """Read it."""
        first = self._tokens[0]
        if first.word in ("select", "with") or first.text == "(":
            return self._select()
        if self._took("subscribe"):
            return self._subscribe()
        if self._took("copy"):
            return self._copy()
        if first.kind != "word":
            self.refuse(f"{shown(first.text)} where a statement begins", _POSSIBLE)
        instead = _INSTEAD.get(first.word)
        hint = _POSSIBLE if instead is None else f"{_POSSIBLE}; {instead}"
        self.refuse(f"statement of kind {shown(first.text.upper())}", hint)

    def _select(self) -> PeekStatement | SqlStatement:
        """Read a SELECT, and the AS OF at its end."""
        places = [
            at for at, token in enumerate(self._tokens[:-1])
            if token.word == "as" and self._tokens[at + 1].word == "of"
        ]  # fmt: skip
        if not places:
            return self._query(0, len(self._tokens))
        place = places[-1]
        before = self._tokens[max(place - 2, 0) : place]
        travels = len(before) == 2 and before[1].word in ("timestamp", "version", "system_time", "system_version")
        named = before[0].word == "for" or (before[0].names and before[0].word not in KEYWORDS) if travels else False
        if travels and (named or before[0].text == ")"):
            hint = "write AS OF alone, at the end: it is a time of the logs, not a version of a table"
            self.refuse(f"{before[1].text.upper()} AS OF", hint)
        end_hint = "write AS OF once, at the end of the statement; put a column that is called of in backquotes"
        if len(places) > 1:
            self.refuse(f"{len(places)} times AS OF", end_hint)
        self._at = place
        as_of, as_of_at_least = self._as_of()
        if not self.ended:
            self.refuse(f"{self.found} behind AS OF", end_hint)
        if place == 0:
            self.refuse("no query before AS OF", _POSSIBLE)
        return self._query(0, place, as_of, as_of_at_least)

    def _query(
        self, begin: int, end: int, as_of: Time | None = None, as_of_at_least: Time | None = None
    ) -> PeekStatement | SqlStatement:
        """Return a SELECT between two pieces, as a peek if it is one."""
        tokens = self._tokens[begin:end]
        text = self._text[tokens[0].start : tokens[-1].end]
        found = None
        if self._peeks:
            plain, qualifier = _unqualified(self._text, tokens)
            tokens = tokens if qualifier is None else scanned(plain, self._attempt)
            reading = _Reading(plain, tokens, self._tables, naming=self._naming)
            found = reading._peek(as_of, as_of_at_least, qualifier)
        return SqlStatement(text, as_of, as_of_at_least) if found is None else found

    def _peek(
        self, as_of: Time | None, as_of_at_least: Time | None, qualifier: str | None = None
    ) -> PeekStatement | None:
        """Return the peek that a SELECT is; None if it is none (invariant 2)."""
        if not self._took("select"):
            return None
        select: tuple[str, ...] | None = None
        if not self._took("*"):
            columns = self._list(self._column)
            if columns is None or len({name.lower() for name in columns}) < len(columns):
                return None
            select = tuple(columns)
        if not self._took("from"):
            return None
        begin = self._at
        if self._name() is None or not (self.ended or self._tokens[self._at].word in _ENDS | {"where"}):
            return None
        where = self._condition() if self._took("where") else ""
        order: Order | None = self.order() if self._took("order", "by") else ()
        limit = self._number(_MOST_ROWS_DIGITS) if self._took("limit") else -1
        offset = self._number(_MOST_ROWS_DIGITS) if self._took("offset") else 0
        if where is None or order is None or limit is None or offset is None or not self.ended:
            return None
        if len({name.lower() for name, _, _ in order}) < len(order):
            return None
        given = None if select is None else {name.lower() for name in select}
        if given is not None and any(name.lower() in BARE - given for name, _, _ in order):
            return None  # to Spark a function, although there may be such a column
        self._at = begin
        table = self._table()
        if table is None:
            return None
        return PeekStatement(
            *table, select, where or None, order, None if limit < 0 else limit, offset, as_of, as_of_at_least, qualifier
        )  # fmt: skip

    def _condition(self) -> str | None:
        """Pass a condition; None if it is none that a peek knows."""
        begin = self._at
        while not self.ended and self._tokens[self._at].word not in _ENDS:
            self._at += 1
        pieces = self._tokens[begin : self._at]
        if not pieces:
            return None
        text = self._text[pieces[0].start : pieces[-1].end]
        return text if is_condition(text) else None

    def _subscribe(self) -> SubscribeStatement:
        self._took("to")
        if self._next() is not None and self._tokens[self._at].text == "(":
            self.refuse("SUBSCRIBE to a query", "subscribe to a log; let a dataflow keep a query up to date in one")
        hint = "write SUBSCRIBE [TO] name [WITH (…)] [ENVELOPE … | WITHIN TIMESTAMP ORDER BY …] [AS OF t] [UP TO t]"
        table = self._table()
        if table is None:
            self.refuse(f"{self.found} for the name of a log", hint)
        options: dict[str, bool] = {}
        envelope: EnvelopeName | None = None
        key: tuple[str, ...] = ()
        order: Order = ()
        while not self.ended:  # each clause at most once
            if not options and self._took("with"):
                options = self._subscribe_options()
            elif envelope is None and not order and self._took("envelope"):
                envelope, key = self._envelope()
            elif envelope is None and not order and self._took("within", "timestamp", "order", "by"):
                found = self.order()
                if found is None:
                    self.refuse(f"{self.found} behind ORDER BY", "write names of columns: price DESC NULLS LAST, id")
                order = found
            else:
                break
        as_of, as_of_at_least = self._as_of()
        up_to = self._time("UP TO") if self._took("up", "to") else None
        if not self.ended:
            self.refuse(self.found, hint)
        return SubscribeStatement(
            *table, options.get("snapshot", True), options.get("progress", False), envelope, key, order,
            as_of, as_of_at_least, up_to,
        )  # fmt: skip

    def _subscribe_options(self) -> dict[str, bool]:
        hint = "write WITH (SNAPSHOT = true, PROGRESS = false), each at most once"

        def entry() -> tuple[str, bool] | None:
            token = self._next("word")
            if token is None or token.word not in ("snapshot", "progress"):
                return None
            self._at += 1
            if not self._took("="):
                return token.word, True
            for word, value in (("true", True), ("false", False)):
                if self._took(word):
                    return token.word, value
            return None

        self._need("(", hint=hint)
        found = self._list(entry)
        if found is None or len(dict(found)) < len(found):
            self.refuse(f"{self.found} among the options" if found is None else "an option twice", hint)
        self._need(")", hint=hint)
        return dict(found)

    def _envelope(self) -> tuple[EnvelopeName, tuple[str, ...]]:
        hint = "write ENVELOPE UPSERT (KEY (a, b)) or ENVELOPE DEBEZIUM (KEY (a, b))"
        kind: EnvelopeName
        if self._took("upsert"):
            kind = "upsert"
        elif self._took("debezium"):
            kind = "debezium"
        else:
            self.refuse(f"{self.found} behind ENVELOPE", hint)
        self._need("(", "key", "(", hint=hint)
        key = self._list(self._column)
        if key is None:
            self.refuse(f"{self.found} for a column of the key", hint)
        self._need(")", ")", hint=hint)
        return kind, tuple(key)

    def _copy(self) -> CopyStatement:
        hint = "write COPY (SELECT …) TO 'folder' [WITH (FORMAT = 'parquet', MAX FILE SIZE = '256 MB')] [AS OF t]"
        begin, table = self._at, None
        if self._took("("):
            end = self._closing(hint)
            self._at = end + 1
        else:
            table = self._table()
            if table is None:
                self.refuse(f"{self.found} behind COPY", hint)
            end = self._at
        if self._took("from"):
            self.refuse("COPY … FROM", f"{_POSSIBLE}; rows are captured: by a query, or by the log's writer")
        self._need("to", hint=hint)
        folder = self._literal("write the path of a folder with slashes")
        if not folder:
            self.refuse(f"{'an empty text' if folder == '' else self.found} for the folder", hint)
        form, most = self._copy_options(hint) if self._took("with") else (None, None)
        as_of, as_of_at_least = self._as_of()
        if not self.ended:
            self.refuse(self.found, hint)
        if table is not None:
            source: PeekStatement | SqlStatement = PeekStatement(*table, as_of=as_of, as_of_at_least=as_of_at_least)
        else:
            source = self._copied(begin + 1, end, as_of, as_of_at_least, hint)
        return CopyStatement(source, folder, form or "parquet", most)

    def _closing(self, hint: str) -> int:
        """Return where the bracket that was passed is closed."""
        depth = 1
        for at in range(self._at, len(self._tokens)):
            token = self._tokens[at]
            depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind == "symbol" else 0
            if depth == 0:
                return at
        self.refuse("a bracket that is not closed", hint)

    def _copied(
        self, begin: int, end: int, as_of: Time | None, as_of_at_least: Time | None, hint: str
    ) -> PeekStatement | SqlStatement:
        first = self._tokens[begin]
        if begin == end or not (first.word in ("select", "with") or first.text == "("):
            self.refuse(f"{shown(first.text)} for a SELECT", hint)
        inside = self._tokens[begin:end]
        if any(a.word == "as" and b.word == "of" for a, b in pairwise(inside)):
            self.refuse("AS OF in the brackets of COPY", "write AS OF at the end of the statement")
        return self._query(begin, end, as_of, as_of_at_least)

    def _copy_options(self, hint: str) -> tuple[CopyFormat | None, int | None]:
        form: CopyFormat | None = None
        most: int | None = None

        def entry() -> str | None:
            nonlocal form, most
            if form is None and self._took("format", "="):
                token = self._next()
                word = "" if token is None else token.text.strip("'\"").lower()
                if word not in ("parquet", "csv"):
                    self.refuse(f"format {self.found}", "write FORMAT = 'parquet' or FORMAT = 'csv'")
                self._at += 1
                form = "csv" if word == "csv" else "parquet"
                return "format"
            if most is None and self._took("max", "file", "size", "="):
                most = self._size()
                return "size"
            return None

        self._need("(", hint=hint)
        if self._list(entry) is None:
            self.refuse(f"{self.found} among the options", hint)
        self._need(")", hint=hint)
        return form, most

    def _size(self) -> int:
        hint = "write MAX FILE SIZE = '256 MB', or a number of bytes"
        number = self._number(_MOST_ROWS_DIGITS)
        if number is not None:
            return number
        text = self._literal(hint)
        if text is None:
            self.refuse(f"{self.found} for a size", hint)
        try:
            return parse_bytes(text)
        except ValueError as error:
            msg = f"could not {self._attempt}: found size {shown(text)} in {self._what} {shown(self._text)}"
            raise InvalidUsageError(msg, hint=hint) from error
