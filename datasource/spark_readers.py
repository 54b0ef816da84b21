"""The readers that Spark calls: for a streaming replay, a batch one, dead letters and a clock.

`source` makes them. They put other modules behind Spark's interfaces: offsets and plans are those of `planner`,
`letters` and `clock`, and the files of a split are read by `reader`.

Life of a reader: one instance, in the planner process of a query's run, answers for offsets and plans;
a pickled copy of another one reads in the executors. Nothing is shared between them but the options and
the layout, so `read` needs no log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from spark_timely.datasource.clock import Alarm, Clock
from spark_timely.spark.base.compat import AvailableNow, carrier_limit, reads_all
from spark_timely.spark.base.shipping import Shipped
from spark_timely.spark.base.worker import settle_worker, short_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from spark_timely.conf.options import SourceOptions
    from spark_timely.datasource.letters import Letters, LetterSplit
    from spark_timely.datasource.planner import ReplayPlanner
    from spark_timely.datasource.retaining import RetainedPosition
    from spark_timely.datasource.splits import ReplayLayout, Split


class TimelyPartition(InputPartition):
    """One split of a micro-batch, as Spark passes it to a task.

    Parameters
    ----------
    split : Split
    """

    def __init__(self, split: Split) -> None:
        super().__init__(split.number)
        self.split = split


@short_errors
class _Reading(Shipped):
    """The base of both readers: the planner, made when it is needed, and the work of a task."""

    def __init__(self, options: SourceOptions, layout: ReplayLayout) -> None:
        self._options = options
        self._layout = layout
        self._planner: ReplayPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the planner and its open log behind."""
        return {"_options": self._options, "_layout": self._layout, "_planner": None}

    @property
    def planner(self) -> ReplayPlanner:
        """The planner of this process; opens the log at first use."""
        if self._planner is None:
            from spark_timely.datasource.planner import ReplayPlanner
            from spark_timely.log.log import open_log

            log = open_log(self._options.path, storage_options=self._options.storage_options or None)
            self._planner = ReplayPlanner(log, self._options, self._layout, retained=self._retained())
        return self._planner

    def _retained(self) -> RetainedPosition | None:
        """Return what keeps the log for the query; None where that is not asked for."""
        return None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give out the rows of one split, or the split itself with ``content=splits``."""
        # Here, for a clock needs none of it; before what is loaded is taken out of garbage collection.
        from spark_timely.datasource.reader import read_split
        from spark_timely.datasource.splits import split_batch
        from spark_timely.log.store.cloud import open_storage

        settle_worker()
        # Spark makes a partition of its own where there are none.
        if not isinstance(partition, TimelyPartition):
            return
        if self._layout.content == "splits":
            yield split_batch(partition.split, self._layout)
            return
        storage = open_storage(partition.split.root, self._options.storage_options or None)
        yield from read_split(partition.split, self._layout, storage=storage)


@short_errors
class TimelyStreamReader(_Reading, DataSourceStreamReader, AvailableNow):
    """Streaming replay of a log.

    Parameters
    ----------
    options : SourceOptions
    layout : ReplayLayout
        Columns to give out.

    Notes
    -----
    Picklable; opens the log only where a plan is asked for.
    """

    def initialOffset(self) -> dict[str, object]:
        """Return where a fresh checkpoint begins: a constant, Spark asks for it several times."""
        return self.planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit that stands for those of the options."""
        return carrier_limit(limited=self.planner.limited)

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, object]:
        """Return where the next micro-batch ends; `start` itself where nothing is new."""
        return self.planner.latest(start, limited=not reads_all(limit))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends. The limits of the options stay."""
        self.planner.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, object]:
        """Return how far the log is and how far behind the query; shown in ``lastProgress``."""
        return self.planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits between two offsets, from these alone."""
        return [TimelyPartition(split) for split in self.planner.plan(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Let the log forget what is done with, as far as this query is concerned."""
        self.planner.commit(end)

    def stop(self) -> None:
        """Let go of the log; what the query has not read is kept until its retainer expires."""
        if self._planner is not None:
            self._planner.end()
        self._planner = None

    def _retained(self) -> RetainedPosition | None:
        from spark_timely.datasource.retaining import retained_of

        return retained_of(self._options)


@short_errors
class EarlierStreamReader(TimelyStreamReader):
    """Streaming replay for a Spark whose `latestOffset` has no arguments (4.0, 4.1).

    The start is what was planned last: Spark plans an empty range at the checkpoint's offset when it
    restarts.
    """

    _planned: dict[str, Any] | None = None

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        """Return where the next micro-batch ends."""
        return self.planner.latest(self._planned or self.initialOffset())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits between two offsets, and remember the end."""
        self._planned = end
        return super().partitions(start, end)


@short_errors
class TimelyBatchReader(_Reading, DataSourceReader):
    """Replay of what a log holds now: all closed times, or under ``arrival`` everything.

    Parameters
    ----------
    options : SourceOptions
    layout : ReplayLayout
        Columns to give out.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits of the read."""
        return [TimelyPartition(split) for split in self.planner.plan_batch()]


class LetterPartition(InputPartition):
    """Some dead letters, as Spark passes them to a task.

    Parameters
    ----------
    split : LetterSplit
    """

    def __init__(self, number: int, split: LetterSplit) -> None:
        super().__init__(number)
        self.split = split


@short_errors
class _ReadingLetters(Shipped):
    """The base of both readers of dead letters."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._letters: Letters | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open log behind."""
        return {"_options": self._options, "_schema": self._schema, "_letters": None}

    @property
    def letters(self) -> Letters:
        """The planner of this process; opens the log at first use."""
        if self._letters is None:
            from spark_timely.datasource.letters import Letters
            from spark_timely.log.log import open_log

            log = open_log(self._options.path, storage_options=self._options.storage_options or None)
            self._letters = Letters(log, self._options.stream_filter, self._schema)
        return self._letters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give out the letters of one split."""
        from spark_timely.log.store.cloud import open_storage

        settle_worker()
        if isinstance(partition, LetterPartition):
            split = partition.split
            yield from split.read(open_storage(split.root, self._options.storage_options or None))


@short_errors
class LetterBatchReader(_ReadingLetters, DataSourceReader):
    """All dead letters of a log.

    Parameters
    ----------
    options : SourceOptions
    schema : pyarrow.Schema
        Columns to give out.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits of the read."""
        return [LetterPartition(number, split) for number, split in enumerate(self.letters.plan_batch())]


@short_errors
class LetterStreamReader(_ReadingLetters, DataSourceStreamReader, AvailableNow):
    """Dead letters of a log, in the order of its commits.

    Parameters
    ----------
    options : SourceOptions
    schema : pyarrow.Schema
        Columns to give out.
    """

    def initialOffset(self) -> dict[str, object]:
        """Return where a fresh checkpoint begins: before all letters."""
        return self.letters.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return that nothing is limited."""
        return carrier_limit(limited=False)

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, object]:
        """Return where the next micro-batch ends; `start` itself where there are no new letters."""
        del limit
        return self.letters.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what the query will read."""
        self.letters.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, object]:
        """Return how many letters there are; shown in ``lastProgress``."""
        return self.letters.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits between two offsets."""
        return [LetterPartition(number, split) for number, split in enumerate(self.letters.plan(start, end))]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: letters stay as long as the log keeps them."""

    def stop(self) -> None:
        """Let go of the log."""
        self._letters = None


@short_errors
class EarlierLetterReader(LetterStreamReader):
    """Dead letters for a Spark whose `latestOffset` has no arguments (4.0, 4.1)."""

    _planned: dict[str, Any] | None = None

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        """Return where the next micro-batch ends."""
        return self.letters.latest(self._planned or self.initialOffset())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the splits between two offsets, and remember the end."""
        self._planned = end
        return super().partitions(start, end)


class ClockPartition(InputPartition):
    """The rows of a clock's micro-batch, few and small: they travel with the plan.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__(0)
        self.rows = rows


@short_errors
class ClockStreamReader(Shipped, DataSourceStreamReader, AvailableNow):
    """A clock over some logs.

    Parameters
    ----------
    options : SourceOptions
    storage : mapping of str to dict
        Storage options of the logs and of the checkpoint, by path: see `storage_of_logs`.
    """

    def __init__(self, options: SourceOptions, storage: Mapping[str, dict[str, str]]) -> None:
        self._options = options
        self._storage = dict(storage)
        self._clock: Clock | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the clock and its open logs behind."""
        return {"_options": self._options, "_storage": self._storage, "_clock": None}

    @property
    def clock(self) -> Clock:
        """The clock of this process; opens the logs at first use."""
        if self._clock is None:
            from spark_timely.log.log import open_log
            from spark_timely.log.wait import idle_poll_s

            options = self._options
            paths = dict.fromkeys([options.path, *(options.logs or ())])
            logs = [open_log(path, storage_options=self._storage[path]) for path in paths]
            run, alarm = options.run or "", None
            if options.alarm is not None:
                alarm = Alarm(options.alarm, run, self._storage[options.alarm])
            every_s = options.poll_interval.seconds
            idle_s = 0.0 if "poll_interval" in options.given else idle_poll_s(logs)
            self._clock = Clock(logs, run=run, poll_s=every_s, idle_poll_s=idle_s, alarm=alarm)
        return self._clock

    def initialOffset(self) -> dict[str, object]:
        """Return where a fresh checkpoint begins: nothing is known."""
        return self.clock.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return that nothing is limited."""
        return carrier_limit(limited=False)

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, object]:
        """Return how far the logs are; `start` itself where there is no reason for a micro-batch."""
        del limit
        return self.clock.latest(start)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what the query will read."""
        self.clock.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, object]:
        """Return how far the logs are."""
        return self.clock.latest(self.clock.initial())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition with a row for each log that moved."""
        return [ClockPartition(self.clock.rows(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give out the rows."""
        if isinstance(partition, ClockPartition) and partition.rows.num_rows:
            yield partition.rows

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: there is nothing to let go of."""

    def stop(self) -> None:
        """Let go of the logs."""
        self._clock = None


@short_errors
class EarlierClockReader(ClockStreamReader):
    """A clock for a Spark whose `latestOffset` has no arguments (4.0, 4.1)."""

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        """Return how far the logs are."""
        return self.clock.latest(self.clock.initial())
