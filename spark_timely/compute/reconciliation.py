"""Reconciliation: after a reconnect, which running dataflows are kept, dropped or created.

Used by `spark_timely.compute.instance` alone. A client that connects sends all its commands again. Most of what it asks
for runs already; to build that again would make all clients wait for nothing. So its commands are collected up to
`InitializationComplete`, both histories are reduced, and dataflows are compared. The result equals dropping everything
and running the new commands: what is kept gives the same answers from its new as_of on, only earlier.

Invariants
----------
1. A dataflow is kept only if all of this is so: exports, plan, imports, until, types of times and being interactive are
   equal; its old as_of is at or before the new one; none of its exports was dropped, or allowed to compact past the new
   as_of; it has neither subscribe nor copy-to, whose batches begin with the session; and each export that it imports is
   kept too. For example, one that computes from 3 on is kept for a client that wants it from 5 on, not the other way.
2. What is kept compacts to the new as_of, and reports again from there, hydration included.
3. What is not kept is dropped before anything is made, importers before what they import, and without a report.
4. An instance has one configuration of its introspection for its life. Another one cannot be reconciled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_timely.compute.command import AllowCompaction, Command, CreateDataflow, CreateInstance, Dataflow
from spark_timely.errors import InvalidUsageError
from spark_timely.time.antichain import Antichain

__all__ = ["Reconciliation", "check_compatible", "reconcile"]

Key = frozenset[str]


@dataclass(frozen=True)
class Reconciliation:
    """The fate of old and new dataflows, by the ids of their exports.

    Attributes
    ----------
    kept : dict of frozenset of str to Dataflow
        The new dataflows that run already, in order of the new commands.
    dropped : tuple of frozenset of str
        The old dataflows that are dropped, in the order of dropping.
    created : dict of frozenset of str to Dataflow
        The new dataflows that are made, in order.
    reasons : dict of frozenset of str to str
        Why an old dataflow is not kept.
    """

    kept: Mapping[Key, Dataflow] = field(default_factory=dict)
    dropped: tuple[Key, ...] = ()
    created: Mapping[Key, Dataflow] = field(default_factory=dict)
    reasons: Mapping[Key, str] = field(default_factory=dict)


def reconcile(old: Iterable[Command], new: Iterable[Command]) -> Reconciliation:
    """Compare what runs with what is asked for.

    Parameters
    ----------
    old, new : iterable of Command
        Reduced histories.

    Returns
    -------
    Reconciliation

    Notes
    -----
    Cost: O(n) in the number of commands and of imports and exports.

    Examples
    --------
    >>> from spark_timely.compute.command import Export
    >>> flow = Dataflow("f", (), "{}", (Export("a", "index"),), Antichain.of(3))
    >>> later = CreateDataflow(flow.at(Antichain.of(5)))
    >>> [sorted(ids) for ids in reconcile([CreateDataflow(flow)], [later]).kept]
    [['a']]
    >>> reconcile([later], [CreateDataflow(flow)]).reasons[frozenset({"a"})]
    'it computes from Antichain.of(5) on, not from Antichain.of(3) on'
    """
    flows: dict[Key, Dataflow] = {}
    allowed: dict[str, Antichain] = {}
    # What shows the instance is the same in both (invariant 4).
    shared: set[str] = set()
    for command in old:
        match command:
            case CreateDataflow(dataflow):
                flows[frozenset(dataflow.export_ids)] = dataflow
            case AllowCompaction(id_, frontier):
                allowed[id_] = frontier
            case CreateInstance(introspection, _, _):
                shared.update(introspection.values())
    kept: dict[Key, Dataflow] = {}
    created: dict[Key, Dataflow] = {}
    reasons: dict[Key, str] = {}
    for command in new:
        if not isinstance(command, CreateDataflow):
            continue
        dataflow = command.dataflow
        key = frozenset(dataflow.export_ids)
        before = flows.get(key)
        why = None if before is None else _why_not(before, dataflow, allowed, shared)
        if before is not None and why is None:
            kept[key] = dataflow
            shared |= key
            continue
        created[key] = dataflow
        if why is not None:
            reasons[key] = why
    # The youngest first: an importer is younger than what it imports.
    dropped = tuple(key for key in reversed(flows) if key not in kept)
    for key in dropped:
        reasons.setdefault(key, "the session does not ask for it")
    return Reconciliation(kept, dropped, created, reasons)


def check_compatible(old: CreateInstance, new: CreateInstance) -> None:
    """Refuse to reconcile an instance with another configuration of its introspection (invariant 4).

    Raises
    ------
    InvalidUsageError
        If the two differ in what the instance cannot change. Its context has ``halt=True``: no session like this one
        can succeed, so the process has to be started again.

    Examples
    --------
    >>> shows = {"frontiers": "s1"}
    >>> check_compatible(CreateInstance(shows), CreateInstance(shows, {"hydration_limit": 1}))
    """
    if old.introspection == new.introspection and old.domain == new.domain:
        return
    msg = (
        f"could not connect to the instance: found introspection={dict(new.introspection)!r} with times "
        f"{new.domain.to_json()}, the instance has {dict(old.introspection)!r} with times {old.domain.to_json()}"
    )
    raise InvalidUsageError(
        msg, hint="create the instance as it was, or stop it and start it again", context={"halt": True}
    )


def _why_not(old: Dataflow, new: Dataflow, allowed: Mapping[str, Antichain], kept: set[str]) -> str | None:
    """Return why a dataflow cannot be kept; None if it can (invariant 1)."""
    by_id = {each.id: each for each in old.exports}
    if by_id != {each.id: each for each in new.exports}:
        return "its exports differ"
    for part in ("plan", "imports", "until", "domain", "interactive"):
        if getattr(old, part) != getattr(new, part):
            return f"{part} differs"
    if not old.as_of.less_equal_frontier(new.as_of):
        return f"it computes from {old.as_of!r} on, not from {new.as_of!r} on"
    for id_, export in by_id.items():
        if export.kind in ("subscribe", "copy-to"):
            return f"{id_!r} is a {export.kind}, which begins with the session"
        if id_ in allowed and not allowed[id_].less_equal_frontier(new.as_of):
            done = "dropped" if allowed[id_].is_empty else f"allowed to compact to {allowed[id_]!r}"
            return f"{id_!r} was {done}, past {new.as_of!r}"
    replaced = sorted(id_ for id_ in new.own_imports if id_ not in kept)
    return f"{replaced[0]!r}, which it imports, is not kept" if replaced else None
