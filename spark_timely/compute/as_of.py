"""From which time on a dataflow computes: its as_of, chosen from what it reads and what it has written.

Rules
-----
1. *Readable.* The as_of is not before the since of anything that is imported. An index is built from a collection: the
   since of the index does not count, that of its collection does. What a dataflow itself exports is no import here. An
   export of another dataflow that is not written yet counts as readable at the as_of of that dataflow; so dataflows are
   chosen in topological order.
2. *Nothing skipped.* An export with a log continues where the log ends. Its as_of is before its upper: each coordinate
   of it is less, unless that of the upper is at the minimum, where nothing was written. A task whose output has not
   passed the time I that it recorded as its beginning has as_of = I.
3. *Latest.* Then the as_of is the latest at which all imports are complete, so that the dataflow can answer at once.
   Where no import bounds it, because all are complete, it is the earliest.
4. *Kept.* After a restart the as_of is not before what the dataflow was allowed to compact to: an earlier one would be
   compared with that, and nothing be kept.
5. *Retained.* Whoever starts the dataflow first retains each import at its since, and moves that to the as_of once it
   is chosen: nothing is forgotten in between.

Invariants
----------
1. Rules 1 and 2 hold of each as_of that is chosen; where both cannot hold, nothing is chosen. Rule 1 bounds it from
   below, by the join of the sinces: a time is at or beyond the join exactly if it is so of each. Rule 2 bounds it from
   above, by the meet of the steps back from the uppers: see invariant 2. A dataflow that others read before it has
   written anything is bounded by them too, or they could not continue. Such a bound is not below what the dataflow can
   read: whatever reads it can be read no earlier.
2. With the as_of strictly below the upper in each coordinate, no update is appended twice. An update at a time s that
   the log has, so not at or beyond any element u of its upper, is computed at s advanced to the as_of: at the
   coordinates max(s, a). Were that at or beyond u, then s itself would be, since a is below u in each coordinate that
   is not at its minimum, and s is not below the minimum.
3. Rules 3 and 4 choose among what rules 1 and 2 leave. Rule 4 goes before rule 3: it is a lower bound, and the latest
   is joined to it. Where rule 2 does not leave what rule 4 wants, rule 2 wins: a dataflow that is built again is slow,
   one that skips times is wrong.
4. The choice depends on the facts that are given alone, and for several dataflows not on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

from spark_timely.compute.command import Kind
from spark_timely.errors import InvalidUsageError, SinceViolationError, TimelyError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = ["Choice", "DataflowFacts", "ExportFacts", "ImportFacts", "choose_as_of", "choose_as_ofs", "stepped_back"]


@dataclass(frozen=True)
class ImportFacts:
    """What an import can be read at.

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
    """How far an export was written.

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
    """What the choice of a dataflow's as_of depends on.

    Attributes
    ----------
    key : str
        Names the dataflow in the result.
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


@dataclass(frozen=True)
class Choice:
    """An as_of, and what to retain for it (rule 5).

    Attributes
    ----------
    as_of : Antichain
    kept : bool
        Whether rule 4 could be held.
    retain_first, retain_then : mapping of str to Antichain
        By the name of the import: what to retain before the as_of is taken, and from then on.
    """

    as_of: Antichain
    kept: bool = True
    retain_first: Mapping[str, Antichain] = field(default_factory=dict)
    retain_then: Mapping[str, Antichain] = field(default_factory=dict)


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


def choose_as_of(
    facts: DataflowFacts,
    *,
    unwritten: Mapping[str, Antichain] = MappingProxyType({}),
    before: Antichain | None = None,
) -> Choice:
    """Choose the as_of of one dataflow by the rules of the module's head.

    Parameters
    ----------
    facts : DataflowFacts
    unwritten : dict of str to Antichain, optional
        As_of of exports of other dataflows that are not written yet, by id.
    before : Antichain, optional
        A frontier that the as_of must not pass, for those that read what is not written yet. Not below what the
        imports can be read at.

    Raises
    ------
    SinceViolationError
        If an import has forgotten what is needed to continue an export: rules 1 and 2 cannot both hold.

    Examples
    --------
    >>> orders = ImportFacts("orders", since=Antichain.of(3), upper=Antichain.of(9))
    >>> choose_as_of(DataflowFacts("totals", (orders,), (ExportFacts("totals", "index"),))).as_of
    Antichain.of(8)
    >>> choose_as_of(DataflowFacts("totals", (orders,), (ExportFacts("totals", "log", Antichain.of(6)),))).as_of
    Antichain.of(5)
    """
    sinces = _sinces(facts, unwritten)
    lower = reduce(Antichain.join, sinces.values(), facts.domain.minimum_frontier)
    highest = _highest(facts)
    if not lower.less_equal_frontier(highest):
        raise _forgotten(facts, sinces, highest)
    if before is not None:
        highest = highest.meet(before)
    if _begins_at_recorded(facts) and facts.recorded is not None:
        kept = facts.allowed is None or facts.allowed.less_equal_frontier(facts.recorded)
        return Choice(facts.recorded, kept, sinces, dict.fromkeys(sinces, facts.recorded))
    wanted = lower if facts.allowed is None else lower.join(facts.allowed)
    kept = wanted.less_equal_frontier(highest)
    at_least = wanted if kept else lower
    read = [each.upper for each in _imports(facts) if each.export is None or each.export not in unwritten]
    complete = stepped_back(reduce(Antichain.meet, read, Antichain.empty(facts.domain.arity)), facts.domain)
    # Below both; and since `at_least` is below both, it is below their meet.
    as_of = (at_least if complete.is_empty else at_least.join(complete)).meet(highest)
    return Choice(as_of, kept, sinces, dict.fromkeys(sinces, as_of))


def choose_as_ofs(dataflows: Iterable[DataflowFacts]) -> dict[str, Choice | TimelyError]:
    """Choose the as_of of several dataflows, each after those that it reads from.

    Returns
    -------
    dict of str to Choice or TimelyError
        By key, in the order that was given. An error is of this dataflow alone, and of those that wait for it.

    Raises
    ------
    InvalidUsageError
        If dataflows read from each other in a circle, or two have one key or export.

    Examples
    --------
    >>> log = ImportFacts("orders", since=Antichain.of(3), upper=Antichain.of(9))
    >>> nothing = Antichain.of(TimeDomain().minimum)
    >>> totals = DataflowFacts("totals", (log,), (ExportFacts("t", "log"),))
    >>> top = DataflowFacts("top", (ImportFacts("t", nothing, nothing, export="t"),), (ExportFacts("u", "index"),))
    >>> [choice.as_of for choice in choose_as_ofs([top, totals]).values()]
    [Antichain.of(8), Antichain.of(8)]
    """
    given = list(dataflows)
    by_key = {facts.key: facts for facts in given}
    owner = {export.id: facts.key for facts in given for export in facts.exports}
    if len(by_key) != len(given) or len(owner) != sum(len(facts.exports) for facts in given):
        msg = f"could not choose times for dataflows: found a name twice in {sorted(facts.key for facts in given)!r}"
        raise InvalidUsageError(msg, hint="give each dataflow and export a name of its own")
    graph = {
        facts.key: {owner[each.export] for each in facts.imports if each.export in owner} - {facts.key}
        for facts in given
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        msg = f"could not choose times for dataflows: found a circle, {' → '.join(map(str, error.args[1]))}"
        raise InvalidUsageError(msg, hint="read what a dataflow itself writes within one dataflow") from error
    sources = {
        facts.key: {
            each.export: owner[each.export]
            for each in facts.imports
            if each.export is not None and owner.get(each.export, facts.key) != facts.key
            if not _is_written(by_key[owner[each.export]], each.export)
        }
        for facts in given
    }
    bounds = _bounds_of_readers(order, by_key, sources)
    chosen: dict[str, Choice | TimelyError] = {}
    for key in order:  # one turn per dataflow
        chosen[key] = _choose_after(by_key[key], sources[key], bounds.get(key), chosen)
    return {facts.key: chosen[facts.key] for facts in given}


def _bounds_of_readers(
    order: Sequence[str], by_key: Mapping[str, DataflowFacts], sources: Mapping[str, Mapping[str, str]]
) -> dict[str, Antichain]:
    """Return how far each dataflow may begin so that those that read what it has not written can continue.

    Of a reader that cannot continue anyway, nothing is asked.
    """
    lowest: dict[str, Antichain] = {}
    for key in order:  # one turn per dataflow
        unwritten = {export: lowest[source] for export, source in sources[key].items()}
        lowest[key] = reduce(
            Antichain.join, _sinces(by_key[key], unwritten).values(), by_key[key].domain.minimum_frontier
        )
    bounds: dict[str, Antichain] = {}
    for key in reversed(order):  # one turn per dataflow
        highest = _highest(by_key[key])
        highest = highest.meet(bounds[key]) if key in bounds else highest
        if not lowest[key].less_equal_frontier(highest):
            continue
        for source in sources[key].values():
            bounds[source] = bounds[source].meet(highest) if source in bounds else highest
    return bounds


def _choose_after(
    facts: DataflowFacts,
    sources: Mapping[str, str],
    before: Antichain | None,
    chosen: Mapping[str, Choice | TimelyError],
) -> Choice | TimelyError:
    unwritten: dict[str, Antichain] = {}
    for export, key in sources.items():
        source = chosen[key]
        if not isinstance(source, Choice):
            msg = f"could not choose a time for dataflow {facts.key!r}: found none for {key!r}, which it reads"
            return SinceViolationError(msg, hint=source.hint, context={"cause": source.message})
        unwritten[export] = source.as_of
    try:
        return choose_as_of(facts, unwritten=unwritten, before=before)
    except TimelyError as error:
        return error


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


def _is_written(facts: DataflowFacts, id_: str) -> bool:
    """Tell whether an export can be read without its dataflow: it has a log, with something in it."""
    (export,) = (each for each in facts.exports if each.id == id_)
    return export.kind == "log" and export.upper is not None


def _forgotten(facts: DataflowFacts, sinces: Mapping[str, Antichain], at: Antichain) -> SinceViolationError:
    (name, since), *_ = [*((n, s) for n, s in sinces.items() if not s.less_equal_frontier(at)), *sinces.items()]
    msg = (
        f"could not choose a time for dataflow {facts.key!r}: found since={since!r} of import {name!r}, "
        f"needed {at!r} to continue where its exports are"
    )
    return SinceViolationError(
        msg, hint="write its exports to other logs, from the beginning of what can be read", as_of=at, since=since
    )
