"""A store that fails: whether a commit happens, and what is said about it, are two separate coins.

Invariants
----------
1. Everything is decided by one seeded generator: the same seed gives the same failures.
2. What happens, happens as in the store underneath: all or nothing, with its conflicts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_timely.errors import StorageError
from spark_timely.log import Log
from spark_timely.log.machine.decide import LostRaceError
from spark_timely.log.machine.state import DataFile
from spark_timely.log.store.base import App, Store

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex, LiveFiles
    from spark_timely.log.machine.judge import ForeignChange
    from spark_timely.log.store.storage import Storage
    from spark_timely.time.antichain import BoolArray

__all__ = ["UnreliableStore", "make_unreliable"]


class UnreliableStore:
    """Wraps a store. Each commit happens or not, and is reported truly or not.

    Parameters
    ----------
    inner : Store
    seed : int
    happens : float
        Probability that a commit reaches the store underneath.
    reports_failure : float
        Probability that a failure is reported, whatever happened.
    lands_late : float
        Probability that a commit which did not happen does so later, before the next look, as a write
        that was still under way.
    waits : float
        Probability that such a write waits for a further look.
    goes : float
        Probability that the look after a failure that was reported fails too.
    another : callable, optional
        Opens a second handle on the same table, at its newest version; needed for late landing.
    before_commit : callable, optional
        Called before each commit: here a test lets somebody else be first.

    Attributes
    ----------
    calls : dict
        How often each of the four ways came, by (happened, reported as done).

    Notes
    -----
    A failure is reported as a lost race or as an unclear storage error, by a third coin.
    """

    def __init__(
        self,
        inner: Store,
        *,
        seed: int = 0,
        happens: float = 0.6,
        reports_failure: float = 0.4,
        lands_late: float = 0.0,
        waits: float = 0.0,
        goes: float = 0.0,
        another: Callable[[], Store] | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        self.inner = inner
        self.rng = random.Random(seed)
        self.happens = happens
        self.reports_failure = reports_failure
        self.lands_late = lands_late
        self.waits = waits
        self.goes, self._gone = goes, False
        self.another = another
        self.before_commit = before_commit
        self.calls: dict[tuple[bool, bool], int] = {}
        self._late: list[Callable[[], None]] = []

    @property
    def path(self) -> str:
        """Where the table is."""
        return self.inner.path

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self.inner.table_id

    @property
    def storage(self) -> Storage:
        """Access to its files."""
        return self.inner.storage

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Settings of the storage."""
        return self.inner.storage_options

    @property
    def format(self) -> LogFormat:
        """Format of the log."""
        return self.inner.format

    @property
    def append_only(self) -> bool:
        """Whether the table refuses that files of data are replaced."""
        return self.inner.append_only

    @property
    def version(self) -> int:
        """Table version of the snapshot."""
        return self.inner.version

    @property
    def generation(self) -> int:
        """How often everything was read again."""
        return self.inner.generation

    @property
    def live(self) -> LiveFiles:
        """The live files of the snapshot."""
        return self.inner.live

    def has_news(self) -> bool:
        """Pass on."""
        return self.inner.has_news()

    def check_writable(self) -> None:
        """Pass on."""
        self.inner.check_writable()

    def refresh(self, *, after_put: bool = False) -> bool:
        """Move the snapshot to the newest version. A late commit may land after it."""
        if self._gone:
            self._gone = False
            msg = f"could not read {self.path!r}: found a failure made by a test"
            raise StorageError(msg, hint="read it again", determinate=True)
        moved = self.inner.refresh(after_put=after_put)
        late, self._late = self._late, []
        for land in late:
            if self.waits and self.rng.random() < self.waits:
                self._late.append(land)
            else:
                land()
        return moved

    def transact(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        *,
        removes: Sequence[DataFile] = (),
        data_change: bool = True,
        exclusive: bool = False,
    ) -> None:
        """Commit, or not, and say so, or not."""

        def commit() -> None:
            self.inner.transact(adds, apps, removes=removes, data_change=data_change, exclusive=exclusive)

        self._toss(commit, lambda handle: _land(handle, adds, apps, removes))

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns, or not, and say so, or not."""
        self._toss(lambda: self.inner.add_columns(columns), None)

    def change_facts(self, form: LogFormat, *, exclusive: bool = False) -> None:
        """Change the facts, or not, and say so, or not."""
        self._toss(lambda: self.inner.change_facts(form, exclusive=exclusive), None)

    def foreign_changes(self) -> tuple[ForeignChange, ...]:
        """Return what the store underneath says."""
        return self.inner.foreign_changes()

    def look_into(self, chosen: Callable[[FileIndex], BoolArray] | None = None) -> None:
        """Look as the store underneath does."""
        self.inner.look_into(chosen)

    def _toss(self, commit: Callable[[], None], land: Callable[[Store], None] | None) -> None:
        if self.before_commit is not None:
            self.before_commit()
        happened = self.rng.random() < self.happens
        fails = self.rng.random() < self.reports_failure
        unclear = self.rng.random() < 0.5
        if happened:
            commit()
        elif fails and land is not None and self.another is not None and self.rng.random() < self.lands_late:
            # A write under way takes effect only if its version is still free.
            unclear = True
            handle = self.another()
            if handle.version == self.inner.version:
                self._late.append(lambda: land(handle))
        key = (happened, not fails)
        self.calls[key] = self.calls.get(key, 0) + 1
        if fails:
            self._gone = bool(self.goes) and self.rng.random() < self.goes
            kind = StorageError if unclear else LostRaceError
            msg = f"could not commit to {self.path!r}: found a failure made by a test, happened={happened}"
            raise kind(msg, hint="read the log to see whether it happened", determinate=False)

    def flush(self) -> None:
        """Pass on."""
        self.inner.flush()

    def tidy(self, *, now: bool = False) -> bool:
        """Pass on."""
        return self.inner.tidy(now=now)

    def is_due(self) -> bool:
        """Pass on."""
        return self.inner.is_due()

    def replaced(self, before: int) -> Mapping[str, tuple[int, int]]:
        """Pass on."""
        return self.inner.replaced(before)

    @property
    def replaced_kept_ms(self) -> int:
        """How long replaced files are kept."""
        return self.inner.replaced_kept_ms

    def aside(self) -> None:
        """Return None: what fails, fails in order."""

    def problems(self) -> list[str]:
        """Pass on."""
        return self.inner.problems()


def _land(handle: Store, adds: Sequence[DataFile], apps: Sequence[App], removes: Sequence[DataFile]) -> None:
    try:
        handle.transact(adds, apps, removes=removes, exclusive=True)
    except LostRaceError:
        return


def make_unreliable(log: Log, **coins: object) -> UnreliableStore:
    """Put an unreliable store under a log, in place, and return it.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> store = make_unreliable(log, seed=1, happens=1.0, reports_failure=1.0)
    >>> log.core.open_stream("main", owner="me").seq, store.calls
    (0, {(True, False): 1})
    """
    store = UnreliableStore(log.core.store, **coins)  # type: ignore[arg-type]
    log.core.store = store
    return store
