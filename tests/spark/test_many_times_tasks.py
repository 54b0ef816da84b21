"""Continual tasks that catch up at many times together, through real Spark. Their texts are in `test_many_times`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.errors import InvalidUsageError, OperatorError
from spark_timely.testing import assert_same_together
from tests.spark.connect_continual_job import contents, kv_log, messages
from tests.spark.test_continual import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# Rows of the reference: there from the first time on and before the second.
VERSIONS = [("a", 1, 0, 5), ("a", 7, 5, 99), ("b", 2, 0, 17), ("b", 3, 0, 9), ("b", 3, 12, 13), (None, 5, 3, 99)]
JOINED = "SELECT o.k, o.n * coalesce(r.n, 0) + :time AS n FROM o LEFT JOIN r ON o.k <=> r.k"


@pytest.fixture(autouse=True)
def no_view_left(spark: SparkSession) -> Iterator[None]:
    before = {table.name for table in spark.catalog.listTables()}
    yield
    assert {table.name for table in spark.catalog.listTables()} == before


def orders_and_rates(folder: Path, upper: int = 20) -> tuple[list[tuple[int, Any, int]], dict[str, Any]]:
    rng = random.Random(3)
    orders = [
        (time, (rng.choice(["a", "b", "c", None]), rng.randint(1, 5)))
        for time in range(1, 20)
        for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    kv_log(folder / "o", [(time, row, 1) for time, row in orders], upper=upper)
    rates = [(at, (k, n), sign) for k, n, first, last in VERSIONS for at, sign in ((first, 1), (last, -1)) if at < 30]
    kv_log(folder / "r", rates, kind="collection", upper=30)
    logs = {"inputs": {"o": str(folder / "o")}, "references": {"r": str(folder / "r")}}
    return [(time, k, n) for time, (k, n) in orders], logs


def joined(orders: list[tuple[int, Any, int]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for time, k, n in orders:
        rates = [rate for key, rate, first, last in VERSIONS if key == k and first <= time < last]
        found.update((time, k, n * rate + time) for rate in rates or [0])
    return found


def test_a_task_that_is_behind_writes_many_times_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    orders, logs = orders_and_rates(tmp_path)
    expect = {"late": ("n < 30 OR :time < 15", "drop"), "few": ("n < 1000", "fail")}
    task = st.ContinualTask("many", **logs, body=JOINED, output=tmp_path / "out", expect=expect)
    assert_same_together(task, spark)
    run(spark, task)
    wanted = joined(orders)
    kept = Counter({(time, *row): n for (time, *row), n in wanted.items() if row[1] < 30 or time < 15})
    assert kept != wanted
    assert messages(tmp_path / "out") == kept
    log = st.open_log(tmp_path / "out")
    state = log.core.stream("main")
    assert state is not None
    # The beginning, the move up to the first write time, and all times.
    assert state.seq <= 3
    assert log.verify().legal
    assert "many times together" in task.explain()
    assert_same_together(task, spark)


def test_a_batch_that_fails_gives_what_each_time_gives(spark: SparkSession, tmp_path: Path) -> None:
    """Spark may divide before it compares times: only what one time alone gives is believed."""
    kv_log(tmp_path / "o", [(time, ("a", time), 1) for time in (1, 2, 3, 7, 8, 9)], upper=10)
    # The zero is there at times at which nothing is written, and at the last one.
    changes = [(0, ("a", 1), 1), (4, ("a", 1), -1), (4, ("a", 0), 1), (6, ("a", 0), -1), (6, ("a", 2), 1),
               (9, ("a", 2), -1), (9, ("a", 0), 1)]  # fmt: skip
    kv_log(tmp_path / "r", changes, kind="collection", upper=10)
    task = st.ContinualTask(
        "divide", inputs={"o": str(tmp_path / "o")}, references={"r": str(tmp_path / "r")}, output=tmp_path / "out",
        body="SELECT o.k, CAST(o.n * by AS BIGINT) AS n FROM o JOIN (SELECT k, 1 / n AS by FROM r) x USING (k)",
    )  # fmt: skip
    query = task.start(spark, trigger="availableNow")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        query.await_termination(240)
    (failure,) = query.failures()
    assert isinstance(failure, OperatorError) or "DIVIDE_BY_ZERO" in str(failure)
    assert messages(tmp_path / "out") == Counter(
        {(1, "a", 1): 1, (2, "a", 2): 1, (3, "a", 3): 1, (7, "a", 3): 1, (8, "a", 4): 1}
    )
    assert st.open_log(tmp_path / "out").frontier().to_json() == [9]


def test_functions_and_newest_contents_at_many_times(spark: SparkSession, tmp_path: Path) -> None:
    orders, logs = orders_and_rates(tmp_path)

    def body(inputs: Any, references: Any, times: Any) -> DataFrame:
        assert len(times) > 1 or times
        o, r = inputs["o"].alias("o"), references["r"].alias("r")
        there = (F.col("_time") >= F.col("_from")) & (F.col("_to").isNull() | (F.col("_time") < F.col("_to")))
        found = o.join(r, F.col("o.k").eqNullSafe(F.col("r.k")) & there, "left")
        number = F.col("o.n") * F.coalesce(F.col("r.n"), F.lit(0)) + F.col("_time")
        return found.select("o.k", number.alias("n"), "_time")

    function = st.ContinualTask("f", **logs, body=body, version="1", many_times=True, output=tmp_path / "f")
    # Of what is there now, whatever the time; and nothing waits for it.
    kv_log(tmp_path / "now", [(0, ("a", 1), 1), (3, ("a", 1), -1), (3, ("a", 4), 1)], kind="collection", upper=4)
    newest = st.ContinualTask(
        "newest", inputs=logs["inputs"], references={"r": tf.newest(tmp_path / "now")}, output=tmp_path / "newest",
        body="SELECT k, o.n * r.n AS n FROM o JOIN r USING (k)",
    )  # fmt: skip
    run(spark, function, newest)
    assert messages(tmp_path / "f") == joined(orders)
    assert messages(tmp_path / "newest") == Counter((time, k, n * 4) for time, k, n in orders if k == "a")
    assert st.open_log(tmp_path / "newest").frontier().to_json() == [20]
    assert_same_together(function, spark)
    # A change of it later changes nothing that was written, and is seen from then on.
    st.open_log(tmp_path / "now").writer(owner="test").append(
        pa.table({"_time": [5, 5], "_diff": [-1, 1], "k": ["a", "a"], "n": [4, 9]}), advance_to=6
    )
    st.open_log(tmp_path / "o").writer(owner="test").append(
        pa.table({"_time": [21, 22], "k": ["a", "a"], "n": [1, 2]}), advance_to=30
    )
    run(spark, newest)
    later = {row: n for row, n in messages(tmp_path / "newest").items() if row[0] > 20}
    assert later == {(21, "a", 9): 1, (22, "a", 18): 1}
    state = st.open_log(tmp_path / "newest").core.stream("main")
    assert state is not None
    assert state.note.output is not None
    assert state.note.output.step is not None
    assert state.note.output.step["newest"] == {"r": 5}


def test_collections_and_deletes_at_many_times(spark: SparkSession, tmp_path: Path) -> None:
    changes = [(1, ("x", 1), 2), (2, ("x", 1), -1), (2, ("y", 1), 1), (4, ("x", 1), -1), (4, ("z", 1), 1),
               (5, ("y", 1), -1), (5, ("y", 1), 1), (6, ("z", 1), 3), (7, ("z", 1), -2)]  # fmt: skip
    kv_log(tmp_path / "c", changes, kind="collection", upper=9)
    st.create_log(
        tmp_path / "into", pa.schema([("k", pa.string()), ("n", pa.int64())]), kind="collection", minimum=(0,)
    )
    came = st.ContinualTask(
        "came", inputs={"c": str(tmp_path / "c")}, body="SELECT k, n FROM c", output=tmp_path / "came"
    )
    went = st.ContinualTask(
        "went", inputs={"c": tf.deletes(tmp_path / "c")}, body="SELECT k, count(*) AS n FROM c GROUP BY k",
        output=tmp_path / "into",
    )  # fmt: skip
    run(spark, came, went)
    assert messages(tmp_path / "came") == Counter({(1, "x", 1): 2, (2, "y", 1): 1, (4, "z", 1): 1, (6, "z", 1): 3})
    assert messages(tmp_path / "into") == Counter({(2, "x", 1): 1, (4, "x", 1): 1, (7, "z", 2): 1})
    assert contents(tmp_path / "into", 9) == Counter({("x", 1): 2, ("z", 2): 1})


def test_what_runs_at_one_time_after_another_says_why(spark: SparkSession, tmp_path: Path) -> None:
    _, logs = orders_and_rates(tmp_path)
    for number, (body, why) in enumerate([
        ("SELECT 'all', max(n) AS n FROM o", "GROUP BY"),
        ("SELECT k, n FROM o LIMIT 1", "LIMIT"),
        ("SELECT k, n FROM o WHERE n > (SELECT coalesce(max(n), 0) FROM output)", "reads the output"),
    ]):  # fmt: skip
        schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
        task = st.ContinualTask(f"t{number}", **logs, body=body, output=tmp_path / f"{number}", schema=schema)
        assert why in task.explain(), body
        with pytest.raises(InvalidUsageError, match="one time after another"):
            task.compare_together(spark)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"body": "SELECT k FROM o", "many_times": True}, "many_times=True beside a body in SQL"),
        ({"body": lambda i, r, t, o: o, "version": "1", "many_times": True}, "a function that takes the output"),
        ({"body": lambda i, r, t: t, "version": "1", "many_times": True, "deletes": True}, "deletes=True"),
    ],
)
def test_refusals(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    kv_log(tmp_path / "o", [])
    with pytest.raises(InvalidUsageError, match=said):
        st.ContinualTask("t", inputs={"o": str(tmp_path / "o")}, output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("by", [1, -1, 1000])
def test_a_function_writes_at_the_times_of_its_step_alone(by: int, spark: SparkSession, tmp_path: Path) -> None:
    """Also where the time that it gives belongs to another row: it would depend on how times were put together."""
    kv_log(tmp_path / "o", [(time, ("a", time), 1) for time in (1, 3, 5)], upper=10)
    task = st.ContinualTask(
        "stray", inputs={"o": str(tmp_path / "o")}, output=tmp_path / "out", version="1", many_times=True,
        body=lambda inputs, references, times: inputs["o"].withColumn("_time", F.col("_time") + by),
    )  # fmt: skip
    query = task.start(spark, trigger="availableNow")
    with pytest.raises(Exception, match="where nothing is to be written"):
        query.await_termination(240)
    assert not messages(tmp_path / "out")
    assert st.open_log(tmp_path / "out").frontier().to_json() in ([0], [1])


def test_references_have_no_columns_of_reserved_names(tmp_path: Path) -> None:
    kv_log(tmp_path / "o", [])
    st.create_log(tmp_path / "r", pa.schema([("k", pa.string()), ("_to", pa.int64())]), minimum=(0,))
    with pytest.raises(InvalidUsageError, match="found column '_to' in reference 'r'"):
        st.ContinualTask(
            "t", inputs={"o": str(tmp_path / "o")}, references={"r": str(tmp_path / "r")}, output=tmp_path / "out",
            body=lambda i, r, t: i["o"], version="1", many_times=True,
        )  # fmt: skip


def test_contents_are_as_often_there_as_at_each_time_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that are there several times, come back, go before anything meets them, or are equal but for a null."""
    changes = [
        [(0, ("a", 1), 2), (0, (None, 1), 1), (0, ("b", None), 1), (1, ("a", 1), 1), (2, ("a", 1), -1)],
        [(5, ("a", 1), -2), (5, ("b", None), -1), (5, ("b", None), 1), (6, ("c", 1), 3), (7, ("c", 1), -1),
         (7, (None, 1), 2), (8, ("c", 1), -2), (8, ("a", 1), 1), (11, ("a", 1), -1)],
    ]  # fmt: skip
    kv_log(tmp_path / "r", changes[0], kind="collection", upper=5)
    kv_log(tmp_path / "o", [(time, (k, time), 1) for time in range(3, 10) for k in ("a", "b", "c", None)], upper=10)
    task = st.ContinualTask(
        "copies", inputs={"o": str(tmp_path / "o")}, references={"r": str(tmp_path / "r")}, output=tmp_path / "out",
        body="SELECT o.k, r.n FROM o LEFT JOIN r ON o.k <=> r.k",
    )  # fmt: skip
    # First nothing changes at the times of the step, or after it; then much does.
    for upper, more in ((5, None), (12, changes[1])):
        if more:
            rows = {"_time": [t for t, _, _ in more], "_diff": [diff for *_, diff in more]}
            rows |= {"k": [k for _, (k, _), _ in more], "n": [n for _, (_, n), _ in more]}
            schema = pa.schema([("_time", pa.int64()), ("_diff", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
            st.open_log(tmp_path / "r").writer(owner="test").append(pa.table(rows, schema), advance_to=upper)
        assert_same_together(task, spark)
        run(spark, task)
    wanted: Counter[tuple[Any, ...]] = Counter()
    for time in range(3, 10):
        held: Counter[tuple[Any, ...]] = Counter()
        for at, row, diff in (*changes[0], *changes[1]):
            if at <= time:
                held[row] += diff
        for k in ("a", "b", "c", None):
            met = [n for (key, n), count in held.items() if key == k for _ in range(count)]
            wanted.update((time, k, n) for n in met or [None])
    assert messages(tmp_path / "out") == wanted
