"""Retainers of the named and unnamed subscriptions of one process, so that compaction of a log waits for them.

A *retainer* keeps a log readable from a frontier on, for one consumer. A `Holder` is one of them and its consumer;
`Positions` are those of a process and log. The follower of a log (`follow`) moves the retainers here as its
subscriptions advance. A named subscription retains what its consumer has not acknowledged, under its name, and this
outlasts the process. Those without a name share one retainer, which covers what each of them still has to give, and
goes with the last of them. All are written together (`LogCore.retain_several`).

Invariants
----------
1. What is retained is never later than what may still be asked for: a name stays where its consumer acknowledged last,
   whatever was given since.
2. Nothing is given before it is retained, where the log can be written.
3. However often consumers acknowledge, there is a commit in ten seconds at most, but for one when a subscription begins
   and one when it is closed.
4. Of two subscriptions of one name the one that began last has the name: the other is refused when it next acknowledges
   or asks for a batch, in whatever process it is. Each has a random id, which is retained with the position.
5. A retainer is renewed while its subscription lives, whether or not it moves, so that one that only waits does not
   expire.
"""

from __future__ import annotations

import threading
import time as clock
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_timely.errors import (
    LogFormatError,
    OwnershipError,
    SinceViolationError,
    StorageError,
    TimelyError,
    described,
)
from spark_timely.log.retention import Retaining
from spark_timely.masking import masked_logger
from spark_timely.time.text import parse_duration

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from spark_timely.log import Log
    from spark_timely.log.machine.since import Retainer
    from spark_timely.time.antichain import Antichain

__all__ = ["OWNER", "Holder", "Positions"]

_log = masked_logger(__name__)

OWNER: Final = "subscribe"
"""Owner of all these retainers: a subscription may take a name over from another one, and from nobody else."""

_LEAST_S: Final = 10.0
"""Seconds between two commits of positions that have moved."""

_UNNAMED_EXPIRY: Final = "10 minutes"


@dataclass(eq=False, slots=True)
class Holder:
    """One retainer, and who has it.

    Attributes
    ----------
    name : str
    expiry_us : int
        How long it counts unless it is renewed, microseconds.
    wanted : Antichain
        What is to be retained; empty releases.
    run : str
        The id of the holder.
    brief : bool
        Whether it has no name by which somebody could come back for it.
    turn : int or None
        That of the holder; None before it was registered.
    written : Antichain or None
        What the log retains; None before it was registered.
    written_at : float
        When that was written, in seconds of a clock that never goes back.
    expires : int
        Until when that holds by the wall clock, microseconds since 1970.
    refused : TimelyError or None
        Why the holder has it no more.
    """

    name: str
    expiry_us: int
    wanted: Antichain
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    brief: bool = False
    turn: int | None = None
    written: Antichain | None = None
    written_at: float = 0.0
    expires: int = 0
    refused: TimelyError | None = None

    @property
    def renew_s(self) -> float:
        """Seconds after which it is renewed: a third of its expiry."""
        return self.expiry_us / 3_000_000


class Positions:
    """The retainers of one process and log.

    Parameters
    ----------
    open_log : callable
        Opens a handle on the log, for this alone.
    wall : callable
        Wall clock in seconds: when retainers expire.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(
        self,
        open_log: Callable[[], Log],
        *,
        wall: Callable[[], float] = clock.time,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._open_log, self._wall, self._now = open_log, wall, now
        self._lock = threading.RLock()
        self._log: Log | None = None
        self._holders: dict[str, Holder] = {}
        self._unnamed: Holder | None = None
        self._failed_at: float | None = None
        self._cannot_write = False
        self.commits = 0

    def begin(self, name: str, needed: Antichain, expiry: str | dt.timedelta) -> Holder:
        """Take a name, also from another holder, and retain what is needed under it.

        Parameters
        ----------
        name : str
        needed : Antichain
            As `Course.needed` gives it.
        expiry : str or timedelta
            Read before: a length of time.

        Raises
        ------
        SinceViolationError
            If since has passed what is needed.
        OwnershipError
            If a query or a program retains the log under this name.
        StorageError, LogFormatError
            If the log cannot be written.
        """
        with self._lock:
            holder = Holder(name, parse_duration(expiry).amount, needed)
            self._write([holder])
            if holder.refused is not None:
                raise holder.refused
            before = self._holders.get(name)
            if before is not None:
                before.refused = self._taken_over(name)
            self._holders[name] = holder
            return holder

    def cover(self, needed: Antichain | None) -> None:
        """Retain what the subscriptions without a name need: at once where that is more, else when it is written next.

        Parameters
        ----------
        needed : Antichain or None
            By all of them together; None where there is none left.

        Raises
        ------
        SinceViolationError
            If since has passed it.

        Notes
        -----
        A log that cannot be written retains nothing: that is said once in Python's log. Then the subscription reads on,
        and is refused by name once compaction has passed it.
        """
        with self._lock:
            holder = self._unnamed
            if needed is None or needed.is_empty:
                if holder is not None:
                    self._unnamed, holder.wanted = None, holder.wanted.empty(holder.wanted.arity)
                    self._try_write([holder])
                return
            if self._cannot_write:
                return
            if holder is None or holder.refused is not None:
                amount = parse_duration(_UNNAMED_EXPIRY).amount
                holder = Holder(f"subscribe-{uuid.uuid4().hex[:12]}", amount, needed, brief=True)
            holder.wanted = needed
            has_expired = holder.expires <= self._wall() * 1_000_000  # of a process that slept
            if holder.written is None or has_expired or not holder.written.less_equal_frontier(needed):
                try:
                    self._write([holder])
                except (StorageError, LogFormatError) as error:
                    self._cannot_write = True
                    text = "could not retain log %r for subscriptions without a name, which are read on: %s"
                    _log.warning(text, "" if self._log is None else self._log.path, described(error))
                    return
                if holder.refused is not None:
                    raise holder.refused
            self._unnamed = holder

    def move(self, holder: Holder, needed: Antichain) -> None:
        """Note what a name is to retain from now on; it is written within ten seconds, or when it ends."""
        self.check(holder)
        holder.wanted = needed

    def check(self, holder: Holder | None) -> None:
        """Refuse a holder that has its name no more; raises `OwnershipError`."""
        if holder is not None and holder.refused is not None:
            raise holder.refused

    def end(self, holder: Holder) -> None:
        """Write what a name retains, and let it be: it stays until it expires, or somebody takes it."""
        with self._lock:
            if holder.wanted != holder.written:
                others = [each for each in self._all() if each is not holder and each.wanted != each.written]
                self._try_write([holder, *others])
            if self._holders.get(holder.name) is holder:
                del self._holders[holder.name]

    def seen(self, retainers: Mapping[str, Retainer]) -> None:
        """Take notice of who retains what, as a snapshot of the log says (invariant 4)."""
        for name, holder in list(self._holders.items()):
            found = retainers.get(name)
            if found is not None and found.run not in ("", holder.run) and found.turn >= (holder.turn or 0):
                holder.refused = self._taken_over(name)

    def due_s(self) -> float:
        """Return after how many seconds something is to be written; infinity where nothing is."""
        now, found = self._now(), float("inf")
        for holder in self._all():
            rest = holder.renew_s if holder.wanted == holder.written else min(_LEAST_S, holder.renew_s)
            found = min(found, holder.written_at + rest - now)
        if self._failed_at is not None:
            found = max(found, self._failed_at + _LEAST_S - now)
        return max(found, 0.0)

    def write_due(self) -> None:
        """Write what has moved, and what is to be renewed, in one commit, if it is time; what fails is tried again."""
        with self._lock:
            if self.due_s() > 0:
                return
            now = self._now()
            # Those that are due soon go with the others.
            due = [
                holder
                for holder in self._all()
                if holder.wanted != holder.written or now - holder.written_at >= holder.renew_s / 2
            ]
            self._try_write(due)

    def _all(self) -> list[Holder]:
        holders = [*self._holders.values(), *([] if self._unnamed is None else [self._unnamed])]
        return [holder for holder in holders if holder.refused is None]

    def _try_write(self, holders: Sequence[Holder]) -> None:
        try:
            self._write(holders)
        except Exception as error:  # noqa: BLE001 - a disk that fails for a moment ends no subscription
            self._failed_at = self._now()
            path = "" if self._log is None else self._log.path
            _log.warning("could not retain positions of log %r, which is tried again: %s", path, described(error))

    def _write(self, holders: Sequence[Holder]) -> None:
        mine = [holder for holder in holders if holder.refused is None]
        if not mine:
            return
        if self._log is None:
            self._log = self._open_log()
        wall = int(self._wall() * 1_000_000)
        wanted = [
            Retaining(
                each.name, each.wanted, OWNER, wall + each.expiry_us, run=each.run, turn=each.turn, brief=each.brief
            )
            for each in mine
        ]
        retainers, refused = self._log.core.retain_several(wanted)
        self.commits += 1
        for holder, said in zip(mine, wanted, strict=True):
            if holder.name in refused:
                holder.refused = self._refusal(holder, refused[holder.name])
                continue
            found = retainers.get(holder.name)
            if found is not None and found.run == holder.run:
                holder.turn = found.turn
            holder.written, holder.written_at, holder.expires = said.needed, self._now(), said.expires
        self._failed_at = None

    def _refusal(self, holder: Holder, error: TimelyError) -> TimelyError:
        if isinstance(error, SinceViolationError) or holder.turn is None:
            return error
        return self._taken_over(holder.name)

    def _taken_over(self, name: str) -> OwnershipError:
        path = "" if self._log is None else self._log.path
        msg = (
            f"could not continue subscription {name!r} of log {path!r}: found it taken over by another one of that"
            " name, which began later"
        )
        return OwnershipError(
            msg,
            hint="let one of the two run, or give each a name of its own",
            context={"path": path, "consumer": name},
        )
