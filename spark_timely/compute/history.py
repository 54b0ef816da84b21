"""The history of commands, reduced to a short one that leads to the same state after a restart.

Kept in memory by an instance and by each session; the driver keeps what lasts of it in the command log
(`spark_timely.compute.command_log`). Every command enters the history before it is handled. Most commands undo or
repeat earlier ones, so a long history is replaced by a short one that leads to the same state.

Invariants
----------
1. The reduced history is, in this order: create runtime, create instance, one merged configuration, dataflows in the
   order of their creation, schedules, live peeks, what remains of compaction, initialization complete, allow writes.
   Compaction comes after peeks: a peek was sent while its time could be read.
2. The as_of of a dataflow becomes the meet of what its exports that are not dropped were allowed to compact to; an
   export of which nothing was said counts with the old as_of. But it does not pass the as_of of a dataflow that imports
   an index of it. For example, as_of 3 and a compaction to 8 become as_of 8. A compaction equal to the new as_of is
   absorbed, a further one stays. A dataflow whose exports are all dropped is gone.
3. Handled in this order, the reduced history makes the same dataflows wait, queue and run as the whole one. So an
   export that was dropped while another one still missed its schedule counts as scheduled, and so do all exports of
   dataflows that were there while dataflows did not wait.
4. Reducing twice changes nothing.
5. The history is reduced whenever it is longer than twice its last reduced length: its length is bounded by what lasts,
   and each command costs O(1) on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, TypeAlias

from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    Dataflow,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
    text_of,
)
from spark_timely.time.antichain import Antichain

__all__ = ["SCHEDULING", "History", "Row", "reduced", "rows_of"]

SCHEDULING: Final = "scheduling"
"""The value of the configuration that says whether dataflows wait for `Schedule`."""

Row: TypeAlias = "tuple[int, str]"


class History:
    """The commands that were handled, or what they come down to.

    Parameters
    ----------
    commands : iterable of Command
        To begin with.

    Examples
    --------
    >>> history = History([CreateTimely(1), CreateInstance()])
    >>> history.append(UpdateConfiguration({"a": 1})), history.append(UpdateConfiguration({"a": 2}))
    (True, False)
    >>> history.reduced()[2:]
    (UpdateConfiguration(values=mappingproxy({'a': 2})),)
    """

    def __init__(self, commands: Iterable[Command] = ()) -> None:
        self._commands = list(commands)
        self._reduced = 0
        # Exports of dataflows that do not last; that some are gone does no harm, and they go when it is reduced.
        self._passing: set[str] = set()
        for command in self._commands:
            _note_passing(command, self._passing)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self._commands)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands as they are kept now."""
        return tuple(self._commands)

    def append(self, command: Command, /) -> bool:
        """Add a command, and return whether the history was reduced by that (invariant 5)."""
        self._commands.append(command)
        _note_passing(command, self._passing)
        if len(self._commands) <= 2 * self._reduced:
            return False
        self.reduce()
        return True

    def retire_peek(self, id_: str, /) -> None:
        """Note that a peek has its answer: it is not live any more."""
        self.append(CancelPeek(id_))

    def reduced(self) -> tuple[Command, ...]:
        """Return the reduced history, without reducing this one."""
        return reduced(self._commands)

    def reduce(self) -> None:
        """Replace the history by the reduced one."""
        self._commands = list(reduced(self._commands))
        self._reduced = len(self._commands)
        self._passing = set()
        for command in self._commands:
            _note_passing(command, self._passing)

    def lasting(self) -> tuple[Command, ...]:
        """Return the commands that last beyond the process, in order.

        Left out are peeks, and what is about dataflows that are interactive or not restartable.
        """
        passing: set[str] = set()
        found: list[Command] = []
        for command in self._commands:
            _note_passing(command, passing)
            if _lasts(command, passing):
                found.append(command)
        return tuple(found)

    def lasts(self, command: Command, /) -> bool:
        """Tell whether a command lasts, were it appended now."""
        return _lasts(command, self._passing)


def _note_passing(command: Command, passing: set[str]) -> None:
    if isinstance(command, CreateDataflow):
        change = passing.difference_update if command.dataflow.lasts else passing.update
        change(command.dataflow.export_ids)


def _lasts(command: Command, passing: set[str]) -> bool:
    match command:
        case Peek() | CancelPeek():
            return False
        case CreateDataflow(dataflow):
            return dataflow.lasts
        case Schedule(id_) | AllowCompaction(id_, _):
            return id_ not in passing
    return True


# Reducing ----------------------------------------------------------------------------------------


@dataclass
class _Flow:
    """A dataflow that is there, and what was said of its exports."""

    dataflow: Dataflow
    live: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    allowed: dict[str, Antichain] = field(default_factory=dict)


def reduced(commands: Iterable[Command], /) -> tuple[Command, ...]:
    """Return the reduced history of commands (invariants 1 to 4).

    Notes
    -----
    Cost: O(n) in the number of commands and of exports.

    Examples
    --------
    >>> from spark_timely.compute.command import Export
    >>> flow = Dataflow("f", (), "{}", (Export("a", "index"),), Antichain.of(3))
    >>> reduced([CreateDataflow(flow), Schedule("a"), AllowCompaction("a", Antichain.of(8))]) == (
    ...     CreateDataflow(flow.at(Antichain.of(8))),
    ...     Schedule("a"),
    ... )
    True
    """
    state = _Reduction()
    for command in commands:
        state.add(command)
    return state.result()


class _Reduction:
    """The state that commands lead to."""

    def __init__(self) -> None:
        self.first: dict[type, Command] = {}
        self.configuration: dict[str, object] = {}
        self.updated = False
        # Whether dataflows wait for `Schedule`.
        self.scheduling = True
        self.flows: dict[int, _Flow] = {}
        self.of: dict[str, int] = {}
        self.schedules: dict[str, None] = {}
        self.peeks: dict[str, Peek] = {}
        # Of the collections that show the instance: no dataflow has them.
        self.shown: dict[str, Antichain] = {}
        self.relations: frozenset[str] = frozenset()
        self.count = 0

    def add(self, command: Command) -> None:
        match command:
            case CreateTimely():
                self.first[CreateTimely] = command
            case InitializationComplete() | AllowWrites():
                self.first.setdefault(type(command), command)
            case CreateInstance(introspection, configuration, _):
                self.first[CreateInstance] = command
                self.scheduling = configuration.get(SCHEDULING, True) is not False
                self.relations = frozenset(introspection.values())
            case UpdateConfiguration(values):
                self.updated = True
                self.configuration.update(values)
                before, self.scheduling = self.scheduling, values.get(SCHEDULING, self.scheduling) is not False
                if not before and self.scheduling:
                    self.schedule_all()
            case CreateDataflow(dataflow):
                self.create(dataflow)
            case Schedule(id_):
                flow = self.flows.get(self.of.get(id_, 0))
                # Of one that was dropped it says nothing; what its share became was decided then.
                if flow is not None and id_ in flow.live:
                    self.schedules.setdefault(id_)
                    flow.missing.discard(id_)
            case AllowCompaction(id_, frontier):
                self.compact(id_, frontier)
            case Peek(id_):
                self.peeks.pop(id_, None)
                self.peeks[id_] = command
            case CancelPeek(id_):
                self.peeks.pop(id_, None)

    def create(self, dataflow: Dataflow) -> None:
        self.count += 1
        ids = dataflow.export_ids
        flow = _Flow(dataflow, set(ids), set(ids))
        self.flows[self.count] = flow
        self.of.update(dict.fromkeys(ids, self.count))

    def schedule_all(self) -> None:
        """Note that all dataflows that are there started by themselves.

        None of them waits: those before lose their places in the queue, so that it does not matter when this is noted.
        """
        there = self.schedules
        self.schedules = {}
        for flow in self.flows.values():
            if flow.dataflow.interactive:
                self.schedules.update((id_, None) for id_ in flow.dataflow.export_ids if id_ in there)
                continue
            noted = there.keys() | flow.missing
            self.schedules.update((id_, None) for id_ in flow.dataflow.export_ids if id_ in noted)
            flow.missing.clear()

    def compact(self, id_: str, frontier: Antichain) -> None:
        number = self.of.get(id_)
        if number is None:
            if id_ in self.relations:
                before = self.shown.get(id_)
                self.shown[id_] = frontier if before is None else before.join(frontier)
            return
        flow = self.flows[number]
        if not frontier.is_empty:
            flow.allowed[id_] = flow.allowed.get(id_, flow.dataflow.as_of).join(frontier)
            return
        flow.live.discard(id_)
        if not flow.live:
            del self.flows[number]
            for other in flow.dataflow.export_ids:
                del self.of[other]
                self.schedules.pop(other, None)
            return
        if id_ in flow.missing:
            flow.missing.remove(id_)
            if flow.missing:
                # Its share is given up while others are missing: as if it were scheduled (invariant 3).
                self.schedules.setdefault(id_)

    def result(self) -> tuple[Command, ...]:
        if not self.scheduling:
            self.schedule_all()
        found: list[Command] = [self.first[kind] for kind in (CreateTimely, CreateInstance) if kind in self.first]
        if self.updated:
            found.append(UpdateConfiguration(self.configuration))
        as_ofs = self.as_ofs()
        found += [CreateDataflow(flow.dataflow.at(as_ofs[number])) for number, flow in self.flows.items()]
        found += [Schedule(id_) for id_ in self.schedules]
        there = self.of.keys() | self.relations
        found += [peek for peek in self.peeks.values() if peek.collection is None or peek.collection in there]
        for number, flow in self.flows.items():
            for id_ in flow.dataflow.export_ids:
                if id_ not in flow.live:
                    found.append(AllowCompaction(id_, Antichain.empty(flow.dataflow.domain.arity)))
                elif flow.allowed.get(id_, as_ofs[number]) != as_ofs[number]:
                    found.append(AllowCompaction(id_, flow.allowed[id_]))
        found += [AllowCompaction(id_, frontier) for id_, frontier in self.shown.items()]
        return (*found, *(self.first[kind] for kind in (InitializationComplete, AllowWrites) if kind in self.first))

    def as_ofs(self) -> dict[int, Antichain]:
        """Return the new as_of of each dataflow (invariant 2)."""
        found: dict[int, Antichain] = {}
        needed: dict[int, list[Antichain]] = {}
        # The last first: an importer is younger than what it imports.
        for number, flow in reversed(self.flows.items()):
            own = [flow.allowed.get(id_, flow.dataflow.as_of) for id_ in flow.live]
            as_of = reduce(Antichain.meet, own + needed.get(number, []))
            found[number] = as_of
            for id_ in flow.dataflow.own_imports:
                source = self.of.get(id_)
                if source is not None and _is_index(self.flows[source].dataflow, id_, as_of):
                    needed.setdefault(source, []).append(as_of)
        return found


def _is_index(dataflow: Dataflow, id_: str, as_of: Antichain) -> bool:
    kinds = {each.id: each.kind for each in dataflow.exports}
    return kinds[id_] == "index" and dataflow.domain.arity == as_of.arity


# The command log ---------------------------------------------------------------------------------


def rows_of(commands: Sequence[Command], /) -> list[Row]:
    """Return commands as rows of the command log: number, from 0 on, and text.

    Examples
    --------
    >>> rows_of([Schedule("a")])
    [(0, '{"command":"schedule","id":"a","v":1}')]
    """
    return [(number, text_of(command)) for number, command in enumerate(commands)]
