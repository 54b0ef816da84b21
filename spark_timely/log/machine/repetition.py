"""Recognition of repeated micro-batches: separates a retry from another micro-batch with the same number.

The sink asks when it plans and when it commits (`spark_timely.sink.plan`, `commit`), and so does a stream writer whose
append has a key.

A number is no identity. A checkpoint that was restored or copied plans the same numbers again, from other offsets.
Spark writes the entry `offsets/<number>` of a checkpoint before it plans a micro-batch, with a wall clock in it, and
never writes it again. So the hash of the entry says what was planned. Where the entry cannot be read, a digest of the
input rows decides.

Invariants
----------
1. Rows that the log does not have are never taken for rows that it has: where neither entry nor digest decides, the
   micro-batch is refused.
2. A repetition with the same entry is never refused, even if its rows differ: what is in the log stays, and the
   difference is counted.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from spark_timely.canonical.row_hash import RowsDigest, comparable
from spark_timely.errors import RolledBackError
from spark_timely.masking import masked

if TYPE_CHECKING:
    from spark_timely.protocol.note import MicroBatch


_MOST_SHOWN: Final = 2_000


class Repetition(Enum):
    """The relation of a micro-batch to the one that the log has under its number."""

    SAME = "same"
    """The same one, with the same rows as far as is known."""
    DIFFERING = "differing"
    """The same one, and its rows came out differently."""
    OTHER = "other"
    """Another one."""
    UNKNOWN = "unknown"
    """Neither says anything of itself."""


def judge_repetition(recorded: MicroBatch | None, repeated: MicroBatch | None, /) -> Repetition:
    """Compare what two attempts at a micro-batch of one number were planned from.

    Parameters
    ----------
    recorded : MicroBatch or None
        What the log says of the one that it has.
    repeated : MicroBatch or None
        What is known of the one that comes.

    Returns
    -------
    Repetition

    Examples
    --------
    >>> from spark_timely.protocol.note import MicroBatch
    >>> first = MicroBatch(offsets="a", digest=RowsDigest(1, 2, 3).text, n_input=3)
    >>> other = MicroBatch(offsets="b", digest=first.digest, n_input=3)
    >>> judge_repetition(first, first).value, judge_repetition(first, other).value
    ('same', 'other')
    """
    if recorded is None or repeated is None:
        return Repetition.UNKNOWN
    alike = _alike(recorded.digest, repeated.digest)
    if recorded.offsets is not None and repeated.offsets is not None:
        if recorded.offsets == repeated.offsets:
            return Repetition.DIFFERING if alike is False else Repetition.SAME
        # Without rows on either side nothing can be lost, if both begin where the one before ended.
        empty = recorded.n_input == 0 and repeated.n_input == 0
        begins = recorded.before is not None and recorded.before == repeated.before
        return Repetition.SAME if empty and begins else Repetition.OTHER
    if alike is not None:
        return Repetition.SAME if alike else Repetition.OTHER
    known = any(part is not None for each in (recorded, repeated) for part in (each.offsets, each.digest))
    return Repetition.OTHER if known else Repetition.UNKNOWN


def _alike(recorded: str | None, repeated: str | None) -> bool | None:
    if recorded is None or repeated is None:
        return None
    one, other = RowsDigest.parse(recorded), RowsDigest.parse(repeated)
    return one == other if comparable(one, other) else None


def refused_repetition(
    path: str,
    stream: str,
    wanted: tuple[int, int],
    newest: tuple[int, int],
    recorded: MicroBatch | None,
    *,
    repeated: MicroBatch | None = None,
) -> RolledBackError:
    """Return the error for a micro-batch whose number the log has, and which is another one.

    Parameters
    ----------
    path, stream : str
    wanted, newest : (int, int)
        Number and step of the micro-batch, and of the newest one in the log.
    recorded : MicroBatch or None
        What the log says of its newest micro-batch.
    repeated : MicroBatch, optional
        What is known of the one that comes.
    """
    batch, step = wanted
    if wanted > newest:
        found = f"found micro-batch {newest[0]} in it, and this checkpoint planned another one of that number"
    elif wanted < newest:
        found = f"found micro-batch {newest[0]} (step {newest[1]}) of the same query in it"
    elif recorded is not None and repeated is not None and None not in (recorded.offsets, repeated.offsets):
        found = "found a micro-batch of this number in it that was planned from other offsets"
    else:
        found = "found a micro-batch of this number in it with other rows"
    ended = shown_source(recorded)
    where = "" if not ended else f"; the sources of micro-batch {newest[0]} in the log end at {ended}"
    return RolledBackError(
        f"could not capture micro-batch {batch} (step {step}) into stream {stream!r} of log {path!r}: {found}{where}",
        hint="stop the other capture, and give each its own, if one checkpoint, app_id or step serves two; or restore"
        " the newest state of the checkpoint, if it was restored or copied; or start the query with a new checkpoint at"
        " these source offsets, and takeover=true",
        context={
            "path": path,
            "stream": stream,
            "batch": batch,
            "newest": newest[0],
            "source": "" if recorded is None else recorded.source,
        },
    )


def shown_source(recorded: MicroBatch | None) -> str:
    """Return where the sources of a micro-batch ended, on one line; empty where that is not known.

    Examples
    --------
    >>> from spark_timely.protocol.note import MicroBatch
    >>> shown_source(MicroBatch(source='{"a":1}'))
    '{"a":1}'
    """
    lines = "" if recorded is None else masked(" ".join(recorded.source.split("\n")))
    return lines if len(lines) <= _MOST_SHOWN else f"{lines[:_MOST_SHOWN]}… ({len(lines)} characters)"
