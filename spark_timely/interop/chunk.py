"""A chunk: consecutive events of a capture as columns, and the check of a chunk against the capture protocol.

`reader` and `jsonl` make chunks, `importing` judges and commits them, and `writer` writes those of an export. The
events are messages, which have records, and progress; `protocol.event` has the same of a log, without the records.

The real timely checks nothing, so a capture may break the protocol. `judge_chunk` judges all events of a chunk at once;
only where one is wrong it judges them again, one after the other, to name it.

A message of timely 0.31 has a time, one of 0.32 a *stamp*: a sorted multiset of times, mostly of one, maybe of none.
The bytes do not say which of both a message has.

Invariants
----------
1. A chunk that was read and is written again gives the same bytes, but that the times of each stamp are sorted.
2. Events keep their order; progress entries keep theirs, repeats and zeros included.
3. Each time of a stamp needs a capability, as if it were the time of a message by itself; a stamp without times needs
   none. No message changes the capabilities held.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import InvalidUsageError, NegativeCountError, ProtocolError, shown
from spark_timely.interop.buffers import Offsets, bounds_of
from spark_timely.interop.time_layout import TimeLayout, cut_times
from spark_timely.protocol.event import StreamEvents
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress, verify_events
from spark_timely.time.antichain import DiffArray, IntArray

TimelyVersion: TypeAlias = Literal["0.31", "0.32"]
"""Whose captures: their messages have a time (0.31) or a stamp (0.32)."""

VERSIONS: tuple[TimelyVersion, ...] = get_args(TimelyVersion)


def timely_version(text: object) -> TimelyVersion:
    """Return a version of timely whose captures are known.

    Raises
    ------
    InvalidUsageError
        If it is none.

    Examples
    --------
    >>> timely_version("0.32")
    '0.32'
    """
    if text not in VERSIONS:
        msg = f"could not use captures of Timely {shown(text)}: found none of {', '.join(VERSIONS)}"
        raise InvalidUsageError(msg, hint="give the version of the crate that writes or reads them, as text")
    return text


@dataclass(frozen=True, slots=True, eq=False)
class CaptureChunk:
    """Events of a stream, one after the other.

    Parameters
    ----------
    is_messages : ndarray of bool, shape (e,)
        Kind of each event: messages, or progress.
    positions : ndarray of int64, shape (e + 1,)
        Where each event begins in the stream, in bytes, and where the last ends; zeros where it has no bytes.
    first_event : int
        Number of the first event in the stream.
    times : ndarray of int64, shape (s, k)
        Times of the events of messages, those of a stamp sorted by their coordinates. As uint64 where a stamp has a
        time of 2^63 or more, which no log holds.
    counts : ndarray of int64, shape (m,)
        Records of each event of messages.
    records : pyarrow.RecordBatch
        All records.
    progress_times, progress_deltas : ndarray of int64, shapes (p, k) and (p,)
        All entries of progress.
    progress_counts : ndarray of int64, shape (e - m,)
        Entries of each event of progress.
    stamps : ndarray of int64, shape (m,), optional
        How many times each event of messages has; one each if not given.
    """

    is_messages: npt.NDArray[np.bool_]
    positions: Offsets
    first_event: int
    times: IntArray
    counts: Offsets
    records: pa.RecordBatch
    progress_times: IntArray
    progress_deltas: DiffArray
    progress_counts: Offsets
    stamps: Offsets | None = None

    @property
    def n_events(self) -> int:
        """Number of events."""
        return int(self.is_messages.shape[0])

    @property
    def n_records(self) -> int:
        """Number of records."""
        return int(self.records.num_rows)

    @property
    def record_times(self) -> IntArray:
        """Time of each record, shape (n, k), where each event of messages has one time."""
        return np.repeat(self.times, self.counts, axis=0)

    @property
    def stamp_sizes(self) -> Offsets:
        """How many times each event of messages has, shape (m,)."""
        return np.ones(self.counts.shape[0], np.int64) if self.stamps is None else self.stamps

    def check_stamps(self, timely: TimelyVersion) -> None:
        """Refuse stamps that a version has no place for.

        Raises
        ------
        InvalidUsageError
            If a message has not one time, and 0.31 is to read it.
        """
        if timely != "0.31" or self.stamps is None or (self.stamps == 1).all():
            return
        i = int(np.argmax(self.stamps != 1))
        msg = f"could not write messages as Timely 0.31 has them: found {self.stamps[i]} times in message={i}"
        raise InvalidUsageError(msg, hint="write them for 0.32: a message of 0.31 has one time")

    def stream_events(self) -> StreamEvents:
        """Return the events as the protocol judges them, an event of messages by its times alone."""
        steps = np.cumsum(~self.is_messages, dtype=np.int64)
        entries = self.progress_counts.shape[0]
        uses = steps[self.is_messages]
        return StreamEvents(
            cut_times(self.times),
            uses if self.stamps is None else np.repeat(uses, self.stamps),
            self.progress_times,
            self.progress_deltas,
            np.repeat(np.arange(entries, dtype=np.int64), self.progress_counts),
            entries,
        )

    def walk(self) -> Iterator[tuple[bool, slice]]:
        """Yield for each event whether it is one of messages, and the slice of its records or entries.

        One turn per event: for texts, tests and errors.
        """
        ends = [np.cumsum(self.progress_counts).tolist(), np.cumsum(self.counts).tolist()]
        starts, seen = [0, 0], [0, 0]
        for kind in self.is_messages.tolist():
            end = ends[kind][seen[kind]]
            yield kind, slice(starts[kind], end)
            starts[kind] = end
            seen[kind] += 1


def judge_chunk(
    chunk: CaptureChunk,
    counts: StreamCounts,
    times: TimeLayout,
    stream: str,
    *,
    place_of: Callable[[int], int | None] | None = None,
) -> StreamCounts:
    """Judge the events of a chunk, in their order, and return the counts after it.

    Parameters
    ----------
    chunk : CaptureChunk
    counts : StreamCounts
        Before it.
    times : TimeLayout
    stream : str
        For errors.
    place_of : callable, optional
        Gives the first byte of an event, where the chunk's own positions are not those of the file.

    Raises
    ------
    UnheldCapabilityError, NegativeCountError
        For the first event that breaks the protocol; it names its number and its first byte.

    Examples
    --------
    >>> from spark_timely.interop.writer import build_chunk
    >>> chunk = build_chunk([{0: -1}, (3, [1])], time="u64", record="u64")
    >>> try:
    ...     judge_chunk(chunk, StreamCounts.initial(0), TimeLayout("u64"), "w0")
    ... except ProtocolError as error:
    ...     error.message
    "could not send a message at time=3 in stream 'w0': found capabilities held=[], at event=1, byte=0"
    """
    try:
        return verify_events(times.domain, chunk.stream_events(), start=counts, stream=stream)
    except ProtocolError:
        return _judge_slowly(chunk, counts, times, stream, place_of)


def _judge_slowly(
    chunk: CaptureChunk,
    counts: StreamCounts,
    times: TimeLayout,
    stream: str,
    place_of: Callable[[int], int | None] | None,
) -> StreamCounts:
    """Judge one event after the other, to name the one that is wrong."""
    message = 0
    used, bounds = cut_times(chunk.times), bounds_of(chunk.stamp_sizes)
    for number, (kind, part) in enumerate(chunk.walk()):
        try:
            if kind:
                stamp = used[bounds[message] : bounds[message + 1]]
                check_messages(counts, stamp, stream=stream, domain=times.domain)
                message += 1
            else:
                counts = check_progress(
                    counts,
                    chunk.progress_times[part],
                    chunk.progress_deltas[part],
                    stream=stream,
                    domain=times.domain,
                )
        except ProtocolError as error:
            if isinstance(error, NegativeCountError) and _starts_at_default(counts, times, error):
                error.hint = _default_hint(times)
            event = chunk.first_event + number
            place = int(chunk.positions[number]) if place_of is None else place_of(event)
            error.locate(f"at event={event}, byte={place}", event=event, position=place)
            raise
    return counts


def _starts_at_default(counts: StreamCounts, times: TimeLayout, error: NegativeCountError) -> bool:
    """Tell whether a stream gives up the default of its times, and has never given up the minimum.

    Rule 003.12: timely's documentation names both as the first time of a stream. They differ where times are signed,
    and it is the minimum.
    """
    minimum, default = times.domain.minimum, (0,) * times.arity
    held = dict(zip(map(tuple, counts.times.tolist()), counts.counts.tolist(), strict=True))
    return minimum != default and error.time == default and held.get(minimum) == 1 and default not in held


def _default_hint(times: TimeLayout) -> str:
    minimum, default = (shown(times.domain.render_time(time)) for time in (times.domain.minimum, (0,) * times.arity))
    unsigned = re.sub(r"\bi(?=\d)", "u", times.text)
    return (
        f"the capture seems to start at {default}, the default of type {times.text}, where a stream starts at the"
        f" minimum, {minimum}: let the program that captures begin there, or, if no time is below 0, declare the times"
        f" as {unsigned!r} and import into a new log"
    )
