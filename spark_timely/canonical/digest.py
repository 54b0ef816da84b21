"""The digest of a micro-batch's input rows, which says whether two attempts at it held the same rows.

Sums of row hashes, so that neither the order of rows nor the way they are cut into tasks and buffers
makes a difference. The two sums are modulo 2**64, never exclusive ors: two equal rows count twice.

Invariants
----------
1. A digest is that of the rows as they came in, with diffs and progress rows: what becomes of a row makes
   no difference.
2. Each value is bound to the name of its column in the log; a null, and a column of nulls, add nothing.
3. Digests say something about each other only if they have one scheme (`comparable`): the two routes
   into a log hash in different ways.

The scheme ``arrow1`` adds the row hashes of `spark_timely.canonical.row_hash`, lane by lane. They go by value,
whatever the width of an integer or a float: a row hashes as it does after a cast to the log's types, and
nothing is cast. The scheme ``spark1`` is described in `spark_timely.spark.capture.digest_sql`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import InvalidUsageError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ARROW_SCHEME", "SPARK_SCHEME", "RowsDigest", "comparable", "digest_of"]

ARROW_SCHEME = "arrow1"
SPARK_SCHEME = "spark1"
_MASK64 = (1 << 64) - 1
_TEXT = re.compile(r"([a-z]+[0-9]+):([0-9]+):([0-9a-f]{16})([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """Hold the digest of some rows; digests of parts add up to that of the whole.

    Attributes
    ----------
    lo, hi : int
        Sums of the two lanes of the rows' hashes, modulo 2**64.
    n_rows : int
        Number of rows.
    scheme : str
        How rows were hashed.

    Examples
    --------
    >>> part = RowsDigest(2**64 - 1, 7, 1)
    >>> (part + part).text
    'arrow1:2:000000000000000efffffffffffffffe'
    >>> RowsDigest.parse((part + part).text) == part + part
    True
    """

    lo: int = 0
    hi: int = 0
    n_rows: int = 0
    scheme: str = ARROW_SCHEME

    def __add__(self, other: RowsDigest) -> RowsDigest:
        """Return the digest of the rows of both.

        Raises
        ------
        InvalidUsageError
            If their schemes differ.
        """
        if not isinstance(other, RowsDigest):
            return NotImplemented
        if not comparable(self, other):
            msg = f"could not add digests of rows: found schemes {self.scheme!r} and {other.scheme!r}"
            raise InvalidUsageError(msg, hint="hash all parts of a micro-batch in one way")
        return RowsDigest(
            (self.lo + other.lo) & _MASK64, (self.hi + other.hi) & _MASK64, self.n_rows + other.n_rows, self.scheme
        )

    @property
    def text(self) -> str:
        """Scheme, number of rows, and both sums in hexadecimal: for notes and messages."""
        return f"{self.scheme}:{self.n_rows}:{self.hi:016x}{self.lo:016x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the digest of a text that `text` gave; schemes that are not known here are kept.

        Raises
        ------
        InvalidUsageError
            If the text is no digest.

        Examples
        --------
        >>> RowsDigest.parse("spark1:0:" + 32 * "0").scheme
        'spark1'
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            msg = f"could not read a digest of rows: found text {text!r:.200}"
            raise InvalidUsageError(msg, hint="give a text as RowsDigest.text makes it: 'arrow1:<rows>:<32 digits>'")
        return cls(int(found[4], 16), int(found[3], 16), int(found[2]), found[1])


def comparable(one: RowsDigest, other: RowsDigest, /) -> bool:
    """Return whether digests can be compared: rows hashed in different ways tell nothing of each other.

    Examples
    --------
    >>> comparable(RowsDigest(), RowsDigest(scheme="spark1"))
    False
    """
    return one.scheme == other.scheme


def digest_of(rows: pa.Table, columns: Sequence[tuple[str, str]], /) -> RowsDigest:
    """Return the digest of rows as they come in.

    Parameters
    ----------
    rows : pyarrow.Table
        Any chunks, timestamps in any zone. Not modified.
    columns : sequence of (str, str)
        The columns that count: name in the log, name in `rows`. `CaptureLayout.inputs` gives them.

    Returns
    -------
    RowsDigest
        Of scheme ``arrow1``.

    Raises
    ------
    InvalidUsageError
        If a column has a type that has no place in a log.

    Notes
    -----
    Cost: that of `RowHasher`, about 70 ns per row of three numbers and a string of 20 bytes.

    Examples
    --------
    >>> names = [("a", "a"), ("b", "b")]
    >>> rows = pa.table({"a": [1, 2], "b": ["x", None]})
    >>> digest_of(rows, names) == digest_of(rows.slice(1), names) + digest_of(rows.slice(0, 1), names)
    True
    """
    named = rows.select([source for _, source in columns]).rename_columns([name for name, _ in columns])
    hashes = RowHasher(named.column_names).hash(named)
    hi, lo = (int(total) for total in hashes.sum(axis=0))
    return RowsDigest(lo, hi, rows.num_rows)
