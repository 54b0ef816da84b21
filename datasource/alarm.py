"""An alarm: asks the clock of a query for a micro-batch at a moment, although no log moves.

The dataflows of a query run in one process, its clock in another one, through Spark Connect too. Both reach the query's
checkpoint: there the one leaves a file that says when it wants to be called again, and the other looks at it.

Invariants
----------
1. Each setting has a number of its own, which stands in the offset of the micro-batch that it makes: one setting makes
   one micro-batch.
2. A setting of another run means nothing.
3. An alarm rings as soon as either clock of its reader says so: the wall clock, which may be set back, or that of the
   time since the setting was first seen.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from spark_timely.errors import TimelyError
from spark_timely.log.store.storage import FileStorage, open_storage
from spark_timely.masking import masked_logger

__all__ = ["Alarm"]

_log = masked_logger("spark_timely.spark")

# Spark looks at the names that it knows and at no others.
_FILE: Final = "timely-clock"
_UNFINISHED: Final = ".timely-clock"
_VERSION: Final = 1
# A setting for about the moment of the one before it need not be written.
_NEAR_S: Final = 0.05


class Alarm:
    """The alarm of one run of a query.

    Parameters
    ----------
    location : str
        Checkpoint of the query, as Spark was given it.
    run : str
        Which run of the query it is.
    storage_options : mapping, optional
        Credentials for a URL.
    now, wall : callable
        A clock in seconds that never goes back, and the wall clock.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = pathlib.Path(folder, "metadata").write_text("{}")
    >>> alarm, heard = Alarm(folder, "a"), Alarm(folder, "a")
    >>> heard.rung(), alarm.set(0.0), heard.rung()
    (0, True, 1)
    """

    def __init__(
        self,
        location: str,
        run: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._location, self._run = location, run
        self._options = dict(storage_options or {})
        self._now, self._wall = now, wall
        self._opened: FileStorage | None = None
        self._number: int | None = None
        self._due: float | None = None
        self._warned = False
        self._rung = 0
        self._seen: tuple[int, float] = (0, 0.0)

    @property
    def local(self) -> bool:
        """Whether the file costs nothing to look at."""
        try:
            return self._storage.local
        except TimelyError:
            return True

    @property
    def _storage(self) -> FileStorage:
        if self._opened is None:
            self._opened = open_storage(self._location, self._options)
        return self._opened

    def set(self, after_s: float, /) -> bool:
        """Ask for a micro-batch after so many seconds; return False where that cannot be said, after one warning."""
        now = self._now()
        if self._due is not None and now < self._due <= now + after_s + _NEAR_S:
            return True
        try:
            if not self._storage.exists("metadata"):  # Spark has its checkpoint where Python does not see it
                self._warn("its files are not there")
                return False
            if self._number is None:
                found = self._read()
                self._number = 0 if found is None else found[0]
            self._number += 1
            told = {"version": _VERSION, "run": self._run, "number": self._number, "after_s": after_s}
            self._write(json.dumps({**told, "at": self._wall() + after_s}).encode())
        except (TimelyError, OSError) as error:
            self._warn(str(error))
            return False
        self._due = now + after_s
        return True

    def rung(self) -> int:
        """Return the number of the newest setting of this run that is due; 0 if none is yet."""
        found = self._read()
        if found is None or found[0] <= self._rung:
            return self._rung
        number, after_s, at = found
        now = self._now()
        if number != self._seen[0]:
            self._seen = number, now
        if self._wall() >= at or now - self._seen[1] >= after_s:
            self._rung = number
        return self._rung

    def _read(self) -> tuple[int, float, float] | None:
        """Return number, seconds and moment of the setting; None where there is none of this run."""
        try:
            if not self._storage.exists(_FILE):
                return None
            told = json.loads(bytes(self._storage.read(_FILE)))
            if told["version"] != _VERSION or told["run"] != self._run:
                return None
            return int(told["number"]), float(told["after_s"]), float(told["at"])
        except (TimelyError, OSError, ValueError, KeyError, TypeError):
            return None  # looked at again soon

    def _write(self, content: bytes) -> None:
        if not self._storage.local:
            self._storage.write(_FILE, content)  # there at once, or not at all
            return
        self._storage.write(_UNFINISHED, content)
        os.replace(self._storage.full(_UNFINISHED), self._storage.full(_FILE))

    def _warn(self, found: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "could not set the alarm of a dataflow in checkpoint %r: found %s — hint: put the checkpoint where"
                " Python can write too; until then what failed is tried again when an input moves, and a backlog is"
                " worked off in one micro-batch",
                self._location,
                found,
            )
