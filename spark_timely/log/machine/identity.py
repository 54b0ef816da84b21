"""Tell a repeated micro-batch from another one with its number, and a log that was put back from the one seen before.

A number is no identity. A checkpoint that was restored or copied plans the same numbers again, from other offsets.
Spark writes the entry `offsets/<number>` of a checkpoint before it plans a micro-batch, with a wall clock in it, and
never writes it again. So the hash of the entry says what was planned. Where the entry cannot be read, a digest of the
input rows decides.

A log may be put back to an earlier state, and grow again by other commits. Its id stays, and neither its frontier nor
the numbers of its commits show it. A reader that continues in another process or after a restart keeps the identities
of the newest commits. All commits of a log are in one order, and putting it back removes the last ones. So of
thousands of streams the newest commits are enough. Two cases are not noticed: a log that lost only commits whose
writers' clocks were far behind, of more streams than are kept, and one whose files were changed in place.

Invariants
----------
1. Rows that the log does not have are never taken for rows that it has: where neither entry nor digest decides, the
   micro-batch is refused.
2. A repetition with the same entry is never refused, even if its rows differ: what is in the log stays, and the
   difference is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from spark_timely.canonical.row_hash import RowsDigest, comparable
from spark_timely.errors import RolledBackError
from spark_timely.masking import masked

if TYPE_CHECKING:
    from spark_timely.log.machine.state import StreamState
    from spark_timely.protocol.note import MicroBatch


_MOST_SHOWN: Final = 2_000


class Repetition(Enum):
    """What a micro-batch is to the one that the log has under its number."""

    SAME = "same"
    """The same one, with the same rows as far as can be told."""
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
    told = any(part is not None for each in (recorded, repeated) for part in (each.offsets, each.digest))
    return Repetition.OTHER if told else Repetition.UNKNOWN


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


Commits = Mapping[str, tuple[int, str]]
"""By stream the number of a commit, and its identity as `StreamState.identity` has it."""

# Of one commit beside its stream's name, about.
_COMMIT_BYTES: Final = 32


def made_last(moments: Mapping[str, int], n_bytes: int, /) -> list[str]:
    """Return the streams whose commits were made last, as many as have room; at least one.

    Parameters
    ----------
    moments : mapping of str to int
        By stream the wall clock of its commit.
    n_bytes : int
        Room for all `Commits` as text, about.

    Examples
    --------
    >>> made_last({"a": 7, "b": 9, "c": 9}, 70)
    ['b', 'c']
    """
    found: list[str] = []
    for name in sorted(moments, key=lambda name: (-moments[name], name)):  # one turn per stream
        n_bytes -= len(name) + _COMMIT_BYTES
        if found and n_bytes < 0:
            break
        found.append(name)
    return found


def newest_commits(ends: Mapping[str, StreamState], n_bytes: int, /) -> Commits:
    """Return the newest commits of streams; of too many those that were made last.

    Parameters
    ----------
    ends : mapping of str to StreamState
        As `spark_timely.log.Log.ends` gives them, or some of them.
    n_bytes : int
        Room for them as text, about.
    """
    names = made_last({name: state.at for name, state in ends.items()}, n_bytes)
    return {name: (ends[name].seq, ends[name].identity) for name in names}


def other_commits(
    commits_of: Callable[[Mapping[str, int]], Mapping[str, StreamState]], commits: Commits, /
) -> dict[str, tuple[int, str]]:
    """Return those of some commits that a log does not have, with the identity of what it has instead.

    Parameters
    ----------
    commits_of : callable
        `spark_timely.log.Log.commits_of` of the log.
    commits : mapping of str to (int, str)

    Returns
    -------
    dict of str to (int, str)
        The identity is empty where the log has no commit of this number. `#open` comes last.

    Notes
    -----
    Cost: free for the newest commits; else the progress files that may hold the others are read, once each.
    """
    wanted = {stream: commits[stream] for stream in sorted(commits, reverse=True)}
    states = commits_of({stream: seq for stream, (seq, _) in wanted.items()})
    found = {stream: state.identity for stream, state in states.items()}
    return {
        stream: (seq, found.get(stream, ""))
        for stream, (seq, identity) in wanted.items()
        if found.get(stream) != identity
    }


def describe_other_commits(path: str, others: Commits, reader: str, /) -> str:
    """Return what is said of a log that has other commits than were seen.

    Parameters
    ----------
    path : str
        Of the log.
    others : mapping of str to (int, str)
        As `other_commits` gives them; at least one.
    reader : str
        What had them.

    Examples
    --------
    >>> describe_other_commits("/in", {"b": (4, "9f"), "a": (2, "")}, "the output was made from")
    "found another commit 4 of stream 'b' in log '/in' than the output was made from, and 1 more like it"
    >>> describe_other_commits("/in", {"a": (2, "")}, "the output was made from")
    "found log '/in' without commit 2 of stream 'a', which the output was made from"
    """
    (stream, (seq, identity)), *more = others.items()
    rest = f", and {len(more)} more like it" if more else ""
    if identity:
        return f"found another commit {seq} of stream {stream!r} in log {path!r} than {reader}{rest}"
    return f"found log {path!r} without commit {seq} of stream {stream!r}, which {reader}{rest}"
