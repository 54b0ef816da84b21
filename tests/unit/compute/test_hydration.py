"""Which dataflows start when."""

from __future__ import annotations

from spark_timely.compute.command import AllowCompaction, Schedule, UpdateConfiguration
from spark_timely.compute.instance import Instance
from spark_timely.compute.observation import CopyToDone, ImportUpper, SubscribeProgress, Upper
from tests.unit.compute.support import EMPTY, at, create, drop, instance, rows, run_of, say, session, started


def limited(limit: int, *commands: object) -> Instance:
    return instance(UpdateConfiguration({"hydration_limit": limit}), *commands)  # type: ignore[arg-type]


def report(one: Instance, id_: str, frontier: object) -> None:
    one.tell(Upper(id_, run_of(one, id_), frontier))  # type: ignore[arg-type]
    one.turn()


def test_rule_004_09_hydrated_is_a_reported_frontier_strictly() -> None:
    one = limited(1, create("a", as_of=3), create("b"), Schedule("a"), Schedule("b"))
    one.turn()
    assert started(one) == {"a"}
    report(one, "a", at(3))
    assert (started(one), one.collection("a").hydrated) == ({"a"}, False)
    one.tell(Upper("a", run_of(one, "a"), at(4)))
    # Observed is not reported.
    assert not one.collection("a").hydrated
    one.turn()
    assert (started(one), one.collection("a").hydrated) == ({"a", "b"}, True)


def test_rule_004_09_complete_or_dropped_counts_as_hydrated() -> None:
    one = limited(1, *(create(id_) for id_ in "abc"), *(Schedule(id_) for id_ in "abc"))
    one.turn()
    report(one, "a", EMPTY)
    assert started(one) == {"a", "b"}
    say(one, drop("b")).turn()
    assert started(one) == {"a", "c"}


def test_rule_004_09_subscribe_hydrates_by_its_batches() -> None:
    one = limited(1, create("s:subscribe"), create("c:copy-to"), create("x"), *(Schedule(id_) for id_ in "scx"))
    one.turn()
    run = run_of(one, "s")
    one.tell(SubscribeProgress("s", run, at(0), at(3)))
    one.turn()
    assert started(one) == {"s"}
    one.tell(SubscribeProgress("s", run, at(3), at(4)))
    one.turn()
    assert started(one) == {"s", "c"}
    one.tell(CopyToDone("c", run_of(one, "c"), error="no place"))
    one.turn()
    assert started(one) == {"s", "c", "x"}


def test_rule_004_10_first_released_then_started_first_in_first() -> None:
    one = limited(2, *(create(id_) for id_ in "abcd"), *(Schedule(id_) for id_ in "dbca"))
    assert started(one) == set()
    one.turn()
    assert started(one) == {"d", "b"}
    one.tell(Upper("b", run_of(one, "b"), at(9)))
    one.turn()
    # In the same turn in which it is reported.
    assert started(one) == {"d", "b", "c"}


def test_rule_004_10_limit_is_of_collections_and_one_dataflow() -> None:
    one = limited(2, create("a"), create("b", "c", "d"), create("e"), *(Schedule(id_) for id_ in "abcde"))
    one.turn()
    assert started(one) == set("abcd")
    for id_ in "abc":
        report(one, id_, at(9))
    assert started(one) == set("abcde")


def test_rule_004_11_queued_dataflow_that_is_dropped_takes() -> None:
    one = limited(0, create("a", "b"), create("c"), *(Schedule(id_) for id_ in "abc"), drop("a"), drop("b"))
    say(one, UpdateConfiguration({"hydration_limit": 1})).turn()
    assert started(one) == {"c"}


def test_rule_004_12_limit_is_read_anew_each_turn_and_zero() -> None:
    one = limited(0, *(create(id_) for id_ in "abc"), *(Schedule(id_) for id_ in "abc"))
    one.turn()
    assert started(one) == set()
    say(one, UpdateConfiguration({"hydration_limit": 2})).turn()
    assert started(one) == {"a", "b"}
    say(one, UpdateConfiguration({"hydration_limit": 1})).turn()
    assert started(one) == {"a", "b"}
    report(one, "a", at(9))
    assert started(one) == {"a", "b"}


def test_rule_004_21_interactive_starts_at_once_and_does() -> None:
    one = limited(1, create("a"), Schedule("a"), create("i", interactive=True), create("j", interactive=True))
    assert started(one) == {"i", "j"}
    one.turn()
    assert started(one) == {"i", "j", "a"}


def test_rule_004_21_without_scheduling_all_start() -> None:
    one = limited(0, create("a"), create("b"), Schedule("b"), UpdateConfiguration({"scheduling": False}), create("c"))
    assert started(one) == {"a", "b", "c"}
    say(one, UpdateConfiguration({"scheduling": True, "hydration_limit": 1}), create("d"), Schedule("d")).turn()
    # Those three do not count.
    assert started(one) == {"a", "b", "c", "d"}


def test_rule_004_22_dataflow_is_built_but_suspended() -> None:
    one = instance(create("a", "b"))
    one.turn()
    assert one.running() == ()
    (waiting,) = one.suspended()
    assert (waiting.live, waiting.started, waiting.complete) == (("a", "b"), False, False)
    assert rows(one, "hydration") == [("a", "suspended", False), ("b", "suspended", False)]


def test_rule_004_23_schedule_of_what_does_not_wait_is_ignored() -> None:
    one = limited(1, create("a"), Schedule("a"), Schedule("x"))
    one.turn()
    say(one, Schedule("a")).turn()
    assert (started(one), len(one.running())) == ({"a"}, 1)
    report(one, "a", at(9))
    say(one, Schedule("a"), create("b"), Schedule("b")).turn()
    assert started(one) == {"a", "b"}


def test_rule_004_24_queued_when_all_exports_are_scheduled() -> None:
    one = limited(1, create("a", "b"), create("c"), Schedule("a"), Schedule("c"), Schedule("b"))
    assert rows(one, "hydration") == [(id_, "queued", False) for id_ in "abc"]
    one.turn()
    assert started(one) == {"c"}


def test_rule_004_25_last_missing_export_dropped_starts_past() -> None:
    one = limited(1, create("x"), Schedule("x"), create("y"), Schedule("y"), create("a", "b"), Schedule("a"), drop("b"))
    assert started(one) == {"a"}
    one.turn()
    # It does not count.
    assert started(one) == {"a", "x"}


def test_rule_004_25_dropped_before_the_last_one_gives_up() -> None:
    one = limited(0, create("a", "b"), drop("a"))
    assert started(one) == set()
    say(one, Schedule("b")).turn()
    assert started(one) == set()
    assert rows(one, "hydration") == [("b", "queued", False)]


def test_rule_004_25_all_exports_dropped_never_starts() -> None:
    one = limited(9, create("a", "b"), drop("a"), drop("b"), create("c", "d"), Schedule("c"), drop("c"), drop("d"))
    one.turn()
    assert (one.running(), one.suspended(), rows(one, "dataflows")) == ((), (), [])


def test_restart_waits_and_queues_as_before() -> None:
    """The history that is left of a session makes the same wait and queue in another one."""
    commands = [
        UpdateConfiguration({"hydration_limit": 0}),
        create("a", "b"),
        create("c", "d"),
        create("e", "f"),
        create("g"),
        Schedule("g"),
        Schedule("c"),
        drop("d"),
        drop("a"),
        Schedule("b"),
        Schedule("e"),
        AllowCompaction("e", at(7)),
    ]
    one = instance(*commands)  # type: ignore[arg-type]
    again = session(Instance(), *one.history.lasting()[2:])
    for each in (one, again):
        each.turn()
        assert started(each) == {"c"}
        say(each, UpdateConfiguration({"hydration_limit": 1})).turn()
        assert started(each) == {"c", "g"}


def test_collections_that_wait_for_an_import_hold_up_no_other() -> None:
    said = [each for id_ in "abc" for each in (create(id_), Schedule(id_))]
    one = limited(1, *said)
    one.tell(ImportUpper(run_of(one, "a"), "in", at(3)))
    one.turn()
    assert (started(one), one.working()) == ({"a", "b"}, ("b",))
    # By now it has what it reads, and counts.
    one.tell(ImportUpper(run_of(one, "a"), "in", at(4)))
    report(one, "b", at(4))
    assert (started(one), one.working()) == ({"a", "b"}, ("a",))
    report(one, "a", at(4))
    assert (started(one), one.working()) == ({"a", "b", "c"}, ("c",))
