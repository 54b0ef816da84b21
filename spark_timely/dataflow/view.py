"""Views: the operators of a dataflow through which nothing is ever in flight.

A view computes the rows of any range of times whose end its frontier has reached, from the same ranges of
its inputs. It is a plain value: tasks get it pickled.

Invariants
----------
1. `run(read, lo, hi)` is a function of the rows of the logs below at the times of `pre(lo, hi)` alone: how
   they lie in files, and in what order they come, changes no row.
2. Every row that `run` gives is at a time beyond `lo` and not beyond `hi`; of a view that is `later`, beyond `lo`.
3. Once the frontiers of the inputs are beyond a range, nothing can be added to it: `front` is monotone, and
   not beyond anything that the view may still give.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_timely.errors import OperatorError, TimelyError, TimelyInternalError, described
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = [
    "Names",
    "Packed",
    "Read",
    "Replay",
    "Step",
    "View",
    "Watch",
    "function_name",
    "leaves_of",
    "ordered",
    "steps_of",
    "with_times",
]

Names = tuple[str, ...]

Read = Callable[["Replay", Antichain, Antichain, Names], pa.Table]
"""Gives the rows of a log at the times of a range: its time columns, and the payload columns that are named."""


@dataclass(frozen=True, eq=False)
class View(ABC):
    """A stream of a dataflow, as a value.

    Attributes
    ----------
    name : str
        Of the operator, for errors.
    domain : TimeDomain
        Of its times.
    schema : pyarrow.Schema
        Of its payload.
    inputs : tuple of View
    """

    name: str
    domain: TimeDomain
    schema: pa.Schema
    inputs: tuple[View, ...] = ()

    @property
    def rowwise(self) -> bool:
        """Whether each row is made from one row alone, so that a time may be cut anywhere."""
        return self.own_rowwise and all(view.rowwise for view in self.inputs)

    # What an operator says ---------------------------------------------------------------------------

    @property
    def own_rowwise(self) -> bool:
        """Whether this operator makes each row from one row of its inputs alone."""
        return True

    @property
    def later(self) -> bool:
        """Whether it may give rows at times past the range that it was run for: only a log can keep those."""
        return False

    def front_of(self, frontiers: Sequence[Antichain]) -> Antichain:
        """Return the frontier from those of the inputs: what may come at any of them."""
        found = frontiers[0]
        for other in frontiers[1:]:
            found = found.meet(other)
        return found

    def back_of(self, frontier: Antichain) -> Antichain:
        """Return the frontier of the inputs that stands for one of the view."""
        return frontier

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns needed of each input for those wanted of the view."""
        return tuple(wanted for _ in self.inputs)

    @abstractmethod
    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Compute the rows from those of the inputs: time columns first, then the columns wanted."""

    def apply_range(self, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain) -> pa.Table:
        """Compute the rows of a range, where the operator wants to know it."""
        del lo, hi
        return self.apply(tables, wanted)

    def describe(self) -> str:
        """Return what the operator does, in a few words, for people."""
        return ""

    # What follows from it ----------------------------------------------------------------------------

    def front(self, frontiers: Mapping[Replay, Antichain]) -> Antichain:
        """Return the frontier, from those of the logs below: nothing follows at times not beyond it.

        Parameters
        ----------
        frontiers : mapping of Replay to Antichain
        """
        known: dict[View, Antichain] = dict(frontiers.items())
        for view in ordered(self):  # one turn per operator
            if view not in known:
                known[view] = view.front_of([known[source] for source in view.inputs])
        return known[self]

    def pre(self, lo: Antichain, hi: Antichain) -> dict[Replay, list[tuple[Antichain, Antichain]]]:
        """Return the ranges of each log below that a range of the view needs."""
        found: dict[Replay, list[tuple[Antichain, Antichain]]] = {}
        for view, low, high, _ in steps_of(self, lo, hi, ()):
            if isinstance(view, Replay) and (low, high) not in found.setdefault(view, []):
                found[view].append((low, high))
        return found

    def run(
        self,
        read: Read,
        lo: Antichain,
        hi: Antichain,
        wanted: Names | None = None,
        *,
        watch: Watch | None = None,
        in_parts: bool = False,
        given: tuple[View, pa.Table] | None = None,
    ) -> pa.Table:
        """Compute the rows of the view at the times beyond `lo` and not beyond `hi`.

        Parameters
        ----------
        read : callable
            Gives the rows of a log below. Asked once for ranges that overlap.
        lo, hi : Antichain
            `hi` is not beyond the view's frontier.
        wanted : tuple of str, optional
            Payload columns; all unless given.
        watch : callable, optional
            Is shown what each operator gave.
        in_parts : bool
            Whether operators that go row by row get their rows in two parts: it must make no difference.
        given : (View, pyarrow.Table), optional
            A view below, and its rows, computed elsewhere.

        Returns
        -------
        pyarrow.Table
            Time columns, then payload columns; rows in no particular order.

        Raises
        ------
        OperatorError
            If a function of the user fails, or gives what it must not.
        """
        names = tuple(self.schema.names) if wanted is None else wanted
        steps = steps_of(self, lo, hi, names, stop=None if given is None else given[0])
        shared = _SharedRead(read, steps)
        uses = Counter(source for sources in steps.values() for source in sources)
        tables: dict[Step, pa.Table] = {}
        table = self.empty()
        for step, sources in steps.items():  # one turn per operator and range
            view, low, high, columns = step
            if given is not None and view is given[0]:
                table = given[1]
            elif isinstance(view, Replay):
                table = shared(view, low, high, columns)
            else:
                rows = [tables[source] for source in sources]
                half = rows[0].num_rows // 2 if in_parts and len(rows) == 1 and view.own_rowwise else 0
                cuts = [[rows[0].slice(0, half)], [rows[0].slice(half)]] if half else [rows]
                parts = [view._guarded(cut, low, high, columns) for cut in cuts]
                table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
            if watch is not None:
                watch(step, table)
            tables[step] = table
            for source in sources:
                uses[source] -= 1
                if not uses[source]:  # what is not needed again need not lie in memory
                    tables.pop(source, None)
        times = self.domain.from_columns(table)
        wrong = ~lo.beyond(times)
        if not self.later:
            wrong |= hi.beyond(times)
        if wrong.any():
            time = self.domain.render_time(times[int(np.flatnonzero(wrong)[0])].tolist())
            msg = f"operator {self.name!r} gave time={time!r} outside of its range, invariant 2"
            raise TimelyInternalError(msg)
        return table

    def _guarded(self, tables: Sequence[pa.Table], lo: Antichain, hi: Antichain, wanted: Names) -> pa.Table:
        """Let every failure name the operator and its times."""
        try:
            return self.apply_range(tables, wanted, lo, hi)
        except Exception as error:
            text = described(error)
            hint = error.hint if isinstance(error, TimelyError) else None
            raise self.failure(
                text, lo, hi, hint=hint or "correct the function or the data; nothing of these times was written"
            ) from error

    def failure(self, found: str, lo: Antichain, hi: Antichain, *, hint: str) -> OperatorError:
        """Return the error of this operator at a range of times."""
        low, high = self.domain.render_frontier(lo), self.domain.render_frontier(hi)
        msg = f"could not run operator {self.name!r} at times from {low} to {high}: found {found}"
        return OperatorError(msg, hint=hint, operator=self.name, lower=low, upper=high)

    def empty(self) -> pa.Table:
        """Return no rows, with all columns."""
        times = [pa.field(n, t.arrow) for n, t in zip(self.domain.columns, self.domain.types, strict=True)]
        return pa.schema([*times, *self.schema]).empty_table()

    def _times(self, wanted: Names) -> Names:
        return (*self.domain.columns, *wanted)


@dataclass(frozen=True, eq=False)
class Replay(View):
    """The rows of a log.

    Attributes
    ----------
    path : str
        Of the log.
    """

    path: str = ""

    def describe(self) -> str:
        """Return where the log is."""
        return self.path

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Refuse: `run` reads the rows of a log, nothing computes them."""
        del tables, wanted
        msg = f"could not compute the rows of log {self.path!r}: found no inputs"
        raise TimelyInternalError(msg)


Step = tuple[View, Antichain, Antichain, Names]
"""A view at a range of times, and the columns that are wanted of it."""

Watch = Callable[[Step, pa.Table], None]


def ordered(view: View) -> list[View]:
    """Return a view and all below it, each after its inputs."""
    found: dict[View, None] = {}
    waiting = [(view, False)]
    while waiting:  # two turns per edge
        at, ready = waiting.pop()
        if at in found:
            continue
        if ready:
            found[at] = None
        else:
            waiting.append((at, True))
            waiting += [(source, False) for source in at.inputs]
    return list(found)


def leaves_of(view: View) -> list[Replay]:
    """Return the logs below a view, each once."""
    return [leaf for leaf in ordered(view) if isinstance(leaf, Replay)]


def steps_of(
    view: View, lo: Antichain, hi: Antichain, wanted: Names, *, stop: View | None = None
) -> dict[Step, list[Step]]:
    """Return what a range of a view is computed by, each after what it is computed from, which is given with it.

    What lies below `stop` is left out.
    """
    found: dict[Step, list[Step]] = {}
    sources: dict[Step, list[Step]] = {}
    waiting: list[Step] = [(view, lo, hi, wanted)]
    while waiting:  # two turns per operator, range and use
        step = waiting[-1]
        if step in found:
            waiting.pop()
        elif step in sources:
            found[step] = sources[step]
            waiting.pop()
        else:
            at, low, high, names = step
            below, above = at.back_of(low), at.back_of(high)
            needed = zip(at.inputs, at.needs(names), strict=True) if at.inputs and at is not stop else ()
            sources[step] = [(source, below, above, columns) for source, columns in needed]
            waiting += sources[step]
    return found


class _SharedRead:
    """Reads the logs below: once for all requests whose ranges overlap, however many delays lie between."""

    def __init__(self, read: Read, steps: Iterable[Step]) -> None:
        self._read = read
        self._groups: dict[Step, _Group] = {}
        by_leaf: dict[View, list[Step]] = {}
        for step in steps:
            if isinstance(step[0], Replay):
                by_leaf.setdefault(step[0], []).append(step)
        for steps_of_leaf in by_leaf.values():
            for group in _grouped(steps_of_leaf):
                self._groups.update(dict.fromkeys(group.steps, group))

    def __call__(self, leaf: Replay, lo: Antichain, hi: Antichain, names: Names) -> pa.Table:
        """Return the rows of a range that was announced."""
        group = self._groups[leaf, lo, hi, names]
        if group.table is None:
            group.table = self._read(leaf, group.lo, group.hi, group.names)
        table = group.table.select([*leaf.domain.columns, *names])
        group.waiting -= 1
        if not group.waiting:
            group.table = None
        if (lo, hi) == (group.lo, group.hi):
            return table
        times = leaf.domain.from_columns(table)
        return table.filter(pa.array(lo.beyond(times) & ~hi.beyond(times)))


class _Group:
    """Requests of one log that are read together."""

    def __init__(self, step: Step) -> None:
        _, self.lo, self.hi, self.names = step
        self.steps = [step]
        self.waiting = 1
        self.table: pa.Table | None = None

    def add(self, step: Step) -> None:
        _, lo, hi, names = step
        self.lo, self.hi = self.lo.meet(lo), self.hi.join(hi)
        self.names = tuple(dict.fromkeys((*self.names, *names)))
        self.steps.append(step)
        self.waiting += 1


def _grouped(steps: Sequence[Step]) -> list[_Group]:
    """Join ranges that overlap; of several coordinates only those that are equal: their hull may be large."""
    if steps[0][1].arity > 1 or any(lo.is_empty for _, lo, _, _ in steps):
        equal: dict[tuple[Antichain, Antichain], _Group] = {}
        for step in steps:
            if step[1:3] in equal:
                equal[step[1:3]].add(step)
            else:
                equal[step[1:3]] = _Group(step)
        return list(equal.values())
    found: list[_Group] = []
    for step in sorted(steps, key=lambda step: step[1].elements):
        if found and (found[-1].hi.is_empty or step[1].elements <= found[-1].hi.elements):
            found[-1].add(step)
        else:
            found.append(_Group(step))
    return found


Packed = tuple[list[tuple[View, tuple[int, ...]]], list[int]]
"""Views without their inputs, each with the places of its inputs before it; and the places of those packed."""


def packed(views: Sequence[View]) -> Packed:
    """Return views and all below them as a list: pickled as they are, a few hundred in a row would be too deep.

    Examples
    --------
    >>> from spark_timely.testing import rows_of, stream_of
    >>> view = stream_of({"_time": [1]}).step_forward().view
    >>> [each.name for each, _ in packed([view])[0]], [each.name for each in unpacked(packed([view]))[0].inputs]
    (['replay_1', 'step_forward_2'], ['replay_1'])
    """
    places: dict[View, int] = {}
    flat: list[tuple[View, tuple[int, ...]]] = []
    for view in views:
        for each in ordered(view):  # one turn per operator and view
            if each not in places:
                places[each] = len(flat)
                flat.append((replace(each, inputs=()), tuple(places[source] for source in each.inputs)))
    return flat, [places[view] for view in views]


def unpacked(found: Packed) -> list[View]:
    """Return views that were packed."""
    flat, wanted = found
    made: list[View] = []
    for view, sources in flat:  # one turn per operator
        made.append(replace(view, inputs=tuple(made[source] for source in sources)) if sources else view)
    return [made[place] for place in wanted]


def with_times(times: pa.Table, payload: pa.Table) -> pa.Table:
    """Put time columns before payload columns."""
    columns = [*times.columns, *payload.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*times.schema, *payload.schema]))


def function_name(function: object) -> str:
    """Return the name of a function, for people."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name
