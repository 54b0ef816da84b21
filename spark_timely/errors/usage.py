"""Errors of calls that break a precondition: nothing was done, the call is to be corrected."""

from __future__ import annotations

from collections.abc import Mapping

from spark_timely.errors.base import TimelyError

__all__ = [
    "ClosedError",
    "InvalidBoundsError",
    "InvalidOptionError",
    "InvalidShapeError",
    "InvalidUsageError",
    "LateDataError",
    "NotBeyondError",
    "SchemaMismatchError",
    "SinceViolationError",
]


class InvalidUsageError(TimelyError, ValueError):
    """The caller broke a precondition; nothing was done. Correct the call."""


class InvalidOptionError(InvalidUsageError):
    """An option is unknown, missing, given twice, in conflict with another, or has a value that does not fit.

    The message names the option and, where one is near, the known name. Correct the option.
    """


class InvalidShapeError(InvalidUsageError):
    """Arrays differ in length, or in the number of coordinates of their times. Correct the call."""


class InvalidBoundsError(InvalidUsageError):
    """A range ends before it begins. Correct the bounds.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    lower, upper : object, optional
        Lower bound (inclusive) and upper bound (exclusive).
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        lower: object = None,
        upper: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(lower=lower, upper=upper)

    @property
    def lower(self) -> object:
        """Lower bound, inclusive."""
        return self.context.get("lower")

    @property
    def upper(self) -> object:
        """Upper bound, exclusive."""
        return self.context.get("upper")


class NotBeyondError(InvalidUsageError):
    """A time is not beyond the frontier that it must be beyond. Use a time that is.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    time, frontier : object, optional
        The time that was given, and the frontier.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        time: object = None,
        frontier: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(time=time, frontier=frontier)

    @property
    def time(self) -> object:
        """Time that was given."""
        return self.context.get("time")

    @property
    def frontier(self) -> object:
        """Frontier that the time must be beyond."""
        return self.context.get("frontier")


class LateDataError(NotBeyondError):
    """A row to be captured has a time that its stream has already declared complete.

    Nothing was written. Say with the option ``lateData`` what shall happen to such rows, or raise
    ``lateness``.
    """


class SinceViolationError(InvalidUsageError):
    """A read begins at a time that compaction has already merged with later ones.

    Read as of a time beyond ``since``.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    as_of, since : object, optional
        Frontier of the read, and frontier from which the log can be read.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        as_of: object = None,
        since: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(as_of=as_of, since=since)

    @property
    def as_of(self) -> object:
        """Frontier of the read."""
        return self.context.get("as_of")

    @property
    def since(self) -> object:
        """Frontier from which the log can be read."""
        return self.context.get("since")


class ClosedError(InvalidUsageError):
    """The log or the stream is complete: nothing can be appended any more. Write to another log."""


class SchemaMismatchError(InvalidUsageError):
    """Rows do not fit the schema of the log: a column is missing, unknown, of another type, or null.

    Nothing was written. The message names the column.
    """
