"""The options of reads and writes of the format ``timely``, as two tables: name, kind, unit, default, help of each.

The sink, the source, `spark_timely.capture` and `spark_timely.start` take their options from here, and
the tables of docs/reference/options.md are rendered from here.

Invariants
----------
1. Names are compared without regard to case and underscores: Spark's option maps lose the case, and
   Python callers write ``time_column`` for ``timeColumn``.
2. An option that is not in the table is an error that names the nearest one; nothing is ignored but
   the keys that Spark itself adds.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from spark_timely.conf.kinds import JsonValue, Kind, Option, parse_value
from spark_timely.errors import InvalidOptionError, shown
from spark_timely.masking import keep_secret
from spark_timely.time.text import Duration

_STORAGE = re.compile(r"storage\.(?=.)", re.IGNORECASE)

CHECK_OPTION: Final = "timelyCheck"
"""Option of a read by which a session elsewhere asks, in place of a log's columns, whether a query may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parsed options: one attribute per option, in snake_case.

    Attributes
    ----------
    given : frozenset of str
        Names (snake_case) of the options that were given, defaults left out.
    storage_options : dict of str to str
        Options with the prefix ``storage.``, without it: credentials and settings of a cloud store.
    """

    given: frozenset[str] = frozenset()
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)  # credentials are never shown


def _option(
    name: str,
    kind: Kind,
    default: str | None,
    text: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: int = 0,
    required: bool = False,
    first: bool = False,
    empty: object = None,
) -> Any:  # noqa: ANN401 - a dataclass field stands for the value of its attribute
    """Declare one option as a field; `empty` is its value where there is no default."""
    option = Option(name, kind, default, unit, text, choices, minimum, required, first)
    value = empty if default is None else parse_value(option, default)
    return field(default=value, metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(Options):
    """Options of the sink, parsed. The metadata of each field holds its `Option`."""

    path: str = _option(
        "path",
        "str",
        None,
        "Where the log is: a local path or the URL of a cloud store. Created at the first commit.",
        required=True,
        empty="",
        first=True,
    )
    stream: str = _option("stream", "name", "main", "Which stream of the log this query is.", first=True)
    time_column: tuple[str, ...] = _option(
        "timeColumn",
        "names",
        None,
        "Column that holds the time of each row; several, separated by commas, for a product time.",
        empty=(),
        first=True,
    )
    frontier: str | None = _option(
        "frontier",
        "enum",
        None,
        "How the frontier moves. `batch`: each micro-batch is one time, closed when committed (the default "
        "without `timeColumn`; else one must be chosen). `bounded`: greatest time minus `lateness`. `source`: as far "
        "as the `timely` sources that the query reads. `events`: progress rows come in the data. `hold`: only "
        "`advance` and `close` move it.",
        choices=("batch", "bounded", "source", "events", "hold"),
        first=True,
    )
    lateness: Duration = _option(
        "lateness",
        "distance",
        "0",
        "With `frontier=bounded`: how far behind the greatest time seen a row may be.",
        unit="a duration such as `12 hours`; for integer times a number",
        first=True,
    )
    max_future_skew: Duration | None = _option(
        "maxFutureSkew",
        "distance",
        None,
        "Rows further ahead than this never move the frontier: they are refused, kept as dead letters, or "
        "(`lateData=advance`) kept at their own time. Measured from the wall clock for dates and timestamps, from the "
        "stream's held time for integers: not while that is the log's minimum, since nothing says then how large "
        "times are.",
        unit="a duration such as `12 hours`; for integer times a number",
    )
    late_data: str = _option(
        "lateData",
        "enum",
        "error",
        "What happens to a row whose time is already closed: refuse the micro-batch, keep the row apart as a "
        "dead letter, or move its time up to the frontier. A time equal to a frontier element is not late.",
        choices=("error", "deadLetter", "advance"),
        first=True,
    )
    bad_time: str = _option(
        "badTime",
        "enum",
        "error",
        "What happens to a row whose time is null, or no time of its type such as a date after 9999: refuse the "
        "micro-batch, or keep the row apart as a dead letter, which never moves the frontier. Dates and timestamps "
        "before 1700 are late under `error`, and such rows under `deadLetter`.",
        choices=("error", "deadLetter"),
    )
    on_finish: str = _option(
        "onFinish",
        "enum",
        "hold",
        "Whether the stream is closed when the query ends cleanly. Only through `spark_timely.start`: a sink "
        "does not see the end.",
        choices=("hold", "close"),
    )
    idle_timeout: Duration | None = _option(
        "idleTimeout",
        "duration",
        None,
        "With `frontier=bounded`: when the query has had no micro-batch for so long, and looked for input and found "
        "none, its stream gives up the lateness: all rows seen so far become complete. Rows behind that follow "
        "`lateData`, which must be chosen. Only through `spark_timely.start`.",
        unit="a duration such as `10 minutes`",
    )
    streams: int = _option(
        "streams",
        "int",
        "1",
        "How many streams a new log waits for: its frontier stays at the minimum until each was opened.",
        minimum=1,
    )
    diff_column: str | None = _option(
        "diffColumn", "str", None, "Column that holds the signed count of each row; makes a new log a collection log."
    )
    merge_schema: bool = _option(
        "mergeSchema",
        "bool",
        "false",
        "Whether columns of the data that the log does not have are added to it. Rows without them, earlier ones and "
        "those of other streams, have nulls there; a running reader sees them after its restart.",
    )
    missing_columns: tuple[str, ...] = _option(
        "missingColumns",
        "names",
        None,
        "Columns of the log that the data may lack: they are stored as null. Data that lacks another column that the "
        "log was made with is refused; those that `mergeSchema` added later may always be absent.",
        empty=(),
    )
    takeover: bool = _option(
        "takeover",
        "bool",
        "false",
        "Whether the first micro-batch of this query takes the stream over from the query that owns it, which is "
        "refused from then on. A query that has lost a stream cannot take it back.",
    )
    begin_at: int | None = _option(
        "beginAt",
        "int",
        None,
        "Accepts at the micro-batch of this number, and at no other, that earlier ones are missing in the log: it was "
        "deleted, restored or replaced on purpose, or the query captured elsewhere before. The log then says which.",
    )
    target_file_size: int = _option(
        "targetFileSize",
        "bytes",
        "128mb",
        "Size of the rows in memory at which a task begins a new file; compressed it is smaller. Bounds a task's "
        "memory.",
        unit="bytes",
        minimum=1,
    )
    dialect: str = _option(
        "dialect",
        "enum",
        "timely",
        "`timely`: rows are captured as they come. `cdcv2`: they are the messages of Differential's CDCv2, updates and "
        "statements in columns `_lower`, `_upper`, `_counts`, in any order and any number of copies; they alone move "
        "the frontier. Only in foreachBatch: `spark_timely.capture`, or `spark_timely.start` with `through`.",
        choices=("timely", "cdcv2"),
    )
    single_writer: bool = _option(
        "singleWriter",
        "bool",
        "false",
        "Promises that only one process at a time writes to this log, compaction and command line included. Allows to "
        "write to Databricks volumes and to file systems without hard links, where a second writer would be lost.",
    )
    flush: bool = _option(
        "flush",
        "bool",
        "true",
        "Whether files are flushed to a local disk before a micro-batch counts as captured. Without it a power cut can "
        "take the latest micro-batches, or damage the log. On several hosts each flushes what it writes; files that "
        "Spark writes (`capture`) are flushed by the driver, which reaches the disk of its own host only.",
    )
    compression: str = _option(
        "compression", "enum", "zstd", "Compression of the data files.", choices=("zstd", "snappy", "gzip", "none")
    )
    content_digest: str = _option(
        "contentDigest",
        "enum",
        "auto",
        "Whether each commit says a digest of its messages as they are stored, from which `spark-timely verify` tells "
        "that another program changed a value. `auto`: where it costs at most 3 %, which depends on the kinds of the "
        "columns and the number of rows. `on`: always. `off`: never.",
        choices=("auto", "on", "off"),
    )
    auto_compact: str = _option(
        "autoCompact",
        "enum",
        "inline",
        "`inline`: about every 100 commits of the stream its small files are merged, right after the commit, at most "
        "16 MB at a time: those of complete times; of open ones only where very many have come together. `off`: only "
        "by `spark-timely compact`.",
        choices=("inline", "off"),
    )
    auto_vacuum: str = _option(
        "autoVacuum",
        "enum",
        "inline",
        "`inline`: files that merges and compaction have replaced are deleted after commits, once the table keeps them "
        "no longer: a day, or what `delta.deletedFileRetentionDuration` says. `off`: only by `spark-timely vacuum`.",
        choices=("inline", "off"),
    )
    key_columns: tuple[str, ...] = _option(
        "keyColumns",
        "names",
        None,
        "Of a collection that the query creates: columns by which merges and compaction order the updates of one time, "
        "so that few bytes are read to find a key. A log keeps its key.",
        empty=(),
    )
    keep: Duration | None = _option(
        "keep",
        "distance",
        None,
        "How much of the log stays: times less than this before its frontier. What is before is forgotten, with the "
        "merges after commits, unless somebody retains it. Everything stays if not given. It is the log's: give the "
        "same in each query that writes to it, for the last one counts.",
        unit="a duration such as `30 days`; for integer times a number",
    )
    keep_committed: Duration = _option(
        "keepCommitted",
        "duration",
        "1 day",
        "With `keep`: nothing is forgotten that was committed less than this ago, by the wall clock.",
    )
    credential: str | None = _option(
        "credential",
        "str",
        None,
        "Which credential to use for a cloud URL: a name that `spark_timely.credential` gave, or `module:function`, "
        "a function that returns storage options.",
    )
    checkpoint_location: str | None = _option(
        "checkpointLocation",
        "str",
        None,
        "The query's checkpoint. Must be given here: a location from the session's configuration is hidden "
        "from a sink, and repeated micro-batches are recognised by it.",
        first=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Options):
    """Options of the source, parsed. The metadata of each field holds its `Option`."""

    path: str = _option(
        "path",
        "str",
        None,
        "Where the log is: a local path or the URL of a cloud store.",
        required=True,
        empty="",
        first=True,
    )
    delivery: str = _option(
        "delivery",
        "enum",
        "complete",
        "`complete`: closed times only, in frontier order. `arrival`: events in the order captured.",
        choices=("complete", "arrival"),
        first=True,
    )
    content: str = _option(
        "content",
        "enum",
        "messages",
        "`messages`: rows. `events`: rows and progress rows; fixed by the checkpoint. `splits`: one small row per "
        "split, for `spark_timely.spark.read_splits` in `mapInArrow`. `dead`: dead letters with their reason, by the "
        "commits that hold them. `clock`: one row per log whose frontier moved, streams only; for queries that read by "
        "themselves.",
        choices=("messages", "events", "splits", "dead", "clock"),
        first=True,
    )
    logs: tuple[str, ...] | None = _option(
        "logs", "names", None, "With `content=clock`: paths of further logs to watch, as a JSON list."
    )
    log_options: str | None = _option(
        "logOptions",
        "str",
        None,
        "With `content=clock`: options of single logs, and of the alarm's checkpoint, as a JSON object by path, such "
        'as `{"s3://bucket/log": {"credential": "lake"}}`. Other logs have `credential` and `storage.…` of the read.',
    )
    run: str | None = _option(
        "run",
        "str",
        None,
        "With `content=clock`: a text; one that is not the checkpoint's makes a micro-batch although no log moved.",
    )
    alarm: str | None = _option(
        "alarm",
        "str",
        None,
        "With `content=clock`: the query's checkpoint. A file in it, `timely-clock`, asks for a micro-batch although "
        "no log moved.",
    )
    workers: int | None = _option(
        "workers",
        "int",
        None,
        "Splits per micro-batch; by size, at most 16, if not given. Never changes what is read; contents (`asOf`) "
        "are summed up per split: `spark_timely.consolidate` sums up the whole.",
        minimum=1,
        first=True,
    )
    split_by: str = _option(
        "splitBy",
        "enum",
        "bytes",
        "`time`: each split holds whole times, so that work per time needs no shuffle.",
        choices=("bytes", "time"),
    )
    as_of: JsonValue | None = _option(
        "asOf",
        "antichain",
        None,
        "One closed time of a collection log: contents as of it first, then the changes. A row and its retraction may "
        "come from two splits: `spark_timely.consolidate` the contents. Fresh checkpoint only.",
    )
    snapshot: bool = _option("snapshot", "bool", "true", "With `asOf`: whether the contents come before the changes.")
    starting_frontier: JsonValue | None = _option(
        "startingFrontier",
        "antichain",
        None,
        "Read times beyond this antichain, inclusive. Default `earliest`. Fresh checkpoint only.",
        choices=("earliest", "latest"),
        first=True,
    )
    starting_version: int | str | None = _option(
        "startingVersion",
        "seq",
        None,
        "Begin with this commit number (`_seq`) of each stream, inclusive; under `complete` at the frontier just "
        "before it. Nothing is read before the streams have come so far. Fresh checkpoint only.",
        choices=("earliest", "latest"),
    )
    starting_timestamp: int | str | None = _option(
        "startingTimestamp",
        "wallclock",
        None,
        "Begin with the commits of this moment, inclusive, by the clocks of those who wrote them; under `complete` "
        "at the frontier just before it. Nothing is read before a commit was made since. Without a zone it is UTC. "
        "Fresh checkpoint only.",
        unit="ISO 8601",
        choices=("earliest", "latest"),
    )
    up_to: JsonValue | None = _option(
        "upTo",
        "antichain",
        None,
        "Stop before the times beyond this antichain, exclusive: with the time of `asOf` there are no rows. "
        "This and `ending…` hold for a run: a restart that gives none has no end.",
        first=True,
    )
    ending_version: int | None = _option(
        "endingVersion", "seq", None, "Stop after this commit number (`_seq`), inclusive."
    )
    ending_timestamp: int | None = _option(
        "endingTimestamp",
        "wallclock",
        None,
        "Stop after the commits of this moment, inclusive. Without a zone it is UTC.",
        unit="ISO 8601",
    )
    cut: str | None = _option(
        "cut",
        "str",
        None,
        "A cut that this log is part of, as `str(spark_timely.cut(…))` gives it: read up to its frontier, exactly. "
        "Refused if another log is at the path, and by a batch read if the log has not come so far.",
    )
    max_times_per_trigger: int | None = _option(
        "maxTimesPerTrigger",
        "int",
        None,
        "The most times in a micro-batch. All four limits may be given; none cuts inside one time.",
        unit="times",
        minimum=1,
    )
    max_files_per_trigger: int | None = _option(
        "maxFilesPerTrigger", "int", None, "The most files in a micro-batch.", unit="files", minimum=1
    )
    max_bytes_per_trigger: int | None = _option(
        "maxBytesPerTrigger",
        "bytes",
        None,
        "The most compressed bytes in a micro-batch, about.",
        unit="bytes",
        minimum=1,
    )
    max_rows_per_trigger: int | None = _option(
        "maxRowsPerTrigger", "int", None, "The most rows in a micro-batch.", unit="rows", minimum=1
    )
    align_to: Duration | None = _option(
        "alignTo",
        "distance",
        None,
        "Micro-batches and batch reads end at multiples of this, counted from 0 or 1970-01-01 UTC, at the end that was "
        "asked for (`upTo`, `ending…`) or at that of a complete log: no window of this length is cut, by a limit "
        "neither. Times of one coordinate only.",
        unit="a duration such as `12 hours`; for integer times a number",
    )
    poll_interval: Duration = _option(
        "pollInterval",
        "duration",
        "200ms",
        "How often at most the log is asked for news; in between Spark is answered from memory. If not given, a log in "
        "an object store is asked less often while nothing is new, down to once a second; a trigger with an interval "
        "is not held up by that.",
        unit="a duration such as `10 minutes`",
    )
    include_metadata: bool = _option(
        "includeMetadata",
        "bool",
        "false",
        "Adds where a row comes from: `_stream` and `_seq`; null in contents (`asOf`).",
    )
    include_time: bool = _option("includeTime", "bool", "false", "Adds the column or columns of the time.", first=True)
    columns: tuple[str, ...] | None = _option("columns", "names", None, "Payload columns to read; all if not given.")
    where: str | None = _option(
        "where",
        "str",
        None,
        "A condition on payload columns, as SQL text: rows for which it is not true are left out where the files are "
        "read. Progress, offsets and limits are the same without it; it may change at any restart.",
    )
    stream_filter: tuple[str, ...] | None = _option("streamFilter", "names", None, "Streams to read; all if not given.")
    fail_on_data_loss: bool = _option(
        "failOnDataLoss", "bool", "true", "Whether a missing data file fails the read or is passed over."
    )
    accept_change: str | None = _option(
        "acceptChange",
        "str",
        None,
        "The token of the newest change by another program that was accepted in the log, for which a checkpoint from "
        "before is refused: the query continues behind it, and what it delivered stays.",
    )
    consumer_id: str | None = _option(
        "consumerId",
        "str",
        None,
        "A name under which the log keeps what this query has not read: compaction waits for it (`log.retainers()`). "
        "One query each; needs write access to the log. Streaming reads only.",
    )
    consumer_expiry: Duration = _option(
        "consumerExpiry",
        "duration",
        "7 days",
        "How long the log waits for the `consumerId` while the query is stopped; 3 seconds at least. A checkpoint that "
        "was copied is the same consumer, and the run that began last has it: give the copy another name.",
        unit="a duration such as `7 days`",
    )
    credential: str | None = _option(
        "credential",
        "str",
        None,
        "Which credential to use for a cloud URL: a name that `spark_timely.credential` gave, or `module:function`, "
        "a function that returns storage options.",
    )


ParsedT = TypeVar("ParsedT", bound=Options)


@dataclass(frozen=True, slots=True)
class OptionTable(Generic[ParsedT]):
    """All options of one thing.

    Parameters
    ----------
    title : str
        What they are options of, for messages.
    parsed : type
        Dataclass whose fields are the options.
    conflicts : tuple of tuple of str
        Groups of names of which at most one may be given.
    foreign : frozenset of str
        Keys that Spark adds by itself, in lower case: allowed and not used.
    elsewhere : mapping
        Options of other connectors, in lower case without underscores, and what to do here.
    """

    title: str
    parsed: type[ParsedT]
    conflicts: tuple[tuple[str, ...], ...] = ()
    foreign: frozenset[str] = frozenset()
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Option]:
        """Options by attribute name (snake_case), in the order of the table."""
        return {
            item.name: item.metadata["option"] for item in dataclasses.fields(self.parsed) if "option" in item.metadata
        }


# What users of other connectors look for, and what there is for it here.
_TABLE: Final = "give the path that spark_timely.spark.table_path(spark, name) gives"
_ASOF: Final = "give asOf, a time, for the contents of a collection; upTo, endingVersion or endingTimestamp end a read"
_ONLY_GROWS: Final = "leave it out: a log only grows, no commit changes or deletes rows"
_CHANGES: Final = "leave it out: a log gives changes by itself; content='events' gives progress too"
_REPEATED: Final = "leave it out: a repeated micro-batch is known by the checkpoint"

SINK_OPTIONS: OptionTable[SinkOptions] = OptionTable(
    "the sink 'timely'",
    SinkOptions,
    foreign=frozenset({"queryname"}),
    elsewhere={
        "tablename": _TABLE,
        "table": _TABLE,
        "topic": "give path and stream: a log is a folder, with streams in it",
        "kafka.bootstrap.servers": "give path: a log is a folder, without brokers",
        "overwriteschema": "give mergeSchema=true to add columns: rows of a log are never overwritten",
        "txnappid": _REPEATED,
        "txnversion": _REPEATED,
        "partitionby": "leave it out: files are parted by time by themselves",
        "maxrecordsperfile": "give targetFileSize",
        "watermark": "give frontier='bounded' and lateness",
        "delaythreshold": "give frontier='bounded' and lateness",
        "outputmode": "call .outputMode('append')",
        "trigger": "call .trigger(…)",
    },
)
"""Options of ``writeStream.format("timely")``, `spark_timely.capture` and `spark_timely.start`."""

SOURCE_OPTIONS: OptionTable[SourceOptions] = OptionTable(
    "the source 'timely'",
    SourceOptions,
    (
        ("asOf", "startingFrontier", "startingVersion", "startingTimestamp"),
        ("upTo", "endingVersion", "endingTimestamp", "cut"),
    ),
    elsewhere={
        "tablename": _TABLE,
        "table": _TABLE,
        "pushdown": "say what is to be left out by `where`, `columns`, `streamFilter`, `startingFrontier` and `upTo`",
        "startingoffsets": "give startingFrontier: 'earliest', 'latest', or the first times to read",
        "startingoffsetsbytimestamp": "give startingTimestamp",
        "endingoffsets": "give upTo: the times before which the read stops",
        "endingoffsetsbytimestamp": "give endingTimestamp",
        "maxoffsetspertrigger": "give maxRowsPerTrigger",
        "minpartitions": "give workers",
        "subscribe": "give path: a log is a folder; streamFilter chooses streams in it",
        "kafka.bootstrap.servers": "give path: a log is a folder, without brokers",
        "versionasof": _ASOF,
        "timestampasof": _ASOF,
        "readchangefeed": _CHANGES,
        "readchangedata": _CHANGES,
        "ignorechanges": _ONLY_GROWS,
        "ignoredeletes": _ONLY_GROWS,
        "skipchangecommits": _ONLY_GROWS,
        "withwatermark": "leave it out: what is complete is known; with delivery='complete' no row is late",
    },
)
"""Options of ``readStream.format("timely")`` and ``read.format("timely")``."""


def parse_options(table: OptionTable[ParsedT], given: Mapping[str, object], /) -> ParsedT:
    """Read options: names without regard to case, values by the kind of each.

    Parameters
    ----------
    table : OptionTable
        What is known: `SINK_OPTIONS` or `SOURCE_OPTIONS`.
    given : mapping of str to object
        Names and values, text or Python values. A value of None counts as not given. Not modified.

    Returns
    -------
    Options
        One attribute per option; those not given have their default.

    Raises
    ------
    InvalidOptionError
        If an option is unknown, given twice, required and missing, in conflict with another, or its
        value does not fit its kind.

    Examples
    --------
    >>> options = parse_options(SINK_OPTIONS, {"path": "log", "TIMECOLUMN": "hour", "lateness": "3"})
    >>> options.time_column, options.lateness.in_units("long"), options.late_data
    (('hour',), 3, 'error')
    >>> parse_options(SINK_OPTIONS, {"path": "log", "lateDate": "error"})
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: [TIMELY_INVALID_OPTION] could not read the options of the sink \
'timely': found unknown option 'lateDate' — hint: did you mean 'lateData'?
    """
    attempt = f"could not read the options of {table.title}"
    known = {option_key(option.name): (attribute, option) for attribute, option in table.options.items()}
    values: dict[str, object] = {}
    spelled: dict[str, str] = {}
    storage = {
        name.partition(".")[2]: str(value)
        for name, value in given.items()
        if value is not None and _STORAGE.match(name)
    }
    keep_secret(storage)  # before anything is refused
    for name, value in given.items():
        if value is None or _STORAGE.match(name):
            continue
        entry = known.get(option_key(name))
        if entry is None:
            if name.lower() in table.foreign:
                continue
            raise _unknown_option(attempt, name, table)
        attribute, option = entry
        if attribute in spelled:
            msg = f"{attempt}: found option {option.name!r} twice, as {spelled[attribute]!r} and {name!r}"
            raise InvalidOptionError(msg, hint="give it once", context={"option": option.name})
        spelled[attribute] = name
        values[attribute] = _parse(attempt, option, value)
    for group in table.conflicts:
        found = [name for name in group if known[option_key(name)][0] in values]
        if len(found) > 1:
            listed = ", ".join(repr(name) for name in found)
            msg = f"{attempt}: found conflicting options {listed}"
            hint = "give at most one of " + ", ".join(repr(name) for name in group)
            raise InvalidOptionError(msg, hint=hint, context={"options": found})
    for attribute, option in table.options.items():
        if option.required and attribute not in values:
            msg = f"{attempt}: found no option {option.name!r}"
            raise InvalidOptionError(msg, hint=f"set {option.name!r}", context={"option": option.name})
    return table.parsed(given=frozenset(values), storage_options=storage, **values)


def option_key(name: str) -> str:
    """Return the name by which options are compared."""
    return name.replace("_", "").lower()


def _unknown_option(attempt: str, name: str, table: OptionTable[ParsedT]) -> InvalidOptionError:
    names = {option_key(option.name): option.name for option in table.options.values()}
    near = difflib.get_close_matches(option_key(name), names, n=1, cutoff=0.6)
    otherwise = f"did you mean {names[near[0]]!r}?" if near else "give one of " + ", ".join(names.values())
    hint = table.elsewhere.get(option_key(name), otherwise)
    return InvalidOptionError(f"{attempt}: found unknown option {shown(name)}", hint=hint, context={"option": name})


def _parse(attempt: str, option: Option, value: object) -> object:
    try:
        return parse_value(option, value)
    except ValueError as error:
        msg = f"{attempt}: found {option.name}={shown(value)}"
        context = {"option": option.name, "value": value}
        raise InvalidOptionError(msg, hint=str(error), context=context) from error
