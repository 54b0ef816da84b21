"""What tests ask of our modules by name is there: a test that replaces it may run in the long lane alone."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]


def asked(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Return module, name and line of each attribute of an imported module of ours that a file asks for."""
    modules: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_timely"):
            for each in node.names:
                modules.setdefault(each.asname or each.name, set()).add(f"{node.module}.{each.name}")
    others = {
        name.id if isinstance(name, ast.Name) else name.arg
        for name in ast.walk(tree)
        if isinstance(name, ast.arg) or (isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            found = modules.get(node.value.id, set())
            if len(found) == 1 and node.value.id not in others:
                yield next(iter(found)), node.attr, node.lineno


@functools.cache
def module_of(name: str) -> ModuleType | None:
    """Return a module by its name; None of a name that is none, such as a class's, and of an extra's."""
    parent, _, last = name.rpartition(".")
    try:
        if hasattr(importlib.import_module(parent), last) and importlib.util.find_spec(name) is None:
            return None
        return importlib.import_module(name)
    except ImportError:
        return None


def missing(text: str) -> list[str]:
    found = ((module_of(name), name, attribute, line) for name, attribute, line in asked(ast.parse(text)))
    return [
        f"line {line}: {name}.{attribute}"
        for module, name, attribute, line in found
        if module is not None and not hasattr(module, attribute)
    ]


def test_what_tests_ask_of_modules_is_there() -> None:
    wrong = {
        str(path.relative_to(TESTS)): missing(path.read_text())
        for path in sorted(TESTS.rglob("*.py"))
        if "spark_timely" in path.read_text()
    }
    assert not {path: lines for path, lines in wrong.items() if lines}


@pytest.mark.parametrize(("name", "n_wrong"), [("Judge", 0), ("judged", 1)])
def test_a_name_that_is_not_there_is_found(name: str, n_wrong: int) -> None:
    assert len(missing(f"from spark_timely.log.machine import judge\n\n\nprint(judge.{name})\n")) == n_wrong
