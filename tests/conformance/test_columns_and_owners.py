"""Columns that are added to a log, and streams that change hands: the same for every implementation of a log."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import (
    ClosedError,
    InvalidUsageError,
    OwnershipError,
    RolledBackError,
    SchemaMismatchError,
)
from spark_timely.log import Log
from spark_timely.log.log import create_log
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.reader import events_of
from tests.conformance.logs import NOTHING, LogMaker, rows

NOTE = pa.schema([("note", pa.string())])


def noted(time: int, value: int, note: str) -> pa.Table:
    return rows((time, value)).append_column("note", pa.array([note]))


def contents(log: Log) -> list[tuple[int, int, str | None]]:
    log.refresh()
    found = log.messages(columns=["_time", "v", "note"]).to_pylist()
    return [(row["_time"], row["v"], row["note"]) for row in found]


# Columns --------------------------------------------------------------------------------------------


def test_columns_with_odd_names_are_columns(maker: LogMaker) -> None:
    # Some of these end a line for Python's texts, none for JSON.
    names = ["a\u2028b", "\x85", "\x1c\x1d\x1e", "\x0b\x0c", "日本", "a.b", "`", "'\"\\", "%20", "A", "é"]
    log = maker.create(pa.schema([(name, pa.int64()) for name in names]))
    log.writer(owner="a").append({"_time": [1], **{name: [index] for index, name in enumerate(names)}}, advance_to=2)
    log.add_columns(pa.schema([("c\u2029", pa.string())]))
    read = maker.another(log)
    expected = {name: index for index, name in enumerate(names)} | {"c\u2029": None}
    assert read.messages(columns=[*names, "c\u2029"]).to_pylist() == [expected]
    assert read.verify().legal


def test_rows_before_and_without_a_new_column_have_nulls_there(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    first, second = log.writer("a", owner="a"), maker.another(log).writer("b", owner="b")
    first.append(rows((1, 10)), advance_to=2)
    log.add_columns(NOTE)
    first.append(noted(2, 20, "x"), advance_to=3)
    # A producer that knows nothing of it goes on, with the handle it has and with a new one.
    second.append(rows((2, 30)), advance_to=3)
    maker.another(log).writer("b", owner="b").append(rows((3, 40)), advance_to=4)
    assert sorted(contents(log)) == [(1, 10, None), (2, 20, "x"), (2, 30, None), (3, 40, None)]
    assert log.core.format.merged == ("note",)
    assert log.schema.field("note").nullable
    assert log.verify().legal


def test_old_contents_keep_their_canonical_hash(maker: LogMaker) -> None:
    log = maker.create()
    log.writer(owner="a").append(rows((1, 10), (2, 11)), advance_to=3)
    before = log.verify().digest
    log.add_columns(pa.schema([("note", pa.string()), ("deep", pa.struct([("x", pa.int32())]))]))
    assert maker.another(log).verify().digest == before
    log.writer(owner="a").append(rows((3, 12)), advance_to=4)
    plain = maker.create()
    writer = plain.writer(owner="a")
    writer.append(rows((1, 10), (2, 11)), advance_to=3)
    writer.append(rows((3, 12)), advance_to=4)
    assert log.verify().digest == plain.verify().digest


def test_column_that_is_there_already_is_not_added_again(maker: LogMaker) -> None:
    log = maker.create()
    log.add_columns(NOTE)
    log.refresh()
    version = log.core.version
    log.add_columns(NOTE)
    maker.another(log).add_columns(pa.schema([("NOTE", pa.string()), ("v", pa.int64())]))
    log.refresh()
    assert (log.core.version, log.schema.names) == (version, ["v", "note"])


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"v": pa.string()}, "column 'v' to a log: found type 'string', the log holds 'int64'"),
        ({"V": pa.int32()}, "column 'V' to a log: found type 'int32', the log holds 'int64'"),
        ({"fine": pa.string(), "_SEQ": pa.int64()}, "found reserved name '_SEQ'"),
        ({"_diff": pa.int64()}, "found reserved name '_diff'"),
        ({"a b": pa.int64()}, "found name 'a b'"),
        ({"w": pa.int64(), "W": pa.int64()}, "found name 'W' twice"),
        ({"t": pa.time32("s")}, "found type=time32"),
        ({"t": pa.timestamp("us")}, "found a timestamp without zone, the first of the log"),
    ],
)
def test_column_that_a_log_cannot_have_is_refused(maker: LogMaker, columns: dict[str, pa.DataType], text: str) -> None:
    log = maker.create()
    log.refresh()
    version = log.core.version
    with pytest.raises(SchemaMismatchError, match="hint: ") as found:
        log.add_columns(pa.schema(list(columns.items())))
    assert text in str(found.value)
    log.refresh()
    assert (log.core.version, log.schema.names) == (version, ["v"])


@pytest.mark.parametrize("maker", ["memory", "delta"], indirect=True)
def test_columns_added_by_many_at_once_lose_no_commit(maker: LogMaker) -> None:
    log = maker.create(streams=8)
    failures: list[BaseException] = []
    together = threading.Barrier(8)

    def produce(number: int) -> None:
        try:
            mine = maker.another(log)
            writer = mine.writer(f"s{number}", owner=f"s{number}")
            together.wait()
            for turn in range(6):
                if turn == 3:
                    # The same column by all, another one by each pair.
                    mine.add_columns(pa.schema([("note", pa.string()), (f"own{number // 2}", pa.int64())]))
                writer.append(rows((turn, number)), advance_to=turn + 1)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    log.refresh()
    assert sorted(log.schema.names) == ["note", "own0", "own1", "own2", "own3", "v"]
    assert log.messages().num_rows == 48
    assert log.frontier().elements == ((6,),)
    assert log.verify().legal


@pytest.mark.parametrize("maker", ["memory", "delta"], indirect=True)
def test_of_two_types_for_a_column_added_at_once_one_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    found: list[str] = []
    together = threading.Barrier(2)

    def add(kind: pa.DataType) -> None:
        mine = maker.another(log)
        together.wait()
        try:
            mine.add_columns(pa.schema([("note", kind)]))
            found.append("added")
        except SchemaMismatchError as error:
            found.append(str(error))

    threads = [threading.Thread(target=add, args=(kind,)) for kind in (pa.string(), pa.int32())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusal = min(found, key=lambda text: text == "added")
    assert sorted(text == "added" for text in found) == [False, True]
    assert "'string'" in refusal
    assert "'int32'" in refusal


def test_merge_of_files_keeps_columns_that_only_some_have(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="a")
    writer.append(rows((1, 10)), advance_to=2)
    log.add_columns(NOTE)
    writer.append(noted(2, 20, "x"), advance_to=3)
    writer.append(rows((3, 30)), advance_to=4)
    expected = contents(log)
    assert maker.another(log).compact().files_after < 6
    assert contents(log) == expected == [(1, 10, None), (2, 20, "x"), (3, 30, None)]


def test_log_with_added_columns_is_opened_by_who_made_it(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    log = create_log(tmp_path / "log", schema)
    log.add_columns(NOTE)
    for known in (schema, log.schema):
        assert create_log(tmp_path / "log", known, exist_ok=True).schema.names == ["v", "note"]
    with pytest.raises(SchemaMismatchError, match="a further column 'v'"):
        create_log(tmp_path / "log", NOTE, exist_ok=True)


# Owners ---------------------------------------------------------------------------------------------


def test_stream_taken_over_continues_without_its_former_owner(maker: LogMaker) -> None:
    log = maker.create()
    old = log.writer(owner="old")
    old.append(rows((1, 10)), advance_to=2)
    with pytest.raises(OwnershipError, match="found it owned by 'old', not by 'new'"):
        maker.another(log).writer(owner="new")
    new = maker.another(log).writer(owner="new", takeover=True)
    assert (new.state.owner, new.state.epoch, new.frontier.elements) == ("new", 1, ((2,),))
    new.append(rows((2, 20)), advance_to=3)
    with pytest.raises(OwnershipError, match="found it owned by 'new', not by 'old'"):
        old.append(rows((3, 30)), advance_to=4)
    # Nothing more is taken over by who owns it, and nothing is given back to who has lost it.
    assert maker.another(log).writer(owner="new", takeover=True).state.epoch == 1
    with pytest.raises(
        OwnershipError, match=r"found it taken over from 'old', it is owned by 'new'.*hint: continue under another name"
    ):
        maker.another(log).writer(owner="old", takeover=True)
    log.refresh()
    assert log.messages()["v"].to_pylist() == [10, 20]
    assert log.core.owners("main") == {"old", "new"}
    assert log.verify().legal


def test_stream_that_is_not_there_is_opened_by_a_takeover(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="new", takeover=True)
    assert (writer.state.owner, writer.state.epoch) == ("new", 0)


def test_micro_batch_of_another_owner_is_no_repetition(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="old")
    for number in range(3):
        log.core.commit(CommitRequest("main", "old", *NOTHING, batch=number))
    first = CommitRequest("main", "new", *NOTHING, batch=0, takeover=True, expected_seq=3)
    assert log.core.commit(first).committed
    state = log.core.stream("main")
    assert state is not None
    assert (state.owner, state.epoch, state.batch, state.seq) == ("new", 1, 0, 4)
    assert log.core.commit(first).duplicate
    assert log.core.recorded("main", 1) is None
    with pytest.raises(OwnershipError):
        log.core.commit(CommitRequest("main", "old", *NOTHING, batch=3, takeover=True))
    log.core.commit(CommitRequest("main", "new", *NOTHING, batch=1, takeover=True))
    with pytest.raises(RolledBackError):
        log.core.commit(CommitRequest("main", "new", *NOTHING, batch=0, takeover=True))


def test_closed_stream_is_not_taken_over(maker: LogMaker) -> None:
    log = maker.create()
    log.writer(owner="old").close()
    with pytest.raises(ClosedError):
        maker.another(log).writer(owner="new", takeover=True)
    with pytest.raises(InvalidUsageError, match="carry=True"):
        log.core.commit(CommitRequest("main", "new", *NOTHING, carry=True, takeover=True))


@pytest.mark.parametrize("maker", ["memory", "delta"], indirect=True)
def test_takeovers_at_once_own_the_stream_one_after_the_other(maker: LogMaker) -> None:
    log = maker.create()
    log.writer(owner="old").append(rows((1, 10)), advance_to=2)
    together = threading.Barrier(6)
    appended: list[int] = []
    lost: list[tuple[int, str]] = []

    def take(number: int) -> None:
        mine = maker.another(log)
        together.wait()
        try:
            # Lost again before it is used, or before its append.
            mine.writer(owner=f"q{number}", takeover=True).append(rows((2, number)))
            appended.append(number)
        except OwnershipError as error:
            lost.append((number, str(error)))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"q{number}" in text for number, text in lost)
    log.refresh()
    states = [state for state, _ in events_of(log.core, "main")]
    owners = [state.owner for state in states]
    changes = [b.owner for a, b in pairwise(states) if a.owner != b.owner]
    assert sorted(map(str, changes)) == [f"q{number}" for number in range(6)]
    assert [state.epoch for state in states] == [len(set(owners[: n + 1])) - 1 for n in range(len(owners))]
    assert sorted(log.messages()["v"].to_pylist()) == sorted([10, *appended])
    assert owners[-1] in {f"q{number}" for number in appended}
