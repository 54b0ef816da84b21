"""Peek from the files of a log: reads only row groups that may hold the keys at the wanted times.

One of the ways in which `spark_timely.answers.peek` gets its rows: taken where no index has the keys, and for the times
that an index does not have yet. It gives rows with counts; `plan.finish` makes the answer.

Invariants
----------
1. A file or row group is passed over only where its bounds show that it holds none of the keys, or no update that
   counts. Bounds are never too narrow, and what has no bounds is read.
2. Each update of the log that counts is read once: small files from memory, others by row groups.
3. Reading stops early only where no update that is still unread can take a row away, and no order was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_timely.answers.file_cache import Pieces
from spark_timely.answers.plan import counted, counting, judged
from spark_timely.log.files.parquet_reader import side_by_side
from spark_timely.time.antichain import Antichain
from spark_timely.trace.keys import KeySet
from spark_timely.trace.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_timely.answers.file_cache import KeptFiles
    from spark_timely.answers.plan import PeekPlan
    from spark_timely.log.files.footer import Footer
    from spark_timely.log.files.index import FileIndex
    from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["Scan", "may_hold", "parts_of", "plan_scan", "scan"]

# Small files are kept together, those of other times among them, as long as they have no more bytes than this.
_MOST_SMALL_BYTES: Final = 16 << 20
# Compressed, of row groups that are read together.
_MOST_AT_ONCE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Scan:
    """The files and row groups of a log that a peek has to read.

    Attributes
    ----------
    small : tuple of (str, int)
        Paths and sizes of files that are kept decoded.
    pieces : tuple of Pieces
        Row groups of other files.
    sizes : dict of str to int
        Bytes of the files of `pieces`.
    n_bytes : int
        What has to be read of `pieces`, and of small files where they are many, compressed.
    sorted_small : bool
        Whether the small files are few enough to be kept sorted by the keys.
    only_adds : bool
        Whether no update takes a row away.
    lower : int or None
        Of times of one coordinate: those before it are counted elsewhere.
    """

    small: tuple[tuple[str, int], ...] = ()
    pieces: tuple[Pieces, ...] = ()
    sizes: dict[str, int] | None = None
    n_bytes: int = 0
    sorted_small: bool = True
    only_adds: bool = False
    lower: int | None = None

    @property
    def n_files(self) -> int:
        """Number of files that it looks into."""
        return len(self.small) + len(self.pieces)

    @property
    def n_groups(self) -> int:
        """Number of row groups that it reads."""
        return sum(len(piece.groups) for piece in self.pieces)


def plan_scan(plan: PeekPlan, index: FileIndex, kept: KeptFiles, *, lower: int | None = None) -> Scan:
    """Return what of a log's files a peek has to read.

    Parameters
    ----------
    plan : PeekPlan
    index : FileIndex
        The files of the plan's snapshot.
    kept : KeptFiles
        Of the log.
    lower : int, optional
        Of times of one coordinate: updates before it are counted elsewhere.

    Raises
    ------
    DataLossError
        If a footer that is needed cannot be read.

    Notes
    -----
    Cost: one look at arrays of all files, one at arrays of the row groups of those that are left. A footer is
    read once.
    """
    low = None if lower is None else Antichain.of(lower)
    chosen = may_hold(index, plan.at, low)
    small = index.sizes <= kept.small_bytes
    mine = small & chosen
    # Those of other times too, where there are few: so the same ones are asked for at each time, and stay sorted.
    if lower is None and mine.any() and int(index.sizes[small].sum()) <= _MOST_SMALL_BYTES:
        mine = small
    small_bytes = int(index.sizes[mine].sum())
    is_few = small_bytes <= _MOST_SMALL_BYTES
    large = np.flatnonzero(chosen & ~small).tolist()
    pieces, sizes, n_bytes = [], {}, 0 if is_few else small_bytes
    columns = frozenset((*plan.form.domain.columns, "_diff", *plan.read_columns))
    for number in large:
        path, size = index.paths[number], int(index.sizes[number])
        footer = kept.footer(plan.storage, path, size)
        may = _groups(plan, footer, lower)
        if may.any():
            pieces.append(Pieces(path, tuple(np.flatnonzero(may).tolist())))
            sizes[path] = size
            n_bytes += int(footer.sizes(columns)[may].sum())
    only_adds = plan.form.kind == "stream" or bool((index.least_diffs[chosen] > 0).all())
    files = tuple(zip(index.paths[mine].tolist(), index.sizes[mine].tolist(), strict=True))
    return Scan(files, tuple(pieces), sizes, n_bytes, is_few, only_adds, lower)


def may_hold(index: FileIndex, at: tuple[int, ...], low: Antichain | None) -> BoolArray:
    """Return which files may hold updates that count."""
    chosen: BoolArray = np.asarray((index.min_times <= np.array(at, np.int64)).all(axis=1))
    if low is not None:
        chosen &= low.beyond(index.max_times)
    return chosen | ~index.known


def _groups(plan: PeekPlan, footer: Footer, lower: int | None) -> BoolArray:
    """Return which row groups of a file may hold updates that count (invariant 1)."""
    may = np.ones(footer.n_groups, np.bool_)
    for name, stop in zip(plan.form.domain.columns, plan.at, strict=True):
        bounds = footer.bounds(name)
        if bounds is not None:
            lows, highs, known, _ = bounds
            inside = lows <= stop
            if lower is not None:
                inside &= highs >= lower
            may &= ~known | inside
    if plan.keys is not None:
        may &= footer.may_have(KeySet(plan.keys, plan.keys.schema.names))
    return may


def scan(plan: PeekPlan, what: Scan, kept: KeptFiles) -> tuple[pa.Table, int]:
    """Read what a scan says; return the rows with their counts, and how many files had to be read.

    Raises
    ------
    DataLossError
        If a file is missing or corrupt.
    InvalidUsageError
        If the condition cannot be computed for a row.
    NegativeMultiplicityError, MultiplicityOverflowError
        If a row is there fewer than zero times, or more often than 64 bits count.

    Notes
    -----
    Cost: what is read, one look at each update that counts, one hash and one sort of those of the keys.
    """
    parts: list[Updates] = []
    n_read = 0
    enough = plan.bound if what.only_adds and not plan.order else None
    keys = None if plan.keys is None else KeySet(plan.keys, plan.keys.schema.names)
    for found, was_read in parts_of(plan, what, kept, keys):
        n_read += was_read
        part = judged(plan, found)
        if len(part):
            parts.append(part)
            # Copies of rows that nothing takes away (invariant 3).
            if enough is not None and sum(_copies(each.diffs, enough) for each in parts) >= enough:
                break
    return counted(plan, parts), n_read


def _copies(diffs: IntArray, enough: int) -> int:
    """Return how many copies updates bring, or `enough` if that is less."""
    return min(int(np.minimum(diffs, min(enough, 1 << 31)).sum()), enough)


def parts_of(plan: PeekPlan, what: Scan, kept: KeptFiles, keys: KeySet | None) -> Iterator[tuple[Updates, int]]:
    """Give the updates of a plan's keys that count, with the columns that are read, and how many files had to be read.

    Raises
    ------
    DataLossError
        If a file is missing or corrupt.
    """
    for found, n_read in _read(plan, what, kept, keys):
        yield counting(plan, found, what.lower).select(plan.read_columns), n_read


def _read(plan: PeekPlan, what: Scan, kept: KeptFiles, keys: KeySet | None) -> Iterator[tuple[Updates, int]]:
    """Give the updates of a plan's keys, file by file."""
    if what.small and keys is not None and what.sorted_small:
        yield kept.find(plan, keys, what.small)
    elif what.small:
        sizes = dict(what.small)
        small: Iterable[tuple[Updates, bool]]
        if plan.storage.local:
            small = (kept.decoded(plan, path, size) for path, size in what.small)
        else:
            small = side_by_side(plan.storage, lambda path: kept.decoded(plan, path, sizes[path]), list(sizes))
        for found, was_read in small:
            yield found if keys is None else found.where(keys.among(found.rows)), int(was_read)
    for piece in what.pieces:
        size = (what.sizes or {})[piece.path]
        for number, groups in enumerate(_at_once(piece, kept.footer(plan.storage, piece.path, size), plan, what)):
            yield kept.read(plan, size, Pieces(piece.path, groups), plan.read_columns, keys), int(number == 0)


def _at_once(piece: Pieces, footer: Footer, plan: PeekPlan, what: Scan) -> Iterator[tuple[int, ...]]:
    """Give row groups that are read together: memory holds these, and what is asked for."""
    if len(piece.groups) == 1:
        yield piece.groups
        return
    most = 0 if what.only_adds and plan.bound is not None and not plan.order else _MOST_AT_ONCE_BYTES
    sizes = footer.sizes(frozenset((*plan.form.domain.columns, "_diff", *plan.read_columns)))
    first, n_bytes = 0, 0
    for number, group in enumerate(piece.groups):
        if number > first and n_bytes + int(sizes[group]) > most:
            yield piece.groups[first:number]
            first, n_bytes = number, 0
        n_bytes += int(sizes[group])
    yield piece.groups[first:]
