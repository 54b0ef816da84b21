"""Dataflows as a streaming query: its source says when to look, and `foreachBatch` does the work.

`Dataflow` is `spark_timely.Dataflow`: users write down streams and outputs with it (`spark_timely.dataflow`), and start
its query. Continual tasks (`spark_timely.spark.tasks`) run as dataflows of one output.

A query that lives has a clock as its source (`spark_timely.datasource.clock`), one that ends a source of Spark's with
one row: that needs no Python process. Spark's offsets and checkpoint decide nothing but when to look: what was done is
in the outputs' logs. Losing the checkpoint costs one look. The query's handle says how far the outputs are and which of
them stopped. It waits for an output or for the end, stops the query, and drops a dataflow of it.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_timely.conf.kinds import seconds_of
from spark_timely.continual.engine import TaskEngine
from spark_timely.dataflow.engine import explain
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES
from spark_timely.dataflow.engine.explain import OperatorMetrics, OutputProgress
from spark_timely.dataflow.engine.inputs import check_whole
from spark_timely.dataflow.engine.outputs import TRIES, check_plans, drop_output, failure_of, passes
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.logs import Sink, existing_logs, open_logs
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import leaves_of, packed, unpacked
from spark_timely.datasource.clock import Alarm
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import InvalidUsageError, StorageError, WaitTimeoutError, shown
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import nearest_log, same_place
from spark_timely.log.wait import Throttle, wait_until
from spark_timely.notebook import page, shown_in_notebook
from spark_timely.protocol.note import OutputFailure
from spark_timely.protocol.replay import Limits
from spark_timely.spark.base.checkpoint import damaged_file
from spark_timely.spark.base.credentials import OPTION, credentials_of, joined_options, named_here
from spark_timely.spark.base.failure import query_error
from spark_timely.spark.base.trigger import Trigger, ending_of, parse_trigger
from spark_timely.spark.dataflows.tasks import DRIVER_BYTES, SparkTasks, catalog_of
from spark_timely.spark.session import given_to_spark, register, spare_progress, stored
from spark_timely.spark.tasks.arrow_bodies import ArrowBodies, ArrowBody
from spark_timely.spark.tasks.bodies import SessionSettings, SparkBodies
from spark_timely.time.text import parse_duration
from spark_timely.work import Bounds, advance_all, is_cancelled, rest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_timely.continual.body import SqlBody
    from spark_timely.continual.engine import TaskPlan
    from spark_timely.continual.many_times import ManyBody
    from spark_timely.dataflow.views import Replay
    from spark_timely.datasource.catalog import FileView
    from spark_timely.log import Log
    from spark_timely.spark.tasks.bodies import FunctionBody
    from spark_timely.time.antichain import Antichain, Time
    from spark_timely.time.domain import TimeLike
    from spark_timely.time.text import Duration

__all__ = ["Dataflow", "DataflowQuery"]

# Of the inputs' files that a step takes by default, of each output: tasks hold their share in memory.
_STEP_BYTES: Final = 512 << 20

# Spark's own source, within the JVM: its offset moves with each run of a query, so each run has a micro-batch.
_ONE_ROW: Final = "rate-micro-batch"
_ENDING: Final = "ending"

_LEAST_KEPT_S: Final = 3


class Dataflow(Scope):
    """Operators over logs, run by Spark: what they give of complete times is captured into other logs.

    Parameters
    ----------
    name : str
        Owns the outputs. The same whenever the dataflow is started, and no other dataflow's.
    checkpoint : str
        Checkpoint location of the query.

    Examples
    --------
    ::

        flow = spark_timely.Dataflow("delays", checkpoint="/data/checkpoint")
        late = flow.replay("/data/flights").filter("arr_delay > 15")
        hours = late.aggregate(by="origin", n=tf.count(), worst=tf.max("arr_delay"))
        hours.capture("/data/delays")
        query = flow.start(spark, trigger="availableNow")
        query.await_termination()
    """

    def __init__(self, name: str, *, checkpoint: str) -> None:
        super().__init__(name)
        if not isinstance(checkpoint, str) or not checkpoint.strip():
            msg = f"could not begin dataflow {name!r}: found checkpoint={shown(checkpoint)}"
            raise InvalidUsageError(msg, hint="give the location of the query's checkpoint")
        self.checkpoint = checkpoint
        self._watched: dict[str, tuple[Log, Callable[[], FileView]]] = {}

    def _joined_options(self, credential: str | None, storage_options: Mapping[str, str] | None) -> dict[str, str]:
        """Return storage options with those of a credential that a session of this process knows, or of a function."""
        return joined_options(credential, storage_options, named_here())

    def _settle_options(self, spark: SparkSession) -> None:
        """Take what the credentials' names stand for in the session that runs the dataflow: they may be renewed."""
        named = credentials_of(spark) if self._named else {}
        for path, (credential, beside) in self._named.items():
            self.storage[path] = checked_options(joined_options(credential, beside, named), path)

    def _shown_options(self, spark: SparkSession, path: str) -> dict[str, str]:
        """Return the options of a log as Spark may see them."""
        if path not in self._named:
            return stored(spark, self.storage[path])
        credential, beside = self._named[path]
        return {name: str(value) for name, value in given_to_spark(spark, {OPTION: credential}, beside).items()}

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the graph with its frontiers, read from the logs. Never fails."""
        return shown_in_notebook(self, lambda: explain.html(self, f"Dataflow {self.name}"))

    def start(
        self,
        spark: SparkSession,
        /,
        *,
        trigger: Trigger | None = None,
        workers: int | None = None,
        max_times_per_step: int | None = None,
        max_bytes_per_step: int | None = None,
        max_bytes_per_task: int | None = None,
        max_bytes_in_driver: int | None = None,
        beside: Sequence[Dataflow] = (),
        twice: bool = False,
        retain: str | None = "7 days",
    ) -> DataflowQuery:
        """Start the streaming query that runs the dataflow.

        Logs of outputs are made if they are not there. A step is taken at once, whether or not an input
        moved since the last run.

        An output whose function fails stops, with what is made from it; `DataflowQuery.failures` and `explain`
        say why. The others continue as long as the query lives. It ends with the error where nothing can continue any
        more, and with the triggers ``availableNow`` and ``once`` after all else is done. The next start tries again.

        A failure of a job or of the storage may pass: its output is tried again after pauses of half a second to a
        minute, whether or not an input moves. With ``availableNow`` and ``once`` it is tried six times in a row, and
        then ends the query.

        Up to twenty steps of an output are computed together, in one job, as long as jobs take no more than about a
        second: each has a commit of its own, the same as if it were alone.

        With these two triggers the inputs are taken as they are at the start. Else news is seen between jobs, and a
        micro-batch ends after thirty steps or ten seconds, or the trigger's interval; the next one follows at once.

        A query with one of them has its own checkpoint, the folder ``ending`` of the one given, and so another id than
        a query that lives on the same one. Where both run at once the outputs come out the same: each step is appended
        by one of them, and the other throws its work away.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            Classic or Connect.
        trigger : str, timedelta or mapping, optional
            ``"availableNow"``, ``"once"``, an interval such as ``"10 seconds"``, or what
            ``DataStreamWriter.trigger`` takes, as a mapping. Spark's default if not given.
        workers : int, optional
            Tasks per output and step at most, unless they would be too large; by bytes, at most 16, if not given.
        max_times_per_step, max_bytes_per_step : int, optional
            How much of an output's waiting times one step takes: one commit each. 512 MiB of the inputs' files unless
            given; several steps in one job stay below that together.
        max_bytes_per_task : int, optional
            There are as many tasks of whole times as keep them below. One that is not, such as one giant time, is cut
            by rows and put together by key, where its operators allow that: an aggregate over operators that go row
            by row. 128 MiB unless given.
        max_bytes_in_driver : int, optional
            A job whose input is smaller, and that calls no function of yours, runs in the process that plans it: the
            driver, or the server of Spark Connect. 1 MiB unless given. 0 leaves all work to the executors, for logs
            whose files the driver may not write, or a driver that should do no more than plan.
        beside : sequence of Dataflow
            Other dataflows for the same query, which spares a query each. They run their jobs in turn, and look at
            their inputs before each: news for one waits for a job of each of the others, however much those have to
            do. What fails in one does not concern the others.
        twice : bool
            A test mode: compute everything twice, with rows and files in another order, and refuse functions that
            give other rows the second time.
        retain : str or None
            How long the inputs keep what the outputs have not read while the dataflow is stopped: each is retained
            under the dataflow's name, at one commit in a minute at most. None: nothing is retained. An input that
            cannot be written to is not, which is logged.

        Returns
        -------
        DataflowQuery

        Raises
        ------
        InvalidUsageError
            If nothing is captured, or a number or the trigger does not fit.
        OwnershipError
            If an output belongs to another dataflow or query; `PlanMismatchError` if it was made by another plan.
        SchemaMismatchError
            If an output's log has other columns or times.
        StorageError
            If the folder ``ending`` of the checkpoint is damaged.
        """
        flows = [self, *beside]
        self._check_kinds(beside)
        prepared = [flow.prepare(spark) for flow in flows]
        if not self.sinks:
            msg = f"could not start dataflow {self.name!r}: found nothing that is captured"
            raise InvalidUsageError(msg, hint="capture at least one stream into a log")
        wanted = parse_trigger(trigger, attempt=f"could not start dataflow {self.name!r}")
        self._check_number(1, workers=workers, max_times_per_step=max_times_per_step)
        self._check_number(1, max_bytes_per_step=max_bytes_per_step, max_bytes_per_task=max_bytes_per_task)
        self._check_number(0, max_bytes_in_driver=max_bytes_in_driver)
        kept = self._retained_for(retain)
        self._check_beside(flows)
        logs = [flow._opened_logs(spark, opened) for flow, opened in zip(flows, prepared, strict=True)]
        register(spark)
        spare_progress(spark)
        run = uuid.uuid4().hex
        storage = {path: options for flow in flows for path, options in flow.storage.items()}
        # Spark has its own credentials for the checkpoint; the alarm in it is this library's.
        near = nearest_log(self.checkpoint, storage)
        lives = ending_of(wanted) is None
        if lives:
            source = self._news(spark, flows, near, run)
        else:
            source = spark.readStream.format(_ONE_ROW).option("rowsPerBatch", 1).load()
        step = _MicroBatch(
            tuple(_Part(flow.name, tuple(flow.sinks), dict(flow.storage), flow.task()) for flow in flows),
            Limits(times=max_times_per_step, size_bytes=max_bytes_per_step or _STEP_BYTES),
            workers,
            max_bytes_per_task or SHUFFLE_BYTES,
            twice,
            run,
            lives,
            _bounds(wanted),
            self.checkpoint,
            {} if near is None else storage[near],
            DRIVER_BYTES if max_bytes_in_driver is None else max_bytes_in_driver,
            kept,
        )
        location = self.checkpoint if lives else self._ending_checkpoint()
        writer = source.writeStream.foreachBatch(step).option("checkpointLocation", location)
        if wanted:
            writer = writer.trigger(**wanted)
        return DataflowQuery(writer.start(), flows, spark, logs, run=run, lives=lives, end=step.end)

    def _check_kinds(self, beside: Sequence[Dataflow]) -> None:
        for flow in beside:
            if not isinstance(flow, Dataflow):
                msg = f"could not start dataflow {self.name!r}: found {shown(flow)} beside it"
                raise InvalidUsageError(msg, hint="give dataflows and continual tasks")

    def _check_number(self, least: int, /, **numbers: object) -> None:
        for what, number in numbers.items():
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
                msg = f"could not start dataflow {self.name!r}: found {what}={shown(number)}"
                raise InvalidUsageError(msg, hint=f"give whole numbers from {least} on")

    def _retained_for(self, retain: str | None) -> Duration | None:
        if retain is None:
            return None
        try:
            kept = parse_duration(retain)
            if kept.seconds < _LEAST_KEPT_S:
                msg = f"give {_LEAST_KEPT_S} seconds or more, better days"
                raise ValueError(msg)
        except ValueError as error:
            msg = f"could not start dataflow {self.name!r}: found retain={shown(retain)}"
            raise InvalidUsageError(msg, hint=str(error)) from error
        return kept

    def _check_beside(self, flows: Sequence[Dataflow]) -> None:
        for flow in flows[1:]:
            if not flow.sinks:
                msg = f"could not start dataflow {self.name!r}: found {shown(flow)} beside it"
                raise InvalidUsageError(msg, hint="give dataflows that capture something")
        if len({flow.name for flow in flows}) < len(flows):
            msg = f"could not start dataflow {self.name!r}: found names {shown([flow.name for flow in flows])}"
            raise InvalidUsageError(msg, hint="give each dataflow a name of its own: it owns the outputs")

    def _opened_logs(self, spark: SparkSession, opened: Mapping[str, Log]) -> dict[str, Log]:
        """Open the logs of inputs and outputs, of which some are open already; make outputs that are not there."""
        self._settle_options(spark)
        there = existing_logs(self.sinks, self.storage, opened)
        check_plans(self.sinks, there)  # before any log is made
        logs = open_logs(self.sinks, self.storage, there)
        check_whole(self.sinks, logs)
        self.check_started(logs)
        return logs

    def _news(self, spark: SparkSession, flows: Sequence[Dataflow], near: str | None, run: str) -> DataFrame:
        """Return the stream of which logs have moved that a query reads; `near` is the log next to its checkpoint."""
        # Outputs that are read again too: others may write further streams of their logs.
        first, *others = {leaf.path: None for flow in flows for sink in flow.sinks for leaf in leaves_of(sink.view)}
        flow_of = {path: flow for flow in flows for path in flow.storage}
        visible = {path: flow_of[path]._shown_options(spark, path) for path in (first, *others)}
        shared = {path: visible[path] for path in others}
        shared[self.checkpoint] = {} if near is None else flow_of[near]._shown_options(spark, near)
        reader = spark.readStream.format("timely").option("content", "clock").option("run", run)
        reader = reader.option("alarm", self.checkpoint).options(**visible[first])
        if any(visible.values()) or any(shared.values()):
            reader = reader.option("logOptions", json.dumps(shared))
        return reader.option("logs", json.dumps(others)).load(first) if others else reader.load(first)

    def _ending_checkpoint(self) -> str:
        """Return the checkpoint of a query that ends; refuse a damaged one."""
        location = _below(self.checkpoint)
        if (damaged := damaged_file(location)) is not None:
            msg = f"could not start dataflow {self.name!r}: found a damaged file {damaged!r} in checkpoint {location!r}"
            raise StorageError(
                msg,
                hint=f"delete the folder {_ENDING!r} in the checkpoint: it says only when to look, and what was done"
                " is in the outputs' logs",
                determinate=True,
                context={"checkpoint": location},
            )
        return location

    def prepare(self, spark: SparkSession) -> Mapping[str, Log]:
        """Make ready what a start needs the session for, and return logs opened for it: of a dataflow none."""
        del spark
        return {}

    def check_started(self, logs: Mapping[str, Log]) -> None:
        """Refuse logs that are there by now and do not fit, where a kind of dataflow has rules of its own."""

    def drop_kept(self) -> None:
        """Let go of what inputs retain after a drop: a dataflow may be started again, so what it retains expires."""

    def task(self) -> TaskPart | None:
        """Return what runs instead of operators, of a continual task."""
        return None

    def explain(self) -> str:
        """Return the plan, operator by operator: frontiers, uppers, what waits and who holds it, how it is cut.

        Reads the logs; the dataflow need not run.
        """
        return explain.explain(self)

    def progress(self) -> list[OutputProgress]:
        """Return for each output how many of its inputs' complete rows it has done, of how many; exact."""

        def files_of(leaf: Replay) -> FileView:
            log, files = self._watched.get(leaf.path) or self._watch(leaf.path)
            log.refresh()
            return files()

        return explain.progress(self, files_of)

    def _watch(self, path: str) -> tuple[Log, Callable[[], FileView]]:
        log = open_log(path, storage_options=self.storage[path] or None)
        self._watched[path] = log, catalog_of(log)
        return self._watched[path]

    def metrics(self) -> list[OperatorMetrics]:
        """Return rows, bytes and steps of each operator, and the lag of each output.

        Read from the outputs' logs: each row counts once, whatever was repeated, and over all runs.
        """
        return explain.metrics(self)


@dataclass(frozen=True)
class TaskPart:
    """A continual task as its query runs it.

    Attributes
    ----------
    plan : TaskPlan
    body : SqlBody or FunctionBody
    own_names : tuple of str
        Under which names the body reads the output.
    many : ManyBody or None
        The body for many times together, where there is one in SQL.
    """

    plan: TaskPlan
    body: SqlBody | FunctionBody
    own_names: tuple[str, ...]
    many: ManyBody | None = None


@dataclass(frozen=True)
class _Part:
    """One of the dataflows of a query."""

    name: str
    sinks: tuple[Sink, ...]
    storage: dict[str, dict[str, str]] = field(repr=False)  # credentials are never shown
    task: TaskPart | None = None

    def __getstate__(self) -> dict[str, object]:
        views = packed([sink.view for sink in self.sinks])
        return {
            **self.__dict__,
            "sinks": [replace(sink, view=replace(sink.view, inputs=())) for sink in self.sinks],
            "views": views,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        views = unpacked(state.pop("views"))
        sinks = tuple(replace(sink, view=view) for sink, view in zip(state["sinks"], views, strict=True))
        self.__dict__.update({**state, "sinks": sinks})


@dataclass
class _MicroBatch:
    """The function for foreachBatch: takes steps until nothing is ready. Pickled by Connect."""

    parts: tuple[_Part, ...]
    limits: Limits
    workers: int | None
    shuffle_bytes: int
    twice: bool
    run: str
    lives: bool
    bounds: Bounds
    checkpoint: str
    clock_options: dict[str, str] = field(repr=False)
    driver_bytes: int
    kept: Duration | None = None
    engines: list[Engine | TaskEngine] = field(default_factory=list, repr=False)
    alarm: Alarm | None = field(default=None, repr=False)
    settings: SessionSettings | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "engines": [], "alarm": None, "settings": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        del batch_id
        if not self.engines:
            self.alarm = Alarm(self.checkpoint, self.run, self.clock_options)
            self.engines = [self._engine(part) for part in self.parts]
        if self.settings is None:
            self.settings = SessionSettings(df.sparkSession)
        self.settings.spark = df.sparkSession
        storage = {path: options for part in self.parts for path, options in part.storage.items()}
        tasks = SparkTasks(df.sparkSession, storage, max_bytes_in_driver=self.driver_bytes)
        for engine in self.engines:
            if isinstance(engine, Engine):
                engine.run_tasks = tasks
        rest: float | None = 0.0
        while rest == 0.0:  # once, unless the clock cannot be asked for another micro-batch
            try:
                advance_all(self.engines, lives=self.lives, bounds=self.bounds)
            except Exception as error:
                self.end()
                if is_cancelled(error):
                    raise JobCancelledError(error) from None
                raise
            rest = rest_of(self.engines) if self.lives else None
            if not self.lives:
                self.end()
            if rest is not None and self.alarm is not None and self.alarm.set(rest):
                return

    def _engine(self, part: _Part) -> Engine | TaskEngine:
        retain = None if self.kept is None else partial(_retained, self.kept)
        if part.task is None:
            return Engine(
                part.name,
                part.sinks,
                part.storage,
                files_of=catalog_of,
                limits=self.limits,
                workers=self.workers,
                shuffle_bytes=self.shuffle_bytes,
                twice=self.twice,
                run=self.run,
                tries=TRIES,
                retain=retain,
            )
        task, (sink,) = part.task, part.sinks

        def evaluator() -> SparkBodies | ArrowBodies:
            assert self.settings is not None  # it was made with the session of this micro-batch
            if isinstance(task.body, ArrowBody):
                return ArrowBodies(self.settings.spark, task.body, task.own_names)
            return SparkBodies(self.settings.spark, task.body, self.settings, task.own_names, task.many)

        return TaskEngine(
            task.plan,
            sink,
            open_logs(part.sinks, part.storage),
            files_of=catalog_of,
            evaluator=evaluator,
            run=self.run,
            tries=TRIES,
            retain=retain,
            may_write=partial(_may_write, self.checkpoint, self.clock_options, self.run),
        )

    def end(self) -> None:
        """Renew nothing any more: what inputs retain for the dataflow expires, unless it is started again.

        Through Connect this is another process than the one that runs the dataflow, whose end is enough.
        """
        for engine in self.engines:
            engine.end()


def _marker(run: str) -> str:
    """Return the file in the checkpoint that lets a run of a query write which began read-only."""
    return f"may-write-{run}"


def _may_write(checkpoint: str, options: Mapping[str, str], run: str) -> bool:
    return open_storage(checkpoint, dict(options) or None, literal=True).exists(_marker(run))


def _retained(kept: Duration, log: Log, consumer: str) -> RetainedPosition:
    """Return what retains an input, by a handle of its own."""
    return RetainedPosition(
        partial(open_log, log.path, storage_options=log.core.storage_options or None), consumer, kept
    )


class JobCancelledError(RuntimeError):
    """A job of the query was cancelled: by `stop`, or in Spark's pages.

    Spark looks in the text whether it was a stop, by an expression that needs a frame of its stack for each letter
    behind the first words (4.2). The job's own error has pages of Java's calls there, for which the stack is too small.
    """

    def __init__(self, error: Exception) -> None:
        line = str(error).strip().partition("\n")[0][:_MOST_TOLD]
        super().__init__(f"{line}\n{_AS_SPARK_SAYS}")


_MOST_TOLD: Final = 300
_AS_SPARK_SAYS: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a job, which was cancelled: "
    "java.lang.InterruptedException"
)


def _below(checkpoint: str) -> str:
    """Return where a query that ends has its checkpoint: in a folder that a clock's offsets never are in."""
    # Spark takes the text as it stands: a path, or a URL with its escapes.
    return f"{checkpoint}{'' if checkpoint.endswith('/') else '/'}{_ENDING}"


def _bounds(trigger: Mapping[str, object]) -> Bounds:
    """Return how long a micro-batch may take: where the next one comes after an interval, as long as that at least."""
    bounds, interval = Bounds(), trigger.get("processingTime")
    seconds = 0.0 if interval is None else parse_duration(interval).seconds
    return bounds if not seconds else Bounds(max(seconds, bounds.seconds or 0.0), None)


# Between two looks at the outputs' logs, and between two questions to Spark whether the query is alive.
_POLL_S: Final = 0.05
_LOOK_S: Final = 2.0


class DataflowQuery:
    """A running dataflow: Spark's streaming query, and how far its outputs are. Made by `Dataflow.start`.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        Spark's own handle.
    flows : sequence of Dataflow
        That it runs.
    spark : pyspark.sql.SparkSession
    run : str
        Which run of the query it is.
    lives : bool
        Whether the query continues where an output stops.
    end : callable
        Called once the query was stopped.

    Examples
    --------
    ::

        query = flow.start(spark)
        query.await_frontier(7, timeout_s=60)
        query.stop()
    """

    def __init__(
        self,
        query: StreamingQuery,
        flows: Sequence[Dataflow],
        spark: SparkSession,
        logs: Sequence[Mapping[str, Log]],
        *,
        run: str = "",
        lives: bool = False,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.query = query
        self._end = end
        self._spark = spark
        self._run, self._lives = run, lives
        self._flows = list(flows)
        self._logs = {sink: opened[sink.path] for flow, opened in zip(flows, logs, strict=True) for sink in flow.sinks}

    def __repr__(self) -> str:
        """Return the dataflows, and how far their outputs are as was read last; asks nobody, never fails."""
        names = ", ".join(repr(flow.name) for flow in self._flows)
        uppers: dict[str, None] = {}
        for sink, log in self._logs.items():
            state = log.core.known_stream(sink.stream)
            if state is not None:
                uppers[log.domain.show_frontier(state.frontier)] = None
        known = f", uppers={', '.join(uppers)}" if uppers else ""
        return f"{type(self).__name__}({names}, outputs={len(self._logs)}{known})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: whether the query runs, and each dataflow with its progress. Never fails."""
        return shown_in_notebook(self, self._page)

    def _page(self) -> str:
        state = "runs" if self.is_active else "has ended"
        flows = [
            explain.html(flow, f"Dataflow {flow.name}", done={each.operator: each for each in flow.progress()})
            for flow in self._flows
        ]
        return page(f"Query {self.id} {state}", *flows)

    @property
    def id(self) -> str:
        """Id of the query."""
        return str(self.query.id)

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""
        return bool(self.query.isActive)

    @property
    def frontier(self) -> Antichain:
        """The meet of the outputs' uppers: times not beyond it are complete in all of them.

        Raises
        ------
        InvalidUsageError
            If dataflows of the query have times of different types: ask their probes.
        """
        first, *others = [self._upper(sink) for sink in self._logs]
        if len({sink.view.domain.types for sink in self._logs}) > 1:
            msg = "could not tell the frontier of the query: found dataflows with times of different types"
            raise InvalidUsageError(msg, hint="ask the probe of a stream")
        for other in others:
            first = first.meet(other)
        return first

    def failures(self) -> list[OutputFailure]:
        """Return why outputs stopped in this run: one for each whose functions, files or inputs failed.

        Those that are made from such an output stop too, and are not among them: `explain` says what holds them.
        A failure of a job or of the storage is among them until it has passed: it is tried again, after pauses of half
        a second to a minute. What a function made fail a start of the dataflow tries again.
        """
        for log in self._logs.values():
            log.refresh()
        return self._seen_failures()

    def _seen_failures(self, wanted: Time | None = None) -> list[OutputFailure]:
        """Return failures as of the last look; of outputs only in which a time is not complete, if one is given."""
        found = []
        for sink, log in self._logs.items():
            state = log.core.stream(sink.stream)
            if wanted is None or state is None or state.frontier.less_equal(wanted):
                found.append(failure_of(log, sink, run=self._run))
        return [each for each in found if each is not None]

    def _upper(self, sink: Sink) -> Antichain:
        log = self._logs[sink]
        log.refresh()
        state = log.core.stream(sink.stream)
        return log.domain.minimum_frontier if state is None else state.frontier

    def await_frontier(self, time: TimeLike, /, *, timeout_s: float = 60.0) -> Antichain:
        """Wait until a time is complete in all outputs.

        Parameters
        ----------
        time : time
        timeout_s : float
            How long to wait, in seconds.

        Returns
        -------
        Antichain
            The frontier that was found.

        Raises
        ------
        WaitTimeoutError
            If it is not complete in time, or the query has ended before.
        OperatorError, DataLossError
            If an output stops before it, in a query that continues, and does not move again by itself: see
            `failures`.
        pyspark.errors.StreamingQueryException
            If the query failed.
        """
        domain = next(iter(self._logs)).view.domain
        wanted = domain.parse_time(time)
        wait_s = seconds_of(f"could not wait for time={shown(domain.render_time(wanted))}", "timeout_s", timeout_s)
        asks, active = Throttle(_LOOK_S), True
        found, failures = domain.minimum_frontier, list[OutputFailure]()

        def look(left_s: float) -> bool:
            nonlocal active, found, failures
            if left_s <= 0 or asks.due():
                active = self.is_active
                asks.done()
            found = self.frontier
            if not found.less_equal(wanted):
                return True
            # One that failed past the time keeps nobody waiting; one that may pass is waited for.
            failures = self._seen_failures(wanted) if self._lives else []
            _raise([failure for failure in failures if not passes(failure.kind)])
            return not active

        wait_until(look, timeout_s=wait_s, poll_s=_POLL_S)
        if not found.less_equal(wanted):
            return found
        self._raise_exception()
        at = domain.render_frontier(found)
        ended = "" if active else ", and the query has ended"
        asked_for = shown(domain.render_time(wanted))
        msg = f"could not wait for time={asked_for}: found outputs at frontier={at}{ended}"
        error = WaitTimeoutError(msg, hint="call explain(): it names the input that holds them back", frontier=at)
        for failure in failures:
            error.add_note(f"tried again: {failure.error}")
        raise error

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait, in seconds; for ever if not given.

        Returns
        -------
        bool
            Whether it has.

        Raises
        ------
        pyspark.errors.StreamingQueryException
            If it failed. Where an error of this library ended it, it is that error too, such as a
            `SinceViolationError`, with its text alone.
        OperatorError, DataLossError
            If it was stopped, and an output had stopped: see `failures`.
        """
        from pyspark.errors import StreamingQueryException

        wait_s = seconds_of(f"could not wait for query {self.query.id}", "timeout_s", timeout_s, optional=True)
        try:
            if wait_s > threading.TIMEOUT_MAX:
                self.query.awaitTermination()
                ended = True
            else:
                ended = bool(self.query.awaitTermination(max(1, math.ceil(wait_s))))
        except StreamingQueryException as error:
            raise query_error(error) from None
        if ended:
            _raise(self.failures())
        return ended

    def result(self, log: str | None = None, /) -> DataFrame:
        """Wait until the query has ended, and return what all workers together have written.

        Parameters
        ----------
        log : str, optional
            Path of the output; need not be given where there is one only.

        Returns
        -------
        pyspark.sql.DataFrame
            The rows of all complete times of the output's log, with their times. Those of an input that is still
            open are not among them: a query that ends closes nothing.

        Raises
        ------
        InvalidUsageError
            If there is no such output, or several and none is named.
        pyspark.errors.StreamingQueryException
            If the query failed.
        """
        paths = {sink.path: sink for sink in self._logs if not sink.kept}
        if log is None and len(paths) == 1:
            path: str | None = next(iter(paths))
        else:
            asked = None if log is None else normal_path(log)
            path = next((path for path in paths if asked is not None and same_place(path, asked)), None)
        if path is None:
            msg = f"could not give the result: found outputs {shown(list(paths))}, asked for {shown(log)}"
            raise InvalidUsageError(msg, hint="name one of them")
        self.await_termination()
        reader = self._spark.read.format("timely").options(
            **stored(self._spark, self._logs[paths[path]].core.storage_options)
        )
        return reader.load(path)

    def explain(self) -> str:
        """Return the plans of the dataflows: see `Dataflow.explain`."""
        return "\n".join(flow.explain() for flow in self._flows)

    def progress(self) -> list[OutputProgress]:
        """Return how far the outputs have come: see `Dataflow.progress`."""
        return [each for flow in self._flows for each in flow.progress()]

    def metrics(self) -> list[OperatorMetrics]:
        """Return the numbers of the dataflows: see `Dataflow.metrics`. Spark's ``numInputRows`` counts none of them."""
        return [each for flow in self._flows for each in flow.metrics()]

    def drop(self, flow: Dataflow | str, /) -> None:
        """Stop one of the dataflows of the query without finishing it; the others continue.

        When this returns nothing of this query is appended to its outputs any more: work that is under way is thrown
        away. Their frontiers stay where they are, and a later start of the dataflow continues from there.

        Parameters
        ----------
        flow : Dataflow or str
            One that the query hosts, or its name.

        Raises
        ------
        InvalidUsageError
            If the query does not host it, or nothing else.

        Examples
        --------
        ::

            query = hourly.start(spark, beside=[daily])
            query.drop(daily)
            daily.start(spark)  # elsewhere, whenever you like
        """
        name = flow if isinstance(flow, str) else getattr(flow, "name", None)
        names = [each.name for each in self._flows]
        if name not in names:
            msg = f"could not drop {shown(flow)}: found dataflows {shown(names)}"
            raise InvalidUsageError(msg, hint="name one that the query hosts")
        if len(names) == 1:
            msg = f"could not drop dataflow {name!r}: found nothing else in the query"
            raise InvalidUsageError(msg, hint="stop the query")
        dropped = self._flows[names.index(name)]
        for sink in dropped.sinks:
            drop_output(self._logs[sink], sink, self._run)
        dropped.drop_kept()
        self._flows.remove(dropped)
        self._logs = {sink: log for sink, log in self._logs.items() if sink not in dropped.sinks}

    def allow_writes(self) -> None:
        """Let the continual tasks of the query write that were started read-only: in about a second they do.

        There is no way back but to stop the query.

        Raises
        ------
        StorageError
            If it could not be written into the checkpoint, from where the query reads it.
        """
        checkpoint = self._flows[0].checkpoint
        options = next(
            (dict(flow.storage[at]) for flow in self._flows if (at := nearest_log(checkpoint, flow.storage))), {}
        )
        storage = open_storage(checkpoint, options or None, literal=True)
        storage.put(_marker(self._run), b"", replace=True)

    def stop(self) -> None:
        """Stop the query; a later start continues where its outputs are.

        Does not say what failed, so that it hides no other error: `await_termination` does, and `failures`.
        """
        self.query.stop()
        self._end()

    def _raise_exception(self) -> None:
        error = self.query.exception()
        if error is not None:
            raise error


def _raise(failures: Sequence[OutputFailure]) -> None:
    errors = [failure.error for failure in failures]
    if errors:
        for other in errors[1:]:
            errors[0].add_note(str(other))
        raise errors[0]
