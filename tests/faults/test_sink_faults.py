"""The sink over a store that fails, and raced by others: each row once, nothing early, nothing stuck."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from spark_timely import errors
from spark_timely.log import Log
from spark_timely.log.store.delta import DeltaStore
from spark_timely.sink.commit import commit_reports
from spark_timely.sink.plan import find_log
from tests.faults.harness import long_lane
from tests.faults.unreliable import make_unreliable
from tests.unit.sink.driver import SinkDriver, rows

pytestmark = pytest.mark.faults

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "0"}


@pytest.mark.parametrize("policy", ["batch", "bounded"])
@pytest.mark.parametrize("seed", range(40 if long_lane() else 2))
def test_micro_batches_over_a_store_that_fails_in_all_four_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    ways: Counter[tuple[bool, bool]] = Counter()
    n_logs = 0

    def find(path: str, storage_options: dict[str, str]) -> Log | None:
        nonlocal n_logs
        log = find_log(path, storage_options)
        if log is not None:
            n_logs += 1
            store = make_unreliable(
                log,  # type: ignore[arg-type]
                seed=1_000 * seed + n_logs,
                happens=0.6,
                reports_failure=0.5,
                lands_late=0.3,
                another=lambda: DeltaStore(path, {}),
            )
            stores.append(store)
        return log

    stores: list[object] = []
    monkeypatch.setitem(commit_reports.__kwdefaults__, "find", find)
    rng = random.Random(seed)
    driver = SinkDriver(tmp_path, **(BOUNDED if policy == "bounded" else {"frontier": "batch"}))
    expected: list[int] = []
    for batch in range(24):
        times = [batch + rng.randint(0, 2) if policy == "batch" else batch for _ in range(rng.randint(0, 3))]
        data = [rows(times, 100 * batch), rows([batch], 100 * batch + 50)]
        expected += data[0]["id"].to_pylist() + data[1]["id"].to_pylist()
        for _ in range(40):
            try:
                assert driver.run(data) == batch
                break
            except errors.StorageError:
                continue  # the query is started again, which runs the micro-batch again
        else:
            pytest.fail(f"micro-batch {batch} did not get through, seed {seed}")
    for store in stores:
        ways.update(store.calls)  # type: ignore[attr-defined]
    assert set(ways) == {(a, b) for a in (False, True) for b in (False, True)}
    log = driver.log()
    assert Counter(log.messages()["id"].to_pylist()) == Counter(expected)
    state = log.core.stream("main")
    assert state is not None
    assert state.batch == 23
    assert log.frontier().to_json() == [24 if policy == "batch" else 23]
    assert log.verify().legal
    known = set(log.core.files().paths.tolist())
    assert known <= driver.data_files()


def test_two_attempts_of_one_query_race_and_one_goes_on(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    from pyspark.sql.types import StructType

    schema = StructType().add("t", "long").add("id", "long")
    (driver.checkpoint / "offsets" / "1").write_text("")
    # A driver that was thought dead commits micro-batch 1; its successor planned the same one.
    zombie, successor = driver.writer(schema), driver.writer(schema)
    slow = zombie.write(iter(rows([3, 4]).to_batches()))
    fast = successor.write(iter(rows([3, 4]).to_batches()))
    successor.commit([fast], 1)
    (driver.checkpoint / "commits" / "1").write_text("")
    driver.run([rows([5])])
    version, files = driver.log().core.version, driver.data_files()
    with pytest.raises(errors.RolledBackError, match="found micro-batch 2"):
        zombie_commit(driver, schema, slow)
    assert driver.log().core.version == version
    assert driver.data_files() == files - {file.path for file in slow.report.files}
    assert driver.log().messages()["_time"].to_pylist() == [1, 3, 4, 5]


def zombie_commit(driver: SinkDriver, schema: object, message: object) -> None:
    """Commit micro-batch 1 from a process that made its own plan before the others went on."""
    writer = driver.writer(schema)  # type: ignore[arg-type]
    writer.commit([message], 1)  # type: ignore[list-item]


def test_advance_during_a_micro_batch_makes_it_run_again(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter")
    driver.run([rows([1])])
    from pyspark.sql.types import StructType

    schema = StructType().add("t", "long").add("id", "long")
    (driver.checkpoint / "offsets" / "1").write_text("")
    message = driver.writer(schema).write(iter(rows([3, 9]).to_batches()))
    driver.log().advance("main", [5])
    with pytest.raises(
        errors.UpperMismatchError, match=r"hint: restart the query, .*: the stream was changed while it ran"
    ):
        driver.writer(schema).commit([message], 1)
    driver.run([rows([3, 9])])
    assert driver.log().messages()["_time"].to_pylist() == [1, 9]
    assert driver.log().dead()["_time"].to_pylist() == [3]
    assert driver.log().verify().legal
