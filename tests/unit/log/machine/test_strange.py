"""Messages are counted by commit, whatever their order, as by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.index import index_adds
from spark_timely.log.files.parquet_reader import read_parts
from spark_timely.log.machine.strange import Counts, _may_have, count, count_by_statistics
from spark_timely.log.store.storage import FileStorage
from spark_timely.time.antichain import Antichain

FORMS = {
    1: LogFormat.build(pa.schema([("v", pa.int64())]), minimum=(0,)),
    2: LogFormat.build(pa.schema([("v", pa.int64())]), times=("long", "long"), minimum=(0, 0)),
}


def table_of(rows: list[tuple[Any, ...]], arity: int) -> pa.Table:
    domain = FORMS[arity].domain
    columns: dict[str, Any] = {
        "_stream": pa.array([row[0] for row in rows], pa.string()),
        "_seq": pa.array([row[1] for row in rows], pa.int64()),
    }
    for place, name in enumerate(domain.columns):
        columns[name] = pa.array([row[2 + place] for row in rows], pa.int64())
    return pa.table(columns)


def by_hand(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, int], tuple[int, list[int], list[int]]]:
    found: dict[tuple[Any, int], list[tuple[int, ...]]] = {}
    for stream, seq, *time in rows:
        found.setdefault((stream, -1 if seq is None else seq), []).append(tuple(time))
    return {
        commit: (
            len(times),
            [min(each) for each in zip(*times, strict=True)],
            [max(each) for each in zip(*times, strict=True)],
        )
        for commit, times in found.items()
    }


def as_dict(counts: Counts) -> dict[tuple[Any, int], tuple[int, list[int], list[int]]]:
    commits = zip(counts.streams.tolist(), counts.seqs.tolist(), strict=True)
    values = zip(counts.rows.tolist(), counts.lows.tolist(), counts.highs.tolist(), strict=True)
    found = dict(zip(commits, values, strict=True))
    assert len(found) == len(counts.seqs)
    return found


@pytest.mark.parametrize("seed", range(80))
def test_rows_are_counted_by_commit(seed: int) -> None:
    draw = random.Random(seed)
    arity, far = draw.choice((1, 2)), draw.choice((5, 1 << 40, 1 << 62))
    streams = draw.choice((["a"], ["a", "b"], ["a", None]))
    seqs = [draw.randrange(far) for _ in range(4)] + ([None] if draw.random() < 0.3 else [])
    rows = [
        (draw.choice(streams), draw.choice(seqs), *(draw.randrange(9) for _ in range(arity)))
        for _ in range(draw.choice((draw.randrange(30), 300)))
    ]
    if draw.random() < 0.5:  # commits in runs, as where files were put behind one another
        rows.sort(key=lambda row: str(row[:2]))
    since = draw.choice((None, Antichain.from_times([[draw.randrange(9)] * arity], arity)))
    kept = [row for row in rows if since is None or since.beyond([row[2:]])[0]]
    cut = draw.randrange(len(rows) + 1)
    domain = FORMS[arity].domain
    parts = [count(domain, table_of(part, arity), since) for part in (rows[:cut], rows[cut:])]
    assert as_dict(Counts.joined(parts, arity)) == by_hand(kept)


def joined(rows: list[tuple[Any, ...]]) -> Counts:
    return Counts.joined([count(FORMS[1].domain, table_of(rows, 1), None)], 1)


def test_counts_are_compared_by_commit_and_bounds() -> None:
    rows = [("a", 1, 3), ("a", 1, 5), ("b", 1, 4)]
    wanted = joined(rows)
    assert wanted.may_be(joined(rows[::-1]), exactly=True)
    assert not wanted.may_be(joined([*rows[:2], ("a", 2, 4)]), exactly=False)
    assert not wanted.may_be(joined([*rows[1:], rows[1], rows[2]]), exactly=False)
    assert not wanted.may_be(joined(rows[1:]), exactly=False)
    narrower = joined([("a", 1, 4), ("a", 1, 5), ("b", 1, 4)])
    assert wanted.may_be(narrower, exactly=False)
    assert not wanted.may_be(narrower, exactly=True)
    assert not narrower.may_be(wanted, exactly=False)


def add(
    path: str, n_rows: int | None, streams: tuple[str, str], seqs: tuple[int, int], times: tuple[int, int]
) -> dict[str, Any]:
    said: dict[str, Any] = {} if n_rows is None else {"numRecords": n_rows}
    for name, place in (("minValues", 0), ("maxValues", 1)):
        said[name] = {"_stream": streams[place], "_seq": seqs[place], "_time": times[place]}
    return {"path": path, "partitionValues": {"_event": "message"}, "stats": said}


def test_statistics_count_files_of_one_commit() -> None:
    adds = [
        add("one", 3, ("a", "a"), (4, 4), (5, 9)),
        add("empty", 0, ("a", "a"), (5, 5), (5, 9)),
        add("old", 7, ("a", "a"), (1, 1), (0, 2)),
        add("both", 7, ("a", "a"), (2, 2), (2, 6)),
        add("commits", 7, ("a", "a"), (2, 3), (7, 8)),
        add("streams", 7, ("a", "b"), (2, 2), (7, 8)),
        add("unknown", None, ("a", "a"), (2, 2), (7, 8)),
    ]
    index = index_adds(FORMS[1], [{**each, "stats": json.dumps(each["stats"])} for each in adds])
    counts, left = count_by_statistics(index, None)
    assert index.paths[left].tolist() == ["commits", "streams", "unknown"]
    assert as_dict(counts) == {("a", 4): (3, [5], [9]), ("a", 1): (7, [0], [2]), ("a", 2): (7, [2], [6])}
    counts, left = count_by_statistics(index, Antichain.of(5))
    assert index.paths[left].tolist() == ["both", "commits", "streams", "unknown"]
    assert as_dict(counts) == {("a", 4): (3, [5], [9])}


def test_which_commits_files_may_have() -> None:
    adds = [add("x", 3, ("a", "a"), (4, 6), (5, 9)), add("y", 3, ("a", "c"), (9, 9), (5, 9))]
    index = index_adds(FORMS[1], [{**each, "stats": json.dumps(each["stats"])} for each in adds])
    commits = [(stream, seq) for stream in "abd" for seq in range(12)]
    assert _may_have(index, commits) == {("a", 4), ("a", 5), ("a", 6), ("a", 9), ("b", 9)}


@pytest.mark.parametrize("stats", [True, False])
@pytest.mark.parametrize("streams", [["a"] * 6, ["a", "a", "b", "b", "b", None], ["x" * 90] * 5 + ["x" * 91]])
def test_columns_are_read_as_they_are(tmp_path: Path, streams: list[str | None], stats: bool) -> None:
    rows = [(stream, number, number) for number, stream in enumerate(streams)]
    pq.write_table(table_of(rows, 1), tmp_path / "f.parquet", row_group_size=2, write_statistics=stats)
    schema = pa.schema([("_stream", pa.string()), ("_seq", pa.int64()), ("_time", pa.int64())])
    parts = list(read_parts(FileStorage(str(tmp_path)), "f.parquet", schema))
    assert len(parts) == 3
    counted = Counts.joined([count(FORMS[1].domain, part, None) for part in parts], 1)
    assert as_dict(counted) == by_hand(rows)
    assert np.array_equal(np.sort(counted.seqs), np.arange(6))
