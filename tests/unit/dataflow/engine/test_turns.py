"""Dataflows take turns: news is seen between the jobs of a backlog, and a call always comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.work import Bounds, advance_all, rest_of
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])


class Query:
    """A dataflow of thirty steps and a small one beside it; something happens before each job of the large one."""

    def __init__(self, folder: Path, log: Log, most_together: int = 1) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.news = create_log(str(folder / "news"), SCHEMA, minimum=(0,))
        self.writer = self.news.writer(owner="test")
        scopes = {"large": Scope("large"), "small": Scope("small")}
        scopes["large"].replay(log).capture(str(folder / "large"))
        scopes["small"].replay(self.news.path).capture(str(folder / "small"))
        self.engines = [
            Engine(
                name,
                scope.sinks,
                scope.storage,
                files_of=catalog_of,
                limits=Limits(times=1 if name == "large" else None),
                most_together=most_together,
                now=self.clock,
            )
            for name, scope in scopes.items()
        ]
        self.run = runner({path: {} for scope in scopes.values() for path in scope.storage})
        self.jobs: list[str] = []
        self.before: Callable[[int], None] = lambda _: None

    def __call__(self, plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        name = Path(plans[0].storage.uri).name
        self.jobs.append(name)
        if name == "large":
            self.before(self.jobs.count("large"))
        found: list[TaskResult] = self.run(plans, tasks)
        return found

    def tell(self, time: int) -> None:
        """Give the small one news."""
        self.writer.append(pa.table({"_time": [time], "n": [time]}), advance_to=time + 1)

    def advance(self, **settings: Any) -> None:
        advance_all(with_runner(self.engines, self), now=self.clock, **settings)

    def frontier(self, name: str) -> Antichain:
        return open_log(str(self.folder / name)).frontier()


@pytest.mark.parametrize("first", ["large", "small"])
def test_news_during_a_backlog_is_answered_after_two_steps(tmp_path: Path, log: Log, first: str) -> None:
    query = Query(tmp_path, log)
    if first == "small":
        query.engines.reverse()
    told = {5: 0, 6: 1, 7: 2, 20: 3}
    query.before = lambda job: query.tell(told[job]) if job in told else None
    query.advance(lives=True)
    while rest_of(query.engines) == 0.0:
        query.advance(lives=True)
    assert query.jobs.count("large") == 30
    answers = [i for i, name in enumerate(query.jobs) if name == "small"]
    asked = [i for i, name in enumerate(query.jobs) if name == "large" and query.jobs[: i + 1].count("large") in told]
    assert len(answers) == 4, "one that was done comes back"
    waited = [query.jobs[i:j].count("large") for i, j in zip(asked, answers, strict=True)]
    assert max(waited) <= 2
    assert query.frontier("small") == Antichain.of(4)


@pytest.mark.parametrize("first", ["large", "small"])
def test_news_waits_for_a_job_of_several_steps(tmp_path: Path, log: Log, first: str) -> None:
    query = Query(tmp_path, log, most_together=20)
    if first == "small":
        query.engines.reverse()
    query.before = lambda job: query.tell(job - 1) if job <= 3 else None
    query.advance(lives=True)
    while rest_of(query.engines) == 0.0:
        query.advance(lives=True)
    # Of the large one 1, 2, 4, 8 and 12 steps, which with those of the small one are thirty; and then the last three.
    assert query.jobs == [*["large", "small"] * 3, "large", "large", "large"]
    assert (query.frontier("large"), query.frontier("small")) == (Antichain.of(30), Antichain.of(3))


def test_query_that_ends_takes_inputs_as_they_are_at_its_start(tmp_path: Path, log: Log) -> None:
    query = Query(tmp_path, log)
    query.tell(0)
    # The small one looks first when the large one has taken a step, but at what was there before.
    query.before = query.tell
    query.advance()
    assert query.jobs.count("large") == 30
    assert query.jobs.count("small") == 1
    assert query.frontier("small") == Antichain.of(1)


def test_call_returns_after_thirty_steps_or_ten_seconds(tmp_path: Path, log: Log) -> None:
    query = Query(tmp_path, log)
    query.before = query.tell  # news that never ends
    query.advance(lives=True)
    assert query.jobs == ["large", "small"] * 15
    assert rest_of(query.engines) == 0.0
    query.before = lambda _: query.clock.advance(4.0)
    query.advance(lives=True)
    assert query.jobs.count("large") == 18
    assert rest_of(query.engines) == 0.0
    query.advance(lives=True, bounds=Bounds(3600.0, None))
    assert query.jobs.count("large") == 30
    assert query.frontier("large") == Antichain.of(30)
    assert rest_of(query.engines) is None


def test_slow_inputs_take_a_tenth_of_the_time(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path, log)
    small = query.engines[1]
    refresh, looks = small._logs[query.news.path].core.refresh, []

    def slow() -> bool:
        looks.append(query.clock())
        query.clock.advance(0.4)
        return refresh()

    monkeypatch.setattr(small._logs[query.news.path].core, "refresh", slow)
    query.before = lambda _: query.clock.advance(0.25)
    query.advance(lives=True, bounds=Bounds(None, None))
    assert query.jobs == ["large"] * 30
    assert len(looks) == 2, "at the start, and when four seconds had passed"
