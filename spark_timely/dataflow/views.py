"""Views: the operators of a dataflow through which nothing is ever in flight.

A view computes the rows of any range of times whose end its frontier has reached, from the same ranges of
its inputs. It is a plain value: tasks get it pickled.

Invariants
----------
1. `run(read, lo, hi)` is a function of the rows of the logs below at the times of `pre(lo, hi)` alone: how
   they lie in files, and in what order they come, changes no row.
2. Every row that `run` gives is at a time beyond `lo` and not beyond `hi`.
3. Once the frontiers of the inputs are beyond a range, nothing can be added to it: `front` is monotone, and
   not beyond anything that the view may still give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from spark_timely.antichain import Antichain
from spark_timely.dataflow.aggregates import Aggregation, aggregate_rows
from spark_timely.dataflow.delays import BoundDelay
from spark_timely.errors import OperatorError, TimelyError, TimelyInternalError
from spark_timely.log.files import conform
from spark_timely.timestamp import TimeDomain

__all__ = [
    "Aggregate",
    "Concat",
    "Delayed",
    "Filter",
    "Join",
    "Mapped",
    "Read",
    "Replay",
    "Select",
    "View",
    "leaves_of",
    "ordered",
]

Names = tuple[str, ...]


Read = Callable[["Replay", Antichain, Antichain, Names], pa.Table]
"""Gives the rows of a log at the times of a range: its time columns, and the payload columns that are named."""


@dataclass(frozen=True, eq=False)
class View:
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
        return all(view.rowwise for view in self.inputs)

    # What an operator says ---------------------------------------------------------------------------

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

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Compute the rows from those of the inputs: time columns first, then the columns wanted."""
        raise NotImplementedError

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
        seen: set[tuple[View, Antichain, Antichain]] = set()
        waiting: list[tuple[View, Antichain, Antichain]] = [(self, lo, hi)]
        while waiting:  # one turn per operator and range
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            view, low, high = step
            if isinstance(view, Replay):
                found.setdefault(view, []).append((low, high))
            waiting += [(source, view.back_of(low), view.back_of(high)) for source in view.inputs]
        return found

    def run(self, read: Read, lo: Antichain, hi: Antichain, wanted: Names | None = None) -> pa.Table:
        """Compute the rows of the view at the times beyond `lo` and not beyond `hi`.

        Parameters
        ----------
        read : callable
            Gives the rows of a log below.
        lo, hi : Antichain
            `hi` is not beyond the view's frontier.
        wanted : tuple of str, optional
            Payload columns; all unless given.

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
        done: dict[tuple[View, Antichain, Antichain, Names], pa.Table] = {}
        table = self._run(read, lo, hi, names, done)
        times = self.domain.from_columns(table)
        wrong = ~lo.beyond(times) | hi.beyond(times)
        if wrong.any():
            time = self.domain.render_time(times[int(np.flatnonzero(wrong)[0])].tolist())
            msg = f"operator {self.name!r} gave time={time!r} outside of its range, invariant 2"
            raise TimelyInternalError(msg)
        return table

    def _run(
        self,
        read: Read,
        lo: Antichain,
        hi: Antichain,
        wanted: Names,
        done: dict[tuple[View, Antichain, Antichain, Names], pa.Table],
    ) -> pa.Table:
        key = (self, lo, hi, wanted)
        if key not in done:
            if isinstance(self, Replay):
                done[key] = read(self, lo, hi, wanted)
            else:
                low, high = self.back_of(lo), self.back_of(hi)
                tables = [
                    source._run(read, low, high, names, done)
                    for source, names in zip(self.inputs, self.needs(wanted), strict=True)
                ]
                done[key] = self._guarded(tables, lo, hi, wanted)
        return done[key]

    def _guarded(self, tables: Sequence[pa.Table], lo: Antichain, hi: Antichain, wanted: Names) -> pa.Table:
        """Let every failure name the operator and its times."""
        try:
            return self.apply(tables, wanted)
        except Exception as error:
            text = error.message if isinstance(error, TimelyError) else f"{type(error).__name__}: {error}"
            hint = error.hint if isinstance(error, TimelyError) else None
            low, high = self.domain.render_frontier(lo), self.domain.render_frontier(hi)
            msg = f"could not run operator {self.name!r} at times from {low} to {high}: found {text}"
            raise OperatorError(
                msg,
                hint=hint or "correct the function or the data; nothing of these times was written",
                operator=self.name,
                lower=low,
                upper=high,
            ) from error

    def empty(self) -> pa.Table:
        """Return no rows, with all columns."""
        times = [pa.field(n, t.arrow) for n, t in zip(self.domain.columns, self.domain.types, strict=True)]
        return pa.schema([*times, *self.schema]).empty_table()

    def _times(self, wanted: Names) -> Names:
        return (*self.domain.columns, *wanted)


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


@dataclass(frozen=True, eq=False)
class Replay(View):
    """The rows of a log.

    Attributes
    ----------
    path : str
        Of the log.
    """

    path: str = ""

    @property
    def rowwise(self) -> bool:
        """Rows are what they are."""
        return True


@dataclass(frozen=True, eq=False)
class Filter(View):
    """The rows for which a condition holds; those for which it is null go.

    Attributes
    ----------
    condition : pyarrow.compute.Expression
    columns : tuple of str
        Payload columns that it looks at.
    """

    condition: pc.Expression = None
    columns: Names = ()

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted and those of the condition."""
        return (tuple(dict.fromkeys((*wanted, *self.columns))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Keep rows."""
        return tables[0].filter(self.condition).select(self._times(wanted))


@dataclass(frozen=True, eq=False)
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
        return _with_times(made.select(self.domain.columns), payload)


@dataclass(frozen=True, eq=False)
class Mapped(View):
    """What a function makes of the rows: one row each, at its time.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, gives one of payload columns with as many rows.
    columns : tuple of str
        Payload columns that it gets.
    """

    function: Callable[[pa.Table], pa.Table] = field(default=lambda table: table)
    columns: Names = ()

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, and check what it gave."""
        rows = tables[0]
        payload = check_mapped(self.domain, rows, self.function(rows))
        made = conform(payload, self.schema, what="what the function gave")
        return _with_times(rows.select(self.domain.columns), made.select(wanted))


def check_mapped(domain: TimeDomain, rows: pa.Table, made: object) -> pa.Table:
    """Return the payload of what a function made of rows, one for one; refuse rows that came, went or moved."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {type(made).__name__!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table with one row for each that it got")
    if made.num_rows != rows.num_rows:
        msg = f"{made.num_rows} rows for {rows.num_rows}"
        raise OperatorError(msg, hint="map gives one row for each that it got; use filter to drop rows")
    for name in domain.columns:
        if name in made.schema.names:
            moved = pc.not_equal(made.column(name), rows.column(name))
            if moved.null_count or pc.any(moved).as_py():
                at = pc.index(pc.fill_null(moved, True), value=True).as_py()  # noqa: FBT003 - as Arrow has it
                before, after = rows.column(name)[at].as_py(), made.column(name)[at].as_py()
                msg = f"time {name}={after!r} for a row of {name}={before!r}"
                raise OperatorError(msg, hint="only delay moves times")
    return made.drop_columns([name for name in domain.columns if name in made.schema.names])


@dataclass(frozen=True, eq=False)
class Concat(View):
    """The rows of all inputs."""

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Put the tables behind each other."""
        names = self._times(wanted)
        schema = self.empty().schema
        parts = [table.select(names).cast(pa.schema([schema.field(name) for name in names])) for table in tables]
        return pa.concat_tables(parts)


@dataclass(frozen=True, eq=False)
class Delayed(View):
    """The rows of its input at later times.

    Attributes
    ----------
    delay : BoundDelay
    """

    delay: BoundDelay = None  # type: ignore[assignment]

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
        return _with_times(pa.table(self.domain.to_columns(after)), table.select(wanted))


@dataclass(frozen=True, eq=False)
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

    @property
    def rowwise(self) -> bool:
        """A group is made of all rows of its time."""
        return False

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of keys and of values wanted."""
        used = [a.column for name, a in self.aggregations.items() if name in wanted and a.column is not None]
        return (tuple(dict.fromkeys((*self.by, *used))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Group by time and keys."""
        keys = self._times(self.by)
        chosen = {name: a for name, a in self.aggregations.items() if name in wanted}
        schema = self.empty().schema
        made = pa.schema([schema.field(name) for name in (*keys, *chosen)])
        return aggregate_rows(tables[0], keys, chosen, made).select(self._times(wanted))


@dataclass(frozen=True, eq=False)
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

    @property
    def rowwise(self) -> bool:
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


def _with_times(times: pa.Table, payload: pa.Table) -> pa.Table:
    columns = [*times.columns, *payload.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*times.schema, *payload.schema]))
