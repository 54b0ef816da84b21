"""Whatever a store does to requests, what was acknowledged is in the log, once.

The oracle is the list of values that writers were told are in: it knows nothing of logs.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import DataLossError, StorageError, TimelyError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import checkpoints, cloud
from spark_timely.log.store.cloud import CloudStorage
from tests.faults.harness import long_lane, seed_of_run, tell
from tests.stores.conftest import IGNORANT, Place
from tests.stores.producer import SCHEMA, outcome, produce, start
from tests.stores.proxy import CODES, Plan, Rule
from tests.stores.servers import STORES, Server

pytestmark = pytest.mark.faults

FAULTS = ("500", "503", "403", "500-after", "hang", "hang-after", "reset", "lost", "cut")
DEADLINE_S = 300
KILLS = 10
ENTRY = r"_delta_log/\d+\.json$"
TIMES_OUT = {"timeout": "1s"}
IMPATIENT = {"max_retries": "0"}  # no fault is hidden by the client's own tries


def assert_exactly_once(place: Place, acknowledged: list[int]) -> None:
    log = open_log(place.url, storage_options=place.options)
    report = log.verify()
    assert report.legal, report.problems
    there = Counter(log.messages()["v"].to_pylist())
    assert {value: count for value, count in there.items() if count > 1} == {}, "twice"
    assert set(acknowledged) - set(there) == set(), "lost"
    assert set(there) - set(acknowledged) == set(), "never acknowledged, though each append was repeated until it was"


def in_threads(*work: Callable[[], object]) -> None:
    """Run functions side by side; raise what one of them raised."""
    problems: list[BaseException] = []

    def guarded(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised below
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def watch(place: Place, options: dict[str, str], over: threading.Event) -> list[tuple[int, int, int]]:
    """Look at a log until it is over; return each frontier with number and sum of the values that it completes."""
    found: list[tuple[int, int, int]] = []
    log: Log | None = None
    while not over.wait(0.2):
        try:
            if log is None:
                log = open_log(place.url, storage_options=options)
            log.refresh()
            frontier = log.frontier()
            values = log.messages(upper=frontier, columns=["v"])["v"].to_pylist()
        except DataLossError:
            raise
        except StorageError:
            log = None
            continue
        found.append((frontier.elements[0][0], len(values), sum(values)))
    return found


def assert_nothing_early(place: Place, seen: list[tuple[int, int, int]]) -> None:
    log = open_log(place.url, storage_options=place.options)
    for frontier, count, total in set(seen):
        values = log.messages(upper=[frontier], columns=["v"])["v"].to_pylist()
        assert (len(values), sum(values)) == (count, total), f"rows came below frontier={frontier} after it was seen"


def end(server: Server) -> None:
    """Kill a store, and start it again. Azurite keeps its index in memory for seconds, so it is asked to end."""
    if server.name == "azurite":
        server.stop()
    else:
        server.kill()
    server.start()


OTHERS = ("500-after", "reset", "503", "cut")
OF_ANY_REQUEST = ("lost", *(pytest.param(each, marks=pytest.mark.long) for each in OTHERS))

# Random faults --------------------------------------------------------------------------------------


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("retries", ["patient", "impatient"])
def test_random_faults_lose_nothing_and_repeat_nothing(place: Place, retries: str) -> None:
    seed = seed_of_run() if long_lane() else 18
    wanted = 1000 if long_lane() else 30
    tell(f"SPARK_TIMELY_SEED={seed}")
    # Not of moto, which keeps all in memory.
    ends = sorted(random.Random(seed).sample(range(wanted), 0 if place.server.name == "moto" else KILLS))
    create_log(place.url, SCHEMA, minimum=(0,), streams=2, storage_options=place.options)
    acknowledged: list[int] = []
    struck: list[int] = []
    seen: list[tuple[int, int, int]] = []
    options = {**place.options, **TIMES_OUT, **(IMPATIENT if retries == "impatient" else {})}
    over = threading.Event()
    with place.proxy.planned(Plan(seed, 0.05, FAULTS, delay=1.5, limit=wanted)):

        def enough() -> bool:
            return sum(place.proxy.broken.values()) >= wanted

        def work(stream: int) -> None:
            failed = produce(
                place.url, options, stream, tell=acknowledged.extend, enough=enough, deadline_s=3000, merge_every=5
            )
            tell(f"stream {stream}: {dict(failed)}")

        def produce_all() -> None:
            try:
                in_threads(lambda: work(0), lambda: work(1))
            finally:
                over.set()

        def strike() -> None:
            for broken in ends:
                while sum(place.proxy.broken.values()) < broken:
                    if over.wait(0.1):
                        return
                end(place.server)
                struck.append(broken)

        in_threads(produce_all, lambda: seen.extend(watch(place, {**place.options, **TIMES_OUT}, over)), strike)
    tell(f"ended and started again after these faults: {struck}")
    assert struck == ends
    tell(f"{len(acknowledged)} rows, {dict(place.proxy.broken)}, {place.proxy.total} requests, {len(seen)} looks")
    assert sum(place.proxy.broken.values()) >= wanted
    assert acknowledged
    with place.proxy.counting() as asked:
        try:
            assert_exactly_once(place, acknowledged)
        finally:
            tell("\n".join(f"{each.key}: {each.problem}" for each in asked.requests if each.problem))
    assert_nothing_early(place, seen)


@pytest.mark.parametrize("fault", OF_ANY_REQUEST)
def test_fault_on_any_request_of_an_append_is_absorbed(place: Place, fault: str) -> None:
    create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.options)
    writer = open_log(place.url, storage_options=place.options, merge_every=None).writer("s0", owner="s0")

    def append(value: int) -> None:
        assert writer.append(pa.table({"_time": [value], "v": [value]}), advance_to=value).committed

    append(0)
    with place.proxy.counting() as seen:
        append(1)
    for skip in range(seen.total):
        with place.proxy.breaking(Rule(fault, skip=skip, times=1)):
            append(skip + 2)
    values = open_log(place.url, storage_options=place.options).messages()["v"].to_pylist()
    assert sorted(values) == list(range(seen.total + 2))


class Appends:
    """Appends the next value to a log."""

    def __init__(self, log: Log) -> None:
        self.writer, self.n = log.writer("s0", owner="s0"), 0

    def __call__(self) -> None:
        rows = pa.table({"_time": [self.n], "v": [self.n]})
        self.n += 1
        assert self.writer.append(rows, advance_to=self.n).committed


Work = Callable[[Place, Log, Appends], None]
_numbers = itertools.count()


def opening(place: Place, log: Log, append: Appends) -> None:
    del log
    assert open_log(place.url, storage_options=place.options).messages().num_rows == append.n


def creation(place: Place, log: Log, append: Appends) -> None:
    """Of a log of its own each time; refused where there is one already, also one that the lost attempt made."""
    del log, append
    made = create_log(f"{place.url} {next(_numbers)}", SCHEMA, minimum=(0,), storage_options=place.options)
    Appends(made)()
    assert made.messages().num_rows == 1


def first_append(place: Place, log: Log, append: Appends) -> None:
    """Of a process: before it the store is asked whether it excludes."""
    del place, log
    cloud._excluding.clear()
    append()


def checkpoint(place: Place, log: Log, append: Appends) -> None:
    """Of one more commit, and the deletion of an entry far behind it."""
    del place
    assert log.core.store.tidy(now=True)
    assert log.core.store._upkeep._newest[0] == log.core.version
    append()


def merge(place: Place, log: Log, append: Appends) -> None:
    del place
    report = log.compact()
    assert (len(log.core.files()), report.lost) == (1, 0)
    append()


def large_file(place: Place, log: Log, append: Appends) -> None:
    del log, append
    storage = CloudStorage(place.url, place.options)
    content = bytes(range(256)) * (3 * cloud.WHOLE_BYTES // 256 + 1)
    storage.write("large", content)
    assert storage.mark("large")[1] == len(content)


@pytest.mark.parametrize("fault", OF_ANY_REQUEST)
@pytest.mark.parametrize("work", [creation, first_append, opening, checkpoint, merge, large_file])
def test_fault_on_any_request_of_other_work_is_absorbed(
    place: Place, fault: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "KEEP_VERSIONS", 3)
    monkeypatch.setattr(checkpoints, "KEEP_S", -1.0)
    log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.options, merge_every=None)
    append = Appends(log)
    for _ in range(6):
        append()
    work(place, log, append)
    with place.proxy.counting() as asked:
        work(place, log, append)
    for skip in range(asked.total):
        with place.proxy.breaking(Rule(fault, skip=skip, times=1)):
            work(place, log, append)
    tell(f"{asked}\n{dict(place.proxy.broken)}")
    assert sum(place.proxy.broken.values()) == asked.total
    found = open_log(place.url, storage_options=place.options)
    assert found.verify().legal
    assert found.messages()["v"].to_pylist() == list(range(append.n))


# A store that ignores conditions --------------------------------------------------------------------

STRIPS = Rule("strip", kind="PUT", key=ENTRY, delay=0.4)


@IGNORANT
def test_store_without_conditional_puts_is_refused_at_creation(place: Place) -> None:
    # Before there is an entry, a file of the log is put twice.
    with place.proxy.breaking(Rule("strip", kind="PUT")), pytest.raises(TimelyError, match="singleWriter"):
        create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.unsigned)


@IGNORANT
def test_store_without_conditional_puts_acknowledges_no_append(place: Place) -> None:
    create_log(place.url, SCHEMA, minimum=(0,), streams=2, storage_options=place.unsigned)
    with place.proxy.breaking(STRIPS):
        processes = [start(place.url, place.unsigned, stream, batches=10, deadline_s=0) for stream in range(2)]
        said = [process.communicate(timeout=DEADLINE_S) for process in processes]
    acknowledged = {int(line) for lines, _ in said for line in lines.split()}
    there = set(open_log(place.url, storage_options=place.unsigned).messages()["v"].to_pylist())
    assert acknowledged - there == set(), f"lost of {len(acknowledged)}"
    assert acknowledged == set()
    assert all("singleWriter" in words for _, words in said)


@IGNORANT
def test_promise_of_one_writer_allows_such_a_store(place: Place) -> None:
    with place.proxy.breaking(STRIPS):
        log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.unsigned, single_writer=True)
        writer = log.writer("s0", owner="s0")
        for value in range(3):
            assert writer.append(pa.table({"_time": [value], "v": [value]}), advance_to=value).committed
    assert open_log(place.url, storage_options=place.unsigned).messages()["v"].to_pylist() == [0, 1, 2]


# Several processes ----------------------------------------------------------------------------------


def test_processes_that_create_and_fill_one_log_lose_nothing(place: Place) -> None:
    n, each, batches = (4, 4, 10) if long_lane() else (2, 1, 5)
    streams = [range(number * each, (number + 1) * each) for number in range(n)]
    acknowledged = outcome(
        [start(place.url, place.options, *own, streams=n * each, batches=batches) for own in streams]
    )
    assert [len(said) for said in acknowledged] == [2 * batches * each] * n
    assert_exactly_once(place, list(itertools.chain.from_iterable(acknowledged)))


@pytest.mark.long
def test_two_processes_on_one_stream_append_each_batch_once(place: Place) -> None:
    create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.options)
    first, second = outcome([start(place.url, place.options, 0, batches=25, shared=True) for _ in range(2)])
    assert sorted(first) == sorted(second)
    assert_exactly_once(place, first)


@pytest.mark.long
def test_creations_at_one_moment_make_one_log(place: Place) -> None:
    for attempt in range(5):
        url = f"{place.url} {attempt}"
        processes = [start(url, place.options, s, streams=4, batches=1) for s in range(4)]
        outcome(processes)
        log = open_log(url, storage_options=place.options)
        assert log.core.unclaimed == 0
        assert log.verify().messages == 8


# A store that dies ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("server", ["minio", "azurite"], indirect=True)
def test_store_killed_under_two_writers_has_what_it_said(server: Server, tmp_path: Path) -> None:
    """Not moto, which keeps all in memory."""
    server = STORES[server.name](tmp_path).start()
    url, options = server.url("killed"), {**server.options(), "timeout": "5s", "retry_timeout": "2s"}
    acknowledged: list[int] = []
    failed: Counter[str] = Counter()
    done = threading.Event()

    def work(stream: int) -> None:
        failed.update(produce(url, options, stream, tell=acknowledged.extend, enough=done.is_set, deadline_s=600))

    def strike() -> None:
        try:
            for _ in range(KILLS):
                before = len(acknowledged)
                while len(acknowledged) < before + 8 and all(thread.is_alive() for thread in threads):
                    done.wait(0.01)
                end(server)
        finally:
            done.set()

    try:
        create_log(url, SCHEMA, minimum=(0,), streams=2, storage_options=server.options())
        problems: list[BaseException] = []

        def guarded(stream: int) -> None:
            try:
                work(stream)
            except BaseException as error:  # noqa: BLE001 - shown below
                problems.append(error)

        threads = [threading.Thread(target=guarded, args=(stream,)) for stream in range(2)]
        for thread in threads:
            thread.start()
        strike()
        for thread in threads:
            thread.join()
        assert problems == []
        tell(f"{len(acknowledged)} rows, {KILLS} ends, {dict(failed)}")
        log = open_log(url, storage_options=server.options())
        assert Counter(log.messages()["v"].to_pylist()) == dict.fromkeys(acknowledged, 1)
        assert log.verify().legal
    finally:
        server.stop()


# What is said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["403", "503"])
def test_what_a_store_refuses_is_no_damage(place: Place, fault: str) -> None:
    log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.options)
    log.writer("s0", owner="s0").append(pa.table({"_time": [0], "v": [0]}), advance_to=1)
    code = CODES[place.server.style][fault]
    options = {**place.options, **IMPATIENT}
    reader = open_log(place.url, storage_options=options)
    with (
        place.proxy.breaking(Rule(fault, kind="GET", key=r"\.parquet$")),
        pytest.raises(StorageError, match=code) as found,
    ):
        reader.messages()
    assert not isinstance(found.value, DataLossError)
    assert "\x1b" not in str(found.value)
