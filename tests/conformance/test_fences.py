"""Every capture log refuses commits of a compute instance that was replaced, by the very state that it commits from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_timely.errors import OwnershipError
from spark_timely.log import Log
from spark_timely.log.machine.state import CommitRequest
from spark_timely.protocol.note import Fence, Note, OutputNote
from tests.conformance.logs import LogMaker


def step(log: Log, fence: Fence | None, *, owner: str = "flow", **asked: Any) -> Any:
    """Commit what moves nothing, as the instance of an epoch."""
    note = Note(output=OutputNote(plan="1:a", fence=fence))
    nothing = np.empty((0, 1), np.int64), np.empty(0, np.int64)
    return log.core.commit(CommitRequest("main", owner, *nothing, note=note, plans=("1:a",), fence=fence, **asked))


def fence_of(log: Log) -> Fence | None:
    log.refresh()
    state = log.core.stream("main")
    assert state is not None
    assert state.note.output is not None
    return state.note.output.fence


def test_lower_epoch_is_refused_from_the_commit_of_the_higher_on(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow")
    behind = maker.another(log)
    step(log, Fence("one", 3, "me"))
    step(behind, Fence("one", 3, "me"))
    step(log, Fence("one", 5, "me"))
    version = log.core.version
    found = r"found it written by start 5 \(me\) of instance 'one', this is "
    for late in (log, behind):  # one has not looked since
        for fence, told in (
            (Fence("one", 4, "me"), r"start 4 \(me\) of instance 'one'"),
            (Fence("one", 5, "other"), r"start 5 \(other\) of instance 'one'"),
            (Fence("two", 9, "me"), r"start 9 \(me\) of instance 'two'"),
        ):
            with pytest.raises(OwnershipError, match=found + told) as caught:
                step(late, fence)
            assert caught.value.hint
        with pytest.raises(OwnershipError, match=found + "none"):
            step(late, None)
        with pytest.raises(OwnershipError, match=found + "none"):
            late.writer("main", owner="flow").advance(3)
    log.refresh()
    assert (log.core.version, fence_of(log)) == (version, Fence("one", 5, "me"))
    step(log, Fence("one", 6, "me"))
    assert fence_of(behind) == Fence("one", 6, "me")


def test_stream_without_an_instance_takes_any(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow")
    log.writer("main", owner="flow").advance(1)
    step(log, None)
    assert fence_of(log) is None
    step(log, Fence("one", 0, "me"))
    assert fence_of(log) == Fence("one", 0, "me")


def test_stream_that_is_taken_over_is_no_instances_any_more(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow")
    step(log, Fence("one", 3, "me"))
    step(log, None, owner="other", takeover=True)
    assert fence_of(log) is None
    with pytest.raises(OwnershipError, match="owned by 'other'"):
        step(log, Fence("one", 4, "me"))
    log.writer("main", owner="other").advance(2)


def test_stream_that_an_instance_opens_is_its_from_the_beginning(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow", fence=Fence("one", 3, "me"))
    assert fence_of(log) == Fence("one", 3, "me")
    with pytest.raises(OwnershipError):
        step(log, Fence("one", 2, "me"))
    # That somebody opens it again changes nothing.
    log.core.open_stream("main", owner="flow", fence=Fence("one", 2, "me"))
    step(log, Fence("one", 4, "me"))
