"""Consistent cuts: how they are made, what they refuse, that they mean the same elsewhere and later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_timely
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.datasource.spark_readers import TimelyPartition
from spark_timely.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidUsageError,
    LogFormatError,
    LogMissingError,
    NotBeyondError,
)
from spark_timely.log.cut import Cut, CutLog, open_cut
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

SCHEMA = pa.schema([("v", pa.int64())])


def make(path: Path, closed: Any, *, times: tuple[str, ...] = ("long",), kind: str = "stream") -> spark_timely.Log:
    log = spark_timely.create_log(path, SCHEMA, times=times, minimum=(0,) * len(times), kind=kind)
    columns = {
        name: pa.array(range(10), pa.int64()).cast(t.arrow)
        for name, t in zip(log.domain.columns, log.domain.types, strict=True)
    }
    log.writer(owner="o").append(pa.table({**columns, "v": range(10)}), advance_to=closed)
    return log


def read(log: spark_timely.Log, cut: Cut, **options: Any) -> list[int]:
    """Read as a batch, as Spark does, without it."""
    source = TimelyDataSource({"path": log.path, "cut": str(cut), **options})
    reader = source.reader(source.schema())
    rows = [b for p in reader.partitions() if isinstance(p, TimelyPartition) for b in reader.read(p)]
    return sorted(row["v"] for batch in rows for row in batch.to_pylist())


def test_cut_is_at_the_meet_and_keeps_what_it_found(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", 7), make(tmp_path / "b", 4)
    cut = spark_timely.cut([a, b.path])
    assert cut.frontier == Antichain.of(4)
    assert [(log.path, log.log_id, log.frontier) for log in cut.logs] == [
        (a.path, a.core.log_id, Antichain.of(7)),
        (b.path, b.core.log_id, Antichain.of(4)),
    ]
    assert (read(a, cut), read(b, cut)) == ([0, 1, 2, 3], [0, 1, 2, 3])
    # A handle that is behind sees what is there now.
    spark_timely.open_log(b.path).advance("main", 6)
    assert spark_timely.cut([a, b]).frontier == Antichain.of(6)


def test_cut_of_a_product_order_and_of_complete_logs(tmp_path: Path) -> None:
    pair = ("long", "long")
    a, b = make(tmp_path / "a", [[3, 0], [0, 5]], times=pair), make(tmp_path / "b", [[2, 2]], times=pair)
    cut = spark_timely.cut([a, b])
    assert cut.frontier == Antichain.of((0, 5), (2, 2), (3, 0))
    assert read(a, cut) == read(b, cut) == [0, 1]
    a.close()
    b.close()
    done = spark_timely.cut([a, b])
    assert (done.frontier, len(read(a, done))) == (Antichain.empty(2), 10)


def test_cut_means_the_same_after_writes_compaction_and_json(tmp_path: Path) -> None:
    log = make(tmp_path / "a", 4)
    cut = Cut.from_json(json.loads(json.dumps(spark_timely.cut([log]).to_json())))
    before = read(log, cut)
    # At times that were open then, and behind the file's first rows.
    writer = log.writer(owner="o")
    writer.append(pa.table({"_time": [4, 9], "v": [100, 101]}), advance_to=9)
    log.compact()
    log.close()
    assert read(log, cut) == before == [0, 1, 2, 3]
    assert [opened.core.log_id for opened in open_cut(cut)] == [log.core.log_id]


def test_cut_ahead_is_refused_until_it_is_reached(tmp_path: Path) -> None:
    log = make(tmp_path / "a", 4)
    cut = spark_timely.cut([log], frontier=[6])
    with pytest.raises(
        NotBeyondError, match=r"at a cut of frontier=\[6\]: found frontier=\[4\] — hint: wait for the log"
    ):
        read(log, cut)
    log.advance("main", 5)
    with pytest.raises(NotBeyondError):
        read(log, cut)
    log.advance("main", 6)
    assert read(log, cut) == [0, 1, 2, 3, 4, 5]
    # Rounding down is for ends that nobody asked for.
    assert read(log, cut, alignTo=5) == [0, 1, 2, 3, 4, 5]


def test_log_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    log = make(tmp_path / "a", 4)
    cut = spark_timely.cut([log])
    shutil.rmtree(log.path)
    with pytest.raises(LogMissingError, match="found nothing there"):
        open_cut(cut)
    other = make(tmp_path / "a", 8)
    for use in (lambda: read(other, cut), lambda: open_cut(cut), lambda: spark_timely.wait(cut, timeout_s=0)):
        with pytest.raises(DataLossError, match=f"found id={other.core.log_id!r}, the cut has id={log.core.log_id!r}"):
            use()


def back_and_grown(log: spark_timely.Log, earlier: Path, *uppers: int) -> None:
    """Put a log back to a copy and let it grow by other commits."""
    shutil.rmtree(log.path)
    shutil.copytree(earlier, log.path)
    writer = spark_timely.open_log(log.path).writer(owner="o")
    for upper in uppers:
        writer.append(pa.table({"_time": [upper - 1], "v": [1000 + upper]}), advance_to=upper)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("uppers", [(), (7,), (8, 9), (5, 6, 7, 8)])
def test_log_that_was_put_back_is_refused_though_it_has_grown(
    tmp_path: Path, uppers: tuple[int, ...], compacted: bool
) -> None:
    log = make(tmp_path / "a", 4)
    shutil.copytree(log.path, tmp_path / "earlier")
    log.writer(owner="o").append(pa.table({"_time": [5], "v": [100]}), advance_to=7)
    cut = Cut.from_json(str(spark_timely.cut([log])))
    assert cut.frontier == Antichain.of(7)
    back_and_grown(log, tmp_path / "earlier", *uppers)
    if compacted:
        spark_timely.open_log(log.path).compact()
    found = f"another commit 2 of stream 'main' in log '{log.path}' than" if uppers else "without commit 2 of stream"
    for use in (lambda: read(log, cut), lambda: open_cut(cut), lambda: spark_timely.wait(cut, timeout_s=0)):
        with pytest.raises(DataLossError, match=found) as told:
            use()
        assert "hint: put back the log that the cut was made of, which was restored to an earlier" in str(told.value)
    # What it is now can be read.
    assert len(read(log, spark_timely.cut([spark_timely.open_log(log.path)]))) >= 4


def test_cut_of_many_streams_keeps_the_commits_made_last(tmp_path: Path) -> None:
    log = make(tmp_path / "a", 4)
    for number in range(300):
        log.core.open_stream(f"s{number:03}", owner="o", donor="main")
    cut = Cut.from_json(str(spark_timely.cut([log])))
    assert 2 < len(cut.logs[0].commits) < 300
    assert len(str(cut)) < 16 * 1024
    assert read(log, cut) == [0, 1, 2, 3]
    # A handle that is behind what the cut was made of looks again.
    behind = spark_timely.open_log(log.path)
    spark_timely.open_log(log.path).advance("main", 6)
    spark_timely.cut([log]).check_log(behind)


def test_log_that_is_not_of_the_cut_is_refused(tmp_path: Path) -> None:
    log, other = make(tmp_path / "a", 4), make(tmp_path / "b", 8)
    with pytest.raises(InvalidUsageError, match="this one is not among them"):
        read(other, spark_timely.cut([log]))


def test_log_that_moved_is_read_where_it_is(tmp_path: Path) -> None:
    log = make(tmp_path / "a", 4)
    cut = spark_timely.cut([log])
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert read(spark_timely.open_log(tmp_path / "b"), cut) == [0, 1, 2, 3]


@pytest.mark.parametrize("logs", [[], (), "a path", Path("log")])
def test_cut_of_nothing_or_of_no_list_is_refused(logs: Any) -> None:
    with pytest.raises(InvalidUsageError, match="could not make a cut: found") as told:
        spark_timely.cut(logs)
    assert "list of" in str(told.value)


def test_cut_of_one_log_that_is_in_no_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="give a list of logs"):
        spark_timely.cut(make(tmp_path / "a", 4))  # type: ignore[arg-type]


def test_times_of_different_types_have_no_cut(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", 4), make(tmp_path / "b", 4, times=("short",))
    with pytest.raises(InvalidUsageError, match=r"found times=\['short'\] in log .*, times=\['long'\] in "):
        spark_timely.cut([a, b])
    with pytest.raises(InvalidUsageError):
        spark_timely.cut([a], frontier="2013-01-01")


@pytest.mark.parametrize("name", ["upTo", "endingVersion"])
def test_cut_beside_another_end_is_refused(tmp_path: Path, name: str) -> None:
    log = make(tmp_path / "a", 4)
    with pytest.raises(InvalidOptionError, match=f"found conflicting options '{name}', 'cut'"):
        read(log, spark_timely.cut([log]), **{name: "5"})
    with pytest.raises(InvalidOptionError, match="found option cut="):
        read(log, spark_timely.cut([log]), delivery="arrival")


def test_stream_goes_on_until_the_cut(tmp_path: Path) -> None:
    log = make(tmp_path / "a", 4)
    source = TimelyDataSource({"path": log.path, "cut": str(spark_timely.cut([log], frontier=6)), "pollInterval": "0"})
    planner = source.streamReader(source.schema()).planner  # type: ignore[attr-defined]
    first = planner.latest(planner.initial())
    assert first["frontier"] == [4]
    log.advance("main", 9)
    assert planner.latest(first)["frontier"] == [6]


CUTS = st.sampled_from(["long", "date", "timestamp"]).flatmap(
    lambda kind: st.builds(
        lambda frontier, logs: Cut(TimeDomain((kind,)), frontier, tuple(logs)),
        st.lists(st.integers(0, 2**20), max_size=1).map(lambda times: Antichain.from_times([[t] for t in times], 1)),
        st.lists(
            st.builds(
                CutLog,
                st.text(max_size=5),
                st.text(max_size=9),
                st.integers(0, 99).map(Antichain.of),
                st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 2**63), st.text(max_size=4)), max_size=3),
            ),
            min_size=1,
            max_size=3,
        ),
    )
)


@given(CUTS)
def test_cut_through_json_is_the_same(cut: Cut) -> None:
    assert Cut.from_json(str(cut)) == cut
    assert Cut.from_json(cut.to_json()) == cut


def text_of(**other: object) -> str:
    """Return a cut as JSON, with something else in it."""
    entry = {"id": "a", "path": "p", "frontier": [1], "commits": {"main": [1, "9f"]}}
    entry.update({name: value for name, value in other.items() if name in entry and name != "frontier"})
    whole = {"version": 2, "times": ["long"], "frontier": [1], "logs": [entry]}
    return json.dumps({**whole, **{name: value for name, value in other.items() if name in whole}})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "7", '"a"', "{}", '{"version": 2}'),
        text_of(version=0.5),
        text_of(logs=[]),
        text_of(logs=[7]),
        text_of(logs=[{"id": "a", "path": "p", "frontier": [1]}]),
        text_of(frontier=["x"]),
        text_of(frontier=1),
        text_of(times=["far"]),
        text_of(commits=None),
        text_of(commits={"main": 3}),
        text_of(commits={"main": ["x", "9f"]}),
    ],
)
def test_what_is_no_cut_is_refused(text: str) -> None:
    assert Cut.from_json(text_of()).logs[0].commits == {"main": (1, "9f")}
    with pytest.raises(InvalidUsageError, match="could not read a cut: found") as told:
        Cut.from_json(text)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("version", "hint"), [(3, "upgrade .* a newer"), (1, "make a new cut: an older")])
def test_cut_of_another_version_is_refused(version: int, hint: str) -> None:
    with pytest.raises(LogFormatError, match=f"found version={version}, known is 2 — hint: {hint}"):
        Cut.from_json(text_of(version=version))
