"""Patches of Spark's readers and writers, so that ``load()``, ``start()`` and ``toTable()`` refuse what cannot work.

Spark shows a Python data source the options of a read in a process of its own, their names in lower case, and those of
a streaming write only with the first micro-batch. `spark_timely.spark.session` puts the patches on when it registers
the source: `teach` makes Spark's readers and writers, classic and Connect, note what they are given and ask here before
they begin. Other formats pass untouched.

Invariants
----------
1. What is refused here, the source or the sink would refuse at the next row: all read options and logs by the same
   functions.
2. A reader or writer behaves as before in all else: the original method is called with what was given.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from spark_timely.conf.options import CHECK_OPTION
from spark_timely.datasource.replay_options import source_options, table_options
from spark_timely.errors import InvalidOptionError, InvalidUsageError, LogMissingError, shown
from spark_timely.log.store.storage import normal_path
from spark_timely.log.store.urls import same_place
from spark_timely.sink.plan import sink_options
from spark_timely.sink.start import batch_refused, check_start, question, raise_answer
from spark_timely.spark.base.compat import is_remote
from spark_timely.spark.base.credentials import credentials_of, refuse_secrets, with_credential
from spark_timely.spark.table_functions import FUNCTIONS, register_functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.conf.options import SinkOptions

__all__ = ["check_query", "teach"]

_FORMAT: Final = "timely"
_NOTED: Final = "_timely_noted"
_TAUGHT: Final = "_timely_taught"


@dataclass(slots=True)
class _Noted:
    """The calls of a reader or writer so far."""

    frame: DataFrame | None = None
    format: str | None = None
    mode: str = "append"
    columns: tuple[str, ...] = ()
    continuous: bool = False
    table_path: str | None = None  # of the table that the writer went into before, no word of the user's
    options: dict[str, object] = field(default_factory=dict, repr=False)  # credentials are never shown

    def give(self, name: str, value: object) -> None:
        """Note an option as Spark passes it on: text; the later of two wins, whatever their case."""
        for other in [other for other in self.options if other.lower() == name.lower()]:
            del self.options[other]
        self.options[name] = str(value).lower() if isinstance(value, bool) else None if value is None else str(value)

    def check(self, path: object) -> None:
        """Refuse an option of no value and a path that is no text: Spark itself fails with them, in other words."""
        if isinstance(path, os.PathLike):
            msg = f"could not use the format 'timely': found path={shown(path)}"
            raise InvalidOptionError(msg, hint="give Spark a text: str(path)", context={"option": "path"})
        name = next((name for name, value in self.options.items() if value is None), None)
        if name is not None:
            msg = f"could not use the format 'timely': found {name}=None"
            raise InvalidOptionError(msg, hint="leave the option out", context={"option": name})


_Check = Callable[[Any, _Noted, dict[str, Any]], None]


def teach(spark: SparkSession, shipped: Callable[[SparkSession], None], /) -> None:
    """Make the readers and writers of a session's kind refuse early. Doing it again changes nothing.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    shipped : callable
        Called with a session that has shipped files to where Spark runs.
    """
    for reader in (type(spark.read), type(spark.readStream)):
        _teach_notes(reader)
        _replace(reader, "load", _checked(_check_read))
    for name in ("sql", "table"):
        _replace(type(spark), name, _with_hint)
    for name in ("addArtifact", "addArtifacts"):
        _replace(type(spark), name, functools.partial(_announcing, shipped))
    frame = type(spark.range(0))
    _teach_property(frame, "writeStream", {"start": _check_write, "toTable": _check_table})
    _teach_property(frame, "write", {"save": _refuse_batch, "saveAsTable": _refuse_batch})


def _teach_property(frame: type, name: str, checks: Mapping[str, _Check]) -> None:
    """Teach the kind of writer that a property of DataFrames gives, when it gives the first."""
    original = getattr(frame, name)
    if not isinstance(original, property) or hasattr(original.fget, _TAUGHT):
        return

    def given(self: DataFrame) -> object:
        writer = original.fget(self)  # type: ignore[misc]
        _teach_notes(type(writer))
        for method, check in checks.items():
            _replace(type(writer), method, _checked(check))
        _noted(writer).frame = self
        return writer

    setattr(given, _TAUGHT, True)
    setattr(frame, name, property(given, doc=original.__doc__))


# What Spark says of a Python data source where it knows none, and what to write there.
_ELSEWHERE: Final = {
    "Unsupported data source type for direct query on files: timely": "could not read timely.`path`: found that Spark"
    " reads no Python data source by the path alone",
    "timely is not a valid Spark SQL Data Source": "could not read a table of format timely: found a catalog of another"
    " library in place of Spark's own, such as Delta's, and Spark reads no Python data source through it",
}


# What Spark says of a table function of this library in a session that does not have it.
_NO_FUNCTION: Final = re.compile(r"\[UNRESOLVABLE_TABLE_VALUED_FUNCTION\][^\n]*`(\w+)`")


def _with_hint(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that says what to write where Spark cannot read the format.

    In a session that nobody registered, as another one of the process, it gives the library's table functions first.
    """

    def method(self: SparkSession, *args: Any, **keywords: Any) -> object:  # noqa: ANN401 - as Spark has it
        _refuse_move(self, next(iter(args), None))
        try:
            return original(self, *args, **keywords)
        except AnalysisException as error:
            named = _NO_FUNCTION.search(str(error))
            if named is not None and named.group(1) in FUNCTIONS:
                register_functions(self)
                return original(self, *args, **keywords)
            msg = next((msg for text, msg in _ELSEWHERE.items() if text in str(error)), None)
            if msg is None:
                raise
            hint = "write CREATE TEMPORARY VIEW name USING timely OPTIONS (path '…'), and read from the name"
            raise InvalidUsageError(msg, hint=hint) from None

    return method


def _announcing(shipped: Callable[[SparkSession], None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that ships files, and then lets the format know of them."""

    def method(self: SparkSession, *args: Any, **keywords: Any) -> object:  # noqa: ANN401 - as Spark has it
        answer = original(self, *args, **keywords)
        shipped(self)
        return answer

    return method


# Spark tells a Python source nothing of where a table is: it stays with the log that its columns name.
_MOVE: Final = re.compile(r"\s*ALTER\s+TABLE\s+(?P<table>\S+)\s+SET\s+LOCATION\b", re.IGNORECASE)


def _refuse_move(spark: SparkSession, text: object) -> None:
    move = _MOVE.match(text) if isinstance(text, str) else None
    if (
        move is not None
        and spark.catalog.tableExists(move["table"])
        and table_options(spark.table(move["table"]).schema)
    ):
        msg = f"could not move table {move['table']!r}: found SET LOCATION for a table of format timely"
        raise InvalidUsageError(msg, hint="drop the table, which leaves its log, and create it again")


def _location_of(spark: SparkSession, name: str) -> str | None:
    """Return where the catalog says that a table is, as ALTER TABLE may have changed it; None where it does not say."""
    table = spark.catalog.getTable(name)
    if not table.namespace or re.search(r"[`'*|\\]", ".".join([*table.namespace, table.name])):
        return None
    namespace = ".".join(f"`{part}`" for part in table.namespace)
    rows = spark.sql(f"SHOW TABLE EXTENDED IN {namespace} LIKE '{table.name}'").collect()
    found = re.search(r"^Location: (.+)$", rows[0]["information"], re.MULTILINE) if rows else None
    return found[1] if found else None


def check_query(df: DataFrame, options: SinkOptions, given: dict[str, object], /, *, gapless: bool) -> None:
    """Refuse a query that could not capture its next micro-batch; through Connect, ask where it will run.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        What is to be captured.
    options : SinkOptions
    given : dict
        The same options as text.
    gapless : bool
        Whether each micro-batch is written to the log, as a sink does.

    Raises
    ------
    TimelyError
        See `spark_timely.sink.start.check_start`.

    Notes
    -----
    Cost: one cold open of the log, or through Connect one plan that Spark analyses.
    """
    if not is_remote(df.sparkSession):
        check_start(df.schema, options, gapless=gapless)
        return
    ask = question(df.schema, "append", gapless=gapless)
    texts = {name: str(value) for name, value in given.items()}
    raise_answer(df.sparkSession.read.format(_FORMAT).options(**texts, **{CHECK_OPTION: ask}).load().schema)


def _noted(thing: object) -> _Noted:
    noted = vars(thing).get(_NOTED)
    if noted is None:
        noted = _Noted()
        setattr(thing, _NOTED, noted)
    return noted


def _replace(kind: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(kind, name)
    if not hasattr(original, _TAUGHT):
        method = functools.wraps(original)(wrap(original))
        setattr(method, _TAUGHT, True)
        setattr(kind, name, method)


def _teach_notes(kind: type) -> None:
    for name in (
        "format",
        "option",
        "options",
        "outputMode",
        "partitionBy",
        "clusterBy",
        "trigger",
        "foreach",
        "foreachBatch",
    ):
        if hasattr(kind, name):
            _replace(kind, name, _noting)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that notes what it is given, and then does what it did."""

    def method(self: object, *args: Any, **keywords: Any) -> object:  # noqa: ANN401 - as Spark has it
        answer = original(self, *args, **keywords)
        _note(_noted(self), inspect.signature(original).bind(self, *args, **keywords).arguments)
        return answer

    return method


def _note(noted: _Noted, arguments: dict[str, Any]) -> None:
    """Note the arguments of a method of a reader or writer, by Spark's names for them."""
    source = arguments.get("source", arguments.get("format"))
    if "f" in arguments or "func" in arguments:
        source = "a function"  # of foreach and foreachBatch, which take the place of any format
    if source is not None:
        noted.format = source
    if arguments.get("outputMode") is not None:
        noted.mode = arguments["outputMode"]
    if "key" in arguments:
        noted.give(arguments["key"], arguments.get("value"))
    for name, value in arguments.get("options", {}).items():
        noted.give(name, value)
    if "continuous" in arguments:
        noted.continuous = arguments["continuous"] is not None
    columns = arguments.get("cols", arguments.get("partitionBy"))
    if columns:
        noted.columns = tuple(map(str, columns))
    path = arguments.get("path")
    if isinstance(path, str):
        noted.give("path", path)


def _checked(check: _Check) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def method(self: object, *args: Any, **keywords: Any) -> object:  # noqa: ANN401 - as Spark has it
            try:
                arguments = signature.bind(self, *args, **keywords).arguments
            except TypeError:
                return original(self, *args, **keywords)  # which says what is wrong
            noted = _Noted(**{name: getattr(_noted(self), name) for name in _Noted.__slots__})
            noted.options = dict(noted.options)
            _note(noted, arguments)
            if str(noted.format).lower() == _FORMAT:
                noted.check(arguments.get("path"))
                check(self, noted, arguments)
            return original(self, *args, **keywords)

        return method

    return wrap


def _check_read(reader: object, noted: _Noted, arguments: dict[str, Any]) -> None:
    del reader
    refuse_secrets(noted.options)
    if CHECK_OPTION not in noted.options and not isinstance(arguments.get("path"), list):
        source_options(noted.options)


def _refuse_batch(writer: object, noted: _Noted, arguments: dict[str, Any]) -> None:
    del writer, noted, arguments
    raise batch_refused()


def _check_write(writer: object, noted: _Noted, arguments: dict[str, Any]) -> None:
    del writer, arguments
    frame = noted.frame
    if frame is None:
        return
    refuse_secrets(noted.options)
    full = with_credential(noted.options, credentials_of(frame.sparkSession))
    options = sink_options(full, output_mode=noted.mode)
    if noted.columns:
        msg = f"could not start the sink for log {options.path!r}: found partitioning by {list(noted.columns)}"
        raise InvalidUsageError(msg, hint="leave it out: a log's files are parted by time by themselves")
    if noted.continuous:
        msg = f"could not start the sink for log {options.path!r}: found a continuous trigger"
        raise InvalidUsageError(msg, hint="use processingTime or availableNow: Spark runs no Python sink continuously")
    check_query(frame, options, noted.options, gapless=True)


def _check_table(writer: Any, noted: _Noted, arguments: dict[str, Any]) -> None:  # noqa: ANN401 - two kinds
    """Let a query write to the log of a table; refuse a table from which nobody could read it back."""
    if noted.frame is None:
        return
    spark, name = noted.frame.sparkSession, arguments["tableName"]
    attempt = f"could not start the sink for table {name!r}"
    if not spark.catalog.tableExists(name):
        msg = f"{attempt}: found no such table"
        raise LogMissingError(
            msg,
            hint="start the query with start(path), which makes the log; then CREATE TABLE … USING timely OPTIONS (path"
            " '…') gives it a name",
            context={"table": name},
        )
    path = table_options(spark.table(name).schema).get("path")
    if path is None:
        msg = f"{attempt}: found a table that names no log"
        raise LogMissingError(
            msg,
            hint="make it with CREATE TABLE … USING timely OPTIONS (path '…'), without naming columns",
            context={"table": name},
        )
    location = _location_of(spark, name)
    if location is not None and not same_place(normal_path(location), normal_path(path)):
        msg = f"{attempt}: found it at {location!r}, its columns name the log {path!r}"
        raise InvalidUsageError(
            msg, hint="drop the table, which leaves both logs, and create it again: it was moved by SET LOCATION"
        )
    given = noted.options.get("path")
    if given not in (None, noted.table_path) and not same_place(normal_path(str(given)), normal_path(path)):
        msg = f"{attempt}: found path={given!r}, the table's log is {path!r}"
        raise InvalidOptionError(msg, hint="leave the path out", context={"option": "path"})
    noted.give("path", path)
    writer.option("path", path)
    _noted(writer).table_path = path
    _check_write(writer, noted, arguments)
