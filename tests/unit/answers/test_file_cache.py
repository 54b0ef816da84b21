"""What is kept of files: footers as arrays, small files decoded and sorted, within a budget."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_timely.answers import file_cache as module
from spark_timely.answers import peek as peeks
from spark_timely.answers.file_cache import KeptFiles, forget_files, kept_files
from spark_timely.answers.peek import PeekExplanation, peek
from spark_timely.errors import RolledBackError
from spark_timely.log import Log, MemoryLog, create_log, open_log
from spark_timely.log.files.footer import Footer
from tests.unit.answers.support import SCHEMA, append


def footer_of(table: pa.Table, rows: int = 2, **options: Any) -> Footer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows, **options)
    file = pq.ParquetFile(sink.getvalue())
    return Footer(file.metadata, file.schema_arrow)


def test_bounds_of_row_groups_are_arrays() -> None:
    day = dt.date(1970, 1, 3)
    footer = footer_of(
        pa.table(
            {
                "n": pa.array([3, 1, None, None, 7, None]),
                "word": ["ä", "b", "a", "a", None, None],
                "day": [day] * 6,
                "x": [1.0] * 6,
            }
        )
    )
    assert footer.n_groups == 3
    lows, highs, known, nulls = footer.bounds("n") or ()
    assert (lows[known].tolist(), highs[known].tolist()) == ([1, 7], [3, 7])
    assert (known.tolist(), nulls.tolist()) == ([True, False, True], [False, True, True])
    lows, highs, known, _ = footer.bounds("word") or ()
    assert (lows[known].tolist(), highs[known].tolist()) == ([b"b", b"a"], ["ä".encode(), b"a"])
    assert footer.bounds("day")[0].tolist() == [2, 2, 2]  # type: ignore[index]
    assert footer.bounds("x") is None
    assert footer.bounds("none of these") is None


def test_footer_without_statistics_knows_nothing() -> None:
    footer = footer_of(pa.table({"n": [1, 1]}), write_statistics=False)
    _, _, known, nulls = footer.bounds("n") or ()
    assert (known.tolist(), nulls.tolist()) == ([False], [True])
    assert footer.constant("n", [0]) is None


def test_constant_is_of_the_row_groups_that_are_read() -> None:
    footer = footer_of(pa.table({"n": [5, 5, 5, 6, None, 5], "word": ["a"] * 6}))
    assert footer.constant("n", [0]) == (5,)
    assert [footer.constant("n", groups) for groups in ([0, 1], [1], [2], [])] == [None] * 4
    assert footer.constant("word", [0]) is None


def log_of(n_files: int, log: Log | None = None, **options: Any) -> Log:
    log = log or MemoryLog.create(SCHEMA, kind="collection", minimum=(0,), **options)
    for number in range(n_files):
        append(log, [(number, 1, number, f"w{number}"), (number, 1, 99, "all")], number + 1)
    return log


def told(log: Any, **asked: Any) -> tuple[list[dict[str, Any]], PeekExplanation]:
    found: list[PeekExplanation] = []
    rows: list[dict[str, Any]] = peek(log, explain=found.append, **asked).to_pylist()
    return rows, found[0]


def test_small_files_are_read_once_and_later_ones_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    held = KeptFiles()
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    log = log_of(5)
    rows, way = told(log, keys={"k": [3]})
    assert (rows, way.files, way.files_read) == ([{"k": 3, "word": "w3", "_diff": 1}], 5, 5)
    for asked in ({"keys": {"k": [4]}}, {"keys": {"k": [4]}, "as_of": 2}, {"keys": {"word": ["w1"]}}, {}):
        assert told(log, **asked)[1].files_read == 0, asked
    append(log, [(5, 1, 3, "again")], 6)
    rows, way = told(log, keys={"k": [3]})
    assert (sorted(row["word"] for row in rows), way.files, way.files_read) == (["again", "w3"], 6, 1)
    assert told(log, keys={"k": [99]})[0] == [{"k": 99, "word": "all", "_diff": 5}]
    assert held.files_read == 6


@pytest.mark.parametrize("budget", [0, 1, 300, 1000])
def test_no_more_is_kept_than_the_budget(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    held = KeptFiles(budget_bytes=budget)
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    log = log_of(9)
    for key in range(9):
        assert told(log, keys={"k": [key]})[0] == [{"k": key, "word": f"w{key}", "_diff": 1}]
        assert told(log, keys={"word": [f"w{key}"]})[0] == [{"k": key, "word": f"w{key}", "_diff": 1}]
        assert len(told(log)[0]) == 10
        assert held.size_bytes <= 2 * budget


def test_log_made_again_is_another(tmp_path: Path) -> None:
    forget_files()
    path = str(tmp_path / "log")
    for word in ("first", "second"):
        log = create_log(path, SCHEMA, kind="collection", minimum=(0,), flush=False)
        append(log, [(0, 1, 1, word)], 1)
        assert told(path, keys={"k": [1]})[0] == [{"k": 1, "word": word, "_diff": 1}]
        (tmp_path / "log").rename(tmp_path / word)
    assert told(str(tmp_path / "first"))[0] == [{"k": 1, "word": "first", "_diff": 1}]


def test_file_of_another_size_is_another_file() -> None:
    held = KeptFiles()
    log = log_of(1)
    footers = [held.footer(log.core.storage, log.core.files().paths[0], size) for size in (1, 1, 2)]
    assert footers[0] is footers[1]
    assert footers[0] is not footers[2]


def test_compaction_and_a_handle_that_is_older_say_the_same(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, kind="collection", minimum=(0,), flush=False, merge_every=None)
    log_of(6, log)
    before = told(log)[0]
    open_log(log.path).compact()
    assert told(log)[0] == before
    assert len(log.core.files()) < 6


def test_logs_are_kept_apart_and_the_oldest_goes() -> None:
    forget_files()
    first = kept_files("id", "a")
    assert kept_files("id", "b") is not first
    for number in range(module._MOST_LOGS):
        kept_files(str(number), "a")
    assert kept_files("id", "a") is not first
    forget_files()


def test_threads_get_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    held = KeptFiles(budget_bytes=2000)
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    log = log_of(12)
    wrong: list[Any] = []

    def ask(first: int) -> None:
        for step in range(40):
            key = (first + step) % 12
            if told(log, keys={"k": [key]})[0] != [{"k": key, "word": f"w{key}", "_diff": 1}]:
                wrong.append(key)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_log_that_was_restored_says_what_it_said_then(tmp_path: Path) -> None:
    forget_files()
    path = str(tmp_path / "log")
    log = create_log(path, SCHEMA, kind="collection", minimum=(0,), flush=False, merge_every=None)
    append(log, [(0, 1, 1, "old")], 1)
    version = log.core.version
    append(log, [(1, -1, 1, "old"), (1, 1, 1, "lost")], 2)
    assert told(path, keys={"k": [1]})[0] == [{"k": 1, "word": "lost", "_diff": 1}]
    DeltaTable(path).restore(version)
    with pytest.raises(RolledBackError):
        told(log, keys={"k": [1]})
    assert told(path, keys={"k": [1]})[0] == [{"k": 1, "word": "old", "_diff": 1}]
    append(open_log(path), [(1, 1, 1, "new")], 2)
    assert [row["word"] for row in told(path, keys={"k": [1]}, order_by="word")[0]] == ["new", "old"]


def test_files_sorted_by_keys_are_kept_so(monkeypatch: pytest.MonkeyPatch) -> None:
    held = KeptFiles()
    monkeypatch.setattr(peeks, "kept_files", lambda *_: held)
    log = log_of(3)
    told(log, keys={"k": [1]})
    decoded = held._decoded_bytes
    assert held.size_bytes > decoded > 0
    monkeypatch.setattr(module.np, "argsort", lambda *_, **__: pytest.fail("they are sorted once more"))
    assert told(log, keys={"k": [2]})[0] == [{"k": 2, "word": "w2", "_diff": 1}]
