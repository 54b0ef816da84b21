"""How the value of an option is read, by its kind.

Invariants
----------
1. Values may be text, as Spark passes them, or Python values of the kind; both give the same result.
2. Every reader reports with `ValueError`, whose text says what was expected; the table adds which
   option, of what, and the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from spark_timely.errors import InvalidOptionError, shown

__all__ = ["Duration", "JsonValue", "Kind", "Option", "parse_bytes", "parse_duration", "parse_value"]

Kind = Literal["str", "name", "names", "int", "bool", "bytes", "duration", "enum", "antichain", "seq", "wallclock"]
JsonValue = int | str | list["JsonValue"]
"""A time or an antichain as given: the log knows its type and parses it further."""

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time, or a distance in units of a log's own time.

    Parameters
    ----------
    amount : int
        How many, not negative.
    unit : {"us", "time"}
        ``us``: microseconds. ``time``: units of the log's time (1 of an integer, a day of a date, a
        microsecond of a timestamp).

    Examples
    --------
    >>> parse_duration("1h 30 minutes").seconds
    5400.0
    >>> parse_duration("7").in_units("long")
    7
    >>> parse_duration("2 days").in_units("date")
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
        """As it can be written again: a number of units of the time, or of seconds."""
        if self.unit == "time":
            return str(self.amount)
        whole, rest = divmod(self.amount, 1_000_000)
        return f"{whole} seconds" if not rest else f"{self.amount} us"

    def in_units(self, time_type: str, /) -> int:
        """Express the length in units of a time type.

        Parameters
        ----------
        time_type : str
            Name of the type: ``long``, ``int``, ``short``, ``date`` or ``timestamp``.

        Returns
        -------
        int
            Units: days for dates, microseconds for timestamps, 1 for integers.

        Raises
        ------
        InvalidOptionError
            If a duration with a unit is asked of an integer time, or one that is no whole number of
            days of a date.
        """
        if self.unit == "time" or self.amount == 0:
            return self.amount
        text = f"{self.amount / 1_000_000:g} seconds"
        if time_type == "timestamp":
            return self.amount
        if time_type == "date":
            days, rest = divmod(self.amount, 86_400_000_000)
            if rest:
                msg = f"could not use a duration for times of type 'date': found {text}, no whole number of days"
                raise InvalidOptionError(msg, hint="write for example '2 days'")
            return days
        msg = f"could not use a duration for times of type {time_type!r}: found {text}"
        raise InvalidOptionError(msg, hint="integer times have no clock: write a plain number such as '3'")


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Parameters
    ----------
    name : str
        Its name in lowerCamelCase, as written in the documentation.
    kind : str
        How its value is read: ``str``, ``name`` (letters, digits, underscore), ``names`` (list),
        ``int``, ``bool``, ``bytes``, ``duration``, ``enum``, ``antichain`` (JSON), ``seq`` (a number or one
        of `choices`), ``wallclock`` (a moment in UTC or one of `choices`).
    default : str or None
        Default as text, read like a given value; None: no value.
    unit : str
        Unit of the value, empty if it has none.
    help : str
        What it does, one or two sentences.
    applies : {"sink", "source"}
        Which table it is in.
    choices : tuple of str
        Words that are allowed: all that are for ``enum``, in place of a value otherwise.
    minimum : int
        Least value of an ``int``, ``seq`` or ``bytes``.
    required : bool
        Whether it must be given.
    """

    name: str
    kind: Kind
    default: str | None
    unit: str
    help: str
    applies: Literal["sink", "source"]
    choices: tuple[str, ...] = ()
    minimum: int = 0
    required: bool = False


def parse_value(option: Option, value: object, /) -> object:
    """Read the value of one option.

    Parameters
    ----------
    option : Option
        Which option.
    value : object
        Text or a Python value of the option's kind.

    Returns
    -------
    object
        A value of the kind: str, tuple of str, int, bool, `Duration`, or what JSON gives.

    Raises
    ------
    ValueError
        If it does not fit; the text says what was expected.

    Examples
    --------
    >>> parse_value(Option("workers", "int", None, "", "", "source", minimum=1), "8")
    8
    """
    return _PARSERS[option.kind](option, value)


def parse_duration(value: object, /, *, bare: Literal["time", "ms"] = "time") -> Duration:
    """Read a duration: ``10 minutes``, ``1h 30m``, ISO 8601 ``PT10M``, a timedelta, or a plain number.

    Parameters
    ----------
    value : str, int or timedelta
        What was given.
    bare : {"time", "ms"}
        What a plain number counts: units of the log's time, or milliseconds.

    Returns
    -------
    Duration
        Not negative.

    Raises
    ------
    ValueError
        If it cannot be read; the text says why.

    Examples
    --------
    >>> parse_duration("PT0.2S") == parse_duration("200ms") == parse_duration(200, bare="ms")
    True
    """
    if isinstance(value, Duration):
        return value
    if isinstance(value, timedelta):
        return _duration_us(value // timedelta(microseconds=1))
    if isinstance(value, int) and not isinstance(value, bool):
        return _duration_us(value * 1000) if bare == "ms" else _duration_us(value, "time")
    if not isinstance(value, str):
        msg = "expected a duration such as '10 minutes'"
        raise ValueError(msg)
    text = value.strip()
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return parse_duration(int(text), bare=bare)
    iso = _ISO_DURATION.fullmatch(text.upper())
    if iso is not None and any(iso.groups()):
        parts = [(number, unit) for unit, number in iso.groupdict().items() if number]
    else:
        body = re.sub(r"^interval\s+", "", text, flags=re.IGNORECASE)
        if not _DURATION.fullmatch(body):
            msg = "expected a duration such as '10 minutes', '1h' or 'PT10M'"
            raise ValueError(msg)
        parts = _DURATION_PART.findall(body)
    total = 0
    for number, unit in parts:  # as many turns as units were written
        factor = _UNITS_US.get(unit.lower())
        if factor is None:
            why = " (months and years have no fixed length)" if unit.lower()[:2] in {"mo", "ye"} else ""
            msg = f"unknown unit {shown(unit)}{why}"
            raise ValueError(msg)
        whole, _, fraction = number.partition(".")
        scaled, rest = divmod(int(fraction or "0") * factor, 10 ** len(fraction))
        if rest:
            msg = "finer than a microsecond"
            raise ValueError(msg)
        total += int(whole or "0") * factor + scaled
    return _duration_us(total)


def parse_bytes(value: object, /) -> int:
    """Read a size: a number of bytes, or text with a unit in powers of 1024 (``128mb``, ``1g``).

    Parameters
    ----------
    value : str or int
        What was given.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        If it cannot be read; the text says why.

    Examples
    --------
    >>> parse_bytes("64k"), parse_bytes("1 GiB"), parse_bytes(10)
    (65536, 1073741824, 10)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_long(value)
    match = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        msg = "expected a size such as '128mb' or a number of bytes"
        raise ValueError(msg)
    number, unit = match.groups()
    return _in_long(int(number) << (10 * "bkmgtp".index(unit[:1].lower() or "b")))


def _parse_str(option: Option, value: object) -> str:
    del option
    text = value if isinstance(value, str) else _fspath(value)
    if not text.strip():
        msg = "expected a text that is not empty"
        raise ValueError(msg)
    return text


def _fspath(value: object) -> str:
    path = getattr(value, "__fspath__", None)
    text = path() if callable(path) else None
    if not isinstance(text, str):
        msg = "expected a text"
        raise ValueError(msg)
    return text


def _parse_name(option: Option, value: object) -> str:
    del option
    # As long as a log takes them: it makes names of files of them.
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_]{1,200}", value):
        msg = "expected ASCII letters, digits and underscores only, at most 200"
        raise ValueError(msg)
    return value


def _parse_names(option: Option, value: object) -> tuple[str, ...]:
    del option
    names: Sequence[object]
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            found = _load_json(text)
            names = found if isinstance(found, list) else []
        else:
            names = [part.strip() for part in text.split(",")]
    elif isinstance(value, (list, tuple)):
        names = value
    else:
        names = []
    checked = [name for name in names if isinstance(name, str) and name]
    if not checked or len(checked) != len(names):
        msg = "expected names separated by commas, or a JSON list of names"
        raise ValueError(msg)
    if len(set(checked)) != len(checked):
        msg = "expected each name once"
        raise ValueError(msg)
    return tuple(checked)


def _parse_int(option: Option, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value, re.ASCII):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        words = "".join(f" or {word!r}" for word in option.choices)
        msg = f"expected a whole number{words}"
        raise ValueError(msg)
    return _at_least(option, _in_long(number))


def _parse_bool(option: Option, value: object) -> bool:
    del option
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in {"true", "false"}:
        msg = "expected 'true' or 'false'"
        raise ValueError(msg)
    return word == "true"


def _parse_bytes_option(option: Option, value: object) -> int:
    return _at_least(option, parse_bytes(value))


def _parse_duration_option(option: Option, value: object) -> Duration:
    return parse_duration(value, bare="ms" if "milliseconds" in option.unit else "time")


def _parse_enum(option: Option, value: object) -> str:
    word = _choice(option, value)
    if word is None:
        msg = "expected one of " + ", ".join(repr(choice) for choice in option.choices)
        raise ValueError(msg)
    return word


def _parse_antichain(option: Option, value: object) -> JsonValue:
    word = _choice(option, value)
    if word is not None:
        return word
    found: object = value
    if isinstance(value, str):
        text = value.strip()
        # A time such as 2013-01-01 is no JSON; the log's own type reads it.
        found = _load_json(text) if re.match(r'[\[{"]|-?[0-9]+$', text) else text
    if not _is_json_time(found) or found == "":
        msg = "expected a JSON antichain: '[5]', '[[1, 2], [2, 1]]', '[]', or one time"
        raise ValueError(msg)
    return found  # type: ignore[return-value]  # checked just above


def _parse_seq(option: Option, value: object) -> int | str:
    return _choice(option, value) or _parse_int(option, value)


def _parse_wallclock(option: Option, value: object) -> int | str:
    word = _choice(option, value)
    if word is not None:
        return word
    moment: datetime | None = None
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
    if moment is None:
        words = "".join(f" or {word!r}" for word in option.choices)
        msg = f"expected a moment such as '2013-01-01T00:00:00Z'{words}"
        raise ValueError(msg)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


_PARSERS: dict[str, Callable[[Option, object], object]] = {
    "str": _parse_str,
    "name": _parse_name,
    "names": _parse_names,
    "int": _parse_int,
    "bool": _parse_bool,
    "bytes": _parse_bytes_option,
    "duration": _parse_duration_option,
    "enum": _parse_enum,
    "antichain": _parse_antichain,
    "seq": _parse_seq,
    "wallclock": _parse_wallclock,
}


def _choice(option: Option, value: object) -> str | None:
    """Return the allowed word that `value` is, whatever its case."""
    if not isinstance(value, str):
        return None
    words = {word.lower(): word for word in option.choices}
    return words.get(value.strip().lower())


def _load_json(text: str) -> object:
    def refuse(constant: str) -> object:
        msg = f"{constant} is no value of ours"
        raise ValueError(msg)

    try:
        found: object = json.loads(text, parse_constant=refuse)
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None
    return found


def _is_json_time(value: object, depth: int = 0) -> bool:
    """Tell whether a value is an int, a text, or lists of them two deep at most."""
    if isinstance(value, (list, tuple)):
        return depth < 2 and all(_is_json_time(item, depth + 1) for item in value)
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _in_long(number: int) -> int:
    if not -_LONG_MAX - 1 <= number <= _LONG_MAX:
        msg = "does not fit 64 bits"
        raise ValueError(msg)
    return number


def _at_least(option: Option, number: int) -> int:
    if number < option.minimum:
        msg = f"expected at least {option.minimum}"
        raise ValueError(msg)
    return number


def _duration_us(amount: int, unit: Literal["us", "time"] = "us") -> Duration:
    if amount < 0:
        msg = "expected a duration that is not negative"
        raise ValueError(msg)
    return Duration(_in_long(amount), unit)


_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(rf"(?:{_NUMBER}\s*[A-Za-zµ]+\s*,?\s*)+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([A-Za-zµ]+)", re.ASCII)
_ISO_DURATION = re.compile(
    rf"P(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?",
    re.ASCII,
)
_BYTES = re.compile(r"([0-9]+)\s*(b|[kmgtp](?:i?b)?|)", re.ASCII | re.IGNORECASE)
_UNITS_US: dict[str, int] = {
    name: factor
    for factor, names in (
        (1, "us µs microsecond microseconds"),
        (1_000, "ms millisecond milliseconds"),
        (1_000_000, "s sec secs second seconds"),
        (60_000_000, "m min mins minute minutes"),
        (3_600_000_000, "h hr hrs hour hours"),
        (86_400_000_000, "d day days"),
        (604_800_000_000, "w week weeks"),
    )
    for name in names.split()
}
