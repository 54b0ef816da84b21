"""Registering: what Spark's Python can import is asked of that Python, once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from spark_timely.errors import InvalidUsageError
from spark_timely.spark import session


class Reader:
    """Stands for Spark's reader, whose Python says what it cannot."""

    def __init__(self, says: str) -> None:
        self.says = says

    def format(self, name: str) -> Reader:
        """Take the name of the format."""
        assert name == "timely"
        return self

    def load(self, path: str) -> Reader:
        """Take a path at which there is nothing."""
        assert not Path(path).exists()
        return self

    @property
    def schema(self) -> None:
        """Fail as Spark does."""
        raise AnalysisException(self.says)


class Conf(dict[str, str]):
    """Stands for the settings of a session."""

    set = dict.__setitem__
    unset = dict.__delitem__


class Functions:
    """Stands for the table functions of a session."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def register(self, name: str, function: object) -> None:
        """Note the name."""
        del function
        self.names.append(name)


class FakeSession:
    """Stands for a session whose workers run a Python of their own."""

    def __init__(self, python: Path, says: str = "") -> None:
        self.sparkContext = self.dataSource = self
        self.conf = Conf()
        self.udtf = Functions()
        self.pythonExec = str(python)
        self.read = Reader(says)
        self.registered: list[type[DataSource]] = []
        self.master = "local[2]"
        self.listFiles: list[str] = []

    def register(self, source: type[DataSource]) -> None:
        """Note the source."""
        self.registered.append(source)

    def createDataFrame(self, rows: list[object], schema: str) -> None:
        """Make nothing: called since it makes a session the thread's."""


def python(folder: Path, *arguments: str) -> Path:
    """Return a Python that starts with these arguments."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {" ".join(arguments)} "$@"\n')
    file.chmod(0o755)
    return file


def register(spark: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register without changing Spark's own classes."""
    monkeypatch.setattr("spark_timely.spark.patches.teach", lambda *_: None)
    session.register(spark)  # type: ignore[arg-type]


def test_python_without_the_library_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSession(python(tmp_path, "-I", "-S"), "No module named 'spark_timely'")
    with pytest.raises(InvalidUsageError, match="has no spark_timely — hint: set PYSPARK_PYTHON=") as caught:
        register(spark, monkeypatch)
    assert str(spark.pythonExec) in str(caught.value)
    assert sys.executable in str(caught.value)


def test_python_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidUsageError, match="has no spark_timely"):
        register(FakeSession(tmp_path / "nowhere", "Cannot run program"), monkeypatch)


def test_library_that_spark_ships_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSession(python(tmp_path, "-I", "-S"), "[TIMELY_INVALID_OPTION] could not read the options")
    register(spark, monkeypatch)
    assert [source.name() for source in spark.registered] == ["timely"]
    register(spark, monkeypatch)
    assert len(spark.registered) == 1, "Spark warns of a second registration"
    assert spark.udtf.names == ["timely_frontiers", "timely_progress"]


def test_format_that_spark_finds_is_not_registered_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSession(python(tmp_path))
    register(spark, monkeypatch)
    assert spark.registered == []


def test_python_with_a_space_in_its_path_needs_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark looks for formats by a command line that such a path breaks.
    (tmp_path / "a b").mkdir()
    spark = FakeSession(python(tmp_path / "a b"))
    register(spark, monkeypatch)
    assert [source.name() for source in spark.registered] == ["timely"]
    register(spark, monkeypatch)
    assert len(spark.registered) == 1, "Spark warns of a second registration"
    assert spark.udtf.names == ["timely_frontiers", "timely_progress"]


def test_editable_installation_is_found_as_library_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark looks through folders, which know nothing of modules that a hook finds.
    hook = """
import importlib.machinery, sys
class Hook:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, None) if name == "spark_timely" else None
sys.path = [folder for folder in sys.path if folder.startswith(sys.base_prefix)]
sys.meta_path.append(Hook)
"""
    monkeypatch.setattr(session, "_LOOK", hook + session._LOOK)
    spark = FakeSession(python(tmp_path))
    register(spark, monkeypatch)
    assert [source.name() for source in spark.registered] == ["timely"]


def test_path_of_settings_is_given_to_what_spark_finds_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_seen_by", lambda python: session._Sees(python, library=True, format=True))
    found, asked, started = (FakeSession(python(tmp_path)) for _ in range(3))
    asked.conf.update(session.session_settings())
    started.conf.update({**session.session_settings(), session._STARTED: "true"})
    for spark in (found, asked, started):
        register(spark, monkeypatch)
    assert [len(spark.registered) for spark in (found, asked, started)] == [0, 1, 0]


def test_format_that_spark_keeps_is_no_failure_of_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeping(FakeSession):
        """Stands for a second session, which takes no other class of a format that the first one found."""

        def register(self, source: type[DataSource]) -> None:
            error = AnalysisException("Data source 'timely' already exists.")
            error.getCondition = lambda: "DATA_SOURCE_ALREADY_EXISTS"  # type: ignore[method-assign]
            raise error

    monkeypatch.setattr(session, "_seen_by", lambda python: session._Sees(python, library=True, format=False))
    spark = Keeping(python(tmp_path))
    register(spark, monkeypatch)
    with pytest.raises(InvalidUsageError, match=r"found that Spark keeps the format .* — hint: use the session"):
        session.credential(spark, "lake", {})  # type: ignore[arg-type]


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]", "k8s://host"])
def test_format_is_announced_where_workers_are_elsewhere(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = FakeSession(python(tmp_path))
    spark.master = master
    register(spark, monkeypatch)
    assert [source.name() for source in spark.registered] == ["timely"]


def test_format_is_announced_again_once_files_are_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSession(python(tmp_path))
    register(spark, monkeypatch)
    assert spark.registered == []
    for number, files in enumerate([["/a/one.zip"], ["/a/one.zip"], ["/a/one.zip", "/a/two.py"], ["/a/data.csv"]]):
        spark.listFiles = files
        register(spark, monkeypatch)
        assert len(spark.registered) == [1, 1, 2, 2][number]
    spark.conf["spark.submit.pyFiles"] = "/a/three.zip"
    register(spark, monkeypatch)
    assert len(spark.registered) == 3


def test_files_that_are_added_later_keep_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSession(python(tmp_path))
    register(spark, monkeypatch)
    session.credential(spark, "lake", {"aws_region": "eu-west-1"})  # type: ignore[arg-type]
    spark.listFiles = ["/a/one.zip"]
    session.announce_again(spark)  # type: ignore[arg-type]
    assert spark.registered[-1].credentials["lake"] == {"aws_region": "eu-west-1"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", ["./environment/bin/python", "/opt/nowhere/python3"])
def test_python_of_workers_alone_runs_tasks_and_plans_nothing(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setattr(session, "_python_of_driver", lambda: "driver")
    seen = {"driver": session._Sees("driver", library=True, format=True)}
    none = session._Sees(workers, library=False, format=False, runs=False)
    monkeypatch.setattr(session, "_seen_by", lambda name: seen.get(name, none))
    spark = FakeSession(Path(workers))
    spark.pythonExec, spark.master, spark.listFiles = workers, "yarn", ["/a/one.zip"]
    register(spark, monkeypatch)
    assert spark.registered == [], "what is announced is planned by the Python that runs tasks"
    assert spark.conf["spark.sql.execution.pyspark.python"] == workers
    with pytest.raises(InvalidUsageError, match=r"could not name a credential: .* — hint: install spark-timely for it"):
        session.credential(spark, "lake", {})  # type: ignore[arg-type]
    del seen["driver"]
    other = FakeSession(Path(workers))
    other.pythonExec, other.master = workers, "yarn"
    with pytest.raises(InvalidUsageError, match="has no spark_timely — hint: set PYSPARK_PYTHON="):
        register(other, monkeypatch)
