"""Continual tasks through real Spark: bodies in SQL and Python, settings, views, refusals, expectations, failures.

What a task writes when is told by `tests/property/test_continual.py`, without Spark. Here is what only Spark shows.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.errors import (
    InvalidUsageError,
    OperatorError,
    OwnershipError,
    PlanMismatchError,
    SchemaMismatchError,
    SinceViolationError,
)
from spark_timely.typing import DataflowQuery
from tests.faults.harness import long_lane
from tests.oracles.continual import Row, Seen, statements
from tests.property import test_continual as histories
from tests.property.test_continual import Case, World
from tests.spark.connect_continual_job import KV, contents, kv_log, many_steps, messages, updates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

UPSERT = """
    DELETE FROM output WHERE k IN (SELECT k FROM i);
    INSERT INTO output SELECT k, max(n) AS n FROM i GROUP BY k
"""


def run(spark: SparkSession, *tasks: st.Dataflow, **options: Any) -> DataflowQuery:
    """Run tasks in one query until nothing waits."""
    query = tasks[0].start(spark, trigger="availableNow", beside=tasks[1:], **options)
    assert query.await_termination(240)
    return query


def at_times(rows: Mapping[int, list[Row]]) -> list[tuple[int, Row, int]]:
    return [(time, row, 1) for time, some in rows.items() for row in some]


@pytest.fixture(autouse=True)
def no_view_left(spark: SparkSession) -> Iterator[None]:
    before = {table.name for table in spark.catalog.listTables()}
    yield
    assert {table.name for table in spark.catalog.listTables()} == before


# What tasks are for -----------------------------------------------------------------------------------


def test_checks_of_the_seed_and_of_materialize(spark: SparkSession, tmp_path: Path) -> None:
    numbers = kv_log(
        tmp_path / "numbers", at_times({1: [("x", 1)], 2: [("x", 2), ("x", 3)], 3: [("x", n) for n in (4, 5, 6)]})
    )
    small = kv_log(
        tmp_path / "small",
        [
            (1, ("v", 1), 1),
            (2, ("v", 1), -1),
            (2, ("vv", 1), 1),
            (3, ("vv", 1), -1),
            (3, ("vvv", 1), 1),
            (5, ("w", 1), 1),
        ],
        kind="collection",
    )
    big = kv_log(tmp_path / "big", at_times({1: [("a", 1)], 2: [("b", 1)], 3: [("c", 1)]}))
    pairs = kv_log(
        tmp_path / "pairs",
        at_times({1: [("1", 2), ("1", 1)], 2: [("1", 3), ("2", 4)], 3: [("1", 5), ("2", 6), ("3", 7)], 4: [("3", 8)]}),
    )
    anomalies = kv_log(
        tmp_path / "anomalies", [(1, ("p", 1), 1), (2, ("p", 1), -1), (4, ("q", 2), 1)], kind="collection"
    )
    tasks = [
        st.ContinualTask("sum", inputs={"i": numbers}, references={"whole": numbers}, output=tmp_path / "sum",
                         body="INSERT INTO output SELECT sum(n) AS total FROM whole WHERE EXISTS (SELECT * FROM i)"),
        st.ContinualTask("own sum", inputs={"i": numbers}, output=tmp_path / "own",
            schema=pa.schema([("n", pa.int64())]),
                         body="SELECT (SELECT coalesce(max(n), 0) FROM output) + (SELECT sum(n) FROM i)"),
        st.ContinualTask("join", inputs={"big": big}, references={"small": small}, output=tmp_path / "join",
                         body="SELECT big.k, small.k AS v FROM big JOIN small USING (n)"),
        st.ContinualTask("upsert", inputs={"i": pairs}, output=tmp_path / "upsert", body=UPSERT),
        st.ContinualTask("audit_log", inputs={"anomalies": anomalies}, output=tmp_path / "audit_log",
                         body="INSERT INTO output SELECT * FROM anomalies"),
    ]  # fmt: skip
    run(spark, *tasks)
    assert messages(tmp_path / "sum") == Counter({(1, 1): 1, (2, 6): 1, (3, 21): 1})
    assert messages(tmp_path / "own") == Counter({(1, 1): 1, (2, 6): 1, (3, 21): 1})
    assert messages(tmp_path / "join") == Counter({(1, "a", "v"): 1, (2, "b", "vv"): 1, (3, "c", "vvv"): 1})
    assert [contents(tmp_path / "upsert", time) for time in (1, 2, 3, 4)] == [
        Counter([("1", 2)]),
        Counter([("1", 3), ("2", 4)]),
        Counter([("1", 5), ("2", 6), ("3", 7)]),
        Counter([("1", 5), ("2", 6), ("3", 8)]),
    ]
    # What goes from the input stays in the output.
    assert messages(tmp_path / "audit_log") == Counter({(1, "p", 1): 1, (4, "q", 2): 1})
    for name in ("sum", "own", "join", "upsert", "audit_log"):
        log = st.open_log(tmp_path / name)
        assert log.frontier().to_json() == [10], name
        assert log.verify().legal, name


SQL: dict[str, tuple[str, str]] = {
    "copy": ("SELECT k, n FROM i0", "copy"),
    "join": ("SELECT i.k, coalesce(i.n, 0) * 10 + coalesce(r.n, 0) FROM i0 i JOIN r1 r ON i.k <=> r.k", "join"),
    "audit": (
        "SELECT 'sum', coalesce((SELECT max(n) FROM output WHERE k = 'sum'), 0) + 1"
        " + (SELECT coalesce(sum(abs(n)), 0) FROM i0)",
        "audit",
    ),
    "upsert": (
        "DELETE FROM output WHERE EXISTS (SELECT * FROM i0 WHERE i0.k <=> output.k);"
        "INSERT INTO output SELECT k, max(coalesce(n, 0)) FROM i0 GROUP BY k",
        "upsert",
    ),
    "both": (
        "INSERT INTO output SELECT k, n FROM i0; DELETE FROM output WHERE n % 2 = 1;"
        "INSERT INTO output (n, k) SELECT count(*), 'count' FROM output HAVING EXISTS (SELECT * FROM i0)",
        "counted",
    ),
}


def counted(seen: Seen, time: int, output: Sequence[Row]) -> list[Row]:
    return [("count", len(output))]


COUNTED = statements(
    ("insert", lambda seen, time, output: seen["i0"]),
    ("delete", lambda seen, time, output: [row for row in output if (row[1] or 0) % 2]),
    ("insert", counted),
)


@pytest.mark.parametrize("type_", ["long", "date", "timestamp"])
@pytest.mark.parametrize("seed", range(8 if long_lane() else 1))
def test_sql_is_as_the_program_says(spark: SparkSession, tmp_path: Path, seed: int, type_: str) -> None:
    """Random histories, each time type with one of the bodies in the short lane."""
    rng = random.Random(f"{seed} {type_}")
    short = {"long": ["join"], "date": ["upsert"], "timestamp": ["both"]}[type_]
    kinds = rng.choice([("stream", "collection"), ("collection", "stream"), ("collection", "collection")])
    world = World(tmp_path, rng, Case("join", ((kinds[0], "inserts"), (kinds[1], "contents")), type_=type_, delta=True))
    log0, log1 = (world.paths[name] for name in ("log0", "log1"))
    names = list(SQL) if long_lane() else short
    tasks = [
        st.ContinualTask(
            name,
            inputs={"i0": log0},
            references={"r1": log1},
            output=tmp_path / name,
            body=SQL[name][0],
            schema=histories.SCHEMA,
        )
        for name in names
    ]
    for _ in range(2):
        for _ in range(4 if long_lane() else 2):
            world.write("log0")
            world.write("log1")
        run(spark, *tasks)
    world.close()
    run(spark, *tasks)
    for name in names:
        which = SQL[name][1]
        world.made[name] = st.open_log(tmp_path / name)
        world.versions = [(-(10**9), COUNTED if which == "counted" else histories.BODIES[which][0])]
        assert world.made[name].frontier().is_empty, name
        assert world.found(name) == world.program("log0").run(None, world.made[name].kind), name


# Views and settings ------------------------------------------------------------------------------------


def test_two_tasks_with_one_alias_and_a_users_view(spark: SparkSession, tmp_path: Path) -> None:
    """Neither task sees the other's log, nor the user's view of that name, which stays as it is."""
    one = kv_log(tmp_path / "one", at_times({time: [("one", time)] for time in range(6)}))
    two = kv_log(tmp_path / "two", at_times({time: [("two", -time)] for time in range(6)}))
    spark.createDataFrame([("user", 0)], ["k", "n"]).createOrReplaceTempView("o")
    spark.createDataFrame([("user", 1)], ["k", "n"]).createOrReplaceTempView("output")
    before = {table.name for table in spark.catalog.listTables()}
    body = "SELECT o.k, o.n, (SELECT count(*) FROM output) AS c FROM o"
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("c", pa.int64())])
    tasks = [
        st.ContinualTask(f"task {name}", inputs={"o": name}, output=tmp_path / f"of {Path(name).name}", body=body,
                         schema=schema)
        for name in (one, two)
    ]  # fmt: skip
    try:
        run(spark, *tasks)
        assert {table.name for table in spark.catalog.listTables()} == before
        assert [tuple(row) for row in spark.table("o").collect()] == [("user", 0)]
        assert [tuple(row) for row in spark.table("output").collect()] == [("user", 1)]
    finally:
        spark.catalog.dropTempView("o")
        spark.catalog.dropTempView("output")
    assert messages(tmp_path / "of one") == Counter({(time, "one", time, time): 1 for time in range(6)})
    assert messages(tmp_path / "of two") == Counter({(time, "two", -time, time): 1 for time in range(6)})


def test_settings_of_the_first_start_hold(spark: SparkSession, tmp_path: Path) -> None:
    """A number that is none is null as long as the task lives, for it began without ANSI; the session stays strict."""
    log = kv_log(tmp_path / "in", at_times({1: [("1", 1), ("x", 1)]}), upper=3)
    task = st.ContinualTask(
        "casts", inputs={"i": log}, output=tmp_path / "out", body="SELECT CAST(k AS INT) AS n FROM i"
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        run(spark, task)
        spark.conf.set("spark.sql.ansi.enabled", "true")
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
        st.open_log(log).writer(owner="test").append([{"_time": 4, "k": "y", "n": 1}], advance_to=6)
        again = st.ContinualTask(
            "casts", inputs={"i": log}, output=tmp_path / "out", body="select cast(k as int) as n\nFROM i  -- the same"
        )
        run(spark, again)
        assert spark.conf.get("spark.sql.ansi.enabled") == "true"
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kathmandu"
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
        spark.conf.set("spark.sql.ansi.enabled", str(ansi))
    assert messages(tmp_path / "out") == Counter({(1, 1): 1, (1, None): 1, (4, None): 1})
    note = st.open_log(tmp_path / "out").core.stream("main").note.output.task
    assert (note.settings["spark.sql.ansi.enabled"], note.settings["spark.sql.session.timeZone"]) == ("false", zone)


# Functions ---------------------------------------------------------------------------------------------


def test_functions_insert_and_delete(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("a", 2), ("a", 1)], 2: [("a", 3), ("b", 4)], 5: [("c", 0)]}))
    called: list[object] = []

    def upsert(inputs: Any, references: Any, time: object, output: DataFrame | None) -> Any:
        from pyspark.sql import functions as F

        called.append(time)
        best = inputs["i"].groupBy("k").agg(F.max("n").alias("n"))
        if output is None:
            return best
        if time == 5:
            return tf.Changes(delete=output.where("k = 'a'").unionByName(output.where("k = 'a'")))
        return tf.Changes(insert=best, delete=output.join(best.select("k"), "k", "left_semi"))

    def whole(inputs: Any, references: Any, time: object, output: DataFrame | None) -> Any:
        return references["r"].where(f"n <= {time}")

    tasks = [
        st.ContinualTask("upsert", inputs={"i": log}, body=upsert, version="1", deletes=True,
            output=tmp_path / "upsert"),
        st.ContinualTask("whole", inputs={"i": log}, references={"r": log}, body=whole, version="1",
            output=tmp_path / "whole"),
        st.ContinualTask("nothing", inputs={"i": log}, body=lambda *_: tf.Changes(), version="1", deletes=True,
                         output=tmp_path / "nothing", schema=KV),
    ]  # fmt: skip
    run(spark, *tasks)
    assert called[-1] == 5
    assert [contents(tmp_path / "upsert", time) for time in (1, 2, 5)] == [
        Counter([("a", 2)]), Counter([("a", 3), ("b", 4)]), Counter([("b", 4)])
    ]  # fmt: skip
    # A function that does not look at its input writes its whole result at each write time.
    assert messages(tmp_path / "whole") == Counter(
        {(1, "a", 1): 1, (2, "a", 1): 1, (2, "a", 2): 1, (5, "a", 1): 1, (5, "a", 2): 1, (5, "a", 3): 1, (5, "b", 4): 1,
         (5, "c", 0): 1}
    )  # fmt: skip
    assert messages(tmp_path / "nothing") == Counter()
    assert st.open_log(tmp_path / "nothing").frontier().to_json() == [10]
    changed = st.ContinualTask(
        "whole", inputs={"i": log}, references={"r": log}, body=whole, version="2", output=tmp_path / "whole"
    )
    with pytest.raises(PlanMismatchError):
        run(spark, changed)


def test_deletes_are_an_input(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        (1, ("a", 1), 2),
        (2, ("a", 1), -2),
        (3, ("b", 2), 1),
        (3, ("b", 2), -1),
        (4, ("c", 3), 1),
        (6, ("c", 3), -1),
    ]
    log = kv_log(tmp_path / "in", rows, kind="collection")
    stream = kv_log(tmp_path / "stream", at_times({2: [("s", 1)], 4: [("s", 2)]}))
    body = "SELECT 'gone' AS w, k, n FROM gone UNION ALL SELECT 'came', k, n FROM came"
    tasks = [
        st.ContinualTask("both", inputs={"came": log, "gone": tf.deletes(log)}, output=tmp_path / "both", body=body),
        # Of a stream log nothing is ever taken away.
        st.ContinualTask("of a stream", inputs={"came": log, "gone": tf.deletes(stream)}, output=tmp_path / "none",
            body=body),
    ]  # fmt: skip
    run(spark, *tasks)
    came = {(1, "came", "a", 1): 2, (4, "came", "c", 3): 1}
    assert messages(tmp_path / "both") == Counter({**came, (2, "gone", "a", 1): 2, (6, "gone", "c", 3): 1})
    assert messages(tmp_path / "none") == Counter(came)


# What is expected, and what fails ------------------------------------------------------------------------


def test_expectations_fail_drop_or_set_apart(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)], 2: [("b", -1), ("b", 2), (None, 3)], 3: [("c", 3)]}))

    def task(how: str) -> st.ContinualTask:
        met = {"some": ("n > 0", how), "named": ("k IS NOT NULL AND k <> ''", how)}
        return st.ContinualTask(how, inputs={"i": log}, output=tmp_path / how, body="SELECT * FROM i", expect=met)

    with pytest.raises(StreamingQueryException, match=r"found 1 rows that do not meet expectation 'some': n > 0"):
        run(spark, task("fail"), task("drop"), task("dead_letter"))
    log_of = {how: st.open_log(tmp_path / how) for how in ("fail", "drop", "dead_letter")}
    assert messages(tmp_path / "fail") == Counter({(1, "a", 1): 1})
    assert log_of["fail"].frontier().to_json() == [2]
    kept = Counter({(1, "a", 1): 1, (2, "b", 2): 1, (3, "c", 3): 1})
    for how in ("drop", "dead_letter"):
        assert messages(tmp_path / how) == kept
        assert log_of[how].frontier().to_json() == [10]
        assert log_of[how].verify().legal
    assert log_of["drop"].dead().num_rows == 0
    letters = log_of["dead_letter"].dead().select(["_time", "k", "n", "_reason"]).to_pylist()
    assert sorted((row["_time"], row["n"], row["_reason"]) for row in letters) == [
        (2, -1, "task dead_letter: does not meet some: n > 0"),
        (2, 3, "task dead_letter: does not meet named: k IS NOT NULL AND k <> ''"),
    ]


def test_body_that_fails_stops_at_its_time_until_it_is_corrected(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)], 2: [("b", 0)], 3: [("c", 2)]}))
    other = kv_log(tmp_path / "other", at_times({1: [("z", 1)]}))

    def task(body: str, **options: Any) -> st.ContinualTask:
        return st.ContinualTask("divide", inputs={"i": log}, output=tmp_path / "out", body=body, **options)

    beside = st.ContinualTask("beside", inputs={"i": other}, output=tmp_path / "beside", body="SELECT * FROM i")
    with pytest.raises(StreamingQueryException, match=r"could not run task 'divide' at 2: .*DIVIDE_BY_ZERO"):
        run(spark, task("SELECT k, 6 / n AS q FROM i"), beside)
    assert messages(tmp_path / "beside") == Counter({(1, "z", 1): 1})
    out = st.open_log(tmp_path / "out")
    assert (messages(tmp_path / "out"), out.frontier().to_json()) == (Counter({(1, "a", 6.0): 1}), [2])
    note = out.core.stream("main").note.output
    assert (note.failure.kind, note.failure.lower) == ("OperatorError", "2")
    assert isinstance(note.failure.error, OperatorError)
    first = task("SELECT k, 6 / n AS q FROM i")
    assert "it stopped: could not run task 'divide' at 2" in first.why(2)
    assert "stopped: " in first.explain()
    corrected = "SELECT k, 6 / nullif(n, 0) AS q FROM i"
    with pytest.raises(PlanMismatchError, match="replaces") as refused:
        run(spark, task(corrected))
    assert note.plan in str(refused.value)
    run(spark, task(corrected, replaces=note.plan))
    assert messages(tmp_path / "out") == Counter({(1, "a", 6.0): 1, (2, "b", None): 1, (3, "c", 3.0): 1})
    note = st.open_log(tmp_path / "out").core.stream("main").note.output
    assert note.failures == ()


# Refusals ------------------------------------------------------------------------------------------------


def test_tasks_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)]}))
    product = st.create_log(tmp_path / "product", KV, times=["long", "long"])
    dated = st.create_log(tmp_path / "dated", KV, times=["date"])
    stream = st.create_log(tmp_path / "a stream", KV, minimum=(0,))
    forgetful = kv_log(tmp_path / "forgetful", at_times({1: [("a", 1)]}))
    st.open_log(forgetful).allow_compaction([5])

    def start(**given: Any) -> None:
        found = {"inputs": {"i": log}, "output": tmp_path / "out", "body": "SELECT k, n FROM i", **given}
        run(spark, st.ContinualTask("t", **found))

    def refused(error: type[Exception], text: str, **given: Any) -> None:
        with pytest.raises(error, match=text):
            start(**given)

    refused(InvalidUsageError, "found its output .* as input 'i'", output=log)
    refused(InvalidUsageError, "table 'nobody' that the task does not declare", body="SELECT i.* FROM i JOIN nobody")
    refused(InvalidUsageError, "could not", inputs={"i": product})
    refused(InvalidUsageError, r"found times of types \['date'\], \['long'\]", references={"r": dated})
    refused(InvalidUsageError, "could not", body="SELECT 1")  # no input
    refused(InvalidUsageError, "could not", body="SELECT k, n FROM i WHERE n < rand()")
    refused(InvalidUsageError, "could not", body="INSERT INTO i SELECT * FROM i")
    refused(SchemaMismatchError, "found name 'nonesuch', which is no column", body="SELECT nonesuch FROM i")
    missing = "found name 'nonesuch', which is no column"
    refused(SchemaMismatchError, missing, body="TABLE i; DELETE FROM output WHERE nonesuch = 1")
    refused(SchemaMismatchError, "with expectation 'e': found name 'now', which is no column", expect={"e": "n > now"})
    refused(InvalidUsageError, "found a body that Spark refuses: .*concat", body="SELECT concat(k, i.n)[1] FROM i")
    refused(InvalidUsageError, "found a function as body, and version=None", body=lambda *_: None)
    refused(SchemaMismatchError, "found stream log .* for a body that deletes", output=stream.path, body=UPSERT)
    assert not (tmp_path / "out").exists()
    refused(
        SinceViolationError,
        r"found since=\[5\] in stream log .* as 'r'",
        references={"r": forgetful},
        output=tmp_path / "none",
    )
    start()
    with pytest.raises(OwnershipError):
        run(spark, st.ContinualTask("u", inputs={"i": log}, output=tmp_path / "out", body="SELECT k, n FROM i"))
    # Another log under the input's path.
    shutil.rmtree(log)
    kv_log(Path(log), at_times({1: [("other", 1)], 12: [("other", 2)]}), upper=20)
    with pytest.raises(
        (StreamingQueryException, PlanMismatchError), match=r"another log|replaced|took its place|found"
    ):
        start()
    assert messages(tmp_path / "out") == Counter({(1, "a", 1): 1})


# Sugar, and tasks beside others -----------------------------------------------------------------------------


def test_transform_retain_and_a_dataflow_beside(spark: SparkSession, tmp_path: Path) -> None:
    """A task reads what a dataflow of the same query writes, and another what the task writes."""
    log = kv_log(tmp_path / "in", at_times({time: [("a", time), ("b", -time)] for time in range(1, 7)}))
    flow = st.Dataflow("flow", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(log).filter("n > 2").capture(str(tmp_path / "large"))
    run(spark, flow)  # its log must be there
    transform = st.ContinualTask.transform(
        "transform",
        input=tmp_path / "large",
        output=tmp_path / "doubled",
        query="SELECT k, n * 2 AS n FROM input WHERE n < 6",
    )
    retain = st.ContinualTask.retain("retain", input=log, output=tmp_path / "recent", expr="n > :time - 3 AND k = 'a'")
    st.open_log(log).writer(owner="test").append([{"_time": 11, "k": "a", "n": 5}], advance_to=15)
    run(spark, flow, transform, retain)
    run(spark, flow, transform, retain)  # what the dataflow wrote after the task looked
    assert messages(tmp_path / "doubled") == Counter(
        {(3, "a", 6): 1, (4, "a", 8): 1, (5, "a", 10): 1, (11, "a", 10): 1}
    )
    assert contents(tmp_path / "recent", 6) == Counter([("a", 4), ("a", 5), ("a", 6)])
    assert contents(tmp_path / "recent", 11) == Counter()
    updates_ = updates(tmp_path / "recent")
    assert updates_[11, "a", 5] == -1, "what is not to be kept comes to nothing"
    assert st.open_log(tmp_path / "doubled").frontier().to_json() == [15]


def test_a_query_that_lives_follows_its_logs(spark: SparkSession, tmp_path: Path) -> None:
    """Read-only beside it is a second replica, which takes over once it may write."""
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)]}), upper=2)
    body = "SELECT k, n + (SELECT count(*) FROM output) AS n FROM i"

    def task(name: str) -> st.ContinualTask:
        return st.ContinualTask("t", inputs={"i": log}, output=tmp_path / "out", body=body, schema=KV,
                                checkpoint=str(tmp_path / name))  # fmt: skip

    first = task("one").start(spark, trigger={"processingTime": "0 seconds"})
    try:
        first.await_frontier(1, timeout_s=120)
        second = task("two").start(spark, trigger={"processingTime": "0 seconds"}, read_only=True)
        writer = st.open_log(log).writer(owner="test")
        writer.append([{"_time": 3, "k": "b", "n": 1}], advance_to=5)
        first.await_frontier(4, timeout_s=120)
        first.stop()
        writer.append([{"_time": 6, "k": "c", "n": 1}], advance_to=8)
        second.allow_writes()
        second.await_frontier(7, timeout_s=120)
        second.stop()
    finally:
        for query in spark.streams.active:
            query.stop()
    assert messages(tmp_path / "out") == Counter({(1, "a", 1): 1, (3, "b", 2): 1, (6, "c", 3): 1})


def test_what_cannot_be_cast_is_not_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("x", 1)]}))
    task = st.ContinualTask(
        "cast", inputs={"i": log}, output=tmp_path / "out", body="SELECT CAST(k AS DATE) AS d FROM i"
    )
    with pytest.raises(StreamingQueryException, match="CAST_INVALID_INPUT"):
        run(spark, task)
    state = st.open_log(tmp_path / "out").core.stream("main")
    assert state is not None
    assert state.note.output is not None
    assert state.note.output.failure is not None
    assert state.note.output.failure.kind == "OperatorError"


def test_start_has_the_settings_of_the_first_one(spark: SparkSession, tmp_path: Path) -> None:
    """What a session sets later changes nothing: not what is known by name, not what begins as what changes answers."""
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)], 2: [("b", 2)]}), upper=[2])
    other = {"spark.sql.caseSensitive": "true", "spark.sql.parser.escapedStringLiterals": "true"}
    body = r"SELECT K, length('\\n') AS n FROM i"

    def task() -> st.ContinualTask:
        return st.ContinualTask("settings", inputs={"i": log}, output=tmp_path / "out", body=body)

    run(spark, task())
    st.open_log(log).close()
    before = {name: spark.conf.get(name, None) for name in other}
    try:
        for name, value in other.items():
            spark.conf.set(name, value)
        assert task().compare(spark) == []
        run(spark, task())
        assert {name: spark.conf.get(name) for name in other} == other
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    assert messages(tmp_path / "out") == Counter({(1, "a", 2): 1, (2, "b", 2): 1})


def test_expectations_are_analysed_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)]}))
    for condition, found in (
        ("nonesuch > 1", "nonesuch"),
        ("n + 1", "'some' of type 'bigint'"),
        ("my_f(n) > 1", "'my_f'"),
    ):
        expect = {"some": condition}
        task = st.ContinualTask("t", inputs={"i": log}, output=tmp_path / "out", body="SELECT * FROM i", expect=expect)
        with pytest.raises(InvalidUsageError, match=found):
            run(spark, task)
    assert not (tmp_path / "out").exists()


def test_function_that_returns_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    log = kv_log(tmp_path / "in", at_times({1: [("a", 1)]}))

    def forgotten(inputs: Mapping[str, Any], references: Mapping[str, Any], time: int) -> None:
        inputs["i"].where("n > 0")

    body: Any = forgotten
    task = st.ContinualTask("t", inputs={"i": log}, output=tmp_path / "out", body=body, version="1", schema=KV)
    with pytest.raises(InvalidUsageError, match="found NoneType in place of a DataFrame"):
        run(spark, task)


def test_many_steps_leave_no_view_and_mix_no_row(spark: SparkSession, tmp_path: Path) -> None:
    many_steps(spark, tmp_path, 1000 if long_lane() else 8)
