"""The plan of a peek, as a value, and the answer that it makes of updates: which count, in which order, how many.

A plan has log, time, keys, columns and order. `spark_timely.answers.peek` makes it; an index, `log_peek` or a Spark job
(`spark_timely.spark.answers.peek_job`) answers it with rows and counts: the columns `PeekPlan.columns`, then `_diff`.
They may stop early, for `finish` makes the same answer of all rows and of the first ones by the order. An offset and a
limit count copies: with a limit of 5 a row that is there 8 times has the count 5. (The plan of a dataflow is
`spark_timely.compute.plan`, that of a continual task's step `spark_timely.continual.plan`.)

Invariants
----------
1. A plan is of one snapshot of a log: its files contain each update that counts at the wanted time, and each once.
2. Rows are judged by `where` before they are counted, and counted by `columns` alone: so it makes no difference which
   other columns the answering side has.
3. The count of a row is the sum of its diffs at times not later than `at` in any coordinate; messages of a stream count
   1 each.
4. The answer depends on the rows and their counts alone, not on the order in which they came: ties of the order are
   broken by the whole row. Without an order a limit takes any rows.
5. Rows may be thinned (`Thinning`) before they are finished: the first `limit + offset` rows by the order are enough
   for the same answer, and more rows do no harm.
6. The size of an answer is the sum of `row_sizes` of the distinct rows within the first `limit + offset` copies,
   whatever their counts. Above the limit of size there is an error and no answer.
7. No sum of counts, limits and offsets overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import InvalidUsageError, ResultTooLargeError, SchemaMismatchError, shown
from spark_timely.trace.updates import DIFF, Updates, contents_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage
    from spark_timely.predicate import Predicate
    from spark_timely.time.antichain import Antichain, BoolArray, IntArray

__all__ = [
    "OrderBy",
    "OrderLike",
    "PeekPlan",
    "Thinning",
    "counted",
    "counting",
    "counts_at",
    "finish",
    "judged",
    "order_of",
    "row_sizes",
]

OrderLike = str | Sequence[str | Sequence[str]]
"""``"price"``, ``["price", "id"]``, ``[("price", "desc"), ("id", "asc", "last")]``."""

_COUNT_BYTES: Final = 8
_HINT: Final = "give order_by=['column', ('column', 'desc'), ('column', 'asc', 'last')]"


@dataclass(frozen=True, slots=True)
class OrderBy:
    """A column that rows are ordered by.

    Attributes
    ----------
    column : str
    descending : bool
        NaN is greater than all other numbers, texts are compared by their bytes.
    nulls_first : bool
        Unless it is given, as Spark has it: first where the order ascends, last where it descends.

    Examples
    --------
    >>> OrderBy("price", descending=True, nulls_first=False)
    OrderBy(column='price', descending=True, nulls_first=False)
    """

    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class PeekPlan:
    """A peek of one log, all arguments checked.

    Attributes
    ----------
    path, log_id : str
        The log.
    form : LogFormat
        Its columns, times and kind: `form.kind`, `form.domain`, `form.payload`.
    storage : Storage
        What its files are read by, in tasks too.
    files : tuple of str
        Files that may hold what is asked, relative to the log.
    at : tuple of int
        The time, a number for each coordinate, as `form.domain` has them: microseconds, days, or integers.
    since : Antichain
        Of the log, as of the snapshot. Messages of a stream at times not beyond it are gone, whether or not they are
        still in files; updates of a collection need no such look, for `at` is beyond it.
    keys : pyarrow.Table or None
        The keys wanted: columns of the payload, in the payload's types, sorted, each key once; not empty. Null equals
        null, -0.0 equals 0.0, NaN equals NaN. None: all rows.
    where : Predicate or None
        Of rows: `where.expression` in Arrow, `where.sql` in Spark. Rows for which it is null are left out.
    select : tuple of str
        Columns of the answer.
    columns : tuple of str
        Columns that rows are counted by: those of `select`, and those of `order` that are not among them.
    order : tuple of OrderBy
        Empty: no order. Ties are broken by the whole row.
    limit : int or None
        How many copies of rows, at most; not 0.
    offset : int
        How many copies are left out first.
    max_bytes : int or None
        Above it the answer is an error; see `row_sizes`.
    """

    path: str
    log_id: str
    form: LogFormat
    storage: Storage
    files: tuple[str, ...]
    at: tuple[int, ...]
    since: Antichain
    keys: pa.Table | None
    where: Predicate | None
    select: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[OrderBy, ...] = ()
    limit: int | None = None
    offset: int = 0
    max_bytes: int | None = None

    @property
    def bound(self) -> int | None:
        """The number of distinct rows that is enough, the first ones by the order; None for all.

        Examples
        --------
        >>> PeekPlan("", "", None, None, (), (0,), None, None, None, (), (), limit=5, offset=2).bound
        7
        """
        return None if self.limit is None else self.limit + self.offset

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Payload columns that have to be read: those of `columns`, `keys` and `where`."""
        keys = () if self.keys is None else self.keys.schema.names
        conditions = () if self.where is None else self.where.columns
        return tuple(dict.fromkeys([*self.columns, *keys, *conditions]))


def order_of(attempt: str, order_by: OrderLike | None, payload: pa.Schema) -> tuple[OrderBy, ...]:
    """Return the order that somebody asks for.

    Parameters
    ----------
    attempt : str
        What is attempted (``could not …``), for errors.
    order_by : str or sequence, optional
        Columns; each alone, or with ``asc`` or ``desc``, and with where nulls are: ``first`` or ``last``. Unless said,
        nulls are first where the order ascends, and last where it descends, as in Spark.
    payload : pyarrow.Schema
        Columns of the log.

    Raises
    ------
    InvalidUsageError
        If it is no order, names a column twice, or one that holds lists, maps or structs.
    SchemaMismatchError
        If there is no such column.

    Examples
    --------
    >>> schema = pa.schema([("k", pa.int64()), ("name", pa.string())])
    >>> found = order_of("could not peek", ["k", ("name", "desc", "last")], schema)
    >>> [(each.column, each.nulls_first) for each in found]
    [('k', True), ('name', False)]
    """
    if order_by is None:
        return ()
    entries = [order_by] if isinstance(order_by, str) else order_by
    if not isinstance(entries, list | tuple):
        msg = f"{attempt}: found order_by={shown(order_by)}"
        raise InvalidUsageError(msg, hint=_HINT)
    found: dict[str, OrderBy] = {}
    for entry in entries:
        parts = (entry,) if isinstance(entry, str) else entry
        if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 3:
            msg = f"{attempt}: found {shown(entry)} in order_by"
            raise InvalidUsageError(msg, hint=_HINT)
        name = parts[0]
        direction = parts[1] if len(parts) > 1 else "asc"
        nulls = parts[2] if len(parts) > 2 else None
        nulls = ("first" if direction == "asc" else "last") if nulls is None else nulls
        if direction not in ("asc", "desc") or nulls not in ("first", "last") or name in found:
            msg = f"{attempt}: found {shown(entry)} in order_by"
            raise InvalidUsageError(msg, hint=f"name each column once; {_HINT}")
        if name not in payload.names:
            msg = f"{attempt}: found no column {shown(name)}"
            raise SchemaMismatchError(
                msg, hint=f"choose among its columns: {shown(payload.names)}", context={"column": name}
            )
        kind = payload.field(name).type
        if pa.types.is_nested(kind):
            msg = f"{attempt}: found an order by column {name!r} of type {kind}"
            raise InvalidUsageError(msg, hint="order by columns of plain values")
        found[name] = OrderBy(name, direction == "desc", nulls == "first")
    return tuple(found.values())


def counts_at(
    times: IntArray,
    at: tuple[int, ...],
    *,
    since: Antichain | None = None,
    lower: int | None = None,
) -> BoolArray:
    """Return which updates count at a time, shape (n,).

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
    at : tuple of int
        The time: updates not later than it in any coordinate count.
    since : Antichain, optional
        Of a stream that has forgotten: messages not beyond it are gone.
    lower : int, optional
        Of times of one coordinate: those before it are counted elsewhere.

    Examples
    --------
    >>> counts_at(np.array([[3], [5], [6]]), (5,)).tolist()
    [True, True, False]
    >>> counts_at(np.array([[1, 9], [2, 2]]), (5, 5)).tolist()
    [False, True]
    """
    found: BoolArray = np.asarray((times <= np.array(at, np.int64)).all(axis=1))
    if since is not None:
        found &= since.beyond(times)
    if lower is not None:
        found &= times[:, 0] >= lower
    return found


def counting(plan: PeekPlan, found: Updates, lower: int | None = None) -> Updates:
    """Return those of some updates that count, by their times; `lower` as for `counts_at`."""
    form = plan.form
    forgets = form.kind == "stream" and plan.since != form.domain.minimum_frontier
    return found.where(counts_at(found.times, plan.at, since=plan.since if forgets else None, lower=lower))


def judged(plan: PeekPlan, found: Updates) -> Updates:
    """Return those of some updates for which the condition is true, with the columns that rows are counted by.

    Parameters
    ----------
    plan : PeekPlan
    found : Updates
        Of the keys, that count; with all columns that are read.

    Raises
    ------
    InvalidUsageError
        If the condition cannot be computed for a row: whether or not the row is there at the time.
    """
    if plan.where is not None and len(found):
        rows = found.rows.combine_chunks()
        batches = rows.to_batches()
        kept = np.concatenate([np.asarray(plan.where.holds(batch).to_numpy(zero_copy_only=False)) for batch in batches])
        found = replace(found, rows=rows).where(kept)
    return found.select(plan.columns)


def counted(plan: PeekPlan, parts: Sequence[Updates]) -> pa.Table:
    """Return updates that were judged as rows with their counts.

    Raises
    ------
    NegativeMultiplicityError, MultiplicityOverflowError
        If a row is there fewer than zero times, or more often than 64 bits count.
    """
    if not parts:
        fields = [plan.form.payload.field(name).with_nullable(nullable=True) for name in plan.columns]
        return Updates.contents(pa.schema(fields).empty_table()).as_table()
    return contents_of(f"peek log {plan.path!r}", Updates.concat(parts)).as_table()


def row_sizes(rows: pa.Table) -> IntArray:
    """Return the bytes of each row, with 8 for its count: what the limit of size is of.

    Numbers, dates and times have the width of their type; texts and bytes their length; null has none; lists, maps and
    structs have what is in them.

    Parameters
    ----------
    rows : pyarrow.Table
        Without counts.

    Returns
    -------
    ndarray of int64, shape (n,)

    Examples
    --------
    >>> row_sizes(pa.table({"n": pa.array([1, None]), "v": ["abc", "é"], "l": [[1, 2], None]})).tolist()
    [35, 10]
    """
    sizes = np.full(rows.num_rows, _COUNT_BYTES, np.int64)
    for column in rows.columns:
        array = column.combine_chunks()
        sizes += _value_sizes(pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array)
    return sizes


def _value_sizes(array: pa.Array) -> IntArray:
    kind, n = array.type, len(array)
    if not n or pa.types.is_null(kind):
        return np.zeros(n, np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False), np.int64)
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if pa.types.is_struct(kind):
        inside = sum((_value_sizes(each) for each in array.flatten()), np.zeros(n, np.int64))
        return np.where(valid, inside, 0)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        if pa.types.is_map(kind):
            array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        inside = _value_sizes(array.flatten())
        ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)))
        sums = np.concatenate([[0], np.cumsum(inside)])
        return np.asarray(np.diff(sums[np.concatenate([[0], ends])]), np.int64)
    return np.where(valid, max(1, kind.bit_width // 8), 0)


def finish(plan: PeekPlan, rows: pa.Table) -> pa.Table:
    """Make the answer of all rows, or of at least the first ones by the order.

    Parameters
    ----------
    plan : PeekPlan
        Its `order`, `limit`, `offset`, `select` and `max_bytes` say how.
    rows : pyarrow.Table
        Its `columns`, and the count of each row in `_diff`. No row twice. Not modified.

    Returns
    -------
    pyarrow.Table
        The columns of `select`, and `_diff`. Rows that differ in columns alone that are not selected stay apart.

    Raises
    ------
    ResultTooLargeError
        If there is more than `max_bytes`.

    Notes
    -----
    Cost: one sort where there is an order.
    """
    if plan.order:
        rows = rows.take(_ranks(rows, plan.order))
    if plan.bound is None and not plan.offset:
        check_size(plan, rows)
        return rows.select([*plan.select, DIFF])
    begins, counts = _begins(rows)
    if plan.bound is not None and rows.num_rows:
        n = int(np.searchsorted(begins, min(plan.bound, int(begins[-1]) + 1), "left"))
        rows, begins, counts = rows.slice(0, n), begins[:n], counts[:n]
    check_size(plan, rows)
    rows = _cut(rows, begins, counts, plan.offset, plan.bound)
    return rows.select([*plan.select, DIFF])


def check_size(plan: PeekPlan, rows: pa.Table) -> None:
    """Refuse rows that have more bytes than a plan allows (invariant 6)."""
    if plan.max_bytes is None:
        return
    size = int(row_sizes(rows.drop_columns([DIFF])).sum())
    if size > plan.max_bytes:
        msg = f"could not peek log {plan.path!r}: found an answer of {size} bytes, max_bytes={plan.max_bytes}"
        raise ResultTooLargeError(
            msg,
            hint="ask for fewer rows or columns, or allow more with max_bytes",
            size_bytes=size,
            limit_bytes=plan.max_bytes,
            limit_name="max_bytes",
        )


class Thinning:
    """Keeps of rows that come piece by piece as many as an answer needs.

    At 2 × (limit + offset) distinct rows it cuts them to limit + offset: with an order, to the first by it, and
    continues; without, to any, and says that it is done.

    Parameters
    ----------
    plan : PeekPlan

    Examples
    --------
    >>> some = "", "", None, None, (), (0,), None, None, None
    >>> plan = PeekPlan(*some, select=("v",), columns=("v",), order=(OrderBy("v"),), limit=1)
    >>> thinning = Thinning(plan)
    >>> for v in (3, 1, 2):
    ...     thinning.add(pa.table({"v": [v], "_diff": [1]}))
    >>> thinning.done, thinning.rows().num_rows, finish(plan, thinning.rows()).to_pylist()
    (False, 1, [{'v': 1, '_diff': 1}])
    """

    def __init__(self, plan: PeekPlan) -> None:
        self._plan = plan
        self._parts: list[pa.Table] = []
        self._n = 0
        self.done = plan.bound == 0

    def add(self, rows: pa.Table) -> None:
        """Take rows that were in no piece before, with their counts."""
        if self.done or not rows.num_rows:
            return
        self._parts.append(rows)
        self._n += rows.num_rows
        bound = self._plan.bound
        if bound is None or self._n < 2 * bound:
            return
        rows = pa.concat_tables(self._parts)
        if self._plan.order:
            rows = rows.take(_ranks(rows, self._plan.order)[:bound])
        else:
            rows, self.done = rows.slice(0, bound), True
        self._parts, self._n = [rows], rows.num_rows

    def rows(self) -> pa.Table | None:
        """Return what is kept; None where nothing came."""
        return pa.concat_tables(self._parts) if self._parts else None


def _begins(rows: pa.Table) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return before how many copies each row begins, and its count (invariant 7)."""
    counts: npt.NDArray[Any] = np.asarray(rows.column(DIFF).to_numpy(), np.int64)
    if rows.num_rows and float(counts.astype(np.float64).sum()) >= 2.0**62:
        counts = counts.astype(object)  # Python's integers have no end
    begins = np.cumsum(counts) - counts if rows.num_rows else counts
    return begins, counts


def _cut(
    rows: pa.Table,
    begins: npt.NDArray[Any],
    counts: npt.NDArray[Any],
    offset: int,
    bound: int | None,
) -> pa.Table:
    """Return the copies from the one numbered `offset` on, and before the one numbered `bound`."""
    if not rows.num_rows:
        return rows
    ends = begins + counts
    # The numbers that were given may be larger than any sum: none is larger than the last end.
    first = np.maximum(begins, min(offset, int(ends[-1])))
    stop = ends if bound is None else np.minimum(ends, min(bound, int(ends[-1])))
    left = np.maximum(stop - first, 0).astype(np.int64)
    kept = left > 0
    number = rows.schema.get_field_index(DIFF)
    rows = rows.set_column(number, rows.schema.field(number), pa.array(left))
    return rows if kept.all() else rows.filter(pa.array(kept))


def _ranks(rows: pa.Table, order: Sequence[OrderBy]) -> pa.Array:
    """Return the numbers of rows in an order, ties broken by the whole row (invariant 4)."""
    named = [each.column for each in order]
    others = [name for name in rows.schema.names if name not in (*named, DIFF)]
    keys: list[tuple[pa.ChunkedArray, str]] = []
    for each in order:
        _add_keys(keys, rows.column(each.column), descending=each.descending, nulls_first=each.nulls_first)
    nested = False
    for name in others:
        if pa.types.is_nested(rows.schema.field(name).type):
            nested = True
        else:
            _add_keys(keys, rows.column(name), descending=False, nulls_first=True)
    if nested:
        hashes = RowHasher(rows.schema.remove(rows.schema.get_field_index(DIFF))).hash(rows.drop_columns([DIFF]))
        keys += [(pa.chunked_array([pa.array(np.ascontiguousarray(hashes[:, lane]))]), "ascending") for lane in (0, 1)]
    table = pa.table({str(number): column for number, (column, _) in enumerate(keys)})
    sort_keys = [(str(number), direction) for number, (_, direction) in enumerate(keys)]
    return pc.sort_indices(table, sort_keys=sort_keys)


def _add_keys(
    keys: list[tuple[pa.ChunkedArray, str]], column: pa.ChunkedArray, *, descending: bool, nulls_first: bool
) -> None:
    """Add what sorts a column: Arrow itself has nulls and NaN at one end, whichever way it sorts."""
    direction = "descending" if descending else "ascending"
    if column.null_count:
        keys.append((pc.is_null(column).cast(pa.int8()), "descending" if nulls_first else "ascending"))
    if pa.types.is_floating(column.type):
        is_nan = pc.fill_null(pc.is_nan(column), False)  # noqa: FBT003 - as Arrow has it
        if pc.any(is_nan).as_py():
            keys.append((is_nan.cast(pa.int8()), direction))
    keys.append((column, direction))
