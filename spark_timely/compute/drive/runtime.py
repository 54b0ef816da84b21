"""The runtime of an instance: functions that run tasks, copies and large peeks, given by a session of Spark.

`spark_timely.spark.instance` makes it of a session; the driver hands work to it, and so stays free of Spark. A command
line that only follows an instance gives a runtime that runs nothing.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from spark_timely.errors import TimelyError

if TYPE_CHECKING:
    from spark_timely.compute.drive.directory import Directory
    from spark_timely.compute.drive.plans import Function
    from spark_timely.compute.plan import SqlTask
    from spark_timely.continual.engine import TaskPlan
    from spark_timely.continual.plan import Evaluator
    from spark_timely.dataflow.engine.arrangements import RunTasks
    from spark_timely.dataflow.engine.cutting import Files
    from spark_timely.dataflow.engine.inputs import Retained
    from spark_timely.dataflow.logs import Sink
    from spark_timely.log.log import Log

__all__ = ["SESSION_LOST", "Copy", "Functions", "ReadyTask", "Runtime", "TaskBodies", "TaskRequest", "has_lost_session"]

Copy = Callable[[str, str, object, Mapping[str, object]], int]
"""Copies the contents of a log at a time into a folder; takes path, folder, time, details; returns how many rows."""

SESSION_LOST: Final[Mapping[str, object]] = {"session": "lost"}
"""Context of the error of work that could not begin since its session of Spark is lost: another session does it."""


def has_lost_session(error: BaseException, /) -> bool:
    """Return whether work has failed for want of a session of Spark alone.

    Examples
    --------
    >>> from spark_timely.errors import OperatorError
    >>> has_lost_session(OperatorError("could not run a job", hint="…", context=SESSION_LOST))
    True
    """
    return isinstance(error, TimelyError) and SESSION_LOST.items() <= error.context.items()


@dataclass(frozen=True)
class TaskRequest:
    """A continual task that an instance wants to run.

    Attributes
    ----------
    name : str
        The same whenever it is started: it owns the output.
    node : SqlTask
    logs : mapping of str to Log
        What it reads, by the name that the body has for it.
    output : str
        Path of the output's log, which need not be there.
    storage_options : mapping of str to str
        Of the output's log.
    """

    name: str
    node: SqlTask
    logs: Mapping[str, Log]
    output: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ReadyTask:
    """A continual task whose body was looked at: it fits what it reads, and its output's columns are known.

    Attributes
    ----------
    plan : TaskPlan
    sink : Sink
        Its output, owned by the task's name.
    logs : mapping of str to Log
        By path: what it reads, and the output's log if that is there.
    storage : mapping of str to dict
        Storage options, by path.
    bodies : callable
        Gives what evaluates the body: asked for before each step.
    end : callable
        Lets go of what was held for the body.
    """

    plan: TaskPlan
    sink: Sink
    logs: Mapping[str, Log]
    storage: Mapping[str, dict[str, str]] = field(repr=False)
    evaluator: Callable[[], Evaluator]
    end: Callable[[], None] = lambda: None


TaskBodies: TypeAlias = Callable[[TaskRequest], ReadyTask]
"""Looks at the body of a task and makes it ready; raises what is wrong with it, before anything is made."""


class _Asked:
    """A function of tables that is asked once for the columns it gives: an instance builds its plan under its lock."""

    def __init__(self, function: Function) -> None:
        functools.update_wrapper(self, function)
        self._function, self._columns = function, dict[pa.Schema, pa.Table]()

    def __call__(self, rows: pa.Table, /) -> pa.Table:
        if rows.num_rows:
            return self._function(rows)
        if rows.schema not in self._columns:
            self._columns[rows.schema] = self._function(rows)
        return self._columns[rows.schema]


class Functions:
    """The functions of Python that dataflows of this process call, each under a name that no other one ever has.

    They are in this process alone, and nowhere written down.

    Examples
    --------
    >>> functions = Functions()
    >>> names = functions.add({"loud": lambda rows: rows})
    >>> sorted(names), list(functions.known) == [names["loud"]]
    (['loud'], True)
    >>> functions.forget(names.values())
    >>> dict(functions.known)
    {}
    """

    def __init__(self) -> None:
        self._known: dict[str, Function] = {}

    @property
    def known(self) -> Mapping[str, Function]:
        """Those that are there, by their own names."""
        return self._known

    def add(self, given: Mapping[str, Function], /) -> dict[str, str]:
        """Keep functions, and return the name of each by that which it was given under."""
        names = {name: f"{name} {uuid.uuid4().hex[:12]}" for name in given}
        self._known.update({names[name]: _Asked(function) for name, function in given.items()})
        return names

    def forget(self, names: Iterable[str], /) -> None:
        """Let go of functions; unknown names are ignored."""
        for name in names:
            self._known.pop(name, None)


@dataclass(frozen=True)
class Runtime:
    """The functions by which an instance gets its work done.

    Attributes
    ----------
    tasks : callable
        Gives what runs the tasks of a dataflow, by its name and the storage options of its logs.
    files_of : callable
        Gives what keeps account of a log's files.
    copy : callable, optional
        See `Copy`.
    job : callable, optional
        Answers a peek that has to read much: see `spark_timely.answers.peek.peek`.
    retain : callable, optional
        Gives what retains a log for a consumer.
    task_bodies : callable, optional
        See `TaskBodies`.
    functions : Functions
        Of Python, which interactive dataflows call.
    check : callable, optional
        Looks at the place before the instance is taken over, and raises where it is not to be.
    keyed_bytes : callable, optional
        Gives from how many bytes on a piece of whole times is computed by key; None for as usual. Asked for when a
        dataflow begins; no answer depends on it.
    """

    tasks: Callable[[str, Mapping[str, Mapping[str, str]]], RunTasks]
    files_of: Callable[[Log], Callable[[], Files]]
    copy: Copy | None = None
    job: Callable[[Any], Any] | None = None
    retain: Callable[[Log, str], Retained] | None = None
    task_bodies: TaskBodies | None = None
    functions: Functions = field(default_factory=Functions)
    check: Callable[[Directory], object] | None = None
    keyed_bytes: Callable[[], int | None] = lambda: None
