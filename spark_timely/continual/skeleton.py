"""The skeleton of a query: its parts, found by this project's parser and by sqlglot apart, and compared.

A skeleton is a tree of plain values: the joins, groups, windows and subqueries of a query, without its expressions.
`spark_timely.continual.many_times` has it compared before it uses what `grammar` found in a body.

Invariants
----------
1. Both are made apart: neither sees what the other found. Where they differ, the text is not extended: the body runs at
   one time per query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_timely.continual.grammar import Block, Expr, Item, Join, Query, not_batched
from spark_timely.scanner import Token, read_trees

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["check_skeleton"]

_QUERY_ARGS: Final = frozenset({"with_", "order"})
_SELECT_ARGS: Final = frozenset({"expressions", "from_", "joins", "where", "group", "having", "distinct", "hint"})
_SET_ARGS: Final = frozenset({"this", "expression", "distinct"})
# A tree of plain values: what both must find.
_Skeleton: TypeAlias = tuple[object, ...]


def check_skeleton(query: Query, text: str, tokens: list[Token]) -> None:
    """Refuse a query in which sqlglot sees other parts than the reader does (invariant 1)."""
    (tree,) = read_trees(text, tokens)
    if _skeleton(query) != _tree_skeleton(tree):
        not_batched("a text that can be read in two ways")


def _skeleton(query: Query) -> _Skeleton:
    """Return what the reader has found in a query."""
    withs = tuple((each.name.lower(), _skeleton(each.query)) for each in query.withs)
    operands = tuple(_operand_skeleton(each) for each in query.operands)
    if not withs and query.order is None and len(operands) == 1:
        return operands[0]
    return ("query", withs, operands, tuple(query.sets), query.order is not None)


def _operand_skeleton(operand: Block | Query | list[Expr]) -> _Skeleton:
    if isinstance(operand, Query):
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


def _join_skeleton(join: Join, *, comma: bool) -> _Skeleton:
    # To sqlglot a comma is a cross join, and a join without a condition has ON TRUE.
    said = "cross" if comma else " ".join(join.said)
    on = join.on is not None or not (join.by_name or join.kind == "first" or said == "cross")
    using = None if join.using is None else len(join.using)
    name = (join.item.alias or join.item.name or "").lower()
    return said, join.natural, using, on, name, _item_skeleton(join.item)


def _item_skeleton(item: Item) -> _Skeleton:
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
