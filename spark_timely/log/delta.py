"""The capture log in a Delta table: create one, open one.

Invariants
----------
1. One commit makes a log: its schema, its facts and its unclaimed capabilities.
2. A path that holds anything else is left as it is.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidUsageError, LogMissingError, SchemaMismatchError, StorageError, TimelyError
from spark_timely.log.base import OPEN_STREAM
from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.log import Log
from spark_timely.log.machine.state import batch_rows, initial_state
from spark_timely.log.store.delta import DeltaStore, create_table
from spark_timely.log.store.storage import foreign_names, has_table, normal_path, open_storage
from spark_timely.log.store.storage_options import check_place, promised
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

__all__ = ["create_log", "forget_logs", "keep_log", "open_log"]


def create_log(
    path: str | os.PathLike[str],
    schema: pa.Schema,
    *,
    times: Sequence[str] = ("long",),
    minimum: object | None = None,
    kind: str = "stream",
    streams: int = 1,
    exist_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
    single_writer: bool = False,
    flush: bool = True,
    clock: Callable[[], float] = time.time,
    merge_every: int | None = 100,
    auto_compact: bool = True,
) -> Log:
    """Create a capture log.

    Parameters
    ----------
    path : str or path
        Empty, or not there yet: a local directory or a cloud URL.
    schema : pyarrow.Schema
        Payload columns, without the time unless it is to be kept there too.
    times : sequence of str
        Type of each time coordinate: `long`, `int`, `short`, `date` or `timestamp`. More than one makes
        a product order.
    minimum : time, optional
        Time at which the log starts, such as ``0`` or ``"2013-01-01"``; the types' minima if not given
        (1700-01-01 for date, timestamp).
    kind : str
        `stream`: messages are events. `collection`: messages are updates with a `_diff`.
    streams : int
        Number of streams that may open from the minimum on. The log's frontier waits for all of them.
    exist_ok : bool
        Whether to open a log that is there already, if it has the same schema, times and kind; columns that
        were added since make no difference.
    storage_options : mapping, optional
        Credentials and settings for cloud URLs, as delta-rs takes them.
    single_writer : bool
        Promises that only one process at a time writes to the log; allows volumes, and file systems
        without hard links.
    flush : bool
        Whether what is written to a local disk is flushed before it is acknowledged. Without it a power cut can take
        the latest commits, or damage the log.
    clock : callable
        Wall clock in seconds.
    merge_every : int or None
        Number of small files of a stream that are merged after a commit; None never merges.
    auto_compact : bool
        Whether small files of messages are merged so too, or only those of progress.

    Returns
    -------
    Log

    Raises
    ------
    InvalidUsageError
        If there is a log already, or something else in the directory; if it is on a volume, and
        `single_writer` is not promised.
    SchemaMismatchError
        If a payload column cannot be kept, or an existing log differs.
    StorageError
        If the log cannot be written.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> log = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.string())]), minimum=(0,))
    >>> log.frontier(), log.unclaimed
    (Antichain.of(0), 1)
    """
    where = normal_path(path)
    form = LogFormat.build(schema, times=times, minimum=minimum, kind=kind)
    if isinstance(streams, bool) or not isinstance(streams, int) or streams < 1:
        msg = f"could not create log {where!r}: found streams={streams!r}"
        raise InvalidUsageError(msg, hint="give a number of streams of at least 1")
    storage_options = promised(storage_options, single_writer=single_writer, flush=flush)
    check_place(where, storage_options)
    storage = open_storage(where, storage_options)
    if storage.local and os.path.exists(where) and not os.path.isdir(where):
        msg = f"could not create log {where!r}: found a file"
        raise InvalidUsageError(msg, hint="give an empty or new directory", context={"path": where})
    names = storage.names()
    if "_delta_log" not in names or not has_table(storage):
        # Left behind by a creation that was killed: files of data, a table's log without entries.
        foreign = foreign_names(names)
        if foreign:
            msg = f"could not create log {where!r}: found {foreign[0]!r} in the directory"
            raise InvalidUsageError(
                msg,
                hint="give an empty or new directory",
                context={"path": where},
            )
        state = initial_state(
            OPEN_STREAM,
            StreamCounts.initial(form.domain.minimum, streams),
            owner=None,
            at=int(clock() * 1_000_000),
            reason="created",
            note=Note(),
        )
        first = write_progress_file(storage, batch_rows(form, state), OPEN_STREAM, 0, form.domain)
        try:
            creation = create_table(storage, form, [first], storage_options)
        except StorageError as error:
            if error.determinate:
                storage.delete(first.path)
            raise
        if creation == "made":
            return open_log(
                where,
                storage_options=storage_options,
                clock=clock,
                merge_every=merge_every,
                auto_compact=auto_compact,
            )
        if creation == "taken":
            storage.delete(first.path)
        elif not exist_ok:
            msg = f"could not tell whether log {where!r} was created: found one, and an error of the storage before"
            raise StorageError(
                msg, hint="open the log to see what it holds, or create it with exist_ok=True", context={"path": where}
            )
    if not exist_ok:
        msg = f"could not create log {where!r}: found a Delta table there already"
        raise InvalidUsageError(
            msg,
            hint="give another path, or exist_ok=True to open a log that is there",
            context={"path": where},
        )
    log = open_log(
        where, storage_options=storage_options, clock=clock, merge_every=merge_every, auto_compact=auto_compact
    )
    found = log.format
    if (found.domain, found.kind) != (form.domain, form.kind):
        msg = f"could not use log {where!r}: found kind={found.kind!r} times={found.domain.to_json()!r}"
        raise SchemaMismatchError(
            msg,
            hint=f"it was to have kind={form.kind!r} times={form.domain.to_json()!r}; give another path",
            context={"path": where},
        )
    if not (found.payload.equals(form.payload) or found.declared.equals(form.payload)):
        msg = f"could not use log {where!r}: found other payload columns: {_difference(found.payload, form.payload)}"
        raise SchemaMismatchError(
            msg,
            hint="give the schema that the log was created with, or another path",
            context={"path": where},
        )
    return log


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    for field in wanted:
        if field.name not in found.names:
            return f"no column {field.name!r}"
        if not found.field(field.name).equals(field):
            return f"column {found.field(field.name)} where {field} was wanted"
    for field in found:
        if field.name not in wanted.names:
            return f"a further column {field.name!r}"
    return "their order differs"


def open_log(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    single_writer: bool = False,
    flush: bool = True,
    clock: Callable[[], float] = time.time,
    merge_every: int | None = 100,
    auto_compact: bool = True,
) -> Log:
    """Open a capture log.

    Parameters
    ----------
    path : str or path
        A local directory or a cloud URL.
    storage_options : mapping, optional
        Credentials and settings for cloud URLs, as delta-rs takes them.
    single_writer : bool
        Promises that only one process at a time writes to the log: this one. Reading needs no promise.
    flush : bool
        Whether what is written to a local disk is flushed before it is acknowledged. Without it a power cut can take
        the latest commits, or damage the log.
    clock : callable
        Wall clock in seconds.
    merge_every : int or None
        Number of small files of a stream that are merged after a commit; None never merges.
    auto_compact : bool
        Whether small files of messages are merged so too, or only those of progress.

    Returns
    -------
    Log

    Raises
    ------
    LogMissingError
        If there is no log: nothing, no Delta table, or one that is no log.
    LogFormatError
        If the log is of a newer version, or uses table features that cannot be read.
    StorageError
        If the storage cannot be reached.

    Examples
    --------
    >>> open_log("/nowhere")
    Traceback (most recent call last):
    ...
    spark_timely.errors.LogMissingError: could not open log '/nowhere': found no such path — hint: ...
    """
    where = normal_path(path)
    storage_options = promised(storage_options, single_writer=single_writer, flush=flush)
    storage = open_storage(where, storage_options)
    if storage.local and not os.path.isdir(where):
        found = "a file" if os.path.exists(where) else "no such path"
        msg = f"could not open log {where!r}: found {found}"
        raise LogMissingError(
            msg,
            hint="check the path; create_log or a capture makes a new log",
            context={"path": where},
        )
    store = DeltaStore(where, storage_options)
    return Log(store, clock=clock, merge_every=merge_every, auto_compact=auto_compact)


_MOST_KEPT = 8


class _Kept(threading.local):
    """Logs that a thread has opened, the latest last."""

    def __init__(self) -> None:
        self.logs: dict[tuple[object, ...], Log] = {}


_kept = _Kept()


def keep_log(path: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> Log:
    """Open a capture log, or take up the handle that this thread opened before, brought up to date.

    For what is done again for each micro-batch by a process that lives longer: to follow a log costs what is
    new in it, to open one what is live in it. At most eight are kept.

    Parameters
    ----------
    path, storage_options
        As for `open_log`.

    Returns
    -------
    Log

    Raises
    ------
    LogMissingError, LogFormatError, StorageError
        As `open_log`.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> path = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.string())]), minimum=(0,)).path
    >>> keep_log(path) is keep_log(path)
    True
    """
    # By process: what a fork takes along does not work in it.
    key = (os.getpid(), normal_path(path), *sorted((storage_options or {}).items()))
    log = _kept.logs.pop(key, None)
    try:
        if log is not None:
            log.refresh()
            log.streams()
    except TimelyError:
        log = None  # gone, restored, replaced or damaged: to open it again says which
    if log is None:
        log = open_log(path, storage_options=storage_options)
    _kept.logs[key] = log
    while len(_kept.logs) > _MOST_KEPT:
        del _kept.logs[next(iter(_kept.logs))]
    return log


def forget_logs() -> None:
    """Let go of the handles that this thread keeps, as a new process has none.

    Examples
    --------
    >>> forget_logs()
    """
    _kept.logs.clear()
