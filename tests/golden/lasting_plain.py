"""Golden things that are written and continued without Spark: logs, the sink's checkpoints, dataflows, instances.

Functions of dataflows are known to the plan by module and name: what is used in a golden thing keeps its name here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely import errors
from spark_timely.answers.subscribe import subscribe
from spark_timely.compute.drive.handle import Handle
from spark_timely.dataflow.aggregates import avg_of, count, max_of, min_of, sum_of
from spark_timely.dataflow.delays import plus, windows
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.outputs import check_plans
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.logs import existing_logs
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.writer import capture_bytes
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.golden.lasting import Facts, Thing, indexes_below, kept_facts, log_facts, logs_below, rows_hash
from tests.property.test_dataflow import runner, with_runner
from tests.unit.compute.instances import handle
from tests.unit.sink.driver import MIN, SinkDriver

NEVER = "36500 days"  # of retainers: as long as somebody may keep a golden thing

# Logs ---------------------------------------------------------------------------------------------------

PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])
ODD = pa.schema(
    [
        ("flag", pa.bool_()), ("small", pa.int8()), ("single", pa.float32()), ("double", pa.float64()),
        ("price", pa.decimal128(12, 2)), ("text", pa.string()), ("bytes", pa.binary()), ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("list", pa.list_(pa.int64())),
        ("pairs", pa.map_(pa.string(), pa.int64())), ("inner", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)  # fmt: skip
TIMES: dict[str, list[Any]] = {
    "int": [1, 2, 3, 4, 5, 6],
    "short": [-2, -1, 0, 1, 2, 3],
    "date": [dt.date(2013, 1, day) for day in range(1, 7)],
    "timestamp": [dt.datetime(2013, 1, 1, hour, 30, tzinfo=dt.UTC) for hour in range(6)],
}


def odd_rows(first: int, n: int, times: Sequence[int]) -> pa.Table:
    ids = range(first, first + n)
    columns: dict[str, list[Any]] = {
        "flag": [i % 3 == 0 for i in ids],
        "small": [None if i % 4 == 0 else i % 100 for i in ids],
        "single": [i / 4 for i in ids],
        "double": [float("nan") if i % 5 == 0 else -0.0 if i % 5 == 1 else 0.1 * i for i in ids],
        "price": [Decimal(i) / 4 for i in ids],
        "text": [None if i % 5 == 2 else f"ü{i}" for i in ids],
        "bytes": [bytes([i % 256]) for i in ids],
        "day": [dt.date(2013, 1, 1 + i % 28) for i in ids],
        "at": [dt.datetime(2013, 1, 1, i % 24, tzinfo=dt.UTC) for i in ids],
        "local": [dt.datetime(2013, 1, 1, i % 24) for i in ids],
        "list": [list(range(i % 4)) for i in ids],
        "pairs": [[("a", i)] for i in ids],
        "inner": [{"x": i, "y": None} for i in ids],
    }
    made = {field.name: pa.array(columns[field.name], field.type) for field in ODD}
    return pa.table({"_time": pa.array([times[i % len(times)] for i in range(n)], pa.int64()), **made})


def put(log: Log, times: Sequence[Any], upper: Any, stream: str = "main", **more: Any) -> None:
    """Append rows with texts and numbers at some times."""
    names = log.domain.columns
    columns = [times] if len(names) == 1 else list(zip(*times, strict=True))
    data = {
        name: pa.array(column, type_.arrow)
        for name, column, type_ in zip(names, columns, log.domain.types, strict=True)
    }
    data |= {"k": pa.array([f"k{i % 3}" for i in range(len(times))]), "n": pa.array(range(len(times)), pa.int64())}
    log.writer(stream, owner=f"owner of {stream}").append(pa.table(data), advance_to=upper, **more)


def change(log: Log, updates: Sequence[tuple[int, int, str, int]], upper: int, **more: Any) -> None:
    """Append updates (time, diff, k, n) to a collection."""
    columns = {
        name: pa.array([update[place] for update in updates], pa.string() if name == "k" else pa.int64())
        for place, name in enumerate(("_time", "_diff", "k", "n"))
    }
    log.writer(owner="owner").append(pa.table(columns), advance_to=upper, **more)


def write_logs(folder: Path) -> None:
    log = create_log(folder / "two streams", PLAIN, minimum=(0,), streams=2)
    put(log, [1, 2, 2, 9], 3, "a", batch=4)
    put(log, [1, 1, 8], 2, "b")
    put(log, [4, 5, 9], 5, "a", batch=7)
    # A stream that joined, one that was taken over, one that ended.
    log.core.open_stream("c", owner="first owner", donor="a")
    log.writer("c", owner="first owner").append(pa.table({"_time": [6], "k": ["x"], "n": [1]}))
    log.writer("c", owner="second owner", takeover=True)
    log.core.open_stream("d", owner="owner of d", donor="b")
    log.writer("d", owner="owner of d").close()

    log = create_log(folder / "types", ODD, minimum=(0,))
    log.writer(owner="owner").append(odd_rows(0, 30, [1, 2, 3]), advance_to=3)

    for name, times in TIMES.items():
        log = create_log(folder / f"{name} times", PLAIN, times=name, minimum=times[0])  # type: ignore[arg-type]
        put(log, times[:4], times[2])
    log = create_log(folder / "product times", PLAIN, times=["long", "date"], minimum=(0, dt.date(2013, 1, 1)))
    days = TIMES["date"]
    put(log, [(1, days[0]), (0, days[2]), (3, days[1])], [(1, days[0]), (0, days[1])])

    log = create_log(folder / "merged", PLAIN, minimum=(0,), merge_every=4)
    for time in range(18):
        put(log, [time] * 5, time + 1)
    log.compact()
    put(log, [18, 19], 19)

    log = create_log(folder / "columns added", pa.schema([PLAIN.field("k")]), minimum=(0,))
    log.writer(owner="owner of main").append(pa.table({"_time": [1], "k": ["before"]}), advance_to=2)
    log.add_columns(pa.schema([PLAIN.field("n")]))
    put(log, [3, 4], 4)

    log = create_log(folder / "forgotten", PLAIN, minimum=(0,))
    for time in range(6):
        put(log, [time] * 3, time + 1)
    log.retain("report", [4], owner="nightly", expiry=NEVER)
    log.retain("audit", [3], owner="yearly", expiry=NEVER)
    log.allow_compaction([5])
    log.compact(logical=True)

    log = create_log(folder / "kept", PLAIN, minimum=(0,), keep=3, keep_committed="0s")
    for time in range(6):
        put(log, [time] * 3, time + 1)
    log.keep_dead("90 days")

    log = create_log(folder / "keyed", PLAIN, kind="collection", minimum=(0,), key="k", merge_every=4)
    for time in range(9):
        before = [(time, -1, f"k{time % 3}", time - 3)] if time > 2 else []
        change(log, [*before, (time, 1, f"k{time % 3}", time), (time, 1, "often", 1)], time + 1)
    log.compact()
    log.retain("reader", [6], owner="somebody", expiry=NEVER)

    log = create_log(folder / "compacted", PLAIN, kind="collection", minimum=(0,))
    for time in range(8):
        change(log, [(time, 1, "a", 1), (time, 1, "b", time), *([(time, -1, "b", time - 1)] if time else [])], time + 1)
    log.allow_compaction([5])
    log.compact(logical=True)
    change(log, [(8, 2, "c", 3)], 9)


def read_logs(folder: Path) -> Facts:
    found = logs_below(folder)
    for name in ("forgotten", "kept", "keyed", "compacted"):
        found[name] |= kept_facts(folder / name)
    keyed = open_log(folder / "keyed")
    found["keyed"]["as of 7"] = rows_hash(keyed.snapshot(7).select(["_diff", *PLAIN.names]))
    return found


def proceed_logs(folder: Path) -> None:
    log = open_log(folder / "two streams")
    put(log, [4, 5, 9], 5, "a", batch=7)  # again: it is there
    put(log, [6, 7], 8, "a", batch=9)
    put(log, [3, 3], 8, "b")
    with pytest.raises(errors.OwnershipError):
        log.writer("c", owner="first owner", takeover=True)
    log.writer("c", owner="second owner").append(pa.table({"_time": [7], "k": ["x"], "n": [2]}), advance_to=8)
    log = open_log(folder / "types")
    log.writer(owner="owner").append(odd_rows(30, 10, [3, 4, 5]), advance_to=6)
    log.compact()
    for name, times in TIMES.items():
        put(open_log(folder / f"{name} times"), times[2:], times[5])
    days = TIMES["date"]
    put(open_log(folder / "product times"), [(2, days[1])], [(3, days[1]), (1, days[3])])
    log = open_log(folder / "merged", merge_every=4)
    for time in range(19, 25):
        put(log, [time] * 5, time + 1)
    log.compact()
    put(open_log(folder / "columns added"), [4, 5], 6)
    log = open_log(folder / "forgotten")
    log.retain("audit", [6], owner="yearly", expiry=NEVER)
    put(log, [6, 6], 9)
    log.allow_compaction([8])
    log.compact(logical=True)
    log = open_log(folder / "kept", merge_every=4)
    put(log, [6, 7], 9)
    log.allow_compaction([9])
    log.compact(logical=True)
    log = open_log(folder / "keyed", merge_every=4)
    change(log, [(9, -1, "k0", 6), (9, 1, "k0", 60)], 11)
    log.allow_compaction([10])
    log.compact(logical=True)
    log = open_log(folder / "compacted")
    change(log, [(9, -2, "c", 3), (9, -4, "a", 1)], 12)
    log.allow_compaction([11])
    log.compact(logical=True)


# Owners whose commits are forgotten ---------------------------------------------------------------------


def take_over(log: Log, owner: str, time: int) -> None:
    """Append as a new owner of the stream, and forget what was before."""
    log.writer(owner=owner, takeover=True).append(
        pa.table({"_time": [time], "k": ["x"], "n": [1]}), advance_to=time + 1
    )
    log.allow_compaction([time + 1])
    log.compact(logical=True)


def write_owners(folder: Path) -> None:
    log = create_log(folder / "log", PLAIN, minimum=(0,))
    for time, owner in enumerate(("first", "second", "third")):
        take_over(log, owner, time)


def read_owners(folder: Path) -> Facts:
    state = open_log(folder / "log").core.stream("main")
    assert state is not None
    return logs_below(folder) | {"former owners": state.note.former}


def proceed_owners(folder: Path) -> None:
    log = open_log(folder / "log")
    for owner in ("first", "second"):  # only the note of the newest commit knows of them
        with pytest.raises(errors.OwnershipError):
            log.writer(owner=owner, takeover=True)
    take_over(log, "fourth", 5)


# The sink -----------------------------------------------------------------------------------------------

Rows = list[Any]


def sink_rows(times: Sequence[Any], first: int) -> pa.Table:
    """Return rows with a time and a running number; product times where each time is a pair."""
    ids = {"id": pa.array(range(first, first + len(times)), pa.int64())}
    if isinstance(times[0], tuple):
        one, two = zip(*times, strict=True)
        return pa.table({"t0": pa.array(one, pa.int64()), "t1": pa.array(two, pa.int64()), **ids})
    type_ = {int: pa.int64(), dt.date: pa.date32(), dt.datetime: pa.timestamp("us", "UTC")}[type(times[0])]
    return pa.table({"t": pa.array(times, type_), **ids})


def sink_events(times: Sequence[int], before: int, after: int) -> pa.Table:
    """Return rows with the progress that they make."""
    n = len(times)
    return pa.table(
        {
            "_event": ["message"] * n + ["progress"] * 2,
            "_time": pa.array([*times, before, after], pa.int64()),
            "_delta": pa.array([None] * n + [-1, 1], pa.int64()),
            "id": pa.array([*times, None, None], pa.int64()),
        }
    )


def sink_updates(times: Sequence[int], diffs: Sequence[int]) -> pa.Table:
    ids = pa.array([i % 2 for i in range(len(times))], pa.int64())
    return pa.table({"t": pa.array(times, pa.int64()), "d": pa.array(diffs, pa.int64()), "id": ids})


DAYS, HOURS = TIMES["date"], TIMES["timestamp"]
FAR = dt.datetime(9000, 1, 1, tzinfo=dt.UTC)
# Of each query its options, the micro-batches before the archive is made, and those after. The last one before is
# planned and not committed, as a driver leaves it that is killed: in the log of one half, not in that of the other.
SINKS: dict[str, tuple[dict[str, str], Rows, Rows]] = {
    "batch": ({"frontier": "batch"}, [sink_rows([7, 8], 0), sink_rows([9], 5)], [sink_rows([3], 9)]),
    "bounded": (
        {"timeColumn": "t", "frontier": "bounded", "lateness": "2", "lateData": "deadLetter"},
        [sink_rows([5, 9], 0), sink_rows([2, 6, 12], 5)],
        [sink_rows([9, 10, 15], 9)],
    ),
    "advance": (
        {"timeColumn": "t", "frontier": "bounded", "lateness": "1 day", "lateData": "advance"},
        [sink_rows(DAYS[1:3], 0), sink_rows([DAYS[0], DAYS[4]], 5)],
        [sink_rows([DAYS[1], DAYS[5]], 9)],
    ),
    "skew": (
        {
            "timeColumn": "t", "frontier": "bounded", "lateness": "90 minutes", "lateData": "deadLetter",
            "maxFutureSkew": "6 hours",
        },
        [sink_rows([HOURS[0], HOURS[3], FAR], 0), sink_rows([HOURS[1], HOURS[4]], 5)],
        [sink_rows([HOURS[2], HOURS[5]], 9)],
    ),
    "hold": ({"timeColumn": "t", "frontier": "hold"}, [sink_rows([5], 0), sink_rows([3, 4], 5)], [sink_rows([1], 9)]),
    "product": (
        {"timeColumn": "t0,t1", "frontier": "hold"},
        [sink_rows([(1, 2), (2, 1)], 0), sink_rows([(0, 5)], 5)],
        [sink_rows([(3, 3)], 9)],
    ),
    "events": (
        {"frontier": "events"},
        [sink_events([1, 5], MIN, 5), sink_events([5, 9], 5, 9)],
        [sink_events([11], 9, 12)],
    ),
    "updates": (
        {"timeColumn": "t", "frontier": "bounded", "lateness": "1", "diffColumn": "d", "keyColumns": "id"},
        [sink_updates([1, 2, 2], [1, 1, -1]), sink_updates([3, 4], [2, 1])],
        [sink_updates([4, 5], [-1, -1])],
    ),
}  # fmt: skip


def sink_of(folder: Path, name: str) -> SinkDriver:
    return SinkDriver(folder / name, query=f"query {name}", **SINKS[name][0])


def write_sinks(folder: Path) -> None:
    for place, (name, (_, batches, _)) in enumerate(SINKS.items()):
        (folder / name).mkdir()
        query = sink_of(folder, name)
        for batch in batches[:-1]:
            query.run([batch.slice(1), batch.slice(0, 1)])
        query.run([batches[-1]], crash="after commit" if place % 2 else "before commit")


def proceed_sinks(folder: Path) -> None:
    for name, (_, batches, rest) in SINKS.items():
        for batch in (batches[-1], *rest):
            sink_of(folder, name).run([batch])


# Dataflows ----------------------------------------------------------------------------------------------

EVENTS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64()), ("price", pa.decimal128(9, 2))])
CHANGES = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("op", pa.string()), ("v", pa.string())])
AT_ONCE = Indexing(0, 0, 0, background=False)


def spread(key: dict[str, Any], rows: pa.Table) -> pa.Table:
    """Return how far apart the numbers of a key are."""
    del key
    numbers = [n for n in rows["n"].to_pylist() if n is not None]
    made = [max(numbers) - min(numbers)] if numbers else []
    return pa.table({"apart": pa.array(made, pa.int64())})


def doubled(rows: pa.Table) -> pa.Table:
    return rows.select(["k", "n"]).set_column(1, "n", pc.multiply(rows["n"], 2))


def at_each_time(time: object, rows: pa.Table) -> pa.Table:
    del time
    return pa.table({"rows": pa.array([rows.num_rows] if rows.num_rows else [], pa.int64())})


def flow_of(folder: Path) -> Scope:
    """Return a dataflow with every operator that keeps something, each in an output of its own."""
    scope = Scope("golden")
    events, changes = scope.replay(folder / "in" / "events"), scope.replay(folder / "in" / "changes")
    facts = scope.replay(folder / "in" / "facts")
    key = events.select("k", "n")
    made = {
        "totals": events.aggregate(
            by="k", over="history", n=count(), s=sum_of("n"), d=sum_of("price"), f=sum_of("v"), m=avg_of("n"),
            least=min_of("n"), most=max_of("v"),
        ),
        "distinct": key.distinct(),
        "first": events.drop_duplicates("k"),
        "within": key.drop_duplicates(within=2),
        "latest": events.latest("k", order_by="n", deleted="n = 3"),
        "tombstones": key.latest("k", order_by="n", deleted="n = 3", tombstones=4),
        "top": events.top(2, by="k", order_by=["n", "v asc"]),
        "reduce": key.reduce(spread, by="k"),
        "current": changes.upsert(
            keys="id", sequence_by="at", delete_when="op = 'D'", except_columns=["op"], tombstones=40
        ),
        "versions": changes.upsert(
            keys="id", sequence_by="at", delete_when="op = 'D'", except_columns=["op"], history=True
        ),
        "truncated": changes.upsert(
            keys="id", sequence_by="at", delete_when="op = 'D'", truncate_when="op = 'T'", except_columns=["op"]
        ),
        "partial": changes.upsert(keys="id", sequence_by="at", except_columns=["op"], ignore_null_updates=True),
        "totals of facts": facts.aggregate(by="k", over="history", n=count(), s=sum_of("n"), most=max_of("n")),
        "distinct facts": facts.select("k").distinct(),
        "latest facts": facts.latest("k", order_by="n"),
        "top facts": facts.top(1, order_by="n"),
        "reduced facts": facts.reduce(spread, by="k"),
        "as of": key.join(facts.select("k", m=pc.field("n")), on="k", as_of=True, how="left"),
        "two deep": events.aggregate(by="k", over="history", n=count()).select("n").distinct(),
        "windows": events.delay(windows(4, every=2)).aggregate(by="k", n=count(), v=max_of("v")),
        "pairs": key.join(key.select("k", m=pc.field("n")), on="k"),
        "mapped": events.map(doubled).concat(key.filter("n > 1")).delay(plus(1)),
        "notified": events.unary_notify(at_each_time),
        "spooled": key.spool(folder / "spool").filter("n > 1").distinct(),
    }  # fmt: skip
    for name, stream in made.items():
        stream.capture(folder / name)
    return scope


def event_rows(time: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [
        (f"k{i % 4}", (time * i) % 5, None if i == 3 else time / 3 + i, Decimal(time * 7 + i) / 4) for i in range(6)
    ]
    return [*found, (None, 3, float("nan") if time == 2 else -0.0, None)]


CHANGED: list[tuple[int, tuple[int | None, int | None, str, str | None]]] = [
    (0, (7, 10, "I", "a")), (0, (8, 11, "I", "b")), (1, (7, 30, "U", None)), (1, (8, 25, "D", None)),
    (2, (9, 26, "I", "c")), (3, (7, 20, "U", "d")), (3, (8, 20, "U", "e")), (4, (None, 31, "I", "f")),
    (5, (9, None, "I", "without")), (5, (7, 50, "D", None)), (6, (7, 40, "U", "late")), (7, (8, 60, "I", "g")),
    (8, (9, 61, "U", "h")), (9, (1, 70, "T", None)), (10, (1, 71, "I", "i")), (10, (7, 45, "U", "later")),
]  # fmt: skip


def feed(folder: Path, times: range) -> None:
    """Write the inputs at some times."""
    for time in times:
        for name, schema, rows in (
            ("events", EVENTS, event_rows(time)),
            ("changes", CHANGES, [row for when, row in CHANGED if when == time]),
        ):
            columns = {f.name: pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)}
            table = pa.table({"_time": pa.array([time] * len(rows), pa.int64()), **columns})
            open_log(folder / "in" / name).writer(owner="owner").append(table, advance_to=time + 1)
        gone = [(time, -1, f"k{time % 4}", time - 4), (time, -1, "all", time - 1)] if time > 3 else []
        more = [(time, 1, f"k{time % 4}", time)] + ([(time, 1, "all", time)] if time > 2 else [])
        change(open_log(folder / "in" / "facts"), [*gone, *more], time + 1)


def step(folder: Path, steps: int | None, times: int = 2) -> None:
    """Run the dataflow: some of its steps, or until nothing is left; of a number of times each."""
    scope = flow_of(folder)
    engine = Engine(
        scope.name, scope.sinks, scope.storage, files_of=catalog_of, indexing=AT_ONCE, limits=Limits(times=times),
        most_together=3,
    )  # fmt: skip
    run = runner(scope.storage)
    if steps is None:
        engine.advance(run)
        return
    engine.begin()
    for _ in range(steps):
        with_runner(engine, run).step()


def logs_of_dataflow(folder: Path) -> None:
    create_log(folder / "in" / "events", EVENTS, minimum=(0,))
    create_log(folder / "in" / "changes", CHANGES, minimum=(0,))
    create_log(folder / "in" / "facts", PLAIN, minimum=(0,), kind="collection", key="k")


def write_dataflow(folder: Path) -> None:
    logs_of_dataflow(folder)
    feed(folder, range(3))
    step(folder, None)
    feed(folder, range(3, 6))
    step(folder, 2, times=1)  # some outputs are further than others, and what is kept for them than they


def read_dataflow(folder: Path) -> Facts:
    return {"logs": logs_below(folder), "indexes": indexes_below(folder)}


def check_refused(folder: Path) -> None:
    """See that an output knows what it is made by."""
    scope = Scope("golden")
    scope.replay(folder / "in" / "events").filter("n > 2").select("k", "n").capture(folder / "mapped")
    with pytest.raises(errors.PlanMismatchError):
        Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))


def proceed_dataflow(folder: Path) -> None:
    check_refused(folder)
    feed(folder, range(6, 11))
    step(folder, None, times=4)


# A dataflow with hints ----------------------------------------------------------------------------------
#
# It was written with `stream.exchange("k").broadcast()` wherever `hinted` stands: hints for Spark's plan, which are no
# part of a fingerprint. With them goes a copy of a collection that a join, or `top`, looked into: without a hint
# between they look into the log itself, which is another plan.

OF_HINTS = ("pairs", "twice", "firsts", "few firsts", "as of", "top")


def unchanged(stream: Stream) -> Stream:
    return stream


def inspected(stream: Stream) -> Stream:
    """Return the same rows by another operator that is no part of a plan."""
    return stream.inspect(lambda *_: None)


def hints_of(
    folder: Path,
    *,
    of_join: Callable[[Stream], Stream] = unchanged,
    of_top: Callable[[Stream], Stream] = unchanged,
    replaces: str | None = None,
) -> Scope:
    scope = Scope("hints")
    events, facts = (scope.replay(folder / "in" / name) for name in ("events", "facts"))
    key, hinted = events.select("k", "n"), unchanged
    made = {
        "pairs": hinted(key).join(hinted(key.select("k", m=pc.field("n"))), on="k"),
        "twice": key.distinct(name="one").concat(hinted(key).distinct(name="two")),
        "firsts": hinted(events).drop_duplicates("k"),
        "few firsts": events.drop_duplicates("k").filter("n > 0"),
        "as of": events.select("k", x=pc.field("n")).join(of_join(facts), on="k", as_of=True),
        "top": of_top(facts).top(1, by="k", order_by="n"),
    }
    assert tuple(made) == OF_HINTS
    for name, stream in made.items():
        stream.capture(folder / name, replaces=replaces if name == "top" else None)
    return scope


def check_start(scope: Scope) -> None:
    """Refuse what a query refuses when it is started."""
    check_plans(scope.sinks, existing_logs(scope.sinks, scope.storage))


def read_hints(folder: Path) -> Facts:
    return {name: log_facts(folder / name) for name in OF_HINTS}


def proceed_hints(folder: Path) -> None:
    for kept, refused in ({"of_top": inspected}, "as of"), ({"of_join": inspected}, "top"):
        with pytest.raises(errors.PlanMismatchError, match=f"{refused}'.* made by .*say replaces=") as found:
            check_start(hints_of(folder, **kept))
    check_start(hints_of(folder, of_join=inspected, of_top=inspected))
    feed(folder, range(6, 9))
    scope = hints_of(folder, of_join=inspected, replaces=found.value.found)
    engine = Engine(
        scope.name, scope.sinks, scope.storage, files_of=catalog_of, indexing=AT_ONCE, limits=Limits(times=2)
    )
    engine.advance(runner(scope.storage))


# A dataflow that stopped --------------------------------------------------------------------------------

_mended: list[bool] = []


def fragile(rows: pa.Table) -> pa.Table:
    """Give the numbers; until it is mended it gives no usable column from time 4 on."""
    latest = pc.max(rows["_time"]).as_py()
    return rows.select(["n"] if _mended or latest is None or latest < 4 else ["k"])


def run_fragile(folder: Path, run: str) -> None:
    scope = Scope("fragile")
    rows = scope.replay(folder / "in")
    rows.map(fragile).capture(folder / "bad")
    rows.filter("n > 0").capture(folder / "good")
    engine = Engine("fragile", scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=1), run=run)
    engine.begin()
    while with_runner(engine, runner(scope.storage)).step() is not None:
        pass  # an output that failed is left


def write_failed(folder: Path) -> None:
    log = create_log(folder / "in", PLAIN, minimum=(0,))
    put(log, [1, 2, 4, 5], 6)
    run_fragile(folder, "first")


def read_failed(folder: Path) -> Facts:
    state = open_log(folder / "bad").core.stream("main")
    assert state is not None
    assert state.note.output is not None
    failures = [each.operator for each in state.note.output.failures]
    return logs_below(folder) | {"failed": failures}


def proceed_failed(folder: Path) -> None:
    put(open_log(folder / "in"), [6, 7], 9)
    _mended.append(True)
    try:
        run_fragile(folder, "second")
    finally:
        _mended.clear()


# A subscription -----------------------------------------------------------------------------------------


def write_subscription(folder: Path) -> None:
    log = create_log(folder / "log", PLAIN, minimum=(0,), kind="collection")
    for time in range(4):
        change(log, [(time, 1, "a", time)], time + 1)
    with subscribe(log, as_of=1, name="report", expiry=NEVER, poll_s=0) as subscription:
        batch = subscription.next_batch(timeout_s=0)
        assert batch is not None
        subscription.acknowledge(batch.upper)
        (folder / "cut").write_text(str(subscription.cut), encoding="utf-8")
        (folder / "given").write_text(repr(sorted(map(repr, batch.rows.to_pylist()))), encoding="utf-8")
    change(log, [(4, -1, "a", 2), (5, 1, "b", 9)], 6)
    # Nothing else holds the log: what the subscription has still to be given stays for it alone.
    log.allow_compaction([6])
    log.compact(logical=True)


def read_subscription(folder: Path) -> Facts:
    log = open_log(folder / "log")
    return {
        "log": log_facts(folder / "log") | {"since": log.since().to_json(), "retained for": list(log.retainers())},
        "given": (folder / "given").read_text(encoding="utf-8"),
    }


def proceed_subscription(folder: Path) -> None:
    log = open_log(folder / "log")
    change(log, [(6, 1, "c", 1)], 8)
    cut = (folder / "cut").read_text(encoding="utf-8")
    with subscribe(log, name="report", expiry=NEVER, resume_from=cut, poll_s=0) as subscription:
        rows = []
        while (batch := subscription.next_batch(timeout_s=0)) is not None:
            rows += batch.rows.to_pylist()
            subscription.acknowledge(batch.upper)
    (folder / "given").write_text(repr(sorted(map(repr, rows))), encoding="utf-8")


# Imports of captures ------------------------------------------------------------------------------------

CAPTURED = [
    (0, [("a", 1), ("b", 1 << 63)]), {0: -1, 3: 1}, (5, [("c", 3)]), (3, [("a", 4)]), {3: -1, 7: 2}, {7: -1},
    (9, [("d", 5)]), {7: -1},
]  # fmt: skip
IMPORT = CaptureTypes.parse("u64", "(string, u64)", timely="0.31")


def import_bytes(folder: Path, n_events: int) -> None:
    """Import a capture that has grown to so many events, and to a part of the next one."""
    whole = capture_bytes(CAPTURED, time="u64", record="(string, u64)")
    part = capture_bytes(CAPTURED[:n_events], time="u64", record="(string, u64)")
    (folder / "capture.bin").write_bytes(whole[: len(part) + 5])
    log = open_log(folder / "log")
    StreamImport(log, "worker", IMPORT, name="capture", commit_bytes=100).take_file(str(folder / "capture.bin"))


def write_imports(folder: Path) -> None:
    (time,) = IMPORT.layout.domain.types
    create_log(folder / "log", IMPORT.payload, times=time.value, minimum=IMPORT.layout.domain.minimum)
    import_bytes(folder, 4)


def proceed_imports(folder: Path) -> None:
    for n_events in (4, 6, len(CAPTURED)):
        import_bytes(folder, n_events)


# Instances ----------------------------------------------------------------------------------------------

TOTALS = "SELECT k, count(*) AS n, sum(v) AS s, max(v) AS most FROM orders GROUP BY k"
INDEXES = ("totals", "large", "often")
AHEAD = 10**6


def order(log: Log, updates: Sequence[tuple[int, int, int, int]], upper: int) -> None:
    """Append updates (time, diff, k, v)."""
    columns = {
        name: pa.array([update[place] for update in updates], pa.int64())
        for place, name in enumerate(("_time", "_diff", "k", "v"))
    }
    log.writer(owner="owner").append(pa.table(columns), advance_to=upper)


def orders_in(folder: Path) -> Log:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    log = create_log(folder / "orders", schema, kind="collection", minimum=(0,))
    order(log, [(1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), (3, -1, 1, 10), (3, 1, 3, 5)], 4)
    return log


def opened(folder: Path) -> Handle:
    # Where /tmp is a link, the place is another one than it was.
    return handle(folder / "instance", moved=True)


def write_instance(folder: Path) -> None:
    log = orders_in(folder)
    with opened(folder) as instance:
        imports = {"orders": log.path}
        instance.index("totals", TOTALS, imports=imports, key="k")
        instance.index("large", "SELECT k, v FROM orders WHERE v > 6", imports=imports, key=["k", "v"])
        instance.index("often", "SELECT n, count(*) AS c FROM totals GROUP BY n", key="n")
        instance.maintain("keys", "SELECT DISTINCT k FROM orders", folder / "keys", imports=imports)
        instance.index("dropped", "SELECT k FROM orders", imports=imports)
        instance.configure(max_result_bytes=1 << 20)
        for name in (*INDEXES, "keys"):
            instance.await_frontier(name, 3)
        instance.allow_compaction("large", [2])
        instance.drop("dropped")
        with instance.subscribe("totals", as_of=3) as batches:
            assert batches.next_batch(timeout_s=60) is not None
        instance.write_down()


def read_instance(folder: Path) -> Facts:
    """Return what is answered, by an instance that writes nothing."""
    upper = open_log(folder / "orders").frontier().elements[0][0]
    found: Facts = {}
    with handle(folder / "instance", read_only=True) as instance:
        for name in (*INDEXES, "keys"):
            found[name] = sorted(map(repr, instance.peek(name, as_of=upper - 1).to_pylist()))
        found["one key"] = sorted(map(repr, instance.peek("totals", as_of=upper - 1, keys={"k": [1]}).to_pylist()))
        found["there"] = [name for name in (*INDEXES, "keys", "dropped") if instance.has(name)]
        found["largest result"] = instance.configured(["max_result_bytes"])
    return found


def proceed_instance(folder: Path) -> None:
    order(open_log(folder / "orders"), [(4, -1, 2, 20), (5, 1, 4, 40), (5, 1, 3, 6)], 7)
    with opened(folder) as instance:
        for name in (*INDEXES, "keys"):
            instance.await_frontier(name, 6)


def write_ahead(folder: Path) -> None:
    log = orders_in(folder)
    with opened(folder) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.index("plain", "SELECT k FROM orders", imports={"orders": log.path})
        instance.maintain("keys", "SELECT DISTINCT k FROM orders", folder / "keys", imports={"orders": log.path})
        for name in ("totals", "plain", "keys"):
            instance.await_frontier(name, 3)
        instance.allow_compaction("totals", [AHEAD])
        instance.write_down()


def read_ahead(folder: Path) -> Facts:
    return {name: log_facts(folder / name) for name in ("orders", "keys")}


def proceed_ahead(folder: Path) -> None:
    order(open_log(folder / "orders"), [(4, -1, 2, 20), (5, 1, 4, 40), (5, 1, 3, 6)], 7)
    with opened(folder) as instance:
        instance.await_frontier("keys", 6)


def write_ahead_of_reader(folder: Path) -> None:
    log = orders_in(folder)
    with opened(folder) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.index("often", "SELECT n, count(*) AS c FROM totals GROUP BY n", key="n")
        instance.maintain("keys", "SELECT DISTINCT k FROM orders", folder / "keys", imports={"orders": log.path})
        for name in ("often", "keys"):
            instance.await_frontier(name, 3)
        # It does not become the as_of of its dataflow, which another one reads.
        instance.allow_compaction("totals", [AHEAD])
        instance.write_down()


THINGS = [
    Thing("logs", write_logs, read_logs, proceed_logs),
    Thing("owners", write_owners, read_owners, proceed_owners),
    Thing("sinks", write_sinks, logs_below, proceed_sinks),
    Thing("dataflow", None, read_dataflow, proceed_dataflow),
    Thing("dataflow by place", write_dataflow, read_dataflow, proceed_dataflow),
    Thing("hints", None, read_hints, proceed_hints),
    Thing("failed", write_failed, read_failed, proceed_failed),
    Thing("subscription", write_subscription, read_subscription, proceed_subscription),
    Thing("imports", write_imports, logs_below, proceed_imports),
    Thing("instance", write_instance, read_instance, proceed_instance),
    Thing("instance ahead", write_ahead, read_ahead, proceed_ahead),
    Thing("instance ahead of reader", write_ahead_of_reader, read_ahead, proceed_ahead),
]
