"""What a log asks of the table that keeps it.

A store is one handle on a table: a snapshot, and commits made from that snapshot.

Invariants
----------
1. A commit adds and removes files all or nothing, and appears to every handle in one order.
2. A commit fails with `LostRaceError` if, since the handle's snapshot, another commit carried one of
   its app ids, or added columns; or any commit at all happened, where it is exclusive.
3. A handle sees other commits, and its own, only when it is refreshed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spark_timely.log.files.index import LiveFiles
from spark_timely.log.store.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from spark_timely.log.base import DataFile
    from spark_timely.log.files.format import LogFormat

__all__ = ["App", "Store"]

App = tuple[str, int]


class Store(Protocol):
    """One handle on the table of a log."""

    @property
    def path(self) -> str:
        """Where the table is."""

    @property
    def table_id(self) -> str:
        """Identity of the table."""

    @property
    def storage(self) -> Storage:
        """Access to its files."""

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Credentials and settings for cloud URLs, as they were given."""

    @property
    def format(self) -> LogFormat:
        """Format of the log, as of the snapshot."""

    @property
    def append_only(self) -> bool:
        """Whether the table refuses that files of data are replaced."""

    @property
    def version(self) -> int:
        """Table version of the snapshot."""

    @property
    def generation(self) -> int:
        """How often everything was read again: versions mean something else after that."""

    @property
    def live(self) -> LiveFiles:
        """The live files of the snapshot."""

    def has_news(self) -> bool:
        """Return whether there is a later version, where that can be told at no cost; else False."""

    def check_writable(self) -> None:
        """Refuse a table with features that cannot be written; raises `LogFormatError`."""

    def refresh(self) -> bool:
        """Move the snapshot to the newest version; return whether it moved."""

    def transact(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        *,
        removes: Sequence[DataFile] = (),
        data_change: bool = True,
        exclusive: bool = False,
    ) -> None:
        """Commit from the snapshot.

        Raises
        ------
        LostRaceError
            If the commit was not accepted; it may still have happened in an earlier, unclear attempt.
        LogFormatError
            If the table cannot be written at all: nothing happened.
        StorageError
            If it is unclear whether it happened.
        """

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns that may be null and that the table does not have, in a commit from the snapshot.

        Raises
        ------
        LostRaceError
            If others added columns since.
        StorageError
            If it is unclear whether it happened.
        """

    def flush(self) -> None:
        """Make the commits of the snapshot outlast a power cut, whoever made them.

        For who acknowledges what another process has committed, and may not have flushed before it died.

        Raises
        ------
        StorageError
            If that could not be done.
        """

    def tidy(self, *, now: bool = False) -> bool:
        """Keep the table's own bookkeeping small; called after each commit, does something now and then.

        Parameters
        ----------
        now : bool
            Whether to do all that there is to do.

        Returns
        -------
        bool
            Whether something was due.

        Raises
        ------
        StorageError
            If that could not be done. The log is as good as before.
        """

    def problems(self) -> list[str]:
        """Return what is wrong with the upkeep of the table, as sentences for people."""
