"""The clock: a streaming source that makes a micro-batch when a log's frontier moves, and carries no data.

It drives the query of dataflows (`spark_timely.spark.dataflows.dataflow`). Spark runs a micro-batch when an offset is
another than before. The offset of a clock is how far each of its logs is, which run of the query asks, and which
setting of its alarm rang last. So a micro-batch is run

- when a frontier moved;
- once at the start of each run, although none moved: an output that is new or was emptied would wait for ever;
- when the dataflow asked for it, since work is left or what failed is to be tried again.

The dataflow asks by an `Alarm`. The dataflows of a query run in one process, its clock in another one, through Spark
Connect too. Both reach the query's checkpoint. The dataflow leaves a file there that says when it wants to be called
again, and the clock looks at it.

Invariants
----------
1. Equal positions have equal JSON text.
2. The rows of a micro-batch depend on its two offsets alone.
3. Logs that cannot be looked at for a moment are as they were; looks that fail several times in a row are an error.
4. Each setting of the alarm has a number of its own, which the offset of the micro-batch that it makes contains: one
   setting makes one micro-batch. A setting of another run means nothing.
5. An alarm rings as soon as either clock of its reader says so: the wall clock, which may be set back, or that of the
   time since the setting was first seen.
"""

from __future__ import annotations

import json
import os
import time
import time as monotonic
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_timely.errors import DataLossError, InvalidOptionError, InvalidUsageError, StorageError, TimelyError, shown
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import TableStorage, checked_options
from spark_timely.log.store.urls import own_options
from spark_timely.log.wait import Throttle
from spark_timely.masking import masked_logger
from spark_timely.spark.base.credentials import refuse_secrets, with_credential
from spark_timely.spark.base.offsets import iso_of
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from spark_timely.conf.options import SourceOptions
    from spark_timely.log import Log
    from spark_timely.spark.base.credentials import Credentials


CLOCK_SCHEMA: Final = pa.schema([pa.field("_log", pa.string(), nullable=False), pa.field("_frontier", pa.string())])
"""Columns of ``content=clock``: path of a log that moved, and its frontier as a JSON antichain."""

_log = masked_logger("spark_timely.spark")

_VERSION: Final = 1
_STORAGE: Final = "storage."
_ALLOWED: Final = frozenset({"path", "content", "logs", "log_options", "run", "alarm", "poll_interval"})
# Looks at the logs that may fail in a row, and the seconds after the first that does; each next time twice as long.
_TRIES: Final = 6


def check_clock_options(options: SourceOptions, /) -> None:
    """Refuse options that say something about the rows of a log: a clock reads none.

    Raises
    ------
    InvalidOptionError
    """
    other = sorted(options.given - _ALLOWED)
    if other:
        msg = f"could not read a clock: found options {shown(other)}"
        raise InvalidOptionError(
            msg,
            hint="give path, logs, logOptions, run, alarm and pollInterval only, with content=clock",
            context={"options": other},
        )


def storage_of_logs(options: SourceOptions, credentials: Credentials, /) -> dict[str, dict[str, str]]:
    """Return the storage options of each log of a clock, and of its alarm's checkpoint, by path.

    Parameters
    ----------
    options : SourceOptions
        Parsed; their own storage options are those of all logs that have none for themselves.
    credentials : mapping
        What the session's names of credentials stand for.

    Raises
    ------
    InvalidOptionError
        If options of a log are no JSON object of texts, or do not fit it.
    """
    found: dict[str, dict[str, str]] = {}
    given = _by_path(options.log_options)
    for path in [options.path, *(options.logs or ()), *([options.alarm] if options.alarm else [])]:
        own = given.get(path)
        if own is None:
            found[path] = own_options(path, options.storage_options)
            continue
        refuse_secrets(own)
        full = with_credential(own, credentials)
        storage = {name[len(_STORAGE) :]: str(value) for name, value in full.items() if name.startswith(_STORAGE)}
        found[path] = checked_options(storage, path)
    return found


def _by_path(text: str | None) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(text or "{}")
        texts = [text for each in found.values() for pair in each.items() for text in pair]
    except (ValueError, AttributeError):
        texts = [None]
    if not all(isinstance(each, str) for each in texts):
        # Not the value: it may hold a secret.
        msg = "could not read a clock: found logOptions that are no JSON object of objects of texts"
        raise InvalidOptionError(
            msg,
            hint='give options by path, such as {"s3://bucket/log": {"credential": "lake"}}',
            context={"option": "logOptions"},
        )
    return dict(found)


class Clock:
    """Says how far some logs are.

    Parameters
    ----------
    logs : sequence of Log
        Open; refreshed as needed.
    run : str
        Which run of the query asks.
    poll_s : float
        Seconds between two looks at the logs, at least.
    idle_poll_s : float, optional
        Seconds up to which that grows while none moves.
    alarm : Alarm, optional
        By which the query asks for a micro-batch although no log moved.
    now : callable
        A clock in seconds that never goes back.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> clock = Clock([log], run="a")
    >>> clock.latest(clock.initial())["frontiers"]
    {'memory': [0]}
    """

    def __init__(
        self,
        logs: Sequence[Log],
        *,
        run: str,
        poll_s: float = 0.2,
        idle_poll_s: float = 0.0,
        alarm: Alarm | None = None,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self._logs = sorted(logs, key=lambda log: log.path)
        self._run = run
        self._looks = Throttle(poll_s, idle_s=idle_poll_s, now=now)
        self._alarm = alarm
        self._frontiers: dict[str, object] = {}
        self._iso: dict[str, object] = {}
        self._backoff = Backoff()
        self._rung = 0
        self._pinned = False

    def initial(self) -> dict[str, object]:
        """Return the offset of a fresh checkpoint."""
        return {"version": _VERSION, "content": "clock", "run": "", "frontiers": {}, "alarm": 0}

    def prepare_available_now(self) -> None:
        """Fix what the query will read: what is there now."""
        self._refresh(at_once=True)
        self._pinned = True

    def latest(self, start: Mapping[str, Any]) -> dict[str, object]:
        """Return how far the logs are; `start` itself where none moved in this run, and the alarm did not ring.

        Raises
        ------
        InvalidUsageError
            If `start` is no offset of a clock.
        StorageError
            If the logs could not be looked at several times in a row.
        """
        self._positions(start)
        if start["run"] == self._run:
            self._rung = max(self._rung, int(start.get("alarm", 0)))
        looked = self._refresh()
        if self._alarm is not None and not self._pinned and (looked or self._alarm.local):
            self._rung = max(self._rung, self._alarm.rung())
        found = {**self.initial(), "run": self._run, "frontiers": dict(self._frontiers), "alarm": self._rung}
        if self._iso:
            found["iso"] = dict(self._iso)
        return dict(start) if found == dict(start) else found

    def rows(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> pa.RecordBatch:
        """Return a row for each log that moved between two offsets."""
        before, after = self._positions(start), self._positions(end)
        moved = [path for path, frontier in after.items() if before.get(path) != frontier]
        columns = [pa.array(moved, pa.string()), pa.array([str(after[path]) for path in moved], pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=CLOCK_SCHEMA)

    @staticmethod
    def _positions(offset: Mapping[str, Any]) -> Mapping[str, Any]:
        if offset.get("content") != "clock" or offset.get("version") != _VERSION:
            msg = f"could not read the checkpoint: found {shown(dict(offset))}, which is no offset of a clock"
            raise InvalidUsageError(msg, hint="use a new checkpoint: this one belongs to another query")
        frontiers: Mapping[str, Any] = offset["frontiers"]
        return frontiers

    def _has_news(self) -> bool:
        return any(log.core.has_news() for log in self._logs)

    def _refresh(self, *, at_once: bool = False) -> bool:
        """Look at the logs, unless that was done a moment ago; return whether it was done now."""
        first = not self._looks.begun
        if not at_once and (self._pinned or not self._looks.due(self._has_news, least_s=self._backoff.pause_s)):
            return False
        try:
            moved = [log.refresh() for log in self._logs]
            frontiers = {log.path: log.frontier() for log in self._logs}
            self._frontiers = {path: frontier.to_json() for path, frontier in frontiers.items()}
            # For people alone.
            texts = (iso_of({log.path: frontiers[log.path]}, log.domain) for log in self._logs)
            self._iso = {path: text for each in texts for path, text in each.items()}
        except StorageError as error:
            self._looks.done()
            self._backoff.failed()
            if isinstance(error, DataLossError) or first or at_once or self._backoff.n_failed >= _TRIES:
                raise
            _log.warning(
                "a clock could not look at its logs, and tries again in %g s: %s", self._backoff.pause_s, error
            )
        else:
            self._backoff.passed()
            self._looks.done(moved=any(moved))
        return True


# Spark looks at the names that it knows and at no others.
_FILE: Final = "timely-clock"
_UNFINISHED: Final = ".timely-clock"
_ALARM_VERSION: Final = 1
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
        self._opened: TableStorage | None = None
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
    def _storage(self) -> TableStorage:
        if self._opened is None:
            self._opened = open_storage(self._location, self._options, literal=True)
        return self._opened

    def set(self, after_s: float, /) -> bool:
        """Ask for a micro-batch after `after_s` seconds; return False where that cannot be said, after one warning."""
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
            setting = {"version": _ALARM_VERSION, "run": self._run, "number": self._number, "after_s": after_s}
            self._write(json.dumps({**setting, "at": self._wall() + after_s}).encode())
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
            content = self._storage.find(_FILE)
            if content is None:
                return None
            setting = json.loads(content)
            if setting["version"] != _ALARM_VERSION or setting["run"] != self._run:
                return None
            return int(setting["number"]), float(setting["after_s"]), float(setting["at"])
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
