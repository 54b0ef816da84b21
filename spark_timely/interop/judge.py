"""Judge captures by the protocol: the real timely checks nothing, so a capture may break it.

All events of a chunk are judged at once; only where one is wrong they are judged again, one after the other, to
name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from spark_timely.errors import NegativeCountError, ProtocolError, shown
from spark_timely.interop.chunk import CaptureChunk
from spark_timely.interop.times import TimeLayout
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress, verify_events

__all__ = ["judge_chunk"]


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
            if isinstance(error, NegativeCountError) and _starts_at_default(counts, times, error):
                error.hint = _default_hint(times)
            event = chunk.first_event + number
            place = int(chunk.positions[number]) if place_of is None else place_of(event)
            error.message = f"{error.message}, at event={event}, byte={place}"
            error.args = (error.message,)
            error.context.update(event=event, position=place)
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
