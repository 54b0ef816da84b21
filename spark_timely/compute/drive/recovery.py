"""Recovery of an instance: checks the command log at a start, and chooses the as_of of each dataflow that it names.

The driver uses it when it begins, when it takes over from another process, and while it follows one.

A command log is judged before it is taken over: whether it is the newest one of its instance, or went back, as after a
restore. An output that a later start wrote than the command log knows is then *in doubt*, and the start refuses, unless
its user consented to continue or leave each such output (`Consent`). A start that only follows another one takes up
what the command log says by now, and nothing else: what this process has of its own, its subscribes and peeks,
continues where it was.

Invariants
----------
1. Nothing is written before the command log is judged, and what is taken over is what was judged.
2. A consent names each output that is in doubt, with the start that wrote it where it is continued: it holds once.
3. What was written is there and continues: each output that was written, and what reads it, has passed the as_of after
   a restart. A task that has not passed the beginning that it recorded begins there.
4. No dataflow begins before a time as of which its imports can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

from spark_timely.compute.as_of import stepped_back
from spark_timely.compute.command import (
    AllowCompaction,
    Command,
    CreateDataflow,
    Dataflow,
    Export,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.command_log import Judgement
from spark_timely.compute.drive.directory import Found
from spark_timely.compute.drive.folders import ASIDE
from spark_timely.compute.drive.retention import may_forget
from spark_timely.compute.drive.task_beginnings import recorded_beginning
from spark_timely.compute.history import reduced, rows_of
from spark_timely.compute.ledger import Ledger, Mark, commands_of
from spark_timely.compute.plan import is_task
from spark_timely.errors import (
    InvalidUsageError,
    RolledBackError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.masking import masked_logger
from spark_timely.spark.base.beginnings import readable_from, written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.drive.directory import Directory
    from spark_timely.compute.drive.state import State
    from spark_timely.compute.history import Row
    from spark_timely.protocol.note import Fence

__all__ = ["Consent", "check_commands_there", "follow", "judged", "resumed", "uppers_of", "without_too_much"]

_log = masked_logger("spark_timely.compute")

_ALL_FOLDERS: Final = "*"

# Judging ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Consent:
    """The consent of a person about outputs that are in doubt.

    Attributes
    ----------
    adopts : dict of str to int
        Collections that continue, each with the epoch of the start that wrote it.
    leaves : set of str
        Collections whose dataflows are dropped while what they wrote stays, and folders that stay; ``*`` is all
        folders that no command names.
    """

    adopts: Mapping[str, int] = field(default_factory=dict)
    leaves: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check what was given."""
        for id_, epoch in self.adopts.items():
            if not isinstance(id_, str) or not isinstance(epoch, int) or isinstance(epoch, bool):
                msg = f"could not run the instance: found adopts={shown(dict(self.adopts))}"
                raise InvalidUsageError(msg, hint="give the start that wrote each collection: adopts={'totals': 7}")
        if not all(isinstance(each, str) for each in self.leaves):
            msg = f"could not run the instance: found leaves={shown(sorted(map(str, self.leaves)))}"
            raise InvalidUsageError(msg, hint="give the names of collections and folders")

    def leaves_folder(self, name: str) -> bool:
        """Return whether a folder that no command names stays."""
        return name in self.leaves or _ALL_FOLDERS in self.leaves


def check_commands_there(directory: Directory, consent: Consent, /) -> None:
    """Refuse to make an instance where one was.

    Raises
    ------
    RolledBackError
        If there is no command log, while an instance wrote collections, and they were not said to be left.
    """
    folders = directory.folders()  # before the look at the command log, which is made before any of them
    if not folders or directory.has_commands():
        return
    found = {name: _found(f"{directory.collections}/{name}", directory) for name in folders}
    left = [name for name, each in found.items() if each.fence is not None and not consent.leaves_folder(name)]
    if left:
        msg = f"could not run the instance in {directory.path!r}: found no command log, but collections: {shown(left)}"
        hint = (
            "put the folder 'commands' back; to begin without them, which leaves them as they are, say leaves=['*'] "
            "(--leave '*')"
        )
        raise RolledBackError(msg, hint=hint, context={"path": directory.path})


def judged(
    directory: Directory, instance: str, consent: Consent, holder: Fence | None, rows: Sequence[Row], /
) -> Judgement:
    """Judge a command log by what the outputs say.

    Parameters
    ----------
    directory : Directory
    instance : str
        Id of the instance.
    consent : Consent
    holder : Fence or None
        The newest start that the command log names.
    rows : sequence of (int, str)
        Of the command log.

    Raises
    ------
    RolledBackError
        If an output is in doubt, and the consent does not say what becomes of it.
    InvalidUsageError
        If the consent cannot be carried out.

    Notes
    -----
    Cost: each output's log is opened, and each folder's that no command names.
    """
    commands, ledger = reduced(commands_of(rows)), Ledger.read(rows)
    flows = [each.dataflow for each in commands if isinstance(each, CreateDataflow)]
    outputs = {
        export.id: _found(path, directory)
        for flow in flows
        for export in flow.exports
        if (path := directory.path_of(export)) is not None
    }
    named = {directory.name_of(export) for flow in flows for export in flow.exports}
    folders = {
        name: _found(f"{directory.collections}/{name}", directory) for name in directory.folders() if name not in named
    }
    epochs: dict[str, int] = {}
    for id_, each in outputs.items():
        fence = _own(each, instance)
        if fence is not None and _is_newer(fence, holder):
            epochs[id_] = fence.epoch
    strays = [name for name, each in folders.items() if _is_stray(name, each, instance, holder, ledger)]
    open_ = [id_ for id_, epoch in epochs.items() if consent.adopts.get(id_) != epoch and id_ not in consent.leaves]
    unsaid = [name for name in strays if not consent.leaves_folder(name)]
    if open_ or unsaid:
        raise _refusal(directory, holder, {id_: epochs[id_] for id_ in open_}, unsaid)
    above = max(
        (fence.epoch for each in (*outputs.values(), *folders.values()) if (fence := _own(each, instance))), default=0
    )
    if not epochs and not strays:
        return Judgement(above)
    for id_, epoch in epochs.items():
        _log.warning("collection %r is %s", id_, "left" if id_ in consent.leaves else f"continued from start {epoch}")
    left = _left(flows, {id_ for id_ in epochs if id_ in consent.leaves}, consent)
    marks = [Mark(name, "left", folders[name].log_id) for name in strays]
    for flow in left:
        for export in flow.exports:
            name = directory.name_of(export)
            marks += [] if name is None else [Mark(name, "left", outputs[export.id].log_id)]
    drops: list[Command] = [
        AllowCompaction(id_, Antichain.empty(flow.domain.arity)) for flow in left for id_ in flow.export_ids
    ]
    return Judgement(above, [*ledger.put(*marks).rows(), *rows_of(reduced([*commands, *drops]))])


def _left(flows: Iterable[Dataflow], ids: set[str], consent: Consent) -> list[Dataflow]:
    """Return the dataflows that are dropped, as what they give is left; those that read others first."""
    flows = list(flows)
    left = [flow for flow in flows if ids & set(flow.export_ids)]
    gone = {id_ for flow in left for id_ in flow.export_ids}
    readers = [flow for flow in flows if flow not in left and gone & set(flow.own_imports)]
    while readers:  # ends: each pass leaves fewer dataflows
        left = [*readers, *left]
        gone |= {id_ for flow in readers for id_ in flow.export_ids}
        readers = [flow for flow in flows if flow not in left and gone & set(flow.own_imports)]
    unsaid = sorted(gone - consent.leaves)
    if unsaid:
        msg = f"could not run the instance: found that {shown(unsaid)} cannot be without what is left"
        raise InvalidUsageError(
            msg, hint=f"leave them too: leaves={shown(sorted(gone))}, or adopt what they are made of"
        )
    return left


def _refusal(
    directory: Directory, holder: Fence | None, epochs: Mapping[str, int], strays: Sequence[str]
) -> RolledBackError:
    start = "no start" if holder is None else f"start {holder.epoch} ({holder.owner})"
    found = [f"collections that later starts wrote, {shown(dict(epochs))}"] if epochs else []
    found += [f"folders that its commands do not name, {shown(list(strays))}"] if strays else []
    msg = (
        f"could not run the instance in {directory.path!r}: found a command log of {start}, which went back: there "
        f"are {' and '.join(found)}"
    )
    says = ([f"adopts={shown(dict(epochs))} continues collections"] if epochs else []) + [
        f"leaves={shown([*epochs, *strays])} leaves them as they are"
    ]
    hint = (
        "put the newest folder 'commands' back, or end the copy of the instance that wrote them; or say what becomes "
        f"of each: {', '.join(says)} (--adopt NAME=START, --leave NAME)"
    )
    return RolledBackError(msg, hint=hint, context={"path": directory.path})


def _found(path: str, directory: Directory) -> Found:
    """Return what is at a path; nothing where that is not known: its dataflow says so, which alone does not run."""
    try:
        return directory.found_at(path)
    except TimelyError as error:
        _log.debug("log %r cannot be looked at: %s", path, error)
        return Found()


def _own(found: Found, instance: str) -> Fence | None:
    """Return the newest start of an instance that wrote a log; None if this instance did not."""
    return found.fence if found.fence is not None and found.fence.instance == instance else None


def _is_newer(fence: Fence, holder: Fence | None) -> bool:
    """Return whether a start is not before the newest one that the command log names."""
    return holder is None or (fence != holder and fence.epoch >= holder.epoch)


def _is_stray(name: str, found: Found, instance: str, holder: Fence | None, ledger: Ledger) -> bool:
    """Return whether the instance wrote a folder that neither commands nor marks name as they should."""
    mark, fence = ledger.marks.get(name) or ledger.marks.get(name.removesuffix(ASIDE)), _own(found, instance)
    if fence is None or (mark is not None and mark.stays):
        return False
    is_unnamed = mark is None and ledger.since is not None and fence.epoch >= ledger.since
    return is_unnamed or _is_newer(fence, holder)


# Resuming -----------------------------------------------------------------------------------------------


def resumed(state: State, dataflows: list[Dataflow], /) -> dict[tuple[str, ...], Dataflow]:
    """Return dataflows with the as_of from which they are right after a restart, by their exports.

    What was written is there and continues, so nothing is gained by a later one: it is what the dataflow was
    allowed to compact to, but before its uppers and those of whatever reads it, and not before that of what it
    reads itself. One that has not written anything begins as a new one does.

    Parameters
    ----------
    state : State
    dataflows : list of Dataflow
        All that there are.
    """
    exports = state.readable() | {each.id: each for dataflow in dataflows for each in dataflow.exports}
    made_by = {id_: dataflow for dataflow in dataflows for id_ in dataflow.export_ids}
    order = [
        made_by[id_]
        for id_ in TopologicalSorter(
            {id_: {each for each in dataflow.own_imports if each in made_by} for id_, dataflow in made_by.items()}
        ).static_order()
    ]
    order = list(dict.fromkeys(order))
    uppers = {each: uppers_of(state, each) for each in order}
    recorded = {each: begun for each in order if (begun := _recorded(state, each)) is not None}
    highest: dict[Dataflow, Antichain] = {}
    for dataflow in reversed(order):  # those that read others first
        bound = recorded.get(dataflow, Antichain.empty(dataflow.domain.arity))
        for upper in uppers[dataflow] if dataflow not in recorded else ():
            bound = bound.meet(stepped_back(upper, dataflow.domain))
        for reader in order:
            if reader in highest and any(made_by.get(each) is dataflow for each in reader.own_imports):
                bound = bound.meet(highest[reader])
        highest[dataflow] = bound
    found: dict[tuple[str, ...], Dataflow] = {}
    for dataflow in order:  # those that are read first
        as_of = dataflow.as_of if highest[dataflow].is_empty else dataflow.as_of.meet(highest[dataflow])
        for each in dataflow.own_imports:
            if each in made_by:
                as_of = as_of.join(found[made_by[each].export_ids].as_of)
        if dataflow in recorded:
            as_of = recorded[dataflow]  # its own: what it may forget does not move it
        elif not uppers[dataflow]:
            as_of = _begun_at(state, dataflow.at(as_of), exports)
        found[dataflow.export_ids] = dataflow.at(as_of)
    return found


def _recorded(state: State, dataflow: Dataflow) -> Antichain | None:
    """Return where a continual task has recorded that it begins, as long as its output has not passed that."""
    path = state.directory.path_of(dataflow.exports[0]) if is_task(dataflow.plan) else None
    try:
        return None if path is None else recorded_beginning(state.opened(path))
    except TimelyError:  # it is said by the task, when it is to run
        return None


def uppers_of(state: State, dataflow: Dataflow, /) -> list[Antichain]:
    """Return how far the outputs are that have been written."""
    found = []
    for export in dataflow.exports:
        path = state.directory.path_of(export)
        if path is None:
            continue
        try:
            upper = written_up_to(state.opened(path))
        except TimelyError:  # it is said by the dataflow, when it is to run
            continue
        if upper is not None:
            found.append(upper)
    return found


def _begun_at(state: State, dataflow: Dataflow, exports: Mapping[str, Export]) -> Antichain:
    """Return from when on a dataflow can begin that has not: as it says, or where its imports begin by now."""
    as_of = dataflow.as_of
    for each in dataflow.imports:
        try:
            log = state.opened(state.directory.source_of(each, exports))
        except TimelyError:
            continue
        if log.domain.arity == as_of.arity:
            as_of = readable_from([log], as_of)
    return as_of


def without_too_much(state: State, commands: Iterable[Command], /, dataflows: Iterable[Dataflow]) -> list[Command]:
    """Return commands of a command log without what an earlier version let them say: to forget what is not there yet.

    Parameters
    ----------
    state : State
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
    for command in commands:
        match command:
            case CreateDataflow(dataflow) if uppers_of(state, dataflow):
                for id_ in dataflow.export_ids:
                    _less_of(state, AllowCompaction(id_, dataflow.as_of), of[id_])
                found.append(command)
            case AllowCompaction(id_, frontier) if id_ in of and not frontier.is_empty:
                found.append(_less_of(state, command, of[id_]))
            case _:
                found.append(command)
    return found


def _less_of(state: State, command: AllowCompaction, dataflow: Dataflow) -> AllowCompaction:
    """Return a command with no more than can be forgotten, and warn where that is less."""
    try:
        taken = may_forget(state, command.id, command.frontier, dataflow)
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


# Following ----------------------------------------------------------------------------------------------


def follow(state: State, /, *, to_write: bool = False) -> None:
    """Take up what the command log says that the instance has not done yet.

    Parameters
    ----------
    state : State
    to_write : bool
        Whether this start writes from now on: then what has written nothing begins where it can begin by now.
    """
    wanted = reduced(commands_of(state.commands.rows()))
    flows = {each.dataflow.export_ids: each.dataflow for each in wanted if isinstance(each, CreateDataflow)}
    there = {each.dataflow.export_ids: each.dataflow for each in state.runs() if each.dataflow.lasts}
    # Those that do not do the same, from whichever time on.
    changed = {ids for ids, mine in there.items() if ids not in flows or mine.at(flows[ids].as_of) != flows[ids]}
    is_known = flows.keys() <= there.keys() - changed
    chosen = resumed(state, list(flows.values())) if to_write or not is_known else {}
    if to_write:
        changed |= {
            ids
            for ids, flow in flows.items()
            if ids in there and there[ids].as_of != chosen[ids].as_of and not uppers_of(state, flow)
        }
    # An id of what only this process has may be in use by now.
    taken = {id_ for ids in flows.keys() - there.keys() for id_ in ids}
    _drop_here(state, [*(id_ for ids in changed for id_ in ids), *taken])
    for each in wanted:
        _take_up(state, each, chosen)


def _take_up(state: State, command: Command, chosen: Mapping[tuple[str, ...], Dataflow]) -> None:
    """Do what a command of the command log says, unless it is done."""
    instance = state.instance
    match command:
        case UpdateConfiguration(values):
            if any(instance.configuration.get(name) != value for name, value in values.items()):
                instance.handle(command)
        case CreateDataflow(dataflow):
            ids = dataflow.export_ids
            if any(each.dataflow.export_ids == ids for each in state.runs()):
                for id_ in ids:
                    _take_up(state, AllowCompaction(id_, dataflow.as_of), chosen)
                return
            as_of, exports = chosen[ids].as_of, state.readable()
            for each in dataflow.own_imports:
                if exports[each].kind == "index":
                    as_of = as_of.join(instance.allowed(each))
            instance.handle(CreateDataflow(dataflow.at(as_of)))
        case Schedule(id_):
            if any(id_ in each.live for each in instance.suspended()):
                instance.handle(command)
        case AllowCompaction(id_, frontier):
            if frontier.is_empty:
                _drop_here(state, [id_])
            elif instance.has(id_):
                try:
                    taken = may_forget(state, id_, frontier)
                except StorageError as error:
                    # A log elsewhere whose options only the writing process has: what it forgets is not known here.
                    _log.info("how far %r may be compacted is not known: %s", id_, error)
                    return
                if not taken.less_equal_frontier(instance.allowed(id_)):
                    instance.handle(replace(command, frontier=taken))


def _drop_here(state: State, ids: Iterable[str]) -> None:
    """Drop exports, those of dataflows that read them first."""
    for id_ in ids:
        if id_ not in state.exports() or not state.instance.has(id_):
            continue
        _drop_here(state, [other for each in state.runs() if id_ in each.dataflow.own_imports for other in each.live])
        state.instance.handle(AllowCompaction(id_, Antichain.empty(state.domain_of(id_).arity)))
