"""Errors of logs and of those who share them: what is not there, cannot be read, or was done by another."""

from __future__ import annotations

from collections.abc import Mapping

from spark_timely.errors.base import TimelyError

__all__ = [
    "DataLossError",
    "LogDamagedError",
    "LogFormatError",
    "LogMissingError",
    "MissingError",
    "OwnershipError",
    "PlanMismatchError",
    "RolledBackError",
    "StorageError",
    "StreamMissingError",
    "UpperMismatchError",
    "WaitTimeoutError",
]


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


class OwnershipError(TimelyError):
    """The stream is owned by another query or producer; nothing was written.

    Choose another stream name, or stop the owner and take the stream over.
    """


class PlanMismatchError(OwnershipError):
    """The output of a dataflow was made by another plan, under the same name; nothing was written.

    Start the dataflow as it was, give the changed one another name and other outputs, or, where the change is meant,
    name the old plan in ``capture(…, replaces=…)``.

    Parameters
    ----------
    message, hint, context
        As in `TimelyError`.
    expected, found : object, optional
        Fingerprint of the dataflow's own plan, and the one in the log.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        context: Mapping[str, object] | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        super().__init__(message, hint=hint, context=context)
        self._with(expected=expected, found=found)

    @property
    def expected(self) -> object:
        """Fingerprint of the dataflow's own plan."""
        return self.context.get("expected")

    @property
    def found(self) -> object:
        """Fingerprint in the log."""
        return self.context.get("found")


class RolledBackError(TimelyError):
    """A query and its log do not belong together any more: one of the two went back.

    Either the checkpoint was restored or copied, and plans a micro-batch again that the log has; or the log was
    deleted, replaced, or restored to an earlier state. Nothing was written. The message says which, and
    ``docs/refused-after-restart.md`` how to continue without loss.
    """


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


class DataLossError(StorageError):
    """A file that the log names is missing or corrupt.

    Restore the file. A read that shall go on without it says so with ``failOnDataLoss=false``.
    """


class LogDamagedError(StorageError):
    """An entry of the table's log, or a checkpoint of it, is empty, cut or not what it should be: after a power cut.

    Nothing was done: what the entry did is not known, so nothing may be read past it or written behind it. See what
    ``spark-timely repair LOG`` says about it.
    """
