"""Delays near the greatest time of a type: nothing closes too early, and no row is lost without a word.

A delayed time past the greatest one of its type is taken for that one, coordinate by coordinate: what is behind the
delay stays there until its input is past it. The row itself is refused by name. The oracle counts with Python's
integers.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as s

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import ceil_to, plus, windows
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tracking import Tracking
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import leaves_of
from spark_timely.errors import OperatorError
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType
from tests.property.test_dataflow import runner
from tests.support import examples

SCHEMA = pa.schema([("n", pa.int64())])
Time = tuple[int, ...]
Step = tuple[Any, ...]
KINDS = ["long", "short", "timestamp", "date"]


def moved(steps: Sequence[Step], time: Time, high: int) -> tuple[Time, bool]:
    """Return where a time is taken, kept below the greatest one at each step; and whether it ever was past that."""
    past = False
    for kind, *how in steps:
        if kind == "plus":
            time = tuple(x + step for x, step in zip(time, how[0], strict=True))
        elif kind == "ceil":
            time = (-(-time[0] // how[0]) * how[0],)
        else:  # the end of the window that began last
            time = ((time[0] // how[0] + 1) * how[0],)
        past = past or max(time) > high
        time = tuple(min(x, high) for x in time)
    return time, past


def delayed(stream: Stream, steps: Sequence[Step], kind_of_time: str) -> Stream:
    unit = {"timestamp": " us", "date": " days"}.get(kind_of_time)
    for kind, *how in steps:
        spans = how[0] if isinstance(how[0], tuple) else (how[0],)
        written = [span if unit is None else f"{span}{unit}" for span in spans]
        stream = stream.delay(
            plus(*written) if kind == "plus" else ceil_to(written[0]) if kind == "ceil" else windows(written[0])
        )
    return stream


def steps_of(arity: int, high: int) -> s.SearchStrategy[list[Step]]:
    added = s.integers(0, 12) | s.just(high)
    kinds = [s.tuples(s.just("plus"), s.tuples(*[added] * arity))]
    if arity == 1:
        kinds += [s.tuples(s.sampled_from(["ceil", "windows"]), s.integers(1, 12) | s.just(high))]
    return s.lists(s.one_of(kinds), min_size=1, max_size=3)


@s.composite
def stories(draw: s.DrawFn) -> tuple[str, int, list[list[Step]], list[Antichain]]:
    """Draw a type, paths of delays, and frontiers of their input that end near the greatest time, or complete."""
    kind, arity = draw(s.sampled_from(KINDS)), draw(s.integers(1, 2))
    high = TimeType(kind).hi
    paths = draw(s.lists(steps_of(arity, high), min_size=1, max_size=3))
    at = s.integers(high - 30, high) | s.integers(0, 20)
    frontiers = [Antichain.of((0,) * arity)]
    for times in draw(s.lists(s.lists(s.tuples(*[at] * arity), min_size=1, max_size=3), max_size=5)):
        frontiers.append(frontiers[-1].join(Antichain.of(*times)))
    if draw(s.booleans()):
        frontiers.append(Antichain.empty(arity))
    return kind, arity, paths, frontiers


@examples(100, long=2000)
@given(stories(), s.randoms(use_true_random=False))
def test_frontiers_stay_at_the_greatest_time(
    story: tuple[str, int, list[list[Step]], list[Antichain]], rng: random.Random
) -> None:
    kind, arity, paths, frontiers = story
    high = TimeType(kind).hi
    with tempfile.TemporaryDirectory() as folder:
        log = create_log(f"{folder}/in", SCHEMA, times=[kind] * arity, minimum=np.zeros(arity, np.int64))
        scope = Scope("flow")
        first, *others = [delayed(scope.replay(log), path, kind) for path in paths]
        stream = first.concat(*others) if others else first
        stream.capture(f"{folder}/out")
    (sink,) = scope.sinks
    (leaf,) = leaves_of(sink.view)
    tracking = Tracking("flow", scope.sinks)
    for frontier in frontiers:
        if rng.random() < 0.3 and frontier is not frontiers[-1]:
            continue  # others may never see it
        taken = [moved(path, time, high)[0] for path in paths for time in frontier]
        wanted = Antichain.of(*taken) if taken else Antichain.empty(arity)
        assert sink.view.front({leaf: frontier}) == wanted
        assert tracking.update({}, {leaf.path: frontier}) == {}
        assert tracking.frontier(sink) == wanted
        _check_back(sink.view.pre(frontiers[0], wanted)[leaf], paths, wanted, arity, high)


def _check_back(
    ranges: Sequence[tuple[Antichain, Antichain]], paths: list[list[Step]], hi: Antichain, arity: int, high: int
) -> None:
    """Compare what a range needs of the log with the times that are taken into it."""
    near = [0, 1, 7, 20, *range(high - 30, high + 1)]
    times = np.array([[a, b] for a in near[::3] for b in near] if arity == 2 else [[a] for a in near], dtype=np.int64)
    wanted = np.array([[hi.less_equal(moved(path, tuple(t), high)[0]) for t in times.tolist()] for path in paths])
    inside = np.zeros(times.shape[0], dtype=np.bool_)
    for _, above in ranges:
        inside |= ~above.beyond(times)
    assert (inside == (~wanted).any(axis=0)).all()


@pytest.mark.parametrize("kind", ["long", "short"])
@pytest.mark.parametrize("arity", [1, 2])
@examples(8, long=300)
@given(
    data=s.data(),
    whole=s.booleans(),
    workers=s.sampled_from([None, 2]),
    max_times=s.sampled_from([None, 1]),
    shuffle_bytes=s.sampled_from([SHUFFLE_BYTES, 0]),
)
def test_rows_near_the_greatest_time_are_given_once_or_refused(
    kind: str,
    arity: int,
    data: s.DataObject,
    whole: bool,
    workers: int | None,
    max_times: int | None,
    shuffle_bytes: int,
) -> None:
    type_ = TimeType(kind)
    high = type_.hi
    steps = data.draw(steps_of(arity, high))
    columns = ["_time"] if arity == 1 else [f"_time_{i}" for i in range(arity)]
    rows: list[Time] = []
    with tempfile.TemporaryDirectory() as folder:
        log = create_log(f"{folder}/in", SCHEMA, times=[kind] * arity, minimum=np.zeros(arity, np.int64))
        writer = log.writer(owner="test")
        scope = Scope("flow")
        stream = delayed(scope.replay(log), steps, kind)
        (stream.aggregate(by="n", m=count()) if whole else stream).capture(f"{folder}/out")

        def engine() -> Engine:
            return Engine(
                "flow",
                scope.sinks,
                scope.storage,
                files_of=catalog_of,
                limits=Limits(times=max_times),
                workers=workers,
                shuffle_bytes=shuffle_bytes,
            )

        running, refused = engine(), False
        frontier = Antichain.of((0,) * arity)
        for turn in range(data.draw(s.integers(1, 5))):
            at = s.integers(high - 20, high) if turn else s.integers(0, 9)
            times = [
                tuple(map(max, zip(each, frontier.elements[0], strict=True)))
                for each in data.draw(s.lists(s.tuples(*[at] * arity), max_size=3))
            ]
            table = {name: type_.to_arrow([time[i] for time in times]) for i, name in enumerate(columns)}
            frontier = frontier.join(Antichain.of(data.draw(s.tuples(*[at] * arity))))
            writer.append(pa.table({**table, "n": range(len(rows), len(rows) + len(times))}), advance_to=frontier)
            rows += times
            if data.draw(s.booleans()):
                running = engine() if data.draw(s.booleans()) else running
                refused = _advance(running, scope) or refused
                assert not _upper(folder).is_empty, "closed before its input"
        writer.close()
        refused = _advance(engine(), scope) or refused
        ends = [moved(steps, time, high) for time in rows]
        assert refused == any(past for _, past in ends)
        out = _upper(folder)
        assert out.is_empty == (not refused)
        found = open_log(f"{folder}/out").messages()
        given_times = zip(*(_numbers(found[name], type_) for name in columns), found["n"].to_pylist(), strict=True)
        wanted = [(*end, n) for n, (end, past) in enumerate(ends) if not past and not out.less_equal(end)]
        assert Counter(given_times) == Counter(wanted)


def _advance(engine: Engine, scope: Scope) -> bool:
    """Return whether a row was refused by name."""
    try:
        engine.advance(runner(scope.storage))
    except OperatorError as error:
        if "which it would delay past the greatest time of its type" in error.message:
            return True
        raise
    return False


def _upper(folder: str) -> Antichain:
    return open_log(f"{folder}/out").frontier()


def _numbers(column: pa.ChunkedArray, type_: TimeType) -> list[int]:
    found: list[int] = type_.from_arrow(column).tolist()
    return found
