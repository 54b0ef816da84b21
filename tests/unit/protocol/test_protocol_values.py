"""Counts and events as values: equality, pickling, refusals, texts of errors."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.errors import InvalidShapeError, NegativeCountError, UnheldCapabilityError
from spark_timely.protocol.event import Messages, Progress, StreamEvents
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress, verify_events
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.oracles.folding import fold_events

DATES = TimeDomain(("date",), ("2013-01-01",))  # type: ignore[arg-type]


def test_counts_are_values() -> None:
    counts = StreamCounts.from_arrays([[2, 0], [0, 1], [2, 0], [5, 5]], [1, 1, 2, 0])
    assert counts.to_json() == [[[0, 1], 1], [[2, 0], 3]]
    assert counts.frontier == Antichain.of((0, 1), (2, 0))
    assert (counts.total, counts.closed, counts.arity) == (4, False, 2)
    assert pickle.loads(pickle.dumps(counts)) == counts
    assert hash(pickle.loads(pickle.dumps(counts))) == hash(counts)
    assert counts != StreamCounts.initial((0, 1))
    assert counts != "counts"
    assert StreamCounts.empty(2).frontier == Antichain.empty(2)
    with pytest.raises(ValueError, match="read-only"):
        counts.counts[0] = 7
    with pytest.raises(NegativeCountError, match="found count=-1"):
        StreamCounts.from_arrays([5], [-1])


def test_checks_leave_their_arguments_alone() -> None:
    counts = StreamCounts.initial(0)
    times, deltas = np.array([[5], [0]]), np.array([1, -1])
    after = check_progress(counts, times, deltas)
    assert counts == StreamCounts.initial(0)
    assert times.tolist() == [[5], [0]]
    assert not np.shares_memory(after.times, times)
    assert check_progress(counts, [], []) == counts


def test_errors_name_stream_seq_and_times_as_people_write_them() -> None:
    counts = StreamCounts.initial(DATES.minimum)
    with pytest.raises(UnheldCapabilityError) as caught:
        check_messages(counts, [15706, 15000], stream="main", seq=7, domain=DATES)
    assert str(caught.value) == (
        "[TIMELY_UNHELD_CAPABILITY] "
        "could not send a message at time='2011-01-26' in stream 'main' at seq=7: found capabilities "
        "held=['2013-01-01'] — hint: use a time at or after a held one: "
        "a dropped capability does not come back"
    )
    with pytest.raises(NegativeCountError) as negative:
        check_progress(counts, [15706], [-2], stream="main", seq=7, domain=DATES)
    assert str(negative.value) == (
        "[TIMELY_NEGATIVE_COUNT] "
        "could not apply progress in stream 'main' at seq=7: found count=-1 after it at time='2013-01-01' "
        "— hint: give up only capabilities that the stream holds, each once"
    )
    with pytest.raises(
        UnheldCapabilityError, match="hint: write to another stream: this one is closed, and nothing can follow"
    ):
        check_messages(StreamCounts.empty(), [1])
    wide = StreamCounts.from_arrays([(i, 20 - i) for i in range(20)], [1] * 20)
    with pytest.raises(UnheldCapabilityError, match="and 12 more"):
        check_messages(wide, [(0, 0)])
    assert len(pickle.loads(pickle.dumps(caught.value)).held) == 1


def test_whole_stream_checker_names_the_earliest_offence() -> None:
    domain = TimeDomain(("long",), (0,))
    events = StreamEvents.from_commits(
        seqs=[0, 4, 9],
        message_times=[1, 1, 7],
        message_seqs=[0, 9, 9],
        progress_times=[0, 5, 5, 3],
        progress_deltas=[-1, 1, -3, 1],
        progress_seqs=[4, 4, 9, 9],
        arity=1,
    )
    with pytest.raises(
        UnheldCapabilityError, match=r"message at time=1 in stream 's' at seq=9: .*held=\[5\]"
    ) as caught:
        verify_events(domain, events, stream="s", seqs=[0, 4, 9])
    assert caught.value.context["row"] == 1


def test_whole_stream_checker_starts_from_given_counts() -> None:
    domain = TimeDomain(("long",), (0,))
    close = [Progress(np.array([[7]]), np.array([-2]))]
    assert verify_events(domain, close, start=StreamCounts.from_arrays([7], [2])).closed
    with pytest.raises(NegativeCountError, match="at seq=0: found count=-2"):
        verify_events(domain, close)


def test_whole_stream_checker_in_pieces_judges_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = TimeDomain(("long", "long"), (0, 0))
    rng = np.random.default_rng(4)
    events = []
    for i in range(200):
        events.append(Messages(np.array([[i, i]]) + rng.integers(0, 3, (5, 2))))
        events.append(Progress(np.array([[i, i], [i + 1, i + 1]]), np.array([-1, 1])))
    whole = verify_events(domain, events)
    monkeypatch.setattr("spark_timely.protocol.rules._PAIRS", 3)
    assert verify_events(domain, events) == whole
    events.append(Messages(np.array([[500, 199]])))
    with pytest.raises(UnheldCapabilityError, match="at seq=200"):
        verify_events(domain, events)


def test_events_in_columns_refuse_what_does_not_fit() -> None:
    one, none = np.array([[1]]), np.empty((0, 1), dtype=np.int64)
    zero, empty = np.array([0]), np.empty(0, dtype=np.int64)
    for columns in (
        (one, empty, none, empty, empty, 1),
        (one, np.array([2]), none, empty, empty, 1),
        (one, np.array([-1]), none, empty, empty, 1),
        (none, empty, one, zero, np.array([1]), 1),
        (none, empty, np.array([[1], [2]]), np.array([1, 1]), np.array([1, 0]), 2),
        (np.array([[1, 2]]), zero, one, zero, zero, 1),
    ):
        with pytest.raises(InvalidShapeError, match="could not read a stream's events"):
            StreamEvents(*columns)
    with pytest.raises(InvalidShapeError, match="found seq=3, which is no commit"):
        StreamEvents.from_commits([1, 2], [5], [3], [], [], [], 1)


def test_messages_carry_rows() -> None:
    table = pa.table({"v": [1]})
    assert Messages(np.array([[3]]), table).rows is table


def test_fold_refuses_orders_that_do_not_fit() -> None:
    stream = StreamEvents.from_events([Progress(np.array([[0]]), np.array([-1]))], arity=1)
    with pytest.raises(InvalidShapeError, match=r"takes \[2, 0\] batches of \[1, 1\]"):
        fold_events([stream, stream], [0, 0], minimum=(0,))
    with pytest.raises(InvalidShapeError, match="found none"):
        fold_events([], minimum=(0,))
