"""The reader of dead letters (``content=dead``), as a batch or as a stream in the order of commits.

A dead letter is a row that a capture put aside since it came too late, was too far ahead, or had no usable time. The
readers of `spark_readers` use both classes: `Letters` plans what a batch or a micro-batch has, in the planner process,
and a `LetterSplit` reads a file's letters in a task. Messages have a planner of their own (`planner`).

Invariants
----------
1. An offset says for each stream which of its commits comes next. Letters of a commit are in one micro-batch, all of
   them, and in no other.
2. A plan follows from two offsets alone: merges of files change which files are read, not which rows are given out.
3. Offsets belong to one log: a checkpoint does not continue with another log in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidOptionError, InvalidUsageError, RolledBackError, shown
from spark_timely.log.files.parquet_reader import read_file
from spark_timely.log.machine.state import OPEN_STREAM
from spark_timely.log.store.clones import of_clone
from spark_timely.protocol.replay import default_splits

if TYPE_CHECKING:
    from spark_timely.conf.options import SourceOptions
    from spark_timely.log import Log
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage

LOG_ID: Final = "_log_id"
"""Column with the id of the log: with `_stream` and `_seq` it names the commit that holds a letter."""

_VERSION: Final = 1
_PLACE: Final = pa.schema([("_stream", pa.string()), ("_seq", pa.int64())])
_ALLOWED: Final = frozenset({"path", "content", "stream_filter", "credential", "poll_interval"})


def check_letter_options(options: SourceOptions, /) -> None:
    """Refuse options that say something about messages and times: letters come by their commits.

    Raises
    ------
    InvalidOptionError
    """
    other = sorted(options.given - _ALLOWED)
    if other:
        msg = f"could not read dead letters: found options {shown(other)}"
        raise InvalidOptionError(
            msg,
            hint="give path, streamFilter, pollInterval and credential only, with content=dead, and choose columns and"
            " rows with select and where",
            context={"options": other},
        )


def letter_schema(form: LogFormat, /) -> pa.Schema:
    """Return the columns of dead letters: those of a message, the reason, the wall clock, and the log's id.

    Raises
    ------
    InvalidUsageError
        If a payload column has the name of the last one.

    Examples
    --------
    >>> from spark_timely.log.files.format import LogFormat
    >>> letter_schema(LogFormat.build(pa.schema([("id", pa.int64())]))).names
    ['_log_id', '_stream', '_seq', '_time', '_reason', '_at', 'id']
    """
    if LOG_ID in form.payload.names:
        msg = f"could not read dead letters: found a column {LOG_ID!r} in the log"
        raise InvalidUsageError(msg, hint="read them with Log.dead(): in Spark this column is the id of the log")
    return pa.schema([pa.field(LOG_ID, pa.string()), *form.dead_schema])


def schema_of_columns(schema: pa.Schema, names: list[str], /) -> pa.Schema:
    """Return some columns of a schema, in the order of their names' list."""
    return pa.schema([schema.field(name) for name in names])


@dataclass(frozen=True, slots=True)
class LetterSplit:
    """Say which letters a task gives out. Small and picklable.

    Attributes
    ----------
    root : str
        Where the log is.
    log_id : str
    paths : tuple of str
        Files, relative to `root`.
    commits : dict of str to (int, int)
        By stream the first commit and the one after the last.
    schema : pyarrow.Schema
        Columns to give out, of those of `letter_schema`.
    """

    root: str
    log_id: str
    paths: tuple[str, ...]
    commits: Mapping[str, tuple[int, int]]
    schema: pa.Schema

    def read(self, storage: Storage) -> Iterator[pa.RecordBatch]:
        """Give out the letters, a file at a time."""
        inside = pa.unify_schemas([_PLACE, pa.schema([field for field in self.schema if field.name != LOG_ID])])
        for path in self.paths:
            table = read_file(storage, path, inside)
            streams, seqs = table["_stream"], table["_seq"]
            chosen = pa.chunked_array([pa.repeat(pa.scalar(value=False), table.num_rows)])
            for name, (low, high) in self.commits.items():
                among = pc.and_(pc.greater_equal(seqs, low), pc.less(seqs, high))
                chosen = pc.or_(chosen, pc.and_(pc.equal(streams, name), among))
            table = table.filter(chosen)
            ids = pa.repeat(pa.scalar(self.log_id), table.num_rows)
            yield from table.append_column(LOG_ID, ids).select(self.schema.names).combine_chunks().to_batches()


class Letters:
    """Offsets and plans of ``content=dead`` for one log.

    Parameters
    ----------
    log : Log
    streams : tuple of str, optional
        Streams to read; all if not given.
    schema : pyarrow.Schema, optional
        Columns to give out; all if not given.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> _ = log.writer(owner="me", bad_time="deadLetter").append({"_time": pa.array([None], pa.int64()), "v": [1]})
    >>> letters = Letters(log)
    >>> end = letters.latest(letters.initial())
    >>> (split,) = letters.plan(letters.initial(), end)
    >>> [batch["v"].to_pylist() for batch in split.read(log.core.storage)]
    [[1]]
    """

    def __init__(self, log: Log, streams: tuple[str, ...] | None = None, schema: pa.Schema | None = None) -> None:
        self._log = log
        self._schema = letter_schema(log.core.format) if schema is None else schema
        self._streams = streams
        self._pinned: dict[str, object] | None = None

    def initial(self) -> dict[str, object]:
        """Return the offset of a fresh checkpoint: before all letters."""
        return self._offset({})

    def prepare_available_now(self) -> None:
        """Fix where the query ends: at what is there now."""
        self._pinned = self._present()

    def latest(self, start: Mapping[str, Any]) -> dict[str, object]:
        """Return where the next micro-batch ends; `start` itself where there are no new letters.

        Raises
        ------
        InvalidUsageError
            If `start` is no offset of this kind.
        RolledBackError
            If it is one of another log, or the log has fewer commits.
        """
        end = self._present() if self._pinned is None else self._pinned
        self._check(start, end)
        if not len(self._index(start, end)[0]):
            return dict(start)
        return end

    def report(self) -> dict[str, object]:
        """Return how many letters there are, and the newest commits; shown in ``lastProgress``."""
        index = self._log.core.dead_files()
        return {**self._present(), "letters": int(index.rows.clip(min=0).sum())}

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[LetterSplit]:
        """Return the splits between two offsets."""
        self._log.refresh()
        self._check(start, end)
        paths, sizes, commits = self._index(start, end)
        n = min(len(paths), default_splits(int(sizes.sum()))) if len(paths) else 0
        return [
            LetterSplit(self._log.path, self._log.core.log_id, tuple(paths[number::n]), commits, self._schema)
            for number in range(n)
        ]

    def plan_batch(self) -> list[LetterSplit]:
        """Return the splits of all letters that there are."""
        return self.plan(self.initial(), self._present())

    def _present(self) -> dict[str, object]:
        self._log.refresh()
        positions = {name: seq for name, seq in self._log.core.positions().items() if name != OPEN_STREAM}
        if self._streams is not None:
            positions = {name: seq for name, seq in positions.items() if name in self._streams}
        return self._offset(positions)

    def _offset(self, positions: Mapping[str, int]) -> dict[str, object]:
        return {"version": _VERSION, "content": "dead", "log": self._log.core.log_id, "seqs": dict(positions)}

    def _index(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> tuple[list[str], np.ndarray, dict[str, tuple[int, int]]]:
        """Return the files that may hold letters between two offsets, their sizes, and the commits."""
        index, low = self._log.core.dead_files(), start["seqs"]
        commits = {name: (low.get(name, 0), high) for name, high in end["seqs"].items() if high > low.get(name, 0)}
        chosen = index.may_hold_commits((name, *span) for name, span in commits.items())
        return index.paths[chosen].tolist(), index.sizes[chosen], commits

    def _check(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        for offset in (start, end):
            if offset.get("content") != "dead" or offset.get("version") != _VERSION:
                msg = f"could not read the checkpoint: found {shown(dict(offset))}, which is no offset of dead letters"
                raise InvalidUsageError(msg, hint="use a new checkpoint: this one belongs to another query")
        went_back = [name for name, seq in start["seqs"].items() if end["seqs"].get(name, 0) < seq]
        other = start["log"] != self._log.core.log_id
        if other or went_back:
            found = f"commits of {went_back!r} gone"
            if other:
                found = f"log {self._log.core.log_id!r}{of_clone(self._log.core.storage)} in its place"
            msg = f"could not read dead letters of log {self._log.path!r}: found {found}"
            raise RolledBackError(
                msg,
                hint="use a new checkpoint: the log was restored or replaced, and its letters may be others",
                context={"path": self._log.path},
            )
