"""The SQL text of a continual task: its inputs and outputs, and the query that runs at each time.

Streaming tasks (`spark_timely.spark.tasks`) and compute instances read bodies by it, and ``spark_timely.sql`` reads its
one query by `read_query`. How a body is made to run at many times at once is in `spark_timely.continual.many_times`.

A body is one or several statements in Spark's SQL, with ``;`` between them. ``SELECT …`` inserts its rows into the
task's output, ``INSERT INTO output …`` says so in full, ``DELETE FROM output …`` takes rows away. Tables are the
task's inputs and references by their aliases, and ``output``. At each time every alias stands for another view, so
the text is bound to the views of that time before Spark sees it.

Invariants
----------
1. The text that runs is the user's, byte for byte, but for the head of a statement (``INSERT INTO output`` is left
   out, ``DELETE`` becomes ``SELECT *``, ``TABLE t`` becomes ``SELECT * FROM t``), for the names of tables, and for
   ``:time``. sqlglot finds the names and prints nothing: it prints some of Spark's expressions changed.
2. No name of a table stays unbound, since Spark would look it up among the session's own tables. sqlglot and
   `spark_timely.scanner` read the text independently, and must agree on where words, texts and comments are; a table
   is at each place where a ``FROM`` or a ``JOIN`` says so; and the bound text must have the tree that the
   unbound one has, with the views in it. A text that fails any of this is refused.
3. Equal rows in, equal rows out: replicas race to write the same time. Clocks, random numbers and what depends on the
   session or the machine are refused wherever the text has their names. This finds what is written, not what is
   hidden: ``cast(concat('n', 'ow') AS timestamp)`` is a clock, and is not found. Functions whose result depends on the
   order of rows, such as ``first`` and ``collect_list``, are not refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from spark_timely.continual.names import check_names
from spark_timely.errors import InvalidUsageError, TimelyInternalError, described, shown
from spark_timely.scanner import (
    BARE,
    KEYWORDS,
    TAKES_FROM,
    UNITS,
    Token,
    UnreadError,
    in_types,
    markers,
    neighbours,
    quoted_name,
    read_trees,
    refused_sql,
    scanned,
    span,
    statements_of,
    words_of,
)

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = [
    "JUDGED",
    "OUTPUT",
    "Place",
    "SqlBody",
    "Statement",
    "at_time",
    "check_aliases",
    "check_columns",
    "checked_condition",
    "judged",
    "read_query",
    "retain_body",
    "transform_body",
    "unknown_functions",
]

OUTPUT: Final = "output"
"""The alias of the task's own output."""
JUDGED: Final = "judged"
"""The table of the rows that a condition is looked at for."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Other words before brackets that belong to the grammar.
_SYNTAX: Final = words_of("cast placing struct timestampadd timestampdiff try_cast")
_CLOCKS: Final = words_of("current_timestamp current_date current_time curdate localtimestamp now")
_RANDOM: Final = words_of(
    """
    aes_encrypt kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
    kll_sketch_agg_double kll_sketch_agg_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    monotonically_increasing_id rand randn random randstr shuffle try_aes_encrypt uniform uuid
    """
)
_SURROUNDINGS: Final = words_of("""
    current_catalog current_database current_path current_schema current_timezone current_user identifier
    input_file_block_length input_file_block_start input_file_name java_method reflect session_user sleep
    spark_partition_id try_reflect user version
    """)
# Spark takes texts for moments where one is compared with a moment, and these are clocks then, with a zone or without.
_MOMENTS: Final = re.compile(
    r"\s*(?:now|today|tomorrow|yesterday)(?:\s+(?:(?-i:[A-Z]{1,4})|\S*[/:+-]\S*))?\s*", re.IGNORECASE
)

_TABLE_FUNCTIONS: Final = words_of("""
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack variant_explode
    variant_explode_outer
    """)
_QUERY_WORDS: Final = frozenset({"select", "with", "from", "values", "table"})
_SET_WORDS: Final = frozenset({"all", "distinct", "except", "intersect", "minus", "union"})

# What sqlglot notes of a table that stands for itself, or that others are joined to.
_TABLE_PARTS: Final = frozenset({"this", "alias", "joins", "laterals", "pivots"})

_INSERT_HINT: Final = "write `INSERT INTO output SELECT …`, with names of columns in brackets after `output` if need be"
_DELETE_HINT: Final = "write `DELETE FROM output WHERE …`"
_STATEMENT_HINT: Final = "use SELECT, INSERT INTO output and DELETE FROM output only"
_READ_HINT: Final = "write this part in another way, or give the body as a function"


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which a query names a declared table.

    Attributes
    ----------
    start, end : int
        Characters of the query that the name takes, the end exclusive.
    alias : str
        The table, as it was declared.
    named : str or None
        The name as it was written, where columns can be qualified with it; None where the user gave another.
    """

    start: int
    end: int
    alias: str
    named: str | None


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a body.

    Attributes
    ----------
    kind : str
        ``insert`` or ``delete``.
    text : str
        As the user wrote it, for errors.
    columns : tuple of str or None
        Columns of the output that an insert names, in their order; None where it names none.
    reads : tuple of str
        Aliases that it reads, as declared, sorted. A delete always reads ``output``.
    query : str
        The query for the rows to insert, or to delete, with names still unbound.
    places : tuple of Place
        Where the query names tables, in order.
    locals : tuple of str
        Names in lower case that the query gives to its own parts (``WITH``).
    functions : tuple of str
        Names in lower case of all functions that it calls, sorted.
    """

    kind: Literal["insert", "delete"]
    text: str
    columns: tuple[str, ...] | None
    reads: tuple[str, ...]
    query: str
    places: tuple[Place, ...]
    locals: tuple[str, ...]
    functions: tuple[str, ...]

    def bind(self, views: Mapping[str, str]) -> str:
        """Return the query for the rows to insert, or to delete, over these views.

        Parameters
        ----------
        views : mapping of str to str
            Name of a view by alias, for each alias that the statement reads. A name is one part: it is quoted.

        Returns
        -------
        str
            The user's text with each name of a table replaced. ``:time`` is left to Spark.

        Raises
        ------
        InvalidUsageError
            If a view has the name of a part of the query.
        TimelyInternalError
            If an alias has no view.

        Examples
        --------
        >>> body = SqlBody.parse("SELECT orders.id FROM orders", task="ids", inputs=["orders"], references=[])
        >>> body.statements[0].bind({"orders": "orders_17"})
        'SELECT orders.id FROM `orders_17` AS `orders`'
        """
        parts, at = [], 0
        # Bounded by the tables that the user wrote.
        for place in self.places:
            if place.alias not in views:
                msg = f"could not bind statement {shown(self.text)}: found no view of alias={place.alias!r}"
                raise TimelyInternalError(msg)
            view = views[place.alias]
            if view.lower() in self.locals:
                msg = f"could not bind statement {shown(self.text)}: found view={view!r}, a name of its WITH"
                raise InvalidUsageError(msg, hint="rename the query in WITH")
            named = "" if place.named is None else f" AS {quoted_name(place.named)}"
            parts += [self.query[at : place.start], quoted_name(view), named]
            at = place.end
        return "".join([*parts, self.query[at:]])


@dataclass(frozen=True, slots=True)
class SqlBody:
    """The statements of a continual task, read once.

    Attributes
    ----------
    statements : tuple of Statement
        In the order in which they run.
    functions : tuple of str
        Names in lower case of all functions that are called, sorted.
    identity : str
        Stays the same as long as the text says the same: white space, comments, the case of key words, functions and
        types, and quotes around names do not count. Names count with their case, since a struct shows them in its
        text form; so do literals as they are written.

    Examples
    --------
    >>> body = SqlBody.parse(
    ...     "INSERT INTO output SELECT id FROM orders; DELETE FROM output WHERE id IN (SELECT id FROM gone)",
    ...     task="current",
    ...     inputs=["orders"],
    ...     references=["gone"],
    ... )
    >>> [(each.kind, each.reads) for each in body.statements], body.deletes
    ([('insert', ('orders',)), ('delete', ('gone', 'output'))], True)
    """

    statements: tuple[Statement, ...]
    functions: tuple[str, ...]
    identity: str

    @classmethod
    def parse(cls, text: str, *, task: str, inputs: Sequence[str], references: Sequence[str]) -> SqlBody:
        """Read a body, and refuse what cannot run as a continual task.

        Parameters
        ----------
        text : str
            One or several statements.
        task : str
            Name of the task, for errors.
        inputs, references : sequence of str
            Aliases of its tables.

        Raises
        ------
        InvalidUsageError
            If the text is no SQL that is understood here; if it writes anything but ``output``; if it names a table
            that was not declared; if it has clocks, random numbers or anything that depends on the session or the
            machine; if no statement reads an input; if the aliases are none (`check_aliases`).

        Notes
        -----
        Materialize's continual tasks take SQL that reads no input, and write nothing then. Here it is refused: what
        can never write is a mistake.

        Source: Materialize `compute/src/sink/continual_task.rs`, `input_times`.

        Examples
        --------
        >>> SqlBody.parse("SELECT now() FROM orders", task="t", inputs=["orders"], references=[])
        Traceback (most recent call last):
        ...
        spark_timely.errors.InvalidUsageError: ...found the clock 'now' in statement 'SELECT now() FROM orders' ...
        """
        check_aliases(task, inputs, references)
        attempt = f"read the body of task {shown(task)}"
        if not isinstance(text, str):
            msg = f"could not {attempt}: found body={shown(text)}"
            raise InvalidUsageError(msg, hint="give SQL as a text")
        tables = {each.lower(): each for each in [*inputs, *references, OUTPUT]}
        tokens = scanned(text, attempt)
        read = [_Reading(text, piece, attempt, tables) for piece in statements_of(tokens)]
        if not read:
            raise refused_sql(attempt, "no statement", text, "write a SELECT over the task's inputs", "body")
        statements = tuple(each.statement() for each in read)
        if not any(alias in inputs for each in statements for alias in each.reads):
            found = f"no input of {shown(list(inputs))} that any statement reads"
            raise refused_sql(attempt, found, text, "read an input: a task runs when an input changes", "body")
        functions = {name for each in statements for name in each.functions}
        return cls(statements, tuple(sorted(functions)), _identity([each.tokens for each in read]))

    @property
    def deletes(self) -> bool:
        """Whether any statement deletes."""
        return any(each.kind == "delete" for each in self.statements)

    @property
    def reads_output(self) -> bool:
        """Whether any statement reads the task's output; a delete does."""
        return any(OUTPUT in each.reads for each in self.statements)


def check_columns(
    statements: Sequence[Statement], columns: Mapping[str, Collection[str]], *, attempt: str
) -> tuple[Statement, ...]:
    """Refuse statements with names that are no columns of the tables that they read.

    Parameters
    ----------
    statements : sequence of Statement
    columns : mapping of str to collection of str
        Of each table by its alias, as far as they are known.
    attempt : str
        For errors.

    Returns
    -------
    tuple of Statement
        Those that read a table of which no columns are known: nothing was looked up in them.

    Raises
    ------
    SchemaMismatchError
        If a name is no column: it would be a variable of the session, or a clock.

    Examples
    --------
    >>> query = read_query("SELECT sv FROM orders", attempt="ask", names=["orders"])
    >>> check_columns([query], {"orders": ["id"]}, attempt="ask")
    Traceback (most recent call last):
    ...
    spark_timely.errors.SchemaMismatchError: ...found name 'sv', which is no column there, in statement 'SELECT sv ...
    """
    later = []
    for each in statements:
        if set(each.reads) <= set(columns):
            check_names(each.query, {alias: columns[alias] for alias in each.reads}, attempt=attempt, text=each.text)
        else:
            later.append(each)
    return tuple(later)


def unknown_functions(called: Collection[str], builtin: Collection[str], declared: Collection[str]) -> tuple[str, ...]:
    """Return the functions that are neither built into Spark nor declared, in lower case, sorted.

    Parameters
    ----------
    called : collection of str
        In lower case: of a body, or of conditions.
    builtin : collection of str
        What this Spark has built in.
    declared : collection of str
        What the user says always returns the same.

    Examples
    --------
    >>> unknown_functions(["sum", "f"], ["sum"], [])
    ('f',)
    """
    known = {name.lower() for name in [*builtin, *declared]}
    return tuple(sorted(name for name in called if name not in known))


def check_aliases(task: str, inputs: Sequence[str], references: Sequence[str]) -> None:
    """Refuse aliases that a body could not name.

    Parameters
    ----------
    task : str
        Name of the task, for errors.
    inputs, references : sequence of str
        Aliases of its tables.

    Raises
    ------
    InvalidUsageError
        If there is no input, or a name is no plain name, stands twice, is ``output``, or is a word of SQL.

    Examples
    --------
    >>> check_aliases("t", ["orders"], ["Orders"])
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: ...found alias='Orders' twice, without regard to case ...
    """
    attempt = f"make task {shown(task)}"
    if not inputs:
        msg = f"could not {attempt}: found inputs={shown(list(inputs))}"
        raise InvalidUsageError(msg, hint="name at least one input: a task runs when an input changes")
    _check_names(attempt, [*inputs, *references], own=OUTPUT)


def _check_names(attempt: str, aliases: Sequence[str], *, own: str = "") -> None:
    """Refuse aliases that no text could name, or that stand for something else."""
    seen: set[str] = set()
    # Bounded by the tables of one text.
    for alias in aliases:
        what, hint = "", "use letters, digits and _, with no digit first"
        if not isinstance(alias, str) or not _NAME.fullmatch(alias):
            what = ", no plain name"
        elif alias.lower() == own:
            what, hint = ", the name of the task's own output", "rename it; a body reads `output` without more"
        elif alias.lower() in seen:
            what, hint = " twice, without regard to case", "give each table a name of its own"
        elif not _plain(alias):
            what, hint = ", a word of SQL", "rename it"
        if what:
            msg = f"could not {attempt}: found alias={shown(alias)}{what}"
            raise InvalidUsageError(msg, hint=hint)
        seen.add(alias.lower())


def read_query(text: str, *, attempt: str, names: Sequence[str], naming: str = "names={…}") -> Statement:
    """Return one query over named tables, read as a body is: nothing in it is a table that is not named.

    A name in backquotes with a slash in it is the path of a log, and stands for itself.

    Parameters
    ----------
    text : str
        One query. What a body may not have is refused here too: it gives the same whenever it is asked.
    attempt : str
        For errors: what is done with it.
    names : sequence of str
        Of its tables.
    naming : str
        For errors: how logs are given names.

    Returns
    -------
    Statement
        Its `reads` are names, and paths as they are written.

    Raises
    ------
    InvalidUsageError
        If it is no single query, or anything of it is not taken; or a name is none.

    Examples
    --------
    >>> read_query("SELECT id FROM orders JOIN `/data/rates` USING (day)", attempt="ask", names=["orders"]).reads
    ('/data/rates', 'orders')
    >>> read_query("DELETE FROM orders", attempt="ask", names=["orders"])
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: ...found statement of kind 'DELETE' in text 'DELETE FROM orders' — hint: ...
    """
    if not isinstance(text, str):
        msg = f"could not {attempt}: found text={shown(text)}"
        raise InvalidUsageError(msg, hint="give SQL as a text")
    _check_names(attempt, names)
    tokens = scanned(text, attempt)
    pieces = statements_of(tokens)
    if len(pieces) != 1:
        raise refused_sql(attempt, f"{len(pieces)} statements", text, "write one SELECT", "text")
    tables = {name.lower(): name for name in names}
    for path in (each.name for each in pieces[0] if each.kind == "quoted" and "/" in each.name):
        if "`" in path:
            # To the parser, which reads the text too, it would be another one.
            hint = f"give the log a plain name, with {naming}"
            raise refused_sql(attempt, f"a backquote in path {shown(path)}", text, hint, "text")
        if tables.setdefault(path.lower(), path) != path:
            found = f"paths {shown(path)} and {shown(tables[path.lower()])}, alike but for the case of letters,"
            raise refused_sql(attempt, found, text, f"give both plain names, with {naming}", "text")
    unnamed = ("that is not named", f"name its log with {naming}, or write the path of its log in backquotes")
    reading = _Reading(text, pieces[0], attempt, tables, unnamed)
    kind = reading.kind
    if kind not in _QUERY_WORDS and kind != "(":
        hint = "write one SELECT: nothing else can be asked here"
        raise refused_sql(attempt, f"statement of kind {shown(kind.upper())}", text, hint, "text")
    return reading.statement()


def at_time(query: str, literal: str) -> str:
    """Return a query with the time put in for ``:time``.

    Parameters
    ----------
    query : str
        As `Statement.bind` gives it.
    literal : str
        The time as SQL writes it, in the type of the logs' times: a parameter of Spark's would have the type of a
        Python value, and a number of 32 bits overflows.

    Examples
    --------
    >>> at_time("SELECT ':time', :time FROM a", "CAST(7 AS BIGINT)")
    "SELECT ':time', CAST(7 AS BIGINT) FROM a"
    """
    parts, at = [], 0
    # Bounded by the marks in what a user wrote.
    for start, end in markers(scanned(query, "put the time into a query")):
        # THEN:time is two words, and what follows a minus must not make a comment of it.
        gap = " " if query[start - 1 : start].isalnum() or query[start - 1 : start] in ("_", "-") else ""
        parts += [query[at:start], gap, literal]
        at = end
    return "".join([*parts, query[at:]])


def retain_body(expr: str, input: str) -> str:
    """Return the body that keeps an input's rows as long as a condition holds for them.

    A row for which the condition is null does not hold.

    Parameters
    ----------
    expr : str
        A condition on the input's columns.
    input : str
        Its alias.

    Raises
    ------
    InvalidUsageError
        If the text is not one condition.

    Examples
    --------
    >>> retain_body("day > :time - 30", "orders")
    'INSERT INTO output SELECT * FROM orders WHERE (day > :time - 30) IS TRUE; \
DELETE FROM output WHERE (day > :time - 30) IS NOT TRUE'
    """
    attempt = f"keep rows of {shown(input)}"
    # Without what is before and after it: a comment to the end of the line would hide the bracket.
    condition = _whole(expr, attempt, "a condition", "write one condition, as after WHERE")
    return (
        f"INSERT INTO {OUTPUT} SELECT * FROM {input} WHERE ({condition}) IS TRUE; "
        f"DELETE FROM {OUTPUT} WHERE ({condition}) IS NOT TRUE"
    )


def checked_condition(condition: str, *, task: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Return a condition on rows without what surrounds it, and the functions that it calls.

    What is refused in a body is refused here too; so is what looks at other rows than the one that is judged.

    Parameters
    ----------
    condition : str
        SQL, as after WHERE; ``:time`` is the time.
    task, name : str
        Of the task and of the condition, for errors.

    Raises
    ------
    InvalidUsageError
        If it is no condition on one row that gives the same whenever it is asked.

    Examples
    --------
    >>> checked_condition("amount > abs(-1) -- always", task="t", name="positive")
    ('amount > abs(-1)', ('abs',))
    """
    attempt = f"could not begin task {task!r}"
    text = _whole(condition, f"{attempt}: expectation {name!r}", "a condition", "write one condition, as after WHERE")
    body = SqlBody.parse(judged(text), task=task, inputs=[JUDGED], references=[])
    words = [token.word for token in scanned(text, attempt)]
    other = (
        "a query" if len(body.statements[0].places) != 1 or "select" in words else "over" if "over" in words else None
    )
    if other is not None:
        msg = f"{attempt}: found {other} in expectation {name!r}: {shown(text)}"
        raise InvalidUsageError(msg, hint="say something of the one row that is judged; join or count in the body")
    return text, body.functions


def judged(condition: str) -> str:
    """Return the query for the rows of `JUDGED` for which a condition holds.

    Examples
    --------
    >>> judged("n > 1")
    'SELECT * FROM judged WHERE (n > 1)'
    """
    return f"SELECT * FROM {JUDGED} WHERE ({condition})"


def transform_body(query: str) -> str:
    """Return the body that inserts what a query returns.

    Parameters
    ----------
    query : str
        One query.

    Raises
    ------
    InvalidUsageError
        If the text is not one query.

    Examples
    --------
    >>> transform_body("SELECT id FROM orders;")
    'INSERT INTO output SELECT id FROM orders'
    """
    return f"INSERT INTO {OUTPUT} {_whole(query, 'transform', 'a query', 'write one SELECT')}"


def _whole(text: str, attempt: str, what: str, hint: str) -> str:
    """Return the one piece of SQL that a text is, without what surrounds it."""
    pieces = statements_of(scanned(text, attempt))
    if len(pieces) != 1:
        raise refused_sql(attempt, f"{len(pieces)} pieces in place of {what}", text, hint, "text")
    depth = 0
    # Bounded by the length of what a user wrote.
    for token in pieces[0]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0:
            break
    if depth:
        raise refused_sql(attempt, "brackets that do not match", text, hint, "text")
    return text[pieces[0][0].start : pieces[0][-1].end]


_UNDECLARED: Final = ("that the task does not declare", "declare it")


class _Reading:
    """One statement while it is read."""

    def __init__(
        self,
        text: str,
        tokens: list[Token],
        attempt: str,
        tables: Mapping[str, str],
        undeclared: tuple[str, str] = _UNDECLARED,
    ) -> None:
        self._undeclared_words = undeclared
        start = tokens[0].start
        self.text = text[start : tokens[-1].end]
        self.tokens = [Token(each.kind, each.text, each.start - start, each.end - start) for each in tokens]
        self._attempt, self._tables = attempt, tables

    @property
    def kind(self) -> str:
        """The word that the statement begins with, after the queries that WITH names, in lower case."""
        token = self.tokens[self._main()]
        return token.word or token.text

    def statement(self) -> Statement:
        """Return what the statement is."""
        try:
            return self._read()
        except RecursionError as error:
            self._unread("too many brackets", error)

    def _read(self) -> Statement:
        kind, columns, query = self._head()
        query = self._without_table_word(query)
        tokens = scanned(query, self._attempt, self.text)
        self._check_words(tokens)
        tree = self._tree(query, tokens)
        self._check_parts(tree, query)
        self._check_markers(tree, tokens)
        if kind == "delete":
            self._check_delete(tree)
        places = self._places(tree, query, tokens)
        functions = tuple(sorted(self._called(tree, query, tokens)))
        reads = tuple(sorted({place.alias for place in places}))
        found = Statement(kind, self.text, columns, reads, query, places, tuple(sorted(_locals(tree))), functions)
        self._prove(found, tree)
        return found

    def _refuse(self, found: str, hint: str) -> NoReturn:
        raise refused_sql(self._attempt, found, self.text, hint)

    def _unread(self, found: str, cause: BaseException | None = None) -> NoReturn:
        raise refused_sql(self._attempt, f"SQL that was not understood ({found})", self.text, _READ_HINT) from cause

    # The head of the statement -------------------------------------------------------------------------

    def _head(self) -> tuple[Literal["insert", "delete"], tuple[str, ...] | None, str]:
        """Return kind, named columns, and the query that is left without the head."""
        at = self._main()
        token = self.tokens[at]
        if token.word == "insert":
            columns, end = self._insert(at + 1)
            begin = self.tokens[at].start
            return "insert", columns, self.text[:begin] + self.text[self.tokens[end].start :]
        if token.word == "delete":
            self._delete(at + 1)
            # A comment right behind the star would make the end of a hint of it.
            gap = " " if self.text.startswith("/", token.end) else ""
            return "delete", None, f"{self.text[: token.start]}SELECT *{gap}{self.text[token.end :]}"
        if token.word in _QUERY_WORDS or token.text == "(":
            return "insert", None, self.text
        self._refuse(f"statement of kind {shown(token.text)}", _STATEMENT_HINT)

    def _main(self) -> int:
        """Return where the statement begins, after the queries that WITH names."""
        if self.tokens[0].word != "with":
            return 0
        depth = 0
        # Bounded by the length of what a user wrote.
        for at, token in enumerate(self.tokens[1:], 1):
            if depth == 0 and self.tokens[at - 1].text == ")":
                starts = token.word in _QUERY_WORDS or token.text == "("
                if starts or token.word in ("insert", "delete", "update", "merge"):
                    return at
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        return 0

    def _at(self, at: int) -> Token:
        """Return a token of the head; the last one is followed by nothing."""
        return self.tokens[at] if at < len(self.tokens) else Token("symbol", "", len(self.text), len(self.text))

    def _target(self, at: int, hint: str) -> int:
        """Return where the statement continues after the table that it writes, which must be the output."""
        token = self._at(at)
        end = at + 1
        while self._at(end).text == ".":
            end += 2
        written = self.text[token.start : self._at(end - 1).end]
        if not token.names or end > at + 1 or token.name.lower() != OUTPUT:
            self._refuse(f"table {shown(written)} that is written", f"write `output` only: {hint}")
        return end

    def _insert(self, at: int) -> tuple[tuple[str, ...] | None, int]:
        """Return the columns that an INSERT names, and where its query begins."""
        if self._at(at).word != "into":
            self._refuse(f"INSERT {self._at(at).text.upper()}".rstrip(), _INSERT_HINT)
        at += 1
        if self._at(at).word == "table":
            at += 1
        at = self._target(at, _INSERT_HINT)
        columns = None
        if self._at(at).text == "(" and self._at(at + 1).names and self._at(at + 2).text in (",", ")"):
            names = []
            # Bounded by the columns that a user wrote.
            while self._at(at).text in ("(", ",") and self._at(at + 1).names:
                names.append(self._at(at + 1).name)
                at += 2
            if self._at(at).text != ")":
                self._refuse(f"{shown(self._at(at).text)} among the columns of INSERT", _INSERT_HINT)
            at += 1
            columns = tuple(names)
            twice = [name for name in names if [each.lower() for each in names].count(name.lower()) > 1]
            if twice:
                self._refuse(f"column {shown(twice[-1])} twice in INSERT", "name each column once")
        token = self._at(at)
        if token.word not in _QUERY_WORDS and token.text != "(":
            self._refuse(f"INSERT INTO output … {token.text.upper()}".rstrip(), _INSERT_HINT)
        return columns, at

    def _delete(self, at: int) -> None:
        if self._at(at).word != "from":
            self._refuse(f"DELETE {self._at(at).text.upper()}".rstrip(), _DELETE_HINT)
        at = self._target(at + 1, _DELETE_HINT)
        if self._at(at).word == "as":
            at += 1
        if self._at(at).names and self._at(at).word != "where":
            at += 1
        if self._at(at).text and self._at(at).word != "where":
            self._refuse(f"DELETE FROM output … {self._at(at).text.upper()}", _DELETE_HINT)

    def _without_table_word(self, query: str) -> str:
        """Return the query with ``SELECT * FROM t`` for ``TABLE t``, which sqlglot reads as something else."""
        tokens = scanned(query, self._attempt, self.text)
        parts, at = [], 0
        # Bounded by the length of what a user wrote.
        for before, token, after in neighbours(tokens):
            if token.word != "table" or before.text == "." or before.word == "as":
                continue
            starts = not before.text or before.text in ("(", ")") or before.word in _SET_WORDS
            if not starts or not after.names:
                self._refuse("TABLE where no query begins", "write SELECT * FROM; qualify a column of this name")
            parts += [query[at : token.start], "SELECT * FROM"]
            at = token.end
        return "".join([*parts, query[at:]])

    # Words ---------------------------------------------------------------------------------------------

    def _check_words(self, tokens: list[Token]) -> None:
        """Refuse words that are refused wherever they stand."""
        said = ""
        # Bounded by the length of what a user wrote.
        for at, (before, token, after) in enumerate(neighbours(tokens)):
            if token.kind == "string":
                # Spark joins texts that follow one another.
                said = (said if before.kind == "string" else "") + token.text.lstrip("rR")[1:-1]
                if after.kind != "string" and _MOMENTS.fullmatch(said):
                    hint = "compare with :time; a text that is no moment can be written in two parts, as 'to' || 'day'"
                    self._refuse(f"the clock {shown(said)}", hint)
            if token.text == "?":
                self._refuse("parameter ?", "use :time, the only parameter")
            if token.text == "|>":
                self._refuse("pipe |>", "write nested queries or WITH")
            if not token.names:
                continue
            name = token.name.lower()
            called = after.text == "("
            if called and before.text == ".":
                self._refuse(
                    f"function {shown(name)} of a schema", "name a function alone, one that Spark has built in"
                )
            if called:
                self._check_function(name, empty=at + 2 < len(tokens) and tokens[at + 2].text == ")")
            if name == "_metadata":
                self._refuse("column _metadata", "use columns of the rows: files differ between replicas")
            if token.word == "tablesample":
                self._refuse("TABLESAMPLE", "choose rows by a hash of their key")
            if token.word == "using" and after.kind == "string":
                self._refuse(f"script {after.text}", "use expressions, or give the body as a function")

    def _check_function(self, name: str, *, empty: bool) -> None:
        if name in _CLOCKS or (name == "unix_timestamp" and empty):
            self._refuse(f"the clock {shown(name)}", "use :time, the time of the step")
        if name in _RANDOM:
            self._refuse(f"random {shown(name)}", "use a hash of the row, as xxhash64: all replicas write the same")
        if name in _SURROUNDINGS:
            hint = "put the value into the text or into a reference"
            self._refuse(f"{shown(name)}, which depends on the session or the machine", hint)

    def _called(self, tree: exp.Expr, query: str, tokens: list[Token]) -> set[str]:
        """Return the functions that are called."""
        from sqlglot import exp

        # A name before brackets with names of columns is no call; sqlglot does not see all that follow AS.
        labels = {span(each.this, query)[0] for each in tree.find_all(exp.TableAlias) if each.this}
        types = in_types(tokens)
        found, hinted = set(), False
        # Bounded by the length of what a user wrote.
        for at, (before, token, after) in enumerate(neighbours(tokens)):
            hinted = token.text == "/*+" or (hinted and token.text != "*/")
            label = token.start in labels or at in types or before.word == "as"
            call = after.text == "(" and token.names and not hinted and not label
            if call and token.word not in KEYWORDS | _SYNTAX:
                found.add(token.name.lower())
        return found

    # The tree ------------------------------------------------------------------------------------------

    def _tree(self, query: str, tokens: list[Token]) -> exp.Expr:
        """Let sqlglot read the query, as the scanner has read it."""
        from sqlglot import exp  # here, not above: most processes read no body

        self._agree(query, tokens)
        trees = self._trees(query, tokens)
        if len(trees) != 1 or not isinstance(trees[0], exp.Query | exp.Values):
            self._refuse(f"{type(trees[0]).__name__ if trees else 'nothing'} in place of a query", _STATEMENT_HINT)
        return trees[0]

    def _trees(self, query: str, tokens: list[Token]) -> list[exp.Expr]:
        try:
            return read_trees(query, tokens)
        except UnreadError as error:
            self._unread(str(error), error)

    def _agree(self, query: str, tokens: list[Token]) -> None:
        """Refuse a text in which sqlglot sees other words, texts or comments than Spark does."""
        import sqlglot

        try:
            others = sqlglot.tokenize(query, dialect="spark")
        except Exception as error:  # noqa: BLE001 - whatever sqlglot raises: it has not read the text
            self._unread(_first_line(error), error)
        mine, theirs = bytearray(len(query)), bytearray(len(query))
        # Bounded by the length of what a user wrote. Key words of several words are one piece to sqlglot.
        for token in tokens:
            mine[token.start : token.end] = b"\1" * (token.end - token.start)
        for other in others:
            for at in range(other.start, other.end + 1):
                theirs[at] = mine[at] if query[at] in " \t\r\n" else 1
        texts = {(other.start, other.end + 1) for other in others}
        # A hint is one piece to sqlglot, and so is a text with the letter that makes it hexadecimal.
        hints = [(other.start, other.end) for other in others if query.startswith("/*+", other.start)]
        parted = [
            token.start
            for token in tokens
            if token.kind in ("string", "quoted")
            and not {(token.start, token.end), (token.start - 1, token.end)} & texts
            and not any(start < token.start < end for start, end in hints)
        ]
        differ = [at for at in range(len(query)) if mine[at] != theirs[at]]
        if parted or differ:
            at = min(parted + differ)
            self._unread(f"it ends texts or comments elsewhere, at {shown(query[at : at + 20])}")

    def _check_parts(self, tree: exp.Expr, query: str) -> None:
        """Refuse parts of a query that have no place in a body."""
        from sqlglot import exp

        # Bounded by the size of what a user wrote.
        for node in tree.walk():
            if isinstance(node, exp.QueryTransform):
                self._refuse("script TRANSFORM", "use expressions, or give the body as a function")
            if isinstance(node, exp.Into | exp.DML | exp.Command | exp.Create | exp.Drop):
                self._refuse(f"{type(node).__name__.upper()} inside a query", _STATEMENT_HINT)
            if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter) and node.name != "time":
                hint = "use :time, the only parameter; read a field of a variant with variant_get"
                self._refuse(f"parameter :{node.name}", hint)
            if isinstance(node, exp.CTE) and node.alias.lower() in self._tables:
                self._refuse(f"query {shown(node.alias)} of WITH, the name of a table of the task", "rename it")
            if isinstance(node, exp.Unnest):
                self._refuse("table function 'unnest'", f"use one of {', '.join(sorted(_TABLE_FUNCTIONS))}")
            function = node.this if isinstance(node, exp.Table | exp.Lateral) else None
            if isinstance(function, exp.Func):
                self._check_table_function(node, function, query)

    def _check_markers(self, tree: exp.Expr, tokens: list[Token]) -> None:
        """Refuse a text in which sqlglot sees the parameter elsewhere than the scanner does."""
        from sqlglot import exp

        if len(list(tree.find_all(exp.Placeholder))) != len(markers(tokens)):
            self._unread(":time that is no value")

    def _check_table_function(self, node: exp.Expr, function: exp.Expr, query: str) -> None:
        start, end = span(function, query)
        name = query[start:end].strip("`").lower()
        if name not in _TABLE_FUNCTIONS or node.args.get("db"):
            self._refuse(f"table function {shown(name)}", f"use one of {', '.join(sorted(_TABLE_FUNCTIONS))}")

    def _check_delete(self, tree: exp.Expr) -> None:
        """Refuse a DELETE with more than a condition, which would be a part of the query that it is run as."""
        kind = type(tree).__name__
        more = {name for name, value in tree.args.items() if value} - {"expressions", "from_", "where", "with_"}
        if kind != "Select" or more:
            self._refuse(f"DELETE with {', '.join(sorted(more)) if kind == 'Select' else kind.upper()}", _DELETE_HINT)

    def _places(self, tree: exp.Expr, query: str, tokens: list[Token]) -> tuple[Place, ...]:
        """Return where the query names declared tables, and refuse all other tables."""
        from sqlglot import exp

        places, begins = [], set()
        # Bounded by the tables that a user wrote.
        for table in tree.find_all(exp.Table):
            if table.find_ancestor(exp.Hint):
                continue
            start, end = span(table.parts[0] if table.parts else table.this, query)
            begins.add(start)
            if isinstance(table.this, exp.Func):
                continue
            written = query[start : span(table.this, query)[1]]
            if len(table.parts) > 1:
                self._undeclared(written)
            if written.strip("`") != table.name or written[0] in "'\"":
                self._unread(f"table {shown(written)}")
            more = {name for name, value in table.args.items() if value} - _TABLE_PARTS
            if more:
                self._refuse(f"{', '.join(sorted(more))} of table {shown(table.name)}", "name the table alone")
            alias = self._tables.get(table.name.lower())
            if alias is not None:
                places.append(Place(start, end, alias, None if table.args.get("alias") else table.name))
            elif not _is_local(table):
                self._undeclared(written)
        self._check_begins(tokens, begins)
        return tuple(sorted(places, key=lambda place: place.start))

    def _undeclared(self, written: str) -> NoReturn:
        names = ", ".join(sorted(self._tables.values())) or "none"
        what, hint = self._undeclared_words
        self._refuse(f"table {shown(written)} {what}", f"{hint}, or use one of {names}")

    def _check_begins(self, tokens: list[Token], begins: set[int]) -> None:
        """Refuse a text in which a table may stand where sqlglot sees none."""
        opened: list[str] = []
        # Bounded by the length of what a user wrote.
        for before, token, after in neighbours(tokens):
            if token.text == "(":
                opened.append(before.word)
            elif token.text == ")" and opened:
                opened.pop()
            if token.word not in ("from", "join") or before.text == ".":
                continue
            value = token.word == "from" and (before.word == "distinct" or (opened and opened[-1] in TAKES_FROM))
            other = after.text == "(" or after.word in ("lateral", "values")
            if not value and not other and after.start not in begins:
                self._unread(f"{token.text} {after.text}")

    def _prove(self, statement: Statement, tree: exp.Expr) -> None:
        """Refuse a statement whose bound text does not have the tree of the unbound one, with views for tables."""
        from sqlglot import exp

        # Another name in quotes has the same tree: what holds for these views holds for all.
        views = {alias: f"view of {alias}" for alias in statement.reads}
        text = statement.bind(views)
        tokens = scanned(text, self._attempt, self.text)
        (bound,) = self._trees(text, tokens)
        expected = tree.copy()
        for table in list(expected.find_all(exp.Table)):
            alias = self._tables.get(table.name.lower())
            if alias is None or isinstance(table.this, exp.Func) or table.find_ancestor(exp.Hint):
                continue
            if not table.args.get("alias"):
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("this", exp.to_identifier(views[alias], quoted=True))
        if bound != expected:
            self._unread("with views in place of its tables it is another query")


def _is_local(table: exp.Expr) -> bool:
    """Tell whether a table is a query that a WITH around it names."""
    from sqlglot import exp

    name, node = table.name.lower(), table
    # Bounded by the depth of what a user wrote.
    while (parent := node.parent) is not None:
        if isinstance(parent, exp.With):
            # Inside one of the named queries: it sees those before it, and itself if it is recursive.
            names = [each.alias.lower() for each in parent.expressions]
            at = next(at for at, each in enumerate(parent.expressions) if each is node)
            if name in names[: at + bool(parent.args.get("recursive"))]:
                return True
            owner = parent.parent
            if owner is None:
                return False
            node = owner
            continue
        around = parent.args.get("with_")
        if around is not None and around is not node and name in [each.alias.lower() for each in around.expressions]:
            return True
        node = parent
    return False


def _locals(tree: exp.Expr) -> set[str]:
    from sqlglot import exp

    return {each.alias.lower() for each in tree.find_all(exp.CTE)}


def _plain(alias: str) -> bool:
    """Tell whether a name stands for a table wherever one can be, without quotes."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(f"SELECT * FROM {alias} JOIN {alias} USING (x)", dialect="spark")
    except SqlglotError:
        return False
    tables = list(tree.find_all(exp.Table))
    plain = [
        isinstance(each.this, exp.Identifier) and each.name == alias and not each.args.get("alias") for each in tables
    ]
    return plain == [True, True] and alias.lower() not in KEYWORDS | BARE


def _first_line(error: BaseException) -> str:
    lines = described(error).splitlines()
    return re.sub("\x1b[^m]*m", "", lines[0]).rstrip(".") if lines else ""


def _identity(statements: list[list[Token]]) -> str:
    """Return a hash of what the statements say."""
    said = json.dumps([_said(tokens) for tokens in statements], separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _said(tokens: list[Token]) -> list[tuple[str, str]]:
    """Return the kinds and texts of tokens, without what says nothing.

    Recorded identities depend on this: do not change it.
    """
    types = in_types(tokens)
    found, interval = [], False
    for at, (before, token, after) in enumerate(neighbours(tokens)):
        kind, text = token.kind, token.text
        interval = token.word == "interval" or (
            interval and (kind in ("number", "string") or text in ("+", "-") or token.word in {*UNITS, "to"})
        )
        if kind == "quoted":
            # Quotes make a name of a key word.
            kind, text = "quoted" if token.name.lower() in KEYWORDS else "word", token.name
        elif kind == "word":
            key = text.lower() in KEYWORDS and before.text != "." and before.word != "as"
            if key or interval or at in types or after.text == "(" or after.kind == "string":
                text = text.lower()
        found.append((kind, text))
    return found
