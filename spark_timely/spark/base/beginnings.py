"""The beginning of a log: the time from which it has everything; later where it is a copy of a log that had forgotten.

The engines of dataflows and continual tasks ask for it before they read an input, as do replays, SQL over contents and
compute instances: what was forgotten is never taken for empty. The sink asks for that of its query's sources.

A log that has forgotten says so by its since. One that a dataflow or a query made from such a log may not: its own
since stays at the least time where somebody retains it, where it has several streams, or where the query died before
it moved since. So the notes of its streams are asked too. A dataflow writes there where its output begins. A query
has the offsets of its sources there, and that of a ``timely`` source says from when on its log had all
(`Selection.begins`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidShapeError
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.log import Log
    from spark_timely.time.domain import TimeDomain


def beginning(log: Log, /, streams: Collection[str] | None = None) -> Antichain | None:
    """Return from when on a log has all that was captured, as far as it knows; None if it has all.

    Parameters
    ----------
    log : Log
    streams : collection of str, optional
        Those that count; all if not given.

    Returns
    -------
    Antichain or None
        The log's least time where something is missing and it is not known from when on nothing is: the times of what
        it was copied from are of other types.

    Notes
    -----
    Cost: O(streams), and nothing is read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> log.writer(owner="me").append(pa.table({"_time": [3], "v": [1]}), advance_to=7).state.seq
    1
    >>> print(beginning(log))
    None
    >>> log.allow_compaction([5]) == beginning(log)
    True
    """
    least = log.domain.minimum_frontier
    since = log.since()
    found = [] if since == least else [since]
    for name, state in log.streams().items():
        if streams is not None and name not in streams:
            continue
        output, batch = state.note.output, state.note.batch
        if output is not None and output.begins is not None:
            found.append(Antichain.from_times(output.begins, log.domain.arity))
        copied = None if batch is None else beginning_of_sources(batch.source, log.domain)
        if copied is not None:
            found.append(copied)
    if not found:
        return None
    for each in found:
        least = least.join(each)
    return least


def forgotten_until(log: Log, /) -> Antichain | None:
    """Return the since of a log; None where nothing is forgotten: it is the log's own minimum.

    Logs that have forgotten nothing can be read together as of any time, whatever their minimums are.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> print(forgotten_until(MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(5,))))
    None
    """
    since = log.since()
    return None if since == log.domain.minimum_frontier else since


def readable_from(logs: Iterable[Log], least: Antichain, /) -> Antichain:
    """Return from when on what logs contain is known: their sinces, and where the writers of collections began.

    Messages of a stream are what they are: of these there are none before.

    Parameters
    ----------
    logs : iterable of Log
    least : Antichain
        From when on, where none of them has forgotten anything.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(5,))
    >>> readable_from([log], Antichain.of(0))
    Antichain.of(0)
    """
    for log in logs:
        begins = beginning(log) if log.kind == "collection" else forgotten_until(log)
        least = least if begins is None else least.join(begins)
    return least


def written_up_to(log: Log, /) -> Antichain | None:
    """Return how far a log is written; None where nothing is: its frontier is its own minimum.

    That may be later than the minimum of the logs that it is made from, as behind a delay.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(2,))
    >>> print(written_up_to(log))
    None
    >>> log.writer(owner="me").append(pa.table({"_time": [3], "v": [1]}), advance_to=7).state.seq
    1
    >>> written_up_to(log)
    Antichain.of(7)
    """
    upper = log.frontier()
    return None if upper == log.domain.minimum_frontier else upper


def beginning_of_sources(source: str, domain: TimeDomain, /) -> Antichain | None:
    """Return from when on the sources of a micro-batch have all that was captured; None if they have all.

    Parameters
    ----------
    source : str
        Lines of Spark's offsets, one per source, as the note of a commit has them (`MicroBatch.source`).
    domain : TimeDomain
        Of the log that the note is in.

    Returns
    -------
    Antichain or None
        The least time where it is not known: the sources have times of other types.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> whole = '{"version":1,"delivery":"complete","times":["long"],"frontier":[9]}'
    >>> print(beginning_of_sources(whole, TimeDomain(("long",))))
    None
    >>> beginning_of_sources(whole.replace('"frontier"', '"begins":[5],"frontier"'), TimeDomain(("long",)))
    Antichain.of(5)
    """
    begins = None
    for line in source.split("\n"):
        found = _offset_of(line)
        if found is None or "delivery" not in found or "begins" not in found:
            continue
        at = domain.minimum_frontier
        if found.get("times") == [kind.value for kind in domain.types]:
            with suppress(InvalidShapeError):  # that something is missing is said all the same
                at = at.join(Antichain.from_json(found["begins"], domain.arity))
        begins = at if begins is None else begins.join(at)
    return begins


def _offset_of(line: str) -> Mapping[str, object] | None:
    """Return what a source's line says; None if that is cut off, or no JSON."""
    # In the second version of Spark's file each line begins with the name of its source.
    text = line if line.startswith("{") else line.partition(":")[2]
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None
