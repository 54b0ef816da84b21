"""Types of times: a `TimeType` per coordinate, and a `TimeDomain` for whole times with their minimum.

Each log has a `TimeDomain`, and so has all that reads one, from `spark_timely.log` to dataflows and the data source: it
reads time columns and what users give as times, and shows them. Inside the library a time is a row of integers. Only
this module knows that an integer may be a date: how a time column, a number and a text for people belong together. The
text itself is parsed and written by `text`.

Invariants
----------
1. `long`, `int`, `short` are the number itself; `date` counts days and `timestamp` microseconds since 1970-01-01 in
   UTC. No conversion looks at a time zone of the session or the machine.
2. Every time that gets in can be held by its column, and is not above `TimeType.hi`. A date or timestamp below
   `TimeType.lo` gets in: it is behind every frontier, and is treated as late.
3. Nothing wraps: what does not fit is refused, and a successor at the bound is `None`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidOptionError, InvalidShapeError, InvalidUsageError
from spark_timely.time.antichain import Antichain, IntArray, TimesLike, as_times
from spark_timely.time.text import (
    DAY_US,
    Duration,
    bare_number,
    day_text,
    moment_text,
    parse_day,
    parse_distance,
    parse_moment,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence
    from typing import Any


TimeTypeName: TypeAlias = Literal["long", "int", "short", "date", "timestamp"]
"""Name of a `TimeType`."""

TimeLike: TypeAlias = "int | str | dt.date | np.integer[Any] | IntArray | Sequence[int | str | dt.date]"
"""One time, as `TimeDomain.parse_time` takes it."""

FrontierLike: TypeAlias = "TimeLike | Antichain | Sequence[TimeLike] | Mapping[str, object]"
"""A frontier, as `TimeDomain.parse_frontier` takes it."""

# Elements of a frontier that are shown to people.
_FEW = 8

_UNITS_OF_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class TimeType(enum.Enum):
    """Type of one coordinate of a time: `long`, `int`, `short`, `date` or `timestamp`.

    Examples
    --------
    >>> TimeType("date").parse("2013-01-01")
    15706
    >>> TimeType.TIMESTAMP.render(0)
    '1970-01-01T00:00Z'
    """

    LONG = "long"
    INT = "int"
    SHORT = "short"
    DATE = "date"
    TIMESTAMP = "timestamp"

    @classmethod
    def from_arrow_type(cls, type_: pa.DataType) -> TimeType:
        """Return the time type for a column of an Arrow type.

        Unsigned and narrow integers map to the signed type that holds them; uint64 to `long`,
        where values of 2**63 or more are refused when they come.

        Raises
        ------
        InvalidUsageError
            If times cannot be of that type: among others a timestamp without zone.

        Examples
        --------
        >>> TimeType.from_arrow_type(pa.timestamp("ms", "Europe/Berlin"))
        <TimeType.TIMESTAMP: 'timestamp'>
        """
        if pa.types.is_date(type_):
            return cls.DATE
        if pa.types.is_timestamp(type_) and type_.tz is not None:
            return cls.TIMESTAMP
        if pa.types.is_integer(type_):
            if type_ in (pa.int8(), pa.uint8(), pa.int16()):
                return cls.SHORT
            return cls.INT if type_ in (pa.uint16(), pa.int32()) else cls.LONG
        raise _wrong_type(type_, "a time column")

    @property
    def arrow(self) -> pa.DataType:
        """Arrow type of the time column of a log."""
        return _ARROW[self]

    @property
    def lo(self) -> int:
        """Least time: the least number of the type; 1700-01-01 for date and timestamp."""
        return _BOUNDS[self][0]

    @property
    def hi(self) -> int:
        """Greatest time: the greatest number of the type; the end of 9999 for date and timestamp."""
        return _BOUNDS[self][1]

    @property
    def minimum(self) -> int:
        """The time at which a log of this type starts unless it declares otherwise; equal to `lo`."""
        return self.lo

    def from_arrow(
        self, array: pa.Array | pa.ChunkedArray, *, name: str = "time", first_row: int = 0
    ) -> npt.NDArray[np.int64]:
        """Read a column of times.

        Parameters
        ----------
        array : pyarrow.Array or ChunkedArray
            Any integer column for the integer types; date32 or date64 for `date`; a timestamp with
            a zone, of any unit, for `timestamp`.
        name : str
            Name of the column, for errors.
        first_row : int
            Number of the first row, for errors.

        Returns
        -------
        ndarray of int64, shape (n,)
            Without a copy where the column's buffer allows it; then it is read-only.

        Raises
        ------
        InvalidUsageError
            If the column has another type, holds a null, or a time that the type cannot hold, is
            above `hi`, or is finer than a microsecond. The message names the row.

        Examples
        --------
        >>> TimeType.DATE.from_arrow(pa.array(["2013-01-01"]).cast(pa.date32())).tolist()
        [15706]
        """
        values, null, outside = self.read(array, name=name)
        if null.any():
            row = int(np.flatnonzero(null)[0])
            msg = f"could not read time column {name!r}: found null in row={first_row + row}"
            raise InvalidUsageError(
                msg,
                hint="filter such rows out or fill the column: every row needs a time",
                context={"column": name, "row": first_row + row},
            )
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            msg = (
                f"could not read time column {name!r}: found {plain_value(array[row])!r} in "
                f"row={first_row + row}, not a time of type {self.value} up to {self.render(self.hi)}"
            )
            raise InvalidUsageError(
                msg,
                hint="keep times within the type's bounds, timestamps in whole microseconds",
                context={"column": name, "row": first_row + row},
            )
        return values

    def read(
        self, array: pa.Array | pa.ChunkedArray, *, name: str = "time"
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Read a column that may hold what is no time.

        Parameters
        ----------
        array, name
            As in `from_arrow`.

        Returns
        -------
        values : ndarray of int64, shape (n,)
            Any number where there is no time.
        null, outside : ndarray of bool, shape (n,)
            Rows with a null, and rows with a value that is no time of the type: above `hi`, finer than a microsecond,
            or one that the type cannot hold. Never both.

        Raises
        ------
        InvalidUsageError
            If the column has another type.

        Examples
        --------
        >>> _, null, outside = TimeType.SHORT.read(pa.array([1, None, 40_000]))
        >>> null.tolist(), outside.tolist()
        ([False, True, False], [False, False, True])
        """
        array = _one_array(array)
        self._check_type(array.type, name)
        null = np.zeros(len(array), dtype=np.bool_)
        if array.null_count:
            null = array.is_null().to_numpy(zero_copy_only=False)
            array = array.fill_null(pa.scalar(0, array.type))
        values, fits = self._integers(array)
        # Where all are within the bounds, as a rule, their least and their greatest tell at a fifth of the cost.
        lo = self.lo if self.minimum_is_of_type else np.iinfo(np.int64).min
        if len(values) and not lo <= values.min() <= values.max() <= self.hi:
            fits &= (lo <= values) & (values <= self.hi)
        return values, null, ~fits

    def found_text(self, array: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return what a column of times holds as text, whatever it is: a number in the column's own unit, or ``null``.

        Examples
        --------
        >>> TimeType.TIMESTAMP.found_text(pa.array([None, 2**60], pa.timestamp("us", "UTC"))).to_pylist()
        ['null', 'us:1152921504606846976']
        """
        array = _one_array(array)
        unit = ""
        if pa.types.is_date32(array.type):
            unit, array = "days:", array.view(pa.int32())
        elif pa.types.is_date64(array.type):
            unit, array = "ms:", array.view(pa.int64())
        elif pa.types.is_timestamp(array.type):
            unit, array = f"{array.type.unit}:", array.view(pa.int64())
        texts = pc.binary_join_element_wise(pa.scalar(unit), array.cast(pa.string()), "")
        return texts.fill_null("null")

    @property
    def minimum_is_of_type(self) -> bool:
        """Whether `lo` is what the column's type itself can hold: true of the integer types."""
        return self in (TimeType.LONG, TimeType.INT, TimeType.SHORT)

    def clock(self, at: int) -> int | None:
        """Return a moment of the wall clock, microseconds since the epoch, as a time; None for integer types.

        Examples
        --------
        >>> TimeType.DATE.clock(86_400_000_001), TimeType.LONG.clock(5) is None
        (1, True)
        """
        if self.minimum_is_of_type:
            return None
        return at // DAY_US if self is TimeType.DATE else at

    def fits_in(self, other: TimeType) -> bool:
        """Return whether each time of this type is one of another: it is the same, or a wider integer.

        Examples
        --------
        >>> TimeType.INT.fits_in(TimeType.LONG), TimeType.DATE.fits_in(TimeType.TIMESTAMP)
        (True, False)
        """
        both = self.minimum_is_of_type and other.minimum_is_of_type
        return self is other or (both and self.hi < other.hi)

    def _check_type(self, type_: pa.DataType, name: str) -> None:
        fits = {
            TimeType.DATE: pa.types.is_date,
            TimeType.TIMESTAMP: lambda t: pa.types.is_timestamp(t) and t.tz is not None,
        }.get(self, pa.types.is_integer)
        if not fits(type_):
            raise _wrong_type(type_, f"time column {name!r} of type {self.value}")

    def _integers(self, array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the numbers, and which of them say exactly what the column said."""
        type_ = array.type
        if pa.types.is_date32(type_):
            return array.view(pa.int32()).to_numpy().astype(np.int64), _all_true(len(array))
        if pa.types.is_date64(type_):
            days, rest = np.divmod(array.view(pa.int64()).to_numpy(), 86_400_000)
            return days, rest == 0
        if pa.types.is_timestamp(type_):
            values = array.view(pa.int64()).to_numpy()
            if type_.unit == "ns":
                micros, rest = np.divmod(values, 1000)
                return micros, rest == 0
            factor = 1_000_000 // _UNITS_OF_SECOND[type_.unit]
            if factor == 1:
                return values, _all_true(len(array))
            limit = (1 << 63) // factor - 1
            return values * factor, (values <= limit) & (values >= -limit)
        values = array.to_numpy()
        if values.dtype == np.uint64:
            return values.view(np.int64), values < np.uint64(1 << 63)
        return values.astype(np.int64, copy=False), _all_true(len(array))

    def to_arrow(self, times: npt.ArrayLike) -> pa.Array:
        """Return times as a column of the type.

        Raises
        ------
        InvalidUsageError
            If a time does not fit the type.

        Examples
        --------
        >>> TimeType.DATE.to_arrow([0]).to_pylist()
        [datetime.date(1970, 1, 1)]
        """
        values = np.ascontiguousarray(np.asarray(times, dtype=np.int64))
        if self in (TimeType.LONG, TimeType.TIMESTAMP):
            return pa.array(values, pa.int64()).view(self.arrow)
        width = np.int16 if self is TimeType.SHORT else np.int32
        narrow = values.astype(width)
        if not np.array_equal(narrow, values):
            found = int(values[np.flatnonzero(narrow != values)[0]])
            msg = f"could not write a time of type {self.value}: found {found!r}"
            raise InvalidUsageError(
                msg,
                hint=f"give a time in [{self.lo}, {self.hi}]",
            )
        return pa.array(narrow).view(self.arrow)

    def parse(self, value: object) -> int:
        """Read one time as people write it, from an option, an argument or a command line.

        Parameters
        ----------
        value : int, str, datetime.date or datetime.datetime
            A whole number or its text for the integer types; an ISO-8601 date for `date`; an ISO-8601 date and
            time with `Z` or an offset for `timestamp`, or a date, which is its midnight in UTC. Dates and
            timestamps are also read as numbers with their unit: ``days:20511``, ``us:1771891200000000``.

        Raises
        ------
        InvalidUsageError
            If it is no time of the type, a bare number for a date or a timestamp, or outside [`lo`, `hi`].

        Examples
        --------
        >>> TimeType.TIMESTAMP.parse("1970-01-01T01:00:00+01:00")
        0
        >>> TimeType.LONG.parse("17")
        17
        """
        number = self._number(value)
        if number is None:
            msg = f"could not read a time of type {self.value}: found {value!r:.200}"
            bare = None if self.minimum_is_of_type else bare_number(value)
            if bare is not None:
                msg += ", a number without a unit"
                raise InvalidUsageError(msg, hint=self._written(bare))
            forms = {
                TimeType.DATE: "an ISO date such as 2013-01-31",
                TimeType.TIMESTAMP: "an ISO time with its zone such as 2013-01-31T08:00Z, or a date: its midnight UTC",
            }
            raise InvalidUsageError(msg, hint=f"give {forms.get(self, 'a whole number')}")
        return self._within(number, value)

    def from_json(self, value: object) -> int:
        """Read one time as programs write it: a number in the type's own units, or text as `parse` takes it.

        For what this library wrote beside the type's name. What people write is for `parse`.

        Raises
        ------
        InvalidUsageError
            If it is no time of the type, or outside [`lo`, `hi`].

        Examples
        --------
        >>> TimeType.DATE.from_json(15706), TimeType.DATE.from_json("2013-01-01")
        (15706, 15706)
        """
        number = None if isinstance(value, str) else bare_number(value)
        return self.parse(value) if number is None else self._within(number, value)

    def _number(self, value: object) -> int | None:
        if self is TimeType.DATE:
            return parse_day(value)
        return parse_moment(value) if self is TimeType.TIMESTAMP else bare_number(value)

    def _within(self, number: int, value: object) -> int:
        if not self.lo <= number <= self.hi:
            hint = f"give a time between {self.render(self.lo)} and {self.render(self.hi)}"
            raise _unread(value, f"a time of type {self.value}", hint)
        return number

    def _written(self, number: int) -> str:
        """Return how a bare number is written as a date or a timestamp, for the hint of its refusal."""
        unit, named = ("days", "days") if self is TimeType.DATE else ("us", "microseconds")
        digits = str(number)
        # 2027 and 20270101 are meant as a year and a day; other numbers were right before, and have their date.
        meant = [f"{digits}-01-01"] if len(digits) == 4 else [f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"]
        meant = [day for day in meant if len(digits) in (4, 8) and (parse_day(day) or _FIRST_DAY - 1) >= _FIRST_DAY]
        if not meant:
            meant = [str(self.render(number))] if self.lo <= number <= self.hi else ["a date such as 2013-01-31"]
        return f"write {meant[0]}, or {unit}:{number} if {named} since 1970-01-01 are meant"

    def render(self, time: int) -> str | int:
        """Return a time as people write it, and as `parse` reads it: the number, or ISO-8601 in UTC.

        Examples
        --------
        >>> TimeType.DATE.render(15706), TimeType.TIMESTAMP.render(1_371_074_400_000_000)
        ('2013-01-01', '2013-06-12T22:00Z')
        """
        return self._text(int(time), least="minutes")

    def to_json(self, time: int) -> str | int:
        """Return a time as programs read it: like `render`, but always with seconds.

        Examples
        --------
        >>> TimeType.TIMESTAMP.to_json(1_371_074_400_000_000)
        '2013-06-12T22:00:00Z'
        """
        return self._text(int(time), least="seconds")

    def _text(self, time: int, *, least: Literal["minutes", "seconds"]) -> str | int:
        if self is TimeType.DATE:
            return day_text(time)
        return moment_text(time, least=least) if self is TimeType.TIMESTAMP else time

    def duration(self, value: object) -> int:
        """Read a span of time in the type's own units: microseconds, days, or a plain number.

        Parameters
        ----------
        value : int, str or datetime.timedelta
            For the integer types a number or its text; for `date` and `timestamp` words ("10 minutes", "1h 30m"),
            ISO-8601 ("PT10M") or a timedelta. Months and years have no fixed length, and are refused.

        Returns
        -------
        int
            Zero or more.

        Raises
        ------
        InvalidUsageError
            If it is no span of this type, negative, a bare number for dates or timestamps, or not a whole
            number of units.

        Examples
        --------
        >>> TimeType.TIMESTAMP.duration("10 minutes")
        600000000
        >>> TimeType.DATE.duration("P2W")
        14
        >>> TimeType.LONG.duration("3")
        3
        """
        msg = f"could not read a duration for times of type {self.value}: found {value!r:.200}"
        try:
            return parse_distance(value).in_units(self.value)
        except InvalidOptionError as error:
            raise InvalidUsageError(msg, hint=error.hint) from error
        except ValueError as error:
            raise InvalidUsageError(msg, hint=str(error)) from error

    def render_duration(self, span: int) -> str:
        """Return a span in the type's own units as people write it, and as `duration` reads it.

        Examples
        --------
        >>> TimeType.TIMESTAMP.render_duration(43_200_000_000), TimeType.LONG.render_duration(7)
        ('12 hours', '7')
        """
        if self.minimum_is_of_type:
            return Duration(span, "time").text
        return Duration(span * (DAY_US if self is TimeType.DATE else 1)).text


_ARROW = {
    TimeType.LONG: pa.int64(),
    TimeType.INT: pa.int32(),
    TimeType.SHORT: pa.int16(),
    TimeType.DATE: pa.date32(),
    TimeType.TIMESTAMP: pa.timestamp("us", "UTC"),
}
_FIRST_DAY = parse_day("1700-01-01") or 0
_LAST_DAY = parse_day("9999-12-31") or 0
_BOUNDS = {
    TimeType.LONG: (-(1 << 63), (1 << 63) - 1),
    TimeType.INT: (-(1 << 31), (1 << 31) - 1),
    TimeType.SHORT: (-(1 << 15), (1 << 15) - 1),
    TimeType.DATE: (_FIRST_DAY, _LAST_DAY),
    TimeType.TIMESTAMP: (_FIRST_DAY * DAY_US, (_LAST_DAY + 1) * DAY_US - 1),
}


def plain_value(scalar: pa.Scalar) -> object:
    """Return an Arrow value as a Python one for messages: never raises, whatever the value.

    Parameters
    ----------
    scalar : pyarrow.Scalar

    Returns
    -------
    object
        Timestamps with a zone in UTC; what is outside of Python's calendar as its number; of lists and
        maps the first hundred elements.

    Examples
    --------
    >>> plain_value(pa.scalar(-721_000, pa.int32()).cast(pa.date32()))
    -721000
    >>> plain_value(pa.scalar([{"x": 1}]))
    [{'x': 1}]
    """
    type_ = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(type_):
        return {type_.field(i).name: plain_value(scalar[i]) for i in range(type_.num_fields)}
    if pa.types.is_map(type_):
        pairs = scalar.values.slice(0, _MAX_SHOWN)
        return [(plain_value(k), plain_value(v)) for k, v in zip(pairs.field(0), pairs.field(1), strict=True)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return [plain_value(item) for item in scalar.values.slice(0, _MAX_SHOWN)]
    if pa.types.is_dictionary(type_):
        return plain_value(scalar.value)
    try:
        if pa.types.is_timestamp(type_) and type_.tz is not None:
            # Python knows fewer names of zones than Spark does.
            return pa.scalar(scalar.value, pa.timestamp(type_.unit, "UTC")).as_py()
        return scalar.as_py()
    except (OverflowError, ValueError, KeyError, pa.ArrowException):  # Python's calendar ends before Arrow's
        return getattr(scalar, "value", str(type_))


_MAX_SHOWN = 100


def _one_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps several above 2 GB
        array = pa.concat_arrays(array.chunks)
    return array


def _all_true(n: int) -> npt.NDArray[np.bool_]:
    return np.ones(n, dtype=np.bool_)


def _wrong_type(type_: pa.DataType, what: str) -> InvalidUsageError:
    hint = "times are integers, dates, or timestamps with a zone"
    if pa.types.is_timestamp(type_):
        hint = (
            "a timestamp without zone names no point in time; "
            "cast it to a timestamp with zone first (in Spark: TIMESTAMP, not TIMESTAMP_NTZ)"
        )
    return InvalidUsageError(f"could not read {what}: found type={type_!s}", hint=hint)


@dataclass(frozen=True, slots=True, eq=False)
class FoundTimes:
    """Hold the times of n rows, some of which have none that can be used.

    Attributes
    ----------
    times : ndarray of int64, shape (n, k)
        The domain's minimum where there is no time.
    null, outside : ndarray of bool, shape (n,)
        Rows in which a coordinate is null; others in which one is no time of its type.
    below : ndarray of bool, shape (n,)
        Others that are before the least time of a type, as a date or timestamp can be.
    """

    times: IntArray
    null: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    below: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TimeDomain:
    """Type of a whole time: one `TimeType` per coordinate, and the minimum.

    Parameters
    ----------
    types : tuple of TimeType or str
        One per coordinate; more than one makes a product order.
    minimum : tuple of int, optional
        The time at which a log starts; the types' minima unless given.

    Attributes
    ----------
    arity : int
        Number k of coordinates.
    columns : tuple of str
        Names of the time columns of a log: `_time`, or `_time_0`, `_time_1` and so on.
    bound_columns : (tuple of str, tuple of str)
        Names of the columns for the least and for the greatest time of a commit: `_min_time`, `_max_time`.

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
    arity: int = field(init=False, repr=False, compare=False)
    columns: tuple[str, ...] = field(init=False, repr=False, compare=False)
    bound_columns: tuple[tuple[str, ...], tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check and normalise what was given."""
        names = (self.types,) if isinstance(self.types, str) else self.types
        try:
            types = tuple(TimeType(t) for t in names)
        except ValueError as error:
            msg = f"could not build a time domain: found types={names!r}"
            raise InvalidUsageError(
                msg,
                hint=f"choose among the types {', '.join(t.value for t in TimeType)}",
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
        object.__setattr__(self, "arity", len(types))
        ends = [""] if len(types) == 1 else [f"_{i}" for i in range(len(types))]
        times, least, greatest = (tuple(name + end for end in ends) for name in ("_time", "_min_time", "_max_time"))
        object.__setattr__(self, "columns", times)
        object.__setattr__(self, "bound_columns", (least, greatest))

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
        names = self._names_in(table, columns)
        parts = [
            type_.from_arrow(table.column(name), name=name, first_row=first_row)
            for type_, name in zip(self.types, names, strict=True)
        ]
        return parts[0].reshape(-1, 1) if len(parts) == 1 else np.stack(parts, axis=1)

    def read_columns(self, table: pa.Table | pa.RecordBatch, columns: Sequence[str] | None = None) -> FoundTimes:
        """Read the times of a table's rows, some of which may have none.

        Parameters
        ----------
        table, columns
            As in `from_columns`.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or of another type.

        Examples
        --------
        >>> found = TimeDomain(("long",), (0,)).read_columns(pa.table({"_time": [3, None]}))
        >>> found.times.tolist(), found.null.tolist()
        ([[3], [0]], [False, True])
        """
        names = self._names_in(table, columns)
        parts = [type_.read(table.column(name), name=name) for type_, name in zip(self.types, names, strict=True)]
        null = np.logical_or.reduce([part[1] for part in parts])
        outside = np.logical_or.reduce([part[2] for part in parts]) & ~null
        below = np.zeros(len(null), dtype=np.bool_)
        for type_, (values, _, _) in zip(self.types, parts, strict=True):
            if not type_.minimum_is_of_type:
                below |= values < type_.lo
        unusable = null | outside
        times = parts[0][0].reshape(-1, 1) if len(parts) == 1 else np.stack([part[0] for part in parts], axis=1)
        if unusable.any():
            times = np.where(unusable[:, None], np.array(self.minimum, np.int64), times)
        return FoundTimes(times, null, outside, below & ~unusable)

    def found_text(self, table: pa.Table, columns: Sequence[str]) -> pa.Array:
        """Return what the time columns of rows hold as text, whatever it is; several coordinates in brackets.

        Examples
        --------
        >>> TimeDomain(("long", "date")).found_text(pa.table({"a": [7], "b": pa.nulls(1, pa.date32())}), ["a", "b"])[0]
        <pyarrow.StringScalar: '[7, null]'>
        """
        texts = [type_.found_text(table.column(name)) for type_, name in zip(self.types, columns, strict=True)]
        if len(texts) == 1:
            return texts[0]
        inside = pc.binary_join_element_wise(*texts, ", ")
        return pc.binary_join_element_wise("[", inside, "]", "")

    def _names_in(self, table: pa.Table | pa.RecordBatch, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of the time columns, each of which the table has once."""
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
        return names

    def to_columns(self, times: TimesLike) -> dict[str, pa.Array]:
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
            for i, (type_, name) in enumerate(zip(self.types, self.columns, strict=True))
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
            raise _unread(value, "a time", f"give {self.arity} coordinate{'s' if self.arity > 1 else ''}")
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
            hint = f'give a list of times, or an object with "times": {json.dumps(types)}'
            raise _unread(dict(value), "a frontier", hint)
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

    def show_frontier(self, frontier: Antichain) -> str:
        """Return a frontier for people to look at, at most eight of its times: no JSON, not to be read again.

        Never raises, whatever numbers it holds.

        Examples
        --------
        >>> TimeDomain(("timestamp",)).show_frontier(Antichain.of(1_371_139_200_000_000))
        '2013-06-13T16:00Z'
        >>> TimeDomain(("long",)).show_frontier(Antichain.empty())
        'complete'
        >>> TimeDomain(("long", "date")).show_frontier(Antichain.of((1, 1), (2, 0)))
        '{(1, 1970-01-02), (2, 1970-01-01)}'
        """
        if frontier.is_empty:
            return "complete"
        texts = [self._shown(element) for element in frontier.elements[:_FEW]]
        if len(frontier) == 1:
            return texts[0]
        more = [f"… {len(frontier) - _FEW} more"] if len(frontier) > _FEW else []
        return "{" + ", ".join(texts + more) + "}"

    def _shown(self, time: Sequence[int]) -> str:
        parts = [str(kind.render(x)) for kind, x in zip(self.types, time, strict=True)]
        return parts[0] if self.arity == 1 else f"({', '.join(parts)})"

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
            raise _unread(value, "a time domain", 'give {"times": [types], "minimum": [numbers]}')
        return cls(tuple(times), tuple(minimum))


def _unread(value: object, what: str, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"could not read {what}: found {value!r:.200}", hint=hint)


def _from_json_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unread(text, "JSON", "quote dates and timestamps") from error
