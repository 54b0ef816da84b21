"""Settings of a session, and the start of Spark's Python processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_timely.spark import session, session_settings

START = Path(session.__file__).with_name("worker_start")
ZIP = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


def found_by(path: list[str], code: str = "import pyspark; print(pyspark.__file__)") -> str:
    """Return what a Python process with this module path prints, started as Spark starts one."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_settings_are_text_and_name_what_matters() -> None:
    settings = session_settings()
    assert all(isinstance(value, str) for value in settings.values())
    assert settings["spark.executorEnv.PYTHONPATH"] == str(START)
    assert "spark.sql.extensions" not in settings
    assert "DeltaCatalog" in session_settings(delta=True)["spark.sql.catalog.spark_catalog"]


def test_own_settings_win_and_own_java_options_are_added() -> None:
    helper = session_settings()
    arrow = helper["spark.driver.extraJavaOptions"]
    assert "arrow.enable_unsafe_memory_access=true" in arrow
    own = session._with_own(
        helper, {"spark.driver.extraJavaOptions": "-Xss4m", "spark.databricks.delta.snapshotPartitions": "9"}
    )
    assert own["spark.driver.extraJavaOptions"] == f"{arrow} -Xss4m"
    assert own["spark.executor.extraJavaOptions"] == arrow
    assert own["spark.databricks.delta.snapshotPartitions"] == "9"


def test_installed_pyspark_is_found_compiled() -> None:
    assert ZIP.exists(), "the installed pyspark has no zip: Spark's processes find it by other means"
    assert "pyspark.zip" in found_by([str(ZIP)])
    assert found_by([str(ZIP), str(START)]) == pyspark.__file__


def test_zip_of_another_pyspark_stays_on_the_path(tmp_path: Path) -> None:
    other = tmp_path / "pyspark" / "python" / "lib"
    other.mkdir(parents=True)
    (other / "pyspark.zip").write_bytes(ZIP.read_bytes())
    assert found_by([str(other / "pyspark.zip"), str(START)]).startswith(str(other))


def test_another_start_module_is_run_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    printed = found_by([str(ZIP), str(START), str(tmp_path)], "print('ours')")
    assert printed.splitlines() == ["theirs", "ours"]


def test_environment_is_changed_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with session._environment(PYTHONPATH="/mine"):
        assert os.environ["PYTHONPATH"] == "/mine"
    assert "PYTHONPATH" not in os.environ
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    with session._environment(PYTHONPATH="/mine"):
        assert os.environ["PYTHONPATH"].split(os.pathsep) == ["/mine", "/theirs"]
    assert os.environ["PYTHONPATH"] == "/theirs"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://host", "local[2]", "local-cluster[2,1,1024]"])
def test_nothing_hides_the_python_of_workers(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/own/modules")
    path = session._settings_for(master, delta=False).get("spark.executorEnv.PYTHONPATH")
    assert path == (f"{START}{os.pathsep}/own/modules" if master.startswith("local") else None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    session._name_pythons(master, {})
    assert os.environ.get("PYSPARK_PYTHON") == (sys.executable if master.startswith("local") else None)
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for given, wanted in (({"spark.pyspark.python": "a"}, "a"), ({"spark.pyspark.python": "b"}, "a")):
        session._name_pythons(master, given)
        assert os.environ["PYSPARK_PYTHON"] == wanted, "a variable that is set wins"
