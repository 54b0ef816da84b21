"""The instance: commands, facts, and the responses that are due. Hydration and sessions are tested beside it."""

from __future__ import annotations

import pytest

from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.instance import Instance
from spark_timely.compute.observation import (
    CopyToDone,
    ImportUpper,
    OperatorHydrated,
    PeekAnswer,
    SubscribeProgress,
    Upper,
)
from spark_timely.compute.response import (
    CopyToResponse,
    Dropped,
    Frontiers,
    PeekResponse,
    Status,
    SubscribeBatch,
)
from spark_timely.errors import (
    InvalidOptionError,
    InvalidShapeError,
    InvalidUsageError,
    MissingError,
    SinceViolationError,
    TimelyError,
    TimelyInternalError,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.compute.support import (
    DOMAIN,
    EMPTY,
    SHOWS,
    at,
    changes,
    create,
    drop,
    instance,
    kinds,
    rows,
    run_of,
    say,
    session,
)

TWO = TimeDomain(("long", "long"), (0, 0))


def upper(one: Instance, id_: str, frontier: Antichain) -> Instance:
    one.tell(Upper(id_, run_of(one, id_), frontier))
    return one


# Commands ------------------------------------------------------------------------------------------


def test_rule_004_01_same_commands_and_facts_give_the_same() -> None:
    def story() -> list[object]:
        one = instance(create("a", "b:log"), Schedule("a"), Schedule("b"), Peek("p", (4,), "a"))
        found = [one.turn()]
        for time in (3, 5, 9):
            upper(one, "a", at(time))
            upper(one, "b", at(time))
            found.append(one.turn())
        return [*found, say(one, drop("a")).turn(), one.history.lasting()]

    assert story() == story()


def test_rule_004_02_two_sources_of_one_frontier_are_an_internal() -> None:
    one = instance(create("i", "s:subscribe", "c:copy-to"))
    run = run_of(one, "i")
    for fact in (
        Upper("s", run, at(9)),
        Upper("c", run, at(9)),
        SubscribeProgress("i", run, at(0), at(9)),
        SubscribeProgress("c", run, at(0), at(9)),
        CopyToDone("i", run, rows=1),
    ):
        with pytest.raises(TimelyInternalError, match="could not take"):
            one.tell(fact)
    assert one.turn() == ()


def test_rule_004_04_configuration_acts_in_command_order() -> None:
    one = instance(UpdateConfiguration({"steps_at_once": 1}))
    step = one.configuration
    say(one, UpdateConfiguration({"steps_at_once": 2}))
    assert (step["steps_at_once"], one.configuration["steps_at_once"]) == (1, 2)
    with pytest.raises(TypeError):
        step["steps_at_once"] = 3  # type: ignore[index]


def test_rule_004_06_collection_that_is_not_there_is_refused() -> None:
    one = instance(create("a"))
    assert one.has("a")
    assert not one.has("b")
    with pytest.raises(MissingError, match="could not look at collection 'b'"):
        one.collection("b")


def test_rule_004_13_command_enters_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    one = instance()
    apply, seen = Instance._apply, []

    def watched(self: Instance, command: Command, *more: object) -> None:
        seen.append(command in self.history.commands)
        apply(self, command, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Instance, "_apply", watched)
    say(one, create("a"), Schedule("a"), UpdateConfiguration({"x": 1}), Peek("p", (3,), "a"))
    assert seen == [True, True, True, True]


def test_rule_004_14_nothing_is_handled_before_a_session() -> None:
    one = Instance()
    for command in (SHOWS, create("a"), InitializationComplete(), AllowWrites(), Schedule("a")):
        with pytest.raises(InvalidUsageError, match="found no session"):
            one.handle(command)
    one.handle(CreateTimely(1))
    for command in (create("a"), InitializationComplete(), AllowWrites(), Schedule("a"), UpdateConfiguration({})):
        with pytest.raises(InvalidUsageError, match="found no instance"):
            one.handle(command)
    assert (one.turn(), one.epoch) == ((), 1)


def test_rule_004_15_initialization_complete_says() -> None:
    one = instance(create("a"))
    before = one.history.commands
    one.handle(InitializationComplete())
    assert one.history.commands == before
    assert one.initialized
    assert one.running() == ()  # what waits for its schedule still waits


def test_rule_004_16_second_create_is_refused_and_configuration() -> None:
    one = Instance()
    say(one, CreateTimely(1), CreateInstance(SHOWS.introspection, {"scheduling": False}, DOMAIN), create("a"))
    with pytest.raises(InvalidUsageError, match="found it created"):
        one.handle(SHOWS)
    say(one, InitializationComplete())
    assert [run.live for run in one.running()] == [("a",)]
    with pytest.raises(InvalidUsageError, match="found it created"):
        one.handle(SHOWS)


def test_rule_004_17_partial_configurations_merge() -> None:
    one = instance(UpdateConfiguration({"x": 1, "y": 1}), UpdateConfiguration({"y": 2, "hydration_limit": 0}))
    assert (one.configuration["x"], one.configuration["y"], one.configuration["hydration_limit"]) == (1, 2, 0)
    assert one.configuration["max_result_bytes"] is None
    for values in ({"hydration_limit": -1}, {"hydration_limit": True}, {"scheduling": 1}, {"max_result_bytes": "1"}):
        with pytest.raises(InvalidOptionError, match="could not configure the instance"):
            one.handle(UpdateConfiguration(values))
    assert one.configuration["hydration_limit"] == 0


def test_rule_004_18_dataflow_has_its_number_before_it_is_built() -> None:
    one = instance(create("a"), create("b"), create("i", interactive=True))
    assert [run_of(one, id_) for id_ in "abi"] == [1, 2, 3]
    assert rows(one, "dataflows") == [(1, "flow of a"), (2, "flow of b"), (3, "flow of i")]


def test_rule_004_19_id_in_use_is_refused_and_the_old_one_lives() -> None:
    one = instance(create("a", "b"))
    for made in (create("a"), create("c", "b")):
        with pytest.raises(InvalidUsageError, match="in use in dataflow 'flow of a'"):
            one.handle(made)
    say(one, drop("a"))
    # As long as its dataflow has another export.
    with pytest.raises(InvalidUsageError, match="drop b first"):
        one.handle(create("a"))
    say(one, drop("b"), create("a"))
    assert run_of(one, "a") == 2


def test_rule_004_20_export_is_shown_then_its_frontier() -> None:
    one = instance()
    changes(one, "frontiers")
    say(one, create("a", "b", as_of=3))
    assert changes(one, "exports") == [("a", 1, 1), ("b", 1, 1)]
    assert changes(one, "frontiers") == [("a", "0", 1), ("b", "0", 1)]


def test_rule_004_26_compaction_of_an_index_and_the_empty() -> None:
    one = instance(create("a"), create("s:subscribe", "c:copy-to"))
    say(one, AllowCompaction("a", at(9)), AllowCompaction("a", at(5)))
    # Ahead of the upper; and it never goes back.
    assert one.allowed("a") == at(9)
    assert one.collection("a").upper is None
    for id_ in "sc":
        say(one, AllowCompaction(id_, at(9)))
        assert one.has(id_)
    assert one.turn() == ()
    say(one, drop("a"))
    assert not one.has("a")
    with pytest.raises(InvalidShapeError, match="of arity=2"):
        one.handle(AllowCompaction("s", at((1, 1))))


def test_rule_004_28_unknown_id_is_refused_and_drops_have_their(monkeypatch: pytest.MonkeyPatch) -> None:
    one = instance(create("a", as_of=3), Schedule("a"))
    with pytest.raises(MissingError, match="could not drop 'x': found no collection"):
        one.handle(drop("x"))
    with pytest.raises(MissingError, match="could not allow compaction of 'x'"):
        one.handle(AllowCompaction("x", at(5)))
    one.turn()
    upper(one, "a", at(5)).turn()
    seen: list[tuple[object, ...]] = []
    put, drop_ = one.introspection.put, one._queue.drop

    def watch_put(relation: str, key: object, found: object) -> None:
        seen.append((relation, one.has("a"), "a" in one._queue.hydrating, len(one._outbox)))
        put(relation, key, found)  # type: ignore[arg-type]

    def watch_queue(id_: str) -> int | None:
        seen.append(("queue", one.has("a"), "a" in one._queue.hydrating, len(one._outbox)))
        return drop_(id_)

    monkeypatch.setattr(one.introspection, "put", watch_put)
    monkeypatch.setattr(one._queue, "drop", watch_queue)
    changes(one, "frontiers")
    say(one, drop("a"))
    assert seen[0][:2] == ("queue", False)
    assert [entry[0] for entry in seen[1:3]] == ["exports", "frontiers"]
    assert all(entry[1:] == (False, False, 0) for entry in seen[1:])
    assert changes(one, "frontiers") == [("a", "5", -1)]
    assert one.turn() == (Dropped("a", at(5)),)


def test_rule_004_29_final_report_unless_it_is_complete() -> None:
    one = instance(create("a"), create("b"), create("c"))
    upper(one, "a", EMPTY)
    upper(one, "b", at(7))
    assert one.turn() == (Frontiers("a", EMPTY), Frontiers("b", at(7)))
    say(one, *(drop(id_) for id_ in "abc"))
    assert one.turn() == (Dropped("b", at(7)), Dropped("c", at(0)))
    assert one.turn() == ()


def test_rule_004_30_copy_to_has_no_frontier_and_one_answer() -> None:
    one = instance(create("c:copy-to"), create("d:copy-to"), create("e:copy-to"))
    runs = {id_: run_of(one, id_) for id_ in "cde"}
    one.tell(CopyToDone("c", runs["c"], rows=7))
    one.tell(CopyToDone("c", runs["c"], rows=7))
    one.tell(CopyToDone("d", runs["d"], error="no place"))
    assert one.turn() == (CopyToResponse("c", "rows", rows=7), CopyToResponse("d", "error", error="no place"))
    say(one, *(drop(id_) for id_ in "cde"))
    one.tell(CopyToDone("e", runs["e"], rows=7))
    assert one.turn() == (CopyToResponse("e", "dropped"),)


def test_rule_004_31_introspection_is_collections_with_ids() -> None:
    one = instance()
    view = one.collection("s_frontiers")
    assert (view.kind, view.run, view.as_of, view.reported) == ("introspection", 0, at(0), None)
    one.tell(Upper("s_frontiers", 0, at(4)))
    assert one.turn() == (Frontiers("s_frontiers", at(4)),)
    say(one, Peek("p", (3,), "s_frontiers"), create("r", reads=["s_frontiers"]))
    assert [each.ready for each in one.pending_peeks()] == [True]
    with pytest.raises(InvalidUsageError, match="in use for relation 'frontiers'"):
        one.handle(create("s_frontiers"))
    with pytest.raises(InvalidUsageError, match="shows the instance itself"):
        one.handle(drop("s_frontiers"))
    fresh = Instance()
    fresh.handle(CreateTimely(1))
    with pytest.raises(InvalidUsageError, match="id 'x' for two relations"):
        fresh.handle(CreateInstance({"frontiers": "x", "peeks": "x"}))
    with pytest.raises(InvalidUsageError, match="relation='nothing'"):
        fresh.handle(CreateInstance({"nothing": "x"}))


@pytest.mark.parametrize(
    ("made", "kind", "match"),
    [
        (create("b", reads=["x"]), MissingError, "no collection 'x'"),
        (create("b", reads=["s"]), InvalidUsageError, "a subscribe"),
        (create("b", reads=["b"]), InvalidUsageError, "an? index of its own"),
        (create("b", reads=["i"]), InvalidUsageError, "gone after a restart"),
        (create("b", as_of=5, reads=["a"]), SinceViolationError, "can be read from"),
    ],
)
def test_import_that_cannot_be_read_is_refused(made: Command, kind: type[TimelyError], match: str) -> None:
    one = instance(create("a", as_of=3), create("s:subscribe"), create("i", interactive=True))
    say(one, AllowCompaction("a", at(7)))
    before = one.history.commands
    with pytest.raises(kind, match=match):
        one.handle(made)
    assert one.history.commands == before
    assert not one.has("b")
    say(one, create("c:log", reads=["c"], as_of=1), create("d", reads=["a"], as_of=7), create("e", interactive=True))


def test_collection_that_others_import_is_not_dropped() -> None:
    one = instance(create("a"), create("b", "c", reads=["a"]))
    for _ in range(2):
        with pytest.raises(InvalidUsageError, match="found it imported for") as found:
            one.handle(drop("a"))
        if found.value.context["importers"] == ["b", "c"]:
            say(one, drop("b"))
    say(one, drop("c"), drop("a"))
    assert not one.has("a")


# Frontiers -----------------------------------------------------------------------------------------


def test_rule_004_33_only_strict_advances_are_reported() -> None:
    one = instance(create("a", domain=TWO, as_of=at((1, 1))))
    upper(one, "a", at((2, 2)))
    assert one.turn() == (Frontiers("a", at((2, 2))),)
    for same in (at((2, 2)), at((1, 3)), at((1, 1)), at((3, 0))):
        upper(one, "a", same)
        assert one.turn() == (), same
    upper(one, "a", at((2, 3), (3, 2)))
    assert one.turn() == (Frontiers("a", at((2, 3), (3, 2))),)


def test_rule_004_34_first_report_at_or_beyond() -> None:
    one = instance(create("a", "b", as_of=3))
    upper(one, "a", at(2))
    upper(one, "b", at(2))
    assert one.turn() == ()
    upper(one, "a", at(3))
    upper(one, "b", at(5))
    assert one.turn() == (Frontiers("a", at(3)), Frontiers("b", at(5)))


def test_rule_004_36_subscribes_have_no_frontier_reports() -> None:
    one = instance(create("s:subscribe"))
    one.tell(SubscribeProgress("s", 1, at(0), at(5), [1]))
    assert one.turn() == (SubscribeBatch("s", at(0), at(5), [1]),)
    assert one.collection("s").reported == at(5)


def test_rule_004_37_unreported_shows_the_minimum_and_empty() -> None:
    one = instance(create("a", as_of=3))
    changes(one, "frontiers")
    for frontier in (at(3), at(7), EMPTY):
        upper(one, "a", frontier).turn()
    assert changes(one, "frontiers") == [
        ("a", "0", -1), ("a", "3", 1), ("a", "3", -1), ("a", "7", 1), ("a", "7", -1),
    ]  # fmt: skip


def test_rule_004_38_all_frontiers_are_computed_before_one() -> None:
    one = instance(create("a", "b", "c"))
    for id_ in "cab":
        upper(one, id_, at(9))
    found = one.turn()
    assert kinds(found) == ["Frontiers"] * 3
    assert all(one.collection(id_).reported == at(9) for id_ in "abc")


def test_rule_004_39_and_40_dropped_is_a_response_of_its_own() -> None:
    one = instance(create("a"))
    upper(one, "a", at(5)).turn()
    say(one, drop("a"), create("a", as_of=4))
    upper(one, "a", at(9))
    assert one.turn() == (Dropped("a", at(5)), Frontiers("a", at(9)))
    assert one.turn() == ()


def test_rule_004_41_operator_hydration_of_what_is_gone() -> None:
    one = instance(create("a", "b"))
    for done in (True, True, False):
        one.tell(OperatorHydrated("a", 1, "sum", done))
    assert one.turn() == (Status("a", "sum", True), Status("a", "sum", False))
    upper(one, "a", EMPTY)
    say(one, drop("b")).turn()
    one.tell(OperatorHydrated("a", 1, "sum", True))
    one.tell(OperatorHydrated("b", 1, "sum", True))
    assert one.turn() == ()


def test_fact_about_a_run_that_is_gone_is_ignored() -> None:
    one = instance(create("a"), drop("a"), create("a"))
    one.turn()
    one.tell(Upper("a", 1, at(9)))
    one.tell(ImportUpper(1, "in", at(9)))
    one.tell(OperatorHydrated("a", 1, "sum"))
    assert one.turn() == ()
    assert one.collection("a").upper is None
    with pytest.raises(TimelyInternalError, match="import 'x'"):
        one.tell(ImportUpper(2, "x", at(9)))
    with pytest.raises(TimelyInternalError, match="have 1 coordinates"):
        one.tell(Upper("a", 2, at((1, 1))))


# Peeks ---------------------------------------------------------------------------------------------


def test_rule_004_43_peek_has_one_response() -> None:
    one = instance(create("a"), Peek("p", (5,), "a", traceparent="00-1"), Peek("q", (5,), path="/logs/x"))
    one.tell(PeekAnswer("p", rows=[1]))
    one.tell(PeekAnswer("p", rows=[2]))
    one.tell(PeekAnswer("q", error="no such log"))
    assert one.turn() == (
        PeekResponse("p", "rows", [1], traceparent="00-1"),
        PeekResponse("q", "error", error="no such log"),
    )
    say(one, CancelPeek("p"))
    assert one.turn() == ()
    assert one.pending_peeks() == ()


def test_rule_004_27_cancel_answers_what_waits_and_is_ignored() -> None:
    one = instance(create("a"), Peek("p", (5,), "a"), CancelPeek("p"), CancelPeek("p"), CancelPeek("x"))
    one.tell(PeekAnswer("p", rows=[1]))
    assert one.turn() == (PeekResponse("p", "canceled"),)


def test_rule_004_44_peek_is_shown_until_its_response_is_given() -> None:
    one = instance(create("a"), Peek("p", (5,), "a"))
    assert rows(one, "peeks") == [("p", "a", "index", "5")]
    one.tell(PeekAnswer("p", rows=[1]))
    assert rows(one, "peeks") == [("p", "a", "index", "5")]
    with pytest.raises(InvalidUsageError, match="without its response"):
        one.handle(Peek("p", (5,), "a"))
    one.turn()
    assert rows(one, "peeks") == []
    say(one, Peek("p", (6,), "a"))


def test_rule_004_45_peek_holds_its_time_and_survives_compaction() -> None:
    one = instance(create("a", as_of=3))
    upper(one, "a", at(9)).turn()
    say(one, Peek("p", (5,), "a"), Peek("early", (7,), "a"), AllowCompaction("a", at(8)))
    assert (one.allowed("a"), one.since_of("a")) == (at(8), at(5))
    say(one, drop("a"))
    assert [(each.peek.id, each.ready, each.dropped) for each in one.pending_peeks()] == [
        ("p", True, True),
        ("early", True, True),
    ]
    one.tell(PeekAnswer("p", rows=[1]))
    assert one.turn() == (Dropped("a", at(9)), PeekResponse("p", "rows", [1]))


def test_peek_whose_collection_is_dropped_before_its_time() -> None:
    one = instance(create("a", as_of=3), Peek("p", (5,), "a"), drop("a"))
    gone, answer = one.turn()
    assert gone == Dropped("a", at(0))
    assert isinstance(answer, PeekResponse)
    assert "before the time was complete" in str(answer.error)


def test_rule_004_46_peek_at_what_is_unknown_is_refused() -> None:
    one = instance(create("a", "s:subscribe"))
    with pytest.raises(MissingError, match="could not peek at 'x'"):
        one.handle(Peek("p", (5,), "x"))
    with pytest.raises(InvalidUsageError, match="found a subscribe"):
        one.handle(Peek("p", (5,), "s"))
    with pytest.raises(InvalidShapeError, match="time of 1 coordinates"):
        one.handle(Peek("p", (5, 5), "a"))
    say(one, Peek("p", (5,), "a"))
    assert [each.peek.id for each in one.pending_peeks()] == ["p"]


def test_rule_004_47_ready_when_the_upper_has_passed_the_time() -> None:
    one = instance(create("a"), Peek("p", (5,), "a"))
    assert [each.ready for each in one.pending_peeks()] == [False]
    upper(one, "a", at(5))
    assert [each.ready for each in one.pending_peeks()] == [False]
    upper(one, "a", at(6))
    assert [each.ready for each in one.pending_peeks()] == [True]


def test_rule_004_48_time_before_since_is_an_error_with_both() -> None:
    one = instance(create("a", as_of=3), AllowCompaction("a", at(6)), Peek("p", (5,), "a"))
    assert (one.turn(), one.pending_peeks(), one.since_of("a")) == ((), (), at(6))
    upper(one, "a", at(9))
    first, _ = one.turn()
    assert isinstance(first, PeekResponse)
    assert first.outcome == "error"
    assert first.error == "could not peek 'a' at 5: found since=6"
    assert isinstance(first.cause, SinceViolationError)
    assert (first.cause.as_of, first.cause.since) == ("5", "6")


def test_rule_004_03_result_size_is_unlimited() -> None:
    one = instance(create("a", "s:subscribe"), Peek("p", (5,), "a"), Peek("q", (5,), "a"))
    one.tell(PeekAnswer("p", rows=[1], n_bytes=1 << 60))
    say(one, UpdateConfiguration({"max_result_bytes": 10}))
    one.tell(PeekAnswer("q", rows=[1], n_bytes=11))
    one.tell(SubscribeProgress("s", 1, at(0), at(5), [1], 11))
    one.tell(SubscribeProgress("s", 1, at(5), at(6), [1], 10))
    first, second, third, fourth = one.turn()
    assert first == PeekResponse("p", "rows", [1])
    assert isinstance(second, PeekResponse)
    assert "found 11 bytes, allowed are 10" in str(second.error)
    assert isinstance(third, SubscribeBatch)
    assert third.updates is None
    assert "allowed are 10" in str(third.error)
    assert fourth == SubscribeBatch("s", at(5), at(6), [1])


# Subscribes ----------------------------------------------------------------------------------------


def test_rule_004_64_batch_that_does_not_continue_is_an_internal() -> None:
    one = instance(create("s:subscribe", as_of=3))
    for lower, top in ((at(0), at(2)), (at(1), at(5)), (at(0), at(0))):
        with pytest.raises(TimelyInternalError, match="could not take a batch of subscribe 's'"):
            one.tell(SubscribeProgress("s", 1, lower, top))
    assert one.turn() == ()
    one.tell(SubscribeProgress("s", 1, at(0), at(3)))
    with pytest.raises(TimelyInternalError):
        one.tell(SubscribeProgress("s", 1, at(0), at(5)))
    one.tell(SubscribeProgress("s", 1, at(3), EMPTY))
    with pytest.raises(TimelyInternalError):
        one.tell(SubscribeProgress("s", 1, EMPTY, EMPTY))
    assert kinds(one.turn()) == ["SubscribeBatch"] * 2


def test_rule_004_65_subscribe_at_its_end_says_no_dropped() -> None:
    one = instance(create("s:subscribe"), create("t:subscribe"))
    one.tell(SubscribeProgress("s", 1, at(0), EMPTY))
    one.tell(SubscribeProgress("t", 2, at(0), at(7)))
    say(one, drop("s"), drop("t"))
    assert one.turn()[2:] == (Dropped("t", at(7)),)


def test_rule_004_66_batch_after_a_drop_is_sent_all_the_same() -> None:
    one = instance(create("s:subscribe"), drop("s"))
    one.tell(SubscribeProgress("s", 1, at(0), at(7), [1]))
    assert one.turn() == (Dropped("s", at(0)), SubscribeBatch("s", at(0), at(7), [1]))
    say(one, create("s:subscribe"))
    one.tell(SubscribeProgress("s", 1, at(7), at(9), [1]))
    # Another collection has its id now.
    assert one.turn() == ()


def test_rule_004_67_batch_above_the_limit_moves_the_frontier() -> None:
    one = instance(create("s:subscribe"), UpdateConfiguration({"max_result_bytes": 1}))
    one.tell(SubscribeProgress("s", 1, at(0), at(5), [1], 2))
    assert one.collection("s").reported == at(5)
    assert rows(one, "frontiers")[-1] == ("s", "5")


def test_rule_004_68_frontiers_of_subscribes_are_shown_as_those() -> None:
    one = instance(create("s:subscribe"))
    changes(one, "frontiers")
    one.tell(SubscribeProgress("s", 1, at(0), at(5)))
    one.tell(SubscribeProgress("s", 1, at(5), EMPTY))
    assert changes(one, "frontiers") == [("s", "0", -1), ("s", "5", 1), ("s", "5", -1)]


def test_rule_004_69_answer_of_a_copy_to_moves_no_frontier() -> None:
    one = instance(create("c:copy-to"))
    changes(one, "frontiers")
    one.tell(CopyToDone("c", 1, rows=3))
    assert one.turn() == (CopyToResponse("c", "rows", rows=3),)
    assert changes(one, "frontiers") == []
    assert one.collection("c").reported is None


def test_rule_004_70_responses_that_nobody_gets_change_nothing() -> None:
    both = [instance(create("a"), create("s:subscribe"), Peek("p", (4,), "a")) for _ in range(2)]
    for one in both:
        upper(one, "a", at(5))
        one.tell(SubscribeProgress("s", 2, at(0), at(5)))
        one.tell(PeekAnswer("p", rows=[1]))
    both[0].turn()  # and thrown away
    kept = both[1].turn()
    assert len(kept) == 3
    for one in both:
        upper(one, "a", at(9))
    assert both[0].turn() == both[1].turn() == (Frontiers("a", at(9)),)


# Writing, and views --------------------------------------------------------------------------------


def test_instance_is_read_only_until_writes_are_allowed() -> None:
    one = instance()
    assert one.read_only
    say(one, AllowWrites(), AllowWrites())
    assert not one.read_only
    assert one.history.reduced()[-1] == AllowWrites()


def test_imports_are_held_at_as_of_until_hydrated_then() -> None:
    one = instance(create("i", as_of=1), create("a", "b", as_of=3, reads=["i"]))
    say(one, AllowCompaction("i", at(8)))
    assert one.holds(2) == {"in": at(3), "i": at(3)}
    assert one.since_of("i") == at(3)
    upper(one, "a", at(9)).turn()
    assert one.since_of("i") == at(3)
    upper(one, "b", at(6)).turn()
    assert one.holds(2) == {"in": at(6), "i": at(6)}
    assert one.since_of("i") == at(6)
    upper(one, "b", EMPTY).turn()
    assert one.since_of("i") == at(8)
    assert one.holds(99) == {}


def test_running_dataflows_say_what_is_left_of_them() -> None:
    one = instance(create("a", "c:copy-to", interactive=True))
    (run,) = one.running()
    assert (run.live, run.complete, run.uppers) == (("a", "c"), False, {})
    upper(one, "a", EMPTY)
    one.tell(CopyToDone("c", 1, rows=1))
    (run,) = one.running()
    assert (run.complete, run.uppers) == (True, {"a": EMPTY})
    assert one.run(1) == run
    assert one.run(2) is None


def test_refused_command_changes_nothing_and_check_says_so() -> None:
    one = instance(create("a"), Schedule("a"))
    before = (one.history.commands, one.version, one.collections(), rows(one, "history"))
    for command in (create("a"), drop("x"), Peek("p", (1,), "x"), SHOWS, UpdateConfiguration({"scheduling": 5})):
        for act in (one.check, one.handle):
            with pytest.raises(TimelyError):
                act(command)
    assert (one.history.commands, one.version, one.collections(), rows(one, "history")) == before
    with pytest.raises(TimelyInternalError):
        one.handle("create")  # type: ignore[arg-type]
    with pytest.raises(TimelyInternalError):
        one.tell("upper")  # type: ignore[arg-type]


def test_session_that_was_reduced_is_accepted_again() -> None:
    one = instance(create("a", as_of=1), create("b", as_of=4, reads=["a"]), AllowCompaction("a", at(9)))
    again = session(Instance(), *one.history.reduced()[2:])
    assert again.collection("a").as_of == at(4)
    assert again.allowed("a") == at(9)
