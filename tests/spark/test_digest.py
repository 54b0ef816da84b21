"""The digest of input rows in Spark: as the oracle has it, blind to what may change, and to nothing else."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.canonical.row_hash import RowsDigest
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import states_by_seq
from spark_timely.spark.capture import foreach_batch
from spark_timely.spark.capture.classify import digest_in, digest_sums, row_hash_sql
from tests.oracles import digest_model as model
from tests.support import session_of_a_call
from tests.unit.sink.driver import MIN, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.sink.commit import TaskReport

pytestmark = pytest.mark.spark

FIELDS = {
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "int": "int",
    "long": "bigint",
    "real": "float",
    "double": "double",
    "text": "string",
    "raw": "binary",
    "day": "date",
    "at": "timestamp",
    "clock": "timestamp_ntz",
    "short": "decimal(9,2)",
    "wide": "decimal(38,9)",
    "deep`er": "struct<x: int, y: string>",
    "list": "array<array<bigint>>",
    "map": "map<string,struct<x: double>>",
}
SCHEMA = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in FIELDS.items())
INSTANT = dt.datetime(2013, 6, 12, 1, 2, 3, 456789, tzinfo=dt.UTC)
CLOCK = dt.datetime(1812, 6, 12, 22, 0)
# One value after the other of each column; every seventh row is the same again.
VALUES: dict[str, list[Any]] = {
    "flag": [True, False, None],
    "tiny": [-128, 0, 5],
    "small": [None, -7, 300],
    "int": [2**31 - 1, -(2**31), 0],
    "long": [2**63 - 1, MIN, None],
    "real": [0.5, float("nan"), -0.0],
    "double": [float("-inf"), -0.0, 1e300],
    "text": ["", "ä€𝄞", "x" * 77],
    "raw": [b"", b"\x00\xff" * 17, None],
    "day": [dt.date(1700, 1, 1), dt.date(2013, 6, 12), None],
    "at": [INSTANT, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC), None],
    "clock": [CLOCK, None, dt.datetime(2013, 1, 1)],
    "short": [Decimal("1.50"), Decimal("-0.01"), None],
    "wide": [Decimal("1.500000000"), Decimal("-12345678901234567890.000000001"), Decimal(0)],
    "deep`er": [(1, None), (None, "y"), None],
    "list": [[[1, None], [], None], [], None],
    "map": [{"a": (1.0,), "b": None}, {}, None],
}
ROWS = [tuple(values[(i // (1 + j % 3)) % 3] for j, values in enumerate(VALUES.values())) for i in range(7)] * 2


def typed(row: tuple[Any, ...]) -> dict[str, model.Value]:
    """Return a row as the oracle takes it."""
    found: dict[str, model.Value] = {name: (kind, v) for (name, kind), v in zip(FIELDS.items(), row, strict=True)}
    deep, lists, entries = found["deep`er"][1], found["list"][1], found["map"][1]
    if isinstance(deep, tuple):
        found["deep`er"] = ("struct", {"x": ("int", deep[0]), "y": ("string", deep[1])})
    if isinstance(lists, list):
        found["list"] = ("array", [("array", e and [("bigint", x) for x in e]) for e in lists])
    if isinstance(entries, dict):
        items = {("string", k): ("struct", v and {"x": ("double", v[0])}) for k, v in entries.items()}
        found["map"] = ("map", items)
    return found


def digest(df: DataFrame, columns: list[tuple[str, str]] | None = None) -> RowsDigest:
    """Return the digest over all columns, as an observation of the job that writes the rows."""
    from pyspark.sql import Observation, functions

    seen = Observation()
    sums = digest_sums(row_hash_sql(columns or [(name, name) for name in df.columns], df.schema))
    df.observe(seen, *map(functions.expr, sums)).write.format("noop").mode("overwrite").save()
    found = digest_in(seen.get)
    assert found is not None
    return found


def one(spark: SparkSession, kind: str, expression: str) -> RowsDigest:
    """Return the digest of one row with one column."""
    return digest(spark.range(1).selectExpr(f"CAST({expression} AS {kind}) AS v"))


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {name: f"spark.sql.{name.replace('_', '.')}" for name in values}
    before = {name: spark.conf.get(full) for name, full in names.items()}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    yield
    for name, value in before.items():
        spark.conf.set(names[name], str(value))


@pytest.mark.parametrize("n_parts", [1, 3])
@pytest.mark.parametrize(("ansi", "zone"), [("true", "Asia/Kathmandu"), ("false", "America/New_York")])
def test_digest_equals_the_oracle_for_any_cut_order_and_session(
    spark: SparkSession, ansi: str, zone: str, n_parts: int
) -> None:
    data = spark.createDataFrame(ROWS if n_parts == 1 else ROWS[::-1], SCHEMA)
    with settings(spark, ansi_enabled=ansi, session_timeZone=zone):
        found = digest(data.repartition(n_parts).select(*[f"`{n.replace('`', '``')}`" for n in sorted(FIELDS)]))
    assert found.text == model.digest(typed(row) for row in ROWS)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", ["NULL", "0", "1", "-1", "9223372036854775807"]),
        ("double", ["NULL", "0", "0.1", "'NaN'", "'Infinity'"]),
        ("string", ["NULL", "''", "'a'", "'A'", "'a '"]),
        ("decimal(20,2)", ["NULL", "0", "0.01", "0.10"]),
        ("timestamp", ["NULL", "timestamp_micros(0)", "timestamp_micros(1)"]),
        ("array<int>", ["NULL", "array()", "array(NULL)", "array(1, NULL)", "array(NULL, 1)", "array(1, 1)"]),
        ("array<array<int>>", ["array(array(1), array(2))", "array(array(1, 2))", "array(array(1, 2), array())"]),
        ("struct<a: int, b: int>", ["NULL", "(1, 2)", "(2, 1)", "(1, NULL)", "(NULL, 1)", "(NULL, NULL)"]),
        (
            "map<int, map<int, int>>",
            [
                "NULL",
                "map()",
                "map(1, map())",
                "map(1, NULL)",
                "map(1, map(1, 2))",
                "map(1, map(2, 1))",
                "map(2, map(1, 2))",
                "map(1, map(1, 2), 2, NULL)",
                "map(1, NULL, 2, map(1, 2))",
            ],
        ),
    ],
)
def test_values_that_differ_make_a_difference(spark: SparkSession, kind: str, values: list[str]) -> None:
    row_hash = row_hash_sql([("v", "v")], spark.range(1).selectExpr(f"CAST(NULL AS {kind}) AS v").schema)
    table = " UNION ALL ".join(f"SELECT CAST({value} AS {kind}) AS v" for value in values)
    found = {row[0] for row in spark.sql(f"SELECT {row_hash} FROM ({table})").collect()}
    assert len(found) == len(values)


def test_order_of_a_map_and_width_of_a_type_make_no_difference(spark: SparkSession) -> None:
    assert one(spark, "map<int, int>", "map(1, 2, 3, 4)") == one(spark, "map<int, int>", "map(3, 4, 1, 2)")
    assert one(spark, "double", "-0.0D") == one(spark, "double", "0.0D")
    assert one(spark, "smallint", "-7") == one(spark, "int", "-7") == one(spark, "bigint", "-7")
    assert one(spark, "float", "0.5") == one(spark, "double", "0.5")


def test_values_count_by_column_and_columns_of_nulls_do_not(spark: SparkSession) -> None:
    data = spark.sql("SELECT 1 AS a, 2 AS b, CAST(NULL AS MAP<INT, STRING>) AS c")
    swapped = digest(data, [("a", "b"), ("b", "a")])
    assert digest(data) == digest(data.select("b", "a")) != swapped
    assert digest(data.select("a")) != digest(data.selectExpr("a AS b"))
    assert digest(data, [("a", "a"), ("b", "c")]) == digest(data.select("a")) != digest(data, [("a", "c"), ("b", "a")])


def test_equal_rows_do_not_cancel_each_other(spark: SparkSession) -> None:
    found = [digest(spark.range(n).selectExpr("7 AS v")) for n in range(4)]
    assert found[0] == RowsDigest(scheme="spark1")
    assert len(set(found)) == 4
    assert found[1] + found[1] + found[1] == found[3]


def test_greatest_hashes_add_up_and_overflow_gives_no_digest(spark: SparkSession) -> None:
    for ansi in ("true", "false"):
        with settings(spark, ansi_enabled=ansi):
            for number in (2**63 - 1, MIN):
                data = spark.range(5).selectExpr(f"CAST('{number}' AS BIGINT) AS h")
                found = digest_in(data.selectExpr(*digest_sums("h")).collect()[0].asDict())
                assert found is not None
                upper, lower = number >> 32, -1 if number > 0 else 0
                assert (found.hi, found.lo) == (5 * upper % 2**64, 5 * lower % 2**64)
            # As many rows as that are not made here: one stands for all that were added before.
            sums = [sum_.replace("shiftright(h, 32)", "h") for sum_ in digest_sums("h")]
            assert digest_in(data.selectExpr(*sums).collect()[0].asDict()) is None


def test_a_thousand_columns_are_hashed(spark: SparkSession) -> None:
    names = [f"c{i:04d}" for i in range(1000)]
    data = spark.range(2).selectExpr(*[f"id + {i} AS {name}" for i, name in enumerate(names)])
    expected = [{name: ("bigint", n + i) for i, name in enumerate(names)} for n in range(2)]
    hashes = data.selectExpr(row_hash_sql([(name, name) for name in names], data.schema)).collect()
    assert sorted(row[0] % 2**64 for row in hashes) == sorted(map(model.row_hash, expected))


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[TaskReport]:
    """Note what captures report."""
    found: list[TaskReport] = []
    real: Callable[..., object] = foreach_batch.commit_reports

    def noting(plan: Any, ident: Any, reports: list[TaskReport]) -> object:
        found.extend(reports)
        return real(plan, ident, reports)

    monkeypatch.setattr(foreach_batch, "commit_reports", noting)
    return found


def frame(spark: SparkSession, table: pa.Table, n_parts: int = 2) -> DataFrame:
    from spark_timely.spark.base.schema import spark_schema

    # A session of its own, as each run of a query has one.
    return session_of_a_call(spark).createDataFrame(table, schema=spark_schema(table.schema)).repartition(n_parts)


@pytest.mark.parametrize("late_data", ["deadLetter", "advance"])
def test_capture_reports_the_digest_of_input_and_repetition(
    spark: SparkSession, tmp_path: Path, reports: list[TaskReport], late_data: str
) -> None:
    path = str(tmp_path / "log")

    def run(batch: int, table: pa.Table, n_parts: int = 2) -> None:
        foreach_batch.capture(
            frame(spark, table, n_parts),
            batch,
            path=path,
            app_id="a",
            time_column="t",
            frontier="bounded",
            lateness="1",
            late_data=late_data,
        )

    run(0, rows([9]))
    run(1, rows([12, 3, 8, 3], 5))
    run(1, rows([12, 3, 8, 3], 5), n_parts=3)
    run(2, rows([20]).slice(1))
    expected = [{"t": ("bigint", t), "id": ("bigint", 5 + i)} for i, t in enumerate([12, 3, 8, 3])]
    assert [report.repeated for report in reports] == [False, False, True, False]
    found = [report.digest for report in reports]
    assert found[1] is not None
    assert found[1].text == model.digest(expected)
    assert found[2] == found[1]
    assert found[3] == RowsDigest(scheme="spark1")


def test_digest_of_what_is_written_is_that_of_what_came_in(
    spark: SparkSession, tmp_path: Path, reports: list[TaskReport]
) -> None:
    path = str(tmp_path / "log")

    def run(batch: int, found: list[tuple[object, ...]], schema: str) -> None:
        df = session_of_a_call(spark).createDataFrame(found, schema)
        options = {"time_column": "_time", "diff_column": "change", "frontier": "bounded", "missing_columns": "text"}
        foreach_batch.capture(df, batch, path=path, app_id="a", **options)

    run(0, [(1, 1, 2**40, 0.5, "x")], "_time bigint, Change bigint, id bigint, real double, text string")
    # Narrower types, another order, a column that the log does not have yet is not there, one is missing.
    narrow = [(3, 0.25, None, -1), (2, float("nan"), 7, 2), (2, -0.0, 7, 2)]
    for _ in range(2):  # the second time repeated: of the data alone
        run(1, narrow, "_TIME smallint, real float, ID int, change int")
    expected = [
        {"_time": ("bigint", t), "real": ("float", r), "id": ("int", i), "_diff": ("int", d)} for t, r, i, d in narrow
    ]
    assert [report.repeated for report in reports] == [False, False, True]
    assert [report.digest and report.digest.text for report in reports[1:]] == [model.digest(expected)] * 2


def test_capture_of_events_counts_progress_by_time_and_change(
    spark: SparkSession, tmp_path: Path, reports: list[TaskReport]
) -> None:
    for number, moved in enumerate([5, 6]):
        events = [("message", 7, None, 1), ("progress", MIN, -1, None), ("progress", moved, 1, None)]
        for _ in range(2):  # the second time repeated, by another run
            df = session_of_a_call(spark).createDataFrame(events, "_event string, _time bigint, _delta int, id int")
            foreach_batch.capture(df, 0, path=str(tmp_path / f"log-{number}"), app_id="a", frontier="events")
        expected = [
            {"_event": ("string", e), "_time": ("bigint", t), "_delta": ("bigint", d), "id": ("bigint", i)}
            for e, t, d, i in events
        ]
        assert {report.digest and report.digest.text for report in reports[-2:]} == {model.digest(expected)}
    assert reports[0].digest != reports[-1].digest


def said_by(log: Log) -> list[str | None]:
    """Return the digest that each commit with messages says."""
    return [state.note.content for state in states_by_seq(log.core.format, log.core.progress()) if state.rows]


def test_stored_messages_have_the_digest_that_a_writer_says(spark: SparkSession, tmp_path: Path) -> None:
    names = [name for name in FIELDS if "`" not in name]
    schema = ", ".join(["t bigint", *(f"`{name}` {FIELDS[name]}" for name in names)])
    chosen = [list(FIELDS).index(name) for name in names]
    data = [(20 - i, *(row[j] for j in chosen)) for i, row in enumerate(ROWS)]
    path = str(tmp_path / "log")
    # One row is late.
    parts = [data[:9], [(-500, *data[0][1:]), *data[9:]], data[:2]]
    for batch, (part, wanted) in enumerate(zip(parts, ("auto", "on", "off"), strict=True)):
        foreach_batch.capture(
            session_of_a_call(spark).createDataFrame(part, schema).repartition(2),
            batch,
            path=path,
            app_id="a",
            time_column="t",
            frontier="bounded",
            lateness="100",
            late_data="deadLetter",
            content_digest=wanted,
        )
    log = open_log(path)
    assert log.verify().problems == ()
    assert log.verify().dead_letters == 1
    stored = log.messages()
    other = create_log(str(tmp_path / "other"), log.schema, minimum=log.domain.minimum, merge_every=None)
    for seq in (1, 2, 3):
        rows_of_commit = stored.filter(pc.equal(stored["_seq"], seq)).drop_columns(["_stream", "_seq"])
        other.writer(owner="me", content_digest="on").append(rows_of_commit)
    expected = said_by(other)
    assert None not in expected
    assert len(set(expected)) == 3
    assert said_by(log) == [*expected[:2], None]
    assert log.verify().counts_alone == 1
