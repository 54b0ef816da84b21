"""Whether a command log is the newest one of its instance, or went back: judged before a start takes it over.

Invariants
----------
1. Nothing is written before it is judged, and what is taken over is what was judged.
2. A consent names each output that is in doubt, with the start that wrote it where it is continued: it holds once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_timely.compute.command import AllowCompaction, Command, CreateDataflow, Dataflow
from spark_timely.compute.command_log import Judgement
from spark_timely.compute.drive.folders import ASIDE, Found, folders_of, found_at
from spark_timely.compute.history import reduced, rows_of
from spark_timely.compute.ledger import Ledger, Mark, commands_of
from spark_timely.errors import InvalidUsageError, LogMissingError, RolledBackError, TimelyError, shown
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import has_table
from spark_timely.masking import masked_logger
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.drive.place import Place
    from spark_timely.compute.history import Row
    from spark_timely.protocol.note import Fence

__all__ = ["Consent", "check_commands_there", "judged"]

_log = masked_logger("spark_timely.compute")

_ALL_FOLDERS: Final = "*"


@dataclass(frozen=True)
class Consent:
    """What somebody said about outputs that are in doubt.

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
        for id_, epoch in self.adopts.items():  # one turn per collection
            if not isinstance(id_, str) or not isinstance(epoch, int) or isinstance(epoch, bool):
                msg = f"could not run the instance: found adopts={shown(dict(self.adopts))}"
                raise InvalidUsageError(msg, hint="give the start that wrote each collection: adopts={'totals': 7}")
        if not all(isinstance(each, str) for each in self.leaves):
            msg = f"could not run the instance: found leaves={shown(sorted(map(str, self.leaves)))}"
            raise InvalidUsageError(msg, hint="give the names of collections and folders")

    def leaves_folder(self, name: str) -> bool:
        """Return whether a folder that no command names stays."""
        return name in self.leaves or _ALL_FOLDERS in self.leaves


def check_commands_there(place: Place, consent: Consent, /) -> None:
    """Refuse to make an instance where one was.

    Raises
    ------
    RolledBackError
        If there is no command log, while an instance wrote collections, and they were not said to be left.
    """
    folders = folders_of(place)  # before the look at the command log, which is made before any of them
    if not folders or has_table(open_storage(place.commands, dict(place.storage_options) or None)):
        return
    found = {name: _found(f"{place.collections}/{name}", place) for name in folders}
    left = [name for name, each in found.items() if each.fence is not None and not consent.leaves_folder(name)]
    if left:
        msg = f"could not run the instance in {place.directory!r}: found no command log, but collections: {shown(left)}"
        hint = (
            "put the folder 'commands' back; to begin without them, which leaves them as they are, say leaves=['*'] "
            "(--leave '*')"
        )
        raise RolledBackError(msg, hint=hint, context={"path": place.directory})


def judged(place: Place, instance: str, consent: Consent, holder: Fence | None, rows: Sequence[Row], /) -> Judgement:
    """Judge a command log by what the outputs say.

    Parameters
    ----------
    place : Place
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
        export.id: _found(path, place)
        for flow in flows
        for export in flow.exports
        if (path := place.path_of(export)) is not None
    }
    named = {place.name_of(export) for flow in flows for export in flow.exports}
    folders = {name: _found(f"{place.collections}/{name}", place) for name in folders_of(place) if name not in named}
    epochs: dict[str, int] = {}
    for id_, each in outputs.items():  # one turn per output
        fence = _own(each, instance)
        if fence is not None and _is_newer(fence, holder):
            epochs[id_] = fence.epoch
    strays = [name for name, each in folders.items() if _is_stray(name, each, instance, holder, ledger)]
    open_ = [id_ for id_, epoch in epochs.items() if consent.adopts.get(id_) != epoch and id_ not in consent.leaves]
    unsaid = [name for name in strays if not consent.leaves_folder(name)]
    if open_ or unsaid:
        raise _refusal(place, holder, {id_: epochs[id_] for id_ in open_}, unsaid)
    above = max(
        (fence.epoch for each in (*outputs.values(), *folders.values()) if (fence := _own(each, instance))), default=0
    )
    if not epochs and not strays:
        return Judgement(above)
    for id_, epoch in epochs.items():  # one turn per output
        _log.warning("collection %r is %s", id_, "left" if id_ in consent.leaves else f"continued from start {epoch}")
    left = _left(flows, {id_ for id_ in epochs if id_ in consent.leaves}, consent)
    marks = [Mark(name, "left", folders[name].log_id) for name in strays]
    for flow in left:  # one turn per dataflow
        for export in flow.exports:
            name = place.name_of(export)
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
    while readers:  # at most one turn per dataflow
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


def _refusal(place: Place, holder: Fence | None, epochs: Mapping[str, int], strays: Sequence[str]) -> RolledBackError:
    start = "no start" if holder is None else f"start {holder.epoch} ({holder.owner})"
    found = [f"collections that later starts wrote, {shown(dict(epochs))}"] if epochs else []
    found += [f"folders that its commands do not name, {shown(list(strays))}"] if strays else []
    msg = (
        f"could not run the instance in {place.directory!r}: found a command log of {start}, which went back: there "
        f"are {' and '.join(found)}"
    )
    says = ([f"adopts={shown(dict(epochs))} continues collections"] if epochs else []) + [
        f"leaves={shown([*epochs, *strays])} leaves them as they are"
    ]
    hint = (
        "put the newest folder 'commands' back, or end the copy of the instance that wrote them; or say what becomes "
        f"of each: {', '.join(says)} (--adopt NAME=START, --leave NAME)"
    )
    return RolledBackError(msg, hint=hint, context={"path": place.directory})


def _found(path: str, place: Place) -> Found:
    """Return what is at a path; nothing where that cannot be told: its dataflow says so, which alone does not run."""
    try:
        return found_at(path, place.options(path))
    except LogMissingError:
        return Found()
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
