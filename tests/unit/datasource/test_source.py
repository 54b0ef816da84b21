"""The data source as Spark sees it, without a JVM."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.datasource.spark_readers import EarlierStreamReader, TimelyPartition, TimelyStreamReader
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
    LogMissingError,
    SchemaMismatchError,
)
from spark_timely.spark.base.compat import ADMISSION_CONTROL
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.testing.driver import Checkpoint, StreamDriver


@pytest.fixture
def path(tmp_path: Path) -> str:
    where = str(tmp_path / "a log")
    log = spark_timely.create_log(where, pa.schema([pa.field("v", pa.int64(), nullable=False)]), minimum=(0,))
    log.writer(owner="o").append(pa.table({"_time": [1, 2, 3], "v": [1, 2, 3]}), advance_to=3)
    return where


def source(path: str, **options: Any) -> TimelyDataSource:
    return TimelyDataSource({"path": path, **options})


def driver_of(path: str, checkpoint: Checkpoint | None = None, **options: Any) -> StreamDriver:
    made = pickle.loads(pickle.dumps(source(path, **options)))
    schema = made.schema()
    made = pickle.loads(pickle.dumps(made))
    return StreamDriver(lambda: made.streamReader(schema), schema=arrow_schema(schema), checkpoint=checkpoint)


def test_source_is_found_by_name_and_by_module() -> None:
    import pyspark_timely

    assert pyspark_timely.DefaultSource is TimelyDataSource
    assert TimelyDataSource.name() == "timely"


def test_schema_is_the_payload_with_its_nullability(path: str) -> None:
    assert source(path).schema().simpleString() == "struct<v:bigint>"
    assert not source(path).schema().fields[0].nullable
    assert source(path, includeTime="TRUE").schema().names == ["_time", "v"]
    assert source(path, content="splits").schema().names[0] == "_split"


def test_stream_reader_over_a_log_on_disk(path: str) -> None:
    checkpoint = Checkpoint()
    (batch,) = driver_of(path, checkpoint, includeTime="true").available_now()
    assert batch.rows.to_pydict() == {"_time": [1, 2], "v": [1, 2]}
    assert json.loads(batch.end)["log"] == spark_timely.open_log(path).core.log_id
    assert driver_of(path, checkpoint, includeTime="true").available_now() == []


def test_batch_reader_reads_what_is_closed(path: str) -> None:
    made = source(path)
    reader = made.reader(made.schema())
    copy = pickle.loads(pickle.dumps(reader))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    assert [row for p in partitions for b in copy.read(p) for row in b.to_pylist()] == [{"v": 1}, {"v": 2}]


def test_batch_reader_of_nothing_reads_nothing(tmp_path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    where = str(tmp_path / "log")
    spark_timely.create_log(where, pa.schema([("v", pa.int64())]))
    made = source(where)
    reader = made.reader(made.schema())
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_read_needs_no_log(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = source(path)
    schema = made.schema()
    partitions = made.streamReader(schema).partitions  # planned elsewhere
    offset = made.streamReader(schema).latestOffset(made.streamReader(schema).initialOffset(), None)
    planned = list(partitions(made.streamReader(schema).initialOffset(), offset))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a task opened the log")

    monkeypatch.setattr("spark_timely.log.log.open_log", refuse)
    task = pickle.loads(pickle.dumps(made)).streamReader(schema)
    assert all(isinstance(p, TimelyPartition) for p in planned)
    assert sum(b.num_rows for p in planned for b in task.read(p)) == 2


def test_user_may_choose_columns_by_a_schema(path: str) -> None:
    from pyspark.sql.types import StructType

    made = source(path, includeTime="true")
    wanted = StructType().add("v", "long")
    (partition,) = made.reader(wanted).partitions()
    assert next(made.reader(wanted).read(partition)).schema.names == ["v"]
    with pytest.raises(SchemaMismatchError, match="column 'v' is"):
        source(path).reader(StructType().add("v", "string"))
    with pytest.raises(SchemaMismatchError, match="hint: leave the schema out with content=splits"):
        source(path, content="splits").reader(wanted)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"wrokers": "2"}, InvalidOptionError, "found unknown option 'wrokers' — hint: did you mean 'workers'?"),
        ({"asOf": "1"}, InvalidOptionError, "found option asOf=1 for a log of kind 'stream'"),
        ({"columns": "w"}, InvalidOptionError, "found no column 'w' in the log"),
        ({"path": "/nowhere"}, LogMissingError, "could not open log '/nowhere'"),
        ({"consumer": "x"}, InvalidOptionError, "found unknown option 'consumer'"),
    ],
)
def test_bad_option_is_refused_before_the_query_starts(
    path: str, options: dict[str, str], kind: Any, text: str
) -> None:
    with pytest.raises(kind) as caught:
        TimelyDataSource({"path": path, **options}).schema()
    assert text in str(caught.value)


def test_batch_write_is_refused_with_a_way_out(path: str) -> None:
    made = source(path)
    with pytest.raises(InvalidUsageError, match=r"only streaming writes .* — hint: use writeStream.format\('timely'\)"):
        made.writer(made.schema(), True)


def test_read_limit_is_a_carrier_only_where_options_limit(path: str) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    made = source(path, maxTimesPerTrigger="1")
    reader = made.streamReader(made.schema())
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert reader.latestOffset(reader.initialOffset(), limit)["frontier"] == [2]
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["frontier"] == [3]
    plain = source(path)
    assert isinstance(plain.streamReader(plain.schema()).getDefaultReadLimit(), ReadAllAvailable)


def test_spark_sees_admission_control_and_available_now(path: str) -> None:
    import inspect

    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    assert ADMISSION_CONTROL
    reader = source(path).streamReader(source(path).schema())
    assert isinstance(reader, SupportsTriggerAvailableNow)
    assert len(inspect.signature(reader.latestOffset).parameters) == 2


def test_earlier_spark_is_served_without_a_start_offset(path: str) -> None:
    import inspect

    made = source(path, maxTimesPerTrigger="1")
    layout = made._log_layout(made._source_options())
    reader = EarlierStreamReader(made._source_options(), layout)
    assert isinstance(reader, TimelyStreamReader)
    assert len(inspect.signature(reader.latestOffset).parameters) == 0
    start, seen = reader.initialOffset(), []
    for _ in range(2):
        end = json.loads(json.dumps(reader.latestOffset()))
        seen += [b.to_pydict()["v"] for p in reader.partitions(start, end) for b in reader.read(p)]
        start = end
    assert seen == [[1], [2]]
    assert reader.latestOffset() == start
    # A restart plans an empty range at the checkpoint's offset.
    again = pickle.loads(pickle.dumps(reader))
    assert list(again.partitions(start, start)) == []
    assert again.latestOffset() == start
    assert again.stop() is None
