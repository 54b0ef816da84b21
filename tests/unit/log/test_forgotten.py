"""What else reads messages or commits knows what a log has forgotten: exports, events, lookups, cuts, verify."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_timely.errors import (
    ForeignChangeError,
    InvalidUsageError,
    LogDamagedError,
    LogFormatError,
    NotBeyondError,
    OwnershipError,
    RolledBackError,
    SinceViolationError,
)
from spark_timely.interop import CaptureReader, CdcImport, export_log
from spark_timely.interop.cdcv2.conversion import collection_messages
from spark_timely.interop.exporting import default_types
from spark_timely.log import Log, MemoryLog
from spark_timely.log.cut import Cut, cut
from spark_timely.log.files import format as formats
from spark_timely.log.log import create_log, open_log
from spark_timely.log.reader import events_of, frontier_at
from spark_timely.log.writer import StreamWriter
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane
from tests.unit.datasource.support import drive, read_all

SCHEMA = pa.schema([pa.field("v", pa.int64(), nullable=False)])


def log_of(n: int = 10, kind: str = "stream", clock: ManualClock | None = None) -> MemoryLog:
    """Return a log with a commit for each time below n, which has a row there and one two later."""
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind=kind, clock=clock or ManualClock(), merge_every=None)  # type: ignore[arg-type]
    writer = log.writer(owner="me")
    for time in range(n):
        rows = {"_time": [time, time + 2], "v": [time, time]}
        if kind == "collection":
            rows["_diff"] = [1, -1]
        log.core.clock.advance(10)  # type: ignore[attr-defined]
        writer.append(pa.table(rows), advance_to=time + 1)
    log.refresh()
    return log


def forgetful(since: int, n: int = 10, kind: str = "stream", *, rewritten: bool = True) -> MemoryLog:
    log = log_of(n, kind)
    assert log.allow_compaction([since]) == Antichain.of(since)
    if rewritten:
        log.compact(logical=True)
    return log


both = pytest.mark.parametrize("rewritten", [False, True])


@both
def test_export_gives_what_is_left(tmp_path: Path, *, rewritten: bool) -> None:
    log = forgetful(5, rewritten=rewritten)
    parts = export_log(log, tmp_path / "out", files=2)
    assert sum(part.records for part in parts) == log.messages().num_rows == 12
    times = [
        time
        for part in parts
        for chunk in CaptureReader(io.BytesIO(Path(part.path).read_bytes()), time=part.time, record=part.record)
        for time in chunk.times[:, 0].tolist()
    ]
    assert min(times) == 5
    with pytest.raises(SinceViolationError, match=r"could not export log 'memory' up to \[4\]: found since=\[5\]"):
        export_log(log, tmp_path / "other", up_to=[4])
    assert not (tmp_path / "other").exists()


@both
def test_cdcv2_gives_updates_where_they_stand(*, rewritten: bool) -> None:
    log = forgetful(5, kind="collection", rewritten=rewritten)
    other = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    task = CdcImport(other, "main", default_types(log))
    task.open()
    task.extend(list(collection_messages(log)))
    other.refresh()
    assert [other.snapshot(at).sort_by("v").to_pylist() for at in range(5, 10)] == [
        log.snapshot(at).sort_by("v").to_pylist() for at in range(5, 10)
    ]
    assert other.verify(since=[5]).digest == log.verify(since=[5]).digest
    with pytest.raises(SinceViolationError, match=r"could not export log 'memory' up to \[5\]: found since=\[5\]"):
        list(collection_messages(log, up_to=[5]))


@both
def test_events_are_those_of_the_commits_left(*, rewritten: bool) -> None:
    log = forgetful(5, rewritten=rewritten)
    events = [(state.seq, rows["_time"].to_pylist()) for state, rows in events_of(log.core, "main")]
    if rewritten:
        # Commit 5 is the base: it comes with what is left of the messages before it.
        assert events[0] == (5, [5, 6])
        assert events[1:3] == [(6, [5, 7]), (7, [6, 8])]
    else:
        assert events[4:8] == [(4, [5]), (5, [6]), (6, [5, 7]), (7, [6, 8])]
    assert sum(len(times) for _, times in events) == 12


def test_commits_before_the_first_are_not_looked_up() -> None:
    log = forgetful(5)
    assert log.core.bases() == {"main": 5}
    assert frontier_at(log.core, seq=5) == Antichain.of(5)
    with pytest.raises(
        SinceViolationError,
        match=r"could not look up a frontier of log 'memory' at seq=4: found that it remembers stream 'main' from seq",
    ):
        frontier_at(log.core, seq=4)
    first = log.core.commits_of({"main": 5}).get("main")
    assert first is not None
    assert first.note.base
    assert frontier_at(log.core, timestamp=f"us:{first.at}") == Antichain.of(5)
    with pytest.raises(SinceViolationError, match=r"at timestamp=us:\d+: found that it remembers stream 'main' from"):
        frontier_at(log.core, timestamp=f"us:{first.at - 1}")
    for delivery in ("complete", "arrival"):
        with pytest.raises(SinceViolationError):
            read_all(log, delivery=delivery, startingVersion="3")
    complete = [sorted(read_all(each, startingVersion="8")["v"].to_pylist()) for each in (log, log_of())]
    assert complete[0] == complete[1] != []
    with pytest.raises(SinceViolationError, match="could not begin at startingVersion of log 'memory'"):
        read_all(log, delivery="arrival", startingVersion="5")
    later = read_all(log, delivery="arrival", startingVersion="6")["v"].to_pylist()
    assert later == read_all(log_of(), delivery="arrival", startingVersion="6")["v"].to_pylist() != []


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_end_before_since_is_refused(kind: str) -> None:
    log = forgetful(5, kind=kind)
    with pytest.raises(SinceViolationError, match=r"could not read log 'memory' up to \[3\]: found since=\[5\]"):
        read_all(log, upTo="[3]")
    with pytest.raises(SinceViolationError, match=r"up to \[3\]: found since=\[5\]"):
        drive(log, upTo="[3]").run_one()
    with pytest.raises(SinceViolationError, match=r"could not read log 'memory' up to \[3\]: found since=\[5\]"):
        log.messages(upper=[3])


def test_hash_relative_to_since_stays_and_must_be_reached() -> None:
    whole, log = log_of(kind="collection"), forgetful(5, kind="collection")
    assert whole.verify(since=[5]).digest == log.verify(since=[5]).digest
    assert whole.verify(since=[7]).digest == log.verify(since=[7]).digest
    assert whole.verify().digest != log.verify().digest
    with pytest.raises(SinceViolationError, match=r"compute the hash .* relative to \[4\]: found since=\[5\]"):
        log.verify(since=[4])
    with pytest.raises(NotBeyondError, match=r"relative to \[10\]: found frontier=\[10\] — hint: give a since"):
        log.verify(since=[10])


def test_cut_below_since_is_refused(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [1, 4], "v": [1, 4]}), advance_to=5)
    log.refresh()
    made = cut([str(tmp_path / "log")])
    writer.append(pa.table({"_time": [6], "v": [6]}), advance_to=9)
    log.refresh()
    assert read_all_of(log, json.dumps(made.to_json())) == [1, 4]
    # All that is there is part of the cut of a stream.
    log.allow_compaction([3])
    with pytest.raises(SinceViolationError, match=r"could not read log '.*log' at a cut: found since=\[3\]"):
        read_all_of(log, json.dumps(made.to_json()))
    kept = cut([log], retain="nightly")
    assert Cut.from_json(str(kept)) == kept
    assert read_all_of(log, str(kept)) == [4, 6]
    assert log.allow_compaction([7]) == Antichain.of(3)
    assert read_all_of(log, str(cut([log], retain="nightly"))) == [4, 6]
    log.release("nightly")
    log.allow_compaction([7])
    with pytest.raises(SinceViolationError, match=r"at a cut: found since=\[7\]"):
        read_all_of(log, str(kept))


def test_cut_of_a_collection_needs_what_is_at_it(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), kind="collection")
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [1, 4], "v": [1, 4], "_diff": [1, 1]}), advance_to=5)
    made = cut([log], retain="nightly")
    writer.append(pa.table({"_time": [6], "v": [6], "_diff": [1]}), advance_to=9)
    assert log.allow_compaction([8]) == Antichain.of(4)
    log.compact(logical=True)
    assert read_all_of(log, str(made)) == [1, 4]
    log.release("nightly")
    log.allow_compaction([8])
    with pytest.raises(SinceViolationError, match=r"at a cut: found since=\[8\]"):
        read_all_of(log, str(made))


def read_all_of(log: Log, text: str) -> list[int]:
    from spark_timely.datasource.planner import ReplayPlanner, layout_of
    from spark_timely.datasource.reader import read_split
    from tests.unit.datasource.support import make_options

    options = make_options(cut=text)
    layout = layout_of(log, options)
    splits = ReplayPlanner(log, options, layout).plan_batch()
    batches = [batch for split in splits for batch in read_split(split, layout, storage=log.core.storage)]
    found: list[int] = pa.Table.from_batches(batches, layout.schema)["v"].to_pylist()
    return sorted(found)


def test_library_that_knows_no_since_refuses_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1, 4], "v": [1, 4]}), advance_to=5)
    log.allow_compaction([3])
    assert not open_log(log.path).core.format.forgets  # nothing is gone yet
    log.compact(logical=True)
    log.add_columns(pa.schema([("w", pa.int64())]))
    assert open_log(log.path).core.format.forgets
    monkeypatch.setattr(formats, "FORMAT_VERSIONS", (1, 2))
    with pytest.raises(LogFormatError, match="found format version=4, this library uses 1 and 2"):
        open_log(log.path)


def test_handle_idle_for_long_finds_its_log_again() -> None:
    log = log_of(3)
    idle = log.another()
    idle.refresh()
    writer = log.writer(owner="me")
    for time in range(3, 12):
        writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
    log.allow_compaction([10])
    log.compact(logical=True)
    assert log.core.bases()["main"] > 3
    idle.refresh()
    assert idle.frontier() == Antichain.of(12)


def test_log_whose_progress_others_have_merged_is_read_on(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), streams=2, merge_every=None)
    writers = [log.writer(name, owner="me") for name in ("a", "b")]
    for time in range(6):
        for writer in writers:
            writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
    log.allow_compaction([4])
    log.compact(logical=True)
    before = log.core.bases()
    assert before
    DeltaTable(log.path).optimize.compact()
    log.refresh()
    assert log.core.bases() == before
    assert log.messages().num_rows == 4
    for writer in writers:
        writer.append(pa.table({"_time": [7], "v": [7]}), advance_to=8)
    assert log.allow_compaction([7]) == Antichain.of(7)
    log.compact(logical=True)
    other = open_log(log.path)
    assert other.messages()["v"].to_pylist() == log.messages()["v"].to_pylist() == [7, 7]
    assert other.verify().legal, other.verify().problems


@pytest.mark.parametrize("event", ["since", "retain"])
def test_memory_that_another_program_deletes_is_missed(tmp_path: Path, event: str) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1, 4], "v": [1, 4]}), advance_to=5)
    log.allow_compaction([3])
    log.retain("report", [4], owner="nightly")
    log.compact(logical=True)
    DeltaTable(log.path).delete(f"_event = '{event}'")
    for handle in (log, open_log(log.path)):
        handle.refresh()
        for ask in (handle.since, handle.messages, handle.retainers, lambda log=handle: log.allow_compaction([5])):
            found = "although it has forgotten, or readers retain it|found rows changed by another program: version="
            with pytest.raises((LogDamagedError, ForeignChangeError), match=found):
                ask()


def test_key_that_is_forgotten_is_refused_by_name() -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")

    def append(key: int, by: StreamWriter) -> bool:
        rows = pa.table({"_time": [key], "v": [key]})
        return by.append(rows, advance_to=key + 1, batch=key).committed

    for key in (2, 4, 6, 8, 10):
        append(key, writer)
        writer.append(pa.table({"_time": [11], "v": [0]}))
    log.allow_compaction([9])
    log.compact(logical=True)
    base = log.core.commits_of({"main": log.core.bases()["main"]}).get("main")
    assert base is not None
    assert base.batch == 8
    before = log.messages().num_rows
    for by in (writer, log.another().writer(owner="me")):
        # Given, or left out: that is not known any more, and nothing may come twice.
        for key in (2, 3, 6, 7):
            with pytest.raises(
                SinceViolationError, match=rf"append batch={key} .* found no commit of this key, and tho"
            ):
                append(key, by)
        with pytest.raises(RolledBackError, match="found batch=10 in it, and none of this key"):
            append(9, by)
        assert not append(10, by)
    log.refresh()
    assert log.messages().num_rows == before
    # Keys end with their owner, also where the base is of the one before.
    taken = log.writer(owner="you", takeover=True)
    assert taken.append(pa.table({"_time": [12], "v": [0]}), batch=3).committed
    with pytest.raises(RolledBackError, match="found batch=3 in it, and none of this key"):
        taken.append(pa.table({"_time": [12], "v": [0]}), batch=2)


def test_bytes_of_progress_that_changed_are_damage(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="the owner")
    for time in range(6):
        writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
    log.allow_compaction([4])
    log.compact(logical=True)
    # The base: not the newest commit, which each handle reads.
    (path,) = log.core.states.holders("main", log.core.bases()["main"])
    file = tmp_path / "log" / path
    whole = file.read_bytes()
    asks = (lambda log: log.core.owners("main"), lambda log: log.verify(), lambda log: log.core.progress())
    # A text; the names of columns, at the end of the file.
    for text, bits, found in (
        (b"the owner", 0x80, "no valid Parquet: .*CRC"),
        (b"the owner", 0x01, "no valid Parquet: .*CRC"),
        (b"_query", 0x80, "no valid Parquet: "),
        (b"_seq", 0x01, "no _seq in . rows"),
    ):
        at = whole.index(text)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :])
        for ask in asks:
            with pytest.raises(LogDamagedError, match=f"read progress of log .*: found file .* damaged: {found}"):
                ask(open_log(log.path))
    # Of a file from before there were checksums.
    rows = pq.read_table(file)
    text = pa.array([b"\x80"] * rows.num_rows, pa.binary()).view(pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("_query"), "_query", text), file)
    for ask in asks:
        with pytest.raises(LogDamagedError, match=r"found file .* damaged: .*UTF8"):
            ask(open_log(log.path))


def test_cut_is_retained_in_all_logs_or_none(tmp_path: Path) -> None:
    logs = [create_log(str(tmp_path / name), SCHEMA, minimum=(0,)) for name in ("a", "b")]
    for log in logs:
        log.writer(owner="me").append(pa.table({"_time": [1], "v": [1]}), advance_to=5)
    logs[1].retain("report", [2], owner="another")
    with pytest.raises(OwnershipError, match="found it owned by 'another', not by 'cut report'"):
        cut(logs, retain="report")
    assert logs[0].retainers() == {}
    with pytest.raises(InvalidUsageError, match="found consumer=' ' — hint: give the consumer a name"):
        cut(logs, retain=" ")


def test_upkeep_alone_keeps_a_stream_small() -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), merge_every=4)
    log.keep(10, committed="0s")
    writer, most = log.writer(owner="me"), 0
    n = 400 if long_lane() else 150
    for time in range(n):
        writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
        log.refresh()
        most = max(most, int(log.core.files().rows.sum()))
    # What is kept, what comes between two turns of upkeep, and half of a merged file.
    assert most < 40
    assert log.messages()["v"].to_pylist() == [*range(log.since().elements[0][0], n)]
    assert log.core.progress().num_rows < 100
