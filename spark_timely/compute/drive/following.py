"""Following a command log: taking up what it says by now, and nothing else.

What this process has of its own, its subscribes and peeks, continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_timely.compute.command import (
    AllowCompaction,
    Command,
    CreateDataflow,
    Dataflow,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.drive.resuming import may_forget, resumed, uppers_of
from spark_timely.compute.history import reduced
from spark_timely.compute.ledger import commands_of
from spark_timely.errors import StorageError
from spark_timely.masking import masked_logger
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.drive.context import Context

__all__ = ["follow"]

_log = masked_logger("spark_timely.compute")


def follow(context: Context, /, *, to_write: bool = False) -> None:
    """Take up what the command log says that the instance has not done yet.

    Parameters
    ----------
    context : Context
    to_write : bool
        Whether this start writes from now on: then what has written nothing begins where it can begin by now.
    """
    wanted = reduced(commands_of(context.commands.rows()))
    flows = {each.dataflow.export_ids: each.dataflow for each in wanted if isinstance(each, CreateDataflow)}
    there = {each.dataflow.export_ids: each.dataflow for each in context.runs() if each.dataflow.lasts}
    changed = {ids for ids, mine in there.items() if not _is_same(mine, flows.get(ids))}
    is_known = flows.keys() <= there.keys() - changed
    chosen = resumed(context, list(flows.values())) if to_write or not is_known else {}
    if to_write:
        changed |= {
            ids
            for ids, flow in flows.items()
            if ids in there and there[ids].as_of != chosen[ids].as_of and not uppers_of(context, flow)
        }
    # An id of what only this process has may be in use by now.
    taken = {id_ for ids in flows.keys() - there.keys() for id_ in ids}
    _drop_here(context, [*(id_ for ids in changed for id_ in ids), *taken])
    for each in wanted:  # one turn per command
        _take_up(context, each, chosen)


def _take_up(context: Context, command: Command, chosen: Mapping[tuple[str, ...], Dataflow]) -> None:
    """Do what a command of the command log says, unless it is done."""
    instance = context.instance
    match command:
        case UpdateConfiguration(values):
            if any(instance.configuration.get(name) != value for name, value in values.items()):
                instance.handle(command)
        case CreateDataflow(dataflow):
            ids = dataflow.export_ids
            if any(each.dataflow.export_ids == ids for each in context.runs()):
                for id_ in ids:
                    _take_up(context, AllowCompaction(id_, dataflow.as_of), chosen)
                return
            as_of, exports = chosen[ids].as_of, context.readable()
            for each in dataflow.own_imports:
                if exports[each].kind == "index":
                    as_of = as_of.join(instance.allowed(each))
            instance.handle(CreateDataflow(dataflow.at(as_of)))
        case Schedule(id_):
            if any(id_ in each.live for each in instance.suspended()):
                instance.handle(command)
        case AllowCompaction(id_, frontier):
            if frontier.is_empty:
                _drop_here(context, [id_])
            elif instance.has(id_):
                try:
                    taken = may_forget(context, id_, frontier)
                except StorageError as error:
                    # A log elsewhere whose options only the writing process has: what it forgets is not known here.
                    _log.info("how far %r may be compacted is not known: %s", id_, error)
                    return
                if not taken.less_equal_frontier(instance.allowed(id_)):
                    instance.handle(replace(command, frontier=taken))


def _drop_here(context: Context, ids: Iterable[str]) -> None:
    """Drop exports, those of dataflows that read them first."""
    for id_ in ids:  # one turn per export
        if id_ not in context.exports() or not context.instance.has(id_):
            continue
        _drop_here(
            context, [other for each in context.runs() if id_ in each.dataflow.own_imports for other in each.live]
        )
        arity = next(each.dataflow.domain.arity for each in context.runs() if id_ in each.dataflow.export_ids)
        context.instance.handle(AllowCompaction(id_, Antichain.empty(arity)))


def _is_same(mine: Dataflow, other: Dataflow | None) -> bool:
    """Whether another dataflow does the same, from whichever time on."""
    return other is not None and mine.at(other.as_of) == other
