"""Error types: what is raised, when, and how to react.

Every message reads ``could not <attempt>: <what was found, name=value>`` and, after `` — hint: ``,
what to do. It is one line, because Spark shows its users the last line of a traceback only.

Invariants
----------
1. Everything that the library raises on purpose is a `TimelyError`.
2. Every error survives pickling with message, hint and context, since errors cross from Spark's
   workers to its driver.
3. ``str(error)`` is one line and needs no other line to be understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

__all__ = [
    "CaptureFormatError",
    "ClosedError",
    "CyclicSummaryError",
    "DataLossError",
    "InvalidBoundsError",
    "InvalidOptionError",
    "InvalidShapeError",
    "InvalidUsageError",
    "LateDataError",
    "LogFormatError",
    "LogMissingError",
    "MissingError",
    "NegativeCountError",
    "NegativeMultiplicityError",
    "NotBeyondError",
    "OperatorError",
    "OwnershipError",
    "ProtocolError",
    "RolledBackError",
    "SchemaMismatchError",
    "SinceViolationError",
    "StorageError",
    "StreamMissingError",
    "TimelyError",
    "TimelyInternalError",
    "UnheldCapabilityError",
    "UpperMismatchError",
    "WaitTimeoutError",
    "shown",
]

_MAX_VALUE_CHARACTERS = 200


def shown(value: object, /) -> str:
    """Render a value for a message: its ``repr``, cut at 200 characters with the full length told.

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
    text = " ".join(repr(value).splitlines())
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:_MAX_VALUE_CHARACTERS]}… ({len(text)} characters)"


class TimelyError(Exception):
    """Root of all errors raised by this library.

    Catch it to catch them all; its subclasses say how to react.

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
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.context: dict[str, object] = dict(context or {})

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
        self.context.update({name: value for name, value in values.items() if value is not None})
        return self


def _rebuild(kind: type[TimelyError], message: str, hint: str | None, context: dict[str, object]) -> TimelyError:
    error = kind.__new__(kind, message)
    TimelyError.__init__(error, message, hint=hint, context=context)
    return error


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


class ProtocolError(TimelyError):
    """A captured stream breaks a rule of the capture protocol.

    Nothing was written; or, on reading, the log was written by something that does not check.
    """


class CaptureFormatError(TimelyError):
    """Bytes or lines from outside are not what was declared: damaged, hostile, or of other types.

    Nothing of the event that the message names was taken. Correct the declared types, or the file.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    event, position : object, optional
        Number of the event, from 0, and the position of the offending byte in the stream.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        event: object = None,
        position: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(event=event, position=position)

    @property
    def event(self) -> object:
        """Number of the event."""
        return self.context.get("event")

    @property
    def position(self) -> object:
        """Position of the offending byte."""
        return self.context.get("position")


class UnheldCapabilityError(ProtocolError):
    """A message or a progress statement uses a time at which its stream holds no capability.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    time, held : object, optional
        The time used, and the times at which a capability is held.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        time: object = None,
        held: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(time=time, held=held)

    @property
    def time(self) -> object:
        """Time that was used."""
        return self.context.get("time")

    @property
    def held(self) -> object:
        """Times at which a capability is held."""
        return self.context.get("held")


class NegativeCountError(ProtocolError):
    """A progress statement gives up more capabilities than are held.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    location, time, count : object, optional
        Stream or operator port, time, and the count that would result.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        location: object = None,
        time: object = None,
        count: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(location=location, time=time, count=count)

    @property
    def location(self) -> object:
        """Stream or operator port."""
        return self.context.get("location")

    @property
    def time(self) -> object:
        """Time of the count."""
        return self.context.get("time")

    @property
    def count(self) -> object:
        """Count that would result."""
        return self.context.get("count")


class CyclicSummaryError(ProtocolError):
    """A graph has a cycle along which times do not advance, so that no frontier could ever pass it.

    Nothing was built. Give one operator of the cycle a path summary that adds to a coordinate of the
    time, as the feedback of a loop does.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    path : object, optional
        The ports along the cycle, the first one repeated at the end.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        path: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(path=path)

    @property
    def path(self) -> object:
        """Ports along the cycle, the first one repeated at the end."""
        return self.context.get("path")


class UpperMismatchError(TimelyError):
    """An append expected another upper than the stream has: somebody else was first.

    This is normal where several write. Nothing was written; read the upper again, drop the updates
    that are not beyond it, and retry.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    expected, current : object, optional
        Upper that was expected, and the upper found.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        expected: object = None,
        current: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(expected=expected, current=current)

    @property
    def expected(self) -> object:
        """Upper that was expected."""
        return self.context.get("expected")

    @property
    def current(self) -> object:
        """Upper that was found."""
        return self.context.get("current")


class OperatorError(TimelyError):
    """A function given to a dataflow failed, or gave back what it must not. Nothing of these times was written.

    Correct the function; the dataflow goes on from where its outputs are when it is started again.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    operator : object, optional
        Name of the operator.
    lower, upper : object, optional
        Range of times that was computed: lower bound (inclusive) and upper bound (exclusive).
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        operator: object = None,
        lower: object = None,
        upper: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(operator=operator, lower=lower, upper=upper)

    @property
    def operator(self) -> object:
        """Name of the operator."""
        return self.context.get("operator")

    @property
    def lower(self) -> object:
        """Lower bound of the times, inclusive."""
        return self.context.get("lower")

    @property
    def upper(self) -> object:
        """Upper bound of the times, exclusive."""
        return self.context.get("upper")


class OwnershipError(TimelyError):
    """The stream is owned by another query or producer; nothing was written.

    Choose another stream name, or stop the owner and take the stream over.
    """


class RolledBackError(TimelyError):
    """A query repeats a micro-batch older than the newest one in the log, or the newest with other rows.

    Its checkpoint was rolled back, restored from a copy, or its source is not repeatable. Nothing was
    written. Start it with a new checkpoint and a new stream.
    """


class MissingError(TimelyError, LookupError):
    """Something that was named does not exist. Check the name."""


class LogMissingError(MissingError):
    """The path holds no capture log: nothing at all, no Delta table, or a Delta table that is none of ours."""


class StreamMissingError(MissingError):
    """The log has no stream of this name. The message lists those it has."""


class LogFormatError(TimelyError):
    """The log is of a format version, or uses table features, that this version cannot read.

    Upgrade the library, or rewrite the table without the feature that the message names.
    """


class NegativeMultiplicityError(TimelyError):
    """A collection would contain a row fewer than zero times. What was captured retracts what it never added.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    data, diff : object, optional
        The row, and its multiplicity.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        data: object = None,
        diff: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(data=data, diff=diff)

    @property
    def data(self) -> object:
        """Row concerned."""
        return self.context.get("data")

    @property
    def diff(self) -> object:
        """Its multiplicity."""
        return self.context.get("diff")


class StorageError(TimelyError):
    """The storage of a log could not be read or written.

    Where ``determinate`` is true, a write surely did not happen and may be tried again. Where it is
    false, it may have happened: read the log again to find out; micro-batches do so by themselves
    when they are repeated.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    determinate : bool
        Whether the write surely did not happen.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        determinate: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self.context.setdefault("determinate", determinate)

    @property
    def determinate(self) -> bool:
        """Whether the write surely did not happen."""
        return bool(self.context.get("determinate", False))


class WaitTimeoutError(TimelyError, TimeoutError):
    """A log did not come as far as was waited for, in the time that was given. Nothing was done.

    Wait longer, or find out which stream holds the frontier back.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    frontier : object, optional
        How far it was.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        frontier: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(frontier=frontier)

    @property
    def frontier(self) -> object:
        """How far it was."""
        return self.context.get("frontier")


class DataLossError(StorageError):
    """A file that the log names is missing or corrupt.

    Restore the file. A read that shall go on without it says so with ``failOnDataLoss=false``.
    """


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
