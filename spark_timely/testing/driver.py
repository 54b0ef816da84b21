"""A driver for stream readers: calls them as Spark's micro-batch execution does, without a JVM.

The order of calls is Spark's: `initialOffset` twice for a fresh checkpoint, `latestOffset` and
`reportLatestOffset` for each trigger, `commit` of the micro-batch before, `partitions`, and `read` once per
partition on a pickled copy. Offsets go through JSON text, partitions and readers through pickle. A crash
forgets everything but the checkpoint; the last micro-batch is then planned again from its logged offsets.

For tests of readers, those of users and of this library's replay source: `StreamDriver` needs nothing of Spark, and
drives any object with the methods of `DataSourceStreamReader`. A `ManualClock` is a wall clock that moves only when a
test sets it. Tests of dataflows need neither (`testing.tables`).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from spark_timely.conf.kinds import seconds_of

__all__ = ["Checkpoint", "ManualClock", "MicroBatch", "StreamDriver", "StreamReader"]


class ManualClock:
    """Stand in for ``time.time`` wherever the library takes a ``clock``.

    Parameters
    ----------
    now : float
        First reading, in seconds since the epoch (UTC).

    Examples
    --------
    >>> clock = ManualClock(now=10.0)
    >>> clock.advance(2.5)
    >>> clock()
    12.5
    """

    __slots__ = ("_now",)

    def __init__(self, *, now: float = 0.0) -> None:
        self.set(now)

    def __call__(self) -> float:
        """Return the present reading, in seconds.

        Examples
        --------
        >>> ManualClock(now=3.0)()
        3.0
        """
        return self._now

    def advance(self, seconds: float, /) -> None:
        """Move the clock on.

        Parameters
        ----------
        seconds : float
            How far, at least 0.

        Raises
        ------
        InvalidUsageError
            If `seconds` is negative, or no number: a test that wants a clock that was set back says so with `set`.

        Examples
        --------
        >>> clock = ManualClock()
        >>> clock.advance(1)
        >>> clock()
        1.0
        """
        hint = "give a number of seconds, 0 or more; use set() for a clock that is set back"
        self._now += seconds_of("could not advance the clock", "seconds", seconds, hint=hint)

    def set(self, now: float, /) -> None:
        """Put the clock to a reading, also an earlier one.

        Parameters
        ----------
        now : float
            Seconds since the epoch.

        Raises
        ------
        InvalidUsageError
            If `now` is negative, or no number.

        Examples
        --------
        >>> clock = ManualClock(now=5.0)
        >>> clock.set(1.0)
        >>> clock()
        1.0
        """
        self._now = seconds_of("could not set the clock", "now", now)


class StreamReader(Protocol):
    """The methods of a stream reader that the driver calls."""

    def initialOffset(self) -> dict[str, Any]:
        """Return where a fresh checkpoint begins."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ANN401 - Spark's class
        """Return where the next micro-batch ends."""

    def getDefaultReadLimit(self) -> Any:  # noqa: ANN401 - Spark's class
        """Return the limit that holds unless the trigger says otherwise."""

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the source is."""

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        """Return what each task reads."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Spark's class
        """Return the rows of one task."""

    def commit(self, end: dict[str, Any]) -> None:
        """Take notice that everything up to an offset is done."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint, which survives a crash: the logs of offsets and of commits.

    Attributes
    ----------
    offsets : list of str
        JSON text of the end offset of each micro-batch.
    n_committed : int
        How many of them are done.
    """

    offsets: list[str] = field(default_factory=list)
    n_committed: int = 0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch as a sink gets it.

    Attributes
    ----------
    number : int
    start, end : str
        JSON texts of its offsets; `start` of the first one is what the reader said, logged nowhere.
    tasks : tuple of pyarrow.Table
        Rows of each task.
    report : dict or None
        What the reader reported when the micro-batch was decided; None when it was planned again.
    """

    number: int
    start: str
    end: str
    tasks: tuple[pa.Table, ...]
    report: dict[str, Any] | None = None

    @property
    def rows(self) -> pa.Table:
        """Rows of all tasks."""
        return pa.concat_tables(self.tasks)


class StreamDriver:
    """A query over one stream reader.

    Parameters
    ----------
    make_reader : callable
        Makes a reader, as a new planner process would.
    schema : pyarrow.Schema
        Every record batch must have exactly this schema.
    checkpoint : Checkpoint, optional
        To continue from; a fresh one unless given.

    Examples
    --------
    ::

        driver = StreamDriver(lambda: source.streamReader(schema), schema=layout.schema)
        for batch in driver.available_now():
            print(batch.number, batch.rows.num_rows)
    """

    def __init__(
        self, make_reader: Callable[[], StreamReader], *, schema: pa.Schema, checkpoint: Checkpoint | None = None
    ) -> None:
        self._make_reader = make_reader
        self._schema = schema
        self.checkpoint = Checkpoint() if checkpoint is None else checkpoint
        self._reader: StreamReader | None = None
        self._limit: Any = None

    def crash(self) -> None:
        """Forget everything but the checkpoint."""
        self._reader = None

    def available_now(self, *, fail_after: int | None = None) -> list[MicroBatch]:
        """Run with Trigger.AvailableNow to the end, from wherever the checkpoint is.

        Parameters
        ----------
        fail_after : int, optional
            Crash in the micro-batch after this number of them, when it was read and before it is committed. The
            rows read are given out: a sink may have got them.

        Returns
        -------
        list of MicroBatch
        """
        self.crash()
        reader = self._started()
        reader.prepareForTriggerAvailableNow()
        found: list[MicroBatch] = []
        while (batch := self.run_one(commit=fail_after is None or len(found) < fail_after)) is not None:
            found.append(batch)
            if fail_after is not None and len(found) > fail_after:
                self.crash()
                break
        return found

    def run_one(self, limit: object | None = None, *, commit: bool = True) -> MicroBatch | None:
        """Run one trigger.

        Parameters
        ----------
        limit : object, optional
            Read limit of the trigger; the reader's own unless given.
        commit : bool
            Whether the micro-batch is committed afterwards.

        Returns
        -------
        MicroBatch or None
            None where Spark would run nothing: the offset did not move. The first micro-batch always runs.
        """
        reader, log = self._started(), self.checkpoint
        report = None
        if len(log.offsets) == log.n_committed:
            start = log.offsets[-1] if log.offsets else self._text(reader.initialOffset())
            end = self._text(reader.latestOffset(json.loads(start), self._limit if limit is None else limit))
            report = reader.reportLatestOffset()
            if log.offsets and start == end:
                return None
            log.offsets.append(end)
            if len(log.offsets) > 1:
                reader.commit(json.loads(log.offsets[-2]))
        number = len(log.offsets) - 1
        start = log.offsets[number - 1] if number else self._text(reader.initialOffset())
        batch = self._run(reader, number, start, log.offsets[number], report)
        if commit:
            log.n_committed = len(log.offsets)
        return batch

    def _run(
        self, reader: StreamReader, number: int, start: str, end: str, report: dict[str, Any] | None
    ) -> MicroBatch:
        partitions = reader.partitions(json.loads(start), json.loads(end))
        # Tasks read with a copy of another reader, made when the query was planned.
        copy = pickle.dumps(self._make_reader())
        tasks = [self._task(pickle.loads(copy), pickle.dumps(partition)) for partition in partitions]
        return MicroBatch(number, start, end, (self._schema.empty_table(), *tasks), report)

    def _task(self, reader: StreamReader, partition: bytes) -> pa.Table:
        batches = list(reader.read(pickle.loads(partition)))
        for batch in batches:
            if not batch.schema.equals(self._schema):
                msg = f"a record batch has not exactly the declared schema: {batch.schema} instead of {self._schema}"
                raise AssertionError(msg)
            batch.validate(full=True)
        return pa.Table.from_batches(batches, self._schema)

    def _started(self) -> StreamReader:
        if self._reader is None:
            self._reader = self._make_reader()
            self._limit = self._reader.getDefaultReadLimit()
            if self.checkpoint.offsets:
                # Spark plans an empty range at the last offset when it restarts.
                last = json.loads(self.checkpoint.offsets[-1])
                if list(self._reader.partitions(last, last)):
                    msg = f"an empty range of offsets has partitions: {last}"
                    raise AssertionError(msg)
        return self._reader

    @staticmethod
    def _text(offset: dict[str, Any]) -> str:
        text = json.dumps(offset)
        if json.dumps(json.loads(text)) != text:
            msg = f"an offset changes on its way through JSON: {text}"
            raise AssertionError(msg)
        return text
