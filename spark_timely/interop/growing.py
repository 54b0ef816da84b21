"""Read a file that may still grow, and notice when it is no longer the one that was begun.

A producer that is started again truncates its file and writes another run over it. Whoever went on reading
at the old place would get the end of that run behind the beginning of the first one.

Invariants
----------
1. What is given out follows, in one and the same file, what was given out before: what was read last is
   compared once more after each read, so that no moment is left in which it could have been replaced.
"""

from __future__ import annotations

import os

from spark_timely.errors import CaptureFormatError, shown

__all__ = ["GrowingFile"]

_COMPARED = 64 << 10
"""Bytes before each read that are compared once more; costs a hundredth of what reading costs."""


class GrowingFile:
    """Bytes of a file, from its beginning; 0 where there are none for now.

    Parameters
    ----------
    path : str

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "x"
    >>> _ = path.write_text("abc")
    >>> buffer = memoryview(bytearray(8))
    >>> with GrowingFile(str(path)) as file:
    ...     n = file.readinto(buffer)
    ...     _ = path.write_text("xyz!")  # another run
    ...     try:
    ...         file.readinto(buffer)
    ...     except CaptureFormatError as error:
    ...         n, error.position
    (3, 3)
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._position = 0
        self._last = b""

    def __enter__(self) -> GrowingFile:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer from its beginning; return how many bytes.

        Raises
        ------
        CaptureFormatError
            If the file was truncated, or written anew.
        """
        n = self._file.readinto(buffer) or 0
        # After the read: a file that is replaced later does not matter for what was read.
        size = os.fstat(self._file.fileno()).st_size
        if size < self._position + n:
            raise self._replaced(found=f"it cut to {size} bytes")
        if n:
            self._compare()
            self._position += n
            self._last = (self._last + bytes(buffer[max(0, n - _COMPARED) : n]))[-_COMPARED:]
        return n

    def _compare(self) -> None:
        """Compare what was read last with what the file has in its place now."""
        here = self._file.tell()
        self._file.seek(self._position - len(self._last))
        found = self._file.read(len(self._last))
        self._file.seek(here)
        if found != self._last:
            raise self._replaced(found="other bytes in the place of those read before")

    def check_place(self) -> None:
        """Refuse to wait for a file of which the name is another's by now, or nobody's: it will not grow.

        Raises
        ------
        CaptureFormatError
        """
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            raise self._replaced(found="it gone") from None
        mine = os.fstat(self._file.fileno())
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise self._replaced(found="another file in its place")

    def _replaced(self, *, found: str) -> CaptureFormatError:
        msg = f"could not go on reading {shown(self.path)} at byte={self._position}: found {found}"
        hint = "import it again: what the log has is compared then; another capture needs another stream"
        return CaptureFormatError(msg, hint=hint, position=self._position)
