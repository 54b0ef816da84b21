"""Contents of a log as a DataFrame: at one time, or at many times together, as the body of a task sees them.

Bodies of continual tasks (`spark_timely.spark.tasks.bodies`) see their logs through it, as do SQL over contents and
peeks (`spark_timely.spark.answers`). A snapshot for users is in `collection`, which has the sums.

At many times, rows of an input have the time at which they came, or went, in a column. Rows of a reference have the
times between which they are there. A body that joins them to rows that have a time compares the two, whatever the
number of times. Elsewhere they are multiplied out over the times.

Invariants
----------
1. A body that looks at the times 5, 6 and 7 together sees at 6 what one that looks at 6 alone sees: the same rows, each
   as often.
2. Rows stay on executors, and are summed before they are shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.frames.collection import held_or_error, sum_of_halves, whole_of_halves
from spark_timely.spark.frames.scan import quoted, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.continual.plan import SourcePlan
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "AT", "DIFF", "FROM", "TO", "StepViews", "at_frame", "between", "between_frame", "frame_of", "listed", "scanned",
    "spread_frame", "summed_sql", "time_sql",
]  # fmt: skip

DIFF: Final = "_diff"

AT: Final = "__timely_at"
"""The column of the time of a row, where rows of many times are together."""

FROM: Final = "__timely_from"
TO: Final = "__timely_to"
"""The columns of the times between which a row is there: from the first on, before the second. Null is for ever."""

# Rows of a collection that are summed in one place, or sent to all places.
_FEW_ROWS: Final = 100_000

_MOVES: Final = "__timely_moves"

_SQL_TYPES: Final = {"long": "BIGINT", "int": "INT", "short": "SMALLINT"}


def frame_of(spark: SparkSession, source: SourcePlan, views: StepViews) -> DataFrame:
    """Return the rows that a body sees of a log, in the columns of its payload.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    source : SourcePlan
    views : StepViews
        Of the step: the log's files are one.
    """
    if not source.files:
        return _nothing(spark, source)
    if source.kind == "collection":
        return spark.sql(_seen(source, views.add(scanned(spark, source))))
    rows, condition = scanned(spark, source), _condition(source)
    if source.shown == "deletes":
        rows = rows.where("false")  # of a stream nothing is ever taken away
    elif condition:
        rows = rows.where(condition)
    return rows.drop(*source.domain.columns)


def at_frame(spark: SparkSession, source: SourcePlan, views: StepViews) -> DataFrame:
    """Return the rows that came to a log, or went, each with its time as last column, `AT`.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    source : SourcePlan
        Of an input; `lower` is the first of the times.
    views : StepViews
    """
    if not source.files:
        return _nothing(spark, source, AT)
    (name,), rows = source.domain.columns, scanned(spark, source)
    names = source.schema.names
    if source.kind == "stream":
        rows = rows.where("false" if source.shown == "deletes" else _condition(source) or "true")
        return rows.select(*map(quoted, names), quoted(name).alias(AT))
    summed = summed_sql(source, views.add(rows), [name, *names])
    sign = "" if source.shown == "inserts" else "-"
    copied = (
        f"SELECT {listed([*names, name])}, explode(sequence(1L, {sign}{DIFF})) FROM ({summed}) WHERE {sign}{DIFF} > 0"
    )
    return spark.sql(f"SELECT {listed(names)}, {listed([name])} AS {AT} FROM ({copied})")


def between_frame(spark: SparkSession, source: SourcePlan, first: int, views: StepViews) -> DataFrame:
    """Return the rows of a log's contents, each with the times between which it is there, `FROM` and `TO`, at the end.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    source : SourcePlan
        Of a reference; it ends after the last of the times.
    first : int
        The first of the times: what was before it is collapsed.
    views : StepViews

    Notes
    -----
    Cost: one sum over all of a collection, as for one time; only rows that change between the times are sorted. Of a
    stream log no row is touched.
    """
    if not source.files:
        return _nothing(spark, source, FROM, TO)
    (name,), names, begin = source.domain.columns, source.schema.names, time_sql(source.domain, first)
    (kind,) = spark_schema(pa.schema([pa.field(name, source.domain.types[0].arrow)])).fields
    never = f"CAST(NULL AS {kind.dataType.simpleString()})"
    columns = listed(names)
    if source.shown == "newest":
        raw = views.add(frame_of(spark, source, views))
        return spark.sql(f"SELECT {columns}, {begin} AS {FROM}, {never} AS {TO} FROM {raw}")
    rows = scanned(spark, source)
    if source.kind == "stream":
        rows = rows.where(_condition(source) or "true")
        return rows.select(*map(quoted, names), quoted(name).alias(FROM), F.expr(never).alias(TO))
    raw = views.add(rows)
    if source.n_later == 0:
        still = _repeated(source, DIFF, begin, never, columns)
        summed = summed_sql(source, raw, names)
        return spark.sql(f"SELECT {columns}, inline({still}) AS ({FROM}, {TO}) FROM ({summed})")
    if source.adds_at_first and 0 <= source.n_later <= _FEW_ROWS and not _has_inner_floats(source.schema):
        return spark.sql(_between_few(source, raw, begin, never))
    # One sum over all rows, as of the first time; what changes later, mostly little, is put beside the rows it changes.
    time = listed([name])
    until = f"SELECT {_hint(source)}{columns}, IF({time} <= {begin}, {DIFF}, 0L) AS {DIFF} FROM {raw}{between(source)}"
    halves = f"SELECT {columns}, {sum_of_halves(DIFF)} AS {DIFF} FROM ({until}) GROUP BY {columns}"
    held = f"SELECT {columns}, {whole_of_halves(DIFF)} AS {DIFF} FROM ({halves})"
    later = f"SELECT * FROM (SELECT * FROM {raw}{between(source)}) WHERE {time} > {begin}"
    at_each = (
        f"SELECT {columns}, {time} AS {FROM}, sum(CAST({DIFF} AS DECIMAL(38, 0))) AS {DIFF} FROM ({later})"
        f" GROUP BY {columns}, {time}"
    )
    window = f"OVER (PARTITION BY {columns} ORDER BY {FROM}"
    running = (
        f"SELECT {columns}, {FROM}, lead({FROM}) {window}) AS {TO},"
        f" sum({DIFF}) {window} ROWS UNBOUNDED PRECEDING) AS {DIFF} FROM ({at_each})"
    )
    moves = (
        f"SELECT {columns}, array_sort(collect_list(struct({FROM}, {TO}, {DIFF}))) AS {_MOVES} FROM ({running})"
        f" GROUP BY {columns}"
    )
    one, two = (", ".join(f"{side}.{listed([each])}" for each in names) for side in ("one", "two"))
    equal = " AND ".join(f"one.{listed([each])} <=> two.{listed([each])}" for each in names)
    hint = "/*+ BROADCAST(two) */ " if 0 <= source.n_later <= _FEW_ROWS else ""
    whole = f"CAST(one.{DIFF} AS DECIMAL(38, 0))"
    still = _repeated(source, f"one.{DIFF}", begin, never, one)
    before = _repeated(source, whole, begin, f"{_MOVES}[0].{FROM}", one)
    after = _repeated(source, f"{whole} + x.{DIFF}", f"x.{FROM}", f"x.{TO}", one)
    moved = f"flatten(concat(array({before}), transform({_MOVES}, x -> {after})))"
    return spark.sql(
        f"SELECT {hint}{one}, inline(IF({_MOVES} IS NULL, {still}, {moved})) AS ({FROM}, {TO}) FROM ({held}) one"
        f" LEFT JOIN ({moves}) two ON xxhash64({one}) = xxhash64({two}) AND {equal}"
    )


def _between_few(source: SourcePlan, raw: str, begin: str, never: str) -> str:
    """Return the query of `between_frame` where up to the first time rows are only added, and few change later.

    Rows that do not change are not summed: none of them takes another away.
    """
    (name,), columns = map(listed, [source.domain.columns]), listed(source.schema.names)
    rows = f"(SELECT * FROM {raw}{between(source)})"
    early = f"SELECT {_as_grouped(source.schema)}, {DIFF} FROM {rows} WHERE {name} <= {begin}"
    later = f"SELECT {columns}, {name} AS {FROM}, {DIFF} FROM {rows} WHERE {name} > {begin}"
    one, two = (", ".join(f"{side}.{listed([each])}" for each in source.schema.names) for side in ("one", "two"))
    equal = " AND ".join(f"one.{listed([each])} <=> two.{listed([each])}" for each in source.schema.names)
    touched = f"(SELECT DISTINCT {columns} FROM ({later})) two ON xxhash64({one}) = xxhash64({two}) AND {equal}"
    still = _repeated(source, DIFF, begin, never, columns)
    unmoved = (
        f"SELECT {columns}, inline({still}) AS ({FROM}, {TO}) FROM"
        f" (SELECT /*+ BROADCAST(two) */ {one}, {DIFF} FROM ({early}) one LEFT ANTI JOIN {touched})"
    )
    moves = (
        f"SELECT /*+ BROADCAST(two) */ {one}, {begin} AS {FROM}, {DIFF} FROM ({early}) one LEFT SEMI JOIN {touched}"
        f" UNION ALL {later}"
    )
    at_each = (
        f"SELECT {columns}, {FROM}, sum(CAST({DIFF} AS DECIMAL(38, 0))) AS {DIFF} FROM ({moves})"
        f" GROUP BY {columns}, {FROM}"
    )
    window = f"OVER (PARTITION BY {columns} ORDER BY {FROM}"
    running = (
        f"SELECT {columns}, {FROM} AS {_MOVES}, lead({FROM}) {window}) AS {AT},"
        f" sum({DIFF}) {window} ROWS UNBOUNDED PRECEDING) AS {DIFF} FROM ({at_each})"
    )
    then = _repeated(source, DIFF, _MOVES, AT, columns)
    return f"{unmoved} UNION ALL SELECT {columns}, inline({then}) AS ({FROM}, {TO}) FROM ({running})"


def _as_grouped(schema: pa.Schema) -> str:
    """Return columns, in SQL, as they are where rows are grouped: zero has no sign there."""
    return ", ".join(
        f"IF({column} = 0, abs({column}), {column}) AS {column}" if pa.types.is_floating(each.type) else column
        for each, column in ((each, listed([each.name])) for each in schema)
    )


def _has_inner_floats(schema: pa.Schema) -> bool:
    return any(map(_has_floats, (each.type for each in schema if pa.types.is_nested(each.type))))


def _has_floats(kind: pa.DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_floating(kind) or any(map(_has_floats, inner))


def _attempt(source: SourcePlan) -> str:
    """Return, for errors, what cannot be done."""
    return f"read the contents of log {source.path!r} before {_rendered(source.domain, source.upper)}"


def _repeated(source: SourcePlan, copies: str, begin: str, end: str, row: str) -> str:
    """Return, in SQL, an array with the times from and before which a row is there, as often as it is there."""
    # More than an array holds is an error of Spark's, by its name.
    number = f"CAST(least(IF({copies} = 0, 0, {held_or_error(copies, _attempt(source), [row])}), 2147483647) AS INT)"
    return f"array_repeat(named_struct('from', {begin}, 'to', {end}), {number})"


def _nothing(spark: SparkSession, source: SourcePlan, *times: str) -> DataFrame:
    """Return no rows, with the columns that a source has, and columns of times."""
    payload = [each.with_nullable(True) for each in source.schema]  # noqa: FBT003 - as Arrow has it
    timed = [pa.field(name, source.domain.types[0].arrow) for name in times]
    return spark.createDataFrame([], spark_schema(pa.schema([*payload, *timed])))


def spread_frame(
    spark: SparkSession, source: SourcePlan, times: Sequence[int], views: StepViews, rows: DataFrame
) -> DataFrame:
    """Return contents multiplied out over times, each row with its time as last column, `AT`.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    source : SourcePlan
    times : sequence of int
    views : StepViews
    rows : pyspark.sql.DataFrame
        As `between_frame` gives them.
    """
    each = ", ".join(time_sql(source.domain, time) for time in times)
    return spark.sql(
        f"SELECT {listed(source.schema.names)}, {AT} FROM {views.add(rows)}"
        f" JOIN (SELECT explode(array({each})) AS {AT}) ON {AT} >= {FROM} AND ({TO} IS NULL OR {AT} < {TO})"
    )


def _seen(source: SourcePlan, raw: str) -> str:
    """Return the query for what a body sees of a collection: one call, where each column would be one."""
    names = listed(source.schema.names)
    summed = summed_sql(source, raw, source.schema.names)
    if source.shown in ("contents", "newest") or (source.shown == "inserts" and source.lower is None):
        copies, where = held_or_error(DIFF, _attempt(source), [listed([name]) for name in source.schema.names]), ""
    elif source.shown == "inserts":
        copies, where = DIFF, f" WHERE {DIFF} > 0"
    else:
        copies, where = f"-{DIFF}", f" WHERE {DIFF} < 0"
    copied = f"SELECT {names}, explode(sequence(1L, {copies})) AS {DIFF} FROM ({summed}){where}"
    return f"SELECT {names} FROM ({copied})"


def summed_sql(source: SourcePlan, raw: str, names: Sequence[str]) -> str:
    """Return the query for the updates of a range, equal rows summed; as they are where none takes another away."""
    columns = listed(names)
    if source.adds_only and not _has_inner_floats(source.schema):
        own = listed([name for name in names if name not in source.schema.names])
        shown = ", ".join(filter(None, [own, _as_grouped(source.schema)]))
        return f"SELECT {columns}, {DIFF} FROM (SELECT {shown}, {DIFF} FROM {raw}{between(source)})"
    rows = f"SELECT {_hint(source)}{columns}, {DIFF} FROM {raw}{between(source)}"
    halves = f"SELECT {columns}, {sum_of_halves(DIFF)} AS {DIFF} FROM ({rows}) GROUP BY {columns}"
    whole = f"SELECT {columns}, {whole_of_halves(DIFF)} AS {DIFF} FROM ({halves})"
    return f"SELECT * FROM ({whole}) WHERE {DIFF} <> 0"


def scanned(spark: SparkSession, source: SourcePlan) -> DataFrame:
    """Return the rows of the files of a log, with their times, and the diffs of a collection."""
    (name,), (kind,) = source.domain.columns, source.domain.types
    own = [pa.field(DIFF, pa.int64())] if source.kind == "collection" else []
    payload = [each.with_nullable(True) for each in source.schema]  # noqa: FBT003 - as Arrow has it
    schema = pa.schema([pa.field(name, kind.arrow), *own, *payload])
    if not source.files:
        return spark.createDataFrame([], spark_schema(schema))
    return scan(spark, source.storage, source.files, schema)


def _condition(source: SourcePlan) -> str:
    """Return the condition that a row is of the range, said of the column so that Spark passes over row groups."""
    (name,) = source.domain.columns
    parts = []
    if source.lower is not None:
        parts.append(f"{name} >= {time_sql(source.domain, source.lower)}")
    if source.upper is not None:
        parts.append(f"{name} < {time_sql(source.domain, source.upper)}")
    return " AND ".join(parts)


def _hint(source: SourcePlan) -> str:
    """Return the hint, in SQL, to sum few rows in one place: a shuffle would cost more than all the rest."""
    return "/*+ COALESCE(1) */ " if 0 <= source.n_rows <= _FEW_ROWS else ""


def between(source: SourcePlan) -> str:
    """Return the clause, in SQL, for the rows of the range; nothing where all are."""
    condition = _condition(source)
    return f" WHERE {condition}" if condition else ""


def listed(names: Sequence[str]) -> str:
    """Return names of columns, in SQL."""
    return ", ".join("`" + name.replace("`", "``") + "`" for name in names)


def _rendered(domain: TimeDomain, time: int | None) -> str:
    return "the end" if time is None else str(domain.render_time((time,)))


class StepViews:
    """Temporary views of one step: their names are never used twice, and they are dropped at its end."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._names = spark, list[str]()
        self._made: dict[object, DataFrame] = {}
        self._viewed: dict[int, tuple[DataFrame, str]] = {}

    def __enter__(self) -> StepViews:
        return self

    def __exit__(self, *failure: object) -> None:
        for name in self._names:
            self._spark.catalog.dropTempView(name)

    def add(self, frame: DataFrame) -> str:
        """Make a view of a DataFrame, or take the one that was made of it, and return its name."""
        if id(frame) not in self._viewed:
            name = f"timely_{uuid.uuid4().hex}"
            frame.createTempView(name)
            self._names.append(name)
            self._viewed[id(frame)] = frame, name  # kept, so that no other one gets its id
        return self._viewed[id(frame)][1]

    def once(self, key: Hashable, make: Callable[[], DataFrame]) -> DataFrame:
        """Return what was made under a key, or make it."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def query(self, text: str) -> DataFrame:
        """Return what a text gives over the views; it is analysed once, however often it is asked for."""
        return self.once(text, lambda: self._spark.sql(text))


def time_sql(domain: TimeDomain, time: int) -> str:
    """Return a time as a literal of Spark's SQL, in the type of the log's times.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> time_sql(TimeDomain(("long",)), -5), time_sql(TimeDomain(("date",)), 3)
    ('CAST(-5 AS BIGINT)', 'DATE_FROM_UNIX_DATE(3)')
    """
    kind = domain.types[0].value
    if kind == "timestamp":
        return f"TIMESTAMP_MICROS({time})"
    if kind == "date":
        return f"DATE_FROM_UNIX_DATE({time})"
    return f"CAST({time} AS {_SQL_TYPES[kind]})"
