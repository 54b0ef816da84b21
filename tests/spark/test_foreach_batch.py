"""The foreachBatch capture puts into a log what the Python writer puts there, and refuses what it refuses."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_timely import errors
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.storage import FileStorage
from spark_timely.spark.capture import foreach_batch
from spark_timely.spark.capture.foreach_batch import capture
from spark_timely.spark.capture.staging import in_order
from spark_timely.time.domain import TimeType
from tests.support import session_of_a_call
from tests.unit.sink.driver import SinkDriver, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}
HOLD = {"timeColumn": "t", "frontier": "hold"}
CLOCK = 1_357_000_000_000_000  # 2013-01-01T00:26:40Z


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_timely.sink import plan

    monkeypatch.setitem(plan.make_plan.__kwdefaults__, "clock", lambda: CLOCK)


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a DataFrame of two partitions, with a session object of its own as in each micro-batch."""
    from spark_timely.spark.base.schema import spark_schema

    return session_of_a_call(spark).createDataFrame(table, schema=spark_schema(table.schema)).repartition(2)


def contents(log: Log) -> dict[str, object]:
    """Return all that a log says, but for names of files, owners and wall clocks."""
    log.refresh()
    progress = log.core.progress()
    drop = [name for name in ("_at", "_query", "_note") if name in progress.schema.names]
    parts = {"messages": log.messages(), "dead": log.dead(), "progress": progress.drop_columns(drop)}
    return {
        **{name: sorted(map(repr, part.to_pylist())) for name, part in parts.items()},
        "frontier": log.frontier(),
        "schema": log.schema,
        "facts": log.core.format.facts(),
    }


def data(kind: str, times: list[tuple[int, ...]], first: int, k: int) -> pa.Table:
    """Return rows with time columns of a type and payloads of several types."""
    n, time = len(times), TimeType(kind)
    array = np.array(times, dtype=np.int64).reshape(n, k)
    names = ["t"] if k == 1 else [f"t{i}" for i in range(k)]
    columns = {name: time.to_arrow(array[:, i]) for i, name in enumerate(names)}
    ids = range(first, first + n)
    return pa.table(
        {
            **columns,
            "id": pa.array(ids, pa.int64()),
            "name`x": pa.array([None if i % 5 == 0 else f"n{i}" for i in ids], pa.string()),
            "at": pa.array([CLOCK + i for i in ids], pa.timestamp("us", "UTC")),
            "deep": pa.array([[{"x": i}] for i in ids], pa.list_(pa.struct([("x", pa.int32())]))),
        }
    )


# name -> (type of the time, unit of a step, options)
POLICIES: dict[str, tuple[str, dict[str, str]]] = {
    "batch": ("long", {"frontier": "batch"}),
    "bounded": ("int", {"timeColumn": "t", "frontier": "bounded", "lateness": "2"}),
    "skew": ("timestamp", {"timeColumn": "t", "frontier": "bounded", "lateness": "2 us", "maxFutureSkew": "6 us"}),
    "date": ("date", {"timeColumn": "t", "frontier": "bounded", "lateness": "2 days"}),
    "hold": ("short", {"timeColumn": "t", "frontier": "hold"}),
    "product": ("long", {"timeColumn": "t0,t1", "frontier": "hold"}),
    "events": ("long", {"frontier": "events"}),
}


LATE_DATA = ("error", "deadLetter", "advance")
# Each policy, each fate of late rows; all three where rows are also held against a bound.
SHORT = {
    ("batch", "error"),
    ("date", "deadLetter"),
    ("events", "error"),
    ("hold", "deadLetter"),
    ("product", "advance"),
}
SHORT |= {(policy, late_data) for policy in ("bounded", "skew") for late_data in LATE_DATA}


@pytest.mark.parametrize(
    ("policy", "late_data"),
    [
        pytest.param(*case, marks=[] if case in SHORT else pytest.mark.long)
        for case in itertools.product(sorted(POLICIES), LATE_DATA)
    ],
)
def test_same_log_as_through_the_python_writer(
    spark: SparkSession, tmp_path: Path, policy: str, late_data: str
) -> None:
    rng = random.Random(f"{policy} {late_data}")
    kind, options = POLICIES[policy]
    options = {**options, "lateData": late_data}
    origin = {"timestamp": CLOCK, "date": 15_700}.get(kind, 0)
    k = 2 if policy == "product" else 1
    driver = SinkDriver(tmp_path / "sink", **options)
    keywords = {name: value for name, value in driver.options.items() if name not in ("path", "checkpointLocation")}
    path = str(tmp_path / "foreach")
    now, first, held = 0, 0, -(2**63)
    for batch in range(5):
        size = [6, 0, 9, 7, 8][batch]
        late = 0 if late_data == "error" and batch < 3 else 5
        times = [
            tuple(origin + max(0, now + rng.randint(-late if rng.random() < 0.5 else 0, 4)) for _ in range(k))
            for _ in range(size)
        ]
        if policy == "skew" and times and (late_data != "error" or batch > 3):
            times[0] = (origin + 1_000,)
        now += 3
        table = data(kind, times, first, k)
        first += size
        if policy == "events":
            table = as_events(table, held, now)
        elif "hold" in options.values() and batch > 0:
            target = [[now, now - 2], [now - 2, now]] if k == 2 else [now]
            for log in (driver.log(), open_log(path)):
                log.advance("main", target)
        df = frame(spark, table)
        number = driver.next_batch()
        refusals: list[str] = []
        for route in ("sink", "foreachBatch"):
            try:
                if route == "sink":
                    driver.run([table.slice(0, 4), table.slice(4)])
                else:
                    capture(df, number, path=path, app_id="query-a", **keywords)
            except errors.LateDataError as error:
                refusals.append(str(error).partition(": found")[2])
        if refusals:
            assert late_data == "error"
            assert len(refusals) == 2
            (driver.checkpoint / "offsets" / str(number)).unlink()
        else:
            held = now
        assert contents(open_log(path)) == contents(driver.log())
        if not refusals:
            assert not capture(frame(spark, table), number, path=path, app_id="query-a", **keywords).committed
    assert open_log(path).verify().legal


def as_events(table: pa.Table, held: int, target: int) -> pa.Table:
    """Return rows and one move of the capability, as a replay gives them."""
    n = table.num_rows
    messages = table.rename_columns(["_time", *table.column_names[1:]])
    moves = pa.table({"_time": pa.array([held, target], pa.int64())})
    both = pa.concat_tables([messages, moves], promote_options="default")
    return both.append_column("_event", pa.array(["message"] * n + ["progress"] * 2)).append_column(
        "_delta", pa.array([None] * n + [-1, 1], pa.int64())
    )


@pytest.mark.parametrize("kind", ["long", "int", "short", "date", "timestamp"])
def test_times_at_the_limits_of_their_type(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    time = TimeType(kind)
    df = frame(spark, pa.table({"t": time.to_arrow([time.lo, time.hi]), "id": pa.array([0, 1], pa.int64())}))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        capture(df, 0, path=str(tmp_path), app_id="a", **BOUNDED | {"lateness": "0"})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    log = open_log(str(tmp_path))
    assert log.frontier().elements == ((time.hi,),)
    assert log.domain.from_columns(log.messages()).ravel().tolist() == [time.lo, time.hi]


def test_settings_of_the_session_are_restored_and_do_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    ours = {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    before = {name: spark.conf.get(name, None) for name in [*ours, "spark.sql.maxConcurrentOutputFileWriters"]}
    moment = dt.datetime(1800, 1, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    df = frame(spark, pa.table({"t": pa.array([moment], pa.timestamp("us", "UTC"))}))
    try:
        for name, value in ours.items():
            spark.conf.set(name, value)
        capture(df, 0, path=str(tmp_path), app_id="a", timeColumn="t", frontier="hold", lateData="deadLetter")
        assert {name: spark.conf.get(name) for name in ours} == ours
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
    log = open_log(str(tmp_path))
    assert log.messages()["_time"].to_pylist() == log.messages()["t"].to_pylist() == [moment]
    assert log.core.files().known.all()


Refusal = tuple[Callable[[], pa.Table], dict[str, str], type[errors.TimelyError], str]
REFUSALS: dict[str, Refusal] = {
    "null time": (
        lambda: pa.table({"t": pa.array([1, None], pa.int64()), "id": pa.array([1, 2], pa.int64())}),
        BOUNDED,
        errors.InvalidUsageError,
        "time column 't': found null in row {'t': None, 'id': 2}",
    ),
    "null time, dead letters": (
        lambda: pa.table({"t": pa.array([1, None], pa.int64()), "id": pa.array([1, 2], pa.int64())}),
        {**BOUNDED, "lateData": "deadLetter"},
        errors.InvalidUsageError,
        "time column 't': found null in row {'t': None, 'id': 2}",
    ),
    "time above the limit": (
        lambda: pa.table({"t": pa.array([1, 300_000_000_000_000_000], pa.timestamp("us", "UTC"))}),
        {"timeColumn": "t", "frontier": "hold"},
        errors.InvalidUsageError,
        "time column 't': found a time later than 9999-12-31T23:59:59.999999Z",
    ),
    "skewed": (
        lambda: pa.table({"t": pa.array([CLOCK, CLOCK + 5_000_000], pa.timestamp("us", "UTC"))}),
        {"timeColumn": "t", "frontier": "hold", "maxFutureSkew": "1 second"},
        errors.LateDataError,
        "the latest that maxFutureSkew allows",
    ),
    "unknown event": (
        lambda: pa.table(
            {"_event": ["since"], "_delta": pa.array([1], pa.int64()), "_time": pa.array([1], pa.int64())}
        ),
        {"frontier": "events"},
        errors.ProtocolError,
        "neither a message nor a progress row with a change",
    ),
    "progress breaks the protocol": (
        lambda: pa.table(
            {"_event": ["progress"], "_delta": pa.array([-1], pa.int64()), "_time": pa.array([1], pa.int64())}
        ),
        {"frontier": "events"},
        errors.NegativeCountError,
        "give up only capabilities that the stream holds",
    ),
    "null diff": (
        lambda: pa.table({"d": pa.array([1, None], pa.int64()), "id": pa.array([1, 2], pa.int64())}),
        {"diffColumn": "d"},
        errors.SchemaMismatchError,
        "found null in column '_diff'",
    ),
    "no column": (lambda: rows([1]), {**BOUNDED, "timeColumn": "x"}, errors.InvalidOptionError, "no column 'x'"),
    "close": (lambda: rows([1]), {**BOUNDED, "onFinish": "close"}, errors.InvalidOptionError, "does not see the end"),
}


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_refusal_leaves_nothing_behind(spark: SparkSession, tmp_path: Path, name: str) -> None:
    make, options, kind, text = REFUSALS[name]
    with pytest.raises(kind) as found:
        capture(frame(spark, make()), 0, path=str(tmp_path / "log"), app_id="a", **options)
    assert text in str(found.value)
    assert " — hint: " in str(found.value)
    assert not list((tmp_path / "log").rglob("*.parquet")) if (tmp_path / "log").exists() else True


def test_late_row_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    capture(frame(spark, rows([9])), 0, path=path, app_id="a", **BOUNDED)
    version = open_log(path).core.version
    with pytest.raises(errors.LateDataError) as found:
        capture(frame(spark, rows([9, 10, 3])), 1, path=path, app_id="a", **BOUNDED)
    assert "could not capture row {'t': 3, 'id': 2} in stream 'main': found time 3 behind the frontier [8]" in str(
        found.value
    )
    assert open_log(path).core.version == version
    assert len(list((tmp_path / "log").rglob("_event=message/**/*.parquet"))) <= 2


def test_not_null_columns_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    create_log(path, pa.schema([pa.field("t", pa.int64()), pa.field("id", pa.int64(), nullable=False)]))
    holed = pa.table({"t": pa.array([1, 2], pa.int64()), "id": pa.array([1, None], pa.int64())})
    with pytest.raises(errors.SchemaMismatchError, match="found null in column 'id'"):
        capture(frame(spark, holed), 0, path=path, app_id="a", **BOUNDED)
    capture(frame(spark, rows([1, 2])), 0, path=path, app_id="a", **BOUNDED)
    assert open_log(path).messages().num_rows == 2


def test_steps_of_one_micro_batch_are_repeated_together(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    for _ in range(2):
        for step, times in enumerate([[1, 2], [2, 5]]):
            outcome = capture(frame(spark, rows(times)), 0, path=path, app_id="a", step=step, **BOUNDED)
            outcome = capture(frame(spark, rows(times)), 0, path=path, app_id="a", step=step, **BOUNDED)
            assert not outcome.committed
    assert open_log(path).messages()["_time"].to_pylist() == [1, 2, 2, 5]
    with pytest.raises(errors.RolledBackError, match="of this number in it with other rows"):
        capture(frame(spark, rows([7])), 0, path=path, app_id="a", step=0, **BOUNDED)


@pytest.mark.parametrize("outside", [False, True], ids=["of the micro-batch", "of another session"])
def test_two_captures_of_one_call_need_two_steps(spark: SparkSession, tmp_path: Path, outside: bool) -> None:
    """With one step the rows of the second were taken for a repetition of the first, and dropped."""
    (tmp_path / "in").mkdir()
    pq.write_table(rows([1, 2, 3, 4]), tmp_path / "in" / "a.parquet")
    path, checkpoint = str(tmp_path / "log"), str(tmp_path / "checkpoint")

    def split(steps: tuple[int, int]) -> None:
        def into_log(df: DataFrame, batch_id: int) -> None:
            for step, condition in zip(steps, ("id < 2", "id >= 2"), strict=True):
                part = df.where(condition)
                if outside and condition == "id >= 2":
                    part = spark.createDataFrame(part.collect(), part.schema)
                capture(part, batch_id, path=path, checkpoint=checkpoint, step=step, **HOLD)

        stream = spark.readStream.schema("t LONG, id LONG").parquet(str(tmp_path / "in"))
        query = stream.writeStream.foreachBatch(into_log).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="found a capture of this micro-batch and step by the same foreachBatch"):
        split((0, 0))
    assert open_log(path).messages()["id"].to_pylist() == [0, 1]
    split((0, 1))
    assert open_log(path).messages()["id"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({}, "found neither 'checkpoint' nor 'app_id'"),
        ({"app_id": "a", "checkpoint": "c"}, "found both 'checkpoint' and 'app_id'"),
        ({"app_id": " "}, "found app_id=' '"),
        ({"checkpoint": "/nowhere/at/all"}, "found no query id in checkpoint '/nowhere/at/all'"),
        ({"app_id": "a", "step": -1}, "found step=-1"),
        ({"app_id": "a", "time_colum": "t"}, "did you mean 'timeColumn'?"),
    ],
)
def test_capture_called_wrongly_is_refused(
    spark: SparkSession, tmp_path: Path, keywords: dict[str, object], text: str
) -> None:
    with pytest.raises(errors.InvalidUsageError) as found:
        capture(frame(spark, rows([1])), 0, path=str(tmp_path / "log"), **{**BOUNDED, **keywords})
    assert text in str(found.value)
    assert not (tmp_path / "log").exists()


def test_second_query_is_refused_before_any_work(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    capture(frame(spark, rows([9])), 0, path=path, app_id="a", **BOUNDED)
    with pytest.raises(errors.OwnershipError, match="owned by 'a', this query is 'b'"):
        capture(frame(spark, rows([9])), 0, path=path, app_id="b", **BOUNDED)
    capture(frame(spark, rows([9])), 1, path=path, app_id="a", **BOUNDED)
    with pytest.raises(errors.RolledBackError, match="found micro-batch 1"):
        capture(frame(spark, rows([9])), 0, path=path, app_id="a", **BOUNDED)


def test_repeated_micro_batch_with_other_late_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    for batch, times in enumerate([[9], [10, 1, 20]]):
        capture(frame(spark, rows(times)), batch, path=path, app_id="a", lateData="deadLetter", **BOUNDED)
    with pytest.raises(errors.RolledBackError, match="of this number in it with other rows"):
        capture(frame(spark, rows([10, 1, 2, 20])), 1, path=path, app_id="a", lateData="deadLetter", **BOUNDED)
    repeated = frame(spark, rows([10, 1, 20]))
    assert not capture(repeated, 1, path=path, app_id="a", lateData="deadLetter", **BOUNDED).committed


def test_only_data_files_are_left_in_the_log(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log a b")
    for batch, times in enumerate([[1, 9], [], [3, 9]]):
        capture(frame(spark, rows(times)), batch, path=path, app_id="a", lateData="deadLetter", **BOUNDED)
    log = open_log(path)
    assert log.messages()["_time"].to_pylist() == [1, 9, 9]
    assert log.dead()["_time"].to_pylist() == [3]
    names = [file.name for file in Path(path).rglob("*") if file.is_file() and "_delta_log" not in file.parts]
    assert all(name.endswith(".parquet") for name in names)


@pytest.mark.parametrize("late", ["error", "deadLetter"])
def test_rows_that_come_sorted_are_sorted_only_when_needed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Whatever is taken for granted, files are sorted; a column of which few values repeat loses its dictionary."""
    sorts: list[bool] = []

    def noted(data: DataFrame, sort_by: tuple[str, ...]) -> DataFrame:
        sorts.append(bool(sort_by))
        return in_order(data, sort_by)

    monkeypatch.setattr(foreach_batch, "in_order", noted)
    path, n = str(tmp_path / "log"), 100_000
    rows = spark.range(0, n, 1, 2).selectExpr("id div 7 AS T", "id AS `Id.x`", "id * 6 div 10 AS `Many`", "id % 3 AS k")
    backwards = rows.coalesce(1).sortWithinPartitions("T", ascending=False)
    batches = [rows, rows, backwards, rows, rows.where("T < 0"), rows.where("`Id.x` = 5")]
    before: set[str] = set()
    digests = []
    for number, df in enumerate(batches):
        state = capture(df, number, path=path, app_id="a", time_column="T", frontier="hold", late_data=late).state
        log = open_log(path)
        paths = set(log.core.files().of_event("message").paths.tolist())
        files = [pq.ParquetFile(Path(path) / name) for name in paths - before]
        tables = [file.read() for file in files]
        assert all(table["_time"].to_pylist() == sorted(table["_time"].to_pylist()) for table in tables)
        ids = [] if not tables else pa.concat_tables(tables)["Id.x"].to_pylist()
        assert sorted(ids) == {4: [], 5: [5]}.get(number, list(range(n)))
        if number < 4:
            assert has_dictionary(files) == {"T": True, "Id.x": False, "Many": number == 0, "k": True}
            digests.append(state.note.batch.digest)
        before = paths
    # The second came as it should; the third did not, and was written again; so the fourth is sorted.
    assert sorts == [True, False, False, True, True, True, True]
    assert len(set(digests)) == 1
    assert log.verify().legal


def has_dictionary(files: list[pq.ParquetFile]) -> dict[str, bool]:
    """Return which payload columns have a dictionary in the files."""
    groups = [file.metadata.row_group(number) for file in files for number in range(file.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    names = {chunk.path_in_schema for chunk in chunks if not chunk.path_in_schema.startswith("_")}
    return {name: any(c.has_dictionary_page for c in chunks if c.path_in_schema == name) for name in names}


@pytest.mark.parametrize("late", ["error", "deadLetter"])
def test_path_that_executors_do_not_share_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """What they wrote on other machines is not here: no file, or some are missing."""
    options = {"app_id": "app", "time_column": "t", "frontier": "bounded", "late_data": late}
    log = tmp_path / "log"
    names = FileStorage.names

    def elsewhere(self: FileStorage, path: str = "") -> list[str]:
        found = names(self, path)
        return found[:-1] if any(name.endswith(".parquet") for name in found) else found

    df = spark.range(100).selectExpr("id AS t", "id AS n").repartition(2)
    with monkeypatch.context() as patch:
        patch.setattr(FileStorage, "names", elsewhere)
        with pytest.raises(
            errors.StorageError, match=r"found \d+ of 100 rows written — hint: give a path that driver and exec"
        ):
            capture(df, 0, path=str(log), **options)
    assert not (log / "_delta_log").exists()
    assert capture(df, 0, path=str(log), **options).committed
    assert open_log(log).messages().num_rows == 100


def test_attempts_put_nothing_into_place_by_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the session wants it so: one that was given up would replace files that the log names."""
    options = {"path": str(tmp_path / "log"), "app_id": "app", "time_column": "t", "frontier": "bounded"}
    assert capture(spark.range(3).selectExpr("id AS t"), 0, **options).committed
    # What the driver would leave, had it died while the second task was under way.
    log, died, wanted = str(tmp_path / "log"), str(tmp_path / "died"), "part-00000-*"
    before = sorted(Path(log).rglob(wanted))

    def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            deadline = time.monotonic() + 60
            while not (own := set(Path(log).rglob(wanted)) - set(before)) or "attempt_" in str(own):
                assert time.monotonic() < deadline, own
                time.sleep(0.02)
            shutil.copytree(log, died)
        yield from batches

    session = session_of_a_call(spark)
    session.conf.set("mapreduce.fileoutputcommitter.algorithm.version", "2")
    try:
        df = session.range(3, 7, numPartitions=2).selectExpr("id AS t").mapInArrow(rows_of, "t long")
        assert capture(df, 1, **options).committed
    finally:
        session.conf.unset("mapreduce.fileoutputcommitter.algorithm.version")
    assert open_log(log).messages().num_rows == 7
    assert open_log(died).messages().num_rows == 3
    files = {str(path.relative_to(died)) for path in Path(died).rglob("*.parquet") if "_delta_log" not in path.parts}
    left = files - open_log(died).core.live_paths(files)
    assert left
    assert all("/_temporary/" in path for path in left), left
    table = DeltaTable(died)
    assert left <= set(table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
