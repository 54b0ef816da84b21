"""Totals of each key over all history: counts, sums, averages, least and greatest values.

It is behind `aggregate` over history (`operators.grouped`) and `distinct` of a collection (`operators.history`). What
can be aggregated, and its names and types, are in `dataflow.aggregates`, which computes the rows of one time.

A state row has the key, the values, and what these alone do not say:

- the number of rows, without which a sum of 0 could be of two rows or of none;
- the number of values that are not null, without which a sum of 0 could be one of nulls;
- the exact sum of an average;
- of floats the exact sum as bytes, and how many were NaN and infinite.

Invariants
----------
1. A key of which no row is left has no row here.
2. Sums are exact: they are done in Python's integers where 64 bits may not do, and refused where the result does not
   fit.
3. No value is made of a rounded one: averages and sums of floats are made of what is hidden, and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import Aggregation, check_rows
from spark_timely.dataflow.exact_sum import BITS, Floats, Ints, digits_of, round_digits
from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.contents import Boundaries
from spark_timely.dataflow.history.exact import (
    Numbers,
    decimals_of,
    digits_of_bytes,
    fits,
    float_quotients,
    greatest,
    quotients,
    rounded_quotients,
    sums_as_bytes,
    whole_numbers,
)
from spark_timely.dataflow.history.keys import key_codes, key_text
from spark_timely.dataflow.history.runs import best_so_far, places_by_number, run_starts_of, sums_so_far
from spark_timely.errors import OperatorError, SchemaMismatchError
from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["ROWS", "Totals"]

ROWS = f"{HIDDEN}rows"
"""How many rows a key has, where no value says so."""

_MOST = (1 << 63) - 1
# The sum of as many integers as there can be rows: of 2**63 of 64 bits, which is less than 10**38.
_WIDE = pa.decimal128(38, 0)
# What is counted of floats, beside those that are not null.
_ODD = {"nan": float("nan"), "inf": float("inf"), "minus_inf": float("-inf")}


@dataclass(frozen=True)
class Totals(HistoryOperator):
    """Values of each key, of all rows that are there.

    Parameters
    ----------
    by : tuple of str
    values : dict of str to Aggregation
        By column that comes out.
    kind : str
        What it is called: ``aggregate``, ``distinct``.

    Examples
    --------
    >>> from spark_timely.dataflow.aggregates import count
    >>> counts = Totals(("k",), {"n": count()})
    >>> held = Held(None, np.array([1]), pa.table({"k": ["a"], "n": [2]}))
    >>> rows = Changes(np.array([7]), np.array([1]), pa.table({"k": ["a"]}))
    >>> made = counts.advance(rows, held, None, of_updates=False)
    >>> made.diffs.tolist(), made.rows.to_pylist()
    ([-1, 1], [{'k': 'a', 'n': 2}, {'k': 'a', 'n': 3}])
    """

    by: Names
    values: Mapping[str, Aggregation] = field(default_factory=dict)
    kind: str = "aggregate"

    def describe(self) -> str:
        """Return key and values."""
        values = (f"{name}={each.kind}({each.column or ''})" for name, each in self.values.items())
        return f"by {', '.join(self.by) or 'all rows'} over history: {', '.join(values)}".removesuffix(": ")

    def check(self, source: pa.Schema, *, of_updates: bool) -> None:
        """Refuse what cannot be computed.

        Raises
        ------
        SchemaMismatchError
        """
        for name, each in self.values.items():
            each.field(name, source, over="history")
            if of_updates and each.kind in ("sum", "avg") and pa.types.is_floating(source.field(each.column).type):
                what = {"sum": "a sum", "avg": "an average"}[each.kind]
                type_ = source.field(each.column).type
                msg = f"could not aggregate {name!r}: found {what} of updates of column {each.column!r} of type={type_}"
                raise SchemaMismatchError(
                    msg,
                    hint="sum integers or decimals, such as cents or euros: of a collection floats are not summed",
                    context={"column": each.column},
                )

    def state(self, source: pa.Schema) -> pa.Schema:
        """Return key, values, and what is kept beside them."""
        shown = self.shown(source)
        hidden = {self._rows: pa.int64()}
        for owner in dict.fromkeys(map(self._owner, self._sums())):
            if source.field(self.values[owner].column).nullable:
                hidden[self._n(owner)] = pa.int64()
            of = source.field(self.values[owner].column).type
            if pa.types.is_floating(of):
                hidden |= {self._hidden("sum", owner): pa.binary(), **dict.fromkeys(self._odd(owner), pa.int64())}
            elif self.values[owner].kind == "avg":
                hidden[self._hidden("sum", owner)] = self._sum_type(owner, source)
        more = {name: type_ for name, type_ in hidden.items() if name not in shown.names}
        return pa.schema([*shown, *(pa.field(name, type_, nullable=False) for name, type_ in more.items())])

    def shown(self, source: pa.Schema) -> pa.Schema:
        """Return key and values."""
        keys = [source.field(name) for name in self.by]
        return pa.schema([*keys, *(each.field(name, source, over="history") for name, each in self.values.items())])

    def needs(self, source: pa.Schema) -> Names:
        """Return the columns of the key and of the values."""
        used = (each.column for each in self.values.values() if each.column is not None)
        return tuple(dict.fromkeys((*self.by, *used)))

    def arranges(self, *, of_updates: bool) -> bool:
        """Return whether a least value may be taken away."""
        return of_updates and any(each.kind in ("min", "max") for each in self.values.values())

    def show(self, rows: pa.Table) -> pa.Table:
        """Leave out what is hidden."""
        return rows.drop_columns([name for name in rows.schema.names if name.startswith(HIDDEN)])

    def _sums(self) -> list[str]:
        return [name for name, each in self.values.items() if each.kind in ("sum", "avg")]

    def _owner(self, name: str) -> str:
        """Return which value keeps the exact sum that another one is made of: of an average a sum that is shown."""
        each = self.values[name]
        alike = {value: other for value, other in self.values.items() if other == Aggregation("sum", each.column)}
        return name if each.kind == "sum" else next(iter(alike), next(n for n, o in self.values.items() if o == each))

    def _alike(self, owner: str) -> list[str]:
        """Return the values that are made of one exact sum."""
        return [name for name in self._sums() if self._owner(name) == owner]

    def _hidden(self, what: str, owner: str) -> str:
        return f"{HIDDEN}{what}_{owner}"

    def _odd(self, owner: str) -> list[str]:
        """Return the columns that count NaN and infinities of a sum of floats."""
        return [self._hidden(what, owner) for what in _ODD]

    def _sum_type(self, owner: str, source: pa.Schema) -> pa.DataType:
        """Return the type of the exact sum of integers or decimals."""
        column = self.values[owner].column
        if self.values[owner].kind == "avg" and pa.types.is_integer(source.field(column).type):
            return _WIDE
        return Aggregation("sum", column).field(owner, source, over="history").type

    @property
    def _rows(self) -> str:
        """The column that has the number of rows."""
        return next((n for n, each in self.values.items() if each == Aggregation("count")), ROWS)

    def _n(self, name: str) -> str:
        """Return the column that has the number of values of a sum that are not null."""
        column = self.values[name].column
        return next((n for n, each in self.values.items() if each == Aggregation("count", column)), f"{HIDDEN}n_{name}")

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return how the values of each key change, time by time."""
        state = _Running(changes, held, self.by)
        n_rows = state.sums(self._rows, None)
        state.check(n_rows < 0, n_rows)
        n_rows = state.fitting("number of rows", n_rows, pa.int64())
        found: dict[str, pa.Array] = {self._rows: pa.array(n_rows)}
        for name, each in self.values.items():
            if name in found:
                continue
            if each.kind == "count":
                found[name] = pa.array(n_rows if each.column is None else state.not_null(name, each.column, n_rows))
            elif each.kind in ("sum", "avg"):
                summed = (
                    self._floats if pa.types.is_floating(state.rows.schema.field(each.column).type) else self._summed
                )
                found.update(summed(self._owner(name), state, n_rows))
            elif contents is None:
                found[name] = state.extreme(name, each)
        if self.arranges(of_updates=of_updates):
            assert contents is not None
            found.update(self._extremes(changes, contents))
        return self._differences(held, state, n_rows > 0, found)

    def _differences(self, held: Held, state: _Running, exists: BoolArray, found: Mapping[str, pa.Array]) -> Changes:
        """Return what comes and goes where the row of a key is another one after a time than before it.

        Parameters
        ----------
        held : Held
        state : _Running
        exists : ndarray of bool, shape (groups,)
            Whether a key has rows after each of its times.
        found : dict of str to pyarrow.Array
            The columns of its row then, but for the key.
        """
        names = held.rows.schema.names
        after = pa.table({n: state.keys.column(n) if n in self.by else found[n] for n in names})
        after = after.cast(pa.schema([held.rows.schema.field(n).with_nullable(nullable=True) for n in names]))
        # What was before the first time of a key is what is held, as it is there.
        nobody = pa.table({f.name: pa.nulls(1, f.type) for f in after.schema}, schema=after.schema)
        every = pa.concat_tables([held.rows.cast(after.schema), nobody, after])
        now = np.arange(exists.shape[0]) + held.rows.num_rows + 1
        ago = now - 1
        ago[state.of_key] = state.base
        there = np.concatenate([held.counts > 0, [False], exists])
        same = there[ago] & there[now]
        for name in names:
            if name not in self.by:
                same &= _equal(every.column(name), ago, now)
        goes, comes = there[ago] & ~same, there[now] & ~same
        taken = np.concatenate([ago[goes], now[comes]])
        diffs = np.repeat(np.array([-1, 1]), [np.count_nonzero(goes), np.count_nonzero(comes)])
        times = np.concatenate([state.times[goes], state.times[comes]])
        return Changes(times, diffs, every.take(pa.array(taken)))

    def _not_null(self, owner: str, state: _Running, n_rows: Numbers) -> tuple[IntArray, dict[str, pa.Array]]:
        """Return how many values of a sum are not null, and the column that has it, if there is one."""
        name, column = self._n(owner), self.values[owner].column
        if not state.has(name):  # a column without nulls; what is read does not say so
            return n_rows, {}
        n = state.not_null(name, column, n_rows)
        return n, {name: pa.array(n)}

    def _summed(self, owner: str, state: _Running, n_rows: Numbers) -> dict[str, pa.Array]:
        """Return sums and averages of a column of integers or decimals, and what is kept beside them."""
        source, column = state.rows.schema, state.rows.column(self.values[owner].column)
        type_ = self._sum_type(owner, source)
        n, found = self._not_null(owner, state, n_rows)
        is_shown = self.values[owner].kind == "sum"
        kept = owner if is_shown else self._hidden("sum", owner)
        sums = state.sums(kept, whole_numbers(column))
        state.check((n == 0) & (sums != 0), n)
        what = f"sum {owner!r}" if is_shown else f"sum of {owner!r}"
        sums = state.fitting(what, sums, type_)
        nothing, some = n == 0, np.maximum(n, 1)
        if not is_shown:
            found[kept] = decimals_of(sums, type_, np.zeros_like(nothing))
        for name in self._alike(owner):
            shown = self.values[name].field(name, source, over="history").type
            if self.values[name].kind == "sum":
                is_decimal = pa.types.is_decimal(shown)
                found[name] = decimals_of(sums, shown, nothing) if is_decimal else pa.array(sums, mask=nothing)
            elif pa.types.is_decimal(shown):
                means = rounded_quotients(sums, some, shown.scale - column.type.scale)
                means = state.fitting(f"average {name!r}", means, shown)
                found[name] = decimals_of(means, shown, nothing)
            else:
                found[name] = pa.array(quotients(sums, some), mask=nothing)
        return found

    def _floats(self, owner: str, state: _Running, n_rows: Numbers) -> dict[str, pa.Array]:
        """Return sums and averages of a column of floats, and the exact sums that they are rounded from."""
        check_rows(state.rows.num_rows)
        n, found = self._not_null(owner, state, n_rows)
        n_groups = state.times.shape[0]
        column = state.rows.column(self.values[owner].column)
        values = np.asarray(column.cast(pa.float64()).fill_null(0.0).to_numpy(), np.float64)
        kept = self._hidden("sum", owner)
        digits, place = state.digits(kept, np.where(np.isfinite(values), values, 0.0))
        found[kept] = sums_as_bytes(digits, place, n_groups)
        odd: Floats = np.zeros(n_groups)
        for name, value in zip(self._odd(owner), _ODD.values(), strict=True):
            is_it = np.isnan(values) if np.isnan(value) else values == value
            counts = state.sums(name, is_it.astype(np.int64)).astype(np.int64)
            found[name] = pa.array(counts)
            with np.errstate(invalid="ignore"):  # infinities of both signs are NaN
                odd = odd + np.where(counts > 0, value, 0.0)
        for name in self._alike(owner):
            if self.values[name].kind == "avg":
                exact = float_quotients(digits, place, np.maximum(n, 1))
            else:
                exact = round_digits(digits, BITS * place) if digits else np.zeros(n_groups)
            found[name] = pa.array(np.where(odd == 0, exact, odd), mask=n == 0)
        return found

    def _extremes(self, changes: Changes, contents: Held) -> dict[str, pa.Array]:
        """Return least and greatest values of what is there after each time of each key."""
        boundaries = Boundaries.of(changes, contents, self.by)
        wanted = {name: each for name, each in self.values.items() if each.kind in ("min", "max")}
        placed = {name: _places(boundaries.rows.column(each.column), each) for name, each in wanted.items()}
        best = {name: np.full(boundaries.keys.shape[0], -1, np.int64) for name in wanted}
        orders = [places for places, _ in placed.values()]
        for at, rows, _ in boundaries.steps(orders, 1):  # as many as the key with the most times has
            for name, (places, _) in placed.items():
                np.maximum.at(best[name], at, places[rows])
        # Boundaries are in the order of keys and times, as groups are.
        return {name: _taken(placed[name][1], best[name]) for name in wanted}


def _places(column: pa.ChunkedArray, value: Aggregation) -> tuple[IntArray, pa.Array]:
    """Return the place of each value in the order in which the greatest is wanted, -1 of null; and a value by place."""
    if pa.types.is_floating(column.type):
        # As of one time: −0.0 and 0.0 are one value.
        column = pc.add(column, pa.scalar(0.0, column.type))
    plain = column.combine_chunks()
    plain = pa.concat_arrays(plain.chunks) if isinstance(plain, pa.ChunkedArray) else plain
    ranked = pc.rank(plain, sort_keys="ascending", tiebreaker="dense")
    ranks = np.asarray(ranked.to_numpy(), np.int64)
    valid = np.asarray(plain.is_valid().to_numpy(zero_copy_only=False))
    if pa.types.is_floating(plain.type):
        # NaN is passed over, unless there is nothing else.
        nan = np.asarray(pc.fill_null(pc.is_nan(plain), False).to_numpy(zero_copy_only=False))  # noqa: FBT003
    else:
        nan = np.zeros(ranks.shape[0], np.bool_)
    in_order = ranks if value.kind == "max" else int(ranks.max(initial=0)) + 1 - ranks
    places = np.where(valid, np.where(nan, 0, in_order), -1)
    return places, plain.take(pa.array(places_by_number(places))) if len(plain) else pa.nulls(1, plain.type)


def _taken(by_place: pa.Array, places: IntArray) -> pa.Array:
    return by_place.take(pa.array(places, mask=places < 0))


class _Running:
    """Values along the times of each key, from what is held on.

    The rows of a key and time are a *group*; groups are sorted by these.

    Attributes
    ----------
    rows : pyarrow.Table
        That come.
    keys : pyarrow.Table
        The key of each group.
    times : ndarray of int64, shape (groups,)
    of_key : ndarray of int64, shape (keys,)
        The first group of each key.
    base : ndarray of int64, shape (keys,)
        Where its row is among those that are held; the one behind the last is none.
    """

    def __init__(self, changes: Changes, held: Held, by: Names) -> None:
        self.rows, self._diffs, self._held = changes.rows, changes.diffs, held.rows
        codes, codes_held = key_codes([changes.rows.select(by), held.rows.select(by)], by)
        self._order = np.lexsort((changes.times, codes))
        self._starts = run_starts_of(codes[self._order], changes.times[self._order])
        first = self._order[self._starts]
        self.keys, self.times = changes.rows.select(by).take(pa.array(first)), changes.times[first]
        self.of_key = run_starts_of(codes[first])
        n_keys = 1 + max(int(codes.max(initial=-1)), int(codes_held.max(initial=-1)))
        place: IntArray = np.full(n_keys, held.rows.num_rows, np.int64)
        place[codes_held] = np.arange(held.rows.num_rows)
        self.base = place[codes[first][self.of_key]]

    def check(self, wrong: BoolArray, counts: Numbers) -> None:
        """Refuse the first group that is wrong, by the number of its rows."""
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            msg = f"{key_text(self.keys, at)} with {counts[at]} rows at time={int(self.times[at])}"
            raise OperatorError(msg, hint="correct the input: more is taken away there than was added")

    def fitting(self, what: str, sums: Numbers, type_: pa.DataType) -> Numbers:
        """Return whole numbers that a type has room for, of 64 bits where it has; refuse others, by name."""
        beyond = ~fits(sums, type_)
        is_decimal = pa.types.is_decimal(type_)
        if beyond.any():
            at = int(np.flatnonzero(beyond)[0])
            room = f"decimal({type_.precision}, {type_.scale})" if is_decimal else "64 bits"
            msg = f"{what} of {key_text(self.keys, at)} beyond {room} at time={self.times[at]}"
            hint = "sum smaller numbers: a sum, as a count, has 64 bits"
            if is_decimal:
                hint = "sum smaller numbers, or decimals of fewer places: a result has 38 digits at most"
            raise OperatorError(msg, hint=hint)
        return sums if is_decimal else sums.astype(np.int64)

    def not_null(self, name: str, column: str | None, n_rows: Numbers) -> IntArray:
        """Return how many values of a column are not null; the column `name` of what is held has how many were."""
        counts = self.sums(name, np.asarray(self.rows.column(column).is_valid().to_numpy()).astype(np.int64))
        self.check((counts < 0) | (counts > n_rows), counts)
        return counts.astype(np.int64)

    def has(self, name: str) -> bool:
        """Return whether a column is held."""
        return name in self._held.schema.names

    def sums(self, name: str, values: Numbers | None) -> Numbers:
        """Return the sums after each time of each key; of Python's integers where they may be beyond 64 bits."""
        diffs, starts = self._diffs, self._starts
        held = np.append(whole_numbers(self._held.column(name)), 0)
        most = max(greatest(diffs), 1) * (1 if values is None else max(greatest(values), 1)) * (diffs.shape[0] + 1)
        plain = most + greatest(held) <= _MOST
        if not plain:
            diffs, held = diffs.astype(object), held.astype(object)
        parts = diffs if values is None else diffs * (values if plain else values.astype(object))
        summed = np.add.reduceat(parts[self._order], starts) if starts.shape[0] else parts[:0]
        return sums_so_far(summed, self.of_key, held[self.base])

    def digits(self, name: str, values: Floats) -> tuple[list[Ints], int]:
        """Return the digits of the sums of floats after each time of each key, and the place of the first.

        Of events: each value counts once.
        """
        mine, unit = digits_of(values)
        before, place_before = digits_of_bytes(self._held.column(name), self.base)
        places = [*range(unit // BITS, unit // BITS - len(mine), -1)]
        places_before = [*range(place_before, place_before - len(before), -1)]
        every = [*places, *places_before]
        if not every:
            return [], 0
        zeros, nothing = np.zeros(values.shape[0], np.int64), np.zeros(self.base.shape[0], np.int64)
        by_place, by_place_before = dict(zip(places, mine, strict=True)), dict(zip(places_before, before, strict=True))
        found = []
        for place in range(max(every), min(every) - 1, -1):
            summed = np.add.reduceat(by_place.get(place, zeros)[self._order], self._starts)
            so_far = sums_so_far(summed, self.of_key, by_place_before.get(place, nothing))
            found.append(so_far.astype(np.int64, copy=False))
        return found, max(every)

    def extreme(self, name: str, value: Aggregation) -> pa.Array:
        """Return the least or greatest value up to each time of each key."""
        rows = self.rows.column(value.column)
        every = pa.chunked_array([*self._held.column(name).cast(rows.type).chunks, *rows.chunks], rows.type)
        places, by_place = _places(every, value)
        n_held = self._held.num_rows
        held = np.append(places[:n_held], -1)
        mine = places[n_held:][self._order]
        best = np.maximum.reduceat(mine, self._starts) if self._starts.shape[0] else mine
        best[self.of_key] = np.maximum(best[self.of_key], held[self.base])
        return _taken(by_place, best_so_far(best, self.of_key))


def _equal(column: pa.ChunkedArray, left: IntArray, right: IntArray) -> BoolArray:
    """Return which values of a column are equal; null is equal to null, NaN to NaN."""
    one, other = column.take(pa.array(left)), column.take(pa.array(right))
    same = pc.or_(
        pc.fill_null(pc.equal(one, other), False),  # noqa: FBT003 - as Arrow has it
        pc.and_(one.is_null(), other.is_null()),
    )
    if pa.types.is_floating(column.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))  # noqa: FBT003
    return np.asarray(same.to_numpy())
