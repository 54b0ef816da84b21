"""Operators of times: delays, and how many rows each time has.

`DelayBy` moves rows to later times by a function of `dataflow.delays`, `StepForward` to the next one. `TimesExtract`
leaves of rows their times alone, and how often each counts; `TimesReduce` sums that by time. They are methods of
`Stream`; the engine asks for `DelayBy`, the one operator behind which a frontier is another (`engine.tracking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import sum_of
from spark_timely.dataflow.delays import BoundDelay, CeilTo, Chain, Delay, Delays, Shift, plus
from spark_timely.dataflow.operators.checks import check_column, check_events, check_integers
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.rows import Concat, Filter, Select
from spark_timely.dataflow.operators.texts import function_text
from spark_timely.dataflow.views import Names, Operator, View, with_times
from spark_timely.errors import InvalidUsageError, OperatorError, shown
from spark_timely.time.antichain import Antichain

__all__ = ["DelayBy", "StepForward", "TimesExtract", "TimesReduce"]

_NOT_ZERO = Filter(pc.field("diff") != 0, "diff != 0", pc.field("diff") != 0, ("diff",))
_DIFFS = pa.schema([pa.field("diff", pa.int64())])


@dataclass(frozen=True, eq=False)
class DelayBy(Operator):
    """The rows of its input at later times: with several delays a row goes all ways.

    Attributes
    ----------
    by : tuple of Delay or Delays
        As `Stream.delay` takes them.
    delay : BoundDelay
        Of one delay, once it is bound.
    """

    by: tuple[Delay | Delays, ...]
    delay: BoundDelay = None  # type: ignore[assignment]

    method = "delay"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Bind each delay to the times; several are views that are put together."""
        (source,) = inputs
        delays: list[Delay] = []
        for each in self.by:
            if hasattr(each, "delays"):
                delays += each.delays(source.domain)
            elif hasattr(each, "bind"):
                delays.append(each)
            else:
                msg = f"could not add operator {name!r}: found by={shown(each)}"
                raise InvalidUsageError(msg, hint="give plus(…), ceil_to(…) or windows(…)")
        if not delays:
            msg = f"could not add operator {name!r}: found no delay"
            raise InvalidUsageError(msg, hint="give plus(…), ceil_to(…) or windows(…)")
        bound = [DelayBy((), each.bind(source.domain)) for each in delays]
        if len(bound) == 1:
            return bound[0].view(name, source.schema, source)
        parts = [each.view(f"{name}_{number}", source.schema, source) for number, each in enumerate(bound, 1)]
        return Concat().view(name, source.schema, *parts)

    def describe(self) -> str:
        """Return the delay."""
        return self.delay.describe()

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the delay in units of the times."""
        return "delay", _delay_text(self.delay)

    def front_of(self, frontiers: Sequence[Antichain]) -> Antichain:
        """Return the frontier behind the delay."""
        return self.delay.front(frontiers[0])

    def back_of(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay."""
        return self.delay.back(frontier)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Move the times."""
        (table,), domain = tables, view.domain
        before = domain.from_columns(table)
        after, ok = self.delay.forward(before)
        if not ok.all():
            time = domain.render_time(before[int(np.flatnonzero(~ok)[0])].tolist())
            msg = f"time={time!r}, which it would delay past the greatest time of its type"
            raise OperatorError(msg, hint="drop such rows before the delay")
        rest = view.with_carried(wanted)[domain.arity :]
        return with_times(pa.table(domain.to_columns(after)), table.select(rest))


def _delay_text(delay: BoundDelay) -> list[object]:
    match delay:
        case Shift():
            return ["plus", delay.added]
        case CeilTo():
            return ["ceil_to", delay.width]
        case Chain():
            return ["chain", [_delay_text(part) for part in delay.parts]]
    return ["other", function_text(type(delay))]


@dataclass(frozen=True, eq=False)
class StepForward(Operator):
    """The rows of its input, each at the next time."""

    method = "step_forward"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Delay by one; of times of several coordinates it is not said by one of which."""
        (source,) = inputs
        if source.domain.arity != 1:
            msg = f"could not add operator {name!r}: found times of {source.domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="say with delay(plus(…)) what is added to each coordinate")
        return DelayBy((plus(1),)).bind(name, inputs)


@dataclass(frozen=True, eq=False)
class TimesExtract(Operator):
    """The times of rows: a row with column ``diff`` for each row that counts.

    Attributes
    ----------
    diff : str or None
        A column of integers: how often each row counts. Once unless given; not at all where it is null.
    """

    diff: str | None = None

    method = "times_extract"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Select the number, and leave out what does not count."""
        (source,) = inputs
        check_events(name, source)
        if self.diff is None:
            return Select((("diff", pc.scalar(1)),)).view(name, _DIFFS, source)
        check_integers(name, source, self.diff)
        counts = Select((("diff", pc.field(self.diff).cast(pa.int64())),), (self.diff,))
        return _NOT_ZERO.view(name, _DIFFS, counts.view(f"{name}_all", _DIFFS, source))


@dataclass(frozen=True, eq=False)
class TimesReduce(Operator):
    """One row for each complete time: the sum of column ``diff``; none where it is 0."""

    method = "times_reduce"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Sum by time, and leave out what is 0."""
        (source,) = inputs
        check_events(name, source)
        check_column(name, source, "diff")
        sums = sum_of("diff")
        schema = pa.schema([sums.field("diff", source.schema)])
        return _NOT_ZERO.view(name, schema, Aggregate((), {"diff": sums}).view(f"{name}_sum", schema, source))
