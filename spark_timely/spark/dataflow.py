"""Run a dataflow as a streaming query: a clock as its source, `foreachBatch` as what does the work.

Spark's offsets and checkpoint decide nothing but when to look: what was done stands in the outputs' logs.
Losing the checkpoint costs one look.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_timely.antichain import Antichain
from spark_timely.capture.replay import Limits
from spark_timely.dataflow.engine import Engine
from spark_timely.dataflow.scope import Scope, Sink, open_output
from spark_timely.dataflow.views import leaves_of
from spark_timely.errors import InvalidUsageError, WaitTimeoutError, shown
from spark_timely.log.waiting import passes, wait_for
from spark_timely.spark.dataflow_tasks import SparkTasks, catalog_of
from spark_timely.spark.session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_timely.log.delta import DeltaLog

__all__ = ["Dataflow", "DataflowQuery"]

_LOOK_S = 2.0


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
        late = flow.replay("/data/flights").filter(pc.field("arr_delay") > 15)
        hours = late.aggregate(by="origin", n=spark_timely.count(), worst=spark_timely.max("arr_delay"))
        hours.capture("/data/delays")
        query = flow.start(spark, trigger={"availableNow": True})
        query.await_termination()
    """

    def __init__(self, name: str, *, checkpoint: str) -> None:
        super().__init__(name)
        if not isinstance(checkpoint, str) or not checkpoint.strip():
            msg = f"could not begin dataflow {name!r}: found checkpoint={shown(checkpoint)}"
            raise InvalidUsageError(msg, hint="give the location of the query's checkpoint")
        self.checkpoint = checkpoint

    def start(
        self,
        spark: SparkSession,
        /,
        *,
        trigger: Mapping[str, object] | None = None,
        workers: int | None = None,
        max_times_per_step: int | None = None,
        max_bytes_per_step: int | None = None,
    ) -> DataflowQuery:
        """Start the streaming query that runs the dataflow.

        Logs of outputs are made if they are not there. A step is taken at once, whether or not an input
        moved since the last run.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            Classic or Connect.
        trigger : mapping, optional
            What ``DataStreamWriter.trigger`` takes; Spark's default if not given.
        workers : int, optional
            Tasks per output and step at most; by bytes, at most 16, if not given.
        max_times_per_step, max_bytes_per_step : int, optional
            How much of an output's waiting times one step takes: one commit each.

        Returns
        -------
        DataflowQuery

        Raises
        ------
        InvalidUsageError
            If nothing is captured, or a number does not fit.
        OwnershipError
            If an output belongs to another dataflow or query.
        SchemaMismatchError
            If an output's log has other columns or times.
        """
        if not self.sinks:
            msg = f"could not start dataflow {self.name!r}: found nothing that is captured"
            raise InvalidUsageError(msg, hint="capture at least one stream into a log")
        numbers = {
            "workers": workers,
            "max_times_per_step": max_times_per_step,
            "max_bytes_per_step": max_bytes_per_step,
        }
        for what, number in numbers.items():
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                msg = f"could not start dataflow {self.name!r}: found {what}={shown(number)}"
                raise InvalidUsageError(msg, hint="give whole numbers from 1 on")
        logs = {sink: open_output(sink, self.storage[sink.path]) for sink in self.sinks}
        register(spark)
        own = {sink.path for sink in self.sinks}
        watched = {leaf.path: None for sink in self.sinks for leaf in leaves_of(sink.view)}
        # Outputs that are read again are looked at in each step: only what others write needs a clock.
        first, *others = [path for path in watched if path not in own]
        reader = spark.readStream.format("timely").option("content", "clock").option("run", uuid.uuid4().hex)
        if others:
            reader = reader.option("logs", json.dumps(others))
        for name, value in self.storage[first].items():
            reader = reader.option(f"storage.{name}", value)
        limits = Limits(times=max_times_per_step, size_bytes=max_bytes_per_step)
        step = _MicroBatch(self.name, tuple(self.sinks), dict(self.storage), limits, workers)
        writer = reader.load(first).writeStream.foreachBatch(step).option("checkpointLocation", self.checkpoint)
        if trigger:
            keywords: dict[str, Any] = dict(trigger)
            writer = writer.trigger(**keywords)
        return DataflowQuery(writer.start(), logs)


@dataclass
class _MicroBatch:
    """The function for foreachBatch: takes steps until nothing is ready. Pickled by Connect."""

    name: str
    sinks: tuple[Sink, ...]
    storage: dict[str, dict[str, str]]
    limits: Limits
    workers: int | None
    engine: Engine | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "engine": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        del batch_id
        if self.engine is None:
            self.engine = Engine(
                self.name,
                self.sinks,
                self.storage,
                files_of=catalog_of,
                limits=self.limits,
                workers=self.workers,
            )
        self.engine.advance(SparkTasks(df.sparkSession, self.storage))


class DataflowQuery:
    """A running dataflow: Spark's streaming query, and how far its outputs are. Made by `Dataflow.start`.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        Spark's own handle.
    logs : mapping of Sink to Log
        The outputs.

    Examples
    --------
    ::

        query = flow.start(spark)
        query.await_frontier(7, timeout_s=60)
        query.stop()
    """

    def __init__(self, query: StreamingQuery, logs: Mapping[Sink, DeltaLog]) -> None:
        self.query = query
        self._logs = dict(logs)

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
        """The meet of the outputs' uppers: times not beyond it are complete in all of them."""
        found: Antichain | None = None
        for sink, log in self._logs.items():  # one turn per output
            log.refresh()
            state = log.stream(sink.stream)
            upper = log.domain.minimum_frontier if state is None else state.frontier
            found = upper if found is None else found.meet(upper)
        assert found is not None
        return found

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
        pyspark.errors.StreamingQueryException
            If the query failed.
        """
        domain = next(iter(self._logs.values())).domain
        reached = passes(domain, time=time)
        left = float(timeout_s)
        while True:  # as many turns as looks
            active = self.is_active
            slice_s = min(left, _LOOK_S) if active else 0.0
            if wait_for(list(self._logs.values()), reached, timeout_s=slice_s, poll_s=0.05):
                return self.frontier
            left -= slice_s
            if not active or left <= 0:
                self._raise_failure()
                at = domain.render_frontier(self.frontier)
                ended = "" if active else ", and the query has ended"
                msg = f"could not wait for time={shown(time)}: found outputs at frontier={at}{ended}"
                raise WaitTimeoutError(msg, hint="see how far the inputs are: an open input holds it back", frontier=at)

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
        """
        if timeout_s is None:
            self.query.awaitTermination()
            return True
        return bool(self.query.awaitTermination(max(1, math.ceil(timeout_s))))

    def stop(self) -> None:
        """Stop the query; a start goes on where its outputs are."""
        self.query.stop()

    def _raise_failure(self) -> None:
        error = self.query.exception()
        if error is not None:
            raise error
