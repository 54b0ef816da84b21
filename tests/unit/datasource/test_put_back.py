"""A query that was stopped while its log was put back to an earlier state, and that then grew again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_timely.datasource import planner
from spark_timely.errors import DataLossError
from spark_timely.log import MemoryLog
from spark_timely.log.streams import StreamStates
from spark_timely.testing.driver import Checkpoint
from tests.unit.datasource.support import copy_of, drive
from tests.unit.datasource.test_planner import make_log, put, values

DELIVERIES = ["complete", "arrival"]
OTHER = r"could not continue from the checkpoint: found another commit {} of stream '{}' in log 'memory' than the query"
LOST = r"could not continue from the checkpoint: found log 'memory' without commit {} of stream '{}', which the query"


def grown(log: MemoryLog, *uppers: int, stream: str = "main") -> MemoryLog:
    """Append one row at each of some times, in a commit each."""
    for upper in uppers:
        put(log, [upper - 1], upper, stream)
    return log


def refused(log: MemoryLog, checkpoint: Checkpoint, text: str, **options: Any) -> None:
    """Check that a query is refused by name, each time, and that neither log nor checkpoint changes."""
    before = log.another().core.version, list(checkpoint.offsets), checkpoint.n_committed
    for _ in range(2):
        with pytest.raises(DataLossError, match=text) as caught:
            drive(log, checkpoint=checkpoint, **options).available_now()
        assert "hint: put back the log that the query has seen" in str(caught.value)
    with pytest.raises(DataLossError, match=text):
        drive(log, checkpoint=checkpoint, **options).run_one()
    assert (log.another().core.version, list(checkpoint.offsets), checkpoint.n_committed) == before


@pytest.mark.parametrize("content", ["messages", "events"])
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize(
    ("uppers", "text"),
    [((), LOST), ((6,), OTHER), ((4,), OTHER), ((8, 9), OTHER), ((4, 5, 6, 7, 8), OTHER)],
    ids=["not grown", "the same numbers", "behind", "past", "many commits"],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_log_put_back_and_grown_is_refused(
    delivery: str, content: str, uppers: tuple[int, ...], text: str, compacted: bool
) -> None:
    log = grown(make_log(), 2, 3)
    copy, checkpoint = copy_of(log), Checkpoint()
    options = {"delivery": delivery, "content": content}
    drive(grown(log, 6), checkpoint=checkpoint, **options).available_now()
    grown(copy, *uppers)
    if compacted:
        copy.compact()
    refused(copy, checkpoint, text.format(3, "main"), **options)
    # With a new checkpoint it is read as it is.
    assert len(drive(copy, **options).available_now()) == 1


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_documented_way_begins_where_the_old_checkpoint_ended(delivery: str) -> None:
    """Of a log that repeated what it had lost each row comes once."""
    log = grown(make_log(), 2)
    copy, checkpoint = copy_of(log), Checkpoint()
    first = drive(grown(log, 4, 6), checkpoint=checkpoint, delivery=delivery).available_now()
    end = json.loads(checkpoint.offsets[-1])
    place = (
        {"startingFrontier": json.dumps(end["frontier"])}
        if delivery == "complete"
        else {"startingVersion": str(end["seqs"]["main"])}
    )
    rest = drive(grown(copy, 4, 6, 9, 12), delivery=delivery, **place).available_now()
    assert sorted(v for batch in values([*first, *rest]) for v in batch) == [1, 3, 5, 8, 11]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_unfinished_micro_batch_is_not_planned_from_another_past(delivery: str) -> None:
    log = grown(make_log(), 2)
    copy, checkpoint = copy_of(log), Checkpoint()
    drive(grown(log, 5), checkpoint=checkpoint, delivery=delivery).run_one(commit=False)
    refused(grown(copy, 5, 6), checkpoint, OTHER.format(2, "main"), delivery=delivery)


@pytest.mark.parametrize("chosen", [None, "a,b", "b", "a"])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_stream_of_several_that_went_back_is_named(delivery: str, chosen: str | None) -> None:
    log = make_log(streams=3)
    for stream in ("a", "b", "c"):
        grown(log, 2, stream=stream)
    copy, checkpoint = copy_of(log), Checkpoint()
    options = {"delivery": delivery} | ({} if chosen is None else {"streamFilter": chosen})
    for stream in ("a", "b", "c"):
        grown(log, 4, stream=stream)
    drive(log, checkpoint=checkpoint, **options).available_now()
    for stream in ("a", "b", "c"):
        grown(copy, 4, 6, stream=stream)
    name = "a" if chosen == "a" else "c" if chosen is None else "b"
    more = {None: ", and 2 more like it", "a,b": ", and 1 more like it"}.get(chosen, " — hint")
    refused(copy, checkpoint, OTHER.format(2, name) + f" has seen{more}", **options)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_streams_that_are_not_read_may_go_back(delivery: str) -> None:
    log = make_log(streams=2)
    grown(log, 2, stream="a")
    grown(log, 2, stream="b")
    grown(log, 4, stream="a")
    copy, checkpoint = copy_of(log), Checkpoint()
    grown(log, 4, stream="b")
    options = {"delivery": delivery, "streamFilter": "a"}
    drive(log, checkpoint=checkpoint, **options).available_now()
    grown(copy, 9, stream="b")
    grown(copy, 5, stream="a")
    assert values(drive(copy, checkpoint=checkpoint, **options).available_now()) == [[4]]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "1"}, {"maxFilesPerTrigger": "2"}])
@pytest.mark.parametrize(
    "between",
    [lambda log: log, lambda log: log.compact(), lambda log: grown(log, 9, 12)],
    ids=["nothing", "compacted", "grown"],
)
def test_log_that_did_not_go_back_is_continued(
    delivery: str, limits: dict[str, str], between: Callable[[MemoryLog], object]
) -> None:
    """A copy at another path too, as long as it has what the query has seen; each row comes once."""
    log, checkpoint = grown(make_log(merge_every=None), 2, 3, 5, 6), Checkpoint()
    options = {"delivery": delivery, **limits}
    found = drive(log, checkpoint=checkpoint, **options).available_now()
    between(log)
    found += drive(log, checkpoint=checkpoint, **options).available_now()
    moved = copy_of(log, "elsewhere")
    grown(log, 20)
    grown(moved, 21, 22)
    found += drive(moved, checkpoint=checkpoint, **options).available_now()
    got = [value for batch in values(found) for value in batch]
    assert sorted(got) == sorted(row["v"] for row in moved.messages().to_pylist())


def test_copy_without_commits_the_query_never_saw_is_continued() -> None:
    for delivery in DELIVERIES:
        log, checkpoint = grown(make_log(), 2, 3), Checkpoint()
        drive(log, checkpoint=checkpoint, delivery=delivery).available_now()
        copy = copy_of(log)
        grown(log, 7)
        assert values(drive(grown(copy, 8, 9), checkpoint=checkpoint, delivery=delivery).available_now()) == [[7, 8]]


def test_arrival_in_a_backlog_asks_for_delivered_commits_alone() -> None:
    """Commits that wait are no part of the position: that they went back does no harm."""
    log = grown(make_log(streams=2, merge_every=None), 2, stream="a")
    grown(log, 2, stream="b")
    short = copy_of(log)
    grown(log, 3, 4, stream="a")
    copy = copy_of(log)
    grown(log, 5, 6, stream="a")
    options = {"delivery": "arrival", "maxRowsPerTrigger": "1"}
    for log_now in (log, log.another()):  # from memory, and by one that begins in the backlog
        checkpoint = Checkpoint()
        driver = drive(log_now, checkpoint=checkpoint, **options)
        while json.loads((checkpoint.offsets or ["{}"])[-1]).get("seqs", {}).get("a") != 4:
            driver.run_one()
            if log_now is not log:
                driver.crash()
        commits = json.loads(checkpoint.offsets[-1])["commits"]
        kept = {name: log.core.commits_of({name: seq}).get(name) for name, (seq, _) in commits.items()}
        assert {name: found and [found.seq, found.identity] for name, found in kept.items()} == commits
        assert {name: seq for name, (seq, _) in commits.items()} == {"#open": 2, "a": 3, "b": 1}
        again = replace(checkpoint, offsets=list(checkpoint.offsets))
        rest = drive(grown(copy_of(copy), 9, stream="a"), checkpoint=again, **options).available_now()
        assert [value for batch in values(rest) for value in batch] == [8]
        refused(grown(copy_of(short), 8, 9, 10, stream="a"), checkpoint, OTHER.format(3, "a"), **options)


def test_arrival_amid_a_backlog_of_a_clock_that_went_back() -> None:
    """A micro-batch keeps clocks that never go back; the identity of a commit is that of the log."""
    ticks = iter([9, 8, 7, 6, 5, 4, 3, 2, 1, *range(10, 99)])
    log = MemoryLog.create(make_log().schema, minimum=(0,), clock=lambda: float(next(ticks)), merge_every=None)
    grown(log, 2, 3, 4, 5)
    checkpoint = Checkpoint()
    options = {"delivery": "arrival", "maxRowsPerTrigger": "1"}
    driver = drive(log, checkpoint=checkpoint, **options)
    found = []
    for number in range(4):
        found += values([driver.run_one()])
        seq, identity = json.loads(checkpoint.offsets[-1])["commits"]["main"]
        state = log.core.commits_of({"main": number + 1}).get("main")
        assert state is not None
        assert (seq, identity) == (state.seq, state.identity)
        if number == 1:
            driver.crash()
    assert found == [[1], [2], [3], [4]]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("option", ["startingFrontier", "startingVersion", "startingTimestamp"])
def test_pinned_beginning_is_not_looked_for_in_another_history(delivery: str, option: str) -> None:
    """`latest` promises what comes after the start: a row that comes again before it would never be delivered."""
    if (delivery, option) == ("arrival", "startingFrontier"):
        return
    log = grown(make_log(), 2)
    copy, checkpoint = copy_of(log), Checkpoint()
    drive(grown(log, 6), checkpoint=checkpoint, delivery=delivery, **{option: "latest"}).available_now()
    refused(grown(copy, 5, 8), checkpoint, OTHER.format(2, "main"), delivery=delivery)


def test_frontier_to_begin_at_asks_for_no_commit_before_it() -> None:
    log = grown(make_log(), 2)
    copy, checkpoint = copy_of(log), Checkpoint()
    driver = drive(grown(log, 3), checkpoint=checkpoint, startingFrontier="[5]")
    driver.run_one()
    assert "commits" not in json.loads(checkpoint.offsets[-1])
    assert values(drive(grown(copy, 4, 7), checkpoint=checkpoint).available_now()) == [[6]]


@pytest.mark.parametrize("split", ["one handle", "a new handle each time"])
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("chosen", [{}, {"streamFilter": "a"}])
def test_commits_that_deliver_nothing_leave_the_offset_as_it_is(
    delivery: str, chosen: dict[str, str], split: str
) -> None:
    """Spark compares texts: another one would be an empty micro-batch, again and again."""
    log = make_log(streams=2)
    grown(log, 3, stream="a")
    grown(log, 2, stream="b")
    checkpoint = Checkpoint()
    driver = drive(log, checkpoint=checkpoint, delivery=delivery, **chosen)
    assert driver.run_one() is not None
    before = list(checkpoint.offsets)
    for number in range(4):
        if chosen:
            grown(log, 5 + number, stream="b")
        if delivery == "complete":
            # Nothing is closed by these: of `a` a row in the future, or `b` holds the frontier back.
            put(log, [9], 3, "a") if chosen else grown(log, 5 + number, stream="a")
        if number == 2:
            log.compact()
        if split != "one handle":
            driver.crash()
        assert driver.run_one() is None
        assert checkpoint.offsets == before


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_commit_is_looked_for_once_per_run(delivery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, checkpoint = grown(make_log(merge_every=None), 2, 3), Checkpoint()
    drive(log, checkpoint=checkpoint, delivery=delivery).available_now()
    grown(log, 4)
    read: list[str] = []
    look = StreamStates.rows_in

    def noted(self: StreamStates, path: str) -> Any:
        read.append(path)
        return look(self, path)

    driver = drive(log, checkpoint=checkpoint, delivery=delivery)
    monkeypatch.setattr(StreamStates, "rows_in", noted)
    (old,) = log.core.states.holders("main", 2)
    assert driver.run_one() is not None
    assert read.count(old) == (1 if delivery == "complete" else 2)  # `arrival` reads on from there
    for upper in (5, 6, 7):
        grown(log, upper)
        read.clear()
        assert driver.run_one() is not None
        assert old not in read


def test_offset_stays_small_however_many_streams_a_log_has(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(streams=60, merge_every=None)
    names = [f"s{number:02}" for number in range(60)]
    for name in names:
        grown(log, 2, stream=name)
    monkeypatch.setattr(planner, "_COMMITS_BYTES", 400)
    for delivery in DELIVERIES:
        checkpoint = Checkpoint()
        drive(log, checkpoint=checkpoint, delivery=delivery).available_now()
        commits = json.loads(checkpoint.offsets[-1])["commits"]
        # `#open` has the clock of the last stream that was opened.
        assert list(commits) == ["#open", *names[61 - len(commits) :]]
        assert 5 <= len(commits) <= 12
        assert drive(log, checkpoint=checkpoint, delivery=delivery).available_now() == []


def test_offset_without_commits_is_continued_and_gets_them() -> None:
    """An earlier version wrote it."""
    for delivery in DELIVERIES:
        log, checkpoint = grown(make_log(), 2), Checkpoint()
        drive(log, checkpoint=checkpoint, delivery=delivery).available_now()
        old = json.loads(checkpoint.offsets[-1])
        del old["commits"]
        checkpoint.offsets[-1] = json.dumps(old)
        assert drive(log, checkpoint=checkpoint, delivery=delivery).available_now() == []
        (batch,) = drive(grown(log, 3), checkpoint=checkpoint, delivery=delivery).available_now()
        assert "commits" in json.loads(batch.end)
