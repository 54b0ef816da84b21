"""Describing a dataflow to an instance: of what people give, a plan, imports and an as_of; and creating it.

Names in a query are paths that were given with it, ids of exports, or relations of the introspection, in this order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_timely.compute.command import CreateDataflow, Dataflow, Export, Import, Schedule
from spark_timely.compute.drive.plans import Shape, shape_of
from spark_timely.compute.drive.task import beginning_of, settled
from spark_timely.compute.plan import Plan, TaskNode, functions_of, imports_of, parse_plan, with_functions
from spark_timely.compute.sql import plan_of_sql
from spark_timely.errors import InvalidUsageError, LogMissingError, MissingError, SinceViolationError, shown
from spark_timely.log.log import Log
from spark_timely.log.store.storage import normal_path
from spark_timely.spark.base.beginnings import written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.drive.driver import Driver
    from spark_timely.compute.drive.plans import Function
    from spark_timely.compute.drive.working import Functions
    from spark_timely.time.domain import TimeLike

__all__ = ["Descriptions"]

# How long a request waits for the log of a collection that it reads: a start makes it where a process ended too soon.
_MADE_S: Final = 60.0
# Where inputs forget as fast as their newest complete time can be asked for.
_MOST_CHOICES: Final = 16


class Descriptions:
    """Describes dataflows, and creates them.

    Parameters
    ----------
    driver : Driver
    functions : Functions
        Of Python, which interactive dataflows call.
    wait : callable
        Waits until a condition holds, or some seconds are over.
    """

    def __init__(
        self, driver: Driver, functions: Functions, wait: Callable[[Callable[[], bool], float], object]
    ) -> None:
        self._driver, self._place, self._functions, self._wait = driver, driver.place, functions, wait

    def create(
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
            if isinstance(plan.root, TaskNode) and as_of is not None:
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
                for log in logs.values():  # one turn per import
                    log.refresh()
                before, chosen = chosen, self._chosen(made, plan, logs) if as_of is None else made
                if chosen == before or turn == _MOST_CHOICES - 1:
                    raise
        return chosen

    def _chosen(self, made: Dataflow, plan: Plan, logs: Mapping[str, Log]) -> Dataflow:
        """Return a dataflow with the as_of that is chosen for it by what its imports are now."""
        if not isinstance(plan.root, TaskNode):
            return self._driver.choose_as_of(made)
        root = settled(plan.root, logs, made.domain, unwritten=self._unwritten(made.imports, logs))
        made = replace(made, plan=Plan(root).text)
        return made.at(beginning_of(root, logs, self._output_of(made), made.domain))

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
        context, found = self._driver.context, {}
        for each in reads:  # one turn per import
            log = logs[each.name]
            if each.export is not None and log.kind == "collection" and written_up_to(log) is None:
                with context.lock:
                    found[each.name] = context.instance.collection(each.export).as_of
        return found

    def _output_of(self, dataflow: Dataflow) -> Log | None:
        """Return the log of the one export of a continual task; None if it is not there yet.

        None too if it has other times: then it is refused for that before anything is made.
        """
        path = self._place.path_of(dataflow.exports[0])
        try:
            log = None if path is None else self._driver.context.opened(path)
        except LogMissingError:
            return None
        return None if log is None or log.domain.types != dataflow.domain.types else log

    def planned(
        self, name: str, query: str | Plan, given: Mapping[str, str], logs: dict[str, Log]
    ) -> tuple[Plan, tuple[Import, ...]]:
        """Return the plan of a query, and its imports; the logs of these are opened."""
        exports, relations = self._driver.facts.exports(), self._driver.facts.relations()

        def opened(word: str) -> Log:
            if word not in logs:
                if word in given:
                    path = given[word]
                elif word in exports and (found := self._driver.facts.path_of(word)) is not None:
                    logs[word] = self._own(word, found, f"could not create dataflow {name!r}")
                    return logs[word]
                elif word in relations:
                    logs[word] = self._driver.open_relation(word)
                    return logs[word]
                else:
                    msg = f"could not create dataflow {name!r}: found nothing for {word!r}"
                    ids = shown(sorted((*exports, *relations)))
                    raise MissingError(msg, hint=f"say what it stands for with imports=…, or choose among {ids}")
                logs[word] = self._driver.context.opened(path)
            return logs[word]

        if isinstance(query, Plan):
            plan = query
        elif query.lstrip().startswith("{"):
            plan = parse_plan(query)
        else:
            named = [id_ for id_ in (*exports, *relations) if id_ in query]
            others = sorted((*exports, *relations))
            if len(query.split()) == 1:  # no query has one word: it is meant as an id
                self._refuse_word(name, query.strip(), given, others)
            schemas = {word: opened(word).schema for word in (*given, *named)}
            plan = plan_of_sql(query, schemas, others=others)
        reads = []
        own = {self._driver.facts.path_of(id_): id_ for id_, each in exports.items() if each.kind == "index"}
        for word in imports_of(plan):  # one turn per import
            log = opened(word)
            if log.path in own:  # named by its path: nobody drops it as long as it is read
                reads.append(Import(word, export=own[log.path]))
            elif word in given:
                reads.append(Import(word, path=log.path, log_id=log.log_id))
            else:
                reads.append(Import(word, export=word))
        for word in logs.keys() - set(imports_of(plan)):
            del logs[word]
        return plan, tuple(reads)

    def _own(self, id_: str, path: str, attempt: str) -> Log:
        """Return the log of an export. Where the process ended before it was made the next start makes it: waited for.

        Raises
        ------
        OperatorError
            If what makes it has failed.
        LogMissingError
            If it is not there after a minute.
        """
        found: list[Log] = []

        def is_settled() -> bool:
            try:
                found.append(self._driver.context.opened(path))
            except LogMissingError:
                return self._driver.facts.failure_of(id_, attempt) is not None
            return True

        if not is_settled():
            self._wait(is_settled, _MADE_S)
        if found:
            return found[0]
        failure = self._driver.facts.failure_of(id_, attempt)
        if failure is not None:
            raise failure
        msg = f"{attempt}: found that the log of {id_!r}, which it reads, is still to be made"
        raise LogMissingError(msg, hint="ask again, or see why it is not made by why(…) of the instance")

    def _refuse_word(self, name: str, word: str, given: Mapping[str, str], ids: Sequence[str]) -> None:
        """Refuse a query of one word."""
        if word in given or word in ids:
            msg = f"could not create dataflow {name!r}: found {word!r}, which is no query"
            raise InvalidUsageError(msg, hint=f"write SELECT * FROM {word}")
        msg = f"could not create dataflow {name!r}: found no collection {word!r}"
        raise MissingError(msg, hint=f"write a query, or the id of a collection: {shown(list(ids))}")

    def read(self, id_: str, alias: str, log: object, logs: dict[str, Log]) -> Import:
        """Return an import of an export, given by its id or its path, or of any other log; open its log."""
        facts, path = self._driver.facts, log.path if isinstance(log, Log) else log
        exports = facts.exports()
        if not isinstance(path, str | os.PathLike) or not str(path):
            msg = f"could not create dataflow {id_!r}: found {alias!r}={shown(path)}"
            raise InvalidUsageError(msg, hint="give the id of an export of the instance, or the path of a log")
        if isinstance(path, str) and path in facts.relations():
            logs[alias] = self._driver.open_relation(path)
            return Import(alias, export=path)
        own = {facts.path_of(each): each for each in exports}
        export = path if path in exports else own.get(normal_path(path))
        if export is None:
            logs[alias] = self._driver.context.opened(normal_path(path))
            return Import(alias, path=logs[alias].path, log_id=logs[alias].log_id)
        found = facts.path_of(str(export))
        if found is None:
            msg = f"could not create dataflow {id_!r}: found that export {export!r}, its {alias!r}, keeps no rows"
            raise InvalidUsageError(msg, hint="import an index, or a log")
        logs[alias] = self._own(str(export), found, f"could not create dataflow {id_!r}")
        return Import(alias, export=str(export))

    def whole(self, query: str | Plan) -> str | Plan:
        """Return what the id of an export stands for: all of it."""
        facts = self._driver.facts
        if isinstance(query, str) and (query in facts.exports() or query in facts.relations()):
            return parse_plan(json.dumps({"op": "import", "name": query}))
        if isinstance(query, str) and query.lstrip().startswith("{"):
            return parse_plan(query)
        return query
