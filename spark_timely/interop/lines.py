"""Lines of JSON from a file that may still grow.

Invariants
----------
1. A line is given out when it is whole: it has its end, or it is an object, of which no beginning is one.
2. Memory is bounded by the length of one line, and that by `MAX_EVENT_BYTES`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from spark_timely.errors import CaptureFormatError
from spark_timely.interop.reader import MAX_EVENT_BYTES, Source

__all__ = ["Line", "Lines"]

_BLOCK = 1 << 20


class Line(NamedTuple):
    """A line of a file.

    Parameters
    ----------
    number : int
        From 1.
    position : int
        Where it begins, in bytes.
    data : bytes
        Without its end.
    """

    number: int
    position: int
    data: bytes


class Lines:
    r"""Gives the lines of a source, block by block, but for empty ones.

    Parameters
    ----------
    source : Source
    most_bytes : int
        Longest line.

    Examples
    --------
    >>> import io
    >>> lines = Lines(io.BytesIO(b'{"a": 1}\n\n{"b"'))
    >>> [tuple(line) for line in lines.block()], lines.block(), lines.unfinished
    ([(1, 0, b'{"a": 1}')], [], 4)
    """

    def __init__(self, source: Source, *, most_bytes: int = MAX_EVENT_BYTES) -> None:
        self._source = source
        self._most = most_bytes
        self._buffer = memoryview(bytearray(_BLOCK))
        self._rest: list[bytes] = []
        self.number = 1
        """Of the line that comes next."""
        self.position = 0
        """Where it begins."""
        self.unfinished = 0
        """Bytes of it that have come."""
        self._only_end = False  # the line at hand was given out: all that may follow on it is its end

    def block(self) -> list[Line]:
        """Return lines that are whole; none where the source has nothing for now.

        Raises
        ------
        CaptureFormatError
            If a line is longer than any.
        """
        while n := self._source.readinto(self._buffer):
            head, end, tail = bytes(self._buffer[:n]).rpartition(b"\n")
            if not end:
                self._keep(tail)
                continue
            whole = b"".join([*self._rest, head])
            self._rest, self.unfinished = [], 0
            lines = []
            for data in whole.split(b"\n"):
                self._check_end(data)
                self._only_end = False
                if data.strip():
                    lines.append(Line(self.number, self.position, data))
                self.number += 1
                self.position += len(data) + 1
            self._keep(tail)
            if lines:
                return lines
        return self._last()

    def _keep(self, part: bytes) -> None:
        if part:
            self._rest.append(part)
        self.unfinished += len(part)
        if self.unfinished > self._most:
            msg = (
                f"could not read line {self.number} of a file of JSON lines at byte={self.position}: found more than"
                f" {self._most} bytes without an end"
            )
            raise CaptureFormatError(msg, hint="a line has one event", position=self.position)

    def _last(self) -> list[Line]:
        """Return a last line that has no end and is whole all the same."""
        data = b"".join(self._rest)
        self._check_end(data)
        self._rest = [data] if data else []
        if not data.rstrip().endswith(b"}"):
            return []
        try:
            if not isinstance(json.loads(data), dict):
                return []
        except (ValueError, RecursionError):
            return []
        line = Line(self.number, self.position, data)
        self.position += len(data)
        self._rest, self.unfinished, self._only_end = [], 0, True
        return [line]

    def _check_end(self, data: bytes) -> None:
        """Refuse more on a line that was given out: had it come at once, it would be no line of JSON."""
        if self._only_end and data.strip():
            msg = (
                f"could not read line {self.number} of a file of JSON lines at byte={self.position}: found more behind"
                " its object"
            )
            raise CaptureFormatError(msg, hint="a line has one event", position=self.position)
