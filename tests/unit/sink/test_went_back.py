"""A log that was deleted, restored or replaced is noticed by the query that writes it; `beginAt` accepts that once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely import errors
from spark_timely.log.log import create_log
from spark_timely.spark.base import checkpoint
from tests.unit.sink.driver import BOUNDED, SinkDriver, refused, rows

POLICIES: dict[str, dict[str, str]] = {
    "batch": {"frontier": "batch"},
    "bounded": {**BOUNDED, "lateness": "5"},
    "hold": {"timeColumn": "t", "frontier": "hold"},
    "events": {"frontier": "events"},
    "dead letters": {**BOUNDED, "lateData": "deadLetter"},
}
policies = pytest.mark.parametrize("policy", POLICIES)
RECORD = "timely-logs"


def data(policy: str, batch: int) -> pa.Table:
    """Return the one row of a micro-batch."""
    if policy != "events":
        return rows([10 + batch], batch)
    return pa.table(
        {"_event": ["message"], "_delta": pa.array([None], pa.int64()), "_time": [10 + batch], "id": [batch]}
    )


def ids(driver: SinkDriver) -> list[int]:
    return sorted(driver.log().messages()["id"].to_pylist())


def run(driver: SinkDriver, policy: str, batch: int, *, crash: str | None = None) -> None:
    assert driver.run([data(policy, batch)], crash=crash) == batch


def driver_of(folder: Path, policy: str = "bounded", **options: str) -> SinkDriver:
    return SinkDriver(folder, **POLICIES[policy], **options)


def record_of(driver: SinkDriver) -> dict[str, object]:
    found: dict[str, object] = json.loads((driver.checkpoint / RECORD).read_text())
    return found


def restore_copy(driver: SinkDriver) -> None:
    """Put back the copy of the log that was made beside it."""
    shutil.rmtree(driver.log_path)
    shutil.copytree(driver.folder / "copy of the log", driver.log_path)


def copy_log(driver: SinkDriver) -> None:
    shutil.copytree(driver.log_path, driver.folder / "copy of the log")


def cut_checkpoint(driver: SinkDriver, newest: int) -> None:
    """Do what the error says: delete `commits/` after a number and `offsets/` after the next."""
    for name, last in (("commits", newest), ("offsets", newest + 1)):
        for file in (driver.checkpoint / name).iterdir():
            if int(file.name) > last:
                file.unlink()


@policies
def test_deleted_log_is_refused_and_not_made_again(tmp_path: Path, policy: str) -> None:
    driver = driver_of(tmp_path, policy)
    for batch in range(3):
        run(driver, policy, batch)
    shutil.rmtree(driver.log_path)
    with refused(driver, errors.RolledBackError, "could not capture micro-batch 3", "found no log", "new checkpoint"):
        run(driver, policy, 3)
    assert not driver.log_path.exists()


@policies
def test_restored_log_is_refused_until_its_past_is_repeated(tmp_path: Path, policy: str) -> None:
    driver = driver_of(tmp_path, policy)
    run(driver, policy, 0)
    copy_log(driver)
    for batch in (1, 2):
        run(driver, policy, batch)
    restore_copy(driver)
    with refused(
        driver,
        errors.RolledBackError,
        "could not capture micro-batch 3",
        "found the log restored to an earlier state, with seq=1 and micro-batch 0",
        "the query left it at seq=3 and micro-batch 2",
        "delete from 'commits' all numbers after 0 and from 'offsets' all numbers after 1",
        "beginAt=3",
    ):
        run(driver, policy, 3)
    cut_checkpoint(driver, 0)
    for batch in (1, 2, 3):
        run(driver, policy, batch)
    assert ids(driver) == [0, 1, 2, 3]
    assert driver.log().core.stream("main").note.gaps == ()


@policies
def test_log_restored_by_delta_is_refused(tmp_path: Path, policy: str) -> None:
    driver = driver_of(tmp_path, policy)
    for batch in (0, 1):
        run(driver, policy, batch)
    version = driver.log().core.version
    for batch in (2, 3):
        run(driver, policy, batch)
    DeltaTable(str(driver.log_path)).restore(version)
    with refused(
        driver, errors.RolledBackError, "restored to an earlier state", "all numbers after 1", "all numbers after 2"
    ):
        run(driver, policy, 4)
    cut_checkpoint(driver, 1)
    for batch in (2, 3, 4):
        run(driver, policy, batch)
    assert ids(driver) == [0, 1, 2, 3, 4]


@policies
def test_restored_log_is_refused_also_if_it_was_advanced_since(tmp_path: Path, policy: str) -> None:
    """The commit number alone says nothing: others have taken it."""
    driver = driver_of(tmp_path, policy)
    run(driver, policy, 0)
    copy_log(driver)
    run(driver, policy, 1)
    restore_copy(driver)
    for time in (50, 60):
        driver.log().advance("main", time)
    with refused(driver, errors.RolledBackError, "restored to an earlier state"):
        run(driver, policy, 2)


@policies
def test_other_log_in_its_place_is_refused(tmp_path: Path, policy: str) -> None:
    driver = driver_of(tmp_path, policy)
    for batch in range(2):
        run(driver, policy, batch)
    before = driver.log()
    shutil.rmtree(driver.log_path)
    create_log(
        driver.log_path,
        before.schema,
        times=tuple(kind.value for kind in before.domain.types),
        minimum=before.domain.minimum,
    )
    with refused(
        driver, errors.RolledBackError, "found another log", repr(before.core.log_id), repr(driver.log().core.log_id)
    ):
        run(driver, policy, 2)
    assert driver.log().streams() == {}


@policies
def test_micro_batch_that_the_log_lost_is_captured_again(tmp_path: Path, policy: str) -> None:
    driver = driver_of(tmp_path, policy)
    run(driver, policy, 0)
    copy_log(driver)
    run(driver, policy, 1, crash="after commit")
    restore_copy(driver)
    for batch in (1, 2):
        run(driver, policy, batch)
    assert ids(driver) == [0, 1, 2]


def test_crash_between_commit_and_record_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    with monkeypatch.context() as patch:
        patch.setattr("spark_timely.sink.commit.write_entry", _killed)
        with pytest.raises(KeyboardInterrupt):
            run(driver, "bounded", 1)
    assert _newest(driver) == [1, 0, 0]
    for batch in (1, 2):
        run(driver, "bounded", batch)
    assert ids(driver) == [0, 1, 2]
    assert _newest(driver) == [3, 2, 0]


def test_repetition_writes_the_record_that_a_crash_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("spark_timely.sink.commit.write_entry", _killed)
        with pytest.raises(KeyboardInterrupt):
            run(driver, "bounded", 0)
    assert not (driver.checkpoint / RECORD).exists()
    run(driver, "bounded", 0)
    assert _newest(driver) == [1, 0, 0]


def _killed(*args: object, **named: object) -> None:
    raise KeyboardInterrupt


def _newest(driver: SinkDriver) -> object:
    logs = record_of(driver)["logs"]
    assert isinstance(logs, list)
    return logs[0]["commits"][-1]


def test_record_says_which_log_and_how_far(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    for batch in range(2):
        run(driver, "bounded", batch)
    entry = {
        "path": str(driver.log_path),
        "stream": "main",
        "id": driver.log().core.log_id,
        "commits": [[1, 0, 0], [2, 1, 0]],
    }
    assert record_of(driver) == {"v": 1, "query": driver.query, "logs": [entry]}
    assert sorted(file.name for file in driver.checkpoint.iterdir()) == ["commits", "metadata", "offsets", RECORD]


def test_log_under_another_path_is_known_by_its_id(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    copy_log(driver)
    run(driver, "bounded", 1)
    moved = tmp_path / "moved"
    driver.log_path.rename(moved)
    driver.log_path, driver.options["path"] = moved, str(moved)
    run(driver, "bounded", 2)
    (link := tmp_path / "link").symlink_to(moved)
    driver.options["path"] = str(link)
    run(driver, "bounded", 3)
    assert [entry["path"] for entry in record_of(driver)["logs"]] == [str(link)]  # type: ignore[attr-defined]
    restore_copy(driver)
    with refused(driver, errors.RolledBackError, "restored to an earlier state"):
        run(driver, "bounded", 4)
    driver.options["path"] = str(moved)
    with refused(driver, errors.RolledBackError, "restored to an earlier state"):
        run(driver, "bounded", 4)


def test_record_of_another_query_says_nothing(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    shutil.rmtree(driver.log_path)
    for name in ("commits/0", "offsets/0"):
        (driver.checkpoint / name).unlink()
    again = SinkDriver(tmp_path, query="query-b", **POLICIES["bounded"])
    run(again, "bounded", 0)
    assert record_of(again)["query"] == "query-b"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 1}', '{"v": 2, "query": "query-a", "logs": []}'])
def test_record_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    (driver.checkpoint / RECORD).write_text(text)
    with refused(driver, errors.StorageError, "'timely-logs'", str(driver.checkpoint)):
        run(driver, "bounded", 1)


def test_record_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    driver = driver_of(tmp_path)
    monkeypatch.setattr(checkpoint.os, "replace", full)
    for batch in range(3):
        run(driver, "bounded", batch)
    said = [r.getMessage() for r in caplog.records if RECORD in r.getMessage()]
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "hint: " in said[0]
    assert sorted(file.name for file in driver.checkpoint.iterdir()) == ["commits", "metadata", "offsets"]
    # Numbers and note alone.
    DeltaTable(str(driver.log_path)).restore(driver.log().core.version - 1)
    with refused(driver, errors.RolledBackError, "micro-batch 3", "micro-batch 1", "all numbers after 1"):
        run(driver, "bounded", 3)


def test_numbers_of_the_sink_have_no_gaps_without_a_record(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    copy_log(driver)
    for batch in (1, 2):
        run(driver, "bounded", batch)
    restore_copy(driver)
    (driver.checkpoint / RECORD).unlink()
    with refused(
        driver, errors.RolledBackError, "micro-batch 3", "found micro-batch 0 as its newest", "all numbers after 0"
    ):
        run(driver, "bounded", 3)
    driver.options["beginAt"] = "3"
    run(driver, "bounded", 3)
    assert driver.log().core.stream("main").note.gaps == ((1, 2),)


def test_first_number_above_0_is_refused(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    for name in ("offsets", "commits"):
        (driver.checkpoint / name / "0").write_text("v1\n{}\n0")
    with refused(driver, errors.RolledBackError, "micro-batch 1", "no micro-batch of this query", "new checkpoint"):
        run(driver, "bounded", 1)
    driver.options["beginAt"] = "1"
    run(driver, "bounded", 1)
    assert driver.log().core.stream("main").note.gaps == ((0, 0),)


@pytest.mark.parametrize("n_left", [0, 1, 2])
def test_log_restored_to_before_it_was_taken_over_is_refused(tmp_path: Path, n_left: int) -> None:
    """What its former owner had captured by then may be lost too, and the new owner begins behind it."""
    driver = driver_of(tmp_path)
    create_log(driver.log_path, pa.schema({"t": pa.int64(), "id": pa.int64()}), times="long")
    for batch in range(3):
        if batch == n_left:
            copy_log(driver)
        if batch < 2:
            run(driver, "bounded", batch)
    other = SinkDriver(tmp_path, query="query-b", checkpoint="other", takeover="true", **POLICIES["bounded"])
    other.run([data("bounded", 2)])
    (other.checkpoint / "commits" / "0").unlink()
    restore_copy(driver)
    with refused(
        other,
        errors.RolledBackError,
        "could not capture micro-batch 0",
        "found the log restored to an earlier state, "
        + (f"at seq={n_left} and owned by 'query-a'" if n_left else "with no such stream"),
        "this query took it over at seq=3 with micro-batch 0",
        "restore the log's newest state",
        "beginAt=0",
    ):
        other.run([data("bounded", 2)])
    if n_left < 2:
        with refused(driver, errors.RolledBackError, "the query left it at seq=2 and micro-batch 1"):
            run(driver, "bounded", 2)


def test_new_owner_does_not_join_the_former_on_a_restored_log(tmp_path: Path) -> None:
    """Rows that both have read would come twice."""
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    copy_log(driver)
    other = SinkDriver(tmp_path, query="query-b", checkpoint="other", takeover="true", **POLICIES["bounded"])
    other.run([data("bounded", 1)])
    (other.checkpoint / "commits" / "0").unlink()
    restore_copy(driver)
    run(driver, "bounded", 1)
    with refused(other, errors.RolledBackError, "at seq=2 and owned by 'query-a'", "took it over at seq=2"):
        other.run([data("bounded", 1)])
    assert ids(driver) == [0, 1]
    consented = SinkDriver(tmp_path, query="query-b", checkpoint="other", **{**other.options, "beginAt": "0"})
    consented.run([data("bounded", 1)])
    assert ids(driver) == [0, 1, 1]


def test_stream_another_opened_on_a_restored_log_is_not_joined(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, takeover="true")
    create_log(driver.log_path, pa.schema({"t": pa.int64(), "id": pa.int64()}), times="long")
    copy_log(driver)
    run(driver, "bounded", 0, crash="after commit")
    restore_copy(driver)
    SinkDriver(tmp_path, query="query-b", checkpoint="other", **POLICIES["bounded"]).run([data("bounded", 0)])
    with refused(driver, errors.RolledBackError, "an earlier state, at seq=1 and owned by 'query-b'"):
        run(driver, "bounded", 0)


def test_takeover_begins_at_0(tmp_path: Path) -> None:
    run(driver_of(tmp_path), "bounded", 0)
    other = SinkDriver(tmp_path, query="query-b", checkpoint="other", takeover="true", **POLICIES["bounded"])
    for name in ("offsets", "commits"):
        (other.checkpoint / name / "0").write_text("v1\n{}\n0")
    with refused(other, errors.RolledBackError, "micro-batch 1", "no micro-batch of this query"):
        run(other, "bounded", 1)
    other.options["beginAt"] = "1"
    run(other, "bounded", 1)
    state = other.log().core.stream("main")
    assert (state.owner, state.epoch, state.note.gaps) == ("query-b", 1, ((0, 0),))


def delete(driver: SinkDriver) -> None:
    shutil.rmtree(driver.log_path)


def replace(driver: SinkDriver) -> None:
    shutil.rmtree(driver.log_path)
    SinkDriver(driver.folder, query="query-z", checkpoint="z", **POLICIES["bounded"], stream="z", streams="2").run(
        [rows([1])]
    )


@pytest.mark.parametrize(
    ("damage", "missing", "kept"),
    [(delete, (0, 2), []), (replace, (0, 2), [0]), (restore_copy, (1, 2), [0])],
    ids=["deleted", "replaced", "restored"],
)
def test_consent_is_bound_to_one_number(
    tmp_path: Path, damage: Callable[[SinkDriver], None], missing: tuple[int, int], kept: list[int]
) -> None:
    driver = driver_of(tmp_path)
    run(driver, "bounded", 0)
    copy_log(driver)
    for batch in (1, 2):
        run(driver, "bounded", batch)
    damage(driver)
    for number in ("2", "4"):
        driver.options["beginAt"] = number
        with refused(driver, errors.RolledBackError, "could not capture micro-batch 3", "beginAt=3"):
            run(driver, "bounded", 3)
        (driver.checkpoint / "offsets" / "3").unlink()
    driver.options["beginAt"] = "3"
    # Left set, after a crash and for ever: no other number is accepted by it, and nothing is accepted twice.
    run(driver, "bounded", 3, crash="after commit")
    state = driver.log().core.stream("main")
    version = driver.log().core.version
    run(driver, "bounded", 3)
    assert driver.log().core.version == version
    run(driver, "bounded", 4)
    after = driver.log().core.stream("main")
    assert (state.note.gaps, after.note.gaps) == ((missing,), (missing,))
    assert f"micro-batches {missing[0]} to {missing[1]} are missing, by beginAt=3" in state.reason
    assert after.epoch == state.epoch == 1
    assert after.owner == driver.query
    assert ids(driver) == sorted([*kept, 3, 4])
    assert driver.log().verify().legal
    del driver.options["beginAt"]
    copied = tmp_path / "copy of the log"
    shutil.rmtree(copied)
    copy_log(driver)
    for batch in (5, 6):
        run(driver, "bounded", batch)
    restore_copy(driver)
    driver.options["beginAt"] = "3"
    with refused(driver, errors.RolledBackError, "restored to an earlier state"):
        run(driver, "bounded", 7)


def test_consent_without_anything_to_accept_has_no_effect(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, beginAt="1")
    for batch in range(3):
        run(driver, "bounded", batch)
    state = driver.log().core.stream("main")
    assert (state.epoch, state.note.gaps) == (0, ())


def test_consent_does_not_cover_another_plan_of_a_known_number(tmp_path: Path) -> None:
    driver = driver_of(tmp_path, beginAt="1")
    for batch in range(2):
        run(driver, "bounded", batch)
    for name in ("offsets", "commits"):
        (driver.checkpoint / name / "1").unlink()
    with refused(driver, errors.RolledBackError, "planned from other offsets"):
        run(driver, "bounded", 1)


def test_consent_to_a_number_of_another_plan_is_refused(tmp_path: Path) -> None:
    """A copy of the log went on without this checkpoint."""
    driver = driver_of(tmp_path)
    for batch in range(2):
        run(driver, "bounded", batch)
    shutil.copytree(driver.checkpoint, tmp_path / "copied")
    copy = SinkDriver(tmp_path, checkpoint="copied", **POLICIES["bounded"])
    copy.run([rows([12], 70)])
    driver.options["beginAt"] = "2"
    with refused(driver, errors.RolledBackError, "planned from other offsets"):
        run(driver, "bounded", 2)


@pytest.mark.parametrize("value", ["-1", "x", "1.5"])
def test_number_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    with refused(driver_of(tmp_path), errors.InvalidOptionError, "beginAt"):
        driver_of(tmp_path, beginAt=value).run([rows([1])])
