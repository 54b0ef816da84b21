"""The loops that bring a graph into the order in which reachability works on it.

Like all loops of reachability they are written for two lives: compiled, over arrays; and interpreted, over
plain lists of Python integers, which the interpreter indexes several times faster than arrays. So only
one-dimensional sequences are used, and no sum ever leaves the 64-bit integers.

A graph is given by vertices 0…n-1 and arcs, each with a path summary. From `renumber` on a vertex is its
*position* in the order of work:

- every arc between strongly connected components leads to a higher position;
- a component occupies a run of positions, and inside it every arc without a step leads to a higher
  position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

if __name__.endswith("_plain"):

    def njit(function: Callable[P, R], /) -> Callable[P, R]:
        """Leave a loop as it is: this is the copy of the module that `reachability_loops` makes."""
        return function

else:
    from spark_timely.progress.kernels import njit

__all__ = ["Ints", "arrange", "components", "renumber", "settle_order", "turn"]


class Ints(Protocol):
    """A one-dimensional array of integers, or a list of them."""

    def __getitem__(self, index: int, /) -> int:
        """Return one of them."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Replace one of them."""
        ...


@njit
def arrange(n: int, n_arcs: int, tails: Ints, heads: Ints, first: Ints, arcs: Ints, degrees: Ints, order: Ints) -> int:
    """Group arcs by tail, and order the vertices so that arcs lead forward; return how many could be placed.

    `first` (n + 1 zeros) and `arcs` (n_arcs) become the arcs of each tail; `degrees` (n zeros) is scratch;
    `order` receives the vertices. Fewer than `n` are placed if there is a cycle. Cost: O(n + arcs).
    """
    ordered = True
    for a in range(n_arcs):
        first[tails[a] + 1] += 1
        degrees[heads[a]] += 1
        if tails[a] >= heads[a]:
            ordered = False
    for v in range(n):
        first[v + 1] += first[v]
    # Filling from the end brings each `first` back to where its group begins.
    for a in range(n_arcs - 1, -1, -1):
        v = tails[a]
        first[v + 1] -= 1
        arcs[first[v + 1]] = a
    for v in range(n):
        first[v] = first[v + 1]
    first[n] = n_arcs
    if ordered:
        # As most graphs are given; neighbours stay neighbours in memory.
        for v in range(n):
            order[v] = v
        return n
    placed = 0
    for v in range(n):
        if degrees[v] == 0:
            order[placed] = v
            placed += 1
    at = 0
    while at < placed:
        v = order[at]
        at += 1
        for i in range(first[v], first[v + 1]):
            w = heads[arcs[i]]
            degrees[w] -= 1
            if degrees[w] == 0:
                order[placed] = w
                placed += 1
    return placed


@njit
def components(
    n: int,
    heads: Ints,
    first: Ints,
    arcs: Ints,
    index: Ints,
    low: Ints,
    stack: Ints,
    calls: Ints,
    at: Ints,
    which: Ints,
) -> int:
    """Find the strongly connected components; return their number.

    `which` receives each vertex's component, numbered so that arcs lead to equal or lower numbers. `index`
    and `which` are given as -1 throughout; the others are scratch of `n` entries. Cost: O(n + arcs).
    """
    counter = 0
    found = 0
    on_stack = 0
    for root in range(n):
        if index[root] >= 0:
            continue
        depth = 0
        calls[0] = root
        index[root] = counter
        low[root] = counter
        counter += 1
        stack[on_stack] = root
        on_stack += 1
        at[root] = first[root]
        while depth >= 0:
            v = calls[depth]
            if at[v] < first[v + 1]:
                w = heads[arcs[at[v]]]
                at[v] += 1
                if index[w] < 0:
                    index[w] = counter
                    low[w] = counter
                    counter += 1
                    stack[on_stack] = w
                    on_stack += 1
                    at[w] = first[w]
                    depth += 1
                    calls[depth] = w
                elif which[w] < 0 and index[w] < low[v]:
                    low[v] = index[w]
                continue
            depth -= 1
            if depth >= 0 and low[v] < low[calls[depth]]:
                low[calls[depth]] = low[v]
            if low[v] == index[v]:
                w = -1
                while w != v:
                    on_stack -= 1
                    w = stack[on_stack]
                    which[w] = found
                found += 1
    return found


@njit
def settle_order(
    n: int,
    n_components: int,
    heads: Ints,
    steps: Ints,
    first: Ints,
    arcs: Ints,
    component: Ints,
    starts: Ints,
    ends: Ints,
    degrees: Ints,
    order: Ints,
) -> int:
    """Order the vertices by component, inside by arcs without a step; return -1, or a component that has no order.

    `component` numbers the components in the order of the positions, `starts` says where each begins
    (n_components + 1 entries), `ends` is a copy of it without the last, `degrees` holds `n` zeros. A component
    has no order if it holds a cycle of arcs with step 0; its vertices with a degree left are on such cycles or
    behind them. Cost: O(n + arcs).
    """
    for v in range(n):
        for i in range(first[v], first[v + 1]):
            w = heads[arcs[i]]
            if steps[arcs[i]] == 0 and component[w] == component[v]:
                degrees[w] += 1
    for v in range(n):
        if degrees[v] == 0:
            c = component[v]
            order[ends[c]] = v
            ends[c] += 1
    at = 0
    for c in range(n_components):
        while at < ends[c]:
            v = order[at]
            at += 1
            for i in range(first[v], first[v + 1]):
                w = heads[arcs[i]]
                if steps[arcs[i]] == 0 and component[w] == c:
                    degrees[w] -= 1
                    if degrees[w] == 0:
                        order[ends[c]] = w
                        ends[c] += 1
        if at < starts[c + 1]:
            return c
    return -1


@njit
def renumber(
    n: int,
    heads: Ints,
    steps: Ints,
    first: Ints,
    arcs: Ints,
    order: Ints,
    position: Ints,
    out_first: Ints,
    out_heads: Ints,
    out_steps: Ints,
) -> None:
    """Write the graph in terms of positions. Cost: O(n + arcs)."""
    for p in range(n):
        position[order[p]] = p
    total = 0
    for p in range(n):
        out_first[p] = total
        v = order[p]
        for i in range(first[v], first[v + 1]):
            out_heads[total] = position[heads[arcs[i]]]
            out_steps[total] = steps[arcs[i]]
            total += 1
    out_first[n] = total


@njit
def turn(
    n: int, first: Ints, heads: Ints, steps: Ints, in_first: Ints, in_tails: Ints, in_steps: Ints, fill: Ints
) -> None:
    """Write the arcs by head; `in_first` (n + 1) and `fill` (n) are zeros. Cost: O(n + arcs)."""
    for arc in range(first[n]):
        in_first[heads[arc] + 1] += 1
    for p in range(n):
        in_first[p + 1] += in_first[p]
        fill[p] = in_first[p]
    for p in range(n):
        for arc in range(first[p], first[p + 1]):
            into = fill[heads[arc]]
            fill[heads[arc]] += 1
            in_tails[into] = p
            in_steps[into] = steps[arc]
