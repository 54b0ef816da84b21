"""Kinds of values that users give: a parser of option values for each kind, and type checks of arguments.

The table of options (`spark_timely.conf.options`) parses by it. Functions of logs, answers and instances check their
arguments by it: a check takes what is attempted (``could not …``) and the name of the argument, for the error. A wrong
argument is refused before anything is done.

Invariants
----------
1. Values of options may be text, as Spark passes them, or Python values of the kind; both give the same result.
2. Every parser of an option reports with `ValueError`, whose text says what was expected; the table adds which
   option, of what, and the value.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.time.text import parse_distance, parse_duration, parse_moment

Kind = Literal[
    "str", "name", "names", "int", "bool", "bytes", "duration", "distance", "enum", "antichain", "seq", "wallclock"
]
JsonValue = int | str | list["JsonValue"]
"""A time or an antichain as given: the log knows its type and parses it further."""

_LONG_MAX = 2**63 - 1
# The end of the year 9999, the last one that Python, Spark and Delta can show, in seconds since 1970.
_CLOCK_END_S: Final = 253_402_300_800


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Parameters
    ----------
    name : str
        Its name in lowerCamelCase, as written in the documentation.
    kind : str
        How its value is read: ``str``, ``name`` (letters, digits, underscore), ``names`` (list),
        ``int``, ``bool``, ``bytes``, ``duration`` (of the wall clock, with its unit), ``distance`` (between times of
        the log: bare numbers for integers), ``enum``, ``antichain`` (JSON), ``seq`` (a number or one of `choices`),
        ``wallclock`` (a moment in UTC or one of `choices`).
    default : str or None
        Default as text, read like a given value; None: no value.
    unit : str
        Unit of the value, empty if it has none.
    help : str
        What it does, one or two sentences.
    choices : tuple of str
        Words that are allowed: all that are for ``enum``, in place of a value otherwise.
    minimum : int
        Least value of an ``int``, ``seq`` or ``bytes``.
    required : bool
        Whether it must be given.
    first : bool
        Whether a first job needs it: the reference lists these before the others.
    """

    name: str
    kind: Kind
    default: str | None
    unit: str
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    required: bool = False
    first: bool = False


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
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text.strip():
        msg = "expected a text that is not empty" if isinstance(text, str) else "expected a text"
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
        msg = "expected one time, or a JSON antichain: '[5]', '[\"2013-06-12\"]', '[[1, 2], [2, 1]]', '[]'"
        raise ValueError(msg)
    return found  # type: ignore[return-value]  # checked just above


def _parse_seq(option: Option, value: object) -> int | str:
    return _choice(option, value) or _parse_int(option, value)


def _parse_wallclock(option: Option, value: object) -> int | str:
    word = _choice(option, value)
    if word is not None:
        return word
    moment = parse_moment(value, without_zone="utc")
    if moment is None:
        words = "".join(f" or {word!r}" for word in option.choices)
        msg = f"expected a moment such as '2013-01-01T00:00Z'{words}"
        raise ValueError(msg)
    return moment


_PARSERS: dict[str, Callable[[Option, object], object]] = {
    "str": _parse_str,
    "name": _parse_name,
    "names": _parse_names,
    "int": _parse_int,
    "bool": _parse_bool,
    "bytes": lambda option, value: _at_least(option, parse_bytes(value)),
    "duration": lambda _, value: parse_duration(value),
    "distance": lambda _, value: parse_distance(value),
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


_BYTES = re.compile(r"([0-9]+)\s*(b|[kmgtp](?:i?b)?|)", re.ASCII | re.IGNORECASE)


# Arguments ------------------------------------------------------------------------------------------------------------


def in_utf8(text: str, /) -> bool:
    r"""Tell whether a text can be written in UTF-8: half of a pair of surrogates cannot.

    Examples
    --------
    >>> in_utf8("é"), in_utf8("\ud800")
    (True, False)
    """
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


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
