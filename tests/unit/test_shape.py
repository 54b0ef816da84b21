"""What keeps the product in shape: sizes of files, and what may be in one module alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from scripts.size import LARGE, code_lines, sizes
from spark_timely.compute.plan import parse_plan
from spark_timely.dataflow.stream import Stream
from spark_timely.errors import InvalidUsageError
from tests.modules import modules, operators

LARGEST = 900
FACADES = {"spark_timely/log/log.py"}
# Lines of the files above `LARGE`: none grows, and none is added.
LARGE_FILES = {
    "spark_timely/cli/verb_table.py": 623,
    "spark_timely/compute/instance.py": 680,
    "spark_timely/compute/sql.py": 660,
    "spark_timely/continual/engine.py": 639,
    "spark_timely/log/log.py": 649,
    "spark_timely/log/machine/judge.py": 845,
    "spark_timely/log/store/cloud.py": 627,
    "spark_timely/log/store/delta.py": 866,
    "spark_timely/log/writer.py": 604,
    "spark_timely/spark/tasks/arrow_bodies.py": 604,
    "spark_timely/spark/tasks/bodies.py": 682,
    "spark_timely/spark/tasks/continual.py": 617,
}


@pytest.fixture(scope="module")
def lines() -> dict[str, int]:
    return sizes()


def test_no_large_file_grows(lines: dict[str, int]) -> None:
    grown = {file: n for file, n in lines.items() if n > LARGE_FILES.get(file, LARGE)}
    assert not grown, f"these grow: {grown}"
    assert not [file for file, n in lines.items() if n > LARGEST and file not in FACADES]


def test_list_of_large_files_is_of_files_that_are_large(lines: dict[str, int]) -> None:
    assert not [file for file in LARGE_FILES if lines.get(file, 0) <= LARGE]


def test_lines_of_code_are_neither_words_nor_empty() -> None:
    text = '"""Words.\n\nMore."""\n\n# why\nx = [  # one\n    1,\n\n]\n"""Of x."""\ny = """a\nb"""\n'
    assert code_lines(text) == 5


def modules_with(text: str) -> list[str]:
    return sorted(name for name, file in modules().items() if text in file.read_text())


def test_sums_are_made_in_one_module() -> None:
    assert modules_with("exact_sums(") == ["spark_timely.trace.updates"]
    assert modules_with("class Updates") == ["spark_timely.trace.updates"]
    assert modules_with("def one_zero(") == ["spark_timely.trace.updates"]


def test_threads_and_pools_start_in_few_modules() -> None:
    starting = {*modules_with("threading.Thread("), *modules_with("ThreadPoolExecutor("), *modules_with("Timer(")}
    assert starting == {"spark_timely.threads"}


def test_each_operator_is_one_class() -> None:
    made = [each.method for each in operators() if each.method]
    assert len(made) == len(set(made))
    others = {"capture", "probe", "schema", "spool"}
    assert set(made) == {name for name in vars(Stream) if not name.startswith("_")} - others


def test_each_operator_of_plans_is_the_one_of_streams() -> None:
    in_plans = [each for each in operators() if each.op]
    assert len({each.op for each in in_plans}) == len(in_plans)
    with pytest.raises(InvalidUsageError) as error:
        parse_plan('{"op": "no such operator"}')
    assert error.value.hint == f"use one of {', '.join(sorted(each.op for each in in_plans))}"
    # An import and a task are no operators of streams; of a plan's function the name is known alone.
    apart = {each.op for each in in_plans if each.op != each.method}
    assert apart == {"import", "task", "function"}


def test_operators_are_defined_in_one_package() -> None:
    parts = {
        "spark_timely.compute.plan",
        *(f"spark_timely.dataflow.{name}" for name in ("body", "remembered", "views")),
    }
    found = {each.__module__ for each in operators()}
    assert {name for name in found if not name.startswith("spark_timely.dataflow.operators.")} == parts


def test_op_of_a_plan_is_read_in_one_module() -> None:
    named = []
    for name, file in modules().items():
        constants = [each.value for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Constant)]
        named += [name] if "op" in constants else []
    assert named == ["spark_timely.compute.plan"]


FORWARDING = {
    "answers.peek.pause": "a wait without a result, where one is said",
    "continual.plan.deletes": "public: a word for a class",
    "continual.plan.newest": "public: a word for a class",
    "dataflow.delays.ceil_to": "public: a word for a class",
    "dataflow.delays.plus": "public: a word for a class",
    "log.log.forget_logs": "public to other modules: what is kept is private",
    "log.machine.since.needed_by_contents": "says why it is this frontier; `needed_by_changes` has another",
    "log.store.delta._pause": "tests replace it",
    "progress.subgraph.Subgraph._output_changes": "tests replace it",
    "protocol.rules._rebuild": "what is pickled",
    "spark.base.shipping.Carried.__call__": "an interface: what is carried is called",
    "testing.driver.ManualClock.__init__": "checks as `set` does",
    "time.antichain._rebuild": "what is pickled",
}
"""Functions that do nothing but call another with what they were given, and why."""


def forwarding(tree: ast.AST, name: str) -> Iterator[str]:
    """Give the functions whose only statement calls another with all their parameters and nothing else."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from (
                each
                for each in forwarding(node, f"{name}.{node.name}")
                if (last := each.rpartition(".")[2]).startswith("_") or each.count(".") > name.count(".") + 2
                if not (last.startswith("__") and last not in ("__init__", "__call__"))
            )
        elif isinstance(node, ast.FunctionDef):
            yield from forwarding(node, name)
            body = [
                part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
            match body:
                case [ast.Return(value=ast.Call() as call)] | [ast.Expr(value=ast.Call() as call)]:
                    if not node.decorator_list and _given(call) == _parameters(
                        node, method=isinstance(tree, ast.ClassDef)
                    ):
                        yield f"{name}.{node.name}"


def _parameters(node: ast.FunctionDef, *, method: bool) -> list[str]:
    given = node.args
    named = [each.arg for each in (*given.posonlyargs, *given.args)][int(method) :]
    more = [each.arg for each in (given.vararg, *given.kwonlyargs, given.kwarg) if each is not None]
    return sorted([*named, *more])


def _given(call: ast.Call) -> list[str] | None:
    if not re.fullmatch(r"[\w.]+", ast.unparse(call.func)):
        return None
    values = [each.value if isinstance(each, ast.Starred) else each for each in call.args]
    names = [each.id for each in (*values, *(each.value for each in call.keywords)) if isinstance(each, ast.Name)]
    return sorted(names) if len(names) == len(values) + len(call.keywords) else None


def test_no_function_only_forwards() -> None:
    found = set()
    for name, file in modules().items():
        found |= set(forwarding(ast.parse(file.read_text()), name.removeprefix("spark_timely.")))
    assert found == set(FORWARDING)


def test_function_that_only_forwards_is_found() -> None:
    text = (
        "def f(a, *b, c):\n    'Words.'\n    return g(a, *b, c=c)\nclass C:\n    def _m(self, a):\n        self.n(a)\n"
    )
    others = (
        "def f(a):\n    return g(a, 1)\ndef h(a):\n    return a + 1\nclass C:\n    def m(self, a):\n        self.n(a)\n"
    )
    assert list(forwarding(ast.parse(text), "x")) == ["x.f", "x.C._m"]
    assert not list(forwarding(ast.parse(others), "x"))
