"""Graphs of updates and of history: what cannot take rows back, and what SQL cannot evaluate, is refused when built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import avg_of, count, sum_of
from spark_timely.dataflow.delays import ceil_to
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from spark_timely.log.log import create_log

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
TAKE_BACK = "which it cannot take back"
Build = Callable[[Stream, Stream], object]  # of what is refused, and of events


def made(folder: Path, kind: str, times: tuple[str, ...] = ("long",)) -> Stream:
    scope = Scope("flow")
    least = (0,) * len(times)
    return scope.replay(create_log(str(folder / kind), SCHEMA, minimum=least, times=times, kind=kind))


def events_beside(stream: Stream, folder: Path) -> Stream:
    return stream._scope.replay(create_log(str(folder / "beside"), SCHEMA, minimum=(0,)))


def same(time: object, rows: pa.Table, *more: pa.Table) -> pa.Table:
    return rows


# Operator of a collection, and what the refusal says.
OF_UPDATES: dict[str, tuple[Build, str]] = {
    "as_updates": (lambda made, events: made.as_updates(), TAKE_BACK),
    "times_extract": (lambda made, events: made.times_extract(), TAKE_BACK),
    "times_reduce": (lambda made, events: made.times_reduce(), TAKE_BACK),
    "aggregate of a time": (lambda made, events: made.aggregate(by="k", m=count()), TAKE_BACK),
    "join of a time, left": (lambda made, events: made.join(events, on="k"), TAKE_BACK),
    "join of a time, right": (lambda made, events: events.join(made, on="k"), TAKE_BACK),
    "unary_notify": (lambda made, events: made.unary_notify(same), TAKE_BACK),
    "binary_notify, left": (lambda made, events: made.binary_notify(events, same), TAKE_BACK),
    "binary_notify, right": (lambda made, events: events.binary_notify(made, same), TAKE_BACK),
    "drop_duplicates": (lambda made, events: made.drop_duplicates("k"), "have no first time"),
    "join as of a time, left": (lambda made, events: made.join(made, on="k", as_of=True), "on the left"),
    "sum of floats": (
        lambda made, events: made.aggregate(over="history", s=sum_of("x")),
        "a sum of updates of column 'x'",
    ),
    "average of floats": (
        lambda made, events: made.aggregate(over="history", a=avg_of("x")),
        "could not aggregate 'a': found an average of updates of column 'x'",
    ),
}


@pytest.mark.parametrize("name", OF_UPDATES)
def test_what_takes_no_rows_back_refuses_updates(name: str, tmp_path: Path) -> None:
    build, said = OF_UPDATES[name]
    updates = made(tmp_path, "collection")
    with pytest.raises((InvalidUsageError, SchemaMismatchError), match=said) as error:
        build(updates, events_beside(updates, tmp_path))
    assert error.value.hint
    assert updates._scope.sinks == []


# What needs updates, given events.
OF_EVENTS: dict[str, Build] = {
    "negate": lambda events, beside: events.negate(),
    "consolidate": lambda events, beside: events.consolidate(),
    "join as of a time, right": lambda events, beside: events.join(beside, on="k", as_of=True),
}


@pytest.mark.parametrize("name", OF_EVENTS)
def test_what_is_of_collections_refuses_events(name: str, tmp_path: Path) -> None:
    events = made(tmp_path, "stream")
    with pytest.raises(InvalidUsageError, match="no updates of a collection") as error:
        OF_EVENTS[name](events, events_beside(events, tmp_path))
    assert "as_updates()" in str(error.value.hint)


def test_concat_of_events_and_updates_is_refused(tmp_path: Path) -> None:
    updates = made(tmp_path, "collection")
    events = events_beside(updates, tmp_path)
    for first, second in ((updates, events), (events, updates)):
        with pytest.raises(InvalidUsageError, match="beside updates of a collection"):
            first.concat(second)


HISTORY: dict[str, Build] = {
    "aggregate": lambda events, beside: events.aggregate(by="k", over="history", m=count()),
    "distinct": lambda events, beside: events.select("k", "n").distinct(),
    "drop_duplicates": lambda events, beside: events.drop_duplicates("k"),
    "latest": lambda events, beside: events.latest("k", order_by="n"),
    "top": lambda events, beside: events.top(2, by="k", order_by="n"),
    "reduce": lambda events, beside: events.reduce(lambda key, rows: rows.select(["n"]), by="k"),
    "join as of a time": lambda events, beside: events.join(beside, on="k", as_of=True),
}


@pytest.mark.parametrize("name", HISTORY)
def test_times_of_two_coordinates_refuse_history(name: str, tmp_path: Path) -> None:
    events = made(tmp_path, "stream", times=("long", "long"))
    with pytest.raises(InvalidUsageError, match="found times of 2 coordinates"):
        HISTORY[name](events, events)


def test_what_updates_alone_have_is_refused_of_events(tmp_path: Path) -> None:
    events = made(tmp_path, "stream")
    for build in (events.negate, events.consolidate):
        with pytest.raises(InvalidUsageError, match="no updates of a collection"):
            build()


def test_order_by_the_time_of_the_log_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match="found no column '_time'") as error:
        made(tmp_path, "stream").latest("k", order_by="_time")
    assert "write it into the rows too" in str(error.value.hint)


def test_what_takes_rows_back_is_built_of_updates(tmp_path: Path) -> None:
    updates = made(tmp_path, "collection")
    beside = events_beside(updates, tmp_path)
    built = [
        updates.filter("n > 1"), updates.select("k"), updates.concat(updates.negate()), updates.consolidate(),
        updates.delay(ceil_to(10)), updates.map(lambda rows: rows), updates.flat_map(with_row),
    ]  # fmt: skip
    assert all(each.view.updates for each in built)
    right = updates.select("k", m=pc.field("n"))
    assert not beside.join(right, on="k", as_of=True).view.updates


def with_row(rows: pa.Table) -> pa.Table:
    return pa.table({"_row": pa.array(range(rows.num_rows), pa.int64()), "k": rows["k"]})
