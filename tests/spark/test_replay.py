"""The rows of `batch_frame` and of the driver's replay are those of ``format("timely")``, per micro-batch."""

from __future__ import annotations

import errno
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.errors import DataLossError, InvalidOptionError, InvalidUsageError, StorageError
from spark_timely.spark import batch_frame
from spark_timely.spark.session import changed_settings
from spark_timely.testing import assert_same_rows
from tests.faults.harness import long_lane

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAYLOAD = pa.schema([pa.field("key", pa.int64(), nullable=False), ("odd.näme`", pa.string())])
KINDS = [("long",), ("long", "int")]
# In the short lane each seed with one kind of times.
HISTORIES = list(itertools.product([1, 2], KINDS)) if long_lane() else list(zip([1, 2], KINDS, strict=True))


class Kept:
    """A foreachBatch function that keeps the rows and the schema of each micro-batch."""

    def __init__(self, frame: Callable[[DataFrame], DataFrame] = lambda df: df) -> None:
        self.frame = frame
        self.tables: list[tuple[int, pa.Table, Any]] = []

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        rows = self.frame(df)
        self.tables.append((batch_id, rows.toArrow(), rows.schema))


def make_log(path: Path, seed: int, **options: Any) -> spark_timely.Log:
    """Make a log of two streams, times at random, some of them open; half of its files merged."""
    random_ = random.Random(seed)
    kind = options.get("kind", "stream")
    arity = len(options.get("times", ("long",)))
    log = spark_timely.create_log(path, PAYLOAD, minimum=(0,) * arity, streams=2, **options)
    names = ["_time"] if arity == 1 else [f"_time_{place}" for place in range(arity)]
    writers = [log.writer(stream, owner=stream) for stream in ("a", "b_")]
    for turn in range(5):
        for writer in writers:
            n = random_.randrange(5, 30)
            rows: dict[str, Any] = {
                name: [random_.randrange(2 * turn + 1, 2 * turn + 6) for _ in range(n)] for name in names
            }
            rows |= {"key": [random_.randrange(4) for _ in range(n)]}
            rows |= {"odd.näme`": [random_.choice(["x", None, "ü"]) for _ in range(n)]}
            if kind == "collection":
                rows["_diff"] = [random_.choice([1, 1, 2, -1]) for _ in range(n)]
            low = 2 * turn + 2
            frontier: Any = low if arity == 1 else [[low + 1, low], [low, low + 2]]
            writer.append(pa.table(rows), advance_to=frontier)
        if turn == 2:
            log.compact()
    return log


def by_source(spark: SparkSession, folder: Path, log: str, options: dict[str, Any], function: Any, **more: Any) -> None:
    """Run ``format("timely")`` in foreachBatch to the end of what is there."""
    trigger = more.pop("trigger", {"availableNow": True})
    names = {
        name: json.dumps(value) if isinstance(value, list) else str(value) for name, value in (options | more).items()
    }
    query = spark.readStream.format("timely").options(**names).load(log).writeStream.foreachBatch(function)
    query.option("checkpointLocation", str(folder)).trigger(**trigger).start().awaitTermination()


def compared(spark: SparkSession, tmp_path: Path, log: str, options: dict[str, Any], *, times: bool = False) -> int:
    """Compare the three ways, micro-batch by micro-batch; return how many rows there were."""
    source, driver = Kept(), Kept()
    if times:
        options = options | {"includeTime": True}
    by_source(spark, tmp_path / "source", log, options, source)
    job = spark_timely.replay(spark, log, **options).foreachBatch(driver)
    assert job.run(checkpoint=tmp_path / "driver") == len(source.tables)
    assert job.run(checkpoint=tmp_path / "driver") == 0
    found = [driver]
    if times:
        framed = Kept(lambda df: batch_frame(spark, df))
        by_source(spark, tmp_path / "framed", log, options, framed, content="splits")
        found.append(framed)
    for other in found:
        assert [number for number, *_ in other.tables] == [number for number, *_ in source.tables]
        for (_, one, schema), (_, two, other_schema) in zip(source.tables, other.tables, strict=True):
            assert_same_rows(one, two)
            assert other_schema == schema
    return sum(table.num_rows for _, table, _ in source.tables)


@pytest.mark.parametrize(("seed", "times"), HISTORIES)
def test_rows_are_those_of_the_source(spark: SparkSession, tmp_path: Path, times: tuple[str, ...], seed: int) -> None:
    log = make_log(tmp_path / "log [a]", seed, times=times).path
    # Some micro-batches of several times; in the long lane many.
    limit = random.Random(seed).randrange(10, 60) if long_lane() else 25 + 10 * seed
    assert compared(spark, tmp_path / "all", log, {"maxRowsPerTrigger": limit, "workers": 3}, times=True)
    n_times = 2 if long_lane() else 4 ** len(times)
    more = {"maxTimesPerTrigger": n_times, "streamFilter": "b_", "where": "key < 3", "includeMetadata": True}
    assert compared(spark, tmp_path / "some", log, more, times=True)


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_where_nothing_is_complete_is_an_empty_first_one(spark: SparkSession, tmp_path: Path, trigger: str) -> None:
    log = spark_timely.create_log(tmp_path / "log", PAYLOAD, minimum=(0,))
    source, driver = Kept(), Kept()
    job = spark_timely.replay(spark, log.path).foreachBatch(driver)
    writer = log.writer(owner="o")
    for upper in (0, 0, 3, 3):
        writer.append(pa.table({"_time": [upper], "key": [upper], "odd.näme`": ["x"]}), advance_to=upper)
        by_source(spark, tmp_path / "source", log.path, {}, source, trigger={trigger: True})
        job.run(checkpoint=tmp_path / "driver", trigger=trigger)
    assert [(number, rows.num_rows) for number, rows, _ in driver.tables] == [(0, 0), (1, 2)]
    assert [(number, rows.num_rows) for number, rows, _ in source.tables] == [(0, 0), (1, 2)]


def test_arrival_columns_and_starts_are_as_in_replay(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 3).path
    options: dict[str, Any] = {"delivery": "arrival", "maxFilesPerTrigger": 2, "includeMetadata": True}
    assert compared(spark, tmp_path / "arrival", log, options, times=True)
    assert compared(spark, tmp_path / "columns", log, {"columns": ["odd.näme`"], "startingFrontier": 3, "upTo": 6})
    assert compared(spark, tmp_path / "time", log, {"splitBy": "time", "workers": 3}, times=True)
    # A micro-batch that only says where the query begins.
    assert compared(spark, tmp_path / "latest", log, {"startingFrontier": "latest"}, times=True) == 0


def test_contents_and_changes_are_as_in_replay(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 4, kind="collection").path
    for name, options in {
        "plain": {},
        "as-of": {"asOf": 5, "workers": 1},
        "changes": {"asOf": 5, "snapshot": False},
    }.items():
        assert compared(
            spark, tmp_path / name, log, {**options, "maxTimesPerTrigger": 2, "includeMetadata": True}, times=True
        )


def test_columns_added_later_are_null_before(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 5)
    log.add_columns(pa.schema([pa.field("later", pa.float64())]))
    rows = pa.table({"_time": [40], "key": [1], "odd.näme`": ["x"], "later": [0.5]})
    writer = log.writer("a", owner="a")
    writer.append(rows, advance_to=50)
    log.advance("b_", 50)
    assert compared(spark, tmp_path / "all", log.path, {}, times=True)


def test_missing_file_is_told_or_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 6)
    max(Path(log.path).glob("_event=message/*.parquet"), key=lambda file: file.stat().st_mtime_ns).unlink()
    job = spark_timely.replay(spark, log.path).foreachBatch(Kept())
    with pytest.raises(DataLossError, match=r"found data file '.*' missing .*failOnDataLoss=false"):
        job.run(checkpoint=tmp_path / "driver")
    assert compared(spark, tmp_path / "rest", log.path, {"failOnDataLoss": False}, times=True)


def test_part_of_a_micro_batch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 7)
    splits = spark.read.format("timely").option("content", "splits").option("workers", 3).load(log.path)
    rows = batch_frame(spark, splits)
    assert rows.count() == spark.read.format("timely").load(log.path).count()
    for wrong in (splits.where("_split > 0"), splits.union(splits)):
        with pytest.raises(InvalidUsageError, match="of a micro-batch of 3 — hint: pass all splits"):
            batch_frame(spark, wrong)
    with pytest.raises(InvalidUsageError, match="content=splits"):
        batch_frame(spark, rows)
    # Numbers fit together, and the splits do not.
    other = spark.read.format("timely").option("content", "splits").option("workers", 3)
    for one in (other.load(make_log(tmp_path / "other", 7).path), other.option("upTo", 5).load(log.path)):
        with pytest.raises(InvalidUsageError, match="found splits of several micro-batches or logs"):
            batch_frame(spark, splits.where("_split = 0").union(one.where("_split > 0")))


def test_damaged_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 14)
    job = spark_timely.replay(spark, log.path, max_times_per_trigger=2).foreachBatch(Kept())
    number = job.run(checkpoint=tmp_path / "c") - 1
    newest = tmp_path / "c" / "offsets" / str(number)
    (tmp_path / "c" / "offsets" / "²").write_text("none of ours")
    assert job.run(checkpoint=tmp_path / "c") == 0
    text = newest.read_text()
    header, about, _ = text.split("\n")
    earlier = (tmp_path / "c" / "offsets" / str(number - 1)).read_text()
    for wrong in (earlier, f"{header}\n{about}\nnull", f"{header}\n[1]\n{{}}", f"{header}\n{about}", ""):
        newest.write_text(wrong)
        with pytest.raises(StorageError, match=f"could not continue from checkpoint .* for 'offsets/{number}'"):
            job.run(checkpoint=tmp_path / "c")
    newest.write_text(text)
    assert job.run(checkpoint=tmp_path / "c") == 0


def test_old_micro_batches_are_dropped(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_timely.spark.replay.replay._KEPT", 2)
    log = make_log(tmp_path / "log", 15)
    job = spark_timely.replay(spark, log.path, max_times_per_trigger=1).foreachBatch(lambda rows, number: None)
    number = job.run(checkpoint=tmp_path / "c") - 1
    (tmp_path / "c" / "commits" / "0").write_text("left by a kill")
    assert job.run(checkpoint=tmp_path / "c") == 0
    for folder in ("offsets", "commits"):
        names = {path.name for path in (tmp_path / "c" / folder).iterdir()}
        assert names == {str(kept) for kept in range(number - 2, number + 1)} - {str(number - 2)}


def test_condition_needs_exact_numbers(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 13)
    job = spark_timely.replay(spark, log.path, where="key + 9223372036854775807 > 5").foreachBatch(Kept())
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        job.run(checkpoint=tmp_path / "c")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        refused = pytest.raises(InvalidUsageError, match=r"spark.sql.ansi.enabled=false — hint: set it to true")
        with refused:
            job.run(checkpoint=tmp_path / "c")
        with refused:
            spark_timely.replay(spark, log.path, where="key > 5")
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_condition_is_not_read_anew_by_the_session(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["${env:HOME}", "it's", "line\nbreak", "plain"]
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("Größe", pa.string())]), minimum=(0,))
    log.writer("main").append(pa.table({"_time": [1] * 4, "Größe": texts}), advance_to=2)
    settings = {"spark.sql.ansi.doubleQuotedIdentifiers": "true", "spark.sql.caseSensitive": "true"}
    for text in texts:
        where, kept = f'größe = "{text}";', Kept()
        with changed_settings(spark, settings, purpose="test"):
            spark_timely.replay(spark, log.path, where=where).foreachBatch(kept).run(checkpoint=tmp_path / text[:2])
        assert kept.tables[0][1].column("Größe").to_pylist() == [text]


def test_what_cannot_be_is_refused_before_a_run(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 8)
    with pytest.raises(InvalidOptionError, match="found option 'Path' beside the path"):
        spark_timely.replay(spark, log.path, Path="/elsewhere")  # type: ignore[call-arg]
    job = spark_timely.replay(spark, log.path).foreachBatch(Kept())
    for checkpoint, found in ((None, "checkpoint=None"), (5, "checkpoint=5"), (log.path, "the log itself")):
        with pytest.raises(InvalidOptionError, match=f"found {found}.* — hint: give a folder"):
            job.run(checkpoint=checkpoint)  # type: ignore[arg-type]
    assert not (Path(log.path) / "offsets").exists()


def test_failed_micro_batch_comes_again_the_same(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 8)
    checkpoint, into = tmp_path / "checkpoint", str(tmp_path / "into")
    kept = Kept()

    def work(rows: DataFrame, batch_id: int) -> None:
        kept(rows, batch_id)
        options: dict[str, Any] = {"time_column": "_time", "frontier": "source"}
        spark_timely.capture(rows, batch_id, path=into, checkpoint=str(checkpoint), **options)
        if len(kept.tables) in (1, 3):
            raise OSError(batch_id)

    job = spark_timely.replay(spark, log.path, max_times_per_trigger=2, include_time=True).foreachBatch(work)
    for number in (0, 1):
        with pytest.raises(OSError, match=str(number)):
            job.run(checkpoint=checkpoint)
        # What comes meanwhile is not in the micro-batch that is repeated.
        log.advance("a", 20 + number)
        log.advance("b_", 20 + number)
    assert job.run(checkpoint=checkpoint)
    for first, second in ((0, 1), (2, 3)):
        assert kept.tables[first][0] == kept.tables[second][0]
        assert_same_rows(kept.tables[first][1], kept.tables[second][1])
    wanted = spark.read.format("timely").load(log.path).toArrow()
    assert_same_rows(spark.read.format("timely").load(into).toArrow().select(wanted.column_names), wanted)
    assert spark_timely.open_log(into).frontier() == log.frontier()


def test_once_is_one_micro_batch_without_limits(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 9)
    kept = Kept()
    job = spark_timely.replay(spark, log.path, max_times_per_trigger=1).foreachBatch(kept)
    assert [job.run(checkpoint=tmp_path / "c", trigger="once") for _ in range(2)] == [1, 0]
    assert_same_rows(kept.tables[0][1], spark.read.format("timely").load(log.path).toArrow())


def test_second_run_at_once_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 10)
    job = spark_timely.replay(spark, log.path, max_times_per_trigger=2)
    seen: list[int] = []

    def work(rows: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        with pytest.raises(InvalidUsageError, match="found that another run uses checkpoint"):
            spark_timely.replay(spark, log.path).foreachBatch(Kept()).run(checkpoint=tmp_path / "c")

    assert job.foreachBatch(work).run(checkpoint=tmp_path / "c") == len(seen) > 1


def test_of_two_runs_at_once_without_locks_one_continues(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", no_lock)
    log = make_log(tmp_path / "log", 10)
    seen: list[int] = []
    job = spark_timely.replay(spark, log.path, max_times_per_trigger=2)

    def other(rows: DataFrame, batch_id: int) -> None:
        del rows
        seen.append(batch_id)
        if batch_id == 1 and seen.count(1) == 1:
            # A second run, begun meanwhile: it goes on from the micro-batch that is under way.
            job.foreachBatch(other).run(checkpoint=tmp_path / "c")

    with pytest.raises(InvalidUsageError, match=r"found 'commits/1' .* another run has made meanwhile"):
        job.foreachBatch(other).run(checkpoint=tmp_path / "c")
    assert seen[:3] == [0, 1, 1]
    assert seen[2:] == list(range(1, 1 + len(seen[2:])))


def test_what_does_not_fit_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 11)
    options: list[tuple[dict[str, Any], str]] = [
        ({"content": "events"}, "content='events'"),
        ({"logs": ["a"]}, r"found options \['logs'\]"),
        ({"colums": "key"}, "did you mean 'columns'"),
        ({"columns": "no"}, "no column 'no'"),
    ]
    for wrong, words in options:
        with pytest.raises(InvalidOptionError, match=words):
            spark_timely.replay(spark, log.path, **wrong)
    job = spark_timely.replay(spark, log.path)
    with pytest.raises(InvalidUsageError, match="call foreachBatch"):
        job.run(checkpoint=tmp_path / "c")
    job.foreachBatch(Kept())
    with pytest.raises(InvalidOptionError, match=r"does not end .*readStream"):
        job.run(checkpoint=tmp_path / "c", trigger="10 seconds")
    with pytest.raises(InvalidOptionError, match="give a folder on a disk"):
        job.run(checkpoint="s3://bucket/c")


def test_checkpoints_are_not_mistaken(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", 12)
    by_source(spark, tmp_path / "sparks", log.path, {}, Kept())
    job = spark_timely.replay(spark, log.path).foreachBatch(Kept())
    with pytest.raises(InvalidUsageError, match="which a query of Spark has made"):
        job.run(checkpoint=tmp_path / "sparks")
    assert job.run(checkpoint=tmp_path / "ours") == 1
    with pytest.raises(Exception, match=r"(?i)malformed|version"):
        by_source(spark, tmp_path / "ours", log.path, {}, Kept())
    with pytest.raises(InvalidUsageError, match=r"streamFilter|streams"):
        spark_timely.replay(spark, log.path, stream_filter="a").foreachBatch(Kept()).run(checkpoint=tmp_path / "ours")
    other = make_log(tmp_path / "other", 12)
    with pytest.raises(DataLossError, match="the log was deleted and created again"):
        spark_timely.replay(spark, other.path).foreachBatch(Kept()).run(checkpoint=tmp_path / "ours")
    (tmp_path / "ours" / "offsets" / "0").write_text("timely-replay 1\n{")
    with pytest.raises(StorageError, match=r"found .* for 'offsets/0'"):
        job.run(checkpoint=tmp_path / "ours")
