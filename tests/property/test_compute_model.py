"""An instance answers as its model does: random commands, facts, sessions and crashes between any two steps.

`tests.oracles.compute_model` says what is to be answered; reconciliation is there to drop everything and to run the new
commands. `MUTANTS` are wrong designs, each of which a story has to find.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.compute import history, hydration, instance, reconciliation, session
from spark_timely.compute.command import (
    AllowCompaction,
    CancelPeek,
    CreateDataflow,
    CreateTimely,
    InitializationComplete,
    Schedule,
)
from spark_timely.compute.instance import Instance
from spark_timely.compute.observation import CopyToDone, PeekAnswer, SubscribeProgress, Upper
from spark_timely.compute.reconciliation import Reconciliation
from spark_timely.compute.response import Frontiers
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane, tell
from tests.oracles import compute_model as model
from tests.oracles.compute_model import COMPLETE, Spec
from tests.property.compute_world import CREATED, World, command_of, frontier, plain
from tests.support import examples

Patch = pytest.MonkeyPatch
some = settings(examples(60, long=2000), suppress_health_check=list(HealthCheck))


@some
@given(st.integers(0, 2**32), st.integers(5, 120))
def test_instance_answers_as_its_model(seed: int, n_steps: int) -> None:
    World(seed).story(n_steps)


@pytest.mark.parametrize("first", range(4))
def test_instance_answers_as_its_model_in_seeded_stories(first: int) -> None:
    # In the short lane some, and the first that finds each wrong design.
    for seed in range(first, 4000, 4) if long_lane() else sorted({*range(24), *FAR.values()})[first::4]:
        try:
            World(seed).story(80)
        except BaseException:
            tell(f"seed {seed}, 80 steps")
            raise


# Reconciliation against dropping everything ---------------------------------------------------------


def finished(one: Instance, commands: list[model.Command]) -> dict[str, list[Any]]:
    """What a client has in the end, whatever way its instance went: everything is scheduled, told and answered."""
    seen: dict[str, list[Any]] = {}

    def turn() -> None:
        for response in one.turn():
            what, id_, *rest = plain(response)
            assert what in ("frontier", "status") or id_ not in seen
            if what != "status":
                seen[id_] = [what, *rest]

    for id_ in sorted(id_ for flow in model.said(commands) for id_ in flow.live):
        one.handle(Schedule(id_))
    turn()
    for _ in range(20):
        for run in one.running():
            for export in run.dataflow.exports:
                if export.id in run.live and export.kind in ("index", "log"):
                    one.tell(Upper(export.id, run.number, frontier(COMPLETE)))
                elif export.id in run.live and export.kind == "copy-to":
                    one.tell(CopyToDone(export.id, run.number, rows=1))
                elif export.id in run.live and one.collection(export.id).reported is None:
                    one.tell(SubscribeProgress(export.id, run.number, frontier(0), frontier(50)))
        turn()
    for waiting in one.pending_peeks():
        one.tell(PeekAnswer(waiting.peek.id, rows=[1]))
    turn()
    assert not one.suspended()
    assert not one.pending_peeks()
    return seen


@some
@given(st.integers(0, 2**32), st.integers(5, 60))
def test_reconciliation_equals_dropping_all_and_running_the_new(seed: int, n_steps: int) -> None:
    world = World(seed)
    world.story(n_steps)
    commands = [*world.again(), ("configure", {"hydration_limit": 3, "max_result_bytes": None})]
    commands += [("peek", "last", id_, 20) for flow in model.said(commands) for id_ in sorted(flow.live)[:1]][:1]
    fresh = Instance()
    said: list[model.Command] = []
    for one in (world.instance, fresh):
        one.handle(CreateTimely(world.epoch + 1))
        one.handle(CREATED)
        said = []
        for command in commands:
            if not model.refused(said, [], command):
                one.handle(command_of(command))
                said.append(command)
        one.handle(InitializationComplete())
    views = [[(v.id, v.kind, v.as_of, v.allowed) for v in one.collections()] for one in (world.instance, fresh)]
    assert sorted(views[0], key=str) == sorted(views[1], key=str)
    assert world.instance.history.lasting()[1:] in (
        fresh.history.lasting()[1:],
        (*fresh.history.lasting()[1:], *world.instance.history.lasting()[-1:]),
    )
    assert finished(world.instance, said) == finished(fresh, said)


def test_restarted_instance_keeps_each_dataflow_that_fits() -> None:
    """The commands of a log, twice: the second session finds all that the first one runs."""
    for seed in range(40):
        world = World(seed)
        world.story(40)
        lasting = world.instance.history.lasting()
        runs: list[dict[str, int]] = []
        for _ in range(2):
            world.epoch += 1
            world.instance.handle(CreateTimely(world.epoch))
            for command in lasting:
                if not isinstance(command, CreateTimely | InitializationComplete):
                    world.instance.handle(command)
            world.instance.handle(InitializationComplete())
            runs.append({view.id: view.run for view in world.instance.collections()})
        for run in world.instance.running() + world.instance.suspended():
            kinds = {export.kind for export in run.dataflow.exports}
            whole = len(run.live) == len(run.dataflow.exports)
            ahead = any(not world.instance.allowed(id_).less_equal_frontier(run.dataflow.as_of) for id_ in run.live)
            if whole and not ahead and not kinds & {"subscribe", "copy-to"} and not run.dataflow.own_imports:
                assert all(runs[0][id_] == runs[1][id_] for id_ in run.live)


def test_twenty_thousand_compactions_of_a_collection_leave_two() -> None:
    one = Instance()
    spec = Spec({"a": "index"}, (), "x", 0)
    for command in (CreateTimely(1), CREATED, InitializationComplete()):
        one.handle(command)
    for command in (command_of(("create", spec)), Schedule("a")):
        one.handle(command)
    longest = 0
    for time in range(1, 20_001):
        one.handle(AllowCompaction("a", Antichain.of(time)))
        longest = max(longest, len(one.history))
    about = [
        command
        for command in one.history.reduced()
        if isinstance(command, CreateDataflow | Schedule | AllowCompaction | CancelPeek)
    ]
    assert about == [CreateDataflow(about[0].dataflow.at(Antichain.of(20_000))), Schedule("a")]  # type: ignore[union-attr]
    # The three others are of the runtime, the instance, and the end of its initialization.
    assert longest <= 2 * (3 + 2) + 1


# Wrong designs --------------------------------------------------------------------------------------


def all_in_reverse(patch: Patch) -> None:
    """Compaction before peeks and schedules: what was sent in time is too late."""
    reduce = history._Reduction.result

    def wrong(self: Any) -> Any:
        found = reduce(self)
        moved = [each for each in found if isinstance(each, AllowCompaction)]
        rest = [each for each in found if not isinstance(each, AllowCompaction)]
        at = next((i for i, each in enumerate(rest) if isinstance(each, Schedule)), len(rest))
        return (*rest[:at], *moved, *rest[at:])

    patch.setattr(history._Reduction, "result", wrong)


def as_of_is_the_join(patch: Patch) -> None:
    """The as_of follows the export that was allowed most, not the least."""
    patch.setattr(history, "Antichain", SimpleNamespace(meet=Antichain.join, empty=Antichain.empty))


def readers_do_not_hold(patch: Patch) -> None:
    patch.setattr(history, "_is_index", lambda *_: False)


def given_up_shares_are_forgotten(patch: Patch) -> None:
    compact = history._Reduction.compact

    def wrong(self: Any, id_: str, f: Antichain) -> None:
        before = dict(self.schedules)
        compact(self, id_, f)
        for added in self.schedules.keys() - before.keys():
            del self.schedules[added]

    patch.setattr(history._Reduction, "compact", wrong)


def kept(change: Callable[[Any, Any, Any, Any], str | None]) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        patch.setattr(reconciliation, "_why_not", change)

    return mutate


WHY_NOT = reconciliation._why_not


def without_as_of(old: Any, new: Any, allowed: Any, there: Any) -> str | None:
    return WHY_NOT(dataclasses.replace(old, as_of=new.as_of), new, allowed, there)


def without_allowed(old: Any, new: Any, allowed: Any, there: Any) -> str | None:
    return WHY_NOT(old, new, {}, there)


def without_indexes(old: Any, new: Any, allowed: Any, there: Any) -> str | None:
    return WHY_NOT(old, new, allowed, there | set(new.own_imports))


def without_plans(old: Any, new: Any, allowed: Any, there: Any) -> str | None:
    return WHY_NOT(dataclasses.replace(old, plan=new.plan), new, allowed, there)


def with_subscribes(old: Any, new: Any, allowed: Any, there: Any) -> str | None:
    why = WHY_NOT(old, new, allowed, there)
    return None if why is not None and "begins with the session" in why else why


def nothing(old: Any, new: Any, allowed: Any, there: Any) -> str | None:
    return "nothing is kept"


def reports_are_not_repeated(patch: Patch) -> None:
    """What is kept does not report again to the new client."""
    keep = Instance._keep

    def wrong(self: Any, dataflow: Any) -> None:
        before = {id_: self._collections[id_].reported for id_ in dataflow.export_ids}
        keep(self, dataflow)
        for id_, reported in before.items():
            self._collections[id_].reported = reported

    patch.setattr(Instance, "_keep", wrong)


def equal_is_hydrated(patch: Patch) -> None:
    def wrong(self: Any) -> bool:
        if self.kind == "copy-to":
            return bool(self.answered)
        return self.reported is not None and bool(self.as_of.less_equal_frontier(self.reported))

    patch.setattr(instance._Collection, "hydrated", property(wrong))


def copy_to_never_hydrates(patch: Patch) -> None:
    """As in the seed: it blocks the queue."""
    right = instance._Collection.hydrated.fget  # type: ignore[attr-defined]
    patch.setattr(instance._Collection, "hydrated", property(lambda self: self.kind != "copy-to" and right(self)))


def starts_before_it_releases(patch: Patch) -> None:
    turn = hydration.HydrationQueue.turn

    def wrong(self: Any, hydrated: Any, limit: int, waits: Any) -> Any:
        _, started = turn(self, lambda id_: False, limit, waits)
        released, _ = turn(self, hydrated, 0)
        return released, started

    patch.setattr(hydration.HydrationQueue, "turn", wrong)


def limit_counts_dataflows(patch: Patch) -> None:
    turn = hydration.HydrationQueue.turn

    def wrong(self: Any, hydrated: Any, limit: int, waits: Any) -> Any:
        return turn(self, hydrated, limit and max(limit, len(self._hydrating) + 1), waits)

    patch.setattr(hydration.HydrationQueue, "turn", wrong)


def one_that_waits_counts(patch: Patch) -> None:
    turn = hydration.HydrationQueue.turn
    patch.setattr(hydration.HydrationQueue, "turn", lambda self, hydrated, limit, waits: turn(self, hydrated, limit))


def one_that_waited_never_counts(patch: Patch) -> None:
    patch.setattr(Instance, "_waits", lambda self, id_: bool(self._runs[self._collections[id_].run].imports))


def first_schedule_is_enough(patch: Patch) -> None:
    schedule = hydration.HydrationQueue.schedule

    def wrong(self: Any, id_: str) -> bool:
        number = self._number.get(id_)
        if number in self._missing:
            self._missing[number] = {id_}
        return schedule(self, id_)

    patch.setattr(hydration.HydrationQueue, "schedule", wrong)


def all_dropped_starts(patch: Patch) -> None:
    """As in the seed: a dataflow whose last missing export is dropped waits behind the limit."""
    drop = hydration.HydrationQueue.drop

    def wrong(self: Any, id_: str) -> int | None:
        drop(self, id_)
        return None

    patch.setattr(hydration.HydrationQueue, "drop", wrong)


def equal_frontiers_are_news(patch: Patch) -> None:
    tell_upper = Instance._tell_upper

    def always(self: Any, id_: str, run: int, f: Antichain) -> None:
        tell_upper(self, id_, run, f)
        if self._there(id_, run) is not None:
            self._advanced[id_] = None

    patch.setattr(Instance, "_tell_upper", always)

    def wrong(there: Any) -> bool:
        if there.upper is None or there.kind in ("subscribe", "copy-to"):
            return False
        return bool((there.as_of if there.reported is None else there.reported).less_equal_frontier(there.upper))

    patch.setattr(instance, "_is_news", wrong)


def first_report_is_strict(patch: Patch) -> None:
    right = instance._is_news

    def wrong(there: Any) -> bool:
        return right(there) and (there.reported is not None or there.upper != there.as_of)

    patch.setattr(instance, "_is_news", wrong)


def anything_is_reported_first(patch: Patch) -> None:
    right = instance._is_news

    def wrong(there: Any) -> bool:
        return right(there) or (there.reported is None and there.upper is not None and there.kind in ("index", "log"))

    patch.setattr(instance, "_is_news", wrong)


def drops_are_the_empty_frontier(patch: Patch) -> None:
    """As in the seed: clients cannot tell dropped from complete."""
    patch.setattr(instance, "Dropped", lambda id_, _: Frontiers(id_, Antichain.empty()))


def complete_is_dropped_too(patch: Patch) -> None:
    def wrong(self: Any, there: Any) -> None:
        self._outbox.append(instance.Dropped(there.id, there.shown_frontier))

    patch.setattr(Instance, "_report_drop", wrong)


def reconciliation_reports_drops(patch: Patch) -> None:
    drop = Instance._drop
    patch.setattr(Instance, "_drop", lambda self, id_, silent: drop(self, id_, silent=False))


def late_batches_are_lost(patch: Patch) -> None:
    tell_batch = Instance._tell_batch

    def wrong(self: Any, batch: Any) -> None:
        if self._there(batch.id, batch.run) is not None:
            tell_batch(self, batch)

    patch.setattr(Instance, "_tell_batch", wrong)


def runs_are_not_compared(patch: Patch) -> None:
    """A fact about a dataflow that is gone is taken for the one that has its id now."""
    patch.setattr(Instance, "_there", lambda self, id_, run: self._collections.get(id_))


def peeks_hold_nothing(patch: Patch) -> None:
    patch.setattr(Instance, "since_of", lambda self, id_: self.allowed(id_))


def old_peeks_are_answered(patch: Patch) -> None:
    def wrong(self: Any, incoming: Any) -> None:
        old = dict(self._peeks)
        end(self, incoming)
        self._peeks.update({id_: each for id_, each in old.items() if id_ not in self._peeks})

    end = Instance._end_initialization
    patch.setattr(Instance, "_end_initialization", wrong)


def cancel_answers_always(patch: Patch) -> None:
    apply = Instance._apply

    def wrong(self: Any, command: Any, found: Reconciliation | None = None) -> None:
        if isinstance(command, CancelPeek) and command.id not in self._peeks:
            self._outbox.append(instance.PeekResponse(command.id, "canceled"))
        apply(self, command, found)

    patch.setattr(Instance, "_apply", wrong)


def writes_are_taken_back(patch: Patch) -> None:
    end = Instance._end_initialization

    def wrong(self: Any, incoming: Any) -> None:
        self._writes = False
        end(self, incoming)

    patch.setattr(Instance, "_end_initialization", wrong)


def ids_are_free_at_once(patch: Patch) -> None:
    """An id can be used again while its dataflow has another export."""
    compact = session.Session._compact

    def wrong(self: Any, id_: str, f: Antichain) -> None:
        compact(self, id_, f)
        if f.is_empty:
            self.flows.pop(id_, None)

    patch.setattr(session.Session, "_compact", wrong)


def refused_commands_are_remembered(patch: Patch) -> None:
    """The history is written before the command is checked."""
    handle = Instance.handle

    def wrong(self: Any, command: Any) -> None:
        if self._incoming is None and not isinstance(command, CreateTimely | InitializationComplete):
            try:
                self.check(command)
            except Exception:
                self._session.history.append(command)
                raise
        handle(self, command)

    patch.setattr(Instance, "handle", wrong)


MUTANTS = [
    all_in_reverse,
    as_of_is_the_join,
    readers_do_not_hold,
    given_up_shares_are_forgotten,
    kept(without_as_of),
    kept(without_allowed),
    kept(without_indexes),
    kept(without_plans),
    kept(with_subscribes),
    kept(nothing),
    reports_are_not_repeated,
    equal_is_hydrated,
    one_that_waits_counts,
    one_that_waited_never_counts,
    copy_to_never_hydrates,
    starts_before_it_releases,
    limit_counts_dataflows,
    first_schedule_is_enough,
    all_dropped_starts,
    equal_frontiers_are_news,
    first_report_is_strict,
    anything_is_reported_first,
    drops_are_the_empty_frontier,
    complete_is_dropped_too,
    reconciliation_reports_drops,
    late_batches_are_lost,
    runs_are_not_compared,
    peeks_hold_nothing,
    old_peeks_are_answered,
    cancel_answers_always,
    writes_are_taken_back,
    ids_are_free_at_once,
    refused_commands_are_remembered,
]


# The first story that finds it, where that is far: tried first.
FAR = {
    "readers_do_not_hold": 279,
    "given_up_shares_are_forgotten": 247,
    "one_that_waited_never_counts": 100,
    "starts_before_it_releases": 63,
    "limit_counts_dataflows": 28,
    "one_that_waits_counts": 28,
    "peeks_hold_nothing": 23,
    "without_as_of": 21,
    "all_dropped_starts": 13,
    "late_batches_are_lost": 12,
    "without_indexes": 8,
    "reports_are_not_repeated": 7,
}


def name_of(mutant: Callable[[Patch], None]) -> str:
    closed = mutant.__closure__
    return closed[0].cell_contents.__name__ if closed else mutant.__name__


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_wrong_design_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in (FAR.get(name_of(mutant), 0), *range(400)):
        try:
            World(seed).story(80)
        except Exception:  # noqa: BLE001 - an assertion, or what the instance fails with
            return
    pytest.fail("no story finds it")
