"""Imports point down the layers only, and third-party packages are loaded where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.modules import ROOT, modules

# A part of the library may import the parts at lower levels, and those named beside it.
LEVELS = {
    "masking": 0,
    "errors": 1,
    "time": 2,
    "conf": 3,
    "predicate": 4,
    "canonical": 4,
    "progress": 4,
    "protocol": 5,
    "log": 6,
    "dataflow": 7,
    "interop": 7,
    "datasource": 8,
    "sink": 8,
    "spark": 8,
    "cli": 9,
    "testing": 9,
}
BESIDE = {
    "datasource": {"sink", "spark"},
    "sink": {"spark"},
    "spark": {"sink", "datasource"},
}

EVERYWHERE = {"numpy", "pyarrow"}
THIRD_PARTY = {
    "pyspark": ("spark_timely.datasource", "spark_timely.sink", "spark_timely.spark"),
    "delta": ("spark_timely.spark",),
    "deltalake": ("spark_timely.log.store", "spark_timely.log.delta"),
    "hypothesis": ("spark_timely.testing.strategies",),
    "numba": ("spark_timely.progress.kernels",),
    "sqlglot": ("spark_timely.predicate",),
}


def part_of(module: str) -> str:
    """Return the part of the library that a module is in: the second piece of its name."""
    return module.split(".")[1] if "." in module else ""


def _name_of(function: ast.expr) -> str | None:
    """Return the last piece of a function's name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


class WithoutTypes(ast.NodeTransformer):
    """Takes away what only type checkers import."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if _name_of(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imports_of(module: str, file: Path, *, types: bool = True) -> list[tuple[int, str]]:
    """Return line and dotted name of every import of a file, those inside functions included."""
    tree: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    if not types:
        tree = WithoutTypes().visit(tree)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, name.name) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*stem, base] if base else stem)
            # `from spark_timely import errors` imports a module; `from spark_timely import Log` does not.
            known = modules()
            found += [(node.lineno, full if (full := f"{base}.{name.name}") in known else base) for name in node.names]
        elif isinstance(node, ast.Call) and _name_of(node.func) == "import_module" and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                found.append((node.lineno, str(argument.value)))
    return found


LIBRARY = {name: file for name, file in modules().items() if part_of(name)}


def test_every_part_has_a_level() -> None:
    assert {part_of(name) for name in LIBRARY} <= set(LEVELS)


@pytest.mark.parametrize("module", LIBRARY)
def test_imports_point_down(module: str) -> None:
    part = part_of(module)
    wrong = []
    for line, name in imports_of(module, LIBRARY[module]):
        if name.split(".")[0] not in {"spark_timely", "pyspark_timely"}:
            continue
        other = part_of(name)
        down = other in LEVELS and LEVELS[other] < LEVELS[part]
        # The bare package is its lazy names: they may come from any layer.
        public = not other and LEVELS[part] >= 8
        beside = other == part or other in BESIDE.get(part, ())
        if LEVELS.get(other) == 9 and other != part:
            wrong.append(f"line {line}: {name} is for users, nothing of the library imports it")
        elif not (down or public or beside):
            wrong.append(f"line {line}: {part!r} must not import {name}")
    assert not wrong, f"{LIBRARY[module]}:\n" + "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: {other for _, other in imports_of(name, file, types=False)} for name, file in LIBRARY.items()}
    # Names of a package are lazy: what they lead to is imported when somebody asks.
    TopologicalSorter({name: others & set(LIBRARY) - {name} for name, others in graph.items()}).prepare()


@pytest.mark.parametrize("module", [*LIBRARY, "spark_timely"])
def test_third_party_packages_stay_where_they_belong(module: str) -> None:
    wrong = []
    for line, name in imports_of(module, modules()[module]):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top in {"spark_timely", "pyspark_timely"} | EVERYWHERE:
            continue
        if not module.startswith(THIRD_PARTY.get(top, ())):
            wrong.append(f"line {line}: {name}")
    assert not wrong, f"{modules()[module]} must not import:\n" + "\n".join(wrong)


def test_checker_sees_relative_and_dynamic_imports(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from ..log import delta\nfrom . import y\nfrom spark_timely import errors\n"
        "def f():\n    import deltalake.fs\n    importlib.import_module('pyspark.sql')\n"
    )
    assert [name for _, name in imports_of("spark_timely.protocol.x", file)] == [
        "spark_timely.log.delta" if "spark_timely.log.delta" in modules() else "spark_timely.log",
        "spark_timely.protocol",
        "spark_timely.errors",
        "deltalake.fs",
        "pyspark.sql",
    ]


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.anchor, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_import_of_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by("import spark_timely")
    assert not loaded & {"pyspark", "deltalake", "delta", "pyarrow", "pandas", "numpy"}


def test_ground_progress_and_protocol_need_neither_spark_nor_delta() -> None:
    names = [name for name in LIBRARY if LEVELS[part_of(name)] < LEVELS["log"]]
    loaded = loaded_by("\n".join(f"import {name}" for name in names))
    assert not loaded & {"pyspark", "deltalake", "delta", "pandas"}


def test_log_command_line_and_test_kit_need_no_spark() -> None:
    names = [
        name
        for name in LIBRARY
        if part_of(name) in {"log", "interop", "cli", "testing"} and not name.endswith("__main__")
    ]
    loaded = loaded_by("\n".join(f"import {name}" for name in names))
    assert not loaded & {"pyspark", "delta"}


def test_test_kit_needs_no_test_packages() -> None:
    assert not loaded_by("import spark_timely.testing") & {"hypothesis", "pytest"}
