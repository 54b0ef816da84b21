"""Each place of the product that deletes, replaces or renames is in a table, with the reason why that is its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.modules import ROOT, modules

PAGE = ROOT / "docs" / "internals" / "designs" / "deletes.md"

# What deletes whatever it is called on, and what does as a function of these modules.
ALWAYS = {"unlink", "rmtree", "rmdir", "removedirs", "renames", "rename", "truncate", "delete", "delete_all", "vacuum"}
ALWAYS |= {"write_text", "write_bytes", "discard_job", "discard_refused"}
# Functions of ours that delete what they are told to: whoever calls them has to know that it is its own.
TOLD = {"delete", "delete_files", "discard", "remove", "tidy"}
OF_MODULES = {"os": {"remove", "replace", "link"}, "shutil": {"move", "copytree"}, "pathlib": set[str]()}
MADE_FOR_A_WHILE = {"TemporaryDirectory", "mkdtemp", "NamedTemporaryFile"}
# In texts for Spark and Delta, whole words; and what makes a query of the user's that deletes.
SAID = re.compile(r"\b(overwrite|MERGE INTO|DROP TABLE|TRUNCATE TABLE|INSERT OVERWRITE)\b")
# Calls of these names are no deletion of anything that lasts: arrays, and the rows that a body takes away.
_WRITES = re.compile(r"[rb]*[wa+][bt+]*")
NONE = re.compile(r"np\.delete|pc\.\w+|changes\.delete|made\.delete")


def deleting(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Give (function, call) of each place in a module."""

    def walk(node: ast.AST, within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            below = (*within, child.name) if named else within  # type: ignore[attr-defined]
            what = _deletes(child)
            if what is not None:
                yield ".".join(below) or "module", what
            yield from walk(child, below)

    return walk(tree, ())


def _deletes(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr in ALWAYS | MADE_FOR_A_WHILE or node.attr in OF_MODULES.get(of, ()):
            text = ast.unparse(node)
            return None if NONE.fullmatch(text) else text
    if isinstance(node, ast.Name) and node.id in {"rmtree", "unlink", "rename", "rmdir"} | MADE_FOR_A_WHILE:
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TOLD:
        return node.func.id
    if isinstance(node, ast.Call):
        return _of_call(node)
    return None


def _of_call(node: ast.Call) -> str | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    called = ast.unparse(node.func) if name in {"put", "replace", "write", "open", "_call", "sql"} else name
    given = {each.arg: each.value for each in node.keywords}
    if name == "put" and "replace" in given and ast.unparse(given["replace"]) != "False":
        return called
    if name == "replace" and len(node.args) == 1 and not given and "." in called:
        return called  # of a path: a text's takes two
    if name == "write" and "storage" in called.lower():
        return called
    if name == "open":
        mode = [*node.args[0 if called.endswith(".open") else 1 :][:2], given.get("mode")]
        if any(isinstance(each, ast.Constant) and _WRITES.fullmatch(str(each.value)) for each in mode):
            return called
    first = node.args[0] if node.args else None
    if name == "_call" and isinstance(first, ast.Constant) and first.value == "delete":
        return called
    if any(isinstance(each, ast.Constant) and each.value == "overwrite" for each in [*node.args, *given.values()]):
        return f"{called} overwrite"
    if name == "sql":
        found = SAID.search(ast.unparse(node))
        return None if found is None else f"{called} {found[0]}"
    return None


def places() -> set[tuple[str, str]]:
    found = set()
    for name, file in modules().items():
        if not name.startswith("spark_timely.testing"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found |= {(name.removeprefix("spark_timely."), where) for where, _ in deleting(tree)}
    return found


def table() -> dict[tuple[str, str], str]:
    """Return the reasons of the page's table by module and function."""
    text = PAGE.read_text(encoding="utf-8").partition("## Every place that deletes")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| ((?:`[\w.]+`(?:, )?)+) \| (.+?): (.+) \|$", text, re.MULTILINE)
    return {
        (module, function): reason
        for module, functions, _, reason in rows
        for function in re.findall(r"`([\w.]+)`", functions)
    }


def test_every_place_that_deletes_is_in_the_table() -> None:
    found, said = places(), table()
    new = sorted(found - said.keys())
    assert not new, f"say in {PAGE.relative_to(ROOT)} why what they delete is their own: {new}"
    gone = sorted(said.keys() - found)
    assert not gone, f"nothing is deleted there any more: {gone}"
    assert all(len(reason.split()) > 2 for reason in said.values())


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(p):\n    p.unlink()", ["f"]),
        ("class A:\n    def f(self):\n        shutil.rmtree(self.p)", ["A.f"]),
        ("from os import unlink\nunlink('a')", ["module"]),
        ("def f(a):\n    clean = partial(shutil.rmtree, a)", ["f"]),
        ("def f(s):\n    s.put('a', b'', replace=True)", ["f"]),
        ("def f(s, r):\n    s.put('a', b'', replace=r)", ["f"]),
        ("def f(s):\n    s.put('a', b'', replace=False)", []),
        ("def f(p, q):\n    p.replace(q)", ["f"]),
        ("def f(p, q):\n    p.replace('a', 'b'), replace(p, a=1), os.replace(p, q)", ["f"]),
        ("def f(p):\n    open(p, 'wb'), p.open('r+b')", ["f", "f"]),
        ("def f(p):\n    open(p), open(p, 'rb'), open(p, 'xb'), p.open('xb')", []),
        ("def f(self):\n    self._storage.write('a', b'')", ["f"]),
        ("def f(w):\n    w.mode('overwrite').save('a')", ["f"]),
        ("def f(s, t):\n    s.sql(f'MERGE INTO {t} USING s')", ["f"]),
        ("def f(x):\n    np.delete(x, 1), x.remove(3), x.clear()", []),
        ("def f():\n    tempfile.mkdtemp()", ["f"]),
        ("def f(s):\n    discard(s, [])", ["f"]),
        ("def f(s):\n    s._call('delete', 'delete', 'a'), s._call('look', 'head', 'a')", ["f"]),
        ("def f(t):\n    write_deltalake(t, [], mode='overwrite')", ["f"]),
    ],
)
def test_place_that_deletes_is_found(code: str, found: list[str]) -> None:
    assert [where for where, _ in deleting(ast.parse(code))] == found


def test_page_is_there() -> None:
    assert Path(PAGE).is_file()
