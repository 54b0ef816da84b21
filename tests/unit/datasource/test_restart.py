"""A query that is started again, with the same options, fewer or others: its checkpoint says what it reads."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidOptionError, StreamMissingError
from spark_timely.log import MemoryLog
from spark_timely.testing.driver import Checkpoint
from tests.unit.datasource.support import drive
from tests.unit.datasource.test_planner import make_log, put, values


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("content", ["messages", "events"])
@pytest.mark.parametrize("delivery", ["complete", "arrival"])
@pytest.mark.parametrize("trigger", ["default", "available now"])
def test_filter_that_a_restart_leaves_out_still_holds(
    trigger: str, delivery: str, content: str, compacted: bool
) -> None:
    log = make_log(streams=3, merge_every=None)
    put(log, [0, 1], 5, "a")
    put(log, [100, 101], 103, "b")
    checkpoint = Checkpoint()
    options = {"delivery": delivery, "content": content}
    first = drive(log, checkpoint=checkpoint, streamFilter="a", **options).available_now()
    put(log, [6, 7], 8, "a")
    put(log, [106, 107], 108, "b")
    if compacted:
        log.compact()
    driver = drive(log, checkpoint=checkpoint, **options)
    again = driver.available_now() if trigger == "available now" else [driver.run_one()]
    found = [[value for value in batch if value is not None] for batch in values_or_none([*first, *again])]
    assert found == [[0, 1], [6, 7]]
    end = json.loads(checkpoint.offsets[-1])
    assert end["streams"] == ["a"]
    assert end.get("frontier", [8]) == [8]
    assert set(end.get("seqs", ["a"])) == {"a"}
    if trigger == "available now":
        # Nothing new of this stream: nothing is read, whatever the others do.
        put(log, [200], 201, "b")
        assert drive(log, checkpoint=checkpoint, **options).available_now() == []


def test_stream_opened_during_the_run_is_not_waited_for() -> None:
    log = make_log(streams=2)
    put(log, [1], 2, "a")
    driver = drive(log, streamFilter="a,b")
    driver._started().prepareForTriggerAvailableNow()
    put(log, [1], 2, "b")
    first = driver.run_one()
    assert first is not None
    assert values([first]) == [[]]
    assert driver.run_one() is None


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_end_holds_for_the_run_that_it_was_given_to(delivery: str) -> None:
    log = make_log()
    for time in range(4):
        put(log, [time], time + 1)
    checkpoint = Checkpoint()
    stopped = drive(log, checkpoint=checkpoint, delivery=delivery, endingVersion="2")
    assert values(stopped.available_now()) == [[0, 1]]
    before = list(checkpoint.offsets)
    # Nothing is new up to the end: the offset stays as it is, word for word.
    assert drive(log, checkpoint=checkpoint, delivery=delivery, endingVersion="2").run_one() is None
    assert checkpoint.offsets == before
    # The last micro-batch is planned again exactly, with its own end, then there is none.
    checkpoint.n_committed = 0
    assert values(drive(log, checkpoint=checkpoint, delivery=delivery).available_now()) == [[0, 1], [2, 3]]
    assert "until" not in json.loads(checkpoint.offsets[-1])


@pytest.mark.parametrize(
    ("begun", "given", "name"),
    [
        ({}, {"startingFrontier": "[2]"}, "startingFrontier"),
        ({}, {"startingVersion": "2"}, "startingVersion"),
        ({}, {"startingTimestamp": "2020-01-01"}, "startingTimestamp"),
        ({"startingFrontier": "[2]"}, {"startingFrontier": "latest"}, "startingFrontier"),
        ({"startingFrontier": "[2]"}, {"startingFrontier": "[2]"}, None),
        ({"startingFrontier": "[2]"}, {}, None),
        ({"delivery": "arrival", "startingVersion": "2"}, {"delivery": "arrival", "startingVersion": "2"}, None),
        ({"asOf": "2"}, {"asOf": "2"}, None),
        ({"asOf": "2"}, {"asOf": "1"}, "asOf"),
    ],
)
def test_start_that_the_checkpoint_overrules_is_reported_once(
    begun: dict[str, str], given: dict[str, str], name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_log(kind="collection")
    log.writer(owner="w").append(pa.table({"_time": [1], "_diff": [1], "v": [1]}), advance_to=3)
    checkpoint = Checkpoint()
    first = drive(log, checkpoint=checkpoint, **begun)
    first.run_one()
    first.run_one()
    assert caplog.messages == []
    again = drive(log, checkpoint=checkpoint, **given)
    again.run_one()
    again.run_one()
    expected = [] if name is None else [f"option {name} is not used"]
    assert [message[: len(text)] for message, text in zip(caplog.messages, expected, strict=True)] == expected


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_progress_rows_cannot_be_switched_on_or_off(delivery: str) -> None:
    log = make_log()
    put(log, [1], 2)
    for content, other in (("messages", "events"), ("events", "messages"), ("splits", "events")):
        checkpoint = Checkpoint()
        drive(log, checkpoint=checkpoint, delivery=delivery, content=content).run_one()
        with pytest.raises(InvalidOptionError, match="content=") as caught:
            drive(log, checkpoint=checkpoint, delivery=delivery, content=other).run_one()
        assert caught.value.context["option"] == "content"


def values_or_none(batches: list) -> list[list]:
    return [sorted(batch.rows.column("v").to_pylist(), key=str) for batch in batches]


def two_streams() -> MemoryLog:
    log = make_log(streams=2, merge_every=None)
    for stream in ("order", "b"):
        put(log, [1, 2], 3, stream)
        put(log, [3, 4], 5, stream)
    return log


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_unknown_stream_that_may_open_is_named_once_per_run(delivery: str, caplog: pytest.LogCaptureFixture) -> None:
    log = two_streams()
    checkpoint = Checkpoint()
    caplog.set_level("WARNING", logger="spark_timely.datasource")
    driver = drive(log, checkpoint=checkpoint, delivery=delivery, streamFilter="orders,b")
    driver.available_now()
    text = "log 'memory' has no stream 'orders': nothing is read of it before it is opened; the streams there are: "
    assert caplog.messages == [f"{text}'b', 'order'"]
    caplog.clear()
    put(log, [7], 9, "b")
    driver.available_now()
    assert caplog.messages == [f"{text}'b', 'order'"]


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_unknown_stream_of_a_complete_log_is_refused_at_start(delivery: str, caplog: pytest.LogCaptureFixture) -> None:
    log = two_streams()
    checkpoint = Checkpoint()
    begun = drive(log, checkpoint=checkpoint, delivery=delivery, streamFilter="orders,b", maxFilesPerTrigger=1)
    begun.run_one()
    log.close()
    with pytest.raises(StreamMissingError, match=r"stream 'orders' of log 'memory': found streams=\['b', 'order'\]"):
        drive(log, delivery=delivery, streamFilter="orders,b").run_one()
    # One that had begun before goes on to its end.
    rest = drive(log, checkpoint=checkpoint, delivery=delivery, streamFilter="orders,b").available_now()
    assert sum(batch.rows.num_rows for batch in rest) > 0
    assert "has no stream 'orders'" in caplog.text
