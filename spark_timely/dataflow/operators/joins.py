"""Joins: pairs of rows of one time, and rows with what a collection has at their time.

`Join` is the operator of `Stream.join`, and of joins in plans and SQL. It pairs the rows of one time; asked for
``as_of`` it becomes an `AsOfJoin`, which looks up, for each event, what a collection has at the event's time, and
computes by `history.asof`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.asof import join_as_of
from spark_timely.dataflow.history.base import Changes
from spark_timely.dataflow.operators.checks import check_events, check_history, check_keep, check_updates, key_of
from spark_timely.dataflow.operators.plan_json import Choice, Flag, Texts, in_plan
from spark_timely.dataflow.views import DIFF, Before, Names, Operator, Replay, View, with_times
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.log.files.format import conform
from spark_timely.time.antichain import Antichain, IntArray
from spark_timely.trace.keys import are_among, distinct_hashes, key_hashes
from spark_timely.trace.updates import one_zero

__all__ = ["AsOfJoin", "Join"]

_ARROW = {"inner": "inner", "left": "left outer"}


@dataclass(frozen=True, eq=False)
class Join(Operator):
    """Pairs of rows that agree in some columns: of the same time, or as of the time of the left one.

    Attributes
    ----------
    on : tuple of str
        A null agrees with nothing.
    how : "inner" or "left"
        Whether rows on the left without a partner stay, with nulls.
    as_of : bool
        Whether the right side is a collection, of which all rows are paired that are there at the time of a row.
    strict : bool
        With `as_of`: whether changes at the time of a row come too late for it.
    name : str or None
        With `as_of`: of the log that is kept of the right side, where that is none itself.
    """

    on: Names = field(metadata=in_plan(Texts(for_none="name the columns to join on")))
    how: str = field(default="inner", metadata=in_plan(Choice(default="inner", among=("inner", "left"))))
    as_of: bool = field(default=False, metadata=in_plan(Flag(default=False)))
    strict: bool = False
    name: str | None = None

    method = op = "join"
    # A pair is made of any two rows of its time.
    rowwise = False

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Find the columns to join on, and those of both sides."""
        left, right = inputs
        self._check_sides(name, left, right)
        if self.how not in _ARROW:
            msg = f"could not add operator {name!r}: found how={shown(self.how)}"
            raise InvalidUsageError(msg, hint="use 'inner' or 'left'")
        for key in self.on:
            if key_of(name, left, key).type != key_of(name, right, key).type:
                msg = f"could not add operator {name!r}: found column {key!r} of two types"
                raise SchemaMismatchError(msg, hint="cast one of them")
        doubled = [n for n in left.schema.names if n in right.schema.names and n not in self.on]
        if doubled or not self.on:
            msg = f"could not add operator {name!r}: found columns {shown(doubled)} on both sides, on={shown(self.on)}"
            raise InvalidUsageError(msg, hint="name the columns to join on; rename others with select")
        fields = [f for f in right.schema if f.name not in self.on]
        if self.how == "left":
            fields = [f.with_nullable(True) for f in fields]  # noqa: FBT003 - as Arrow has it
        schema = pa.schema([*left.schema, *fields])
        if self.as_of:
            return AsOfJoin(self.on, self.how, as_of=True, strict=self.strict).view(name, schema, *inputs)
        made = self.view(name, schema, *inputs)
        try:
            self.apply(made, [left.empty(), right.empty()], tuple(schema.names))
        except pa.ArrowException as error:
            msg = f"could not add operator {name!r}: {error}"
            hint = "select columns that are no lists, maps or structs: Arrow joins none of these"
            raise SchemaMismatchError(msg, hint=hint) from error
        return made

    def _check_sides(self, name: str, left: View, right: View) -> None:
        """Refuse parameters that do not go together, and events or updates where they cannot be joined."""
        if self.strict and not self.as_of:
            msg = f"could not add operator {name!r}: found strict=True without as_of=True"
            raise InvalidUsageError(msg, hint="give as_of=True too, or leave it out")
        if self.name is not None and not self.as_of:
            msg = f"could not add operator {name!r}: found name={shown(self.name)} without as_of=True"
            raise InvalidUsageError(msg, hint="leave it out: a join of one time keeps nothing")
        if not self.as_of:
            check_events(name, left, right)
            return
        check_history(name, left)
        check_keep(name, self.name)
        check_updates(name, right)
        if left.updates:
            msg = f"could not add operator {name!r}: found updates of {left.name!r} on the left"
            raise InvalidUsageError(
                msg, hint="join events as of their time: of a collection on the left each change of it and of the "
                "other side would have to be answered"
            )  # fmt: skip

    def describe(self) -> str:
        """Return the columns that agree."""
        return f"{_ARROW[self.how]} on {', '.join(self.on)}"

    def hashed(self, view: View) -> tuple[str, object]:
        """Return columns, whose order says nothing, and kind."""
        return "join", [sorted(self.on), _ARROW[self.how]]

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return of each side the columns that agree, and those wanted."""
        return tuple(
            (*self.on, *(n for n in side.schema.names if n in wanted and n not in self.on)) for side in view.inputs
        )

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Join by time and columns."""
        left, right = tables
        names, on = view.with_carried(wanted), list(view.with_carried(self.on))
        joined = left.join(right, keys=on, join_type=_ARROW[self.how], use_threads=False)
        schema = view.empty().schema
        return joined.select(names).cast(pa.schema([schema.field(name) for name in names]))


class AsOfJoin(Join):
    """Rows of a stream, each with those of a collection that are there at its time and agree in some columns.

    What a join `as_of` is once it is bound. It keeps nothing of its own: it looks into the collection's log.
    """

    method = op = ""

    def gives_updates(self, inputs: Sequence[View]) -> bool:
        """Return that they are events: later changes of the collection rewrite nothing."""
        return False

    def looks_into(self, inputs: Sequence[View]) -> tuple[int, ...]:
        """Return the right side."""
        return (1,)

    def describe(self) -> str:
        """Return the columns that agree."""
        return f"{self.how} on {', '.join(self.on)}{', strict' if self.strict else ''}"

    def hashed(self, view: View) -> tuple[str, object]:
        """Return columns, whose order says nothing, kind and strictness."""
        return "join_as_of", [sorted(self.on), self.how, self.strict]

    apply = Operator.apply

    def apply_range(
        self, view: View, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Look each row up as of its time."""
        if before is None:
            return self.apply(view, tables, wanted)
        right, domain = view.inputs[1], view.domain
        assert isinstance(right, Replay)
        of_facts, of_dimension = self.needs(view, wanted)
        facts, changed = tables[0].select((*domain.columns, *of_facts)), tables[1]
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
        at: IntArray = domain.from_columns(facts)[:, 0]
        times, rows = join_as_of(
            at, facts.select(of_facts), held, changes, on=self.on, how=self.how, strict=self.strict
        )
        wanted_schema = pa.schema([view.schema.field(name) for name in wanted])
        payload = conform(rows.select(wanted), wanted_schema, what="what was joined")
        return with_times(pa.table(domain.to_columns(times.reshape(-1, 1))), payload)
