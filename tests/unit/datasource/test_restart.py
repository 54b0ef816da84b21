"""A query that is started again, with the same options, fewer or others: its checkpoint says what it reads."""

from __future__ import annotations

import json

import pytest

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


def test_stream_of_the_filter_that_opens_after_the_run_began_is_not_waited_for() -> None:
    log = make_log(streams=2)
    put(log, [1], 2, "a")
    driver = drive(log, streamFilter="a,b")
    driver._started().prepareForTriggerAvailableNow()
    put(log, [1], 2, "b")
    first = driver.run_one()
    assert first is not None
    assert values([first]) == [[]]
    assert driver.run_one() is None


def values_or_none(batches: list) -> list[list]:
    return [sorted(batch.rows.column("v").to_pylist(), key=str) for batch in batches]
