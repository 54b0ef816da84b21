"""Fixtures shared by all tests, and what holds for every run.

- The driver runs in a time zone that is neither UTC nor the session's, so that a mistaken zone shows.
- Settings of Spark in the environment of whoever runs the tests are dropped.
- Tests run by folder: what is quick and near the ground first, Spark later; of that the longest files first, so that
  processes end together.
- A test that takes the session of Spark says so by a mark: without it a run of what needs no JVM would start one.
- A skipped test fails the run: nothing is skipped silently.
"""

from __future__ import annotations

import difflib
import functools
import gc
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from spark_timely.masking import forget_secrets
from tests.faults.harness import QUICK
from tests.forking import Forks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_ZONE = "America/Los_Angeles"
QUICK_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SESSION_ZONE = "Asia/Kathmandu"  # 5 h 45 min: a zone that no whole number of hours hides

for _name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_")) and "TIMELY" not in name]:
    del os.environ[_name]
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # the name of a machine need not have an address
os.environ["TZ"] = DRIVER_ZONE
time.tzset()

# No timing assertions: the machine is shared. The short lane draws the same examples every time, so that a red run
# means the change under test; `SPARK_TIMELY_LONG=1`, the long lane, draws new ones.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("default"), derandomize=False, max_examples=2000)
# For `make mutants`: that a test fails is enough, the smallest example of it is not looked for.
settings.register_profile("mutants", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("long" if os.environ.get("SPARK_TIMELY_LONG", "0") not in {"", "0"} else "default")

_FOLDERS = ("unit", "golden", "property", "conformance", "interop", "typing", "stores", "faults", "spark", "bench")
SLOW = frozenset({"spark", "connect", "faults"})
# Of those with Spark or kills, the longest first: the last that one process takes should not keep the others waiting.
LONGEST_FILES = (
    "spark/test_connect.py",
    "faults/test_executors.py",
    "spark/test_pages.py",
    "faults/test_kill.py",
    "spark/test_foreign_changes.py",
    "spark/test_mirror.py",
    "faults/test_answers_kill.py",
    "faults/test_dataflow_kill.py",
    "spark/test_continual.py",
    "stores/test_faults.py",
    "spark/test_replay.py",
    "faults/test_handover_kill.py",
    "faults/test_continual_kill.py",
    "spark/test_many_times.py",
    "spark/test_foreach_batch.py",
    "spark/test_compute.py",
    "spark/test_source.py",
    "spark/test_compute_tasks.py",
    "spark/test_golden_logs.py",
    "spark/test_dataflow.py",
    "spark/test_example_handover.py",
    "faults/test_replay_kill.py",
    "spark/test_many_times_tasks.py",
    "spark/test_contents_readers.py",
    "faults/test_vacuum_kill.py",
    "faults/test_power_cut.py",
    "faults/test_forgetting_kill.py",
    "spark/test_log_rewritten.py",
    "spark/test_went_back.py",
    "spark/test_secrets.py",
    "spark/test_product_times.py",
    "spark/test_digest.py",
    "faults/test_retention_races.py",
    "spark/test_history.py",
    "spark/test_tables.py",
    "spark/test_cli_answers.py",
    "spark/test_demo.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="rewrite the expected texts under tests/golden")


_MARKS_OF_A_FILE = re.compile(r"^pytestmark = (?:pytest\.mark\.\w+$|\[[^\]]*\])", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file whose own mark the run excludes: each process would compile and import it for nothing."""
    excluding = config.option.markexpr.split(" and ")
    named = {config.invocation_params.dir / each.partition("::")[0] for each in config.args}
    if collection_path.suffix != ".py" or collection_path in named or not all(e.startswith("not ") for e in excluding):
        return None
    found = _MARKS_OF_A_FILE.search(collection_path.read_text(encoding="utf-8"))
    marks = re.findall(r"pytest\.mark\.(\w+)", found[0]) if found else []
    return True if any(f"not {mark}" in excluding for mark in marks) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = config.rootpath / "tests"
    unmarked = [
        item.nodeid
        for item in items
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("spark") is None
    ]
    if unmarked:
        raise pytest.UsageError(
            f"could not collect the tests: found {unmarked[0]!r} with the fixture 'spark' without its mark — hint: "
            "add pytestmark = pytest.mark.spark"
        )

    longest = {root / name: place for place, name in enumerate(LONGEST_FILES)}

    @functools.cache  # a file has up to a thousand tests
    def place_of(path: Path) -> tuple[int, int]:
        folder = path.relative_to(root).parts[0] if path.is_relative_to(root) else ""
        return longest.get(path, len(longest)), _FOLDERS.index(folder) if folder in _FOLDERS else -1

    def order(item: pytest.Item) -> tuple[bool, int, int]:
        slow = not SLOW.isdisjoint(mark.name for mark in item.iter_markers())
        place, folder = place_of(item.path)
        return slow, place if slow else 0, folder

    items.sort(key=order)  # stable: within a file the order of its text


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take what was imported and collected out of what Python looks through for garbage: it stays to the end.

    Tests that collect garbage looked through all tests each time, and so does whoever is forked.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if skipped and exitstatus == pytest.ExitCode.OK:
        reporter.ensure_newline()
        reporter.write_line(f"{len(skipped)} skipped: a test that is skipped counts as failed", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares a text with the file of a name under `tests/golden`."""
    update = request.config.getoption("--golden-update")
    folder = request.config.rootpath / "tests" / "golden"

    def check(name: str, actual: str) -> None:
        file = folder / name
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(actual, encoding="utf-8")
            return
        expected = file.read_text(encoding="utf-8")
        lines = difflib.unified_diff(expected.splitlines(), actual.splitlines(), "expected", "actual", lineterm="")
        assert actual == expected, "\n".join([f"{name} differs (make golden-update rewrites it):", *lines])

    return check


@pytest.fixture(autouse=True)
def _nothing_to_hide() -> Iterator[None]:
    """Let no test hide in its texts what another one gave as a storage option."""
    yield
    forget_secrets()


@pytest.fixture(scope="session", autouse=True)
def forked_python(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    """Have Spark's Python processes forked of one: sessions that begin here take this as their Python."""
    if not any(item.get_closest_marker(name) for item in request.session.items for name in ("spark", "faults")):
        yield None
        return
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    before = {name: os.environ[name] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        forks = Forks(Path(folder))
        forks.start()
        os.environ.update(dict.fromkeys(names, str(forks.python)))
        yield forks.python
        os.environ.update(before)
        forks.stop()


@pytest.fixture
def log_path(tmp_path: Path) -> str:
    """Return where a log may be created: a path with a space in it, that does not exist yet."""
    return str(tmp_path / "a log")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a small classic session that knows the format ``timely`` and Delta."""
    import spark_timely

    folder = tmp_path_factory.mktemp("spark")
    session = spark_timely.session(
        "spark-timely tests",
        master="local[2]",
        delta=True,
        **{
            "spark.ui.enabled": "false",
            "spark.scheduler.mode": "FAIR",  # instances have pools then; all else is in one, first come first served
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": f"{QUICK} -Xmn500m",  # a session of minutes, and two JVMs for two cores
            # Code of a whole stage is made and compiled for each query anew, and pays for many rows. Jobs of `faults`,
            # the pages and the examples have it.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.cache.maxEntries": "5000",  # Spark keeps 100: what many tests need was compiled anew
            "spark.sql.ui.explainMode": "simple",  # the text of each plan, which nobody reads
            "spark.sql.session.timeZone": SESSION_ZONE,
            # Spark's own choice starts a process for each file (`chmod`): jobs of `faults` and Connect's server do.
            "spark.sql.streaming.checkpointFileManagerClass": QUICK_CHECKPOINTS,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    spark_timely.register(session)
    yield session
    session.stop()


@pytest.fixture
def own_catalog(spark: SparkSession) -> Iterator[None]:
    """Put Spark's own catalog in place of Delta's, which reads no tables of Python sources."""
    before = spark.conf.get("spark.sql.catalog.spark_catalog")
    spark.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    yield
    spark.conf.set("spark.sql.catalog.spark_catalog", str(before))
