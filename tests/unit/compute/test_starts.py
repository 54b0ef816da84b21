"""Starts of dataflows and of instances where something is not as usual: nothing written yet, a log out of reach."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from spark_timely.compute.drive import directory, state
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.state import State
from spark_timely.errors import OperatorError, StorageError, WaitTimeoutError
from spark_timely.log import Log
from spark_timely.log.log import create_log, forget_logs
from tests.faults.harness import wait_until
from tests.property.test_folders import Manual
from tests.unit.compute.instances import SCHEMA, TOTALS, append, handle, orders, rows, runtime


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), upper=4)


def test_index_that_begins_ahead_is_read_from_there(tmp_path: Path) -> None:
    empty = create_log(tmp_path / "orders", SCHEMA, kind="collection", minimum=(0,), flush=False)
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": empty.path}, key="k", as_of=3)
        batches = instance.subscribe("SELECT k FROM totals")
        later = instance.index("later", "SELECT k, n FROM totals")
        assert later.as_of.elements == ((3,),)
        append(empty, (1, 1, 1, 10), (4, 1, 2, 20), upper=5)
        instance.await_frontier("later", 4)
        assert rows(instance.peek("later", as_of=3)) == [(1, 1, 1)]
        assert rows(instance.peek("later", as_of=4)) == [(1, 1, 1), (2, 1, 1)]
        first = batches.next_batch(timeout_s=30)
        assert first is not None
        assert rows(first.updates.select(["k", "_diff"])) == [(1, 1)]  # type: ignore[union-attr]


class Away:
    """Storage of some logs that cannot be reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: set[str] = set()
        for module, name in ((state, "keep_log"), (directory, "open_log")):
            monkeypatch.setattr(module, name, self._opening(getattr(module, name)))

    def _opening(self, inner: object) -> object:
        def opened(path: str, **options: object) -> Log:
            if str(path) in self.paths:
                msg = f"could not read log {path!r}: found no answer"
                raise StorageError(msg, hint="wait", determinate=True)
            return inner(path, **options)  # type: ignore[operator, no-any-return]

        return opened


def test_output_out_of_reach_keeps_no_other_from_starting(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(instance: Handle) -> None:
        instance.maintain("out", "SELECT k FROM orders", str(tmp_path / "out"), imports={"orders": log.path})
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("out", 3)
        instance.await_frontier("totals", 3)

    with handle(tmp_path / "instance") as instance:
        filled(instance)
    away = Away(monkeypatch)
    away.paths.add(str(tmp_path / "out"))
    with handle(tmp_path / "instance") as instance:
        append(log, (4, 1, 1, 1), upper=5)
        instance.await_frontier("totals", 4)
        assert rows(instance.peek("totals")) == [(1, 2, 11, 1), (2, 1, 20, 1)]
        away.paths.clear()
        instance._driver.try_again()
        instance.await_frontier("out", 4)


def test_follower_needs_no_import_of_what_it_reads(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with handle(tmp_path / "instance") as leader:
        leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        leader.await_frontier("totals", 3)
        away = Away(monkeypatch)
        away.paths.add(log.path)
        with handle(tmp_path / "instance", read_only=True) as follower:
            follower.await_frontier("totals", 3)
            assert rows(follower.peek("totals")) == [(1, 1, 10, 1), (2, 1, 20, 1)]
            assert follower.show("errors").num_rows == 0
            assert "totals: " in follower.why("totals")
            append(log, (4, 1, 1, 1), upper=5)
            follower.await_frontier("totals", 4)
            # What it reads itself, it has to reach.
            with pytest.raises((StorageError, WaitTimeoutError)):
                follower.subscribe('{"op": "import", "name": "orders"}', imports={"orders": log.path})
            away.paths.clear()
            follower.allow_writes()
            append(log, (5, 1, 1, 1), upper=6)
            follower.await_frontier("totals", 5)


def test_create_while_storage_is_away_says_so(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)

        opened = State.opened

        def failing(self: State, path: str) -> Log:
            if path == log.path:
                return opened(self, path)
            msg = f"could not read log {path!r}: found no answer"
            raise StorageError(msg, hint="wait", determinate=True)

        with monkeypatch.context() as patch:
            patch.setattr(State, "opened", failing)
            with pytest.raises(StorageError, match="no answer"):
                instance.index("more", TOTALS, imports={"orders": log.path})
        assert not instance.has("more")
        instance.index("more", TOTALS, imports={"orders": log.path})
        instance.await_frontier("more", 3)


def test_error_of_a_look_is_shown_until_one_succeeds(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        batches = instance.subscribe("totals", id_="mine")
        assert batches.next_batch(timeout_s=30) is not None
        hosted = next(each for each in instance._driver.worker.runners() if each.engine is None)

        def failing() -> None:
            msg = "could not read log: found no answer"
            raise StorageError(msg, hint="wait", determinate=True)

        monkeypatch.setattr(hosted, "look", failing)
        append(log, (4, 1, 1, 1), upper=5)
        wait_until(lambda: instance.show("errors").num_rows == 1, deadline_s=30, what="the error")
        assert instance.show("errors")["export_id"].to_pylist() == ["mine"]
        monkeypatch.undo()
        wait_until(lambda: instance.show("errors").num_rows == 0, deadline_s=30, what="its end")
        assert batches.next_batch(timeout_s=30) is not None


def test_request_waits_for_the_log_that_a_start_makes(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        path = instance._driver.state.path_of("totals")
        assert path is not None
    shutil.rmtree(path)  # as if the process had ended before it was made
    again = Manual(str(tmp_path / "instance"), runtime())
    assert not os.path.exists(path)
    again.index("some", "SELECT k, n FROM totals WHERE n > 1", key="k")
    assert rows(again.peek("some", as_of=3)) == [row[:2] for row in rows(again.peek("totals", as_of=3)) if row[1] > 1]
    again.close()


def test_request_over_what_a_start_cannot_make_names_why(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        path = instance._driver.state.path_of("totals")
        assert path is not None
    shutil.rmtree(path)
    shutil.rmtree(log.path)
    forget_logs()
    again = Manual(str(tmp_path / "instance"), runtime())
    with pytest.raises(OperatorError, match=r"could not create dataflow 'some': found that 'totals', .* has failed: "):
        again.index("some", "SELECT k, n FROM totals", key="k")
    again.close()
