"""Import captures into a log: one stream of the log for each, as the capture has it.

What a commit holds are the events of a stretch of the capture, all messages before all progress. That
is as legal as the events one by one are, which is checked before: a progress only allows times beyond
those it had, and who may use a time after it might use it before.

Invariants
----------
1. The log says how far it has the capture: position and number of events are in the commit that has
   their last rows. So an import can stop anywhere and go on, and done twice it adds nothing.
2. What was imported is not trusted to be still what the capture begins with: it is compared.
3. Every event is judged by the protocol before anything of its commit is written; timely checks nothing.
4. The stream's frontier in the log is that of the capture, up to its last whole event: what is missing
   at the end of an unfinished capture keeps it where it is.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_timely.antichain import Antichain
from spark_timely.errors import (
    CaptureFormatError,
    LogFormatError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    TimelyInternalError,
    shown,
)
from spark_timely.exchange.chunk import CaptureChunk
from spark_timely.exchange.declared import CaptureTypes
from spark_timely.exchange.judge import judge_chunk
from spark_timely.exchange.reader import CaptureReader
from spark_timely.exchange.schema import type_text
from spark_timely.log.base import CommitRequest, DataFile
from spark_timely.log.core import LogCore
from spark_timely.log.files import conform, message_table, write_data_files
from spark_timely.log.format import canonical_type

__all__ = ["Imported", "StreamImport"]

COMMIT_BYTES = 32 << 20
COMMIT_ROWS = 2 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Imported:
    """How far the log has a capture.

    Parameters
    ----------
    name : str
        What the capture was called: its file, or its address.
    stream : str
    position, events : int
        Bytes and events that the log has.
    new_events, new_records : int
        Those of them that this import added.
    unfinished : int
        Bytes behind the last whole event.
    frontier : Antichain
    closed : bool
    """

    name: str
    stream: str
    position: int
    events: int
    new_events: int
    new_records: int
    unfinished: int
    frontier: Antichain
    closed: bool


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a commit of an import came, as its reason tells."""

    position: int = 0
    events: int = 0
    checksum: int = 0
    """Of everything before the position."""
    tail: int = 0
    """Where the last stretch begins that has a checksum of its own."""
    tail_checksum: int = 0

    def reason(self, name: str) -> str:
        facts = {
            "import": name,
            "bytes": self.position,
            "events": self.events,
            "crc32": self.checksum,
            "tail": [self.tail, self.tail_checksum],
        }
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def of_reason(cls, reason: str) -> _Mark | None:
        try:
            facts = json.loads(reason)
            tail, tail_checksum = facts["tail"]
            return cls(facts["bytes"], facts["events"], facts["crc32"], tail, tail_checksum)
        except (ValueError, TypeError, KeyError):
            return None


def _never() -> bool:
    return False


class _Input(Protocol):
    """A capture from its beginning."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer from its beginning; 0 where there are no bytes for now."""


class StreamImport:
    """Takes one capture into one stream of a log.

    Parameters
    ----------
    log : LogCore
    stream : str
        Opened, if it is not there yet, with a capability at the minimum.
    types : CaptureTypes
    name : str
        What the capture is called, for people.
    commit_bytes : int
        Bytes of the capture that one commit takes, about.
    max_delay_s : float, optional
        How long events may wait for more to come before they are committed; for captures that are still being made.
    tell : callable, optional
        Is told the bytes of the capture that each commit took.
    clock : callable
        Seconds, for `max_delay_s`.

    Raises
    ------
    OwnershipError
        If the stream is not an import of these types.
    NotBeyondError, ClosedError
        If the log has no capability at its minimum left.
    SchemaMismatchError
        If the log has other columns, or other times.

    Examples
    --------
    >>> import io
    >>> from spark_timely.exchange.writer import capture_bytes
    >>> from spark_timely.log.memory import MemoryLog
    >>> types = CaptureTypes.parse("u64", "u64")
    >>> log = MemoryLog.create(types.payload, times=("long",), minimum=(0,))
    >>> data = capture_bytes([(0, [7, 8]), {0: -1}], time="u64", record="u64")
    >>> for _ in range(2):
    ...     done = StreamImport(log, "w0", types, name="x").take_whole(io.BytesIO(data))
    ...     print(done.new_events, done.closed)
    2 True
    0 True
    """

    def __init__(
        self,
        log: LogCore,
        stream: str,
        types: CaptureTypes,
        *,
        name: str,
        commit_bytes: int = COMMIT_BYTES,
        max_delay_s: float | None = None,
        tell: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self.stream = stream
        self.types = types
        self.name = name
        self._commit_bytes = commit_bytes
        self._max_delay_s = max_delay_s
        self._tell = tell
        self._clock = clock
        _check_log(log, types)
        log.check_writable()
        self._state = log.open_stream(stream, owner=types.owner, at=list(log.domain.minimum))
        self._mark = self._recorded_mark()
        self._counts = self._state.counts
        self._new_events = self._new_records = 0
        self._unfinished = 0

    @property
    def position(self) -> int:
        """Bytes of the capture that the log has."""
        return self._mark.position

    @property
    def closed(self) -> bool:
        """Whether the capture has ended, so that nothing can follow."""
        return self._state.closed

    def _recorded_mark(self) -> _Mark:
        """Find how far the log has the capture."""
        if self._state.batch is None:
            return _Mark()
        recorded = self.log.recorded(self.stream, self._state.batch)
        mark = None if recorded is None else _Mark.of_reason(recorded.reason)
        if mark is None or mark.position != self._state.batch:
            msg = f"could not go on with stream {self.stream!r} of log {self.log.path!r}: found no mark of an import"
            raise TimelyInternalError(msg)
        return mark

    def result(self) -> Imported:
        """Return how far the log has the capture."""
        return Imported(
            self.name,
            self.stream,
            self._mark.position,
            self._mark.events,
            self._new_events,
            self._new_records,
            self._unfinished,
            self._state.frontier,
            self._state.closed,
        )

    def take_file(self, path: str, *, again: Callable[[], bool] = _never) -> Imported:
        """Import what a file has and the log has not.

        Parameters
        ----------
        path : str
        again : callable
            Is asked at the end of an unfinished file whether to look once more; it may take its time.

        Raises
        ------
        CaptureFormatError
            If the file is no longer what was imported from it, or an event is not of the declared types.
        ProtocolError
            If an event breaks the protocol. What came before its commit is imported.
        OSError
            If the file cannot be read.
        """
        with open(path, "rb", buffering=0) as file:
            mark = self._mark
            file.seek(mark.tail)
            checksum, left = 0, mark.position - mark.tail
            while left and (block := file.read(min(left, _BLOCK))):
                checksum, left = zlib.crc32(block, checksum), left - len(block)
            if left or checksum != mark.tail_checksum:
                found = f"{left} bytes less" if left else "other bytes"
                raise self._another(found=found)
            return self._take(file, again)

    def take_whole(self, source: _Input, *, again: Callable[[], bool] = _never) -> Imported:
        """Import a capture that is sent from its beginning; what the log has of it is compared and passed over.

        A source that ends before it has come so far adds nothing: it is the same capture, sent once more.

        Parameters
        ----------
        source
            Its `readinto` gives 0 where there is nothing for now.
        again : callable
            Is asked then whether more may come.

        Raises
        ------
        CaptureFormatError, ProtocolError
            As `take_file`.
        """
        buffer = memoryview(bytearray(_BLOCK))
        checksum, left = 0, self._mark.position
        while left:
            n = source.readinto(buffer[: min(left, _BLOCK)])
            if not n:
                if again():
                    continue
                return self.result()
            checksum, left = zlib.crc32(buffer[:n], checksum), left - n
        if checksum != self._mark.checksum:
            raise self._another(found="other bytes")
        return self._take(source, again)

    def _another(self, *, found: str) -> CaptureFormatError:
        msg = (
            f"could not go on with the import of {self.name!r} into stream {self.stream!r}: found {found} than the"
            f" {self._mark.position} bytes that the log has"
        )
        hint = "this is another capture, or it was changed: import it into another stream"
        return CaptureFormatError(msg, hint=hint, event=self._mark.events, position=self._mark.position)

    def _take(self, source: _Input, again: Callable[[], bool]) -> Imported:
        reader = CaptureReader(
            source,
            time=self.types.time,
            record=self.types.record,
            position=self._mark.position,
            event=self._mark.events,
            checksum=self._mark.checksum,
        )
        while True:
            for stretch in self._stretches(reader):
                self._commit(stretch, reader)
            self._unfinished = reader.unfinished
            if self.closed or not again():
                return self.result()

    def _stretches(self, reader: CaptureReader) -> Iterator[list[CaptureChunk]]:
        """Yield the chunks of each commit, judged."""
        pending: list[CaptureChunk] = []
        n_bytes = n_rows = 0
        since = self._clock()
        try:
            for chunk in reader:
                self._counts = judge_chunk(chunk, self._counts, reader.times, self.stream)
                pending.append(chunk)
                n_bytes += int(chunk.positions[-1] - chunk.positions[0])
                n_rows += chunk.n_records
                late = self._max_delay_s is not None and self._clock() - since >= self._max_delay_s
                if n_bytes >= self._commit_bytes or n_rows >= COMMIT_ROWS or late:
                    yield pending
                    pending, n_bytes, n_rows, since = [], 0, 0, self._clock()
        except BaseException:
            # Nothing of the stretch at hand is committed: a wrong type may have decoded well so far.
            self._counts = self._state.counts
            raise
        if pending:
            yield pending

    def _commit(self, chunks: list[CaptureChunk], reader: CaptureReader) -> None:
        log, state = self.log, self._state
        low, high = int(chunks[0].positions[0]), int(chunks[-1].positions[-1])
        events = chunks[-1].first_event + chunks[-1].n_events
        times = np.concatenate([chunk.record_times for chunk in chunks])
        # Messages first, then the progress: see the head of this module.
        files: list[DataFile] = []
        if times.shape[0]:
            payload = conform(pa.Table.from_batches([chunk.records for chunk in chunks]), log.format.payload)
            files = write_data_files(
                log.storage,
                message_table(log.format, payload, times, self.stream, state.seq + 1),
                times,
                stream=self.stream,
                seq=state.seq + 1,
                domain=log.domain,
            )
        mark = _Mark(high, events, reader.checksum or 0, *reader.tail)
        request = CommitRequest(
            stream=self.stream,
            owner=self.types.owner,
            progress_times=np.concatenate([chunk.progress_times for chunk in chunks]),
            progress_deltas=np.concatenate([chunk.progress_deltas for chunk in chunks]),
            batch=high,
            step=0,
            expected_seq=state.seq,
            files=files,
            reason=mark.reason(self.name),
        )
        try:
            self._state = log.commit(request).state
        except TimelyError as error:
            if not isinstance(error, StorageError) or error.determinate:
                log._discard_refused(files)
            raise
        self._mark = mark
        self._new_events += sum(chunk.n_events for chunk in chunks)
        self._new_records += times.shape[0]
        if self._tell is not None:
            self._tell(high - low)


def _check_log(log: LogCore, types: CaptureTypes) -> None:
    """Refuse a log of another kind, with other columns or other times."""
    wanted = types.layout.domain
    if log.kind != "stream" or (log.domain.types, log.domain.minimum) != (wanted.types, wanted.minimum):
        msg = (
            f"could not import into log {log.path!r}: found kind={log.kind!r}, times"
            f" {[type_.value for type_ in log.domain.types]} from {log.domain.minimum!r}"
        )
        hint = (
            f"times of type {type_text(types.time)} need a stream log, {[type_.value for type_ in wanted.types]}"
            f" from {wanted.minimum!r}"
        )
        raise SchemaMismatchError(msg, hint=hint)
    fields = [(field.name, canonical_type(field.type, field.name), field.nullable) for field in types.payload]
    found = [(field.name, field.type, field.nullable) for field in log.format.declared]
    if found != fields:
        msg = f"could not import into log {log.path!r}: found columns {shown(log.schema.names)} of other types or names"
        raise SchemaMismatchError(msg, hint=f"records of type {type_text(types.record)} need {shown(fields)}")
    if log.format.merged:
        msg = f"could not import into log {log.path!r}: found columns {shown(log.format.merged)} that came later"
        raise LogFormatError(msg, hint="import into a log of its own")
