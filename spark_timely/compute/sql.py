"""The translator from a SQL query over imports to a plan of operators; refuses by name what has no operator.

`spark_timely.compute.drive.description` calls it where a dataflow is given as SQL. (Statements with ``AS OF`` are read
in `spark_timely.answers.statements`, the bodies of continual tasks in `spark_timely.continual.body`.)

A query says what a relation is. Its plan keeps that relation, time by time: what the operators have given up to a time
is what Spark would answer over what the imports hold at that time. A collection stands for its contents, and a stream
log for all its messages so far. ::

    SELECT a, b AS c FROM t WHERE …                                filter, select
    SELECT k, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY k         aggregate over history
    SELECT DISTINCT a, b FROM t                                    distinct
    SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY at DESC) = 1      latest; <= n: top
    SELECT * EXCEPT (rn) FROM (SELECT *, row_number() OVER (…) AS rn FROM t) WHERE rn = 1
    SELECT * FROM t ORDER BY x DESC LIMIT 10                       top, of all rows
    … UNION ALL …                                                  concat
    SELECT * FROM a ASOF [LEFT] JOIN b USING (k)                   as-of join

``ASOF JOIN`` is not Spark's: it pairs each event of the left side with all rows that the right side holds at the time
of the event in the log, and nothing that comes later changes the pairs.

Invariants
----------
1. Never guess: SQL that is not known to mean the same as the plan is refused. So are all parts of a query that are not
   looked at here, whatever sqlglot makes of them.
2. Names are those that Spark would find: without regard to case, and refused where two columns differ in nothing else.
   What comes out is called as it is written.
3. Where SQL leaves open which rows are taken, of two that are equal in an order, the plan takes the greater one by all
   other columns: one of SQL's answers, and the same whenever it is computed.
4. A sum that does not fit stops the dataflow, as with ``spark.sql.ansi.enabled``; sums and averages of floats are
   exact, and rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn, TypeAlias

import pyarrow as pa
from sqlglot import exp

from spark_timely.compute.plan import Imported, Node, Plan
from spark_timely.dataflow.aggregates import Aggregation
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Distinct, Latest, Top
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.operators.rows import Concat, Filter, Select
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.predicate import is_condition
from spark_timely.scanner import Token, UnreadError, read_trees, refused_sql, scanned, statements_of

__all__ = ["plan_of_sql"]

_ATTEMPT: Final = "plan a dataflow"
_WRITE: Final = (
    "select columns of an import, WHERE, GROUP BY with COUNT, SUM, AVG, MIN and MAX, DISTINCT, row_number() = 1 or "
    "<= n, UNION ALL, and ASOF JOIN … USING"
)
_CONDITIONS: Final = "use comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE, +, -, *, columns and literals"
_RANK: Final = "keep the first rows of each key: row_number() OVER (PARTITION BY k ORDER BY at DESC) = 1, or <= n"
_COMPUTED: Final = "select columns and rename them; compute others before they are written to the log"

# Clauses of a block that are looked at, and what others are called.
_LOOKED_AT: Final = frozenset(
    {"expressions", "from_", "joins", "where", "group", "qualify", "distinct", "order", "limit", "with_"}
)
_CLAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "having": ("HAVING", "use a query in brackets: SELECT * FROM (SELECT … GROUP BY …) WHERE …"),
    "windows": ("WINDOW", "write the window behind OVER"),
    "sort": ("SORT BY", "leave it out: a collection has no order"),
    "cluster": ("CLUSTER BY", "leave it out: a collection has no order"),
    "distribute": ("DISTRIBUTE BY", "leave it out: a collection has no order"),
    "laterals": ("LATERAL VIEW", _WRITE),
    "hint": ("a hint", "leave it out"),
    "pivots": ("PIVOT or UNPIVOT", _WRITE),
    "sample": ("TABLESAMPLE", "it takes other rows each time"),
    "offset": ("OFFSET", "leave it out: only the first rows of an order are kept"),
    "match": ("MATCH_RECOGNIZE", _WRITE),
}
# What sqlglot calls otherwise than people do.
_NOTED: Final[Mapping[str, str]] = {
    "spec": "a frame",
    "expressions": "further parts",
    "sample": "TABLESAMPLE",
    "pivots": "PIVOT or UNPIVOT",
    "version": "VERSION or TIMESTAMP AS OF",
    "db": "several parts",
    "except_": "EXCEPT",
}
_MOMENT: Final = re.compile(r"[-+:. 0-9TZ]+")
_AGGREGATES: Final[dict[type, str]] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}

_Ways: TypeAlias = tuple[tuple[str, str], ...]


def plan_of_sql(text: str, names: Mapping[str, pa.Schema], /, *, others: Sequence[str] = ()) -> Plan:
    """Return the plan of a query, or refuse it by the name of the part that has no operator.

    Parameters
    ----------
    text : str
        One query.
    names : mapping of str to pyarrow.Schema
        What can be read: the name of each import, and its payload columns.
    others : sequence of str
        Names that could be read as well, and are not in the text: only for errors.

    Raises
    ------
    InvalidUsageError
        If the text is no query, or has a part that is not known to mean what an operator does.
    SchemaMismatchError
        If there is no such table or column, or there are two.

    Notes
    -----
    What depends on types, such as a key of floats, is refused where the plan is built, except where SQL would answer
    otherwise: the greatest of floats, among which NaN is the greatest to Spark, and is passed over here.

    Examples
    --------
    >>> orders = pa.schema([("id", pa.int64()), ("k", pa.string()), ("euro", pa.int64())])
    >>> plan_of_sql("SELECT k, SUM(euro) AS total FROM orders WHERE id > 7 GROUP BY k", {"orders": orders}).imports
    ('orders',)
    """
    if not isinstance(text, str):
        msg = f"could not {_ATTEMPT}: found {shown(text)}"
        raise InvalidUsageError(msg, hint="give a query as a text")
    for name, schema in names.items():
        if not isinstance(schema, pa.Schema):
            msg = f"could not {_ATTEMPT}: found schema={shown(schema)} of import {name!r}"
            raise InvalidUsageError(msg, hint="give the columns of each import, a pyarrow.Schema")
    planner = _Planner(text, names, others)
    try:
        return Plan(planner.whole())
    except RecursionError as error:
        raise refused_sql(_ATTEMPT, "too many brackets", text, "use fewer") from error


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that a query may name.

    Attributes
    ----------
    name : str
    inner : str
        What it is called in the node.
    source : str
        The table that it is of, in lower case.
    floating : bool
        Whether it may hold floats.
    shadowed : bool
        Whether it is only found with its table's name: of the second table of a join, a column that both are joined by.
    gone : str
        Why it cannot be named, if so.
    """

    name: str
    inner: str
    source: str
    floating: bool = False
    shadowed: bool = False
    gone: str = ""


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Rows of which the first ones of each key are still to be kept, and what is selected of these."""

    name: str
    by: tuple[str, ...]
    order: _Ways
    of: _Relation
    select: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Relation:
    """A part of a query as a plan, with the names of its columns.

    Attributes
    ----------
    node : Node
        Its plan; with `ranked` of no use before the first rows are kept.
    columns : tuple of _Column
        In order. With `ranked` those that are selected, and the rank in its place.
    ranked : _Ranked or None
    in_order : bool
        Whether the node has these columns in this order. A join has not: those joined by come first in a star.
    """

    node: Node
    columns: tuple[_Column, ...]
    ranked: _Ranked | None = None
    in_order: bool = True


@dataclass(slots=True)
class _Named:
    """A query of WITH, and how often it is used."""

    name: str
    relation: _Relation
    uses: int = 0


_Withs: TypeAlias = dict[str, _Named]


class _Planner:
    """Makes the plan of one text."""

    def __init__(self, text: str, names: Mapping[str, pa.Schema], others: Sequence[str] = ()) -> None:
        self._text, self._names = text, names
        self._readable = list(dict.fromkeys((*names, *others)))
        self._words: set[str] = set()

    def whole(self) -> Node:
        """Return the plan of the text."""
        relation = self._query(self._read(), {})
        return self._settled(relation).node

    # Reading -----------------------------------------------------------------------------------------

    def _refuse(self, found: str, hint: str) -> NoReturn:
        raise refused_sql(_ATTEMPT, found, self._text, hint)

    def _missing(self, found: str, hint: str) -> NoReturn:
        msg = f"could not {_ATTEMPT}: found {found} in statement {shown(self._text)}"
        raise SchemaMismatchError(msg, hint=hint)

    def _read(self) -> exp.Expr:
        """Let sqlglot read the text, and look whether it has read all of it."""
        tokens = scanned(self._text, _ATTEMPT)
        self._words = {token.word for token in tokens}
        statements = statements_of(tokens)
        if len(statements) != 1:
            self._refuse(f"{len(statements)} queries", "give one query")
        (tokens,) = statements
        first = next((token for token in tokens if token.text != "("), tokens[0])
        if first.word not in ("select", "with"):
            self._refuse(first.text.upper() if first.word else shown(first.text), "begin with SELECT or WITH")
        if "\\" in self._text:
            self._refuse("a backslash", "leave it out: whether it is an escape depends on settings of Spark")
        for token in tokens:
            if token.kind == "string" and token.text[0] == '"':
                self._refuse(
                    f"a text in double quotes, {shown(token.text)}", "use single quotes for texts, ` for names"
                )
            if token.text in ("|>", "/*+", "?", "::", ";"):
                self._refuse(f"{token.text!r}", _WRITE)
        tree = self._parsed(tokens)
        self._check_literals(tree, tokens)
        return tree

    def _parsed(self, tokens: list[Token]) -> exp.Expr:
        try:
            found = read_trees(self._text, tokens)
        except UnreadError as error:
            raise refused_sql(_ATTEMPT, str(error), self._text, "write it as Spark does") from error
        if len(found) != 1:
            self._refuse(f"{len(found)} queries", "give one query")
        return found[0]

    def _check_literals(self, tree: exp.Expr, tokens: list[Token]) -> None:
        """Refuse texts and numbers that sqlglot took for something else, such as a name in single quotes."""
        literals = list(tree.find_all(exp.Literal))
        for kind, what in (("number", "a number"), ("string", "a text")):
            there = [token.text for token in tokens if token.kind == kind]
            if len(there) != sum(literal.is_string == (kind == "string") for literal in literals):
                self._refuse(f"{what} that is read as something else, of {shown(there)}", "quote names with `")

    # Queries -----------------------------------------------------------------------------------------

    def _query(self, tree: exp.Expr, withs: _Withs) -> _Relation:
        """Return what a query gives."""
        own: list[_Named] = []
        if around := tree.args.get("with_"):
            withs, own = self._withs(around, withs)
        if isinstance(tree, exp.Select):
            relation = self._block(tree, withs)
        elif isinstance(tree, exp.Union):
            relation = self._union(tree, withs)
        elif isinstance(tree, exp.Subquery):
            self._check_args(tree, {"this", "with_"}, "a query in brackets")
            relation = self._query(tree.this, withs)
        elif isinstance(tree, exp.Except | exp.Intersect):
            self._refuse(type(tree).__name__.upper(), _WRITE)
        else:
            self._refuse(self._name_of(tree), _WRITE)
        for named in own:
            if not named.uses:
                self._refuse(f"query {named.name!r} of WITH used nowhere", "leave it out, or read from it")
        return relation

    def _withs(self, around: exp.Expr, withs: _Withs) -> tuple[_Withs, list[_Named]]:
        if around.args.get("recursive"):
            self._refuse("WITH RECURSIVE", "loops are not built")
        self._check_args(around, {"expressions"}, "WITH")
        known = dict(withs)
        own: list[_Named] = []
        for each in around.expressions:  # each may read those before it
            self._check_args(each, {"this", "alias"}, "a query of WITH")
            self._check_alias(each.args["alias"])
            name = each.alias
            if any(name.lower() == named.name.lower() for named in own):
                self._refuse(f"query {name!r} of WITH twice", "give each a name of its own")
            named = _Named(name, self._query(each.this, known))
            known[name.lower()] = named
            own.append(named)
        return known, own

    def _union(self, tree: exp.Expr, withs: _Withs) -> _Relation:
        """Return the rows of several queries; columns belong together by their places."""
        operands: list[exp.Expr] = []
        at = tree
        while isinstance(at, exp.Union):  # they stand to the left of each other
            if at.args.get("distinct") or at.args.get("distinct") is None:
                self._refuse("UNION without ALL", "use UNION ALL, and SELECT DISTINCT around it in brackets")
            if at.args.get("by_name"):
                self._refuse("UNION ALL BY NAME", "name the columns in the same order, with UNION ALL")
            allowed = {"this", "expression", "distinct", *(("order", "limit", "with_") if at is tree else ())}
            self._check_args(at, allowed, "UNION")
            operands.insert(0, at.expression)
            at = at.this
        operands.insert(0, at)
        parts = [self._settled(self._query(each, withs)) for each in operands]
        first = parts[0].columns
        nodes = []
        for part in parts:
            if len(part.columns) != len(first):
                self._refuse(f"UNION ALL of {len(first)} and {len(part.columns)} columns", "give all the same columns")
            nodes.append(
                self._projected(part, tuple((a.name, b.inner) for a, b in zip(first, part.columns, strict=True))).node
            )
        floating = [any(each.floating for each in same) for same in zip(*(p.columns for p in parts), strict=True)]
        columns = tuple(_Column(a.name, a.name, "", is_float) for a, is_float in zip(first, floating, strict=True))
        return self._limited(tree, _Relation(Node(Concat(), *nodes), columns))

    def _block(self, tree: exp.Expr, withs: _Withs) -> _Relation:
        """Return what SELECT … FROM … gives."""
        for name, value in tree.args.items():
            if value and name not in _LOOKED_AT:
                self._refuse(*_CLAUSES.get(name, (name.strip("_").upper(), _WRITE)))
        relation = self._filtered(tree, self._from(tree, withs))
        relation = self._grouped(tree, relation) if self._groups(tree) else self._rows(tree, relation)
        if distinct := tree.args.get("distinct"):
            self._check_args(distinct, set(), "DISTINCT")
            if relation.ranked is not None:
                self._refuse("DISTINCT beside row_number()", _RANK)
            relation = replace(relation, node=Node(Distinct(), relation.node))
        return self._limited(tree, relation)

    def _limited(self, tree: exp.Expr, relation: _Relation) -> _Relation:
        """Keep the first rows of all, by ORDER BY and LIMIT."""
        order, limit = tree.args.get("order"), tree.args.get("limit")
        if order is None and limit is None:
            return relation
        if limit is None:
            self._refuse("ORDER BY without LIMIT", "leave it out: a collection has no order")
        if order is None:
            self._refuse("LIMIT without ORDER BY", "say with ORDER BY which rows are the first")
        if not isinstance(limit, exp.Limit) or limit.args.get("offset"):
            self._refuse("FETCH" if isinstance(limit, exp.Fetch) else "OFFSET", "use ORDER BY … LIMIT n")
        self._check_args(limit, {"expression"}, "LIMIT")
        n = self._whole_number(limit.expression)
        if n is None or not 1 <= n < 1 << 31:
            self._refuse(f"LIMIT {limit.expression.sql(dialect='spark')}", "give a number of rows, at least 1")
        relation = self._settled(relation)
        ways = self._ways(order, replace(relation))
        return replace(relation, node=Node(Top(n, (), ways), relation.node))

    # Tables ------------------------------------------------------------------------------------------

    def _from(self, tree: exp.Expr, withs: _Withs) -> _Relation:
        """Return the rows of FROM."""
        first = tree.args.get("from_")
        if first is None:
            self._refuse("a query without FROM", "read from an import")
        self._check_args(first, {"this"}, "FROM")
        relation = self._table(first.this, withs)
        sources = {column.source for column in relation.columns}
        for join in tree.args.get("joins") or []:
            relation = self._settled(relation)
            other = self._settled(self._table(join.this, withs))
            found = {column.source for column in other.columns}
            if sources & found - {""}:
                self._refuse(f"two tables called {min(sources & found)!r}", "give them names of their own, with AS")
            sources |= found
            relation = self._joined(join, relation, other)
        return relation

    def _table(self, tree: exp.Expr, withs: _Withs) -> _Relation:
        """Return the rows of an import, of a query of WITH, or of one in brackets."""
        if isinstance(tree, exp.Subquery):
            self._check_args(tree, {"this", "alias"}, "a query in brackets")
            self._check_alias(tree.args.get("alias"))
            return self._called(self._query(tree.this, withs), tree.alias)
        if not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier):
            of = tree.this if isinstance(tree, exp.Table) else tree
            self._refuse(f"{self._name_of(of)} in FROM", "read from an import, or from a query in brackets")
        if tree.args.get("db") or tree.args.get("catalog"):
            self._refuse(
                f"name {tree.sql(dialect='spark')} of several parts", f"use the imports {shown(self._readable)}"
            )
        self._check_args(tree, {"this", "alias"}, f"table {tree.name!r}")
        self._check_alias(tree.args.get("alias"))
        named = withs.get(tree.name.lower())
        if named is not None:
            named.uses += 1
            if named.uses > 1:
                self._refuse(f"query {named.name!r} of WITH used twice", "export it from a dataflow of its own")
            return self._called(named.relation, tree.alias or named.name)
        found = [name for name in self._names if name.lower() == tree.name.lower()]
        if len(found) != 1:
            what = f"no import {tree.name!r}" if not found else f"imports {shown(found)}, which differ in case alone"
            self._missing(what, f"use one of the imports {shown(self._readable)}")
        fields = self._names[found[0]]
        source = (tree.alias or tree.name).lower()
        columns = (_Column(f.name, f.name, source, pa.types.is_floating(f.type)) for f in fields)
        return _Relation(Node(Imported(found[0])), tuple(columns))

    def _called(self, relation: _Relation, alias: str) -> _Relation:
        columns = tuple(replace(column, source=alias.lower()) for column in relation.columns)
        return replace(relation, columns=columns)

    def _check_alias(self, alias: exp.Expr | None) -> None:
        if alias is not None and (alias.args.get("columns") or not isinstance(alias.this, exp.Identifier)):
            self._refuse(f"{alias.sql(dialect='spark')} for a table", "give it a name, without names of columns")

    def _joined(self, join: exp.Expr, left: _Relation, right: _Relation) -> _Relation:
        """Return pairs of rows."""
        method, side, kind = (str(join.args.get(part) or "").upper() for part in ("method", "side", "kind"))
        said = " ".join(word for word in (method, side, kind, "JOIN") if word)
        if kind == "CROSS" and "cross" not in self._words:
            said = "a comma between tables"  # sqlglot makes a CROSS JOIN of it
        if method != "ASOF" or (side, kind) not in (
            ("", ""),
            ("", "INNER"),
            ("LEFT", ""),
            ("LEFT", "OUTER"),
        ):
            hint = "use a ASOF JOIN b USING (k): events beside what a collection holds at their time"
            self._refuse(
                said if join.args.get("using") or join.args.get("on") or kind else f"{said} without USING", hint
            )
        if not join.args.get("using"):
            self._refuse(f"{said} without USING", "name the columns of both sides that agree: USING (k)")
        self._check_args(join, {"this", "method", "side", "kind", "using"}, said)
        how: Literal["inner", "left"] = "left" if side else "inner"
        taken = [column.inner for column in left.columns]
        inner: dict[int, str] = {}  # what columns of the right side are called in the join
        keys: list[str] = []
        for name in join.args["using"]:
            one, other = self._using(name, left, said), self._using(name, right, said)
            keys.append(one.inner)
            inner[right.columns.index(other)] = one.inner
        for i, column in enumerate(right.columns):
            if i not in inner:
                inner[i] = column.name
                while any(inner[i].lower() == each.lower() for each in taken):
                    inner[i] += "_"
                taken.append(inner[i])
        renamed = tuple((inner[i], column.inner) for i, column in enumerate(right.columns))
        node = Node(Join(tuple(keys), how, as_of=True), left.node, self._projected(right, renamed).node)
        gone = "of the right side of ASOF LEFT JOIN" if how == "left" else ""
        first = [next(column for column in left.columns if column.inner == key) for key in dict.fromkeys(keys)]
        others = [column for column in left.columns if column not in first]
        pairs = []
        for i, column in enumerate(right.columns):
            is_key = inner[i] in keys
            pairs.append(replace(column, inner=inner[i], shadowed=is_key, gone=gone if is_key else column.gone))
        return _Relation(node, (*first, *others, *pairs), in_order=False)

    def _using(self, name: exp.Expr, relation: _Relation, said: str) -> _Column:
        if not isinstance(name, exp.Identifier):
            self._refuse(f"{name.sql(dialect='spark')} in USING of {said}", "name columns")
        return self._found(name.name, None, relation)

    # Columns -----------------------------------------------------------------------------------------

    def _found(self, name: str, source: str | None, relation: _Relation) -> _Column:
        """Return the one column of a name."""
        if source is not None and not any(column.source == source.lower() for column in relation.columns):
            self._missing(f"no table {source!r} for column {name!r}", "name a table of FROM by its alias")
        there = [column for column in relation.columns if column.name.lower() == name.lower()]
        if source is None:
            there = [column for column in there if not column.shadowed]
        else:
            there = [column for column in there if column.source == source.lower()]
        if len(there) != 1:
            what = f"no column {name!r}" if not there else f"column {name!r}, of which there are {len(there)}"
            names = [column.name for column in relation.columns if not column.shadowed]
            self._missing(what, f"use one of the columns {shown(names)}, and name the table where two have it")
        if there[0].gone:
            self._refuse(f"column {name!r} {there[0].gone}", "leave it out, or take the column of the left side")
        return there[0]

    def _column(self, tree: exp.Expr, relation: _Relation) -> _Column:
        """Return the column that an expression is; refuse what is none."""
        if not isinstance(tree, exp.Column) or not isinstance(tree.this, exp.Identifier):
            self._refuse(self._name_of(tree), _COMPUTED)
        self._check_args(tree, {"this", "table"}, f"column {tree.sql(dialect='spark')}")
        return self._found(tree.name, tree.table or None, relation)

    def _star(self, tree: exp.Expr, relation: _Relation) -> list[_Column] | None:
        """Return the columns of a star; None for what is none."""
        star, source = (tree.this, tree.table) if isinstance(tree, exp.Column) else (tree, "")
        if not isinstance(star, exp.Star):
            return None
        if isinstance(tree, exp.Column):
            self._check_args(tree, {"this", "table"}, "a star")
        self._check_args(star, {"except_"}, "a star")
        if source and not any(column.source == source.lower() for column in relation.columns):
            self._missing(f"no table {source!r} for a star", "name a table of FROM by its alias")
        columns = [c for c in relation.columns if (c.source == source.lower() if source else not c.shadowed)]
        for each in star.args.get("except_") or []:
            name = each.this if isinstance(each, exp.Column) else each
            if not isinstance(name, exp.Identifier) or (isinstance(each, exp.Column) and each.table):
                self._refuse(f"{each.sql(dialect='spark')} in EXCEPT", "name columns")
            there = [column for column in columns if column.name.lower() == name.name.lower()]
            if len(there) != 1:
                self._missing(f"no column {name.name!r} in EXCEPT", f"use one of {shown([c.name for c in columns])}")
            columns.remove(there[0])
        for column in columns:
            if column.gone:
                self._refuse(f"column {column.name!r} {column.gone}, in a star", "leave it out with * EXCEPT (…)")
        return columns

    def _selected(self, relation: _Relation, items: Sequence[tuple[str, _Column]]) -> _Relation:
        """Return these columns under these names."""
        made = self._projected(relation, tuple((name, column.inner) for name, column in items))
        return replace(made, columns=tuple(_Column(name, name, "", column.floating) for name, column in items))

    def _projected(self, relation: _Relation, columns: tuple[tuple[str, str], ...]) -> _Relation:
        """Return these columns of the node under these names."""
        self._check_twice([name for name, _ in columns])
        there = [column.inner for column in relation.columns if column.inner and not column.shadowed]
        if relation.in_order and columns == tuple((inner, inner) for inner in there):
            return relation
        return replace(relation, node=Node(Select(columns), relation.node), in_order=True)

    def _check_twice(self, names: Sequence[str]) -> None:
        lowered = [name.lower() for name in names]
        twice = next((name for name in names if lowered.count(name.lower()) > 1), None)
        if twice is not None:
            self._refuse(f"column {twice!r} twice", "give each column a name of its own, with AS")

    # Rows --------------------------------------------------------------------------------------------

    def _filtered(self, tree: exp.Expr, relation: _Relation) -> _Relation:
        """Return the rows for which WHERE holds, the first of each key where it says so."""
        where = tree.args.get("where")
        if where is None:
            return self._settled(relation)
        self._check_args(where, {"this"}, "WHERE")
        conditions = [where.this]
        if relation.ranked is not None:
            name = relation.ranked.name.lower()
            source = next(column.source for column in relation.columns if column.gone)

            def is_rank(node: exp.Expr) -> bool:
                named = isinstance(node, exp.Column) and node.name.lower() == name
                return named and node.text("table").lower() in ("", source)

            n, conditions = self._first(where.this, is_rank)
            relation = self._best(relation, n)
        for condition in conditions:
            relation = replace(relation, node=Node(Filter(self._condition(condition, relation)), relation.node))
        return relation

    def _condition(self, tree: exp.Expr, relation: _Relation) -> str:
        """Return the text of a condition over the node's columns."""
        for part in tree.walk():
            if isinstance(part, exp.Query | exp.Exists):
                self._refuse("a subquery in an expression", "join, or export what it gives from a dataflow of its own")
            if isinstance(part, exp.Window):
                self._refuse(f"{self._name_of(part)} in WHERE", _RANK)
            if isinstance(part, exp.AggFunc):
                self._refuse(f"{self._name_of(part)} in WHERE", "use a query in brackets, and WHERE around it")
            if isinstance(part, exp.Func) and not isinstance(part, exp.And | exp.Or | exp.Cast):
                self._refuse(self._name_of(part), _CONDITIONS)

        def named(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column):
                return exp.column(exp.to_identifier(self._column(part, relation).inner, quoted=True))
            if type(part) is exp.Cast and isinstance(part.this, exp.Literal) and _MOMENT.fullmatch(part.this.this):
                # sqlglot prints CAST(… AS DATE), and reads that as something else.
                word = {"DATE": "DATE", "TIMESTAMPTZ": "TIMESTAMP"}.get(part.args["to"].sql())
                return part if word is None else exp.var(f"{word} '{part.this.this}'")
            return part

        text = str(tree.transform(named).sql(dialect="spark", comments=False))
        if not is_condition(text):
            self._refuse(f"condition {shown(tree.sql(dialect='spark'))}", _CONDITIONS)
        return text

    def _rows(self, tree: exp.Expr, relation: _Relation) -> _Relation:
        """Return what SELECT chooses row by row, the first rows of each key where QUALIFY says so."""
        items: list[tuple[str, _Column]] = []
        ranks: list[tuple[str, exp.Expr]] = []
        for each in tree.expressions:
            star = self._star(each, relation)
            if star is not None:
                items += [(column.name, column) for column in star]
                continue
            value, name = self._item(each)
            if isinstance(value, exp.Window):
                self._window(value, relation)  # what no name would help
                if name is None:
                    self._refuse(f"{self._name_of(value)} without a name", f"name it with AS; {_RANK}")
                ranks.append((name, value))
                items.append((name, _Column(name, "", "", gone="that is a row_number()")))
                continue
            column = self._column(value, relation)
            items.append((name or value.name, column))
        if len(ranks) > 1:
            self._refuse("several row_number()", _RANK)
        if qualify := tree.args.get("qualify"):
            relation = self._qualified(qualify, relation, ranks)
        if not ranks:
            return self._selected(relation, items)
        name, window = ranks[0]
        by, order = self._window(window, relation)
        self._check_twice([each for each, _ in items])
        select = tuple((each, column.inner) for each, column in items if not column.gone)
        if not select:
            self._refuse("row_number() alone", "select the columns of the rows that are kept too")
        columns = (_Column(each, "" if c.gone else each, "", c.floating, gone=c.gone) for each, c in items)
        return _Relation(relation.node, tuple(columns), _Ranked(name, by, order, relation, select))

    def _item(self, tree: exp.Expr) -> tuple[exp.Expr, str | None]:
        """Return a value of SELECT, and its name if it has one."""
        if not isinstance(tree, exp.Alias):
            return tree, None
        self._check_args(tree, {"this", "alias"}, "AS")
        if not isinstance(tree.args["alias"], exp.Identifier):
            self._refuse(f"name {tree.args['alias'].sql(dialect='spark')}", "give a column one name")
        return tree.this, tree.alias

    # The first rows of each key ----------------------------------------------------------------------

    def _qualified(self, qualify: exp.Expr, relation: _Relation, ranks: list[tuple[str, exp.Expr]]) -> _Relation:
        if ranks:
            self._refuse("row_number() selected beside QUALIFY", "leave it out of SELECT: its number is not kept")
        self._check_args(qualify, {"this"}, "QUALIFY")
        windows = list(qualify.find_all(exp.Window))
        if not windows:
            self._refuse(f"QUALIFY {qualify.this.sql(dialect='spark')}", _RANK)
        n, others = self._first(qualify.this, lambda node: isinstance(node, exp.Window))
        if others:
            self._refuse(f"QUALIFY with more than row_number(): {others[0].sql(dialect='spark')}", "put it into WHERE")
        by, order = self._window(windows[0], relation)
        return replace(relation, node=self._best_node(relation.node, n, by, order))

    def _window(self, window: exp.Expr, relation: _Relation) -> tuple[tuple[str, ...], _Ways]:
        """Return key and order of a row_number()."""
        if not isinstance(window.this, exp.RowNumber) or any(window.this.args.values()):
            self._refuse(self._name_of(window), _RANK)
        if window.args.get("alias") or window.args.get("first"):
            self._refuse("a window by its name", "write the window behind OVER, in brackets")
        self._check_args(window, {"this", "partition_by", "order", "over"}, "the window of row_number()")
        keys = [self._column(each, relation).inner for each in window.args.get("partition_by") or []]
        order = window.args.get("order")
        if order is None:
            self._refuse("row_number() without ORDER BY", _RANK)
        return tuple(dict.fromkeys(keys)), self._ways(order, relation)

    def _ways(self, order: exp.Expr, relation: _Relation) -> _Ways:
        """Return the columns of ORDER BY, and which way."""
        self._check_args(order, {"expressions"}, "ORDER BY")
        found: dict[str, str] = {}
        for each in order.expressions:
            if not isinstance(each, exp.Ordered):
                self._refuse(f"ORDER BY {each.sql(dialect='spark')}", "order by columns")
            self._check_args(each, {"this", "desc", "nulls_first"}, "ORDER BY")
            if self._whole_number(each.this) is not None:
                self._refuse(f"ORDER BY {each.this.this}, a position", "order by the column's name")
            descends = bool(each.args.get("desc"))
            if bool(each.args.get("nulls_first")) == descends:
                said = "DESC NULLS FIRST" if descends else "ASC NULLS LAST"
                self._refuse(said, "nulls are the least: first of what ascends, last of what descends")
            found.setdefault(self._column(each.this, relation).inner, "desc" if descends else "asc")
        return tuple(found.items())

    def _first(self, tree: exp.Expr, is_rank: Callable[[exp.Expr], bool]) -> tuple[int, list[exp.Expr]]:
        """Return how many rows of each key a condition keeps, and what else it says."""
        parts: list[exp.Expr] = []
        waiting = [tree]
        while waiting:
            each = waiting.pop()
            while isinstance(each, exp.Paren):
                each = each.this
            if isinstance(each, exp.And):
                waiting += [each.expression, each.this]
            else:
                parts.append(each)
        bounds: list[int] = []
        others: list[exp.Expr] = []
        for part in parts:
            if not any(is_rank(node) for node in part.walk()):
                others.append(part)
                continue
            bounds.append(self._bound(part, is_rank))
        if not bounds:
            self._refuse("row_number() without a condition on it", _RANK)
        if len(bounds) > 1:
            self._refuse("several conditions on row_number()", _RANK)
        return bounds[0], others

    def _bound(self, part: exp.Expr, is_rank: Callable[[exp.Expr], bool]) -> int:
        """Return the n of row_number() <= n."""
        kind = type(part)
        turned = {exp.EQ: exp.EQ, exp.LTE: exp.GTE, exp.LT: exp.GT, exp.GTE: exp.LTE, exp.GT: exp.LT}
        if kind in turned:
            rank, number = part.this, part.expression
            if not is_rank(rank):
                rank, number, kind = number, rank, turned[kind]
            n = self._whole_number(number) if is_rank(rank) else None
            if n is not None:
                most = {exp.EQ: 1 if n == 1 else 0, exp.LTE: n, exp.LT: n - 1}.get(kind, 0)
                if 1 <= most < 1 << 31:
                    return most
        self._refuse(f"row_number() in {shown(part.sql(dialect='spark'))}", _RANK)

    def _settled(self, relation: _Relation) -> _Relation:
        """Refuse rows that are ranked, and of which none are left out."""
        if relation.ranked is not None:
            self._refuse(f"row_number() {relation.ranked.name!r} without a condition on it", _RANK)
        return relation

    def _best(self, relation: _Relation, n: int) -> _Relation:
        """Keep the first n rows of each key, and select what was selected of them."""
        ranked = relation.ranked
        assert ranked is not None
        kept = replace(ranked.of, node=self._best_node(ranked.of.node, n, ranked.by, ranked.order))
        return _Relation(self._projected(kept, ranked.select).node, relation.columns)

    def _best_node(self, node: Node, n: int, by: tuple[str, ...], order: _Ways) -> Node:
        return Node(Latest(by, order), node) if n == 1 else Node(Top(n, by, order), node)

    # Groups ------------------------------------------------------------------------------------------

    def _groups(self, tree: exp.Expr) -> bool:
        """Return whether a block has groups: GROUP BY, or aggregates of all rows."""

        def aggregates(node: exp.Expr) -> bool:
            whole = isinstance(node, exp.Window | exp.Query)
            return not whole and (
                isinstance(node, exp.AggFunc | exp.Filter) or any(map(aggregates, node.iter_expressions()))
            )

        return tree.args.get("group") is not None or any(map(aggregates, tree.expressions))

    def _grouped(self, tree: exp.Expr, relation: _Relation) -> _Relation:
        """Return the groups of GROUP BY and their values."""
        keys = self._keys(tree, relation)
        if tree.args.get("qualify"):
            self._refuse("QUALIFY beside GROUP BY", "use a query in brackets")
        items: list[tuple[str, str, bool]] = []  # name, what it is called in the node, whether it is a float
        values: list[tuple[str, str, str | None]] = []
        taken = [key.lower() for key in keys]
        for each in tree.expressions:
            if self._star(each, relation) is not None:
                self._refuse("a star beside GROUP BY", "name the columns")
            value, name = self._item(each)
            if isinstance(value, exp.Window):
                self._refuse(f"{self._name_of(value)} beside GROUP BY", "use a query in brackets")
            if isinstance(value, exp.Column):
                column = self._column(value, relation)
                if column.inner not in keys:
                    self._refuse(f"column {value.name!r} that is not grouped by", "name it in GROUP BY")
                items.append((name or value.name, column.inner, column.floating))
                continue
            kind, of, is_float = self._value(value, relation)
            if name is None:
                self._refuse(f"{value.sql(dialect='spark')} without a name", "name it with AS")
            inner = name
            while inner.lower() in taken:
                inner += "_"
            taken.append(inner.lower())
            values.append((inner, kind, of))
            items.append((name, inner, is_float))
        keyed = [next(column for column in relation.columns if column.inner == key) for key in keys]
        if values:
            of_values = {name: Aggregation(kind, of) for name, kind, of in values}
            node: Node = Node(Aggregate(tuple(keys), of_values, "history"), relation.node)
        else:
            node = Node(Distinct(), self._projected(relation, tuple((key, key) for key in keys)).node)
        # As the node has them: its values stand in the order of their names.
        made = tuple(_Column(c.inner, c.inner, "", c.floating) for c in keyed)
        made += tuple(_Column(each, each, "") for each, _, _ in sorted(values))
        columns = [(name, _Column(name, inner, "", is_float)) for name, inner, is_float in items]
        return self._selected(_Relation(node, made), columns)

    def _keys(self, tree: exp.Expr, relation: _Relation) -> list[str]:
        """Return the columns of GROUP BY."""
        group = tree.args.get("group")
        if group is None:
            hint = "group by a column: of no rows SQL gives one row, and a dataflow none"
            self._refuse("an aggregate without GROUP BY", hint)
        for name in ("all", "rollup", "cube", "grouping_sets", "totals"):
            if group.args.get(name):
                self._refuse(f"GROUP BY with {name.replace('_', ' ').upper()}", "name the columns to group by")
        self._check_args(group, {"expressions"}, "GROUP BY")
        found: dict[str, None] = {}
        for each in group.expressions:
            if self._whole_number(each) is not None:
                self._refuse(f"GROUP BY {each.this}, a position", "group by the column's name")
            found[self._column(each, relation).inner] = None
        if not found:
            self._refuse("GROUP BY without columns", "of no rows SQL gives one row, and a dataflow none")
        return list(found)

    def _value(self, tree: exp.Expr, relation: _Relation) -> tuple[str, str | None, bool]:
        """Return what an aggregate computes, of which column, and whether that is a float."""
        kind = _AGGREGATES.get(type(tree))
        if kind is None:
            self._refuse(self._name_of(tree), "use COUNT, SUM, AVG, MIN and MAX of columns, and the columns grouped by")
        if isinstance(tree.this, exp.Distinct):
            self._refuse(f"{kind.upper()}(DISTINCT …)", "use a query in brackets that is DISTINCT")
        self._check_args(tree, {"this", "big_int"}, kind.upper())
        of: Any = tree.this
        if kind == "count" and (isinstance(of, exp.Star) or self._whole_number(of) is not None):
            if any(of.args.get(name) for name in ("except_", "replace", "rename")):
                self._refuse("COUNT of a star with EXCEPT", "use COUNT(*)")
            return kind, None, False
        if not isinstance(of, exp.Column) or not isinstance(of.this, exp.Identifier):
            self._refuse(f"{kind.upper()} of {shown(of.sql(dialect='spark') if of else '')}", "aggregate a column")
        column = self._column(of, relation)
        if kind == "max" and column.floating:
            self._refuse(f"MAX of floats, column {of.name!r}", "NaN is the greatest to Spark, and is passed over here")
        is_float = kind == "avg" or (kind in ("sum", "min") and column.floating)
        return kind, column.inner, is_float

    # Names of parts ----------------------------------------------------------------------------------

    def _check_args(self, tree: exp.Expr, known: set[str], what: str) -> None:
        """Refuse whatever sqlglot notes of a part that is not looked at."""
        for name, value in tree.args.items():
            if value and name not in known:
                self._refuse(f"{_NOTED.get(name, name.strip('_').upper().replace('_', ' '))} of {what}", _WRITE)

    def _whole_number(self, tree: exp.Expr | None) -> int | None:
        """Return a literal's number; None for whatever else stands there."""
        is_number = isinstance(tree, exp.Literal) and not tree.is_string and tree.this.isascii() and tree.this.isdigit()
        return int(tree.this) if is_number and tree is not None else None

    def _name_of(self, tree: exp.Expr) -> str:
        """Return how a part is called that has no operator."""
        if isinstance(tree, exp.Window):
            of = tree.this
            while isinstance(of, exp.IgnoreNulls | exp.RespectNulls):
                of = of.this
            return f"window function {self._function(of)}"
        if isinstance(tree, exp.Query | exp.Exists):
            return "a subquery in an expression"
        if isinstance(tree, exp.Literal | exp.Null | exp.Boolean):
            return f"constant {shown(tree.sql(dialect='spark'))}"
        if isinstance(tree, exp.Filter):
            return "FILTER (WHERE …)"
        if isinstance(tree, exp.AggFunc):
            return f"aggregate function {self._function(tree)}"
        if isinstance(tree, exp.Func) and not isinstance(tree, exp.And | exp.Or | exp.Cast | exp.Case):
            return f"function {self._function(tree)}"
        if isinstance(tree, exp.Star):
            return "a star"
        return f"computed value {shown(tree.sql(dialect='spark'))}"

    def _function(self, tree: exp.Expr) -> str:
        return str(tree.name if isinstance(tree, exp.Anonymous) else tree.sql(dialect="spark").partition("(")[0])
