"""Every capture log knows a commit by more than its number, whatever became of its files."""

from __future__ import annotations

import pyarrow as pa

from spark_timely.log import Log
from spark_timely.log.machine.state import OPEN_STREAM, CommitRequest
from spark_timely.log.writer import downgrade_to
from spark_timely.protocol.note import Note, OutputNote
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import LogMaker


def rows(*times: int) -> pa.Table:
    return pa.table({"_time": list(times), "v": list(times)})


def identities(log: Log, stream: str, newest: int) -> list[str]:
    found = [log.core.commits_of({stream: seq}).get(stream) for seq in range(newest + 1)]
    assert [state and (state.stream, state.seq) for state in found] == [(stream, seq) for seq in range(newest + 1)]
    return [state.identity for state in found if state is not None]


def test_commit_is_the_same_before_and_after_its_file_was_merged(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    made = [writer.state.identity]
    for number in range(6):
        batch = number if number % 2 else None
        made.append(writer.append(rows(number, number + 1), advance_to=number, batch=batch).state.identity)
    made.append(log.advance("main", [9]).identity)
    made.append(log.close("main")[0].identity)
    assert len(set(made)) == len(made)
    opening = identities(log, OPEN_STREAM, 1)
    assert identities(maker.another(log), "main", 8) == made
    log.compact()
    assert len(log.core.progress_files()) < 9
    for each in (log, maker.another(log)):
        assert identities(each, "main", 8) == made
        assert identities(each, OPEN_STREAM, 1) == opening
        assert [each.core.commits_of(none) for none in ({"main": 9}, {"main": -1}, {"other": 0})] == [{}] * 3
    assert {name: state.identity for name, state in log.core.ends().items()} == {
        "main": made[-1],
        OPEN_STREAM: opening[-1],
    }


def test_commits_of_several_streams_are_those_of_each(maker: LogMaker) -> None:
    log = maker.create(streams=3)
    for stream in ("a", "b", "c"):
        for number in range(3):
            log.writer(stream, owner="me").append(rows(number), advance_to=number)
    wanted = {"a": 1, "b": 2, OPEN_STREAM: 2, "c": 3, "none": 0}
    each = {stream: log.core.commits_of({stream: seq}).get(stream) for stream, seq in wanted.items()}
    assert each.pop("none") is None
    assert {stream: state and state.seq for stream, state in each.items()} == {"a": 1, "b": 2, OPEN_STREAM: 2, "c": 3}
    assert log.core.commits_of(wanted) == each
    assert log.core.commits_of({"a": 4, "b": -1}) == {}
    log.compact()
    assert log.core.commits_of(wanted) == each
    assert maker.another(log).core.commits_of(wanted) == each


def test_commits_of_two_logs_differ_though_the_same_was_done(maker: LogMaker) -> None:
    logs = [maker.create(), maker.create()]
    for log in logs:
        log.writer(owner="me").append(rows(1, 2), advance_to=3)
    first, second = (identities(log, "main", 1) for log in logs)
    assert not set(first) & set(second)


def test_rows_of_others_in_an_output_are_counted(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="flow")
    writer.append(rows(1, 2, 3))

    def said(**facts: object) -> None:
        state = writer.state
        times, deltas = downgrade_to(state.counts, Antichain.of(0))
        note = Note(output=OutputNote(plan="1:a", **facts))  # type: ignore[arg-type]
        log.core.commit(CommitRequest("main", "flow", times, deltas, note=note))

    def others() -> int:
        state = maker.another(log).core.stream("main")
        assert state is not None
        assert state.note.output is not None
        return state.note.output.others

    said()
    writer.append(rows(1))
    assert others() == 0, "before its first step nothing counts"
    said(upper=((0,),))
    writer.append(rows(1, 2))
    writer.advance(0)
    writer.append(rows(3), batch=7)
    assert others() == 3
    said(upper=((0,),))
    assert others() == 0
