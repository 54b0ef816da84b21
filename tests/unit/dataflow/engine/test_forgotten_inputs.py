"""Dataflows over logs that forget: a step that needs what is gone is refused, and no window is cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import ceil_to
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.inputs import Beginnings
from spark_timely.dataflow.engine.steps import Engine, check_whole
from spark_timely.dataflow.logs import open_logs
from spark_timely.dataflow.stream import Scope
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import SinceViolationError, StorageError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import parse_duration
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])
SCHEMA_OF_ROWS = pa.schema([("_time", pa.int64()), ("n", pa.int64())])


def advance(log: Log, folder: Path) -> Log:
    """Count rows per window of ten into a log in the folder."""
    scope = Scope("flow")
    scope.replay(log).delay(ceil_to(10)).aggregate(n=count()).capture(str(folder))
    Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))
    return open_log(str(folder))


def contents(log: Log) -> dict[int, int]:
    return {row["_time"]: row["n"] for row in log.messages().to_pylist()}


def test_dataflow_that_keeps_up_goes_on_over_a_log_that_forgets(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")
    for now in range(0, 60, 5):
        writer.append(pa.table({"_time": [now, now + 3, now + 12], "n": [1, 2, 3]}), advance_to=now + 5)
        out = advance(log, tmp_path / "out")
        # The window that is open needs its first rows still.
        log.allow_compaction([out.frontier().elements[0][0] - 9])
        log.compact(logical=True)
    whole = create_log(str(tmp_path / "whole"), SCHEMA, minimum=(0,))
    other = whole.writer(owner="me")
    for now in range(0, 60, 5):
        other.append(pa.table({"_time": [now, now + 3, now + 12], "n": [1, 2, 3]}), advance_to=now + 5)
    assert log.messages().num_rows < whole.messages().num_rows
    assert contents(out) == contents(advance(whole, tmp_path / "other"))


def test_output_begins_where_its_windows_are_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [*range(15)], "n": [*range(15)]}), advance_to=15)
    assert log.allow_compaction([12]) == Antichain.of(12)
    # The window that ends at 20 has lost its first row: it waits until that is past.
    assert advance(log, tmp_path / "out").frontier() == Antichain.of(0)
    assert "begins at" not in caplog.text
    writer.append(pa.table({"_time": [*range(15, 40)], "n": [*range(15, 40)]}), advance_to=40)
    out = advance(log, tmp_path / "out")
    assert contents(out) == {30: 10}
    assert "output 'capture_4' begins at [21]: its inputs have forgotten what is before since={" in caplog.text
    log.compact(logical=True)
    assert contents(advance(log, tmp_path / "other")) == {30: 10}


def test_step_that_needs_what_is_forgotten_is_refused(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [*range(25)], "n": [*range(25)]}), advance_to=25)
    out = advance(log, tmp_path / "out")
    assert out.frontier() == Antichain.of(30)
    log.allow_compaction([23])
    writer.append(pa.table({"_time": [*range(25, 40)], "n": [*range(25, 40)]}), advance_to=40)
    with pytest.raises(
        SinceViolationError,
        match=r"could not continue at operator 'capture_\d': found since=\[23\] in log '.*in', of which it needs"
        r" what is from \[21\] on — hint: remove the output, or capture into another log",
    ):
        advance(log, tmp_path / "out")
    out.refresh()
    assert contents(out) == {0: 1, 10: 10, 20: 10}


def made_engine(log: Log, folder: Path, clock: ManualClock) -> Engine:
    scope = Scope("flow")
    scope.replay(log).delay(ceil_to(10)).aggregate(n=count()).capture(str(folder))

    def retain(log: Log, consumer: str) -> RetainedPosition:
        return RetainedPosition(lambda: open_log(log.path), consumer, parse_duration("7 days"), now=clock)

    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, retain=retain)


def test_inputs_keep_what_outputs_have_not_read(tmp_path: Path) -> None:
    clock = ManualClock()
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [*range(15)], "n": [*range(15)]}), advance_to=15)
    engine = made_engine(log, tmp_path / "out", clock)
    run = runner({log.path: {}, str(tmp_path / "out"): {}})
    engine.advance(run)
    log.refresh()
    ((name, kept),) = log.retainers().items()
    assert name.startswith("dataflow flow ")
    assert kept.needed == Antichain.of(0)
    assert log.allow_compaction([15]) == Antichain.of(0)
    clock.advance(61)
    writer.append(pa.table({"_time": [*range(15, 25)], "n": [*range(15, 25)]}), advance_to=25)
    engine.advance(run)
    # Complete up to the window that ends at 20; the next one needs all from 11 on.
    assert log.allow_compaction([25]) == Antichain.of(11)
    log.compact(logical=True)
    clock.advance(61)
    writer.append(pa.table({"_time": [*range(25, 40)], "n": [*range(25, 40)]}), advance_to=40)
    made_engine(log, tmp_path / "out", clock).advance(run)
    assert contents(open_log(str(tmp_path / "out"))) == {0: 1, 10: 10, 20: 10, 30: 10}
    # Another dataflow of that name has other outputs, and is another consumer.
    made_engine(log, tmp_path / "other", clock).advance(runner({log.path: {}, str(tmp_path / "other"): {}}))
    log.refresh()
    assert len(log.retainers()) == 2
    writer.append(pa.table({"_time": [], "n": []}, SCHEMA_OF_ROWS), advance_to=[])
    made_engine(log, tmp_path / "out", clock).advance(run)
    engine = made_engine(log, tmp_path / "out", clock)
    engine.begin()
    with_runner(engine, run).step()
    log.refresh()
    assert len(log.retainers()) == 1  # complete: released


def test_dataflow_refused_for_good_retains_nothing(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [*range(25)], "n": [*range(25)]}), advance_to=25)
    advance(log, tmp_path / "out")
    log.allow_compaction([23])
    writer.append(pa.table({"_time": [*range(25, 40)], "n": [*range(25, 40)]}), advance_to=40)
    for _ in range(2):
        with pytest.raises(SinceViolationError, match=r"found since=\[23\] in log"):
            made_engine(log, tmp_path / "out", ManualClock()).advance(runner({log.path: {}, str(tmp_path / "out"): {}}))
        log.refresh()
        assert log.retainers() == {}
    # One that begins waits for its first window, and keeps the log from since on.
    made_engine(log, tmp_path / "other", ManualClock()).advance(runner({log.path: {}, str(tmp_path / "other"): {}}))
    log.refresh()
    assert [kept.needed for kept in log.retainers().values()] == [Antichain.of(23)]


def test_input_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(log: Log, consumer: str) -> RetainedPosition:
        raise StorageError(f"no permission for {consumer} in {log.path}", hint="ask")

    scope = Scope("flow")
    scope.replay(log).capture(str(tmp_path / "out"))
    engine = Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, retain=refuse)
    for _ in range(3):
        engine.advance(runner(scope.storage))
    assert open_log(str(tmp_path / "out")).messages().num_rows == 90
    assert caplog.text.count("does not retain log") == 1


def test_input_that_forgets_after_a_look_is_retained_later(tmp_path: Path, log: Log) -> None:
    raced: list[Antichain] = []

    def retain(log: Log, consumer: str) -> RetainedPosition:
        if not raced:  # after the engine has looked
            raced.append(open_log(log.path).allow_compaction([3]))
        return RetainedPosition(lambda: open_log(log.path), consumer, parse_duration("7 days"))

    scope = Scope("flow")
    scope.replay(log).capture(str(tmp_path / "out"))
    engine = Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, retain=retain)
    for _ in range(3):
        engine.begin()
        with_runner(engine, runner(scope.storage)).step()
    assert raced == [Antichain.of(3)]
    assert engine.unretained == frozenset()
    log.refresh()
    assert len(log.retainers()) == 1


def forgotten(folder: Path, since: int = 5) -> Log:
    log = create_log(str(folder / "in"), SCHEMA, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [*range(10)], "n": [*range(10)]}), advance_to=10)
    log.allow_compaction(since)
    return log


def run_to_end(scope: Scope) -> None:
    Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))


@pytest.mark.parametrize("how", ["reduce", "updates", "spool", "spool of spool", "total"])
def test_what_needs_all_events_is_refused_over_any_way(how: str, tmp_path: Path) -> None:
    scope = Scope("flow")
    rows = scope.replay(forgotten(tmp_path))
    if how == "reduce":
        rows.reduce(lambda _, each: pa.table({"rows": [each.num_rows]}), by=()).capture(str(tmp_path / "out"))
    elif how == "updates":
        rows.as_updates().capture(str(tmp_path / "out"))
    else:
        spools = {"spool": 1, "spool of spool": 2}.get(how, 0)
        for number in range(spools):
            rows = rows.filter("n >= 0").spool(str(tmp_path / f"spool{number}"))
        rows.aggregate(over="history", m=count()).capture(str(tmp_path / "out"))
    with pytest.raises(SinceViolationError, match=r"found since=\[5\] in log .* of which it needs all messages"):
        check_whole(scope.sinks, open_logs(scope.sinks, scope.storage))
    with pytest.raises(SinceViolationError, match=r"found since=\[5\] in log .* of which it needs all messages"):
        run_to_end(scope)
    assert open_log(str(tmp_path / "out")).messages().num_rows == 0


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("retained", [False, True])
@pytest.mark.parametrize("indexed", [None, "before", "after"])
def test_a_join_begins_where_its_dimension_is_known(
    strict: bool, retained: bool, indexed: str | None, tmp_path: Path
) -> None:
    facts = create_log(str(tmp_path / "facts"), SCHEMA, minimum=(0,))
    facts_writer = facts.writer(owner="me")
    facts_writer.append(pa.table({"_time": [*range(10)], "n": [1] * 10}), advance_to=10)
    schema = pa.schema([("n", pa.int64()), ("rate", pa.int64())])
    rates = create_log(str(tmp_path / "rates"), schema, minimum=(0,), kind="collection")
    writer = rates.writer(owner="me")
    for time in range(12):
        old = {"_time": [time] * 2, "_diff": [1, -1], "n": [1, 1], "rate": [time, time - 1]}
        writer.append(pa.table(old).slice(0, 1 + (time > 0)), advance_to=time + 1)
    indexing = Indexing(10**9) if indexed is None else Indexing(0, 0, 0, background=False)
    if indexed == "before":  # of the times as they are: what moves up to since later is in it at its own time
        other = Scope("other")
        other.replay(facts).join(other.replay(rates), on="n", as_of=True).capture(str(tmp_path / "other"))
        Engine("other", other.sinks, other.storage, files_of=catalog_of, indexing=indexing).advance(
            runner(other.storage)
        )
    rates.allow_compaction(5)
    if indexed != "before":
        rates.compact(logical=True)
    scope = Scope("flow")
    scope.replay(facts).join(scope.replay(rates), on="n", as_of=True, strict=strict).capture(str(tmp_path / "out"))

    clock = ManualClock()

    def retain(log: Log, consumer: str) -> RetainedPosition:
        return RetainedPosition(lambda: open_log(log.path), consumer, parse_duration("7 days"), now=clock)

    engine = Engine(
        "flow", scope.sinks, scope.storage, files_of=catalog_of, retain=retain if retained else None, indexing=indexing
    )
    engine.advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    first = 6  # at 5 stands all that was before it too
    found = sorted((row["_time"], row["rate"]) for row in out.messages().to_pylist())
    assert found == [(time, time - strict) for time in range(first, 10)]
    assert out.since() == Antichain.of(first)
    # It retains what it needs, and no more; it says so each minute.
    clock.advance(61)
    engine.advance(runner(scope.storage))
    rates.refresh()
    assert rates.allow_compaction(12) == Antichain.of(9 if retained else 11)
    if retained:
        facts_writer.append(pa.table({"_time": [10, 11], "n": [1, 1]}), advance_to=12)
        engine.advance(runner(scope.storage))
        found = sorted((row["_time"], row["rate"]) for row in open_log(str(tmp_path / "out")).messages().to_pylist())
        assert found == [(time, time - strict) for time in range(first, 12)]


def test_duplicates_are_dropped_from_where_the_input_begins(tmp_path: Path) -> None:
    scope = Scope("flow")
    scope.replay(forgotten(tmp_path)).select(k=pc.scalar(1)).drop_duplicates("k", within=3).capture(
        str(tmp_path / "out")
    )
    run_to_end(scope)
    out = open_log(str(tmp_path / "out"))
    assert sorted(out.messages()["_time"].to_pylist()) == [5, 8]
    assert out.since() == Antichain.of(5)
    open_log(str(tmp_path / "in")).writer(owner="me").append(pa.table({"_time": [11], "n": [1]}), advance_to=12)
    run_to_end(scope)
    assert sorted(open_log(str(tmp_path / "out")).messages()["_time"].to_pylist()) == [5, 8, 11]


def test_an_output_that_was_moved_first_has_a_gap_too(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))

    def copying() -> Scope:
        scope = Scope("copy")
        scope.replay(log).filter("n >= 0").capture(str(tmp_path / "copy"))
        return scope

    run_to_end(copying())
    open_log(str(tmp_path / "copy")).advance("main", 2)
    log.writer(owner="me").append(pa.table({"_time": [*range(5)], "n": [*range(5)]}), advance_to=5)
    run_to_end(copying())
    copy = open_log(str(tmp_path / "copy"))
    assert sorted(copy.messages()["n"].to_pylist()) == [2, 3, 4]
    assert copy.since() == Antichain.of(2)
    scope = Scope("count")
    scope.replay(copy).aggregate(over="history", m=count()).capture(str(tmp_path / "count"))
    with pytest.raises(SinceViolationError, match=r"found since=\[2\] in log '.*copy'"):
        run_to_end(scope)


@pytest.mark.parametrize("since", [25, 26])
def test_what_an_operator_looks_back_at_may_not_be_forgotten(tmp_path: Path, since: int) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="me")

    def step() -> Log:
        scope = Scope("flow")
        scope.replay(log).drop_duplicates("n", within=5).capture(str(tmp_path / "out"))
        Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))
        return open_log(str(tmp_path / "out"))

    writer.append(pa.table({"_time": [10, 28], "n": [1, 2]}), advance_to=30)
    out = step()
    assert out.frontier() == Antichain.of(30)
    # From 25 on it looks into what it gave: a row of then may come again at 30.
    assert out.allow_compaction([since]) == Antichain.of(since)
    writer.append(pa.table({"_time": [31, 32], "n": [2, 3]}), advance_to=40)
    if since == 25:
        assert [row["n"] for row in step().messages(lower=30).to_pylist()] == [3]
        return
    with pytest.raises(SinceViolationError, match=r"found since=\[26\] in log '.*out', of which it needs"):
        step()


def test_output_begins_after_the_last_of_what_its_inputs_lack(tmp_path: Path) -> None:
    rates = create_log(str(tmp_path / "rates"), SCHEMA, minimum=(0,), kind="collection")
    rates.writer(owner="me").append(pa.table({"_time": [1], "_diff": [1], "n": [1]}), advance_to=[])
    assert rates.allow_compaction([2**63 - 1]) == Antichain.of(2**63 - 1)  # all times: nothing is known of any before
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [6, 7], "n": [1, 2]}), advance_to=9)
    log.allow_compaction([5])
    scope = Scope("flow")
    scope.replay(log).join(scope.replay(rates), on="n", as_of=True).capture(str(tmp_path / "out"))
    sinks, logs = scope.sinks, open_logs(scope.sinks, scope.storage)
    (sink,) = [each for each in sinks if each.path.endswith("out")]
    state = logs[sink.path].core.stream("main")
    assert state is not None
    found = Beginnings(sinks, logs).later(sink, state)
    assert found is not None
    assert found.is_empty
