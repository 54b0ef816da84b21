"""Columns of the data that the log does not have: one query adds them, the others go on without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely import errors
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log
from spark_timely.spark.base.schema import spark_schema
from tests.unit.sink.driver import SinkDriver, rows

HOLD = {"timeColumn": "t", "frontier": "hold"}


def query(folder: Path, name: str, **options: Any) -> SinkDriver:
    return SinkDriver(folder, query=name, checkpoint=name, stream=name, **{**HOLD, **options})


def noted(times: list[int], note: object = "x", first_id: int = 0) -> pa.Table:
    return rows(times, first_id).append_column("note", pa.array([note] * len(times)))


def notes(driver: SinkDriver) -> list[tuple[int, object]]:
    found = driver.log().messages(columns=["id", "note"]).to_pylist()
    return sorted((row["id"], row["note"]) for row in found)


def test_one_query_adds_a_column_and_seven_go_on_without(tmp_path: Path) -> None:
    others = [query(tmp_path, f"q{n}", streams="8") for n in range(7)]
    for n, driver in enumerate(others):
        driver.run([rows([1], n)])
    digest = others[0].log().verify().digest
    # Each of them has a micro-batch under way, and an eighth query begins.
    under_way = []
    for driver in others:
        (driver.checkpoint / "offsets" / "1").write_text("")
        writer = driver.writer(spark_schema(rows([]).schema))
        under_way.append((driver, writer.write(iter(rows([2], 100).to_batches()))))
    last = query(tmp_path, "last", mergeSchema="true")
    last.run([noted([2], "x", 50)])
    for driver, message in under_way:
        driver.writer(spark_schema(rows([]).schema)).commit([message], 1)
        (driver.checkpoint / "commits" / "1").write_text("")
        driver.run([rows([3], 200)])
    log = last.log()
    assert log.schema.names == ["t", "id", "note"]
    assert notes(last) == sorted([(n, None) for n in range(7)] + [(50, "x")] + [(100, None), (200, None)] * 7)
    assert log.messages(columns=["note"], upper=2).column("note").null_count == 7
    assert log.verify().legal
    assert log.verify().digest == digest  # nothing is closed yet, and the new column changes nothing


def test_without_the_option_the_refusal_names_it(tmp_path: Path) -> None:
    driver = query(tmp_path, "a")
    driver.run([rows([1])])
    before = (driver.log().core.version, driver.data_files())
    with pytest.raises(errors.SchemaMismatchError, match=r"column 'note': found no such column.*mergeSchema=true"):
        driver.run([noted([2])])
    assert (driver.log().core.version, driver.data_files()) == before
    driver.options["mergeSchema"] = "true"
    driver.run([noted([2], "x", 5)])
    assert notes(driver) == [(0, None), (5, "x")]


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("note", pa.array([1]), "column 'note': found type 'int64', the log holds 'string'"),
        ("_seq", pa.array([1]), "found reserved name '_seq'"),
        ("a,b", pa.array([1]), "found name 'a,b'"),
        ("local", pa.array([0], pa.timestamp("us")), "found a timestamp without zone, the first of the log"),
    ],
)
def test_column_that_the_log_cannot_have_is_refused(tmp_path: Path, name: str, values: pa.Array, text: str) -> None:
    driver = query(tmp_path, "a", mergeSchema="true")
    driver.run([noted([1])])
    before = (driver.log().core.version, driver.data_files())
    with pytest.raises(errors.SchemaMismatchError, match="hint: ") as found:
        driver.run([(rows([2]) if name == "note" else noted([2])).append_column(name, values)])
    assert text in str(found.value)
    assert (driver.log().core.version, driver.data_files()) == before


def test_micro_batch_that_is_refused_adds_no_column(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="bounded", mergeSchema="true")
    driver.run([rows([5])])
    version = driver.log().core.version
    with pytest.raises(errors.LateDataError):
        driver.run([noted([6]), noted([3])])
    assert driver.log().core.version == version
    assert driver.log().schema.names == ["t", "id"]


def test_column_not_null_in_the_data_may_be_null_in_the_log(tmp_path: Path) -> None:
    first, second = query(tmp_path, "a", streams="2"), query(tmp_path, "b", mergeSchema="true")
    first.run([rows([1])])
    data = noted([2], "x", 5)
    schema = spark_schema(data.schema)
    schema["note"].nullable = False
    second.run([data], schema=schema)
    assert second.log().schema.field("note").nullable
    first.run([rows([3], 9)])
    assert notes(first) == [(0, None), (5, "x"), (9, None)]


def test_same_and_other_columns_added_by_queries_at_once_settle(tmp_path: Path) -> None:
    query(tmp_path, "first", streams="4").run([rows([1])])
    data = {
        "a": noted([2], "x", 1),
        "b": noted([2], "y", 2),
        "c": rows([2], 3).append_column("more", pa.array([0.5])),
    }
    planned = []
    for name, table in data.items():
        driver = query(tmp_path, name, mergeSchema="true")
        (driver.checkpoint / "offsets" / "0").write_text("")
        writer = driver.writer(spark_schema(table.schema))
        planned.append((driver, writer, writer.write(iter(table.to_batches()))))
    for driver, writer, message in planned:
        # Both with the plan of before, as foreachBatch, and with one made anew, as the sink.
        maker = writer if driver.query == "b" else driver.writer(spark_schema(data[driver.query].schema))
        maker.commit([message], 0)
    log = driver.log()
    assert log.schema.names == ["t", "id", "note", "more"]
    assert sorted(log.messages(columns=["id", "note", "more"]).to_pylist(), key=lambda row: row["id"]) == [
        {"id": 0, "note": None, "more": None},
        {"id": 1, "note": "x", "more": None},
        {"id": 2, "note": "y", "more": None},
        {"id": 3, "note": None, "more": 0.5},
    ]


def test_column_added_at_once_with_two_types_is_refused(tmp_path: Path) -> None:
    query(tmp_path, "first", streams="3").run([rows([1])])
    slow, fast = query(tmp_path, "slow", mergeSchema="true"), query(tmp_path, "fast", mergeSchema="true")
    (slow.checkpoint / "offsets" / "0").write_text("")
    writer = slow.writer(spark_schema(noted([2]).schema))
    message = writer.write(iter(noted([2]).to_batches()))
    fast.run([noted([2], 7)])
    version = fast.log().core.version
    with pytest.raises(errors.SchemaMismatchError, match="found type 'string', the log holds 'int64'"):
        writer.commit([message], 0)
    with pytest.raises(errors.SchemaMismatchError, match="found type 'string', the log holds 'int64'"):
        slow.run([noted([2])])
    assert fast.log().core.version == version


def test_crash_between_the_new_column_and_the_rows_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    driver = query(tmp_path, "a", mergeSchema="true")
    driver.run([rows([1])])
    commit = LogCore.commit

    def killed(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LogCore, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        driver.run([noted([2], "x", 5)])
    monkeypatch.setattr(LogCore, "commit", commit)
    assert driver.log().schema.names == ["t", "id", "note"]
    driver.run([noted([2], "x", 5)])
    (driver.checkpoint / "commits" / "1").unlink()
    driver.run([noted([2], "x", 5)])
    assert notes(driver) == [(0, None), (5, "x")]


def test_new_column_among_dead_letters_and_of_a_collection(tmp_path: Path) -> None:
    driver = SinkDriver(
        tmp_path, timeColumn="t", frontier="bounded", diffColumn="id", lateData="deadLetter", mergeSchema="true"
    )
    driver.run([pa.table({"t": [5], "id": [1]})])
    driver.run([pa.table({"t": [6, 3], "id": [2, -1], "note": ["x", "y"]})])
    assert driver.log().dead()["note"].to_pylist() == ["y"]
    assert driver.log().messages(columns=["note"])["note"].to_pylist() == [None, "x"]


def test_log_that_was_made_meanwhile_may_have_more_columns(tmp_path: Path) -> None:
    driver = query(tmp_path, "a")
    (driver.checkpoint / "offsets" / "0").write_text("")
    writer = driver.writer(spark_schema(rows([]).schema))
    message = writer.write(iter(rows([1]).to_batches()))
    wide = pa.schema([("note", pa.string()), ("id", pa.int64()), ("t", pa.int64())])
    create_log(str(driver.log_path), wide)
    with pytest.raises(errors.UpperMismatchError, match="log of other columns"):
        writer.commit([message], 0)
    with pytest.raises(errors.SchemaMismatchError, match="found no column 'note', which the log was made with"):
        driver.run([rows([1])])
    driver.options["missingColumns"] = "note"
    driver.run([rows([1])])
    assert notes(driver) == [(0, None)]
