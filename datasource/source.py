"""The class of the format ``timely`` that Spark loads: gives schemas, readers and writers.

Spark asks in processes of its own: one for the schema, one for each reader or writer, and for a sink one more that
commits. None knows what another has parsed. So each parses the same options and opens the log for itself, here as in
the sink (`sink.plan`, `sink.commit`), and what does not fit is refused by the first of them. A process loads what its
content needs and no more: queries wait for it.

Invariants
----------
1. A table of a catalog is read with the options that it was made with. Spark gives a Python source none of them, so
   they are kept as metadata of the table's first column, without credentials. A read that asks for another log or other
   columns than the table's is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from spark_timely.conf.options import CHECK_OPTION, SOURCE_OPTIONS, option_key, parse_options
from spark_timely.datasource.clock import CLOCK_SCHEMA, check_clock_options, storage_of_logs
from spark_timely.errors import InvalidOptionError, InvalidUsageError, SchemaMismatchError, shown
from spark_timely.log.files.format import METADATA_KEY
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import same_place
from spark_timely.spark.base.compat import ADMISSION_CONTROL, require_arrow_sink
from spark_timely.spark.base.credentials import Credentials, refuse_secrets, with_credential
from spark_timely.spark.base.schema import arrow_schema, spark_schema
from spark_timely.spark.base.shipping import Shipped
from spark_timely.spark.base.worker import settle_planner, short_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from spark_timely.conf.options import SourceOptions
    from spark_timely.datasource.partitions import ReplayLayout


LEAST_EXPIRY_S: Final = 3
"""Seconds for which a consumer is kept at least: each renewal is a commit of the log."""

# Spark's catalog gives a table's options twice, once under this prefix, with other properties beside them.
_OPTION: Final = "option."
_TABLE_KEY: Final = "spark_timely.table"


def _of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being made; None where none is."""
    if "provider" not in given:
        return None
    options = {name: value for name, value in given.items() if _OPTION + name in given}
    return {**options, "path": given["path"]} if "path" in given else options


def _note_table(schema: StructType, options: Mapping[str, str]) -> None:
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


def _check_of_table(table: Mapping[str, str], given: Mapping[str, str]) -> None:
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


@short_errors
class TimelyDataSource(Shipped, DataSource):
    """Capture and replay: ``format("timely")`` of reads, streaming reads and streaming writes.

    Made by Spark, which passes it on pickled; the columns of a log are looked up once.

    Parameters
    ----------
    options : mapping
        As given to ``.option`` and ``.load``; names without regard to case.

    Examples
    --------
    ::

        spark_timely.register(spark)
        spark.readStream.format("timely").option("workers", 4).load("/data/orders")
    """

    credentials: Credentials = MappingProxyType({})
    """What a session's names of credentials stand for: see `spark_timely.credential`."""
    _layout: ReplayLayout | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "timely"

    def schema(self) -> StructType:
        """Return the columns of the log that the options ask for."""
        settle_planner()
        if CHECK_OPTION in self.options:
            return self._check()
        options = self._source_options()
        if options.content == "clock":
            check_clock_options(options)
            return spark_schema(CLOCK_SCHEMA)
        if options.content == "dead":
            return spark_schema(self._letter_schema(options))
        from spark_timely.datasource.partitions import LAYOUT_KEY, SPLIT_SCHEMA

        layout = self._log_layout(options)
        schema = spark_schema(SPLIT_SCHEMA if layout.content == "splits" else layout.schema)
        if layout.content == "splits":
            schema["_plan"].metadata = {LAYOUT_KEY: json.dumps(layout.to_json())}
        table = _of_table(self.options)
        if table is not None:
            _note_table(schema, table)
        if layout.content == "events":
            # A job that captures the events needs to know where the folded stream begins.
            schema["_event"].metadata = {METADATA_KEY: json.dumps(layout.domain.to_json())}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        from spark_timely.datasource.stream import LetterBatchReader, TimelyBatchReader

        settle_planner()
        options = self._source_options(schema)
        if options.content == "clock":
            msg = "could not read a clock as a batch: it says what moves"
            raise InvalidUsageError(msg, hint="use readStream with content=clock, or Log.frontier()")
        if options.content == "dead":
            return LetterBatchReader(options, self._letter_schema(options, arrow_schema(schema)))
        if options.consumer_id is not None:
            msg = f"could not read the log as a batch: found consumerId={shown(options.consumer_id)}"
            hint = "leave it out: a batch read has no position that it comes back to; Log.retain keeps one"
            raise InvalidUsageError(msg, hint=hint)
        return TimelyBatchReader(options, self._read_layout(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming read."""
        from spark_timely.datasource.stream import (
            ClockStreamReader,
            EarlierClockReader,
            EarlierLetterReader,
            EarlierStreamReader,
            LetterStreamReader,
            TimelyStreamReader,
        )

        settle_planner()
        options = self._source_options(schema)
        if options.content == "clock":
            check_clock_options(options)
            storage = storage_of_logs(options, self.credentials)
            return (ClockStreamReader if ADMISSION_CONTROL else EarlierClockReader)(options, storage)
        if options.content == "dead":
            columns = self._letter_schema(options, arrow_schema(schema))
            return (LetterStreamReader if ADMISSION_CONTROL else EarlierLetterReader)(options, columns)
        kind = TimelyStreamReader if ADMISSION_CONTROL else EarlierStreamReader
        return kind(options, self._read_layout(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - as Spark has it
        """Return the writer of one micro-batch."""
        from spark_timely.sink.writer import make_stream_writer

        settle_planner()
        require_arrow_sink()
        refuse_secrets(self.options)
        options = with_credential(self.options, self.credentials)
        return make_stream_writer(options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - as Spark has it
        """Refuse a batch write."""
        from spark_timely.sink.start import batch_refused

        del schema, overwrite
        raise batch_refused()

    def _check(self) -> StructType:
        """Answer a session elsewhere that asks whether a query may start here."""
        from spark_timely.sink.start import answer

        given = {name: value for name, value in self.options.items() if name.lower() != CHECK_OPTION.lower()}
        return answer(self.options[CHECK_OPTION], given, self.credentials)

    def _source_options(self, schema: StructType | None = None) -> SourceOptions:
        given: Mapping[str, str] | None = _of_table(self.options)
        if given is None:
            refuse_secrets(self.options)
            table = table_options(schema)
            _check_of_table(table, self.options)
            asked = set(map(option_key, self.options))
            given = {**{name: value for name, value in table.items() if option_key(name) not in asked}, **self.options}
        if schema is not None and not given:
            msg = "could not read a table of format timely: found no path with its columns"
            raise InvalidOptionError(
                msg,
                hint="make the table without naming its columns: CREATE TABLE name USING timely OPTIONS (path '…')",
                context={"option": "path"},
            )
        return source_options(with_credential(given, self.credentials))

    def _letter_schema(self, options: SourceOptions, wanted: pa.Schema | None = None) -> pa.Schema:
        """Return the columns of dead letters; refuse others, which a schema that was given asks for."""
        from spark_timely.datasource.letters import check_letter_options, letter_schema, schema_of_columns
        from spark_timely.log.log import open_log

        check_letter_options(options)
        found = letter_schema(open_log(options.path, storage_options=options.storage_options or None).core.format)
        unknown = [] if wanted is None else [name for name in wanted.names if name not in found.names]
        if unknown:
            msg = f"could not read dead letters with the schema that was given: found no column {unknown[0]!r}"
            raise SchemaMismatchError(msg, hint="leave the schema out with content=dead")
        return found if wanted is None else schema_of_columns(found, wanted.names)

    def _log_layout(self, options: SourceOptions) -> ReplayLayout:
        if self._layout is None:
            from spark_timely.datasource.bounds import first_offset
            from spark_timely.datasource.planner import cut_of, layout_of
            from spark_timely.log.log import open_log

            log = open_log(options.path, storage_options=options.storage_options or None)
            # Options that do not fit the log are refused here, before a query is started.
            cut_of(log, options)
            first_offset(options, log.domain, log.kind)
            self._layout = layout_of(log, options)
        return self._layout

    def _read_layout(self, options: SourceOptions, schema: StructType) -> ReplayLayout:
        from spark_timely.datasource.partitions import SPLIT_SCHEMA, restrict_layout

        layout = self._log_layout(options)
        wanted = arrow_schema(schema)
        if layout.content != "splits":
            return restrict_layout(layout, wanted)
        if not wanted.equals(SPLIT_SCHEMA):
            msg = f"could not read splits with the schema that was given: found columns={wanted.names!r:.200}"
            raise SchemaMismatchError(msg, hint="leave the schema out with content=splits")
        return layout
