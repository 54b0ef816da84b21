"""From when on the dataflows of an instance are right, where they begin and where they continue.

Invariants
----------
1. What was written is there and continues: an as_of after a restart is none that an output, or what reads it, has not
   passed.
2. No dataflow begins before what it imports can tell.
3. No export is allowed to forget the newest time that it can answer (`may_forget`): else it could never answer again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from spark_timely.compute.as_of import DataflowFacts, ExportFacts, ImportFacts, choose_as_of, stepped_back
from spark_timely.compute.command import AllowCompaction, Command, CreateDataflow, Dataflow, Export
from spark_timely.compute.drive.folders import fence_of, is_anothers
from spark_timely.compute.drive.task import recorded_beginning
from spark_timely.compute.plan import is_task
from spark_timely.errors import LogMissingError, TimelyError
from spark_timely.masking import masked_logger
from spark_timely.spark.base.beginnings import readable_from, written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.drive.context import Context
    from spark_timely.log.log import Log

__all__ = ["as_of_of_new", "is_of_another", "may_forget", "own_log", "resumed", "uppers_of", "without_too_much"]

_log = masked_logger("spark_timely.compute")


def resumed(context: Context, dataflows: list[Dataflow], /) -> dict[tuple[str, ...], Dataflow]:
    """Return dataflows with the as_of from which they are right after a restart, by their exports.

    What was written is there and continues, so nothing is gained by a later one: it is what the dataflow was
    allowed to compact to, but before its uppers and those of whatever reads it, and not before that of what it
    reads itself. One that has not written anything begins as a new one does.

    Parameters
    ----------
    context : Context
    dataflows : list of Dataflow
        All that there are.
    """
    exports = context.readable() | {each.id: each for dataflow in dataflows for each in dataflow.exports}
    made_by = {id_: dataflow for dataflow in dataflows for id_ in dataflow.export_ids}
    order = [
        made_by[id_]
        for id_ in TopologicalSorter(
            {id_: {each for each in dataflow.own_imports if each in made_by} for id_, dataflow in made_by.items()}
        ).static_order()
    ]
    order = list(dict.fromkeys(order))
    uppers = {each: uppers_of(context, each) for each in order}
    recorded = {each: begun for each in order if (begun := _recorded(context, each)) is not None}
    highest: dict[Dataflow, Antichain] = {}
    for dataflow in reversed(order):  # one turn per dataflow, those that read others first
        bound = recorded.get(dataflow, Antichain.empty(dataflow.domain.arity))
        for upper in uppers[dataflow] if dataflow not in recorded else ():
            bound = bound.meet(stepped_back(upper, dataflow.domain))
        for reader in order:
            if reader in highest and any(made_by.get(each) is dataflow for each in reader.own_imports):
                bound = bound.meet(highest[reader])
        highest[dataflow] = bound
    found: dict[tuple[str, ...], Dataflow] = {}
    for dataflow in order:  # one turn per dataflow, those that are read first
        as_of = dataflow.as_of if highest[dataflow].is_empty else dataflow.as_of.meet(highest[dataflow])
        for each in dataflow.own_imports:
            if each in made_by:
                as_of = as_of.join(found[made_by[each].export_ids].as_of)
        if dataflow in recorded:
            as_of = recorded[dataflow]  # its own: what it may forget does not move it
        elif not uppers[dataflow]:
            as_of = _begun_at(context, dataflow.at(as_of), exports)
        found[dataflow.export_ids] = dataflow.at(as_of)
    return found


def _recorded(context: Context, dataflow: Dataflow) -> Antichain | None:
    """Return where a continual task has recorded that it begins, as long as its output has not passed that."""
    path = context.place.path_of(dataflow.exports[0]) if is_task(dataflow.plan) else None
    try:
        return None if path is None else recorded_beginning(context.opened(path))
    except TimelyError:  # it is said by the task, when it is to run
        return None


def uppers_of(context: Context, dataflow: Dataflow, /) -> list[Antichain]:
    """Return how far the outputs are that have been written."""
    found = []
    for export in dataflow.exports:  # one turn per export
        path = context.place.path_of(export)
        if path is None:
            continue
        try:
            upper = written_up_to(context.opened(path))
        except TimelyError:  # it is said by the dataflow, when it is to run
            continue
        if upper is not None:
            found.append(upper)
    return found


def _begun_at(context: Context, dataflow: Dataflow, exports: Mapping[str, Export]) -> Antichain:
    """Return from when on a dataflow can begin that has not: as it says, or where its imports begin by now."""
    as_of = dataflow.as_of
    for each in dataflow.imports:  # one turn per import
        try:
            log = context.opened(context.place.source_of(each, exports))
        except TimelyError:
            continue
        if log.domain.arity == as_of.arity:
            as_of = readable_from([log], as_of)
    return as_of


def as_of_of_new(context: Context, dataflow: Dataflow, /) -> Antichain:
    """Return the latest as_of at which a dataflow that is to be created can answer at once.

    Raises
    ------
    SinceViolationError
        If an import has forgotten what is needed.
    LogMissingError
        If one is not there.
    """
    exports = context.readable()
    for each in dataflow.imports:  # what is not there is said by its own error
        if each.path is not None:
            context.opened(context.place.source_of(each, exports))
    facts = _facts_of(context, dataflow)
    unwritten = {
        # Not before what it may forget by now, though it has nothing yet.
        id_: running.dataflow.as_of.join(context.instance.allowed(id_))
        for running in context.runs()
        for id_ in running.live
    }
    return choose_as_of(facts, unwritten=unwritten).as_of


def _facts_of(context: Context, dataflow: Dataflow) -> DataflowFacts:
    """Return what the choice of an as_of depends on."""
    place, instance = context.place, context.instance
    exports = {each.id: each for each in dataflow.exports} | context.readable()
    imports, outputs = [], []
    for each in dataflow.imports:  # one turn per import
        path = place.source_of(each, exports)
        try:
            log = context.opened(path)
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
    for export in dataflow.exports:  # one turn per export
        path_of = place.path_of(export)
        upper_of: Antichain | None = None
        if path_of is not None:
            try:
                upper_of = written_up_to(context.opened(path_of))
            except LogMissingError:
                upper_of = None
        outputs.append(ExportFacts(export.id, export.kind, upper_of))
    return DataflowFacts(json.dumps(dataflow.export_ids), tuple(imports), tuple(outputs), dataflow.domain)


def may_forget(context: Context, id_: str, frontier: Antichain, /, dataflow: Dataflow | None = None) -> Antichain:
    """Return how far a collection may be compacted of what was asked: at most to the newest time that it can answer.

    That is the last complete one, or its as_of before that is complete. What is complete as a whole may forget anything
    that is asked, and a relation of the introspection, which is always peeked at the minimum, nothing.

    Parameters
    ----------
    context : Context
    id_ : str
    frontier : Antichain
        What was asked; not empty.
    dataflow : Dataflow, optional
        That the collection is an export of; the one that is there unless given.

    Raises
    ------
    StorageError
        If its log cannot be looked at.
    """
    there = context.runs() if dataflow is None else ()
    of = dataflow or next((each.dataflow for each in there if id_ in each.dataflow.export_ids), None)
    if of is None:
        return frontier.meet(context.created().domain.minimum_frontier)
    path = context.place.path_of(next(each for each in of.exports if each.id == id_))
    log = None if path is None else own_log(context, path, of.name)
    upper = of.domain.minimum_frontier if log is None else log.frontier()
    return frontier.meet(of.as_of.join(stepped_back(upper, of.domain)))


def without_too_much(context: Context, commands: Iterable[Command], /, dataflows: Iterable[Dataflow]) -> list[Command]:
    """Return commands of a command log without what an earlier version let them say: to forget what is not there yet.

    Parameters
    ----------
    context : Context
    commands : iterable of Command
        Reduced.
    dataflows : iterable of Dataflow
        As they are resumed.

    Notes
    -----
    Each is warned of: what was asked for shows in no answer any more.
    """
    of = {id_: dataflow for dataflow in dataflows for id_ in dataflow.export_ids}
    found: list[Command] = []
    for command in commands:  # one turn per command
        match command:
            case CreateDataflow(dataflow) if uppers_of(context, dataflow):
                for id_ in dataflow.export_ids:
                    _less_of(context, AllowCompaction(id_, dataflow.as_of), of[id_])
                found.append(command)
            case AllowCompaction(id_, frontier) if id_ in of and not frontier.is_empty:
                found.append(_less_of(context, command, of[id_]))
            case _:
                found.append(command)
    return found


def _less_of(context: Context, command: AllowCompaction, dataflow: Dataflow) -> AllowCompaction:
    """Return a command with no more than can be forgotten, and warn where that is less."""
    try:
        taken = may_forget(context, command.id, command.frontier, dataflow)
    except TimelyError as error:  # it is said by the dataflow, when it is to run
        _log.debug("export %r cannot be looked at: %s", command.id, error)
        taken = command.frontier.meet(dataflow.as_of)
    if taken != command.frontier:
        given, less = (dataflow.domain.render_frontier(each) for each in (command.frontier, taken))
        _log.warning(
            "export %r may be compacted to %s by the command log, past the newest time that it can answer: it is taken "
            "as %s", command.id, given, less,
        )  # fmt: skip
    return replace(command, frontier=taken)


def is_of_another(context: Context, log: Log, id_: str, /) -> bool:
    """Return whether another one than the dataflow of an export has written a log; not of an export that is gone."""
    name = context.writer_of(id_)
    return name is not None and is_anothers(log, context.commands.instance, name)


def own_log(context: Context, path: str, name: str, /) -> Log | None:
    """Return the log of an output as it is now, if it is there and the dataflow of a name has written it.

    Raises
    ------
    StorageError
        If it cannot be looked at.
    """
    try:
        log = context.opened(path)
    except LogMissingError:
        return None
    return None if fence_of(log) is None or is_anothers(log, context.commands.instance, name) else log
