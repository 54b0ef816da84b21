"""Descriptions of dataflows: what a user gives (a query, imports, an as_of) becomes a `Dataflow`, which is created.

`spark_timely.compute.drive.handle` uses it. The plan is read in `spark_timely.compute.plan` or `sql`, and the as_of
chosen in `spark_timely.compute.as_of`. Names in a query are paths that were given with it, ids of exports, or relations
of the introspection, in this order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from spark_timely.compute.as_of import DataflowFacts, ExportFacts, ImportFacts, choose_as_of
from spark_timely.compute.command import CreateDataflow, Dataflow, Export, Import, Schedule
from spark_timely.compute.drive.causes import failure_of
from spark_timely.compute.drive.directory import details_of
from spark_timely.compute.drive.plans import Shape, shape_of
from spark_timely.compute.drive.task_beginnings import beginning_of, settled
from spark_timely.compute.plan import (
    Imported,
    Node,
    Plan,
    SqlTask,
    functions_of,
    imports_of,
    parse_plan,
    with_functions,
)
from spark_timely.continual.plan import Deletes, Newest
from spark_timely.errors import InvalidUsageError, LogMissingError, MissingError, SinceViolationError, shown
from spark_timely.log.log import Log
from spark_timely.log.store.storage import normal_path
from spark_timely.spark.base.beginnings import readable_from, written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.drive.driver import Driver
    from spark_timely.compute.drive.plans import Function
    from spark_timely.compute.drive.state import State
    from spark_timely.time.domain import TimeLike

__all__ = ["Descriptions", "check_query", "check_text"]

# How long a request waits for the log of a collection that it reads: a start makes it where a process ended too soon.
_MADE_S: Final = 60.0
# Where inputs forget as fast as their newest complete time can be asked for.
_MOST_CHOICES: Final = 16


class Descriptions:
    """Describes dataflows, and creates them.

    Parameters
    ----------
    driver : Driver
    wait : callable
        Waits until a condition holds, or some seconds are over.
    """

    def __init__(self, driver: Driver, wait: Callable[[Callable[[], bool], float], object]) -> None:
        self._driver, self._state, self._wait = driver, driver.state, wait
        self._functions = driver.state.runtime.functions

    def dataflow(
        self,
        name: str,
        query: str | Plan,
        exports: Sequence[Export],
        imports: Mapping[str, str] | None,
        as_of: TimeLike | None,
        until: TimeLike | None,
        functions: Mapping[str, Function] | None,
        *,
        interactive: bool,
    ) -> Dataflow:
        """Create a dataflow of what `Handle.dataflow` is given."""
        check_text("could not create a dataflow", "name", name)
        check_query(f"could not create dataflow {name!r}", query)
        logs: dict[str, Log] = {}
        given = _imports_of(f"could not create dataflow {name!r}", imports)
        exports = [_absolute(export) for export in exports]
        plan, reads = self._planned(name, query, given, logs)
        return self._create(name, plan, reads, logs, exports, as_of, until, functions, interactive=interactive)

    def task(
        self,
        export: Export,
        sql: str,
        inputs: Mapping[str, object],
        references: Mapping[str, object],
        as_of: TimeLike,
        expect: Mapping[str, str | tuple[str, str]],
        *,
        snapshot: bool,
        forgotten: bool,
        functions: tuple[str, ...],
        replaces: str | None,
    ) -> Dataflow:
        """Create a continual task of what `Handle.continual_task` is given."""
        attempt = f"could not create dataflow {export.id!r}"
        check_text(attempt, "sql", sql, hint="give the body as a text, in Spark's SQL")
        for word, given in (("inputs", inputs), ("references", references)):
            if not isinstance(given, Mapping):
                msg = f"{attempt}: found {word}={shown(given)}"
                raise InvalidUsageError(msg, hint=f"give {word}={{'name in the body': id or path, …}}")
        logs: dict[str, Log] = {}
        reads, shows = [], list[tuple[str, str]]()
        for given, usual in ((inputs, "inserts"), (references, "contents")):
            for alias, log in given.items():
                if alias in logs:
                    msg = f"{attempt}: found {alias!r} as an input and a reference"
                    raise InvalidUsageError(msg, hint="give each a name of its own")
                odd = "deletes" if isinstance(log, Deletes) else "newest" if isinstance(log, Newest) else usual
                log = log.log if isinstance(log, Deletes | Newest) else log
                reads.append(self._read(attempt, alias, log, logs))
                shows.append((alias, odd))
        if not logs:
            msg = f"{attempt}: found no inputs"
            raise InvalidUsageError(msg, hint="name at least one: the task writes where an input has rows")
        domain = next(iter(logs.values())).domain
        begins: Any = as_of if as_of in ("earliest", "latest") else domain.time_to_json(domain.parse_time(as_of))
        met = tuple((name, *((each, "fail") if isinstance(each, str) else each)) for name, each in expect.items())
        task = SqlTask(sql, tuple(shows), begins, snapshot, forgotten, met, functions, replaces)
        return self._create(export.id, Plan(Node(task)), reads, logs, [export])

    def passing(
        self, id_: str, kind: Literal["subscribe", "copy-to"], query: str | Plan, **details: object
    ) -> tuple[str | Plan, Export]:
        """Return an export that ends with this process, and its query: the id of an export stands for all of it.

        It has a folder where the plan has operators; what an import has as it is needs none.
        """
        state = self._state
        if isinstance(query, str) and (query in state.exports() or query in state.relations()):
            query = Plan(Node(Imported(query)))
        elif isinstance(query, str) and query.lstrip().startswith("{"):
            query = parse_plan(query)
        if not isinstance(query, Plan) or not isinstance(query.root.operator, Imported):
            details["folder"] = state.directory.new_folder(id_)
        return query, Export(id_, kind, json.dumps(details))

    def _create(
        self,
        name: str,
        plan: Plan,
        reads: Sequence[Import],
        logs: Mapping[str, Log],
        exports: Sequence[Export],
        as_of: TimeLike | None = None,
        until: TimeLike | None = None,
        functions: Mapping[str, Function] | None = None,
        *,
        interactive: bool = False,
    ) -> Dataflow:
        """Create a dataflow over logs that are open, by the names of its imports."""
        if not logs:
            msg = f"could not create dataflow {name!r}: found no imports"
            raise InvalidUsageError(msg, hint="name at least one collection in the query")
        domain = next(iter(logs.values())).domain
        times = {each.domain.types for each in logs.values()}
        if len(times) > 1:
            msg = f"could not create dataflow {name!r}: found imports with times of different types"
            raise InvalidUsageError(msg, hint="import logs with the same types of times")
        least = [min(each.domain.minimum[place] for each in logs.values()) for place in range(domain.arity)]
        domain = type(domain)(domain.types, tuple(least))
        begins = domain.minimum_frontier if as_of is None else Antichain.of(domain.parse_time(as_of))
        ends = Antichain.empty(domain.arity) if until is None else Antichain.of(domain.parse_time(until))
        names = self._named(name, plan, functions or {}, interactive=interactive)
        try:
            plan = with_functions(plan, names)
            if names:  # asked for their columns here, in the thread of who gave them: nothing else waits for that
                shapes = {name: Shape(log.schema, log.kind) for name, log in logs.items()}
                shape_of(plan, shapes, domain=domain, functions=self._functions.known)
            if isinstance(plan.root.operator, SqlTask) and as_of is not None:
                msg = f"could not create dataflow {name!r}: found as_of={shown(as_of)} beside a continual task"
                raise InvalidUsageError(msg, hint="say it in the task: its as_of is its own")
            made = Dataflow(name, tuple(reads), plan.text, tuple(exports), begins, ends, domain, interactive)
            made = self._created(made, plan, logs, as_of)
        except BaseException:
            self._functions.forget(names.values())
            raise
        return made

    def _created(self, made: Dataflow, plan: Plan, logs: Mapping[str, Log], as_of: TimeLike | None) -> Dataflow:
        """Create a dataflow; where since has passed the as_of that was chosen for it meanwhile, choose again."""
        chosen = self._chosen(made, plan, logs) if as_of is None else made
        for turn in range(_MOST_CHOICES):
            try:
                self._driver.handle(CreateDataflow(chosen), *(Schedule(export.id) for export in chosen.exports))
                break
            except SinceViolationError:
                for log in logs.values():
                    log.refresh()
                before, chosen = chosen, self._chosen(made, plan, logs) if as_of is None else made
                if chosen == before or turn == _MOST_CHOICES - 1:
                    raise
        return chosen

    def _chosen(self, made: Dataflow, plan: Plan, logs: Mapping[str, Log]) -> Dataflow:
        """Return a dataflow with the as_of that is chosen for it by what its imports are now."""
        task = plan.root.operator
        if not isinstance(task, SqlTask):
            with self._state.lock:
                return made.at(_as_of_of_new(self._state, made))
        task = settled(task, logs, made.domain, unwritten=self._unwritten(made.imports, logs))
        made = replace(made, plan=Plan(Node(task)).text)
        return made.at(beginning_of(task, logs, self._output_of(made), made.domain))

    def _named(self, name: str, plan: Plan, functions: Mapping[str, Function], *, interactive: bool) -> dict[str, str]:
        """Keep the functions of Python that a plan calls, and return the names under which they are kept."""
        what, called = f"could not create dataflow {name!r}", functions_of(plan)
        if called and not interactive:
            msg = f"{what}: found Python function {called[0]!r}, which is not restartable"
            raise InvalidUsageError(msg, hint="create it as interactive, or say it in SQL")
        for each in called:
            if not callable(functions.get(each)):
                msg = f"{what}: found functions[{each!r}]={shown(functions.get(each))}, which the plan calls"
                raise InvalidUsageError(msg, hint=f"give a function of a pyarrow.Table: functions={{{each!r}: …}}")
        unused = sorted(set(functions) - set(called))
        if unused:
            msg = f"{what}: found function {unused[0]!r}, which the plan does not call"
            raise InvalidUsageError(msg, hint="leave it out, or name it in a node of op 'function'")
        return self._functions.add(functions)

    def _unwritten(self, reads: Sequence[Import], logs: Mapping[str, Log]) -> dict[str, Antichain]:
        """Return the as_of of collections of the instance in which nothing is written yet, by the import's name."""
        state, found = self._state, {}
        for each in reads:
            log = logs[each.name]
            if each.export is not None and log.kind == "collection" and written_up_to(log) is None:
                with state.lock:
                    found[each.name] = state.instance.collection(each.export).as_of
        return found

    def _output_of(self, dataflow: Dataflow) -> Log | None:
        """Return the log of the one export of a continual task; None if it is not there yet.

        None too if it has other times: then it is refused for that before anything is made.
        """
        path = self._state.directory.path_of(dataflow.exports[0])
        try:
            log = None if path is None else self._state.opened(path)
        except LogMissingError:
            return None
        return None if log is None or log.domain.types != dataflow.domain.types else log

    # Names ---------------------------------------------------------------------------------------

    def _planned(
        self, name: str, query: str | Plan, given: Mapping[str, str], logs: dict[str, Log]
    ) -> tuple[Plan, tuple[Import, ...]]:
        """Return the plan of a query, and its imports; the logs of these are opened."""
        attempt, exports = f"could not create dataflow {name!r}", self._state.exports()
        ids = [*exports, *self._state.relations()]

        def opened(word: str) -> Log:
            if word not in logs:
                log = self._state.opened(given[word]) if word in given else self._own(word, attempt)
                if log is None:
                    msg = f"{attempt}: found nothing for {word!r}"
                    hint = f"say what it stands for with imports=…, or choose among {shown(sorted(ids))}"
                    raise MissingError(msg, hint=hint)
                logs[word] = log
            return logs[word]

        if isinstance(query, Plan):
            plan = query
        elif query.lstrip().startswith("{"):
            plan = parse_plan(query)
        else:
            if len(query.split()) == 1:  # no query has one word: it is meant as an id
                _refuse_word(attempt, query.strip(), given, sorted(ids))
            from spark_timely.compute.sql import plan_of_sql  # with sqlglot, which only SQL needs

            schemas = {word: opened(word).schema for word in (*given, *(id_ for id_ in ids if id_ in query))}
            plan = plan_of_sql(query, schemas, others=sorted(ids))
        reads = []
        own = {self._state.directory.path_of(each): id_ for id_, each in exports.items() if each.kind == "index"}
        for word in imports_of(plan):
            log = opened(word)
            if log.path in own:  # named by its path: nobody drops it as long as it is read
                reads.append(Import(word, export=own[log.path]))
            elif word in given:
                reads.append(Import(word, path=log.path, log_id=log.core.log_id))
            else:
                reads.append(Import(word, export=word))
        for word in logs.keys() - set(imports_of(plan)):
            del logs[word]
        return plan, tuple(reads)

    def _read(self, attempt: str, alias: str, log: object, logs: dict[str, Log]) -> Import:
        """Return an import of an export, given by its id or its path, or of any other log; open its log."""
        state, path = self._state, log.path if isinstance(log, Log) else log
        if not isinstance(path, str | os.PathLike) or not str(path):
            msg = f"{attempt}: found {alias!r}={shown(path)}"
            raise InvalidUsageError(msg, hint="give the id of an export of the instance, or the path of a log")
        exports = state.exports()
        export = path if isinstance(path, str) and (path in exports or path in state.relations()) else None
        if export is None:
            at = normal_path(path)
            export = next((id_ for id_, each in exports.items() if state.directory.path_of(each) == at), None)
            if export is None:
                logs[alias] = state.opened(at)
                return Import(alias, path=logs[alias].path, log_id=logs[alias].core.log_id)
        found = self._own(export, attempt)
        if found is None:
            msg = f"{attempt}: found that export {export!r}, its {alias!r}, keeps no rows"
            raise InvalidUsageError(msg, hint="import an index, or a log")
        logs[alias] = found
        return Import(alias, export=export)

    def _own(self, id_: str, attempt: str) -> Log | None:
        """Return the log of an export or relation; None if it is neither, or keeps no rows.

        Where the process ended before a log was made the next start makes it: it is waited for.

        Raises
        ------
        OperatorError
            If what makes it has failed.
        LogMissingError
            If it is not there after a minute.
        """
        path, found = self._state.path_of(id_), list[Log]()
        if path is None:
            return self._driver.open_relation(id_) if id_ in self._state.relations() else None

        def is_settled() -> bool:
            try:
                found.append(self._state.opened(path))
            except LogMissingError:
                return failure_of(self._driver.worker, id_, attempt) is not None
            return True

        if not is_settled():
            self._wait(is_settled, _MADE_S)
        if found:
            return found[0]
        failure = failure_of(self._driver.worker, id_, attempt)
        if failure is not None:
            raise failure
        msg = f"{attempt}: found that the log of {id_!r}, which it reads, is still to be made"
        raise LogMissingError(msg, hint="ask again, or see why it is not made by why(…) of the instance")


def _refuse_word(attempt: str, word: str, given: Mapping[str, str], ids: Sequence[str]) -> None:
    """Refuse a query of one word."""
    if word in given or word in ids:
        msg = f"{attempt}: found {word!r}, which is no query"
        raise InvalidUsageError(msg, hint=f"write SELECT * FROM {word}")
    msg = f"{attempt}: found no collection {word!r}"
    raise MissingError(msg, hint=f"write a query, or the id of a collection: {shown(list(ids))}")


def _as_of_of_new(state: State, dataflow: Dataflow, /) -> Antichain:
    """Return the latest as_of at which a dataflow that is to be created can answer at once.

    Raises
    ------
    SinceViolationError
        If an import has forgotten what is needed.
    LogMissingError
        If one is not there.
    """
    unwritten = {
        # Not before what it may forget by now, though it has nothing yet.
        id_: running.dataflow.as_of.join(state.instance.allowed(id_))
        for running in state.runs()
        for id_ in running.live
    }
    return choose_as_of(_facts_of(state, dataflow), unwritten=unwritten)


def _facts_of(state: State, dataflow: Dataflow) -> DataflowFacts:
    """Return what the choice of an as_of depends on."""
    directory, instance = state.directory, state.instance
    exports = {each.id: each for each in dataflow.exports} | state.readable()
    imports, outputs = [], []
    for each in dataflow.imports:
        path = directory.source_of(each, exports)
        try:
            log = state.opened(path)
            since, upper = readable_from([log], dataflow.domain.minimum_frontier), log.frontier()
            written = written_up_to(log) is not None
        except LogMissingError:
            if each.export is None:
                raise
            since = upper = dataflow.domain.minimum_frontier
            written = False
        if each.export is not None and instance.has(each.export) and exports[each.export].kind == "index":
            # It is no promise that what may be forgotten was not forgotten yet.
            since = since.join(instance.allowed(each.export))
        imports.append(ImportFacts(each.name, since, upper, None if written else each.export))
    for export in dataflow.exports:
        path_of = directory.path_of(export)
        upper_of: Antichain | None = None
        if path_of is not None:
            try:
                upper_of = written_up_to(state.opened(path_of))
            except LogMissingError:
                upper_of = None
        outputs.append(ExportFacts(export.id, export.kind, upper_of))
    return DataflowFacts(json.dumps(dataflow.export_ids), tuple(imports), tuple(outputs), dataflow.domain)


def check_text(attempt: str, name: str, value: object, *, hint: str = "give a text that is not empty") -> None:
    """Refuse what is no text."""
    if not isinstance(value, str) or not value:
        msg = f"{attempt}: found {name} {shown(value)}"
        raise InvalidUsageError(msg, hint=hint)


def check_query(attempt: str, query: object) -> None:
    """Refuse what is no query."""
    if not isinstance(query, Plan) and not (isinstance(query, str) and query):
        msg = f"{attempt}: found query {shown(query)}"
        raise InvalidUsageError(msg, hint="give SQL, or a plan as JSON, as a text; or a Plan")


def _imports_of(attempt: str, imports: object) -> dict[str, str]:
    """Return what names in a query stand for."""
    if imports is None:
        return {}
    if not isinstance(imports, Mapping) or not all(
        isinstance(name, str) and isinstance(path, str | os.PathLike) for name, path in imports.items()
    ):
        msg = f"{attempt}: found imports={shown(imports)}"
        raise InvalidUsageError(msg, hint="give imports={'name in the query': path of a log, …}")
    return {name: str(path) for name, path in imports.items()}


def _absolute(export: Export) -> Export:
    """Return an export with an absolute path: the next start may be in another working directory."""
    details = details_of(export)
    path = details.get("path")
    if export.kind != "log" or not isinstance(path, str):
        return export
    return replace(export, details=json.dumps(details | {"path": normal_path(path)}))
