"""Text of days, moments and durations: the one parser and the one formatter of each.

`domain` reads and writes dates and timestamps by it, `conf` the durations and moments in options, and the command line
and messages show moments by it.

Invariants
----------
1. What `day_text`, `moment_text` and `Duration.text` write is read back as the same number.
2. A bare number names no day, no moment and no length of time. Numbers are read only with their unit
   (``us:1771891200000000``, ``days:20511``, ``12 hours``); only a length of 0 needs none.
3. Nothing is rounded: what is finer than a microsecond is refused. Everything is in UTC; no zone of a
   session or a machine is looked at.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from dataclasses import dataclass
from typing import Final, Literal

from spark_timely.errors import InvalidOptionError, shown

DAY_US: Final = 86_400_000_000
_LONG_MAX: Final = 2**63 - 1
_UNIX_DATE = dt.date(1970, 1, 1)
_UNIX_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_FRACTION = re.compile(r"[.,](\d+)")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_WORDS = re.compile(rf"(?:{_NUMBER}\s*[A-Za-zµ]+\s*,?\s*)+", re.ASCII)
_WORD = re.compile(rf"({_NUMBER})\s*([A-Za-zµ]+)", re.ASCII)
_ISO_DURATION = re.compile(
    rf"P(?=.*[DHMSW]\Z)(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?",
    re.ASCII | re.IGNORECASE,
)
_UNITS_US: Final[dict[str, int]] = {
    name: factor
    for factor, names in (
        (1, "us µs microsecond microseconds"),
        (1_000, "ms millisecond milliseconds"),
        (1_000_000, "s sec secs second seconds"),
        (60_000_000, "m min mins minute minutes"),
        (3_600_000_000, "h hr hrs hour hours"),
        (DAY_US, "d day days"),
        (7 * DAY_US, "w week weeks"),
    )
    for name in names.split()
}
_WRITTEN_UNITS: Final = ("day", "hour", "minute", "second", "millisecond", "microsecond")


def bare_number(value: object, /) -> int | None:
    """Return the number that a value is, alone and without a unit; None if it is something else.

    Examples
    --------
    >>> bare_number(2027), bare_number(" 2027 "), bare_number("us:2027"), bare_number(True)
    (2027, 2027, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        return int(text) if _INTEGER.fullmatch(text) else None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy's integers too; others are refused by it
    except TypeError:
        return None


def parse_day(value: object, /) -> int | None:
    """Read a day, in days since 1970-01-01: ISO 8601, ``days:15706``, or a date of Python; else None.

    Examples
    --------
    >>> parse_day("2013-01-01"), parse_day("days:15706"), parse_day("15706")
    (15706, 15706, None)
    """
    if isinstance(value, dt.datetime):
        return None
    if isinstance(value, dt.date):
        return (value - _UNIX_DATE).days
    if not isinstance(value, str) or bare_number(value) is not None:
        return None
    text = value.strip()
    if text.startswith("days:"):
        return bare_number(text.removeprefix("days:"))
    try:
        return (dt.date.fromisoformat(text) - _UNIX_DATE).days
    except ValueError:
        return None


def parse_moment(value: object, /, *, without_zone: Literal["refuse", "utc"] = "refuse") -> int | None:
    """Read a moment, in microseconds since 1970-01-01 UTC; None if it is none.

    Parameters
    ----------
    value : object
        ISO 8601 with a zone, a datetime with a zone, or ``us:1771891200000000``. A day, as text or as a
        date, is its midnight in UTC.
    without_zone : {"refuse", "utc"}
        What a date and time of day without a zone is.

    Examples
    --------
    >>> parse_moment("1970-01-01T01:00+01:00"), parse_moment("1970-01-02"), parse_moment("us:7")
    (0, 86400000000, 7)
    >>> parse_moment("1970-01-01T01:00"), parse_moment(2027)
    (None, None)
    """
    if isinstance(value, str) and bare_number(value) is None:
        text = value.strip()
        if text.startswith("us:"):
            return bare_number(text.removeprefix("us:"))
        if not text.startswith("days:") and (day := parse_day(text)) is not None:
            return day * DAY_US
        digits = _FRACTION.search(text)
        if digits is not None and digits[1][6:].strip("0"):
            return None
        try:
            value = dt.datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            if without_zone == "refuse":
                return None
            value = value.replace(tzinfo=dt.UTC)
        return (value - _UNIX_TIME) // _MICROSECOND
    return None if (day := parse_day(value)) is None else day * DAY_US


def day_text(days: int, /) -> str:
    """Write a day as ISO 8601; one outside of the calendar as a number with its unit.

    Examples
    --------
    >>> day_text(15706), day_text(10_000_000)
    ('2013-01-01', 'days:10000000')
    """
    try:
        return (_UNIX_DATE + dt.timedelta(days=days)).isoformat()
    except OverflowError:
        return f"days:{days}"


def moment_text(us: int, /, *, least: Literal["minutes", "seconds", "microseconds"] = "minutes") -> str:
    """Write a moment as people do: to the minute, or as much finer as it is.

    Parameters
    ----------
    us : int
        Microseconds since 1970-01-01 UTC.
    least : {"minutes", "seconds", "microseconds"}
        What is written even if it is zero: programs expect seconds, statistics of a Delta log microseconds.

    Examples
    --------
    >>> moment_text(1_371_074_400_000_000), moment_text(1_371_074_400_000_000, least="seconds")
    ('2013-06-12T22:00Z', '2013-06-12T22:00:00Z')
    >>> moment_text(1_500), moment_text(2**62)
    ('1970-01-01T00:00:00.001500Z', 'us:4611686018427387904')
    """
    try:
        moment = _UNIX_TIME.replace(tzinfo=None) + us * _MICROSECOND
    except OverflowError:
        return f"us:{us}"
    fine: str = least
    if moment.second and least == "minutes":
        fine = "seconds"
    if moment.microsecond and least != "microseconds":
        fine = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.isoformat(timespec=fine) + "Z"


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time, or a distance in units of a log's own time.

    Parameters
    ----------
    amount : int
        How many, not negative.
    unit : {"us", "time"}
        ``us``: microseconds. ``time``: steps of integer times, which have no clock.

    Examples
    --------
    >>> parse_duration("1h 30 minutes").seconds
    5400.0
    >>> parse_distance("7").in_units("long")
    7
    >>> parse_distance("2 days").in_units("date")
    2
    """

    amount: int
    unit: Literal["us", "time"] = "us"

    @property
    def seconds(self) -> float:
        """Length in seconds.

        Raises
        ------
        InvalidOptionError
            If it is a distance in units of a log's time.
        """
        if self.unit != "us":
            msg = f"could not take {self.amount} units of time as a duration: found no unit such as 'seconds'"
            raise InvalidOptionError(msg, hint="write for example '10 minutes'")
        return self.amount / 1_000_000

    @property
    def text(self) -> str:
        """As people write it, and as it is read again.

        Examples
        --------
        >>> Duration(43_200_000_000).text, Duration(90_061_000_007).text, Duration(7, "time").text
        ('12 hours', '1 day 1 hour 1 minute 1 second 7 microseconds', '7')
        """
        if self.unit == "time":
            return str(self.amount)
        parts, rest = [], self.amount
        for name in _WRITTEN_UNITS:
            count, rest = divmod(rest, _UNITS_US[name])
            if count:
                parts.append(f"{count} {name}" if count == 1 else f"{count} {name}s")
        return " ".join(parts) or "0 seconds"

    def in_units(self, time_type: str, /, *, option: str = "") -> int:
        """Express the length in units of a time type.

        Parameters
        ----------
        time_type : str
            Name of the type: ``long``, ``int``, ``short``, ``date`` or ``timestamp``.
        option : str
            The option that gave it, for errors.

        Returns
        -------
        int
            Units: days for dates, microseconds for timestamps, 1 for integers.

        Raises
        ------
        InvalidOptionError
            If a duration with a unit is asked of an integer time, a bare number of a date or a timestamp, or
            one that is no whole number of days of a date.
        """
        if self.amount == 0:
            return 0
        what = f"option {option!r}" if option else "a duration"
        attempt = f"could not use {what} for times of type {time_type!r}: found"
        context = {"option": option} if option else {}
        if time_type not in {"date", "timestamp"}:
            if self.unit == "time":
                return self.amount
            msg = f"{attempt} {self.text!r}"
            raise InvalidOptionError(
                msg, hint="write a plain number such as '3': integer times have no clock", context=context
            )
        if self.unit == "time":
            msg = f"{attempt} {self.amount}, a number without a unit"
            n = self.amount
            hint = f"write '{n} days'" if time_type == "date" else f"write '{n} s', '{n} ms' or '{n} us'"
            raise InvalidOptionError(msg, hint=hint, context=context)
        if time_type == "timestamp":
            return self.amount
        days_, rest = divmod(self.amount, DAY_US)
        if rest:
            msg = f"{attempt} {self.text!r}, no whole number of days"
            raise InvalidOptionError(msg, hint="write for example '2 days'", context=context)
        return days_


def parse_duration(value: object, /) -> Duration:
    """Read a length of time: ``10 minutes``, ``1h 30m``, ISO 8601 ``PT10M``, or a timedelta.

    Parameters
    ----------
    value : str or timedelta
        What was given. A number needs its unit; only 0 does without.

    Returns
    -------
    Duration
        In microseconds, not negative.

    Raises
    ------
    ValueError
        If it cannot be read; the text says why.

    Examples
    --------
    >>> parse_duration("PT0.2S") == parse_duration("200ms") == parse_duration(dt.timedelta(milliseconds=200))
    True
    >>> parse_duration("600")
    Traceback (most recent call last):
    ...
    ValueError: write the number with its unit: '600 s', '600 ms' or '600 us'
    """
    found = parse_distance(value)
    if found.unit == "time" and found.amount:
        msg = f"write the number with its unit: '{found.amount} s', '{found.amount} ms' or '{found.amount} us'"
        raise ValueError(msg)
    return Duration(found.amount)


def parse_distance(value: object, /) -> Duration:
    """Read a distance between two times of a log: a length as `parse_duration` takes it, or a bare number.

    A bare number counts steps of integer times; `Duration.in_units` refuses it for dates and timestamps.

    Raises
    ------
    ValueError
        If it cannot be read; the text says why.

    Examples
    --------
    >>> parse_distance("7"), parse_distance("7 us")
    (Duration(amount=7, unit='time'), Duration(amount=7, unit='us'))
    """
    if isinstance(value, Duration):
        return value
    if isinstance(value, dt.timedelta):
        return _checked(value // _MICROSECOND, "us")
    number = bare_number(value)
    if number is not None:
        return _checked(number, "time")
    if not isinstance(value, str):
        msg = "expected a duration such as '10 minutes'"
        raise ValueError(msg)
    text = value.strip()
    iso = _ISO_DURATION.fullmatch(text)
    if iso is not None:
        parts = [(number, unit) for unit, number in iso.groupdict().items() if number]
    else:
        body = re.sub(r"^interval\s+", "", text, flags=re.IGNORECASE)
        if not _WORDS.fullmatch(body):
            msg = "expected a duration such as '10 minutes', '1h' or 'PT10M'"
            raise ValueError(msg)
        parts = _WORD.findall(body)
    total = 0
    for digits, unit in parts:
        factor = _UNITS_US.get(unit.lower())
        if factor is None:
            why = " (months and years have no fixed length)" if unit.lower()[:2] in {"mo", "ye"} else ""
            msg = f"unknown unit {shown(unit)}{why}"
            raise ValueError(msg)
        whole, _, fraction = digits.partition(".")
        scaled, rest = divmod(int(fraction or "0") * factor, 10 ** len(fraction))
        if rest:
            msg = "finer than a microsecond"
            raise ValueError(msg)
        total += int(whole) * factor + scaled
    return _checked(total, "us")


def _checked(amount: int, unit: Literal["us", "time"]) -> Duration:
    if amount < 0:
        msg = "expected a duration that is not negative"
        raise ValueError(msg)
    if amount > _LONG_MAX:
        msg = "does not fit 64 bits"
        raise ValueError(msg)
    return Duration(amount, unit)
