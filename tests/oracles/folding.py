"""Streams folded into one, as timely's replay of several captures may see them: a model beside the product.

The product reads several streams of a log side by side, and folds none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import InvalidShapeError
from spark_timely.protocol.event import StreamEvents
from spark_timely.time.antichain import Antichain, IntArray, concat_times

if TYPE_CHECKING:
    import numpy.typing as npt


def concatenated(parts: Sequence[IntArray]) -> IntArray:
    """Return times behind each other; of no times those of the first part."""
    parts = [part for part in parts if part.shape[0]] or parts[:1]
    return concat_times(*parts)


def fold_events(
    streams: Sequence[StreamEvents],
    order: npt.ArrayLike | None = None,
    *,
    minimum: Sequence[int],
) -> StreamEvents:
    """Fold k streams into one: their progress batches interleaved, after k − 1 further capabilities.

    Every stream starts with one capability at the minimum, the fold as well; so the fold's first
    progress batch raises the count there by k − 1. Each stream's own order is kept, and messages stay
    between the progress batches of their own stream where they were.

    Parameters
    ----------
    streams : sequence of StreamEvents
        At least one.
    order : array-like of int, shape (total number of progress batches,), optional
        Which stream each next progress batch is taken from; one stream after the other unless given.
    minimum : sequence of int
        The minimum time.

    Returns
    -------
    StreamEvents
        Legal if every stream is, for any order.

    Raises
    ------
    InvalidShapeError
        If `order` does not name each stream as often as it has progress batches.

    Notes
    -----
    Cost: O(n log n) in the number of entries. Source: timely `protocol/replay.rs`.

    """
    if not streams:
        msg = "could not fold streams: found none"
        raise InvalidShapeError(msg, hint="give at least one stream")
    arity = len(tuple(minimum))
    if any(stream.arity != arity for stream in streams):
        msg = f"could not fold streams: found arities={[stream.arity for stream in streams]!r} for minimum={minimum!r}"
        raise InvalidShapeError(msg, hint="replay streams with one type of time: only these can be folded")
    sizes = np.array([stream.n_steps for stream in streams], dtype=np.int64)
    turns = np.repeat(np.arange(len(streams)), sizes) if order is None else np.asarray(order, dtype=np.int64)
    if not np.array_equal(np.bincount(turns, minlength=len(streams)), sizes):
        taken = np.bincount(turns, minlength=len(streams)).tolist()
        msg = f"could not fold streams: found an order that takes {taken} batches of {sizes.tolist()}"
        raise InvalidShapeError(msg, hint="take each stream's batches exactly once")
    first = np.array([tuple(minimum)], dtype=streams[0].progress_times.dtype).reshape(1, arity)
    message_times, message_steps = [], []
    times, deltas, steps = [first[:0]], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    offset = 0
    if len(streams) > 1:
        offset = 1
        times, deltas = [first], [np.array([len(streams) - 1], dtype=np.int64)]
        steps = [np.zeros(1, dtype=np.int64)]
    for i, stream in enumerate(streams):  # k streams
        # Where in the fold the stream's batches come, and after them one place for what follows.
        places = np.flatnonzero(turns == i) + offset
        message_times.append(stream.message_times)
        # After the stream's own previous batch, as early as that allows: the stream alone vouches.
        after = np.concatenate([[offset], places + 1])
        message_steps.append(after[stream.message_steps])
        times.append(stream.progress_times)
        deltas.append(stream.progress_deltas)
        steps.append(places[stream.progress_steps])
    step = np.concatenate(steps)
    sort = np.argsort(step, kind="stable")
    return StreamEvents(
        concatenated(message_times),
        np.concatenate(message_steps).astype(np.int64),
        concatenated(times)[sort],
        np.concatenate(deltas)[sort],
        step[sort].astype(np.int64),
        int(turns.shape[0]) + offset,
    )


def batches_of(events: StreamEvents) -> list[tuple[IntArray, npt.NDArray[np.int64]]]:
    """Return the progress batches, as times and deltas."""
    chosen = [events.progress_steps == step for step in range(events.n_steps)]
    return [(events.progress_times[each], events.progress_deltas[each]) for each in chosen]


def frontier_steps(events: StreamEvents, minimum: Sequence[int]) -> list[tuple[int, Antichain]]:
    """Return how the frontier moves: a step, and the frontier after that many batches, at each change."""
    counts = Counter({tuple(minimum): 1})
    trace = [(0, Antichain.of(tuple(minimum)))]
    for step, (times, deltas) in enumerate(batches_of(events), 1):
        for time, delta in zip(times.tolist(), deltas.tolist(), strict=True):
            counts[tuple(time)] += delta
        held = [time for time, count in counts.items() if count > 0]
        frontier = Antichain.from_times(held, len(minimum))
        if frontier != trace[-1][1]:
            trace.append((step, frontier))
    return trace
