"""What is pickled for tasks looks at the Python that unpickles it, and is otherwise what it was."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter

import spark_timely
from spark_timely.datasource import source, spark_readers
from spark_timely.sink import writer
from spark_timely.spark.base import shipping
from spark_timely.spark.base.compat import StreamArrowWriter
from spark_timely.spark.table_functions import TimelyFrontiers, _carried

PACKAGE = Path(spark_timely.__file__).parent


def pickled(value: object) -> bytes:
    found: bytes = CloudPickleSerializer().dumps(value)  # type: ignore[no-untyped-call]
    return found


def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from (batch, batch)


def carried() -> list[object]:
    """Return one of each kind of what Spark pickles for tasks."""
    return [
        shipping.for_task(twice),
        shipping.Carried(twice),
        source.TimelyDataSource({"path": "/data/orders"}),
        writer.TimelyStreamWriter(None),  # type: ignore[arg-type]
        _carried(TimelyFrontiers),
    ]


@pytest.mark.parametrize("value", carried(), ids=lambda value: type(value).__name__)
def test_python_without_the_library_is_told(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickled(value)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setitem(sys.modules, "spark_timely", None)  # type: ignore[arg-type]  # so Python does not find it
    with pytest.raises(ModuleNotFoundError, match="found no spark_timely — hint: install spark-timely==") as caught:
        pickle.loads(content)
    text = str(caught.value)
    assert text.startswith(f"[TIMELY_INVALID_USAGE] could not run a task of Spark's with {sys.executable!r} on host ")
    assert all(way in text for way in ("--py-files", "spark.addArtifacts", "spark.archives"))
    assert "\n" not in text


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_timely, "__version__", "0.0.8")
    content = pickled(shipping.for_task(twice))
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setattr(spark_timely, "__version__", "0.0.9")
    planned = "0.0.8"
    with pytest.raises(
        ModuleNotFoundError, match=rf"found spark_timely==0\.0\.9 for a plan of spark_timely=={planned}"
    ):
        pickle.loads(content)


@pytest.mark.parametrize(("there", "fits"), [("0.9.0", False), (pa.__version__, True), (None, False)])
def test_arrow_of_a_task_is_that_of_the_plan(there: str | None, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    content, planned = pickled(shipping.for_task(twice)), pa.__version__
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: object())
    if there is None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)  # type: ignore[arg-type]  # so Python does not find it
    else:
        monkeypatch.setattr(pa, "__version__", there)
    if fits:
        assert callable(pickle.loads(content))
        return
    found = "no pyarrow" if there is None else rf"pyarrow==0\.9\.0 for a plan of pyarrow=={planned}"
    with pytest.raises(ModuleNotFoundError, match=rf"found {found} — hint: \w+ pyarrow=={planned}"):
        pickle.loads(content)


def test_module_of_a_user_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        """Pickled by the name of a module that no worker has."""

        def __reduce__(self) -> tuple[object, ...]:
            return __import__, ("no_such_module",)

    content = pickled(shipping.Carried(Module()))  # type: ignore[arg-type]
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ModuleNotFoundError, match="found no module 'no_such_module' — hint: install it there, ship it"):
        pickle.loads(content)


def test_task_finds_what_its_session_ships_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = "0f8fad5b-d9cb-469f-a165-70867728950e"
    for machine in ("driver", "executor"):
        (tmp_path / machine / session).mkdir(parents=True)
        with zipfile.ZipFile(tmp_path / machine / session / "shipped.zip", "w") as file:
            file.writestr("shipped_for_a_session.py", "def same(batches):\n    return batches\n")
    own = sys.path
    # As Spark starts Python: the folder of its files, then those among them that can be imported from.
    driver = tmp_path / "driver" / session
    monkeypatch.setattr(sys, "path", [*own, str(driver), str(driver / "shipped.zip")])
    work = importlib.import_module("shipped_for_a_session").same
    content = pickled(shipping.for_task(work))
    # The executor's Python, as Spark 4.2 starts it for a streaming sink.
    monkeypatch.setattr(sys, "path", [*own, str(tmp_path / "executor")])
    monkeypatch.delitem(sys.modules, "shipped_for_a_session")
    assert list(pickle.loads(content)(iter([1, 2]))) == [1, 2]
    shipped = str(tmp_path / "executor" / session / "shipped.zip")
    assert sys.modules["shipped_for_a_session"].__file__ == f"{shipped}/shipped_for_a_session.py"
    pickle.loads(content)
    assert sys.path.count(shipped) == 1


def test_files_of_all_sessions_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipping._session_files() == ()
    root = tmp_path / "userFiles-0f8fad5b-d9cb-469f-a165-70867728950e"
    monkeypatch.setattr(sys, "path", [*sys.path, str(root), str(root / "shipped.zip")])
    assert shipping._session_files() == ()


def test_what_comes_out_is_what_went_in() -> None:
    batch = pa.record_batch({"k": [1]})
    found = pickle.loads(pickled(shipping.for_task(twice)))
    assert list(found([batch])) == list(shipping.for_task(twice)(iter([batch]))) == [batch, batch]
    assert pickle.loads(pickled(shipping.Carried(twice))) is twice
    made: Any = pickle.loads(pickled(source.TimelyDataSource({"path": "/data/orders"})))
    assert type(made) is source.TimelyDataSource
    assert made.options == {"path": "/data/orders"}


def test_every_class_that_spark_pickles_is_shipped() -> None:
    bases = (DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, StreamArrowWriter)
    kinds = {
        kind
        for module in (source, spark_readers, writer)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, bases) and kind.__module__.startswith("spark_timely.")
    }
    assert {kind.__name__ for kind in kinds} >= {"TimelyDataSource", "TimelyStreamReader", "TimelyStreamWriter"}
    assert [kind for kind in kinds if not issubclass(kind, shipping.Shipped)] == []


def test_every_function_that_spark_pickles_is_shipped() -> None:
    """Calls of Spark's methods that take a function for tasks: each gives it through this module."""
    root, n_found, bare = PACKAGE.parent, 0, []
    for part in ("spark_timely", "datasource", "sink"):
        for file in (root / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                    given = ast.unparse(node.args[0])
                    if node.func.attr in ("mapInArrow", "applyInArrow", "mapInPandas", "applyInPandas"):
                        n_found += 1
                        if not given.startswith("for_task("):
                            bare.append(f"{file.relative_to(root)}:{node.lineno}: {given}")
    assert bare == []
    assert n_found >= 8
