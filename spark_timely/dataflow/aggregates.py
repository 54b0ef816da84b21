"""Aggregates: count, sum, average, least and greatest value of a group's rows, independent of their order.

Users make an `Aggregation` by `spark_timely.functions`. The operator `Aggregate` (`operators.grouped`) computes it over
the rows of a time. Over all history, where groups change, `history.totals` computes it instead.

Invariants
----------
1. The answer does not depend on the order of rows, nor on how they were cut into files, as long as a group
   is in one place. Sums of integers are exact or refused; sums of floats are the exact sum, rounded once.
2. Groups and values of `group_rows` are those of ``pyarrow.Table.group_by``, under the same names; in no particular
   order.

For a time that is too large for one task an aggregate has two halves, which `engine.shuffle` puts together. The rows
are cut anywhere, each part is grouped where it is read (`part_of_rows`), and only groups travel (`merge_parts`). What
comes out is the same as of `aggregate_rows`, to the last bit. A table of parts has columns ``k0``, ``k1``, … for the
keys, and for value i: ``v<i>`` (count, min, max); ``v<i>h`` and ``v<i>l`` (the high and low 32 bits of a sum of
integers); ``v<i>d<place>`` (digits of a sum of floats in units of 2**(32·place)), ``v<i>c`` (how many were not null),
``v<i>s`` (sum of infinities and NaN).

Groups are found faster than by pyarrow where keys are dense integers: whole numbers, dates or timestamps with few gaps,
as times and a few thousand keys have. They are put together to one number per row; an array with a place for each
number takes the values, and groups come out in their order. All else is left to pyarrow. (Measured, 500k rows in 220k
groups by two integers, a count and two sums: pyarrow 36 to 47 ms, so 23 to 27. Tried, and no faster: numbering texts by
a dictionary, 48 to 75 ms where pyarrow takes 48; numbering sparse ones once more by hashing, twice pyarrow's time.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.exact_sum import BITS, MAX_ROWS, carried, digits_of, round_digits, widest
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyInternalError, shown

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "Aggregation",
    "aggregate_rows",
    "avg_of",
    "check_rows",
    "count",
    "from_halves",
    "group_rows",
    "halves_of",
    "max_of",
    "merge_parts",
    "min_of",
    "part_of_rows",
    "sum_of",
]

_INT64_MAX = (1 << 63) - 1
_HALF = np.int64((1 << 32) - 1)


# What Spark adds to a decimal's digits: of a sum, and of an average, also behind the point.
_SUM_DIGITS, _AVG_DIGITS, _MOST_DIGITS = 10, 4, 38

# Places per row, at most, of the array that takes the values; and places that are few for any rows.
_SPARSE: Final = 4
_FEW: Final = 1024

_Decode = Callable[["npt.NDArray[np.int64]"], pa.Array]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One value per group. Made by `count`, `sum_of`, `avg_of`, `min_of` and `max_of`.

    Attributes
    ----------
    kind : {"count", "sum", "avg", "min", "max"}
    column : str or None
        None counts rows.
    """

    kind: str
    column: str | None = None

    def field(self, name: str, schema: pa.Schema, *, over: str = "time") -> pa.Field:
        """Return the column that it gives under a name; refuses types that it is not defined for.

        Parameters
        ----------
        name : str
        schema : pyarrow.Schema
            Of the rows.
        over : {"time", "history"}
            Averages, decimals and bytes are of all history alone.

        Raises
        ------
        SchemaMismatchError
            If there is no such column, or one of another type.

        Examples
        --------
        >>> rows = pa.schema([("euro", pa.decimal128(9, 2))])
        >>> avg_of("euro").field("e", rows, over="history").type
        Decimal128Type(decimal128(13, 6))
        """
        if self.column is None:
            return pa.field(name, pa.int64(), nullable=False)
        if self.column not in schema.names:
            msg = f"could not aggregate {name!r}: found no column {self.column!r}"
            raise SchemaMismatchError(msg, hint=f"use one of the columns {shown(schema.names)}")
        found = schema.field(self.column)
        if self.kind == "count":
            return pa.field(name, pa.int64(), nullable=False)
        type_ = self._type(found.type) if over == "history" or _is_of_a_time(self.kind, found.type) else None
        if type_ is not None:
            return pa.field(name, type_, nullable=found.nullable)
        what = f"{self.kind} of column {self.column!r} of type={found.type}"
        msg = f"could not aggregate {name!r}: found {what}"
        if over != "history" and self._type(found.type) is not None:
            msg = f"{msg} of each time"
            raise SchemaMismatchError(
                msg,
                hint="add over='history': averages, decimals and bytes are aggregated over all history alone; of each "
                "time give sum and count of integers or floats",
                context={"column": self.column},
            )
        hint = "sum integers, floats or decimals; take min and max of these, or of texts, bytes, dates, timestamps and "
        if over != "history":
            hint = "sum integers or floats; take min and max of these, or of texts, dates, timestamps and "
        raise SchemaMismatchError(msg, hint=hint + "booleans", context={"column": self.column})

    def _type(self, of: pa.DataType) -> pa.DataType | None:
        """Return the type of sum, average, least or greatest value; None where there is none."""
        if self.kind in ("min", "max"):
            ordered = (pa.types.is_string, pa.types.is_date, pa.types.is_timestamp, pa.types.is_boolean)
            more = (pa.types.is_decimal, pa.types.is_binary)
            return of if _is_number(of) or any(test(of) for test in (*ordered, *more)) else None
        if pa.types.is_decimal(of):
            behind = _AVG_DIGITS if self.kind == "avg" else 0
            digits = min(of.precision + (behind or _SUM_DIGITS), _MOST_DIGITS)
            return pa.decimal128(digits, min(of.scale + behind, _MOST_DIGITS))
        if not _is_number(of):
            return None
        return pa.int64() if self.kind == "sum" and pa.types.is_integer(of) else pa.float64()


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(type_) or pa.types.is_floating(type_))


def _is_of_a_time(kind: str, type_: pa.DataType) -> bool:
    """Whether an aggregate of one time is defined."""
    return kind != "avg" and not pa.types.is_decimal(type_) and not pa.types.is_binary(type_)


def count(column: str | None = None, /) -> Aggregation:
    """Return the aggregation that counts rows, or the values of a column that are not null.

    Examples
    --------
    >>> count()
    Aggregation(kind='count', column=None)
    """
    return Aggregation("count", None if column is None else _column(column))


def sum_of(column: str, /) -> Aggregation:
    """Return the aggregation that sums a column; null where all its values are.

    Integers are summed exactly in 64 bits, and refused beyond; over all history decimals too, with ten more digits, 38
    at most. Floats give the exact sum, rounded once to a double: the same whatever the order of the rows.

    Examples
    --------
    >>> sum_of("delay")
    Aggregation(kind='sum', column='delay')
    """
    return Aggregation("sum", _column(column))


def avg_of(column: str, /) -> Aggregation:
    """Return the aggregation that averages a column over all history; null where all its values are.

    The exact sum, divided by how many values are not null, and rounded once. Of integers and floats it is a double. Of
    decimals it has four more places behind the point, as Spark has it, and a half is rounded away from zero.

    Examples
    --------
    >>> avg_of("delay")
    Aggregation(kind='avg', column='delay')
    """
    return Aggregation("avg", _column(column))


def min_of(column: str, /) -> Aggregation:
    """Return the aggregation that takes the least value of a column; null where all its values are.

    Among floats NaN is passed over, unless there is nothing else.

    Examples
    --------
    >>> min_of("delay")
    Aggregation(kind='min', column='delay')
    """
    return Aggregation("min", _column(column))


def max_of(column: str, /) -> Aggregation:
    """Return the aggregation that takes the greatest value of a column; null where all its values are.

    Among floats NaN is passed over, unless there is nothing else.

    Examples
    --------
    >>> max_of("delay")
    Aggregation(kind='max', column='delay')
    """
    return Aggregation("max", _column(column))


def _column(column: object) -> str:
    if not isinstance(column, str):
        msg = f"could not aggregate: found column={shown(column)}"
        raise InvalidUsageError(msg, hint="name a column")
    return column


def aggregate_rows(
    table: pa.Table, keys: Sequence[str], aggregations: Mapping[str, Aggregation], schema: pa.Schema
) -> pa.Table:
    """Group rows, and compute values of each group.

    Parameters
    ----------
    table : pyarrow.Table
        All rows of all groups that it has rows of. Not modified.
    keys : sequence of str
        Columns to group by; not empty.
    aggregations : mapping
        By name of the column that comes out.
    schema : pyarrow.Schema
        Of what comes out: keys, then values.

    Returns
    -------
    pyarrow.Table
        In no particular order.

    Raises
    ------
    OverflowError
        If a sum of integers is beyond 64 bits.

    Notes
    -----
    Cost: one grouping; of a float sum a few passes over its column for the digits.

    Examples
    --------
    >>> schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("s", pa.float64())])
    >>> rows = pa.table({"k": ["a", "a"], "x": [1e100, 1.0]})
    >>> aggregate_rows(rows, ["k"], {"n": count(), "s": sum_of("x")}, schema).to_pylist()
    [{'k': 'a', 'n': 2, 's': 1e+100}]
    """
    check_rows(table.num_rows)
    work = {f"k{i}": table.column(key) for i, key in enumerate(keys)}
    wanted: list[tuple[str | list[str], str]] = []
    finished = []
    for place, (name, aggregation) in enumerate(aggregations.items()):
        part = _Part(f"v{place}", aggregation, schema.field(name).type)
        part.prepare(table, work, wanted)
        finished.append(part)
    if not wanted:  # a group-by without aggregates drops nothing
        wanted.append(([], "count_all"))
    groups = group_rows(pa.table(work), [f"k{i}" for i in range(len(keys))], wanted)
    columns = [groups.column(f"k{i}") for i in range(len(keys))]
    columns += [part.finish(groups) for part in finished]
    return pa.Table.from_arrays(columns, schema=schema)


def _count_rows(wanted: list[tuple[str | list[str], str]]) -> None:
    """Add the number of rows to what is wanted of groups, once: several values may be it."""
    if ([], "count_all") not in wanted:
        wanted.append(([], "count_all"))


def check_rows(n_rows: int) -> None:
    """Refuse more rows in one place than sums of digits and of halves can hold."""
    if n_rows >= MAX_ROWS:
        msg = f"could not aggregate: found {n_rows} rows in one task, invariant 2 of exact_sum"
        raise TimelyInternalError(msg)


def halves_of(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the high and the low 32 bits of integers: the high ones with the sign."""
    return pc.shift_right(values, 32), pc.bit_wise_and(values, pa.scalar(int(_HALF), pa.int64()))


def from_halves(high: pa.ChunkedArray, low: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    """Put sums of halves together.

    Raises
    ------
    OverflowError
        If a sum is beyond 64 bits.
    """
    upper = pc.add(high, pc.shift_right(low, 32))
    ends = pc.min_max(upper).as_py()
    if ends["max"] is not None and not -(1 << 31) <= ends["min"] <= ends["max"] < 1 << 31:
        msg = f"the sum of column {column!r} does not fit 64 bits"
        raise OverflowError(msg)
    return pc.bit_wise_or(pc.shift_left(upper, 32), halves_of(low)[1])


class _Part:
    """One value: the columns that are grouped for it, and how they are put together."""

    def __init__(self, label: str, aggregation: Aggregation, type_: pa.DataType) -> None:
        self.label = label
        self.kind = aggregation.kind
        self.column = aggregation.column
        self.type = type_
        self.digits = 0
        self.bits = self.unit = 0
        self.special = False
        self.halves = False

    def prepare(
        self, table: pa.Table, work: dict[str, pa.ChunkedArray], wanted: list[tuple[str | list[str], str]]
    ) -> None:
        """Add the columns to be grouped, and what is wanted of them."""
        if self.column is None:
            _count_rows(wanted)
            return
        column = table.column(self.column)
        if self.kind == "sum" and pa.types.is_floating(self.type):
            self._prepare_floats(column, work, wanted)
            return
        if self.kind == "sum":
            self._prepare_integers(column, work, wanted)
            return
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0.0, column.type))  # −0.0 and 0.0 are one value
        work[self.label] = column
        wanted.append((self.label, self.kind))

    def _prepare_integers(
        self, column: pa.ChunkedArray, work: dict[str, pa.ChunkedArray], wanted: list[tuple[str | list[str], str]]
    ) -> None:
        wide = column.cast(pa.int64())
        ends = pc.min_max(wide).as_py()
        greatest = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
        self.halves = greatest * len(wide) > _INT64_MAX
        if self.halves:  # two sums that cannot overflow
            work[self.label + "h"], work[self.label + "l"] = halves_of(wide)
            wanted += [(self.label + "h", "sum"), (self.label + "l", "sum")]
        else:
            work[self.label] = wide
            wanted.append((self.label, "sum"))

    def _prepare_floats(
        self, column: pa.ChunkedArray, work: dict[str, pa.ChunkedArray], wanted: list[tuple[str | list[str], str]]
    ) -> None:
        values = column.cast(pa.float64())
        if values.null_count:
            work[self.label + "c"] = values
            wanted.append((self.label + "c", "count"))
        numbers = np.asarray(values.fill_null(0.0).to_numpy(), dtype=np.float64)
        finite = np.isfinite(numbers)
        self.special = not bool(finite.all())
        if self.special:
            # Infinities and NaN add up among themselves, whatever is finite beside them.
            work[self.label + "s"] = pa.chunked_array([np.where(finite, 0.0, numbers)])
            wanted.append((self.label + "s", "sum"))
            numbers = np.where(finite, numbers, 0.0)
        self.bits = widest(numbers.shape[0])
        digits, self.unit = digits_of(numbers, self.bits)
        self.digits = len(digits)
        for i, digit in enumerate(digits):
            work[f"{self.label}d{i}"] = pa.chunked_array([digit])
            wanted.append((f"{self.label}d{i}", "sum"))

    def finish(self, groups: pa.Table) -> pa.Array | pa.ChunkedArray:
        """Return the values of the groups."""
        if self.column is None:
            return groups.column("count_all")
        if self.kind != "sum":
            return groups.column(f"{self.label}_{self.kind}")
        if pa.types.is_floating(self.type):
            return self._finish_floats(groups)
        if not self.halves:
            return groups.column(f"{self.label}_sum")
        high, low = (groups.column(f"{self.label}{half}_sum") for half in "hl")
        return from_halves(high, low, str(self.column))

    def _finish_floats(self, groups: pa.Table) -> pa.Array:
        n = groups.num_rows
        sums: npt.NDArray[np.float64] = np.zeros(n)
        if self.digits:
            parts = [_numbers(groups, f"{self.label}d{i}_sum") for i in range(self.digits)]
            sums = round_digits(parts, self.unit, self.bits)
        if self.special:
            special = np.asarray(groups.column(f"{self.label}s_sum").to_numpy(), dtype=np.float64)
            sums = np.where(np.isfinite(special), sums, special)
        nothing = None
        if f"{self.label}c_count" in groups.schema.names:
            nothing = _numbers(groups, f"{self.label}c_count") == 0
        return pa.array(sums, mask=nothing)


def _numbers(groups: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(groups.column(name).to_numpy(), dtype=np.int64)


_DIGIT = "d"


def part_of_rows(table: pa.Table, keys: Sequence[str], aggregations: Mapping[str, Aggregation]) -> pa.Table:
    """Group some of the rows.

    Parameters
    ----------
    table : pyarrow.Table
    keys : sequence of str
        Columns to group by; not empty.
    aggregations : mapping
        By name of the column that will come out.

    Returns
    -------
    pyarrow.Table
        One row per group.

    Examples
    --------
    >>> from spark_timely.dataflow.aggregates import count
    >>> part_of_rows(pa.table({"k": ["a", "a"]}), ["k"], {"n": count()}).to_pylist()
    [{'k0': 'a', 'v0': 2}]
    """
    check_rows(table.num_rows)
    work = {f"k{i}": table.column(key) for i, key in enumerate(keys)}
    wanted: list[tuple[str | list[str], str]] = []
    floats: dict[str, int] = {}
    for i, aggregation in enumerate(aggregations.values()):
        label = f"v{i}"
        if aggregation.column is None:
            _count_rows(wanted)
            continue
        column = table.column(aggregation.column)
        if aggregation.kind != "sum":
            is_float = pa.types.is_floating(column.type) and aggregation.kind != "count"
            work[label] = pc.add(column, pa.scalar(0.0, column.type)) if is_float else column
            wanted.append((label, aggregation.kind))
        elif pa.types.is_integer(column.type):
            work[label + "h"], work[label + "l"] = halves_of(column.cast(pa.int64()))
            wanted += [(label + "h", "sum"), (label + "l", "sum")]
        else:
            values = column.cast(pa.float64())
            work[label + "c"] = values
            numbers = np.asarray(values.fill_null(0.0).to_numpy(), dtype=np.float64)
            finite = np.isfinite(numbers)
            # Infinities and NaN add up among themselves, whatever is finite beside them.
            work[label + "s"] = pa.chunked_array([np.where(finite, 0.0, numbers)])
            wanted += [(label + "c", "count"), (label + "s", "sum")]
            digits, unit = digits_of(np.where(finite, numbers, 0.0))
            floats[label] = unit // BITS
            for place, digit in enumerate(digits):
                work[f"{label}{_DIGIT}{place}"] = pa.chunked_array([digit])
                wanted.append((f"{label}{_DIGIT}{place}", "sum"))
    if not wanted:  # a group-by without aggregates drops nothing
        wanted.append(([], "count_all"))
    groups = group_rows(pa.table(work), [f"k{i}" for i in range(len(keys))], wanted)
    made = {f"k{i}": groups.column(f"k{i}") for i in range(len(keys))}
    for i, aggregation in enumerate(aggregations.values()):
        label = f"v{i}"
        if aggregation.column is None:
            made[label] = groups.column("count_all")
        elif aggregation.kind != "sum":
            made[label] = groups.column(f"{label}_{aggregation.kind}")
        elif label in floats:
            made[label + "c"], made[label + "s"] = groups.column(f"{label}c_count"), groups.column(f"{label}s_sum")
            made |= _digit_columns(groups, label, floats[label])
        else:
            high, low = groups.column(f"{label}h_sum"), groups.column(f"{label}l_sum")
            # The low half without its carry: many parts can be summed before it overflows.
            made[label + "h"], made[label + "l"] = pc.add(high, pc.shift_right(low, 32)), halves_of(low)[1]
    return pa.table(made)


def _digit_columns(groups: pa.Table, label: str, place: int) -> dict[str, pa.Array]:
    names = [name for name in groups.schema.names if name.startswith(label + _DIGIT)]
    if not names:
        return {}
    names.sort(key=lambda name: int(name.removeprefix(label + _DIGIT).removesuffix("_sum")))
    digits = carried([np.asarray(groups.column(name).to_numpy(), dtype=np.int64) for name in names])
    return {f"{label}{_DIGIT}{place + 1 - i}": pa.array(digits[:, i].copy()) for i in range(digits.shape[1])}


def merge_parts(
    parts: Sequence[pa.Table], keys: Sequence[str], aggregations: Mapping[str, Aggregation], schema: pa.Schema
) -> pa.Table:
    """Put the parts of groups together.

    Parameters
    ----------
    parts : sequence of pyarrow.Table
        Of `part_of_rows`, with all parts of each group that is in any; not empty.
    keys : sequence of str
    aggregations : mapping
        The same as for the parts.
    schema : pyarrow.Schema
        Of what comes out: keys, then values.

    Returns
    -------
    pyarrow.Table
        As of `aggregate_rows` over all rows.

    Raises
    ------
    OverflowError
        If a sum of integers is beyond 64 bits.

    Examples
    --------
    >>> from spark_timely.dataflow.aggregates import sum_of
    >>> sums, schema = {"s": sum_of("x")}, pa.schema([("k", pa.string()), ("s", pa.float64())])
    >>> parts = [part_of_rows(pa.table({"k": ["a"], "x": [x]}), ["k"], sums) for x in (1e100, 1.0, -1e100)]
    >>> merge_parts(parts, ["k"], sums, schema).to_pylist()
    [{'k': 'a', 's': 1.0}]
    """
    table = pa.concat_tables(parts, promote_options="default")
    kinds = {f"v{i}": a.kind if a.kind in ("min", "max") else "sum" for i, a in enumerate(aggregations.values())}
    wanted: list[tuple[str | list[str], str]] = [
        (name, kinds.get(name, "sum")) for name in table.schema.names if name.startswith("v")
    ]
    if not wanted:
        wanted.append(([], "count_all"))
    groups = group_rows(table, [f"k{i}" for i in range(len(keys))], wanted)
    columns = [groups.column(f"k{i}") for i in range(len(keys))]
    for i, aggregation in enumerate(aggregations.values()):
        label = f"v{i}"
        if f"{label}_{kinds[label]}" in groups.schema.names:
            columns.append(groups.column(f"{label}_{kinds[label]}"))
        elif f"{label}h_sum" in groups.schema.names:
            high, low = groups.column(f"{label}h_sum"), groups.column(f"{label}l_sum")
            columns.append(from_halves(high, low, str(aggregation.column)))
        else:
            columns.append(_float_sums(groups, label))
    return pa.Table.from_arrays(columns, schema=schema)


def _float_sums(groups: pa.Table, label: str) -> pa.Array:
    start = label + _DIGIT
    names = {int(n[len(start) : -len("_sum")]): n for n in groups.schema.names if n.startswith(start)}
    sums = np.zeros(groups.num_rows)
    if names:
        zero = np.zeros(groups.num_rows, dtype=np.int64)
        digits = [
            np.asarray(groups.column(names[place]).fill_null(0).to_numpy(), dtype=np.int64) if place in names else zero
            for place in range(max(names), min(names) - 1, -1)
        ]
        sums = round_digits(digits, max(names) * BITS)
    special = np.asarray(groups.column(f"{label}s_sum").to_numpy(), dtype=np.float64)
    sums = np.where(np.isfinite(special), sums, special)
    return pa.array(sums, mask=np.asarray(groups.column(f"{label}c_sum").to_numpy()) == 0)


# Groups ---------------------------------------------------------------------------------------------------------------


def group_rows(table: pa.Table, keys: Sequence[str], wanted: Sequence[tuple[str | list[str], str]], /) -> pa.Table:
    """Group rows, and compute values of each group.

    Parameters
    ----------
    table : pyarrow.Table
    keys : sequence of str
        Not empty.
    wanted : sequence of (column, kind)
        As ``pyarrow.TableGroupBy.aggregate`` takes them: ``count_all``, ``count``, ``sum``, ``min``, ``max``. Sums of
        integers must not overflow.

    Returns
    -------
    pyarrow.Table
        The keys, then a column ``<column>_<kind>`` for each value that is wanted.

    Notes
    -----
    Cost: a few passes over each column.

    Examples
    --------
    >>> rows = pa.table({"t": [7, 8, 7], "x": [1, 2, 3]})
    >>> group_rows(rows, ["t"], [([], "count_all"), ("x", "sum")]).to_pylist()
    [{'t': 7, 'count_all': 2, 'x_sum': 4}, {'t': 8, 'count_all': 1, 'x_sum': 2}]
    """
    numbered = _numbered(table, keys) if table.num_rows and all(_supported(table, each) for each in wanted) else None
    if numbered is None:
        return table.group_by(list(keys), use_threads=False).aggregate(list(wanted))
    codes, decoders, n_codes = numbered
    counts = np.bincount(codes, minlength=n_codes)
    left = present = np.flatnonzero(counts)
    parts: list[pa.Array] = []
    for decode, n in reversed(decoders):
        left, part = np.divmod(left, n)
        parts.append(decode(part))
    columns = dict(zip(keys, reversed(parts), strict=True))
    for column, kind in wanted:
        if kind == "count_all":
            columns["count_all"] = pa.array(counts[present])
        else:
            assert isinstance(column, str)
            columns[f"{column}_{kind}"] = _value(table.column(column), kind, codes, counts, present)
    return pa.table(columns)


def _supported(table: pa.Table, value: tuple[str | list[str], str]) -> bool:
    column, kind = value
    if kind in ("count_all", "count"):
        return True
    assert isinstance(column, str)
    type_ = table.schema.field(column).type
    if kind == "sum":
        return bool(pa.types.is_int64(type_) or pa.types.is_float64(type_))
    is_float = pa.types.is_float32(type_) or pa.types.is_float64(type_)
    return kind in ("min", "max") and bool(_is_whole(type_) or is_float)


def _is_whole(type_: pa.DataType) -> bool:
    """Whether values are whole numbers of 64 bits, as they are or counted from a day or a moment on."""
    return bool(pa.types.is_signed_integer(type_) or _dated(type_))


def _dated(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def _numbered(
    table: pa.Table, keys: Sequence[str]
) -> tuple[npt.NDArray[np.int64], list[tuple[_Decode, int]], int] | None:
    """Return a number for the keys of each row, what gives the keys of numbers, and how many numbers there may be.

    None where these are many.
    """
    columns = [table.column(key) for key in keys]
    if not all(_is_whole(column.type) and not column.null_count for column in columns):
        return None
    most = max(_SPARSE * table.num_rows, _FEW)
    codes: npt.NDArray[np.int64] | None = None
    decoders: list[tuple[_Decode, int]] = []
    n_codes = 1
    for column in columns:
        found = _numbers_of(column, most)
        if found is None:
            return None
        numbers, decode, n = found
        n_codes *= n
        if n_codes > most:
            return None
        if codes is None:
            codes = numbers
        else:
            codes *= n
            codes += numbers
        decoders.append((decode, n))
    assert codes is not None
    return codes, decoders, n_codes


def _numbers_of(column: pa.ChunkedArray, most: int) -> tuple[npt.NDArray[np.int64], _Decode, int] | None:
    """Return a number for each value, from 0 on, what gives the values of numbers, and how many there may be.

    None where these are more than `most`.
    """
    type_ = column.type
    integers = _integers(column)
    low, high = int(integers.min()), int(integers.max())
    n = high - low + 1
    if n > most:
        return None
    return integers - low, lambda numbers: _dated_or_whole(numbers + low, type_), n


def _integers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return whole numbers, dates or timestamps without nulls as integers."""
    type_ = column.type
    plain = column.cast(pa.int32() if pa.types.is_date32(type_) else pa.int64()) if _dated(type_) else column
    return np.asarray(plain.to_numpy(), dtype=np.int64)


def _dated_or_whole(integers: npt.NDArray[np.int64], type_: pa.DataType) -> pa.Array:
    found = pa.array(integers)
    return (found.cast(pa.int32()) if pa.types.is_date32(type_) else found).cast(type_)


def _value(
    column: pa.ChunkedArray,
    kind: str,
    places: npt.NDArray[np.intp],
    counts: npt.NDArray[np.intp],
    present: npt.NDArray[np.intp],
) -> pa.Array:
    """Return a value of each group that is present."""
    nothing = None
    if column.null_count or kind == "count":
        if column.null_count:
            valid = np.asarray(column.is_valid().to_numpy())
            places, column = places[valid], column.drop_null()
            counts = np.bincount(places, minlength=counts.shape[0])
        if kind == "count":
            return pa.array(counts[present])
        nothing = counts[present] == 0
    type_ = column.type
    if kind == "sum":
        values = np.asarray(column.to_numpy())
        sums = np.zeros(counts.shape[0], dtype=values.dtype)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            np.add.at(sums, places, values)
        return pa.array(sums[present], mask=nothing)
    if pa.types.is_floating(type_):
        values = np.asarray(column.to_numpy())
        ends: npt.NDArray[Any] = np.full(counts.shape[0], np.nan, dtype=values.dtype)
        # They pass over NaN.
        (np.fmin if kind == "min" else np.fmax).at(ends, places, values)
        return pa.array(ends[present], mask=nothing)
    bounds = np.iinfo(np.int64)
    ends = np.full(counts.shape[0], bounds.max if kind == "min" else bounds.min, dtype=np.int64)
    (np.minimum if kind == "min" else np.maximum).at(ends, places, _integers(column))
    found = ends[present]
    if nothing is None:
        return _dated_or_whole(found, type_)
    found[nothing] = 0
    return pc.if_else(pa.array(~nothing), _dated_or_whole(found, type_), pa.scalar(None, type_))
