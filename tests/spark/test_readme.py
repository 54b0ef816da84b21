"""The code in the README runs as it stands there, and does what the text around it says."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from spark_timely.cli import main
from spark_timely.conf.markdown import render_markdown
from spark_timely.conf.options import SINK_OPTIONS, SOURCE_OPTIONS
from spark_timely.errors import UnheldCapabilityError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def hour(number: int) -> dt.datetime:
    return dt.datetime(2013, 6, 12, tzinfo=dt.UTC) + dt.timedelta(hours=number)


def test_options_are_those_of_the_code() -> None:
    for table in (SINK_OPTIONS, SOURCE_OPTIONS):
        assert render_markdown(table) in README, "make docs"


def test_verbs_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    verbs = re.findall(r"^    ([a-z]+)  ", capsys.readouterr().out, re.MULTILINE)
    listed = re.findall(r"^\| `([a-z]+)` \|", README.partition("## Command line")[2], re.MULTILINE)
    assert listed == verbs


def test_files_that_are_linked_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.spark
def test_quickstart_captures_and_replays(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Paths in the README are relative; Spark's are relative to where its JVM was started.
    here = str(tmp_path)
    capture, replay, producer, totals = (_at(here, block) for block in BLOCKS[:4])
    shown: list[tuple[dt.datetime, str, float]] = []

    def show(rows: DataFrame) -> DataFrame:
        final = rows.toArrow()
        shown.extend(zip(*(final[name].to_pylist() for name in final.column_names), strict=True))
        return rows

    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    names: dict[str, object] = {"spark_timely": spark_timely, "spark": spark, "show": show}
    try:
        exec(capture.replace('spark = spark_timely.session("quickstart")', "spark = spark"), names)
        exec(_shown(replay), names)
        # The frontier is twelve hours before the last one seen: the hours before it are complete.
        assert sorted((when, origin) for when, origin, _ in shown) == [
            (hour(number), origin) for number in range(35) for origin in ("EWR", "JFK")
        ]
        assert {delay for when, _, delay in shown if when == hour(3)} == {6.0, 7.0}
        shown.clear()
        exec(_shown(totals), names)
        assert sorted(shown) == sorted(
            (hour(n), origin, (2 * n + odd) % 50) for n in range(35) for odd, origin in ((0, "JFK"), (1, "EWR"))
        )
        # As the text says, closing the log lets the rest be reported.
        shown.clear()
        assert main(["close", f"{here}/log"]) == 0
        exec(_shown(replay), names)
        assert sorted({when for when, *_ in shown}) == [hour(number) for number in range(35, 48)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    exec(producer, names)
    with pytest.raises(UnheldCapabilityError):  # as the text says; a later time would be taken
        exec(producer, names)
    log = spark_timely.open_log(f"{here}/numbers")
    assert log.frontier().to_json() == [1]
    assert log.messages()["value"].to_pylist() == [7, 8, 9]


@pytest.mark.spark
def test_completeness_is_handed_on_and_cut(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    handover, cut = (_at(here, block) for block in BLOCKS[4:6])
    schema = pa.schema([("hour", pa.timestamp("us", "UTC")), ("customer", pa.int64()), ("amount", pa.float64())])
    pq.write_table(pa.table({"customer": [1, 2], "name": ["Ada", "Grace"]}), f"{here}/customers.parquet")
    (tmp_path / "customers").mkdir()
    (tmp_path / "customers.parquet").rename(tmp_path / "customers" / "part.parquet")
    for name, last, amounts in (("orders", 5, (3.0, -1.0)), ("returns", 3, (2.0, 2.0))):
        log = spark_timely.create_log(f"{here}/{name}", schema, times=("timestamp",))
        times = [hour(n) for n in range(last) for _ in amounts]
        columns = {"_time": times, "hour": times, "customer": [1, 2] * last, "amount": list(amounts) * last}
        log.writer(owner="till").append(pa.table(columns).cast(_with_time(schema)), advance_to=hour(last))
    names: dict[str, object] = {"spark_timely": spark_timely, "spark": spark}
    exec(handover, names)
    clean = spark_timely.open_log(f"{here}/clean")
    # The log is as far as the source that is behind.
    assert clean.frontier() == clean.domain.parse_frontier([hour(3)])
    found = sorted((row["hour"], row["name"], row["amount"]) for row in clean.messages().to_pylist())
    said = ((5, "Ada", 3.0), (3, "Ada", 2.0), (3, "Grace", 2.0))
    assert found == sorted((hour(n), name, amount) for last, name, amount in said for n in range(last))
    exec(cut, names)
    assert [names[name].count() for name in ("orders", "returns")] == [6, 6]  # type: ignore[attr-defined]
    assert main(["wait", "--cut", f"{here}/cut.json", "--timeout", "0"]) == 0


@pytest.mark.spark
def test_dataflow_gives_what_its_complete_times_hold(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    (dataflow,) = (_at(here, block) for block in BLOCKS[6:7])
    schema = pa.schema([("hour", pa.timestamp("us", "UTC")), ("origin", pa.string()), ("dep_delay", pa.int32())])
    rows = [(hour(n // 2), "EWR" if n % 2 else "JFK", n % 50) for n in range(96)]
    columns = dict(zip(("hour", "origin", "dep_delay"), map(list, zip(*rows, strict=True)), strict=True))
    table = pa.table({"_time": columns["hour"], **columns}).cast(_with_time(schema))
    log = spark_timely.create_log(f"{here}/log", schema, times=("timestamp",))
    log.writer(owner="airport").append(table, advance_to=hour(36))
    names: dict[str, object] = {"spark_timely": spark_timely, "spark": spark}
    exec(dataflow, names)
    delays = spark_timely.open_log(f"{here}/delays")
    wanted = {}
    for origin in ("EWR", "JFK"):
        late = [delay for when, place, delay in rows if place == origin and when < hour(24) and delay > 15]
        wanted[origin] = (len(late), max(late))
    # The first day has ended; the second is open from its thirteenth hour on.
    assert {row["origin"]: (row["n"], row["worst"]) for row in delays.messages().to_pylist()} == wanted
    assert delays.frontier() == delays.domain.parse_frontier([hour(48)])
    assert "delays" in capsys.readouterr().out


@pytest.mark.spark
def test_messages_of_cdcv2_that_come_twice_make_one_collection(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (messages,) = (_at(str(tmp_path), block) for block in BLOCKS[7:])
    lines = [
        '{"updates": [["a,]", 3, 1], ["b", 4, -2]]}',
        '{"progress": {"lower": [0], "upper": [], "counts": [[3, 1], [4, 1]]}}',
    ]
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "some.jsonl").write_text("\n".join([*reversed(lines), *lines]))
    exec(messages, {"spark_timely": spark_timely, "spark": spark})
    words = spark_timely.open_log(tmp_path / "words")
    assert words.frontier().is_empty
    found = words.messages().select(["_time", "word", "_diff"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(3, "a,]", 1), (4, "b", -2)]


def _with_time(schema: pa.Schema) -> pa.Schema:
    return schema.insert(0, pa.field("_time", pa.timestamp("us", "UTC")))


def _at(here: str, block: str) -> str:
    """Return a block with absolute paths."""
    names = r'"(inbox|log|checkpoint/\w+|numbers|orders|returns|customers|clean|delays|messages|words|cut\.json)"'
    return re.sub(names, lambda found: repr(f"{here}/{found[1]}"), block)


def _shown(block: str) -> str:
    """Return a block that passes on what it would print."""
    return block.replace(".show()", ".transform(show)")
