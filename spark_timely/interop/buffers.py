"""Buffers of captured bytes: reads and writes values at many offsets in one call of numpy, aligned or not.

`Places` are the offsets of n values: at equal distances, as in a block of records of fixed width, or anywhere. `Body`
is the buffer that is read; `put` writes into an array of bytes. Bytes that cannot be of the declared type raise a
`Fault`, which has the offset of the first wrong one.

Used by `layout` and `time_layout`, which know what the bytes of each type are, and by `reader`, which turns a `Fault`
into a `CaptureFormatError`. This module knows offsets and numbers alone.

Invariants
----------
1. Whatever the bytes say, no array is made that is larger than a fixed multiple of them. A count found in the bytes is
   compared with the room that is left before an array of that size is made (`read_counts`): one that says 2^40 in a
   file of 100 bytes is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int64]

U32, U64 = np.dtype("<u4"), np.dtype("<u8")
_U64 = struct.Struct("<Q")

WRONG_TYPE = "declare the types that the file holds; if you did, the file is damaged"


class Fault(Exception):
    """Bytes that cannot be of the declared type; caught where their place in the stream is known.

    Parameters
    ----------
    at : int
        Offset of the offending byte in the body.
    found, hint : str
    """

    def __init__(self, at: int, found: str, hint: str = WRONG_TYPE) -> None:
        super().__init__(found)
        self.at = int(at)
        self.found = found
        self.hint = hint


def check(wrong: npt.NDArray[np.bool_], fault: Callable[[int], Fault]) -> None:
    """Raise the fault of the first value that is wrong, if one is."""
    if wrong.any():
        raise fault(int(np.argmax(wrong)))


class Places:
    """Offsets of n values: `base`, `base + stride`, … or any.

    Parameters
    ----------
    n : int
    base, stride : int
        Where values lie at equal distances.
    at : ndarray of int64, shape (n,), optional
        Their offsets, where they do not.
    """

    __slots__ = ("_at", "base", "n", "stride")

    def __init__(self, n: int, base: int = 0, stride: int = 0, at: Offsets | None = None) -> None:
        self.n = n
        self.base = base
        self.stride = stride
        self._at = at

    @classmethod
    def of(cls, at: Offsets) -> Places:
        """Return places anywhere."""
        return cls(at.shape[0], at=at)

    @property
    def even(self) -> bool:
        """Whether the values lie at equal distances."""
        return self._at is None

    @property
    def at(self) -> Offsets:
        """Offset of each value."""
        if self._at is None:
            return np.arange(self.n, dtype=np.int64) * self.stride + self.base
        return self._at

    def shift(self, n_bytes: int) -> Places:
        """Return the places `n_bytes` bytes further on."""
        if self._at is None:
            return Places(self.n, self.base + n_bytes, self.stride)
        return Places(self.n, at=self._at + n_bytes)


class Body:
    """Bytes to read from.

    Parameters
    ----------
    data : bytes-like
        Not copied. Values at equal distances may be views of it, others are copies.
    """

    __slots__ = ("array", "data")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.array: Bytes = np.frombuffer(data, np.uint8)

    def take(self, dtype: np.dtype[Any], places: Places) -> npt.NDArray[Any]:
        """Return the values at places, contiguous."""
        size = dtype.itemsize
        if not places.n:
            return np.empty(0, dtype)
        if places.even:
            view = np.ndarray((places.n,), dtype, self.data, places.base, (places.stride,))
            return np.ascontiguousarray(view)
        at = places.at
        if size == 1:
            return self.array[at].view(dtype)
        # Every offset is the start of a value in this view: an index into it is an offset.
        anywhere = np.ndarray((self.array.shape[0] - size + 1,), dtype, self.data, 0, (1,))
        return anywhere[at]

    def gather(self, starts: Offsets, lengths: Offsets) -> tuple[Bytes, Offsets]:
        """Return stretches of bytes one after the other, and the n + 1 bounds between them."""
        bounds = bounds_of(lengths)
        return self.array[spread(starts, lengths, bounds, 1)], bounds


def put(out: Bytes, places: Places, values: npt.NDArray[Any]) -> None:
    """Write values to places."""
    if not places.n:
        return
    size = values.dtype.itemsize
    if places.even:
        np.ndarray((places.n,), values.dtype, out.data, places.base, (places.stride,))[:] = values
    elif size == 1:
        out[places.at] = values.view(np.uint8)
    else:
        np.ndarray((out.shape[0] - size + 1,), values.dtype, out.data, 0, (1,))[places.at] = values


def bounds_of(counts: Offsets) -> Offsets:
    """Return the number of the first element of each block, and at last the number of all; shape (blocks + 1,)."""
    bounds = np.zeros(counts.shape[0] + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def spread(starts: Offsets, counts: Offsets, bounds: Offsets, width: int) -> Offsets:
    """Return the offsets of all elements of stretches: `counts` elements of `width` bytes from each start.

    Examples
    --------
    >>> spread(np.array([10, 50]), np.array([2, 1]), np.array([0, 2, 3]), 4).tolist()
    [10, 14, 50]
    """
    return np.repeat(starts - bounds[:-1] * width, counts) + np.arange(bounds[-1]) * width


def cut_short(at: int, room: int) -> Fault:
    """Return the fault of a value that ends outside of its event."""
    return Fault(at, f"a value that needs more than the {room} bytes left of its event")


def check_ends(at: Offsets, after: Offsets, ends: Offsets) -> None:
    """Refuse values that end outside of their blocks."""
    check(after > ends, lambda i: cut_short(at[i], ends[i] - at[i]))


def read_counts(body: Body, at: Offsets, ends: Offsets, least: int) -> Offsets:
    """Read the number of elements at each offset, and refuse those for which there is no room."""
    check_ends(at, at + 8, ends)
    counts = body.take(U64, Places.of(at))
    room = ends - at - 8
    check(counts > (room // least).astype(np.uint64), lambda i: _too_many(at[i], counts[i], room[i]))
    return counts.astype(np.int64)


def _too_many(at: int, count: int, room: int) -> Fault:
    return Fault(at, f"a length of {count} where {room} bytes are left of the event")


def read_count(body: Body, at: int, end: int, least: int) -> int:
    """Read one number of elements; as `read_counts`."""
    if at + 8 > end:
        raise cut_short(at, end - at)
    count: int = _U64.unpack_from(body.data, at)[0]
    if count * least > end - at - 8:
        raise _too_many(at, count, end - at - 8)
    return count
