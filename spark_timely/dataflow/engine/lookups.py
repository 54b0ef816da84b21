"""Look-ups of a task: what logs hold of some keys before the range of times that the task computes.

Operators over all history and joins as of a time ask for the state and the inputs of the keys that they compute;
`task_runner` and `shuffle` give them a `Lookups` for it (the protocol is `views.Before`). Rows come from an index, if
one has what is asked, and from the log's files past its upper; else from the files alone. The task's plan says which
index and which files there are: `arrangements` put them there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_timely.dataflow.engine.tasks import LookupFiles, OutputPlan, ReadRange, Task
from spark_timely.dataflow.history.base import Held
from spark_timely.dataflow.views import LookError, Names, Replay, View
from spark_timely.errors import TimelyInternalError
from spark_timely.time.antichain import Antichain, IntArray
from spark_timely.trace.arrangement import Arrangement
from spark_timely.trace.keys import KeyRange, KeySet
from spark_timely.trace.updates import Updates

__all__ = ["Apart", "Lookups", "held_of"]

_log = logging.getLogger("spark_timely.dataflow")


@dataclass(frozen=True, slots=True)
class Apart:
    """Rows of a range that an operator does not believe.

    Attributes
    ----------
    times : ndarray of int64, shape (n,)
        Of one coordinate.
    rows : pyarrow.Table
        n rows, with the columns of the output.
    why : str
    """

    times: IntArray
    rows: pa.Table
    why: str


class Lookups:
    """The look-ups of a task, as `views.Before`: what logs hold of some keys before a range.

    Parameters
    ----------
    task : Task
    output : OutputPlan
    read : callable

    Notes
    -----
    Cost: with an index what it has of these keys, and all that is past its upper; else all that a log holds before the
    range is read, batch by batch. Of an index whose files are replaced meanwhile the newest state is taken; one that
    cannot be read is none.
    """

    def __init__(self, task: Task, output: OutputPlan, read: ReadRange) -> None:
        self._task, self._output, self._read = task, output, read
        self.apart: Apart | None = None

    def set_apart(self, times: IntArray, rows: pa.Table, why: str) -> None:
        """Keep rows that are not believed, until the task's result is written."""
        self.apart = Apart(times, rows, why)

    @property
    def keys(self) -> KeyRange:
        """The range of keys of which the task computes anything."""
        return self._task.keys

    @property
    def moved_to(self) -> tuple[int, ...] | None:
        """Time up to which what comes is moved."""
        return self._task.moved_to

    def __call__(self, leaf: Replay | None, lo: Antichain, keys: pa.Table, columns: Names) -> Held:
        """Return what a log holds before `lo` of the keys in a table; None is the output's own log."""
        try:
            return self._held(leaf, lo, keys, columns)
        except Exception as error:
            raise LookError(error) from error

    def _held(self, leaf: Replay | None, lo: Antichain, keys: pa.Table, columns: Names) -> Held:
        key = tuple(keys.schema.names)
        files = self._files(self._output.own if leaf is None else leaf, key, columns)
        at = files.leaf
        begin = at.domain.minimum_frontier
        if (key and not keys.num_rows) or lo == begin:
            return held_of(at, at.empty().select([*at.carried, *columns]), columns)
        wanted = KeySet(keys, key)
        for index in _states(files.index, lo):  # as planned; as it is now
            try:
                return _held_together(at, self._indexed(index, files, lo, wanted, columns))
            except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
                _log.info("an index of log %r by %s is not used: %s", at.path, ", ".join(key), error)
        return held_of(at, self._read(at, files.whole, begin, lo, columns, wanted), columns)

    def _files(self, leaf: Replay | None, key: Names, columns: Names) -> LookupFiles:
        """Return where the plan of the task says that a log's rows are, by their key."""
        for look, files in self._task.before.items():  # as many as operators over history
            if leaf is not None and (look.path, look.key) == (leaf.path, key) and set(columns) <= set(look.columns):
                return files
        msg = f"output {self._output.name!r} looks into a log by {key!r}, and the plan of its task has none"
        raise TimelyInternalError(msg)

    def _indexed(
        self, index: Arrangement, files: LookupFiles, lo: Antichain, wanted: KeySet, columns: Names
    ) -> Updates:
        """Return what a state of an index has of some keys, and what the log has past it."""
        found = index.opened().before(wanted, lo, list(columns))
        # Each state has a tail of its own: what the log has at times that are not before its upper.
        begin = index.upper.join(files.leaf.domain.minimum_frontier)
        if not files.tail or not begin.elements:
            return found
        rows = self._read(files.leaf, files.tail, begin, lo, columns, wanted)
        return Updates.concat([found, Updates.of_table(rows, files.leaf.domain, columns)])


def _states(index: Arrangement | None, lo: Antichain) -> Iterator[Arrangement]:
    """Give an index as it was planned, and then, asked for more, as it is now; only where it can tell what is asked."""
    if index is None:
        return
    if index.may_tell(lo):
        yield index
    newer = index.newest()
    if newer is not None and newer.may_tell(lo):
        yield newer


def held_of(view: View, rows: pa.Table, columns: Names) -> Held:
    """Return what rows of a log hold together: of updates the contents, without their times."""
    return _held_together(view, Updates.of_table(rows, view.domain, columns))


def _held_together(view: View, every: Updates) -> Held:
    if not view.updates:
        return Held(every.times[:, 0], every.diffs, every.rows)
    # What is too often there is refused by what looks at it, which knows its key.
    contents = every.timeless().consolidated(partial=True)
    return Held(None, contents.diffs, contents.rows)
