"""A wall clock that moves only when a test sets it."""

from __future__ import annotations

from spark_timely.errors import InvalidUsageError

__all__ = ["ManualClock"]


class ManualClock:
    """Stand in for ``time.time`` wherever the library takes a ``clock``.

    Parameters
    ----------
    now : float
        First reading, in seconds since the epoch (UTC).

    Examples
    --------
    >>> clock = ManualClock(now=10.0)
    >>> clock.advance(2.5)
    >>> clock()
    12.5
    """

    __slots__ = ("_now",)

    def __init__(self, *, now: float = 0.0) -> None:
        self._now = float(now)

    def __call__(self) -> float:
        """Return the present reading, in seconds.

        Examples
        --------
        >>> ManualClock(now=3.0)()
        3.0
        """
        return self._now

    def advance(self, seconds: float, /) -> None:
        """Move the clock on.

        Parameters
        ----------
        seconds : float
            How far, at least 0.

        Raises
        ------
        InvalidUsageError
            If `seconds` is negative: a test that wants a clock that was set back says so with `set`.

        Examples
        --------
        >>> clock = ManualClock()
        >>> clock.advance(1)
        >>> clock()
        1.0
        """
        if seconds < 0:
            msg = f"could not advance the clock: found seconds={seconds!r}"
            raise InvalidUsageError(
                msg,
                hint="use set() for a clock that is set back",
            )
        self._now += float(seconds)

    def set(self, now: float, /) -> None:
        """Put the clock to a reading, also an earlier one.

        Parameters
        ----------
        now : float
            Seconds since the epoch.

        Examples
        --------
        >>> clock = ManualClock(now=5.0)
        >>> clock.set(1.0)
        >>> clock()
        1.0
        """
        self._now = float(now)
