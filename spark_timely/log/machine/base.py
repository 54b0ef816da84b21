"""Base of a stream: its oldest commit that is kept, chosen so that older ones may be forgotten.

`forgetting` asks for it when it deletes progress. (The base of a store, `spark_timely.log.store.base`, is another
thing: an interface.)

No reader may have a position before the log's since. So a commit may go once no reader may have the position right
after it. The first commit that stays is the base: it restates all counts, the clock, the owner and the lasting part of
the note, so that nothing has to be computed from those that are gone.

Invariants
----------
1. The newest commit of a stream stays, and every commit of its newest micro-batch: a repetition is compared with them.
2. A reader that may read the changes of a log from a position finds the commit before that position.
3. A base commit differs from the commit that it was in its note alone, which says that it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.protocol.note import as_base

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_timely.log.machine.state import StreamState
    from spark_timely.time.antichain import IntArray


def choose_base(seqs: IntArray, may_go: Callable[[int], bool], newest: StreamState, first_of_batch: int | None) -> int:
    """Return the number of the commit that becomes the first one of its stream.

    Parameters
    ----------
    seqs : ndarray of int64, shape (n,)
        Numbers of the commits that are there, ascending.
    may_go : callable
        Whether a commit may go, as far as its effect and its age are concerned. If it may, so may those before it.
    newest : StreamState
    first_of_batch : int or None
        Number of the first commit of the newest micro-batch, None if there was no micro-batch.

    Notes
    -----
    Cost: `may_go` is asked O(log n) times.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> writer = log.writer(owner="me")
    >>> for frontier in range(1, 6):
    ...     newest = writer.append(pa.table({"_time": [frontier], "v": [0]}), advance_to=frontier).state
    >>> choose_base(np.arange(6), lambda seq: seq < 3, newest, None)
    3
    >>> [choose_base(np.arange(6), lambda seq: True, newest, first) for first in (None, 2)]
    [4, 2]
    """
    last = newest.seq - 1 if first_of_batch is None else min(newest.seq - 1, first_of_batch)
    found = seqs[seqs <= last]
    if not found.shape[0]:
        return int(seqs[0])
    low, high = 0, found.shape[0] - 1  # all before `low` may go
    while low < high:
        middle = (low + high) // 2
        if may_go(int(found[middle])):
            low = middle + 1
        else:
            high = middle
    return int(found[low])


def first_of_newest_batch(rows: pa.Table, newest: StreamState) -> int | None:
    """Return the number of the first commit of a stream's newest micro-batch, None if there was no micro-batch.

    Parameters
    ----------
    rows : pyarrow.Table
        Progress rows of the stream.
    newest : StreamState
    """
    if newest.batch is None:
        return None
    mine = pc.and_(pc.equal(rows["_batch"], newest.batch), pc.equal(pc.fill_null(rows["_epoch"], 0), newest.epoch))
    seqs = np.asarray(rows["_seq"].filter(mine).to_numpy(), np.int64)
    return int(seqs.min()) if seqs.shape[0] else newest.seq


def with_base(rows: pa.Table, stream: str, base: int) -> pa.Table:
    """Return progress rows in which a commit is the first one of its stream.

    Parameters
    ----------
    rows : pyarrow.Table
        Progress rows, of other streams too. Not modified.
    stream : str
    base : int
        Number of the commit, which is among them.
    """
    mine = np.asarray(pc.equal(rows["_stream"], stream).to_numpy(), np.bool_)
    seqs = np.asarray(rows["_seq"].to_numpy(), np.int64)
    kept = rows.filter(pa.array(~mine | (seqs >= base)))
    here = pc.and_(pc.equal(kept["_stream"], stream), pc.equal(kept["_seq"], base))
    noted = pc.and_(here, pc.is_valid(kept["_note"]))
    (text,) = kept["_note"].filter(noted).to_pylist()
    note = as_base(text)
    number = kept.schema.get_field_index("_note")
    column = pc.if_else(noted, pa.scalar(note, kept.schema.field(number).type), kept["_note"])
    return kept.set_column(number, kept.schema.field(number), column)
