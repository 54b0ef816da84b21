"""Views of operators over all history: they compute a range of times from new rows and from what logs hold before it.

Such a view is as pure as any other: what a log holds before a range is read again whenever the range is computed.
`Remembered` is what a history operator keeps: it is captured as it is, and the log that it is captured into is its
state. `Result` is what users see of a state that holds more. `AsOfJoin` keeps nothing of its own: it looks into a
collection as of the time of each row.

Invariants
----------
1. `Remembered` is at the top of what an output captures, and only there: its state is that output.
2. What is computed of a range of keys is what is computed of all keys, of these keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.asof import join_as_of
from spark_timely.dataflow.history.base import Changes, HistoryOperator
from spark_timely.dataflow.views import Before, Names, Replay, View, ordered, summed_updates, with_times
from spark_timely.errors import TimelyInternalError
from spark_timely.log.files.format import conform
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray
from spark_timely.trace.keys import are_among, distinct_hashes, key_hashes
from spark_timely.trace.updates import DIFF, one_zero

__all__ = ["AsOfJoin", "Look", "Remembered", "Result", "dimensions_of", "looks_of", "remembers"]


def _no_reader(name: str) -> TimelyInternalError:
    return TimelyInternalError(f"operator {name!r} looks into what was before, and was given nothing that reads it")


@dataclass(frozen=True, eq=False, repr=False)
class Remembered(View):
    """The state of an operator over all history, as it changes.

    Attributes
    ----------
    operator : HistoryOperator
    """

    operator: HistoryOperator = None  # type: ignore[assignment]

    @property
    def arranged(self) -> Replay | None:
        """The input, where what it holds of a key is looked up too."""
        source = self.inputs[0] if self.inputs else None
        if source is None or not self.operator.arranges(of_updates=source.updates):
            return None
        assert isinstance(source, Replay)
        return source

    def gives_updates(self) -> bool:
        """Return what the operator says."""
        # Without inputs it is on its way to a task.
        return bool(self.inputs) and self.operator.gives_updates(of_updates=self.inputs[0].updates)

    @property
    def later(self) -> bool:
        """Whether ends of what it says are given too."""
        return self.operator.later

    @property
    def own_rowwise(self) -> bool:
        """A key is made of all its rows."""
        return False

    def describe(self) -> str:
        """Return what the operator does."""
        return self.operator.describe()

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the operator looks at, whichever are wanted: its state is one whole."""
        return (self.operator.needs(self.inputs[0].schema),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Refuse: without what was before nothing can be said."""
        raise _no_reader(self.name)

    def apply_range(
        self, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Compute what changes in the state."""
        if before is None:
            raise _no_reader(self.name)
        source, operator = self.inputs[0], self.operator
        rows = tables[0]
        mine = before.keys.holds(key_hashes(rows, operator.by))
        if not mine.all():
            rows = rows.filter(pa.array(mine))
        if not rows.num_rows:
            return self.empty().select(self._times(wanted))
        columns = operator.needs(source.schema)
        times = source.domain.from_columns(rows)
        if before.moved_to is not None:
            times = np.maximum(times, np.array(before.moved_to, np.int64))
        changes = Changes(
            times[:, 0],
            np.asarray(rows.column(DIFF).to_numpy(), np.int64) if source.updates else np.ones(rows.num_rows, np.int64),
            rows.select(columns),
        )
        keys = rows.select(operator.by)
        held = before(None, lo, keys, operator.looks_at(source.schema))
        leaf = self.arranged
        contents = None if leaf is None else before(leaf, lo, keys, columns)
        if self.updates or source.updates:
            changes = replace(changes, rows=one_zero(changes.rows))
            held = replace(held, rows=one_zero(held.rows))
            contents = None if contents is None else replace(contents, rows=one_zero(contents.rows))
        made = operator.advance(changes, held, contents, of_updates=source.updates)
        if made.apart is not None:
            before.set_apart(changes.times[made.apart], changes.rows.take(pa.array(made.apart)), operator.why_apart)
        payload = conform(made.rows, self.schema, what="what the operator keeps")
        carried = pa.table(self.domain.to_columns(made.times.reshape(-1, 1)))
        if self.updates:
            carried = carried.append_column(DIFF, pa.array(made.diffs))
        return with_times(carried, payload.select(wanted))


@dataclass(frozen=True, eq=False, repr=False)
class Result(View):
    """The visible part of the state of an operator over all history.

    Attributes
    ----------
    operator : HistoryOperator
    """

    operator: HistoryOperator = None  # type: ignore[assignment]

    @property
    def own_rowwise(self) -> bool:
        """Updates whose hidden columns alone differ sum to nothing, at each time."""
        return not self.updates

    def describe(self) -> str:
        """Return of what."""
        return self.operator.kind

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return all columns: those that are hidden say which rows there are."""
        del wanted
        return (tuple(self.inputs[0].schema.names),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Leave out what is hidden, and updates that cancel by that."""
        rows = self.operator.show(tables[0]).select(self._times(wanted))
        return summed_updates(self.domain, rows) if self.updates else rows


@dataclass(frozen=True, eq=False, repr=False)
class AsOfJoin(View):
    """Rows of a stream, each with those of a collection that are there at its time and agree in some columns.

    Attributes
    ----------
    on : tuple of str
        A null agrees with nothing.
    how : {"inner", "left"}
    strict : bool
        Whether only changes at earlier times are seen.
    """

    on: Names = ()
    how: str = "inner"
    strict: bool = False

    def gives_updates(self) -> bool:
        """Return that they are events: later changes of the collection rewrite nothing."""
        return False

    @property
    def own_rowwise(self) -> bool:
        """A row is made of one row and of what the collection holds at its time."""
        return False

    def describe(self) -> str:
        """Return the columns that agree."""
        return f"{self.how} on {', '.join(self.on)}{', strict' if self.strict else ''}"

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return of each side the columns that agree, and those wanted."""
        left, right = self.inputs
        return (
            (*self.on, *(n for n in left.schema.names if n in wanted and n not in self.on)),
            (*self.on, *(n for n in right.schema.names if n in wanted and n not in self.on)),
        )

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Refuse: without what was before nothing can be said."""
        raise _no_reader(self.name)

    def apply_range(
        self, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Look each row up as of its time."""
        if before is None:
            raise _no_reader(self.name)
        right = self.inputs[1]
        assert isinstance(right, Replay)
        of_facts, of_dimension = self.needs(wanted)
        facts, changed = tables[0].select((*self.domain.columns, *of_facts)), tables[1]
        concerned = are_among(key_hashes(changed, self.on), distinct_hashes(key_hashes(facts, self.on)))
        changed = changed.filter(pa.array(concerned))
        changes = Changes(
            right.domain.from_columns(changed)[:, 0],
            np.asarray(changed.column(DIFF).to_numpy(), np.int64),
            changed.select(of_dimension),
        )
        held = before(right, lo, facts.select(self.on), of_dimension)
        changes = replace(changes, rows=one_zero(changes.rows))
        held = replace(held, rows=one_zero(held.rows))
        at: IntArray = self.domain.from_columns(facts)[:, 0]
        times, rows = join_as_of(
            at, facts.select(of_facts), held, changes, on=self.on, how=self.how, strict=self.strict
        )
        wanted_schema = pa.schema([self.schema.field(name) for name in wanted])
        payload = conform(rows.select(wanted), wanted_schema, what="what was joined")
        return with_times(pa.table(self.domain.to_columns(times.reshape(-1, 1))), payload)


def remembers(view: View) -> Remembered | None:
    """Return the operator whose state an output is; None if it is none."""
    return view if isinstance(view, Remembered) else None


@dataclass(frozen=True, slots=True)
class Look:
    """A look-up in a log: its key and columns.

    Attributes
    ----------
    path : str
        Of the log.
    key : tuple of str
    columns : tuple of str
        Payload columns that may be asked for.
    """

    path: str
    key: Names
    columns: Names


def dimensions_of(view: View) -> list[Replay]:
    """Return the logs of collections that a view looks events up in, as of their times."""
    found = [each.inputs[1] for each in ordered(view) if isinstance(each, AsOfJoin)]
    return [leaf for leaf in found if isinstance(leaf, Replay)]


def looks_of(view: View, own: Replay | None) -> dict[Look, Replay]:
    """Return what a view looks up before a range, and how the log is read.

    Parameters
    ----------
    view : View
    own : Replay or None
        The output's log, where it is the state of an operator over all history.
    """
    found: dict[Look, Replay] = {}
    for each in ordered(view):
        if isinstance(each, AsOfJoin):
            leaf = each.inputs[1]
            assert isinstance(leaf, Replay)
            # All columns: other joins with the same collection look into the same index.
            found[Look(leaf.path, each.on, tuple(leaf.schema.names))] = leaf
        elif isinstance(each, Remembered):
            source = each.inputs[0].schema
            if own is not None:
                found[Look(own.path, each.operator.by, each.operator.looks_at(source))] = own
            if each.arranged is not None:
                found[Look(each.arranged.path, each.operator.by, tuple(source.names))] = each.arranged
    return found
