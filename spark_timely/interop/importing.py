"""Import of captures into a log, each as a stream of its own, resumable and exactly once.

A `StreamImport` takes one capture, of a file or of what `sockets` receives; ``spark-timely import`` runs one for each.
`CaptureTypes` are the declared types, which exports use too. Imports of CDCv2 are `cdcv2.conversion`.

A commit holds the events of a stretch of the capture, all messages before all progress. That is legal where the events
one by one are, which is checked first: progress never allows a time that was not allowed before it, so a message that
came after it could also have come before.

The bytes of a capture do not say which version of timely wrote them, and may be valid in both. So the user declares the
version; or `found_version` reads the whole of a file that does not grow, and returns the one version that its bytes
fit. The stream keeps it.

Invariants
----------
1. The log says how much of the capture it has: the position and the number of events are in the commit that has
   their last rows. So an import can stop anywhere and continue, and done twice it adds nothing.
2. What was imported is not trusted to be still what the capture begins with: all of it is compared, by a checksum.
3. Every event is judged by the protocol before anything of its commit is written; timely checks nothing.
4. A capture that is refused before its first commit changes nothing: its stream, and a log that does not exist
   yet, are made when there is something to commit, or when a capture has ended well.
5. The stream's frontier in the log is that of the capture after its last whole event: an event that was cut off at the
   end of an unfinished capture does not move it.
6. A part of a capture that may grow never shows that a version of timely fits. It may show that one does not fit, since
   that one then does not fit however the capture grows.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.conf.kinds import seconds_of
from spark_timely.errors import (
    CaptureFormatError,
    ClosedError,
    InvalidUsageError,
    OwnershipError,
    RolledBackError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    TimelyInternalError,
    UpperMismatchError,
    shown,
)
from spark_timely.interop.chunk import VERSIONS, CaptureChunk, TimelyVersion, judge_chunk, timely_version
from spark_timely.interop.jsonl import JsonLines
from spark_timely.interop.reader import CaptureReader, GrowingFile, Source
from spark_timely.interop.schema import Type, arrow_schema, columns_of, parse_type, type_text
from spark_timely.interop.stamps import (
    STAMP,
    Placed,
    StampRules,
    Stamps,
    Unstamped,
    Updates,
    are_updates,
    place_records,
    stamp_type,
)
from spark_timely.interop.time_layout import TimeLayout
from spark_timely.log import Log
from spark_timely.log.files.format import canonical_type, check_stream_name, conform
from spark_timely.log.files.parquet import letter_table, message_table, write_data_files
from spark_timely.log.machine.decide import decide_open
from spark_timely.log.machine.state import CommitRequest, DataFile, StreamState
from spark_timely.protocol.note import ImportMark, MicroBatch, Note
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import Antichain

_OWNER = "import "


@dataclass(frozen=True, slots=True)
class CaptureTypes:
    """The declaration of captures: the types of their times and records, and how stamps are read.

    Parameters
    ----------
    time, record : Type
    timely : str, optional
        Version of timely that wrote them, ``0.31`` or ``0.32``; None if that is not known yet.
    stamps : str
        ``column`` keeps the stamps of 0.32 in a column `stamp`; ``refuse`` refuses records with several times of a
        partial order, of which none is theirs.
    updates : str
        Whether records are updates (data, time, diff), which stand at their own times: ``yes``, ``no``, or ``auto``:
        those of 0.32 that have the type ``(data, time, i64)``.

    Examples
    --------
    >>> CaptureTypes.parse("u64", "(String, u64)").owner
    'import u64 (string, u64)'
    >>> CaptureTypes.parse("u64", "(String, u64)", timely="0.32").owner
    'import timely=0.32 u64 (string, u64)'
    """

    time: Type
    record: Type
    _: KW_ONLY
    timely: TimelyVersion | None = None
    stamps: Stamps = "refuse"
    updates: Updates = "auto"

    @classmethod
    def parse(
        cls,
        time: str,
        record: str,
        *,
        timely: str | None = None,
        stamps: str = "refuse",
        updates: str = "auto",
    ) -> CaptureTypes:
        """Read the types, and check how they fit together.

        Raises
        ------
        InvalidUsageError
            If a type cannot be read, or something else is none of its values, or not possible with these types.
        """
        types = cls(
            parse_type(time),
            parse_type(record),
            timely=None if timely is None else timely_version(timely),
            stamps=_one_of("stamps", stamps, get_args(Stamps)),
            updates=_one_of("updates", updates, get_args(Updates)),
        )
        TimeLayout(types.time)
        are_updates(types.time, types.record, types.updates)
        names = [name for name, _ in columns_of(types.record)]
        if types.stamps == "column" and STAMP in map(str.lower, names):
            msg = f"could not keep stamps in a column {STAMP!r}: found columns={shown(names)} of records"
            raise InvalidUsageError(msg, hint="give the field of the records another name")
        return types if types.timely is None else types.settled(types.timely)

    def settled(self, timely: TimelyVersion) -> CaptureTypes:
        """Return the types for captures of a version.

        Raises
        ------
        InvalidUsageError
            If 0.31 is to have stamps.
        """
        if timely == "0.31" and self.stamps == "column":
            msg = "could not keep stamps of captures of Timely 0.31: found stamps='column'"
            raise InvalidUsageError(msg, hint="leave it out: a message of 0.31 has one time, which its records have")
        return replace(self, timely=timely)

    @property
    def version(self) -> TimelyVersion:
        """Version of timely; the one that was there first if none is known."""
        return self.timely or VERSIONS[0]

    @property
    def owner(self) -> str:
        """Owner of the streams that captures of these types become: an import with others is not theirs."""
        facts = [
            f"{name}={value}"
            for name, value, usual in (
                ("timely", self.version, "0.31"),
                ("stamps", self.stamps, "refuse"),
                ("updates", self.updates, "auto"),
            )
            if value != usual
        ]
        return _OWNER + " ".join([*facts, type_text(self.time), type_text(self.record)])

    @property
    def are_updates(self) -> bool:
        """Whether records are updates that stand at their own times."""
        if self.version == "0.31" and self.updates == "auto":
            return False
        return are_updates(self.time, self.record, self.updates)

    def rules(self, unstamped: Unstamped = "refuse") -> StampRules:
        """Return what is done with stamps."""
        return StampRules(self.layout, self.record, self.are_updates, self.stamps == "column", unstamped)

    @property
    def payload(self) -> pa.Schema:
        """Payload columns of a log of these records.

        Raises
        ------
        SchemaMismatchError
            If records hold nothing, or something that a table cannot have.
        """
        schema = arrow_schema(self.record)
        if self.stamps == "column":
            schema = schema.append(pa.field(STAMP, stamp_type(self.layout), nullable=False))
        for field in schema:
            canonical_type(field.type, field.name)
        return schema

    @property
    def layout(self) -> TimeLayout:
        """Layout of the times."""
        return TimeLayout(self.time)


def import_owner(state: StreamState) -> CaptureTypes | None:
    """Return the types with which a stream was imported, None if it was not.

    A type has balanced parentheses, so the text is cut where the first of both is whole. What comes before them has an
    equals sign, which no type has.
    """
    text = (state.owner or "").removeprefix("cdcv2 ")
    if not text.startswith(_OWNER):
        return None
    words = text[len(_OWNER) :].split(" ")
    facts = {"timely": VERSIONS[0]} | dict(word.split("=", 1) for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    for i in range(1, len(words)):
        try:
            return CaptureTypes.parse(" ".join(words[:i]), " ".join(words[i:]), **facts)
        except (InvalidUsageError, TypeError):
            continue
    return None


_Word = TypeVar("_Word", bound=str)


def _one_of(name: str, value: object, words: tuple[_Word, ...]) -> _Word:
    for word in words:
        if word == value:
            return word
    msg = f"could not import captures: found {name}={value!r}"
    raise InvalidUsageError(msg, hint=f"give one of {', '.join(map(repr, words))}")


def check_log(log: Log, types: CaptureTypes) -> None:
    """Refuse a log of another kind, with other columns or other times, for imports of these types.

    Raises
    ------
    SchemaMismatchError
    """
    wanted = types.layout.domain
    if log.kind != "stream" or (log.domain.types, log.domain.minimum) != (wanted.types, wanted.minimum):
        msg = (
            f"could not import into log {log.path!r}: found kind={log.kind!r}, times"
            f" {[type_.value for type_ in log.domain.types]} from {log.domain.minimum!r}"
        )
        hint = (
            f"import into a stream log of times {[type_.value for type_ in wanted.types]} from {wanted.minimum!r}:"
            f" times of type {type_text(types.time)} need one"
        )
        raise SchemaMismatchError(msg, hint=hint)
    fields = [(field.name, canonical_type(field.type, field.name), field.nullable) for field in types.payload]
    found = [(field.name, field.type, field.nullable) for field in log.core.format.declared]
    if found != fields:
        msg = f"could not import into log {log.path!r}: found columns {shown(log.schema.names)} of other types or names"
        raise SchemaMismatchError(
            msg,
            hint=f"import into a log with columns {shown(fields)}, or declare another type: records are now"
            f" {type_text(types.record)}",
        )


COMMIT_BYTES = 32 << 20
COMMIT_ROWS = 2 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Imported:
    """The state of a capture in the log: how much of it is there.

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
    missing : int
        Bytes that the log has and that were not sent when the capture was sent once more.
    frontier : Antichain
    closed : bool
    timely : str
        Version of timely that wrote the capture.
    dropped, dead : int
        Records without a time that this import left out, or set apart as dead letters.
    """

    name: str
    stream: str
    position: int
    events: int
    new_events: int
    new_records: int
    unfinished: int
    missing: int
    frontier: Antichain
    closed: bool
    timely: TimelyVersion
    dropped: int = 0
    dead: int = 0


def _never() -> bool:
    return False


def _end_there(has_news: Callable[[], bool]) -> bool:
    del has_news
    return False


class StreamImport:
    """Takes one capture into one stream of a log.

    Parameters
    ----------
    log : Log or callable
        What gives the log, where there is none yet: called once there is something to write.
    stream : str
        If it is not there yet, it is opened with a capability at the minimum; see `open`.
    types : CaptureTypes
    name : str
        What the capture is called, for people.
    unstamped : str
        What to do with plain records in messages of 0.32 without any time: ``refuse`` the capture, ``drop`` them and
        count, or set them apart as a ``dead-letter``, at the least time there is.
    commit_bytes : int
        Bytes of the capture that one commit takes, about.
    max_delay_s : float, optional
        How long events may wait for more to come before they are committed; for captures that are still being made.
    report : callable
        Gets the bytes of the capture that each commit took.
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
    >>> from spark_timely.interop.writer import capture_bytes
    >>> from spark_timely.log import MemoryLog
    >>> types = CaptureTypes.parse("u64", "u64", timely="0.31")
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
        log: Log | Callable[[], Log],
        stream: str,
        types: CaptureTypes,
        *,
        name: str,
        unstamped: Unstamped = "refuse",
        commit_bytes: int = COMMIT_BYTES,
        max_delay_s: float | None = None,
        report: Callable[[int], None] = lambda n: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = stream
        self.types = types
        self.name = name
        self._unstamped: Unstamped = _one_of("unstamped", unstamped, get_args(Unstamped))
        self._commit_bytes = commit_bytes
        self._max_delay_s = seconds_of(
            f"could not import into stream {stream!r}", "max_delay_s", max_delay_s, optional=True
        )
        self._report = report
        self._clock = clock
        self._log: Log | None = None
        self._make: Callable[[], Log] | None = None
        self._state: StreamState | None = None
        self._mark = ImportMark()
        check_stream_name(stream)
        if isinstance(log, Log):
            self._attach(log)
        else:
            self._make = log
        self._counts = self._held()
        self._new_events = self._new_records = self._dropped = self._dead = 0
        self._unfinished = self._missing = 0
        self._place_of: Callable[[int], int | None] | None = None

    @property
    def position(self) -> int:
        """Bytes of the capture that the log has."""
        return self._mark.position

    @property
    def closed(self) -> bool:
        """Whether the capture has ended, so that nothing can follow."""
        return self._state is not None and self._state.closed

    @property
    def opened(self) -> bool:
        """Whether the log has the stream."""
        return self._state is not None

    def _attach(self, log: Log) -> Log:
        """Check that the capture can become a stream of the log, and find how far it has come."""
        check_log(log, self.types)
        log.core.check_writable()
        log.refresh()
        states = log.core.ends()
        self._agree(log, states.get(self.stream))
        minimum = log.domain.minimum
        found = decide_open(
            log.path, log.domain, states, self.stream, owner=self.types.owner, at=minimum, donor=None, clock=0
        )
        if isinstance(found, StreamState):
            self._state, self._mark = found, newest_mark(log, found)
        self._log = log
        return log

    def _agree(self, log: Log, state: StreamState | None) -> None:
        """Take the version of timely that the stream has, and refuse another one."""
        known = import_owner(state) if state is not None and (state.owner or "").startswith(_OWNER) else None
        if known is None or known.timely is None:
            return
        if self.types.timely is None and replace(self.types, timely=known.timely) == known:
            self.types = known
        elif self.types.timely is not None and replace(known, timely=self.types.timely) == self.types != known:
            msg = (
                f"could not continue the import of {shown(self.name)} into stream {self.stream!r} of log {log.path!r}:"
                f" found it imported as Timely {known.timely}, not {self.types.timely}"
            )
            hint = f"import it as Timely {known.timely}; a capture of another version needs another stream"
            context = {"path": log.path, "stream": self.stream, "owner": known.owner}
            raise OwnershipError(msg, hint=hint, context=context)

    def settle(self, timely: TimelyVersion) -> None:
        """Declare which version of timely wrote the capture, where that was not known; else nothing changes."""
        if self.types.timely is None:
            self.types = self.types.settled(timely)

    def _check_settled(self) -> None:
        if self.types.timely is None:
            msg = f"could not import {shown(self.name)}: found no version of Timely declared, and none in the log"
            raise InvalidUsageError(msg, hint=_DECLARE)

    def _held(self) -> StreamCounts:
        """Return the counts by which the next event is judged."""
        if self._state is not None:
            return self._state.counts
        return StreamCounts.initial(self.types.layout.domain.minimum)

    def open(self) -> StreamState:
        """Open the stream if it is not there yet, so that the log's frontier waits for the capture.

        A first commit does so, and so does a capture that ends well without any event. Call it before a
        capture begins, where other streams may use up the log's capabilities at its minimum meanwhile.

        Raises
        ------
        UpperMismatchError
            If another import opened it meanwhile, and has gone on.
        """
        self._check_settled()
        log = self._log
        if log is None:
            assert self._make is not None
            log = self._attach(self._make())
            if self._mark.position:
                raise self._overtaken(0, self._mark.position)
        if self._state is None:
            self._state = log.core.open_stream(self.stream, owner=self.types.owner, at=np.array(log.domain.minimum))
            if self._state.seq:
                raise self._overtaken(0, self._state.seq)
        return self._state

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
            self._missing,
            self._held().frontier,
            self.closed,
            self.types.version,
            self._dropped,
            self._dead,
        )

    def rehearse(self, source: Source) -> None:
        """Read and judge what the first commit would take, and write nothing.

        Raises
        ------
        CaptureFormatError, ProtocolError
            As `take_whole` would.
        """
        self._check_settled()
        for _ in self._stretches(self._reader(source)):
            break
        self._counts = self._held()

    def take_file(
        self,
        path: str,
        *,
        wait: Callable[[Callable[[], bool]], bool] = _end_there,
        wrap: Callable[[GrowingFile], Source] | None = None,
    ) -> Imported:
        """Import what a file has and the log has not.

        Where the version of timely is neither declared nor in the log, all of the file is read to find it
        (`found_version`), unless it is to be followed.

        Parameters
        ----------
        path : str
        wait : callable
            Is called at the end of an unfinished file with a function that tells whether there is more, and may take
            its time; the import continues if it returns true. By default it ends there.
        wrap : callable
            Gives the bytes of the capture for those of the file, where these are others.

        Raises
        ------
        CaptureFormatError
            If the file is no longer what was imported from it, or an event is not of the declared types.
        ProtocolError
            If an event breaks the protocol. What came before its commit is imported.
        InvalidUsageError
            If no version of timely is declared, and it is not the only one that fits a file that is not followed.
        OSError
            If the file cannot be read.
        """
        if self.types.timely is None and wait is _end_there and wrap is None:
            self.settle(found_version(path, self.types))
        self._check_settled()
        with GrowingFile(path) as file:
            source = file if wrap is None else wrap(file)
            if left := self._compared(source, _never, [self._mark]):
                raise self._another(self._mark, found=f"{left} bytes less")
            return self._take(source, lambda: wait(file.has_news))

    def take_whole(self, source: Source, *, again: Callable[[], bool] = _never) -> Imported:
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
        self._check_settled()
        # Each commit's mark, so that what ends early is compared as far as it came.
        marks = [] if self._log is None or not self.position else all_marks(self._log, self.stream)
        marks = [*(mark for mark in marks if mark.position < self.position), self._mark]
        self._missing = self._compared(source, again, marks)
        return self.result() if self._missing else self._take(source, again)

    def _compared(self, source: Source, again: Callable[[], bool], marks: list[ImportMark]) -> int:
        """Compare what a source begins with, up to the last of the marks; return how many bytes it lacks."""
        buffer = memoryview(bytearray(_BLOCK))
        at = checksum = 0
        for mark in marks:
            while at < mark.position:
                n = source.readinto(buffer[: min(mark.position - at, _BLOCK)])
                if n:
                    at, checksum = at + n, zlib.crc32(buffer[:n], checksum)
                elif not again():
                    return marks[-1].position - at
            if checksum != mark.checksum:
                raise self._another(mark, found="other bytes")
        return 0

    def _another(self, mark: ImportMark, *, found: str) -> CaptureFormatError:
        msg = (
            f"could not continue the import of {shown(self.name)} into stream {self.stream!r}: found {found} than the"
            f" {mark.position} bytes that the log has, of {mark.events} events"
        )
        hint = "import it into another stream: this is another capture, or it was changed"
        return CaptureFormatError(msg, hint=hint, event=mark.events, position=mark.position)

    def _overtaken(self, expected: int, current: object) -> UpperMismatchError:
        msg = (
            f"could not continue the import of {shown(self.name)} into stream {self.stream!r}: found that another"
            " import, or a change by hand, came first"
        )
        hint = "let one import of a stream run at a time; run this one again: what the log has is compared"
        return UpperMismatchError(msg, hint=hint, expected=expected, current=current)

    def _reader(self, source: Source) -> CaptureReader:
        self._place_of = source.place_of if isinstance(source, JsonLines) else None
        return CaptureReader(
            source,
            time=self.types.time,
            record=self.types.record,
            timely=self.types.version,
            position=self._mark.position,
            event=self._mark.events,
            checksum=self._mark.checksum,
            name=self.name,
        )

    def _take(self, source: Source, again: Callable[[], bool]) -> Imported:
        reader = self._reader(source)
        while True:
            for stretch in self._stretches(reader):
                self._commit(stretch, reader)
            self._unfinished = source.unfinished if isinstance(source, JsonLines) else reader.unfinished
            if self.closed or not again():
                self.open()
                return self.result()

    def _stretches(self, reader: CaptureReader) -> Iterator[list[tuple[CaptureChunk, Placed]]]:
        """Yield the chunks of each commit, judged, and their records with the times that they get."""
        pending: list[tuple[CaptureChunk, Placed]] = []
        rules = self.types.rules(self._unstamped)
        n_bytes = n_rows = 0
        since = self._clock()
        try:
            for chunk in reader:
                self._counts = judge_chunk(chunk, self._counts, reader.times, self.stream, place_of=self._place_of)
                pending.append((chunk, place_records(chunk, rules, self.stream, place_of=self._place_of)))
                n_bytes += int(chunk.positions[-1] - chunk.positions[0])
                n_rows += chunk.n_records
                late = self._clock() - since >= self._max_delay_s
                # Dead letters that follow the close go into its commit: nothing can be appended behind that.
                waits = self._unstamped == "dead-letter" and self._counts.frontier.is_empty
                if (n_bytes >= self._commit_bytes or n_rows >= COMMIT_ROWS or late) and not waits:
                    yield pending
                    pending, n_bytes, n_rows, since = [], 0, 0, self._clock()
        except BaseException as error:
            if isinstance(error, CaptureFormatError) and error.event is None:
                error.locate(f"at event={reader.event}", event=reader.event)  # the file knows none
            # Nothing of the stretch at hand is committed: a wrong type may have decoded well so far.
            self._counts = self._held()
            raise
        if pending:
            yield pending

    def _is_after_close(self, stretch: list[tuple[CaptureChunk, Placed]]) -> bool:
        """Whether there is nothing to append of what came behind the close: records without a time that are left out.

        Raises
        ------
        ClosedError
            If they are to be set apart.
        """
        n_dead = sum(each.dead.num_rows for _, each in stretch if each.dead is not None)
        if n_dead:
            msg = (
                f"could not set {n_dead} records of {shown(self.name)} apart: found stream {self.stream!r} closed when"
                " they came"
            )
            raise ClosedError(
                msg, hint="leave them out: --unstamped drop; or import the whole capture into another stream"
            )
        return all(not each.times.shape[0] and not chunk.progress_deltas.shape[0] for chunk, each in stretch)

    def _commit(self, stretch: list[tuple[CaptureChunk, Placed]], reader: CaptureReader) -> None:
        if self.closed and self._is_after_close(stretch):
            self._dropped += sum(each.dropped for _, each in stretch)
            return
        state = self.open()
        log = self._log
        assert log is not None
        chunks, placed = [chunk for chunk, _ in stretch], [each for _, each in stretch]
        low, high = int(chunks[0].positions[0]), int(chunks[-1].positions[-1])
        events = chunks[-1].first_event + chunks[-1].n_events
        times = np.concatenate([each.times for each in placed])
        # Messages first, then the progress: see the head of this module.
        files: list[DataFile] = []
        if times.shape[0]:
            payload = _in_columns(log, pa.Table.from_batches([each.records for each in placed]))
            files = write_data_files(
                log.core.storage,
                message_table(log.core.format, payload, times, self.stream, state.seq + 1),
                times,
                stream=self.stream,
                seq=state.seq + 1,
                domain=log.domain,
            )
        dead = [each.dead for each in placed if each.dead is not None]
        files += _dead_files(log, dead, self.stream, state.seq + 1)
        n_dead, dropped = sum(each.num_rows for each in dead), sum(each.dropped for each in placed)
        # Names of files may have bytes that are no text.
        name = self.name.encode("utf-8", "backslashreplace").decode()
        mark = ImportMark(name, high, events, reader.checksum or 0)
        request = CommitRequest(
            stream=self.stream,
            owner=self.types.owner,
            progress_times=np.concatenate([chunk.progress_times for chunk in chunks]),
            progress_deltas=np.concatenate([chunk.progress_deltas for chunk in chunks]),
            batch=high,
            step=0,
            expected_seq=state.seq,
            files=files,
            reason=f"import of {name}: {high} bytes, {events} events{_without_time(dropped, n_dead)}",
            note=Note(mark=mark, batch=MicroBatch(dead=n_dead) if n_dead else None),
        )
        try:
            outcome = log.core.commit(request)
        except TimelyError as error:
            if not isinstance(error, StorageError) or error.determinate:
                log.core.discard_refused(files)
            if isinstance(error, RolledBackError | UpperMismatchError):
                raise self._overtaken(state.seq, error.context.get("current")) from error
            raise
        self._state = outcome.state
        self._counts = outcome.state.counts
        if outcome.duplicate:
            # Another import of the stream came first. As many rows at the same times need not be the same ones.
            log.core.discard_refused(files)
            recorded = log.core.recorded(self.stream, high)
            theirs = None if recorded is None else recorded.note.mark
            if theirs is None or replace(theirs, name=name) != mark:
                raise self._another(mark, found="other bytes")
        else:
            self._new_events += sum(chunk.n_events for chunk in chunks)
            self._new_records += times.shape[0]
            self._dropped += dropped
            self._dead += n_dead
        self._mark = mark
        self._report(high - low)


_DECLARE = (
    "declare the version of timely that writes it, --timely 0.31 or --timely 0.32 (in Python timely='0.31'): the bytes"
    " do not say it, and may be good in both"
)
_UNSTAMPED_REASON = "no time: the stamp of its message is empty"


def _without_time(dropped: int, dead: int) -> str:
    parts = [f"{n} records without a time {done}" for n, done in ((dropped, "left out"), (dead, "set apart")) if n]
    return "".join(f", {part}" for part in parts)


def _in_columns(log: Log, rows: pa.Table) -> pa.Table:
    """Return records with the log's columns: those that others have added since it was made are null."""
    form = log.core.format
    return conform(form.with_absent(rows, attempt=f"could not import into log {log.path!r}"), form.payload)


def _dead_files(log: Log, parts: list[pa.RecordBatch], stream: str, seq: int) -> list[DataFile]:
    """Write dead letters: records without a time, which get the least there is, since a letter has one."""
    if not parts:
        return []
    form = log.core.format
    payload = _in_columns(log, pa.Table.from_batches(parts))
    times = np.tile(np.array(log.domain.minimum, np.int64), (payload.num_rows, 1))
    table = letter_table(form, payload, times, stream, seq, reasons=_UNSTAMPED_REASON)
    return write_data_files(log.core.storage, table, times, stream=stream, seq=seq, domain=log.domain, event="dead")


def found_version(path: str, types: CaptureTypes, *, json_lines: bool = False) -> TimelyVersion:
    """Return the only version of timely that all whole events of a file fit.

    Parameters
    ----------
    path : str
        A file that is not followed.
    types : CaptureTypes
        Their version does not matter.
    json_lines : bool
        Whether the file has lines of JSON.

    Raises
    ------
    InvalidUsageError
        If both fit: files without messages, and those whose messages are all at time 0, for instance.
    CaptureFormatError
        If none fits; the error is that of the version that came further.
    OSError
        If the file cannot be read.

    Notes
    -----
    Cost: that of decoding the file once, and as much of it a second time as fits the other version too.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from spark_timely.interop.writer import capture_bytes
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "w0.bin"
    >>> _ = path.write_bytes(capture_bytes([([9], [7, 8])], time="u64", record="u64", timely="0.32"))
    >>> found_version(str(path), CaptureTypes.parse("u64", "u64"))
    '0.32'
    """
    errors = {version: _misfit(path, types, version, json_lines=json_lines) for version in VERSIONS}
    fits = [version for version, error in errors.items() if error is None]
    if len(fits) == 1:
        return fits[0]
    if fits:
        msg = (
            f"could not tell which version of Timely wrote {shown(path)}: found that its bytes fit {' and '.join(fits)}"
        )
        raise InvalidUsageError(msg, hint=_DECLARE)
    # The one that came further is more likely the one that is meant.
    raise max((error for error in errors.values() if error is not None), key=_position)


def _position(error: CaptureFormatError) -> int:
    position = error.position
    return position if isinstance(position, int) else 0


def _misfit(path: str, types: CaptureTypes, timely: TimelyVersion, *, json_lines: bool) -> CaptureFormatError | None:
    """Return why a file does not fit a version, None if it does.

    Only whether it can be decoded: what is no legal capture of the version that wrote it must not pass for the other's.
    """
    with GrowingFile(path) as file:
        source = JsonLines(file, types.time, types.record, timely=timely) if json_lines else file
        try:
            name = os.path.basename(path)
            for _ in CaptureReader(source, time=types.time, record=types.record, timely=timely, name=name):
                pass
        except CaptureFormatError as error:
            return error
    return None


def hint_at_other_version(
    error: CaptureFormatError, path: str, types: CaptureTypes, *, json_lines: bool = False
) -> None:
    """Say in the hint of an error whether the file fits the other version of timely; it is not taken for it."""
    (other,) = (version for version in VERSIONS if version != types.version)
    if _misfit(path, types, types.version, json_lines=json_lines) is None:
        return  # it is not the bytes that are wrong
    if _misfit(path, types, other, json_lines=json_lines) is None:
        error.hint = f"decode it as Timely {other}, which all its bytes fit: --timely {other}"


def newest_mark(log: Log, state: StreamState) -> ImportMark:
    """Return how far the log has the capture that became a stream.

    Raises
    ------
    TimelyInternalError
        If the stream has a position and its newest commit has no mark of it.
    """
    if state.batch is None:
        return ImportMark()
    mark = state.note.mark
    if mark is None or mark.position != state.batch:
        msg = f"could not continue stream {state.stream!r} of log {log.path!r}: found no mark of an import"
        raise TimelyInternalError(msg)
    return mark


def all_marks(log: Log, stream: str) -> list[ImportMark]:
    """Return the marks of all commits of a stream, by position; as many turns as commits."""
    rows = log.core.progress()
    notes = pc.unique(rows.filter(pc.equal(rows["_stream"], stream))["_note"]).drop_null().to_pylist()
    marks = {mark for note in notes if (mark := Note.parse(note).mark) is not None}
    return sorted(marks, key=lambda mark: mark.position)
