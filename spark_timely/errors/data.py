"""Errors of what comes from outside: bytes, rows of collections, functions given to dataflows."""

from __future__ import annotations

from collections.abc import Mapping

from spark_timely.errors.base import TimelyError

__all__ = [
    "CaptureFormatError",
    "NegativeMultiplicityError",
    "OperatorError",
]


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
