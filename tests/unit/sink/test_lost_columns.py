"""A column of the log that the data does not have: one answer of the sink's planner and of the writer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely import errors
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.log import MemoryLog
from spark_timely.log.files.format import LogFormat
from spark_timely.sink.columns import roles_of
from spark_timely.spark.base.schema import spark_schema
from tests.unit.sink.driver import BOUNDED, SinkDriver, rows

NAMES = ("a", "b", "c", "d")


def test_lost_column_is_refused_by_name(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1]).append_column("note", pa.array(["x"]))])
    version = driver.log().core.version
    with pytest.raises(errors.SchemaMismatchError, match=r"found no column 'note'.*missingColumns='note'"):
        driver.run([rows([2], 1)])
    assert driver.log().core.version == version
    driver.options["missingColumns"] = "note"
    driver.run([rows([2], 1)])
    assert driver.log().messages()["note"].to_pylist() == ["x", None]


def test_renamed_column_is_named_with_its_new_name(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1]).append_column("amount", pa.array([1.5]))])
    driver.options["mergeSchema"] = "true"
    with pytest.raises(errors.SchemaMismatchError, match="did you mean 'amounts'"):
        driver.run([rows([2]).append_column("amounts", pa.array([1.5]))])


def test_missing_columns_of_another_log_are_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    driver.options["missingColumns"] = "note"
    with pytest.raises(errors.InvalidOptionError, match="found no column 'note' in the log"):
        driver.run([rows([2])])


@given(
    declared=st.sets(st.sampled_from(NAMES), min_size=1),
    required=st.sets(st.sampled_from(NAMES)),
    merged=st.sets(st.sampled_from(NAMES)),
    given_=st.sets(st.sampled_from(NAMES)),
    allowed=st.sets(st.sampled_from(NAMES)),
)
def test_sink_and_writer_agree_on_absent_columns(
    declared: set[str], required: set[str], merged: set[str], given_: set[str], allowed: set[str]
) -> None:
    merged, required = merged - declared, required & declared
    fields = [pa.field(name, pa.int64(), nullable=name not in required) for name in sorted(declared)]
    form = LogFormat.build(pa.schema(fields)).extended(pa.schema([(name, pa.int64()) for name in sorted(merged)]))
    there = declared | merged
    given_, allowed = given_ & there, allowed & there
    # The model: what was there from the beginning is there, or is allowed to be absent and may be null.
    fits = all(name in given_ or name in merged or (name in allowed and name not in required) for name in there)
    table = pa.table({"_time": [1], **{name: [1] for name in sorted(given_)}})
    log = MemoryLog.create(pa.schema(fields))
    if merged:
        log.add_columns(pa.schema([(name, pa.int64()) for name in sorted(merged)]))
    options = {"path": "log", "timeColumn": "_time", "frontier": "hold"}
    if allowed:
        options["missingColumns"] = ",".join(sorted(allowed))
    answers = []
    for attempt in (
        lambda: roles_of(spark_schema(table.schema), parse_options(SINK_OPTIONS, options), form=form),
        lambda: log.writer(owner="me", missing_columns=sorted(allowed)).append(table),
    ):
        try:
            attempt()
        except errors.SchemaMismatchError:
            answers.append(False)
        else:
            answers.append(True)
    assert answers == [fits, fits]
