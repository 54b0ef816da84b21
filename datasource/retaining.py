"""The retainer of a query: keeps its position in the log readable, under the name that its option gives.

A retainer is a row of the log's own table that names a consumer and what it still reads, so compaction by anybody waits
(`spark_timely.log.machine.since`). The `planner` keeps one for its query here, and dataflows and instances one for each
log that they read; `spark_timely.log.retention` writes the rows. A name is one query's: its first offset carries an
identity, which its checkpoint keeps. Until that offset is known to be in the checkpoint the retainer belongs to any
query that begins.

Invariants
----------
1. What is retained is never later than what the query may still read: positions are taken from offsets that Spark has
   written down and committed.
2. Nothing is planned before the position is retained.
3. Each retainer costs at most one commit in a minute, but for the first of a run and the release.
4. While the planner lives, a thread renews the retainer, so that an idle query does not expire. It uses a handle of its
   own: the planner's snapshot moves only when the planner looks.
5. A run of the query begins once: it takes the retainer over from runs before it, as after a restart. An earlier run
   that still lives finds that out when it looks, and fails. For with a copied checkpoint two queries have one identity,
   and the retainer would follow the faster one.
6. What a restored table has lost is registered again when the query looks, unless since has passed it. What was
   released by hand is not, before the next renewal.
"""

from __future__ import annotations

import threading
import time as clock
import uuid
import weakref
from typing import TYPE_CHECKING, Final

from spark_timely.errors import LogFormatError, OwnershipError, SinceViolationError, StorageError, described
from spark_timely.log.log import open_log
from spark_timely.log.machine.since import UNCLAIMED
from spark_timely.masking import masked_logger
from spark_timely.threads import aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_timely.conf.options import SourceOptions
    from spark_timely.log import Log
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.text import Duration

_log = masked_logger("spark_timely.datasource")

_LEAST_S: Final = 60.0
"""Seconds between two commits of one retainer, unless its expiry is shorter."""


class RetainedPosition:
    """The position of one query that one log retains.

    Parameters
    ----------
    open_log : callable
        Opens a handle on the log, for this alone.
    consumer : str
        Name of the retainer.
    expiry : Duration
        How long it counts unless it is renewed.
    alone : bool
        Whether one run of the query alone may live (invariant 5). Copies of a dataflow may live side by side.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(
        self,
        open_log: Callable[[], Log],
        consumer: str,
        expiry: Duration,
        *,
        alone: bool = False,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._open_log, self._consumer, self._expiry, self._now = open_log, consumer, expiry, now
        self.identity = uuid.uuid4().hex
        self._run = uuid.uuid4().hex if alone else ""
        self._log: Log | None = None
        self._lock = threading.Lock()
        self._wanted: tuple[Antichain, str] | None = None
        self._written: tuple[Antichain, str] | None = None
        self._written_at = 0.0
        self._turn: int | None = None
        self._landed = (-1, -1)
        self._failed_at: float | None = None
        self._refused: Exception | None = None
        self._ended = threading.Event()
        weakref.finalize(self, self._ended.set)
        self._thread: threading.Thread | None = None

    @property
    def renew_s(self) -> float:
        """Seconds after which the retainer is renewed: a third of its expiry."""
        return self._expiry.seconds / 3

    def stand(self, needed: Antichain, identity: str | None, log: Log | None = None) -> None:
        """Retain what the query needs from now on.

        Parameters
        ----------
        needed : Antichain
            Empty releases: the query has read all that there will ever be.
        identity : str or None
            That of the query, where one of its offsets in the checkpoint says it.
        log : Log, optional
            A handle of the caller, to see what has become of the retainer: nothing is read but what its snapshot has.

        Raises
        ------
        SinceViolationError
            If since has passed it: after the retainer had expired, or before there was one.
        OwnershipError
            If another query retains under this name, or another run of this one that began later.
        StorageError, LogFormatError
            If the log cannot be written, the first time.
        """
        with self._lock:
            if self._refused is not None:
                raise self._refused
            owner = UNCLAIMED if identity is None else identity
            self._wanted = needed, owner
            if self._written is None:
                self._write(first=True)
                self._begin_thread()
            elif self._is_due() or (log is not None and self._has_changed(log)):
                self._write_or_warn()
                if self._refused is not None:
                    raise self._refused

    def end(self) -> None:
        """Stop renewing; the retainer stays until it expires."""
        self._ended.set()

    def renew(self) -> None:
        """Write the retainer where that is due; what goes wrong is said and tried again. Called by the thread."""
        with self._lock:
            if self._written is None or self._refused is not None or self._has_just_failed():
                return
            if self._is_due() or self._has_changed_by_now():
                self._write_or_warn()

    def _has_just_failed(self) -> bool:
        return self._failed_at is not None and self._now() - self._failed_at < min(_LEAST_S, self.renew_s / 3)

    def _has_changed(self, log: Log) -> bool:
        """Return whether a snapshot has the retainer no more as it was written (invariants 5 and 6)."""
        if self._has_just_failed():
            return False
        found = log.retainers().get(self._consumer)
        if found is not None and self._run and found.run not in ("", self._run) and found.turn >= (self._turn or 0):
            return True
        version, seq = self._landed
        return log.core.version >= version and log.core.retention_seq() < seq  # not one from before it was written

    def _has_changed_by_now(self) -> bool:
        assert self._log is not None
        try:
            self._log.refresh()
            return self._has_changed(self._log)
        except Exception as error:  # noqa: BLE001 - as of a write: it is tried again
            self._warn(error)
            return False

    def _is_due(self) -> bool:
        assert self._wanted is not None
        if self._has_just_failed():
            return False
        rest = self._now() - self._written_at
        if rest >= self.renew_s:
            return True
        moved = self._wanted != self._written
        # To release, and to make the retainer one's own, is done once.
        once = moved and (self._wanted[0].is_empty or self._written is None or self._wanted[1] != self._written[1])
        return once or (moved and rest >= min(_LEAST_S, self.renew_s))

    def _write(self, *, first: bool = False) -> None:
        assert self._wanted is not None
        if self._log is None:
            self._log = self._open_log()
        needed, owner = self._wanted
        try:
            found = self._log.core.retain_needed(
                self._consumer,
                needed,
                owner=owner,
                expiry=self._expiry.text,
                run=self._run,
                turn=self._turn,
            )
        except (StorageError, LogFormatError) as error:
            if not first:
                raise
            msg = f"could not retain log {self._log.path!r} for consumerId={self._consumer!r}: {error.message}"
            raise type(error)(
                msg,
                hint="let the query write to the log, or leave consumerId out: Log.keep says how much stays for all",
                context=error.context,
            ) from error
        self._written, self._written_at, self._failed_at = self._wanted, self._now(), None
        self._turn = self._turn if found is None else found.turn
        self._landed = self._log.core.version, self._log.core.retention_seq()

    def _write_or_warn(self) -> None:
        try:
            self._write()
        except (OwnershipError, SinceViolationError) as error:
            self._refused = error
        except Exception as error:  # noqa: BLE001 - a disk that fails for a moment must not end the query
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        _log.warning("consumer %r could not be renewed, which is tried again: %s", self._consumer, described(error))
        self._failed_at = self._now()

    def _begin_thread(self) -> None:
        if self._thread is None:
            pause = max(min(self.renew_s / 2, _LEAST_S), 0.01)
            self._thread = aside("retain", _renew_until, weakref.ref(self), self._ended, pause)


def retained_of(options: SourceOptions, /) -> RetainedPosition | None:
    """Return what keeps the log for a query with these options; None where that is not asked for."""
    if options.consumer_id is None:
        return None

    def open_again() -> Log:
        return open_log(options.path, storage_options=options.storage_options or None)

    return RetainedPosition(open_again, options.consumer_id, options.consumer_expiry, alone=True)


def _renew_until(position: weakref.ref[RetainedPosition], ended: threading.Event, pause: float) -> None:
    """Renew until the query has ended, or nobody holds its position any more."""
    while not ended.wait(pause):
        held = position()
        if held is None:
            return
        held.renew()
        del held
