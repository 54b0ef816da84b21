"""How logs, writers, cuts and states show themselves: one line, times as people write them, nothing read."""

from __future__ import annotations

import datetime as dt
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.errors import StorageError
from spark_timely.log import MemoryLog
from spark_timely.log.machine.state import StreamState

SCHEMA = pa.schema([("v", pa.int64())])
NOON = dt.datetime(2013, 6, 13, 16, tzinfo=dt.UTC)


@pytest.fixture
def path(tmp_path: Path) -> str:
    log = spark_timely.create_log(tmp_path / "a <b>", SCHEMA, times="timestamp", minimum="2013-01-01", streams=2)
    for name in ("one", "two"):
        log.writer(name, owner=f"owner of {name}").append({"_time": [NOON], "v": [1]}, advance_to=NOON, batch=7)
    return log.path


def test_log_shows_its_streams_and_frontier_once_they_are_read(path: str) -> None:
    log = spark_timely.open_log(path)
    assert repr(log) == f"Log({path!r})"
    log.frontier()
    assert repr(log) == f"Log({path!r}, streams=2, frontier=2013-06-13T16:00Z)"
    log.close()
    assert repr(log) == f"Log({path!r}, streams=2, frontier=complete)"


def test_writer_cut_and_states_show_times_as_people_write_them(path: str) -> None:
    log = spark_timely.open_log(path)
    writer = log.writer("one", owner="owner of one")
    assert repr(writer) == f"StreamWriter({path!r}, stream='one', owner='owner of one')"
    assert repr(spark_timely.cut([log])) == f"Cut(frontier=2013-06-13T16:00Z, logs=[{path!r}])"
    shown = "StreamState('one', seq=1, frontier=2013-06-13T16:00Z, owner='owner of one', batch=7)"
    assert repr(log.core.stream("one")) == shown
    outcome = writer.advance("2013-06-14")
    assert "frontier=2013-06-14T00:00Z" in repr(outcome)
    assert outcome.state == spark_timely.open_log(path).core.stream("one")


def test_states_that_a_handle_has_not_read_know_their_times_too() -> None:
    log = MemoryLog.create(SCHEMA, times="date", minimum="2013-01-01")
    assert "frontier=2013-01-01" in repr(log.core.open_stream("claimed", owner="me"))
    assert "frontier=2013-01-01" in repr(log.core.open_stream("copied", owner="you"))
    assert repr(log.streams()["claimed"]) == "StreamState('claimed', seq=0, frontier=2013-01-01, owner='me')"


class Gone:
    """A store that is not there any more."""

    path = "a"

    def __getattr__(self, name: str) -> Any:
        raise StorageError(f"could not read {name}: found <nothing>")


def test_showing_reads_nothing_and_never_fails(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = spark_timely.open_log(path)
    log.frontier()
    state = log.core.stream("one")
    monkeypatch.setattr(log.core.states, "store", Gone())
    assert repr(log) == "Log(…)"
    assert isinstance(state, StreamState)
    assert "could not read format" in log._repr_html_()


def test_showing_waits_for_no_commit_of_another_thread(path: str) -> None:
    import threading

    log = spark_timely.open_log(path)
    log.frontier()
    texts: list[str] = []
    with log.core.lock:
        thread = threading.Thread(target=lambda: texts.append(repr(log)))
        thread.start()
        thread.join(60)
    assert texts == [f"Log({path!r}, streams=2, frontier=2013-06-13T16:00Z)"]


def test_log_in_a_notebook_has_its_facts_and_streams(path: str) -> None:
    log = spark_timely.open_log(path)
    found = ET.fromstring(log._repr_html_())
    cells = list(_texts(found))
    assert path in cells[0]
    for text in ("2013-06-13T16:00Z", "one", "two", "owner of two", "v int64", "2"):
        assert text in cells, text


def _texts(found: ET.Element) -> Iterator[str]:
    return (text.strip() for text in found.itertext() if text.strip())


@pytest.mark.parametrize(
    ("frontier", "text"),
    [([], "complete"), ([[1, 2]], "(1, 2)"), ([[i, 9 - i] for i in range(9)], "{(0, 9), (1, 8), (2, 7), (3, 6), (4, 5)"
      ", (5, 4), (6, 3), (7, 2), … 1 more}")],
)  # fmt: skip
def test_frontiers_of_any_number_of_times_fit_a_line(frontier: Any, text: str) -> None:
    log = MemoryLog.create(SCHEMA, times=("long", "long"), minimum=(0, 0))
    log.writer(owner="me").advance(frontier)
    assert repr(log) == f"MemoryLog('memory', streams=1, frontier={text})"
