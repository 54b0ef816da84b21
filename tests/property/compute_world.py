"""An instance that is driven at random beside its model: commands, facts, turns, sessions and crashes between any two.

The command log is a list of rows, written as whoever drives the instance writes it: each command that lasts before it
is handled, and what a reduction leaves in one commit, later or never.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    Dataflow,
    Export,
    Import,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
    parse_command,
    text_of,
)
from spark_timely.compute.history import History, reduced, rows_of
from spark_timely.compute.instance import Instance
from spark_timely.compute.introspection import RELATIONS
from spark_timely.compute.observation import (
    CopyToDone,
    ImportUpper,
    OperatorHydrated,
    PeekAnswer,
    SubscribeProgress,
    Upper,
)
from spark_timely.compute.response import CopyToResponse, Dropped, Frontiers, PeekResponse, Status, SubscribeBatch
from spark_timely.errors import TimelyError, TimelyInternalError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.oracles import compute_model as model
from tests.oracles.compute_model import COMPLETE, Model, Spec

IDS = ["a", "b", "c", "d", "e", "f"]
PEEKS = ["p0", "p1", "p2"]
DOMAIN = TimeDomain(("long",), (0,))
CREATED = CreateInstance({"frontiers": "shows_frontiers", "hydration": "shows_hydration"}, domain=DOMAIN)


def frontier(value: float) -> Antichain:
    return Antichain.empty() if value == COMPLETE else Antichain.of(int(value))


def number(antichain: Antichain) -> float:
    return COMPLETE if antichain.is_empty else antichain.elements[0][0]


def dataflow(spec: Spec) -> Dataflow:
    imports = [Import(id_, export=id_) for id_ in spec.imports]
    return Dataflow(
        "flow of " + " ".join(spec.exports),
        (Import("log", path="/logs/in"), *imports),
        f'{{"plan": "{spec.plan}"}}',
        tuple(Export(id_, kind) for id_, kind in spec.exports.items()),  # type: ignore[arg-type]
        frontier(spec.as_of),
        domain=DOMAIN,
        interactive=spec.interactive,
    )


def command_of(command: model.Command) -> Command:
    what, *rest = command
    made: dict[str, Callable[..., Command]] = {
        "create": lambda spec: CreateDataflow(dataflow(spec)),
        "schedule": Schedule,
        "compact": lambda id_, f: AllowCompaction(id_, frontier(f)),
        "peek": lambda peek, id_, time: Peek(peek, (time,), id_),
        "cancel": CancelPeek,
        "configure": UpdateConfiguration,
        "writes": AllowWrites,
    }
    return made[what](*rest)


def plain(response: object) -> model.Response:
    match response:
        case Frontiers(id_, f):
            return ("frontier", id_, number(f))
        case Dropped(id_, f):
            return ("dropped", id_, number(f))
        case SubscribeBatch(id_, lower, upper, _, error):
            return ("batch", id_, number(lower), number(upper), "rows" if error is None else "error")
        case CopyToResponse(id_, outcome):
            return ("copy", id_, outcome)
        case PeekResponse(id_, outcome):
            return ("peek", id_, outcome)
        case Status(id_, operator, hydrated):
            return ("status", id_, operator, hydrated)
    raise AssertionError(response)


def by_id(responses: list[model.Response]) -> dict[tuple[bool, str], list[model.Response]]:
    """Responses about one thing have an order; those about several do not."""
    found: dict[tuple[bool, str], list[model.Response]] = defaultdict(list)
    for response in responses:
        if response[1] not in CREATED.introspection.values():
            found[response[0] == "peek", response[1]].append(response)
    return dict(found)


class World:
    """One instance, its model, its driver, and its command log."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.instance, self.model = Instance(), Model()
        self.epoch = 0
        self.log: list[tuple[int, str]] = []
        self.logged: list[model.Command] = []
        # Everything that was alive: facts about it may come late.
        self.seen: list[tuple[str, int, str]] = []
        self.newest_run = 0
        self.shown: dict[str, Counter[Any]] = {name: Counter() for name in RELATIONS}
        self.begin([])

    # The driver ----------------------------------------------------------------------------------

    def write(self, after: list[tuple[int, str]]) -> None:
        assert after == sorted(set(after)), "a number twice, or rows that are not in their order"
        self.log = after

    def say(self, command: model.Command) -> None:
        """Send a command to both."""
        real, wrong = command_of(command), self.model.refuses(command)
        assert parse_command(text_of(real)) == real
        before = self.state()
        if self.is_refused(self.instance.check, real):
            assert wrong, f"{command} was refused"
            assert self.state() == before
            assert self.is_refused(self.instance.handle, real)
            assert self.state() == before, f"{command} was refused and changed something"
            return
        assert not wrong, f"{command} was not refused"
        computing = self.model.incoming is None
        assert self.state() == before
        if computing and self.instance.history.lasts(real):
            self.log = [*self.log, (len(self.log), text_of(real))]
            self.logged.append(command)
            if self.rng.random() < 0.02:
                self.crash()
                return
        self.instance.handle(real)
        self.model.command(command)
        if computing and self.rng.random() < 0.5:
            self.write(rows_of(self.instance.history.lasting()))
        self.bind()

    def is_refused(self, act: Callable[[Command], None], command: Command) -> bool:
        try:
            act(command)
        except TimelyError:
            return True
        return False

    def begin(self, commands: list[model.Command]) -> None:
        """Begin another session that says some commands, and end its initialization."""
        self.epoch += 1
        self.instance.handle(CreateTimely(self.epoch))
        self.model.begin()
        self.instance.handle(CREATED)
        for command in commands:
            self.say(command)
            if self.rng.random() < 0.1:
                self.step(sessions=False)
            if self.rng.random() < 0.03:
                # This client leaves; what it said is forgotten.
                self.epoch += 1
                self.instance.handle(CreateTimely(self.epoch))
                self.model.begin()
                self.instance.handle(CREATED)
        while self.rng.random() < 0.3:
            self.say(self.draw())
        assert self.instance.turn() == ()
        self.end()

    def end(self) -> None:
        self.instance.handle(InitializationComplete())
        kept = {(view.id, view.run) for view in self.instance.collections()}
        self.model.complete()
        for flow in self.model.flows:
            for id_ in flow.live:
                # What may be kept is, with its number; all else is new.
                run = self.instance.collection(id_).run
                assert (id_, run) in kept
                assert run == flow.run if flow.run is not None else run > self.newest_run, (id_, run, flow.run)
        self.bind()
        if self.rng.random() < 0.05:
            self.crash()
            return
        self.write(rows_of(self.instance.history.lasting()))
        self.logged = model.lasting(self.model.commands)

    def crash(self) -> None:
        """Lose the process, and start another one from the command log."""
        self.instance, self.model = Instance(), Model()
        self.newest_run, self.seen = 0, []
        self.shown = {name: Counter() for name in RELATIONS}
        self.epoch += 1
        self.model.begin()
        self.instance.handle(CreateTimely(self.epoch))
        ends = (CreateTimely, InitializationComplete)
        for _, text in sorted(self.log):
            command = parse_command(text)
            if not isinstance(command, ends):
                self.instance.handle(command)
        if not self.log:
            self.instance.handle(CREATED)
        for command in self.logged:
            self.model.command(command)
        self.end()

    def bind(self) -> None:
        """Give the model the numbers of the runs."""
        for flow in self.model.flows:
            for id_ in sorted(flow.live):
                flow.run = self.instance.collection(id_).run
                self.newest_run = max(self.newest_run, flow.run)
                entry = (id_, flow.run, flow.spec.exports[id_])
                if entry not in self.seen:
                    self.seen.append(entry)

    # Drawing -------------------------------------------------------------------------------------

    def draw(self) -> model.Command:
        rng = self.rng
        commands = self.model.commands if self.model.incoming is None else self.model.incoming
        flows = model.said(commands)
        live = sorted(id_ for flow in flows for id_ in flow.live)
        some = rng.choice(live) if live and rng.random() < 0.95 else rng.choice(IDS)
        what = rng.random()
        if what < 0.25:
            return ("create", self.spec(live))
        if what < 0.5:
            return ("schedule", some)
        if what < 0.62:
            return ("compact", some, COMPLETE)
        if what < 0.76:
            return ("compact", some, rng.randrange(12))
        if what < 0.86:
            return ("peek", rng.choice(PEEKS), some, rng.randrange(12))
        if what < 0.91:
            return ("cancel", rng.choice(PEEKS))
        if what < 0.93:
            return ("writes",)
        values = {
            "hydration_limit": rng.randrange(4),
            "scheduling": rng.random() < 0.7,
            "max_result_bytes": rng.choice([None, 10]),
        }
        name = rng.choice(list(values))
        return ("configure", {name: values[name]})

    def spec(self, live: list[str]) -> Spec:
        rng = self.rng
        free = [id_ for id_ in IDS if id_ not in live or rng.random() < 0.05]
        ids = rng.sample(free, min(len(free), rng.choice([1, 1, 2, 3]))) or [rng.choice(IDS)]
        kinds = {id_: rng.choice(["index", "index", "log", "subscribe", "copy-to"]) for id_ in ids}
        others = [id_ for id_ in live if id_ not in ids]
        imports = rng.sample(others, min(len(others), rng.choice([0, 0, 1, 1, 2])))
        if rng.random() < 0.03 and "x" not in imports:
            imports.append("nothing")
        return Spec(kinds, tuple(imports), rng.choice("xy"), rng.randrange(8), rng.random() < 0.15)

    def again(self) -> list[model.Command]:
        """What a client says that connects again: mostly the same, at the same or a later time."""
        rng = self.rng
        flows = model.said(self.model.commands)
        found: list[model.Command] = []
        for flow in flows:
            if rng.random() < 0.1:
                continue
            later = rng.choice([0, 0, 0, 1, 3])
            plan = flow.spec.plan if rng.random() < 0.9 else rng.choice("xyz")
            as_of = max(0, model.as_of_again(flow, flows) + later - (rng.random() < 0.1))
            found.append(("create", Spec(flow.spec.exports, flow.spec.imports, plan, as_of, flow.spec.interactive)))
        found += [("schedule", id_) for flow in flows for id_ in flow.spec.exports if rng.random() < 0.7]
        if rng.random() < 0.5:
            found.insert(0, ("configure", {"hydration_limit": rng.randrange(4)}))
        return found

    def fact(self) -> None:
        rng, instance = self.rng, self.instance
        if rng.random() < 0.25:
            peek = rng.choice(PEEKS)
            failed, size = rng.random() < 0.3, rng.choice([1, 20])
            instance.tell(PeekAnswer(peek, rows=[1], n_bytes=size, error="failed" if failed else None))
            self.model.told_answer(peek, "error" if failed else "rows", size)
            return
        if not self.seen:
            return
        id_, run, kind = rng.choice(self.seen[-8:] if rng.random() < 0.8 else self.seen)
        there = instance.run(run)
        if rng.random() < 0.25 and there is not None and there.dataflow.imports:
            name, upper = rng.choice(there.dataflow.imports).name, rng.randrange(9)
            instance.tell(ImportUpper(run, name, frontier(upper)))
            self.model.told_import(run, name, upper)
        elif rng.random() < 0.2:
            operator, done = rng.choice("mn"), rng.random() < 0.7
            instance.tell(OperatorHydrated(id_, run, operator, done))
            self.model.told_operator(id_, run, operator, done)
        elif kind in ("index", "log"):
            upper = COMPLETE if rng.random() < 0.1 else rng.randrange(14)
            instance.tell(Upper(id_, run, frontier(upper)))
            self.model.told_upper(id_, run, upper)
        elif kind == "copy-to":
            failed = rng.random() < 0.3
            instance.tell(CopyToDone(id_, run, None if failed else 3, "failed" if failed else None))
            self.model.told_copy(id_, run, "error" if failed else "rows")
        else:
            self.batch(id_, run)

    def batch(self, id_: str, run: int) -> None:
        rng = self.rng
        flow = self.model.find(id_, run)
        lower = 0 if flow is None else flow.reported.get(id_, 0)
        if lower == COMPLETE or rng.random() < 0.03:
            lower = rng.randrange(5)
        upper = COMPLETE if rng.random() < 0.1 else lower + rng.choice([1, 2, 6] if rng.random() < 0.95 else [0])
        size = rng.choice([1, 20])
        sense = self.model.told_batch(id_, run, lower, upper, size)
        before = self.state()
        try:
            self.instance.tell(SubscribeProgress(id_, run, frontier(lower), frontier(upper), [1], size))
        except TimelyInternalError:
            assert not sense
            assert self.state() == before
        else:
            assert sense, (id_, lower, upper)

    # Comparing -----------------------------------------------------------------------------------

    def state(self) -> object:
        """Everything that a refused command must leave as it was."""
        instance = self.instance
        tables = [instance.introspection.table(name).to_pylist() for name in RELATIONS]
        views = (instance.collections(), instance.running(), instance.suspended(), instance.pending_peeks())
        return (views, instance.history.commands, dict(instance.configuration), instance.read_only, tables)

    def turn(self) -> None:
        found, wanted = [plain(response) for response in self.instance.turn()], self.model.turn()
        assert by_id(found) == by_id(wanted)
        # What was said of events comes before the frontiers.
        kinds = [response[0] == "frontier" for response in found]
        assert kinds == sorted(kinds)
        self.compare()

    def compare(self) -> None:
        instance = self.instance
        live = {id_: flow for flow in self.model.flows for id_ in flow.live}
        views = {view.id: view for view in instance.collections() if view.kind != "introspection"}
        assert views.keys() == live.keys()
        started = {id_ for run in instance.running() for id_ in run.live}
        assert started == {id_ for id_, flow in live.items() if flow.started}
        for id_, flow in live.items():
            assert views[id_].as_of == frontier(flow.as_of)
            assert views[id_].allowed == frontier(flow.allowed[id_]), id_
            assert views[id_].hydrated == flow.hydrated(id_), id_
            since = number(instance.since_of(id_))
            holding = [
                w.time for w in self.model.peeks.values() if w.flow is flow and w.id == id_ and w.since <= w.time
            ]
            assert since <= min([flow.allowed[id_], *holding]), id_
        waiting = {w for w in self.model.peeks if self.model.peeks[w].since <= self.model.peeks[w].time}
        assert {(each.peek.id, each.ready) for each in instance.pending_peeks()} == {
            (peek, self.model.peeks[peek].ready) for peek in waiting
        }
        assert instance.read_only != self.model.writes
        self.compare_shown(live)
        history = instance.history
        assert reduced(history.reduced()) == history.reduced()
        # What an interactive dataflow held back may be let go by the next reduction.
        assert reduced(History(history.reduced()).lasting()) == reduced(history.lasting())

    def compare_shown(self, live: dict[str, model.Flow]) -> None:
        shows = self.instance.introspection
        for name in RELATIONS:
            if self.rng.random() < 0.5:
                for change in shows.take_changes(name).to_pylist():
                    *row, diff = change.values()
                    self.shown[name][tuple(row)] += diff
                rows = Counter(tuple(row.values()) for row in shows.table(name).to_pylist())
                assert {row: count for row, count in self.shown[name].items() if count} == rows, name
        wanted = {(id_, flow.reported.get(id_, 0)) for id_, flow in live.items()}
        found = {(row["export_id"], int(row["time"])) for row in shows.table("frontiers").to_pylist()}
        own = set(CREATED.introspection.values())
        assert {row for row in found if row[0] not in own} == {row for row in wanted if row[1] != COMPLETE}
        exports = {row["export_id"]: row["dataflow_id"] for row in shows.table("exports").to_pylist()}
        assert exports == {id_: flow.run for id_, flow in live.items()}
        states = {row["export_id"]: row["state"] for row in shows.table("hydration").to_pylist()}
        for id_, flow in live.items():
            waiting = "queued" if flow in self.model.queue else "suspended"
            assert states[id_] == ("hydrated" if flow.hydrated(id_) else "hydrating" if flow.started else waiting), id_
        assert states.keys() == live.keys()
        assert {row["peek_id"] for row in shows.table("peeks").to_pylist()} == set(self.model.peeks) | {
            response[1] for response in self.model.due if response[0] == "peek" and self.installed(response[1])
        }

    def installed(self, peek: str) -> bool:
        """Say whether a peek with an answer that is not handed out was ever waited for."""
        return peek in {row["peek_id"] for row in self.instance.introspection.table("peeks").to_pylist()}

    # Stories -------------------------------------------------------------------------------------

    def step(self, *, sessions: bool = True) -> None:
        what = self.rng.random()
        if what < 0.5:
            self.say(self.draw())
        elif what < 0.8:
            self.fact()
        elif what < 0.94:
            if self.model.incoming is None:
                self.turn()
            else:
                assert self.instance.turn() == ()
        elif sessions and what < 0.98:
            self.begin(self.again())
        elif sessions:
            self.crash()

    def story(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.step()
        self.turn()
