"""What fails for good in an instance: those who wait for it hear of it, and what was written stays readable."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.command import Export
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.worker import Worker
from spark_timely.errors import DataLossError, LogMissingError, OperatorError, SinceViolationError, TimelyError
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.time.antichain import Antichain
from spark_timely.work import Backoff
from tests.faults.harness import long_lane
from tests.modules import ROOT
from tests.unit.compute.instances import TOTALS, append, handle, orders, rows, runtime, tasks
from tests.unit.compute.test_drive_edges import wait_until

ROWS = "SELECT k, v FROM orders"
SUM = "SELECT k, sum(v) AS s FROM orders GROUP BY k"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


def spoil(log: Log) -> None:
    """Take a row away that is not there."""
    append(log, (4, -1, 7, 70), upper=5)


def hears(batches: Any, kind: type[TimelyError] = OperatorError) -> None:
    def take_all() -> None:
        while batches.next_batch(timeout_s=30) is not None:
            pass

    with pytest.raises(kind):
        take_all()


def test_subscribe_whose_dataflow_fails_ends_with_the_error(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        batches = instance.subscribe(SUM, imports={"orders": log.path})
        assert batches.next_batch(timeout_s=30) is not None
        other = instance.subscribe(f"{SUM} -- another", imports={"orders": orders(tmp_path / "b", upper=9).path})
        spoil(log)
        hears(batches)
        assert batches.next_batch(timeout_s=1) is None
        assert other.next_batch(timeout_s=30) is not None


def test_subscribe_whose_import_is_deleted_ends_with_the_error(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        batches = instance.subscribe(SUM, imports={"orders": log.path})
        assert batches.next_batch(timeout_s=30) is not None
        append(log, (4, 1, 7, 70), upper=5)
        assert batches.next_batch(timeout_s=30) is not None
        shutil.rmtree(log.path)
        hears(batches, LogMissingError)


def test_subscribe_whose_jobs_fail_again_and_again_ends(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "pause_s", 0.01)

    def failing(*_: object) -> Any:
        def job(*_: object) -> Any:
            msg = "no room"
            raise RuntimeError(msg)

        return job

    with handle(tmp_path / "instance", runtime=runtime(tasks=failing)) as instance:
        hears(instance.subscribe(SUM, imports={"orders": log.path}))


def test_copy_whose_dataflow_fails_says_so(tmp_path: Path, log: Log) -> None:
    spoil(log)
    with handle(tmp_path / "instance", runtime=runtime(copy=lambda *_: 1)) as instance, pytest.raises(OperatorError):
        instance.copy_to(SUM, str(tmp_path / "copy"), imports={"orders": log.path}, as_of=4, timeout_s=30)


def test_follower_copies_what_is_maintained(tmp_path: Path, log: Log) -> None:
    copied = []

    def copy(path: str, folder: str, at: object, details: object) -> int:
        copied.append((path, folder, at))
        return 2

    with handle(tmp_path / "instance") as leader:
        leader.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        leader.await_frontier("totals", 3)
        with handle(tmp_path / "instance", runtime=runtime(copy=copy), read_only=True) as follower:
            follower.await_frontier("totals", 3)
            assert follower.copy_to("totals", str(tmp_path / "copy"), timeout_s=30) == 2
            assert "copy-" not in str(follower.show("exports"))
    assert [(folder, at) for _, folder, at in copied] == [(str(tmp_path / "copy"), 3)]


@pytest.mark.parametrize("follows", [False, True])
def test_index_whose_import_is_gone_is_peeked_after_a_restart(tmp_path: Path, log: Log, *, follows: bool) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        expected = rows(instance.peek("totals"))
    shutil.rmtree(log.path)
    with handle(tmp_path / "instance", read_only=follows) as instance:
        instance.await_frontier("totals", 3)
        assert rows(instance.peek("totals")) == expected


def test_dataflows_over_silent_logs_hold_up_no_other(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        for number in range(6):
            silent = orders(tmp_path / f"silent{number}", upper=0)
            instance.index(f"silent{number}", TOTALS, imports={"orders": silent.path}, key="k")
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)


@pytest.mark.parametrize("kind", ["date", "timestamp", "long"])
def test_output_says_from_when_on_it_can_be_read(tmp_path: Path, kind: str) -> None:
    def time(day: int) -> str | int:
        return day if kind == "long" else f"2024-01-{day:02}"

    log = create_log(tmp_path / "typed", pa.schema([("v", pa.int64())]), times=kind, minimum=time(1), kind="collection")
    writer = log.writer(owner="test")
    column = log.domain.to_columns([log.domain.parse_time(time(2))])["_time"]
    writer.append(pa.table({"_time": column, "_diff": [1], "v": [5]}), advance_to=time(4))
    with handle(tmp_path / "instance") as instance:
        made = instance.maintain("copy", "SELECT v FROM t", str(tmp_path / "copy"), imports={"t": log.path})
        instance.await_frontier("copy", time(3))
        wait_until(lambda: open_log(tmp_path / "copy").since() == made.as_of)
        ((newest,),) = made.as_of.elements
        assert open_log(tmp_path / "copy").snapshot(log.domain.time_to_json((newest,))).num_rows == 1
        with pytest.raises(SinceViolationError):
            open_log(tmp_path / "copy").snapshot(log.domain.time_to_json((newest - 1,)))


def test_as_of_that_an_import_has_forgotten_is_refused(tmp_path: Path, log: Log) -> None:
    log.allow_compaction(2)
    with handle(tmp_path / "instance") as instance:
        with pytest.raises(SinceViolationError, match="begin as of"):
            instance.index("it", "SELECT k FROM o", imports={"o": log.path}, as_of=1)
        with pytest.raises(SinceViolationError, match="begin as of"):
            instance.subscribe("SELECT k FROM o", imports={"o": log.path}, as_of=1)
        assert not instance.has("it")
        instance.index("it", "SELECT k FROM o", imports={"o": log.path}, as_of=2)


def test_log_of_another_writer_at_a_path_is_no_answer(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "out"
    with handle(tmp_path / "instance") as instance:
        instance.maintain("out", ROWS, str(path), imports={"orders": log.path})
        instance.await_frontier("out", 3)
        other = orders(tmp_path / "other", (1, 1, 9, 90), upper=9)
        shutil.rmtree(path)
        shutil.copytree(other.path, path)
        with pytest.raises(DataLossError, match="has not written"):
            instance.peek("out", as_of=3)


def peeks_the_failure(instance: Handle, id_: str, at: int, of: str) -> None:
    """See that a peek is answered by why an export has failed, before its time is over."""
    with pytest.raises(OperatorError, match=rf"could not peek '{id_}' at {at}: found that {of!r}.* has failed: "):
        instance.peek(id_, as_of=at, timeout_s=60)


def test_peek_of_what_failed_is_answered_by_the_failure(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("sums", SUM, imports={"orders": log.path}, key="k")
        instance.maintain("ones", "SELECT k FROM sums", tmp_path / "ones")
        for id_ in ("sums", "ones"):
            instance.await_frontier(id_, 3)
        with ThreadPoolExecutor(2) as threads:
            early = [threads.submit(peeks_the_failure, instance, id_, 4, "sums") for id_ in ("sums", "ones")]
            wait_until(lambda: instance.show("peeks").num_rows == 2)
            spoil(log)
            for each in early:
                each.result()
        for id_ in ("sums", "ones"):
            peeks_the_failure(instance, id_, 4, "sums")
            peeks_the_failure(instance, id_, 9, "sums")
            assert instance.peek(id_, as_of=3).num_rows == 2
    with handle(tmp_path / "instance") as instance:
        peeks_the_failure(instance, "ones", 4, "sums")


def test_subscribes_and_copies_behind_what_failed_hear_of_it(tmp_path: Path, log: Log) -> None:
    def copy(*_: object) -> int:
        return 1

    queries = ["SELECT k, s FROM sums", "SELECT k FROM ones", "SELECT k, count(*) AS n FROM ones GROUP BY k"]
    queries += [json.dumps({"op": "import", "name": id_}) for id_ in ("sums", "ones")]
    with handle(tmp_path / "instance", runtime=runtime(copy=copy)) as instance:
        instance.index("sums", SUM, imports={"orders": log.path}, key="k")
        instance.index("ones", "SELECT k FROM sums", key="k")
        instance.index("well", ROWS, imports={"orders": log.path}, key="k")
        for id_ in ("sums", "ones", "well"):
            instance.await_frontier(id_, 3)
        early = [instance.subscribe(query, as_of=3) for query in queries]
        well = instance.subscribe("SELECT k FROM well", as_of=3)
        spoil(log)
        peeks_the_failure(instance, "ones", 4, "sums")
        late = [instance.subscribe(query, as_of=3) for query in queries]
        for batches in (*early, *late):  # what is complete comes first
            first = batches.next_batch(timeout_s=60)
            assert first is not None
            assert first.updates.num_rows == 2
            hears_the_failure(batches)
            assert batches.next_batch(timeout_s=0) is None
        for query in queries:
            with pytest.raises(
                OperatorError, match=r"could not copy to .*: found that 'sums', which it waits for, has"
            ):
                instance.copy_to(query, tmp_path / "copy", as_of=4, timeout_s=60)
            assert instance.copy_to(query, tmp_path / "copy", as_of=3, timeout_s=60) == 1
        append(log, (5, 1, 9, 90), upper=6)
        while (batch := well.next_batch(timeout_s=60)) is not None and batch.upper != Antichain.of(6):
            pass
        assert batch is not None


def hears_the_failure(batches: Any) -> None:
    text = rf"could not continue subscribe '{batches.id}': found that 'sums', which it waits for, has failed: "

    def take_all() -> None:
        while batches.next_batch(timeout_s=60) is not None:
            pass

    with pytest.raises(OperatorError, match=text):
        take_all()


def test_peek_of_an_export_beside_one_that_failed_is_answered(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        exports = [Export(id_, "log", json.dumps({"path": str(tmp_path / id_)})) for id_ in ("well", "lost")]
        instance.dataflow("two", ROWS, exports, imports={"orders": log.path})
        for id_ in ("well", "lost"):
            instance.await_frontier(id_, 3)
        open_log(tmp_path / "lost").writer(owner="another", takeover=True)
        append(log, (4, 1, 7, 70), upper=5)
        wait_until(lambda: instance.show("errors").num_rows > 0)
        append(log, (5, 1, 7, 70), upper=6)
        assert instance.peek("well", as_of=5).num_rows == 4


class Broken:
    """Jobs of dataflows of some names fail."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, name: str, options: Any) -> Any:
        def job(*given: Any) -> Any:
            if name in self.names:
                msg = f"no room for {name}"
                raise RuntimeError(msg)
            return tasks(name, options)(*given)

        return job


@pytest.mark.parametrize("seed", range(40 if long_lane() else 3))
def test_peeks_of_all_that_reads_what_failed_are_answered(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """At random: exports that read each other, one of which fails for a while; those that do not read it are right."""
    monkeypatch.setattr(Backoff, "pause_s", 0.01)
    rng, broken = random.Random(seed), Broken()
    reads: dict[str, set[str]] = {}
    with handle(tmp_path / "instance", runtime=runtime(tasks=broken)) as instance:
        for number in range(5):
            id_, source = f"e{number}", rng.choice(["orders", *reads])
            query = f"SELECT k, count(*) AS n FROM {source} GROUP BY k"
            imports = {} if source in reads else {"orders": log.path}
            if rng.random() < 0.5:
                instance.index(id_, query, imports=imports, key=rng.choice(["k", ()]))
            else:
                instance.maintain(id_, query, tmp_path / id_, imports=imports)
            reads[id_] = reads.get(source, set()) | {id_}
        for id_ in reads:
            instance.await_frontier(id_, 3)
        failed = rng.choice(list(reads))
        broken.names.add(failed)
        append(log, (4, 1, 9, 90), upper=5)
        for id_ in rng.sample(list(reads), len(reads)):
            if failed in reads[id_]:
                peeks_the_failure(instance, id_, 4, failed)
            else:
                assert instance.peek(id_, as_of=4).num_rows == 3
        # Mended, it gives what it would have given.
        broken.names.clear()
        for id_ in reads:
            instance.await_frontier(id_, 4)
            assert instance.peek(id_, as_of=4).num_rows == 3


def test_nothing_is_kept_of_what_is_dropped_while_it_fails(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
    shutil.rmtree(log.path)
    forgotten: list[str] = []
    monkeypatch.setattr(Worker, "_forget", noting(forgotten, Worker._forget))
    with handle(tmp_path / "instance") as instance:
        state = instance._driver.state
        wait_until(lambda: bool(state.errors))
        instance.drop("totals")
        wait_until(lambda: forgotten == ["totals"])
        assert not state.errors
        assert not state.failed
        assert not instance.show("errors").num_rows


def noting(names: list[str], forget: Any) -> Any:
    """Return the same that notes the exports first."""

    def noted(self: Worker, flow: Any) -> None:
        forget(self, flow)
        names.extend(export.id for export in flow.dataflow.exports)

    return noted


# The main thread ends while another one uses the instance: pools of threads take nothing more from then on.
ENDED_BEFORE = """
import sys, threading
from pathlib import Path
from spark_timely.errors import TimelyError
from tests.unit.compute.instances import TOTALS, append, handle, orders

log = orders(Path(sys.argv[1]) / "orders", (1, 1, 1, 10), upper=2)
instance = handle(Path(sys.argv[1]) / "instance")
instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
instance.await_frontier("totals", 1)

def use():
    threading.main_thread().join()
    append(log, (2, 1, 1, 10), upper=3)
    try:
        instance.await_frontier("totals", 2, timeout_s=30)
    except TimelyError as error:
        print(error.message.partition(": ")[2])

threading.Thread(target=use).start()
"""


def test_instance_that_nobody_closed_ends_in_silence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDED_BEFORE, str(tmp_path)], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("found that the main thread has ended\n", "", 0)
    with handle(tmp_path / "instance") as instance:  # the next one continues
        instance.await_frontier("totals", 2)


def test_newest_peek_of_what_never_began_names_its_failure(tmp_path: Path) -> None:
    log = orders(tmp_path / "orders", (1, -1, 1, 10), upper=9)  # a row is taken away that is not there
    with handle(tmp_path / "instance") as instance:
        instance.index("sums", SUM, imports={"orders": log.path}, key="k")
        instance.index("ones", "SELECT k FROM sums", key="k")
        wait_until(lambda: instance.show("errors").num_rows > 0)
        for id_ in ("sums", "ones"):
            for at in (None, 40):
                with pytest.raises(OperatorError, match=rf"could not peek '{id_}'.*: found that 'sums'.* has failed: "):
                    instance.peek(id_, as_of=at, timeout_s=60)


def test_exchanged_folders_are_not_read_as_each_other(tmp_path: Path, log: Log) -> None:
    place = tmp_path / "instance"
    with handle(place) as instance:
        instance.index("sums", SUM, imports={"orders": log.path}, key="k")
        instance.index(
            "counts", "SELECT k, count(*) AS s FROM orders GROUP BY k", imports={"orders": log.path}, key="k"
        )
        for id_ in ("sums", "counts"):
            instance.await_frontier(id_, 3)
    one, other = sorted((place / "collections").iterdir())
    one.rename(place / "aside")
    other.rename(one)
    (place / "aside").rename(other)
    with handle(place) as instance:
        for id_ in ("sums", "counts"):
            with pytest.raises((DataLossError, OperatorError), match=r"has not written|owned by|with other columns"):
                instance.peek(id_, as_of=3, timeout_s=30)
            with pytest.raises(DataLossError, match=f"{id_!r} has not written"):
                instance.subscribe(f"SELECT k FROM {id_}", as_of=3)
        with handle(place, read_only=True) as follower, pytest.raises(DataLossError, match="'sums' has not written"):
            follower.subscribe("SELECT k FROM sums", as_of=3)
        instance.drop("sums")
        wait_until(lambda: not instance.has("sums"))
    ids = {open_log(each).core.stream("main").owner.split()[1] for each in (one, other)}  # type: ignore[union-attr]
    assert ids == {"sums", "counts"}
