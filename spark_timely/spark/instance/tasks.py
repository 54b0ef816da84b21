"""Continual tasks of a compute instance on Spark: each body is evaluated in a session of its own.

The `instance` gives `InstanceTasks` to its driver (`spark_timely.compute.drive`), which runs the steps; a body itself
is evaluated by `spark_timely.spark.tasks.bodies`. Steps of several tasks run at once, and a body is evaluated under the
settings that its task recorded. In one session they would change these under each other, and under peeks and copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from spark_timely.compute.drive.runtime import ReadyTask, TaskRequest
from spark_timely.continual.body import SqlBody
from spark_timely.continual.plan import deletes, newest
from spark_timely.errors import InvalidUsageError
from spark_timely.spark.base.compat import is_remote
from spark_timely.spark.instance.jobs import says_lost
from spark_timely.spark.tasks.bodies import SessionSettings, SparkBodies
from spark_timely.spark.tasks.continual import ContinualTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.continual.plan import SourcePlan, StepPlan, StepResult
    from spark_timely.spark.dataflows.dataflow import TaskPart
    from spark_timely.spark.instance.jobs import Jobs
    from spark_timely.time.antichain import IntArray

__all__ = ["InstanceTasks"]

_T = TypeVar("_T")


class InstanceTasks:
    """Makes the continual tasks of one instance ready: a `spark_timely.compute.drive.runtime.TaskBodies`.

    Parameters
    ----------
    jobs : Jobs
        Of the instance: bodies are looked at and evaluated as its jobs.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # Of bodies that are evaluated in the instance's own session.
        self._lock = threading.RLock()

    def __call__(self, request: TaskRequest, /) -> ReadyTask:
        """Look at the body of a task, and make it ready.

        Raises
        ------
        TimelyError
            If the body is refused, by what it says or by Spark, or does not fit the output's log.
        """
        node, logs = request.node, request.logs
        inputs, references = dict[str, Any](), dict[str, Any]()
        for name, how in node.reads:
            if how in ("inserts", "deletes"):
                inputs[name] = deletes(logs[name]) if how == "deletes" else logs[name]
            else:
                references[name] = newest(logs[name]) if how == "newest" else logs[name]
        task = ContinualTask(
            request.name,
            inputs=inputs,
            references=references,
            body=node.sql,
            output=request.output,
            as_of=node.as_of,
            snapshot=node.snapshot,
            expect={name: (condition, otherwise) for name, condition, otherwise in node.expect},
            forgotten=node.forgotten,
            functions=node.functions,
            replaces=node.replaces,
            storage_options=dict(request.storage_options) or None,
        )
        body = task.task().body
        # Statements that see what others before them changed: the client of Connect has what is computed once for them
        # in the active session alone (4.2), which no clone is.
        several = isinstance(body, SqlBody) and len(body.statements) > 1
        session = _OwnSession(self._jobs, self._lock, request.name, shares=bool(node.functions), is_active=several)
        try:
            opened = session.run(lambda own, _: task.prepare(own))
        except BaseException:
            session.end()
            raise
        part = task.task()
        (sink,) = task.sinks
        bodies = _JobBodies(session, part)
        return ReadyTask(part.plan, sink, dict(opened), dict(task.storage), lambda: bodies, session.end)


class _JobBodies:
    """Evaluates the body of a task by jobs of an instance: `spark_timely.continual.plan.Evaluator`."""

    def __init__(self, session: _OwnSession, part: TaskPart) -> None:
        self._session, self._part = session, part

    def evaluate(self, plan: StepPlan, /) -> StepResult:
        """Evaluate the body at the times of a step, and write what it gives."""
        return self._session.run(lambda own, settings: self._in(own, settings).evaluate(plan))

    def times(self, sources: Sequence[SourcePlan], /) -> list[IntArray]:
        """Return the times at which collections have inserts or deletes."""
        return self._session.run(lambda own, settings: self._in(own, settings).times(sources))

    def _in(self, own: SparkSession, settings: SessionSettings) -> SparkBodies:
        part = self._part
        assert isinstance(part.body, SqlBody)
        return SparkBodies(own, part.body, settings, part.own_names, part.many)


class _OwnSession:
    """The session that the body of a task is evaluated in; another one where the instance has got another one.

    Parameters
    ----------
    jobs : Jobs
        Of the instance.
    lock : threading.RLock
        Of bodies that are evaluated in the session of the instance.
    name : str
        Of the task.
    shares : bool
        Whether the body calls functions that may be registered in the session of the instance alone.
    is_active : bool
        Whether on Connect it has to be the active session.
    """

    def __init__(self, jobs: Jobs, lock: threading.RLock, name: str, *, shares: bool, is_active: bool) -> None:
        self._jobs, self._lock, self._name, self._shares, self._is_active = jobs, lock, name, shares, is_active
        self._made: tuple[SparkSession, SparkSession, SessionSettings] | None = None

    def run(self, act: Callable[[SparkSession, SessionSettings], _T], /) -> _T:
        """Return what a function gives of the session and its settings, in a job of the instance."""
        return self._jobs.run(self._name, lambda _: self._applied(act))

    def _applied(self, act: Callable[[SparkSession, SessionSettings], _T]) -> _T:
        theirs = self._jobs.session()
        if self._made is None or self._made[0] is not theirs:
            self.end()
            own = theirs if self._has_to_be(theirs) else _apart(theirs, shares=self._shares)
            self._made = theirs, own, SessionSettings(own)
        _, own, settings = self._made
        if own is theirs:
            with self._lock:
                return act(own, settings)
        try:
            with self._jobs.joined(own):
                return act(own, settings)
        except Exception as error:
            if says_lost(own, error):
                self.end()  # a server forgets sessions that nobody used for an hour: the next try has another one
            raise

    def _has_to_be(self, theirs: SparkSession) -> bool:
        """Return whether it has to be the instance's own session, and refuse one that cannot be it."""
        if not self._is_active or not is_remote(theirs):
            return False
        if type(theirs).active() is not theirs:
            msg = (
                f"could not run task {self._name!r}: found several statements, and a session that is not the active one"
            )
            raise InvalidUsageError(
                msg, hint="run the instance with the first session of the process, or say it in one"
            )
        return True

    def end(self) -> None:
        """Let go of the session if it is one of its own."""
        made, self._made = self._made, None
        if made is None or made[0] is made[1] or not is_remote(made[1]):
            return  # to stop a classic one would end Spark
        client = made[1].client
        with suppress(Exception):  # a server that is gone has no sessions
            client.release_session()
            client.close()


def _apart(spark: SparkSession, *, shares: bool) -> SparkSession:
    """Return a session with the settings of another one; that one itself where its client can make none."""
    if is_remote(spark):
        clone: Callable[[], SparkSession] | None = getattr(spark, "cloneSession", None)
        return spark if clone is None else clone()
    if shares:
        return spark  # a new one has the functions of the catalog alone
    own = spark.newSession()
    there = own.conf.getAll
    for name, value in spark.conf.getAll.items():
        if there.get(name) != value and own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own
