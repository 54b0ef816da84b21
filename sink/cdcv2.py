"""Rows of ``dialect=cdcv2`` in the sink: CDCv2's messages, updates and statements, as columns of one DataFrame.

An update is a row with a time, a diff and a record. A statement is a row with `_lower`, `_upper` and
`_counts`, and nulls in time and diff: of the times beyond `_lower` and not beyond `_upper`, each in `_counts` has
as many updates as stated, and the others none. A time is what the time column holds; one of several coordinates is a
struct of them, in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.errors import ProtocolError, SchemaMismatchError, TimelyError, shown
from spark_timely.interop.cdcv2.statements import Statement, Time
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_timely.time.arrays import IntArray
    from spark_timely.time.domain import TimeDomain


COLUMNS = ("_lower", "_upper", "_counts")
_FORM = (
    "a statement has _lower and _upper, arrays of times, and _counts, an array of structs of a time and the number of"
    " its updates; a time of several coordinates is a struct of them"
)


def statement_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of the data that hold statements.

    Raises
    ------
    SchemaMismatchError
        If one is missing.
    """
    lower = {name.lower(): name for name in schema.names}
    for name in COLUMNS:
        if name not in lower:
            msg = f"could not capture with dialect='cdcv2': found no column {name!r}"
            raise SchemaMismatchError(msg, hint=_FORM, context={"column": name})
    return tuple(lower[name] for name in COLUMNS)


def check_statement_columns(schema: StructType, names: tuple[str, ...], domain: TimeDomain) -> None:
    """Refuse statements in columns of other types than the log's times ask for.

    Raises
    ------
    SchemaMismatchError
        Naming the column.
    """
    found = arrow_schema(type(schema)([schema[name] for name in names]))
    for name, field in zip(names, found, strict=True):
        kind = field.type
        fits = pa.types.is_list(kind)
        if fits and name != names[2]:
            fits = _is_time(kind.value_type, domain)
        elif fits:
            pair = kind.value_type
            fits = pa.types.is_struct(pair) and pair.num_fields == 2
            fits = fits and _is_time(pair.field(0).type, domain) and pa.types.is_signed_integer(pair.field(1).type)
        if not fits:
            wanted = ", ".join(kind.value for kind in domain.types)
            msg = (
                f"could not capture statements of column {name!r}: found type"
                f" {shown(schema[name].dataType.simpleString())}, times of the log are {wanted}"
            )
            raise SchemaMismatchError(msg, hint=_FORM, context={"column": name})


def _is_time(kind: pa.DataType, domain: TimeDomain) -> bool:
    parts = [field.type for field in kind] if domain.arity > 1 and pa.types.is_struct(kind) else [kind]
    if len(parts) != domain.arity:
        return False
    try:
        found = [TimeType.from_arrow_type(part) for part in parts]
    except TimelyError:
        return False
    return all(
        has is wants or (has in _WIDTHS and wants in _WIDTHS and _WIDTHS[has] < _WIDTHS[wants])
        for has, wants in zip(found, domain.types, strict=True)
    )


_WIDTHS = {TimeType.SHORT: 16, TimeType.INT: 32, TimeType.LONG: 64}


def statements_of(table: pa.Table, domain: TimeDomain) -> list[Statement]:
    """Read statements.

    Parameters
    ----------
    table : pyarrow.Table
        Columns `COLUMNS`, in the types of the log's times.
    domain : TimeDomain

    Raises
    ------
    ProtocolError
        If a statement contradicts itself: a count below zero, two of one time, one outside of its bounds.
    InvalidUsageError
        If a time is null, or none of the log's.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> counts = pa.array([[(1, 3)]], pa.list_(pa.struct([("time", pa.int64()), ("n", pa.int64())])))
    >>> statements_of(pa.table({"_lower": [[0]], "_upper": [[2]], "_counts": counts}), TimeDomain(("long",), (0,)))
    [Statement(lower=Antichain.of(0), upper=Antichain.of(2), counts={(1,): 3})]
    """
    columns = [table.column(name).combine_chunks() for name in COLUMNS]
    bounds = [np.concatenate([[0], np.cumsum(np.asarray(column.value_lengths().fill_null(0)))]) for column in columns]
    values = [column.flatten() for column in columns]
    lowers, uppers = (_times(part, domain, name) for part, name in zip(values[:2], COLUMNS, strict=False))
    times = _times(_part(values[2], 0), domain, "_counts")
    numbers = _part(values[2], 1)
    if numbers.null_count:
        msg = "could not read CDCv2 statements: found a count that is null"
        raise ProtocolError(msg, hint=_FORM)
    counts = np.asarray(numbers, np.int64).tolist()
    listed = list(map(tuple, times.tolist()))
    found = []
    for i in range(table.num_rows):  # as many turns as statements
        low, high = (slice(int(b[i]), int(b[i + 1])) for b in bounds[:2])
        pairs = slice(int(bounds[2][i]), int(bounds[2][i + 1]))
        found.append(
            _statement(
                Antichain.from_times(lowers[low], domain.arity),
                Antichain.from_times(uppers[high], domain.arity),
                listed[pairs],
                counts[pairs],
                domain,
            )
        )
    return found


def _statement(
    lower: Antichain, upper: Antichain, times: list[Time], counts: list[int], domain: TimeDomain
) -> Statement:
    said: dict[Time, int] = {}
    for time, count in zip(times, counts, strict=True):
        wrong = (
            f"a count of {count}"
            if count < 0
            else "two counts"
            if time in said
            else "a count outside of its bounds"
            if not lower.less_equal(time) or upper.less_equal(time)
            else "a count before the log's least time"
            if count and not domain.minimum_frontier.less_equal(time)
            else None
        )
        if wrong is not None:
            bounds = f"lower={domain.render_frontier(lower)} upper={domain.render_frontier(upper)}"
            msg = f"could not read a CDCv2 statement of {bounds}: found {wrong} at time={domain.render_time(time)!r}"
            hint = (
                f"the log begins at {domain.render_time(domain.minimum)!r}: make it first, with"
                " create_log(…, kind='collection', minimum=…)"
                if "least" in wrong
                else "a statement has one count, at least 0, for each of its times that have updates"
            )
            raise ProtocolError(msg, hint=hint, context={"time": time})
        said[time] = count
    return Statement(lower, upper, said)


def _part(values: pa.Array, i: int) -> pa.Array:
    """Return the parts of structs; of one that is null, null."""
    return values.flatten()[i]


def _times(values: pa.Array, domain: TimeDomain, name: str) -> IntArray:
    parts = [values] if domain.arity == 1 else values.flatten()
    names = [name] if domain.arity == 1 else [f"{name} {i}" for i in range(domain.arity)]
    return domain.from_columns(pa.table(dict(zip(names, parts, strict=True))), names)
