"""Spark sessions: settings, registration of the source, and logs that their catalog knows by name.

Users call `spark_timely.session`, which makes one with all settings, or `spark_timely.register` and
`spark_timely.spark.session_settings` for one of their own. Queries that begin in `spark_timely.start` or a dataflow
register the source here in whatever session they get, and captures change its settings for a while
(`changed_settings`).

Invariants
----------
1. However many callers change a session's settings at once, each finds them changed until it is done,
   and after the last one they are what they were before the first.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_timely.conf.options import option_key
from spark_timely.errors import InvalidUsageError, LogFormatError, LogMissingError, shown
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import check_names
from spark_timely.masking import is_secret
from spark_timely.spark.base.compat import is_remote
from spark_timely.spark.base.credentials import (
    OPTION,
    Credentials,
    credentials_of,
    keep_credentials,
    naming,
    with_credential,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = [
    "announce_again",
    "changed_settings",
    "credential",
    "given_to_spark",
    "register",
    "session",
    "session_settings",
    "spare_progress",
    "stored",
    "table_path",
    "with_stored",
]

# Arrow's Java library checks the bounds of each value that it reads; Spark asks only for rows that are there.
_ARROW_FLAGS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# Spark gives it to the processes of what is registered. Those of a format that it found by itself have the JVM's own.
_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_WORKER_START = str(Path(__file__).with_name("worker_start"))
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
# Names of options and settings whose values Spark hides: its own default, and what credentials of stores are called.
_CREDENTIALS = (
    r"(access|account|private|master|shared|sas|client|api|encryption)[._-]?key|sas|credential|client[._-]?id"
)
_REDACTION = {
    "spark.sql.redaction.options.regex": rf"(?i)url|{_CREDENTIALS}",
    "spark.redaction.regex": rf"(?i)secret|password|token|access[.]?key|{_CREDENTIALS}",
}


def session_settings(*, delta: bool = False) -> dict[str, str]:
    """Return the Spark settings that matter for capture and replay, for sessions made elsewhere.

    Parameters
    ----------
    delta : bool
        Also those that make Spark read and write Delta tables by itself.

    Returns
    -------
    dict of str to str
        Settings to be given before the session starts.

    Notes
    -----
    Unix domain sockets between the JVM and Python workers cut the cost of a task to a third; the path lets
    Spark's Python processes find pyspark compiled (see `worker_start/sitecustomize.py`), which saves most of
    what starting one costs; record batches of 100,000 rows cost less per row than Spark's 10,000; without Arrow's
    checks of bounds and nulls the JVM needs a quarter less time for rows that come from Python; INT96
    timestamps, which Spark's Parquet writer may use, have no statistics; 50 partitions for the state of a
    small Delta table cost seconds. What Spark hides of options and settings (``spark.sql.redaction.options.regex``,
    ``spark.redaction.regex``) covers the names of S3's, Azure's and Google's credentials too.

    Examples
    --------
    >>> session_settings()["spark.python.unix.domain.socket.enabled"]
    'true'
    """
    settings = {
        "spark.python.unix.domain.socket.enabled": "true",
        _WORKER_PATH: _WORKER_START,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.databricks.delta.snapshotPartitions": "2",
        **dict.fromkeys(_JAVA_OPTIONS, _ARROW_FLAGS),
        **_REDACTION,
    }
    if delta:
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return settings


def session(
    app_name: str = "spark-timely", /, *, master: str = "local[*]", delta: bool = False, **conf: str
) -> SparkSession:
    """Return a classic Spark session with `session_settings` and the source registered.

    Parameters
    ----------
    app_name : str
        Name of the application.
    master : str
        Where Spark runs.
    delta : bool
        Whether Spark itself shall know Delta tables; needs the package ``delta-spark``
        (``pip install 'spark-timely[delta]'``).
    **conf : str
        Further settings; they win over the helper's (Java options are added to its own). Names with
        dots: ``**{"spark.ui.enabled": "false"}``.

    Returns
    -------
    pyspark.sql.SparkSession
        A running session of this process is returned with the settings that can still be changed.

    Raises
    ------
    InvalidUsageError
        If `delta` is asked for and ``delta-spark`` is not installed.

    Notes
    -----
    Spark starts its Python workers as ``python3`` from the path unless ``PYSPARK_PYTHON`` or the setting
    ``spark.pyspark.python`` says otherwise. With a master that begins with ``local`` it is this interpreter, where
    neither does. Elsewhere the workers' machines say which it is, and what is on its path.

    Examples
    --------
    ::

        spark = spark_timely.session("replay", master="local[4]", delta=True)
        spark.readStream.format("timely").load(path)
    """
    from pyspark.sql import SparkSession

    _name_pythons(master, conf)
    builder = SparkSession.builder.appName(app_name).master(master)
    settings = _settings_for(master, delta=delta)
    for name, value in _with_own(settings, conf).items():
        builder = builder.config(name, value)
    if delta:
        try:
            from delta import configure_spark_with_delta_pip
        except ImportError as error:
            msg = "could not start a session for Delta tables: found no package delta-spark"
            raise InvalidUsageError(
                msg, hint="install it with pip install 'spark-timely[delta]', or leave delta=True out"
            ) from error
        extra = [name for name in conf.get("spark.jars.packages", "").split(",") if name]
        if not conf.get("spark.jars"):
            builder = configure_spark_with_delta_pip(builder, extra_packages=extra)
    first = SparkSession.getActiveSession() is None
    with _environment(PYTHONPATH=conf.get(_WORKER_PATH, _WORKER_START)):
        found = builder.getOrCreate()
    if first:
        found.conf.set(_STARTED, _YES)
    register(found)
    return found


def _is_local(master: str) -> bool:
    """Tell whether all of Spark runs on this machine, ``local-cluster`` too."""
    return master.startswith("local")


def _name_pythons(master: str, conf: Mapping[str, str]) -> None:
    """Tell Spark by the environment which Python plans, and which runs tasks where nobody else says it."""
    workers = conf.get("spark.pyspark.python", sys.executable if _is_local(master) else None)
    if workers is not None:
        os.environ.setdefault("PYSPARK_PYTHON", workers)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _settings_for(master: str, *, delta: bool) -> dict[str, str]:
    """Return `session_settings` of a session with this master, which hide nothing of the Python of its workers."""
    settings = session_settings(delta=delta)
    if _is_local(master):
        own = os.environ.get("PYTHONPATH")
        settings[_WORKER_PATH] = os.pathsep.join(filter(None, (_WORKER_START, own)))
    else:
        del settings[_WORKER_PATH]  # the workers have a path of their own, of their own folders
    return settings


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Add to paths of this process's environment, for a JVM that starts meanwhile and keeps what it finds."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():  # one
        os.environ[name] = os.pathsep.join(filter(None, (value, before[name])))
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                del os.environ[name]
            else:
                os.environ[name] = earlier


def _with_own(settings: dict[str, str], conf: dict[str, str]) -> dict[str, str]:
    """Return the helper's settings and the user's; of two values of one Java option the JVM takes the later."""
    java = {name: f"{settings[name]} {conf[name]}" for name in _JAVA_OPTIONS if name in conf}
    return {**settings, **conf, **java}


def register(spark: SparkSession, /) -> None:
    """Make ``format("timely")`` known to a session, classic or Connect, and the table functions of SQL.

    These are ``timely_frontiers(path)`` and ``timely_progress(path)``. Doing it again changes nothing.

    Where the package is installed beside Spark, Spark finds the format by itself at its first use, and then runs its
    tasks everywhere by the path of the driver's Python. Registering works in all cases, also where workers have another
    Python or get this library shipped. It looks whether Spark's Python can import this library, and makes what cannot
    work fail at ``load()`` and ``start()`` (`spark_timely.spark.patches`), not in the query.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession

    Raises
    ------
    InvalidUsageError
        If no Python that Spark starts where it plans queries can import this library.

    Notes
    -----
    Cost: at the first call for a session a start of Spark's Python, 0.1 s, through Connect about 1 s; later a question
    or two to the session. Call it again after ``SparkContext.addPyFile`` has added files; of ``addArtifacts`` it knows.

    Examples
    --------
    ::

        spark_timely.register(spark)
        spark.read.format("timely").load("/data/orders")
    """
    from spark_timely.datasource.source import TimelyDataSource
    from spark_timely.spark.patches import teach
    from spark_timely.spark.table_functions import register_functions

    shipped = _shipped_files(spark)
    if spark.conf.get(_REGISTERED, None) != shipped:
        _register(spark, _known_source(spark, TimelyDataSource), ships=bool(shipped))
        register_functions(spark)
        spark.conf.set(_REGISTERED, shipped)
    teach(spark, announce_again)


# Kept by the session itself, which keeps the formats too: several objects of Python stand for one session. Its value is
# what the session ships to Spark's Python: what is shipped later is known to a format that is announced again.
_REGISTERED: Final = "spark.timely.registered"
_STARTED: Final = "spark.timely.started"  # by `session`, with its path in the JVM's environment
_APART: Final = "spark.timely.apart"  # another Python plans than the one that runs tasks
_YES: Final = "true"
_TASKS_PYTHON: Final = "spark.sql.execution.pyspark.python"
_CURE: Final = (
    "install spark-timely there, or ship it before you call register: spark-submit --py-files, or"
    " spark.addArtifacts(path, pyfile=True)"
)


def announce_again(spark: SparkSession, /) -> None:
    """Announce the format to a session that has shipped further files since it was registered; else do nothing.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    """
    if spark.conf.get(_REGISTERED, None) is not None:
        spark.conf.unset(_REGISTERED)
        register(spark)


def _known_source(spark: SparkSession, source: type[DataSource]) -> type[DataSource]:
    named = credentials_of(spark)
    return _knowing(named) if named else source


def _shipped_files(spark: SparkSession) -> str:
    """Return which files of Python a session ships to where Spark runs, as text; nothing where there are none."""
    if is_remote(spark):
        return ""  # see `announce_again`
    context = spark.sparkContext
    given = [*str(spark.conf.get("spark.submit.pyFiles", None) or "").split(","), *context.listFiles]
    return ",".join(sorted({file for file in given if file.endswith(_OF_PYTHON)}))


_OF_PYTHON: Final = (".py", ".zip", ".egg", ".jar")


def _register(spark: SparkSession, source: type[DataSource], *, ships: bool) -> None:
    if is_remote(spark):
        _announce(spark, source)
        if not _asked(spark):
            msg = "could not register the format 'timely': found that the Python of Spark's server has no spark_timely"
            raise InvalidUsageError(msg, hint=_CURE)
        return
    sees = _seen_by(_python_of(spark))
    here = re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)) is not None
    brought = ships and sees.runs
    if not sees.library and not here and not brought and _seen_by(_python_of_driver()).format:
        # Spark finds the format by the driver's Python, which then plans. Tasks run in the workers', wherever that is.
        if spark.conf.get(_TASKS_PYTHON, None) is None:
            spark.conf.set(_TASKS_PYTHON, sees.python)
        spark.conf.set(_APART, _YES)
        return
    # Spark warns of each registration of a format that it knows or finds by itself. But only what is registered has the
    # path of `session_settings`, without which each query waits 0.4 s longer for its process (measured); the Python of
    # the workers; and what is shipped to them. What Spark finds by itself runs as the driver's Python everywhere.
    path = str(spark.conf.get(_WORKER_PATH, None) or "")
    asked = _WORKER_START in path.split(os.pathsep) and spark.conf.get(_STARTED, None) != _YES
    if asked or ships or not here or not sees.format:
        with suppress(_KnownFormatError):
            _announce(spark, source)
    if not sees.library and not _asked(spark):
        msg = f"could not register the format 'timely': found that Spark's Python, {sees.python!r}, has no spark_timely"
        raise InvalidUsageError(
            msg,
            hint=f"set PYSPARK_PYTHON={sys.executable} before the session starts, or {_CURE}",
            context={"python": sees.python},
        )


def spare_progress(spark: SparkSession, /) -> None:
    """Let a Connect server report no progress of what this session runs, before a query with ``foreachBatch`` starts.

    After each micro-batch the client's library asks the server to drop its DataFrame, by a call that takes one answer.
    Where that takes longer than the interval, two seconds, the server sends a report of progress too, and both wait for
    ever (pyspark 4.2; seen on a loaded machine). Progress bars of the session are gone with it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic one is left alone.
    """
    if is_remote(spark):
        with suppress(Exception):  # a server that does not let it be set
            spark.conf.set("spark.connect.progress.reportInterval", "-1")


@dataclass(frozen=True, slots=True)
class _Sees:
    """The parts that a Python started by Spark finds by itself: this library, and its format for Spark."""

    python: str
    library: bool
    format: bool
    runs: bool = True


# Spark takes the formats of all modules named so; one that cannot be imported hides all others.
_LOOK: Final = """
import importlib.util, pkgutil
library = importlib.util.find_spec("spark_timely") is not None
names = [module.name for module in pkgutil.iter_modules()]
print(library, [name for name in names if name.startswith("pyspark_")] == ["pyspark_timely"])
"""


def _python_of_driver() -> str:
    """Return the Python by which Spark looks for formats."""
    names = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
    return next((os.environ[name] for name in names if os.environ.get(name)), "python3")


def _python_of(spark: SparkSession) -> str:
    """Return the Python that Spark starts for functions and data sources."""
    return str(getattr(spark.sparkContext, "pythonExec", None) or os.environ.get("PYSPARK_PYTHON", "python3"))


@functools.cache
def _seen_by(python: str) -> _Sees:
    try:
        said = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return _Sees(python, library=False, format=False, runs=False)
    library, found = (word == "True" for word in said.split())
    # To look for formats Spark starts its Python through a command line, which a space in the path breaks.
    return _Sees(python, library=library, format=found and not re.search(r"\s", python))


def _asked(spark: SparkSession) -> bool:
    """Tell whether the Python in which Spark plans has this library, from wherever: asked of Spark.

    Any word of ours in its answer tells that it does; that there is no such log is such a word.
    """
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.format("timely").load("asked-by-register").schema
    except PySparkException as error:
        return "TimelyError" in str(error) or "TIMELY_" in str(error)
    return True


def credential(spark: SparkSession, name: str, storage_options: Mapping[str, str], /) -> None:
    """Give credentials of a cloud store a name, for the option ``credential`` of reads and writes of one session.

    Spark sees the name alone: no plan, error, setting or event log shows the values. Called again with the same name it
    replaces them: queries that start later use the new ones, those that run keep what they have.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect. Other sessions do not know the name.
    name : str
        Letters, digits, underscores, dots and hyphens.
    storage_options : mapping of str to str
        Credentials and settings, with the keys of delta-rs.

    Raises
    ------
    InvalidUsageError
        If the name has other characters; Spark's Python cannot import this library; or Spark keeps the format as it
        found it by itself, as it may in a second session of one JVM.
    InvalidOptionError
        If the options are no mapping of texts, or no store knows one of them.

    Notes
    -----
    The values travel to Spark's Python processes pickled, with the class of the format. Spark warns that the format was
    replaced. Cost: as `register`.

    Examples
    --------
    ::

        spark_timely.credential(spark, "lake", {"azure_storage_account_key": os.environ["LAKE_KEY"]})
        spark.readStream.format("timely").option("credential", "lake").load("abfss://logs@lake.dfs.core.windows.net/a")
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,200}", name):
        msg = f"could not name a credential: found name={shown(name)}"
        raise InvalidUsageError(msg, hint="give letters, digits, underscores, dots and hyphens")
    options = checked_options(storage_options)
    check_names(options, ())
    register(spark)
    if spark.conf.get(_APART, None) == _YES:
        python = _python_of(spark)
        msg = f"could not name a credential: found that no {python!r} with spark_timely is here to plan queries"
        raise InvalidUsageError(
            msg, hint="install spark-timely for it on the driver too, or give credential='module:function'"
        )
    with naming:
        named = {**credentials_of(spark), name: options}
        _announce(spark, _knowing(named))
        keep_credentials(spark, named)


class _KnownFormatError(InvalidUsageError):
    """Spark has found the format by itself for this session, and takes no other class of it."""


def _announce(spark: SparkSession, source: type[DataSource]) -> None:
    if _takes(spark, source):
        return
    if not is_remote(spark):
        with _made_active(spark):
            if _takes(spark, source):
                return
    msg = "could not name a credential: found that Spark keeps the format 'timely' as it found it by itself"
    raise _KnownFormatError(
        msg, hint="use the session that was made first, or credential='module:function', or the environment"
    )


def _takes(spark: SparkSession, source: type[DataSource]) -> bool:
    from pyspark.errors import PySparkException

    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True


@contextmanager
def _made_active(spark: SparkSession) -> Iterator[None]:
    """Let Spark see a session as this thread's.

    Whether a format is taken Spark asks the thread's session, not the one that registers it (4.2): a second session of
    one JVM is refused what the first one knows. Making a DataFrame is what makes a session the thread's.
    """
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    spark.createDataFrame([], _ANY)
    try:
        yield
    finally:
        if before is not None:
            before.createDataFrame([], _ANY)


_ANY: Final = "nothing int"


def _knowing(named: Credentials) -> type[DataSource]:
    """Return the format's class that knows credentials: made here, so that it is pickled with them."""
    from spark_timely.datasource.source import TimelyDataSource

    return type(TimelyDataSource.__name__, (TimelyDataSource,), {"credentials": named})


def with_stored(
    spark: Callable[[], SparkSession],
    given: Mapping[str, object],
    storage_options: Mapping[str, str] | None,
    /,
    *,
    ask: bool = True,
) -> dict[str, object]:
    """Return options with storage options as `storage.…`: those given apart, and those of a credential.

    For the library's own eyes, not for Spark's: see `given_to_spark`. The session is asked for only where a credential
    is given. `ask` as in `with_credential`.
    """
    own = {f"storage.{name}": value for name, value in checked_options(storage_options).items()}
    full = {**given, **own}
    if not any(option_key(name) == OPTION for name in given):
        return full
    return with_credential(full, credentials_of(spark()), ask=ask)


def given_to_spark(
    spark: SparkSession, given: Mapping[str, object], storage_options: Mapping[str, str] | None, /
) -> dict[str, object]:
    """Return options and storage options as Spark may see them: a name in place of secrets."""
    own = stored(spark, storage_options)
    if OPTION not in own or not any(option_key(name) == OPTION for name in given):
        return {**given, **own}
    full = with_stored(lambda: spark, given, storage_options)
    storage = {name[8:]: str(value) for name, value in full.items() if name.startswith("storage.")}
    rest = {n: v for n, v in full.items() if not n.startswith("storage.") and option_key(n) != OPTION}
    return {**rest, **stored(spark, storage)}


def stored(spark: SparkSession, storage_options: Mapping[str, str] | None, /) -> dict[str, str]:
    """Return storage options of a log as options of the format ``timely``: by a name, where one is a secret."""
    options = checked_options(storage_options)
    if not any(is_secret(name, value) for name, value in options.items()):
        return {f"storage.{name}": value for name, value in options.items()}
    with naming:
        named = credentials_of(spark)
        name = next((name for name, each in named.items() if each == options), None)
        if name is None:
            name = f"options-{uuid.uuid4().hex}"
            credential(spark, name, options)
    return {OPTION: name}


_LOCK = threading.Lock()


@contextmanager
def changed_settings(spark: SparkSession, wanted: Mapping[str, str], /, *, purpose: str) -> Iterator[None]:
    """Change settings of a session for a moment.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    wanted : mapping
        Names and values; the same ones at every call with this purpose.
    purpose : str
        Names the group of settings.

    Notes
    -----
    The session itself holds which runs use the settings, and what they were before: the objects of
    Python that stand for one session are many. Cost: three calls of the session per setting.

    Examples
    --------
    >>> with changed_settings(spark, {"spark.sql.shuffle.partitions": "1"}, purpose="one"):  # doctest: +SKIP
    ...     df.write.parquet(path)
    """
    key = f"spark.timely.settings.{purpose}"
    with _LOCK:
        _enter(spark, wanted, key)
    try:
        yield
    finally:
        with _LOCK:
            _leave(spark, key)


def _enter(spark: SparkSession, wanted: Mapping[str, str], key: str) -> None:
    text = spark.conf.get(key, None)
    if text is not None:
        state = json.loads(text)
    else:
        state = {"users": 0, "before": {name: spark.conf.get(name, None) for name in wanted}}
        try:
            for name, value in wanted.items():
                spark.conf.set(name, value)
        except BaseException:
            _restore(spark, state["before"])
            raise
    state["users"] += 1
    spark.conf.set(key, json.dumps(state))


def _leave(spark: SparkSession, key: str) -> None:
    state = json.loads(str(spark.conf.get(key)))
    state["users"] -= 1
    if state["users"]:
        spark.conf.set(key, json.dumps(state))
        return
    spark.conf.unset(key)
    _restore(spark, state["before"])


def _restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


# One to three parts, as Spark takes them; nothing else gets into a statement.
_PART: Final = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME: Final = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")
# Tables with one of these have no commits but those that their catalog makes.
_CATALOG_FEATURES: Final = frozenset({"catalogManaged", "catalogOwned", "catalogOwned-preview"})


def table_path(spark: SparkSession, name: str, /) -> str:
    """Return where the log is that a catalog knows by this name.

    Everything that takes the path of a log takes what this gives. A log gets its name by
    ``CREATE TABLE name USING delta LOCATION 'path'``. Logs are written beside Spark, so a table whose commits only its
    catalog may make is refused.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect, with Delta's SQL extension and catalog.
    name : str
        One to three parts, those that are no plain words in backquotes.

    Raises
    ------
    InvalidUsageError
        If it is no name of a table.
    LogMissingError
        If there is no such table, or it is none of Delta.
    LogFormatError
        If its commits are its catalog's.

    Examples
    --------
    ::

        from spark_timely.spark import table_path

        path = table_path(spark, "main.raw.flights_log")
        spark.readStream.format("timely").load(path)
    """
    from pyspark.errors import AnalysisException

    if not isinstance(name, str) or not _NAME.fullmatch(name):
        msg = f"could not look up a table: found name={shown(name)}"
        raise InvalidUsageError(msg, hint="give a name such as main.raw.flights_log; odd parts belong in backquotes")
    try:
        (detail,) = spark.sql(f"DESCRIBE DETAIL {name}").collect()
    except AnalysisException as error:
        said = str(error).strip().partition("\n")[0]
        msg = f"could not look up table {name!r}: found {shown(said)}"
        raise LogMissingError(
            msg, hint="check the name; the session needs Delta's SQL extension and catalog", context={"table": name}
        ) from error
    if detail["format"] != "delta":
        msg = f"could not use table {name!r} as a log: found format={detail['format']!r}"
        raise LogMissingError(msg, hint="name a Delta table that create_log or a capture made")
    managed = sorted(_CATALOG_FEATURES.intersection(detail["tableFeatures"] or ()))
    if managed:
        msg = f"could not use table {name!r} as a log: found table features {managed}, its commits are its catalog's"
        raise LogFormatError(
            msg, hint="keep logs at a location of your own and name them with CREATE TABLE … USING delta LOCATION …"
        )
    return normal_path(detail["location"])
