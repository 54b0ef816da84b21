"""The live files of a table, kept up to date by what each commit adds and removes.

Invariants
----------
1. An index that was given out never changes: what comes later is written behind its end.
2. To add costs what is added, to remove costs what there is; whatever the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spark_timely.log.files.format import EVENTS
from spark_timely.log.files.index import FileIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LiveFiles"]

_FIRST_ROOM = 64


class LiveFiles:
    """The files of one snapshot, by kind of event.

    Parameters
    ----------
    arity : int
        Coordinates of the log's times.

    Examples
    --------
    >>> len(LiveFiles(1)), "a.parquet" in LiveFiles(1), len(LiveFiles(1).index("message"))
    (0, False, 0)
    """

    def __init__(self, arity: int) -> None:
        self._arity = arity
        self._parts = {event: _Part(arity) for event in EVENTS}

    def __len__(self) -> int:
        return sum(len(part.places) for part in self._parts.values())

    def __contains__(self, path: object) -> bool:
        return any(path in part.places for part in self._parts.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(int(part.index().sizes.sum()) for part in self._parts.values())

    def index(self, event: str) -> FileIndex:
        """Return the files of `message`, `progress`, `dead` or `since` rows."""
        return self._part(event).index()

    def add(self, files: FileIndex) -> None:
        """Take files in; one that is known by its path is replaced."""
        self.remove(path for path in files.paths.tolist() if path in self)
        for event in dict.fromkeys(files.events.tolist()):  # one turn per kind of event
            self._part(event).add(files.of_event(event))

    def remove(self, paths: Iterable[str]) -> None:
        """Forget files; a path that is not known means nothing."""
        gone = set(paths)
        if gone:
            for part in self._parts.values():
                part.remove(gone)

    def _part(self, event: str) -> _Part:
        return self._parts.setdefault(event, _Part(self._arity))


class _Part:
    """Files of one kind of event, in arrays with room at their ends."""

    def __init__(self, arity: int) -> None:
        self.places: dict[str, int] = {}
        self._room = _arrays(FileIndex.empty(arity), _FIRST_ROOM)
        self._index: FileIndex | None = None

    def index(self) -> FileIndex:
        if self._index is None:
            n = len(self.places)
            self._index = FileIndex(**{name: array[:n] for name, array in self._room.items()})
        return self._index

    def add(self, files: FileIndex) -> None:
        n = len(self.places)
        if n + len(files) > len(self._room["sizes"]):
            self._room = _arrays(self.index(), 2 * (n + len(files)))
        for name, array in self._room.items():
            array[n : n + len(files)] = getattr(files, name)
        self.places.update(zip(files.paths.tolist(), range(n, n + len(files)), strict=True))
        self._index = None

    def remove(self, paths: set[str]) -> None:
        found = [self.places[path] for path in paths if path in self.places]
        if not found:
            return
        left = self.index().select(np.delete(np.arange(len(self.places)), found))
        # Into new arrays: those before belong to whoever was given an index.
        self._room = _arrays(left, max(_FIRST_ROOM, 2 * len(left)))
        self.places = {path: place for place, path in enumerate(left.paths.tolist())}
        self._index = None


def _arrays(files: FileIndex, room: int) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the columns of an index, with room for so many files."""
    copies = {}
    for name in FileIndex.__slots__:  # a dozen
        column = getattr(files, name)
        copies[name] = np.empty((room, *column.shape[1:]), dtype=column.dtype)
        copies[name][: len(files)] = column
    return copies
