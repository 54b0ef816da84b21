"""A running dataflow: how far its outputs are, which of them stand still, and how to wait, stop and drop."""

from __future__ import annotations

import math
import time as monotonic
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_timely.dataflow.logs import open_logs
from spark_timely.dataflow.notes import failure_of
from spark_timely.dataflow.outputs import drop_output, passes
from spark_timely.errors import InvalidUsageError, WaitTimeoutError, shown
from spark_timely.log.store.storage import normal_path
from spark_timely.protocol.note import OutputFailure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_timely.dataflow.logs import Sink
    from spark_timely.dataflow.report import OperatorMetrics, OutputProgress
    from spark_timely.spark.dataflow import Dataflow
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.arrays import Time

__all__ = ["DataflowQuery"]

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
        Whether the query goes on where an output stands still.

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
        *,
        run: str = "",
        lives: bool = False,
    ) -> None:
        self.query = query
        self._spark = spark
        self._run, self._lives = run, lives
        self._flows = list(flows)
        opened = [open_logs(flow.sinks, flow.storage) for flow in flows]
        self._logs = {sink: logs[sink.path] for flow, logs in zip(flows, opened, strict=True) for sink in flow.sinks}

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
        """Return why outputs stand still in this run: one for each whose functions, files or inputs failed.

        Those that are made from such an output stand still too, and are not among them: `explain` says what holds them.
        A failure of a job or of the storage is among them until it has passed: it is tried again, after pauses of half
        a second to a minute. What a function made fail a start of the dataflow tries again.
        """
        for log in self._logs.values():
            log.refresh()
        return self._seen_failures()

    def _seen_failures(self, wanted: Time | None = None) -> list[OutputFailure]:
        """Return failures as of the last look; of outputs only in which a time is not complete, if one is given."""
        found = []
        for sink, log in self._logs.items():  # one turn per output
            state = log.stream(sink.stream)
            if wanted is None or state is None or state.frontier.less_equal(wanted):
                found.append(failure_of(log, sink, run=self._run))
        return [each for each in found if each is not None]

    def _upper(self, sink: Sink) -> Antichain:
        log = self._logs[sink]
        log.refresh()
        state = log.stream(sink.stream)
        return log.domain.minimum_frontier if state is None else state.frontier

    def await_frontier(self, time: object, /, *, timeout_s: float = 60.0) -> Antichain:
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
            If an output stands still before it, in a query that goes on, and does not move again by itself: see
            `failures`.
        pyspark.errors.StreamingQueryException
            If the query failed.
        """
        domain = next(iter(self._logs)).view.domain
        wanted = domain.parse_time(time)
        deadline = monotonic.monotonic() + float(timeout_s)
        asked, active = -math.inf, True
        while True:  # as many turns as looks
            now = monotonic.monotonic()
            if now - asked >= _LOOK_S or now >= deadline:
                active, asked = self.is_active, now
            found = self.frontier
            if not found.less_equal(wanted):
                return found
            # One that failed past the time keeps nobody waiting; one that may pass is waited for.
            failures = self._seen_failures(wanted) if self._lives else []
            _raise([failure for failure in failures if not passes(failure.kind)])
            if not active or now >= deadline:
                self._raise_exception()
                at = domain.render_frontier(found)
                ended = "" if active else ", and the query has ended"
                asked_for = shown(domain.render_time(wanted))
                msg = f"could not wait for time={asked_for}: found outputs at frontier={at}{ended}"
                error = WaitTimeoutError(msg, hint="explain() tells which input holds them back", frontier=at)
                for failure in failures:
                    error.add_note(f"tried again: {failure.error}")
                raise error
            monotonic.sleep(min(_POLL_S, max(deadline - now, 0.0)))

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
            If it failed.
        OperatorError, DataLossError
            If it was stopped, and an output stood still: see `failures`.
        """
        if timeout_s is None:
            self.query.awaitTermination()
            ended = True
        else:
            ended = bool(self.query.awaitTermination(max(1, math.ceil(timeout_s))))
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
        paths = {sink.path: sink for sink in self._logs}
        if log is None and len(paths) == 1:
            path = next(iter(paths))
        elif log is not None and normal_path(log) in paths:
            path = normal_path(log)
        else:
            msg = f"could not give the result: found outputs {shown(list(paths))}, asked for {shown(log)}"
            raise InvalidUsageError(msg, hint="name one of them")
        self.await_termination()
        reader = self._spark.read.format("timely")
        for name, value in self._logs[paths[path]].storage_options.items():
            reader = reader.option(f"storage.{name}", value)
        return reader.load(path)

    def explain(self) -> str:
        """Return the plans of the dataflows: see `Dataflow.explain`."""
        return "\n".join(flow.explain() for flow in self._flows)

    def progress(self) -> list[OutputProgress]:
        """Return how far the outputs have come: see `Dataflow.progress`."""
        return [each for flow in self._flows for each in flow.progress()]

    def metrics(self) -> list[OperatorMetrics]:
        """Return the numbers of the dataflows: see `Dataflow.metrics`. Spark's ``numInputRows`` is a clock's: 0."""
        return [each for flow in self._flows for each in flow.metrics()]

    def drop(self, flow: Dataflow | str, /) -> None:
        """Stop one of the dataflows of the query without finishing it; the others go on.

        When this returns nothing of this query is appended to its outputs any more: work that is under way is thrown
        away. Their frontiers stay where they are, and a later start of the dataflow goes on from there.

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
        for sink in dropped.sinks:  # one turn per output
            drop_output(self._logs[sink], sink, self._run)
        self._flows.remove(dropped)
        self._logs = {sink: log for sink, log in self._logs.items() if sink not in dropped.sinks}

    def stop(self) -> None:
        """Stop the query; a start goes on where its outputs are.

        Does not say what failed, so that it hides no other error: `await_termination` does, and `failures`.
        """
        self.query.stop()

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
