"""Run files of an index, mapped into memory once per process and ready to be searched."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from spark_timely.trace.folder import delete, newest_spine
from spark_timely.trace.run import DamagedRunError, Run

if TYPE_CHECKING:
    from spark_timely.time.antichain import Antichain
    from spark_timely.trace.spine import RunFile

__all__ = ["Index", "mapped_run"]

# Runs that a process keeps mapped: what is looked into rarely is mapped again.
_MOST_MAPPED: Final = 256


@dataclass(frozen=True, slots=True)
class Index:
    """An index opened for look-ups: its folder, its runs and its bounds.

    Attributes
    ----------
    folder : str
    runs : tuple of RunFile
    since : int
        Contents are known as of each time from it on.
    upper : int or None
        It has all updates at times before; None: all.
    events : bool
        Whether times are those of events, which were never moved.
    number : int
        Of its spine.
    lineage : str
        As its spine says.
    """

    folder: str
    runs: tuple[RunFile, ...]
    since: int
    upper: int | None
    events: bool = False
    number: int = 0
    lineage: str = ""

    def newest(self) -> Index | None:
        """Return it as it is by now; None where nothing has followed that has come from it."""
        found = newest_spine(self.folder, None)
        if found is None or found.number <= self.number or found.lineage != self.lineage:
            return None
        return replace(self, runs=found.runs, since=found.since, upper=found.upper, number=found.number)

    def may_tell(self, lo: Antichain) -> bool:
        """Return whether it can tell what is before a frontier.

        Examples
        --------
        >>> from spark_timely.time.antichain import Antichain
        >>> index = Index("/index", (), 5, 9)
        >>> [index.may_tell(Antichain.of(time)) for time in (5, 6, 20)]
        [False, True, True]
        """
        # As of the time before it.
        return self.events or not lo.elements or lo.elements[0][0] > self.since


# By folder and name: the run, and what the file was like when it was mapped.
_mapped: OrderedDict[tuple[str, str], tuple[Run, tuple[int, int, int]]] = OrderedDict()
_lock = Lock()


def mapped_run(folder: str, file: RunFile, lineage: str = "") -> Run:
    """Return a run of the index of a lineage, mapped.

    Raises
    ------
    OSError
        If its file is not there, is damaged, or a run of another index: then it is deleted, so that the index is made
        once more.
    """
    key, path = (folder, file.name), os.path.join(folder, file.name)
    # A file that somebody writes into is no error of memory that is mapped: it would simply be other bytes.
    state = os.stat(path)
    mark = state.st_ino, state.st_size, state.st_mtime_ns
    with _lock:
        found = _mapped.get(key)
        if found is not None and found[1] == mark and found[0].lineage == lineage:
            _mapped.move_to_end(key)
            return found[0]
    try:
        run = Run(path, file.size_bytes, file.checksum, lineage)
        if run.n_rows != file.rows:
            msg = f"{path!r} has {run.n_rows} updates, not {file.rows}"
            raise DamagedRunError(msg)
    except DamagedRunError:
        delete(folder, [file.name])
        raise
    with _lock:
        _mapped[key] = run, mark
        while len(_mapped) > _MOST_MAPPED:
            _mapped.popitem(last=False)
    return run
