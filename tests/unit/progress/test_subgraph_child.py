"""One child's turn: rules 000.44 to 000.64, and 000.66."""

from __future__ import annotations

import pytest

from spark_timely.errors import NegativeCountError, ProtocolError, TimelyInternalError, UnheldCapabilityError
from spark_timely.progress.change_batch import Buffers, ChangeBatch, PortChanges
from spark_timely.progress.events import EventStream, PushProgressEvent, ScheduleEvent
from spark_timely.progress.reachability import Target
from spark_timely.progress.subgraph import Child
from spark_timely.progress.worker import Worker
from tests.unit.progress.network import MemoryNetwork
from tests.unit.progress.scripted import Region, Report, Scripted, alone, chain, filled, mapper, sink, source, turn


def child_of(operator: Scripted, **settings: object) -> Child:
    child = Child(operator, index=2, identifier=7, arity=1, peers=1, **settings)  # type: ignore[arg-type]
    child.begin()
    return child


def run(child: Child, *, outstanding: bool = False, held: bool = True) -> tuple[dict[tuple[int, ...], int], bool]:
    statements = ChangeBatch(4)
    active = child.turn(outstanding=outstanding, held=held, buffers=Buffers(1), statements=statements)
    return dict(statements.pairs()), active


def quiet(operator: Scripted) -> Child:
    """Return a child that has had its first turn, and no cause for another."""
    child = child_of(operator)
    child.receive_frontiers([(port, (0,), 1) for port in range(operator.inputs)])
    run(child)
    assert not child.recently_active
    return child


def test_rule_000_44_changes_that_move_no_frontier_are_no_cause() -> None:
    operator = mapper()
    child = quiet(operator)
    child.receive_frontiers([(0, (5,), 1), (0, (5,), 2)])
    run(child, held=False)
    assert operator.turns == 1


@pytest.mark.parametrize("cause", ["frontier", "worked", "active", "outstanding", "held"])
def test_rule_000_45_each_cause_alone_gives_a_child_a_turn(cause: str) -> None:
    operator = mapper()
    child = quiet(operator)
    if cause == "frontier":
        child.receive_frontiers([(0, (0,), -1), (0, (1,), 1)])
    if cause in ("worked", "active"):
        child.recently_active = True
    before = operator.turns
    run(child, outstanding=cause == "outstanding", held=cause == "held")
    assert operator.turns == before + 1


def test_rule_000_45_a_child_without_cause_is_skipped() -> None:
    operator = mapper()
    operator.active = True
    child = child_of(operator)
    child.receive_frontiers([(0, (0,), 1)])
    assert run(child)[1] is True
    operator.active = False
    assert run(child, held=False)[1] is False
    before = operator.turns
    assert run(child, held=False)[1] is False
    assert operator.turns == before


def test_rule_000_46_a_probe_sees_progress() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    first, probe = source(), sink("probe")
    chain(scope, first, probe)
    worker.add(scope)
    for time in range(5):
        first.say(internal=[(0, (time,), -1), (0, (time + 1,), 1)])
        for _ in range(3):
            worker.step()
        assert probe.frontier() == [(time + 1,)]


def test_rule_000_47_a_child_that_reported_runs_once_more() -> None:
    operator = mapper()
    child = quiet(operator)
    operator.say(internal=[(0, (0,), -1)])
    run(child)
    before = operator.turns
    run(child, held=False)
    run(child, held=False)
    assert operator.turns == before + 1


def test_rule_000_48_a_child_runs_while_messages_are_outstanding() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    first, second = source(), sink(notify=False)
    chain(scope, first, second)
    worker.add(scope)
    for _ in range(3):
        worker.step()
    before = second.turns
    worker.step()
    assert second.turns == before
    first.say(produced=[(0, (0,), 1)])
    for _ in range(4):
        worker.step()
    # The statement takes one turn; from then on the sink is run in each.
    assert second.turns == before + 3


def test_rule_000_49_a_holder_of_a_capability_runs_in_each_turn() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    holder = source()
    scope.add_child(holder)
    worker.add(scope)
    for _ in range(10):
        worker.step()
    assert holder.turns == 10


def test_rule_000_51_a_child_without_notice_hears_when_run() -> None:
    operator = mapper(notify=False)
    child = child_of(operator)
    run(child)
    child.receive_frontiers([(0, (3,), 1)])
    run(child, held=False)
    assert operator.told == []
    run(child, outstanding=True)
    assert operator.told == [(0, (3,), 1)]


def test_rule_000_52_a_push_is_an_event_only_if_something_moved() -> None:
    events: list[object] = []
    child = child_of(mapper(), events=EventStream(events.append))
    child.receive_frontiers([(0, (3,), 1)])
    run(child)
    run(child)
    assert events == [
        PushProgressEvent(op_id=7),
        ScheduleEvent(id=7, start=True),
        ScheduleEvent(id=7, start=False, activity=False),
        ScheduleEvent(id=7, start=True),
        ScheduleEvent(id=7, start=False, activity=False),
    ]


def test_rule_000_53_a_child_that_leaves_changes_is_refused() -> None:
    operator = mapper("careless")
    operator.reads = False
    child = child_of(operator)
    child.receive_frontiers([(0, (3,), 1)])
    with pytest.raises(ProtocolError, match=r"operator 'careless' \[2\] left pushed changes unread"):
        run(child)


def test_rule_000_54_activity_in_the_event_is_a_change_of_counts() -> None:
    events: list[object] = []
    operator = mapper()
    child = child_of(operator, events=EventStream(events.append))
    operator.active = True
    run(child)
    operator.active = False
    operator.say(internal=[(0, (0,), -1)])
    run(child)
    assert [e.activity for e in events if isinstance(e, ScheduleEvent) and not e.start] == [False, True]


def test_rule_000_55_reports_become_statements_at_their_places() -> None:
    operator = mapper()
    child = child_of(operator)
    child.edges[0] = [Target(3, 1), Target(4, 0)]
    operator.say(consumed=[(0, (1,), 2)], internal=[(0, (1,), 1)], produced=[(0, (1,), 3)])
    assert run(child)[0] == {(2, 0, 1, 1): -2, (2, 0, 0, 1): 1, (3, 1, 1, 1): 3, (4, 0, 1, 1): 3}


def test_rule_000_55_a_product_without_an_edge_is_no_work() -> None:
    operator = mapper()
    child = quiet(operator)
    operator.say(produced=[(0, (1,), 3)])
    assert run(child)[0] == {}
    assert not child.recently_active


def test_rule_000_56_only_reported_activity_is_handed_up() -> None:
    operator = mapper()
    child = quiet(operator)
    operator.say(internal=[(0, (0,), -1)])
    assert run(child)[1] is False
    assert child.recently_active
    operator.active = True
    assert run(child)[1] is True
    assert child.recently_active


def test_rule_000_57_progress_for_a_child_shut_down_is_refused() -> None:
    child = child_of(source("gone"))
    run(child, held=False)
    assert child.operator is None
    child.receive_frontiers([])
    with pytest.raises(ProtocolError, match=r"operator 'gone\(tombstone\)' \[2\]"):
        child.receive_frontiers([(0, (3,), 1)])


# --- What a leaf may say ------------------------------------------------------------------------------

HELD_AT_OTHER = [(1, (0,), 1)]
LEGAL: list[tuple[str, Report, tuple[Report, Report, Report]]] = [
    ("held before", [(0, (2,), 1)], ([], [(0, (5,), 1)], [(0, (2,), 1)])),
    ("held and dropped in the turn", [(0, (2,), 1)], ([], [(0, (2,), -1), (0, (3,), 1)], [(0, (3,), 1)])),
    ("consumed in the turn", [], ([(0, (4,), 1)], [(0, (4,), 1)], [(1, (6,), 2)])),
]
ILLEGAL: list[tuple[str, Report, tuple[Report, Report, Report]]] = [
    ("a capability out of nothing", [], ([], [(0, (4,), 1)], [])),
    ("a message out of nothing", [], ([], [], [(0, (4,), 1)])),
    ("a capability held at another output", HELD_AT_OTHER, ([], [(0, (4,), 1)], [])),
    ("a message from another output's capability", HELD_AT_OTHER, ([], [], [(0, (4,), 1)])),
    ("a capability earlier than what is held", [(0, (5,), 1)], ([], [(0, (4,), 1)], [])),
    ("a message earlier than what was consumed", [], ([(0, (5,), 1)], [], [(0, (4,), 1)])),
    ("a capability gained and used in the turn", [(1, (0,), 1)], ([], [(0, (4,), 1)], [(0, (4,), 1)])),
]


@pytest.mark.parametrize(("what", "initial", "report"), LEGAL)
def test_rule_000_58_legal_reports_are_accepted(
    what: str, initial: Report, report: tuple[Report, Report, Report]
) -> None:
    operator = Scripted("leaf", 1, 2, initial=initial)
    operator.say(*report)
    run(child_of(operator))


@pytest.mark.parametrize(("what", "initial", "report"), ILLEGAL)
def test_rule_000_58_illegal_reports_name_operator_port_and_time(
    what: str, initial: Report, report: tuple[Report, Report, Report]
) -> None:
    operator = Scripted("leaf", 1, 2, initial=initial)
    operator.say(*report)
    with pytest.raises(UnheldCapabilityError, match=r"operator 'leaf' \[2\] .* at output 0, time=\(4,\)") as caught:
        run(child_of(operator))
    assert caught.value.time == (4,)
    assert caught.value.context["port"] == 0


def test_rule_000_58_a_dropped_capability_is_gone_after_the_turn() -> None:
    operator = source("leaf")
    child = child_of(operator)
    operator.say(internal=[(0, (0,), -1)])
    run(child)
    operator.say(produced=[(0, (0,), 1)])
    with pytest.raises(UnheldCapabilityError, match=r"held=\[\]"):
        run(child)


def test_rule_000_58_a_message_allows_what_the_own_summary_says() -> None:
    operator = Scripted("leaf", 2, 1, initial=[], summary=[[[(2,)]], [[]]])
    child = child_of(operator)
    operator.say(consumed=[(0, (4,), 1)], produced=[(0, (6,), 1)])
    run(child)
    operator.say(consumed=[(0, (4,), 1)], produced=[(0, (5,), 1)])
    with pytest.raises(UnheldCapabilityError, match=r"time=\(5,\)"):
        run(child)
    operator.say(consumed=[(1, (4,), 1)], produced=[(0, (9,), 1)])
    with pytest.raises(UnheldCapabilityError, match=r"time=\(9,\)"):
        run(child)


def test_rule_000_59_a_scope_is_not_judged_by_rules_for_leaves() -> None:
    operator = mapper("scope", local=False, initial=[])
    operator.say(internal=[(0, (4,), 1)])
    assert run(child_of(operator))[0] == {(2, 0, 0, 4): 1}


def test_rule_000_59_leaves_inside_a_scope_are_judged() -> None:
    inside = mapper("inside")
    region = Region(inside)
    region.start()
    inside.say(internal=[(0, (0,), -1)])
    region.worker.step()
    inside.say(produced=[(0, (0,), 1)])
    with pytest.raises(UnheldCapabilityError, match="operator 'inside'"):
        region.worker.step()


def test_rule_000_60_a_leaf_is_judged_by_its_own_statements() -> None:
    # The drop has not been exchanged yet, and another peer's capability still is there: both mean nothing.
    worker = Worker(MemoryNetwork(2).transports[0])
    scope = worker.new_dataflow()
    holder = source("holder", peers=2)
    scope.add_child(holder)
    number = worker.add(scope)
    holder.say(internal=[(0, (0,), -1)])
    worker.step()
    assert worker.dataflow(number)._counts == {(1, 0, 0, 0): 2}
    holder.say(produced=[(0, (0,), 1)])
    with pytest.raises(UnheldCapabilityError):
        worker.step()


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (([(0, (3,), -1)], [], []), r"consumed at input 0, time=\(3,\), count=-1"),
        (([], [], [(1, (3,), -2)]), r"produced at output 1, time=\(3,\), count=-2"),
        (([], [(0, (0,), -2)], []), r"capabilities at output 0, time=\(0,\), count=-1"),
    ],
)
def test_negative_counts_in_an_operators_own_report_are_refused(
    report: tuple[Report, Report, Report], what: str
) -> None:
    operator = Scripted("leaf", 1, 2)
    operator.say(*report)
    with pytest.raises(NegativeCountError, match=rf"operator 'leaf' \[2\] reported a negative count: {what}"):
        run(child_of(operator))


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (([(1, (3,), 1)], [], []), "unknown input 1"),
        (([], [(1, (3,), 1)], []), "unknown output 1"),
        (([], [], [(-1, (3,), 1)]), "unknown output -1"),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_statements_of_operators_about_unknown_ports_are_refused(
    report: tuple[Report, Report, Report], what: str, local: bool
) -> None:
    operator = mapper("leaf", local=local)
    operator.say(*report)
    with pytest.raises(ProtocolError, match=rf"operator 'leaf' \[2\] made a statement about {what}"):
        run(child_of(operator))


def test_rule_000_60_a_leaf_starts_with_its_own_part_alone() -> None:
    operator = source(peers=2)
    child = Child(operator, index=1, identifier=0, arity=1, peers=2)
    child.begin()
    operator.say(internal=[(0, (0,), -2)])
    with pytest.raises(NegativeCountError, match=r"capabilities at output 0, time=\(0,\), count=-1"):
        run(child)


def test_rule_000_64_remains_of_a_failed_child_are_not_the_nexts() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    first, failing = source("first"), source("failing")
    for operator in (first, failing):
        scope.add_child(operator)
    number = worker.add(scope)
    worker.step()

    def pull(consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        internal.update(0, (0,), -1)
        raise OSError("unplugged")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failing, "pull_internal_progress", pull)
        with pytest.raises(OSError, match="unplugged"):
            worker.step()
    for _ in range(3):
        worker.step()
    assert [child.name for child in worker.dataflow(number).children] == ["first", "failing"]


def test_rule_000_64_receipts_beside_a_failed_child_are_not_lost() -> None:
    inside = mapper()
    region = Region(inside)
    region.start()
    region.worker.step()
    region.source.say(produced=[(0, (2,), 3)], internal=[(0, (0,), -1)])
    region.entry.update(2, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inside, "pull_internal_progress", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            region.worker.step()
    inside.say(consumed=[(0, (2,), 3)], internal=[(0, (0,), -1)])
    for _ in range(6):
        region.worker.step()
    assert region.worker.dataflows == []


@pytest.mark.parametrize("side", ["consumed", "internal", "produced"])
def test_rule_000_64_buffers_with_something_in_them_are_refused(side: str) -> None:
    buffers = Buffers(1)
    getattr(buffers, side).update(0, (0,), 1)
    child = child_of(mapper("next"))
    with pytest.raises(TimelyInternalError, match=r"operator 'next' \[2\]: found buffers with something of another"):
        child.turn(outstanding=False, held=True, buffers=buffers, statements=ChangeBatch(4))


# --- The end --------------------------------------------------------------------------------------------


def test_rule_000_61_a_child_that_can_do_nothing_is_shut_down() -> None:
    operator = mapper("short")
    child = child_of(operator)
    child.receive_frontiers([(0, (0,), 1)])
    run(child, held=False)
    assert child.name == "short"
    child.receive_frontiers([(0, (0,), -1)])
    run(child, held=False)
    assert child.name == "short(tombstone)"
    assert operator.closed == 1


@pytest.mark.parametrize("reason", ["active", "frontier", "held", "deaf"])
def test_rule_000_61_each_reason_alone_keeps_a_child(reason: str) -> None:
    operator = mapper(notify=reason != "deaf")
    operator.active = reason == "active"
    child = child_of(operator)
    if reason == "frontier":
        child.receive_frontiers([(0, (0,), 1)])
    run(child, held=reason == "held")
    assert child.operator is operator


def test_rule_000_61_a_capability_of_any_peer_keeps_a_child() -> None:
    # Held is by all that was exchanged: this peer's own drop is not enough.
    operator = source(peers=2)
    child = Child(operator, index=1, identifier=0, arity=1, peers=2)
    child.begin()
    operator.say(internal=[(0, (0,), -1)])
    run(child, held=True)
    assert child.operator is operator


def test_rule_000_66_the_last_drop_of_a_peer_shuts_a_child_down() -> None:
    network = MemoryNetwork(2, automatic=False)
    workers = [Worker(transport) for transport in network.transports]
    firsts = []
    for worker in workers:
        scope = worker.new_dataflow()
        firsts.append(source("first", peers=2))
        scope.add_child(firsts[-1])
        scope.add_child(source("keeper", peers=2))
        worker.add(scope)
    for first in firsts:
        first.say(internal=[(0, (0,), -1)])
    for _ in range(4):
        workers[0].step()
    (child, _) = workers[0].dataflow(0).children
    turns = firsts[0].turns
    # It dropped its own long ago, and is kept for the peer's only.
    assert child.operator is firsts[0]
    for _ in range(2):
        workers[1].step()
    network.deliver_all()
    workers[0].step()
    assert child.name == "first(tombstone)"
    assert (firsts[0].closed, firsts[0].turns) == (1, turns)


def test_rule_000_62_idle_sources_go_a_deaf_child_stays() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    first, deaf, keeper = source("first"), sink("deaf", notify=False), source("keeper")
    chain(scope, first, deaf)
    scope.add_child(keeper)
    number = worker.add(scope)
    first.say(internal=[(0, (0,), -1)])
    for _ in range(4):
        worker.step()
    names = [child.name for child in worker.dataflow(number).children]
    assert names == ["first(tombstone)", "deaf", "keeper"]


def test_rule_000_63_buffers_are_kept_and_reused() -> None:
    subgraph, _ = alone(mapper("one"), mapper("two"))
    before = subgraph._buffers
    seen: list[int] = []
    for child in subgraph.children:
        operator = child.operator
        assert isinstance(operator, Scripted)
        original = operator.pull_internal_progress
        operator.pull_internal_progress = lambda *b, original=original: (  # type: ignore[method-assign, misc]
            seen.append(id(b[0])),
            original(*b),
        )[1]
    for _ in range(3):
        turn(subgraph)
    assert subgraph._buffers is before
    assert set(seen) == {id(before.consumed)}


def test_idle_children_cost_no_turn() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    first, *others = source(), *(mapper(f"map {i}", initial=[]) for i in range(50))
    chain(scope, first, *others)
    worker.add(scope)
    for _ in range(3):
        worker.step()
    before = sum(operator.turns for operator in others)
    for _ in range(10):
        worker.step()
    assert sum(operator.turns for operator in others) == before


def test_a_scope_that_is_shut_down_closes_its_channel() -> None:
    inside = mapper()
    region = Region(inside)
    number = region.start()
    inside.say(internal=[(0, (0,), -1)])
    region.source.say(internal=[(0, (0,), -1)])
    keeper_frontier = filled(1, [])
    assert keeper_frontier.is_empty()
    while region.worker.step():
        pass
    assert number not in region.worker.dataflows
    assert inside.closed == 1


def test_others_have_their_turn_after_a_refused_report() -> None:
    worker = Worker()
    scope = worker.new_dataflow()
    wrong, last = source("wrong"), sink("last")
    chain(scope, wrong, last)
    worker.add(scope)
    wrong.say(internal=[(0, (0,), -2)])
    with pytest.raises(NegativeCountError):
        worker.step()
    assert last.turns == 0
    worker.step()
    assert last.frontier() == [(0,)]
