"""One log under several paths: an output is known by the id of its log, not by the path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import InvalidUsageError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.property.test_dataflow import runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of)


def link_to(path: Path) -> str:
    link = path.parent / f"link to {path.name}"
    link.symlink_to(path, target_is_directory=True)
    return str(link)


def link_above(path: Path) -> str:
    above = path.parent.parent / "above"
    above.symlink_to(path.parent, target_is_directory=True)
    return str(above / path.name)


def two_slashes(path: Path) -> str:
    return f"/{path}"


# Another way to name a directory that is there, and whether the path alone tells that it is the same.
ALIASES: dict[str, tuple[Callable[[Path], str], bool]] = {
    "a link": (link_to, False),
    "a link above": (link_above, False),
    "two slashes at the start": (two_slashes, False),
    "relative": (os.path.relpath, True),
    "a slash at the end": (lambda path: f"{path}/", True),
    "a file: URL": (lambda path: path.as_uri(), True),
    "there and back": (lambda path: f"{path}/../{path.name}", True),
}


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
@pytest.mark.parametrize("what", ALIASES)
def test_two_outputs_in_one_stream_under_two_paths_are_refused(
    tmp_path: Path, log: Log, what: str, there: bool
) -> None:
    (tmp_path / "deep").mkdir()
    out = tmp_path / "deep" / "out"
    alias, told = ALIASES[what]
    if there:
        create_log(str(out), SCHEMA, minimum=(0,))
    elif what == "a link":
        out.mkdir()
    scope = Scope("flow")
    scope.replay(log).filter("n < 15").capture(str(out))
    second = scope.replay(log).filter("n >= 15")
    if told:
        with pytest.raises(InvalidUsageError, match="captured into already"):
            second.capture(alias(out))
        return
    second.capture(alias(out))
    with pytest.raises(
        InvalidUsageError, match=r"operator 'capture_6': found log '.*out' to be log '.*out', which 'capture_3' writes"
    ):
        engine(scope)
    if there:
        assert not open_log(str(out)).streams()
    else:
        assert not (out / "_delta_log").exists(), "what is refused leaves no log behind"


@pytest.mark.parametrize("what", [name for name, (_, told) in ALIASES.items() if not told])
def test_output_that_is_its_input_by_another_path_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "log"
    made = create_log(str(path), SCHEMA, minimum=(0,), streams=2)
    made.writer(owner="test", stream="theirs").append(pa.table({"_time": [1], "n": [1]}), advance_to=5)
    scope = Scope("flow")
    scope.replay(ALIASES[what][0](path)).filter("n > 0").capture(str(path))
    with pytest.raises(
        InvalidUsageError, match=r"'replay_1': found log '.*log' to be log .*, which 'capture_3' writes"
    ):
        engine(scope)
    made.refresh()
    assert set(made.streams()) == {"theirs"}


def test_output_read_again_must_have_its_own_path(tmp_path: Path, log: Log) -> None:
    out = tmp_path / "out"
    create_log(str(out), SCHEMA, minimum=(0,))
    for other in (link_to(out), str(out)):
        scope = Scope("flow")
        scope.replay(log).filter("n < 15").capture(str(out))
        scope.replay(other).aggregate(n=count()).capture(str(tmp_path / "counts"))
        if other != str(out):
            with pytest.raises(
                InvalidUsageError, match=r"'replay_4': found log '.*link to out' to be log .*'capture_3' writes"
            ):
                engine(scope)
            continue
        done = engine(scope).advance(runner(scope.storage))
        assert [each.output for each in done] == ["capture_3", "capture_6"]
    assert open_log(str(tmp_path / "counts")).messages().num_rows == 15


def test_two_streams_of_one_log_need_one_path(tmp_path: Path, log: Log) -> None:
    out = tmp_path / "out"
    create_log(str(out), SCHEMA, minimum=(0,), streams=2)
    link = link_to(out)
    for other in (link, str(out)):
        scope = Scope("flow")
        scope.replay(log).filter("n < 15").capture(str(out), stream="low")
        scope.replay(log).filter("n >= 15").capture(other, stream="high")
        if other == link:
            with pytest.raises(InvalidUsageError, match="to be log"):
                engine(scope)
            continue
        engine(scope).advance(runner(scope.storage))
    assert open_log(str(out)).messages().num_rows == 90


def test_two_paths_to_one_log_are_refused_when_it_is_there(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is mounted twice: neither path is a link."""
    monkeypatch.setattr("os.path.realpath", lambda path: path)
    scope = Scope("flow")
    scope.replay(log).filter("n < 15").capture(str(tmp_path / "out"))
    scope.replay(log).filter("n >= 15").capture(two_slashes(tmp_path / "out"))
    with pytest.raises(InvalidUsageError, match=r"'capture_6': found log .* to be log .*, which 'capture_3' writes"):
        engine(scope)
    assert not open_log(str(tmp_path / "out")).streams()


def test_input_under_two_paths_is_one_input_read_twice(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    link = link_to(Path(log.path))
    scope.replay(log).filter("n < 15").concat(scope.replay(link).filter("n >= 15")).capture(str(tmp_path / "out"))
    engine(scope).advance(runner(scope.storage))
    assert open_log(str(tmp_path / "out")).messages().num_rows == 90
