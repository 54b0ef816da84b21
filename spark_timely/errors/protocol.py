"""Errors of streams and graphs that break a rule of the protocol."""

from __future__ import annotations

from collections.abc import Mapping

from spark_timely.errors.base import TimelyError

__all__ = [
    "CyclicSummaryError",
    "NegativeCountError",
    "ProtocolError",
    "UnheldCapabilityError",
]


class ProtocolError(TimelyError):
    """A captured stream breaks a rule of the capture protocol.

    Nothing was written; or, on reading, the log was written by something that does not check.
    """


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
