"""Type checks of the arguments that callers pass to a log: a wrong one is refused before anything is done.

Each function takes what is attempted (``could not …``) and the name of the argument, for the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from spark_timely.conf.kinds import parse_bytes
from spark_timely.errors import InvalidUsageError, in_utf8, shown
from spark_timely.time.text import parse_duration

# The end of the year 9999, the last one that Python, Spark and Delta can show, in seconds since 1970.
_CLOCK_END_S: Final = 253_402_300_800


def check_text(attempt: str, name: str, value: object, /, *, optional: bool = False) -> None:
    """Refuse what is no text, or none in UTF-8; raises `InvalidUsageError`.

    Examples
    --------
    >>> check_text("could not append", "reason", 5)
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: [TIMELY_INVALID_USAGE] could not append: found reason=5 — hint: ...
    """
    if not isinstance(value, str) and not (optional and value is None):
        raise _refusal(attempt, name, value, f"give a text as {name}")
    if isinstance(value, str) and not in_utf8(value):
        raise _refusal(attempt, name, value, f"give a text in UTF-8 as {name}, without half of a pair of surrogates")


def check_word(attempt: str, name: str, value: object, words: Sequence[str], /) -> None:
    """Refuse what is none of some words; raises `InvalidUsageError`.

    Examples
    --------
    >>> check_word("could not write", "colour", "blue", ("red", "green"))
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: [TIMELY_INVALID_USAGE] could not write: found colour='blue' — hint: ...
    """
    if value not in words:
        raise _refusal(attempt, name, value, f"choose among {', '.join(words)}")


def check_whole(attempt: str, name: str, value: object, /, *, least: int, optional: bool = False) -> None:
    """Refuse what is no whole number of `least` or more; raises `InvalidUsageError`.

    Examples
    --------
    >>> check_whole("could not open log 'a'", "merge_every", 0, least=1)
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidUsageError: [TIMELY_INVALID_USAGE] could not open log 'a': found ...
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise _refusal(attempt, name, value, f"give a whole number of {least} or more")


def seconds_of(
    attempt: str, name: str, value: object, /, *, least: float = 0.0, optional: bool = False, hint: str | None = None
) -> float:
    """Return a length of time that is given in seconds; infinity for None, where that may be given.

    Raises
    ------
    InvalidUsageError
        If it is no number, or less than `least`.

    Examples
    --------
    >>> seconds_of("could not wait", "timeout_s", 2), seconds_of("could not wait", "timeout_s", None, optional=True)
    (2.0, inf)
    """
    if optional and value is None:
        return math.inf
    found = _number_of(value)
    if found is None or not found >= least:
        raise _refusal(attempt, name, value, hint or f"give a number of seconds, {least:g} or more")
    return found


def clock_us(attempt: str, clock: Callable[[], float], /) -> int:
    """Return what a wall clock shows, in microseconds since 1970.

    Raises
    ------
    InvalidUsageError
        If it shows no moment from 1970 to the year 9999.

    Examples
    --------
    >>> clock_us("could not tell the time", lambda: 2.5)
    2500000
    """
    shows = clock()
    seconds = _number_of(shows)
    if seconds is None or not 0 <= seconds < _CLOCK_END_S:
        hint = "give a clock that returns seconds since 1970, as time.time does"
        raise _refusal(attempt, "clock()", shows, hint)
    return int(seconds * 1_000_000)


def check_schema(attempt: str, name: str, value: object, /) -> None:
    """Refuse what is no Arrow schema; raises `InvalidUsageError`.

    Examples
    --------
    >>> check_schema("could not create log 'a'", "schema", pa.schema([("v", pa.int64())]))
    """
    if not isinstance(value, pa.Schema):
        raise _refusal(attempt, name, value, f"give a pyarrow.Schema as {name}: pa.schema([('v', pa.int64())])")


def names_of(attempt: str, name: str, value: object, /) -> tuple[str, ...]:
    """Return one name or several as a tuple.

    Raises
    ------
    InvalidUsageError
        If it is neither a text nor texts.

    Examples
    --------
    >>> names_of("could not read", "columns", "v"), names_of("could not read", "columns", ["v", "w"])
    (('v',), ('v', 'w'))
    """
    if isinstance(value, str):
        return (value,)
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else (None,)
    if not all(isinstance(each, str) for each in names):  # a few
        raise _refusal(attempt, name, value, f"give a name or a list of names as {name}")
    return names


def size_of(attempt: str, name: str, value: object, /) -> int:
    """Return a size in bytes, given as a number or as text such as ``"128mb"``.

    Raises
    ------
    InvalidUsageError
        If it is none, or less than a byte.

    Examples
    --------
    >>> size_of("could not compact", "target_file_size", "64kb")
    65536
    """
    try:
        size = parse_bytes(int(value) if isinstance(value, np.integer) else value)
    except ValueError as error:
        raise _refusal(attempt, name, value, str(error).replace("expected", "give", 1)) from error
    if size < 1:
        raise _refusal(attempt, name, value, f"give {name} of at least 1 byte")
    return size


def length_of(attempt: str, name: str, value: object, /, *, path: str) -> int:
    """Return a length of time in microseconds.

    Raises
    ------
    InvalidUsageError
        If it is none.

    Examples
    --------
    >>> length_of("could not retain log 'a'", "expiry", "2 seconds", path="a")
    2000000
    """
    try:
        return parse_duration(value).amount
    except ValueError as error:
        msg = f"{attempt}: found {name}={shown(value)}"
        raise InvalidUsageError(msg, hint=str(error), context={"path": path}) from error


def _number_of(value: object) -> float | None:
    """Return a real number as a float: infinity where it is beyond those; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _refusal(attempt: str, name: str, value: object, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"{attempt}: found {name}={shown(value)}", hint=hint, context={"argument": name})
