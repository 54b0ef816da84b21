"""The verbs that start Spark: they print and copy what the library gives, and peeks are what Spark would give."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.answers.file_cache import KeptFiles
from spark_timely.answers.statements import PeekStatement, parse
from spark_timely.cli import answers, main
from spark_timely.cli.output import to_json
from tests.unit.cli.conftest import Run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ORDERS = pa.schema([("id", pa.int64()), ("item", pa.string()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
DAY = 86_400_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a collection `orders`, complete below 5, and one `rates`, complete below 4."""
    log = spark_timely.create_log(tmp_path / "orders", ORDERS, minimum=(0,), kind="collection")
    rows = [(1, "tea", 0.5, DAY), (2, None, None, None), (3, "", float("nan"), 7), (2, "Tea", -0.0, DAY + 1)]
    columns = {field.name: pa.array([row[i] for row in rows], field.type) for i, field in enumerate(ORDERS)}
    log.writer(owner="me").append(pa.table({"_time": [1, 1, 2, 3], "_diff": [1, 2, 1, 3], **columns}), advance_to=5)
    rates = spark_timely.create_log(
        tmp_path / "rates", pa.schema([("id", pa.int64()), ("rate", pa.float64())]), minimum=(0,), kind="collection"
    )
    table = pa.table({"_time": [1, 3], "_diff": [1, 1], "id": [1, 2], "rate": [2.0, 3.0]})
    rates.writer(owner="me").append(table, advance_to=4)
    return tmp_path


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command in the session of the tests: its exit code, what it prints, and what as errors."""
    monkeypatch.setattr(answers, "spark_of", lambda _: spark)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


JOIN = "SELECT o.id, rate, at FROM orders o LEFT JOIN rates r USING (id) ORDER BY o.id, rate"


def names(folder: Path) -> list[str]:
    return ["--name", f"orders={folder / 'orders'}", "--name", f"rates={folder / 'rates'}"]


def test_sql_prints_a_join_at_one_time(run: Run, folder: Path) -> None:
    code, out, err = run("sql", f"{JOIN} AS OF 2", *names(folder), "--format", "csv", "--explain", "--timeout", "5s")
    assert code == 0
    assert out.splitlines() == [
        "id,rate,at", "1,2.0,1970-01-02T00:00:00Z", "2,,", "2,,", "3,,1970-01-01T00:00:00.000007Z",
    ]  # fmt: skip
    assert "way" in err
    # The newest time that is complete in both is 3.
    code, out, _ = run("sql", JOIN, *names(folder), "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["rate"] for row in found if row["id"] == 2] == [3.0] * 5
    code, out, err = run("sql", JOIN, *names(folder), "--max-rows", "3")
    assert (code, out) == (4, "")
    assert "found more than 3 rows" in err
    code, out, err = run("sql", "SELECT o.id, r.id FROM orders o, rates r", *names(folder))
    assert (code, out) == (2, "")
    assert "found several columns 'id'" in err


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM orders",
        "SELECT ITEM, id FROM orders WHERE id >= 2 AND item IS NOT NULL",
        "SELECT x FROM orders WHERE x > 0.1 OR item IS NULL ORDER BY x DESC, ID",
        "SELECT id FROM orders ORDER BY item, at DESC NULLS FIRST LIMIT 3 OFFSET 2",
        "SELECT id, x FROM orders WHERE x = 0 OR x >= 1 ORDER BY x NULLS LAST, id LIMIT 4",
        "SELECT item FROM orders WHERE at > TIMESTAMP '1970-01-01T12:00:00Z' OFFSET 4",
        "SELECT id FROM orders WHERE item LIKE 't%' AND item <> 'Tea' LIMIT 0",
    ],
)
def test_a_peek_gives_what_spark_gives(run: Run, spark: SparkSession, folder: Path, text: str) -> None:
    targets = {"orders": str(folder / "orders")}
    statement = parse(text, names=targets)
    assert isinstance(statement, PeekStatement)
    code, out, _ = run("sql", text, *names(folder), "--json")
    found = [tuple(json.loads(line).values()) for line in out.splitlines()]
    rows = spark_timely.sql(spark, text, names=targets).toArrow().to_pylist()
    expected = [tuple(json.loads(answers_json(row)).values()) for row in rows]
    if not statement.order_by:
        found, expected = sorted(found, key=str), sorted(expected, key=str)
    assert (code, found) == (0, expected)
    assert spark_timely.sql(spark, statement.query, names=targets).count() == len(rows)


def answers_json(row: dict[str, object]) -> str:
    """Return a row as the command line writes it; moments in UTC, whatever the session's zone is."""
    return to_json({
        name: value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value for name, value in row.items()
    })  # fmt: skip


def test_a_peek_that_would_read_too_much_is_a_job(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("sql", "SELECT id FROM orders ORDER BY id", *names(folder), "--json", "--explain")
    code, here, err = run(*asked)
    assert (code, json.loads(err)["way"]) == (0, "log")
    plain = answers.peek
    monkeypatch.setattr(answers, "peek", lambda *a, **k: plain(*a, scan_limit=0, **k))
    monkeypatch.setitem(KeptFiles.__init__.__kwdefaults__, "small_bytes", 0)
    log = spark_timely.open_log(folder / "orders")
    copy = spark_timely.create_log(folder / "copy", ORDERS, minimum=(0,), kind="collection")
    rows = log.snapshot(4)
    rows = rows.append_column("_time", pa.array([1] * rows.num_rows, pa.int64()))
    copy.writer(owner="me").append(rows, advance_to=5)
    code, there, err = run("sql", "SELECT id FROM c ORDER BY id", "--name", f"c={copy.path}", "--json", "--explain")
    assert (code, json.loads(err)["way"]) == (0, "job")
    assert there == here


def test_copy_to_and_copy_write_the_same(run: Run, folder: Path) -> None:
    log: Log = spark_timely.open_log(folder / "orders")
    copies = {
        "verb": ["copy-to", log.path, str(folder / "verb"), "--as-of", "2", "--where", "id > 1", "--select", "id,x"],
        "peek": ["sql", f"COPY (SELECT id, x FROM `{log.path}` WHERE id > 1) TO '{folder / 'peek'}' AS OF 2"],
        "sql": [
            "sql",
            f"COPY (SELECT id, x + 0 AS x FROM `{log.path}` WHERE abs(id) > 1) TO '{folder / 'sql'}' AS OF 2",
        ],
    }
    found = {}
    for name, words in copies.items():
        assert run(*words) == (0, f"3 rows copied to {folder / name}\n", "")
        found[name] = sorted(map(str, pq.read_table(folder / name).to_pylist()))
    assert len(found["verb"]) == 3
    assert found["verb"] == found["peek"] == found["sql"]
    code, out, err = run(*copies["verb"])
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, _ = run("sql", f"COPY orders TO '{folder / 'all'}' WITH (FORMAT = csv)", *names(folder), "--json")
    assert (code, json.loads(out)) == (0, {"rows": 7, "folder": str(folder / "all")})
    assert next((folder / "all").glob("*.csv")).read_text().splitlines()[0] == "id,item,x,at"
    code, out, _ = run("copy-to", log.path, str(folder / "least"), "--as-of-at-least", "1")
    assert (code, out) == (0, f"3 rows copied to {folder / 'least'}\n")


def test_program_starts_its_own_spark(folder: Path) -> None:
    words = ["sql", "SELECT count(*) AS n FROM orders", *names(folder), "--json", "--master", "local[1]"]
    done = subprocess.run(
        [sys.executable, "-m", "spark_timely", *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (0, '{"n": 7}\n'), done.stderr
