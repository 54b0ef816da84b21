"""Table functions of Spark's SQL for logs: ``timely_frontiers(path)`` and ``timely_progress(path)``.

Users call them in SQL. They are Python UDTFs, made known to a session by `spark_timely.register`, to another one of the
process when it first asks for one (`spark_timely.spark.patches`), and run in a task: on Spark Connect the server's
machine looks at the log. Times are texts, since a function has the same columns for logs of all types of times.

Invariants
----------
1. A call reads one snapshot of the log, and its statements of progress alone: no file of data.
2. What is no log is an error that says so, never a table without rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.log.log import open_log
from spark_timely.spark.base.shipping import Carried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.log import Log
    from spark_timely.time.antichain import Antichain

__all__ = ["FRONTIERS", "FUNCTIONS", "PROGRESS", "TimelyFrontiers", "TimelyProgress", "register_functions"]

FRONTIERS: Final = (
    "stream STRING, owner STRING, frontier STRING, complete BOOLEAN, seq BIGINT, at TIMESTAMP, since STRING,"
    " upper STRING, kind STRING, times STRING, log_id STRING"
)
"""Columns of ``timely_frontiers``: of a stream, and of the log that it is in."""

PROGRESS: Final = (
    "stream STRING, seq BIGINT, time STRING, delta BIGINT, held BIGINT, at TIMESTAMP, reason STRING, owner STRING,"
    " batch BIGINT, n_rows BIGINT"
)
"""Columns of ``timely_progress``: a change of how often a time is held, by a commit of a stream."""


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class TimelyFrontiers:
    """The function ``timely_frontiers(path [, options])``: a row for each stream of a log; one if it has none.

    Frontiers are JSON, such as ``[5]``; ``[]`` is complete. `since` and `upper` are the log's: it can be read from the
    one on, and is complete before the other.
    """

    def eval(self, path: str | None, options: Mapping[str, str] | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows.

        Parameters
        ----------
        path : str
            Path or URL of the log.
        options : mapping, optional
            Settings of a store, as ``map('aws_region', 'eu-west-1')``. Credentials belong in the environment of Spark's
            executors: what stands in a text is seen in plans.

        Raises
        ------
        LogMissingError
            If there is no log.
        InvalidUsageError
            If the path is null.
        """
        log = _opened(path, options, "timely_frontiers")
        upper = log.frontier()
        kinds = ", ".join(kind.value for kind in log.domain.types)
        own = (_text(log, log.since()), _text(log, upper), log.kind, kinds, log.core.log_id)
        states = list(log.streams().values())
        for state in states:
            frontier = state.frontier
            yield (
                state.stream, state.owner, _text(log, frontier), not frontier, state.seq, _moment(state.at), *own,
            )  # fmt: skip
        if not states:
            yield None, None, None, not upper, None, None, *own


class TimelyProgress:
    """The function ``timely_progress(path [, options])``: a row for each change of a count that the log still has.

    The sum of `delta` of a stream and time is how often the time is held, which `held` says after each commit.
    """

    def eval(self, path: str | None, options: Mapping[str, str] | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the rows; arguments and errors as of `TimelyFrontiers.eval`."""
        log = _opened(path, options, "timely_progress")
        progress, domain = log.core.progress(), log.domain
        times = domain.from_columns(progress).tolist()
        names = ("_stream", "_seq", "_delta", "_count", "_at", "_reason", "_query", "_batch", "_rows")
        columns = [progress[name].to_pylist() for name in names]
        # A UDTF gives rows one by one; progress has a few for each commit.
        for time, (stream, seq, delta, held, *more) in zip(times, zip(*columns, strict=True), strict=True):
            yield stream, seq, str(domain.render_time(time)), delta, held, *more


FUNCTIONS: Final[dict[str, tuple[type, str]]] = {
    "timely_frontiers": (TimelyFrontiers, FRONTIERS),
    "timely_progress": (TimelyProgress, PROGRESS),
}
"""The table functions by name: what computes them, and their columns."""


def register_functions(spark: SparkSession, /) -> None:
    """Make the table functions known to a session, classic or Connect. Again is no harm.

    Examples
    --------
    ::

        spark.sql("SELECT stream, frontier FROM timely_frontiers('/data/orders') WHERE NOT complete")
    """
    from pyspark.sql.functions import udtf

    for name, (handler, columns) in FUNCTIONS.items():
        function = udtf(_carried(handler), returnType=columns)
        spark.udtf.register(name, function)  # type: ignore[arg-type]  # it is no decorator where it gets a class


def _carried(handler: Any) -> type:  # noqa: ANN401 - a class with eval
    """Return a handler of the same rows that checks the Python of its task; Spark pickles it by its code."""
    rows = Carried(handler.eval)

    class Handler:
        def eval(self, path, options=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - names nothing of ours
            yield from rows(self, path, options)

    return Handler


def _opened(path: str | None, options: Mapping[str, str] | None, function: str) -> Log:
    if not isinstance(path, str):
        msg = f"could not look into a log with {function}: found path={shown(path)}"
        raise InvalidUsageError(msg, hint=f"write the path of a log: {function}('/data/orders')")
    return open_log(path, storage_options=dict(options) if options else None)


def _text(log: Log, frontier: Antichain) -> str:
    return json.dumps(log.domain.frontier_to_json(frontier), ensure_ascii=False)


def _moment(at: int | None) -> dt.datetime | None:
    """Return microseconds since 1970 as Spark takes a moment."""
    return None if at is None else _EPOCH + dt.timedelta(microseconds=at)
