"""The SQL of the digest, and the wait for what Spark observes in a write job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from spark_timely import errors
from spark_timely.canonical.row_hash import RowsDigest
from spark_timely.spark.base import observed
from spark_timely.spark.capture import foreach_batch, staging
from spark_timely.spark.capture.classify import digest_in, row_hash_sql
from tests.unit.sink.driver import rows
from tests.unit.spark.capture import test_foreach_batch as support

write_job = support.write_job


class Counts:
    """An observation, as far as it is looked at; it may wait for what does not come."""

    def __init__(self, found: dict[str, int] | Exception | None) -> None:
        self.found = found
        self.free = threading.Event()

    @property
    def get(self) -> dict[str, int]:
        if self.found is None:
            self.free.wait(60)
            return {}
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def capture(path: Path, monkeypatch: pytest.MonkeyPatch, table: pa.Table, counts: Counts) -> list[RowsDigest | None]:
    """Capture a table while Spark observes something; return the digests that are committed."""
    found: list[RowsDigest | None] = []
    real = foreach_batch.commit_reports

    def noting(plan: Any, ident: Any, reports: Any) -> object:
        found.extend(report.digest for report in reports)
        return real(plan, ident, reports)

    with monkeypatch.context() as patch:
        patch.setattr(foreach_batch, "commit_reports", noting)
        patch.setattr(foreach_batch, "counted", lambda df, *_: (df, counts))
        support.run(path, table, 0)
    return found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    """Return an observation that never ends, and wait for it no longer than a moment."""
    monkeypatch.setattr(observed, "WAIT_S", 0.01)
    counts = Counts(None)
    yield counts
    counts.free.set()


def test_what_is_observed_becomes_the_digest_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts({"n": 2, "digest_upper": -1, "digest_lower": 3})
    assert capture(tmp_path / "log", monkeypatch, rows([5, 6]), counts) == [RowsDigest(3, 2**64 - 1, 2, "spark1")]


def test_rows_that_were_left_on_another_machine_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts({"n": 3, "digest_upper": 0, "digest_lower": 0})
    with pytest.raises(errors.StorageError, match="found 2 of 3 rows written") as found:
        capture(tmp_path / "log", monkeypatch, rows([5, 6]), counts)
    assert found.value.determinate


def test_an_observation_without_end_costs_the_digest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    assert capture(tmp_path / "log", monkeypatch, rows([5, 6]), impatient) == [None]
    assert "found no counts of a write job after 0.01 s" in caplog.text
    assert support.files(tmp_path / "log") == ["part-0.parquet"]


@pytest.mark.parametrize(("written", "found"), [(None, "no count of the rows"), (3, "2 of 3 rows"), (2, None)])
def test_rows_must_be_counted_where_files_may_be_elsewhere(written: int | None, found: str | None) -> None:
    plan: Any = SimpleNamespace(options=SimpleNamespace(path="s3://bucket/log"))
    nothing: Any = None
    storage: Any = SimpleNamespace(local=False)
    staged = staging.Staged(plan, nothing, nothing, storage, "x", uniform=True)
    with nullcontext() if found is None else pytest.raises(errors.StorageError, match=f"found {found} written"):
        staged._check_all_there(2, [], written)


def test_an_error_of_spark_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="session is gone"):
        capture(tmp_path / "log", monkeypatch, rows([5]), Counts(RuntimeError("session is gone")))
    assert support.files(tmp_path / "log") == []


def test_columns_count_in_order_of_their_names_in_the_log() -> None:
    schema = StructType().add("B", "long").add("a", "string")
    one = row_hash_sql([("b", "B"), ("a", "a")], schema)
    assert one == row_hash_sql([("a", "a"), ("b", "B")], schema)
    assert one != row_hash_sql([("a", "B"), ("b", "a")], schema)
    assert row_hash_sql([], schema) == "xxhash64(0L)"


def test_names_inside_lists_and_maps_do_not_hide_each_other() -> None:
    kind = MapType(StringType(), ArrayType(ArrayType(LongType())))
    text = row_hash_sql([("m", "m")], StructType().add("m", kind))
    assert "transform(map_entries(`m`), x0 -> " in text
    assert "transform(x0.value, x1 -> " in text
    assert "transform(x1, x2 -> " in text


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"n": 4},
        {"n": 0},
        {"n": 4, "digest_upper": 3, "digest_lower": None},
        {"n": 4, "digest_upper": None, "digest_lower": 3},
    ],
)
def test_without_sums_there_is_no_digest(found: dict[str, int | None]) -> None:
    assert digest_in(found) is None


def test_no_rows_have_a_digest() -> None:
    assert digest_in({"n": 0, "digest_upper": None, "digest_lower": None}) == RowsDigest(scheme="spark1")
