"""Imports point down the layers only, and third-party packages are loaded where they belong."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.modules import ROOT, modules

# A part of the library may import the parts at lower levels and no others. A folder that is named here by itself is no
# part of the folder that it is in.
LEVELS = {
    "lazy": 0,
    "masking": 0,
    "threads": 0,
    "errors": 1,
    "notebook": 2,
    "time": 2,
    "conf": 3,
    "work": 3,
    "predicate": 4,
    "canonical": 4,
    "progress": 4,
    "protocol": 5,
    "trace": 5,
    "log": 6,
    "dataflow": 7,
    "compute": 8,
    "interop": 7,
    "spark.base": 7,
    "dataflow.engine": 8,
    "answers": 9,
    "continual": 9,
    # The words of SQL: answers read statements by them too.
    "scanner": 2,
    "sink": 8,
    # Its class is what Spark knows as the format, for writes too.
    "datasource": 9,
    "compute.drive": 10,
    "spark": 11,
    "cli": 12,
    "testing": 12,
    "functions": 12,
    "typing": 12,
    # Runs the command line.
    "__main__": 13,
}


EVERYWHERE = {"numpy", "pyarrow"}
THIRD_PARTY = {
    "pyspark": ("spark_timely.datasource", "spark_timely.sink", "spark_timely.spark", "spark_timely.testing.tasks"),
    "delta": ("spark_timely.spark",),
    "deltalake": ("spark_timely.log.store", "spark_timely.log.log"),
    "obstore": ("spark_timely.log.store.cloud",),
    "hypothesis": ("spark_timely.testing.strategies",),
    "numba": ("spark_timely.progress.kernels",),
    "shtab": ("spark_timely.cli",),
    "tqdm": ("spark_timely.cli",),
    "sqlglot": (
        "spark_timely.scanner",
        "spark_timely.predicate",
        "spark_timely.compute.sql",
        "spark_timely.continual.body",
        "spark_timely.continual.names",
        "spark_timely.continual.skeleton",
    ),
}


def part_of(module: str) -> str:
    """Return the part of the library that a module is in: the longest of those that begin its name."""
    inside = module.partition(".")[2]
    parts = [part for part in LEVELS if f"{inside}.".startswith(f"{part}.")]
    return max(parts, key=len, default=inside.partition(".")[0])


def _name_of(function: ast.expr) -> str | None:
    """Return the last piece of a function's name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


@functools.cache  # three tests ask for each module
def imports_of(module: str, file: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of every import of a file, those inside functions included."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
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
        public = not other and LEVELS[part] >= LEVELS["sink"]
        if LEVELS.get(other) == LEVELS["cli"] and other != part and part != "__main__":
            wrong.append(f"line {line}: {name} is for users, nothing of the library imports it")
        elif not (down or public or other == part):
            wrong.append(f"line {line}: {part!r} must not import {name}")
    assert not wrong, f"{LIBRARY[module]}:\n" + "\n".join(wrong)


def circles_of(graph: dict[str, set[str]]) -> list[str]:
    """Return a circle of imports, as a path; nothing if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    # What only type checkers import counts too: a reader goes in the same circle.
    graph = {name: {other for _, other in imports_of(name, file)} for name, file in LIBRARY.items()}
    # Names of a package are lazy: what they lead to is imported when somebody asks.
    assert not circles_of({name: others & set(LIBRARY) - {name} for name, others in graph.items()})


def test_checker_finds_circles() -> None:
    assert set(circles_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circles_of({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize(
    ("module", "part"),
    [("spark_timely.spark.base.offsets", "spark.base"), ("spark_timely.spark.baseline", "spark"), ("spark_timely", "")],
)
def test_parts_are_folders_by_their_longest_name(module: str, part: str) -> None:
    assert part_of(module) == part


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
        "from ..log import log\nfrom . import y\nfrom spark_timely import errors\n"
        "def f():\n    import deltalake.fs\n    importlib.import_module('pyspark.sql')\n"
    )
    assert [name for _, name in imports_of("spark_timely.protocol.x", file)] == [
        "spark_timely.log.log" if "spark_timely.log.log" in modules() else "spark_timely.log",
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
    names = ("answers", "functions", "interop", "log", "spark", "typing")
    loaded = loaded_by("\n".join(["import spark_timely", *(f"import spark_timely.{name}" for name in names)]))
    assert not loaded & {"pyspark", "deltalake", "delta", "pyarrow", "pandas", "numpy"}


def test_ground_progress_and_protocol_need_no_spark_and_no_delta() -> None:
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
