"""From when on a log has all: a copy of a log that had forgotten says so, however it was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.engine.steps import Engine, check_whole
from spark_timely.dataflow.logs import open_logs
from spark_timely.dataflow.stream import Scope
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.errors import SinceViolationError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.spark.base.beginnings import beginning, beginning_of_sources
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.property.test_dataflow import runner
from tests.unit.datasource.support import drive
from tests.unit.datasource.test_planner import make_log, put
from tests.unit.sink.driver import SinkDriver, rows

LONG = TimeDomain(("long",), (0,))
SOURCE = {"timeColumn": "t", "frontier": "source"}


def offset(frontier: int, begins: int | None = 5, times: str = "long") -> str:
    """Return what Spark writes down of a timely source."""
    said: dict[str, Any] = {"version": 1, "delivery": "complete", "times": [times], "content": "rows"}
    if begins is not None:
        said["begins"] = [begins]
    return json.dumps({**said, "origin": [begins or 0], "frontier": [frontier]})


def refused(log: Log, folder: Path) -> str:
    """Return what an operator over all history is refused for; nothing if it is not."""
    scope = Scope("flow")
    scope.replay(log).aggregate(over="history", n=count()).capture(str(folder / "counts"))
    try:
        check_whole(scope.sinks, open_logs(scope.sinks, scope.storage))
    except SinceViolationError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ([offset(9)], Antichain.of(5)),
        ([offset(9, None)], None),
        # The last of several; sources that are not timely say nothing; Spark's second version names each source.
        ([offset(9), f"orders:{offset(9, 7)}", '{"logOffset":3}', "-"], Antichain.of(7)),
        # In times of another type nothing is known but that something is missing.
        ([offset(9, 5, "date")], Antichain.of(0)),
        ([offset(9).replace("[5]", '"soon"')], Antichain.of(0)),
        # Cut off, as a note does with very many sources: the others still say it.
        ([offset(9), offset(9, 8)[:60]], Antichain.of(5)),
        ([""], None),
    ],
)
def test_beginning_of_sources(lines: list[str], wanted: Antichain | None) -> None:
    assert beginning_of_sources("\n".join(lines), LONG) == wanted


@pytest.mark.parametrize("kind", ["stream", "collection"])
@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_a_query_says_from_when_on_its_log_had_all(kind: str, delivery: str) -> None:
    def begins(**options: str) -> object:
        driver = drive(log, delivery=delivery, **options)
        found = driver.run_one()
        assert found is not None
        return json.loads(found.end).get("begins")

    log = make_log(kind=kind)
    put(log, [1, 2, 6, 7], 9)
    assert begins() is None
    log.allow_compaction([5])
    assert begins() == [5]
    # What it was told to leave out is not missing.
    assert begins(startingFrontier="6" if delivery == "complete" else "latest") is None


def test_a_copy_says_where_its_source_began(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([rows([5, 6, 8])], sources=[offset(9)])
    log = driver.log()
    assert log.since() == beginning(log) == Antichain.of(5)
    assert log.messages().num_rows == 3
    assert "found since=[5] in log" in refused(log, tmp_path)
    # Later micro-batches leave it alone; so does a merge.
    driver.run([rows([9, 9])], sources=[offset(20)])
    log.refresh()
    log.compact(logical=True)
    assert log.since() == Antichain.of(5)
    assert log.messages().num_rows == 5


@pytest.mark.parametrize("sources", [[offset(9, None)], [offset(9, None), offset(9, None)]])
def test_a_copy_of_a_whole_log_is_whole(sources: list[str], tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([rows([5, 6, 8])], sources=sources)
    assert beginning(driver.log()) is None
    assert driver.log().since() == Antichain.of(-(2**63))
    assert refused(driver.log(), tmp_path) == ""


def test_since_of_a_copy_moves_no_further_than_its_first_row(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([rows([3, 8])], sources=[offset(9)])  # the query moves times, or has several sources
    log = driver.log()
    log.compact(logical=True)
    assert log.since() == Antichain.of(3)
    assert sorted(log.messages()["_time"].to_pylist()) == [3, 8]
    assert "found since=[5] in log" in refused(log, tmp_path)


def test_a_query_that_died_before_it_moved_since_moves_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    driver = SinkDriver(tmp_path, **SOURCE)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "allow_compaction", killed)
        with pytest.raises(KeyboardInterrupt):
            driver.run([rows([5, 6])], sources=[offset(9)])
    log = driver.log()
    assert log.since() == Antichain.of(-(2**63))
    assert beginning(log) == Antichain.of(5)  # its note says it
    assert "found since=[5] in log" in refused(log, tmp_path)
    driver.run([rows([5, 6])])
    assert driver.log().since() == Antichain.of(5)
    assert driver.log().messages().num_rows == 2


def test_a_stream_beside_a_whole_one_says_it_in_its_note(tmp_path: Path) -> None:
    first = SinkDriver(tmp_path, **SOURCE, streams="2", stream="a")
    second = SinkDriver(tmp_path, query="query-b", checkpoint="other", **SOURCE, streams="2", stream="b")
    first.run([rows([1, 2])], sources=[offset(9, None)])
    assert beginning(first.log()) is None
    second.run([rows([5, 6])], sources=[offset(9)])
    log = first.log()
    assert log.since() == Antichain.of(-(2**63))
    assert (beginning(log), beginning(log, ("a",)), beginning(log, ("b",))) == (Antichain.of(5), None, Antichain.of(5))
    assert "found since=[5] in log" in refused(log, tmp_path)
    # What is copied from it says so too.
    options = parse_options(SOURCE_OPTIONS, {"path": log.path})
    planner = ReplayPlanner(log, options, layout_of(log, options))
    assert planner.latest(planner.initial())["begins"] == [5]


def test_a_copy_in_other_times_is_refused_without_a_since(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="bounded", lateness="1")
    driver.run([rows([5, 6])], sources=[offset(9, 5, "date")])
    log = driver.log()
    assert log.since() == log.domain.minimum_frontier == beginning(log)
    assert "found a copy of a log that had forgotten, log" in refused(log, tmp_path)


def test_dataflow_over_a_copy_in_other_times_says_what_it_lacks(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="bounded", lateness="1")
    driver.run([rows([5, 6])], sources=[offset(9, 5, "date")])
    path = driver.log().path
    for number in range(2):  # also of what was made of that
        scope = Scope(f"flow {number}")
        stream = scope.replay(path).filter(pc.field("_time") > 0)
        path = str(tmp_path / f"out{number}")
        stream.capture(path)
        Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))
        made = open_log(path)
        assert made.frontier() == Antichain.of(5)
        assert beginning(made) == made.domain.minimum_frontier
        assert "found a copy of a log that had forgotten, log" in refused(made, tmp_path / f"counts{number}")
