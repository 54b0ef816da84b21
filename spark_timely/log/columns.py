"""Add columns to a log, while others append to it.

A new column is a commit of the table that changes its metadata. Whoever commits from an older snapshot is
refused then, and decides anew; the files that he has written are as good as before, for they only lack the
column.

Invariants
----------
1. A column is added once, however many add it at once and whatever was reported about a try; who comes with
   another type for it is refused.
2. Files never have a column that the table does not have: it is added before they are committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.log.machine.commit_loop import Settled, commit_loop

if TYPE_CHECKING:
    from spark_timely.log.core import LogCore
    from spark_timely.log.store.base import Store

__all__ = ["add_columns"]


@dataclass(frozen=True, slots=True)
class _NewColumns:
    """Columns that a log does not have yet."""

    store: Store
    columns: pa.Schema

    def put(self) -> None:
        self.store.add_columns(self.columns)

    def is_shown(self) -> bool:
        return self.has_landed()

    def has_landed(self) -> bool:
        payload = self.store.format.payload
        return all(column.name in payload.names and payload.field(column.name) == column for column in self.columns)

    def is_overtaken(self) -> bool:
        return any(name in self.store.format.payload.names for name in self.columns.names)

    def discard(self) -> None:
        """Do nothing: there are no files."""


def add_columns(log: LogCore, columns: pa.Schema) -> None:
    """Add those of the columns that a log does not have. See `ReadableLog.add_columns`."""

    def decide(_: object) -> Settled[None] | _NewColumns:
        present = log.store.format
        wanted = present.extended(columns)
        names = wanted.merged[len(present.merged) :]
        if not names:
            return Settled(None)
        log.check_writable()
        return _NewColumns(log.store, pa.schema([wanted.payload.field(name) for name in names]))

    commit_loop(
        f"add columns to log {log.path!r}",
        context={"path": log.path},
        store=log.store,
        decide=decide,
        done=lambda: None,
    )
