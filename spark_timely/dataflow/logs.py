"""The logs of a dataflow, read and written: opened or created, each under one path.

A `Sink` is an output: a stream of a log that the dataflow owns, and the view that is captured into it. `engine.steps`
opens the logs of all outputs (`open_logs`). `compute.drive.runners` and a `Dataflow` that starts look first at those
that are there, and refuse what cannot run. `kept_logs` says where the logs are that nobody captured.

Everything in a dataflow is kept by the path of a log. One log under two paths would be written twice by two halves of
a dataflow that know nothing of each other, or would wait for itself.

Invariants
----------
1. A log that a dataflow writes has one path in it. Logs are the same if their ids are. Two that are not there yet are
   the same if their paths lead to the same place.
2. What is refused for its path, or for an output that is there, leaves no log behind, as far as can be seen before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.body import Body
from spark_timely.dataflow.remembered import remembers
from spark_timely.dataflow.views import View, least_time, leaves_of
from spark_timely.errors import (
    InvalidUsageError,
    LogMissingError,
    NotBeyondError,
    OwnershipError,
    SchemaMismatchError,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.files.format import LogFormat
from spark_timely.log.log import check_free, create_log, open_log
from spark_timely.log.machine.decide import decide_open
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.urls import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.protocol.note import Fence

__all__ = ["Sink", "check_outputs", "check_writers", "existing_logs", "open_logs"]


@dataclass(frozen=True, eq=False)
class Sink:
    """A stream of a log that a dataflow owns, and what is captured into it.

    Attributes
    ----------
    name : str
        Of the operator, for errors.
    view : View
    path : str
        Of the log.
    stream : str
    owner : str
        The same for all copies and restarts of the dataflow.
    replaces : str or None
        Fingerprint of the plan that the output may have been made by up to now, or of the state that it may be in: see
        `Stream.capture`.
    kept : bool
        Whether it is what an operator remembers, in a log of the dataflow's own.
    fence : Fence or None
        The start of the compute instance that runs the dataflow; None if none does.
    as_of : int or None
        Time at which a collection begins that is not there yet: what is there then stands at it. None: where its inputs
        begin.
    """

    name: str
    view: View
    path: str
    stream: str
    owner: str
    replaces: str | None = None
    kept: bool = False
    fence: Fence | None = None
    as_of: int | None = None

    @property
    def can_be_taken_over(self) -> bool:
        """Whether another plan, or other inputs, can continue where it is.

        Not where it is a collection made from others: what it holds would be taken back by what never added it. What
        an operator over all history remembers, or a continual task writes, takes back what is there.
        """
        return not self.view.updates or remembers(self.view) is not None or isinstance(self.view.operator, Body)

    @property
    def is_whole(self) -> bool:
        """Whether it is wrong without what it has of all times: a collection, or what an operator remembers.

        A continual task begins where its output is.
        """
        return not isinstance(self.view.operator, Body) and (self.view.updates or remembers(self.view) is not None)


def open_logs(
    sinks: Sequence[Sink], storage: Mapping[str, dict[str, str]], found: Mapping[str, Log] | None = None
) -> dict[str, Log]:
    """Open the logs that outputs are made from, and their own, made if they are not there, and their streams in them.

    A log is made with a capability for each of its outputs, at the least time that any of them may give.

    Parameters
    ----------
    sinks : sequence of Sink
    storage : mapping of str to dict
        Storage options by path of the log.
    found : mapping of str to Log, optional
        What `existing_logs` gave a moment ago.

    Returns
    -------
    dict of str to Log
        By path: one handle for each log.

    Raises
    ------
    LogMissingError
        If a log that is read is not there.
    InvalidUsageError
        If a log that is written is there under another path too: as another output, or as an input.
    SchemaMismatchError
        If a log is there with other columns or times.
    OwnershipError
        If a stream belongs to another dataflow or query.
    NotBeyondError
        If a log begins behind times that the output has rows of: they would be lost.
    """
    check_writers(sinks)
    logs = existing_logs(sinks, storage) if found is None else dict(found)
    written = {sink.path: sink for sink in sinks}
    there = [sink for sink in sinks if sink.path in logs]
    for sink in there:  # what is refused here leaves nothing behind
        _open_stream(logs[sink.path], sink)
    # What an operator remembers is inside of the log that it was needed for, which comes first: a log is made where
    # nothing else is.
    made = sorted((sink for path, sink in written.items() if path not in logs), key=lambda sink: len(sink.path))
    for sink in made:
        logs[sink.path] = _create_log(sink, [other for other in sinks if other.path == sink.path], storage[sink.path])
        _check_paths(sinks, logs, storage)  # where two paths lead to one place and do not show it
    for sink in sinks:
        if sink not in there:
            _open_stream(logs[sink.path], sink)
    return logs


def check_writers(sinks: Sequence[Sink]) -> None:
    """Refuse a plan in which two outputs write one stream: each would take the other's commits for its own.

    Raises
    ------
    InvalidUsageError
    """
    writers: dict[tuple[str, str], Sink] = {}
    for sink in sinks:
        other = writers.setdefault((sink.path, sink.stream), sink)
        if other is not sink:
            msg = (
                f"could not write stream {sink.stream!r} of log {sink.path!r}: found two operators that do, "
                f"{other.name!r} and {sink.name!r}"
            )
            raise InvalidUsageError(
                msg,
                hint="capture into another log, or into another stream; a folder inside of an output's log is the "
                "dataflow's own",
                context={"path": sink.path, "stream": sink.stream},
            )


def existing_logs(
    sinks: Sequence[Sink], storage: Mapping[str, dict[str, str]], opened: Mapping[str, Log] | None = None
) -> dict[str, Log]:
    """Open the logs that outputs are made from, and those of their own that are there; make none.

    Parameters
    ----------
    sinks : sequence of Sink
    storage : mapping of str to dict
        Storage options by path of the log.
    opened : mapping of str to Log, optional
        Handles of some of them.

    Returns
    -------
    dict of str to Log
        By path: one handle for each log.

    Raises
    ------
    LogMissingError
        If a log that is read is not there.
    InvalidUsageError
        If a log that is written is there under another path too: as another output, or as an input.
    """
    check_writers(sinks)
    logs = dict(opened or {})
    written = {sink.path: None for sink in sinks}
    for path in [*written, *(leaf.path for sink in sinks for leaf in leaves_of(sink.view))]:
        try:
            if path not in logs:
                logs[path] = open_log(path, storage_options=storage[path] or None)
        except LogMissingError:
            if path not in written:
                raise
    _check_paths(sinks, logs, storage)
    return logs


def check_outputs(sinks: Sequence[Sink], storage: Mapping[str, dict[str, str]], logs: Mapping[str, Log]) -> None:
    """Refuse outputs that `open_logs` would refuse as things are; write nothing.

    Parameters
    ----------
    sinks : sequence of Sink
    storage : mapping of str to dict
        Storage options by path of the log.
    logs : mapping of str to Log
        What `existing_logs` gave.

    Raises
    ------
    InvalidUsageError
        If something else is where a log is to be made.
    LogMissingError
        If that is a Delta table of another kind.
    SchemaMismatchError, OwnershipError, NotBeyondError, ClosedError
        As of `open_logs`.

    Notes
    -----
    Cost: a look at one directory for each log that is not there.
    """
    for sink in sinks:
        log = logs.get(sink.path)
        if log is None:
            check_free(sink.path, storage_options=storage[sink.path] or None)
        else:
            _check_fits(log, sink)
            with _explained(log, sink):
                decide_open(
                    log.path,
                    log.domain,
                    log.core.ends(),
                    sink.stream,
                    owner=sink.owner,
                    at=least_time(sink.view),
                    donor=None,
                    clock=0,
                    fence=sink.fence,
                )


def _check_paths(sinks: Sequence[Sink], logs: Mapping[str, Log], storage: Mapping[str, dict[str, str]]) -> None:
    """Refuse a log that is written and has two paths (invariant 1)."""
    users: dict[str, tuple[str, str]] = {}
    for sink in sinks:
        users.setdefault(sink.path, (sink.name, "writes"))
    for sink in sinks:
        for leaf in leaves_of(sink.view):
            users.setdefault(leaf.path, (leaf.name, "reads"))
    first: dict[str, str] = {}
    for path, (name, _) in users.items():  # those that are written first
        other = first.setdefault(_identity(path, logs, storage), path)
        user, does = users[other]
        if other != path and does == "writes":
            msg = f"could not start operator {name!r}: found log {path!r} to be log {other!r}, which {user!r} writes"
            raise InvalidUsageError(
                msg,
                hint="give the log one path everywhere in the dataflow, or capture into another one; a log whose files "
                "were copied counts as the same log",
                context={"path": path, "other": other},
            )


def _identity(path: str, logs: Mapping[str, Log], storage: Mapping[str, dict[str, str]]) -> str:
    """Return what two paths of one log have in common."""
    if path in logs:
        return logs[path].core.log_id
    return os.path.realpath(path) if open_storage(path).local else identity(path, storage.get(path))


def _create_log(sink: Sink, beside: Sequence[Sink], storage_options: dict[str, str]) -> Log:
    view = sink.view
    return create_log(
        sink.path,
        view.schema,
        times=[kind.value for kind in view.domain.types],
        minimum=np.array([least_time(other.view) for other in beside]).min(axis=0),
        kind=view.rows_kind,
        streams=len(beside),
        exist_ok=True,
        storage_options=storage_options or None,
    )


def _open_stream(log: Log, sink: Sink) -> None:
    _check_fits(log, sink)
    with _explained(log, sink):
        least = log.domain.render_time(least_time(sink.view))
        log.core.open_stream(sink.stream, owner=sink.owner, at=least, fence=sink.fence)


def _check_fits(log: Log, sink: Sink) -> None:
    """Refuse a log that has other rows than an output."""
    types = sink.view.domain.types
    if log.kind != sink.view.rows_kind:
        msg = f"could not start operator {sink.name!r}: found log {sink.path!r} of kind={log.kind!r}"
        hint = "capture into another log: what is captured are " + (
            "updates of a collection" if sink.view.updates else "events, of which as_updates() makes updates"
        )
        raise SchemaMismatchError(msg, hint=hint, context={"path": sink.path})
    if log.domain.types != types or not _same_columns(log, sink):
        msg = f"could not start operator {sink.name!r}: found log {sink.path!r} with other columns or times"
        hint = f"capture into another log, or give the stream the columns {shown(str(log.schema))}"
        gained = _gained(log, sink)
        if gained:
            msg += f": without {shown(gained)}"
            columns = ", ".join(map(repr, log.schema.names))
            hint = (
                f"where an input has gained them, leave them out with .select({columns}), or add them to this log with "
                "open_log(…).add_columns(…); either changes the plan, and the next error names what replaces= must "
                "say; or capture into another log"
            )
        raise SchemaMismatchError(msg, hint=hint, context={"path": sink.path})


@contextmanager
def _explained(log: Log, sink: Sink) -> Iterator[None]:
    """Say of a stream that cannot be opened what that means for the dataflow."""
    try:
        yield
    except OwnershipError as error:
        if not sink.kept:
            raise
        raise OwnershipError(
            error.message,
            hint="capture into another log: in this one is what the same operator of the other dataflow remembers",
            context=error.context,
        ) from None
    except NotBeyondError as error:
        least = log.domain.render_time(least_time(sink.view))
        msg = f"could not start operator {sink.name!r}: {error.message}, and rows from {least!r} on would be lost"
        raise NotBeyondError(
            msg,
            hint="capture into another log, or make this one with that minimum and a stream more",
            time=error.time,
            frontier=error.frontier,
        ) from error


def _same_columns(log: Log, sink: Sink) -> bool:
    return bool(log.schema.equals(_wanted(sink)))


def _gained(log: Log, sink: Sink) -> list[str]:
    """Return the columns that an output has more than its log; none if anything else differs as well."""
    wanted = _wanted(sink)
    more = [name for name in wanted.names if name not in log.schema.names]
    common = [field for field in wanted if field.name not in more]
    return more if log.domain.types == sink.view.domain.types and list(log.schema) == common else []


def _wanted(sink: Sink) -> pa.Schema:
    """Return the columns of an output as its log has them."""
    types = [kind.value for kind in sink.view.domain.types]
    return LogFormat.build(sink.view.schema, times=types, kind=sink.view.rows_kind).payload
