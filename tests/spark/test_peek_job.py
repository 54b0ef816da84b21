"""A peek by one job of Spark gives the rows that a peek in process gives, and its errors."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.answers import peek as peeks
from spark_timely.answers.file_cache import KeptFiles
from spark_timely.answers.peek import PeekExplanation, peek
from spark_timely.errors import DataLossError, InvalidUsageError, NegativeMultiplicityError, ResultTooLargeError
from spark_timely.spark.answers.peek_job import peek_job
from tests.faults.harness import long_lane

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = pa.schema([
    ("k", pa.int64()), ("word", pa.string()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC")),
    ("tags", pa.list_(pa.field("element", pa.string()))),
])  # fmt: skip
MOMENTS = [None, dt.datetime(2013, 6, 12, 22, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, tzinfo=dt.UTC)]
VALUES: dict[str, list[Any]] = {
    "k": [None, 0, 1, 2, -(1 << 63)], "word": [None, "", "a", "ä", "\U0001f600", "it's"],
    "x": [None, 0.0, -0.0, 1.5, float("nan"), float("-inf")], "at": MOMENTS, "tags": [None, [], ["a"], ["a", None]],
}  # fmt: skip


def made(folder: Path, seed: int) -> Log:
    """Return a log of random updates at six times: each row that goes was there."""
    rng = random.Random(seed)
    kind: Any = rng.choice(["collection", "collection", "stream"])
    times = rng.choice([("long",), ("date",), ("long", "long")])
    minimum: Any = {("long",): (0,), ("date",): dt.date(1970, 1, 1), ("long", "long"): (0, 0)}[times]
    log = spark_timely.create_log(folder / f"log {seed}", SCHEMA, times=times, minimum=minimum, kind=kind)
    writer, held = log.writer(owner="tests"), list[dict[str, Any]]()
    for step in range(6):
        rows, diffs = list[dict[str, Any]](), list[int]()
        for _ in range(rng.randrange(1, 12)):
            if held and kind == "collection" and rng.random() < 0.3:
                rows.append(held.pop(rng.randrange(len(held))))
                diffs.append(-1)
            else:
                rows.append({name: rng.choice(values) for name, values in VALUES.items()})
                held.append(rows[-1])
                diffs.append(1)
        columns = {name: pa.array([row[name] for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names}
        own = {} if kind == "stream" else {"_diff": pa.array(diffs, pa.int64())}
        if len(times) > 1:
            stamps = {f"_time_{at}": pa.array([step] * len(rows), pa.int64()) for at in range(2)}
            upper: Any = [(step + 1, step + 1)]
        else:
            stamps = (
                {"_time": pa.array([step] * len(rows), pa.int32()).cast(log.domain.types[0].arrow)}
                if times == ("date",)
                else {"_time": pa.array([step] * len(rows), pa.int64())}
            )
            upper = [dt.date(1970, 1, 1) + dt.timedelta(step + 1)] if times == ("date",) else [step + 1]
        writer.append(pa.table({**stamps, **own, **columns}), advance_to=upper)
    return log


def draws(log: Log, rng: random.Random) -> dict[str, Any]:
    """Return arguments of a peek."""
    at: Any = rng.randrange(6)
    at = {"date": dt.date(1970, 1, 1) + dt.timedelta(at), "long": at}[log.domain.types[0].value]
    given: dict[str, Any] = {"as_of": (at, at) if log.domain.arity > 1 else at}
    if rng.random() < 0.4:
        given["keys"] = rng.choice([
            {"k": [1, None, 1]}, {("word", "x"): [("a", 0.0), (None, float("nan")), ("ä", 1.5)]}, {"k": []},
            {"at": MOMENTS[:2]},
        ])  # fmt: skip
    if rng.random() < 0.4:
        given["where"] = rng.choice(["k > 0", "word IS NULL OR word LIKE '%a%'", "x >= 0", "NOT (k IN (1, 2))"])
    if rng.random() < 0.5:
        given["select"] = rng.sample(SCHEMA.names, rng.randrange(1, 5))
    if rng.random() < 0.6:
        names = rng.sample(["k", "word", "x", "at"], rng.randrange(1, 3))
        given["order_by"] = [(name, rng.choice(["asc", "desc"]), rng.choice(["first", "last"])) for name in names]
        if rng.random() < 0.8:
            given["limit"], given["offset"] = rng.randrange(1, 6), rng.randrange(3)
    if rng.random() < 0.3:
        given["max_bytes"] = 1 << 20
    return given


def plain(rows: pa.Table, *, ordered: bool) -> list[str]:
    found = [repr(row) for row in rows.to_pylist()]
    return found if ordered else sorted(found)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be small, so that a limit of 0 bytes is a limit."""
    monkeypatch.setattr(peeks, "kept_files", lambda *_: KeptFiles(small_bytes=0))


@pytest.mark.parametrize("seed", range(12 if long_lane() else 3))
def test_job_gives_the_rows_of_a_peek_in_process(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    log, rng = made(tmp_path, seed), random.Random(seed)
    answer = peek_job(spark)
    n_rows, ways = 0, Counter[str]()
    for _ in range(30 if long_lane() else 10):
        given, said = draws(log, rng), list[PeekExplanation]()
        one = peek(log, **given)
        two = peek(log, **given, scan_limit=0, job=answer, explain=said.append)
        ways[said[0].way] += 1
        assert one.schema == two.schema
        assert plain(one, ordered="order_by" in given) == plain(two, ordered="order_by" in given), f"{seed=} {given=}"
        n_rows += one.num_rows
    assert n_rows
    assert ways["job"] > ways.total() / 2, ways


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a collection of numbers, of which one is taken away that was never there."""
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("n", pa.int64())]), minimum=(0,), kind="collection")
    rows = {"_time": pa.array([0, 0, 1], pa.int64()), "_diff": pa.array([1, 2, -1], pa.int64())}
    log.writer(owner="tests").append(pa.table({**rows, "n": pa.array([1, 2, 3], pa.int64())}), advance_to=2)
    return log


def test_errors_are_those_of_a_peek(spark: SparkSession, log: Log) -> None:
    answer = peek_job(spark)
    for options in ({}, {"order_by": "n", "limit": 1}):
        with pytest.raises(NegativeMultiplicityError, match=r"found row=.*n.*3.* with count=-1"):
            peek(log, scan_limit=0, job=answer, **options)
    with pytest.raises(ResultTooLargeError, match="an answer of 32 bytes, max_bytes=20"):
        peek(log, as_of=0, scan_limit=0, job=answer, max_bytes=20)
    with pytest.raises(InvalidUsageError, match="could not peek"):
        peek(log, as_of=0, scan_limit=0, job=answer, where="n * 9223372036854775807 > 0")
    assert peek(log, as_of=0, scan_limit=0, job=answer, limit=2, order_by=[("n", "desc")]).to_pylist() == [
        {"n": 2, "_diff": 2}
    ]


def test_no_partition_gives_more_than_its_bound(spark: SparkSession, tmp_path: Path) -> None:
    """A large answer is refused without all of it coming to the driver; a limit lets as many rows come."""
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("n", pa.int64())]), minimum=(0,), kind="collection")
    n = 300_000
    rows = {"_time": pa.array([0] * n, pa.int64()), "_diff": pa.array([1] * n, pa.int64()), "n": pa.array(range(n))}
    log.writer(owner="tests").append(pa.table(rows), advance_to=1)
    came = list[int]()

    def seen(plan: Any) -> pa.Table:
        found = peek_job(spark)(plan)
        came.append(found.num_rows)
        return found

    with pytest.raises(ResultTooLargeError):
        peek(log, scan_limit=0, job=seen, max_bytes=1000)
    assert peek(log, scan_limit=0, job=seen, order_by="n", limit=3, offset=2)["n"].to_pylist() == [2, 3, 4]
    assert came[0] < n
    assert came[1] == 5


def test_file_that_is_gone_is_said(spark: SparkSession, log: Log) -> None:
    def late(plan: Any) -> pa.Table:
        for path in plan.files:
            (Path(log.path) / path).unlink()
        return peek_job(spark)(plan)

    with pytest.raises(DataLossError, match="found that a file is gone"):
        peek(log, as_of=0, scan_limit=0, job=late)


def test_peek_whose_files_were_replaced_is_planned_again(spark: SparkSession, log: Log) -> None:
    turns = list[int]()

    def late(plan: Any) -> pa.Table:
        turns.append(1)
        if len(turns) == 1:
            log.allow_compaction([1])
            log.compact()
            log.vacuum(older_than="0s")
        return peek_job(spark)(plan)

    log.writer(owner="tests").append(
        pa.table({"_time": [2, 2], "_diff": [1, 1], "n": pa.array([3, 4], pa.int64())}), advance_to=3
    )
    found = peek(log.path, as_of=2, scan_limit=0, job=late, order_by="n")
    assert found.to_pylist() == [{"n": 1, "_diff": 1}, {"n": 2, "_diff": 2}, {"n": 4, "_diff": 1}]
    assert len(turns) == 2
