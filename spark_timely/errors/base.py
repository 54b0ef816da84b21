"""The root of all errors, how its text is made, and the error that is a mistake of the library."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Self

from spark_timely.masking import mask_exception, masked, masked_value

__all__ = [
    "TimelyError",
    "TimelyInternalError",
    "shown",
]

_MAX_VALUE_CHARACTERS = 200


def shown(value: object, /) -> str:
    """Render a value for a message: its ``repr`` without secrets, cut at 200 characters with the full length told.

    Parameters
    ----------
    value : object
        What was found. Not modified.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> shown("orders")
    "'orders'"
    >>> shown("x" * 300)[-18:]
    '… (302 characters)'
    """
    text = masked(" ".join(repr(value).splitlines()))
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:_MAX_VALUE_CHARACTERS]}… ({len(text)} characters)"


class TimelyError(Exception):
    """Root of all errors raised by this library.

    Catch it to catch them all; its subclasses say how to react. Its texts hold no secrets, and those of the exception
    that is being handled when it is made hold none from then on (`spark_timely.masking`).

    Parameters
    ----------
    message : str
        ``could not <attempt>: <what was found>``, lower case, no full stop.
    hint : str, optional
        What the reader should do.
    context : mapping, optional
        Values concerned, by name, for programs. Copied.

    Attributes
    ----------
    message : str
        The message without the hint.
    hint : str or None
        The hint alone.
    context : dict
        Values concerned, by name.

    Examples
    --------
    >>> error = TimelyError("could not read log 'a': found nothing", hint="check the path", context={"path": "a"})
    >>> str(error)
    "could not read log 'a': found nothing — hint: check the path"
    >>> error.context["path"]
    'a'
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> None:
        message = masked(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else masked(hint)
        self.context: dict[str, object] = {name: masked_value(value) for name, value in (context or {}).items()}
        # What is being handled becomes the cause, and is shown with this error.
        mask_exception(sys.exception())

    def __str__(self) -> str:
        """Render message and hint on one line."""
        text = self.message if self.hint is None else f"{self.message} — hint: {self.hint}"
        lines = text.splitlines()
        return text if len(lines) == 1 else " ".join(line.strip() for line in lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own way calls cls(*args), which loses keyword-only values.
        return _rebuild, (type(self), self.message, self.hint, self.context)

    def _with(self, **values: object) -> Self:
        """Add the values that were given to the context."""
        self.context.update({name: masked_value(value) for name, value in values.items() if value is not None})
        return self


def _rebuild(kind: type[TimelyError], message: str, hint: str | None, context: dict[str, object]) -> TimelyError:
    error = kind.__new__(kind, message)
    TimelyError.__init__(error, message, hint=hint, context=context)
    return error


class TimelyInternalError(TimelyError):
    """A mistake of this library: an invariant that it keeps by itself is broken. Please report it.

    Parameters
    ----------
    message, context
        As in `TimelyError`.
    hint : str, optional
        Asks for a report if not given.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            message,
            hint=hint or "this is a mistake in spark-timely: please report it with this message",
            context=context,
        )
