"""Every capture log keeps the rules of the protocol: opening streams, appending to them.

The logs are in memory, in a Delta table, and both over a store that fails.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from spark_timely.errors import (
    ClosedError,
    InvalidUsageError,
    NegativeCountError,
    NotBeyondError,
    OwnershipError,
    StreamMissingError,
    UnheldCapabilityError,
)
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.reader import events_of
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import NOTHING, LogMaker, frozen, rows

# Opening ------------------------------------------------------------------------------------------


def test_log_fresh_waits_for_its_streams(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    assert log.frontier() == Antichain.of(0)
    assert log.core.unclaimed == 2
    assert not log.streams()
    assert log.core.stream("main") is None
    assert log.verify().legal


def test_log_of_two_streams_moves_when_both_have_opened(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").advance(9)
    assert log.frontier() == Antichain.of(0)
    log.writer("b", owner="b").advance(4)
    assert log.frontier() == Antichain.of(4)
    assert log.core.unclaimed == 0


def test_open_again_by_the_owner_changes_nothing(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="me")
    log.writer("main", owner="me").advance(3)
    before = frozen(log)
    assert maker.another(log).core.open_stream("main", owner="me").frontier == Antichain.of(3)
    assert frozen(log) == before


def test_open_by_another_owner_is_refused(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.core.open_stream("main", owner="me")
    before = frozen(log)
    with pytest.raises(OwnershipError, match=r"could not open stream 'main'.*owned by 'me', not by 'you'"):
        maker.another(log).core.open_stream("main", owner="you")
    assert frozen(log) == before


@pytest.mark.parametrize("name", ["", "a-b", "a b", "ä", "#open", "a/b", "../x", "x" * 201, "a.b", None])
def test_open_refuses_names(maker: LogMaker, name: Any) -> None:
    log = maker.create()
    before = frozen(log)
    with pytest.raises(InvalidUsageError, match="A-Z, a-z, 0-9 and _"):
        log.core.open_stream(name, owner="me")
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
    first.core.open_stream("a", owner="a")
    # The second has not seen it: its claim loses, and it joins by a copy instead.
    state = second.core.open_stream("b", owner="b")
    assert state.reason == "copy of a at 0"
    first.refresh()
    assert first.core.unclaimed == 0
    assert first.core.counts().total == 2
    assert first.frontier() == Antichain.of(0)
    assert first.verify().legal


def test_two_openers_of_one_name_have_one_winner(maker: LogMaker) -> None:
    first = maker.create(streams=2)
    second = maker.another(first)
    first.core.open_stream("main", owner="first")
    with pytest.raises(OwnershipError, match="owned by 'first'"):
        second.core.open_stream("main", owner="second")
    first.refresh()
    assert first.core.unclaimed == 1


def test_join_copies_a_capability_at_a_time_that_is_held(maker: LogMaker) -> None:
    log = maker.create()
    log.writer("a", owner="a").advance(5)
    joined = log.core.open_stream("b", owner="b", at=7)
    assert joined.frontier == Antichain.of(7)
    assert log.core.open_stream("c", owner="c", donor="a").frontier == Antichain.of(5)
    assert log.core.open_stream("d", owner="d", donor="b").frontier == Antichain.of(7)
    assert log.core.counts() == StreamCounts.from_arrays([5, 7], [2, 2])
    assert log.verify().legal


def test_join_without_a_donor_is_from_the_stream_that_is_behind(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").advance(7)
    log.writer("b", owner="b").advance(5)
    assert log.core.unclaimed == 0
    joined = log.core.open_stream("c", owner="c")
    assert joined.frontier == Antichain.of(5)
    assert joined.note.opening.source == "b"


def test_join_from_a_donor_leaves_what_is_unclaimed(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").advance(5)
    log.core.open_stream("b", owner="b", donor="a")
    assert log.core.unclaimed == 1


@pytest.mark.parametrize("donor", [None, "a"])
def test_join_at_a_time_that_nobody_holds_is_refused(maker: LogMaker, donor: str | None) -> None:
    log = maker.create()
    log.writer("a", owner="a").advance(5)
    before = frozen(log)
    with pytest.raises(NotBeyondError):
        log.core.open_stream("b", owner="b", at=4, donor=donor)
    assert frozen(log) == before


def test_join_from_a_closed_or_missing_donor_is_refused(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.writer("a", owner="a").close()
    with pytest.raises(ClosedError, match="'a'"):
        log.core.open_stream("b", owner="b", donor="a")
    with pytest.raises(StreamMissingError, match="'z'"):
        log.core.open_stream("b", owner="b", donor="z")


def test_join_of_a_complete_log_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.writer("a", owner="a").close()
    assert log.frontier().is_empty
    with pytest.raises(ClosedError, match="no stream can join a complete one"):
        log.core.open_stream("b", owner="b")


def test_joiner_that_loses_to_its_donor_decides_anew(maker: LogMaker) -> None:
    log = maker.create()
    donor = log.writer("a", owner="a")
    joining = maker.another(log)
    joining.refresh()
    donor.advance(8)
    with pytest.raises(NotBeyondError):
        joining.core.open_stream("b", owner="b", at=3)
    assert joining.core.open_stream("b", owner="b").frontier == Antichain.of(8)
    log.refresh()
    assert log.frontier() == Antichain.of(8)


def test_donor_that_loses_to_a_joiner_goes_on_undisturbed(maker: LogMaker) -> None:
    log = maker.create()
    donor = log.writer("a", owner="a")
    donor.advance(2)
    seq = donor.state.seq
    maker.another(log).core.open_stream("b", owner="b")
    # The donor's handle is stale; its batch was decided at this seq, and still counts.
    outcome = log.core.commit(
        CommitRequest("a", "a", np.array([[2], [8]]), np.array([-1, 1]), expected_seq=seq, batch=0)
    )
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
        log.core.commit(CommitRequest("main", "me", *NOTHING, message_minima=np.array([[4]]), n_rows=1))
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


def test_last_capability_dropped_before_its_message_is_refused(maker: LogMaker) -> None:
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
    for state, messages in events_of(log.core, "main"):
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
    assert other.core.counts() == StreamCounts.from_arrays([4, 9], [1, 2])
    # Every time that is held is listed in the newest batch, also what did not change.
    state = other.core.stream("main")
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


def test_events_come_in_the_order_of_commits(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    a, b = log.writer("a", owner="a"), log.writer("b", owner="b")
    a.append(rows((7, 1)), advance_to=2)
    b.append(rows((1, 2), (0, 3)))
    a.append(rows((2, 4)), advance_to=3)
    log.compact()
    seen = [(s.stream, s.seq, m["v"].to_pylist(), s.frontier.to_json()) for s, m in events_of(log.core)]
    assert [e for e in seen if e[0] != "#open"] == [
        ("a", 0, [], [0]),
        ("a", 1, [1], [2]),
        ("a", 2, [4], [3]),
        ("b", 0, [], [0]),
        ("b", 1, [3, 2], [0]),
    ]
    assert len(list(events_of(log.core, "b"))) == 2
    with pytest.raises(StreamMissingError):
        list(events_of(log.core, "z"))
