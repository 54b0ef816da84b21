"""Peeks: since and upper, waiting, canceling, limits, jobs, and what is refused."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.answers import log_peek
from spark_timely.answers import peek as peeks
from spark_timely.answers.file_cache import KeptFiles, forget_files
from spark_timely.answers.peek import Canceled, Failed, PeekExplanation, Rows, peek, start_peek
from spark_timely.answers.plan import PeekPlan
from spark_timely.errors import (
    CanceledError,
    DataLossError,
    InvalidUsageError,
    LogMissingError,
    NegativeMultiplicityError,
    NotBeyondError,
    ResultTooLargeError,
    SchemaMismatchError,
    SinceViolationError,
    TimelyError,
    WaitTimeoutError,
)
from spark_timely.log import Log, MemoryLog, create_log, open_log
from spark_timely.log.files import parquet
from spark_timely.time.antichain import Antichain
from tests.unit.answers.support import SCHEMA, append

MOST = (1 << 63) - 1


def log_of(*updates: Any, advance_to: Any = 3, **options: Any) -> MemoryLog:
    values: dict[str, Any] = {"kind": "collection", "minimum": (0,), **options}
    log = MemoryLog.create(SCHEMA, **values)
    append(log, updates, advance_to)
    return log


@pytest.fixture
def log() -> Log:
    return log_of((1, 1, 1, "a"), (1, 2, 2, "b"), (2, -1, 1, "a"), (2, 1, 3, "c"))


def rows_of(log: Any, **asked: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in peek(log, **asked).to_pylist())


def explained(log: Any, **asked: Any) -> PeekExplanation:
    found: list[PeekExplanation] = []
    peek(log, explain=found.append, **asked)
    return found[0]


def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeks, "wait_until", lambda *_, **__: pytest.fail("it waited"))


# Times ---------------------------------------------------------------------------------------------------


def test_rows_are_those_of_a_snapshot(log: Log) -> None:
    for at in (0, 1, 2):
        assert rows_of(log, as_of=at) == sorted(tuple(row.values()) for row in log.snapshot(at).to_pylist())
    assert rows_of(log) == rows_of(log, as_of=2)


def test_time_before_since_is_refused_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of((1, 1, 1, "a"), advance_to=5)
    log.allow_compaction([4])
    never_waits(monkeypatch)
    with pytest.raises(
        SinceViolationError, match=r"could not peek log 'memory' at 3: found since=\[4\], upper=\[5\]"
    ) as e:
        peek(log, as_of=3)
    assert (e.value.as_of, e.value.since) == (3, "[4]")
    assert rows_of(log, as_of=4) == [(1, "a", 1)]


def test_since_is_looked_at_before_upper(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of((1, 1, 1, "a"), advance_to=5)
    # No log of ours moves since past its frontier; a reader does not rely on that.
    monkeypatch.setattr(log, "since", lambda: Antichain.of(50))
    never_waits(monkeypatch)
    with pytest.raises(SinceViolationError, match=r"at 10: found since=\[50\], upper=\[5\]"):
        peek(log, as_of=10, timeout_s=math.inf)


def test_since_that_passes_while_somebody_waits_is_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    other = log.another()  # type: ignore[attr-defined]
    begun = start_peek(log, as_of=5, timeout_s=60)
    append(other, [], 9)
    assert begun.result(60).num_rows == 2

    refresh, looks = log.refresh, itertools.count()

    def refreshed() -> bool:
        if next(looks) == 1:
            append(other, [], 20)
            other.allow_compaction([15])
        return refresh()

    monkeypatch.setattr(log, "refresh", refreshed)
    # The time is complete at the second look, and forgotten: both are found at once.
    with pytest.raises(SinceViolationError, match=r"at 10: found since=\[15\], upper=\[20\]"):
        peek(log, as_of=10, timeout_s=60)
    assert next(looks) == 2


def test_time_that_is_not_complete_is_waited_for(log: Log) -> None:
    begun = start_peek(log, as_of=3)
    with pytest.raises(WaitTimeoutError, match="found no answer after 0 seconds"):
        begun.result(0)
    with pytest.raises(InvalidUsageError, match="could not wait for a peek: found timeout_s=nan"):
        begun.result(math.nan)
    assert (begun.answer, begun.explanation) == (None, None)
    append(log.another(), [(3, 1, 9, "z")], 4)  # type: ignore[attr-defined]
    assert begun.result(60)["k"].to_pylist().count(9) == 1
    assert isinstance(begun.answer, Rows)


def test_wait_that_is_over_names_both_frontiers(log: Log) -> None:
    with pytest.raises(
        WaitTimeoutError,
        match=r"could not peek log 'memory' at 7: found since=\[0\], upper=\[3\] after 0 seconds — hint",
    ) as error:
        peek(log, as_of=7, timeout_s=0)
    assert error.value.frontier == "[3]"


def test_without_a_time_it_is_the_newest_that_is_complete(log: Log) -> None:
    assert explained(log).as_of == (2,)
    append(log, [(7, 1, 8, "h")], 8)
    assert explained(log).as_of == (7,)
    log.writer(owner="me").close()
    assert rows_of(log) == [(2, "b", 2), (3, "c", 1), (8, "h", 1)]


def test_log_in_which_nothing_is_complete_has_no_newest_time() -> None:
    log = MemoryLog.create(SCHEMA, times=("date",), minimum="2013-01-01")
    with pytest.raises(NotBeyondError, match=r"found no time that is complete: since=.*, upper=") as e:
        peek(log)
    assert "2013-01-01" in str(e.value)


def test_product_times_need_a_time_and_are_ordered_as_products() -> None:
    log = MemoryLog.create(SCHEMA, kind="collection", times=("long", "long"), minimum=(0, 0))
    append(log, [((1, 5), 1, 1, "a"), ((5, 1), 1, 2, "b"), ((2, 2), 1, 3, "c")], [(9, 9)])
    with pytest.raises(InvalidUsageError, match="times of 2 coordinates, of which none is the newest: since="):
        peek(log)
    assert [row[1] for row in rows_of(log, as_of=(2, 5))] == ["a", "c"]
    assert [row[1] for row in rows_of(log, as_of=(5, 4), keys={"k": [1, 2, 3]})] == ["b", "c"]
    # The frontier is beyond it in one coordinate alone.
    with pytest.raises(WaitTimeoutError):
        peek(log, as_of=(9, 9), timeout_s=0)
    assert len(rows_of(log, as_of=(8, 100))) == 3


# Streams -------------------------------------------------------------------------------------------------


def test_stream_that_has_forgotten_is_refused_unless_allowed() -> None:
    log = log_of((1, 1, "a"), (2, 1, "a"), (2, 2, "b"), kind="stream", advance_to=4)
    assert rows_of(log) == [(1, "a", 2), (2, "b", 1)]
    log.allow_compaction([2])
    with pytest.raises(
        SinceViolationError, match=r"has forgotten messages, since=\[2\], upper=\[4\] — hint: give forgo"
    ):
        peek(log)
    assert rows_of(log, forgotten=True) == [(1, "a", 1), (2, "b", 1)]
    assert rows_of(log, forgotten=True, keys={"k": [1]}) == [(1, "a", 1)]
    log.compact()
    assert rows_of(log, forgotten=True) == [(1, "a", 1), (2, "b", 1)]
    with pytest.raises(SinceViolationError, match=r"at 1: found since=\[2\], upper=\[4\]"):
        peek(log, as_of=1, forgotten=True)


# One answer ----------------------------------------------------------------------------------------------


def test_canceled_peek_is_canceled_whatever_comes(log: Log) -> None:
    begun = start_peek(log, as_of=3)
    assert begun.cancel()
    append(log, [], 4)
    with pytest.raises(CanceledError, match="could not peek: found that it was canceled"):
        begun.result(60)
    begun._run()  # a late result
    assert begun.answer == Canceled()
    assert not begun.cancel()


def test_peek_with_an_answer_is_not_canceled(log: Log) -> None:
    begun = start_peek(log)
    table = begun.result(60)
    assert not begun.cancel()
    assert begun.result() is table
    failed = start_peek(log, as_of="never")
    with pytest.raises(InvalidUsageError):
        failed.result(60)
    assert isinstance(failed.answer, Failed)
    assert not failed.cancel()


def test_exactly_one_of_many_cancels_wins(log: Log) -> None:
    for _ in range(20):
        begun = start_peek(log)
        won: list[bool] = []
        threads = [threading.Thread(target=lambda to=won, of=begun: to.append(of.cancel())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(won) == (begun.answer == Canceled())


def test_canceled_peek_stops_waiting(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    waiting, ended = peeks.wait_until, threading.Event()

    def waits(*arguments: Any, **options: Any) -> bool:
        try:
            return waiting(*arguments, **options)
        finally:
            ended.set()

    monkeypatch.setattr(peeks, "wait_until", waits)
    begun = start_peek(log, as_of=100, timeout_s=math.inf)
    assert begun.cancel()
    # Where it was canceled before it began to wait, it does not wait long either.
    assert ended.wait(60)


# What is asked -------------------------------------------------------------------------------------------


def test_key_twice_gives_its_rows_once_and_none_nothing(log: Log) -> None:
    assert rows_of(log, keys={"k": [2, 3, 2]}) == rows_of(log, keys={"k": [3, 2]}) == [(2, "b", 2), (3, "c", 1)]
    assert rows_of(log, keys={"k": []}) == []
    assert explained(log, keys={"k": []}).way == "nothing"


def test_condition_and_columns_come_before_the_count() -> None:
    log = log_of((1, 1, 1, "a"), (1, -1, 2, "a"), (1, 3, 5, "b"))
    with pytest.raises(NegativeMultiplicityError, match=r"found row={'k': 2, 'word': 'a'} with count=-1"):
        peek(log)
    assert rows_of(log, select="word") == [("b", 3)]
    assert rows_of(log, where="k <> 2") == [(1, "a", 1), (5, "b", 3)]
    with pytest.raises(NegativeMultiplicityError, match=r"found row={'word': 'a'} with count=-1"):
        peek(log, select="word", where="k > 1")


def test_condition_that_fails_for_an_absent_row_fails_the_peek() -> None:
    log = log_of((1, 1, MOST, "a"), (2, -1, MOST, "a"), (2, 1, 1, "b"), (5, 1, MOST, "c"), advance_to=9)
    for at, error in ((0, False), (2, True), (4, True)):
        if error:
            with pytest.raises(InvalidUsageError, match="could not compute condition 'k \\+ 1 > 0': overflow"):
                peek(log, as_of=at, where="k + 1 > 0")
        else:
            assert rows_of(log, as_of=at, where="k + 1 > 0") == []
    # Not one of another key.
    assert rows_of(log, as_of=4, where="k + 1 > 0", keys={"k": [1]}) == [(1, "b", 1)]


def test_limit_of_nothing_and_no_keys_read_nothing(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(log.core.storage, "open_input", lambda path: pytest.fail(f"it read {path}"), raising=False)
    assert peek(log, limit=0).schema.names == ["k", "word", "_diff"]
    assert peek(log, limit=0, select="word", offset=1 << 90).num_rows == 0
    assert peek(log, keys={"k": []}, order_by="k").num_rows == 0
    # Times are looked at all the same.
    with pytest.raises(WaitTimeoutError):
        peek(log, as_of=9, limit=0, timeout_s=0)


def many_files(monkeypatch: pytest.MonkeyPatch, path: Path, *, take_away: bool = False) -> tuple[Log, KeptFiles]:
    held = KeptFiles(small_bytes=0)
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    log = create_log(str(path / "log"), SCHEMA, kind="collection", minimum=(0,), flush=False, merge_every=None)
    for time in range(6):
        taken = [(time, -1, time - 1, "w")] if take_away and time else []
        append(log, [(time, 2, time, "w"), *taken], time + 1)
    return log, held


def test_without_order_reading_stops_at_enough_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, held = many_files(monkeypatch, tmp_path)
    assert peek(log, limit=2, offset=1)["_diff"].to_pylist() in ([1, 1], [2])
    assert held.files_read == 2
    peek(log, limit=3, order_by="k")
    assert held.files_read == 8


def test_reading_does_not_stop_where_rows_may_be_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, held = many_files(monkeypatch, tmp_path, take_away=True)
    assert sum(peek(log, limit=2)["_diff"].to_pylist()) == 2
    assert held.files_read == 6


def test_bounds_of_row_groups_leave_most_unread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    held = KeptFiles(small_bytes=0)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 10)
    log = create_log(str(tmp_path / "log"), SCHEMA, kind="collection", minimum=(0,), flush=False)
    append(log, [(1, 1, k, f"w{k:03}") for k in range(100)] + [(2, 1, None, None)], 3)
    for keys, groups in (({"k": [5]}, 1), ({"k": [5, 55]}, 2), ({"k": [1000]}, 0), ({"word": ["w010", "w099"]}, 2)):
        way = explained(log, as_of=1, keys=keys)
        assert (way.way, way.row_groups) == ("log", groups), keys
    assert explained(log, as_of=0).row_groups == 0
    assert rows_of(log, keys={"k": [None]}) == [(None, None, 1)]
    assert rows_of(log, keys={("word", "k"): [("w055", 55), ("w055", 54)]}) == [(55, "w055", 1)]


# Too much to read ----------------------------------------------------------------------------------------


def job_of(seen: list[PeekPlan], held: KeptFiles, log: Log) -> Callable[[PeekPlan], pa.Table]:
    def job(plan: PeekPlan) -> pa.Table:
        seen.append(plan)
        return log_peek.scan(plan, log_peek.plan_scan(plan, log.core.files(), held), held)[0]

    return job


def test_what_reads_too_much_is_a_job_of_the_same_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, held = many_files(monkeypatch, tmp_path)
    seen: list[PeekPlan] = []
    asked = {"keys": {"k": [4, 2, 4]}, "order_by": [("k", "desc")], "select": "word", "limit": 3, "where": "k > 0"}
    expected = peek(log, **asked)
    ways: list[PeekExplanation] = []
    assert peek(log, scan_limit=0, job=job_of(seen, held, log), explain=ways.append, **asked) == expected
    (plan,) = seen
    assert set(plan.files) == set(log.core.files().paths[[2, 4]])
    assert (plan.columns, plan.select, plan.bound) == (("word", "k"), ("word",), 3)
    assert (ways[0].way, ways[0].files) == ("job", 2)
    assert ways[0].size_bytes > 0
    with pytest.raises(
        ResultTooLargeError, match=r"found \d+ bytes to read, scan_limit=0 — hint: ask for keys, give a job"
    ):
        peek(log, scan_limit=0, **asked)


def test_answer_that_is_too_large_is_refused(log: Log) -> None:
    size = 2 * (8 + 8 + 1)
    assert peek(log, max_bytes=size).num_rows == 2
    with pytest.raises(ResultTooLargeError, match=f"could not peek log 'memory': found an answer of {size} bytes"):
        peek(log, max_bytes=size - 1)
    assert peek(log, max_bytes=size // 2, limit=1).num_rows == 1


# Files that go -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [None, {"k": [1, 2, 3, 4]}])
def test_file_deleted_meanwhile_makes_it_plan_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keys: Any) -> None:
    log, held = many_files(monkeypatch, tmp_path)
    expected = rows_of(log, keys=keys)
    held = KeptFiles(small_bytes=0)
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    true = log_peek.plan_scan

    def replaced_first(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(peeks, "plan_scan", true)
        found = true(*args, **more)
        other = open_log(log.path)
        old = other.core.files().paths.tolist()
        other.compact()
        assert not set(old) & set(other.core.files().paths.tolist())
        for path in old:
            (Path(log.path) / path).unlink()
        return found

    monkeypatch.setattr(peeks, "plan_scan", replaced_first)
    assert rows_of(log, keys=keys) == expected


def test_file_that_is_lost_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, _ = many_files(monkeypatch, tmp_path)
    (Path(log.path) / log.core.files().paths[0]).unlink()
    with pytest.raises(DataLossError):
        peek(log)


def test_far_logs_are_answered_alike(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    expected = rows_of(log), rows_of(log, keys={"k": [2]})
    monkeypatch.setattr(log.core.storage, "local", False, raising=False)
    held = KeptFiles()
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    assert (rows_of(log), rows_of(log, keys={"k": [2]})) == expected
    append(log.another(), [(3, 1, 9, "z")], 4)  # type: ignore[attr-defined]
    assert (9, "z", 1) in rows_of(log)


def test_columns_that_came_later_are_null_before(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, kind="collection", minimum=(0,), flush=False)
    append(log, [(1, 1, 1, "a")], 2)
    assert rows_of(log) == [(1, "a", 1)]
    log.add_columns(pa.schema([("more", pa.int64())]))
    schema = pa.schema([*SCHEMA, ("more", pa.int64())])
    append(log, [(2, 1, 1, "a", 5)], 3, schema)
    assert {row["more"]: row["_diff"] for row in peek(log).to_pylist()} == {None: 1, 5: 1}
    assert peek(log, keys={"more": [None]}).to_pylist() == [{"k": 1, "word": "a", "more": None, "_diff": 1}]


# Refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"limit": -1}, InvalidUsageError, "found limit=-1"),
        ({"limit": True}, InvalidUsageError, "found limit=True"),
        ({"offset": -1}, InvalidUsageError, "found offset=-1"),
        ({"offset": None}, InvalidUsageError, "found offset=None"),
        ({"max_bytes": 1.5}, InvalidUsageError, "found max_bytes=1.5"),
        ({"timeout_s": "1 minute"}, InvalidUsageError, "found timeout_s='1 minute'"),
        ({"timeout_s": -1}, InvalidUsageError, "found timeout_s=-1"),
        ({"timeout_s": math.nan}, InvalidUsageError, "found timeout_s=nan"),
        ({"as_of": "x"}, InvalidUsageError, "could not read a time"),
        ({"select": []}, InvalidUsageError, r"found select=\[\]"),
        ({"select": [["k"]]}, InvalidUsageError, "found select="),
        ({"select": ["k", "k"]}, InvalidUsageError, r"found select=\['k', 'k'\]"),
        ({"select": "none"}, SchemaMismatchError, "found no column 'none' — hint: choose among"),
        ({"order_by": "none"}, SchemaMismatchError, "found no column 'none' — hint: choose among"),
        ({"keys": {"none": [1]}}, SchemaMismatchError, "found no column 'none' — hint: choose among"),
        ({"keys": {"k": ["1"]}}, SchemaMismatchError, "found key '1' of type str"),
        ({"where": 5}, InvalidUsageError, "found where=5"),
        ({"where": "k >"}, InvalidUsageError, "could not peek log 'memory'"),
        ({"where": "none > 1"}, SchemaMismatchError, "could not peek log 'memory': found no column 'none'"),
    ],
)
def test_wrong_arguments_are_refused(log: Log, asked: Any, kind: type[TimelyError], text: str) -> None:
    version = log.core.version
    with pytest.raises(kind, match=text) as error:
        peek(log, **asked)
    assert error.value.hint
    assert log.core.version == version


def test_place_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError):
        peek(tmp_path / "none")


def test_explanation_is_for_programs_too(log: Log) -> None:
    way = explained(log, keys={"k": [2]})
    assert way.to_dict() | {"files_read": 0} == {
        "way": "log", "why": "the log has no index by these keys", "as_of": 2, "since": [0], "upper": [3],
        "index": None,
        "files": 1, "row_groups": 0, "files_read": 0, "size_bytes": 0,
    }  # fmt: skip
    assert (way.since, way.upper) == (Antichain.of(0), Antichain.of(3))
    assert np.array(way.as_of).tolist() == [2]


# A mistake that only this order of steps shows -----------------------------------------------------------


def test_mutant_since_checked_after_the_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true, calls = peeks._check_since, []

    def after_the_first(*args: Any) -> None:
        calls.append(args)
        if len(calls) > 1:
            true(*args)

    monkeypatch.setattr(peeks, "_check_since", after_the_first)
    with pytest.raises(pytest.fail.Exception, match="it waited"):
        test_since_is_looked_at_before_upper(monkeypatch)


def test_many_small_files_are_not_kept_sorted(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    append(log, [(3, 1, 9, "z"), (3, 1, None, "n")], 4)
    held = KeptFiles()
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    monkeypatch.setattr(held, "find", lambda *_: pytest.fail("they are sorted"))
    monkeypatch.setattr(log_peek, "_MOST_SMALL_BYTES", 0)
    found = peek(log, keys={"k": [2, None]}, order_by="word").to_pylist()
    assert [tuple(row.values()) for row in found] == [(2, "b", 2), (None, "n", 1)]
    size = int(log.core.files().sizes.sum())
    assert explained(log, keys={"k": [2]}).size_bytes == size
    with pytest.raises(ResultTooLargeError, match=f"found {size} bytes to read, scan_limit={size - 1}"):
        peek(log, scan_limit=size - 1)


def test_question_that_is_kept_is_answered_as_the_first_time(log: MemoryLog) -> None:
    asked: list[dict[str, Any]] = [
        {"select": select, "order_by": order_by, "limit": limit, "offset": offset, "where": where, "keys": keys}
        for select in (None, "k", ["word", "k"], ("k",))
        for order_by in (None, "k", ["word", ("k", "desc")])
        for limit, offset in ((None, 0), (1, 0), (1, 1))
        for where in (None, "k > 1")
        for keys in (None, {"k": [1, 2]}, {"word": ["c"]}, {("word", "k"): [("b", 2)]})
        if order_by is not None or limit is None
    ]
    times = [(at, question) for at in (1, 2) for question in asked]
    first = []
    for at, question in times:  # a handle that has kept nothing, of a log of whose files nothing is kept
        forget_files()
        first.append(peek(log.another(), as_of=at, **question).sort_by("_diff").to_pylist())
    for (at, question), answer in zip(times, first, strict=True):
        assert peek(log, as_of=at, **question).sort_by("_diff").to_pylist() == answer


def test_question_that_is_kept_is_of_one_snapshot(log: Log) -> None:
    assert rows_of(log, keys={"k": [9]}) == []
    append(log, [(3, 1, 9, "z")], 4)
    assert rows_of(log, keys={"k": [9]}) == [(9, "z", 1)]
    log.allow_compaction(3)
    with pytest.raises(SinceViolationError):
        peek(log, as_of=2, keys={"k": [9]})


def test_threads_of_peeks_are_used_again(tmp_path: Path) -> None:
    made = create_log(tmp_path / "log", SCHEMA, kind="collection", minimum=(0,))
    append(made, [(1, 1, 1, "a")], 2)
    used = set()
    for _ in range(5):
        begun = start_peek(tmp_path / "log")
        assert begun.result(timeout_s=60).num_rows == 1
        used |= {each.ident for each in threading.enumerate() if each.name == "spark_timely-peek"}
        # It is given back right after the answer.
        deadline = threading.Event()
        while not peeks._threads.n_waiting:
            deadline.wait(0.001)
    assert len(used) <= peeks._threads.n_waiting + 1
    many = [start_peek(tmp_path / "log") for _ in range(20)]
    assert [each.result(timeout_s=60).num_rows for each in many] == [1] * 20
