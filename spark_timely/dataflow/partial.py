"""Aggregates in two halves: of a part of the rows each, then of these parts together.

For a time that is too large for one place: its rows are cut anywhere, each part is grouped where it is read, and only
groups travel. What comes out is the same as of `aggregate_rows`, to the last bit.

A table of parts has columns ``k0``, ``k1``, … for the keys, and for value i: ``v<i>`` (count, min, max); ``v<i>h`` and
``v<i>l`` (the high and low 32 bits of a sum of integers); ``v<i>d<place>`` (digits of a sum of floats in units of
2**(32·place)), ``v<i>c`` (how many were not null), ``v<i>s`` (sum of infinities and NaN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import Aggregation, check_rows, from_halves, halves_of
from spark_timely.dataflow.exact_sum import BITS, carried, digits_of, round_digits
from spark_timely.dataflow.grouping import group_rows

__all__ = ["merge_parts", "part_of_rows"]

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
    for i, aggregation in enumerate(aggregations.values()):  # one turn per value
        label = f"v{i}"
        if aggregation.column is None:
            wanted.append(([], "count_all"))
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
    for i, aggregation in enumerate(aggregations.values()):  # one turn per value
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
