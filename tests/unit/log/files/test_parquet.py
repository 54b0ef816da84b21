"""Files of a log: order, row groups, statistics, counts in footers; and files that others wrote."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import DataLossError, InvalidUsageError, SchemaMismatchError, StorageError
from spark_timely.log.files.format import LogFormat, conform
from spark_timely.log.files.parquet import file_name, message_table, write_data_files, write_progress_file
from spark_timely.log.files.parquet_reader import open_parquet, read_file
from spark_timely.log.files.statistics import (
    MAX_DISTINCT_TIMES,
    decode_counts,
    describe_file,
    encode_counts,
    file_times,
)
from spark_timely.log.store.cloud import CloudStorage, open_storage
from spark_timely.log.store.storage import MemoryStorage, normal_path
from spark_timely.time.antichain import unique_times

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FORM = LogFormat.build(pa.schema([("v", pa.int64())]))


def write(times: np.ndarray, form: LogFormat = FORM, **options: int) -> tuple[MemoryStorage, list, pa.Table]:
    storage = MemoryStorage()
    payload = pa.table({"v": np.arange(len(times))})
    table = message_table(form, payload, times, "main", 7)
    files = write_data_files(storage, table, times, stream="main", seq=7, domain=form.domain, **options)
    return storage, files, table


def test_rows_of_a_file_are_ordered_by_time() -> None:
    times = np.random.default_rng(1).integers(0, 50, (1000, 1))
    storage, (file,), table = write(times)
    back = read_file(storage, file.path, FORM.data_schema)
    assert back["_time"].to_pylist() == sorted(times[:, 0].tolist())
    keys = [("_time", "ascending"), ("v", "ascending")]
    assert back.sort_by(keys).to_pylist() == table.sort_by(keys).to_pylist()
    assert (file.n_rows, file.bounds.tolist(), file.minima.tolist()) == (1000, [[0], [49]], [[0]])
    assert file.size_bytes == storage.read(file.path).size


def test_row_groups_end_between_times() -> None:
    times = np.sort(np.random.default_rng(2).integers(0, 60, 1000)).reshape(-1, 1)
    storage, (file,), _ = write(times, row_group_rows=100)
    with open_parquet(storage, file.path) as parquet:
        groups = [parquet.read_row_group(i)["_time"].to_numpy() for i in range(parquet.num_row_groups)]
    assert len(groups) >= 10
    assert all(len(g) <= 100 for g in groups)
    for earlier, later in itertools.pairwise(groups):
        assert earlier[-1] < later[0]


def test_one_time_above_the_limit_is_cut_inside() -> None:
    times = np.array([[1]] * 5 + [[2]] * 250 + [[3]] * 20)
    storage, (file,), _ = write(times, row_group_rows=100)
    with open_parquet(storage, file.path) as parquet:
        sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    assert sizes == [5, 100, 100, 50, 20] or sum(sizes) == 275
    assert max(sizes) <= 100


@pytest.mark.parametrize(("n_rows", "n_files"), [(500, 1), (1000, 2)])
def test_late_rows_have_a_file_where_compression_pays_for_it(n_rows: int, n_files: int) -> None:
    late = n_rows // 100 + 1
    _, files, _ = write(np.array([0] * (n_rows - late) + [500] * late).reshape(-1, 1))
    assert len(files) == n_files


def test_few_rows_are_one_row_group() -> None:
    storage, (file,), _ = write(np.arange(500).reshape(-1, 1))
    with open_parquet(storage, file.path) as parquet:
        assert parquet.num_row_groups == 1


def test_target_size_makes_several_files() -> None:
    times = np.arange(5000).reshape(-1, 1)
    storage, files, table = write(times, row_group_rows=500, target_file_size=4000)
    assert len(files) > 1
    assert sum(f.n_rows for f in files) == 5000
    back = pa.concat_tables([read_file(storage, f.path, FORM.data_schema) for f in files])
    assert back["v"].to_pylist() == table["v"].to_pylist()
    assert [f.bounds[0, 0] for f in files] == sorted(f.bounds[0, 0] for f in files)


def test_no_rows_are_no_file() -> None:
    storage, files, _ = write(np.empty((0, 1), np.int64))
    assert files == []
    assert storage.names() == []


def test_footers_tell_the_times_exactly() -> None:
    form = LogFormat.build(pa.schema([("v", pa.int64())]), times=("long", "long"))
    times = np.random.default_rng(3).integers(-3, 3, (200, 2))
    storage, (file,), _ = write(times, form)
    with open_parquet(storage, file.path) as parquet:
        told = file_times(parquet)
    assert told is not None
    expected = unique_times(times)
    assert told[0].tolist() == expected[0].tolist()
    assert told[1].tolist() == expected[1].tolist()


def test_footers_of_too_many_times_tell_nothing() -> None:
    times = np.arange(MAX_DISTINCT_TIMES + 1).reshape(-1, 1)
    storage, (file,), _ = write(times)
    with open_parquet(storage, file.path) as parquet:
        assert file_times(parquet) is None
    assert describe_file(storage, file.path, domain=FORM.domain).minima.tolist() == [[0]]


@given(st.integers(1, 3).flatmap(lambda k: st.lists(st.tuples(*[INT64] * k), min_size=1, max_size=20)))
def test_counts_survive_packing(times: list[tuple[int, ...]]) -> None:
    distinct, counts = unique_times(np.array(times, np.int64))
    packed = encode_counts(distinct, counts)
    assert packed is not None
    packed.decode("ascii")
    back = decode_counts(packed)
    assert back is not None
    assert back[0].tolist() == distinct.tolist()
    assert back[1].tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.null(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(1), pa.binary()),
        (pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int64(), 1), pa.list_(pa.int64())),
        (pa.list_view(pa.int64()), pa.list_(pa.int64())),
        (pa.large_list_view(pa.int64()), pa.list_(pa.int64())),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.float32(), pa.float64()),
        (pa.int16(), pa.decimal128(20, 0)),
        (pa.decimal128(5, 2), pa.decimal128(7, 2)),
    ],
    ids=str,
)
def test_every_form_that_arrow_has_for_a_type_fits(found: pa.DataType, kept: pa.DataType) -> None:
    values: list[Any] = {"binary": [b"x"], "list": [[7]], "string": ["x"]}.get(str(kept).split("<")[0], [0])
    values = [None] if pa.types.is_null(found) else values
    given, plain = pa.array(values, found), pa.array(values, kept)
    fitted = conform(pa.table({"v": given}), pa.schema([("v", kept)]))
    assert fitted.schema.types == [kept]
    assert fitted["v"].to_pylist() == plain.to_pylist()


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_list_views_are_kept_row_by_row(view: Any) -> None:
    rows = [[7], [1, 2], None, [], [None, 3]]
    views = pa.chunked_array([pa.array(rows, view(pa.int32())), pa.array(rows, view(pa.int32())).slice(1, 3)])
    fitted = conform(pa.table({"v": views}), pa.schema([("v", pa.list_(pa.int64()))]))
    fitted.validate(full=True)
    assert fitted["v"].to_pylist() == [*rows, *rows[1:4]]
    backwards = pa.ListViewArray.from_arrays(
        pa.array([2, 0], pa.int32()), pa.array([1, 2], pa.int32()), pa.array([5, 6, 7])
    )
    assert conform(pa.table({"v": backwards}), pa.schema([("v", pa.list_(pa.int64()))]))["v"].to_pylist() == [
        [7],
        [5, 6],
    ]


@pytest.mark.parametrize("wrap", [pa.list_, lambda inner: pa.struct([("f", inner)]), pa.list_view])
def test_list_views_inside_others_are_refused(wrap: Any) -> None:
    found, kept = wrap(pa.list_view(pa.int64())), pa.list_(pa.list_(pa.int64()))
    kept = pa.struct([("f", pa.list_(pa.int64()))]) if pa.types.is_struct(found) else kept
    with pytest.raises(SchemaMismatchError, match=r"found column 'v' of type=.* — hint: cast the column to .*, as"):
        conform(pa.table({"v": pa.array([None], found)}), pa.schema([("v", kept)]))


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (pa.string(), pa.binary()),
        (pa.int64(), pa.float64()),
        (pa.bool_(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.date32()),
        (pa.float64(), pa.decimal128(5, 2)),
        (pa.decimal128(5, 0), pa.int64()),
        (pa.int64(), pa.string()),
    ],
    ids=str,
)
def test_values_of_another_kind_do_not_fit(found: pa.DataType, kept: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="could not fit rows to the log: found column 'v' of type="):
        conform(pa.table({"v": pa.array([None, None], found)}), pa.schema([("v", kept)]))


def test_statistics_of_progress_have_the_bounds_of_all_its_rows() -> None:
    form = LogFormat.build(pa.schema([("v", pa.int64())]), times=("long", "date"))
    schema = form.progress_schema
    rows = [("b", 4, 9, 3), ("a", 5, -2, 7), ("b", 5, 0, 5)]
    columns = dict(zip(("_stream", "_seq", "_time_0", "_time_1"), zip(*rows, strict=True), strict=True))
    table = pa.table({f.name: pa.array(columns.get(f.name, [None] * 3), f.type) for f in schema})
    file = write_progress_file(MemoryStorage(), table, "b", 5, form.domain)
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {"_stream": "a", "_seq": 4, "_time_0": -2, "_time_1": "1970-01-04"}
    assert stats["maxValues"] == {"_stream": "b", "_seq": 5, "_time_0": 9, "_time_1": "1970-01-08"}
    assert set(stats["nullCount"].values()) == {0}


def test_statistics_are_those_of_delta() -> None:
    form = LogFormat.build(
        pa.schema(
            [("f", pa.float64()), ("s", pa.string()), ("d", pa.date32()), ("n", pa.int16()), ("l", pa.list_(pa.int8()))]
        ),
        times=("timestamp",),
    )
    storage = MemoryStorage()
    values = {"f": [1.0, float("nan")], "s": ["a", None], "d": [0, 3], "n": [None, 5], "l": [[1, 2], None]}
    payload = pa.table({n: pa.array(v, form.payload.field(n).type) for n, v in values.items()})
    times = np.array([[-1], [1_000_001]])
    table = message_table(form, payload, times, "main", 3)
    (file,) = write_data_files(storage, table, times, stream="main", seq=3, domain=form.domain)
    assert json.loads(file.stats) == {
        "numRecords": 2,
        "minValues": {
            "_stream": "main",
            "_seq": 3,
            "_time": "1969-12-31T23:59:59.999999Z",
            "d": "1970-01-01",
            "n": 5,
        },
        "maxValues": {
            "_stream": "main",
            "_seq": 3,
            "_time": "1970-01-01T00:00:01.000001Z",
            "d": "1970-01-04",
            "n": 5,
        },
        "nullCount": {"_stream": 0, "_seq": 0, "_time": 0, "f": 0, "s": 1, "d": 0, "n": 1},
    }


def test_the_first_32_columns_have_statistics() -> None:
    """As in Delta: `dataSkippingNumIndexedCols` is 32 unless set."""
    form = LogFormat.build(pa.schema([(f"c{number}", pa.int64()) for number in range(40)]))
    storage, times = MemoryStorage(), np.zeros((1, 1), np.int64)
    table = message_table(form, pa.table({f"c{n}": [n] for n in range(40)}), times, "main", 3)
    (file,) = write_data_files(storage, table, times, stream="main", seq=3, domain=form.domain)
    stats = json.loads(file.stats)
    assert list(stats["nullCount"]) == form.data_schema.names[:32]
    assert stats["minValues"] == {"_stream": "main", "_seq": 3, "_time": 0, **{f"c{n}": n for n in range(29)}}


@pytest.mark.parametrize("arity", [1, 2])
def test_files_of_other_writers_are_described(arity: int) -> None:
    form = LogFormat.build(pa.schema([("v", pa.int64())]), times=("long",) * arity)
    storage, (file,), table = write(np.array([[5, 1], [3, 2], [3, 9]])[:, :arity], form)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=2)
    storage.write("other.parquet", sink.getvalue())
    found = describe_file(storage, "other.parquet", domain=form.domain)
    assert found.minima.tolist() == file.minima.tolist()
    assert found.bounds.tolist() == file.bounds.tolist()
    assert json.loads(found.stats) == json.loads(file.stats)
    assert found.n_rows == 3
    ours = describe_file(storage, file.path, domain=form.domain)
    assert (ours.stats, ours.size_bytes) == (file.stats, file.size_bytes)


def test_file_without_times_is_refused() -> None:
    storage = MemoryStorage()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": [1]}), sink)
    storage.write("x.parquet", sink.getvalue())
    with pytest.raises(SchemaMismatchError, match="no column '_time'"):
        describe_file(storage, "x.parquet", domain=FORM.domain)


def test_missing_and_corrupt_files_are_data_loss() -> None:
    storage, (file,), _ = write(np.array([[1], [2]]))
    with pytest.raises(DataLossError, match=r"'gone.parquet' of log 'memory': found no such file"):
        read_file(storage, "gone.parquet", FORM.data_schema)
    whole = storage.read(file.path).to_pybytes()
    for content in (b"", b"PAR1", whole[:-20], whole[:8] + b"\xff" * 200 + whole[208:]):
        storage.write("bad.parquet", content)
        with pytest.raises(DataLossError, match=r"'bad.parquet'.*no valid Parquet"):
            read_file(storage, "bad.parquet", FORM.data_schema)


def test_descriptions_are_small_and_picklable() -> None:
    _, (file,), _ = write(np.arange(100_000).reshape(-1, 1))
    assert len(pickle.dumps(file)) < 2000


def test_int96_and_foreign_types_come_back_in_the_schema() -> None:
    form = LogFormat.build(pa.schema([("t", pa.timestamp("us", "UTC"))]), times=("timestamp",))
    table = pa.table(
        {
            "_stream": pa.array(["a"]).dictionary_encode(),
            "_seq": pa.array([1], pa.int64()),
            "_time": pa.array([123], pa.timestamp("us", "UTC")),
            "t": pa.array([-11_000_000_000_000_001], pa.timestamp("us", "UTC")),
        }
    )
    storage, sink = MemoryStorage(), pa.BufferOutputStream()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    storage.write("spark.parquet", sink.getvalue())
    back = read_file(storage, "spark.parquet", form.data_schema)
    assert back.schema.types == form.data_schema.types
    assert back["t"].cast(pa.int64()).to_pylist() == [-11_000_000_000_000_001]
    assert form.domain.from_columns(back).tolist() == [[123]]


def test_conform_fits_what_loses_nothing() -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("x", pa.float64()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(20, 0))]
    )
    table = pa.table(
        {
            "d": pa.array([1 << 63], pa.uint64()),
            "t": pa.array([1], pa.timestamp("ms", "Asia/Kathmandu")),
            "x": pa.array([0.5], pa.float32()),
            "n": pa.array([1], pa.uint8()),
            "extra": pa.array([1]),
        }
    )
    fitted = conform(table.drop(["extra"]), schema)
    assert fitted.schema == schema
    assert int(fitted["d"][0].as_py()) == 1 << 63
    with pytest.raises(SchemaMismatchError, match="unknown column 'extra'"):
        conform(table, schema)


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        (pa.array([300]), pa.int8()),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([1], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([1]), pa.string()),
        (pa.array([1]), pa.bool_()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([1]), pa.date32()),
    ],
)
def test_conform_refuses_what_would_change_values(column: pa.Array, type_: pa.DataType) -> None:
    if pa.types.is_float32(type_):
        assert conform(pa.table({"c": column}), pa.schema([("c", type_)])).num_rows == 1
        return
    with pytest.raises(SchemaMismatchError, match="'c'"):
        conform(pa.table({"c": column}), pa.schema([("c", type_)]))


def test_names_of_files_are_safe() -> None:
    assert file_name("progress", "#open", 3, "ab").endswith("/open.-000000000003-ab.parquet")
    assert file_name("message", "a", 3) != file_name("message", "a", 3)


def test_paths_are_made_absolute(tmp_path: object) -> None:
    assert normal_path("file:/tmp/x") == "/tmp/x"
    assert normal_path("file:///tmp/with%20space/") == "/tmp/with space"
    assert normal_path("s3a://bucket/x/") == "s3a://bucket/x"
    assert normal_path("x").startswith("/")
    storage = pickle.loads(pickle.dumps(open_storage(str(tmp_path))))
    storage.write("a/b.txt", b"x")
    assert storage.names() == ["a"]
    assert storage.read("a/b.txt").to_pybytes() == b"x"
    storage.delete("a/b.txt")
    storage.delete("a/b.txt")
    assert not storage.exists("a/b.txt")
    with pytest.raises(DataLossError):
        storage.read("a/b.txt")
    with pytest.raises(StorageError):
        storage.read("a")


def test_unlistable_directory_is_an_error_of_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    storage = open_storage(tmp_path)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(StorageError, match=r"could not look into log .*Permission denied.*hint: check") as told:
        storage.names()
    assert told.value.determinate


@pytest.mark.parametrize("use", [lambda s: s.names(), lambda s: s.exists("a"), lambda s: s.read("a")])
def test_cloud_that_cannot_be_reached_is_an_error_of_the_storage(use: Any) -> None:
    with pytest.raises(StorageError, match="an unknown scheme") as told:
        use(open_storage("hdfs://nn/log"))
    assert "x1b" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:/tmp/a#b", "/tmp/a#b"),
        ("file:///tmp/a?b", "/tmp/a?b"),
        ("file:///tmp/a%23b%3Fc", "/tmp/a#b?c"),
        ("file://localhost/tmp/x", "/tmp/x"),
        ("FILE:///tmp/x", "/tmp/x"),
        ("file:////tmp/x", "/tmp/x"),
        ("/tmp/ab:/x", "/tmp/ab:/x"),
        ("s3a://bucket/a:/b", "s3a://bucket/a:/b"),
    ],
)
def test_path_of_url(url: str, path: str) -> None:
    assert normal_path(url) == path


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3a:/bucket/log", "found the scheme 's3a' with one slash — hint: write s3a://"),
        ("dbfs:/logs/x", "found the scheme 'dbfs' with one slash — hint: .*/dbfs/"),
        ("HDFS:/x", "found the scheme 'HDFS' with one slash"),
        ("abfss:/c@a/x", "found the scheme 'abfss'"),
        ("file://host/x", "found the host 'host' in it — hint: write file:///"),
        ("/tmp/a\0b", "NUL"),
        ("file:", "nothing behind the scheme"),
        ("file://", "nothing behind the scheme"),
    ],
)
def test_url_that_is_no_place_is_refused(url: str, found: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUsageError, match=found):
        open_storage(url)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "file://u:HUNTER2@host/tmp/x",
        "file://u:HUNTER2@/tmp/x",
        "FILE://u:HUNTER2@localhost/tmp/x",
        "file://HUNTER2@host/tmp/x",
        "file://host?sig=HUNTER2",
        "file://host?token=HUNTER2/tmp/x",
    ],
)
def test_secret_in_a_file_url_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidUsageError) as refused:
        normal_path(url)
    assert "HUNTER2" not in f"{refused.value} {refused.value!r} {refused.value.context} {refused.value.__cause__!r}"


@pytest.mark.parametrize("name", ["a%20b", "a%2fb", "a\\b", "a%25b"])
def test_local_path_that_would_be_decoded_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidUsageError, match=r"could not use path .*: found '.*' in it — hint: .*rename"):
        open_storage(tmp_path / name / "log")
    with pytest.raises(InvalidUsageError, match="rename"):
        normal_path(f"file://{tmp_path}/a%2520b")


def test_memory_storage_writes_when_closed() -> None:
    storage = MemoryStorage()
    with storage.open_output("d/x") as sink:
        sink.write(b"1")
        assert not storage.exists("d/x")
    assert storage.names("d") == ["x"]
    assert pc.sum(pa.array([storage.read("d/x").size])).as_py() == 1


def test_storage_behind_a_url_reads_and_writes(tmp_path: Path) -> None:
    """The way that cloud URLs take, with a URL that needs no cloud."""
    (tmp_path / "log").mkdir()
    storage = pickle.loads(pickle.dumps(CloudStorage(f"file://{tmp_path}/log")))
    assert not storage.local
    assert storage.names() == []
    table = message_table(FORM, pa.table({"v": [1, 2]}), np.array([[4], [3]]), "main", 1)
    (file,) = write_data_files(storage, table, np.array([[4], [3]]), stream="main", seq=1, domain=FORM.domain)
    assert storage.names("_event=message") == [file.path.split("/")[1]]
    assert storage.exists(file.path)
    assert read_file(storage, file.path, FORM.data_schema)["v"].to_pylist() == [2, 1]
    assert describe_file(storage, file.path, domain=FORM.domain).stats == file.stats
    storage.write("x.txt", b"content")
    assert storage.read("x.txt").to_pybytes() == b"content"
    storage.delete("x.txt")
    storage.delete("x.txt")
    assert not storage.exists("x.txt")
    with pytest.raises(DataLossError, match="no such file"):
        storage.read("x.txt")


INNER = pa.struct([("b", pa.int64())])
AMOUNT = pa.struct([("amount", pa.int64()), ("f", pa.float32())])


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([{"Amount": 7, "f": None}]), AMOUNT),
        (pa.array([{"amount": 7}]), AMOUNT),
        (pa.array([{"amount": 7, "f": None, "extra": 8}]), AMOUNT),
        (pa.array([{"amount": 7, "f": 1e300}]), AMOUNT),
        (pa.array([[0.5], [1e300, 1.0]]), pa.list_(pa.float32())),
        (pa.array([[("k", 1e300)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
        (pa.array([[{"amount": 7, "extra": 8}]]), pa.list_(pa.struct([("amount", pa.int64())]))),
        (
            pa.array([[("k", {"b": 1})]], pa.map_(pa.string(), pa.struct([("b", pa.int64())]))),
            pa.map_(pa.string(), AMOUNT),
        ),
        (pa.array([1e300]), pa.float32()),
        (pa.array([1e300]).dictionary_encode(), pa.float32()),
    ],
)
def test_what_a_cast_would_lose_in_silence_is_refused(column: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="column 'c'"):
        conform(pa.table({"c": column}), pa.schema([("c", wanted)]))


def test_fields_come_in_any_order_and_floats_with_fewer_bits() -> None:
    fields = pa.array([{"f": None, "amount": 7}], pa.struct([("f", pa.float32()), ("amount", pa.int32())]))
    found = conform(pa.table({"c": fields}), pa.schema([("c", AMOUNT)]))
    assert found["c"].to_pylist() == [{"amount": 7, "f": None}]
    floats = conform(pa.table({"c": [0.5, None, float("nan"), float("inf")]}), pa.schema([("c", pa.float32())]))
    assert str(floats["c"].to_pylist()) == "[0.5, None, nan, inf]"
    lists = conform(pa.table({"c": [[0.5, None], None, []]}), pa.schema([("c", pa.list_(pa.float32()))]))
    assert lists["c"].to_pylist() == [[0.5, None], None, []]
