"""Tasks report the digest of their input rows, whatever becomes of those and however the work is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.canonical.row_hash import RowsDigest, digest_of
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.log.log import create_log
from spark_timely.sink import writer
from spark_timely.sink.commit import TaskReport, merge_reports
from spark_timely.sink.plan import BatchId, make_plan
from spark_timely.sink.rows import write_rows
from spark_timely.spark.base.schema import spark_schema
from tests.unit.sink.driver import BOUNDED, MIN, SinkDriver, rows

IDENT = BatchId("query-a", 1)


def digest_through(path: Path, tasks: Sequence[pa.Table], *, chunk: int = 3, **options: str) -> RowsDigest:
    """Return the digest of the merged reports of a micro-batch's tasks."""
    plan = make_plan(spark_schema(tasks[0].schema), parse_options(SINK_OPTIONS, {"path": str(path), **options}), IDENT)
    reports = [write_rows(plan, IDENT, task.to_batches(max_chunksize=chunk)) for task in tasks]
    digest = merge_reports(reports).digest
    assert digest is not None
    return digest


def late(tmp_path: Path, late_data: str) -> Path:
    """Return a log whose stream holds time 8: earlier rows are late."""
    driver = SinkDriver(tmp_path / late_data, **BOUNDED, lateData="deadLetter")
    driver.run([rows([9])])
    return driver.log_path


def test_late_data_option_changes_rows_and_not_their_digest(tmp_path: Path) -> None:
    data = rows([3, 12, 8, 11], 5)
    found = {
        late_data: digest_through(late(tmp_path, late_data), [data], **BOUNDED, lateData=late_data)
        for late_data in ("deadLetter", "advance")
    }
    assert len(set(found.values())) == 1
    assert found["advance"] == digest_of(data, [("t", "t"), ("id", "id")])


@pytest.mark.parametrize("target", ["1 B", "1 GB"])
@pytest.mark.parametrize("cut", [0, 2, 4])
def test_tasks_and_buffers_make_no_difference(tmp_path: Path, cut: int, target: str) -> None:
    data = rows([3, 12, 8, 11], 5)
    parts = [data.slice(cut).take(list(range(3 - cut, -1, -1))) if cut < 4 else data.slice(4), data.slice(0, cut)]
    found = digest_through(tmp_path / "log", parts, chunk=1, **BOUNDED, targetFileSize=target)
    assert found == digest_of(data, [("t", "t"), ("id", "id")])


def test_types_names_and_missing_columns_hash_as_in_the_log(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.int64()), ("id", pa.int64()), ("more", pa.list_(pa.string()))])
    create_log(str(tmp_path / "log"), schema, times=("long",))
    options = {"timeColumn": "T", "frontier": "hold", "missingColumns": "more"}
    narrow = pa.table({"ID": pa.array([7, 8], pa.int16()), "T": pa.array([1, 2], pa.int32())})
    wide = pa.table({"t": [1, 2], "id": [7, 8], "more": pa.nulls(2, pa.list_(pa.string()))})
    found = [digest_through(tmp_path / "log", [data], **options) for data in (narrow, wide)]
    assert found[0] == found[1] == digest_of(wide, [(n, n) for n in wide.column_names])


def test_a_time_that_is_no_payload_counts_under_the_logs_name(tmp_path: Path) -> None:
    options = {"timeColumn": "_time", "frontier": "hold"}
    early, again, later = (pa.table({"_time": [t], "id": [1]}) for t in (1, 1, 2))
    found = [digest_through(tmp_path / "log", [data], **options) for data in (early, again, later)]
    assert found[0] == found[1] != found[2]
    assert found[0] == digest_of(early, [("_time", "_time"), ("id", "id")])


def test_diffs_count(tmp_path: Path) -> None:
    options = {"timeColumn": "t", "frontier": "hold", "diffColumn": "n"}
    data = [pa.table({"t": [1], "id": [1], "n": [n]}) for n in (1, 2, -1)]
    data.append(pa.concat_tables([data[0], data[0]]))
    found = [digest_through(tmp_path / "log", [part], **options) for part in data]
    assert len(set(found)) == len(found)
    assert found[1] == digest_of(data[1], [("t", "t"), ("id", "id"), ("_diff", "n")])


def test_without_times_rows_alone_count(tmp_path: Path) -> None:
    data = rows([1, 2])
    assert digest_through(tmp_path / "log", [data]) == digest_of(data, [("t", "t"), ("id", "id")])


def events(*moves: tuple[str, int, int | None]) -> pa.Table:
    kinds, times, deltas = zip(*moves, strict=True)
    return pa.table(
        {
            "_event": list(kinds),
            "_time": pa.array(times, pa.int64()),
            "_delta": pa.array(deltas, pa.int64()),
            "id": pa.array([1 if kind == "message" else None for kind in kinds], pa.int64()),
        }
    )


def test_progress_rows_of_events_count_with_time_and_change(tmp_path: Path) -> None:
    begin = [("message", 5, None), ("progress", MIN, -1), ("progress", 5, 1)]
    data = [
        events(*begin),
        events(*begin[:2], ("progress", 6, 1)),
        events(*begin[:2], ("progress", 5, 2)),
        events(*begin[1:]),
        events(*begin, begin[2]),
        # Its times cancel out in the counts, and were there all the same.
        events(*begin, ("progress", 7, 1), ("progress", 7, -1)),
    ]
    found = [digest_through(tmp_path / "log", [part], frontier="events") for part in data]
    assert len(set(found)) == len(found)
    assert found[0] == digest_of(data[0], [(n, n) for n in data[0].column_names])
    parts = [data[0].slice(2), data[0].slice(0, 2)]
    assert digest_through(tmp_path / "log", parts, frontier="events") == found[0]


def test_repeated_micro_batch_has_the_digest_of_the_first_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[TaskReport] = []
    real = writer.commit_reports

    def noting(plan: Any, ident: Any, reports: Any) -> object:
        found.append(merge_reports(reports))
        return real(plan, ident, reports)

    monkeypatch.setattr(writer, "commit_reports", noting)
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter")
    driver.run([rows([9]), rows([8, 7], 1)])
    driver.run([rows([12, 3], 3), rows([11], 5)], crash="after commit")
    driver.run([rows([11], 5), rows([3], 4), rows([12], 3)])
    assert [report.repeated for report in found] == [False, False, True]
    assert found[1].digest == found[2].digest != found[0].digest
    assert found[1].digest == digest_of(rows([12, 3, 11], 3), [("t", "t"), ("id", "id")])


def test_reports_without_digest_have_none_together(tmp_path: Path) -> None:
    plan = make_plan(spark_schema(rows([]).schema), parse_options(SINK_OPTIONS, {"path": str(tmp_path / "log")}), IDENT)
    report = write_rows(plan, IDENT, rows([1]).to_batches())
    assert report.digest is not None
    assert merge_reports([report, report]).digest == report.digest + report.digest
    assert merge_reports([report, replace(report, digest=None)]).digest is None
    assert write_rows(plan, IDENT, []).digest == RowsDigest()
