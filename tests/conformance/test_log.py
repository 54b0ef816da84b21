"""One suite for every capture log: in memory, in a Delta table, and both over a store that fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.antichain import Antichain
from spark_timely.capture.protocol import StreamCounts
from spark_timely.errors import (
    ClosedError,
    InvalidUsageError,
    LogFormatError,
    LogMissingError,
    NegativeCountError,
    NegativeMultiplicityError,
    NotBeyondError,
    OwnershipError,
    RolledBackError,
    SchemaMismatchError,
    StorageError,
    StreamMissingError,
    TimelyInternalError,
    UnheldCapabilityError,
    UpperMismatchError,
)
from spark_timely.log.base import CommitRequest, DataFile
from spark_timely.log.files import message_table, write_data_files
from spark_timely.log.reading import ReadableLog
from spark_timely.log.store import LostRaceError
from tests.conformance.logs import KINDS, LogMaker, clock, rows

NOTHING = (np.empty((0, 1), np.int64), np.empty(0, np.int64))


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> LogMaker:
    return LogMaker(request.param, tmp_path)


def stored(log: ReadableLog) -> set[str]:
    """All files below the log that are not the table's own."""
    names = [n for n in log.storage.names() if n.startswith("_event=")]
    return {f"{d}/{n}" for d in names for n in log.storage.names(d)}


def frozen(log: ReadableLog) -> tuple[Any, ...]:
    log.refresh()
    return log.version, stored(log), log.frontier(), log.counts()


def written(log: ReadableLog, pairs: list[tuple[int, int]], seq: int, stream: str = "main") -> list[DataFile]:
    table = rows(*pairs)
    times = log.domain.from_columns(table)
    whole = message_table(log.format, table.select(["v"]), times, stream, seq)
    return write_data_files(log.storage, whole, times, stream=stream, seq=seq, domain=log.domain)


def batch(log: ReadableLog, number: int | None, pairs: list[tuple[int, int]], to: int | None, **more: Any) -> Any:
    """Commit a micro-batch: messages, then one capability moved from where it is to `to`."""
    state = log.stream("main")
    assert state is not None
    progress = NOTHING
    if to is not None:
        held = state.counts if "held" not in more else more.pop("held")
        progress = (np.array([[held.times[0, 0]], [to]]), np.array([-1, 1]))
    return log.commit(
        CommitRequest("main", "query", *progress, batch=number, files=written(log, pairs, state.seq + 1), **more)
    )


# Commits whose outcome cannot be seen ---------------------------------------------------------------

_BLIND = [
    LogFormatError("could not open log: found deletion vectors"),
    LogMissingError("could not read log: found another table in its place"),
    TimelyInternalError("could not read log: found no progress rows, invariant 2"),
    StorageError("could not read a file: found nothing", determinate=True),
    KeyError("path"),
]


@pytest.fixture(params=["memory", "delta"])
def sound(request: pytest.FixtureRequest, tmp_path: Path) -> LogMaker:
    return LogMaker(request.param, tmp_path)


def blinded(log: ReadableLog, error: Exception, *, happens: bool = True) -> Callable[[], None]:
    """Let each look at the log fail once a commit was tried; return what gives back sight."""
    store, transact, refresh = log.store, log.store.transact, log.store.refresh

    def blind() -> bool:
        raise error

    def tried(*args: Any, **more: Any) -> None:
        store.refresh = blind  # type: ignore[method-assign]
        if not happens:
            raise LostRaceError("could not commit: found another first")
        transact(*args, **more)

    def sight() -> None:
        store.refresh, store.transact = refresh, transact  # type: ignore[method-assign]

    store.transact = tried  # type: ignore[method-assign]
    return sight


@pytest.mark.parametrize("error", _BLIND, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("happens", [True, False])
def test_commit_followed_by_any_error_is_unclear_and_keeps_its_files(
    sound: LogMaker, error: Exception, happens: bool
) -> None:
    log = sound.create()
    log.open_stream("main", owner="query")
    sight = blinded(log, error, happens=happens)
    files = written(log, [(3, 1)], 1)
    request = CommitRequest("main", "query", *NOTHING, batch=0, files=files)
    with pytest.raises(StorageError) as raised:
        log.commit(request)
    assert not raised.value.determinate
    assert raised.value.__cause__ is error
    sight()
    assert files[0].path in stored(log)
    # To repeat the commit is what settles it.
    again = log.commit(request)
    assert again.committed
    assert again.state.seq == 1
    assert log.messages()["v"].to_pylist() == [1]
    assert log.verify().legal


@pytest.mark.parametrize("error", _BLIND, ids=lambda e: type(e).__name__)
def test_append_followed_by_any_error_keeps_its_files(sound: LogMaker, error: Exception) -> None:
    log = sound.create()
    writer = log.writer(owner="me")
    sight = blinded(log, error)
    with pytest.raises(StorageError) as raised:
        writer.append(rows((3, 7)), advance_to=4)
    assert not raised.value.determinate
    sight()
    log.refresh()
    assert log.messages()["v"].to_pylist() == [7]
    assert log.verify().legal


def test_opening_followed_by_an_error_is_unclear(sound: LogMaker) -> None:
    log = sound.create()
    sight = blinded(log, _BLIND[0])
    with pytest.raises(StorageError, match=r"could not tell whether a commit to log .* happened: found .*vectors"):
        log.open_stream("main", owner="me")
    sight()
    assert log.open_stream("main", owner="me").seq == 0


def test_refusal_before_any_try_keeps_its_type(sound: LogMaker) -> None:
    log = sound.create()
    writer = log.writer(owner="me")
    before = frozen(log)
    log.store.refresh = lambda: (_ for _ in ()).throw(_BLIND[0])  # type: ignore[method-assign]
    with pytest.raises(LogFormatError):
        log.commit(CommitRequest("main", "me", *NOTHING))
    del log.store.refresh  # type: ignore[misc]
    assert frozen(log) == before
    writer.append(rows((1, 1)))


def test_unclear_commit_that_another_overtook_is_refused_by_its_own_type(sound: LogMaker) -> None:
    log = sound.create()
    writer, other = log.writer(owner="me"), sound.another(log).writer(owner="me")
    transact = log.store.transact

    def unclear(*args: Any, **more: Any) -> None:
        log.store.transact = transact  # type: ignore[method-assign]
        other.append(rows((1, 1)), advance_to=2)
        raise StorageError("could not commit: found no answer")

    log.store.transact = unclear  # type: ignore[method-assign]
    with pytest.raises(UpperMismatchError):
        writer.compare_and_append(rows((1, 2)), expected=0, upper=2)
    assert log.messages()["v"].to_pylist() == [1]
    assert len([name for name in stored(log) if "=message/" in name]) == 1


def test_files_of_a_refused_append_stay_where_the_log_knows_them(sound: LogMaker) -> None:
    log = sound.create()
    writer, commit = log.writer(owner="me"), log.commit

    def lies(request: CommitRequest) -> Any:
        commit(request)
        raise UpperMismatchError("could not append: found another first", expected=0, current=1)

    log.commit = lies  # type: ignore[method-assign]
    with pytest.raises(UpperMismatchError):
        writer.append(rows((3, 7)))
    assert log.messages()["v"].to_pylist() == [7]


# Opening ------------------------------------------------------------------------------------------


def test_log_fresh_waits_for_its_streams(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    assert log.frontier() == Antichain.of(0)
    assert log.unclaimed == 2
    assert not log.streams()
    assert log.stream("main") is None
    assert log.verify().legal


def test_log_of_two_streams_moves_when_both_have_opened(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").advance(9)
    assert log.frontier() == Antichain.of(0)
    log.writer("b", owner="b").advance(4)
    assert log.frontier() == Antichain.of(4)
    assert log.unclaimed == 0


def test_open_again_by_the_owner_changes_nothing(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="me")
    log.writer("main", owner="me").advance(3)
    before = frozen(log)
    assert maker.another(log).open_stream("main", owner="me").frontier == Antichain.of(3)
    assert frozen(log) == before


def test_open_by_another_owner_is_refused(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.open_stream("main", owner="me")
    before = frozen(log)
    with pytest.raises(OwnershipError, match=r"could not open stream 'main'.*owned by 'me', not by 'you'"):
        maker.another(log).open_stream("main", owner="you")
    assert frozen(log) == before


@pytest.mark.parametrize("name", ["", "a-b", "a b", "ä", "#open", "a/b", "../x", "x" * 201, "a.b", None])
def test_open_refuses_names(maker: LogMaker, name: Any) -> None:
    log = maker.create()
    before = frozen(log)
    with pytest.raises(InvalidUsageError, match="A-Z, a-z, 0-9 and _"):
        log.open_stream(name, owner="me")
    assert frozen(log) == before


def test_open_accepts_the_longest_name(maker: LogMaker) -> None:
    log = maker.create(streams=2, merge_every=4)
    names = ["x" * 200, "x" * 199 + "y"]
    for name in names:
        writer = log.writer(name, owner=name)
        for i in range(1, 10):
            writer.append(rows((i, i)), advance_to=i)
    other = maker.another(log)
    assert list(other.streams()) == names
    assert {s.seq for s in other.streams().values()} == {9}
    assert other.verify().legal


def test_two_openers_on_one_unclaimed_capability(maker: LogMaker) -> None:
    first = maker.create()
    second = maker.another(first)
    second.refresh()
    first.open_stream("a", owner="a")
    # The second has not seen it: its claim loses, and it joins by a copy instead.
    state = second.open_stream("b", owner="b")
    assert state.reason == "copy of a at 0"
    first.refresh()
    assert first.unclaimed == 0
    assert first.counts().total == 2
    assert first.frontier() == Antichain.of(0)
    assert first.verify().legal


def test_two_openers_of_one_name_have_one_winner(maker: LogMaker) -> None:
    first = maker.create(streams=2)
    second = maker.another(first)
    first.open_stream("main", owner="first")
    with pytest.raises(OwnershipError, match="owned by 'first'"):
        second.open_stream("main", owner="second")
    first.refresh()
    assert first.unclaimed == 1


def test_join_copies_a_capability_at_a_time_that_is_held(maker: LogMaker) -> None:
    log = maker.create()
    log.writer("a", owner="a").advance(5)
    joined = log.open_stream("b", owner="b", at=7)
    assert joined.frontier == Antichain.of(7)
    assert log.open_stream("c", owner="c", donor="a").frontier == Antichain.of(5)
    assert log.open_stream("d", owner="d", donor="b").frontier == Antichain.of(7)
    assert log.counts() == StreamCounts.from_arrays([5, 7], [2, 2])
    assert log.verify().legal


def test_join_from_a_donor_leaves_what_is_unclaimed(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").advance(5)
    log.open_stream("b", owner="b", donor="a")
    assert log.unclaimed == 1


@pytest.mark.parametrize("donor", [None, "a"])
def test_join_at_a_time_that_nobody_holds_is_refused(maker: LogMaker, donor: str | None) -> None:
    log = maker.create()
    log.writer("a", owner="a").advance(5)
    before = frozen(log)
    with pytest.raises(NotBeyondError):
        log.open_stream("b", owner="b", at=4, donor=donor)
    assert frozen(log) == before


def test_join_from_a_closed_or_missing_donor_is_refused(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").close()
    with pytest.raises(ClosedError, match="'a'"):
        log.open_stream("b", owner="b", donor="a")
    with pytest.raises(StreamMissingError, match="'z'"):
        log.open_stream("b", owner="b", donor="z")


def test_join_of_a_complete_log_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.writer("a", owner="a").close()
    assert log.frontier().is_empty
    with pytest.raises(ClosedError, match="nobody can join a complete log"):
        log.open_stream("b", owner="b")


def test_joiner_that_loses_to_its_donor_decides_anew(maker: LogMaker) -> None:
    log = maker.create()
    donor = log.writer("a", owner="a")
    joining = maker.another(log)
    joining.refresh()
    donor.advance(8)
    with pytest.raises(NotBeyondError):
        joining.open_stream("b", owner="b", at=3)
    assert joining.open_stream("b", owner="b").frontier == Antichain.of(8)
    log.refresh()
    assert log.frontier() == Antichain.of(8)


def test_donor_that_loses_to_a_joiner_goes_on_undisturbed(maker: LogMaker) -> None:
    log = maker.create()
    donor = log.writer("a", owner="a")
    donor.advance(2)
    seq = donor.state.seq
    maker.another(log).open_stream("b", owner="b")
    # The donor's handle is stale; its batch was decided at this seq, and still counts.
    outcome = log.commit(CommitRequest("a", "a", np.array([[2], [8]]), np.array([-1, 1]), expected_seq=seq, batch=0))
    assert outcome.committed
    assert outcome.state.seq == seq + 1
    assert log.frontier() == Antichain.of(2)
    assert log.verify().legal


# The protocol -------------------------------------------------------------------------------------


def test_append_moves_frontier_and_numbers_commits(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    for i in range(1, 6):
        state = writer.append(rows((i - 1, i), (i + 3, i)), advance_to=i).state
        assert (state.seq, state.frontier, state.rows) == (i, Antichain.of(i), 2)
        assert state.before.frontier == Antichain.of(i - 1)
    assert log.frontier() == Antichain.of(5)
    assert log.messages().num_rows == 10
    assert log.verify().legal


def test_message_behind_the_frontier_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.advance(5)
    before = frozen(log)
    with pytest.raises(UnheldCapabilityError, match=r"message at time=4 in stream 'main' at seq=2.*held=\[5\]"):
        writer.append(rows((7, 1), (4, 2)))
    with pytest.raises(UnheldCapabilityError):
        log.commit(CommitRequest("main", "me", *NOTHING, message_minima=np.array([[4]]), n_rows=1))
    assert frozen(log) == before


def test_message_at_the_frontier_is_legal(maker: LogMaker) -> None:
    writer = maker.create().writer(owner="me")
    writer.advance(5)
    assert writer.append(rows((5, 1))).committed


def test_message_is_judged_before_the_progress_of_its_commit(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.append(rows((0, 1)), progress=([0, 5], [-1, 1]))
    # 5 is dropped by this very commit, which may still use it.
    writer.append(rows((5, 2)), progress=([5], [-1]))
    assert log.frontier().is_empty
    assert log.verify().legal


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_progress_is_judged_as_a_whole(maker: LogMaker, order: list[int]) -> None:
    writer = maker.create().writer(owner="me")
    times, deltas = np.array([[0], [5]])[order], np.array([-1, 1])[order]
    assert writer.append(rows(), progress=(times, deltas)).state.frontier == Antichain.of(5)


def test_progress_at_an_unheld_time_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.advance(5)
    before = frozen(log)
    with pytest.raises(UnheldCapabilityError, match="raise the count of time=3"):
        writer.append(rows((6, 1)), progress=([3], [1]))
    assert frozen(log) == before


def test_progress_that_gives_up_what_is_not_held_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    before = frozen(log)
    with pytest.raises(NegativeCountError, match="count=-1"):
        writer.append(rows(), progress=([7], [-1]))
    with pytest.raises(NegativeCountError):
        writer.append(rows(), progress=([0], [-2]))
    assert frozen(log) == before


def test_messages_may_move_earlier_and_progress_later(maker: LogMaker) -> None:
    digests = set()
    for moved in range(3):
        log = maker.create()
        writer = log.writer(owner="me")
        if moved == 0:
            writer.append(rows((3, 1)), advance_to=2)
            writer.append(rows((2, 2)), advance_to=7)
        elif moved == 1:
            # The second message moves before the first progress.
            writer.append(rows((2, 2)))
            writer.append(rows((3, 1)), advance_to=2)
            writer.advance(7)
        else:
            # All progress moves behind all messages.
            writer.append(rows((3, 1)))
            writer.append(rows((2, 2)))
            writer.advance(2)
            writer.advance(7)
        report = log.verify()
        assert report.legal, report.problems
        digests.add(report.digest)
    assert len(digests) == 1


def test_last_capability_dropped_before_a_message_that_needs_it_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.append(rows((3, 1)), advance_to=7)
    before = frozen(log)
    with pytest.raises(UnheldCapabilityError, match="time=2"):
        writer.append(rows((2, 2)))
    assert frozen(log) == before


def test_any_interleaving_of_streams_says_the_same(maker: LogMaker) -> None:
    rng = np.random.default_rng(5)
    digests = set()
    for _ in range(3):
        log = maker.create(streams=3)
        writers = [log.writer(f"s{i}", owner=f"s{i}") for i in range(3)]
        turns = rng.permutation(np.repeat([0, 1, 2], 4))
        done = [0, 0, 0]
        for i in turns.tolist():
            done[i] += 1
            writers[i].append(rows((done[i], 10 * i + done[i]), (done[i] + 1, i)), advance_to=done[i])
        report = log.verify()
        assert report.legal, report.problems
        digests.add(report.digest)
    assert len(digests) == 1


def test_capture_records_exactly_what_it_was_given(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    given = [([(4, 1), (4, 1)], ([0, 4, 6], [-1, 1, 2])), ([], ([6], [-1])), ([(7, 3)], ([], []))]
    for pairs, (times, deltas) in given:
        writer.append(rows(*pairs), progress=(np.array(times, np.int64), np.array(deltas, np.int64)))
    seen = []
    for state, messages in log.events("main"):
        times = np.concatenate([state.before.times, state.counts.times])[:, 0].tolist()
        deltas: Counter[int] = Counter()
        for time, delta in zip(times, [*-state.before.counts, *state.counts.counts], strict=True):
            deltas[time] += int(delta)
        changes = {time: delta for time, delta in deltas.items() if delta}
        seen.append(([(r["_time"], r["v"]) for r in messages.to_pylist()], changes, state.counts.to_json()))
    assert seen[1:] == [
        ([(4, 1), (4, 1)], {0: -1, 4: 1, 6: 2}, [[4, 1], [6, 2]]),
        ([], {6: -1}, [[4, 1], [6, 1]]),
        ([(7, 3)], {}, [[4, 1], [6, 1]]),
    ]
    assert (seen[0][0], seen[0][2]) == ([], [[0, 1]])


def test_counts_above_one_are_kept(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.append(rows(), progress=([0, 4, 9], [-1, 3, 2]))
    writer.append(rows(), progress=([4], [-2]))
    other = maker.another(log)
    assert other.counts() == StreamCounts.from_arrays([4, 9], [1, 2])
    # Every time that is held is listed in the newest batch, also what did not change.
    state = other.stream("main")
    assert state is not None
    assert state.before == StreamCounts.from_arrays([4, 9], [3, 2])


def test_product_order_keeps_antichains(maker: LogMaker) -> None:
    log = maker.create(times=("long", "long"))
    writer = log.writer(owner="me")
    names = ("_time_0", "_time_1")
    writer.append(rows(((0, 0), 1), names=names), progress=([(0, 0), (0, 5), (3, 0)], [-1, 1, 1]))
    assert log.frontier() == Antichain.of((0, 5), (3, 0))
    with pytest.raises(UnheldCapabilityError):
        writer.append(rows(((2, 4), 1), names=names))
    writer.append(rows(((0, 5), 2), ((9, 0), 3), ((4, 9), 4), names=names), advance_to=[[4, 0], [0, 6]])
    assert maker.another(log).frontier() == Antichain.of((0, 6), (4, 0))
    assert log.messages(lower=[[0, 6], [4, 0]])["v"].to_pylist() == [4, 3]
    report = log.verify()
    assert report.legal, report.problems
    log.compact()
    assert log.verify().digest == report.digest


# Micro-batches ------------------------------------------------------------------------------------


def test_repeated_batch_is_done_already(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    held = StreamCounts.initial(0)
    assert batch(log, 0, [(0, 1), (3, 2)], 3, held=held).committed
    before = log.version, log.counts()
    again = batch(maker.another(log), 0, [(0, 1), (3, 2)], 3, held=held, expected_seq=0)
    assert again.duplicate
    assert again.state.seq == 1
    assert again.state.before == held
    log.refresh()
    assert (log.version, log.counts()) == before


def test_repeated_batch_with_other_rows_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    batch(log, 0, [(0, 1)], 3)
    with pytest.raises(RolledBackError, match="n_rows=2"):
        batch(log, 0, [(0, 1), (0, 2)], None)
    with pytest.raises(RolledBackError, match="bounds"):
        batch(log, 0, [(1, 1)], None)


def test_older_batch_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    for number in range(3):
        batch(log, number, [(number, 1)], number + 1)
    before = log.version
    with pytest.raises(RolledBackError, match=r"batch=1 step=0.*found batch=2 step=0"):
        batch(log, 1, [(1, 1)], None)
    assert log.version == before


def test_all_steps_of_a_repeated_batch_are_done_already(maker: LogMaker) -> None:
    log = maker.create(merge_every=2)
    log.open_stream("main", owner="query")
    for step in range(3):
        assert batch(log, 7, [(step, step)], step + 1, step=step).committed
    for step in range(3):
        assert batch(log, 7, [(step, step)], None, step=step).duplicate
    with pytest.raises(RolledBackError):
        batch(log, 7, [(0, 0), (0, 0)], None, step=0)
    recorded = log.recorded("main", 7, 1)
    assert recorded is not None
    assert (recorded.seq, recorded.before.frontier) == (2, Antichain.of(1))
    assert log.recorded("main", 7, 5) is None
    assert log.recorded("main", 6) is None


def test_advance_by_hand_keeps_the_last_batch_recognisable(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    batch(log, 4, [(1, 1)], 2)
    state = log.advance("main", 6)
    assert (state.batch, state.step, state.owner, state.n_rows) == (4, 0, "query", None)
    assert log.frontier() == Antichain.of(6)
    other = maker.another(log)
    recorded = other.recorded("main", 4)
    assert recorded is not None
    assert (recorded.before.frontier, recorded.rows) == (Antichain.of(0), 1)
    assert batch(other, 4, [(1, 1)], None).duplicate
    assert batch(other, 5, [(6, 1)], 7).committed
    with pytest.raises(NotBeyondError, match=r"found it at \[7\]"):
        other.advance("main", 5)
    assert other.verify().legal


def test_rows_judged_at_an_older_seq_are_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    batch(log, 0, [(0, 1)], 1)
    log.advance("main", 2)
    with pytest.raises(UpperMismatchError, match=r"at seq=2, the rows were judged at seq=1") as caught:
        batch(log, 1, [(1, 1)], None, expected_seq=1)
    assert (caught.value.expected, caught.value.current) == (1, 2)


def test_files_written_for_another_commit_are_refused(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.open_stream("main", owner="query")
    log.open_stream("b", owner="query")
    late = written(log, [(0, 1)], 1)
    batch(log, 0, [], None)
    with pytest.raises(UpperMismatchError, match="with rows of _seq=1"):
        log.commit(CommitRequest("main", "query", *NOTHING, batch=1, files=late))
    with pytest.raises(UpperMismatchError, match="with rows of _stream='main'"):
        log.commit(CommitRequest("b", "query", *NOTHING, batch=1, files=late))
    assert log.verify().legal


def test_commit_by_another_query_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="other")
    with pytest.raises(OwnershipError, match="owned by 'other', not by 'query'"):
        batch(log, 0, [], None)
    with pytest.raises(StreamMissingError, match=r"stream 'b'.*found streams=\['main'\]"):
        log.commit(CommitRequest("b", "other", *NOTHING))


def test_empty_batch_is_recorded(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    assert batch(log, 0, [], None).state.seq == 1
    assert batch(log, 0, [], None).state.seq == 1
    assert log.verify().legal


def test_second_try_of_a_request_that_happened_owns_its_files(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    request = CommitRequest("main", "query", *NOTHING, batch=0, files=written(log, [(0, 1)], 1))
    assert log.commit(request).committed
    # A caller that was told of a failure tries the very same files: they must not be deleted.
    assert log.commit(request).committed
    other = CommitRequest("main", "query", *NOTHING, batch=0, files=written(log, [(0, 1)], 1))
    assert log.commit(other).duplicate
    assert log.live_paths([f.path for f in (*request.files, *other.files)]) == {request.files[0].path}


# Closing ------------------------------------------------------------------------------------------


def test_closed_stream_takes_nothing_more(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    writer = log.writer("main", owner="query")
    batch(log, 0, [(0, 1)], 3)
    writer.close(reason="done")
    state = writer.close()
    assert (state.closed, state.reason, state.seq) == (True, "done", 2)
    before = frozen(log)
    with pytest.raises(ClosedError, match="could not append to stream 'main'"):
        writer.append(rows((9, 1)))
    with pytest.raises(ClosedError):
        writer.advance(9)
    with pytest.raises(ClosedError):
        log.advance("main", 9)
    with pytest.raises(ClosedError):
        batch(log, 1, [], None)
    assert frozen(log) == before
    assert log.frontier() == Antichain.of(0)


def test_repeated_batch_that_closed_is_done_already(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    request = CommitRequest("main", "query", np.array([[0]]), np.array([-1]), batch=0)
    assert log.commit(request).state.closed
    assert log.commit(request).duplicate


def test_close_all_completes_the_log(maker: LogMaker) -> None:
    log = maker.create(streams=3)
    log.open_stream("a", owner="a")
    log.writer("b", owner="b").advance(4)
    closed = log.close()
    assert [s.stream for s in closed] == ["a", "b"]
    assert log.frontier().is_empty
    assert log.unclaimed == 0
    assert log.close() == []
    assert maker.another(log).frontier().is_empty
    assert log.verify().legal


def test_close_one(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a")
    log.writer("b", owner="b").advance(4)
    assert [s.stream for s in log.close("a")] == ["a"]
    assert log.close("a") == []
    assert log.frontier() == Antichain.of(4)
    with pytest.raises(StreamMissingError):
        log.close("z")


# Compare and append -------------------------------------------------------------------------------


def test_compare_and_append_has_one_winner(maker: LogMaker) -> None:
    log = maker.create()
    first = log.writer(owner="me")
    second = maker.another(log).writer(owner="me")
    assert first.compare_and_append(rows((0, 1), (2, 2)), expected=0, upper=3).state.frontier == Antichain.of(3)
    before = frozen(log)
    with pytest.raises(UpperMismatchError, match=r"expected upper \[0\], found \[3\]") as caught:
        second.compare_and_append(rows((0, 9)), expected=0, upper=3)
    assert (caught.value.expected, caught.value.current) == ([0], [3])
    assert frozen(log) == before
    assert second.compare_and_append(rows((3, 3)), expected=[3], upper="[7]").committed
    log.refresh()
    assert log.messages()["v"].to_pylist() == [1, 2, 3]


def test_compare_and_append_checks_its_bounds(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.advance(2)
    before = frozen(log)
    with pytest.raises(NotBeyondError, match=r"time=5 in row=1, beyond upper=\[5\]"):
        writer.compare_and_append(rows((4, 1), (5, 1)), expected=2, upper=5)
    with pytest.raises(NotBeyondError, match="only moves forward"):
        writer.compare_and_append(rows(), expected=2, upper=1)
    with pytest.raises(UnheldCapabilityError):
        writer.compare_and_append(rows((1, 1)), expected=2, upper=5)
    assert frozen(log) == before


def test_compare_and_append_can_complete(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.compare_and_append(rows((4, 1)), expected=0, upper=[])
    assert log.frontier().is_empty
    with pytest.raises(ClosedError):
        writer.compare_and_append(rows(), expected=[], upper=[])


# Reading ------------------------------------------------------------------------------------------


def test_messages_between_frontiers(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.append(rows((5, 1), (0, 2), (9, 3)))
    writer.append(rows((5, 4), (2, 5)))
    assert log.messages(lower=2, upper=9)["v"].to_pylist() == [5, 1, 4]
    assert log.messages(lower=[])["v"].to_pylist() == []
    assert log.messages(upper=[]).num_rows == 5
    assert log.messages(columns=["v"]).schema.names == ["v"]
    assert log.messages(stream="nobody").num_rows == 0
    with pytest.raises(SchemaMismatchError, match="no column 'w'"):
        log.messages(columns=["w"])


def test_events_come_in_the_order_of_commits(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    a, b = log.writer("a", owner="a"), log.writer("b", owner="b")
    a.append(rows((7, 1)), advance_to=2)
    b.append(rows((1, 2), (0, 3)))
    a.append(rows((2, 4)), advance_to=3)
    log.compact()
    seen = [(s.stream, s.seq, m["v"].to_pylist(), s.frontier.to_json()) for s, m in log.events()]
    assert [e for e in seen if e[0] != "#open"] == [
        ("a", 0, [], [0]),
        ("a", 1, [1], [2]),
        ("a", 2, [4], [3]),
        ("b", 0, [], [0]),
        ("b", 1, [3, 2], [0]),
    ]
    assert len(list(log.events("b"))) == 2
    with pytest.raises(StreamMissingError):
        list(log.events("z"))


def test_dead_letters_are_kept_apart(maker: LogMaker) -> None:
    log = maker.create()
    log.open_stream("main", owner="query")
    table = rows((1, 7))
    times = log.domain.from_columns(table)
    whole = message_table(log.format, table.select(["v"]), times, "main", 1)
    whole = whole.append_column("_reason", pa.array(["late"]))
    files = write_data_files(log.storage, whole, times, stream="main", seq=1, domain=log.domain, event="dead")
    log.commit(CommitRequest("main", "query", np.array([[0], [5]]), np.array([-1, 1]), batch=0, files=files))
    # Again, behind the frontier: dead letters are exempt from the protocol.
    whole = message_table(log.format, table.select(["v"]), times, "main", 2).append_column(
        "_reason", pa.array(["late"])
    )
    more = write_data_files(log.storage, whole, times, stream="main", seq=2, domain=log.domain, event="dead")
    log.commit(CommitRequest("main", "query", *NOTHING, batch=1, files=more))
    assert log.messages().num_rows == 0
    assert log.dead().select(["_time", "v", "_reason"]).to_pylist() == [{"_time": 1, "v": 7, "_reason": "late"}] * 2
    log.compact()
    assert log.dead().num_rows == 2
    report = log.verify()
    assert (report.messages, report.dead_letters, report.legal) == (0, 2, True)


def test_history_tells_frontiers(maker: LogMaker) -> None:
    now = clock()
    log = maker.create(clock=now)
    now.advance(1)
    writer = log.writer(owner="me")
    for i in range(1, 5):
        now.advance(1)
        writer.advance(i * 10)
    assert [log.frontier_at(seq=i).to_json() for i in range(6)] == [[0], [10], [20], [30], [40], [40]]
    micro = 1_000_000
    assert [log.frontier_at(timestamp=s * micro).to_json() for s in (-1, 0, 1, 2, 4, 99)] == [
        [0],
        [0],
        [0],
        [10],
        [30],
        [40],
    ]
    assert log.frontier_at(seq=2, stream="main") == Antichain.of(20)
    with pytest.raises(InvalidUsageError, match="give one of them"):
        log.frontier_at()
    with pytest.raises(StreamMissingError):
        log.frontier_at(seq=0, stream="z")


def test_history_counts_in_a_joiner_whose_clock_is_ahead(maker: LogMaker) -> None:
    now = clock()
    log = maker.create(clock=now)
    writer = log.writer("a", owner="a")
    writer.advance(5)
    now.set(100)
    log.open_stream("b", owner="b")
    now.set(2)
    writer.advance(9)
    # At second 3 the donor was past 5; the joiner had its copy before, whatever its clock said.
    assert log.frontier_at(timestamp=3_000_000) == Antichain.of(5)


# Collections --------------------------------------------------------------------------------------


def test_snapshot_sums_diffs(maker: LogMaker) -> None:
    log = maker.create(pa.schema([("k", pa.string()), ("tags", pa.list_(pa.int64()))]), kind="collection")
    writer = log.writer(owner="me")
    columns = ("_time", "k", "tags", "_diff")

    def updates(*found: tuple[Any, ...]) -> pa.Table:
        return pa.table({n: [row[i] for row in found] for i, n in enumerate(columns)}).cast(
            pa.schema(
                [("_time", pa.int64()), ("k", pa.string()), ("tags", pa.list_(pa.int64())), ("_diff", pa.int64())]
            )
        )

    writer.append(updates((0, "a", [1], 2), (1, "b", None, 1), (1, None, [], 1)), advance_to=2)
    writer.append(updates((2, "a", [1], -2), (3, "b", None, 4)), advance_to=4)

    def contents(time: int) -> list[tuple[Any, ...]]:
        return sorted(((r["k"], r["tags"], r["_diff"]) for r in log.snapshot(time).to_pylist()), key=repr)

    assert contents(0) == [("a", [1], 2)]
    assert contents(1) == sorted([("a", [1], 2), ("b", None, 1), (None, [], 1)], key=repr)
    assert contents(3) == sorted([("b", None, 5), (None, [], 1)], key=repr)
    log.compact()
    assert contents(3) == sorted([("b", None, 5), (None, [], 1)], key=repr)
    with pytest.raises(NotBeyondError, match="still open"):
        log.snapshot(4)
    writer.append(updates((4, "b", None, -9)), advance_to=5)
    with pytest.raises(NegativeMultiplicityError, match="diff=-4"):
        log.snapshot(4)
    assert log.verify().legal


def test_snapshot_of_a_stream_is_refused(maker: LogMaker) -> None:
    with pytest.raises(InvalidUsageError, match="kind='stream'"):
        maker.create().snapshot(0)


# Compaction ---------------------------------------------------------------------------------------


def facts(log: ReadableLog) -> tuple[Any, ...]:
    report = log.verify()
    assert report.legal, report.problems
    return (
        report.digest,
        report.commits,
        log.messages().to_pylist(),
        log.counts(),
        [(s.stream, s.seq, s.counts, s.before, s.batch, m.num_rows) for s, m in log.events()],
        [log.frontier_at(seq=i) for i in range(5)],
    )


def test_compaction_changes_no_answer(maker: LogMaker) -> None:
    log = maker.create(streams=2, merge_every=None)
    writers = [log.writer(name, owner=name) for name in ("a", "b")]
    for i in range(1, 8):
        for writer in writers:
            writer.append(rows((i + 3, i), (i - 1, i)), advance_to=i)
    before = facts(log)
    report = log.compact()
    assert report.files_after < report.files_before
    assert facts(log) == before
    assert facts(maker.another(log)) == before
    again = log.compact()
    assert again.files_before == again.files_after == report.files_after
    assert facts(log) == before


def test_compaction_loses_to_another_cleanly(maker: LogMaker) -> None:
    log = maker.create(merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 6):
        writer.append(rows((i, i)), advance_to=i)
    before = facts(log)
    other = maker.another(log)
    # Both plan from the same snapshot.
    index = other.files()
    from spark_timely.log.compaction import _merge_data

    log.compact()
    assert not _merge_data(other, index, "message", 1 << 20)
    assert facts(log) == before


def test_small_files_are_merged_by_the_way(maker: LogMaker) -> None:
    log = maker.create(merge_every=5)
    writer = log.writer(owner="me")
    for i in range(1, 42):
        writer.append(rows((i, i)), advance_to=i)
    assert len(log.files()) < 12
    assert len(log.progress_files()) < 12
    other = maker.another(log)
    state = other.stream("main")
    assert state is not None
    assert (state.seq, state.frontier) == (41, Antichain.of(41))
    report = other.verify()
    assert report.legal, report.problems
    assert (report.messages, report.commits) == (41, 44)


def test_stale_handle_goes_on_after_compaction(maker: LogMaker) -> None:
    log = maker.create(merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 6):
        writer.append(rows((i, i)), advance_to=i)
    maker.another(log).compact()
    writer.append(rows((6, 6)), advance_to=7)
    assert log.frontier() == Antichain.of(7)
    assert log.verify().messages == 6


# Rows ---------------------------------------------------------------------------------------------


def test_empty_and_single_row_appends(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    assert writer.append(rows()).state.rows == 0
    assert writer.append(rows((3, 1))).state.rows == 1
    assert writer.append(rows((3, 1)).to_batches()[0], advance_to=9).state.rows == 1
    assert log.messages().num_rows == 2
    assert log.verify().legal


def test_times_may_come_from_payload_columns(maker: LogMaker) -> None:
    log = maker.create(pa.schema([("hour", pa.int64()), ("v", pa.int64())]))
    writer = log.writer(owner="me")
    writer.append(pa.table({"v": [1, 2], "hour": [4, 3]}), time="hour", advance_to=5)
    assert log.messages(columns=["_time", "hour", "v"]).to_pylist() == [
        {"_time": 3, "hour": 3, "v": 2},
        {"_time": 4, "hour": 4, "v": 1},
    ]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (pa.table({"v": [1]}), "no time column '_time'"),
        (pa.table({"_time": [1], "w": [1]}), "column 'v' missing"),
        (pa.table({"_time": [1], "v": [1], "w": [1]}), "unknown column 'w'"),
        (pa.table({"_time": [1], "v": ["x"]}), "column 'v' of type=string"),
        (pa.table({"_time": [1], "v": [1.5]}), "column 'v' of type=double"),
        (pa.table({"_time": pa.array([1, None], pa.int64()), "v": [1, 1]}), "null in row=1"),
        (pa.table({"_time": [1.5], "v": [1]}), "_time"),
        (pa.table({"_time": ["x"], "v": [1]}), "_time"),
        (pa.table({"_time": pa.array([1 << 63], pa.uint64()), "v": [1]}), "row=0"),
        (pa.table([[1], [1], [2]], names=["_time", "v", "v"]), "twice"),
    ],
)
def test_rows_that_do_not_fit_are_refused(maker: LogMaker, table: pa.Table, found: str) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    before = frozen(log)
    with pytest.raises(InvalidUsageError, match=found):
        writer.append(table)
    assert frozen(log) == before


def test_null_in_a_column_declared_not_null_is_refused(maker: LogMaker) -> None:
    log = maker.create(pa.schema([pa.field("v", pa.int64(), nullable=False)]))
    writer = log.writer(owner="me")
    with pytest.raises(SchemaMismatchError, match="null in column 'v', row=1"):
        writer.append(pa.table({"_time": [1, 1], "v": pa.array([1, None], pa.int64())}))
    assert log.nullable == {"v": False}
    assert maker.another(log).schema.field("v").nullable is False


def test_payload_of_many_types_comes_back(maker: LogMaker) -> None:
    import datetime as dt
    from decimal import Decimal

    utc = dt.UTC
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "ünïcödé": (pa.string(), ["ä", None, "𝄞"]),
        "i8": (pa.int8(), [-128, None, 127]),
        "f": (pa.float64(), [float("inf"), None, -0.0]),
        "b": (pa.bool_(), [True, None, False]),
        "bin": (pa.binary(), [b"\x00", None, b""]),
        "dec": (pa.decimal128(38, 10), [Decimal("1.5"), None, Decimal("-1e-10")]),
        "d": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "ts": (
            pa.timestamp("us", "UTC"),
            [dt.datetime(1700, 1, 1, tzinfo=utc), None, dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=utc)],
        ),
        "ntz": (pa.timestamp("us"), [dt.datetime(2020, 1, 1), None, dt.datetime(1900, 1, 1)]),
        "l": (pa.list_(pa.struct([("x", pa.int32())])), [[{"x": 1}, None], None, []]),
        "m": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], None, []]),
        "s": (pa.struct([("x", pa.struct([("y", pa.string())]))]), [{"x": {"y": "z"}}, None, {"x": None}]),
    }
    schema = pa.schema([(name, type_) for name, (type_, _) in values.items()])
    log = maker.create(schema)
    table = pa.table({name: pa.array(found, type_) for name, (type_, found) in values.items()})
    writer = log.writer(owner="me")
    writer.append(table.append_column("_time", pa.array([1, 2, 3])), advance_to=9)
    writer.append(table.append_column("_time", pa.array([9, 9, 9])), advance_to=10)
    digest = log.verify().digest
    log.compact()
    back = maker.another(log).messages(upper=9, columns=list(values))
    assert back.to_pylist() == table.to_pylist()
    assert log.verify().digest == digest


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("long", [-(1 << 63), 0, (1 << 63) - 1]),
        ("int", [-(1 << 31), 0, (1 << 31) - 1]),
        ("short", [-(1 << 15), 0, (1 << 15) - 1]),
        ("date", ["1700-01-01", "2013-05-06", "9999-12-31"]),
        ("timestamp", ["1700-01-01T00:00:00Z", "2013-05-06T07:08:09.123456Z", "9999-12-31T23:59:59.999999Z"]),
    ],
)
def test_times_of_every_type_to_the_bounds(maker: LogMaker, kind: str, values: list[Any]) -> None:
    log = maker.create(times=(kind,), minimum=None)
    domain = log.domain
    numbers = np.array([[domain.types[0].parse(v)] for v in values])
    assert log.frontier() == Antichain(numbers[:1])
    writer = log.writer(owner="me")
    table = pa.table({**domain.to_columns(numbers), "v": [0, 1, 2]})
    writer.append(table, advance_to=values[1])
    writer.append(table.slice(1), advance_to=values[2])
    other = maker.another(log)
    assert other.frontier() == Antichain(numbers[2:])
    index = other.files()
    assert index.known.all()
    assert (index.min_times.min(), index.max_times.max()) == (numbers[0, 0], numbers[2, 0])
    assert other.messages(lower=values[1], upper=values[2])["v"].to_pylist() == [1, 1]
    digest = other.verify().digest
    other.compact()
    assert other.verify().digest == digest
    assert other.frontier_at(seq=1) == Antichain(numbers[1:2])
