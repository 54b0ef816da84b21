"""Judge captures by the protocol: the real timely checks nothing, so a capture may break it.

All events of a chunk are judged at once; only where one is wrong they are judged again, one after the other, to
name it.
"""

from __future__ import annotations

import os

from spark_timely.capture.protocol import StreamCounts, check_messages, check_progress, verify_events
from spark_timely.errors import ProtocolError
from spark_timely.exchange.chunk import CaptureChunk
from spark_timely.exchange.declared import CaptureTypes
from spark_timely.exchange.reader import CaptureReader
from spark_timely.exchange.times import TimeLayout

__all__ = ["check_beginning", "judge_chunk"]


def check_beginning(path: str, types: CaptureTypes) -> None:
    """Read and judge the beginning of a file, before anything is made for it.

    Raises
    ------
    CaptureFormatError, ProtocolError
        If it is no capture of these types.
    OSError
        If it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        reader = CaptureReader(file, time=types.time, record=types.record)
        for chunk in reader:
            judge_chunk(chunk, StreamCounts.initial(reader.times.domain.minimum), reader.times, os.path.basename(path))
            return


def judge_chunk(chunk: CaptureChunk, counts: StreamCounts, times: TimeLayout, stream: str) -> StreamCounts:
    """Judge the events of a chunk, in their order, and return the counts after it.

    Raises
    ------
    UnheldCapabilityError, NegativeCountError
        For the first event that breaks the protocol; it names its number and its first byte.

    Examples
    --------
    >>> from spark_timely.exchange.writer import build_chunk
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
        return _judge_slowly(chunk, counts, times, stream)


def _judge_slowly(chunk: CaptureChunk, counts: StreamCounts, times: TimeLayout, stream: str) -> StreamCounts:
    """Judge one event after the other, to name the one that is wrong."""
    message = 0
    for number, (kind, part) in enumerate(chunk.walk()):
        try:
            if kind:
                check_messages(counts, chunk.times[message : message + 1], stream=stream, domain=times.domain)
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
            event, place = chunk.first_event + number, int(chunk.positions[number])
            error.message = f"{error.message}, at event={event}, byte={place}"
            error.args = (error.message,)
            error.context.update(event=event, position=place)
            raise
    return counts
