"""Options of a replay as Spark gives them, checked; and those of a table of a catalog, which are kept with the table.

`source_options` checks the options of a read, for `spark_timely.spark.patches` before the query starts, and for
`spark_timely.spark.replay`. `read_options` does so for `source`, in each process of Spark's: there they may be those of
a table, ``CREATE TABLE … USING timely OPTIONS (…)``. Each option by itself is parsed in `spark_timely.conf.options`.

Invariants
----------
1. A table of a catalog is read with the options that it was made with. Spark gives a Python source none of them, so
   they are kept as metadata of the table's first column, without credentials. A read that asks for another log or other
   columns than the table's is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from spark_timely.conf.options import SOURCE_OPTIONS, option_key, parse_options
from spark_timely.errors import InvalidOptionError, shown
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import same_place
from spark_timely.spark.base.credentials import Credentials, refuse_secrets, with_credential

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from spark_timely.conf.options import SourceOptions

__all__ = ["keep_table_options", "options_of_new_table", "read_options", "source_options", "table_options"]

LEAST_EXPIRY_S: Final = 3
"""Seconds for which a consumer is kept at least: each renewal is a commit of the log."""

# Spark's catalog gives a table's options twice, once under this prefix, with other properties beside them.
_OPTION: Final = "option."
_TABLE_KEY: Final = "spark_timely.table"


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being made; None where none is."""
    if "provider" not in given:
        return None
    options = {name: value for name, value in given.items() if _OPTION + name in given}
    return {**options, "path": given["path"]} if "path" in given else options


def keep_table_options(schema: StructType, options: Mapping[str, str]) -> None:
    """Keep a table's options with its first column: Spark's catalog keeps them, and gives a Python source none.

    Raises
    ------
    InvalidOptionError
        If there are credentials among them: a catalog keeps and shows what it has, also in Hive's files.
    """
    secret = next((name for name in options if name.lower().startswith("storage.")), None)
    if secret is not None:
        msg = f"could not make a table of format timely: found option {secret!r}"
        hint = (
            "give the credential a name with spark_timely.credential, or set the environment: a catalog shows options"
        )
        raise InvalidOptionError(msg, hint=hint, context={"option": secret})
    if schema.fields:
        names = {option_key(option.name): option.name for option in SOURCE_OPTIONS.options.values()}
        kept = {names[option_key(name)]: value for name, value in options.items() if option_key(name) in names}
        schema.fields[0].metadata = {**schema.fields[0].metadata, _TABLE_KEY: json.dumps(kept)}


def table_options(schema: StructType | None, /) -> dict[str, str]:
    """Return the options that a table was made with, from its columns; none where it is no table of a catalog.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType or None
        Of the table.
    """
    for column in schema.fields if schema is not None else ():
        if _TABLE_KEY in column.metadata:
            kept: dict[str, str] = json.loads(column.metadata[_TABLE_KEY])
            return kept
    return {}


# The columns of a table stand in its catalog.
_OF_COLUMNS: Final = ("content", "columns", "includeTime", "includeMetadata")


def _check_table_options(table: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuse options of a read that a table cannot follow: another log, or other columns than its own."""
    if not table:
        return
    asked = {option_key(name): value for name, value in given.items()}
    log = asked.get("path")
    if log is not None and not same_place(normal_path(log), normal_path(table["path"])):
        msg = f"could not read a table of format timely: found path={shown(log)}, the table's log is {table['path']!r}"
        raise InvalidOptionError(msg, hint="leave the path out, or use load(path)", context={"option": "path"})
    for name in _OF_COLUMNS:  # a few
        wanted = asked.get(option_key(name))
        if wanted is not None and wanted.lower() != table.get(name, "").lower():
            msg = (
                f"could not read a table of format timely: found {name}={shown(wanted)} beside the table's own columns"
            )
            hint = f"use load({table['path']!r}) in place of the table, or make a table with this option"
            raise InvalidOptionError(msg, hint=hint, context={"option": name})


def source_options(given: Mapping[str, object], /) -> SourceOptions:
    """Read the options of a replay; what only a clock has is refused with another content.

    Parameters
    ----------
    given : mapping of str to object
        Names and values.

    Raises
    ------
    InvalidOptionError
        As `parse_options`, and as `spark_timely.log.store.urls.check_names`.
    """
    options = parse_options(SOURCE_OPTIONS, given)
    checked_options(options.storage_options, options.path, *(options.logs or ()), options.alarm)
    if options.consumer_expiry.seconds < LEAST_EXPIRY_S:
        msg = f"could not read the log: found consumerExpiry={shown(options.consumer_expiry.text)}"
        hint = f"give {LEAST_EXPIRY_S} seconds or more, better days: a third of it is the time between two renewals"
        raise InvalidOptionError(msg, hint=hint, context={"option": "consumerExpiry"})
    other = sorted(options.given & {"logs", "log_options", "run", "alarm"})
    if other and options.content != "clock":
        msg = f"could not read the log: found options {shown(other)} with content={options.content!r}"
        raise InvalidOptionError(msg, hint="leave them out: they are for content=clock", context={"options": other})
    return options


def read_options(options: Mapping[str, str], schema: StructType | None, credentials: Credentials) -> SourceOptions:
    """Return the options of a read, with those of the table that it reads, if it reads one.

    Parameters
    ----------
    options : mapping of str to str
        As Spark gives them.
    schema : pyspark.sql.types.StructType or None
        That Spark asks to be read: a table's columns, or those that the source has said. None: it asks for the schema.
    credentials : mapping
        Of the session, by name.

    Raises
    ------
    InvalidOptionError
    """
    given: Mapping[str, str] | None = options_of_new_table(options)
    if given is None:
        refuse_secrets(options)
        table = table_options(schema)
        _check_table_options(table, options)
        asked = set(map(option_key, options))
        given = {**{name: value for name, value in table.items() if option_key(name) not in asked}, **options}
    if schema is not None and not given:
        msg = "could not read a table of format timely: found no path with its columns"
        hint = "make the table without naming its columns: CREATE TABLE name USING timely OPTIONS (path '…')"
        raise InvalidOptionError(msg, hint=hint, context={"option": "path"})
    return source_options(with_credential(given, credentials))
