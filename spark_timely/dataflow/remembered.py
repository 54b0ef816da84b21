"""Remembered state as views: the nodes of operators over all history in a dataflow's graph.

They compute a range of times from its new rows and from what logs hold before it. `over_history` makes them for
`operators.history` and `operators.grouped`: a `Remembered`, with a `Result` above it where users see less than is kept.
What such an operator computes is a `HistoryOperator` of `dataflow.history`. The engine asks `remembers` whether an
output is such a state, and `looks_of` which logs it looks into.

Such a view is as pure as any other: what a log holds before a range is read again whenever the range is computed.
A `Remembered` is captured as it is, and the log that it is captured into is its state.

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

from spark_timely.dataflow.history.base import Changes, HistoryOperator
from spark_timely.dataflow.history.reduce import Reduce
from spark_timely.dataflow.history.totals import Totals
from spark_timely.dataflow.operators.checks import check_history, check_keep
from spark_timely.dataflow.operators.collections import AsUpdates, summed_updates
from spark_timely.dataflow.operators.joins import AsOfJoin
from spark_timely.dataflow.views import DIFF, Before, Names, Operator, Replay, View, ordered, with_times
from spark_timely.log.files.format import conform
from spark_timely.time.antichain import Antichain
from spark_timely.trace.keys import key_hashes
from spark_timely.trace.updates import one_zero

__all__ = ["Look", "Remembered", "Result", "dimensions_of", "looks_of", "over_history", "remembers"]


@dataclass(frozen=True, eq=False)
class Remembered(Operator):
    """The state of an operator over all history, as it changes.

    Attributes
    ----------
    history : HistoryOperator
    """

    history: HistoryOperator

    # A key is made of all its rows.
    rowwise = False

    def gives_updates(self, inputs: Sequence[View]) -> bool:
        """Return what the operator says."""
        # Without inputs it is on its way to a task.
        return bool(inputs) and self.history.gives_updates(of_updates=inputs[0].updates)

    def looks_into(self, inputs: Sequence[View]) -> tuple[int, ...]:
        """Return the input, where what it holds of a key is looked up too."""
        return (0,) if inputs and self.history.arranges(of_updates=inputs[0].updates) else ()

    @property
    def later(self) -> bool:
        """Whether ends of what it says are given too."""
        return self.history.later

    def describe(self) -> str:
        """Return what the operator does."""
        return self.history.describe()

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the operator."""
        return self.history.kind, self.history.describe()

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the operator looks at, whichever are wanted: its state is one whole."""
        return (self.history.needs(view.inputs[0].schema),)

    def apply_range(
        self, view: View, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Compute what changes in the state."""
        if before is None:
            return self.apply(view, tables, wanted)
        source, operator = view.inputs[0], self.history
        rows = tables[0]
        mine = before.keys.holds(key_hashes(rows, operator.by))
        if not mine.all():
            rows = rows.filter(pa.array(mine))
        if not rows.num_rows:
            return view.empty().select(view.with_carried(wanted))
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
        contents = None
        if self.looks_into(view.inputs):
            assert isinstance(source, Replay)
            contents = before(source, lo, keys, columns)
        if view.updates or source.updates:
            changes = replace(changes, rows=one_zero(changes.rows))
            held = replace(held, rows=one_zero(held.rows))
            contents = None if contents is None else replace(contents, rows=one_zero(contents.rows))
        made = operator.advance(changes, held, contents, of_updates=source.updates)
        if made.apart is not None:
            before.set_apart(changes.times[made.apart], changes.rows.take(pa.array(made.apart)), operator.why_apart)
        payload = conform(made.rows, view.schema, what="what the operator keeps")
        carried = pa.table(view.domain.to_columns(made.times.reshape(-1, 1)))
        if view.updates:
            carried = carried.append_column(DIFF, pa.array(made.diffs))
        return with_times(carried, payload.select(wanted))


@dataclass(frozen=True, eq=False)
class Result(Operator):
    """The visible part of the state of an operator over all history.

    Attributes
    ----------
    history : HistoryOperator
    of_updates : bool
        Whether the state is a collection.
    """

    history: HistoryOperator
    of_updates: bool

    @property
    def rowwise(self) -> bool:
        """Updates whose hidden columns alone differ sum to nothing, at each time."""
        return not self.of_updates

    def describe(self) -> str:
        """Return of what."""
        return self.history.kind

    def hashed(self, view: View) -> tuple[str, object]:
        """Return of what."""
        return "result", self.history.kind

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return all columns: those that are hidden say which rows there are."""
        return (tuple(view.inputs[0].schema.names),)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Leave out what is hidden, and updates that cancel by that."""
        rows = self.history.show(tables[0]).select(view.with_carried(wanted))
        return summed_updates(view.domain, rows) if view.updates else rows


def over_history(name: str, source: View, history: HistoryOperator, keep: str | None) -> View:
    """Return the view of what an operator over all history gives, above that of what it remembers.

    Parameters
    ----------
    name : str
    source : View
    history : HistoryOperator
    keep : str or None
        Names what it keeps, and what it looks into.
    """
    check_history(name, source)
    check_keep(name, keep)
    if history.arranges(of_updates=source.updates) and not source.updates:
        # Of events all would have to stay: updates may forget times.
        source = AsUpdates().view("", source.schema, source)
    if isinstance(history, Totals | Reduce):
        history.check(source.schema, of_updates=source.updates)
    state, shown = history.state(source.schema), history.shown(source.schema)
    kept = Remembered(history).view(name, state, source)
    return kept if state.names == shown.names else Result(history, kept.updates).view(f"{name}_result", shown, kept)


def remembers(view: View) -> Remembered | None:
    """Return the operator whose state an output is; None if it is none."""
    return view.operator if isinstance(view.operator, Remembered) else None


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
    found = [each.inputs[1] for each in ordered(view) if isinstance(each.operator, AsOfJoin)]
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
        operator = each.operator
        if isinstance(operator, AsOfJoin):
            leaf = each.inputs[1]
            assert isinstance(leaf, Replay)
            # All columns: other joins with the same collection look into the same index.
            found[Look(leaf.path, operator.on, tuple(leaf.schema.names))] = leaf
        elif isinstance(operator, Remembered):
            (source,), by = each.inputs, operator.history.by
            if own is not None:
                found[Look(own.path, by, operator.history.looks_at(source.schema))] = own
            if operator.looks_into(each.inputs):
                assert isinstance(source, Replay)
                found[Look(source.path, by, tuple(source.schema.names))] = source
    return found
