"""Operators over all history: distinct rows, the first, latest or best of a key, functions of its rows, upserts.

They are `distinct`, `drop_duplicates`, `latest`, `top`, `reduce` and `upsert` of a `Stream`, and nodes of a plan
(`spark_timely.compute.plan`). Each checks what the user asked for and binds a `HistoryOperator` of `dataflow.history`,
which computes and keeps state in a log of its own; `name` says what that log is called.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.history.base import HIDDEN
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.first import First
from spark_timely.dataflow.history.reduce import COUNT, Function, reduced_schema
from spark_timely.dataflow.history.reduce import Reduce as ReducedRows
from spark_timely.dataflow.history.tombstones import LatestWithin
from spark_timely.dataflow.history.totals import Totals
from spark_timely.dataflow.history.upsert import upsert_plan
from spark_timely.dataflow.operators.checks import (
    check_column,
    check_function,
    check_history,
    condition_of,
    key_of,
    length_of,
    tried,
)
from spark_timely.dataflow.operators.plan_json import Number, Ordering, Texts, in_plan
from spark_timely.dataflow.operators.rows import Select
from spark_timely.dataflow.remembered import over_history
from spark_timely.dataflow.views import Names, Operator, View
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown

__all__ = ["Distinct", "DropDuplicates", "Latest", "Order", "Reduce", "Top", "Upsert"]

Order = Sequence[str | tuple[str, str]]
"""Columns that order rows, the greatest value first: a name, a name and a direction as one text, or both as a pair."""

Duration = str | int | dt.timedelta


@dataclass(frozen=True, eq=False, kw_only=True)
class _OverHistory(Operator):
    """An operator that keeps something of all history.

    Attributes
    ----------
    name : str or None
        Of what it keeps.
    """

    name: str | None = None


@dataclass(frozen=True, eq=False)
class Distinct(_OverHistory):
    """Each row once: of events the first by time, of updates while it is there."""

    method = op = "distinct"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Take all columns for the key."""
        (source,) = inputs
        keys = tuple(key_of(name, source, column).name for column in source.schema.names)
        return over_history(name, source, Totals(keys, {}, "distinct") if source.updates else First(keys), self.name)


@dataclass(frozen=True, eq=False)
class DropDuplicates(_OverHistory):
    """The first row of each key, by time.

    Attributes
    ----------
    columns : tuple of str
        The key; all columns unless given.
    within : duration or None
        How far back it looks; None: for ever.
    """

    columns: Names = ()
    within: Duration | None = None

    method = "drop_duplicates"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Find the key, and how far it looks back in units of the times."""
        (source,) = inputs
        names = dict.fromkeys(self.columns or source.schema.names)
        keys = tuple(key_of(name, source, column).name for column in names)
        if source.updates:
            msg = f"could not add operator {name!r}: found updates of a collection, whose rows have no first time"
            raise InvalidUsageError(msg, hint="use distinct(), latest(…) or top(1, …)")
        check_history(name, source)
        back = None if self.within is None else length_of(name, source, "within", self.within)
        return over_history(name, source, First(keys, back), self.name)


@dataclass(frozen=True, eq=False)
class Latest(_OverHistory):
    """The newest row of each key, by what the rows say themselves.

    Attributes
    ----------
    by : tuple of str
    order_by : tuple
        Columns: the greatest value is the newest.
    deleted : str or pyarrow.compute.Expression or None
        For which rows their key is gone from then on.
    tombstones : duration or None
        How long deletions are remembered; None: for ever.
    """

    by: Names = field(metadata=in_plan(Texts()))
    order_by: Order = field(metadata=in_plan(Ordering()))
    deleted: str | pc.Expression | None = None
    tombstones: Duration | None = None

    method = op = "latest"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Find key and order; write into a column which rows are deletions."""
        (source,) = inputs
        keys, order = _keys_and_order(name, source, self.by, self.order_by)
        if self.deleted is not None:
            source = _with_deleted(name, source, self.deleted)
        operator = Best(keys, order, 1, "latest", self.deleted is not None)
        if self.tombstones is not None:
            operator = _with_tombstones(name, source, operator, self.tombstones)
        return over_history(name, source, operator, self.name)


@dataclass(frozen=True, eq=False)
class Top(_OverHistory):
    """The n rows of each key that are greatest in some columns.

    Attributes
    ----------
    n : int
    by : tuple of str
    order_by : tuple
    """

    n: int = field(metadata=in_plan(Number()))
    by: Names = field(metadata=in_plan(Texts()))
    order_by: Order = field(metadata=in_plan(Ordering()))

    method = op = "top"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Find key and order."""
        (source,) = inputs
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            msg = f"could not add operator {name!r}: found n={shown(self.n)}"
            raise InvalidUsageError(msg, hint="give how many rows to keep of each key: at least 1")
        keys, order = _keys_and_order(name, source, self.by, self.order_by)
        return over_history(name, source, Best(keys, order, self.n), self.name)


@dataclass(frozen=True, eq=False)
class Reduce(_OverHistory):
    """Rows that a function makes of all rows of a key, whenever these change.

    Attributes
    ----------
    function : callable
        Takes the key as a dict, and a table of its rows; gives a table without the key.
    by : tuple of str
    columns : tuple of str or None
        That it gets; None: all but the key.
    """

    function: Function
    by: Names = ()
    columns: Names | None = None

    method = "reduce"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Call the function without rows, for its columns."""
        (source,) = inputs
        check_function(name, self.function)
        keys = tuple(key_of(name, source, key).name for key in self.by)
        rest = tuple(column for column in source.schema.names if column not in keys)
        given = rest if self.columns is None else self.columns
        for column in given:
            check_column(name, source, column)
        if not keys and not given:
            msg = f"could not add operator {name!r}: found neither a key nor a column"
            raise InvalidUsageError(msg, hint='use aggregate(over="history", n=functions.count()) to count all rows')
        if COUNT in given:
            msg = f"could not add operator {name!r}: found a column {COUNT!r}, which says how often a row is there"
            raise InvalidUsageError(msg, hint="rename it with select, or leave it out of columns")
        schema = tried(name, lambda: reduced_schema(self.function, source.schema, keys, given).empty_table())
        return over_history(name, source, ReducedRows(keys, self.function, given, schema), self.name)


@dataclass(frozen=True, eq=False)
class Upsert(_OverHistory):
    """A table kept current from a log of changes.

    Attributes
    ----------
    keys, sequence_by : tuple of str
    delete_when, truncate_when : str or pyarrow.compute.Expression or None
    columns : sequence of str or None
        Of the result; None: all.
    except_columns : sequence of str
        That the result has not.
    ignore_null_updates, history : bool
    tombstones : duration or None
        How long deletes are remembered; None: for ever.
    """

    keys: Names
    sequence_by: Names
    delete_when: str | pc.Expression | None = None
    truncate_when: str | pc.Expression | None = None
    columns: Sequence[str] | None = None
    except_columns: Sequence[str] = ()
    ignore_null_updates: bool = False
    history: bool = False
    tombstones: Duration | None = None

    method = "upsert"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Make changes of the rows, and of these a table."""
        (source,) = inputs
        check_history(name, source)
        if source.updates:
            msg = f"could not add operator {name!r}: found updates of {source.name!r}, a collection"
            raise InvalidUsageError(
                msg, hint="give a log of changes, a stream log: a collection takes its rows away itself"
            )
        key = tuple(key_of(name, source, k).name for k in dict.fromkeys(self.keys))
        sequence = tuple(dict.fromkeys(self.sequence_by))
        for option, value in (("ignore_null_updates", self.ignore_null_updates), ("history", self.history)):
            if not isinstance(value, bool):
                msg = f"could not add operator {name!r}: found {option}={shown(value)}"
                raise InvalidUsageError(msg, hint="say True or False")
        self._check(name, source, key, sequence)
        deleted, truncated = (
            None if each is None else condition_of(name, source, each)[0]
            for each in (self.delete_when, self.truncate_when)
        )
        schema, made, operator = upsert_plan(
            source.schema,
            keys=key,
            sequence=sequence,
            columns=self._columns(name, source, key),
            deleted=deleted,
            truncated=truncated,
            merges=self.ignore_null_updates,
            history=self.history,
        )
        select = Select(tuple(made.items()), tuple(source.schema.names))
        changes = select.view(f"{name}_changes", schema, source)
        if self.tombstones is not None:
            assert isinstance(operator.inner, Best)
            within = _with_tombstones(name, changes, operator.inner, self.tombstones, "sequence_by", "delete_when")
            operator = replace(operator, inner=within)
        return over_history(name, changes, operator, self.name)

    def _check(self, name: str, source: View, keys: Names, sequence: Names) -> None:
        """Refuse parameters that say nothing, or do not go together."""
        if not keys or not sequence:
            msg = f"could not add operator {name!r}: found keys={shown(keys)} and sequence_by={shown(sequence)}"
            raise InvalidUsageError(msg, hint="name the columns of the key, and those that order its changes")
        for column in sequence:
            check_column(name, source, column)
            type_ = source.schema.field(column).type
            if column in keys or pa.types.is_nested(type_):
                of_key = ", a key" if column in keys else ""
                msg = f"could not add operator {name!r}: found sequence_by={column!r} of type={type_}{of_key}"
                raise SchemaMismatchError(
                    msg, hint="name columns that order the changes of a key: no keys, lists, maps or structs"
                )
        apart = (
            ("history", "truncate_when", "a truncate has no place in versions"),
            ("history", "tombstones", "versions that a delete ended stay, and so does the delete"),
            ("tombstones", "truncate_when", "an emptied table forgets its deletes already"),
            (
                "tombstones",
                "ignore_null_updates",
                "a late change may concern a column that had no value since a delete",
            ),
        )
        for one, other, why in apart:
            values = (getattr(self, one), getattr(self, other))
            if all(value is not None and value is not False for value in values):
                msg = f"could not add operator {name!r}: found {one} beside {other}"
                raise InvalidUsageError(msg, hint=f"leave one of them out: {why}")

    def _columns(self, name: str, source: View, keys: Names) -> list[str]:
        """Return the columns of the result."""
        columns, but = self.columns, self.except_columns
        if isinstance(columns, str) or isinstance(but, str):
            msg = f"could not add operator {name!r}: found columns={shown(columns)}, except_columns={shown(but)}"
            raise InvalidUsageError(msg, hint="give a list of names")
        if columns is not None and but:
            msg = f"could not add operator {name!r}: found columns={shown(columns)} beside except_columns={shown(but)}"
            raise InvalidUsageError(msg, hint="name the columns of the result, or those that it has not")
        for column in (*(columns or ()), *but):
            check_column(name, source, column)
        names = dict.fromkeys(source.schema.names if columns is None else columns)
        found = [column for column in names if column not in but]
        missing = [key for key in keys if key not in found]
        if missing:
            msg = f"could not add operator {name!r}: found key {missing[0]!r} left out of the result"
            raise InvalidUsageError(msg, hint=f"let the result have the keys {shown(list(keys))}")
        return found


def _keys_and_order(name: str, source: View, by: Names, order_by: Order) -> tuple[Names, tuple[tuple[str, bool], ...]]:
    """Return the columns of a key; and those of an order, each with whether the greatest value is the first."""
    keys = tuple(key_of(name, source, column).name for column in dict.fromkeys(by))
    order = []
    for each in order_by:
        if isinstance(each, str):
            column, _, way = each.partition(" ") if each not in source.schema.names else (each, "", "")
        else:
            column, way = each
        check_column(name, source, column)
        if way.strip().lower() not in ("", "asc", "desc"):
            msg = f"could not add operator {name!r}: found order_by={shown(each)}"
            raise InvalidUsageError(msg, hint="name a column, or a column with 'asc' or 'desc'")
        if pa.types.is_nested(source.schema.field(column).type):
            msg = (
                f"could not add operator {name!r}: found order_by={column!r} of type={source.schema.field(column).type}"
            )
            raise SchemaMismatchError(msg, hint="order by columns that are no lists, maps or structs")
        order.append((column, way.strip().lower() != "asc"))
    if not order:
        msg = f"could not add operator {name!r}: found order_by={shown(order_by)}"
        raise InvalidUsageError(msg, hint="name the columns that say which row is newer or greater")
    return keys, tuple(order)


def _with_deleted(name: str, source: View, deleted: str | pc.Expression) -> View:
    """Return the rows with a column that says whether a row says that its key is gone."""
    condition, _ = condition_of(name, source, deleted)
    names = tuple(source.schema.names)
    columns = (
        *((column, pc.field(column)) for column in names),
        (DELETED, pc.coalesce(condition, pc.scalar(value=False))),
    )
    schema = source.schema.append(pa.field(DELETED, pa.bool_(), nullable=False))
    return Select(columns, names).view(f"{name}_deleted", schema, source)


def _with_tombstones(
    name: str,
    source: View,
    operator: Best,
    tombstones: Duration,
    ordered: str = "order_by",
    deletes: str = "deleted",
) -> LatestWithin:
    """Return the operator that remembers deletions for a while, or refuse it."""
    check_history(name, source)
    if not operator.deleted:
        msg = f"could not add operator {name!r}: found tombstones={shown(tombstones)} without {deletes}"
        raise InvalidUsageError(msg, hint=f"say which rows delete their key, {deletes}=\"op = 'D'\", or leave it out")
    if source.updates:
        msg = f"could not add operator {name!r}: found tombstones={shown(tombstones)} for updates of a collection"
        raise InvalidUsageError(msg, hint="leave it out: what is taken away from a collection leaves nothing behind")
    column, greatest = operator.order[0]
    (type_,) = source.domain.types
    found = source.schema.field(column).type
    if not greatest or found != type_.arrow:
        way = "" if greatest else ", the least the newest"
        said = f"{ordered}={column.removeprefix(HIDDEN)!r}"
        msg = (
            f"could not add operator {name!r}: found {said} of type={found}{way} with "
            f"tombstones={shown(tombstones)}, and times of type={type_.arrow}"
        )
        raise SchemaMismatchError(
            msg, hint="order first by a column of the type of the log's times, which says when the row changed"
        )
    keeps = length_of(name, source, "tombstones", tombstones)
    return LatestWithin(operator.by, operator.order, 1, operator.kind, deleted=True, keeps=keeps, type_=type_)
