"""Each commit says a digest of its messages as they are stored; `verify` finds values that others changed by it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as some

from spark_timely.canonical import content
from spark_timely.canonical.content import OF_COMMIT, OF_TASK, added, digest_from, digest_of_messages, is_worth_it
from spark_timely.errors import InvalidUsageError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.files.parquet import write_data_files
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import states_by_seq
from spark_timely.log.streams import as_data_files
from spark_timely.protocol.note import Note
from tests.conformance.test_foreign_changes import clean_up, output
from tests.oracles import content_model
from tests.unit.sink.driver import BOUNDED, SinkDriver
from tests.unit.sink.driver import rows as sink_rows

SCHEMA = pa.schema([("v", pa.int64())])
WIDE = pa.schema(
    [
        ("n", pa.int32()),
        ("b", pa.bool_()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.decimal128(20, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("l", pa.list_(pa.int64())),
        ("st", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)


def notes(log: Log) -> dict[tuple[str, int], str | None]:
    """Return the digest that each commit with messages says."""
    states = states_by_seq(log.core.format, log.core.progress())
    return {(state.stream, state.seq): state.note.content for state in states if state.rows}


def filled(path: str, kind: str = "stream") -> Log:
    """Return a log of two commits of three messages each."""
    log = create_log(path, SCHEMA, minimum=(0,), kind=kind, merge_every=None)  # type: ignore[arg-type]
    writer = log.writer(owner="me")
    for first in (0, 10):
        rows: dict[str, Any] = {"_time": [first, first + 1, first + 2], "v": [first + 5, first + 6, first + 7]}
        if kind == "collection":
            rows["_diff"] = [1, 2, 3]
        writer.append(pa.table(rows), advance_to=first + 10)
    return log


def swapped(table: DeltaTable) -> None:
    """Swap the values of one message of each commit."""
    table.update(predicate="v = 6 OR v = 16", updates={"v": "22 - v"})


UPDATES: dict[str, tuple[str, Callable[[DeltaTable], object], set[int]]] = {
    "a value": ("stream", lambda table: table.update(predicate="v = 6", updates={"v": "60"}), {1}),
    "a value to null": ("stream", lambda table: table.update(predicate="v = 16", updates={"v": "NULL"}), {2}),
    "a time within bounds": ("stream", lambda table: table.update(predicate="v = 6", updates={"_time": "2"}), {1}),
    "a diff": ("collection", lambda table: table.update(predicate="v = 6", updates={"_diff": "7"}), {1}),
    "rows of two commits": ("stream", swapped, {1, 2}),
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_changed_value_behind_cleaned_up_entries_is_named(tmp_path: Path, name: str) -> None:
    kind, change, seqs = UPDATES[name]
    log = filled(str(tmp_path / "log"), kind)
    change(DeltaTable(log.path))
    clean_up(log.path)
    report = open_log(log.path).verify()
    found = [problem for problem in report.problems if "other messages than were written" in problem]
    assert [problem.partition(":")[0] for problem in found] == [f"stream 'main' at seq={seq}" for seq in sorted(seqs)]
    assert report.problems == tuple(found)
    assert report.counts_alone == 0


def test_an_accepted_value_has_a_digest_of_its_own(tmp_path: Path) -> None:
    log = filled(str(tmp_path / "log"))
    for value in (60, 61):
        DeltaTable(log.path).update(predicate="v IN (6, 60)", updates={"v": str(value)})
        log = open_log(log.path)
        assert len(log.verify().problems) == 2  # the change, and the commit that has other messages
        report = log.accept_change(log.core.foreign_changes()[0].token)
        assert (report.commits, report.other) == (1, 1)
        assert (log.verify().problems, log.verify().counts_alone) == ((), 0)
    DeltaTable(log.path).update(predicate="v = 61", updates={"v": "6"})
    clean_up(log.path)
    [problem] = open_log(log.path).verify().problems
    assert problem.startswith("stream 'main' at seq=1: found other messages than were written")


def test_a_rewriting_that_says_it_changes_nothing_is_found(tmp_path: Path) -> None:
    log = filled(str(tmp_path / "log"))
    old = log.core.files()
    rows = log.messages()
    values = pc.if_else(pc.equal(rows["v"], 16), 61, rows["v"])
    rows = rows.set_column(rows.schema.get_field_index("v"), "v", values)
    times = log.domain.from_columns(rows)
    new = write_data_files(log.core.storage, rows, times, stream="main", seq=2, domain=log.domain, narrow=False)
    log.core.store.transact(new, [], removes=as_data_files(old), data_change=False, exclusive=True)
    clean_up(log.path)
    [problem] = open_log(log.path).verify().problems
    assert problem.startswith("stream 'main' at seq=2: found other messages than were written")


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_merges_and_optimize_leave_digests_right(tmp_path: Path, kind: str) -> None:
    log = filled(str(tmp_path / "log"), kind)
    said = notes(log)
    log.compact()
    assert open_log(log.path).verify().problems == ()
    DeltaTable(log.path).optimize.compact()
    DeltaTable(log.path).optimize.z_order(["v"])
    clean_up(log.path)
    fresh = open_log(log.path)
    report = fresh.verify()
    assert (report.problems, report.counts_alone) == ((), 0)
    assert notes(fresh) == said
    assert len(set(said.values()) - {None}) == 2


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_what_is_forgotten_in_part_is_judged_by_counts_alone(kind: str) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind=kind, merge_every=None)  # type: ignore[arg-type]
    writer = log.writer(owner="me")
    for time in range(4):
        writer.append(pa.table({"_time": [time, time + 2], "v": [time, time]}), advance_to=time + 1)
    assert log.verify().counts_alone == 0
    log.allow_compaction([2])
    log.compact(logical=True)
    report = log.verify()
    assert report.problems == ()
    assert 0 < report.counts_alone < 4


def test_commits_without_a_digest_are_counted(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), merge_every=None)
    rows = pa.table({"_time": [1], "v": [1]})
    for number, wanted in enumerate(("off", "on", "auto")):
        log.writer(owner="me", content_digest=wanted).append(rows.set_column(0, "_time", pa.array([number])))  # type: ignore[arg-type]
    log.writer(owner="me").advance(7)  # a commit without messages has nothing to be judged
    assert [said is None for said in notes(log).values()] == [True, False, False]
    assert log.verify().counts_alone == 1
    with pytest.raises(InvalidUsageError, match="content_digest='yes'"):
        log.writer(owner="me", content_digest="yes")  # type: ignore[arg-type]


def test_unknown_parts_of_a_note_are_passed_over() -> None:
    assert Note.parse('{"v":1,"content":"c1:00ff","later":{"x":1}}') == Note(content="c1:00ff")
    assert Note(content="c1:00ff").following(Note(content="c1:01")) == Note(content="c1:00ff")
    assert Note().following(Note(content="c1:01")).content is None
    assert digest_from("c9:00ff") is None


def test_a_commit_says_the_sum_of_its_files(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), merge_every=None)
    rows = pa.table({"_time": [*range(2000), *range(900_000, 902_000)], "v": range(4000)})
    log.writer(owner="me", target_file_size=1).append(rows.take(np.random.default_rng(1).permutation(4000)))
    assert len(log.core.files()) > 1
    assert notes(log) == {("main", 1): f"c1:{digest_of_messages(rows):016x}"}
    assert log.verify().problems == ()


def test_a_sinks_tasks_say_what_a_writer_says(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter")
    driver.run([sink_rows([9, 11]), sink_rows([10])])
    # Late rows are letters; a driver that stops in between runs all tasks again.
    driver.run([sink_rows([3, 12], 5), sink_rows([11], 7)], crash="before commit")
    driver.run([sink_rows([3, 12], 5), sink_rows([11], 7)])
    log = open_log(str(driver.log_path))
    assert log.verify().problems == ()
    assert log.verify().dead_letters == 1
    other = create_log(str(tmp_path / "other"), log.schema, minimum=log.domain.minimum, merge_every=None)
    writer = other.writer(owner="me", content_digest="on")
    stored = log.messages()
    for seq in sorted(set(stored["_seq"].to_pylist())):
        part = stored.filter(pc.equal(stored["_seq"], seq))
        writer.append(part.drop_columns(["_stream", "_seq"]))
    assert list(notes(log).values()) == list(notes(other).values())
    assert None not in notes(log).values()


def test_outputs_of_dataflows_say_digests(tmp_path: Path) -> None:
    log = output(str(tmp_path / "output"))
    assert notes(log)
    assert None not in notes(log).values()
    assert (log.verify().problems, log.verify().counts_alone) == ((), 0)


def test_values_of_all_kinds_are_digested_as_the_model_says(tmp_path: Path) -> None:
    at = dt.datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=dt.UTC)
    rows: list[dict[str, Any]] = [
        {
            "n": -3,
            "b": True,
            "f": -0.0,
            "g": 0.1,
            "d": Decimal("-12345678901234567.125"),
            "day": dt.date(1960, 2, 29),
            "at": at,
            "s": "naïve 日本 🙂" + 30 * "long text, ",
            "raw": b"\0\1\xff",
            "l": [1, None, 3],
            "st": {"x": 1, "y": None},
        },
        {
            "n": 7,
            "f": float("nan"),
            "s": "",
            "raw": b"12345678",
            "l": [],
            "st": {"x": None, "y": "z"},
            "d": Decimal("0.5"),
        },
        dict.fromkeys(WIDE.names),
        {"s": "x" * 64, "raw": b"y" * 63, "f": float("-inf"), "b": False},
        {"s": "x" * 71, "raw": b"y" * 72, "g": float("nan"), "n": 2**31 - 1},
    ]
    rows = [{"_time": 5 - i // 2, **{name: row.get(name) for name in WIDE.names}} for i, row in enumerate(rows)]
    table = pa.Table.from_pylist(rows, pa.schema([("_time", pa.int64()), *WIDE]))
    model = content_model.digest(table.to_pylist(), {"d": 3})
    assert digest_of_messages(table) == model
    log = create_log(str(tmp_path / "log"), WIDE, minimum=(0,), merge_every=None)
    log.writer(owner="me", content_digest="on").append(table)
    assert notes(log) == {("main", 1): f"c1:{model:016x}"}
    log.compact()
    DeltaTable(log.path).optimize.z_order(["n"])
    assert open_log(log.path).verify().problems == ()


@given(
    some.lists(
        some.fixed_dictionaries(
            {
                "_time": some.integers(-(2**63), 2**63 - 1),
                "v": some.none() | some.floats(width=64),
                "s": some.none() | some.text(max_size=90),
                "n": some.none() | some.integers(-(2**15), 2**15 - 1),
            }
        )
    ),
    some.integers(0, 9),
    some.sampled_from([1, 3, 1 << 14]),
)
def test_any_cut_of_rows_has_the_digest_of_the_model(rows: list[dict[str, Any]], at: int, chunk: int) -> None:
    schema = pa.schema([("_time", pa.int64()), ("v", pa.float64()), ("s", pa.string()), ("n", pa.int16())])
    table = pa.Table.from_pylist(rows, schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_CHUNK_ROWS", chunk)
        patch.setattr(content, "_FLAT_WORDS", chunk)
        whole = digest_of_messages(pa.concat_tables([table.slice(at), table.slice(0, at)]))
        assert whole == added(digest_of_messages(table.slice(0, at)), digest_of_messages(table.slice(at)))
    assert whole == content_model.digest(rows)


@given(some.permutations([1, 2, 3, 4, 5, 6]), some.permutations([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]))
def test_values_that_change_places_change_the_digest(times: list[int], values: list[float]) -> None:
    pairs = [
        sorted(zip(times, values, strict=True)),
        list(zip(range(1, 7), (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), strict=True)),
    ]
    tables = [pa.table({"_time": [t for t, _ in each], "v": [v for _, v in each]}) for each in pairs]
    assert (digest_of_messages(tables[0]) == digest_of_messages(tables[1])) == (pairs[0] == pairs[1])


def test_a_column_that_comes_later_leaves_the_digest(tmp_path: Path) -> None:
    log = filled(str(tmp_path / "log"))
    log.add_columns(pa.schema([("w", pa.string())]))
    log.compact()
    assert open_log(log.path).verify().problems == ()


def test_work_is_told_by_kinds_and_rows() -> None:
    numbers = pa.table({"_time": range(20_000), "v": range(20_000)})
    assert is_worth_it(numbers, OF_COMMIT)
    assert not is_worth_it(pa.concat_tables([numbers] * 3), OF_COMMIT)
    texts = pa.table({"_time": [1], "v": ["a"]})
    assert not is_worth_it(texts, OF_COMMIT)
    assert is_worth_it(texts, OF_TASK)
    assert is_worth_it(pa.concat_tables([numbers] * 30), None)
    assert not is_worth_it(numbers.slice(0, 0), 0)
