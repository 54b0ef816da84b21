"""The SQL of a continual task's body, extended to give its results at many times in one query.

A body is written for one time: its inputs show the rows that came at that time, its references their contents as of
it. Here its text gets further columns and conditions, so that one query over views of many times gives each time's
rows, with the time as their last column. A task that is far behind runs one job where it would have run a thousand.

A table of the body is shown in one of three ways. *at*: each row has the time at which the query sees it, as an
input's rows have. *between*: each row has the times from and to between which it holds, the second exclusive and
null for ever, as a reference's rows have; the query compares them with a time that it has from another table.
*spread*: as *at*, for a reference where no other table has a time: whoever makes the view repeats each row at all
times of the batch at which it holds.

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

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

from spark_timely.continual.body import (
    _KEYWORDS,
    _TAKES_FROM,
    OUTPUT,
    SqlBody,
    Statement,
    _in_types,
    _legible,
    _markers,
    _quoted,
    _scanned,
    _Token,
    _words,
)
from spark_timely.errors import InvalidUsageError, TimelyInternalError, shown

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["ManyBody", "ManyPart", "ManyPlace", "ManyStatement", "many_times"]

_PREFIX: Final = "__timely_"

# Functions of one row: they give the same wherever the row stands, and one value for each row. What is not here may
# be an aggregate. Left out on purpose: what makes rows (explode), time windows, and what is there to fail.
_ROW_FUNCTIONS: Final = _words("""
    abs acos acosh add_months aes_decrypt aggregate array array_append array_compact array_contains array_distinct
    array_except array_insert array_intersect array_join array_max array_min array_position array_prepend array_remove
    array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii asin asinh atan atan2 atanh base64
    bigint bin binary bit_count bit_get bit_length boolean bround btrim cardinality cast cbrt ceil ceiling char
    char_length character_length chr coalesce collate collation concat concat_ws contains conv convert_timezone cos cosh
    cot crc32 csc date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff
    datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees double e element_at elt encode endswith
    equal_null exists exp expm1 extract factorial filter find_in_set flatten float floor forall format_number
    format_string from_csv from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest hash hex hour
    hypot if ifnull ilike initcap instr int is_valid_utf8 isnan isnotnull isnull json_array_length json_object_keys
    last_day lcase least left len length levenshtein like ln locate log log10 log1p log2 lower lpad ltrim luhn_check
    make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays
    map_from_entries map_keys map_values map_zip_with mask md5 minute mod month monthname months_between named_struct
    nanvl negative next_day nullif nullifzero nvl nvl2 octet_length overlay parse_json parse_url pi pmod position
    positive pow power printf quarter quote radians reduce regexp regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rint rlike round rpad rtrim sec
    second sentences sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice
    smallint sort_array soundex space split split_part sqrt startswith str_to_map string struct substr substring
    substring_index tan tanh timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff
    tinyint to_binary to_char to_csv to_date to_json to_number to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp to_varchar transform transform_keys transform_values translate trim trunc try_add
    try_cast try_divide try_element_at try_mod try_multiply try_parse_json try_subtract try_to_binary try_to_date
    try_to_number try_to_timestamp try_variant_get typeof ucase unbase64 unhex unix_date unix_micros unix_millis
    unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 variant_get weekday weekofyear width_bucket
    xxhash64 year zeroifnull zip_with
    """)
# Aggregates of which it is known what a subquery makes of them where there is no row.
_SCALAR_AGGREGATES: Final = _words("""
    any_value approx_count_distinct avg bool_and bool_or collect_list collect_set count count_if every first last max
    max_by mean median min min_by some stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance
    """)

# A part of a query ends before these.
_ENDS: Final = _words("""
    anti by cluster cross cube delete distribute except exclude fetch following from full group grouping having inner
    insert intersect into join lateral left limit match_recognize minus natural offset on order outer over partition
    pivot preceding qualify range recursive right rollup rows select semi sets sort table tablesample union unpivot
    using values view where window with within
    """)
# These join or close parts of an expression, and have no meaning for whoever looks for tables and functions.
_INSIDE: Final = _words("""
    and asc between both case desc div else end escape false for ilike in interval is leading like not null nulls or
    regexp rlike then trailing true when
    """)
_QUANTIFIED: Final = _words("ilike like rlike regexp")
_QUERY_STARTS: Final = _words("select with")
# These begin a query elsewhere too, but where a value may stand they may be names.
_DOUBTFUL_STARTS: Final = _words("from table values")

_JoinKind: TypeAlias = Literal["first", "inner", "left", "right", "full", "semi", "anti"]
_JOINS: Final[dict[str, _JoinKind]] = {
    "": "inner",
    "inner": "inner",
    "cross": "inner",
    "left": "left",
    "left outer": "left",
    "right": "right",
    "right outer": "right",
    "full": "full",
    "full outer": "full",
    "semi": "semi",
    "left semi": "semi",
    "anti": "anti",
    "left anti": "anti",
}
_SETS: Final = _words("except intersect minus union")

_Shown: TypeAlias = Literal["at", "between", "spread"]


@dataclass(frozen=True, slots=True)
class ManyPlace:
    """Where a query over many times names a table, and what its view has to show.

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
        return "".join(part.bound if part.place is None else _quoted(views[part.place]) for part in self.parts)


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
    Whoever runs the result must let Spark analyse it first, and compare names and types of its columns with the plain
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
    except _NotBatchedError as error:
        return f"{error} is not batched"
    except RecursionError:
        return "a text with too many brackets is not batched"


class _NotBatchedError(Exception):
    """A part of a body that is not extended; ends the reading, and is never seen outside of this module."""


class _SpreadError(Exception):
    """A reference that has to be spread; begins the extension again, and is never seen outside of this module."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def _aggregate(called: Collection[str]) -> str:
    """Return what is said of functions that are not known to be of one row, of a query without GROUP BY."""
    other = sorted(set(called) - _SCALAR_AGGREGATES)
    return f"{other[0]}(), which may be an aggregate, without GROUP BY" if other else "an aggregate without GROUP BY"


def _refuse(what: str) -> NoReturn:
    raise _NotBatchedError(what)


# What is read ----------------------------------------------------------------------------------------------
# Numbers are indexes of tokens; ends are exclusive.


@dataclass(slots=True)
class _Window:
    """The brackets behind OVER."""

    begin: int  # the first token behind the bracket
    partition: int | None  # the first token behind PARTITION BY
    partitions: int = 0
    ordered: bool = False


@dataclass(slots=True)
class _Expr:
    """A value, or a list of values that belong together."""

    first: int
    end: int = 0
    marks: list[int] = field(default_factory=list)
    windows: list[_Window] = field(default_factory=list)
    queries: list[tuple[str, _Block]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)  # and not known to be of one row
    star: bool = False

    @property
    def needs_time(self) -> bool:
        return bool(self.marks or self.windows or self.queries or self.called)


@dataclass(slots=True)
class _Item:
    """A table, or what stands for one."""

    first: int
    end: int
    name: str | None = None  # of a table or of a query of WITH
    query: _Query | None = None  # in brackets
    values: list[_Expr] | None = None
    alias: str | None = None
    names_end: int | None = None  # behind the last of the column names in brackets behind the alias


@dataclass(slots=True)
class _Join:
    """An item of FROM, and how it is joined to those before it."""

    kind: _JoinKind
    item: _Item
    said: tuple[str, ...] = ()  # words before JOIN
    natural: bool = False
    on: _Expr | None = None
    using: list[int] | None = None  # the names

    @property
    def by_name(self) -> bool:
        return self.natural or self.using is not None


@dataclass(slots=True)
class _Block:
    """SELECT … FROM … WHERE … GROUP BY … HAVING …."""

    distinct: bool = False
    items: list[_Expr] = field(default_factory=list)
    parts: list[list[_Join]] = field(default_factory=list)  # with commas between them
    from_end: int = 0
    where: _Expr | None = None
    group: list[_Expr] | None = None
    having: _Expr | None = None
    order: list[_Expr] | None = None

    @property
    def judged(self) -> list[_Expr]:
        """Values that may aggregate."""
        return [*self.items, *([self.having] if self.having else []), *(self.order or [])]

    @property
    def values(self) -> list[_Expr]:
        """All values outside of FROM."""
        return [*self.judged, *([self.where] if self.where else []), *(self.group or [])]

    @property
    def aggregates(self) -> set[str]:
        return {name for each in self.judged for name in each.called}

    @property
    def plain(self) -> bool:
        """Whether it takes and gives row by row."""
        whole = self.distinct or self.group is not None or self.having is not None or self.order is not None
        return not whole and not any(each.needs_time for each in self.values)


@dataclass(slots=True)
class _With:
    """A query that WITH names."""

    name: str
    names_end: int | None
    query: _Query


@dataclass(slots=True)
class _Query:
    """One block, or several with UNION and the like between them."""

    withs: list[_With] = field(default_factory=list)
    operands: list[_Block | _Query | list[_Expr]] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    order: list[_Expr] | None = None  # behind several operands


class _Reader:
    """Reads the tokens of a query by the grammar that is extended; refuses what is not in it."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self._types = _in_types(tokens)
        begins = {token.start: at for at, token in enumerate(tokens)}
        self._marks = {begins[start] for start, _ in _markers(tokens)}
        self._at = 0
        self._nothing = _Token("symbol", "", 0, 0)

    def whole(self) -> _Query:
        """Return what the tokens are."""
        query = self._query(top=True)
        if self._at < len(self.tokens):
            self._unexpected()
        return query

    # Tokens

    def _token(self, by: int = 0) -> _Token:
        at = self._at + by
        return self.tokens[at] if 0 <= at < len(self.tokens) else self._nothing

    def _word(self, by: int = 0) -> str:
        """Return a word in lower case; nothing for what is a name in any case, or a type."""
        return "" if self._token(by - 1).text == "." or self._at + by in self._types else self._token(by).word

    def _symbol(self, by: int = 0) -> str:
        token = self._token(by)
        return token.text if token.kind == "symbol" else ""

    def _take(self, *words: str) -> bool:
        """Pass these words, if they are next."""
        if [self._word(by) for by in range(len(words))] != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, symbol: str) -> None:
        if self._symbol() != symbol:
            self._unexpected()
        self._at += 1

    def _unexpected(self) -> NoReturn:
        token = self._token()
        _refuse(token.text.upper() if token.kind == "word" else f"{shown(token.text)} at this place")

    def _name(self) -> str | None:
        """Pass a name, if one is next."""
        token = self._token()
        if token.kind != "quoted" and (token.kind != "word" or token.word in _KEYWORDS | _ENDS):
            return None
        self._at += 1
        return token.name

    def _names(self) -> list[int]:
        """Pass names in brackets, and return where they are."""
        self._expect("(")
        found = []
        # Bounded by the names that a user wrote.
        while True:
            found.append(self._at)
            if not self._token().names:
                self._unexpected()
            self._at += 1
            if self._symbol() != ",":
                break
            self._at += 1
        self._expect(")")
        return found

    # Queries

    def _query(self, *, top: bool = False) -> _Query:
        query = _Query()
        if self._take("with"):
            query.withs = self._withs()
        query.operands.append(self._operand())
        # Bounded by the queries that a user wrote.
        while self._word() in _SETS:
            said = self._word().replace("minus", "except")
            self._at += 1
            if self._take("all"):
                said += " all"
            else:
                self._take("distinct")
            query.sets.append(said)
            if self._symbol() == "(" and self._symbol(1) != "(" and self._word(1) not in _QUERY_STARTS | {"values"}:
                _refuse(f"a star with {said.upper()}")
            query.operands.append(self._operand())
        if self._word() == "order" and self._word(1) == "by":
            if not top:
                _refuse("ORDER BY inside a query")
            self._at += 2
            order = self._list()
            block = query.operands[0]
            if len(query.operands) == 1 and isinstance(block, _Block):
                block.order = order
            elif any(each.needs_time for each in order):
                _refuse("ORDER BY with more than columns")
            else:
                query.order = order
        return query

    def _withs(self) -> list[_With]:
        found = []
        # Bounded by the queries that a user wrote.
        while True:
            name = self._name()
            if name is None:
                self._unexpected()
            names_end = None
            if self._symbol() == "(" and self._word(1) not in _QUERY_STARTS:
                names_end = self._names()[-1] + 1
            self._take("as")
            self._expect("(")
            query = self._query()
            self._expect(")")
            found.append(_With(name, names_end, query))
            if self._symbol() != ",":
                return found
            self._at += 1

    def _operand(self) -> _Block | _Query | list[_Expr]:
        if self._symbol() == "(":
            self._at += 1
            query = self._query()
            self._expect(")")
            return query
        if self._word() == "values":
            return self._values()
        if not self._take("select"):
            self._unexpected()
        return self._block()

    def _values(self) -> list[_Expr]:
        """Read the rows of VALUES."""
        rows: list[_Expr] = []
        # Bounded by the rows that a user wrote.
        while not rows or (self._symbol() == "," and self._symbol(1) == "("):
            self._at += 1
            if self._symbol() != "(":
                _refuse("VALUES with rows that are not in brackets")
            rows.append(_Expr(self._at))
            self._bracket(rows[-1], "")
        if any(each.needs_time for each in rows):
            _refuse("VALUES with more than plain values")
        return rows

    def _block(self) -> _Block:
        block = _Block()
        if self._symbol() == "/*+":
            # Bounded by the length of what a user wrote.
            while self._token().text and self._symbol() != "*/":
                self._at += 1
            self._expect("*/")
        block.distinct = self._take("distinct")
        if not block.distinct:
            self._take("all")
        block.items = self._list(select=True)
        block.from_end = self._at
        if self._take("from"):
            block.parts = [self._part()]
            # Bounded by the tables that a user wrote.
            while self._symbol() == ",":
                self._at += 1
                block.parts.append(self._part())
            block.from_end = self._at
        if self._take("where"):
            block.where = self._value()
        if self._take("group", "by"):
            if self._word() == "all":
                _refuse("GROUP BY ALL")
            block.group = self._list()
            if any(each.windows or each.queries or each.called for each in block.group):
                _refuse("GROUP BY with more than functions of one row")
        if self._take("having"):
            block.having = self._value()
        return block

    def _list(self, *, select: bool = False) -> list[_Expr]:
        found = [self._value(select=select)]
        # Bounded by the values that a user wrote.
        while self._symbol() == ",":
            self._at += 1
            found.append(self._value(select=select))
        return found

    # FROM

    def _part(self) -> list[_Join]:
        joins = [_Join("first", self._item())]
        # Bounded by the tables that a user wrote.
        while (join := self._join()) is not None:
            joins.append(join)
        return joins

    def _join(self) -> _Join | None:
        begin = self._at
        natural = self._take("natural")
        said = []
        # Bounded by the words that may stand before JOIN.
        while self._word() in ("inner", "cross", "left", "right", "full", "outer", "semi", "anti"):
            said.append(self._word())
            self._at += 1
        if not self._take("join"):
            if self._at > begin:
                self._unexpected()
            return None
        kind = _JOINS.get(" ".join(said))
        if kind is None:
            _refuse(f"{' '.join(said).upper()} JOIN")
        join = _Join(kind, self._item(), tuple(said), natural)
        if self._take("on"):
            join.on = self._value()
        elif self._take("using"):
            join.using = self._names()
        if natural and (join.on or join.using):
            _refuse("NATURAL JOIN with ON or USING")
        return join

    def _item(self) -> _Item:
        item = _Item(self._at, self._at)
        if self._symbol() == "(":
            if self._symbol(1) != "(" and self._word(1) not in _QUERY_STARTS | {"values"}:
                _refuse("a join in brackets")
            self._at += 1
            item.query = self._query()
            self._expect(")")
        elif self._word() == "values":
            item.values = self._values()
        else:
            item.name = self._name()
            if item.name is None:
                self._unexpected()
            if self._symbol() == "(":
                _refuse("a table function")
        item.end = self._at
        if self._take("as"):
            item.alias = self._name()
            if item.alias is None:
                self._unexpected()
        else:
            item.alias = self._name()
        if item.alias is not None:
            item.end = self._at
            if self._symbol() == "(":
                item.names_end = self._names()[-1] + 1
                item.end = self._at
        return item

    # Values

    def _value(self, *, select: bool = False) -> _Expr:
        found = _Expr(self._at)
        self._run(found, "", select=select, top=True)
        found.end = self._at
        if found.end == found.first:
            self._unexpected()
        return found

    def _run(self, value: _Expr, inside: str, *, select: bool = False, top: bool = False) -> None:
        """Pass tokens up to what ends a value, or up to the bracket that closes the one before.

        Parameters
        ----------
        value : _Expr
            Gets what is found.
        inside : str
            Name of the function in whose brackets this is.
        select : bool
            Whether it may be a star, and have a name of its own.
        top : bool
            Whether it is outside of all brackets.
        """
        begin = self._at
        # Bounded by the length of what a user wrote.
        while (token := self._token()).text:
            word, symbol = self._word(), self._symbol()
            if self._at in self._types:
                self._at += 1
            elif symbol in (")", "]") or (top and symbol == ","):
                return
            elif self._at in self._marks:
                value.marks.append(self._at)
                self._at += 2
            elif symbol:
                self._pass_symbol(value, symbol, inside, select=select, top=top)
            elif not word:
                self._pass_name(value, token.name.lower())
            elif word in ("over", "filter", "within") and self._closed():
                self._pass_clause(value, word)
            elif word == "from" and not top and (inside in _TAKES_FROM):
                self._at += 1
            elif word in ("left", "right", "filter", "range") and self._called():
                self._pass_call(value, word)
            elif word in _ENDS:
                if top:
                    return
                self._unexpected()
            else:
                self._pass_word(value, word, begin, select=select, top=top)

    def _pass_name(self, value: _Expr, name: str) -> None:
        if self._called():
            self._pass_call(value, name)
        else:
            self._at += 1

    def _called(self) -> bool:
        return self._token().names and self._symbol(1) == "("

    def _closed(self) -> bool:
        """Tell whether a call ends before the next token."""
        return self._symbol(-1) == ")" or (self._word(-1) == "nulls" and self._word(-2) in ("ignore", "respect"))

    def _pass_word(self, value: _Expr, word: str, begin: int, *, select: bool, top: bool) -> None:
        before = self._word(-1)
        if word == "as":
            self._at += 1
            ends = not top or self._symbol(1) in (",", ")", "") or self._word(1) in _ENDS
            if not self._token().names or not ends or (top and not select):
                self._unexpected()
            self._at += 1
        elif word == "distinct" and before in ("is", "not") and self._word(1) == "from":
            self._at += 2
        elif (
            word in _INSIDE
            or (word in ("distinct", "all") and self._symbol(-1) == "(" and self._at == begin)
            or (word in ("any", "all", "some") and before in _QUANTIFIED)
            or (word == "exists" and self._symbol(1) == "(" and self._word(2) in _QUERY_STARTS)
        ):
            self._at += 1
        elif word in _KEYWORDS and not self._called():
            self._unexpected()
        else:
            self._pass_name(value, word)

    def _pass_symbol(self, value: _Expr, symbol: str, inside: str, *, select: bool, top: bool) -> None:
        if symbol == "(":
            self._bracket(value, "")
        elif symbol == "[":
            self._at += 1
            self._run(value, "")
            self._expect("]")
        elif symbol in ("/*+", "*/", "|>", "?", ";"):
            self._unexpected()
        elif symbol == "*" and (self._at == value.first or self._symbol(-1) in (".", "(", ",", "[")):
            if top:
                if not select:
                    self._unexpected()
                self._star(value)
            elif not (inside == "count" and self._symbol(-1) == "(" and self._symbol(1) == ")"):
                _refuse("a star in a function")
            self._at += 1
        else:
            self._at += 1

    def _star(self, value: _Expr) -> None:
        """Refuse a star that is more than one, or has names before or behind it."""
        before = self.tokens[value.first : self._at]
        shape = all(each.names if at % 2 == 0 else each.text == "." for at, each in enumerate(before))
        after = self._symbol(1)
        ends = after in (",", ")", "") and (after or not self._token(1).text)
        if self._word(1) in ("replace", "exclude"):
            _refuse(f"a star with {self._word(1).upper()}")
        if not shape or len(before) % 2 or not (ends or self._word(1) in _ENDS):
            _refuse("a star in a value")
        value.star = True

    def _pass_call(self, value: _Expr, name: str) -> None:
        """Pass a function, and note it if it may be an aggregate."""
        self._at += 1
        self._bracket(value, name)
        if name in _ROW_FUNCTIONS:
            return
        begin = self._at
        over = self._over(begin)
        if not over:
            value.called.add(name)

    def _over(self, at: int) -> bool:
        """Tell whether a window stands behind a call, with or without FILTER and the like."""
        words = [token.word for token in self.tokens[at : at + 2]]
        if words in (["ignore", "nulls"], ["respect", "nulls"]):
            return self._over(at + 2)
        if words[:1] == ["over"]:
            return True
        skip = 1 if words[:1] == ["filter"] else 2 if words == ["within", "group"] else 0
        if not skip:
            return False
        depth = 0
        # Bounded by the length of what a user wrote.
        for end in range(at + skip, len(self.tokens)):
            token = self.tokens[end]
            depth += {"(": 1, ")": -1}.get(token.text if token.kind == "symbol" else "", 0)
            if depth == 0:
                return self._over(end + 1)
        return False

    def _pass_clause(self, value: _Expr, word: str) -> None:
        """Pass what stands behind a call: OVER, FILTER or WITHIN GROUP with their brackets."""
        self._at += 1
        if word == "over":
            if self._symbol() != "(":
                _refuse("OVER with a name")
            self._at += 1
            self._window(value)
        elif word == "filter":
            self._expect("(")
            if not self._take("where"):
                self._unexpected()
            self._run(value, "")
        else:
            if not self._take("group"):
                self._unexpected()
            self._expect("(")
            if not self._take("order", "by"):
                self._unexpected()
            self._run(value, "")
        self._expect(")")

    def _window(self, value: _Expr) -> None:
        window = _Window(self._at, None)
        queries = len(value.queries)
        if self._take("partition", "by"):
            window.partition = self._at
            window.partitions = self._several(value)
        if self._take("order", "by"):
            window.ordered = True
            self._several(value)
        if self._word() in ("rows", "range"):
            self._at += 1
            # Bounded by the length of what a user wrote: numbers, intervals and the words of a frame.
            while self._symbol() != ")":
                token = self._token()
                known = self._word() in _words("and between current following interval preceding row unbounded")
                unit = token.kind == "word" and re.fullmatch(r"(?:second|minute|hour|day|month|year)s?|to", token.word)
                if not known and not unit and token.kind not in ("number", "string"):
                    _refuse("a frame of a window with more than numbers")
                self._at += 1
        if len(value.queries) > queries:
            _refuse("a query in a window")
        value.windows.append(window)

    def _several(self, value: _Expr) -> int:
        """Pass values with commas between them inside of a window, and return how many they are."""
        count = 0
        # Bounded by the values that a user wrote.
        while True:
            one = self._value()
            count += 1
            value.marks += one.marks
            value.windows += one.windows
            value.queries += one.queries
            value.called |= one.called
            if self._symbol() != ",":
                return count
            self._at += 1

    def _bracket(self, value: _Expr, inside: str) -> None:
        """Pass a bracket with all that is in it."""
        starts = self._word(1)
        if starts in _DOUBTFUL_STARTS:
            _refuse(f"{starts.upper()} in brackets")
        if starts not in _QUERY_STARTS:
            self._expect("(")
            if self._symbol() == ")" and not inside:
                _refuse("empty brackets")
            self._run(value, inside)
            self._expect(")")
            return
        before = self._word(-1)
        if inside or before in ("any", "all", "some"):
            _refuse("a query as the argument of a function")
        back = -1
        # Bounded by the brackets that a user wrote.
        while self._symbol(back) == "(":
            back -= 1
        if back < -1 and self._word(back) in ("in", "exists", "any", "all", "some"):
            _refuse("a query in two brackets")
        self._expect("(")
        query = self._query()
        self._expect(")")
        block = query.operands[0]
        if query.withs:
            _refuse("WITH in a subquery")
        if query.sets:
            _refuse(f"{query.sets[0].upper()} in a subquery")
        if not isinstance(block, _Block):
            _refuse("a subquery in two brackets")
        value.queries.append((before if before in ("in", "exists") else "scalar", block))


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
    """What a table or a query has of times.

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
    """What is known of FROM while its items are folded.

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
            _refuse("DELETE")
        if OUTPUT in statement.reads:
            _refuse("a statement that reads the output")
        if _PREFIX[:-1] in statement.query.lower():
            _refuse(f"a name with {_PREFIX[:-1]}")
        self._tokens = _scanned(statement.query, "extend a statement", statement.text)
        query = _Reader(self._tokens).whole()
        _check(query, statement.query, self._tokens)
        # Bounded by the tables that a user wrote: each round spreads one more.
        while True:
            try:
                time = self._extend(query)
            except _SpreadError as error:
                self._spread.add(error.place)
            else:
                return self._result(time)

    def _extend(self, query: _Query) -> _Column:
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
            _refuse("a query that reads no table outside of subqueries")
        if self._scalar and self._sets:
            # Spark 4.2 cannot plan some of these: "key not found" in `UnionBase.rewriteConstraints`. It was seen with
            # INTERSECT ALL and EXCEPT ALL, of which Spark makes a UNION.
            _refuse(f"a scalar subquery in SELECT beside {self._sets[0].upper()}")
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

    def _condition(self, value: _Expr | None, end: int, word: str, conditions: Sequence[_Text], order: int) -> None:
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
            named: _Text = () if place.named is None else (f" AS {_quoted(place.named)}",)
            events.append((place.start, 9, 0, place.end, named, count))
        # Bounded by what was inserted.
        for start, _, _, end, text, where in sorted(events, key=lambda event: event[:3]):
            if start > at:
                parts.append(ManyPart(query[at:start], query[at:start]))
            bound = "".join(each if isinstance(each, str) else _quoted(each.name) for each in text)
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

    def _query(self, query: _Query) -> _Relation:
        # Bounded by the queries that a user wrote.
        for each in query.withs:
            name = each.name.lower()
            if name in self._withs:
                _refuse(f"WITH that names {shown(each.name)} twice")
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
                _refuse(f"{query.sets[0].upper()} with a query that is the same at all times")
        # The first one names the columns.
        return found[0]

    def _operand(self, operand: _Block | _Query | list[_Expr]) -> _Relation:
        if isinstance(operand, _Query):
            return self._query(operand)
        return self._block(operand) if isinstance(operand, _Block) else _Relation()

    def _name_columns(self, names_end: int, relation: _Relation) -> None:
        """Add the time columns to names of columns in brackets."""
        # Bounded by two.
        for column in relation.columns:
            self._behind(names_end, (", ", column))

    def _block(self, block: _Block) -> _Relation:
        """Extend a block whose rows others read."""
        source = self._from(block)
        if not source.time and source.pending:
            one = len(block.parts) == 1 and len(block.parts[0]) == 1
            if not one or not block.plain:
                source.pending[0].spread()
        elif source.time and block.group is None and block.aggregates:
            _refuse(_aggregate(block.aggregates))
        elif source.time and block.group is None and block.having is not None:
            _refuse("HAVING without GROUP BY")
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

    def _subquery(self, kind: str, block: _Block, outer: _Text) -> None:
        """Extend a block whose rows are compared with a row outside of it."""
        source = self._from(block)
        timed = bool(source.time or source.pending)
        if timed and not outer:
            _refuse("a subquery in a query without a time")
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

    def _check_subquery(self, kind: str, block: _Block) -> None:
        """Refuse aggregates of all rows, where it is not known what becomes of them without any row."""
        aggregates = block.aggregates
        if not aggregates and block.having is None:
            return
        if kind != "scalar":
            _refuse(f"{kind.upper()} of an aggregate without GROUP BY")
        if block.having is not None or block.distinct:
            _refuse("an aggregate without GROUP BY in a subquery with HAVING or DISTINCT")
        other = sorted(aggregates - _SCALAR_AGGREGATES)
        if other:
            _refuse(f"{shown(other[0])} of all rows of a subquery")

    def _where(self, block: _Block, conditions: Sequence[_Text]) -> None:
        self._condition(block.where, block.from_end, "WHERE", conditions, 2)

    def _give(self, block: _Block, texts: Sequence[_Text]) -> None:
        """Give the time with the rows of a block."""
        # Bounded by two.
        for text in texts:
            self._behind(block.items[-1].end, (", ", *text), 3)
        self._group(block, texts[0][:-2])

    def _group(self, block: _Block, time: _Text) -> None:
        if block.group is not None and time:
            self._behind(block.group[-1].end, (", ", *time), 3)

    def _values(self, block: _Block, source: _From) -> None:
        """Extend the values of a block."""
        # Bounded by the values that a user wrote.
        for value in block.values:
            self._value(value, source.time)
        for value in block.items:
            self._scalar |= any(kind == "scalar" for kind, _ in value.queries)
            if value.star:
                self._star(value, source)

    def _star(self, value: _Expr, source: _From) -> None:
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

    def _value(self, value: _Expr, time: _Text) -> None:
        """Extend a value that is seen at a time."""
        if value.marks and not time:
            _refuse(":time in a query without a time")
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

    def _from(self, block: _Block) -> _From:
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

    def _join(self, source: _From, join: _Join, *, later: bool) -> None:
        """Fold one more item into FROM.

        Parameters
        ----------
        source : _From
            Changed.
        join : _Join
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
                    _refuse("a window in ON")
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
            _refuse("an outer join that keeps all rows of a table without times")
        return (), [], False

    def _fold_full(self, source: _From, pending: list[_Relation], right: _Relation) -> tuple[_Text, list[_Text], bool]:
        if right.interval:
            right.spread()
        if not right.columns and not source.time and not pending:
            return (), [], False
        if not source.time:
            self._no_time(pending)
        if not right.timed:
            _refuse("an outer join that keeps all rows of a table without times")
        time: _Text = ("coalesce(", *source.time, ", ", *right.columns, ")")
        return time, [_equal(source.time, right.columns)], True

    def _no_time(self, pending: list[_Relation]) -> NoReturn:
        if pending:
            pending[0].spread()
        _refuse("an outer join that keeps all rows of a table without times")

    def _by_name(
        self,
        source: _From,
        join: _Join,
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
            _refuse("USING or NATURAL behind a FULL JOIN")
        right.columns[0].same = column
        if join.using is not None:
            self._behind(join.using[-1] + 1, (", ", column))
        return (column,)

    def _item(self, item: _Item) -> _Relation:
        relation = self._source(item)
        if item.names_end is not None:
            self._name_columns(item.names_end, relation)
        return relation

    def _source(self, item: _Item) -> _Relation:
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
            _refuse(f"{shown(item.name)}, which WITH names further out or later,")
        relation, used = self._withs[name]
        self._withs[name] = (relation, True)
        if not relation.columns or not used:
            return relation
        return self._renamed(item, relation)

    def _renamed(self, item: _Item, relation: _Relation) -> _Relation:
        """Give the time columns of a named query other names, where it is read once more."""
        columns = self._new(len(relation.columns))
        left_out: list[str | _Column] = []
        added: list[str | _Column] = []
        # Bounded by two.
        for old, new in zip(relation.columns, columns, strict=True):
            left_out += [", ", old] if left_out else [old]
            added += [", ", old, " AS ", new]
        self._before(item.first, ("(SELECT * EXCEPT (", *left_out, ")", *added, " FROM "))
        name = "" if item.alias is not None else f" AS {_quoted(item.name or '')}"
        self._behind(item.first + 1, (f"){name}",))
        return _Relation(columns, relation.place)


# What sqlglot reads -----------------------------------------------------------------------------------------

_QUERY_ARGS: Final = frozenset({"with_", "order"})
_SELECT_ARGS: Final = frozenset({"expressions", "from_", "joins", "where", "group", "having", "distinct", "hint"})
_SET_ARGS: Final = frozenset({"this", "expression", "distinct"})
# A tree of plain values: what both must find.
_Skeleton: TypeAlias = tuple[object, ...]


def _check(query: _Query, text: str, tokens: list[_Token]) -> None:
    """Refuse a query in which sqlglot sees other parts than the reader does (invariant 5)."""
    import sqlglot  # here, not above: most processes read no body

    tree = sqlglot.parse_one(_legible(text, tokens), dialect="spark")
    if _skeleton(query) != _tree_skeleton(tree):
        _refuse("a text that can be read in two ways")


def _skeleton(query: _Query) -> _Skeleton:
    """Return what the reader has found in a query."""
    withs = tuple((each.name.lower(), _skeleton(each.query)) for each in query.withs)
    operands = tuple(_operand_skeleton(each) for each in query.operands)
    if not withs and query.order is None and len(operands) == 1:
        return operands[0]
    return ("query", withs, operands, tuple(query.sets), query.order is not None)


def _operand_skeleton(operand: _Block | _Query | list[_Expr]) -> _Skeleton:
    if isinstance(operand, _Query):
        return _skeleton(operand)
    if isinstance(operand, list):
        return ("values", len(operand))
    block = operand
    joins = [join for part in block.parts for join in part]
    items = tuple(
        _join_skeleton(join, comma=join is part[0] and part is not block.parts[0])
        for part in block.parts
        for join in part
    )
    values = [*block.values, *(join.on for join in joins if join.on is not None)]
    queries = sorted((_operand_skeleton(each) for value in values for _, each in value.queries), key=repr)
    windows = Counter((each.partitions, each.ordered) for value in values for each in value.windows)
    return (
        "block",
        block.distinct,
        len(block.items),
        tuple(at for at, item in enumerate(block.items) if item.star),
        items,
        block.where is not None,
        None if block.group is None else len(block.group),
        block.having is not None,
        None if block.order is None else len(block.order),
        tuple(queries),
        tuple(sorted(windows.items())),
    )


def _join_skeleton(join: _Join, *, comma: bool) -> _Skeleton:
    # To sqlglot a comma is a cross join, and a join without a condition has ON TRUE.
    said = "cross" if comma else " ".join(join.said)
    on = join.on is not None or not (join.by_name or join.kind == "first" or said == "cross")
    using = None if join.using is None else len(join.using)
    name = (join.item.alias or join.item.name or "").lower()
    return said, join.natural, using, on, name, _item_skeleton(join.item)


def _item_skeleton(item: _Item) -> _Skeleton:
    if item.query is not None:
        return _skeleton(item.query)
    return ("table",) if item.values is None else ("values", len(item.values))


def _tree_skeleton(tree: exp.Expr) -> _Skeleton:
    """Return the same of sqlglot's tree; what it does not know is compared with nothing."""
    from sqlglot import exp

    if isinstance(tree, exp.Subquery):
        more = {name for name, value in tree.args.items() if value} - {"this", "with_", "alias"}
        inner = _tree_skeleton(tree.this)
        return ("unknown", *sorted(more)) if more else _with_skeleton(tree, (inner,), (), ordered=False)
    if isinstance(tree, exp.Values):
        return ("values", len(tree.expressions))
    if isinstance(tree, exp.SetOperation):
        more = {name for name, value in tree.args.items() if value} - _SET_ARGS - _QUERY_ARGS
        if more:
            return ("unknown", *sorted(more))
        operands, sets = _flat(tree)
        return _with_skeleton(
            tree, tuple(map(_tree_skeleton, operands)), tuple(sets), ordered=bool(tree.args.get("order"))
        )
    if not isinstance(tree, exp.Select):
        return ("unknown", type(tree).__name__)
    more = {name for name, value in tree.args.items() if value} - _SELECT_ARGS - _QUERY_ARGS
    if more:
        return ("unknown", *sorted(more))
    return _with_skeleton(tree, (_select_skeleton(tree),), (), ordered=False)


def _with_skeleton(
    tree: exp.Expr, operands: tuple[_Skeleton, ...], sets: tuple[str, ...], *, ordered: bool
) -> _Skeleton:
    around = tree.args.get("with_")
    if around is None and len(operands) == 1:
        return operands[0]
    withs = (
        () if around is None else tuple((each.alias.lower(), _tree_skeleton(each.this)) for each in around.expressions)
    )
    return ("query", withs, operands, sets, ordered)


def _flat(tree: exp.SetOperation) -> tuple[list[exp.Expr], list[str]]:
    """Return operands and words of UNION and the like, in the order of the text."""
    from sqlglot import exp

    operands: list[exp.Expr] = []
    sets: list[str] = []
    # Bounded by the queries that a user wrote; both sides may be set operations, which bind differently.
    for at, side in enumerate((tree.this, tree.expression)):
        if at:
            sets.append(tree.key + ("" if tree.args.get("distinct") else " all"))
        if isinstance(side, exp.SetOperation) and not side.args.get("with_"):
            some, words = _flat(side)
            operands += some
            sets += words
        else:
            operands.append(side)
    return operands, sets


def _select_skeleton(tree: exp.Select) -> _Skeleton:
    from sqlglot import exp

    args = tree.args
    first = args.get("from_")
    items: list[_Skeleton] = [] if first is None else [("", False, None, False, *_table_skeleton(first.this))]
    values: list[exp.Expr] = [*tree.expressions]
    # Bounded by the tables that a user wrote.
    for join in args.get("joins") or []:
        said = " ".join(word.lower() for word in (join.side, join.kind) if word)
        using = join.args.get("using")
        on = join.args.get("on")
        items.append(
            (
                said,
                join.method == "NATURAL",
                len(using) if using else None,
                on is not None,
                *_table_skeleton(join.this),
            )
        )
        values += [on] if on is not None else []
    values += [args[name].this for name in ("where", "having") if args.get(name)]
    group, order = args.get("group"), args.get("order")
    if group is not None and {name for name, value in group.args.items() if value} - {"expressions"}:
        return ("unknown", "group")
    values += group.expressions if group is not None else []
    values += order.expressions if order is not None else []
    queries: list[exp.Expr] = []
    windows: Counter[tuple[int, bool]] = Counter()
    # Bounded by the size of what a user wrote.
    for node in (each for value in values for each in _outside_queries(value)):
        if isinstance(node, exp.Query):
            queries.append(node)
        elif isinstance(node, exp.Window):
            windows[(len(node.args.get("partition_by") or []), node.args.get("order") is not None)] += 1
            if node.args.get("alias"):
                return ("unknown", "window")
    return (
        "block",
        args.get("distinct") is not None,
        len(tree.expressions),
        tuple(at for at, each in enumerate(tree.expressions) if each.is_star and not isinstance(each, exp.Count)),
        tuple(items),
        args.get("where") is not None,
        None if group is None else len(group.expressions),
        args.get("having") is not None,
        None if order is None else len(order.expressions),
        tuple(sorted(map(_tree_skeleton, queries), key=repr)),
        tuple(sorted(windows.items())),
    )


def _table_skeleton(table: exp.Expr) -> tuple[str, _Skeleton]:
    from sqlglot import exp

    alias = table.alias_or_name.lower()
    if isinstance(table, exp.Table):
        more = {name for name, value in table.args.items() if value} - {"this", "alias"}
        return alias, ("unknown", *sorted(more)) if more else ("table",)
    return alias, _tree_skeleton(table)


def _outside_queries(value: exp.Expr) -> Iterator[exp.Expr]:
    """Yield all parts of a value, of queries in it only the queries themselves."""
    from sqlglot import exp

    yield from value.walk(prune=lambda node: isinstance(node, exp.Query))
