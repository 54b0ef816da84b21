"""A log with a key: compaction orders the updates of one time by it, in small row groups; no answer hangs on it."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.errors import InvalidUsageError, LogFormatError, SchemaMismatchError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.files.format import LogFormat
from spark_timely.log.log import create_log, open_log

SCHEMA = pa.schema([("v", pa.int64()), ("id", pa.int64()), ("Place", pa.string())])
N_KEYS, MOST_ROWS = 40_000, 16 * 1024


def updates(rng: np.random.Generator, time: int, n: int) -> pa.Table:
    """Rows in no order, some without a place."""
    places = pa.array(np.array(["a", "é", None], object)[rng.integers(0, 3, n)], pa.string())
    ids = rng.permutation(N_KEYS)[:n]
    columns = {"_time": np.full(n, time), "_diff": np.ones(n, np.int64), "v": rng.integers(0, 9, n), "id": ids}
    return pa.table({**columns, "Place": places})


def filled(log: Log, commits: int = 3) -> Log:
    rng, writer = np.random.default_rng(5), log.writer(owner="me")
    for time in range(commits):
        writer.append(updates(rng, time, N_KEYS), advance_to=time + 1)
    return log


def groups(log: Log) -> list[list[pa.Table]]:
    """Of each file of messages its row groups, as they stand there."""
    found = []
    for path in log.core.files().paths.tolist():
        file = pq.ParquetFile(Path(log.path) / path)
        found.append([file.read_row_group(number) for number in range(file.num_row_groups)])
    return found


def ranks(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = table.select(["_time", "Place", "id"]).to_pylist()
    return [(row["_time"], row["Place"] is None, (row["Place"] or "").encode(), row["id"]) for row in rows]


def contents(log: Log, at: int) -> list[tuple[Any, ...]]:
    found = log.snapshot(at).select(["_diff", *SCHEMA.names]).to_pylist()
    return sorted(tuple(map(repr, row.values())) for row in found)


@pytest.mark.parametrize("logical", [False, True])
def test_compaction_orders_updates_of_a_time_by_key(tmp_path: Path, *, logical: bool) -> None:
    plain = filled(create_log(tmp_path / "plain", SCHEMA, minimum=(0,), kind="collection"))
    log = filled(create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection", key=["place", "id"]))
    assert log.core.format.key == ("Place", "id")
    for each in (log, plain):
        each.allow_compaction([1])
        each.compact(logical=logical)
    assert [contents(log, at) for at in (1, 2)] == [contents(plain, at) for at in (1, 2)]
    assert open_log(log.path).core.format.key == ("Place", "id")
    n_groups = 0
    for file in groups(log):
        found = [ranks(table) for table in file]
        if found[0][0][0] > 1:
            continue  # nothing in it may be forgotten: it stays as it was written
        assert [len(each) for each in found] == [min(len(each), MOST_ROWS) for each in found]
        together = [rank for each in found for rank in each]
        assert together == sorted(together)
        n_groups += len(found)
    assert n_groups > 2
    # The row groups of a file say between which keys they are: one of them alone may hold a key.
    for path in log.core.files().paths.tolist():
        metadata = pq.ParquetFile(Path(log.path) / path).metadata
        number = metadata.schema.to_arrow_schema().get_field_index("id")
        assert all(metadata.row_group(i).column(number).statistics.has_min_max for i in range(metadata.num_row_groups))


def test_later_rows_are_ordered_by_key_too(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection", key="id")
    rng, writer = np.random.default_rng(5), log.writer(owner="me")
    later = pa.concat_tables([updates(rng, time, 50) for time in (0, 4, 4, 3)])
    writer.append(later, advance_to=2)
    log.allow_compaction([1])
    log.compact(logical=True)
    for file in groups(log):
        pairs = [(row["_time"], row["id"]) for table in file for row in table.to_pylist()]
        assert all(before <= after for before, after in pairwise(pairs))


def test_log_in_memory_has_a_key_too() -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection", key="id")
    assert log.another().core.format.key == ("id",)


def test_columns_that_come_later_leave_the_key(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection", key="id")
    log.add_columns(pa.schema([("more", pa.int64())]))
    log.allow_compaction([0])
    found = open_log(log.path).core.format
    assert (found.key, found.merged) == (("id",), ("more",))


def test_log_that_is_there_keeps_its_key(tmp_path: Path) -> None:
    def again(**options: Any) -> Log:
        return create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection", exist_ok=True, **options)

    again(key="id")
    assert again().core.format.key == again(key=["ID"]).core.format.key == ("id",)
    with pytest.raises(SchemaMismatchError, match=r"found key=\['id'\] — hint: leave the key out"):
        again(key="v")


@pytest.mark.parametrize(
    ("key", "kind", "said"),
    [
        ("id", "stream", "found a log of kind 'stream'"),
        ("no", "collection", "found no such column"),
        (["id", "ID"], "collection", "found the column twice"),
        (7, "collection", "key=7: found no such column"),
        ("x", "collection", "found type 'double'"),
        ("l", "collection", "found type 'list<element: int64>'"),
    ],
)
def test_key_that_a_log_cannot_have_is_refused(tmp_path: Path, key: Any, kind: Any, said: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("l", pa.list_(pa.int64()))])
    with pytest.raises(InvalidUsageError) as caught:
        create_log(tmp_path / "log", schema, kind=kind, key=key)
    assert said in str(caught.value)
    assert not (tmp_path / "log").exists()


def test_key_of_every_kind_that_has_an_order(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {
        "n": [3, None, 1],
        "s": ["b", None, "a"],
        "b": [b"\xff", None, b"\x00"],
        "d": [dt.date(2020, 1, 2), None, dt.date(1960, 1, 1)],
        "t": [dt.datetime(2020, 1, 2, tzinfo=dt.UTC), None, dt.datetime(1960, 1, 1, tzinfo=dt.UTC)],
        "f": [True, None, False],
    }
    table = pa.table(values)
    for name in values:
        log = create_log(tmp_path / name, table.schema, minimum=(0,), kind="collection", key=name)
        rows = table.append_column("_time", pa.array([0] * 3)).append_column("_diff", pa.array([1] * 3))
        log.writer(owner="me").append(rows, advance_to=2)
        log.allow_compaction([1])
        log.compact(logical=True)
        [[found]] = groups(log)
        assert found[name].to_pylist() == [values[name][2], values[name][0], None]


def test_facts_with_a_key_that_is_none_are_unreadable() -> None:
    form = LogFormat.build(SCHEMA, minimum=(0,), kind="collection", key="id")
    facts = form.facts().replace('"id"]', '"gone"]')
    with pytest.raises(LogFormatError, match="found unreadable facts"):
        LogFormat.from_table(form.table_schema, {"timely.log": facts}, "/log")
