"""A log in this process: the reference for what a log does, and a log for tests without a disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spark_timely.log.base import OPEN_STREAM
from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.machine.state import batch_rows, initial_state
from spark_timely.log.reading import ReadableLog
from spark_timely.log.store.base import MemoryStore, MemoryTable
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

__all__ = ["MemoryLog"]


class MemoryLog(ReadableLog):
    """A capture log in memory. Several handles may share one table, as processes share a Delta table.

    Examples
    --------
    >>> import pyarrow as pa
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> writer = log.writer(owner="me")
    >>> writer.append(pa.table({"_time": [3], "v": [1]}), advance_to=4).state.seq
    1
    >>> log.frontier()
    Antichain.of(4)
    """

    @classmethod
    def create(
        cls,
        schema: pa.Schema,
        *,
        times: Sequence[str] = ("long",),
        minimum: object | None = None,
        kind: str = "stream",
        streams: int = 1,
        clock: Callable[[], float] = time.time,
        merge_every: int | None = 100,
        auto_compact: bool = True,
    ) -> MemoryLog:
        """Create a log. Parameters as those of `spark_timely.log.delta.create_log`."""
        form = LogFormat.build(schema, times=times, minimum=minimum, kind=kind)
        table = MemoryTable(form)
        state = initial_state(
            OPEN_STREAM,
            StreamCounts.initial(form.domain.minimum, streams),
            owner=None,
            at=int(clock() * 1_000_000),
            reason="created",
            note=Note(),
        )
        first = write_progress_file(table.storage, batch_rows(form, state), OPEN_STREAM, 0, form.domain)
        MemoryStore(table).transact([first], [(f"timely/{OPEN_STREAM}", 0)])
        return cls(MemoryStore(table), clock=clock, merge_every=merge_every, auto_compact=auto_compact)

    def another(self) -> MemoryLog:
        """Return a second handle on the same log."""
        store = self.store
        while not isinstance(store, MemoryStore):  # a wrapper of tests
            store = store.inner  # type: ignore[attr-defined]
        return type(self)(
            MemoryStore(store.table),
            clock=self._clock,
            merge_every=self.merge_every,
            auto_compact=self.auto_compact,
        )
