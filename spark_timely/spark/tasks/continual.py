"""`ContinualTask`: a continual task as users define, start, watch and drop it.

It is `spark_timely.ContinualTask`; compute instances make theirs of it too. A task runs a *body*, SQL or a function, at
each time at which its inputs change. It is a dataflow with one output that the body makes: it is started, stopped and
watched as one, and shares a query with others. Steps are decided in `spark_timely.continual`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import pyarrow as pa
from pyspark.errors import PySparkException

from spark_timely.continual.body import (
    JUDGED,
    OUTPUT,
    SqlBody,
    Statement,
    check_aliases,
    check_columns,
    checked_condition,
    judged,
    retain_body,
    transform_body,
    unknown_functions,
)
from spark_timely.continual.engine import (
    AsOf,
    TaskEngine,
    TaskPlan,
    check_roles,
    consumer_of,
    held_back_by,
    source_plan,
)
from spark_timely.continual.many_times import ManyBody, many_times
from spark_timely.continual.names import check_names
from spark_timely.continual.plan import (
    Deletes,
    Expectation,
    Newest,
    Shown,
    SourcePlan,
    StepPlan,
    TaskSource,
    deletes,
    newest,
)
from spark_timely.dataflow.body import Body
from spark_timely.dataflow.fingerprint import FINGERPRINT
from spark_timely.dataflow.kept_logs import KEPT
from spark_timely.dataflow.logs import Sink
from spark_timely.dataflow.views import Replay, View, least_time
from spark_timely.errors import InvalidUsageError, LogMissingError, SchemaMismatchError, TimelyError, shown
from spark_timely.log import Log
from spark_timely.log.files.format import LogFormat
from spark_timely.log.log import MemoryLog, open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import normal_path
from spark_timely.log.store.urls import same_place
from spark_timely.log.timestamp import numbered_by
from spark_timely.masking import masked_logger
from spark_timely.spark.base.compat import built_in_functions
from spark_timely.spark.dataflows.dataflow import Dataflow, TaskPart
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.spark.frames.contents import StepViews
from spark_timely.spark.tasks.arrow_bodies import MAX_BYTES, ArrowBodies, ArrowBody
from spark_timely.spark.tasks.bodies import FunctionBody, SessionSettings, SparkBodies
from spark_timely.spark.tasks.upsert import upsert_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.log.files.format import LogKind
    from spark_timely.spark.dataflows.dataflow import DataflowQuery
    from spark_timely.spark.tasks.bodies import Function
    from spark_timely.time.domain import TimeLike

__all__ = ["ContinualTask", "Deletes", "Difference", "Newest", "deletes", "newest"]

_log = masked_logger("spark_timely.continual")

_OTHERWISE: Final = ("fail", "drop", "dead_letter")


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference at a time between what a body gives and what the output has.

    Attributes
    ----------
    time : object
    surplus : int
        Rows that the body gives and the output has not; of a collection updates.
    missing : int
        Rows that the output has and the body does not give.
    """

    time: object
    surplus: int
    missing: int


class ContinualTask(Dataflow):
    """A body that runs at each time at which an input has inserts, and writes what it gives at that time.

    Its inputs are shown as what they gain at that time, its references as what they contain as of it. A reference that
    changes later changes nothing that was written. The output belongs to the task.

    Parameters
    ----------
    name : str
        Owns the output; the same whenever the task is started, in all its replicas, and no other task's.
    inputs : mapping of str to path, Log or `deletes`
        By the name that the body has for it.
    references : mapping of str to path, Log or `newest`, optional
        A log may be an input and a reference. The task's own output is there without being named, as ``output``: what
        it held before the time.
    body : str or callable
        Spark SQL of one or several statements: ``SELECT …``, ``INSERT INTO output …``, ``DELETE FROM output …``, each
        of which sees what those before it change; ``:time`` is the time. Or a function of (inputs, references, time),
        and of output if it reads that, which gives a DataFrame or `Changes`.
    output : path
        Of a log. It is made if it is not there: a stream log, or a collection if the body deletes.
    version : str, optional
        Of a function, which must have one: another version is another body.
    as_of : time, "earliest" or "latest"
        When the task begins, at its first start. ``earliest`` skips nothing that the logs have not forgotten, and
        ``latest`` everything that is complete by then. Nothing that is written at that time is reacted to.
    snapshot : bool
        Whether the inputs' contents at that time go through the body, and are written there.
    expect : mapping of str to str or (str, str), optional
        Conditions on the rows of the result, by name: SQL over the output's columns, and what becomes of a row for
        which it does not hold: ``"fail"`` (unless given), ``"drop"`` or ``"dead_letter"``.
    deletes : bool
        Whether a function may give rows to delete. SQL says so itself.
    arrow : bool
        Whether a function gets and gives `pyarrow.Table` in place of DataFrames: one task of Spark's runs it, so that a
        small step costs little more than an empty job. Many times that wait are run in one job, one call for each.
    max_bytes : int, optional
        With `arrow`, bytes of decoded rows that a step may hold: 1 GiB unless given. More is refused.
    schema : pyarrow.Schema, optional
        Columns of the output, where it is not there and the body cannot be asked for them: a function is called with
        empty DataFrames to find out.
    forgotten : bool
        Whether contents of a stream log that has forgotten messages are those that it has left.
    many_times : bool
        Of a function: whether it is given many times together. Its DataFrames have the times with them: inputs have the
        log's column of times, references ``_from`` and ``_to``, the times from which and before which a row is there,
        null for ever. It gives each row with its time, and gets a tuple of all times. Of SQL the text decides.
    functions : sequence of str
        Functions of the session that SQL may call: they must give the same whenever they are called.
    replaces : str, optional
        Identity of the body that wrote the output up to now, where this one is to continue, as the error says it.
    checkpoint : str, optional
        Checkpoint location of the query; in the output's folder unless given. A replica needs one of its own.
    storage_options : mapping of str to str, optional
        Settings and credentials for cloud URLs, for all logs that are given by their path.
    credential : str, optional
        As of `Dataflow.replay`, for all logs that are given by their path.

    Notes
    -----
    A body must give the same rows whenever it is run: it is run again after a lost race. What depends on the order of
    rows (``first``, ``collect_list`` without order) does not.

    Examples
    --------
    ::

        task = spark_timely.ContinualTask(
            "enrich",
            inputs={"orders": "/data/orders"},
            references={"rates": "/data/rates"},
            body="SELECT o.id, o.amount * r.rate AS eur FROM orders o JOIN rates r USING (currency)",
            output="/data/eur",
        )
        task.start(spark, trigger="availableNow").await_termination()
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, str | os.PathLike[str] | Log | Deletes],
        references: Mapping[str, str | os.PathLike[str] | Log | Newest] | None = None,
        body: str | Function,
        output: str | os.PathLike[str],
        version: str | None = None,
        many_times: bool = False,
        as_of: TimeLike | Literal["earliest", "latest"] = "earliest",
        snapshot: bool = False,
        expect: Mapping[str, str | tuple[str, str]] | None = None,
        deletes: bool = False,
        arrow: bool = False,
        max_bytes: int | None = None,
        schema: pa.Schema | None = None,
        forgotten: bool = False,
        functions: Sequence[str] = (),
        replaces: str | None = None,
        checkpoint: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        credential: str | None = None,
    ) -> None:
        _check_name(name)
        path = normal_path(output)
        # Spark knows a query by its checkpoint: tasks that write into one log have one each.
        place = hashlib.sha256(name.encode()).hexdigest()[:16]
        super().__init__(name, checkpoint=checkpoint or f"{path.rstrip('/')}/{KEPT}/task-{place}")
        self.output = path
        self._functions, self._replaces, self._given_schema = tuple(functions), replaces, schema
        self._attempt = f"could not begin task {name!r}"
        if replaces is not None and not (isinstance(replaces, str) and FINGERPRINT.fullmatch(replaces)):
            msg = f"{self._attempt}: found replaces={shown(replaces)}"
            raise InvalidUsageError(msg, hint="give the identity as the error or explain() shows it: '1:…'")
        references = references or {}
        check_aliases(name, list(inputs), list(references))
        given: dict[str, tuple[str | os.PathLike[str] | Log, Shown]] = {}
        for alias, log in inputs.items():
            given[alias] = (log.log, "deletes") if isinstance(log, Deletes) else (log, "inserts")
        self._own_names = [OUTPUT]
        for alias, reference in references.items():
            how: Shown = "newest" if isinstance(reference, Newest) else "contents"
            log = reference.log if isinstance(reference, Newest) else reference
            at = log.path if isinstance(log, Log) else normal_path(log)
            if same_place(at, path, storage_options):
                self._own_names.append(alias)
            else:
                given[alias] = (log, how)
        self._body = self._parsed(body, version, inputs, references, deletes=deletes, many_times=many_times)
        if arrow or max_bytes is not None:
            self._body = self._of_tables(max_bytes, expect, arrow=arrow)
        self._version = version
        leaves: list[Replay] = []
        sources = []
        for alias, (log, how) in given.items():
            options = {} if isinstance(log, Log) else {"storage_options": storage_options, "credential": credential}
            leaf = self.replay(log, **options).view  # type: ignore[arg-type]
            assert isinstance(leaf, Replay)
            if same_place(leaf.path, path, storage_options):
                msg = f"{self._attempt}: found its output {path!r} as input {alias!r}"
                raise InvalidUsageError(
                    msg, hint="name other logs as inputs; a body reads the task's own output by the name 'output'"
                )
            if leaf.domain.arity != 1:
                types = [kind.value for kind in leaf.domain.types]
                msg = f"{self._attempt}: found times {shown(types)} of several coordinates in log {leaf.path!r}"
                raise InvalidUsageError(msg, hint="give logs whose times have one coordinate")
            sources.append(TaskSource(alias, leaf.path, how))
            leaves.append(leaf)
        self.leaves = leaves
        self._many, self._alone = self._together(sources)
        self.storage.setdefault(path, self._options(name, path, credential, storage_options))
        self._keep_name(path, credential, storage_options)
        self._expected_functions: set[str] = set()
        self.plan = TaskPlan(
            name,
            tuple(sources),
            self._reads_output(),
            self._as_of(as_of),
            bool(snapshot),
            bool(forgotten),
            expectations=self._expectations(expect),
            together=isinstance(self._body, ArrowBody),
        )
        # Statements that read the output, whose columns are known when the task starts.
        self._unchecked = self._check_columns(self._body.statements) if isinstance(self._body, SqlBody) else ()

    @classmethod
    def transform(
        cls,
        name: str,
        *,
        input: str | os.PathLike[str] | Log,
        output: str | os.PathLike[str],
        query: str,
        references: Mapping[str, str | os.PathLike[str] | Log] | None = None,
        **options: Any,  # noqa: ANN401 - those of ContinualTask
    ) -> ContinualTask:
        """Return a task that writes what a query gives of its input, which the query has as ``input``.

        Examples
        --------
        ::

            ContinualTask.transform("late", input=flights, output=late, query="SELECT * FROM input WHERE delay > 15")
        """
        body = transform_body(query)
        return cls(name, inputs={"input": input}, references=references, body=body, output=output, **options)

    @classmethod
    def retain(
        cls,
        name: str,
        *,
        input: str | os.PathLike[str] | Log,
        output: str | os.PathLike[str],
        expr: str,
        **options: Any,  # noqa: ANN401 - those of ContinualTask
    ) -> ContinualTask:
        """Return a task that keeps the rows of its input for which a condition holds, as long as it holds.

        It is looked at when the input gains rows: those for which it holds are added, and what is there and for which
        it does not hold any more is deleted. ``:time`` is the time at which it is looked at.

        Examples
        --------
        ::

            ContinualTask.retain("week", input=events, output=week, expr="at > :time - INTERVAL 7 DAYS")
        """
        return cls(name, inputs={"input": input}, body=retain_body(expr, "input"), output=output, **options)

    @staticmethod
    def upsert(
        name: str,
        *,
        input: str | os.PathLike[str] | Log,
        output: str | os.PathLike[str],
        keys: str | Sequence[str],
        sequence_by: str | Sequence[str],
        **options: Any,  # noqa: ANN401 - those of Stream.upsert
    ) -> Dataflow:
        """Return a dataflow that applies a log of changes to a table, by the key and sequence that they name.

        It is started, stopped and watched as a task is, also beside others; many times are one job. The output is a
        collection: the rows that are current, or with ``history=True`` all versions. What is kept of deleted keys is in
        a log of its own inside of the output's folder, and in none of the output's contents.

        Parameters
        ----------
        name : str
            Owns the output, as of a `Dataflow`.
        input : path or Log
            A stream log of changes.
        output : path
        keys, sequence_by : str or sequence of str
        **options
            ``delete_when``, ``truncate_when``, ``columns``, ``except_columns``, ``ignore_null_updates``, ``history``
            and ``tombstones``, as of `Stream.upsert`; ``checkpoint``, ``storage_options`` and ``credential``.

        Examples
        --------
        ::

            orders = ContinualTask.upsert(
                "orders", input=changes, output="/data/orders", keys="id", sequence_by="changed", delete_when="op = 'D'"
            )
            orders.start(spark, trigger="availableNow").await_termination()
        """
        return upsert_task(name, input=input, output=output, keys=keys, sequence_by=sequence_by, **options)

    # What the constructor is given -----------------------------------------------------------------------

    def _parsed(
        self,
        body: str | Function,
        version: str | None,
        inputs: Mapping[str, object],
        references: Mapping[str, object],
        *,
        deletes: bool,
        many_times: bool,
    ) -> SqlBody | FunctionBody:
        if isinstance(body, str):
            if version is not None or deletes or many_times:
                extra = {"version": version, "deletes": deletes or None, "many_times": many_times or None}
                found = next(f"{name}={shown(value)}" for name, value in extra.items() if value is not None)
                msg = f"{self._attempt}: found {found} beside a body in SQL"
                raise InvalidUsageError(msg, hint="leave it out: the text says it")
            return SqlBody.parse(body, task=self.name, inputs=list(inputs), references=list(references))
        if not callable(body):
            msg = f"{self._attempt}: found body={shown(body)}"
            raise InvalidUsageError(msg, hint="give SQL, or a function of (inputs, references, time, output)")
        if not isinstance(version, str) or not version.strip():
            msg = f"{self._attempt}: found a function as body, and version={shown(version)}"
            raise InvalidUsageError(
                msg, hint="give version='1', and another one whenever the function gives other rows"
            )
        takes = _positional(body)
        if takes not in (3, 4):
            msg = f"{self._attempt}: found a function of {takes} values as body"
            raise InvalidUsageError(msg, hint="take (inputs, references, time), and output as a fourth if it is read")
        if many_times and (deletes or takes == 4):
            found = "deletes=True" if deletes else "a function that takes the output"
            msg = f"{self._attempt}: found {found} beside many_times=True"
            raise InvalidUsageError(msg, hint="leave out many_times: what reads the output runs time after time")
        return FunctionBody(body, tuple(inputs), tuple(references), deletes, takes == 4, many_times)

    def _together(self, sources: Sequence[TaskSource]) -> tuple[ManyBody | None, str]:
        """Return the body for many times together, of SQL, or why there is none."""
        if isinstance(self._body, ArrowBody):
            return None, "its function of tables is called for each time, in one job"
        if self._reads_output():
            return None, "it reads the output as the time before left it"
        if isinstance(self._body, FunctionBody):
            if self._body.many_times:
                self._check_reserved(sources)
            return None, "" if self._body.many_times else "it is a function without many_times=True"
        if any(name.lower().startswith("__timely") for leaf in self.leaves for name in leaf.schema.names):
            return None, "a column of its logs has a name with __timely"
        found = many_times(self._body, inputs=[each.alias for each in sources if each.is_input])
        return (None, found) if isinstance(found, str) else (found, "")

    def _check_reserved(self, sources: Sequence[TaskSource]) -> None:
        """Refuse references that have columns of the names that a function of many times gets beside them."""
        for source, leaf in zip(sources, self.leaves, strict=True):
            taken = [name for name in leaf.schema.names if name.lower() in ("_from", "_to")]
            if taken and not source.is_input:
                msg = f"{self._attempt}: found column {taken[0]!r} in reference {source.alias!r} beside many_times=True"
                raise InvalidUsageError(msg, hint="rename it: _from and _to are the times between which a row is there")

    def _of_tables(self, max_bytes: object, expect: object, *, arrow: bool) -> ArrowBody:
        """Return the function as one of Arrow tables."""
        body = self._body
        if not arrow:
            msg = f"{self._attempt}: found max_bytes={shown(max_bytes)} without arrow=True"
            raise InvalidUsageError(msg, hint="leave it out: Spark's own settings say what its jobs may hold")
        if not isinstance(body, FunctionBody):
            msg = f"{self._attempt}: found arrow=True beside a body in SQL"
            raise InvalidUsageError(msg, hint="give a function of tables, or leave it out")
        if body.many_times:
            msg = f"{self._attempt}: found many_times=True beside arrow=True"
            raise InvalidUsageError(msg, hint="leave it out: the function is called for each time, in one job")
        if expect:
            msg = f"{self._attempt}: found arrow=True and expect={shown(expect)}, whose conditions are Spark's SQL"
            raise InvalidUsageError(msg, hint="check the rows in the function, or leave arrow=True out")
        if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1):
            msg = f"{self._attempt}: found max_bytes={shown(max_bytes)}"
            raise InvalidUsageError(msg, hint="give a number of bytes from 1 on")
        most = MAX_BYTES if max_bytes is None else max_bytes
        return ArrowBody(body.function, body.inputs, body.references, body.deletes, body.reads_output, max_bytes=most)

    def _reads_output(self) -> bool:
        if isinstance(self._body, FunctionBody):
            # What is deleted is looked for in it.
            return self._body.reads_output or self._body.deletes
        own = set(self._own_names)
        return self._body.reads_output or any(own & set(each.reads) for each in self._body.statements)

    def _as_of(self, given: object) -> AsOf:
        if given == "earliest":
            return "earliest"
        if given == "latest":
            return "latest"
        domain = self.leaves[0].domain
        (at,) = domain.parse_time(given)
        if domain.successor((at,)) is None:
            msg = f"{self._attempt}: found as_of={shown(given)}, after which there is no time"
            raise InvalidUsageError(msg, hint="begin at an earlier time: the task writes after it")
        return at

    def _expectations(self, given: Mapping[str, str | tuple[str, str]] | None) -> tuple[Expectation, ...]:
        found = []
        for name, each in (given or {}).items():
            condition, otherwise = (each, "fail") if isinstance(each, str) else each
            if not isinstance(condition, str) or not condition.strip() or otherwise not in _OTHERWISE:
                msg = f"{self._attempt}: found expect[{name!r}]={shown(each)}"
                raise InvalidUsageError(
                    msg, hint="give a condition in SQL, or (condition, 'fail' | 'drop' | 'dead_letter')"
                )
            text, functions = checked_condition(condition, task=self.name, name=str(name))
            self._expected_functions.update(functions)
            found.append(Expectation(str(name), text, otherwise))  # type: ignore[arg-type]
        return tuple(found)

    @property
    def takes_rows_away(self) -> bool:
        """Whether the body deletes, so that its output is a collection."""
        return self._body.deletes

    @property
    def _body_identity(self) -> str:
        if isinstance(self._body, SqlBody):
            return f"sql {self._body.identity}"
        kind = "arrow function" if isinstance(self._body, ArrowBody) else "function"
        return f"{kind} {self._version}"

    @property
    def _text(self) -> str:
        if isinstance(self._body, SqlBody):
            return "; ".join(" ".join(each.text.split()) for each in self._body.statements)
        return f"function of version {self._version!r}"

    @property
    def _view_identity(self) -> str:
        """Tell this body from any other: what it says, which log has which name, and what is expected."""
        roles = [[each.alias, each.shown] for each in self.plan.sources]
        met = [[each.name, each.condition, each.otherwise] for each in self.plan.expectations]
        return json.dumps([self._body_identity, roles, sorted(self._own_names), met, self.takes_rows_away])

    # Starting ------------------------------------------------------------------------------------------

    def start(
        self,
        spark: SparkSession,
        /,
        *,
        up_to: TimeLike | None = None,
        read_only: bool = False,
        resume: Literal["latest"] | None = None,
        **options: Any,  # noqa: ANN401 - those of Dataflow.start
    ) -> DataflowQuery:
        """Start the streaming query that runs the task: see `Dataflow.start`, which says what else may be given.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            Classic or Connect. The first start records its settings that answers depend on; later ones use those.
        up_to : time, optional
            The task writes at times before this one, and then waits.
        read_only : bool
            Whether the task follows and writes nothing, until `allow_writes`.
        resume : "latest", optional
            Skip what a log has forgotten of what the task needs, up to the last complete time. The output's note says
            which times were skipped.

        Returns
        -------
        DataflowQuery
        """
        domain = self.leaves[0].domain
        if resume not in (None, "latest"):
            msg = f"could not start task {self.name!r}: found resume={shown(resume)}"
            raise InvalidUsageError(msg, hint="say resume='latest', or nothing")
        self.plan = replace(
            self.plan,
            until=None if up_to is None else domain.parse_time(up_to)[0],
            read_only=bool(read_only),
            skips=resume == "latest",
        )
        return super().start(spark, **options)

    def prepare(self, spark: SparkSession) -> Mapping[str, Log]:
        """Find out what the body gives, and refuse what cannot run, before anything is made; return opened logs."""
        self._settle_options(spark)
        self._check_functions(spark)
        log = self._existing()
        recorded = None if log is None else self._recorded(log)
        session = SessionSettings(spark)
        settings = session.found() if recorded is None else recorded
        self.plan = replace(self.plan, settings=settings)
        wanted = log.schema if log is not None else self._given_schema
        kind = log.kind if log is not None else ("collection" if self.takes_rows_away else "stream")
        if self.takes_rows_away and kind == "stream":
            msg = f"could not start task {self.name!r}: found stream log {self.output!r} for a body that deletes"
            raise SchemaMismatchError(msg, hint="write into a collection log: a stream log takes no row back")
        with session.under(settings, self.name):
            schema = self._analysed(spark, wanted)
        domain = self.leaves[0].domain
        body = Body(self._view_identity, deletes=kind == "collection", text=self._text)
        view = View(self.name, domain, schema, tuple(self.leaves), operator=body)
        sink = Sink(self.name, view, self.output, "main", f"task {self.name}", self._replaces)
        opened = self._opened()
        self._warn_of_batches(opened)
        if log is not None:
            opened[self.output] = log
        check_roles(self.plan, sink, opened)
        self.sinks = [sink]
        return opened

    def _opened(self) -> dict[str, Log]:
        paths = dict.fromkeys(each.path for each in self.plan.sources)
        return {path: open_log(path, storage_options=self.storage[path] or None) for path in paths}

    def check_started(self, logs: Mapping[str, Log]) -> None:
        """Refuse logs that a task cannot be made from, by their ids."""
        (sink,) = self.sinks
        check_roles(self.plan, sink, logs)

    def task(self) -> TaskPart:
        """Return what runs the body."""
        return TaskPart(self.plan, self._body, tuple(self._own_names), self._many)

    def drop_kept(self) -> None:
        """Let go of what the task retains."""
        self.drop()

    def _existing(self) -> Log | None:
        try:
            return open_log(self.output, storage_options=self.storage[self.output] or None)
        except LogMissingError:
            return None

    def _recorded(self, log: Log) -> dict[str, str] | None:
        state = log.core.stream("main")
        if state is None or state.owner != f"task {self.name}" or state.note.output is None:
            return None
        task = state.note.output.task
        return None if task is None else dict(task.settings)

    def _check_functions(self, spark: SparkSession) -> None:
        called = set(self._body.functions if isinstance(self._body, SqlBody) else ()) | self._expected_functions
        if not called:
            return
        unknown = unknown_functions(called, built_in_functions(spark), self._functions)
        if unknown:
            msg = f"could not start task {self.name!r}: found function {unknown[0]!r}, which is none of Spark's"
            raise InvalidUsageError(
                msg,
                hint=f"say functions=[{unknown[0]!r}] if it gives the same whenever it is called, or use a function as"
                " body",
            )

    def _check_columns(self, statements: Sequence[Statement], output: pa.Schema | None = None) -> tuple[Statement, ...]:
        """Refuse names that are no columns; return statements that read the output, if it is not known."""
        columns = {source.alias: leaf.schema.names for source, leaf in zip(self.plan.sources, self.leaves, strict=True)}
        if output is not None:
            columns |= dict.fromkeys(self._own_names, output.names)
        return check_columns(statements, columns, attempt=f"begin task {self.name!r}")

    def _analysed(self, spark: SparkSession, wanted: pa.Schema | None) -> pa.Schema:
        """Return the columns of the output: those of its log, to which the body must fit, or what the body gives."""
        bodies = self._bodies(spark)
        if isinstance(bodies, ArrowBodies):
            return bodies.columns(_empty_plan(self, None)) if wanted is None else wanted
        try:
            with StepViews(spark) as views:
                found = bodies.columns(_empty_plan(self, None), views) if wanted is None else wanted
                # Before Spark, which takes a name that is no column for a variable of this session.
                self._check_output_names(found)
                plan = _empty_plan(self, found)
                bodies.check(plan, views)
                if self._many is not None:
                    self._alone = bodies.why_not_together(plan, views)
            spread = frozenset[str]()
            if self._many is not None and not self._alone:
                places = [place for each in self._many.statements for place in each.places]
                spread = frozenset(place.alias for place in places if place.shown == "spread")
            self.plan = replace(self.plan, together=not self._alone, spread=spread)
        except PySparkException as error:
            line = str(error).strip().partition("\n")[0]
            msg = f"could not start task {self.name!r}: found a body that Spark refuses: {line}"
            raise InvalidUsageError(msg, hint="correct the body, or the columns of its logs") from error
        return found

    def _check_output_names(self, output: pa.Schema) -> None:
        """Refuse names that are no columns, where statements read the output and where something is expected of it."""
        self._check_columns(self._unchecked, output)
        for each in self.plan.expectations:
            attempt = f"begin task {self.name!r} with expectation {each.name!r}"
            check_names(judged(each.condition), {JUDGED: output.names}, attempt=attempt, text=each.condition)

    def _bodies(self, spark: SparkSession) -> SparkBodies | ArrowBodies:
        if isinstance(self._body, ArrowBody):
            return ArrowBodies(spark, self._body, self._own_names)
        return self._bodies_of(spark)

    def _bodies_of(self, spark: SparkSession) -> SparkBodies:
        return SparkBodies(spark, self._body, SessionSettings(spark), self._own_names, self._many)

    def _warn_of_batches(self, logs: Mapping[str, Log]) -> None:
        """Warn of logs whose times number micro-batches of different queries: these mean nothing to each other."""
        found = {path: numbered_by(log) for path, log in logs.items()}
        owners = {path: owner for path, owner in found.items() if owner}
        if len(set(owners.values())) > 1:
            _log.warning(
                "task %r reads logs whose times number the micro-batches of different queries, which mean nothing to"
                " each other: %s", self.name, ", ".join(map(repr, owners)),
            )  # fmt: skip

    # Looking ahead, and back ------------------------------------------------------------------------------

    def dry_run(self, spark: SparkSession, /) -> DataFrame | None:
        """Return what the task would write next, and write nothing; None where nothing waits.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession

        Returns
        -------
        pyspark.sql.DataFrame or None
            Columns of the output, of a collection with ``_diff``; the time comes first. It is computed once, here.
        """
        plan, bodies = self._engine_for(spark).next_step(), self._bodies(spark)
        return None if plan is None else bodies.preview(plan)

    def compare(self, spark: SparkSession, /, *, last: int = 10) -> list[Difference]:
        """Compare what this body gives with what the output has, at the last times that were written.

        Begin an upgrade so: make the task with the new body and ``replaces=``, compare it beside the old one, and
        start it once the differences are those that you want.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        last : int
            How many times.

        Returns
        -------
        list of Difference
            One for each time at which they differ, the oldest first.

        Notes
        -----
        Cost: two jobs per time. Times that a log has forgotten are left out.
        """
        if isinstance(last, bool) or not isinstance(last, int) or last < 1:
            msg = f"could not compare task {self.name!r}: found last={shown(last)}"
            raise InvalidUsageError(msg, hint="give a number of times from 1 on")
        bodies = self._bodies(spark)
        found = []
        for plan in self._engine_for(spark).steps_before(last):
            surplus, missing = bodies.compared(plan, self._written_at(plan))
            if surplus or missing:
                found.append(Difference(self.leaves[0].domain.render_time((plan.time,)), surplus, missing))
        return found

    def compare_together(self, spark: SparkSession, /, *, most: int = 50) -> Difference | None:
        """Compare what the body gives at many times together with what it gives at each of them alone.

        The text of a body says whether it may be evaluated at many times together. That the results are equal is
        believed here, and can be checked: with data that has nulls, times without rows, and references that change.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        most : int
            How many times at most: those that wait to be written, or the last ones that were.

        Returns
        -------
        Difference or None
            Of the first time at which they differ: ``surplus`` is there together only, ``missing`` alone only.

        Raises
        ------
        InvalidUsageError
            If the body is evaluated at one time after another, or no time is there to compare.

        Notes
        -----
        Cost: one job over all rows, whose plan grows with the number of times. See also
        `spark_timely.testing.assert_same_together`.
        """
        attempt = f"could not compare task {self.name!r}"
        if isinstance(most, bool) or not isinstance(most, int) or most < 2:
            msg = f"{attempt}: found most={shown(most)}"
            raise InvalidUsageError(msg, hint="give a number of times from 2 on")
        steps = None if self._alone else self._engine_for(spark).both_ways(most)
        if self._alone:  # by its text, or by what Spark said of the text for many times
            msg = f"{attempt}: found a body that is evaluated at one time after another: {self._alone}"
            raise InvalidUsageError(msg, hint="there is no other way to compare it with")
        if steps is None or not steps[0].together:
            msg = f"{attempt}: found fewer than two times"
            raise InvalidUsageError(msg, hint="compare once its inputs have rows at several complete times")
        found = self._bodies_of(spark).both_ways(*steps)
        if found is None:
            return None
        time, surplus, missing = found
        return Difference(self.leaves[0].domain.render_time((time,)), surplus, missing)

    def _engine_for(self, spark: SparkSession) -> TaskEngine:
        """Return an engine that writes nothing; where there is no output yet it has one in memory."""
        opened = dict(self.prepare(spark))
        (sink,) = self.sinks
        log = opened.get(sink.path)
        if log is None:
            view = sink.view
            log = MemoryLog.create(
                view.schema, times=[each.value for each in view.domain.types], minimum=least_time(view),
                kind=view.rows_kind,
            )  # fmt: skip
        if log.core.stream(sink.stream) is None:
            memory = MemoryLog.create(
                log.schema, times=[each.value for each in log.domain.types], minimum=log.domain.minimum, kind=log.kind
            )
            memory.core.open_stream(sink.stream, owner=sink.owner)
            log = memory
        opened[sink.path] = log
        return TaskEngine(
            replace(self.plan, read_only=True), sink, opened, files_of=catalog_of,
            evaluator=lambda: self._bodies(spark),
        )  # fmt: skip

    def _written_at(self, plan: StepPlan) -> SourcePlan:
        """Return what the output has at the time of a step."""
        log = open_log(self.output, storage_options=self.storage[self.output] or None)
        storage = open_storage(self.output, self.storage[self.output] or None)
        source = TaskSource(OUTPUT, self.output, "inserts")
        return source_plan(source, log, catalog_of(log)(), storage, plan.time, plan.time + 1)

    # Seeing --------------------------------------------------------------------------------------------

    @property
    def consumer_names(self) -> list[tuple[str, str]]:
        """Logs that the task retains, and under which name."""
        log = self._existing()
        if log is None:
            return []
        view = View(self.name, log.domain, log.schema, operator=Body())
        sink = Sink(self.name, view, self.output, "main", f"task {self.name}")
        name = consumer_of(sink, log.core.log_id)
        paths = [each.path for each in self.plan.sources]
        return [(path, name) for path in dict.fromkeys([*paths, self.output])]

    def drop(self) -> None:
        """Let go of what the task retains: it is not to be started again. Its output stays as it is.

        Stop its queries first.
        """
        for path, name in self.consumer_names:
            log = open_log(path, storage_options=self.storage[path] or None)
            if name in log.retainers():
                log.release(name)

    def why(self, time: TimeLike, /) -> str:
        """Say why the output has not passed a time: which source has not, or which write is still to come.

        Parameters
        ----------
        time : time
        """
        domain = self.leaves[0].domain
        (at,) = domain.parse_time(time)
        log = self._existing()
        shown_at = domain.render_time((at,))
        if log is None or log.core.stream("main") is None:
            return f"task {self.name!r} has not begun"
        upper = log.frontier()
        if not upper.less_equal(at):
            return f"the output has passed {shown_at}: it is at {domain.render_frontier(upper)}"
        opened = {
            each.path: open_log(each.path, storage_options=self.storage[each.path] or None)
            for each in self.plan.sources
        }
        frontiers = {path: each.frontier() for path, each in opened.items()}
        lines = [f"the output is at {domain.render_frontier(upper)}, not past {shown_at}"]
        state = log.core.stream("main")
        failure = None if state is None or state.note.output is None else state.note.output.failure
        if failure is not None:
            lines.append(f"  it stopped: {failure.message}")
        for source in held_back_by(self.plan, frontiers, at):
            role = "reference" if not source.is_input else "input"
            holders = [
                f"stream {name!r} of {held.owner!r} at {domain.render_frontier(held.frontier)}"
                for name, held in opened[source.path].streams().items()
                if held.frontier.less_equal(at)
            ]
            where = domain.render_frontier(frontiers[source.path])
            lines.append(f"  {role} {source.alias!r} is at {where}: {'; '.join(holders) or 'an unclaimed capability'}")
        if len(lines) == 1:
            lines.append("  all sources have passed it: the task is to run")
        return "\n".join(lines)

    def explain(self) -> str:
        """Return what the task reads and writes, how far each is, how it began, and what it retains. Reads the logs."""
        domain = self.leaves[0].domain
        log = self._existing()
        lines = [f"task {self.name!r} into {self.output!r}"]
        if isinstance(self._body, SqlBody):
            lines += [f"  {each.kind}: {' '.join(each.text.split())}" for each in self._body.statements]
        else:
            lines.append(f"  function, version {self._version!r}")
        how = f"one time after another: {self._alone}" if self._alone else "many times together"
        lines.append(f"  evaluated at {how}")
        for source in self.plan.sources:
            try:
                read = open_log(source.path, storage_options=self.storage[source.path] or None)
                where = domain.render_frontier(read.frontier())
            except TimelyError as error:
                where = f"not to be read: {error.message}"
            lines.append(f"  {source.alias}: {source.shown} of {source.path!r}, at {where}")
        state = None if log is None else log.core.stream("main")
        note = None if state is None else state.note.output
        if log is None or note is None or note.task is None:
            return "\n".join([*lines, "  has not begun"])
        began = "before all times" if note.task.as_of is None else domain.render_time((note.task.as_of,))
        lines.append(
            f"  output at {domain.render_frontier(log.frontier())}; began {began}, snapshot={note.task.snapshot}"
        )
        lines.append(f"  identity {note.plan}")
        for first, last in note.task.gaps:
            start = "the beginning" if first is None else domain.render_time((first,))
            lines.append(f"  skipped from {start} to before {domain.render_time((last,))}")
        if note.failure is not None:
            lines.append(f"  stopped: {note.failure.message}")
        return "\n".join(lines)


def _positional(function: Function) -> int:
    """Return how many values a function takes by their places; four where that is not known."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 4
    if any(each.kind is each.VAR_POSITIONAL for each in found):
        return 4
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in found)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        msg = f"could not begin a task: found name={shown(name)}"
        raise InvalidUsageError(msg, hint="give it a name, the same whenever it is started")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        msg = f"could not begin a task: found name={shown(name)}, which is no text in UTF-8"
        raise InvalidUsageError(msg, hint="give it another name") from error


def _empty_plan(task: ContinualTask, schema: pa.Schema | None) -> StepPlan:
    """Return a step over empty logs, to have a body analysed."""
    domain = task.leaves[0].domain
    own_schema = pa.schema([]) if schema is None else schema
    kind: LogKind = "collection" if task.takes_rows_away else "stream"
    form = LogFormat.build(own_schema, times=[each.value for each in domain.types], kind=kind)
    storage = cast("Any", None)  # nothing is read or written
    sources = tuple(
        SourcePlan(each.alias, each.shown, each.path, leaf.log_kind, domain, leaf.schema, storage, (), None, None)
        for each, leaf in zip(task.plan.sources, task.leaves, strict=True)
    )
    own = None
    if schema is not None and task.plan.reads_output:
        own = SourcePlan(OUTPUT, "contents", task.output, kind, domain, form.payload, storage, (), None, None)
    return StepPlan(
        task.name, (domain.minimum[0],), sources, own, form, storage, "main", 0, "", expectations=task.plan.expectations
    )
