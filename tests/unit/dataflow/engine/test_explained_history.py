"""What a dataflow says of its operators over all history: what is kept, where, how large, and what waits for what."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import avg_of, count
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.explain import explain
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.property.test_dataflow import runner, with_runner

AT_ONCE = Indexing(least_bytes=1, tail_bytes=1, tail_files=1, background=False)


def run_to_end(scope: Scope) -> None:
    made = Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, run="run", indexing=AT_ONCE)
    made.begin()
    while with_runner(made, runner(scope.storage)).step() is not None:
        pass


def lines_of(scope: Scope, beginning: str) -> list[str]:
    return [line.strip() for line in explain(scope).splitlines() if line.strip().startswith(beginning)]


def test_state_in_its_own_output_is_explained(log: Log, tmp_path: Path) -> None:
    flow, out = Scope("flow"), str(tmp_path / "first")
    flow.replay(log).drop_duplicates("n").capture(out)
    assert lines_of(flow, "keeps") == [f"keeps key n, columns n, in its own output {out}: not there yet"]
    run_to_end(flow)
    size = int(open_log(out).core.files().sizes.sum())
    assert lines_of(flow, "keeps") == [
        f"keeps key n, columns n, in its own output {out}: 30 rows, {size:,} bytes, since [0]"
    ]


def test_hidden_log_and_its_columns_are_explained(log: Log, tmp_path: Path) -> None:
    flow, out = Scope("flow"), str(tmp_path / "counts")
    flow.replay(log).aggregate(by="n", over="history", m=count("n")).capture(out)
    run_to_end(flow)
    (kept,) = lines_of(flow, "keeps")
    found = re.fullmatch(
        r"keeps key n, columns n, m, hidden _kept_rows, in a log of its own (\S+): "
        r"30 updates, [\d,]+ bytes, since \[0\]",
        kept,
    )
    assert found
    assert found[1].startswith(f"{out}/_spark_timely/")


def test_average_has_a_log_of_its_own(log: Log, tmp_path: Path) -> None:
    flow, out = Scope("flow"), str(tmp_path / "means")
    flow.replay(log).aggregate(over="history", a=avg_of("n")).capture(out)
    run_to_end(flow)
    (kept,) = lines_of(flow, "keeps")
    assert f"columns a, hidden _kept_rows, _kept_n_a, _kept_sum_a, in a log of its own {out}/_spark_timely/" in kept
    rows = [row for row in open_log(out).messages().to_pylist() if row["_diff"] > 0]
    assert {row["_time"]: row["a"] for row in rows} == {time: time / 2 for time in range(30)}
    assert open_log(out).schema.names == ["a"]


def test_index_is_explained_with_its_upper(log: Log, tmp_path: Path) -> None:
    flow, out = Scope("flow"), str(tmp_path / "first")
    flow.replay(log).drop_duplicates("n").capture(out)
    assert lines_of(flow, "no index") == ["no index"]
    run_to_end(flow)
    log.writer(owner="test").append(pa.table({"_time": [30], "n": [100]}), advance_to=31)
    run_to_end(flow)
    (found,) = lines_of(flow, "index ")
    assert re.search(r"key-\w{16}: 30 rows, [\d,]+ bytes in 1 run, since \[0\], upper \[30\]$", found)
    for spine in Path(out).glob("_spark_timely/key-*/spine-*"):
        spine.unlink()
    assert lines_of(flow, "index ") == []
    assert lines_of(flow, "no index") == ["no index: the log is read"]


def test_dimension_that_holds_facts_back_is_named(log: Log, tmp_path: Path) -> None:
    rates = create_log(
        str(tmp_path / "rates"), pa.schema([("n", pa.int64()), ("rate", pa.int64())]), minimum=(0,), kind="collection"
    )
    writer = rates.writer(owner="rates")
    writer.append(pa.table({"_time": [1], "_diff": [1], "n": [1], "rate": [7]}), advance_to=7)
    flow = Scope("flow")
    flow.replay(log).join(flow.replay(rates), on="n", as_of=True).capture(str(tmp_path / "out"))
    run_to_end(flow)
    assert lines_of(flow, "dimension") == [
        f"dimension {rates.path} holds the facts back: its frontier is [7], theirs [30]; "
        "advance it where nothing changes"
    ]
    assert lines_of(flow, "keeps nothing")[0].startswith(f"keeps nothing, looks into {rates.path} by n: 1 updates, ")
    writer.advance(40)
    assert lines_of(flow, "dimension") == []


def test_source_of_a_dimension_made_here_is_named(log: Log, tmp_path: Path) -> None:
    rates = create_log(str(tmp_path / "rates"), pa.schema([("n", pa.int64()), ("rate", pa.int64())]), minimum=(0,))
    rates.writer(owner="rates").append(pa.table({"_time": [1], "n": [1], "rate": [7]}), advance_to=7)
    flow, current = Scope("flow"), str(tmp_path / "current")
    newest = flow.replay(rates).latest("n", order_by="rate")
    newest.capture(current)
    flow.replay(log).join(newest, on="n", as_of=True).capture(str(tmp_path / "out"))
    run_to_end(flow)
    (found,) = lines_of(flow, "dimension")
    assert found.startswith(f"dimension {current}, made from {rates.path}, holds the facts back: ")


def test_explaining_reads_no_data(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Scope("flow")
    flow.replay(log).aggregate(by="n", over="history", m=count()).capture(str(tmp_path / "counts"))
    run_to_end(flow)
    for file in tmp_path.rglob("part-*.parquet"):
        file.write_bytes(b"damaged")
    assert "30 updates" in lines_of(flow, "keeps")[0]


def test_what_others_retain_is_explained(log: Log, tmp_path: Path) -> None:
    flow, out = Scope("flow"), str(tmp_path / "first")
    flow.replay(log).drop_duplicates("n").capture(out)
    run_to_end(flow)
    open_log(out).retain("reader", 5, owner="reader")
    assert lines_of(flow, "keeps")[0].endswith("since [0], retained by reader")


def test_rows_that_were_set_apart_are_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])
    changes = create_log(str(tmp_path / "in"), schema, minimum=(0,))
    rows = pa.table({"_time": [1, 2, 9], "k": ["a"] * 3, "n": [1, 2, 1], "gone": [False, True, False]})
    changes.writer(owner="test").append(rows, advance_to=10)
    flow, out = Scope("flow"), str(tmp_path / "out")
    flow.replay(changes).latest("k", order_by="n", deleted="gone", tombstones=3).capture(out)
    run_to_end(flow)
    (found,) = lines_of(flow, "set apart")
    assert re.match(r"set apart 1 rows, as dead letters of \S+: older than the deletions that are kept \(3 ", found)
    assert "set 1 rows apart" in caplog.text
    assert open_log(out).messages().num_rows == 2
