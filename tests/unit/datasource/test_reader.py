"""Reading a split: row groups chosen, rows decided by their own times, files that are gone."""

from __future__ import annotations

import datetime as dt
import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.datasource import reader
from spark_timely.datasource.reader import read_split, read_splits
from spark_timely.datasource.splits import SPLIT_SCHEMA, FilePiece, Split, make_layout, split_batch
from spark_timely.errors import DataLossError, InvalidUsageError
from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.store.storage import MemoryStorage
from spark_timely.spark.base import worker
from spark_timely.spark.base.worker import settle_worker
from spark_timely.time.domain import TimeDomain

PAYLOAD = pa.schema([("n", pa.int64()), ("text", pa.string())])
FORM = LogFormat.build(PAYLOAD, times=("long",), minimum=(0,))
LAYOUT = make_layout(FORM.payload, FORM.domain, include_time=True)


def written(times: list[int], storage: MemoryStorage | None = None, **options: Any) -> tuple[MemoryStorage, str]:
    storage = storage or MemoryStorage()
    rows = np.array(times, dtype=np.int64).reshape(-1, 1)
    payload = pa.table({"n": np.arange(len(times)), "text": [str(t) for t in times]}, schema=PAYLOAD)
    table = message_table(FORM, payload, rows, "main", 1)
    (file,) = write_data_files(storage, table, rows, stream="main", seq=1, domain=FORM.domain, **options)
    return storage, file.path


def split_of(*paths: str, lower: int = 0, upper: int | None = None, **changes: Any) -> Split:
    ends = () if upper is None else ((upper,),)
    return Split(0, 1, "memory", pieces=tuple(map(FilePiece, paths)), lower=((lower,),), upper=ends, **changes)


def read(split: Split, storage: Any, layout: Any = LAYOUT, **options: Any) -> pa.Table:
    options = {"pause": lambda _: None, **options}
    return pa.Table.from_batches(list(read_split(split, layout, storage=storage, **options)), layout.schema)


def test_rows_outside_the_range_are_left_out() -> None:
    storage, path = written([5, 1, 4, 2, 3])
    assert read(split_of(path, lower=2, upper=4), storage).column("_time").to_pylist() == [2, 3]
    assert read(split_of(path, lower=2), storage).column("_time").to_pylist() == [2, 3, 4, 5]
    assert read(split_of(path, lower=9), storage).num_rows == 0
    assert read(split_of(path, lower=0, upper=9, first=(2,), last=(3,)), storage).column("text").to_pylist() == ["2"]


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ({"upper": 4}, [1, 2, 3]),  # begins inside, ends outside
        ({"lower": 2, "upper": 9}, [2, 3, 4, 5]),  # begins outside, ends inside
        ({"upper": 9, "last": (3,)}, [1, 2]),  # inside the range, reaches over the last time of the split
        ({"upper": 9, "first": (3,)}, [3, 4, 5]),  # inside the range, begins before the first one
    ],
)
def test_row_group_that_lies_across_one_end_is_cut_by_its_rows(ends: dict[str, Any], wanted: list[int]) -> None:
    storage, path = written([5, 1, 4, 2, 3])
    assert read(split_of(path, **ends), storage).column("_time").to_pylist() == wanted


def test_row_groups_outside_the_range_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, path = written(sorted(list(range(10)) * 10), row_group_rows=10)
    decoded: list[int] = []
    inner = pq.ParquetFile.iter_batches

    def counting(self: pq.ParquetFile, *args: Any, row_groups: list[int], **options: Any) -> Any:
        decoded.extend(row_groups)
        return inner(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting)
    rows = read(split_of(path, lower=3, upper=5), storage)
    assert rows.column("_time").to_pylist() == [3] * 10 + [4] * 10
    assert decoded == [3, 4]


def test_row_groups_inside_the_bounds_pass_without_their_times() -> None:
    storage, path = written(sorted(list(range(10)) * 10), row_group_rows=10)
    columns: list[list[str]] = []

    class Shape(reader._Shape):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            columns.append(self.columns)

    layout = make_layout(FORM.payload, FORM.domain, columns=["n"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_Shape", Shape)
        read(split_of(path, lower=3, upper=5), storage, layout)
        read(split_of(path, lower=0, upper=1, first=(0,), last=(1,)), storage, layout)
    assert columns == [["n"], ["n"]]


def test_sorted_rows_are_sliced_not_copied() -> None:
    storage, path = written(list(range(1000)))
    layout = make_layout(FORM.payload, FORM.domain, columns=["n"])
    (batch,) = read_split(split_of(path, lower=100, upper=200), layout, storage=storage)
    assert batch.num_rows == 100
    assert batch.column(0).offset == 100


def test_record_batches_are_about_as_large_as_asked_for() -> None:
    storage, path = written(list(range(1000)))
    sizes = [batch.num_rows for batch in read_split(split_of(path), LAYOUT, storage=storage, batch_rows=300)]
    assert sizes == [334, 334, 332]
    storage, path = written(list(range(1000)), row_group_rows=100)
    sizes = [batch.num_rows for batch in read_split(split_of(path), LAYOUT, storage=storage, batch_rows=300)]
    assert sum(sizes) == 1000
    assert max(sizes) <= 400


def test_pieces_of_a_file_hold_each_row_once() -> None:
    storage, path = written(list(range(100)), row_group_rows=10)
    whole = FilePiece(path)
    cut = whole.stop // 3
    parts = [replace(whole, stop=cut), replace(whole, start=cut)]
    found = [read(replace(split_of(), pieces=(part,)), storage).column("_time").to_pylist() for part in parts]
    assert found[0] + found[1] == list(range(100))
    assert len(found[0]) == 30


def test_columns_that_a_file_lacks_are_null() -> None:
    storage, path = written([1])
    layout = make_layout(pa.schema([*FORM.payload, ("later", pa.list_(pa.int64()))]), FORM.domain)
    assert read(split_of(path), storage, layout).to_pylist() == [{"n": 0, "text": "1", "later": None}]


def test_files_of_other_engines_are_read_as_declared() -> None:
    domain = TimeDomain(("timestamp",))
    layout = make_layout(pa.schema([("at", pa.timestamp("us", "UTC")), ("s", pa.string())]), domain, include_time=True)
    moments = [dt.datetime(1700, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]
    table = pa.table(
        {
            "_time": pa.array(moments, pa.timestamp("us")),
            "at": pa.array(moments, pa.timestamp("us")),
            "s": pa.array(["a", "b"]).dictionary_encode(),
            "_event": ["message", "message"],
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    storage = MemoryStorage()
    storage.write("x.parquet", sink.getvalue())
    micros = [int((m - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1)) for m in moments]
    split = Split(0, 1, "memory", (FilePiece("x.parquet"),), lower=((micros[1],),), upper=())
    rows = read(split, storage, layout)
    assert rows.column("_time").to_pylist() == [moments[1].replace(tzinfo=dt.UTC)]
    assert rows.column("s").to_pylist() == ["b"]


def test_times_are_moved_up_to_the_time_of_contents() -> None:
    storage, path = written([1, 2, 3, 4])
    split = split_of(path, lower=3, upper=4, as_of=(3,))
    assert read(split, storage).to_pydict() == {"_time": [3, 3, 3], "n": [0, 1, 2], "text": ["1", "2", "3"]}


class Forgetful:
    """A store in which files appear only after some attempts."""

    local = True

    def __init__(self, storage: MemoryStorage, absent: int) -> None:
        self.storage, self.absent, self.attempts = storage, absent, 0

    def open_input(self, path: str) -> Any:
        self.attempts += 1
        return self.storage.open_input(path if self.attempts > self.absent else "nothing")


def test_missing_file_is_tried_again_then_lost() -> None:
    storage, path = written([1])
    pauses: list[float] = []
    assert read(split_of(path), Forgetful(storage, 2), pause=pauses.append).num_rows == 1
    assert len(pauses) == 2
    gone = Forgetful(storage, 99)
    with pytest.raises(
        DataLossError, match=r"found data file .* missing — hint: start the query again if files were vacuumed during"
    ):
        read(split_of(path), gone)
    assert gone.attempts == 4


def test_missing_file_is_skipped_and_reported_where_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    storage, path = written([1])
    layout = make_layout(FORM.payload, FORM.domain, fail_on_data_loss=False)
    assert read(split_of("gone.parquet", path), storage, layout).num_rows == 1
    assert "data file 'gone.parquet' of log 'memory' is missing, its rows are left out" in caplog.text


@pytest.mark.parametrize("cut", [0, 4, 100])
def test_corrupt_file_is_an_error_in_any_case(cut: int) -> None:
    storage, path = written(list(range(1000)))
    content = storage.read(path).to_pybytes()
    storage.write(path, content[:cut] if cut < 100 else content[:4] + b"\0" * 3000 + content[3004:])
    layout = make_layout(FORM.payload, FORM.domain, fail_on_data_loss=False)
    with pytest.raises(DataLossError, match=r"corrupt .* — hint: restore the file from a copy"):
        read(split_of(path), storage, layout)


def test_read_splits_gives_one_table_per_split(tmp_path: Any) -> None:
    storage, path = written([1, 2, 3])
    root = tmp_path / "a log"
    (root / path).parent.mkdir(parents=True)
    (root / path).write_bytes(storage.read(path).to_pybytes())
    layout = make_layout(FORM.payload, FORM.domain, content="splits")
    splits = [replace(split_of(path, lower=1, upper=3), root=str(root)), replace(split_of(), root=str(root))]
    batches = [pa.Table.from_batches([split_batch(s, layout) for s in splits]).combine_chunks().to_batches()[0]]
    first, second = read_splits(batches)
    assert first.to_pydict() == {"_time": [1, 2], "n": [0, 1], "text": ["1", "2"]}
    assert second.num_rows == 0
    (chosen, _) = read_splits(batches, columns=["text", "_time"])
    assert chosen.to_pydict() == {"text": ["1", "2"], "_time": [1, 2]}
    with pytest.raises(InvalidUsageError, match=r"found no column 'nope' in .* — hint: name columns of the log"):
        next(read_splits(batches, columns=["nope"]))
    with pytest.raises(InvalidUsageError, match="— hint: read the log with option content=splits"):
        next(read_splits([batches[0].select(SPLIT_SCHEMA.names[:2])]))


def test_worker_is_settled_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    monkeypatch.setattr(worker, "_settled", False)
    settle_worker()
    assert calls == []  # no task runs here
    monkeypatch.setattr(worker, "_in_task", lambda: True)
    settle_worker()
    settle_worker()
    assert calls == [1]
