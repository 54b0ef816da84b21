"""The newest value of each column of each key, from updates that name only the columns that they change.

It is behind `upsert` where a null leaves a value as it was (`upsert.upsert_plan`); where whole rows replace each other
it is `best`.

Invariants
----------
1. A column has the value of the last change, in the order of changes, that has one and comes after the last deletion.
2. Kept are the changes that decide so: the last deletion as long as any column has no value, the last change, and of
   each column the last one with a value. No later change can make another one of the earlier ones decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.contents import consolidated
from spark_timely.dataflow.history.keys import key_codes, ranks_of
from spark_timely.dataflow.history.runs import best_so_far, places_by_number, run_starts_of
from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["EVENT", "RESULT", "Merged", "flagged"]

EVENT = f"{HIDDEN}event"
"""Whether a row of a state is a change as it came."""

RESULT = f"{HIDDEN}result"
"""Whether a row of a state is part of the result."""


def flagged(rows: pa.Table, **flags: bool | BoolArray) -> pa.Table:
    """Return rows with other values in columns of flags.

    Examples
    --------
    >>> flagged(pa.table({"k": ["a"], "on": [True]}), on=False).to_pylist()
    [{'k': 'a', 'on': False}]
    """
    for name, values in flags.items():
        at = rows.schema.get_field_index(name)
        column = pa.array(np.broadcast_to(values, rows.num_rows), pa.bool_())
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows


@dataclass(frozen=True)
class Merged(Best):
    """The newest values of each key, of events; `EVENT` and `RESULT` are columns of the input too.

    Examples
    --------
    >>> flags = [(EVENT, pa.bool_()), (RESULT, pa.bool_())]
    >>> schema = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.string()), ("w", pa.string()), *flags])
    >>> rows = pa.table([["a", "a"], [5, 6], ["x", None], [None, "y"], [True] * 2, [False] * 2], schema=schema)
    >>> nothing = Held(None, np.zeros(0, np.int64), schema.empty_table())
    >>> merged = Merged(("k",), (("at", True),))
    >>> made = merged.advance(Changes(np.array([1, 1]), np.ones(2, np.int64), rows), nothing, None, of_updates=False)
    >>> [(row["at"], row["v"], row["w"]) for row in made.rows.to_pylist() if row[RESULT]]
    [(6, 'x', 'y')]
    """

    def describe(self) -> str:
        """Return key and order."""
        return f"{super().describe()}, of each column"

    arranges = HistoryOperator.arranges  # it is one of events

    def show(self, rows: pa.Table) -> pa.Table:
        """Leave out all but the results."""
        return rows.filter(rows.column(RESULT))

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return how the newest values change, and the changes that decide."""
        before = held.rows.filter(held.rows.column(EVENT))
        every = self._arrivals(flagged(before, **{RESULT: False}), changes)
        rows, n = every.rows, every.rows.num_rows
        order = every.by_time()
        codes, new, times = every.codes[order], every.is_new[order], every.times[order]
        of_keys, starts = run_starts_of(codes), run_starts_of(codes, new, times)
        ends = np.append(starts[1:], n) - 1
        gone = np.asarray(rows.column(DELETED).to_numpy(), np.bool_) if self.deleted else np.zeros(n, np.bool_)

        def last(which: BoolArray) -> IntArray:
            """Return, after each time of a key, the place of the last of some changes; -1 where there is none."""
            return best_so_far(np.where(which, every.places, -1)[order], of_keys)[ends]

        deletion = last(gone)
        newest = _since(deletion, last(~gone))
        others = [
            name for name in rows.schema.names
            if name not in self.by and name not in (DELETED, EVENT, RESULT) and name not in dict(self.order)
        ]  # fmt: skip
        deciding = [newest]
        for name in others:
            found = last(~gone & np.asarray(rows.column(name).is_valid().to_numpy()))
            deciding.append(_since(deletion, found))
        filled = np.all([found >= 0 for found in deciding], axis=0)
        states = np.stack([np.where(filled, -1, deletion), *deciding], axis=1)

        begins = np.zeros(starts.shape[0], np.bool_)
        begins[run_starts_of(codes[starts])] = True
        earlier = np.where(begins[:, None], -1, np.roll(states, 1, axis=0))
        changed = np.flatnonzero(new[starts] & (states != earlier).any(axis=1))
        both = np.concatenate([earlier[changed], states[changed]])
        which, numbers, kept = self._rows_of(rows, places_by_number(every.places), both, others)
        at = np.tile(times[starts][changed], 2)
        signs = np.repeat(np.array([-1, 1]), changed.shape[0])
        return consolidated(at[which], numbers, signs[which], kept)

    def _rows_of(
        self, rows: pa.Table, example: IntArray, states: IntArray, others: list[str]
    ) -> tuple[IntArray, IntArray, pa.Table]:
        """Return the rows that states have: of which state each is, a number that equal rows share, and the rows.

        Parameters
        ----------
        states : ndarray of int64, shape (n, 2 + columns)
            Places of the last deletion, of the last change, and of the last one with a value of each column.
        """
        newest, n_places = states[:, 1], example.shape[0]
        decides = states >= 0
        pairs = np.unique(np.nonzero(decides)[0] * n_places + states[decides])
        of_event, place = pairs // n_places, pairs % n_places
        # Where the last change has all values, it is the result itself.
        alone = np.all((states[:, 2:] == newest[:, None]) | (states[:, 2:] < 0), axis=1)
        is_result = alone[of_event] & (place == newest[of_event])
        events = flagged(rows.take(pa.array(example[place])), **{RESULT: is_result})
        mixed = np.flatnonzero((newest >= 0) & ~alone)
        results = rows.take(pa.array(example[newest[mixed]]))
        for number, name in enumerate(others):
            found = states[mixed, 2 + number]
            taken = rows.column(name).take(pa.array(example[found], mask=found < 0))
            at = results.schema.get_field_index(name)
            results = results.set_column(at, results.schema.field(at), taken)
        results = flagged(results, **{EVENT: False, RESULT: True})
        # Of other changes the same row may be made.
        (codes,) = key_codes([results.select(self.by)], self.by)
        alike = 2 * n_places + ranks_of(results, (), codes=codes, key=self.by)
        numbers = np.concatenate([2 * place + is_result, alike])
        return np.concatenate([of_event, mixed]), numbers, pa.concat_tables([events, results])


def _since(deletion: IntArray, places: IntArray) -> IntArray:
    """Return places that come after the last deletion, -1 for others."""
    return np.where(places > deletion, places, -1)
