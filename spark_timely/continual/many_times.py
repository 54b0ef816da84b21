"""Rewriting of a body's SQL for many times: one query then gives the body's results at all of them.

Tasks on Spark use it (`spark_timely.spark.tasks.continual`); `spark_timely.spark.tasks.bodies` runs the queries.

A body is written for one time: its inputs show the rows that came at that time, its references their contents as of
it. Here its text gets further columns and conditions, so that one query over views of many times gives each time's
rows, with the time as their last column. A task that is far behind runs one job where it would have run a thousand.

A table of the body is shown in one of three ways. *at*: each row has the time at which the query sees it, as an
input's rows have. *between*: each row has the times from and to between which it holds, the second exclusive and
null for ever, as a reference's rows have; the query compares them with a time that it has from another table.
*spread*: as *at*, for a reference where no other table has a time: its view repeats each row at all times of the
batch at which it holds.

Invariants
----------
1. The rows of the extended query with time T are the rows, as often as they are there, that the plain query gives at
   T. No time is null.
2. Only what is known to keep invariant 1 is extended: a white list of parts of SQL and of functions, never a list of
   exceptions. A body with any other part runs one time per query, which is always right.
3. Text is inserted at the ends of words, and nothing else is changed but ``:time``. What was not inserted is the
   user's, byte for byte.
4. Every time column has a name that is nowhere else in the statement, so that it needs no name of a table before it. A
   subquery would compare a time with itself otherwise, which is wrong in silence. Two tables that are joined by the
   names of their columns share theirs: the join makes one of both.
5. sqlglot reads the text independently, and both must find the same parts in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, TypeAlias

from spark_timely.continual.body import OUTPUT, SqlBody, Statement
from spark_timely.continual.grammar import (
    SCALAR_AGGREGATES,
    Block,
    Expr,
    Item,
    Join,
    NotBatchedError,
    Query,
    Reader,
    not_batched,
)  # fmt: skip
from spark_timely.continual.skeleton import check_skeleton
from spark_timely.errors import InvalidUsageError, TimelyInternalError, shown
from spark_timely.scanner import quoted_name, scanned

__all__ = ["ManyBody", "ManyPart", "ManyPlace", "ManyStatement", "many_times"]

_PREFIX: Final = "__timely_"

_Shown: TypeAlias = Literal["at", "between", "spread"]


@dataclass(frozen=True, slots=True)
class ManyPlace:
    """A place at which a query over many times names a table, and what its view has to show.

    Attributes
    ----------
    alias : str
        The table, as it was declared.
    shown : str
        ``at``: rows with their time. ``between``: rows with the times between which they hold. ``spread``: as ``at``,
        with each row at all times of the batch at which it holds.
    columns : tuple of str
        Names of the time columns that the view has behind the table's own: one; for ``between`` from and to, of which
        the second is exclusive, and null for ever.
    """

    alias: str
    shown: _Shown
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManyPart:
    """A piece of a query over many times.

    Attributes
    ----------
    written : str
        What the user wrote there; nothing for what was inserted.
    bound : str
        What stands there now; nothing for the name of a table.
    place : int or None
        Index of the place whose view stands there; None for all other pieces.
    """

    written: str
    bound: str
    place: int | None = None


@dataclass(frozen=True, slots=True)
class ManyStatement:
    """One statement of a body, over many times.

    Attributes
    ----------
    columns : tuple of str or None
        Columns of the output that the statement names, in their order; None where it names none.
    places : tuple of ManyPlace
        Where the query names tables, in order. Each place has a view of its own.
    time : str
        Name of the result's last column: the time of each row.
    parts : tuple of ManyPart
        The query. What was written in them is the user's query.
    locals : tuple of str
        Names in lower case that the query gives to its own parts (``WITH``).
    """

    columns: tuple[str, ...] | None
    places: tuple[ManyPlace, ...]
    time: str
    parts: tuple[ManyPart, ...]
    locals: tuple[str, ...]

    def bind(self, views: Sequence[str]) -> str:
        """Return the query for the rows of all times, over these views.

        Parameters
        ----------
        views : sequence of str
            Name of a view for each of `places`. A name is one part: it is quoted.

        Raises
        ------
        InvalidUsageError
            If a view has the name of a part of the query.
        TimelyInternalError
            If there is not one view for each place.

        Examples
        --------
        >>> body = SqlBody.parse(
        ...     "SELECT k, n * f AS n FROM i JOIN r USING (k)", task="t", inputs=["i"], references=["r"]
        ... )
        >>> many = many_times(body, inputs=["i"])
        >>> [(place.alias, place.shown, place.columns) for place in many.statements[0].places]
        [('i', 'at', ('__timely_1',)), ('r', 'between', ('__timely_2', '__timely_3'))]
        >>> select, _, where = many.statements[0].bind(["i_17", "r_17"]).partition(" WHERE ")
        >>> select
        'SELECT k, n * f AS n, `__timely_1` AS `__timely_4` FROM `i_17` AS `i` JOIN `r_17` AS `r` USING (k)'
        >>> where
        '`__timely_1` >= `__timely_2` AND (`__timely_3` IS NULL OR `__timely_1` < `__timely_3`)'
        """
        attempt = "could not bind a query over many times"
        if len(views) != len(self.places):
            msg = f"{attempt}: found {len(views)} views for {len(self.places)} places"
            raise TimelyInternalError(msg)
        # Bounded by the tables that the user wrote.
        for view in views:
            if view.lower() in self.locals:
                msg = f"{attempt}: found view={view!r}, a name of its WITH"
                raise InvalidUsageError(msg, hint="rename the query in WITH")
        return "".join(part.bound if part.place is None else quoted_name(views[part.place]) for part in self.parts)


@dataclass(frozen=True, slots=True)
class ManyBody:
    """The statements of a body, over many times.

    Attributes
    ----------
    statements : tuple of ManyStatement
        In the order of the body.
    """

    statements: tuple[ManyStatement, ...]


def many_times(body: SqlBody, *, inputs: Collection[str]) -> ManyBody | str:
    """Extend a body so that one query per statement gives the rows of many times, or say why it cannot be.

    Parameters
    ----------
    body : SqlBody
    inputs : collection of str
        Aliases of the task's inputs. All other tables of the body are references.

    Returns
    -------
    ManyBody or str
        The extended statements; or the reason why the body runs one time per query.

    Notes
    -----
    The caller must let Spark analyse the result first, and compare names and types of its columns with the plain
    query's: what Spark refuses, or names otherwise, runs one time per query. That is so for some subqueries, which now
    depend on the time of the query around them.

    Cost: reads the text once more for each table that has to be spread.

    Examples
    --------
    >>> def read(text):
    ...     many = many_times(SqlBody.parse(text, task="t", inputs=["i"], references=[]), inputs=["i"])
    ...     return many if isinstance(many, str) else many.statements[0].bind(["i_17"])
    >>> read("SELECT k, max(n) FROM i GROUP BY k")
    'SELECT k, max(n), `__timely_1` AS `__timely_2` FROM `i_17` AS `i` GROUP BY k, `__timely_1`'
    >>> read("SELECT max(n) FROM i")
    'an aggregate without GROUP BY is not batched'
    """
    try:
        return ManyBody(tuple(_Statement(each, inputs).extended() for each in body.statements))
    except NotBatchedError as error:
        return f"{error} is not batched"
    except RecursionError:
        return "a text with too many brackets is not batched"


class _SpreadError(Exception):
    """A reference that has to be spread; begins the extension again, and is never seen outside of this module."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def _aggregate(called: Collection[str]) -> str:
    """Return what is said of functions that are not known to be of one row, of a query without GROUP BY."""
    other = sorted(set(called) - SCALAR_AGGREGATES)
    return f"{other[0]}(), which may be an aggregate, without GROUP BY" if other else "an aggregate without GROUP BY"


# What is inserted ------------------------------------------------------------------------------------------


class _Column:
    """A time column. Its name is found when all is known.

    Attributes
    ----------
    same : _Column or None
        The column whose name it shares.
    number : int
        Given last.
    """

    def __init__(self) -> None:
        self.same: _Column | None = None
        self.number = 0

    @property
    def root(self) -> _Column:
        return self if self.same is None else self.same.root

    @property
    def name(self) -> str:
        return f"{_PREFIX}{self.root.number}"


# Text to insert, with columns whose names are not known yet.
_Text: TypeAlias = tuple[str | _Column, ...]


@dataclass(frozen=True, slots=True)
class _Relation:
    """The time columns of a table or a query.

    Attributes
    ----------
    columns : tuple of _Column
        None: its rows are the same at all times. One: their time. Two: from and to.
    place : int or None
        With two columns: the place whose reference would have to be spread to make them one.
    """

    columns: tuple[_Column, ...] = ()
    place: int | None = None

    @property
    def timed(self) -> bool:
        return len(self.columns) == 1

    @property
    def interval(self) -> bool:
        return len(self.columns) == 2

    def spread(self) -> NoReturn:
        if self.place is None:
            msg = "could not extend a query: found rows between times that come from no reference (invariant 1)"
            raise TimelyInternalError(msg)
        raise _SpreadError(self.place)


@dataclass(slots=True)
class _From:
    """The state of FROM while its items are folded.

    Attributes
    ----------
    time : _Text
        The time of its rows; empty while no item has one.
    pending : list of _Relation
        Rows between times that no time has been compared with yet.
    conditions : list of _Text
        For WHERE.
    shown : list of (str or None, columns)
        Name in lower case and time columns of each item whose columns can be named.
    """

    time: _Text = ()
    pending: list[_Relation] = field(default_factory=list)
    conditions: list[_Text] = field(default_factory=list)
    shown: list[tuple[str | None, tuple[_Column, ...]]] = field(default_factory=list)


def _equal(left: _Text, right: _Text) -> _Text:
    return (*left, " = ", *right)


def _holds(relation: _Relation, time: _Text) -> _Text:
    """Return the condition that rows between times hold at a time."""
    begin, end = relation.columns
    return (*time, " >= ", begin, " AND (", end, " IS NULL OR ", *time, " < ", end, ")")


def _compared(relation: _Relation, time: _Text) -> _Text:
    """Return the condition that a relation's rows are seen at a time; none if they are the same at all times."""
    if relation.timed:
        return _equal(relation.columns, time)
    return _holds(relation, time) if relation.interval else ()


def _joined(conditions: Sequence[_Text]) -> _Text:
    found: list[str | _Column] = []
    # Bounded by the tables that a user wrote.
    for condition in conditions:
        found += [" AND ", *condition] if found else condition
    return tuple(found)


class _Statement:
    """Extends one statement."""

    def __init__(self, statement: Statement, inputs: Collection[str]) -> None:
        self._statement, self._inputs = statement, {alias.lower() for alias in inputs}
        self._columns: list[_Column] = []
        self._spread: set[int] = set()
        self._inserted: list[tuple[int, int, int, _Text]] = []
        self._replaced: list[tuple[int, int, _Text]] = []
        self._withs: dict[str, tuple[_Relation, bool]] = {}
        self._place_columns: list[tuple[_Column, ...]] = []

    def extended(self) -> ManyStatement:
        """Return the statement over many times."""
        statement = self._statement
        if statement.kind != "insert":
            not_batched("DELETE")
        if OUTPUT in statement.reads:
            not_batched("a statement that reads the output")
        if _PREFIX[:-1] in statement.query.lower():
            not_batched(f"a name with {_PREFIX[:-1]}")
        self._tokens = scanned(statement.query, "extend a statement", statement.text)
        query = Reader(self._tokens).whole()
        check_skeleton(query, statement.query, self._tokens)
        # Bounded by the tables that a user wrote: each round spreads one more.
        while True:
            try:
                time = self._extend(query)
            except _SpreadError as error:
                self._spread.add(error.place)
            else:
                return self._result(time)

    def _extend(self, query: Query) -> _Column:
        self._columns, self._inserted, self._replaced, self._withs = [], [], [], {}
        self._sets: list[str] = []
        self._scalar = False
        self._places = {place.start: at for at, place in enumerate(self._statement.places)}
        self._place_columns = []
        # Bounded by the tables that a user wrote.
        for at in range(len(self._statement.places)):
            self._place_columns.append(self._new(2 if self._how(at) == "between" else 1))
        relation = self._query(query)
        if relation.interval:
            relation.spread()
        if not relation.timed:
            not_batched("a query that reads no table outside of subqueries")
        if self._scalar and self._sets:
            # Spark 4.2 cannot plan some of these: "key not found" in `UnionBase.rewriteConstraints`. It was seen with
            # INTERSECT ALL and EXCEPT ALL, of which Spark makes a UNION.
            not_batched(f"a scalar subquery in SELECT beside {self._sets[0].upper()}")
        return relation.columns[0]

    def _how(self, place: int) -> _Shown:
        if self._statement.places[place].alias.lower() in self._inputs:
            return "at"
        return "spread" if place in self._spread else "between"

    def _new(self, count: int) -> tuple[_Column, ...]:
        found = tuple(_Column() for _ in range(count))
        self._columns += found
        return found

    # Text

    def _insert(self, position: int, text: Sequence[str | _Column], order: int = 0) -> None:
        """Insert text; `order` is for several at one position."""
        self._inserted.append((position, order, len(self._inserted), tuple(text)))

    def _behind(self, end: int, text: Sequence[str | _Column], order: int = 0) -> None:
        """Insert text behind the last token of what ends there."""
        self._insert(self._tokens[end - 1].end, text, order)

    def _before(self, at: int, text: Sequence[str | _Column]) -> None:
        self._insert(self._tokens[at].start, text)

    def _condition(self, value: Expr | None, end: int, word: str, conditions: Sequence[_Text], order: int) -> None:
        """Add conditions to what is behind ON or WHERE, with the word where it is not there."""
        text = _joined([each for each in conditions if each])
        if not text:
            return
        if value is None:
            self._behind(end, (f" {word} ", *text), order)
        else:
            self._before(value.first, ("(",))
            self._behind(value.end, (") AND ", *text), order)

    def _result(self, time: _Column) -> ManyStatement:
        """Return the statement with names for all columns, and with all that was inserted."""
        number = 0
        # Bounded by the tables and queries that a user wrote.
        for column in self._columns:
            if column.same is None:
                number += 1
                column.number = number
        statement, query = self._statement, self._statement.query
        parts: list[ManyPart] = []
        at = 0
        events: list[tuple[int, int, int, int, _Text, int | None]] = []
        for position, order, count, text in self._inserted:
            events.append((position, order, count, position, text, None))
        # A name or a mark ends after what is inserted before it: it is the last at where it begins.
        for start, end, text in self._replaced:
            events.append((start, 9, 0, end, text, None))
        for count, place in enumerate(statement.places):
            named: _Text = () if place.named is None else (f" AS {quoted_name(place.named)}",)
            events.append((place.start, 9, 0, place.end, named, count))
        # Bounded by what was inserted.
        for start, _, _, end, text, where in sorted(events, key=lambda event: event[:3]):
            if start > at:
                parts.append(ManyPart(query[at:start], query[at:start]))
            bound = "".join(each if isinstance(each, str) else quoted_name(each.name) for each in text)
            if where is None:
                parts.append(ManyPart(query[start:end], bound))
            else:
                parts.append(ManyPart(query[start:end], "", where))
                if bound:
                    parts.append(ManyPart("", bound))
            at = end
        parts.append(ManyPart(query[at:], query[at:]))
        if "".join(part.written for part in parts) != query:
            msg = f"could not extend a statement: found {shown(query)} changed (invariant 3)"
            raise TimelyInternalError(msg)
        places = [
            ManyPlace(place.alias, self._how(count), tuple(column.name for column in self._place_columns[count]))
            for count, place in enumerate(statement.places)
        ]
        return ManyStatement(statement.columns, tuple(places), time.name, tuple(parts), statement.locals)

    # Queries

    def _query(self, query: Query) -> _Relation:
        # Bounded by the queries that a user wrote.
        for each in query.withs:
            name = each.name.lower()
            if name in self._withs:
                not_batched(f"WITH that names {shown(each.name)} twice")
            relation = self._query(each.query)
            if each.names_end is not None:
                self._name_columns(each.names_end, relation)
            self._withs[name] = (relation, False)
        found = [self._operand(each) for each in query.operands]
        if len(found) == 1 or not any(each.columns for each in found):
            return found[0]
        self._sets += query.sets
        # Bounded by the queries that a user wrote.
        for relation in found:
            if relation.interval:
                relation.spread()
            if not relation.timed:
                not_batched(f"{query.sets[0].upper()} with a query that is the same at all times")
        # The first one names the columns.
        return found[0]

    def _operand(self, operand: Block | Query | list[Expr]) -> _Relation:
        if isinstance(operand, Query):
            return self._query(operand)
        return self._block(operand) if isinstance(operand, Block) else _Relation()

    def _name_columns(self, names_end: int, relation: _Relation) -> None:
        """Add the time columns to names of columns in brackets."""
        # Bounded by two.
        for column in relation.columns:
            self._behind(names_end, (", ", column))

    def _block(self, block: Block) -> _Relation:
        """Extend a block whose rows others read."""
        source = self._from(block)
        if not source.time and source.pending:
            one = len(block.parts) == 1 and len(block.parts[0]) == 1
            if not one or not block.plain:
                source.pending[0].spread()
        elif source.time and block.group is None and block.aggregates:
            not_batched(_aggregate(block.aggregates))
        elif source.time and block.group is None and block.having is not None:
            not_batched("HAVING without GROUP BY")
        self._values(block, source)
        self._where(block, source.conditions)
        if source.time:
            relation = _Relation(self._new(1))
            self._give(block, [(*source.time, " AS ", relation.columns[0])])
            return relation
        if source.pending:
            inner = source.pending[0]
            relation = _Relation(self._new(2), inner.place)
            self._give(block, [(old, " AS ", new) for old, new in zip(inner.columns, relation.columns, strict=True)])
            return relation
        return _Relation()

    def _subquery(self, kind: str, block: Block, outer: _Text) -> None:
        """Extend a block whose rows are compared with a row outside of it."""
        source = self._from(block)
        timed = bool(source.time or source.pending)
        if timed and not outer:
            not_batched("a subquery in a query without a time")
        if timed and block.group is None:
            self._check_subquery(kind, block)
        if not source.time and source.pending:
            if not block.plain:
                source.pending[0].spread()
            source.conditions += [_holds(each, outer) for each in source.pending]
        elif source.time:
            source.conditions.append(_equal(source.time, outer))
        self._values(block, source)
        self._where(block, source.conditions)
        self._group(block, source.time)

    def _check_subquery(self, kind: str, block: Block) -> None:
        """Refuse aggregates of all rows, where it is not known what becomes of them without any row."""
        aggregates = block.aggregates
        if not aggregates and block.having is None:
            return
        if kind != "scalar":
            not_batched(f"{kind.upper()} of an aggregate without GROUP BY")
        if block.having is not None or block.distinct:
            not_batched("an aggregate without GROUP BY in a subquery with HAVING or DISTINCT")
        other = sorted(aggregates - SCALAR_AGGREGATES)
        if other:
            not_batched(f"{shown(other[0])} of all rows of a subquery")

    def _where(self, block: Block, conditions: Sequence[_Text]) -> None:
        self._condition(block.where, block.from_end, "WHERE", conditions, 2)

    def _give(self, block: Block, texts: Sequence[_Text]) -> None:
        """Give the time with the rows of a block."""
        # Bounded by two.
        for text in texts:
            self._behind(block.items[-1].end, (", ", *text), 3)
        self._group(block, texts[0][:-2])

    def _group(self, block: Block, time: _Text) -> None:
        if block.group is not None and time:
            self._behind(block.group[-1].end, (", ", *time), 3)

    def _values(self, block: Block, source: _From) -> None:
        """Extend the values of a block."""
        # Bounded by the values that a user wrote.
        for value in block.values:
            self._value(value, source.time)
        for value in block.items:
            self._scalar |= any(kind == "scalar" for kind, _ in value.queries)
            if value.star:
                self._star(value, source)

    def _star(self, value: Expr, source: _From) -> None:
        """Leave the time columns out of a star."""
        name = None if value.end == value.first + 1 else self._tokens[value.first].name.lower()
        if name is not None and value.end > value.first + 3:
            return
        columns = [column for alias, some in source.shown if name in (None, alias) for column in some]
        once = list(dict.fromkeys(column.root for column in columns))
        if not once:
            return
        text: list[str | _Column] = [" EXCEPT ("]
        # Bounded by the tables that a user wrote.
        for at, column in enumerate(once):
            text += [", ", column] if at else [column]
        self._behind(value.end, [*text, ")"])

    def _value(self, value: Expr, time: _Text) -> None:
        """Extend a value that is seen at a time."""
        if value.marks and not time:
            not_batched(":time in a query without a time")
        # Bounded by what a user wrote.
        for mark in value.marks:
            start, end = self._tokens[mark].start, self._tokens[mark + 1].end
            last = self._statement.query[start - 1 : start]
            self._replaced.append((start, end, (" ", *time) if last.isalnum() or last in ("_", "-") else time))
        for window in value.windows:
            if not time:
                continue
            if window.partition is None:
                self._insert(self._tokens[window.begin - 1].end, ("PARTITION BY ", *time, " "))
            else:
                self._before(window.partition, (*time, ", "))
        for kind, block in value.queries:
            self._subquery(kind, block, time)

    # FROM

    def _from(self, block: Block) -> _From:
        source = _From()
        # Bounded by the tables that a user wrote.
        for part in block.parts:
            one = _From()
            for at, join in enumerate(part):
                later = any(other.kind in ("right", "full") for other in part[at + 1 :])
                self._join(one, join, later=later)
            if source.time and one.time:
                source.conditions.append(_equal(one.time, source.time))
            source.time = source.time or one.time
            source.pending += one.pending
            source.conditions += one.conditions
            source.shown += one.shown
        if source.time:
            source.conditions += [_holds(each, source.time) for each in source.pending]
            source.pending = []
        return source

    def _join(self, source: _From, join: Join, *, later: bool) -> None:
        """Fold one more item into FROM.

        Parameters
        ----------
        source : _From
            Changed.
        join : Join
        later : bool
            Whether a join to come makes rows without those before it, which a condition in WHERE would take away.
        """
        right = self._item(join.item)
        left, pending = source.time, source.pending
        fold = {
            "first": self._fold_inner,
            "inner": self._fold_inner,
            "left": self._fold_left,
            "semi": self._fold_left,
            "anti": self._fold_left,
            "right": self._fold_right,
            "full": self._fold_full,
        }[join.kind]
        source.pending = []
        time, conditions, shared = fold(source, pending, right)
        if join.by_name:
            time = self._by_name(
                source, join, right, conditions, time=time, shared=shared, later=later, pending=pending
            )
        else:
            if join.on is not None:
                inside = left or (right.columns if right.timed else ())
                if (join.on.marks or join.on.queries) and not inside and source.pending:
                    source.pending[0].spread()
                self._value(join.on, inside)
                if join.on.windows:
                    not_batched("a window in ON")
            self._condition(join.on, join.item.end, "ON", conditions, 1)
        source.time = time
        if join.kind not in ("semi", "anti"):
            item = join.item
            name = item.alias if item.alias is not None else item.name
            source.shown.append((None if name is None else name.lower(), right.columns))

    def _fold_inner(self, source: _From, pending: list[_Relation], right: _Relation) -> tuple[_Text, list[_Text], bool]:
        if right.timed and not source.time:
            return right.columns, [_holds(each, right.columns) for each in pending], False
        if source.time:
            condition = _compared(right, source.time)
            return source.time, [condition] if condition else [], right.timed
        source.pending = [*pending, right] if right.interval else pending
        return (), [], False

    def _fold_left(self, source: _From, pending: list[_Relation], right: _Relation) -> tuple[_Text, list[_Text], bool]:
        source.pending = pending
        if not right.columns:
            return source.time, [], False
        if not source.time:
            self._no_time(pending)
        return source.time, [_compared(right, source.time)], right.timed

    def _fold_right(self, source: _From, pending: list[_Relation], right: _Relation) -> tuple[_Text, list[_Text], bool]:
        if right.interval:
            right.spread()
        if right.timed:
            if source.time:
                return right.columns, [_equal(source.time, right.columns)], True
            return right.columns, [_holds(each, right.columns) for each in pending], False
        if source.time or pending:
            not_batched("an outer join that keeps all rows of a table without times")
        return (), [], False

    def _fold_full(self, source: _From, pending: list[_Relation], right: _Relation) -> tuple[_Text, list[_Text], bool]:
        if right.interval:
            right.spread()
        if not right.columns and not source.time and not pending:
            return (), [], False
        if not source.time:
            self._no_time(pending)
        if not right.timed:
            not_batched("an outer join that keeps all rows of a table without times")
        time: _Text = ("coalesce(", *source.time, ", ", *right.columns, ")")
        return time, [_equal(source.time, right.columns)], True

    def _no_time(self, pending: list[_Relation]) -> NoReturn:
        if pending:
            pending[0].spread()
        not_batched("an outer join that keeps all rows of a table without times")

    def _by_name(
        self,
        source: _From,
        join: Join,
        right: _Relation,
        conditions: list[_Text],
        *,
        time: _Text,
        shared: bool,
        later: bool,
        pending: list[_Relation],
    ) -> _Text:
        """Add conditions to a join by the names of columns, and return the time of its rows.

        Parameters
        ----------
        shared : bool
            Whether the only condition is that both sides have the same time.
        """
        if not conditions:
            return time
        if join.kind == "inner" and not later:
            source.conditions += conditions
            return time
        if not shared:
            # The rows between times are on the right, or on the left.
            (right if right.interval else pending[0]).spread()
        left = source.time
        column = left[0] if len(left) == 1 else None
        if not isinstance(column, _Column):
            not_batched("USING or NATURAL behind a FULL JOIN")
        right.columns[0].same = column
        if join.using is not None:
            self._behind(join.using[-1] + 1, (", ", column))
        return (column,)

    def _item(self, item: Item) -> _Relation:
        relation = self._source(item)
        if item.names_end is not None:
            self._name_columns(item.names_end, relation)
        return relation

    def _source(self, item: Item) -> _Relation:
        if item.query is not None:
            return self._query(item.query)
        if item.values is not None:
            return _Relation()
        place = self._places.get(self._tokens[item.first].start)
        if place is not None:
            columns = self._place_columns[place]
            return _Relation(columns, place if len(columns) == 2 else None)
        name = (item.name or "").lower()
        if name not in self._withs:
            not_batched(f"{shown(item.name)}, which WITH names further out or later,")
        relation, used = self._withs[name]
        self._withs[name] = (relation, True)
        if not relation.columns or not used:
            return relation
        return self._renamed(item, relation)

    def _renamed(self, item: Item, relation: _Relation) -> _Relation:
        """Give the time columns of a named query other names, where it is read once more."""
        columns = self._new(len(relation.columns))
        left_out: list[str | _Column] = []
        added: list[str | _Column] = []
        # Bounded by two.
        for old, new in zip(relation.columns, columns, strict=True):
            left_out += [", ", old] if left_out else [old]
            added += [", ", old, " AS ", new]
        self._before(item.first, ("(SELECT * EXCEPT (", *left_out, ")", *added, " FROM "))
        name = "" if item.alias is not None else f" AS {quoted_name(item.name or '')}"
        self._behind(item.first + 1, (f"){name}",))
        return _Relation(columns, relation.place)
