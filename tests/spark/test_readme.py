"""The code in the README runs as it stands there, and does what the text around it says."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from spark_timely.cli import main
from spark_timely.conf.options import SINK_OPTIONS, SOURCE_OPTIONS, render_markdown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    capture, replay, producer = (
        re.sub(r'"(inbox|log|checkpoint/\w+|numbers)"', lambda found: repr(f"{here}/{found[1]}"), block)
        for block in BLOCKS
    )
    (tmp_path / "inbox").mkdir()
    rows = [(hour(number % 20), "JFK", number) for number in range(60)]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    table = pa.table(
        {
            "hour": columns[0].cast(pa.timestamp("us", "UTC")),
            "origin": columns[1],
            "dep_delay": columns[2].cast("int32"),
        }
    )
    pq.write_table(table, tmp_path / "inbox" / "a.parquet")

    shown: list[tuple[dt.datetime, float]] = []

    def show(batch: object) -> None:
        final = batch.toArrow()  # type: ignore[attr-defined]
        shown.extend(zip(final["hour"].to_pylist(), final["avg(dep_delay)"].to_pylist(), strict=True))

    names: dict[str, object] = {"spark_timely": spark_timely, "spark": spark, "show": show}
    exec(capture.replace('spark = spark_timely.session("quickstart")', "spark = spark"), names)
    exec(replay.replace(").show()", ").transform(show_it)"), names | {"show_it": _calling(show)})
    # The frontier is 7:00, twelve hours before the last one seen: the hours before it are complete.
    assert sorted(when for when, _ in shown) == [hour(number) for number in range(7)]
    assert dict(shown)[hour(3)] == pytest.approx((3 + 23 + 43) / 3)

    exec(producer, names)
    log = spark_timely.open_log(f"{here}/numbers")
    assert log.frontier().to_json() == [1]
    assert log.messages()["value"].to_pylist() == [7, 8, 9]


def _calling(show: Callable[[object], None]) -> Callable[[object], object]:
    def call(batch: object) -> object:
        show(batch)
        return batch

    return call
