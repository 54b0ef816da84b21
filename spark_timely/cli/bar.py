"""A progress bar on standard error, where that is a terminal; exact, because what is to be done is known."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from spark_timely.cli.output import size_text

__all__ = ["Bar"]

_WIDTH = 24
_EVERY_S = 0.1


class Bar:
    r"""Shows how much of a known amount is done.

    Parameters
    ----------
    what : str
    total : int or None
        None where it is not known how much will come.
    out : text stream
    clock : callable
        Seconds.

    Examples
    --------
    >>> import io
    >>> class Terminal(io.StringIO):
    ...     def isatty(self):
    ...         return True
    >>> out = Terminal()
    >>> with Bar("import", 1000, out=out, clock=iter(range(9)).__next__) as bar:
    ...     bar.add(500)
    >>> out.getvalue().split("\r")[1]
    'import ############------------  50% of 1.0 kB, 500 B/s'
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        *,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        text: Callable[[int], str] = size_text,
    ) -> None:
        self._what = what
        self._total = total
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._text = text
        self._shown = self._out.isatty()
        self._done = 0
        self._begun = self._last = clock() if self._shown else 0.0
        self._length = 0

    def add(self, amount: int) -> None:
        """Count what was done, and show it now and then."""
        self._done += amount
        if not self._shown:
            return
        now = self._clock()
        if now - self._last < _EVERY_S and self._done != self._total:
            return
        self._last = now
        speed = self._text(int(self._done / max(now - self._begun, 1e-9)))
        if self._total:
            share = min(1.0, self._done / self._total)
            full = int(share * _WIDTH)
            line = f"{'#' * full}{'-' * (_WIDTH - full)} {share:4.0%} of {self._text(self._total)}, {speed}/s"
        else:
            line = f"{self._text(self._done)}, {speed}/s"
        self._write(f"{self._what} {line}")

    def _write(self, line: str) -> None:
        self._out.write("\r" + line.ljust(self._length))
        self._out.flush()
        self._length = len(line)

    def __enter__(self) -> Bar:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the line empty for what follows."""
        if self._length:
            self._write("")
            self._out.write("\r")
            self._out.flush()
