"""From which time on a dataflow computes: one test for each numbered rule, and their order."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.compute.as_of import (
    DataflowFacts,
    ExportFacts,
    ImportFacts,
    choose_as_of,
    stepped_back,
)
from spark_timely.errors import SinceViolationError
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


def test_rule_1_not_before_any_since() -> None:
    assert choose_as_of(facts("f", log("a", 3, 4), log("b", 7, 20))) == at(7)


def test_rule_1_own_exports_are_no_imports() -> None:
    own = log("self", 9, 10, export="f")
    assert choose_as_of(facts("f", log("a", 3, 6), own, ExportFacts("f", "log", at(5)))) == at(4)


def test_rule_1_export_that_is_not_written_counts_with_its_own() -> None:
    reader = facts("reader", log("s", 0, 0, export="s"), log("b", 2, 6))
    assert choose_as_of(reader, unwritten={"s": at(8)}) == at(8)
    assert choose_as_of(facts("reader", log("s", 2, 7, export="s"), log("b", 2, 6))) == at(5)


def test_rule_2_log_never_skips_times() -> None:
    inputs = log("a", 3, 20)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log", at(9)))) == at(8)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log"))) == at(19)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log", EMPTY))) == at(19)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "log", at(9)), ExportFacts("g", "log", at(7)))) == at(6)
    assert choose_as_of(facts("f", inputs, ExportFacts("f", "subscribe", at(9)))) == at(19)
    with pytest.raises(SinceViolationError, match=r"since=Antichain.of\(3\) of import 'a', needed Antichain.of\(2\)"):
        choose_as_of(facts("f", inputs, ExportFacts("f", "log", at(3))))


def test_rule_2_task_that_has_not_passed_its_beginning_begins() -> None:
    task = (log("a", 3, 20), ExportFacts("f", "log", at(5)))
    assert choose_as_of(facts("f", *task, recorded=at(5))) == at(5)
    assert choose_as_of(facts("f", *task, recorded=at(7))) == at(7)
    assert choose_as_of(facts("f", *task, recorded=at(4))) == at(4)
    assert choose_as_of(facts("f", log("a", 3, 20), ExportFacts("f", "log", at(9)), recorded=at(4))) == at(8)
    with pytest.raises(SinceViolationError):
        choose_as_of(facts("f", log("a", 8, 20), ExportFacts("f", "log", at(5)), recorded=at(5)))


def test_rule_3_latest_that_can_be_answered_at_once() -> None:
    assert choose_as_of(facts("f", log("a", 3, 20), log("b", 1, 9))) == at(8)
    assert choose_as_of(facts("f", log("a", 3, None), log("b", 1, 9))) == at(8)
    assert choose_as_of(facts("f", log("a", 3, None))) == at(3)
    assert choose_as_of(facts("f")) == at(0)


def test_rule_4_not_before_what_was_allowed_unless_times_would() -> None:
    assert choose_as_of(facts("f", log("a", 3, 9), allowed=at(12))) == at(12)
    written = ExportFacts("f", "log", at(8))
    assert choose_as_of(facts("f", log("a", 3, 9), written, allowed=at(12))) == at(7)
    assert choose_as_of(facts("f", log("a", 3, 9), written, allowed=at(5))) == at(7)


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
    assert since.less_equal_frontier(found)
    if allowed is not None and since.join(allowed).less_equal_frontier(stepped_back(out, TWO)):
        assert allowed.less_equal_frontier(found)
    if out == TWO.minimum_frontier:
        return
    for time in product(range(7), repeat=2):
        # As the as_of advances a time: to the least that nobody reading from there on can tell from it.
        moved = Antichain.of(time).join(found)
        new = any(out.less_equal(each) for each in moved)
        assert new == out.less_equal(time), (time, found)
