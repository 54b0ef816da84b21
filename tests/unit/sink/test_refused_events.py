"""What the sink refuses of events that are replayed into a log, with which words."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely import errors
from tests.unit.sink.driver import MIN, SinkDriver, refused


def events(*events: tuple[str | None, int, int | None]) -> pa.Table:
    """Return rows as a replay with ``content=events`` gives them."""
    return pa.table(
        {
            "_event": pa.array([e for e, _, _ in events], pa.string()),
            "_stream": pa.array(["x"] * len(events)),
            "_delta": pa.array([d for _, _, d in events], pa.int64()),
            "_time": pa.array([t for _, t, _ in events], pa.int64()),
            "id": pa.array([None if e == "progress" else t for e, t, _ in events], pa.int64()),
        }
    )


@pytest.mark.parametrize(
    ("data", "kind", "texts"),
    [
        ([("progress", 3, 1)], None, []),
        ([("progress", MIN, -2)], errors.NegativeCountError, ["count=-1 after it", "give up only capabilities"]),
        ([("progress", 3, -1)], errors.NegativeCountError, ["stream 'main'", "count=-1 after it at time=3"]),
        ([("begin", 3, None)], errors.ProtocolError, ["found _event='begin' in row=0", "'message' or a 'progress'"]),
        ([("message", 3, None), (None, 3, None)], errors.ProtocolError, ["found _event=None in row=1"]),
        ([("progress", 3, None)], errors.ProtocolError, ["'_delta' is null"]),
    ],
)
def test_events_that_break_the_protocol_are_refused(
    tmp_path: Path,
    data: list[tuple[str | None, int, int | None]],
    kind: type[errors.TimelyError] | None,
    texts: list[str],
) -> None:
    driver = SinkDriver(tmp_path, frontier="events")
    if kind is None:
        driver.run([events(*data)])
        return
    with refused(driver, kind, *texts):
        driver.run([events(*data)])
    assert not (driver.log_path / "_delta_log").exists()


def test_events_raising_a_time_that_is_not_held_are_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, frontier="events")
    driver.run([events(("progress", MIN, -1), ("progress", 5, 1))])
    with refused(driver, errors.UnheldCapabilityError, "could not raise the count of time=3", "held=[5]"):
        driver.run([events(("progress", 3, 1))])
    with refused(driver, errors.LateDataError, "found time 4 behind the frontier [5]"):
        driver.run([events(("message", 4, None))])


@pytest.mark.parametrize("missing", ["_event", "_delta", "_time"])
def test_events_without_their_columns_are_refused(tmp_path: Path, missing: str) -> None:
    driver = SinkDriver(tmp_path, frontier="events")
    with refused(driver, errors.SchemaMismatchError, f"frontier='events': found no column '{missing}'"):
        driver.run([events(("message", 1, None)).drop_columns([missing])])


@pytest.mark.parametrize(
    ("diffs", "found"), [(pa.array([1.7]), "double"), (pa.array(["a"]), "string"), (pa.array([True]), "bool")]
)
def test_diff_of_events_that_is_no_integer_is_refused(tmp_path: Path, diffs: pa.Array, found: str) -> None:
    driver = SinkDriver(tmp_path, frontier="events")
    data = events(("message", 3, None)).append_column("_diff", diffs)
    with refused(driver, errors.SchemaMismatchError, f"column '_diff' as diff of events: found type '{found}'", "cast"):
        driver.run([data])
    assert not driver.log_path.exists()
    driver.run([data.set_column(5, "_diff", pa.array([2], pa.int32()))])
    assert driver.log().messages()["_diff"].to_pylist() == [2]


def test_time_of_a_replay_is_not_advanced_over_the_rows_own(tmp_path: Path) -> None:
    data = pa.table({"_time": pa.array([3], pa.int64()), "id": [1]})
    driver = SinkDriver(tmp_path, timeColumn="_time", frontier="hold", lateData="advance")
    with refused(driver, errors.InvalidOptionError, "'advance' together with timeColumn '_time'", "copy the column"):
        driver.run([data])
    driver.options["lateData"] = "deadLetter"
    driver.run([data])
    copied = SinkDriver(tmp_path, checkpoint="b", timeColumn="t", frontier="hold", lateData="advance")
    copied.log_path = copied.folder / "copied"
    copied.options["path"] = str(copied.log_path)
    copied.run([data.rename_columns(["t", "id"])])
    copied.log().advance("main", [9])
    copied.run([data.rename_columns(["t", "id"])])
    assert sorted(zip(*(copied.log().messages()[n].to_pylist() for n in ("_time", "t")), strict=True)) == [
        (3, 3),
        (9, 3),
    ]


def test_events_without_the_start_of_their_log_are_refused(tmp_path: Path) -> None:
    from spark_timely.log.files.format import METADATA_KEY, LogFormat
    from spark_timely.spark.base.schema import spark_schema

    data = events(("message", 3, None), ("progress", 0, -1))
    driver = SinkDriver(tmp_path, frontier="events")
    texts = ["count=-1 after it at time=0", f"begins at {MIN}, since column '_event' has lost the metadata"]
    with refused(driver, errors.NegativeCountError, *texts, "pass the column on", "create_log(…, minimum=…)"):
        driver.run([data])
    schema = spark_schema(data.schema)
    form = LogFormat.build(pa.schema([]), minimum=(0,))
    schema["_event"].metadata = {METADATA_KEY: form.facts()}
    driver.run([data], schema=schema)
    assert driver.log().frontier().is_empty


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("_event", pa.array([1]), "found column '_event' of type 'int64'"),
        ("_delta", pa.array(["1"]), "found column '_delta' of type 'string'"),
        ("_delta", pa.array([1.0]), "found column '_delta' of type 'double'"),
        ("_time", pa.array(["3"]), "column '_time' as time: found type 'string'"),
        ("id", pa.array(["a"]), "column 'id': found type 'string', the log holds 'int64'"),
    ],
)
def test_events_of_wrong_types_are_refused(tmp_path: Path, column: str, values: pa.Array, text: str) -> None:
    driver = SinkDriver(tmp_path, frontier="events")
    data = events(("message", 3, None))
    driver.run([data])
    place = data.schema.get_field_index(column)
    with refused(driver, errors.SchemaMismatchError, text):
        driver.run([data.set_column(place, column, values)])
