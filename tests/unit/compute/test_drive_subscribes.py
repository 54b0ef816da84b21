"""Subscribes of an instance: who does not take batches, or reads a lot, holds up nobody else."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.drive import subscribes
from spark_timely.log.log import Log
from tests.unit.compute.instances import TOTALS, append, handle, orders
from tests.unit.compute.test_drive_edges import wait_until


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), upper=2)


def test_batches_that_nobody_takes_are_not_read_on(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribes, "_MOST_WAITING", 3)
    with handle(tmp_path / "instance") as instance:
        lazy = instance.subscribe(TOTALS, imports={"orders": log.path})
        eager = instance.subscribe(TOTALS, imports={"orders": log.path})
        for time in range(2, 12):
            append(log, (time, 1, 1, 10), upper=time + 1)
            batch = eager.next_batch(timeout_s=30)
            while batch is not None and batch.upper.less_equal((time,)):
                batch = eager.next_batch(timeout_s=30)
            assert batch is not None
            assert lazy._n_waiting <= 3
        found: Counter[tuple[Any, ...]] = Counter()
        last = None
        while (batch := lazy.next_batch(timeout_s=30)) is not None:
            assert last is None or batch.lower == last
            last = batch.upper
            assert isinstance(batch.updates, pa.Table)
            for row in batch.updates.drop_columns(["_time"]).to_pylist():
                found[tuple(value for name, value in row.items() if name != "_diff")] += row["_diff"]
            if not batch.upper.less_equal((11,)):
                break
        assert +found == {(1, 11, 110): 1}
        assert (lazy._n_waiting, lazy._waiting_bytes) == (0, 0)


def test_one_that_reads_for_long_delays_no_answer(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on, own = threading.Event(), threading.Event(), subscribes._Reading.read

    def read(self: Any, begin: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return own(self, begin)

    monkeypatch.setattr(subscribes._Reading, "read", read)
    with handle(tmp_path / "instance") as instance:
        try:
            batches = instance.subscribe(TOTALS, imports={"orders": log.path})
            assert began.wait(30)
            assert instance.peek(log.path, as_of=1, timeout_s=30).num_rows == 1
            instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
            instance.await_frontier("totals", 1)
        finally:
            go_on.set()
        assert batches.next_batch(timeout_s=30) is not None


def test_one_that_is_dropped_while_it_reads_gives_nothing(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, own = threading.Event(), threading.Event(), subscribes._Reading.read
    readings = []

    def read(self: Any, begin: Any) -> Any:
        readings.append(self)
        began.set()
        assert go_on.wait(60)
        return own(self, begin)

    monkeypatch.setattr(subscribes._Reading, "read", read)
    told: list[object] = []
    with handle(tmp_path / "instance", on_response=told.append) as instance:
        try:
            batches = instance.subscribe(TOTALS, imports={"orders": log.path}, id_="it")
            assert began.wait(30)
            instance.drop("it")
            wait_until(lambda: "it" not in instance._driver._subscribes._there)
        finally:
            go_on.set()
        assert batches.next_batch(timeout_s=30) is None
        wait_until(lambda: readings[0].future.done())
        assert readings[0].subscription is None or readings[0].subscription.has_ended
        assert not any(type(each).__name__ == "SubscribeBatch" for each in told)
