"""Envelopes of a subscription, the forms of its updates: plain, `upsert` by key, or before and after. Pure.

`subscribe` checks which form is wanted; `follow` gives each interval of updates in it. These updates are consolidated:
of one time each row is there once, with the sum of its diffs.

Invariants
----------
1. A row depends on the updates of its own time alone, so that no form depends on how times were cut into intervals.
2. An envelope gives one row for each key and time at which something of the key changed: the sum of its changes.
3. At one time a key may lose one row and gain one row, each once. Where more changes, its row says ``key_violation``
   and has no values, for none of them would be right.
4. Rows are ordered by time; within a time as asked for, otherwise in an order that depends on the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.answers.plan import order_of
from spark_timely.canonical.row_hash import RowHasher
from spark_timely.conf.kinds import names_of
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.trace.updates import DIFF

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.answers.plan import OrderBy, OrderLike
    from spark_timely.log.files.format import LogFormat
    from spark_timely.time.antichain import Antichain

__all__ = ["EnvelopeName", "RowForm", "ordered_by_time", "row_form"]

EnvelopeName: TypeAlias = Literal["upsert", "debezium"]
PROGRESSED: Final = "_progressed"
STATE: Final = "_state"
_VIOLATION: Final = "key_violation"
# What is said of a key of which a row came, one went, or one took another's place.
_WORDS: Final = {"upsert": ("upsert", "delete", "upsert"), "debezium": ("insert", "delete", "upsert")}
_CAME, _WENT, _CHANGED, _BROKEN = range(4)


@dataclass(frozen=True, slots=True)
class RowForm:
    """The form in which rows are given. Made by `row_form`, which checks it.

    Attributes
    ----------
    progress : bool
        Whether there are progress rows, and the column `_progressed` that tells them.
    envelope : str or None
    key : tuple of str
        Of an envelope.
    order : tuple of OrderBy
        Of the rows of one time.
    """

    progress: bool = False
    envelope: EnvelopeName | None = None
    key: tuple[str, ...] = ()
    order: tuple[OrderBy, ...] = ()

    def schema(self, form: LogFormat) -> pa.Schema:
        """Return the columns that are given of a log as it is now.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64()), ("k", pa.string())]), kind="collection")
        >>> RowForm().schema(log.core.format).names
        ['_time', '_diff', 'v', 'k']
        >>> RowForm(progress=True, envelope="debezium", key=("k",)).schema(log.core.format).names
        ['_time', '_progressed', '_state', 'k', 'before_v', 'after_v']
        """
        domain = form.domain
        fields = [pa.field(name, kind.arrow) for name, kind in zip(domain.columns, domain.types, strict=True)]
        if self.progress:
            fields.append(pa.field(PROGRESSED, pa.bool_()))
        payload = {field.name: field.with_nullable(nullable=True).remove_metadata() for field in form.payload}
        if self.envelope is None:
            return pa.schema([*fields, pa.field(DIFF, pa.int64()), *payload.values()])
        values = [field for name, field in payload.items() if name not in self.key]
        if self.envelope == "debezium":
            values = [field.with_name(f"{side}_{field.name}") for side in ("before", "after") for field in values]
        return pa.schema([*fields, pa.field(STATE, pa.string()), *(payload[name] for name in self.key), *values])

    def rows(self, updates: pa.Table, form: LogFormat) -> pa.Table:
        """Return updates in this form.

        Parameters
        ----------
        updates : pyarrow.Table
            Times, `_diff` and the payload; consolidated, ordered by time. Not modified.
        form : LogFormat
            Of the log.

        Notes
        -----
        Cost: without envelope and order nothing; else a sort of the rows.
        """
        columns = form.domain.columns
        if self.envelope is not None:
            updates = _enveloped(self.envelope, updates, columns, self.key)
        elif self.order:
            updates = updates.take(pa.array(_order_of(updates, columns, self.order)))
        schema = self.schema(form)
        if self.progress:
            updates = updates.append_column(PROGRESSED, pa.array(np.zeros(updates.num_rows, np.bool_)))
        return updates.select(schema.names).cast(schema)

    def progress_rows(self, frontier: Antichain, form: LogFormat) -> pa.Table:
        """Return the rows that say: times that are not beyond a frontier are complete. One for each of its times.

        All their other columns are null.
        """
        schema, n = self.schema(form), len(frontier)
        known = {**form.domain.to_columns(frontier.times), PROGRESSED: pa.array(np.ones(n, np.bool_))}
        columns = [known.get(field.name, pa.nulls(n, field.type)) for field in schema]
        return pa.Table.from_arrays(
            [column.cast(f.type) for column, f in zip(columns, schema, strict=True)], schema=schema
        )


def row_form(
    attempt: str,
    form: LogFormat,
    *,
    progress: bool = False,
    envelope: object = None,
    key: str | Sequence[str] | None = None,
    order_by: OrderLike | None = None,
) -> RowForm:
    """Check in which form rows are wanted.

    Parameters
    ----------
    attempt : str
        For errors: ``could not subscribe to log …``.
    form : LogFormat
    progress, envelope, key, order_by
        As of `spark_timely.answers.subscribe.subscribe`.

    Raises
    ------
    InvalidUsageError
        If there is no such envelope, a key without one, or an order with one.
    SchemaMismatchError
        If the log has no such column, or has one of a name that is needed.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("k", pa.string()), ("v", pa.int64())]), kind="collection", key="k")
    >>> row_form("could not subscribe", log.core.format, envelope="upsert").key
    ('k',)
    """
    if not isinstance(progress, bool):
        msg = f"{attempt}: found progress={shown(progress)}"
        raise InvalidUsageError(msg, hint="give True or False")
    if envelope is not None and envelope not in get_args(EnvelopeName):
        msg = f"{attempt}: found envelope={shown(envelope)}"
        raise InvalidUsageError(
            msg, hint="give 'upsert' or 'debezium', or leave it out to get updates with their diffs"
        )
    if envelope is None and key is not None:
        msg = f"{attempt}: found key={shown(key)} without an envelope"
        raise InvalidUsageError(msg, hint="give envelope='upsert' or 'debezium', or leave the key out")
    if envelope is not None and order_by is not None:
        msg = f"{attempt}: found order_by={shown(order_by)} and envelope={shown(envelope)}"
        raise InvalidUsageError(msg, hint="leave one of them out: an envelope has one row for each key and time")
    keys: tuple[str, ...] = ()
    if envelope is not None:
        keys = tuple(form.key) if key is None else names_of(attempt, "key", key)
        if not keys or len(set(keys)) < len(keys):
            msg = f"{attempt}: found envelope={shown(envelope)} with key={shown(key)}"
            raise InvalidUsageError(msg, hint="give the columns of which each value has at most one row, each once")
    orders = order_of(attempt, order_by, form.payload.append(pa.field(DIFF, pa.int64())))
    known = form.payload.names
    for name in keys:
        if name not in known:
            msg = f"{attempt}: found no column {name!r}"
            raise SchemaMismatchError(msg, hint=f"choose among its columns: {shown(known)}", context={"column": name})
    found = RowForm(progress, envelope, keys, orders)  # type: ignore[arg-type]  # it is one of the names
    names = found.schema(form).names
    taken = next((name for name in names if names.count(name) > 1), None)
    if taken is not None:
        msg = f"{attempt}: found a column {taken!r} in the log, and the answer has one of that name"
        raise SchemaMismatchError(msg, hint="leave the envelope, or progress, out", context={"column": taken})
    return found


def ordered_by_time(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return rows ordered by time, those of one time in the order in which they are.

    Examples
    --------
    >>> ordered_by_time(pa.table({"_time": [2, 1, 2], "v": [1, 2, 3]}), ["_time"])["v"].to_pylist()
    [2, 1, 3]
    """
    if table.num_rows < 2:
        return table
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns]))


def _order_of(table: pa.Table, times: Sequence[str], orders: Sequence[OrderBy]) -> npt.NDArray[np.int64]:
    """Return the places of the rows in their order: by time, then as asked for, then as they were."""
    columns: dict[str, Any] = {f"t{i}": table[name] for i, name in enumerate(times)}
    keys = [(name, "ascending") for name in columns]
    for i, order in enumerate(orders):
        value, direction = table[order.column], "descending" if order.descending else "ascending"
        # Arrow puts nulls, and NaN, to the end whatever the direction.
        columns[f"n{i}"] = pc.is_null(value)
        keys.append((f"n{i}", "descending" if order.nulls_first else "ascending"))
        if pa.types.is_floating(value.type):
            columns[f"f{i}"] = pc.is_nan(value)
            keys.append((f"f{i}", direction))
        columns[f"v{i}"] = value
        keys.append((f"v{i}", direction))
    return np.asarray(pc.sort_indices(pa.table(columns), sort_keys=keys).to_numpy(), np.int64)


def _enveloped(envelope: EnvelopeName, updates: pa.Table, times: Sequence[str], key: Sequence[str]) -> pa.Table:
    """Return one row for each key and time (invariants 2 and 3)."""
    values = [name for name in updates.schema.names if name not in (*times, *key, DIFF)]
    diffs = np.asarray(updates[DIFF].to_numpy(), np.int64)
    hashes = RowHasher([*times, *key]).hash(updates)
    order = np.lexsort((diffs > 0, hashes[:, 1], hashes[:, 0]))
    ordered, sorted_diffs = hashes[order], diffs[order]
    n = len(order)
    first = np.ones(n, np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=n)
    # Rows that go come before rows that come.
    ends = starts + counts - 1
    came = (counts == 1) & (sorted_diffs[starts] == 1) if n else np.zeros(0, np.bool_)
    went = (counts == 1) & (sorted_diffs[starts] == -1) if n else came
    changed = (counts == 2) & (sorted_diffs[starts] == -1) & (sorted_diffs[ends] == 1) if n else came
    states = np.select([came, went, changed], [_CAME, _WENT, _CHANGED], _BROKEN)
    any_of, before, after = order[starts], order[starts], order[ends]
    words = pa.array([*_WORDS[envelope], _VIOLATION])
    columns = {name: updates[name].take(pa.array(any_of)) for name in (*times, *key)}
    columns[STATE] = words.take(pa.array(states))
    has_before, has_after = went | changed, came | changed
    if envelope == "upsert":
        sides = [("", after, has_after)]
    else:
        sides = [("before_", before, has_before), ("after_", after, has_after)]
    for prefix, places, there in sides:
        taken = pa.array(places, mask=~there)
        columns.update({f"{prefix}{name}": updates[name].take(taken) for name in values})
    return ordered_by_time(pa.table(columns), times)
