"""Evaluation of a continual task's body with Spark: SQL, or a function of DataFrames, over views of its logs.

The engine of continual tasks (`spark_timely.continual.engine`) decides on a step; `SparkBodies` evaluates the body at
the step's times, for `continual`, for the tasks of compute instances, and for those that run in a query of dataflows.
Functions of Arrow tables are in `arrow_bodies`; how a text of SQL is parsed and bound to views is in
`spark_timely.continual.body`.

Invariants
----------
1. The views of a step have names that are never used twice, and are dropped when the step has its files: Spark Connect
   analyses late, and a view that was replaced would give other rows.
2. What a later statement sees of an earlier one is computed once.
3. Rows stay on executors: `mapInArrow` writes the files of the output's log and gives names and statistics.
4. What a body gives at many times together has the time of each row with it. At each time it is what the body gives
   there alone.
5. The session's settings are those that the task recorded while its body is analysed and runs, and then what they were.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NullType,
    NumericType,
    StructField,
    StructType,
    TimestampType,
)

from spark_timely.canonical.content import OF_TASK
from spark_timely.continual.body import SqlBody, at_time
from spark_timely.continual.plan import Expectation, SourcePlan, StepPlan, StepResult
from spark_timely.dataflow.views import time_value
from spark_timely.errors import (
    InvalidUsageError,
    OperatorError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    described,
    kind_of,
    shown,
)
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import letter_table, message_table, write_data_files
from spark_timely.spark.base.schema import arrow_schema, spark_schema
from spark_timely.spark.base.shipping import for_task
from spark_timely.spark.frames.collection import consolidate, copies_of, refuse_maps
from spark_timely.spark.frames.contents import (
    AT,
    DIFF,
    FROM,
    TO,
    StepViews,
    at_frame,
    between,
    between_frame,
    frame_of,
    listed,
    scanned,
    spread_frame,
    summed_sql,
    time_sql,
)  # fmt: skip
from spark_timely.spark.frames.scan import quoted
from spark_timely.work import is_cancelled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_timely.continual.many_times import ManyBody, ManyPlace
    from spark_timely.log.machine.state import DataFile
    from spark_timely.time.antichain import IntArray
    from spark_timely.time.domain import TimeType

__all__ = ["SETTINGS", "Changes", "FunctionBody", "SessionSettings", "SparkBodies"]

SETTINGS: Final = (
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.ansi.enabled",
    "spark.sql.ansi.enforceReservedKeywords",
    "spark.sql.caseSensitive",
    "spark.sql.charAsVarchar",
    "spark.sql.crossJoin.enabled",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.groupByAliases",
    "spark.sql.groupByOrdinal",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.orderByOrdinal",
    "spark.sql.session.timeZone",
    "spark.sql.timestampType",
)
"""Settings that the answers of SQL depend on: the first commit of a task records them, and each step has them."""

_PLAIN: Final = re.compile(r"\w+")

# Rows of a result that a task holds before it writes a file of them.
_MOST_BYTES: Final = 256 << 20

# Classes of SQL's states by which Spark says that a body or its data are wrong: more than one row, data, names.
# All else is tried again.
_USER_STATES: Final = ("21", "22", "42")
_USER_ERRORS: Final = (AnalysisException, ArithmeticException, NumberFormatException, SparkRuntimeException)

RESULTS: Final = StructType([StructField("result", BinaryType())])


@dataclass(frozen=True)
class Changes:
    """The result of a function that takes rows away as well.

    Attributes
    ----------
    insert : pyspark.sql.DataFrame or None
        Rows to add, with the columns of the output by name.
    delete : pyspark.sql.DataFrame or None
        Rows of the output to take away: all copies of each.

    Examples
    --------
    >>> Changes().insert is None
    True
    """

    insert: DataFrame | None = None
    delete: DataFrame | None = None


Frames: TypeAlias = "Mapping[str, DataFrame]"

Function: TypeAlias = (
    "Callable[[Mapping[str, DataFrame], Mapping[str, DataFrame], object, DataFrame | None], DataFrame | Changes]"
)


@dataclass(frozen=True)
class FunctionBody:
    """A function that makes DataFrames of DataFrames.

    Attributes
    ----------
    function : callable
        Gets inputs and references by their names, the time, and the output before it.
    inputs, references : tuple of str
    deletes : bool
        Whether it may give `Changes` with rows to take away.
    reads_output : bool
        Whether it gets the output too.
    many_times : bool
        Whether it is given many times together: rows of inputs with the column of their times, rows of references with
        ``_from`` and ``_to``, and gives rows with their times.
    """

    function: Function
    inputs: tuple[str, ...]
    references: tuple[str, ...]
    deletes: bool = False
    reads_output: bool = True
    many_times: bool = False

    def call(self, frames: Frames, time: object, output: DataFrame | None, own_names: Sequence[str]) -> Changes:
        """Call the function with the DataFrames of a time; a DataFrame that it gives is to be inserted."""
        made = self.made(frames, time, output, own_names)
        if isinstance(made, Changes):
            return made
        if not hasattr(made, "mapInArrow"):  # of DataFrames, classic and Connect
            msg = f"could not run the function of a task: found {kind_of(made)} in place of a DataFrame of Spark"
            raise InvalidUsageError(msg, hint="return a DataFrame, or Changes; Changes() if nothing changes")
        return Changes(insert=made)

    def made(self, frames: Mapping[str, Any], time: object, output: object, own_names: Sequence[str]) -> Any:  # noqa: ANN401 - what a user's function returns
        """Return what the function gives, whatever it is."""
        inputs = {name: frames[name] for name in self.inputs}
        references = {name: frames[name] for name in self.references if name in frames}
        references |= {name: output for name in self.references if name in own_names and output is not None}
        given: tuple[Any, ...] = (inputs, references, time, output) if self.reads_output else (inputs, references, time)
        return self.function(*given)


_FAMILIES: Final = (
    "spark.sql.ansi.",
    "spark.sql.csv.",
    "spark.sql.function.",
    "spark.sql.json.",
    "spark.sql.jsonGenerator.",
    "spark.sql.legacy.",
    "spark.sql.parser.",
    "spark.sql.variant.",
)
"""Names that begin so change answers too. What a session sets of them is recorded; what it sets later, no step has."""


# Spark counts 4 MiB for the opening of a file, and cuts no file smaller. In as many bytes a log has a million rows,
# which one core then reads while the others wait.
_OPEN_COST: Final = "spark.sql.files.openCostInBytes"
_OPEN_BYTES: Final = 16 << 10
# Fewer bytes are read at once.
_LEAST_CUT: Final = 256 << 10


@dataclass
class SessionSettings:
    """The settings of the session of a query, which one body after another changes and puts back.

    Attributes
    ----------
    spark : pyspark.sql.SparkSession
    """

    spark: SparkSession
    # What the session sets, and what counts, of settings that anybody asked for: nobody else changes such a session.
    _given: dict[str, str] | None = None
    _counts: dict[str, str | None] = field(default_factory=dict)

    def found(self) -> dict[str, str]:
        """Return what counts in the session of the settings that answers depend on."""
        given = sorted(name for name in self._all() if name.startswith(_FAMILIES))
        found = {name: _setting(self.spark, name) for name in (*SETTINGS, *given)}
        return {name: value for name, value in found.items() if value is not None}

    def _all(self) -> dict[str, str]:
        if self._given is None:
            self._given = {str(name): str(value) for name, value in self.spark.conf.getAll.items()}
        return self._given

    @contextmanager
    def under(self, settings: Mapping[str, str], task: str, size_bytes: int = 0) -> Iterator[None]:
        """Let a session have some settings, and none of `_FAMILIES` beside them.

        Parameters
        ----------
        settings : mapping of str to str
        task : str
            For errors.
        size_bytes : int
            Of the files that will be read: they are cut for all cores, unless the session says how.

        Raises
        ------
        InvalidUsageError
            If it cannot have one of them.
        """
        given = self._all()
        wanted = dict(settings)
        if size_bytes > _LEAST_CUT and _OPEN_COST not in given:
            wanted[_OPEN_COST] = str(_OPEN_BYTES)
        changed: list[str] = []
        try:
            for name in given:
                if name.startswith(_FAMILIES) and name not in settings:
                    changed.append(name)
                    self.spark.conf.unset(name)
            for name, value in wanted.items():
                if name not in self._counts:
                    self._counts[name] = _setting(self.spark, name)
                if self._counts[name] != value:
                    changed.append(name)
                    self._set(name, value, task)
            yield
        finally:
            for name in changed:
                if name in given:
                    self.spark.conf.set(name, given[name])
                else:
                    self.spark.conf.unset(name)

    def _set(self, name: str, value: str, task: str) -> None:
        try:
            self.spark.conf.set(name, value)
        except PySparkException as error:
            msg = f"could not run task {task!r} under {name}={value!r}, as it began: found a session that refuses it"
            raise InvalidUsageError(
                msg, hint="run the task where the setting can be set", context={"setting": name}
            ) from error


def _setting(spark: SparkSession, name: str) -> str | None:
    """Return what counts of a setting, Spark's default too; None of one that this Spark does not know."""
    try:
        return spark.conf.get(name)
    except PySparkException:
        return None


class _Placed:
    """Views of what a text for many times names: one for each place, with time columns of the names that it wants."""

    def __init__(self, spark: SparkSession, plan: StepPlan, views: StepViews) -> None:
        self._spark, self._plan, self._views = spark, plan, views
        self._sources = {source.alias: source for source in plan.sources}
        self._made: dict[tuple[str, str], DataFrame] = {}

    def view(self, place: ManyPlace) -> str:
        """Make a view for a place, and return its name."""
        own = (FROM, TO) if place.shown == "between" else (AT,)
        rows = self._rows(place.alias, place.shown)
        return self._views.add(rows.withColumnsRenamed(dict(zip(own, place.columns, strict=True))))

    def _rows(self, alias: str, how: str) -> DataFrame:
        if (alias, how) not in self._made:
            source = self._sources[alias]
            if how == "at":
                made = at_frame(self._spark, source, self._views)
            elif how == "between":
                made = between_frame(self._spark, source, self._plan.time, self._views)
            else:
                held = self._rows(alias, "between")
                made = spread_frame(self._spark, source, self._plan.times, self._views, held)
            self._made[alias, how] = made
        return self._made[alias, how]


def _times_sql(source: SourcePlan, raw: str) -> str:
    """Return the query for the times at which a collection has inserts or deletes, as numbers in a column `at`."""
    (kind,), (name,) = source.domain.types, source.domain.columns
    if source.lower is None and source.upper is not None:
        return f"SELECT {source.upper - 1}L AS at FROM ({summed_sql(source, raw, source.schema.names)}) LIMIT 1"
    summed = summed_sql(source, raw, [name, *source.schema.names])
    number = _number_sql(kind, name)
    changed = f"{DIFF} > 0" if source.shown == "inserts" else f"{DIFF} < 0"
    return f"SELECT DISTINCT CAST({number} AS BIGINT) AS at FROM ({summed}) WHERE {changed}"


def _number_sql(kind: TimeType, name: str) -> str:
    """Return a column of times as numbers."""
    return {"timestamp": f"unix_micros({name})", "date": f"unix_date({name})"}.get(kind.value, name)


def _surplus_and_missing() -> list[Column]:
    diff = F.col(DIFF)
    found = {"surplus": F.when(diff > 0, diff), "missing": F.when(diff < 0, -diff)}
    return [F.coalesce(F.sum(each), F.lit(0)).alias(name) for name, each in found.items()]


class SparkBodies:
    """Evaluates the body of one task: `spark_timely.continual.plan.Evaluator`.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    body : SqlBody or FunctionBody
    settings : SessionSettings
        Of the same session.
    own_names : tuple of str
        Under which names the body reads the output.
    many : ManyBody, optional
        The body for many times together, where there is one in SQL.
    """

    def __init__(
        self,
        spark: SparkSession,
        body: SqlBody | FunctionBody,
        settings: SessionSettings,
        own_names: Sequence[str] = ("output",),
        many: ManyBody | None = None,
    ) -> None:
        self._spark, self._body, self._settings, self._own_names = spark, body, settings, tuple(own_names)
        self._many = many

    def times(self, sources: Sequence[SourcePlan], /) -> list[IntArray]:
        """Return the times at which collections have inserts or deletes, as `Evaluator` has it: one job for all."""
        with StepViews(self._spark) as views:
            parts = [_times_sql(each, views.add(scanned(self._spark, each))) for each in sources]
            asked = " UNION ALL ".join(f"SELECT {place} AS place, at FROM ({each})" for place, each in enumerate(parts))
            # Bookkeeping: as many rows as times.
            rows = self._spark.sql(asked).collect()
        found = [[int(row["at"]) for row in rows if row["place"] == place] for place in range(len(sources))]
        return [np.array(sorted(times), np.int64) for times in found]

    def evaluate(self, plan: StepPlan, /) -> StepResult:
        """Evaluate the body at a time, and write what it gives; an error of the body is a result too."""
        size = sum(source.size_bytes for source in plan.sources)
        with self._settings.under(plan.settings, plan.task, size), StepViews(self._spark) as views:
            try:
                return _written(self.changes(plan, views), plan)
            except OperatorError as error:
                return StepResult(error=error)
            except (InvalidUsageError, SchemaMismatchError) as error:
                return StepResult(error=operator_error(plan, error.message, error.hint))
            except TimelyError:
                raise
            except Exception as error:  # Spark's, or what its Python leaves as Java says it
                if is_cancelled(error):
                    raise
                if _is_of_storage(str(error)):
                    raise _gone(error, plan) from error
                if not isinstance(error, PySparkException) or not _is_of_body(error):
                    raise
                return StepResult(error=_named(error, plan))

    def preview(self, plan: StepPlan) -> DataFrame:
        """Return what a step gives, with the time in front; computed once, here."""
        name, sql = plan.form.domain.columns[0], time_sql(plan.form.domain, plan.time)
        with self._settings.under(plan.settings, plan.task), StepViews(self._spark) as views:
            found = self.changes(plan, views).drop(AT)
            return found.select(F.expr(sql).alias(name), *map(quoted, found.columns)).localCheckpoint(eager=True)

    def compared(self, plan: StepPlan, written: SourcePlan) -> tuple[int, int]:
        """Return how many rows a step gives that were not written, and how many were that it does not give."""
        with self._settings.under(plan.settings, plan.task), StepViews(self._spark) as views:
            given = self.changes(plan, views).drop(AT)
            given = _signed(given, 1) if plan.form.kind == "stream" else given
            number = "1L" if written.kind == "stream" else DIFF
            raw = views.add(scanned(self._spark, written))
            names = listed(written.schema.names)
            there = self._spark.sql(f"SELECT {names}, {number} AS {DIFF} FROM {raw}{between(written)}")
            back = there.withColumn(DIFF, -F.col(DIFF)).select(*map(quoted, given.columns))
            # Updates that are taken away by both are neither more nor less.
            left = consolidate(given.unionByName(back))
            (row,) = left.agg(*_surplus_and_missing()).collect()
        return int(row["surplus"]), int(row["missing"])

    def both_ways(self, plan: StepPlan, alone: Sequence[StepPlan]) -> tuple[int, int, int] | None:
        """Return the first time at which many times together give something else than each time alone.

        Parameters
        ----------
        plan : StepPlan
            Of many times.
        alone : sequence of StepPlan
            Of each of these times.

        Returns
        -------
        (int, int, int) or None
            The time, how many rows are there together and not alone, and how many alone and not together.
        """
        with self._settings.under(plan.settings, plan.task), StepViews(self._spark) as views:
            parts = [self._counted(self.changes(plan, views), plan, 1)]
            for each in alone:
                at = F.expr(time_sql(plan.form.domain, each.time))
                parts.append(self._counted(self.changes(each, views).withColumn(AT, at), plan, -1))
            (kind,) = plan.form.domain.types
            per_time = consolidate(_union(parts)).groupBy(AT).agg(*_surplus_and_missing())
            number = F.expr(_number_sql(kind, AT)).alias("at")
            found = per_time.select(number, "surplus", "missing").orderBy("at").limit(1).collect()
        return (int(found[0]["at"]), int(found[0]["surplus"]), int(found[0]["missing"])) if found else None

    def _counted(self, rows: DataFrame, plan: StepPlan, sign: int) -> DataFrame:
        signed = rows if plan.form.kind == "collection" else _signed(rows, 1)
        return signed.withColumn(DIFF, F.col(DIFF) * sign).select(*map(quoted, [*plan.form.payload.names, AT, DIFF]))

    def changes(self, plan: StepPlan, views: StepViews, *, once: bool = True) -> DataFrame:
        """Return what a step gives: the output's payload; of a collection with diffs.

        Unless `once`, what later statements see of earlier ones is not computed: it is only analysed. Of many times
        each row has its time as last column, `AT`.
        """
        if isinstance(self._body, FunctionBody) and self._body.many_times:
            return self._called_for_many(self._body, plan, views)
        if plan.together:
            return self._at_many_times(plan, views)
        frames = self._frames(plan, views)
        own = None if plan.own is None else frame_of(self._spark, plan.own, views)
        if isinstance(self._body, FunctionBody):
            return self._called(self._body, plan, frames, own)
        return self._statements(self._body, plan, frames, own, views, once=once)

    def check(self, plan: StepPlan, views: StepViews) -> None:
        """Have the body and what is expected of its rows analysed; `plan` has empty sources."""
        changes = self.changes(plan, views, once=False)
        conditions = [F.expr(each) for each in _conditions(plan)]
        found = changes.select(*conditions).schema if conditions else changes.schema
        for expectation, condition in zip(plan.expectations, found, strict=False):  # none of either without the other
            if not isinstance(condition.dataType, BooleanType):
                kind = condition.dataType.simpleString()
                msg = f"could not start task {plan.task!r}: found expectation {expectation.name!r} of type {kind!r}"
                raise InvalidUsageError(msg, hint="write a condition: it is true or false")

    def columns(self, plan: StepPlan, views: StepViews) -> pa.Schema:
        """Return the columns of what a body gives that nobody has declared; `plan` has empty sources, and no output.

        Raises
        ------
        InvalidUsageError
            If they are not known: the body reads the output to make them.
        """
        frames = self._frames(plan, views)
        if isinstance(self._body, FunctionBody):
            try:
                inserted = self._body.call(frames, self._time_given(plan), None, self._own_names).insert
            except (PySparkException, InvalidUsageError):
                raise
            except Exception as error:
                msg = f"{no_columns(plan)}: its function failed without rows and output: {described(error)}"
                raise InvalidUsageError(msg, hint=SCHEMA_HINT) from error
            if inserted is not None:
                own = inserted.drop(plan.form.domain.columns[0]) if self._function_of_many else inserted
                return nullable(arrow_schema(own.schema))
        else:
            names = {alias: views.add(frame) for alias, frame in frames.items()}
            for statement in self._body.statements:
                if statement.kind == "insert" and not set(statement.reads) & set(self._own_names):
                    literal_ = time_sql(plan.form.domain, plan.time)
                    found = views.query(at_time(statement.bind(names), literal_))
                    found = found if statement.columns is None else found.toDF(*statement.columns)
                    return nullable(arrow_schema(found.schema))
        msg = f"could not start task {plan.task!r}: found no statement that tells the columns of its output"
        raise InvalidUsageError(msg, hint=SCHEMA_HINT)

    def _call(self, body: FunctionBody, plan: StepPlan, frames: Frames, own: DataFrame | None) -> Changes:
        try:
            return body.call(frames, self._time_given(plan), own, self._own_names)
        except (PySparkException, InvalidUsageError):
            raise
        except Exception as error:
            raise _named(error, plan) from error

    def _called(self, body: FunctionBody, plan: StepPlan, frames: Frames, own: DataFrame | None) -> DataFrame:
        changes = self._call(body, plan, frames, own)
        schema = spark_schema(plan.form.payload)
        if changes.insert is None and changes.delete is None:
            return _empty(self._spark, plan)
        inserted = None if changes.insert is None else _by_name(changes.insert, schema, plan)
        if plan.form.kind == "stream":
            if changes.delete is not None:
                raise _no_deletes(plan)
            assert inserted is not None
            return inserted
        parts = [] if inserted is None else [_signed(inserted, 1)]
        if changes.delete is not None and own is not None:
            wanted = _by_name(changes.delete, schema, plan).distinct()
            parts.append(_signed(_semi(own, wanted), -1))
        return _summed(parts, self._spark, plan)

    def why_not_together(self, plan: StepPlan, views: StepViews) -> str:
        """Return why the body cannot run at many times together; nothing where it can. `plan` has empty sources.

        The text for many times must give what the user's text gives: columns of the same names and types, and the time.
        """
        assert isinstance(self._body, SqlBody)
        assert self._many is not None
        names = {alias: views.add(frame) for alias, frame in self._frames(plan, views).items()}
        placed = _Placed(self._spark, plan, views)
        for statement, many in zip(self._body.statements, self._many.statements, strict=True):
            alone = views.query(at_time(statement.bind(names), time_sql(plan.form.domain, plan.time))).schema
            try:
                *found, at = views.query(many.bind([placed.view(place) for place in many.places])).schema
            except PySparkException as error:
                return f"Spark refuses its text for many times: {str(error).strip().partition(chr(10))[0]}"
            if [(x.name, x.dataType.simpleString()) for x in found] != [
                (x.name, x.dataType.simpleString()) for x in alone
            ] or at.name != many.time:
                return "its text for many times gives other columns"
        return ""

    def _at_many_times(self, plan: StepPlan, views: StepViews) -> DataFrame:
        """Return what the statements give at the times of a step, in one query each."""
        assert self._many is not None
        schema, placed = spark_schema(plan.form.payload), _Placed(self._spark, plan, views)
        parts = []
        for statement in self._many.statements:
            found = views.query(statement.bind([placed.view(place) for place in statement.places]))
            part = _by_place(found, schema, statement.columns, plan, timed=True)
            parts.append(_signed(part, 1) if plan.form.kind == "collection" else part)
        return _summed(parts, self._spark, plan) if plan.form.kind == "collection" else _union(parts)

    def _called_for_many(self, body: FunctionBody, plan: StepPlan, views: StepViews) -> DataFrame:
        """Return what a function gives of rows that have their times with them."""
        (name,), domain = plan.form.domain.columns, plan.form.domain
        changes = self._call(body, plan, self._frames(plan, views), None)
        if changes.delete is not None:
            raise _no_deletes(plan)
        schema = spark_schema(plan.form.payload)
        if changes.insert is None:
            return _empty(self._spark, plan).withColumn(AT, F.expr(time_sql(domain, plan.time)))
        if name not in changes.insert.columns:
            hint = "give each row with the time at which it is written, as the rows of inputs have it"
            raise _misfit(plan, f"no column {name!r} in what its function gives", hint, task=plan.task)
        inserted = _by_name(changes.insert.withColumnRenamed(name, AT), schema, plan, timed=True)
        return _summed([_signed(inserted, 1)], self._spark, plan) if plan.form.kind == "collection" else inserted

    @property
    def _function_of_many(self) -> bool:
        return isinstance(self._body, FunctionBody) and self._body.many_times

    def _frames(self, plan: StepPlan, views: StepViews) -> dict[str, DataFrame]:
        """Return what the body sees of each log; a function of many times sees times too."""
        frames = {}
        for source in plan.sources:
            key = (source.alias, source.files, source.lower, source.upper, plan.times)
            frames[source.alias] = views.once(key, partial(self._frame, source, plan, views))
        return frames

    def _frame(self, source: SourcePlan, plan: StepPlan, views: StepViews) -> DataFrame:
        if not self._function_of_many:
            return frame_of(self._spark, source, views)
        if not source.is_input:
            held = between_frame(self._spark, source, plan.time, views)
            return held.withColumnsRenamed({FROM: "_from", TO: "_to"})
        (name,) = plan.form.domain.columns
        if source.lower == plan.time:
            return at_frame(self._spark, source, views).withColumnRenamed(AT, name)
        # A snapshot: all that was there comes at this time.
        at = F.expr(time_sql(plan.form.domain, plan.time))
        return frame_of(self._spark, source, views).withColumn(name, at)

    def _time_given(self, plan: StepPlan) -> object:
        """Return the time that a function is given, or all times of one of many times."""
        values = tuple(time_value(plan.form.domain, (time,)) for time in plan.times)
        return values if self._function_of_many else values[0]

    def _statements(
        self,
        body: SqlBody,
        plan: StepPlan,
        frames: Frames,
        own: DataFrame | None,
        views: StepViews,
        *,
        once: bool,
    ) -> DataFrame:
        schema, collection = spark_schema(plan.form.payload), plan.form.kind == "collection"
        own_names = set(self._own_names)
        names = {alias: views.add(frame) for alias, frame in frames.items()}
        parts: list[DataFrame] = []
        for number, statement in enumerate(body.statements):
            if own is not None and own_names & set(statement.reads):
                names |= dict.fromkeys(own_names, views.add(own))
            found = views.query(at_time(statement.bind(names), time_sql(plan.form.domain, plan.time)))
            if statement.kind == "insert":
                found = _by_place(found, schema, statement.columns, plan)
            elif not collection:
                raise _no_deletes(plan)
            part = _signed(found, 1 if statement.kind == "insert" else -1) if collection else found
            if own is not None and any(own_names & set(each.reads) for each in body.statements[number + 1 :]):
                # Seen by later statements, and written: computed once (invariant 2).
                part = _computed(part) if once else part
                whole = _union([_signed(own, 1) if collection else own, part])
                own = copies_of(consolidate(whole)) if collection else whole
            parts.append(part)
        return _summed(parts, self._spark, plan) if collection else _union(parts)


SCHEMA_HINT: Final = "say them with schema=pyarrow.schema(…), or make the output with create_log"


def no_columns(plan: StepPlan) -> str:
    """Return what is said of a task whose function shows no columns."""
    return f"could not start task {plan.task!r}: found no columns of its output"


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose columns may all be null."""
    return pa.schema([each.with_nullable(True) for each in schema])  # noqa: FBT003 - as Arrow has it


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _computed(frame: DataFrame) -> DataFrame:
    """Return rows computed now, once.

    Their columns are taken out of a struct first: Spark keeps what a filter said of them beside the rows, and cannot
    plan a union of these afterwards (4.2: ``NoSuchElementException: key not found`` in `UnionBase.rewriteConstraints`).
    """
    row = F.explode(F.array(F.struct(*map(quoted, frame.columns)))).alias("row")
    return frame.select(row).select("row.*").localCheckpoint(eager=True)


def _signed(frame: DataFrame, diff: int) -> DataFrame:
    return frame.withColumn(DIFF, F.lit(diff).cast("bigint"))


def _semi(own: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return all copies of the rows that are wanted; nulls are equal to each other."""
    one, other = own.alias("own"), wanted.alias("wanted")
    names = wanted.columns
    same = [F.col(f"own.`{name}`").eqNullSafe(F.col(f"wanted.`{name}`")) for name in names]
    return one.join(other, reduce(lambda a, b: a & b, same), "left_semi")


def _summed(parts: Sequence[DataFrame], spark: SparkSession, plan: StepPlan) -> DataFrame:
    if not parts:
        return _empty(spark, plan)
    whole = _union(parts)
    refuse_maps(whole, f"run task {plan.task!r}", InvalidUsageError)
    return consolidate(whole)


def _empty(spark: SparkSession, plan: StepPlan) -> DataFrame:
    frame = spark.createDataFrame([], spark_schema(plan.form.payload))
    return _signed(frame, 1) if plan.form.kind == "collection" else frame


def fits(found: DataType, wanted: DataType) -> bool:
    """Return whether values of a type can be stored as another without being other values.

    Examples
    --------
    >>> from pyspark.sql.types import IntegerType, LongType
    >>> fits(IntegerType(), LongType()), fits(LongType(), IntegerType())
    (True, False)
    """
    if found == wanted or isinstance(found, NullType):
        return True
    if isinstance(found, DateType) and isinstance(wanted, TimestampType):
        return True
    if isinstance(found, NumericType) and isinstance(wanted, NumericType):
        order = ["tinyint", "smallint", "int", "bigint"]
        one, other = found.simpleString(), wanted.simpleString()
        if one in order and other in order:
            return order.index(one) <= order.index(other)
        if one.startswith("decimal") and other.startswith("decimal"):
            a, b = cast("Any", found), cast("Any", wanted)
            return bool(a.scale <= b.scale and a.precision - a.scale <= b.precision - b.scale)
        return (one, other) in (("float", "double"), ("int", "double"), ("smallint", "float"), ("tinyint", "float"))
    return found.simpleString() == wanted.simpleString()


def _by_place(
    frame: DataFrame, schema: StructType, columns: Sequence[str] | None, plan: StepPlan, *, timed: bool = False
) -> DataFrame:
    """Bring the rows of a statement into the columns of the output, by their places, as `INSERT INTO` does.

    With `timed` the last column is the time of a row; it stays the last, as `AT`.
    """
    names = schema.names if columns is None else _known_columns(columns, schema, plan)
    given = frame.columns[:-1] if timed else frame.columns
    if len(given) != len(names):
        wrong = f"{len(given)} columns {shown(given)} for {len(names)} columns {shown(list(names))} of its output"
        raise _misfit(plan, wrong, "give the columns of the output, in its order", task=plan.task)
    found = frame.schema
    fitting = columns is None and not timed
    if fitting and [(each.name, each.dataType) for each in found] == [(x.name, x.dataType) for x in schema]:
        return frame
    at = [AT] if timed else []
    numbered = frame.toDF(*(f"c{place}" for place in range(len(names))), *at)
    by_name = {name: (f"c{place}", found[place].dataType) for place, name in enumerate(names)}
    return numbered.select(*(_column(by_name.get(each.name), each, plan) for each in schema.fields), *at)


def _known_columns(columns: Sequence[str], schema: StructType, plan: StepPlan) -> list[str]:
    known = {name.lower(): name for name in schema.names}
    missing = [name for name in columns if name.lower() not in known]
    if missing:
        hint = f"name columns of the output: {shown(schema.names)}"
        raise _misfit(plan, f"no column {missing[0]!r} in its output", hint, column=missing[0])
    return [known[name.lower()] for name in columns]


def _by_name(frame: DataFrame, schema: StructType, plan: StepPlan, *, timed: bool = False) -> DataFrame:
    """Bring the rows of a function into the columns of the output, by their names; see `_by_place`."""
    at = [AT] if timed else []
    given = [name for name in frame.columns if name not in at]
    if sorted(given) != sorted(schema.names):
        wrong = f"columns {shown(given)} for columns {shown(schema.names)} of its output"
        raise _misfit(plan, wrong, "give the columns of the output", task=plan.task)
    ordered = frame.select(*map(quoted, [*schema.names, *at]))
    return _by_place(ordered, schema, None, plan, timed=timed)


def _column(found: tuple[str, DataType] | None, wanted: StructField, plan: StepPlan) -> Column:
    if found is None:
        return F.lit(None).cast(wanted.dataType).alias(wanted.name)
    name, kind = found
    if not fits(kind, wanted.dataType):
        has, needs = kind.simpleString(), wanted.dataType.simpleString()
        wrong = f"type {has!r} for column {wanted.name!r} of type {needs!r}"
        raise _misfit(plan, wrong, "cast it in the body", column=wanted.name)
    return F.col(name).cast(wanted.dataType).alias(wanted.name)


def attempt_of(plan: StepPlan, where: str | None = None) -> str:
    """Return what errors say that was attempted: at the time given, else at those of the step."""
    return f"could not run task {plan.task!r} at {plan.where if where is None else where}"


def _misfit(plan: StepPlan, found: str, hint: str, **context: object) -> SchemaMismatchError:
    return SchemaMismatchError(f"{attempt_of(plan)}: found {found}", hint=hint, context=context)


NO_DELETES: Final = "write into a collection log: a stream log takes no row back"


def _no_deletes(plan: StepPlan) -> InvalidUsageError:
    msg = f"{attempt_of(plan)}: found rows to delete from a stream log"
    return InvalidUsageError(msg, hint=NO_DELETES, context={"task": plan.task})


CORRECT_BODY: Final = "correct the body, or the data; nothing of this time was written"


def _named(error: Exception, plan: StepPlan) -> OperatorError:
    """Return the error of a body, with the time at which it failed."""
    line = str(error).strip().partition("\n")[0]
    return operator_error(plan, f"{attempt_of(plan)}: {type(error).__name__}: {line}", CORRECT_BODY)


def _gone(error: Exception, plan: StepPlan) -> StorageError:
    """Return the error for files that are not there any more: the step is planned again."""
    named = next(each for each in str(error).splitlines() if _is_of_storage(each))
    return StorageError(f"{attempt_of(plan)}: {shown(named.strip())}", hint=GONE_HINT, context={"operator": plan.task})


GONE_HINT: Final = (
    "wait: where a vacuum took a file that was merged before, the step is planned again; if the error stays,"
    " restore the log's files"
)


def operator_error(plan: StepPlan, message: str, hint: str | None, where: str | None = None) -> OperatorError:
    """Return the error of a body: at the time given, else at those of the step."""
    at = plan.where if where is None else where
    return OperatorError(message, hint=hint, operator=plan.task, lower=at, upper=at)


def _is_of_body(error: PySparkException) -> bool:
    """Whether an error of Spark's comes again whenever the body runs."""
    return isinstance(error, _USER_ERRORS) or (error.getSqlState() or "").startswith(_USER_STATES)


def _is_of_storage(text: str) -> bool:
    words = ("PATH_NOT_FOUND", "FAILED_READ_FILE", "FileNotFoundException", "FILE_NOT_EXIST")
    return any(word in text for word in words)


# Writing -----------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """The files that one task of Spark wrote, and what it found."""

    files: list[DataFile] = field(default_factory=list)
    unmet: dict[str, int] = field(default_factory=dict)
    stray: int | None = None  # a time that is none of the step's


def _written(changes: DataFrame, plan: StepPlan) -> StepResult:
    """Write the rows of a step where they are computed."""
    form, collection = plan.form, plan.form.kind == "collection"
    names = form.payload.names
    diffs = [F.col(DIFF)] if collection else []
    timed = AT in changes.columns
    met, at = _met(plan, timed=timed), [F.col(AT)] if timed else []
    chosen = changes
    if met or diffs or at:
        conditions = (each.alias(f"_met_{n}") for n, each in enumerate(met))
        chosen = chosen.select(*map(quoted, names), *diffs, *conditions, *at)
    if not all(map(_PLAIN.fullmatch, names)):
        # `mapInArrow` takes "a.b" for a field of a struct: on the way columns have numbers.
        chosen = chosen.toDF(*(f"c{place}" for place in range(len(names) + len(diffs) + len(met) + len(at))))
    schema = pa.schema(
        [
            *nullable(form.payload),
            *([pa.field(DIFF, pa.int64())] if collection else []),
            *(pa.field(f"_met_{n}", pa.bool_()) for n in range(len(met))),
            *([pa.field(AT, form.domain.types[0].arrow)] if timed else []),
        ]
    )

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = _Part()
        for table in _in_chunks(batches, schema):
            _write_chunk(table, plan, part)
        yield pa.RecordBatch.from_pylist([{"result": pickle.dumps(part)}])

    found = chosen.mapInArrow(for_task(write), RESULTS).collect()
    parts: list[_Part] = [pickle.loads(bytes(row["result"])) for row in found]
    unmet = Counter[str]()
    files = [file for part in parts for file in part.files]
    stray = next((part.stray for part in parts if part.stray is not None), None)
    if stray is not None:
        return StepResult(files, _stray(stray, plan))
    for part in parts:
        unmet.update(part.unmet)
    failed = next((each for each in plan.expectations if each.otherwise == "fail" and unmet.get(each.name)), None)
    return StepResult(files, None if failed is None else _unmet(failed, unmet[failed.name], plan), dict(unmet))


def _met(plan: StepPlan, *, timed: bool = False) -> list[Column]:
    """Return which expectations a row meets. Rows that are taken away were there: nothing is expected of them."""
    comes = f"WHEN {DIFF} < 0 THEN true " if plan.form.kind == "collection" else ""
    return [
        F.expr(f"coalesce(CASE {comes}WHEN {each} THEN true END, false)") for each in _conditions(plan, timed=timed)
    ]


def _conditions(plan: StepPlan, *, timed: bool = False) -> list[str]:
    literal = AT if timed else time_sql(plan.form.domain, plan.time)
    return [at_time(f"({each.condition})", literal) for each in plan.expectations]


def _in_chunks(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Give the rows of a partition in tables of bounded size; none where there is none."""
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        table = conform(pa.Table.from_batches([batch]).rename_columns(schema.names), schema)
        held.append(table)
        size += table.nbytes
        if size >= _MOST_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _write_chunk(table: pa.Table, plan: StepPlan, part: _Part) -> None:
    form = plan.form
    if AT in table.schema.names:
        times = _times_of(table, plan)[:, 0]
        other = ~np.isin(times, np.array(plan.times, np.int64))
        if other.any():
            part.stray = int(times[other][0])
            return
    kept = np.ones(table.num_rows, np.bool_)
    for number, expectation in enumerate(plan.expectations):
        met = np.asarray(table.column(f"_met_{number}").to_numpy(zero_copy_only=False), np.bool_)
        wrong = kept & ~met
        n = int(wrong.sum())
        if n:
            part.unmet[expectation.name] = part.unmet.get(expectation.name, 0) + n
            kept &= met
            if expectation.otherwise == "dead_letter":
                part.files += _write_dead(table.filter(pa.array(wrong)), plan, expectation)
    rows = table.filter(pa.array(kept))
    if rows.num_rows:
        part.files += _write_rows(rows, plan, form.payload.names)


def _write_rows(rows: pa.Table, plan: StepPlan, names: Sequence[str]) -> list[DataFile]:
    form = plan.form
    times = _times_of(rows, plan)
    payload = conform(rows.select(list(names)), form.payload)
    diffs = np.asarray(rows.column(DIFF).to_numpy(), np.int64) if form.kind == "collection" else None
    return write_messages(payload, times, diffs, plan)


def write_messages(payload: pa.Table, times: IntArray, diffs: IntArray | None, plan: StepPlan) -> list[DataFile]:
    """Write what a step gives into files of its output."""
    messages = message_table(plan.form, payload, times, plan.stream, plan.seq, diffs)
    return write_data_files(
        plan.storage,
        messages,
        times,
        stream=plan.stream,
        seq=plan.seq,
        domain=plan.form.domain,
        job=plan.job,
        digest_within=OF_TASK,
    )


def _times_of(rows: pa.Table, plan: StepPlan) -> IntArray:
    """Return the times of rows, shape (n, 1)."""
    if AT in rows.schema.names:
        return plan.form.domain.from_columns(rows, [AT])
    return np.full((rows.num_rows, 1), plan.time, np.int64)


def _write_dead(rows: pa.Table, plan: StepPlan, expectation: Expectation) -> list[DataFile]:
    """Write rows that do not meet an expectation apart, with the reason."""
    form, n = plan.form, rows.num_rows
    times = _times_of(rows, plan)
    payload = conform(rows.select(form.payload.names), form.payload)
    diffs = np.ones(n, np.int64) if form.kind == "collection" else None
    why = f"task {plan.task}: does not meet {expectation.name}: {expectation.condition}"
    table = letter_table(form, payload, times, plan.stream, plan.seq, diffs, reasons=why)
    return write_data_files(
        plan.storage, table, times, stream=plan.stream, seq=plan.seq,
        domain=form.domain, event="dead", job=plan.job,
    )  # fmt: skip


def _stray(time: int, plan: StepPlan) -> OperatorError:
    at = plan.form.domain.render_time((time,))
    found = f"{attempt_of(plan)}: found a row at {at}, where nothing is to be written"
    hint = "give each row the time of the rows of inputs that it is made from"
    return operator_error(plan, found, hint)


def _unmet(expectation: Expectation, n: int, plan: StepPlan) -> OperatorError:
    unmet = f"{n} rows that do not meet expectation {expectation.name!r}: {expectation.condition}"
    found = f"{attempt_of(plan)}: found {unmet}"
    hint = "correct the data or the condition, or say what becomes of such rows: 'drop' or 'dead_letter'"
    return operator_error(plan, found, hint)
