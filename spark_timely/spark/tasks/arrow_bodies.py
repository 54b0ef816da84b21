"""Evaluation of a continual task's body that is a function of Arrow tables: each step is one task of Spark.

`continual` evaluates a body here that was given as an `ArrowBody`; SQL and functions of DataFrames are in `bodies`. The
task reads the step's files itself, sums the updates of collections, calls the function, and writes the files of the
output's log. No SQL is planned and no view is made, so that a small step costs little more than an empty job.

Invariants
----------
1. What a step gives depends on its plan alone. What a process keeps of a reference (`Kept`) was read from files that
   are never changed, each of which the plan names; where that cannot be, everything is read again.
2. Rows stay where they are computed: names and statistics of files come back, and numbers.
3. Times are evaluated in order. Each sees contents as of itself, and the output as the times before it leave it.
4. Which rows come together in a file, or in which order, changes no row of the result of a function that does not look
   at the order of its rows.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.continual.plan import SourcePlan, StepPlan, StepResult
from spark_timely.dataflow.views import time_value
from spark_timely.datasource.reader import read_split
from spark_timely.datasource.splits import FilePiece, ReplayLayout, Split
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    OperatorError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    described,
    kind_of,
    shown,
)
from spark_timely.log.files.format import canonical_type, conform
from spark_timely.masking import masked_logger
from spark_timely.spark.base.schema import spark_schema, spark_type
from spark_timely.spark.base.shipping import for_task
from spark_timely.spark.dataflows.tasks import DRIVER_BYTES
from spark_timely.spark.tasks.bodies import (
    CORRECT_BODY,
    GONE_HINT,
    NO_DELETES,
    RESULTS,
    SCHEMA_HINT,
    Changes,
    FunctionBody,
    attempt_of,
    fits,
    no_columns,
    nullable,
    operator_error,
    write_messages,
)
from spark_timely.time.antichain import is_sorted, lexsort, ranges, unique_times
from spark_timely.trace.updates import DIFF, Updates, check_contents, contents_of, hash_lanes, one_zero, summed_by
from spark_timely.work import is_cancelled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.log.machine.state import DataFile
    from spark_timely.time.antichain import BoolArray, IntArray

__all__ = [
    "KEPT_BYTES",
    "MAX_BYTES",
    "ArrowBodies",
    "ArrowBody",
    "Kept",
    "compare_step",
    "rows_of_step",
    "run_step",
    "times_of_changes",
]

_log = masked_logger("spark_timely.continual")

MAX_BYTES: Final = 1 << 30
"""Of decoded rows that a step may hold, unless the task says otherwise."""

KEPT_BYTES: Final = 256 << 20
"""Of decoded rows of references that a process keeps between steps."""

# What is written at once, where several times give more than that.
_MOST_BYTES: Final = 256 << 20

# Updates that are summed at once where only their times are asked for.
_PIECE_ROWS: Final = 1 << 20

# Changes of contents beside the rows that they change: more of them are put among these rows, which are sorted then.
_FEW_ROWS: Final = 1 << 12

# Tables in which a stream log's rows lie: more of them are made one.
_MOST_PARTS: Final = 64

_T = TypeVar("_T")

Tables: TypeAlias = Mapping[str, pa.Table]


@dataclass(frozen=True)
class ArrowBody(FunctionBody):
    """A function that makes tables of tables.

    Attributes
    ----------
    max_bytes : int
        Of decoded rows that a step may hold.

    Examples
    --------
    >>> body = ArrowBody(lambda inputs, references, time: inputs["i"], ("i",), (), reads_output=False)
    >>> body.call({"i": pa.table({"n": [1]})}, 5, None, ()).insert.to_pylist()
    [{'n': 1}]
    """

    max_bytes: int = MAX_BYTES

    def call(self, frames: Tables, time: object, output: pa.Table | None, own_names: Sequence[str]) -> Changes:
        """Call the function with the tables of a time; a table that it gives is to be inserted."""
        made = self.made(frames, time, output, own_names)
        changes = isinstance(made, Changes)
        parts = [each for each in (made.insert, made.delete) if each is not None] if changes else [made]
        wrong = [each for each in parts if not isinstance(each, pa.Table)]
        if wrong:
            msg = f"could not run the function of a task: found {kind_of(wrong[0])} in place of a pyarrow.Table"
            raise InvalidUsageError(msg, hint="return a table, or Changes of tables; Changes() if nothing changes")
        return made if changes else Changes(insert=made)


# Reading -----------------------------------------------------------------------------------------------


class Room:
    """The limit on the rows that a step may hold, in bytes.

    Parameters
    ----------
    plan : StepPlan or None
        For the error; None where times alone are asked for.
    most : int
    """

    def __init__(self, plan: StepPlan | None, most: int) -> None:
        self._plan, self._most, self._taken = plan, most, 0

    def take(self, n_bytes: int, source: SourcePlan) -> None:
        """Take room for rows of a log.

        Raises
        ------
        OperatorError
            If there is none left.
        """
        self.check(n_bytes, source)
        self._taken += n_bytes

    def check(self, n_bytes: int, source: SourcePlan) -> None:
        """Refuse what there is no room for, as `take`; it is not held for long."""
        if self._taken + n_bytes <= self._most:
            return
        plan = self._plan
        what = "look at an input" if plan is None else f"run task {plan.task!r} at {plan.where}"
        msg = f"could not {what}: found more than max_bytes={self._most} of rows, with log {source.path!r}"
        hint = "leave arrow=True out: a function of DataFrames has room for more; or give a greater max_bytes"
        raise OperatorError(
            msg,
            hint=hint,
            operator=None if plan is None else plan.task,
            lower=None if plan is None else plan.where,
            upper=None if plan is None else plan.where,
        )


def _batches(
    source: SourcePlan, files: Sequence[str], lower: int | None, upper: int | None, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Give the rows of files at times in [lower, upper): the time, of a collection the diff, and payload columns."""
    (name,), (kind,) = source.domain.columns, source.domain.types
    own = [pa.field(DIFF, pa.int64())] if source.kind == "collection" else []
    schema = pa.schema([pa.field(name, kind.arrow), *own, *nullable(columns)])
    split = Split(
        0, 1, source.path, tuple(map(FilePiece, files)),
        lower=(source.domain.minimum,) if lower is None else ((lower,),),
        upper=() if upper is None else ((upper,),),
    )  # fmt: skip
    if files:
        yield from read_split(split, ReplayLayout(schema, source.domain), storage=source.storage)


def _read(source: SourcePlan, files: Sequence[str], lower: int | None, upper: int | None, room: Room) -> Updates:
    """Return the rows of files at times in [lower, upper), each with how often it comes or goes."""
    found = []
    for batch in _batches(source, files, lower, upper, source.schema):  # 100,000 rows each
        room.take(batch.nbytes, source)
        found.append(batch)
    return _updates(source, found, source.schema)


def _updates(source: SourcePlan, batches: Sequence[pa.RecordBatch], columns: pa.Schema) -> Updates:
    payload = nullable(columns)
    if not batches:
        return Updates(payload.empty_table(), np.empty((0, 1), np.int64), np.empty(0, np.int64))
    return Updates.of_table(pa.Table.from_batches(batches), source.domain, payload.names)


def _bytes_of_copies(rows: pa.Table, counts: IntArray) -> int:
    n = counts.shape[0]
    return int(rows.nbytes * (float(counts.astype(np.float64).sum()) / n)) if n else 0


def _copies(rows: pa.Table, counts: IntArray) -> pa.Table:
    """Return each row as often as its count says; counts are positive."""
    if not counts.shape[0] or int(counts.max()) == 1:
        return rows
    return rows.take(pa.array(np.repeat(np.arange(counts.shape[0]), counts)))


def _attempt(source: SourcePlan) -> str:
    """Return, for errors, what cannot be done."""
    return f"read the contents of log {source.path!r}"


# Inputs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Arrivals:
    """The rows that an input shows at each time of a step, ordered by their time."""

    times: IntArray
    rows: pa.Table

    def at(self, time: int) -> pa.Table:
        low, high = np.searchsorted(self.times, time, "left"), np.searchsorted(self.times, time, "right")
        return self.rows if high - low == self.rows.num_rows else self.rows.slice(low, high - low)


def _arrivals(source: SourcePlan, first: int, room: Room) -> _Arrivals:
    """Read an input. All that the plan names before the first time is shown at it: a snapshot."""
    if source.kind == "stream" and source.shown == "deletes":
        none = _updates(source, [], source.schema)
        return _Arrivals(none.times[:, 0], none.rows)  # of a stream nothing is ever taken away
    moved = _read(source, source.files, source.lower, source.upper, room).advanced((first,))
    if source.kind == "stream":
        if not is_sorted(moved.times):
            moved = moved.take(lexsort(moved.times))
        return _Arrivals(moved.times[:, 0], moved.rows)
    summed = moved.consolidated()
    if source.shown == "inserts":
        if source.lower is None:
            check_contents(_attempt(source), summed.rows, summed.diffs, summed.times[:, 0] == first)
        chosen = summed.where(summed.diffs > 0)
        counts = chosen.diffs
    else:
        chosen = summed.where(summed.diffs < 0)
        # What is too much for 64 bits is too much for any memory: it is refused there.
        counts = np.minimum(-np.maximum(chosen.diffs, -_GREATEST), _GREATEST)
    room.check(_bytes_of_copies(chosen.rows, counts), source)
    rows = _copies(chosen.rows, counts)
    times = chosen.times[:, 0]
    return _Arrivals(times if rows is chosen.rows else np.repeat(times, counts), rows)


_GREATEST: Final = (1 << 63) - 1


def times_of_changes(source: SourcePlan, most_bytes: int = MAX_BYTES) -> IntArray:
    """Return the times at which a collection has inserts, or deletes: `spark_timely.continual.plan.Evaluator.times`.

    Parameters
    ----------
    source : SourcePlan
        Of a collection.
    most_bytes : int
        Of the rows of a time, or of the contents if these are asked for.

    Notes
    -----
    Cost: times and diffs are read. Rows are read and hashed only at times that have both signs: of one sign alone no
    row is taken back.
    """
    try:
        return _times_of_changes(source, most_bytes)
    except DataLossError as error:
        raise _gone(error, f"find the write times of log {source.path!r}") from error


def _times_of_changes(source: SourcePlan, most_bytes: int) -> IntArray:
    sign = 1 if source.shown == "inserts" else -1
    if source.lower is None:
        assert source.upper is not None
        held = _read(source, source.files, None, source.upper, Room(None, most_bytes))
        return np.array([source.upper - 1] if len(held.timeless().consolidated()) else [], np.int64)
    found: dict[int, list[IntArray]] = {1: [], -1: []}
    counted: list[tuple[IntArray, IntArray]] = []
    for batch in _batches(source, source.files, source.lower, source.upper, pa.schema([])):  # per 100,000 rows
        part = _updates(source, [batch], pa.schema([]))
        for which, seen in found.items():
            seen.append(np.unique(part.times[part.diffs > 0 if which > 0 else part.diffs < 0, 0]))
        distinct, counts = unique_times(part.times)
        counted.append((distinct[:, 0], np.asarray(counts, np.int64)))
    none: IntArray = np.empty(0, np.int64)
    ours, others = (np.unique(np.concatenate([none, *found[which]])) for which in (sign, -sign))
    mixed = np.intersect1d(ours, others, assume_unique=True)
    sure: IntArray = np.setdiff1d(ours, mixed, assume_unique=True)
    times, sizes = _counts(counted)
    parts = [sure]
    for piece in _in_pieces(mixed, sizes[np.searchsorted(times, mixed)]):
        room = Room(None, most_bytes)
        rows = _read(source, source.files, int(piece[0]), int(piece[-1]) + 1, room)
        summed = rows.where(np.isin(rows.times[:, 0], piece)).consolidated()
        parts.append(np.unique(summed.times[summed.diffs * sign > 0, 0]))
    changed: IntArray = np.sort(np.concatenate(parts))
    return changed


def _counts(parts: Sequence[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """Return the distinct times of all parts, and how many rows each has."""
    none: IntArray = np.empty(0, np.int64)
    times = np.concatenate([none, *(each for each, _ in parts)])
    distinct, inverse = np.unique(times, return_inverse=True)
    sizes: IntArray = np.zeros(distinct.shape[0], np.int64)
    np.add.at(sizes, inverse, np.concatenate([none, *(each for _, each in parts)]))
    return distinct, sizes


def _in_pieces(times: IntArray, sizes: IntArray) -> list[IntArray]:
    """Cut times into pieces of a bounded number of rows; a time that has more is a piece by itself."""
    if not times.shape[0]:
        return []
    numbers = (np.cumsum(sizes) - 1) // _PIECE_ROWS
    return np.split(times, np.flatnonzero(np.diff(numbers)) + 1)


# Contents ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sums:
    """Contents of a collection, in the order of their hashes, which are kept beside them.

    None is equal to another, but for the parts of a sum that 64 bits do not hold.
    """

    hashes: IntArray
    held: Updates
    has_parts: bool = False

    @classmethod
    def one(cls, rows: pa.Table, diffs: IntArray) -> _Sums:
        """Return rows as a part for `of`."""
        return cls(hash_lanes(rows), Updates.contents(one_zero(rows), diffs))

    @classmethod
    def of(cls, *parts: _Sums) -> _Sums:
        """Return all rows of some parts, which need neither be in order nor without equals; at least one part."""
        hashes = np.concatenate([part.hashes for part in parts])
        every = Updates.concat([part.held for part in parts])
        summed = summed_by(hashes, every.diffs)
        if not summed.beyond.shape[0]:
            return cls(hashes[summed.first], replace(every.take(summed.first), diffs=summed.sums))
        # Refused where it is shown: what is still to be read may take from it.
        places = np.concatenate([summed.first, summed.beyond])
        diffs = np.concatenate([summed.sums, every.diffs[summed.beyond]])
        order = lexsort(hashes[places])
        return cls(hashes[places[order]], replace(every.take(places[order]), diffs=diffs[order]), has_parts=True)

    def places_of(self, hashes: IntArray) -> IntArray:
        """Return where rows of some hashes are, sorted; of those that are there."""
        low = np.searchsorted(self.hashes[:, 0], hashes[:, 0], "left")
        n = np.searchsorted(self.hashes[:, 0], hashes[:, 0], "right") - low
        # Of several rows with one half of a hash the other half decides.
        which = np.repeat(np.arange(hashes.shape[0]), n)
        places = ranges(low, n)
        found: IntArray = np.unique(places[self.hashes[places, 1] == hashes[which, 1]]).astype(np.int64)
        return found

    def taken(self, places: IntArray) -> _Sums:
        return replace(self, hashes=self.hashes[places], held=self.held.take(places))

    @property
    def n_bytes(self) -> int:
        return int(self.hashes.nbytes) + self.held.nbytes


@dataclass(frozen=True)
class _Collection:
    """The contents of a collection: many rows, sorted by hash, and what has changed of them since they were sorted.

    A change costs what it changes, and a copy of the rows where it takes one away.
    """

    base: _Sums
    recent: _Sums

    @classmethod
    def empty(cls, schema: pa.Schema) -> _Collection:
        none = _Sums.one(nullable(schema).empty_table(), np.empty(0, np.int64))
        return cls(none, none)

    def plus(self, diffs: IntArray, rows: pa.Table) -> _Collection:
        """Return the contents after some updates."""
        if not diffs.shape[0]:
            return self
        recent = _Sums.of(self.recent, _Sums.one(rows, diffs))
        if len(recent.held) > max(_FEW_ROWS, len(self.base.held) // 4):
            return _Collection(_Sums.of(self.base, recent), recent.taken(np.empty(0, np.int64)))
        return _Collection(self.base, recent)

    @cached_property
    def now(self) -> Updates:
        """The number of times that each row is there, and the rows; none is there zero times."""
        if not len(self.recent.held):
            return self.base.held
        places = self.base.places_of(self.recent.hashes)
        changed = _Sums.of(self.base.taken(places), self.recent)
        stays: BoolArray = np.ones(len(self.base.held), np.bool_)
        stays[places] = False
        return Updates.concat([self.base.held.where(stays), changed.held])

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        """The least number of times that any row is there, and the bytes of all copies."""
        diffs = self.now.diffs
        return int(diffs.min()) if diffs.shape[0] else 1, _bytes_of_copies(self.now.rows, diffs)

    @cached_property
    def _copied(self) -> pa.Table:
        return _copies(self.now.rows, self.now.diffs)

    def table(self, source: SourcePlan, room: Room) -> pa.Table:
        """Return each row as often as it is there."""
        least, n_bytes = self._bounds
        if least < 0 or self.base.has_parts or self.recent.has_parts:
            contents_of(_attempt(source), self.now)
        room.check(n_bytes, source)
        return self._copied

    def held_of(self, rows: pa.Table) -> _Sums:
        """Return of some rows those that are there, and how often."""
        hashes = hash_lanes(rows)
        return _Sums.of(*(part.taken(part.places_of(hashes)) for part in (self.base, self.recent)))

    @property
    def n_bytes(self) -> int:
        # What was made of them for the body is kept with them.
        made = self._bounds[1] if "_copied" in self.__dict__ and self._copied is not self.base.held.rows else 0
        return self.base.n_bytes + self.recent.n_bytes + made


@dataclass(frozen=True)
class _Stream:
    """The contents of a stream log: all its rows."""

    rows: pa.Table

    @classmethod
    def empty(cls, schema: pa.Schema) -> _Stream:
        return cls(nullable(schema).empty_table())

    def plus(self, diffs: IntArray, rows: pa.Table) -> _Stream:
        """Return the contents after some more rows."""
        del diffs  # 1 each
        if not rows.num_rows:
            return self
        both = pa.concat_tables([self.rows, rows]) if self.rows.num_rows else rows
        many = both.num_columns and both.column(0).num_chunks > _MOST_PARTS
        return _Stream(both.combine_chunks() if many else both)

    def table(self, source: SourcePlan, room: Room) -> pa.Table:
        """Return the rows."""
        del source, room
        return self.rows

    @property
    def n_bytes(self) -> int:
        return int(self.rows.nbytes)


@dataclass(frozen=True)
class _Held:
    """The contents of a log as of a time, and what some of its files have at later ones.

    Attributes
    ----------
    files : frozenset of str
        From which all was read.
    as_of : int or None
        None: nothing was read.
    contents : _Collection or _Stream
    later : Updates
        Ordered by their times.
    """

    files: frozenset[str]
    as_of: int | None
    contents: _Collection | _Stream
    later: Updates

    @classmethod
    def empty(cls, source: SourcePlan) -> _Held:
        contents = (_Collection if source.kind == "collection" else _Stream).empty(source.schema)
        return cls(frozenset(), None, contents, _updates(source, [], source.schema))

    def read(self, source: SourcePlan, as_of: int, room: Room) -> _Held:
        """Return what the log holds as of a time that is not earlier, by the files of the plan."""
        missing = [path for path in source.files if path not in self.files]
        found = _read(source, missing, source.lower, None, room)
        after = found.times[:, 0] > as_of
        now, later = found.where(~after), self.later
        contents = self.contents.plus(now.diffs, now.rows)
        if after.any():
            later = Updates.concat([later, found.where(after)])
            later = later.take(lexsort(later.times))
        return _Held(frozenset(source.files), self.as_of, contents, later).at(as_of)

    def at(self, as_of: int) -> _Held:
        """Return what is there as of a time that is not earlier."""
        n = int(np.searchsorted(self.later.times[:, 0], as_of, "right"))
        if not n:
            return self if self.as_of == as_of else replace(self, as_of=as_of)
        later = self.later
        contents = self.contents.plus(later.diffs[:n], later.rows.slice(0, n))
        return _Held(self.files, as_of, contents, later.slice(n, len(later) - n))

    def reaches(self, source: SourcePlan, as_of: int) -> bool:
        """Whether this can be moved on to a time: it is not past it, and all its files are still there."""
        return self.as_of is not None and self.as_of <= as_of and self.files <= set(source.files)

    @property
    def n_bytes(self) -> int:
        return self.contents.n_bytes + self.later.nbytes


class Kept:
    """Contents of references that a process keeps from step to step, the ones used last, within a number of bytes.

    Parameters
    ----------
    most : int

    Notes
    -----
    Spark gives a task to any of its Python processes, and each keeps its own: as many as there are cores of executors,
    each as far as it was when it last evaluated the task. One that does nothing for a minute ends, with what it keeps.

    Examples
    --------
    >>> Kept().n_bytes
    0
    """

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self._held: OrderedDict[tuple[object, ...], _Held] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> _Held | None:
        """Return what was kept under a key."""
        return self._held.get(key)

    def put(self, key: tuple[object, ...], held: _Held) -> None:
        """Keep something, in place of what was kept longest without being used."""
        self._held[key] = held
        self._held.move_to_end(key)
        size = sum(each.n_bytes for each in self._held.values())
        while size > self._most:
            _, gone = self._held.popitem(last=False)
            size -= gone.n_bytes

    @property
    def n_bytes(self) -> int:
        """Of all that is kept."""
        return sum(each.n_bytes for each in self._held.values())


_kept = Kept()  # of this process


# A step ------------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """The rows that the body gives at a time: the output's payload, and diffs."""

    time: int
    rows: pa.Table
    diffs: IntArray


class _Step:
    """A step where its rows are: reads the sources once, and calls the body for each time, in order (invariant 3)."""

    def __init__(self, body: ArrowBody, plan: StepPlan, own_names: Sequence[str], kept: Kept) -> None:
        self._body, self._plan, self._own_names, self._kept = body, plan, tuple(own_names), kept
        self._room = Room(plan, body.max_bytes)
        first = plan.times[0]
        self._arrivals = {
            each.alias: _arrivals(each, first, self._room) for each in plan.sources if each.shown not in _CONTENTS
        }
        self._sources = {each.alias: each for each in plan.sources if each.shown in _CONTENTS}
        self._held = {alias: self._read(each, self._as_of(each, first)) for alias, each in self._sources.items()}
        self._own = None if plan.own is None else self._read(plan.own, first - 1)

    @staticmethod
    def _as_of(source: SourcePlan, time: int) -> int:
        if source.shown == "contents":
            return time
        # The newest: the same at all times of a step.
        return _GREATEST if source.upper is None else source.upper - 1

    def _key(self, source: SourcePlan) -> tuple[object, ...]:
        plan = self._plan
        schema = source.schema.serialize().to_pybytes()
        return plan.storage.uri, plan.task, source.path, source.kind, source.shown, source.lower, schema

    def _read(self, source: SourcePlan, as_of: int) -> _Held:
        key = self._key(source)
        held = self._kept.get(key)
        if held is None or not held.reaches(source, as_of):
            held = _Held.empty(source)
        else:
            self._room.take(held.n_bytes, source)
        held = held.read(source, as_of, self._room)
        # As of the first time: a step that fails is taken again from there.
        self._kept.put(key, held)
        return held

    def run(self) -> Iterator[_Given]:
        """Give what the body gives at each time.

        Raises
        ------
        OperatorError
            If the function fails, or gives what it must not.
        """
        for time in self._plan.times:  # each a call of the user's function
            yield self._at(time)
        for alias, held in self._held.items():
            self._kept.put(self._key(self._sources[alias]), held)

    def _at(self, time: int) -> _Given:
        plan, room = self._plan, self._room
        self._held = {name: held.at(self._as_of(self._sources[name], time)) for name, held in self._held.items()}
        tables = {alias: each.at(time) for alias, each in self._arrivals.items()}
        tables |= {name: held.contents.table(self._sources[name], room) for name, held in self._held.items()}
        own = None if self._own is None or plan.own is None else self._own.contents.table(plan.own, room)
        where = f"{plan.form.domain.render_time((time,))}"
        at = time_value(plan.form.domain, (time,))
        try:
            changes = self._body.call(tables, at, own, self._own_names)
        except (Exception, SystemExit) as error:  # one that exits would take Spark's worker with it
            msg = f"{attempt_of(plan, where)}: {described(error).partition(_LINE)[0]}"
            hint = error.hint if isinstance(error, TimelyError) else None
            raise operator_error(plan, msg, hint or CORRECT_BODY, where) from error
        try:
            given = self._given(time, changes, where)
        except SchemaMismatchError as error:
            raise operator_error(plan, error.message, error.hint, where) from error
        if self._own is not None and time != plan.times[-1]:
            rows = given.rows.cast(nullable(given.rows.schema))
            self._own = replace(self._own, contents=self._own.contents.plus(given.diffs, rows))
        return given

    def _given(self, time: int, changes: Changes, where: str) -> _Given:
        plan = self._plan
        payload = plan.form.payload
        inserted = payload.empty_table() if changes.insert is None else _fitted(changes.insert, plan, where)
        ones: IntArray = np.ones(inserted.num_rows, np.int64)
        if plan.form.kind == "stream":
            if changes.delete is not None:
                msg = f"{attempt_of(plan, where)}: found rows to delete from a stream log"
                raise operator_error(plan, msg, NO_DELETES, where)
            return _Given(time, inserted, ones)
        parts = [_Sums.one(inserted, ones)]
        if changes.delete is not None:
            own = None if self._own is None else self._own.contents
            if not isinstance(own, _Collection):
                msg = f"{attempt_of(plan, where)}: found rows to delete, and a body without deletes"
                raise operator_error(plan, msg, "say deletes=True", where)
            gone = own.held_of(_fitted(changes.delete, plan, where))
            rows = conform(gone.held.rows, payload)
            parts.append(_Sums(gone.hashes, Updates.contents(rows, -gone.held.diffs)))
        summed = _Sums.of(*parts).held
        return _Given(time, summed.rows, summed.diffs)


_CONTENTS: Final = ("contents", "newest")
_LINE: Final = "\n"


def _fitted(rows: pa.Table, plan: StepPlan, where: str) -> pa.Table:
    """Bring the rows of a function into the columns of the output, by their names; nothing loses a digit."""
    schema, names = plan.form.payload, rows.schema.names
    attempt = attempt_of(plan, where)
    if sorted(names) != sorted(schema.names):
        msg = f"{attempt}: found columns {shown(names)} for columns {shown(schema.names)} of its output"
        raise SchemaMismatchError(msg, hint="give the columns of the output", context={"task": plan.task})
    zone = plan.settings.get("spark.sql.session.timeZone", "UTC")
    columns = [_column(rows.column(each.name), each, attempt, zone) for each in schema]
    try:
        return conform(pa.table(columns, names=schema.names), schema)
    except SchemaMismatchError as error:
        error_ = SchemaMismatchError(f"{attempt}: {error.message}", hint=error.hint, context=error.context)
        raise error_ from error


def _column(found: pa.ChunkedArray, wanted: pa.Field, attempt: str, zone: str) -> pa.ChunkedArray:
    """Return a column in a type that `conform` takes for the wanted one; refuse it by the rules of Spark's bodies."""
    if found.type == wanted.type:
        return found
    if pa.types.is_null(found.type):
        return pa.chunked_array([pa.nulls(len(found), wanted.type)])
    try:
        kept = canonical_type(found.type, wanted.name)
        suits = fits(spark_type(kept, column=wanted.name), spark_type(wanted.type, column=wanted.name))
    except SchemaMismatchError:
        kept, suits = found.type, False
    if not suits:
        msg = f"{attempt}: found type {str(found.type)!r} for column {wanted.name!r} of type {str(wanted.type)!r}"
        raise SchemaMismatchError(msg, hint="cast it in the body", context={"column": wanted.name})
    if pa.types.is_date(kept) and pa.types.is_timestamp(wanted.type):
        return _midnights(found, wanted, attempt, zone)
    if pa.types.is_integer(kept) and pa.types.is_floating(wanted.type):
        return found.cast(kept).cast(wanted.type)
    return found


def _midnights(found: pa.ChunkedArray, wanted: pa.Field, attempt: str, zone: str) -> pa.ChunkedArray:
    """Return when days begin in the session's time zone, as Spark casts them; where a clock is put on, right after."""
    local = found.cast(pa.timestamp("us"))
    try:
        moments = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    except pa.ArrowInvalid as error:
        msg = f"{attempt}: found dates for column {wanted.name!r} of timestamps, and time zone {zone!r}: {error}"
        raise SchemaMismatchError(msg, hint="cast it in the body", context={"column": wanted.name}) from error
    return moments.cast(wanted.type)


def run_step(
    body: ArrowBody, plan: StepPlan, own_names: Sequence[str] = ("output",), kept: Kept | None = None
) -> StepResult:
    """Evaluate a body at the times of a step, and write what it gives: what a task of Spark's does.

    Parameters
    ----------
    body : ArrowBody
    plan : StepPlan
    own_names : sequence of str
        Under which names the body reads the output.
    kept : Kept, optional
        Contents from earlier steps; those of this process unless given.

    Returns
    -------
    StepResult
        With the error of the body, if it fails.

    Raises
    ------
    StorageError
        If files cannot be read or written; also if a file is gone.

    Notes
    -----
    Cost: what inputs have at these times is read. Of a reference what was written since this process last evaluated the
    task; all of it the first time, and where its files were merged since.
    """
    files: list[DataFile] = []
    held: list[_Given] = []
    size = 0
    try:
        for given in _Step(body, plan, own_names, _kept if kept is None else kept).run():
            held.append(given)
            size += given.rows.nbytes
            if size >= _MOST_BYTES:
                files += _write(held, plan)
                held, size = [], 0
    except OperatorError as error:
        return StepResult(files, error)
    except DataLossError as error:
        raise _gone(error, f"run task {plan.task!r} at {plan.where}") from error
    except StorageError:
        raise
    except TimelyError as error:
        return StepResult(files, operator_error(plan, f"{attempt_of(plan)}: {error.message}", error.hint))
    files += _write(held, plan)
    return StepResult(files)


def _gone(error: Exception, attempt: str) -> StorageError:
    """Return the error for files that are not there any more: the step is planned again."""
    return StorageError(f"could not {attempt}: {described(error)}", hint=GONE_HINT)


def _write(held: Sequence[_Given], plan: StepPlan) -> list[DataFile]:
    table, times, diffs = _together(held, plan)
    return write_messages(table, times, diffs, plan) if table.num_rows else []


def _together(held: Sequence[_Given], plan: StepPlan) -> tuple[pa.Table, IntArray, IntArray | None]:
    """Return what was given at several times: rows, times, and of a collection diffs."""
    payload = plan.form.payload
    table = pa.concat_tables([payload.empty_table(), *(each.rows for each in held)])
    times = np.repeat(np.array([each.time for each in held], np.int64), [each.rows.num_rows for each in held])
    if plan.form.kind == "stream":
        return table, times[:, None], None
    return table, times[:, None], np.concatenate([np.empty(0, np.int64), *(each.diffs for each in held)])


def rows_of_step(body: ArrowBody, plan: StepPlan, own_names: Sequence[str] = ("output",)) -> pa.Table:
    """Return what a body gives: the time, of a collection the diff, and the output's payload.

    Raises
    ------
    OperatorError
        If the body fails.
    """
    held = list(_Step(body, plan, own_names, Kept(0)).run())
    table, times, diffs = _together(held, plan)
    columns = dict(plan.form.domain.to_columns(times))
    if diffs is not None:
        columns[DIFF] = pa.array(diffs)
    columns.update(zip(table.schema.names, table.columns, strict=True))
    return pa.table(columns, schema=_schema_of_step(plan))


def _schema_of_step(plan: StepPlan) -> pa.Schema:
    (name,), (kind,) = plan.form.domain.columns, plan.form.domain.types
    own = [pa.field(DIFF, pa.int64())] if plan.form.kind == "collection" else []
    return pa.schema([pa.field(name, kind.arrow), *own, *nullable(plan.form.payload)])


def compare_step(
    body: ArrowBody, plan: StepPlan, written: SourcePlan, own_names: Sequence[str] = ("output",)
) -> tuple[int, int]:
    """Return how many rows a step gives that were not written, and how many were that it does not give.

    Raises
    ------
    OperatorError
        If the body fails.
    """
    held = list(_Step(body, plan, own_names, Kept(0)).run())
    there = _read(written, written.files, written.lower, written.upper, Room(plan, body.max_bytes))
    schema = nullable(plan.form.payload)
    parts = [Updates.contents(each.rows.cast(schema), each.diffs) for each in held]
    wrote = Updates.contents(there.rows.select(schema.names).cast(schema), -there.diffs)
    left = Updates.concat([wrote, *parts]).consolidated()
    more = left.diffs > 0
    return int(left.diffs[more].sum()), int(-left.diffs[~more].sum())


# Where Spark comes in ----------------------------------------------------------------------------------


class ArrowBodies:
    """Evaluates the body of one task, a job of one task for each step: `spark_timely.continual.plan.Evaluator`.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    body : ArrowBody
    own_names : sequence of str
        Under which names the body reads the output.
    max_bytes_in_driver : int
        Bytes of files below which write times are looked for in this process, where none of the user's code runs.
    """

    def __init__(
        self,
        spark: SparkSession,
        body: ArrowBody,
        own_names: Sequence[str] = ("output",),
        *,
        max_bytes_in_driver: int = DRIVER_BYTES,
    ) -> None:
        self._spark, self._body, self._own_names = spark, body, tuple(own_names)
        self._driver_bytes = max_bytes_in_driver

    def times(self, sources: Sequence[SourcePlan], /) -> list[IntArray]:
        """Return the times at which collections have inserts or deletes, as `Evaluator` has it."""
        most = self._body.max_bytes
        found: list[IntArray | None] = [None] * len(sources)
        for place, source in enumerate(sources):
            if source.size_bytes < self._driver_bytes:
                try:
                    found[place] = times_of_changes(source, min(most, _IN_DRIVER_BYTES))
                except Exception as error:
                    if is_cancelled(error):
                        raise
                    _log.info("write times of log %r are left to Spark: %s", source.path, error)
        left = [source for source, times in zip(sources, found, strict=True) if times is None]
        there = iter(self._in_task(lambda: [times_of_changes(source, most) for source in left]) if left else ())
        return [next(there) if times is None else times for times in found]

    def evaluate(self, plan: StepPlan, /) -> StepResult:
        """Evaluate the body at the times of a step, and write what it gives; an error of the body is a result too."""
        body, own_names = self._body, self._own_names
        return self._in_task(lambda: run_step(body, plan, own_names))

    def preview(self, plan: StepPlan) -> DataFrame:
        """Return what a step gives, with the time in front; computed once, here."""
        body, own_names = self._body, self._own_names

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield from rows_of_step(body, plan, own_names).to_batches()

        schema = spark_schema(_schema_of_step(plan))
        return self._spark.range(0, 1, 1, 1).mapInArrow(for_task(work), schema).localCheckpoint(eager=True)

    def compared(self, plan: StepPlan, written: SourcePlan) -> tuple[int, int]:
        """Return how many rows a step gives that were not written, and how many were that it does not give."""
        body, own_names = self._body, self._own_names
        return self._in_task(lambda: compare_step(body, plan, written, own_names))

    def columns(self, plan: StepPlan) -> pa.Schema:
        """Return the columns of what the function gives for tables without rows; `plan` has empty sources, no output.

        Raises
        ------
        InvalidUsageError
            If they are not known.
        """
        tables = {each.alias: nullable(each.schema).empty_table() for each in plan.sources}
        try:
            at = time_value(plan.form.domain, (plan.time,))
            made: pa.Table | None = self._body.call(tables, at, None, self._own_names).insert
        except InvalidUsageError:
            raise
        except Exception as error:
            msg = f"{no_columns(plan)}: its function failed without rows and output: {described(error)}"
            raise InvalidUsageError(msg, hint=SCHEMA_HINT) from error
        if made is None:
            msg = f"{no_columns(plan)}: its function gave no rows to insert"
            raise InvalidUsageError(msg, hint=SCHEMA_HINT)
        return pa.schema([pa.field(each.name, canonical_type(each.type, each.name)) for each in made.schema])

    def _in_task(self, do: Callable[[], _T]) -> _T:
        """Run something in a task of Spark's; errors of this library come back as they are."""

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:  # one row
                yield pa.RecordBatch.from_pylist([{"result": pickle.dumps(_outcome(do))}])

        (row,) = self._spark.range(0, 1, 1, 1).mapInArrow(for_task(work), RESULTS).collect()
        found, error = pickle.loads(bytes(row["result"]))
        if error is not None:
            raise error
        result: _T = found
        return result


# Of rows that are decoded in the process that plans.
_IN_DRIVER_BYTES: Final = 64 << 20


def _outcome(do: Callable[[], _T]) -> tuple[_T | None, TimelyError | None]:
    try:
        return do(), None
    except TimelyError as error:
        return None, error
