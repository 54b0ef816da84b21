"""What keeps the product in shape: sizes of files, and what may be in one module alone."""

from __future__ import annotations

import pytest

from scripts.size import LARGE, code_lines, sizes
from spark_timely.dataflow.stream import Stream
from tests.modules import modules, operators

LARGEST = 900
FACADES = {"spark_timely/log/log.py"}
# Lines of the files above `LARGE`: none grows, and none is added.
LARGE_FILES = {
    "spark_timely/cli/parser.py": 838,
    "spark_timely/cli/verbs.py": 732,
    "spark_timely/compute/instance.py": 680,
    "spark_timely/compute/sql.py": 681,
    "spark_timely/continual/engine.py": 671,
    "spark_timely/dataflow/engine/steps.py": 675,
    "spark_timely/interop/layout.py": 706,
    "spark_timely/log/files/format.py": 614,
    "spark_timely/log/files/parquet.py": 601,
    "spark_timely/log/log.py": 958,
    "spark_timely/log/machine/judge.py": 863,
    "spark_timely/log/store/cloud.py": 657,
    "spark_timely/log/store/delta.py": 883,
    "spark_timely/log/writer.py": 605,
    "spark_timely/spark/tasks/arrow_bodies.py": 654,
    "spark_timely/spark/tasks/bodies.py": 702,
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


def test_operators_are_defined_in_one_package() -> None:
    parts = {"spark_timely.dataflow.body", "spark_timely.dataflow.remembered", "spark_timely.dataflow.views"}
    apart = {
        each.__module__ for each in operators() if not each.__module__.startswith("spark_timely.dataflow.operators.")
    }
    assert apart == parts
