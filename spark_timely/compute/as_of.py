"""The as_of of a dataflow: the time from which it computes, chosen from its imports and what it has written.

Used where a dataflow is described (`spark_timely.compute.drive.description`). After a restart
`spark_timely.compute.drive.recovery` goes by the same rules. When a continual task begins is decided in
`spark_timely.compute.drive.task_beginnings`.

Rules
-----
1. *Readable.* The as_of is not before the since of anything that is imported. An index is built from a collection: the
   since of the index does not count, that of its collection does. What a dataflow itself exports is no import here. An
   export of another dataflow that is not written yet counts as readable at the as_of of that dataflow.
2. *Nothing skipped.* An export with a log continues where the log ends. Its as_of is before its upper: each coordinate
   of it is less, unless that of the upper is at the minimum, where nothing was written. A task whose output has not
   passed the time I that it recorded as its beginning has as_of = I.
3. *Latest.* Then the as_of is the latest at which all imports are complete, so that the dataflow can answer at once.
   Where no import bounds it, because all are complete, it is the earliest.
4. *Kept.* After a restart the as_of is not before what the dataflow was allowed to compact to: an earlier one would be
   compared with that, and nothing be kept.
5. *Retained.* The driver that starts the dataflow first retains each import at its since, and moves that to the as_of
   once it is chosen: nothing is forgotten in between.

Invariants
----------
1. Rules 1 and 2 hold of each as_of that is chosen; where both cannot hold, nothing is chosen. Rule 1 bounds it from
   below, by the join of the sinces: a time is at or beyond the join exactly if it is so of each. Rule 2 bounds it from
   above, by the meet of the steps back from the uppers: see invariant 2.
2. With the as_of strictly below the upper in each coordinate, no update is appended twice. With as_of 4 and upper 5, an
   update at 2 that the log has is computed again at 4, which is before 5, and so is not appended. In general: an update
   at a time s that the log has, so not at or beyond any element u of its upper, is computed at s advanced to the as_of
   a: at the coordinates max(s, a). Were that at or beyond u, then s itself would be, since a is below u in each
   coordinate that is not at its minimum, and s is not below the minimum.
3. Rules 3 and 4 choose among what rules 1 and 2 leave. Rule 4 goes before rule 3: it is a lower bound, and the latest
   is joined to it. Where rule 2 does not leave what rule 4 wants, rule 2 wins: a dataflow that is built again is slow,
   one that skips times is wrong.
4. The choice depends on the facts that are given alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

from spark_timely.compute.command import Kind
from spark_timely.errors import SinceViolationError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = ["DataflowFacts", "ExportFacts", "ImportFacts", "choose_as_of", "stepped_back"]


@dataclass(frozen=True)
class ImportFacts:
    """The times at which an import can be read.

    Attributes
    ----------
    name : str
    since, upper : Antichain
        Of the log. Of an index, those of the collection that it is built from.
    export : str or None
        Id of the export of the instance that this is. Where it is not written yet, as an index never is before its
        dataflow runs, the as_of of its dataflow takes the place of `since`, and `upper` does not bound the choice.
    """

    name: str
    since: Antichain
    upper: Antichain
    export: str | None = None


@dataclass(frozen=True)
class ExportFacts:
    """The progress of an export: how far it was written.

    Attributes
    ----------
    id : str
    kind : "index", "log", "subscribe" or "copy-to"
    upper : Antichain or None
        Of its log. None if there is none, or nothing is written: it is where the log begins, which may be later than
        where its dataflow does.
    """

    id: str
    kind: Kind
    upper: Antichain | None = None


@dataclass(frozen=True)
class DataflowFacts:
    """The facts on which the choice of a dataflow's as_of depends.

    Attributes
    ----------
    key : str
        Names the dataflow in errors.
    imports : tuple of ImportFacts
    exports : tuple of ExportFacts
    domain : TimeDomain
    recorded : Antichain or None
        I: where a continual task recorded that it begins.
    allowed : Antichain or None
        After a restart, what the dataflow was allowed to compact to: the as_of of its command in the reduced history.
    """

    key: str
    imports: tuple[ImportFacts, ...]
    exports: tuple[ExportFacts, ...]
    domain: TimeDomain = field(default_factory=TimeDomain)
    recorded: Antichain | None = None
    allowed: Antichain | None = None


def stepped_back(frontier: Antichain, domain: TimeDomain) -> Antichain:
    """Return the times just below a frontier in each coordinate, but not below the minimum.

    Examples
    --------
    >>> stepped_back(Antichain.of(5), TimeDomain(("long",), (0,)))
    Antichain.of(4)
    >>> stepped_back(Antichain.of((0, 5)), TimeDomain(("long", "long"), (0, 0)))
    Antichain.of((0, 4))
    """
    if frontier.is_empty:
        return frontier
    below = [tuple(max(x - 1, least) for x, least in zip(t, domain.minimum, strict=True)) for t in frontier]
    return Antichain.of(*below)


def choose_as_of(facts: DataflowFacts, *, unwritten: Mapping[str, Antichain] = MappingProxyType({})) -> Antichain:
    """Choose the as_of of one dataflow by the rules of the module's head.

    Parameters
    ----------
    facts : DataflowFacts
    unwritten : dict of str to Antichain, optional
        As_of of exports of other dataflows that are not written yet, by id.

    Raises
    ------
    SinceViolationError
        If an import has forgotten what is needed to continue an export: rules 1 and 2 cannot both hold.

    Examples
    --------
    >>> orders = ImportFacts("orders", since=Antichain.of(3), upper=Antichain.of(9))
    >>> choose_as_of(DataflowFacts("totals", (orders,), (ExportFacts("totals", "index"),)))
    Antichain.of(8)
    >>> choose_as_of(DataflowFacts("totals", (orders,), (ExportFacts("totals", "log", Antichain.of(6)),)))
    Antichain.of(5)
    """
    sinces = _sinces(facts, unwritten)
    lower = reduce(Antichain.join, sinces.values(), facts.domain.minimum_frontier)
    highest = _highest(facts)
    if not lower.less_equal_frontier(highest):
        raise _forgotten(facts, sinces, highest)
    if _begins_at_recorded(facts) and facts.recorded is not None:
        return facts.recorded
    wanted = lower if facts.allowed is None else lower.join(facts.allowed)
    at_least = wanted if wanted.less_equal_frontier(highest) else lower
    read = [each.upper for each in _imports(facts) if each.export is None or each.export not in unwritten]
    complete = stepped_back(reduce(Antichain.meet, read, Antichain.empty(facts.domain.arity)), facts.domain)
    # Below both; and since `at_least` is below both, it is below their meet.
    return (at_least if complete.is_empty else at_least.join(complete)).meet(highest)


def _imports(facts: DataflowFacts) -> list[ImportFacts]:
    """Return what is imported from elsewhere."""
    mine = {export.id for export in facts.exports}
    return [each for each in facts.imports if each.export not in mine]


def _sinces(facts: DataflowFacts, unwritten: Mapping[str, Antichain]) -> dict[str, Antichain]:
    """Return from when on imports can be read, by name (rule 1)."""
    return {each.name: unwritten.get(each.export or "", each.since) for each in _imports(facts)}


def _uppers(facts: DataflowFacts) -> list[Antichain]:
    """Return the uppers of the logs in which something is written."""
    return [each.upper for each in facts.exports if each.kind == "log" and each.upper is not None]


def _begins_at_recorded(facts: DataflowFacts) -> bool:
    """Tell whether this is a task whose output has not passed its recorded beginning."""
    recorded = facts.recorded
    return recorded is not None and not any(recorded.less_than_frontier(upper) for upper in _uppers(facts))


def _highest(facts: DataflowFacts) -> Antichain:
    """Return what the as_of must not pass (rule 2)."""
    if _begins_at_recorded(facts) and facts.recorded is not None:
        return facts.recorded
    backs = [stepped_back(upper, facts.domain) for upper in _uppers(facts)]
    return reduce(Antichain.meet, backs, Antichain.empty(facts.domain.arity))


def _forgotten(facts: DataflowFacts, sinces: Mapping[str, Antichain], at: Antichain) -> SinceViolationError:
    (name, since), *_ = [*((n, s) for n, s in sinces.items() if not s.less_equal_frontier(at)), *sinces.items()]
    msg = (
        f"could not choose a time for dataflow {facts.key!r}: found since={since!r} of import {name!r}, "
        f"needed {at!r} to continue where its exports are"
    )
    return SinceViolationError(
        msg, hint="write its exports to other logs, from the beginning of what can be read", as_of=at, since=since
    )
