"""The bundle of Databricks jobs fits Databricks' own types, and its tasks' parameters fit what runs them."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job
from packaging.requirements import Requirement

from spark_timely.cli.parser import build_parser
from tests.modules import ROOT, bundle_job

FOLDER = ROOT / "conf" / "databricks"
_VARIABLE = re.compile(r"\$\{var\.(\w+)\}")


def read(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def jobs() -> dict[str, dict[str, Any]]:
    bundle = read("databricks.yml")
    found: dict[str, dict[str, Any]] = {}
    for name in bundle["include"]:
        found |= read(name)["resources"]["jobs"]
    return found


def resolved(text: str, given: dict[str, str]) -> str:
    """Put values for variables and for parameters of the job."""
    text = _VARIABLE.sub(lambda name: given[name[1]], text)
    return re.sub(r"\{\{job\.parameters\.\w+\}\}", "2013-06-12T00:00:00Z", text)


def variables() -> dict[str, str]:
    """Return the variables' values; those without default get one."""
    found = {
        name: about.get("default", f"/Volumes/{name}") for name, about in read("databricks.yml")["variables"].items()
    }
    return {name: resolved(value, found) for name, value in found.items()}


def tasks() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{name}.{task['task_key']}", task) for name, job in jobs().items() for task in job["tasks"]]


@pytest.mark.parametrize("name", sorted(jobs()))
def test_job_fits_the_types_of_databricks(name: str) -> None:
    job = Job.from_dict(jobs()[name])
    # Nothing was dropped on the way: what the types give back is what was written.
    assert set(jobs()[name]) <= set(job.as_dict())
    keys = {task["task_key"] for task in jobs()[name]["tasks"]}
    environments = {environment["environment_key"] for environment in jobs()[name]["environments"]}
    for task in jobs()[name]["tasks"]:
        assert {other["task_key"] for other in task.get("depends_on", [])} <= keys - {task["task_key"]}
        assert task["environment_key"] in environments


def test_types_of_databricks_refuse_what_they_do_not_know() -> None:
    for change in ({"task": []}, {"tasks": [{"task_keys": "a"}]}, {"max_concurrent_runs": "many"}):
        wrong = copy.deepcopy(jobs()["orders"]) | change
        with pytest.raises((ValueError, TypeError)):
            Job.from_dict(wrong)


def test_variables_are_declared_and_used() -> None:
    texts = [file.read_text(encoding="utf-8") for file in FOLDER.glob("*.yml")]
    used = {name for text in texts for name in _VARIABLE.findall(text)}
    assert used | {"input"} == set(variables())


@pytest.mark.parametrize(("name", "task"), tasks(), ids=[name for name, _ in tasks()])
def test_parameters_of_a_task_are_what_it_takes(name: str, task: dict[str, Any]) -> None:
    run = task["spark_python_task"]
    assert (FOLDER / run["python_file"]).is_file(), name
    options = bundle_job().parser().parse_args([resolved(text, variables()) for text in run["parameters"]])
    assert options.storage == {}
    assert options.log.startswith("/Volumes/")


def test_each_log_is_written_by_one_job_and_one_task_at_a_time() -> None:
    writers: dict[str, list[tuple[str, str]]] = {}
    for name, job in jobs().items():
        for task in job["tasks"]:
            words = task["spark_python_task"]["parameters"]
            if words[0] in ("capture", "handover", "compact"):
                (log,) = [word for word in words if word.startswith("--log=")]
                writers.setdefault(log, []).append((name, task["task_key"]))
    assert sorted(map(len, writers.values())) == [2, 2]
    for found in writers.values():
        ((name, first), (other, second)) = found
        assert name == other
        assert jobs()[name]["max_concurrent_runs"] == 1
        after = next(task for task in jobs()[name]["tasks"] if task["task_key"] == second)
        assert after["depends_on"] == [{"task_key": first}]


@pytest.mark.parametrize("task", ["compact", "wait"])
def test_verbs_of_tasks_are_commands(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bundle_job()
    said: list[list[str]] = []
    monkeypatch.setattr(job, "command_line", lambda words: said.append(words) or 1)
    more = ["--time=5", "--timeout=1h"] if task == "wait" else ["--single-writer=true"]
    with pytest.raises(SystemExit) as ended:
        job.main([task, "--log=/a log", '--storage={"key": "value"}', *more])
    assert ended.value.code == 1, "a no fails the task"
    options = build_parser().parse_args(said[0])
    assert (options.log, options.storage) == ("/a log", ["key=value"])


def test_bundle_builds_its_wheel_within_itself() -> None:
    bundle = read("databricks.yml")
    assert "--wheel-dir dist" in bundle["artifacts"]["spark_timely"]["build"]
    for job in jobs().values():
        assert job["environments"][0]["spec"]["dependencies"] == ["./dist/*.whl"]
    assert (Path(FOLDER) / variables()["wheel"] / "pyproject.toml").resolve() == ROOT / "pyproject.toml"


def environment_versions() -> dict[str, dict[str, str]]:
    """Return the rows of the guide's table of environment versions, by version."""
    guide = (ROOT / "docs" / "how-to" / "databricks.md").read_text(encoding="utf-8")
    lines = re.search(r"^\| environment version .*\n(?:\|.*\n)+", guide, re.MULTILINE)[0].splitlines()  # type: ignore[index]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_jobs_run_where_the_sink_can_be_loaded() -> None:
    known = environment_versions()
    assert known["3"]["sink"].startswith("no")
    for job in jobs().values():
        for environment in job["environments"]:
            assert known[environment["spec"]["environment_version"]]["sink"] == "yes"


def test_ranges_of_packages_meet_those_of_databricks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    ranges = {need.name: need.specifier for need in map(Requirement, needs)}
    # Of environment version 5, but of pyarrow the newest that Databricks Connect takes.
    for name, version in (("pyarrow", "24.0.0"), ("numpy", "2.1.3"), ("pandas", "2.2.3")):
        assert version in ranges[name], name
