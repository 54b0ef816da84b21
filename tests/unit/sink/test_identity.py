"""A micro-batch is known by what it was planned from, not by its number, its row count or its bounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely import errors
from spark_timely.log.machine.repetition import Repetition, judge_repetition
from spark_timely.protocol.note import MicroBatch
from spark_timely.spark.base.schema import spark_schema
from tests.unit.sink.driver import BOUNDED, SinkDriver, refused, rows

POLICIES: dict[str, dict[str, str]] = {
    "batch": {"frontier": "batch"},
    "bounded": {**BOUNDED, "lateness": "5"},
    "hold": {"timeColumn": "t", "frontier": "hold"},
    "dead letters": {**BOUNDED, "lateData": "deadLetter"},
}
policies = pytest.mark.parametrize("options", POLICIES.values(), ids=POLICIES)


def ids(driver: SinkDriver) -> list[int]:
    return sorted(driver.log().messages()["id"].to_pylist())


def plan_again(driver: SinkDriver, batch: int) -> None:
    """Let the checkpoint forget a micro-batch, as one that was restored from a copy made before it."""
    for name in ("offsets", "commits"):
        (driver.checkpoint / name / str(batch)).unlink(missing_ok=True)


@policies
def test_checkpoint_restored_one_micro_batch_back_loses_no_row(tmp_path: Path, options: dict[str, str]) -> None:
    """Same number, same count, same bounds: the rows that came since would vanish."""
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9])])
    driver.run([rows([10, 11], 1)], sources=['{"file": 7}'])
    plan_again(driver, 1)
    with refused(
        driver,
        errors.RolledBackError,
        "micro-batch 1 (step 0) into stream 'main'",
        "planned from other offsets",
        'the sources of micro-batch 1 in the log end at {"file": 7}',
        "takeover=true",
    ):
        driver.run([rows([10, 11], 50)])
    assert ids(driver) == [0, 1, 2]


@policies
def test_copy_of_a_checkpoint_is_refused_even_with_the_same_rows(tmp_path: Path, options: dict[str, str]) -> None:
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9])])
    shutil.copytree(driver.checkpoint, tmp_path / "copy")
    copy = SinkDriver(tmp_path, checkpoint="copy", **options)
    driver.run([rows([10], 1)])
    with refused(copy, errors.RolledBackError, "planned from other offsets"):
        copy.run([rows([10], 1)])
    driver.run([rows([11], 2)])
    with refused(copy, errors.RolledBackError, "found micro-batch 2 (step 0) of the same query"):
        copy.run([rows([10], 1)])
    assert ids(driver) == [0, 1, 2]


@policies
def test_copy_made_during_a_micro_batch_is_refused_at_the_next(tmp_path: Path, options: dict[str, str]) -> None:
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9])], crash="before commit")
    shutil.copytree(driver.checkpoint, tmp_path / "copy")
    copy = SinkDriver(tmp_path, checkpoint="copy", **options)
    driver.run([rows([9])])
    copy.run([rows([9])])
    copy.run([rows([10], 1)])
    with refused(driver, errors.RolledBackError, "planned from other offsets"):
        driver.run([rows([11], 2)])
    assert ids(driver) == [0, 1]


@policies
def test_repetition_with_other_rows_goes_on_and_is_counted(
    tmp_path: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9])], crash="after commit")
    driver.run([rows([9, 9], 40)], crash="after commit")
    assert "was repeated with other rows than the log holds" in caplog.text
    assert "not deterministic" in caplog.text
    driver.run([rows([9], 7)])
    driver.run([rows([10], 1)])
    state = driver.log().core.stream("main")
    assert (state.note.differing, state.batch) == (2, 1)
    assert ids(driver) == [0, 1]
    assert driver.log().verify().legal


@policies
def test_repetition_by_a_former_owner_writes_nothing(tmp_path: Path, options: dict[str, str]) -> None:
    former = SinkDriver(tmp_path, **options)
    former.run([rows([9])], crash="after commit")
    others = rows([9, 9], 40)
    writer = former.writer(spark_schema(others.schema))
    message = writer.write(iter(others.to_batches()))
    # Between the tasks of the repetition and its commit.
    SinkDriver(tmp_path, query="query-b", checkpoint="other", takeover="true", **options).run([rows([10], 1)])
    version = former.log().core.version
    writer.commit([message], 0)
    assert former.log().core.version == version
    assert former.log().core.stream("main").owner == "query-b"
    assert ids(former) == [0, 1]


@policies
def test_repetition_with_the_same_rows_changes_nothing(tmp_path: Path, options: dict[str, str]) -> None:
    driver = SinkDriver(tmp_path, **options)
    tasks = [rows([9, 10]), rows([11], 2)]
    driver.run(tasks, crash="after commit")
    version = driver.log().core.version
    driver.run([rows([11], 2), rows([], 0), rows([9, 10])], chunk=1)
    assert driver.log().core.version == version
    assert driver.log().core.stream("main").note.differing == 0


def test_late_data_options_make_no_difference_to_a_repetition(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter")
    driver.run([rows([9])])
    driver.run([rows([10, 1], 1)], crash="after commit")
    for late in ("error", "advance"):
        again = SinkDriver(tmp_path, **BOUNDED, lateData=late)
        again.run([rows([10, 1], 1)], crash="after commit")
    state = driver.log().core.stream("main")
    assert (state.note.differing, state.note.batch.dead, state.seq) == (0, 1, 2)


@policies
def test_empty_micro_batch_that_was_planned_again_is_passed_over(tmp_path: Path, options: dict[str, str]) -> None:
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9])])
    driver.run([rows([])])
    plan_again(driver, 1)
    driver.run([rows([])])
    plan_again(driver, 1)
    with refused(driver, errors.RolledBackError, "planned from other offsets"):
        driver.run([rows([10], 1)])
    plan_again(driver, 1)
    driver.run([rows([])])
    driver.run([rows([10], 1)])
    assert ids(driver) == [0, 1]


@policies
def test_log_put_back_and_written_by_a_copy_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    """The numbers fit, and rows between the ends of the two micro-batches 2 would be lost."""
    driver = SinkDriver(tmp_path, **options)
    for number in range(2):
        driver.run([rows([9 + number], number)])
    shutil.copytree(driver.checkpoint, tmp_path / "copy")
    shutil.copytree(driver.log_path, tmp_path / "kept")
    driver.run([rows([11, 11], 2)])
    shutil.rmtree(driver.log_path)
    shutil.copytree(tmp_path / "kept", driver.log_path)
    copy = SinkDriver(tmp_path, checkpoint="copy", **options)
    copy.run([rows([11], 2)])
    text = "found micro-batch 2 in it, and this checkpoint planned another one of that number"
    with refused(driver, errors.RolledBackError, "micro-batch 3 (step 0)", text):
        driver.run([rows([12], 4)])
    copy.run([rows([11, 12], 3)])
    assert ids(driver) == [0, 1, 2, 3, 4]


def test_empty_micro_batch_after_another_history_is_refused(
    tmp_path: Path,
) -> None:
    driver = SinkDriver(tmp_path, frontier="batch")
    driver.run([rows([1], 0)])
    shutil.copytree(driver.checkpoint, tmp_path / "copy")
    shutil.copytree(driver.log_path, tmp_path / "kept")
    driver.run([rows([2, 2], 1)])
    shutil.rmtree(driver.log_path)
    shutil.copytree(tmp_path / "kept", driver.log_path)
    copy = SinkDriver(tmp_path, checkpoint="copy", frontier="batch")
    copy.run([rows([2], 1)])
    copy.run([rows([])])
    with refused(driver, errors.RolledBackError, "planned from other offsets"):
        driver.run([rows([])])


@policies
def test_empty_micro_batch_is_refused_where_the_log_has_rows(tmp_path: Path, options: dict[str, str]) -> None:
    """Passed over, the rows that it left out would come with the next micro-batch, and be in the log twice."""
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9])])
    driver.run([rows([10], 1)])
    plan_again(driver, 1)
    with refused(driver, errors.RolledBackError, "planned from other offsets"):
        driver.run([rows([])])


@policies
def test_rows_decide_where_the_offsets_cannot_be_read(
    tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_timely.sink.writer.planned_offsets", lambda *args, **named: None)
    driver = SinkDriver(tmp_path, **options)
    driver.run([rows([9, 10])], crash="after commit")
    driver.run([rows([10], 1), rows([9])], crash="after commit")
    assert driver.log().core.stream("main").note.differing == 0
    with refused(driver, errors.RolledBackError, "of this number in it with other rows"):
        driver.run([rows([9, 10], 1)])
    swapped = pa.table({"t": [9, 10], "id": [1, 0]})
    with refused(driver, errors.RolledBackError, "of this number in it with other rows"):
        driver.run([swapped])
    assert ids(driver) == [0, 1]


def test_note_of_a_micro_batch_says_what_it_was_planned_from(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9, 10])], sources=['{"a": 1}', "é" * 20_000])
    batch = driver.log().core.stream("main").note.batch
    assert (batch.seq, batch.n_input) == (1, 2)
    assert batch.source.startswith('{"a": 1}\né')
    assert 16_000 < len(batch.source.encode()) <= 16 * 1024
    assert (
        json.loads(driver.log().core.progress()["_note"].drop_null()[-1].as_py())["batch"]["offsets"] == batch.offsets
    )
    driver.log().advance("main", 20)
    assert driver.log().core.stream("main").note.batch == batch


@pytest.mark.parametrize(
    ("recorded", "repeated", "found"),
    [
        (None, MicroBatch(offsets="a"), Repetition.UNKNOWN),
        (MicroBatch(), MicroBatch(), Repetition.UNKNOWN),
        (MicroBatch(offsets="a"), MicroBatch(offsets="a"), Repetition.SAME),
        (MicroBatch(offsets="a"), MicroBatch(offsets="b"), Repetition.OTHER),
        (MicroBatch(offsets="a"), MicroBatch(), Repetition.OTHER),
        (MicroBatch(offsets="a", n_input=0), MicroBatch(offsets="b", n_input=0), Repetition.OTHER),
        (
            MicroBatch(offsets="a", before="x", n_input=0),
            MicroBatch(offsets="b", before="x", n_input=0),
            Repetition.SAME,
        ),
        (
            MicroBatch(offsets="a", before="x", n_input=0),
            MicroBatch(offsets="b", before="y", n_input=0),
            Repetition.OTHER,
        ),
        (MicroBatch(offsets="a", n_input=1), MicroBatch(offsets="b", n_input=0), Repetition.OTHER),
        (MicroBatch(offsets="a", n_input=0), MicroBatch(offsets="b"), Repetition.OTHER),
        (MicroBatch(digest="arrow1:1:" + 32 * "0"), MicroBatch(digest="spark1:1:" + 32 * "0"), Repetition.OTHER),
        (MicroBatch(digest="arrow1:1:" + 32 * "0"), MicroBatch(digest="arrow1:1:" + 32 * "0"), Repetition.SAME),
        (
            MicroBatch(offsets="a", digest="arrow1:1:" + 32 * "0"),
            MicroBatch(offsets="a", digest="arrow1:1:" + 32 * "1"),
            Repetition.DIFFERING,
        ),
        (
            MicroBatch(offsets="a", digest="arrow1:1:" + 32 * "0"),
            MicroBatch(digest="arrow1:1:" + 32 * "0"),
            Repetition.SAME,
        ),
    ],
)
def test_repetitions_are_judged_by_what_is_known(
    recorded: MicroBatch | None, repeated: MicroBatch, found: Repetition
) -> None:
    assert judge_repetition(recorded, repeated) is found
