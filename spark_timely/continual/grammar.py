"""The grammar of the subset of Spark's SQL that a task's body may use when it runs at many times in one query.

`spark_timely.continual.many_times` reads bodies by it before it rewrites them; `skeleton` checks what was read. A body
with other SQL runs all the same, one time per query: `spark_timely.continual.body` takes any SQL of Spark that is safe.

Invariants
----------
1. A white list: what is not in the grammar is refused by its name, whether it would do harm or not. So is a function
   where it matters that it looks at one row only, and this is not known of it.
2. Everything has its place in the text: numbers of tokens, of which ends are exclusive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, TypeAlias

from spark_timely.errors import shown
from spark_timely.scanner import KEYWORDS, TAKES_FROM, Token, in_types, markers, words_of

__all__ = [
    "ROW_FUNCTIONS", "SCALAR_AGGREGATES", "Block", "Expr", "Item", "Join", "NamedQuery", "NotBatchedError", "Query",
    "Reader", "Window", "not_batched",
]  # fmt: skip

# Functions of one row: they give the same wherever the row stands, and one value for each row. What is not here may
# be an aggregate. Left out on purpose: what makes rows (explode), time windows, and what is there to fail.
ROW_FUNCTIONS: Final = words_of("""
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
SCALAR_AGGREGATES: Final = words_of("""
    any_value approx_count_distinct avg bool_and bool_or collect_list collect_set count count_if every first last max
    max_by mean median min min_by some stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance
    """)

# A part of a query ends before these.
_ENDS: Final = words_of("""
    anti by cluster cross cube delete distribute except exclude fetch following from full group grouping having inner
    insert intersect into join lateral left limit match_recognize minus natural offset on order outer over partition
    pivot preceding qualify range recursive right rollup rows select semi sets sort table tablesample union unpivot
    using values view where window with within
    """)
# These join or close parts of an expression, and have no meaning for a search for tables and functions.
_INSIDE: Final = words_of("""
    and asc between both case desc div else end escape false for ilike in interval is leading like not null nulls or
    regexp rlike then trailing true when
    """)
_QUANTIFIED: Final = words_of("ilike like rlike regexp")
_QUERY_STARTS: Final = words_of("select with")
# These begin a query elsewhere too, but where a value may stand they may be names.
_DOUBTFUL_STARTS: Final = words_of("from table values")

JoinKind: TypeAlias = Literal["first", "inner", "left", "right", "full", "semi", "anti"]
_JOINS: Final[dict[str, JoinKind]] = {
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
_SETS: Final = words_of("except intersect minus union")


class NotBatchedError(Exception):
    """A part of a body that is not extended; ends the reading, and never reaches the caller."""


def not_batched(what: str) -> NoReturn:
    """End the reading: this part is not extended."""
    raise NotBatchedError(what)


@dataclass(slots=True)
class Window:
    """The brackets behind OVER."""

    begin: int  # the first token behind the bracket
    partition: int | None  # the first token behind PARTITION BY
    partitions: int = 0
    ordered: bool = False


@dataclass(slots=True)
class Expr:
    """A value, or a list of values that belong together."""

    first: int
    end: int = 0
    marks: list[int] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    queries: list[tuple[str, Block]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)  # and not known to be of one row
    star: bool = False

    @property
    def needs_time(self) -> bool:
        """Whether anything in it depends on the time, or on other rows."""
        return bool(self.marks or self.windows or self.queries or self.called)


@dataclass(slots=True)
class Item:
    """A table, or what stands for one."""

    first: int
    end: int
    name: str | None = None  # of a table or of a query of WITH
    query: Query | None = None  # in brackets
    values: list[Expr] | None = None
    alias: str | None = None
    names_end: int | None = None  # behind the last of the column names in brackets behind the alias


@dataclass(slots=True)
class Join:
    """An item of FROM, and how it is joined to those before it."""

    kind: JoinKind
    item: Item
    said: tuple[str, ...] = ()  # words before JOIN
    natural: bool = False
    on: Expr | None = None
    using: list[int] | None = None  # the names

    @property
    def by_name(self) -> bool:
        """Whether it joins by the names of columns."""
        return self.natural or self.using is not None


@dataclass(slots=True)
class Block:
    """SELECT … FROM … WHERE … GROUP BY … HAVING …."""

    distinct: bool = False
    items: list[Expr] = field(default_factory=list)
    parts: list[list[Join]] = field(default_factory=list)  # with commas between them
    from_end: int = 0
    where: Expr | None = None
    group: list[Expr] | None = None
    having: Expr | None = None
    order: list[Expr] | None = None

    @property
    def judged(self) -> list[Expr]:
        """Values that may aggregate."""
        return [*self.items, *([self.having] if self.having else []), *(self.order or [])]

    @property
    def values(self) -> list[Expr]:
        """All values outside of FROM."""
        return [*self.judged, *([self.where] if self.where else []), *(self.group or [])]

    @property
    def aggregates(self) -> set[str]:
        """Functions that may aggregate, by name."""
        return {name for each in self.judged for name in each.called}

    @property
    def plain(self) -> bool:
        """Whether it takes and gives row by row."""
        whole = self.distinct or self.group is not None or self.having is not None or self.order is not None
        return not whole and not any(each.needs_time for each in self.values)


@dataclass(slots=True)
class NamedQuery:
    """A query that WITH names."""

    name: str
    names_end: int | None
    query: Query


@dataclass(slots=True)
class Query:
    """One block, or several with UNION and the like between them."""

    withs: list[NamedQuery] = field(default_factory=list)
    operands: list[Block | Query | list[Expr]] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    order: list[Expr] | None = None  # behind several operands


class Reader:
    """Reads the tokens of a query by the grammar that is extended; refuses what is not in it."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self._types = in_types(tokens)
        begins = {token.start: at for at, token in enumerate(tokens)}
        self._marks = {begins[start] for start, _ in markers(tokens)}
        self._at = 0
        self._nothing = Token("symbol", "", 0, 0)

    def whole(self) -> Query:
        """Return what the tokens are."""
        query = self._query(top=True)
        if self._at < len(self.tokens):
            self._unexpected()
        return query

    # Tokens

    def _token(self, by: int = 0) -> Token:
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
        not_batched(token.text.upper() if token.kind == "word" else f"{shown(token.text)} at this place")

    def _name(self) -> str | None:
        """Pass a name, if one is next."""
        token = self._token()
        if token.kind != "quoted" and (token.kind != "word" or token.word in KEYWORDS | _ENDS):
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

    def _query(self, *, top: bool = False) -> Query:
        query = Query()
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
                not_batched(f"a star with {said.upper()}")
            query.operands.append(self._operand())
        if self._word() == "order" and self._word(1) == "by":
            if not top:
                not_batched("ORDER BY inside a query")
            self._at += 2
            order = self._list()
            block = query.operands[0]
            if len(query.operands) == 1 and isinstance(block, Block):
                block.order = order
            elif any(each.needs_time for each in order):
                not_batched("ORDER BY with more than columns")
            else:
                query.order = order
        return query

    def _withs(self) -> list[NamedQuery]:
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
            found.append(NamedQuery(name, names_end, query))
            if self._symbol() != ",":
                return found
            self._at += 1

    def _operand(self) -> Block | Query | list[Expr]:
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

    def _values(self) -> list[Expr]:
        """Read the rows of VALUES."""
        rows: list[Expr] = []
        # Bounded by the rows that a user wrote.
        while not rows or (self._symbol() == "," and self._symbol(1) == "("):
            self._at += 1
            if self._symbol() != "(":
                not_batched("VALUES with rows that are not in brackets")
            rows.append(Expr(self._at))
            self._bracket(rows[-1], "")
        if any(each.needs_time for each in rows):
            not_batched("VALUES with more than plain values")
        return rows

    def _block(self) -> Block:
        block = Block()
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
                not_batched("GROUP BY ALL")
            block.group = self._list()
            if any(each.windows or each.queries or each.called for each in block.group):
                not_batched("GROUP BY with more than functions of one row")
        if self._take("having"):
            block.having = self._value()
        return block

    def _list(self, *, select: bool = False) -> list[Expr]:
        found = [self._value(select=select)]
        # Bounded by the values that a user wrote.
        while self._symbol() == ",":
            self._at += 1
            found.append(self._value(select=select))
        return found

    # FROM

    def _part(self) -> list[Join]:
        joins = [Join("first", self._item())]
        # Bounded by the tables that a user wrote.
        while (join := self._join()) is not None:
            joins.append(join)
        return joins

    def _join(self) -> Join | None:
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
            not_batched(f"{' '.join(said).upper()} JOIN")
        join = Join(kind, self._item(), tuple(said), natural)
        if self._take("on"):
            join.on = self._value()
        elif self._take("using"):
            join.using = self._names()
        if natural and (join.on or join.using):
            not_batched("NATURAL JOIN with ON or USING")
        return join

    def _item(self) -> Item:
        item = Item(self._at, self._at)
        if self._symbol() == "(":
            if self._symbol(1) != "(" and self._word(1) not in _QUERY_STARTS | {"values"}:
                not_batched("a join in brackets")
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
                not_batched("a table function")
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

    def _value(self, *, select: bool = False) -> Expr:
        found = Expr(self._at)
        self._run(found, "", select=select, top=True)
        found.end = self._at
        if found.end == found.first:
            self._unexpected()
        return found

    def _run(self, value: Expr, inside: str, *, select: bool = False, top: bool = False) -> None:
        """Pass tokens up to what ends a value, or up to the bracket that closes the one before.

        Parameters
        ----------
        value : Expr
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
            elif word == "from" and not top and (inside in TAKES_FROM):
                self._at += 1
            elif word in ("left", "right", "filter", "range") and self._called():
                self._pass_call(value, word)
            elif word in _ENDS:
                if top:
                    return
                self._unexpected()
            else:
                self._pass_word(value, word, begin, select=select, top=top)

    def _pass_name(self, value: Expr, name: str) -> None:
        if self._called():
            self._pass_call(value, name)
        else:
            self._at += 1

    def _called(self) -> bool:
        return self._token().names and self._symbol(1) == "("

    def _closed(self) -> bool:
        """Tell whether a call ends before the next token."""
        return self._symbol(-1) == ")" or (self._word(-1) == "nulls" and self._word(-2) in ("ignore", "respect"))

    def _pass_word(self, value: Expr, word: str, begin: int, *, select: bool, top: bool) -> None:
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
        elif word in KEYWORDS and not self._called():
            self._unexpected()
        else:
            self._pass_name(value, word)

    def _pass_symbol(self, value: Expr, symbol: str, inside: str, *, select: bool, top: bool) -> None:
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
                not_batched("a star in a function")
            self._at += 1
        else:
            self._at += 1

    def _star(self, value: Expr) -> None:
        """Refuse a star that is more than one, or has names before or behind it."""
        before = self.tokens[value.first : self._at]
        shape = all(each.names if at % 2 == 0 else each.text == "." for at, each in enumerate(before))
        after = self._symbol(1)
        ends = after in (",", ")", "") and (after or not self._token(1).text)
        if self._word(1) in ("replace", "exclude"):
            not_batched(f"a star with {self._word(1).upper()}")
        if not shape or len(before) % 2 or not (ends or self._word(1) in _ENDS):
            not_batched("a star in a value")
        value.star = True

    def _pass_call(self, value: Expr, name: str) -> None:
        """Pass a function, and note it if it may be an aggregate."""
        self._at += 1
        self._bracket(value, name)
        if name in ROW_FUNCTIONS:
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

    def _pass_clause(self, value: Expr, word: str) -> None:
        """Pass what stands behind a call: OVER, FILTER or WITHIN GROUP with their brackets."""
        self._at += 1
        if word == "over":
            if self._symbol() != "(":
                not_batched("OVER with a name")
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

    def _window(self, value: Expr) -> None:
        window = Window(self._at, None)
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
                known = self._word() in words_of("and between current following interval preceding row unbounded")
                unit = token.kind == "word" and re.fullmatch(r"(?:second|minute|hour|day|month|year)s?|to", token.word)
                if not known and not unit and token.kind not in ("number", "string"):
                    not_batched("a frame of a window with more than numbers")
                self._at += 1
        if len(value.queries) > queries:
            not_batched("a query in a window")
        value.windows.append(window)

    def _several(self, value: Expr) -> int:
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

    def _bracket(self, value: Expr, inside: str) -> None:
        """Pass a bracket with all that is in it."""
        starts = self._word(1)
        if starts in _DOUBTFUL_STARTS:
            not_batched(f"{starts.upper()} in brackets")
        if starts not in _QUERY_STARTS:
            self._expect("(")
            if self._symbol() == ")" and not inside:
                not_batched("empty brackets")
            self._run(value, inside)
            self._expect(")")
            return
        before = self._word(-1)
        if inside or before in ("any", "all", "some"):
            not_batched("a query as the argument of a function")
        back = -1
        # Bounded by the brackets that a user wrote.
        while self._symbol(back) == "(":
            back -= 1
        if back < -1 and self._word(back) in ("in", "exists", "any", "all", "some"):
            not_batched("a query in two brackets")
        self._expect("(")
        query = self._query()
        self._expect(")")
        block = query.operands[0]
        if query.withs:
            not_batched("WITH in a subquery")
        if query.sets:
            not_batched(f"{query.sets[0].upper()} in a subquery")
        if not isinstance(block, Block):
            not_batched("a subquery in two brackets")
        value.queries.append((before if before in ("in", "exists") else "scalar", block))
