"""The digest of a commit's messages as stored: shows whether another program changed their values.

A commit says how many messages it has and between which times they are. If another program changes a value both stay
as they are, but the digest changes. The writer of the files computes it (`log.files.parquet`; for captures by Spark
`spark.capture.staging`), from the table that goes into them, so it covers the messages and no dead letters. The
commit's note keeps it (`protocol.note`), and `log.verify` compares. Digests add up: those of files give that of a
commit, however rows are cut into files, ordered, or merged with those of other commits later.

It is cheaper than `row_hash`, which hashes equal rows of any two engines alike.

It finds accidents. It is no signature: an attacker can make other rows of the same digest.

The formula, complete, so that it can be written again from here. All arithmetic is modulo 2**64. ``constant(text)`` is
that of lane 0 in `spark_timely.canonical.row_hash`, ``odd(text)`` is ``constant(text) | 1``, and a *place* is the name
of a column in the log. Time columns, `_diff` of a collection, and the payload count; `_stream` and `_seq` do not.

- A value becomes 64-bit words w_0, w_1, … and contributes ``constant("content <place>")`` and something for each word.
  A null contributes 0, so a column of nulls is as good as none.
- The j-th word, j < 8, and the last one of a string contribute ``w_j * odd("content <j> <place>")``, 8 for a greater j.
  A further word of a string contributes ``(y ^ y >> 32) * odd("content turn")`` with
  ``y = w_j * odd("content 8 <place>") + j * odd("content step")``.
- The hash of a row is ``turn(sum of the contributions of its columns)``, with
  ``turn(x): x ^= x >> 32; x *= odd("content turn"); x ^= x >> 29``.
- The digest is the sum of the rows' hashes.

==========================  =================================================================================
value                       words
==========================  =================================================================================
integer, boolean, date,     one: as an integer of 64 bits, of dates the days and of timestamps the microseconds
timestamp
float, double               one: bits of the double, bytes in reverse; one NaN (0x7FF8000000000000); -0.0 is 0.0
decimal                     two (up to 38 digits): the unscaled integer, two's complement, low word first
string, binary              UTF-8 or bytes followed by one byte 1 and as few bytes 0 as make whole words
any other                   none; it contributes what it does in `row_hash`, lane 0
==========================  =================================================================================
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.canonical.row_hash import Words, contribution, hash_constant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Number = TypeVar("_Number", np.uint8, np.uint64, np.float32, np.float64, np.complex128)
_Add: TypeAlias = "Callable[[pa.Array, str, Words, Words], None]"

SCHEME: Final = "c1"
_MASK64 = (1 << 64) - 1
_ONE = np.uint64(1)
# Small enough that all of it stays in a core's cache between one step and the next.
_CHUNK_ROWS = 16 * 1024
_SHIFT_32, _SHIFT_29 = np.uint64(32), np.uint64(29)
_TURN = hash_constant(0, "content turn") | _ONE
_NAN = np.uint64(0x7FF8000000000000)
_STEP = hash_constant(0, "content step") | _ONE
# Words of a string that are taken column by column; the rest of long ones is taken flat.
_SHORT_WORDS = 8
_FLAT_WORDS = 1 << 20
# What is kept of a word of which 0…7 bytes belong to the string, and the end mark to set.
_KEEP = np.array([(1 << 8 * i) - 1 for i in range(8)], np.uint64)
_END = np.array([1 << 8 * i for i in range(8)], np.uint64)
# Work in units of about 3 ns: once for a column, and for each value beside that of its bytes. Measured within appends.
_ONCE_NULLS, _ONCE_TEXT, _ONCE_NESTED = 6_000, 50_000, 75_000
_EACH, _EACH_NULLS, _EACH_TEXT, _EACH_NESTED = 1, 2, 8, 48
_OURS = frozenset({"_stream", "_seq"})


def row_hashes(table: pa.Table) -> Words:
    """Return a hash for each message.

    Parameters
    ----------
    table : pyarrow.Table
        Messages in the log's types; columns that it lacks count as null.

    Examples
    --------
    >>> row_hashes(pa.table({"_time": [3, 3], "v": [1, 1]})).tolist()
    [9047852580317902464, 9047852580317902464]
    """
    hashes = np.empty(table.num_rows, np.uint64)
    row = 0
    for part in _parts(table):
        hashes[row : row + len(part)] = part
        row += len(part)
    return hashes


def digest_of_messages(table: pa.Table) -> int:
    """Return the digest of messages.

    Parameters
    ----------
    table : pyarrow.Table
        As for `row_hashes`. Not modified.

    Notes
    -----
    Cost: about 2 ns for each number, 20 ns for a string of 20 bytes, and 0.1 ms.

    Examples
    --------
    >>> rows = pa.table({"_time": [3, 4, 4], "v": ["x", None, "y"]})
    >>> digest_of_messages(rows) == added(digest_of_messages(rows.slice(1)), digest_of_messages(rows.slice(0, 1)))
    True
    """
    return added(*(int(part.sum()) for part in _parts(table)))


def added(*digests: int) -> int:
    """Return the digest of the rows of several parts.

    Examples
    --------
    >>> added(2**64 - 1, 2)
    1
    """
    return sum(digests) & _MASK64


def digest_text(digest: int) -> str:
    """Return a digest as it stands in a note.

    Examples
    --------
    >>> digest_text(255)
    'c1:00000000000000ff'
    """
    return f"{SCHEME}:{digest:016x}"


def digest_from(text: str | None) -> int | None:
    """Return the digest of a text; None where there is none, or none that this version can compare.

    Examples
    --------
    >>> digest_from("c1:00000000000000ff"), digest_from("c2:ff"), digest_from(None)
    (255, None, None)
    """
    scheme, _, digits = (text or "").partition(":")
    try:
        return int(digits, 16) if scheme == SCHEME else None
    except ValueError:
        return None


DIGESTS: Final = ("auto", "on", "off")
"""Whether to compute digests: where it costs at most 3 %, always, or never."""
OF_COMMIT: Final = 48 * 1024
"""Up to how much work the digest costs at most 3 % of an append, which takes 5 ms and more. Text is more than that."""
OF_TASK: Final = 512 * 1024
"""The same of a task of Spark, which takes 50 ms and more."""


def budget(wanted: str, usual: int) -> int | None:
    """Return how much work the digest may be, as `is_worth_it` takes it.

    Parameters
    ----------
    wanted : str
        `auto`, `on` or `off`.
    usual : int
        Under `auto`.

    Examples
    --------
    >>> budget("on", OF_TASK), budget("off", OF_TASK), budget("auto", 10)
    (None, 0, 10)
    """
    return {"on": None, "off": 0}.get(wanted, usual)


def is_worth_it(table: pa.Table, within: int | None) -> bool:
    """Return whether the digest of messages is no more work than allowed.

    Parameters
    ----------
    table : pyarrow.Table
    within : int or None
        How much, in units of about 3 ns; None: any.

    Notes
    -----
    By the kinds of the columns and their bytes, and never by a clock: what a program writes is the same each time.

    Examples
    --------
    >>> rows = pa.table({"_time": [3, 4], "v": ["x", "y"]})
    >>> is_worth_it(rows, OF_COMMIT), is_worth_it(rows.select(["_time"]), OF_COMMIT), is_worth_it(rows, OF_TASK)
    (False, True, True)
    """
    if not within:
        return within is None
    n, work = table.num_rows, 0
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if name in _OURS:
            continue
        kind = _KINDS.get(column.type.id)
        if kind is None:
            work += _ONCE_NESTED + _EACH_NESTED * n + column.nbytes
        elif kind is _add_text:
            work += _ONCE_TEXT + _EACH_TEXT * n + column.nbytes // 2
        elif column.null_count:
            work += _ONCE_NULLS + _EACH_NULLS * n
        else:
            work += _EACH * n
        if work > within:
            return False
    return True


def _parts(table: pa.Table) -> Iterator[Words]:
    """Give the hashes of the rows, some thousands at a time, each in an array that the next one overwrites."""
    room = min(table.num_rows, _CHUNK_ROWS)
    sums, scratch = np.empty(room, np.uint64), np.empty(room, np.uint64)
    names = table.schema.names
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        n = batch.num_rows
        if n:
            yield _hashed(names, batch.columns, sums[:n], scratch[:n])


def _hashed(names: list[str], columns: list[pa.Array], sums: Words, scratch: Words) -> Words:
    sums.fill(0)
    constant = 0
    for name, array in zip(names, columns, strict=True):
        if name in _OURS:
            continue
        kind = _KINDS.get(array.type.id)
        if kind is None:
            sums += contribution(array, name)[0]
        elif array.null_count:
            into = np.full(len(array), _base(name), np.uint64)
            kind(array, name, into, scratch)
            into *= _valid(array)
            sums += into
        else:
            kind(array, name, sums, scratch)
            constant += int(_base(name))
    sums += np.uint64(constant & _MASK64)
    np.right_shift(sums, _SHIFT_32, out=scratch)
    sums ^= scratch
    sums *= _TURN
    np.right_shift(sums, _SHIFT_29, out=scratch)
    sums ^= scratch
    return sums


@lru_cache(maxsize=4096)
def _key(place: str, j: int) -> np.uint64:
    return hash_constant(0, f"content {j} {place}") | _ONE


@lru_cache(maxsize=1024)
def _keys(place: str) -> Words:
    """Return the keys of the words of a string; the last one is that of all further words."""
    return np.array([_key(place, j) for j in range(_SHORT_WORDS + 1)])


@lru_cache(maxsize=4096)
def _base(place: str) -> np.uint64:
    return hash_constant(0, f"content {place}")


def _add_longs(array: pa.Array, place: str, into: Words, scratch: Words) -> None:
    np.multiply(_values(array, np.uint64), _key(place, 0), out=scratch)
    into += scratch


def _add_integers(array: pa.Array, place: str, into: Words, scratch: Words) -> None:
    width = array.type.bit_width // 8
    values = np.frombuffer(array.buffers()[1], f"<i{width}", len(array), array.offset * width)
    np.multiply(values.astype(np.int64, copy=False).view(np.uint64), _key(place, 0), out=scratch)
    into += scratch


def _add_booleans(array: pa.Array, place: str, into: Words, scratch: Words) -> None:
    np.multiply(_values(array.cast(pa.uint8()), np.uint8).astype(np.uint64), _key(place, 0), out=scratch)
    into += scratch


def _add_floats(array: pa.Array, place: str, into: Words, scratch: Words) -> None:
    double = array.type.id == _DOUBLE
    values = _values(array, np.float64) if double else _values(array, np.float32).astype(np.float64)
    np.add(values, 0.0, out=scratch.view(np.float64))  # -0.0 becomes 0.0
    nan = np.isnan(values)
    if nan.any():
        scratch[nan] = _NAN
    # What differs between floats is in their upper bits, which a product would only move out.
    scratch.byteswap(inplace=True)
    np.multiply(scratch, _key(place, 0), out=scratch)
    into += scratch


def _add_decimals(array: pa.Array, place: str, into: Words, scratch: Words) -> None:
    pairs = _values(array, np.complex128).view("<u8").reshape(-1, 2)  # of 16 bytes each
    for j in range(2):
        np.multiply(pairs[:, j], _key(place, j), out=scratch)
        into += scratch


def _valid(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return 0 for each null and 1 for each value of an array that has nulls."""
    bits = np.frombuffer(array.buffers()[0], np.uint8, (array.offset + len(array) + 7) // 8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :]


def _values(array: pa.Array, dtype: type[_Number]) -> npt.NDArray[_Number]:
    """Return the values of a fixed-width array without a copy; any number where null."""
    offset = array.offset and array.offset * np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=offset)


def _add_text(array: pa.Array, place: str, into: Words, scratch: Words) -> None:
    _, where, data = array.buffers()
    width = _OFFSETS[array.type.id]
    offsets = np.frombuffer(where, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    first, end = int(offsets[0]), int(offsets[-1])
    # A copy with room behind it, because a word is always read whole.
    region = np.zeros(end - first + 8, np.uint8)
    if data is not None and end > first:
        region[:-8] = np.frombuffer(data, np.uint8, end - first, first)
    # The 8 bytes from each place on, as a word; reading them unaligned is what makes this fast.
    word_at = np.ndarray((end - first + 1,), "<u8", region, strides=(1,))
    offsets = offsets.astype(np.int64)
    offsets -= first
    starts, ends = offsets[:-1], offsets[1:]
    lengths = ends - starts
    whole, left = lengths >> 3, lengths & 7
    most = int(whole.max())
    keys = _keys(place)
    # The last word of each, of 0…7 bytes and the end mark.
    last = word_at[ends - left]
    last &= _KEEP[left]
    last |= _END[left]
    last *= keys[whole if most <= _SHORT_WORDS else np.minimum(whole, _SHORT_WORDS)]
    into += last
    fewest = int(whole.min()) if most else 0
    for j in range(min(most, _SHORT_WORDS)):
        if j < fewest:
            into += word_at[starts + 8 * j] * keys[j]
        else:
            rows = np.flatnonzero(whole > j)
            into[rows] += word_at[starts[rows] + 8 * j] * keys[j]
    if most > _SHORT_WORDS:
        _add_long(word_at, starts, whole, place, into)


def _add_long(
    word_at: Words, starts: npt.NDArray[np.int64], whole: npt.NDArray[np.int64], place: str, into: Words
) -> None:
    """Add the whole words of long strings from the ninth on, all strings' words in one sequence."""
    rows = np.flatnonzero(whole > _SHORT_WORDS)
    ends = np.cumsum(whole[rows] - _SHORT_WORDS)
    begins = ends - (whole[rows] - _SHORT_WORDS)
    for low in range(0, int(ends[-1]), _FLAT_WORDS):
        flat = np.arange(low, min(low + _FLAT_WORDS, int(ends[-1])), dtype=np.int64)
        string = np.searchsorted(ends, flat, side="right")
        j = flat - begins[string] + _SHORT_WORDS
        words = word_at[starts[rows[string]] + 8 * j]
        words *= _key(place, _SHORT_WORDS)
        words += j.view(np.uint64) * _STEP
        words ^= words >> _SHIFT_32
        words *= _TURN
        heads = np.flatnonzero(np.diff(string, prepend=-1))
        into[rows[string[heads]]] += np.add.reduceat(words, heads)


_DOUBLE = pa.float64().id
_OFFSETS = {
    **dict.fromkeys((pa.string().id, pa.binary().id), np.int32),
    **dict.fromkeys((pa.large_string().id, pa.large_binary().id), np.int64),
}
_KINDS: dict[int, _Add] = {
    **{type_.id: _add_longs for type_ in (pa.int64(), pa.timestamp("us"))},
    **{type_.id: _add_integers for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.date32())},
    pa.bool_().id: _add_booleans,
    **{type_.id: _add_floats for type_ in (pa.float32(), pa.float64())},
    pa.decimal128(1).id: _add_decimals,
    **dict.fromkeys(_OFFSETS, _add_text),
}
