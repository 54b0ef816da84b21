"""Events of progress tracking, and sinks that raise."""

from __future__ import annotations

import logging

import pytest

from spark_timely.progress.events import (
    ChannelsEvent,
    EventStream,
    OperatesEvent,
    ProgressEvent,
    PushProgressEvent,
    ScheduleEvent,
    time_text,
)
from spark_timely.progress.worker import Worker
from tests.unit.progress.scripted import Region, chain, mapper, sink, source


def test_all_kinds_of_events_come_in_the_order_of_what_happens() -> None:
    events: list[object] = []
    worker = Worker(events=events.append)
    scope = worker.new_dataflow("flow")
    first, last = source(), sink()
    chain(scope, first, last)
    worker.add(scope)
    assert events == [
        OperatesEvent(id=1, addr=(0, 1), name="source"),
        OperatesEvent(id=2, addr=(0, 2), name="sink"),
        ChannelsEvent(id=3, scope_addr=(0,), source=(1, 0), target=(2, 0)),
        OperatesEvent(id=0, addr=(0,), name="flow"),
    ]
    events.clear()
    first.say(internal=[(0, (0,), -1), (0, (1,), 1)], produced=[(0, (0,), 2)])
    worker.step()
    assert events == [
        ScheduleEvent(id=0, start=True),
        ScheduleEvent(id=1, start=True),
        ScheduleEvent(id=1, start=False, activity=True),
        PushProgressEvent(op_id=2),
        ScheduleEvent(id=2, start=True),
        ScheduleEvent(id=2, start=False, activity=False),
        ScheduleEvent(id=0, start=False, activity=False),
    ]
    events.clear()
    worker.step()
    lists = {"messages": [(2, 0, "0", 2)], "internal": [(1, 0, "0", -1), (1, 0, "1", 1)]}
    assert events[1:3] == [
        ProgressEvent(is_send=is_send, source=0, channel=0, seq_no=0, addr=(0,), identifier=0, **lists)  # type: ignore[arg-type]
        for is_send in (True, False)
    ]


def test_events_of_a_nested_scope_name_its_path_and_rounds() -> None:
    events: list[object] = []
    inside = mapper(minimum=(0, 0))
    region = Region(inside, nested=True, worker=Worker(events=events.append))
    region.start()
    region.worker.step()
    inside.say(internal=[(0, (0, 0), -1), (0, (0, 2), 1)])
    for _ in range(2):
        region.worker.step()
    (sent,) = [e for e in events if isinstance(e, ProgressEvent) and e.is_send]
    assert (sent.addr, sent.internal) == ((0, 2), [(1, 0, "(0, 0)", -1), (1, 0, "(0, 2)", 1)])


def test_a_sink_that_raises_is_detached_and_progress_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[object] = []

    def failing(event: object) -> None:
        calls.append(event)
        if len(calls) == 5:
            raise RuntimeError("disk full")

    worker = Worker(events=failing)
    scope = worker.new_dataflow()
    first, last = source(), sink()
    chain(scope, first, last)
    worker.add(scope)
    first.say(internal=[(0, (0,), -1), (0, (7,), 1)])
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            worker.step()
    assert len(calls) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "the sink of progress events raised RuntimeError and was detached: disk full; progress continues without events"
    ]
    assert last.frontier() == [(7,)]
    assert worker.events is not None
    assert not worker.events.attached


def test_what_ends_the_program_is_not_held_back_by_the_stream() -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EventStream(stop).emit(PushProgressEvent(op_id=1))


def test_without_a_sink_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an event was built")

    for module in ("broadcast", "subgraph", "worker"):
        for name in ("PushProgressEvent", "ScheduleEvent", "ProgressEvent", "OperatesEvent", "ChannelsEvent"):
            monkeypatch.setattr(f"spark_timely.progress.{module}.{name}", refuse, raising=False)
    inside = mapper()
    region = Region(inside)
    region.start()
    region.source.say(internal=[(0, (0,), -1)], produced=[(0, (0,), 1)])
    for _ in range(3):
        region.worker.step()


def test_time_text_is_as_in_timelys_log() -> None:
    assert [time_text((3,)), time_text((3, 1)), time_text((1, 2, 3))] == ["3", "(3, 1)", "(1, 2, 3)"]
