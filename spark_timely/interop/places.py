"""Where values lie in bytes, and how many of them are taken or put at once.

Values of one type lie either at equal distances, as in a block of records of fixed width, or anywhere.
Both are read and written by one call of numpy for all of them, aligned or not.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Body", "Bytes", "Fault", "Offsets", "Places", "put", "spread"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int64]


class Fault(Exception):
    """Bytes that cannot be of the declared type; caught where their place in the stream is known.

    Parameters
    ----------
    at : int
        Offset of the offending byte in the body.
    found, hint : str
    """

    def __init__(self, at: int, found: str, hint: str) -> None:
        super().__init__(found)
        self.at = int(at)
        self.found = found
        self.hint = hint


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
        """Return the places so many bytes further on."""
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
        bounds = np.zeros(lengths.shape[0] + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
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


def spread(starts: Offsets, counts: Offsets, bounds: Offsets, width: int) -> Offsets:
    """Return the offsets of all elements of stretches: `counts` elements of `width` bytes from each start.

    Examples
    --------
    >>> spread(np.array([10, 50]), np.array([2, 1]), np.array([0, 2, 3]), 4).tolist()
    [10, 14, 50]
    """
    return np.repeat(starts - bounds[:-1] * width, counts) + np.arange(bounds[-1]) * width
