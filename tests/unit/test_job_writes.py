"""Each place where a job of Spark's writes files that a commit takes is in a table, with a test of a late one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.modules import ROOT, modules

PAGE = ROOT / "docs" / "internals" / "designs" / "copies.md"

# What writes a DataFrame; a reader has methods of the same names.
WRITERS = {"parquet", "csv", "json", "orc", "text", "save", "saveAsTable", "insertInto", "jdbc", "writeTo"}
# Functions of ours that write files which a commit, or a spine, may name.
WRITE = {"write_data_files", "write_run", "write_progress_file"}
SAID = re.compile(r"\b(MERGE INTO|INSERT (INTO|OVERWRITE)|CREATE (OR REPLACE )?TABLE|COPY INTO)\b")


def writing(tree: ast.AST) -> Iterator[str]:
    """Give the function of each place in a module that writes such files."""

    def walk(node: ast.AST, within: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            below = (*within, child.name) if named else within  # type: ignore[attr-defined]
            if isinstance(child, ast.Call) and _writes(child):
                yield ".".join(below) or "module"
            yield from walk(child, below)

    return walk(tree, ())


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in WRITE:
        return True
    if name == "sql":
        return SAID.search(ast.unparse(call)) is not None
    if name not in WRITERS or not isinstance(call.func, ast.Attribute):
        return False
    of = ast.unparse(call.func.value)
    return "write" in of.lower() and ".read" not in of


def places() -> set[tuple[str, str]]:
    found = set()
    for name, file in modules().items():
        if not name.startswith("spark_timely.testing"):
            for where in writing(ast.parse(file.read_text(encoding="utf-8"))):
                found.add((name.removeprefix("spark_timely."), where))
    return found


def rows(heading: str) -> dict[tuple[str, str], list[str]]:
    """Return the tests of a table of the page by module and function."""
    text = PAGE.read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([\w.]+)` \| ((?:`[\w.]+`(?:, )?)+) \| (.+) \|$", text, re.MULTILINE)
    return {
        (module, function): re.findall(r"`([\w/]+\.py::\w+)`", rest)
        for module, functions, rest in found
        for function in re.findall(r"`([\w.]+)`", functions)
    }


def test_every_place_where_a_job_writes_is_in_the_table() -> None:
    by_jobs, by_processes = rows("## Every place where a Spark job writes"), rows("## By a process itself")
    found, said = places(), by_jobs.keys() | by_processes.keys()
    new = sorted(found - said)
    assert not new, f"say in {PAGE.relative_to(ROOT)} what a late job of a dead attempt does there: {new}"
    gone = sorted(said - found)
    assert not gone, f"nothing is written there any more: {gone}"
    assert not by_jobs.keys() & by_processes.keys()


def test_every_row_of_the_table_names_a_test_that_is_there() -> None:
    for place, named in rows("## Every place where a Spark job writes").items():
        assert named, f"no test of {place}"
        for each in named:
            file, _, name = each.partition("::")
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, each


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(df):\n    df.write.mode('append').parquet('a')", ["f"]),
        ("class A:\n    def f(self):\n        writer.options(**o).csv('a')", ["A.f"]),
        ("def f(spark):\n    spark.read.schema(s).parquet('a')", []),
        ("def f(df):\n    df.write.format('delta').save('a')", ["f"]),
        ("def f(s, t):\n    s.sql(f'MERGE INTO {t} USING s')", ["f"]),
        ("def f(s, t):\n    s.sql(f'SELECT 1 FROM {t}')", []),
        ("def f(s):\n    return write_data_files(s)", ["f"]),
        ("def f(s):\n    return json.loads(s), s.text()", []),
    ],
)
def test_place_where_a_job_writes_is_found(code: str, found: list[str]) -> None:
    assert list(writing(ast.parse(code))) == found
