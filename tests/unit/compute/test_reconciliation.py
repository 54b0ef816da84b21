"""What is kept when a client connects again, what is dropped, and what is said of it."""

from __future__ import annotations

import pytest

from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.history import reduced
from spark_timely.compute.instance import Instance
from spark_timely.compute.observation import (
    CopyToDone,
    OperatorHydrated,
    PeekAnswer,
    SubscribeProgress,
    Upper,
)
from spark_timely.compute.reconciliation import reconcile
from spark_timely.compute.response import Dropped, Frontiers, PeekResponse, Status
from spark_timely.errors import InvalidUsageError, OwnershipError
from tests.unit.compute.support import (
    SHOWS,
    at,
    changes,
    create,
    drop,
    flow,
    instance,
    rows,
    run_of,
    say,
    session,
    started,
)

INDEX = create("i", as_of=3)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ([create("a")], [create("a")], None),
        ([create("a", as_of=3)], [create("a", as_of=9)], None),
        ([create("a", "b:log")], [create("b:log", "a")], None),
        ([CreateDataflow(flow("a", plan='{"x":1}'))], [CreateDataflow(flow("a", plan=' {"x": 1}'))], None),
        ([create("a", as_of=9)], [create("a", as_of=3)], "computes from"),
        ([create("a", plan="1")], [create("a", plan="2")], "plan differs"),
        ([create("a")], [create("a:log")], "exports differ"),
        ([create("a")], [create("a", "b")], "does not ask"),
        ([create("a")], [create("a", until=at(9))], "until differs"),
        ([create("a")], [create("a", interactive=True)], "interactive differs"),
        ([INDEX, create("a")], [INDEX, create("a", reads=["i"])], "imports differs"),
        ([create("a"), AllowCompaction("a", at(7))], [create("a", as_of=6)], "computes from"),
        ([create("a", "b"), AllowCompaction("a", at(7))], [create("a", "b", as_of=6)], "past"),
        ([create("a", "b"), AllowCompaction("a", at(7))], [create("a", "b", as_of=7)], None),
        ([create("a", "b"), drop("b")], [create("a", "b")], "dropped"),
        ([create("a:subscribe")], [create("a:subscribe")], "subscribe"),
        ([create("a", "c:copy-to")], [create("a", "c:copy-to")], "copy-to"),
        ([INDEX, create("a", reads=["i"])], [create("i", plan="2"), create("a", reads=["i"])], "not kept"),
        ([INDEX, create("a", reads=["i"])], [INDEX, create("a", reads=["i"])], None),
        ([create("a")], [], "does not ask"),
    ],
)
def test_dataflow_is_kept_only_if_all_of_it_fits(old: list[object], new: list[object], reason: str | None) -> None:
    found = reconcile(reduced(old), reduced(new))  # type: ignore[arg-type]
    keys = [frozenset(each.dataflow.export_ids) for each in old if isinstance(each, CreateDataflow)]
    if reason is None:
        assert list(found.kept) == keys
        assert not found.dropped
        assert not found.created
    else:
        assert reason in found.reasons[keys[-1]]
        assert keys[-1] in found.dropped
        assert keys[-1] not in found.kept


def test_dropped_are_the_importers_first() -> None:
    old = [create("i"), create("a", reads=["i"]), create("b", reads=["a"])]
    assert [sorted(ids) for ids in reconcile(old, []).dropped] == [["b"], ["a"], ["i"]]


def test_kept_reports_again_from_its_new_as_of_on() -> None:
    one = instance(create("a", as_of=3), Schedule("a"))
    run = run_of(one, "a")
    one.turn()
    one.tell(Upper("a", run, at(8)))
    one.tell(OperatorHydrated("a", run, "sum"))
    assert one.turn() == (Status("a", "sum", True), Frontiers("a", at(8)))
    session(one, create("a", as_of=8))
    assert run_of(one, "a") == run
    assert one.collection("a").reported is None
    assert one.turn() == (Status("a", "sum", True), Frontiers("a", at(8)))
    session(one, create("a", as_of=10))
    assert one.turn() == (Status("a", "sum", True),)
    assert one.collection("a").allowed == at(10)
    one.tell(Upper("a", run, at(10)))
    assert one.turn() == (Frontiers("a", at(10)),)
    assert not one.collection("a").hydrated


def test_rule_004_35_what_reconciliation_drops_has_no_report() -> None:
    one = instance(create("a"), create("b:subscribe"), create("c:copy-to"), *(Schedule(id_) for id_ in "abc"))
    one.turn()
    runs = {id_: run_of(one, id_) for id_ in "abc"}
    one.tell(Upper("a", runs["a"], at(9)))
    session(one, create("a", plan="2"))
    one.tell(Upper("a", runs["a"], at(12)))
    one.tell(SubscribeProgress("b", runs["b"], at(0), at(9)))
    one.tell(CopyToDone("c", runs["c"], rows=1))
    assert one.turn() == ()
    assert not one.has("b")
    assert run_of(one, "a") not in runs.values()
    assert rows(one, "frontiers")[-1] == ("a", "0")


def test_others_are_dropped_before_anything_is_made() -> None:
    one = instance(create("a"), create("b", reads=["a"]))
    changes(one, "exports")
    session(one, create("b"), create("a", reads=["b"]))
    assert [(id_, diff) for id_, _, diff in changes(one, "exports")] == [("b", -1), ("a", -1), ("b", 1), ("a", 1)]


def test_nothing_is_answered_while_a_session_begins() -> None:
    one = instance(create("a"), Schedule("a"), Peek("p", (5,), "a"))
    one.turn()
    run = run_of(one, "a")
    one.handle(CreateTimely(one.epoch + 1))
    one.handle(SHOWS)
    one.tell(Upper("a", run, at(9)))
    one.tell(PeekAnswer("p", rows=[1]))
    assert not one.initialized
    assert one.turn() == ()
    # The dataflows of the session before go on.
    assert started(one) == {"a"}
    say(one, create("a"), InitializationComplete())
    assert one.turn() == (Frontiers("a", at(9)),)


def test_old_peeks_are_discarded_and_new_ones_are_answered() -> None:
    one = instance(create("a"), Peek("old", (5,), "a"))
    one.handle(CreateTimely(one.epoch + 1))
    say(
        one,
        SHOWS,
        create("a"),
        create("b"),
        Peek("new", (5,), "a"),
        Peek("gone", (5,), "b"),
        Peek("canceled", (5,), "a"),
        CancelPeek("canceled"),
        drop("b"),
        InitializationComplete(),
    )
    one.tell(PeekAnswer("old", rows=[1]))
    found = {response.id: response.outcome for response in one.turn() if isinstance(response, PeekResponse)}
    assert found == {"gone": "error", "canceled": "canceled"}
    assert [each.peek.id for each in one.pending_peeks()] == ["new"]
    one.tell(PeekAnswer("new", rows=[1]))
    assert one.turn() == (PeekResponse("new", "rows", [1]),)
    # The names of all can be used again.
    say(one, Peek("old", (5,), "a"), Peek("gone", (5,), "a"), Peek("canceled", (5,), "a"))


def test_client_that_leaves_while_it_begins_changes_nothing() -> None:
    one = instance(create("a"), Schedule("a"))
    one.turn()
    run = run_of(one, "a")
    lasting = one.history.lasting()
    say(one, CreateTimely(7), SHOWS, create("b"))
    assert one.history.lasting() == lasting
    session(one, create("a"), epoch=8)
    assert run_of(one, "a") == run
    assert not one.has("b")


def test_session_needs_a_greater_epoch() -> None:
    one = instance()
    for epoch in (0, one.epoch):
        with pytest.raises(OwnershipError, match=f"found epoch={epoch}, the instance has 0"):
            one.handle(CreateTimely(epoch))
    say(one, CreateTimely(5))
    with pytest.raises(OwnershipError, match="the instance has 5"):
        one.handle(CreateTimely(5))


def test_incompatible_instance_halts_and_leaves_the_old_one() -> None:
    one = instance(create("a"), Schedule("a"))
    one.turn()
    one.handle(CreateTimely(9))
    with pytest.raises(InvalidUsageError, match="could not connect to the instance") as found:
        one.handle(CreateInstance({"frontiers": "other"}))
    assert found.value.context["halt"] is True
    assert started(one) == {"a"}
    session(one, create("a"))
    assert started(one) == {"a"}


def test_writes_stay_allowed_over_sessions_and_restarts() -> None:
    one = session(Instance())
    assert one.read_only
    say(one, AllowWrites())
    session(one)
    assert not one.read_only
    again = session(Instance(), *one.history.lasting()[2:])
    assert not again.read_only


def test_configuration_of_a_session_is_its_own() -> None:
    one = instance(UpdateConfiguration({"hydration_limit": 1, "x": 1}))
    session(one, UpdateConfiguration({"x": 2}))
    assert dict(one.configuration) == {
        "hydration_limit": 4,
        "scheduling": True,
        "max_result_bytes": None,
        "x": 2,
    }


def test_kept_that_has_not_started_waits_for_the_schedules() -> None:
    one = instance(UpdateConfiguration({"hydration_limit": 0}), create("a"), create("b"), Schedule("a"))
    session(one, create("a"), create("b"), Schedule("b")).turn()
    assert started(one) == {"b"}


def test_dropped_before_its_session_computes_is_not_reported() -> None:
    one = session(Instance(), create("a", "b"), drop("a"), create("c"), drop("c"))
    assert one.turn() == ()
    assert not one.has("a")
    assert not one.has("c")
    say(one, drop("b"))
    assert one.turn() == (Dropped("b", at(0)),)
