"""A graph of operators over events and collections as a sequential program: what each node holds, and how far it is.

Written from the meaning of the operators; shares nothing with the library. A graph is a list of nodes, each with the
numbers of the nodes before it that it is made of. All rows have a key `k` and a number `v`. What a node holds are
updates: how often each (time, k, v) is added; of events that is never less than 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Update = tuple[int, str, int]
Updates = Counter[Update]
Rows = Counter[tuple[str, int]]

OVER_HISTORY = frozenset({"distinct", "first", "latest", "top", "counts", "sums", "ends", "reduce"})
"""Operators that remember."""

ROWWISE = frozenset({"replay", "filter", "holds", "others", "map", "inspect", "delay", "ceil", "concat"})


@dataclass(frozen=True)
class GraphNode:
    """An operator.

    Attributes
    ----------
    kind : str
    below : tuple of int
        Numbers of its inputs.
    number : int
        The operator's parameter: of `replay` which log.
    function : int
        Which function of the graph it calls, for `map`, `inspect` and `reduce`.
    updates : bool
        Whether what comes out is a collection.
    """

    kind: str
    below: tuple[int, ...] = ()
    number: int = 0
    function: int = -1
    updates: bool = False


@dataclass(frozen=True)
class GraphFunction:
    """A function: what it adds to `v`, and how it is made, which is what a fingerprint sees of it."""

    adds: int
    made: str


@dataclass(frozen=True)
class Graph:
    """Nodes, functions, and which nodes are outputs, each with a delay behind it."""

    nodes: tuple[GraphNode, ...]
    functions: tuple[GraphFunction, ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass
class Inputs:
    """What the logs have got so far, and how far they are."""

    updates: list[Updates] = field(default_factory=list)
    frontiers: list[float] = field(default_factory=list)


def held_by(graph: Graph, inputs: Inputs) -> list[Updates]:
    """Return the updates of each node."""
    found: list[Updates] = []
    for node in graph.nodes:
        found.append(_held(graph, node, [found[number] for number in node.below], inputs))
    return found


def frontiers_of(graph: Graph, inputs: Inputs) -> list[float]:
    """Return the frontier of each node."""
    found: list[float] = []
    for node in graph.nodes:
        if node.kind == "replay":
            found.append(inputs.frontiers[node.number])
            continue
        found.append(delayed(min(found[number] for number in node.below), node))
    return found


def delayed(time: float, node: GraphNode) -> float:
    """Return where an operator moves a time."""
    if node.kind == "delay":
        return time + node.number
    if node.kind == "ceil" and math.isfinite(time):
        return math.ceil(time / node.number) * node.number
    return time


def at(updates: Updates, time: float) -> Rows:
    """Return what updates add up to at a time."""
    found: Rows = Counter()
    for (when, k, v), diff in updates.items():
        if when <= time:
            found[k, v] += diff
    return Counter({row: n for row, n in found.items() if n})


def _held(graph: Graph, node: GraphNode, below: Sequence[Updates], inputs: Inputs) -> Updates:
    kind, number = node.kind, node.number
    if kind == "replay":
        return Counter(inputs.updates[number])
    rows = below[0]
    if kind in ("filter", "holds", "others"):
        return Counter({u: n for u, n in rows.items() if (u[2] > number) == (kind != "others")})
    if kind == "map":
        return _moved(rows, lambda t, k, v: (t, k, v + graph.functions[node.function].adds))
    if kind in ("delay", "ceil"):
        return _moved(rows, lambda t, k, v: (int(delayed(t, node)), k, v))
    if kind == "concat":
        found: Updates = Counter()
        for each in below:
            found.update(each)
        return _whole(found)
    if kind == "totals":
        made: Updates = Counter()
        for (t, k, _), n in rows.items():
            made[t, k, 0] += n
        return Counter({(t, k, n): 1 for (t, k, _), n in made.items() if n})
    if kind == "join":
        return _pairs(rows, lambda t: Counter({(k, v): n for (u, k, v), n in below[1].items() if u == t}))
    if kind == "as_of":
        return _pairs(rows, lambda t: at(below[1], t))
    if kind == "first":
        return _first(rows)
    if kind == "distinct" and not node.updates:
        seen = {(k, v): min(t for t, j, w in rows if (j, w) == (k, v)) for _, k, v in rows}
        return Counter({(t, k, v): 1 for (k, v), t in seen.items()})
    if kind in OVER_HISTORY:
        return _over_history(rows, lambda contents: _said(graph, node, contents))
    return rows  # consolidated, as updates, inspected


def _whole(updates: Updates) -> Updates:
    return Counter({update: n for update, n in updates.items() if n})


def _moved(updates: Updates, move: Callable[[int, str, int], Update]) -> Updates:
    found: Updates = Counter()
    for update, n in updates.items():
        found[move(*update)] += n
    return _whole(found)


def _pairs(rows: Updates, others: Callable[[int], Rows]) -> Updates:
    found: Updates = Counter()
    for (t, k, v), n in rows.items():
        for (j, w), m in others(t).items():
            if j == k:
                found[t, k, v + w] += n * m
    return found


def _first(rows: Updates) -> Updates:
    found: dict[str, tuple[int, int]] = {}
    for t, k, v in rows:
        found[k] = min(found.get(k, (t, v)), (t, v))
    return Counter({(t, k, v): 1 for k, (t, v) in found.items()})


def _over_history(updates: Updates, said: Callable[[Rows], Rows]) -> Updates:
    found: Updates = Counter()
    before: Rows = Counter()
    for time in sorted({t for t, _, _ in updates}):
        now = said(at(updates, time))
        for k, v in {*before, *now}:
            found[time, k, v] = now[k, v] - before[k, v]
        before = now
    return _whole(found)


def _said(graph: Graph, node: GraphNode, contents: Rows) -> Rows:
    """Return what an operator over all history says of what is there."""
    if node.kind == "distinct":
        return Counter(dict.fromkeys(contents, 1))
    keys: dict[str, list[int]] = {}
    for (k, v), n in contents.items():
        keys.setdefault(k, []).extend([v] * n)
    found: Rows = Counter()
    for k, values in keys.items():
        match node.kind:
            case "latest":
                chosen = [max(values)]
            case "top":
                chosen = sorted(values)[-node.number :]
            case "counts":
                chosen = [len(values)]
            case "ends":
                chosen = [min(values)]
            case "sums":
                chosen = [sum(values)]
            case _:
                chosen = [sum(values) + graph.functions[node.function].adds]
        found.update((k, v) for v in chosen)
    return found


# Which operators are the same ------------------------------------------------------------------------


def identities_of(graph: Graph) -> list[object]:
    """Return what two nodes have in common if they are the same operator: written twice or not."""
    return _named(graph, by_function=True)


def looks_of(graph: Graph) -> list[object]:
    """Return what two nodes have in common that keep under one fingerprint: it does not know functions."""
    return _named(graph, by_function=False)


def sure_looks_of(graph: Graph) -> list[object]:
    """Return the same, with inspected collections apart: they may be kept in a log of their own."""
    return _named(graph, by_function=False, collections=False)


def _named(graph: Graph, *, by_function: bool, collections: bool = True) -> list[object]:
    numbers: dict[object, int] = {}
    found: list[object] = []
    for node in graph.nodes:
        below = tuple(found[number] for number in node.below)
        if not by_function and node.kind == "inspect" and (collections or not node.updates):
            found.append(below[0])
            continue
        function: object = node.function
        if node.function >= 0 and not by_function:
            function = graph.functions[node.function].made
        key = (node.kind, below, node.number, function, node.updates)
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def below_of(graph: Graph, number: int) -> set[int]:
    """Return a node and all that it is made of."""
    found = {number}
    for each in range(number, -1, -1):
        if each in found:
            found.update(graph.nodes[each].below)
    return found


def clashes(graph: Graph) -> tuple[bool, bool]:
    """Return whether an output must be refused without names, as two operators would keep in one folder; and may be.

    It must where two operators over history differ in functions alone, keep beside the same output, which is the first
    that is made from them, and are both read by other operators of one output. It may where any two look alike.
    """
    same, looks, sure = identities_of(graph), looks_of(graph), sure_looks_of(graph)
    homes: dict[object, int | None] = {}  # None: it is captured, and read there
    together: dict[object, set[object]] = {}
    may = False
    for place, (output, delay) in enumerate(graph.outputs):
        captured = {same[number] for number, late in graph.outputs[:place] if not late}
        below = below_of(graph, output)
        read = {same[each] for number in below for each in graph.nodes[number].below} | (
            {same[output]} if delay else set()
        )
        seen: dict[object, object] = {}
        for number in sorted(below):
            may = may or seen.setdefault(looks[number], same[number]) != same[number]
            if graph.nodes[number].kind in OVER_HISTORY and same[number] in read:
                homes.setdefault(same[number], None if same[number] in captured else place)
        for number in below:
            together.setdefault(same[number], set()).update(same[each] for each in below if sure[each] == sure[number])
    must = any(
        home is not None and other != one and homes.get(other) == home
        for one, home in homes.items()
        for other in together[one]
    )
    return must, may
