"""Logs that a catalog knows by name: where they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spark_timely.errors import InvalidUsageError, LogFormatError, LogMissingError, shown
from spark_timely.log.store.storage import normal_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["table_path"]

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

        path = spark_timely.table_path(spark, "main.raw.flights_log")
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
        msg = f"could not look up table {name!r}: found {said!r:.300}"
        raise LogMissingError(
            msg, hint="check the name; the session needs Delta's SQL extension and catalog", context={"table": name}
        ) from error
    if detail["format"] != "delta":
        msg = f"could not use table {name!r} as a log: found format={detail['format']!r}"
        raise LogMissingError(msg, hint="a log is a Delta table that create_log or a capture made")
    managed = sorted(_CATALOG_FEATURES.intersection(detail["tableFeatures"] or ()))
    if managed:
        msg = f"could not use table {name!r} as a log: found table features {managed}, its commits are its catalog's"
        raise LogFormatError(
            msg, hint="keep logs at a location of your own and name them with CREATE TABLE … USING delta LOCATION …"
        )
    return normal_path(detail["location"])
