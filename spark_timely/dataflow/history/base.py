"""The base class of operators over all history: a pure function from new rows and kept state to changes.

An operator keeps, per key, rows in a log: its state. A step gives it the rows of a range of times of some keys, and
what the state holds of these keys before the range; it gives what changes, at the times at which it changes. The log
that holds the state is its own output, and the output is the only commit: nothing else needs repair after a crash.

The operators are the modules of this folder; `dataflow.remembered` calls `HistoryOperator.advance`, and
`engine.lookups` reads what the state holds (`Held`).

Invariants
----------
1. `advance` is a function of the contents of its tables: the order of rows, and how they are cut into chunks, change
   nothing.
2. Ranges one after the other give what one range of all their times gives, summed up by time and row.
3. Keys do not need each other: what is given for some keys is what is given for all, of these keys.
4. Old values that are taken away are those that the state holds. What comes and goes at one time gives nothing.
5. Where two rows are equal in the order that decides, their columns decide, never the order of arrival.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.time.antichain import IntArray

__all__ = ["HIDDEN", "Changes", "Held", "HistoryOperator"]

Names = tuple[str, ...]

HIDDEN: Final = "_kept_"
"""Begins the names of columns that a state has and the operator's result has not."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows with their times and how often each is added.

    Attributes
    ----------
    times : ndarray of int64, shape (n,)
        Encoded times of one coordinate, as `TimeDomain.from_columns` gives them.
    diffs : ndarray of int64, shape (n,)
        Not 0.
    rows : pyarrow.Table
        n rows.
    apart : ndarray of int64 or None
        Of an operator's answer: numbers of the rows given to it that it does not believe, to be set apart.
    """

    times: IntArray
    diffs: IntArray
    rows: pa.Table
    apart: IntArray | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The rows that a log holds of some keys before a range of times.

    Attributes
    ----------
    times : ndarray of int64, shape (n,) or None
        Of events; None of the contents of a collection.
    counts : ndarray of int64, shape (n,)
        How often each row is there: more than 0, consolidated; 1 each for events.
    rows : pyarrow.Table
        n rows.
    """

    times: IntArray | None
    counts: IntArray
    rows: pa.Table


class HistoryOperator(ABC):
    """An operator over all history; a frozen dataclass, picklable.

    Attributes
    ----------
    by : tuple of str
        The key: columns of the input and, under the same names, of the state. Null is a key; floats are none.
    """

    by: Names

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is called: ``latest``."""

    @abstractmethod
    def describe(self) -> str:
        """Return its parameters, for people and for the fingerprint of a plan: all that its answers depend on."""

    def state(self, source: pa.Schema) -> pa.Schema:
        """Return the columns of the state; names of columns that are kept besides the result begin with `HIDDEN`.

        Those of the input unless it says so.
        """
        return source

    def shown(self, source: pa.Schema) -> pa.Schema:
        """Return the columns of the result: those of the state unless it says so."""
        return self.state(source)

    def needs(self, source: pa.Schema) -> Names:
        """Return the columns of the input that it looks at: all unless it says so."""
        return tuple(source.names)

    def gives_updates(self, *, of_updates: bool) -> bool:
        """Return whether the result is a collection, by whether the input is one."""
        return True

    def arranges(self, *, of_updates: bool) -> bool:
        """Return whether it needs what the input holds of a key too, beside the state."""
        return False

    def looks_at(self, source: pa.Schema) -> Names:
        """Return the columns of the state that it looks at: all unless it says so."""
        return tuple(self.state(source).names)

    @property
    def looks_back(self) -> int | None:
        """How far before a time it looks into its own output, in units of the times; None: at all of it."""
        return None

    @property
    def later(self) -> bool:
        """Whether it also gives changes at times after the range: ends of what it says in the range."""
        return False

    @property
    def why_apart(self) -> str:
        """Why it does not believe rows, where there are such."""
        return ""

    def show(self, rows: pa.Table) -> pa.Table:
        """Return which rows of the state are part of the result, with the result's columns and any columns before them.

        Not called where state and result have the same columns.
        """
        return rows

    @abstractmethod
    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return what changes in the state.

        Parameters
        ----------
        changes : Changes
            Of the input in a range of times, of some keys: all of these keys in the range, with the columns that it
            `needs`; at least one. Of events each counts 1. Not consolidated, in no order.
        held : Held
            What the state holds of these keys before the range, with the columns that it `looks_at`; other keys may be
            among them.
        contents : Held or None
            What the input holds of these keys before the range, where it `arranges` it; other keys may be among them.
        of_updates : bool
            Whether the input is a collection.

        Returns
        -------
        Changes
            With the columns of the state, at times of the range, or later where it is `later`; consolidated.

        Raises
        ------
        OperatorError
            If a row would be there less than 0 times: names key and time.
        """
