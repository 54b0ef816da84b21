"""The antichain: a set of incomparable times, as a value.

A frontier is an antichain that bounds the times still to come at a place. The value stands on
the ground layer, because options, offsets and time domains speak of it; what counts and moves
(`MutableAntichain`) is in `spark_timely.progress.frontier`, which exports both.

Invariants
----------
1. Elements are distinct, pairwise incomparable, and in lexicographic order: equal antichains have
   equal elements, arrays and JSON texts.
2. An antichain never changes; its array is read-only.
"""

from __future__ import annotations

import json
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import InvalidShapeError, InvalidUsageError, shown
from spark_timely.time.arrays import (
    BoolArray,
    IntArray,
    TimesLike,
    as_times,
    beyond,
    concat_times,
    minimal,
    minimal_elements,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_INT64_MAX = (1 << 63) - 1
_FEW = 8


class Antichain:
    """A set of pairwise incomparable times, each of k coordinates.

    Built by `from_times`, `of` and `empty`; the empty one, as a frontier, means complete. There is
    no `<` between antichains: Python would sort by it. Use `less_equal`, `join`, `meet`.

    Notes
    -----
    Small ones are cheap: their elements are kept as tuples of Python integers, and an array is made
    when one is asked for. Hashable, picklable, comparable with `==`.
    Source: timely `progress/frontier.rs`, `Antichain`.

    Examples
    --------
    >>> frontier = Antichain.of((1, 2), (2, 1), (2, 2))
    >>> frontier
    Antichain.of((1, 2), (2, 1))
    >>> frontier.less_equal((1, 3)), frontier.less_equal((0, 9))
    (True, False)
    """

    __slots__ = ("_arity", "_elements", "_times")

    _arity: int
    _elements: tuple[tuple[int, ...], ...] | None
    _times: IntArray | None

    def __init__(self, times: TimesLike = (), arity: int | None = None) -> None:
        if isinstance(times, np.ndarray) and times.shape[0] > _FEW:
            array = minimal(as_times(times, arity))
            self._arity = array.shape[1]
            self._elements = None
            self._times = _read_only(array)
            return
        array = as_times(times, arity)
        self._arity = array.shape[1]
        if array.shape[0] > _FEW:
            self._elements = None
            self._times = _read_only(minimal(array))
        else:
            self._elements = tuple(minimal_elements(map(tuple, array.tolist())))
            self._times = None

    @classmethod
    def from_times(cls, times: TimesLike, arity: int | None = None) -> Antichain:
        """Return the antichain of the minima of any times.

        Parameters
        ----------
        times : array-like of integers, shape (n, k); for k = 1 also (n,)
            Not kept, not modified.
        arity : int, optional
            The k that is wanted; needed when there are no times.

        Raises
        ------
        InvalidShapeError
            If these are not whole numbers of one arity.

        Examples
        --------
        >>> Antichain.from_times([[7], [5]])
        Antichain.of(5)
        """
        return cls(times, arity)

    @classmethod
    def of(cls, *times: int | Sequence[int]) -> Antichain:
        """Return the antichain of the minima of the given times; integers for k = 1.

        Raises
        ------
        InvalidShapeError
            If no time is given (see `empty`), or their arities differ.

        Examples
        --------
        >>> Antichain.of(5).to_json()
        [5]
        """
        if not times:
            msg = "could not build an antichain: found no times"
            raise InvalidShapeError(
                msg,
                hint="use Antichain.empty(arity) for the empty one",
            )
        rows = [_coordinates(t) for t in times]
        arity = len(rows[0])
        if any(len(row) != arity for row in rows):
            msg = f"could not build an antichain: found times of several arities, times={rows!r:.200}"
            raise InvalidShapeError(
                msg,
                hint="give all times the same number of coordinates",
            )
        return cls._trusted(tuple(minimal_elements(rows)), arity)

    @classmethod
    def empty(cls, arity: int = 1) -> Antichain:
        """Return the empty antichain; as a frontier: complete, nothing more will come.

        Examples
        --------
        >>> Antichain.empty().is_empty
        True
        """
        if isinstance(arity, bool) or not isinstance(arity, int) or arity < 0:
            msg = f"could not build an antichain: found arity={shown(arity)}"
            raise InvalidShapeError(msg, hint="give the number of coordinates of a time")
        return cls._trusted((), arity)

    @classmethod
    def _trusted(cls, elements: tuple[tuple[int, ...], ...], arity: int) -> Antichain:
        self = cls.__new__(cls)
        self._arity = arity
        self._elements = elements
        self._times = None
        return self

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    @property
    def elements(self) -> tuple[tuple[int, ...], ...]:
        """The elements as tuples of Python integers, in lexicographic order."""
        if self._elements is None:
            self._elements = tuple(map(tuple, self.times.tolist()))
        return self._elements

    @property
    def times(self) -> IntArray:
        """The elements as a read-only array of shape (m, k), in lexicographic order.

        int64, or uint64 where an element is 2**63 or more.
        """
        if self._times is None:
            elements = self.elements
            dtype: type[np.int64] | type[np.uint64] = np.int64
            if any(coordinate > _INT64_MAX for element in elements for coordinate in element):
                dtype = np.uint64
            array = np.array(elements, dtype=dtype).reshape(len(elements), self._arity)
            self._times = _read_only(array)
        return self._times

    @property
    def is_empty(self) -> bool:
        """Whether there is no element: as a frontier, complete."""
        return len(self) == 0

    def __len__(self) -> int:
        """Return the number of elements."""
        if self._elements is not None:
            return len(self._elements)
        return int(self.times.shape[0])

    def __bool__(self) -> bool:
        """Return whether there is an element: False means complete."""
        return len(self) > 0

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Iterate over the elements as tuples."""
        return iter(self.elements)

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same elements of the same arity."""
        if not isinstance(other, Antichain):
            return NotImplemented
        return self._arity == other._arity and self.elements == other.elements

    def __hash__(self) -> int:
        """Return a hash that agrees with `==`."""
        return hash((self._arity, self.elements))

    def __repr__(self) -> str:
        """Return the expression that builds this antichain."""
        if self.is_empty:
            return f"Antichain.empty({self._arity})"
        shown = [str(e[0]) if self._arity == 1 else str(e) for e in self.elements[:_FEW]]
        more = f", … {len(self) - _FEW} more" if len(self) > _FEW else ""
        return f"Antichain.of({', '.join(shown)}{more})"

    def __reduce__(self) -> tuple[object, tuple[tuple[tuple[int, ...], ...], int]]:
        """Pickle as the elements."""
        return _rebuild, (self.elements, self._arity)

    def less_equal(self, time: int | Sequence[int]) -> bool:
        """Tell whether `time` is beyond this antichain: some element is less or equal to it.

        Examples
        --------
        >>> Antichain.of(5).less_equal(5), Antichain.of(5).less_equal(4)
        (True, False)
        """
        row = self._row(time)
        return any(_tuple_less_equal(element, row) for element in self.elements)

    def less_than(self, time: int | Sequence[int]) -> bool:
        """Tell whether some element is strictly less than `time`.

        Examples
        --------
        >>> Antichain.of(5).less_than(6), Antichain.of(5).less_than(5)
        (True, False)
        """
        row = self._row(time)
        return any(element != row and _tuple_less_equal(element, row) for element in self.elements)

    def beyond(self, times: TimesLike) -> BoolArray:
        """Tell for each time whether it is beyond this antichain.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)

        Returns
        -------
        ndarray of bool, shape (n,)

        Notes
        -----
        Cost: see `spark_timely.time.arrays.beyond`.

        Examples
        --------
        >>> Antichain.of(5).beyond([4, 5, 6]).tolist()
        [False, True, True]
        """
        return beyond(as_times(times, self._arity), self.times)

    def less_equal_frontier(self, other: Antichain) -> bool:
        """Tell whether every element of `other` is beyond this antichain.

        As frontiers: this one has not passed `other`. Anything is less or equal to the empty one.

        Examples
        --------
        >>> Antichain.of(5).less_equal_frontier(Antichain.of(7))
        True
        >>> Antichain.of(5).less_equal_frontier(Antichain.empty())
        True
        """
        self._same_arity(other)
        if len(self) * len(other) <= _FEW * _FEW:
            return all(self.less_equal(element) for element in other.elements)
        return bool(beyond(other.times, self.times).all())

    def less_than_frontier(self, other: Antichain) -> bool:
        """Tell whether `less_equal_frontier` holds and the two differ.

        Examples
        --------
        >>> Antichain.of(5).less_than_frontier(Antichain.of(5))
        False
        """
        return self != other and self.less_equal_frontier(other)

    def meet(self, other: Antichain) -> Antichain:
        """Return the greatest antichain less or equal to both: the minima of the union.

        Examples
        --------
        >>> Antichain.of(5).meet(Antichain.of(7))
        Antichain.of(5)
        >>> Antichain.of(5).meet(Antichain.empty())
        Antichain.of(5)
        """
        self._same_arity(other)
        if len(self) + len(other) <= 2 * _FEW:
            return Antichain._trusted(tuple(minimal_elements(self.elements + other.elements)), self._arity)
        return Antichain(concat_times(self.times, other.times), self._arity)

    def join(self, other: Antichain) -> Antichain:
        """Return the least antichain greater or equal to both: the minima of pairwise upper bounds.

        A time is beyond the join exactly when it is beyond both.

        Examples
        --------
        >>> Antichain.of((1, 2)).join(Antichain.of((2, 1)))
        Antichain.of((2, 2))
        >>> Antichain.of(5).join(Antichain.empty())
        Antichain.empty(1)
        """
        self._same_arity(other)
        if len(self) * len(other) <= _FEW * _FEW:
            pairs = (tuple(map(max, mine, theirs)) for mine in self.elements for theirs in other.elements)
            return Antichain._trusted(tuple(minimal_elements(pairs)), self._arity)
        both = concat_times(self.times, other.times)
        bounds = np.maximum(both[: len(self), None, :], both[None, len(self) :, :])
        return Antichain(bounds.reshape(-1, self._arity), self._arity)

    def to_json(self) -> list[int] | list[list[int]]:
        """Return the elements as plain JSON values: integers for k = 1, else lists.

        `[]` is complete. The order is that of the elements, so equal antichains give equal texts.

        Examples
        --------
        >>> Antichain.of((2, 1), (1, 2)).to_json()
        [[1, 2], [2, 1]]
        """
        if self._arity == 1:
            return [element[0] for element in self.elements]
        return [list(element) for element in self.elements]

    @classmethod
    def from_json(cls, value: object, arity: int = 1) -> Antichain:
        """Read what `to_json` gave, as a value or as JSON text.

        Raises
        ------
        InvalidShapeError
            If it is not a list of integers (k = 1) or of lists of k integers.

        Examples
        --------
        >>> Antichain.from_json("[[2, 1], [1, 2]]", arity=2)
        Antichain.of((1, 2), (2, 1))
        """
        if isinstance(value, str | bytes):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise _not_an_antichain(value, arity) from error
        if not isinstance(value, list | tuple):
            raise _not_an_antichain(value, arity)
        rows: list[tuple[int, ...]] = []
        for item in value:
            row = (item,) if arity == 1 and not isinstance(item, list | tuple) else item
            if (
                not isinstance(row, list | tuple)
                or len(row) != arity
                or any(not isinstance(x, int) or isinstance(x, bool) for x in row)
                or any(not -_INT64_MAX - 1 <= x < 1 << 64 for x in row)
            ):
                raise _not_an_antichain(value, arity)
            rows.append(tuple(row))
        return cls._trusted(tuple(minimal_elements(rows)), arity)

    def _row(self, time: int | Sequence[int]) -> tuple[int, ...]:
        row = _coordinates(time)
        if len(row) != self._arity:
            msg = f"could not compare time={row!r} with a frontier of arity={self._arity}"
            raise InvalidShapeError(
                msg,
                hint="give times with the same number of coordinates",
            )
        return row

    def _same_arity(self, other: Antichain) -> None:
        if not isinstance(other, Antichain):
            msg = f"could not compare antichains: found {shown(other)}"
            raise InvalidUsageError(msg, hint="give an Antichain: Antichain.of(5), or the frontier of a log")
        if self._arity != other._arity:
            msg = f"could not compare antichains: found arity={self._arity} and arity={other._arity}"
            raise InvalidShapeError(
                msg,
                hint="give times with the same number of coordinates",
            )


def _coordinates(time: int | Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of one time."""
    if type(time) is int:  # by far the most
        return (time,)
    try:
        # By way of `index`, which takes no fractions; True is a 1.
        return (int(time),) if isinstance(time, int | np.integer) else tuple(map(int, map(index, time)))
    except TypeError as error:
        msg = f"could not read a time: found {shown(time)}"
        raise InvalidShapeError(msg, hint="give a whole number, or one for each coordinate") from error


def _tuple_less_equal(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(left, right, strict=True))


def _read_only(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array


def _rebuild(elements: tuple[tuple[int, ...], ...], arity: int) -> Antichain:
    return Antichain._trusted(elements, arity)


def _not_an_antichain(value: object, arity: int) -> InvalidShapeError:
    form = "[5]" if arity == 1 else "[[" + ", ".join("1" * arity) + "]]"
    return InvalidShapeError(
        f"could not read an antichain of arity={arity}: found {value!r:.200}",
        hint=f"give a JSON list of times such as {form}; [] is complete",
    )
