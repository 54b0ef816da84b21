"""The rules 003.* where a stream is really replayed: written to a log, planned, read, and captured again.

No Spark: the driver calls planner and readers in Spark's order. What comes out is judged by an oracle that
shares no code with the library.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.datasource.source import TimelyDataSource
from spark_timely.errors import UnheldCapabilityError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.reader import events_of
from spark_timely.protocol.event import Event, Messages
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.testing.driver import Checkpoint, MicroBatch, StreamDriver
from spark_timely.testing.strategies import column_names
from spark_timely.time.domain import TimeDomain
from tests.oracles import protocol_model as model
from tests.oracles.golden import vectors
from tests.property.streams import as_events, captured, legal_events, time_of
from tests.support import examples
from tests.unit.datasource.support import drive
from tests.unit.sink.driver import SinkDriver

few = settings(examples(12, long=500), suppress_health_check=list(HealthCheck))

ARITIES = st.sampled_from([1, 2])
VALUES = pa.schema([("v", pa.int64())])
LIMITS = st.fixed_dictionaries(
    {"workers": st.sampled_from(["1", "2", "5"])},
    optional={"maxRowsPerTrigger": st.sampled_from(["1", "3"]), "maxFilesPerTrigger": st.just("1")},
)

# Net changes of the counts by one commit, and its messages: (time, value) with how often.
Changes = dict[model.Time, int]
Sent = Counter[tuple[model.Time, int]]


class Told(NamedTuple):
    """One row of ``content=events``."""

    event: str
    stream: str | None
    seq: int | None
    time: model.Time
    delta: int | None
    value: int | None


# Writing ------------------------------------------------------------------------------------------


def make_log(domain: TimeDomain, streams: int = 1) -> MemoryLog:
    kinds = tuple(kind.value for kind in domain.types)
    return MemoryLog.create(VALUES, times=kinds, minimum=np.array(domain.minimum), streams=streams, merge_every=20)


def domain_of(arity: int) -> TimeDomain:
    return TimeDomain(("long",) * arity, (0,) * arity)


def rows_at(domain: TimeDomain, times: Iterable[model.Time], values: Iterator[int]) -> pa.Table:
    rows = np.array(list(times), dtype=np.int64).reshape(-1, domain.arity)
    numbers = [next(values) for _ in range(len(rows))]
    return pa.table({**domain.to_columns(rows), "v": pa.array(numbers, pa.int64())})


def put(log: Log, stream: str, event: Event, values: Iterator[int]) -> None:
    """Append one event as one commit of its own."""
    writer = log.writer(stream, owner=stream)
    if isinstance(event, Messages):
        writer.append(rows_at(log.domain, map(tuple, event.times.tolist()), values))
    else:
        writer.append(rows_at(log.domain, [], values), progress=(event.times, event.deltas))


def commit_directly(log: Log, stream: str, event: model.Event, values: Iterator[int]) -> None:
    """Append as a producer of another kind does: its own files, its own request, no writer."""
    state = log.core.stream(stream) or log.core.open_stream(stream, owner="another kind")
    kind, content = event
    files, times, deltas = [], np.empty((0, log.domain.arity), np.int64), np.empty(0, np.int64)
    if kind == "messages":
        table = rows_at(log.domain, content, values)  # type: ignore[arg-type]
        at, seq = log.domain.from_columns(table), state.seq + 1
        whole = message_table(log.core.format, table.select(["v"]), at, stream, seq)
        files = write_data_files(log.core.storage, whole, at, stream=stream, seq=seq, domain=log.domain)
    else:
        times = np.array([t for t, _ in content], np.int64).reshape(-1, log.domain.arity)
        deltas = np.array([d for _, d in content], np.int64)
    log.core.commit(CommitRequest(stream, "another kind", times, deltas, expected_seq=state.seq, files=files))


def written(events: Sequence[model.Event]) -> list[model.Event]:
    """Leave out what comes after a stream closed: a closed stream takes not even an empty batch."""
    kept = list(events)
    while kept and not kept[-1][1]:
        kept.pop()
    return kept


def expected_commits(events: Sequence[model.Event], values: Iterator[int]) -> list[tuple[Sent, Changes]]:
    """Say what each commit holds if every event is one."""
    found: list[tuple[Sent, Changes]] = []
    for kind, content in events:
        if kind == "messages":
            found.append((Counter((time, next(values)) for time in content), {}))  # type: ignore[misc]
        else:
            found.append((Counter(), net(content)))  # type: ignore[arg-type]
    return found


def net(changes: Iterable[tuple[model.Time, int]]) -> Changes:
    total: Counter[model.Time] = Counter()
    for time, delta in changes:
        total[time] += delta
    return {time: delta for time, delta in total.items() if delta}


# Replaying ----------------------------------------------------------------------------------------


def told(table: pa.Table, domain: TimeDomain) -> list[Told]:
    """Read rows of ``content=events``, in their order."""
    times = map(tuple, domain.from_columns(table).tolist())
    columns = [table[name].to_pylist() for name in ("_event", "_stream", "_seq", "_delta", "v")]
    return [
        Told(event, stream, seq, time, delta, value)
        for time, event, stream, seq, delta, value in zip(times, *columns, strict=True)
    ]


def replayed(driver: StreamDriver, *, once: bool = False) -> list[MicroBatch]:
    """Run a query to the end of the log, or a single trigger of it; the mutants put something worse here."""
    if once:
        batch = driver.run_one()
        return [] if batch is None else [batch]
    return driver.available_now()


def replay(log: MemoryLog, checkpoint: Checkpoint | None = None, **options: str) -> list[list[list[Told]]]:
    """Replay events in the order of arrival: micro-batches, their tasks, their rows."""
    wanted = {"delivery": "arrival", "includeMetadata": "true", **options}
    driver = drive(log, checkpoint=checkpoint, content="events", **wanted)
    return [[told(task, log.domain) for task in batch.tasks] for batch in replayed(driver)]


def flat(batches: list[list[list[Told]]]) -> list[Told]:
    return [row for tasks in batches for task in tasks for row in task]


def commits_of(rows: Iterable[Told]) -> dict[tuple[str | None, int | None], tuple[Sent, Changes]]:
    """Put rows together by commit."""
    sent: defaultdict[tuple[str | None, int | None], Sent] = defaultdict(Counter)
    changes: defaultdict[tuple[str | None, int | None], list[tuple[model.Time, int]]] = defaultdict(list)
    for row in rows:
        if row.event == "message":
            assert row.value is not None
            sent[row.stream, row.seq][row.time, row.value] += 1
        else:
            assert row.delta is not None
            changes[row.stream, row.seq].append((row.time, row.delta))
    return {key: (sent[key], net(changes[key])) for key in {**sent, **changes}}


def statements(batches: list[list[list[Told]]]) -> list[model.Event]:
    """Read micro-batches as whoever captures them does: messages first, then progress as a whole."""
    found: list[model.Event] = []
    for tasks in batches:
        rows = [row for task in tasks for row in task]
        found.append(("messages", [row.time for row in rows if row.event == "message"]))
        found.append(("progress", [(row.time, row.delta or 0) for row in rows if row.event == "progress"]))
    return found


# 003.01 -------------------------------------------------------------------------------------------


class OneByOne:
    """An iterator of a type of its own, that can be passed over once."""

    def __init__(self, events: list[Event]) -> None:
        self.rest = events[::-1]

    def __iter__(self) -> OneByOne:
        return self

    def __next__(self) -> Event:
        if not self.rest:
            raise StopIteration
        return self.rest.pop()


@few
@given(st.data())
def test_rule_003_01_events_in_order_are_replayed_as_given(data: st.DataObject) -> None:
    domain = domain_of(data.draw(ARITIES))
    events = written(data.draw(legal_events(domain.arity)))
    source: Iterable[Event] = as_events(events, domain.arity)
    match data.draw(st.sampled_from(["list", "generator", "own type", "another producer"])):
        case "generator":
            source = (event for event in as_events(events, domain.arity))
        case "own type":
            source = OneByOne(as_events(events, domain.arity))
        case "another producer":
            source = []
    log, values = make_log(domain), iter(range(1000))
    if source == []:
        for plain in events:
            commit_directly(log, "s", plain, values)
    for event in source:
        put(log, "s", event, values)
    rows = flat(replay(log, **data.draw(LIMITS)))
    found = commits_of(row for row in rows if row.stream == "s" and row.seq)
    expected = expected_commits(events, iter(range(1000)))
    assert found == {("s", i + 1): event for i, event in enumerate(expected) if any(event)}
    # What is complete, without the events: the messages at closed times, each once.
    frontier = model.frontiers(events, {domain.minimum: 1})[-1]
    closed = Counter(
        (time, value)
        for sent, _ in expected
        for time, value in sent.elements()
        if not any(model.less_equal(low, time) for low in frontier)
    )
    complete: Sent = Counter()
    for batch in replayed(drive(log, includeTime="true")):
        times = map(tuple, domain.from_columns(batch.rows).tolist())
        complete.update(zip(times, batch.rows["v"].to_pylist(), strict=True))
    assert complete == closed


@pytest.mark.golden
@pytest.mark.parametrize("name", ["c_4workers_w1", "d1_product", "g2_duration", "g4_i64"])
def test_rule_003_01_captures_of_timely_are_replayed_as_captured(name: str) -> None:
    stream = captured(name)
    events = written(stream.events)
    log, values = make_log(stream.domain), iter(range(10_000))
    for event in as_events(events, stream.domain.arity):
        put(log, "s", event, values)
    batches = replay(log)
    found = commits_of(row for row in flat(batches) if row.stream == "s" and row.seq)
    expected = expected_commits(events, iter(range(10_000)))
    assert found == {("s", i + 1): event for i, event in enumerate(expected) if any(event)}
    end = model.judge(statements(batches), {stream.domain.minimum: 1})
    assert end == stream.end["counts"]
    assert [tuple(time) for time in log.frontier().times.tolist()] == stream.end["frontier"]


@pytest.mark.parametrize(
    "event",
    [
        ("messages", [(2,)]),
        ("messages", [(3,), (2,)]),
        ("progress", [((2,), 1)]),
    ],
)
def test_rule_003_01_a_producer_that_breaks_rules_is_refused(event: model.Event) -> None:
    log, values = make_log(domain_of(1), 2), iter(range(10))
    put(log, "ours", as_events([("messages", [(1,)])], 1)[0], values)
    commit_directly(log, "theirs", ("progress", [((0,), -1), ((3,), 1)]), values)
    before = flat(replay(log))
    with pytest.raises(UnheldCapabilityError):
        commit_directly(log, "theirs", event, values)
    assert flat(replay(log)) == before


# 003.05, 003.08, 003.10 ---------------------------------------------------------------------------


@few
@given(st.data())
def test_rule_003_05_progress_of_a_commit_is_replayed_together(
    data: st.DataObject,
) -> None:
    domain = domain_of(data.draw(ARITIES))
    events = written(data.draw(legal_events(domain.arity)))
    shuffled = [(kind, data.draw(st.permutations(content)) if content else content) for kind, content in events]
    options = data.draw(LIMITS)
    found = []
    for given_events in (events, shuffled):
        log, values = make_log(domain), iter(range(1000))
        for event in as_events(given_events, domain.arity):
            put(log, "s", event, values)
        batches = replay(log, **options)
        # Cut apart, a batch could raise in one micro-batch what it vouched for by a drop in the one before.
        places: defaultdict[tuple[str | None, int | None], set[tuple[int, int]]] = defaultdict(set)
        for number, tasks in enumerate(batches):
            for task, rows in enumerate(tasks):
                for row in rows:
                    if row.event == "progress":
                        places[row.stream, row.seq].add((number, task))
        assert {key for key, at in places.items() if len(at) > 1} == set()
        assert model.judge(statements(batches), {domain.minimum: 1}) == model.judge(events, {domain.minimum: 1})
        found.append({key: changes for key, (_, changes) in commits_of(flat(batches)).items()})
    assert found[0] == found[1]


@few
@given(st.data())
def test_rule_003_08_no_progress_before_a_message_that_needs_it(data: st.DataObject) -> None:
    domain = domain_of(data.draw(ARITIES))
    n_streams = data.draw(st.integers(1, 3))
    log, values = make_log(domain, n_streams), iter(range(1000))
    for i in range(n_streams):
        writer, held_back = log.writer(f"s{i}", owner=f"s{i}"), []
        # Messages wait for the next progress and go into one commit with it: earlier than that, never later.
        for kind, content in written(data.draw(legal_events(domain.arity, close=True))):
            if kind == "messages":
                held_back += content
                continue
            times = np.array([t for t, _ in content], np.int64).reshape(-1, domain.arity)
            deltas = np.array([d for _, d in content], np.int64)
            writer.append(rows_at(domain, held_back, values), progress=(times, deltas))
            held_back = []
    assert log.frontier().is_empty
    for delivery in ("arrival", "complete"):
        batches = replay(log, delivery=delivery, **data.draw(LIMITS))
        assert model.judge(statements(batches), {domain.minimum: 1}) == {}
        stated: set[tuple[str | None, int | None]] = set()
        for row in flat(batches) if delivery == "arrival" else []:
            key = row.stream, row.seq
            assert row.event == "progress" or key not in stated, f"progress of {key} before its message"
            if row.event == "progress":
                stated.add(key)


@few
@given(st.data())
def test_rule_003_10_any_interleaving_is_legal_for_any_workers(
    data: st.DataObject,
) -> None:
    domain = domain_of(data.draw(ARITIES))
    streams = [
        written(data.draw(legal_events(domain.arity, max_events=6))) for _ in range(data.draw(st.integers(1, 4)))
    ]
    order = data.draw(st.permutations([i for i, events in enumerate(streams) for _ in events]))
    log, values = make_log(domain, len(streams)), iter(range(1000))
    rest = [iter(as_events(events, domain.arity)) for events in streams]
    checkpoint = Checkpoint()
    batches: list[list[list[Told]]] = []
    for i in order:
        put(log, f"s{i}", next(rest[i]), values)
        if data.draw(st.integers(0, 3)) == 0:
            batches += replay(log, checkpoint, **data.draw(LIMITS))
    batches += replay(log, checkpoint, **data.draw(LIMITS))
    start = {domain.minimum: 1}
    if not order:
        # The further counts are stated with whatever comes first; nothing has come.
        assert model.judge(statements(batches), start) == start
        return
    # Counted from one capability at the minimum: the further ones are stated, and nothing is judged illegal.
    end = sum((Counter(model.judge(events, start)) for events in streams), Counter())
    assert Counter(model.judge(statements(batches), start)) == end
    sent = Counter(time for events in streams for kind, content in events if kind == "messages" for time in content)
    assert Counter(row.time for row in flat(batches) if row.event == "message") == sent


@pytest.mark.golden
@pytest.mark.parametrize(("name", "n_streams"), [("c2_3workers", 3), ("d2_product_2workers", 2)])
def test_rule_003_10_streams_replayed_together_move_as_in_timely(name: str, n_streams: int) -> None:
    streams = [captured(f"{name}_w{i}") for i in range(n_streams)]
    domain = streams[0].domain
    kind = "product" if domain.arity == 2 else "u64"
    (line, *_) = [line for line in vectors(f"capture_{name}.merged.jsonl") if "interleaving" in line]
    log, values = make_log(domain, n_streams), iter(range(10_000))
    driver = drive(log, content="events", includeMetadata="true")
    rest = [iter(as_events(stream.events, domain.arity)) for stream in streams]
    counts: Counter[model.Time] = Counter({domain.minimum: 1})
    trace = {step: sorted(time_of(kind, t) for t in frontier) for step, frontier in line["frontiers"]}
    expected = trace[-1]
    assert expected == [domain.minimum]
    for step, i in enumerate(line["order"]):
        put(log, f"w{i}", next(rest[i]), values)
        expected = trace.get(step, expected)
        if step % 7 and step + 1 < len(line["order"]):
            continue
        for batch in replayed(driver, once=True):
            for row in told(batch.rows, domain):
                counts[row.time] += row.delta or 0
        assert model.minima(time for time, count in counts.items() if count > 0) == expected, step
    assert expected == []


# Captured again: 003.09, 003.10, 003.11 -----------------------------------------------------------


def changes_of(log: Log, stream: str) -> list[tuple[Sent, Changes]]:
    """Return what each commit of a stream recorded, its opening left out."""
    found = []
    for state, rows in list(events_of(log.core, stream))[1:]:
        times = map(tuple, log.domain.from_columns(rows).tolist())
        before = zip(map(tuple, state.before.times.tolist()), (-state.before.counts).tolist(), strict=True)
        after = zip(map(tuple, state.counts.times.tolist()), state.counts.counts.tolist(), strict=True)
        found.append((Counter(zip(times, rows["v"].to_pylist(), strict=True)), net([*before, *after])))
    return found


def event_rows(messages: list[tuple[model.Time, int]], progress: list[tuple[model.Time, int]], arity: int) -> pa.Table:
    """Make rows as a replay with ``content=events`` gives them."""
    n, p = len(messages), len(progress)
    times = [time for time, _ in [*messages, *progress]]
    return pa.table(
        {
            "_event": pa.array(["message"] * n + ["progress"] * p, pa.string()),
            "_delta": pa.array([None] * n + [delta for _, delta in progress], pa.int64()),
            **{name: pa.array([t[i] for t in times], pa.int64()) for i, name in enumerate(column_names(arity))},
            "v": pa.array([value for _, value in messages] + [None] * p, pa.int64()),
        }
    )


GIVEN: dict[int, list[tuple[list[tuple[model.Time, int]], Changes]]] = {
    1: [
        ([((4,), 1), ((4,), 1), ((0,), 2)], {(0,): -1, (4,): 3, (9,): 2}),
        ([], {(4,): -2}),
        ([((7,), 3)], {}),
        ([((4,), 4), ((9,), 4)], {(4,): -1, (9,): 5}),
        ([((12,), 5)], {(9,): -7}),
    ],
    2: [
        ([((0, 0), 1), ((3, 1), 1), ((3, 1), 1)], {(0, 0): -1, (0, 5): 2, (3, 0): 3}),
        ([((0, 6), 2)], {(0, 5): -1, (3, 0): -1, (3, 5): 4}),
        ([], {(3, 0): -2, (4, 1): 1}),
        ([((1, 5), 3), ((9, 9), 3)], {(0, 5): -1, (3, 5): -4, (4, 1): -1}),
    ],
}


@pytest.mark.parametrize("n_tasks", [1, 3])
@pytest.mark.parametrize("arity", [1, 2])
def test_rule_003_09_the_sink_records_every_message_and_change(tmp_path: Path, arity: int, n_tasks: int) -> None:
    driver = SinkDriver(tmp_path, frontier="events")
    create_log(str(driver.log_path), VALUES, times=("long",) * arity, minimum=(0,) * arity)
    for messages, changes in GIVEN[arity]:
        rows = event_rows(messages, list(changes.items()), arity)
        # Spread over tasks row by row, one of them repeated after a crash: it is recorded once.
        tasks = [rows.take(pa.array(range(i, rows.num_rows, n_tasks), pa.int64())) for i in range(n_tasks)]
        driver.run(tasks, crash="after commit")
        driver.run(tasks)
    log = driver.log()
    assert changes_of(log, "main") == [(Counter(messages), changes) for messages, changes in GIVEN[arity]]
    assert log.frontier().is_empty
    assert log.verify().legal
    # And a replay of that says the same again.
    again = through_source(str(driver.log_path), content="events", delivery="arrival", includeMetadata="true")
    rows = [row for batch in again for row in told(batch.rows, log.domain)]
    found = commits_of(row for row in rows if row.stream == "main" and row.seq)
    assert found == {("main", i + 1): (Counter(m), c) for i, (m, c) in enumerate(GIVEN[arity])}


def through_source(path: str, **options: str) -> list[MicroBatch]:
    """Replay a log on disk through the data source that Spark gets."""
    source = TimelyDataSource({"path": path, **options})
    schema = source.schema()
    return replayed(StreamDriver(lambda: source.streamReader(schema), schema=arrow_schema(schema)))  # type: ignore[arg-type]


@examples(3, long=80)
@given(st.data())
def test_rule_003_10_any_number_of_queries_makes_the_same_log(data: st.DataObject) -> None:
    domain = domain_of(data.draw(ARITIES))
    log, values = make_log(domain, 3), iter(range(1000))
    streams = [written(data.draw(legal_events(domain.arity, max_events=6))) for _ in range(3)]
    for i, events in enumerate(streams):
        log.writer(f"s{i}", owner=f"s{i}")
        for event in as_events(events, domain.arity):
            put(log, f"s{i}", event, values)
    log.refresh()
    for i in range(3):
        log.core.open_stream(f"s{i}", owner=f"s{i}")
    source = log.verify()
    kinds = tuple(kind.value for kind in domain.types)
    for groups in (["s0,s1,s2"], ["s0", "s1,s2"], ["s2", "s1", "s0"]):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/log"
            create_log(path, VALUES, times=kinds, minimum=np.array(domain.minimum), streams=len(groups))
            for i, group in enumerate(groups):
                query = drive(log, content="events", delivery="arrival", streamFilter=group, **data.draw(LIMITS))
                sink = SinkDriver(Path(folder), query=f"q{i}", checkpoint=f"c{i}", frontier="events", stream=f"copy{i}")
                for batch in replayed(query):
                    sink.run([task for task in batch.tasks if task.num_rows] or [batch.rows])
            copy = open_log(path)
            report = copy.verify()
            assert report.legal, report.problems
            assert (report.messages, report.streams) == (source.messages, len(groups))
            assert copy.frontier() == log.frontier()
            assert report.canonical_hash == source.canonical_hash
            held = [state.counts.to_json() for state in copy.streams().values()]
            assert sum(copy_counts(held), Counter()) == sum(
                copy_counts([state.counts.to_json() for state in log.streams().values()]), Counter()
            )


def copy_counts(found: list[Any]) -> list[Counter[Any]]:
    return [Counter({str(time): count for time, count in counts}) for counts in found]


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc]


# Types of the coordinates: what Arrow and Spark call them, two times, and the times they are.
TIMES: dict[tuple[str, ...], tuple[list[pa.DataType], list[str], list[Any], list[Any]]] = {
    ("long",): ([pa.int64()], ["bigint"], [3], [2**62]),
    ("int",): ([pa.int32()], ["int"], [-7], [2**31 - 2]),
    ("short",): ([pa.int16()], ["smallint"], [-7], [2**15 - 2]),
    ("date",): ([pa.date32()], ["date"], [dt.date(1969, 12, 31)], [dt.date(2013, 5, 6)]),
    ("timestamp",): (
        [pa.timestamp("us", "UTC")],
        ["timestamp"],
        [utc(1969, 12, 31, 23, 59, 59, 999_999)],
        [utc(2013, 5, 6, 7, 8, 9, 123_456)],
    ),
    ("date", "short"): (
        [pa.date32(), pa.int16()],
        ["date", "smallint"],
        [dt.date(1970, 1, 1), 0],
        [dt.date(2013, 5, 6), 4],
    ),
    ("timestamp", "long"): (
        [pa.timestamp("us", "UTC"), pa.int64()],
        ["timestamp", "bigint"],
        [utc(1970, 1, 1), 0],
        [utc(2013, 5, 6), 2**40],
    ),
}


@pytest.mark.parametrize("kinds", TIMES, ids="-".join)
def test_rule_003_11_events_captured_again_keep_the_time_type(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    arrow, spark, early, late = TIMES[kinds]
    names = column_names(len(kinds))
    path = str(tmp_path / "source")
    log = create_log(path, VALUES, times=kinds)
    columns = {name: pa.array(pair, type_) for name, *pair, type_ in zip(names, early, late, arrow, strict=True)}
    table = pa.table({**columns, "v": [1, 2]})
    later = log.domain.from_columns(table)[1:]
    log.writer(owner="me").append(table, advance_to=later)
    for options in ({"includeTime": "true"}, {"content": "events"}, {"content": "events", "delivery": "arrival"}):
        schema = TimelyDataSource({"path": path, **options}).schema()
        assert [schema[name].dataType.simpleString() for name in names] == spark
        batches = through_source(path, **options)
        assert batches
        for batch in batches:
            assert [batch.rows.schema.field(name).type for name in names] == arrow
        rows = pa.concat_tables([batch.rows for batch in batches])
        sent = [row for row in rows.to_pylist() if row["v"] is not None]
        # Only what is arrived, and not complete, lies at the frontier.
        expected = [early, late] if "delivery" in options else [early]
        assert [[row[name] for name in names] for row in sent] == expected
        if options.get("delivery") != "arrival":
            continue
        driver = SinkDriver(tmp_path / "again", frontier="events")
        for batch in batches:
            driver.run([task for task in batch.tasks if task.num_rows], schema=schema)
        made = driver.log()
        assert tuple(kind.value for kind in made.domain.types) == kinds
        assert made.domain == log.domain
        assert [made.messages().schema.field(name).type for name in names] == arrow
        assert made.frontier() == log.frontier()
        assert made.verify().canonical_hash == log.verify().canonical_hash
        assert made.messages().select([*names, "v"]).equals(log.messages().select([*names, "v"]))
