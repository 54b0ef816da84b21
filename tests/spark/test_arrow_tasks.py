"""Continual tasks whose body is a function of Arrow tables, through real Spark.

What such a body gives when is told by `tests/unit/continual/test_arrow_bodies.py`, without Spark. Here is what only
Spark shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.continual.plan import SourcePlan, StepPlan
from spark_timely.errors import InvalidUsageError, StorageError
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.spark.tasks.arrow_bodies import ArrowBodies, ArrowBody
from spark_timely.spark.tasks.continual import Difference
from spark_timely.typing import DataflowQuery
from tests.spark.connect_continual_job import KV, contents, kv_log, updates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Tables = Mapping[str, pa.Table]


def run(spark: SparkSession, *tasks: st.Dataflow, **options: Any) -> DataflowQuery:
    """Run tasks in one query until nothing waits."""
    query = tasks[0].start(spark, trigger="availableNow", beside=tasks[1:], **options)
    assert query.await_termination(240)
    return query


def enriched(inputs: Tables, references: Tables, time: object) -> pa.Table:
    """Multiply the number of each row with that of its key in the reference."""
    del time
    rates = references["r"].rename_columns(["k", "rate"])
    both = inputs["i"].join(rates, "k", join_type="inner")
    return pa.table({"n": pc.multiply(both["n"], both["rate"]), "k": both["k"]})


def newest(inputs: Tables, references: Tables, time: object, output: pa.Table | None) -> Any:
    """Keep the greatest number of each key."""
    del references, time
    last = inputs["i"].group_by("k").aggregate([("n", "max")]).select(["k", "n_max"]).rename_columns(["k", "n"])
    if output is None:
        return last
    return tf.Changes(insert=last, delete=output.filter(pc.is_in(output["k"], last["k"])))


def append(path: str, rows: list[tuple[int, tuple[str, int], int]], to: int) -> None:
    columns = {"_time": [at for at, *_ in rows], "k": [k for _, (k, _), _ in rows], "n": [n for _, (_, n), _ in rows]}
    st.open_log(path).writer(owner="test").append(pa.table(columns), advance_to=to)


def test_is_as_the_same_task_in_sql_and_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    """A join with a reference that changes, and an upsert: the first times in one commit each, then one more."""
    rows = [(time, ("ab"[time % 2], time * (-1) ** time), 1) for time in (1, 4, 7)]
    orders = kv_log(tmp_path / "orders", rows, upper=10)
    changes = [(0, ("a", 2), 1), (0, ("b", 3), 1), (4, ("a", 2), -1), (4, ("a", 5), 2), (6, ("b", 3), -1)]
    rates = kv_log(tmp_path / "rates", changes, kind="collection", upper=100)
    logs: dict[str, Any] = {"inputs": {"i": orders}, "references": {"r": rates}}
    tasks = [
        st.ContinualTask("join", **logs, body=enriched, version="1", arrow=True, schema=KV, output=tmp_path / "join"),
        st.ContinualTask("sql", **logs, body="SELECT k, i.n * r.n AS n FROM i JOIN r USING (k)", schema=KV,
                         output=tmp_path / "sql"),
        st.ContinualTask("newest", inputs={"i": orders}, body=newest, version="1", arrow=True, deletes=True,
                         output=tmp_path / "newest"),
    ]  # fmt: skip
    run(spark, tasks[0], tasks[2])
    # The stream, the beginning, and all times.
    assert [st.open_log(tmp_path / name).core.stream("main").seq for name in ("join", "newest")] == [2, 2]  # type: ignore[union-attr]
    more = [(12, ("a", 50), 1), (12, ("a", 40), 1)]
    append(orders, more, 20)
    run(spark, *tasks)
    assert updates(tmp_path / "join") == updates(tmp_path / "sql") != Counter()
    held: dict[str, int] = {}
    for time, (key, n), _ in [*rows, more[0]]:
        held[key] = n
        assert contents(tmp_path / "newest", time) == Counter(list(held.items()))
    for name in ("join", "sql", "newest"):
        log = st.open_log(tmp_path / name)
        assert log.frontier().to_json() == [20], name
        assert log.verify().legal


def test_body_that_fails_stops_at_its_time_until_it_is_corrected(spark: SparkSession, tmp_path: Path) -> None:
    orders = kv_log(tmp_path / "orders", [(time, ("a", time), 1) for time in range(6)], upper=6)

    def inverse(inputs: Tables, references: Tables, time: int) -> pa.Table:
        del references, time
        return pa.table({"x": pc.divide(12, pc.subtract(inputs["i"]["n"], 3))})

    def corrected(inputs: Tables, references: Tables, time: int) -> pa.Table:
        return pa.table({"x": [-1]}) if time == 3 else inverse(inputs, references, time)

    def task(body: Any, **options: Any) -> st.ContinualTask:
        return st.ContinualTask(
            "inverse", inputs={"i": orders}, body=body, arrow=True, output=tmp_path / "out", **options
        )

    with pytest.raises(
        StreamingQueryException, match="could not run task 'inverse' at 3: ArrowInvalid: divide by zero"
    ):
        run(spark, task(inverse, version="1"))
    assert updates(tmp_path / "out") == Counter({(0, -4): 1, (1, -6): 1, (2, -12): 1})
    note = st.open_log(tmp_path / "out").core.stream("main").note.output  # type: ignore[union-attr]
    assert note is not None
    again = task(corrected, version="2", replaces=note.plan)
    ahead = again.dry_run(spark)
    assert ahead is not None
    assert [tuple(row) for row in ahead.collect()] == [(3, -1)]
    run(spark, again)
    assert updates(tmp_path / "out") == Counter(
        {(0, -4): 1, (1, -6): 1, (2, -12): 1, (3, -1): 1, (4, 12): 1, (5, 6): 1}
    )
    assert again.compare(spark) == []

    def other(inputs: Tables, references: Tables, time: int) -> pa.Table:
        return pa.table({"x": [7, 8]}) if time == 4 else corrected(inputs, references, time)

    assert task(other, version="3").compare(spark) == [Difference(4, 2, 1)]


def test_functions_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    orders = kv_log(tmp_path / "orders", [(1, ("a", 1), 1)])

    def refused(text: str, **given: Any) -> None:
        options: dict[str, Any] = {"body": enriched, "version": "1", "arrow": True, **given}
        with pytest.raises(InvalidUsageError, match=text):
            st.ContinualTask("t", inputs={"i": orders}, output=tmp_path / "out", **options).start(spark)
        assert not (tmp_path / "out").exists()

    refused("found arrow=True beside a body in SQL", body="SELECT * FROM i", version=None)
    refused(r"found arrow=True and expect=\{'n': 'n > 0'\}", expect={"n": "n > 0"})
    refused("found many_times=True beside arrow=True", many_times=True)
    refused("found max_bytes=0", max_bytes=0)
    refused("found max_bytes=True", max_bytes=True)
    refused("found max_bytes=5 without arrow=True", max_bytes=5, arrow=False)
    refused("found a function as body, and version=None", version=None)
    refused("its function failed without rows and output: KeyError: 'r'")


def test_deletes_of_a_function_that_does_not_take_the_output(spark: SparkSession, tmp_path: Path) -> None:
    """Rows to delete are looked for in the output, whether or not the function looks at it."""
    orders = kv_log(tmp_path / "orders", [(0, ("a", 1), 1), (0, ("b", 2), 1), (3, ("a", 1), -1)], kind="collection")

    def mirrored(inputs: Tables, references: Tables, time: int) -> tf.Changes:
        del references, time
        return tf.Changes(insert=inputs["came"], delete=inputs["went"])

    task = st.ContinualTask(
        "mirror", inputs={"came": orders, "went": tf.deletes(orders)}, body=mirrored, version="1", arrow=True,
        deletes=True, output=tmp_path / "out",
    )  # fmt: skip
    run(spark, task)
    assert updates(tmp_path / "out") == Counter({(0, "a", 1): 1, (0, "b", 2): 1, (3, "a", 1): -1})


def test_errors_of_a_task_of_sparks_come_back_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """A file that a vacuum took is one of the storage's, which is tried again; its write times are looked for too."""
    path = kv_log(tmp_path / "log", [(1, ("a", 1), 1), (1, ("b", 1), -1)], kind="collection")
    log = st.open_log(path)
    files = tuple(map(str, catalog_of(log)().paths))
    source = SourcePlan("i", "inserts", path, log.kind, log.domain, log.schema, open_storage(path), files, 1, 2)
    plan = StepPlan("t", (1,), (source,), None, log.core.format, log.core.storage, "main", 9, "job")
    body = ArrowBody(lambda inputs, references, time: inputs["i"], ("i",), (), reads_output=False)
    bodies = ArrowBodies(spark, body, max_bytes_in_driver=0)
    assert bodies.times([source])[0].tolist() == [1]
    assert [file.n_rows for file in bodies.evaluate(plan).files] == [1]
    for file in files:
        (Path(path) / file).unlink()
    for attempt in (lambda: bodies.evaluate(plan), lambda: bodies.times([source])):
        with pytest.raises(StorageError, match=r"could not .*: could not read the log .*: found data file .* missing"):
            attempt()
