"""The plan of one step of a continual task: plain values that travel to the process that evaluates the body.

`engine` makes a `StepPlan` of each step; an `Evaluator`, such as `spark_timely.spark.tasks.bodies`, returns a
`StepResult`. `deletes` and `newest`, by which users choose what a body sees of a log, are here too. (The plan of a peek
is `spark_timely.answers.plan`, that of a dataflow, or of a whole task in it, `spark_timely.compute.plan`.)

Invariants
----------
1. A step names its files and its times. What it gives depends on these alone, wherever and however often it is
   evaluated.
2. Rows stay where they are computed: names and statistics of files come back, and numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.errors import OperatorError
    from spark_timely.log import Log
    from spark_timely.log.files.format import LogFormat, LogKind
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.store.storage import Storage, TableStorage
    from spark_timely.time.antichain import IntArray
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "Deletes",
    "Evaluator",
    "Expectation",
    "Newest",
    "Shown",
    "SourcePlan",
    "StepPlan",
    "StepResult",
    "TaskSource",
    "deletes",
    "newest",
]

Shown: TypeAlias = Literal["inserts", "deletes", "contents", "newest"]
"""What a body sees of a log: rows added at a time, rows taken away at it, what is there as of it, or what is there now.
"""


@dataclass(frozen=True)
class Deletes:
    """An input that shows the rows which a collection loses: made by `deletes`."""

    log: str | os.PathLike[str] | Log


def deletes(log: str | os.PathLike[str] | Log, /) -> Deletes:
    """Let a task have the rows that a collection loses at a time as its input, each as often as it is taken away.

    They make write times of their own. Of a stream log nothing is ever taken away.

    Parameters
    ----------
    log : path or Log

    Examples
    --------
    >>> deletes("/data/accounts")
    Deletes(log='/data/accounts')
    """
    return Deletes(log)


@dataclass(frozen=True)
class Newest:
    """A reference that shows the newest complete contents of a log: made by `newest`."""

    log: str | os.PathLike[str] | Log


def newest(log: str | os.PathLike[str] | Log, /) -> Newest:
    """Let a task see what a log contains when it writes, in place of what it contained as of the time that it writes.

    Nothing waits for such a reference. What is written says in its note which contents it saw; evaluated again it may
    see others. All times of one commit see the same.

    Parameters
    ----------
    log : path or Log

    Examples
    --------
    >>> newest("/data/rates")
    Newest(log='/data/rates')
    """
    return Newest(log)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A log under the name that the body has for it.

    Attributes
    ----------
    alias : str
    path : str
        Of the log.
    shown : str
        An input shows inserts or deletes, a reference contents, as of the time or the newest.
    """

    alias: str
    path: str
    shown: Shown

    @property
    def is_input(self) -> bool:
        """Whether its changes make write times."""
        return self.shown in ("inserts", "deletes")


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that the rows of a result must meet; one for which it is null does not.

    Attributes
    ----------
    name : str
    condition : str
        SQL over the columns of the output.
    otherwise : str
        ``fail`` stops the task at this time; ``drop`` leaves the rows out and counts them; ``dead_letter`` keeps them
        apart in the output's log.
    """

    name: str
    condition: str
    otherwise: Literal["fail", "drop", "dead_letter"] = "fail"


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Rows of a log: those of some files whose times are in a range, shown in one way.

    Attributes
    ----------
    alias : str
    shown : str
    path : str
        Of the log.
    kind : str
    domain : TimeDomain
    schema : pyarrow.Schema
        Of its payload.
    storage : TableStorage
        Of the log.
    files : tuple of str
        Paths below the log.
    lower : int or None
        First time; None: from the beginning on.
    upper : int or None
        Before which time; None: to the end of all times.
    size_bytes : int
        Of the files.
    n_rows : int
        Of the files; negative where that is not known.
    n_later : int
        Of the files that may have rows at later times than the first of the step; negative where that is not known.
    adds_only : bool
        Whether no update of the files is known to take a row away: rows need not be summed.
    adds_at_first : bool
        Whether that is so of the files that may have rows up to the first time of the step.
    """

    alias: str
    shown: Shown
    path: str
    kind: LogKind
    domain: TimeDomain
    schema: pa.Schema
    storage: TableStorage
    files: tuple[str, ...]
    lower: int | None
    upper: int | None
    size_bytes: int = 0
    n_rows: int = -1
    n_later: int = -1
    adds_only: bool = False
    adds_at_first: bool = False

    @property
    def is_input(self) -> bool:
        """Whether it shows changes."""
        return self.shown in ("inserts", "deletes")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The times at which the body is evaluated: one, or several together.

    Attributes
    ----------
    task : str
        Name of the task, for errors.
    times : tuple of int
        Sorted, at least one. All write times from the first to the last.
    sources : tuple of SourcePlan
    own : SourcePlan or None
        What the output holds before `time`, where the body reads it.
    form : LogFormat
        Of the output's log.
    storage : Storage
        Of the output's log.
    stream : str
    seq : int
        Number of the commit that the files are for.
    job : str
        In the names of the files.
    settings : dict of str to str
        What Spark evaluates the body under.
    expectations : tuple of Expectation
    """

    task: str
    times: tuple[int, ...]
    sources: tuple[SourcePlan, ...]
    own: SourcePlan | None
    form: LogFormat
    storage: Storage
    stream: str
    seq: int
    job: str
    settings: Mapping[str, str] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()

    @property
    def time(self) -> int:
        """The time, where it is one; else the first."""
        return self.times[0]

    @property
    def together(self) -> bool:
        """Whether there are several."""
        return len(self.times) > 1

    @property
    def where(self) -> str:
        """The time as people write it, or the first and the last."""
        rendered = self.form.domain.render_time
        first = f"{rendered((self.times[0],))}"
        return f"{first} to {rendered((self.times[-1],))}" if self.together else first


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step.

    Attributes
    ----------
    files : sequence of DataFile
        Written, and part of nothing yet.
    error : OperatorError or None
        Why nothing may be committed.
    unmet : dict of str to int
        Rows for which an expectation does not hold, by its name.
    """

    files: Sequence[DataFile] = ()
    error: OperatorError | None = None
    unmet: Mapping[str, int] = field(default_factory=dict)


class Evaluator(Protocol):
    """Evaluates bodies, and whatever else looks at rows. It looks at what it is given, and decides nothing."""

    def evaluate(self, plan: StepPlan, /) -> StepResult:
        """Evaluate the body at the times of a step, and write what it gives.

        Raises
        ------
        StorageError
            If files cannot be read or written; also if a file is gone.
        """

    def times(self, sources: Sequence[SourcePlan], /) -> Sequence[IntArray]:
        """Return the times at which each of some collections has inserts, or deletes: sorted, each once, shape (n,).

        Updates of one time are summed before: a row that is added and taken away at one time is none. A source without
        `lower` is shown as of the time before `upper`: that one time is returned, or none.
        """
