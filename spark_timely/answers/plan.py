"""The plan of a peek, as a value: log, time, keys, columns and order, for whichever process or task answers it.

An answer is rows with counts: the columns `PeekPlan.columns`, then `_diff`. Where to stop is the answerer's
own business: `spark_timely.answers.finishing.finish` makes the same answer of all rows, and of the first ones by the
order.

Invariants
----------
1. A plan is of one snapshot of a log: its files have each update at a time not beyond those wanted once.
2. Rows are judged by `where` before they are counted, and counted by `columns` alone: so it makes no difference which
   other columns the answering side has.
3. The count of a row is the sum of its diffs at times not later than `at` in any coordinate; messages of a stream count
   1 each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage
    from spark_timely.predicate import Predicate
    from spark_timely.time.antichain import Antichain

__all__ = ["OrderBy", "PeekPlan"]


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
        Above it the answer is an error; see `spark_timely.answers.finishing.size_of`.
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
