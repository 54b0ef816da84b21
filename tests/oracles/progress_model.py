"""What can still happen in a dataflow, computed from everything that is really there on all workers.

Shares no code with the library. A plan of nested scopes is seen as one flat graph, whose times grow
by a coordinate where a loop is entered and shrink where it is left. From each message that really
waits somewhere and each capability that some operator really holds, times are carried along all paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Time = tuple[int, ...]
# Scope (its path of numbers), node in it, port, and whether it is an input.
Place = tuple[tuple[int, ...], int, int, bool]


@dataclass
class LeafPlan:
    """An operator: its shape, and by (input, output) the steps of its paths."""

    inputs: int
    outputs: int
    paths: dict[tuple[int, int], list[Time]]
    notify: bool = True
    handle: bool = False


@dataclass
class ScopePlan:
    """A scope: children number from 1, edges from (node, output) to (node, input), node 0 the outside."""

    inputs: int = 0
    outputs: int = 0
    nested: bool = False
    children: list[LeafPlan | ScopePlan] = field(default_factory=list)
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)


class FlatGraph:
    """All places of a plan, and where times go from each."""

    def __init__(self, root: ScopePlan) -> None:
        # Place to (place, what happens to the time): steps to add, "in" or "out".
        self.arcs: dict[Place, list[tuple[Place, Time | str]]] = {}
        self.leaves: dict[tuple[tuple[int, ...], int], LeafPlan] = {}
        self.scopes: dict[tuple[int, ...], ScopePlan] = {}
        self._add(root, (0,))

    def _add(self, scope: ScopePlan, path: tuple[int, ...]) -> None:
        self.scopes[path] = scope
        for node, port, to, at in scope.edges:
            self._arc((path, node, port, False), (path, to, at, True), ())
        for number, child in enumerate(scope.children, start=1):
            if isinstance(child, LeafPlan):
                self.leaves[path, number] = child
                for (i, o), paths in child.paths.items():
                    for steps in paths:
                        self._arc((path, number, i, True), (path, number, o, False), steps)
                continue
            inside = (*path, number)
            for i in range(child.inputs):
                self._arc((path, number, i, True), (inside, 0, i, False), "in" if child.nested else ())
            for o in range(child.outputs):
                self._arc((inside, 0, o, True), (path, number, o, False), "out" if child.nested else ())
            self._add(child, inside)

    def _arc(self, a: Place, b: Place, steps: Time | str) -> None:
        self.arcs.setdefault(a, []).append((b, steps))

    def possible(self, present: Iterable[tuple[Place, Time]]) -> dict[Place, list[Time]]:
        """Return for each place the minimal times that can still appear there."""
        found: dict[Place, list[Time]] = {}
        todo = list(present)
        while todo:
            place, time = todo.pop()
            known = found.setdefault(place, [])
            if any(not_after(k, time) for k in known):
                continue
            known[:] = [k for k in known if not not_after(time, k)] + [time]
            for there, steps in self.arcs.get(place, ()):
                if steps == "in":
                    todo.append((there, (*time, 0)))
                elif steps == "out":
                    todo.append((there, time[:-1]))
                elif steps == ():
                    todo.append((there, time))
                else:
                    todo.append((there, tuple(t + int(s) for t, s in zip(time, steps, strict=True))))
        return found


def not_after(a: Time, b: Time) -> bool:
    """Tell whether a is less or equal to b in every coordinate."""
    return all(x <= y for x, y in zip(a, b, strict=True))


def minima(times: Iterable[Time]) -> set[Time]:
    """Return the minimal ones."""
    distinct = set(times)
    return {t for t in distinct if not any(o != t and not_after(o, t) for o in distinct)}
