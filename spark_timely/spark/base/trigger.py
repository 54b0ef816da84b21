"""The parser of ``trigger=``: when the micro-batches of a query begin.

`spark_timely.start`, dataflows and `spark_timely.replay` take the argument; a wrong one is refused before
anything starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict

from spark_timely.errors import InvalidOptionError, shown
from spark_timely.time.text import parse_duration

Ending: TypeAlias = Literal["availableNow", "once"]
"""A trigger with which a query ends by itself."""


class TriggerGiven(TypedDict, total=False):
    """The arguments of ``DataStreamWriter.trigger``: exactly one of these."""

    availableNow: Literal[True]
    once: Literal[True]
    processingTime: str | timedelta
    continuous: str | timedelta
    realTime: str | timedelta


Trigger: TypeAlias = str | timedelta | TriggerGiven
"""``"availableNow"``, ``"once"``, an interval such as ``"10 seconds"``, or what ``DataStreamWriter.trigger`` takes."""

_ENDINGS: Final[tuple[Ending, ...]] = ("availableNow", "once")
_INTERVALS: Final = ("processingTime", "continuous", "realTime")
_HINT: Final = "give 'availableNow', 'once', an interval such as '10 seconds', or a mapping with one of "


def parse_trigger(trigger: Trigger | None, /, *, attempt: str) -> dict[str, Any]:
    """Read when micro-batches begin.

    Parameters
    ----------
    trigger : str, timedelta, mapping or None
        As `Trigger`. Words are compared without regard to case and underscores. None is Spark's default.
    attempt : str
        What is attempted, for errors: ``could not start …``.

    Returns
    -------
    dict
        Keywords of ``DataStreamWriter.trigger``: one, or none for Spark's default. Intervals are written as Spark reads
        them.

    Raises
    ------
    InvalidOptionError
        If it is none of these.

    Examples
    --------
    >>> parse_trigger("available_now", attempt="could not start"), parse_trigger("90s", attempt="could not start")
    ({'availableNow': True}, {'processingTime': '1 minute 30 seconds'})
    >>> parse_trigger("sometimes", attempt="could not start")
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: ...could not start: found trigger='sometimes' — hint: give ...
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        words = {word.lower(): word for word in _ENDINGS}
        key = trigger.replace("_", "").replace(" ", "").lower()
        if key in words:
            return {words[key]: True}
        interval = _interval(trigger)
        if interval is None:
            near = difflib.get_close_matches(key, words, n=1, cutoff=0.7)
            raise _refusal(attempt, trigger, hint=f"did you mean {words[near[0]]!r}?" if near else None)
        return {"processingTime": interval}
    if isinstance(trigger, timedelta):
        interval = _interval(trigger)
        if interval is None:
            raise _refusal(attempt, trigger)
        return {"processingTime": interval}
    if not isinstance(trigger, Mapping):
        raise _refusal(attempt, trigger)
    given = {name: value for name, value in trigger.items() if value is not None}
    if len(given) != 1:
        raise _refusal(attempt, dict(trigger), hint="give one trigger: Spark takes no two, and none of nothing")
    ((name, value),) = given.items()
    found: object = None
    if name in _ENDINGS:
        found = True if value is True else None
    elif name in _INTERVALS:
        found = _interval(value)
    if found is None:
        raise _refusal(attempt, dict(trigger))
    return {str(name): found}


def ending_of(trigger: Mapping[str, object], /) -> Ending | None:
    """Return the trigger of a query that ends by itself, None of one that continues.

    Parameters
    ----------
    trigger : mapping
        As `parse_trigger` gave it.

    Examples
    --------
    >>> ending_of({"once": True}), ending_of({"processingTime": "10 seconds"})
    ('once', None)
    """
    return next((word for word in _ENDINGS if trigger.get(word)), None)


def _interval(value: object) -> str | None:
    """Return an interval as Spark reads it, None for what is none."""
    if not isinstance(value, str | timedelta):
        return None
    try:
        return parse_duration(value).text
    except ValueError:
        return None


def _refusal(attempt: str, found: object, *, hint: str | None = None) -> InvalidOptionError:
    return InvalidOptionError(
        f"{attempt}: found trigger={shown(found)}",
        hint=hint or _HINT + ", ".join(repr(name) for name in (*_ENDINGS, *_INTERVALS)),
        context={"option": "trigger"},
    )
