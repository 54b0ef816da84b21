"""The frontier that delta-rs finds alone is that of the opened log, or there is none."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_timely.errors import ForeignChangeError
from spark_timely.log import Log
from spark_timely.log.files.format import FORMAT_VERSIONS, METADATA_KEY
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import newest

SCHEMA = pa.schema([("v", pa.int64())])


def found(path: str) -> tuple[str, list[int]] | None:
    """Return what would be found in a process in which nothing is loaded yet."""
    entry = newest._newest(path)
    return None if entry is None else newest._found(path, *entry)


def same(path: str) -> None:
    log = open_log(path)
    elements = [element[0] for element in log.frontier().elements]
    assert found(path) == (log.domain.types[0].value, elements)


def test_constants_are_those_of_the_format() -> None:
    assert (newest.FORMAT_VERSIONS, newest.METADATA_KEY) == (FORMAT_VERSIONS, METADATA_KEY)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_have_the_frontier_of_the_opened_log(log_path: str, seed: int) -> None:
    draw = random.Random(seed)
    log = create_log(log_path, SCHEMA, minimum=(0,), streams=draw.randint(1, 3), merge_every=draw.choice([2, 5, None]))
    same(log_path)
    times: dict[str, int] = {}
    for _ in range(25):
        stream = draw.choice("abc")
        if stream not in times:
            if log.streams() and log.frontier().is_empty:
                break
            times[stream] = log.core.open_stream(stream, owner="me").counts.times.min()
        state = log.core.stream(stream)
        if state is None or state.closed:
            continue
        times[stream] = max(times[stream], state.frontier.elements[0][0]) + draw.randint(0, 3)
        if draw.random() < 0.05:
            log.close(stream)
        elif draw.random() < 0.5:
            rows = pa.table({"_time": [times[stream]], "v": [1]})
            log.writer(stream, owner="me").append(rows, advance_to=times[stream] + 1)
        else:
            log.writer(stream, owner="me").advance(times[stream] + 1)
        same(log_path)
    log.compact()
    same(log_path)
    log.close()
    assert found(log_path) == ("long", [])
    same(log_path)


@pytest.mark.parametrize(
    ("type_", "at"),
    [
        ("short", 5),
        ("int", 7),
        ("date", dt.date(2013, 6, 12)),
        ("timestamp", dt.datetime(2013, 6, 12, 8, tzinfo=dt.UTC)),
    ],
)
def test_times_of_all_types_are_those_of_the_opened_log(log_path: str, type_: str, at: object) -> None:
    log = create_log(log_path, SCHEMA, times=(type_,))
    same(log_path)
    log.writer(owner="me").advance(at)
    same(log_path)


@pytest.fixture
def log(log_path: str) -> Log:
    log = create_log(log_path, SCHEMA, minimum=(0,))
    for time in range(3):
        log.writer(owner="me").append(pa.table({"_time": [time], "v": [1]}), advance_to=time + 1)
    return log


def test_behind_merges_by_others_the_log_is_opened(log: Log) -> None:
    DeltaTable(log.path).optimize.compact()
    assert found(log.path) is None
    log.writer(owner="me").advance(4)
    same(log.path)
    DeltaTable(log.path).create_checkpoint()
    same(log.path)


def test_behind_what_others_changed_there_is_none(log: Log) -> None:
    DeltaTable(log.path).delete("_event = 'message' and _time = 2")
    assert found(log.path) is None
    log.writer(owner="me").advance(4)  # it is not for a writer to say that all is well
    assert found(log.path) is None
    with pytest.raises(ForeignChangeError):
        log.frontier()


def cut(log: Log) -> None:
    entry = Path(log.path, "_delta_log", f"{log.core.version:020}.json")
    entry.write_bytes(entry.read_bytes().splitlines(keepends=True)[0])


def empty(log: Log) -> None:
    Path(log.path, "_delta_log", f"{log.core.version - 1:020}.json").write_bytes(b"")


def copied(log: Log) -> None:
    folder = Path(log.path, "_delta_log")
    shutil.copy(folder / f"{log.core.version:020}.json", folder / f"{log.core.version + 1:020}.json")


def half_written(log: Log) -> None:
    Path(log.path, "_delta_log", "_commit_0.json.tmp").write_bytes(b"")


def of_a_newer_version(log: Log) -> None:
    for entry in Path(log.path, "_delta_log").glob("*.json"):
        newer = entry.read_text().replace('\\"version\\": 4', '\\"version\\": 5')
        entry.write_text(newer.replace('\\\\\\"version\\\\\\": 4', '\\\\\\"version\\\\\\": 5'))


@pytest.mark.parametrize("harm", [cut, empty, copied, half_written, of_a_newer_version])
def test_what_is_not_plain_is_left_to_the_opened_log(log: Log, harm: Callable[[Log], None]) -> None:
    assert found(log.path) == ("long", [3])
    harm(log)
    code = f"from spark_timely.log.store.newest import newest_frontier; print(newest_frontier({log.path!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "None\n"


def test_lost_progress_and_other_tables_have_no_frontier(log: Log, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"v": [1]}))
    product = create_log(str(tmp_path / "product"), SCHEMA, times=("long", "long"), minimum=(0, 0))
    for file in Path(log.path).glob("_event=progress/*"):
        file.unlink()
    paths = [str(tmp_path / "table"), product.path, log.path, "/nowhere", "s3://bucket/log", "", "file:/tmp", "a%20b"]
    code = f"from spark_timely.log.store.newest import newest_frontier\nfor path in {paths!r}:\n    "
    code += "print(newest_frontier(path)); import sys; sys.modules.pop('deltalake', None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["None"] * len(paths)


def test_process_with_delta_loaded_opens_the_log(log: Log) -> None:
    # It may have been forked.
    assert newest.newest_frontier(log.path) is None
