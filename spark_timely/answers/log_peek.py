"""Peek from the files of a log: reads only row groups that may hold the keys at the wanted times.

Invariants
----------
1. Nothing is passed over unless bounds say that it holds none of the keys, or no update that counts: bounds are never
   too narrow, and what has none is read.
2. Each update of the log that counts is read once: small files from memory, others by row groups.
3. Reading stops early only where no update that is still unread can take a row away, and nobody asked for an order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.answers.finishing import Thinning
from spark_timely.answers.kept import Pieces
from spark_timely.log.files.parquet import side_by_side
from spark_timely.time.antichain import Antichain
from spark_timely.trace.contents import contents_of
from spark_timely.trace.keys import KeySet
from spark_timely.trace.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_timely.answers.kept import Footer, KeptFiles
    from spark_timely.answers.plan import PeekPlan
    from spark_timely.log.files.index import FileIndex
    from spark_timely.time.arrays import BoolArray, IntArray
    from spark_timely.trace.arrangement import OpenArrangement

__all__ = ["Scan", "look_up", "may_hold", "plan_scan", "scan", "tail_of"]

# Small files are kept together, those of other times among them, as long as they have no more bytes than this.
_MOST_SMALL_BYTES: Final = 16 << 20
# Compressed, of row groups that are read together.
_MOST_AT_ONCE_BYTES: Final = 8 << 20
# Keys that are looked up and counted at once: what is thinned comes in such pieces.
_KEYS_AT_ONCE: Final = 1 << 14


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
    if plan.keys is None:
        return may
    for field in plan.keys.schema:
        bounds = footer.bounds(field.name)
        if bounds is None:
            continue
        lows, highs, known, nulls = bounds
        column = plan.keys.column(field.name)
        has_null = column.null_count > 0
        values = _comparable(column)
        first, stop = np.searchsorted(values, lows, "left"), np.searchsorted(values, highs, "right")
        # A group without bounds may hold anything.
        may &= ~known | (first < stop) | (nulls & has_null)
    return may


def _comparable(column: pa.ChunkedArray) -> np.ndarray:
    """Return the values of a key's column, sorted, as footers have them: integers, or texts as bytes; without null."""
    column = pc.drop_null(column)
    if pa.types.is_string(column.type):
        values = np.empty(len(column), dtype=object)
        values[:] = column.cast(pa.binary()).to_pylist()
        return np.sort(values)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.sort(np.asarray(column.cast(pa.int64()).to_numpy(), np.int64))


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
    for part, was_read in _parts(plan, what, kept):
        n_read += was_read
        if part is not None and len(part):
            parts.append(part)
            # Copies of rows that nothing takes away (invariant 3).
            if enough is not None and sum(_copies(each.diffs, enough) for each in parts) >= enough:
                break
    return counted_updates(plan, parts), n_read


def _copies(diffs: IntArray, enough: int) -> int:
    """Return how many copies updates bring, or `enough` if that is less."""
    return min(int(np.minimum(diffs, min(enough, 1 << 31)).sum()), enough)


def counted_updates(plan: PeekPlan, parts: Sequence[Updates]) -> pa.Table:
    """Return updates that count, of the columns that rows are counted by, as rows with their counts."""
    if not parts:
        schema = pa.schema([plan.form.payload.field(name).with_nullable(nullable=True) for name in plan.columns])
        return Updates.contents(schema.empty_table()).as_table()
    return contents_of(f"peek log {plan.path!r}", Updates.concat(parts)).as_table()


def counts_at(
    times: IntArray,
    at: tuple[int, ...],
    *,
    since: Antichain | None = None,
    lower: int | None = None,
) -> BoolArray:
    """Return which updates count at a time, shape (n,).

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
    at : tuple of int
        The time: updates not later than it in any coordinate count.
    since : Antichain, optional
        Of a stream that has forgotten: messages not beyond it are gone.
    lower : int, optional
        Of times of one coordinate: those before it are counted elsewhere.

    Examples
    --------
    >>> counts_at(np.array([[3], [5], [6]]), (5,)).tolist()
    [True, True, False]
    >>> counts_at(np.array([[1, 9], [2, 2]]), (5, 5)).tolist()
    [False, True]
    """
    found: BoolArray = np.asarray((times <= np.array(at, np.int64)).all(axis=1))
    if since is not None:
        found &= since.beyond(times)
    if lower is not None:
        found &= times[:, 0] >= lower
    return found


def _parts(plan: PeekPlan, what: Scan, kept: KeptFiles) -> Iterator[tuple[Updates | None, int]]:
    """Give the updates that count, as plan says, file by file; and how many files were read for them."""
    if what.small and plan.keys is not None and what.sorted_small:
        found, n_read = kept.find(plan, what.small)
        yield (None if found is None else matching(plan, found, lower=what.lower, keyed=True)), n_read
    elif plan.storage.local:
        for path, size in what.small:
            found, was_read = kept.decoded(plan, path, size)
            yield matching(plan, found, lower=what.lower), int(was_read)
    else:
        by_path = dict(what.small)
        for found, was_read in side_by_side(
            plan.storage, lambda path: kept.decoded(plan, path, by_path[path]), list(by_path)
        ):
            yield matching(plan, found, lower=what.lower), int(was_read)
    choose = None if plan.keys is None else key_set(plan.keys).among
    for piece in what.pieces:
        size = (what.sizes or {})[piece.path]
        for number, groups in enumerate(_at_once(piece, kept.footer(plan.storage, piece.path, size), plan, what)):
            read = kept.read(plan, size, Pieces(piece.path, groups), plan.read_columns, choose)
            yield matching(plan, read, lower=what.lower, keyed=choose is not None), int(number == 0)


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


def matching(plan: PeekPlan, found: Updates, *, lower: int | None = None, keyed: bool = False) -> Updates:
    """Return of updates those that count: of the keys, at their times, and for which the condition is true.

    Parameters
    ----------
    plan : PeekPlan
    found : Updates
        With all columns that are read.
    lower : int, optional
        As for `counts_at`.
    keyed : bool
        Whether they are of the keys alone.

    Returns
    -------
    Updates
        With the columns that rows are counted by.

    Raises
    ------
    InvalidUsageError
        If the condition cannot be computed for a row: whether or not the row is there at the time.
    """
    form = plan.form
    forgets = form.kind == "stream" and plan.since != form.domain.minimum_frontier
    found = found.where(counts_at(found.times, plan.at, since=plan.since if forgets else None, lower=lower))
    if plan.keys is not None and not keyed and len(found):
        found = found.where(key_set(plan.keys).among(found.rows))
    if plan.where is not None and len(found):
        rows = found.rows.combine_chunks()
        batches = rows.to_batches()
        kept = np.concatenate([np.asarray(plan.where.holds(batch).to_numpy(zero_copy_only=False)) for batch in batches])
        found = replace(found, rows=rows).where(kept)
    return found.select(plan.columns)


def key_set(keys: pa.Table) -> KeySet:
    """Return keys as what looks for them, by the columns in the order in which they were asked for."""
    return KeySet(keys, keys.schema.names)


def tail_of(plan: PeekPlan, what: Scan, kept: KeptFiles) -> tuple[list[Updates], int]:
    """Return the updates of a plan's keys in files past an index, with all columns that are read.

    Returns
    -------
    updates : list of Updates
        Those that count, of the keys alone.
    n_read : int
        How many files had to be read.
    """
    assert plan.keys is not None
    found: list[Updates] = []
    n_read, among = 0, key_set(plan.keys).among
    if what.small and what.sorted_small:
        mine, n_read = kept.find(plan, what.small)
        if mine is not None:
            found.append(mine)
    elif what.small:
        for path, size in what.small:
            every, was_read = kept.decoded(plan, path, size)
            found.append(every.where(among(every.rows)))
            n_read += was_read
    for piece in what.pieces:
        size = (what.sizes or {})[piece.path]
        found.append(kept.read(plan, size, piece, plan.read_columns, among))
        n_read += 1
    counting = [each.where(counts_at(each.times, plan.at, lower=what.lower)) for each in found]
    return [each.select(plan.read_columns) for each in counting if len(each)], n_read


def look_up(plan: PeekPlan, index: OpenArrangement, frontier: Antichain, tail: Sequence[Updates]) -> pa.Table:
    """Return rows with their counts, of a plan's keys: what an index has of them, and what is past its upper.

    Parameters
    ----------
    plan : PeekPlan
        With keys.
    index : OpenArrangement
    frontier : Antichain
        Times not beyond it count.
    tail : sequence of Updates
        Updates that count at times not before the index's upper, of the keys alone, with the columns that are read.

    Notes
    -----
    Cost: a look-up, of many keys piece by piece, of which as many rows are kept as the answer needs.
    """
    assert plan.keys is not None
    keys = KeySet(plan.keys, index.names.key)
    late = Updates.concat(tail) if tail else None
    thinning = Thinning(plan)
    # Rows of other keys may be equal in the columns that count: they are counted key by key only if these have the key.
    apart = set(index.names.key) <= set(plan.columns)
    parts: list[Updates] = []
    for piece in keys.pieces(_KEYS_AT_ONCE):
        if thinning.done:
            break
        found = [index.before(piece, frontier, plan.read_columns)]
        if late is not None:
            found.append(late if piece is keys else late.where(piece.among(late.rows)))
        parts += [matching(plan, each, keyed=True) for each in found]
        if apart and piece is not keys:
            thinning.add(counted_updates(plan, parts))
            parts = []
    thinned = thinning.rows()
    return counted_updates(plan, parts) if thinned is None else thinned
