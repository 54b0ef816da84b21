"""Rows of a log's ledger as a value: how many messages there should be, beside what progress says.

`spark_timely.log.ledger` reads and writes these rows; the judge of foreign changes (`judge`, `strange`) and `verify`
count by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.log.machine.state import OPEN_STREAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.machine.state import StreamState

GONE: Final = "#gone"
"""The stream of the rows of the ledger that say how many messages are gone; the one with the greatest number counts."""
FORGOTTEN: Final = "forgotten"
"""Why a row of the ledger was written that is for no token."""
JOINED: Final = "#joined"
"""The stream of the rows of the ledger that name one, as `_query`: what deletes all rows of a stream leaves them."""


class Ledger(NamedTuple):
    """The contents of a log's ledger: what it says of messages and streams beside progress.

    Attributes
    ----------
    counts : mapping of (str, int) to int
        By stream and number how many messages commits have since changes of theirs were accepted.
    gone : int
        How many messages were forgotten and summed, or are missing with consent; negative: as many are there besides.
    joined : frozenset of str
        Streams that began with a copy of another's capability: nothing but their own progress names them.
    """

    counts: Mapping[tuple[str, int], int]
    gone: int
    joined: frozenset[str]

    @classmethod
    def of(cls, form: LogFormat, tables: Iterable[pa.Table]) -> Ledger:
        """Read the rows of `ledger`: what was written for a token counts from when the log's facts have it."""
        every = list(tables)
        if not every:
            return cls({}, 0, frozenset())
        rows = pa.concat_tables(every)
        counts: dict[tuple[str, int], int] = {}
        for part in accepted_rows(form, every):
            columns = (part[name].to_pylist() for name in ("_stream", "_seq", "_rows"))
            counts.update(((stream, seq), n_rows) for stream, seq, n_rows in zip(*columns, strict=True))
        gone = rows.filter(pc.equal(rows["_stream"], GONE))
        said = zip(gone["_seq"].to_pylist(), gone["_rows"].to_pylist(), gone["_reason"].to_pylist(), strict=True)
        valid = [(seq, n_rows) for seq, n_rows, reason in said if reason == FORGOTTEN or reason in form.accepted]
        joined = rows.filter(pc.equal(rows["_stream"], JOINED))["_query"].to_pylist()
        return cls(counts, max(valid, default=(0, 0))[1], frozenset(joined))

    def messages(self, form: LogFormat, newest: Mapping[str, StreamState]) -> int | None:
        """Return how many messages there should be; None where the log does not know from how many on it counts."""
        if form.before is None:
            return None
        brought = sum(state.note.total for name, state in newest.items() if name != OPEN_STREAM)
        return form.before[0] + brought - self.gone


def accepted_rows(form: LogFormat, tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Return what was written down of commits for each change that was accepted, the newest last."""
    every = list(tables)
    if not every or not form.accepted:
        return []
    rows = pa.concat_tables(every)
    rows = rows.filter(pc.not_equal(rows["_stream"], GONE))
    return [rows.filter(pc.equal(rows["_reason"], token)) for token in form.accepted]
