"""Every capture log refuses commits of another plan by the very state that it commits from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_timely.errors import PlanMismatchError, UpperMismatchError
from spark_timely.log import Log
from spark_timely.log.machine.state import CommitRequest
from spark_timely.protocol.note import Note, OutputNote
from tests.conformance.logs import LogMaker


def step(log: Log, plans: tuple[str, ...], *, names: str | None = None, seq: int | None = None) -> Any:
    """Commit what moves nothing, with a note that names a plan."""
    note = Note(output=OutputNote(plan=names, outline=None if names is None else f"filter {names}"))
    nothing = np.empty((0, 1), np.int64), np.empty(0, np.int64)
    return log.core.commit(CommitRequest("main", "flow", *nothing, expected_seq=seq, note=note, plans=plans))


def test_commit_of_another_plan_is_refused_at_any_seq(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow")
    behind = maker.another(log)
    assert step(log, ("1:a",), names="1:a").state.seq == 1
    version = log.core.version
    for other in (log, behind):  # one has not looked since
        for seq in (None, 0, 1):
            with pytest.raises(PlanMismatchError, match="found plan='1:a' of 'flow', expected plan='1:b'") as caught:
                step(other, ("1:b",), names="1:b", seq=seq)
            assert "made by ['filter 1:a'], now there is ['filter 1:b']" in caught.value.message
    log.refresh()
    assert log.core.version == version
    with pytest.raises(UpperMismatchError):
        step(log, ("1:a",), names="1:a", seq=0)


def test_plan_that_names_the_one_before_takes_its_place_once(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow")
    step(log, ("1:a",), names="1:a")
    step(log, ("1:b", "1:a"), names="1:b")
    with pytest.raises(PlanMismatchError, match="found plan='1:b'"):
        step(log, ("1:a",), names="1:a")
    with pytest.raises(PlanMismatchError, match="expected plan='1:c' or replaces='1:a'"):
        step(log, ("1:c", "1:a"), names="1:c")
    step(log, ("1:b", "1:a"), names="1:b")
    # What asks for none, such as a commit by hand, goes through and keeps it.
    log.writer("main", owner="flow").advance(3)
    state = log.core.stream("main")
    assert state is not None
    assert state.note.output is not None
    assert (state.note.output.plan, state.note.output.outline) == ("1:b", "filter 1:b")


def test_stream_without_a_plan_takes_any(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="flow")
    assert step(log, ("1:a",)).state.seq == 1
    assert step(log, ("1:b",), names="1:b").state.seq == 2
