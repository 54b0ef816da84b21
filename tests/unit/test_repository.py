"""What is written in two places agrees: versions, packages, pins, targets."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib

import pytest

import spark_timely
from tests.modules import ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))
    }


def test_version_of_the_package_is_that_of_the_project() -> None:
    assert spark_timely.__version__ == PROJECT["project"]["version"]


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


@pytest.mark.parametrize(
    "script",
    [
        "scripts/docs.sh",
        "scripts/env.sh",
        "scripts/setup.sh",
        "scripts/run.sh",
        "scripts/test.sh",
        "scripts/types.sh",
        ".ci/run",
    ],
)
def test_script_is_valid_bash(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True, timeout=60)


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
