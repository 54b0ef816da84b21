"""What a continual task sees of its logs: inserts, deletes, contents, itself as it was before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.continual.sink import GREATEST, takes_snapshot
from spark_timely.errors import InvalidUsageError, MultiplicityOverflowError, OperatorError
from spark_timely.time.antichain import Antichain
from tests.oracles.continual_rows import (
    DeletesInput,
    InsertsInput,
    NormalReference,
    SelfReference,
    Source,
    kind_of,
)
from tests.oracles.continual_rows import updates_of as updates_from
from tests.oracles.updates import Updates


def updates_of(*updates: tuple[Any, int, int]) -> Updates:
    """Return updates (value, time, diff)."""
    values, times, diffs = zip(*updates, strict=True) if updates else ((), (), ())
    return updates_from(times, pa.table({"_diff": pa.array(diffs, pa.int64()), "v": pa.array(values)}))


def contents(updates: Updates, time: int) -> dict[Any, int]:
    """Return what a collection holds at a time, with counts."""
    found: Counter[Any] = Counter()
    for row, at, diff in zip(updates.rows.to_pylist(), updates.times, updates.diffs, strict=True):
        if at <= time:
            found[row["v"]] += int(diff)
    return {row: n for row, n in found.items() if n}


def shown(source: Source, updates: Updates, until: int, **more: int) -> tuple[list[dict[Any, int]], list[int]]:
    """Return what the body sees at 0, 1, … and the write times."""
    seen, times = source.transform(updates, **more)
    return [contents(seen, time) for time in range(until)], times.tolist()


def test_rule_002_30_inserts_are_there_at_their_time_alone() -> None:
    # {} at 0, {1} at 1, {1} at 2
    assert shown(InsertsInput(), updates_of((1, 1, 1)), 3) == ([{}, {1: 1}, {}], [1])


def test_rule_002_30_an_insert_again_at_the_next_time_is_there() -> None:
    log = updates_of(("a", 1, 1), ("a", 2, 2), ("b", 2, 1), ("b", 3, -1))
    assert shown(InsertsInput(), log, 5) == ([{}, {"a": 1}, {"a": 2, "b": 1}, {}, {}], [1, 2])


def test_rule_002_31_deletes_alone_make_no_write_time() -> None:
    log = updates_of(("a", 1, 1), ("a", 5, -1), ("b", 5, -3), ("c", 7, 1), ("d", 7, -1))
    assert shown(InsertsInput(), log, 0)[1] == [1, 7]


@pytest.mark.parametrize("kind", [InsertsInput, DeletesInput])
def test_rule_002_32_a_time_is_summed_before_it_is_looked_at(kind: type[InsertsInput | DeletesInput]) -> None:
    assert shown(kind(), updates_of(("a", 1, 1), ("b", 1, -1), ("a", 1, -1), ("b", 1, 1)), 3) == ([{}] * 3, [])
    one = updates_of(("a", 1, 1), ("a", 1, 1), ("a", 1, -1), ("b", 1, -2), ("b", 1, 1))
    other = updates_of(("b", 1, -1), ("a", 1, 1))
    assert shown(kind(), one, 3) == shown(kind(), other, 3)
    assert shown(kind(), one, 3)[0][1] == ({"a": 1} if kind is InsertsInput else {"b": 1})


def test_rule_002_07_deletes_are_as_many_copies_as_went() -> None:
    log = updates_of(("a", 1, 3), ("a", 2, -2), ("b", 2, 1), ("a", 3, -1))
    assert shown(DeletesInput(), log, 5) == ([{}, {}, {"a": 2}, {"a": 1}, {}], [2, 3])


def test_rows_of_a_stream_log_are_added_once_each() -> None:
    log = updates_from([1, 1, 2], pa.table({"v": ["a", "a", "b"]}))
    assert shown(InsertsInput(), log, 4) == ([{}, {"a": 2}, {"b": 1}, {}], [1, 2])
    assert shown(DeletesInput(), log, 4) == ([{}] * 4, [])
    assert contents(NormalReference().transform(log)[0], 2) == {"a": 2, "b": 1}


def test_rows_without_columns_are_counted() -> None:
    log = updates_from([1, 1, 2], pa.table({"_diff": [1, 1, -1]}))
    seen, times = InsertsInput().transform(log)
    assert (seen.times.tolist(), seen.diffs.tolist(), times.tolist()) == ([1, 2], [2, -2], [1])


def test_nothing_gives_nothing() -> None:
    for source in (InsertsInput(True), DeletesInput(True), SelfReference(), NormalReference()):
        found, times = source.transform(source.snapshot(updates_of(), 3))
        assert (found.times.tolist(), found.rows.num_rows, times.tolist()) == ([], 0, [])


def test_rule_002_34_references_make_no_write_times() -> None:
    log = updates_of(("a", 1, 1), ("a", 2, -1))
    assert shown(NormalReference(), log, 3) == ([{}, {"a": 1}, {}], [])
    assert shown(SelfReference(), log, 4)[1] == []


def test_rule_002_35_the_output_is_seen_as_it_was_before() -> None:
    log = updates_of(("a", 1, 1), ("a", 3, -1), ("b", 3, 1))
    assert shown(SelfReference(), log, 5)[0] == [{}, {}, {"a": 1}, {"a": 1}, {"b": 1}]


def test_references_pass_on_their_arrays_uncopied() -> None:
    log = updates_of(("a", 1, 1), ("b", 2, -1))
    for source in (NormalReference(), SelfReference()):
        found, _ = source.transform(log)
        assert np.shares_memory(found.diffs, log.diffs)
        assert found.rows is log.rows
    assert np.shares_memory(NormalReference().transform(log)[0].times, log.times)
    assert log.times.tolist() == [1, 2], "not modified"


@pytest.mark.parametrize("kind", [InsertsInput, DeletesInput])
def test_rule_002_61_changes_at_the_greatest_time_are_refused(kind: type[InsertsInput | DeletesInput]) -> None:
    sign = 1 if kind is InsertsInput else -1
    with pytest.raises(
        OperatorError, match=f"could not read a log of a continual task: found time={GREATEST}"
    ) as found:
        kind().transform(updates_of(("a", 1, sign), ("a", GREATEST, sign)))
    assert found.value.lower == [GREATEST]
    with pytest.raises(OperatorError, match="found time=7"):
        kind().transform(updates_of(("a", 7, sign)), greatest=7)
    assert shown(kind(), updates_of(("a", 6, sign)), 0, greatest=7)[1] == [6]
    # Of the other sign it is not looked at.
    assert shown(kind(), updates_of(("a", GREATEST, -sign)), 0)[1] == []


def test_rule_002_61_an_output_at_the_greatest_time_is_refused() -> None:
    with pytest.raises(OperatorError, match=f"found time={GREATEST}"):
        SelfReference().transform(updates_of(("a", GREATEST, 1)))


def test_counts_beyond_64_bits_are_refused_by_name() -> None:
    most = (1 << 63) - 1
    with pytest.raises(MultiplicityOverflowError, match=r"'v': 'a'.* with count=9223372036854775808, time=1"):
        InsertsInput().transform(updates_of(("b", 1, 1), ("a", 1, most), ("a", 1, 1)))
    with pytest.raises(MultiplicityOverflowError, match="'v': 'a'"):
        DeletesInput().transform(updates_of(("b", 1, -1), ("a", 1, -most - 1)))
    assert shown(DeletesInput(), updates_of(("a", 1, -most)), 2)[0] == [{}, {"a": most}]


def test_rule_002_19_with_snapshot_the_contents_come_at_as_of() -> None:
    log = updates_of(("a", 1, 1), ("b", 2, 1), ("b", 3, -1), ("c", 3, 1), ("d", 5, 1))
    source = InsertsInput(with_snapshot=True)
    assert shown(source, source.snapshot(log, 3), 7) == ([{}, {}, {}, {"a": 1, "c": 1}, {}, {"d": 1}, {}], [3, 5])


def test_rule_002_19_a_snapshot_that_sums_to_nothing_is_none() -> None:
    source = InsertsInput(with_snapshot=True)
    assert shown(source, source.snapshot(updates_of(("a", 1, 1), ("a", 3, -1)), 3), 5) == ([{}] * 5, [])


def test_rule_002_20_without_snapshot_as_of_itself_is_skipped() -> None:
    log = updates_of(("a", 1, 1), ("b", 3, 1), ("c", 4, 1))
    for source in (InsertsInput(), DeletesInput()):
        assert source.snapshot(log, 3).times.tolist() == [4]
    assert shown(InsertsInput(), InsertsInput().snapshot(log, 3), 6) == ([{}] * 4 + [{"c": 1}, {}], [4])


def test_rule_002_24_references_are_read_with_their_contents() -> None:
    log = updates_of(("a", 1, 1), ("b", 2, 1), ("b", 3, -1), ("c", 5, 1))
    for source in (NormalReference(), SelfReference()):
        assert source.snapshot_mode == "include"
        found = source.snapshot(log, 3)
        assert (contents(found, 2), contents(found, 3), contents(found, 5)) == ({}, {"a": 1}, {"a": 1, "c": 1})
    assert [kind(x).snapshot_mode for kind in (InsertsInput, DeletesInput) for x in (False, True)] == [
        "exclude",
        "include",
    ] * 2


@pytest.mark.parametrize(
    ("snapshot", "upper", "expected"),
    [
        (True, Antichain.of(0), True),
        (True, Antichain.of(5), True),
        (True, Antichain.of(6), False),
        (True, Antichain.of(9), False),
        (True, Antichain.empty(), False),
        (False, Antichain.of(0), False),
        (False, Antichain.of(5), False),
    ],
)
def test_rule_002_23_the_snapshot_is_read_until_it_is_written(snapshot: bool, upper: Antichain, expected: bool) -> None:
    assert takes_snapshot(snapshot, 5, upper) is expected


def test_rule_002_26_only_the_output_is_known_before_as_of() -> None:
    at = {kind: kind().suppress_early_progress(5, 0) for kind in (InsertsInput, DeletesInput, NormalReference)}
    assert set(at.values()) == {5}
    assert SelfReference().suppress_early_progress(5, 0) == 4
    assert SelfReference().suppress_early_progress(0, 0) == 0
    least = -(1 << 63)
    assert SelfReference().suppress_early_progress(least, least) == least


def test_rule_002_29_kinds_follow_the_place_of_a_log() -> None:
    found = {
        name: kind_of(name, inputs={"in", "gone"}, output="out", with_snapshot=True, deletes=name == "gone")
        for name in ("in", "gone", "out", "else")
    }
    assert found == {
        "in": InsertsInput(with_snapshot=True),
        "gone": DeletesInput(with_snapshot=True),
        "out": SelfReference(),
        "else": NormalReference(),
    }
    assert kind_of("in", inputs=["in"], output="out") == InsertsInput(with_snapshot=False)


def test_rule_002_29_the_output_as_an_input_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"found output='out' among them .* name the output in the body"):
        kind_of("out", inputs={"in", "out"}, output="out")
