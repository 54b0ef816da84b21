"""From which time on a dataflow computes: one test for each numbered rule, and their order."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.compute.as_of import (
    Choice,
    DataflowFacts,
    ExportFacts,
    ImportFacts,
    choose_as_of,
    choose_as_ofs,
    stepped_back,
)
from spark_timely.errors import InvalidUsageError, SinceViolationError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.support import examples
from tests.unit.compute.support import DOMAIN, EMPTY, at

TWO = TimeDomain(("long", "long"), (0, 0))


def log(name: str, since: int, upper: int | None, **more: object) -> ImportFacts:
    return ImportFacts(name, at(since), EMPTY if upper is None else at(upper), **more)  # type: ignore[arg-type]


def facts(key: str, *parts: object, **more: object) -> DataflowFacts:
    imports = tuple(part for part in parts if isinstance(part, ImportFacts))
    exports = tuple(part for part in parts if isinstance(part, ExportFacts)) or (ExportFacts(key, "index"),)
    return DataflowFacts(key, imports, exports, more.pop("domain", DOMAIN), **more)  # type: ignore[arg-type]


def chosen(found: object) -> Antichain:
    assert isinstance(found, Choice), found
    return found.as_of


def test_rule_1_not_before_any_since() -> None:
    assert choose_as_of(facts("f", log("a", 3, 4), log("b", 7, 20))).as_of == at(7)


def test_rule_1_own_exports_are_no_imports() -> None:
    own = log("self", 9, 10, export="f")
    assert choose_as_of(facts("f", log("a", 3, 6), own, ExportFacts("f", "log", at(5)))).as_of == at(4)


def test_rule_1_export_that_is_not_written_counts_with_its_own() -> None:
    source = facts("source", log("a", 3, 9), ExportFacts("s", "log"))
    reader = facts("reader", log("s", 0, 0, export="s"), log("b", 2, 6))
    found = choose_as_ofs([reader, source])
    assert list(found) == ["reader", "source"]
    assert (chosen(found["source"]), chosen(found["reader"])) == (at(8), at(8))
    written = facts("source", log("a", 3, 9), ExportFacts("s", "log", at(7)))
    found = choose_as_ofs([facts("reader", log("s", 2, 7, export="s"), log("b", 2, 6)), written])
    assert (chosen(found["source"]), chosen(found["reader"])) == (at(6), at(5))


def test_rule_1_index_begins_where_its_readers_have_to_continue() -> None:
    index = facts("index", log("a", 3, 20), ExportFacts("i", "index"))
    reader = facts("reader", log("i", 0, 0, export="i"), ExportFacts("out", "log", at(9)))
    found = choose_as_ofs([index, reader])
    assert (chosen(found["index"]), chosen(found["reader"])) == (at(8), at(8))
    # A reader that cannot continue anyway does not hold the index back.
    lost = facts("lost", log("i", 0, 0, export="i"), ExportFacts("old", "log", at(2)))
    found = choose_as_ofs([index, reader, lost])
    assert (chosen(found["index"]), chosen(found["reader"])) == (at(8), at(8))
    assert isinstance(found["lost"], SinceViolationError)


def test_rule_2_log_never_skips_times() -> None:
    inputs = log("a", 3, 20)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log", at(9)))).as_of == at(8)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log"))).as_of == at(19)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log", EMPTY))).as_of == at(19)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log", at(9)), ExportFacts("g", "log", at(7)))).as_of == at(
        6
    )
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "subscribe", at(9)))).as_of == at(19)
    with pytest.raises(SinceViolationError, match=r"since=Antichain.of\(3\) of import 'a', needed Antichain.of\(2\)"):
        choose_as_of(facts("f", inputs, ExportFacts("f", "log", at(3))))


def test_rule_2_task_that_has_not_passed_its_beginning_begins() -> None:
    task = (log("a", 3, 20), ExportFacts("f", "log", at(5)))
    assert choose_as_of(facts("f", *task, recorded=at(5))).as_of == at(5)
    assert choose_as_of(facts("f", *task, recorded=at(7))).as_of == at(7)
    assert choose_as_of(facts("f", *task, recorded=at(4))).as_of == at(4)
    assert choose_as_of(facts("f", log("a", 3, 20), ExportFacts("f", "log", at(9)), recorded=at(4))).as_of == at(8)
    with pytest.raises(SinceViolationError):
        choose_as_of(facts("f", log("a", 8, 20), ExportFacts("f", "log", at(5)), recorded=at(5)))


def test_rule_3_latest_that_can_be_answered_at_once() -> None:
    assert choose_as_of(facts("f", log("a", 3, 20), log("b", 1, 9))).as_of == at(8)
    assert choose_as_of(facts("f", log("a", 3, None), log("b", 1, 9))).as_of == at(8)
    assert choose_as_of(facts("f", log("a", 3, None))).as_of == at(3)
    assert choose_as_of(facts("f")).as_of == at(0)


def test_rule_4_not_before_what_was_allowed_unless_times_would() -> None:
    found = choose_as_of(facts("f", log("a", 3, 9), allowed=at(12)))
    assert (found.as_of, found.kept) == (at(12), True)
    found = choose_as_of(facts("f", log("a", 3, 9), ExportFacts("f", "log", at(8)), allowed=at(12)))
    assert (found.as_of, found.kept) == (at(7), False)
    found = choose_as_of(facts("f", log("a", 3, 9), ExportFacts("f", "log", at(8)), allowed=at(5)))
    assert (found.as_of, found.kept) == (at(7), True)


def test_rule_5_retainers_begin_at_each_since_and_move() -> None:
    found = choose_as_of(facts("f", log("a", 3, 20), log("b", 1, 9)))
    assert found.retain_first == {"a": at(3), "b": at(1)}
    assert found.retain_then == {"a": at(8), "b": at(8)}


def test_dataflows_that_read_each_other_or_have_one_name() -> None:
    one = facts("one", log("two", 0, 0, export="two"))
    two = facts("two", log("one", 0, 0, export="one"))
    with pytest.raises(InvalidUsageError, match="circle, "):
        choose_as_ofs([one, two])
    with pytest.raises(InvalidUsageError, match="twice"):
        choose_as_ofs([one, one])


def test_what_waits_for_one_without_a_choice_has_none() -> None:
    lost = facts("lost", log("a", 9, 20), ExportFacts("i", "index"), ExportFacts("o", "log", at(3)))
    found = choose_as_ofs([lost, facts("reader", log("i", 0, 0, export="i")), facts("other", log("a", 9, 20))])
    assert isinstance(found["lost"], SinceViolationError)
    assert "found none for 'lost'" in str(found["reader"])
    assert chosen(found["other"]) == at(19)


times = st.tuples(st.integers(0, 4), st.integers(0, 4))
frontiers = st.lists(times, min_size=1, max_size=3).map(lambda found: Antichain.of(*found))


@examples(200, long=5000)
@given(frontiers, frontiers, frontiers, st.none() | frontiers)
def test_chosen_as_of_neither_skips_nor_repeats_in_any_order(
    since: Antichain, upper: Antichain, out: Antichain, allowed: Antichain | None
) -> None:
    """In a product order, by trying all times: invariants 1 and 2 of the module's head."""
    made = DataflowFacts("f", (ImportFacts("a", since, upper),), (ExportFacts("f", "log", out),), TWO, allowed=allowed)
    try:
        found = choose_as_of(made)
    except SinceViolationError:
        assert not since.less_equal_frontier(stepped_back(out, TWO))
        return
    assert since.less_equal_frontier(found.as_of)
    if allowed is not None and found.kept:
        assert allowed.less_equal_frontier(found.as_of)
    if out == TWO.minimum_frontier:
        return
    for time in product(range(7), repeat=2):
        # As the as_of advances a time: to the least that nobody reading from there on can tell from it.
        moved = Antichain.of(time).join(found.as_of)
        new = any(out.less_equal(each) for each in moved)
        assert new == out.less_equal(time), (time, found.as_of)
