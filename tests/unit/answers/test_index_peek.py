"""Peeks by an index: up to its upper from its runs, past it from files; one that is not right is passed over."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_timely.answers import peek as peeks
from spark_timely.answers.peek import PeekExplanation, peek
from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import SinceViolationError
from spark_timely.log import Log, arrangements, create_log, open_log
from tests.unit.answers.support import SCHEMA, append, index


def log_at(path: Path, **options: Any) -> Log:
    values: dict[str, Any] = {"kind": "collection", "minimum": (0,), "flush": False, **options}
    return create_log(str(path), SCHEMA, **values)


def told(log: Log, **asked: Any) -> tuple[list[tuple[Any, ...]], PeekExplanation]:
    found: list[PeekExplanation] = []
    rows = peek(log, explain=found.append, **asked).to_pylist()
    return sorted(tuple(row.values()) for row in rows), found[0]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = log_at(tmp_path / "log")
    append(log, [(1, 1, 1, "a"), (1, 2, 2, "b"), (2, -1, 1, "a"), (2, 1, 1, "c")], 3)
    return log


def test_runs_answer_each_time_that_they_have(log: Log) -> None:
    name = os.path.basename(index(log, ["k"]))
    for at, expected in ((0, []), (1, [(1, "a", 1)]), (2, [(1, "c", 1)]), (None, [(1, "c", 1)])):
        rows, way = told(log, as_of=at, keys={"k": [1, 7]})
        assert (rows, way.way, way.index, way.files) == (expected, "index", name, 0)


def test_index_that_lags_is_used_for_its_part(log: Log) -> None:
    index(log, ["k"])
    append(log, [(3, -1, 1, "c"), (4, 1, 1, "d"), (4, 1, 3, "e")], 5)
    rows, way = told(log, keys={"k": [1, 2, 3]})
    assert (rows, way.way, way.files) == ([(1, "d", 1), (2, "b", 2), (3, "e", 1)], "index", 1)
    assert told(log, as_of=3, keys={"k": [1]})[0] == []
    assert told(log, as_of=2, keys={"k": [1]})[1].files == 0


def test_idle_log_makes_nobody_wait_for_its_index(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    index(log, ["k"])
    append(log, [], 50)
    monkeypatch.setattr(peeks, "wait_until", lambda *_, **__: pytest.fail("it waited"))
    rows, way = told(log, as_of=40, keys={"k": [1]})
    assert (rows, way.way) == ([(1, "c", 1)], "index")


def test_only_an_index_by_these_keys_with_these_columns_is_used(log: Log) -> None:
    index(log, ["k"], ["k"])
    rows, way = told(log, keys={"k": [2]}, select="k")
    assert (rows, way.way) == ([(2, 2)], "index")
    rows, way = told(log, keys={"k": [2]})
    assert (rows, way.way) == ([(2, "b", 2)], "log")
    assert "lacks columns" in way.why
    rows, way = told(log, keys={"k": [2]}, select="k", where="word = 'b'")
    assert (rows, way.way) == ([(2, 2)], "log")
    assert told(log, keys={("k", "word"): [(2, "b")]})[1].why == "the log has no index by these keys"
    assert told(log, where="k = 2")[1].why == "no keys were given"


def test_index_of_an_earlier_version_is_not_looked_into(log: Log) -> None:
    made = index(log, ["k"])
    os.rename(made, arrangements.former_folder_of(log, ["k"], log.schema.names))
    rows, way = told(open_log(log.path), keys={"k": [2]})
    assert (rows, way.way, way.why) == ([(2, "b", 2)], "log", "the log has no index by these keys")
    assert told(open_log(index(log, ["k"]).partition("/_spark_timely")[0]), keys={"k": [2]})[1].way == "index"


def test_below_the_since_of_an_index_the_log_is_read(log: Log) -> None:
    for time in range(3, 9):
        append(log, [(time, 1, time, "x")], time + 1)
        index(log, ["k"], lo=time + 1)  # its runs are merged, and times moved
    rows, way = told(log, as_of=1, keys={"k": [1]})
    assert (rows, way.way) == ([(1, "a", 1)], "log")
    assert "has forgotten the time: found since=" in way.why
    assert told(log, keys={"k": [1]})[1].way == "index"
    log.allow_compaction([3])
    assert told(log, as_of=3, keys={"k": [1]})[0] == [(1, "c", 1)]
    with pytest.raises(SinceViolationError, match=r"at 2: found since=\[3\], upper=\[9\]"):
        told(log, as_of=2, keys={"k": [1]})


def test_index_that_the_log_has_moved_past_is_not_used(log: Log) -> None:
    index(log, ["k"])
    append(log, [(3, 1, 1, "d"), (5, -1, 1, "d")], 9)
    log.allow_compaction([4])
    log.compact()
    rows, way = told(log, as_of=4, keys={"k": [1]})
    assert (rows, way.way) == ([(1, "c", 1), (1, "d", 1)], "log")


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_run_is_passed_over(log: Log, damage: str) -> None:
    folder = Path(index(log, ["k"]))
    (run,) = folder.glob("run-*")
    content = run.read_bytes()
    run.unlink()
    if damage != "gone":
        run.write_bytes(content[:-9] if damage == "cut" else content[:200] + bytes([content[200] ^ 1]) + content[201:])
    rows, way = told(log, keys={"k": [2]})
    assert (rows, way.way) == ([(2, "b", 2)], "log")


def test_index_of_another_log_is_passed_over(log: Log, tmp_path: Path) -> None:
    folder = index(log, ["k"])
    other = log_at(tmp_path / "other")
    append(other, [(1, 1, 2, "mine")], 3)
    shutil.copytree(os.path.dirname(folder), tmp_path / "other" / "_spark_timely", dirs_exist_ok=True)
    rows, way = told(other, keys={"k": [2]})
    assert (rows, way.way) == ([(2, "mine", 1)], "log")


def test_index_of_another_history_is_passed_over(log: Log, tmp_path: Path) -> None:
    shutil.copytree(log.path, tmp_path / "copy")
    append(log, [(3, 1, 2, "theirs")], 4)
    folder = index(log, ["k"])
    other = open_log(tmp_path / "copy")
    append(other, [(3, 1, 2, "mine")], 4)
    shutil.copytree(os.path.dirname(folder), tmp_path / "copy" / "_spark_timely", dirs_exist_ok=True)
    rows, way = told(other, keys={"k": [2]})
    assert (rows, way.way) == ([(2, "b", 2), (2, "mine", 1)], "log")


def test_index_dropped_meanwhile_does_not_spoil_a_peek(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = index(log, ["k"])
    true = peeks.look_up

    def dropped_first(*args: Any) -> Any:
        shutil.rmtree(folder)
        return true(*args)

    monkeypatch.setattr(peeks, "look_up", dropped_first)
    rows, way = told(log, keys={"k": [2]})
    assert (rows, way.way) == ([(2, "b", 2)], "index")
    rows, way = told(log, keys={"k": [2]})
    assert (rows, way.way) == ([(2, "b", 2)], "log")


def test_index_merged_since_the_last_peek_is_found(log: Log) -> None:
    index(log, ["k"])
    assert told(log, keys={"k": [2]})[1].way == "index"
    for time in range(3, 7):
        append(log, [(time, 1, 2, f"t{time}")], time + 1)
        index(log, ["k"])
        rows, way = told(log, keys={"k": [2]})
        assert ([row[1] for row in rows], way.way) == (["b", *(f"t{t}" for t in range(3, time + 1))], "index")
        assert way.files == 0


def test_messages_of_a_stream_are_looked_up(tmp_path: Path) -> None:
    log = log_at(tmp_path / "stream", kind="stream")
    append(log, [(1, 1, "a"), (2, 1, "a"), (2, 2, "b")], 3)
    index(log, ["k"])
    append(log, [(3, 1, "c")], 4)
    rows, way = told(log, keys={"k": [1]})
    assert (rows, way.way) == ([(1, "a", 2), (1, "c", 1)], "index")
    assert told(log, as_of=1, keys={"k": [1]})[0] == [(1, "a", 1)]
    log.allow_compaction([2])
    rows, way = told(log, keys={"k": [1]}, forgotten=True)
    assert (rows, way.way) == ([(1, "a", 1), (1, "c", 1)], "log")


def test_closed_log_is_answered_by_a_whole_index(log: Log) -> None:
    log.writer(owner="me").close()
    log.refresh()
    index(log, ["k"])
    rows, way = told(log, keys={"k": [1]})
    assert (rows, way.way) == ([(1, "c", 1)], "index")


def test_keys_that_share_half_a_hash_are_told_apart(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    true = RowHasher.hash

    def halves(self: Any, table: Any) -> Any:
        found = true(self, table)
        found[:, 0] &= 1
        return found

    monkeypatch.setattr(RowHasher, "hash", halves)
    append(log, [(3, 1, k, "n") for k in range(3, 20)], 4)
    index(log, ["k"])
    append(log, [(4, 1, k, "m") for k in range(3, 20)], 5)
    for keys in ([4], [4, 5, 19]):
        rows, way = told(log, keys={"k": keys})
        assert rows == sorted((k, word, 1) for k in keys for word in "nm")
        assert way.way == "index"


def test_index_is_looked_for_again_only_when_something_changed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    index(log, ["k"])
    told(log, keys={"k": [2]})
    true, looks = arrangements.newest_spine, []
    monkeypatch.setattr(arrangements, "newest_spine", lambda *args: (looks.append(args), true(*args))[1])
    assert told(log, keys={"k": [2]})[1].way == "index"
    assert not looks
    append(log, [(3, 1, 2, "later")], 4)
    assert [row[1] for row in told(log, keys={"k": [2]})[0]] == ["b", "later"]
    assert looks
