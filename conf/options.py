"""The one table of options: name, kind, unit, default and help of each.

The sink, the source, `spark_timely.capture` and `spark_timely.start` take their options from here, and
the tables of the README are rendered from here.

Invariants
----------
1. Names are compared without regard to case and underscores: Spark's option maps lose the case, and
   Python callers write ``time_column`` for ``timeColumn``.
2. Values may be text, as Spark passes them, or Python values of the kind; both give the same result.
3. An option that is not in the table is an error that names the nearest one; nothing is ignored but
   the keys that Spark itself adds.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Generic, Literal, TypeVar

from spark_timely.errors import InvalidOptionError, shown

__all__ = [
    "SINK_OPTIONS",
    "SOURCE_OPTIONS",
    "Duration",
    "Option",
    "OptionTable",
    "Options",
    "SinkOptions",
    "SourceOptions",
    "parse_bytes",
    "parse_duration",
    "parse_options",
    "render_markdown",
]

Kind = Literal["str", "name", "names", "int", "bool", "bytes", "duration", "enum", "antichain", "seq", "wallclock"]
JsonValue = int | str | list["JsonValue"]
"""A time or an antichain as given: the log knows its type and parses it further."""

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time, or a distance in units of a log's own time.

    Parameters
    ----------
    amount : int
        How many, not negative.
    unit : {"us", "time"}
        ``us``: microseconds. ``time``: units of the log's time (1 of an integer, a day of a date, a
        microsecond of a timestamp).

    Examples
    --------
    >>> parse_duration("1h 30 minutes").seconds
    5400.0
    >>> parse_duration("7").in_units("long")
    7
    >>> parse_duration("2 days").in_units("date")
    2
    """

    amount: int
    unit: Literal["us", "time"] = "us"

    @property
    def seconds(self) -> float:
        """Length in seconds.

        Raises
        ------
        InvalidOptionError
            If it is a distance in units of a log's time.
        """
        if self.unit != "us":
            msg = f"could not take {self.amount} units of time as a duration: found no unit such as 'seconds'"
            raise InvalidOptionError(msg, hint="write for example '10 minutes'")
        return self.amount / 1_000_000

    def in_units(self, time_type: str, /) -> int:
        """Express the length in units of a time type.

        Parameters
        ----------
        time_type : str
            Name of the type: ``long``, ``int``, ``short``, ``date`` or ``timestamp``.

        Returns
        -------
        int
            Units: days for dates, microseconds for timestamps, 1 for integers.

        Raises
        ------
        InvalidOptionError
            If a duration with a unit is asked of an integer time, or one that is no whole number of
            days of a date.
        """
        if self.unit == "time" or self.amount == 0:
            return self.amount
        text = f"{self.amount / 1_000_000:g} seconds"
        if time_type == "timestamp":
            return self.amount
        if time_type == "date":
            days, rest = divmod(self.amount, 86_400_000_000)
            if rest:
                msg = f"could not use a duration for times of type 'date': found {text}, no whole number of days"
                raise InvalidOptionError(msg, hint="write for example '2 days'")
            return days
        msg = f"could not use a duration for times of type {time_type!r}: found {text}"
        raise InvalidOptionError(msg, hint="integer times have no clock: write a plain number such as '3'")


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Parameters
    ----------
    name : str
        Its name in lowerCamelCase, as written in the documentation.
    kind : str
        How its value is read: ``str``, ``name`` (letters, digits, underscore), ``names`` (list),
        ``int``, ``bool``, ``bytes``, ``duration``, ``enum``, ``antichain`` (JSON), ``seq`` (a number or one
        of `choices`), ``wallclock`` (a moment in UTC or one of `choices`).
    default : str or None
        Default as text, read like a given value; None: no value.
    unit : str
        Unit of the value, empty if it has none.
    help : str
        What it does, one or two sentences.
    applies : {"sink", "source"}
        Which table it is in.
    choices : tuple of str
        Words that are allowed: all that are for ``enum``, in place of a value otherwise.
    minimum : int
        Least value of an ``int``, ``seq`` or ``bytes``.
    required : bool
        Whether it must be given.
    """

    name: str
    kind: Kind
    default: str | None
    unit: str
    help: str
    applies: Literal["sink", "source"]
    choices: tuple[str, ...] = ()
    minimum: int = 0
    required: bool = False


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
    storage_options: dict[str, str] = field(default_factory=dict)


def _sink(
    name: str,
    kind: Kind,
    default: str | None,
    text: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: int = 0,
    required: bool = False,
) -> Mapping[str, Option]:
    return {"option": Option(name, kind, default, unit, text, "sink", choices, minimum, required)}


def _source(
    name: str,
    kind: Kind,
    default: str | None,
    text: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: int = 0,
    required: bool = False,
) -> Mapping[str, Option]:
    return {"option": Option(name, kind, default, unit, text, "source", choices, minimum, required)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(Options):
    """Options of the sink, parsed. The metadata of each field holds its `Option`."""

    path: str = field(
        default="",
        metadata=_sink(
            "path",
            "str",
            None,
            "Where the log is: a local path or the URL of a cloud store. Created at the first commit.",
            required=True,
        ),
    )
    stream: str = field(
        default="main", metadata=_sink("stream", "name", "main", "Which stream of the log this query is.")
    )
    time_column: tuple[str, ...] = field(
        default=(),
        metadata=_sink(
            "timeColumn",
            "names",
            None,
            "Column that holds the time of each row; several, separated by commas, for a product time.",
        ),
    )
    frontier: str | None = field(
        default=None,
        metadata=_sink(
            "frontier",
            "enum",
            None,
            "How the frontier moves. `batch`: each micro-batch is one time, closed when committed (the default without "
            "`timeColumn`; else one must be chosen). `bounded`: greatest time minus `lateness`. `events`: progress "
            "rows come in the data. `hold`: only `advance` and `close` move it.",
            choices=("batch", "bounded", "events", "hold"),
        ),
    )
    lateness: Duration = field(
        default=Duration(0, "time"),
        metadata=_sink(
            "lateness",
            "duration",
            "0",
            "With `frontier=bounded`: how far behind the greatest time seen a row may be.",
            unit="units of the time, or a duration",
        ),
    )
    max_future_skew: Duration | None = field(
        default=None,
        metadata=_sink(
            "maxFutureSkew",
            "duration",
            None,
            "Rows further ahead than this follow `lateData` and never move the frontier. Measured from the wall clock "
            "for dates and timestamps, from the stream's held time for integers.",
            unit="units of the time, or a duration",
        ),
    )
    late_data: str = field(
        default="error",
        metadata=_sink(
            "lateData",
            "enum",
            "error",
            "What happens to a row whose time is already closed: refuse the micro-batch, keep the row apart as a dead "
            "letter, or move its time up to the frontier. A time equal to a frontier element is not late.",
            choices=("error", "deadLetter", "advance"),
        ),
    )
    on_finish: str = field(
        default="hold",
        metadata=_sink(
            "onFinish",
            "enum",
            "hold",
            "Whether the stream is closed when the query ends cleanly. Only through `spark_timely.start`: a sink does "
            "not see the end.",
            choices=("hold", "close"),
        ),
    )
    streams: int = field(
        default=1,
        metadata=_sink(
            "streams",
            "int",
            "1",
            "How many streams a new log waits for: its frontier stays at the minimum until each was opened.",
            minimum=1,
        ),
    )
    diff_column: str | None = field(
        default=None,
        metadata=_sink(
            "diffColumn",
            "str",
            None,
            "Column that holds the signed count of each row; makes a new log a collection log.",
        ),
    )
    target_file_size: int = field(
        default=128 << 20,
        metadata=_sink(
            "targetFileSize", "bytes", "128mb", "Size at which a task begins a new file.", unit="bytes", minimum=1
        ),
    )
    compression: str = field(
        default="zstd",
        metadata=_sink(
            "compression",
            "enum",
            "zstd",
            "Compression of the data files.",
            choices=("zstd", "snappy", "gzip", "none"),
        ),
    )
    checkpoint_location: str | None = field(
        default=None,
        metadata=_sink(
            "checkpointLocation",
            "str",
            None,
            "The query's checkpoint. Must be given here: a location from the session's configuration is hidden from a sink, "
            "and repeated micro-batches are recognised by it.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Options):
    """Options of the source, parsed. The metadata of each field holds its `Option`."""

    path: str = field(
        default="",
        metadata=_source(
            "path", "str", None, "Where the log is: a local path or the URL of a cloud store.", required=True
        ),
    )
    delivery: str = field(
        default="complete",
        metadata=_source(
            "delivery",
            "enum",
            "complete",
            "`complete`: closed times only, in frontier order. `arrival`: events in the order captured.",
            choices=("complete", "arrival"),
        ),
    )
    content: str = field(
        default="messages",
        metadata=_source(
            "content",
            "enum",
            "messages",
            "`messages`: rows. `events`: rows and progress rows. `splits`: one small row per split, for "
            "`spark_timely.read_splits` in `mapInArrow`.",
            choices=("messages", "events", "splits"),
        ),
    )
    workers: int | None = field(
        default=None,
        metadata=_source(
            "workers",
            "int",
            None,
            "Splits per micro-batch; by size, at most 16, if not given. Never changes what is read.",
            minimum=1,
        ),
    )
    split_by: str = field(
        default="bytes",
        metadata=_source(
            "splitBy",
            "enum",
            "bytes",
            "`time`: each split holds whole times, so that work per time needs no shuffle.",
            choices=("bytes", "time"),
        ),
    )
    as_of: JsonValue | None = field(
        default=None,
        metadata=_source(
            "asOf",
            "antichain",
            None,
            "One closed time of a collection log: contents as of it first, then the changes. Fresh checkpoint only.",
        ),
    )
    snapshot: bool = field(
        default=True,
        metadata=_source("snapshot", "bool", "true", "With `asOf`: whether the contents come before the changes."),
    )
    starting_frontier: JsonValue | None = field(
        default=None,
        metadata=_source(
            "startingFrontier",
            "antichain",
            None,
            "Read times beyond this antichain, inclusive. Default `earliest`. Fresh checkpoint only.",
            choices=("earliest", "latest"),
        ),
    )
    starting_version: int | str | None = field(
        default=None,
        metadata=_source(
            "startingVersion",
            "seq",
            None,
            "Begin with this commit number (`_seq`), inclusive. Fresh checkpoint only.",
            choices=("earliest", "latest"),
        ),
    )
    starting_timestamp: int | str | None = field(
        default=None,
        metadata=_source(
            "startingTimestamp",
            "wallclock",
            None,
            "Begin with the commits of this moment, inclusive. Without a zone it is UTC. Fresh checkpoint only.",
            unit="ISO 8601",
            choices=("earliest", "latest"),
        ),
    )
    up_to: JsonValue | None = field(
        default=None,
        metadata=_source(
            "upTo",
            "antichain",
            None,
            "Stop before the times beyond this antichain, exclusive.",
        ),
    )
    ending_version: int | None = field(
        default=None,
        metadata=_source("endingVersion", "seq", None, "Stop after this commit number (`_seq`), inclusive."),
    )
    ending_timestamp: int | None = field(
        default=None,
        metadata=_source(
            "endingTimestamp",
            "wallclock",
            None,
            "Stop after the commits of this moment, inclusive. Without a zone it is UTC.",
            unit="ISO 8601",
        ),
    )
    max_times_per_trigger: int | None = field(
        default=None,
        metadata=_source(
            "maxTimesPerTrigger",
            "int",
            None,
            "At most so many times in a micro-batch. All four limits may be given; none cuts inside one time.",
            unit="times",
            minimum=1,
        ),
    )
    max_files_per_trigger: int | None = field(
        default=None,
        metadata=_source(
            "maxFilesPerTrigger", "int", None, "At most so many files in a micro-batch.", unit="files", minimum=1
        ),
    )
    max_bytes_per_trigger: int | None = field(
        default=None,
        metadata=_source(
            "maxBytesPerTrigger",
            "bytes",
            None,
            "At most about so many compressed bytes in a micro-batch.",
            unit="bytes",
            minimum=1,
        ),
    )
    max_rows_per_trigger: int | None = field(
        default=None,
        metadata=_source(
            "maxRowsPerTrigger", "int", None, "At most so many rows in a micro-batch.", unit="rows", minimum=1
        ),
    )
    poll_interval: Duration = field(
        default=Duration(200_000),
        metadata=_source(
            "pollInterval",
            "duration",
            "200ms",
            "How often at most the log is asked for news; in between Spark is answered from memory.",
            unit="a duration, or milliseconds",
        ),
    )
    include_metadata: bool = field(
        default=False,
        metadata=_source("includeMetadata", "bool", "false", "Adds where a row comes from: `_stream` and `_seq`."),
    )
    include_time: bool = field(
        default=False,
        metadata=_source("includeTime", "bool", "false", "Adds the column or columns of the time."),
    )
    columns: tuple[str, ...] | None = field(
        default=None,
        metadata=_source("columns", "names", None, "Payload columns to read; all if not given."),
    )
    stream_filter: tuple[str, ...] | None = field(
        default=None,
        metadata=_source("streamFilter", "names", None, "Streams to read; all if not given."),
    )
    fail_on_data_loss: bool = field(
        default=True,
        metadata=_source(
            "failOnDataLoss", "bool", "true", "Whether a missing data file fails the read or is passed over."
        ),
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
    """

    title: str
    parsed: type[ParsedT]
    conflicts: tuple[tuple[str, ...], ...] = ()
    foreign: frozenset[str] = frozenset()

    @property
    def options(self) -> dict[str, Option]:
        """Options by attribute name (snake_case), in the order of the table."""
        return {
            item.name: item.metadata["option"] for item in dataclasses.fields(self.parsed) if "option" in item.metadata
        }


SINK_OPTIONS: OptionTable[SinkOptions] = OptionTable("the sink 'timely'", SinkOptions, (), frozenset({"queryname"}))
"""Options of ``writeStream.format("timely")``, `spark_timely.capture` and `spark_timely.start`."""

SOURCE_OPTIONS: OptionTable[SourceOptions] = OptionTable(
    "the source 'timely'",
    SourceOptions,
    (
        ("asOf", "startingFrontier", "startingVersion", "startingTimestamp"),
        ("upTo", "endingVersion", "endingTimestamp"),
    ),
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
    spark_timely.errors.InvalidOptionError: could not read the options of the sink 'timely': found unknown option \
'lateDate' — hint: did you mean 'lateData'?
    """
    attempt = f"could not read the options of {table.title}"
    known = {_key(option.name): (attribute, option) for attribute, option in table.options.items()}
    values: dict[str, object] = {}
    spelled: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, value in given.items():  # as many turns as options were given
        if value is None:
            continue
        prefix, dot, rest = name.partition(".")
        if dot and prefix.lower() == "storage" and rest:
            storage[rest] = str(value)
            continue
        entry = known.get(_key(name))
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
        found = [name for name in group if known[_key(name)][0] in values]
        if len(found) > 1:
            listed = ", ".join(repr(name) for name in found)
            msg = f"{attempt}: found conflicting options {listed}"
            hint = "give at most one of " + ", ".join(repr(name) for name in group)
            raise InvalidOptionError(msg, hint=hint, context={"options": found})
    for attribute, option in table.options.items():
        if option.required and attribute not in values:
            msg = f"{attempt}: found no option {option.name!r}"
            raise InvalidOptionError(msg, hint=f"set {option.name!r}", context={"option": option.name})
    return table.parsed(given=frozenset(values), storage_options=storage, **values)  # type: ignore[arg-type]


def parse_duration(value: object, /, *, bare: Literal["time", "ms"] = "time") -> Duration:
    """Read a duration: ``10 minutes``, ``1h 30m``, ISO 8601 ``PT10M``, a timedelta, or a plain number.

    Parameters
    ----------
    value : str, int or timedelta
        What was given.
    bare : {"time", "ms"}
        What a plain number counts: units of the log's time, or milliseconds.

    Returns
    -------
    Duration
        Not negative.

    Raises
    ------
    ValueError
        If it cannot be read; the text says why.

    Examples
    --------
    >>> parse_duration("PT0.2S") == parse_duration("200ms") == parse_duration(200, bare="ms")
    True
    """
    if isinstance(value, Duration):
        return value
    if isinstance(value, timedelta):
        return _duration_us(value // timedelta(microseconds=1))
    if isinstance(value, int) and not isinstance(value, bool):
        return _duration_us(value * 1000) if bare == "ms" else _duration_us(value, "time")
    if not isinstance(value, str):
        msg = "expected a duration such as '10 minutes'"
        raise ValueError(msg)
    text = value.strip()
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return parse_duration(int(text), bare=bare)
    iso = _ISO_DURATION.fullmatch(text.upper())
    if iso is not None and any(iso.groups()):
        parts = [(number, unit) for unit, number in iso.groupdict().items() if number]
    else:
        body = re.sub(r"^interval\s+", "", text, flags=re.IGNORECASE)
        if not _DURATION.fullmatch(body):
            msg = "expected a duration such as '10 minutes', '1h' or 'PT10M'"
            raise ValueError(msg)
        parts = _DURATION_PART.findall(body)
    total = 0
    for number, unit in parts:  # as many turns as units were written
        factor = _UNITS_US.get(unit.lower())
        if factor is None:
            why = " (months and years have no fixed length)" if unit.lower()[:2] in {"mo", "ye"} else ""
            msg = f"unknown unit {shown(unit)}{why}"
            raise ValueError(msg)
        whole, _, fraction = number.partition(".")
        scaled, rest = divmod(int(fraction or "0") * factor, 10 ** len(fraction))
        if rest:
            msg = "finer than a microsecond"
            raise ValueError(msg)
        total += int(whole or "0") * factor + scaled
    return _duration_us(total)


def parse_bytes(value: object, /) -> int:
    """Read a size: a number of bytes, or text with a unit in powers of 1024 (``128mb``, ``1g``).

    Parameters
    ----------
    value : str or int
        What was given.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        If it cannot be read; the text says why.

    Examples
    --------
    >>> parse_bytes("64k"), parse_bytes("1 GiB"), parse_bytes(10)
    (65536, 1073741824, 10)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_long(value)
    match = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        msg = "expected a size such as '128mb' or a number of bytes"
        raise ValueError(msg)
    number, unit = match.groups()
    return _in_long(int(number) << (10 * "bkmgtp".index(unit[:1].lower() or "b")))


def render_markdown(table: OptionTable[ParsedT], /) -> str:
    """Render a table of options as Markdown, for the README.

    Parameters
    ----------
    table : OptionTable
        `SINK_OPTIONS` or `SOURCE_OPTIONS`.

    Returns
    -------
    str
        A table with a line per option, ending with a line feed.

    Examples
    --------
    >>> print(render_markdown(SINK_OPTIONS).splitlines()[4])
    | `stream` | letters, digits, `_` | `main` | Which stream of the log this query is. |
    """
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for option in table.options.values():
        default = "required" if option.required else f"`{option.default}`" if option.default else ""
        lines.append(f"| `{option.name}` | {_values_text(option)} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


_KIND_TEXT: dict[str, str] = {
    "str": "text",
    "name": "letters, digits, `_`",
    "names": "names, comma separated or a JSON list",
    "int": "number",
    "bool": "`true`, `false`",
    "bytes": "size such as `128mb`",
    "duration": "duration such as `10 minutes`",
    "antichain": "JSON antichain such as `[5]`",
    "seq": "number",
    "wallclock": "moment such as `2013-01-01T00:00:00Z`",
}


def _values_text(option: Option) -> str:
    words = ", ".join(f"`{word}`" for word in option.choices)
    if option.kind == "enum":
        return words
    kind = option.unit if option.kind == "duration" else _KIND_TEXT[option.kind]
    return f"{kind}, {words}" if words else kind


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def _unknown_option(attempt: str, name: str, table: OptionTable[ParsedT]) -> InvalidOptionError:
    names = {_key(option.name): option.name for option in table.options.values()}
    near = difflib.get_close_matches(_key(name), names, n=1, cutoff=0.6)
    hint = f"did you mean {names[near[0]]!r}?" if near else "known options: " + ", ".join(names.values())
    return InvalidOptionError(f"{attempt}: found unknown option {shown(name)}", hint=hint, context={"option": name})


def _parse(attempt: str, option: Option, value: object) -> object:
    try:
        return _PARSERS[option.kind](option, value)
    except ValueError as error:
        msg = f"{attempt}: found {option.name}={shown(value)}"
        context = {"option": option.name, "value": value}
        raise InvalidOptionError(msg, hint=str(error), context=context) from error


def _parse_str(option: Option, value: object) -> str:
    del option
    text = value if isinstance(value, str) else _fspath(value)
    if not text.strip():
        msg = "expected a text that is not empty"
        raise ValueError(msg)
    return text


def _fspath(value: object) -> str:
    path = getattr(value, "__fspath__", None)
    text = path() if callable(path) else None
    if not isinstance(text, str):
        msg = "expected a text"
        raise ValueError(msg)
    return text


def _parse_name(option: Option, value: object) -> str:
    del option
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_]+", value):
        msg = "expected ASCII letters, digits and underscores only"
        raise ValueError(msg)
    return value


def _parse_names(option: Option, value: object) -> tuple[str, ...]:
    del option
    names: Sequence[object]
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            found = _load_json(text)
            names = found if isinstance(found, list) else []
        else:
            names = [part.strip() for part in text.split(",")]
    elif isinstance(value, (list, tuple)):
        names = value
    else:
        names = []
    checked = [name for name in names if isinstance(name, str) and name]
    if not checked or len(checked) != len(names):
        msg = "expected names separated by commas, or a JSON list of names"
        raise ValueError(msg)
    if len(set(checked)) != len(checked):
        msg = "expected each name once"
        raise ValueError(msg)
    return tuple(checked)


def _parse_int(option: Option, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value, re.ASCII):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        words = "".join(f" or {word!r}" for word in option.choices)
        msg = f"expected a whole number{words}"
        raise ValueError(msg)
    return _at_least(option, _in_long(number))


def _parse_bool(option: Option, value: object) -> bool:
    del option
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in {"true", "false"}:
        msg = "expected 'true' or 'false'"
        raise ValueError(msg)
    return word == "true"


def _parse_bytes_option(option: Option, value: object) -> int:
    return _at_least(option, parse_bytes(value))


def _parse_duration_option(option: Option, value: object) -> Duration:
    return parse_duration(value, bare="ms" if "milliseconds" in option.unit else "time")


def _parse_enum(option: Option, value: object) -> str:
    word = _choice(option, value)
    if word is None:
        msg = "expected one of " + ", ".join(repr(choice) for choice in option.choices)
        raise ValueError(msg)
    return word


def _parse_antichain(option: Option, value: object) -> JsonValue:
    word = _choice(option, value)
    if word is not None:
        return word
    found: object = value
    if isinstance(value, str):
        text = value.strip()
        # A time such as 2013-01-01 is no JSON; the log's own type reads it.
        found = _load_json(text) if re.match(r'[\[{"]|-?[0-9]+$', text) else text
    if not _is_json_time(found) or found == "":
        msg = "expected a JSON antichain: '[5]', '[[1, 2], [2, 1]]', '[]', or one time"
        raise ValueError(msg)
    return found  # type: ignore[return-value]  # checked just above


def _parse_seq(option: Option, value: object) -> int | str:
    return _choice(option, value) or _parse_int(option, value)


def _parse_wallclock(option: Option, value: object) -> int | str:
    word = _choice(option, value)
    if word is not None:
        return word
    moment: datetime | None = None
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
    if moment is None:
        words = "".join(f" or {word!r}" for word in option.choices)
        msg = f"expected a moment such as '2013-01-01T00:00:00Z'{words}"
        raise ValueError(msg)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


_PARSERS = {
    "str": _parse_str,
    "name": _parse_name,
    "names": _parse_names,
    "int": _parse_int,
    "bool": _parse_bool,
    "bytes": _parse_bytes_option,
    "duration": _parse_duration_option,
    "enum": _parse_enum,
    "antichain": _parse_antichain,
    "seq": _parse_seq,
    "wallclock": _parse_wallclock,
}


def _choice(option: Option, value: object) -> str | None:
    """Return the allowed word that `value` is, whatever its case."""
    if not isinstance(value, str):
        return None
    words = {word.lower(): word for word in option.choices}
    return words.get(value.strip().lower())


def _load_json(text: str) -> object:
    def refuse(constant: str) -> object:
        msg = f"{constant} is no value of ours"
        raise ValueError(msg)

    try:
        found: object = json.loads(text, parse_constant=refuse)
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None
    return found


def _is_json_time(value: object, depth: int = 0) -> bool:
    """Tell whether a value is an int, a text, or lists of them two deep at most."""
    if isinstance(value, (list, tuple)):
        return depth < 2 and all(_is_json_time(item, depth + 1) for item in value)
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _in_long(number: int) -> int:
    if not -_LONG_MAX - 1 <= number <= _LONG_MAX:
        msg = "does not fit 64 bits"
        raise ValueError(msg)
    return number


def _at_least(option: Option, number: int) -> int:
    if number < option.minimum:
        msg = f"expected at least {option.minimum}"
        raise ValueError(msg)
    return number


def _duration_us(amount: int, unit: Literal["us", "time"] = "us") -> Duration:
    if amount < 0:
        msg = "expected a duration that is not negative"
        raise ValueError(msg)
    return Duration(_in_long(amount), unit)


_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(rf"(?:{_NUMBER}\s*[A-Za-zµ]+\s*,?\s*)+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([A-Za-zµ]+)", re.ASCII)
_ISO_DURATION = re.compile(
    rf"P(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?",
    re.ASCII,
)
_BYTES = re.compile(r"([0-9]+)\s*(b|[kmgtp](?:i?b)?|)", re.ASCII | re.IGNORECASE)
_UNITS_US: dict[str, int] = {
    name: factor
    for factor, names in (
        (1, "us µs microsecond microseconds"),
        (1_000, "ms millisecond milliseconds"),
        (1_000_000, "s sec secs second seconds"),
        (60_000_000, "m min mins minute minutes"),
        (3_600_000_000, "h hr hrs hour hours"),
        (86_400_000_000, "d day days"),
        (604_800_000_000, "w week weeks"),
    )
    for name in names.split()
}
