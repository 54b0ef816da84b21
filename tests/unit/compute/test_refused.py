"""What an instance refuses before anything is written, and in which words: names, paths, places, values."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import spark_timely as st
from spark_timely.cli import main
from spark_timely.compute.command import CreateInstance, InitializationComplete, Peek, UpdateConfiguration, text_of
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.directory import Directory
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.response import PeekResponse, Response
from spark_timely.errors import (
    ClosedError,
    InvalidOptionError,
    InvalidUsageError,
    LogMissingError,
    MissingError,
    NotBeyondError,
    OperatorError,
    OwnershipError,
    SchemaMismatchError,
    SinceViolationError,
    TimelyError,
)
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.spark.instance.instance import ComputeInstance
from tests.unit.compute.bodies import COPIES, Stand
from tests.unit.compute.instances import SCHEMA, TOTALS, handle, orders, rows, runtime
from tests.unit.compute.test_drive_edges import wait_until

Made: TypeAlias = dict[str, Any]
"""What a log is made with."""

# The columns of TOTALS.
GIVEN = pa.schema([("k", pa.int64()), pa.field("n", pa.int64(), nullable=False), ("s", pa.int64())])


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)


def said(instance: Handle) -> list[tuple[int, str]]:
    """Return what is in the command log."""
    return CommandLog.at(instance.directory.commands, create=False).rows()


def files(path: Path) -> dict[str, bytes]:
    """Return all files of a directory with what is in them."""
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


# A log of somebody else ------------------------------------------------------------------------------


def _made(path: Path, made: Made, **changed: Any) -> Log:
    return create_log(path, **{"minimum": (0,), "flush": False, **made, **changed})


def _other_kind(path: Path, made: Made) -> None:
    _made(path, made, kind="collection" if made["kind"] == "stream" else "stream")


def _other_times(path: Path, made: Made) -> None:
    _made(path, made, times="timestamp", minimum=None)


def _more_times(path: Path, made: Made) -> None:
    _made(path, made, times=("long", "long"), minimum=(0, 0))


def _other_columns(path: Path, made: Made) -> None:
    _made(path, made, schema=pa.schema([("k", pa.int64()), ("v", pa.string())]))


def _written(path: Path, made: Made) -> None:
    _made(path, made).core.open_stream("main", owner="somebody else")


def _complete(path: Path, made: Made) -> None:
    _made(path, made).close()


def _later(path: Path, made: Made) -> None:
    _made(path, made, minimum=(3,))


def _file(path: Path, made: Made) -> None:
    del made
    path.write_text("notes")


def _folder(path: Path, made: Made) -> None:
    del made
    path.mkdir()
    (path / "notes.txt").write_text("notes")


def _other_table(path: Path, made: Made) -> None:
    del made
    write_deltalake(str(path), pa.table({"k": [1]}))


FOREIGN: list[tuple[Callable[[Path, Made], None], type[TimelyError], str]] = [
    (_other_kind, SchemaMismatchError, "of kind="),
    (_other_times, SchemaMismatchError, "other columns or times"),
    (_more_times, SchemaMismatchError, "other columns or times"),
    (_other_columns, SchemaMismatchError, "other columns or times"),
    (_written, OwnershipError, "owned by 'somebody else'"),
    (_complete, ClosedError, "complete"),
    (_later, NotBeyondError, "would be lost"),
    (_file, InvalidUsageError, "found a file"),
    (_folder, InvalidUsageError, "found 'notes.txt' in the directory"),
    (_other_table, LogMissingError, "Delta table"),
]


@pytest.mark.parametrize(("make", "kind", "words"), FOREIGN)
def test_what_is_in_the_way_of_a_log_is_refused(
    tmp_path: Path, log: Log, make: Callable[[Path, Made], None], kind: type[TimelyError], words: str
) -> None:
    make(tmp_path / "into", {"schema": GIVEN, "kind": "collection"})
    with handle(tmp_path / "instance") as instance:
        before, there = said(instance), files(tmp_path)
        with pytest.raises(kind, match=words):
            instance.maintain("totals", TOTALS, str(tmp_path / "into"), imports={"orders": log.path}, as_of=1)
        assert (said(instance), files(tmp_path)) == (before, there)
        assert not instance.has("totals")
        # Nothing is in the way of the same id elsewhere.
        instance.maintain("totals", TOTALS, str(tmp_path / "free"), imports={"orders": log.path}, as_of=1)
        instance.await_frontier("totals", 3)
        assert rows(open_log(tmp_path / "free").snapshot(3))
        assert len(said(instance)) > len(before)


@pytest.mark.parametrize(("make", "kind", "words"), FOREIGN)
def test_what_is_in_the_way_of_a_task_is_refused(
    tmp_path: Path, log: Log, make: Callable[[Path, Made], None], kind: type[TimelyError], words: str
) -> None:
    make(tmp_path / "into", {"schema": SCHEMA, "kind": "stream"})
    asked: dict[str, Any] = {"inputs": {"orders": log.path}, "as_of": 1}
    with handle(tmp_path / "instance", runtime=runtime(task_bodies=Stand())) as instance:
        before, there = said(instance), files(tmp_path)
        with pytest.raises(kind, match=words):
            instance.continual_task("copy", COPIES, into=tmp_path / "into", **asked)
        assert (said(instance), files(tmp_path)) == (before, there)
        instance.continual_task("copy", COPIES, into=tmp_path / "free", **asked)
        instance.await_frontier("copy", 3)
        assert open_log(tmp_path / "free").messages().num_rows == 2


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a log without rows", "left by a killed creation"])
def test_what_is_not_in_the_way_of_a_log_is_taken(tmp_path: Path, log: Log, before: str) -> None:
    into = tmp_path / "into"
    if before == "an empty folder":
        into.mkdir()
    elif before == "a log without rows":
        create_log(into, GIVEN, kind="collection", minimum=(0,), flush=False)
    elif before == "left by a killed creation":
        (into / "_delta_log").mkdir(parents=True)
        (into / "_event=message").mkdir()
    with handle(tmp_path / "instance") as instance:
        instance.maintain("totals", TOTALS, str(into), imports={"orders": log.path}, as_of=1)
        instance.await_frontier("totals", 3)
        assert [row[0] for row in rows(open_log(into).snapshot(3))] == [1, 2]


def test_log_of_a_dropped_dataflow_is_taken_by_the_same_one(tmp_path: Path, log: Log) -> None:
    into = str(tmp_path / "into")
    with handle(tmp_path / "instance") as instance:
        for _ in range(2):
            instance.maintain("totals", TOTALS, into, imports={"orders": log.path}, as_of=1)
            instance.await_frontier("totals", 3)
            instance.drop("totals")
        with pytest.raises(OwnershipError, match="owned by"):
            instance.maintain("others", TOTALS, into, imports={"orders": log.path}, as_of=1)


# Configuration ---------------------------------------------------------------------------------------


def test_unknown_configuration_is_refused_with_what_is_known(tmp_path: Path) -> None:
    with handle(tmp_path / "instance") as instance:
        before = said(instance)
        with pytest.raises(InvalidOptionError, match=r"found hydration_limits=2 .* hydration_limit, .*steps_at_once"):
            instance.configure(steps_at_once=2, hydration_limits=2)
        assert said(instance) == before
        assert instance.configured(["steps_at_once", "hydration_limits"]) == {
            "steps_at_once": None,
            "hydration_limits": None,
        }
        known = {
            "hydration_limit": 2,
            "scheduling": False,
            "max_result_bytes": 100,
            "steps_at_once": 3,
            "max_bytes_per_step": 5,
        }
        instance.configure(**known)
        assert instance.configured(known) == known


def test_unknown_name_in_a_command_log_is_read(tmp_path: Path, log: Log) -> None:
    place = Directory(str(tmp_path / "instance"))
    commands = CommandLog.at(place.commands)
    commands.take_over()
    told = (CreateInstance(), UpdateConfiguration({"of_another_version": 1, "hydration_limit": 7}))
    commands.store([(number, text_of(each)) for number, each in enumerate((*told, InitializationComplete()))])
    with handle(tmp_path / "instance") as instance:
        assert instance.configured(["of_another_version", "hydration_limit"]) == {
            "of_another_version": 1,
            "hydration_limit": 7,
        }
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=1)
        with handle(tmp_path / "instance", read_only=True) as follower:
            assert follower.configured(["of_another_version"]) == {"of_another_version": 1}


# Places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_folder_of_a_log_is_no_place_for_an_instance(tmp_path: Path, log: Log, read_only: bool) -> None:
    before = files(tmp_path)
    with pytest.raises(InvalidUsageError, match=r"found a Delta table.*choose an empty folder"):
        handle(Path(log.path), read_only=read_only)
    assert files(tmp_path) == before


def test_folder_above_a_log_may_have_an_instance(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path) as instance:
        assert instance.may_write()


def test_follower_of_nothing_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError, match=r"could not follow the instance in .*none there.*start one") as error:
        handle(tmp_path / "nothing", read_only=True)
    assert "capture" not in str(error.value)
    assert not (tmp_path / "nothing").exists()


# Values of ComputeInstance: refused before a session is looked at -------------------------------------


@pytest.mark.parametrize(
    ("session", "directory", "found"),
    [
        (None, "instance", "found None in place of a session"),
        ("instance", "instance", "found 'instance' in place of a session"),
        (None, 5, "found path=5"),
        (None, None, "found path=None"),
        (None, b"instance", "found path=b'instance'"),
        (None, "", "found path=''"),
    ],
)
def test_what_is_no_session_or_path_leaves_nothing(
    session: Any, directory: Any, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUsageError, match=found):
        ComputeInstance(session, directory)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("retain", ["soon", "", 7, 7.0, "-1 day", True])
def test_length_that_is_none_is_refused_at_once(tmp_path: Path, retain: Any) -> None:
    with pytest.raises(InvalidUsageError, match=r"could not run the instance in .*found retain="):
        ComputeInstance(None, str(tmp_path / "instance"), retain=retain)  # type: ignore[arg-type]
    assert not (tmp_path / "instance").exists()


@pytest.mark.parametrize("timeout_s", ["5s", None, -1, float("nan"), True, [5]])
def test_time_to_close_that_is_none_is_refused(tmp_path: Path, timeout_s: Any) -> None:
    instance = object.__new__(ComputeInstance)
    instance.directory = Directory(str(tmp_path))
    with pytest.raises(InvalidUsageError, match=r"could not close the instance in .*found timeout_s="):
        instance.close(timeout_s=timeout_s)


# Peeks -----------------------------------------------------------------------------------------------


def _dates(path: Path) -> Log:
    log = create_log(path, SCHEMA, kind="collection", times="date", minimum="2024-01-01", flush=False)
    days = pa.array([dt.date(2024, 1, day) for day in (1, 2, 3)], pa.date32())
    data = pa.table({"_time": days, "_diff": [1, 1, 1], "k": [1, 2, 1], "v": [10, 20, 30]})
    log.writer(owner="test").append(data, advance_to="2024-01-04")
    return log


def test_peek_before_since_says_from_when_on(tmp_path: Path) -> None:
    log = _dates(tmp_path / "dates")
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of="2024-01-02")
        instance.await_frontier("totals", "2024-01-03")
        with pytest.raises(SinceViolationError) as error:
            instance.peek("totals", as_of="2024-01-01")
        assert error.value.message == "could not peek 'totals' at 2024-01-01: found since=2024-01-02"
        log.allow_compaction("2024-01-03")
        with pytest.raises(SinceViolationError) as of_a_log:
            st.peek(log, as_of="2024-01-01")
        assert error.value.hint == of_a_log.value.hint
        assert error.value.context.keys() == of_a_log.value.context.keys() - {"path"}
        assert rows(instance.peek("totals", as_of="2024-01-02")) == [(1, 1, 10, 1), (2, 1, 20, 1)]


def test_peek_at_what_is_dropped_meanwhile_names_it(tmp_path: Path) -> None:
    log = _dates(tmp_path / "dates")
    answers: list[Response] = []
    with handle(tmp_path / "instance", on_response=answers.append) as one:
        one.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of="2024-01-02")
        one.await_frontier("totals", "2024-01-03")
        one.send(Peek("p", one._driver.state.domain_of("totals").parse_time("2024-01-09"), "totals"))
        one.drop("totals")
        wait_until(lambda: any(isinstance(each, PeekResponse) for each in answers))
    (found,) = [each for each in answers if isinstance(each, PeekResponse)]
    assert found.error == (
        "could not peek 'totals' at 2024-01-09: found collection 'totals' dropped at 2024-01-04, before the time was "
        "complete"
    )
    assert isinstance(found.cause, MissingError)


def test_answer_that_is_too_large_names_the_collection(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=1)
        instance.await_frontier("totals", 3)
        instance.configure(max_result_bytes=1)
        with pytest.raises(OperatorError, match=r"of a peek at 'totals': found .* bytes, allowed are 1") as error:
            instance.peek("totals")
        assert error.value.hint == "ask for less, or raise max_result_bytes in the instance's configuration"


# Queries ---------------------------------------------------------------------------------------------


def test_word_that_is_no_collection_is_refused_with_all_ids(tmp_path: Path, log: Log) -> None:
    with handle(tmp_path / "instance") as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=1)
        before = said(instance)
        asks: list[Callable[[], object]] = [
            lambda: instance.subscribe("nopes"),
            lambda: instance.index("x", " nopes\n"),
            lambda: instance.maintain("x", "nopes", str(tmp_path / "into")),
            lambda: instance.copy_to("nopes", str(tmp_path / "copy")),
        ]
        for ask in asks:
            with pytest.raises(MissingError, match=r"found no collection 'nopes'.*'timely_frontiers'.*'totals'"):
                ask()
        with pytest.raises(InvalidUsageError, match=r"found 'totals', which is no query.*SELECT \* FROM totals"):
            instance.index("x", "totals")
        with pytest.raises(InvalidUsageError, match="found 'orders', which is no query"):
            instance.subscribe("orders", imports={"orders": log.path})
        # Of the import's name and all ids, also of those that the text does not have.
        with pytest.raises(TimelyError, match=r"no import 'nopes'.*'orders'.*'timely_frontiers'.*'totals'"):
            instance.index("x", "SELECT k FROM nopes", imports={"orders": log.path})
        plan = json.dumps({"op": "import", "name": "nopes"})
        with pytest.raises(MissingError, match=r"found nothing for 'nopes'.*'timely_frontiers'.*'totals'"):
            instance.index("x", plan)
        assert said(instance) == before
        assert not (tmp_path / "into").exists()
        with instance.subscribe("totals", as_of=3, up_to=4) as batches:
            assert sum(each.updates.num_rows for each in batches if isinstance(each.updates, pa.Table)) == 2


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT k FROM", "Expected table name but got the end at line 1, col 13"),
        ("SELECT k FROM WHERE v", "Expected table name but got 'WHERE' at"),
        ("SELECT k FROM > 5", "Expected table name but got '>' at"),
        ("SELECT k FROM orders JOIN", "Expected table name but got the end at"),
        ("SELECT k FROM orders WHERE", "found an incomplete WHERE at"),
        ("SELECT k FROM orders WHERE v >", "found an incomplete expression at"),
        ("SELECT k FROM orders WHERE v BETWEEN 1", "found an incomplete BETWEEN at"),
        ("SELECT k FROM orders UNION ALL", "found an incomplete UNION at"),
    ],
)
def test_unreadable_sql_is_refused_without_names_of_classes(tmp_path: Path, log: Log, query: str, words: str) -> None:
    with handle(tmp_path / "instance") as instance:
        before = said(instance)
        with pytest.raises(InvalidUsageError) as error:
            instance.index("x", query, imports={"orders": log.path})
        assert words in str(error.value)
        for odd in ("<", "oken", "sqlglot", "SENTINEL"):
            assert odd not in str(error.value).partition(" in statement ")[0]
        assert said(instance) == before


# The command line ------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["instance", *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("peek", "totals"),
        ("why", "totals"),
        ("create", "totals", "--query", TOTALS),
        ("drop", "totals"),
        ("configure", "--set", "hydration_limit=2"),
    ],
)
def test_command_without_an_instance_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    for directory in (tmp_path / "nothing", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        code, text = told(capsys, str(directory), *words, "--timeout", "1s")
        assert code not in (0, 1)
        assert f"the instance in '{directory}': found none there" in text
        assert f"start one: spark-timely instance {directory} run" in text
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


def test_configure_without_a_value_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with handle(tmp_path / "instance"):
        code, text = told(capsys, str(tmp_path / "instance"), "configure")
    assert code not in (0, 1)
    assert "found configure without --set" in text


def test_paths_of_a_command_are_those_of_where_it_is_given(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    with handle(tmp_path / "instance"):
        pass

    def ask(_: Requests, verb: str, arguments: Any, **__: object) -> list[str]:
        asked.append((verb, json.loads(json.dumps(arguments))))
        return []

    monkeypatch.setattr(Requests, "ask", ask)
    monkeypatch.chdir(tmp_path)
    create = ("instance", "instance", "create", "x", "--query", TOTALS)
    main([*create, "--import", "orders=orders", "--import", "b=./b", "--import", "c=s3://bucket/c", "--into", "out"])
    main([*create, "--input", "orders=orders", "--reference", "r=totals", "--reference", "q=sub/q", "--into", "out"])
    main([*create, "--input", "orders=orders"])
    here = str(tmp_path)
    assert [verb for verb, _ in asked] == ["maintain", "continual_task", "continual_task"]
    assert asked[0][1]["imports"] == {"orders": f"{here}/orders", "b": f"{here}/b", "c": "s3://bucket/c"}
    assert asked[0][1]["into"] == f"{here}/out"
    assert asked[1][1]["inputs"] == {"orders": f"{here}/orders"}
    assert asked[1][1]["references"] == {"r": "totals", "q": f"{here}/sub/q"}
    assert asked[1][1]["into"] == f"{here}/out"
    assert "into" not in asked[2][1]


def test_request_before_a_process_runs_is_done_later(
    tmp_path: Path, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        return main(["instance", str(tmp_path / "instance"), *words, "--timeout", "0"]), *capsys.readouterr()

    create = ("create", "totals", "--query", TOTALS, "--import", f"orders={log.path}", "--key", "k")
    code, _, err = run(*create)
    assert (code, "found none there — hint: start one" in err) == (3, True)  # nothing was asked
    handle(tmp_path / "instance").close()
    code, out, err = run(*create)
    assert (code, err) == (1, "")
    assert out.startswith("index: asked, not done yet: the process that runs the instance does it")
    code, out, _ = run("configure", "--set", "hydration_limit=7", "--json")
    assert (code, json.loads(out)) == (1, {"asked": "configure", "hydration_limit": 7})
    with handle(tmp_path / "instance") as instance:
        wait_until(lambda: instance.has("totals"))
        wait_until(lambda: instance.configured(["hydration_limit"]) == {"hydration_limit": 7})
        assert rows(instance.peek("totals", as_of=3)) != []
