"""What an instance retains for the requests that it accepts: one retainer of an import, as long as it is needed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.drive.retention import ImportRetainers, Wanted
from spark_timely.errors import OperatorError, SinceViolationError, StorageError
from spark_timely.log import Log
from spark_timely.log import log as logs
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log, open_log
from spark_timely.log.retention import _RetentionAttempt
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.compute.instances import SCHEMA, TOTALS, append, handle, orders
from tests.unit.compute.test_drive_edges import wait_until

DOMAIN = TimeDomain(("long",), (0,))
ROWS = "SELECT k, v FROM orders"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (5, 1, 1, 30), upper=8)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def retainers(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ImportRetainers:
    """Of which nothing is written unless the test says so, but for what a request needs."""
    monkeypatch.setattr(ImportRetainers, "_write_soon", lambda _: None)
    wall = logs.open_log.__kwdefaults__["clock"]()
    return ImportRetainers("it", expiry_s=600.0, wall=lambda: wall + clock(), now=clock)


def wanted(log: Log, at: int | None) -> list[Wanted]:
    return [Wanted(log.path, None if at is None else Antichain.of(at))]


def kept(log: Log) -> list[Antichain]:
    log.refresh()
    return [each.needed for name, each in log.retainers().items() if name.startswith("instance ")]


def test_what_is_retained_is_what_all_need_until_the_last_ends(
    log: Log, retainers: ImportRetainers, clock: ManualClock
) -> None:
    first = retainers.begin(wanted(log, 3), domain=DOMAIN)
    assert log.allow_compaction([7]) == Antichain.of(3)
    version = log.core.version
    covered = retainers.begin(wanted(log, 4), domain=DOMAIN)
    assert kept(log) == [Antichain.of(3)]
    assert log.core.version == version  # no commit
    with pytest.raises(SinceViolationError, match=r"found since=\[3\]"):
        retainers.begin(wanted(log, 2), domain=DOMAIN)
    retainers.end(first)
    assert retainers.write_due() == 10.0
    assert kept(log) == [Antichain.of(3)]
    clock.advance(10)
    assert retainers.write_due() == 200.0
    assert kept(log) == [Antichain.of(4)]
    retainers.end(covered)
    assert retainers.write_due() == float("inf")
    assert kept(log) == []
    assert log.allow_compaction([7]) == Antichain.of(7)


def test_what_is_needed_is_renewed_and_comes_back(log: Log, retainers: ImportRetainers, clock: ManualClock) -> None:
    accepted = retainers.begin(wanted(log, 3), domain=DOMAIN)
    log.refresh()
    expires = log.retainers()[retainers.consumer].expires
    clock.advance(199)
    retainers.write_due()
    assert log.refresh() is False
    clock.advance(1)
    retainers.write_due()
    log.refresh()
    assert log.retainers()[retainers.consumer].expires > expires + 100_000_000
    log.release(retainers.consumer)
    retainers.begin(wanted(log, 5), domain=DOMAIN)  # what is gone covers nothing
    assert kept(log) == [Antichain.of(3)]
    log.release(retainers.consumer)
    clock.advance(200)
    retainers.write_due()
    assert kept(log) == [Antichain.of(3)]
    retainers.end(accepted)


def test_one_that_slept_holds_nothing_up_and_covers_nothing(
    log: Log, retainers: ImportRetainers, clock: ManualClock
) -> None:
    retainers.begin(wanted(log, 3), domain=DOMAIN)
    clock.advance(400)
    version = log.core.version
    retainers.begin(wanted(log, 6), domain=DOMAIN)  # what is left of the expiry is too short to build on
    log.refresh()
    assert log.core.version > version
    assert kept(log) == [Antichain.of(3)]
    clock.advance(601)
    later = open_log(log.path, clock=lambda: retainers._wall())
    assert later.allow_compaction([5]) == Antichain.of(5)
    assert later.retainers() == {}  # nobody comes back for it
    clock.advance(200)
    retainers.write_due()
    assert kept(log) == [Antichain.of(6)]


def test_contents_of_a_stream_need_all_that_is_there(tmp_path: Path, retainers: ImportRetainers) -> None:
    stream = create_log(tmp_path / "stream", SCHEMA, minimum=(0,), flush=False)
    rows = {"_time": [1, 4, 6], "k": [1, 1, 1], "v": [1, 2, 3]}
    stream.writer(owner="test").append(pa.table(rows), advance_to=8)
    stream.allow_compaction([2])
    retainers.begin(wanted(stream, 5), domain=DOMAIN)
    assert kept(stream) == [Antichain.of(2)]
    with pytest.raises(SinceViolationError, match=r"found since=\[2\]"):
        retainers.begin(wanted(stream, 1), domain=DOMAIN)
    collection = orders(tmp_path / "c", (1, 1, 1, 1), upper=8)
    begun = retainers.begin([*wanted(collection, None), *wanted(stream, None)], domain=DOMAIN)
    assert kept(collection) == [Antichain.of(0)]
    retainers.move(begun, Antichain.of(4))
    retainers._now.advance(10)  # type: ignore[attr-defined]
    retainers.write_due()
    assert (kept(collection), kept(stream)) == ([Antichain.of(4)], [Antichain.of(2)])


def test_request_that_cannot_retain_one_import_retains_none(
    tmp_path: Path, log: Log, retainers: ImportRetainers
) -> None:
    other = orders(tmp_path / "other", (1, 1, 1, 10), upper=8)
    other.allow_compaction([4])
    with pytest.raises(SinceViolationError):
        retainers.begin([*wanted(log, 3), *wanted(other, 3)], domain=DOMAIN)
    retainers.write_due()
    assert (kept(log), kept(other)) == ([], [])
    dates = TimeDomain(("date",), (0,))
    assert retainers.begin([*wanted(log, 3), Wanted(str(tmp_path / "no"), None)], domain=dates).warnings == []
    assert kept(log) == []


@pytest.mark.parametrize("determinate", [True, False])
def test_import_that_cannot_be_written_is_warned_of(
    log: Log, retainers: ImportRetainers, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, determinate: bool
) -> None:
    own = LogCore.retain_as_of

    def retain_as_of(*args: Any, **more: Any) -> None:
        if not determinate:
            own(*args, **more)
        raise StorageError("no permission", hint="ask", determinate=determinate)

    with monkeypatch.context() as patch:
        patch.setattr(LogCore, "retain_as_of", retain_as_of)
        accepted = retainers.begin(wanted(log, 3), domain=DOMAIN)
    (warning,) = accepted.warnings
    assert f"import {log.path!r} is not retained, and may forget what is asked for" in warning
    retainers.end(accepted)
    clock.advance(10)
    retainers.write_due()
    assert kept(log) == []  # what landed all the same was let go


def test_many_requests_at_once_are_one_commit(log: Log) -> None:
    retainers = ImportRetainers("it")
    version = log.core.version
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: retainers.begin(wanted(log, 3), domain=DOMAIN), range(64)))
    log.refresh()
    assert log.core.version == version + 1
    for accepted in found:
        retainers.end(accepted)
    wait_until(lambda: kept(log) == [])
    retainers.close()
    assert retainers._thread is not None
    assert not retainers._thread.is_alive()


# Of an instance ----------------------------------------------------------------------------------


def test_nothing_is_retained_under_the_lock(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    own, under_lock = _RetentionAttempt.put, list[bool]()
    with handle(tmp_path / "instance") as instance:

        def put(attempt: _RetentionAttempt) -> None:
            if attempt.states.store.path == log.path:
                under_lock.append(instance._driver._lock._is_owned())  # type: ignore[attr-defined]
            own(attempt)

        monkeypatch.setattr(_RetentionAttempt, "put", put)
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=1)
        batches = instance.subscribe(ROWS, imports={"orders": log.path}, as_of=2)
        assert batches.next_batch(timeout_s=30) is not None
        instance.await_frontier("totals", 7)
        wait_until(lambda: kept(log) == [])
    assert len(under_lock) >= 2
    assert not any(under_lock)


def test_refused_requests_and_dropped_ones_retain_nothing(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        asked: dict[str, Any] = {"imports": {"orders": log.path}, "as_of": 20}
        instance.index("totals", TOTALS, key="k", **asked)
        assert kept(log) == [Antichain.of(20)]
        with pytest.raises(Exception, match="totals"):
            instance.index("totals", TOTALS, key="k", **(asked | {"as_of": 3}))
        instance.subscribe(ROWS, **(asked | {"as_of": 30})).close()
        assert kept(log) == [Antichain.of(20)]
        instance.drop("totals")
        wait_until(lambda: kept(log) == [])


def test_what_lasts_stays_retained_for_the_next_start(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=9)
        gone = instance._driver._retainers.consumer
    assert kept(log) == [Antichain.of(9)]
    with handle(tmp_path / "instance") as instance:
        log.refresh()
        assert {gone, instance._driver._retainers.consumer} == set(log.retainers())
        append(log, upper=12)
        assert log.allow_compaction([11]).elements[0][0] <= 9
        instance.await_frontier("totals", 11)
        assert instance._driver.instance.collection("totals").as_of == Antichain.of(9)
    log.refresh()
    assert set(log.retainers()) == {gone}  # until that expires


def test_as_of_that_is_passed_while_it_is_chosen_is_chosen_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, times = ImportRetainers._retained, iter([9, 10])

    def retained(*args: Any) -> Antichain:
        at = next(times, None)
        if at is not None:
            append(log, upper=at)
            log.allow_compaction([at - 1])
        return own(*args)

    monkeypatch.setattr(ImportRetainers, "_retained", retained)
    with handle(tmp_path / "instance") as instance:
        made = instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        assert made.as_of == Antichain.of(9)
        instance.await_frontier("totals", 9)


def test_hint_about_a_size_is_of_what_is_too_large_alone(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        failing = instance.subscribe('{"op": "import", "name": "orders"}', imports={"orders": log.path}, as_of=20)
        instance._driver._retainers.end_all()
        append(log, upper=40)
        wait_until(lambda: log.allow_compaction([30]) == Antichain.of(30))
        with pytest.raises(SinceViolationError, match="found since") as broken:
            failing.next_batch(timeout_s=30)
        assert broken.value.context["since"] == "[30]"
        instance.configure(max_result_bytes=1)
        with pytest.raises(OperatorError, match="max_result_bytes"):
            instance.subscribe(ROWS, imports={"orders": log.path}).next_batch(timeout_s=30)
