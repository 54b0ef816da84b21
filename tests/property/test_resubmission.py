"""Dead letters are appended again at most once, whatever is interrupted, repeated, raced or committed in between."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely import errors
from spark_timely.log import Log, MemoryLog
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.base import MemoryStore
from spark_timely.protocol.note import Note
from tests.faults.unreliable import UnreliableStore
from tests.support import examples

VALUES = pa.schema([("v", pa.int64())])


def rows(times: list[int | None], first: int) -> pa.Table:
    values = list(range(first, first + len(times)))
    return pa.table({"_time": pa.array(times, pa.int64()), "v": pa.array(values, pa.int64())})


def at_nine(letters: pa.Table) -> dict[str, list[int]]:
    return {"_time": [9] * letters.num_rows, "v": letters["v"].to_pylist()}


class World:
    """A log with letters in some commits, and processes that resubmit them through a store that fails."""

    def __init__(self, letters: list[int], seed: int, lands_late: float) -> None:
        self.plain = MemoryLog.create(VALUES, minimum=(0,), merge_every=4)
        writer = self.plain.writer(owner="me", bad_time="deadLetter")
        self.seed, self.lands_late = seed, lands_late
        self.value = 0
        self.letters: dict[int, list[int]] = {}
        for n in letters:
            table = rows([*[None] * n, 3], self.value)
            self.letters[writer.append(table).state.seq] = list(range(self.value, self.value + n))
            self.value += n + 1
        self.expected = Counter(self.plain.messages()["v"].to_pylist())

    def process(self) -> Log:
        """Return the log as a process has it that was just started."""
        log = self.plain.another()
        self.seed += 1
        log.core.store = UnreliableStore(
            log.core.store,
            seed=self.seed,
            happens=0.6,
            reports_failure=0.5,
            lands_late=self.lands_late,
            waits=0.6,
            goes=0.5,
            another=lambda: MemoryStore(self.plain.core.store.table),
        )
        return log

    def others_commit(self) -> None:
        self.plain.refresh()
        self.plain.writer(owner="me").append(rows([9], self.value))
        self.expected[self.value] += 1
        self.value += 1


@examples(40, long=4000)
@given(
    letters=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    order=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=6),
    seed=st.integers(0, 1 << 20),
    lands_late=st.sampled_from([0.0, 0.7]),
)
def test_letters_come_back_once_through_any_interruption(
    letters: list[int], order: list[tuple[int, bool, bool]], seed: int, lands_late: float
) -> None:
    world = World(letters, seed, lands_late)
    done: set[int] = set()
    for which, restarts, meanwhile in order:
        seq = sorted(world.letters)[which % len(world.letters)]
        log = world.process()
        for _ in range(200):
            try:
                outcome = log.resubmit(seq, at_nine)
            except errors.StorageError:
                # Nobody knows what came of it: the process ends here, or calls again.
                if restarts:
                    log = world.process()
                if meanwhile:
                    world.others_commit()
                    meanwhile = False
                continue
            break
        else:
            raise AssertionError("the store fails too often")
        if seq in done:
            assert not outcome.committed
        done.add(seq)
        world.plain.refresh()
        fixed = Counter(value for number in done for value in world.letters[number])
        assert Counter(world.plain.messages()["v"].to_pylist()) == world.expected + fixed
    assert world.plain.verify().legal
    assert world.plain.dead().num_rows == sum(letters)


def test_two_calls_at_once_append_once() -> None:
    world = World([2], 0, 0.0)
    (seq,) = world.letters
    one, two = world.plain.another(), world.plain.another()

    def while_another_does(letters: pa.Table) -> dict[str, list[int]]:
        if two is not None and one.core.stream("main") == two.core.stream("main"):
            assert two.resubmit(seq, at_nine).committed
        return at_nine(letters)

    assert not one.resubmit(seq, while_another_does).committed
    world.plain.refresh()
    assert Counter(world.plain.messages()["v"].to_pylist())[0] == 1


def test_list_is_kept_over_takeover_and_merges() -> None:
    world = World([1, 1], 0, 0.0)
    first, second = sorted(world.letters)
    log = world.plain
    log.resubmit(second, at_nine)
    log.writer(owner="you", takeover=True).append(rows([9], 90))
    log.compact()
    assert not log.resubmit(second, at_nine).committed
    assert log.resubmit(first, at_nine).committed
    assert log.core.stream("main").note.resubmitted == ((first, second),)
    assert log.describe()["streams"]["main"]["resubmitted"] == 2


def test_list_that_earlier_versions_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([1], 0, 0.0)
    (seq,) = world.letters
    log = world.plain
    log.resubmit(seq, at_nine)
    with monkeypatch.context() as patch:
        kept = Note.following
        patch.setattr(Note, "following", lambda self, *a, **k: _without_list(kept(self, *a, **k)))
        log.writer(owner="me").append(rows([9], 90))
    assert log.core.stream("main").note.resubmitted == ()
    assert not log.resubmit(seq, at_nine).committed


def _without_list(note: Note) -> Note:
    from dataclasses import replace

    return replace(note, resubmitted=())


@pytest.mark.parametrize(
    ("give", "kind", "text"),
    [
        ({"_time": [9, 9], "v": [1, 2]}, errors.InvalidUsageError, "found 2 rows for 1 letters"),
        ({"_time": [0], "v": [1]}, errors.UnheldCapabilityError, "found time=0 behind the frontier"),
        ({"_time": [9], "v": [1], "_seq": [77]}, errors.InvalidUsageError, "found rows of another _seq"),
        ({"_time": [None], "v": [1]}, errors.InvalidUsageError, "column '_time'"),
        (None, errors.InvalidUsageError, "found 1 of 1 without a time"),
        (lambda letters: letters, errors.InvalidUsageError, "found 1 of 1 without a time"),
        (lambda letters: letters.slice(0, 0), errors.InvalidUsageError, "found no rows to append for 1 letters"),
    ],
)
def test_rows_that_cannot_come_back_are_refused(give: object, kind: type[errors.TimelyError], text: str) -> None:
    world = World([1], 0, 0.0)
    world.plain.writer(owner="me").advance(3)
    (seq,) = world.letters
    before = world.plain.core.version
    with pytest.raises(kind, match=text):
        world.plain.resubmit(seq, give)
    assert world.plain.core.version == before


def test_letter_without_a_time_is_no_message_of_the_minimum() -> None:
    log = MemoryLog.create(VALUES, times=["long", "long"], minimum=(0, 0))
    writer = log.writer(owner="me", bad_time="deadLetter", late_data="deadLetter")
    bad = {"_time_0": pa.array([None, 4], pa.int64()), "_time_1": pa.array([2, 5], pa.int64()), "v": [7, 8]}
    seq = writer.append(bad).state.seq
    version = log.core.version
    for give in (None, lambda letters: letters):
        with pytest.raises(errors.InvalidUsageError, match="found 1 of 1 without a time"):
            log.resubmit(seq, give)
    assert log.core.version == version
    assert log.resubmit(seq, {"_time_0": [0], "_time_1": [0], "v": [7]}).committed  # by hand it may be there
    assert log.messages()["v"].to_pylist() == [7, 8]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_zone_of_the_session_gives_a_letter_no_time(zone: str) -> None:
    log = MemoryLog.create(VALUES, times="timestamp")
    moments = pa.array([None], pa.timestamp("us", "UTC"))
    seq = log.writer(owner="me", bad_time="deadLetter").append({"_time": moments, "v": [7]}).state.seq
    letters = log.dead()
    for name in ("_time", "_at"):  # as Spark gives them
        at = letters.column_names.index(name)
        letters = letters.set_column(at, name, letters[name].cast(pa.timestamp("us", zone)))
    letters = letters.append_column("_log_id", pa.array([log.core.log_id]).dictionary_encode())
    with pytest.raises(errors.InvalidUsageError, match="found 1 of 1 without a time"):
        log.resubmit(seq, letters)
    fixed = letters.set_column(
        letters.column_names.index("_time"), "_time", pa.array([1_700_000_000_000_000], pa.timestamp("us", zone))
    )
    assert log.resubmit(seq, fixed).committed


def test_letters_of_a_copy_are_refused(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,))
    log.writer(owner="me").append(rows([1], 0))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    copy = open_log(tmp_path / "copy")
    for each, value in ((log, 77), (copy, 88)):
        seq = each.writer(owner="me", bad_time="deadLetter").append(rows([None], value)).state.seq
    assert (log.core.log_id, log.dead()["_seq"]) == (copy.core.log_id, copy.dead()["_seq"])
    moved = copy.dead().drop_columns(["_time"]).append_column("_time", pa.array([9], pa.int64()))
    with pytest.raises(errors.InvalidUsageError, match="found rows of another _at"):
        log.resubmit(seq, moved)
    assert copy.resubmit(seq, moved).committed
    assert log.resubmit(seq, at_nine).committed


def test_letters_of_another_log_and_of_no_commit_are_refused() -> None:
    world = World([1], 0, 0.0)
    (seq,) = world.letters
    with pytest.raises(errors.RolledBackError, match="the letters are of log 'other'"):
        world.plain.resubmit(seq, at_nine, log_id="other")
    for none in (0, seq + 40):
        with pytest.raises(errors.MissingError, match="found none"):
            world.plain.resubmit(none, at_nine)
