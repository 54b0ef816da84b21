"""Inputs that were put back to an earlier state and grew again: an output is made from one history, or it stops."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.engine import inputs as dataflow_inputs
from spark_timely.dataflow.engine.explain import outputs
from spark_timely.dataflow.engine.outputs import check_plans, newest_note
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import DataLossError, PlanMismatchError
from spark_timely.log import Log
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.note import InputNote
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope, run: str = "run", **settings: object) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, run=run, **settings)  # type: ignore[arg-type]


def run(scope: Scope, **settings: object) -> None:
    engine(scope, **settings).advance(runner(scope.storage))


def rows_of(folder: Path, *logs: str, replaces: str | None = None, name: str = "out") -> Scope:
    """Return a dataflow of all rows of some logs."""
    scope = Scope("flow")
    first, *others = [scope.replay(log) for log in logs]
    for other in others:
        first = first.concat(other)
    first.capture(str(folder / name), replaces=replaces)
    return scope


def grow(path: str, upper: int | None, n: int = 0, stream: str = "main") -> None:
    """Append one row at each time up to another frontier, or close."""
    writer = open_log(path).writer(stream, owner="test")
    first = writer.state.frontier.elements[0][0]
    times = list(range(first, first + 1 if upper is None else upper))
    writer.append(pa.table({"_time": times, "n": [n] * len(times)}), advance_to=[] if upper is None else upper)


def saved(path: str, name: str = "as it was") -> Callable[[], None]:
    """Copy a log; return what puts the copy back in its place."""
    copy = f"{path} {name}"
    shutil.copytree(path, copy)

    def put_back() -> None:
        shutil.rmtree(path)
        shutil.copytree(copy, path)

    return put_back


def state_of(folder: Path, name: str = "out") -> tuple[Antichain, pa.Table]:
    log = open_log(str(folder / name))
    return log.frontier(), log.messages()


LOST = r"found log '.*in' without commit \d+ of stream 'main'"
OTHER = r"found another commit \d+ of stream 'main' in log '.*in'"


@pytest.mark.parametrize("running", [False, True], ids=["restarted", "running"])
@pytest.mark.parametrize(
    ("uppers", "what"),
    [((), LOST), ((35,), OTHER), ((35, 50), OTHER), ((31, 32, 33, 50), OTHER), ((None,), OTHER)],
    ids=["not grown", "behind", "past", "many commits", "closed"],
)
def test_input_put_back_is_refused_however_far_it_grew_since(
    tmp_path: Path, log: Log, uppers: tuple[int | None, ...], what: str, running: bool
) -> None:
    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    scope = rows_of(tmp_path, log.path)
    made = engine(scope)
    made.advance(runner(scope.storage))
    before = state_of(tmp_path)
    put_back()
    for upper in uppers:
        grow(log.path, upper, n=2)
    for number in range(2):
        if not running:
            scope = rows_of(tmp_path, log.path)
            made = engine(scope, f"run {number}")
        behind = running and uppers in ((), (35,))
        with pytest.raises(DataLossError, match="after" if behind else f"'capture_2': {what}"):
            made.advance(runner(scope.storage))
    assert state_of(tmp_path) == before
    # What is made from it as it is now is right.
    both = rows_of(tmp_path, log.path)
    both.replay(log.path).capture(str(tmp_path / "new"))
    with pytest.raises(DataLossError, match=what):
        engine(both, "next").advance(runner(both.storage))
    assert state_of(tmp_path) == before
    assert state_of(tmp_path, "new")[0] == open_log(log.path).frontier()
    assert [state.failure is None for state in outputs(both)] == [False, True]


def test_input_put_back_under_a_running_query_is_noticed(tmp_path: Path, log: Log) -> None:
    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    scope = rows_of(tmp_path, log.path)
    made = engine(scope, limits=Limits(times=10))
    made.begin()
    with_runner(made, runner(scope.storage)).step()
    put_back()
    grow(log.path, 60, n=2)
    made.begin()
    assert with_runner(made, runner(scope.storage)).step() is None
    assert len(made.failures) == 1
    with pytest.raises(DataLossError, match=OTHER):
        raise made.failures[0]
    assert state_of(tmp_path)[0] == Antichain.of(10)


@pytest.mark.parametrize("running", [False, True])
def test_input_restored_by_delta_is_one_that_was_put_back(tmp_path: Path, log: Log, running: bool) -> None:
    """RESTORE is a version of the table like any other: whoever follows the log is not loaded again."""
    version = log.core.version
    grow(log.path, 40, n=1)
    scope = rows_of(tmp_path, log.path)
    made = engine(scope)
    made.advance(runner(scope.storage))
    before = state_of(tmp_path)
    DeltaTable(log.path).restore(version)
    grow(log.path, 50, n=2)
    if not running:
        scope = rows_of(tmp_path, log.path)
        made = engine(scope, "next")
    with pytest.raises(DataLossError, match=OTHER):
        made.advance(runner(scope.storage))
    assert state_of(tmp_path) == before


def test_diverged_copy_swapped_in_and_back_is_noticed(tmp_path: Path, log: Log) -> None:
    put_other = saved(log.path)
    grow(log.path, 40, n=1)
    put_first = saved(log.path, "first")
    put_other()
    scope = rows_of(tmp_path, log.path)
    made = engine(scope)
    made.advance(runner(scope.storage))  # has read what both share
    grow(log.path, 35, n=2)
    made.advance(runner(scope.storage))
    before = state_of(tmp_path)
    assert before[0] == Antichain.of(35)
    put_first()
    for each in (made, engine(rows_of(tmp_path, log.path), "next")):
        with pytest.raises(DataLossError, match=OTHER):
            each.advance(runner(scope.storage))
    assert state_of(tmp_path) == before


def test_copy_that_has_all_that_was_read_is_the_log_itself(tmp_path: Path, log: Log) -> None:
    run(rows_of(tmp_path, log.path))
    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    put_back()
    grow(log.path, 50, n=2)
    run(rows_of(tmp_path, log.path))
    frontier, rows = state_of(tmp_path)
    assert frontier == Antichain.of(50)
    assert rows["n"].to_pylist()[-20:] == [2] * 20


@pytest.mark.parametrize("which", [0, 1])
def test_one_of_several_inputs_put_back_is_named(tmp_path: Path, log: Log, which: int) -> None:
    other = create_log(str(tmp_path / "other"), SCHEMA, minimum=(0,))
    grow(other.path, 30)
    paths = [log.path, other.path]
    put_back = saved(paths[which])
    for path in paths:
        grow(path, 40, n=1)
    run(rows_of(tmp_path, *paths))
    before = state_of(tmp_path)
    put_back()
    grow(paths[which], 50, n=2)
    grow(paths[1 - which], 50, n=1)
    with pytest.raises(DataLossError, match=f"found another commit .* in log '{paths[which]}'"):
        run(rows_of(tmp_path, *paths))
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("lost", ["one", "two"])
def test_each_stream_of_an_input_counts(tmp_path: Path, lost: str) -> None:
    path = str(tmp_path / "in")
    create_log(path, SCHEMA, minimum=(0,), streams=2)
    for stream in ("one", "two"):
        grow(path, 20, stream=stream)
    put_back = saved(path)
    grow(path, 30, stream=lost)
    other = "two" if lost == "one" else "one"
    run(rows_of(tmp_path, path))
    put_back()
    for stream in (other, lost):
        grow(path, 50, stream=stream)
    with pytest.raises(DataLossError, match=f"found another commit 2 of stream '{lost}'"):
        run(rows_of(tmp_path, path))


def test_output_of_another_dataflow_is_an_input_like_any(tmp_path: Path, log: Log) -> None:
    def made_first() -> None:
        run(rows_of(tmp_path, log.path, name="between"))

    between = str(tmp_path / "between")
    made_first()
    put_back = saved(between)
    grow(log.path, 40)
    made_first()
    run(second_of(tmp_path, between))
    grow(log.path, 50)
    made_first()
    run(second_of(tmp_path, between))
    assert state_of(tmp_path)[0] == Antichain.of(50)
    # Made again by its dataflow it has other commits, in larger steps perhaps: nobody knows whether with the same rows.
    put_back()
    grow(log.path, 60)
    made_first()
    with pytest.raises(DataLossError, match="commit 3 of stream 'main'"):
        run(second_of(tmp_path, between))
    assert state_of(tmp_path)[0] == Antichain.of(50)


def second_of(folder: Path, between: str) -> Scope:
    scope = Scope("second")
    scope.replay(between).aggregate(n=count()).capture(str(folder / "out"))
    return scope


def test_spool_put_back_is_made_again_from_what_it_was_made_from(tmp_path: Path, log: Log) -> None:
    def both() -> Scope:
        scope = Scope("flow")
        scope.replay(log).filter("n >= 0").spool(tmp_path / "spool").aggregate(n=count()).capture(str(tmp_path / "out"))
        return scope

    run(both())
    put_back = saved(str(tmp_path / "spool"))
    put_input_back = saved(log.path)
    grow(log.path, 40)
    run(both())
    put_back()
    grow(log.path, 50)
    run(both())
    assert state_of(tmp_path)[1]["_time"].to_pylist() == list(range(50))
    # What it is made from was put back: both stop, also the one that does not read it itself.
    put_input_back()
    put_back()
    grow(log.path, 60)
    scope = both()
    with pytest.raises(DataLossError, match=f"operator '{scope.sinks[1].name}': {LOST}"):
        run(scope)
    assert state_of(tmp_path)[0] == Antichain.of(50)


def test_output_without_a_step_takes_its_input_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "in")
    create_log(path, SCHEMA, minimum=(0,))
    put_back = saved(path)
    run(rows_of(tmp_path, path))
    put_back()
    grow(path, 10)
    run(rows_of(tmp_path, path))
    assert state_of(tmp_path)[0] == Antichain.of(10)


def test_input_without_rows_that_was_put_back_is_refused(tmp_path: Path) -> None:
    """Nothing was read of it but that nothing was there."""
    path = str(tmp_path / "in")
    made = create_log(path, SCHEMA, minimum=(0,))
    put_back = saved(path)
    made.writer(owner="test").advance(30)
    run(rows_of(tmp_path, path))
    assert state_of(tmp_path)[0] == Antichain.of(30)
    put_back()
    grow(path, 50)
    with pytest.raises(DataLossError, match=OTHER):
        run(rows_of(tmp_path, path))


def compacted(log: Log) -> None:
    log.compact()


def tidied(log: Log) -> None:
    log.core.tidy()


def merged(log: Log) -> None:
    """By commits alone, as a writer does it by the way."""
    writer = log.writer(owner="test")
    log.core.merge_every = 4
    for _ in range(9):
        at = log.frontier().elements[0][0]
        writer.append(pa.table({"_time": [at], "n": [at]}), advance_to=at + 1)


def widened(log: Log) -> None:
    log.add_columns(pa.schema([("late", pa.bool_())]))


@pytest.mark.parametrize(
    ("upkeep", "running"),
    [
        *((upkeep, False) for upkeep in (compacted, tidied, merged, widened, lambda log: None)),
        *((upkeep, True) for upkeep in (compacted, merged)),
    ],
)
def test_upkeep_of_an_input_and_further_commits_change_nothing(
    tmp_path: Path, log: Log, upkeep: Callable[[Log], None], running: bool
) -> None:
    def flow() -> Scope:
        scope = Scope("flow")
        scope.replay(log.path).aggregate(n=count()).capture(str(tmp_path / "out"))
        return scope

    scope = flow()
    made = engine(scope)
    made.advance(runner(scope.storage))
    for _ in range(2):
        upkeep(open_log(log.path))
        grow(log.path, open_log(log.path).frontier().elements[0][0] + 10)
        upkeep(open_log(log.path))
        if not running:
            scope = flow()
            made = engine(scope)
        made.advance(runner(scope.storage))
        assert state_of(tmp_path)[0] == open_log(log.path).frontier()
    times = state_of(tmp_path)[1]["_time"].to_pylist()
    assert times == list(range(len(times)))


def test_step_looks_at_no_commit_that_it_has_seen(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its file is there, also where the handle was loaded again."""
    scope = rows_of(tmp_path, log.path)
    run(scope)
    looked: list[int] = []
    look = LogCore.commits_of

    def noted(self: LogCore, wanted: dict[str, int]) -> object:
        looked.extend(wanted.values())
        return look(self, wanted)

    monkeypatch.setattr(LogCore, "commits_of", noted)
    made = engine(scope)
    for upper in (40, 50, 60):
        grow(log.path, upper)
        made.advance(runner(scope.storage))
    assert looked == [3, 1], "of `main` and of `#open`, at the start"
    looked.clear()
    made._logs[log.path].core.store._reload()  # type: ignore[attr-defined]
    made.advance(runner(scope.storage))
    assert looked == []
    grow(log.path, 70)
    open_log(log.path).compact()
    made.advance(runner(scope.storage))
    assert looked == [6, 1], "found in the file that it was merged into"


def test_another_copy_that_is_further_is_no_history_of_its_own(tmp_path: Path, log: Log) -> None:
    """Its note names commits that a copy whose inputs are pinned has not seen."""
    scope = rows_of(tmp_path, log.path)
    slow = engine(scope, limits=Limits(times=10))
    slow.begin(pinned=True)
    with_runner(slow, runner(scope.storage)).step()
    grow(log.path, 40)
    fast = engine(rows_of(tmp_path, log.path), limits=Limits(times=5))
    fast.begin()
    with_runner(fast, runner(scope.storage)).step()
    newest = newest_note(open_log(str(tmp_path / "out")), scope.sinks[0]).inputs[log.path]
    assert newest.commits["main"][0] == 4
    while with_runner(slow, runner(scope.storage)).step() is not None:
        assert slow.failures == []
    assert newest_note(open_log(str(tmp_path / "out")), scope.sinks[0]).inputs[log.path] == newest
    assert state_of(tmp_path)[0] == Antichain.of(30)


def test_consent_to_an_input_put_back_holds_for_that_state_alone(tmp_path: Path, log: Log) -> None:
    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    run(rows_of(tmp_path, log.path))
    for n in (200, 300):
        put_back()
        grow(log.path, 40 + n // 10, n=n)
        with pytest.raises(DataLossError, match=OTHER) as caught:
            run(rows_of(tmp_path, log.path))
        consent = str(caught.value).rpartition("replaces='")[2].partition("'")[0]
        mine = outputs(rows_of(tmp_path, log.path))[0].plan
        with pytest.raises(DataLossError, match=OTHER):
            run(rows_of(tmp_path, log.path, replaces=mine))
        scope = rows_of(tmp_path, log.path, replaces=consent)
        check_plans(scope.sinks, {path: open_log(path) for path in scope.storage})
        run(scope)
    assert [state_of(tmp_path)[1]["n"].to_pylist().count(n) for n in (200, 300)] == [20, 10]


def consent_to(scope: Scope) -> str:
    """Run a dataflow that is refused; return what its error says that `replaces` may name."""
    with pytest.raises(DataLossError) as caught:
        run(scope)
    found = str(caught.value).rpartition("replaces='")[2].partition("'")[0]
    assert found.startswith("1:"), str(caught.value)
    return found


def remade(path: str, upper: int, n: int) -> None:
    """Delete a log, and make another one at its path."""
    shutil.rmtree(path)
    create_log(path, SCHEMA, minimum=(0,))
    grow(path, upper, n=n)


def start(scope: Scope) -> None:
    """Begin as a query does: with a look at the plans."""
    check_plans(scope.sinks, {path: open_log(path) for path in scope.storage})
    run(scope)


REMADE = r"found log '.*in' of id='.*' where the output was made from id="


def test_consent_to_an_input_made_again_holds_for_that_log_alone(tmp_path: Path, log: Log) -> None:
    run(rows_of(tmp_path, log.path))
    first_rows = state_of(tmp_path)[1].num_rows
    remade(log.path, 50, n=200)
    with pytest.raises(DataLossError, match=REMADE) as refused:
        start(rows_of(tmp_path, log.path))
    assert "found no log of id" not in refused.value.message  # said once: the log of that name is another one
    consent = consent_to(rows_of(tmp_path, log.path))
    remade(log.path, 60, n=300)
    before = state_of(tmp_path)
    with pytest.raises(DataLossError, match=REMADE):
        start(rows_of(tmp_path, log.path, replaces=consent))
    assert state_of(tmp_path) == before
    consent = consent_to(rows_of(tmp_path, log.path))
    grow(log.path, 70, n=300)  # what an input gains is no other input
    for _ in range(2):  # it may stay in the code
        start(rows_of(tmp_path, log.path, replaces=consent))
    frontier, rows = state_of(tmp_path)
    assert frontier == Antichain.of(70)
    assert rows["n"].to_pylist()[first_rows:] == [300] * 40
    start(rows_of(tmp_path, log.path))


def moved_by_hand(folder: Path) -> None:
    open_log(str(folder / "out")).advance("main", [45], reason="by hand")


@pytest.mark.parametrize("then", ["made again", "put back", "another plan"])
@pytest.mark.parametrize("what", ["output moved", "input put back"])
def test_consent_to_one_thing_is_none_to_another_that_came_later(
    tmp_path: Path, log: Log, what: str, then: str
) -> None:
    def flow(replaces: str | None = None, condition: str = "n >= 0") -> Scope:
        scope = Scope("flow")
        scope.replay(log.path).filter(condition).capture(str(tmp_path / "out"), replaces=replaces)
        return scope

    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    run(flow())
    if what == "output moved":
        moved_by_hand(tmp_path)
    else:
        put_back()
        grow(log.path, 60, n=2)
    consent = consent_to(flow())
    condition = "n >= 0"
    if then == "made again":
        remade(log.path, 70, n=3)
    elif then == "put back":
        put_back()
        grow(log.path, 70, n=3)
    else:
        condition = "n > 0"
    before = state_of(tmp_path)
    refused = PlanMismatchError if then == "another plan" else DataLossError
    with pytest.raises(refused, match={"made again": REMADE, "put back": OTHER}.get(then, "filter n > 0")):
        start(flow(consent, condition))
    assert state_of(tmp_path) == before
    if refused is DataLossError:
        with pytest.raises(DataLossError) as caught:
            start(flow())
        # One consent covers both, so the error names both.
        assert ("where the dataflow left it at [40]" in str(caught.value)) == (what == "output moved")
        start(flow(consent_to(flow())))
        assert state_of(tmp_path)[0] == Antichain.of(70)


def test_consent_to_one_input_put_back_is_none_to_a_second_one(tmp_path: Path, log: Log) -> None:
    other = create_log(str(tmp_path / "other"), SCHEMA, minimum=(0,))
    grow(other.path, 30)
    paths = [log.path, other.path]
    put_back = [saved(path) for path in paths]
    for path in paths:
        grow(path, 40, n=1)
    run(rows_of(tmp_path, *paths))
    put_back[0]()
    grow(paths[0], 50, n=2)
    consent = consent_to(rows_of(tmp_path, *paths))
    put_back[1]()
    grow(paths[1], 50, n=2)
    before = state_of(tmp_path)
    with pytest.raises(DataLossError) as caught:
        start(rows_of(tmp_path, *paths, replaces=consent))
    assert all(f"in log '{path}'" in str(caught.value) for path in paths)
    assert state_of(tmp_path) == before
    start(rows_of(tmp_path, *paths, replaces=consent_to(rows_of(tmp_path, *paths))))
    assert state_of(tmp_path)[0] == Antichain.of(50)


@pytest.mark.parametrize("what", ["made again", "put back"])
def test_consent_to_a_plan_is_none_to_another_input(tmp_path: Path, log: Log, what: str) -> None:
    def flow(condition: str, replaces: str | None = None) -> Scope:
        scope = Scope("flow")
        scope.replay(log.path).filter(condition).capture(str(tmp_path / "out"), replaces=replaces)
        return scope

    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    first = flow("n >= 0")
    run(first)
    plan = outputs(first)[0].plan
    rows = state_of(tmp_path)[1].num_rows
    if what == "put back":
        put_back()
        grow(log.path, 60, n=2)
    else:
        remade(log.path, 60, n=2)
    with pytest.raises(PlanMismatchError, match=f"replaces='{plan}'"):
        start(flow("n > 0"))
    found = {"made again": REMADE, "put back": OTHER}[what]
    with pytest.raises(DataLossError, match=found):
        start(flow("n > 0", plan))
    with pytest.raises(DataLossError, match=found):  # also a second time, and without
        start(flow("n > 0", plan))
    assert state_of(tmp_path)[0] == Antichain.of(40)
    start(flow("n > 0", consent_to(flow("n > 0"))))
    assert state_of(tmp_path)[0] == Antichain.of(60)
    assert state_of(tmp_path)[1]["n"].to_pylist()[rows:] == [2] * 20


@pytest.mark.parametrize("what", ["made again", "put back"])
def test_spool_of_another_history_gives_nothing_before_consent(tmp_path: Path, log: Log, what: str) -> None:
    def flow(*outs: str, replaces: tuple[str | None, ...] = (None, None)) -> Scope:
        scope = Scope("flow")
        rows = scope.replay(log.path).filter("n >= 0").spool(tmp_path / "spool", replaces=replaces[0])
        for name in outs:
            rows.capture(str(tmp_path / name), replaces=replaces[1] if name == "out" else None)
        return scope

    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    run(flow("out"))
    if what == "made again":
        remade(log.path, 60, n=2)
    else:
        put_back()
        grow(log.path, 60, n=2)
    both = flow("out", "new")
    with pytest.raises(DataLossError):
        run(both)
    assert state_of(tmp_path, "new")[0] == Antichain.of(0)
    hints = [state.failure.hint if state.failure else None for state in outputs(both)]
    assert hints[2] is None
    spool, out = (str(hint).rpartition("replaces='")[2].partition("'")[0] for hint in hints[:2])
    with pytest.raises(DataLossError, match=f"operator '{both.sinks[1].name}'"):
        start(flow("out", replaces=(spool, None)))
    assert state_of(tmp_path)[0] == Antichain.of(40)
    start(flow("out", replaces=(spool, out)))
    assert state_of(tmp_path)[0] == Antichain.of(60)
    assert state_of(tmp_path)[1].num_rows == state_of(tmp_path, "spool")[1].num_rows


def test_input_of_another_path_is_a_change_of_the_plan(tmp_path: Path, log: Log) -> None:
    first = rows_of(tmp_path, log.path)
    run(first)
    other = create_log(str(tmp_path / "other"), SCHEMA, minimum=(0,))
    grow(other.path, 50, n=2)
    with pytest.raises(PlanMismatchError):
        start(rows_of(tmp_path, other.path))
    start(rows_of(tmp_path, other.path, replaces=outputs(first)[0].plan))
    assert state_of(tmp_path)[0] == Antichain.of(50)


def test_input_that_comes_back_needs_no_consent(tmp_path: Path, log: Log) -> None:
    """Also where another plan took over meanwhile: it is a change of the code, and the input was never accepted."""
    first = rows_of(tmp_path, log.path)
    run(first)
    put_back = saved(log.path)
    remade(log.path, 50, n=2)

    def flow(replaces: str | None = None) -> Scope:
        scope = Scope("flow")
        scope.replay(log.path).filter("n >= 0").capture(str(tmp_path / "out"), replaces=replaces)
        return scope

    with pytest.raises(DataLossError, match=REMADE):
        start(flow(newest_note(open_log(str(tmp_path / "out")), first.sinks[0]).plan))
    put_back()
    grow(log.path, 50, n=3)
    start(flow())
    assert state_of(tmp_path)[0] == Antichain.of(50)
    assert set(state_of(tmp_path)[1]["n"].to_pylist()[-20:]) == {3}


def test_input_that_was_moved_and_put_back_is_known_by_its_id(tmp_path: Path, log: Log) -> None:
    put_back = saved(log.path)
    grow(log.path, 40, n=1)
    run(rows_of(tmp_path, log.path))
    put_back()
    moved = f"{log.path} moved"
    shutil.move(log.path, moved)
    grow(moved, 50, n=2)
    with pytest.raises(DataLossError, match=rf"found another commit 4 of stream 'main' in log '{moved}'"):
        run(rows_of(tmp_path, moved))


def test_note_stays_small_however_many_streams_an_input_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow_inputs, "_MOST_BYTES", 400)
    path = str(tmp_path / "in")
    made = create_log(path, SCHEMA, minimum=(0,), streams=40)
    for number in range(40):
        made.writer(f"s{number:02}", owner="test").advance(10)
    run(rows_of(tmp_path, path))
    note = newest_note(open_log(str(tmp_path / "out")), rows_of(tmp_path, path).sinks[0]).inputs[path]
    assert isinstance(note, InputNote)
    names = sorted({*note.commits} - {"#open"})
    assert names == [f"s{number:02}" for number in range(40 - len(names), 40)]
    assert 5 <= len(names) <= 12
