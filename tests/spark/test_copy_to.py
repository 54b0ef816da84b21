"""Copies in plain files hold what the log holds, and a folder never looks finished that is not."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.errors import (
    InvalidUsageError,
    LogMissingError,
    RolledBackError,
    SchemaMismatchError,
    SinceViolationError,
    StorageError,
)
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import FileStorage
from spark_timely.spark.answers import copy_folder
from spark_timely.spark.answers import copy_to as module
from spark_timely.spark.answers.copy_folder import Attempt, Written
from spark_timely.spark.answers.copy_to import copy_to
from spark_timely.spark.base.tags import home_of, tagged
from tests.faults.harness import wait_until
from tests.spark.held import held_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = pa.schema([
    ("n", pa.int64()), ("text", pa.string()), ("x", pa.float64()), ("price", pa.decimal128(12, 2)),
    ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("yes", pa.bool_()),
])  # fmt: skip
Moment = dt.datetime


def moment(*parts: int) -> Moment:
    return Moment(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc]


LAST, FIRST = Decimal("9999999999.99"), dt.date(1, 1, 1)
ROWS: list[tuple[Any, ...]] = [
    (1, 'a "quoted", text', 1.5, Decimal("1.20"), dt.date(2013, 6, 12), moment(2013, 6, 12, 22, 0, 0, 7), True),
    (2, "", float("inf"), Decimal("-0.01"), FIRST, moment(1969, 12, 31, 23, 59, 59, 999999), False),
    (3, None, None, None, None, None, None),
    (4, "two\nlines, ü€ and \\ and '", -0.5, Decimal(0), dt.date(9999, 12, 31), moment(1, 1, 1), True),
    (5, "  around  ", 1e300, LAST, dt.date(1969, 1, 1), moment(2024, 3, 31, 1, 30), None),
    (6, '"', 0.1, Decimal("5.00"), dt.date(2000, 2, 29), moment(9999, 12, 31), False),
    (7, "null", 2.0, Decimal("7.00"), dt.date(1970, 1, 1), moment(1970, 1, 1), True),
    (8, "\t,\r\n", 3.0, Decimal("8.00"), dt.date(1970, 1, 2), moment(1970, 1, 1), True),
]


def table(rows: list[tuple[Any, ...]], times: list[int], diffs: list[int]) -> pa.Table:
    columns = {
        name: pa.array([row[at] for row in rows], SCHEMA.field(name).type) for at, name in enumerate(SCHEMA.names)
    }
    return pa.table({"_time": pa.array(times, pa.int64()), "_diff": pa.array(diffs, pa.int64()), **columns})


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a collection of all rows at time 1, of which one is doubled at time 3 and one gone at time 4."""
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    writer = log.writer(owner="tests")
    writer.append(table(ROWS, [1] * len(ROWS), [1] * len(ROWS)), advance_to=2)
    writer.append(table([ROWS[0], ROWS[2]], [3, 4], [1, -1]), advance_to=6)
    return log


def expected(time: int) -> Counter[tuple[Any, ...]]:
    found = Counter(ROWS) if time >= 1 else Counter[tuple[Any, ...]]()
    found[ROWS[0]] += time >= 3
    found[ROWS[2]] -= time >= 4
    return +found


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def copied(folder: Path, format_: str) -> Counter[tuple[Any, ...]]:
    """Return the rows in a folder as programs read them that are not Spark."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in files_of(folder):
        assert path.suffix == f".{format_}", path
        if format_ == "parquet":
            rows = pq.read_table(path)
        else:
            options = pv.ConvertOptions(
                column_types=SCHEMA, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
                timestamp_parsers=[pv.ISO8601],
            )  # fmt: skip
            rows = pv.read_csv(path, parse_options=pv.ParseOptions(newlines_in_values=True), convert_options=options)
        assert rows.schema.names == SCHEMA.names
        moments = rows["at"].cast(pa.timestamp("us", "UTC"))
        rows = rows.set_column(rows.schema.get_field_index("at"), "at", moments)
        found.update(tuple(row.values()) for row in rows.to_pylist())
    return found


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_copy_holds_the_rows_of_its_time(spark: SparkSession, log: Log, tmp_path: Path, format_: Any) -> None:
    for time in (0, 2, 5, None):
        folder = tmp_path / f"copy {time}"
        n = copy_to(spark, log, folder, as_of=time, format=format_)
        wanted = expected(5 if time is None else time)
        assert copied(folder, format_) == wanted
        assert n == wanted.total()
    log.allow_compaction([4])
    log.compact()
    assert copy_to(spark, log.path, tmp_path / "after", format=format_) == expected(5).total()
    assert copied(tmp_path / "after", format_) == expected(5)
    with pytest.raises(SinceViolationError, match=r"as of 2: found since=\[4\] and upper=\[6\]"):
        copy_to(spark, log, tmp_path / "early", as_of=2, format=format_)
    assert not (tmp_path / "early").exists()


def test_copy_of_chosen_rows_and_columns(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    n = copy_to(spark, log, tmp_path / "some", where="n > 1 AND text IS NOT NULL", select=["x", "n"])
    (path,) = [path for path in files_of(tmp_path / "some") if pq.read_metadata(path).num_rows]
    rows = pq.read_table(path)
    assert (rows.schema.names, sorted(rows["n"].to_pylist()), n) == (["x", "n"], [2, 4, 5, 6, 7, 8], 6)
    frame = spark_timely.snapshot(spark, log, 5).groupBy("yes").count()
    assert copy_to(spark, frame, tmp_path / "groups", format="csv") == 3


def test_large_copy_is_cut_into_files(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 1)
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("v", pa.int64())]), minimum=(0,))
    rows = pa.table({"_time": pa.array([0] * 20_000), "v": pa.array([(i * 7919) ** 2 for i in range(20_000)])})
    log.writer(owner="tests").append(rows, advance_to=1)
    for format_, least in (("parquet", 20_000), ("csv", 20_000)):
        n = copy_to(spark, log, tmp_path / format_, format=format_, max_file_bytes=least)
        sizes = [path.stat().st_size for path in files_of(tmp_path / format_)]
        assert n == 20_000
        assert len(sizes) > 4
        assert max(sizes) < 3 * least


def test_folder_inside_of_the_log_is_refused(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(log.path)
    for folder in (f"{log.path}/copy", tmp_path / "link" / "copy"):
        with pytest.raises(InvalidUsageError, match="found a folder inside of log"):
            copy_to(spark, log, folder)
        assert not Path(folder).exists()


def test_link_to_nothing_is_refused_and_left(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(InvalidUsageError, match=r"found a link to '.*nothing'"):
        copy_to(spark, log, link)
    with pytest.raises(InvalidUsageError, match=r"found a link to '.*nothing', where nothing is"):
        spark_timely.mirror_to(spark, log, link).step()
    with pytest.raises(LogMissingError, match=r"found a link to '.*nothing', where nothing is"):
        copy_to(spark, link, tmp_path / "copy")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "log"]


@pytest.mark.parametrize("name", ["part-0.parquet", "INCOMPLETE", ".hidden", "folder/x"])
def test_folder_with_anything_in_it_is_refused(spark: SparkSession, log: Log, tmp_path: Path, name: str) -> None:
    there = tmp_path / "copy" / name
    there.parent.mkdir(parents=True)
    there.write_text("")
    with pytest.raises(InvalidUsageError, match=r"could not copy to .*: found .* in it"):
        copy_to(spark, log, tmp_path / "copy")
    assert [str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()] == [
        name
    ]


def test_only_one_of_several_copies_goes_on(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    results: list[object] = []

    def copy() -> None:
        try:
            results.append(copy_to(spark, log, tmp_path / "copy"))
        except InvalidUsageError as error:
            results.append(error)

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(each, int) for each in results) == [False, False, False, True]
    assert copied(tmp_path / "copy", "parquet") == expected(5)


def test_copy_that_finished_in_between_is_left_whole(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was empty at the first look; another copy ran from beginning to end before `INCOMPLETE` was made."""
    begin = module.begin

    def late(*args: Any) -> Attempt:
        monkeypatch.setattr(module, "begin", begin)
        copy_to(spark, log, tmp_path / "copy", format="csv")
        return begin(*args)

    monkeypatch.setattr(module, "begin", late)
    with pytest.raises(InvalidUsageError, match="in it"):
        copy_to(spark, log, tmp_path / "copy")
    assert copied(tmp_path / "copy", "csv") == expected(5)


def test_sign_is_there_whenever_a_file_is(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step looks into the folder: files without the sign are there only after the very last one."""
    folder, seen = tmp_path / "copy", list[tuple[str, bool, int]]()

    def look(step: str) -> None:
        names = [path.name for path in files_of(folder)] if folder.exists() else []
        seen.append((step, "INCOMPLETE" in names, len(names) - ("INCOMPLETE" in names)))

    for name in ("begin", "_written", "finish"):
        inner = getattr(module, name)

        def outer(*args: Any, name: str = name, inner: Any = inner, **more: Any) -> Any:
            look(f"before {name}")
            found = inner(*args, **more)
            look(f"after {name}")
            return found

        monkeypatch.setattr(module, name, outer)
    delete = FileStorage.delete

    def deleted(self: FileStorage, path: str) -> None:
        look(f"before delete {path}")
        delete(self, path)

    give = FileStorage.give_name

    def given(self: FileStorage, path: str, name: str) -> None:
        give(self, path, name)
        look("named")

    monkeypatch.setattr(FileStorage, "delete", deleted)
    monkeypatch.setattr(FileStorage, "give_name", given)
    copy_to(spark, log, folder)
    n_named = len(files_of(folder))
    assert [(step, sign) for step, sign, _ in seen] == [
        ("before begin", False), ("after begin", True), ("before _written", True), ("after _written", True),
        ("before finish", True), *[("named", True)] * n_named, ("before delete INCOMPLETE", True),
        ("after finish", False),
    ]  # fmt: skip
    assert [sign for _, sign, n in seen if n] == [*[True] * (n_named + 3), False]
    assert sorted(path.name for path in folder.iterdir()) == [path.name for path in files_of(folder)]


def test_copy_whose_sign_was_taken_away_is_no_copy(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = module._written

    def meanwhile(*args: Any) -> Any:
        found = written(*args)
        (tmp_path / "copy" / "INCOMPLETE").write_text(json.dumps({"copy": "another"}))
        return found

    monkeypatch.setattr(module, "_written", meanwhile)
    with pytest.raises(RolledBackError, match="INCOMPLETE was deleted or replaced"):
        copy_to(spark, log, tmp_path / "copy")
    assert (tmp_path / "copy" / "INCOMPLETE").exists()


def test_job_that_fails_leaves_the_sign(spark: SparkSession, tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    log.writer(owner="tests").append(table(ROWS[:2], [0, 0], [1, -1]), advance_to=1)
    with pytest.raises(Exception, match="TIMELY_NEGATIVE_MULTIPLICITY"):
        copy_to(spark, log, tmp_path / "copy")
    assert "INCOMPLETE" in os.listdir(tmp_path / "copy")
    with pytest.raises(InvalidUsageError, match="INCOMPLETE in it"):
        copy_to(spark, log, tmp_path / "copy")


# Attempts ---------------------------------------------------------------------------------------------

JOB_S = 60.0


class DeadCopy:
    """A copy whose client died while its job writes: its first task has written its file, the second one is at it."""

    def __init__(self, spark: SparkSession, folder: Path, format_: Any) -> None:
        self.goes_on = folder.with_name(f"{folder.name}-goes-on")
        self.ended = folder.with_name(f"{folder.name}-ended")
        self.own = copy_folder.begin(open_storage(folder), f"copy to {str(folder)!r}", home_of(spark))
        self.failed: BaseException | None = None
        self._spark, self._format = spark, format_
        self._root = f"file://{folder}/{self.own.folder}"
        self._job = threading.Thread(target=self._run)
        self._job.start()
        done = f"{self.own.folder}/_temporary/0/task_*/part-*.{format_}"
        wait_until(lambda: bool(list(folder.glob(done))), deadline_s=JOB_S, what="the first task's file")

    def _run(self) -> None:
        try:
            with tagged(self._spark, self.own.tag):
                module._written(held_rows(self._spark, self.goes_on), self._root, self._format, 1_000_000)
        except BaseException as error:  # noqa: BLE001 - nobody is there to be told
            self.failed = error
        self.ended.touch()

    def end(self) -> None:
        """Let the job go on, to its end."""
        self.goes_on.touch()
        self._job.join(JOB_S)
        assert not self._job.is_alive()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("_attempt-"))


@pytest.mark.parametrize(("format_", "when"), [("parquet", "while"), ("csv", "while"), ("parquet", "after")])
def test_late_job_of_a_dead_copy_adds_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: Any, when: str
) -> None:
    """The folder was deleted while a job wrote to it, and copied into at once; the old job ends while that runs."""
    monkeypatch.setattr(module, "end_tagged", lambda *_: None)  # it is another application's
    folder = tmp_path / "copy"
    dead = DeadCopy(spark, folder, format_)
    shutil.rmtree(folder)
    rows = spark.range(0, 100, 1, 2)
    if when == "while":
        rows = held_rows(spark, dead.ended, first=dead.goes_on, n_rows=100)
    assert copy_to(spark, rows.selectExpr("id + 10000 AS id"), folder, format=format_) == 100
    names = names_in(folder)
    assert len(names) == 2
    dead.end()
    assert names_in(folder) == names
    rows = spark.read.option("header", "true").format(format_).load(str(folder))
    assert (rows.count(), rows.selectExpr("min(int(id))").collect()[0][0]) == (100, 10_000)
    if format_ == "parquet":
        assert pq.read_table(folder).num_rows == len(pandas.read_parquet(folder)) == 100
        found = duckdb.sql(f"SELECT count(*) FROM read_parquet('{folder}/*.parquet')").fetchall()
        assert found == [(100,)]


def test_job_of_a_dead_copy_ends_where_it_can_be_reached(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    dead = DeadCopy(spark, folder, "parquet")
    (folder / "INCOMPLETE").unlink()
    assert copy_to(spark, spark.range(100), folder) == 100
    dead._job.join(JOB_S)
    assert "cancelled job tag" in str(dead.failed)
    assert [path.suffix for path in folder.iterdir()] == [".parquet"] * len(names_in(folder))


def test_folder_of_a_dead_copy_names_its_job_and_its_end(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    dead = DeadCopy(spark, folder, "parquet")
    with pytest.raises(InvalidUsageError, match="found INCOMPLETE in it, of a copy by job") as found:
        copy_to(spark, spark.range(100), folder)
    application = spark.sparkContext.applicationId
    assert found.value.message.endswith(f"by job {dead.own.tag!r} of application {application!r}")
    call = re.search(r"end what is left of the job by (.*) in application", str(found.value.hint))
    assert call is not None
    eval(call[1], {"spark": spark})
    dead._job.join(JOB_S)
    assert dead.failed is not None
    shutil.rmtree(folder)
    assert copy_to(spark, spark.range(100), folder) == 100


def test_copy_that_lost_its_folder_takes_its_files_away(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own client lives: another copy began in the folder while files were named."""
    folder, give = tmp_path / "copy", FileStorage.give_name
    sign = b""

    def late(self: FileStorage, path: str, name: str) -> None:
        nonlocal sign
        monkeypatch.setattr(FileStorage, "give_name", give)
        give(self, path, name)
        (folder / "INCOMPLETE").unlink()
        sign = copy_folder.begin(open_storage(tmp_path / "other"), "copy", {}).sign
        (folder / "INCOMPLETE").write_bytes(sign)

    monkeypatch.setattr(FileStorage, "give_name", late)
    with pytest.raises(RolledBackError, match="INCOMPLETE was deleted or replaced"):
        copy_to(spark, spark.range(0, 100, 1, 3), folder)
    assert [path.name for path in folder.iterdir()] == ["INCOMPLETE"]
    assert (folder / "INCOMPLETE").read_bytes() == sign


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_copy_that_lacks_files_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: Any
) -> None:
    """As where executors have another disk than the driver."""
    folder, written = tmp_path / "copy", module._written

    def lossy(*args: Any) -> Written:
        found = written(*args)
        next(folder.glob("_attempt-*/part-00001-*")).unlink()
        return found

    monkeypatch.setattr(module, "_written", lossy)
    wanted = "found 50 of 100 rows" if format_ == "parquet" else r"no files, or not all, of 1 of 2 tasks, \[1\]"
    with pytest.raises(StorageError, match=wanted):
        copy_to(spark, spark.range(0, 100, 1, 2), folder, format=format_)
    assert names_in(folder) == ["INCOMPLETE"]


def test_copy_without_a_count_is_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "observed", lambda _: {})
    with pytest.raises(StorageError, match="found no count of the rows written"):
        copy_to(spark, spark.range(3), tmp_path / "copy")
    assert names_in(tmp_path / "copy") == ["INCOMPLETE"]


def test_file_of_somebody_else_is_no_part_of_a_copy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "copy", module._written

    def beside(*args: Any) -> Written:
        (folder / "part-9.parquet").write_text("")
        return written(*args)

    monkeypatch.setattr(module, "_written", beside)
    with pytest.raises(RolledBackError, match=r"found \['part-9.parquet'\] beside its files"):
        copy_to(spark, spark.range(3), folder)
    assert names_in(folder) == ["INCOMPLETE", "part-9.parquet"]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_name_of_an_attempt_that_is_no_folder_is_in_the_way(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    name = folder / f"_attempt-{'0' * 32}"
    if kind == "file":
        name.write_text("")
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "file").write_text("kept")
        name.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidUsageError, match="_attempt-0"):
        copy_to(spark, spark.range(3), folder)
    assert list(folder.iterdir()) == [name]
    assert kind == "file" or (tmp_path / "elsewhere" / "file").exists()


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_copy_of_nothing_has_no_rows(spark: SparkSession, tmp_path: Path, format_: Any) -> None:
    for number, rows in enumerate((spark.range(0), spark.range(5).where("id > 7"), spark.range(0, 9, 1, 3).limit(0))):
        folder = tmp_path / str(number)
        assert copy_to(spark, rows, folder, format=format_) == 0
        assert {path.suffix for path in folder.iterdir()} <= {f".{format_}"}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"format": "json"}, "format='json'"),
        ({"max_file_bytes": 1000}, "max_file_bytes=1000"),
        ({"max_file_bytes": True}, "max_file_bytes=True"),
        ({"select": ["nobody"]}, "no column 'nobody'"),
        ({"select": ["n", "n"]}, "select="),
        ({"select": []}, "select="),
        ({"where": "nobody > 1"}, "nobody"),
        ({"where": 7}, "where=7"),
    ],
)
def test_arguments_that_are_wrong_are_refused_before_anything(
    spark: SparkSession, log: Log, tmp_path: Path, options: dict[str, Any], found: str
) -> None:
    with pytest.raises((InvalidUsageError, SchemaMismatchError), match=found):
        copy_to(spark, log, tmp_path / "copy", **options)
    assert not (tmp_path / "copy").exists()


def test_columns_that_csv_has_no_form_for_are_named(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("many", pa.list_(pa.int64())), ("raw", pa.binary())])
    log = spark_timely.create_log(tmp_path / "log", schema, minimum=(0,))
    rows = pa.table({"_time": [0], "n": [1], "many": pa.array([[1]], schema.field("many").type), "raw": [b"x"]})
    log.writer(owner="tests").append(rows, advance_to=1)
    for names, found in ((["many"], "'many' of type array<bigint>"), (["raw", "n"], "'raw' of type binary")):
        with pytest.raises(SchemaMismatchError, match=found):
            copy_to(spark, log, tmp_path / "copy", format="csv", select=names)
    assert not (tmp_path / "copy").exists()
    assert copy_to(spark, log, tmp_path / "copy") == 1


# Mutants ----------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
Check = Callable[[SparkSession, Log, Path, Patch], None]


def looks_once(patch: Patch) -> None:
    """Not again once the sign is there."""
    look = copy_folder.check_empty
    for each in (module, copy_folder):
        patch.setattr(each, "check_empty", lambda *args, own=False: [] if own else look(*args))
    takes_what_is_beside_its_files(patch)


def adds_to_what_is_there(patch: Patch) -> None:
    for each in (module, copy_folder):
        patch.setattr(each, "check_empty", lambda *_, **__: [])
    takes_what_is_beside_its_files(patch)


def takes_what_is_beside_its_files(patch: Patch) -> None:
    patch.setattr(copy_folder, "_check_alone", lambda *_: None)


def deletes_the_sign_of_another(patch: Patch) -> None:
    patch.setattr(copy_folder, "_check_owned", lambda *_: None)


def takes_the_sign_away_early(patch: Patch) -> None:
    own, delete = module.finish, FileStorage.delete

    def mutant(attempt: Attempt, written: Written) -> int:
        delete(attempt.storage, "INCOMPLETE")  # type: ignore[arg-type]
        patch.setattr(FileStorage, "delete", lambda *_: None)
        return own(attempt, written)

    patch.setattr(module, "finish", mutant)
    deletes_the_sign_of_another(patch)


def names_files_where_they_are_written(patch: Patch) -> None:
    """As it was: one folder for the jobs of all attempts."""
    patch.setattr(Attempt, "folder", property(lambda _: "_attempt-" + "0" * 32))


def counts_what_is_there(patch: Patch) -> None:
    patch.setattr(copy_folder, "_check_all_there", lambda *_: None)


def copies_into_the_log(patch: Patch) -> None:
    patch.setattr(module, "_check_outside", lambda *_: None)


def counts_row_groups(patch: Patch) -> None:
    def mutant(storage: Any, path: str) -> int:
        with storage.open_input(path) as file:
            return int(pq.read_metadata(file).num_row_groups)

    patch.setattr(copy_folder, "_n_rows", mutant)


def takes_all_rows(patch: Patch) -> None:
    own = module._chosen
    patch.setattr(module, "_chosen", lambda frame, _, select, attempt: own(frame, None, select, attempt))


def copies_the_newest(patch: Patch) -> None:
    own = module.at_one_time
    patch.setattr(module, "at_one_time", lambda *args, as_of, **more: own(*args, as_of=as_of and 5, **more))


IN_BETWEEN: Check = test_copy_that_finished_in_between_is_left_whole
SIGN: Check = lambda *args: test_sign_is_there_whenever_a_file_is(*args)  # noqa: E731
CHOSEN: Check = lambda spark, log, folder, _: test_copy_of_chosen_rows_and_columns(spark, log, folder)  # noqa: E731
MUTANTS: dict[Callable[[Patch], None], Check] = {
    looks_once: IN_BETWEEN,
    adds_to_what_is_there: lambda spark, log, folder, _: test_folder_with_anything_in_it_is_refused(
        spark, log, folder, "part-0.parquet"
    ),
    deletes_the_sign_of_another: test_copy_whose_sign_was_taken_away_is_no_copy,
    takes_the_sign_away_early: SIGN,
    names_files_where_they_are_written: lambda spark, _, folder, patch: test_late_job_of_a_dead_copy_adds_nothing(
        spark, folder, patch, "parquet", "while"
    ),
    counts_what_is_there: lambda spark, _, folder, patch: test_copy_that_lacks_files_is_refused(
        spark, folder, patch, "parquet"
    ),
    takes_what_is_beside_its_files: lambda spark, _, folder, patch: test_file_of_somebody_else_is_no_part_of_a_copy(
        spark, folder, patch
    ),
    copies_into_the_log: lambda spark, log, folder, _: test_folder_inside_of_the_log_is_refused(spark, log, folder),
    counts_row_groups: CHOSEN,
    takes_all_rows: CHOSEN,
    copies_the_newest: lambda spark, log, folder, _: test_copy_holds_the_rows_of_its_time(
        spark, log, folder, "parquet"
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_wrong_copy_is_found(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: Patch, mutant: Callable[[Patch], None]
) -> None:
    mutant(monkeypatch)
    # The last are what a copy says that reads the files of another as its own, or miscounts.
    errors = (AssertionError, pytest.fail.Exception, pa.ArrowInvalid, StorageError, PySparkException)
    with pytest.raises(errors):
        MUTANTS[mutant](spark, log, tmp_path, monkeypatch)
