"""Whole times: a `TimeDomain` has a type per coordinate, and the minimum at which everything starts.

Inside the library a time is a row of integers.

Invariants
----------
1. What gets in and what comes out is as the types of the coordinates have it (`time_type`).
2. Nothing wraps: what does not fit is refused, and a successor at the bound is `None`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray, TimesLike, as_times
from spark_timely.time.types import TimeType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TimeDomain"]


@dataclass(frozen=True, slots=True)
class TimeDomain:
    """Type of a whole time: one `TimeType` per coordinate, and the minimum.

    Parameters
    ----------
    types : tuple of TimeType or str
        One per coordinate; more than one makes a product order.
    minimum : tuple of int, optional
        The time at which a log starts; the types' minima unless given.

    Examples
    --------
    >>> domain = TimeDomain(("long", "date"))
    >>> domain.arity, domain.columns
    (2, ('_time_0', '_time_1'))
    >>> TimeDomain(("long",), (0,)).minimum_frontier
    Antichain.of(0)
    """

    types: tuple[TimeType, ...] = (TimeType.LONG,)
    minimum: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check and normalise what was given."""
        names = (self.types,) if isinstance(self.types, str) else self.types
        try:
            types = tuple(TimeType(t) for t in names)
        except ValueError as error:
            msg = f"could not build a time domain: found types={names!r}"
            raise InvalidUsageError(
                msg,
                hint=f"types of times are {', '.join(t.value for t in TimeType)}",
            ) from error
        if not types:
            msg = "could not build a time domain: found no types"
            raise InvalidUsageError(msg, hint="give a time at least one coordinate")
        minimum = tuple(self.minimum) or tuple(t.minimum for t in types)
        if len(minimum) != len(types):
            msg = f"could not build a time domain: found minimum={minimum!r} for {len(types)} types"
            raise InvalidUsageError(
                msg,
                hint="give one coordinate per type",
            )
        object.__setattr__(self, "types", types)
        object.__setattr__(self, "minimum", tuple(t.from_json(m) for t, m in zip(types, minimum, strict=True)))

    @property
    def arity(self) -> int:
        """Number k of coordinates."""
        return len(self.types)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the time columns of a log: `_time`, or `_time_0`, `_time_1` and so on."""
        return self.suffixed("_time")

    def suffixed(self, name: str) -> tuple[str, ...]:
        """Return the column names of a per-coordinate fact, such as `_min_time`.

        Examples
        --------
        >>> TimeDomain(("long", "long")).suffixed("_min_time")
        ('_min_time_0', '_min_time_1')
        """
        if self.arity == 1:
            return (name,)
        return tuple(f"{name}_{i}" for i in range(self.arity))

    @property
    def minimum_frontier(self) -> Antichain:
        """The frontier at which a log starts."""
        return Antichain.of(self.minimum)

    def from_columns(
        self,
        table: pa.Table | pa.RecordBatch,
        columns: Sequence[str] | None = None,
        *,
        first_row: int = 0,
    ) -> npt.NDArray[np.int64]:
        """Read the times of a table's rows.

        Parameters
        ----------
        table : pyarrow.Table or RecordBatch
        columns : sequence of str, optional
            The k columns to read; those of a log unless given.
        first_row : int
            Number of the first row, for errors.

        Returns
        -------
        ndarray of int64, shape (n, k)

        Raises
        ------
        InvalidUsageError
            If a column is missing, of another type, or holds what is no time (see
            `TimeType.from_arrow`).

        Examples
        --------
        >>> TimeDomain(("long",)).from_columns(pa.table({"_time": [3, 5]})).tolist()
        [[3], [5]]
        """
        names = self.columns if columns is None else tuple(columns)
        if len(names) != self.arity:
            msg = f"could not read times: found columns={names!r} for {self.arity} coordinates"
            raise InvalidUsageError(
                msg,
                hint="name one column per coordinate",
            )
        present = table.schema.names
        for name in names:
            if present.count(name) != 1:
                msg = f"could not read time column {name!r}: found columns={present!r:.200}"
                raise InvalidUsageError(
                    msg,
                    hint="name a column that the data has, once",
                    context={"column": name},
                )
        parts = [
            type_.from_arrow(table.column(name), name=name, first_row=first_row)
            for type_, name in zip(self.types, names, strict=True)
        ]
        return parts[0].reshape(-1, 1) if len(parts) == 1 else np.stack(parts, axis=1)

    def to_columns(self, times: TimesLike, prefix: str = "_time") -> dict[str, pa.Array]:
        """Return times as the columns of a log, by name.

        Raises
        ------
        InvalidUsageError
            If a time does not fit its type.

        Examples
        --------
        >>> TimeDomain(("short",)).to_columns([[3]])["_time"].type
        DataType(int16)
        """
        rows = self.rows(times)
        return {
            name: type_.to_arrow(rows[:, i])
            for i, (type_, name) in enumerate(zip(self.types, self.suffixed(prefix), strict=True))
        }

    def rows(self, times: TimesLike) -> IntArray:
        """Return times as an array of shape (n, k) of this domain's arity.

        Raises
        ------
        InvalidShapeError
            If the arity differs.

        Examples
        --------
        >>> TimeDomain(("long",)).rows([3]).shape
        (1, 1)
        """
        return as_times(times, self.arity)

    def parse_time(self, value: object) -> tuple[int, ...]:
        """Read one time as people write it: a coordinate for k = 1, else a list of k coordinates, or its JSON text.

        Parameters
        ----------
        value : object
            Coordinates as `TimeType.parse` takes them: bare numbers for integer types only. An array of integers
            is a time as the library has it, in the types' own units.

        Raises
        ------
        InvalidUsageError
            If it is no time of this domain.

        Examples
        --------
        >>> TimeDomain(("date",)).parse_time("2013-01-01")
        (15706,)
        >>> TimeDomain(("long", "long")).parse_time("[3, 4]")
        (3, 4)
        """
        return self._time(value, TimeType.parse)

    def time_from_json(self, value: object) -> tuple[int, ...]:
        """Read one time as programs write it: coordinates as `TimeType.from_json` takes them.

        Raises
        ------
        InvalidUsageError
            If it is no time of this domain.

        Examples
        --------
        >>> TimeDomain(("date",)).time_from_json(15706)
        (15706,)
        """
        return self._time(value, TimeType.from_json)

    def _time(self, value: object, read: Callable[[TimeType, object], int]) -> tuple[int, ...]:
        if isinstance(value, np.ndarray):
            value, read = value.tolist(), TimeType.from_json
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = _from_json_text(value)
        if self.arity == 1 and not isinstance(value, list | tuple):
            value = (value,)
        if not isinstance(value, list | tuple) or len(value) != self.arity:
            msg = f"could not read a time: found {value!r:.200}"
            raise InvalidUsageError(
                msg,
                hint=f"give {self.arity} coordinate{'s' if self.arity > 1 else ''}",
            )
        return tuple(read(t, v) for t, v in zip(self.types, value, strict=True))

    def parse_frontier(self, value: object) -> Antichain:
        """Read a frontier as people write it: JSON text or plain values, times as `parse_time` takes them.

        A single time stands for the frontier of that time alone; `[]` is complete. An `Antichain` and an
        array of integers are frontiers as the library has them, in the types' own units; so is what names its
        types: an object with ``times`` and ``frontier``, such as an end offset of a query's ``lastProgress``.

        Raises
        ------
        InvalidUsageError
            If it is no frontier of this domain.

        Examples
        --------
        >>> TimeDomain(("long",)).parse_frontier("[5]"), TimeDomain(("long",)).parse_frontier(5)
        (Antichain.of(5), Antichain.of(5))
        >>> TimeDomain(("date",)).parse_frontier('["2013-01-01"]')
        Antichain.of(15706)
        >>> TimeDomain(("long", "long")).parse_frontier("[[2, 1], [1, 2]]")
        Antichain.of((1, 2), (2, 1))
        """
        return self._frontier(value, self.parse_time)

    def frontier_from_json(self, value: object) -> Antichain:
        """Read a frontier as programs write it: a list of times as `time_from_json` takes them.

        Raises
        ------
        InvalidUsageError
            If it is no frontier of this domain.

        Examples
        --------
        >>> TimeDomain(("date",)).frontier_from_json([15706])
        Antichain.of(15706)
        """
        return self._frontier(value, self.time_from_json)

    def _frontier(self, value: object, read: Callable[[object], tuple[int, ...]]) -> Antichain:
        if isinstance(value, Antichain):
            if value.arity != self.arity:
                msg = f"could not read a frontier: found {value!r}"
                raise InvalidShapeError(
                    msg,
                    hint=f"give times with {self.arity} coordinates, as this log has them",
                )
            return value
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            value = _from_json_text(value)
        if isinstance(value, Mapping):
            value, read = self._typed(value), self.time_from_json
        if isinstance(value, np.ndarray):
            value, read = value.tolist(), self.time_from_json
        if not isinstance(value, list | tuple):
            return Antichain.of(read(value))
        if self.arity > 1 and value and not any(isinstance(v, list | tuple) for v in value):
            return Antichain.of(read(value))
        if not value:
            return Antichain.empty(self.arity)
        return Antichain.of(*(read(v) for v in value))

    def _typed(self, value: Mapping[str, object]) -> object:
        """Return the frontier of an object that names the types of its times."""
        types, frontier = [t.value for t in self.types], value.get("frontier")
        if value.get("times") != types or not isinstance(frontier, list):
            msg = f"could not read a frontier: found {dict(value)!r:.200}"
            raise InvalidUsageError(msg, hint=f'give a list of times, or an object with "times": {json.dumps(types)}')
        return frontier

    def render_time(self, time: Sequence[int]) -> str | int | list[str | int]:
        """Return a time as people write it, and as `parse_time` reads it: one value for k = 1, else a list.

        Examples
        --------
        >>> TimeDomain(("long", "date")).render_time((7, 0))
        [7, '1970-01-01']
        """
        parts = [t.render(x) for t, x in zip(self.types, time, strict=True)]
        return parts[0] if self.arity == 1 else parts

    def time_to_json(self, time: Sequence[int]) -> str | int | list[str | int]:
        """Return a time as programs read it, and as `time_from_json` does; like `render_time`, but with seconds.

        Examples
        --------
        >>> TimeDomain(("timestamp",)).time_to_json((0,))
        '1970-01-01T00:00:00Z'
        """
        parts = [t.to_json(x) for t, x in zip(self.types, time, strict=True)]
        return parts[0] if self.arity == 1 else parts

    def frontier_to_json(self, frontier: Antichain) -> list[str | int | list[str | int]]:
        """Return a frontier as programs read it, and as `frontier_from_json` does.

        Examples
        --------
        >>> TimeDomain(("timestamp",)).frontier_to_json(Antichain.of(0))
        ['1970-01-01T00:00:00Z']
        """
        return [self.time_to_json(element) for element in frontier]

    def render_frontier(self, frontier: Antichain) -> str:
        """Return a frontier as people write it, as JSON text that `parse_frontier` takes.

        Examples
        --------
        >>> TimeDomain(("date",)).render_frontier(Antichain.of(0))
        '["1970-01-01"]'
        """
        return json.dumps([self.render_time(element) for element in frontier])

    def successor(self, time: int | Sequence[int]) -> tuple[int, ...] | None:
        """Return the next time of a total order, or None at the bound of the type.

        Raises
        ------
        InvalidUsageError
            In a product order, where there is no single next time (see `successors`).

        Examples
        --------
        >>> TimeDomain(("long",)).successor((4,))
        (5,)
        >>> TimeDomain(("short",)).successor(32767) is None
        True
        """
        if self.arity != 1:
            msg = f"could not tell the next time: found a product order of {self.arity} coordinates"
            raise InvalidUsageError(
                msg,
                hint="use successors, which gives the antichain of next times",
            )
        value = int(time) if isinstance(time, int | np.integer) else int(time[0])
        return (value + 1,) if value < self.types[0].hi else None

    def successors(self, time: int | Sequence[int]) -> Antichain:
        """Return the least times strictly greater than `time`; empty where there is none.

        Examples
        --------
        >>> TimeDomain(("long", "long")).successors((1, 2))
        Antichain.of((1, 3), (2, 2))
        """
        row = (int(time),) if isinstance(time, int | np.integer) else tuple(map(int, time))
        nexts = [
            (*row[:i], x + 1, *row[i + 1 :]) for i, (x, t) in enumerate(zip(row, self.types, strict=True)) if x < t.hi
        ]
        return Antichain.of(*nexts) if nexts else Antichain.empty(self.arity)

    def to_json(self) -> dict[str, list[str] | list[int]]:
        """Return the domain as plain JSON values.

        Examples
        --------
        >>> TimeDomain(("long",), (0,)).to_json()
        {'times': ['long'], 'minimum': [0]}
        """
        return {"times": [t.value for t in self.types], "minimum": list(self.minimum)}

    @classmethod
    def from_json(cls, value: str | Mapping[str, object]) -> TimeDomain:
        """Read what `to_json` gave, as a mapping (other keys are left alone) or as JSON text.

        Raises
        ------
        InvalidUsageError
            If it is no time domain.

        Examples
        --------
        >>> TimeDomain.from_json({"times": ["long"], "minimum": [0]}) == TimeDomain(("long",), (0,))
        True
        """
        content = _from_json_text(value) if isinstance(value, str) else value
        times = content.get("times") if isinstance(content, Mapping) else None
        minimum = content.get("minimum", ()) if isinstance(content, Mapping) else None
        if not isinstance(times, list | tuple) or not isinstance(minimum, list | tuple):
            msg = f"could not read a time domain: found {value!r:.200}"
            raise InvalidUsageError(
                msg,
                hint='give {"times": [types], "minimum": [numbers]}',
            )
        return cls(tuple(times), tuple(minimum))


def _from_json_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        msg = f"could not read JSON: found {text!r:.200}"
        raise InvalidUsageError(msg, hint="quote dates and timestamps") from error
