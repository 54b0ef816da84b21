"""CDCv2's progress statements: how many updates each time has, and the frontier that follows from them.

A `Ledger` collects statements for `cdcv2.reader`, which keeps the updates, and for `spark.capture.cdcv2`, where the log
keeps them. That capture reads the statements from columns of its input, by `statements_of`.

As columns of a table a statement is a row with `_lower`, `_upper` and `_counts`: of the times beyond `_lower` and not
beyond `_upper`, each in `_counts` has as many updates as stated, and the others none. A time is what the time column
holds; one of several coordinates is a struct of them, in their order. The rows of updates have nulls there.

Invariants
----------
1. For all times not beyond the frontier `known` the ledger knows how many updates there are. A statement whose `lower`
   is not reached by `known` waits: after [0, 2) one of [5, 9) waits for one of [2, 5). However often it comes, it waits
   once.
2. A time is complete when as many updates came as were stated, and all times before it are complete too. The frontier
   consists of the minima of `known` and of the times that miss updates; it never moves back.
3. What is kept are the counts of times that are not complete, and statements that wait: nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.errors import ProtocolError, SchemaMismatchError, TimelyError, shown
from spark_timely.time.antichain import Antichain, as_times, minimal
from spark_timely.time.domain import TimeType

if TYPE_CHECKING:
    from typing import Any

    from spark_timely.time.antichain import IntArray
    from spark_timely.time.domain import TimeDomain

Time: TypeAlias = tuple[int, ...]
_Key: TypeAlias = tuple[Antichain, Antichain, frozenset[tuple[Time, int]]]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of how many updates there are at the times of a range.

    Parameters
    ----------
    lower, upper : Antichain
        Times beyond `lower` and not beyond `upper`.
    counts : mapping
        Number of updates at those times that have any.
    """

    lower: Antichain
    upper: Antichain
    counts: Mapping[Time, int]


class Ledger:
    """Keeps statements, and tells what is complete by them.

    Parameters
    ----------
    frontier : Antichain
        What is complete already: of times not beyond it nothing is kept.
    shown : callable
        Returns a time as errors show it.

    Examples
    --------
    >>> ledger = Ledger(Antichain.of(0))
    >>> ledger.take([Statement(Antichain.of(0), Antichain.of(5), {(3,): 2})])
    >>> ledger.advance({(3,): 1}), ledger.advance({(3,): 2})
    (Antichain.of(3), Antichain.of(5))
    """

    def __init__(self, frontier: Antichain, *, shown: Callable[[Time], object] = list) -> None:
        self.frontier = frontier
        self.known = frontier
        self._shown = shown
        self._expected: dict[Time, int] = {}
        self._waiting: dict[_Key, Statement] = {}

    @property
    def size(self) -> int:
        """Number of counts and statements that are kept."""
        return len(self._expected) + sum(1 + len(statement.counts) for statement in self._waiting.values())

    @property
    def waiting(self) -> list[Statement]:
        """Statements that do not join on to what is known."""
        return list(self._waiting.values())

    def take(self, statements: Iterable[Statement]) -> None:
        """Take statements; each says what it said, however often.

        Raises
        ------
        ProtocolError
            If two differ about a time that is still open.

        Notes
        -----
        Cost: a sort; more only where times are of several coordinates, and ranges overlap in many ways.
        """
        for statement in statements:
            key = (statement.lower, statement.upper, frozenset(statement.counts.items()))
            self._waiting.setdefault(key, statement)
        # A chain of them, in whatever order it came, joins on in one pass.
        left = sorted(self._waiting.items(), key=lambda item: sorted(item[0][0].elements))
        while left:
            rest = [item for item in left if not self._joined(item[1])]
            if len(rest) == len(left):
                break
            left = rest
        self._waiting = dict(left)

    def _joined(self, statement: Statement) -> bool:
        """Apply a statement, unless it has to wait."""
        if not statement.lower.less_equal_frontier(self.known):
            if not statement.upper.less_equal_frontier(self.known):
                return False
            self._agree(statement)
            return True
        self._agree(statement)
        if not statement.upper.less_equal_frontier(self.known):
            for time, count in statement.counts.items():
                if self.known.less_equal(time):
                    self._expected[time] = count
            self.known = self.known.join(statement.upper)
        return True

    def _agree(self, statement: Statement) -> None:
        """Compare a statement with what was stated before of times that are still open; silence is a statement too."""
        if self.known.less_equal_frontier(statement.lower):
            # Of its times nothing was stated: most statements.
            return
        said = statement.counts
        for time, count in said.items():
            known = self._expected.get(time, 0)
            stated = time in self._expected or not self.known.less_equal(time)
            if known != count and stated and self.frontier.less_equal(time):
                raise self.wrong(time, f"statements of {known} and of {count} updates")
        arity = self.frontier.arity
        missing = as_times([time for time in self._expected if time not in said], arity)
        missing = missing[statement.lower.beyond(missing) & ~statement.upper.beyond(missing)]
        for time in map(tuple, missing.tolist()):
            if known := self._expected[time]:
                raise self.wrong(time, f"statements of {known} and of 0 updates")

    def wrong(self, time: Time, found: str) -> ProtocolError:
        """Return the error for what cannot be true of a time."""
        msg = f"could not read CDCv2 messages at time={self._shown(time)!r}: found {found}"
        hint = "consolidate updates first, and repeat statements as they are: messages may come twice and in any order"
        return ProtocolError(msg, hint=hint, context={"time": time})

    def advance(self, present: Mapping[Time, int]) -> Antichain:
        """Return how far everything is complete, and forget what is.

        Parameters
        ----------
        present : mapping
            Number of distinct updates that are there at each open time that is not beyond `known`.

        Raises
        ------
        ProtocolError
            If there are more at a time than were stated.
        """
        expected = self._expected
        for time, count in present.items():
            if count > expected.get(time, 0):
                raise self.wrong(time, f"{count} updates where {expected.get(time, 0)} were stated")
        missing = [time for time, count in expected.items() if present.get(time, 0) < count]
        bounds = [*missing, *self.known.elements]
        arity = self.frontier.arity
        self.frontier = (
            Antichain.from_times(minimal(np.array(bounds, np.int64)), arity) if bounds else Antichain.empty(arity)
        )
        self._forget()
        return self.frontier

    def pass_over(self, frontier: Antichain) -> None:
        """Take everything up to a frontier as complete: the holder of the data, such as the log, states that it is."""
        self.known = self.known.join(frontier)
        self.frontier = self.frontier.join(frontier)
        self._forget()

    def _forget(self) -> None:
        times = list(self._expected)
        kept = self.frontier.beyond(as_times(times, self.frontier.arity)).tolist()
        self._expected = {time: self._expected[time] for time in compress(times, kept)}

    def to_json(self) -> dict[str, Any]:
        """Return everything that is kept, as plain values.

        Examples
        --------
        >>> Ledger(Antichain.of(4)).to_json()
        {'frontier': [4], 'known': [4], 'expected': [], 'waiting': []}
        """
        return {
            "frontier": self.frontier.to_json(),
            "known": self.known.to_json(),
            "expected": _pairs(self._expected),
            "waiting": [[s.lower.to_json(), s.upper.to_json(), _pairs(s.counts)] for s in self._waiting.values()],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], *, arity: int, shown: Callable[[Time], object] = list) -> Ledger:
        """Return the ledger that `to_json` describes.

        Examples
        --------
        >>> ledger = Ledger(Antichain.of(0))
        >>> ledger.take([Statement(Antichain.of(7), Antichain.of(9), {(8,): 1})])
        >>> Ledger.from_json(ledger.to_json(), arity=1).waiting == ledger.waiting
        True
        """
        ledger = cls(_antichain(found["frontier"], arity), shown=shown)
        ledger.known = _antichain(found["known"], arity)
        ledger._expected = _counts(found["expected"])
        ledger.take(Statement(_antichain(a, arity), _antichain(b, arity), _counts(c)) for a, b, c in found["waiting"])
        return ledger


def _pairs(counts: Mapping[Time, int]) -> list[list[object]]:
    return [[list(time), count] for time, count in sorted(counts.items())]


def _counts(pairs: Iterable[tuple[list[int], int]]) -> dict[Time, int]:
    return {tuple(time): count for time, count in pairs}


def _antichain(found: list[Any], arity: int) -> Antichain:
    return Antichain.from_times(np.array(found, np.int64).reshape(-1, arity), arity)


COLUMNS = ("_lower", "_upper", "_counts")
_FORM = (
    "give a statement _lower and _upper, arrays of times, and _counts, an array of structs of a time and the number of"
    " its updates; a time of several coordinates is a struct of them"
)


def statement_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of the data that hold statements, whose names may have capitals.

    Raises
    ------
    SchemaMismatchError
        If one is missing.
    """
    lower = {name.lower(): name for name in names}
    for name in COLUMNS:
        if name not in lower:
            msg = f"could not capture with dialect='cdcv2': found no column {name!r}"
            raise SchemaMismatchError(msg, hint=_FORM, context={"column": name})
    return tuple(lower[name] for name in COLUMNS)


def check_statement_columns(columns: pa.Schema, domain: TimeDomain) -> None:
    """Refuse statements in columns of other types than the log's times ask for.

    Parameters
    ----------
    columns : pyarrow.Schema
        Those of `statement_columns`, in their order.
    domain : TimeDomain
        Of the log.

    Raises
    ------
    SchemaMismatchError
        Naming the column.
    """
    for field, column in zip(columns, COLUMNS, strict=True):
        fits = pa.types.is_list(field.type)
        if fits and column != "_counts":
            fits = _is_time(field.type.value_type, domain)
        elif fits:
            pair = field.type.value_type
            fits = pa.types.is_struct(pair) and pair.num_fields == 2
            fits = fits and _is_time(pair.field(0).type, domain) and pa.types.is_signed_integer(pair.field(1).type)
        if not fits:
            wanted = ", ".join(kind.value for kind in domain.types)
            msg = (
                f"could not capture statements of column {field.name!r}: found type {shown(str(field.type))}, times of"
                f" the log are {wanted}"
            )
            raise SchemaMismatchError(msg, hint=_FORM, context={"column": field.name})


def _is_time(kind: pa.DataType, domain: TimeDomain) -> bool:
    parts = [field.type for field in kind] if domain.arity > 1 and pa.types.is_struct(kind) else [kind]
    if len(parts) != domain.arity:
        return False
    try:
        found = [TimeType.from_arrow_type(part) for part in parts]
    except TimelyError:
        return False
    return all(has.fits_in(wants) for has, wants in zip(found, domain.types, strict=True))


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
    for i in range(table.num_rows):  # a row is a statement, not an update
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
                "make the log first, with create_log(…, kind='collection', minimum=…): this one begins at"
                f" {domain.render_time(domain.minimum)!r}"
                if "least" in wrong
                else "give one count, at least 0, for each time of the statement that has updates"
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
