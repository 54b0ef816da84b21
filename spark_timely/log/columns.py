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

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.errors import StorageError, shown
from spark_timely.log.store.base import LostRaceError

if TYPE_CHECKING:
    from spark_timely.log.core import LogCore

__all__ = ["add_columns"]

_MAX_ATTEMPTS = 100
_MAX_UNCLEAR = 3


def add_columns(log: LogCore, columns: pa.Schema) -> None:
    """Add those of the columns that a log does not have. See `ReadableLog.add_columns`."""
    last: StorageError | None = None
    unclear = 0
    for _ in range(_MAX_ATTEMPTS):
        log.store.refresh()
        present = log.store.format
        wanted = present.extended(columns)
        names = wanted.merged[len(present.merged) :]
        if not names:
            return
        log.check_writable()
        try:
            log.store.add_columns(pa.schema([wanted.payload.field(name) for name in names]))
        except LostRaceError as error:
            last = error
        except StorageError as error:
            last = error
            unclear += 1
            if unclear >= _MAX_UNCLEAR:
                raise
        else:
            log.store.refresh()
    found = "" if last is None else f", the last: {shown(str(last.__cause__ or last))}"
    msg = f"could not add columns to log {log.path!r}: found {_MAX_ATTEMPTS} lost races{found}"
    raise StorageError(
        msg, hint="too many others commit at once; try again", context={"path": log.path}, determinate=False
    )
