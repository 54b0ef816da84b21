"""Copies in plain files hold what the log holds, and a folder never looks finished that is not."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.errors import (
    InvalidUsageError,
    LogMissingError,
    RolledBackError,
    SchemaMismatchError,
    SinceViolationError,
)
from spark_timely.log.store.storage import FileStorage
from spark_timely.spark import copy_to as module
from spark_timely.spark.copy_to import copy_to

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
    begin = module._begin

    def late(*args: Any) -> bytes:
        monkeypatch.setattr(module, "_begin", begin)
        copy_to(spark, log, tmp_path / "copy", format="csv")
        return begin(*args)

    monkeypatch.setattr(module, "_begin", late)
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

    for name in ("_begin", "_written", "_finish"):
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

    monkeypatch.setattr(FileStorage, "delete", deleted)
    copy_to(spark, log, folder)
    assert [(step, sign) for step, sign, _ in seen] == [
        ("before _begin", False), ("after _begin", True), ("before _written", True), ("after _written", True),
        ("before _finish", True), ("before delete INCOMPLETE", True), ("after _finish", False),
    ]  # fmt: skip
    assert [sign for _, sign, n in seen if n] == [True, True, True, False]


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
    own = module._check_empty
    patch.setattr(module, "_check_empty", lambda *args, but=None: None if but else own(*args))


def adds_to_what_is_there(patch: Patch) -> None:
    patch.setattr(module, "_check_empty", lambda *_, **__: None)


def deletes_the_sign_of_another(patch: Patch) -> None:
    own = module._finish
    patch.setattr(
        module, "_finish", lambda storage, attempt, _, *more: own(storage, attempt, storage.find("INCOMPLETE"), *more)
    )


def takes_the_sign_away_early(patch: Patch) -> None:
    own, finish = module._finish, FileStorage.delete

    def mutant(storage: Any, attempt: str, token: bytes, *more: Any) -> int:
        finish(storage, "INCOMPLETE")
        patch.setattr(FileStorage, "find", lambda *_: token)
        patch.setattr(FileStorage, "delete", lambda *_: None)
        return own(storage, attempt, token, *more)

    patch.setattr(module, "_finish", mutant)


def writes_before_the_sign(patch: Patch) -> None:
    own, written = module._begin, module._written
    begun: list[Any] = []

    def nothing(storage: Any, attempt: str) -> bytes:
        begun.append((storage, attempt))
        return b""

    def mutant(*args: Any) -> Any:
        found = written(*args)
        patch.setattr(module, "_check_empty", lambda *_, **__: None)
        own(*begun[0])
        return found

    patch.setattr(module, "_begin", nothing)
    patch.setattr(module, "_written", mutant)
    deletes_the_sign_of_another(patch)


def copies_into_the_log(patch: Patch) -> None:
    patch.setattr(module, "_check_outside", lambda *_: None)


def counts_row_groups(patch: Patch) -> None:
    def mutant(storage: Any, path: str) -> int:
        with storage.open_input(path) as file:
            return int(pq.read_metadata(file).num_row_groups)

    patch.setattr(module, "_n_rows", mutant)


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
    writes_before_the_sign: SIGN,
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
    # The last is what a copy says that reads the files of another as its own.
    with pytest.raises((AssertionError, pytest.fail.Exception, pa.ArrowInvalid)):
        MUTANTS[mutant](spark, log, tmp_path, monkeypatch)
