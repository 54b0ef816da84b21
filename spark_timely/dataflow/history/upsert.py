"""Upserts: a table kept current from a log of changes that are inserts, updates or deletes.

`operators.history` has an `Upsert` too, with what the user says. It calls `upsert_plan`, which makes the `Upsert` of
this module: the one that computes. That sets apart changes that have no place in the order, and hides what its result
does not show. The operator in it decides what is kept of a key, and how a change changes it: the newest row (`best`,
`tombstones`), the newest value of each column (`merged`), or all versions (`versions`); `truncates` goes around one of
these where changes may empty the table.

Invariants
----------
1. What a key has at a time is a function of all its changes up to this time: never of the order in which they came, nor
   of how they were cut.
2. Of changes of equal sequence a delete comes last, else all columns of the state decide, the greatest last. The
   emptying of the table comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.merged import EVENT, RESULT, Merged
from spark_timely.dataflow.history.truncates import TRUNCATES, Truncated
from spark_timely.dataflow.history.versions import END, START, MergedVersions, Versions

__all__ = ["Upsert", "upsert_plan"]


@dataclass(frozen=True)
class Upsert(HistoryOperator):
    """A table by key, made from a log of changes.

    Parameters
    ----------
    by : tuple of str
        What the rows are looked up by: the key, or nothing where one change concerns all keys.
    sequence : tuple of str
        Columns of the state that order the changes of a key; a change without a value in any is set apart.
    inner : HistoryOperator
        What is kept of changes that have one.
    hidden : tuple of str
        Columns of the state that are no part of the result.

    Examples
    --------
    >>> schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    >>> nothing = Held(None, np.zeros(0, np.int64), schema.empty_table())
    >>> rows = pa.table([["a", "a"], [5, None]], schema=schema)
    >>> upsert = Upsert(("k",), ("at",), Best(("k",), (("at", True),)), ())
    >>> made = upsert.advance(Changes(np.array([1, 2]), np.ones(2, np.int64), rows), nothing, None, of_updates=False)
    >>> made.rows.to_pylist(), made.apart.tolist()
    ([{'k': 'a', 'at': 5}], [1])
    """

    by: Names
    sequence: Names
    inner: HistoryOperator
    hidden: Names = ()

    kind = "upsert"

    def describe(self) -> str:
        """Return what is kept."""
        return f"{self.inner.kind}, {self.inner.describe()}"

    def shown(self, source: pa.Schema) -> pa.Schema:
        """Return the columns of the input, without those that are hidden."""
        return pa.schema([field for field in source if field.name not in self.hidden])

    @property
    def later(self) -> bool:
        """Whether ends of deletions are given early."""
        return self.inner.later

    @property
    def why_apart(self) -> str:
        """Why changes are set apart."""
        why = f"without a value in {', '.join(self.sequence)}, which orders the changes of a key"
        return f"{why}; or {self.inner.why_apart}" if self.inner.why_apart else why

    def show(self, rows: pa.Table) -> pa.Table:
        """Leave out what is hidden."""
        shown = self.inner.show(rows)
        return shown.select([name for name in shown.schema.names if name not in self.hidden])

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return what changes, and which changes are set apart."""
        ordered = np.ones(changes.times.shape[0], np.bool_)
        for name in self.sequence:
            ordered &= np.asarray(changes.rows.column(name).is_valid().to_numpy())
        apart, given = np.flatnonzero(~ordered), np.flatnonzero(ordered)
        if not given.shape[0]:
            none = np.zeros(0, np.int64)
            return Changes(none, none, changes.rows.slice(0, 0), apart)
        if apart.shape[0]:
            rows = changes.rows.take(pa.array(given))
            changes = Changes(changes.times[given], changes.diffs[given], rows)
        made = self.inner.advance(changes, held, contents, of_updates=of_updates)
        late = np.zeros(0, np.int64) if made.apart is None else given[made.apart]
        return replace(made, apart=np.sort(np.concatenate([apart, late])))


def upsert_plan(
    source: pa.Schema,
    *,
    keys: Names,
    sequence: Names,
    columns: Sequence[str],
    deleted: pc.Expression | None = None,
    truncated: pc.Expression | None = None,
    merges: bool = False,
    history: bool = False,
) -> tuple[pa.Schema, dict[str, pc.Expression], Upsert]:
    """Return the columns that the operator is given, which are those of its state; how each is made; the operator.

    Parameters
    ----------
    source : pyarrow.Schema
        Of the log.
    keys, sequence : tuple of str
    columns : sequence of str
        Of the result; the key is among them.
    deleted, truncated : pyarrow.compute.Expression, optional
        For which rows the key is gone; and for which all keys of a lower sequence are.
    merges : bool
        Whether a null leaves the value as it was.
    history : bool
        Whether all versions are kept; not with `truncated`.

    Examples
    --------
    >>> source = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
    >>> schema, _, operator = upsert_plan(source, keys=("k",), sequence=("at",), columns=["k", "v"], history=True)
    >>> operator.shown(schema).names
    ['k', 'v', '__START_AT', '__END_AT']
    """
    fields = [source.field(name) for name in columns]
    made = {name: pc.field(name) for name in columns}
    hidden: list[str] = []
    order = []
    for name in sequence:
        kept = name if name in columns else f"{HIDDEN}{name}"
        if kept != name:
            fields.append(source.field(name).with_name(kept))
            made[kept] = pc.field(name)
            hidden.append(kept)
        order.append(kept)
    if history:
        of_sequence = [source.field(name) for name in sequence]
        type_ = of_sequence[0].type if len(sequence) == 1 else pa.struct(of_sequence)
        whole = [pc.field(name) for name in sequence]
        fields += [pa.field(START, type_), pa.field(END, type_)]
        made[START] = whole[0] if len(whole) == 1 else pc.make_struct(*whole, field_names=list(sequence))
        made[END] = pc.scalar(pa.scalar(None, type_))
    flags = {
        DELETED: None if deleted is None else pc.coalesce(deleted, pc.scalar(value=False)),
        TRUNCATES: None if truncated is None else pc.coalesce(truncated, pc.scalar(value=False)),
        EVENT: pc.scalar(value=True) if merges else None,
        RESULT: pc.scalar(value=False) if merges else None,
    }
    if truncated is not None:
        # It empties the table of all keys, whatever it would do to its own.
        flags[DELETED] = pc.scalar(value=False) if deleted is None else flags[DELETED]
    for name, expression in flags.items():
        if expression is not None:
            fields.append(pa.field(name, pa.bool_(), nullable=False))
            made[name] = expression
            hidden.append(name)
    best = tuple((name, True) for name in order)
    deletes = DELETED in made
    inner: HistoryOperator
    if history and merges:
        inner = MergedVersions(keys, best, 1, "versions without nulls", deletes)
    elif history:
        inner = Versions(keys, best, 1, "versions", deletes)
    else:
        if truncated is not None:
            best = (*best, (TRUNCATES, False))
        inner = Merged(keys, best, 1, "newest values", deletes) if merges else Best(keys, best, 1, "newest", deletes)
    if truncated is not None:
        inner = Truncated((), keys, tuple(order), inner)
    return pa.schema(fields), made, Upsert(inner.by, tuple(order), inner, tuple(hidden))
