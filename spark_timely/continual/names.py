"""Names of a query, looked up among the columns of its tables: refuses each that is not surely a column.

Used for the bodies of continual tasks (`spark_timely.continual.body`), once the columns of their tables are known.

Spark takes a name that is no column for a variable of the session, or for a function that is called without brackets
(``user``, ``current_date``). What such a query gives depends on the session, so it is refused here.

Invariants
----------
1. A name is taken where Spark is sure to find a column: in FROM of its own query, in FROM of the query right around it,
   or among the names that SELECT gave before. Where this module does not follow Spark's rules to their end, it knows
   fewer columns than Spark and refuses.
2. A function without brackets wins over a column of the query around, and over a name that SELECT gave: only columns of
   FROM win over it, and in HAVING and ORDER BY only what SELECT gives. There a variable wins over a column that is
   neither grouped by nor in an aggregate.
3. Every word of the text is a word of the grammar, or a name that was looked up: sqlglot makes texts of some names, as
   of the second one in ``trunc(day, unit)``.
4. Names are read from the text, at the places that sqlglot gives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.scanner import (
    BARE,
    KEYWORDS,
    UNITS,
    Token,
    in_types,
    neighbours,
    read_trees,
    scanned,
    span,
    words_of,
)

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["check_names"]

# Words of the grammar beside `KEYWORDS`, which are no names where they stand behind a value or a key word.
_SYNTAX: Final = words_of("allow asof collate current first ignore last missing name placing respect row start ties to")
# What may stand before a text in quotes: types, and the letters of other texts.
_PREFIXES: Final = words_of("date time timestamp timestamp_ltz timestamp_ntz x")
# A unit, or a field, comes first in the brackets of these.
_TAKE_UNITS: Final = words_of("date_add date_diff dateadd datediff extract timediff timestampadd timestampdiff")
_CONSTANTS: Final = words_of("false null true")
# Columns that functions give their tables, where it is sure.
_GIVEN: Final[Mapping[str, frozenset[str]]] = {
    "range": frozenset({"id"}), "posexplode": frozenset({"pos"}), "posexplode_outer": frozenset({"pos"}),
}  # fmt: skip
_GENERATORS: Final = words_of(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack variant_explode"
)

_Tables: TypeAlias = Mapping[str, frozenset[str]]
_Sources: TypeAlias = tuple[tuple[str, frozenset[str]], ...]


def check_names(query: str, columns: Mapping[str, Collection[str]], *, attempt: str, text: str | None = None) -> None:
    """Refuse a query with a name that is surely no column of its tables, or not surely one.

    Parameters
    ----------
    query : str
        As `spark_timely.continual.body` reads it, its tables unbound.
    columns : mapping of str to collection of str
        The columns of each table that it reads, found without regard to case.
    attempt : str
        For errors.
    text : str, optional
        What to show in errors; the query if not given.

    Raises
    ------
    SchemaMismatchError
        If a name is no column.

    Examples
    --------
    >>> check_names("SELECT k, sum(v) AS n FROM l GROUP BY k HAVING n > 1", {"l": ["k", "v"]}, attempt="ask")
    >>> check_names("SELECT k, sv FROM l", {"l": ["k", "v"]}, attempt="ask")
    Traceback (most recent call last):
    ...
    spark_timely.errors.SchemaMismatchError: ...found name 'sv', which is no column there, in statement 'SELECT k, ...
    """
    tokens = scanned(query, attempt, text)
    (tree,) = read_trees(query, tokens)
    tables = {alias.lower(): frozenset(name.lower() for name in names) for alias, names in columns.items()}
    names = _Names(query, tokens, attempt, query if text is None else text, tables)
    try:
        names.whole(tree)
    except RecursionError as error:
        msg = f"could not {attempt}: found too many brackets in statement {shown(names.text)}"
        raise InvalidUsageError(msg, hint="use fewer") from error


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that are known at a place of a query.

    Attributes
    ----------
    sources : tuple of (str, frozenset of str)
        Tables of FROM: how their columns are qualified, and the columns.
    outer : tuple of (str, frozenset of str)
        The same of the query around.
    given : frozenset of str
        What SELECT has given.
    own : frozenset of str
        Parameters of functions in the text, which win over all else.
    firm : frozenset of str or None
        Names that win over functions without brackets; None for the columns of `sources`.
    around : bool
        Whether queries in brackets see `sources`.
    aggregated : tuple of (str, frozenset of str)
        What aggregates see in place of `sources`, if anything.
    """

    sources: _Sources = ()
    outer: _Sources = ()
    given: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    firm: frozenset[str] | None = None
    around: bool = True
    aggregated: _Sources = ()

    def has(self, parts: Sequence[str]) -> bool:
        """Tell whether a name is surely a column."""
        if parts[0] in self.own:
            return True
        if len(parts) == 1 and parts[0] in BARE:
            return parts[0] in (_all(self.sources) if self.firm is None else self.firm)
        return parts[0] in self.given or _among(self.sources, parts) or _among(self.outer, parts)


def _all(sources: _Sources) -> frozenset[str]:
    return frozenset().union(*(names for _, names in sources))


def _among(sources: _Sources, parts: Sequence[str]) -> bool:
    """Tell whether a column is among some tables: qualified, or with its fields behind it."""
    qualified = len(parts) > 1 and any(name == parts[0] and parts[1] in names for name, names in sources)
    return qualified or parts[0] in _all(sources)


_NOTHING: Final = _Scope()


class _Names:
    """The names of one text."""

    def __init__(self, query: str, tokens: list[Token], attempt: str, text: str, tables: _Tables) -> None:
        self._query_text, self._tokens, self._attempt, self.text = query, tokens, attempt, text
        self._tables = tables
        self._by_start = {token.start: token for token in tokens}
        self._looked_at: set[int] = set()

    def whole(self, tree: exp.Expr) -> None:
        """Look up all names, and see that none was left out."""
        self._query(tree, (), {})
        self._check_words()

    def _refuse(self, written: str) -> NoReturn:
        known = list(dict.fromkeys(name for names in self._tables.values() for name in sorted(names)))
        msg = (
            f"could not {self._attempt}: found name {shown(written)}, which is no column there, in statement"
            f" {shown(self.text)}"
        )
        hint = f"use a column of its tables: {shown(known)}; put a value of the session into the text as a literal"
        if written.lower() in BARE:
            hint = f"write the name of its table before it, where it is a column; {hint}"
        raise SchemaMismatchError(msg, hint=hint)

    def _name(self, node: exp.Expr | None) -> str:
        """Return a name as the text has it, in lower case, as looked at; nothing if there is none."""
        if node is None:
            return ""
        start, end = span(node, self._query_text)
        token = self._by_start.get(start)
        if token is None or not token.names:
            self._refuse(self._query_text[start:end] or node.name)
        self._looked_at.add(start)
        return token.name.lower()

    def _names(self, nodes: Sequence[exp.Expr] | None) -> frozenset[str]:
        from sqlglot import exp

        return frozenset(self._name(each.this if isinstance(each, exp.Column) else each) for each in nodes or ())

    # Words ------------------------------------------------------------------------------------------

    def _check_words(self) -> None:
        """Refuse a text with a word that was not looked up, and is none of the grammar (invariant 3)."""
        types, hinted = in_types(self._tokens), False
        calls: list[str] = []
        # Bounded by the length of what a user wrote.
        for at, (before, token, after) in enumerate(neighbours(self._tokens)):
            hinted = token.text == "/*+" or (hinted and token.text != "*/")
            if token.text == "(":
                calls.append(before.word)
            elif token.text == ")" and calls:
                calls.pop()
            looked_at = not token.names or token.start in self._looked_at or hinted or at in types
            if looked_at or after.text in ("(", "=>") or before.text in (".", ":") or before.word == "collate":
                continue
            if not self._grammar(before, token, after, calls[-1] if calls else ""):
                self._refuse(token.name)

    def _grammar(self, before: Token, token: Token, after: Token, call: str) -> bool:
        """Tell whether a word that is no name for sqlglot is none for Spark either."""
        word = token.word
        if before.text == "(" and call in _TAKE_UNITS and (after.text == "," or after.word == "from"):
            return word in UNITS or call == "extract"
        if word in _CONSTANTS or (word in _PREFIXES and after.kind == "string"):
            return True
        alone = before.text in ("(", ",") and after.text in (")", ",")
        value = before.kind in ("quoted", "string", "number") or before.text in (")", "]") or before.names
        return not alone and (word in KEYWORDS or (value and word in _SYNTAX | UNITS))

    # Queries ----------------------------------------------------------------------------------------

    def _query(self, tree: exp.Expr, outer: _Sources, withs: _Tables) -> frozenset[str]:
        """Look up the names of a query, and return those of its columns."""
        from sqlglot import exp

        if around := tree.args.get("with_"):
            withs = self._withs(around, withs)
        if isinstance(tree, exp.Select):
            return self._select(tree, outer, withs)
        if isinstance(tree, exp.SetOperation):
            names = self._query(tree.this, outer, withs)
            self._query(tree.expression, outer, withs)
        elif isinstance(tree, exp.Values):
            names = self._values(tree, withs)
        elif isinstance(tree, exp.Subquery):
            names = _all(self._source(tree, (), outer, withs))
        else:
            self._refuse(tree.sql(dialect="spark"))
        self._tail(tree, _Scope((("", names),), firm=names, around=False), withs)
        return names

    def _withs(self, around: exp.Expr, withs: _Tables) -> _Tables:
        from sqlglot import exp

        known = dict(withs)
        # Bounded by the queries that a user wrote.
        for each in around.expressions:
            alias = each.args["alias"]
            name, columns = self._name(alias.this), self._names(alias.args.get("columns"))
            query = each.this
            if around.args.get("recursive") and isinstance(query, exp.SetOperation):
                # The query that it begins with names what it reads of itself.
                known[name] = columns or self._query(query.this, (), known)
            found = self._query(query, (), known)
            known[name] = columns or found
        return known

    def _values(self, tree: exp.Expr, withs: _Tables) -> frozenset[str]:
        self._value(tree.expressions, _NOTHING, withs)
        first = tree.expressions[0] if tree.expressions else None
        count = len(first.expressions) if first is not None and first.expressions else 1
        alias = tree.args.get("alias")
        given = self._names(alias.args.get("columns")) if alias else frozenset[str]()
        return given or frozenset(f"col{number}" for number in range(1, count + 1))

    def _tail(self, tree: exp.Expr, scope: _Scope, withs: _Tables) -> None:
        """Look up the names behind a query."""
        # Bounded by the parts of a query.
        for part in ("order", "sort", "cluster", "distribute"):
            self._value(tree.args.get(part), scope, withs)
        for part in ("limit", "offset"):
            self._value(tree.args.get(part), _NOTHING, withs)

    def _select(self, tree: exp.Select, outer: _Sources, withs: _Tables) -> frozenset[str]:
        from sqlglot import exp

        args = tree.args
        first = args.get("from_")
        sources: _Sources = () if first is None else self._source(first.this, (), outer, withs)
        sources = self._joined(tree, sources, outer, withs)
        scope = _Scope(sources, outer)
        self._value(args.get("where"), scope, withs)
        aliases, names = frozenset[str](), frozenset[str]()
        # Bounded by the values that a user wrote.
        for item in tree.expressions:
            called = any(self._text(each) in _GENERATORS for each in item.find_all(exp.Func))
            hidden = called or item.find(exp.Window, exp.UDTF) is not None
            self._value(item, scope if hidden else replace(scope, given=aliases), withs)
            names |= self._given(item, sources)
            if isinstance(item, exp.Alias):
                aliases |= {self._name(item.args["alias"])}
        # Bounded by the values that a user wrote.
        for name, value in (args["group"].args if args.get("group") else {}).items():
            for each in value if isinstance(value, list) else [value]:
                plain = name == "expressions" and isinstance(each, exp.Column)
                self._value(each, replace(scope, given=aliases) if plain else scope, withs)
        # Bounded by the windows that a user wrote.
        for window in args.get("windows") or ():
            self._name(window.this)
            self._value([value for name, value in window.args.items() if name != "this"], scope, withs)
        after = _Scope(sources, (), names, firm=names, around=False)
        whole = args.get("having") or any(item.find(exp.AggFunc) for item in tree.expressions)
        if args.get("group") or whole:
            after = replace(after, sources=self._grouped(tree, sources), aggregated=sources)
        self._value([args.get("having"), args.get("qualify")], after, withs)
        self._tail(tree, replace(after, sources=(), aggregated=()) if args.get("distinct") else after, withs)
        return names

    def _grouped(self, tree: exp.Expr, sources: _Sources) -> _Sources:
        """Return the columns that a query groups by, as they are in its tables."""
        from sqlglot import exp

        group = tree.args.get("group")
        plain = [each for each in (group.expressions if group else ()) if isinstance(each, exp.Column)]
        by = self._names(plain)
        return tuple((name, names & by) for name, names in sources)

    def _text(self, node: exp.Expr) -> str:
        """Return the name of a function as sqlglot knows it, in lower case."""
        from sqlglot import exp

        if isinstance(node, exp.Anonymous):
            return node.name.lower()
        return type(node).sql_name().lower() if isinstance(node, exp.Func) else ""

    def _given(self, item: exp.Expr, sources: _Sources) -> frozenset[str]:
        """Return the names of the columns that an item of SELECT gives, as far as others can name them."""
        from sqlglot import exp

        if isinstance(item, exp.Alias):
            return frozenset({self._name(item.args["alias"])})
        if isinstance(item, exp.Aliases):
            return self._names(item.expressions)
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            table = item.args.get("table")
            star = item if table is None else item.this
            name = None if table is None else self._name(table)
            some = tuple(source for source in sources if name in (None, source[0]))
            return _all(some) - self._names(star.args.get("except_"))
        if isinstance(item, exp.Cast) and isinstance(item.this, exp.Column):
            item = item.this
        named = item.this if isinstance(item, exp.Column) else item.expression if isinstance(item, exp.Dot) else None
        return frozenset({self._name(named)}) if isinstance(named, exp.Identifier) else frozenset()

    # FROM -------------------------------------------------------------------------------------------

    def _joined(self, tree: exp.Expr, sources: _Sources, outer: _Sources, withs: _Tables) -> _Sources:
        """Return the tables that a table is joined to, and itself."""
        # Bounded by the tables that a user wrote.
        for join in tree.args.get("joins") or ():
            right = self._source(join.this, sources, outer, withs)
            both = (*sources, *right)
            self._value(join.args.get("on"), _Scope(both, outer), withs)
            self._names(join.args.get("using"))
            if join.kind.upper() not in ("SEMI", "ANTI"):
                sources = both
        for each in tree.args.get("laterals") or ():
            if each.args.get("view"):
                self._value(each.this, _Scope(sources), withs)
                sources = (*sources, self._as(each, self._of_function(each.this)))
            else:
                sources = (*sources, *self._source(each, sources, outer, withs))
        return sources

    def _source(self, item: exp.Expr, before: _Sources, outer: _Sources, withs: _Tables) -> _Sources:
        """Return what an item of FROM has.

        Parameters
        ----------
        item : sqlglot expression
        before : tuple of (str, frozenset of str)
            Tables before it, which LATERAL sees.
        outer : tuple of (str, frozenset of str)
            Of the query around.
        withs : mapping of str to frozenset of str
        """
        from sqlglot import exp

        if isinstance(item, exp.Table) and isinstance(item.this, exp.Func):
            self._value(item.this, _NOTHING, withs)
            found: _Sources = (self._as(item, self._of_function(item.this)),)
        elif isinstance(item, exp.Table):
            name = self._name(item.this)
            if name not in withs and name not in self._tables:
                self._refuse(name)
            found = (self._as(item, withs[name] if name in withs else self._tables[name], name),)
        elif isinstance(item, exp.Lateral):
            inner = item.this
            if isinstance(inner, exp.Subquery):
                names = self._query(inner.this, before, withs)
            else:
                self._value(inner, _Scope(outer=before), withs)
                names = self._of_function(inner)
            found = (self._as(item, names),)
        elif isinstance(item, exp.Subquery):
            found = self._bracket(item, outer, withs)
        elif isinstance(item, exp.Query | exp.Values):
            found = (self._as(item, self._query(item, outer, withs)),)
        else:
            self._refuse(item.sql(dialect="spark"))
        for pivot in item.args.get("pivots") or ():
            found = self._pivoted(pivot, found, withs)
        return self._joined(item, found, outer, withs)

    def _bracket(self, item: exp.Expr, outer: _Sources, withs: _Tables) -> _Sources:
        """Return what brackets in FROM have: a query, or tables that keep their names if the brackets have none."""
        from sqlglot import exp

        inner = item.this
        if isinstance(inner, exp.Query) and not isinstance(inner, exp.Subquery):
            return (self._as(item, self._query(inner, outer, withs)),)
        found = self._source(inner, (), outer, withs)
        return (self._as(item, _all(found)),) if item.args.get("alias") else found

    def _as(self, item: exp.Expr, names: frozenset[str], own: str = "") -> tuple[str, frozenset[str]]:
        """Return a table under the name, and with the names of columns, that it is given."""
        alias = item.args.get("alias")
        if alias is None:
            return own, names
        return self._name(alias.this) or own, self._names(alias.args.get("columns")) or names

    def _of_function(self, function: exp.Expr) -> frozenset[str]:
        return _GIVEN.get(self._text(function), frozenset())

    def _pivoted(self, pivot: exp.Expr, sources: _Sources, withs: _Tables) -> _Sources:
        """Return what PIVOT or UNPIVOT makes of tables: columns that it does not mention, and those that it names."""
        from sqlglot import exp

        scope, mentioned, made = _Scope(sources), set[str](), set[str]()
        turned = bool(pivot.args.get("unpivot"))
        # Bounded by what a user wrote.
        for node in pivot.walk():
            if isinstance(node, exp.Column):
                self._value(node, scope, withs)
                mentioned.add(self._name(node.this))
            elif isinstance(node, exp.PivotAlias):
                alias = self._name(node.args["alias"])
                made |= set() if turned else {alias}
        if turned:
            made |= {self._name(each) for each in pivot.expressions if isinstance(each, exp.Identifier)}
            made |= {self._name(each.this) for each in pivot.args["fields"] if isinstance(each.this, exp.Identifier)}
        else:
            self._value(pivot.expressions, scope, withs)
            values = [each for field in pivot.args["fields"] for each in field.expressions]
            made |= {each.name.lower() for each in values if isinstance(each, exp.Literal)}
            made = made if len(pivot.expressions) == 1 else set()
        return (self._as(pivot, (_all(sources) - mentioned) | made),)

    # Values -----------------------------------------------------------------------------------------

    def _value(self, node: object, scope: _Scope, withs: _Tables) -> None:
        """Look up the names of a value, or of several."""
        from sqlglot import exp

        if isinstance(node, list):
            for each in node:
                self._value(each, scope, withs)
        elif isinstance(node, exp.Column):
            self._column(node, scope)
        elif isinstance(node, exp.AggFunc) and scope.aggregated:
            inside = replace(scope, sources=scope.aggregated, aggregated=())
            self._value(list(node.iter_expressions()), inside, withs)
        elif isinstance(node, exp.Query | exp.Values):
            self._query(node, scope.sources if scope.around else (), withs)
        elif isinstance(node, exp.Lambda):
            own = self._names(node.expressions)
            self._value(node.this, replace(scope, own=scope.own | own), withs)
        elif isinstance(node, exp.Star):
            self._names(node.args.get("except_"))
        elif isinstance(node, exp.Identifier):
            self._identifier(node, scope)
        elif isinstance(node, exp.Expr) and not isinstance(node, exp.DataType):
            for each in node.iter_expressions():
                self._value(each, scope, withs)

    def _column(self, node: exp.Column, scope: _Scope) -> None:
        from sqlglot import exp

        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        names = [self._name(part) for part in parts]
        if isinstance(node.this, exp.Star):
            self._names(node.this.args.get("except_"))
            if any(name == names[0] for name, _ in scope.sources):
                return
        if not scope.has(names):
            start, end = span(parts[0], self._query_text)[0], span(parts[-1], self._query_text)[1]
            self._refuse(self._query_text[start:end].strip("`"))

    def _identifier(self, node: exp.Identifier, scope: _Scope) -> None:
        """Pass a name that is none of a column: what a value is called, a field, a window, a parameter."""
        from sqlglot import exp

        place = (type(node.parent), node.arg_key)
        if place == (exp.PropertyEQ, "this") and span(node, self._query_text)[0] not in self._by_start:
            return  # of named_struct: a text
        name = self._name(node)
        labels = (
            (exp.Alias, "alias"), (exp.Aliases, "expressions"), (exp.PivotAlias, "alias"), (exp.PropertyEQ, "this"),
            (exp.Dot, "expression"), (exp.Window, "alias"),
        )  # fmt: skip
        if place not in labels and name not in scope.own:
            self._refuse(name)
