"""Files of an export: they have their names once all of them are whole, and never before.

Invariants
----------
1. Whoever sees one of the files can soon see all, and what is in it stays: names are given after all is on disk.
2. A file that is there is never written over, also if it came while the export ran.
3. An export that fails leaves nothing. What one leaves that was killed has no name that counts, and goes with
   the next export that comes to its end.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
from pathlib import Path
from typing import BinaryIO

from spark_timely.errors import InvalidUsageError, shown

__all__ = ["WholeFiles"]

_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}


class WholeFiles:
    """Opens files for writing, all for one export.

    Parameters
    ----------
    what : str
        What is exported, for errors.
    folder : path
        Made, if it is not there.
    names : list of str

    Attributes
    ----------
    paths : list of Path
        What the files will be called.
    files : list of binary file

    Raises
    ------
    InvalidUsageError
        If one of them is there, or a name is none of a file.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with WholeFiles("log 'x'", folder, ["a", "b"]) as whole:
    ...     for file in whole.files:
    ...         _ = file.write(b"...")
    ...     before = [path.exists() for path in whole.paths]
    ...     whole.finish()
    >>> before, sorted(os.listdir(folder))
    ([False, False], ['a', 'b'])
    """

    def __init__(self, what: str, folder: str | os.PathLike[str], names: list[str]) -> None:
        self._what = what
        self._folder = Path(folder)
        for name in names:
            if os.path.basename(name) != name or "\0" in name:
                msg = f"could not export {what}: found name={shown(name)}"
                raise InvalidUsageError(msg, hint="give the beginning of a file's name, without directories")
        self.paths = [self._folder / name for name in names]
        for path in self.paths:
            if os.path.lexists(path):
                raise self._there(path)
        token = secrets.token_hex(4)
        self._partial = [path.with_name(f".{path.name}.{token}.partial") for path in self.paths]
        self.files: list[BinaryIO] = []

    def _there(self, path: Path) -> InvalidUsageError:
        msg = f"could not export {self._what}: found {str(path)!r}"
        return InvalidUsageError(msg, hint="give an empty directory, or another --name")

    def __enter__(self) -> WholeFiles:
        """Open all files."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for partial in self._partial:
                self.files.append(partial.open("xb"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Close all files, and leave none that was not finished."""
        for file in self.files:
            # What did not reach the disk belongs to a file that goes; a full disk was told by a write, or by `finish`.
            with contextlib.suppress(OSError):
                file.close()
        for partial in self._partial:
            partial.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give all files their names.

        Raises
        ------
        InvalidUsageError
            If one of the names is taken by now.
        OSError
            If the disk is full.
        """
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        named: list[Path] = []
        try:
            for partial, path in zip(self._partial, self.paths, strict=True):
                self._name(partial, path)
                named.append(path)
        except BaseException:
            for path in named:
                path.unlink()
            raise
        self._sync_folder()
        for path in self.paths:  # of others that were killed; who is under way still can no longer have the name
            for left in self._folder.glob(f".{glob.escape(path.name)}.*.partial"):
                left.unlink(missing_ok=True)

    def _name(self, partial: Path, path: Path) -> None:
        try:
            os.link(partial, path)
        except (FileExistsError, FileNotFoundError):
            raise self._there(path) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(path):
                raise self._there(path) from None
            partial.rename(path)

    def _sync_folder(self) -> None:
        """Bring the names to the disk, where a system lets directories be opened."""
        with contextlib.suppress(OSError):
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
