"""What is written in two places agrees: versions, packages, pins, targets."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import spark_timely
from tests.conftest import LONGEST_FILES
from tests.modules import ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))
    }


MOST_OF_A_NAME = 60


def names_of_tests(text: str) -> list[str]:
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return [node.name for node in found if node.name.startswith("test_")]


def test_names_of_tests_are_short_and_stand_once_in_a_file() -> None:
    files = {file: names_of_tests(file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("test_*.py")}
    assert sum(map(len, files.values())) > 1000
    assert not [name for names in files.values() for name in names if len(name) > MOST_OF_A_NAME]
    assert not [file for file, names in files.items() if len(set(names)) < len(names)]


def test_unit_tests_have_the_folders_of_the_product() -> None:
    product = {file.parent for file in modules().values() if file.name == "__init__.py"}
    folders = {
        Path(folder.name if folder.parent == ROOT else folder.relative_to(ROOT / "spark_timely")) for folder in product
    }
    unit = ROOT / "tests" / "unit"
    assert {file.parent.relative_to(unit) for file in unit.rglob("*.py")} <= {Path(), *folders}


def test_what_needs_spark_or_kills_is_in_three_folders() -> None:
    marked = re.compile(r"\bmark\.(spark|connect|faults)\b")
    files = [file.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")]
    found = {file.parts[0] for file in files if marked.search((ROOT / "tests" / file).read_text(encoding="utf-8"))}
    assert found == {"faults", "spark", "stores"}, "scripts/test.sh runs them from there alone"


def test_files_that_are_tested_first_exist() -> None:
    assert all((ROOT / "tests" / name).is_file() for name in LONGEST_FILES)


def test_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "spark_timely.__version__"}}
    assert metadata.version("spark-timely") == spark_timely.__version__


def test_every_package_is_installed_under_its_name() -> None:
    packages = {name for name, file in modules().items() if file.name == "__init__.py"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_every_requirement_is_pinned_and_nothing_names_a_place() -> None:
    project = PROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", line)[0]).lower() for line in wanted} - {"spark-timely"}
    assert names <= set(pins())
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|@|^[/-]", text, re.MULTILINE)


def test_pinned_pair_of_spark_and_delta() -> None:
    assert (pins()["pyspark"], pins()["delta-spark"]) == ("4.2.0", "4.4.0")


def test_every_module_postpones_annotations() -> None:
    for name, file in modules().items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body), name


@pytest.mark.parametrize("extra", ["", "/.."], ids=["root", "elsewhere"])
def test_make_help_lists_every_target(extra: str) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    run = subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), "help"],
        cwd=f"{ROOT}{extra}",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert {line.split()[0] for line in run.stdout.splitlines()} == targets
    assert {"setup", "fmt", "lint", "types", "test", "test-spark", "golden-update", "bench", "docs", "check"} <= targets


def test_ci_checks_format_lint_and_types_too() -> None:
    planned = subprocess.run(
        ["make", "-n", "check", "test"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "check test </dev/null" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in ("ruff format --check", "ruff check", "scripts/types.sh", "scripts/test.sh"):
        assert part in planned
    assert "tests/unit" not in planned, "the unit tests are part of the suite: once is enough"


def test_news_become_a_section_of_the_changelog(tmp_path: Path) -> None:
    kinds = {each["directory"] for each in PROJECT["tool"]["towncrier"]["type"]}
    news = {file.name for file in (ROOT / "changelog.d").iterdir()} - {"README.md", "template.md"}
    assert all(re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", name) for name in news)
    shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases, the newest first -->\n\n## [0.1.0]\n")
    (tmp_path / "changelog.d" / "a-thing.added.md").write_text("Something new.\n")
    subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "0.2.0", "--date", "2026-01-02"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=60,
    )
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert "## [0.2.0] - 2026-01-02" in text
    assert "### Added\n\n- Something new.\n" in text
    assert text.index("[0.2.0]") < text.index("[0.1.0]")
    assert {file.name for file in (tmp_path / "changelog.d").iterdir()} == {"README.md", "template.md"}


def test_hooks_run_what_ci_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    for hook in hooks:
        assert all((ROOT / word).exists() for word in hook["entry"].split() if "/" in word)


@pytest.mark.parametrize(
    "script",
    [
        "scripts/docs.sh",
        "scripts/env.sh",
        "scripts/setup.sh",
        "scripts/audit.sh",
        "scripts/lane.sh",
        "scripts/pytest.sh",
        "scripts/release.sh",
        "scripts/run.sh",
        "scripts/test.sh",
        "scripts/types.sh",
        "scripts/venv.sh",
        ".ci/run",
    ],
)
def test_script_is_valid_bash(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True, timeout=60)


def test_walk_counts_files_and_moves() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "walk.py")], capture_output=True, text=True, check=True, timeout=300
    )
    found = {
        name: int(files) for name, files in re.findall(r"^(.*): (\d+) files, \d+ moves$", done.stdout, re.MULTILINE)
    }
    assert len(found) == 10
    assert all(files > 5 for files in found.values())


def test_every_logger_keeps_secrets_back() -> None:
    import logging

    calls = [
        name
        for file in modules().values()
        for name in re.findall(r"getLogger\((\"[\w.]+\"|\w+)\)", file.read_text(encoding="utf-8"))
    ]
    own = [name.strip('"') for name in calls if name != "name"]  # `masked_logger` itself
    assert own
    assert all(logging.getLogger(name).filters for name in own), own
