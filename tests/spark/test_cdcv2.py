"""CDCv2's messages through foreachBatch: copies, other orders and kills change nothing; what contradicts is refused."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spark_timely
from spark_timely import errors
from spark_timely.interop.cdcv2.reader import CdcReader, read_message
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.spark.capture import cdcv2
from spark_timely.spark.capture.foreach_batch import capture
from tests.golden.test_cdcv2 import CASES, TIMES, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OPTIONS = {"app_id": "q", "dialect": "cdcv2"}


def schema_of(arity: int) -> str:
    """Return the columns of messages whose records are a string."""
    time = "bigint" if arity == 1 else "struct<a: bigint, b: bigint>"
    times = "_time bigint" if arity == 1 else "_time_0 bigint, _time_1 bigint"
    counts = f"array<struct<time: {time}, n: bigint>>"
    return f"word string, {times}, _diff bigint, _lower array<{time}>, _upper array<{time}>, _counts {counts}"


def rows_of(messages: list[Any], arity: int) -> list[tuple[Any, ...]]:
    """Return the rows of messages as the golden cases have them."""
    found: list[tuple[Any, ...]] = []
    for message in messages:
        if "updates" in message:
            found += [(word, *plain(time), diff, None, None, None) for word, time, diff in message["updates"]]
            continue
        facts = message["progress"]

        bounds = [facts[n] and [_struct(time) for time in facts[n]] for n in ("lower", "upper")]
        counts = [(_struct(time), n) for time, n in facts["counts"]]
        found.append((None, *([None] * arity), None, *bounds, counts))
    return found


def _struct(time: Any) -> Any:
    return tuple(time) if isinstance(time, list) else time


def frame(spark: SparkSession, messages: list[Any], arity: int = 1) -> DataFrame:
    return spark.createDataFrame(rows_of(messages, arity), schema=schema_of(arity)).repartition(2)


def contents(log: Log) -> list[tuple[Any, ...]]:
    """Return the messages of a log, open ones too."""
    log.refresh()
    table = log.messages()
    columns = [*log.domain.columns, "word", "_diff"]
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True))


def updates_of(messages: list[Any]) -> list[tuple[Any, ...]]:
    return sorted({(*plain(u[1]), u[0], u[2]) for message in messages for u in message.get("updates", [])})


CHOSEN = [next(c for c in CASES if c[2]["time"] == time and c[2]["complete"]) for time in TIMES]


@pytest.mark.parametrize(("file", "i", "case"), CHOSEN, ids=list(TIMES))
def test_golden_messages_in_any_order_give_the_log_of_the_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, i: int, case: dict[str, Any]
) -> None:
    rng = random.Random(f"{file} {i}")
    arity = 1 if case["time"] == "u64" else 2
    messages = case["messages"]
    order = [*messages, *rng.sample(messages, len(messages) // 3)]
    rng.shuffle(order)
    types = {"time": TIMES[case["time"]], "record": "string"}
    reader = CdcReader(**types)
    path = str(tmp_path / "log [1]{x}")  # as nobody would, but Spark takes such paths for patterns
    cut = rng.randrange(1, len(order))
    for batch, kill in enumerate(["after", "before", None]):
        # The last one is everything once more.
        part = [order[:cut], order[cut:], messages][batch]
        was_closed = reader.frontier.is_empty
        reader.extend(read_message(json.dumps(message), **types) for message in part)
        df = frame(spark, part, arity)
        if kill is not None:
            with killed(monkeypatch, kill), pytest.raises(KeyboardInterrupt):
                capture(df, batch, path=path, **OPTIONS)
        assert capture(df, batch, path=path, **OPTIONS).committed == (kill != "after" and not was_closed)
        assert open_log(path).frontier() == reader.frontier
        held = contents(open_log(path))
        assert len(set(held)) == len(held)
    assert reader.frontier.is_empty
    assert contents(open_log(path)) == updates_of(messages)
    assert open_log(path).verify().legal
    assert not list((Path(path) / "_cdcv2").glob("*"))


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, when: str) -> Iterator[None]:
    """Kill a capture before or after its commit."""
    real: Callable[..., Any] = cdcv2.commit_reports

    def commit(*args: Any) -> Any:
        if when == "after":
            real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cdcv2, "commit_reports", commit)
        yield


UPDATE = {"updates": [["a", 3, 1]]}
OPEN = {"progress": {"lower": [0], "upper": [9], "counts": [[3, 2]]}}

REFUSED: dict[str, tuple[list[Any], str]] = {
    "another diff than before": ([{"updates": [["a", 3, 2]]}], "two diffs of record {'word': 'a'}"),
    "a diff of zero": ([{"updates": [["b", 4, 0]]}], "at time=4: found a diff of 0 of record {'word': 'b'}"),
    "more than stated": ([{"updates": [["b", 3, 1], ["c", 3, 1]]}], "found 3 updates where 2 were stated"),
    "before the least time": ([{"updates": [["b", -1, 1]]}], "an update before the log's least time, of record"),
    "half a statement": ([{"progress": {"lower": [0], "upper": None, "counts": []}}], "neither update nor statement"),
}


def test_impossible_messages_are_refused_and_leave_the_log(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    capture(frame(spark, [UPDATE, OPEN]), 0, path=path, **OPTIONS)
    log = open_log(path)
    before = (log.core.version, log.frontier().to_json(), contents(log), sorted((tmp_path / "log").rglob("*")))
    assert before[1:3] == ([3], [(3, "a", 1)])
    for name, (messages, said) in REFUSED.items():
        with pytest.raises(errors.TimelyError) as caught:
            capture(frame(spark, messages), 1, path=path, **OPTIONS)
        assert said in str(caught.value), name
        assert caught.value.hint, name
        log.refresh()
        after = (log.core.version, log.frontier().to_json(), contents(log), sorted((tmp_path / "log").rglob("*")))
        assert after == before, name
    # A micro-batch that is in the log and comes again with more is not passed over.
    with pytest.raises(errors.RolledBackError, match="found a new update"):
        capture(frame(spark, [UPDATE, OPEN, {"updates": [["b", 3, 1]]}]), 0, path=path, **OPTIONS)
    with pytest.raises(errors.RolledBackError, match="found a new statement"):
        capture(frame(spark, [{"progress": {"lower": [9], "upper": [12], "counts": []}}]), 0, path=path, **OPTIONS)


def test_query_follows_dates_moved_streams_and_closed_ones(spark: SparkSession, tmp_path: Path) -> None:
    path, incoming = str(tmp_path / "log"), tmp_path / "in"
    columns = (
        "day date, n double, note string, diff int, _lower array<date>, _upper array<date>,"
        " _counts array<struct<t: date, n: int>>"
    )
    options: dict[str, Any] = {"dialect": "cdcv2", "time_column": "day", "diff_column": "diff"}
    day = [dt.date(1970, 1, 1) + dt.timedelta(n) for n in range(20)]
    parts = [
        [(day[2], float("nan"), None, 1, None, None, None)] * 3 + [(None, None, None, None, [day[0]], [day[3]], [])],
        # A statement that waits, and one that was sent with another range.
        [(None, None, None, None, [day[5]], [day[9]], [(day[6], 1)])],
        [(None, None, None, None, [day[3]], [day[5]], [])],
        [(None, None, None, None, [day[9]], [], [])],
    ]
    parts[0][-1] = (None, None, None, None, [day[0]], [day[3]], [(day[2], 1)])

    def run() -> None:
        stream = spark.readStream.schema(columns).parquet(str(incoming))
        spark_timely.start(
            stream,
            path=path,
            checkpoint=str(tmp_path / "checkpoint"),
            trigger="availableNow",
            through="foreachBatch",
            **options,
        ).await_termination()

    frontiers = []
    for n, part in enumerate(parts):
        spark.createDataFrame(part, schema=columns).coalesce(1).write.mode("append").parquet(str(incoming))
        run()
        frontiers.append(open_log(path).frontier().to_json())
        if n == 1:
            # Moved on by hand: what was kept of the statements is still known.
            open_log(path).advance("main", [day[4]])
    assert frontiers == [[3], [3], [6], [6]]
    log = open_log(path)
    assert [n != n for n in log.messages()["n"].to_pylist()] == [True]
    spark.createDataFrame(
        [(day[6], 1.5, "x", -1, None, None, None), (day[2], float("nan"), None, 1, None, None, None)], schema=columns
    ).write.mode("append").parquet(str(incoming))
    run()
    log.refresh()
    assert log.frontier().is_empty
    assert log.messages()["_diff"].to_pylist() == [1, -1]
    # Complete: copies come on, and the query goes on.
    spark.createDataFrame(parts[0], schema=columns).write.mode("append").parquet(str(incoming))
    run()
    assert open_log(path).messages().num_rows == 2
    assert open_log(path).verify().legal
