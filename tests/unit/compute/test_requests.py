"""Requests of other processes are done once, and answered, wherever a process ends between."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.errors import DataLossError, StorageError, WaitTimeoutError
from spark_timely.log import Log
from tests.faults.harness import long_lane
from tests.unit.compute.instances import TOTALS, handle, orders

STEPS = ("names", "find", "put", "delete")


class KilledError(BaseException):
    """The process that takes requests ends here."""


class Steps:
    """Passes on what is asked of it, and counts; ends the process behind a step, or before one."""

    def __init__(self, inner: Any, names: tuple[str, ...], met: list[str], last: str | None) -> None:
        self._inner, self._names, self.met, self._last = inner, names, met, last

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        def step(*args: Any, **more: Any) -> Any:
            ended = str(args[0]).rpartition(".")[2] if args and self._names is STEPS else ""
            what = f"{name} {ended}".strip()
            if self._last == f"before {what}":
                raise KilledError
            answer = found(*args, **more)
            self.met.append(what)
            if self._last == f"after {what}":
                raise KilledError
            return answer

        return step


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), upper=4)


@pytest.fixture(autouse=True)
def _nobody_takes_requests_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handle, "_take_requests", lambda _: None)


def begun(folder: Path, log: Log, *, keeps: bool = False) -> Handle:
    """Return an instance in which there is something to change: an index, and perhaps a log."""
    instance = handle(folder)
    instance.configure(hydration_limit=3, steps_at_once=5)
    instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=1)
    if keeps:
        instance.maintain("kept", TOTALS, f"{folder}-kept", imports={"orders": log.path})
    instance.await_frontier("totals", 3)
    return instance


def asked(requests: Requests, verb: str, arguments: Mapping[str, object]) -> str:
    """Ask, and do not wait; return the name of the request."""
    with pytest.raises(WaitTimeoutError):
        requests.ask(verb, arguments, timeout_s=0.0)
    return next(name[:-5] for name in files(requests) if name.endswith(".json"))


def files(requests: Requests) -> list[str]:
    return list(requests._storage.names())


def answer(requests: Requests, name: str) -> Any:
    content = requests._storage.find(f"{name}.answer")
    return None if content is None else json.loads(content)["error"]


def state(instance: Handle) -> dict[str, object]:
    return {
        "ids": sorted(instance._driver.state.exports()),
        "configuration": instance.configured(["hydration_limit", "steps_at_once"]),
        "allowed": instance._driver.instance.allowed("totals").elements if instance.has("totals") else None,
    }


def lasting(instance: Handle) -> int:
    """Return how often the command log was written."""
    commands = CommandLog.at(instance.directory.commands, create=False)
    (upper,) = commands.log.frontier().elements
    return int(upper[0])


def abandoned(instance: Handle) -> None:
    """Let it end as if its process were gone."""
    instance._ended = True
    instance._driver.wake.set()
    instance._thread.join()


ASKED: dict[str, tuple[str, Callable[[Path, Log], dict[str, object]]]] = {
    "drop": ("drop", lambda *_: {"id": "totals"}),
    "drop of a log": ("drop", lambda *_: {"id": "kept"}),
    "configure": ("configure", lambda *_: {"hydration_limit": 7, "steps_at_once": 6}),
    "allow_compaction": ("allow_compaction", lambda *_: {"id": "totals", "frontier": [3]}),
    "index": ("index", lambda _, log: {"id": "new", "query": TOTALS, "imports": {"orders": log.path}, "key": ["k"]}),
    "maintain": (
        "maintain",
        lambda folder, log: {"id": "new", "query": TOTALS, "imports": {"orders": log.path}, "into": f"{folder}-new"},
    ),
}


def places(what: str, verb: str) -> Iterator[str]:
    """Give each place between two steps; in the short lane of some requests those beside the verb."""
    if not long_lane() and what not in ("drop", "index"):
        yield from ("after find json" if verb == "maintain" else "after put begun", f"after {verb}", "after put answer")
        return
    ends = ["names", "find json", "find begun", "put begun", verb, "put answer", "delete json", "delete begun"]
    if verb in ("index", "maintain"):
        ends = [end for end in ends if end not in ("find begun", "put begun")]
    yield f"before {ends[0]}"
    yield from (f"after {end}" for end in ends)


@pytest.mark.parametrize("what", ASKED)
def test_request_is_done_once_wherever_the_process_ends(tmp_path: Path, log: Log, what: str) -> None:
    verb, given = ASKED[what]
    for number, last in enumerate(places(what, verb)):
        folder = tmp_path / f"instance{number}"
        old = begun(folder, log, keeps=what == "drop of a log")
        unchanged = state(old)
        arguments = given(folder, log)
        name = asked(Requests(old.directory), verb, arguments)
        killed, met = Requests(old.directory), list[str]()
        killed._storage = Steps(killed._storage, STEPS, met, last)  # type: ignore[assignment]
        with pytest.raises(KilledError):
            killed.take(Steps(old, (verb,), met, last))  # type: ignore[arg-type]
        abandoned(old)
        with handle(folder) as new:
            requests, before = Requests(new.directory), lasting(new)
            changed = state(new)
            requests.take(new)
            assert answer(requests, name) is None, last
            assert files(requests) == [f"{name}.answer"], last
            after = state(new)
            assert after != unchanged, last
            if verb in met and verb != "allow_compaction":  # that is written within a second
                assert after == changed, last
                assert lasting(new) == before, last
            assert requests.take(new) == 0
            assert state(new) == after


@pytest.mark.parametrize("last", ["after put begun", "after drop"])
def test_what_is_made_after_a_drop_began_is_not_dropped(tmp_path: Path, log: Log, last: str) -> None:
    old = begun(tmp_path / "instance", log)
    name = asked(Requests(old.directory), "drop", {"id": "totals"})
    killed = Requests(old.directory)
    killed._storage = Steps(killed._storage, STEPS, [], last)  # type: ignore[assignment]
    with pytest.raises(KilledError):
        killed.take(Steps(old, ("drop",), [], last))  # type: ignore[arg-type]
    abandoned(old)
    with handle(tmp_path / "instance") as new:
        if new.has("totals"):
            new.drop("totals")
        new.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        requests = Requests(new.directory)
        requests.take(new)
        assert answer(requests, name) is None
        assert new.has("totals")
        new.await_frontier("totals", 3)


def test_value_that_was_changed_after_a_configure_stays(tmp_path: Path, log: Log) -> None:
    old = begun(tmp_path / "instance", log)
    asked(Requests(old.directory), "configure", {"hydration_limit": 7})
    killed = Requests(old.directory)
    with pytest.raises(KilledError):
        killed.take(Steps(old, ("configure",), [], "after configure"))  # type: ignore[arg-type]
    abandoned(old)
    with handle(tmp_path / "instance") as new:
        assert new.configured(["hydration_limit"]) == {"hydration_limit": 7}
        new.configure(hydration_limit=8)
        Requests(new.directory).take(new)
        assert new.configured(["hydration_limit"]) == {"hydration_limit": 8}


def test_compaction_that_was_allowed_is_not_of_another_index(tmp_path: Path, log: Log) -> None:
    old = begun(tmp_path / "instance", log)
    asked(Requests(old.directory), "allow_compaction", {"id": "totals", "frontier": [3]})
    killed = Requests(old.directory)
    with pytest.raises(KilledError):
        killed.take(Steps(old, ("allow_compaction",), [], "after allow_compaction"))  # type: ignore[arg-type]
    abandoned(old)
    with handle(tmp_path / "instance") as new:
        new.drop("totals")
        new.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=1)
        Requests(new.directory).take(new)
        assert new._driver.instance.allowed("totals").elements == ((1,),)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("verb", ["drop", "index"])
def test_answer_ends_its_request(tmp_path: Path, log: Log, verb: str, taken: bool) -> None:
    old = begun(tmp_path / "instance", log)
    requests = Requests(old.directory)
    name = asked(requests, *((verb, ASKED[verb][1](tmp_path, log))))
    killed = Requests(old.directory)
    killed._storage = Steps(killed._storage, STEPS, [], "after put answer")  # type: ignore[assignment]
    with pytest.raises(KilledError):
        killed.take(old)
    abandoned(old)
    if taken:
        for end in ("json", "answer"):
            requests._storage.delete(f"{name}.{end}")
    with handle(tmp_path / "instance") as new:
        if verb == "index":
            new.drop("new")
        else:
            new.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        before = state(new)
        assert requests.take(new) == 0
        assert state(new) == before
        assert files(requests) == ([] if taken else [f"{name}.answer"])  # nor is it begun any more


def test_asking_deletes_the_request_before_the_answer(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        asks, takes, met = Requests(instance.directory), Requests(instance.directory), list[str]()
        inner = asks._storage

        class Looking(Steps):
            def find(self, path: str) -> bytes | None:
                takes._storage.names()
                takes.take(instance)
                return inner.find(path)

        asks._storage = Looking(inner, STEPS, met, None)  # type: ignore[assignment]
        asks.ask("drop", {"id": "totals"})
        assert met[-2:] == ["delete json", "delete answer"]
        assert files(takes) == []


def test_refusal_leaves_nothing_and_names_what_is_missing(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        instance.index("over", "SELECT k FROM totals")
        instance.write_down()  # reduced, as it would be within a second
        before, written = state(instance), lasting(instance)
        for arguments, word in (
            ({"id": "none"}, "none"),
            ({"id": "totals"}, "imported"),
            ({}, "KeyError"),
            ({"id": "over", "more": 1}, "more"),
        ):
            name = asked(requests, "drop", arguments)
            assert requests.take(instance) == 1
            assert word in str(answer(requests, name))
            assert files(requests) == [f"{name}.answer"]
            requests._storage.delete(f"{name}.answer")
        assert state(instance) == before
        assert lasting(instance) == written


def test_answer_is_written_later_and_nothing_is_repeated(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        name = asked(requests, "index", ASKED["index"][1](tmp_path, log))
        inner = requests._storage

        class Away(Steps):
            def put(self, path: str, content: bytes, **more: Any) -> None:
                if path.endswith(".answer"):
                    msg = "could not write: found no answer"
                    raise StorageError(msg, hint="wait", determinate=True)
                inner.put(path, content, **more)

        requests._storage = Away(inner, STEPS, [], None)  # type: ignore[assignment]
        for _ in range(3):
            with pytest.raises(StorageError):
                requests.take(instance)
        instance.drop("new")
        requests._storage = inner
        assert requests.take(instance) == 1
        assert answer(requests, name) is None
        assert not instance.has("new")
        assert not requests._done


def test_request_that_fails_of_storage_is_tried_again(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        first = asked(requests, "drop", {"id": "totals"})
        with pytest.raises(WaitTimeoutError):
            requests.ask("configure", {"hydration_limit": 7}, timeout_s=0.0)

        class Failing(Steps):
            def drop(self, _: str) -> None:
                msg = "could not write: found no answer"
                raise StorageError(msg, hint="wait", determinate=True)

        requests.take(Failing(instance, (), [], None))  # type: ignore[arg-type]
        assert instance.configured(["hydration_limit"]) == {"hydration_limit": 7}
        assert f"{first}.json" in files(requests)
        requests.take(instance)
        assert not instance.has("totals")
        assert answer(requests, first) is None
        assert not requests._failed


def test_what_was_left_for_a_day_is_deleted(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        asked(requests, "drop", {"id": "none"})
        requests.take(instance)
        kept = files(requests)
        for name in (f"{1:020d}-a.answer", f".{1:020d}-a.json.0.tmp", f"{1:020d}-a.new", f"{1:020d}-a.begun"):
            requests._storage.put(name, b"{}", replace=False)
        requests.take(instance)
        assert files(requests) == kept


def test_damaged_request_is_answered(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        for number, text in enumerate((b"", b"[]", b"{}", b'{"verb": "close", "arguments": {}}', b"\xff")):
            if number == 0:
                name = asked(requests, "drop", {"id": "totals"})  # which makes the folder
                requests._storage.put(f"{name}.json", text, replace=True)
            else:
                requests._storage.put(f"{number:020d}-x.json", text, replace=False)
        requests.take(instance)
        assert not [name for name in files(requests) if not name.endswith(".answer")]
        assert all(answer(requests, name[:-7])["message"] for name in files(requests))
        assert instance.error is None


def folder_there(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to(path.parent / "pipe")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


FIRST = f"{1:020d}-a"


def passed_over(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "passed over" in each.getMessage()]


@pytest.mark.parametrize("make", [folder_there, pipe, dangling, link_to_pipe, link_to_itself])
def test_entry_that_is_no_file_holds_up_no_request(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    with begun(tmp_path / "instance", log) as instance, caplog.at_level(logging.WARNING):
        requests = Requests(instance.directory)
        name = asked(requests, "drop", {"id": "totals"})
        entry = tmp_path / "instance" / "requests" / f"{FIRST}.json"
        make(entry)
        for _ in range(3):
            requests.take(instance)
        assert answer(requests, name) is None
        assert f"{name}.answer" in files(requests)
        assert not instance.has("totals")
        (said,) = passed_over(caplog)
        assert f"{FIRST}.json" in said
        # Once it is a request it is taken as one.
        entry.rmdir() if entry.is_dir() else entry.unlink()
        entry.write_text(json.dumps({"verb": "configure", "arguments": {"hydration_limit": 9}}))
        requests.take(instance)
        assert instance.configured(["hydration_limit"]) == {"hydration_limit": 9}


@pytest.mark.parametrize("failure", [StorageError, DataLossError, PermissionError, UnicodeEncodeError])
def test_request_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture, failure: type[Exception]
) -> None:
    with begun(tmp_path / "instance", log) as instance, caplog.at_level(logging.WARNING):
        requests = Requests(instance.directory)
        name = asked(requests, "drop", {"id": "totals"})
        inner = requests._storage
        inner.put(f"{FIRST}.json", b"{}", replace=False)
        odd = UnicodeEncodeError("utf-8", "x", 0, 1, "odd") if failure is UnicodeEncodeError else failure("not now")

        class Locked(Steps):
            def find(self, path: str) -> bytes | None:
                if path == f"{FIRST}.json":
                    raise odd
                return inner.find(path)

        requests._storage = Locked(inner, STEPS, [], None)  # type: ignore[assignment]
        for _ in range(3):
            requests.take(instance)
        assert not instance.has("totals")
        assert answer(requests, name) is None
        assert len(passed_over(caplog)) == 1
        requests._storage = inner
        requests.take(instance)
        assert answer(requests, FIRST)["message"]


@pytest.mark.parametrize("name", [f"{FIRST}.begun", f"{FIRST}.answer", f"{'²' * 20}-a.answer", ".new", f"{FIRST}.new"])
def test_other_entries_that_are_no_files_hold_up_nothing(tmp_path: Path, log: Log, name: str) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        done = asked(requests, "drop", {"id": "totals"})
        (tmp_path / "instance" / "requests" / name).mkdir()
        requests._storage.put(f"{2:020d}-old.begun", b"{}", replace=False)
        for _ in range(2):
            requests.take(instance)
        assert answer(requests, done) is None
        assert f"{done}.answer" in files(requests)
        assert f"{2:020d}-old.begun" not in files(requests)
        assert not instance.has("totals")


def test_folder_that_is_called_as_a_request_holds_up_nothing(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        done = asked(requests, "drop", {"id": "totals"})
        for end in ("json", "answer"):
            (tmp_path / "instance" / "requests" / f"{FIRST}.{end}").mkdir()
        requests.take(instance)
        assert f"{done}.answer" in files(requests)
        assert not instance.has("totals")


def test_answer_that_cannot_be_written_holds_up_no_other(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        done = asked(requests, "drop", {"id": "totals"})
        # With .answer behind, the file system does not take it any more.
        long = "0" * 249
        (tmp_path / "instance" / "requests" / f"{long}.json").write_text(
            '{"verb": "drop", "arguments": {"id": "none"}}'
        )
        with pytest.raises((StorageError, OSError)):
            requests.take(instance)
        assert f"{done}.answer" in files(requests)
        assert not instance.has("totals")
        assert list(requests._done) == [long]


def test_what_is_read_of_a_pipe_beside_a_request_is_an_error(tmp_path: Path, log: Log) -> None:
    with begun(tmp_path / "instance", log) as instance:
        requests = Requests(instance.directory)
        done = asked(requests, "drop", {"id": "totals"})
        os.mkfifo(tmp_path / "instance" / "requests" / f"{done}.begun")
        for _ in range(40):
            requests.take(instance)
        assert "no file" in answer(requests, done)["message"]
        assert instance.has("totals")
