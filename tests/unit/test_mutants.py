"""`make mutants`: what it changes, what it calls noticed, and that every argued change is one of the code as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.modules import ROOT
from tests.mutants import equivalents
from tests.mutants.__main__ import FOLDERS
from tests.mutants.changes import changes_of, drawn
from tests.mutants.lines import Lines
from tests.mutants.tree import copy_tree


def changed(tmp_path: Path, source: str) -> set[str]:
    (tmp_path / "m.py").write_text(source)
    found = changes_of(tmp_path, "m.py")
    for change in found:
        assert (tmp_path / "m.py").read_text() != (change.apply(source.encode()) or b"").decode()
    return {change.becomes for change in found}


@pytest.mark.parametrize(
    ("source", "becomes"),
    [
        ("a = b < c", {"a = b <= c", "a = b >= c"}),
        ("a = b is not None", {"a = b is None"}),
        ("a = b + c", {"a = b - c"}),
        ("a = b | ~c", {"a = b & ~c", "a = b", "a = (~c)", "a = b | c"}),
        ("a = b and c", {"a = b or c", "a = True and c", "a = b and True"}),
        ("a = max(b, c)", {"a = b", "a = c", "a = min(b, c)"}),
        ("a = b.maxima", {"a = b.minima"}),
        ("a = b[1:]", {"a = b[None:]", "a = b[0:]"}),
        ("f(a=True)", {"pass", "f(a=False)"}),
        ("a.b = c", {"pass"}),
        ("a = c", set()),  # what uses it fails without it
        ("a += c", {"pass", "a -= c"}),
        ("if a:\n    f()", {"if True:", "if False:", "pass"}),
        ("raise E(f'{a + 1}', b + 1)", {"pass"}),
        ("def f(a: int = 1) -> 'X[1]':\n    'text'\n    assert a > 1\n    return a", {"def f(a: int = 0) -> 'X[1]':"}),
        ("def f(a=True):\n    'abstract'", set()),
        ("def __repr__(self):\n    return a + 1", set()),
    ],
)
def test_changes_of_a_line(tmp_path: Path, source: str, becomes: set[str]) -> None:
    assert changed(tmp_path, source) == becomes


def test_change_is_named_by_its_function_and_lines(tmp_path: Path) -> None:
    source = "class A:\n    def f(self):\n        return (\n            self.a\n            + self.b  # ä\n        )\n"
    (tmp_path / "m.py").write_text(source)
    (change,) = changes_of(tmp_path, "m.py")
    assert (change.key, change.line, change.last_line) == (("m.py", "A.f", "+ self.b  # ä", "- self.b  # ä"), 5, 5)
    (tmp_path / "m.py").write_text("# above\n" + source)
    assert [each.key for each in changes_of(tmp_path, "m.py")] == [change.key]


def test_every_argued_change_is_one_of_the_code_as_it_is() -> None:
    argued = equivalents.arguments()
    there = {change.key for path in {key[0] for key in argued} for change in changes_of(ROOT, path)}
    assert [key for key in argued if key not in there] == []
    assert all(len(why) > 20 for why in argued.values())
    assert all(key[0].startswith(FOLDERS) for key in argued)


def test_tests_of_close_files_are_tried_first_and_slow_ones_last(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "m.py").write_text("def f():\n    return a < b\n")
    change = changes_of(tmp_path, "log/m.py")[0]
    names = ["tests/a.py::far", "tests/log/m.py::near", "tests/log/m.py::slow", "tests/log/m.py::endless"]
    lines = Lines(
        "", {}, list(zip(names, [1.0, 2.0, 30.0, 900.0], strict=True)), {"log/m.py": {1: [], 2: [0, 1, 2, 3]}}
    )
    stages = [[name for name, _ in stage] for stage in lines.stages(change, 20, 300)]
    assert stages == [[names[0], names[1]], [names[2]]]
    assert [name for name, _ in lines.of(change)] == names
    lines = lines.without(["tests/log/m.py"])
    assert lines.stages(change, 0.1, 300) == [[(names[0], 1.0)]]
    lines.add({"tests": [("tests/b.py::new", 0.5)], "failed": [], "lines": {"log/m.py": {"2": [0]}}})
    assert Lines.load(lines.dump()) == lines
    assert [name for name, _ in lines.of(change)] == ["tests/b.py::new", names[0]]


def test_run_shows_what_no_test_notices_and_fails(tmp_path: Path) -> None:
    """A project of one function, one of whose two comparisons is tested at its bound."""
    project, build = tmp_path / "project", tmp_path / "build"
    for folder in ("spark_timely/log", "tests/unit", "tests/mutants"):
        (project / folder).mkdir(parents=True)
        (project / folder / "__init__.py").touch()
    (project / "spark_timely" / "__init__.py").touch()
    for file in (ROOT / "tests" / "mutants").iterdir():
        if file.is_file():
            shutil.copy(file, project / "tests" / "mutants")
    (project / "tests" / "mutants" / "equivalents.toml").write_text("")
    (project / "tests" / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('mutants', deadline=None)\n"
    )
    (project / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\nmarkers = spark\n"
    )
    (project / "spark_timely" / "log" / "small.py").write_text("def inside(x):\n    return x > 0 and x < 9\n")
    test = project / "tests" / "unit" / "test_small.py"
    text = "from spark_timely.log.small import inside\n\ndef test_low():\n    assert [inside(0), inside(1)] == [0, 1]\n"
    test.write_text(text)

    def run() -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutants", "--in-copy", "--minutes", "2"],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project), "MUTANTS_BUILD": str(build)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "seed 1" in done.stdout, done.stdout + done.stderr
        return done.returncode, [line.strip() for line in done.stdout.splitlines() if line.startswith("    + ")]

    survived = {
        "+ return x > 0 and x <= 9",
        "+ return x > 0 and True",
    }
    code, shown = run()
    assert (code, set(shown)) == (1, survived)
    test.write_text(text + "\ndef test_high():\n    assert [inside(8), inside(9), inside(-5)] == [1, 0, 0]\n")
    assert run() == (0, [])
    assert (project / "spark_timely" / "log" / "small.py").read_text().endswith("x > 0 and x < 9\n")


def test_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("def f(x):\n    return x + 1 < 9 or x - 3 > 20\n")
    alone = drawn(changes_of(tmp_path, "one.py"), 1)
    assert [each.key for each in drawn(reversed(alone), 1)] == [each.key for each in alone]
    assert {tuple(each.key for each in drawn(alone, seed)) for seed in range(9)} > {tuple(each.key for each in alone)}
    one.write_text("import os\n\n\n" + one.read_text())
    other.write_text("def g(x):\n    return x * 2\n")
    found = drawn([*changes_of(tmp_path, "other.py"), *changes_of(tmp_path, "one.py")], 1)
    assert [each.key for each in found if each.path == "one.py"] == [each.key for each in alone]
    one.rename(tmp_path / "moved.py")
    moved = drawn(changes_of(tmp_path, "moved.py"), 1)
    assert [each.key[1:] for each in moved] == [each.key[1:] for each in alone]


def test_copy_has_the_packages_under_their_names(tmp_path: Path) -> None:
    copy_tree(ROOT, tmp_path / "copy")
    assert (tmp_path / "copy" / "spark_timely" / "sink" / "plan.py").read_text() == (
        ROOT / "sink" / "plan.py"
    ).read_text()
    assert not (tmp_path / "copy" / ".venv").exists()
