"""The public names: exactly these, each exported once, documented, annotated and with an example."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pyarrow as pa
import pytest

import spark_timely
from tests.modules import ROOT, modules

# A change here is a change of what users hold on to: the changelog says so.
PUBLIC = [
    "Antichain",
    "ComputeInstance",
    "ContinualTask",
    "Dataflow",
    "Log",
    "capture",
    "consolidate",
    "copy_to",
    "create_log",
    "credential",
    "cut",
    "errors",
    "functions",
    "mirror_to",
    "open_log",
    "peek",
    "register",
    "replay",
    "session",
    "snapshot",
    "sql",
    "start",
    "subscribe",
    "wait",
]
MOST_NAMES = 25
# Of a log, properties and `core` counted in: what no page and no example uses is of its core.
MOST_OF_A_LOG = 30
# Modules of names for users, each with those that are found nowhere else.
BESIDE = ["spark_timely.answers", "spark_timely.functions", "spark_timely.spark", "spark_timely.typing"]


def names_beside() -> list[str]:
    return [f"{module}.{name}" for module in BESIDE for name in importlib.import_module(module).__all__]


def public(name: str) -> object:
    """Return what a public name stands for: one of the root, or one with its module."""
    module, _, attribute = name.rpartition(".")
    value: object = getattr(importlib.import_module(module or "spark_timely"), attribute)
    return value


EVERY = [*PUBLIC, *names_beside()]
# Further packages of the reference.
USED = {part: importlib.import_module(f"spark_timely.{part}").__all__ for part in ("interop", "testing")}


def test_all_is_the_committed_list_in_order() -> None:
    assert spark_timely.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC
    assert set(PUBLIC) <= set(dir(spark_timely))


def test_root_has_few_names() -> None:
    assert len(PUBLIC) <= MOST_NAMES


def test_log_has_few_names(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("v", pa.int64())]))
    names = [name for name in dir(log) if not name.startswith("_")]
    assert len(names) <= MOST_OF_A_LOG, names


@pytest.mark.parametrize("module", ["spark_timely", "spark_timely.interop", "spark_timely.log", *BESIDE])
def test_lazy_names_are_those_of_the_module(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == loaded.__all__
    assert set(loaded._EXPORTS) == set(loaded.__all__) <= set(dir(loaded))
    for name in loaded.__all__:
        value = getattr(loaded, name)
        # Once a submodule is loaded, its own name stands for it.
        assert isinstance(value, ModuleType) == (loaded._EXPORTS[name].endswith(":")), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        loaded.nonsense  # noqa: B018


def test_every_name_has_one_place() -> None:
    names = [name.rpartition(".")[2] for name in EVERY]
    assert len(set(names)) == len(names)
    assert len({id(public(name)) for name in EVERY}) == len(EVERY)


def test_reference_has_each_name_once() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto(?:function|class):: spark_timely\.(\S+)$", page, re.MULTILINE)
    here = [name.removeprefix("spark_timely.") for name in EVERY if name not in {"errors", "functions"}]
    assert sorted(name for name in listed if not name.startswith(("interop.", "testing."))) == sorted(here)


@pytest.mark.parametrize("name", EVERY)
def test_public_name_is_documented_with_an_example(name: str) -> None:
    value = public(name)
    doc = inspect.getdoc(value)
    assert doc, name
    if isinstance(value, ModuleType):
        return
    # What needs a JVM shows its example as text or runs it in the Spark lane; the rest is run with the unit tests.
    needs_jvm = str(getattr(value, "__module__", "")).startswith(("spark_timely.spark", "spark_timely.datasource"))
    returned = name.startswith("spark_timely.typing.")  # nobody makes one by hand
    assert returned or (("Examples\n" in doc) if needs_jvm else (">>>" in doc)), f"{name} has no example"
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{attribute} is not documented"


@pytest.mark.parametrize("name", EVERY)
def test_length_of_time_names_its_unit(name: str) -> None:
    """A number is in seconds, which its name says; what has no unit in its name is a text or a `timedelta`."""
    value = public(name)
    members: list[tuple[str, object]] = [("", value)] if inspect.isroutine(value) else []
    if inspect.isclass(value):
        members = [each for each in inspect.getmembers(value, inspect.isroutine) if not each[0].startswith("_")]
    for label, member in members:
        if not str(getattr(member, "__module__", "")).startswith("spark_timely"):
            continue
        for parameter in inspect.signature(cast("Callable[..., object]", member)).parameters.values():
            kinds = {kind.strip() for kind in str(parameter.annotation).split("|")}
            assert "float" not in kinds or parameter.name.endswith("_s"), f"{name}.{label}({parameter})"
            assert parameter.name not in {"timeout", "poll"}, f"{name}.{label}({parameter})"


@pytest.mark.parametrize("name", EVERY)
def test_public_name_is_annotated(name: str) -> None:
    value = public(name)
    members: list[tuple[str, object]] = [(name, value)]
    if isinstance(value, ModuleType):
        return
    if inspect.isclass(value):
        members = [(k, v) for k, v in vars(value).items() if inspect.isfunction(v) and not k.startswith("_")]
    for label, member in members:
        signature = inspect.signature(cast("Callable[..., object]", member))
        assert signature.return_annotation is not inspect.Signature.empty, label
        for parameter in signature.parameters.values():
            if parameter.name not in {"self", "cls"}:
                assert parameter.annotation is not inspect.Parameter.empty, f"{label}({parameter.name})"


MOST_POSITIONAL, MOST_KEYWORDS = 4, 8
# What has more keyword parameters, and why they are not fewer.
MANY_KEYWORDS = {
    "create_log": "A log is made once: what it is, what it keeps and how its handle writes are said by name.",
    "ContinualTask": "A task is said whole, as CREATE CONTINUAL TASK is: what it reads, computes and writes.",
    "ComputeInstance": "Each says what a start may do with a directory that others began: follow, move, adopt, leave.",
    "ComputeInstance.continual_task": "Those of ContinualTask, by the same names.",
    "Dataflow.start": "Four limits of a step, each of another resource, beside what is run, when, and what it retains.",
    "Log.writer": "The options of the sink that a writer has too, by the same names.",
    "answers.start_peek": "Those of peek, by the same names.",
    "interop.CaptureReader": "What the bytes of a capture do not say of themselves: types, version, place, limits.",
    "interop.export_log": "What a reader of the files must know and a log does not say: types, columns, names, layout.",
    "peek": "The clauses of a SELECT, by their names in SQL, and what an answer may cost.",
    "subscribe": "The options of Materialize's SUBSCRIBE, by their names, and those of a name that outlasts a process.",
    "typing.Stream.upsert": "Those of create_auto_cdc_flow in Spark's declarative pipelines, by their names there.",
}


def callables(name: str) -> list[tuple[str, object]]:
    """Return what a name lets one call, with labels: a function, or a class and its methods."""
    value = public(name)
    if not inspect.isclass(value):
        return [] if isinstance(value, ModuleType) else [(name, value)]
    # Nobody makes one of those that are returned.
    made = [] if name.startswith("spark_timely.typing.") else [(name, value)]
    methods = inspect.getmembers(value, inspect.isroutine)
    return made + [(f"{name}.{label}", method) for label, method in methods if not label.startswith("_")]


CALLED = [
    each
    for name in [*EVERY, *(f"spark_timely.{part}.{name}" for part, names in USED.items() for name in names)]
    for each in callables(name)
]


@pytest.mark.parametrize(("label", "called"), CALLED, ids=[label for label, _ in CALLED])
def test_signature_can_be_learnt(label: str, called: Callable[..., object]) -> None:
    parameters = [each for each in inspect.signature(called).parameters.values() if each.name not in {"self", "cls"}]
    positional = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    assert len(positional) <= MOST_POSITIONAL, [each.name for each in positional]
    keywords = [each.name for each in parameters if each.kind == each.KEYWORD_ONLY]
    # Each line of the list is needed.
    assert (len(keywords) > MOST_KEYWORDS) == (label.removeprefix("spark_timely.") in MANY_KEYWORDS), keywords


def test_each_line_of_many_keywords_is_of_something() -> None:
    assert set(MANY_KEYWORDS) <= {label.removeprefix("spark_timely.") for label, _ in CALLED}
    assert all(argument.endswith(".") for argument in MANY_KEYWORDS.values())


@pytest.mark.parametrize("name", EVERY)
def test_nothing_with_a_default_is_positional_or_keyword(name: str) -> None:
    value = public(name)
    if inspect.isclass(value) or isinstance(value, ModuleType):
        return
    for parameter in inspect.signature(cast("Callable[..., object]", value)).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            kinds = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY}
            assert parameter.kind in kinds, f"{name}({parameter.name})"


def test_every_module_names_what_it_exports() -> None:
    for name in modules():
        if not name.startswith("spark_timely.") or name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        exported = getattr(module, "__all__", [])
        assert len(exported) == len(set(exported)), name
        for each in exported:
            assert hasattr(module, each), f"{name}.__all__ names {each!r}, which is not there"


def test_capture_is_a_plain_function() -> None:
    # In a fresh interpreter: no module of the library hides it, whichever is imported first.
    code = (
        "import inspect, pickle, spark_timely\n"
        "import spark_timely.protocol.rules\n"
        "from spark_timely import capture\n"
        "assert inspect.isfunction(capture) and spark_timely.capture is capture\n"
        "assert pickle.loads(pickle.dumps(capture)) is capture\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
