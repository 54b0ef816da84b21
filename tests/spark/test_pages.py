"""The code of the documentation runs as it stands there, and does what the text around it says; so do the examples."""

from __future__ import annotations

import ast
import datetime as dt
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from spark_timely.cli import main
from tests.modules import ROOT
from tests.pages import Step, blocks, not_installed, run, run_in_turn, steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(1200)


def hour(number: int) -> dt.datetime:
    return dt.datetime(2013, 6, 12, tzinfo=dt.UTC) + dt.timedelta(hours=number)


# Read from top to bottom, as somebody does who is new here. This one's session is of a JVM with other JARs.
ALONE = ["docs/how-to/answers.md"]
TOGETHER = [
    "docs/tutorial/latest.md",
    "docs/tutorial/first-log.md",
    "docs/how-to/history.md",
    "docs/how-to/continual-tasks.md",
    "docs/how-to/upserts.md",
    "docs/how-to/instance.md",
    "README.md",
    "docs/tutorial/flights.md",  # has one package more
]
EXAMPLES = sorted((ROOT / "examples" / "short").glob("*.py"))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run the pages, and the examples after them on one session; return what their steps print, by page."""
    parts = {page: (steps(text_of(page)), not_installed(text_of(page))) for page in TOGETHER}
    empty = "import runpy, shutil; from pathlib import Path\n" + textwrap.dedent(
        """
        for each in Path().iterdir():
            if not each.name.startswith("."):
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        """
    )
    codes = [f"{empty}\nrunpy.run_path({str(file)!r}, run_name='__main__')\n" for file in EXAMPLES]
    parts["examples"] = [Step(code, "", (0, 0), has_place=True) for code in codes], []
    return run_in_turn(parts, tmp_path_factory.mktemp("pages"))


@pytest.mark.spark
@pytest.mark.parametrize("page", [*ALONE, *TOGETHER])
def test_page_prints_what_it_shows(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    parts = steps(text_of(page))
    assert len(parts) > 3
    if page in ALONE:
        found = run(parts, tmp_path, without=not_installed(text_of(page)))
    else:
        found = request.getfixturevalue("printed")[page]
    assert found == [part.printed for part in parts], f"python -m tests.pages {page} rewrites what the page shows"


@pytest.mark.spark
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_prints_what_it_says(file: Path, printed: dict[str, list[str]]) -> None:
    source = file.read_text(encoding="utf-8")
    shown = (ast.get_docstring(ast.parse(source)) or "").partition("Prints::\n")[2]
    assert shown
    assert printed["examples"][EXAMPLES.index(file)].strip() == textwrap.dedent(shown).strip()
    assert len(source.splitlines()) <= 45


def test_every_short_example_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 12
    assert all(f"(short/{file.name})" in listed for file in EXAMPLES)


@pytest.mark.spark
def test_completeness_is_handed_on_and_cut(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    handover, cut = (_at(here, block) for block in blocks("docs/how-to/hand-over.md"))
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
    (dataflow,) = (_at(here, block) for block in blocks("docs/how-to/dataflows.md"))
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
    (messages,) = (_at(str(tmp_path), block) for block in blocks("docs/how-to/cdcv2.md"))
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
    """Return a block with absolute paths: Spark's are relative to where its JVM was started."""
    names = r'"(log|checkpoint/\w+|orders|returns|customers|clean|delays|messages|words|cut\.json)"'
    return re.sub(names, lambda found: repr(f"{here}/{found[1]}"), block)
