"""A log that cannot be read, or not in full, is left as it is by the sink and by the source, to the last byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_timely import errors
from spark_timely.datasource import reader
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.log.log import forget_logs
from spark_timely.log.store import delta as delta_store
from tests.unit.sink.driver import BOUNDED, SinkDriver, rows


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once at what may still be written, or may show up later."""
    monkeypatch.setattr(delta_store, "_pause", lambda _: None)
    monkeypatch.setattr(reader, "_RETRIES_S", ())


def contents(folder: Path) -> dict[str, str]:
    """Return a hash of each file in a folder."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def commit(driver: SinkDriver, action: dict[str, object]) -> None:
    """Add a commit with one action to the table, as another writer would."""
    version = driver.log().core.version + 1
    (driver.log_path / "_delta_log" / f"{version:020d}.json").write_text(json.dumps(action) + "\n")


def newer_format(driver: SinkDriver) -> None:
    """Make the log one of a format that is still to be invented."""
    for file in (driver.log_path / "_delta_log").glob("*.json"):
        file.write_text(file.read_text().replace('\\\\\\"version\\\\\\": 4', '\\\\\\"version\\\\\\": 99'))


def unknown_feature(driver: SinkDriver) -> None:
    """Add a feature that readers must know."""
    features = {"readerFeatures": ["notInvented"], "writerFeatures": ["notInvented", "appendOnly", "invariants"]}
    commit(driver, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})


def broken_commit(driver: SinkDriver) -> None:
    """Leave half a commit."""
    (driver.log_path / "_delta_log" / f"{driver.log().core.version + 1:020d}.json").write_text('{"add": {"pa')


def newest(driver: SinkDriver, event: str) -> Path:
    """Return the file of the newest commit."""
    return max((driver.log_path / f"_event={event}").glob("main-*"))


# What is done to a log, and what the error says.
FAULTS: dict[str, tuple[Callable[[SinkDriver], object], str]] = {
    "newer format": (newer_format, "found format version=99"),
    "feature that nobody knows": (unknown_feature, "'notInvented'"),
    "broken commit": (broken_commit, "could not open log"),
    "missing progress file": (lambda driver: newest(driver, "progress").unlink(), "found no such file"),
    "corrupt progress file": (lambda driver: newest(driver, "progress").write_bytes(b"PAR1 no"), "no valid Parquet"),
    "missing data file": (lambda driver: newest(driver, "message").unlink(), "missing"),
    "corrupt data file": (lambda driver: newest(driver, "message").write_bytes(b"PAR1 no"), "corrupt"),
}


def damaged(folder: Path, fault: str) -> SinkDriver:
    """Return a query whose log has two micro-batches and a fault."""
    driver = SinkDriver(folder, **BOUNDED)
    driver.run([rows([1])])
    driver.run([rows([5, 9])])
    FAULTS[fault][0](driver)
    forget_logs()  # a process that lives on would not read again what it knows
    return driver


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"missing data file", "corrupt data file"}))
def test_sink_refuses_and_changes_nothing(tmp_path: Path, fault: str) -> None:
    driver = damaged(tmp_path, fault)
    before = contents(driver.log_path)
    with pytest.raises(errors.TimelyError) as found:
        driver.run([rows([12])])
    assert found.value.message.startswith("could not ")
    assert FAULTS[fault][1] in str(found.value)
    assert contents(driver.log_path) == before


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_source_refuses_and_changes_nothing(tmp_path: Path, fault: str) -> None:
    driver = damaged(tmp_path, fault)
    before = contents(driver.log_path)
    with pytest.raises(errors.TimelyError) as found:
        replay(str(driver.log_path))
    assert found.value.message.startswith("could not ")
    assert FAULTS[fault][1] in str(found.value)
    assert contents(driver.log_path) == before


def replay(path: str) -> int:
    """Read all closed times as Spark does for a batch read; return the number of rows."""
    source = TimelyDataSource({"path": path})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def test_the_same_without_a_fault_goes_through(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    driver.run([rows([5, 9])])
    before = contents(driver.log_path)
    assert replay(str(driver.log_path)) == 2
    assert contents(driver.log_path) == before
    driver.run([rows([12])])
    assert contents(driver.log_path) != before
