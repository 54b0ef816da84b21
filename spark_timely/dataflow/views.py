"""Views: the nodes of a dataflow's graph, each an operator over its inputs that computes any range of times from them.

Not the views of SQL. `dataflow.stream` builds them, `engine.cutting` asks them which ranges and files they need, and
`engine.task_runner` computes them. A `Replay` is the view of a log that is read, a leaf of the graph.

A view computes the rows of any range of times whose end its frontier has reached, from ranges of its inputs. It is a
plain value: tasks get it pickled. Some operators make each row from one row (filter, select, map, flat_map, concat,
delay, inspect); others need whole times (aggregate, join, functions of the rows of a complete time).

The rows of a view are events, or updates of a collection: these have a column `_diff`, how often the row is added,
beside their times. It goes with the row through all operators of one row; functions do not see it.

An `Operator` says what is computed: `bind` makes views of it, and its other methods are those of a view that has it.

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

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np
import pyarrow as pa

from spark_timely.errors import OperatorError, TimelyError, TimelyInternalError, described
from spark_timely.log.files.format import LogKind
from spark_timely.time.antichain import Antichain, IntArray
from spark_timely.time.domain import TimeDomain
from spark_timely.trace.updates import DIFF

if TYPE_CHECKING:
    from spark_timely.dataflow.history.base import Held
    from spark_timely.trace.keys import KeyRange

__all__ = [
    "DIFF",
    "Before",
    "LookError",
    "Names",
    "Operator",
    "Packed",
    "Read",
    "Replay",
    "Step",
    "View",
    "Watch",
    "calls_functions",
    "joined",
    "least_time",
    "leaves_of",
    "ordered",
    "packed",
    "steps_of",
    "time_value",
    "unpacked",
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


class Operator:
    """An operator: a frozen dataclass, whose fields say what it is in the user's words.

    An operator that was bound to inputs is that of a view: its fields then have what follows from the inputs too, such
    as the columns that a condition looks at. Some operators become a chain of views, some are part of one alone.

    Attributes
    ----------
    method : str
        Of `Stream`, which makes it; begins the names of its views.
    op : str
        What it is called in the JSON of a plan; empty where no plan has it.
    """

    method: ClassVar[str] = ""
    op: ClassVar[str] = ""

    def check_plan(self) -> None:
        """Refuse what no plan can have, beside what is wrong with one field."""

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Return the view that the operator makes of others, with all below it that are new.

        A view of the chain that has no name is given one by the dataflow, as if it had been asked for by itself.

        Parameters
        ----------
        name : str
            For views and errors.
        inputs : sequence of View

        Raises
        ------
        InvalidUsageError, SchemaMismatchError
            If it cannot be made of these inputs.
        """
        raise NotImplementedError

    def view(self, name: str, schema: pa.Schema, *inputs: View) -> View:
        """Return the view that has this operator, which is bound, over inputs."""
        return View(name, inputs[0].domain, schema, inputs, operator=self)

    @property
    def keeps(self) -> str | None:
        """The name of what it keeps, if it keeps anything and the user gave one."""
        return getattr(self, "name", None)

    # What a view with it is --------------------------------------------------------------------------

    def gives_updates(self, inputs: Sequence[View]) -> bool:
        """Return whether the rows are updates of a collection."""
        return any(view.updates for view in inputs)

    @property
    def rowwise(self) -> bool:
        """Whether it makes each row from one row of its inputs alone."""
        return True

    @property
    def later(self) -> bool:
        """Whether it may give rows at times past the range that it was run for: only a log can keep those."""
        return False

    def looks_into(self, inputs: Sequence[View]) -> tuple[int, ...]:
        """Return the places of the inputs that it looks rows up in: these are read from logs."""
        return ()

    def front_of(self, frontiers: Sequence[Antichain]) -> Antichain:
        """Return the frontier from those of the inputs: what may come at any of them."""
        found = frontiers[0]
        for other in frontiers[1:]:
            found = found.meet(other)
        return found

    def back_of(self, frontier: Antichain) -> Antichain:
        """Return the frontier of the inputs that stands for one of the view."""
        return frontier

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns needed of each input for those wanted of the view."""
        return tuple(wanted for _ in view.inputs)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Compute the rows from those of the inputs: time columns first, then the columns wanted."""
        msg = f"operator {view.name!r} looks into what was before, and was given nothing that reads it"
        raise TimelyInternalError(msg)

    def apply_range(
        self, view: View, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Compute the rows of a range, where the operator wants to know it, or what logs hold before it."""
        return self.apply(view, tables, wanted)

    def describe(self) -> str:
        """Return what the operator does, in a few words, for people."""
        return ""

    def hashed(self, view: View) -> tuple[str, object] | None:
        """Return its kind, and all of it that tells one answer from another but its inputs: bytes of a fingerprint.

        None of an operator that makes no difference.
        """
        msg = f"could not make a fingerprint of {view.name!r}: found an operator of type {type(self).__name__!r}"
        raise TimelyInternalError(msg)


class _Log(Operator):
    """The operator of a log's rows, which are read and not computed."""


_LOG: Final = _Log()


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """A stream of a dataflow, as a value: an operator over inputs.

    Attributes
    ----------
    name : str
        Of the operator, for errors.
    domain : TimeDomain
        Of its times.
    schema : pyarrow.Schema
        Of its payload.
    inputs : tuple of View
    operator : Operator
        Bound to the inputs.
    updates : bool
        Whether the rows are updates of a collection.
    rowwise : bool
        Whether each row is made from one row alone, so that a time may be cut anywhere.
    """

    name: str
    domain: TimeDomain
    schema: pa.Schema
    inputs: tuple[View, ...] = ()
    operator: Operator = field(default=_LOG, kw_only=True)
    updates: bool = field(init=False, default=False)
    rowwise: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        # Kept: there may be ten thousand views below (invariant 5).
        object.__setattr__(self, "updates", self.gives_updates())
        object.__setattr__(self, "rowwise", self.operator.rowwise and all(view.rowwise for view in self.inputs))

    def __repr__(self) -> str:
        """Return kind and name, and those of its inputs alone."""
        below = ", ".join(view.name for view in self.inputs)
        kind = Replay if isinstance(self, Replay) else type(self.operator)
        return f"{kind.__name__}({self.name!r}, of=[{below}])"

    @property
    def carried(self) -> Names:
        """Columns before the payload: those of the times, and `DIFF` of updates."""
        return (*self.domain.columns, DIFF) if self.updates else self.domain.columns

    @property
    def rows_kind(self) -> LogKind:
        """Of a log that it is captured into."""
        return "collection" if self.updates else "stream"

    def gives_updates(self) -> bool:
        """Return whether the rows are updates of a collection."""
        return self.operator.gives_updates(self.inputs)

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
                known[view] = view.operator.front_of([known[source] for source in view.inputs])
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
                half = rows[0].num_rows // 2 if in_parts and len(rows) == 1 and view.operator.rowwise else 0
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
        if not self.operator.later:
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
            return self.operator.apply_range(self, tables, wanted, lo, hi, before)
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

    def with_carried(self, wanted: Names) -> Names:
        """Return columns of the payload behind those that are carried."""
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


def least_time(view: View) -> tuple[int, ...]:
    """Return a time that no row of a view comes before."""
    start = view.front({leaf: leaf.domain.minimum_frontier for leaf in leaves_of(view)}).elements
    return tuple(min(column) for column in zip(*start, strict=True)) if start else view.domain.minimum


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
            below, above = at.operator.back_of(low), at.operator.back_of(high)
            needed = zip(at.inputs, at.operator.needs(at, names), strict=True) if at.inputs and at is not stop else ()
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


def time_value(domain: TimeDomain, time: Sequence[int]) -> object:
    """Return a time as Python has it: an int, a date or a datetime; a tuple of them for several coordinates."""
    values = [kind.to_arrow([x])[0].as_py() for kind, x in zip(domain.types, time, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


def calls_functions(view: View) -> bool:
    """Whether a view, or one below it, calls a function of the user: what that needs and does is not known here.

    Examples
    --------
    >>> from spark_timely.testing import stream_of
    >>> rows = stream_of({"_time": [1], "n": [2]})
    >>> calls_functions(rows.filter("n > 1").view), calls_functions(rows.map(lambda rows: rows).view)
    (False, True)
    """
    operators = (each.operator for each in ordered(view))
    return any(hasattr(part, "function") for each in operators for part in (each, getattr(each, "history", None)))
