"""Every capture log commits once: unclear outcomes, repeated micro-batches, closing, compare and append.

The logs are in memory, in a Delta table, and both over a store that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_timely.errors import (
    ClosedError,
    LogFormatError,
    LogMissingError,
    NotBeyondError,
    OwnershipError,
    RolledBackError,
    StorageError,
    StreamMissingError,
    TimelyInternalError,
    UnheldCapabilityError,
    UpperMismatchError,
)
from spark_timely.log import Log
from spark_timely.log.machine.decide import LostRaceError
from spark_timely.log.machine.state import CommitRequest
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import NOTHING, LogMaker, batch, frozen, rows, stored, written

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


def blinded(log: Log, error: Exception, *, happens: bool = True) -> Callable[[], None]:
    """Let each look at the log fail once a commit was tried; return what gives back sight."""
    store, transact, refresh = log.core.store, log.core.store.transact, log.core.store.refresh

    def blind(**_: Any) -> bool:
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
def test_commit_followed_by_an_error_is_unclear_and_keeps_files(
    sound: LogMaker, error: Exception, happens: bool
) -> None:
    log = sound.create()
    log.core.open_stream("main", owner="query")
    sight = blinded(log, error, happens=happens)
    files = written(log, [(3, 1)], 1)
    request = CommitRequest("main", "query", *NOTHING, batch=0, files=files)
    with pytest.raises(StorageError) as raised:
        log.core.commit(request)
    assert not raised.value.determinate
    assert raised.value.__cause__ is error
    sight()
    assert files[0].path in stored(log)
    # To repeat the commit is what settles it.
    again = log.core.commit(request)
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
        log.core.open_stream("main", owner="me")
    sight()
    assert log.core.open_stream("main", owner="me").seq == 0


def test_refusal_before_any_try_keeps_its_type(sound: LogMaker) -> None:
    log = sound.create()
    writer = log.writer(owner="me")
    before = frozen(log)
    log.core.store.refresh = lambda **_: (_ for _ in ()).throw(_BLIND[0])  # type: ignore[method-assign]
    with pytest.raises(LogFormatError):
        log.core.commit(CommitRequest("main", "me", *NOTHING))
    del log.core.store.refresh  # type: ignore[misc]
    assert frozen(log) == before
    writer.append(rows((1, 1)))


def test_unclear_commit_that_another_overtook_has_its_own_error(sound: LogMaker) -> None:
    log = sound.create()
    writer, other = log.writer(owner="me"), sound.another(log).writer(owner="me")
    transact = log.core.store.transact

    def unclear(*args: Any, **more: Any) -> None:
        log.core.store.transact = transact  # type: ignore[method-assign]
        other.append(rows((1, 1)), advance_to=2)
        raise StorageError("could not commit: found no answer")

    log.core.store.transact = unclear  # type: ignore[method-assign]
    with pytest.raises(UpperMismatchError):
        writer.compare_and_append(rows((1, 2)), expected=0, upper=2)
    assert log.messages()["v"].to_pylist() == [1]
    assert len([name for name in stored(log) if "=message/" in name]) == 1


def test_files_of_a_refused_append_stay_where_the_log_knows_them(sound: LogMaker) -> None:
    log = sound.create()
    writer, commit = log.writer(owner="me"), log.core.commit

    def lies(request: CommitRequest) -> Any:
        commit(request)
        raise UpperMismatchError("could not append: found another first", expected=0, current=1)

    log.core.commit = lies  # type: ignore[method-assign]
    with pytest.raises(UpperMismatchError):
        writer.append(rows((3, 7)))
    assert log.messages()["v"].to_pylist() == [7]


# Micro-batches ------------------------------------------------------------------------------------


def test_repeated_batch_is_done_already(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    held = StreamCounts.initial(0)
    assert batch(log, 0, [(0, 1), (3, 2)], 3, held=held).committed
    before = log.core.version, log.core.counts()
    again = batch(maker.another(log), 0, [(0, 1), (3, 2)], 3, held=held, expected_seq=0)
    assert again.duplicate
    assert again.state.seq == 1
    assert again.state.before == held
    log.refresh()
    assert (log.core.version, log.core.counts()) == before


def test_repeated_batch_with_other_rows_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    batch(log, 0, [(0, 1)], 3)
    with pytest.raises(RolledBackError, match="of this number in it with other rows"):
        batch(log, 0, [(0, 1), (0, 2)], None)
    with pytest.raises(RolledBackError, match="of this number in it with other rows"):
        batch(log, 0, [(1, 1)], None)


def test_older_batch_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    for number in range(3):
        batch(log, number, [(number, 1)], number + 1)
    before = log.core.version
    with pytest.raises(RolledBackError, match=r"micro-batch 1 \(step 0\).*found micro-batch 2 \(step 0\)"):
        batch(log, 1, [(1, 1)], None)
    assert log.core.version == before


def test_all_steps_of_a_repeated_batch_are_done_already(maker: LogMaker) -> None:
    log = maker.create(merge_every=2)
    log.core.open_stream("main", owner="query")
    for step in range(3):
        assert batch(log, 7, [(step, step)], step + 1, step=step).committed
    for step in range(3):
        assert batch(log, 7, [(step, step)], None, step=step).duplicate
    with pytest.raises(RolledBackError):
        batch(log, 7, [(0, 0), (0, 0)], None, step=0)
    recorded = log.core.recorded("main", 7, 1)
    assert recorded is not None
    assert (recorded.seq, recorded.before.frontier) == (2, Antichain.of(1))
    assert log.core.recorded("main", 7, 5) is None
    assert log.core.recorded("main", 6) is None


def test_advance_by_hand_keeps_the_last_batch_recognisable(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    batch(log, 4, [(1, 1)], 2)
    state = log.advance("main", 6)
    assert (state.batch, state.step, state.owner, state.n_rows) == (4, 0, "query", None)
    assert log.frontier() == Antichain.of(6)
    other = maker.another(log)
    recorded = other.core.recorded("main", 4)
    assert recorded is not None
    assert (recorded.before.frontier, recorded.rows) == (Antichain.of(0), 1)
    assert batch(other, 4, [(1, 1)], None).duplicate
    assert batch(other, 5, [(6, 1)], 7).committed
    with pytest.raises(NotBeyondError, match=r"found it at \[7\]"):
        other.advance("main", 5)
    assert other.verify().legal


def test_rows_judged_at_an_older_seq_are_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    batch(log, 0, [(0, 1)], 1)
    log.advance("main", 2)
    with pytest.raises(UpperMismatchError, match=r"at seq=2, the rows were judged at seq=1") as caught:
        batch(log, 1, [(1, 1)], None, expected_seq=1)
    assert (caught.value.expected, caught.value.current) == (1, 2)


def test_files_written_for_another_commit_are_refused(maker: LogMaker) -> None:
    log = maker.create(streams=2)
    log.core.open_stream("main", owner="query")
    log.core.open_stream("b", owner="query")
    late = written(log, [(0, 1)], 1)
    batch(log, 0, [], None)
    with pytest.raises(UpperMismatchError, match="with rows of _seq=1"):
        log.core.commit(CommitRequest("main", "query", *NOTHING, batch=1, files=late))
    with pytest.raises(UpperMismatchError, match="with rows of _stream='main'"):
        log.core.commit(CommitRequest("b", "query", *NOTHING, batch=1, files=late))
    assert log.verify().legal


def test_commit_by_another_query_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="other")
    with pytest.raises(OwnershipError, match="owned by 'other', not by 'query'"):
        batch(log, 0, [], None)
    with pytest.raises(StreamMissingError, match=r"stream 'b'.*found streams=\['main'\]"):
        log.core.commit(CommitRequest("b", "other", *NOTHING))


def test_empty_batch_is_recorded(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    assert batch(log, 0, [], None).state.seq == 1
    assert batch(log, 0, [], None).state.seq == 1
    assert log.verify().legal


def test_second_try_of_a_request_that_happened_owns_its_files(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    request = CommitRequest("main", "query", *NOTHING, batch=0, files=written(log, [(0, 1)], 1))
    assert log.core.commit(request).committed
    # A caller that was told of a failure tries the very same files: they must not be deleted.
    assert log.core.commit(request).committed
    other = CommitRequest("main", "query", *NOTHING, batch=0, files=written(log, [(0, 1)], 1))
    assert log.core.commit(other).duplicate
    assert log.core.live_paths([f.path for f in (*request.files, *other.files)]) == {request.files[0].path}


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
    log.core.open_stream("main", owner="query")
    request = CommitRequest("main", "query", np.array([[0]]), np.array([-1]), batch=0)
    assert log.core.commit(request).state.closed
    assert log.core.commit(request).duplicate


def test_close_all_completes_the_log(maker: LogMaker) -> None:
    log = maker.create(streams=3)
    log.core.open_stream("a", owner="a")
    log.writer("b", owner="b").advance(4)
    closed = log.close()
    assert [s.stream for s in closed] == ["a", "b"]
    assert log.frontier().is_empty
    assert log.core.unclaimed == 0
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
