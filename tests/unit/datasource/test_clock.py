"""The clock: it ticks when a frontier moved, and once in each run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.conf.options import SOURCE_OPTIONS, SourceOptions, parse_options
from spark_timely.datasource.clock import Alarm, Clock, check_clock_options, storage_of_logs
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.errors import DataLossError, InvalidOptionError, InvalidUsageError, StorageError
from spark_timely.log import MemoryLog
from spark_timely.log.log import create_log
from spark_timely.testing import ManualClock


def offset(found: dict[str, object]) -> dict[str, object]:
    """Return an offset as Spark gives it back: through its text."""
    copy: dict[str, object] = json.loads(json.dumps(found))
    return copy


def test_clock_ticks_when_a_frontier_moves_and_once_per_run() -> None:
    logs = [MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,)) for _ in range(2)]
    logs[1].core.store.path = "other"  # type: ignore[misc]
    writer = logs[0].another().writer(owner="test")
    now = ManualClock()
    clock = Clock(logs, run="one", now=now)
    start = offset(clock.initial())
    first = offset(clock.latest(start))
    assert first != start
    assert clock.rows(start, first)["_log"].to_pylist() == ["memory", "other"]
    assert clock.latest(first) == first
    writer.append(pa.table({"_time": [1], "v": [1]}))
    now.advance(1)
    assert clock.latest(first) == first, "rows alone move no frontier"
    writer.advance(4)
    assert clock.latest(first) == first, "not before the poll interval is over"
    now.advance(1)
    second = offset(clock.latest(first))
    assert clock.rows(first, second).to_pylist() == [{"_log": "memory", "_frontier": "[4]"}]
    again = Clock(logs, run="two", now=now)
    third = offset(again.latest(second))
    assert third != second
    assert again.rows(second, third).num_rows == 0
    assert again.latest(third) == third


def test_alarm_makes_one_micro_batch_although_no_log_moved(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("{}")
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    now = ManualClock()
    setter = Alarm(str(tmp_path), "one", now=now, wall=now)
    clock = Clock([log], run="one", alarm=Alarm(str(tmp_path), "one", now=now, wall=now), now=now)
    first = offset(clock.latest(clock.initial()))
    assert setter.set(0.0)
    second = offset(clock.latest(first))  # at once, whatever the poll interval
    assert second != first
    assert clock.rows(first, second).num_rows == 0
    assert clock.latest(second) == second
    assert setter.set(4.0)
    assert clock.latest(second) == second
    now.advance(4)
    third = offset(clock.latest(second))
    assert third != second
    # A planner that begins at the checkpoint knows what it has made a micro-batch of.
    again = Clock([log], run="one", alarm=Alarm(str(tmp_path), "one", now=now, wall=now), now=now)
    assert again.latest(third) == third
    # One of before Spark 4.2 asks without a start.
    assert clock.latest(clock.initial()) == third
    # Another run has alarms of its own, and a run that ends by itself has none.
    other = Clock([log], run="two", alarm=Alarm(str(tmp_path), "two", now=now, wall=now), now=now)
    fourth = offset(other.latest(third))
    assert (fourth["run"], fourth["alarm"]) == ("two", 0)
    clock.prepare_available_now()
    assert setter.set(0.0)
    assert clock.latest(third) == third


class Shaky(MemoryLog):
    """A log that cannot be looked at for some looks."""

    fails = 0
    error: type[StorageError] = StorageError

    def refresh(self) -> bool:
        if self.fails:
            self.fails -= 1
            msg = "could not reach the log"
            raise self.error(msg)
        return super().refresh()


def test_logs_unreadable_for_a_moment_are_as_they_were() -> None:
    log = Shaky.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    assert isinstance(log, Shaky)
    now = ManualClock()
    seen = log.another()
    assert isinstance(seen, Shaky)
    clock = Clock([seen], run="one", now=now)
    first = offset(clock.latest(clock.initial()))
    log.writer(owner="test").advance(4)
    seen.fails = 5
    for pause in (0.5, 1, 2, 4, 8):
        now.advance(1)
        assert clock.latest(first) == first
        left = seen.fails
        now.advance(pause * 0.75)
        assert clock.latest(first) == first
        assert seen.fails == left, "not before the pause is over"
        now.advance(pause * 0.25)
    assert offset(clock.latest(first))["frontiers"] == {"memory": [4]}
    seen.fails = 100
    for _ in range(5):
        now.advance(100)
        clock.latest(first)
    now.advance(100)
    with pytest.raises(StorageError, match="could not reach the log"):
        clock.latest(first)


@pytest.mark.parametrize("look", ["the first", "for the end", "that finds data lost"])
def test_look_that_fails_is_told_at_once(look: str) -> None:
    log = Shaky.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    assert isinstance(log, Shaky)
    now = ManualClock()
    clock = Clock([log], run="one", now=now)
    if look != "the first":
        clock.latest(clock.initial())
    now.advance(1)
    log.fails, log.error = 1, DataLossError if look == "that finds data lost" else StorageError
    with pytest.raises(StorageError, match="could not reach the log"):
        clock.prepare_available_now() if look == "for the end" else clock.latest(clock.initial())


def test_clock_stands_still_after_available_now() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    now = ManualClock()
    clock = Clock([log.another()], run="one", now=now)
    clock.prepare_available_now()
    log.writer(owner="test").advance(7)
    now.advance(9)
    end = offset(clock.latest(clock.initial()))
    assert end["frontiers"] == {"memory": [0]}
    assert clock.latest(end) == end


def test_what_is_no_clock_is_refused() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    with pytest.raises(InvalidUsageError, match="no offset of a clock"):
        Clock([log], run="").latest({"version": 1, "delivery": "complete"})
    with pytest.raises(InvalidOptionError, match=r"found options \['workers'\]"):
        check_clock_options(parse_options(SOURCE_OPTIONS, {"path": "log", "content": "clock", "workers": 2}))
    with pytest.raises(InvalidOptionError, match=r"found options \['logs', 'run'\] with content='messages'"):
        TimelyDataSource({"path": "log", "run": "a", "logs": "b"}).schema()
    with pytest.raises(InvalidUsageError, match="could not read a clock as a batch"):
        TimelyDataSource({"path": "log", "content": "clock"}).reader(None)  # type: ignore[arg-type]


# What Spark's processes for a clock call, and then that for rows.
ASKED = """
import sys
from spark_timely.datasource.source import TimelyDataSource
source = TimelyDataSource({"path": sys.argv[1], "content": "clock"})
reader = source.streamReader(source.schema())
assert reader.latestOffset(reader.initialOffset(), None)["frontiers"] == {sys.argv[1]: [0]}
print(*sys.modules)
TimelyDataSource({"path": sys.argv[1]}).schema()
print(*sys.modules)
"""


def test_process_of_a_clock_loads_neither_reader_nor_conditions(tmp_path: Path) -> None:
    path = create_log(str(tmp_path / "log"), pa.schema([("v", pa.int64())]), minimum=(0,)).path
    run = subprocess.run([sys.executable, "-c", ASKED, path], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    clock, rows = (set(line.split()) for line in run.stdout.splitlines())
    kept = {"spark_timely.predicate", "spark_timely.datasource.splits", "spark_timely.datasource.planner"}
    assert not clock & {*kept, "spark_timely.datasource.reader", "sqlglot"}
    assert kept <= rows
    assert "sqlglot" not in rows, "no condition was given"


def test_clock_has_the_text_of_dates_beside_their_numbers() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), times="date", minimum="2013-01-01")
    now = ManualClock()
    clock = Clock([log.another()], run="one", now=now)
    first = offset(clock.latest(clock.initial()))
    assert (first["frontiers"], first["iso"]) == ({"memory": [15706]}, {"memory": ["2013-01-01"]})
    now.advance(1)
    assert clock.latest(first) == first
    log.writer(owner="me").advance("2013-06-13")
    now.advance(1)
    second = offset(clock.latest(first))
    assert second["iso"] == {"memory": ["2013-06-13"]}
    # What an earlier version wrote is a position too.
    without = {name: value for name, value in first.items() if name != "iso"}
    assert clock.rows(without, second).num_rows == clock.rows(first, second).num_rows == 1


def _clock_options(**more: str) -> SourceOptions:
    return parse_options(SOURCE_OPTIONS, {"path": "s3://one/log", "content": "clock", **more})


def test_each_log_of_a_clock_has_its_own_options() -> None:
    own = {"s3://two/log": {"credential": "lake", "storage.aws_region": "b"}, "/data/log": {}}
    logs = json.dumps(["s3://two/log", "/data/log", "s3://three/log"])
    given = {"storage.aws_region": "a", "alarm": "gs://four/checkpoint", "logs": logs, "logOptions": json.dumps(own)}
    named = {"lake": {"aws_region": "c", "aws_secret_access_key": "hidden-word-of-a-test"}}
    assert storage_of_logs(_clock_options(**given), named) == {
        "s3://one/log": {"aws_region": "a"},
        "s3://two/log": {"aws_region": "b", "aws_secret_access_key": "hidden-word-of-a-test"},
        "/data/log": {},
        "s3://three/log": {"aws_region": "a"},
        "gs://four/checkpoint": {},
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1]", "no JSON object of objects"),
        ('{"/two": {"storage.aws_region": 5}}', "no JSON object of objects"),
        ("hidden-word-of-a-test", "no JSON object of objects"),
        ('{"/two": {"storage.aws_secret_access_key": "hidden-word-of-a-test"}}', "found a credential"),
        ('{"/two": {"credential": "nobody-gave-it"}}', "found no credential of that name"),
        ('{"/two": {"storage.aws_regoin": "x1"}}', "did you mean 'aws_region'"),
    ],
)
def test_options_of_a_clock_that_do_not_fit_are_refused(text: str, found: str) -> None:
    with pytest.raises(InvalidOptionError, match=found) as caught:
        storage_of_logs(_clock_options(logs="/two", logOptions=text), {})
    assert "hidden-word" not in str(caught.value)
