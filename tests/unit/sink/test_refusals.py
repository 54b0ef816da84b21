"""What the sink refuses, with which words; the log and its folder stay as they were."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.log.log import create_log
from spark_timely.sink.writer import make_stream_writer
from tests.unit.sink.driver import BOUNDED, SinkDriver, refused, rows


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"timeColum": "t"}, ["found unknown option 'timeColum'", "did you mean 'timeColumn'?"]),
        ({"timeColumn": "t"}, ["found option 'timeColumn' without option 'frontier'", "frontier='bounded'"]),
        ({"frontier": "bounded"}, ["frontier='bounded' without option 'timeColumn'", "name the column"]),
        ({"frontier": "hold"}, ["frontier='hold' without option 'timeColumn'"]),
        ({"frontier": "batch", "timeColumn": "t"}, ["frontier='batch' together with option 'timeColumn'"]),
        ({"frontier": "events", "timeColumn": "t"}, ["frontier='events' together with", "'_time'"]),
        ({"frontier": "hold", "timeColumn": "t", "lateness": "3"}, ["'lateness' together with frontier='hold'"]),
        ({"frontier": "batch", "maxFutureSkew": "3"}, ["'maxFutureSkew' together with frontier='batch'"]),
        ({"frontier": "sometimes"}, ["found frontier='sometimes'"]),
        ({**BOUNDED, "lateness": "10 minutes"}, ["times of type 'long'", "plain number"]),
        ({**BOUNDED, "timeColumn": "t,id"}, ["frontier='bounded': found 2 time columns"]),
        ({**BOUNDED, "timeColumn": "tt"}, ["option 'timeColumn': found no column 'tt'", "did you mean 't'?"]),
        ({"diffColumn": "x"}, ["option 'diffColumn': found no column 'x'", "the columns are 't', 'id'"]),
        ({"onFinish": "close"}, ["onFinish='close' with format('timely')", "spark_timely.start"]),
        ({"idleTimeout": "1 minute"}, ["with format('timely')", "spark_timely.start", "idle_timeout"]),
        ({"stream": "a-b"}, ["found stream='a-b'"]),
        ({"stream": "s" * 201}, ["found stream='sss", "at most 200"]),
    ],
)
def test_option_that_does_not_fit_is_refused(tmp_path: Path, options: dict[str, str], texts: list[str]) -> None:
    driver = SinkDriver(tmp_path, **options)
    with refused(driver, errors.InvalidOptionError, *texts):
        driver.run([rows([1])])


def test_missing_checkpoint_location_is_refused_and_says_why(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    del driver.options["checkpointLocation"]
    with refused(driver, errors.InvalidOptionError, "'checkpointLocation' is missing", "is not shown to the sink"):
        driver.run([rows([1])])


def test_output_mode_complete_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    with refused(driver, errors.InvalidUsageError, "found output mode 'complete'", "outputMode('append')"):
        driver.run([rows([1])], overwrite=True)


def test_option_names_count_in_any_case(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path)
    driver.options |= {"TIMECOLUMN": "t", "FRONTIER": "HOLD"}
    driver.run([rows([1])])
    assert driver.log().messages()["_time"].to_pylist() == [1]


def test_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.log_path.mkdir()
    (driver.log_path / "report.csv").write_text("a")
    with refused(driver, errors.LogMissingError, "found 'report.csv', and no log", "empty or not there"):
        driver.run([rows([1])])


def test_delta_table_that_is_no_log_is_refused(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    driver = SinkDriver(tmp_path, **BOUNDED)
    write_deltalake(str(driver.log_path), rows([1]))
    files = driver.data_files()
    with pytest.raises(errors.LogMissingError, match="found a Delta table that is no capture log — hint: "):
        driver.run([rows([1])])
    assert driver.data_files() == files


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.string(), "string"),
        (pa.float64(), "double"),
        (pa.bool_(), "boolean"),
        (pa.decimal128(10, 0), "decimal(10,0)"),
    ],
)
def test_time_column_of_a_wrong_type_is_refused(tmp_path: Path, kind: pa.DataType, found: str) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    with refused(driver, errors.SchemaMismatchError, f"column 't' as time: found type '{found}'", "cast the column"):
        driver.run([pa.table({"t": pa.nulls(1, kind)})])


def test_time_column_of_another_type_than_the_logs_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    with refused(driver, errors.SchemaMismatchError, "column 't' as time: found type 'date', the log's is 'long'"):
        driver.run([pa.table({"t": pa.array([dt.date(2013, 1, 1)]), "id": pa.array([1])})])


def test_narrower_time_column_fits(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    create_log(str(driver.log_path), pa.schema([("t", pa.int64())]))
    driver.run([pa.table({"t": pa.array([7], pa.int16())})])
    assert driver.log().messages()["_time"].to_pylist() == [7]


def test_null_time_is_refused_whatever_late_data_says(tmp_path: Path) -> None:
    for late_data in ("error", "deadLetter", "advance"):
        driver = SinkDriver(tmp_path, checkpoint=late_data, **BOUNDED, lateData=late_data)
        data = pa.table({"t": pa.array([1, 2, 3, None], pa.int64()), "id": pa.array(range(4))})
        with refused(driver, errors.InvalidUsageError, "time column 't': found null in row=3", "filter such rows out"):
            driver.run([data])


def test_time_above_the_types_limit_is_refused(tmp_path: Path) -> None:
    micros = pa.array([0, 300_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    with refused(driver, errors.InvalidUsageError, "time column 't'", "row=1", "9999-12-31T23:59:59.999999Z"):
        driver.run([pa.table({"t": micros})])


def test_time_below_the_logs_minimum_is_late_like_any_other(tmp_path: Path) -> None:
    early = pa.table({"t": pa.array([dt.date(1600, 1, 1)]), "id": pa.array([1], pa.int64())})
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    with refused(driver, errors.LateDataError, "found time '1600-01-01' behind the frontier [\"1700-01-01\"]"):
        driver.run([early])
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold", lateData="advance", checkpoint="b")
    driver.run([early])
    assert driver.log().messages()["_time"].to_pylist() == [dt.date(1700, 1, 1)]
    assert driver.log().messages()["t"].to_pylist() == [dt.date(1600, 1, 1)]


def test_late_row_under_error_names_row_time_frontier_and_option(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    late = (
        "could not capture row {'t': 7, 'id': 21} in stream 'main': found time 7 behind the frontier [8], to which a"
        " row at time 9 moved it (row 0 of a task, commit 1) — hint: set lateData to 'deadLetter' to set late rows"
        " apart, or to 'advance' to move them to the frontier; a lateness of '2' would have kept this time open"
    )
    with refused(driver, errors.LateDataError, late):
        driver.run([rows([8, 9, 10, 11]), rows([9, 7], 20)])


def test_skewed_row_under_error_names_the_limit(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, maxFutureSkew="100")
    driver.run([rows([9])])
    with refused(driver, errors.LateDataError, "found time 500 after 108, the latest that maxFutureSkew allows"):
        driver.run([rows([500])])


def test_closed_stream_is_refused_before_any_task(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    create = driver.log()
    create.close("main")
    with refused(driver, errors.ClosedError, "could not capture into stream 'main'", "found it closed"):
        driver.run([rows([10])])


def test_complete_log_refuses_a_new_stream(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    driver.log().close()
    other = SinkDriver(tmp_path, query="query-b", checkpoint="b", stream="other", **BOUNDED)
    with refused(other, errors.ClosedError, "could not capture into log", "found it closed"):
        other.run([rows([10])])


def test_second_query_on_a_stream_is_refused_before_any_task(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    other = SinkDriver(tmp_path, query="query-b", checkpoint="b", **BOUNDED)
    with refused(
        other, errors.OwnershipError, "stream 'main': found it owned by 'query-a', this query is 'query-b'", "'stream'"
    ):
        make_stream_writer(other.options, spark.StructType().add("t", "long").add("id", "long"), False)


def test_second_query_is_refused_by_the_commit_too(tmp_path: Path) -> None:
    first, other = (SinkDriver(tmp_path, query=q, checkpoint=q, **BOUNDED) for q in ("query-a", "query-b"))
    schema = spark.StructType().add("t", "long").add("id", "long")
    prepared = other.writer(schema)
    message = prepared.write(iter(rows([3]).to_batches()))
    first.run([rows([9])])
    with pytest.raises(errors.OwnershipError, match="found it owned by 'query-a'"):
        prepared.commit([message], 0)
    assert first.log().messages()["_time"].to_pylist() == [9]


def test_checkpoint_rolled_back_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    driver.run([rows([10])])
    for name in ("offsets", "commits"):
        (driver.checkpoint / name / "1").unlink()
    (driver.checkpoint / "commits" / "0").unlink()
    with refused(
        driver,
        errors.RolledBackError,
        "micro-batch 0 (step 0) into stream 'main'",
        "found micro-batch 1 (step 0) of the same query in it; the sources of micro-batch 1 in the log end at 0",
    ):
        driver.run([rows([9])])


def test_log_of_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_timely.log.files import format as log_format

    driver = SinkDriver(tmp_path, **BOUNDED)
    with monkeypatch.context() as patch:
        patch.setattr(log_format.LogFormat, "facts", _newer(log_format.LogFormat.facts))
        with pytest.raises(errors.LogFormatError):
            create_log(str(driver.log_path), rows([]).schema)
    with pytest.raises(errors.LogFormatError, match=r"found format version=99, .* hint: upgrade"):
        driver.run([rows([1])])


def _newer(facts: object) -> object:
    def newer(self: object) -> str:
        text: str = facts(self)  # type: ignore[operator]
        return text.replace('"version": 4', '"version": 99')

    return newer


@pytest.mark.parametrize(
    ("table", "texts"),
    [
        ({"t": [1]}, ["found no column 'id', which the log was made with", "missingColumns='id'"]),
        ({"t": [1], "id": [1], "more": [1]}, ["column 'more': found no such column in the log", "drop the column"]),
        ({"t": [1], "idd": [1]}, ["column 'idd': found no such column in the log", "did you mean 'id'?"]),
        ({"t": [1], "id": ["a"]}, ["column 'id': found type 'string', the log holds 'int64'", "cast the column"]),
        ({"t": [1], "id": [1.5]}, ["column 'id': found type 'double', the log holds 'int64'"]),
        ({"t": [1], "ID": [1]}, None),
    ],
)
def test_schema_fits_or_is_refused(tmp_path: Path, table: dict[str, list[object]], texts: list[str] | None) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    data = pa.table(table)
    if texts is None:
        driver.run([data])
        assert driver.log().messages().num_rows == 2
        return
    with refused(driver, errors.SchemaMismatchError, *texts):
        driver.run([data])


def test_single_precision_fits_double_alone(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([pa.table({"t": [1], "x": [0.5]})])
    driver.run([pa.table({"t": [2], "x": pa.array([0.25], pa.float32())})])
    assert sorted(driver.log().messages()["x"].to_pylist()) == [0.25, 0.5]
    other = SinkDriver(tmp_path / "other", **BOUNDED)
    other.run([pa.table({"t": [1], "x": ["a"]})])
    with refused(other, errors.SchemaMismatchError, "column 'x': found type 'float', the log holds 'string'"):
        other.run([pa.table({"t": [2], "x": pa.array([0.25], pa.float32())})])


def test_column_declared_not_null_is_required_without_nulls(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    create_log(str(driver.log_path), pa.schema([pa.field("t", pa.int64()), pa.field("id", pa.int64(), nullable=False)]))
    with refused(driver, errors.SchemaMismatchError, "found no column 'id', which the log declares not null"):
        driver.run([pa.table({"t": [1]})])
    with refused(driver, errors.SchemaMismatchError, "found null in column 'id', row=1"):
        driver.run([pa.table({"t": [1, 2], "id": pa.array([1, None], pa.int64())})])


@pytest.mark.parametrize("name", ["_event", "_seq", "_time", "_diff", "_Count", "_max_time"])
def test_payload_column_with_a_reserved_name_is_refused(tmp_path: Path, name: str) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    with refused(driver, errors.SchemaMismatchError, f"found reserved name {name!r}", "rename the column"):
        driver.run([rows([1]).append_column(name, pa.array([1]))])


def test_type_that_a_log_cannot_hold_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    schema = spark.StructType().add("t", "long").add("gap", spark.DayTimeIntervalType())
    with refused(driver, errors.SchemaMismatchError, "column 'gap': found Spark type 'interval day to second'"):
        driver.writer(schema)


def test_diff_that_is_null_or_no_integer_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, diffColumn="d")
    with refused(driver, errors.SchemaMismatchError, "could not read diff column 'd': found null in row=1"):
        driver.run([pa.table({"d": pa.array([1, None], pa.int64()), "id": pa.array([1, 2])})])
    with refused(driver, errors.SchemaMismatchError, "column 'd' as diffColumn: found type 'string'"):
        driver.run([pa.table({"d": ["a"], "id": [1]})])


def test_diff_column_for_a_log_of_streams_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path)
    create_log(str(driver.log_path), pa.schema([("id", pa.int64())]), minimum=(0,))
    driver.options["diffColumn"] = "d"
    with refused(driver, errors.SchemaMismatchError, "column 'd' as diff: found a log of kind 'stream'"):
        driver.run([pa.table({"d": [1], "id": [1]})])


def test_batch_into_a_log_of_dates_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path)
    create_log(str(driver.log_path), pa.schema([("id", pa.int64())]), times=("date",))
    with refused(driver, errors.InvalidOptionError, "frontier='batch': found a log whose times are of type (date)"):
        driver.run([pa.table({"id": [1]})])


def test_reports_of_tasks_planned_at_different_seqs_are_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    schema = spark.StructType().add("t", "long").add("id", "long")
    (driver.checkpoint / "offsets" / "1").write_text("")
    early = driver.writer(schema)
    first = early.write(iter(rows([5]).to_batches()))
    driver.log().advance("main", [3])
    late = driver.writer(schema)
    second = late.write(iter(rows([6]).to_batches()))
    version = driver.log().core.version
    with pytest.raises(errors.UpperMismatchError, match=r"found reports of tasks planned at seqs \[1, 2\]"):
        late.commit([first, second], 1)
    with pytest.raises(errors.UpperMismatchError, match="found tasks planned at seq=1, the log has seq=2"):
        late.commit([first], 1)
    assert driver.log().core.version == version


def test_file_that_the_driver_cannot_see_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    schema = spark.StructType().add("t", "long").add("id", "long")
    (driver.checkpoint / "offsets" / "1").write_text("")
    message = driver.writer(schema).write(iter(rows([5]).to_batches()))
    (written,) = message.report.files
    (driver.log_path / written.path).unlink()  # it is on the executor's own disk
    with refused(driver, errors.StorageError, f"found no file {written.path!r}", "driver and executors share"):
        driver.writer(schema).commit([message], 1)


def test_relative_path_means_the_directory_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.options["path"] = "log"
    monkeypatch.chdir(tmp_path)
    writer = driver.writer(spark.StructType().add("t", "long").add("id", "long"))
    monkeypatch.chdir("/")
    message = writer.write(iter(rows([5]).to_batches()))
    monkeypatch.chdir(tmp_path)
    driver.writer(spark.StructType().add("t", "long").add("id", "long")).commit([message], 0)
    assert driver.log().messages().num_rows == 1


RACES: dict[str, tuple[pa.Table, dict[str, str]]] = {
    "other columns": (pa.table({"t": [2], "name": ["x"]}), {}),
    "other type": (pa.table({"t": [2], "id": pa.array([2], pa.int32())}), {}),
    "collection": (rows([2]), {"diffColumn": "id"}),
    "other times": (pa.table({"t": pa.array([dt.date(2013, 1, 1)]), "id": [2]}), {}),
}


@pytest.mark.parametrize("case", sorted(RACES))
def test_first_micro_batch_planned_for_another_log_is_refused(tmp_path: Path, case: str) -> None:
    from spark_timely.spark.base.schema import spark_schema

    options = {"timeColumn": "t", "frontier": "hold", "streams": "2"}
    data, more = RACES[case]
    first = SinkDriver(tmp_path, **options, stream="a")
    second = SinkDriver(tmp_path, query="query-b", checkpoint="b", **options, **more, stream="b")
    writer = second.writer(spark_schema(data.schema))
    message = writer.write(iter(data.to_batches()))
    (first.checkpoint / "offsets" / "0").write_text("")
    early = first.writer(spark_schema(rows([]).schema))
    early.commit([early.write(iter(rows([1]).to_batches()))], 0)
    version = first.log().core.version
    # As foreachBatch does it: the plan that the files were written for commits them.
    with pytest.raises(errors.UpperMismatchError, match="columns, the log has been made by another query meanwhile"):
        writer.commit([message], 0)
    assert first.log().core.version == version
    assert first.log().core.unclaimed == 1
    assert not [name for name in first.data_files() if "/b-" in name]


def test_first_micro_batches_of_two_queries_both_count(tmp_path: Path) -> None:
    from spark_timely.spark.base.schema import spark_schema

    options = {"timeColumn": "t", "frontier": "hold", "streams": "2"}
    data = rows([2]).append_column("deep", pa.array([[{"x": 1, "y": b"2"}]]))
    data = data.append_column("map", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())))
    drivers = [SinkDriver(tmp_path, query=q, checkpoint=q, **options, stream=q) for q in "ab"]
    writers = [driver.writer(spark_schema(data.schema)) for driver in drivers]
    messages = [writer.write(iter(data.to_batches())) for writer in writers]
    for writer, message in zip(writers, messages, strict=True):
        writer.commit([message], 0)
    assert drivers[0].log().messages().num_rows == 2


def _date(days: int) -> pa.Array:
    return pa.array([days], pa.int32()).cast(pa.date32())


FAR = pa.array([568_971_820_800_000_000], pa.timestamp("us", "UTC"))
UNSHOWABLE: dict[str, tuple[pa.Array, str]] = {
    "year 20000": (FAR, "568971820800000000"),
    "year before 1": (_date(-721_000), "-721000"),
    "zone that Python does not know": (pa.array([0], pa.timestamp("us", "GMT+08:00")), "datetime.datetime(1970, 1, 1"),
    "in a struct": (pa.StructArray.from_arrays([FAR, _date(1)], ["x", "y"]), "{'x': 568971820800000000, 'y': "),
    "in a list": (pa.ListArray.from_arrays([0, 1], _date(-721_000)), "[-721000]"),
    "in a map": (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), FAR), "[('k', 568971820800000000)]"),
    "null": (pa.nulls(1, pa.date32()), "'x': None}"),
}


@pytest.mark.parametrize("case", sorted(UNSHOWABLE))
def test_late_row_is_named_whatever_its_values(tmp_path: Path, case: str) -> None:
    values, text = UNSHOWABLE[case]
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([pa.table({"t": [9], "x": values})])
    with refused(driver, errors.LateDataError, "could not capture row {'t': 3, 'x': ", text, "found time 3 behind"):
        driver.run([pa.table({"t": [3], "x": values})])


@pytest.mark.parametrize(
    ("time", "texts"),
    [(-9_000_000_000_000_000, ["datetime.datetime(1684"]), (-70_000_000_000_000_000, ["'t': -70000000000000000"])],
)
def test_late_time_is_named_in_a_zone_that_python_does_not_know(tmp_path: Path, time: int, texts: list[str]) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    with refused(driver, errors.LateDataError, *texts, "behind the frontier"):
        driver.run([pa.table({"t": pa.array([time], pa.timestamp("us", "GMT+08:00"))})])


def test_time_above_the_limit_is_named_in_an_unknown_zone(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    with refused(driver, errors.InvalidUsageError, "found 300000000000000000 in row=0"):
        driver.run([pa.table({"t": pa.array([300_000_000_000_000_000], pa.timestamp("us", "GMT+08:00"))})])


def test_column_named_like_times_of_other_logs_is_kept(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="_time_0", frontier="hold")
    driver.run([pa.table({"_time_0": pa.array([3], pa.int64()), "id": [1]})])
    assert driver.log().messages().select(["_time", "_time_0", "id"]).to_pylist() == [
        {"_time": 3, "_time_0": 3, "id": 1}
    ]


def test_longest_name_of_a_stream_fits(tmp_path: Path) -> None:
    from spark_timely.log.files.format import check_stream_name

    driver = SinkDriver(tmp_path, stream=check_stream_name("s" * 200), **BOUNDED)
    driver.run([rows([1])])
    assert driver.log().core.stream("s" * 200).seq == 1
    with pytest.raises(errors.InvalidUsageError):
        check_stream_name("s" * 201)
