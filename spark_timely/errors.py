"""The error classes of the library: when each is raised, and how to react.

All modules raise them, and the command line shows them (`cli.command`). `shown` and `described` put values and errors
of other libraries into the text of one.

Every text reads ``[<condition>] could not <attempt>: <what was found, name=value>`` and, after `` — hint: ``,
what to do. It is one line, because Spark shows its users the last line of a traceback only. The condition is made of
the class's name; docs/reference/errors.md says of each what to do.

Invariants
----------
1. Everything that the library raises on purpose is a `TimelyError`.
2. Every error survives pickling with message, hint and context, since errors cross from Spark's
   workers to its driver.
3. ``str(error)`` is one line, begins with its condition, and needs no other line to be understood.
4. A value of an error is declared once, in its class: it is a keyword of the constructor, an attribute, and in the
   context.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import ClassVar, Self, overload

from spark_timely.masking import mask_exception, masked, masked_value

__all__ = [
    "CanceledError",
    "CaptureFormatError",
    "ClosedError",
    "CyclicSummaryError",
    "DataLossError",
    "ForeignChangeError",
    "InvalidBoundsError",
    "InvalidOptionError",
    "InvalidShapeError",
    "InvalidUsageError",
    "LateDataError",
    "LogDamagedError",
    "LogFormatError",
    "LogMissingError",
    "MissingError",
    "MultiplicityOverflowError",
    "NegativeCountError",
    "NegativeMultiplicityError",
    "NotBeyondError",
    "OperatorError",
    "OwnershipError",
    "PlanMismatchError",
    "ProtocolError",
    "ResultTooLargeError",
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
    "described",
    "kind_of",
    "shown",
]

_MAX_VALUE_CHARACTERS = 200
# Of a long text the end is kept too: that is where libraries say their cause.
_END_CHARACTERS = 80


def shown(value: object, /) -> str:
    """Render a value for a message: its ``repr`` without secrets, above 200 characters without its middle.

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
    >>> shown("x" * 300)[118:125], shown("x" * 300)[-18:]
    ('xx … xx', "' (302 characters)")
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a user's class
        text = f"<{type(value).__name__} that cannot be shown>"
    text = masked(" ".join(text.splitlines()))
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return text
    begin = text[: _MAX_VALUE_CHARACTERS - _END_CHARACTERS]
    return f"{begin} … {text[-_END_CHARACTERS:]} ({len(text)} characters)"


def described(error: BaseException, /) -> str:
    """Return what an error says, with its type unless it is one of ours; also where it cannot say anything.

    Parameters
    ----------
    error : BaseException
        Of a library, or of a user's function. Not modified.

    Returns
    -------
    str

    Examples
    --------
    >>> described(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    if isinstance(error, TimelyError):
        return error.message
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of a user's class
        text = "its text cannot be shown"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def kind_of(value: object, /) -> str:
    """Return the type of a value as readers know it: with the library that it is from.

    Parameters
    ----------
    value : object
        What was found where another type was wanted, perhaps one of the same name.

    Returns
    -------
    str

    Examples
    --------
    >>> import pyarrow as pa
    >>> kind_of(pa.table({})), kind_of(5)
    ('pyarrow.Table', 'int')
    """
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    return kind.__qualname__ if library == "builtins" else f"{library}.{kind.__qualname__}"


class _Value:
    """A value of an error, kept in its context under the name of the attribute.

    Parameters
    ----------
    doc : str
        What it is.
    """

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, error: None, kind: type) -> Self: ...
    @overload
    def __get__(self, error: TimelyError, kind: type) -> object: ...
    def __get__(self, error: TimelyError | None, kind: type) -> object:
        return self if error is None else error.context.get(self._name)


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
    **values : object
        Those that the class declares; None is left out.

    Attributes
    ----------
    message : str
        The message without the hint.
    hint : str or None
        The hint alone.
    context : dict
        Values concerned, by name.
    condition : str
        Name of the class of errors, as Spark writes its own: ``TIMELY_LATE_DATA``.
    sqlstate : str
        Its SQLSTATE.

    Examples
    --------
    >>> error = LogMissingError("could not read log 'a': found nothing", hint="check the path", context={"path": "a"})
    >>> str(error)
    "[TIMELY_LOG_MISSING] could not read log 'a': found nothing — hint: check the path"
    >>> error.context["path"], error.sqlstate
    ('a', '42K03')
    """

    condition: ClassVar[str] = "TIMELY_ERROR"
    sqlstate: ClassVar[str] = "58000"

    _values: tuple[str, ...] = ()
    _hint: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        """Name the condition, and list the values that the class declares, its families' first."""
        words = re.findall("[A-Z][a-z]+", cls.__name__.removeprefix("Timely").removesuffix("Error"))
        cls.condition = "_".join(["TIMELY", *(word.upper() for word in words)])
        cls._values += tuple(name for name, value in vars(cls).items() if isinstance(value, _Value))
        _sign(cls)

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        **values: object,
    ) -> None:
        unknown = values.keys() - self._values
        if unknown:
            msg = f"{type(self).__name__} has no value {min(unknown)!r}"
            raise TypeError(msg)
        message = masked(message)
        super().__init__(message)
        self.message = message
        hint = self._hint if hint is None else hint
        self.hint = None if hint is None else masked(hint)
        self.context: dict[str, object] = {name: masked_value(value) for name, value in (context or {}).items()}
        self.context.update({name: masked_value(value) for name, value in values.items() if value is not None})
        # What is being handled becomes the cause, and is shown with this error.
        mask_exception(sys.exception())

    def locate(self, where: str, **values: object) -> None:
        """Add to the message where it was, and values for programs; for a caller that knows the place."""
        self.message = f"{self.message}, {masked(where)}"
        self.args = (self.message,)
        self.context.update({name: masked_value(value) for name, value in values.items()})

    def relabel(self, found: str, name: str) -> None:
        """Give something in the message the name that the reader knows; for a caller that knows both."""
        self.message = self.message.replace(found, name)
        self.args = (self.message,)

    def __str__(self) -> str:
        """Render condition, message and hint on one line."""
        text = f"[{self.condition}] {self.message}"
        if self.hint is not None:
            text = f"{text} — hint: {self.hint}"
        lines = text.splitlines()
        return text if len(lines) == 1 else " ".join(line.strip() for line in lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own way calls cls(*args), which loses keyword-only values.
        return _rebuild, (type(self), self.message, self.hint, self.context)


def _sign(kind: type[TimelyError]) -> None:
    """Show the values that a class declares among what its constructor takes, for help() and editors."""
    taken = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if taken[-1].kind is inspect.Parameter.VAR_KEYWORD:
        keyword = inspect.Parameter.KEYWORD_ONLY
        taken[-1:] = [inspect.Parameter(name, keyword, default=None, annotation="object") for name in kind._values]
    kind.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]


_sign(TimelyError)


def _rebuild(kind: type[TimelyError], message: str, hint: str | None, context: dict[str, object]) -> TimelyError:
    error = kind.__new__(kind, message)
    TimelyError.__init__(error, message, hint=hint, context=context)
    return error


class TimelyInternalError(TimelyError):
    """An internal error: an invariant of the library is broken. Please report it.

    Parameters
    ----------
    message, context
        As in `TimelyError`.
    hint : str, optional
        Asks for a report if not given.
    """

    sqlstate = "XX000"
    _hint = "report this bug of spark-timely, with this message"


class InvalidUsageError(TimelyError, ValueError):
    """The caller broke a precondition; nothing was done. Correct the call."""

    sqlstate = "22023"


class InvalidOptionError(InvalidUsageError):
    """An option is unknown, missing, given twice, in conflict with another, or has a value that does not fit.

    The message names the option and, where one is near, the known name. Correct the option.
    """

    sqlstate = "42616"


class InvalidShapeError(InvalidUsageError):
    """Arrays differ in length, or in the number of coordinates of their times. Correct the call."""


class InvalidBoundsError(InvalidUsageError):
    """A range ends before it begins. Correct the bounds."""

    lower = _Value("Lower bound, inclusive.")
    upper = _Value("Upper bound, exclusive.")


class NotBeyondError(InvalidUsageError):
    """A time is not beyond the frontier that it must be beyond. Use a time that is."""

    time = _Value("Time that was given.")
    frontier = _Value("Frontier that the time must be beyond.")


class LateDataError(NotBeyondError):
    """A row to be captured has a time that its stream has already declared complete.

    Nothing was written. Say with the option ``lateData`` what shall happen to such rows, or raise
    ``lateness``.
    """

    sqlstate = "22000"


class SinceViolationError(InvalidUsageError):
    """A read begins at a time that compaction has already merged with later ones.

    Read as of a time beyond ``since``.
    """

    as_of = _Value("Frontier of the read.")
    since = _Value("Frontier from which the log can be read.")


class ClosedError(InvalidUsageError):
    """The log or the stream is complete: nothing can be appended any more. Write to another log."""

    sqlstate = "55000"


class SchemaMismatchError(InvalidUsageError):
    """Rows do not fit the schema of the log: a column is missing, unknown, of another type, or null.

    Nothing was written. The message names the column. Correct the rows, or add a new column with ``mergeSchema=true``.
    """

    sqlstate = "42KDG"


class ProtocolError(TimelyError):
    """A captured stream breaks a rule of the capture protocol.

    Nothing was written: correct what the message names. On reading, the log was written by something that does not
    check: see what ``spark-timely verify LOG`` says.
    """

    sqlstate = "22000"


class UnheldCapabilityError(ProtocolError):
    """A message or a progress statement uses a time at which its stream holds no capability.

    Nothing was written. Use a time that is beyond the stream's frontier.
    """

    time = _Value("Time that was used.")
    held = _Value("Times at which a capability is held.")


class NegativeCountError(ProtocolError):
    """A progress statement gives up more capabilities than are held.

    Nothing was written. Give up what the stream holds; the context says which count would be negative.
    """

    location = _Value("Stream or operator port.")
    time = _Value("Time of the count.")
    count = _Value("Count that would result.")


class CyclicSummaryError(ProtocolError):
    """A graph has a cycle along which times do not advance, so that no frontier could ever pass it.

    Nothing was built. Give one operator of the cycle a path summary that adds to a coordinate of the
    time, as the feedback of a loop does.
    """

    sqlstate = "42P19"

    path = _Value("Ports along the cycle, the first one repeated at the end.")


class MissingError(TimelyError, LookupError):
    """Something that was named does not exist. Check the name."""

    sqlstate = "42704"


class LogMissingError(MissingError):
    """The path holds no capture log: nothing at all, no Delta table, or another Delta table.

    Check the path; to begin a log there, capture into it or call `create_log`.
    """

    sqlstate = "42K03"


class StreamMissingError(MissingError):
    """The log has no stream of this name. The message lists those it has: choose one of them."""


class LogFormatError(TimelyError):
    """The log is of a format version, or uses table features, that this version cannot read.

    Upgrade the library, or rewrite the table without the feature that the message names.
    """

    sqlstate = "0A000"


class UpperMismatchError(TimelyError):
    """An append expected another upper than the stream has: somebody else was first.

    This is normal where several write. Nothing was written; read the upper again, drop the updates
    that are not beyond it, and retry.
    """

    sqlstate = "40001"

    expected = _Value("Upper that was expected.")
    current = _Value("Upper that was found.")


class OwnershipError(TimelyError):
    """The stream is owned by another query or producer; nothing was written.

    Choose another stream name, or stop the owner and take the stream over.
    """

    sqlstate = "55006"


class PlanMismatchError(OwnershipError):
    """The output of a dataflow was made by another plan, under the same name; nothing was written.

    Start the dataflow as it was, give the changed one another name and other outputs, or, where the change is meant,
    name the old plan in ``capture(…, replaces=…)``.
    """

    expected = _Value("Fingerprint of the dataflow's own plan.")
    found = _Value("Fingerprint in the log.")


class RolledBackError(TimelyError):
    """A query and its log do not belong together any more: one of the two went back.

    Either the checkpoint was restored or copied, and plans a micro-batch again that the log has; or the log was
    deleted, replaced, or restored to an earlier state. Nothing was written. The message says which, and
    ``docs/how-to/refused-after-restart.md`` how to continue without loss. Of a compute instance: its command log is
    lost, or older than what the instance has written.
    """

    sqlstate = "55000"


class ForeignChangeError(TimelyError):
    """Another program changed rows of a log: deleted, updated or inserted some, and nobody undid it.

    Nothing is delivered from it, and nothing of it is merged, forgotten or deleted, until it is undone: restore the
    table to the version that the message names. Maintenance by others that changes no rows, such as OPTIMIZE, is never
    refused.
    """

    sqlstate = "55000"

    changed_at = _Value("Versions of the table in which rows were changed.")


class WaitTimeoutError(TimelyError, TimeoutError):
    """A log did not come as far as was waited for, in the time that was given. Nothing was done.

    Wait longer, or find out which stream holds the frontier back.
    """

    sqlstate = "HYT00"

    frontier = _Value("How far it was.")


class StorageError(TimelyError):
    """The storage of a log could not be read or written.

    Where ``determinate`` is true, a write surely did not happen and may be tried again. Where it is
    false, it may have happened. To repeat it is safe for a micro-batch, for an append with a ``batch``, and for any
    append on the same writer: what happened is found. Otherwise read the log again to find out.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    determinate : bool
        Whether the write surely did not happen.
    """

    sqlstate = "58030"

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


class DataLossError(StorageError):
    """A file that the log names is missing or corrupt.

    Restore the file. To read without it, set ``failOnDataLoss=false``.
    """

    sqlstate = "XX001"


class LogDamagedError(StorageError):
    """The files that a log stands on are damaged, as after a power cut, or an overwrite by another program.

    An entry of the table's log or a checkpoint of it is empty, cut or missing, a file of progress is broken, or all
    progress is gone.

    Nothing was done: what the entry did is not known, so nothing may be read past it or written behind it. See what
    ``spark-timely repair LOG`` says about it.
    """

    sqlstate = "XX001"


class CaptureFormatError(TimelyError):
    """Bytes or lines from outside are not what was declared: damaged, hostile, or of other types.

    Nothing of the event that the message names was taken. Correct the declared types, or the file.
    """

    sqlstate = "22P03"

    event = _Value("Number of the event.")
    position = _Value("Position of the offending byte.")


class NegativeMultiplicityError(TimelyError):
    """A collection would contain a row fewer than zero times: what was captured retracts what it never added.

    Correct what produces the changes. The context names the row.
    """

    sqlstate = "22000"

    data = _Value("Row concerned.")
    diff = _Value("Its multiplicity.")


class MultiplicityOverflowError(TimelyError, OverflowError):
    """A collection would contain a row more often than 64 bits count.

    Correct what produces the changes. The context names the row.
    """

    sqlstate = "22003"

    data = _Value("Row concerned.")
    diff = _Value("Its multiplicity.")


class ResultTooLargeError(TimelyError):
    """An answer has more bytes than its caller allows, or takes more to read. Nothing of it was given.

    Ask for fewer rows or columns, or allow more with ``max_bytes``, or ``scan_limit`` for what is read.
    """

    sqlstate = "54000"

    size_bytes = _Value("Bytes of the answer, as far as it was made.")
    limit_bytes = _Value("Bytes that are allowed.")
    limit_name = _Value("Which limit it is: ``max_bytes``, ``scan_limit`` or ``max_rows``.")


class CanceledError(TimelyError):
    """The caller canceled what it had begun. Nothing of the answer was given; begin it once more to get it."""

    sqlstate = "57014"


class OperatorError(TimelyError):
    """A function given to a dataflow failed, or gave back what it must not. Nothing of these times was written.

    Correct the function; started again, the dataflow continues where its outputs are.
    """

    sqlstate = "38000"

    operator = _Value("Name of the operator.")
    lower = _Value("Lower bound of the times, inclusive.")

    upper = _Value("Upper bound of the times, exclusive.")
