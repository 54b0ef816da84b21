"""A stream that another query takes over: when it may, and what each of the two is told afterwards."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely import errors
from spark_timely.cli import main
from tests.support import examples
from tests.unit.sink.driver import BOUNDED, SCHEMA, SinkDriver, rows


def query(folder: Path, name: str, **options: Any) -> SinkDriver:
    return SinkDriver(folder, query=name, checkpoint=f"checkpoint-{name}", **{**BOUNDED, **options})


def taken(folder: Path) -> tuple[SinkDriver, SinkDriver]:
    """Return the query that had the stream, and the one that has taken it over with its first micro-batch."""
    old = query(folder, "old")
    old.run([rows([5])])
    new = query(folder, "new", takeover="true")
    new.run([rows([6], 10)])
    return old, new


def test_takeover_without_the_option_is_refused_with_the_way(tmp_path: Path) -> None:
    query(tmp_path, "old").run([rows([5])])
    other = query(tmp_path, "new")
    (other.checkpoint / "offsets" / "0").write_text("")
    with pytest.raises(errors.OwnershipError, match=r"owned by 'old', this query is 'new'.*takeover=true"):
        other.writer(SCHEMA)


def test_takeover_is_judged_by_the_counts_of_the_stream(tmp_path: Path) -> None:
    query(tmp_path, "old").run([rows([5])])
    new = query(tmp_path, "new", takeover="true")
    # Behind the frontier that the owner before has left.
    with pytest.raises(errors.LateDataError, match="found time 3 behind the frontier \\[4\\]"):
        new.run([rows([3])])
    assert new.log().core.stream("main").owner == "old"
    new.options["lateData"] = "deadLetter"
    new.run([rows([3, 6], 10)])
    state = new.log().core.stream("main")
    assert (state.owner, state.epoch, state.batch, state.frontier.elements) == ("new", 1, 0, ((5,),))
    assert new.log().dead()["id"].to_pylist() == [10]


def test_owner_before_is_refused_and_the_new_one_named(tmp_path: Path) -> None:
    old = query(tmp_path, "old")
    old.run([rows([5])])
    # Its next micro-batch is under way when the stream is taken over.
    (old.checkpoint / "offsets" / "1").write_text("")
    writer = old.writer(SCHEMA)
    message = writer.write(iter(rows([7]).to_batches()))
    query(tmp_path, "new", takeover="true").run([rows([6], 10)])
    before = (old.log().core.version, old.data_files())
    with pytest.raises(errors.OwnershipError, match="owned by 'new', this query is 'old'"):
        old.writer(SCHEMA).commit([message], 1)
    # As foreachBatch does it: the plan of before commits.
    with pytest.raises(errors.OwnershipError, match="owned by 'new'"):
        writer.commit([message], 1)
    with pytest.raises(errors.OwnershipError, match="owned by 'new'"):
        old.run([rows([7])])
    assert old.log().core.version == before[0]
    assert old.data_files() < before[1]


def test_restart_of_the_new_owner_takes_nothing_over_again(tmp_path: Path) -> None:
    _, new = taken(tmp_path)
    new.run([rows([7], 20)])
    new.run([rows([8], 30)])
    state = new.log().core.stream("main")
    assert (state.epoch, state.batch, state.seq) == (1, 2, 4)


def test_owner_before_does_not_get_the_stream_back(tmp_path: Path) -> None:
    old, new = taken(tmp_path)
    old.options["takeover"] = "true"
    with pytest.raises(errors.OwnershipError, match=r"taken over by 'new' from this query, 'old'.*new checkpoint"):
        old.run([rows([7])])
    # With its first micro-batch repeated, whose commit Spark does not know of: its rows are in the log.
    (old.checkpoint / "commits" / "0").unlink()
    (old.checkpoint / "offsets" / "1").unlink()
    with pytest.raises(errors.OwnershipError, match="taken over by 'new'"):
        old.run([rows([5])])
    assert new.log().messages()["_time"].to_pylist() == [5, 6]


@pytest.mark.parametrize("crash", ["before commit", "after commit"])
def test_first_micro_batch_repeated_after_a_crash_is_there_once(tmp_path: Path, crash: str) -> None:
    query(tmp_path, "old").run([rows([5])])
    new = query(tmp_path, "new", takeover="true")
    new.run([rows([6, 4], 10)], crash=crash)
    new.run([rows([6, 4], 10)])
    state = new.log().core.stream("main")
    assert (state.owner, state.epoch, state.batch) == ("new", 1, 0)
    assert new.log().messages()["id"].to_pylist() == [11, 0, 10]


def test_loser_of_two_takeovers_at_once_plans_again(tmp_path: Path) -> None:
    query(tmp_path, "old").run([rows([5])])
    pair = [query(tmp_path, name, takeover="true") for name in ("b", "c")]
    writers = []
    for driver in pair:
        (driver.checkpoint / "offsets" / "0").write_text("")
        writer = driver.writer(SCHEMA)
        writers.append((driver, writer, writer.write(iter(rows([6], 10).to_batches()))))
    for (_, writer, message), error in zip(writers, (None, errors.UpperMismatchError), strict=True):
        if error is None:
            writer.commit([message], 0)
        else:
            with pytest.raises(error, match="restart the query"):
                writer.commit([message], 0)
    pair[1].run([rows([7], 20)])  # its first micro-batch still: it is its turn now
    assert pair[1].log().core.stream("main").owner == "c"
    with pytest.raises(errors.OwnershipError, match="taken over by 'c' from this query, 'b'"):
        pair[0].run([rows([8])])
    assert pair[1].log().messages()["_time"].to_pylist() == [5, 6, 7]


def test_query_whose_id_only_the_tasks_know_takes_over_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_timely.sink import writer as sink_writer

    query(tmp_path, "old").run([rows([5])])
    new = query(tmp_path, "new", takeover="true")
    (new.checkpoint / "metadata").unlink()
    known = sink_writer._as_tasks_know
    monkeypatch.setattr(sink_writer, "_as_tasks_know", lambda ident: type(known(ident))("new", 0))
    new.run([rows([6], 10)])
    assert new.log().core.stream("main").owner == "new"
    monkeypatch.setattr(sink_writer, "_as_tasks_know", lambda ident: type(known(ident))("old", 1))
    with pytest.raises(errors.OwnershipError, match="'old'"):
        new.run([rows([7], 20)])


def test_closed_stream_is_not_taken_over(tmp_path: Path) -> None:
    old = query(tmp_path, "old")
    old.run([rows([5])])
    old.log().close("main")
    with pytest.raises(errors.ClosedError, match="found it closed"):
        query(tmp_path, "new", takeover="true").run([rows([6])])


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["run", "run", "lost", "killed"])), min_size=1, max_size=9
)


@settings(examples(15, long=600), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_takeovers_in_any_order_capture_each_row_once(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    """Each query has an endless input of its own, and tries to go on wherever its checkpoint is.

    ``lost``: killed before Spark's own commit; ``killed``: before the log's.
    """
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    queries = {name: query(folder, name, takeover="true", lateness="9") for name in "abc"}
    owner: str | None = None
    former: set[str] = set()
    expected: Counter[tuple[str, int]] = Counter()
    crashes = {"run": None, "lost": "after commit", "killed": "before commit"}
    for name, how in steps:
        driver = queries[name]
        batch = driver.next_batch()
        data = rows([7], first_id=100 * "abc".index(name) + batch)
        if name in former and name != owner:
            with pytest.raises(errors.OwnershipError):
                driver.run([data])
            continue
        driver.run([data], crash=crashes[how])
        if how != "killed":
            owner = name
            former.add(name)
            expected[(name, batch)] = 1
    if expected:
        log = queries["a"].log()
        found = Counter(("abc"[i // 100], i % 100) for i in log.messages()["id"].to_pylist())
        assert found == expected
        assert log.core.stream("main").owner == owner
        assert log.core.stream("main").epoch == len(former) - 1
        assert log.verify().legal


def test_takeover_is_a_warning_that_names_where_the_log_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    old = query(tmp_path, "old")
    old.run([rows([5])])
    assert "twice" not in stats(old, capsys)
    ended = old.log().core.stream("main").note.batch.source
    assert ended
    new = query(tmp_path, "new", takeover="true")
    with caplog.at_level("WARNING", "spark_timely.sink"):
        new.run([rows([6], 10)])
    (line,) = [record.getMessage() for record in caplog.records]
    assert "micro-batch 0 of query 'new' took stream 'main'" in line
    where = " ".join(ended.split())
    assert f"over from 'old' after its micro-batch 0, whose sources ended at {where}: rows that" in line
    assert "twice — hint: a new checkpoint begins where its sources begin" in line
    assert "stream main: taken over from 'old': rows that the new owner's sources gave again" in stats(old, capsys)
    caplog.clear()
    with caplog.at_level("WARNING", "spark_timely.sink"):
        new.run([rows([7], 20)])
    assert not caplog.records, "the next micro-batch takes nothing over"


def test_first_capture_into_an_unused_stream_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new = query(tmp_path, "new", takeover="true")
    with caplog.at_level("WARNING", "spark_timely.sink"):
        new.run([rows([6], 10)])
    assert not caplog.records


def stats(driver: SinkDriver, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["stats", str(driver.log_path)]) == 0
    return capsys.readouterr().out
