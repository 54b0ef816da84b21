"""What other programs changed, accepted: the log continues as it is, and who has read before it is told."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_timely.answers.subscribe import subscribe
from spark_timely.cli.command import main
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.reader import read_split
from spark_timely.errors import DataLossError, ForeignChangeError, InvalidUsageError, LogDamagedError, TimelyError
from spark_timely.log import Log
from spark_timely.log.cut import cut
from spark_timely.log.log import open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.conformance.test_foreign_changes import HARMFUL, LOGS, cells, clean_up, contents, fill, in_turn
from tests.faults.harness import long_lane
from tests.property.test_dataflow import runner
from tests.unit.datasource.support import make_options


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind, make in LOGS.items():
        found[kind] = tmp_path_factory.mktemp(kind)
        make(str(found[kind] / "log"))
    return found


@pytest.fixture
def placed(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Log]:
    def place(kind: str) -> Log:
        shutil.copytree(originals[kind], tmp_path / kind)
        log = open_log(str(tmp_path / kind / "log"))
        log.core.merge_every = None
        return log

    return place


def live_rows(path: str) -> Counter[tuple[Any, ...]]:
    """Return the messages as delta-rs reads them: what the log is to hold."""
    return contents(DeltaTable(path).to_pyarrow_table(filters=[("_event", "=", "message")]))


def token_of(path: str) -> str:
    with pytest.raises(ForeignChangeError) as refused:
        open_log(path).messages()
    token = str(refused.value.context["token"])
    assert f"--accept {token}`" in str(refused.value)
    return token


class Query:
    """A source with a checkpoint."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.offset: Any = None

    def run(self, **options: Any) -> None:
        """Deliver what there is to a process that starts."""
        log, chosen = open_log(self.path), make_options(include_time=True, **options)
        layout = layout_of(log, chosen)
        planner = ReplayPlanner(log, chosen, layout)
        begin = planner.initial() if self.offset is None else self.offset
        end = planner.latest(begin)
        splits = planner.plan(begin, end)
        found = [batch for split in splits for batch in read_split(split, layout, storage=log.core.storage)]
        self.seen += contents(pa.Table.from_batches(found, layout.schema))
        self.offset = end


class Flow:
    """A dataflow that keeps its output."""

    def __init__(self, path: str, out: Path) -> None:
        self.path, self.out = path, str(out)

    def run(self, replaces: str | None = None) -> Counter[tuple[Any, ...]]:
        scope = Scope("flow")
        scope.replay(self.path).filter("v > 0").capture(self.out, replaces=replaces)
        Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, run="run").advance(runner(scope.storage))
        return contents(open_log(self.out).messages())


@pytest.mark.parametrize(("kind", "name"), cells(HARMFUL))
def test_an_accepted_change_continues(placed: Callable[[str], Log], tmp_path: Path, kind: str, name: str) -> None:
    log, deed = placed(kind), HARMFUL[name]
    path, frontier, before = log.path, log.frontier(), contents(log.messages())
    query, made = Query(path), str(cut([log]))
    query.run()
    derives = kind == in_turn(0, ("stream", "collection", "output"), deed) or (long_lane() and kind != "forgotten")
    flow = Flow(path, tmp_path / "derived") if derives else None
    derived = None if flow is None else flow.run()
    deed.do(DeltaTable(path))
    token = token_of(path)

    report = open_log(path).accept_change(token)

    fresh = open_log(path)
    assert fresh.frontier() == frontier, "progress is never taken as others left it"
    assert not fresh.verify().problems
    assert report.accepted == (deed.changes == "message")
    assert contents(fresh.messages()) == (live_rows(path) if report.accepted else before)
    log.refresh()
    assert log.frontier() == frontier
    if report.accepted:
        with pytest.raises(DataLossError, match=f"accepted in log .* as '{token}'"):
            query.run()
        query.run(accept_change=token)
        with pytest.raises(DataLossError, match="accepted in log"):
            make_cut(path, made)
        if flow is not None:
            with pytest.raises(TimelyError, match="accepted in log") as refused:
                flow.run()
            if kind == "collection":  # what it made of updates is not true of the others
                assert "remove this output to compute it again: its rows would have been others" in str(refused.value)
                flow = None
            else:
                [consent] = re.findall(r"replaces='([^']+)'", str(refused.value))
                assert flow.run(consent) == derived
    else:
        query.run()
        make_cut(path, made)
    seen = query.seen.copy()
    if kind == "output":
        return
    fill(open_log(path), 8, 9)
    query.run(**({"acceptChange": token} if report.accepted else {}))
    query.run()  # the position has moved, and knows of the change
    assert query.seen - seen == contents(open_log(path).messages()) - contents(fresh.messages())
    if flow is not None and derived is not None:
        assert flow.run() - derived == query.seen - seen
    assert not open_log(path).verify().problems
    if kind != in_turn(1, ("stream", "collection", "forgotten"), deed) and not long_lane():
        return
    compacting = open_log(path)
    compacting.allow_compaction([7])
    compacting.compact(logical=True)
    assert not open_log(path).verify().problems
    # Numbers tell behind cleaned-up entries, and what was accepted counts among them.
    clean_up(path)
    assert contents(open_log(path).messages()) == live_rows(path)
    DeltaTable(path).delete("_event = 'message' and _time = 8")
    assert token_of(path) != token


def make_cut(path: str, made: str) -> None:
    log, chosen = open_log(path), make_options(cut=made)
    ReplayPlanner(log, chosen, layout_of(log, chosen)).plan_batch()


@pytest.mark.parametrize("name", ["delete of undelivered rows", "insert of copies", "delete of all rows"])
def test_behind_cleaned_up_entries_it_is_accepted_by_numbers(placed: Callable[[str], Log], name: str) -> None:
    log = placed("stream")
    HARMFUL[name].do(DeltaTable(log.path))
    clean_up(log.path)
    token = token_of(log.path)
    assert open_log(log.path).accept_change(token).accepted
    for _ in range(2):
        fresh = open_log(log.path)
        assert contents(fresh.messages()) == live_rows(log.path)
        assert not fresh.verify().problems
        clean_up(log.path)


def test_lost_progress_without_entries_is_never_accepted(placed: Callable[[str], Log]) -> None:
    log = placed("stream")
    HARMFUL["delete of the newest progress"].do(DeltaTable(log.path))
    clean_up(log.path)
    with pytest.raises(ForeignChangeError) as refused:
        open_log(log.path).messages()
    assert "token" not in refused.value.context
    with pytest.raises(LogDamagedError, match="of which progress may be lost"):
        open_log(log.path).accept_change("0123456789abcdef")


def test_the_token_is_of_all_that_is_open_and_of_nothing_else(placed: Callable[[str], Log]) -> None:
    log = placed("stream")
    DeltaTable(log.path).delete("_event = 'message' and _time = 5")
    first = token_of(log.path)
    assert token_of(log.path) == first
    DeltaTable(log.path).delete("_event = 'message' and _time = 4")
    second = token_of(log.path)
    assert second != first
    version = DeltaTable(log.path).version()
    for wrong in (first, "nonsense", second[:-1]):
        with pytest.raises(InvalidUsageError, match=f"found token '{second}' of what is changed now"):
            open_log(log.path).accept_change(wrong)
    assert DeltaTable(log.path).version() == version
    report = open_log(log.path).accept_change(second)
    assert (report.commits, report.less, report.more) == (4, 8, 0)
    again = open_log(log.path).accept_change(second)
    assert again.accepted
    assert DeltaTable(log.path).version() == report.table_version
    with pytest.raises(InvalidUsageError, match="found no change of another program"):
        open_log(log.path).accept_change(first)


def test_two_changes_one_after_the_other(placed: Callable[[str], Log]) -> None:
    log, query = placed("stream"), Query(placed("collection").path)
    query.path = log.path
    query.run()
    tokens = []
    for time in (5, 4):
        DeltaTable(log.path).delete(f"_event = 'message' and _time = {time} and _stream = 'a'")
        tokens.append(token_of(log.path))
        open_log(log.path).accept_change(tokens[-1])
    assert open_log(log.path).core.accepted == tuple(tokens)
    with pytest.raises(DataLossError, match=f"as '{tokens[1]}'.*4 messages less, at times from 4 to 5"):
        query.run(accept_change=tokens[0])
    query.run(accept_change=tokens[1])
    assert not open_log(log.path).verify().problems


def test_position_is_refused_once_the_accepted_is_restored(placed: Callable[[str], Log]) -> None:
    log, query = placed("stream"), Query("")
    query.path, whole = log.path, log.core.version
    DeltaTable(log.path).delete("_event = 'message' and _time = 5")
    open_log(log.path).accept_change(token_of(log.path))
    query.run()
    DeltaTable(log.path).restore(whole)
    assert open_log(log.path).core.accepted == ()
    assert contents(open_log(log.path).messages()) == contents(log.messages())
    with pytest.raises(DataLossError, match="without accepted change 1"):
        query.run()


def test_a_restore_to_what_was_not_accepted_yet_is_open_again(placed: Callable[[str], Log]) -> None:
    log = placed("stream")
    DeltaTable(log.path).delete("_event = 'message' and _time = 5")
    changed = DeltaTable(log.path).version()
    token = token_of(log.path)
    open_log(log.path).accept_change(token)
    fill(open_log(log.path), 8, 9)
    DeltaTable(log.path).restore(changed)
    assert token_of(log.path)
    log.refresh()
    with pytest.raises(ForeignChangeError):
        log.messages()


def test_messages_of_no_commit_are_to_be_deleted_first(placed: Callable[[str], Log]) -> None:
    log = placed("stream")
    table = DeltaTable(log.path)
    rows = table.to_pyarrow_table(filters=[("_event", "=", "message"), ("_seq", "=", 6)])
    column = rows.schema.get_field_index("_seq")
    rows = rows.set_column(column, "_seq", pa.array([999] * rows.num_rows, pa.int64()))
    write_deltalake(table, rows, mode="append")
    with pytest.raises(LogDamagedError, match="_seq=999 of stream 'a', whose commits are up to 6"):
        open_log(log.path).accept_change(token_of(log.path))
    DeltaTable(log.path).delete("_event = 'message' and _seq >= 999")
    before = contents(log.messages())
    if open_log(log.path).core.foreign_changes():
        open_log(log.path).accept_change(token_of(log.path))
    assert contents(open_log(log.path).messages()) == before


def test_progress_whose_files_are_gone_is_not_accepted(placed: Callable[[str], Log]) -> None:
    log = placed("stream")
    HARMFUL["delete of the newest progress"].do(DeltaTable(log.path))
    token = token_of(log.path)
    DeltaTable(log.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(LogDamagedError, match="of progress deleted"):
        open_log(log.path).accept_change(token)


def test_what_ended_between_its_commits_is_done_again(
    placed: Callable[[str], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = placed("stream")
    DeltaTable(log.path).delete("_event = 'progress' and _seq >= 5")
    DeltaTable(log.path).delete("_event = 'message' and _time = 4")
    token = token_of(log.path)
    dying = open_log(log.path)
    with monkeypatch.context() as patch:
        patch.setattr(type(dying.core.store), "change_facts", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dying.accept_change(token)
    assert token_of(log.path) == token
    # The entries go: what was written down for a token that was not accepted counts for nothing.
    clean_up(log.path)
    assert open_log(log.path).core.foreign_changes()
    open_log(log.path).accept_change(token_of(log.path))
    assert not open_log(log.path).verify().problems


def test_live_reader_that_saw_nothing_open_is_refused_too(placed: Callable[[str], Log]) -> None:
    """The change and its acceptance lie between two looks of a query that runs, and of a subscription."""
    log = placed("collection")
    reading = open_log(log.path)
    layout = layout_of(reading, make_options())
    planner = ReplayPlanner(reading, make_options(), layout)
    end = planner.latest(planner.initial())
    with subscribe(log.path) as batches:
        position = [next(batches), str(batches.cut)][1]
        DeltaTable(log.path).delete("_event = 'message' and _time = 5")
        token = token_of(log.path)
        open_log(log.path).accept_change(token)
        fill(open_log(log.path), 8, 9)
        with pytest.raises(DataLossError, match=f"accept_change='{token}'"):
            next(batches)
    reading.refresh()
    with pytest.raises(DataLossError, match="accepted in log"):
        planner.latest(end)
    with pytest.raises(DataLossError, match="accepted in log"):
        subscribe(log.path, resume_from=position)
    with subscribe(log.path, resume_from=position, accept_change=token) as batches:
        assert next(batches).rows.num_rows + next(batches).rows.num_rows == 2


def test_command_line(placed: Callable[[str], Log], capsys: pytest.CaptureFixture[str]) -> None:
    log = placed("stream")
    DeltaTable(log.path).delete("_event = 'message' and _time = 5")
    token = token_of(log.path)
    assert main(["repair", log.path, "--accept", "nonsense"]) == 2
    assert f"--accept {token}" in capsys.readouterr().err
    assert main(["repair", log.path, "--accept", token]) == 0
    said = capsys.readouterr().out
    assert "2 commits with other messages: 0 more, 4 less" in said
    assert f"acceptChange={token}" in said
    assert main(["verify", log.path]) == 0
