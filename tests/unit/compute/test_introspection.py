"""What an instance shows of itself."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_timely.compute.command import Peek, Schedule, UpdateConfiguration
from spark_timely.compute.introspection import RELATIONS, Introspection
from spark_timely.compute.observation import (
    AnswerLatency,
    ArrangementSizes,
    ErrorCount,
    ImportUpper,
    Operators,
    Upper,
)
from spark_timely.errors import MissingError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.compute.support import EMPTY, at, changes, create, drop, instance, rows, say


def test_changes_add_up_to_the_rows_however_they_are_cut() -> None:
    shows = Introspection()
    total: Counter[tuple[object, ...]] = Counter()
    for n in range(20_000):
        shows.put("exports", n % 7, [(f"e{n % 7}", n)] if n % 5 else [])
        if n in (3, 50, 9_999):
            for row in shows.take_changes("exports").to_pylist():
                total[row["export_id"], row["dataflow_id"]] += row["_diff"]
    left = shows.take_changes("exports")
    assert left.num_rows < 2_000
    for row in left.to_pylist():
        total[row["export_id"], row["dataflow_id"]] += row["_diff"]
    current = Counter((row["export_id"], row["dataflow_id"]) for row in shows.table("exports").to_pylist())
    assert +total == current
    assert min(total.values()) >= 0
    assert shows.take_changes("exports").num_rows == 0


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_relation_has_its_columns_also_without_rows(relation: str) -> None:
    shows = Introspection()
    assert shows.table(relation).schema == RELATIONS[relation]
    assert shows.take_changes(relation).column_names == [*RELATIONS[relation].names, "_diff"]


def test_unknown_relation_is_refused() -> None:
    with pytest.raises(MissingError, match="relation='nothing'"):
        Introspection().table("nothing")


def test_lag_names_the_slowest_input() -> None:
    one = instance(create("i", interactive=True), create("a", reads=["i"], interactive=True))
    one.tell(ImportUpper(2, "in", at(20)))
    one.tell(ImportUpper(2, "i", at(9)))
    one.tell(ImportUpper(2, "i", at(7)))
    assert rows(one, "lag")[-1] == ("a", None, "i")
    one.tell(Upper("a", 2, at(9)))
    one.turn()
    assert rows(one, "lag")[-1] == ("a", 11, "i")
    assert rows(one, "import_frontiers")[-2:] == [("a", "in", "20"), ("a", "i", "9")]
    one.tell(ImportUpper(2, "i", EMPTY))
    assert rows(one, "lag")[-1] == ("a", 11, "in")
    assert rows(one, "import_frontiers")[-1] == ("a", "in", "20")
    one.tell(Upper("a", 2, EMPTY))
    one.turn()
    assert rows(one, "lag")[-1] == ("a", 0, None)


def test_facts_of_the_driver_are_shown_until_their_dataflow() -> None:
    one = instance(create("a", "b"))
    one.tell(Operators(1, (("sum", "aggregate", "read"),)))
    one.tell(ArrangementSizes(1, (("sum", 5, 2, 300),)))
    one.tell(ErrorCount("a", 1, 2, "no"))
    one.tell(ErrorCount("b", 1, 0))
    one.tell(ErrorCount("a", 7, 9, "of another run"))
    one.tell(Operators(7, (("x", "y", ""),)))
    assert rows(one, "operators") == [(1, "sum", "aggregate", "read")]
    assert rows(one, "arrangement_sizes") == [(1, "sum", 5, 2, 300)]
    assert rows(one, "errors") == [("a", 2, "no")]
    say(one, drop("a"))
    assert rows(one, "errors") == []
    assert len(rows(one, "operators")) == 1
    say(one, drop("b"))
    for relation in ("operators", "arrangement_sizes", "dataflows", "exports", "hydration", "lag", "import_frontiers"):
        assert rows(one, relation) == [], relation


def test_latencies_are_counted_by_powers_of_two() -> None:
    one = instance()
    for seconds in (0.3, 0.4, 0.6, 0.0):
        one.tell(AnswerLatency("a", seconds))
    found = rows(one, "latency")
    assert ("a", 0.5, 2) in found
    assert ("a", 1.0, 1) in found
    assert sum(row[2] for row in found) == 4


def test_rule_004_72_history_is_counted_by_command() -> None:
    one = instance(create("a"), Schedule("a"), Peek("p", (3,), "a"), UpdateConfiguration({"x": 1}))
    one.turn()
    found = dict(rows(one, "history"))
    assert found["create_dataflow"] == found["schedule"] == found["peek"] == 1
    assert sum(found.values()) == len(one.history)


def test_times_are_written_as_their_type_and_one_row_for_each() -> None:
    dates = TimeDomain(("date", "long"), (0, 0))
    one = instance(create("a", as_of=at((0, 0)), domain=dates, interactive=True))
    changes(one, "frontiers")
    one.tell(Upper("a", 1, Antichain.of((1, 5), (2, 0))))
    one.turn()
    assert [row[1] for row in rows(one, "frontiers") if row[0] == "a"] == ['["1970-01-02", 5]', '["1970-01-03", 0]']
    # What nobody can write as a date is shown too.
    one.tell(Upper("a", 1, Antichain.of((1 << 60, 5))))
    one.turn()
    assert [row[1] for row in rows(one, "frontiers") if row[0] == "a"] == [f'["days:{1 << 60}", 5]']
