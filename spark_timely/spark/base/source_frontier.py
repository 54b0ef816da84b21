"""Frontiers of a query's ``timely`` sources at the end of a micro-batch, read from its checkpoint.

Spark writes ``offsets/<n>`` before micro-batch n runs: two lines of its own, then one line per source
with the offset at which the micro-batch ends. Of a ``timely`` source that offset is a frontier, so what
the upstream job knew about completeness is known to each reader of the file, in this job: under ``frontier=source`` a
capture moves its stream by it: the sink's plan and commit ask `end_of_sources`. Users ask `batch_frontier` in a
foreachBatch. Operators that keep rows back have a directory each under ``state``; where one does, it is refused.

Invariants
----------
1. The frontier of a micro-batch is the meet of those of all its sources: a time is complete when it is
   complete in each. A source that has not begun yet holds everything back.
2. What is not known, or not in the log's times, is refused before any row is written, never taken for complete.
3. The answer depends on the number of the micro-batch alone: Spark never writes an offset file twice, so a repeated
   micro-batch gets the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from spark_timely.errors import InvalidOptionError, InvalidUsageError, StorageError, TimelyError, shown
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import TableStorage
from spark_timely.spark.base.checkpoint import REPLAY_HEADER, checkpoint_state
from spark_timely.spark.base.offsets import read_offset
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType

if TYPE_CHECKING:
    from spark_timely.conf.options import SinkOptions
    from spark_timely.protocol.policy import Policy


_HEADER_LINES: Final = 2
# Spark's word for a source that has no offset yet.
_NO_OFFSET: Final = "-"
# What marks the offsets of well-known sources, for the error that names them.
_OTHERS: Final = (
    ("logOffset", "a file source"),
    ("reservoirId", "a Delta table"),
    ("timestamp", "Spark's rate source"),
)


@dataclass(frozen=True, slots=True)
class SourceFrontier:
    """Hold how far the sources of a micro-batch are at its end.

    Attributes
    ----------
    frontier : Antichain or None
        Times beyond it may still come; empty: all sources are complete. None: a source has not begun
        yet, so that nothing is known.
    times : tuple of TimeType
        Types of the times' coordinates; empty where no source has begun.

    Examples
    --------
    >>> SourceFrontier(Antichain.of(5), (TimeType.LONG,)).frontier
    Antichain.of(5)
    """

    frontier: Antichain | None
    times: tuple[TimeType, ...]


def batch_frontier(batch_id: int, /, *, checkpoint: str, storage_options: Mapping[str, str] | None = None) -> Antichain:
    """Return how far a micro-batch's ``timely`` sources are at its end; for use inside ``foreachBatch``.

    Whatever the query reads later is beyond this frontier: all rows at other times are in this
    micro-batch or in an earlier one.

    Parameters
    ----------
    batch_id : int
        Number that Spark gives to the micro-batch.
    checkpoint : str
        The query's checkpoint location.
    storage_options : mapping, optional
        Credentials, where the checkpoint is at a cloud URL.

    Returns
    -------
    Antichain
        Times as the log counts them: days or microseconds since 1970 for dates and timestamps. The least
        time while a source has not begun yet; empty when all sources are complete.

    Raises
    ------
    InvalidUsageError
        If the query has a source that is not ``timely``, reads one in order of arrival or with its
        progress rows, keeps rows back in a stateful operator, or has sources with times of different types.
    StorageError
        If the checkpoint cannot be read.

    Notes
    -----
    Cost: one small read and one listing.

    Examples
    --------
    ::

        from spark_timely.spark import batch_frontier

        def report(df, batch_id):
            frontier = batch_frontier(batch_id, checkpoint="/data/checkpoint")
            if not frontier.less_equal(day):  # no row of this day will follow
                ...
    """
    found = source_frontier(batch_id, checkpoint, storage_options=storage_options)
    if found.frontier is not None:
        return found.frontier
    # Only sources that are not timely have no offset at all; with nothing else no micro-batch would run.
    return TimeDomain(found.times or (TimeType.LONG,)).minimum_frontier


def source_frontier(
    batch_id: int, checkpoint: str, /, *, storage_options: Mapping[str, str] | None = None
) -> SourceFrontier:
    """Return how far a micro-batch's sources are at its end, and what their times are.

    Parameters
    ----------
    batch_id : int
        Number of the micro-batch.
    checkpoint : str
        The query's checkpoint location.
    storage_options : mapping, optional
        Credentials.

    Returns
    -------
    SourceFrontier

    Raises
    ------
    InvalidUsageError, StorageError
        As `batch_frontier`.
    """
    attempt = f"could not tell how far micro-batch {batch_id} is"
    storage, text = _read(attempt, batch_id, checkpoint, storage_options)
    found = [_of_source(line, attempt) for line in _lines(attempt, batch_id, checkpoint, text)]
    _refuse_state(storage, attempt)
    known = list(dict.fromkeys(source.times for source in found if source.times))
    if len(known) > 1:
        listed = sorted("(" + ", ".join(kind.value for kind in times) + ")" for times in known)
        hint = "read logs whose times are of one type, or use another frontier policy"
        raise _refused(attempt, f"sources with times of types {' and '.join(listed)}", hint)
    times = known[0] if known else ()
    frontiers = [source.frontier for source in found]
    if any(frontier is None for frontier in frontiers):
        return SourceFrontier(None, times)
    return SourceFrontier(reduce(Antichain.meet, (f for f in frontiers if f is not None)), times)


def _unread(attempt: str, checkpoint: str, found: str, hint: str) -> StorageError:
    context = {"checkpoint": checkpoint}
    return StorageError(f"{attempt}: found {found}", hint=hint, determinate=True, context=context)


def _refused(attempt: str, found: str, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"{attempt}: found {found}", hint=hint)


def _read(
    attempt: str, batch_id: int, checkpoint: str, storage_options: Mapping[str, str] | None
) -> tuple[TableStorage, str]:
    """Return the checkpoint and the text of a micro-batch's offsets."""
    try:
        storage = open_storage(checkpoint, storage_options, literal=True)
        return storage, bytes(storage.read(f"offsets/{batch_id}")).decode()
    except (TimelyError, OSError, UnicodeDecodeError) as error:
        msg = f"{attempt}: found no readable 'offsets/{batch_id}' in checkpoint {checkpoint!r}"
        raise StorageError(
            msg,
            hint="give the query's checkpointLocation, where Python can read it: a local path, or a cloud URL with"
            " 'storage.' options",
            determinate=True,
            context={"checkpoint": checkpoint},
        ) from error


def _lines(attempt: str, batch_id: int, checkpoint: str, text: str) -> list[str]:
    """Return the offsets of a micro-batch's sources, as Spark wrote them."""
    lines = [line.strip() for line in text.split("\n")]
    if lines[0] not in ("v1", "v2", REPLAY_HEADER) or len(lines) <= _HEADER_LINES:
        hint = "upgrade spark-timely: this version of Spark writes its checkpoint in another form"
        raise _unread(attempt, checkpoint, f"{shown(text)} in 'offsets/{batch_id}'", hint)
    # In the second version each line begins with the name of its source.
    return [line.partition(":")[2] if lines[0] == "v2" else line for line in lines[_HEADER_LINES:]]


def _of_source(line: str, attempt: str) -> SourceFrontier:
    """Return how far one source is."""
    if line == _NO_OFFSET:
        return SourceFrontier(None, ())
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or not {"version", "delivery"} <= set(found):
        raise _other(line, found, attempt)
    if found["delivery"] != "complete" or found.get("content") == "events":
        name = "delivery" if found["delivery"] != "complete" else "content"
        hint = (
            "read it with delivery=complete and content=messages; or capture its events as they are, with"
            " content=events and frontier='events'"
        )
        raise _refused(attempt, f"a source with {name}={found[name]!r}", hint)
    if "times" not in found:
        msg = f"{attempt}: found a source that does not say of which type its times are, at offset {shown(line)}"
        raise InvalidUsageError(
            msg,
            hint="use another frontier policy until the source has moved on, or begin with a new checkpoint: an earlier"
            " version of spark-timely wrote this offset",
        )
    try:
        times = tuple(TimeType(name) for name in found["times"])
    except (TypeError, ValueError):
        raise _other(line, found, attempt) from None
    offset = read_offset(found, len(times))
    return SourceFrontier(None if offset.position is None else offset.frontier, times)


def _other(line: str, found: object, attempt: str) -> InvalidUsageError:
    """Return the error for a source that knows nothing about completeness."""
    keys = set(found) if isinstance(found, Mapping) else set()
    name = next((name for key, name in _OTHERS if key in keys), "a source")
    hint = (
        "read the other one as a static DataFrame, capture it into a log of its own first, or use another frontier"
        " policy: only timely sources say what is complete"
    )
    return _refused(attempt, f"{name} that is not timely, at offset {shown(line)}", hint)


def _refuse_state(storage: TableStorage, attempt: str) -> None:
    """Refuse a query that keeps rows back: they would come when their times are said to be complete."""
    try:
        operators = [name for name in storage.names("state") if name.isdigit()]
        if not operators:
            return
        names = [_operator(storage, f"state/{number}/_metadata") for number in sorted(operators, key=int)]
    except (TimelyError, OSError) as error:
        msg = f"{attempt}: found a checkpoint whose directory 'state' cannot be read"
        raise StorageError(msg, hint="try again", determinate=True) from error
    hint = (
        "aggregate, join or deduplicate inside foreachBatch, without state, which a micro-batch of whole times"
        " allows; and begin with a new checkpoint: stateful operators keep rows back, whose times would be complete"
        " by then"
    )
    raise _refused(attempt, f"stateful operators in the query: {', '.join(names)}", hint)


def _operator(storage: TableStorage, folder: str) -> str:
    """Return Spark's name of a stateful operator, as its data source ``state-metadata`` tells it."""
    versions = [name for name in storage.names(f"{folder}/v2") if name.isdigit()]
    for path in [f"{folder}/metadata", *(f"{folder}/v2/{name}" for name in versions)]:
        if storage.exists(path):
            with suppress(ValueError, KeyError, TypeError):
                _, _, facts = bytes(storage.read(path)).decode().partition("\n")
                return str(json.loads(facts)["operatorInfo"]["operatorName"])
    return "an unknown one"


def end_of_sources(options: SinkOptions, policy: Policy, batch: int | None, /) -> Antichain | None:
    """Return how far the sources of a micro-batch are at its end.

    Parameters
    ----------
    options : SinkOptions
        Names the checkpoint.
    policy : Policy
        Names the types of the log's times.
    batch : int or None
        Number of the micro-batch; None where it is not known.

    Returns
    -------
    Antichain or None
        None where nothing is known yet.

    Raises
    ------
    InvalidOptionError
        If no checkpoint is given, or that of another query, or the sources' times are of other types than the
        log's.
    InvalidUsageError
        If the query reads or does something that hides what is complete.
    StorageError
        If the checkpoint cannot be read.

    Notes
    -----
    Cost: two small reads and two listings.
    """
    location = options.checkpoint_location
    if location is None:
        msg = "could not use frontier='source': found no checkpoint"
        raise InvalidOptionError(
            msg,
            hint="give checkpoint, the query's checkpointLocation, in place of app_id: how far the sources are stands"
            " there; without it use another frontier policy",
            context={"option": "checkpoint"},
        )
    if batch is None:
        msg = f"could not tell how far the sources are: found no micro-batch in checkpoint {location!r}"
        raise StorageError(
            msg,
            hint="put the checkpoint where Python can read it: a local path, or a cloud URL with 'storage.' options",
            determinate=True,
            context={"checkpoint": location},
        )
    newest = checkpoint_state(location, storage_options=options.storage_options).batch
    if newest is not None and newest != batch:
        msg = f"could not tell how far micro-batch {batch} is: found micro-batch {newest} as the newest of checkpoint"
        msg = f"{msg} {location!r}"
        raise InvalidOptionError(
            msg,
            hint="give the checkpoint of this very query, not that of another one",
            context={"option": "checkpoint"},
        )
    found = source_frontier(batch, location, storage_options=options.storage_options)
    wanted = policy.domain.types
    if found.times not in ((), wanted):
        has, wants = (", ".join(kind.value for kind in kinds) for kinds in (found.times, wanted))
        msg = f"could not use frontier='source': found sources with times of type ({has}), the log's are ({wants})"
        raise InvalidOptionError(
            msg,
            hint="capture the time that the sources give (option includeTime adds it), into a log of that type: a"
            " frontier moves only in times of its own type",
            context={"option": "frontier"},
        )
    return found.frontier
