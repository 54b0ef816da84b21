"""The words of byte strings, short and long, in the canonical hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spark_timely.canonical.lanes import LANES, STEP, Lanes, Words, add_words, key_of, mix, zeros

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["byte_words"]

# Words of a string that are taken column by column; the rest of long ones is taken flat.
_SHORT_WORDS = 8
_FLAT_WORDS = 1 << 20
# What is kept of a word of which 0…8 bytes belong to the string, and the end mark to set.
_KEEP = np.array([(1 << 8 * i) - 1 for i in range(9)], dtype=np.uint64)
_END = np.array([1 << 8 * i for i in range(8)] + [0], dtype=np.uint64)


def byte_words(
    data: pa.Buffer | None,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    kind: str,
    place: str,
) -> Lanes:
    """Return what byte strings in a buffer contribute, `starts` ascending."""
    first, end = int(starts[0]), int(starts[-1] + lengths[-1])
    # A copy with room behind it, because a word is always read whole.
    region = np.zeros(end - first + 8, dtype=np.uint8)
    if data is not None and end > first:
        region[:-8] = np.frombuffer(data, dtype=np.uint8, count=end - first, offset=first)
    starts = starts - first
    # The 8 bytes from each place on, as a word; reading them unaligned is what makes this fast.
    word_at = np.ndarray((region.shape[0] - 7,), dtype="<u8", buffer=region, strides=(1,))
    lanes = zeros(starts.shape[0])
    n_words = (lengths >> 3) + 1
    fewest, most = int(n_words.min()), int(n_words.max())
    same = int(lengths.min()) == int(lengths.max())
    for j in range(min(most, _SHORT_WORDS)):
        rows = None if j < fewest else np.flatnonzero(n_words > j)
        at, length = (starts, lengths) if rows is None else (starts[rows], lengths[rows])
        words = word_at[at + 8 * j]
        if same:
            left = min(int(lengths[0]) - 8 * j, 8)
            if left < 8:
                words &= _KEEP[left]
                words |= _END[left]
        elif j >= fewest - 1:
            left_over = np.minimum(length - 8 * j, 8)
            words &= _KEEP[left_over]
            words |= _END[left_over]
        add_words(lanes, words, kind, place, j, rows)
    if most > _SHORT_WORDS:
        long = np.flatnonzero(n_words > _SHORT_WORDS)
        _add_long(lanes, word_at, starts[long], lengths[long], long, kind, place)
    return lanes


def _add_long(
    into: Lanes,
    word_at: Words,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    rows: npt.NDArray[np.intp],
    kind: str,
    place: str,
) -> None:
    """Add the words of long strings from the ninth on, all strings' words in one sequence."""
    ends = np.cumsum((lengths >> 3) + 1 - _SHORT_WORDS)
    begins = np.concatenate([[0], ends[:-1]])
    for low in range(0, int(ends[-1]), _FLAT_WORDS):
        flat = np.arange(low, min(low + _FLAT_WORDS, int(ends[-1])), dtype=np.int64)
        string = np.searchsorted(ends, flat, side="right")
        j = flat - begins[string] + _SHORT_WORDS
        words = word_at[starts[string] + 8 * j]
        left_over = np.minimum(lengths[string] - 8 * j, 8)
        words &= _KEEP[left_over]
        words |= _END[left_over]
        heads = np.flatnonzero(np.diff(string, prepend=-1))
        for lane in LANES:
            keys = j.view(np.uint64) * STEP[lane] + key_of(lane, kind, place)
            into[lane][rows[string[heads]]] += np.add.reduceat(mix(words + keys, lane), heads)
