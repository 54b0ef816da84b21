"""Tasks of a dataflow, as values: which piece of an output's range each computes, from which files, and its result.

The driver cuts a range by files and row groups (`Share`), or by keys, into tasks (`cutting`), and sends them with an
`OutputPlan`. `task_runner` runs them, in a job of `spark_timely.spark.dataflows.tasks`, and a `TaskResult` comes back.
A task may instead make a run, a file of an index (`IndexWork`). Nothing in this module runs or reads.

Invariants
----------
1. The pieces of a range give each of its rows once. Nothing but `TaskResult` leaves the task: names and statistics of
   files, no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.views import Names, Replay, View, packed, unpacked
from spark_timely.errors import OperatorError
from spark_timely.log.machine.state import DataFile
from spark_timely.time.antichain import Antichain, IntArray
from spark_timely.trace.arrangement import Arrangement
from spark_timely.trace.keys import EVERY_KEY, KeyRange, KeySet
from spark_timely.trace.spine import RunFile

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage

__all__ = ["IndexWork", "LookupFiles", "OutputPlan", "ReadRange", "Share", "Task", "TaskResult"]


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a file of a log: the row groups in [start, stop) of `protocol.replay.WHOLE` equal parts.

    Updates of a collection are seen with their times moved up to `as_of`, where the log has forgotten.
    """

    path: str
    start: int
    stop: int
    as_of: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """The index and the files that have what a log holds before a range, for `Lookups`.

    Attributes
    ----------
    leaf : Replay
        How the log is read, with the least time that it has itself.
    whole : tuple of Share
        All of it.
    index : Arrangement or None
        Has all of it up to its upper.
    tail : tuple of Share
        What is at or after the index's upper.
    size_bytes : int
        Of the files that a look reads.
    """

    leaf: Replay
    whole: tuple[Share, ...]
    index: Arrangement | None = None
    tail: tuple[Share, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class IndexWork:
    """A run of an index to make: of what a log has in a range of times, or of other runs.

    Attributes
    ----------
    leaf : Replay
    key, columns : tuple of str
    folder, name : str
        Of the file.
    lineage : str
        Of the index.
    lower, upper : Antichain
        Which times of the log.
    shares : tuple of Share
        Where they are.
    runs : tuple of RunFile
        To merge, instead; in the same folder.
    since : int or None
        Times before it are moved to it.
    """

    leaf: Replay
    key: Names
    columns: Names
    folder: str
    name: str
    lineage: str
    lower: Antichain
    upper: Antichain
    shares: tuple[Share, ...] = ()
    runs: tuple[RunFile, ...] = ()
    since: int | None = None


class ReadRange(Protocol):
    """Reads the rows of a range from shares of a log's files: columns that views carry, and the payload columns named.

    With `keep` the rows of these keys alone.
    """

    def __call__(  # noqa: D102 - see above
        self,
        leaf: Replay,
        shares: Sequence[Share],
        lo: Antichain,
        hi: Antichain,
        columns: Names,
        keep: KeySet | None = None,
        /,
    ) -> pa.Table: ...


@dataclass(frozen=True)
class OutputPlan:
    """The description of an output for its tasks.

    Attributes
    ----------
    name : str
        Of the operator, for errors.
    view : View
    stream : str
    form : LogFormat
        Of its log.
    storage : Storage
        Of its log.
    twice : bool
        Whether everything is computed twice and compared.
    job : str
        In the names of files, so that those of a job that fails are found.
    own : Replay or None
        Its log, as it is read where it is the state of an operator over all history.
    """

    name: str
    view: View
    stream: str
    form: LogFormat
    storage: Storage
    twice: bool = False
    job: str = ""
    own: Replay | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "view": packed([self.view])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "view": unpacked(state["view"])[0]})


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of an output's range.

    Attributes
    ----------
    output : int
        Number of the step among those of the job, which says whose and which: an output may have several.
    seq : int
        Number of the commit that it writes for.
    lower, upper : Antichain
    shares : dict of str to tuple of Share
        By path of the log: where to look.
    size_bytes : int
        Of the shares.
    piece : int or None
        Number of the piece of which this task computes a part only: see `engine.shuffle`.
    moved_to : tuple of int or None
        Time up to which the rows are moved that it gives: of updates, the contents at which an output begins.
    keys : KeyRange
        Of which an operator over all history computes anything.
    before : dict of Look to LookupFiles
        Where what logs hold before the range is.
    index : IndexWork or None
        Instead of all else: a run of an index to make.
    """

    output: int
    seq: int
    lower: Antichain
    upper: Antichain
    shares: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    size_bytes: int = 0
    piece: int | None = None
    moved_to: tuple[int, ...] | None = None
    keys: KeyRange = EVERY_KEY
    before: Mapping[Look, LookupFiles] = field(default_factory=dict)
    index: IndexWork | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task.

    Attributes
    ----------
    files : tuple of DataFile
        Written, and part of nothing yet.
    error : OperatorError or None
        Why there are none.
    counts : dict of str to (int, int)
        Rows and bytes that each operator gave, by its name.
    times : ndarray of int64, shape (n, k), or None
        Distinct times of the rows that were written; None where there are too many to tell.
    run : RunFile or None
        Of an index, that was made.
    """

    files: tuple[DataFile, ...] = ()
    error: OperatorError | None = None
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    times: IntArray | None = None
    run: RunFile | None = None
