"""Ledger of a log: rows beside progress that count the messages deleted from it and name accepted foreign changes.

The note of each stream's newest commit counts the messages that the stream has brought; the ledger, how many are gone
since. So where the entries of the table's log are cleaned up, the messages that are there can be compared with those
that should be: `machine.judge` does, by `machine.ledger`, the rows as a value. `forgetting`, `acceptance` and `streams`
write rows. They have the columns of progress; they are read together, whatever files they are in. (An instance has a
ledger of its own, of folders: `spark_timely.compute.ledger`.)

Invariants
----------
1. What is gone is restated in the commit that takes it out, which excludes all others.
2. Rows for a token, the name of an accepted change, count from when the facts of the log have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.files.parquet_reader import open_parquet, read_progress
from spark_timely.log.machine.ledger import FORGOTTEN, GONE, JOINED, Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.store.base import Store
    from spark_timely.log.store.storage import Storage


def ledger_tables(storage: Storage, form: LogFormat, index: FileIndex) -> list[pa.Table]:
    """Return the rows of files of the ledger."""
    return [read_progress(storage, path, form.progress_schema) for path in index.paths.tolist()]  # one, as a rule


def ledger_of(store: Store) -> Ledger:
    """Return what the ledger of a snapshot says."""
    return Ledger.of(store.format, ledger_tables(store.storage, store.format, store.live.index("ledger")))


def joined_file(store: Store, stream: str) -> DataFile:
    """Write that a stream begins with a copy of another's capability."""
    return write_ledger_file(store, _rows(store.format, JOINED, seq=0, n_rows=0, reason=JOINED, query=stream))


def gone_rows(store: Store, gone: int, reason: str) -> pa.Table:
    """Return the row that says how many messages are gone, in the place of all that say so."""
    tables = ledger_tables(store.storage, store.format, store.live.index("ledger"))
    seqs = [pc.max(rows.filter(pc.equal(rows["_stream"], GONE))["_seq"]).as_py() for rows in tables]
    seq = 1 + max((seq for seq in seqs if seq is not None), default=0)
    return _rows(store.format, GONE, seq=seq, n_rows=gone, reason=reason)


def after_forgetting(
    store: Store, new: Sequence[DataFile], sources: Sequence[DataFile]
) -> tuple[list[DataFile], FileIndex]:
    """Write how many messages are gone once files are in the place of others; return files that come, and that go.

    Parameters
    ----------
    store : Store
        Its snapshot is what is committed to.
    new, sources : sequence of DataFile
        Of which those of messages count. Where statistics do not say how many a source has, its footer does.
    """
    taken = sum(_n_rows(store.storage, file) for file in sources if file.event == "message")
    taken -= sum(file.n_rows for file in new if file.event == "message")
    index = store.live.index("ledger")
    if not taken or store.format.before is None:
        return [], index.select(np.zeros(len(index), np.bool_))
    rows = gone_rows(store, ledger_of(store).gone + taken, FORGOTTEN)
    # Files that say nothing else go.
    return [write_ledger_file(store, rows)], index.select((index.stream_lo == GONE) & (index.stream_hi == GONE))


def _n_rows(storage: Storage, file: DataFile) -> int:
    if file.n_rows >= 0:
        return file.n_rows
    with open_parquet(storage, file.path) as opened:
        return int(opened.metadata.num_rows)


def write_ledger_file(store: Store, rows: pa.Table) -> DataFile:
    """Write rows of the ledger to a file that no commit names yet."""
    stream, seq = str(rows["_stream"][0]), int(rows["_seq"][0].as_py())
    # The dot keeps the name apart from that of any stream.
    stem = f"{stream.removeprefix('#')}." if stream.startswith("#") else stream
    return write_progress_file(store.storage, rows, stem, seq, store.format.domain, event="ledger")


def _rows(form: LogFormat, stream: str, *, seq: int, n_rows: int, reason: str, query: str | None = None) -> pa.Table:
    times = dict(zip(form.domain.columns, form.domain.minimum, strict=True))
    known = {"_stream": stream, "_seq": seq, "_rows": n_rows, "_reason": reason, "_query": query, **times}
    columns = [pa.array([known.get(field.name)], field.type) for field in form.progress_schema]
    return pa.Table.from_arrays(columns, schema=form.progress_schema)
