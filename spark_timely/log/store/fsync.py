"""Make files and their names on a local disk outlast a power cut.

A file has two parts that the system writes at its leisure: what is in it, and its name in its folder. Each is on the
disk only after a call for it.

Invariants
----------
1. After a call returns, what it was asked for is on the disk, or it was told that this place cannot do so.
"""

from __future__ import annotations

import errno
import os

__all__ = ["UNSUPPORTED", "flush_file", "flush_folder"]

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system says that cannot flush a file or a folder: network mounts, volumes."""


def flush_file(path: str, /) -> None:
    """Put what is in a file on the disk.

    Raises
    ------
    OSError
        If it is not there, or the disk failed. See `UNSUPPORTED`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     flush_file(file.name)
    """
    _flush(path, os.O_RDONLY)


def flush_folder(path: str, /) -> None:
    """Put the names in a folder on the disk: those that came, and that others went.

    Raises
    ------
    OSError
        If it is not there, or the disk failed. See `UNSUPPORTED`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flush_folder(folder)
    """
    _flush(path, os.O_RDONLY | os.O_DIRECTORY)


def _flush(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
