"""`TimelyDataSource`, the class of the format ``timely`` that Spark loads: gives schemas, readers and writers.

`spark_timely.spark.session` makes it known to a session. Spark asks in processes of its own: one for the schema, one
for each reader or writer, and for a sink one more that commits. None knows what another has parsed. So each parses the
same options and opens the log for itself, here as in the sink (`sink.plan`, `sink.commit`), and what does not fit is
refused by the first of them. A process loads what its content needs and no more: queries wait for it. The options are
read in `replay_options`.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from spark_timely.conf.options import CHECK_OPTION
from spark_timely.datasource.clock import CLOCK_SCHEMA, check_clock_options, storage_of_logs
from spark_timely.datasource.replay_options import keep_table_options, options_of_new_table, read_options
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.log.files.format import METADATA_KEY
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
    from spark_timely.datasource.splits import ReplayLayout


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
        from spark_timely.datasource.splits import LAYOUT_KEY, SPLIT_SCHEMA

        layout = self._log_layout(options)
        schema = spark_schema(SPLIT_SCHEMA if layout.content == "splits" else layout.schema)
        if layout.content == "splits":
            schema["_plan"].metadata = {LAYOUT_KEY: json.dumps(layout.to_json())}
        table = options_of_new_table(self.options)
        if table is not None:
            keep_table_options(schema, table)
        if layout.content == "events":
            # A job that captures the events needs to know where the folded stream begins.
            schema["_event"].metadata = {METADATA_KEY: json.dumps(layout.domain.to_json())}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        from spark_timely.datasource.spark_readers import LetterBatchReader, TimelyBatchReader

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
        from spark_timely.datasource.spark_readers import (
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
        return read_options(self.options, schema, self.credentials)

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
        from spark_timely.datasource.splits import SPLIT_SCHEMA, restrict_layout

        layout = self._log_layout(options)
        wanted = arrow_schema(schema)
        if layout.content != "splits":
            return restrict_layout(layout, wanted)
        if not wanted.equals(SPLIT_SCHEMA):
            msg = f"could not read splits with the schema that was given: found columns={wanted.names!r:.200}"
            raise SchemaMismatchError(msg, hint="leave the schema out with content=splits")
        return layout
