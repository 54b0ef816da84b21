"""What a compute instance has to answer, said again in plain Python: all commands of a session in, responses out.

Times are numbers, a frontier is the number of its one element, and infinity is the empty one. A session is the list of
all its commands, never reduced: each question is answered by going through the list. Reconciliation is to drop
everything and to run the new commands; what may be kept is only there earlier. Nothing of the library is used.

Commands: ("create", spec), ("schedule", id), ("compact", id, frontier), ("peek", peek, id, time), ("cancel", peek),
("configure", values), ("writes",). A spec has exports (id to kind), imports (ids), plan, as_of, interactive.
Responses: ("frontier", id, f), ("dropped", id, f), ("batch", id, lower, upper, outcome), ("copy", id, outcome),
("peek", id, outcome), ("status", id, operator, hydrated).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Command = tuple[Any, ...]
Response = tuple[Any, ...]

COMPLETE = math.inf
LEAST = 0


@dataclass(frozen=True)
class Spec:
    exports: Mapping[str, str]
    imports: tuple[str, ...]
    plan: str
    as_of: float
    interactive: bool = False


@dataclass(eq=False)
class Flow:
    """A dataflow as the commands say it is."""

    spec: Spec
    as_of: float
    live: set[str] = field(default_factory=set)
    allowed: dict[str, float] = field(default_factory=dict)
    # Exports that were scheduled, or that gave up their share.
    scheduled: set[str] = field(default_factory=set)
    started: bool = False
    run: int | None = None
    upper: dict[str, float] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    statuses: dict[tuple[str, str], bool] = field(default_factory=dict)
    # How far its imports were told to be.
    inputs: dict[str, float] = field(default_factory=dict)

    def waits(self) -> bool:
        return bool(self.inputs) and min(self.inputs.values()) <= self.as_of

    def hydrated(self, id_: str) -> bool:
        if self.spec.exports[id_] == "copy-to":
            return id_ in self.answered
        return self.reported.get(id_, -1) > self.as_of


def said(commands: Iterable[Command]) -> list[Flow]:
    """Which dataflows there are after commands, and what they were allowed; in order of creation."""
    flows: list[Flow] = []
    for what, *rest in commands:
        if what == "create":
            spec = rest[0]
            flows.append(Flow(spec, spec.as_of, set(spec.exports), dict.fromkeys(spec.exports, spec.as_of)))
        elif what == "compact":
            id_, frontier = rest
            (flow,) = (f for f in flows if id_ in f.live)
            if frontier == COMPLETE:
                flow.live.discard(id_)
            else:
                flow.allowed[id_] = max(flow.allowed[id_], frontier)
        flows = [f for f in flows if f.live]
    return flows


def as_of_again(flow: Flow, flows: list[Flow]) -> float:
    """From when on a dataflow computes that is made again: see the rules of the history."""
    own = min(flow.allowed[id_] for id_ in flow.live)
    indexes = {id_ for id_ in flow.live if flow.spec.exports[id_] == "index"}
    readers = [f for f in flows if f is not flow and indexes & set(f.spec.imports)]
    return min([own, *(as_of_again(reader, flows) for reader in readers)])


def configured(commands: Iterable[Command]) -> dict[str, Any]:
    found: dict[str, Any] = {"hydration_limit": 4, "scheduling": True, "max_result_bytes": None}
    for what, *rest in commands:
        if what == "configure":
            found.update(rest[0])
    return found


def refused(commands: list[Command], waiting: Iterable[str], command: Command) -> bool:
    """Whether a command contradicts those before; `waiting` are peeks without response."""
    flows = said(commands)
    live = {id_: flow for flow in flows for id_ in flow.live}
    what, *rest = command
    if what == "create":
        (spec,) = rest
        used = {id_ for flow in flows for id_ in flow.spec.exports}
        if used & set(spec.exports):
            return True
        for id_ in spec.imports:
            if id_ not in live or live[id_].spec.exports[id_] in ("subscribe", "copy-to"):
                return True
            if live[id_].spec.interactive and not spec.interactive:
                return True
            if live[id_].spec.exports[id_] == "index" and live[id_].allowed[id_] > spec.as_of:
                return True
    if what == "compact":
        id_, frontier = rest
        return id_ not in live or (frontier == COMPLETE and any(id_ in flow.spec.imports for flow in flows))
    if what == "peek":
        peek, id_, _ = rest
        return peek in waiting or id_ not in live or live[id_].spec.exports[id_] in ("subscribe", "copy-to")
    return False


def lasting(commands: Iterable[Command]) -> list[Command]:
    """What of the commands of a session is said again after a restart."""
    found: list[Command] = []
    passing: set[str] = set()
    for command in commands:
        what, *rest = command
        if what == "create":
            change = passing.update if rest[0].interactive else passing.difference_update
            change(rest[0].exports)
            if rest[0].interactive:
                continue
        if what in ("peek", "cancel") or (what in ("schedule", "compact") and rest[0] in passing):
            continue
        found.append(command)
    return found


@dataclass(eq=False)
class Waiting:
    """A peek without an answer."""

    id: str
    flow: Flow
    time: float
    since: float
    dropped: bool = False

    @property
    def ready(self) -> bool:
        return self.dropped or self.flow.upper.get(self.id, -1) > self.time


class Model:
    """The instance: what was said in its sessions, and what was observed."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.incoming: list[Command] | None = None
        self.writes = False
        self.flows: list[Flow] = []
        self.queue: list[Flow] = []
        self.hydrating: set[tuple[Flow, str]] = set()
        self.peeks: dict[str, Waiting] = {}
        # Peeks whose response was not handed out.
        self.open: set[str] = set()
        self.incoming_open: set[str] = set()
        self.due: list[Response] = []
        # Runs of subscribes that were dropped in this session, with their ids.
        self.late: set[tuple[str, int | None]] = set()

    # Commands ------------------------------------------------------------------------------------

    def refuses(self, command: Command) -> bool:
        if self.incoming is not None:
            return refused(self.incoming, self.incoming_open, command)
        return refused(self.commands, self.open, command)

    def begin(self) -> None:
        self.incoming, self.incoming_open, self.due = [], set(), []

    def command(self, command: Command) -> None:
        """Take a command that is not refused."""
        if self.incoming is not None:
            self.incoming.append(command)
            if command[0] == "peek":
                self.incoming_open.add(command[1])
            return
        self.commands.append(command)
        self.act(command)

    def act(self, command: Command, *, quiet: bool = False) -> None:
        what, *rest = command
        if what == "create":
            (flow,) = said([command])
            self.flows.append(flow)
            flow.started = flow.spec.interactive or not configured(self.commands)["scheduling"]
        elif what == "schedule":
            for flow in self.flows:
                if rest[0] in flow.live and not flow.started and flow not in self.queue:
                    flow.scheduled.add(rest[0])
                    if flow.scheduled == set(flow.spec.exports):
                        self.queue.append(flow)
        elif what == "compact":
            id_, frontier = rest
            (flow,) = (f for f in self.flows if id_ in f.live)
            if frontier == COMPLETE:
                self.drop(flow, id_, quiet=quiet)
            else:
                flow.allowed[id_] = max(flow.allowed[id_], frontier)
        elif what == "peek":
            peek, id_, time = rest
            (flow,) = (f for f in self.flows if id_ in f.live)
            self.peeks[peek] = Waiting(id_, flow, time, flow.allowed[id_])
            self.open.add(peek)
        elif what == "cancel":
            if self.peeks.pop(rest[0], None) is not None:
                self.due.append(("peek", rest[0], "canceled"))
        elif what == "configure" and not configured(self.commands)["scheduling"]:
            for flow in self.flows:
                flow.started = True
            self.queue.clear()
        elif what == "writes":
            self.writes = True

    def drop(self, flow: Flow, id_: str, *, quiet: bool) -> None:
        flow.live.discard(id_)
        self.hydrating.discard((flow, id_))
        if not flow.live:
            self.flows.remove(flow)
            if flow in self.queue:
                self.queue.remove(flow)
        elif not flow.started and flow not in self.queue and id_ not in flow.scheduled:
            flow.scheduled.add(id_)
            if flow.scheduled == set(flow.spec.exports):
                flow.started = True
        kind = flow.spec.exports[id_]
        if kind == "subscribe" and not quiet:
            self.late.add((id_, flow.run))
        if not quiet and kind == "copy-to" and id_ not in flow.answered:
            self.due.append(("copy", id_, "dropped"))
        if not quiet and kind != "copy-to" and flow.reported.get(id_) != COMPLETE:
            self.due.append(("dropped", id_, flow.reported.get(id_, LEAST)))
        for peek, waiting in list(self.peeks.items()):
            if waiting.flow is flow and waiting.id == id_:
                if waiting.ready:
                    waiting.dropped = True
                else:
                    del self.peeks[peek]
                    self.due.append(("peek", peek, "error"))

    def complete(self) -> None:
        """End the initialization: drop everything, run the new commands; but what may be kept is there already."""
        assert self.incoming is not None
        old, commands = self.flows, self.incoming
        before = said(self.commands)
        self.commands, self.incoming = [], None
        self.flows, self.queue, self.peeks, self.due, self.late = [], [], {}, [], set()
        hydrating, self.hydrating = self.hydrating, set()
        self.open = set(self.incoming_open)
        final = configured(commands)
        after = said(commands)
        old_as_of = {frozenset(f.spec.exports): as_of_again(f, before) for f in before}
        kept: set[str] = set()
        # All dataflows first, then schedules, then peeks, then compaction, as in a reduced history.
        for flow in after:
            made = Flow(flow.spec, as_of_again(flow, after), set(flow.spec.exports))
            made.allowed = dict.fromkeys(made.live, made.as_of)
            made.started = flow.spec.interactive or not final["scheduling"]
            (there,) = [f for f in old if f.spec.exports == flow.spec.exports] or [None]
            if there is not None and self.may_be_kept(there, made, old_as_of[frozenset(flow.spec.exports)], kept):
                kept |= set(flow.spec.exports)
                made.started = made.started or there.started
                made.run, made.upper, made.statuses = there.run, there.upper, there.statuses
                made.inputs = there.inputs
                self.hydrating |= {(made, id_) for f, id_ in hydrating if f is there}
                self.due += [("status", id_, name, True) for (id_, name), done in made.statuses.items() if done]
            self.flows.append(made)
        self.commands = commands
        self.schedule_again(commands)
        for command in commands:
            if command[0] == "writes":
                self.writes = True
        waiting: dict[str, Command] = {}
        for command in commands:
            if command[0] == "peek":
                waiting[command[1]] = command
            elif command[0] == "cancel" and command[1] in waiting:
                del waiting[command[1]]
                self.due.append(("peek", command[1], "canceled"))
        for peek, command in waiting.items():
            if any(command[2] in flow.live for flow in self.flows):
                self.act(command)
            else:
                self.due.append(("peek", peek, "error"))
        for flow in after:
            (made,) = (f for f in self.flows if f.spec.exports == flow.spec.exports)
            for id_ in flow.spec.exports:
                if id_ in flow.live:
                    made.allowed[id_] = max(made.allowed[id_], flow.allowed[id_])
                else:
                    self.drop(made, id_, quiet=True)
        if self.writes and ("writes",) not in self.commands:
            # There is no way back, not by another session either.
            self.commands = [*self.commands, ("writes",)]

    def schedule_again(self, commands: list[Command]) -> None:
        """Let dataflows wait, queue and start as when the commands had come one by one."""
        shadow = Model()
        for index, command in enumerate(commands):
            if command[0] in ("schedule", "compact"):
                shadow.act(command, quiet=True)
            if command[0] == "create":
                shadow.act(command)
            off = not configured(commands[: index + 1])["scheduling"]
            if off and (index + 1 == len(commands) or configured(commands[: index + 2])["scheduling"]):
                # Nothing waited until here: as if all were scheduled.
                for id_ in [id_ for flow in shadow.flows for id_ in flow.spec.exports]:
                    shadow.act(("schedule", id_), quiet=True)
                # And nobody was before anybody.
                shadow.queue = [flow for flow in shadow.flows if flow in shadow.queue]
        for other in shadow.flows:
            (mine,) = (f for f in self.flows if f.spec.exports == other.spec.exports)
            if not mine.started:
                mine.scheduled, mine.started = set(other.scheduled), other.started
        for other in shadow.queue:
            (mine,) = (f for f in self.flows if f.spec.exports == other.spec.exports)
            if not mine.started:
                self.queue.append(mine)

    def may_be_kept(self, old: Flow, new: Flow, old_as_of: float, kept: set[str]) -> bool:
        spec = new.spec
        if (old.spec.plan, old.spec.imports, old.spec.interactive) != (spec.plan, spec.imports, spec.interactive):
            return False
        if old.live != set(spec.exports) or old_as_of > new.as_of:
            return False
        if any(frontier > new.as_of for frontier in old.allowed.values()):
            return False
        if {"subscribe", "copy-to"} & set(spec.exports.values()):
            return False
        return set(spec.imports) <= kept

    # Facts ---------------------------------------------------------------------------------------

    def find(self, id_: str, run: int | None) -> Flow | None:
        found = [flow for flow in self.flows if id_ in flow.live and flow.run == run]
        return found[0] if found else None

    def told_upper(self, id_: str, run: int, frontier: float) -> None:
        flow = self.find(id_, run)
        if flow is not None:
            flow.upper[id_] = max(flow.upper.get(id_, -1), frontier)

    def told_import(self, run: int, name: str, frontier: float) -> None:
        for flow in self.flows:
            if flow.run == run:
                flow.inputs[name] = max(flow.inputs.get(name, -1), frontier)

    def told_batch(self, id_: str, run: int, lower: float, upper: float, size: int) -> bool:
        """Take a batch, and say whether it makes sense."""
        limit = configured(self.commands)["max_result_bytes"]
        outcome = "error" if limit is not None and size > limit else "rows"
        flow = self.find(id_, run)
        if flow is None:
            used = any(id_ in other.live for other in self.flows)
            if (id_, run) in self.late and not used and self.incoming is None:
                self.due.append(("batch", id_, lower, upper, outcome))
            return True
        if flow.reported.get(id_, LEAST) != lower or upper <= lower:
            return False
        if id_ not in flow.reported and upper < flow.as_of:
            return False
        flow.reported[id_] = upper
        if self.incoming is None:
            self.due.append(("batch", id_, lower, upper, outcome))
        return True

    def told_copy(self, id_: str, run: int, outcome: str) -> None:
        flow = self.find(id_, run)
        if flow is not None and id_ not in flow.answered:
            flow.answered.add(id_)
            if self.incoming is None:
                self.due.append(("copy", id_, outcome))

    def told_answer(self, peek: str, outcome: str, size: int) -> None:
        waiting = self.peeks.pop(peek, None)
        if waiting is None or self.incoming is not None:
            return
        limit = configured(self.commands)["max_result_bytes"]
        if waiting.since > waiting.time or (limit is not None and size > limit):
            outcome = "error"
        self.due.append(("peek", peek, outcome))

    def told_operator(self, id_: str, run: int, operator: str, hydrated: bool) -> None:
        flow = self.find(id_, run)
        if flow is None or flow.reported.get(id_) == COMPLETE or flow.statuses.get((id_, operator)) == hydrated:
            return
        flow.statuses[id_, operator] = hydrated
        if self.incoming is None:
            self.due.append(("status", id_, operator, hydrated))

    # A turn --------------------------------------------------------------------------------------

    def turn(self) -> list[Response]:
        if self.incoming is not None:
            return []
        for peek, waiting in list(self.peeks.items()):
            if waiting.ready and waiting.since > waiting.time:
                del self.peeks[peek]
                self.due.append(("peek", peek, "error"))
        found, self.due = self.due, []
        self.open -= {response[1] for response in found if response[0] == "peek"}
        for flow in self.flows:
            for id_ in flow.live:
                upper = flow.upper.get(id_, -1)
                has_frontier = flow.spec.exports[id_] in ("index", "log")
                if has_frontier and upper >= flow.as_of and upper > flow.reported.get(id_, -1):
                    flow.reported[id_] = upper
                    found.append(("frontier", id_, upper))
        self.hydrating = {(flow, id_) for flow, id_ in self.hydrating if not flow.hydrated(id_)}
        while self.queue and self.working() < configured(self.commands)["hydration_limit"]:
            flow = self.queue.pop(0)
            flow.started = True
            self.hydrating |= {(flow, id_) for id_ in flow.live}
        return found

    def working(self) -> int:
        """How many collections hydrate that have what they read."""
        return len([id_ for flow, id_ in self.hydrating if not flow.waits()])
