"""Views: stateless operators (filter, select, map, join and others) that compute any range of times from their inputs.

A view computes the rows of any range of times whose end its frontier has reached, from ranges of its inputs. It is a
plain value: tasks get it pickled. Some make each row from one row (filter, select, map, flat_map, concat, delay,
inspect); others need whole times (aggregate, join, functions of the rows of a complete time).

The rows of a view are events, or updates of a collection: these have a column `_diff`, how often the row is added,
beside their times. It goes with the row through all operators of one row; functions do not see it.

`front` is the frontier of a view, given those of its inputs. `pre(lo, hi)` is the range of an input that the range
from `lo` to `hi` needs. `run(read, lo, hi)` computes the rows.

Invariants
----------
1. `run(read, lo, hi)` is a function of the rows that the inputs' logs have at the times of `pre(lo, hi)` alone: their
   files and their order change no row.
2. Every row that `run` gives is at a time that is beyond `lo` (greater or equal to one of its elements) and not
   beyond `hi`. A view that is `later` may also give rows beyond `hi`.
3. Once the frontiers of the inputs are beyond a range, nothing can be added to it: `front` is monotone, and not
   beyond anything that the view may still give.
4. What an operator makes of updates are updates, and what they add up to is a function of what its inputs add up to:
   no operator gets updates that could not take them back.
5. A graph may be ten thousand operators deep, with as many ways through it as two to that power. Nothing recurses over
   it, and no walk visits a view twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import Aggregation, aggregate_rows
from spark_timely.dataflow.delays import BoundDelay
from spark_timely.errors import OperatorError, TimelyError, TimelyInternalError, described, kind_of
from spark_timely.log.files.format import LogKind, conform
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray, group_times
from spark_timely.time.domain import TimeDomain
from spark_timely.trace.updates import DIFF, Updates

if TYPE_CHECKING:
    from spark_timely.dataflow.history.base import Held
    from spark_timely.trace.keys import KeyRange

__all__ = [
    "DIFF",
    "ROW",
    "Aggregate",
    "AsUpdates",
    "Before",
    "Concat",
    "Consolidated",
    "Delayed",
    "Filter",
    "FlatMapped",
    "Inspected",
    "Join",
    "Mapped",
    "Names",
    "Negated",
    "Notified",
    "Packed",
    "Read",
    "Replay",
    "Select",
    "Step",
    "View",
    "Watch",
    "calls_functions",
    "check_flat_mapped",
    "check_mapped",
    "check_notified",
    "function_name",
    "joined",
    "leaves_of",
    "ordered",
    "steps_of",
    "summed_updates",
    "time_value",
    "with_times",
]

Names = tuple[str, ...]

# Rows that are copied at once; pieces of more rows that are left as they are.
_FEW_ROWS: Final = 4_096
_FEW_PIECES: Final = 16

Read = Callable[["Replay", Antichain, Antichain, Names], pa.Table]
"""Gives the rows of a log at the times of a range: its time columns, and the payload columns that are named."""


class Before(Protocol):
    """Gives what logs hold of some keys before a range of times.

    Attributes
    ----------
    keys : KeyRange
        Of which keys anything is computed.
    moved_to : tuple of int or None
        Time up to which what comes is moved: of updates, the contents at which an output begins.
    """

    @property
    def keys(self) -> KeyRange: ...  # noqa: D102 - see above

    @property
    def moved_to(self) -> tuple[int, ...] | None: ...  # noqa: D102 - see above

    def __call__(self, leaf: Replay | None, lo: Antichain, keys: pa.Table, columns: Names) -> Held:
        """Return what a log holds before `lo` of the keys in a table, and maybe of others; None is the output's own.

        Raises
        ------
        LookError
            If it could not be read: no operator is to blame.
        """

    def set_apart(self, times: IntArray, rows: pa.Table, why: str) -> None:
        """Keep rows of the range that are not believed, beside its result; a second call replaces the first."""


class LookError(Exception):
    """A look-up in a log that could not be read; `error` has the reason."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, eq=False, repr=False)
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
    updates : bool
        Whether the rows are updates of a collection.
    rowwise : bool
        Whether each row is made from one row alone, so that a time may be cut anywhere.
    """

    name: str
    domain: TimeDomain
    schema: pa.Schema
    inputs: tuple[View, ...] = ()
    updates: bool = field(init=False, default=False)
    rowwise: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        # Kept: there may be ten thousand views below (invariant 5).
        object.__setattr__(self, "updates", self.gives_updates())
        object.__setattr__(self, "rowwise", self.own_rowwise and all(view.rowwise for view in self.inputs))

    def __repr__(self) -> str:
        """Return kind and name, and those of its inputs alone."""
        below = ", ".join(view.name for view in self.inputs)
        return f"{type(self).__name__}({self.name!r}, of=[{below}])"

    @property
    def carried(self) -> Names:
        """Columns before the payload: those of the times, and `DIFF` of updates."""
        return (*self.domain.columns, DIFF) if self.updates else self.domain.columns

    @property
    def rows_kind(self) -> LogKind:
        """Of a log that it is captured into."""
        return "collection" if self.updates else "stream"

    # What an operator says ---------------------------------------------------------------------------

    def gives_updates(self) -> bool:
        """Return whether the rows are updates of a collection."""
        return any(view.updates for view in self.inputs)

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

    def apply_range(
        self, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Compute the rows of a range, where the operator wants to know it, or what logs hold before it."""
        del lo, hi, before
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
        for view in ordered(self):
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
        look: Look | None = None,
        in_parts: bool = False,
        given: tuple[View, pa.Table] | None = None,
        before: Before | None = None,
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
        look : callable, optional
            Is shown what each operator gets, before; it may refuse that.
        in_parts : bool
            Whether operators that go row by row get their rows in two parts: it must make no difference.
        given : (View, pyarrow.Table), optional
            A view below, and its rows, computed elsewhere.
        before : Before, optional
            Gives what logs hold of some keys before the range, where an operator remembers.

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
        for step, sources in steps.items():
            view, low, high, columns = step
            if given is not None and view is given[0]:
                table = given[1]
            elif isinstance(view, Replay):
                table = shared(view, low, high, columns)
            else:
                rows = [tables[source] for source in sources]
                if look is not None:
                    look(view, rows)
                half = rows[0].num_rows // 2 if in_parts and len(rows) == 1 and view.own_rowwise else 0
                cuts = [[rows[0].slice(0, half)], [rows[0].slice(half)]] if half else [rows]
                parts = [view._guarded(cut, low, high, columns, before) for cut in cuts]
                table = parts[0] if len(parts) == 1 else joined(parts)
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

    def _guarded(
        self, tables: Sequence[pa.Table], lo: Antichain, hi: Antichain, wanted: Names, before: Before | None = None
    ) -> pa.Table:
        """Let every failure name the operator and its times."""
        try:
            return self.apply_range(tables, wanted, lo, hi, before)
        except LookError as failed:
            raise failed.error from failed.error.__cause__
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
        diffs = [pa.field(DIFF, pa.int64())] if self.updates else []
        return pa.schema([*times, *diffs, *self.schema]).empty_table()

    def seen(self, columns: Names | None = None) -> Names:
        """Return the columns that functions and expressions see: the times, and all payload columns unless given."""
        return (*self.domain.columns, *(self.schema.names if columns is None else columns))

    def _times(self, wanted: Names) -> Names:
        return (*self.carried, *wanted)


@dataclass(frozen=True, eq=False, repr=False)
class Replay(View):
    """The rows of a log.

    Attributes
    ----------
    path : str
        Of the log.
    log_kind : str
        Of the log: `stream` or `collection`.
    """

    path: str = ""
    log_kind: LogKind = "stream"

    def gives_updates(self) -> bool:
        """Return whether the log is a collection."""
        return self.log_kind == "collection"

    def describe(self) -> str:
        """Return where the log is."""
        return f"{self.path}, updates" if self.updates else self.path

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Refuse: `run` reads the rows of a log, nothing computes them."""
        del tables, wanted
        msg = f"could not compute the rows of log {self.path!r}: found no inputs"
        raise TimelyInternalError(msg)


Step = tuple[View, Antichain, Antichain, Names]
"""A view at a range of times, and the columns that are wanted of it."""

Watch = Callable[[Step, pa.Table], None]

Look = Callable[[View, Sequence[pa.Table]], None]


def ordered(view: View) -> list[View]:
    """Return a view and all below it, each after its inputs."""
    found: dict[View, None] = {}
    waiting = [(view, False)]
    while waiting:
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

    What is below `stop` is left out.
    """
    found: dict[Step, list[Step]] = {}
    waiting: list[tuple[Step, list[Step] | None]] = [((view, lo, hi, wanted), None)]
    while waiting:  # twice per operator, range and use
        step, sources = waiting.pop()
        if sources is not None:
            found[step] = sources
        elif step not in found:
            at, low, high, names = step
            below, above = at.back_of(low), at.back_of(high)
            needed = zip(at.inputs, at.needs(names), strict=True) if at.inputs and at is not stop else ()
            sources = [(source, below, above, columns) for source, columns in needed]
            waiting.append((step, sources))
            waiting += [(source, None) for source in sources]
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
        table = group.table.select([*leaf.carried, *names])
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
    if steps[0][1].arity > 1:
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
        for each in ordered(view):
            if each not in places:
                places[each] = len(flat)
                flat.append((replace(each, inputs=()), tuple(places[source] for source in each.inputs)))
    return flat, [places[view] for view in views]


def unpacked(found: Packed) -> list[View]:
    """Return views that were packed."""
    flat, wanted = found
    made: list[View] = []
    for view, sources in flat:
        made.append(replace(view, inputs=tuple(made[source] for source in sources)) if sources else view)
    return [made[place] for place in wanted]


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Put tables of one schema behind each other, in few pieces.

    Arrow leaves pieces as they are, and each operator works piece by piece: of a stream that is parted and put together
    k times there would be as many as two to the power of k, nearly all of them empty. So small neighbours become one,
    until each is at least twice as large as what follows it: a row is copied as often as its piece doubles.

    Examples
    --------
    >>> rows = pa.table({"n": range(1000)})
    >>> [joined([rows] * n).column("n").num_chunks for n in (4, 10, 100)]
    [1, 10, 3]
    """
    whole = pa.concat_tables(tables)
    pieces = whole.column(0).num_chunks if whole.num_columns else 0
    if pieces > 1 and whole.num_rows <= _FEW_ROWS:
        return whole.combine_chunks()
    if pieces <= _FEW_PIECES:
        return whole
    groups: list[tuple[int, list[pa.RecordBatch]]] = []
    for batch in whole.to_batches():
        rows, batches = batch.num_rows, [batch]
        while groups and groups[-1][0] < 2 * rows:
            before, others = groups.pop()
            rows, batches = before + rows, others + batches
        if rows:
            groups.append((rows, batches))
    parts = [pa.Table.from_batches(batches, whole.schema).combine_chunks() for _, batches in groups]
    return pa.concat_tables([*parts, whole.schema.empty_table()][: max(len(parts), 1)])


def with_times(times: pa.Table, payload: pa.Table) -> pa.Table:
    """Put time columns before payload columns."""
    columns = [*times.columns, *payload.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*times.schema, *payload.schema]))


def function_name(function: object) -> str:
    """Return the name of a function, for people."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def calls_functions(view: View) -> bool:
    """Whether a view, or one below it, calls a function of the user: what that needs and does is not known here.

    Examples
    --------
    >>> from spark_timely.testing import stream_of
    >>> rows = stream_of({"_time": [1], "n": [2]})
    >>> calls_functions(rows.filter("n > 1").view), calls_functions(rows.map(lambda rows: rows).view)
    (False, True)
    """
    return any(hasattr(part, "function") for each in ordered(view) for part in (each, getattr(each, "operator", None)))


ROW = "_row"
"""Column in which the function of `flat_map` says from which row a row is made."""


@dataclass(frozen=True, eq=False, repr=False)
class Filter(View):
    """The rows for which a condition holds; those for which it is null go.

    Attributes
    ----------
    condition : pyarrow.compute.Expression
    columns : tuple of str
        Payload columns that it looks at.
    text : str
        The condition as it was given, for people.
    sql : str or None
        The condition as SQL, if it was given so.
    """

    condition: pc.Expression = None
    columns: Names = ()
    text: str = ""
    sql: str | None = None

    def describe(self) -> str:
        """Return the condition."""
        return self.text

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted and those of the condition."""
        return (tuple(dict.fromkeys((*wanted, *self.columns))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Keep rows."""
        return tables[0].filter(self.condition).select(self._times(wanted))


@dataclass(frozen=True, eq=False, repr=False)
class Select(View):
    """Columns computed from columns, row by row.

    Attributes
    ----------
    expressions : dict of str to pyarrow.compute.Expression
        By column that comes out.
    columns : tuple of str
        Payload columns that they look at.
    """

    expressions: Mapping[str, pc.Expression] = field(default_factory=dict)
    columns: Names = ()

    def describe(self) -> str:
        """Return what is computed."""
        return ", ".join(name if str(x) == name else f"{name}={x}" for name, x in self.expressions.items())

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of all expressions."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Compute the columns."""
        names = self._times(wanted)
        chosen = [self.expressions.get(name, pc.field(name)) for name in names]
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(tables[0]))
        project = acero.Declaration("project", acero.ProjectNodeOptions(chosen, list(names)), [source])
        made = project.to_table(use_threads=False)
        payload = conform(made.select(wanted), pa.schema([self.schema.field(name) for name in wanted]))
        return with_times(made.select(self.carried), payload)


@dataclass(frozen=True, eq=False, repr=False)
class Mapped(View):
    """A user's function of rows that gives one row for each, at its time.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, gives one of payload columns with as many rows.
    columns : tuple of str
        Payload columns that it gets.
    named : bool
        Whether these were named, or are simply all.
    """

    function: Callable[[pa.Table], pa.Table] = field(default=lambda table: table)
    columns: Names = ()
    named: bool = False

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, and check what it gave."""
        rows = tables[0]
        seen = rows.select(self.seen(self.columns))
        payload = check_mapped(self.domain, seen, self.function(seen))
        made = conform(payload, self.schema, what="what the function gave")
        return with_times(rows.select(self.carried), made.select(wanted))


def check_mapped(domain: TimeDomain, rows: pa.Table, made: object) -> pa.Table:
    """Return the payload of what a function made of rows, one for one; refuse rows that came, went or moved."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table with one row for each that it got")
    if made.num_rows != rows.num_rows:
        msg = f"{made.num_rows} rows for {rows.num_rows}"
        raise OperatorError(msg, hint="use filter to drop rows: map gives one row for each that it got")
    for name in domain.columns:
        if name in made.schema.names:
            moved = pc.not_equal(made.column(name), rows.column(name))
            if moved.null_count or pc.any(moved).as_py():
                at = pc.index(pc.fill_null(moved, True), value=True).as_py()  # noqa: FBT003 - as Arrow has it
                before, after = rows.column(name)[at].as_py(), made.column(name)[at].as_py()
                msg = f"time {name}={after!r} for a row of {name}={before!r}"
                raise OperatorError(msg, hint="leave the time columns as they are: only delay moves times")
    return made.drop_columns([name for name in domain.columns if name in made.schema.names])


@dataclass(frozen=True, eq=False, repr=False)
class FlatMapped(View):
    """A user's function of rows that gives any number of rows for each, at its time.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns; gives one of payload columns, and of `ROW`: the number of the
        row from which each is made.
    columns : tuple of str
        Payload columns that it gets.
    named : bool
        Whether these were named, or are simply all.
    """

    function: Callable[[pa.Table], pa.Table] = field(default=lambda table: table)
    columns: Names = ()
    named: bool = False

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, and give each row the time of the one that it is made from."""
        rows = tables[0]
        seen = rows.select(self.seen(self.columns))
        payload, places = check_flat_mapped(seen, self.function(seen))
        made = conform(payload, self.schema, what="what the function gave")
        return with_times(rows.select(self.carried).take(places), made.select(wanted))


def check_flat_mapped(rows: pa.Table, made: object) -> tuple[pa.Table, pa.Array]:
    """Return the payload of what a function made of rows, and the number of the row that each is made from."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint=f"let the function give a pyarrow.Table with a column {ROW!r}")
    hint = f"say in column {ROW!r} from which row each is made, counted from 0: pc.list_parent_indices does for lists"
    if ROW not in made.schema.names or not pa.types.is_integer(made.schema.field(ROW).type):
        msg = f"columns {made.schema.names!r}, none of them an integer {ROW!r}"
        raise OperatorError(msg, hint=hint)
    places = made.column(ROW).cast(pa.int64()).combine_chunks()
    ends = pc.min_max(places).as_py()
    if places.null_count or (len(places) and not 0 <= ends["min"] <= ends["max"] < rows.num_rows):
        msg = f"{ROW} from {ends['min']} to {ends['max']} with {places.null_count} nulls for {rows.num_rows} rows"
        raise OperatorError(msg, hint=hint)
    return made.drop_columns([ROW]), places


@dataclass(frozen=True, eq=False, repr=False)
class Inspected(View):
    """Its input as it is; a function is shown the rows.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, and the range of times that is being computed.
    """

    function: Callable[[pa.Table, Antichain, Antichain], object] = field(default=lambda *_: None)

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return all columns: the function is shown all."""
        return (tuple(self.schema.names),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Hand the rows on."""
        return tables[0].select(self._times(wanted))

    def apply_range(
        self, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Show the rows, and hand them on."""
        del before
        self.function(tables[0], lo, hi)
        return self.apply(tables, wanted)


@dataclass(frozen=True, eq=False, repr=False)
class Concat(View):
    """The rows of all inputs."""

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Put the tables behind each other."""
        names = self._times(wanted)
        schema = self.empty().schema
        parts = [table.select(names).cast(pa.schema([schema.field(name) for name in names])) for table in tables]
        return joined(parts)


@dataclass(frozen=True, eq=False, repr=False)
class Delayed(View):
    """The rows of its input at later times.

    Attributes
    ----------
    delay : BoundDelay
    """

    delay: BoundDelay = None  # type: ignore[assignment]

    def describe(self) -> str:
        """Return the delay."""
        return self.delay.describe()

    def front_of(self, frontiers: Sequence[Antichain]) -> Antichain:
        """Return the frontier behind the delay."""
        return self.delay.front(frontiers[0])

    def back_of(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay."""
        return self.delay.back(frontier)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Move the times."""
        table = tables[0]
        before = self.domain.from_columns(table)
        after, ok = self.delay.forward(before)
        if not ok.all():
            time = self.domain.render_time(before[int(np.flatnonzero(~ok)[0])].tolist())
            msg = f"time={time!r}, which it would delay past the greatest time of its type"
            raise OperatorError(msg, hint="drop such rows before the delay")
        rest = self._times(wanted)[self.domain.arity :]
        return with_times(pa.table(self.domain.to_columns(after)), table.select(rest))


@dataclass(frozen=True, eq=False, repr=False)
class AsUpdates(View):
    """The rows of a stream as updates: each is added once, or as often as a column says.

    Attributes
    ----------
    column : str or None
        Of integers; it is no longer part of the payload.
    """

    column: str | None = None

    def gives_updates(self) -> bool:
        """They are."""
        return True

    def describe(self) -> str:
        """Return the column."""
        return self.column or ""

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted, and the one that says how often."""
        return (wanted if self.column is None else (*wanted, self.column),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Put the numbers beside the times; rows that count nothing go."""
        rows = tables[0]
        if self.column is None:
            diffs = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)])
        else:
            diffs = rows.column(self.column).cast(pa.int64())
        if diffs.null_count:
            msg = f"null in column {self.column!r}, at row {pc.index(diffs.is_null(), value=True).as_py()}"
            raise OperatorError(msg, hint="fill or drop such rows: an update says how often its row is added")
        times = rows.select(self.domain.columns).append_column(DIFF, diffs)
        return with_times(times, rows.select(wanted)).filter(pc.field(DIFF) != 0)


@dataclass(frozen=True, eq=False, repr=False)
class Negated(View):
    """Updates that take back what those of its input add."""

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Change the sign."""
        rows = tables[0].select(self._times(wanted))
        number = rows.schema.get_field_index(DIFF)
        try:
            negated = pc.negate_checked(rows.column(DIFF))
        except pa.ArrowInvalid as error:
            msg = f"a row that counts {-(1 << 63)} times, the opposite of which does not fit 64 bits"
            raise OperatorError(msg, hint="consolidate the updates before") from error
        return rows.set_column(number, rows.schema.field(number), negated)


@dataclass(frozen=True, eq=False, repr=False)
class Consolidated(View):
    """One update of each row that changes at a time: the sum of all of that time; none where it is 0."""

    @property
    def own_rowwise(self) -> bool:
        """A sum is made of all updates of its time."""
        return False

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Sum equal rows."""
        return summed_updates(self.domain, tables[0].select(self._times(wanted)))


def summed_updates(domain: TimeDomain, rows: pa.Table) -> pa.Table:
    """Return updates, as a view has them, with equal rows of a time summed, without those that sum to 0.

    Parameters
    ----------
    domain : TimeDomain
    rows : pyarrow.Table
        Time columns, `DIFF`, payload. Not modified.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> rows = pa.table({"_time": [1, 1, 1, 2], "_diff": [1, -1, 2, 1], "v": ["a", "a", "b", "a"]})
    >>> summed_updates(TimeDomain.from_json({"times": ["long"]}), rows).to_pylist()
    [{'_time': 1, '_diff': 2, 'v': 'b'}, {'_time': 2, '_diff': 1, 'v': 'a'}]
    """
    payload = rows.schema.names[domain.arity + 1 :]
    return Updates.of_table(rows, domain, payload).consolidated().with_times(domain).cast(rows.schema)


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate(View):
    """Values of the groups of each complete time.

    Attributes
    ----------
    by : tuple of str
    aggregations : dict of str to Aggregation
        By column that comes out.
    """

    by: Names = ()
    aggregations: Mapping[str, Aggregation] = field(default_factory=dict)

    def describe(self) -> str:
        """Return keys and values."""
        values = (f"{name}={a.kind}({a.column or ''})" for name, a in self.aggregations.items())
        return f"by {', '.join(self.by) or 'time'}: {', '.join(values)}"

    @property
    def own_rowwise(self) -> bool:
        """A group is made of all rows of its time."""
        return False

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of keys and of values wanted."""
        used = [a.column for name, a in self.aggregations.items() if name in wanted and a.column is not None]
        return (tuple(dict.fromkeys((*self.by, *used))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Group by time and keys."""
        keys, chosen, schema = self.plan(wanted)
        return aggregate_rows(tables[0], keys, chosen, schema).select(self.names(wanted))

    def plan(self, wanted: Names) -> tuple[Names, dict[str, Aggregation], pa.Schema]:
        """Return what is grouped by, the values wanted, and the columns that come out of the grouping."""
        keys = self._times(self.by)
        chosen = {name: a for name, a in self.aggregations.items() if name in wanted}
        schema = self.empty().schema
        return keys, chosen, pa.schema([schema.field(name) for name in (*keys, *chosen)])

    def names(self, wanted: Names) -> Names:
        """Return the names of time columns and of the columns wanted."""
        return self._times(wanted)


@dataclass(frozen=True, eq=False, repr=False)
class Join(View):
    """Pairs of rows of one time that agree in some columns.

    Attributes
    ----------
    on : tuple of str
        A null agrees with nothing.
    how : {"inner", "left outer"}
        Whether rows on the left without a partner stay, with nulls.
    """

    on: Names = ()
    how: str = "inner"

    def describe(self) -> str:
        """Return the columns that agree."""
        return f"{self.how} on {', '.join(self.on)}"

    @property
    def own_rowwise(self) -> bool:
        """A pair is made of any two rows of its time."""
        return False

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return of each side the columns that agree, and those wanted."""
        left, right = self.inputs
        return (
            (*self.on, *(n for n in left.schema.names if n in wanted and n not in self.on)),
            (*self.on, *(n for n in right.schema.names if n in wanted and n not in self.on)),
        )

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Join by time and columns."""
        left, right = tables
        names = self._times(wanted)
        joined = left.join(right, keys=list(self._times(self.on)), join_type=self.how, use_threads=False)
        schema = self.empty().schema
        return joined.select(names).cast(pa.schema([schema.field(name) for name in names]))


@dataclass(frozen=True, eq=False, repr=False)
class Notified(View):
    """A user's function of the rows of each complete time, called in ascending order of times.

    Attributes
    ----------
    function : callable
        Takes the time and a table of payload columns for each input; gives a table or None.
    columns : tuple of tuple of str
        Payload columns that it gets, by input.
    may_be_later : bool
        Whether it may give rows at later times too.
    named : tuple of bool
        Whether the columns were named, or are simply all, by input.
    """

    function: Callable[..., pa.Table | None] = field(default=lambda *_: None)
    columns: tuple[Names, ...] = ()
    may_be_later: bool = False
    named: tuple[bool, ...] = ()

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    @property
    def own_rowwise(self) -> bool:
        """The function sees all rows of a time."""
        return False

    @property
    def later(self) -> bool:
        """Whether it may give rows at times past the range that it was run for."""
        return self.may_be_later

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return self.columns

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, time by time."""
        made = [self.empty()]
        for time, parts in _by_time(self.domain, tables):
            rows = [part.select(names) for part, names in zip(parts, self.columns, strict=True)]
            given = self.function(time_value(self.domain, time), *rows)
            if given is not None:
                times, payload = check_notified(self.domain, time, given, may_be_later=self.may_be_later)
                made.append(with_times(times, conform(payload, self.schema, what="what the function gave")))
        schema = made[0].schema
        return pa.concat_tables([table.cast(schema) for table in made]).select(self._times(wanted))


def time_value(domain: TimeDomain, time: Sequence[int]) -> object:
    """Return a time as Python has it: an int, a date or a datetime; a tuple of them for several coordinates."""
    values = [kind.to_arrow([x])[0].as_py() for kind, x in zip(domain.types, time, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


def _by_time(domain: TimeDomain, tables: Sequence[pa.Table]) -> Iterator[tuple[tuple[int, ...], list[pa.Table]]]:
    """Give the rows of each time that any table has rows of, in lexicographic order."""
    lengths = [table.num_rows for table in tables]
    unique, codes, _ = group_times(np.concatenate([domain.from_columns(table) for table in tables]))
    sorted_tables, bounds = [], []
    for table, mine in zip(tables, np.split(codes, np.cumsum(lengths)[:-1]), strict=True):
        order = np.argsort(mine, kind="stable")
        sorted_tables.append(table.take(pa.array(order)))
        bounds.append(np.searchsorted(mine[order], np.arange(unique.shape[0] + 1)))
    for i, time in enumerate(unique.tolist()):
        parts = [t.slice(int(b[i]), int(b[i + 1] - b[i])) for t, b in zip(sorted_tables, bounds, strict=True)]
        yield tuple(time), parts


def check_notified(
    domain: TimeDomain, time: Sequence[int], made: object, *, may_be_later: bool
) -> tuple[pa.Table, pa.Table]:
    """Return times and payload of what a function made of a complete time; refuse rows before it."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table, or None for no rows")
    names = [name for name in domain.columns if name in made.schema.names]
    if not names:
        at: IntArray = np.tile(np.array(time, dtype=np.int64), (made.num_rows, 1))
        return pa.table(domain.to_columns(at)), made
    if len(names) != domain.arity:
        msg = f"time columns {names!r} only"
        raise OperatorError(msg, hint=f"give all of {domain.columns!r}, or none for rows at the time itself")
    times = domain.from_columns(made)
    wrong = ~Antichain.of(tuple(time)).beyond(times) if may_be_later else (times != np.array(time)).any(axis=1)
    if wrong.any():
        given = domain.render_time(times[int(np.flatnonzero(wrong)[0])].tolist())
        msg = f"a row at time={given!r} for the complete time={domain.render_time(time)!r}"
        before = "give rows at the time that is complete or, with later=True, after it"
        raise OperatorError(msg, hint=before)
    return pa.table(domain.to_columns(times)), made.drop_columns(names)
