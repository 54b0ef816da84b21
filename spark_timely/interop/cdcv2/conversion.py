"""Logs of collections to CDCv2 and back: a log's updates written as messages, and messages imported into a log.

``spark-timely export`` calls `export_collection`, and ``spark-timely import`` gives the lines that it reads to a
`CdcImport`. `exporting` and `importing` do the same for timely's own captures. A capture by Spark that reads CDCv2 is
`spark.capture.cdcv2`.

Invariants
----------
1. An export writes messages about the log's complete times, all of them, and none about times that are still open.
2. The log's frontier is all that an import remembers: an import that begins again reads everything once more, and
   skips what is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher, Words
from spark_timely.errors import InvalidUsageError, ProtocolError, SchemaMismatchError
from spark_timely.interop.cdcv2.reader import CdcReader, keys_of, message_lines, statement_of
from spark_timely.interop.cdcv2.statements import Statement
from spark_timely.interop.exporting import (
    STRETCH_ROWS,
    Exported,
    WholeFiles,
    check_files,
    chosen_types,
    needed_columns,
    rows_between,
    still_to_come,
    stretches,
    times_of,
)
from spark_timely.interop.importing import CaptureTypes
from spark_timely.interop.schema import arrow_schema, type_text
from spark_timely.interop.selection import Selection
from spark_timely.interop.writer import CaptureEncoder
from spark_timely.log import Log
from spark_timely.log.files.format import check_stream_name
from spark_timely.log.files.parquet_reader import read_file
from spark_timely.log.machine.decide import decide_open
from spark_timely.log.machine.since import is_later
from spark_timely.log.machine.state import CommitOutcome
from spark_timely.log.reader import check_between
from spark_timely.log.writer import StreamWriter
from spark_timely.time.antichain import Antichain, IntArray, as_times
from spark_timely.trace.updates import DIFF, Updates, one_zero

_MESSAGE_UPDATES = 8192


def collection_messages(
    log: Log,
    *,
    types: CaptureTypes | None = None,
    columns: Sequence[str] | None = None,
    casts: Mapping[str, str] | None = None,
    up_to: object | None = None,
    stretch_rows: int = STRETCH_ROWS,
) -> Iterator[Updates | Statement]:
    """Yield what is complete in a collection log as CDCv2 messages: updates, then the statement about their times.

    Parameters
    ----------
    log : Log
        A collection log.
    types : CaptureTypes, optional
        Types of times and records; what the log's columns are unless given.
    columns, casts
        As for `export_log`. Updates are consolidated as what they become.
    up_to : frontier, optional
        Only times not beyond it.
    stretch_rows : int
        Updates that are in memory at once, but for those of one time.

    Raises
    ------
    InvalidUsageError
        If the log is no collection.
    SchemaMismatchError
        If the columns do not fit the types.
    SinceViolationError
        If updates at times not beyond `up_to` are no longer distinct from others.

    Notes
    -----
    Updates at times before since stand at since. Updates are consolidated: a record and a time have one diff, and none
    where it would be 0.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> schema = pa.schema([pa.field("v", pa.string(), nullable=False)])
    >>> log = MemoryLog.create(schema, minimum=(0,), kind="collection")
    >>> rows = pa.table({"_time": [1, 1, 2], "v": ["a", "a", "b"], "_diff": [1, 1, -1]})
    >>> _ = log.writer(owner="me").append(rows, advance_to=2)
    >>> list(message_lines(collection_messages(log), time="u64", record="{v: string}"))[0]
    '{"updates": [[{"v": "a"}, 1, 2]]}'
    """
    if log.kind != "collection":
        msg = f"could not write log {log.path!r} as CDCv2: found kind={log.kind!r}"
        raise InvalidUsageError(
            msg, hint="export the log as captures: it is a stream log, and CDCv2 is for collections"
        )
    selection = Selection.parse(columns, casts)
    types = chosen_types(log, types, selection)
    encoder = CaptureEncoder(time=types.time, record=types.record)
    end = log.frontier()
    if up_to is not None:
        upper = log.domain.parse_frontier(up_to)
        check_between(log.core, None, upper, what=f"export log {log.path!r} up to {log.domain.render_frontier(upper)}")
        end = end.meet(upper)
    times, counts = times_of(log, None, end)
    held = [*still_to_come(times, end), end.times.reshape(-1, log.domain.arity)]
    lower = Antichain.of(log.domain.minimum)
    for low, high in stretches(counts, stretch_rows):
        rows, at = rows_between(log, [*needed_columns(log, types), "_diff"], None, end, times, low, high)
        updates = _consolidated(selection.cast(rows), times[low:high][at], encoder)
        for first in range(0, len(updates), _MESSAGE_UPDATES):
            yield updates.slice(first, min(_MESSAGE_UPDATES, len(updates) - first))
        upper = Antichain(held[high], log.domain.arity)
        yield statement_of(lower, upper, updates.times)
        lower = upper
    if lower != end:
        yield Statement(lower, end, {})


def _consolidated(rows: pa.Table, times: IntArray, encoder: CaptureEncoder) -> Updates:
    """Sum the diffs of equal records at equal times, by the records' bytes."""
    rows = one_zero(rows)  # which a log takes for one
    (key, *_) = keys_of(encoder, rows, times).values()
    codes = np.asarray(key.dictionary_encode().indices.to_numpy(), np.int64)
    diffs = np.asarray(rows.column(DIFF).to_numpy(), np.int64)
    summed = Updates(rows.drop_columns([DIFF]), times, diffs).consolidated(group=codes)
    return replace(summed, rows=pa.Table.from_batches([encoder.fitted(summed.rows)]))


def export_collection(
    log: Log,
    folder: str | os.PathLike[str],
    *,
    files: int = 1,
    types: CaptureTypes | None = None,
    columns: Sequence[str] | None = None,
    casts: Mapping[str, str] | None = None,
    up_to: object | None = None,
    name: str = "cdcv2",
    stretch_rows: int = STRETCH_ROWS,
    report: Callable[[int], None] = lambda n: None,
) -> list[Exported]:
    """Write a collection log to files of CDCv2 messages as lines of JSON, dealt to the files in turn.

    Parameters
    ----------
    log, types, columns, casts, up_to, stretch_rows
        As for `collection_messages`.
    folder : path
        Made, if it is not there.
    files : int
        How many; only together they say everything.
    name : str
        What the files' names begin with.
    report : callable
        Gets the number of updates of each message.

    Raises
    ------
    InvalidUsageError, SchemaMismatchError
        As `collection_messages`; and if a file is there already.
    """
    types = chosen_types(log, types, Selection.parse(columns, casts))
    check_files(log, files)
    records, messages = [0] * files, [0] * files
    with WholeFiles(f"log {log.path!r}", folder, [f"{name}_{i}.jsonl" for i in range(files)]) as whole:
        stream = collection_messages(
            log, types=types, columns=columns, casts=casts, up_to=up_to, stretch_rows=stretch_rows
        )
        for number, message in enumerate(stream):  # a message has some thousand updates
            i = number % files
            (line,) = message_lines([message], time=types.time, record=types.record)
            whole.files[i].write(f"{line}\n".encode())
            n = len(message) if isinstance(message, Updates) else 0
            messages[i] += 1
            records[i] += n
            report(n)
        whole.finish()
    texts = (type_text(types.time), type_text(types.record))
    return [
        Exported(str(path), messages[i], records[i], path.stat().st_size, *texts) for i, path in enumerate(whole.paths)
    ]


class CdcImport:
    """Takes CDCv2 messages, in any order and any number of copies, into a stream of a collection log.

    Parameters
    ----------
    log : Log or callable
        A collection log; or what gives one, where there is none yet: called once there is something to write.
    stream : str
        Opened, if it is not there yet, with the first commit; see `open`.
    types : CaptureTypes

    Raises
    ------
    InvalidUsageError
        If the log is no collection.
    OwnershipError
        If the stream is not an import of these types.
    NotBeyondError, ClosedError
        If the log has no capability at its minimum left.

    Examples
    --------
    >>> from spark_timely.interop.cdcv2.reader import read_message
    >>> from spark_timely.log import MemoryLog
    >>> types = CaptureTypes.parse("u64", "string")
    >>> log = MemoryLog.create(types.payload, minimum=(0,), kind="collection")
    >>> lines = ['{"progress": {"lower": [0], "upper": [], "counts": [[1, 1]]}}', '{"updates": [["a", 1, 1]]}']
    >>> for _ in range(2):
    ...     task = CdcImport(log, "main", types)
    ...     _ = task.extend([read_message(line, time="u64", record="string") for line in lines * 2])
    >>> log.frontier().is_empty, log.messages().num_rows
    (True, 1)
    """

    def __init__(self, log: Log | Callable[[], Log], stream: str, types: CaptureTypes) -> None:
        self._types = types
        self._stream = stream
        # Messages of CDCv2 are the same in all versions of timely, and have no stamps.
        self._owner = f"cdcv2 {CaptureTypes(types.time, types.record).owner}"
        self._log: Log | None = None
        self._make: Callable[[], Log] | None = None
        self._writer: StreamWriter | None = None
        self.added = 0
        """Updates that were added."""
        check_stream_name(stream)
        if isinstance(log, Log):
            self._attach(log)
        else:
            self._make = log
        self._began = self.frontier
        self._behind: list[Words] = []
        self._reader = CdcReader(time=types.time, record=types.record, frontier=self._began)

    def _attach(self, log: Log) -> Log:
        """Check that messages can go to a stream of the log."""
        if log.kind != "collection":
            msg = f"could not import CDCv2 into log {log.path!r}: found kind={log.kind!r}"
            raise InvalidUsageError(msg, hint="create the log with kind='collection': CDCv2 describes collections")
        wanted = self._types.layout.domain
        if log.domain.arity != wanted.arity:
            msg = f"could not import CDCv2 into log {log.path!r}: found times of {log.domain.arity} coordinates"
            hint = (
                f"declare another type, or use another log: times of type {type_text(self._types.time)} have"
                f" {wanted.arity}"
            )
            raise SchemaMismatchError(msg, hint=hint)
        log.core.check_writable()
        log.refresh()
        minimum = log.domain.minimum
        states = log.core.ends()
        decide_open(log.path, log.domain, states, self._stream, owner=self._owner, at=minimum, donor=None, clock=0)
        self._log = log
        if self._stream in states:
            self.open()
        return log

    def open(self) -> StreamWriter:
        """Open the stream if it is not there yet, so that the log's frontier waits for the messages."""
        if self._writer is None and self._log is None:
            assert self._make is not None
            self._attach(self._make())
        if self._writer is None:
            assert self._log is not None
            minimum = np.array(self._log.domain.minimum)
            self._log.core.open_stream(self._stream, owner=self._owner, at=minimum)
            self._writer = self._log.writer(self._stream, owner=self._owner)
        return self._writer

    @property
    def frontier(self) -> Antichain:
        """How far the stream is complete in the log."""
        if self._writer is not None:
            return self._writer.frontier
        return (self._types.layout if self._log is None else self._log).domain.minimum_frontier

    @property
    def pending(self) -> int:
        """Updates that have come and are not complete: after a restart they must come once more."""
        return self._reader.pending

    def extend(self, messages: Iterable[Updates | Statement]) -> CommitOutcome | None:
        """Take messages; append what became complete, in one commit. None if nothing did.

        Raises
        ------
        ProtocolError
            If messages contradict one another, are not consolidated, or state updates before the log's least time.
            The log is as it was.
        UpperMismatchError, StorageError
            If somebody else appended to the stream meanwhile, or the log cannot be written: begin again with a new
            import, which hears everything once more.
        """
        messages = list(messages)
        for message in messages:
            self._check_beginning(message)
            if isinstance(message, Updates):
                self._remember(message)
        if self._reader.frontier.is_empty:
            return None
        before = self._reader.frontier
        output = self._reader.extend(messages)
        if output is None:
            return None
        writer = self.open()
        updates = output.updates
        columns = dict(zip(updates.rows.schema.names, updates.rows.columns, strict=True))
        columns |= writer.core.domain.to_columns(updates.times)
        columns["_diff"] = pa.array(updates.diffs)
        read = writer.core.domain.frontier_from_json  # it checks that the log's types hold them
        outcome = writer.compare_and_append(
            pa.table(columns), expected=read(before.to_json()), upper=read(output.frontier.to_json()), reason="cdcv2"
        )
        self.added += updates.diffs.shape[0]
        return outcome

    def _remember(self, updates: Updates) -> None:
        """Keep hashes of updates at times that the log had complete: they must be copies. See `check_copies`."""
        if self._log is None or not updates.times.shape[0]:
            return
        behind, since = ~self._began.beyond(updates.times), self._log.since()
        if since != self._log.domain.minimum_frontier:
            behind &= is_later(since, updates.times)
        if not behind.any():
            return
        columns = dict(zip(updates.rows.schema.names, updates.rows.columns, strict=True))
        columns |= self._log.domain.to_columns(updates.times)
        rows = pa.table({**columns, "_diff": pa.array(updates.diffs)}).filter(pa.array(behind))
        self._behind.append(RowHasher(rows.schema).hash(rows))

    def check_copies(self) -> None:
        """Refuse an import that had other updates than the log, at times that were complete before it began.

        They were not added: nothing may be, there. What the log has forgotten, up to since, is not judged.

        Raises
        ------
        ProtocolError
            With how many there are.

        Notes
        -----
        Cost: where there were any updates at such times, one pass over the stream's files.
        """
        if self._log is None or not self._behind:
            return
        wanted = np.unique(np.concatenate(self._behind), axis=0).view(np.dtype((np.void, 16))).ravel()
        names = [*self._log.domain.columns, "_diff", *arrow_schema(self._types.record).names]
        self._log.core.look_into()
        hasher, found = RowHasher(names), np.zeros(wanted.shape[0], np.bool_)
        for path in self._log.core.files().paths.tolist():
            table = read_file(self._log.core.storage, path, self._log.core.format.data_schema)
            rows = table.filter(pc.equal(table["_stream"], self._stream)).select(names)
            hashes = np.ascontiguousarray(hasher.hash(rows)).view(np.dtype((np.void, 16))).ravel()
            found |= np.isin(wanted, hashes)
        if not found.all():
            n = int((~found).sum())
            msg = (
                f"could not import CDCv2 into log {self._log.path!r}: found {n} updates that it does not have, at times"
                f" that it had complete up to {self._log.domain.render_frontier(self._began)}"
            )
            raise ProtocolError(
                msg, hint="import them into another log: these messages contradict those that were imported before"
            )

    def _check_beginning(self, message: Updates | Statement) -> None:
        """Refuse what would come before the log's least time: it would be passed over as if the log had it."""
        domain = self._types.layout.domain if self._log is None else self._log.domain
        if isinstance(message, Updates):
            times = message.times
        else:
            times = as_times([time for time, count in message.counts.items() if count], domain.arity)
        early = np.flatnonzero(~domain.minimum_frontier.beyond(times))
        if early.shape[0]:
            time = domain.render_time(times[early[0]].tolist())
            where = "" if self._log is None else f" into log {self._log.path!r}"
            msg = f"could not import CDCv2{where}: found an update at time={time!r}"
            least = domain.render_time(domain.minimum)
            raise ProtocolError(msg, hint=f"import into a log that begins earlier: this one begins at {least!r}")
