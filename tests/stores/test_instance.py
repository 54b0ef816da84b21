"""Compute instances in object stores: what a disk gives, a store gives; credentials are nowhere, outages end nothing.

The directory is in a store behind the proxy. What the instance reads and writes elsewhere is on a disk, or in the store
under other options than the directory has. All without Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.answers.peek import peek
from spark_timely.cli import main
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive import driver, folders, handle, requests, subscribes, worker
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.drive.subscribes import Batches
from spark_timely.compute.response import SubscribeBatch
from spark_timely.errors import (
    OperatorError,
    OwnershipError,
    SinceViolationError,
    StorageError,
    TimelyError,
    WaitTimeoutError,
)
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.cloud import open_storage
from tests.faults.harness import seed_of_run, tell, wait_until
from tests.stores.conftest import Place
from tests.stores.proxy import Plan, Rule
from tests.unit.compute.instances import SCHEMA, TOTALS, append, rows, runtime

pytestmark = pytest.mark.timeout(300)

MOTO = pytest.mark.parametrize("server", ["moto"], indirect=True)
FIRST = ((1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30))
LARGE = "SELECT k, v FROM orders WHERE v > 15"
# A store that is away is given up soon, so that a test sees it come back.
IMPATIENT = {"max_retries": "1", "retry_timeout": "1s", "backoff_config.max_backoff": "100ms"}


class World:
    """An instance in a store, its inputs and outputs elsewhere, and what these hold by plain Python."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.directory = f"{place.url}/instance"
        self.options = {**place.options, **IMPATIENT}
        # Not through the proxy: what is broken there is the instance's own.
        self.direct = place.server.options()
        self.far, self.near, self.out = f"{place.url}/orders", str(folder / "orders"), f"{place.url}/out"
        self.logs = [
            create_log(path, SCHEMA, kind="collection", minimum=(0,), storage_options=options)
            for path, options in ((self.far, self.direct), (self.near, None))
        ]
        self.updates: list[tuple[int, int, int, int]] = []
        self.move(*FIRST, upper=4)

    def move(self, *updates: tuple[int, int, int, int], upper: int) -> None:
        """Append the same to both inputs."""
        self.updates += updates
        for log in self.logs:
            append(log, *updates, upper=upper)

    def totals(self, time: int) -> list[tuple[int, ...]]:
        """Return what `TOTALS` gives at a time."""
        held = [row for row in self.updates if row[0] <= time]
        keys = sorted({k for *_, k, _ in held})
        found = [
            (
                k,
                sum(diff for _, diff, at, _ in held if at == k),
                sum(diff * v for _, diff, at, v in held if at == k),
                1,
            )
            for k in keys
        ]
        return [row for row in found if row[1]]

    def large(self, time: int) -> list[tuple[int, ...]]:
        """Return what `LARGE` gives at a time."""
        found: Counter[tuple[int, int]] = Counter()
        for at, diff, *row in self.updates:
            if at <= time and row[1] > 15:
                found[row[0], row[1]] += diff
        return sorted((*row, n) for row, n in found.items() if n)

    def open(self, **options: Any) -> Handle:
        given: dict[str, Any] = {
            "storage_options": self.options,
            "options_of": {self.far: self.direct, self.out: self.direct},
            **options,
        }
        return Handle(self.directory, given.pop("runtime", None) or runtime(), **given)

    def files(self, folder: str = "") -> Iterator[str]:
        """Give the paths of all files of the instance."""
        storage = open_storage(self.directory, self.direct)
        below = storage.folders(folder)
        for name in storage.names(folder):
            path = f"{folder}/{name}" if folder else name
            if name in below:
                yield from self.files(path)
            else:
                yield path


def look_every(monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    """Have logs and requests in stores looked at less seldom, or never."""
    for module in (driver, subscribes, worker):
        monkeypatch.setattr(module, "FAR_POLL_S", pause_s)
    monkeypatch.setattr(handle, "_FAR_REQUESTS_S", pause_s)
    monkeypatch.setattr(requests, "_FAR_POLL_S", pause_s)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    look_every(monkeypatch, 0.1)


@pytest.fixture
def world(place: Place, tmp_path: Path) -> World:
    return World(place, tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what was dropped deleted at the next look."""
    monkeypatch.setattr(folders, "_GONE_S", 0.0)


def until(batches: Batches, upper: int) -> list[SubscribeBatch]:
    found: list[SubscribeBatch] = []
    while not found or found[-1].upper.less_equal((upper - 1,)):
        batch = batches.next_batch(timeout_s=60)
        assert batch is not None
        found.append(batch)
    return found


def folded(batches: list[SubscribeBatch]) -> list[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        assert isinstance(batch.updates, pa.Table)
        for row in batch.updates.to_pylist():
            found[tuple(value for name, value in row.items() if name not in ("_time", "_diff"))] += row["_diff"]
    return sorted((*row, n) for row, n in found.items() if n)


def assert_replaced(old: Handle) -> None:
    """An older start has ended, and says by whom: by the command log, or by the log that it was to write."""
    by_whom = r"taken over by Fence|found it written by start \d+ \("
    with pytest.raises(OwnershipError, match=by_whom):
        old._wait(lambda: False, 60)
    with pytest.raises(OwnershipError, match=by_whom):
        old.configure(hydration_limit=9)


def check(world: World, instance: Handle, newest: int, since: int = 3) -> None:
    """What is peeked is right, at each time that can be."""
    for id_ in ("far", "near", "out"):
        instance.await_frontier(id_, newest)
    for time in range(since, newest + 1):
        for id_ in ("far", "near"):
            assert rows(instance.peek(id_, as_of=time)) == world.totals(time), (id_, time)
            assert rows(instance.peek(id_, as_of=time, keys={"k": [1, 9]})) == [
                row for row in world.totals(time) if row[0] == 1
            ]
        assert rows(instance.peek("out", as_of=time)) == world.large(time)
        assert rows(instance.peek(world.out, as_of=time)) == world.large(time)  # by its path
    assert rows(peek(world.out, storage_options=world.direct)) == world.large(newest)
    assert instance.show("errors").num_rows == 0
    assert instance.error is None


def filled(world: World, instance: Handle) -> None:
    instance.index("far", TOTALS, imports={"orders": world.far}, key="k")
    instance.index("near", TOTALS, imports={"orders": world.near}, key="k")
    instance.maintain("out", LARGE, world.out, imports={"orders": world.far})


# What it gives ---------------------------------------------------------------------------------------


def test_instance_in_a_store_gives_what_its_queries_say(world: World) -> None:
    with world.open() as instance:
        filled(world, instance)
        check(world, instance, 3)
        whole, some = instance.subscribe("far"), instance.subscribe("SELECT k FROM far WHERE n > 1")
        found, seen = until(whole, 4), until(some, 4)
        world.move((4, 1, 1, 1), (4, -1, 2, 20), (5, 1, 3, 99), upper=6)
        check(world, instance, 5)
        found, seen = found + until(whole, 6), seen + until(some, 6)
        assert folded(found) == world.totals(5)
        assert folded(seen) == [(1, 1)]
        instance.allow_compaction("far", 5)
        wait_until(lambda: instance.show("exports").num_rows == 5, deadline_s=30, what="all exports")
    with world.open() as instance:  # what is interactive has ended
        for id_ in ("far", "near", "out"):
            instance.await_frontier(id_, 5)
        assert sorted(instance.show("exports")["export_id"].to_pylist()) == ["far", "near", "out"]
        assert rows(instance.peek("near", as_of=3)) == world.totals(3)
        with pytest.raises(SinceViolationError, match="since"):
            instance.peek("far", as_of=4)
        world.move((6, 1, 2, 5), upper=7)
        check(world, instance, 6, since=5)


@MOTO
def test_copy_of_a_collection_in_a_store(world: World) -> None:
    def copied(path: str, folder: str, at: object, details: object) -> int:
        del details
        found = peek(path, as_of=at, storage_options=world.options)  # type: ignore[arg-type]
        Path(folder).mkdir()
        pq.write_table(found, f"{folder}/part.parquet")
        return found.num_rows

    with world.open(runtime=runtime(copy=copied)) as instance:
        filled(world, instance)
        instance.await_frontier("far", 3)
        assert instance.copy_to("far", str(world.folder / "copy")) == 2
        assert rows(pq.read_table(world.folder / "copy" / "part.parquet")) == world.totals(3)
    with world.open() as instance, pytest.raises(OperatorError, match="without a session of Spark"):
        instance.copy_to("far", str(world.folder / "other"))


# Starts ----------------------------------------------------------------------------------------------


def test_second_start_takes_over_and_the_older_is_refused(world: World) -> None:
    old = world.open()
    with contextlib.closing(old):
        filled(world, old)
        check(world, old, 3)
        with world.open() as new:
            assert_replaced(old)
            with pytest.raises(OwnershipError, match="taken over by Fence"):
                old.drop("near")
            world.move((4, 1, 1, 7), upper=5)
            check(world, new, 4)
            new.drop("near")
            assert old.error is not None


@pytest.mark.long
def test_follower_in_a_store_writes_nothing_until_it_takes_over(world: World) -> None:
    with world.open() as leader:
        filled(world, leader)
        leader.await_frontier("out", 3)
        with world.open(read_only=True) as follower:
            check(world, follower, 3)
            batches = follower.subscribe("far")
            found = until(batches, 4)
            leader.index("later", LARGE, imports={"orders": world.near})
            leader.drop("near")
            leader.index("near", TOTALS, imports={"orders": world.near}, key="k")
            wait_until(lambda: follower.has("later"), deadline_s=60, what="the new index")
            world.move((4, 1, 1, 7), upper=5)
            check(world, leader, 4)
            check(world, follower, 4)
            follower.await_frontier("later", 4)
            assert rows(follower.peek("later")) == world.large(4)
            with pytest.raises(OwnershipError, match="only follows"):
                follower.drop("later")
            follower.allow_writes()
            assert_replaced(leader)
            world.move((5, -1, 1, 7), upper=6)
            check(world, follower, 5)
            found += until(batches, 6)
            assert folded(found) == world.totals(5)
            follower.drop("later")


@pytest.mark.long
@MOTO
def test_follower_with_rights_to_read_alone_answers(world: World) -> None:
    with world.open() as leader:
        filled(world, leader)
        check(world, leader, 3)
    refused = [Rule("403", kind=kind) for kind in ("PUT", "POST", "DELETE")]
    proxy = world.place.proxy
    with proxy.counting() as seen, proxy.breaking(*refused), world.open(read_only=True) as follower:
        check(world, follower, 3)
        assert not {"PUT", "POST", "DELETE"} & {*seen_until_now(world)}
        assert folded(until(follower.subscribe("far"), 4)) == world.totals(3)
        assert follower.error is None
    assert not any(each.upstream for each in seen.requests if each.kind not in ("GET", "HEAD", "LIST")), str(seen)


def seen_until_now(world: World) -> list[str]:
    return [each.kind for each in world.place.proxy.since(0) if each.fault]


@pytest.mark.long
@MOTO
@pytest.mark.parametrize("read_only", [False, True])
def test_instance_with_nothing_to_do_leaves_the_store_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    with world.open() as leader:
        filled(world, leader)
        check(world, leader, 3)
    with world.open(read_only=read_only) as instance:
        check(world, instance, 3)
        wait_until(lambda: not instance.show("peeks").num_rows, deadline_s=30, what="the end of all peeks")
        n_turns, turn = [0], instance._driver.turn

        def counted() -> Any:
            n_turns[0] += 1
            return turn()

        look_every(monkeypatch, float("inf"))
        instance._driver.turn = counted  # type: ignore[method-assign]
        wait_until(lambda: n_turns[0] > 3, deadline_s=60, what="turns")  # one may have been on its way
        with world.place.proxy.counting() as seen:
            # Of an input on a disk news are seen at once: there are many turns.
            wait_until(lambda: n_turns[0] > 100, deadline_s=60, what="turns")
        assert seen.total == 0, str(seen)


# Folders ---------------------------------------------------------------------------------------------


def test_what_was_dropped_is_deleted_whole(world: World, soon: None) -> None:
    def there() -> set[str]:
        folders = open_storage(world.directory, world.direct).folders("collections")
        return {name.rpartition("-")[0] for name in folders}

    with world.open() as instance:
        filled(world, instance)
        for id_ in ("far", "near", "out"):
            instance.await_frontier(id_, 3)
        batches = instance.subscribe("SELECT k FROM far", id_="mine")
        until(batches, 4)
        # What a plan has made for itself is some levels below.
        assert any(path.count("/") > 4 for path in world.files())
        assert there() == {"far", "near", "mine"}
        instance.drop("near")
        batches.close()
        wait_until(lambda: there() == {"far"}, deadline_s=60, what="the deletion", report=lambda: str(there()))
        world.move((4, 1, 1, 7), upper=5)
        instance.await_frontier("far", 4)
        assert rows(instance.peek("far")) == world.totals(4)
        open_storage(f"{world.directory}/collections/mine-0", world.direct).write("a/b/c", b"1")
    with world.open() as instance:
        assert instance.unknown_folders() == ["mine-0"]
        instance.await_frontier("far", 4)
        assert there() == {"far", "mine"}
        instance.remove("mine-0")
        wait_until(lambda: there() == {"far"}, deadline_s=60, what="the removal", report=lambda: str(there()))
        assert rows(open_log(world.out, storage_options=world.direct).snapshot(4)) == world.large(4)


@pytest.mark.long
@MOTO
def test_command_log_in_a_store_is_reduced(world: World) -> None:
    with world.open() as instance:
        filled(world, instance)
        for number in range(30):
            instance.configure(hydration_limit=number + 1)
        world.move((4, 1, 1, 1), upper=34)
        instance.await_frontier("far", 33)
        for number in range(30):
            instance.allow_compaction("far", 4 + number)
    commands = CommandLog.at(f"{world.directory}/commands", storage_options=world.options, create=False)
    texts = [text for number, text in commands.rows() if number >= 0]
    assert len(texts) < 20, texts
    with world.open() as instance:
        check(world, instance, 33, since=33)
        assert instance.configured(["hydration_limit"]) == {"hydration_limit": 30}


# Requests --------------------------------------------------------------------------------------------


def test_command_line_asks_and_looks(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    given = [part for pair in world.options.items() for part in ("--storage", "=".join(pair))]

    def run(*words: str, code: int = 0) -> str:
        found = main(["instance", world.directory, *words, *given])
        out, err = capsys.readouterr()
        assert found == code, out + err
        assert not [secret for secret in secrets(world) if secret in out + err]
        return out + err

    with world.open() as instance:
        run("create", "far", "--query", TOTALS, "--import", f"orders={world.far}", "--key", "k")
        run("create", "out", "--query", LARGE, "--import", f"orders={world.far}", "--into", world.out)
        assert "found" in run("create", "far", "--query", TOTALS, "--import", f"orders={world.far}", code=2)
        run("configure", "--set", "hydration_limit=7")
        assert instance.configured(["hydration_limit"]) == {"hydration_limit": 7}
        instance.await_frontier("far", 3)
        instance.await_frontier("out", 3)
        assert "far" in run("status", "exports")
        found = [json.loads(line) for line in run("peek", "far", "--json").splitlines()]
        assert sorted((row["k"], row["n"], row["s"], row["_diff"]) for row in found) == world.totals(3)
        assert "upper=" in run("why", "far")
        run("drop", "out")
        assert not instance.has("out")
        assert "out" in run("drop", "out", code=4)
    assert "not done yet" in run("drop", "far", "--timeout", "1s", code=1)
    with world.open() as instance:  # it is taken up
        wait_until(lambda: not instance.has("far"), deadline_s=60, what="the drop")
    assert [path for path in world.files() if path.startswith("requests/") and not path.endswith(".answer")] == []


# Credentials -----------------------------------------------------------------------------------------


def secrets(world: World) -> list[str]:
    found = [value for name, value in world.options.items() if "secret" in name or name.endswith("account_key")]
    assert found
    return found


def test_credentials_are_in_nothing_that_is_written_or_said(
    world: World, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    said = []
    with world.open() as instance:
        filled(world, instance)
        for id_ in ("far", "near", "out"):
            instance.await_frontier(id_, 3)
        said += [repr(each) for each in (instance, instance.directory, instance._driver, instance._requests)]
        said += [instance.why("out"), *(str(instance.show(name)) for name in ("exports", "errors", "hydration"))]
    storage = open_storage(world.directory, world.direct)
    paths = list(world.files())
    assert len(paths) > 20
    contents = {path: bytes(storage.read(path)) for path in paths}
    commands = CommandLog.at(f"{world.directory}/commands", storage_options=world.options, create=False)
    said += [text for _, text in commands.rows()]
    said += [record.getMessage() for record in caplog.records]
    out, err = capfd.readouterr()
    said += [out, err]
    for secret in secrets(world):
        assert [path for path, content in contents.items() if secret.encode() in content] == []
        assert [text[:200] for text in said if secret in text] == []
        assert [
            path for path in world.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
        ] == []


@MOTO
def test_wrong_credentials_are_a_clear_error_without_them(world: World) -> None:
    with world.open() as instance:
        filled(world, instance)
        instance.await_frontier("far", 3)
    wrong = {**world.options, "aws_secret_access_key": "hidden000000001", "max_retries": "0"}
    nobody = {**wrong, "aws_endpoint": "http://127.0.0.1:9"}
    with world.place.proxy.breaking(Rule("403")):
        for given, read_only in itertools.product((wrong, nobody), (False, True)):
            with pytest.raises(StorageError) as caught:
                world.open(storage_options=given, read_only=read_only)
            text = "".join((str(caught.value), repr(caught.value), str(caught.value.context), str(caught.value.hint)))
            assert caught.value.message.startswith("could not ")
            assert world.directory in text
            assert "hidden000000001" not in text
    with world.open() as instance:  # nothing has changed
        check(world, instance, 3)


@MOTO
def test_wrong_credentials_elsewhere_break_what_reads_there(world: World) -> None:
    wrong = {**world.options, "aws_secret_access_key": "hidden000000001", "max_retries": "0"}
    with world.open() as instance:
        filled(world, instance)
        for id_ in ("far", "near", "out"):
            instance.await_frontier(id_, 3)
    options_of = {world.far: wrong, world.out: world.direct}
    with world.place.proxy.breaking(Rule("403", key="/orders/")), world.open(options_of=options_of) as instance:
        world.move((4, 1, 1, 7), upper=5)
        instance.await_frontier("near", 4)
        assert rows(instance.peek("near")) == world.totals(4)
        assert rows(instance.peek("far", as_of=3)) == world.totals(3)
        wait_until(lambda: instance.show("errors").num_rows > 0, deadline_s=60, what="the error")
        text = str(instance.show("errors").to_pylist()) + instance.why("far")
        assert world.far in text
        assert "hidden000000001" not in text
        with pytest.raises(TimelyError) as caught:
            instance.index("more", TOTALS, imports={"orders": world.far})
        assert "hidden000000001" not in str(caught.value) + repr(caught.value)
        assert not instance.has("more")
        assert instance.error is None
    with world.open() as instance:
        check(world, instance, 4)


# Outages ---------------------------------------------------------------------------------------------


@pytest.mark.long
@MOTO
@pytest.mark.parametrize("fault", ["503", "reset"])
def test_store_that_is_away_for_a_while_ends_nothing(world: World, fault: str) -> None:
    with world.open() as leader, world.open(read_only=True) as follower:
        filled(world, leader)
        check(world, leader, 3)
        wait_until(lambda: follower.has("out"), deadline_s=60, what="the outputs")
        for id_ in ("far", "near", "out"):
            follower.await_frontier(id_, 3)
        batches, followed = leader.subscribe("far"), follower.subscribe("far")
        found, seen = until(batches, 4), until(followed, 4)
        before = CommandLog.at(leader.directory.commands, storage_options=world.direct, create=False).rows()
        with world.place.proxy.breaking(Rule(fault)):
            world.move((4, 1, 1, 7), upper=5)
            with pytest.raises(StorageError):
                leader.configure(hydration_limit=2)
            with pytest.raises(StorageError):
                leader.index("more", TOTALS, imports={"orders": world.near})
            for each in (leader, follower):
                with pytest.raises((WaitTimeoutError, OperatorError, StorageError)):
                    each.peek("far", as_of=4, timeout_s=0.5)
                wait_until(lambda each=each: each._driver._unreachable.n_failed > 1, deadline_s=60, what="an outage")
        found, seen = found + until(batches, 5), seen + until(followed, 5)
        assert folded(found) == folded(seen) == world.totals(4)
        check(world, leader, 4)
        for id_ in ("far", "near", "out"):
            follower.await_frontier(id_, 4)
        check(world, follower, 4)
        after = CommandLog.at(leader.directory.commands, storage_options=world.direct, create=False).rows()
        assert after == before
        leader.configure(hydration_limit=2)
        leader.index("more", TOTALS, imports={"orders": world.near})
        leader.await_frontier("more", 4)
        assert rows(leader.peek("more")) == world.totals(4)


@MOTO
def test_news_that_could_not_be_read_is_not_lost_to_a_follower(world: World) -> None:
    with world.open() as leader, world.open(read_only=True) as follower:
        leader.index("near", TOTALS, imports={"orders": world.near}, key="k")
        follower.await_frontier("near", 3) if follower.has("near") else None
        # The entry of the command log is read, the file that it names is not.
        with world.place.proxy.breaking(Rule("500", kind="GET", key=r"commands/_event=message/")):
            leader.index("more", TOTALS, imports={"orders": world.near}, key="k")
            wait_until(lambda: follower._driver._unreachable.n_failed > 0, deadline_s=60, what="an outage")
        wait_until(lambda: follower.has("more"), deadline_s=60, what="the new index")
        follower.await_frontier("more", 3)
        assert rows(follower.peek("more")) == world.totals(3)


@MOTO
def test_request_is_answered_after_an_outage(world: World) -> None:
    with world.open() as instance:
        asking = Requests(instance.directory)
        instance.index("near", TOTALS, imports={"orders": world.near}, key="k")
        done: list[object] = []

        def asks() -> None:
            try:
                asking.ask("drop", {"id": "near"}, timeout_s=60)
                done.append(None)
            except TimelyError as error:
                done.append(error)

        with world.place.proxy.breaking(Rule("500", key=r"\.(begun|answer)", kind="PUT")):
            thread = threading.Thread(target=asks)
            thread.start()
            wait_until(lambda: world.place.proxy.broken["500"] > 2, deadline_s=60, what="failures")
        thread.join(60)
        assert done == [None]
        assert not instance.has("near")


@MOTO
@pytest.mark.parametrize("exist_ok", [False, True])
def test_log_that_was_made_is_whole_where_a_look_fails(place: Place, exist_ok: bool) -> None:
    options = {**place.options, "max_retries": "0"}
    path = f"{place.url}/made"
    with place.proxy.breaking(Rule("500", kind="LIST", key="_delta_log/")), pytest.raises(StorageError):
        create_log(path, SCHEMA, kind="collection", minimum=(0,), exist_ok=exist_ok, storage_options=options)
    log = create_log(path, SCHEMA, kind="collection", minimum=(0,), exist_ok=True, storage_options=options)
    append(log, *FIRST, upper=4)
    assert len(rows(peek(log, as_of=3))) == len(FIRST)


@pytest.mark.long
@pytest.mark.parametrize("number", range(8))
@MOTO
def test_faults_at_random_change_no_answer(world: World, number: int) -> None:
    seed = seed_of_run() + number
    tell(f"seed {seed}")
    plan = Plan(seed, 0.1, faults=("500", "503", "500-after", "reset", "lost"), in_a_row=2)

    def tried(act: Callable[[], object], done: Callable[[], bool]) -> None:
        """Do something until it was done; a failure may have done it."""
        for _ in range(40):
            with contextlib.suppress(StorageError):
                act()
            if done():
                return
        raise AssertionError

    upper = 4
    with world.place.proxy.planned(plan):
        for _ in range(3):
            instance: Handle | None = None
            while instance is None:
                with contextlib.suppress(StorageError):
                    instance = world.open()
            made: dict[str, Callable[[], object]] = {
                "far": lambda it=instance: it.index("far", TOTALS, imports={"orders": world.far}, key="k"),
                "near": lambda it=instance: it.index("near", TOTALS, imports={"orders": world.near}, key="k"),
                "out": lambda it=instance: it.maintain("out", LARGE, world.out, imports={"orders": world.far}),
            }
            with contextlib.closing(instance):
                for id_, make in made.items():
                    if not instance.has(id_):
                        tried(make, lambda id_=id_, it=instance: it.has(id_))
                world.move((upper, 1, upper % 4, upper), (upper, 1, 1, 20 + upper), upper=upper + 1)
                upper += 1
                tried(
                    lambda it=instance, at=upper: it.configure(hydration_limit=at),
                    lambda it=instance, at=upper: it.configured(["hydration_limit"]) == {"hydration_limit": at},
                )
                for id_ in made:
                    instance.await_frontier(id_, upper - 1)
                assert instance.error is None
    with world.open() as instance:
        check(world, instance, upper - 1, since=upper - 1)
        assert instance.configured(["hydration_limit"]) == {"hydration_limit": upper}
